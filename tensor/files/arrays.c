/* arrays.c: .npy, .npz, IDX and CSV. In order: elements, IDX, .npy, .npz, CSV, opening. */
#include "tensor/files/arrays.h"

#include <errno.h>
#include <fenv.h>
#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#define ZLIB_CONST
#include <zlib.h>

#include "tensor/arena.h"
#include "tensor/files/file.h"
#include "tensor/operands.h"
#include "tensor/threads.h"

typedef struct {
    char *name;
    tl_array array;
    void *own; /* a block that array.data lies in; NULL: that is the file's bytes */
} entry;

struct tl_arrays {
    entry *e;
    int n, room;
    unsigned char *bytes;
    size_t size;
    bool mapped;
    tl_dtype as;
    const char *path; /* while it is opened */
    tl_err *err;
};

/* The file is at fault. */
static tl_status bad(const tl_arrays *f, const char *fmt, ...) TL_PRINTF(2, 3);
static tl_status bad(const tl_arrays *f, const char *fmt, ...)
{
    char why[TL_MESSAGE_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return tl_fail(f->err, TL_EFORMAT, "%.200s: %s", f->path, why);
}

/* Text of a file in a message. */
static char *shown(char buf[32], const char *s, size_t n)
{
    size_t i = 0;
    for (; i < n && i < 30; i++)
        buf[i] = (char)(s[i] >= ' ' && s[i] < 0x7f ? s[i] : '?');
    buf[i] = '\0';
    return buf;
}

/* ---- elements ---- */

/* An array as it lies in a file. */
typedef struct {
    char kind; /* f i u b */
    int size;  /* of an element */
    bool big, fortran;
    tl_shape shape;
    const unsigned char *data;
    size_t bytes; /* that there are */
} raw;

static uint64_t bits_at(const unsigned char *p, int size, bool big)
{
    uint64_t x = 0;
    for (int i = 0; i < size; i++)
        x |= (uint64_t)p[big ? size - 1 - i : i] << 8 * i;
    return x;
}

static tl_dtype natural(const raw *r)
{
    if (r->kind == 'f')
        return r->size == 8 ? TL_F64 : r->size == 4 ? TL_F32 : TL_F16;
    return r->kind == 'b' ? TL_BOOL : TL_I64;
}

static double float_of(uint64_t bits, int size)
{
    uint16_t half = (uint16_t)bits;
    uint32_t single = (uint32_t)bits;
    return size == 8   ? tl_element_get(TL_F64, &bits)
           : size == 4 ? tl_element_get(TL_F32, &single)
                       : tl_element_get(TL_F16, &half);
}

/* Rounded to odd: the rounding to a narrower dtype later is then as the only one. */
static double odd_of_text(const char *s)
{
    fesetround(FE_DOWNWARD);
    double down = strtod(s, NULL), up;
    uint64_t last;
    fesetround(FE_UPWARD);
    up = strtod(s, NULL);
    fesetround(FE_TONEAREST);
    memcpy(&last, &down, sizeof last);
    return down == up || (last & 1) != 0 ? down : up;
}

static tl_status convert(tl_arrays *f, const raw *r, const tl_array *to)
{
    int64_t n = tl_array_count(to);
    size_t step = tl_dtype_size(to->dtype);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = bits_at(r->data + i * r->size, r->size, r->big);
        char *p = (char *)to->data + (size_t)i * step;
        if (r->kind == 'b' && bits > 1)
            return bad(f, "element %" PRId64 " is %d; a bool is 0 or 1", i, (int)bits);
        if (r->kind == 'u' && bits > INT64_MAX)
            return bad(f, "element %" PRId64 " is %" PRIu64 "; at most %" PRId64 " is possible", i,
                       bits, INT64_MAX);
        if (r->kind == 'i' && r->size < 8 && bits >> (8 * r->size - 1) != 0)
            bits -= (uint64_t)1 << 8 * r->size;
        if (r->kind == 'f')
            tl_element_put(to->dtype, p, float_of(bits, r->size));
        else
            tl_element_put_i64(to->dtype, p, (int64_t)bits);
    }
    return TL_OK;
}

