/* safetensors_header.c: reads the JSON of a safetensors file and trusts nothing in it.
 *
 * A header is flat: an object of entries with three known keys each, and one of strings. So this
 * file reads it from front to back, in time and memory that grow with its bytes. The tree of a
 * general reader takes 75 bytes for each byte of a hostile header, and such a reader cannot tell
 * lack of memory from bad syntax. Strings are decoded in place, in the header's own copy of the
 * text. */
#include "tensor/files/safetensors_header.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/storage.h"
#include "tensor/files/bytes.h"
#include "tensor/operands.h"

static _Atomic size_t limit = TL_ST_HEADER_LIMIT;

size_t tl_st_header_limit(size_t bytes)
{
    if (bytes == 0)
        return atomic_load(&limit);
    return atomic_exchange(&limit, bytes < TL_ST_HEADER_MAX ? bytes : TL_ST_HEADER_MAX);
}

/* ---- JSON, as far as a header has it ---- */

typedef struct {
    const char *path;
    char *begin, *at, *end;
    const char *tensor; /* the name of the tensor being read or checked, or NULL */
    tl_err *err;
} text;

static tl_status TL_PRINTF(2, 3) bad(const text *x, const char *fmt, ...)
{
    char why[TL_MESSAGE_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    if (x->tensor == NULL)
        return tl_fail(x->err, TL_EFORMAT, "%.200s: %s", x->path, why);
    return tl_fail(x->err, TL_EFORMAT, "%.200s: tensor \"%.100s\": %s", x->path, x->tensor, why);
}

static tl_status not_json(const text *x, const char *what)
{
    return tl_fail(x->err, TL_EFORMAT, "%.200s: the header is not valid JSON: %s (byte %zu of it)",
                   x->path, what, (size_t)(x->at - x->begin));
}

/* Skips spaces and returns the next character; '\0' at the end. */
static char peek(text *x)
{
    while (x->at < x->end && (*x->at == ' ' || *x->at == '\t' || *x->at == '\n' || *x->at == '\r'))
        x->at++;
    return x->at < x->end ? *x->at : '\0';
}

static bool take(text *x, char c)
{
    bool there = peek(x) == c;
    x->at += there;
    return there;
}

/* The code unit of "\uXXXX" at s; -1 if there is none. */
static int32_t code_unit(const char *s, const char *end)
{
    int32_t u = 0;
    if (end - s < 6 || s[0] != '\\' || s[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        char c = s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        u = 16 * u + digit;
    }
    return u;
}

/* Decodes the escape at x->at to *to and moves both on. The text never grows. */
static tl_status escape_parse(text *x, char **to)
{
    static const char name[] = "\"\\/bfnrt", byte[] = "\"\\/\b\f\n\r\t";
    const char *simple = x->end - x->at > 1 && x->at[1] != '\0' ? strchr(name, x->at[1]) : NULL;
    if (simple != NULL) {
        *(*to)++ = byte[simple - name];
        x->at += 2;
        return TL_OK;
    }
    int32_t u = code_unit(x->at, x->end), low = -1;
    if (u < 0)
        return not_json(x, "invalid escape");
    if (u == 0)
        return not_json(x, "\\u0000 is not allowed");
    if (u >= 0xd800 && u < 0xdc00)
        low = code_unit(x->at + 6, x->end);
    if (low >= 0xdc00 && low < 0xe000)
        u = 0x10000 + ((u - 0xd800) << 10 | (low - 0xdc00));
    if (u >= 0xd800 && u < 0xe000)
        return not_json(x, "half a surrogate pair");
    x->at += u >= 0x10000 ? 12 : 6;
    int more = u < 0x80 ? 0 : u < 0x800 ? 1 : u < 0x10000 ? 2 : 3;
    static const int lead[] = {0, 0xc0, 0xe0, 0xf0};
    *(*to)++ = (char)(lead[more] | u >> 6 * more);
    while (more-- > 0)
        *(*to)++ = (char)(0x80 | (u >> 6 * more & 0x3f));
    return TL_OK;
}

/* Decodes a string and ends it with a NUL, in place. */
static tl_status string_parse(text *x, char **out)
{
    if (!take(x, '"'))
        return not_json(x, "a string is expected");
    char *to = *out = x->at;
    while (x->at < x->end && *x->at != '"') {
        size_t n = tl_utf8_length(x->at, (size_t)(x->end - x->at));
        if (*x->at == '\\') {
            TL_TRY(escape_parse(x, &to));
            continue;
        }
        if (n == 0)
            return not_json(x, "invalid UTF-8");
        if ((unsigned char)*x->at < ' ')
            return not_json(x, "control character in a string");
        memmove(to, x->at, n);
        to += n;
        x->at += n;
    }
    if (x->at == x->end)
        return not_json(x, "a string without end");
    x->at++;
    *to = '\0';
    return TL_OK;
}

/* "KEY": */
static tl_status key_parse(text *x, char **key)
{
    TL_TRY(string_parse(x, key));
    return take(x, ':') ? TL_OK : not_json(x, "':' is expected");
}

/* Takes a ',', after which *more members or elements follow, or the end. */
static tl_status more_parse(text *x, char end, bool *more)
{
    *more = take(x, ',');
    return *more || take(x, end) ? TL_OK : not_json(x, "',' or an end is expected");
}

/* Element i of a tensor's list `what`: an integer >= 0. */
static tl_status number_parse(text *x, int64_t *out, int i, const char *what)
{
    bool minus = take(x, '-');
    const char *from = x->at;
    uint64_t v = 0;
    while (x->at < x->end && *x->at >= '0' && *x->at <= '9' && v <= INT64_MAX)
        v = v > INT64_MAX / 10 ? UINT64_MAX : 10 * v + (uint64_t)(*x->at++ - '0');
    char next = x->at < x->end ? *x->at : '\0';
    if (x->at == from || (*from == '0' && x->at - from > 1) || next == '.' || next == 'e' ||
        next == 'E')
        return bad(x, "\"%s\"[%d] is not an integer", what, i);
    if (v > INT64_MAX)
        return bad(x, "\"%s\"[%d] is too large", what, i);
    *out = (int64_t)v;
    if (minus && v > 0)
        return bad(x, "\"%s\"[%d] is -%lld, below 0", what, i, (long long)v);
    return TL_OK;
}

/* Reads a whole list of *n numbers, and keeps the first `room`. */
static tl_status list_parse(text *x, int64_t *v, int room, int *n, const char *what)
{
    int64_t surplus;
    if (!take(x, '['))
        return bad(x, "\"%s\" is missing or not a list", what);
    *n = 0;
    for (bool more = !take(x, ']'); more; ++*n) {
        TL_TRY(number_parse(x, *n < room ? v + *n : &surplus, *n, what));
        TL_TRY(more_parse(x, ']', &more));
    }
    return TL_OK;
}

/* ---- a tensor ---- */

static tl_status dtype_check(const text *x, tl_st_tensor *t, const char *name)
{
    if (name == NULL)
        return bad(x, "\"dtype\" is missing or not a string");
    for (int d = TL_F64; d < TL_DTYPE_COUNT; d++)
        if (strcmp(name, tl_dtype_name((tl_dtype)d)) == 0) {
            t->dtype = (tl_dtype)d;
            return TL_OK;
        }
    return bad(x, "dtype \"%.40s\" is not known here (F64 F32 F16 BF16 I64 BOOL are)", name);
}

static tl_status shape_check(const text *x, const tl_st_tensor *t)
{
    tl_err why = {0};
    if (t->shape.ndim < 0)
        return bad(x, "\"shape\" is missing or not a list");
    if (t->shape.ndim > TL_MAX_DIMS)
        return bad(x, "has %d dims; at most %d are possible", t->shape.ndim, TL_MAX_DIMS);
    if (tl_shape_check(&t->shape, t->dtype, &why) != TL_OK)
        return bad(x, "%s", why.message);
    return TL_OK;
}

static tl_status offsets_check(const text *x, tl_st_tensor *t, const int64_t at[2], int n,
                               uint64_t data_bytes)
{
    int64_t begin = at[0], end = at[1];
    if (n != 2)
        return bad(x, "\"data_offsets\" is missing or not a list of two");
    if (begin <= end && (uint64_t)end > data_bytes)
        return bad(x,
                   "its bytes end at %lld, but the file ends after %llu bytes of data: it "
                   "is cut off, or damaged",
                   (long long)end, (unsigned long long)data_bytes);
    if (begin > end)
        return bad(x, "bytes %lld to %lld do not lie in order", (long long)begin, (long long)end);
    int64_t need = tl_shape_count(&t->shape) * (int64_t)tl_dtype_size(t->dtype);
    if (end - begin != need)
        return bad(x, "%s of %s takes %lld bytes, but %lld to %lld are %lld", TL_TEXT_OF(&t->shape),
                   tl_dtype_name(t->dtype), (long long)need, (long long)begin, (long long)end,
                   (long long)(end - begin));
    t->begin = (uint64_t)begin;
    t->end = (uint64_t)end;
    return TL_OK;
}

static tl_status tensor_parse(text *x, tl_st_tensor *t, uint64_t data_bytes)
{
    char *key, *dtype = NULL;
    int64_t offsets[2] = {0, 0};
    int n_offsets = -1;
    t->shape.ndim = -1;
    if (!take(x, '{'))
        return bad(x, "its entry is not an object");
    for (bool more = !take(x, '}'); more;) {
        TL_TRY(key_parse(x, &key));
        bool d = strcmp(key, "dtype") == 0, s = strcmp(key, "shape") == 0,
             o = strcmp(key, "data_offsets") == 0;
        if (!d && !s && !o)
            return bad(x, "has a key \"%.40s\"; dtype, shape and data_offsets are all", key);
        if (d ? dtype != NULL : s ? t->shape.ndim >= 0 : n_offsets >= 0)
            return bad(x, "duplicate key \"%s\"", key);
        if (d && peek(x) != '"')
            return dtype_check(x, t, NULL);
        if (d)
            TL_TRY(string_parse(x, &dtype));
        else if (s)
            TL_TRY(list_parse(x, t->shape.dim, TL_MAX_DIMS, &t->shape.ndim, key));
        else
            TL_TRY(list_parse(x, offsets, 2, &n_offsets, key));
        TL_TRY(more_parse(x, '}', &more));
    }
    TL_TRY(dtype_check(x, t, dtype));
    TL_TRY(shape_check(x, t));
    return offsets_check(x, t, offsets, n_offsets, data_bytes);
}

/* ---- the header ---- */

static tl_status meta_parse(text *x, tl_st_header *h)
{
    char *key, *value;
    if (!take(x, '{'))
        return bad(x, "\"" TL_ST_METADATA "\" is not an object");
    for (bool more = !take(x, '}'); more;) {
        TL_TRY(key_parse(x, &key));
        if (peek(x) != '"')
            return bad(x, "metadata \"%.100s\" is not a string", key);
        TL_TRY(string_parse(x, &value));
        if (!tl_grow(&h->meta, &h->cap_meta, h->n_meta, sizeof *h->meta))
            return tl_fail(x->err, TL_ENOMEM, "%.200s: no memory for more than %d metadata",
                           x->path, h->n_meta);
        h->meta[h->n_meta++] = (tl_st_meta){key, value};
        TL_TRY(more_parse(x, '}', &more));
    }
    const char *twice = tl_names_sort(h->meta, h->n_meta, sizeof *h->meta);
    return twice == NULL ? TL_OK : bad(x, "duplicate metadata \"%.100s\"", twice);
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

/* In order of offset, each tensor must begin where the one before ends. */
static tl_status cover_check(text *x, const tl_st_header *h, uint64_t data_bytes)
{
    uint64_t at = 0;
    for (int i = 0; i < h->n; i++) {
        const tl_st_tensor *t = &h->tensors[i];
        x->tensor = t->name;
        if (t->begin < at)
            return bad(x, "begins at byte %llu, but \"%.100s\" reaches to %llu",
                       (unsigned long long)t->begin, h->tensors[i - 1].name,
                       (unsigned long long)at);
        if (t->begin > at)
            return bad(x, "begins at byte %llu; bytes from %llu belong to no tensor",
                       (unsigned long long)t->begin, (unsigned long long)at);
        at = t->end;
    }
    x->tensor = NULL;
    if (at != data_bytes)
        return bad(x, "the tensors end at byte %llu of %llu bytes of data", (unsigned long long)at,
                   (unsigned long long)data_bytes);
    return TL_OK;
}

static tl_status entries_parse(text *x, tl_st_header *h, uint64_t data_bytes)
{
    char *key;
    bool meta = false;
    take(x, '{');
    for (bool more = !take(x, '}'); more;) {
        TL_TRY(key_parse(x, &key));
        if (strcmp(key, TL_ST_METADATA) == 0) {
            if (meta)
                return bad(x, "duplicate \"" TL_ST_METADATA "\"");
            meta = true;
            TL_TRY(meta_parse(x, h));
        } else {
            if (!tl_grow(&h->tensors, &h->cap, h->n, sizeof *h->tensors))
                return tl_fail(x->err, TL_ENOMEM, "%.200s: no memory for more than %d tensors",
                               x->path, h->n);
            h->tensors[h->n] = (tl_st_tensor){.name = key};
            x->tensor = key;
            TL_TRY(tensor_parse(x, &h->tensors[h->n++], data_bytes));
            x->tensor = NULL;
        }
        TL_TRY(more_parse(x, '}', &more));
    }
    if (x->at != x->end)
        return not_json(x, "end of file expected");
    const char *twice = tl_names_sort(h->tensors, h->n, sizeof *h->tensors);
    if (twice != NULL)
        return bad(x, "duplicate tensor \"%.100s\"", twice);
    if (h->n > 0)
        qsort(h->tensors, (size_t)h->n, sizeof *h->tensors, offset_order);
    return cover_check(x, h, data_bytes);
}

tl_status tl_st_header_parse(tl_st_header *h, const char *header, size_t n, uint64_t data_bytes,
                             const char *path, tl_err *err)
{
    *h = (tl_st_header){0};
    while (n > 0 && header[n - 1] == ' ')
        n--;
    if (n == 0 || header[0] != '{')
        return tl_fail(err, TL_EFORMAT, "%.200s: the header does not start with '{'", path);
    if (header[n - 1] != '}')
        return tl_fail(err, TL_EFORMAT,
                       "%.200s: the header's last byte before padding (byte %zu of it) is 0x%02x, "
                       "not '}'",
                       path, n - 1, (unsigned)(unsigned char)header[n - 1]);
    h->text = tl_calloc(n, 1);
    if (h->text == NULL)
        return tl_fail(err, TL_ENOMEM, "%.200s: no memory for a header of %zu bytes", path, n);
    memcpy(h->text, header, n);
    text x = {.path = path, .begin = h->text, .at = h->text, .end = h->text + n, .err = err};
    tl_status s = entries_parse(&x, h, data_bytes);
    if (s != TL_OK)
        tl_st_header_free(h);
    return s;
}

void tl_st_header_free(tl_st_header *h)
{
    tl_free_raw(h->text);
    tl_free_raw(h->tensors);
    tl_free_raw(h->meta);
    *h = (tl_st_header){0};
}
