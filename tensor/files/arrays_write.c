/* arrays_write.c: writes .npy, and .npz as numpy.savez does, with stored members. Equal arrays give
 * equal files. Sizes and places in an archive are in Zip64's form, however small they are. */
#include "tensor/files/arrays_read.h"

#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "tensor/convert.h"
#include "tensor/files/bytes.h"
#include "tensor/files/file.h"
#include "tensor/memory.h"
#include "tensor/operands.h"

/* An array being written. */
typedef struct {
    const char *name;
    tl_array array;
    char header[256]; /* of .npy */
    size_t n_header;
    uint64_t size; /* bytes of header and elements */
    uint64_t at;   /* where its entry begins in the archive */
    uint32_t crc;  /* of header and elements */
} member;

static tl_status feed_crc(void *ctx, const void *bytes, size_t n)
{
    member *m = ctx;
    m->crc = (uint32_t)crc32_z(m->crc, bytes, n);
    return TL_OK;
}

/* Hands the elements to fn, bf16 as f32. */
static tl_status elements(const tl_array *a, tl_bytes_fn *fn, void *ctx)
{
    float some[1024];
    const int64_t n = tl_array_count(a);
    if (a->dtype != TL_BF16)
        return tl_array_bytes(a, fn, ctx);
    const tl_operand wide = tl_operand_of(a, TL_F32);
    for (int64_t i = 0, k; i < n; i += k) {
        k = n - i < 1024 ? n - i : 1024;
        const tl_array part = tl_array_make(TL_F32, &TL_DIMS(k), some);
        tl_operand_move(&wide, i, k, some, false);
        TL_TRY(tl_array_bytes(&part, fn, ctx));
    }
    return TL_OK;
}

/* Makes the header, of version 1: magic, length, a Python dict, then blanks and a newline up to a
 * multiple of 64. */
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
    TL_TRY(tl_writer_block(w, m->header, m->n_header));
    return elements(&m->array, tl_writer_block, w);
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

/* Writes the entry before a member (magic 0x04034b50) or the one in the directory (0x02014b50). */
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
        put(&r, 4, (uint64_t)0100644 << 16); /* Unix permissions */
        put(&r, 4, UINT32_MAX);
    }
    TL_TRY(tl_writer_block(w, r.b, r.n));
    TL_TRY(tl_writer_block(w, m->name, length - 4));
    TL_TRY(tl_writer_block(w, ".npy", 4));
    r.n = 0;
    put(&r, 2, 1); /* Zip64 */
    put(&r, 2, directory ? 24 : 16);
    put(&r, 8, m->size);
    put(&r, 8, m->size);
    if (directory)
        put(&r, 8, m->at);
    return tl_writer_block(w, r.b, r.n);
}

enum { LOCAL = 30 + 4 + 20, CENTRAL = 46 + 4 + 28 }; /* bytes of an entry without the name */

static tl_status write_npz(tl_writer *w, member *m, int n)
{
    uint64_t at = 0, length = 0;
    for (int i = 0; i < n; i++) {
        m[i].at = at;
        feed_crc(&m[i], m[i].header, m[i].n_header);
        TL_TRY(elements(&m[i].array, feed_crc, &m[i]));
        TL_TRY(write_entry(w, &m[i], false));
        TL_TRY(write_npy(w, &m[i]));
        at += LOCAL + strlen(m[i].name) + m[i].size;
        length += CENTRAL + strlen(m[i].name);
    }
    for (int i = 0; i < n; i++)
        TL_TRY(write_entry(w, &m[i], true));
    record r = {.n = 0};
    put(&r, 4, 0x06064b50); /* the end record of Zip64 */
    put(&r, 8, 44);
    put(&r, 4, 45 | 45 << 16);
    put(&r, 8, 0); /* of one disk */
    put(&r, 8, (uint64_t)n);
    put(&r, 8, (uint64_t)n);
    put(&r, 8, length);
    put(&r, 8, at);
    put(&r, 4, 0x07064b50); /* its place */
    put(&r, 4, 0);
    put(&r, 8, at + length);
    put(&r, 4, 1);
    put(&r, 4, 0x06054b50); /* the end record from before Zip64 */
    put(&r, 4, 0);
    put(&r, 4, UINT32_MAX);
    put(&r, 8, UINT64_MAX);
    put(&r, 2, 0);
    return tl_writer_block(w, r.b, r.n);
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
        size_t length = name == NULL ? 0 : strlen(name);
        if (names != NULL &&
            (length == 0 || length > 60000 || tl_utf8_prefix(name, length) < length))
            return tl_fail(err, TL_ENAME,
                           "%.200s: array %d needs a name of 1 to 60000 bytes of UTF-8", path, i);
    }
    return TL_OK;
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
    TL_TRY(names == NULL ? TL_OK
                         : tl_arrays_check_twice(path, names, sizeof *names, n, TL_ENAME, err));
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
        s = tl_writer_commit(w, err); /* reports the first failure of the writes, too */
    }
    tl_free_raw(m);
    return s;
}
