/* sum, mean over dims; sum_to: x folded down to a shape
 * Shape:  sum, mean: the reduced dims go, or stay as 1. sum_to: a shape that broadcasts to x's
 * Dtype:  f16 bf16 f32 f64; sum_to's accumulator f64 (any fold) or the compute type (same shape)
 * Bits:   rows by lanes, folds in f64, one rounding; mean divides once in f64 (NUMERICS 3, 4)
 * VJP:    dy expanded to x; mean: dy/n
 * Errors: TL_ESHAPE TL_EDTYPE
 */
#include "ops/fold.h"

typedef struct {
    int64_t dims; /* bit i: dim i is reduced */
    bool keepdims;
} sum_attrs;

static const tl_attr sum_schema[] = {{"dims", TL_ATTR_I64, offsetof(sum_attrs, dims)},
                                     {"keepdims", TL_ATTR_BOOL, offsetof(sum_attrs, keepdims)},
                                     {0}};

static tl_status sum_shape(tl_call *c)
{
    const sum_attrs *a = c->attrs;
    const tl_array *x = c->in[0];
    if (!tl_dtype_is_float(x->dtype))
        return tl_call_fail(c, TL_EDTYPE, "x is %s; floats are needed (cast it)",
                            tl_dtype_name(x->dtype));
    if (a->dims < 0 || a->dims >> x->ndim)
        return tl_call_fail(c, TL_ESHAPE,
                            "a dim beyond the %d of x is listed, or one is listed twice", x->ndim);
    tl_array *o = &c->out[0];
    *o = *x;
    o->ndim = 0;
    for (int i = 0; i < x->ndim; i++)
        if (!(a->dims >> i & 1))
            o->dim[o->ndim++] = x->dim[i];
        else if (a->keepdims)
            o->dim[o->ndim++] = 1;
    return TL_OK;
}

/* Trailing reduced dims, axis 0 excepted: the row. */
static int row_dims(const tl_array *x, int64_t dims)
{
    int n = 0;
    while (n < x->ndim - 1 && dims >> (x->ndim - 1 - n) & 1)
        n++;
    return n;
}

static tl_status reduce(tl_call *c, bool mean)
{
    int64_t dims = ((const sum_attrs *)c->attrs)->dims;
    const tl_array *x = c->in[0];
    int n_row = row_dims(x, dims);
    double count = 1;
    tl_array rows = *x, acc = *x;
    rows.ndim -= n_row;
    acc.ndim = rows.ndim;
    acc.dtype = TL_F64;
    for (int i = 0; i < x->ndim; i++)
        if (dims >> i & 1) {
            count *= (double)x->dim[i];
            if (i < acc.ndim)
                acc.dim[i] = 1;
        }
    tl_array_set_contiguous(&acc);
    tl_storage *row_st = NULL, *acc_st = tl_scratch(c, (size_t)tl_array_count(&acc) * 8, true);
    tl_status s = acc_st == NULL ? TL_ENOMEM : TL_OK;
    if (s == TL_OK && n_row > 0) {
        rows.dtype = tl_dtype_compute(x->dtype);
        tl_array_set_contiguous(&rows);
        row_st = tl_scratch(c, (size_t)tl_array_count(&rows) * tl_dtype_size(rows.dtype), false);
        rows.data = row_st == NULL ? NULL : row_st->data;
        s = row_st == NULL ? TL_ENOMEM : tl_sum_rows(c, x, n_row, &rows);
    }
    if (s ==
        TL_OK) { /* without a fold each accumulator takes one row: exact, and rounds back to it */
        acc.data = acc_st->data;
        s = tl_fold_into(c, &rows, &acc);
        tl_round_from_f64(acc.data, mean ? &count : NULL, &c->out[0]);
    }
    tl_storage_release(row_st);
    tl_storage_release(acc_st);
    return s;
}

static tl_status sum_forward(tl_call *c) { return reduce(c, false); }
static tl_status mean_forward(tl_call *c) { return reduce(c, true); }

