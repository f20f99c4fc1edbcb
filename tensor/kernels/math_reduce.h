/* math_reduce.h: x mod pi/2 for huge |x|, exactly enough for sin and cos.
 *
 * Method: Payne and Hanek. x = M 2^E with an integer M below 2^53; of 2/pi only
 *         a window of 192 bits matters: higher ones give multiples of 4 turns of
 *         pi/2, lower ones fall under 2^-137. The product's first two bits are
 *         the quadrant, the rest, brought into [-1/2, 1/2] and times pi/2, is the
 *         remainder as an unevaluated sum hi + lo. Integer limbs of 32 bits.
 * Error:  below 2^-70 relative: no double lies closer than 2^-62 to a multiple of pi/2.
 * Source: Payne & Hanek, "Radian reduction for trigonometric functions", SIGNUM 18, 1983.
 * Proof:  through sin and cos: tests/exhaustive.c, tests/test_math.c.
 */
#ifndef TL_KERNELS_MATH_REDUCE_H
#define TL_KERNELS_MATH_REDUCE_H

#include "tensor/kernels/fma.h"
#include "tensor/kernels/math_bits.h"

#define TL_PIO2_HI 0x1.921fb54442d18p+0
#define TL_PIO2_LO 0x1.1a62633145c07p-54

typedef struct {
    double hi, lo;
    uint64_t quadrant; /* only its two low bits count */
} tl_reduced;

/* The 32-bit limb of 2/pi that starts at bit `at` after the binary point; bits before the point are
 * 0. */
static inline uint32_t tl_two_over_pi_limb(int at)
{
    static const uint32_t bits[40] = {0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599,
                                      0x3c439041, 0xfe5163ab, 0xdebbc561, 0xb7246e3a, 0x424dd2e0,
                                      0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e, 0xe88235f5,
                                      0x2ebb4484, 0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4,
                                      0x9c845f8b, 0xbdf9283b, 0x1ff897ff, 0xde05980f, 0xef2f118b,
                                      0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7, 0x4f463f66, 0x9e5fea2d,
                                      0x7527bac7, 0xebe5f17b, 0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1,
                                      0x1f8d5d08, 0x56033046, 0xfc7b6bab, 0xf0cfbc20, 0x9af4361d};
    int shifted = at + 64; /* so that division rounds down */
    int word = shifted / 32 - 2, bit = shifted % 32;
    uint64_t high = word >= 0 ? bits[word] : 0;
    uint64_t low = word + 1 >= 0 ? bits[word + 1] : 0;
    return (uint32_t)(((high << 32 | low) << bit) >> 32);
}

/* limb[5..0] = the product of 2/pi's window and M, mod 2^192, in units of 2^-190. */
static inline void tl_reduce_product(double x, uint32_t limb[6])
{
    uint64_t u = tl_bits64(x);
    int e = (int)(u >> 52 & 0x7ff) - 1075;
    uint64_t m = (u & 0xfffffffffffffu) | 0x10000000000000u;
    uint64_t part[2] = {m & 0xffffffffu, m >> 32};
    for (int i = 0; i < 6; i++)
        limb[i] = 0;
    for (int i = 0; i < 6; i++) {
        uint64_t w = tl_two_over_pi_limb(e - 2 + 32 * (5 - i));
        uint64_t carry = 0;
        for (int j = 0; i + j < 6; j++) {
            uint64_t s = (j < 2 ? w * part[j] : 0) + limb[i + j] + carry;
            limb[i + j] = (uint32_t)s;
            carry = s >> 32;
        }
    }
}

/* For finite |x| >= 2^20. */
static inline tl_reduced tl_reduce_huge(double x)
{
    uint32_t limb[6];
    tl_reduce_product(x, limb);
    uint64_t q = limb[5] >> 30;
    int below = (limb[5] >> 29) &
                1; /* fraction >= 1/2: take the next quadrant and a negative rest */
    uint32_t flip = below ? 0xffffffffu : 0u;
    limb[5] = (limb[5] ^ flip) & 0x3fffffffu;
    double hi = 0, lo = 0, unit = 0x1p-30;
    for (int i = 5; i >= 0; i--) {
        double v = (double)(i < 5 ? limb[i] ^ flip : limb[i]) * unit;
        double s = hi + v; /* hi >= v, or hi is 0 */
        lo += v - (s - hi);
        hi = s;
        unit *= 0x1p-32;
    }
    double r = hi * TL_PIO2_HI;
    double z = tl_fma(hi, TL_PIO2_HI, -r) + (hi * TL_PIO2_LO + lo * TL_PIO2_HI);
    tl_reduced out = {r, z, q + (uint64_t)below};
    uint64_t sign = (tl_bits64(x) ^ (below ? TL_SIGN64 : 0)) & TL_SIGN64;
    out.hi = tl_double_of(tl_bits64(out.hi) ^ sign);
    out.lo = tl_double_of(tl_bits64(out.lo) ^ sign);
    out.quadrant = tl_bits64(x) >> 63 ? 0 - out.quadrant : out.quadrant;
    return out;
}

#endif
