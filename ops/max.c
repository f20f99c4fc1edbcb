/* max and min over dims; argmax over one
 * Shape:  the reduced dims go, or stay as 1; none of them may be empty
 * Dtype:  f16 bf16 f32 f64; argmax gives i64
 * Bits:   NaN wins, +0 > -0; argmax: the first index (NUMERICS 4.2, 4.4)
 * VJP:    max, min: dy shared equally among the elements equal to the extreme; argmax: none
 * Errors: TL_ESHAPE (empty) TL_EDTYPE
 */
#include "ops/build.h"

typedef struct {
    int64_t dims;
    bool keepdims;
} max_attrs;

static const tl_attr max_schema[] = {{"dims", TL_ATTR_I64, offsetof(max_attrs, dims)},
                                     {"keepdims", TL_ATTR_BOOL, offsetof(max_attrs, keepdims)},
                                     {0}};

static tl_status max_shape(tl_call *c)
{
    const max_attrs *a = c->attrs;
    const tl_array *x = c->in[0];
    char text[TL_SHAPE_TEXT];
    if (!tl_dtype_is_float(x->dtype))
        return tl_call_fail(c, TL_EDTYPE, "x is %s; floats are needed", tl_dtype_name(x->dtype));
    if (a->dims < 0 || a->dims >> x->ndim)
        return tl_call_fail(c, TL_ESHAPE,
                            "a dim beyond the %d of x is listed, or one is listed twice", x->ndim);
    tl_array *o = &c->out[0];
    *o = *x;
    o->ndim = 0;
    for (int i = 0; i < x->ndim; i++) {
        bool reduced = a->dims >> i & 1;
        if (reduced && x->dim[i] == 0)
            return tl_call_fail(c, TL_ESHAPE, "dim %d of %s is empty and has no %s", i,
                                tl_array_shape_text(text, x),
                                c->op == &tl_op_min ? "minimum" : "maximum");
        if (!reduced || a->keepdims)
            o->dim[o->ndim++] = reduced ? 1 : x->dim[i];
    }
    return TL_OK;
}

/* x with its reduced dims last, in the compute type, contiguous: (kept, n). */
static tl_status as_rows(tl_call *c, int64_t dims, tl_array *rows, int64_t *n)
{
    tl_array p = *c->in[0];
    int w = 0;
    *n = 1;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < c->in[0]->ndim; i++)
            if ((dims >> i & 1) == pass) {
                p.dim[w] = c->in[0]->dim[i];
                p.stride[w++] = c->in[0]->stride[i];
                *n *= pass ? c->in[0]->dim[i] : 1;
            }
    return tl_as_compute(c, &p, rows);
}

static tl_status extreme(tl_call *c, bool min)
{
    tl_array rows;
    int64_t n, count = tl_array_count(&c->out[0]);
    const tl_isa *isa = tl_isa_now();
    TL_TRY(as_rows(c, ((const max_attrs *)c->attrs)->dims, &rows, &n));
    for (int64_t r = 0; r < count; r++) {
        char *y = (char *)c->out[0].data + r * (int64_t)tl_dtype_size(c->out[0].dtype);
        if (rows.dtype == TL_F64) {
            *(double *)(void *)y = (min ? isa->row->min64
                                        : isa->row->max64)(n, (const double *)rows.data + r * n);
        } else {
            float m = (min ? isa->row->min32 : isa->row->max32)(n,
                                                                (const float *)rows.data + r * n);
            isa->convert->narrow(1, c->out[0].dtype, &m, y, 1);
        }
    }
    return TL_OK;
}

static tl_status max_forward(tl_call *c) { return extreme(c, false); }
static tl_status min_forward(tl_call *c) { return extreme(c, true); }

/* mask = (x == extreme), share = dy / count(mask); in a row whose maximum is NaN nothing equals it,
 * and dx is +0. */
