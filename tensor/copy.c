/* copy.c: copies strided arrays, and finds where two differ. */
#include <string.h>

#include "tensor/operands.h"
#include "tensor/storage.h"
#include "tensor/threads.h"

/* n elements of `size` bytes; strides in elements. Inlined, so that size can be a constant. */
static inline __attribute__((always_inline)) void copy_elements(char *d, int64_t ds, const char *s,
                                                                int64_t ss, int64_t n, size_t size)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(d + i * ds * (int64_t)size, s + i * ss * (int64_t)size, size);
}

static void copy_row(char *d, int64_t ds, const char *s, int64_t ss, int64_t n, size_t size)
{
    if (ds == 1 && ss == 1)
        memcpy(d, s, (size_t)n * size);
    else if (size == 8)
        copy_elements(d, ds, s, ss, n, 8);
    else if (size == 4)
        copy_elements(d, ds, s, ss, n, 4);
    else if (size == 2)
        copy_elements(d, ds, s, ss, n, 2);
    else
        copy_elements(d, ds, s, ss, n, 1);
}

void tl_array_gather(const tl_array *a, int64_t from, int64_t n, void *to)
{
    const int last = a->ndim - 1;
    const int64_t size = (int64_t)tl_dtype_size(a->dtype);
    const int64_t row = last < 0 ? 1 : a->dim[last], step = last < 0 ? 1 : a->stride[last];
    tl_cursor at = tl_cursor_at(a, last < 0 ? 0 : last, from / row);
    char *d = to;
    for (int64_t j = from % row, m; n > 0; n -= m, j = 0, tl_cursor_next(&at), d += m * size) {
        m = row - j < n ? row - j : n;
        copy_row(d, 1, (const char *)tl_cursor_data(&at) + j * step * size, step, m, (size_t)size);
    }
}

/* A copy to v[0] from v[1]. Both have the same collapsed dims; the last two are the rows and
 * columns of a plane. */
typedef struct {
    tl_array v[2];
    size_t size; /* of an element */
} copying;

/* Copies rows begin to end, counted through all planes, one block of columns after another. So the
 * cache lines of an array whose columns are contiguous are still there for the next row. */
static void copy_rows(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    enum { BLOCK = 64 };
    const copying *c = ctx;
    const tl_array *d = &c->v[0], *s = &c->v[1];
    const int col = d->ndim - 1, row = col - 1;
    const int64_t rows = d->dim[row], cols = d->dim[col], size = (int64_t)c->size;
    const int64_t block = d->stride[col] == 1 && s->stride[col] == 1 ? cols : BLOCK;
    tl_cursor to = tl_cursor_at(d, row, begin / rows), from = tl_cursor_at(s, row, begin / rows);
    for (int64_t first = begin % rows, n; begin < end; begin += n, first = 0) {
        n = rows - first < end - begin ? rows - first : end - begin;
        for (int64_t j = 0; j < cols; j += block)
            for (int64_t i = first; i < first + n; i++)
                copy_row((char *)tl_cursor_data(&to) +
                             (i * d->stride[row] + j * d->stride[col]) * size,
                         d->stride[col],
                         (const char *)tl_cursor_data(&from) +
                             (i * s->stride[row] + j * s->stride[col]) * size,
                         s->stride[col], cols - j < block ? cols - j : block, c->size);
        tl_cursor_next(&to);
        tl_cursor_next(&from);
    }
}

/* Copies elements begin to end of arrays of one dim. */
static void copy_part(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const copying *c = ctx;
    const int64_t size = (int64_t)c->size, ds = c->v[0].stride[0], ss = c->v[1].stride[0];
    copy_row((char *)c->v[0].data + begin * ds * size, ds,
             (const char *)c->v[1].data + begin * ss * size, ss, end - begin, c->size);
}

void tl_array_copy(const tl_array *dst, const tl_array *src)
{
    enum { GRAIN = 32768 }; /* elements */
    copying c = {{*dst, *src}, tl_dtype_size(dst->dtype)};
    const int64_t count = tl_array_count(dst);
    if (count == 0)
        return;
    tl_array_collapse(c.v, 2);
    const int64_t row = c.v[0].ndim == 0 ? 1 : c.v[0].dim[c.v[0].ndim - 1];
    if (c.v[0].ndim == 0)
        memcpy(dst->data, src->data, c.size);
    else if (c.v[0].ndim == 1)
        tl_parallel_for(row, GRAIN, copy_part, &c);
    else
        tl_parallel_for(count / row, 1 + GRAIN / row, copy_rows, &c);
}

int64_t tl_arrays_differ(const tl_array *a, const tl_array *b)
{
    const size_t size = tl_dtype_size(a->dtype);
    const int64_t n = tl_array_count(a);
    if (a->dtype != b->dtype || !tl_array_same_shape(a, b))
        return 0;
    if (tl_array_contiguous(a) && tl_array_contiguous(b) &&
        (n == 0 || memcmp(a->data, b->data, (size_t)n * size) == 0))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        const void *x = tl_array_at(a, i), *y = tl_array_at(b, i);
        if (memcmp(x, y, size) == 0)
            continue;
        if (!tl_dtype_is_float(a->dtype))
            return i;
        const double u = tl_element_get(a->dtype, x), v = tl_element_get(a->dtype, y);
        if (u == u || v == v)
            return i;
    }
    return -1;
}
