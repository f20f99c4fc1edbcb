/* llama.c: a decoder of the Llama kind. */
#include "nn/layers.h"

#include <stdio.h>

static tl_tensor block(tl_tape *t, tl_model *m, const tl_llama_config *c, int64_t i, tl_tensor x,
                       const tl_decoder_options *o)
{
    char prefix[64], name[TL_NAME_MAX];
    double eps = c->eps != 0 ? c->eps : 1e-5,
           out_scale = tl_inv_sqrt(1, 2 * c->layers); /* residual branches start small */
    snprintf(prefix, sizeof prefix, "layers.%lld", (long long)i);
    tl_tensor a = tl_norm(t, m, tl_join(t, name, prefix, "attention_norm"), x, eps);
    a = tl_self_attention(t, m, tl_join(t, name, prefix, "attention"), a, .heads = c->heads,
                          .kv_heads = c->kv_heads, .max_positions = c->max_positions,
                          .rope_base = c->rope_base, .scaling = c->scaling, .out_scale = out_scale,
                          .pairing = c->pairing, .columns = o->columns, .layer = i,
                          .project = o->project);
    x = tl_add(t, x, a);
    tl_tensor h = tl_norm(t, m, tl_join(t, name, prefix, "mlp_norm"), x, eps);
    h = tl_mlp_swiglu(t, m, tl_join(t, name, prefix, "mlp"), h, c->hidden, .out_scale = out_scale,
                      .project = o->project);
    return tl_add(t, x, h);
}

tl_tensor tl_llama_at(tl_at at, tl_model *m, const tl_llama_config *c, tl_tensor ids,
                      tl_decoder_options o)
{
    tl_tape *t = at.tape;
    if (TL_NEED_AT(at, c) != TL_OK)
        return TL_NONE;
    int place = tl_share_push(at, o.shared);
    const tl_decoder_numbers n = {.name = "tl_llama",
                                  .vocab = c->vocab,
                                  .width = c->width,
                                  .layers = c->layers,
                                  .heads = c->heads,
                                  .hidden = c->hidden,
                                  .kv_heads = c->kv_heads,
                                  .max_positions = c->max_positions,
                                  .rotary = true,
                                  .pairing = c->pairing};
    if (!tl_decoder_check(t, &n, ids, &o.columns)) {
        tl_place_pop(t, place);
        return TL_NONE;
    }
    tl_tensor x = tl_embed_at(TL_AT(t), m, "embed", ids, c->vocab, c->width,
                              tl_inv_sqrt(1, c->width), tl_dtype_or(c->dtype, TL_F32),
                              (tl_layer_options){0});
    for (int64_t i = 0; i < c->layers; i++)
        x = block(t, m, c, i, x, &o);
    x = tl_norm(t, m, "norm", x, c->eps != 0 ? c->eps : 1e-5);
    tl_tensor z = c->tied ? tl_matmul(t, x, tl_transpose(t, tl_model_find(m, "embed.weight"), 0, 1))
                          : tl_project(t, m, "output", "proj", x, c->vocab, 1, &o.project);
    tl_columns_advance(t, &o.columns, tl_shape_of(t, ids).dim[1]);
    tl_place_pop(t, place);
    return z;
}

tl_kv_cache tl_llama_cache(tl_model *m, const tl_llama_config *c, int64_t b, int64_t capacity)
{
    if (!tl_lives(m) || TL_NEED(tl_error_record(m), c) != TL_OK)
        return (tl_kv_cache){.n = 0};
    return tl_kv_cache_new(m, tl_dtype_or(c->dtype, TL_F32), c->layers, b,
                           c->kv_heads != 0 ? c->kv_heads : c->heads, capacity,
                           c->heads > 0 ? c->width / c->heads : 0);
}
