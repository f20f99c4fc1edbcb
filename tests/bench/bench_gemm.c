/* bench_gemm.c: how fast this machine is, and matrix products beside BLIS and OpenBLAS.
 *
 * The peers are opened at run time, so that their symbols do not clash and
 * their absence is no error: BLIS by its own interface (strides as they come),
 * OpenBLAS by cblas. Products of a batch are called one by one.
 */
#define _POSIX_C_SOURCE 200809L
#include "tests/bench/bench.h"
#include "tensor/threads.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* --- the machine ------------------------------------------------------------ */

enum { STEPS = 200000, CHAINS = 12 };
static volatile float sink;

#if defined(__clang__)
#define BENCH_UNROLL _Pragma("unroll")
#else
#define BENCH_UNROLL _Pragma("GCC unroll 12") /* or the chains go by way of memory */
#endif

/* Each takes STEPS steps of CHAINS independent fused multiply-adds; returns lanes per vector. */
#if defined(__x86_64__)
__attribute__((target("avx512f"))) static int chains512(float one)
{
    __m512 x = _mm512_set1_ps(one), acc[CHAINS];
    BENCH_UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = x;
    for (int s = 0; s < STEPS; s++)
        BENCH_UNROLL for (int i = 0; i < CHAINS; i++)
        {
            acc[i] = _mm512_fmadd_ps(x, x, acc[i]);
            __asm__ volatile("" : "+v"(acc[i]));
        }
    BENCH_UNROLL for (int i = 0; i < CHAINS; i++) sink = _mm512_cvtss_f32(acc[i]);
    return 16;
}

__attribute__((target("avx2,fma"))) static int chains256(float one)
{
    __m256 x = _mm256_set1_ps(one), acc[CHAINS];
    BENCH_UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = x;
    for (int s = 0; s < STEPS; s++)
        BENCH_UNROLL for (int i = 0; i < CHAINS; i++)
        {
            acc[i] = _mm256_fmadd_ps(x, x, acc[i]);
            __asm__ volatile("" : "+x"(acc[i]));
        }
    BENCH_UNROLL for (int i = 0; i < CHAINS; i++) sink = _mm256_cvtss_f32(acc[i]);
    return 8;
}

