/* gradcheck: are all gradients right, and would a wrong one be noticed?
 *
 *   gradcheck [OP ...]      all ops, a line each, or those named, a line for each check; failures
 *                           always. The exit status is the verdict, 2 for what is no op with a
 *                           derivative
 *
 * 1. Every differentiable case must come out right: in f64 with leaves as the op's inputs and with
 * results of another op, in f32 with leaves.
 * 2. The gradients of the same cases, as functions of the inputs and the cotangent, must come out
 * right too: in f64, in f32 where the case is small.
 * 3. Functions whose verdict is known in advance: bends, no signal, NaN.
 * 4. Every vjp is damaged - sign, a factor of 1.001, dropped, swapped with its neighbour's, not
 * summed where it was broadcast - and each damage must come out wrong, and the op, the input and
 * the factor be named. Damage that cannot be done to any case is excused only by what shows it.
 *
 * What is not checked is counted as skipped, and named where ops are. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/mutate.h"
#include "autograd/internal.h"
#include "tests/cases/cases.h"
#include "tests/support/names.h"

static int n_ops;
static char **ops;

static bool wanted(const tl_op *op)
{
    for (int i = 0; i < n_ops; i++)
        if (strcmp(ops[i], op->name) == 0)
            return op->vjp != NULL;
    return n_ops == 0 && op->vjp != NULL;
}

static bool takes_gradient(const tl_case *c)
{
    case_run r = tl_case_run(c, TL_F64);
    bool some = false;
    for (int i = 0; i < r.n; i++)
        some |= r.in[i].present && !r.in[i].fixed && tl_dtype_is_float(r.in[i].dtype);
    return some;
}

/* The op has a derivative, by some input, and every input some elements to move. */
static bool checked(const tl_case *c)
{
    const tl_op *op = tl_op_find(c->op);
    case_run r = tl_case_run(c, TL_F64);
    bool empty = false;
    for (int i = 0; i < r.n; i++)
        empty |= r.in[i].present && tl_shape_count(&r.in[i].shape) == 0;
    return op != NULL && op->vjp != NULL && !empty && takes_gradient(c) &&
           !(c->flags & (CASE_NO_CHECK | CASE_BIG));
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

/* How a case is varied: nothing, or one input differs. */
typedef struct {
    int input;
    enum { AS_IT_IS, CUT, LIKE_NEXT, NEXT_LIKE, UNFIXED } how;
    int axis;
} variation;

static void lay(case_input *in, tl_shape shape)
{
    in->shape = in->leaf = shape;
    in->layout = CASE_ROW;
}

/* False if there is nothing to vary so. CUT: an axis of the input has one element. LIKE_NEXT and
 * NEXT_LIKE: the input and the next have one shape. UNFIXED: it takes a gradient, which it did not.
 */
static bool vary(case_run *r, const variation *v)
{
    case_input *x = &r->in[v->input], *next = x + 1;
    if (v->how == AS_IT_IS)
        return true;
    if (v->input >= r->n || !x->present || !tl_dtype_is_float(x->dtype))
        return false;
    tl_shape cut = x->shape;
    switch (v->how) {
    case CUT:
        if (v->axis >= cut.ndim || cut.dim[v->axis] == 1)
            return false;
        cut.dim[v->axis] = 1;
        lay(x, cut);
        return true;
    case UNFIXED:
        if (!x->fixed)
            return false;
        x->fixed = false;
        return true;
    default:
        if (v->input + 1 >= r->n || !next->present || !tl_dtype_is_float(next->dtype))
            return false;
        if (v->how == LIKE_NEXT)
            lay(x, next->shape);
        else
            lay(next, x->shape);
        return true;
    }
}

/* A sign of life on stderr where an op takes long: after two seconds without one, or without the
 * op's own line. */
static struct timespec last_said;
static int checks;
static void said(void)
{
    clock_gettime(CLOCK_MONOTONIC, &last_said);
    checks = 0;
}
static void still_at_work(const char *op)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    checks++;
    if (now.tv_sec - last_said.tv_sec < 2)
        return;
    fprintf(stderr, "  %s: still at work, %d more checks done\n", op, checks);
    said();
}

