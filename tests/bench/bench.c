/* bench.c: speed, as figures and as fractions of what the machine can do.
 *
 *   bench [--quick] [--json FILE] [PART ...]     all parts, or those named (at the end of this
 *                                                file); default FILE: bench.json in the build
 *
 * Everything is timed in interleaved rounds, so that a change in the machine's
 * speed meets all alike; medians are printed, with the spread between quartiles. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "autograd/internal.h"
#include "tally.h"
#include "tensor/isa.h"
#include "tests/bench/bench.h"

enum { ROUNDS = 200 };

double tl_bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double tl_bench_processor(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

tl_bench_timing tl_bench_timing_of(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return (tl_bench_timing){x[n / 2], (x[3 * n / 4] - x[n / 4]) / x[n / 2]};
}

/* ---- what the machine can do: one core's GFLOP/s, and GB/s, measured at the first question ----
 */

static double peak(void)
{
    static double known;
    return known = known > 0 ? known : tl_bench_fma_peak_gflops();
}

static double bandwidth(void)
{
    static double known;
    return known = known > 0 ? known : tl_bench_bandwidth_gbs();
}

/* ---- the training step: 4 layers, 4 heads, 2 kv heads, 12 x 64 tokens ---- */

enum { BATCH = 12, SEQ = 64, TOKENS = BATCH * SEQ, VOCAB = 65 };

typedef struct {
    tl_llama_config config;
    tl_model *m;
    tl_tape *t;
    tl_opt *opt;
    int64_t ids[TOKENS], targets[TOKENS];
    double bytes; /* of the last step */
} trainer;

static void trainer_open(trainer *r, int64_t width)
{
    *r = (trainer){.config = {.vocab = VOCAB,
                              .pairing = TL_ROTARY_HALF,
                              .width = width,
                              .layers = 4,
                              .heads = 4,
                              .kv_heads = 2,
                              .hidden = (width * 8 / 3 + 31) / 32 * 32,
                              .max_positions = SEQ}};
    r->m = tl_model_new(.seed = 1);
    r->t = tl_tape_new(r->m);
    r->opt = tl_adamw_new(r->m, .lr = 1e-3, .weight_decay = 0.1, .clip = 1);
    for (int i = 0; i < TOKENS; i++) {
        r->ids[i] = (i * 7 + i / 5) % VOCAB;
        r->targets[i] = (r->ids[i] * 3 + 1) % VOCAB;
    }
}

/* Bytes that the step's ops read and write, each operand once: what would cross the
 * memory bus if nothing stayed in a cache. Views move nothing. */
static double tape_bytes(const tl_tape *t)
{
    double bytes = 0;
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const tl_node *n = &t->node[i];
        if (n->op->traits & TL_VIEW)
            continue;
        for (int k = 0; k < n->n_in; k++) {
            const tl_value *v = tl_is_none(n->in[k]) ? NULL : tl_peek(t, n->in[k]);
            if (v != NULL)
                bytes += (double)tl_array_count(&v->a) * (double)tl_dtype_size(v->a.dtype);
        }
        for (int k = 0; k < n->n_out; k++) {
            const tl_array *a = &tl_values_at(&t->values, n->out + (uint32_t)k)->a;
            bytes += (double)tl_array_count(a) * (double)tl_dtype_size(a->dtype);
        }
    }
    return bytes;
}

static double trainer_step(trainer *r)
{
    double start = tl_bench_now();
    tl_tensor x = tl_data(r->t, r->ids, TL_I64, TL_DIMS(BATCH, SEQ)),
              y = tl_data(r->t, r->targets, TL_I64, TL_DIMS(BATCH, SEQ));
    tl_backward(r->t, tl_cross_entropy(r->t, tl_llama(r->t, r->m, &r->config, x), y, TL_MEAN));
    tl_step(r->opt, r->t);
    double seconds = tl_bench_now() - start;
    r->bytes = tape_bytes(r->t);
    start = tl_bench_now();
    tl_tape_reset(r->t);
    return seconds + tl_bench_now() - start;
}

/* Multiply-adds of a step, twice: 6 a parameter and token in the matrices, and the
 * attention's scores and values (half of them masked), forward once and backward 2.5 times. */
static double trainer_flops(trainer *r)
{
    const tl_llama_config *c = &r->config;
    double head = (double)(c->width / c->heads),
           matrices = (double)tl_model_parameters(r->m) - (double)(VOCAB * c->width);
    double attention = 3.5 * 2 * 2 * (double)(c->layers * c->heads * BATCH) * SEQ * (SEQ + 1) / 2 *
                       head;
    return 6 * matrices * TOKENS + attention;
}

