/* rotary_table.c: cos and sin by position in deterministic f64 arithmetic (NUMERICS 8.3). */
#include "ops/build.h"
#include "tensor/kernels/math64.h"

static __attribute__((noinline)) void fill(int64_t first, int64_t n, int64_t dim, double base, tl_rotary_pairing pairing, float *r1, float *r2)
{
    double log_base = tl_log64(base);
    for (int64_t k = 0; k < dim / 2; k++) {
        double f = tl_exp64(-((double)(2 * k) / (double)dim) * log_base);
        for (int64_t p = 0; p < n; p++) {
            double angle = (double)(first + p) * f;
            float c = (float)tl_cos64(angle), s = (float)tl_sin64(angle);
            int64_t i = p * dim + (pairing == TL_ROTARY_HALF ? k : 2 * k), j = i + (pairing == TL_ROTARY_HALF ? dim / 2 : 1);
            r1[i] = r1[j] = c;
            r2[i] = r2[j] = s;
        }
    }
}

tl_status tl_rotary_table(int64_t first, int64_t n, int64_t dim, double base, tl_rotary_pairing pairing, float *r1, float *r2)
{
    if (n < 0 || dim < 2 || dim % 2 != 0 || !(base > 0) || (pairing != TL_ROTARY_HALF && pairing != TL_ROTARY_INTERLEAVED))
        return TL_EDOMAIN;
    tl_fpenv saved = tl_fpenv_enter(); /* the arithmetic is in a function of its own: it cannot move out */
    fill(first, n, dim, base, pairing, r1, r2);
    tl_fpenv_leave(saved);
    return TL_OK;
}
