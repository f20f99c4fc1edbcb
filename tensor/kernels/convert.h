/* convert.h: moving elements between storage and tiles, and between dtypes. */
#ifndef TL_KERNELS_CONVERT_H
#define TL_KERNELS_CONVERT_H

#include "tensor/array.h"

typedef struct {
    /* n elements of dtype src, stride elements apart, to contiguous elements of src's compute type.
     */
    void (*widen)(int64_t n, tl_dtype src, const void *x, int64_t stride, void *y);
    /* n contiguous elements of dst's compute type to dtype dst, rounded once, stride elements
     * apart. */
    void (*narrow)(int64_t n, tl_dtype dst, const void *x, void *y, int64_t stride);
    /* n contiguous elements from any compute type (f64, f32, i64, bool) to any other:
     * rounded to nearest even; floats to i64 truncate toward zero. */
    void (*cast)(int64_t n, tl_dtype from, const void *x, tl_dtype to, void *y);
} tl_convert_table;

extern const tl_convert_table tl_convert_table_scalar, tl_convert_table_v2, tl_convert_table_v3,
    tl_convert_table_v4, tl_convert_table_neon;

#endif
