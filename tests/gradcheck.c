/* gradcheck: are all gradients right, and would a wrong one be noticed?
 *
 *   gradcheck [OP ...]      all ops, or those named; the exit status is the verdict
 *
 * 1. Every differentiable case must come out right: in f64 with leaves as the op's inputs and with
 * results of another op, in f32 with leaves.
 * 2. The gradients of the same cases, as functions of the inputs and the cotangent, must come out
 * right too: in f64, in f32 where the case is small. An op without a second derivative is listed
 * with its reason, and must say so itself when it is recorded.
 * 3. Functions whose verdict is known in advance: bends, no signal, NaN.
 * 4. Every vjp is damaged - sign, a factor of 1.001, dropped, swapped with its neighbour's, not
 * summed where it was broadcast - and each damage must come out wrong. Damage that cannot be done
 * to any case is listed with its reason. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/check/mutate.h"
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

/* The op has a derivative, and every input some elements to move. */
static bool checked(const tl_case *c)
{
    const tl_op *op = tl_op_find(c->op);
    case_run r = tl_case_run(c, TL_F64);
    bool empty = false;
    for (int i = 0; i < r.n; i++)
        empty |= r.in[i].present && tl_shape_count(&r.in[i].shape) == 0;
    return op != NULL && op->vjp != NULL && !empty && !(c->flags & (CASE_NO_CHECK | CASE_BIG));
}

enum { SMALL = 400 }; /* elements of a case that is checked twice in f32 */

static int64_t cost(const tl_case *c)
{
    case_run r = tl_case_run(c, TL_F64);
    int64_t n = 0;
    for (int i = 0; i < r.n; i++)
        n += r.in[i].present ? tl_shape_count(&r.in[i].shape) : 0;
    return n;
}

/* One check on a tape of its own, of first or second derivatives. m may be NULL. */
static tl_verdict check(const tl_case *c, tl_dtype dtype, bool inside, int order, tl_mutation *m,
                        tl_gradcheck_report *report)
{
    case_run r = tl_case_run(c, dtype);
    ref_tensor leaf[CASE_INPUTS];
    tl_tensor in[CASE_INPUTS];
    uint64_t state = tl_case_seed(3, &r, CASE_PLAIN);
    tl_case_fill(&r, &state, CASE_PLAIN, leaf);
    case_call k = {&r, leaf, inside};
    tl_tape *t = tl_tape_new(NULL);
    if (m != NULL)
        tl_observe(t, &tl_mutator, m);
    int n = tl_case_floats(t, &k, in);
    tl_gradcheck_options o = {.elements = m != NULL    ? 4
                                          : order == 2 ? 3
                                                       : 6,
                              .directions = m != NULL ? 1 : 2};
    tl_verdict v = order == 2
                       ? tl_gradgradcheck_at(TL_AT(t), tl_case_function, in, n, &k, o, report)
                       : tl_gradcheck_at(TL_AT(t), tl_case_function, in, n, &k, o, report);
    tl_free(t);
    tl_case_free(r.n, leaf);
    return v;
}

/* ---- 1. cases ---- */

static int passed, failed;

static void row(const char *op, const char *name, const char *dtype, const char *how, tl_verdict v,
                tl_verdict want, const tl_gradcheck_report *r)
{
    bool good = v == want;
    *(good ? &passed : &failed) += 1;
    double scale = fmax(fabs(r->numeric), fabs(r->analytic)),
           error = scale > 0 ? fabs(r->numeric - r->analytic) / scale : 0;
    printf("%-20s %-32s %-6s %-7s %-18s %9.2g%s\n", op, name, dtype, how, tl_verdict_name(v), error,
           good ? "" : "   FAILED");
    if (!good)
        printf("    %s expected; %s\n", tl_verdict_name(want), r->text);
}

static void check_cases(void)
{
    static const tl_dtype dtypes[] = {TL_F64, TL_F32};
    printf("%-20s %-32s %-6s %-7s %-18s %9s\n", "op", "case", "dtype", "inputs", "verdict",
           "error");
    for (int i = 0; i < tl_case_count(); i++) {
        const tl_case *c = tl_case_at(i);
        bool star = strchr(c->in, '*') != NULL;
        for (int k = 0; checked(c) && wanted(c->op) && k < (star ? 3 : 2); k++) {
            tl_gradcheck_report r;
            bool inside = k == 0;
            tl_dtype d = dtypes[k == 2];
            tl_verdict v = check(c, d, inside, 1, NULL, &r);
            row(c->op, c->name, star ? tl_dtype_name(d) : "mixed", inside ? "inside" : "leaf", v,
                TL_RIGHT, &r);
        }
    }
}

/* ---- 2. second derivatives ---- */

