/* model_map.c: the parameters of decoders and their names in Hugging Face's files, as tables;
 * checks of a config; and the copying of those parameters into a model and out of it. */
#include "nn/files.h"

#include "nn/layers.h"
#include "tensor/operands.h"

/* dims of our tensor: v vocabulary, w width, q three widths, k width of all keys, h hidden width,
 * p positions. */
typedef struct {
    const char *theirs, *ours, *dims;
    tl_map_how how;
    bool untied; /* only where the output projection is not the embedding */
} row;

static const row llama[] = {
    {"model.embed_tokens.weight", "embed.weight", .dims = "vw"},
    {"model.layers.%d.input_layernorm.weight", "layers.%d.attention_norm.weight", .dims = "w"},
    {"model.layers.%d.self_attn.q_proj.weight", "layers.%d.attention.q.weight", .dims = "ww",
     .how = TL_TURNED},
    {"model.layers.%d.self_attn.k_proj.weight", "layers.%d.attention.k.weight", .dims = "kw",
     .how = TL_TURNED},
    {"model.layers.%d.self_attn.v_proj.weight", "layers.%d.attention.v.weight", .dims = "kw"},
    {"model.layers.%d.self_attn.o_proj.weight", "layers.%d.attention.o.weight", .dims = "ww"},
    {"model.layers.%d.post_attention_layernorm.weight", "layers.%d.mlp_norm.weight", .dims = "w"},
    {"model.layers.%d.mlp.gate_proj.weight", "layers.%d.mlp.gate.weight", .dims = "hw"},
    {"model.layers.%d.mlp.up_proj.weight", "layers.%d.mlp.up.weight", .dims = "hw"},
    {"model.layers.%d.mlp.down_proj.weight", "layers.%d.mlp.down.weight", .dims = "wh"},
    {"model.norm.weight", "norm.weight", .dims = "w"},
    {"lm_head.weight", "output.proj.weight", .dims = "vw", .untied = true},
    {.theirs = NULL}};

static const row gpt2[] = {
    {"transformer.wte.weight", "embed.weight", .dims = "vw"},
    {"transformer.wpe.weight", "positions.weight", .dims = "pw"},
    {"transformer.h.%d.ln_1.weight", "blocks.%d.norm1.weight", .dims = "w"},
    {"transformer.h.%d.ln_1.bias", "blocks.%d.norm1.bias", .dims = "w"},
    {"transformer.h.%d.attn.c_attn.weight", "blocks.%d.attention.qkv.weight", .dims = "qw",
     .how = TL_TRANSPOSED},
    {"transformer.h.%d.attn.c_attn.bias", "blocks.%d.attention.qkv.bias", .dims = "q"},
    {"transformer.h.%d.attn.c_proj.weight", "blocks.%d.attention.out.weight", .dims = "ww",
     .how = TL_TRANSPOSED},
    {"transformer.h.%d.attn.c_proj.bias", "blocks.%d.attention.out.bias", .dims = "w"},
    {"transformer.h.%d.ln_2.weight", "blocks.%d.norm2.weight", .dims = "w"},
    {"transformer.h.%d.ln_2.bias", "blocks.%d.norm2.bias", .dims = "w"},
    {"transformer.h.%d.mlp.c_fc.weight", "blocks.%d.mlp.up.weight", .dims = "hw",
     .how = TL_TRANSPOSED},
    {"transformer.h.%d.mlp.c_fc.bias", "blocks.%d.mlp.up.bias", .dims = "h"},
    {"transformer.h.%d.mlp.c_proj.weight", "blocks.%d.mlp.down.weight", .dims = "wh",
     .how = TL_TRANSPOSED},
    {"transformer.h.%d.mlp.c_proj.bias", "blocks.%d.mlp.down.bias", .dims = "w"},
    {"transformer.ln_f.weight", "norm.weight", .dims = "w"},
    {"transformer.ln_f.bias", "norm.bias", .dims = "w"},
    {.theirs = NULL}};

