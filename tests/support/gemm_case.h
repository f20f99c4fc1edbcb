/* gemm_case.h: one matrix multiplication - sizes, types, layouts, values - at every vector level
 * against the naive chain.
 *
 * Buffers are compared whole, so what lies between C's elements must stay as it
 * was; they are exactly as large as the strides need, so a sanitizer sees any
 * step outside. All NaNs count as one. */
#ifndef TESTS_SUPPORT_GEMM_CASE_H
#define TESTS_SUPPORT_GEMM_CASE_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/kernels/gemm.h"

/* PLAIN: 24 random bits, magnitudes near 1, either sign. TIES: few bits, so that sums
 * often fall half way between floats. SMALL: products and sums are subnormal.
 * NEAR_TIES: products that miss half a unit of the sum by 2^-46 of themselves, too
 * little for a sum in double to see; NEAR_TIES_SMALL: the same at subnormal sums.
 * SPECIAL: also zeros of both signs, infinities, NaN, the largest and the smallest. */
enum { PLAIN, TIES, SMALL, NEAR_TIES, NEAR_TIES_SMALL, SPECIAL, VALUES };

enum {
    ROWS,
    ROWS_PADDED,
    COLS,
    COLS_PADDED,
    SPREAD,
    ROWS_UP,
    COLS_BACK,
    LAYOUTS_C,
    ZERO_ROW = LAYOUTS_C,
    ZERO_COL,
    LAYOUTS /* not for C */
};

typedef struct {
    int64_t m, n, k;
    tl_gemm_type ta, tb;
    int la, lb, lc;
    bool f64, accumulate;
    int values;
    int64_t task_rows, task_cols; /* 0: serial; else tasks of this size, last one first */
} gemm_case;

/* TL_TEST_SEED; a test starts from it, and draws. */
uint64_t gemm_seed(void);
void gemm_start(void);
uint32_t gemm_random(void);

/* Fails the test where a level's bits are not the chain's. */
void gemm_check(gemm_case t);
/* At least that many bytes, aligned as tasks want it; NULL for 0. */
void *gemm_scratch(int64_t bytes);

#endif
