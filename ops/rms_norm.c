/* rms_norm: y = x * rstd * gamma,  rstd = 1/sqrt(mean(x^2) + eps); add_rms_norm: the same of x1 +
 * x2
 * Shape:  x (..., n), gamma (n) or none -> y (..., n), rstd (..., 1). gamma may span the last k
 *         dims. add_rms_norm(x1, x2, gamma) -> y, rstd, x1 + x2; x1 and x2 alike.
 * Dtype:  f16 bf16 f32 f64; gamma of x's dtype or f32; rstd f32 (f64 for f64).
 * Bits:   sum of squares by lanes (NUMERICS 6.1), one rounding into y; the weight may be 1 + gamma,
 *         rounded in the compute type; add_rms_norm rounds x1 + x2 to its dtype first, as two ops
 *         would (NUMERICS 6.8).
 * VJP:    dx = rstd*(dy*gamma - xhat*mean(dy*gamma*xhat)),  dgamma = fold over rows of dy*xhat, by
 *         rms_norm_grad; of rstd: dx += -drstd*rstd^2*xhat/n (NUMERICS 6.12); add_rms_norm: dx1 =
 *         dx2 = that + the cotangent of x1 + x2.   Saves x (or x1 + x2), gamma, rstd.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (eps < 0)
 * Source: Zhang & Sennrich 2019, eq. 4
 */
#include "ops/norm.h"

static tl_status rms_norm_shape(tl_call *c)
{
    const tl_norm_attrs *a = c->attrs;
    TL_TRY(tl_norm_check(c, c->in[0], "gamma", c->in[1], a->k));
    TL_TRY(tl_norm_check_eps(c, a->eps));
    c->out[0] = *c->in[0];
    c->out[1] = tl_norm_stat(c->in[0], a->k);
    return TL_OK;
}

static void forward_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const tl_norm_job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        if (j->x.dtype == TL_F64)
            ((double *)j->rstd.data)[r] = k->rms_norm64(j->n, (const double *)j->x.data + r * j->n,
                                                        j->g, j->eps,
                                                        (double *)j->y.data + r * j->n);
        else
            ((float *)j->rstd.data)[r] = k->rms_norm32(j->n, (const float *)j->x.data + r * j->n,
                                                       j->g, (float)j->eps,
                                                       (float *)j->y.data + r * j->n);
    }
}

static tl_status run(tl_call *c, const tl_array *x, const tl_array *gamma)
{
    const tl_norm_attrs *a = c->attrs;
    tl_norm_job j = {.n = tl_norm_length(x, a->k), .rstd = c->out[1]};
    tl_storage *hx = NULL, *hg = NULL, *hy = NULL;
    int64_t rows = tl_array_count(&c->out[1]);
    j.eps = a->eps == a->eps ? a->eps : c->out[1].dtype == TL_F64 ? 0x1p-52 : 0x1p-23;
    tl_status s = tl_as_compute(c, x, &j.x, &hx);
    if (s == TL_OK && gamma != NULL)
        s = tl_norm_weight(c, gamma, a->plus_one, &j.gamma, &hg);
    if (s == TL_OK)
        s = tl_out_compute(c, 0, &j.y, &hy);
    if (s == TL_OK) {
        j.g = gamma != NULL ? j.gamma.data : NULL;
        tl_parallel_for(rows, 1 + 8192 / (j.n + 1), forward_rows, &j);
        tl_store_compute(c, 0, &j.y, hy);
    }
    tl_storage_release(hx);
    tl_storage_release(hg);
    return s;
}

static tl_status rms_norm_forward(tl_call *c) { return run(c, c->in[0], c->in[1]); }

/* By way of y and rstd: dgamma, and dx where it is wanted. */
static tl_tensor gradient(tl_vjp *g, tl_tensor x, int gamma, bool want_dx)
{
    const tl_norm_attrs *n = g->attrs;
    tl_norm_grad_attrs a = {n->k, want_dx, g->wants[gamma], n->plus_one};
    tl_tensor out[2] = {TL_NONE, TL_NONE};
    if (!tl_is_none(g->dy[0]))
        tl_apply(TL_AT(g->t), &tl_op_rms_norm_grad, &a,
                 (tl_tensor[]){g->dy[0], x, g->in[gamma], g->out[1], g->acc[gamma]}, 5, out);
    else if (g->wants[gamma])
        out[0] = tl_norm_nothing(g, gamma);
    g->dx[gamma] = out[0];
    return want_dx ? tl_norm_stats_grad(g, x, TL_NONE, g->out[1], TL_NONE, g->dy[1], out[1])
                   : TL_NONE;
}

static void rms_norm_vjp(tl_vjp *g) { g->dx[0] = gradient(g, g->in[0], 1, g->wants[0]); }

