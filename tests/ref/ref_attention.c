/* Attention on (batch, heads, sequence, dim), forward and backward (section 7). */
#include "tests/ref/ref.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    const ref_tensor *q, *k, *v, *start, *end;
    int64_t batch, hq, hkv, sq, skv, d, dv;
    double scale;
    int causal;
    ref_dtype c;
} problem;

/* scale is rounded to c. */
static problem setup(const ref_tensor *q, const ref_tensor *k, const ref_tensor *v, double scale,
                     ref_keys keys)
{
    ref_check(q->ndim == 4 && k->ndim == 4 && v->ndim == 4, "attention: four dims wanted");
    problem a = {q,         k,         v,         keys.start,  keys.end,
                 q->dim[0], q->dim[1], k->dim[1], q->dim[2],   k->dim[2],
                 q->dim[3], v->dim[3], 0,         keys.causal, ref_compute(q->dtype)};
    ref_check(k->dim[3] == a.d && v->dim[2] == a.skv && v->dim[1] == a.hkv,
              "attention: k and v do not fit");
    ref_check(a.hkv > 0 && a.hq % a.hkv == 0, "attention: a multiple of the key heads wanted");
    a.scale = ref_round(a.c, scale);
    return a;
}

static double at(const ref_tensor *x, int64_t b, int64_t h, int64_t s, int64_t d)
{
    return ref_get(x, ((b * x->dim[1] + h) * x->dim[2] + s) * x->dim[3] + d);
}

static void put(ref_tensor *x, int64_t b, int64_t h, int64_t s, int64_t d, double v)
{
    ref_set(x, ((b * x->dim[1] + h) * x->dim[2] + s) * x->dim[3] + d, v + 0.0); /* 1.6 */
}

/* 7.1: query head h reads key head h / (Hq/Hkv). */
static int64_t kv_head(const problem *a, int64_t h) { return h / (a->hq / a->hkv); }

/* 7.1: position p = index plus (number of keys - number of queries); allowed keys are j <= p
 * (causal), all otherwise; given key_start and key_end, of these the ones with key_start <= j <
 * key_end of sample b. */
static int allowed(const problem *a, int64_t b, int64_t i, int64_t j)
{
    if (a->start != NULL && j < ref_get_i64(a->start, b))
        return 0;
    if (a->end != NULL && j >= ref_get_i64(a->end, b))
        return 0;
    return !a->causal || j <= i + (a->skv - a->sq);
}

/* 7.1: s_j = chain over d of q_d * k_jd; s_j = s_j * scale. */
static double score(const problem *a, int64_t b, int64_t h, int64_t i, int64_t j)
{
    double s = 0.0;
    for (int64_t d = 0; d < a->d; d++)
        s = ref_fma(a->c, at(a->q, b, h, i, d), at(a->k, b, kv_head(a, h), j, d), s);
    return ref_round(a->c, s * a->scale);
}

/* 7.1: m = max over allowed; e_j = exp(s_j - m); l = lanes(e_j), lane by key index; p_j = e_j *
 * (1/l). p of other keys is not set. */
static void probabilities(const problem *a, int64_t b, int64_t h, int64_t i, double *p)
{
    double m = -(double)INFINITY;
    ref_lanes l;
    ref_lanes_start(&l, a->c);
    for (int64_t j = 0; j < a->skv; j++)
        if (allowed(a, b, i, j))
            p[j] = score(a, b, h, i, j);
    for (int64_t j = 0; j < a->skv; j++)
        if (allowed(a, b, i, j))
            m = ref_max2(m, p[j]);
    for (int64_t j = 0; j < a->skv; j++)
        if (allowed(a, b, i, j)) {
            p[j] = ref_exp1(a->c, ref_round(a->c, p[j] - m));
            ref_lanes_add(&l, j, p[j]);
        }
    double r = ref_round(a->c, 1.0 / ref_lanes_sum(&l));
    for (int64_t j = 0; j < a->skv; j++)
        if (allowed(a, b, i, j))
            p[j] = ref_round(a->c, p[j] * r);
}

static double *new_row(int64_t n)
{
    double *p = calloc((size_t)n + 1, sizeof *p);
    ref_check(p != NULL, "out of memory");
    return p;
}

