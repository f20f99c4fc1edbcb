/* operands.h: what a kernel is handed - a tile of a pointwise op, a matrix product. Public.
 *
 * A tile is n elements of every operand, contiguous, already widened to the compute type (f64 for
 * f64; f32 for f32, f16 and bf16; i64 and bool as they are). A tile function reads in[], writes out
 * and knows nothing of strides, broadcasting or storage types: eager and fused execution both loop
 * over it. */
#ifndef TL_OPERANDS_H
#define TL_OPERANDS_H

#include "tensor/array.h"
TL_BEGIN

enum { TL_TILE_MAX_IN = 8, TL_TILE_LEN = 512 };

typedef struct {
    int64_t n;
    const void *in[TL_TILE_MAX_IN];
    void *out;         /* may equal an input of the same element size */
    tl_dtype dtype;    /* tile type of the last input: the compute type of the values */
    const void *attrs; /* the op's attributes */
} tl_tile;

typedef void tl_tile_fn(const tl_tile *t);

/* C = A B, in f32 or, when f64 is set, in f64. A and B are of any of these types, each of its own;
 * C is f32, or f64 when f64 is set. Strides are in elements: A's and B's may be zero or negative, C
 * addresses each of its elements once and overlaps neither. */
typedef enum { TL_GEMM_F32, TL_GEMM_F64, TL_GEMM_F16, TL_GEMM_BF16 } tl_gemm_type;

typedef struct {
    const void *data;
    tl_gemm_type type;
    int64_t rs, cs; /* elements from one row, one column to the next */
} tl_gemm_mat;

typedef struct {
    int64_t m, n, k; /* A is m x k, B is k x n, C is m x n */
    tl_gemm_mat a, b;
    void *c;
    int64_t rsc, csc;
    bool f64;        /* compute and C in f64, else in f32 */
    bool accumulate; /* continue the chains that C holds */
} tl_gemm_args;
TL_END
#endif
