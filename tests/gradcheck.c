/* gradcheck: are all gradients right, and would a wrong one be noticed?
 *
 *   gradcheck [OP ...]      all ops, or those named; the exit status is the verdict
 *
 * 1. Every differentiable case in f64 and in f32 must come out right.
 * 2. Functions whose verdict is known in advance: bends, no signal, NaN.
 * 3. Every vjp is damaged - sign, a factor of 1.001, dropped, swapped with its neighbour's, not summed where it was broadcast - and
 *    each damage must come out wrong. Damage that cannot be done to any case is listed with its reason. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/internal.h"
#include "tests/cases/cases.h"

static int n_ops;
static char **ops;

static bool wanted(const char *op)
{
    for (int i = 0; i < n_ops; i++)
        if (strcmp(ops[i], op) == 0)
            return true;
    return n_ops == 0;
}

static bool has_vjp(const tl_case *c) { return tl_op_find(c->op) != NULL && tl_op_find(c->op)->vjp != NULL; }
static bool checked(const tl_case *c) { return has_vjp(c) && !(c->flags & (CASE_NO_CHECK | CASE_BIG)); }

/* One check on a tape of its own. m may be NULL. */
static tl_verdict check(const tl_case *c, tl_dtype dtype, const tl_mutation *m, tl_gradcheck_report *report)
{
    case_run r = tl_case_run(c, dtype);
    ref_tensor leaf[CASE_INPUTS];
    tl_tensor in[CASE_INPUTS];
    uint64_t state = 3;
    tl_case_fill(&r, &state, CASE_PLAIN, leaf);
    case_call k = {&r, leaf};
    tl_tape *t = tl_tape_new(NULL);
    t->mutation = m;
    int n = tl_case_floats(t, &k, in);
    tl_verdict v = tl_gradcheck_with(t, tl_case_function, in, n, &k, report, .elements = m != NULL ? 4 : 6, .directions = m != NULL ? 1 : 2);
    tl_free(t);
    tl_case_free(r.n, leaf);
    return v;
}

/* ---- 1. cases ---- */

static int passed, failed;

static void row(const char *op, const char *name, const char *dtype, tl_verdict v, tl_verdict want, const tl_gradcheck_report *r)
{
    bool good = v == want;
    *(good ? &passed : &failed) += 1;
    double scale = fmax(fabs(r->numeric), fabs(r->analytic)), error = scale > 0 ? fabs(r->numeric - r->analytic) / scale : 0;
    printf("%-20s %-32s %-5s %-18s %9.2g%s\n", op, name, dtype, tl_verdict_name(v), error, good ? "" : "   FAILED");
    if (!good)
        printf("    %s expected; %s\n", tl_verdict_name(want), r->text);
}

static void check_cases(void)
{
    static const tl_dtype dtypes[] = {TL_F64, TL_F32};
    printf("%-20s %-32s %-5s %-18s %9s\n", "op", "case", "dtype", "verdict", "error");
    for (int i = 0; i < tl_case_count(); i++) {
        const tl_case *c = tl_case_at(i);
        bool star = strchr(c->in, '*') != NULL;
        for (int k = 0; checked(c) && wanted(c->op) && k < (star ? 2 : 1); k++) {
            tl_gradcheck_report r;
            tl_verdict v = check(c, dtypes[k], NULL, &r);
            row(c->op, c->name, star ? tl_dtype_name(dtypes[k]) : "-", v, TL_RIGHT, &r);
        }
    }
}

/* ---- 2. verdicts known in advance ---- */

#define FUNCTION(name, call)                                                             \
    static tl_tensor name(tl_tape *t, const tl_tensor *in, int n, void *ctx)             \
    {                                                                                    \
        (void)n, (void)ctx;                                                              \
        return call;                                                                     \
    }
FUNCTION(relu_of, tl_relu(t, in[0]))
FUNCTION(abs_of, tl_abs(t, in[0]))
FUNCTION(max_of, tl_max(t, in[0], TL_ALL, false))
FUNCTION(maximum_of, tl_maximum(t, in[0], in[1]))
FUNCTION(minimum_of, tl_minimum(t, in[0], in[1]))
FUNCTION(zero_times, tl_scale(t, in[0], 0))
FUNCTION(not_there, tl_sub(t, in[0], in[0]))
FUNCTION(detached, tl_mul(t, tl_scale(t, in[0], 0), tl_detach(t, in[0])))
FUNCTION(log_of, tl_log(t, in[0]))
FUNCTION(sqrt_of, tl_sqrt(t, in[0]))
FUNCTION(square_of, tl_square(t, in[0]))
/* A gradient that says half of what it should: the square, one factor of which is taken for a constant. */
FUNCTION(half_known, tl_mul(t, in[0], tl_detach(t, tl_scale(t, in[0], 1))))

