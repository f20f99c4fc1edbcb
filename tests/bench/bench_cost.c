/* bench_cost.c: what the contract costs. Kernel and loop take turns on the same data; the ratio is
 * that of the least times, which a busy machine disturbs least. */
#define _POSIX_C_SOURCE 200809L
#include "tests/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/fast_loops.h"

enum {
    N = 4096,
    ROW = 1024,
    ROWS = 16,
    TOKENS = 256,
    WIDTH = 128,
    VOCAB = 65,
    LEN = 256,
    DIM = 64,
    GM = 256,
    GN = 512,
    GK = 512,
    SIDE = 128,
    D = SIDE * SIDE
};

typedef struct {
    const tl_isa *isa;
    float *x, *positive, *y, *gamma, *beta, *grad, *m, *v; /* ROWS * ROW or more */
    double *acc, *x64, *y64;
    uint16_t *a16, *b16, *pack16;
    float *c16;
    char *scratch;
} work;

typedef void job(const work *w);

static volatile float sink;

/* ---- elementary functions over N ---- */

#define FUNCTION(name, kernel, input)                                                  \
    static void own_##name(const work *w) { w->isa->math->kernel(N, w->input, w->y); } \
    static void free_##name(const work *w) { fast_##name(N, w->input, w->y); }
FUNCTION(exp, exp32, x)
FUNCTION(log, log32, positive)
FUNCTION(sin, sin32, x)
FUNCTION(cos, cos32, x)
FUNCTION(tanh, tanh32, x)
FUNCTION(erf, erf32, x)
FUNCTION(sigmoid, sigmoid32, x)
FUNCTION(rsqrt, rsqrt32, positive)
FUNCTION(exp2, exp2_32, x)
FUNCTION(expm1, expm1_32, x)
FUNCTION(log2, log2_32, positive)
FUNCTION(log1p, log1p32, positive)

static void own_pow(const work *w) { w->isa->math->pow32(N, w->positive, 1.5, w->y); }
static void free_pow(const work *w) { fast_pow(N, w->positive, w->y); }

#define ACTIVATION(name)                                                     \
    static void own_##name(const work *w)                                    \
    {                                                                        \
        w->isa->tile[TL_TILE_##name](                                        \
            &(tl_tile){.n = N, .in = {w->x}, .out = w->y, .dtype = TL_F32}); \
    }                                                                        \
    static void free_##name(const work *w) { fast_##name(N, w->x, w->y); }
ACTIVATION(silu)
ACTIVATION(gelu)
ACTIVATION(gelu_tanh)
ACTIVATION(softplus)

#define BINARY(name)                                                                      \
    static void own_##name(const work *w)                                                 \
    {                                                                                     \
        w->isa->tile[TL_TILE_##name](                                                     \
            &(tl_tile){.n = N, .in = {w->x, w->positive}, .out = w->y, .dtype = TL_F32}); \
    }                                                                                     \
    static void free_##name(const work *w) { fast_##name(N, w->x, w->positive, w->y); }
BINARY(add)
BINARY(swiglu)

/* ---- rows: ROWS of ROW ---- */

#define EACH_ROW for (int64_t at = 0; at < (int64_t)ROWS * ROW; at += ROW)
#define ROW_JOB(name, own, free)                            \
    static void own_##name(const work *w) { EACH_ROW own; } \
    static void free_##name(const work *w) { EACH_ROW free; }
ROW_JOB(sum, sink = w->isa->row->lanes32(ROW, w->x + at), sink = fast_sum(ROW, w->x + at))
ROW_JOB(mean, sink = w->isa->row->lanes32(ROW, w->x + at) / ROW, sink = fast_mean(ROW, w->x + at))
ROW_JOB(square_sum, sink = (float)w->isa->row->square_sum32(ROW, w->x + at),
        sink = fast_square_sum(ROW, w->x + at))
