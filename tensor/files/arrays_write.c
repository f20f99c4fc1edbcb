/* arrays_write.c: .npy, and .npz as numpy.savez writes it: stored members. Equal arrays give equal
 * files. Sizes and places in an archive are those of Zip64, however small it is: one way for all.
 */
#include "tensor/files/arrays_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "tensor/files/bytes.h"
#include "tensor/files/file.h"
#include "tensor/memory.h"
#include "tensor/operands.h"

/* An array on its way out: its header, and the CRC of header and elements. */
typedef struct {
    const char *name;
    tl_array array;
    char header[256];
    size_t n_header;
    uint64_t size, at; /* with the header; of its entry in the archive */
    uint32_t crc;
} member;

static tl_status feed(void *ctx, const void *bytes, size_t n)
{
    member *m = ctx;
    m->crc = (uint32_t)crc32_z(m->crc, bytes, n);
    return TL_OK;
}

static tl_status append(void *ctx, const void *bytes, size_t n)
{
    return tl_writer_append(ctx, bytes, n, NULL);
}

/* The elements, bf16 as f32. */
static tl_status elements(const tl_array *a, tl_bytes_fn *fn, void *ctx)
{
    float some[1024];
    const int64_t n = tl_array_count(a);
    if (a->dtype != TL_BF16)
        return tl_array_bytes(a, fn, ctx);
    for (int64_t i = 0, k; i < n; i += k) {
        for (k = 0; k < 1024 && i + k < n; k++)
            some[k] = (float)tl_array_get(a, i + k);
        tl_array part = tl_array_make(TL_F32, &TL_DIMS(k), some);
        TL_TRY(tl_array_bytes(&part, fn, ctx));
    }
    return TL_OK;
}

/* Version 1: magic, length, a Python dict, blanks and a line's end up to a multiple of 64. */
static void describe(member *m)
{
    static const char *const descr[TL_DTYPE_COUNT] = {
        [TL_F64] = "<f8",  [TL_F32] = "<f4", [TL_F16] = "<f2",
        [TL_BF16] = "<f4", [TL_I64] = "<i8", [TL_BOOL] = "|b1"};
    const tl_array *a = &m->array;
    char *h = m->header + 10;
    int n = snprintf(h, 100, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr[a->dtype]);
    for (int i = 0; i < a->ndim; i++)
        n += snprintf(h + n, 24, "%lld%s", (long long)a->dim[i],
                      i + 1 < a->ndim ? ", "
                      : a->ndim == 1  ? ","
                                      : "");
    n += snprintf(h + n, 8, "), }");
    m->n_header = (10 + (size_t)n + 1 + 63) / 64 * 64;
    memset(h + n, ' ', m->n_header - 10 - (size_t)n);
    m->header[m->n_header - 1] = '\n';
    memcpy(m->header, "\x93NUMPY\1", 8); /* the version is 1, 0 */
    m->header[8] = (char)((m->n_header - 10) & 255);
    m->header[9] = (char)((m->n_header - 10) >> 8);
    m->size = m->n_header + (uint64_t)tl_array_count(a) *
                                (a->dtype == TL_BF16 ? sizeof(float) : tl_dtype_size(a->dtype));
}

static tl_status write_npy(tl_writer *w, const member *m)
{
    TL_TRY(append(w, m->header, m->n_header));
    return elements(&m->array, append, w);
}

/* ---- the archive ---- */

typedef struct {
    unsigned char b[128];
    size_t n;
} record;

static void put(record *r, int size, uint64_t x)
{
    for (int i = 0; i < size; i++, x >>= 8)
        r->b[r->n++] = (unsigned char)x;
}

/* What the entry before a member (magic 0x04034b50) and the one in the directory (0x02014b50) have
 * in common, and where they differ. */
static tl_status write_entry(tl_writer *w, const member *m, bool directory)
{
    record r = {.n = 0};
    const size_t length = strlen(m->name) + 4;
    put(&r, 4, directory ? 0x02014b50 : 0x04034b50);
    if (directory)
        put(&r, 2, 45);   /* made by version 4.5 */
    put(&r, 2, 45);       /* which a reader needs */
    put(&r, 2, 0x800);    /* the name is UTF-8 */
    put(&r, 2, 0);        /* stored */
    put(&r, 4, 0x210000); /* the first of January 1980 */
    put(&r, 4, m->crc);
    put(&r, 8, UINT64_MAX); /* both sizes stand behind the name */
    put(&r, 2, length);
    put(&r, 2, directory ? 28 : 20);
    if (directory) {
        put(&r, 2 + 2 + 2, 0);               /* no comment, first disk, binary */
        put(&r, 4, (uint64_t)0100644 << 16); /* who may read it, by Unix */
        put(&r, 4, UINT32_MAX);
    }
    TL_TRY(append(w, r.b, r.n));
    TL_TRY(append(w, m->name, length - 4));
    TL_TRY(append(w, ".npy", 4));
    r.n = 0;
    put(&r, 2, 1); /* Zip64 */
    put(&r, 2, directory ? 24 : 16);
    put(&r, 8, m->size);
    put(&r, 8, m->size);
    if (directory)
        put(&r, 8, m->at);
    return append(w, r.b, r.n);
}

enum { LOCAL = 30 + 4 + 20, CENTRAL = 46 + 4 + 28 }; /* bytes of an entry but for the name */

