/* math64_trig.h: sin and cos in f64.
 *
 * Method: for |x| < 2^20, r = x - k pi/2 with pi/2 in four parts of which k times the
 *         first three is exact (33 bits each), r = hi + lo; beyond, math_reduce.h.
 *         Then the minimax polynomials of sin and cos on [-pi/4, pi/4], chosen by
 *         the quadrant. Loops use _near and redo the elements that are far.
 * Error:  under 1 ULP (seen: 0.77).
 * Proof:  tests/test_math.c.
 */
#ifndef TL_KERNELS_MATH64_TRIG_H
#define TL_KERNELS_MATH64_TRIG_H

#include "tensor/kernels/math64_exp.h"
#include "tensor/kernels/math_reduce.h"

/* Infinity and NaN are not far: near turns them into NaN. */
static inline int tl_trig_is_far64(double x)
{
    uint64_t a = tl_bits64(x) & ~TL_SIGN64;
    return (a >= 0x4130000000000000u) & (a < 0x7ff0000000000000u);
}

static inline tl_reduced tl_reduce_near64(double x)
{
    double t = x * 0x1.45f306dc9c883p-1 + TL_ROUND_MAGIC;
    double k = t - TL_ROUND_MAGIC;
    tl_dd a = tl_exact_sum(x - k * 0x1.921fb544p+0, k * -0x1.0b4611a6p-34);
    tl_dd b = tl_exact_sum(a.hi, k * -0x1.3198a2ep-69);
    tl_dd r = tl_fast_sum(b.hi, b.lo + (a.lo - k * 0x1.b839a252049c1p-104));
    tl_reduced out = {r.hi, r.lo, tl_bits64(t)};
    return out;
}

/* sin of (hi + lo) plus quadrant * pi/2. */
static inline double tl_sin_reduced64(tl_reduced p)
{
    double r = p.hi, z = r * r, w = z * z;
    double s = (-0x1.ae642b898d0b7p-26 + z * 0x1.61092d7f012efp-33) + w * -0x1.9faf61e0f72ebp-41;
    s = (-0x1.a01a019ffe065p-13 + z * 0x1.71de3a33245b5p-19) + w * s;
    s = 0x1.1111111111068p-7 + z * s;
    s = r + ((r * z) * (-0x1.5555555555555p-3 + z * s) + (p.lo - 0.5 * z * p.lo));
    double c = (0x1.1eed6d6e3a000p-29 + z * -0x1.9371c02a36869p-37) + w * 0x1.9c72e55ef633bp-45;
    c = (0x1.a01a019ffb8fcp-16 + z * -0x1.27e4fb58889f9p-22) + w * c;
    c = -0x1.6c16c16c16b2bp-10 + z * c;
    double h = 0.5 * z, one = 1.0 - h;
    c = one + (((1.0 - one) - h) + (w * (0x1.5555555555555p-5 + z * c) - r * p.lo));
    double y = (p.quadrant & 1) ? c : s;
    return tl_double_of(tl_bits64(y) ^ (p.quadrant & 2) << 62);
}

static inline double tl_sin_near64(double x)
{
    double y = tl_sin_reduced64(tl_reduce_near64(x));
    return tl_abs64(x) < 0x1p-28 ? x : y;
}

static inline double tl_cos_near64(double x)
{
    tl_reduced p = tl_reduce_near64(x);
    p.quadrant += 1;
    return tl_sin_reduced64(p);
}

static inline double tl_sin_far64(double x) { return tl_sin_reduced64(tl_reduce_huge(x)); }

static inline double tl_cos_far64(double x)
{
    tl_reduced p = tl_reduce_huge(x);
    p.quadrant += 1;
    return tl_sin_reduced64(p);
}

static inline double tl_sin64(double x)
{
    return tl_trig_is_far64(x) ? tl_sin_far64(x) : tl_sin_near64(x);
}

static inline double tl_cos64(double x)
{
    return tl_trig_is_far64(x) ? tl_cos_far64(x) : tl_cos_near64(x);
}

#endif
