/* layer_norm: y = (x - mean) * rstd * gamma + beta,  rstd = 1/sqrt(mean((x - mean)^2) + eps)
 * Shape:  x (..., n), gamma and beta (n) or none -> y (..., n), mean and rstd (..., 1). gamma and
 *         beta may span the last k dims.
 * Dtype:  f16 bf16 f32 f64; gamma and beta of x's dtype or f32; mean and rstd f32 (f64 for f64).
 * Bits:   two passes, both sums by lanes, one rounding into y (NUMERICS 6.6)
 * VJP:    dx = rstd*(g - mean(g) - xhat*mean(g*xhat)) with g = dy*gamma,  dgamma = fold over rows
 *         of dy*xhat, both by layer_norm_grad;  dbeta = fold over rows of dy, by sum_to; from mean
 *         and rstd: dx += dmean/n - drstd*rstd^2*xhat/n (NUMERICS 6.12).   Saves x, gamma, mean,
 *         rstd.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (eps < 0)
 * Source: Ba, Kiros, Hinton 2016, eq. 4
 */
#include "ops/norm.h"

/* (x, gamma?, beta?) -> y, mean, rstd */
static tl_status layer_norm_shape(tl_call *c)
{
    TL_TRY(tl_norm_shape(c, c->in[1], c->in[2]));
    c->out[2] = c->out[1];
    return TL_OK;
}

/* Forward is the row kernel TL_ROW_layer_norm, in tensor/kernels/norm.t.h. */

/* dx has two parts, as in rms_norm: one from y, one from mean and rstd. */
static void layer_norm_vjp(tl_vjp *g)
{
    const int64_t k = ((const tl_norm_attrs *)g->attrs)->k;
    const tl_norm_grad_attrs a = {k, g->wants[0], g->wants[1], false};
    tl_tensor dy = g->dy[0], x = g->in[0], mean = g->out[1], rstd = g->out[2];
    tl_tensor grad[2] = {TL_NONE, TL_NONE};
    if (tl_is_none(dy)) {
        grad[0] = g->wants[1] ? tl_norm_no_grad(g, 1) : TL_NONE;
        g->dx[2] = g->wants[2] ? tl_norm_no_grad(g, 2) : TL_NONE;
    } else {
        if (g->wants[0] || g->wants[1])
            tl_apply(TL_AT(g->t), &tl_op_layer_norm_grad, &a,
                     (tl_tensor[]){dy, x, g->in[1], mean, rstd, g->acc[1]}, 6, grad);
        g->dx[2] = tl_is_none(g->acc[2])
                       ? dy
                       : tl_sum_to(g->t, dy, tl_shape_of(g->t, g->in[2]), g->acc[2]);
    }
    g->dx[1] = grad[0];
    if (g->wants[0])
        g->dx[0] = tl_norm_stats_grad(g, x, mean, rstd, g->dy[1], g->dy[2], grad[1]);
}

const tl_op tl_op_layer_norm = {TL_NAMED(layer_norm, 3, 3),
                                .optional = TL_BIT(1) | TL_BIT(2),
                                .traits = TL_HEAVY | TL_ONE_PASS | TL_WIDENED,
                                .forward = tl_rows_run,
                                .shape = layer_norm_shape,
                                .slot = TL_ROW_layer_norm,
                                TL_ATTRS(tl_norm),
                                .row_dims = offsetof(tl_norm_attrs, k),
                                .vjp = layer_norm_vjp,
                                .saves_in = 3,
                                .saves_out = 6,
                                .folds = 6,
                                .folds_f64 = 6,
                                .batch = tl_batch_rows};

tl_tensor tl_layer_norm_at(tl_at at, tl_tensor x, tl_tensor gamma, tl_tensor beta, double eps,
                           tl_tensor *mean, tl_tensor *rstd)
{
    tl_norm_attrs a = {.eps = eps, .k = TL_BY_WEIGHT};
    tl_tensor out[3];
    tl_apply(at, &tl_op_layer_norm, &a, (tl_tensor[]){x, gamma, beta}, 3, out);
    tl_give(mean, out[1]);
    tl_give(rstd, out[2]);
    return out[0];
}

/* ---- layer_norm_grad(dy, x, gamma?, mean, rstd, acc?) -> dgamma (acc continued), dx
 * Shape:  dy and x alike; gamma has x's last k dims, mean and rstd x's shape with these as 1; an
 *         output that is not wanted is empty
 * Dtype:  as layer_norm; dgamma in the accumulator (f64) or the compute type, dx x's dtype
 * Bits:   NUMERICS 6.7
 * VJP:    in primitives (norm.c)
 * Errors: TL_ESHAPE TL_EDTYPE
 * Both norms share its shape rule and forward (norm.c): dx by the rows of tensor/kernels/norm.t.h,
 * dgamma by the columns of tensor/kernels/folds.t.h.
 */
const tl_op tl_op_layer_norm_grad = {TL_NAMED(layer_norm_grad, 6, 2),
                                     .optional = TL_BIT(2) | TL_BIT(5),
                                     .traits = TL_MUTATES | TL_WIDENED,
                                     .mutates = 5,
                                     .shape = tl_norm_grad_shape,
                                     .forward = tl_norm_grad_forward,
                                     TL_ATTRS(tl_norm_grad),
                                     .vjp = tl_layer_norm_grad_vjp,
                                     .saves_in = 31,
                                     .batch = tl_norm_grad_batch};
