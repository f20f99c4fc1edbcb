/* hugging_face.c: a folder as transformers keeps models - config.json, and safetensors in one file
 * or in shards that an index names. */
#include <errno.h>
#include <float.h>
#include <fnmatch.h>
#include <jansson.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autograd/author.h"
#include "nn/model_map.h"
#include "tensor/files/file.h"
#include "tensor/files/safetensors_header.h"
#include "tensor/memory.h"
#include "tensor/threads.h"

enum { CONFIG_MAX = 1 << 20, INDEX_MAX = 1 << 25, SHARDS_MAX = 4096 };
#define WHOLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

/* ---- config.json ---- */

typedef struct {
    const char *key;
    size_t offset; /* in tl_decoder_config */
    bool real;
    double otherwise; /* where the key is missing or null */
} field;

#define AT(member) offsetof(tl_decoder_config, member)
static const double must = -1;
static const field llama_fields[] = {{"vocab_size", AT(llama.vocab), false, must},
                                     {"hidden_size", AT(llama.width), false, must},
                                     {"num_hidden_layers", AT(llama.layers), false, must},
                                     {"num_attention_heads", AT(llama.heads), false, must},
                                     {"intermediate_size", AT(llama.hidden), false, must},
                                     {"num_key_value_heads", AT(llama.kv_heads), false, 0},
                                     {"max_position_embeddings", AT(llama.max_positions), false,
                                      2048},
                                     {"rms_norm_eps", AT(llama.eps), true, 1e-6},
                                     {.key = NULL}},
                   gpt2_fields[] = {{"vocab_size", AT(gpt2.vocab), false, must},
                                    {"n_embd", AT(gpt2.width), false, must},
                                    {"n_layer", AT(gpt2.layers), false, must},
                                    {"n_head", AT(gpt2.heads), false, must},
                                    {"n_inner", AT(gpt2.hidden), false, 0},
                                    {"n_positions", AT(gpt2.max_positions), false, 1024},
                                    {"layer_norm_epsilon", AT(gpt2.eps), true, 1e-5},
                                    {.key = NULL}};
/* What must have this value where it is said: our decoders know no other. */
static const struct {
    tl_family family;
    const char *key, *values; /* as JSON, between blanks */
} fixed[] = {{TL_FAMILY_LLAMA, "hidden_act", " \"silu\" "},
             {TL_FAMILY_LLAMA, "attention_bias", " false "},
             {TL_FAMILY_LLAMA, "mlp_bias", " false "},
             {TL_FAMILY_GPT2, "activation_function", " \"gelu_new\" \"gelu_pytorch_tanh\" "},
             {TL_FAMILY_GPT2, "scale_attn_weights", " true "},
             {TL_FAMILY_GPT2, "scale_attn_by_inverse_layer_idx", " false "},
             {TL_FAMILY_GPT2, "add_cross_attention", " false "},
             {TL_FAMILY_GPT2, "tie_word_embeddings", " true "}};

/* A JSON object from a file, for json_decref. */
static tl_status read_json(json_t **out, const char *path, size_t most, tl_err *err)
{
    char *text;
    size_t n;
    json_error_t e;
    TL_TRY(tl_file_read(path, most, &text, &n, err));
    tl_textenv saved = tl_textenv_enter();
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    tl_textenv_leave(saved);
    tl_free_raw(text);
    if (*out == NULL)
        return json_error_code(&e) == json_error_out_of_memory
                   ? tl_fail(err, TL_ENOMEM, "%.200s: no memory to read %zu bytes of JSON", path, n)
                   : tl_fail(err, TL_EFORMAT, "%.200s: not valid JSON: %s (line %d, byte %d)", path,
                             e.text, e.line, e.position);
    if (json_is_object(*out))
        return TL_OK;
    json_decref(*out);
    return tl_fail(err, TL_EFORMAT, "%.200s: a JSON object is expected", path);
}

static const char *kind_of(const json_t *v)
{
    static const char *const kind[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "a boolean",
        [JSON_FALSE] = "a boolean",  [JSON_NULL] = "null"};
    return v == NULL ? "missing" : kind[json_typeof(v)];
}

