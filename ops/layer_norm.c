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

static tl_status layer_norm_shape(tl_call *c)
{
    const tl_norm_attrs *a = c->attrs;
    TL_TRY(tl_norm_check(c, c->in[0], "gamma", c->in[1], a->k));
    TL_TRY(tl_norm_check(c, c->in[0], "beta", c->in[2], a->k));
    TL_TRY(tl_norm_check_eps(c, a->eps));
    c->out[0] = *c->in[0];
    c->out[1] = c->out[2] = tl_norm_stat(c->in[0], a->k);
    return TL_OK;
}

static void forward_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const tl_norm_job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        if (j->x.dtype == TL_F64)
            ((double *)j->rstd.data)[r] = k->layer_norm64(j->n,
                                                          (const double *)j->x.data + r * j->n,
                                                          j->g, j->b, j->eps,
                                                          (double *)j->mean.data + r,
                                                          (double *)j->y.data + r * j->n);
        else
            ((float *)j->rstd.data)[r] = k->layer_norm32(j->n, (const float *)j->x.data + r * j->n,
                                                         j->g, j->b, (float)j->eps,
                                                         (float *)j->mean.data + r,
                                                         (float *)j->y.data + r * j->n);
    }
}

static tl_status layer_norm_forward(tl_call *c)
{
    const tl_norm_attrs *a = c->attrs;
    tl_norm_job j = {.n = tl_norm_length(c->in[0], a->k), .mean = c->out[1], .rstd = c->out[2]};
    tl_storage *h[3] = {NULL}, *hy = NULL;
    j.eps = a->eps == a->eps ? a->eps : c->out[1].dtype == TL_F64 ? 0x1p-52 : 0x1p-23;
    tl_status s = tl_as_compute(c, c->in[0], &j.x, &h[0]);
    if (s == TL_OK && c->in[1] != NULL)
        s = tl_as_compute(c, c->in[1], &j.gamma, &h[1]);
    if (s == TL_OK && c->in[2] != NULL)
        s = tl_as_compute(c, c->in[2], &j.beta, &h[2]);
    if (s == TL_OK)
        s = tl_out_compute(c, 0, &j.y, &hy);
    if (s == TL_OK) {
        j.g = c->in[1] != NULL ? j.gamma.data : NULL;
        j.b = c->in[2] != NULL ? j.beta.data : NULL;
        tl_parallel_for(tl_array_count(&j.rstd), 1 + 8192 / (j.n + 1), forward_rows, &j);
        tl_store_compute(c, 0, &j.y, hy);
    }
    for (int i = 0; i < 3; i++)
        tl_storage_release(h[i]);
    return s;
}

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
                                .traits = TL_HEAVY | TL_ONE_PASS,
                                .shape = layer_norm_shape,
                                .forward = layer_norm_forward,
                                .attr = tl_norm_schema,
                                .attr_size = sizeof(tl_norm_attrs),
                                .vjp = layer_norm_vjp,
                                .saves_in = 3,
                                .saves_out = 6,
                                .folds = 6,
                                .folds_f64 = 6};

tl_tensor tl_layer_norm_at(tl_at at, tl_tensor x, tl_tensor gamma, tl_tensor beta, double eps,
                           tl_tensor *mean, tl_tensor *rstd)
{
    tl_norm_attrs a = {eps, tl_norm_dims(at.tape, gamma, beta), false};
    tl_tensor out[3];
    tl_apply(at, &tl_op_layer_norm, &a, (tl_tensor[]){x, gamma, beta}, 3, out);
    if (mean != NULL)
        *mean = out[1];
    if (rstd != NULL)
        *rstd = out[2];
    return out[0];
}
