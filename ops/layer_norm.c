/* layer_norm: y = (x - mean) * rstd * gamma + beta,  rstd = 1/sqrt(mean((x - mean)^2) + eps)
 * Shape:  x (..., n), gamma and beta (n) or none -> y (..., n), mean and rstd (..., 1). gamma and
 *         beta may span the last k dims.
 * Dtype:  f16 bf16 f32 f64; gamma and beta of x's dtype or f32; mean and rstd f32 (f64 for f64).
 * Bits:   two passes, both sums by lanes, one rounding into y (NUMERICS 6.6)
 * VJP:    dx = rstd*(g - mean(g) - xhat*mean(g*xhat)) with g = dy*gamma,  dgamma = fold over rows
 *         of dy*xhat, both by layer_norm_grad;  dbeta = fold over rows of dy, by sum_to; of mean
 *         and rstd: dx += dmean/n - drstd*rstd^2*xhat/n (NUMERICS 6.12).   Saves x, gamma, mean,
 *         rstd.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (eps < 0)
 * Source: Ba, Kiros, Hinton 2016, eq. 4
 */
#include "ops/norm.h"

static void layer_norm_vjp(tl_vjp *g)
{
    tl_norm_grad_attrs a = {((const tl_norm_attrs *)g->attrs)->k, g->wants[0], g->wants[1], false};
    tl_tensor out[2] = {TL_NONE, TL_NONE}, dy = g->dy[0];
    if (tl_is_none(dy)) {
        out[0] = g->wants[1] ? tl_norm_nothing(g, 1) : TL_NONE;
        g->dx[2] = g->wants[2] ? tl_norm_nothing(g, 2) : TL_NONE;
    } else {
        if (g->wants[0] || g->wants[1])
            tl_apply(TL_AT(g->t), &tl_op_layer_norm_grad, &a,
                     (tl_tensor[]){dy, g->in[0], g->in[1], g->out[1], g->out[2], g->acc[1]}, 6,
                     out);
        g->dx[2] = tl_is_none(g->acc[2])
                       ? dy
                       : tl_sum_to(g->t, dy, tl_shape_of(g->t, g->in[2]), g->acc[2]);
    }
    g->dx[1] = out[0];
    if (g->wants[0])
        g->dx[0] = tl_norm_stats_grad(g, g->in[0], g->out[1], g->out[2], g->dy[1], g->dy[2],
                                      out[1]);
}

const tl_op tl_op_layer_norm = {.name = "layer_norm",
                                .n_in = 3,
                                .n_out = 3,
                                .optional = TL_BIT(1) | TL_BIT(2),
                                .traits = TL_HEAVY | TL_ONE_PASS | TL_BY_ROWS,
                                .shape = tl_norm_shape,
                                .slot = TL_ROW_layer_norm,
                                .row_dims = offsetof(tl_norm_attrs, k),
                                .attr = tl_norm_schema,
                                .attr_size = sizeof(tl_norm_attrs),
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
    if (mean != NULL)
        *mean = out[1];
    if (rstd != NULL)
        *rstd = out[2];
    return out[0];
}

/* ---- layer_norm_grad(dy, x, gamma?, mean, rstd, acc?) -> dgamma (acc continued), dx
 * Shape:  dy and x alike, gamma x's last k dims, mean and rstd x's with these as 1; what is not
 *         wanted comes out empty
 * Dtype:  as layer_norm; dgamma in the accumulator (f64) or the compute type, dx x's dtype
 * Bits:   NUMERICS 6.7
 * VJP:    in primitives, below
 * Errors: TL_ESHAPE TL_EDTYPE
 */
static tl_status grad_shape(tl_call *c) { return tl_norm_grad_shape(c, c->in[5]); }

static tl_status grad_forward(tl_call *c)
{
    const tl_row_table *k = tl_isa_now()->row;
    return c->in[1]->dtype == TL_F64 ? tl_norm_grad_run(c, c->in[3], c->in[4], c->in[5],
                                                        k->layer_norm_grad64, k->layer_norm_fold64)
                                     : tl_norm_grad_run(c, c->in[3], c->in[4], c->in[5],
                                                        k->layer_norm_grad32, k->layer_norm_fold32);
}

