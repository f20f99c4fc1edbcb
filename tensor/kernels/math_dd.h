/* math_dd.h: numbers kept as a sum of two doubles, for the f64 elementary functions.
 *
 * Sums and products whose rounding error is itself a double; hi + lo then carries
 * about 100 bits. Fixed sequences of + - * / fma: the same bits at every level.
 * Source: Dekker, "A floating-point technique for extending the available precision",
 * Numer. Math. 18, 1971; Knuth, TAOCP 2, 4.2.2 (the exact sum).
 */
#ifndef TL_KERNELS_MATH_DD_H
#define TL_KERNELS_MATH_DD_H

#include "tensor/kernels/fma.h"
#include "tensor/kernels/math_bits.h"

/* A value as an unevaluated sum, |lo| at most about an ulp of hi. */
typedef struct {
    double hi, lo;
} tl_dd;

/* a + b exactly, for |a| >= |b| or a = 0. */
static inline tl_dd tl_fast_sum(double a, double b)
{
    double s = a + b;
    tl_dd r = {s, b - (s - a)};
    return r;
}

/* a + b exactly. */
static inline tl_dd tl_exact_sum(double a, double b)
{
    double s = a + b, t = s - a;
    tl_dd r = {s, (a - (s - t)) + (b - t)};
    return r;
}

/* a * b exactly, short of underflow. */
static inline tl_dd tl_exact_product(double a, double b)
{
    double p = a * b;
    tl_dd r = {p, tl_fma(a, b, -p)};
    return r;
}

/* a b, both sums: error about 2^-104. */
static inline tl_dd tl_dd_product(tl_dd a, tl_dd b)
{
    tl_dd p = tl_exact_product(a.hi, b.hi);
    p.lo += a.hi * b.lo + a.lo * b.hi;
    return p;
}

/* a / b as hi + lo. */
static inline tl_dd tl_dd_quotient(tl_dd a, tl_dd b)
{
    double v = 1.0 / b.hi, q = a.hi * v;
    double rest = tl_fma(-q, b.hi, a.hi) + (a.lo - q * b.lo);
    return tl_fast_sum(q, rest * v);
}

#endif
