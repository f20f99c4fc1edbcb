/* bench_once.c: what is made of parameters alone costs once a step, not once a micro-batch. A step
 * of 64 samples in 1, 4 and 8 micro-batches, with weights in bf16 that are cast, and with an
 * embedding that is the output's weight, too, beside the step with f32 weights, each for one use.
 * The least processor times of steps in turn: the extra time is to be the same in each column. */
#include "tests/bench/bench.h"

#include <stdio.h>
#include <time.h>

#include "tally.h"

enum { SAMPLES = 64, WIDTH = 512, VOCAB = 2048, SPLITS = 3 };

typedef struct {
    bool tied, plain; /* plain: without the cast, without the tie */
    tl_model *m;
    tl_tape *t;
    tl_opt *opt;
} runner;

static tl_tensor weight(const runner *r, const char *name, tl_dtype dtype, int64_t rows)
{
    return tl_param(r->t, r->m, name, dtype, TL_DIMS(rows, WIDTH), .kind = TL_INIT_NORMAL,
                    .scale = 0.05);
}

static tl_tensor widened(const runner *r, const char *name)
{
    return r->plain ? weight(r, name, TL_F32, WIDTH)
                    : tl_cast(r->t, weight(r, name, TL_BF16, WIDTH), TL_F32);
}

static tl_tensor loss_of(const runner *r, int from, int n)
{
    static float x[SAMPLES][WIDTH];
    static int64_t ids[SAMPLES];
    tl_tape *t = r->t;
    for (int i = from; i < from + n; i++)
        for (int k = 0; k < WIDTH; k++)
            x[i][k] = (float)((i * 31 + k * 7) % 64) / 64, ids[i] = i * 29 % VOCAB;
    tl_tensor id = tl_data(t, ids + from, TL_I64, TL_DIMS(n)), y;
    if (r->tied) {
        tl_tensor e = weight(r, "e", TL_F32, VOCAB);
        tl_tensor out = r->plain ? weight(r, "out", TL_F32, VOCAB) : e;
        y = tl_matmul(t, tl_embedding(t, e, id), tl_transpose(t, out, 0, 1));
        return tl_scale(t, tl_cross_entropy(t, y, id, TL_SUM), 1.0 / SAMPLES);
    }
    y = tl_data(t, x[from], TL_F32, TL_DIMS(n, WIDTH));
    y = tl_matmul(t, tl_tanh(t, tl_matmul(t, y, widened(r, "a"))), widened(r, "b"));
    return tl_scale(t, tl_sum(t, tl_square(t, y), TL_ALL, false), 1.0 / SAMPLES);
}

static double processor_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double step(const runner *r, int micro_batches)
{
    const int n = SAMPLES / micro_batches;
    const double start = processor_time();
    for (int i = 0; i < micro_batches; i++) {
        tl_backward(r->t, loss_of(r, i * n, n));
        if (i == micro_batches - 1)
            tl_step(r->opt, r->t);
        tl_tape_reset(r->t);
    }
    return processor_time() - start;
}

static json_t *row(bool tied, int rounds)
{
    static const int split[SPLITS] = {1, 4, 8};
    runner r[2] = {{.tied = tied, .plain = true}, {.tied = tied}};
    double least[2][SPLITS];
    for (int k = 0; k < 2; k++) {
        r[k].m = tl_model_new(.seed = 1);
        r[k].t = tl_tape_new(r[k].m);
        r[k].opt = tl_adamw_new(r[k].m, .lr = 1e-3);
    }
    for (int i = -1; i < rounds; i++) /* the first makes parameters, and is not counted */
        for (int s = 0; s < SPLITS; s++)
            for (int k = 0; k < 2; k++) {
                const double took = step(&r[k], split[s]);
                if (i <= 0 || took < least[k][s])
                    least[k][s] = took;
            }
    json_t *out = json_pack("{s:s}", "of", tied ? "tied" : "cast");
    printf("once    %-14s", tied ? "tied embedding" : "bf16 weights");
    for (int s = 0; s < SPLITS; s++) {
        char name[32];
        printf("  %d micro-batches: %6.2f ms, without %6.2f, ratio %.2f, extra %5.2f ms", split[s],
               1e3 * least[1][s], 1e3 * least[0][s], least[1][s] / least[0][s],
               1e3 * (least[1][s] - least[0][s]));
        snprintf(name, sizeof name, "ratio_%d", split[s]);
        json_object_set_new(out, name, json_real(least[1][s] / least[0][s]));
    }
    puts("");
    for (int k = 0; k < 2; k++) {
        if (tl_failed(r[k].t))
            printf("        failed: %s\n", tl_error(r[k].t));
        tl_free(r[k].opt, r[k].t, r[k].m);
    }
    return out;
}

json_t *tl_bench_once(int rounds)
{
    json_t *all = json_array();
    puts("");
    tl_threads_set(1);
    for (int tied = 0; tied < 2; tied++)
        json_array_append_new(all, row(tied, rounds));
    return all;
}
