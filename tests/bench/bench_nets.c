/* bench_nets.c: training steps of small nets, called and compiled, beside PyTorch's (bench_peer.c),
 * in turn with ours. A step is forward, backward and AdamW on data that stays. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tally.h"
#include "tally_extend.h"
#include "tests/bench/bench.h"

enum { WAYS = 4, MAX_ROUNDS = 400, LEAST_ROUNDS = 9 };

/* ---- the nets: in[0] floats or ids, in[1] targets ---- */

typedef struct net net;
typedef tl_tensor net_loss(tl_tape *t, tl_model *m, const int64_t *p, const tl_tensor *in);

/* What PyTorch gives back by itself, since no variable of Python names it any more. */
static void let_go(tl_tape *t, const tl_tensor *x, int n)
{
    for (int i = 0; i < n; i++)
        tl_let_go(t, x[i]);
}

/* A cell's products for one position: x W^T + b of width n, from the input and from the state. */
static tl_tensor both(tl_tape *t, tl_model *m, tl_tensor x, tl_tensor h, int64_t n)
{
    tl_tensor part[] = {tl_linear(t, m, "ih", x, n), tl_linear(t, m, "hh", h, n)},
              sum = tl_add(t, part[0], part[1]);
    let_go(t, part, 2);
    return sum;
}

/* The first state of each sample. */
static tl_tensor zeros(tl_tape *t, const int64_t *p)
{
    tl_tensor h = tl_fill(t, TL_F32, TL_DIMS(p[2], p[0]), 0);
    tl_batch_axis(t, h, 0);
    return h;
}

static tl_tensor mean_square(tl_tape *t, tl_tensor x)
{
    return tl_mean(t, tl_square(t, x), TL_ALL, false);
}

/* Recurrent nets: x (B, T, H), the states' mean square; p: H, T, B. */
static tl_tensor rnn(tl_tape *t, tl_model *m, const int64_t *p, const tl_tensor *in)
{
    tl_tensor h = zeros(t, p), *all = calloc((size_t)p[1], sizeof *all);
    for (int64_t i = 0; i < p[1]; i++)
        all[i] = h = tl_tanh(t, both(t, m, tl_select(t, in[0], 1, i), h, p[0]));
    h = mean_square(t, tl_stack(t, all, (int)p[1], 1));
    free(all);
    return h;
}

static tl_tensor lstm(tl_tape *t, tl_model *m, const int64_t *p, const tl_tensor *in)
{
    tl_tensor h = zeros(t, p), c = h, g[5], *all = calloc((size_t)p[1], sizeof *all);
    for (int64_t i = 0; i < p[1]; i++) {
        g[4] = both(t, m, tl_select(t, in[0], 1, i), h, 4 * p[0]);
        tl_chunk(t, g[4], 4, 1, g);
        c = tl_add(t, tl_mul(t, tl_sigmoid(t, g[1]), c),
                   tl_mul(t, tl_sigmoid(t, g[0]), tl_tanh(t, g[2])));
        all[i] = h = tl_mul(t, tl_sigmoid(t, g[3]), tl_tanh(t, c));
        let_go(t, g, 5);
    }
    h = mean_square(t, tl_stack(t, all, (int)p[1], 1));
    free(all);
    return h;
}

static tl_tensor gru(tl_tape *t, tl_model *m, const int64_t *p, const tl_tensor *in)
{
    tl_tensor h = zeros(t, p), g[4], s[4], *all = calloc((size_t)p[1], sizeof *all);
    for (int64_t i = 0; i < p[1]; i++) {
        g[3] = tl_linear(t, m, "ih", tl_select(t, in[0], 1, i), 3 * p[0]);
        s[3] = tl_linear(t, m, "hh", h, 3 * p[0]);
        tl_chunk(t, g[3], 3, 1, g);
        tl_chunk(t, s[3], 3, 1, s);
        tl_tensor r = tl_sigmoid(t, tl_add(t, g[0], s[0])),
                  z = tl_sigmoid(t, tl_add(t, g[1], s[1])),
                  n = tl_tanh(t, tl_add(t, g[2], tl_mul(t, r, s[2])));
        all[i] = h = tl_add(t, n, tl_mul(t, z, tl_sub(t, h, n)));
        let_go(t, g, 4);
        let_go(t, s, 4);
    }
    h = mean_square(t, tl_stack(t, all, (int)p[1], 1));
    free(all);
    return h;
}

