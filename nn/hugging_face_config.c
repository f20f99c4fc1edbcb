/* hugging_face_config.c: reads and writes a config.json of transformers. A config that asks for
 * something that our decoders cannot do is refused. */
#include <float.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "nn/files.h"

typedef struct {
    const char *key, *also; /* of a GPT-2, transformers takes either name, `also` first */
    size_t offset;          /* in tl_decoder_config */
    bool real;
    double otherwise; /* the value where the key is missing or null */
} field;

#define AT(member) offsetof(tl_decoder_config, member)
static const double must = -1;
static const field llama_fields[] = {{"vocab_size", NULL, AT(llama.vocab), false, must},
                                     {"hidden_size", NULL, AT(llama.width), false, must},
                                     {"num_hidden_layers", NULL, AT(llama.layers), false, must},
                                     {"num_attention_heads", NULL, AT(llama.heads), false, must},
                                     {"intermediate_size", NULL, AT(llama.hidden), false, must},
                                     {"num_key_value_heads", NULL, AT(llama.kv_heads), false, 0},
                                     {"max_position_embeddings", NULL, AT(llama.max_positions),
                                      false, 2048},
                                     {"rms_norm_eps", NULL, AT(llama.eps), true, 1e-6},
                                     {.key = NULL}},
                   gpt2_fields[] = {{"vocab_size", NULL, AT(gpt2.vocab), false, must},
                                    {"n_embd", "hidden_size", AT(gpt2.width), false, must},
                                    {"n_layer", "num_hidden_layers", AT(gpt2.layers), false, must},
                                    {"n_head", "num_attention_heads", AT(gpt2.heads), false, must},
                                    {"n_inner", NULL, AT(gpt2.hidden), false, 0},
                                    {"n_positions", "max_position_embeddings",
                                     AT(gpt2.max_positions), false, 1024},
                                    {"layer_norm_epsilon", NULL, AT(gpt2.eps), true, 1e-5},
                                    {.key = NULL}};
/* Keys that may be missing, but must have one of these values if they are there. */
static const struct {
    tl_family family;
    const char *key, *values; /* values: as JSON, each between blanks */
} fixed[] = {{TL_FAMILY_LLAMA, "hidden_act", " \"silu\" "},
             {TL_FAMILY_LLAMA, "attention_bias", " false "},
             {TL_FAMILY_LLAMA, "mlp_bias", " false "},
             {TL_FAMILY_LLAMA, "is_causal", " true "},
             {TL_FAMILY_GPT2, "is_causal", " true "},
             {TL_FAMILY_GPT2, "activation_function", " \"gelu_new\" \"gelu_pytorch_tanh\" "},
             {TL_FAMILY_GPT2, "scale_attn_weights", " true "},
             {TL_FAMILY_GPT2, "scale_attn_by_inverse_layer_idx", " false "},
             {TL_FAMILY_GPT2, "add_cross_attention", " false "},
             {TL_FAMILY_GPT2, "tie_word_embeddings", " true "}};

static const char *kind_of(const json_t *v)
{
    static const char *const kind[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "a boolean",
        [JSON_FALSE] = "a boolean",  [JSON_NULL] = "null"};
    return v == NULL ? "missing" : kind[json_typeof(v)];
}

tl_status tl_of_kind(const json_t *v, bool is, const char *key, const char *needed,
                     const tl_source *file)
{
    if (v == NULL || json_is_null(v) || is)
        return TL_OK;
    return tl_file_fail(file, TL_EFORMAT, "\"%s\" is %s; %s is needed, or none", key, kind_of(v),
                        needed);
}

