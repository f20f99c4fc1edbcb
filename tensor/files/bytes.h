/* bytes.h: the one form in which elements leave the machine and come back, and what readers and
 * writers of texts share. For all rooms.
 *
 * Elements are row-major and little-endian, every NaN is the dtype's one quiet pattern (sign 0, top
 * fraction bit 1), every BOOL is 0 or 1. These bytes are hashed and saved, so strides, byte order
 * and the payloads of NaNs do not show. */
#ifndef TL_BYTES_H
#define TL_BYTES_H

#include "tensor/array.h"

/* Takes the next n bytes; anything but TL_OK ends the walk. bytes: borrowed for the call. */
typedef tl_status tl_bytes_fn(void *ctx, const void *bytes, size_t n);

/* Hands the elements of a (any strides; borrows) to fn in that form, first to last, in blocks of at
 * most TL_BYTES_BLOCK bytes that split no element. A block that lies in memory in that form is not
 * copied. Needs no memory but one block of stack. Returns the first status of fn that is not TL_OK.
 */
enum { TL_BYTES_BLOCK = 16384 };
tl_status tl_array_bytes(const tl_array *a, tl_bytes_fn *fn, void *ctx);

/* This machine stores the lowest byte first. */
enum { TL_LITTLE_ENDIAN = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ };
/* n elements of the given size (1, 2, 4, 8) at p, in place: bytes reversed. */
void tl_bytes_swap(void *p, size_t n, size_t size);
/* The same on a big-endian host; nothing on a little-endian one. */
void tl_bytes_swap_host(void *p, size_t n, size_t size);

/* A 64-bit number as 8 bytes, lowest first, on every host. */
void tl_bytes_put64(unsigned char out[8], uint64_t x);
/* An unsigned number of `size` bytes, at most 8; big: the highest byte first. */
static inline uint64_t tl_bytes_get(const unsigned char *in, int size, bool big)
{
    uint64_t x = 0;
    for (int i = 0; i < size; i++)
        x |= (uint64_t)in[big ? size - 1 - i : i] << 8 * i;
    return x;
}
static inline uint64_t tl_bytes_get64(const unsigned char in[8])
{
    return tl_bytes_get(in, 8, false);
}

/* How many of the n > 0 bytes at s are the first character (RFC 3629: the shortest form, no
 * surrogates, nothing above U+10FFFF); 0 if they begin none. */
static inline size_t tl_utf8_length(const char *s, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *b = (const unsigned char *)s;
    if (*b < 0x80)
        return 1;
    size_t length = *b >> 5 == 6 ? 2 : *b >> 4 == 14 ? 3 : *b >> 3 == 30 ? 4 : 0;
    if (length == 0 || length > n)
        return 0;
    uint32_t x = *b & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (b[i] >> 6 != 2)
            return 0;
        x = x << 6 | (b[i] & 0x3fu);
    }
    return x < least[length] || x > 0x10ffff || (x >= 0xd800 && x <= 0xdfff) ? 0 : length;
}
/* How many of the n bytes at s are valid UTF-8: n if all are. */
size_t tl_utf8_prefix(const char *s, size_t n);

/* Sorts n items of that size, each of which begins with a pointer to its name, by the bytes of the
 * names. Returns a name that two of them have, or NULL. */
const char *tl_names_sort(void *items, int n, size_t size);
/* Whether a name fits a pattern, in which * stands for any bytes and ? for one byte. */
bool tl_name_fits(const char *pattern, const char *name);
/* The item of that name among items sorted in this way, or NULL. */
const void *tl_names_find(const void *items, int n, size_t size, const char *name);

#endif
