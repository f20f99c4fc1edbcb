/* norm.c: what the norms share. See norm.h. */
#include "ops/norm.h"

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

int64_t tl_norm_length(const tl_array *x, int64_t k)
{
    int64_t n = 1;
    for (int i = x->ndim - (int)k; i < x->ndim; i++)
        n *= x->dim[i];
    return n;
}

tl_status tl_norm_check(tl_call *c, const tl_array *x, const char *name, const tl_array *weight,
                        int64_t k)
{
    char sg[TL_SHAPE_TEXT], sx[TL_SHAPE_TEXT];
    if (!tl_dtype_is_float(x->dtype))
        return tl_call_fail(c, TL_EDTYPE, "x is %s; floats are needed", tl_dtype_name(x->dtype));
    if (k < 1 || k > x->ndim)
        return tl_call_fail(c, TL_ESHAPE, "%lld dims to normalize, x has %d", (long long)k,
                            x->ndim);
    if (weight == NULL)
        return TL_OK;
    if (weight->ndim != k ||
        memcmp(weight->dim, x->dim + x->ndim - k, (size_t)k * sizeof weight->dim[0]) != 0) {
        tl_shape tail = {.ndim = (int)k};
        memcpy(tail.dim, x->dim + x->ndim - k, (size_t)k * sizeof tail.dim[0]);
        return tl_call_fail(c, TL_ESHAPE, "%s has shape %s, but x ends in %s", name,
                            tl_array_shape_text(sg, weight), tl_shape_text(sx, &tail));
    }
    if (weight->dtype != x->dtype &&
        !(weight->dtype == TL_F32 && tl_dtype_compute(x->dtype) == TL_F32))
        return tl_call_fail(c, TL_EDTYPE, "%s is %s, x %s; %s has x's dtype or f32", name,
                            tl_dtype_name(weight->dtype), tl_dtype_name(x->dtype), name);
    return TL_OK;
}

tl_status tl_norm_check_eps(tl_call *c, double eps)
{
    return eps < 0 ? tl_call_fail(c, TL_EDOMAIN, "eps is %g; it cannot be negative", eps) : TL_OK;
}

tl_array tl_norm_stat(const tl_array *x, int64_t k)
{
    tl_array s = *x;
    s.dtype = tl_dtype_compute(x->dtype);
    for (int i = x->ndim - (int)k; i < x->ndim; i++)
        s.dim[i] = 1;
    return s;
}

tl_status tl_norm_grad_outputs(tl_call *c, const tl_array *dy, const tl_array *x,
                               const tl_array *gamma, const tl_array *acc)
{
    const tl_norm_grad_attrs *a = c->attrs;
    TL_TRY(tl_norm_check(c, x, "gamma", gamma, a->k));
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

void tl_norm_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const int nd = c->out[0].ndim;
    const tl_batch a = tl_batch_meet(c, in, ~c->op->folds, nd);
    memset(out, tl_batch_outside(a, nd, ((const tl_norm_attrs *)c->attrs)->k), (size_t)c->n_out);
}

/* dy, x, gamma?, statistics, acc? */
void tl_norm_grad_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const int nd = c->in[1]->ndim, last = c->n_in - 1;
    const unsigned acc = in[last] == TL_TOTAL ? TL_BIT(last) : 0;
    tl_batch rows[6];
    memcpy(rows, in, (size_t)c->n_in);
    rows[last] = acc ? TL_FREE : in[last];
    out[1] = tl_batch_meet(c, rows, (TL_BIT(last) - 1) & ~TL_BIT(2), nd);
    out[1] = tl_batch_outside(out[1], nd, ((const tl_norm_grad_attrs *)c->attrs)->k);
    out[0] = out[1] >= 0 ? TL_TOTAL : out[1];
}

int64_t tl_norm_dims(tl_tape *t, tl_tensor gamma, tl_tensor beta)
{
    if (tl_is_none(gamma))
        gamma = beta;
    return tl_is_none(gamma) ? 1 : tl_shape_of(t, gamma).ndim;
}

