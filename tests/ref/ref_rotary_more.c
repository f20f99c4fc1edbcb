/* Tables by position, half-width tables, tables scaled for long contexts (8.5, 8.6). */
#include "tests/ref/ref.h"

/* 8.5: the row of a full table (positions, d) for the position id, spread over x's shape: ids (b,
 * s) or (s); seq is x's dim of positions, the batch is axis 0, or axis 1 where seq is 0. */
ref_tensor ref_rotary_rows(const ref_tensor *table, const ref_tensor *x, const ref_tensor *ids,
                           int seq)
{
    ref_tensor shape = *x;
    int64_t d = table->dim[1], s = x->dim[seq];
    shape.dim[x->ndim - 1] = d;
    ref_tensor y = ref_like(&shape, table->dtype);
    for (int64_t i = 0; i < ref_numel(&y); i++) {
        int64_t ix[8] = {0};
        ref_unflatten(y.ndim, y.dim, i, ix);
        int64_t sample = ids->ndim == 2 ? ix[seq == 0 ? 1 : 0] : 0;
        int64_t id = ref_get_i64(ids, sample * s + ix[seq]);
        ref_check(id >= 0 && id < table->dim[0], "rotary: position out of the table");
        ref_set(&y, i, ref_get(table, id * d + ix[y.ndim - 1]));
    }
    return y;
}

/* 8.5: (h, h) for half; h_0, h_0, h_1, h_1, ... for interleaved. */
ref_tensor ref_rotary_widen(const ref_tensor *half, ref_pairing pairing)
{
    ref_tensor shape = *half;
    int64_t n = half->dim[half->ndim - 1];
    shape.dim[half->ndim - 1] = 2 * n;
    ref_tensor y = ref_like(&shape, half->dtype);
    for (int64_t i = 0; i < ref_numel(&y); i++) {
        int64_t row = i / (2 * n), column = i % (2 * n);
        ref_set(&y, i, ref_get(half, row * n + (pairing == REF_HALF ? column % n : column / 2)));
    }
    return y;
}

/* 8.6 */
static double scaled(double f, const ref_rotary_scaling *s)
{
    double wave = 0x1.921fb54442d18p+2 / f;
    if (wave < s->original / s->high)
        return f;
    if (wave > s->original / s->low)
        return f / s->factor;
    double m = ((s->original / wave) - s->low) / (s->high - s->low);
    return ((1 - m) * (f / s->factor)) + (m * f);
}

/* 8.3, with f' in the place of f. */
void ref_rotary_table_scaled(int64_t first, int64_t n, int64_t rotated, double base,
                             ref_pairing pairing, const ref_rotary_scaling *s, ref_tensor *r1,
                             ref_tensor *r2)
{
    *r1 = ref_new(REF_F32, 2, (int64_t[]){n, rotated});
    *r2 = ref_new(REF_F32, 2, (int64_t[]){n, rotated});
    for (int64_t e = 0; e < n * rotated; e++) {
        int64_t i = e % rotated, k = pairing == REF_HALF ? i % (rotated / 2) : i / 2;
        double f = ref_exp1(REF_F64,
                            -((double)(2 * k) / (double)rotated) * ref_log1(REF_F64, base));
        double angle = (double)(first + e / rotated) * scaled(f, s);
        ref_set(r1, e, ref_cos1(REF_F64, angle));
        ref_set(r2, e, ref_sin1(REF_F64, angle));
    }
}