static tl_tensor rnn_layer(tl_tape *t, tl_model *m, const int64_t *p, const tl_tensor *in)
{
    return mean_square(t, tl_rnn(t, m, "layer", in[0], p[0]));
}
static tl_tensor lstm_layer(tl_tape *t, tl_model *m, const int64_t *p, const tl_tensor *in)
{
    return mean_square(t, tl_lstm(t, m, "layer", in[0], p[0]));
}
static tl_tensor gru_layer(tl_tape *t, tl_model *m, const int64_t *p, const tl_tensor *in)
{
    return mean_square(t, tl_gru(t, m, "layer", in[0], p[0]));
}

/* Pictures (B, 1, 28, 28) of ten classes; p: B. */
static tl_tensor conv(tl_tape *t, tl_model *m, const char *name, tl_tensor x, int64_t from,
                      int64_t to, int64_t padding)
{
    char bias[16];
    snprintf(bias, sizeof bias, "%s.bias", name);
    tl_tensor w = tl_param(t, m, name, TL_F32, TL_DIMS(to, from, 5, 5), .kind = TL_INIT_UNIFORM,
                           .scale = 0.1);
    return tl_conv2d(t, x, w, .padding = {padding, padding},
                     .bias = tl_param(t, m, bias, TL_F32, TL_DIMS(to)));
}

static tl_tensor lenet(tl_tape *t, tl_model *m, const int64_t *p, const tl_tensor *in)
{
    tl_tensor x = tl_reshape(t, in[0], TL_DIMS(p[0], 1, 28, 28));
    x = tl_max_pool2d(t, tl_relu(t, conv(t, m, "c1", x, 1, 6, 2)), .kernel = {2, 2});
    x = tl_max_pool2d(t, tl_relu(t, conv(t, m, "c2", x, 6, 16, 0)), .kernel = {2, 2});
    x = tl_relu(t, tl_linear(t, m, "l1", tl_reshape(t, x, TL_DIMS(p[0], 400)), 120));
    x = tl_relu(t, tl_linear(t, m, "l2", x, 84));
    return tl_cross_entropy(t, tl_linear(t, m, "l3", x, 10), in[1], TL_MEAN);
}

/* p: B, hidden */
static tl_tensor mlp(tl_tape *t, tl_model *m, const int64_t *p, const tl_tensor *in)
{
    tl_tensor x = tl_relu(t, tl_linear(t, m, "l1", in[0], p[1]));
    x = tl_relu(t, tl_linear(t, m, "l2", x, p[1] / 2));
    return tl_cross_entropy(t, tl_linear(t, m, "l3", x, 10), in[1], TL_MEAN);
}

/* p: B, hidden, latent */
static tl_tensor vae(tl_tape *t, tl_model *m, const int64_t *p, const tl_tensor *in)
{
    tl_tensor code[2], h = tl_relu(t, tl_linear(t, m, "e1", in[0], p[1]));
    tl_chunk(t, tl_linear(t, m, "e2", h, 2 * p[2]), 2, 1, code);
    tl_tensor mu = code[0], lv = code[1],
              noise = tl_normal(t, TL_F32, TL_DIMS(p[0], p[2]), "noise"),
              z = tl_add(t, mu, tl_mul(t, tl_exp(t, tl_scale(t, lv, 0.5)), noise));
    h = tl_relu(t, tl_linear(t, m, "d1", z, p[1]));
    tl_tensor seen = tl_bce_with_logits(t, tl_linear(t, m, "d2", h, 784), in[0], TL_SUM),
              apart = tl_sum(t,
                             tl_sub(t, tl_shift(t, lv, 1),
                                    tl_add(t, tl_square(t, mu), tl_exp(t, lv))),
                             TL_ALL, false);
    return tl_scale(t, tl_sub(t, seen, tl_scale(t, apart, 0.5)), 1.0 / (double)p[0]);
}

