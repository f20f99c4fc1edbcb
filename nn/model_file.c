/* model_file.c: a model's parameters, and its layers' buffers, to and from safetensors; how many
 * there are, and their hash. */
#include <fnmatch.h>
#include <string.h>

#include "autograd/author.h"
#include "nn/nn.h"
#include "tensor/files/hash.h"
#include "tensor/files/safetensors.h"
#include "tensor/memory.h"

/* A buffer of floats NAME.x beside a parameter NAME.y is part of the layer NAME, as its running
 * statistics are; an optimizer's state, or a loader's place, is not. */
static bool of_a_layer(tl_model *m, const char *name)
{
    const char *dot = strrchr(name, '.');
    size_t n = dot == NULL ? 0 : (size_t)(dot - name) + 1;
    for (int i = 0; n > 0 && i < tl_model_count(m); i++) {
        const tl_named x = tl_model_at(m, i);
        if (x.param && strncmp(x.name, name, n) == 0 && strchr(x.name + n, '.') == NULL)
            return true;
    }
    return false;
}

/* That part of the model's parameters, and of what belongs to their layers, as entries; *n of them;
 * NULL, with an error, when out of memory or if there is no such part. */
static tl_st_entry *entries(tl_model *m, tl_part part, int *n)
{
    const int most = tl_model_count(m);
    tl_st_entry *e = tl_calloc((size_t)most + 1, sizeof *e);
    *n = 0;
    for (int i = 0; e != NULL && i < most; i++) {
        const tl_named x = tl_model_at(m, i);
        if ((x.param || (tl_dtype_is_float(x.array.dtype) && of_a_layer(m, x.name))) &&
            (part.only == NULL || fnmatch(part.only, x.name, 0) == 0))
            e[(*n)++] = (tl_st_entry){x.name, x.array};
    }
    if (e == NULL)
        tl_fail(tl_error_record(m), TL_ENOMEM, "no memory for %d entries of a file", most);
    if (e == NULL || *n > 0 || part.only == NULL)
        return e;
    tl_fail(tl_error_record(m), TL_ENAME, "no parameter of %d has a name like '%.100s'", most,
            part.only);
    tl_free_raw(e);
    return NULL;
}

tl_status tl_save_with(tl_model *m, const char *path, tl_part part)
{
    TL_TRY(tl_error_begin(m));
    tl_err *err = tl_error_record(m);
    int n;
    TL_TRY(TL_NEED(err, path));
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

/* PyTorch counts the batches that a BatchNorm has seen; nothing is computed from that where there
 * is a momentum. */
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

/* Every entry has its tensor in the file and the file has no other. */
static tl_status check(const tl_st_file *f, const tl_st_entry *e, int n, const char *path,
                       tl_err *err)
{
    if (n == 0 && tl_st_count(f) > 0)
        return tl_fail(err, TL_ENAME,
                       "%.200s: has %d tensors, the model no parameter yet; the first forward pass "
                       "makes them, so load after one",
                       path, tl_st_count(f));
    for (int i = 0; i < n; i++) {
        int k = tl_st_find(f, e[i].name);
        if (k < 0)
            return tl_fail(err, TL_ENAME, "%.200s: has no tensor '%.100s', which the model has",
                           path, e[i].name);
        tl_array a = tl_st_at(f, k).array;
        char have[TL_SHAPE_TEXT], want[TL_SHAPE_TEXT];
        if (!tl_array_same_shape(&a, &e[i].array) || a.dtype != e[i].array.dtype)
            return tl_fail(err, TL_ESHAPE, "%.200s: '%.100s' is %s %s there, %s %s in the model",
                           path, e[i].name, tl_array_shape_text(have, &a), tl_dtype_name(a.dtype),
                           tl_array_shape_text(want, &e[i].array), tl_dtype_name(e[i].array.dtype));
    }
    for (int k = 0, i; tl_st_count(f) > n && k < tl_st_count(f); k++) {
        const tl_st_entry x = tl_st_at(f, k);
        for (i = 0; i < n && strcmp(e[i].name, x.name) != 0;)
            i++;
        if (i == n && !counts_batches(&x, e, n))
            return tl_fail(err, TL_ENAME,
                           "%.200s: has %d tensors, the model %d of them; '%.100s' is another",
                           path, tl_st_count(f), n, x.name);
    }
    return TL_OK;
}

tl_status tl_load_with(tl_model *m, const char *path, tl_part part)
{
    TL_TRY(tl_error_begin(m));
    tl_err *err = tl_error_record(m);
    tl_st_file *f;
    TL_TRY(tl_st_open(&f, path, err));
    int n;
    tl_st_entry *e = entries(m, part, &n);
    tl_status s = e == NULL ? err->status : check(f, e, n, path, err);
    for (int i = 0; i < n && s == TL_OK; i++) {
        const tl_array a = tl_st_at(f, tl_st_find(f, e[i].name)).array;
        s = tl_write(m, tl_model_find(m, e[i].name), a.data,
                     (size_t)tl_array_count(&a) * tl_dtype_size(a.dtype));
    }
    tl_free_raw(e);
    tl_st_close(f);
    return s;
}

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
