#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/grouped.h"

enum { S = 5, VOCAB = 9, D = 8, PARTS = 2 };

uint64_t grouped_random(uint64_t *seed)
{
    uint64_t x = *seed += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* ---- the programs: ids (b, S) and how long each sample is -> (b, ...) ---- */

static tl_tensor param(const grouped_input *in, const char *name, tl_shape s)
{
    return tl_param(in->t, in->m, name, in->dtype, s, TL_INIT_NORMAL, 0.4);
}

static tl_tensor embedded(const grouped_input *in)
{
    return tl_embedding(in->t, param(in, "e", TL_DIMS(VOCAB, D)), in->ids);
}

static tl_tensor mlp(const grouped_input *in)
{
    tl_tape *t = in->t;
    tl_tensor x = tl_reshape(t, embedded(in), TL_DIMS(-1, S * D));
    x = tl_tanh(t, tl_linear(t, in->m, "l1", x, 12));
    return tl_linear(t, in->m, "l2", tl_norm_layer(t, in->m, "n", x, 1e-5), 3);
}

static tl_tensor llama(const grouped_input *in)
{
    const tl_llama_config c = {.vocab = VOCAB,
                               .width = D,
                               .layers = 2,
                               .heads = 2,
                               .kv_heads = 1,
                               .hidden = 12,
                               .pairing = TL_ROTARY_HALF,
                               .dtype = in->dtype};
    return tl_llama(in->t, in->m, &c, in->ids);
}

static tl_tensor gpt2(const grouped_input *in)
{
    const tl_gpt2_config c = {.vocab = VOCAB,
                              .width = D,
                              .layers = 2,
                              .heads = 2,
                              .max_positions = S,
                              .dtype = in->dtype};
    return tl_gpt2(in->t, in->m, &c, in->ids);
}

static tl_tensor lstm(const grouped_input *in)
{
    return tl_lstm(in->t, in->m, "r", embedded(in), D, .layers = 2, .both = true, .end = in->end);
}

/* Convolutions of the samples as pictures, and dropout. */
static tl_tensor conv(const grouped_input *in)
{
    tl_tape *t = in->t;
    tl_tensor x = tl_reshape(t, embedded(in), TL_DIMS(-1, 1, S, D));
    x = tl_relu(t, tl_conv2d(t, x, param(in, "c1", TL_DIMS(3, 1, 3, 3)), .padding = {1, 1}));
    x = tl_max_pool2d(t, x, .kernel = {2, 2});
    x = tl_reshape(t, x, TL_DIMS(-1, 3 * (S / 2) * (D / 2)));
    x = tl_dropout(t, x, 0.25, .stream = "drop", .sample = in->number);
    return tl_linear(t, in->m, "l", x, 3);
}

/* A weight used at each step as it is and turned, another once before all of them. */
static tl_tensor cell(const grouped_input *in)
{
    tl_tape *t = in->t;
    tl_tensor x = tl_matmul(t, tl_permute(t, embedded(in), TL_DIMS(1, 0, 2)),
                            param(in, "w", TL_DIMS(D, D)));
    tl_tensor u = param(in, "u", TL_DIMS(D, D)), h = tl_select(t, x, 0, 0);
    for (int i = 1; i < S; i++) {
        h = tl_tanh(t, tl_add(t, tl_select(t, x, 0, i), tl_matmul(t, h, u)));
        h = tl_add(t, tl_matmul(t, h, tl_transpose(t, u, 0, 1)), param(in, "b", TL_DIMS(D)));
    }
    return h;
}

/* Positions that all samples share, a product of weights, a weight's cast, the embedding again. */
static tl_tensor derived(const grouped_input *in)
{
    static const int64_t place[S] = {0, 1, 2, 1, 0};
    tl_tape *t = in->t;
    tl_tensor p = tl_embedding(t, param(in, "p", TL_DIMS(S, D)),
                               tl_constant(t, place, TL_I64, TL_DIMS(S)));
    tl_tensor ab = tl_matmul(t, param(in, "a", TL_DIMS(D, 2)), param(in, "b", TL_DIMS(2, D)));
    tl_tensor x = tl_matmul(t, tl_add(t, embedded(in), p), ab);
    tl_tensor wide = tl_cast(t, param(in, "w", TL_DIMS(D, D)), TL_F64);
    x = tl_cast(t, tl_matmul(t, tl_cast(t, tl_tanh(t, x), TL_F64), wide), in->dtype);
    return tl_matmul(t, tl_add(t, x, tl_matmul(t, x, ab)),
                     tl_transpose(t, param(in, "e", TL_DIMS(VOCAB, D)), 0, 1));
}

const grouped_program grouped_programs[] = {
    {"mlp", mlp, true, false},
    {"llama", llama, false, false},
    {"gpt2", gpt2, false, false},
    {"lstm", lstm, false, false},
    {"conv", conv, false, false},
    {"a cell", cell, true, false},
    {"derived and tied", derived, false, true},
};
const int grouped_count = sizeof grouped_programs / sizeof *grouped_programs;

/* ---- ranks ---- */

static void loss_of(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    grouped_rank *r = ctx;
    (void)n_in, (void)n_out;
    r->in.t = t;
    r->in.ids = in[0], r->in.end = in[1], r->in.number = in[2];
    tl_tensor y = tl_cast(t, r->p->f(&r->in), TL_F32);
    if (!tl_is_none(r->in.total))
        tl_sum_to(t, tl_detach(t, y), TL_SCALAR, r->in.total);
    out[0] = tl_scale(t, tl_sum(t, tl_square(t, y), TL_ALL, false), 1.0 / GROUPED_SAMPLES);
    tl_tensor last = out[0];
    if (r->p->two) {
        tl_backward(t, last, .put_off = r->put_off, .retain = true);
        last = tl_sum(t, tl_sin(t, y), TL_ALL, false);
    }
    if (r->g != NULL)
        tl_group_backward(r->g, t, last);
    else
        tl_backward(t, last, .put_off = r->put_off);
}

void grouped_backward(grouped_rank *r, const grouped_program *p, int step, int from, int to,
                      bool put_off)
{
    int64_t ids[GROUPED_SAMPLES * S], end[GROUPED_SAMPLES];
    tl_tape *t = r->t;
    for (int i = from; i < to; i++) {
        uint64_t s = (uint64_t)(step * GROUPED_SAMPLES + i);
        end[i - from] = 1 + (int64_t)(grouped_random(&s) % S);
        for (int j = 0; j < S; j++)
            ids[(i - from) * S + j] = (int64_t)(grouped_random(&s) % VOCAB);
    }
    tl_tensor loss, in[3] = {
                        tl_data(t, ids, TL_I64, TL_DIMS(to - from, S)),
                        tl_data(t, end, TL_I64, TL_DIMS(to - from)),
                        tl_data(t, &(int64_t){step * GROUPED_SAMPLES + from}, TL_I64, TL_SCALAR),
                    };
    r->p = p;
    r->put_off = put_off;
    if (r->c != NULL)
        tl_run(r->c, in, 3, &loss);
    else
        loss_of(t, in, 3, &loss, 1, r);
}

void grouped_compile(grouped_rank *r, bool compiled)
{
    r->c = compiled ? tl_compile(r->t, loss_of, 1, r) : NULL;
}

void grouped_begin(grouped_rank *r, const grouped_program *p, tl_dtype dtype)
{
    r->m = tl_model_new(.seed = 3);
    r->t = tl_tape_new(r->m);
    r->opt = tl_adamw_new(r->m, .lr = 0.02, .clip = 1);
    r->c = NULL;
    r->g = NULL;
    r->in = (grouped_input){.t = r->t, .m = r->m, .dtype = dtype};
    grouped_backward(r, p, 0, 0, 1, false); /* parameters are made */
    tl_tape_reset(r->t);
    tl_grad_clear(r->t);
}

void grouped_shard(grouped_rank *r, tl_group *g)
{
    tl_free(r->opt);
    r->opt = tl_adamw_new(r->m, .lr = 0.02, .clip = 1, .part = tl_group_rank(g),
                          .parts = tl_group_shard(g));
}

void grouped_end(grouped_rank *r, char hash[GROUPED_HASH])
{
    if (tl_failed(r->t))
        snprintf(hash, GROUPED_HASH, "%s", tl_error(r->t));
    else
        tl_model_sha256(r->m, hash);
    tl_error_clear(r->t);
    if (r->c != NULL)
        tl_free(r->c);
    tl_free(r->opt, r->t, r->m);
}

void grouped_cut(int *cut, int ranks, int from, int to, uint64_t *seed)
{
    const int empty = ranks == 1 ? -1 : (int)(grouped_random(seed) % (uint64_t)ranks);
    cut[0] = from;
    for (int i = 0; i < ranks; i++) {
        const int at = cut[i], last = i == ranks - 1 || (empty == ranks - 1 && i == ranks - 2);
        const int n = (int)(grouped_random(seed) % (uint64_t)(to - at + 1));
        cut[i + 1] = i == empty ? at : last ? to : at + n;
    }
}

/* ---- a group ---- */

static tl_status nothing_to_settle(void *ctx, const void *bytes, tl_err *e)
{
    (void)ctx, (void)bytes, (void)e;
    return TL_OK;
}
static void no_end(void *ctx, bool failed) { (void)ctx, (void)failed; }
tl_link grouped_alone(void)
{
    return (tl_link){.size = 1, .settle = nothing_to_settle, .end = no_end};
}

void grouped_train(const grouped_program *p, tl_dtype dtype, bool compiled, tl_link link,
                   uint64_t seed, char out[GROUPED_HASH])
{
    grouped_rank r;
    grouped_begin(&r, p, dtype);
    grouped_compile(&r, compiled);
    tl_group *g = tl_group_new(r.t, link);
    const bool sharded = seed & 2;
    r.g = seed & 4 ? g : NULL;
    if (seed & 8)
        tl_group_parts(g, 1 + (int64_t)(seed % 61));
    if (sharded)
        grouped_shard(&r, g);
    if (sharded && seed & 16)
        tl_group_cut(g, r.opt);
    double lost = 0;
    r.in.total = tl_data(r.m, &lost, TL_F64, TL_SCALAR);
    tl_group_agree(g, NULL, 0);
    tl_group_total(g, r.in.total);
    for (int step = 0; step < GROUPED_STEPS && !tl_failed(r.t); step++) {
        const int half = 1 + (int)(grouped_random(&seed) % (GROUPED_SAMPLES - 1));
        for (int k = 0; k < PARTS; k++) {
            const int from = k ? half : 0, to = k ? GROUPED_SAMPLES : half;
            int cut[65];
            grouped_cut(cut, link.size, from, to, &seed);
            const int *mine = cut + link.rank;
            tl_group_begin(g, (tl_group_part){mine[0] - from, mine[1] - mine[0], to - from});
            grouped_backward(&r, p, step, mine[0], mine[1], link.size > 1);
            tl_group_fold(g);
            tl_tape_reset(r.t);
        }
        tl_group_share(g);
        tl_step(r.opt, r.t);
        if (sharded)
            tl_group_weights(g);
        tl_tape_reset(r.t);
    }
    lost = tl_item(r.t, r.in.total);
    tl_group_free(g);
    grouped_end(&r, out);
    if (strlen(out) == 64)
        snprintf(out + 64, GROUPED_HASH - 64, " %a", lost);
}