/* dy with the reduced dims back, seen in x's shape. */
static tl_tensor spread(tl_vjp *g)
{
    int64_t dims = ((const sum_attrs *)g->attrs)->dims;
    tl_shape full = tl_shape_of(g->t, g->in[0]), kept = full;
    for (int i = 0; i < kept.ndim; i++)
        if (dims >> i & 1)
            kept.dim[i] = 1;
    return tl_expand(g->t, tl_reshape(g->t, g->dy[0], kept), full);
}

static void sum_vjp(tl_vjp *g) { g->dx[0] = spread(g); }

static void mean_vjp(tl_vjp *g)
{
    tl_shape in = tl_shape_of(g->t, g->in[0]), out = tl_shape_of(g->t, g->out[0]);
    int64_t kept = tl_shape_count(&out), n = kept == 0 ? 1 : tl_shape_count(&in) / kept;
    g->dx[0] = tl_div(g->t, spread(g),
                      tl_scalar(g->t, tl_dtype_compute(tl_dtype_of(g->t, g->dy[0])), (double)n));
}

#define SUM(id)                                                                     \
    .name = #id, .n_in = 1, .n_out = 1, .traits = TL_REDUCTION, .shape = sum_shape, \
    .forward = id##_forward, .attr = sum_schema, .attr_size = sizeof(sum_attrs), .vjp = id##_vjp
const tl_op tl_op_sum = {SUM(sum)};
const tl_op tl_op_mean = {SUM(mean)};

static tl_tensor reduced(tl_at at, const tl_op *op, tl_tensor x, tl_shape dims, bool keepdims)
{
    sum_attrs a = {tl_dims_of(at, op->name, x, dims), keepdims};
    return a.dims < 0 ? TL_NONE : tl_apply1(at, op, &a, &x, 1);
}

tl_tensor tl_sum_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims)
{
    return reduced(at, &tl_op_sum, x, dims, keepdims);
}
tl_tensor tl_mean_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims)
{
    return reduced(at, &tl_op_mean, x, dims, keepdims);
}

tl_tensor tl_sum_rows_last(tl_tape *t, tl_tensor x)
{
    tl_shape s = tl_shape_of(t, x), one = s;
    if (s.ndim != 1)
        return tl_sum(t, x, TL_DIMS(-1), true);
    one = (tl_shape){2, {1, s.dim[0]}};
    return tl_reshape(t, tl_sum(t, tl_reshape(t, x, one), TL_DIMS(1), true), TL_DIMS(1));
}

/* ---- sum_to ---- */

static tl_status sum_to_shape(tl_call *c)
{
    const tl_sum_to_attrs *a = c->attrs;
    const tl_array *x = c->in[0], *acc = c->in[1];
    char sx[TL_SHAPE_TEXT], sy[TL_SHAPE_TEXT];
    if (!tl_dtype_is_float(x->dtype) || !tl_dtype_is_float(a->dtype))
        return tl_call_fail(c, TL_EDTYPE, "%s to %s; floats are needed", tl_dtype_name(x->dtype),
                            tl_dtype_name(a->dtype));
    int lead = x->ndim - a->shape.ndim;
    for (int i = 0; i < a->shape.ndim; i++)
        if (lead < 0 || (a->shape.dim[i] != 1 && a->shape.dim[i] != x->dim[i + lead]))
            return tl_call_fail(c, TL_ESHAPE, "%s does not fold down to %s",
                                tl_array_shape_text(sx, x), tl_shape_text(sy, &a->shape));
    c->out[0] = tl_array_make(a->dtype, &a->shape, NULL);
    if (c->mode & TL_SHADOW && x->dtype == TL_F64)
        c->out[0].dtype = TL_F64;
    if (acc == NULL)
        return TL_OK;
    bool same = tl_array_same_shape(acc, x);
    if (!tl_array_same_shape(acc, &c->out[0]) || (acc->dtype != TL_F64 && !same))
        return tl_call_fail(c, TL_ESHAPE, "accumulator %s %s for a fold of %s to %s",
                            tl_array_shape_text(sx, acc), tl_dtype_name(acc->dtype),
                            tl_dtype_name(x->dtype), tl_shape_text(sy, &a->shape));
    c->out[0] = *acc;
    return TL_OK;
}