static int chains(int bits, float one)
{
    if (bits == 512 && __builtin_cpu_supports("avx512f"))
        return chains512(one);
    if (bits == 256 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return chains256(one);
    return 0;
}
#elif defined(__aarch64__)
static int chains(int bits, float one)
{
    float32x4_t x = vdupq_n_f32(one), acc[CHAINS];
    if (bits != 128)
        return 0;
    BENCH_UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = x;
    for (int s = 0; s < STEPS; s++)
        BENCH_UNROLL for (int i = 0; i < CHAINS; i++)
        {
            acc[i] = vfmaq_f32(acc[i], x, x);
            __asm__ volatile("" : "+w"(acc[i]));
        }
    BENCH_UNROLL for (int i = 0; i < CHAINS; i++) sink = vgetq_lane_f32(acc[i], 0);
    return 4;
}
#else
static int chains(int bits, float one)
{
    (void)bits;
    (void)one;
    return 0;
}
#endif

double tl_bench_fma_peak_gflops_at(int bits)
{
    double best = (double)NAN;
    for (int r = 0; r < 30; r++) {
        const double start = tl_bench_now();
        const int lanes = chains(bits, 0x1p-20f);
        const double gflops = 2e-9 * STEPS * CHAINS * lanes / (tl_bench_now() - start);
        if (lanes && !(gflops <= best))
            best = gflops;
    }
    return best;
}

double tl_bench_fma_peak_gflops(void)
{
    for (int bits = 512; bits > 128; bits /= 2) {
        const double peak = tl_bench_fma_peak_gflops_at(bits);
        if (!isnan(peak))
            return peak;
    }
    return tl_bench_fma_peak_gflops_at(128);
}

double tl_bench_bandwidth_gbs(void)
{
    const size_t n = (size_t)24 << 20;
    float *x = calloc(3 * n, sizeof *x), *y = x + n, *z = y + n;
    double best = (double)NAN;
    if (!x)
        return best;
    for (size_t i = 0; i < 3 * n; i++)
        x[i] = 1;
    for (int r = 0; r < 5; r++) {
        const double start = tl_bench_processor();
        for (size_t i = 0; i < n; i++)
            x[i] = y[i] + 0.5f * z[i];
        const double rate = 12e-9 * (double)n / (tl_bench_processor() - start);
        if (!(rate <= best))
            best = rate;
        y[r] += x[n / 2];
    }
    sink = x[1];
    free(x);
    return best;
}

/* --- the three multiplications ------------------------------------------------- */

typedef struct {
    const char *name;
    int64_t m, n, k;
    bool at, bt, accumulate; /* A or B stored transposed */
    int64_t batch;           /* so many products, each of its own operands */
} shape;

static const shape shapes[TL_BENCH_GEMM_SHAPES] = {
    {"linear up", 768, 352, 128, false, true, false, 1},
    {"linear down", 768, 128, 352, false, true, false, 1},
    {"gradient of x", 768, 128, 352, false, false, false, 1},
    {"gradient of W", 352, 128, 768, true, false, true, 1},
    {"logits", 768, 65, 128, false, true, false, 1},
    {"attention scores", 64, 64, 32, false, true, false, 1},
    {"attention values", 64, 32, 64, false, false, false, 1},
    {"one row", 1, 352, 128, false, true, false, 1},
    {"few rows", 6, 768, 768, false, true, false, 1},
    {"few rows", 8, 256, 256, false, true, false, 1},
    {"odd sizes", 17, 257, 64, false, true, false, 1},
    {"48 scores", 64, 64, 32, false, true, false, 48},
    {"square 256", 256, 256, 256, false, false, false, 1},
    {"square 512", 512, 512, 512, false, false, false, 1},
    {"square 1024", 1024, 1024, 1024, false, false, false, 1},
    {"square 2048", 2048, 2048, 2048, false, false, false, 1},
};

/* Of float, and of double: s and d in the names. */
#define PEER_TYPES(s, real)                                                                     \
    typedef void bli_##s##gemm_fn(int transa, int transb, int64_t m, int64_t n, int64_t k,      \
                                  const real *alpha, const real *a, int64_t rsa, int64_t csa,   \
                                  const real *b, int64_t rsb, int64_t csb, const real *beta,    \
                                  real *c, int64_t rsc, int64_t csc);                           \
    typedef void cblas_##s##gemm_fn(int order, int transa, int transb, int m, int n, int k,     \
                                    real alpha, const real *a, int lda, const real *b, int ldb, \
                                    real beta, real *c, int ldc)
PEER_TYPES(s, float);
PEER_TYPES(d, double);
typedef void bli_threads_fn(int64_t n);
typedef void openblas_threads_fn(int n);

static struct {
    bli_sgemm_fn *blis;
    bli_dgemm_fn *blis64;
    cblas_sgemm_fn *openblas;
    cblas_dgemm_fn *openblas64;
} peers;

#define OPENBLAS TL_BUILD "/peers/openblas.so"

static void *symbol(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    return handle ? dlsym(handle, name) : NULL;
}

static void open_peers(int threads)
{
    bli_threads_fn *blis_threads;
    openblas_threads_fn *openblas_threads;
    *(void **)&peers.blis = symbol("libblis.so.4", "bli_sgemm");
    *(void **)&peers.blis64 = symbol("libblis.so.4", "bli_dgemm");
    *(void **)&blis_threads = symbol("libblis.so.4", "bli_thread_set_num_threads");
    *(void **)&peers.openblas = symbol(OPENBLAS, "scipy_cblas_sgemm");
    *(void **)&peers.openblas64 = symbol(OPENBLAS, "scipy_cblas_dgemm");
    *(void **)&openblas_threads = symbol(OPENBLAS, "scipy_openblas_set_num_threads");
    if (peers.openblas == NULL) { /* no deps-peers: the system's */
        *(void **)&peers.openblas = symbol("libopenblas.so.0", "cblas_sgemm");
        *(void **)&peers.openblas64 = symbol("libopenblas.so.0", "cblas_dgemm");
        *(void **)&openblas_threads = symbol("libopenblas.so.0", "openblas_set_num_threads");
    }
    if (blis_threads)
        blis_threads(threads);
    if (openblas_threads)
        openblas_threads(threads);
}

