/* triangle: arange, tril, triu, diagonal - compositions of positions, comparisons and views; and
 * the op causal_mask
 * Shape:  arange: (n), n = max(0, ceil((stop - start)/step)); tril, triu of x (..., m, n): as x;
 *         diagonal of x: its other dims, then the elements (i, i + offset) of two; causal_mask:
 *         (queries, keys), or (b, queries, keys) with ranges (b)
 * Dtype:  any
 * Bits:   arange: i*step + start, each in f64, then cast; elements copied, or +0 (NUMERICS 9.4)
 * VJP:    those of where and slice
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (a step of 0, more than 2^53 numbers)
 */
#include "ops/build.h"

/* first, first + 1, ... as i64 (n). */
static tl_tensor count(tl_at at, double first, int64_t n)
{
    tl_tensor from = tl_reshape_at(at, tl_fill_at(at, TL_I64, TL_SCALAR, first), TL_DIMS(1));
    return tl_reshape_at(at, tl_positions_at(at, from, TL_NONE, n), TL_DIMS(n));
}

/* Not inlined, so that the division stays between tl_fpenv_enter and tl_fpenv_leave. */
static __attribute__((noinline)) void count_of(double start, double stop, double step, double *n)
{
    *n = ceil((stop - start) / step);
}

tl_tensor tl_arange_at(tl_at at, tl_dtype dtype, double start, double stop, double step)
{
    double n;
    tl_fpenv saved = tl_fpenv_enter(); /* no op has set the rounding mode yet */
    count_of(start, stop, step, &n);
    tl_fpenv_leave(saved);
    if (step == 0 || !(n < 0x1p53))
        return tl_reject(at, TL_EDOMAIN, "arange: from %g to %g by %g%s", start, stop, step,
                         step == 0 ? "; the step must not be 0" : "");
    tl_tensor i = tl_cast_at(at, count(at, 0, n > 0 ? (int64_t)n : 0), TL_F64);
    return tl_cast_at(at, tl_shift_at(at, tl_scale_at(at, i, step), start), dtype);
}

/* x with +0 where drop(column, row + k) is true. */
static tl_tensor triangle(tl_at at, const char *name, tl_tensor x, int64_t k,
                          tl_tensor drop(tl_at, tl_tensor, tl_tensor))
{
    tl_shape s = tl_shape_of(at.tape, x);
    if (s.ndim < 2)
        return tl_reject(at, TL_ESHAPE, "%s: x has %d dims; two at least are needed", name, s.ndim);
    int64_t m = s.dim[s.ndim - 2], n = s.dim[s.ndim - 1];
    k = k < -m ? -m : k > n ? n : k;
    tl_tensor row = tl_reshape_at(at, count(at, (double)k, m), TL_DIMS(m, 1));
    return tl_masked_fill_at(at, x, drop(at, count(at, 0, n), row), 0);
}

tl_tensor tl_tril_at(tl_at at, tl_tensor x, int64_t k)
{
    return triangle(at, "tril", x, k, tl_gt_at);
}
tl_tensor tl_triu_at(tl_at at, tl_tensor x, int64_t k)
{
    return triangle(at, "triu", x, k, tl_lt_at);
}

tl_tensor tl_diagonal_at(tl_at at, tl_tensor x, int64_t offset, int dim1, int dim2)
{
    tl_shape s = tl_shape_of(at.tape, x), order = {.ndim = s.ndim};
    int64_t mask = tl_dims_of(at, "diagonal", x, TL_DIMS(dim1, dim2));
    if (mask <= 0) /* permute reports an unusable handle */
        return mask < 0 ? TL_NONE : tl_permute_at(at, x, order);
    int d1 = tl_dim_from_front(dim1, s.ndim), d2 = tl_dim_from_front(dim2, s.ndim), place = 0;
    for (int i = 0; i < s.ndim; i++)
        if (!(mask >> i & 1))
            order.dim[place++] = i;
    order.dim[s.ndim - 2] = d1;
    order.dim[s.ndim - 1] = d2;
    int64_t m = s.dim[d1], n = s.dim[d2];
    offset = offset < -m ? -m : offset > n ? n : offset;
    int64_t i = offset < 0 ? -offset : 0, j = offset < 0 ? 0 : offset,
            length = m - i < n - j ? m - i : n - j, first = i * n + j;
    /* In (..., m*n) the diagonal is every (n + 1)-th element from (i, j) on. */
    x = tl_permute_at(at, x, order);
    s = tl_shape_of(at.tape, x);
    s.ndim = order.ndim - 1;
    s.dim[s.ndim - 1] = m * n;
    return tl_slice_at(at, tl_reshape_at(at, x, s), -1, first,
                       length < 1 ? first : first + (length - 1) * (n + 1) + 1, n + 1);
}