/* p: layers, width, heads, kv_heads (0: a GPT-2), B, S, bf16 */
static tl_tensor decoder(tl_tape *t, tl_model *m, const int64_t *p, const tl_tensor *in)
{
    const tl_dtype dtype = p[6] != 0 ? TL_BF16 : TL_F32;
    const tl_llama_config llama = {.vocab = 256,
                                   .layers = p[0],
                                   .width = p[1],
                                   .heads = p[2],
                                   .kv_heads = p[3],
                                   .hidden = (p[1] * 8 / 3 + 31) / 32 * 32,
                                   .pairing = TL_ROTARY_HALF,
                                   .dtype = dtype};
    const tl_gpt2_config gpt2 = {.vocab = 256,
                                 .layers = p[0],
                                 .width = p[1],
                                 .heads = p[2],
                                 .max_positions = p[5],
                                 .dtype = dtype};
    tl_tensor y = p[3] != 0 ? tl_llama(t, m, &llama, in[0]) : tl_gpt2(t, m, &gpt2, in[0]);
    return tl_cross_entropy(t, y, in[1], TL_MEAN);
}

/* Of a step: 6 a token and element of the matrices - but the embedding of a Llama, which only looks
 * up - and 2 for each of 7 products of attention, half of them masked. */
static double flops_of(const int64_t *p, double parameters)
{
    double tokens = (double)(p[4] * p[5]), looked_up = (double)((p[3] != 0 ? 256 : p[5]) * p[1]);
    return 6 * (parameters - looked_up) * tokens + 7 * tokens * (double)(p[0] * p[1] * (p[5] + 1));
}