ROW_JOB(max, sink = w->isa->row->max32(ROW, w->x + at), sink = fast_max(ROW, w->x + at))
static void own_fold(const work *w)
{
    w->isa->row->fold32(&(tl_norm_rows){.n = ROW, .rows = ROWS, .x = w->x, .fold = w->acc}, 0, ROW,
                        0);
}
static void free_fold(const work *w) { EACH_ROW fast_fold(ROW, w->x + at, w->y); }
ROW_JOB(entropy, sink = (float)w->isa->row->cross_entropy32(ROW, w->x + at, 7, 0),
        sink = fast_cross_entropy(ROW, w->x + at, 7))
ROW_JOB(entropy_grad, w->isa->row->cross_entropy_grad32(ROW, w->x + at, 7, 0, 0.1, w->y + at),
        fast_cross_entropy_grad(ROW, w->x + at, 7, 0.1f, w->y + at))
ROW_JOB(rotary, w->isa->row->rotary32(ROW, w->x + at, w->gamma, w->beta, false, false, w->y + at),
        fast_rotary(ROW, w->x + at, w->gamma, w->beta, w->y + at))

/* By a kernel of the loop over rows, of inputs a, b, c. */
#define LOOP_JOB(name, slot, a, b, c, free)                                            \
    static void own_##name(const work *w)                                              \
    {                                                                                  \
        static float mean[ROWS], rstd[ROWS];                                           \
        const tl_norm_attrs attrs = {.eps = 1e-5, .k = 1};                             \
        w->isa->row->rows32[TL_ROW_##slot](                                            \
            &(tl_rows){ROW, ROWS, {a, b, c}, {w->y, mean, rstd}, &attrs}, 0, ROWS, 0); \
    }                                                                                  \
    static void free_##name(const work *w) { EACH_ROW free; }
LOOP_JOB(softmax, softmax, w->x, NULL, NULL, fast_softmax(ROW, w->x + at, w->y + at))
LOOP_JOB(online, softmax, w->x, NULL, NULL, fast_softmax_online(ROW, w->x + at, w->y + at))
LOOP_JOB(softmax_grad, softmax_grad, w->positive, w->x, NULL,
         fast_softmax_grad(ROW, w->x + at, w->positive + at, w->y + at))
LOOP_JOB(log_softmax, log_softmax, w->x, NULL, NULL, fast_log_softmax(ROW, w->x + at, w->y + at))
LOOP_JOB(rms_norm, rms_norm, w->x, w->gamma, NULL,
         fast_rms_norm(ROW, w->x + at, w->gamma, 1e-5f, w->y + at))
LOOP_JOB(layer_norm, layer_norm, w->x, w->gamma, w->beta,
         fast_layer_norm(ROW, w->x + at, w->gamma, w->beta, 1e-5f, w->y + at))

/* The gradient of a norm; of rms_norm there is no mean. */
#define NORM_JOB(name, mean, free)                                                        \
    static void own_##name(const work *w)                                                 \
    {                                                                                     \
        static float stat[2][ROWS];                                                       \
        tl_norm_rows j = {ROW, ROWS, w->x, w->grad, w->gamma, mean, stat[1], w->y, NULL}; \
        w->isa->row->norm_grad32(&j, 0, ROWS, 0);                                         \
    }                                                                                     \
    static void free_##name(const work *w) { EACH_ROW free; }
NORM_JOB(rms_norm_grad, NULL,
         fast_rms_norm_grad(ROW, w->grad + at, w->x + at, w->gamma, 0.4f, w->y + at))
NORM_JOB(layer_norm_grad, stat[0],
         fast_layer_norm_grad(ROW, w->grad + at, w->x + at, w->gamma, 0.1f, 0.4f, w->y + at))

/* ---- the rest ---- */

static void own_scatter(const work *w)
{
    for (int64_t i = 0; i < TOKENS; i++)
        w->isa->row->accumulate32(WIDTH, w->x + i % 97 * WIDTH, w->y + i * 37 % VOCAB * WIDTH);
}
static void free_scatter(const work *w)
{
    for (int64_t i = 0; i < TOKENS; i++)
        fast_fold(WIDTH, w->x + i % 97 * WIDTH, w->y + i * 37 % VOCAB * WIDTH);
}

