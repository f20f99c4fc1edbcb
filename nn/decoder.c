/* decoder.c: the two decoders, Llama and GPT-2. Both are an embedding, blocks of attention and an
 * MLP, a norm and an output projection; they differ in their blocks and in the defaults of their
 * configs. */
#include "nn/layers.h"
#include "nn/models.h"

/* ---- configs ---- */

tl_decoder_numbers tl_llama_numbers(const tl_llama_config *c)
{
    return (tl_decoder_numbers){.name = "tl_llama",
                                .llama = true,
                                .vocab = c->vocab,
                                .width = c->width,
                                .layers = c->layers,
                                .heads = c->heads,
                                .kv_heads = c->kv_heads != 0 ? c->kv_heads : c->heads,
                                .hidden = c->hidden,
                                .max_positions = c->max_positions,
                                .eps = c->eps != 0 ? c->eps : 1e-5,
                                .tied = c->tied,
                                .pairing = c->pairing,
                                .rope_base = c->rope_base,
                                .scaling = c->scaling,
                                .dtype = tl_dtype_or(c->dtype, TL_F32)};
}

tl_decoder_numbers tl_gpt2_numbers(const tl_gpt2_config *c)
{
    int64_t four; /* times the width; a product that is too large is refused later */
    if (__builtin_mul_overflow(c->width, 4, &four))
        four = c->width;
    return (tl_decoder_numbers){.name = "tl_gpt2",
                                .vocab = c->vocab,
                                .width = c->width,
                                .layers = c->layers,
                                .heads = c->heads,
                                .kv_heads = c->heads,
                                .hidden = c->hidden != 0 ? c->hidden : four,
                                .max_positions = c->max_positions,
                                .eps = c->eps != 0 ? c->eps : 1e-5,
                                .dropout = c->dropout,
                                .tied = true,
                                .pairing = c->pairing,
                                .dtype = tl_dtype_or(c->dtype, TL_F32)};
}

/* Checks that the numbers fit one another. The message names fields of the config. */
static tl_status check_numbers(tl_tape *t, const tl_decoder_numbers *c)
{
    const struct {
        const char *name;
        int64_t n;
    } least[] = {{"vocab", c->vocab},
                 {"width", c->width},
                 {"layers", c->layers},
                 {"heads", c->heads},
                 {"hidden", c->hidden}};
    for (size_t i = 0; i < sizeof least / sizeof *least; i++)
        if (least[i].n < 1)
            return tl_tape_fail(TL_AT(t), TL_ESHAPE,
                                "%s: the config's %s is %lld; 1 is the least (vocab %lld, width "
                                "%lld, layers %lld, heads %lld, hidden %lld)",
                                c->name, least[i].name, (long long)least[i].n, (long long)c->vocab,
                                (long long)c->width, (long long)c->layers, (long long)c->heads,
                                (long long)c->hidden);
    if (c->layers > INT32_MAX)
        return tl_tape_fail(TL_AT(t), TL_ESHAPE, "%s: the config's layers is %lld; %d is the most",
                            c->name, (long long)c->layers, INT32_MAX);
    if (c->width % c->heads != 0)
        return tl_tape_fail(TL_AT(t), TL_ESHAPE,
                            "%s: the config's width %lld is not a multiple of its heads %lld",
                            c->name, (long long)c->width, (long long)c->heads);
    if (c->kv_heads < 0 || c->heads % c->kv_heads != 0)
        return tl_tape_fail(TL_AT(t), TL_ESHAPE,
                            "%s: the config's heads %lld are not a multiple of its kv_heads %lld",
                            c->name, (long long)c->heads, (long long)c->kv_heads);
    if (c->max_positions < 0)
        return tl_tape_fail(TL_AT(t), TL_ESHAPE,
                            "%s: the config's max_positions is %lld; 0 is the least", c->name,
                            (long long)c->max_positions);
    if ((c->llama || c->pairing != 0) && c->width / c->heads % 2 != 0)
        return tl_tape_fail(TL_AT(t), TL_ESHAPE,
                            "%s: the config's width %lld with heads %lld makes heads of %lld "
                            "numbers; rotary positions turn pairs",
                            c->name, (long long)c->width, (long long)c->heads,
                            (long long)(c->width / c->heads));
    if ((unsigned)c->pairing > TL_ROTARY_INTERLEAVED)
        return tl_tape_fail(
            TL_AT(t), TL_EDOMAIN,
            "%s: the config's pairing is %d; say TL_ROTARY_HALF or TL_ROTARY_INTERLEAVED", c->name,
            (int)c->pairing);
    return TL_OK;
}