static const struct net {
    const char *name, *peers; /* ways of PyTorch that it is compared with */
    net_loss *loss;
    const char *say; /* of the numbers */
    int64_t p[TL_BENCH_NUMBERS];
    int64_t x[3]; /* shape of in[0], up to the first 0 */
    int64_t y;    /* as many targets, below `classes`; 0: none */
    int64_t classes;
    bool ids; /* in[0] is ids */
    int threads;
} nets[] = {
    /* clang-format off */
    {"rnn", "cell layer", rnn, "cell, H 256, T 512, B 8",
     {256, 512, 8}, {8, 512, 256}, 0, 0, false, 1},
    {"rnn", "cell layer", rnn_layer, "layer, H 256, T 512, B 8",
     {256, 512, 8}, {8, 512, 256}, 0, 0, false, 1},
    {"lstm", "cell layer", lstm, "cell, H 128, T 64, B 32",
     {128, 64, 32}, {32, 64, 128}, 0, 0, false, 1},
    {"lstm", "cell layer", lstm, "cell, H 256, T 512, B 8",
     {256, 512, 8}, {8, 512, 256}, 0, 0, false, 1},
    {"lstm", "cell layer", lstm_layer, "layer, H 128, T 64, B 32",
     {128, 64, 32}, {32, 64, 128}, 0, 0, false, 1},
    {"lstm", "cell layer", lstm_layer, "layer, H 256, T 512, B 8",
     {256, 512, 8}, {8, 512, 256}, 0, 0, false, 1},
    {"gru", "cell layer", gru, "cell, H 128, T 64, B 32",
     {128, 64, 32}, {32, 64, 128}, 0, 0, false, 1},
    {"gru", "cell layer", gru, "cell, H 256, T 512, B 8",
     {256, 512, 8}, {8, 512, 256}, 0, 0, false, 1},
    {"gru", "cell layer", gru_layer, "layer, H 128, T 64, B 32",
     {128, 64, 32}, {32, 64, 128}, 0, 0, false, 1},
    {"gru", "cell layer", gru_layer, "layer, H 256, T 512, B 8",
     {256, 512, 8}, {8, 512, 256}, 0, 0, false, 1},
    {"lenet", "eager compile", lenet, "28 x 28, B 32", {32}, {32, 784}, 32, 10, false, 1},
    {"mlp", "eager compile", mlp, "784-128-64-10, B 32", {32, 128}, {32, 784}, 32, 10, false, 1},
    {"vae", "eager compile", vae, "784-256-16, B 64", {64, 256, 16}, {64, 784}, 0, 0, false, 1},
    {"llama", "eager compile", decoder, "4 x 128, 12 x 64",
     {4, 128, 4, 2, 12, 64}, {12, 64}, 768, 256, true, 1},
    {"llama", "eager compile", decoder, "4 x 128, 12 x 64",
     {4, 128, 4, 2, 12, 64}, {12, 64}, 768, 256, true, 2},
    {"llama_larger", "eager compile", decoder, "6 x 384, 8 x 256",
     {6, 384, 6, 3, 8, 256}, {8, 256}, 2048, 256, true, 1},
    {"llama_larger", "eager compile", decoder, "6 x 384, 8 x 256",
     {6, 384, 6, 3, 8, 256}, {8, 256}, 2048, 256, true, 2},
    {"gpt2", "eager compile", decoder, "4 x 128, 12 x 64",
     {4, 128, 4, 0, 12, 64}, {12, 64}, 768, 256, true, 1},
    {"gpt2", "eager compile", decoder, "4 x 128, 12 x 64",
     {4, 128, 4, 0, 12, 64}, {12, 64}, 768, 256, true, 2},
    {"gpt2_larger", "eager compile", decoder, "6 x 384, 8 x 256",
     {6, 384, 6, 0, 8, 256}, {8, 256}, 2048, 256, true, 1},
    {"gpt2_larger", "eager compile", decoder, "6 x 384, 8 x 256",
     {6, 384, 6, 0, 8, 256}, {8, 256}, 2048, 256, true, 2},
    {"bf16", "eager", decoder, "llama, 4 x 128, 12 x 64, f32",
     {4, 128, 4, 2, 12, 64, 0}, {12, 64}, 768, 256, true, 1},
    {"bf16", "eager", decoder, "llama, 4 x 128, 12 x 64, bf16",
     {4, 128, 4, 2, 12, 64, 1}, {12, 64}, 768, 256, true, 1},
    {"bf16", "eager", decoder, "llama, 6 x 384, 8 x 256, f32",
     {6, 384, 6, 3, 8, 256, 0}, {8, 256}, 2048, 256, true, 1},
    {"bf16", "eager", decoder, "llama, 6 x 384, 8 x 256, bf16",
     {6, 384, 6, 3, 8, 256, 1}, {8, 256}, 2048, 256, true, 1},
    /* clang-format on */
};

/* ---- ours ---- */

typedef struct {
    const net *n;
    tl_model *m;
    tl_tape *t;
    tl_opt *opt;
    tl_compiled *compiled; /* NULL: the step is called */
    tl_tensor in[2];
    double update; /* seconds of the optimizer in the last step that was called */
    double spent;  /* of the processor in the last step */
} trainer;

static void program(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    trainer *r = ctx;
    (void)n_in, (void)n_out;
    out[0] = r->n->loss(t, r->m, r->n->p, in);
    tl_backward(t, out[0]);
    double start = tl_bench_now();
    tl_step(r->opt, t);
    r->update = tl_bench_now() - start;
}

static tl_tensor data(const trainer *r, bool ids, tl_shape shape, int64_t below)
{
    int64_t count = 1;
    for (int i = 0; i < shape.ndim; i++)
        count *= shape.dim[i];
    int64_t *whole = calloc((size_t)count, sizeof *whole);
    float *x = calloc((size_t)count, sizeof *x);
    for (int64_t i = 0; i < count; i++) {
        whole[i] = i * 7919 % 2003 % below;
        x[i] = (float)(i * 7919 % 2003) / 2003;
    }
    tl_tensor d = ids ? tl_data(r->m, whole, TL_I64, shape) : tl_data(r->m, x, TL_F32, shape);
    free(whole);
    free(x);
    return d;
}

