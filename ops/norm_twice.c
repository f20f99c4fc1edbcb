/* norm_twice.c: the vjps of rms_norm_grad and layer_norm_grad, in primitives: what second
 * derivatives of the norms are made of. */
#include "ops/norm.h"

/* A row is the last k dims; means of rows keep them as 1. */
static tl_tensor row_sum(tl_tape *t, tl_tensor x, int64_t k)
{
    tl_shape dims = {.ndim = (int)k};
    for (int i = 0; i < (int)k; i++)
        dims.dim[i] = i - k;
    return tl_sum(t, x, dims, true);
}

static tl_tensor row_mean(tl_tape *t, tl_tensor x, int64_t k, double inv)
{
    return tl_scale(t, row_sum(t, x, k), inv);
}

/* What both formulas below are made of. */
typedef struct {
    int64_t k;
    double inv;             /* 1 / elements of a row */
    tl_tensor u, w;         /* the cotangents of dx and dgamma, or TL_NONE */
    tl_tensor dy, x, rstd;  /* inputs of the gradient op */
    tl_tensor weight, g, h; /* gamma or 1 + gamma, or TL_NONE; dy*weight; the normalized x */
} terms;

static terms terms_of(tl_vjp *v, tl_tensor centered, tl_tensor rstd)
{
    const tl_norm_grad_attrs *a = v->attrs;
    tl_tape *t = v->t;
    terms s = {.k = a->k,
               .inv = tl_norm_inverse(t, v->in[1], a->k),
               .u = a->want_dx ? v->dy[1] : TL_NONE,
               .w = a->want_dgamma ? v->dy[0] : TL_NONE,
               .dy = v->in[0],
               .x = v->in[1],
               .rstd = rstd,
               .weight = v->in[2],
               .h = tl_mul(t, centered, rstd)};
    if (a->plus_one && !tl_is_none(s.weight))
        s.weight = tl_shift(t, tl_cast(t, s.weight, tl_dtype_compute(tl_dtype_of(t, s.weight))), 1);
    s.g = tl_is_none(s.weight) ? s.dy : tl_mul(t, s.dy, s.weight);
    if (!tl_is_none(s.w)) /* the cotangent of an f64 accumulator is f64 */
        s.w = tl_cast(t, s.w, tl_dtype_of(t, rstd));
    return s;
}

/* d_dy = cg*weight + w*h,  d_gamma = cg*dy, which the engine folds */
static void finish(tl_vjp *v, const terms *s, tl_tensor cg)
{
    tl_tape *t = v->t;
    if (v->wants[0]) {
        tl_tensor d = tl_is_none(s->weight) ? cg : tl_mul(t, cg, s->weight);
        v->dx[0] = tl_is_none(s->w) ? d : tl_add(t, d, tl_mul(t, s->w, s->h));
    }
    if (v->wants[2])
        v->dx[2] = tl_mul(t, cg, s->dy);
}

/* With h = x*rstd, g = dy*gamma, m = mean(g*h), dx = rstd*(g - h*m), dgamma = sum dy*h, and
 * cotangents u of dx, w of dgamma:
 *   cm = -rstd*sum(u*h),  cg = rstd*u + cm*h/n,  ch = -rstd*u*m + cm*g/n + w*dy
 *   d_x = rstd*ch,  d_rstd = sum(ch*x) + sum(u*(g - h*m)) */
void tl_rms_norm_grad_vjp(tl_vjp *v)
{
    tl_tape *t = v->t;
    const terms s = terms_of(v, v->in[1], v->in[3]);
    tl_tensor zero = tl_scalar(t, tl_dtype_of(t, s.rstd), 0);
    tl_tensor cg = zero, ch = tl_is_none(s.w) ? zero : tl_mul(t, s.w, s.dy), dr = zero;
    if (!tl_is_none(s.u)) {
        tl_tensor m = row_mean(t, tl_mul(t, s.g, s.h), s.k, s.inv);
        tl_tensor cm = tl_neg(t, tl_mul(t, s.rstd, row_sum(t, tl_mul(t, s.u, s.h), s.k)));
        tl_tensor cmn = tl_scale(t, cm, s.inv), ru = tl_mul(t, s.rstd, s.u);
        cg = tl_add(t, ru, tl_mul(t, cmn, s.h));
        ch = tl_add(t, tl_sub(t, tl_mul(t, cmn, s.g), tl_mul(t, ru, m)), ch);
        dr = row_sum(t, tl_mul(t, s.u, tl_sub(t, s.g, tl_mul(t, s.h, m))), s.k);
    }
    if (v->wants[1])
        v->dx[1] = tl_mul(t, s.rstd, ch);
    if (v->wants[3])
        v->dx[3] = tl_add(t, row_sum(t, tl_mul(t, ch, s.x), s.k), dr);
    finish(v, &s, cg);
}

/* P(x) = x - mean(x) - h*mean(x*h) */
static tl_tensor projected(tl_tape *t, const terms *s, tl_tensor x)
{
    return tl_sub(t, tl_sub(t, x, row_mean(t, x, s->k, s->inv)),
                  tl_mul(t, s->h, row_mean(t, tl_mul(t, x, s->h), s->k, s->inv)));
}

/* With h = (x - mean)*rstd, g = dy*gamma, dx = rstd*P(g), dgamma = sum dy*h, and cotangents u of
 * dx, w of dgamma:
 *   cg = rstd*P(u),  ch = w*dy - rstd*(u*mean(g*h) + g*mean(u*h))
 *   d_x = rstd*ch,  d_mean = -sum(d_x),  d_rstd = sum(ch*(x - mean)) + sum(u*P(g)) */
void tl_layer_norm_grad_vjp(tl_vjp *v)
{
    tl_tape *t = v->t;
    tl_tensor centered = tl_sub(t, v->in[1], v->in[3]);
    const terms s = terms_of(v, centered, v->in[4]);
    tl_tensor zero = tl_scalar(t, tl_dtype_of(t, s.rstd), 0);
    tl_tensor cg = zero, ch = tl_is_none(s.w) ? zero : tl_mul(t, s.w, s.dy), dr = zero;
    if (!tl_is_none(s.u)) {
        cg = tl_mul(t, s.rstd, projected(t, &s, s.u));
        tl_tensor gh = row_mean(t, tl_mul(t, s.g, s.h), s.k, s.inv),
                  uh = row_mean(t, tl_mul(t, s.u, s.h), s.k, s.inv);
        tl_tensor both = tl_add(t, tl_mul(t, s.u, gh), tl_mul(t, s.g, uh));
        ch = tl_sub(t, ch, tl_mul(t, s.rstd, both));
        dr = row_sum(t, tl_mul(t, s.u, projected(t, &s, s.g)), s.k);
    }
    tl_tensor dx = tl_mul(t, s.rstd, ch);
    if (v->wants[1])
        v->dx[1] = dx;
    if (v->wants[3])
        v->dx[3] = tl_neg(t, row_sum(t, dx, s.k));
    if (v->wants[4])
        v->dx[4] = tl_add(t, row_sum(t, tl_mul(t, ch, centered), s.k), dr);
    finish(v, &s, cg);
}
