/* norm.c: what rms_norm and layer_norm share (see norm.h), and their gradients as ops. */
#include "ops/norm.h"

#include <float.h>

const tl_attr tl_norm_schema[] = {TL_FIELD(tl_norm, eps, F64),
                                  TL_FIELD(tl_norm, k, I64),
                                  TL_FIELD(tl_norm, plus_one, BOOL),
                                  {0}};

static tl_status check_row(tl_call *c, const tl_array *x, int64_t k)
{
    TL_TRY(tl_need_float(c, x, "x"));
    if (k < 1 || k > x->ndim)
        return tl_call_fail(c, TL_ESHAPE, "%lld dims to normalize, x has %d", (long long)k,
                            x->ndim);
    return TL_OK;
}

/* Checks that w, unless NULL, has the shape of x's last k dims, and x's dtype or f32. */
static tl_status check_weight(tl_call *c, const tl_array *x, int64_t k, const char *name,
                              const tl_array *w)
{
    if (w == NULL)
        return TL_OK;
    const size_t bytes = (size_t)k * sizeof *x->dim;
    tl_shape row = {.ndim = (int)k};
    memcpy(row.dim, x->dim + x->ndim - k, bytes);
    if (w->ndim != row.ndim || memcmp(w->dim, row.dim, bytes) != 0)
        return tl_call_fail(c, TL_ESHAPE, "%s has shape %s, but x ends in %s", name, TL_TEXT(w),
                            TL_TEXT_OF(&row));
    if (w->dtype != x->dtype && (w->dtype != TL_F32 || x->dtype == TL_F64))
        return tl_call_fail(c, TL_EDTYPE, "%s is %s, x %s; %s has x's dtype, or f32 beside f16",
                            name, tl_dtype_name(w->dtype), tl_dtype_name(x->dtype), name);
    return TL_OK;
}

tl_status tl_norm_shape(tl_call *c, const tl_array *gamma, const tl_array *beta)
{
    tl_norm_attrs *a = c->attrs;
    const tl_array *x = c->in[0];
    tl_array *y = &c->out[0], *rstd = &c->out[1];
    if (a->k == TL_BY_WEIGHT)
        a->k = gamma != NULL ? gamma->ndim : beta != NULL ? beta->ndim : 1;
    TL_TRY(check_row(c, x, a->k));
    TL_TRY(check_weight(c, x, a->k, "gamma", gamma));
    TL_TRY(check_weight(c, x, a->k, "beta", beta));
    if (a->eps < 0 || a->eps > DBL_MAX)
        return tl_call_fail(c, TL_EDOMAIN, "eps is %g; it cannot be negative or infinite", a->eps);
    *y = *rstd = *x;
    rstd->dtype = tl_dtype_compute(x->dtype);
    if (isnan(a->eps)) /* the epsilon of this call's type, also where it is run again in f64 */
        a->eps = rstd->dtype == TL_F64 ? 0x1p-52 : 0x1p-23;
    for (int i = x->ndim - (int)a->k; i < x->ndim; i++)
        rstd->dim[i] = 1;
    return TL_OK;
}

/* 1 / the number of elements in a row of x, its last k dims. */
static double inverse(tl_tape *t, tl_tensor x, int64_t k)
{
    tl_shape s = tl_shape_of(t, x);
    double n = 1;
    for (int i = s.ndim - (int)k; i >= 0 && i < s.ndim; i++) /* no dims: the tape has failed */
        n *= (double)s.dim[i];
    return 1 / n;
}

/* dx plus what the cotangents of rstd and, unless it is TL_NONE, mean add to it (NUMERICS 6.12). */
static tl_tensor with_stats(tl_vjp *g, tl_tensor x, tl_tensor mean, tl_tensor rstd, tl_tensor dx)
{
    tl_tape *t = g->t;
    const bool layer = !tl_is_none(mean);
    tl_tensor dmean = layer ? g->dy[1] : TL_NONE, drstd = g->dy[layer ? 2 : 1], e = TL_NONE;
    if (tl_is_none(drstd) && tl_is_none(dmean))
        return dx;
    double inv = inverse(t, x, ((const tl_norm_attrs *)g->attrs)->k);
    if (!tl_is_none(drstd)) {
        tl_tensor h = tl_mul(t, layer ? tl_sub(t, x, mean) : x, rstd);
        e = tl_mul(t, tl_scale(t, tl_mul(t, drstd, tl_square(t, rstd)), -inv), h);
    }
    if (!tl_is_none(dmean)) {
        tl_tensor d = tl_scale(t, dmean, inv);
        e = tl_is_none(e) ? tl_expand(t, d, tl_shape_of(t, x)) : tl_add(t, e, d);
    }
    return tl_plus(t, dx, tl_cast(t, e, tl_dtype_of(t, x)));
}

