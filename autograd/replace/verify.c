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

enum { MAX_BITS = 256, MAX_USES = 32 };

/* What search gave, widened exactly. */
typedef struct {
    double *x;
    int64_t n;
} bits;

typedef struct {
    const tl_rule *r;
    tl_dtype dtype;
    const tl_shape *shapes; /* NULL: the examples' */
    bool backward, search;  /* search is computed now, or its replacement */
    uint64_t seed, state;
    tl_err *err;
    tl_bump mem;
    tl_tape *t;
    tl_tensor in[TL_PATTERN_ARGS];
    tl_dtype arg_dtype[TL_PATTERN_ARGS];
    void *arg[TL_PATTERN_ARGS], *cotangent[TL_PATTERN_OUTS];
    bool grad[TL_PATTERN_ARGS], seeded[TL_PATTERN_OUTS];
    bool whole; /* every output that carries a gradient is seeded */
    int style, n_bits, at;
    bits *first; /* in order */
    int uses[TL_PATTERN_ARGS];
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

static void *random_array(trial *k, tl_dtype d, int64_t n, int64_t below)
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

static const tl_shape *shape_of(const trial *k, int i)
{
    return k->shapes != NULL ? &k->shapes[i] : &k->r->o.example_inputs[i].shape;
}

/* Arguments, which of them take gradients, and which outputs get cotangents. */
static void draw_inputs(trial *k, int round)
{
    k->style = round % 4;
    for (int i = 0; i < k->r->o.n_in; i++) {
        const tl_pattern_arg *a = &k->r->o.example_inputs[i];
        bool f32 = a->or_f32 && tl_dtype_compute(k->dtype) == TL_F32 && draw(k) & 1;
        k->arg_dtype[i] = a->fixed ? a->dtype : f32 ? TL_F32 : k->dtype;
        k->arg[i] = random_array(k, k->arg_dtype[i], tl_shape_count(shape_of(k, i)), a->below);
        k->grad[i] = k->backward && tl_rule_grad(k->r, i) && (round < 4 || draw(k) & 1);
    }
    for (int i = 0; i < k->r->o.n_out; i++)
        k->seeded[i] = round < 4 || draw(k) & 1;
}

/* ---- bits kept and compared ---- */

static tl_status compare(trial *k, const bits *a, const bits *b, const char *what, int i)
{
    const char *name = k->r->o.name, *d = tl_dtype_name(k->dtype);
    if (a->n != b->n)
        return tl_fail(k->err, TL_EDOMAIN,
                       "'%s' in %s: %s %d has %lld elements by search, %lld by its replacement",
                       name, d, what, i, (long long)a->n, (long long)b->n);
    for (int64_t e = 0; e < a->n; e++)
        if (memcmp(&a->x[e], &b->x[e], 8) != 0 && !(isnan(a->x[e]) && isnan(b->x[e])))
            return tl_fail(k->err, TL_EDOMAIN,
                           "'%s' in %s: element %lld of %s %d is %a by search, %a by its "
                           "replacement (seed %llu, kind of values %d)",
                           name, d, (long long)e, what, i, a->x[e], b->x[e],
                           (unsigned long long)k->seed, k->style);
    return TL_OK;
}

/* Search's are kept; its replacement's are compared with those of the same turn. */
static tl_status take(trial *k, const tl_array *a, const char *what, int i)
{
    static const bits none = {NULL, -1};
    bits b = {tl_bump_get(&k->mem, (size_t)(tl_array_count(a) + 1) * sizeof(double)),
              tl_array_count(a)};
    if (b.x == NULL || k->n_bits == MAX_BITS)
        return tl_fail(k->err, TL_ENOMEM, "no memory to check '%s'", k->r->o.name);
    for (int64_t e = 0; e < b.n; e++)
        b.x[e] = tl_array_get(a, e);
    if (!k->search)
        return compare(k, k->at < k->n_bits ? &k->first[k->at++] : &none, &b, what, i);
    k->first[k->n_bits++] = b;
    return TL_OK;
}

/* ---- a program of the rule, computed ---- */

static tl_status take_value(trial *k, tl_tensor x, const char *what, int i)
{
    tl_tape *t = k->t;
    tl_array a;
    if (tl_failed(t) || !tl_array_of(t, x, &a))
        return tl_fail(k->err, TL_EUSAGE, "'%s' cannot be computed in %s: %.300s", k->r->o.name,
                       tl_dtype_name(k->dtype), tl_error(t));
    return take(k, &a, what, i);
}

static void call(trial *k, tl_tensor *out)
{
    double scalar[TL_PATTERN_SCALARS];
    tl_pattern_values v = {scalar, k->r->o.ctx, k->r->form};
    for (int i = 0; i < k->r->o.n_scalars; i++)
        scalar[i] = k->r->o.scalars[i].value;
    if (k->search && k->r->o.search_pattern != NULL)
        tl_pattern_run(TL_AT(k->t), k->r->first, k->in, out);
    else
        (k->search ? k->r->o.search : k->r->o.replace)(k->t, k->in, k->r->o.n_in, out,
                                                       k->r->o.n_out, &v);
    for (int i = 0; i < k->r->o.n_out; i++) /* what search leaves out is not compared */
        if (k->r->first->out[i].node == TL_REF_NONE)
            out[i] = TL_NONE;
}

/* One number whose gradient is random cotangents of the seeded outputs that take one in search;
 * TL_NONE if there are none. */
static tl_tensor seeded(trial *k, const tl_tensor *out)
{
    tl_tape *t = k->t;
    tl_tensor y[TL_PATTERN_OUTS], c[TL_PATTERN_OUTS];
    int n = 0;
    k->whole |= k->search;
    for (int i = 0; i < k->r->o.n_out; i++) {
        const tl_value *v = tl_is_none(out[i]) ? NULL : tl_peek(t, out[i]);
        bool carries = v != NULL && v->needs_grad;
        if (k->search) {
            k->whole &= k->seeded[i] || !carries;
            k->seeded[i] &= carries;
        }
        if (k->search && k->seeded[i])
            k->cotangent[i] = random_array(k, v->a.dtype, tl_array_count(&v->a), 0);
        if (!k->seeded[i])
            continue;
        y[n] = out[i];
        c[n++] = tl_data(t, k->cotangent[i], tl_dtype_of(t, out[i]), tl_shape_of(t, out[i]));
    }
    return tl_rule_seed(t, y, c, n);
}

static tl_status take_gradients(trial *k, tl_tensor y)
{
    tl_tensor x[TL_PATTERN_ARGS], dx[TL_PATTERN_ARGS];
    int n = 0;
    for (int i = 0; i < k->r->o.n_in; i++)
        if (k->grad[i])
            x[n++] = k->in[i];
    tl_gradients(k->t, y, x, n, TL_NONE, dx);
    for (int i = 0; i < n; i++)
        TL_TRY(take_value(k, dx[i], "gradient", i));
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

/* How often backward has come to argument i, in both alike: compared are the accumulators. Where
 * the uses differ, a graph refuses the match (compare.c) - unless all gradients come to the
 * outputs: then the numbers must be those that the patterns show. */
static tl_status take_accumulators(trial *k)
{
    if (k->r->o.trace == TL_TRACE_JOINT)
        return TL_OK; /* expanded, what continues an accumulator shows it */
    for (int i = 0; i < k->r->o.n_in; i++) {
        int a[MAX_USES], b[MAX_USES], n = use_kinds(k->r->first, i, a);
        const tl_leaf_grad *g = k->grad[i] ? tl_leaf_grad_find(k->t, k->in[i]) : NULL;
        bool alike = n == use_kinds(k->r->with, i, b) && memcmp(a, b, (size_t)n * sizeof *a) == 0;
        int uses = g == NULL ? 0 : g->n_uses;
        if (k->search)
            k->uses[i] = uses;
        bool lost = uses == 0 && k->uses[i] > 0;
        if (lost || (alike && k->whole && uses != k->uses[i]))
            return tl_fail(k->err, TL_EDOMAIN,
                           "'%s' in %s: backward uses argument '%s' %d times by search, %d times "
                           "by its replacement",
                           k->r->o.name, tl_dtype_name(k->dtype), k->r->o.example_inputs[i].name,
                           k->uses[i], uses);
        if (!alike)
            continue;
        if (uses != k->uses[i]) {
            k->at += k->uses[i];
            continue;
        }
        for (int u = 0; u < uses; u++)
            TL_TRY(take(k, &g->use[u].acc, "accumulator", i));
    }
    return TL_OK;
}

static tl_status run(trial *k, bool search)
{
    tl_tape *t = k->t;
    tl_tensor out[TL_PATTERN_OUTS] = {TL_NONE};
    k->search = search;
    tl_tape_reset(t);
    for (int i = 0; i < k->r->o.n_in; i++) {
        k->in[i] = tl_data(t, k->arg[i], k->arg_dtype[i], *shape_of(k, i));
        if (k->grad[i])
            tl_require_grad(t, k->in[i]);
    }
    call(k, out);
    for (int i = 0; i < k->r->o.n_out; i++)
        if (!tl_is_none(out[i]) || tl_failed(t))
            TL_TRY(take_value(k, out[i], "output", i));
    tl_tensor y = k->backward ? seeded(k, out) : TL_NONE;
    if (tl_is_none(y))
        return TL_OK;
    TL_TRY(take_gradients(k, y));
    tl_backward(t, y, .retain = true);
    tl_backward(t, y, .retain = true); /* the accumulators continue */
    if (tl_failed(t))
        return tl_fail(k->err, TL_EUSAGE, "'%s': %.300s", k->r->o.name, tl_error(t));
    return take_accumulators(k);
}

static tl_status try_once(trial *k, int round)
{
    k->first = tl_bump_get(&k->mem, MAX_BITS * sizeof *k->first);
    if (k->first == NULL)
        return tl_fail(k->err, TL_ENOMEM, "no memory");
    draw_inputs(k, round);
    TL_TRY(run(k, true));
    TL_TRY(run(k, false));
    return k->at == k->n_bits
               ? TL_OK
               : tl_fail(k->err, TL_EDOMAIN, "'%s' in %s: the replacement gives fewer gradients",
                         k->r->o.name, tl_dtype_name(k->dtype));
}

static tl_status check(const tl_rule *r, tl_dtype d, const tl_shape *shapes, bool backward,
                       uint64_t seed, int rounds, tl_err *err)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_status s = t == NULL ? tl_fail(err, TL_ENOMEM, "no memory for a tape") : TL_OK;
    tl_fpenv saved = tl_fpenv_enter(); /* numbers are drawn and compared outside any op */
    for (int round = 0; s == TL_OK && round < (rounds > 0 ? rounds : 8); round++) {
        trial k = {.r = r, .dtype = d, .shapes = shapes, .backward = backward, .t = t, .err = err};
        k.seed = seed;
        k.state = seed * 1000003u + (uint64_t)round;
        s = try_once(&k, round);
        tl_bump_free(&k.mem);
    }
    tl_fpenv_leave(saved);
    tl_object_end(t);
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
