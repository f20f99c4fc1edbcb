/* build.h: what the files of ops/ share - shape rules, the usual op headers, and
 * one-line constructors. Private to ops/. */
#ifndef TL_OPS_BUILD_H
#define TL_OPS_BUILD_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "autograd/author.h"
#include "autograd/pointwise.h"
#include "autograd/tape.h"
#include "ops/list.h"
#include "ops/ops.h"
#include "tensor/arena.h"
#include "tensor/isa.h"
#include "tensor/threads.h"

/* Pointwise over floats (tl_pointwise_shape, and TL_EDTYPE for i64 and bool). */
tl_status tl_float_shape(tl_call *c);
extern const tl_attr tl_const_schema[]; /* {"c"} */

#define TL_UNARY(id) \
    .name = #id, .n_in = 1, .n_out = 1, .shape = tl_float_shape, .slot = TL_TILE_##id
#define TL_BINARY(id) \
    .name = #id, .n_in = 2, .n_out = 1, .shape = tl_float_shape, .slot = TL_TILE_##id
#define TL_CONST_ATTRS .attr = tl_const_schema, .attr_size = sizeof(tl_const_attrs)

#define TL_UNARY_CALL(id)                               \
    tl_tensor tl_##id##_at(tl_at at, tl_tensor x)       \
    {                                                   \
        return tl_apply1(at, &tl_op_##id, NULL, &x, 1); \
    }
#define TL_BINARY_CALL(id)                                               \
    tl_tensor tl_##id##_at(tl_at at, tl_tensor a, tl_tensor b)           \
    {                                                                    \
        return tl_apply1(at, &tl_op_##id, NULL, (tl_tensor[]){a, b}, 2); \
    }
#define TL_CONST_CALL(id)                                   \
    tl_tensor tl_##id##_at(tl_at at, tl_tensor x, double c) \
    {                                                       \
        tl_const_attrs a = {c};                             \
        return tl_apply1(at, &tl_op_##id, &a, &x, 1);       \
    }

/* Of cross_entropy, its gradient and nll. */
typedef struct {
    int64_t reduction, ignore_index;
    bool ignore;
    double smoothing; /* cross_entropy's; 0 for nll */
} tl_loss_attrs;

/* n contiguous elements, each rounded once, by all threads. */
void tl_cast_all(int64_t n, tl_dtype from, const void *x, tl_dtype to, void *y);

/* A rule for `batch`: samples lie along axis 0, of all inputs that have any and of the outputs. */
void tl_first_axis(const tl_call *c, const tl_batch *in, tl_batch *out);

/* dim counted from the end if negative; -1 and an error if out of range. */
int tl_find_dim(tl_call *c, int ndim, int64_t dim);

/* The same for the dims of x in a call of `op`, a name: -1 with an error that names op, the dim and
 * x's shape. 0 for a handle that is no good: the op says so. */
int64_t tl_dims_of(tl_at at, const char *op, tl_tensor x, tl_shape dims);

/* v as a 0-d i64, exactly: a fill holds a double. */
tl_tensor tl_integer(tl_at at, int64_t v);
/* x cast to a dtype; x itself where it has that already, which a cast would copy. */
static inline tl_tensor tl_in_dtype(tl_at at, tl_tensor x, tl_dtype dtype)
{
    return tl_is_none(x) || tl_dtype_of(at.tape, x) == dtype ? x : tl_cast_at(at, x, dtype);
}
/* x summed over its last dim, kept as size 1, by lanes - also when that dim is axis 0. */
tl_tensor tl_sum_rows_last(tl_tape *t, tl_tensor x);

/* ---- the rows of a strided array one after another, without a division a row: a row is the last
 * dim, or one element (rows of no dims) ---- */

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
