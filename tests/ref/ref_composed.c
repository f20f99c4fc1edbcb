/* What NUMERICS defines by other formulas: logsumexp (6.13), bce_with_logits (6.14), weighted and
 * single losses of rows (6.15). */
#include "tests/ref/ref.h"

#include <math.h>
#include <stddef.h>

ref_tensor ref_logsumexp(const ref_tensor *x, unsigned dims, int keepdims)
{
    ref_dtype c = ref_compute(x->dtype);
    ref_tensor wide = ref_cast(x, c), m = ref_max(&wide, dims, 1);
    for (int64_t i = 0; i < ref_numel(&m); i++)
        if (isinf(ref_get(&m, i)))
            ref_set(&m, i, 0);
    ref_tensor d = ref_sub(&wide, &m), e = ref_exp(&d), l = ref_sum(&e, dims, keepdims, NULL),
               y = ref_like(&l, x->dtype);
    for (int64_t i = 0; i < ref_numel(&l); i++)
        ref_set(&y, i, ref_round(c, ref_log1(c, ref_get(&l, i)) + ref_get(&m, i)));
    ref_tensor *made[] = {&wide, &m, &d, &e, &l};
    for (int i = 0; i < 5; i++)
        ref_free(made[i]);
    return y;
}

static double at(const ref_tensor *x, ref_dtype c, const ref_tensor *like, int64_t i)
{
    int64_t ix[8];
    ref_unflatten(like->ndim, like->dim, i, ix);
    return ref_round(c, ref_get(x, ref_broadcast_at(x, like->ndim, ix)));
}

ref_tensor ref_bce(const ref_tensor *x, const ref_tensor *y, const ref_tensor *weight,
                   const ref_tensor *pos, ref_reduction how)
{
    ref_dtype c = ref_compute(x->dtype);
    ref_tensor l = ref_like(x, c), minus = ref_like(x, c);
    for (int64_t i = 0; i < ref_numel(x); i++)
        ref_set(&minus, i, -ref_get(x, i));
    ref_tensor s = ref_softplus(&minus);
    for (int64_t i = 0; i < ref_numel(x); i++) {
        double t = ref_round(c, ref_get(y, i)), p = ref_get(&s, i);
        double n = ref_round(c, ref_round(c, 1 - t) * ref_get(x, i));
        if (pos != NULL) {
            double q = ref_round(c, ref_round(c, at(pos, c, x, i) - 1) * t);
            p = ref_round(c, ref_round(c, q + 1) * p);
        }
        n = ref_round(c, n + p);
        ref_set(&l, i, weight != NULL ? ref_round(c, n * at(weight, c, x, i)) : n);
    }
    unsigned all = (1u << x->ndim) - 1;
    ref_tensor r = how == REF_EACH  ? ref_copy(&l)
                   : how == REF_SUM ? ref_sum(&l, all, 0, NULL)
                                    : ref_mean(&l, all, 0);
    ref_free(&l), ref_free(&minus), ref_free(&s);
    return r;
}

/* v of 6.15, rows by classes. */
static ref_tensor values(const ref_tensor *logp, const ref_tensor *weight, double e)
{
    ref_dtype c = ref_compute(logp->dtype);
    ref_tensor v = ref_cast(logp, c);
    int64_t n = v.dim[v.ndim - 1];
    for (int64_t i = 0; weight != NULL && i < ref_numel(&v); i++)
        ref_set(&v, i, ref_round(c, ref_get(&v, i) * ref_round(c, ref_get(weight, i % n))));
    for (int64_t row = 0; e != 0 && row < ref_numel(&v) / n; row++) {
        ref_lanes s;
        ref_lanes_start(&s, c);
        for (int64_t i = 0; i < n; i++)
            ref_lanes_add(&s, i, ref_get(&v, row * n + i));
        double rest = ref_round(c, ref_lanes_sum(&s) * ref_round(c, e / (double)n));
        for (int64_t i = row * n; i < (row + 1) * n; i++)
            ref_set(&v, i, ref_round(c, ref_round(c, ref_get(&v, i) * ref_round(c, 1 - e)) + rest));
    }
    return v;
}

ref_tensor ref_picked(const ref_tensor *logp, const ref_tensor *target, const ref_tensor *weight,
                      double e, ref_reduction how, ref_loss_options o, ref_tensor *acc)
{
    ref_dtype c = ref_compute(logp->dtype);
    ref_tensor v = values(logp, weight, e), y;
    int64_t n = v.dim[v.ndim - 1];
    if (how == REF_EACH) {
        y = ref_new(c, target->ndim, target->dim);
        for (int64_t row = 0; row < ref_numel(target); row++)
            if (ref_get_i64(target, row) != o.ignore_index)
                ref_set(&y, row, -ref_get(&v, row * n + ref_get_i64(target, row)));
    } else {
        double sum = 0;
        int by_weight = how == REF_MEAN && weight != NULL && o.count < 0;
        o.mean = how == REF_MEAN && !by_weight;
        y = ref_nll(&v, target, o, c, acc);
        for (int64_t row = 0; by_weight && row < ref_numel(target); row++)
            if (ref_get_i64(target, row) != o.ignore_index)
                sum = sum + ref_get(weight, ref_get_i64(target, row));
        if (by_weight)
            ref_set(&y, 0, ref_round(c, ref_get(&y, 0) / ref_round(c, sum)));
    }
    ref_free(&v);
    return y;
}
