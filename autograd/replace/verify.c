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

/* One of the two programs, on a tape of its own. */
typedef struct {
    tl_tape *t;
    tl_tensor in[TL_PATTERN_ARGS], out[TL_PATTERN_OUTS], dx[TL_PATTERN_ARGS];
} side;

typedef struct {
    const tl_form *f;
    const tl_replacement *o; /* its rule's */
    tl_dtype dtype;
    const tl_shape *shapes; /* NULL: the examples' */
    bool backward;
    int round;
    uint64_t seed, state;
    tl_err *err;
    tl_bump mem;
    bool grad[TL_PATTERN_ARGS];
    unsigned seeded; /* outputs that a random cotangent comes to */
    side search, put;
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
    const int style = k->round % 4;
    double u = (double)(draw(k) >> 11) * 0x1p-53 * 4 - 2, sign = draw(k) & 1 ? 1 : -1;
    unsigned dice = (unsigned)(draw(k) % 48);
    if (dice < (style == 3 ? 24u : 3u))
        return 0 * sign;
    if (style == 1)
        return ldexp(u, (int)(draw(k) % 25) - 12);
    return style == 2 && dice > 45 ? special[draw(k) % 8] : u;
}

static tl_tensor draw_tensor(trial *k, tl_tape *t, tl_dtype d, tl_shape shape, int64_t below)
{
    const size_t size = tl_dtype_size(d);
    const int64_t n = tl_shape_count(&shape);
    char *to = tl_bump_get(&k->mem, (size_t)(n + 1) * size);
    for (int64_t i = 0; to != NULL && i < n; i++)
        tl_element_put(d, to + (size_t)i * size,
                       d == TL_I64    ? (double)(draw(k) % (uint64_t)(below > 0 ? below : 2))
                       : d == TL_BOOL ? (double)(draw(k) & 1)
                                      : draw_float(k));
    return tl_data(t, to, d, shape);
}

/* ---- one side: both draw the same ---- */

static void draw_inputs(trial *k, side *s)
{
    k->state = k->seed * 1000003u + (uint64_t)k->round;
    for (int i = 0; i < k->o->n_in; i++) {
        const tl_pattern_arg *a = &k->o->example_inputs[i];
        bool f32 = a->or_f32 && tl_dtype_compute(k->dtype) == TL_F32 && draw(k) & 1;
        s->in[i] = draw_tensor(k, s->t,
                               a->fixed ? a->dtype
                               : f32    ? TL_F32
                                        : k->dtype,
                               k->shapes != NULL ? k->shapes[i] : tl_form_shape(k->f, i), a->below);
        k->grad[i] = k->backward && tl_rule_grad(k->f->rule, i) && (k->round < 4 || draw(k) & 1);
        if (k->grad[i])
            tl_require_grad(s->t, s->in[i]);
    }
}

/* A number whose gradient is random cotangents of some of the outputs that take one in search;
 * TL_NONE if there are none. */
static tl_tensor draw_seed(trial *k, side *s)
{
    tl_tensor y[TL_PATTERN_OUTS], c[TL_PATTERN_OUTS];
    int n = 0;
    for (int i = 0; i < k->o->n_out && k->backward; i++) {
        bool drawn = k->round < 4 || draw(k) & 1, there = k->f->pattern->out[i].node != TL_REF_NONE;
        const tl_value *v = there ? tl_peek(s->t, s->out[i]) : NULL;
        if (s == &k->search && drawn && v != NULL && v->needs_grad)
            k->seeded |= TL_BIT(i);
        if (!(k->seeded & TL_BIT(i)) || v == NULL)
            continue;
        y[n] = s->out[i];
        c[n++] = draw_tensor(k, s->t, v->a.dtype, tl_array_shape(&v->a), 0);
    }
    return tl_rule_seed(s->t, y, c, n);
}

static tl_status run(trial *k, side *s)
{
    const tl_replacement *o = k->o;
    double scalar[TL_PATTERN_SCALARS];
    tl_tensor x[TL_PATTERN_ARGS], dx[TL_PATTERN_ARGS];
    int n = 0;
    tl_tape_reset(s->t);
    draw_inputs(k, s);
    for (int i = 0; i < o->n_scalars; i++)
        scalar[i] = o->scalars[i].value;
    tl_rule_call(k->f, s == &k->search, s->t, scalar, s->in, s->out);
    tl_tensor y = tl_failed(s->t) ? TL_NONE : draw_seed(k, s);
    for (int i = 0; i < o->n_in; i++)
        if (k->grad[i])
            x[n++] = s->in[i];
    if (!tl_is_none(y))
        tl_gradients(s->t, y, x, n, TL_NONE, dx);
    for (int i = o->n_in; i-- > 0 && k->seeded != 0;)
        if (k->grad[i])
            s->dx[i] = dx[--n];
    /* what continues an accumulator shows a joint one */
    for (int pass = 0; pass < 2 && !tl_is_none(y) && o->trace == TL_TRACE_FORWARD; pass++)
        tl_backward(s->t, y, .retain = true);
    return !tl_failed(s->t) ? TL_OK
                            : tl_fail(k->err, TL_EUSAGE, "'%s' cannot be computed in %s: %.300s",
                                      o->name, tl_dtype_name(k->dtype), tl_error(s->t));
}

/* ---- both compared ---- */

