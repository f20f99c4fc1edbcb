/* math32_trig.h: sin and cos in f32.
 *
 * Method: in double. For |x| <= 2^22: k = x 2/pi rounded, r = x - k pi/2 with pi/2
 *         in three parts, the first two short enough to come off exactly; then the
 *         minimax polynomials of sin r and cos r on [-pi/4, pi/4], and the
 *         quadrant k mod 4 chooses between them; the last sum is rounded once to
 *         float (tl_sum_to_odd). Beyond 2^22: Payne and Hanek's
 *         reduction (math_reduce.h), the same polynomials. No table.
 *         Loops use the _near functions, which vectorise, and redo the rare
 *         element that tl_trig_is_far32; both give the right bits where they apply.
 * Error:  correctly rounded for all 2^32 inputs.
 * Proof:  tests/exhaustive.c; tests/test_math.c.
 */
#ifndef TL_KERNELS_MATH32_TRIG_H
#define TL_KERNELS_MATH32_TRIG_H

#include "tensor/kernels/math_reduce.h"

/* Infinity and NaN are not far: near turns them into NaN. */
static inline int tl_trig_is_far32(float x)
{
    uint32_t a = tl_bits32(x) & 0x7fffffffu;
    return (a > 0x4a800000u) & (a < 0x7f800000u);
}

static inline tl_reduced tl_reduce_near32(double x)
{
    double t = tl_muladd(x, 0x1.45f306dc9c883p-1, TL_ROUND_MAGIC);
    double k = t - TL_ROUND_MAGIC;
    double a = (x - k * 0x1.921fb548p+0) -
               k * -0x1.de974p-31; /* exact: a multiple of 2^-52 below 1 */
    double b = k * 0x1.1a62633145c07p-54;
    double r = a - b;
    tl_reduced out = {r, (a - r) - b, tl_bits64(t)};
    return out;
}

/* sin of (hi + lo) plus quadrant * pi/2. */
static inline float tl_sin_reduced32(tl_reduced p)
{
    double r = p.hi, z = r * r, w = z * z;
    double s = tl_muladd(z, -0x1.ae5e670b544dcp-26, 0x1.71de357993b42p-19);
    s = tl_muladd(w, tl_muladd(w, 0x1.5d93168f79d10p-33, s),
                  tl_muladd(z, -0x1.a01a019c14eb7p-13, 0x1.111111110f8a1p-7));
    s = tl_muladd(r * z, tl_muladd(z, s, -0x1.5555555555549p-3), p.lo); /* sin = r + s */
    double c = tl_muladd(z, 0x1.1ee9f042b6265p-29, -0x1.27e4f81149af1p-22);
    c = tl_muladd(w, tl_muladd(w, -0x1.8fb09ebc8e56ep-37, c),
                  tl_muladd(z, 0x1.a01a019cbdc6ep-16, -0x1.6c16c16c15215p-10));
    double h = 0.5 * z, one = 1.0 - h;
    c = tl_muladd(w, tl_muladd(z, c, 0x1.555555555554cp-5), -(r * p.lo));
    c = ((1.0 - one) - h) + c; /* cos = one + c */
    double y = tl_sum_to_odd((p.quadrant & 1) ? one : r, (p.quadrant & 1) ? c : s);
    return (float)tl_double_of(tl_bits64(y) ^ (p.quadrant & 2) << 62);
}

static inline float tl_sin_near32(float x)
{
    float y = tl_sin_reduced32(tl_reduce_near32((double)x));
    return x == 0.0f ? x : y; /* -0 stays -0 */
}

static inline float tl_cos_near32(float x)
{
    tl_reduced p = tl_reduce_near32((double)x);
    p.quadrant += 1;
    return tl_sin_reduced32(p);
}

static inline float tl_sin_far32(float x) { return tl_sin_reduced32(tl_reduce_huge((double)x)); }

static inline float tl_cos_far32(float x)
{
    tl_reduced p = tl_reduce_huge((double)x);
    p.quadrant += 1;
    return tl_sin_reduced32(p);
}

static inline float tl_sin32(float x)
{
    return tl_trig_is_far32(x) ? tl_sin_far32(x) : tl_sin_near32(x);
}

static inline float tl_cos32(float x)
{
    return tl_trig_is_far32(x) ? tl_cos_far32(x) : tl_cos_near32(x);
}

#endif
