/* What NUMERICS defines by other formulas: logsumexp (6.13), bce_with_logits (6.14), weighted and
 * single losses of rows (6.15), attention with all
 * its options (7.3). */
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

/* 7.3 of one query: s_j, -2^100 where the key is not allowed, which `allowed` says. */
static void scores(const ref_tensor *q, const ref_tensor *k, const int64_t *row,
                   const ref_tensor *start, const ref_tensor *mask, const ref_tensor *bias,
                   const ref_tensor *offset, double softcap, int causal, double *s, int *allowed)
{
    ref_dtype c = ref_compute(q->dtype);
    int64_t keys = k->dim[2], d = q->dim[3], head = row[1] / (q->dim[1] / k->dim[1]),
            shape[4] = {q->dim[0], q->dim[1], q->dim[2], keys};
    ref_tensor like = {.ndim = 4, .dim = {shape[0], shape[1], shape[2], keys}};
    for (int64_t j = 0; j < keys; j++) {
        int64_t flat = ref_flatten(4, shape, (int64_t[]){row[0], row[1], row[2], j});
        double acc = 0;
        for (int64_t i = 0; i < d; i++)
            acc = ref_fma(c,
                          ref_get(q,
                                  ref_flatten(4, q->dim, (int64_t[]){row[0], row[1], row[2], i})),
                          ref_get(k, ref_flatten(4, k->dim, (int64_t[]){row[0], head, j, i})), acc);
        acc = ref_round(c, (acc + 0.0) * ref_round(c, 1 / sqrt((double)d)));
        if (softcap != 0) {
            double x = ref_round(c, acc * ref_round(c, 1 / softcap));
            acc = ref_round(c, ref_tanh1(c, x) * ref_round(c, softcap));
        }
        if (bias != NULL)
            acc = ref_round(c, acc + at(bias, c, &like, flat));
        int64_t last = row[2] + (offset != NULL ? ref_get_i64(offset, row[0]) : keys - q->dim[2]);
        allowed[j] = (!causal || j <= last) && (start == NULL || j >= ref_get_i64(start, row[0])) &&
                     (mask == NULL || at(mask, REF_F64, &like, flat) != 0);
        s[j] = allowed[j] ? acc : -0x1p100;
    }
}

ref_tensor ref_attention_written(const ref_tensor *q, const ref_tensor *k, const ref_tensor *v,
                                 const ref_tensor *start, const ref_tensor *mask,
                                 const ref_tensor *bias, const ref_tensor *offset, double softcap,
                                 int causal, ref_tensor *lse)
{
    enum { MOST = 64 };
    ref_dtype c = ref_compute(q->dtype);
    int64_t keys = k->dim[2], dv = v->dim[3];
    ref_tensor y = ref_new(q->dtype, 4, (int64_t[]){q->dim[0], q->dim[1], q->dim[2], dv});
    *lse = ref_new(c, 3, q->dim);
    ref_check(keys <= MOST, "too many keys");
    for (int64_t r = 0; r < ref_numel(lse); r++) {
        int64_t row[8];
        double s[MOST];
        int allowed[MOST];
        ref_unflatten(3, q->dim, r, row);
        scores(q, k, row, start, mask, bias, offset, softcap, causal, s, allowed);
        ref_tensor all = ref_from(c, 2, (int64_t[]){1, keys}, s), p = ref_softmax(&all, 1),
                   l = ref_logsumexp(&all, 2, 0);
        ref_set(lse, r, ref_get(&l, 0) < -0x1p99 ? -(double)INFINITY : ref_get(&l, 0));
        for (int64_t d = 0; d < dv; d++) {
            double acc = 0;
            for (int64_t j = 0; j < keys; j++)
                acc = ref_fma(c, allowed[j] ? ref_get(&p, j) : 0,
                              ref_get(v, ref_flatten(4, v->dim,
                                                     (int64_t[]){row[0],
                                                                 row[1] / (q->dim[1] / k->dim[1]),
                                                                 j, d})),
                              acc);
            ref_set(&y, r * dv + d, acc + 0.0);
        }
        ref_free(&all), ref_free(&p), ref_free(&l);
    }
    return y;
}
