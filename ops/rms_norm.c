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
                              .traits = TL_HEAVY | TL_ONE_PASS | TL_BY_ROWS,
                              .shape = tl_norm_shape,
                              .slot = TL_ROW_rms_norm,
                              .attr = tl_norm_schema,
                              .attr_size = sizeof(tl_norm_attrs),
                              .vjp = rms_norm_vjp,
                              .saves_in = 3,
                              .saves_out = 2,
                              .folds = 2,
                              .folds_f64 = 2,
                              .row_dims = offsetof(tl_norm_attrs, k),
                              .batch = tl_batch_rows};

tl_tensor tl_rms_norm_at(tl_at at, tl_tensor x, tl_tensor gamma, double eps, tl_tensor *rstd)
{
    tl_norm_attrs a = {.eps = eps, .k = TL_BY_WEIGHT};
    tl_tensor out[2];
    tl_apply(at, &tl_op_rms_norm, &a, (tl_tensor[]){x, gamma}, 2, out);
    if (rstd != NULL)
        *rstd = out[1];
    return out[0];
}

tl_tensor tl_rms_norm_dims_at(tl_at at, tl_tensor x, int dims, double eps)
{
    tl_norm_attrs a = {.eps = eps, .k = dims};
    tl_tensor out[2];
    tl_apply(at, &tl_op_rms_norm, &a, (tl_tensor[]){x, TL_NONE}, 2, out);
    return out[0];
}

tl_tensor tl_rms_norm_plus_one_at(tl_at at, tl_tensor x, tl_tensor gamma, double eps,
                                  tl_tensor *rstd)
{
    tl_norm_attrs a = {.eps = eps, .k = TL_BY_WEIGHT, .plus_one = true};
    tl_tensor out[2];
    tl_apply(at, &tl_op_rms_norm, &a, (tl_tensor[]){x, gamma}, 2, out);
    if (rstd != NULL)
        *rstd = out[1];
    return out[0];
}

/* ---- rms_norm_grad(dy, x, gamma?, rstd, acc?) -> dgamma (acc continued), dx
 * Shape:  dy and x alike, gamma x's last k dims, rstd x's with these as 1; what is not wanted comes
 *         out empty
 * Dtype:  as rms_norm; dgamma in the accumulator (f64) or the compute type, dx x's dtype
 * Bits:   NUMERICS 6.2
 * VJP:    in primitives, below
 * Errors: TL_ESHAPE TL_EDTYPE
 */
static tl_status grad_shape(tl_call *c) { return tl_norm_grad_shape(c, c->in[4]); }

static tl_status grad_forward(tl_call *c)
{
    const tl_row_table *k = tl_isa_now()->row;
    return c->in[1]->dtype == TL_F64 ? tl_norm_grad_run(c, NULL, c->in[3], c->in[4],
                                                        k->rms_norm_grad64, k->rms_norm_fold64)
                                     : tl_norm_grad_run(c, NULL, c->in[3], c->in[4],
                                                        k->rms_norm_grad32, k->rms_norm_fold32);
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
                                   .traits = TL_MUTATES | TL_WIDENED,
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
    const tl_array *x = c->in[0], *x2 = c->in[1];
    char s1[TL_SHAPE_TEXT], s2[TL_SHAPE_TEXT];
    TL_TRY(tl_norm_shape(c));
    if (!tl_array_same_shape(x, x2) || x->dtype != x2->dtype)
        return tl_call_fail(c, x->dtype != x2->dtype ? TL_EDTYPE : TL_ESHAPE,
                            "x1 is %s %s, x2 %s %s; they must be alike", tl_dtype_name(x->dtype),
                            tl_array_shape_text(s1, x), tl_dtype_name(x2->dtype),
                            tl_array_shape_text(s2, x2));
    c->out[2] = *x;
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
                                  .row_dims = offsetof(tl_norm_attrs, k),
                                  .batch = tl_batch_rows};

tl_tensor tl_add_rms_norm_at(tl_at at, tl_tensor x1, tl_tensor x2, tl_tensor gamma, double eps,
                             tl_tensor *rstd, tl_tensor *sum)
{
    tl_norm_attrs a = {.eps = eps, .k = TL_BY_WEIGHT};
    tl_tensor out[3];
    tl_apply(at, &tl_op_add_rms_norm, &a, (tl_tensor[]){x1, x2, gamma}, 3, out);
    if (rstd != NULL)
        *rstd = out[1];
    if (sum != NULL)
        *sum = out[2];
    return out[0];
}

