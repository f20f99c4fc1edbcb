/* gpt2.c: LayerNorm and GELU layers, and a decoder of the GPT-2 kind made of them. */
#include <stdio.h>

#include "nn/layers.h"

static const double draw = 0.02; /* deviation of the first weights */

tl_tensor tl_norm_layer_at(tl_at at, tl_model *m, const char *name, tl_tensor x, double eps,
                           tl_layer_options o)
{
    tl_tape *t = at.tape;
    char buf[TL_NAME_MAX];
    int place = tl_share_push(at, o.shared);
    tl_dtype d = tl_dtype_of(t, x);
    tl_tensor w = tl_param(t, m, tl_join(t, buf, name, "weight"), d, TL_DIMS(tl_last_dim(t, x)),
                           TL_INIT_ONES, 1);
    tl_tensor b = tl_param(t, m, tl_join(t, buf, name, "bias"), d, TL_DIMS(tl_last_dim(t, x)),
                           TL_INIT_ZEROS, 0);
    tl_tensor y = tl_layer_norm(t, x, w, b, eps);
    tl_place_pop(t, place);
    return y;
}

/* PREFIX.NAME with a bias of zeros at first, weights drawn with that deviation. */
static tl_tensor project(tl_tape *t, tl_model *m, const char *prefix, const char *name, tl_tensor x,
                         int64_t outputs, double deviation, const tl_hook *hook)
{
    char layer[TL_NAME_MAX], buf[TL_NAME_MAX];
    tl_dtype d = tl_dtype_of(t, x);
    tl_join(t, layer, prefix, name);
    tl_tensor w = tl_param(t, m, tl_join(t, buf, layer, "weight"), d,
                           TL_DIMS(outputs, tl_last_dim(t, x)), TL_INIT_NORMAL, deviation);
    tl_tensor b = tl_param(t, m, tl_join(t, buf, layer, "bias"), d, TL_DIMS(outputs), TL_INIT_ZEROS,
                           0);
    tl_tensor product = tl_matmul(t, x, tl_transpose(t, w, 0, 1)), y = tl_add(t, product, b);
    tl_let_go(t, product);
    return tl_hooked(t, hook, layer, x, y);
}

tl_tensor tl_mlp_gelu_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                         tl_mlp_gelu_options o)
{
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o.shared);
    double up = o.deviation != 0 ? o.deviation : draw;
    tl_one_or_more(at, "tl_mlp_gelu", name, hidden, "hidden");
    tl_tensor h = project(t, m, name, "up", x, hidden, up, &o.project);
    h = o.by_tanh ? tl_gelu_tanh(t, h) : tl_gelu(t, h);
    tl_tensor y = project(t, m, name, "down", h, tl_last_dim(t, x),
                          o.out_scale != 0 ? up * o.out_scale : up, &o.project);
    tl_place_pop(t, place);
    return y;
}

/* Part i of a packed (b, s, 3*width), as (b, heads, s, width/heads); turned, if r is not NULL. */
static tl_tensor part(tl_tape *t, tl_tensor qkv, int i, int64_t heads, const tl_tensor *r,
                      tl_rotary_pairing pairing)
{
    tl_shape s = tl_shape_of(t, qkv);
    int64_t width = s.dim[2] / 3;
    tl_tensor x = tl_slice(t, qkv, 2, i * width, (i + 1) * width, 1);
    x = tl_reshape(t, x, TL_DIMS(s.dim[0], s.dim[1], heads, heads > 0 ? width / heads : 0));
    if (r != NULL)
        x = tl_rotary(t, x, r[0], r[1], pairing);
    return tl_permute(t, x, TL_DIMS(0, 2, 1, 3));
}

/* What the layers of a model share in a call. */
typedef struct {
    const tl_gpt2_config *c;
    tl_decoder_options o;
    int64_t layer;
} frame;

static tl_tensor attention(tl_tape *t, tl_model *m, const char *name, tl_tensor x, const frame *f,
                           double out_scale)
{
    int64_t heads = f->c->heads;
    tl_shape s = tl_shape_of(t, x);
    const tl_rotary_kind kind = {.dim = heads > 0 ? f->c->width / heads : 0,
                                 .max_positions = f->c->max_positions,
                                 .pairing = f->c->pairing};
    tl_tensor rows[2], *r = kind.pairing != 0 ? rows : NULL;
    if (r != NULL)
        tl_rotary_rows(TL_AT(t), m, x, &f->o.columns, &kind, r);
    tl_tensor qkv = project(t, m, name, "qkv", x, 3 * tl_last_dim(t, x), draw, &f->o.project);
    tl_tensor q = part(t, qkv, 0, heads, r, kind.pairing),
              k = part(t, qkv, 1, heads, r, kind.pairing), v = part(t, qkv, 2, heads, NULL, 0);
    tl_attention_options keys = {.full = false};
    tl_columns_keys(t, &f->o.columns, f->layer, &k, &v, &keys);
    tl_tensor y = tl_attention_at(TL_AT(t), q, k, v, keys);
    return project(t, m, name, "out", tl_reshape(t, tl_permute(t, y, TL_DIMS(0, 2, 1, 3)), s),
                   tl_last_dim(t, x), draw * out_scale, &f->o.project);
}

/* The draws of a place are those of a stream of its name. */
static tl_tensor dropped(tl_tape *t, const frame *f, tl_tensor x, const char *prefix,
                         const char *name)
{
    char stream[TL_NAME_MAX];
    if (f->c->dropout == 0 || tl_mode(t) & TL_EVAL)
        return x;
    return tl_dropout(t, x, f->c->dropout, .stream = tl_join(t, stream, prefix, name),
                      .sample = f->o.sample, .start = f->o.columns.start);
}

