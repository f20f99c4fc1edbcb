/* slice: elements start, start+step, ... below stop of a dim; select: one, the dim dropped
 * Shape:  as x but for that dim, which may be counted from the end;
 *         slice_grad(dy, size, dim, start, step): dy at start, start+step, ... of a dim of that
 *         size, zeros elsewhere
 * Dtype:  any
 * Bits:   none computed
 * VJP:    slice and select put dy among zeros (slice_grad); slice_grad: the slice of dy
 * Errors: TL_ESHAPE TL_EINDEX
 */
#include "ops/build.h"

static const tl_attr tl_slice_schema[] = {TL_FIELD(tl_slice, dim, DIM),
                                          TL_FIELD(tl_slice, start, I64),
                                          TL_FIELD(tl_slice, stop, I64),
                                          TL_FIELD(tl_slice, step, I64),
                                          {0}};

static tl_status slice_shape(tl_call *c)
{
    const tl_slice_attrs *s = c->attrs;
    const tl_array *x = c->in[0];
    int d = tl_find_dim(c, x->ndim, s->dim);
    if (d < 0)
        return TL_ESHAPE;
    if (s->start < 0 || s->stop > x->dim[d] || s->start > s->stop || s->step < 1)
        return tl_call_fail(c, TL_EINDEX, "%lld to %lld by %lld of dim %d, which has size %lld%s",
                            (long long)s->start, (long long)s->stop, (long long)s->step, d,
                            (long long)x->dim[d], s->step < 1 ? "; the step must be above 0" : "");
    const int64_t length = s->stop - s->start, n = length == 0 ? 0 : (length - 1) / s->step + 1;
    c->out[0] = tl_part_of(x, d, n > 0 ? s->start : 0, n > 1 ? s->step : 1, n);
    return TL_OK;
}

static void slice_vjp(tl_vjp *g)
{
    const tl_slice_attrs *s = g->attrs;
    tl_shape in = tl_shape_of(g->t, g->in[0]);
    int d = tl_dim_from_front(s->dim, in.ndim);
    g->dx[0] = tl_slice_grad(g->t, g->dy[0], in.dim[d], d, s->start, s->step);
}

/* A slice along the batch axis holds some of the samples; the engine works out which. */
const tl_op tl_op_slice = {TL_NAMED(slice, 1, 1), .traits = TL_VIEW, .shape = slice_shape,
                           TL_ATTRS(tl_slice),    .vjp = slice_vjp,  .batch = tl_batch_linear};

/* A bound as in Python: negative from the end, then cut to [0, size]. */
static int64_t bound(int64_t i, int64_t size)
{
    i += i < 0 ? size : 0;
    return i < 0 ? 0 : i > size ? size : i;
}

tl_tensor tl_slice_at(tl_at at, tl_tensor x, int dim, int64_t start, int64_t stop, int64_t step)
{
    tl_shape s = tl_shape_of(at.tape, x);
    int d = tl_dim_from_front(dim, s.ndim);
    if (d >= 0 && d < s.ndim) { /* otherwise the shape rule reports it */
        start = bound(start, s.dim[d]);
        stop = bound(stop, s.dim[d]);
        stop = stop < start ? start : stop;
    }
    tl_slice_attrs a = {dim, start, stop, step};
    return tl_apply1(at, &tl_op_slice, &a, &x, 1);
}

/* ---- select ---- */

typedef struct {
    int64_t dim, index;
} select_attrs;

static const tl_attr select_schema[] = {TL_FIELD(select, dim, DIM),
                                        TL_FIELD(select, index, I64),
                                        {0}};

static tl_status select_shape(tl_call *c)
{
    const select_attrs *s = c->attrs;
    const tl_array *x = c->in[0];
    int d = tl_find_dim(c, x->ndim, s->dim);
    if (d < 0)
        return TL_ESHAPE;
    if (s->index < -x->dim[d] || s->index >= x->dim[d])
        return tl_call_fail(c, TL_EINDEX, "index %lld of dim %d, which has size %lld",
                            (long long)s->index, d, (long long)x->dim[d]);
    tl_array *o = &c->out[0];
    *o = tl_part_of(x, d, s->index < 0 ? s->index + x->dim[d] : s->index, 1, 1);
    for (int i = d; i + 1 < o->ndim; i++) {
        o->dim[i] = o->dim[i + 1];
        o->stride[i] = o->stride[i + 1];
    }
    o->ndim--;
    return TL_OK;
}