/* ---- what layer_norm shares: see norm.h ---- */

const tl_attr tl_norm_schema[] = {{"eps", TL_ATTR_F64, offsetof(tl_norm_attrs, eps)},
                                  {"k", TL_ATTR_I64, offsetof(tl_norm_attrs, k)},
                                  {"plus_one", TL_ATTR_BOOL, offsetof(tl_norm_attrs, plus_one)},
                                  {0}};
const tl_attr tl_norm_grad_schema[] = {
    {"k", TL_ATTR_I64, offsetof(tl_norm_grad_attrs, k)},
    {"want_dx", TL_ATTR_BOOL, offsetof(tl_norm_grad_attrs, want_dx)},
    {"want_dgamma", TL_ATTR_BOOL, offsetof(tl_norm_grad_attrs, want_dgamma)},
    {"plus_one", TL_ATTR_BOOL, offsetof(tl_norm_grad_attrs, plus_one)},
    {0}};

static tl_status check(tl_call *c, const tl_array *x, int64_t k, const char *name,
                       const tl_array *weight)
{
    char sg[TL_SHAPE_TEXT], sx[TL_SHAPE_TEXT];
    if (!tl_dtype_is_float(x->dtype))
        return tl_call_fail(c, TL_EDTYPE, "x is %s; floats are needed", tl_dtype_name(x->dtype));
    if (k < 1 || k > x->ndim)
        return tl_call_fail(c, TL_ESHAPE, "%lld dims to normalize, x has %d", (long long)k,
                            x->ndim);
    if (weight == NULL)
        return TL_OK;
    const size_t bytes = (size_t)k * sizeof *x->dim;
    if (weight->ndim != k || memcmp(weight->dim, x->dim + x->ndim - k, bytes) != 0) {
        tl_shape tail = {.ndim = (int)k};
        memcpy(tail.dim, x->dim + x->ndim - k, bytes);
        return tl_call_fail(c, TL_ESHAPE, "%s has shape %s, but x ends in %s", name,
                            tl_array_shape_text(sg, weight), tl_shape_text(sx, &tail));
    }
    if (weight->dtype != x->dtype && (weight->dtype != TL_F32 || x->dtype == TL_F64))
        return tl_call_fail(c, TL_EDTYPE, "%s is %s, x %s; %s has x's dtype or f32", name,
                            tl_dtype_name(weight->dtype), tl_dtype_name(x->dtype), name);
    return TL_OK;
}

tl_status tl_norm_shape(tl_call *c)
{
    tl_norm_attrs *a = c->attrs;
    const tl_array *x = c->in[0];
    const int first = c->op->optional & TL_BIT(1) ? 1 : 2, weights = c->n_in - first;
    for (int i = first; i < c->n_in && a->k == TL_BY_WEIGHT; i++)
        if (c->in[i] != NULL)
            a->k = c->in[i]->ndim;
    if (a->k == TL_BY_WEIGHT)
        a->k = 1;
    for (int i = first; i < c->n_in; i++)
        TL_TRY(check(c, x, a->k, i == first ? "gamma" : "beta", c->in[i]));
    if (a->eps < 0)
        return tl_call_fail(c, TL_EDOMAIN, "eps is %g; it cannot be negative", a->eps);
    c->out[0] = c->out[1] = *x;
    c->out[1].dtype = x->dtype == TL_F64 ? TL_F64 : TL_F32;
    for (int i = x->ndim - (int)a->k; i < x->ndim; i++)
        c->out[1].dim[i] = 1;
    if (weights > 1)
        c->out[2] = c->out[1];
    return TL_OK;
}

/* dy, x, gamma?, statistics, acc? */
void tl_norm_grad_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const int nd = c->in[1]->ndim, last = c->n_in - 1;
    tl_batch rows[6];
    memcpy(rows, in, (size_t)c->n_in);
    rows[last] = TL_FREE;
    out[1] = tl_batch_meet(c, rows, (TL_BIT(last) - 1) & ~TL_BIT(2), nd);
    out[1] = tl_batch_outside(out[1], nd, ((const tl_norm_grad_attrs *)c->attrs)->k);
    out[0] = tl_batch_continuing(out[1] >= 0 ? TL_TOTAL : out[1], c, in, last);
}

