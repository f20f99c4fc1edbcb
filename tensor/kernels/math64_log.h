/* math64_log.h: log, log2, log1p in f64, and the two-part logarithm behind pow.
 *
 * Method: x = 2^e (1 + f), s = f / (2 + f), z = s^2 and
 *           log x = e ln2 + 2 s + s z (2/3 + z (2/5 + z R(z)))
 *         with every term down to 2/5 kept as a sum hi + lo; R is minimax (2^-80
 *         relative to the whole). The sum of the parts errs below 2^-66.
 * Error:  under 1 ULP (seen: 0.5001).
 * Proof:  tests/test_math.c.
 */
#ifndef TL_KERNELS_MATH64_LOG_H
#define TL_KERNELS_MATH64_LOG_H

#include "tensor/kernels/math_dd.h"

/* log(1 + f) for sqrt(1/2) <= 1 + f < sqrt(2). */
static inline tl_dd tl_log_near1(tl_dd f)
{
    tl_dd d = tl_fast_sum(2.0, f.hi);
    d.lo += f.lo;
    tl_dd s = tl_dd_quotient(f, d);
    tl_dd z = tl_dd_product(s, s);
    double x = z.hi, w = x * x;
    double r = (0x1.e205420718fddp-4 + x * 0x1.ab5015f49bf2cp-4) + w * 0x1.c07393e2092e2p-4;
    r = (0x1.3b13b28225c2cp-3 + x * 0x1.1110afb47ae95p-3) + w * r;
    r = (0x1.c71c71c71f257p-3 + x * 0x1.745d1743475bfp-3) + w * r;
    r = 0x1.2492492492489p-2 + x * r;
    tl_dd a = tl_fast_sum(0x1.999999999999ap-2, x * r);
    a.lo += -0x1.999999999999ap-56;
    tl_dd b = tl_dd_product(z, a);
    tl_dd c = tl_fast_sum(0x1.5555555555555p-1, b.hi);
    c.lo += b.lo + 0x1.5555555555555p-55;
    tl_dd t = tl_dd_product(s, tl_dd_product(z, c));
    tl_dd y = tl_fast_sum(2.0 * s.hi, t.hi);
    y.lo += t.lo + 2.0 * s.lo;
    return y;
}

/* e ln2 + y. */
static inline tl_dd tl_log_join(double e, tl_dd y)
{
    tl_dd h = tl_fast_sum(e * 0x1.62e42fefa38p-1, y.hi);
    return tl_fast_sum(h.hi, h.lo + (y.lo + e * 0x1.ef35793c7673p-45));
}

/* log x for 0 < x < inf, subnormals too. */
static inline tl_dd tl_log_sum64(double x)
{
    int tiny = x < 0x1p-1022;
    tl_log_parts p = tl_log_split(tiny ? x * 0x1p54 : x);
    tl_dd f = {p.f, 0};
    return tl_log_join(tiny ? p.e - 54.0 : p.e, tl_log_near1(f));
}

static inline double tl_log_edges64(double x, double y)
{
    y = x < tl_double_of(0x7ff0000000000000u) ? y : x;
    y = x < 0.0 ? tl_double_of(0x7ff8000000000000u) : y;
    return x == 0.0 ? tl_double_of(0xfff0000000000000u) : y;
}

static inline double tl_log64(double x)
{
    tl_dd y = tl_log_sum64(x);
    return tl_log_edges64(x, y.hi + y.lo);
}

static inline double tl_log2_64(double x)
{
    int tiny = x < 0x1p-1022;
    tl_log_parts p = tl_log_split(tiny ? x * 0x1p54 : x);
    tl_dd f = {p.f, 0}, c = {0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56};
    tl_dd y = tl_dd_product(tl_log_near1(f), c);
    tl_dd h = tl_fast_sum(tiny ? p.e - 54.0 : p.e, y.hi);
    return tl_log_edges64(x, h.hi + (h.lo + y.lo));
}

static inline double tl_log1p64(double x)
{
    tl_dd u = tl_exact_sum(1.0, x);
    tl_log_parts p = tl_log_split(u.hi);
    double down = tl_double_of((2046 - tl_bits64(p.e + (0x1p52 + 1023.0))) << 52); /* 2^-e */
    /* At e = 0, f is x itself; far up, 1 + x no longer differs from x. */
    tl_dd f = {p.e == 0.0 ? x : p.f, ((p.e == 0.0) | (p.e > 200.0)) ? 0.0 : u.lo * down};
    tl_dd y = tl_log_join(p.e, tl_log_near1(f));
    double r = x < tl_double_of(0x7ff0000000000000u) ? y.hi + y.lo : x;
    r = x < -1.0 ? tl_double_of(0x7ff8000000000000u) : r;
    r = x == -1.0 ? tl_double_of(0xfff0000000000000u) : r;
    return tl_abs64(x) < 0x1p-54 ? x : r;
}

#endif