static const struct {
    const char *name;
    tl_function *f;
    int n;
    double x[4], y[4];
    tl_verdict want;
} known[] = {
    {"relu at 0", relu_of, 1, {0, 1, -1, 2}, {0}, TL_KINK},
    {"relu away from 0", relu_of, 1, {1, -1, 2, 3}, {0}, TL_RIGHT},
    {"abs at 0", abs_of, 1, {0, 1, -1, 2}, {0}, TL_KINK},
    {"max at a tie", max_of, 1, {1, 3, 3, 2}, {0}, TL_KINK},
    {"maximum at a tie", maximum_of, 2, {1, 3, 3, 2}, {1, 2, 4, 3}, TL_KINK},
    {"minimum at a tie", minimum_of, 2, {1, 3, 3, 2}, {0, 2, 3, 3}, TL_KINK},
    {"gradient zero everywhere", zero_times, 1, {1, 2, 3, 4}, {0}, TL_NO_SIGNAL},
    {"x - x", not_there, 1, {1, 2, 3, 4}, {0}, TL_NO_SIGNAL},
    {"zero times a detached", detached, 1, {1, 2, 3, 4}, {0}, TL_NO_SIGNAL},
    {"a second input unused", square_of, 2, {1, 2, 3, 4}, {1, 2, 3, 4}, TL_NO_SIGNAL},
    {"NaN: log below 0", log_of, 1, {1, -2, 3, 4}, {0}, TL_WRONG},
    {"NaN: sqrt below 0", sqrt_of, 1, {-1, 2, 3, 4}, {0}, TL_WRONG},
    {"NaN as input", square_of, 1, {1, NAN, 3, 4}, {0}, TL_WRONG},
    {"infinity as input", square_of, 1, {1, INFINITY, 3, 4}, {0}, TL_WRONG},
    {"infinite slope: sqrt at 0", sqrt_of, 1, {0, 2, 3, 4}, {0}, TL_WRONG},
};

static void check_known(void)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        for (int k = 0; k < 2; k++) {
            tl_dtype d = k ? TL_F32 : TL_F64;
            tl_tape *t = tl_tape_new(NULL);
            tl_gradcheck_report r;
            tl_tensor in[2] = {tl_cast(t, tl_data(t, known[i].x, TL_F64, TL_DIMS(4)), d), tl_cast(t, tl_data(t, known[i].y, TL_F64, TL_DIMS(4)), d)};
            tl_verdict v = tl_gradcheck_with(t, known[i].f, in, known[i].n, NULL, &r, .seed = 0);
            row("(known)", known[i].name, tl_dtype_name(d), v, known[i].want, &r);
            bool recorded = tl_failed(t) == (v != TL_RIGHT) && r.verdict == v && r.text[0] != '\0';
            *(recorded ? &passed : &failed) += 1;
            if (!recorded)
                printf("    verdict and error on the tape do not agree: '%s'\n", tl_error(t));
            tl_free(t);
        }
}

/* ---- 3. damage ---- */

static const char *const kinds[] = {"sign", "factor", "drop", "swap", "un-broadcast"};

typedef enum { CAUGHT, MISSED, EQUAL, NOWHERE } outcome;

/* The op's cases in order of cost until one can be damaged so. */
static outcome damage(const tl_op *op, int input, tl_mutation_kind kind, const tl_case **order, int n, tl_gradcheck_report *r, const tl_case **where)
{
    int equal = 0;
    for (int i = 0; i < n; i++) {
        int applied = 0;
        tl_mutation m = {op, input, kind, &applied, &equal};
        tl_verdict v = check(order[i], TL_F64, &m, r);
        *where = order[i];
        if (applied > 0)
            return v == TL_WRONG ? CAUGHT : MISSED;
    }
    return equal > 0 ? EQUAL : NOWHERE;
}

static int64_t cost(const tl_case *c)
{
    case_run r = tl_case_run(c, TL_F64);
    int64_t n = 0;
    for (int i = 0; i < r.n; i++)
        n += r.in[i].present ? tl_shape_count(&r.in[i].shape) : 0;
    return n;
}

static int by_cost(const void *a, const void *b)
{
    int64_t x = cost(*(const tl_case *const *)a), y = cost(*(const tl_case *const *)b);
    return x < y ? -1 : x > y;
}

