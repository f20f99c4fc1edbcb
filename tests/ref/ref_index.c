/* Ops that move elements: embedding, concat, slice, permute; and the scatter-add (section 9). */
#include "tests/ref/ref.h"

#include <string.h>

static void move(ref_tensor *to, int64_t i, const ref_tensor *from, int64_t j)
{
    size_t size = (size_t)ref_itemsize(from->dtype);
    memcpy((char *)to->data + (size_t)i * size, (const char *)from->data + (size_t)j * size, size);
}

/* The elements of one row of w (V, ...). */
static int64_t width(const ref_tensor *w)
{
    int64_t n = 1;
    for (int d = 1; d < w->ndim; d++)
        n *= w->dim[d];
    return n;
}

/* 9.1: copies rows; the result's shape is ids' followed by w's without its first dim. */
ref_tensor ref_embedding(const ref_tensor *w, const ref_tensor *ids)
{
    int64_t dim[16] = {0}, n = width(w);
    for (int d = 0; d < ids->ndim; d++)
        dim[d] = ids->dim[d];
    for (int d = 1; d < w->ndim; d++)
        dim[ids->ndim + d - 1] = w->dim[d];
    ref_tensor y = ref_new(w->dtype, ids->ndim + w->ndim - 1, dim);
    for (int64_t row = 0; row < ref_numel(ids); row++) {
        int64_t id = ref_get_i64(ids, row);
        ref_check(id >= 0 && id < w->dim[0], "embedding: id out of range");
        for (int64_t i = 0; i < n; i++)
            move(&y, row * n + i, w, id * n + i);
    }
    return y;
}

/* 9.1: acc[id] = acc[id] + dy[row] in the compute type, or f64 if acc is, rows in ascending
 * order; 1.6: the stored sum has +0 added. */
ref_tensor ref_embedding_grad(const ref_tensor *dy, const ref_tensor *ids, int64_t rows,
                              ref_tensor *acc)
{
    ref_dtype c = ref_compute(dy->dtype);
    int64_t dim[8] = {rows};
    for (int d = ids->ndim; d < dy->ndim; d++)
        dim[d - ids->ndim + 1] = dy->dim[d];
    ref_tensor dw = ref_new(dy->dtype, dy->ndim - ids->ndim + 1, dim),
               sum = acc ? ref_copy(acc) : ref_like(&dw, c);
    ref_check((sum.dtype == c || sum.dtype == REF_F64) && ref_numel(&sum) == ref_numel(&dw),
              "embedding_grad: accumulator of the compute type or f64 wanted");
    int64_t n = width(&dw);
    for (int64_t row = 0; row < ref_numel(ids); row++) {
        int64_t id = ref_get_i64(ids, row);
        ref_check(id >= 0 && id < rows, "embedding_grad: id out of range");
        for (int64_t i = 0; i < n; i++)
            ref_set(&sum, id * n + i,
                    ref_round(sum.dtype, ref_get(&sum, id * n + i) + ref_get(dy, row * n + i)) +
                        0.0);
    }
    for (int64_t i = 0; i < ref_numel(&dw); i++) {
        double s = ref_get(&sum, i); /* what no row meets stays as it is */
        if (acc)
            ref_set(acc, i, s);
        ref_set(&dw, i, s);
    }
    ref_free(&sum);
    return dw;
}

ref_tensor ref_concat(int n, const ref_tensor *const *x, int dim)
{
    ref_tensor shape = *x[0];
    for (int t = 1; t < n; t++)
        shape.dim[dim] += x[t]->dim[dim];
    ref_tensor y = ref_like(&shape, x[0]->dtype);
    int64_t offset = 0;
    for (int t = 0; t < n; t++) {
        ref_check(x[t]->dtype == y.dtype && x[t]->ndim == y.ndim,
                  "concat: inputs of one dtype and rank wanted");
        for (int64_t i = 0; i < ref_numel(x[t]); i++) {
            int64_t ix[8] = {0};
            ref_unflatten(y.ndim, x[t]->dim, i, ix);
            ix[dim] += offset;
            move(&y, ref_flatten(y.ndim, y.dim, ix), x[t], i);
        }
        offset += x[t]->dim[dim];
    }
    return y;
}

