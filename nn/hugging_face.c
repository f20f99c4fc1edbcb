/* hugging_face.c: a folder as transformers keeps models - config.json (hugging_face_config.c), and
 * safetensors in one file or in shards that an index names. */
#include <fnmatch.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autograd/author.h"
#include "nn/hugging_face.h"
#include "nn/model_map.h"
#include "tensor/files/file.h"
#include "tensor/files/safetensors_header.h"
#include "tensor/memory.h"
#include "tensor/threads.h"

enum { INDEX_MAX = 1 << 25, SHARDS_MAX = 4096 };
#define WHOLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

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
    if (*folder == '\0')
        return tl_fail(err, TL_EIO, "\"\" names no folder");
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
    TL_TRY(tl_hf_json(&j, path, INDEX_MAX, err));
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
    TL_TRY(tl_hf_json(&j, path, TL_CONFIG_MAX, err));
    tl_status st = tl_hf_config(j, c, path, err);
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
        if (access(path, F_OK) == 0 && tl_hf_json(&index, path, INDEX_MAX, NULL) != TL_OK)
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
        s = write_folder(folder, out, n, o.shard_bytes, tl_hf_config_json(*c, dtype), err);
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
