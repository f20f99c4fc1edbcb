/* loss.c: what cross_entropy and nll share. See loss.h. */
#include "ops/loss.h"

tl_status tl_loss_check(tl_call *c, const tl_loss_attrs *a, const char *name, const tl_array *z,
                        const tl_array *targets, const tl_array *count)
{
    tl_array lead = *z;
    char sz[TL_SHAPE_TEXT], st[TL_SHAPE_TEXT];
    if (a->reduction != TL_MEAN && a->reduction != TL_SUM)
        return tl_call_fail(c, TL_EDOMAIN, "reduction %lld; say TL_MEAN or TL_SUM",
                            (long long)a->reduction);
    if (!(a->smoothing >= 0 && a->smoothing <= 1))
        return tl_call_fail(c, TL_EDOMAIN, "label smoothing is %g; 0 to 1 is possible",
                            a->smoothing);
    if (!tl_dtype_is_float(z->dtype) || targets->dtype != TL_I64)
        return tl_call_fail(c, TL_EDTYPE, "%s %s, targets %s; a float and I64 are needed", name,
                            tl_dtype_name(z->dtype), tl_dtype_name(targets->dtype));
    lead.ndim--;
    if (z->ndim < 1 || !tl_array_same_shape(&lead, targets))
        return tl_call_fail(c, TL_ESHAPE, "%s %s for targets %s", name, tl_array_shape_text(sz, z),
                            tl_array_shape_text(st, targets));
    if (count != NULL && (count->dtype != TL_F64 || tl_array_count(count) != 1))
        return tl_call_fail(c, TL_EDTYPE, "the count is %s %s; one F64 is needed",
                            tl_array_shape_text(sz, count), tl_dtype_name(count->dtype));
    return TL_OK;
}

tl_status tl_loss_outputs(tl_call *c, const tl_array *total, tl_dtype dtype)
{
    tl_shape none = TL_SCALAR;
    c->out[0] = total != NULL ? *total : tl_array_make(TL_F64, &none, NULL);
    if (c->out[0].dtype != TL_F64 || c->out[0].ndim != 0)
        return tl_call_fail(c, TL_EDTYPE, "the total must be a 0-d F64");
    c->out[1] = tl_array_make(tl_dtype_compute(dtype), &none, NULL);
    return TL_OK;
}

static int64_t target_of(const tl_array *targets, int64_t row)
{
    return *(const int64_t *)tl_array_at(targets, row);
}

tl_status tl_loss_targets(tl_call *c, const tl_loss_attrs *a, const tl_array *targets,
                          int64_t classes, int64_t *counted)
{
    int64_t rows = tl_array_count(targets);
    *counted = 0;
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = target_of(targets, r);
        if (tl_loss_ignored(a, t))
            continue;
        if (t < 0 || t >= classes)
            return tl_call_fail(c, TL_EINDEX, "target %lld in row %lld; there are %lld classes",
                                (long long)t, (long long)r, (long long)classes);
        ++*counted;
    }
    return TL_OK;
}

void tl_loss_total(tl_call *c, const tl_loss_attrs *a, const double *loss, const tl_array *targets,
                   int64_t counted, const tl_array *count, const tl_array *total)
{
    int64_t rows = tl_array_count(targets);
    double sum = total != NULL ? *(double *)total->data : 0;
    for (int64_t r = 0; r < rows; r++)
        if (!tl_loss_ignored(a, target_of(targets, r)))
            sum += loss[r];
    sum += 0;
    *(double *)c->out[0].data = sum;
    double n = count != NULL ? *(double *)count->data : (double)counted,
           y = a->reduction == TL_MEAN ? sum / n : sum;
    tl_isa_now()->convert->cast(1, TL_F64, &y, c->out[1].dtype, c->out[1].data);
}