static tl_tensor row_mean(tl_tape *t, tl_tensor x, int64_t k, double inv)
{
    return tl_scale(t, tl_norm_row_sum(t, x, k), inv);
}

/* x - mean(x) - h*mean(x*h): what the norm leaves of a row. */
static tl_tensor projected(tl_tape *t, tl_tensor x, tl_tensor h, int64_t k, double inv)
{
    return tl_sub(t, tl_sub(t, x, row_mean(t, x, k, inv)),
                  tl_mul(t, h, row_mean(t, tl_mul(t, x, h), k, inv)));
}

/* With h = (x - mean)*rstd, g = dy*gamma, P(v) = v - mean(v) - h*mean(v*h), dx = rstd*P(g), dgamma
 * = sum dy*h, and cotangents u of dx, w of dgamma:
 *   cg = rstd*P(u),  ch = w*dy - rstd*(u*mean(g*h) + g*mean(u*h))
 *   d_dy = cg*gamma + w*h,  d_gamma = cg*dy (folded by the engine),  d_x = rstd*ch,
 *   d_mean = -sum(d_x),  d_rstd = sum(ch*(x - mean)) + sum(u*P(g)) */
static void grad_vjp(tl_vjp *v)
{
    const tl_norm_grad_attrs *a = v->attrs;
    tl_tape *t = v->t;
    tl_tensor dy = v->in[0], x = v->in[1], gamma = v->in[2], r = v->in[4], u = v->dy[1],
              w = v->dy[0];
    int64_t k = a->k;
    double inv = tl_norm_inverse(t, x, k);
    tl_tensor center = tl_sub(t, x, v->in[3]);
    tl_tensor zero = tl_scalar(t, tl_dtype_of(t, r), 0), h = tl_mul(t, center, r);
    tl_tensor g = tl_is_none(gamma) ? dy : tl_mul(t, dy, gamma);
    bool has_u = a->want_dx && !tl_is_none(u), has_w = a->want_dgamma && !tl_is_none(w);
    if (has_w)
        w = tl_cast(t, w, tl_dtype_of(t, r)); /* a f64 accumulator has a f64 cotangent */
    tl_tensor cg = zero, ch = has_w ? tl_mul(t, w, dy) : zero, dr = zero;
    if (has_u) {
        cg = tl_mul(t, r, projected(t, u, h, k, inv));
        tl_tensor both = tl_add(t, tl_mul(t, u, row_mean(t, tl_mul(t, g, h), k, inv)),
                                tl_mul(t, g, row_mean(t, tl_mul(t, u, h), k, inv)));
        ch = tl_sub(t, ch, tl_mul(t, r, both));
        dr = tl_norm_row_sum(t, tl_mul(t, u, projected(t, g, h, k, inv)), k);
    }
    tl_tensor dx = tl_mul(t, r, ch);
    if (v->wants[1])
        v->dx[1] = dx;
    if (v->wants[3])
        v->dx[3] = tl_neg(t, tl_norm_row_sum(t, dx, k));
    if (v->wants[4])
        v->dx[4] = tl_add(t, tl_norm_row_sum(t, tl_mul(t, ch, center), k), dr);
    tl_norm_grad_ends(v, cg, gamma, has_w ? w : TL_NONE, h);
}

const tl_op tl_op_layer_norm_grad = {.name = "layer_norm_grad",
                                     .n_in = 6,
                                     .n_out = 2,
                                     .optional = TL_BIT(2) | TL_BIT(5),
                                     .traits = TL_MUTATES | TL_WIDENED,
                                     .mutates = 5,
                                     .shape = grad_shape,
                                     .forward = grad_forward,
                                     .attr = tl_norm_grad_schema,
                                     .attr_size = sizeof(tl_norm_grad_attrs),
                                     .vjp = grad_vjp,
                                     .saves_in = 31,
                                     .batch = tl_norm_grad_batch};