/* 7.1: o_d = chain over allowed j, ascending, of p_j * v_jd. A row with no allowed key gives 0. */
ref_tensor ref_attention(const ref_tensor *q, const ref_tensor *k, const ref_tensor *v,
                         double scale, ref_keys keys)
{
    problem a = setup(q, k, v, scale, keys);
    ref_tensor o = ref_new(q->dtype, 4, (int64_t[]){a.batch, a.hq, a.sq, a.dv});
    double *p = new_row(a.skv);
    for (int64_t b = 0; b < a.batch; b++)
        for (int64_t h = 0; h < a.hq; h++)
            for (int64_t i = 0; i < a.sq; i++) {
                probabilities(&a, b, h, i, p);
                for (int64_t d = 0; d < a.dv; d++) {
                    double s = 0.0;
                    for (int64_t j = 0; j < a.skv; j++)
                        if (allowed(&a, b, i, j))
                            s = ref_fma(a.c, p[j], at(v, b, kv_head(&a, h), j, d), s);
                    put(&o, b, h, i, d, s);
                }
            }
    free(p);
    return o;
}

/* 7.2: dp_j = chain over d of do_d * v_jd; D = lanes over allowed j of p_j * dp_j; t_j = (p_j *
 * (dp_j - D)) * scale. */
static void row_t(const problem *a, const ref_tensor *dout, int64_t b, int64_t h, int64_t i,
                  const double *p, double *t)
{
    ref_lanes l;
    ref_lanes_start(&l, a->c);
    for (int64_t j = 0; j < a->skv; j++) {
        if (!allowed(a, b, i, j))
            continue;
        t[j] = 0.0;
        for (int64_t d = 0; d < a->dv; d++)
            t[j] = ref_fma(a->c, at(dout, b, h, i, d), at(a->v, b, kv_head(a, h), j, d), t[j]);
        ref_lanes_add(&l, j, ref_round(a->c, p[j] * t[j]));
    }
    double sum = ref_lanes_sum(&l);
    for (int64_t j = 0; j < a->skv; j++) {
        if (!allowed(a, b, i, j))
            continue;
        double difference = ref_round(a->c, t[j] - sum);
        t[j] = ref_round(a->c, ref_round(a->c, p[j] * difference) * a->scale);
    }
}

/* 7.2: dq_d = chain over allowed j of t_j * k_jd. */
static void row_dq(const problem *a, int64_t b, int64_t h, int64_t i, const double *t,
                   ref_tensor *dq)
{
    for (int64_t d = 0; d < a->d; d++) {
        double s = 0.0;
        for (int64_t j = 0; j < a->skv; j++)
            if (allowed(a, b, i, j))
                s = ref_fma(a->c, t[j], at(a->k, b, kv_head(a, h), j, d), s);
        put(dq, b, h, i, d, s);
    }
}

/* 7.2: one key's dk_jd (x = q, w = t) or dv_jd (x = do, w = p): chain over the query heads of the
 * group in order, and within a head over queries i ascending that allow j, of w_ij * x_id. w is
 * (hq, sq, skv) of batch b. */
static double chain_queries(const problem *a, const ref_tensor *x, const double *w, int64_t b,
                            int64_t hk, int64_t j, int64_t d)
{
    double s = 0.0;
    for (int64_t h = 0; h < a->hq; h++)
        for (int64_t i = 0; i < a->sq; i++)
            if (kv_head(a, h) == hk && allowed(a, b, i, j))
                s = ref_fma(a->c, w[(h * a->sq + i) * a->skv + j], at(x, b, h, i, d), s);
    return s;
}

/* 7.2: p is recomputed in the compute type; nothing is rounded to storage before dq, dk and dv. */
void ref_attention_grad(const ref_tensor *dout, const ref_tensor *q, const ref_tensor *k,
                        const ref_tensor *v, double scale, ref_keys keys, ref_tensor *dq,
                        ref_tensor *dk, ref_tensor *dv)
{
    problem a = setup(q, k, v, scale, keys);
    double *p = new_row(a.hq * a.sq * a.skv), *t = new_row(a.hq * a.sq * a.skv);
    *dq = ref_like(q, q->dtype);
    *dk = ref_like(k, k->dtype);
    *dv = ref_like(v, v->dtype);
    for (int64_t b = 0; b < a.batch; b++) {
        for (int64_t h = 0; h < a.hq; h++)
            for (int64_t i = 0; i < a.sq; i++) {
                int64_t row = (h * a.sq + i) * a.skv;
                probabilities(&a, b, h, i, p + row);
                row_t(&a, dout, b, h, i, p + row, t + row);
                row_dq(&a, b, h, i, t + row, dq);
            }
        for (int64_t h = 0; h < a.hkv; h++)
            for (int64_t j = 0; j < a.skv; j++) {
                for (int64_t d = 0; d < a.d; d++)
                    put(dk, b, h, j, d, chain_queries(&a, q, t, b, h, j, d));
                for (int64_t d = 0; d < a.dv; d++)
                    put(dv, b, h, j, d, chain_queries(&a, dout, p, b, h, j, d));
            }
    }
    free(p);
    free(t);
}
