/* model_file.c: saves and loads a model's parameters, and the buffers of its layers, as
 * safetensors; counts and hashes the parameters. And what all files of models share: messages that
 * begin with the file's path, JSON from a file. */
#include <stdlib.h>
#include <string.h>

#include "autograd/author.h"
#include "nn/files.h"
#include "tensor/files/bytes.h"
#include "tensor/files/file.h"
#include "tensor/files/hash.h"
#include "tensor/memory.h"
#include "tensor/threads.h"

/* ---- for other files, too ---- */

tl_status tl_file_fail(const tl_source *file, tl_status s, const char *fmt, ...)
{
    tl_err e = {.status = TL_OK};
    va_list ap;
    va_start(ap, fmt);
    tl_vfail(&e, s, fmt, ap);
    va_end(ap);
    return tl_fail(file->err, s, "%.200s: %s", file->path, e.message);
}

tl_status tl_told_by(const char *who, tl_status s, tl_model *m)
{
    tl_err *err = tl_error_record(m);
    if (s == TL_OK || err == NULL || err->status == TL_OK)
        return s;
    const tl_err e = *err;
    const size_t word = strspn(e.message, "abcdefghijklmnopqrstuvwxyz_"); /* a path has more */
    if (strncmp(e.message, "tl_", 3) == 0 && e.message[word] == ':')
        return s;
    tl_err_clear(err);
    return tl_fail(err, e.status, "%s: %s", who, e.message);
}

tl_status tl_source_json(json_t **out, const tl_source *file, const char *text, size_t n)
{
    json_error_t e;
    tl_textenv saved = tl_textenv_enter();
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    tl_textenv_leave(saved);
    if (*out != NULL)
        return TL_OK;
    if (json_error_code(&e) == json_error_out_of_memory || (n > 0 && *e.text == '\0'))
        return tl_file_fail(file, TL_ENOMEM, "no memory to read %zu bytes of JSON", n);
    return tl_file_fail(file, TL_EFORMAT, "not valid JSON: %s (line %d, byte %d)",
                        n == 0 ? "it is empty" : e.text, e.line, e.position);
}

tl_status tl_source_object(json_t **out, const tl_source *file, size_t most)
{
    char *text;
    size_t n;
    *out = NULL;
    TL_TRY(tl_file_read(file->path, most, &text, &n, file->err));
    tl_status s = tl_source_json(out, file, text, n);
    tl_free_raw(text);
    if (s != TL_OK || json_is_object(*out))
        return s;
    json_decref(*out);
    *out = NULL;
    return tl_file_fail(file, TL_EFORMAT, "a JSON object is expected");
}