/* A value that may be missing or null, and is of that kind where it is there. */
static tl_status of_kind(const json_t *v, bool is, const char *key, const char *needed,
                         const char *path, tl_err *err)
{
    if (v == NULL || json_is_null(v) || is)
        return TL_OK;
    return tl_fail(err, TL_EFORMAT, "%.200s: \"%s\" is %s; %s is needed, or none", path, key,
                   kind_of(v), needed);
}

/* The number of a key, whole if it must be, 0 or more. */
static tl_status number(const json_t *j, const char *key, bool real, double otherwise, double *out,
                        const char *path, tl_err *err)
{
    const json_t *v = json_object_get(j, key);
    if ((v == NULL || json_is_null(v)) && otherwise != must) {
        *out = otherwise;
        return TL_OK;
    }
    *out = json_number_value(v);
    if (json_is_number(v) && *out == 0 && otherwise != must) /* which our configs take for it */
        return tl_fail(err, TL_EDOMAIN, "%.200s: \"%s\" is 0; a number above 0 is needed, or none",
                       path, key);
    if (json_is_number(v) && (real || json_is_integer(v)) && *out >= 0 && *out <= 1e15)
        return TL_OK;
    if (json_is_number(v))
        return tl_fail(err, TL_EFORMAT,
                       "%.200s: \"%s\" is %.17g; a %snumber from 0 to 1e15 is needed", path, key,
                       *out, real ? "" : "whole ");
    return tl_fail(err, TL_EFORMAT, "%.200s: \"%s\" is %s%s", path, key, kind_of(v),
                   v == NULL ? "" : "; a number is needed");
}

static tl_status read_fields(const json_t *j, const field *f, tl_decoder_config *c,
                             const char *path, tl_err *err)
{
    for (; f->key != NULL; f++) {
        double x;
        TL_TRY(number(j, f->key, f->real, f->otherwise, &x, path, err));
        if (f->real)
            memcpy((char *)c + f->offset, &x, sizeof x);
        else
            memcpy((char *)c + f->offset, &(int64_t){(int64_t)x}, sizeof(int64_t));
    }
    return TL_OK;
}

/* rope_theta and rope_scaling of transformers up to 4, rope_parameters from 5 on. */
static tl_status read_rope(const json_t *j, tl_llama_config *c, const char *path, tl_err *err)
{
    const json_t *now = json_object_get(j, "rope_parameters"),
                 *old = json_object_get(j, "rope_scaling"), *r = json_is_object(now) ? now : old;
    const char *type = json_string_value(json_object_get(r, "rope_type"));
    tl_rotary_scaling *s = &c->scaling;
    TL_TRY(of_kind(now, json_is_object(now), "rope_parameters", "an object", path, err));
    TL_TRY(of_kind(old, json_is_object(old), "rope_scaling", "an object", path, err));
    TL_TRY(number(json_object_get(now, "rope_theta") != NULL ? now : j, "rope_theta", true, 10000,
                  &c->rope_base, path, err));
    if (type == NULL)
        type = json_string_value(json_object_get(r, "type"));
    if (!json_is_object(r) || (type != NULL && strcmp(type, "default") == 0))
        return TL_OK;
    if (type == NULL || (strcmp(type, "llama3") != 0 && strcmp(type, "linear") != 0))
        return tl_fail(err, TL_EDOMAIN,
                       "%.200s: rotary scaling of type \"%.40s\"; \"llama3\" and \"linear\" are "
                       "known",
                       path, type == NULL ? "" : type);
    TL_TRY(number(r, "factor", true, must, &s->factor, path, err));
    /* linear: every wave is longer than so small an original */
    s->low_freq_factor = 1, s->high_freq_factor = 2, s->original = DBL_MIN;
    if (strcmp(type, "llama3") == 0) {
        TL_TRY(number(r, "low_freq_factor", true, must, &s->low_freq_factor, path, err));
        TL_TRY(number(r, "high_freq_factor", true, must, &s->high_freq_factor, path, err));
        TL_TRY(number(r, "original_max_position_embeddings", false, must, &s->original, path, err));
    }
    if (s->factor > 0 && s->low_freq_factor > 0 && s->high_freq_factor > s->low_freq_factor &&
        s->original > 0)
        return TL_OK;
    return tl_fail(
        err, TL_EDOMAIN,
        "%.200s: rotary scaling by factor %g, low %g, high %g, original %g; all above 0, "
        "low below high",
        path, s->factor, s->low_freq_factor, s->high_freq_factor, s->original);
}