/* The highest number of inputs among the op's cases. */
static int inputs_of(const tl_op *op, const tl_case **order, int n)
{
    int most = op->n_in;
    for (int i = 0; op->n_in < 0 && i < n; i++) {
        int k = tl_case_run(order[i]->op[0] ? order[i] : order[0], TL_F64).n;
        most = k > most ? k : most;
    }
    return most;
}

/* Why a kind of damage can be done nowhere. NULL: it should have been possible. */
static const char *excuse(const tl_op *op, tl_mutation_kind kind)
{
    if (kind == TL_MUTATE_SWAP)
        return op->n_in == 1 ? "it has one input" : "no later input has a gradient of the same shape and dtype in one array";
    if (kind == TL_MUTATE_UNBROADCAST)
        return op->traits & TL_POINTWISE && op->n_in > 1 ? NULL : op->folds ? "it folds its gradients itself" : "its inputs do not broadcast";
    return NULL;
}

/* Inputs that no gradient goes to, though the op is differentiable. */
static const struct {
    const char *op;
    int input;
    const char *reason;
} constants[] = {
    {"where", 0, "a condition"}, {"embedding", 1, "ids"}, {"scatter_add", 1, "ids"}, {"scatter_add", 2, "an accumulator"},
    {"matmul", 2, "an accumulator"}, {"sum_to", 1, "an accumulator"}, {"cross_entropy", 1, "targets"}, {"cross_entropy", 2, "a count"},
    {"cross_entropy", 3, "a running total"}, {"cross_entropy_grad", 2, "targets"}, {"cross_entropy_grad", 3, "a count"},
    {"rms_norm_grad", 3, "rstd, a function of x"}, {"rms_norm_grad", 4, "an accumulator"},
};

static const char *constant(const tl_op *op, int input)
{
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (strcmp(constants[i].op, op->name) == 0 && constants[i].input == input)
            return constants[i].reason;
    return NULL;
}

static int mutants, caught, equivalent, impossible, bad_ops;

static bool damage_input(const tl_op *op, int input, const tl_case **order, int n)
{
    bool any = false;
    for (tl_mutation_kind kind = TL_MUTATE_SIGN; kind < TL_MUTATE_COUNT; kind++) {
        tl_gradcheck_report r;
        const tl_case *where = NULL;
        const char *reason = excuse(op, kind);
        switch (damage(op, input, kind, order, n, &r, &where)) {
        case CAUGHT: mutants++, caught++, any = true; break;
        case MISSED:
            mutants++;
            printf("NOT CAUGHT   %s, input %d, %s, case '%s': %s\n", op->name, input, kinds[kind], where->name, r.text);
            break;
        case EQUAL:
            equivalent++;
            printf("equivalent   %s, input %d, %s: the bits would be the same\n", op->name, input, kinds[kind]);
            break;
        case NOWHERE:
            impossible++;
            if (reason == NULL && kind == TL_MUTATE_UNBROADCAST)
                bad_ops++;
            printf("%-12s %s, input %d, %s: %s\n", reason != NULL ? "equivalent" : "NO CASE", op->name, input, kinds[kind],
                   reason != NULL ? reason : "no case lets it be done");
            break;
        }
    }
    return any;
}

static void damage_op(const tl_op *op)
{
    const tl_case *order[256];
    int n = 0;
    for (int i = 0; i < tl_case_count() && n < 256; i++)
        if (strcmp(tl_case_at(i)->op, op->name) == 0 && checked(tl_case_at(i)))
            order[n++] = tl_case_at(i);
    qsort(order, (size_t)n, sizeof *order, by_cost);
    int inputs = inputs_of(op, order, n);
    for (int i = 0; i < inputs; i++) {
        if (constant(op, i) != NULL) {
            printf("constant     %s, input %d: %s\n", op->name, i, constant(op, i));
        } else if (!damage_input(op, i, order, n)) {
            printf("NO MUTANT    %s, input %d: no case can be damaged\n", op->name, i);
            bad_ops++;
        }
    }
}

int main(int argc, char **argv)
{
    n_ops = argc - 1;
    ops = argv + 1;
    check_cases();
    if (n_ops == 0)
        check_known();
    printf("%d passed, %d failed\n", passed, failed);
    for (int i = 0; i < tl_op_count(); i++)
        if (tl_op_at(i)->vjp != NULL && wanted(tl_op_at(i)->name))
            damage_op(tl_op_at(i));
    printf("%d equivalent, %d without a place, %d ops or inputs with nothing to damage\n", equivalent, impossible, bad_ops);
    printf("%d mutants, %d caught\n", mutants, caught);
    return failed > 0 || passed == 0 || mutants == 0 || caught < mutants || bad_ops > 0;
}
