/* bench_log.c: the same training step four times a round - not logged, logged whole, logged between
 * samples; and a run that samples, over as many steps, against the one that does not log: the sums,
 * not a median that a rare step never enters. */
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tally.h"

enum {
    BATCH = 12,
    SEQ = 64,
    TOKENS = BATCH * SEQ,
    VOCAB = 65,
    SAMPLE = 50,
    MAX_ROUNDS = 2 * SAMPLE,
    OFF = 0,
    WHOLE,
    BETWEEN,
    SAMPLED,
    WAYS
};

typedef struct {
    tl_llama_config config;
    tl_model *m;
    tl_tape *t;
    tl_opt *opt;
    int64_t ids[TOKENS], targets[TOKENS];
    char path[64];
} runner;

static void open_runner(runner *r, int64_t width, int way)
{
    *r = (runner){.config = {.vocab = VOCAB,
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
    snprintf(r->path, sizeof r->path, "/tmp/tally-bench-%d-%d.log", (int)getpid(), way);
    if (way != OFF)
        tl_log_open(r->t, r->path, .every = way == WHOLE ? 1 : way == SAMPLED ? SAMPLE : INT64_MAX);
}

static double step(runner *r)
{
    double start = tl_bench_now();
    tl_tensor x = tl_data(r->t, r->ids, TL_I64, TL_DIMS(BATCH, SEQ)),
              y = tl_data(r->t, r->targets, TL_I64, TL_DIMS(BATCH, SEQ));
    tl_backward(r->t, tl_cross_entropy(r->t, tl_llama(r->t, r->m, &r->config, x), y, TL_MEAN));
    tl_step(r->opt, r->t);
    tl_tape_reset(r->t);
    return tl_bench_now() - start;
}

static json_t *row(int threads, int64_t width, int rounds)
{
    static const int every[] = {1, 10, 50, 100};
    static double seconds[WAYS][MAX_ROUNDS];
    runner *r = calloc(WAYS, sizeof *r);
    double median[WAYS], total[WAYS] = {0};
    if (r == NULL)
        return json_null();
    tl_threads_set(threads);
    for (int way = 0; way < WAYS; way++) {
        open_runner(&r[way], width, way);
        step(&r[way]); /* the first is logged whole */
        step(&r[way]);
    }
    for (int i = 0; i < rounds; i++)
        for (int way = 0; way < WAYS; way++)
            total[way] += seconds[way][i] = step(&r[way]);
    for (int way = 0; way < WAYS; way++) {
        median[way] = tl_bench_timing_of(seconds[way], rounds).median;
        if (tl_log_close(r[way].t) != TL_OK || tl_failed(r[way].t))
            printf("        failed: %s\n", tl_error(r[way].t));
        unlink(r[way].path);
        tl_free(r[way].opt, r[way].t, r[way].m);
    }
    free(r);
    json_t *out = json_pack("{s:i,s:I,s:f,s:f,s:f}", "threads", threads, "width", (json_int_t)width,
                            "seconds", median[OFF], "logged_seconds", median[WHOLE],
                            "between_seconds", median[BETWEEN]);
    printf("log     width %4lld  threads %d  step %7.2f ms  logged %7.2f ms  between %7.2f ms   "
           "overhead of every",
           (long long)width, threads, 1e3 * median[OFF], 1e3 * median[WHOLE],
           1e3 * median[BETWEEN]);
    for (size_t i = 0; i < sizeof every / sizeof *every; i++) {
        char name[32];
        double cost = (median[WHOLE] + (every[i] - 1) * median[BETWEEN]) / every[i] / median[OFF] -
                      1;
        printf(" %d: %.1f%%", every[i], 100 * cost);
        snprintf(name, sizeof name, "overhead_every_%d", every[i]);
        json_object_set_new(out, name, json_real(cost));
    }
    double sampled = total[SAMPLED] / total[OFF] - 1;
    printf("  a run of %d steps that samples every %d: %.1f%%\n", rounds, SAMPLE, 100 * sampled);
    json_object_set_new(out, "overhead_sampled_run", json_real(sampled));
    return out;
}

json_t *tl_bench_log(int rounds)
{
    json_t *all = json_array();
    puts("");
    /* whole samples; no more, for the part to take less than two minutes */
    const int small = rounds > SAMPLE ? 2 * SAMPLE : SAMPLE;
    for (int threads = 1; threads <= 2; threads++)
        for (int64_t width = 128; width <= 512; width *= 4)
            json_array_append_new(all, row(threads, width, width == 128 ? small : SAMPLE));
    return all;
}