/* dst, filled column by column, in order of rows. */
static tl_status turn(tl_arrays *f, tl_array *dst)
{
    tl_array from = *dst, to = *dst;
    size_t bytes = (size_t)tl_array_count(dst) * tl_dtype_size(dst->dtype);
    to.data = tl_calloc(bytes, 1);
    if (to.data == NULL)
        return tl_fail(f->err, TL_ENOMEM, "%.200s: no memory for %zu bytes", f->path, bytes);
    for (int i = 0; i < from.ndim; i++)
        from.stride[i] = i == 0 ? 1 : from.stride[i - 1] * from.dim[i - 1];
    tl_array_copy(&to, &from);
    tl_free_raw(dst->data);
    *dst = to;
    return TL_OK;
}

/* Whether the elements lie in the file as the host has them. */
static bool lies(const raw *r, tl_dtype dtype)
{
    const uint16_t one = 1;
    bool host_big = *(const unsigned char *)&one == 0;
    return (r->kind == 'f' || (r->kind == 'i' && r->size == 8)) && dtype == natural(r) &&
           r->big == host_big && (uintptr_t)r->data % (size_t)r->size == 0 &&
           (!r->fortran || r->shape.ndim < 2);
}

static tl_status fill(tl_arrays *f, const raw *r, entry *e)
{
    tl_array *a = &e->array;
    size_t bytes = (size_t)tl_array_count(a) * tl_dtype_size(a->dtype);
    if (bytes > 0 && lies(r, a->dtype)) {
        a->data = (void *)(uintptr_t)r->data;
        return TL_OK;
    }
    a->data = tl_calloc(bytes + (bytes == 0), 1); /* never NULL */
    if (a->data == NULL)
        return tl_fail(f->err, TL_ENOMEM, "%.200s: no memory for %zu bytes", f->path, bytes);
    e->own = a->data;
    TL_TRY(convert(f, r, a));
    tl_status s = r->fortran && a->ndim > 1 && bytes > 0 ? turn(f, a) : TL_OK;
    e->own = a->data;
    return s;
}

/* An empty entry at the end, named; closing frees it. */
static tl_status add(tl_arrays *f, const char *name, size_t length, entry **out)
{
    char who[32];
    if (f->n == f->room) {
        entry *grown = tl_realloc(f->e, (size_t)(f->room * 2 + 1) * sizeof *grown);
        if (grown == NULL)
            return tl_fail(f->err, TL_ENOMEM, "%.200s: no memory for %d arrays", f->path, f->n);
        f->e = grown;
        f->room = f->room * 2 + 1;
    }
    entry *e = &f->e[f->n];
    *e = (entry){.name = tl_calloc(length + 1, 1)};
    if (e->name == NULL)
        return tl_fail(f->err, TL_ENOMEM, "%.200s: no memory for a name", f->path);
    memcpy(e->name, name, length);
    bool twice = tl_arrays_find(f, e->name) >= 0;
    f->n++;
    *out = e;
    if (twice || strlen(e->name) != length)
        return bad(f, "has two arrays '%s', or a NUL in that name", shown(who, name, length));
    return TL_OK;
}

static tl_status add_raw(tl_arrays *f, const char *name, size_t length, const raw *r)
{
    char text[TL_SHAPE_TEXT];
    entry *e;
    if (tl_shape_check(&r->shape, TL_F64, NULL) != TL_OK ||
        (uint64_t)tl_shape_count(&r->shape) * (uint64_t)r->size != r->bytes)
        return bad(f, "the shape %s, with elements of %d bytes, does not take the %zu that follow",
                   tl_shape_text(text, &r->shape), r->size, r->bytes);
    TL_TRY(add(f, name, length, &e));
    tl_dtype dtype = f->as != TL_DTYPE_DEFAULT ? f->as : natural(r);
    e->array = tl_array_make(dtype, &r->shape, NULL);
    return fill(f, r, e);
}

/* ---- IDX: 0 0 TYPE NDIM, sizes of 4 bytes, elements; highest byte first ---- */

