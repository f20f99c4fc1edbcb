/* bytes.c: arrays as canonical little-endian bytes, block by block.
 *
 * A block is gathered into a buffer, unless it lies in one piece and is canonical already. One pass
 * over 64-bit words, without a branch, finds whether it holds anything to repair: in every lane of
 * a word, (u & keep) + add carries into the lane's top bit exactly when u is a NaN, because add is
 * the distance from "just above infinity" to that bit. No lane carries into the next. */
#include "tensor/files/bytes.h"
#include "tensor/operands.h"
#include "tensor/storage.h"

#include <stdlib.h>
#include <string.h>

#define EACH16 0x0001000100010001u
#define EACH32 0x0000000100000001u
#define EACH8 0x0101010101010101u

/* A lane needs repair when ((u & keep) + add) & test is not 0. It then becomes `repaired`: the
 * quiet NaN, or TRUE. */
static const struct {
    uint64_t keep, add, test, repaired;
} lanes[TL_DTYPE_COUNT] = {
    [TL_F64] = {0x7fffffffffffffffu, 0x000fffffffffffffu, 0x8000000000000000u, 0x7ff8000000000000u},
    [TL_F32] = {0x7fffffffu * EACH32, 0x007fffffu * EACH32, 0x80000000u * EACH32,
                0x7fc00000u * EACH32},
    [TL_F16] = {0x7fffu * EACH16, 0x03ffu * EACH16, 0x8000u * EACH16, 0x7e00u * EACH16},
    [TL_BF16] = {0x7fffu * EACH16, 0x007fu * EACH16, 0x8000u * EACH16, 0x7fc0u * EACH16},
    [TL_I64] = {0, 0, 0, 0},
    [TL_BOOL] = {0xfeu * EACH8, 0, 0xfeu * EACH8, EACH8},
};

/* Every processor has registers of this width. */
typedef uint64_t pair __attribute__((vector_size(16)));

static bool needs_repair(tl_dtype d, const unsigned char *p, size_t bytes)
{
    uint64_t keep = lanes[d].keep, add = lanes[d].add, seen = 0, w;
    size_t i = 0;
    pair x, y, any_x = {0}, any_y = {0};
    for (; i + 2 * sizeof x <= bytes; i += 2 * sizeof x) {
        memcpy(&x, p + i, sizeof x);
        memcpy(&y, p + i + sizeof x, sizeof y);
        any_x |= (x & keep) + add;
        any_y |= (y & keep) + add;
    }
    any_x |= any_y;
    seen = any_x[0] | any_x[1];
    for (; i < bytes; i += 8) {
        w = 0;
        memcpy(&w, p + i, bytes - i < 8 ? bytes - i : 8);
        seen |= (w & keep) + add;
    }
    return (seen & lanes[d].test) != 0;
}

/* n elements of dtype d at p, in place: NaNs and BOOLs made canonical, host order kept. */
static void repair(tl_dtype d, unsigned char *p, size_t n)
{
    const size_t size = tl_dtype_size(d);
    for (size_t i = 0; i < n; i++, p += size)
        if (needs_repair(d, p, size))
            memcpy(p, &lanes[d].repaired, size);
}

void tl_bytes_swap(void *p, size_t n, size_t size)
{
    unsigned char *b = p;
    for (size_t i = 0; i < n; i++, b += size)
        for (size_t lo = 0, hi = size - 1; lo < hi; lo++, hi--) {
            unsigned char t = b[lo];
            b[lo] = b[hi];
            b[hi] = t;
        }
}

void tl_bytes_swap_host(void *p, size_t n, size_t size)
{
    if (!TL_LITTLE_ENDIAN)
        tl_bytes_swap(p, n, size);
}

void tl_bytes_put64(unsigned char out[8], uint64_t x)
{
    for (int i = 0; i < 8; i++)
        out[i] = (unsigned char)(x >> 8 * i);
}

tl_status tl_array_bytes(const tl_array *a, tl_bytes_fn *fn, void *ctx)
{
    unsigned char block[TL_BYTES_BLOCK];
    const size_t size = tl_dtype_size(a->dtype);
    const bool in_place = tl_array_contiguous(a) && TL_LITTLE_ENDIAN;
    const int64_t count = tl_array_count(a), room = TL_BYTES_BLOCK / (int64_t)size;
    tl_array merged = *a;
    tl_array_collapse(&merged, 1);
    for (int64_t i = 0, n; i < count; i += n) {
        n = count - i < room ? count - i : room;
        const unsigned char *p = in_place ? (const unsigned char *)a->data + (size_t)i * size
                                          : block;
        if (!in_place || needs_repair(a->dtype, p, (size_t)n * size)) {
            tl_array_gather(&merged, i, n, block);
            if (needs_repair(a->dtype, block, (size_t)n * size))
                repair(a->dtype, block, (size_t)n);
            tl_bytes_swap_host(block, (size_t)n, size);
            p = block;
        }
        TL_TRY(fn(ctx, p, (size_t)n * size));
    }
    return TL_OK;
}

/* ---- texts ---- */

size_t tl_utf8_prefix(const char *s, size_t n)
{
    size_t at = 0, step = 1;
    for (; at < n && step > 0; at += step)
        step = tl_utf8_length(s + at, n - at);
    return at;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

bool tl_name_fits(const char *pattern, const char *name)
{
    const char *star = NULL, *from = name; /* the last *, and what comes after the bytes it takes */
    while (*name != '\0')
        if (*pattern == '*')
            star = ++pattern, from = name;
        else if (*pattern == '?' || *pattern == *name)
            pattern++, name++;
        else if (star != NULL)
            pattern = star, name = ++from;
        else
            return false;
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}

const void *tl_names_find(const void *items, int n, size_t size, const char *name)
{
    return n == 0 || name == NULL ? NULL : bsearch(&name, items, (size_t)n, size, by_name);
}

const char *tl_names_sort(void *items, int n, size_t size)
{
    const char *const *before = items;
    if (n > 1)
        qsort(items, (size_t)n, size, by_name);
    for (int i = 1; i < n; i++) {
        const char *const *next = (const void *)((const char *)items + (size_t)i * size);
        if (strcmp(*before, *next) == 0)
            return *next;
        before = next;
    }
    return NULL;
}