static void own_adamw(const work *w)
{
    tl_adamw_step s = {.b1 = 0.9,
                       .b1c = 0.1,
                       .b2 = 0.99,
                       .b2c = 0.01,
                       .eps = 1e-8,
                       .lr = 1e-9,
                       .wd = 0.1,
                       .c1 = 1,
                       .c2 = 1,
                       .clip = 1};
    w->isa->row->adamw32(N, w->y, w->grad, w->m, w->v, &s);
}
static void free_adamw(const work *w)
{
    fast_adamw(N, w->y, w->grad, w->m, w->v, 1e-9f, 0.9f, 0.99f, 1e-8f, 0.1f, 1, 1);
}

/* ---- f64 ---- */

static void own_exp64(const work *w) { w->isa->math->exp64(D, w->x64, w->y64); }
static void free_exp64(const work *w) { fast_exp64(D, w->x64, w->y64); }
static void own_matmul64(const work *w)
{
    tl_gemm_args g = {.m = SIDE,
                      .n = SIDE,
                      .k = SIDE,
                      .c = w->y64,
                      .rsc = SIDE,
                      .csc = 1,
                      .f64 = true,
                      .a = {w->x64, TL_GEMM_F64, SIDE, 1},
                      .b = {w->x64, TL_GEMM_F64, SIDE, 1}};
    tl_gemm_serial(w->isa->gemm, &g, w->scratch);
}
static void free_matmul64(const work *w)
{
    fast_matmul64(SIDE, SIDE, SIDE, w->x64, w->x64, w->y64);
}

static void own_attention(const work *w)
{
    tl_attention_array q = {w->x, 0, 0, DIM}, k = {w->positive, 0, 0, DIM},
                       v = {w->grad, 0, 0, DIM};
    tl_attention_args a = {.batch = 1,
                           .q_heads = 1,
                           .kv_heads = 1,
                           .q_len = LEN,
                           .kv_len = LEN,
                           .dim = DIM,
                           .causal = true,
                           .scale = 0.125,
                           .q = q,
                           .k = k,
                           .v = v,
                           .o = {w->y, 0, 0, DIM}};
    for (int64_t task = 0; task < tl_attention_forward_tasks(&a); task++)
        w->isa->attention->forward(&a, task, w->scratch);
}
static void free_attention(const work *w)
{
    fast_attention(LEN, DIM, DIM, w->x, w->positive, w->grad, 0.125f, w->y,
                   (float *)(void *)w->scratch);
}

static void own_bf16(const work *w)
{
    tl_gemm_args g = {.m = GM,
                      .n = GN,
                      .k = GK,
                      .c = w->c16,
                      .rsc = GN,
                      .csc = 1,
                      .a = {w->a16, TL_GEMM_BF16, GK, 1},
                      .b = {w->b16, TL_GEMM_BF16, GN, 1}};
    tl_gemm_serial(w->isa->gemm, &g, w->scratch);
}
static void free_bf16(const work *w)
{
    fast_bf16_matmul(GM, GN, GK, w->a16, w->b16, w->c16, w->pack16);
}
static void free_amx(const work *w)
{
    fast_amx_matmul(GM, GN, GK, w->a16, w->b16, w->c16, w->pack16);
}

