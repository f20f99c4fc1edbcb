/* What NUMERICS defines by other formulas: logsumexp (6.13), bce_with_logits (6.14), weighted and
 * single losses of rows (6.15), attention with all
 * its options (7.3). */
#include "tests/ref/ref.h"

#include <math.h>
#include <stddef.h>

/* 6.13 on the way: x in c, m, e = exp(x - m) and its sum, with the reduced dims kept. */
typedef struct {
    ref_tensor wide, m, e, sum;
} exponentials;

static exponentials exponentials_of(const ref_tensor *x, unsigned dims)
{
    exponentials p = {.wide = ref_cast(x, ref_compute(x->dtype))};
    p.m = ref_max(&p.wide, dims, 1);
    for (int64_t i = 0; i < ref_numel(&p.m); i++)
        if (isinf(ref_get(&p.m, i)))
            ref_set(&p.m, i, 0);
    ref_tensor d = ref_sub(&p.wide, &p.m);
    p.e = ref_exp(&d);
    p.sum = ref_sum(&p.e, dims, 1, NULL);
    ref_free(&d);
    return p;
}

static void done(exponentials *p)
{
    ref_free(&p->wide), ref_free(&p->m), ref_free(&p->e), ref_free(&p->sum);
}

ref_tensor ref_logsumexp(const ref_tensor *x, unsigned dims, int keepdims)
{
    ref_dtype c = ref_compute(x->dtype);
    exponentials p = exponentials_of(x, dims);
    ref_tensor like = ref_sum(&p.e, dims, keepdims, NULL), y = ref_like(&like, x->dtype);
    for (int64_t i = 0; i < ref_numel(&y); i++)
        ref_set(&y, i, ref_round(c, ref_log1(c, ref_get(&p.sum, i)) + ref_get(&p.m, i)));
    ref_free(&like), done(&p);
    return y;
}