/* ---- causal_mask(key_start, key_end): true where query i may see key j (NUMERICS 7) ---- */

typedef struct {
    int64_t queries, keys;
    bool full;
} mask_attrs;

static const tl_attr mask_schema[] = {TL_FIELD(mask, queries, I64),
                                      TL_FIELD(mask, keys, I64),
                                      TL_FIELD(mask, full, BOOL),
                                      {0}};

static tl_status mask_shape(tl_call *c)
{
    const mask_attrs *a = c->attrs;
    tl_shape s = TL_DIMS(a->queries, a->keys);
    if (a->queries < 0 || a->keys < 0)
        return tl_call_fail(c, TL_ESHAPE, "%lld queries, %lld keys", (long long)a->queries,
                            (long long)a->keys);
    for (int i = 0; i < 2; i++) {
        const tl_array *x = c->in[i], *first = c->in[0] != NULL ? c->in[0] : x;
        if (x == NULL)
            continue;
        if (x->dtype != TL_I64 || x->ndim != 1 || x->dim[0] != first->dim[0])
            return tl_call_fail(c, x->dtype != TL_I64 ? TL_EDTYPE : TL_ESHAPE,
                                "ranges of keys: one I64 for each sample is needed");
        s = TL_DIMS(x->dim[0], a->queries, a->keys);
    }
    c->out[0] = tl_array_make(TL_BOOL, &s, NULL);
    return TL_OK;
}

static tl_status mask_forward(tl_call *c)
{
    const mask_attrs *a = c->attrs;
    unsigned char *y = c->out[0].data;
    int64_t samples = c->out[0].ndim == 3 ? c->out[0].dim[0] : 1;
    for (int64_t b = 0; b < samples; b++) {
        int64_t start = c->in[0] != NULL ? tl_i64_at(c->in[0], b) : 0;
        int64_t end = c->in[1] != NULL ? tl_i64_at(c->in[1], b) : a->keys;
        if (start < 0 || end > a->keys || start > end)
            return tl_call_fail(
                c, TL_EINDEX,
                "sample %lld may see the keys from %lld up to %lld, of %lld that there are",
                (long long)b, (long long)start, (long long)end, (long long)a->keys);
        for (int64_t i = 0; i < a->queries; i++)
            for (int64_t j = 0; j < a->keys; j++)
                *y++ = j >= start && j < end && (a->full || j <= i + (a->keys - a->queries));
    }
    return TL_OK;
}

const tl_op tl_op_causal_mask = {TL_NAMED(causal_mask, 2, 1), .optional = 3,
                                 .traits = TL_NONDIFF,        .shape = mask_shape,
                                 .forward = mask_forward,     TL_ATTRS(mask),
                                 .batch = tl_first_axis};

tl_tensor tl_causal_mask_at(tl_at at, int64_t queries, int64_t keys, tl_attention_options o)
{
    /* With offsets the op gives the ranges alone; the diagonal of each sample is made of ops. */
    bool moved = !o.full && !tl_is_none(o.offset);
    mask_attrs a = {queries, keys, o.full || moved};
    tl_tensor mask = tl_apply1(at, &tl_op_causal_mask, &a, (tl_tensor[]){o.key_start, o.key_end},
                               2);
    if (!moved || tl_failed(at.tape))
        return mask;
    tl_tensor last = tl_positions_at(at, o.offset, TL_NONE, queries),
              column = tl_arange_at(at, TL_I64, 0, (double)keys, 1);
    last = tl_reshape_at(at, last, TL_DIMS(tl_shape_of(at.tape, last).dim[0], queries, 1));
    return tl_logical_and_at(at, mask, tl_le_at(at, column, last));
}