/* Writes the pattern, with i in the place of its %d. */
static void numbered(char out[TL_NAME_MAX], const char *pattern, int64_t i)
{
    const char *at = strstr(pattern, "%d");
    if (at == NULL)
        snprintf(out, TL_NAME_MAX, "%s", pattern);
    else
        snprintf(out, TL_NAME_MAX, "%.*s%lld%s", (int)(at - pattern), pattern, (long long)i,
                 at + 2);
}

static tl_decoder_numbers numbers_of(const tl_decoder_config *c)
{
    return c->family == TL_FAMILY_LLAMA ? tl_llama_numbers(&c->llama) : tl_gpt2_numbers(&c->gpt2);
}

enum { LAYERS_MAX = 4096, POSITIONS_MAX = 1 << 24 };

tl_status tl_map_check_scaling(const tl_rotary_scaling *s, const tl_source *file)
{
    if (s->factor > 0 && s->low_freq_factor > 0 && s->high_freq_factor > s->low_freq_factor &&
        s->original > 0)
        return TL_OK;
    return tl_file_fail(
        file, TL_EDOMAIN,
        "rotary scaling by factor %g, low %g, high %g, original %g; all above 0, low below high",
        s->factor, s->low_freq_factor, s->high_freq_factor, s->original);
}

/* An eps that the config leaves out has its default here; other numbers may be 0. */
static tl_status check_reals(const tl_decoder_numbers *n, const tl_source *file)
{
    const tl_rotary_scaling *s = &n->scaling;
    const struct {
        const char *name;
        double x;
    } real[] = {{"eps", n->eps},
                {"base of angles", n->rope_base},
                {"scaling factor", s->factor},
                {"low factor", s->low_freq_factor},
                {"high factor", s->high_freq_factor},
                {"original positions", s->original}};
    for (size_t i = 0; i < sizeof real / sizeof *real; i++)
        if (!(real[i].x >= 0 && real[i].x <= 1e15))
            return tl_file_fail(file, TL_EDOMAIN, "a model of %s %g; 0 to 1e15 are possible",
                                real[i].name, real[i].x);
    if (s->factor != 0)
        TL_TRY(tl_map_check_scaling(s, file));
    /* Below 1 the scaling is linear if it slows every wave: none is shorter than 2 pi. */
    if (s->original >= 1 ? s->original != (double)(int64_t)s->original
                         : s->original > 6 * s->low_freq_factor)
        return tl_file_fail(
            file, TL_EDOMAIN,
            "rotary scaling from %.17g original positions; a whole number is needed", s->original);
    return TL_OK;
}

tl_status tl_map_check(const tl_decoder_config *c, const tl_source *file)
{
    const tl_decoder_numbers all = numbers_of(c), *n = &all;
    const int64_t most = INT32_MAX / 4;
    const struct {
        const char *name;
        int64_t n, most;
    } number[] = {{"vocabulary", n->vocab, most},
                  {"width", n->width, most},
                  {"layers", n->layers, LAYERS_MAX},
                  {"heads", n->heads, most},
                  {"key heads", n->kv_heads, most},
                  {"hidden width", n->hidden, most},
                  {"positions", n->llama && n->max_positions == 0 ? 1 : n->max_positions,
                   POSITIONS_MAX}};
    if (c->family != TL_FAMILY_LLAMA && c->family != TL_FAMILY_GPT2)
        return tl_file_fail(file, TL_EDOMAIN, "the config's family is %d; it is a Llama or a GPT-2",
                            (int)c->family);
    if (c->family == TL_FAMILY_GPT2 && c->gpt2.pairing != 0)
        return tl_file_fail(
            file, TL_EDOMAIN,
            "a GPT-2 of rotary positions (.pairing); these files have learned ones");
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        if (number[i].n < 1 || number[i].n > number[i].most)
            return tl_file_fail(file, TL_EDOMAIN, "a model of %s %lld; 1 to %lld are possible",
                                number[i].name, (long long)number[i].n, (long long)number[i].most);
    if (n->width % n->heads != 0 || n->heads % n->kv_heads != 0 ||
        (n->llama && n->width / n->heads % 2 != 0))
        return tl_file_fail(
            file, TL_EDOMAIN,
            "width %lld in %lld heads, %lld of keys: each must divide the one before, "
            "and pairs turn in a Llama's heads",
            (long long)n->width, (long long)n->heads, (long long)n->kv_heads);
    if (c->stops < 0 || c->stops > TL_STOPS_MAX)
        return tl_file_fail(file, TL_EDOMAIN, "%d tokens that end a text; 0 to %d are possible",
                            c->stops, (int)TL_STOPS_MAX);
    for (int i = 0; i < c->stops; i++)
        if (c->stop[i] < -1 || c->stop[i] > INT32_MAX)
            return tl_file_fail(file, TL_EDOMAIN,
                                "token %lld ends a text; 0 to %d are possible, and -1 is none",
                                (long long)c->stop[i], INT32_MAX);
    return check_reals(n, file);
}