static tl_status check_fixed(const json_t *j, tl_family family, const char *path, tl_err *err)
{
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        const json_t *v = json_object_get(j, fixed[i].key);
        if (fixed[i].family != family || v == NULL || json_is_null(v))
            continue;
        char word[64] = "";
        if (json_is_string(v))
            snprintf(word, sizeof word, " \"%.50s\" ", json_string_value(v));
        else if (json_is_boolean(v))
            snprintf(word, sizeof word, " %s ", json_is_true(v) ? "true" : "false");
        if (*word == '\0' || strstr(fixed[i].values, word) == NULL)
            return tl_fail(err, TL_EDOMAIN, "%.200s: \"%s\" is%s; only%sis known", path,
                           fixed[i].key, *word == '\0' ? " something else" : word, fixed[i].values);
    }
    return TL_OK;
}

/* One token that ends a text, or an array of them. One beyond the vocabulary ends none, but is no
 * fault: transformers writes 50256 for a GPT-2 of any size. */
static tl_status read_stops(const json_t *eos, tl_decoder_config *c, const char *path, tl_err *err)
{
    const size_t n = json_is_array(eos) ? json_array_size(eos) : eos != NULL && !json_is_null(eos);
    if (n > TL_STOPS_MAX)
        return tl_fail(err, TL_EDOMAIN, "%.200s: %zu of \"eos_token_id\"; up to %d are possible",
                       path, n, (int)TL_STOPS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_is_array(eos) ? json_array_get(eos, i) : eos;
        const json_int_t id = json_integer_value(v);
        if (!json_is_integer(v))
            return tl_fail(
                err, TL_EFORMAT,
                "%.200s: \"eos_token_id\" is or holds %s; a whole number is needed, or an "
                "array of such",
                path, json_is_real(v) ? "a fraction" : kind_of(v));
        if (id < -1 || id > INT32_MAX)
            return tl_fail(err, TL_EDOMAIN,
                           "%.200s: \"eos_token_id\" has %lld; tokens are 0 to %d, and -1 is none",
                           path, (long long)id, INT32_MAX);
        if (id >= 0)
            c->stop[c->stops++] = id;
    }
    return TL_OK;
}

static tl_status parse_config(const json_t *j, tl_decoder_config *c, const char *path, tl_err *err)
{
    const char *type = json_string_value(json_object_get(j, "model_type"));
    const json_t *tied = json_object_get(j, "tie_word_embeddings");
    *c = (tl_decoder_config){.family = type == NULL                 ? 0
                                       : strcmp(type, "llama") == 0 ? TL_FAMILY_LLAMA
                                       : strcmp(type, "gpt2") == 0  ? TL_FAMILY_GPT2
                                                                    : 0};
    if (c->family == 0)
        return tl_fail(err, TL_EDOMAIN,
                       "%.200s: \"model_type\" is %s%.40s%s; \"llama\" and \"gpt2\" are known",
                       path, type == NULL ? "" : "\"",
                       type == NULL ? kind_of(json_object_get(j, "model_type")) : type,
                       type == NULL ? "" : "\"");
    TL_TRY(check_fixed(j, c->family, path, err));
    TL_TRY(of_kind(tied, json_is_boolean(tied), "tie_word_embeddings", "a boolean", path, err));
    TL_TRY(read_stops(json_object_get(j, "eos_token_id"), c, path, err));
    if (c->family == TL_FAMILY_GPT2)
        return read_fields(j, gpt2_fields, c, path, err);
    TL_TRY(read_fields(j, llama_fields, c, path, err));
    TL_TRY(read_rope(j, &c->llama, path, err));
    double head;
    TL_TRY(number(j, "head_dim", false, 0, &head, path, err));
    if (head != 0 && c->llama.heads > 0 && head * (double)c->llama.heads != (double)c->llama.width)
        return tl_fail(
            err, TL_EDOMAIN,
            "%.200s: %lld heads of %g numbers for a width of %lld; only heads that share "
            "the width are known",
            path, (long long)c->llama.heads, head, (long long)c->llama.width);
    c->llama.tied = json_is_true(tied);
    c->llama.pairing = TL_ROTARY_HALF;
    return TL_OK;
}