static tl_status read_idx(tl_arrays *f, const unsigned char *b, size_t n)
{
    static const struct {
        int type;
        char kind;
        int size;
    } types[] = {{8, 'u', 1}, {9, 'i', 1}, {11, 'i', 2}, {12, 'i', 4}, {13, 'f', 4}, {14, 'f', 8}};
    raw r = {.big = true, .shape.ndim = n < 4 ? 0 : b[3]};
    for (size_t i = 0; n >= 4 && i < sizeof types / sizeof *types; i++)
        if (types[i].type == b[2])
            r.kind = types[i].kind, r.size = types[i].size;
    if (r.kind == 0)
        return bad(f, "no IDX file: byte 2, the type, is %d; 8, 9, 11, 12, 13, 14 are known",
                   n < 3 ? -1 : b[2]);
    size_t header = 4 + 4 * (size_t)r.shape.ndim;
    if (r.shape.ndim > TL_MAX_DIMS || header > n)
        return bad(f, "byte 3 says %d dims; at most %d are possible, and the file has %zu bytes",
                   r.shape.ndim, (int)TL_MAX_DIMS, n);
    for (int i = 0; i < r.shape.ndim; i++)
        r.shape.dim[i] = (int64_t)bits_at(b + 4 + 4 * i, 4, true);
    r.data = b + header;
    r.bytes = n - header;
    return add_raw(f, "", 0, &r);
}

/* ---- .npy: magic, version, length of the header, a Python dict, elements ---- */

typedef struct {
    const char *at, *end;
} cursor;

static void blanks(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n'))
        c->at++;
}

