/* norm.c: what rms_norm and layer_norm share - their shape rule, the shape and forward of their
 * fused gradients, and the gradient of mean and rstd. See norm.h. */
#include "ops/norm.h"

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

/* w, unless NULL, has the shape of x's last k dims. */
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
        return tl_call_fail(c, TL_EDTYPE, "%s is %s, x %s; %s has x's dtype or f32", name,
                            tl_dtype_name(w->dtype), tl_dtype_name(x->dtype), name);
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
    if (a->eps < 0)
        return tl_call_fail(c, TL_EDOMAIN, "eps is %g; it cannot be negative", a->eps);
    *y = *rstd = *x;
    rstd->dtype = tl_dtype_compute(x->dtype);
    for (int i = x->ndim - (int)a->k; i < x->ndim; i++)
        rstd->dim[i] = 1;
    return TL_OK;
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
    return tl_plus(t, dx, tl_cast(t, e, tl_dtype_of(t, x)));
}

tl_tensor tl_norm_no_grad(tl_vjp *g, int i)
{
    return tl_is_none(g->acc[i]) ? tl_filled_like(g->t, g->in[i], 0) : g->acc[i];
}

/* ---- the fused gradients: (dy, x, gamma?, [mean,] rstd, acc?) -> dgamma, dx ---- */

const tl_attr tl_norm_grad_schema[] = {TL_FIELD(tl_norm_grad, k, I64),
                                       TL_FIELD(tl_norm_grad, want_dx, BOOL),
                                       TL_FIELD(tl_norm_grad, want_dgamma, BOOL),
                                       TL_FIELD(tl_norm_grad, plus_one, BOOL),
                                       {0}};

tl_status tl_norm_grad_shape(tl_call *c)
{
    const tl_norm_grad_attrs *a = c->attrs;
    const tl_array *dy = c->in[0], *x = c->in[1], *gamma = c->in[2], *acc = c->in[c->n_in - 1];
    TL_TRY(check_row(c, x, a->k));
    TL_TRY(check_weight(c, x, a->k, "gamma", gamma));
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

void tl_norm_grad_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
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

/* Runs the kernels of what is wanted. A thread that has both to itself takes blocks of rows, which
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

tl_status tl_norm_grad_forward(tl_call *c)
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