static void max_vjp(tl_vjp *g)
{
    const max_attrs *a = g->attrs;
    tl_tape *t = g->t;
    tl_shape full = tl_shape_of(t, g->in[0]), kept = full;
    tl_shape dims = {.ndim = 0};
    for (int i = 0; i < full.ndim; i++)
        if (a->dims >> i & 1) {
            kept.dim[i] = 1;
            dims.dim[dims.ndim++] = i;
        }
    tl_dtype d = tl_dtype_of(t, g->in[0]);
    tl_tensor y = tl_reshape(t, g->out[0], kept), dy = tl_reshape(t, g->dy[0], kept);
    tl_tensor one = tl_scalar(t, tl_dtype_compute(d), 1),
              zero = tl_scalar(t, tl_dtype_compute(d), 0);
    tl_tensor mask = tl_eq(t, g->in[0], y);
    tl_tensor ties = tl_sum(t, tl_where(t, mask, one, zero), dims, true);
    g->dx[0] = tl_where(t, mask, tl_div(t, dy, ties), zero);
}

static void max_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const max_attrs *a = c->attrs;
    out[0] = tl_batch_reduced(in[0] == TL_TOTAL ? TL_MIXED : in[0], a->dims, a->keepdims);
}

/* clang-format off */
#define EXTREME(id)                                                                              \
    const tl_op tl_op_##id = {.name = #id, .n_in = 1, .n_out = 1, .traits = TL_REDUCTION,        \
                              .shape = max_shape, .forward = id##_forward, .attr = max_schema,   \
                              .attr_size = sizeof(max_attrs), .vjp = max_vjp, .saves_in = 1,     \
                              .saves_out = 1, .batch = max_batch};
/* clang-format on */
EXTREME(max)
EXTREME(min)

tl_tensor tl_min_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims)
{
    max_attrs a = {tl_dims_of(at, "min", x, dims), keepdims};
    return a.dims < 0 ? TL_NONE : tl_apply1(at, &tl_op_min, &a, &x, 1);
}

tl_tensor tl_max_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims)
{
    max_attrs a = {tl_dims_of(at, "max", x, dims), keepdims};
    return a.dims < 0 ? TL_NONE : tl_apply1(at, &tl_op_max, &a, &x, 1);
}

static tl_status argmax_shape(tl_call *c)
{
    TL_TRY(max_shape(c));
    c->out[0].dtype = TL_I64;
    return TL_OK;
}

static int64_t first_max(const tl_array *rows, int64_t r, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        double a = rows->dtype == TL_F64 ? ((const double *)rows->data)[r * n + i]
                                         : (double)((const float *)rows->data)[r * n + i];
        double b = rows->dtype == TL_F64 ? ((const double *)rows->data)[r * n + best]
                                         : (double)((const float *)rows->data)[r * n + best];
        if (b != b)
            return best;
        if (a != a || a > b || (a == b && a == 0 && !signbit(a) && signbit(b)))
            best = i;
    }
    return best;
}

static tl_status argmax_forward(tl_call *c)
{
    tl_array rows;
    int64_t n, count = tl_array_count(&c->out[0]);
    TL_TRY(as_rows(c, ((const max_attrs *)c->attrs)->dims, &rows, &n));
    for (int64_t r = 0; r < count; r++)
        ((int64_t *)c->out[0].data)[r] = first_max(&rows, r, n);
    return TL_OK;
}

const tl_op tl_op_argmax = {.name = "argmax",
                            .n_in = 1,
                            .n_out = 1,
                            .traits = TL_REDUCTION | TL_NONDIFF,
                            .shape = argmax_shape,
                            .forward = argmax_forward,
                            .attr = max_schema,
                            .attr_size = sizeof(max_attrs),
                            .batch = max_batch};

tl_tensor tl_argmax_at(tl_at at, tl_tensor x, int dim, bool keepdims)
{
    max_attrs a = {tl_dims_of(at, "argmax", x, TL_DIMS(dim)), keepdims};
    return a.dims < 0 ? TL_NONE : tl_apply1(at, &tl_op_argmax, &a, &x, 1);
}