/* ---- the files of a folder ---- */

typedef struct {
    char *name;
    tl_st_file *file;
} shard;
typedef struct {
    const char *folder;
    shard *shard;
    int n;
} shards;

static tl_status join(char path[PATH_MAX], const char *folder, const char *name, tl_err *err)
{
    return snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX
               ? TL_OK
               : tl_fail(err, TL_EIO, "%.200s: the path is too long", folder);
}

static void close_shards(shards *s)
{
    for (int i = 0; i < s->n; i++) {
        tl_st_close(s->shard[i].file);
        tl_free_raw(s->shard[i].name);
    }
    tl_free_raw(s->shard);
}

static tl_status open_shard(shards *s, const char *name, tl_err *err)
{
    char path[PATH_MAX];
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->shard[i].name, name) == 0)
            return TL_OK;
    if (s->n == SHARDS_MAX || strchr(name, '/') != NULL || *name == '.' || *name == '\0')
        return tl_fail(err, TL_EFORMAT,
                       "%.200s/" INDEX ": shard %d is '%.100s'; up to %d files of the same folder "
                       "are possible",
                       s->folder, s->n + 1, name, (int)SHARDS_MAX);
    TL_TRY(join(path, s->folder, name, err));
    shard *grown = tl_realloc(s->shard, (size_t)(s->n + 1) * sizeof *grown);
    if (grown == NULL)
        return tl_fail(err, TL_ENOMEM, "%.200s: no memory for %d shards", s->folder, s->n + 1);
    s->shard = grown;
    shard *x = &s->shard[s->n];
    *x = (shard){tl_strdup(name), NULL};
    if (x->name == NULL)
        return tl_fail(err, TL_ENOMEM, "%.200s: no memory for a name", path);
    s->n++;
    return tl_st_open(&x->file, path, err);
}

static tl_status open_index(shards *s, const char *path, tl_err *err)
{
    json_t *j, *map;
    TL_TRY(read_json(&j, path, INDEX_MAX, err));
    tl_status st = json_is_object(map = json_object_get(j, "weight_map"))
                       ? TL_OK
                       : tl_fail(err, TL_EFORMAT, "%.200s: has no object \"weight_map\"", path);
    for (void *i = json_object_iter(map); i != NULL && st == TL_OK;
         i = json_object_iter_next(map, i)) {
        const char *name = json_string_value(json_object_iter_value(i));
        st = name == NULL ? tl_fail(err, TL_EFORMAT, "%.200s: the file of '%.100s' is no text",
                                    path, json_object_iter_key(i))
                          : open_shard(s, name, err);
        int k = st == TL_OK ? 0 : -1;
        while (k >= 0 && strcmp(s->shard[k].name, name) != 0)
            k++;
        if (k >= 0 && tl_st_find(s->shard[k].file, json_object_iter_key(i)) < 0)
            st = tl_fail(err, TL_ENAME,
                         "%.200s/%.100s: has no tensor '%.100s', where the index has it", s->folder,
                         name, json_object_iter_key(i));
    }
    json_decref(j);
    return st;
}

/* ---- loading ---- */

/* In the files of some, and made from the others or from nothing. */
static bool needless(const char *name, const tl_decoder_config *c)
{
    static const char *const pattern[] = {"*.attn.bias", "*.attn.masked_bias",
                                          "*.rotary_emb.inv_freq"};
    for (size_t i = 0; i < sizeof pattern / sizeof *pattern; i++)
        if (fnmatch(pattern[i], name, 0) == 0)
            return true;
    return strcmp(name, "lm_head.weight") == 0 && (c->family == TL_FAMILY_GPT2 || c->llama.tied);
}

