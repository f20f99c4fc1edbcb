/* hugging_face.c: a folder in which transformers keeps a model - config.json
 * (hugging_face_config.c), and the tensors as safetensors, in one file or in shards that an index
 * names. */
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autograd/author.h"
#include "nn/files.h"
#include "tensor/files/bytes.h"
#include "tensor/files/safetensors_header.h"
#include "tensor/memory.h"
#include "tensor/threads.h"

enum { CONFIG_MAX = 1 << 20, INDEX_MAX = 1 << 25, SHARDS_MAX = 4096 }; /* bytes; bytes; files */
#define WHOLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

static tl_status join(char path[PATH_MAX], const tl_source *folder, const char *name)
{
    if (*folder->path == '\0')
        return tl_fail(folder->err, TL_EIO, "\"\" names no folder");
    return snprintf(path, PATH_MAX, "%s/%s", folder->path, name) < PATH_MAX
               ? TL_OK
               : tl_file_fail(folder, TL_EIO, "the path is too long");
}

/* ---- the files of a folder ---- */

typedef struct {
    char *name;
    tl_st_file *file;
} shard;
typedef struct {
    tl_source folder;
    shard *shard;
    int n, cap;
} shards;

static void close_shards(shards *s)
{
    for (int i = 0; i < s->n; i++) {
        tl_st_close(s->shard[i].file);
        tl_free_raw(s->shard[i].name);
    }
    tl_free_raw(s->shard);
}

/* The index of an open shard; -1: it is not open. */
static int find_shard(const shards *s, const char *name)
{
    int k = s->n - 1;
    while (k >= 0 && strcmp(s->shard[k].name, name) != 0)
        k--;
    return k;
}

static tl_status open_shard(shards *s, const char *name)
{
    const tl_source *folder = &s->folder;
    char path[PATH_MAX];
    if (find_shard(s, name) >= 0)
        return TL_OK;
    if (s->n == SHARDS_MAX || strchr(name, '/') != NULL || *name == '.' || *name == '\0')
        return tl_fail(folder->err, TL_EFORMAT,
                       "%.200s/" INDEX
                       ": shard %d is '%.100s'; up to %d files of the same folder are possible",
                       folder->path, s->n + 1, name, (int)SHARDS_MAX);
    TL_TRY(join(path, folder, name));
    if (!tl_grow(&s->shard, &s->cap, s->n, sizeof *s->shard))
        return tl_file_fail(folder, TL_ENOMEM, "no memory for %d shards", s->n + 1);
    shard *x = &s->shard[s->n];
    *x = (shard){tl_strdup(name), NULL};
    if (x->name == NULL)
        return tl_file_fail(folder, TL_ENOMEM, "no memory for a name");
    s->n++;
    return tl_st_open(&x->file, path, folder->err);
}

/* Opens every file that the index names, and checks that each tensor is where the index has it. */
static tl_status open_index(shards *s, const char *path)
{
    const tl_source index = {path, s->folder.err};
    json_t *j, *map, *value;
    const char *key;
    TL_TRY(tl_source_object(&j, &index, INDEX_MAX));
    tl_status st = json_is_object(map = json_object_get(j, "weight_map"))
                       ? TL_OK
                       : tl_file_fail(&index, TL_EFORMAT, "has no object \"weight_map\"");
    json_object_foreach(map, key, value)
    {
        const char *name = json_string_value(value);
        if (st == TL_OK)
            st = name != NULL ? open_shard(s, name)
                              : tl_file_fail(&index, TL_EFORMAT,
                                             "the file of '%.100s' is not a string", key);
        if (st == TL_OK && tl_st_find(s->shard[find_shard(s, name)].file, key) < 0)
            st = tl_fail(index.err, TL_ENAME,
                         "%.200s/%.100s: has no tensor '%.100s', where the index has it",
                         s->folder.path, name, key);
    }
    json_decref(j);
    return st;
}

/* ---- loading ---- */

/* Tensors that some files have although they follow from the others or need no data. */
static bool needless(const char *name, const tl_decoder_config *c)
{
    static const char *const pattern[] = {"*.attn.bias", "*.attn.masked_bias",
                                          "*.rotary_emb.inv_freq"};
    for (size_t i = 0; i < sizeof pattern / sizeof *pattern; i++)
        if (tl_name_fits(pattern[i], name))
            return true;
    return strcmp(name, "lm_head.weight") == 0 && (c->family == TL_FAMILY_GPT2 || c->llama.tied);
}