tl_tensor tl_norm_no_grad(tl_vjp *g, int i)
{
    return tl_is_none(g->acc[i]) ? tl_filled_like(g->t, g->in[i], 0) : g->acc[i];
}

tl_tensor tl_norm_gradient(tl_vjp *g, tl_tensor x, int gamma, bool layer, bool want_dx)
{
    const tl_norm_attrs *n = g->attrs;
    const tl_norm_grad_attrs a = {n->k, want_dx, g->wants[gamma], n->plus_one};
    const tl_tensor dy = g->dy[0], weight = g->in[gamma], acc = g->acc[gamma],
                    mean = layer ? g->out[1] : TL_NONE, rstd = g->out[layer ? 2 : 1];
    tl_tensor grad[2] = {TL_NONE, TL_NONE}; /* dgamma, dx */
    const bool any = want_dx || g->wants[gamma];
    if (tl_is_none(dy))
        grad[0] = g->wants[gamma] ? tl_norm_no_grad(g, gamma) : TL_NONE;
    else if (any && layer)
        tl_apply(TL_AT(g->t), &tl_op_layer_norm_grad, &a,
                 (tl_tensor[]){dy, x, weight, mean, rstd, acc}, 6, grad);
    else if (any)
        tl_apply(TL_AT(g->t), &tl_op_rms_norm_grad, &a, (tl_tensor[]){dy, x, weight, rstd, acc}, 5,
                 grad);
    g->dx[gamma] = grad[0];
    return want_dx ? with_stats(g, x, mean, rstd, grad[1]) : TL_NONE;
}

/* ---- rms_norm_grad(dy, x, gamma?, rstd, acc?) and layer_norm_grad(dy, x, gamma?, mean, rstd,
 * acc?) -> dgamma (acc continued), dx
 * Shape:  dy and x alike; gamma has x's last k dims, mean and rstd x's shape with these as 1;
 *         dgamma has gamma's shape; an output that is not wanted is empty
 * Dtype:  as the norm; dgamma in the accumulator (f64) or the compute type, dx x's dtype
 * Bits:   NUMERICS 6.2, 6.7
 * VJP:    in primitives, below
 * Errors: TL_ESHAPE TL_EDTYPE
 * dx is computed by the rows of tensor/kernels/norm.t.h, dgamma by the columns of folds.t.h.
 */

static const tl_attr tl_norm_grad_schema[] = {TL_FIELD(tl_norm_grad, k, I64),
                                              TL_FIELD(tl_norm_grad, want_dx, BOOL),
                                              TL_FIELD(tl_norm_grad, want_dgamma, BOOL),
                                              TL_FIELD(tl_norm_grad, plus_one, BOOL),
                                              {0}};

static tl_status grad_shape(tl_call *c)
{
    const tl_norm_grad_attrs *a = c->attrs;
    const tl_array *dy = c->in[0], *x = c->in[1], *gamma = c->in[2], *acc = c->in[c->n_in - 1];
    TL_TRY(check_row(c, x, a->k));
    TL_TRY(check_weight(c, x, a->k, "gamma", gamma));
    if (!tl_array_same_shape(dy, x) || (a->want_dgamma && gamma == NULL))
        return tl_call_fail(c, TL_ESHAPE,
                            "dy and x differ in shape, or dgamma is wanted without gamma");
    for (int i = 3; i < c->n_in - 1; i++) { /* statistics of rows */
        const tl_array *stat = c->in[i];
        bool fits = stat->ndim == x->ndim && stat->dtype == tl_dtype_compute(x->dtype);
        for (int k = 0; fits && k < x->ndim; k++)
            fits = stat->dim[k] == (k < x->ndim - (int)a->k ? x->dim[k] : 1);
        if (!fits)
            return tl_call_fail(c, TL_ESHAPE, "input %d is %s %s for rows of x %s", i,
                                tl_dtype_name(stat->dtype), TL_TEXT(stat), TL_TEXT(x));
    }
    tl_shape none = TL_DIMS(0), s = a->want_dgamma ? tl_array_shape(gamma) : none;
    c->out[0] = acc != NULL ? *acc : tl_array_make(tl_dtype_compute(x->dtype), &s, NULL);
    c->out[1] = a->want_dx ? *x : tl_array_make(x->dtype, &none, NULL);
    if (acc != NULL && (acc->dtype != TL_F64 || gamma == NULL || !tl_array_same_shape(acc, gamma)))
        return tl_call_fail(c, TL_ESHAPE, "the accumulator must be f64 of gamma's shape");
    return TL_OK;
}