typedef struct {
    const tl_gemm_table *table;
    tl_gemm_args args;
    char *scratch; /* scratch_bytes for each thread */
    int64_t scratch_bytes;
    int threads;
    const shape *shape;
    bool f64;
} work;

typedef struct {
    const tl_gemm_plan *plan;
    const work *w;
} tasks_of;

static void run_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const tasks_of *t = ctx;
    for (int64_t task = begin; task < end; task++)
        tl_gemm_task(t->plan, task, t->w->scratch + thread * t->w->scratch_bytes);
}

static void run_tally(const work *w)
{
    tl_gemm_plan plan;
    const int tasks = w->threads == 1
                          ? 1
                          : (int)tl_gemm_plan_make(w->table, &w->args, w->threads, &plan);
    if (tasks == 1) {
        tl_gemm_serial(w->table, &w->args, w->scratch);
        return;
    }
    tl_parallel_for(tasks, 1, run_tasks, &(tasks_of){&plan, w});
}

#define BLIS(w, real, gemm)                                                                 \
    do {                                                                                    \
        const shape *s = (w)->shape;                                                        \
        const tl_gemm_args *g = &(w)->args;                                                 \
        const real one = 1, beta = s->accumulate;                                           \
        gemm(0, 0, s->m, s->n, s->k, &one, g->a.data, g->a.rs, g->a.cs, g->b.data, g->b.rs, \
             g->b.cs, &beta, g->c, s->n, 1);                                                \
    } while (0)

static void run_blis(const work *w)
{
    if (w->f64)
        BLIS(w, double, peers.blis64);
    else
        BLIS(w, float, peers.blis);
}

#define CBLAS(w, gemm)                                                                             \
    do {                                                                                           \
        enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };                                   \
        const shape *s = (w)->shape;                                                               \
        gemm(ROW_MAJOR, s->at ? TRANSPOSED : PLAIN, s->bt ? TRANSPOSED : PLAIN, (int)s->m,         \
             (int)s->n, (int)s->k, 1, (w)->args.a.data, (int)(s->at ? s->m : s->k),                \
             (w)->args.b.data, (int)(s->bt ? s->k : s->n), s->accumulate, (w)->args.c, (int)s->n); \
    } while (0)

static void run_openblas(const work *w)
{
    if (w->f64)
        CBLAS(w, peers.openblas64);
    else
        CBLAS(w, peers.openblas);
}

/* --- timing --------------------------------------------------------------------- */

enum { REPETITIONS = 11, SECONDS = 3 /* of a shape, at most */ };

static int64_t element_bytes(tl_gemm_type t)
{
    return t == TL_GEMM_F64 ? 8 : t == TL_GEMM_F32 ? 4 : 2;
}

static void run_batch(void (*run)(const work *), const work *w)
{
    const shape *s = w->shape;
    work one = *w;
    for (int64_t i = 0; i < s->batch; i++) {
        run(&one);
        one.args.a.data = (const char *)one.args.a.data +
                          s->m * s->k * element_bytes(one.args.a.type);
        one.args.b.data = (const char *)one.args.b.data +
                          s->k * s->n * element_bytes(one.args.b.type);
        one.args.c = (char *)one.args.c + s->m * s->n * (w->f64 ? 8 : 4);
    }
}

/* A repetition: one call to warm up, then calls enough for a few milliseconds. Threads of another
 * library must sleep before (OpenBLAS's wait for 2^26 ticks), and ours be awake: a core that has
 * slept comes back over milliseconds. */
