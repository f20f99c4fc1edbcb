/* bench_gemm.h: how fast this machine is, and matrix multiplication beside BLIS and OpenBLAS.
 *
 * GFLOP/s count a fused multiply-add as two. A peer that is not installed, or a
 * number that could not be measured, is NaN.
 */
#ifndef TL_BENCH_GEMM_H
#define TL_BENCH_GEMM_H

#include <stdint.h>

#include "tensor/kernels/gemm.h"

/* One core, f32: the widest vectors of the processor; or vectors of 128, 256, 512 bits. */
double tl_bench_fma_peak_gflops(void);
double tl_bench_fma_peak_gflops_at(int bits);

/* One core, x = y + s*z over arrays larger than the caches, 12 bytes an element. */
double tl_bench_bandwidth_gbs(void);

enum { TL_BENCH_GEMM_SHAPES = 12 };

typedef struct {
    const char *name;
    int64_t m, n, k;
    double tally_gflops, blis_gflops, openblas_gflops; /* medians of interleaved repetitions */
    double tally_spread, blis_spread, openblas_spread; /* between the quartiles, over the median */
} tl_bench_gemm_row;

/* Times shape i of TL_BENCH_GEMM_SHAPES and fills its row. */
void tl_bench_gemm(const tl_gemm_table *table, int threads, int i, tl_bench_gemm_row *row);

#endif