static json_t *step_row(int threads, int64_t width, int rounds)
{
    trainer r;
    double seconds[ROUNDS];
    tl_threads_set(threads);
    trainer_open(&r, width);
    for (int i = 0; i < 5; i++)
        trainer_step(&r);
    for (int i = 0; i < rounds; i++)
        seconds[i] = trainer_step(&r);
    tl_bench_timing t = tl_bench_timing_of(seconds, rounds);
    double flops = trainer_flops(&r), rate = flops / t.median * 1e-9,
           moved = r.bytes / t.median * 1e-9;
    tl_tape_memory mem = tl_memory_stats(r.t);
    printf("step    width %4lld  threads %d  %8.2f ms (spread %2.0f%%)  %8.0f tok/s  %6.1f GFLOP/s "
           "= %4.2f of peak  %5.1f GB/s = %4.2f of memory's  tape peak %.1f MB\n",
           (long long)width, threads, t.median * 1e3, 100 * t.spread, TOKENS / t.median, rate,
           rate / (peak() * threads), moved, moved / bandwidth(), (double)mem.tape.peak / 1e6);
    if (tl_failed(r.t))
        printf("        failed: %s\n", tl_error(r.t));
    json_t *row = json_pack("{s:i,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "threads", threads, "width",
                            (json_int_t)width, "seconds", t.median, "spread", t.spread,
                            "tokens_per_second", TOKENS / t.median, "gflops", rate,
                            "fraction_of_peak", rate / (peak() * threads), "gbytes_per_second",
                            moved, "fraction_of_bandwidth", moved / bandwidth());
    tl_free(r.opt, r.t, r.m);
    return row;
}

/* Memory against time: a deep chain of layers, in segments of so many. */
static json_t *segments(int rounds)
{
    enum { LAYERS = 48, ROWS = 256, WIDTH = 128 };
    static float data[ROWS * WIDTH];
    json_t *all = json_array();
    (void)rounds;
    printf("\nsegments computed again in backward, %d layers: memory and time\n", LAYERS);
    for (int length = 1; length <= LAYERS; length *= length < 24 ? 2 : 100) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        double seconds[9];
        for (int round = 0; round < 9; round++) {
            double start = tl_bench_now();
            tl_tensor x = tl_data(t, data, TL_F32, TL_DIMS(ROWS, WIDTH));
            for (int i = 0; i < LAYERS; i += length) {
                uint32_t begin = tl_segment_begin(t);
                for (int k = i; k < i + length && k < LAYERS; k++) {
                    char name[16];
                    snprintf(name, sizeof name, "l%d", k);
                    x = tl_add(t, x, tl_tanh(t, tl_linear(t, m, name, x, WIDTH)));
                }
                if (length > 1)
                    tl_segment_end(t, begin, &x, 1, false);
            }
            tl_backward(t, tl_mean(t, tl_square(t, x), TL_ALL, false));
            tl_grad_clear(t);
            seconds[round] = tl_bench_now() - start;
            tl_tape_reset(t);
        }
        tl_bench_timing time = tl_bench_timing_of(seconds, 9);
        double mb = (double)tl_memory_stats(t).tape.peak / 1e6;
        if (length > 1)
            printf("    by %-2d  %6.1f MB  %7.2f ms\n", length, mb, time.median * 1e3);
        else
            printf("    none   %6.1f MB  %7.2f ms\n", mb, time.median * 1e3);
        json_array_append_new(all, json_pack("{s:i,s:f,s:f}", "length", length, "peak_mb", mb,
                                             "seconds", time.median));
        tl_free(t, m);
    }
    return all;
}

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static json_t *gemm_rows(bool f64, int threads)
{
    const double most = peak() * threads / (f64 ? 2 : 1);
    json_t *all = json_array();
    printf("\nmatmul %s, %d thread%s, GFLOP/s (spread)        tally          BLIS      OpenBLAS   "
           "of peak  of the faster%s\n",
           f64 ? "f64" : "f32", threads, threads > 1 ? "s" : "", f64 ? "" : "  bf16 of f32");
    for (int i = 0; i < TL_BENCH_GEMM_SHAPES; i++) {
        tl_bench_gemm_row timed, *r = &timed;
        tl_bench_gemm(tl_isa_now()->gemm, f64, threads, i, r);
        double best = fmax(r->blis.median, r->openblas.median); /* fmax ignores NaN */
        printf("%-22s %4lldx%4lldx%4lld  %7.1f (%2.0f%%) %7.1f (%2.0f%%) %7.1f (%2.0f%%)  %6.2f  "
               "%8.2f",
               r->name, (long long)r->m, (long long)r->n, (long long)r->k, r->tally.median,
               100 * r->tally.spread, r->blis.median, 100 * r->blis.spread, r->openblas.median,
               100 * r->openblas.spread, r->tally.median / most, r->tally.median / best);
        if (!f64)
            printf("          %6.2f (%2.0f%%)", r->half.median, 100 * r->half.spread);
        putchar('\n');
        json_t *row = json_pack("{s:s,s:s,s:I,s:I,s:I,s:i}", "name", r->name, "dtype",
                                f64 ? "f64" : "f32", "m", (json_int_t)r->m, "n", (json_int_t)r->n,
                                "k", (json_int_t)r->k, "threads", threads);
        json_object_set_new(row, "tally_gflops", number(r->tally.median));
        json_object_set_new(row, "blis_gflops", number(r->blis.median));
        json_object_set_new(row, "openblas_gflops", number(r->openblas.median));
        json_object_set_new(row, "bf16_of_f32", number(r->half.median));
        json_array_append_new(all, row);
    }
    return all;
}

