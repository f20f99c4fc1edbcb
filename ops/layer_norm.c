/* layer_norm: y = (x - mean) * rstd * gamma + beta,  rstd = 1/sqrt(mean((x - mean)^2) + eps)
 * Shape:  x (..., n), gamma and beta (n) or none -> y (..., n), mean and rstd (..., 1). gamma and beta may span the last k dims.
 * Dtype:  f16 bf16 f32 f64; gamma and beta of x's dtype or f32; mean and rstd f32 (f64 for f64).
 * Bits:   two passes, both sums by lanes, one rounding into y (NUMERICS 6.6)
 * VJP:    dx = rstd*(g - mean(g) - xhat*mean(g*xhat)) with g = dy*gamma,  dgamma = fold over rows of dy*xhat, both by
 *         layer_norm_grad;  dbeta = fold over rows of dy, by sum_to.   Saves x, gamma, mean, rstd.
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
            ((double *)j->rstd.data)[r] = k->layer_norm64(j->n, (const double *)j->x.data + r * j->n, j->g, j->b, j->eps,
                                                          (double *)j->mean.data + r, (double *)j->y.data + r * j->n);
        else
            ((float *)j->rstd.data)[r] = k->layer_norm32(j->n, (const float *)j->x.data + r * j->n, j->g, j->b, (float)j->eps,
                                                         (float *)j->mean.data + r, (float *)j->y.data + r * j->n);
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
    if (g->wants[0] || g->wants[1]) {
        tl_tensor in[6] = {g->dy[0], g->in[0], g->in[1], g->out[1], g->out[2], g->acc[1]}, out[2];
        tl_apply(TL_AT(g->t), &tl_op_layer_norm_grad, &a, in, 6, out);
        g->dx[0] = out[1];
        g->dx[1] = out[0];
    }
    g->dx[2] = g->dy[0];
    if (!tl_is_none(g->acc[2]))
        g->dx[2] = tl_sum_to(g->t, g->dy[0], tl_shape_of(g->t, g->in[2]), g->acc[2]);
}

const tl_op tl_op_layer_norm = {.name = "layer_norm", .n_in = 3, .n_out = 3, .optional = TL_BIT(1) | TL_BIT(2), .traits = TL_HEAVY | TL_ONE_PASS,
                                .shape = layer_norm_shape, .forward = layer_norm_forward, .attr = tl_norm_schema,
                                .attr_size = sizeof(tl_norm_attrs), .vjp = layer_norm_vjp, .saves_in = 3, .saves_out = 6,
                                .folds = 6, .folds_f64 = 6, .nodiff_out = 6};

tl_tensor tl_layer_norm_at(tl_at at, tl_tensor x, tl_tensor gamma, tl_tensor beta, double eps, tl_tensor *mean, tl_tensor *rstd)
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

/* ---- layer_norm_grad(dy, x, gamma?, mean, rstd, acc?) -> dgamma (acc continued), dx (NUMERICS 6.7) ---- */

static tl_status grad_shape(tl_call *c) { return tl_norm_grad_outputs(c, c->in[0], c->in[1], c->in[2], c->in[5]); }

static void grad_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const tl_norm_job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * j->n;
        if (j->x.dtype == TL_F64)
            k->layer_norm_grad64(j->n, (const double *)j->dy.data + at, (const double *)j->x.data + at, j->g,
                                 ((const double *)j->mean.data)[r], ((const double *)j->rstd.data)[r], (double *)j->y.data + at);
        else
            k->layer_norm_grad32(j->n, (const float *)j->dy.data + at, (const float *)j->x.data + at, j->g,
                                 ((const float *)j->mean.data)[r], ((const float *)j->rstd.data)[r], (float *)j->y.data + at);
    }
}

/* Columns [begin, end) of dgamma: all rows in order. */
static void fold_columns(void *ctx, int64_t begin, int64_t end, int thread)
{
    const tl_norm_job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    (void)thread;
    for (int64_t r = 0; r < j->rows; r++) {
        int64_t at = r * j->n + begin;
        if (j->x.dtype == TL_F64)
            k->layer_norm_fold64(end - begin, (const double *)j->dy.data + at, (const double *)j->x.data + at,
                                 ((const double *)j->mean.data)[r], ((const double *)j->rstd.data)[r], j->fold + begin);
        else
            k->layer_norm_fold32(end - begin, (const float *)j->dy.data + at, (const float *)j->x.data + at,
                                 ((const float *)j->mean.data)[r], ((const float *)j->rstd.data)[r], j->fold + begin);
    }
}