static bool eat(cursor *c, const char *word)
{
    size_t n = strlen(word);
    blanks(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
        return false;
    c->at += n;
    return true;
}

/* '<f4': order, kind, size. */
static bool eat_descr(cursor *c, raw *r)
{
    static const char *const known[] = {"f8", "f4", "f2", "i1", "i2", "i4",
                                        "i8", "u1", "u2", "u4", "u8", "b1"};
    blanks(c);
    if (c->end - c->at < 5 || (c->at[0] != '\'' && c->at[0] != '"') || c->at[4] != c->at[0] ||
        c->at[1] == '\0' || strchr("<>|", c->at[1]) == NULL)
        return false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (memcmp(c->at + 2, known[i], 2) == 0)
            r->kind = known[i][0], r->size = known[i][1] - '0';
    r->big = c->at[1] == '>';
    bool ordered = c->at[1] != '|' || r->size == 1;
    c->at += 5;
    return r->kind != 0 && ordered;
}

static bool eat_shape(cursor *c, tl_shape *s)
{
    *s = TL_SCALAR;
    if (!eat(c, "("))
        return false;
    while (!eat(c, ")")) {
        int64_t x = 0;
        blanks(c);
        const char *first = c->at;
        for (; c->at < c->end && *c->at >= '0' && *c->at <= '9' && x < INT64_MAX / 16; c->at++)
            x = x * 10 + (*c->at - '0');
        if (c->at == first || s->ndim == TL_MAX_DIMS)
            return false;
        s->dim[s->ndim++] = x;
        if (!eat(c, ",") && (s->ndim == 1 || c->at == c->end || *c->at != ')'))
            return false;
    }
    return true;
}

/* The three entries in any order, each once. Returns what is wrong; NULL: nothing. */
static const char *eat_dict(cursor *c, raw *r)
{
    int seen = 0;
    if (!eat(c, "{"))
        return "a '{'";
    while (!eat(c, "}")) {
        int key = eat(c, "'descr'") ? 1 : eat(c, "'fortran_order'") ? 2 : eat(c, "'shape'") ? 4 : 0;
        if (key == 0 || (seen & key) != 0 || !eat(c, ":"))
            return "one of 'descr', 'fortran_order' and 'shape', each once";
        seen |= key;
        if (key == 1 && !eat_descr(c, r))
            return "'<' or '>' with f8 f4 f2 i8 i4 i2 u8 u4 u2, or '|' with i1 u1 b1,";
        if (key == 2 && !(r->fortran = eat(c, "True")) && !eat(c, "False"))
            return "True or False";
        if (key == 4 && !eat_shape(c, &r->shape))
            return "a tuple of at most 8 sizes";
        if (!eat(c, ",") && (c->at == c->end || *c->at != '}'))
            return "a ',' or '}'";
    }
    blanks(c);
    return seen == 7 && c->at == c->end ? NULL : "an end after three entries";
}

static tl_status read_npy(tl_arrays *f, const char *name, size_t length, const unsigned char *b,
                          size_t n)
{
    char who[2][32];
    raw r = {0};
    shown(who[0], name, length);
    if (n < 10 || memcmp(b, "\x93NUMPY", 6) != 0 || b[6] < 1 || b[6] > 3)
        return bad(f, "'%s' is no .npy file of version 1 to 3: %zu bytes that begin with 0x%02x",
                   who[0], n, n > 0 ? b[0] : 0);
    size_t start = b[6] == 1 ? 10 : 12;
    uint64_t header = n < start ? 0 : bits_at(b + 8, b[6] == 1 ? 2 : 4, false);
    if (n < start || header > n - start)
        return bad(f, "'%s' claims a header of %" PRIu64 " bytes; the file has %zu", who[0], header,
                   n);
    cursor c = {(const char *)b + start, (const char *)b + start + header};
    const char *wanted = eat_dict(&c, &r);
    if (wanted != NULL)
        return bad(f, "'%s': byte %zu of the header, before '%s': %s was expected", who[0],
                   (size_t)(c.at - (const char *)b), shown(who[1], c.at, (size_t)(c.end - c.at)),
                   wanted);
    r.data = b + start + header;
    r.bytes = n - start - (size_t)header;
    return add_raw(f, name, length, &r);
}

/* ---- .npz: a zip archive of them. Its directory stands at the end ---- */

/* What the directory says of a member. */
typedef struct {
    uint64_t stored, size, at;
    const unsigned char *name;
    size_t length;
    int method, flags;
    uint32_t crc;
} member;

/* Numbers that 32 bits cannot hold stand in an extra field, in this order. */
static bool widen(member *m, const unsigned char *extra, size_t n)
{
    uint64_t *const number[] = {&m->size, &m->stored, &m->at};
    for (size_t i = 0; i + 4 <= n;) {
        size_t id = bits_at(extra + i, 2, false), len = bits_at(extra + i + 2, 2, false),
               at = i + 4;
        if (len > n - at)
            return false;
        for (int k = 0; id == 1 && k < 3; k++)
            if (*number[k] == UINT32_MAX) {
                if (at + 8 > i + 4 + len)
                    return false;
                *number[k] = bits_at(extra + at, 8, false);
                at += 8;
            }
        i += 4 + len;
    }
    return true;
}

static void *z_take(void *unused, unsigned n, unsigned size)
{
    (void)unused;
    return tl_calloc(n, size);
}

static void z_give_back(void *unused, void *p)
{
    (void)unused;
    tl_free_raw(p);
}

enum { DEFLATE_MOST = 1032 /* bytes that one can stand for */, PIECE = 1 << 30 };

/* All of a deflated member into *out, for tl_free_raw. The block grows with what comes, whatever
 * the directory claims. */
static tl_status inflate_member(tl_arrays *f, const member *m, const char *who,
                                const unsigned char *from, unsigned char **out)
{
    z_stream z = {.next_in = from, .zalloc = z_take, .zfree = z_give_back};
    uint64_t got = 0, room = 0, left = m->stored;
    int s = inflateInit2(&z, -MAX_WBITS);
    for (*out = NULL; s == Z_OK && got <= m->size;) {
        if (got == room) { /* a byte more than claimed shows that there is more */
            room = room * 2 + m->stored + 64;
            room = room < m->size ? room : m->size + 1;
            unsigned char *grown = tl_realloc(*out, (size_t)room);
            if (grown == NULL) {
                s = Z_MEM_ERROR;
                break;
            }
            *out = grown;
        }
        if (z.avail_in == 0) {
            z.avail_in = left < PIECE ? (unsigned)left : PIECE;
            left -= z.avail_in;
        }
        unsigned now = room - got < PIECE ? (unsigned)(room - got) : PIECE;
        z.next_out = *out + got;
        z.avail_out = now;
        s = inflate(&z, Z_NO_FLUSH);
        got += now - z.avail_out;
    }
    left += z.avail_in;
    inflateEnd(&z);
    if (s == Z_MEM_ERROR)
        return tl_fail(f->err, TL_ENOMEM, "%.200s: no memory to inflate '%s' to %" PRIu64 " bytes",
                       f->path, who, m->size);
    if (s != Z_STREAM_END || got != m->size || left > 0)
        return bad(f,
                   "'%s' is damaged: %" PRIu64 " of its %" PRIu64 " bytes inflate to %" PRIu64
                   " of %" PRIu64 "%s",
                   who, m->stored - left, m->stored, got, m->size,
                   s == Z_STREAM_END ? "" : " and do not end");
    return TL_OK;
}

static tl_status check_crc(tl_arrays *f, const member *m, const char *who, const unsigned char *b)
{
    uint32_t crc = (uint32_t)crc32_z(0, b, (size_t)m->size);
    return crc == m->crc
               ? TL_OK
               : bad(f, "'%s' is damaged: its CRC is %08" PRIx32 ", but %08" PRIx32 " is noted",
                     who, crc, m->crc);
}

/* bytes: NULL, or a block of the member's own, which the entry takes, or which is freed. */
static tl_status read_npy_of(tl_arrays *f, const member *m, const char *who,
                             const unsigned char *data, unsigned char *bytes)
{
    int n = f->n;
    tl_status s = check_crc(f, m, who, data);
    if (s == TL_OK)
        s = read_npy(f, (const char *)m->name, m->length - 4, data, (size_t)m->size);
    if (s == TL_OK && f->e[n].own == NULL)
        f->e[n].own = bytes;
    else
        tl_free_raw(bytes);
    return s;
}

static tl_status read_member(tl_arrays *f, const member *m, const unsigned char *b, size_t n)
{
    char who[32];
    unsigned char *bytes;
    bool deflated = m->method == 8;
    shown(who, (const char *)m->name, m->length);
    if ((m->method != 0 && !deflated) || (m->flags & 1) != 0 ||
        (deflated ? m->size / DEFLATE_MOST > m->stored : m->stored != m->size))
        return bad(f,
                   "'%s' is neither stored nor deflated: method %d, flags %d, %" PRIu64
                   " bytes of %" PRIu64,
                   who, m->method, m->flags, m->stored, m->size);
    if (m->length < 4 || memcmp(m->name + m->length - 4, ".npy", 4) != 0)
        return bad(f, "'%s' is no .npy file", who);
    if (n < 30 || m->at > n - 30 || memcmp(b + m->at, "PK\3\4", 4) != 0)
        return bad(f, "'%s' should begin at byte %" PRIu64 " of %zu, but does not", who, m->at, n);
    uint64_t data = m->at + 30 + bits_at(b + m->at + 26, 2, false) +
                    bits_at(b + m->at + 28, 2, false);
    if (data > n || m->stored > n - data)
        return bad(f, "'%s' claims %" PRIu64 " bytes from byte %" PRIu64 " on; the file has %zu",
                   who, m->stored, data, n);
    if (!deflated)
        return read_npy_of(f, m, who, b + data, NULL);
    tl_status s = inflate_member(f, m, who, b + data, &bytes);
    if (s == TL_OK)
        return read_npy_of(f, m, who, bytes, bytes);
    tl_free_raw(bytes);
    return s;
}

/* The directory's place and length, from the record at the end, which a comment may follow. */
static bool find_directory(const unsigned char *b, size_t n, uint64_t *at, uint64_t *bytes)
{
    for (size_t back = 22; back <= n && back < 22 + 65536; back++) {
        const unsigned char *p = b + n - back;
        if (memcmp(p, "PK\5\6", 4) != 0 || bits_at(p + 20, 2, false) != back - 22)
            continue;
        *bytes = bits_at(p + 12, 4, false);
        *at = bits_at(p + 16, 4, false);
        if (*at == UINT32_MAX && back + 20 <= n && memcmp(p - 20, "PK\6\7", 4) == 0) {
            uint64_t wide = bits_at(p - 12, 8, false);
            if (n < 56 || wide > n - 56 || memcmp(b + wide, "PK\6\6", 4) != 0)
                return false;
            *bytes = bits_at(b + wide + 40, 8, false);
            *at = bits_at(b + wide + 48, 8, false);
        }
        return *at <= n && *bytes <= n - *at;
    }
    return false;
}

static tl_status read_npz(tl_arrays *f, const unsigned char *b, size_t n)
{
    uint64_t at, left, total = 0;
    if (!find_directory(b, n, &at, &left))
        return bad(f, "no whole .npz file: its %zu bytes end with no directory", n);
    while (left > 0) {
        const unsigned char *p = b + at;
        size_t length = left < 46 ? 0 : bits_at(p + 28, 2, false),
               extra = left < 46 ? 0 : bits_at(p + 30, 2, false),
               entry_size = left < 46 ? 46 : 46 + length + extra + bits_at(p + 32, 2, false);
        member m = {.name = p + 46, .length = length};
        if (entry_size > left || memcmp(p, "PK\1\2", 4) != 0)
            return bad(f, "byte %" PRIu64 " begins no entry of the directory", at);
        m.flags = (int)bits_at(p + 8, 2, false);
        m.method = (int)bits_at(p + 10, 2, false);
        m.crc = (uint32_t)bits_at(p + 16, 4, false);
        m.stored = bits_at(p + 20, 4, false);
        m.size = bits_at(p + 24, 4, false);
        m.at = bits_at(p + 42, 4, false);
        if (!widen(&m, p + 46 + length, extra) || m.stored > n - total)
            return bad(f,
                       "the entry at byte %" PRIu64 " claims %" PRIu64
                       " bytes; others have %" PRIu64 " of the file's %zu",
                       at, m.stored, total, n);
        total += m.stored;
        TL_TRY(read_member(f, &m, b, n));
        at += entry_size;
        left -= entry_size;
    }
    return f->n > 0 ? TL_OK : bad(f, "an archive without arrays");
}

/* ---- CSV ---- */

/* The field from *p on, to its comma or the line's end, without blanks around it. */
static const char *field(const char **p, size_t *n)
{
    const char *s = *p + strspn(*p, " \t"), *stop = *p + strcspn(*p, ",\r\n");
    *p = stop;
    while (stop > s && (stop[-1] == ' ' || stop[-1] == '\t'))
        stop--;
    *n = stop > s ? (size_t)(stop - s) : 0;
    return s;
}

static bool number(const char *s, size_t n, double *x)
{
    static const char *const words[] = {"nan", "inf", "infinity"};
    char *end;
    size_t sign = n > 0 && (*s == '-' || *s == '+'), i = sign;
    for (size_t k = 0; k < 3; k++)
        if (n - sign == strlen(words[k]) && strncasecmp(s + sign, words[k], n - sign) == 0)
            i = n;
    while (i < n && strchr("0123456789.eE+-", s[i]) != NULL && s[i] != '\0')
        i++;
    *x = n > 0 && i == n ? strtod(s, &end) : 0;
    return n > 0 && i == n && end == s + n;
}

/* Steps over a line's end. */
static void next_line(const char **p)
{
    *p += **p == '\r';
    *p += **p == '\n';
}

/* Rows from *p on, each of `columns` numbers, into x; NULL: they are only counted. */
static tl_status rows(tl_arrays *f, const char *p, const char *end, int64_t first, int64_t columns,
                      tl_array *to, int64_t *count)
{
    char who[32];
    double x;
    for (*count = 0; p < end; ++*count) {
        for (int64_t c = 0;; c++, p++) {
            size_t n;
            const char *s = field(&p, &n);
            if (c >= columns || (*p != ',' && c + 1 < columns))
                return bad(f, "row %" PRId64 " has %s fields than the %" PRId64 " of the first row",
                           first + *count, c >= columns ? "more" : "fewer", columns);
            if (to == NULL && !number(s, n, &x))
                return bad(f, "row %" PRId64 ", column %" PRId64 ": '%s' is no number",
                           first + *count, c + 1, shown(who, s, n));
            if (to != NULL && number(s, n, &x))
                tl_array_put(to, *count * columns + c, to->dtype == TL_F64 ? x : odd_of_text(s));
            if (*p != ',')
                break;
        }
        const char *line = p;
        next_line(&p);
        if (p == line && p < end)
            return bad(f, "byte %zu, in row %" PRId64 ", is a NUL", (size_t)(p - (char *)f->bytes),
                       first + *count);
    }
    return TL_OK;
}

/* text ends with a NUL at `end`. */
static tl_status read_rows(tl_arrays *f, const char *p, const char *end)
{
    int64_t columns = 1, names = 0, n;
    entry *e;
    double x;
    while (end > p && (end[-1] == '\n' || end[-1] == '\r'))
        end--;
    const char *s = p;
    for (;; columns++, s++) {
        size_t length;
        const char *text = field(&s, &length);
        names |= !number(text, length, &x);
        if (*s != ',')
            break;
    }
    if (names)
        next_line(&s);
    p = names ? s : p;
    if (p >= end)
        return bad(f, "no rows of numbers");
    TL_TRY(rows(f, p, end, 1 + names, columns, NULL, &n));
    TL_TRY(add(f, "", 0, &e));
    tl_shape shape = TL_DIMS(n, columns);
    e->array = tl_array_make(f->as != TL_DTYPE_DEFAULT ? f->as : TL_F64, &shape, NULL);
    size_t bytes = (size_t)(n * columns) * tl_dtype_size(e->array.dtype);
    e->own = e->array.data = tl_calloc(bytes, 1);
    if (e->array.data == NULL)
        return tl_fail(f->err, TL_ENOMEM, "%.200s: no memory for %zu bytes", f->path, bytes);
    return rows(f, p, end, 1 + names, columns, &e->array, &n);
}

static tl_status read_csv(tl_arrays *f, const char *p, size_t n)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0)
        return tl_fail(f->err, TL_ENOMEM, "%.200s: no memory for a locale", f->path);
    locale_t was = uselocale(plain);
    size_t bom = n >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    tl_status s = read_rows(f, p + bom, p + n);
    uselocale(was);
    freelocale(plain);
    return s;
}