/* Peers are told the truth about the processor, and not to keep a core when it is not their turn.
 * BLIS 0.9 takes those with AVX-512 that it does not know for generic ones, five times slower; what
 * the environment says of others may be as slow. */
static void peers_know_this_processor(void)
{
#if defined(__x86_64__)
    const char *said = getenv("OPENBLAS_CORETYPE");
    if (said != NULL) {
        printf("OPENBLAS_CORETYPE=%.40s is not passed on: OpenBLAS finds the processor out\n",
               said);
        unsetenv("OPENBLAS_CORETYPE");
    }
    setenv("OPENBLAS_THREAD_TIMEOUT", "20",
           0); /* 2^20 ticks of waiting awake; it is 2^26 or more */
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && getenv("BLIS_ARCH_TYPE") == NULL) {
        setenv("BLIS_ARCH_TYPE", "0", 1); /* its kernels for AVX-512 (skx) */
        puts("BLIS_ARCH_TYPE=0: BLIS is told that this is an AVX-512 processor");
    }
#endif
}

/* ---- parts ---- */

static json_t *steps(int rounds)
{
    json_t *all = json_array();
    for (int threads = 1; threads <= 2; threads++) {
        json_array_append_new(all, step_row(threads, 128, rounds));
        json_array_append_new(all, step_row(threads, 512, rounds / 8 + 3));
    }
    return all;
}

static json_t *cost(int rounds) { return tl_bench_cost(tl_isa_now(), false, rounds); }
static json_t *functions(int rounds) { return tl_bench_cost(tl_isa_now(), true, rounds); }

static json_t *matmul(int rounds)
{
    json_t *all = json_array();
    (void)rounds;
    for (int i = 0; i < 4; i++)
        json_array_append_new(all, gemm_rows(i > 1, 1 + i % 2));
    return all;
}

static const struct {
    const char *name;
    json_t *(*run)(int rounds); /* NULL: nets of that name */
} parts[] = {{"step", steps},
             {"graph", tl_bench_graph},
             {"log", tl_bench_log},
             {"cost", cost},
             {"functions", functions},
             {"segments", segments},
             {"scaling", tl_bench_scaling},
             {"decode", tl_bench_decode},
             {"matmul", matmul},
             {"attention", tl_bench_attention},
             {"rows", tl_bench_rows},
             {"once", tl_bench_once},
             {"rnn", NULL},
             {"lstm", NULL},
             {"gru", NULL},
             {"lenet", NULL},
             {"mlp", NULL},
             {"vae", NULL},
             {"llama", NULL},
             {"llama_larger", NULL},
             {"gpt2", NULL},
             {"gpt2_larger", NULL},
             {"bf16", NULL}};
enum { PARTS = sizeof parts / sizeof *parts };

static int usage(const char *word)
{
    fprintf(stderr,
            "bench: unknown argument '%s'; usage: bench [--quick] [--json FILE] [PART ...]; "
            "parts:",
            word);
    for (int i = 0; i < PARTS; i++)
        fprintf(stderr, " %s", parts[i].name);
    fputc('\n', stderr);
    return 2;
}

int main(int argc, char **argv)
{
    const char *path = TL_BUILD "/bench.json";
    int rounds = ROUNDS, wanted = 0;
    bool want[PARTS] = {false};
    for (int i = 1; i < argc; i++) {
        int part = 0;
        while (part < PARTS && strcmp(argv[i], parts[part].name) != 0)
            part++;
        if (part < PARTS)
            wanted += want[part] = true;
        else if (strcmp(argv[i], "--quick") == 0)
            rounds = 40;
        else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            path = argv[++i];
        else
            return usage(argv[i]);
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* each line when it is known, into a pipe too */
    peers_know_this_processor();
    printf("machine level %s  FMA peak %.1f GFLOP/s a core (f32)  bandwidth %.1f GB/s a core\n",
           tl_isa_now()->name, peak(), bandwidth());
    json_t *out = json_pack("{s:s,s:f,s:f}", "level", tl_isa_now()->name, "fma_peak_gflops", peak(),
                            "bandwidth_gbs", bandwidth());
    for (int i = 0; i < PARTS; i++)
        if (want[i] || wanted == 0)
            json_object_set_new(out, parts[i].name,
                                parts[i].run != NULL ? parts[i].run(rounds)
                                                     : tl_bench_net(parts[i].name));
    int bad = json_dump_file(out, path, JSON_INDENT(1));
    json_decref(out);
    if (bad)
        fprintf(stderr, "bench: cannot write %s\n", path);
    else
        printf("\nwritten to %s\n", path);
    return bad != 0;
}