/* The number of a key: 0 or more, and whole unless `real`. */
static tl_status number(const json_t *j, const char *key, bool real, double otherwise, double *out,
                        const tl_source *file)
{
    const json_t *v = json_object_get(j, key);
    if ((v == NULL || json_is_null(v)) && otherwise != must) {
        *out = otherwise;
        return TL_OK;
    }
    *out = json_number_value(v);
    if (json_is_number(v) && *out == 0 && otherwise != must) /* our configs take 0 for "missing" */
        return tl_file_fail(file, TL_EDOMAIN, "\"%s\" is 0; a number above 0 is needed, or none",
                            key);
    if (json_is_number(v) && (real || json_is_integer(v)) && *out >= 0 && *out <= 1e15)
        return TL_OK;
    if (json_is_number(v))
        return tl_file_fail(file, TL_EFORMAT,
                            "\"%s\" is %.17g; a %snumber from 0 to 1e15 is needed", key, *out,
                            real ? "" : "whole ");
    return tl_file_fail(file, TL_EFORMAT, "\"%s\" is %s%s", key, kind_of(v),
                        v == NULL ? "" : "; a number is needed");
}

static bool same(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b)
                                                  : json_equal(a, b);
}

static tl_status read_fields(const json_t *j, const field *f, tl_decoder_config *c,
                             const tl_source *file)
{
    for (; f->key != NULL; f++) {
        double x;
        const json_t *v = json_object_get(j, f->key), *also = json_object_get(j, f->also);
        if (also != NULL && !same(v, also))
            return tl_file_fail(file, TL_EDOMAIN, "\"%s\" %s \"%s\", which is what we read",
                                f->also, v == NULL ? "without" : "differs from", f->key);
        TL_TRY(number(j, f->key, f->real, f->otherwise, &x, file));
        if (f->real)
            memcpy((char *)c + f->offset, &x, sizeof x);
        else
            memcpy((char *)c + f->offset, &(int64_t){(int64_t)x}, sizeof(int64_t));
    }
    return TL_OK;
}

/* Checks that two values of which transformers would obey one are the same, or that one is missing.
 * If they are objects, a must have all that b has. */
static tl_status agree(const json_t *a, json_t *b, const char *of_a, const char *of_b,
                       const tl_source *file)
{
    const char *key;
    json_t *v;
    if (a == NULL || b == NULL || json_is_null(a) || json_is_null(b))
        return TL_OK;
    bool alike = (json_is_object(a) && json_is_object(b)) || same(a, b);
    json_object_foreach(b, key, v)
    {
        const json_t *w = json_object_get(a, key);
        if (w == NULL && strcmp(key, "type") == 0)
            w = json_object_get(a, "rope_type");
        alike &= same(v, w);
    }
    return alike ? TL_OK
                 : tl_file_fail(file, TL_EDOMAIN, "%s and %s say different things; leave one out",
                                of_a, of_b);
}

/* transformers up to version 4 writes rope_theta and rope_scaling, from 5 on rope_parameters. */
static tl_status read_rope(const json_t *j, tl_llama_config *c, const tl_source *file)
{
    json_t *now = json_object_get(j, "rope_parameters"), *old = json_object_get(j, "rope_scaling"),
           *r = json_is_object(now) ? now : old;
    static const char original[] = "original_max_position_embeddings";
    const char *type = json_string_value(json_object_get(r, "rope_type"));
    tl_rotary_scaling *s = &c->scaling;
    TL_TRY(tl_of_kind(now, json_is_object(now), "rope_parameters", "an object", file));
    TL_TRY(tl_of_kind(old, json_is_object(old), "rope_scaling", "an object", file));
    TL_TRY(agree(now, old, "\"rope_parameters\"", "\"rope_scaling\"", file));
    TL_TRY(agree(json_object_get(j, "rope_theta"), json_object_get(r, "rope_theta"),
                 "\"rope_theta\"", "that of its rotary scaling", file));
    TL_TRY(agree(json_object_get(j, original), json_object_get(r, original),
                 "\"original_max_position_embeddings\"", "that of its rotary scaling", file));
    TL_TRY(number(json_object_get(r, "rope_theta") != NULL ? r : j, "rope_theta", true, 10000,
                  &c->rope_base, file));
    if (type == NULL)
        type = json_string_value(json_object_get(r, "type"));
    if (!json_is_object(r) || (type != NULL && strcmp(type, "default") == 0))
        return TL_OK;
    if (type == NULL || (strcmp(type, "llama3") != 0 && strcmp(type, "linear") != 0))
        return tl_file_fail(file, TL_EDOMAIN,
                            "rotary scaling of type \"%.40s\"; \"llama3\" and \"linear\" are known",
                            type == NULL ? "" : type);
    TL_TRY(number(r, "factor", true, must, &s->factor, file));
    /* linear is llama3 with an original so small that every wave is longer */
    *s = (tl_rotary_scaling){s->factor, 1, 2, DBL_MIN};
    if (strcmp(type, "llama3") == 0) {
        TL_TRY(number(r, "low_freq_factor", true, must, &s->low_freq_factor, file));
        TL_TRY(number(r, "high_freq_factor", true, must, &s->high_freq_factor, file));
        TL_TRY(number(r, original, false, must, &s->original, file));
    }
    return tl_map_check_scaling(s, file);
}