static tl_status write_npz(tl_writer *w, member *m, int n)
{
    uint64_t at = 0, length = 0;
    for (int i = 0; i < n; i++) {
        m[i].at = at;
        feed(&m[i], m[i].header, m[i].n_header);
        TL_TRY(elements(&m[i].array, feed, &m[i]));
        TL_TRY(write_entry(w, &m[i], false));
        TL_TRY(write_npy(w, &m[i]));
        at += LOCAL + strlen(m[i].name) + m[i].size;
        length += CENTRAL + strlen(m[i].name);
    }
    for (int i = 0; i < n; i++)
        TL_TRY(write_entry(w, &m[i], true));
    record r = {.n = 0};
    put(&r, 4, 0x06064b50); /* the end, of Zip64 */
    put(&r, 8, 44);
    put(&r, 4, 45 | 45 << 16);
    put(&r, 8, 0); /* of one disk */
    put(&r, 8, (uint64_t)n);
    put(&r, 8, (uint64_t)n);
    put(&r, 8, length);
    put(&r, 8, at);
    put(&r, 4, 0x07064b50); /* where that is */
    put(&r, 4, 0);
    put(&r, 8, at + length);
    put(&r, 4, 1);
    put(&r, 4, 0x06054b50); /* and the end as it was before Zip64 */
    put(&r, 4, 0);
    put(&r, 4, UINT32_MAX);
    put(&r, 8, UINT64_MAX);
    put(&r, 2, 0);
    return append(w, r.b, r.n);
}

/* ---- saving ---- */

static tl_status check(const char *path, const char *const *names, const tl_array *a, int n,
                       tl_err *err)
{
    for (int i = 0; i < n; i++) {
        const char *name = names == NULL ? "" : names[i];
        tl_shape s = tl_array_shape(&a[i]);
        tl_err why = {.status = TL_OK};
        if (tl_shape_check(&s, a[i].dtype, &why) != TL_OK)
            return tl_fail(err, why.status, "%.200s: array %d: %s", path, i, why.message);
        if (a[i].data == NULL && tl_shape_count(&s) > 0)
            return tl_fail(err, TL_EUSAGE, "%.200s: array %d has %lld elements, but no data", path,
                           i, (long long)tl_shape_count(&s));
        size_t length = name == NULL ? 0 : strlen(name), step = 1;
        for (size_t at = 0; at < length && step > 0; at += step)
            step = tl_utf8_length(name + at, length - at);
        if (names != NULL && (length == 0 || length > 60000 || step == 0))
            return tl_fail(err, TL_ENAME,
                           "%.200s: array %d needs a name of 1 to 60000 bytes of UTF-8", path, i);
    }
    return TL_OK;
}

static int by_name(const void *a, const void *b)
{
    const char *const *x = *(const char *const *const *)a, *const *y = *(
                                                               const char *const *const *)b;
    const int order = strcmp(*x, *y);
    return order != 0 ? order : (x > y) - (x < y);
}

/* By their places in order of name. */
tl_status tl_arrays_check_twice(const char *path, const char *const *names, int n, tl_status as,
                                tl_err *err)
{
    char who[TL_QUOTED];
    const char *const **at = tl_calloc((size_t)n, sizeof *at);
    tl_status s = TL_OK;
    if (at == NULL)
        return tl_fail(err, TL_ENOMEM, "%.200s: no memory for %d names", path, n);
    for (int i = 0; i < n; i++)
        at[i] = names + i;
    qsort(at, (size_t)n, sizeof *at, by_name);
    for (int i = 1; i < n && s == TL_OK; i++)
        if (strcmp(*at[i - 1], *at[i]) == 0)
            s = tl_fail(err, as, "%.200s: arrays %d and %d are both named %s", path,
                        (int)(at[i - 1] - names), (int)(at[i] - names),
                        tl_arrays_quoted(who, *at[i], strlen(*at[i]), "nothing"));
    tl_free_raw(at);
    return s;
}

tl_status tl_arrays_save(const char *path, const char *const *names, const tl_array *arrays, int n,
                         tl_err *err)
{
    tl_writer *w;
    TL_TRY(TL_NEED(err, path));
    TL_TRY(TL_NEED_N(err, arrays, n));
    if (n < 1 || (names == NULL && n != 1))
        return tl_fail(err, TL_EUSAGE, "%.200s: %d arrays %s names; .npz has one or more, .npy one",
                       path, n, names == NULL ? "without" : "with");
    TL_TRY(check(path, names, arrays, n, err));
    TL_TRY(names == NULL ? TL_OK : tl_arrays_check_twice(path, names, n, TL_ENAME, err));
    member *m = tl_calloc((size_t)n, sizeof *m);
    if (m == NULL)
        return tl_fail(err, TL_ENOMEM, "%.200s: no memory for %d headers", path, n);
    for (int i = 0; i < n; i++) {
        m[i] = (member){.name = names == NULL ? "" : names[i], .array = arrays[i]};
        describe(&m[i]);
    }
    tl_status s = tl_writer_begin(&w, path, err);
    if (s == TL_OK) {
        (void)(names == NULL ? write_npy(w, m) : write_npz(w, m, n));
        s = tl_writer_commit(w, err); /* reports the first failure of the appends, too */
    }
    tl_free_raw(m);
    return s;
}
