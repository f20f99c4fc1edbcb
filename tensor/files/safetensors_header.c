/* safetensors_header.c: the JSON of a safetensors file, believed in nothing. */
#include "tensor/files/safetensors_header.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "tensor/arena.h"

#define AT "%.200s: tensor \"%.100s\": " /* path and tensor, cut so that the reason survives */

static tl_status dtype_parse(tl_st_tensor *t, const json_t *v, const char *path, tl_err *err)
{
    const char *text = json_string_value(v);
    if (text == NULL)
        return tl_fail(err, TL_EFORMAT, AT "\"dtype\" is missing or not a string", path, t->name);
    for (int d = 0; d < TL_DTYPE_COUNT; d++)
        if (strcmp(text, tl_dtype_name((tl_dtype)d)) == 0) {
            t->dtype = (tl_dtype)d;
            return TL_OK;
        }
    return tl_fail(err, TL_EFORMAT,
                   AT "dtype \"%.40s\" is not known here (F64 F32 F16 BF16 I64 BOOL are)", path,
                   t->name, text);
}

/* The i-th number of a list: an integer >= 0. */
static tl_status number_parse(int64_t *out, const json_t *list, size_t i, const char *what,
                              const tl_st_tensor *t, const char *path, tl_err *err)
{
    const json_t *v = json_array_get(list, i);
    if (!json_is_integer(v))
        return tl_fail(err, TL_EFORMAT, AT "\"%s\"[%zu] is not an integer", path, t->name, what, i);
    *out = json_integer_value(v);
    if (*out < 0)
        return tl_fail(err, TL_EFORMAT, AT "\"%s\"[%zu] is %lld, below 0", path, t->name, what, i,
                       (long long)*out);
    return TL_OK;
}

static tl_status shape_parse(tl_st_tensor *t, const json_t *v, const char *path, tl_err *err)
{
    if (!json_is_array(v))
        return tl_fail(err, TL_EFORMAT, AT "\"shape\" is missing or not a list", path, t->name);
    if (json_array_size(v) > TL_MAX_DIMS)
        return tl_fail(err, TL_EFORMAT, AT "has %zu dims; at most %d are possible", path, t->name,
                       json_array_size(v), TL_MAX_DIMS);
    t->shape = (tl_shape){.ndim = (int)json_array_size(v)};
    for (int i = 0; i < t->shape.ndim; i++)
        TL_TRY(number_parse(&t->shape.dim[i], v, (size_t)i, "shape", t, path, err));
    tl_err why = {0};
    if (tl_shape_check(&t->shape, t->dtype, &why) != TL_OK)
        return tl_fail(err, TL_EFORMAT, AT "%s", path, t->name, why.message);
    return TL_OK;
}

static tl_status offsets_parse(tl_st_tensor *t, const json_t *v, uint64_t data_bytes,
                               const char *path, tl_err *err)
{
    int64_t begin = 0, end = 0;
    if (!json_is_array(v) || json_array_size(v) != 2)
        return tl_fail(err, TL_EFORMAT, AT "\"data_offsets\" is missing or not a list of two", path,
                       t->name);
    TL_TRY(number_parse(&begin, v, 0, "data_offsets", t, path, err));
    TL_TRY(number_parse(&end, v, 1, "data_offsets", t, path, err));
    if (begin <= end && (uint64_t)end > data_bytes)
        return tl_fail(err, TL_EFORMAT,
                       AT "its bytes end at %lld, but the file ends after %llu bytes of data: it "
                          "is cut off, or damaged",
                       path, t->name, (long long)end, (unsigned long long)data_bytes);
    if (begin > end)
        return tl_fail(err, TL_EFORMAT, AT "bytes %lld to %lld do not lie in order", path, t->name,
                       (long long)begin, (long long)end);
    int64_t need = tl_shape_count(&t->shape) * (int64_t)tl_dtype_size(t->dtype);
    if (end - begin != need) {
        char text[TL_SHAPE_TEXT];
        return tl_fail(err, TL_EFORMAT, AT "%s of %s takes %lld bytes, but %lld to %lld are %lld",
                       path, t->name, tl_shape_text(text, &t->shape), tl_dtype_name(t->dtype),
                       (long long)need, (long long)begin, (long long)end, (long long)(end - begin));
    }
    t->begin = (uint64_t)begin;
    t->end = (uint64_t)end;
    return TL_OK;
}

static tl_status tensor_parse(tl_st_tensor *t, const json_t *v, uint64_t data_bytes,
                              const char *path, tl_err *err)
{
    if (!json_is_object(v))
        return tl_fail(err, TL_EFORMAT, AT "its entry is not an object", path, t->name);
    TL_TRY(dtype_parse(t, json_object_get(v, "dtype"), path, err));
    TL_TRY(shape_parse(t, json_object_get(v, "shape"), path, err));
    TL_TRY(offsets_parse(t, json_object_get(v, "data_offsets"), data_bytes, path, err));
    if (json_object_size(v) != 3)
        return tl_fail(err, TL_EFORMAT, AT "has %zu keys; dtype, shape and data_offsets are all",
                       path, t->name, json_object_size(v));
    return TL_OK;
}