/* The entry's array as ours would lie in the file's. */
static tl_status found(tl_map_entry *e, tl_array a, const char *folder, tl_err *err)
{
    if (e->how == TL_TRANSPOSED && a.ndim == 2) {
        int64_t rows = a.dim[0], step = a.stride[0];
        a.dim[0] = a.dim[1], a.stride[0] = a.stride[1];
        a.dim[1] = rows, a.stride[1] = step;
    }
    tl_shape s = tl_array_shape(&a);
    char have[TL_SHAPE_TEXT], want[TL_SHAPE_TEXT];
    if (!tl_shape_equal(&s, &e->shape) || !tl_dtype_is_float(a.dtype))
        return tl_fail(err, TL_ESHAPE, "%.200s: '%s' is %s %s%s there, floats %s by config.json",
                       folder, e->theirs, tl_shape_text(have, &s), tl_dtype_name(a.dtype),
                       e->how == TL_TRANSPOSED ? " (transposed)" : "",
                       tl_shape_text(want, &e->shape));
    e->array = a;
    return TL_OK;
}

/* Every entry in one of the files, and nothing else in them. GPT-2's names may lack their first
 * part. */
static tl_status match(const shards *s, tl_map_entry *e, int n, const tl_decoder_config *c,
                       tl_err *err)
{
    static const char first[] = "transformer.";
    size_t cut = c->family == TL_FAMILY_GPT2 ? sizeof first - 1 : 0;
    for (int k = 0; k < s->n; k++)
        if (tl_st_find(s->shard[k].file, e[0].theirs) >= 0)
            cut = 0;
    int64_t all = 0, needed = n;
    for (int i = 0; i < n; i++) {
        int at = -1;
        for (int k = 0; k < s->n && at < 0; k++)
            if ((at = tl_st_find(s->shard[k].file, e[i].theirs + cut)) >= 0)
                TL_TRY(found(&e[i], tl_st_at(s->shard[k].file, at).array, s->folder, err));
        if (at < 0)
            return tl_fail(err, TL_ENAME,
                           "%.200s: no file has the tensor '%s', which config.json "
                           "asks for",
                           s->folder, e[i].theirs + cut);
    }
    for (int k = 0; k < s->n; k++)
        for (int i = 0; i < tl_st_count(s->shard[k].file); i++, all++)
            needed += needless(tl_st_at(s->shard[k].file, i).name, c);
    for (int k = 0; k < s->n && all != needed; k++)
        for (int i = 0, j; i < tl_st_count(s->shard[k].file); i++) {
            const char *name = tl_st_at(s->shard[k].file, i).name;
            for (j = 0; j < n && strcmp(e[j].theirs + cut, name) != 0;)
                j++;
            if (j == n && !needless(name, c))
                return tl_fail(
                    err, TL_ENAME,
                    "%.200s: has %lld tensors, of which the decoder of config.json takes "
                    "%lld; '%.100s' is another",
                    s->folder, (long long)all, (long long)needed, name);
        }
    return all == needed ? TL_OK
                         : tl_fail(err, TL_ENAME, "%.200s: a tensor is in two files", s->folder);
}

/* Of all tensors. */
static int64_t bytes_of(const shards *s)
{
    int64_t all = 0;
    for (int k = 0; k < s->n; k++)
        for (int i = 0; i < tl_st_count(s->shard[k].file); i++) {
            const tl_array a = tl_st_at(s->shard[k].file, i).array;
            all += tl_array_count(&a) * (int64_t)tl_dtype_size(a.dtype);
        }
    return all;
}

static tl_status load(tl_model *m, shards *s, tl_decoder_config *c, tl_model_files o, tl_err *err)
{
    char path[PATH_MAX], of[PATH_MAX];
    json_t *j;
    tl_map_entry *e;
    int n;
    TL_TRY(join(path, s->folder, "config.json", err));
    TL_TRY(read_json(&j, path, CONFIG_MAX, err));
    tl_status st = parse_config(j, c, path, err);
    json_decref(j);
    TL_TRY(st);
    TL_TRY(tl_map_check(c, path, err));
    TL_TRY(join(of, s->folder, WHOLE, err));
    if (access(of, F_OK) == 0) {
        TL_TRY(open_shard(s, WHOLE, err));
    } else {
        TL_TRY(join(of, s->folder, INDEX, err));
        TL_TRY(open_index(s, of, err));
    }
    TL_TRY(tl_map_new(&e, &n, c, bytes_of(s), path, err));
    st = match(s, e, n, c, err);
    if (st == TL_OK) {
        tl_dtype d = o.dtype != TL_DTYPE_DEFAULT ? o.dtype : e[0].array.dtype;
        *(c->family == TL_FAMILY_LLAMA ? &c->llama.dtype : &c->gpt2.dtype) = d;
        st = tl_map_take(m, e, n, d, err);
    }
    tl_free_raw(e);
    return st;
}

