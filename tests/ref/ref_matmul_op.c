/* matmul over batches, and its generalised form for gradients (3.3, 5.1). */
#include "tests/ref/ref.h"

#include <stddef.h>

/* The batch dims of x alone, as a tensor without data. */
static ref_tensor batch_of(const ref_tensor *x)
{
    ref_tensor b = *x;
    b.ndim = x->ndim - 2;
    b.data = NULL;
    return b;
}

static ref_dtype wider(const ref_tensor *a, const ref_tensor *b)
{
    return ref_compute(a->dtype) == REF_F64 || ref_compute(b->dtype) == REF_F64 ? REF_F64 : REF_F32;
}

/* The batch dims that the output lacks, as a shape like `all` with 1 in the others. */
static ref_tensor lacking(const ref_tensor *all, const ref_tensor *out)
{
    ref_tensor l = *all;
    for (int d = 0; d < all->ndim; d++) {
        int o = d - (all->ndim - out->ndim);
        int has = o >= 0 && (out->dim[o] != 1 || all->dim[d] == 1);
        ref_check(!has || out->dim[o] == all->dim[d], "matmul: the output's batch does not fit");
        if (has)
            l.dim[d] = 1;
    }
    return l;
}

/* a[batch at bix, row, column] */
static double element(const ref_tensor *x, int nbatch, const int64_t *bix, int64_t row,
                      int64_t column)
{
    ref_tensor b = batch_of(x);
    int64_t m = x->dim[x->ndim - 2], n = x->dim[x->ndim - 1];
    return ref_get(x, (ref_broadcast_at(&b, nbatch, bix) * m + row) * n + column);
}

/* 3.3, 5.1: acc = fma(a, b, acc), the lacking batch dims outside, row-major, k inside, ascending.
 */
static double chain(const ref_tensor *a, const ref_tensor *b, ref_dtype c, const ref_tensor *lack,
                    const int64_t *out_bix, int64_t i, int64_t j, double acc)
{
    for (int64_t l = 0; l < ref_numel(lack); l++) {
        int64_t bix[8] = {0};
        ref_unflatten(lack->ndim, lack->dim, l, bix);
        for (int d = 0; d < lack->ndim; d++)
            bix[d] += out_bix[d]; /* one of the two is 0 */
        for (int64_t k = 0; k < a->dim[a->ndim - 1]; k++)
            acc = ref_fma(c, element(a, lack->ndim, bix, i, k), element(b, lack->ndim, bix, k, j),
                          acc);
    }
    return acc;
}

static ref_tensor output(const ref_tensor *a, const ref_tensor *b, const ref_tensor *all,
                         ref_dtype out, int ndim, const int64_t *dim)
{
    ref_tensor full = *all;
    full.dim[full.ndim++] = a->dim[a->ndim - 2];
    full.dim[full.ndim++] = b->dim[b->ndim - 1];
    if (!dim)
        return ref_new(out, full.ndim, full.dim);
    ref_check(ndim >= 2 && ndim <= full.ndim, "matmul: the output's rank does not fit");
    int fits = dim[ndim - 2] == full.dim[full.ndim - 2] && dim[ndim - 1] == full.dim[full.ndim - 1];
    ref_check(fits, "matmul: the output's shape does not fit");
    return ref_new(out, ndim, dim);
}

/* 1.6: every stored sum has +0 added, in the chain's type, before the rounding to storage.
 * NUMERICS does not say: which dtypes may meet. Here any two floating dtypes, in the wider compute
 * type. */
ref_tensor ref_matmul(const ref_tensor *a, const ref_tensor *b, ref_dtype out, int acc_f64,
                      int out_ndim, const int64_t *out_dim, ref_tensor *acc)
{
    ref_check(a->ndim >= 2 && b->ndim >= 2 && a->dim[a->ndim - 1] == b->dim[b->ndim - 2],
              "matmul: shapes do not fit");
    ref_dtype c = acc_f64 ? REF_F64 : wider(a, b);
    ref_tensor ba = batch_of(a), bb = batch_of(b), all = ref_broadcast_shape(&ba, &bb, REF_BOOL);
    ref_tensor y = output(a, b, &all, out, out_ndim, out_dim), by = batch_of(&y),
               lack = lacking(&all, &by);
    ref_check(!acc || (acc->dtype == c && ref_numel(acc) == ref_numel(&y)),
              "matmul: accumulator of the chain's type wanted");
    for (int64_t o = 0; o < ref_numel(&y); o++) {
        int64_t ix[8] = {0}, out_bix[8] = {0};
        ref_unflatten(y.ndim, y.dim, o, ix);
        for (int d = 0; d < by.ndim; d++)
            out_bix[d + all.ndim - by.ndim] = ix[d];
        double s = chain(a, b, c, &lack, out_bix, ix[y.ndim - 2], ix[y.ndim - 1],
                         acc ? ref_get(acc, o) : 0.0) +
                   0.0;
        if (acc)
            ref_set(acc, o, s);
        ref_set(&y, o, s);
    }
    ref_free(&all);
    return y;
}
