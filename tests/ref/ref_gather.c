/* gather, its gradient, one_hot, positions, the causal mask, stack (7.1, 8.5, 9.2, 9.3). */
#include <stddef.h>

#include "tests/ref/ref.h"

/* The element of a tensor of that shape which ids' element i names along dim. */
static int64_t named(const ref_tensor *ids, int64_t i, int dim, int ndim, const int64_t *shape)
{
    int64_t ix[8] = {0};
    ref_check(ids->ndim == ndim, "gather: ids of x's rank wanted");
    ref_unflatten(ndim, ids->dim, i, ix);
    ix[dim] = ref_get_i64(ids, i);
    for (int d = 0; d < ndim; d++)
        ref_check(ix[d] >= 0 && ix[d] < shape[d], "gather: id out of range");
    return ref_flatten(ndim, shape, ix);
}

/* 9.2: y[.., i, ..] = x[.., ids[.., i, ..], ..] */
ref_tensor ref_gather(const ref_tensor *x, const ref_tensor *ids, int dim)
{
    ref_tensor y = ref_like(ids, x->dtype);
    for (int64_t i = 0; i < ref_numel(ids); i++) {
        int64_t from = named(ids, i, dim, x->ndim, x->dim);
        if (x->dtype == REF_I64)
            ref_set_i64(&y, i, ref_get_i64(x, from));
        else
            ref_set(&y, i, ref_get(x, from));
    }
    return y;
}

/* 9.3: y[.., ids[.., i, ..], ..] = (that + dy[.., i, ..]) + 0 in c, from +0, in ascending row-major
 * order of ids. */
ref_tensor ref_scatter_add_dim(const ref_tensor *dy, const ref_tensor *ids, int dim, int ndim,
                               const int64_t *shape)
{
    ref_dtype c = ref_compute(dy->dtype);
    ref_tensor y = ref_new(c, ndim, shape);
    for (int64_t i = 0; i < ref_numel(ids); i++) {
        int64_t at = named(ids, i, dim, ndim, shape);
        ref_set(&y, at, ref_round(c, ref_get(&y, at) + ref_get(dy, i)) + 0.0);
    }
    return y;
}

/* 9.2: 1 at the id and +0 elsewhere. */
ref_tensor ref_one_hot(const ref_tensor *ids, int64_t classes, ref_dtype dtype)
{
    int64_t dim[8];
    for (int d = 0; d < ids->ndim; d++)
        dim[d] = ids->dim[d];
    dim[ids->ndim] = classes;
    ref_tensor y = ref_new(dtype, ids->ndim + 1, dim);
    for (int64_t i = 0; i < ref_numel(ids); i++) {
        int64_t at = i * classes + ref_get_i64(ids, i);
        if (dtype == REF_I64)
            ref_set_i64(&y, at, 1);
        else
            ref_set(&y, at, 1);
    }
    return y;
}

/* 8.5: id = offset + index; given start, id = max(0, offset + index - start). */
ref_tensor ref_positions(const ref_tensor *offset, const ref_tensor *start, int64_t n)
{
    ref_tensor y = ref_new(REF_I64, 2, (int64_t[]){ref_numel(offset), n});
    for (int64_t i = 0; i < ref_numel(&y); i++) {
        int64_t id = ref_get_i64(offset, i / n) + i % n;
        if (start != NULL)
            id -= ref_get_i64(start, i / n);
        if (start != NULL && id < 0)
            id = 0;
        ref_set_i64(&y, i, id);
    }
    return y;
}

/* 7.1: position p = the query's index plus (number of keys - number of queries); allowed are j <=
 * p, or all; of these the ones in the sample's range. */
ref_tensor ref_causal_mask(int64_t queries, int64_t keys, ref_keys allowed)
{
    const ref_tensor *range = allowed.start != NULL ? allowed.start : allowed.end;
    int64_t samples = range != NULL ? range->dim[0] : 1;
    ref_tensor y = range != NULL ? ref_new(REF_BOOL, 3, (int64_t[]){samples, queries, keys})
                                 : ref_new(REF_BOOL, 2, (int64_t[]){queries, keys});
    for (int64_t n = 0; n < ref_numel(&y); n++) {
        int64_t j = n % keys, i = n / keys % queries, b = n / keys / queries;
        int yes = !allowed.causal || j <= i + (keys - queries);
        if (allowed.start != NULL)
            yes = yes && j >= ref_get_i64(allowed.start, b);
        if (allowed.end != NULL)
            yes = yes && j < ref_get_i64(allowed.end, b);
        ref_set(&y, n, yes);
    }
    return y;
}

/* n tensors of one shape along a new dim. */
ref_tensor ref_stack(int n, const ref_tensor *const *x, int dim)
{
    ref_tensor with[8];
    const ref_tensor *all[8];
    ref_check(n >= 1 && n <= 8, "stack: 1 to 8 tensors wanted");
    for (int i = 0; i < n; i++) {
        with[i] = *x[i];
        with[i].ndim = x[i]->ndim + 1;
        for (int d = x[i]->ndim; d > dim; d--)
            with[i].dim[d] = x[i]->dim[d - 1];
        with[i].dim[dim] = 1;
        all[i] = &with[i];
    }
    return ref_concat(n, all, dim);
}

/* Element a stands before element b of a later place: no less (descending: no greater), NaN above
 * all numbers. */
static int stays(const ref_tensor *x, int64_t a, int64_t b, int descending)
{
    if (x->dtype == REF_I64)
        return descending ? ref_get_i64(x, a) >= ref_get_i64(x, b)
                          : ref_get_i64(x, a) <= ref_get_i64(x, b);
    double p = ref_get(x, descending ? b : a), q = ref_get(x, descending ? a : b);
    return p <= q || q != q;
}

/* 4.7, by exchanging neighbours. */
ref_tensor ref_argsort(const ref_tensor *x, int dim, int descending)
{
    ref_tensor y = ref_like(x, REF_I64);
    int64_t inner = 1, n = x->dim[dim];
    for (int d = dim + 1; d < x->ndim; d++)
        inner *= x->dim[d];
    for (int64_t row = 0; n > 0 && row < ref_numel(x) / n; row++) {
        int64_t start = row / inner * n * inner + row % inner;
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = i; k >= 0; k--) {
                int64_t before = k > 0 ? ref_get_i64(&y, start + (k - 1) * inner) : -1;
                if (k == 0 || stays(x, start + before * inner, start + i * inner, descending)) {
                    ref_set_i64(&y, start + k * inner, i);
                    break;
                }
                ref_set_i64(&y, start + k * inner, before);
            }
    }
    return y;
}