static void open_trainer(trainer *r, const net *n, bool compiled)
{
    *r = (trainer){.n = n, .m = tl_model_new(.seed = 1)};
    r->t = tl_tape_new(r->m);
    r->opt = tl_adamw_new(r->m, .lr = 1e-3);
    r->compiled = compiled ? tl_compile(r->t, program, 1, r) : NULL;
    tl_shape shape = {.ndim = n->x[2] != 0 ? 3 : 2, .dim = {n->x[0], n->x[1], n->x[2]}};
    r->in[0] = data(r, n->ids, shape, n->ids ? n->classes : 2);
    r->in[1] = n->y == 0 ? r->in[0] : data(r, true, n->ids ? shape : TL_DIMS(n->y), n->classes);
}

static double step_of(trainer *r)
{
    double start = tl_bench_now(), spent = tl_bench_processor();
    tl_tensor loss;
    if (r->compiled != NULL)
        tl_run(r->compiled, r->in, 2, &loss);
    else
        program(r->t, r->in, 2, &loss, 1, r);
    tl_tape_reset(r->t);
    r->spent = tl_bench_processor() - spent;
    return tl_bench_now() - start;
}

/* ---- in turn ---- */

typedef struct {
    const char *name[WAYS]; /* two of ours, then the peer's */
    double seconds[WAYS][MAX_ROUNDS], ratio[WAYS][WAYS][MAX_ROUNDS], update[WAYS][MAX_ROUNDS];
    double least[WAYS]; /* seconds, of the processor on one thread */
    int n, rounds;
} table;

static void round_of(table *w, trainer *own, tl_bench_peer *p, bool counts)
{
    int at = w->rounds;
    for (int i = 0; i < w->n; i++) {
        if (own->n->threads > 1) /* its threads slept meanwhile, and come back over milliseconds */
            (void)(i < 2 ? step_of(&own[i]) : tl_bench_peer_step(p, w->name[i]));
        w->seconds[i][at] = i < 2 ? step_of(&own[i]) : tl_bench_peer_step(p, w->name[i]);
        w->update[i][at] = i < 2 ? own[i].update : p->update;
        double spent = i < 2 ? own[i].spent : p->spent;
        spent = own->n->threads == 1 ? spent : w->seconds[i][at];
        w->least[i] = counts && spent < w->least[i] ? spent : w->least[i];
    }
    for (int i = 0; i < 2; i++)
        for (int k = 2; k < w->n; k++)
            w->ratio[i][k][at] = w->seconds[k][at] / w->seconds[i][at];
    w->rounds += counts;
}

/* Of a copy: the pairs stay in their order. */
static tl_bench_timing middle(const double *x, int n)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, x, (size_t)n * sizeof *x);
    return tl_bench_timing_of(sorted, n);
}

static bool settled(const table *w)
{
    for (int i = 0; i < 2; i++)
        for (int k = 2; k < w->n; k++)
            if (middle(w->ratio[i][k], w->rounds).spread > 0.05)
                return false;
    return w->rounds >= LEAST_ROUNDS;
}

static json_t *show(const table *w)
{
    json_t *row = json_object();
    for (int i = 0; i < w->n; i++) {
        tl_bench_timing s = middle(w->seconds[i], w->rounds);
        printf("    %-8s %-9s %9.3f ms (%2.0f%%)", i < 2 ? "tally" : "torch", w->name[i],
               s.median * 1e3, 100 * s.spread);
        json_object_set_new(row, w->name[i], json_real(s.median));
        if (i != 1)
            printf("  optimizer %7.3f", middle(w->update[i], w->rounds).median * 1e3);
        else
            printf("  %17s", "");
        for (int k = 2; i < 2 && k < w->n; k++) {
            tl_bench_timing r = middle(w->ratio[i][k], w->rounds);
            printf("  %5.2f %5.2f x %s (%2.0f%%)", r.median, w->least[k] / w->least[i], w->name[k],
                   100 * r.spread);
        }
        putchar('\n');
    }
    return row;
}