/* Ops that stop at the first derivative: which op says so, and why. At present none. */
static const struct {
    const char *op, *stops, *reason;
} once[] = {
    {"", "", ""},
};

static const char *once_only(const char *op, const char **stops)
{
    for (size_t i = 0; i < sizeof once / sizeof once[0]; i++)
        if (strcmp(once[i].op, op) == 0) {
            *stops = once[i].stops;
            return once[i].reason;
        }
    return NULL;
}

static int seconds, refused;

static void second_order(const tl_case *c, tl_dtype d, const char *dtype)
{
    tl_gradcheck_report r;
    const char *stops = NULL, *reason = once_only(c->op, &stops);
    tl_verdict v = check(c, d, false, 2, NULL, &r);
    if (reason == NULL) {
        seconds++;
        row(c->op, c->name, dtype, "second", v, TL_RIGHT, &r);
        return;
    }
    char says[96];
    snprintf(says, sizeof says, "%s: has no derivative", stops);
    bool good = v != TL_RIGHT && strstr(r.text, says) != NULL;
    *(good ? &passed : &failed) += 1;
    refused++;
    printf("%-20s %-32s %-6s %-7s %s: %s%s\n", c->op, c->name, dtype, "second", "none", reason,
           good ? "" : "   FAILED");
    if (!good)
        printf("    \"%s\" expected; %s\n", says, r.text);
}

static void check_second_order(void)
{
    for (int i = 0; i < tl_case_count(); i++) {
        const tl_case *c = tl_case_at(i);
        if (!checked(c) || !wanted(c->op))
            continue;
        bool star = strchr(c->in, '*') != NULL;
        second_order(c, TL_F64, star ? "F64" : "mixed");
        if (star && cost(c) <= SMALL)
            second_order(c, TL_F32, "F32");
    }
    printf("second order: %d checked, %d of ops that have none\n", seconds, refused);
}

/* ---- 3. verdicts known in advance ---- */

#define FUNCTION(name, call)                                                 \
    static tl_tensor name(tl_tape *t, const tl_tensor *in, int n, void *ctx) \
    {                                                                        \
        (void)n, (void)ctx;                                                  \
        return call;                                                         \
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
FUNCTION(by_detached, tl_mul(t, in[0], tl_detach(t, tl_scale(t, in[0], 2))))

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
    {"a detached factor is a constant", by_detached, 1, {1, 2, 3, 4}, {0}, TL_RIGHT},
    {"a second input unused", square_of, 2, {1, 2, 3, 4}, {1, 2, 3, 4}, TL_NO_SIGNAL},
    {"NaN: log below 0", log_of, 1, {1, -2, 3, 4}, {0}, TL_WRONG},
    {"NaN: sqrt below 0", sqrt_of, 1, {-1, 2, 3, 4}, {0}, TL_WRONG},
    {"NaN as input", square_of, 1, {1, (double)NAN, 3, 4}, {0}, TL_WRONG},
    {"infinity as input", square_of, 1, {1, (double)INFINITY, 3, 4}, {0}, TL_WRONG},
    {"infinite slope: sqrt at 0", sqrt_of, 1, {0, 2, 3, 4}, {0}, TL_WRONG},
};

static void check_known(void)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        for (int k = 0; k < 2; k++) {
            tl_dtype d = k ? TL_F32 : TL_F64;
            tl_tape *t = tl_tape_new(NULL);
            tl_gradcheck_report r;
            tl_tensor in[2] = {tl_cast(t, tl_data(t, known[i].x, TL_F64, TL_DIMS(4)), d),
                               tl_cast(t, tl_data(t, known[i].y, TL_F64, TL_DIMS(4)), d)};
            tl_verdict v = tl_gradcheck_with(t, known[i].f, in, known[i].n, NULL, &r, .seed = 0);
            row("(known)", known[i].name, tl_dtype_name(d), "leaf", v, known[i].want, &r);
            bool recorded = tl_failed(t) == (v != TL_RIGHT) && r.verdict == v && r.text[0] != '\0';
            *(recorded ? &passed : &failed) += 1;
            if (!recorded)
                printf("    verdict and error on the tape do not agree: '%s'\n", tl_error(t));
            tl_free(t);
        }
}

/* ---- 4. damage ---- */

static const char *const kinds[] = {"sign", "factor", "drop", "swap", "un-broadcast"};

typedef enum { CAUGHT, MISSED, EQUAL, NOWHERE } outcome;

