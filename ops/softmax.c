/* softmax, log_softmax along a dim; logsumexp over dims
 * Shape:  as x; logsumexp: the reduced dims go, or stay as 1
 * Dtype:  f16 bf16 f32 f64
 * Bits:   m = max, e = exp(x - m), l = lanes(e), y = e*(1/l); log: y = (x - m) - log(l) (NUMERICS
 *         6.3, 6.4)
 * VJP:    softmax dx = y*(dy - sum(dy*y)); log_softmax dx = dy - exp(y)*sum(dy).   Saves y.
 * Errors: TL_EDTYPE TL_ESHAPE
 * The kernels run along the last dim; a view brings another dim there.
 */
#include "ops/build.h"

static tl_status row_shape(tl_call *c)
{
    TL_TRY(tl_need_float(c, c->in[0], "input 0"));
    if (c->in[0]->ndim == 0)
        return tl_call_fail(c, TL_ESHAPE, "a 0-d tensor has no rows");
    c->out[0] = *c->in[0];
    return TL_OK;
}

static void softmax_vjp(tl_vjp *g)
{
    g->dx[0] = tl_apply1(TL_AT(g->t), &tl_op_softmax_grad, NULL, (tl_tensor[]){g->dy[0], g->out[0]},
                         2);
}
static void log_softmax_vjp(tl_vjp *g)
{
    g->dx[0] = tl_apply1(TL_AT(g->t), &tl_op_log_softmax_grad, NULL,
                         (tl_tensor[]){g->dy[0], g->out[0]}, 2);
}

/* clang-format off */
#define ROWS(id, inputs)                                                                         \
    TL_NAMED(id, inputs, 1), .traits = TL_HEAVY | TL_WIDENED, .forward = tl_rows_run,            \
    .slot = TL_ROW_##id, .vjp = id##_vjp, .batch = tl_batch_rows
/* clang-format on */
const tl_op tl_op_softmax = {ROWS(softmax, 1), .shape = row_shape, .saves_out = 1};
const tl_op tl_op_log_softmax = {ROWS(log_softmax, 1), .shape = row_shape, .saves_out = 1};

tl_tensor tl_softmax_at(tl_at at, tl_tensor x, int dim)
{
    return tl_apply_along(at, &tl_op_softmax, NULL, x, dim);
}
tl_tensor tl_log_softmax_at(tl_at at, tl_tensor x, int dim)
{
    return tl_apply_along(at, &tl_op_log_softmax, NULL, x, dim);
}

/* logsumexp: log(sum(e^(x - m))) + m with m = max(x), or 0 where that is infinite, in the compute
 * type and rounded once (NUMERICS 6.13). The gradient does not depend on m, which is detached. */
tl_tensor tl_logsumexp_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims)
{
    tl_dtype own = tl_dtype_of(at.tape, x), c = tl_dtype_compute(own);
    if (tl_dims_of(at, "logsumexp", x, dims) < 0)
        return TL_NONE;
    x = tl_in_dtype(at, x, c);
    tl_tensor m = tl_detach_at(at, tl_max_at(at, x, dims, true));
    tl_tensor finite = tl_lt_at(at, tl_abs_at(at, m), tl_scalar_at(at, c, (double)INFINITY));
    m = tl_where_at(at, finite, m, tl_scalar_at(at, c, 0));
    tl_tensor y = tl_sum_at(at, tl_exp_at(at, tl_sub_at(at, x, m)), dims, keepdims);
    m = tl_reshape_told(at, m, tl_shape_of(at.tape, y), tl_batch_of(at.tape, y));
    return tl_in_dtype(at, tl_add_at(at, tl_log_at(at, y), m), own);
}

/* ---- softmax_grad(dy, y), log_softmax_grad(dy, y): the formulas are in the card ---- */

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

const tl_op tl_op_softmax_grad = {ROWS(softmax_grad, 2), .shape = grad_shape, .saves_in = 3};
const tl_op tl_op_log_softmax_grad = {ROWS(log_softmax_grad, 2), .shape = grad_shape,
                                      .saves_in = 3};