/* Checks that the batch fits the config, too. */
static tl_status check_call(tl_tape *t, const tl_decoder_numbers *c, tl_tensor ids,
                            const tl_decoder_options *o)
{
    tl_shape s = tl_shape_of(t, ids);
    const tl_columns *columns = &o->columns;
    int64_t held = columns->cache != NULL && tl_is_none(columns->at) ? columns->cache->n : 0;
    const double dropout = tl_mode(t) & TL_EVAL ? 0 : c->dropout;
    TL_TRY(tl_error_status(t));
    TL_TRY(check_numbers(t, c));
    if (s.ndim != 2)
        return tl_tape_fail(TL_AT(t), TL_ESHAPE, "%s: ids have shape %s; (b, s) is needed", c->name,
                            TL_TEXT_OF(&s));
    if (c->max_positions > 0 && tl_is_none(columns->start) && tl_is_none(columns->end) &&
        held >= 0 && s.dim[1] > c->max_positions - held)
        return tl_tape_fail(
            TL_AT(t), TL_ESHAPE,
            "%s: ids %s make %llu positions, but the config's max_positions is %lld", c->name,
            TL_TEXT_OF(&s), (unsigned long long)s.dim[1] + (unsigned long long)held,
            (long long)c->max_positions);
    if (!c->llama && c->pairing == 0 && c->max_positions < 1)
        return tl_tape_fail(TL_AT(t), TL_ESHAPE,
                            "%s: the config's max_positions is %lld; without a pairing positions "
                            "are learned, so there is a table of them",
                            c->name, (long long)c->max_positions);
    if (dropout != 0 && tl_is_none(o->sample))
        return tl_tape_fail(
            TL_AT(t), TL_EUSAGE,
            "%s: dropout %g draws by the samples' numbers; give .sample, or push the mode TL_EVAL",
            c->name, dropout);
    if (dropout != 0 && columns->cache != NULL)
        return tl_tape_fail(TL_AT(t), TL_EUSAGE,
                            "%s: decoding with a cache under dropout %g; push the mode TL_EVAL",
                            c->name, dropout);
    return TL_OK;
}

/* ---- a call ---- */

static const double draw = 0.02; /* standard deviation of a GPT-2's first weights */

/* What all layers of a call share. */
typedef struct {
    tl_tape *t;
    tl_model *m;
    tl_decoder_numbers n;
    const tl_decoder_options *o;
    double out_scale; /* of the projections that end residual branches, which start small */
} call;

static tl_tensor llama_block(const call *c, int64_t i, tl_tensor x)
{
    tl_tape *t = c->t;
    char prefix[64], name[TL_NAME_MAX];
    snprintf(prefix, sizeof prefix, "layers.%lld", (long long)i);
    tl_tensor a = tl_norm(t, c->m, tl_join(t, name, prefix, "attention_norm"), x, c->n.eps);
    a = tl_self_attention(t, c->m, tl_join(t, name, prefix, "attention"), a, .heads = c->n.heads,
                          .kv_heads = c->n.kv_heads, .max_positions = c->n.max_positions,
                          .rope_base = c->n.rope_base, .scaling = c->n.scaling,
                          .out_scale = c->out_scale, .pairing = c->n.pairing,
                          .columns = c->o->columns, .layer = i, .project = c->o->project);
    x = tl_add(t, x, a);
    tl_tensor h = tl_norm(t, c->m, tl_join(t, name, prefix, "mlp_norm"), x, c->n.eps);
    h = tl_mlp_swiglu(t, c->m, tl_join(t, name, prefix, "mlp"), h, c->n.hidden,
                      .out_scale = c->out_scale, .project = c->o->project);
    return tl_add(t, x, h);
}