tl_status tl_hf_load_with(tl_model *m, const char *folder, tl_decoder_config *c, tl_model_files o)
{
    TL_TRY(tl_map_begin(m, folder, c, o, "tl_hf_load"));
    tl_decoder_config read;
    shards s = {.folder = folder};
    tl_status st = load(m, &s, &read, o, tl_error_record(m));
    close_shards(&s);
    if (st == TL_OK)
        *c = read;
    return st;
}

/* ---- saving ---- */

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

/* What a config of zeros means is said. */
static json_t *config_json(tl_decoder_config c, const char *dtype)
{
    bool is_llama = c.family == TL_FAMILY_LLAMA;
    tl_llama_config *l = &c.llama;
    if (l->kv_heads == 0)
        l->kv_heads = l->heads;
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
    for (const field *f = is_llama ? llama_fields : gpt2_fields; j != NULL && f->key != NULL; f++) {
        int64_t x;
        memcpy(&x, (char *)&c + f->offset, sizeof x);
        if (!f->real)
            json_object_set_new(j, f->key, x == 0 ? json_null() : json_integer(x));
    }
    json_t *stop = c.stops > 1    ? json_array()
                   : c.stops == 1 ? json_integer(c.stop[0])
                                  : json_null();
    for (int i = 0; i < c.stops; i++)
        json_array_append_new(stop, json_integer(c.stop[i])); /* nothing, if that is no array */
    json_object_set_new(j, "eos_token_id", stop);
    json_object_set_new(j, "torch_dtype", json_string(dtype));
    return j;
}

typedef struct {
    tl_writer *w;
    tl_err *err;
} sink;

static int put(const char *text, size_t n, void *ctx)
{
    const sink *to = ctx;
    return tl_writer_append(to->w, text, n, to->err) == TL_OK ? 0 : -1;
}

/* Up to the writer's commit; takes j over. */
static tl_status begin_json(tl_writer **out, json_t *j, const char *folder, const char *name,
                            tl_err *err)
{
    char path[PATH_MAX];
    sink to = {NULL, err};
    *out = NULL;
    tl_status s = j == NULL ? tl_fail(err, TL_ENOMEM, "%.200s: no memory to write %s", folder, name)
                            : join(path, folder, name, err);
    if (s == TL_OK)
        s = tl_writer_begin(&to.w, path, err);
    tl_textenv saved = tl_textenv_enter();
    bool whole = s == TL_OK &&
                 json_dump_callback(j, put, &to, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) == 0;
    tl_textenv_leave(saved);
    json_decref(j);
    if (whole && (s = tl_writer_append(to.w, "\n", 1, err)) == TL_OK) {
        *out = to.w;
        return TL_OK;
    }
    if (s == TL_OK)
        s = err->status != TL_OK ? err->status
                                 : tl_fail(err, TL_ENOMEM, "%.200s: no memory to write", path);
    tl_writer_abort(to.w);
    return s;
}

/* The rows of each head of interleaved pairs (0, 1), (2, 3), ... as halves: 0, 2, ..., 1, 3, ...
 * In memory of its own. */
static tl_status halves(tl_array *a, int64_t heads_of, tl_err *err)
{
    size_t bytes = (size_t)a->dim[1] * tl_dtype_size(a->dtype);
    char *to = tl_calloc((size_t)a->dim[0], bytes);
    const int64_t d = heads_of;
    if (to == NULL)
        return tl_fail(err, TL_ENOMEM, "no memory for %lld rows in another order",
                       (long long)a->dim[0]);
    for (int64_t r = 0; r < a->dim[0]; r++) {
        int64_t i = r % d, from = r - i + (i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1);
        memcpy(to + (size_t)r * bytes, (const char *)a->data + (size_t)from * bytes, bytes);
    }
    a->data = to;
    return TL_OK;
}

