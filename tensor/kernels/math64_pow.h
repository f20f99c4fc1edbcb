/* math64_pow.h: pow, square roots and constant powers in f64.
 *
 * Method: |x|^y = e^(y log|x|), the logarithm as hi + lo good to 2^-66 (math64_log.h),
 *         so that even a product near 745 errs by less than 2^-56 of the result. The
 *         constant powers are products and quotients corrected by one fma residual.
 * Error:  sqrt, powers -1, 1/2 and 2 IEEE, the rest under 1 ULP.
 * Names:  powm2 is x^-2, pow3h x^(3/2): m is minus, h is halves.
 * Edges:  C99 F.9.4.4 (IEC 60559's pow).
 * Proof:  tests/test_math.c.
 */
#ifndef TL_KERNELS_MATH64_POW_H
#define TL_KERNELS_MATH64_POW_H

#include "tensor/kernels/math64_exp.h"
#include "tensor/kernels/math64_log.h"

#define TL_INF64 tl_double_of(0x7ff0000000000000u)

static inline double tl_sqrt64(double x) { return __builtin_sqrt(x); }

static inline double tl_rsqrt64(double x)
{
    double q = 1.0 / __builtin_sqrt(x);
    tl_dd h = tl_exact_product(x, q); /* x q^2 should be 1 */
    double rest = tl_fma(-h.hi, q, 1.0) - h.lo * q;
    double y = q + 0.5 * q * rest;
    return ((x > 0.0) & (x < TL_INF64)) ? y : q;
}

static inline double tl_powm2_64(double x)
{
    double q = 1.0 / x, p = q * q;
    double lo = tl_fma(-q, x, 1.0) * q;
    int small = tl_abs64(q) < 0x1p-500; /* scaled, lest the correction underflow */
    double up = small ? 0x1p64 : 1.0, down = small ? 0x1p-128 : 1.0;
    q *= up;
    double y = tl_fma(q, q, 2.0 * q * (lo * up)) * down;
    return ((p > 0.0) & (p < TL_INF64)) ? y : p;
}

static inline double tl_powm1_64(double x) { return 1.0 / x; }

static inline double tl_powm1h_64(double x)
{
    double y = tl_rsqrt64(x + 0.0);
    return x == -TL_INF64 ? 0.0 : y;
}

static inline double tl_pow1h_64(double x)
{
    double y = __builtin_sqrt(x + 0.0);
    return x == -TL_INF64 ? TL_INF64 : y;
}

static inline double tl_pow3h_64(double x)
{
    double d = x + 0.0;
    double s = __builtin_sqrt(d);
    double lo = tl_fma(-s, s, d) / (2.0 * s);
    double p = d * s;
    int small = d < 0x1p-600;
    double up = small ? 0x1p128 : 1.0, down = small ? 0x1p-128 : 1.0;
    double y = tl_fma(d * up, s, (d * up) * lo) * down;
    y = ((p > 0.0) & (p < TL_INF64)) ? y : p;
    return x == -TL_INF64 ? TL_INF64 : y;
}

static inline double tl_pow2_64(double x) { return x * x; }

static inline double tl_pow3_64(double x)
{
    double p = x * x * x;
    int small = tl_abs64(x) < 0x1p-300;
    double v = x * (small ? 0x1p128 : 1.0), down = small ? 0x1p-384 : 1.0;
    tl_dd h = tl_exact_product(v, v);
    double y = tl_fma(h.hi, v, h.lo * v) * down;
    return tl_abs64(p) < TL_INF64 ? y : p;
}

/* Whether y is an integer: doubles from 2^52 on all are. */
static inline int tl_is_integer64(double y)
{
    double a = tl_abs64(y);
    return (a >= 0x1p52) | ((a + 0x1p52) - 0x1p52 == a);
}

/* What pow needs to know of its exponent y: loops over x find it out once. */
typedef struct {
    double y;
    uint64_t sign;        /* the sign bit if y is odd */
    double no_root_below; /* x below this (but -inf) gives NaN: 0, or -inf if y is whole */
    double minus_inf;     /* (-inf)^y */
    double one_at;        /* x = 1, and x = -1 if y is infinite, give 1 */
    uint64_t keep, fixed; /* y = 0 gives 1 for every x: no bit is kept, 1's bits are put */
} tl_pow_exponent;

static inline tl_pow_exponent tl_pow_exponent_of(double y)
{
    int whole = tl_is_integer64(y);
    int odd = whole & (tl_abs64(y) < 0x1p53) & !tl_is_integer64(0.5 * y);
    uint64_t sign = odd ? TL_SIGN64 : 0;
    tl_pow_exponent e = {y,
                         sign,
                         whole ? -TL_INF64 : 0.0,
                         tl_double_of(tl_bits64(y < 0.0 ? 0.0 : TL_INF64) | sign),
                         tl_abs64(y) == TL_INF64 ? -1.0 : 1.0,
                         y == 0.0 ? 0 : ~(uint64_t)0,
                         y == 0.0 ? TL_ONE64 : 0};
    return e;
}

/* Inlined by force: compilers find it too long, and a call in a loop is not vectorised. */
static inline __attribute__((always_inline)) double tl_pow_by64(double x, tl_pow_exponent e)
{
    double a = tl_abs64(x);
    tl_dd l = tl_log_sum64(a);
    l.hi = a == 0.0 ? -TL_INF64 : l.hi;
    l.hi = a == TL_INF64 ? TL_INF64 : l.hi;
    tl_dd p = tl_exact_product(e.y, l.hi);
    p.lo += e.y * l.lo;
    double r = tl_exp_sum64(p);
    r = tl_double_of(tl_bits64(r) | (tl_bits64(x) & e.sign));
    r = x < e.no_root_below ? tl_double_of(0x7ff8000000000000u) : r;
    r = x == -TL_INF64 ? e.minus_inf : r;
    r = x != x ? x : r;
    r = x == 1.0 ? 1.0 : r;
    r = x == e.one_at ? 1.0 : r;
    return tl_double_of((tl_bits64(r) & e.keep) | e.fixed);
}

static inline double tl_pow64(double x, double y) { return tl_pow_by64(x, tl_pow_exponent_of(y)); }

#endif