/* One check on a tape of its own, of first or second derivatives. var and m may be NULL. */
static tl_verdict check(const tl_case *c, const variation *var, tl_dtype dtype, bool inside,
                        int order, tl_mutation *m, tl_gradcheck_report *report)
{
    case_run r = tl_case_run(c, dtype);
    ref_tensor leaf[CASE_INPUTS];
    tl_tensor in[CASE_INPUTS];
    if (var != NULL && !vary(&r, var))
        return TL_NO_SIGNAL;
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
    still_at_work(c->op);
    return v;
}

/* ---- 1. cases ---- */

static int passed, failed, skipped;
enum { MOST_WRONG = 1024 };
static const char *wrong[MOST_WRONG]; /* ops that failed */
static int n_wrong;
static double worst[2]; /* relative error of an op's gradients: f64, f32 */

static void skip(const tl_case *c, const char *why)
{
    skipped++;
    if (n_ops > 0)
        printf("%-20s %-32s skipped: %s\n", c->op, c->name, why);
}

/* Says what failed; the first is said again after the totals. */
static char first[2 * TL_MESSAGE_MAX];
static void complain(const char *fmt, ...) TL_PRINTF(1, 2);
static void complain(const char *fmt, ...)
{
    char text[sizeof first];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fputs(text, stdout);
    if (*first == '\0')
        strcpy(first, text);
}

static void row(const char *op, const char *name, const char *dtype, const char *how, tl_verdict v,
                tl_verdict want, const tl_gradcheck_report *r)
{
    bool good = v == want;
    *(good ? &passed : &failed) += 1;
    double scale = fmax(fabs(r->numeric), fabs(r->analytic)),
           error = scale > 0 ? fabs(r->numeric - r->analytic) / scale : 0;
    double *most = &worst[strcmp(dtype, "F64") != 0];
    *most = fmax(*most, error);
    if (!good)
        complain("%-20s %-32s %-6s %-7s %-18s %9.2g   FAILED\n    %s expected; %s\n", op, name,
                 dtype, how, tl_verdict_name(v), error, tl_verdict_name(want), r->text);
    else if (n_ops > 0)
        printf("%-20s %-32s %-6s %-7s %-18s %9.2g\n", op, name, dtype, how, tl_verdict_name(v),
               error);
}

static void check_case(const tl_case *c)
{
    static const tl_dtype dtypes[] = {TL_F64, TL_F32};
    bool star = strchr(c->in, '*') != NULL;
    for (int k = 0; k < (star ? 3 : 2); k++) {
        tl_gradcheck_report r;
        bool inside = k == 0;
        tl_dtype d = dtypes[k == 2];
        tl_verdict v = check(c, NULL, d, inside, 1, NULL, &r);
        row(c->op, c->name, star ? tl_dtype_name(d) : "mixed", inside ? "inside" : "leaf", v,
            TL_RIGHT, &r);
    }
}

/* ---- 2. second derivatives ---- */

static void check_twice(const tl_case *c)
{
    tl_gradcheck_report r;
    bool star = strchr(c->in, '*') != NULL;
    tl_verdict v = check(c, NULL, TL_F64, false, 2, NULL, &r);
    row(c->op, c->name, star ? "F64" : "mixed", "second", v, TL_RIGHT, &r);
    if (star && cost(c) > SMALL) {
        skip(c, "second derivatives in F32, of more elements than are checked twice");
    } else if (star) {
        v = check(c, NULL, TL_F32, false, 2, NULL, &r);
        row(c->op, c->name, "F32", "second", v, TL_RIGHT, &r);
    }
}

static void check_op(const tl_op *op)
{
    for (int i = 0; i < tl_case_count(); i++) {
        const tl_case *c = tl_case_at(i);
        if (strcmp(c->op, op->name) != 0)
            continue;
        if (checked(c)) {
            check_case(c);
            check_twice(c);
        } else {
            skip(c, !takes_gradient(c)    ? "no input takes a gradient"
                    : c->flags & CASE_BIG ? "large; its small ones are checked"
                    : c->flags & CASE_NO_CHECK
                        ? "the table of cases (tests/cases) says not to, and why"
                        : "no elements");
        }
    }
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
FUNCTION(mixed_of, tl_square(t, tl_scale(t, tl_cast(t, in[0], TL_BF16), 0.7)))
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
    {"bf16 in between", mixed_of, 1, {1, 2, 3, 4}, {0}, TL_RIGHT},
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
                complain("(known) %s: verdict and error on the tape do not agree: '%s'\n",
                         known[i].name, tl_error(t));
            tl_free(t);
        }
}

/* ---- 4. damage ---- */

