/* attention_ref.c: attention as NUMERICS 3.1, 7.1 and 7.2 have it, forward and backward.
 *
 * As naive as can be, knowing nothing of tiles, blocks or panels; it takes only exp from the
 * library (which test_math.c holds to account). It computes f32 in doubles, rounding after each
 * operation: that is exact for + - * /. */
#include "tests/support/attention_problem.h"

#include <math.h>
#include <stdlib.h>

#include "tensor/kernels/math.h"

static double rnd(const attention_problem *p, double x) { return p->f64 ? x : (double)(float)x; }

static double chain(const attention_problem *p, double a, double b, double acc)
{
    return p->f64 ? fma(a, b, acc) : (double)fmaf((float)a, (float)b, (float)acc);
}

static double ref_exp(const attention_problem *p, double x)
{
    float f = (float)x;
    if (p->f64)
        tl_math_table_scalar.exp64(1, &x, &x);
    else
        tl_math_table_scalar.exp32(1, &f, &f);
    return p->f64 ? x : (double)f;
}

static bool allowed(const attention_problem *p, int64_t b, int64_t i, int64_t j)
{
    if ((p->start && j < p->start[b]) || (p->end && j >= p->end[b]))
        return false;
    return !p->causal || j <= i + (p->kv_len - p->q_len);
}

static double meet(const attention_problem *p, double lane[32])
{
    for (int w = 16; w >= 1; w /= 2)
        for (int i = 0; i < w; i++)
            lane[i] = rnd(p, lane[i] + lane[i + w]);
    return lane[0] + 0;
}

/* prob[j] of query i; false if it sees no key. */
static bool ref_probabilities(const attention_problem *p, int64_t b, int64_t h, int64_t i,
                              double *prob)
{
    const int64_t hk = h / (p->q_heads / p->kv_heads);
    double m = -HUGE_VAL, lane[32] = {0};
    bool any = false;
    for (int64_t j = 0; j < p->kv_len; j++)
        if (allowed(p, b, i, j)) {
            double s = 0;
            for (int64_t d = 0; d < p->dim; d++)
                s = chain(p, attention_get(p, Q, b, h, i, d), attention_get(p, K, b, hk, j, d), s);
            prob[j] = rnd(p, s * rnd(p, p->scale));
            m = isnan(m) || isnan(prob[j]) ? (double)NAN : prob[j] > m ? prob[j] : m;
            any = true;
        }
    for (int64_t j = 0; j < p->kv_len; j++)
        if (allowed(p, b, i, j)) {
            prob[j] = ref_exp(p, rnd(p, prob[j] - m));
            lane[j % 32] = rnd(p, lane[j % 32] + prob[j]);
        }
    const double r = rnd(p, 1 / meet(p, lane));
    for (int64_t j = 0; j < p->kv_len; j++)
        prob[j] = rnd(p, prob[j] * r);
    return any;
}

/* t[j] of query i from prob[j]. */
static void ref_score_gradients(const attention_problem *p, int64_t b, int64_t h, int64_t i,
                                const double *prob, double *t)
{
    const int64_t hk = h / (p->q_heads / p->kv_heads);
    double lane[32] = {0};
    for (int64_t j = 0; j < p->kv_len; j++)
        if (allowed(p, b, i, j)) {
            t[j] = 0;
            for (int64_t d = 0; d < p->dim; d++)
                t[j] = chain(p, attention_get(p, DOUT, b, h, i, d),
                             attention_get(p, V, b, hk, j, d), t[j]);
            lane[j % 32] = rnd(p, lane[j % 32] + rnd(p, prob[j] * t[j]));
        }
    const double sum = meet(p, lane);
    for (int64_t j = 0; j < p->kv_len; j++)
        t[j] = rnd(p, rnd(p, prob[j] * rnd(p, t[j] - sum)) * rnd(p, p->scale));
}

/* out row = chain over allowed j of w[j] * row j of x. */
static void ref_mix(const attention_problem *p, int out, int x, int64_t b, int64_t h, int64_t i,
                    const double *w)
{
    for (int64_t d = 0; d < p->dim; d++) {
        double acc = 0;
        for (int64_t j = 0; j < p->kv_len; j++)
            if (allowed(p, b, i, j))
                acc = chain(p, w[j], attention_get(p, x, b, h / (p->q_heads / p->kv_heads), j, d),
                            acc);
        attention_set(p, out, b, h, i, d, acc + 0);
    }
}

/* out = chain over the group's heads, then queries, of w * row of x; w is [q_heads][q_len][kv_len].
 */
static void ref_fold(const attention_problem *p, int out, int x, int64_t b, int64_t hk,
                     const double *w)
{
    const int64_t group = p->q_heads / p->kv_heads;
    for (int64_t j = 0; j < p->kv_len; j++)
        for (int64_t d = 0; d < p->dim; d++) {
            double acc = 0;
            for (int64_t h = hk * group; h < (hk + 1) * group; h++)
                for (int64_t i = 0; i < p->q_len; i++)
                    if (allowed(p, b, i, j))
                        acc = chain(p, w[(h * p->q_len + i) * p->kv_len + j],
                                    attention_get(p, x, b, h, i, d), acc);
            attention_set(p, out, b, hk, j, d, acc + 0);
        }
}

void attention_reference(const attention_problem *p)
{
    const size_t n = (size_t)(p->q_heads * p->q_len * p->kv_len + 1);
    double *prob = calloc(n, sizeof *prob), *t = calloc(n, sizeof *t);
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->q_heads; h++)
            for (int64_t i = 0; i < p->q_len; i++) {
                double *w = prob + (h * p->q_len + i) * p->kv_len,
                       *g = t + (h * p->q_len + i) * p->kv_len;
                if (ref_probabilities(p, b, h, i, w))
                    ref_score_gradients(p, b, h, i, w, g);
                ref_mix(p, O, V, b, h, i, w);
                ref_mix(p, DQ, K, b, h, i, g);
            }
        for (int64_t h = 0; h < p->kv_heads; h++) {
            ref_fold(p, DK, Q, b, h, t);
            ref_fold(p, DV, DOUT, b, h, prob);
        }
    }
    free(prob);
    free(t);
}
