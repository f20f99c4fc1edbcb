/* Comparisons, where, cast: nothing is computed, at most a rounding. */
#include "tests/ref/ref.h"

#include <math.h>
#include <string.h>

#define MPFR_USE_INTMAX_T
#include <mpfr.h>

/* -1, 0, 1, or 2 where a NaN makes them unordered. */
static int order(const ref_tensor *a, int64_t i, const ref_tensor *b, int64_t j)
{
    if (a->dtype == REF_I64) {
        int64_t x = ref_get_i64(a, i), y = ref_get_i64(b, j);
        return x < y ? -1 : x > y ? 1 : 0;
    }
    double x = ref_get(a, i), y = ref_get(b, j);
    if (isnan(x) || isnan(y))
        return 2;
    return x < y ? -1 : x > y ? 1 : 0;
}

static int is_eq(int o) { return o == 0; }
static int is_ne(int o) { return o != 0; }
static int is_lt(int o) { return o == -1; }
static int is_le(int o) { return o == -1 || o == 0; }
static int is_gt(int o) { return o == 1; }
static int is_ge(int o) { return o == 1 || o == 0; }

static ref_tensor compare(const ref_tensor *a, const ref_tensor *b, int (*is)(int))
{
    ref_check(a->dtype == b->dtype, "two inputs of one dtype wanted");
    ref_tensor y = ref_broadcast_shape(a, b, REF_BOOL);
    for (int64_t i = 0; i < ref_numel(&y); i++) {
        int64_t ix[8];
        ref_unflatten(y.ndim, y.dim, i, ix);
        ref_set(&y, i,
                is(order(a, ref_broadcast_at(a, y.ndim, ix), b, ref_broadcast_at(b, y.ndim, ix))));
    }
    return y;
}

ref_tensor ref_eq(const ref_tensor *a, const ref_tensor *b) { return compare(a, b, is_eq); }
ref_tensor ref_ne(const ref_tensor *a, const ref_tensor *b) { return compare(a, b, is_ne); }
ref_tensor ref_lt(const ref_tensor *a, const ref_tensor *b) { return compare(a, b, is_lt); }
ref_tensor ref_le(const ref_tensor *a, const ref_tensor *b) { return compare(a, b, is_le); }
ref_tensor ref_gt(const ref_tensor *a, const ref_tensor *b) { return compare(a, b, is_gt); }
ref_tensor ref_ge(const ref_tensor *a, const ref_tensor *b) { return compare(a, b, is_ge); }

/* Bits are copied. */
ref_tensor ref_where(const ref_tensor *cond, const ref_tensor *a, const ref_tensor *b)
{
    ref_check(cond->dtype == REF_BOOL && a->dtype == b->dtype,
              "where: a bool and two inputs of one dtype wanted");
    ref_tensor ab = ref_broadcast_shape(a, b, a->dtype),
               y = ref_broadcast_shape(cond, &ab, a->dtype);
    size_t size = (size_t)ref_itemsize(a->dtype);
    for (int64_t i = 0; i < ref_numel(&y); i++) {
        int64_t ix[8];
        ref_unflatten(y.ndim, y.dim, i, ix);
        const ref_tensor *from = ref_get(cond, ref_broadcast_at(cond, y.ndim, ix)) != 0 ? a : b;
        int64_t j = ref_broadcast_at(from, y.ndim, ix);
        memcpy((char *)y.data + (size_t)i * size, (const char *)from->data + (size_t)j * size,
               size);
    }
    ref_free(&ab);
    return y;
}

/* Towards zero.
 * NaN gives 0, values outside i64 the nearer end of the range. */
static int64_t truncated(double v)
{
    if (isnan(v))
        return 0;
    if (v >= 0x1p63)
        return INT64_MAX;
    if (v < -0x1p63)
        return INT64_MIN;
    return (int64_t)v;
}

/* An i64 rounded once to a floating dtype (no i64 is subnormal in any of them; ref_set turns too
 * large a value into inf). */
static double rounded_i64(ref_dtype to, int64_t v)
{
    mpfr_t t;
    mpfr_init2(t, to == REF_F64 ? 53 : to == REF_F32 ? 24 : to == REF_F16 ? 11 : 8);
    mpfr_set_sj(t, v, MPFR_RNDN);
    double r = mpfr_get_d(t, MPFR_RNDN);
    mpfr_clear(t);
    return r;
}

/* 1.1: rounded once when stored: f64 -> f16 is one rounding, without f32 between; i64 -> any float
 * likewise. Nonzero and NaN are true; bool gives 0 or 1. */
ref_tensor ref_cast(const ref_tensor *x, ref_dtype to)
{
    ref_tensor y = ref_like(x, to);
    int integer = x->dtype == REF_I64;
    for (int64_t i = 0; i < ref_numel(x); i++) {
        if (to == REF_I64)
            ref_set_i64(&y, i, integer ? ref_get_i64(x, i) : truncated(ref_get(x, i)));
        else if (integer && to != REF_BOOL)
            ref_set(&y, i, rounded_i64(to, ref_get_i64(x, i)));
        else
            ref_set(&y, i, ref_get(x, i));
    }
    return y;
}
