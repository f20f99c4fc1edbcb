/* layer_norm_grad(dy, x, gamma?, mean, rstd, acc?) -> dgamma (acc continued), dx
 * Shape:  dy and x alike, gamma x's last k dims, mean and rstd x's with these as 1; what is not
 *         wanted comes out empty
 * Dtype:  as layer_norm; dgamma in the accumulator (f64) or the compute type, dx x's dtype
 * Bits:   NUMERICS 6.7
 * VJP:    in primitives, below
 * Errors: TL_ESHAPE TL_EDTYPE
 */
#include "ops/norm.h"

static tl_status grad_shape(tl_call *c)
{
    return tl_norm_grad_outputs(c, c->in[0], c->in[1], c->in[2], c->in[5]);
}

static void grad_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const tl_norm_job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * j->n;
        if (j->x.dtype == TL_F64)
            k->layer_norm_grad64(j->n, (const double *)j->dy.data + at,
                                 (const double *)j->x.data + at, j->g,
                                 ((const double *)j->mean.data)[r],
                                 ((const double *)j->rstd.data)[r], (double *)j->y.data + at);
        else
            k->layer_norm_grad32(j->n, (const float *)j->dy.data + at,
                                 (const float *)j->x.data + at, j->g,
                                 ((const float *)j->mean.data)[r], ((const float *)j->rstd.data)[r],
                                 (float *)j->y.data + at);
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
            k->layer_norm_fold64(end - begin, (const double *)j->dy.data + at,
                                 (const double *)j->x.data + at, ((const double *)j->mean.data)[r],
                                 ((const double *)j->rstd.data)[r], j->fold + begin);
        else
            k->layer_norm_fold32(end - begin, (const float *)j->dy.data + at,
                                 (const float *)j->x.data + at, ((const float *)j->mean.data)[r],
                                 ((const float *)j->rstd.data)[r], j->fold + begin);
    }
}

static tl_status grad_forward(tl_call *c)
{
    return tl_norm_grad_run(c, c->in[3], c->in[4], c->in[5], grad_rows, fold_columns);
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
                                     .traits = TL_MUTATES,
                                     .mutates = 5,
                                     .shape = grad_shape,
                                     .forward = grad_forward,
                                     .attr = tl_norm_grad_schema,
                                     .attr_size = sizeof(tl_norm_grad_attrs),
                                     .vjp = grad_vjp,
                                     .saves_in = 31};