static tl_status check_fixed(const json_t *j, tl_family family, const tl_source *file)
{
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        const json_t *v = json_object_get(j, fixed[i].key);
        if (fixed[i].family != family || v == NULL || json_is_null(v))
            continue;
        char text[64] = "", word[64];
        const size_t size = json_dumpb(v, text, sizeof text - 1, JSON_COMPACT | JSON_ENCODE_ANY);
        if (size == 0)
            return tl_file_fail(file, TL_ENOMEM, "no memory for the value of \"%s\"", fixed[i].key);
        const int n = size < sizeof text ? snprintf(word, sizeof word, " %.60s ", text)
                                         : snprintf(word, sizeof word, " of %zu bytes ", size);
        if (strstr(fixed[i].values, word) == NULL)
            return tl_file_fail(file, TL_EDOMAIN, "\"%s\" is%.*s; only%sis known", fixed[i].key,
                                n - 1, word, fixed[i].values);
    }
    return TL_OK;
}

/* eos_token_id: one token that ends a text, or an array of them. An id beyond the vocabulary is
 * allowed, because transformers writes 50256 for a GPT-2 of any size. */
static tl_status read_stops(const json_t *eos, tl_decoder_config *c, const tl_source *file)
{
    const size_t n = json_is_array(eos) ? json_array_size(eos) : eos != NULL && !json_is_null(eos);
    if (n > TL_STOPS_MAX)
        return tl_file_fail(file, TL_EDOMAIN, "%zu of \"eos_token_id\"; up to %d are possible", n,
                            (int)TL_STOPS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_is_array(eos) ? json_array_get(eos, i) : eos;
        const json_int_t id = json_integer_value(v);
        if (!json_is_integer(v))
            return tl_file_fail(
                file, TL_EFORMAT,
                "\"eos_token_id\" is or holds %s; a whole number is needed, or an array of such",
                json_is_real(v) ? "a fraction" : kind_of(v));
        if (id < -1 || id > INT32_MAX)
            return tl_file_fail(file, TL_EDOMAIN,
                                "\"eos_token_id\" has %lld; tokens are 0 to %d, and -1 is none",
                                (long long)id, INT32_MAX);
        if (id >= 0)
            c->stop[c->stops++] = id;
    }
    return TL_OK;
}