static void select_vjp(tl_vjp *g)
{
    const select_attrs *s = g->attrs;
    tl_shape in = tl_shape_of(g->t, g->in[0]), one = in;
    int d = tl_dim_from_front(s->dim, in.ndim);
    one.dim[d] = 1;
    g->dx[0] = tl_slice_grad(g->t, tl_shaped_back(g, g->dy[0], one), in.dim[d], d,
                             s->index < 0 ? s->index + in.dim[d] : s->index, 1);
}

static void select_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const int nd = c->in[0]->ndim;
    const int dim = tl_dim_from_front(((const select_attrs *)c->attrs)->dim, nd);
    out[0] = tl_batch_beside(in[0], nd, dim);
    if (out[0] > dim)
        out[0]--;
}

const tl_op tl_op_select = {TL_NAMED(select, 1, 1), .traits = TL_VIEW, .shape = select_shape,
                            TL_ATTRS(select),       .vjp = select_vjp, .batch = select_batch};

tl_tensor tl_select_at(tl_at at, tl_tensor x, int dim, int64_t index)
{
    return tl_apply1(at, &tl_op_select, &(select_attrs){dim, index}, &x, 1);
}

/* ---- slice_grad ---- */

typedef struct {
    int64_t size, dim, start, step;
} slice_grad_attrs;

static const tl_attr slice_grad_schema[] = {TL_FIELD(slice_grad, size, I64),
                                            TL_FIELD(slice_grad, dim, DIM),
                                            TL_FIELD(slice_grad, start, I64),
                                            TL_FIELD(slice_grad, step, I64),
                                            {0}};

static tl_status slice_grad_shape(tl_call *c)
{
    const slice_grad_attrs *a = c->attrs;
    const tl_array *x = c->in[0];
    int d = tl_find_dim(c, x->ndim, a->dim);
    if (d < 0)
        return TL_ESHAPE;
    int64_t n = x->dim[d], room = a->start < 0 || a->size < 0 ? 0 : a->size - a->start;
    if (a->start < 0 || a->step < 1 || a->size < 0 ||
        (n > 0 && (room < 1 || n > (room - 1) / a->step + 1)))
        return tl_call_fail(c, TL_EINDEX, "%lld elements from %lld by %lld do not fit in size %lld",
                            (long long)x->dim[d], (long long)a->start, (long long)a->step,
                            (long long)a->size);
    c->out[0] = *x;
    c->out[0].dim[d] = a->size;
    return TL_OK;
}

static tl_status slice_grad_forward(tl_call *c)
{
    const slice_grad_attrs *a = c->attrs;
    const tl_array *x = c->in[0], *y = &c->out[0];
    const int d = tl_dim_from_front(a->dim, y->ndim);
    tl_clear(y);
    if (tl_array_count(x) > 0) {
        tl_array part = tl_part_of(y, d, a->start, x->dim[d] > 1 ? a->step : 1, x->dim[d]);
        tl_array_copy(&part, x);
    }
    return TL_OK;
}

static void slice_grad_vjp(tl_vjp *g)
{
    const slice_grad_attrs *a = g->attrs;
    tl_shape s = tl_shape_of(g->t, g->in[0]);
    int64_t n = s.dim[tl_dim_from_front(a->dim, s.ndim)];
    int64_t stop = n == 0 ? a->start : a->start + (n - 1) * a->step + 1;
    g->dx[0] = tl_slice(g->t, g->dy[0], (int)a->dim, a->start, stop, a->step);
}

static void slice_grad_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const slice_grad_attrs *a = c->attrs;
    const bool whole = in[0] >= 0 && a->size == c->in[0]->dim[in[0]];
    out[0] = whole ? in[0] : tl_batch_beside(in[0], c->out[0].ndim, a->dim);
}

const tl_op tl_op_slice_grad = {TL_NAMED(slice_grad, 1, 1),    .shape = slice_grad_shape,
                                .forward = slice_grad_forward, TL_ATTRS(slice_grad),
                                .vjp = slice_grad_vjp,         .batch = slice_grad_batch};

tl_tensor tl_slice_grad_at(tl_at at, tl_tensor dy, int64_t size, int dim, int64_t start,
                           int64_t step)
{
    return tl_apply1(at, &tl_op_slice_grad, &(slice_grad_attrs){size, dim, start, step}, &dy, 1);
}