static int meta_order(const void *a, const void *b)
{
    return strcmp(((const tl_st_meta *)a)->key, ((const tl_st_meta *)b)->key);
}

static tl_status meta_parse(tl_st_header *h, json_t *v, const char *path, tl_err *err)
{
    const char *key;
    json_t *value;
    if (v == NULL)
        return TL_OK;
    if (!json_is_object(v))
        return tl_fail(err, TL_EFORMAT, "%.200s: \"" TL_ST_METADATA "\" is not an object", path);
    h->meta = tl_calloc(json_object_size(v), sizeof *h->meta);
    if (h->meta == NULL)
        return tl_fail(err, TL_ENOMEM, "%.200s: no memory for %zu metadata", path,
                       json_object_size(v));
    json_object_foreach(v, key, value)
    {
        if (!json_is_string(value))
            return tl_fail(err, TL_EFORMAT, "%.200s: metadata \"%.100s\" is not a string", path,
                           key);
        h->meta[h->n_meta++] = (tl_st_meta){key, json_string_value(value)};
    }
    qsort(h->meta, (size_t)h->n_meta, sizeof *h->meta, meta_order);
    return TL_OK;
}

static int offset_order(const void *a, const void *b)
{
    const tl_st_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Sorted by offset, each tensor must begin where the one before ends. */
static tl_status cover_check(const tl_st_header *h, uint64_t data_bytes, const char *path,
                             tl_err *err)
{
    uint64_t at = 0;
    for (int i = 0; i < h->n; i++) {
        const tl_st_tensor *t = &h->tensors[i];
        if (t->begin < at)
            return tl_fail(err, TL_EFORMAT,
                           AT "begins at byte %llu, but \"%.100s\" reaches to %llu", path, t->name,
                           (unsigned long long)t->begin, h->tensors[i - 1].name,
                           (unsigned long long)at);
        if (t->begin > at)
            return tl_fail(err, TL_EFORMAT,
                           AT "begins at byte %llu; bytes from %llu belong to no tensor", path,
                           t->name, (unsigned long long)t->begin, (unsigned long long)at);
        at = t->end;
    }
    if (at != data_bytes)
        return tl_fail(err, TL_EFORMAT,
                       "%.200s: the tensors end at byte %llu of %llu bytes of data", path,
                       (unsigned long long)at, (unsigned long long)data_bytes);
    return TL_OK;
}

static tl_status entries_parse(tl_st_header *h, uint64_t data_bytes, const char *path, tl_err *err)
{
    const char *key;
    json_t *value, *meta = json_object_get(h->json, TL_ST_METADATA);
    TL_TRY(meta_parse(h, meta, path, err));
    h->tensors = tl_calloc(json_object_size(h->json), sizeof *h->tensors);
    if (h->tensors == NULL)
        return tl_fail(err, TL_ENOMEM, "%.200s: no memory for %zu tensors", path,
                       json_object_size(h->json));
    json_object_foreach((json_t *)h->json, key, value)
    {
        if (value == meta)
            continue;
        tl_st_tensor *t = &h->tensors[h->n++];
        t->name = key;
        TL_TRY(tensor_parse(t, value, data_bytes, path, err));
    }
    qsort(h->tensors, (size_t)h->n, sizeof *h->tensors, offset_order);
    return cover_check(h, data_bytes, path, err);
}

tl_status tl_st_header_parse(tl_st_header *h, const char *text, size_t n, uint64_t data_bytes,
                             const char *path, tl_err *err)
{
    json_error_t why;
    *h = (tl_st_header){0};
    while (n > 0 && text[n - 1] == ' ')
        n--;
    if (n == 0 || text[0] != '{')
        return tl_fail(err, TL_EFORMAT, "%.200s: the header does not start with '{'", path);
    if (text[n - 1] != '}')
        return tl_fail(err, TL_EFORMAT,
                       "%.200s: the header's last byte before padding (byte %zu of it) is 0x%02x, "
                       "not '}'",
                       path, n - 1, (unsigned)(unsigned char)text[n - 1]);
    h->json = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (h->json == NULL)
        return tl_fail(err,
                       json_error_code(&why) == json_error_out_of_memory ? TL_ENOMEM : TL_EFORMAT,
                       "%.200s: the header is not valid JSON: %s (byte %d of it)", path, why.text,
                       why.position);
    tl_status s = entries_parse(h, data_bytes, path, err);
    if (s != TL_OK)
        tl_st_header_free(h);
    return s;
}

static int name_order(const void *a, const void *b)
{
    return strcmp(((const tl_st_tensor *)a)->name, ((const tl_st_tensor *)b)->name);
}

void tl_st_header_sort_by_name(tl_st_header *h)
{
    qsort(h->tensors, (size_t)h->n, sizeof *h->tensors, name_order);
}

void tl_st_header_free(tl_st_header *h)
{
    json_decref(h->json);
    tl_free_raw(h->tensors);
    tl_free_raw(h->meta);
    *h = (tl_st_header){0};
}
