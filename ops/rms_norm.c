/* rms_norm: y = x * rstd * gamma,  rstd = 1/sqrt(mean(x^2) + eps)
 * Shape:  x (..., n), gamma (n) or none -> y (..., n), rstd (..., 1). gamma may span the last k dims.
 * Dtype:  f16 bf16 f32 f64; gamma of x's dtype or f32; rstd f32 (f64 for f64).
 * Bits:   sum of squares by lanes (NUMERICS 6.1), one rounding into y.
 * VJP:    dx = rstd*(dy*gamma - xhat*mean(dy*gamma*xhat)),  dgamma = fold over rows of dy*xhat.   Saves x, gamma, rstd.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (eps < 0)
 * Source: Zhang & Sennrich 2019, eq. 4
 */
#include "ops/build.h"

typedef struct {
    double eps;   /* NaN: the compute type's epsilon */
    int64_t k;    /* normalized dims, from the last */
} norm_attrs;

static const tl_attr norm_schema[] = {{"eps", TL_ATTR_F64, offsetof(norm_attrs, eps)},
                                      {"k", TL_ATTR_I64, offsetof(norm_attrs, k)},
                                      {0}};

static int64_t row_length(const tl_array *x, int64_t k)
{
    int64_t n = 1;
    for (int i = x->ndim - (int)k; i < x->ndim; i++)
        n *= x->dim[i];
    return n;
}

static tl_status check_gamma(tl_call *c, const tl_array *x, const tl_array *gamma, int64_t k)
{
    char sg[TL_SHAPE_TEXT], sx[TL_SHAPE_TEXT];
    if (!tl_dtype_is_float(x->dtype))
        return tl_call_fail(c, TL_EDTYPE, "x is %s; floats are needed", tl_dtype_name(x->dtype));
    if (k < 1 || k > x->ndim)
        return tl_call_fail(c, TL_ESHAPE, "%lld dims to normalize, x has %d", (long long)k, x->ndim);
    if (gamma == NULL)
        return TL_OK;
    if (gamma->ndim != k || memcmp(gamma->dim, x->dim + x->ndim - k, (size_t)k * sizeof gamma->dim[0]) != 0) {
        tl_shape tail = {.ndim = (int)k};
        memcpy(tail.dim, x->dim + x->ndim - k, (size_t)k * sizeof tail.dim[0]);
        return tl_call_fail(c, TL_ESHAPE, "gamma has shape %s, but x ends in %s", tl_array_shape_text(sg, gamma),
                            tl_shape_text(sx, &tail));
    }
    if (gamma->dtype != x->dtype && !(gamma->dtype == TL_F32 && tl_dtype_compute(x->dtype) == TL_F32))
        return tl_call_fail(c, TL_EDTYPE, "gamma is %s, x %s; gamma has x's dtype or f32", tl_dtype_name(gamma->dtype),
                            tl_dtype_name(x->dtype));
    return TL_OK;
}

static tl_status rms_norm_shape(tl_call *c)
{
    const norm_attrs *a = c->attrs;
    const tl_array *x = c->in[0];
    TL_TRY(check_gamma(c, x, c->in[1], a->k));
    if (a->eps < 0)
        return tl_call_fail(c, TL_EDOMAIN, "eps is %g; it cannot be negative", a->eps);
    c->out[0] = *x;
    c->out[1] = *x;
    c->out[1].dtype = tl_dtype_compute(x->dtype);
    for (int i = x->ndim - (int)a->k; i < x->ndim; i++)
        c->out[1].dim[i] = 1;
    return TL_OK;
}

/* Operands of a run over rows; all contiguous, of the compute type. */
typedef struct {
    tl_array x, gamma, y, dy, rstd;
    const void *g;   /* gamma's data or NULL */
    int64_t n;
    double eps;
    double *fold;    /* dgamma's accumulator, rows of n */
} job;