/* Checks that an output projection that config.json ties to the embedding equals the embedding. */
static tl_status check_tied(const shards *s, const tl_array *embedding)
{
    const size_t bytes = (size_t)tl_array_count(embedding) * tl_dtype_size(embedding->dtype);
    for (int k = 0; k < s->n; k++) {
        const int at = tl_st_find(s->shard[k].file, "lm_head.weight");
        const tl_array a = at >= 0 ? tl_st_at(s->shard[k].file, at).array : *embedding;
        if (a.dtype != embedding->dtype || !tl_array_same_shape(&a, embedding) ||
            (bytes > 0 && memcmp(a.data, embedding->data, bytes) != 0))
            return tl_file_fail(&s->folder, TL_ENAME,
                                "'lm_head.weight' is not the embedding, to which config.json ties "
                                "it (tie_word_embeddings)");
    }
    return TL_OK;
}

static tl_array transposed(const tl_array *a)
{
    return (tl_array){a->dtype, 2, {a->dim[1], a->dim[0]}, {a->stride[1], a->stride[0]}, a->data};
}

/* Lets the entry borrow the file's array, seen in our layout. */
static tl_status take_array(tl_map_entry *e, tl_array a, const tl_source *folder)
{
    if (e->how == TL_TRANSPOSED && a.ndim == 2)
        a = transposed(&a);
    tl_shape s = tl_array_shape(&a);
    if (!tl_shape_equal(&s, &e->shape) || !tl_dtype_is_float(a.dtype))
        return tl_file_fail(folder, TL_ESHAPE, "'%s' is %s %s%s there, floats %s by config.json",
                            e->theirs, TL_TEXT_OF(&s), tl_dtype_name(a.dtype),
                            e->how == TL_TRANSPOSED ? " (transposed)" : "", TL_TEXT_OF(&e->shape));
    e->array = a;
    return TL_OK;
}

/* Finds every entry in one of the files, which must have no other tensors. GPT-2's names may lack
 * their first part. */
static tl_status match(const shards *s, const tl_map *map, const tl_decoder_config *c)
{
    static const char first[] = "transformer.";
    tl_map_entry *e = map->e;
    size_t cut = c->family == TL_FAMILY_GPT2 ? sizeof first - 1 : 0;
    for (int k = 0; k < s->n; k++)
        if (tl_st_find(s->shard[k].file, e[0].theirs) >= 0)
            cut = 0;
    int64_t all = 0, needed = map->n;
    for (int i = 0; i < map->n; i++) {
        int at = -1;
        for (int k = 0; k < s->n && at < 0; k++)
            if ((at = tl_st_find(s->shard[k].file, e[i].theirs + cut)) >= 0)
                TL_TRY(take_array(&e[i], tl_st_at(s->shard[k].file, at).array, &s->folder));
        if (at < 0)
            return tl_file_fail(&s->folder, TL_ENAME,
                                "no file has the tensor '%s', which config.json asks for",
                                e[i].theirs + cut);
    }
    for (int k = 0; k < s->n; k++)
        for (int i = 0; i < tl_st_count(s->shard[k].file); i++, all++)
            needed += needless(tl_st_at(s->shard[k].file, i).name, c);
    for (int k = 0; k < s->n && all != needed; k++)
        for (int i = 0, j; i < tl_st_count(s->shard[k].file); i++) {
            const char *name = tl_st_at(s->shard[k].file, i).name;
            for (j = 0; j < map->n && strcmp(e[j].theirs + cut, name) != 0;)
                j++;
            if (j == map->n && !needless(name, c))
                return tl_file_fail(&s->folder, TL_ENAME,
                                    "has %lld tensors, of which the decoder of config.json takes "
                                    "%lld; '%.100s' is another",
                                    (long long)all, (long long)needed, name);
        }
    if (all != needed)
        return tl_file_fail(&s->folder, TL_ENAME, "a tensor is in two files");
    return needless("lm_head.weight", c) ? check_tied(s, &e[0].array) : TL_OK;
}

/* Bytes of all tensors. */
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