tl_status tl_hf_config(const json_t *j, tl_decoder_config *c, const tl_source *file)
{
    const char *type = json_string_value(json_object_get(j, "model_type"));
    const json_t *tied = json_object_get(j, "tie_word_embeddings");
    if (type == NULL)
        return tl_file_fail(file, TL_EDOMAIN,
                            "\"model_type\" is %s; \"llama\" and \"gpt2\" are known",
                            kind_of(json_object_get(j, "model_type")));
    *c = (tl_decoder_config){.family = strcmp(type, "llama") == 0  ? TL_FAMILY_LLAMA
                                       : strcmp(type, "gpt2") == 0 ? TL_FAMILY_GPT2
                                                                   : 0};
    if (c->family == 0)
        return tl_file_fail(file, TL_EDOMAIN,
                            "\"model_type\" is \"%.40s\"; \"llama\" and \"gpt2\" are known", type);
    TL_TRY(check_fixed(j, c->family, file));
    TL_TRY(tl_of_kind(tied, json_is_boolean(tied), "tie_word_embeddings", "a boolean", file));
    TL_TRY(read_stops(json_object_get(j, "eos_token_id"), c, file));
    if (c->family == TL_FAMILY_GPT2)
        return read_fields(j, gpt2_fields, c, file);
    TL_TRY(read_fields(j, llama_fields, c, file));
    TL_TRY(read_rope(j, &c->llama, file));
    double head;
    TL_TRY(number(j, "head_dim", false, 0, &head, file));
    if (head != 0 && c->llama.heads > 0 && head * (double)c->llama.heads != (double)c->llama.width)
        return tl_file_fail(
            file, TL_EDOMAIN,
            "%lld heads of %g numbers for a width of %lld; only heads that share the "
            "width are known",
            (long long)c->llama.heads, head, (long long)c->llama.width);
    c->llama.tied = json_is_true(tied);
    c->llama.pairing = TL_ROTARY_HALF;
    return TL_OK;
}

/* ---- writing ---- */

static json_t *scaling_json(const tl_rotary_scaling *s)
{
    return s->factor == 0 ? json_null()
           : s->original < 1
               ? json_pack("{ss sf}", "rope_type", "linear", "factor", s->factor)
               : json_pack("{ss sf sf sf sI}", "rope_type", "llama3", "factor", s->factor,
                           "low_freq_factor", s->low_freq_factor, "high_freq_factor",
                           s->high_freq_factor, "original_max_position_embeddings",
                           (json_int_t)s->original);
}

json_t *tl_hf_config_json(tl_decoder_config c, const char *dtype)
{
    bool is_llama = c.family == TL_FAMILY_LLAMA;
    tl_llama_config *l = &c.llama;
    l->kv_heads = l->kv_heads != 0 ? l->kv_heads : l->heads;
    l->eps = l->eps != 0 ? l->eps : 1e-5;
    c.gpt2.eps = c.gpt2.eps != 0 ? c.gpt2.eps : 1e-5;
    l->max_positions = l->max_positions != 0 ? l->max_positions : 2048;
    json_t *j = is_llama ? json_pack("{s[s] ss ss sb sf sf so si sb sb}", "architectures",
                                     "LlamaForCausalLM", "model_type", "llama", "hidden_act",
                                     "silu", "tie_word_embeddings", l->tied, "rope_theta",
                                     l->rope_base != 0 ? l->rope_base : 10000.0, "rms_norm_eps",
                                     l->eps, "rope_scaling", scaling_json(&l->scaling), "head_dim",
                                     (int)(l->width / l->heads), "attention_bias", 0, "mlp_bias", 0)
                         : json_pack("{s[s] ss ss sb sf}", "architectures", "GPT2LMHeadModel",
                                     "model_type", "gpt2", "activation_function", "gelu_new",
                                     "tie_word_embeddings", 1, "layer_norm_epsilon", c.gpt2.eps);
    int lost = 0; /* what there was no memory for */
    for (const field *f = is_llama ? llama_fields : gpt2_fields; f->key != NULL; f++) {
        int64_t x;
        memcpy(&x, (char *)&c + f->offset, sizeof x);
        if (!f->real)
            lost |= json_object_set_new(j, f->key, x == 0 ? json_null() : json_integer(x));
    }
    json_t *stop = c.stops > 1    ? json_array()
                   : c.stops == 1 ? json_integer(c.stop[0])
                                  : json_null();
    for (int i = 0; c.stops > 1 && i < c.stops; i++)
        lost |= json_array_append_new(stop, json_integer(c.stop[i]));
    lost |= json_object_set_new(j, "eos_token_id", stop);
    lost |= json_object_set_new(j, "torch_dtype", json_string(dtype));
    if (lost == 0)
        return j;
    json_decref(j);
    return NULL;
}