static tl_tensor gpt2_attention(const call *c, const char *name, int64_t layer, tl_tensor x)
{
    tl_tape *t = c->t;
    const int64_t width = c->n.width, heads = c->n.heads;
    const tl_columns *columns = &c->o->columns;
    const tl_rotary_kind kind = {.dim = width / heads,
                                 .max_positions = c->n.max_positions,
                                 .pairing = c->n.pairing};
    tl_rotary_rows rows, *r = c->n.pairing != 0 ? &rows : NULL;
    if (r != NULL)
        rows = tl_rotary_rows_of(TL_AT(t), c->m, x, columns, &kind);
    tl_tensor qkv = tl_project(t, c->m, name, "qkv", x, 3 * width, draw, true, &c->o->project);
    tl_tensor part[3];
    for (int i = 0; i < 3; i++)
        part[i] = tl_slice(t, qkv, 2, i * width, (i + 1) * width, 1);
    tl_tensor y = tl_attend(t, part[0], part[1], part[2], heads, heads, r, columns, layer);
    return tl_project(t, c->m, name, "out", y, width, draw * c->out_scale, true, &c->o->project);
}

/* Dropout whose draws are those of the stream PREFIX.NAME. */
static tl_tensor dropped(const call *c, tl_tensor x, const char *prefix, const char *name)
{
    char stream[TL_NAME_MAX];
    if (c->n.dropout == 0)
        return x;
    return tl_dropout(c->t, x, c->n.dropout, .stream = tl_join(c->t, stream, prefix, name),
                      .sample = c->o->sample, .start = c->o->columns.start);
}

static tl_tensor gpt2_block(const call *c, int64_t i, tl_tensor x)
{
    tl_tape *t = c->t;
    char prefix[64], name[TL_NAME_MAX];
    snprintf(prefix, sizeof prefix, "blocks.%lld", (long long)i);
    tl_tensor a = tl_norm_layer(t, c->m, tl_join(t, name, prefix, "norm1"), x, c->n.eps);
    a = gpt2_attention(c, tl_join(t, name, prefix, "attention"), i, a);
    x = tl_add(t, x, dropped(c, a, prefix, "attention.dropout"));
    tl_tensor h = tl_norm_layer(t, c->m, tl_join(t, name, prefix, "norm2"), x, c->n.eps);
    h = tl_mlp_gelu(t, c->m, tl_join(t, name, prefix, "mlp"), h, c->n.hidden, .by_tanh = true,
                    .out_scale = c->out_scale, .project = c->o->project);
    return tl_add(t, x, dropped(c, h, prefix, "mlp.dropout"));
}

/* The rows of the table of learned positions: a slice where all samples have the same positions,
 * else looked up for each. Either way their gradient folds in f64. */
static tl_tensor learned_positions(const call *c, tl_shape s)
{
    tl_tape *t = c->t;
    tl_tensor ids, table = tl_param(t, c->m, "positions.weight", c->n.dtype,
                                    TL_DIMS(c->n.max_positions, c->n.width), TL_INIT_NORMAL, 0.01);
    int64_t first = tl_columns_positions(t, &c->o->columns, s.dim[0], s.dim[1], c->n.max_positions,
                                         &ids);
    return tl_is_none(ids) ? tl_slice(t, table, 0, first, first + s.dim[1], 1)
                           : tl_embedding_acc64(t, table, ids);
}

