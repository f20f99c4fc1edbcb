/* arrays_npy.c: reads .npy, and .npz, which is a zip archive of them. Every claim is compared with
 * the bytes there are before it is believed. */
#include <inttypes.h>
#include <string.h>
#define ZLIB_CONST
#include <zlib.h>

#include "tensor/memory.h"
#include "tensor/files/arrays_read.h"
#include "tensor/files/bytes.h"

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

/* A string such as '<f4': byte order, kind, size. */
static bool eat_descr(cursor *c, tl_arrays_raw *r)
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
        eat(c, "L"); /* as Python 2 wrote long integers */
        s->dim[s->ndim++] = x;
        if (!eat(c, ",") && (s->ndim == 1 || c->at == c->end || *c->at != ')'))
            return false;
    }
    return true;
}

/* The three entries in any order, each once. Returns NULL, or what was expected instead. */
static const char *eat_dict(cursor *c, tl_arrays_raw *r)
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
            return "a tuple of at most 8 sizes that an array can have";
        if (!eat(c, ",") && (c->at == c->end || *c->at != '}'))
            return "a ',' or '}'";
    }
    blanks(c);
    return seen == 7 && c->at == c->end ? NULL : "an end after three entries";
}

tl_status tl_npy_read(tl_arrays *f, const char *name, size_t length, const unsigned char *b,
                      size_t n)
{
    char buf[2][TL_QUOTED];
    tl_arrays_raw r = {0};
    const char *who = tl_arrays_quoted(buf[0], name, length, "its array");
    if (n < 10 || memcmp(b, "\x93NUMPY", 6) != 0 || b[6] < 1 || b[6] > 3)
        return tl_arrays_bad(
            f, "%s is not a .npy file of version 1 to 3: %zu bytes that begin with 0x%02x", who, n,
            n > 0 ? b[0] : 0);
    size_t start = b[6] == 1 ? 10 : 12;
    uint64_t header = n < start ? 0 : tl_bytes_get(b + 8, b[6] == 1 ? 2 : 4, false);
    if (n < start || header > n - start)
        return tl_arrays_bad(f, "%s claims a header of %" PRIu64 " bytes; the file has %zu", who,
                             header, n);
    cursor c = {(const char *)b + start, (const char *)b + start + header};
    const char *wanted = eat_dict(&c, &r);
    if (wanted != NULL)
        return tl_arrays_bad(f, "%s: byte %zu of the header, before %s: %s was expected", who,
                             (size_t)(c.at - (const char *)b),
                             tl_arrays_quoted(buf[1], c.at, (size_t)(c.end - c.at), "its end"),
                             wanted);
    r.data = b + start + header;
    r.bytes = n - start - (size_t)header;
    return tl_arrays_add_raw(f, name, length, &r);
}

/* ---- .npz: a zip archive. Its directory stands at the end ---- */

/* A member, as the directory describes it. */
typedef struct {
    uint64_t stored, size; /* bytes in the archive, and inflated */
    uint64_t at;           /* where its entry begins */
    const unsigned char *name;
    size_t length; /* of the name */
    int method, flags;
    uint32_t crc;
} member;

/* Zip64: numbers that 32 bits cannot hold stand in an extra field, in this order. */
static bool widen(member *m, const unsigned char *extra, size_t n)
{
    uint64_t *const number[] = {&m->size, &m->stored, &m->at};
    for (size_t i = 0; i + 4 <= n;) {
        size_t id = tl_bytes_get(extra + i, 2, false), len = tl_bytes_get(extra + i + 2, 2, false),
               at = i + 4;
        if (len > n - at)
            return false;
        for (int k = 0; id == 1 && k < 3; k++)
            if (*number[k] == UINT32_MAX) {
                if (at + 8 > i + 4 + len)
                    return false;
                *number[k] = tl_bytes_get(extra + at, 8, false);
                at += 8;
            }
        i += 4 + len;
    }
    return true;
}

static void *z_take(TL_UNUSED void *unused, unsigned n, unsigned size)
{
    return tl_calloc(n, size);
}

static void z_give_back(TL_UNUSED void *unused, void *p) { tl_free_raw(p); }

enum { DEFLATE_MOST = 1032 /* bytes that one deflated byte can stand for */, PIECE = 1 << 30 };

/* Inflates a member into *out, for tl_free_raw. The block grows with the bytes that come, not with
 * the directory's claim. */