static void forward_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        if (j->x.dtype == TL_F64)
            ((double *)j->rstd.data)[r] = k->rms_norm64(j->n, (const double *)j->x.data + r * j->n, j->g, j->eps,
                                                        (double *)j->y.data + r * j->n);
        else
            ((float *)j->rstd.data)[r] = k->rms_norm32(j->n, (const float *)j->x.data + r * j->n, j->g, (float)j->eps,
                                                       (float *)j->y.data + r * j->n);
    }
}

static tl_status rms_norm_forward(tl_call *c)
{
    const norm_attrs *a = c->attrs;
    job j = {.n = row_length(c->in[0], a->k), .rstd = c->out[1]};
    tl_storage *hx = NULL, *hg = NULL, *hy = NULL;
    int64_t rows = tl_array_count(&c->out[1]);
    j.eps = a->eps == a->eps ? a->eps : c->out[1].dtype == TL_F64 ? 0x1p-52 : 0x1p-23;
    tl_status s = tl_as_compute(c, c->in[0], &j.x, &hx);
    if (s == TL_OK && c->in[1] != NULL)
        s = tl_as_compute(c, c->in[1], &j.gamma, &hg);
    if (s == TL_OK)
        s = tl_out_compute(c, 0, &j.y, &hy);
    if (s == TL_OK) {
        j.g = c->in[1] != NULL ? j.gamma.data : NULL;
        tl_parallel_for(rows, 1 + 8192 / (j.n + 1), forward_rows, &j);
        tl_store_compute(c, 0, &j.y, hy);
    }
    tl_storage_release(hx);
    tl_storage_release(hg);
    return s;
}

/* ---- rms_norm_grad(dy, x, gamma?, rstd, acc?) -> dgamma (acc continued), dx ---- */

typedef struct {
    int64_t k;
    bool want_dx, want_dgamma;
} grad_attrs;

static const tl_attr grad_schema[] = {{"k", TL_ATTR_I64, offsetof(grad_attrs, k)},
                                      {"want_dx", TL_ATTR_BOOL, offsetof(grad_attrs, want_dx)},
                                      {"want_dgamma", TL_ATTR_BOOL, offsetof(grad_attrs, want_dgamma)},
                                      {0}};

static void rms_norm_vjp(tl_vjp *g)
{
    grad_attrs a = {((const norm_attrs *)g->attrs)->k, g->wants[0], g->wants[1]};
    tl_tensor in[5] = {g->dy[0], g->in[0], g->in[1], g->out[1], g->acc[1]}, out[2];
    tl_apply(TL_AT(g->t), &tl_op_rms_norm_grad, &a, in, 5, out);
    g->dx[0] = out[1];
    g->dx[1] = out[0];
}

const tl_op tl_op_rms_norm = {.name = "rms_norm", .n_in = 2, .n_out = 2, .optional = TL_BIT(1), .traits = TL_HEAVY,
                              .shape = rms_norm_shape, .forward = rms_norm_forward, .attr = norm_schema,
                              .attr_size = sizeof(norm_attrs), .vjp = rms_norm_vjp, .saves_in = 3, .saves_out = 2,
                              .folds = 2, .folds_f64 = 2, .nodiff_out = 2};

tl_tensor tl_rms_norm_at(tl_at at, tl_tensor x, tl_tensor gamma, double eps, tl_tensor *rstd)
{
    norm_attrs a = {eps, tl_is_none(gamma) ? 1 : tl_shape_of(at.tape, gamma).ndim};
    tl_tensor out[2];
    tl_apply(at, &tl_op_rms_norm, &a, (tl_tensor[]){x, gamma}, 2, out);
    if (rstd != NULL)
        *rstd = out[1];
    return out[0];
}

/* dgamma has gamma's shape, in the accumulator or f32 (f64 for f64); dx x's dtype.
 * What is not wanted comes out empty. */
