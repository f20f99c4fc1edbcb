/* convert.k.c: widening, which is exact, narrowing and casts, which round once. */
#include "tensor/kernels/level.h"

#include <string.h>

#include "tensor/kernels/convert.h"
#include "tensor/kernels/half.h"

static void move(int64_t n, size_t size, const char *x, int64_t xs, char *y, int64_t ys)
{
    int64_t e = (int64_t)size;
    if (n == 0)
        return;
    if (xs == 1 && ys == 1) {
        memcpy(y, x, (size_t)(n * e));
        return;
    }
    if (xs == 0 && ys == 1) { /* one element n times: doubles what is there until y is full */
        memcpy(y, x, size);
        for (int64_t have = 1; have < n; have *= 2)
            memcpy(y + have * e, y, (size_t)((have < n - have ? have : n - have) * e));
        return;
    }
    switch (size) {
    case 8:
        for (int64_t i = 0; i < n; i++)
            memcpy(y + i * ys * 8, x + i * xs * 8, 8);
        break;
    case 4:
        for (int64_t i = 0; i < n; i++)
            memcpy(y + i * ys * 4, x + i * xs * 4, 4);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            y[i * ys] = x[i * xs];
        break;
    }
}

static void widen(int64_t n, tl_dtype src, const void *x, int64_t stride, void *y)
{
    const uint16_t *h = x;
    float *f = y;
    if (src == TL_F16)
        for (int64_t i = 0; i < n; i++)
            f[i] = tl_f16_to_f32(h[i * stride]);
    else if (src == TL_BF16)
        for (int64_t i = 0; i < n; i++)
            f[i] = tl_bf16_to_f32(h[i * stride]);
    else
        move(n, tl_dtype_size(src), x, stride, y, 1);
}

static void narrow(int64_t n, tl_dtype dst, const void *x, void *y, int64_t stride)
{
    const float *f = x;
    uint16_t *h = y;
    if (dst == TL_F16)
        for (int64_t i = 0; i < n; i++)
            h[i * stride] = tl_f32_to_f16(f[i]);
    else if (dst == TL_BF16)
        for (int64_t i = 0; i < n; i++)
            h[i * stride] = tl_f32_to_bf16(f[i]);
    else
        move(n, tl_dtype_size(dst), x, 1, y, stride);
}

#define EACH(type, value)           \
    for (int64_t i = 0; i < n; i++) \
    ((type *)y)[i] = (type)(value)

/* `to` is never I64, as i64 to i64 is no cast. */
static void cast_from_i64(int64_t n, const int64_t *x, tl_dtype to, void *y)
{
    switch (to) {
    case TL_F64: EACH(double, x[i]); break;
    case TL_F32: EACH(float, x[i]); break;
    case TL_F16: EACH(uint16_t, tl_f64_to_f16(tl_i64_to_f64_odd(x[i]))); break;
    case TL_BF16: EACH(uint16_t, tl_f64_to_bf16(tl_i64_to_f64_odd(x[i]))); break;
    default: EACH(unsigned char, x[i] != 0); break;
    }
}

static inline double load(tl_dtype d, const void *x, int64_t i) /* exact */
{
    return d == TL_F64   ? ((const double *)x)[i]
           : d == TL_F32 ? (double)((const float *)x)[i]
                         : (double)((const unsigned char *)x)[i];
}

/* Inlined for each `from`, so that its loops have no branches. */
static inline __attribute__((always_inline)) void cast_from(int64_t n, tl_dtype from, const void *x,
                                                            tl_dtype to, void *y)
{
    switch (to) {
    case TL_F64: EACH(double, load(from, x, i)); break;
    case TL_F32: EACH(float, load(from, x, i)); break;
    case TL_F16: EACH(uint16_t, tl_f64_to_f16(load(from, x, i))); break;
    case TL_BF16: EACH(uint16_t, tl_f64_to_bf16(load(from, x, i))); break;
    case TL_I64: EACH(int64_t, tl_f64_to_i64(load(from, x, i))); break;
    default: EACH(unsigned char, !(load(from, x, i) == 0)); break; /* a NaN is not 0 */
    }
}

static void cast(int64_t n, tl_dtype from, const void *x, tl_dtype to, void *y)
{
    if (from == to || (from == TL_F32 && (to == TL_F16 || to == TL_BF16)))
        narrow(n, to, x, y, 1);
    else if (from == TL_I64)
        cast_from_i64(n, x, to, y);
    else if (from == TL_F64)
        cast_from(n, TL_F64, x, to, y);
    else if (from == TL_F32)
        cast_from(n, TL_F32, x, to, y);
    else
        cast_from(n, TL_BOOL, x, to, y);
}

const tl_convert_table TL_K(tl_convert_table) = {widen, narrow, cast};
