/* bytes.c: arrays as canonical little-endian bytes, block by block.
 *
 * A block is gathered into a buffer, unless it lies in one piece and is canonical already. Whether
 * it holds anything to repair is one pass over 64-bit words with no branch: in every lane of a
 * word, (u & keep) + add carries into the lane's top bit exactly when u is a NaN, because add is
 * the distance from "just above infinity" to that bit. No lane carries into the next. */
#include "tensor/files/bytes.h"
#include "tensor/operands.h"

#include <stdlib.h>
#include <string.h>

#define EACH16 0x0001000100010001u
#define EACH32 0x0000000100000001u
#define EACH8 0x0101010101010101u

/* A lane needs repair when ((u & keep) + add) & test is not 0, and is `repaired` then: the quiet
 * NaN, or TRUE. */
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
    for (; i + 8 <= bytes; i += 8) {
        memcpy(&w, p + i, 8);
        seen |= (w & keep) + add;
    }
    if (i < bytes) {
        w = 0;
        memcpy(&w, p + i, bytes - i);
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

static bool host_is_little(void)
{
    const uint16_t one = 1;
    unsigned char low;
    memcpy(&low, &one, 1);
    return low == 1;
}

void tl_bytes_swap_host(void *p, size_t n, size_t size)
{
    if (!host_is_little())
        tl_bytes_swap(p, n, size);
}

void tl_bytes_put64(unsigned char out[8], uint64_t x)
{
    for (int i = 0; i < 8; i++)
        out[i] = (unsigned char)(x >> 8 * i);
}

/* A walk over an array in row-major order, by runs along the last dim. */
typedef struct {
    tl_array a;                   /* with dims merged; at least one is left */
    int64_t at[TL_MAX_DIMS];      /* the next element's place */
    const unsigned char *element; /* and its address */
} walk;

static void walk_begin(walk *w, const tl_array *a)
{
    *w = (walk){.a = *a, .element = a->data};
    tl_array_collapse(&w->a, 1);
    if (w->a.ndim == 0) {
        w->a.ndim = 1;
        w->a.dim[0] = w->a.stride[0] = 1;
    }
}

/* Steps k elements along the last dim; at its end, on to the next row. */
static void walk_advance(walk *w, int64_t k)
{
    int64_t size = (int64_t)tl_dtype_size(w->a.dtype);
    int i = w->a.ndim - 1;
    w->at[i] += k;
    w->element += k * w->a.stride[i] * size;
    while (i > 0 && w->at[i] == w->a.dim[i]) {
        w->element += (w->a.stride[i - 1] - w->at[i] * w->a.stride[i]) * size;
        w->at[i--] = 0;
        w->at[i]++;
    }
}

static void gather(unsigned char *out, const unsigned char *in, int64_t n, int64_t step,
                   size_t size)
{
    if (step == (int64_t)size) {
        memcpy(out, in, (size_t)n * size);
        return;
    }
    switch (size) {
    case 8:
        for (int64_t i = 0; i < n; i++)
            memcpy(out + i * 8, in + i * step, 8);
        break;
    case 4:
        for (int64_t i = 0; i < n; i++)
            memcpy(out + i * 4, in + i * step, 4);
        break;
    case 2:
        for (int64_t i = 0; i < n; i++)
            memcpy(out + i * 2, in + i * step, 2);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            out[i] = in[i * step];
        break;
    }
}

tl_status tl_array_bytes(const tl_array *a, tl_bytes_fn *fn, void *ctx)
{
    unsigned char block[TL_BYTES_BLOCK];
    const size_t size = tl_dtype_size(a->dtype);
    const bool in_place = tl_array_contiguous(a) && host_is_little();
    int64_t left = tl_array_count(a), room = TL_BYTES_BLOCK / (int64_t)size, held = 0;
    walk w;
    if (left == 0)
        return TL_OK;
    walk_begin(&w, a);
    const int last = w.a.ndim - 1;
    while (left > 0) {
        int64_t n = w.a.dim[last] - w.at[last];
        n = n < room - held ? n : room - held;
        left -= n;
        if (in_place && !needs_repair(a->dtype, w.element, (size_t)n * size)) {
            TL_TRY(fn(ctx, w.element, (size_t)n * size));
        } else {
            gather(block + (size_t)held * size, w.element, n, w.a.stride[last] * (int64_t)size,
                   size);
            held += n;
        }
        if (left > 0)
            walk_advance(&w, n);
        if (held == 0 || (held < room && left > 0))
            continue;
        if (needs_repair(a->dtype, block, (size_t)held * size))
            repair(a->dtype, block, (size_t)held);
        tl_bytes_swap_host(block, (size_t)held, size);
        TL_TRY(fn(ctx, block, (size_t)held * size));
        held = 0;
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