static const struct {
    const char *name, *free_name;
    job *own, *free;
    int64_t elements;
} rows[] = {
#define ENTRY(name, by)                       \
    {                                         \
#name, by, own_##name, free_##name, N \
    }
    ENTRY(exp, "libmvec"),
    ENTRY(log, "libmvec"),
    ENTRY(sin, "libmvec"),
    ENTRY(cos, "libmvec"),
    ENTRY(tanh, "libmvec"),
    ENTRY(erf, "libmvec"),
    ENTRY(sigmoid, "libmvec"),
    ENTRY(silu, "libmvec"),
    ENTRY(gelu, "libmvec"),
    ENTRY(gelu_tanh, "libmvec"),
    ENTRY(softplus, "libmvec"),
    ENTRY(exp2, "libmvec"),
    ENTRY(expm1, "libmvec"),
    ENTRY(log2, "libmvec"),
    ENTRY(log1p, "libmvec"),
    ENTRY(rsqrt, "loop"),
    {"pow 3/2", "loop", own_pow, free_pow, N},
    ENTRY(swiglu, "libmvec"), /* the last of the FUNCTIONS */
    ENTRY(add, "loop"),
#define ROW_ENTRY(name, label, by)                             \
    {                                                          \
        label, by, own_##name, free_##name, (int64_t)ROWS *ROW \
    }
    ROW_ENTRY(sum, "sum of a row", "loop"),
    ROW_ENTRY(mean, "mean of a row", "loop"),
    ROW_ENTRY(square_sum, "square_sum", "loop, f32"),
    ROW_ENTRY(max, "max of a row", "loop"),
    ROW_ENTRY(fold, "sum over rows", "loop, f32"),
    ROW_ENTRY(softmax, "softmax", "loop, libmvec"),
    ROW_ENTRY(online, "softmax", "online, libmvec"),
    ROW_ENTRY(softmax_grad, "softmax_grad", "loop"),
    ROW_ENTRY(log_softmax, "log_softmax", "loop, libmvec"),
    ROW_ENTRY(entropy, "cross_entropy", "loop, libmvec"),
    ROW_ENTRY(rms_norm, "rms_norm", "loop"),
    ROW_ENTRY(layer_norm, "layer_norm", "loop, one pass"),
    ROW_ENTRY(rotary, "rotary", "loop"),
    ROW_ENTRY(rms_norm_grad, "rms_norm_grad", "loop"),
    ROW_ENTRY(layer_norm_grad, "layer_norm_grad", "loop"),
    ROW_ENTRY(entropy_grad, "cross_entropy_grad", "loop, libmvec"),
    {"exp f64", "libmvec", own_exp64, free_exp64, D},
    {"matmul f64", "loop", own_matmul64, free_matmul64, D},
    {"embedding gradient", "loop", own_scatter, free_scatter, (int64_t)TOKENS *WIDTH},
    {"adamw", "loop", own_adamw, free_adamw, N},
    {"attention", "online loop", own_attention, free_attention, (int64_t)LEN *LEN / 2},
    {"matmul bf16", "AVX512-BF16", own_bf16, free_bf16, (int64_t)GM *GN},
    {"matmul bf16", "AMX", own_bf16, free_amx, (int64_t)GM *GN},
};
enum {
    ENTRIES = sizeof rows / sizeof *rows,
    FUNCTIONS = 18,
    LARGEST = LEN * DIM > ROWS *ROW ? LEN *DIM : ROWS *ROW
};

static double timed(job *f, const work *w, int calls)
{
    double start = tl_bench_now();
    for (int i = 0; i < calls; i++)
        f(w);
    return (tl_bench_now() - start) / calls;
}

static float *numbers(float scale, float least)
{
    float *x = aligned_alloc(64, LARGEST * sizeof *x);
    for (int64_t i = 0; x != NULL && i < LARGEST; i++) {
        float u = (float)(i * 7919 % 2003 - 1001) / 1001;
        x[i] = least > 0 ? least + (u + 1) * scale : u * scale;
    }
    return x;
}

/* bf16 between 1/2 and 2, of both signs. */
static uint16_t *halves(int64_t n)
{
    uint16_t *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; x != NULL && i < n; i++)
        x[i] = (uint16_t)(0x3f00 + i * 7919 % 256 + (i * 104729 % 2003 % 2 != 0 ? 0x8000 : 0));
    return x;
}

/* The processor lacks what the other one needs. */
static bool absent(const work *w, int i)
{
    return (rows[i].free == free_bf16 &&
            !fast_bf16_matmul(GM, GN, GK, w->a16, w->b16, w->c16, w->pack16)) ||
           (rows[i].free == free_amx &&
            !fast_amx_matmul(GM, GN, GK, w->a16, w->b16, w->c16, w->pack16));
}