static tl_status rms_norm_grad_shape(tl_call *c)
{
    const grad_attrs *a = c->attrs;
    const tl_array *x = c->in[1], *gamma = c->in[2], *acc = c->in[4];
    TL_TRY(check_gamma(c, x, gamma, a->k));
    if (!tl_array_same_shape(c->in[0], x) || (a->want_dgamma && gamma == NULL))
        return tl_call_fail(c, TL_ESHAPE, "dy and x differ in shape, or dgamma is wanted without gamma");
    tl_shape none = TL_DIMS(0), s = a->want_dgamma ? tl_array_shape(gamma) : none;
    c->out[0] = acc != NULL ? *acc : tl_array_make(tl_dtype_compute(x->dtype), &s, NULL);
    c->out[1] = a->want_dx ? *x : tl_array_make(x->dtype, &none, NULL);
    if (acc != NULL && (acc->dtype != TL_F64 || gamma == NULL || !tl_array_same_shape(acc, gamma)))
        return tl_call_fail(c, TL_ESHAPE, "the accumulator must be f64 of gamma's shape");
    return TL_OK;
}

static void grad_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * j->n;
        if (j->x.dtype == TL_F64)
            k->rms_norm_grad64(j->n, (const double *)j->dy.data + at, (const double *)j->x.data + at, j->g,
                               ((const double *)j->rstd.data)[r], (double *)j->y.data + at);
        else
            k->rms_norm_grad32(j->n, (const float *)j->dy.data + at, (const float *)j->x.data + at, j->g,
                               ((const float *)j->rstd.data)[r], (float *)j->y.data + at);
    }
}

/* Columns [begin, end) of dgamma: all rows in order. */
static void fold_columns(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    int64_t rows = tl_array_count(&j->rstd);
    (void)thread;
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r * j->n + begin;
        if (j->x.dtype == TL_F64)
            k->rms_norm_fold64(end - begin, (const double *)j->dy.data + at, (const double *)j->x.data + at,
                               ((const double *)j->rstd.data)[r], j->fold + begin);
        else
            k->rms_norm_fold32(end - begin, (const float *)j->dy.data + at, (const float *)j->x.data + at,
                               ((const float *)j->rstd.data)[r], j->fold + begin);
    }
}

static tl_status grad_dgamma(tl_call *c, job *j)
{
    tl_storage *st = NULL;
    tl_shape s = tl_array_shape(&c->out[0]);
    bool continues = c->in[4] != NULL;
    j->fold = c->out[0].data;
    if (!continues || !tl_array_contiguous(&c->out[0])) {
        st = tl_scratch(c, (size_t)j->n * 8, true);
        if (st == NULL)
            return TL_ENOMEM;
        j->fold = st->data;
    }
    tl_array row = tl_array_make(TL_F64, &s, j->fold);
    if (continues && st != NULL) /* gamma was a strided view of a parameter, and so is its accumulator */
        tl_array_copy(&row, &c->out[0]);
    tl_parallel_for(j->n, 1 + 16384 / (tl_array_count(&j->rstd) + 1), fold_columns, j);
    if (continues && st != NULL)
        tl_array_copy(&c->out[0], &row);
    for (int64_t i = 0; !continues && i < j->n; i++)
        if (c->out[0].dtype == TL_F64)
            ((double *)c->out[0].data)[i] = j->fold[i] + 0;
        else
            ((float *)c->out[0].data)[i] = (float)(j->fold[i] + 0);
    tl_storage_release(st);
    return TL_OK;
}

static tl_status rms_norm_grad_forward(tl_call *c)
{
    const grad_attrs *a = c->attrs;
    job j = {.n = row_length(c->in[1], a->k)};
    tl_storage *h[4] = {NULL}, *hy = NULL;
    tl_status s = tl_as_compute(c, c->in[0], &j.dy, &h[0]);
    if (s == TL_OK)
        s = tl_as_compute(c, c->in[1], &j.x, &h[1]);
    if (s == TL_OK && c->in[2] != NULL)
        s = tl_as_compute(c, c->in[2], &j.gamma, &h[2]);
    if (s == TL_OK)
        s = tl_as_compute(c, c->in[3], &j.rstd, &h[3]);
    j.g = c->in[2] != NULL ? j.gamma.data : NULL;
    if (s == TL_OK && a->want_dx)
        s = tl_out_compute(c, 1, &j.y, &hy);
    if (s == TL_OK && a->want_dx) {
        tl_parallel_for(tl_array_count(&j.rstd), 1 + 8192 / (j.n + 1), grad_rows, &j);
        tl_store_compute(c, 1, &j.y, hy);
    }
    if (s == TL_OK && a->want_dgamma)
        s = grad_dgamma(c, &j);
    for (int i = 0; i < 4; i++)
        tl_storage_release(h[i]);
    return s;
}

