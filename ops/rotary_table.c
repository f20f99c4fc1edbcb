/* rotary_table.c: cos and sin by position in deterministic f64 arithmetic (NUMERICS 8.3, 8.6). */
#include "ops/build.h"
#include "tensor/kernels/math64.h"

/* Llama 3's frequencies: waves shorter than original/high stay, those longer than original/low are
 * slowed by the factor, and between them the two are mixed. */
static double scaled(double f, const tl_rotary_scaling *s)
{
    double wave = 0x1.921fb54442d18p+2 / f; /* 2 pi */
    if (wave < s->original / s->high_freq_factor)
        return f;
    if (wave > s->original / s->low_freq_factor)
        return f / s->factor;
    double mix = (s->original / wave - s->low_freq_factor) /
                 (s->high_freq_factor - s->low_freq_factor);
    return (1 - mix) * (f / s->factor) + mix * f;
}

/* r1 and r2 are f32, or f64 where wide. A function of its own, so that no operation can move out of
 * the environment it is called in. */
static __attribute__((noinline)) void fill(int64_t first, int64_t n, int64_t dim, double base,
                                           tl_rotary_pairing pairing,
                                           const tl_rotary_scaling *scaling, bool wide, void *r1,
                                           void *r2)
{
    double log_base = tl_log64(base);
    for (int64_t k = 0; k < dim / 2; k++) {
        double f = tl_exp64(-((double)(2 * k) / (double)dim) * log_base);
        if (scaling != NULL)
            f = scaled(f, scaling);
        for (int64_t p = 0; p < n; p++) {
            double angle = (double)(first + p) * f, c = tl_cos64(angle), s = tl_sin64(angle);
            int64_t i = p * dim + (pairing == TL_ROTARY_HALF ? k : 2 * k),
                    j = i + (pairing == TL_ROTARY_HALF ? dim / 2 : 1);
            if (wide) {
                ((double *)r1)[i] = ((double *)r1)[j] = c;
                ((double *)r2)[i] = ((double *)r2)[j] = s;
            } else {
                ((float *)r1)[i] = ((float *)r1)[j] = (float)c;
                ((float *)r2)[i] = ((float *)r2)[j] = (float)s;
            }
        }
    }
}

static tl_status table(int64_t first, int64_t n, int64_t dim, double base,
                       tl_rotary_pairing pairing, const tl_rotary_scaling *scaling, bool wide,
                       void *r1, void *r2)
{
    if (n < 0 || dim < 2 || dim % 2 != 0 || !(base > 0) ||
        (pairing != TL_ROTARY_HALF && pairing != TL_ROTARY_INTERLEAVED))
        return TL_EDOMAIN;
    if (scaling != NULL &&
        !(scaling->factor > 0 && scaling->low_freq_factor > 0 && scaling->original > 0 &&
          scaling->high_freq_factor > scaling->low_freq_factor))
        return TL_EDOMAIN;
    int64_t last;
    if (n == 0)
        return TL_OK;
    if (r1 == NULL || r2 == NULL || __builtin_add_overflow(first, n, &last) ||
        __builtin_mul_overflow(n, dim, &last))
        return TL_EDOMAIN;
    tl_fpenv saved = tl_fpenv_enter();
    fill(first, n, dim, base, pairing, scaling, wide, r1, r2);
    tl_fpenv_leave(saved);
    return TL_OK;
}

tl_status tl_rotary_table_scaled(int64_t first, int64_t n, int64_t dim, double base,
                                 tl_rotary_pairing pairing, const tl_rotary_scaling *scaling,
                                 float *r1, float *r2)
{
    return table(first, n, dim, base, pairing, scaling, false, r1, r2);
}

tl_status tl_rotary_table(int64_t first, int64_t n, int64_t dim, double base,
                          tl_rotary_pairing pairing, float *r1, float *r2)
{
    return table(first, n, dim, base, pairing, NULL, false, r1, r2);
}

tl_status tl_rotary_table64(int64_t first, int64_t n, int64_t dim, double base,
                            tl_rotary_pairing pairing, double *r1, double *r2)
{
    return table(first, n, dim, base, pairing, NULL, true, r1, r2);
}
