/* bench_attention.c: causal attention, forward and backward, in turn with PyTorch's: one thread,
 * f32, by processor time. */
#include <math.h>
#include <stdio.h>

#include "tally.h"
#include "tests/bench/bench.h"

/* Ours, PyTorch's fused kernel, PyTorch's written out. */
enum { OWN, FUSED, WRITTEN, SIDES, MOST_ROUNDS = 200 };

typedef struct {
    int64_t heads, kv_heads, positions, width; /* of one sample */
} sizes;

static const sizes rows[] = {{12, 6, 64, 64},  {12, 6, 256, 64}, {6, 3, 1024, 32},
                             {6, 3, 1024, 64}, {6, 6, 1024, 64}, {6, 3, 1024, 128},
                             {6, 3, 2048, 64}};
enum { ROWS = sizeof rows / sizeof *rows };

static double own(tl_tape *t, tl_model *m, const sizes *s)
{
    double start = tl_bench_processor();
    tl_tensor x[4];
    for (int i = 0; i < 4; i++) { /* as projections leave them; the last is the cotangent */
        static const char *const names[] = {"q", "k", "v", "dy"};
        int64_t heads = i == 1 || i == 2 ? s->kv_heads : s->heads;
        x[i] = tl_param(t, m, names[i], TL_F32, TL_DIMS(1, s->positions, heads, s->width),
                        .kind = TL_INIT_NORMAL, .scale = 1);
        x[i] = tl_transpose(t, x[i], 1, 2);
    }
    tl_tensor y = tl_attention(t, x[0], x[1], x[2]);
    tl_backward(t, y, .cotangent = tl_detach(t, x[3]), .partial = true);
    tl_grad_clear(t);
    if (tl_failed(t))
        printf("        failed: %s\n", tl_error(t));
    tl_tape_reset(t);
    return tl_bench_processor() - start;
}

static json_t *row_of(const sizes *s, int rounds, double budget)
{
    static double seconds[SIDES][MOST_ROUNDS], over[SIDES][MOST_ROUNDS];
    static const char *const way[] = {[FUSED] = "fused", [WRITTEN] = "written"};
    double least[SIDES] = {(double)INFINITY, (double)INFINITY, (double)INFINITY}, peak = 0;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_bench_peer p = tl_bench_peer_open(
        "attention", (int64_t[TL_BENCH_NUMBERS]){s->heads, s->kv_heads, s->positions, s->width}, 1);
    double start = tl_bench_now();
    int n = 0;
    for (int i = -3; i < rounds && i < MOST_ROUNDS && (i < 9 || tl_bench_now() - start < budget);
         i++) {
        n = i < 0 ? 0 : i;
        seconds[OWN][n] = own(t, m, s);
        for (int k = FUSED; k < SIDES; k++) {
            double there = tl_bench_peer_step(&p, way[k]);
            seconds[k][n] = isnan(there) ? there : p.spent;
            over[k][n] = seconds[k][n] / seconds[OWN][n];
        }
        for (int k = 0; k < SIDES && i >= 0; k++)
            least[k] = fmin(least[k], seconds[k][n]); /* fmin ignores NaN */
        if (i % 8 == 0)
            peak = fmax(peak, tl_bench_fma_peak_gflops());
    }
    tl_bench_peer_close(&p);
    tl_free(t, m);
    n++;
    /* seven products of the causal half: two forward; in backward, scores once more and four */
    double flops = 7.0 * (double)(s->heads * s->width * s->positions * (s->positions + 1)),
           rate = flops / least[OWN] * 1e-9;
    tl_bench_timing f = tl_bench_timing_of(over[FUSED], n),
                    w = tl_bench_timing_of(over[WRITTEN], n);
    printf(
        "    %2lld/%lld heads %4lld x %-3lld  %8.3f ms  %5.1f GFLOP/s = %4.2f of peak  fused %5.2f "
        "%5.2f x (%2.0f%%)  written out %5.2f %5.2f x (%2.0f%%)\n",
        (long long)s->heads, (long long)s->kv_heads, (long long)s->positions, (long long)s->width,
        least[OWN] * 1e3, rate, rate / peak, f.median, least[FUSED] / least[OWN], 100 * f.spread,
        w.median, least[WRITTEN] / least[OWN], 100 * w.spread);
    return json_pack("{s:I,s:I,s:I,s:I,s:f,s:f,s:f}", "heads", (json_int_t)s->heads, "kv_heads",
                     (json_int_t)s->kv_heads, "positions", (json_int_t)s->positions, "width",
                     (json_int_t)s->width, "seconds", least[OWN], "gflops", rate,
                     "fraction_of_peak", rate / peak);
}

json_t *tl_bench_attention(int rounds)
{
    json_t *all = json_array();
    tl_threads_set(1);
    printf(
        "\nattention, causal, with its gradients, 1 thread: the least time; PyTorch's over ours, "
        "the median of rounds (spread) and by the least\n");
    for (int i = 0; i < ROWS; i++)
        json_array_append_new(all, row_of(&rows[i], rounds, 90.0 / ROWS));
    return all;
}