/* ---- opening ---- */

static tl_status map(tl_arrays *f, const char *path)
{
    tl_reader r;
    TL_TRY(tl_reader_open(&r, path, f->err));
    f->size = (size_t)r.size;
    void *p = r.size == 0 ? NULL
                          : mmap(NULL, f->size, PROT_READ | PROT_WRITE, MAP_PRIVATE, r.fd, 0);
    int why = errno;
    tl_reader_close(&r);
    if (p == NULL || p == MAP_FAILED)
        return tl_fail(f->err, TL_EIO, "%.200s: %zu bytes cannot be mapped: %s", path, f->size,
                       p == NULL ? "there are none" : strerror(why));
    f->bytes = p;
    f->mapped = true;
    return TL_OK;
}

/* The bytes are there. A mapped file's have no NUL behind them, which text needs. */
static tl_status parse(tl_arrays *f)
{
    const unsigned char *b = f->bytes;
    size_t n = f->size;
    if (n >= 2 && b[0] == 0 && b[1] == 0)
        return read_idx(f, b, n);
    if (n >= 1 && b[0] == 0x93)
        return read_npy(f, "", 0, b, n);
    if (n >= 2 && b[0] == 'P' && b[1] == 'K')
        return read_npz(f, b, n);
    if (n >= 2 && b[0] == 0x1f && b[1] == 0x8b)
        return bad(f, "is compressed by gzip; gunzip unpacks it");
    return f->mapped ? bad(f, "is text, or unknown; only .npy, .npz and IDX are mapped")
                     : read_csv(f, (const char *)b, n);
}