/* With h = x*rstd, g = dy*gamma, m = mean(g*h), dx = rstd*(g - h*m), dgamma = sum dy*h, and
 * cotangents u of dx, w of dgamma; rstd is a function of x:
 *   cm = -rstd*sum(u*h),  cg = rstd*u + cm*h/n,  ch = -rstd*u*m + cm*g/n + w*dy
 *   d_dy = cg*gamma + w*h,  d_gamma = cg*dy (folded by the engine),
 *   d_x = rstd*(ch - h*mean(ch*h)) - rstd^2 * h * sum(u*(g - h*m))/n */
static tl_tensor row_sum(tl_tape *t, tl_tensor x, int64_t k)
{
    tl_shape dims = {.ndim = (int)k};
    for (int i = 0; i < (int)k; i++)
        dims.dim[i] = i - k;
    return tl_sum(t, x, dims, true);
}

static void rms_norm_grad_vjp(tl_vjp *v)
{
    const grad_attrs *a = v->attrs;
    tl_tape *t = v->t;
    tl_tensor dy = v->in[0], x = v->in[1], gamma = v->in[2], r = v->in[3], u = v->dy[1], w = v->dy[0];
    tl_shape s = tl_shape_of(t, x);
    tl_array row = {.ndim = s.ndim};
    memcpy(row.dim, s.dim, sizeof s.dim);
    double inv = 1 / (double)row_length(&row, a->k);
    tl_tensor zero = tl_scalar(t, tl_dtype_of(t, x), 0), h = tl_mul(t, x, r);
    tl_tensor g = tl_is_none(gamma) ? dy : tl_mul(t, dy, gamma);
    bool has_u = a->want_dx && !tl_is_none(u), has_w = a->want_dgamma && !tl_is_none(w);
    tl_tensor cg = zero, ch = has_w ? tl_mul(t, w, dy) : zero, bend = zero;
    if (has_u) {
        tl_tensor m = tl_scale(t, row_sum(t, tl_mul(t, g, h), a->k), inv);
        tl_tensor cm = tl_neg(t, tl_mul(t, r, row_sum(t, tl_mul(t, u, h), a->k)));
        tl_tensor cmn = tl_scale(t, cm, inv), ru = tl_mul(t, r, u);
        cg = tl_add(t, ru, tl_mul(t, cmn, h));
        ch = tl_add(t, tl_sub(t, tl_mul(t, cmn, g), tl_mul(t, ru, m)), ch);
        tl_tensor cr = row_sum(t, tl_mul(t, u, tl_sub(t, g, tl_mul(t, h, m))), a->k);
        bend = tl_mul(t, tl_mul(t, tl_square(t, r), h), tl_scale(t, cr, inv));
    }
    if (v->wants[0]) {
        tl_tensor d = tl_is_none(gamma) ? cg : tl_mul(t, cg, gamma);
        v->dx[0] = has_w ? tl_add(t, d, tl_mul(t, w, h)) : d;
    }
    if (v->wants[1]) {
        tl_tensor mean = tl_scale(t, row_sum(t, tl_mul(t, ch, h), a->k), inv);
        v->dx[1] = tl_sub(t, tl_mul(t, r, tl_sub(t, ch, tl_mul(t, h, mean))), bend);
    }
    if (v->wants[2])
        v->dx[2] = tl_mul(t, cg, dy);
}

const tl_op tl_op_rms_norm_grad = {.name = "rms_norm_grad", .n_in = 5, .n_out = 2, .optional = TL_BIT(2) | TL_BIT(4),
                                   .traits = TL_MUTATES, .mutates = 4, .shape = rms_norm_grad_shape,
                                   .forward = rms_norm_grad_forward, .attr = grad_schema, .attr_size = sizeof(grad_attrs),
                                   .vjp = rms_norm_grad_vjp, .saves_in = 15};
