/* cursor.h: the rows of a strided array one after another, without a division a row.
 * A row is the last dim (or one element: rows of no dims). Private to ops/. */
#ifndef TL_OPS_CURSOR_H
#define TL_OPS_CURSOR_H

#include "tensor/array.h"

typedef struct {
    const tl_array *a;
    int lead;                /* dims before the row */
    int64_t at[TL_MAX_DIMS]; /* index of the row */
    int64_t offset;          /* of its first element */
} tl_cursor;

/* At row number `row` of a, counted row-major over its first `lead` dims. */
static inline tl_cursor tl_cursor_at(const tl_array *a, int lead, int64_t row)
{
    tl_cursor c = {.a = a, .lead = lead};
    for (int i = lead - 1; i >= 0 && row > 0; i--) {
        c.at[i] = row % a->dim[i];
        c.offset += c.at[i] * a->stride[i];
        row /= a->dim[i];
    }
    return c;
}

static inline void *tl_cursor_data(const tl_cursor *c)
{
    return (char *)c->a->data + c->offset * (int64_t)tl_dtype_size(c->a->dtype);
}

static inline void tl_cursor_next(tl_cursor *c)
{
    for (int i = c->lead - 1; i >= 0; i--) {
        c->offset += c->a->stride[i];
        if (++c->at[i] < c->a->dim[i])
            return;
        c->offset -= c->at[i] * c->a->stride[i];
        c->at[i] = 0;
    }
}

#endif
