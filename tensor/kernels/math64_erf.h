/* math64_erf.h: erf in f64.
 *
 * Method: erf x = 1 - e^-Q(x), Q = -log erfc x = x (2/sqrt(pi) + x P(x)) for 0 <= x <= 5.95,
 *         as in math32_erf.h. The sum in parentheses and its product by x are kept
 *         as hi + lo; P's fit is weighted by what an error in Q does to erf (2^-61).
 *         Beyond 5.95 erf rounds to 1.
 * Error:  under 1 ULP (seen: 0.75).
 * Proof:  tests/test_math.c.
 */
#ifndef TL_KERNELS_MATH64_ERF_H
#define TL_KERNELS_MATH64_ERF_H

#include "tensor/kernels/math64_exp.h"

/* -log(erfc(x)) for 0 <= x <= 5.95. */
static inline tl_dd tl_erf_exponent64(double x)
{
    double z = x * x;
    double q = -0x1.3f1a1507fb04dp-51 + x * 0x1.363ccc6a1aabfp-57;
    q = (-0x1.6a1ac61709feap-42 + x * 0x1.312f60b39c89bp-46) + z * q;
    q = (-0x1.7017de068cbf5p-35 + x * 0x1.2b9ebf08f694ep-38) + z * q;
    q = (-0x1.03cf5adc945b7p-29 + x * 0x1.5c6d164bafb28p-32) + z * q;
    q = (-0x1.23484030eabfap-25 + x * 0x1.34835f2c9bc2dp-27) + z * q;
    q = (-0x1.cc7fc6dacf45cp-23 + x * 0x1.ac86ee8fd6b54p-24) + z * q;
    q = (0x1.5433d2d6ac661p-23 + x * 0x1.1ac6c582bb4fcp-22) + z * q;
    q = (0x1.637d8d16de496p-19 + x * -0x1.9cf72b34d916bp-20) + z * q;
    q = (-0x1.f401c2619c07ap-16 + x * 0x1.dba4404a391a6p-19) + z * q;
    q = (0x1.b1f8d108a70d9p-16 + x * 0x1.0ea54e0356928p-14) + z * q;
    q = (0x1.bca672f43664cp-10 + x * -0x1.3564ea6903f58p-11) + z * q;
    q = (-0x1.3966859504237p-6 + x * -0x1.b6b683ab03f88p-13) + z * q;
    q = (0x1.45f306dc9c882p-1 + x * 0x1.a4f4e2a1b4d53p-4) + z * q;
    tl_dd s = tl_fast_sum(0x1.20dd750429b6dp+0, x * q);
    s.lo += 0x1.1ae3a914fed80p-56;
    tl_dd y = tl_exact_product(x, s.hi);
    y.lo += x * s.lo;
    return y;
}

static inline double tl_erf64(double x)
{
    double a = tl_abs64(x);
    tl_dd e = tl_erf_exponent64(a > 5.95 ? 5.95 : a);
    e.hi = -e.hi;
    e.lo = -e.lo;
    tl_dd h = tl_expm1_half64(e);
    double y = -2.0 * (h.hi + h.lo);
    double near = tl_fma(a, 0x1.20dd750429b6dp+0, a * 0x1.1ae3a914fed80p-56);
    return tl_sign64(a < 0x1p-28 ? near : y, x);
}

#endif