/* Reads config.json, and opens the files. */
static tl_status open_all(shards *s, const tl_source *config, tl_decoder_config *c)
{
    char of[PATH_MAX];
    json_t *j;
    TL_TRY(tl_source_object(&j, config, CONFIG_MAX));
    tl_status st = tl_hf_config(j, c, config);
    json_decref(j);
    TL_TRY(st);
    TL_TRY(tl_map_check(c, config));
    TL_TRY(join(of, &s->folder, WHOLE));
    if (access(of, F_OK) == 0)
        return open_shard(s, WHOLE);
    TL_TRY(join(of, &s->folder, INDEX));
    return open_index(s, of);
}

static tl_status load(tl_model *m, shards *s, tl_decoder_config *c, tl_model_files o)
{
    char path[PATH_MAX];
    const tl_source config = {path, s->folder.err};
    tl_map map;
    TL_TRY(join(path, &s->folder, "config.json"));
    const int lock = tl_folder_lock(s->folder.path, false);
    tl_status st = open_all(s, &config, c);
    tl_folder_unlock(lock); /* what is open stays as it is */
    TL_TRY(st);
    TL_TRY(tl_map_new(&map, c, bytes_of(s), &config));
    st = match(s, &map, c);
    if (st == TL_OK) {
        tl_dtype d = o.dtype != TL_DTYPE_DEFAULT ? o.dtype : tl_map_dtype(&map);
        *(c->family == TL_FAMILY_LLAMA ? &c->llama.dtype : &c->gpt2.dtype) = d;
        st = tl_map_take(m, &map, d, config.err);
    }
    tl_free_raw(map.e);
    return st;
}

tl_status tl_hf_load_with(tl_model *m, const char *folder, tl_decoder_config *c, tl_model_files o)
{
    TL_TRY(tl_map_begin(m, folder, c, o, "tl_hf_load", false));
    tl_decoder_config read;
    shards s = {.folder = {folder, tl_error_record(m)}};
    tl_status st = load(m, &s, &read, o);
    close_shards(&s);
    if (st == TL_OK)
        *c = read;
    return st;
}

/* ---- saving ---- */

/* Writes j to a file of the folder, without the commit. The caller aborts *out even if this fails.
 * Takes j over. */
static tl_status begin_json(tl_writer **out, json_t *j, const tl_source *folder, const char *name)
{
    const size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(17);
    char path[PATH_MAX];
    tl_textenv saved = tl_textenv_enter();
    const size_t n = j != NULL ? json_dumpb(j, NULL, 0, flags) : 0;
    char *text = n > 0 ? tl_calloc(n + 1, 1) : NULL;
    const bool whole = text != NULL && json_dumpb(j, text, n, flags) == n;
    tl_textenv_leave(saved);
    json_decref(j);
    tl_status s = whole ? join(path, folder, name)
                        : tl_file_fail(folder, TL_ENOMEM, "no memory to write %s", name);
    if (s == TL_OK)
        s = tl_writer_begin(out, path, folder->err);
    if (s == TL_OK) {
        text[n] = '\n';
        s = tl_writer_append(*out, text, n + 1, folder->err);
    }
    tl_free_raw(text);
    return s;
}

/* The new files of a folder, which take their places together. */
typedef struct {
    tl_writer **w;     /* NULL: an old file that is removed */
    const char **name; /* of each; config.json is the last */
    char (*shard)[64]; /* names of shards */
    int shards, n;
} outputs;

/* Cuts the n entries into shards of at most `most` bytes, or of one larger tensor. first[k] is the
 * first entry of shard k; the one after the last is n. Returns the number of shards. */
static int divide(const tl_st_entry *e, int n, int64_t most, int *first, int64_t *total)
{
    int files = 0;
    int64_t held = 0;
    for (int i = 0; i < n; i++) {
        int64_t bytes = tl_array_count(&e[i].array) * (int64_t)tl_dtype_size(e[i].array.dtype);
        if (i == 0 || (most > 0 && held + bytes > most)) {
            first[files++] = i;
            held = 0;
        }
        held += bytes;
        *total += bytes;
    }
    first[files] = n;
    return files;
}

