/* verify_values.c: random inputs of a trial, and results kept and compared bit for bit. */
#include <math.h>
#include <string.h>

#include "autograd/replace/verify.h"
#include "tensor/isa.h"

static uint64_t draw(tl_trial *k)
{
    uint64_t z = k->state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double draw_float(tl_trial *k)
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

void *tl_trial_array(tl_trial *k, tl_dtype d, int64_t n, int64_t below)
{
    char *to = tl_bump_get(&k->mem, (size_t)(n + 1) * 8);
    for (int64_t i = 0; to != NULL && i < n; i++) {
        if (d == TL_I64)
            ((int64_t *)(void *)to)[i] = (int64_t)(draw(k) % (uint64_t)(below > 0 ? below : 2));
        else if (d == TL_BOOL)
            to[i] = (char)(draw(k) & 1);
        else {
            double x = draw_float(k);
            tl_isa_now()->convert->cast(1, TL_F64, &x, d, to + (size_t)i * tl_dtype_size(d));
        }
    }
    return to;
}

const tl_shape *tl_trial_shape(const tl_trial *k, int i)
{
    return k->shapes != NULL ? &k->shapes[i] : &k->r->o.example_inputs[i].shape;
}

void tl_trial_draw(tl_trial *k, int round)
{
    k->style = round % 4;
    for (int i = 0; i < k->r->o.n_in; i++) {
        const tl_pattern_arg *a = &k->r->o.example_inputs[i];
        bool f32 = a->or_f32 && tl_dtype_compute(k->dtype) == TL_F32 && draw(k) & 1;
        k->arg_dtype[i] = a->fixed ? a->dtype : f32 ? TL_F32 : k->dtype;
        k->arg[i] = tl_trial_array(k, k->arg_dtype[i], tl_shape_count(tl_trial_shape(k, i)),
                                   a->below);
        k->grad[i] = k->backward && tl_rule_grad(k->r, i) && (round < 4 || draw(k) & 1);
    }
    for (int i = 0; i < k->r->o.n_out; i++)
        k->seeded[i] = round < 4 || draw(k) & 1;
}

/* ---- bits kept and compared ---- */

static tl_status compare(tl_trial *k, const tl_trial_bits *a, const tl_trial_bits *b,
                         const char *what, int i)
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

tl_status tl_trial_take(tl_trial *k, bool search, const tl_array *a, const char *what, int i)
{
    static const tl_trial_bits none = {NULL, -1};
    tl_trial_bits b = {tl_bump_get(&k->mem, (size_t)(tl_array_count(a) + 1) * sizeof(double)),
                       tl_array_count(a)};
    if (b.x == NULL || k->n_bits == MAX_BITS)
        return tl_fail(k->err, TL_ENOMEM, "no memory to check '%s'", k->r->o.name);
    for (int64_t e = 0; e < b.n; e++) {
        float narrow;
        const void *from = tl_array_at(a, e);
        bool half = a->dtype == TL_F16 || a->dtype == TL_BF16;
        if (half)
            tl_isa_now()->convert->widen(1, a->dtype, from, 1, &narrow);
        tl_isa_now()->convert->cast(1, half ? TL_F32 : a->dtype, half ? &narrow : from, TL_F64,
                                    &b.x[e]);
    }
    if (!search)
        return compare(k, k->at < k->n_bits ? &k->first[k->at++] : &none, &b, what, i);
    k->first[k->n_bits++] = b;
    return TL_OK;
}
