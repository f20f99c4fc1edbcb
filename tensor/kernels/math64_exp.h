/* math64_exp.h: exp, exp2, expm1, tanh, sigmoid in f64.
 *
 * Method: x = k ln2 + r as in math32_exp.h, with r and e^r - 1 kept as unevaluated
 *         sums hi + lo, so that the last addition makes nearly all of the error.
 *         2^k is applied in two factors: the second may round into the subnormals.
 *           expm1   = 2^k (e^r - 1) + (2^k - 1)
 *           tanh    = E / (E + 2),  E = expm1(2|x|), quotient corrected once
 *           sigmoid = 1 / (1 + e^-|x|), or e^-|x| / (1 + e^-|x|) for negative x
 * Error:  under 1 ULP (seen: 0.59 where the result is normal, 0.75 below).
 * Proof:  tests/test_math.c.
 */
#ifndef TL_KERNELS_MATH64_EXP_H
#define TL_KERNELS_MATH64_EXP_H

#include "tensor/kernels/math_dd.h"

/* e^r - 1 = r + r^2/2 + r^3 q(r) for |r.hi| <= ln2/2, the first two terms exact. */
static inline tl_dd tl_expm1_poly64(tl_dd r)
{
    double x = r.hi;
    tl_dd s = tl_exact_product(x, x);
    double q = 0x1.27e4d9241c77cp-22 + x * 0x1.af6f1c47342d0p-26 + s.hi * 0x1.1f7708c948bdcp-29;
    q = (0x1.a01a01a7b6500p-16 + x * 0x1.71ddee1deca60p-19) + s.hi * q;
    q = (0x1.6c16c16c160b3p-10 + x * 0x1.a01a01b46287bp-13) + s.hi * q;
    q = (0x1.5555555555556p-5 + x * 0x1.111111110e9c5p-7) + s.hi * q;
    q = 0x1.555555555555cp-3 + x * q;
    tl_dd y = tl_fast_sum(x, 0.5 * s.hi);
    return tl_fast_sum(y.hi, y.lo + ((x * s.hi * q + 0.5 * s.lo) + (r.lo + r.lo * x)));
}

/* e^x = 2^k (1 + p): p, and t whose low bits are k. */
typedef struct {
    tl_dd p;
    uint64_t t;
} tl_exp_parts64;

/* For |x.hi| < 2^12. */
static inline tl_exp_parts64 tl_exp_split64(tl_dd x)
{
    double t = x.hi * 0x1.71547652b82fep+0 + TL_ROUND_MAGIC;
    double k = t - TL_ROUND_MAGIC;
    double a = x.hi - k * 0x1.62e42fefa38p-1;
    double b = k * 0x1.ef35793c7673p-45;
    double r = a - b;
    tl_exp_parts64 e = {tl_expm1_poly64(tl_fast_sum(r, ((a - r) - b) + x.lo)), tl_bits64(t)};
    return e;
}

/* 2^k for the k in t's low bits, -1022 <= k <= 1023. */
static inline double tl_pow2_of(uint64_t t) { return tl_double_of((t << 52) + TL_ONE64); }

/* y 2^k, rounded once, for the k in t's low bits, |k| < 2046. */
static inline double tl_scale64(double y, uint64_t t)
{
    uint64_t k = (t + 2046) & 0xfff; /* k + 2046 */
    uint64_t h = k >> 1;
    return y * tl_double_of(h << 52) * tl_double_of((k - h) << 52);
}

/* e^(x.hi + x.lo); x.hi may be anything, its NaN passes through. */
static inline double tl_exp_sum64(tl_dd x)
{
    tl_dd c = {tl_clamp64(x.hi, -760.0, 720.0), 0};
    c.lo = c.hi == x.hi ? x.lo : 0.0;
    tl_exp_parts64 e = tl_exp_split64(c);
    tl_dd y = tl_fast_sum(1.0, e.p.hi);
    return tl_scale64(y.hi + (y.lo + e.p.lo), e.t);
}

static inline double tl_exp64(double x)
{
    tl_dd d = {x, 0};
    return tl_exp_sum64(d);
}

static inline double tl_exp2_64(double x)
{
    double d = tl_clamp64(x, -1100.0, 1030.0);
    double t = d + TL_ROUND_MAGIC;
    double f = d - (t - TL_ROUND_MAGIC);
    tl_dd r = tl_exact_product(f, 0x1.62e42fefa39efp-1);
    r.lo += f * 0x1.abc9e3b39803fp-56;
    tl_dd p = tl_expm1_poly64(r);
    tl_dd y = tl_fast_sum(1.0, p.hi);
    return tl_scale64(y.hi + (y.lo + p.lo), tl_bits64(t));
}

/* (e^x - 1) / 2 for -60 <= x <= 709.9: half, so that 2^k stays finite. */
static inline tl_dd tl_expm1_half64(tl_dd x)
{
    tl_exp_parts64 e = tl_exp_split64(x);
    double s = tl_pow2_of(e.t - 1);
    tl_dd c = tl_exact_sum(s, -0.5);
    tl_dd y = tl_fast_sum(c.hi, s * e.p.hi);
    return tl_fast_sum(y.hi, y.lo + (c.lo + s * e.p.lo));
}

static inline double tl_expm1_64(double x)
{
    tl_dd d = {tl_clamp64(x, -60.0, 709.9), 0};
    tl_dd y = tl_expm1_half64(d);
    double r = 2.0 * (y.hi + y.lo);
    return tl_abs64(x) < 0x1p-54 ? x : r; /* also keeps subnormals and -0 */
}

static inline double tl_tanh64(double x)
{
    double a = tl_abs64(x);
    tl_dd d = {2.0 * (a > 25.0 ? 25.0 : a), 0};
    tl_dd n = tl_expm1_half64(d);
    tl_dd m = tl_exact_sum(n.hi, 1.0);
    m.lo += n.lo;
    tl_dd q = tl_dd_quotient(n, m);
    return a < 0x1p-28 ? x : tl_sign64(q.hi + q.lo, x);
}

static inline double tl_sigmoid64(double x)
{
    double a = tl_abs64(x);
    tl_dd d = {-(a > 760.0 ? 760.0 : a), 0};
    tl_exp_parts64 e = tl_exp_split64(d);
    tl_dd m = tl_fast_sum(1.0, e.p.hi); /* e^-a = 2^k m */
    m.lo += e.p.lo;
    double s = d.hi < -100.0 ? 0.0 : tl_pow2_of(e.t);
    tl_dd v = tl_exact_sum(1.0, s * m.hi);
    v.lo += s * m.lo;
    tl_dd n = {x < 0.0 ? m.hi : 1.0, x < 0.0 ? m.lo : 0.0};
    tl_dd q = tl_dd_quotient(n, v);
    double y = q.hi + q.lo;
    return x < 0.0 ? tl_scale64(y, e.t) : y;
}

#endif
