/* math32_erf.h: erf in f32.
 *
 * Method: in double. erf x = 1 - e^-Q(x) with Q = -log erfc x, for 0 <= x <= 3.93.
 *         Q is smooth and rises from 0, so one polynomial x P(x) serves the whole
 *         range, and -expm1(-Q) is as accurate near 0 as near 1: an error in Q
 *         weighs Q e^-Q / (1 - e^-Q) <= 1. P's fit uses that weight (2^-56.2).
 *         Beyond 3.93 erf rounds to 1. + - * only, and fma (tl_muladd).
 * Error:  correctly rounded for all 2^32 inputs.
 * Proof:  tests/exhaustive.c; tests/test_math.c.
 */
#ifndef TL_KERNELS_MATH32_ERF_H
#define TL_KERNELS_MATH32_ERF_H

#include "tensor/kernels/math32_exp.h"

/* -log(erfc(x)) for 0 <= x <= 3.93. */
static inline double tl_erf_exponent32(double x)
{
    double z = x * x;
    double q = tl_muladd(x, -0x1.0d725546b5413p-47, 0x1.5df6b04fbec8cp-42);
    q = tl_muladd(z, q, tl_muladd(x, -0x1.a8301369918cbp-38, 0x1.3dff9bde1a77bp-34));
    q = tl_muladd(z, q, tl_muladd(x, -0x1.48f78c7032257p-31, 0x1.ee6abd9cb707bp-29));
    q = tl_muladd(z, q, tl_muladd(x, -0x1.12d9399b5c39cp-26, 0x1.bc450e3bcdb9dp-25));
    q = tl_muladd(z, q, tl_muladd(x, -0x1.d84a5bfc15d7cp-24, 0x1.52c98f9e64147p-24));
    q = tl_muladd(z, q, tl_muladd(x, 0x1.c613ce5816783p-22, -0x1.ef5bf5090e03bp-20));
    q = tl_muladd(z, q, tl_muladd(x, 0x1.89fad7572862fp-19, 0x1.bef01e8adb51ap-19));
    q = tl_muladd(z, q, tl_muladd(x, -0x1.f1e572eb6be56p-16, 0x1.0e67a07a1890bp-14));
    q = tl_muladd(z, q, tl_muladd(x, 0x1.b24e66bd857fcp-16, -0x1.356599b6cdf9ap-11));
    q = tl_muladd(z, q, tl_muladd(x, 0x1.bca682df43a6bp-10, -0x1.b6b6932aee9ddp-13));
    q = tl_muladd(z, q, tl_muladd(x, -0x1.39668592b1e9ap-6, 0x1.a4f4e2a1aee57p-4));
    q = tl_muladd(z, q, tl_muladd(x, 0x1.45f306dc9c8b3p-1, 0x1.20dd750429b6dp+0));
    return x * q;
}

static inline float tl_erf32(float x)
{
    double a = tl_clamp64((double)tl_abs32(x), 0.0, 3.93);
    tl_exp_parts32 e = tl_exp_split32(-tl_erf_exponent32(a));
    double s = tl_double_of(TL_ONE64 + e.k52);
    return tl_sign32((float)(s * e.p + (s - 1.0)), x);
}

#endif