static tl_shape shape_of(const char *dims, const tl_decoder_numbers *n)
{
    tl_shape s = {.ndim = (int)strlen(dims)};
    for (int i = 0; i < s.ndim; i++)
        s.dim[i] = dims[i] == 'v'   ? n->vocab
                   : dims[i] == 'w' ? n->width
                   : dims[i] == 'q' ? 3 * n->width
                   : dims[i] == 'k' ? n->width / n->heads * n->kv_heads
                   : dims[i] == 'h' ? n->hidden
                                    : n->max_positions;
    return s;
}

tl_status tl_map_begin(tl_model *m, const char *path, const tl_decoder_config *c, tl_model_files o,
                       const char *who, bool shards)
{
    TL_TRY(tl_error_begin(m));
    tl_err *err = tl_error_record(m);
    if (path == NULL || c == NULL)
        return tl_need(err, who, path == NULL ? "path" : "c", false, 1);
    if (o.dtype != TL_DTYPE_DEFAULT && !tl_dtype_is_float(o.dtype))
        return tl_fail(err, TL_EDTYPE, "%s: as %s? A float is needed", who, tl_dtype_name(o.dtype));
    if (o.shard_bytes < 0 || (o.shard_bytes > 0 && !shards))
        return tl_fail(err, TL_EDOMAIN, "%s: .shard_bytes is %lld; %s", who,
                       (long long)o.shard_bytes,
                       shards ? "0 is one file" : "only tl_hf_save writes shards");
    return TL_OK;
}

/* The elements of one layer, as a double: they may be far too many for an integer. */
static double of_a_layer(const row *r, const tl_decoder_numbers *n)
{
    double all = 0;
    for (; r->theirs != NULL; r++) {
        double of_one = strchr(r->theirs, '%') != NULL ? 1 : 0;
        const tl_shape s = shape_of(r->dims, n);
        for (int k = 0; k < s.ndim; k++)
            of_one *= (double)s.dim[k];
        all += of_one;
    }
    return all;
}

tl_status tl_map_new(tl_map *out, const tl_decoder_config *c, int64_t bytes, const tl_source *file)
{
    TL_TRY(tl_map_check(c, file));
    const tl_decoder_numbers size = numbers_of(c);
    const row *table = size.llama ? llama : gpt2;
    const double layer = of_a_layer(table, &size);
    if ((double)size.layers * layer > (double)bytes)
        return tl_file_fail(file, TL_EFORMAT,
                            "%lld layers of %.0f numbers each; %lld bytes cannot hold them",
                            (long long)size.layers, layer, (long long)bytes);
    tl_map_entry *e = tl_calloc((size_t)size.layers * 12 + 4,
                                sizeof *e); /* rows of a layer, others */
    if (e == NULL)
        return tl_file_fail(file, TL_ENOMEM, "no memory for the names of %lld layers",
                            (long long)size.layers);
    *out = (tl_map){e, 0};
    for (const row *r = table; r->theirs != NULL; r++) {
        bool layered = strchr(r->theirs, '%') != NULL;
        if (r->untied && size.tied)
            continue;
        for (int64_t i = 0; i < (layered ? size.layers : 1); i++) {
            e = &out->e[out->n++];
            numbered(e->theirs, r->theirs, i);
            numbered(e->ours, r->ours, i);
            e->shape = shape_of(r->dims, &size);
            e->how = r->how;
        }
    }
    return TL_OK;
}

