/* Reference tensors: row-major, contiguous, storage bits. */
#include "tests/ref/ref.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ref_check(int condition, const char *message)
{
    if (condition)
        return;
    fprintf(stderr, "reference misused: %s\n", message);
    abort();
}

int ref_itemsize(ref_dtype dtype)
{
    switch (dtype) {
    case REF_F64: return 8;
    case REF_F32: return 4;
    case REF_F16: return 2;
    case REF_BF16: return 2;
    case REF_I64: return 8;
    case REF_BOOL: return 1;
    }
    return 0;
}

int64_t ref_numel(const ref_tensor *x)
{
    int64_t n = 1;
    for (int d = 0; d < x->ndim; d++)
        n *= x->dim[d];
    return n;
}

ref_tensor ref_new(ref_dtype dtype, int ndim, const int64_t *dim)
{
    ref_tensor t = {.dtype = dtype, .ndim = ndim};
    ref_check(ndim >= 0 && ndim <= 8, "0 to 8 dims");
    for (int d = 0; d < ndim; d++)
        t.dim[d] = dim[d];
    int64_t n = ref_numel(&t);
    t.data = calloc((size_t)(n > 0 ? n : 1), (size_t)ref_itemsize(dtype));
    ref_check(t.data != NULL, "out of memory");
    return t;
}

ref_tensor ref_like(const ref_tensor *x, ref_dtype dtype)
{
    return ref_new(dtype, x->ndim, x->dim);
}

ref_tensor ref_copy(const ref_tensor *x)
{
    ref_tensor t = ref_like(x, x->dtype);
    memcpy(t.data, x->data, (size_t)ref_numel(x) * (size_t)ref_itemsize(x->dtype));
    return t;
}

ref_tensor ref_from(ref_dtype dtype, int ndim, const int64_t *dim, const double *values)
{
    ref_tensor t = ref_new(dtype, ndim, dim);
    for (int64_t i = 0; i < ref_numel(&t); i++)
        ref_set(&t, i, values[i]);
    return t;
}

ref_tensor ref_from_i64(int ndim, const int64_t *dim, const int64_t *values)
{
    ref_tensor t = ref_new(REF_I64, ndim, dim);
    for (int64_t i = 0; i < ref_numel(&t); i++)
        ref_set_i64(&t, i, values[i]);
    return t;
}

void ref_free(ref_tensor *x)
{
    free(x->data);
    x->data = NULL;
}

/* 1.1: exact. */
double ref_get(const ref_tensor *x, int64_t i)
{
    switch (x->dtype) {
    case REF_F64: return ((const double *)x->data)[i];
    case REF_F32: return (double)((const float *)x->data)[i];
    case REF_F16:
    case REF_BF16: return ref_half_value(x->dtype, ((const uint16_t *)x->data)[i]);
    case REF_I64: return (double)((const int64_t *)x->data)[i];
    case REF_BOOL: return ((const uint8_t *)x->data)[i] ? 1.0 : 0.0;
    }
    return 0;
}

/* 1.1: one rounding, from whatever type the value was computed in. */
void ref_set(ref_tensor *x, int64_t i, double v)
{
    switch (x->dtype) {
    case REF_F64: ((double *)x->data)[i] = v; break;
    case REF_F32: ((float *)x->data)[i] = (float)v; break;
    case REF_F16:
    case REF_BF16: ((uint16_t *)x->data)[i] = ref_half_bits(x->dtype, v); break;
    case REF_I64: ((int64_t *)x->data)[i] = (int64_t)v; break;
    case REF_BOOL: ((uint8_t *)x->data)[i] = v != 0; break;
    }
}

int64_t ref_get_i64(const ref_tensor *x, int64_t i)
{
    ref_check(x->dtype == REF_I64, "i64 wanted");
    return ((const int64_t *)x->data)[i];
}

void ref_set_i64(ref_tensor *x, int64_t i, int64_t v)
{
    ref_check(x->dtype == REF_I64, "i64 wanted");
    ((int64_t *)x->data)[i] = v;
}

int ref_same_bits(const ref_tensor *x, const ref_tensor *y)
{
    if (x->dtype != y->dtype || x->ndim != y->ndim)
        return 0;
    for (int d = 0; d < x->ndim; d++)
        if (x->dim[d] != y->dim[d])
            return 0;
    size_t size = (size_t)ref_itemsize(x->dtype);
    for (int64_t i = 0; i < ref_numel(x); i++) {
        const char *p = (const char *)x->data + (size_t)i * size,
                   *q = (const char *)y->data + (size_t)i * size;
        double a = ref_get(x, i), b = ref_get(y, i);
        int both_nan = a != a && b != b;
        if (!both_nan && memcmp(p, q, size) != 0)
            return 0;
    }
    return 1;
}

void ref_unflatten(int ndim, const int64_t *dim, int64_t flat, int64_t *ix)
{
    for (int d = ndim - 1; d >= 0; d--) {
        ix[d] = flat % dim[d];
        flat /= dim[d];
    }
}

int64_t ref_flatten(int ndim, const int64_t *dim, const int64_t *ix)
{
    int64_t flat = 0;
    for (int d = 0; d < ndim; d++)
        flat = flat * dim[d] + ix[d];
    return flat;
}

/* Aligned at the right; a dim of size 1 meets every index. */
int64_t ref_broadcast_at(const ref_tensor *x, int ndim, const int64_t *ix)
{
    int64_t own[8] = {0};
    for (int d = 0; d < x->ndim; d++)
        own[d] = x->dim[d] == 1 ? 0 : ix[d + ndim - x->ndim];
    return ref_flatten(x->ndim, x->dim, own);
}

ref_tensor ref_broadcast_shape(const ref_tensor *a, const ref_tensor *b, ref_dtype dtype)
{
    int ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    int64_t dim[8] = {0};
    for (int d = 0; d < ndim; d++) {
        int da = d - (ndim - a->ndim), db = d - (ndim - b->ndim);
        int64_t na = da < 0 ? 1 : a->dim[da], nb = db < 0 ? 1 : b->dim[db];
        ref_check(na == nb || na == 1 || nb == 1, "shapes do not broadcast");
        dim[d] = na == 1 ? nb : na;
    }
    return ref_new(dtype, ndim, dim);
}
