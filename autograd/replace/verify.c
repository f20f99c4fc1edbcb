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
    const tl_pattern *q; /* with gradients */
    tl_tensor arg[TL_PATTERN_MOST], out[TL_PATTERN_MOST];
} side;

typedef struct {
    const tl_form *f;
    const tl_replacement *o; /* its rule's */
    tl_dtype dtype;
    int round;
    uint64_t seed, state;
    tl_err *err;
    tl_bump mem;
    tl_rule_at at;
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

static tl_tensor draw_tensor(trial *k, tl_tape *t, const tl_array *a, int64_t below)
{
    const size_t size = tl_dtype_size(a->dtype);
    const int64_t n = tl_array_count(a);
    char *to = tl_bump_get(&k->mem, (size_t)(n + 1) * size);
    for (int64_t i = 0; to != NULL && i < n; i++)
        tl_element_put(a->dtype, to + (size_t)i * size,
                       a->dtype == TL_I64    ? (double)(draw(k) % (uint64_t)(below > 0 ? below : 2))
                       : a->dtype == TL_BOOL ? (double)(draw(k) & 1)
                                             : draw_float(k));
    return tl_data(t, to, a->dtype, tl_array_shape(a));
}

/* Where both are traced: which arguments are f32, which take a gradient, and to which outputs
 * cotangents come. shapes NULL: the examples'. */
static void draw_place(trial *k, const tl_shape *shapes, bool backward)
{
    for (int i = 0; i < k->o->n_in; i++) {
        const tl_pattern_arg *a = &k->o->example_inputs[i];
        const tl_shape shape = shapes != NULL ? shapes[i] : tl_form_shape(k->f, i);
        const bool f32 = a->or_f32 && tl_dtype_compute(k->dtype) == TL_F32 && draw(k) & 1;
        k->at.array[i] = tl_array_make(a->fixed ? a->dtype : f32 ? TL_F32 : k->dtype, &shape, NULL);
        k->at.grad[i] = backward && tl_rule_grad(k->f->rule, i) && (k->round < 4 || draw(k) & 1);
    }
    for (int i = 0; i < k->o->n_scalars; i++)
        k->at.scalar[i] = k->o->scalars[i].value;
    for (int i = 0; i < k->o->n_out && backward; i++)
        k->at.seeded |= k->round < 4 || draw(k) & 1 ? TL_BIT(i) : 0;
}

/* Both sides draw the same. What continues an accumulator shows a joint replacement. */
static tl_status run(trial *k, side *s)
{
    const int n_in = k->o->n_in;
    tl_tensor y[TL_PATTERN_OUTS], c[TL_PATTERN_OUTS];
    int n = 0;
    k->state = k->seed * 1000003u + (uint64_t)k->round;
    tl_tape_reset(s->t);
    for (int i = 0; i < n_in; i++) {
        s->arg[i] = draw_tensor(k, s->t, &k->at.array[i], k->o->example_inputs[i].below);
        if (k->at.grad[i])
            tl_require_grad(s->t, s->arg[i]);
    }
    for (int i = 0; i < k->o->n_out; i++)
        if (k->at.seeded & TL_BIT(i))
            s->arg[n_in + i] = draw_tensor(k, s->t, &k->search.q->out_array[i], 0);
    tl_pattern_run(TL_AT(s->t), s->q, s->arg, s->out);
    for (int i = 0; i < k->o->n_out && !tl_failed(s->t); i++)
        if (k->at.seeded & TL_BIT(i) && !tl_is_none(k->search.out[i]) &&
            tl_peek(k->search.t, k->search.out[i])->needs_grad) {
            y[n] = s->out[i];
            c[n++] = s->arg[n_in + i];
        }
    const tl_tensor seed = tl_rule_seed(s->t, y, c, n);
    for (int pass = 0; pass < 2 && n > 0 && k->o->trace == TL_TRACE_FORWARD; pass++)
        tl_backward(s->t, seed, .retain = true);
    return !tl_failed(s->t) ? TL_OK
                            : tl_fail(k->err, TL_EUSAGE, "'%s' cannot be computed in %s: %.300s",
                                      k->o->name, tl_dtype_name(k->dtype), tl_error(s->t));
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

static int uses_of(const tl_fold *f)
{
    int n = 0;
    for (; f != NULL; f = f->next)
        n += f->n;
    return n;
}

static tl_status compare_accumulators(trial *k, int i)
{
    const tl_leaf_grad *a = tl_leaf_grad_find(k->search.t, k->search.arg[i]),
                       *b = tl_leaf_grad_find(k->put.t, k->put.arg[i]);
    bool alike = a != NULL && b != NULL && a->n_accs == b->n_accs;
    if (a != NULL && a->n_accs > 0 && (b == NULL || b->n_accs == 0))
        return tl_fail(k->err, TL_EDOMAIN,
                       "'%s' in %s: backward uses argument '%s' %d times by search, 0 times by its "
                       "replacement",
                       k->o->name, tl_dtype_name(k->dtype), k->o->example_inputs[i].name,
                       a->n_accs);
    for (int u = 0; alike && u < a->n_accs; u++)
        alike = strcmp(a->acc[u].kind, b->acc[u].kind) == 0 &&
                uses_of(a->acc[u].folds) == uses_of(b->acc[u].folds);
    for (int u = 0; alike && u < a->n_accs; u++)
        if (a->acc[u].open && b->acc[u].open)
            TL_TRY(compare(k, &a->acc[u].sum, &b->acc[u].sum, "accumulator", i));
    return TL_OK;
}

static tl_status try_once(trial *k, tl_tape *scratch)
{
    for (side *s = &k->search; s != NULL; s = s == &k->search ? &k->put : NULL)
        if ((s->q = tl_rule_trace(k->f, s == &k->search, scratch, &k->mem, &k->at, k->err)) == NULL)
            return k->err->status;
    const tl_pattern *q = k->search.q;
    TL_TRY(tl_outputs_agree(q, q->out_array, k->put.q, false, k->err));
    TL_TRY(run(k, &k->search));
    TL_TRY(run(k, &k->put));
    for (int i = 0, n = k->o->n_out; i < q->n_out; i++) {
        tl_array a, b;
        if (q->out[i].node == TL_REF_NONE) /* which search leaves out */
            continue;
        if (!tl_array_of(k->search.t, k->search.out[i], &a) ||
            !tl_array_of(k->put.t, k->put.out[i], &b))
            return tl_fail(k->err, TL_EUSAGE, "'%s' gives no result %d", k->o->name, i);
        TL_TRY(compare(k, &a, &b, i < n ? "output" : "gradient", i < n ? i : i - n));
    }
    for (int i = 0; i < k->o->n_in && q->n_out > k->o->n_out; i++)
        if (k->at.grad[i])
            TL_TRY(compare_accumulators(k, i));
    return TL_OK;
}

static tl_status check(const tl_form *f, tl_dtype d, const tl_shape *shapes, bool backward,
                       uint64_t seed, int rounds, tl_err *err)
{
    tl_tape *t = tl_tape_new(NULL), *u = tl_tape_new(NULL), *scratch = tl_rule_tape();
    tl_status s = t == NULL || u == NULL || scratch == NULL
                      ? tl_fail(err, TL_ENOMEM, "no memory for three tapes")
                      : TL_OK;
    tl_fpenv saved = tl_fpenv_enter(); /* numbers are drawn and compared outside any op */
    for (int round = 0; s == TL_OK && round < (rounds > 0 ? rounds : 8); round++) {
        trial k = {.f = f, .o = &f->rule->o, .dtype = d, .round = round, .seed = seed, .err = err};
        k.search.t = t;
        k.put.t = u;
        k.state = ~seed * 1000003u + (uint64_t)round;
        draw_place(&k, shapes, backward);
        s = try_once(&k, scratch);
        tl_bump_free(&k.mem);
    }
    tl_fpenv_leave(saved);
    tl_object_end(t);
    tl_object_end(u);
    tl_rule_tape_end(scratch);
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
