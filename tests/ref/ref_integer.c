/* i64 arithmetic (2.13), and what is made by counting: arange, triangles, diagonals (9.4). */
#include "tests/ref/ref.h"

#include <math.h>
#include <stddef.h>

static int64_t integer(char op, int64_t a, int64_t b)
{
    __extension__ typedef __int128 wide;
    wide x = a, y = b, q = 0;
    switch (op) {
    case '+': return (int64_t)(uint64_t)(x + y);
    case '-': return (int64_t)(uint64_t)(x - y);
    case '*': return (int64_t)(uint64_t)(x * y);
    default:
        ref_check(b != 0, "divided by 0");
        q = x / y;
        q -= y > 0 ? q * y > x : q * y < x;
        return (int64_t)(uint64_t)(op == '/' ? q : x - q * y);
    }
}

ref_tensor ref_integer(char op, const ref_tensor *a, const ref_tensor *b)
{
    ref_tensor y = ref_broadcast_shape(a, b, REF_I64);
    for (int64_t i = 0; i < ref_numel(&y); i++) {
        int64_t ix[8];
        ref_unflatten(y.ndim, y.dim, i, ix);
        ref_set_i64(&y, i,
                    integer(op, ref_get_i64(a, ref_broadcast_at(a, y.ndim, ix)),
                            ref_get_i64(b, ref_broadcast_at(b, y.ndim, ix))));
    }
    return y;
}

ref_tensor ref_arange(ref_dtype dtype, double start, double stop, double step)
{
    double n = ceil((stop - start) / step);
    int64_t count = n > 0 ? (int64_t)n : 0;
    ref_tensor y = ref_new(REF_F64, 1, &count);
    for (int64_t i = 0; i < count; i++)
        ref_set(&y, i, ref_round(REF_F64, ref_round(REF_F64, (double)i * step) + start));
    ref_tensor rounded = ref_cast(&y, dtype);
    ref_free(&y);
    return rounded;
}

ref_tensor ref_triangle(const ref_tensor *x, int64_t k, int upper)
{
    ref_tensor y = ref_copy(x);
    for (int64_t i = 0; i < ref_numel(x); i++) {
        int64_t ix[8];
        ref_unflatten(x->ndim, x->dim, i, ix);
        int64_t row = ix[x->ndim - 2], column = ix[x->ndim - 1];
        if (upper ? column < row + k : column > row + k)
            x->dtype == REF_I64 ? ref_set_i64(&y, i, 0) : ref_set(&y, i, 0);
    }
    return y;
}

/* Every element of x that lies on it, put where it belongs. */
static ref_tensor diagonal(const ref_tensor *x, const ref_tensor *dy, int64_t offset, int d1,
                           int d2)
{
    ref_tensor y = {.dtype = x->dtype}, dx = ref_like(x, dy != NULL ? dy->dtype : x->dtype);
    int64_t i0 = offset < 0 ? -offset : 0, j0 = offset < 0 ? 0 : offset,
            n = x->dim[d1] - i0 < x->dim[d2] - j0 ? x->dim[d1] - i0 : x->dim[d2] - j0, dim[8];
    for (int d = 0; d < x->ndim; d++)
        if (d != d1 && d != d2)
            dim[y.ndim++] = x->dim[d];
    dim[y.ndim++] = n > 0 ? n : 0;
    y = ref_new(x->dtype, y.ndim, dim);
    for (int64_t i = 0; i < ref_numel(x); i++) {
        int64_t ix[8], to[8];
        int k = 0;
        ref_unflatten(x->ndim, x->dim, i, ix);
        if (ix[d2] != ix[d1] + offset)
            continue;
        for (int d = 0; d < x->ndim; d++)
            if (d != d1 && d != d2)
                to[k++] = ix[d];
        to[k] = ix[d1] - i0;
        int64_t at = ref_flatten(y.ndim, y.dim, to);
        ref_set(&y, at, ref_get(x, i));
        if (dy != NULL)
            ref_set(&dx, i, ref_get(dy, at));
    }
    ref_free(dy != NULL ? &y : &dx);
    return dy != NULL ? dx : y;
}

ref_tensor ref_diagonal(const ref_tensor *x, int64_t offset, int d1, int d2)
{
    return diagonal(x, NULL, offset, d1, d2);
}

ref_tensor ref_diagonal_grad(const ref_tensor *dy, const ref_tensor *x, int64_t offset, int d1,
                             int d2)
{
    return diagonal(x, dy, offset, d1, d2);
}