/* The op's cases in order of cost until one can be damaged so. */
static outcome damage(const tl_op *op, int input, tl_mutation_kind kind, bool inside,
                      const tl_case **order, int n, tl_gradcheck_report *r, const tl_case **where)
{
    int equal = 0;
    for (int i = 0; i < n; i++) {
        tl_mutation m = {op, input, kind, 0, 0};
        tl_verdict v = check(order[i], TL_F64, inside, 1, &m, r);
        *where = order[i];
        equal += m.equal;
        if (m.applied > 0)
            return v == TL_WRONG ? CAUGHT : MISSED;
    }
    return equal > 0 ? EQUAL : NOWHERE;
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
        return op->n_in == 1 ? "it has one input"
                             : "the next input has no other gradient of the same shape and dtype";
    if (kind == TL_MUTATE_UNBROADCAST)
        return op->traits & TL_POINTWISE && op->n_in > 1 ? NULL
               : op->folds                               ? "it folds its gradients itself"
                                                         : "its inputs do not broadcast";
    return NULL;
}

/* Inputs that no gradient goes to, though the op is differentiable. */
static const struct {
    const char *op;
    int input;
    const char *reason;
} constants[] = {
    {"where", 0, "a condition"},
    {"embedding", 1, "ids"},
    {"scatter_add", 1, "ids"},
    {"scatter_add", 2, "an accumulator"},
    {"matmul", 2, "an accumulator"},
    {"sum_to", 1, "an accumulator"},
    {"cross_entropy", 1, "targets"},
    {"cross_entropy", 2, "a count"},
    {"cross_entropy", 3, "a running total"},
    {"cross_entropy_grad", 2, "targets"},
    {"cross_entropy_grad", 3, "a count"},
    {"rms_norm_grad", 4, "an accumulator"},
    {"layer_norm_grad", 5, "an accumulator"},
    {"gather", 1, "ids"},
    {"scatter_add_dim", 1, "ids"},
    {"nll", 1, "targets"},
    {"nll", 2, "a count"},
    {"nll", 3, "a running total"},
    {"nll_grad", 1, "targets"},
    {"nll_grad", 2, "a count"},
    {"dropout", 1, "numbers of samples"},
    {"dropout", 2, "first columns"},
    {"attention", 3, "first keys"},
    {"attention", 4, "ends of keys"},
    {"attention_grad", 4, "first keys"},
    {"attention_grad", 5, "ends of keys"},
    {"rotary_", 1, "tables: x is gone, so their gradients are refused"},
    {"rotary_", 2, "tables: x is gone, so their gradients are refused"},
};

static const char *constant(const tl_op *op, int input)
{
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (strcmp(constants[i].op, op->name) == 0 && constants[i].input == input)
            return constants[i].reason;
    return NULL;
}

static int mutants, caught, equivalent, impossible;

/* Why a kind of damage could be done neither to leaves nor inside. */
static void explain(const tl_op *op, int input, tl_mutation_kind kind, bool equal)
{
    const char *reason = equal ? "the bits would be the same" : excuse(op, kind);
    *(reason != NULL ? &equivalent : &impossible) += 1;
    printf("%-12s %s, input %d, %s: %s\n", reason != NULL ? "equivalent" : "NO CASE", op->name,
           input, kinds[kind], reason != NULL ? reason : "no case lets it be done");
}

/* Damage where gradients accumulate in a leaf, and where they are handed on. */
static void damage_input(const tl_op *op, int input, const tl_case **order, int n)
{
    for (tl_mutation_kind kind = TL_MUTATE_SIGN; kind < TL_MUTATE_COUNT; kind++) {
        bool equal = false;
        int done = 0;
        for (int inside = 0; inside < 2; inside++) {
            tl_gradcheck_report r;
            const tl_case *where = NULL;
            outcome o = damage(op, input, kind, inside, order, n, &r, &where);
            equal |= o == EQUAL;
            done += o == CAUGHT || o == MISSED;
            caught += o == CAUGHT;
            if (o == MISSED)
                printf("NOT CAUGHT   %s, input %d, %s, case '%s' (%s): %s\n", op->name, input,
                       kinds[kind], where->name, inside ? "inside" : "leaf", r.text);
        }
        mutants += done;
        if (done == 0)
            explain(op, input, kind, equal);
    }
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
        if (constant(op, i) != NULL)
            printf("constant     %s, input %d: %s\n", op->name, i, constant(op, i));
        else
            damage_input(op, i, order, n);
    }
}

int main(int argc, char **argv)
{
    n_ops = argc - 1;
    ops = argv + 1;
    check_cases();
    check_second_order();
    if (n_ops == 0)
        check_known();
    printf("%d passed, %d failed\n", passed, failed);
    for (int i = 0; i < tl_op_count(); i++)
        if (tl_op_at(i)->vjp != NULL && wanted(tl_op_at(i)->name))
            damage_op(tl_op_at(i));
    printf("%d kinds of damage equivalent, %d that no case lets be done\n", equivalent, impossible);
    printf("%d mutants, %d caught\n", mutants, caught);
    return failed > 0 || passed == 0 || mutants == 0 || caught < mutants || impossible > 0;
}
