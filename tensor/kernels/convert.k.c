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

static double load(tl_dtype d, const void *x, int64_t i)
{
    switch (d) {
    case TL_F64: return ((const double *)x)[i];
    case TL_F32: return (double)((const float *)x)[i];
    default: return (double)((const unsigned char *)x)[i];
    }
}

static void cast_from_i64(int64_t n, const int64_t *x, tl_dtype to, void *y)
{
    for (int64_t i = 0; i < n; i++)
        switch (to) {
        case TL_F64: ((double *)y)[i] = (double)x[i]; break;
        case TL_F32: ((float *)y)[i] = (float)x[i]; break;
        case TL_F16: ((uint16_t *)y)[i] = tl_f64_to_f16(tl_i64_to_f64_odd(x[i])); break;
        case TL_BF16: ((uint16_t *)y)[i] = tl_f64_to_bf16(tl_i64_to_f64_odd(x[i])); break;
        case TL_I64: ((int64_t *)y)[i] = x[i]; break;
        default: ((unsigned char *)y)[i] = x[i] != 0; break;
        }
}

static void cast(int64_t n, tl_dtype from, const void *x, tl_dtype to, void *y)
{
    if (from == TL_I64) {
        cast_from_i64(n, x, to, y);
        return;
    }
    if (from == to || (from == TL_F32 && (to == TL_F16 || to == TL_BF16))) {
        narrow(n, to, x, y, 1);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double v = load(from, x, i); /* exact */
        switch (to) {
        case TL_F64: ((double *)y)[i] = v; break;
        case TL_F32: ((float *)y)[i] = (float)v; break;
        case TL_F16: ((uint16_t *)y)[i] = tl_f64_to_f16(v); break;
        case TL_BF16: ((uint16_t *)y)[i] = tl_f64_to_bf16(v); break;
        case TL_I64: ((int64_t *)y)[i] = tl_f64_to_i64(v); break;
        default: ((unsigned char *)y)[i] = v != 0 || v != v; break;
        }
    }
}

const tl_convert_table TL_K(tl_convert_table) = {widen, narrow, cast};