/* What it takes at most beside its parameters: values, gradients, moments. */
static double grown(const trainer *r)
{
    tl_tape_memory a = tl_memory_stats(r->t);
    return (double)(a.tape.peak + a.gradients.peak + a.model.peak) -
           4 * (double)tl_model_parameters(r->m);
}

static json_t *compare(const net *n, double budget)
{
    static table w;
    trainer own[2];
    char ways[32], *rest = ways;
    w.rounds = 0;
    w.n = 2;
    for (int i = 0; i < WAYS; i++)
        w.least[i] = (double)INFINITY;
    w.name[0] = "called";
    w.name[1] = "compiled";
    double start = tl_bench_now();
    tl_threads_set(n->threads);
    for (int i = 0; i < 2; i++)
        open_trainer(&own[i], n, i == 1);
    tl_bench_peer p = tl_bench_peer_open(n->name, n->p, n->threads);
    snprintf(ways, sizeof ways, "%s", n->peers);
    double theirs = (double)NAN; /* the first way's growth, after a few steps */
    for (char *way; (way = strtok_r(rest, " ", &rest)) != NULL;)
        if (isfinite(tl_bench_peer_step(&p, way))) { /* torch.compile compiles here */
            for (int i = 0; i < 3 && w.n == 2; i++)
                tl_bench_peer_step(&p, way), theirs = p.grown;
            w.name[w.n++] = way;
        }
    printf("\n%s %s, %d thread%s%s\n", n->name, n->say, n->threads, n->threads > 1 ? "s" : "",
           p.to == NULL ? " (no PyTorch: make deps-peers)" : "");
    round_of(&w, own, &p, false);
    do
        round_of(&w, own, &p, true);
    while (w.rounds < MAX_ROUNDS && !(settled(&w) && w.rounds >= 40) &&
           tl_bench_now() - start < budget);
    json_t *row = show(&w);
    json_object_set_new(row, "net", json_sprintf("%s %s", n->name, n->say));
    json_object_set_new(row, "threads", json_integer(n->threads));
    tl_tape_memory a = tl_memory_stats(own[0].t), b = tl_memory_stats(own[1].t);
    printf("    peak MB: tape %.1f called, %.1f compiled; gradients %.2f, of %.2f of parameters; "
           "%d rounds%s\n",
           (double)a.tape.peak / 1e6, (double)b.tape.peak / 1e6, (double)a.gradients.peak / 1e6,
           4e-6 * (double)tl_model_parameters(own[0].m), w.rounds,
           settled(&w) ? "" : ": the spread did not come under 5%");
    printf("    grown by MB, beside parameters: %.1f called, %.1f compiled (%.2f of it); torch %s "
           "%.1f, ours %.2f and %.2f of that\n",
           grown(&own[0]) / 1e6, grown(&own[1]) / 1e6, grown(&own[1]) / grown(&own[0]),
           w.n > 2 ? w.name[2] : "-", theirs / 1e6, grown(&own[0]) / theirs,
           grown(&own[1]) / theirs);
    if (n->loss == decoder) {
        double most = tl_bench_fma_peak_gflops() * 1e9 * n->threads,
               flops = flops_of(n->p, (double)tl_model_parameters(own[0].m));
        printf("    of FMA peak: %.2f called, %.2f compiled; %.2f and %.2f in the least times\n",
               flops / most / middle(w.seconds[0], w.rounds).median,
               flops / most / middle(w.seconds[1], w.rounds).median, flops / most / w.least[0],
               flops / most / w.least[1]);
    }
    for (int i = 0; i < 2; i++) {
        if (tl_failed(own[i].t))
            printf("    failed: %s\n", tl_error(own[i].t));
        tl_free(own[i].compiled, own[i].opt, own[i].t, own[i].m);
    }
    tl_bench_peer_close(&p);
    return row;
}

json_t *tl_bench_net(const char *name)
{
    int rows = 0;
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
        rows += strcmp(nets[i].name, name) == 0;
    json_t *all = rows > 0 ? json_array() : NULL;
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
        if (strcmp(nets[i].name, name) == 0)
            json_array_append_new(all, compare(&nets[i], 90.0 / rows));
    return all;
}