/* The n entries into shards of at most `most` bytes; first[k]: the first of shard k, and n behind
 * the last. Returns how many there are. */
static int divide(const tl_st_entry *e, int n, int64_t most, int *first, int64_t *total)
{
    int files = 0;
    int64_t held = 0;
    for (int i = 0; i < n; i++) {
        int64_t bytes = tl_array_count(&e[i].array) * (int64_t)tl_dtype_size(e[i].array.dtype);
        if (i == 0 || (most > 0 && held + bytes > most))
            first[files++] = i, held = 0;
        held += bytes, *total += bytes;
    }
    first[files] = n;
    return files;
}

static const char *shard_name(char name[64], int k, int files)
{
    snprintf(name, 64, files == 1 ? WHOLE : "model-%05d-of-%05d.safetensors", k + 1, files);
    return name;
}

/* The shards, and their index if there are several, beside what they will replace. */
static tl_status begin_shards(tl_writer **w, const char *folder, tl_st_entry *e, const int *first,
                              int files, int64_t total, tl_err *err)
{
    const tl_st_meta meta[] = {{"format", "pt"}, {TL_ST_SEAL, ""}};
    char path[PATH_MAX], name[64];
    json_t *map = json_object();
    tl_status s = TL_OK;
    for (int k = 0; k < files && s == TL_OK; k++) {
        shard_name(name, k, files);
        for (int i = first[k]; i < first[k + 1]; i++)
            json_object_set_new(map, e[i].name, json_string(name));
        if ((s = join(path, folder, name, err)) == TL_OK)
            s = tl_st_begin(&w[k], path, e + first[k], first[k + 1] - first[k], meta, 2, err);
    }
    bool whole = s != TL_OK || json_object_size(map) == (size_t)first[files];
    json_t *index = json_pack("{s{sI} so}", "metadata", "total_size", (json_int_t)total,
                              "weight_map", map);
    if (!whole)
        s = tl_fail(err, TL_ENOMEM, "%.200s: no memory for an index", folder);
    if (s == TL_OK && files > 1)
        return begin_json(&w[files], index, folder, INDEX, err);
    json_decref(index);
    return s;
}

/* What only an earlier model had, by the index that led to it: a reader may go by it no more. */
static void remove_older(const char *folder, json_t *index, int files)
{
    char path[PATH_MAX], mine[64];
    const char *key;
    json_t *name;
    snprintf(mine, sizeof mine, "model-*-of-%05d.safetensors", files);
    json_object_foreach(json_object_get(index, "weight_map"), key, name)
    {
        const char *old = json_is_string(name) ? json_string_value(name) : "";
        if (fnmatch("model-[0-9]*-of-[0-9]*.safetensors", old, FNM_PATHNAME) == 0 &&
            (files == 1 || fnmatch(mine, old, 0) != 0) && join(path, folder, old, NULL) == TL_OK)
            unlink(path);
    }
    if (files == 1 && join(path, folder, INDEX, NULL) == TL_OK)
        unlink(path);
}

/* The new files in their places, config.json last; then what only the model before had is removed.
 */
static tl_status publish(tl_writer **w, int n, const char *folder, tl_err *err)
{
    const int files = n == 2 ? 1 : n - 2;
    char path[PATH_MAX], (*mine)[64] = tl_calloc((size_t)files, sizeof *mine);
    const char **name = tl_calloc((size_t)n + 1, sizeof *name);
    json_t *index = NULL;
    tl_status s = mine == NULL || name == NULL
                      ? tl_fail(err, TL_ENOMEM, "%.200s: no memory for %d names", folder, n)
                      : join(path, folder, INDEX, err);
    if (s == TL_OK) {
        if (access(path, F_OK) == 0 && read_json(&index, path, INDEX_MAX, NULL) != TL_OK)
            index = NULL; /* what it led to is not known, and stays */
        tl_writer *config = w[n - 1];
        int all = 0;
        for (; all < files; all++)
            name[all] = shard_name(mine[all], all, files);
        if (files > 1) { /* a reader would prefer an earlier model's to an index */
            name[all++] = INDEX;
            w[all] = NULL;
            name[all++] = WHOLE;
        }
        name[all] = "config.json";
        w[all] = config;
        s = tl_writers_place(w, name, all + 1, folder, err);
        if (w[all] == NULL)
            remove_older(folder, index, files);
    }
    json_decref(index);
    tl_free_raw(name);
    tl_free_raw(mine);
    return s;
}

