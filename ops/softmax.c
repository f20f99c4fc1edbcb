/* softmax, log_softmax over a dim
 * Shape:  as x
 * Dtype:  f16 bf16 f32 f64
 * Bits:   m = max, e = exp(x - m), l = lanes(e), y = e*(1/l); log: y = (x - m) - log(l) (NUMERICS
 *         6.3, 6.4)
 * VJP:    softmax dx = y*(dy - sum(dy*y)); log_softmax dx = dy - exp(y)*sum(dy).   Saves y.
 * Errors: TL_EDTYPE TL_ESHAPE
 * The kernels run over the last dim; another dim is brought there by a view.
 */
#include "ops/build.h"

static tl_status row_shape(tl_call *c)
{
    for (int i = 0; i < c->n_in; i++)
        if (!tl_dtype_is_float(c->in[i]->dtype))
            return tl_call_fail(c, TL_EDTYPE, "input %d is %s; floats are needed", i,
                                tl_dtype_name(c->in[i]->dtype));
    if (c->in[0]->ndim == 0)
        return tl_call_fail(c, TL_ESHAPE, "a 0-d tensor has no rows");
    c->out[0] = *c->in[0];
    return TL_OK;
}

static tl_tensor row_grad(tl_vjp *g, const tl_op *op)
{
    return tl_apply1(TL_AT(g->t), op, NULL, (tl_tensor[]){g->dy[0], g->out[0]}, 2);
}

static void softmax_vjp(tl_vjp *g) { g->dx[0] = row_grad(g, &tl_op_softmax_grad); }
static void log_softmax_vjp(tl_vjp *g) { g->dx[0] = row_grad(g, &tl_op_log_softmax_grad); }

const tl_op tl_op_softmax = {.name = "softmax",
                             .n_in = 1,
                             .n_out = 1,
                             .traits = TL_HEAVY | TL_BY_ROWS,
                             .shape = row_shape,
                             .slot = TL_ROW_softmax,
                             .vjp = softmax_vjp,
                             .saves_out = 1,
                             .batch = tl_batch_rows};
const tl_op tl_op_log_softmax = {.name = "log_softmax",
                                 .n_in = 1,
                                 .n_out = 1,
                                 .traits = TL_HEAVY | TL_BY_ROWS,
                                 .shape = row_shape,
                                 .slot = TL_ROW_log_softmax,
                                 .vjp = log_softmax_vjp,
                                 .saves_out = 1,
                                 .batch = tl_batch_rows};

static tl_tensor over_dim(tl_at at, const tl_op *op, tl_tensor x, int dim)
{
    int nd = tl_shape_of(at.tape, x).ndim;
    if (nd == 0 || dim == -1 || dim == nd - 1)
        return tl_apply1(at, op, NULL, &x, 1);
    if (tl_dims_of(at, op->name, x, TL_DIMS(dim)) < 0)
        return TL_NONE;
    tl_tensor last = tl_transpose_at(at, x, dim, -1);
    return tl_transpose_at(at, tl_apply1(at, op, NULL, &last, 1), dim, -1);
}

tl_tensor tl_softmax_at(tl_at at, tl_tensor x, int dim)
{
    return over_dim(at, &tl_op_softmax, x, dim);
}
tl_tensor tl_log_softmax_at(tl_at at, tl_tensor x, int dim)
{
    return over_dim(at, &tl_op_log_softmax, x, dim);
}

/* logsumexp: log(sum(e^(x - m))) + m, m = max(x), or 0 where that is infinite; in the compute type
 * and rounded once (NUMERICS 6.13). m is a constant to the gradient, which it does not change. */
tl_tensor tl_logsumexp_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims)
{
    tl_dtype own = tl_dtype_of(at.tape, x), c = tl_dtype_compute(own);
    if (tl_dims_of(at, "logsumexp", x, dims) < 0)
        return TL_NONE;
    x = tl_in_dtype(at, x, c);
    tl_tensor m = tl_detach_at(at, tl_max_at(at, x, dims, true));
    tl_tensor finite = tl_lt_at(at, tl_abs_at(at, m),
                                tl_fill_at(at, c, TL_SCALAR, (double)INFINITY));
    m = tl_where_at(at, finite, m, tl_fill_at(at, c, TL_SCALAR, 0));
    tl_tensor y = tl_sum_at(at, tl_exp_at(at, tl_sub_at(at, x, m)), dims, keepdims);
    m = tl_reshape_at(at, m, tl_shape_of(at.tape, y));
    return tl_in_dtype(at, tl_add_at(at, tl_log_at(at, y), m), own);
}

/* ---- softmax_grad(dy, y), log_softmax_grad(dy, y), all in the compute type ---- */

static tl_status grad_shape(tl_call *c)
{
    TL_TRY(row_shape(c));
    if (!tl_array_same_shape(c->in[0], c->in[1]) || c->in[0]->dtype != c->in[1]->dtype)
        return tl_call_fail(c, TL_ESHAPE, "dy and y differ in shape or dtype");
    return TL_OK;
}

/* f(dy, y) = y*(dy - d), d = sum(dy*y). With cotangent u, e = sum(u*y):
 * d_dy = y*(u - e);  d_y = u*(dy - d) - dy*e */
static void softmax_grad_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    tl_tensor u = g->dy[0], dy = g->in[0], y = g->in[1], e = tl_sum_rows_last(t, tl_mul(t, u, y));
    if (g->wants[0])
        g->dx[0] = tl_mul(t, y, tl_sub(t, u, e));
    if (g->wants[1]) {
        tl_tensor d = tl_sum_rows_last(t, tl_mul(t, dy, y));
        g->dx[1] = tl_sub(t, tl_mul(t, u, tl_sub(t, dy, d)), tl_mul(t, dy, e));
    }
}

/* f(dy, y) = dy - exp(y)*d, d = sum(dy). With cotangent u, e = sum(u*exp(y)):
 * d_dy = u - e;  d_y = -(u*exp(y))*d */
static void log_softmax_grad_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    tl_tensor ue = tl_mul(t, g->dy[0], tl_exp(t, g->in[1]));
    if (g->wants[0])
        g->dx[0] = tl_sub(t, g->dy[0], tl_sum_rows_last(t, ue));
    if (g->wants[1])
        g->dx[1] = tl_neg(t, tl_mul(t, ue, tl_sum_rows_last(t, g->in[0])));
}

const tl_op tl_op_softmax_grad = {.name = "softmax_grad",
                                  .n_in = 2,
                                  .n_out = 1,
                                  .traits = TL_HEAVY | TL_BY_ROWS,
                                  .shape = grad_shape,
                                  .slot = TL_ROW_softmax_grad,
                                  .vjp = softmax_grad_vjp,
                                  .saves_in = 3,
                                  .batch = tl_batch_rows};
const tl_op tl_op_log_softmax_grad = {.name = "log_softmax_grad",
                                      .n_in = 2,
                                      .n_out = 1,
                                      .traits = TL_HEAVY | TL_BY_ROWS,
                                      .shape = grad_shape,
                                      .slot = TL_ROW_log_softmax_grad,
                                      .vjp = log_softmax_grad_vjp,
                                      .saves_in = 3,
                                      .batch = tl_batch_rows};
