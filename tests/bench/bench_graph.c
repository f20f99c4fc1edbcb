/* bench_graph.c: the small Llama step, called and compiled, round by round in turn. */
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tally.h"

enum { BATCH = 12, SEQ = 64, TOKENS = BATCH * SEQ, VOCAB = 65, ROUNDS = 200 };

typedef struct {
    tl_llama_config config;
    tl_model *m;
    tl_tape *t;
    tl_opt *opt;
    tl_compiled *compiled; /* NULL: the step is called */
    int64_t ids[TOKENS], targets[TOKENS];
} trainer;

static void step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    trainer *r = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_cross_entropy(t, tl_llama(t, r->m, &r->config, in[0]), in[1], TL_MEAN);
    tl_backward(t, out[0]);
    tl_step(r->opt, t);
}

static void open_trainer(trainer *r, int64_t width, int64_t layers, bool compiled)
{
    *r = (trainer){.config = {.vocab = VOCAB,
                              .pairing = TL_ROTARY_HALF,
                              .width = width,
                              .layers = layers,
                              .heads = 4,
                              .kv_heads = 2,
                              .hidden = (width * 8 / 3 + 31) / 32 * 32,
                              .max_positions = SEQ}};
    r->m = tl_model_new(.seed = 1);
    r->t = tl_tape_new(r->m);
    r->opt = tl_adamw_new(r->m, .lr = 1e-3, .weight_decay = 0.1, .clip = 1);
    r->compiled = compiled ? tl_compile(r->t, step, 1, r) : NULL;
    for (int i = 0; i < TOKENS; i++) {
        r->ids[i] = (i * 7 + i / 5) % VOCAB;
        r->targets[i] = (r->ids[i] * 3 + 1) % VOCAB;
    }
}

static void close_trainer(trainer *r) { tl_free(r->compiled, r->opt, r->t, r->m); }

static void inputs(trainer *r, tl_tensor in[2])
{
    in[0] = tl_data(r->t, r->ids, TL_I64, TL_DIMS(BATCH, SEQ));
    in[1] = tl_data(r->t, r->targets, TL_I64, TL_DIMS(BATCH, SEQ));
}

static double seconds_of_step(trainer *r)
{
    double start = tl_bench_now();
    tl_tensor in[2], loss;
    inputs(r, in);
    if (r->compiled != NULL)
        tl_run(r->compiled, in, 2, &loss);
    else
        step(r->t, in, 2, &loss, 1, r);
    tl_tape_reset(r->t);
    return tl_bench_now() - start;
}

static json_t *compare(int threads, int64_t width, int rounds)
{
    trainer called, compiled;
    double a[ROUNDS], b[ROUNDS];
    char hash[2][65];
    tl_threads_set(threads);
    open_trainer(&called, width, 4, false);
    open_trainer(&compiled, width, 4, true);
    for (int i = 0; i < 5; i++)
        seconds_of_step(&called), seconds_of_step(&compiled);
    for (int i = 0; i < rounds; i++) {
        a[i] = seconds_of_step(&called);
        b[i] = seconds_of_step(&compiled);
    }
    double eager = tl_bench_timing_of(a, rounds).median,
           graph = tl_bench_timing_of(b, rounds).median;
    tl_tape_memory ma = tl_memory_stats(called.t), mb = tl_memory_stats(compiled.t);
    tl_graph_stats s = tl_graph_stats_of(tl_compiled_at(compiled.compiled, 0));
    tl_model_sha256(called.m, hash[0]);
    tl_model_sha256(compiled.m, hash[1]);
    bool same = strcmp(hash[0], hash[1]) == 0 && !tl_failed(called.t) && !tl_failed(compiled.t);
    printf("graph   width %4lld  threads %d  called %8.2f ms  compiled %8.2f ms  ratio %4.2f   "
           "peak %5.1f MB, %5.1f MB = %4.2f   %d nodes, %d steps   weights %s\n",
           (long long)width, threads, eager * 1e3, graph * 1e3, graph / eager,
           (double)ma.tape.peak / 1e6, (double)mb.tape.peak / 1e6,
           (double)mb.tape.peak / (double)ma.tape.peak, s.nodes, s.steps,
           same ? "the same" : "DIFFER");
    json_t *row = json_pack("{s:i,s:I,s:f,s:f,s:f,s:I,s:I,s:b}", "threads", threads, "width",
                            (json_int_t)width, "called_seconds", eager, "compiled_seconds", graph,
                            "ratio", graph / eager, "called_peak", (json_int_t)ma.tape.peak,
                            "compiled_peak", (json_int_t)mb.tape.peak, "same", same);
    close_trainer(&called);
    close_trainer(&compiled);
    return row;
}

/* Tracing and planning a step of 12 layers, its parameters being there. */
static double seconds_of_trace(void)
{
    trainer r;
    tl_tensor in[2], loss;
    double s[9];
    open_trainer(&r, 128, 12, false);
    inputs(&r, in);
    step(r.t, in, 2, &loss, 1, &r);
    for (int i = 0; i < 9; i++) {
        tl_tape_reset(r.t);
        inputs(&r, in);
        double start = tl_bench_now();
        tl_graph *g = tl_trace(r.t, step, in, 2, 1, &r);
        s[i] = tl_bench_now() - start;
        tl_free(g);
    }
    close_trainer(&r);
    return tl_bench_timing_of(s, 9).median;
}

json_t *tl_bench_graph(int rounds)
{
    json_t *out = json_object(), *rows = json_array();
    puts("");
    rounds = rounds < ROUNDS ? rounds : ROUNDS;
    for (int threads = 1; threads <= 2; threads++) {
        json_array_append_new(rows, compare(threads, 128, rounds));
        json_array_append_new(rows, compare(threads, 512, rounds / 8 + 3));
    }
    double trace = seconds_of_trace();
    printf("graph   12 layers traced and planned in %.2f ms\n", trace * 1e3);
    json_object_set_new(out, "steps", rows);
    json_object_set_new(out, "trace_seconds", json_real(trace));
    return out;
}