const tl_op tl_op_rms_norm = {.name = "rms_norm",
                              .n_in = 2,
                              .n_out = 2,
                              .optional = TL_BIT(1),
                              .traits = TL_HEAVY | TL_ONE_PASS,
                              .shape = rms_norm_shape,
                              .forward = rms_norm_forward,
                              .attr = tl_norm_schema,
                              .attr_size = sizeof(tl_norm_attrs),
                              .vjp = rms_norm_vjp,
                              .saves_in = 3,
                              .saves_out = 2,
                              .folds = 2,
                              .folds_f64 = 2,
                              .batch = tl_norm_batch};

static tl_tensor rms_norm(tl_at at, tl_tensor x, tl_tensor gamma, int64_t dims, double eps,
                          bool plus_one, tl_tensor *rstd)
{
    tl_norm_attrs a = {eps, dims, plus_one};
    tl_tensor out[2];
    tl_apply(at, &tl_op_rms_norm, &a, (tl_tensor[]){x, gamma}, 2, out);
    if (rstd != NULL)
        *rstd = out[1];
    return out[0];
}

tl_tensor tl_rms_norm_at(tl_at at, tl_tensor x, tl_tensor gamma, double eps, tl_tensor *rstd)
{
    return rms_norm(at, x, gamma, tl_norm_dims(at.tape, gamma, TL_NONE), eps, false, rstd);
}

tl_tensor tl_rms_norm_dims_at(tl_at at, tl_tensor x, int dims, double eps)
{
    return rms_norm(at, x, TL_NONE, dims, eps, false, NULL);
}

tl_tensor tl_rms_norm_plus_one_at(tl_at at, tl_tensor x, tl_tensor gamma, double eps,
                                  tl_tensor *rstd)
{
    return rms_norm(at, x, gamma, tl_norm_dims(at.tape, gamma, TL_NONE), eps, true, rstd);
}

/* ---- rms_norm_grad(dy, x, gamma?, rstd, acc?) -> dgamma (acc continued), dx
 * Shape:  dy and x alike, gamma x's last k dims, rstd x's with these as 1; what is not wanted comes
 *         out empty
 * Dtype:  as rms_norm; dgamma in the accumulator (f64) or the compute type, dx x's dtype
 * Bits:   NUMERICS 6.2
 * VJP:    in primitives, below
 * Errors: TL_ESHAPE TL_EDTYPE
 */
static tl_status grad_shape(tl_call *c)
{
    return tl_norm_grad_outputs(c, c->in[0], c->in[1], c->in[2], c->in[4]);
}

static void grad_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const tl_norm_job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * j->n;
        if (j->x.dtype == TL_F64)
            k->rms_norm_grad64(j->n, (const double *)j->dy.data + at,
                               (const double *)j->x.data + at, j->g,
                               ((const double *)j->rstd.data)[r], (double *)j->y.data + at);
        else
            k->rms_norm_grad32(j->n, (const float *)j->dy.data + at, (const float *)j->x.data + at,
                               j->g, ((const float *)j->rstd.data)[r], (float *)j->y.data + at);
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
            k->rms_norm_fold64(end - begin, (const double *)j->dy.data + at,
                               (const double *)j->x.data + at, ((const double *)j->rstd.data)[r],
                               j->fold + begin);
        else
            k->rms_norm_fold32(end - begin, (const float *)j->dy.data + at,
                               (const float *)j->x.data + at, ((const float *)j->rstd.data)[r],
                               j->fold + begin);
    }
}

static tl_status grad_forward(tl_call *c)
{
    return tl_norm_grad_run(c, NULL, c->in[3], c->in[4], grad_rows, fold_columns);
}

/* With h = x*rstd, g = dy*gamma, m = mean(g*h), dx = rstd*(g - h*m), dgamma = sum dy*h, and
 * cotangents u of dx, w of dgamma:
 *   cm = -rstd*sum(u*h),  cg = rstd*u + cm*h/n,  ch = -rstd*u*m + cm*g/n + w*dy
 *   d_dy = cg*gamma + w*h,  d_gamma = cg*dy (folded by the engine),  d_x = rstd*ch,
 *   d_rstd = sum(ch*x) + sum(u*(g - h*m)) */