tl_named tl_model_named(tl_model *m, const char *name)
{
    int low = 0, high = tl_model_count(m);
    while (low < high) { /* they are in order of name */
        int middle = low + (high - low) / 2;
        if (strcmp(tl_model_at(m, middle).name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    const tl_named x = tl_model_at(m, low);
    return x.name != NULL && strcmp(x.name, name) == 0 ? x : (tl_named){0};
}

tl_status tl_source_early(const tl_source *file, const tl_st_file *f, bool empty)
{
    if (!empty || tl_st_count(f) == 0)
        return TL_OK;
    return tl_file_fail(file, TL_ENAME,
                        "has %d tensors, the model no parameter yet; the first forward pass makes "
                        "them, so load after one",
                        tl_st_count(f));
}

tl_status tl_source_alike(const tl_source *file, const tl_st_entry *e, const tl_array *ours)
{
    if (tl_array_same_shape(&e->array, ours) && e->array.dtype == ours->dtype)
        return TL_OK;
    return tl_file_fail(file, TL_ESHAPE, "'%.100s' is %s %s there; the model needs %s %s", e->name,
                        TL_TEXT(&e->array), tl_dtype_name(e->array.dtype), TL_TEXT(ours),
                        tl_dtype_name(ours->dtype));
}

/* ---- saving ---- */

/* The first n bytes of a name: NAME of NAME.x. */
typedef struct {
    const char *name;
    size_t n;
} layer;

static layer layer_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    return (layer){name, dot == NULL ? 0 : (size_t)(dot - name)};
}

static int in_order(const void *a, const void *b)
{
    const layer *x = a, *y = b;
    const int c = memcmp(x->name, y->name, x->n < y->n ? x->n : y->n);
    return c != 0 ? c : (x->n > y->n) - (x->n < y->n);
}

/* The layers that have parameters, in order. NULL: no memory. */
static layer *layers(tl_model *m, int most, int *n)
{
    layer *l = tl_calloc((size_t)most + 1, sizeof *l);
    *n = 0;
    for (int i = 0; l != NULL && i < most; i++) {
        const tl_named x = tl_model_at(m, i);
        if (x.param)
            l[(*n)++] = layer_of(x.name);
    }
    if (l != NULL)
        qsort(l, (size_t)*n, sizeof *l, in_order);
    return l;
}

/* Whether a buffer belongs to a layer, as running statistics do: NAME.x beside a parameter NAME.y.
 * The state of an optimizer and the place of a loader do not. */
static bool of_a_layer(const char *name, const layer *l, int n)
{
    const layer own = layer_of(name);
    return own.n > 0 && bsearch(&own, l, (size_t)n, sizeof own, in_order) != NULL;
}

/* The model's parameters of that part and the float buffers of their layers, as n entries of a
 * file. NULL, with an error: no memory, or no such part. */
static tl_st_entry *entries(tl_model *m, tl_part part, int *n)
{
    const int most = tl_model_count(m);
    int n_layers;
    tl_st_entry *e = tl_calloc((size_t)most + 1, sizeof *e);
    layer *l = layers(m, most, &n_layers);
    *n = 0;
    if (e == NULL || l == NULL) {
        tl_fail(tl_error_record(m), TL_ENOMEM, "no memory for %d entries of a file", most);
        tl_free_raw(e);
        tl_free_raw(l);
        return NULL;
    }
    for (int i = 0; i < most; i++) {
        const tl_named x = tl_model_at(m, i);
        if ((x.param || (tl_dtype_is_float(x.array.dtype) && of_a_layer(x.name, l, n_layers))) &&
            (part.only == NULL || tl_name_fits(part.only, x.name)))
            e[(*n)++] = (tl_st_entry){x.name, x.array};
    }
    tl_free_raw(l);
    if (*n > 0 || part.only == NULL)
        return e;
    tl_fail(tl_error_record(m), TL_ENAME, "no parameter of %d has a name like '%.100s'", most,
            part.only);
    tl_free_raw(e);
    return NULL;
}

static tl_status save(tl_model *m, const char *path, tl_part part)
{
    tl_err *err = tl_error_record(m);
    int n;
    TL_TRY(tl_need(err, "tl_save", "path", path != NULL, 1));
    tl_st_entry *e = entries(m, part, &n);
    if (e == NULL)
        return err->status;
    tl_status s = n == 0 ? tl_fail(err, TL_EUSAGE,
                                   "tl_save: the model has no parameter yet; the first forward "
                                   "pass makes them, so save after one")
                         : tl_st_write(path, e, n, &(tl_st_meta){TL_ST_SEAL, ""}, 1, err);
    tl_free_raw(e);
    return s;
}

tl_status tl_save_with(tl_model *m, const char *path, tl_part part)
{
    TL_TRY(tl_error_begin(m));
    return tl_told_by("tl_save", save(m, path, part), m);
}

/* ---- loading ---- */

/* Whether x is the count of batches that PyTorch keeps for a BatchNorm. With a momentum, nothing is
 * computed from it. */
static bool counts_batches(const tl_st_entry *x, const tl_st_entry *e, int n)
{
    static const char counter[] = ".num_batches_tracked", statistics[] = ".running_mean";
    size_t length = strlen(x->name), own = length - (sizeof counter - 1);
    if (length < sizeof counter || strcmp(x->name + own, counter) != 0)
        return false;
    for (int i = 0; i < n; i++)
        if (strncmp(e[i].name, x->name, own) == 0 && strcmp(e[i].name + own, statistics) == 0)
            return true;
    return false;
}

/* Checks that every entry has its tensor in the file and that the file has no other. */
static tl_status check(const tl_st_file *f, const tl_st_entry *e, int n, const tl_source *file)
{
    TL_TRY(tl_source_early(file, f, n == 0));
    for (int i = 0; i < n; i++) {
        int k = tl_st_find(f, e[i].name);
        if (k < 0)
            return tl_file_fail(file, TL_ENAME, "has no tensor '%.100s', which the model has",
                                e[i].name);
        const tl_st_entry x = tl_st_at(f, k);
        TL_TRY(tl_source_alike(file, &x, &e[i].array));
    }
    for (int k = 0; tl_st_count(f) > n && k < tl_st_count(f); k++) {
        const tl_st_entry x = tl_st_at(f, k);
        if (tl_names_find(e, n, sizeof *e, x.name) == NULL && !counts_batches(&x, e, n))
            return tl_file_fail(file, TL_ENAME,
                                "has %d tensors, the model %d of them; '%.100s' is another%s",
                                tl_st_count(f), n, x.name,
                                tl_st_meta_get(f, "tally.seed") == NULL
                                    ? ""
                                    : ": it is a checkpoint, which tl_checkpoint_load reads");
    }
    return TL_OK;
}

static tl_status load(tl_model *m, const char *path, tl_part part)
{
    const tl_source file = {path, tl_error_record(m)};
    tl_st_file *f;
    TL_TRY(tl_st_open(&f, path, file.err));
    int n;
    tl_st_entry *e = entries(m, part, &n);
    tl_status s = e == NULL ? file.err->status : check(f, e, n, &file);
    for (int i = 0; i < n && s == TL_OK; i++) {
        const tl_array a = tl_st_at(f, tl_st_find(f, e[i].name)).array;
        s = tl_write(m, tl_model_find(m, e[i].name), a.data,
                     (size_t)tl_array_count(&a) * tl_dtype_size(a.dtype));
    }
    tl_free_raw(e);
    tl_st_close(f);
    return s;
}

tl_status tl_load_with(tl_model *m, const char *path, tl_part part)
{
    TL_TRY(tl_error_begin(m));
    return tl_told_by("tl_load", load(m, path, part), m);
}

/* ---- parameters ---- */

int64_t tl_model_parameters(tl_model *m)
{
    int64_t n = 0;
    for (int i = 0; i < tl_model_count(m); i++) {
        const tl_named x = tl_model_at(m, i);
        n += x.param ? tl_array_count(&x.array) : 0;
    }
    return n;
}

tl_status tl_model_sha256(tl_model *m, char hex[65])
{
    tl_err *err = tl_error_record(m);
    tl_sha256_ctx h;
    TL_TRY(tl_error_begin(m));
    TL_TRY(TL_NEED(err, hex));
    hex[0] = '\0';
    TL_TRY(tl_sha256_begin(&h, err));
    for (int i = 0; i < tl_model_count(m); i++) {
        const tl_named x = tl_model_at(m, i);
        if (!x.param)
            continue;
        tl_hash_string(&h, x.name);
        tl_hash_array(&h, &x.array);
    }
    return tl_sha256_finish_hex(&h, hex, err);
}
