/* math32_pow.h: square roots and constant powers in f32.
 *
 * Method: sqrt is IEEE's. The others compute in double, where squares of floats
 *         are exact, and round once more to float. pow(x, e) for any other e goes
 *         through tl_pow64.
 * Error:  sqrt, rsqrt and the powers -2 -1 -1/2 1/2 3/2 2 3 are correctly rounded
 *         for all 2^32 inputs; tl_pow32 is under 1 ULP.
 * Names:  powm2 is x^-2, pow3h x^(3/2): m is minus, h is halves.
 * Edges:  those of IEC 60559's pow, so x^(1/2) differs from sqrt at -0 and -inf;
 *         rsqrt(-0) = -inf, as 1/sqrt.
 * Proof:  tests/exhaustive.c; tests/test_math.c.
 */
#ifndef TL_KERNELS_MATH32_POW_H
#define TL_KERNELS_MATH32_POW_H

#include "tensor/kernels/math64_pow.h"

static inline float tl_sqrt32(float x) { return __builtin_sqrtf(x); }

static inline float tl_rsqrt32(float x) { return (float)(1.0 / __builtin_sqrt((double)x)); }

static inline float tl_powm2_32(float x)
{
    double d = (double)x;
    return (float)(1.0 / (d * d));
}

static inline float tl_powm1_32(float x) { return 1.0f / x; }

static inline float tl_powm1h_32(float x)
{
    float y = (float)(1.0 / __builtin_sqrt((double)x + 0.0)); /* -0 + 0 = +0 */
    return x == tl_float_of(0xff800000u) ? 0.0f : y;
}

static inline float tl_pow1h_32(float x)
{
    float y = __builtin_sqrtf(x + 0.0f);
    return x == tl_float_of(0xff800000u) ? tl_float_of(0x7f800000u) : y;
}

static inline float tl_pow3h_32(float x)
{
    double d = (double)x + 0.0;
    float y = (float)(d * __builtin_sqrt(d));
    return x == tl_float_of(0xff800000u) ? tl_float_of(0x7f800000u) : y;
}

static inline float tl_pow2_32(float x) { return x * x; }

static inline float tl_pow3_32(float x)
{
    double d = (double)x;
    return (float)(d * d * d);
}

static inline __attribute__((always_inline)) float tl_pow_by32(float x, tl_pow_exponent e)
{
    return (float)tl_pow_by64((double)x, e);
}

static inline float tl_pow32(float x, double y) { return tl_pow_by32(x, tl_pow_exponent_of(y)); }

#endif
