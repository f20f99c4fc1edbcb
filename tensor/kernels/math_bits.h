/* math_bits.h: numbers and their bit patterns, for the elementary functions.
 *
 * Everything here is branch-free so that loops over it vectorise, and uses no
 * 64-bit arithmetic shift and no int64 <-> double conversion: AVX2 has neither.
 * An integer k comes out of a double by adding TL_ROUND_MAGIC: the sum's ulp is
 * 1, so it holds k, rounded to nearest even, in its low bits.
 */
#ifndef TL_KERNELS_MATH_BITS_H
#define TL_KERNELS_MATH_BITS_H

#include "tensor/kernels/fma.h"

#define TL_ROUND_MAGIC 0x1.8p52
#define TL_SIGN64 0x8000000000000000u
#define TL_ONE64 0x3ff0000000000000u /* the bits of 1.0 */

static inline uint64_t tl_bits64(double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}

static inline double tl_double_of(uint64_t u)
{
    double x;
    memcpy(&x, &u, 8);
    return x;
}

static inline uint32_t tl_bits32(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float tl_float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline double tl_abs64(double x) { return tl_double_of(tl_bits64(x) & ~TL_SIGN64); }

static inline float tl_abs32(float x) { return tl_float_of(tl_bits32(x) & 0x7fffffffu); }

/* The magnitude of x with the sign of s. */
static inline double tl_sign64(double x, double s)
{
    return tl_double_of((tl_bits64(x) & ~TL_SIGN64) | (tl_bits64(s) & TL_SIGN64));
}

static inline float tl_sign32(float x, float s)
{
    return tl_float_of((tl_bits32(x) & 0x7fffffffu) | (tl_bits32(s) & 0x80000000u));
}

/* x clamped to [lo, hi]; a NaN stays a NaN. */
static inline double tl_clamp64(double x, double lo, double hi)
{
    x = x < lo ? lo : x;
    return x > hi ? hi : x;
}

/* a + b rounded to odd (truncated, the last bit 1 if anything was lost), for |a| >= |b|
 * or a = 0 and a finite sum. That keeps it on its side of every middle between two
 * floats: rounding it on to float is as good as rounding once. Source: as in fma.h. */
static inline double tl_sum_to_odd(double a, double b)
{
    double s = a + b;
    double lost = b - (s - a);
    uint64_t u = tl_bits64(s);
    uint64_t odd = (u - ((u ^ tl_bits64(lost)) >> 63)) | 1;
    return tl_double_of(lost == 0.0 ? u : odd);
}

/* a b + c, rounded once where the level has fma and twice elsewhere: for sums whose last bit
 * cannot show, because what they end in is rounded to float and right at every input. */
static inline double tl_muladd(double a, double b, double c)
{
#if TL_HAS_FMA
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

/* x = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), f exact, for a positive normal x. */
typedef struct {
    double e, f;
} tl_log_parts;

static inline tl_log_parts tl_log_split(double x)
{
    uint64_t u = tl_bits64(x);
    uint64_t b = (u + (TL_ONE64 - 0x3fe6a09e667f3bcdu)) >>
                 52; /* e + 1023: sqrt(1/2) rounds up to 1 */
    double e = tl_double_of(b | 0x4330000000000000u) - (0x1p52 + 1023.0);
    tl_log_parts p = {e, tl_double_of(u - (b << 52) + TL_ONE64) - 1.0};
    return p;
}

#endif