static double rate_of(void (*run)(const work *), const work *w)
{
    const double flops = 2.0 * (double)(w->shape->m * w->shape->n * w->shape->k * w->shape->batch);
    const int calls = flops > 5e8 ? 1 : (int)(5e8 / flops);
    if (w->threads > 1)
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    const double warm = tl_bench_now() + (w->threads > 1 ? 20e-3 : 0);
    do
        run_batch(run, w);
    while (tl_bench_now() < warm);
    double (*const clock)(void) = w->threads > 1 ? tl_bench_now : tl_bench_processor;
    const double start = clock();
    for (int i = 0; i < calls; i++)
        run_batch(run, w);
    return 1e-9 * flops * calls / (clock() - start);
}

/* The same product of factors in bf16, which only have other bytes: zeros, mostly. */
static work halved(const work *w, const void *zeros)
{
    work h = *w;
    h.args.a.data = h.args.b.data = zeros;
    h.args.a.type = h.args.b.type = TL_GEMM_BF16;
    return h;
}

static void time_shape(const work *w, const work *half, tl_bench_gemm_row *row)
{
    double tally[REPETITIONS], halves[REPETITIONS], blis[REPETITIONS], openblas[REPETITIONS];
    const double start = tl_bench_now();
    int n = 0;
    for (; n < REPETITIONS && (n < 3 || tl_bench_now() - start < SECONDS); n++) {
        tally[n] = rate_of(run_tally, w);
        halves[n] = w->f64 ? (double)NAN : rate_of(run_tally, half) / tally[n];
        blis[n] = peers.blis ? rate_of(run_blis, w) : (double)NAN;
        openblas[n] = peers.openblas ? rate_of(run_openblas, w) : (double)NAN;
    }
    row->tally = tl_bench_timing_of(tally, n);
    row->half = tl_bench_timing_of(halves, n);
    row->blis = tl_bench_timing_of(blis, n);
    row->openblas = tl_bench_timing_of(openblas, n);
}

static void *numbers(int64_t n, bool f64)
{
    void *x = aligned_alloc(64, (size_t)(n * (f64 ? 8 : 4) + 63) / 64 * 64);
    for (int64_t i = 0; x && i < n; i++) {
        const double y = (double)(i * 7919 % 2003 - 1001) * 0x1p-10;
        if (f64)
            ((double *)x)[i] = y;
        else
            ((float *)x)[i] = (float)y;
    }
    return x;
}

void tl_bench_gemm(const tl_gemm_table *table, bool f64, int threads, int i, tl_bench_gemm_row *row)
{
    const shape *s = &shapes[i];
    const tl_gemm_type type = f64 ? TL_GEMM_F64 : TL_GEMM_F32;
    void *a = numbers(s->batch * s->m * s->k, f64), *b = numbers(s->batch * s->k * s->n, f64),
         *c = numbers(s->batch * s->m * s->n, f64),
         *zeros = calloc((size_t)(s->batch * (s->m + s->n) * s->k), 2);
    open_peers(threads);
    tl_threads_set(threads);
    work w = {.table = table,
              .threads = threads,
              .shape = s,
              .f64 = f64,
              .args = {.m = s->m,
                       .n = s->n,
                       .k = s->k,
                       .c = c,
                       .rsc = s->n,
                       .csc = 1,
                       .f64 = f64,
                       .accumulate = s->accumulate,
                       .a = {a, type, s->at ? 1 : s->k, s->at ? s->m : 1},
                       .b = {b, type, s->bt ? 1 : s->n, s->bt ? s->k : 1}}};
    work half = halved(&w, zeros);
    *row = (tl_bench_gemm_row){.name = s->name, .m = s->m, .n = s->n, .k = s->k};
    for (work *x = &w; x != NULL; x = x == &w ? &half : NULL) {
        tl_gemm_plan plan;
        tl_gemm_plan_make(table, &x->args, threads, &plan);
        const int64_t serial = tl_gemm_scratch_bytes(table, &x->args);
        x->scratch_bytes = plan.scratch_bytes < serial ? serial : plan.scratch_bytes;
        x->scratch = aligned_alloc(64, (size_t)(x->scratch_bytes * threads + 64) / 64 * 64);
    }
    if (a && b && c && zeros && w.scratch && half.scratch)
        time_shape(&w, &half, row);
    void *all[] = {a, b, c, zeros, w.scratch, half.scratch};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        free(all[k]);
}
