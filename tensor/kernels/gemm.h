/* gemm.h: matrix multiplication as one chain per element.
 *
 * Every function, at every vector level and for every task split, gives the chain of NUMERICS 5.1,
 * from C if it accumulates. tensor/operands.h has the operands.
 *
 * Parallel use:   tl_gemm_plan plan;
 *                 int64_t tasks = tl_gemm_plan_make(table, &args, threads, &plan);
 *                 for each task (in any order, on any thread): tl_gemm_task(&plan, task, scratch);
 * where scratch is plan.scratch_bytes, a multiple of 64, of the thread's own memory, 64-byte
 * aligned (may be NULL if that is 0). Tasks are independent blocks of C, at most
 * one per thread; each chain lies within one task.
 * Inside a parallel region:  tl_gemm_serial(table, &args, scratch), with
 * tl_gemm_scratch_bytes(table, &args) of scratch.
 */
#ifndef TL_KERNELS_GEMM_H
#define TL_KERNELS_GEMM_H

#include "tensor/operands.h"

/* The arithmetics for which a vector level has kernels. TL_GEMM_WIDE is f64 with factors of at most
 * 24 bits, whose product is exact: without hardware fma it is much faster than f64. */
typedef enum {
    TL_GEMM_IN_F32,
    TL_GEMM_IN_F64,
    TL_GEMM_WIDE,
    TL_GEMM_ARITHMETICS
} tl_gemm_arithmetic;

/* Operands of the inner loops, all of the compute type. A has any strides or is packed by pack_a; B
 * has rows of unit stride or is packed by pack_b. For lines(), B's columns have unit stride, and it
 * may be of f16 or bf16 where the compute type is f32. */
typedef struct {
    int64_t m, n, k;
    const void *a;
    int64_t ars, acs;
    const void *b;
    int64_t brs, bcs;
    tl_gemm_type b_type; /* for lines() */
    bool a_packed, b_packed;
    bool b_beside; /* few rows, which come from memory strip by strip */
    bool accumulate;
    int64_t strip; /* columns of C in a strip, as given to pack_b */
    void *c;
    int64_t rsc, csc;
} tl_gemm_block;

enum {
    TL_GEMM_LINES = 6,     /* most rows of lines() */
    TL_GEMM_FAR = 1 << 20, /* a B of more bytes does not fit the second cache */
};

typedef struct {
    int64_t mr, nr;    /* rows and columns of the register tile */
    int64_t tall;      /* rows of the tile for strips of at most two vectors */
    int64_t few, wide; /* with at most `few` rows, strips of `wide` columns are faster */
    int64_t lanes;     /* elements of a vector */
    void (*block)(const tl_gemm_block *g);
    /* Like block, for a B with contiguous columns, 1 to TL_GEMM_LINES rows, and at least `lanes`
     * columns, which are adjacent in C. NULL where the level has none. */
    void (*lines)(const tl_gemm_block *g);
    /* Pack A's m x k block into panels of about mr (or tall) rows, and B's k x n block into strips
     * that zeros fill up to a multiple of lanes; both k-major. dst has m * k elements for A, n
     * (rounded up to lanes) * k for B. */
    void (*pack_a)(const tl_gemm_mat *a, int64_t m, int64_t k, int64_t strip, void *dst);
    void (*pack_b)(const tl_gemm_mat *b, int64_t n, int64_t k, int64_t strip, void *dst);
    /* Like pack_b, with B[k][j] = src[row[k] + col[j]] of the compute type. */
    void (*gather_b)(const void *src, const int64_t *row, const int64_t *col, int64_t n, int64_t k,
                     int64_t strip, void *dst);
} tl_gemm_kernel;

static inline int64_t tl_gemm_size(tl_gemm_type type)
{
    return type == TL_GEMM_F64 ? 8 : type == TL_GEMM_F32 ? 4 : 2;
}

/* Columns of C in a strip. */
static inline int64_t tl_gemm_strip(const tl_gemm_kernel *k, int64_t m, int64_t n)
{
    return m <= k->few                                        ? k->wide
           : n <= 2 * k->lanes || (m > k->mr && m <= k->tall) ? 2 * k->lanes
                                                              : k->nr;
}

typedef struct {
    tl_gemm_kernel kernel[TL_GEMM_ARITHMETICS];
} tl_gemm_table;

extern const tl_gemm_table tl_gemm_table_scalar, tl_gemm_table_v2, tl_gemm_table_v3,
    tl_gemm_table_v4, tl_gemm_table_neon;

typedef struct {
    const tl_gemm_table *table;
    tl_gemm_args args;
    int64_t rows, cols; /* size of a task's block of C; the last ones may be smaller */
    int64_t across;     /* tasks side by side */
    int64_t tasks;
    int64_t scratch_bytes; /* needed by each thread that runs tasks */
} tl_gemm_plan;

int64_t tl_gemm_plan_make(const tl_gemm_table *t, const tl_gemm_args *g, int threads,
                          tl_gemm_plan *plan);
/* Sets another task size, for tests. */
void tl_gemm_plan_split(tl_gemm_plan *plan, int64_t rows, int64_t cols);
void tl_gemm_task(const tl_gemm_plan *plan, int64_t task, void *scratch);

int64_t tl_gemm_scratch_bytes(const tl_gemm_table *t, const tl_gemm_args *g);
void tl_gemm_serial(const tl_gemm_table *t, const tl_gemm_args *g, void *scratch);

#endif
