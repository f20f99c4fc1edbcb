/* safetensors_write.c: writing. Equal contents give equal bytes. The header is built first, as JSON
 * in memory; a sealed file's digest is worked out and put into it before anything is written. */

#include <string.h>

#include <jansson.h>

#include "tensor/storage.h"
#include "tensor/files/bytes.h"
#include "tensor/files/hash.h"
#include "tensor/files/safetensors_header.h"
#include "tensor/operands.h"

/* A header being built; the lists are sorted copies of the caller's. */
typedef struct {
    tl_st_entry *entries;
    tl_st_meta *meta;
    int n, n_meta;
    json_t *json;
    char *text; /* the JSON, padded; a NUL follows */
    size_t length;
} plan;

static tl_status no_memory(tl_err *err)
{
    return tl_fail(err, TL_ENOMEM, "safetensors: no memory for the header");
}

/* Strings in JSON are UTF-8. */
static tl_status text_check(const char *s, const char *what, tl_err *err)
{
    if (s == NULL)
        return tl_fail(err, TL_ENAME, "%s is NULL", what);
    size_t valid = tl_utf8_prefix(s, strlen(s));
    if (s[valid] != '\0')
        return tl_fail(err, TL_ENAME, "%s \"%.100s\" is not valid UTF-8 at byte %zu", what, s,
                       valid);
    return TL_OK;
}

tl_status tl_st_name_check(const char *name, tl_err *err)
{
    TL_TRY(text_check(name, "the name", err));
    if (strcmp(name, TL_ST_METADATA) == 0)
        return tl_fail(err, TL_ENAME, "the name \"%s\" is reserved by the file format", name);
    return TL_OK;
}

static tl_status meta_check(const tl_st_meta *meta, int n, tl_err *err)
{
    for (int i = 0; i < n; i++) {
        tl_err why = {0};
        tl_status s = text_check(meta[i].key, "the key", &why);
        if (s == TL_OK && strcmp(meta[i].key, TL_ST_SEAL) != 0)
            s = text_check(meta[i].value, "the value", &why);
        if (s != TL_OK)
            return tl_fail(err, s, "safetensors: metadata %d: %s", i, why.message);
    }
    return TL_OK;
}

static tl_status entries_check(const tl_st_entry *e, int n, tl_err *err)
{
    for (int i = 0; i < n; i++) {
        tl_err why = {0};
        tl_status s = tl_st_name_check(e[i].name, &why);
        if (s != TL_OK)
            return tl_fail(err, s, "safetensors: tensor %d: %s", i, why.message);
        tl_shape shape = tl_array_shape(&e[i].array);
        s = tl_shape_check(&shape, e[i].array.dtype, &why);
        if (s != TL_OK)
            return tl_fail(err, s, "safetensors: tensor \"%.100s\": %s", e[i].name, why.message);
        if (e[i].array.data == NULL && tl_shape_count(&shape) != 0)
            return tl_fail(err, TL_EUSAGE,
                           "safetensors: tensor \"%.100s\" has %lld elements, but no data",
                           e[i].name, (long long)tl_shape_count(&shape));
    }
    return TL_OK;
}

static const char no_digest[] = "0000000000000000000000000000000000000000000000000000000000000000";

static tl_status plan_sort(plan *p, const tl_st_entry *e, const tl_st_meta *meta, tl_err *err)
{
    p->entries = tl_calloc((size_t)p->n, sizeof *e);
    p->meta = tl_calloc((size_t)p->n_meta, sizeof *meta);
    if (p->entries == NULL || p->meta == NULL)
        return no_memory(err);
    for (int i = 0; i < p->n; i++)
        p->entries[i] = e[i];
    for (int i = 0; i < p->n_meta; i++)
        p->meta[i] = strcmp(meta[i].key, TL_ST_SEAL) == 0 ? (tl_st_meta){TL_ST_SEAL, no_digest}
                                                          : meta[i];
    const char *twice = tl_names_sort(p->entries, p->n, sizeof *e);
    if (twice != NULL)
        return tl_fail(err, TL_ENAME, "safetensors: two tensors are named \"%.100s\"", twice);
    twice = tl_names_sort(p->meta, p->n_meta, sizeof *meta);
    if (twice != NULL)
        return tl_fail(err, TL_ENAME, "safetensors: two metadata have the key \"%.100s\"", twice);
    return TL_OK;
}