static tl_tensor block(tl_tape *t, tl_model *m, const frame *f, tl_tensor x)
{
    const tl_gpt2_config *c = f->c;
    char prefix[64], name[TL_NAME_MAX];
    double eps = c->eps != 0 ? c->eps : 1e-5,
           out_scale = tl_inv_sqrt(1, 2 * c->layers); /* residual branches start small */
    snprintf(prefix, sizeof prefix, "blocks.%lld", (long long)f->layer);
    tl_tensor a = tl_norm_layer(t, m, tl_join(t, name, prefix, "norm1"), x, eps);
    a = attention(t, m, tl_join(t, name, prefix, "attention"), a, f, out_scale);
    x = tl_add(t, x, dropped(t, f, a, prefix, "attention.dropout"));
    tl_tensor h = tl_norm_layer(t, m, tl_join(t, name, prefix, "norm2"), x, eps);
    h = tl_mlp_gelu(t, m, tl_join(t, name, prefix, "mlp"), h,
                    c->hidden != 0 ? c->hidden : 4 * c->width, .by_tanh = true,
                    .out_scale = out_scale, .project = f->o.project);
    return tl_add(t, x, dropped(t, f, h, prefix, "mlp.dropout"));
}

static bool check(tl_tape *t, const tl_gpt2_config *c, const tl_decoder_options *o, tl_tensor ids)
{
    tl_decoder_numbers n = {.name = "tl_gpt2",
                            .vocab = c->vocab,
                            .width = c->width,
                            .layers = c->layers,
                            .heads = c->heads,
                            .hidden = c->hidden != 0 ? c->hidden : 4 * c->width,
                            .max_positions = c->max_positions,
                            .rotary = c->pairing != 0,
                            .pairing = c->pairing};
    if (!tl_decoder_check(t, &n, ids, &o->columns))
        return false;
    if (c->max_positions < 1 && c->pairing == 0)
        tl_tape_fail(TL_AT(t), TL_ESHAPE,
                     "tl_gpt2: the config's max_positions is %lld; without a pairing positions are "
                     "learned, so there is a table of them",
                     (long long)c->max_positions);
    if (c->dropout == 0 || tl_mode(t) & TL_EVAL)
        return !tl_failed(t);
    if (tl_is_none(o->sample))
        tl_tape_fail(TL_AT(t), TL_EUSAGE,
                     "tl_gpt2: dropout %g draws by the samples' numbers; give .sample, or push the "
                     "mode TL_EVAL",
                     c->dropout);
    if (o->columns.cache != NULL)
        tl_tape_fail(TL_AT(t), TL_EUSAGE,
                     "tl_gpt2: decoding with a cache under dropout %g; push the mode TL_EVAL",
                     c->dropout);
    return !tl_failed(t);
}

/* The positions' rows, the same for all samples or for each its own. Both ways their gradient folds
 * in f64. */
static tl_tensor places(tl_tape *t, tl_tensor table, const tl_columns *c, tl_shape s)
{
    tl_tensor ids;
    int64_t first = tl_columns_positions(t, c, s.dim[0], s.dim[1], &ids);
    return tl_is_none(ids) ? tl_slice(t, table, 0, first, first + s.dim[1], 1)
                           : tl_embedding_acc64(t, table, ids);
}

tl_tensor tl_gpt2_at(tl_at at, tl_model *m, const tl_gpt2_config *c, tl_tensor ids,
                     tl_decoder_options o)
{
    tl_tape *t = at.tape;
    if (TL_NEED_AT(at, c) != TL_OK)
        return TL_NONE;
    int place = tl_share_push(at, o.shared);
    tl_dtype d = tl_dtype_or(c->dtype, TL_F32);
    tl_shape s = tl_shape_of(t, ids);
    if (!check(t, c, &o, ids)) {
        tl_place_pop(t, place);
        return TL_NONE;
    }
    frame f = {.c = c, .o = o};
    tl_tensor tokens = tl_embed_at(TL_AT(t), m, "embed", ids, c->vocab, c->width, draw, d,
                                   (tl_layer_options){0});
    tl_tensor x = tokens;
    if (c->pairing == 0) {
        tl_tensor table = tl_param(t, m, "positions.weight", d, TL_DIMS(c->max_positions, c->width),
                                   TL_INIT_NORMAL, 0.01);
        x = tl_add(t, tokens, places(t, table, &o.columns, s));
    }
    x = dropped(t, &f, x, "embed", "dropout");
    for (f.layer = 0; f.layer < c->layers; f.layer++)
        x = block(t, m, &f, x);
    x = tl_norm_layer(t, m, "norm", x, c->eps != 0 ? c->eps : 1e-5);
    tl_tensor z = tl_matmul(t, x, tl_transpose(t, tl_model_find(m, "embed.weight"), 0, 1));
    tl_columns_advance(t, &o.columns, s.dim[1]);
    tl_place_pop(t, place);
    return z;
}

tl_kv_cache tl_gpt2_cache(tl_model *m, const tl_gpt2_config *c, int64_t b, int64_t capacity)
{
    if (!tl_lives(m) || TL_NEED(tl_error_record(m), c) != TL_OK)
        return (tl_kv_cache){.n = 0};
    return tl_kv_cache_new(m, tl_dtype_or(c->dtype, TL_F32), c->layers, b, c->heads, capacity,
                           c->heads > 0 ? c->width / c->heads : 0);
}
