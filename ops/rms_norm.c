/* rms_norm: y = x * rstd * gamma,  rstd = 1/sqrt(mean(x^2) + eps)
 * Shape:  x (..., n), gamma (n) or none -> y (..., n), rstd (..., 1). gamma may span the last k
 *         dims.
 * Dtype:  f16 bf16 f32 f64; gamma of x's dtype or f32; rstd f32 (f64 for f64).
 * Bits:   sum of squares by lanes (NUMERICS 6.1), one rounding into y; the weight may be 1 + gamma,
 *         rounded in the compute type (NUMERICS 6.8).
 * VJP:    with xhat = x*rstd: dx = rstd*(dy*gamma - xhat*mean(dy*gamma*xhat)),  dgamma = fold over
 *         rows of dy*xhat, by rms_norm_grad; from rstd: dx += -drstd*rstd^2*xhat/n (NUMERICS 6.12).
 *         Saves x, gamma, rstd.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (eps < 0)
 * Source: Zhang & Sennrich 2019, eq. 4
 */
#include "ops/norm.h"

/* (x, gamma?) -> y, rstd */
static tl_status rms_norm_shape(tl_call *c) { return tl_norm_shape(c, c->in[1], NULL); }

/* Forward is a loop over rows, in tensor/kernels/norm.t.h, which the engine runs on all threads:
 *
 *     rstd[r] = rsqrt(lanes(x^2) / n + eps)
 *     y[i]    = (x[i] * rstd[r]) * gamma[i]
 */

static void rms_norm_vjp(tl_vjp *g)
{
    g->dx[0] = tl_norm_gradient(g, g->in[0], 1, false, g->wants[0]);
}

const tl_op tl_op_rms_norm = {TL_NAMED(rms_norm, 2, 2),
                              .optional = TL_BIT(1),
                              .traits = TL_HEAVY | TL_ONE_PASS | TL_WIDENED,
                              .forward = tl_rows_run,
                              .shape = rms_norm_shape,
                              .slot = TL_ROW_rms_norm,
                              TL_ATTRS(tl_norm),
                              .row_dims = offsetof(tl_norm_attrs, k),
                              .vjp = rms_norm_vjp,
                              .saves_in = TL_BIT(0) | TL_BIT(1), /* x, gamma */
                              .saves_out = TL_BIT(1),            /* rstd */
                              .folds = TL_BIT(1),                /* dgamma, in f64 */
                              .folds_f64 = TL_BIT(1),
                              .batch = tl_batch_rows};

static tl_tensor rms_norm(tl_at at, tl_tensor x, tl_tensor gamma, tl_norm_attrs a, tl_tensor *rstd)
{
    tl_tensor out[2];
    tl_apply(at, &tl_op_rms_norm, &a, (tl_tensor[]){x, gamma}, 2, out);
    tl_give(rstd, out[1]);
    return out[0];
}

tl_tensor tl_rms_norm_at(tl_at at, tl_tensor x, tl_tensor gamma, double eps, tl_tensor *rstd)
{
    return rms_norm(at, x, gamma, (tl_norm_attrs){.eps = eps, .k = TL_BY_WEIGHT}, rstd);
}

tl_tensor tl_rms_norm_dims_at(tl_at at, tl_tensor x, int dims, double eps)
{
    return rms_norm(at, x, TL_NONE, (tl_norm_attrs){.eps = eps, .k = dims}, NULL);
}

tl_tensor tl_rms_norm_plus_one_at(tl_at at, tl_tensor x, tl_tensor gamma, double eps,
                                  tl_tensor *rstd)
{
    tl_norm_attrs a = {.eps = eps, .k = TL_BY_WEIGHT, .plus_one = true};
    return rms_norm(at, x, gamma, a, rstd);
}

/* ---- add_rms_norm: rms_norm of x1 + x2, in one op
 * Shape:  x1 and x2 alike, gamma as in rms_norm -> y, rstd, x1 + x2
 * Dtype:  as rms_norm
 * Bits:   x1 + x2 is rounded to its dtype first, as two ops would (NUMERICS 6.8)
 * VJP:    dx1 = dx2 = rms_norm's dx + the cotangent of x1 + x2.   Saves x1 + x2, gamma, rstd.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (eps < 0)
 */
static tl_status add_shape(tl_call *c)
{
    const tl_array *x1 = c->in[0], *x2 = c->in[1];
    TL_TRY(tl_norm_shape(c, c->in[2], NULL));
    if (!tl_array_same_shape(x1, x2) || x1->dtype != x2->dtype)
        return tl_call_fail(c, x1->dtype != x2->dtype ? TL_EDTYPE : TL_ESHAPE,
                            "x1 is %s %s, x2 %s %s; they must be alike", tl_dtype_name(x1->dtype),
                            TL_TEXT(x1), tl_dtype_name(x2->dtype), TL_TEXT(x2));
    c->out[2] = c->out[0];
    return TL_OK;
}

static tl_status add_forward(tl_call *c)
{
    tl_call sum = *c, norm = *c;
    sum.op = &tl_op_add;
    sum.n_in = 2;
    sum.out = &c->out[2];
    TL_TRY(tl_pointwise_run(&sum));
    norm.op = &tl_op_rms_norm;
    norm.n_in = norm.n_out = 2;
    norm.in = (const tl_array *[]){&c->out[2], c->in[2]};
    return tl_widened_run(&norm);
}

static void add_vjp(tl_vjp *g)
{
    const bool want_dx = g->wants[0] || g->wants[1];
    tl_tensor ds = g->dy[2], dx = tl_norm_gradient(g, g->out[2], 2, false, want_dx);
    g->dx[0] = g->dx[1] = tl_plus(g->t, ds, dx);
}

const tl_op tl_op_add_rms_norm = {TL_NAMED(add_rms_norm, 3, 3),
                                  .optional = TL_BIT(2),
                                  .traits = TL_HEAVY | TL_ONE_PASS,
                                  .shape = add_shape,
                                  .forward = add_forward,
                                  TL_ATTRS(tl_norm),
                                  .row_dims = offsetof(tl_norm_attrs, k),
                                  .vjp = add_vjp,
                                  .saves_in = TL_BIT(2),              /* gamma */
                                  .saves_out = TL_BIT(1) | TL_BIT(2), /* rstd, the sum */
                                  .folds = TL_BIT(2),                 /* dgamma, in f64 */
                                  .folds_f64 = TL_BIT(2),
                                  .again = {&tl_op_rms_norm, 2, {~2, 2}}, /* y, of the sum */
                                  .batch = tl_batch_rows};

tl_tensor tl_add_rms_norm_at(tl_at at, tl_tensor x1, tl_tensor x2, tl_tensor gamma, double eps,
                             tl_tensor *rstd, tl_tensor *sum)
{
    tl_norm_attrs a = {.eps = eps, .k = TL_BY_WEIGHT};
    tl_tensor out[3];
    tl_apply(at, &tl_op_add_rms_norm, &a, (tl_tensor[]){x1, x2, gamma}, 3, out);
    tl_give(rstd, out[1]);
    tl_give(sum, out[2]);
    return out[0];
}