tl_status tl_norm_weight(tl_call *c, const tl_array *gamma, bool plus_one, tl_array *out,
                         tl_storage **held)
{
    TL_TRY(tl_as_compute(c, gamma, out, held));
    int64_t n = tl_array_count(out);
    if (!plus_one)
        return TL_OK;
    tl_storage *st = tl_scratch(c, (size_t)n * tl_dtype_size(out->dtype), false);
    if (st == NULL)
        return TL_ENOMEM;
    for (int64_t i = 0; i < n; i++)
        if (out->dtype == TL_F64)
            ((double *)st->data)[i] = 1 + ((const double *)out->data)[i];
        else
            ((float *)st->data)[i] = 1 + ((const float *)out->data)[i];
    tl_storage_release(*held);
    *held = st;
    out->data = st->data;
    return TL_OK;
}

static tl_status fold_dgamma(tl_call *c, const tl_array *acc, tl_norm_job *j, tl_norm_part *columns)
{
    tl_storage *st = NULL;
    tl_shape s = tl_array_shape(&c->out[0]);
    bool continues = acc != NULL;
    j->fold = c->out[0].data;
    if (!continues || !tl_array_contiguous(&c->out[0])) {
        st = tl_scratch(c, (size_t)j->n * 8, true);
        if (st == NULL)
            return TL_ENOMEM;
        j->fold = st->data;
    }
    tl_array row = tl_array_make(TL_F64, &s, j->fold);
    if (continues &&
        st != NULL) /* gamma was a strided view of a parameter, and so is its accumulator */
        tl_array_copy(&row, &c->out[0]);
    tl_parallel_for(j->n, 1 + 16384 / (j->rows + 1), columns, j);
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

tl_status tl_norm_grad_run(tl_call *c, const tl_array *mean, const tl_array *rstd,
                           const tl_array *acc, tl_norm_part *rows, tl_norm_part *columns)
{
    const tl_norm_grad_attrs *a = c->attrs;
    tl_norm_job j = {.n = tl_norm_length(c->in[1], a->k), .rows = tl_array_count(rstd)};
    tl_storage *h[5] = {NULL}, *hy = NULL;
    tl_status s = tl_as_compute(c, c->in[0], &j.dy, &h[0]);
    if (s == TL_OK)
        s = tl_as_compute(c, c->in[1], &j.x, &h[1]);
    if (s == TL_OK && c->in[2] != NULL)
        s = tl_norm_weight(c, c->in[2], a->plus_one, &j.gamma, &h[2]);
    if (s == TL_OK && mean != NULL)
        s = tl_as_compute(c, mean, &j.mean, &h[3]);
    if (s == TL_OK)
        s = tl_as_compute(c, rstd, &j.rstd, &h[4]);
    j.g = c->in[2] != NULL ? j.gamma.data : NULL;
    if (s == TL_OK && a->want_dx)
        s = tl_out_compute(c, 1, &j.y, &hy);
    if (s == TL_OK && a->want_dx) {
        tl_parallel_for(j.rows, 1 + 8192 / (j.n + 1), rows, &j);
        tl_store_compute(c, 1, &j.y, hy);
    }
    if (s == TL_OK && a->want_dgamma)
        s = fold_dgamma(c, acc, &j, columns);
    for (int i = 0; i < 5; i++)
        tl_storage_release(h[i]);
    return s;
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
    double inv = tl_norm_inverse(t, x, ((const tl_norm_attrs *)g->attrs)->k);
    tl_tensor e = TL_NONE;
    if (!tl_is_none(drstd)) {
        tl_tensor h = tl_mul(t, tl_is_none(mean) ? x : tl_sub(t, x, mean), rstd);
        e = tl_mul(t, tl_scale(t, tl_mul(t, drstd, tl_square(t, rstd)), -inv), h);
    }
    if (!tl_is_none(dmean)) {
        tl_tensor d = tl_scale(t, dmean, inv);
        e = tl_is_none(e) ? tl_expand(t, d, tl_shape_of(t, x)) : tl_add(t, e, d);
    }
    if (tl_is_none(e))
        return dx;
    e = tl_cast(t, e, tl_dtype_of(t, x));
    return tl_is_none(dx) ? e : tl_add(t, dx, e);
}

tl_tensor tl_norm_nothing(tl_vjp *g, int i)
{
    return tl_is_none(g->acc[i])
               ? tl_fill(g->t, tl_dtype_of(g->t, g->in[i]), tl_shape_of(g->t, g->in[i]), 0)
               : g->acc[i];
}