static tl_arrays *begin(tl_arrays **out, const char *path, tl_err *err, tl_dtype as)
{
    *out = NULL;
    if (as != TL_DTYPE_DEFAULT && !tl_dtype_is_float(as)) {
        tl_fail(err, TL_EDTYPE, "%.200s: as %s? A float is needed", path, tl_dtype_name(as));
        return NULL;
    }
    tl_arrays *f = tl_calloc(1, sizeof *f);
    if (f == NULL)
        tl_fail(err, TL_ENOMEM, "%.200s: no memory to open it", path);
    else
        *f = (tl_arrays){.as = as, .path = path, .err = err};
    return f;
}

static tl_status end(tl_arrays **out, tl_arrays *f, tl_status s)
{
    if (s == TL_OK) {
        tl_textenv saved = tl_textenv_enter();
        s = parse(f);
        tl_textenv_leave(saved);
    }
    f->path = NULL, f->err = NULL;
    if (s == TL_OK)
        *out = f;
    else
        tl_arrays_close(f);
    return s;
}

tl_status tl_arrays_open_with(tl_arrays **out, const char *path, tl_err *err, tl_arrays_options o)
{
    TL_TRY(TL_NEED(err, out));
    *out = NULL;
    TL_TRY(TL_NEED(err, path));
    tl_arrays *f = begin(out, path, err, o.as);
    if (f == NULL)
        return tl_dtype_is_float(o.as) || o.as == TL_DTYPE_DEFAULT ? TL_ENOMEM : TL_EDTYPE;
    if (o.map)
        return end(out, f, map(f, path));
    char *text = NULL;
    tl_status s = tl_file_read(path, SIZE_MAX - 1, &text, &f->size, err);
    f->bytes = (unsigned char *)text;
    return end(out, f, s);
}

