/* rotary_table: the tables of rotary, cos and sin, and rotary with their rows chosen by position
 * Shape:  rotary_widen: half (..., d/2) -> (..., d), each value at both elements of its pair;
 *         positions: offset (b), start (b) or none -> (b, n), offset[i] + j, or max(0, offset[i] +
 *         j - start[i]); rotary_ids, rotary_offsets: as x, with full tables (positions, d)
 * Dtype:  tables any float; positions, ids and offsets i64
 * Bits:   tables in deterministic f64 arithmetic, rounded once (NUMERICS 8.3, 8.6); rows copied
 * VJP:    rotary_ids and rotary_offsets are made of embedding and rotary (NUMERICS 8.5),
 *         rotary_widen of concat or stack; positions are not differentiable
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN TL_EINDEX; embedding reports a position outside the table
 */
#include "ops/build.h"
#include "tensor/kernels/math64.h"

/* Llama 3's frequencies: waves shorter than original/high stay as they are, waves longer than
 * original/low are slowed by the factor, and in between the two are mixed. */
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

/* r1 and r2 are f32, or f64 if wide. Not inlined, so that every operation stays between
 * tl_fpenv_enter and tl_fpenv_leave. */
static __attribute__((noinline)) void fill(int64_t first, int64_t n, int64_t dim, double base,
                                           tl_rotary_pairing pairing,
                                           const tl_rotary_scaling *scaling, bool wide, void *r1,
                                           void *r2)
{
    const double log_base = tl_log64(base);
    const bool half = pairing == TL_ROTARY_HALF;
    for (int64_t k = 0; k < dim / 2; k++) {
        double f = tl_exp64(-((double)(2 * k) / (double)dim) * log_base);
        if (scaling != NULL)
            f = scaled(f, scaling);
        for (int64_t p = 0; p < n; p++) {
            double angle = (double)(first + p) * f, c = tl_cos64(angle), s = tl_sin64(angle);
            int64_t i = p * dim + (half ? k : 2 * k), j = i + (half ? dim / 2 : 1);
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
    if (n < 0 || dim < 2 || dim % 2 != 0 || !(base > 0) || base - base != 0 ||
        (pairing != TL_ROTARY_HALF && pairing != TL_ROTARY_INTERLEAVED))
        return TL_EDOMAIN;
    if (scaling != NULL &&
        !(scaling->factor > 0 && scaling->low_freq_factor > 0 && scaling->original > 0 &&
          scaling->high_freq_factor > scaling->low_freq_factor))
        return TL_EDOMAIN;
    int64_t overflow;
    if (n == 0)
        return TL_OK;
    if (r1 == NULL || r2 == NULL || __builtin_add_overflow(first, n, &overflow) ||
        __builtin_mul_overflow(n, dim, &overflow))
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
                            tl_rotary_pairing pairing, const tl_rotary_scaling *scaling, double *r1,
                            double *r2)
{
    return table(first, n, dim, base, pairing, scaling, true, r1, r2);
}

/* ---- positions ---- */

typedef struct {
    int64_t n;
} positions_attrs;

static const tl_attr positions_schema[] = {TL_FIELD(positions, n, I64), {0}};

static tl_status positions_shape(tl_call *c)
{
    const tl_array *offset = c->in[0];
    int64_t n = ((const positions_attrs *)c->attrs)->n;
    if (offset->dtype != TL_I64)
        return tl_call_fail(c, TL_EDTYPE, "the offsets are %s; I64 is needed",
                            tl_dtype_name(offset->dtype));
    if (c->in[1] != NULL && (c->in[1]->dtype != TL_I64 || !tl_array_same_shape(c->in[1], offset)))
        return tl_call_fail(c, TL_ESHAPE,
                            "starts of shape %s, %s, for %lld offsets; as many I64 are needed",
                            TL_TEXT(c->in[1]), tl_dtype_name(c->in[1]->dtype),
                            (long long)tl_array_count(offset));
    if (offset->ndim != 1)
        return tl_call_fail(c, TL_ESHAPE, "offsets of shape %s; (b) is needed", TL_TEXT(offset));
    c->out[0] = *offset;
    c->out[0].dim[c->out[0].ndim++] = n;
    return TL_OK;
}

static tl_status positions_forward(tl_call *c)
{
    int64_t b = c->in[0]->dim[0], n = ((const positions_attrs *)c->attrs)->n, *y = c->out[0].data;
    for (int64_t i = 0; i < b; i++) {
        int64_t offset = tl_i64_at(c->in[0], i), first, last,
                start = c->in[1] != NULL ? tl_i64_at(c->in[1], i) : 0;
        if (__builtin_sub_overflow(offset, start, &first) ||
            __builtin_add_overflow(first, n - 1, &last))
            return tl_call_fail(c, TL_EINDEX,
                                "%lld positions from %lld - %lld of sample %lld overflow 64 bits",
                                (long long)n, (long long)offset, (long long)start, (long long)i);
        for (int64_t k = 0; k < n; k++)
            y[i * n + k] = first + k < 0 && c->in[1] != NULL ? 0 : first + k;
    }
    return TL_OK;
}

const tl_op tl_op_positions = {TL_NAMED(positions, 2, 1),    .optional = TL_BIT(1),
                               .traits = TL_NONDIFF,         .shape = positions_shape,
                               .forward = positions_forward, TL_ATTRS(positions),
                               .batch = tl_first_axis};

tl_tensor tl_positions_at(tl_at at, tl_tensor offset, tl_tensor start, int64_t n)
{
    return tl_apply1(at, &tl_op_positions, &(positions_attrs){n}, (tl_tensor[]){offset, start}, 2);
}

/* ---- tables by position ---- */

/* ids, (b, s) or (s), with the rank of x's leading dims: 1 in all but the dims of b and s. The
 * batch is axis 0, or axis 1 if seq is 0. */
static tl_tensor placed(tl_at at, tl_tensor x, tl_tensor ids, int seq)
{
    tl_shape sx = tl_shape_of(at.tape, x), si = tl_shape_of(at.tape, ids),
             to = {.ndim = sx.ndim - 1};
    const int batch = seq == 0 ? 1 : 0;
    const bool ok = seq >= 0 && seq < sx.ndim - 1 &&
                    (si.ndim == 1 ||
                     (si.ndim == 2 && batch < sx.ndim - 1 && si.dim[0] == sx.dim[batch]));
    if (!ok || si.dim[si.ndim - 1] != sx.dim[seq])
        return tl_reject(at, TL_ESHAPE,
                         "rotary_ids: position ids %s for x %s with its sequence in dim %d",
                         TL_TEXT_OF(&si), TL_TEXT_OF(&sx), seq);
    for (int i = 0; i < to.ndim; i++)
        to.dim[i] = i == seq ? sx.dim[seq] : i == batch && si.ndim == 2 ? si.dim[0] : 1;
    return tl_reshape_at(at, seq == 0 && si.ndim == 2 ? tl_transpose_at(at, ids, 0, 1) : ids, to);
}

tl_tensor tl_rotary_ids_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2, tl_tensor ids,
                           int seq, tl_rotary_pairing pairing)
{
    tl_tensor where = placed(at, x, ids, tl_dim_from_front(seq, tl_shape_of(at.tape, x).ndim));
    return tl_rotary_at(at, x, tl_embedding_at(at, r1, where), tl_embedding_at(at, r2, where),
                        pairing);
}

tl_tensor tl_rotary_offsets_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2, tl_tensor offset,
                               int seq, tl_rotary_pairing pairing)
{
    const tl_shape s = tl_shape_of(at.tape, x);
    const int d = tl_dim_of(at, "rotary_offsets", x, seq);
    if (d < 0)
        return TL_NONE;
    const tl_tensor ids = tl_positions_at(at, offset, TL_NONE, s.dim[d]);
    return tl_rotary_ids_at(at, x, r1, r2, ids, d, pairing);
}

tl_tensor tl_rotary_widen_at(tl_at at, tl_tensor half, tl_rotary_pairing pairing)
{
    tl_shape s = tl_shape_of(at.tape, half);
    if (pairing == TL_ROTARY_HALF)
        return tl_concat_at(at, (tl_tensor[]){half, half}, 2, -1);
    if (pairing != TL_ROTARY_INTERLEAVED || s.ndim == 0)
        return tl_reject(at, TL_EDOMAIN, "rotary_widen: pairing %d for a table of %d dims",
                         (int)pairing, s.ndim);
    s.dim[s.ndim - 1] *= 2;
    return tl_reshape_at(at, tl_stack_at(at, (tl_tensor[]){half, half}, 2, -1), s);
}
