/* half.h: binary16 and bfloat16, stored as their 16 bits, to and from float and double.
 *
 * Widening is exact: subnormals, infinities and signed zeros included. Narrowing
 * rounds once, to nearest even, overflow to infinity. A NaN stays a NaN (which
 * one is not promised). Everything is branch-free integer and IEEE arithmetic,
 * so that loops over these functions vectorise; it assumes that subnormals are
 * not flushed and that the rounding mode is to nearest.
 */
#ifndef TL_KERNELS_HALF_H
#define TL_KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

#include "tensor/kernels/math_bits.h"

static inline float tl_bf16_to_f32(uint16_t h) { return tl_float_of((uint32_t)h << 16); }

/* Exponent and fraction moved into float's places make a value 2^112 too small
 * (a subnormal stays a subnormal), which one exact product puts right. */
static inline float tl_f16_to_f32(uint16_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    uint32_t special = (0x0f7fffffu - magnitude) >> 31; /* 1 for inf and NaN */
    uint32_t u = tl_bits32(tl_float_of(magnitude) * 0x1p112f);
    u |= special * 0x7f800000u;
    return tl_float_of(u | (uint32_t)(h & 0x8000) << 16);
}

static inline uint16_t tl_f32_to_bf16(float f)
{
    uint32_t u = tl_bits32(f);
    uint32_t r = u + 0x7fffu + ((u >> 16) & 1);
    r = f != f ? 0x7fc00000u | (u & 0x80000000u) : r;
    return (uint16_t)(r >> 16);
}

/* With e the exponent of f, at least -14, adding 2^(e+13) leaves the fraction, rounded to nearest
 * even, in the last ten bits of the sum; a carry runs into the exponent as it should. The pair of
 * scalings turns overflow into infinity. */
static inline uint16_t tl_f32_to_f16(float f)
{
    uint32_t u = tl_bits32(f);
    uint32_t exponent = u & 0x7f800000u;
    float magnitude = tl_float_of(u & 0x7fffffffu) * 0x1p112f * 0x1p-110f; /* 4|f|, or inf */
    exponent = exponent > 0x38800000u ? exponent : 0x38800000u;
    uint32_t sum = tl_bits32(tl_float_of(exponent + 0x07800000u) + magnitude);
    uint32_t r = ((sum >> 13) & 0x7c00u) + (sum & 0x0fffu);
    uint32_t nan = (0x7f800000u - (u & 0x7fffffffu)) >> 31;
    return (uint16_t)((nan ? 0x7e00u : r) | (u >> 16 & 0x8000u));
}

/* Converts double to float, rounding to odd: toward zero, with the last bit set if inexact. A
 * second rounding to 16 bits then gives the same result as a single one. */
static inline float tl_f64_to_f32_odd(double d)
{
    float f = (float)d;
    double back = (double)f;
    uint32_t u = tl_bits32(f);
    u -= (uint32_t)(__builtin_fabs(back) > __builtin_fabs(d));
    u |= (uint32_t)(back > d) | (uint32_t)(back < d);
    return tl_float_of(u);
}

/* Converts an integer to double, rounding to odd, for the same reason: what is lost shows in the
 * last bit, far below the last one of the narrower dtypes. */
static inline double tl_i64_to_f64_odd(int64_t x)
{
    const int64_t most = INT64_C(1) << 53, low = 1023;
    return (double)(x >= -most && x <= most ? x : (x & ~low) | (x & low ? low + 1 : 0));
}

/* Truncates toward zero; NaN gives 0, values outside give the nearest end. */
static inline int64_t tl_f64_to_i64(double x)
{
    if (!(x == x))
        return 0;
    if (x >= 0x1p63)
        return INT64_MAX;
    return x < -0x1p63 ? INT64_MIN : (int64_t)x;
}

static inline uint16_t tl_f64_to_bf16(double d) { return tl_f32_to_bf16(tl_f64_to_f32_odd(d)); }

static inline uint16_t tl_f64_to_f16(double d) { return tl_f32_to_f16(tl_f64_to_f32_odd(d)); }

#endif