/* That of log (2.14), of the sum, and of exp; m carries none. */
ref_tensor ref_logsumexp_grad(const ref_tensor *dy, const ref_tensor *x, unsigned dims)
{
    ref_dtype c = ref_compute(x->dtype);
    exponentials p = exponentials_of(x, dims);
    ref_tensor dx = ref_like(x, x->dtype);
    for (int64_t i = 0; i < ref_numel(x); i++) {
        int64_t ix[8];
        ref_unflatten(x->ndim, x->dim, i, ix);
        int64_t row = ref_broadcast_at(&p.sum, x->ndim, ix);
        double g = ref_round(c, ref_get(dy, row) / ref_get(&p.sum, row));
        ref_set(&dx, i, ref_round(c, g * ref_get(&p.e, i)));
    }
    done(&p);
    return dx;
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

void ref_bce_grad(const ref_tensor *dl, const ref_tensor *x, const ref_tensor *y,
                  const ref_tensor *weight, const ref_tensor *pos, ref_reduction how,
                  ref_tensor dx[2], ref_tensor dy[2])
{
    ref_dtype c = ref_compute(x->dtype);
    int64_t n = ref_numel(x);
    ref_tensor minus = ref_like(x, c);
    for (int64_t i = 0; i < n; i++)
        ref_set(&minus, i, -ref_get(x, i));
    ref_tensor s = ref_softplus(&minus);
    for (int k = 0; k < 2; k++)
        dx[k] = ref_like(x, c), dy[k] = ref_like(x, c);
    for (int64_t i = 0; i < n; i++) {
        double g = ref_get(dl, how == REF_EACH ? i : 0), t = ref_round(c, ref_get(y, i)), q;
        if (how == REF_MEAN) /* 4.1 */
            g = ref_round(c, g / ref_round(c, (double)n));
        if (weight != NULL)
            g = ref_round(c, g * at(weight, c, x, i));
        /* of (1 - y)*x, and of factor * softplus(-x), whose slope is sigmoid(-x) (2.14) */
        ref_set(&dx[0], i, ref_round(c, g * ref_round(c, 1 - t)));
        ref_set(&dy[0], i, -ref_round(c, g * ref_get(x, i)));
        q = g;
        if (pos != NULL) {
            double k = ref_round(c, at(pos, c, x, i) - 1),
                   factor = ref_round(c, ref_round(c, k * t) + 1);
            q = ref_round(c, g * factor);
            ref_set(&dy[1], i, ref_round(c, ref_round(c, g * ref_get(&s, i)) * k));
        }
        ref_set(&dx[1], i, -ref_round(c, q * ref_sigmoid1(c, ref_get(&minus, i))));
    }
    ref_free(&minus), ref_free(&s);
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

/* 6.15's D: the fold of the weights at targets. */
static double total_weight(const ref_tensor *target, const ref_tensor *weight, ref_loss_options o)
{
    double sum = 0;
    for (int64_t row = 0; row < ref_numel(target); row++)
        if (ref_get_i64(target, row) != o.ignore_index)
            sum = sum + ref_get(weight, ref_get_i64(target, row));
    return sum;
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
        int by_weight = how == REF_MEAN && weight != NULL && o.count < 0;
        o.mean = how == REF_MEAN && !by_weight;
        y = ref_nll(&v, target, o, c, acc);
        if (by_weight) {
            double d = ref_round(c, total_weight(target, weight, o));
            ref_set(&y, 0, ref_round(c, ref_get(&y, 0) / d));
        }
    }
    ref_free(&v);
    return y;
}

ref_tensor ref_picked_grad(const ref_tensor *dy, const ref_tensor *logp, const ref_tensor *target,
                           const ref_tensor *weight, double e, ref_reduction how,
                           ref_loss_options o)
{
    ref_dtype c = ref_compute(logp->dtype);
    ref_tensor dv = ref_like(logp, c), g = ref_copy(dy);
    int64_t n = logp->dim[logp->ndim - 1];
    int by_weight = how == REF_MEAN && weight != NULL && o.count < 0;
    o.mean = how == REF_MEAN && !by_weight;
    if (by_weight)
        ref_set(&g, 0, ref_get(dy, 0) / ref_round(c, total_weight(target, weight, o)));
    ref_tensor of_nll = how == REF_EACH ? ref_copy(&dv) : ref_nll_grad(&g, target, n, o, c);
    for (int64_t row = 0; row < ref_numel(target); row++) {
        int64_t t = ref_get_i64(target, row);
        double sum = 0, share = ref_round(c, e / (double)n), own = ref_round(c, 1 - e);
        if (t == o.ignore_index)
            continue;
        if (how == REF_EACH)
            ref_set(&of_nll, row * n + t, -ref_get(dy, row) + 0.0);
        for (int64_t i = row * n; i < (row + 1) * n; i++)
            sum = sum + ref_get(&of_nll, i); /* of the row's sum, which is broadcast (4.3) */
        sum = ref_round(c, ref_round(c, sum + 0.0) * share);
        for (int64_t i = row * n; i < (row + 1) * n; i++) {
            double d = ref_get(&of_nll, i);
            if (e != 0)
                d = ref_round(c, ref_round(c, d * own) + sum);
            if (weight != NULL)
                d = ref_round(c, d * ref_round(c, ref_get(weight, i % n)));
            ref_set(&dv, i, d);
        }
    }
    ref_free(&g), ref_free(&of_nll);
    return dv;
}

/* 7.3 of one query: s_j, -2^100 where the key is not allowed, which `allowed` says. */
static void scores(const ref_tensor *q, const ref_tensor *k, const int64_t *row,
                   const ref_tensor *start, const ref_tensor *mask, const ref_tensor *bias,
                   const ref_tensor *offset, double softcap, int causal, double *s, int *allowed,
                   double *tanhs)
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
        acc = ref_round(c, (acc + 0.0) * ref_round(c, d > 0 ? 1 / sqrt((double)d) : 1));
        if (softcap != 0) {
            double x = ref_round(c, acc * ref_round(c, 1 / softcap));
            tanhs[j] = ref_tanh1(c, x);
            acc = ref_round(c, tanhs[j] * ref_round(c, softcap));
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
        double s[MOST], tanhs[MOST];
        int allowed[MOST];
        ref_unflatten(3, q->dim, r, row);
        scores(q, k, row, start, mask, bias, offset, softcap, causal, s, allowed, tanhs);
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

/* The gradients of 7.3's ops: chains as in 7.2, 6.3's of the softmax, those of 2.14. */
typedef struct {
    const ref_tensor *q, *k, *v, *dout;
    int64_t keys, d, dv, group;
    double scale;
} frame;

static double element(const ref_tensor *x, int64_t b, int64_t h, int64_t i, int64_t d)
{
    return ref_get(x, ref_flatten(4, x->dim, (int64_t[]){b, h, i, d}));
}

/* Of one query: ds_j times the scale, and p_j. */
static void score_grads(const frame *f, const int64_t *row, const double *s, const int *allowed,
                        const double *cap, double *ds, double *p)
{
    ref_dtype c = ref_compute(f->q->dtype);
    int64_t head = row[1] / f->group;
    ref_tensor all = ref_from(c, 2, (int64_t[]){1, f->keys}, s), soft = ref_softmax(&all, 1),
               dp = ref_like(&soft, c);
    for (int64_t j = 0; j < f->keys; j++) {
        double acc = 0;
        for (int64_t d = 0; d < f->dv; d++)
            acc = ref_fma(c, element(f->dout, row[0], row[1], row[2], d),
                          element(f->v, row[0], head, j, d), acc);
        ref_set(&dp, j, allowed[j] ? acc + 0.0 : 0);
    }
    ref_tensor of_s = ref_softmax_grad(&dp, &soft, 1);
    for (int64_t j = 0; j < f->keys; j++) {
        double g = allowed[j] ? ref_get(&of_s, j) : 0;
        if (cap != NULL) { /* tanh(s * (1/softcap)) * softcap; cap: softcap, then each tanh */
            double th = cap[1 + j];
            g = ref_round(c, g * ref_round(c, cap[0]));
            g = ref_round(c, g * ref_round(c, 1 - ref_round(c, th * th)));
            g = ref_round(c, g * ref_round(c, 1 / cap[0]));
        }
        ds[j] = ref_round(c, g * f->scale);
        p[j] = allowed[j] ? ref_get(&soft, j) : 0;
    }
    ref_free(&all), ref_free(&soft), ref_free(&dp), ref_free(&of_s);
}

void ref_attention_written_grad(const ref_tensor *dout, const ref_tensor *q, const ref_tensor *k,
                                const ref_tensor *v, const ref_tensor *start,
                                const ref_tensor *mask, const ref_tensor *bias,
                                const ref_tensor *offset, double softcap, int causal,
                                ref_tensor g[3])
{
    enum { MOST = 64 };
    ref_dtype c = ref_compute(q->dtype);
    const frame f = {q,
                     k,
                     v,
                     dout,
                     k->dim[2],
                     q->dim[3],
                     v->dim[3],
                     q->dim[1] / k->dim[1],
                     ref_round(c, q->dim[3] > 0 ? 1 / sqrt((double)q->dim[3]) : 1)};
    int64_t rows = q->dim[0] * q->dim[1] * q->dim[2];
    g[0] = ref_like(q, c), g[1] = ref_like(k, c), g[2] = ref_like(v, c);
    for (int64_t r = 0; r < rows; r++) { /* heads of a group in order, then queries */
        int64_t row[8], at[2];
        double s[MOST], cap[MOST + 1] = {softcap}, ds[MOST], p[MOST];
        int allowed[MOST];
        ref_unflatten(3, q->dim, r, row);
        scores(q, k, row, start, mask, bias, offset, softcap, causal, s, allowed, cap + 1);
        score_grads(&f, row, s, allowed, softcap != 0 ? cap : NULL, ds, p);
        for (int64_t d = 0; d < f.d; d++) {
            double acc = 0;
            for (int64_t j = 0; j < f.keys; j++)
                acc = ref_fma(c, ds[j], element(k, row[0], row[1] / f.group, j, d), acc);
            ref_set(&g[0], r * f.d + d, acc + 0.0);
        }
        for (int64_t j = 0; j < f.keys; j++) {
            at[0] = ref_flatten(4, k->dim, (int64_t[]){row[0], row[1] / f.group, j, 0});
            at[1] = ref_flatten(4, v->dim, (int64_t[]){row[0], row[1] / f.group, j, 0});
            for (int64_t d = 0; d < f.d; d++)
                ref_set(&g[1], at[0] + d,
                        ref_fma(c, ds[j], element(q, row[0], row[1], row[2], d),
                                ref_get(&g[1], at[0] + d)));
            for (int64_t d = 0; d < f.dv; d++)
                ref_set(&g[2], at[1] + d,
                        ref_fma(c, p[j], element(dout, row[0], row[1], row[2], d),
                                ref_get(&g[2], at[1] + d)));
        }
    }
    for (int x = 1; x < 3; x++)
        for (int64_t i = 0; i < ref_numel(&g[x]); i++)
            ref_set(&g[x], i, ref_get(&g[x], i) + 0.0);
}