tl_status tl_arrays_open_memory(tl_arrays **out, const void *bytes, size_t n, const char *name,
                                tl_err *err, tl_arrays_options o)
{
    TL_TRY(TL_NEED(err, out));
    *out = NULL;
    TL_TRY(TL_NEED_N(err, bytes, n > 0));
    tl_arrays *f = begin(out, name == NULL ? "memory" : name, err, o.as);
    if (f == NULL)
        return tl_dtype_is_float(o.as) || o.as == TL_DTYPE_DEFAULT ? TL_ENOMEM : TL_EDTYPE;
    f->bytes = n < SIZE_MAX ? tl_calloc(n + 1, 1) : NULL;
    f->size = n;
    if (f->bytes == NULL)
        return end(out, f, tl_fail(err, TL_ENOMEM, "%.200s: no memory for %zu bytes", f->path, n));
    if (n > 0)
        memcpy(f->bytes, bytes, n);
    return end(out, f, TL_OK);
}

void tl_arrays_close(tl_arrays *f)
{
    if (f == NULL)
        return;
    for (int i = 0; i < f->n; i++) {
        tl_free_raw(f->e[i].name);
        tl_free_raw(f->e[i].own);
    }
    if (f->mapped)
        munmap(f->bytes, f->size);
    else
        tl_free_raw(f->bytes);
    tl_free_raw(f->e);
    tl_free_raw(f);
}

int tl_arrays_count(const tl_arrays *f) { return f == NULL ? 0 : f->n; }

tl_array tl_arrays_at(const tl_arrays *f, int i)
{
    return i < 0 || i >= tl_arrays_count(f) ? (tl_array){0} : f->e[i].array;
}

const char *tl_arrays_name(const tl_arrays *f, int i)
{
    return i < 0 || i >= tl_arrays_count(f) ? "" : f->e[i].name;
}

int tl_arrays_find(const tl_arrays *f, const char *name)
{
    for (int i = 0; name != NULL && i < tl_arrays_count(f); i++)
        if (strcmp(f->e[i].name, name) == 0)
            return i;
    return -1;
}