static tl_status write_folder(const char *folder, tl_st_entry *e, int n, int64_t most,
                              json_t *config, tl_err *err)
{
    int *first = tl_calloc((size_t)n + 1, sizeof *first), files = 0;
    tl_writer **w = tl_calloc((size_t)n + 3, sizeof *w); /* shards, index, none, config.json */
    int64_t total = 0;
    tl_status s = first == NULL || w == NULL
                      ? tl_fail(err, TL_ENOMEM, "%.200s: no memory for %d tensors", folder, n)
                      : TL_OK;
    if (s == TL_OK) {
        files = divide(e, n, most, first, &total);
        s = begin_shards(w, folder, e, first, files, total, err);
    }
    int all = files + (files > 1) + 1;
    if (s == TL_OK)
        s = begin_json(&w[all - 1], json_incref(config), folder, "config.json", err);
    if (s == TL_OK)
        s = publish(w, all, folder, err);
    for (int i = 0; w != NULL && i < all + 1; i++)
        tl_writer_abort(w[i]);
    json_decref(config);
    tl_free_raw(w);
    tl_free_raw(first);
    return s;
}

static tl_status save(tl_model *m, const char *folder, const tl_decoder_config *c, tl_map_entry *e,
                      int n, tl_model_files o, tl_err *err)
{
    TL_TRY(tl_map_give(m, e, n, err));
    const tl_llama_config *l = &c->llama;
    const char *dtype = e[0].array.dtype == TL_F64    ? "float64"
                        : e[0].array.dtype == TL_F16  ? "float16"
                        : e[0].array.dtype == TL_BF16 ? "bfloat16"
                                                      : "float32";
    if (mkdir(folder, 0777) != 0 && access(folder, W_OK | X_OK) != 0)
        return tl_fail(err, TL_EIO, "%.200s: no such folder, and it cannot be made", folder);
    bool turned = c->family == TL_FAMILY_LLAMA && l->pairing != TL_ROTARY_HALF;
    tl_st_entry *out = tl_calloc((size_t)n, sizeof *out);
    tl_status s = out == NULL ? tl_fail(err, TL_ENOMEM, "no memory for %d entries", n) : TL_OK;
    for (int i = 0; i < n && s == TL_OK; i++) {
        tl_array *a = &e[i].array;
        if (e[i].how == TL_TURNED && turned)
            s = halves(a, l->width / l->heads, err);
        if (s != TL_OK)
            e[i].how = TL_AS_IT_IS; /* nothing to free */
        if (e[i].how == TL_TRANSPOSED)
            *a = (tl_array){
                a->dtype, 2, {a->dim[1], a->dim[0]}, {a->stride[1], a->stride[0]}, a->data};
        if (s == TL_OK)
            out[i] = (tl_st_entry){e[i].theirs, *a};
    }
    if (s == TL_OK)
        s = write_folder(folder, out, n, o.shard_bytes, config_json(*c, dtype), err);
    for (int i = 0; turned && out != NULL && i < n && out[i].name != NULL; i++)
        if (e[i].how == TL_TURNED)
            tl_free_raw(out[i].array.data);
    tl_free_raw(out);
    return s;
}

tl_status tl_hf_save_with(tl_model *m, const char *folder, const tl_decoder_config *c,
                          tl_model_files o)
{
    TL_TRY(tl_map_begin(m, folder, c, o, "tl_hf_save"));
    tl_err *err = tl_error_record(m);
    tl_map_entry *e;
    int n;
    TL_TRY(tl_map_new(&e, &n, c, INT64_MAX, folder, err));
    tl_status s = save(m, folder, c, e, n, o, err);
    tl_free_raw(e);
    return s;
}