/* Both products agree as far as their rounding lets them: what is timed is a product. */
static bool alike(const work *w, int i)
{
    double most = 0, apart = 0;
    if (rows[i].own != own_bf16)
        return true;
    float *c = malloc((size_t)GM * GN * sizeof *c);
    if (c == NULL)
        return false;
    rows[i].own(w);
    memcpy(c, w->c16, (size_t)GM * GN * sizeof *c);
    rows[i].free(w);
    for (int64_t k = 0; k < (int64_t)GM * GN; k++) {
        most = fmax(most, fabs((double)c[k]));
        apart = fmax(apart, fabs((double)c[k] - (double)w->c16[k]));
    }
    free(c);
    return most > 0 && apart <= 1e-4 * most;
}

static json_t *row_of(const work *w, int i, int rounds)
{
    double own = 1e9, other = 1e9, n = (double)rows[i].elements;
    int calls = 1 + (int)(200e-6 / timed(rows[i].own, w, 3));
    bool lacks = absent(w, i), good = lacks || alike(w, i);
    for (int r = 0; r < rounds; r++) {
        double a = timed(rows[i].own, w, calls), b = lacks ? other : timed(rows[i].free, w, calls);
        own = a < own ? a : own;
        other = b < other ? b : other;
    }
    printf("%-20s %-16s %10.3f", rows[i].name, rows[i].free_name, own * 1e9 / n);
    if (lacks)
        printf("  not on this processor\n");
    else
        printf(" %10.3f %8.2f%s\n", other * 1e9 / n, own / other, good ? "" : "  OTHER RESULTS");
    return json_pack("{s:s,s:s,s:f,s:o,s:o}", "name", rows[i].name, "free", rows[i].free_name,
                     "contract_ns", own * 1e9, "free_ns",
                     lacks ? json_null() : json_real(other * 1e9), "ratio",
                     lacks ? json_null() : json_real(own / other));
}

json_t *tl_bench_cost(const tl_isa *isa, bool functions, int rounds)
{
    work w = {.isa = isa,
              .x = numbers(4, 0),
              .positive = numbers(3, 0.01f),
              .y = numbers(1, 0),
              .gamma = numbers(1, 0),
              .beta = numbers(1, 0),
              .grad = numbers(0.1f, 0),
              .m = numbers(0.1f, 0),
              .v = numbers(0.1f, 0.1f)};
    w.acc = calloc(ROW, sizeof *w.acc);
    w.x64 = malloc(D * sizeof *w.x64);
    w.y64 = malloc(D * sizeof *w.y64);
    for (int i = 0; w.x64 != NULL && i < D; i++)
        w.x64[i] = (double)(i * 7919 % 2003 - 1001) / 251;
    w.a16 = halves((int64_t)GM * GK);
    w.b16 = halves((int64_t)GK * GN);
    w.pack16 = aligned_alloc(64, (size_t)GK * GN * 2);
    w.c16 = aligned_alloc(64, (size_t)GM * GN * sizeof *w.c16);
    w.scratch = aligned_alloc(64, 16 << 20);
    json_t *all = json_array();
    bool ready = w.x && w.positive && w.y && w.gamma && w.beta && w.grad && w.m && w.v && w.acc &&
                 w.x64 && w.y64 && w.a16 && w.b16 && w.pack16 && w.c16 && w.scratch;
    printf("\nwhat the contract costs, 1 thread, f32 unless named, ns an element; the others by "
           "-O3 -ffast-math -march=native\n%-20s %-16s %10s %10s %8s\n",
           "op", "beside", "contract", "free", "ratio");
    for (int i = functions ? 0 : FUNCTIONS; ready && i < (functions ? FUNCTIONS : ENTRIES); i++)
        json_array_append_new(all, row_of(&w, i, rounds));
    void *all_memory[] = {w.x,   w.positive, w.y,   w.gamma, w.beta, w.grad,   w.m,   w.v,
                          w.acc, w.x64,      w.y64, w.a16,   w.b16,  w.pack16, w.c16, w.scratch};
    for (size_t i = 0; i < sizeof all_memory / sizeof *all_memory; i++)
        free(all_memory[i]);
    return all;
}
