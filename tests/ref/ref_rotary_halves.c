/* Rotary on two halves that lie apart (8.7). */
#include "tests/ref/ref.h"

#include <stddef.h>

/* (a*b) + (c*d), or (a*b) - (c*d), every result rounded to t. */
static double two(ref_dtype t, double a, double b, double c, double d, int minus)
{
    double p = ref_round(t, a * b), q = ref_round(t, c * d);
    return ref_round(t, minus ? p - q : p + q);
}

void ref_rotary_halves(const ref_tensor *x1, const ref_tensor *x2, const ref_tensor *c,
                       const ref_tensor *s, int conjugate, ref_tensor *y1, ref_tensor *y2)
{
    ref_dtype t = ref_compute(x1->dtype);
    *y1 = ref_like(x1, x1->dtype);
    *y2 = ref_like(x1, x1->dtype);
    for (int64_t i = 0; i < ref_numel(x1); i++) {
        int64_t ix[8] = {0};
        ref_unflatten(x1->ndim, x1->dim, i, ix);
        double a = ref_get(x1, i), b = ref_get(x2, i);
        double co = ref_get(c, ref_broadcast_at(c, x1->ndim, ix)),
               si = ref_get(s, ref_broadcast_at(s, x1->ndim, ix));
        ref_set(y1, i, two(t, co, a, si, b, !conjugate));
        ref_set(y2, i, two(t, co, b, si, a, conjugate));
    }
}

void ref_rotary_halves_grad(const ref_tensor *g1, const ref_tensor *g2, const ref_tensor *x1,
                            const ref_tensor *x2, const ref_tensor *c, const ref_tensor *s,
                            int conjugate, ref_tensor *dx1, ref_tensor *dx2, ref_tensor *acc_c,
                            ref_tensor *acc_s)
{
    ref_dtype t = ref_compute(x1->dtype);
    ref_rotary_halves(g1, g2, c, s, !conjugate, dx1, dx2);
    for (int64_t i = 0; i < ref_numel(x1); i++) {
        int64_t ix[8] = {0};
        ref_unflatten(x1->ndim, x1->dim, i, ix);
        double a = ref_get(x1, i), b = ref_get(x2, i), u = ref_get(g1, i), v = ref_get(g2, i);
        int64_t kc = ref_broadcast_at(c, x1->ndim, ix), ks = ref_broadcast_at(s, x1->ndim, ix);
        if (acc_c)
            ref_set(acc_c, kc, ref_get(acc_c, kc) + two(t, u, a, v, b, 0));
        if (acc_s)
            ref_set(acc_s, ks,
                    ref_get(acc_s, ks) +
                        (conjugate ? two(t, u, b, v, a, 1) : two(t, v, a, u, b, 1)));
    }
    for (int64_t i = 0; acc_c && i < ref_numel(acc_c); i++)
        ref_set(acc_c, i, ref_get(acc_c, i) + 0.0); /* 1.6 */
    for (int64_t i = 0; acc_s && i < ref_numel(acc_s); i++)
        ref_set(acc_s, i, ref_get(acc_s, i) + 0.0);
}
