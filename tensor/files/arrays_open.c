/* arrays_open.c: opens files of arrays of any format, and reads IDX. .npy and .npz are in
 * arrays_npy.c, CSV in arrays_csv.c. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tensor/files/arrays_read.h"
#include "tensor/files/bytes.h"
#include "tensor/files/file.h"
#include "tensor/operands.h"
#include "tensor/storage.h"
#include "tensor/threads.h"

/* IDX: 0 0 TYPE NDIM, sizes of 4 bytes, elements; highest byte first. */
static tl_status read_idx(tl_arrays *f, const unsigned char *b, size_t n)
{
    static const struct {
        int type;
        char kind;
        int size;
    } types[] = {{8, 'u', 1}, {9, 'i', 1}, {11, 'i', 2}, {12, 'i', 4}, {13, 'f', 4}, {14, 'f', 8}};
    tl_arrays_raw r = {.big = true, .shape.ndim = n < 4 ? 0 : b[3]};
    for (size_t i = 0; n >= 4 && i < sizeof types / sizeof *types; i++)
        if (types[i].type == b[2])
            r.kind = types[i].kind, r.size = types[i].size;
    if (r.kind == 0)
        return tl_arrays_bad(f,
                             "no IDX file: byte 2, the type, is %d; 8, 9, 11, 12, 13, 14 are known",
                             n < 3 ? -1 : b[2]);
    size_t header = 4 + 4 * (size_t)r.shape.ndim;
    if (r.shape.ndim > TL_MAX_DIMS || header > n)
        return tl_arrays_bad(
            f, "byte 3 says %d dims; at most %d are possible, and the file has %zu bytes",
            r.shape.ndim, (int)TL_MAX_DIMS, n);
    for (int i = 0; i < r.shape.ndim; i++)
        r.shape.dim[i] = (int64_t)tl_bytes_get(b + 4 + 4 * i, 4, true);
    r.data = b + header;
    r.bytes = n - header;
    return tl_arrays_add_raw(f, "", 0, &r);
}

static tl_status map(tl_arrays *f, const tl_reader *r)
{
    void *p = MAP_FAILED;
    f->size = (size_t)r->size;
    if (f->size > 0)
        p = mmap(NULL, f->size, PROT_READ | PROT_WRITE, MAP_PRIVATE, r->fd, 0);
    if (p == MAP_FAILED)
        return tl_fail(f->err, TL_EIO, "%.200s: %zu bytes cannot be mapped: %s", f->path, f->size,
                       f->size == 0 ? "there are none" : strerror(errno));
    f->bytes = p;
    f->mapped = true;
    return TL_OK;
}

/* Reads f->bytes in any of the formats. Text needs the NUL that follows bytes that were read;
 * mapped bytes have none. */
static tl_status parse(tl_arrays *f)
{
    const unsigned char *b = (const unsigned char *)f->bytes;
    size_t n = f->size;
    if (n >= 2 && b[0] == 0 && b[1] == 0)
        return read_idx(f, b, n);
    if (n >= 1 && b[0] == 0x93)
        return tl_npy_read(f, "", 0, b, n);
    if (n >= 4 && (memcmp(b, "PK\3\4", 4) == 0 || memcmp(b, "PK\5\6", 4) == 0))
        return tl_npz_read(f, b, n);
    if (n >= 2 && b[0] == 0x1f && b[1] == 0x8b)
        return tl_arrays_bad(f, "is compressed by gzip; gunzip unpacks it");
    return f->mapped ? tl_arrays_bad(f, "is text, or unknown; only .npy, .npz and IDX are mapped")
                     : tl_csv_read(f, (const char *)b, n);
}

static tl_status read_all(tl_arrays *f, tl_reader *r, bool mapped)
{
    TL_TRY(mapped ? map(f, r) : tl_reader_all(r, SIZE_MAX - 1, &f->bytes, &f->size, f->err));
    tl_textenv saved = tl_textenv_enter();
    tl_status s = parse(f);
    tl_textenv_leave(saved);
    TL_TRY(s);
    return f->n < 2 ? TL_OK
                    : tl_arrays_check_twice(f->path, f->e, sizeof *f->e, f->n, TL_EFORMAT, f->err);
}

static tl_status open_reader(tl_arrays **out, tl_reader *r, tl_err *err, tl_arrays_options o)
{
    if (o.as != TL_DTYPE_DEFAULT && !tl_dtype_is_float(o.as))
        return tl_fail(err, TL_EDTYPE, "%.200s: as %s? A float is needed", r->path,
                       tl_dtype_name(o.as));
    tl_arrays *f = tl_calloc(1, sizeof *f);
    if (f == NULL)
        return tl_fail(err, TL_ENOMEM, "%.200s: no memory to open it", r->path);
    *f = (tl_arrays){.as = o.as, .most = o.most, .path = r->path, .err = err};
    tl_status s = read_all(f, r, o.map);
    f->path = NULL;
    f->err = NULL;
    if (s == TL_OK)
        *out = f;
    else
        tl_arrays_close(f);
    return s;
}

tl_status tl_arrays_open_with(tl_arrays **out, const char *path, tl_err *err, tl_arrays_options o)
{
    tl_reader r;
    TL_TRY(TL_NEED(err, out));
    *out = NULL;
    TL_TRY(TL_NEED(err, path));
    TL_TRY(tl_reader_open(&r, path, err));
    tl_status s = open_reader(out, &r, err, o);
    tl_reader_close(&r);
    return s;
}

tl_status tl_arrays_open_memory(tl_arrays **out, const void *bytes, size_t n, const char *name,
                                tl_err *err, tl_arrays_options o)
{
    tl_reader r = tl_reader_of_memory(bytes, n, name);
    TL_TRY(TL_NEED(err, out));
    *out = NULL;
    TL_TRY(TL_NEED_N(err, bytes, n > 0));
    o.map = false; /* there is no file */
    return open_reader(out, &r, err, o);
}