static tl_tensor logits(tl_at at, tl_model *m, tl_decoder_numbers n, tl_tensor ids,
                        const tl_decoder_options *o)
{
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o->shared);
    const tl_shape s = tl_shape_of(t, ids);
    if (check_call(t, &n, ids, o) != TL_OK)
        return tl_leave(t, place, TL_NONE);
    const double in = n.llama ? tl_inv_sqrt(1, n.width) : draw;
    const call c = {t, m, n, o, tl_inv_sqrt(1, 2 * n.layers)};
    tl_tensor x = tl_embed_at(TL_AT(t), m, "embed", ids, n.vocab, n.width, in, n.dtype,
                              (tl_layer_options){0});
    if (!n.llama && n.pairing == 0)
        x = tl_add(t, x, learned_positions(&c, s));
    x = dropped(&c, x, "embed", "dropout");
    for (int64_t i = 0; i < n.layers && !tl_failed(t); i++)
        x = n.llama ? llama_block(&c, i, x) : gpt2_block(&c, i, x);
    x = n.llama ? tl_norm(t, m, "norm", x, n.eps) : tl_norm_layer(t, m, "norm", x, n.eps);
    tl_tensor z = n.tied ? tl_affine(t, x, tl_model_find(m, "embed.weight"), TL_NONE)
                         : tl_project(t, m, "output", "proj", x, n.vocab, in, false, &o->project);
    if (o->columns.cache != NULL && tl_is_none(o->columns.at) && !tl_failed(t))
        o->columns.cache->n += s.dim[1];
    return tl_leave(t, place, z);
}

tl_tensor tl_llama_at(tl_at at, tl_model *m, const tl_llama_config *c, tl_tensor ids,
                      tl_decoder_options o)
{
    return TL_NEED_AT(at, c) != TL_OK ? TL_NONE : logits(at, m, tl_llama_numbers(c), ids, &o);
}

tl_tensor tl_gpt2_at(tl_at at, tl_model *m, const tl_gpt2_config *c, tl_tensor ids,
                     tl_decoder_options o)
{
    return TL_NEED_AT(at, c) != TL_OK ? TL_NONE : logits(at, m, tl_gpt2_numbers(c), ids, &o);
}

tl_tensor tl_decoder_at(tl_at at, tl_model *m, const tl_decoder_config *c, tl_tensor ids,
                        tl_decoder_options o)
{
    if (TL_NEED_AT(at, c) != TL_OK)
        return TL_NONE;
    if (c->family == TL_FAMILY_LLAMA)
        return tl_llama_at(at, m, &c->llama, ids, o);
    if (c->family == TL_FAMILY_GPT2)
        return tl_gpt2_at(at, m, &c->gpt2, ids, o);
    tl_tape_fail(at, TL_EDOMAIN, "tl_decoder: the config's family is %d; it is a Llama or a GPT-2",
                 (int)c->family);
    return TL_NONE;
}

/* ---- caches ---- */

static tl_kv_cache cache_of(tl_model *m, tl_decoder_numbers n, int64_t b, int64_t capacity)
{
    return tl_kv_cache_new(m, n.dtype, n.layers, b, n.kv_heads, capacity,
                           n.heads > 0 ? n.width / n.heads : 0);
}

tl_kv_cache tl_llama_cache(tl_model *m, const tl_llama_config *c, int64_t b, int64_t capacity)
{
    if (tl_error_begin(m) != TL_OK || TL_NEED(tl_error_record(m), c) != TL_OK)
        return (tl_kv_cache){.n = 0};
    return cache_of(m, tl_llama_numbers(c), b, capacity);
}

tl_kv_cache tl_gpt2_cache(tl_model *m, const tl_gpt2_config *c, int64_t b, int64_t capacity)
{
    if (tl_error_begin(m) != TL_OK || TL_NEED(tl_error_record(m), c) != TL_OK)
        return (tl_kv_cache){.n = 0};
    return cache_of(m, tl_gpt2_numbers(c), b, capacity);
}

tl_kv_cache tl_decoder_cache(tl_model *m, const tl_decoder_config *c, int64_t b, int64_t capacity)
{
    if (c != NULL && c->family == TL_FAMILY_LLAMA)
        return tl_llama_cache(m, &c->llama, b, capacity);
    if (c != NULL && c->family == TL_FAMILY_GPT2)
        return tl_gpt2_cache(m, &c->gpt2, b, capacity);
    if (tl_error_begin(m) == TL_OK && TL_NEED(tl_error_record(m), c) == TL_OK)
        tl_fail(tl_error_record(m), TL_EDOMAIN, "tl_decoder_cache: the config's family is %d",
                (int)c->family);
    return (tl_kv_cache){.n = 0};
}