static void grad_vjp(tl_vjp *v)
{
    const tl_norm_grad_attrs *a = v->attrs;
    tl_tape *t = v->t;
    tl_tensor dy = v->in[0], x = v->in[1], gamma = v->in[2], r = v->in[3], u = v->dy[1],
              w = v->dy[0];
    double inv = tl_norm_inverse(t, x, a->k);
    tl_tensor zero = tl_scalar(t, tl_dtype_of(t, r), 0), h = tl_mul(t, x, r);
    if (a->plus_one && !tl_is_none(gamma))
        gamma = tl_shift(t, tl_cast(t, gamma, tl_dtype_compute(tl_dtype_of(t, gamma))), 1);
    tl_tensor g = tl_is_none(gamma) ? dy : tl_mul(t, dy, gamma);
    bool has_u = a->want_dx && !tl_is_none(u), has_w = a->want_dgamma && !tl_is_none(w);
    if (has_w)
        w = tl_cast(t, w, tl_dtype_of(t, r)); /* a f64 accumulator has a f64 cotangent */
    tl_tensor cg = zero, ch = has_w ? tl_mul(t, w, dy) : zero, dr = zero;
    if (has_u) {
        tl_tensor m = tl_scale(t, tl_norm_row_sum(t, tl_mul(t, g, h), a->k), inv);
        tl_tensor cm = tl_neg(t, tl_mul(t, r, tl_norm_row_sum(t, tl_mul(t, u, h), a->k)));
        tl_tensor cmn = tl_scale(t, cm, inv), ru = tl_mul(t, r, u);
        cg = tl_add(t, ru, tl_mul(t, cmn, h));
        ch = tl_add(t, tl_sub(t, tl_mul(t, cmn, g), tl_mul(t, ru, m)), ch);
        dr = tl_norm_row_sum(t, tl_mul(t, u, tl_sub(t, g, tl_mul(t, h, m))), a->k);
    }
    if (v->wants[1])
        v->dx[1] = tl_mul(t, r, ch);
    if (v->wants[3])
        v->dx[3] = tl_add(t, tl_norm_row_sum(t, tl_mul(t, ch, x), a->k), dr);
    tl_norm_grad_ends(v, cg, gamma, has_w ? w : TL_NONE, h);
}

const tl_op tl_op_rms_norm_grad = {.name = "rms_norm_grad",
                                   .n_in = 5,
                                   .n_out = 2,
                                   .optional = TL_BIT(2) | TL_BIT(4),
                                   .traits = TL_MUTATES,
                                   .mutates = 4,
                                   .shape = grad_shape,
                                   .forward = grad_forward,
                                   .attr = tl_norm_grad_schema,
                                   .attr_size = sizeof(tl_norm_grad_attrs),
                                   .vjp = grad_vjp,
                                   .saves_in = 15,
                                   .batch = tl_norm_grad_batch};

/* ---- add_rms_norm(x1, x2, gamma?) -> y, rstd, x1 + x2 ---- */

static tl_status add_shape(tl_call *c)
{
    const tl_norm_attrs *a = c->attrs;
    const tl_array *x = c->in[0], *x2 = c->in[1];
    char s1[TL_SHAPE_TEXT], s2[TL_SHAPE_TEXT];
    TL_TRY(tl_norm_check(c, x, "gamma", c->in[2], a->k));
    TL_TRY(tl_norm_check_eps(c, a->eps));
    if (!tl_array_same_shape(x, x2) || x->dtype != x2->dtype)
        return tl_call_fail(c, x->dtype != x2->dtype ? TL_EDTYPE : TL_ESHAPE,
                            "x1 is %s %s, x2 %s %s; they must be alike", tl_dtype_name(x->dtype),
                            tl_array_shape_text(s1, x), tl_dtype_name(x2->dtype),
                            tl_array_shape_text(s2, x2));
    c->out[0] = c->out[2] = *x;
    c->out[1] = tl_norm_stat(x, a->k);
    return TL_OK;
}

static tl_status add_forward(tl_call *c)
{
    tl_call sum = *c;
    sum.op = &tl_op_add;
    sum.n_in = 2;
    sum.out = &c->out[2];
    TL_TRY(tl_pointwise_run(&sum));
    return run(c, &c->out[2], c->in[2]);
}

static void add_vjp(tl_vjp *g)
{
    tl_tensor ds = g->dy[2], dx = gradient(g, g->out[2], 2, g->wants[0] || g->wants[1]);
    g->dx[0] = g->dx[1] = tl_is_none(ds) ? dx : tl_is_none(dx) ? ds : tl_add(g->t, ds, dx);
}

const tl_op tl_op_add_rms_norm = {.name = "add_rms_norm",
                                  .n_in = 3,
                                  .n_out = 3,
                                  .optional = TL_BIT(2),
                                  .traits = TL_HEAVY | TL_ONE_PASS,
                                  .shape = add_shape,
                                  .forward = add_forward,
                                  .attr = tl_norm_schema,
                                  .attr_size = sizeof(tl_norm_attrs),
                                  .vjp = add_vjp,
                                  .saves_in = 4,
                                  .saves_out = 6,
                                  .folds = 4,
                                  .folds_f64 = 4,
                                  .again = {&tl_op_rms_norm, 2, {~2, 2}},
                                  .batch = tl_norm_batch};

tl_tensor tl_add_rms_norm_at(tl_at at, tl_tensor x1, tl_tensor x2, tl_tensor gamma, double eps,
                             tl_tensor *rstd, tl_tensor *sum)
{
    tl_norm_attrs a = {eps, tl_norm_dims(at.tape, gamma, TL_NONE), false};
    tl_tensor out[3];
    tl_apply(at, &tl_op_add_rms_norm, &a, (tl_tensor[]){x1, x2, gamma}, 3, out);
    if (rstd != NULL)
        *rstd = out[1];
    if (sum != NULL)
        *sum = out[2];
    return out[0];
}