static const char *const kinds[] = {"sign", "factor", "drop", "swap", "un-broadcast"};

typedef enum { CAUGHT, MISSED, EQUAL, NOWHERE } outcome;

/* What was done, where, and what came of it. */
typedef struct {
    tl_mutation m;
    const tl_case *where;
    variation var;
    bool inside;
    tl_gradcheck_report r;
    int shown; /* how often the op's input was of a shape that the damage asks for, and it was not
                  done */
} attempt;

/* What the op has for that input where the case calls it. */
typedef struct {
    bool like_case, small; /* as the case's input of that number is; smaller than another */
} seen_input;

static seen_input look(const tl_op *op, int input, const tl_case *c)
{
    case_run r = tl_case_run(c, TL_F64);
    ref_tensor data[CASE_INPUTS];
    tl_tensor leaf[CASE_INPUTS], out[CASE_OUTPUTS];
    uint64_t state = tl_case_seed(3, &r, CASE_PLAIN);
    seen_input s = {false, false};
    tl_tape *t = tl_tape_new(NULL);
    tl_case_fill(&r, &state, CASE_PLAIN, data);
    for (int i = 0; i < r.n; i++)
        leaf[i] = tl_case_leaf(t, &data[i]);
    tl_case_call(t, &r, leaf, out);
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const tl_node *n = &t->node[i];
        if (n->op != op || input >= n->n_in || tl_is_none(n->in[input]))
            continue;
        const tl_array *x = &tl_peek(t, n->in[input])->a;
        tl_shape shape = tl_array_shape(x);
        s.like_case |= input < r.n && r.in[input].present && x->dtype == r.in[input].dtype &&
                       tl_shape_equal(&shape, &r.in[input].shape);
        for (int k = 0; k < n->n_in; k++)
            s.small |= !tl_is_none(n->in[k]) &&
                       tl_array_count(&tl_peek(t, n->in[k])->a) > tl_array_count(x);
    }
    tl_free(t);
    tl_case_free(r.n, data);
    return s;
}

/* The damage to a case, as it is or varied. False if it could not be done. */
static bool try(attempt *a, const tl_case *c, variation var, tl_verdict *v)
{
    case_run r = tl_case_run(c, TL_F64);
    if (!vary(&r, &var))
        return false;
    a->where = c;
    a->var = var;
    a->m.applied = 0;
    *v = check(c, &var, TL_F64, a->inside, 1, &a->m, &a->r);
    if (a->m.applied == 0) {
        seen_input x = look(a->m.op, a->m.input, c);
        a->shown += var.how == AS_IT_IS ? x.small && a->m.kind == TL_MUTATE_UNBROADCAST
                                        : x.like_case;
    }
    if (a->m.applied == 0 || var.how == AS_IT_IS)
        return a->m.applied > 0;
    tl_gradcheck_report sound; /* the case as it is varied makes sense */
    return check(c, &var, TL_F64, a->inside, 1, NULL, &sound) == TL_RIGHT;
}