/* A f32 accumulator of x's own shape: acc = acc + x, x rounded to f32 if it is wider. */
static tl_status accumulate(tl_call *c)
{
    const tl_array *x = c->in[0];
    tl_array *acc = &c->out[0], sum = *acc, wide;
    int64_t n = tl_array_count(acc);
    tl_storage *st = tl_scratch(c, 2 * (size_t)n * sizeof(float), false), *held = NULL;
    if (st == NULL)
        return TL_ENOMEM;
    float *term = (float *)st->data + n;
    sum.data = st->data;
    tl_array_set_contiguous(&sum);
    tl_status s = tl_as_compute(c, x, &wide, &held);
    if (s == TL_OK) {
        tl_array_copy(&sum, acc);
        tl_isa_now()->convert->cast(n, wide.dtype, wide.data, TL_F32, term);
        tl_isa_now()->row->accumulate32(n, term, sum.data);
        tl_array_copy(acc, &sum);
    }
    tl_storage_release(held);
    tl_storage_release(st);
    return s;
}

static tl_status sum_to_forward(tl_call *c)
{
    const tl_array *x = c->in[0];
    tl_array acc = c->out[0], lined = {.dtype = TL_F64, .ndim = x->ndim};
    int lead = x->ndim - acc.ndim;
    tl_storage *st = NULL;
    if (c->in[1] != NULL && acc.dtype != TL_F64)
        return accumulate(c);
    if (c->in[1] == NULL) {
        st = tl_scratch(c, (size_t)tl_array_count(&acc) * 8, true);
        if (st == NULL)
            return TL_ENOMEM;
        acc.dtype = TL_F64;
        acc.data = st->data;
    }
    for (int i = 0; i < x->ndim; i++) {
        lined.dim[i] = i < lead ? 1 : acc.dim[i - lead];
        lined.stride[i] = i < lead ? 0 : acc.stride[i - lead];
    }
    lined.data = acc.data;
    tl_status s = tl_fold_into(c, x, &lined);
    if (st != NULL)
        tl_round_from_f64(st->data, NULL, &c->out[0]);
    tl_storage_release(st);
    return s;
}

static void sum_to_vjp(tl_vjp *g)
{
    g->dx[0] = tl_expand(g->t, g->dy[0], tl_shape_of(g->t, g->in[0]));
}

static const tl_attr sum_to_schema[] = {{"shape", TL_ATTR_SHAPE, offsetof(tl_sum_to_attrs, shape)},
                                        {"dtype", TL_ATTR_DTYPE, offsetof(tl_sum_to_attrs, dtype)},
                                        {0}};

const tl_op tl_op_sum_to = {.name = "sum_to",
                            .n_in = 2,
                            .n_out = 1,
                            .optional = TL_BIT(1),
                            .traits = TL_REDUCTION | TL_MUTATES,
                            .mutates = 1,
                            .shape = sum_to_shape,
                            .forward = sum_to_forward,
                            .attr = sum_to_schema,
                            .attr_size = sizeof(tl_sum_to_attrs),
                            .vjp = sum_to_vjp};

tl_tensor tl_sum_to_at(tl_at at, tl_tensor x, tl_shape shape, tl_tensor acc)
{
    tl_sum_to_attrs a = {shape,
                         tl_is_none(acc) ? tl_dtype_of(at.tape, x) : tl_dtype_of(at.tape, acc)};
    return tl_apply1(at, &tl_op_sum_to, &a, (tl_tensor[]){x, acc}, 2);
}
