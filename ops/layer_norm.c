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

static void layer_norm_vjp(tl_vjp *g)
{
    const tl_tensor dy = g->dy[0], acc = g->acc[2];
    g->dx[0] = tl_norm_gradient(g, g->in[0], 1, true, g->wants[0]);
    if (tl_is_none(dy))
        g->dx[2] = g->wants[2] ? tl_norm_no_grad(g, 2) : TL_NONE;
    else
        g->dx[2] = tl_is_none(acc) ? dy : tl_sum_to(g->t, dy, tl_shape_of(g->t, g->in[2]), acc);
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
