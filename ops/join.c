/* join: stack, split, split_sizes, chunk - compositions of reshape, concat and slice
 * Shape:  stack: n tensors of one shape, along a new dim. The others give slices along a dim: split
 *         of one size, chunk n of ceil(size/n), both with a smaller last one; split_sizes of given
 *         sizes
 * Dtype:  any; stack needs one dtype
 * Bits:   none computed
 * VJP:    those of concat and slice
 * Errors: TL_ESHAPE, and those of the ops they are made of
 */
#include "ops/build.h"

tl_tensor tl_stack_at(tl_at at, const tl_tensor *xs, int n, int dim)
{
    if (TL_NEED_N_AT(at, xs, n) != TL_OK)
        return TL_NONE;
    tl_shape s = n > 0 ? tl_shape_of(at.tape, xs[0]) : TL_SCALAR, first = s;
    int d = tl_dim_from_front(dim, s.ndim + 1);
    if (n < 1 || d < 0 || d > s.ndim || s.ndim == TL_MAX_DIMS)
        return tl_reject(at, TL_ESHAPE,
                         "stack: %d tensors of %d dims along a new dim %d; a tensor has up to %d "
                         "dims",
                         n, s.ndim, dim, TL_MAX_DIMS);
    tl_tensor *lifted = tl_calloc((size_t)n, sizeof *lifted);
    if (lifted == NULL)
        return tl_reject(at, TL_ENOMEM, "stack: no memory for %d tensors", n);
    for (int i = s.ndim++; i > d; i--)
        s.dim[i] = s.dim[i - 1];
    s.dim[d] = 1;
    for (int i = 0; i < n; i++) {
        tl_shape own = tl_shape_of(at.tape, xs[i]);
        if (!tl_shape_equal(&own, &first))
            tl_tape_fail(at, TL_ESHAPE, "stack: input %d has shape %s, input 0 %s", i,
                         TL_TEXT_OF(&own), TL_TEXT_OF(&first));
        const tl_batch axis = tl_batch_of(at.tape, xs[i]);
        lifted[i] = tl_reshape_told(at, xs[i], s, axis + (axis >= d));
    }
    tl_tensor y = tl_concat_at(at, lifted, n, d);
    tl_free_raw(lifted);
    return y;
}

/* Sets out[0 .. n) to TL_NONE; returns the size of dim, or -1 with an error if there is none. */
static int64_t size_of(tl_at at, const char *name, tl_tensor x, int dim, tl_tensor *out, int n)
{
    if (tl_tape_need(at, name, "out", out != NULL, n) != TL_OK)
        return -1;
    for (int i = 0; i < n; i++)
        out[i] = TL_NONE;
    const int d = tl_dim_of(at, name, x, dim);
    return d < 0 ? -1 : tl_shape_of(at.tape, x).dim[d];
}

tl_status tl_split_sizes_at(tl_at at, tl_tensor x, const int64_t *sizes, int n, int dim,
                            tl_tensor *out)
{
    int64_t size = size_of(at, "split_sizes", x, dim, out, n), sum = 0, start = 0;
    if (size < 0)
        return tl_error_status(at.tape);
    TL_TRY(TL_NEED_N_AT(at, sizes, n));
    for (int i = 0; i < n; i++)
        if (sizes[i] < 0 || sizes[i] > size - sum)
            return tl_tape_fail(at, TL_ESHAPE,
                                "split_sizes: size %d is %lld; %lld of dim %d's %lld are left", i,
                                (long long)sizes[i], (long long)(size - sum), dim, (long long)size);
        else
            sum += sizes[i];
    if (sum != size)
        return tl_tape_fail(at, TL_ESHAPE, "split_sizes: the sizes add up to %lld, dim %d has %lld",
                            (long long)sum, dim, (long long)size);
    for (int i = 0; i < n; start += sizes[i++])
        out[i] = tl_slice_at(at, x, dim, start, start + sizes[i], 1);
    return tl_error_status(at.tape);
}

/* x in n slices of `each`, the last of which may be shorter. */
static tl_status pieces(tl_at at, const char *name, tl_tensor x, int64_t each, int64_t size,
                        int dim, tl_tensor *out, int n)
{
    const int64_t count = each < 1 ? -1 : size == 0 ? 1 : (size - 1) / each + 1;
    if (each < 1)
        return tl_tape_fail(at, TL_ESHAPE, "%s: pieces of %lld; 1 is the least", name,
                            (long long)each);
    if (count != n)
        return tl_tape_fail(at, TL_ESHAPE,
                            "%s: dim %d of size %lld in pieces of %lld gives %lld of them, not %d",
                            name, dim, (long long)size, (long long)each, (long long)count, n);
    for (int i = 0; i < n; i++)
        out[i] = tl_slice_at(at, x, dim, i * each, i + 1 < n ? (i + 1) * each : size, 1);
    return tl_error_status(at.tape);
}

tl_status tl_split_at(tl_at at, tl_tensor x, int64_t each, int dim, tl_tensor *out, int n)
{
    int64_t size = size_of(at, "split", x, dim, out, n);
    return size < 0 ? tl_error_status(at.tape) : pieces(at, "split", x, each, size, dim, out, n);
}

tl_status tl_chunk_at(tl_at at, tl_tensor x, int n, int dim, tl_tensor *out)
{
    int64_t size = size_of(at, "chunk", x, dim, out, n);
    if (size < 0)
        return tl_error_status(at.tape);
    if (n < 1)
        return tl_tape_fail(at, TL_ESHAPE, "chunk: %d pieces", n);
    for (int i = 0; size == 0 && i < n; i++)
        out[i] = tl_slice_at(at, x, dim, 0, 0, 1);
    return size == 0 ? tl_error_status(at.tape)
                     : pieces(at, "chunk", x, (size - 1) / n + 1, size, dim, out, n);
}
