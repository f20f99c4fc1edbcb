/* math32_exp.h: exp, exp2, expm1, tanh, sigmoid in f32.
 *
 * Method: in double. x = k ln2 + r with |r| <= ln2/2 (ln2 in two parts, the first
 *         short enough that k times it is exact), e^r - 1 = r + r^2 q(r) with q a
 *         minimax polynomial (error 2^-57.9 relative to e^r), scaled by 2^k in
 *         the exponent bits. Double's range swallows every float overflow and
 *         underflow, so the conversion at the end is the only rounding to float.
 *           expm1   = 2^k (e^r - 1) + (2^k - 1)
 *           tanh    = E / (E + 2),  E = expm1(2|x|)
 *           sigmoid = 1 / (1 + e^-x)
 *         + - * / and, where the level has it, fma (tl_muladd).
 * Error:  correctly rounded for all 2^32 inputs.
 * Proof:  tests/exhaustive.c; tests/test_math.c.
 */
#ifndef TL_KERNELS_MATH32_EXP_H
#define TL_KERNELS_MATH32_EXP_H

#include "tensor/kernels/math_bits.h"

/* e^r - 1 for |r| <= ln2/2. */
static inline double tl_expm1_poly32(double r)
{
    double r2 = r * r;
    double q = tl_muladd(r, 0x1.af734d7f7ceb5p-26, 0x1.28b100aded8d9p-22);
    q = tl_muladd(r2, q, tl_muladd(r, 0x1.71ddebdde5c03p-19, 0x1.a01995a94a0adp-16));
    q = tl_muladd(r2, q, tl_muladd(r, 0x1.a01a01b52786dp-13, 0x1.6c16c1860fdcbp-10));
    q = tl_muladd(r2, q, tl_muladd(r, 0x1.111111110e874p-7, 0x1.555555554fddcp-5));
    q = tl_muladd(r2, q, tl_muladd(r, 0x1.555555555555cp-3, 0x1.000000000000cp-1));
    return tl_muladd(r2, q, r);
}

/* e^x = 2^k (1 + p): p, and k shifted to the exponent's place. */
typedef struct {
    double p;
    uint64_t k52;
} tl_exp_parts32;

static inline tl_exp_parts32 tl_exp_split32(double x)
{
    double t = tl_muladd(x, 0x1.71547652b82fep+0, TL_ROUND_MAGIC);
    double k = t - TL_ROUND_MAGIC;
    double r = tl_muladd(k, 0x1.8432a1b0e2634p-43, tl_muladd(k, -0x1.62e42fefa4p-1, x));
    tl_exp_parts32 e = {tl_expm1_poly32(r), tl_bits64(t) << 52};
    return e;
}

static inline float tl_exp32(float x)
{
    tl_exp_parts32 e = tl_exp_split32(tl_clamp64((double)x, -105.0, 90.0));
    return (float)tl_double_of(tl_bits64(1.0 + e.p) + e.k52);
}

static inline float tl_exp2_32(float x)
{
    double d = tl_clamp64((double)x, -151.0, 129.0);
    double t = d + TL_ROUND_MAGIC;
    double r = (d - (t - TL_ROUND_MAGIC)) * 0x1.62e42fefa39efp-1;
    double y = tl_sum_to_odd(1.0, tl_expm1_poly32(r)); /* 1 + p alone errs at two inputs */
    return (float)tl_double_of(tl_bits64(y) + (tl_bits64(t) << 52));
}

static inline float tl_expm1_32(float x)
{
    tl_exp_parts32 e = tl_exp_split32(tl_clamp64((double)x, -40.0, 90.0));
    double s = tl_double_of(TL_ONE64 + e.k52);
    return tl_sign32((float)(s * e.p + (s - 1.0)), x);
}

static inline float tl_tanh32(float x)
{
    tl_exp_parts32 e = tl_exp_split32(2.0 * tl_clamp64((double)tl_abs32(x), 0.0, 10.0));
    double s = tl_double_of(TL_ONE64 + e.k52);
    double p = s * e.p;
    return tl_sign32((float)((p + (s - 1.0)) / (p + (s + 1.0))), x);
}

static inline float tl_sigmoid32(float x)
{
    double d = (double)x;
    tl_exp_parts32 e = tl_exp_split32(tl_clamp64(-d, -105.0, 105.0));
    double s = tl_double_of(TL_ONE64 + e.k52);
    double y = 1.0 / ((1.0 + s) + s * e.p);
    /* Near 0 sigmoid is 1/2 + x/4 - x^3/48, and where 1/2 + x/4 lies half-way
     * between two floats double cannot see the cubic term: lean toward 1/2. */
    double near = 0.5 + d * (0.25 - 0x1p-28);
    y = tl_abs64(d) < 0x1p-15 ? near : y;
    y = d == -0x1.250c02p-10 ? 0x1.ffb6bep-2 : y; /* 2^-55 above a middle: no double there */
    return (float)y;
}

#endif