static tl_status grad_forward(tl_call *c)
{
    const tl_norm_grad_attrs *a = c->attrs;
    tl_norm_job j = {.n = tl_norm_length(c->in[1], a->k), .rows = tl_array_count(c->in[4])};
    tl_array *to[5] = {&j.dy, &j.x, &j.gamma, &j.mean, &j.rstd};
    tl_storage *h[5] = {NULL}, *hy = NULL;
    tl_status s = TL_OK;
    for (int i = 0; i < 5 && s == TL_OK; i++)
        if (c->in[i] != NULL)
            s = tl_as_compute(c, c->in[i], to[i], &h[i]);
    j.g = c->in[2] != NULL ? j.gamma.data : NULL;
    if (s == TL_OK && a->want_dx)
        s = tl_out_compute(c, 1, &j.y, &hy);
    if (s == TL_OK && a->want_dx) {
        tl_parallel_for(j.rows, 1 + 8192 / (j.n + 1), grad_rows, &j);
        tl_store_compute(c, 1, &j.y, hy);
    }
    if (s == TL_OK && a->want_dgamma)
        s = tl_norm_dgamma(c, c->in[5], &j, fold_columns);
    for (int i = 0; i < 5; i++)
        tl_storage_release(h[i]);
    return s;
}

static tl_tensor row_mean(tl_tape *t, tl_tensor x, int64_t k, double inv) { return tl_scale(t, tl_norm_row_sum(t, x, k), inv); }

/* x - mean(x) - h*mean(x*h): what the norm leaves of a row. */
static tl_tensor projected(tl_tape *t, tl_tensor x, tl_tensor h, int64_t k, double inv)
{
    return tl_sub(t, tl_sub(t, x, row_mean(t, x, k, inv)), tl_mul(t, h, row_mean(t, tl_mul(t, x, h), k, inv)));
}

/* With h = (x - mean)*rstd, g = dy*gamma, P(v) = v - mean(v) - h*mean(v*h), dx = rstd*P(g), dgamma = sum dy*h,
 * and cotangents u of dx, w of dgamma; mean and rstd are functions of x:
 *   cg = rstd*P(u),  ch = w*dy - rstd*(u*mean(g*h) + g*mean(u*h)),  cr = sum(u*P(g))
 *   d_dy = cg*gamma + w*h,  d_gamma = cg*dy (folded by the engine),
 *   d_x = rstd*P(ch) - rstd^2 * h * cr/n */
static void grad_vjp(tl_vjp *v)
{
    const tl_norm_grad_attrs *a = v->attrs;
    tl_tape *t = v->t;
    tl_tensor dy = v->in[0], x = v->in[1], gamma = v->in[2], r = v->in[4], u = v->dy[1], w = v->dy[0];
    int64_t k = a->k;
    double inv = tl_norm_inverse(t, x, k);
    tl_tensor center = tl_sub(t, x, v->in[3]);
    if (!(tl_mode(t) & TL_NO_GRAD)) { /* recorded to be differentiated: mean and rstd depend on x */
        center = tl_sub(t, x, row_mean(t, x, k, inv));
        r = tl_norm_rstd_again(t, row_mean(t, tl_square(t, center), k, inv), r);
    }
    tl_tensor zero = tl_scalar(t, tl_dtype_of(t, x), 0), h = tl_mul(t, center, r);
    tl_tensor g = tl_is_none(gamma) ? dy : tl_mul(t, dy, gamma);
    bool has_u = a->want_dx && !tl_is_none(u), has_w = a->want_dgamma && !tl_is_none(w);
    if (has_w)
        w = tl_cast(t, w, tl_dtype_of(t, x)); /* a f64 accumulator has a f64 cotangent */
    tl_tensor cg = zero, ch = has_w ? tl_mul(t, w, dy) : zero, bend = zero;
    if (has_u) {
        cg = tl_mul(t, r, projected(t, u, h, k, inv));
        tl_tensor both = tl_add(t, tl_mul(t, u, row_mean(t, tl_mul(t, g, h), k, inv)), tl_mul(t, g, row_mean(t, tl_mul(t, u, h), k, inv)));
        ch = tl_sub(t, ch, tl_mul(t, r, both));
        tl_tensor cr = row_mean(t, tl_mul(t, u, projected(t, g, h, k, inv)), k, inv);
        bend = tl_mul(t, tl_mul(t, tl_square(t, r), h), cr);
    }
    if (v->wants[0]) {
        tl_tensor d = tl_is_none(gamma) ? cg : tl_mul(t, cg, gamma);
        v->dx[0] = has_w ? tl_add(t, d, tl_mul(t, w, h)) : d;
    }
    if (v->wants[1])
        v->dx[1] = tl_sub(t, tl_mul(t, r, projected(t, ch, h, k, inv)), bend);
    if (v->wants[2])
        v->dx[2] = tl_mul(t, cg, dy);
}

const tl_op tl_op_layer_norm_grad = {.name = "layer_norm_grad", .n_in = 6, .n_out = 2, .optional = TL_BIT(2) | TL_BIT(5),
                                     .traits = TL_MUTATES, .mutates = 5, .shape = grad_shape, .forward = grad_forward,
                                     .attr = tl_norm_grad_schema, .attr_size = sizeof(tl_norm_grad_attrs), .vjp = grad_vjp,
                                     .saves_in = 31};
