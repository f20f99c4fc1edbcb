/* rms_norm_grad(dy, x, gamma?, rstd, acc?) -> dgamma (acc continued), dx
 * Shape:  dy and x alike, gamma x's last k dims, rstd x's with these as 1; what is not wanted comes
 *         out empty
 * Dtype:  as rms_norm; dgamma in the accumulator (f64) or the compute type, dx x's dtype
 * Bits:   NUMERICS 6.2
 * VJP:    in primitives, below
 * Errors: TL_ESHAPE TL_EDTYPE
 */
#include "ops/norm.h"

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
                                   .saves_in = 15};
