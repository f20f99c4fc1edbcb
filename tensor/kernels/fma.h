/* fma.h: a*b + c with one rounding, at every vector level.
 *
 * With hardware fma these are one instruction. Without it tl_fmaf is computed
 * exactly: a product of two floats is exact in double, the sum is rounded to
 * odd in double (the last bit becomes 1 when the sum is inexact), and the
 * final rounding to float is then right. A plain double sum would round twice.
 * Source: Boldo & Melquiond, "Emulation of FMA and correctly rounded sums:
 * proved algorithms using rounding to odd", IEEE TC 57(4), 2008.
 * tl_fma without hardware is the C library's fma, which IEC 60559 defines exactly.
 */
#ifndef TL_KERNELS_FMA_H
#define TL_KERNELS_FMA_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__FMA__) || defined(__aarch64__) || \
    (defined(__riscv) && defined(__riscv_flen) && __riscv_flen >= 64) || defined(__s390x__)
#define TL_HAS_FMA 1
#else
#define TL_HAS_FMA 0
#endif

static inline float tl_fmaf(float a, float b, float c)
{
#if TL_HAS_FMA
    return __builtin_fmaf(a, b, c);
#else
    double p = (double)a * (double)b; /* exact: 24 + 24 bits in 53 */
    double d = (double)c;
    double s = p + d;
    double t = s - p; /* two-sum: e is the rounding error of s */
    double e = (p - (s - t)) + (d - t);
    uint64_t u, v;
    memcpy(&u, &s, 8);
    memcpy(&v, &e, 8);
    /* Round to odd: where the error is nonzero and s is even, step s one unit
     * toward the error. Inf and NaN make e a NaN or s - p meaningless: there s
     * stands as it is. (e is finite and nonzero only when s is finite.) */
    uint64_t inexact = (uint64_t)(e < 0 || e > 0);
    uint64_t even = ~u & 1u;
    uint64_t toward = ((u ^ v) >> 63) ? (uint64_t)-1 : 1u; /* signs differ: magnitude shrinks */
    u += (inexact & even) ? toward : 0u;
    memcpy(&s, &u, 8);
    return (float)s;
#endif
}

static inline double tl_fma(double a, double b, double c)
{
#if TL_HAS_FMA
    return __builtin_fma(a, b, c);
#else
    return fma(a, b, c);
#endif
}

#endif
