/* ref_gemm.c: see ref_gemm.h. */
#include "ref_gemm.h"

#include <math.h>

static double widen(uint16_t bits, int exponent_bits, int fraction_bits)
{
    const int top = (1 << exponent_bits) - 1, bias = top >> 1;
    const int e = bits >> fraction_bits & top;
    const int f = bits & ((1 << fraction_bits) - 1);
    const double sign = bits >> 15 ? -1 : 1;
    if (e == top)
        return f ? (double)NAN : sign * (double)INFINITY;
    if (e == 0)
        return sign * ldexp(f, 1 - bias - fraction_bits);
    return sign * ldexp(f + (1 << fraction_bits), e - bias - fraction_bits);
}

double ref_h_to_f64(uint16_t bits) { return widen(bits, 5, 10); }

double ref_b_to_f64(uint16_t bits) { return widen(bits, 8, 7); }

/* infinity stands at the place the next power of two would have */
static uint16_t narrow(double x, double (*value)(uint16_t), uint16_t infinity, double next_power)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double magnitude = fabs(x);
    uint16_t low = 0, high = infinity;
    if (isnan(x))
        return (uint16_t)(infinity + 1);
    if (magnitude >= next_power)
        return (uint16_t)(infinity | sign);
    while (high - low > 1) {
        const uint16_t middle = (uint16_t)((low + high) / 2);
        if (value(middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    const double below = magnitude - value(low);
    const double above = (high == infinity ? next_power : value(high)) - magnitude;
    const int up = above < below || (above == below && high % 2 == 0);
    return (uint16_t)((up ? high : low) | sign);
}

uint16_t ref_f64_to_h(double x) { return narrow(x, ref_h_to_f64, 0x7c00, 0x1p16); }

uint16_t ref_f64_to_b(double x) { return narrow(x, ref_b_to_f64, 0x7f80, 0x1p128); }

static double at(ref_mat m, long i, long j)
{
    const long x = i * m.rs + j * m.cs;
    switch (m.type) {
    case 's': return (double)((const float *)m.data)[x];
    case 'h': return ref_h_to_f64(((const uint16_t *)m.data)[x]);
    case 'b': return ref_b_to_f64(((const uint16_t *)m.data)[x]);
    default: return ((const double *)m.data)[x];
    }
}

void ref_gemm(long m, long n, long k, ref_mat a, ref_mat b, void *c, long rsc, long csc, int f64,
              int accumulate)
{
    for (long i = 0; i < m; i++)
        for (long j = 0; j < n; j++) {
            if (f64) {
                double *out = (double *)c + i * rsc + j * csc, acc = accumulate ? *out : 0.0;
                for (long p = 0; p < k; p++)
                    acc = fma(at(a, i, p), at(b, p, j), acc);
                *out = acc + 0.0;
            } else {
                float *out = (float *)c + i * rsc + j * csc, acc = accumulate ? *out : 0.0f;
                for (long p = 0; p < k; p++)
                    acc = fmaf((float)at(a, i, p), (float)at(b, p, j), acc);
                *out = acc + 0.0f;
            }
        }
}
