/* safetensors.c: reading - the header is checked, then each tensor's bytes go to a place of their
 * own. The file is read rather than mapped: if another process cuts it short, that is an error here
 * and not a signal. Writing is in safetensors_write.c. */

#include <string.h>

#include "tensor/storage.h"
#include "tensor/files/bytes.h"
#include "tensor/files/hash.h"
#include "tensor/files/safetensors_header.h"
#include "tensor/operands.h"

enum { SLOT = 16 }; /* tensors in memory start at multiples of this */

struct tl_st_file {
    tl_st_header header;
    void *data;
};

/* A file being read, and its hash if it is sealed. */
typedef struct {
    tl_reader r;
    char claim[TL_ST_DIGITS + 1]; /* the digest that the seal states; "": there is none */
    tl_sha256_ctx hash;
} source;

static tl_status source_read(source *src, void *dst, size_t n, tl_err *err)
{
    TL_TRY(tl_reader_read(&src->r, dst, n, err));
    if (*src->claim != '\0')
        tl_sha256_feed(&src->hash, dst, n);
    return TL_OK;
}

static const char *note(const tl_st_header *h, const char *key)
{
    const tl_st_meta *m = tl_names_find(h->meta, h->n_meta, sizeof *m, key);
    return m == NULL ? NULL : m->value;
}

/* Notes the digest and begins the hash with the length and the n bytes of header, in which it sets
 * the digits to zeros. */
static tl_status seal_begin(source *src, const unsigned char length[8], char *header, size_t n,
                            char *digits, tl_err *err)
{
    if (strspn(digits, "0123456789abcdef") != TL_ST_DIGITS || digits[TL_ST_DIGITS] != '"')
        return tl_fail(err, TL_EFORMAT, "%.200s: its \"" TL_ST_SEAL "\" is not a SHA-256",
                       src->r.path);
    memcpy(src->claim, digits, TL_ST_DIGITS);
    memset(digits, '0', TL_ST_DIGITS);
    TL_TRY(tl_sha256_begin(&src->hash, err));
    tl_sha256_feed(&src->hash, length, 8);
    tl_sha256_feed(&src->hash, header, n);
    return TL_OK;
}

static tl_status seal_check(source *src, tl_err *err)
{
    char hex[TL_SHA256_HEX];
    if (*src->claim == '\0')
        return TL_OK;
    TL_TRY(tl_sha256_finish_hex(&src->hash, hex, err));
    if (strcmp(hex, src->claim) == 0)
        return TL_OK;
    return tl_fail(
        err, TL_EFORMAT,
        "%.200s: is damaged, or was changed: its contents have SHA-256 %s, but its \"" TL_ST_SEAL
        "\" says %s",
        src->r.path, hex, src->claim);
}

static tl_status header_read(tl_st_header *h, source *src, tl_err *err)
{
    unsigned char length[8];
    if (src->r.size < 8)
        return tl_fail(err, TL_EFORMAT, "%.200s: has %llu bytes; the header's length alone takes 8",
                       src->r.path, (unsigned long long)src->r.size);
    TL_TRY(source_read(src, length, 8, err));
    uint64_t n = tl_bytes_get64(length), rest = (uint64_t)src->r.size - 8;
    if (n > TL_ST_HEADER_MAX && memcmp(length, "PK\3\4", 4) == 0)
        return tl_fail(
            err, TL_EFORMAT,
            "%.200s: is a zip archive, as torch.save and numpy.savez write; a state_dict "
            "becomes a safetensors file by safetensors.torch.save_file",
            src->r.path);
    if (n > TL_ST_HEADER_MAX)
        return tl_fail(err, TL_EFORMAT,
                       "%.200s: is not a safetensors file, or damaged: it claims a header of %llu "
                       "bytes; at most %d are accepted",
                       src->r.path, (unsigned long long)n, (int)TL_ST_HEADER_MAX);
    if (n > tl_st_header_limit(0))
        return tl_fail(err, TL_EFORMAT,
                       "%.200s: claims a header of %llu bytes; at most %zu are accepted, unless "
                       "tl_st_header_limit says otherwise",
                       src->r.path, (unsigned long long)n, tl_st_header_limit(0));
    if (n > rest)
        return tl_fail(err, TL_EFORMAT,
                       "%.200s: is cut off, or no safetensors file: it claims a header of %llu "
                       "bytes, but only %llu follow",
                       src->r.path, (unsigned long long)n, (unsigned long long)rest);
    char *text = tl_calloc((size_t)n, 1);
    if (text == NULL)
        return tl_fail(err, TL_ENOMEM, "%.200s: no memory for a header of %llu bytes", src->r.path,
                       (unsigned long long)n);
    tl_status s = source_read(src, text, (size_t)n, err);
    if (s == TL_OK)
        s = tl_st_header_parse(h, text, (size_t)n, rest - n, src->r.path, err);
    /* Values are decoded in place, so this one lies in `text` where it lies in h->text. */
    const char *seal = s == TL_OK ? note(h, TL_ST_SEAL) : NULL;
    if (seal != NULL)
        s = seal_begin(src, length, text, (size_t)n, text + (seal - h->text), err);
    tl_free_raw(text);
    return s;
}

static tl_status bools_check(const tl_st_tensor *t, const char *path, tl_err *err)
{
    const unsigned char *b = t->data;
    for (uint64_t i = 0; i < t->end - t->begin; i++)
        if (b[i] > 1)
            return tl_fail(err, TL_EFORMAT,
                           "%.200s: tensor \"%.100s\": element %llu is %d; a BOOL is 0 or 1", path,
                           t->name, (unsigned long long)i, b[i]);
    return TL_OK;
}