static tl_status compare(trial *k, const tl_array *a, const tl_array *b, const char *what, int i)
{
    const char *name = k->o->name, *d = tl_dtype_name(k->dtype);
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
                           k->round % 4);
    }
    return TL_OK;
}

static tl_status compare_values(trial *k, tl_tensor x, tl_tensor y, const char *what, int i)
{
    tl_array a, b;
    if (!tl_array_of(k->search.t, x, &a) || !tl_array_of(k->put.t, y, &b))
        return tl_fail(k->err, TL_EUSAGE, "'%s' gives no %s %d in %s", k->o->name, what, i,
                       tl_dtype_name(k->dtype));
    return compare(k, &a, &b, what, i);
}

static int uses_of(const tl_fold *f)
{
    int n = 0;
    for (; f != NULL; f = f->next)
        n += f->n;
    return n;
}

static tl_status compare_accumulators(trial *k, int i)
{
    const tl_leaf_grad *a = tl_leaf_grad_find(k->search.t, k->search.in[i]),
                       *b = tl_leaf_grad_find(k->put.t, k->put.in[i]);
    bool alike = a != NULL && b != NULL && a->n_uses == b->n_uses;
    if (a != NULL && a->n_uses > 0 && (b == NULL || b->n_uses == 0))
        return tl_fail(k->err, TL_EDOMAIN,
                       "'%s' in %s: backward uses argument '%s' %d times by search, 0 times by its "
                       "replacement",
                       k->o->name, tl_dtype_name(k->dtype), k->o->example_inputs[i].name,
                       a->n_uses);
    for (int u = 0; alike && u < a->n_uses; u++)
        alike = strcmp(a->use[u].kind, b->use[u].kind) == 0 &&
                uses_of(a->use[u].folds) == uses_of(b->use[u].folds);
    for (int u = 0; alike && u < a->n_uses; u++)
        if (a->use[u].open && b->use[u].open)
            TL_TRY(compare(k, &a->use[u].acc, &b->use[u].acc, "accumulator", i));
    return TL_OK;
}

static tl_status try_once(trial *k)
{
    TL_TRY(run(k, &k->search));
    TL_TRY(run(k, &k->put));
    for (int i = 0; i < k->o->n_out; i++) /* but for what search leaves out */
        if (k->f->pattern->out[i].node != TL_REF_NONE)
            TL_TRY(compare_values(k, k->search.out[i], k->put.out[i], "output", i));
    for (int i = 0; i < k->o->n_in && k->seeded != 0; i++)
        if (k->grad[i])
            TL_TRY(compare_values(k, k->search.dx[i], k->put.dx[i], "gradient", i));
    for (int i = 0; i < k->o->n_in && k->seeded != 0; i++)
        if (k->grad[i])
            TL_TRY(compare_accumulators(k, i));
    return TL_OK;
}

static tl_status check(const tl_form *f, tl_dtype d, const tl_shape *shapes, bool backward,
                       uint64_t seed, int rounds, tl_err *err)
{
    tl_tape *t[2] = {tl_tape_new(NULL), tl_tape_new(NULL)};
    tl_status s = t[0] == NULL || t[1] == NULL ? tl_fail(err, TL_ENOMEM, "no memory for two tapes")
                                               : TL_OK;
    tl_fpenv saved = tl_fpenv_enter(); /* numbers are drawn and compared outside any op */
    for (int round = 0; s == TL_OK && round < (rounds > 0 ? rounds : 8); round++) {
        trial k = {.f = f, .o = &f->rule->o, .dtype = d, .shapes = shapes, .backward = backward};
        k.round = round;
        k.seed = seed;
        k.err = err;
        k.search.t = t[0];
        k.put.t = t[1];
        s = try_once(&k);
        tl_bump_free(&k.mem);
    }
    tl_fpenv_leave(saved);
    tl_object_end(t[0]);
    tl_object_end(t[1]);
    return s;
}

tl_status tl_form_verify(const tl_form *f, uint64_t seed, int rounds, tl_err *err)
{
    for (int d = TL_F64; d < TL_DTYPE_COUNT; d++) {
        bool exact = tl_form_claims(f, (tl_dtype)d, true);
        if (tl_form_claims(f, (tl_dtype)d, false))
            TL_TRY(check(f, (tl_dtype)d, NULL, exact, seed, rounds, err));
    }
    return TL_OK;
}

static tl_status unknown(tl_err *err, const char *name, int form)
{
    return tl_fail(err, TL_ENAME, "no replacement is named '%s' and has a form %d",
                   name == NULL ? "NULL" : name, form);
}

tl_status tl_replacement_check(const char *name, uint64_t seed, int rounds, tl_err *err)
{
    if (tl_form_find(name, 0) == NULL)
        return unknown(err, name, 0);
    for (int i = 0; tl_form_find(name, i) != NULL; i++)
        TL_TRY(tl_form_verify(tl_form_find(name, i), seed, rounds, err));
    return TL_OK;
}

tl_status tl_replacement_compare(const char *name, int form, tl_dtype dtype, const tl_shape *shapes,
                                 bool backward, uint64_t seed, int rounds, tl_err *err)
{
    const tl_form *f = tl_form_find(name, form);
    return f == NULL ? unknown(err, name, form)
                     : check(f, dtype, shapes, backward, seed, rounds, err);
}
