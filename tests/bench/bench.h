/* bench.h: the parts of the bench (bench.c), and what they share. A part prints its table line by
 * line and returns it as JSON. */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "tensor/isa.h"
#include "tensor/kernels/gemm.h"

/* ---- timing ---- */

double tl_bench_now(void); /* seconds */
typedef struct {
    double median, spread; /* between the quartiles, over the median */
} tl_bench_timing;
tl_bench_timing tl_bench_timing_of(double *x, int n); /* sorts x */

/* ---- nets: training steps beside PyTorch's (nets.py) ---- */

/* Every net of that name: its ways in turn, round by round, until the ratios' spread is under 5% or
 * a minute and a half over. Ratios of speed: the median of the rounds' and that of the least times,
 * which a busy machine disturbs least. */
json_t *tl_bench_net(const char *name);

/* ---- the rest ---- */

/* A training step compiled, beside the same step called, for widths 128 and 512, 1 and 2 threads:
 * seconds of both, their ratio, peak memory of both tapes; and what tracing 12 layers takes. */
json_t *tl_bench_graph(int rounds);

/* A step without a log, one whose results are all logged, and one between two such (.every), in
 * interleaved rounds; and the overhead of .every = 1, 10, 50, 100 that follows. */
json_t *tl_bench_log(int rounds);

/* A step in 1, 4 and 8 micro-batches with bf16 weights that are cast, and with a tied embedding,
 * over that without: least processor times, 1 thread. */
json_t *tl_bench_once(int rounds);

/* What the contract costs, 1 thread - each op's kernel beside the fastest free equivalent
 * (fast_loops.h): name, free, contract_ns, free_ns (a call each), ratio. functions: the
 * elementary ones, else the others. */
json_t *tl_bench_cost(const tl_isa *isa, bool functions, int rounds);

/* GFLOP/s count a fused multiply-add as two. A peer that is not installed, or a number that could
 * not be measured, is NaN.
 * One core, f32: the widest vectors of the processor; or vectors of 128, 256, 512 bits. */
double tl_bench_fma_peak_gflops(void);
double tl_bench_fma_peak_gflops_at(int bits);
/* One core, x = y + s*z over arrays larger than the caches, 12 bytes an element. */
double tl_bench_bandwidth_gbs(void);

enum { TL_BENCH_GEMM_SHAPES = 16 };
typedef struct {
    const char *name;
    int64_t m, n, k;
    tl_bench_timing tally, blis, openblas; /* of interleaved repetitions, in GFLOP/s */
} tl_bench_gemm_row;
/* Times shape i of TL_BENCH_GEMM_SHAPES and fills its row. */
void tl_bench_gemm(const tl_gemm_table *table, int threads, int i, tl_bench_gemm_row *row);

#endif
