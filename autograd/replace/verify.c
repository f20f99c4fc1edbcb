/* verify.c: the property test of what a replacement claims.
 *
 * Search and replace are computed directly on the same random inputs - ordinary values, values of
 * very different size, many zeros of both signs, infinities and NaNs - and compared bit for bit
 * (all NaNs are one): outputs, gradients as values for random cotangents of some of the outputs, by
 * some of the inputs, and accumulators that two passes have continued. Leaves whose uses differ in
 * number or kind are not compared: a graph refuses those (compare.c). */
#include <math.h>
#include <string.h>

#include "autograd/replace/internal.h"
#include "tensor/threads.h"

enum { BOTH = 2, MAX_USES = 32 };

/* What there is two of is search's and its replacement's. */
typedef struct {
    const tl_rule *r;
    tl_dtype dtype;
    const tl_shape *shapes; /* NULL: the examples' */
    uint64_t seed, state;
    int style;
    tl_err *err;
    tl_bump mem;
    tl_tape *t[BOTH];
    tl_tensor in[BOTH][TL_PATTERN_ARGS], out[BOTH][TL_PATTERN_OUTS];
    bool grad[TL_PATTERN_ARGS];
} trial;

/* ---- random inputs ---- */

static uint64_t draw(trial *k)
{
    uint64_t z = k->state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double draw_float(trial *k)
{
    static const double special[] = {(double)INFINITY, -(double)INFINITY, (double)NAN, 0x1p-149,
                                     -0x1p-130,        0x1.fffp126,       -0x1.8p15,   0x1p-24};
    double u = (double)(draw(k) >> 11) * 0x1p-53 * 4 - 2, sign = draw(k) & 1 ? 1 : -1;
    unsigned dice = (unsigned)(draw(k) % 48);
    if (dice < (k->style == 3 ? 24u : 3u))
        return 0 * sign;
    if (k->style == 1)
        return ldexp(u, (int)(draw(k) % 25) - 12);
    return k->style == 2 && dice > 45 ? special[draw(k) % 8] : u;
}

static void *draw_array(trial *k, tl_dtype d, int64_t n, int64_t below)
{
    const size_t size = tl_dtype_size(d);
    char *to = tl_bump_get(&k->mem, (size_t)(n + 1) * size);
    for (int64_t i = 0; to != NULL && i < n; i++)
        tl_element_put(d, to + (size_t)i * size,
                       d == TL_I64    ? (double)(draw(k) % (uint64_t)(below > 0 ? below : 2))
                       : d == TL_BOOL ? (double)(draw(k) & 1)
                                      : draw_float(k));
    return to;
}

/* Arguments, and which of them take gradients. */
static void draw_inputs(trial *k, int round, bool backward)
{
    k->style = round % 4;
    for (int i = 0; i < k->r->o.n_in; i++) {
        const tl_pattern_arg *a = &k->r->o.example_inputs[i];
        const tl_shape shape = k->shapes != NULL ? k->shapes[i] : a->shape;
        bool f32 = a->or_f32 && tl_dtype_compute(k->dtype) == TL_F32 && draw(k) & 1;
        tl_dtype d = a->fixed ? a->dtype : f32 ? TL_F32 : k->dtype;
        const void *x = draw_array(k, d, tl_shape_count(&shape), a->below);
        k->grad[i] = backward && tl_rule_grad(k->r, i) && (round < 4 || draw(k) & 1);
        for (int s = 0; s < BOTH; s++) {
            k->in[s][i] = tl_data(k->t[s], x, d, shape);
            if (k->grad[i])
                tl_require_grad(k->t[s], k->in[s][i]);
        }
    }
}

/* ---- both compared ---- */

static tl_status compare(trial *k, const tl_array *a, const tl_array *b, const char *what, int i)
{
    const char *name = k->r->o.name, *d = tl_dtype_name(k->dtype);
    const int64_t n = tl_array_count(a);
    if (n != tl_array_count(b))
        return tl_fail(k->err, TL_EDOMAIN,
                       "'%s' in %s: %s %d has %lld elements by search, %lld by its replacement",
                       name, d, what, i, (long long)n, (long long)tl_array_count(b));
    for (int64_t e = 0; e < n; e++) {
        const double x = tl_array_get(a, e), y = tl_array_get(b, e); /* widened exactly */
        if (memcmp(&x, &y, sizeof x) != 0 && !(isnan(x) && isnan(y)))
            return tl_fail(k->err, TL_EDOMAIN,
                           "'%s' in %s: element %lld of %s %d is %a by search, %a by its "
                           "replacement (seed %llu, kind of values %d)",
                           name, d, (long long)e, what, i, x, y, (unsigned long long)k->seed,
                           k->style);
    }
    return TL_OK;
}

static tl_status compare_values(trial *k, tl_tensor x, tl_tensor y, const char *what, int i)
{
    const tl_tensor z[BOTH] = {x, y};
    tl_array a[BOTH];
    for (int s = 0; s < BOTH; s++)
        if (tl_failed(k->t[s]) || !tl_array_of(k->t[s], z[s], &a[s]))
            return tl_fail(k->err, TL_EUSAGE, "'%s' cannot be computed in %s: %.300s", k->r->o.name,
                           tl_dtype_name(k->dtype), tl_error(k->t[s]));
    return compare(k, &a[0], &a[1], what, i);
}

static tl_status compare_outputs(trial *k)
{
    const tl_replacement *o = &k->r->o;
    double scalar[TL_PATTERN_SCALARS];
    tl_pattern_values v = {scalar, o->ctx, k->r->form};
    for (int i = 0; i < o->n_scalars; i++)
        scalar[i] = o->scalars[i].value;
    if (o->search_pattern != NULL)
        tl_pattern_run(TL_AT(k->t[0]), k->r->first, k->in[0], k->out[0]);
    else
        o->search(k->t[0], k->in[0], o->n_in, k->out[0], o->n_out, &v);
    o->replace(k->t[1], k->in[1], o->n_in, k->out[1], o->n_out, &v);
    for (int i = 0; i < o->n_out; i++) /* but for what search leaves out */
        if (k->r->first->out[i].node != TL_REF_NONE)
            TL_TRY(compare_values(k, k->out[0][i], k->out[1][i], "output", i));
    return TL_OK;
}

/* y: one number whose gradient is random cotangents of some of the outputs that take one in search;
 * TL_NONE if there are none. */
static void draw_seeds(trial *k, int round, tl_tensor y[BOTH])
{
    tl_tensor x[BOTH][TL_PATTERN_OUTS], c[BOTH][TL_PATTERN_OUTS];
    int n = 0;
    for (int i = 0; i < k->r->o.n_out; i++) {
        bool drawn = round < 4 || draw(k) & 1, there = k->r->first->out[i].node != TL_REF_NONE;
        const tl_value *v = there ? tl_peek(k->t[0], k->out[0][i]) : NULL;
        if (!drawn || v == NULL || !v->needs_grad)
            continue;
        const tl_shape shape = tl_array_shape(&v->a);
        const tl_dtype d = v->a.dtype;
        const void *data = draw_array(k, d, tl_shape_count(&shape), 0);
        for (int s = 0; s < BOTH; s++) {
            x[s][n] = k->out[s][i];
            c[s][n] = tl_data(k->t[s], data, d, shape);
        }
        n++;
    }
    for (int s = 0; s < BOTH; s++)
        y[s] = tl_rule_seed(k->t[s], x[s], c[s], n);
}

static tl_status compare_gradients(trial *k, const tl_tensor y[BOTH])
{
    tl_tensor x[BOTH][TL_PATTERN_ARGS], dx[BOTH][TL_PATTERN_ARGS];
    int n = 0;
    for (int i = 0; i < k->r->o.n_in; i++)
        if (k->grad[i]) {
            x[0][n] = k->in[0][i];
            x[1][n++] = k->in[1][i];
        }
    for (int s = 0; s < BOTH; s++)
        tl_gradients(k->t[s], y[s], x[s], n, TL_NONE, dx[s]);
    for (int i = 0; i < n; i++)
        TL_TRY(compare_values(k, dx[0][i], dx[1][i], "gradient", i));
    return TL_OK;
}

/* The uses of argument i in p, in order, directly or through views: their inputs' kinds of
 * accumulator. */
static int use_kinds(const tl_pattern *p, int i, int *kind)
{
    bool shows[TL_PATTERN_NODES] = {false};
    int n = 0;
    for (int k = 0; k < p->n_nodes; k++) {
        const tl_pattern_node *q = &p->node[k];
        for (int j = 0; j < q->n_in; j++) {
            bool of_arg = q->in[j].node >= 0 ? shows[q->in[j].node]
                                             : q->in[j].node == TL_REF_ARG && q->in[j].at == i;
            if (of_arg && q->op->traits & TL_VIEW && !(q->op->traits & TL_REPEATS))
                shows[k] = true;
            else if (of_arg && n < MAX_USES)
                kind[n++] = tl_accumulator_kind(q->op, q->attrs, j);
        }
    }
    return n;
}

/* Those that two passes have continued. Where the uses differ in number or kind, a graph refuses
 * the match (compare.c) - unless backward comes to one of them alone. */
static tl_status compare_accumulators(trial *k, const tl_tensor y[BOTH])
{
    const tl_rule *r = k->r;
    for (int pass = 0; pass < 2; pass++)
        for (int s = 0; s < BOTH; s++)
            if (tl_backward(k->t[s], y[s], .retain = true) != TL_OK)
                return tl_fail(k->err, TL_EUSAGE, "'%s': %.300s", r->o.name, tl_error(k->t[s]));
    for (int i = 0; i < r->o.n_in; i++) {
        int kind[BOTH][MAX_USES], n = use_kinds(r->first, i, kind[0]), uses[BOTH] = {0, 0};
        const tl_leaf_grad *g[BOTH] = {NULL, NULL};
        for (int s = 0; s < BOTH && k->grad[i]; s++)
            if ((g[s] = tl_leaf_grad_find(k->t[s], k->in[s][i])) != NULL)
                uses[s] = g[s]->n_uses;
        if (uses[0] > 0 && uses[1] == 0)
            return tl_fail(k->err, TL_EDOMAIN,
                           "'%s' in %s: backward uses argument '%s' %d times by search, %d times "
                           "by its replacement",
                           r->o.name, tl_dtype_name(k->dtype), r->o.example_inputs[i].name, uses[0],
                           uses[1]);
        bool alike = uses[0] == uses[1] && n == use_kinds(r->with, i, kind[1]) &&
                     memcmp(kind[0], kind[1], (size_t)n * sizeof *kind[0]) == 0;
        for (int u = 0; u < uses[0] && alike; u++)
            if (g[0]->use[u].open && g[1]->use[u].open)
                TL_TRY(compare(k, &g[0]->use[u].acc, &g[1]->use[u].acc, "accumulator", i));
    }
    return TL_OK;
}

static tl_status try_once(trial *k, int round, bool backward)
{
    tl_tensor y[BOTH] = {TL_NONE, TL_NONE};
    for (int s = 0; s < BOTH; s++)
        tl_tape_reset(k->t[s]);
    draw_inputs(k, round, backward);
    TL_TRY(compare_outputs(k));
    if (backward)
        draw_seeds(k, round, y);
    if (tl_is_none(y[0]))
        return TL_OK;
    TL_TRY(compare_gradients(k, y));
    return k->r->o.trace == TL_TRACE_JOINT ? TL_OK /* what continues an accumulator shows it */
                                           : compare_accumulators(k, y);
}

static tl_status check(const tl_rule *r, tl_dtype d, const tl_shape *shapes, bool backward,
                       uint64_t seed, int rounds, tl_err *err)
{
    tl_tape *t[BOTH] = {tl_tape_new(NULL), tl_tape_new(NULL)};
    tl_status s = t[0] == NULL || t[1] == NULL ? tl_fail(err, TL_ENOMEM, "no memory for two tapes")
                                               : TL_OK;
    tl_fpenv saved = tl_fpenv_enter(); /* numbers are drawn and compared outside any op */
    for (int round = 0; s == TL_OK && round < (rounds > 0 ? rounds : 8); round++) {
        trial k = {.r = r, .dtype = d, .shapes = shapes, .seed = seed, .t = {t[0], t[1]}};
        k.err = err;
        k.state = seed * 1000003u + (uint64_t)round;
        s = try_once(&k, round, backward);
        tl_bump_free(&k.mem);
    }
    tl_fpenv_leave(saved);
    tl_object_end(t[0]);
    tl_object_end(t[1]);
    return s;
}

tl_status tl_rule_verify(const tl_rule *r, uint64_t seed, int rounds, tl_err *err)
{
    for (int d = TL_F64; d < TL_DTYPE_COUNT; d++) {
        bool exact = r->o.exact & TL_BIT(d); /* neither, of a rounding form */
        if (exact || r->o.exact_forward & TL_BIT(d))
            TL_TRY(check(r, (tl_dtype)d, NULL, exact, seed, rounds, err));
    }
    return TL_OK;
}

tl_status tl_replacement_check(const char *name, uint64_t seed, int rounds, tl_err *err)
{
    const tl_rule *r = tl_rule_find(name, 0);
    if (r == NULL)
        return tl_fail(err, TL_ENAME, "no replacement is named '%s'", name == NULL ? "NULL" : name);
    for (; r != NULL; r = tl_rule_find(name, r->form + 1))
        TL_TRY(tl_rule_verify(r, seed, rounds, err));
    return TL_OK;
}

tl_status tl_replacement_compare(const char *name, int form, tl_dtype dtype, const tl_shape *shapes,
                                 bool backward, uint64_t seed, int rounds, tl_err *err)
{
    const tl_rule *r = tl_rule_find(name, form);
    return r == NULL || r->form != form
               ? tl_fail(err, TL_ENAME, "no replacement is named '%s', form %d",
                         name == NULL ? "NULL" : name, form)
               : check(r, dtype, shapes, backward, seed, rounds, err);
}