tl_status tl_norm_grad_shape(tl_call *c, const tl_array *acc)
{
    const tl_norm_grad_attrs *a = c->attrs;
    const tl_array *dy = c->in[0], *x = c->in[1], *gamma = c->in[2];
    TL_TRY(check(c, x, a->k, "gamma", gamma));
    if (!tl_array_same_shape(dy, x) || (a->want_dgamma && gamma == NULL))
        return tl_call_fail(c, TL_ESHAPE,
                            "dy and x differ in shape, or dgamma is wanted without gamma");
    tl_shape none = TL_DIMS(0), s = a->want_dgamma ? tl_array_shape(gamma) : none;
    c->out[0] = acc != NULL ? *acc : tl_array_make(tl_dtype_compute(x->dtype), &s, NULL);
    c->out[1] = a->want_dx ? *x : tl_array_make(x->dtype, &none, NULL);
    if (acc != NULL && (acc->dtype != TL_F64 || gamma == NULL || !tl_array_same_shape(acc, gamma)))
        return tl_call_fail(c, TL_ESHAPE, "the accumulator must be f64 of gamma's shape");
    return TL_OK;
}

static const void *from_row(const void *x, int64_t row, int64_t n, size_t size)
{
    return x == NULL ? NULL : (const char *)x + (size_t)(row * n) * size;
}

/* What is wanted (not NULL) of dx by rows and the fold by columns. A thread that does both alone
 * takes blocks of rows, which the fold finds in the cache; several would meet after each. */
static void over_rows(const tl_norm_rows *all, tl_dtype dtype, tl_range_fn *rows,
                      tl_range_fn *columns)
{
    enum { BLOCK_BYTES = 128 << 10 };
    const size_t size = tl_dtype_size(dtype);
    const int64_t by_rows = 1 + 8192 / (all->n + 1), by_columns = 1 + 16384 / (all->rows + 1);
    int64_t block = all->rows;
    if (tl_parallel_width(all->rows, by_rows) == 1 && tl_parallel_width(all->n, by_columns) == 1)
        block = 16 + BLOCK_BYTES / (all->n * (int64_t)size + 1) / 16 * 16;
    for (int64_t r = 0; r < all->rows; r += block) {
        tl_norm_rows part = *all;
        part.rows = block < all->rows - r ? block : all->rows - r;
        part.x = from_row(all->x, r, all->n, size);
        part.dy = from_row(all->dy, r, all->n, size);
        part.mean = from_row(all->mean, r, 1, size);
        part.rstd = from_row(all->rstd, r, 1, size);
        part.dx = all->dx == NULL ? NULL : (char *)all->dx + (size_t)(r * all->n) * size;
        if (rows != NULL)
            tl_parallel_for(part.rows, by_rows, rows, &part);
        if (columns != NULL)
            tl_parallel_for(part.n, by_columns, columns, &part);
    }
}

/* dgamma: acc, which out[0] is, continued; without one a fold of its own, rounded at its end. */
static tl_status fold_dgamma(tl_call *c, bool continues, tl_norm_rows *j, tl_range_fn *rows,
                             tl_range_fn *columns)
{
    tl_array *out = &c->out[0];
    j->fold = continues ? out->data : tl_scratch(c, (size_t)j->n * 8, true);
    if (j->fold == NULL)
        return TL_ENOMEM;
    over_rows(j, c->in[1]->dtype, rows, columns);
    for (int64_t i = 0; !continues && i < j->n; i++)
        if (out->dtype == TL_F64)
            ((double *)out->data)[i] = j->fold[i] + 0;
        else
            ((float *)out->data)[i] = (float)(j->fold[i] + 0);
    return TL_OK;
}