static json_t *shape_json(const tl_array *a)
{
    json_t *list = json_array();
    for (int i = 0; i < a->ndim && list != NULL; i++)
        if (json_array_append_new(list, json_integer(a->dim[i])) != 0) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

/* The text has the members in the order in which they are set here. */
static tl_status plan_json(plan *p, tl_err *err)
{
    p->json = json_object();
    if (p->n_meta > 0) {
        json_t *m = json_object();
        if (json_object_set_new(p->json, TL_ST_METADATA, m) != 0)
            return no_memory(err);
        for (int i = 0; i < p->n_meta; i++)
            if (json_object_set_new(m, p->meta[i].key, json_string(p->meta[i].value)) != 0)
                return no_memory(err);
    }
    int64_t at = 0;
    for (int i = 0; i < p->n; i++) {
        const tl_array *a = &p->entries[i].array;
        int64_t bytes = tl_array_count(a) * (int64_t)tl_dtype_size(a->dtype);
        if (bytes > INT64_MAX - at)
            return tl_fail(err, TL_EDOMAIN,
                           "safetensors: the tensors up to \"%.100s\" exceed 2^63 bytes",
                           p->entries[i].name);
        json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", tl_dtype_name(a->dtype), "shape",
                                  shape_json(a), "data_offsets", (json_int_t)at,
                                  (json_int_t)(at + bytes));
        if (json_object_set_new(p->json, p->entries[i].name, entry) != 0)
            return no_memory(err);
        at += bytes;
    }
    return p->json != NULL ? TL_OK : no_memory(err);
}

static tl_status plan_text(plan *p, tl_err *err)
{
    size_t n = json_dumpb(p->json, NULL, 0, JSON_COMPACT);
    p->length = (n + 7) / 8 * 8;
    if (n == 0)
        return no_memory(err);
    if (p->length > tl_st_header_limit(0))
        return tl_fail(err, TL_EDOMAIN,
                       "safetensors: the header takes %zu bytes; readers accept %zu, unless "
                       "tl_st_header_limit says otherwise",
                       p->length, tl_st_header_limit(0));
    p->text = tl_calloc(p->length + 1, 1);
    if (p->text == NULL || json_dumpb(p->json, p->text, n, JSON_COMPACT) != n)
        return no_memory(err);
    memset(p->text + n, ' ', p->length - n);
    return TL_OK;
}

/* Hands all bytes of the file to fn. */
static tl_status plan_bytes(const plan *p, tl_bytes_fn *fn, void *ctx)
{
    unsigned char length[8];
    tl_bytes_put64(length, p->length);
    TL_TRY(fn(ctx, length, 8));
    TL_TRY(fn(ctx, p->text, p->length));
    for (int i = 0; i < p->n; i++)
        TL_TRY(tl_array_bytes(&p->entries[i].array, fn, ctx));
    return TL_OK;
}

/* Puts the digest of the file into its header, if the header has a seal: the key whose value is a
 * string (a tensor of that name has an object). It follows a '{' or a ','; inside another string a
 * backslash would precede its first quote. */
static tl_status plan_seal(plan *p, tl_err *err)
{
    static const char key[] = "\"" TL_ST_SEAL "\":\"";
    char *seal = strstr(p->text, key), hex[TL_SHA256_HEX];
    tl_sha256_ctx h;
    while (seal != NULL && seal[-1] != '{' && seal[-1] != ',')
        seal = strstr(seal + 1, key);
    if (seal == NULL)
        return TL_OK;
    TL_TRY(tl_sha256_begin(&h, err));
    (void)plan_bytes(p, tl_sha256_block, &h); /* finish reports a failure */
    TL_TRY(tl_sha256_finish_hex(&h, hex, err));
    memcpy(seal + sizeof key - 1, hex, TL_ST_DIGITS);
    return TL_OK;
}

static void plan_free(plan *p)
{
    tl_free_raw(p->entries);
    tl_free_raw(p->meta);
    tl_free_raw(p->text);
    json_decref(p->json);
}

static tl_status plan_write(const plan *p, tl_writer **w, const char *path, tl_err *err)
{
    TL_TRY(tl_writer_begin(w, path, err));
    tl_status s = plan_bytes(p, tl_writer_block, *w);
    if (s == TL_OK)
        return s;
    tl_writer_append(*w, NULL, 0, err); /* reports the first failure */
    tl_writer_abort(*w);
    *w = NULL;
    return s;
}

tl_status tl_st_begin(tl_writer **out, const char *path, const tl_st_entry *e, int n,
                      const tl_st_meta *meta, int n_meta, tl_err *err)
{
    plan p = {.n = n, .n_meta = n_meta};
    *out = NULL;
    if (n < 0 || n_meta < 0)
        return tl_fail(err, TL_EUSAGE, "safetensors: %d tensors and %d metadata to write", n,
                       n_meta);
    TL_TRY(TL_NEED(err, path));
    TL_TRY(TL_NEED_N(err, e, n));
    TL_TRY(TL_NEED_N(err, meta, n_meta));
    TL_TRY(entries_check(e, n, err));
    TL_TRY(meta_check(meta, n_meta, err));
    tl_status s = plan_sort(&p, e, meta, err);
    if (s == TL_OK)
        s = plan_json(&p, err);
    if (s == TL_OK)
        s = plan_text(&p, err);
    if (s == TL_OK)
        s = plan_seal(&p, err);
    if (s == TL_OK)
        s = plan_write(&p, out, path, err);
    plan_free(&p);
    return s;
}

tl_status tl_st_write(const char *path, const tl_st_entry *e, int n, const tl_st_meta *meta,
                      int n_meta, tl_err *err)
{
    tl_writer *w;
    TL_TRY(tl_st_begin(&w, path, e, n, meta, n_meta, err));
    return tl_writer_commit(w, err);
}