/* The op's cases in order of cost until one can be damaged so, first as they are, then varied. */
static outcome damage(attempt *a, const tl_case **order, int n)
{
    static const variation none = {0, AS_IT_IS, 0};
    const int input = a->m.input;
    tl_verdict v;
    for (int i = 0; i < n; i++)
        if (try(a, order[i], none, &v))
            return v == TL_WRONG ? CAUGHT : MISSED;
    for (int i = 0; i < n && a->m.kind == TL_MUTATE_UNBROADCAST; i++)
        for (int axis = 0; axis < 8; axis++)
            if (try(a, order[i], (variation){input, CUT, axis}, &v))
                return v == TL_WRONG ? CAUGHT : MISSED;
    for (int i = 0; i < n && a->m.kind == TL_MUTATE_SWAP; i++)
        if (try(a, order[i], (variation){input, LIKE_NEXT, 0}, &v) ||
            try(a, order[i], (variation){input, NEXT_LIKE, 0}, &v))
            return v == TL_WRONG ? CAUGHT : MISSED;
    return a->m.equal > 0 ? EQUAL : NOWHERE;
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
    {"conv", 2, "an accumulator"},
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
    {"recur", 5, "first steps"},
    {"recur", 6, "ends of steps"},
    {"recur_grad", 9, "first steps"},
    {"recur_grad", 10, "ends of steps"},
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

/* Why a kind of damage can be done nowhere, if that was shown: the same bits come out, there is no
 * second gradient to take, or the op was given an axis of one element, or equal shapes.
 * NULL: nothing shows it. */
static const char *excuse(const attempt *a, outcome o, int inputs)
{
    static char text[160];
    const int next = a->m.input + 1;
    if (o == EQUAL)
        return "the bits would be the same";
    if (a->m.kind == TL_MUTATE_SWAP && next >= inputs)
        return "there is no input after it";
    if (a->m.kind == TL_MUTATE_SWAP && constant(a->m.op, next) != NULL) {
        snprintf(text, sizeof text, "the next input has no gradient: %s", constant(a->m.op, next));
        return text;
    }
    if (a->m.kind < TL_MUTATE_SWAP || a->shown == 0)
        return NULL;
    snprintf(text, sizeof text,
             a->m.kind == TL_MUTATE_SWAP
                 ? "of one shape with the next input %d times, it is refused or gives no gradient"
                 : "of one element along an axis %d times, it is refused or has its gradient "
                   "in its own shape",
             a->shown);
    return text;
}

static int mutants, caught, named, equivalent, impossible;

/* The report names the op that was damaged, the input and how. */
static bool is_named(const attempt *a)
{
    static const double ratio[] = {-1, 1.001, 0};
    const tl_culprit *w = &a->r.culprit;
    char vjp[64];
    snprintf(vjp, sizeof vjp, "the vjp of %s ", a->m.op->name);
    if (w->op == NULL && strstr(a->r.text, vjp) != NULL)
        return true; /* the engine itself has seen it */
    if (w->op == NULL || strcmp(w->op, a->m.op->name) != 0)
        return false;
    if (a->m.kind == TL_MUTATE_SWAP)
        return w->input == a->m.input || w->input == a->m.input + 1;
    return w->input == a->m.input &&
           (a->m.kind == TL_MUTATE_UNBROADCAST || fabs(w->ratio - ratio[a->m.kind]) < 1e-6);
}

/* Damage where gradients accumulate in a leaf, and where they are handed on. */
static void damage_input(const tl_op *op, int input, const tl_case **order, int n, int inputs)
{
    for (tl_mutation_kind kind = TL_MUTATE_SIGN; kind < TL_MUTATE_COUNT; kind++) {
        const char *why = "";
        int done = 0;
        for (int inside = 0; inside < 2; inside++) {
            attempt a = {.m = {op, input, kind, 0, 0}, .inside = inside != 0};
            outcome o = damage(&a, order, n);
            bool good = o == CAUGHT && is_named(&a);
            if (o == EQUAL || o == NOWHERE) {
                why = why == NULL ? NULL : excuse(&a, o, inputs); /* either way */
                continue;
            }
            done++;
            caught += o == CAUGHT;
            named += good;
            *(good ? &passed : &failed) += 1;
            if (!good)
                complain("%s   %s, input %d, %s, case '%s' (%s, variation %d): %s\n",
                         o == CAUGHT ? "NOT NAMED " : "NOT CAUGHT", op->name, input, kinds[kind],
                         a.where->name, inside ? "inside" : "leaf", (int)a.var.how, a.r.text);
        }
        mutants += done;
        if (done > 0)
            continue;
        *(why != NULL ? &equivalent : &impossible) += 1;
        if (why == NULL)
            complain("NO CASE      %s, input %d, %s: no case lets it be done\n", op->name, input,
                     kinds[kind]);
        else if (n_ops > 0)
            printf("equivalent   %s, input %d, %s: %s\n", op->name, input, kinds[kind], why);
    }
}

/* A backward by what the op declares to take no gradient is refused, or the call is. */
static bool refused_by_backward(const tl_case *c, const variation *var)
{
    case_run r = tl_case_run(c, TL_F64);
    ref_tensor leaf[CASE_INPUTS];
    tl_tensor in[CASE_INPUTS];
    vary(&r, var);
    uint64_t state = tl_case_seed(3, &r, CASE_PLAIN);
    tl_case_fill(&r, &state, CASE_PLAIN, leaf);
    case_call k = {&r, leaf, false};
    tl_tape *t = tl_tape_new(NULL);
    const int n = tl_case_floats(t, &k, in);
    for (int i = 0; i < n; i++)
        tl_require_grad(t, in[i]);
    tl_backward(t, tl_sum(t, tl_case_function(t, in, n, &k), TL_ALL, false));
    const char *said = tl_error(t);
    const bool refused = strstr(said, "gives no gradient for its input") != NULL ||
                         strstr(said, "cannot change a leaf that needs a gradient") != NULL;
    tl_free(t);
    tl_case_free(r.n, leaf);
    return refused;
}

/* No gradient goes to the input: it is no floating one in any case, the op declares it, or asking
 * for one fails. */
static void show_constant(const tl_op *op, int input, const tl_case **order, int n)
{
    int integers = 0, asked = 0;
    tl_gradcheck_report r = {.text = ""};
    for (int i = 0; i < n; i++) {
        case_run k = tl_case_run(order[i], TL_F64);
        const variation var = {input, UNFIXED, 0};
        if (input < k.n && k.in[input].present && !tl_dtype_is_float(k.in[input].dtype))
            integers++;
        if (!vary(&k, &var) || !look(op, input, order[i]).like_case)
            continue;
        const tl_verdict v = check(order[i], &var, TL_F64, false, 1, NULL, &r);
        const bool declared = op->nodiff_in & TL_BIT(input);
        if (declared ? !refused_by_backward(order[i], &var) : v == TL_RIGHT) {
            failed++;
            complain(
                "NO CONSTANT  %s, input %d (%s): case '%s' is right with a gradient by it: %s\n",
                op->name, input, constant(op, input), order[i]->name, r.text);
            return;
        }
        asked++;
    }
    *(integers + asked > 0 ? &passed : &skipped) += 1;
    if (n_ops > 0)
        printf("constant     %s, input %d: %s; %s%s\n", op->name, input, constant(op, input),
               asked > 0      ? "with a gradient: "
               : integers > 0 ? "not floating"
                              : "skipped: no case has it",
               asked > 0 ? r.text : "");
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
            show_constant(op, i, order, n);
        else
            damage_input(op, i, order, n, inputs);
    }
}