/* Samples are rows of dx, and dgamma is their total. */
static void grad_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const int nd = c->in[1]->ndim, last = c->n_in - 1;
    tl_batch rows[6];
    memcpy(rows, in, (size_t)c->n_in);
    rows[last] = TL_FREE; /* the accumulator is no row */
    out[1] = tl_batch_meet(c, rows, (TL_BIT(last) - 1) & ~TL_BIT(2), nd);
    out[1] = tl_batch_outside(out[1], nd, ((const tl_norm_grad_attrs *)c->attrs)->k);
    out[0] = tl_batch_continuing(out[1] >= 0 ? TL_TOTAL : out[1], c, in, last);
}

static const void *from_row(const void *x, int64_t row, int64_t n, size_t size)
{
    return x == NULL ? NULL : (const char *)x + (size_t)(row * n) * size;
}

/* Runs the kernels that are wanted. A thread that has both to itself takes blocks of rows, which
 * the fold then finds in the cache. Several threads take all rows at once, since they would have to
 * meet after every block. */
static void over_rows(const tl_norm_rows *all, const tl_norm_grad_attrs *a, bool f64)
{
    enum { BLOCK_BYTES = 128 << 10 };
    const tl_row_table *k = tl_isa_now()->row;
    const size_t size = f64 ? sizeof(double) : sizeof(float);
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
        if (a->want_dx)
            tl_parallel_for(part.rows, by_rows, f64 ? k->norm_grad64 : k->norm_grad32, &part);
        if (a->want_dgamma)
            tl_parallel_for(part.n, by_columns, f64 ? k->norm_fold64 : k->norm_fold32, &part);
    }
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

static tl_status grad_forward(tl_call *c)
{
    const tl_norm_grad_attrs *a = c->attrs;
    const int last = c->n_in - 1;
    const tl_array *x = c->in[1], *gamma = c->in[2], *rstd = c->in[last - 1], *acc = c->in[last];
    tl_norm_rows j = {.n = 1,
                      .rows = tl_array_count(rstd),
                      .dy = c->in[0]->data,
                      .x = x->data,
                      .gamma = gamma == NULL ? NULL : gamma->data,
                      .mean = last == 5 ? c->in[3]->data : NULL,
                      .rstd = rstd->data,
                      .dx = c->out[1].data,
                      .fold = c->out[0].data};
    for (int i = x->ndim - (int)a->k; i < x->ndim; i++)
        j.n *= x->dim[i];
    if (a->plus_one && gamma != NULL) {
        j.gamma = one_plus(c, gamma);
        if (j.gamma == NULL)
            return TL_ENOMEM;
    }
    const bool own_fold = a->want_dgamma && acc == NULL;
    if (own_fold) {
        j.fold = tl_scratch(c, (size_t)j.n * sizeof *j.fold, true);
        if (j.fold == NULL)
            return TL_ENOMEM;
    }
    over_rows(&j, a, x->dtype == TL_F64);
    if (own_fold) /* the only rounding of dgamma */
        tl_isa_now()->convert->cast(j.n, TL_F64, j.fold, c->out[0].dtype, c->out[0].data);
    return TL_OK;
}

/* ---- the vjps of rms_norm_grad and layer_norm_grad, in primitives: second derivatives ---- */

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

/* The parts of both formulas below. */
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
               .inv = inverse(t, v->in[1], a->k),
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
static void rms_norm_grad_vjp(tl_vjp *v)
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
static void layer_norm_grad_vjp(tl_vjp *v)
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

/* clang-format off */
#define NORM_GRAD(id, inputs, acc)                                                               \
    TL_NAMED(id, inputs, 2), .optional = TL_BIT(2) | TL_BIT(acc),                                \
    .traits = TL_MUTATES | TL_WIDENED, .mutates = acc, .shape = grad_shape,                      \
    .forward = grad_forward, TL_ATTRS(tl_norm_grad), .vjp = id##_vjp,                            \
    .saves_in = TL_BIT(acc) - 1, .batch = grad_batch
/* clang-format on */
const tl_op tl_op_rms_norm_grad = {NORM_GRAD(rms_norm_grad, 5, 4)};
const tl_op tl_op_layer_norm_grad = {NORM_GRAD(layer_norm_grad, 6, 5)};
