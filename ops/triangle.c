/* triangle: arange, tril, triu, diagonal - compositions of positions, comparisons and views
 * Shape:  arange: (n), n = max(0, ceil((stop - start)/step)); tril, triu of x (..., m, n): as x;
 *         diagonal of x: its other dims, then the elements (i, i + offset) of two
 * Dtype:  any
 * Bits:   arange: i*step + start, each in f64, then cast; elements copied, or +0 (NUMERICS 9.4)
 * VJP:    those of where and slice
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (a step of 0, 2^53 numbers or more, a fraction for i64)
 */
#include "ops/build.h"

/* first, first + 1, ... as i64 (n). */
static tl_tensor count(tl_at at, double first, int64_t n)
{
    tl_tensor from = tl_reshape_at(at, tl_scalar_at(at, TL_I64, first), TL_DIMS(1));
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
                         step == 0 ? "; the step must not be 0"
                                   : "; fewer than 2^53 numbers are needed");
    if (dtype == TL_I64 && (trunc(start) != start || trunc(step) != step))
        return tl_reject(at, TL_EDOMAIN, "arange: from %g by %g; I64 needs a whole start and step",
                         start, step);
    if (dtype == TL_I64 && n > 0 &&
        (fabs(start) > 0x1p53 || fabs(stop) > 0x1p53 || fabs(stop - start) > 0x1p53))
        return tl_reject(
            at, TL_EDOMAIN,
            "arange: from %g to %g; the numbers are doubles, whole up to 2^53 and that "
            "far apart",
            start, stop);
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
    int64_t m = s.dim[d1], n = s.dim[d2], all;
    if (__builtin_add_overflow(n, 1, &all) ||
        __builtin_mul_overflow(m, all, &all)) /* if x is empty */
        return tl_reject(at, TL_ESHAPE, "diagonal: no room for a diagonal of %s", TL_TEXT_OF(&s));
    offset = offset < -m ? -m : offset > n ? n : offset;
    int64_t i = offset < 0 ? -offset : 0, j = offset < 0 ? 0 : offset,
            length = m - i < n - j ? m - i : n - j, first = i * n + j;
    /* In (..., m*n) the diagonal is every (n + 1)-th element from (i, j) on. */
    x = tl_permute_at(at, x, order);
    s = tl_shape_of(at.tape, x);
    s.ndim = order.ndim - 1;
    s.dim[s.ndim - 1] = m * n;
    x = tl_reshape_told(at, x, s, tl_batch_of(at.tape, x));
    return tl_slice_at(at, x, -1, first, length < 1 ? first : first + (length - 1) * (n + 1) + 1,
                       n + 1);
}