/* Those with a derivative. */
static const char *op_at(int i)
{
    for (int k = 0; k < tl_op_count(); k++)
        if (tl_op_at(k)->vjp != NULL && i-- == 0)
            return tl_op_at(k)->name;
    return NULL;
}

/* One op, whole; a line of what was seen, where lines are not printed one by one. */
static void judge(const tl_op *op)
{
    int before[] = {passed, failed, skipped, mutants, caught};
    worst[0] = worst[1] = 0;
    check_op(op);
    if (failed == before[1])
        damage_op(op);
    else
        printf("%s: not damaged, its gradient being wrong as it is\n", op->name);
    if (failed > before[1] && n_wrong < MOST_WRONG)
        wrong[n_wrong++] = op->name;
    if (n_ops > 0)
        return;
    printf("%-28s %4d passed, %d failed, %d skipped; errors to %.1e in f64, %.1e in narrower; %d "
           "of %d damaged noticed\n",
           op->name, passed - before[0], failed - before[1], skipped - before[2], worst[0],
           worst[1], caught - before[4], mutants - before[3]);
    said();
}

int main(int argc, char **argv)
{
    n_ops = argc - 1;
    ops = argv + 1;
    if (!names_known("op with a derivative", n_ops, ops, op_at))
        return 2;
    tl_warnings(false); /* the rows say what went wrong */
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    said();
    if (n_ops == 0)
        check_known();
    else
        printf("%-20s %-32s %-6s %-7s %-18s %9s\n", "op", "case", "dtype", "inputs", "verdict",
               "error");
    for (int i = 0; i < tl_op_count(); i++)
        if (wanted(tl_op_at(i)))
            judge(tl_op_at(i));
    for (int i = 0; i < n_wrong; i++)
        printf("%s%s%s", i == 0 ? "failed: " : ", ", wrong[i],
               i + 1 < n_wrong
                   ? ""
                   : "\n  (an op's gradient is the .vjp of tl_op_NAME, which grep finds in "
                     "ops/; the loops of the ops that it calls are in tensor/kernels/; "
                     "make gradcheck ARGS=NAME checks it alone)\n");
    printf("%d kinds of damage change nothing%s, %d could be done in no case\n", equivalent,
           n_ops == 0 && equivalent > 0 ? " (ARGS=OP says why)" : "", impossible);
    printf("%d mutants, %d caught, %d named\n", mutants, caught, named);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    if (*first != '\0')
        printf("the first to fail:\n%s", first);
    return failed > 0 || passed == 0 || mutants == 0 || caught < mutants || impossible > 0;
}
