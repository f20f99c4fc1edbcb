/* bench.h: the parts of the bench (bench.c), and what they share. A part prints its table line by
 * line and returns it as JSON. */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "tensor/isa.h"
#include "tensor/kernels/gemm.h"

/* ---- timing ---- */

double tl_bench_now(void);       /* seconds */
double tl_bench_processor(void); /* of this process, which a busy machine disturbs least */
typedef struct {
    double median, spread; /* between the quartiles, over the median */
} tl_bench_timing;
tl_bench_timing tl_bench_timing_of(double *x, int n); /* sorts x */

/* ---- PyTorch: nets.py, a process of its own, which takes a step when it is asked to ---- */

enum { TL_BENCH_NUMBERS = 7 };
typedef struct {
    FILE *to, *from; /* NULL: PyTorch is not installed */
    pid_t pid;
    double update, spent; /* seconds of the optimizer and of the processor in the last step */
    double grown;         /* bytes, at its largest */
} tl_bench_peer;
tl_bench_peer tl_bench_peer_open(const char *net, const int64_t p[TL_BENCH_NUMBERS], int threads);
/* Seconds; NaN if it has no such way, or has died. */
double tl_bench_peer_step(tl_bench_peer *p, const char *way);
void tl_bench_peer_close(tl_bench_peer *p);

/* ---- nets: training steps beside PyTorch's (nets.py) ---- */

/* Every net of that name: its ways in turn, round by round, until the ratios' spread is under 5% or
 * a minute and a half over. Ratios of speed: the median of the rounds' and that of the least times,
 * which a busy machine disturbs least. */
json_t *tl_bench_net(const char *name);

/* ---- the rest ---- */

/* Causal attention with its gradients, 1 thread, against the peak, beside PyTorch's of two kinds:
 * its fused one, and one written out. */
json_t *tl_bench_attention(int rounds);

/* Ops bound by memory, forward and backward, 1 thread, in the cache and from memory: against moving
 * their bytes, beside PyTorch's. */
json_t *tl_bench_rows(int rounds);

/* A training step compiled, beside the same step called, for widths 128 and 512, 1 and 2 threads:
 * seconds of both, their ratio, peak memory of both tapes; and what tracing 12 layers takes. */
json_t *tl_bench_graph(int rounds);

/* A step without a log, one whose results are all logged, and one between two such (.every), in
 * interleaved rounds; and the overhead of .every = 1, 10, 50, 100 that follows. */
json_t *tl_bench_log(int rounds);

/* A step in 1, 4 and 8 micro-batches with bf16 weights that are cast, and with a tied embedding,
 * over that without: least processor times, 1 thread. */
json_t *tl_bench_once(int rounds);

/* Steps of 1 to 64 samples and of 1 to 64 layers, drawn in scaling.svg of the build; and 10,000 ops
 * on 1, 32 and 1024 elements, called and compiled, beside loops over arrays: least processor times,
 * 1 thread. */
json_t *tl_bench_scaling(int rounds);

/* A Llama of 410 MB that decodes a token at a time: bytes of weights a second, 1 and 2 threads. */
json_t *tl_bench_decode(int rounds);

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
    tl_bench_timing half; /* ours of bf16 factors over ours of f32 ones; NaN of f64 */
} tl_bench_gemm_row;
/* Times shape i of TL_BENCH_GEMM_SHAPES and fills its row. */
void tl_bench_gemm(const tl_gemm_table *table, bool f64, int threads, int i,
                   tl_bench_gemm_row *row);

#endif