/* Reads the tensors' bytes in order of offset, which is the order of the file. */
static tl_status data_read(tl_st_file *f, source *src, tl_err *err)
{
    uint64_t total = 0;
    for (int i = 0; i < f->header.n; i++) {
        uint64_t n = f->header.tensors[i].end - f->header.tensors[i].begin;
        total += (n + SLOT - 1) / SLOT * SLOT; /* sums below 2^63 + 2^32: cannot wrap */
    }
    f->data = total <= SIZE_MAX / 2 ? tl_calloc((size_t)total, 1) : NULL;
    if (f->data == NULL)
        return tl_fail(err, TL_ENOMEM, "%.200s: no memory for %llu bytes of tensors", src->r.path,
                       (unsigned long long)total);
    unsigned char *p = f->data;
    for (int i = 0; i < f->header.n; i++) {
        tl_st_tensor *t = &f->header.tensors[i];
        size_t n = (size_t)(t->end - t->begin), size = tl_dtype_size(t->dtype);
        t->data = p;
        TL_TRY(source_read(src, p, n, err));
        tl_bytes_swap_host(p, n / size, size);
        if (t->dtype == TL_BOOL)
            TL_TRY(bools_check(t, src->r.path, err));
        p += (n + SLOT - 1) / SLOT * SLOT;
    }
    return TL_OK;
}

static tl_status source_open(tl_st_file **out, tl_reader r, tl_err *err)
{
    source src = {.r = r};
    tl_st_file *f = tl_calloc(1, sizeof *f);
    if (f == NULL)
        return tl_fail(err, TL_ENOMEM, "%.200s: no memory to open it", r.path);
    tl_status s = header_read(&f->header, &src, err);
    if (s == TL_OK)
        s = data_read(f, &src, err);
    if (s == TL_OK)
        s = seal_check(&src, err);
    if (s != TL_OK) {
        tl_sha256_drop(&src.hash);
        tl_st_close(f);
        return s;
    }
    tl_names_sort(f->header.tensors, f->header.n, sizeof *f->header.tensors);
    *out = f;
    return TL_OK;
}

tl_status tl_st_open(tl_st_file **out, const char *path, tl_err *err)
{
    tl_reader r;
    TL_TRY(TL_NEED(err, out));
    *out = NULL;
    TL_TRY(tl_reader_open(&r, path, err));
    tl_status s = source_open(out, r, err);
    tl_reader_close(&r);
    return s;
}

tl_status tl_st_open_memory(tl_st_file **out, const void *bytes, size_t n, const char *name,
                            tl_err *err)
{
    TL_TRY(TL_NEED(err, out));
    *out = NULL;
    TL_TRY(TL_NEED_N(err, bytes, n > 0));
    return source_open(out, tl_reader_of_memory(bytes, n, name), err);
}

void tl_st_close(tl_st_file *f)
{
    if (f == NULL)
        return;
    tl_st_header_free(&f->header);
    tl_free_raw(f->data);
    tl_free_raw(f);
}

int tl_st_count(const tl_st_file *f) { return f == NULL ? 0 : f->header.n; }

tl_st_entry tl_st_at(const tl_st_file *f, int i)
{
    if (i < 0 || i >= tl_st_count(f))
        return (tl_st_entry){0};
    const tl_st_tensor *t = &f->header.tensors[i];
    return (tl_st_entry){t->name, tl_array_make(t->dtype, &t->shape, t->data)};
}

int tl_st_find(const tl_st_file *f, const char *name)
{
    const tl_st_tensor *all = f == NULL ? NULL : f->header.tensors,
                       *t = tl_names_find(all, tl_st_count(f), sizeof *all, name);
    return t == NULL ? -1 : (int)(t - all);
}

tl_status tl_st_read(const tl_st_file *f, int i, const tl_array *dst, tl_err *err)
{
    tl_st_entry e = tl_st_at(f, i);
    TL_TRY(TL_NEED(err, f));
    TL_TRY(TL_NEED(err, dst));
    if (e.name == NULL)
        return tl_fail(err, TL_EINDEX, "tensor %d asked for; the file has %d", i, f->header.n);
    if (e.array.dtype != dst->dtype)
        return tl_fail(err, TL_EDTYPE, "tensor \"%.100s\" is %s in the file, but %s is expected",
                       e.name, tl_dtype_name(e.array.dtype), tl_dtype_name(dst->dtype));
    if (!tl_array_same_shape(&e.array, dst))
        return tl_fail(err, TL_ESHAPE,
                       "tensor \"%.100s\" has shape %s in the file, but %s is expected", e.name,
                       TL_TEXT(&e.array), TL_TEXT(dst));
    TL_TRY(TL_NEED_N(err, dst->data, tl_array_count(dst)));
    tl_array_copy(dst, &e.array);
    return TL_OK;
}

const char *tl_st_meta_get(const tl_st_file *f, const char *key)
{
    return f == NULL ? NULL : note(&f->header, key);
}

int tl_st_meta_count(const tl_st_file *f) { return f == NULL ? 0 : f->header.n_meta; }

tl_st_meta tl_st_meta_at(const tl_st_file *f, int i)
{
    return i < 0 || i >= tl_st_meta_count(f) ? (tl_st_meta){0} : f->header.meta[i];
}
