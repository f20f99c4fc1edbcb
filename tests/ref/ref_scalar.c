/* Rounding, the half formats, fma, maximum, lanes. */
#include "tests/ref/ref.h"

#include <math.h>

/* Words of NUMERICS.md: compute type. */
ref_dtype ref_compute(ref_dtype storage)
{
    ref_check(storage != REF_I64 && storage != REF_BOOL, "a floating dtype wanted");
    return storage == REF_F64 ? REF_F64 : REF_F32;
}

/* f16: 11 significant bits, normal exponents -14..15. bf16: 8 bits, -126..127. */
static int half_precision(ref_dtype dtype) { return dtype == REF_F16 ? 11 : 8; }

static int half_emin(ref_dtype dtype) { return dtype == REF_F16 ? -14 : -126; }

static int half_emax(ref_dtype dtype) { return dtype == REF_F16 ? 15 : 127; }

/* To nearest even on the grid of the dtype, whose spacing stops shrinking below 2^emin. */
static double round_half(ref_dtype dtype, double v)
{
    if (v == 0 || isnan(v) || isinf(v))
        return v;
    int e = ilogb(v);
    if (e < half_emin(dtype))
        e = half_emin(dtype);
    int spacing = e - (half_precision(dtype) - 1);
    double r = ldexp(nearbyint(ldexp(v, -spacing)), spacing);
    if (fabs(r) >= ldexp(1.0, half_emax(dtype) + 1))
        return copysign((double)INFINITY, v);
    return r;
}

/* 1.1 */
double ref_round(ref_dtype dtype, double v)
{
    switch (dtype) {
    case REF_F64: return v;
    case REF_F32: return (double)(float)v;
    case REF_F16:
    case REF_BF16: return round_half(dtype, v);
    case REF_I64:
    case REF_BOOL: break;
    }
    ref_check(0, "rounding to a floating dtype only");
    return v;
}

/* sign, exponent + bias, fraction; exponent field 0 for zeros and subnormals, all ones for inf and
 * NaN. */
uint16_t ref_half_bits(ref_dtype dtype, double v)
{
    int fraction_bits = half_precision(dtype) - 1;
    int emin = half_emin(dtype), top = half_emax(dtype) + 1 - emin + 1;
    double r = round_half(dtype, v), a = fabs(r);
    int sign = signbit(v) ? 0x8000 : 0;
    if (isnan(v))
        return (uint16_t)(top << fraction_bits | 1 << (fraction_bits - 1));
    if (isinf(r))
        return (uint16_t)(sign | top << fraction_bits);
    if (a < ldexp(1.0, emin))
        return (uint16_t)(sign | (int)ldexp(a, fraction_bits - emin));
    int e = ilogb(a);
    int fraction = (int)(ldexp(a, fraction_bits - e)) - (1 << fraction_bits);
    return (uint16_t)(sign | (e - emin + 1) << fraction_bits | fraction);
}

double ref_half_value(ref_dtype dtype, uint16_t bits)
{
    int fraction_bits = half_precision(dtype) - 1;
    int emin = half_emin(dtype), top = half_emax(dtype) + 1 - emin + 1;
    int sign = bits >> 15, field = (bits & 0x7fff) >> fraction_bits,
        fraction = bits & ((1 << fraction_bits) - 1);
    double a;
    if (field == top)
        a = fraction ? (double)NAN : (double)INFINITY;
    else if (field == 0)
        a = ldexp(fraction, emin - fraction_bits);
    else
        a = ldexp((1 << fraction_bits) + fraction, field - 1 + emin - fraction_bits);
    return sign ? -a : a;
}

/* Words of NUMERICS.md, 1.2 */
double ref_fma(ref_dtype c, double x, double y, double z)
{
    if (c == REF_F64)
        return fma(x, y, z);
    return (double)fmaf((float)x, (float)y, (float)z);
}

/* 4.2 */
double ref_max2(double x, double y)
{
    if (isnan(x))
        return x;
    if (isnan(y))
        return y;
    if (x == 0 && y == 0)
        return signbit(x) ? y : x;
    return x > y ? x : y;
}

double ref_min2(double x, double y)
{
    if (isnan(x))
        return x;
    if (isnan(y))
        return y;
    if (x == 0 && y == 0)
        return signbit(x) ? x : y;
    return x < y ? x : y;
}

/* 3.1: L = 32 lanes start at +0. */
void ref_lanes_start(ref_lanes *s, ref_dtype c)
{
    s->c = c;
    for (int i = 0; i < 32; i++)
        s->l[i] = 0.0;
}

/* 3.1: term i is added to lane i mod 32. */
void ref_lanes_add(ref_lanes *s, int64_t i, double term)
{
    s->l[i % 32] = ref_round(s->c, s->l[i % 32] + term);
}

/* 3.1: for w = 16, 8, 4, 2, 1: l[i] = l[i] + l[i+w] for i < w. The sum is l[0] + 0. */
double ref_lanes_sum(const ref_lanes *s)
{
    double l[32];
    for (int i = 0; i < 32; i++)
        l[i] = s->l[i];
    for (int w = 16; w >= 1; w /= 2)
        for (int i = 0; i < w; i++)
            l[i] = ref_round(s->c, l[i] + l[i + w]);
    return l[0] + 0.0;
}