/* Writes the shards, and their index if there are several, beside the files they replace. */
static tl_status begin_shards(outputs *out, const tl_source *folder, const tl_st_entry *e,
                              const int *first, int64_t total)
{
    const tl_st_meta meta[] = {{"format", "pt"}, {TL_ST_SEAL, ""}};
    char path[PATH_MAX];
    json_t *map = json_object();
    tl_status s = TL_OK;
    for (int k = 0; k < out->shards && s == TL_OK; k++) {
        char *name = out->shard[k];
        snprintf(name, sizeof *out->shard,
                 out->shards == 1 ? WHOLE : "model-%05d-of-%05d.safetensors", k + 1, out->shards);
        for (int i = first[k]; i < first[k + 1]; i++)
            json_object_set_new(map, e[i].name, json_string(name));
        out->name[out->n] = name;
        if ((s = join(path, folder, name)) == TL_OK)
            s = tl_st_begin(&out->w[out->n++], path, e + first[k], first[k + 1] - first[k], meta, 2,
                            folder->err);
    }
    const bool whole = json_object_size(map) == (size_t)first[out->shards];
    json_t *index = json_pack("{s{sI} so}", "metadata", "total_size", (json_int_t)total,
                              "weight_map", map);
    if (s == TL_OK && !whole)
        s = tl_file_fail(folder, TL_ENOMEM, "no memory to write " INDEX);
    if (s != TL_OK || out->shards == 1) {
        json_decref(index);
        return s;
    }
    out->name[out->n] = INDEX;
    s = begin_json(&out->w[out->n++], index, folder, INDEX);
    out->name[out->n++] = WHOLE; /* readers prefer an earlier model's to the index */
    return s;
}

/* Removes the shards that only an earlier model had, which its index names, and that index if it
 * would still lead readers to them. */
static void remove_older(const tl_source *folder, json_t *index, int files)
{
    const tl_source silent = {folder->path, NULL};
    char path[PATH_MAX], mine[64];
    const char *key;
    json_t *name;
    snprintf(mine, sizeof mine, "model-*-of-%05d.safetensors", files);
    json_object_foreach(json_object_get(index, "weight_map"), key, name)
    {
        const char *old = json_is_string(name) ? json_string_value(name) : "";
        if (fnmatch("model-[0-9]*-of-[0-9]*.safetensors", old, FNM_PATHNAME) == 0 &&
            (files == 1 || fnmatch(mine, old, 0) != 0) && join(path, &silent, old) == TL_OK)
            unlink(path);
    }
    if (files == 1 && join(path, &silent, INDEX) == TL_OK)
        unlink(path);
}

/* Puts the new files into their places, config.json last, and then removes the files that only the
 * earlier model had. */
static tl_status publish(outputs *out, const tl_source *folder)
{
    char path[PATH_MAX];
    const tl_source index = {path, NULL};
    json_t *old = NULL;
    TL_TRY(join(path, folder, INDEX));
    const int lock = tl_folder_lock(folder->path, true);
    if (access(path, F_OK) == 0 && tl_source_object(&old, &index, INDEX_MAX) != TL_OK)
        old = NULL; /* its shards are not known, and stay */
    tl_status s = tl_writers_place(out->w, out->name, out->n, folder->path, folder->err);
    if (out->w[out->n - 1] == NULL)
        remove_older(folder, old, out->shards);
    tl_folder_unlock(lock);
    json_decref(old);
    return s;
}

static tl_status write_folder(const tl_source *folder, const tl_st_entry *e, int n, int64_t most,
                              json_t *config)
{
    const size_t files = (size_t)n + 3; /* shards, index, the old whole file, config.json */
    int *first = tl_calloc((size_t)n + 1, sizeof *first);
    outputs out = {.w = tl_calloc(files, sizeof *out.w),
                   .name = tl_calloc(files, sizeof *out.name),
                   .shard = tl_calloc(files, sizeof *out.shard)};
    int64_t total = 0;
    tl_status s = TL_OK;
    if (first == NULL || out.w == NULL || out.name == NULL || out.shard == NULL)
        s = tl_file_fail(folder, TL_ENOMEM, "no memory for %d tensors", n);
    if (s == TL_OK) {
        out.shards = divide(e, n, most, first, &total);
        s = begin_shards(&out, folder, e, first, total);
    }
    if (s == TL_OK) {
        out.name[out.n] = "config.json";
        s = begin_json(&out.w[out.n++], json_incref(config), folder, "config.json");
    }
    if (s == TL_OK)
        s = publish(&out, folder);
    for (int i = 0; i < out.n; i++)
        tl_writer_abort(out.w[i]);
    json_decref(config);
    tl_free_raw(out.w);
    tl_free_raw(out.name);
    tl_free_raw(out.shard);
    tl_free_raw(first);
    return s;
}

