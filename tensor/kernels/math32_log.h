/* math32_log.h: log, log2, log1p in f32.
 *
 * Method: in double, where every positive float is normal. x = 2^e m with m in
 *         [sqrt(1/2), sqrt(2)), f = m - 1 exact, s = f / (2 + f), z = s^2:
 *           log m = f - (f^2/2 - s (f^2/2 + z R(z)))
 *         (2 atanh s, arranged so that the large terms f and f^2/2 are exact),
 *         R minimax (2^-59 relative). e ln2, with ln2 in two parts, is joined to f without
 *         loss, and the last sum rounded once to float (tl_sum_to_odd).
 *         + - * / only, no fma.
 * Error:  correctly rounded for all 2^32 inputs.
 * Proof:  tests/exhaustive.c; tests/test_math.c.
 */
#ifndef TL_KERNELS_MATH32_LOG_H
#define TL_KERNELS_MATH32_LOG_H

#include "tensor/kernels/math_bits.h"

/* f - log(1 + f), that is f^2/2 - s (f^2/2 + z R(z)). */
static inline double tl_log_tail32(double f)
{
    double s = f / (2.0 + f);
    double h = 0.5 * f * f;
    double z = s * s;
    double w = z * z;
    double r = (0x1.74664ccd3a640p-3 + z * 0x1.39a03a50c7df0p-3) + w * 0x1.2f1560e589e0fp-3;
    r = (0x1.2492494234882p-2 + z * 0x1.c71c51cb89551p-3) + w * r;
    r = (0x1.5555555555593p-1 + z * 0x1.999999997f9a7p-2) + w * r;
    return h - s * (h + z * r);
}

/* e ln2 + log(1 + f), to float. */
static inline float tl_log_join32(tl_log_parts p)
{
    double big = p.e * 0x1.62e42fefa4p-1;
    double sum = big + p.f;
    double lost = p.f - (sum - big); /* |big| > |f|, or big is 0 */
    return (float)tl_sum_to_odd(sum, lost - (tl_log_tail32(p.f) - p.e * -0x1.8432a1b0e2634p-43));
}

/* What log does outside (0, inf): x > 0 keeps y. */
static inline float tl_log_edges32(float x, float y)
{
    y = x < tl_float_of(0x7f800000u) ? y : x; /* inf and NaN: themselves */
    y = x < 0.0f ? tl_float_of(0x7fc00000u) : y;
    return x == 0.0f ? tl_float_of(0xff800000u) : y;
}

static inline float tl_log32(float x)
{
    return tl_log_edges32(x, tl_log_join32(tl_log_split((double)x)));
}

static inline float tl_log2_32(float x)
{
    tl_log_parts p = tl_log_split((double)x);
    double y = (p.f - tl_log_tail32(p.f)) * 0x1.71547652b82fep+0;
    return tl_log_edges32(x, (float)tl_sum_to_odd(p.e, y));
}

static inline float tl_log1p32(float x)
{
    double d = (double)x;
    tl_log_parts p = tl_log_split(1.0 + d);
    p.f = p.e == 0.0 ? d : p.f; /* 1 + d may have rounded; d has not */
    float y = tl_log_join32(p);
    float r = x < tl_float_of(0x7f800000u) ? y : x;
    r = x < -1.0f ? tl_float_of(0x7fc00000u) : r;
    r = x == -1.0f ? tl_float_of(0xff800000u) : r;
    return x == 0.0f ? x : r;
}

#endif