static tl_status inflate_member(tl_arrays *f, const member *m, const char *who,
                                const unsigned char *from, unsigned char **out)
{
    z_stream z = {.next_in = from, .zalloc = z_take, .zfree = z_give_back};
    uint64_t got = 0, room = 0, left = m->stored;
    int s = inflateInit2(&z, -MAX_WBITS);
    for (*out = NULL; s == Z_OK && got <= m->size;) {
        if (got == room) { /* one byte more than claimed shows whether there is more */
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
        return tl_fail(f->err, TL_ENOMEM, "%.200s: no memory to inflate %s to %" PRIu64 " bytes",
                       f->path, who, m->size);
    if (s != Z_STREAM_END || got != m->size || left > 0)
        return tl_arrays_bad(f,
                             "%s is damaged: %" PRIu64 " of its %" PRIu64
                             " bytes inflate to %" PRIu64 " of %" PRIu64 "%s",
                             who, m->stored - left, m->stored, got, m->size,
                             s == Z_STREAM_END ? "" : " and do not end");
    return TL_OK;
}

/* Reads the .npy of a member. bytes is the block of an inflated member, else NULL. The entry takes
 * it over if its array lies there; otherwise it is freed. */
static tl_status read_npy_of(tl_arrays *f, const member *m, const char *who,
                             const unsigned char *data, unsigned char *bytes)
{
    const int n = f->n;
    const size_t size = (size_t)m->size;
    const uint32_t crc = (uint32_t)crc32_z(0, data, size);
    tl_status s = crc == m->crc
                      ? tl_npy_read(f, (const char *)m->name, m->length - 4, data, size)
                      : tl_arrays_bad(f, "%s is damaged: its CRC is %08x, but %08x is noted", who,
                                      crc, m->crc);
    if (s == TL_OK && f->e[n].own == NULL)
        f->e[n].own = bytes;
    else {
        f->taken -= bytes != NULL ? m->size : 0;
        tl_free_raw(bytes);
    }
    return s;
}

static tl_status read_member(tl_arrays *f, const member *m, const unsigned char *b, size_t n)
{
    char buf[TL_QUOTED];
    unsigned char *bytes;
    bool deflated = m->method == 8;
    const char *who = tl_arrays_quoted(buf, (const char *)m->name, m->length,
                                       "a member without a name");
    if ((m->method != 0 && !deflated) || (m->flags & 1) != 0 ||
        (deflated ? m->size / DEFLATE_MOST > m->stored : m->stored != m->size))
        return tl_arrays_bad(f,
                             "%s is neither stored nor deflated: method %d, flags %d, %" PRIu64
                             " bytes of %" PRIu64,
                             who, m->method, m->flags, m->stored, m->size);
    if (m->length < 4 || memcmp(m->name + m->length - 4, ".npy", 4) != 0)
        return tl_arrays_bad(f, "%s is not a .npy file", who);
    if (n < 30 || m->at > n - 30 || memcmp(b + m->at, "PK\3\4", 4) != 0)
        return tl_arrays_bad(f, "%s should begin at byte %" PRIu64 " of %zu, but does not", who,
                             m->at, n);
    uint64_t data = m->at + 30 + tl_bytes_get(b + m->at + 26, 2, false) +
                    tl_bytes_get(b + m->at + 28, 2, false);
    if (data > n || m->stored > n - data)
        return tl_arrays_bad(f,
                             "%s claims %" PRIu64 " bytes from byte %" PRIu64
                             " on; the file has %zu",
                             who, m->stored, data, n);
    if (!deflated)
        return read_npy_of(f, m, who, b + data, NULL);
    TL_TRY(tl_arrays_take(f, who, m->size));
    tl_status s = inflate_member(f, m, who, b + data, &bytes);
    if (s == TL_OK)
        return read_npy_of(f, m, who, bytes, bytes);
    tl_free_raw(bytes);
    return s;
}

/* Finds the directory by the record at the file's end, which only a comment may follow. */
static bool find_directory(const unsigned char *b, size_t n, uint64_t *at, uint64_t *bytes)
{
    for (size_t back = 22; back <= n && back < 22 + 65536; back++) {
        const unsigned char *p = b + n - back;
        if (memcmp(p, "PK\5\6", 4) != 0 || tl_bytes_get(p + 20, 2, false) != back - 22)
            continue;
        *bytes = tl_bytes_get(p + 12, 4, false);
        *at = tl_bytes_get(p + 16, 4, false);
        if (*at == UINT32_MAX && back + 20 <= n && memcmp(p - 20, "PK\6\7", 4) == 0) {
            uint64_t wide = tl_bytes_get(p - 12, 8, false);
            if (n < 56 || wide > n - 56 || memcmp(b + wide, "PK\6\6", 4) != 0)
                return false;
            *bytes = tl_bytes_get(b + wide + 40, 8, false);
            *at = tl_bytes_get(b + wide + 48, 8, false);
        }
        return *at <= n && *bytes <= n - *at;
    }
    return false;
}

tl_status tl_npz_read(tl_arrays *f, const unsigned char *b, size_t n)
{
    uint64_t at, left, total = 0;
    if (!find_directory(b, n, &at, &left))
        return tl_arrays_bad(f, "no whole .npz file: its %zu bytes end with no directory", n);
    while (left > 0) {
        const unsigned char *p = b + at;
        size_t length = left < 46 ? 0 : tl_bytes_get(p + 28, 2, false),
               extra = left < 46 ? 0 : tl_bytes_get(p + 30, 2, false),
               entry_size = left < 46 ? 46 : 46 + length + extra + tl_bytes_get(p + 32, 2, false);
        member m = {.name = p + 46, .length = length};
        if (entry_size > left || memcmp(p, "PK\1\2", 4) != 0)
            return tl_arrays_bad(f, "byte %" PRIu64 " begins no entry of the directory", at);
        m.flags = (int)tl_bytes_get(p + 8, 2, false);
        m.method = (int)tl_bytes_get(p + 10, 2, false);
        m.crc = (uint32_t)tl_bytes_get(p + 16, 4, false);
        m.stored = tl_bytes_get(p + 20, 4, false);
        m.size = tl_bytes_get(p + 24, 4, false);
        m.at = tl_bytes_get(p + 42, 4, false);
        if (!widen(&m, p + 46 + length, extra) || m.stored > n - total)
            return tl_arrays_bad(f,
                                 "the entry at byte %" PRIu64 " claims %" PRIu64
                                 " bytes; others have %" PRIu64 " of the file's %zu",
                                 at, m.stored, total, n);
        total += m.stored;
        TL_TRY(read_member(f, &m, b, n));
        at += entry_size;
        left -= entry_size;
    }
    return f->n > 0 ? TL_OK : tl_arrays_bad(f, "an archive without arrays");
}