/* Sample `from` of each x, then the next of each, ...; of a sample, its axis is 1, or gone if it is
 * the first. */
ref_tensor ref_stack_samples(int n, const ref_tensor *const *x, int axis, int to, int64_t from,
                             int64_t samples, int64_t each)
{
    ref_tensor shape = *x[0];
    const int more = to != axis;
    shape.ndim += more;
    for (int i = shape.ndim - 1; i > 0; i--)
        shape.dim[i] = i - more == axis ? 1 : x[0]->dim[i - more];
    shape.dim[to] = samples * n * each;
    ref_tensor y = ref_like(&shape, x[0]->dtype);
    for (int64_t i = 0; i < ref_numel(&y); i++) {
        int64_t iy[8] = {0}, ix[8] = {0}, at = 0;
        ref_unflatten(y.ndim, y.dim, i, iy);
        for (int k = more; k < y.ndim; k++)
            ix[k - more] = iy[k];
        ix[axis] = (from + iy[to] / each / n) * each + iy[to] % each;
        for (int k = 0; k < x[0]->ndim; k++)
            at = at * x[0]->dim[k] + ix[k];
        move(&y, i, x[iy[to] / each % n], at);
    }
    return y;
}

/* Steps are above 0. */
ref_tensor ref_slice(const ref_tensor *x, int dim, int64_t start, int64_t stop, int64_t step)
{
    ref_check(step > 0 && 0 <= start && start <= stop && stop <= x->dim[dim],
              "slice: 0 <= start <= stop <= size, step > 0 wanted");
    ref_tensor shape = *x;
    shape.dim[dim] = 0;
    for (int64_t i = start; i < stop; i += step)
        shape.dim[dim]++;
    ref_tensor y = ref_like(&shape, x->dtype);
    for (int64_t i = 0; i < ref_numel(&y); i++) {
        int64_t ix[8] = {0};
        ref_unflatten(y.ndim, y.dim, i, ix);
        ix[dim] = start + ix[dim] * step;
        move(&y, i, x, ref_flatten(x->ndim, x->dim, ix));
    }
    return y;
}

/* Pads with zeros: dy goes back where the slice took it from, in a tensor with `size` along dim. */
ref_tensor ref_slice_grad(const ref_tensor *dy, int dim, int64_t size, int64_t start, int64_t step)
{
    ref_tensor shape = *dy;
    shape.dim[dim] = size;
    ref_tensor dx = ref_like(&shape, dy->dtype);
    for (int64_t i = 0; i < ref_numel(dy); i++) {
        int64_t ix[8] = {0};
        ref_unflatten(dy->ndim, dy->dim, i, ix);
        ix[dim] = start + ix[dim] * step;
        ref_check(ix[dim] < size, "slice_grad: dy does not fit");
        move(&dx, ref_flatten(dx.ndim, dx.dim, ix), dy, i);
    }
    return dx;
}

ref_tensor ref_permute(const ref_tensor *x, const int *order)
{
    ref_tensor shape = *x;
    for (int d = 0; d < x->ndim; d++)
        shape.dim[d] = x->dim[order[d]];
    ref_tensor y = ref_like(&shape, x->dtype);
    for (int64_t i = 0; i < ref_numel(&y); i++) {
        int64_t ix[8] = {0}, from[8] = {0};
        ref_unflatten(y.ndim, y.dim, i, ix);
        for (int d = 0; d < x->ndim; d++)
            from[order[d]] = ix[d];
        move(&y, i, x, ref_flatten(x->ndim, x->dim, from));
    }
    return y;
}