void tl_map_convert(const tl_array *dst, const tl_array *src)
{
    tl_fpenv saved = tl_fpenv_enter();
    if (dst->dtype == src->dtype)
        tl_array_copy(dst, src);
    else
        for (int64_t i = 0; i < tl_array_count(dst); i++)
            tl_element_put(dst->dtype, tl_array_at(dst, i),
                           tl_element_get(src->dtype, tl_array_at(src, i)));
    tl_fpenv_leave(saved);
}

tl_dtype tl_map_dtype(const tl_map *map)
{
    tl_dtype d = map->e[0].array.dtype;
    for (int i = 1; i < map->n; i++) {
        const tl_dtype x = map->e[i].array.dtype;
        d = x == d ? d : x == TL_F64 || d == TL_F64 ? TL_F64 : TL_F32;
    }
    return d;
}

tl_status tl_map_take(tl_model *m, const tl_map *map, tl_dtype d, tl_err *err)
{
    uint32_t mark = tl_model_mark(m);
    tl_tape *t = tl_tape_new(m);
    tl_status s = t == NULL ? tl_fail(err, TL_ENOMEM, "no memory for a tape") : TL_OK;
    tl_mode_push(t, TL_NO_GRAD);
    for (const tl_map_entry *e = map->e; e < map->e + map->n && s == TL_OK; e++) {
        tl_param(t, m, e->ours, d, e->shape, TL_INIT_ZEROS, 0);
        if (tl_failed(t))
            s = tl_fail(err, tl_error_record(t)->status, "%s", tl_error(t));
    }
    if (s != TL_OK)
        tl_model_rollback(m, mark);
    for (const tl_map_entry *e = map->e; e < map->e + map->n && s == TL_OK; e++) {
        const tl_named x = tl_model_named(m, e->ours);
        tl_map_convert(&x.array, &e->array);
        s = tl_write(m, x.tensor, x.array.data, /* notes the change */
                     (size_t)tl_array_count(&x.array) * tl_dtype_size(d));
    }
    tl_object_end(t);
    return s;
}

/* Checks that the model has no layer beyond the config's, and no output of its own if tied. */
static tl_status check_left_out(tl_model *m, const tl_decoder_config *c, tl_err *err)
{
    const tl_decoder_numbers size = numbers_of(c);
    for (const row *r = size.llama ? llama : gpt2; r->theirs != NULL; r++) {
        char name[TL_NAME_MAX];
        const bool layered = strchr(r->theirs, '%') != NULL, tied = r->untied && size.tied;
        numbered(name, r->ours, size.layers);
        if ((layered || tied) && tl_model_named(m, name).param)
            return tl_fail(err, TL_ENAME,
                           "the model has a parameter '%s'; its config is of %lld layers%s", name,
                           (long long)size.layers, tied ? ", tied" : "");
    }
    return TL_OK;
}

tl_status tl_map_give(tl_model *m, const tl_decoder_config *c, tl_map *map, tl_err *err)
{
    TL_TRY(check_left_out(m, c, err));
    for (tl_map_entry *e = map->e; e < map->e + map->n; e++) {
        const tl_named x = tl_model_named(m, e->ours);
        if (!x.param)
            return tl_fail(err, TL_ENAME,
                           "the model has no parameter '%s', which its config asks for", e->ours);
        tl_shape s = tl_array_shape(&x.array);
        if (!tl_shape_equal(&s, &e->shape))
            return tl_fail(err, TL_ESHAPE, "'%s' is %s in the model, %s by its config", e->ours,
                           TL_TEXT_OF(&s), TL_TEXT_OF(&e->shape));
        e->array = x.array;
    }
    return TL_OK;
}
