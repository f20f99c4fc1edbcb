/* operands.h: what kernels work on: views and copies of arrays, a tile of a pointwise op, a matrix
 * product. Public. */
#ifndef TL_OPERANDS_H
#define TL_OPERANDS_H

#include "tensor/c_type.h"
#include "tensor/threads.h"
TL_BEGIN

/* ---- arrays; all functions but tl_shape_check expect valid ones ---- */

/* Checks ndim, sizes >= 0, and that elements and bytes fit in int64. */
tl_status tl_shape_check(const tl_shape *s, tl_dtype d, tl_err *err);
/* The shape that a and b broadcast to, aligned at the last dim; TL_ESHAPE with both shapes. */
tl_status tl_shape_broadcast(tl_shape *out, const tl_array *a, const tl_array *b, tl_err *err);
/* TL_EDTYPE if c.type is known and the dtype is stored as another (F16 and BF16 as unsigned short,
 * BOOL as bool or unsigned char, I64 as 64-bit integers); TL_ESHAPE: c.bytes are too few then. */
tl_status tl_c_data_check(tl_c_data c, tl_dtype dtype, size_t bytes, tl_err *err);
void tl_array_set_contiguous(tl_array *a); /* strides from dims */
/* A view of a with shape s, to which zero strides broadcast it. */
tl_array tl_array_expand(const tl_array *a, const tl_shape *s);
/* A view of a with shape s of as many elements; false if a's strides allow none. */
bool tl_array_reshape_view(const tl_array *a, const tl_shape *s, tl_array *out);
/* Merges dims of n arrays of equal dims where the strides of all allow it, so that one short loop
 * nest serves all. */
void tl_array_collapse(tl_array *arrays, int n);
/* Copies element by element: same shape and dtype, any strides, no overlap. */
void tl_array_copy(const tl_array *dst, const tl_array *src);
/* tl_array_get and tl_array_put of the element at an address, in the caller's floating-point
 * environment (tensor/threads.h); put_i64 rounds x once. */
double tl_element_get(tl_dtype d, const void *p);
void tl_element_put(tl_dtype d, void *p, double x);
void tl_element_put_i64(tl_dtype d, void *p, int64_t x);

/* ---- a tile ----
 *
 * n elements of every operand, contiguous and already widened to the compute type (f16 and bf16 to
 * f32; all others as they are). A tile function reads in[] and writes out. Eager and fused
 * execution both loop over it, and handle strides, broadcasting and storage types. */
enum { TL_TILE_MAX_IN = 8, TL_TILE_LEN = 512 };
typedef struct {
    int64_t n;
    const void *in[TL_TILE_MAX_IN];
    void *out;         /* may equal an input of the same element size */
    tl_dtype dtype;    /* of the tile of the last input: the compute type of the values */
    const void *attrs; /* the op's */
} tl_tile;
typedef void tl_tile_fn(const tl_tile *t);

/* ---- a matrix product, C = A B ----
 *
 * Strides are in elements; A's and B's may be zero or negative. C addresses each of its elements
 * once and overlaps neither. */
typedef enum { TL_GEMM_F32, TL_GEMM_F64, TL_GEMM_F16, TL_GEMM_BF16 } tl_gemm_type;
typedef struct {
    const void *data;
    tl_gemm_type type; /* A's and B's may differ */
    int64_t rs, cs;    /* from one row, one column to the next */
} tl_gemm_mat;
typedef struct {
    int64_t m, n, k; /* A is m x k, B is k x n, C is m x n */
    tl_gemm_mat a, b;
    void *c;
    int64_t rsc, csc;
    bool f64;        /* compute, and store C, in f64; else in f32 */
    bool accumulate; /* continue the chains that C holds */
    /* NULL, but for convolutions, which only the library's kernels get: then B[k][j], of type f32
     * or f64, is at b.data + b_row[k] + b_col[j], in elements. */
    const int64_t *b_row, *b_col;
} tl_gemm_args;
TL_END
#endif