/* The row 1 + gamma, in scratch; NULL with an error when out of memory. */
static void *one_plus(tl_call *c, const tl_array *gamma)
{
    const int64_t n = tl_array_count(gamma);
    void *row = tl_scratch(c, (size_t)n * tl_dtype_size(gamma->dtype), false);
    for (int64_t i = 0; row != NULL && i < n; i++)
        if (gamma->dtype == TL_F64)
            ((double *)row)[i] = 1 + ((const double *)gamma->data)[i];
        else
            ((float *)row)[i] = 1 + ((const float *)gamma->data)[i];
    return row;
}

tl_status tl_norm_grad_run(tl_call *c, const tl_array *mean, const tl_array *rstd,
                           const tl_array *acc, tl_range_fn *rows, tl_range_fn *columns)
{
    const tl_norm_grad_attrs *a = c->attrs;
    const tl_array *x = c->in[1];
    tl_norm_rows j = {.n = 1,
                      .rows = tl_array_count(rstd),
                      .dy = c->in[0]->data,
                      .x = x->data,
                      .gamma = c->in[2] == NULL ? NULL : c->in[2]->data,
                      .mean = mean == NULL ? NULL : mean->data,
                      .rstd = rstd->data,
                      .dx = c->out[1].data};
    if (a->plus_one && j.gamma != NULL && (j.gamma = one_plus(c, c->in[2])) == NULL)
        return TL_ENOMEM;
    for (int i = x->ndim - (int)a->k; i < x->ndim; i++)
        j.n *= x->dim[i];
    if (a->want_dgamma)
        return fold_dgamma(c, acc != NULL, &j, a->want_dx ? rows : NULL, columns);
    if (a->want_dx)
        over_rows(&j, x->dtype, rows, NULL);
    return TL_OK;
}

void tl_norm_grad_ends(tl_vjp *v, tl_tensor cg, tl_tensor weight, tl_tensor w, tl_tensor h)
{
    tl_tape *t = v->t;
    if (v->wants[0]) {
        tl_tensor d = tl_is_none(weight) ? cg : tl_mul(t, cg, weight);
        v->dx[0] = tl_is_none(w) ? d : tl_add(t, d, tl_mul(t, w, h));
    }
    if (v->wants[2])
        v->dx[2] = tl_mul(t, cg, v->in[0]);
}

tl_tensor tl_norm_row_sum(tl_tape *t, tl_tensor x, int64_t k)
{
    tl_shape dims = {.ndim = (int)k};
    for (int i = 0; i < (int)k; i++)
        dims.dim[i] = i - k;
    return tl_sum(t, x, dims, true);
}

double tl_norm_inverse(tl_tape *t, tl_tensor x, int64_t k)
{
    tl_shape s = tl_shape_of(t, x);
    double n = 1;
    for (int i = s.ndim - (int)k; i >= 0 && i < s.ndim; i++) /* no dims: the tape has failed */
        n *= (double)s.dim[i];
    return 1 / n;
}

tl_tensor tl_norm_stats_grad(tl_vjp *g, tl_tensor x, tl_tensor mean, tl_tensor rstd,
                             tl_tensor dmean, tl_tensor drstd, tl_tensor dx)
{
    tl_tape *t = g->t;
    tl_tensor e = TL_NONE;
    if (tl_is_none(drstd) && tl_is_none(dmean))
        return dx;
    double inv = tl_norm_inverse(t, x, ((const tl_norm_attrs *)g->attrs)->k);
    if (!tl_is_none(drstd)) {
        tl_tensor h = tl_mul(t, tl_is_none(mean) ? x : tl_sub(t, x, mean), rstd);
        e = tl_mul(t, tl_scale(t, tl_mul(t, drstd, tl_square(t, rstd)), -inv), h);
    }
    if (!tl_is_none(dmean)) {
        tl_tensor d = tl_scale(t, dmean, inv);
        e = tl_is_none(e) ? tl_expand(t, d, tl_shape_of(t, x)) : tl_add(t, e, d);
    }
    e = tl_cast(t, e, tl_dtype_of(t, x));
    return tl_is_none(dx) ? e : tl_add(t, dx, e);
}

tl_tensor tl_norm_nothing(tl_vjp *g, int i)
{
    return tl_is_none(g->acc[i])
               ? tl_fill(g->t, tl_dtype_of(g->t, g->in[i]), tl_shape_of(g->t, g->in[i]), 0)
               : g->acc[i];
}