/* Copies a, whose heads have interleaved pairs of rows (0, 1), (2, 3), ..., to `to` with the pairs
 * as halves: 0, 2, ..., 1, 3, ... Points a at the copy and returns its end. d: rows of a head. */
static char *turn(tl_array *a, char *to, int64_t d)
{
    const size_t bytes = (size_t)a->dim[1] * tl_dtype_size(a->dtype);
    const char *from = a->data;
    a->data = to;
    for (int64_t r = 0; r < a->dim[0]; r++, to += bytes) {
        int64_t i = r % d, row = r - i + (i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1);
        memcpy(to, from + (size_t)row * bytes, bytes);
    }
    return to;
}

static tl_status save(tl_model *m, const tl_source *folder, const tl_decoder_config *c, tl_map *map,
                      tl_model_files o)
{
    char of[PATH_MAX];
    TL_TRY(join(of, folder, ".")); /* on a file, access gives ENOTDIR */
    TL_TRY(tl_map_give(m, c, map, folder->err));
    const tl_llama_config *l = &c->llama;
    const tl_dtype d = o.dtype != TL_DTYPE_DEFAULT ? o.dtype : map->e[0].array.dtype;
    const char *dtype = d == TL_F64    ? "float64"
                        : d == TL_F16  ? "float16"
                        : d == TL_BF16 ? "bfloat16"
                                       : "float32";
    if ((mkdir(folder->path, 0777) != 0 && errno != EEXIST) || access(of, W_OK | X_OK) != 0)
        return tl_file_fail(folder, TL_EIO, "no folder that can be written: %s", strerror(errno));
    const bool turns = c->family == TL_FAMILY_LLAMA && l->pairing != TL_ROTARY_HALF;
    size_t bytes = 0; /* of tensors that are rounded, and of those that are turned */
    for (int i = 0; i < map->n; i++) {
        const tl_array *a = &map->e[i].array; /* each may have another dtype */
        const tl_dtype as = o.dtype != TL_DTYPE_DEFAULT ? d : a->dtype;
        const int copies = (as != a->dtype) + (map->e[i].how == TL_TURNED && turns);
        bytes += (size_t)copies * (size_t)tl_array_count(a) * tl_dtype_size(as);
    }
    char *copied = tl_calloc(bytes + 1, 1), *to = copied;
    tl_st_entry *out = tl_calloc((size_t)map->n, sizeof *out);
    tl_status s = out == NULL || copied == NULL
                      ? tl_fail(folder->err, TL_ENOMEM, "no memory for %d entries", map->n)
                      : TL_OK;
    for (int i = 0; i < map->n && s == TL_OK; i++) {
        tl_array a = map->e[i].array;
        if (o.dtype != TL_DTYPE_DEFAULT && a.dtype != d) {
            const tl_array rounded = tl_array_make(d, &map->e[i].shape, to);
            tl_map_convert(&rounded, &a);
            to += (size_t)tl_array_count(&a) * tl_dtype_size(d);
            a = rounded;
        }
        if (map->e[i].how == TL_TURNED && turns)
            to = turn(&a, to, l->width / l->heads);
        if (map->e[i].how == TL_TRANSPOSED)
            a = transposed(&a);
        out[i] = (tl_st_entry){map->e[i].theirs, a};
    }
    if (s == TL_OK)
        s = write_folder(folder, out, map->n, o.shard_bytes, tl_hf_config_json(*c, dtype));
    tl_free_raw(copied);
    tl_free_raw(out);
    return s;
}

tl_status tl_hf_save_with(tl_model *m, const char *folder, const tl_decoder_config *c,
                          tl_model_files o)
{
    TL_TRY(tl_map_begin(m, folder, c, o, "tl_hf_save", true));
    const tl_source to = {folder, tl_error_record(m)};
    tl_map map;
    TL_TRY(tl_map_new(&map, c, INT64_MAX, &to));
    tl_status s = save(m, &to, c, &map, o);
    tl_free_raw(map.e);
    return s;
}
