/* rms_norm and its gradient (6.1, 6.2), and that of the statistics of norms (6.12). */
#include "tests/ref/ref.h"

/* n = the product of the last k dims. */
static int64_t row_size(const ref_tensor *x, int k)
{
    int64_t n = 1;
    ref_check(k >= 1 && k <= x->ndim, "rms_norm: k from 1 to x's rank");
    for (int d = x->ndim - k; d < x->ndim; d++)
        n *= x->dim[d];
    return n;
}

static int64_t row_count(const ref_tensor *x, int k)
{
    int64_t rows = 1;
    for (int d = 0; d < x->ndim - k; d++)
        rows *= x->dim[d];
    return rows;
}

/* x's rank, the last k dims 1. */
static ref_tensor new_rstd(const ref_tensor *x, int k)
{
    int64_t dim[8];
    for (int d = 0; d < x->ndim; d++)
        dim[d] = d < x->ndim - k ? x->dim[d] : 1;
    return ref_new(ref_compute(x->dtype), x->ndim, dim);
}

/* 6.1: q_i = x_i * x_i; s = lanes(q); rstd = rsqrt(s / (n as c) + eps), eps rounded to c. */
static double rstd_of(const ref_tensor *x, int64_t row, int64_t n, double eps)
{
    ref_dtype c = ref_compute(x->dtype);
    ref_lanes s;
    ref_lanes_start(&s, c);
    for (int64_t i = 0; i < n; i++) {
        double v = ref_get(x, row * n + i);
        ref_lanes_add(&s, i, ref_round(c, v * v));
    }
    double mean = ref_round(c, ref_lanes_sum(&s) / ref_round(c, (double)n));
    return ref_rsqrt1(c, ref_round(c, mean + ref_round(c, eps)));
}

/* 6.1: y_i = (x_i * rstd) * gamma_i, without gamma: x_i * rstd. */
void ref_rms_norm(const ref_tensor *x, const ref_tensor *gamma, int k, double eps, ref_tensor *y,
                  ref_tensor *rstd)
{
    ref_dtype c = ref_compute(x->dtype);
    int64_t n = row_size(x, k);
    ref_check(!gamma || ref_numel(gamma) == n, "rms_norm: gamma of the normalized dims wanted");
    if (y)
        *y = ref_like(x, x->dtype);
    if (rstd)
        *rstd = new_rstd(x, k);
    for (int64_t row = 0; row < row_count(x, k); row++) {
        double r = rstd_of(x, row, n, eps);
        if (rstd)
            ref_set(rstd, row, r);
        for (int64_t i = 0; y && i < n; i++) {
            double v = ref_round(c, ref_get(x, row * n + i) * r);
            if (gamma)
                v = ref_round(c, v * ref_get(gamma, i));
            ref_set(y, row * n + i, v);
        }
    }
}

/* 6.2: h_i = x_i * rstd */
static double h_at(const ref_tensor *x, const ref_tensor *rstd, int64_t row, int64_t n, int64_t i)
{
    return ref_round(ref_compute(x->dtype), ref_get(x, row * n + i) * ref_get(rstd, row));
}

/* 6.2: g_i = dy_i * gamma_i (or dy_i) */
static double g_at(const ref_tensor *dy, const ref_tensor *gamma, int64_t row, int64_t n, int64_t i)
{
    double g = ref_get(dy, row * n + i);
    return gamma ? ref_round(ref_compute(dy->dtype), g * ref_get(gamma, i)) : g;
}

/* 6.2: m = lanes(g_i * h_i) / (n as c); dx_i = rstd * (g_i - h_i * m). */
static void row_dx(const ref_tensor *dy, const ref_tensor *x, const ref_tensor *gamma,
                   const ref_tensor *rstd, int64_t row, int64_t n, ref_tensor *dx)
{
    ref_dtype c = ref_compute(x->dtype);
    ref_lanes s;
    ref_lanes_start(&s, c);
    for (int64_t i = 0; i < n; i++)
        ref_lanes_add(&s, i, ref_round(c, g_at(dy, gamma, row, n, i) * h_at(x, rstd, row, n, i)));
    double m = ref_round(c, ref_lanes_sum(&s) / ref_round(c, (double)n));
    for (int64_t i = 0; i < n; i++) {
        double hm = ref_round(c, h_at(x, rstd, row, n, i) * m);
        double difference = ref_round(c, g_at(dy, gamma, row, n, i) - hm);
        ref_set(dx, row * n + i, ref_round(c, ref_get(rstd, row) * difference));
    }
}

/* 6.2: dgamma_i = fold over rows of dy_i * h_i (the product in c, the fold in f64).
 * NUMERICS does not say: dgamma's dtype. It is here the compute type (f32 whatever gamma's dtype;
 * f64 for f64), one rounding. */
static ref_tensor fold_dgamma(const ref_tensor *dy, const ref_tensor *x, const ref_tensor *rstd,
                              int k, int64_t n, ref_tensor *acc)
{
    ref_dtype c = ref_compute(x->dtype);
    ref_tensor dgamma = ref_new(c, k, x->dim + (x->ndim - k));
    ref_check(!acc || (acc->dtype == REF_F64 && ref_numel(acc) == n),
              "rms_norm_grad: f64 accumulator of gamma's size wanted");
    for (int64_t i = 0; i < n; i++) {
        double a = acc ? ref_get(acc, i) : 0.0;
        for (int64_t row = 0; row < row_count(x, k); row++)
            a = a + ref_round(c, ref_get(dy, row * n + i) * h_at(x, rstd, row, n, i));
        a = a + 0.0; /* 1.6 */
        if (acc)
            ref_set(acc, i, a);
        ref_set(&dgamma, i, a);
    }
    return dgamma;
}

void ref_rms_norm_grad(const ref_tensor *dy, const ref_tensor *x, const ref_tensor *gamma,
                       const ref_tensor *rstd, int k, ref_tensor *dx, ref_tensor *dgamma,
                       ref_tensor *acc)
{
    int64_t n = row_size(x, k);
    ref_check(ref_numel(rstd) == row_count(x, k) && ref_numel(dy) == ref_numel(x),
              "rms_norm_grad: shapes do not fit");
    if (dx)
        *dx = ref_like(x, x->dtype);
    for (int64_t row = 0; dx && row < row_count(x, k); row++)
        row_dx(dy, x, gamma, rstd, row, n, dx);
    if (dgamma)
        *dgamma = fold_dgamma(dy, x, rstd, k, n, acc);
}

/* 6.12: h_i = x_i * rstd, with a mean (x_i - mean) * rstd; e_i = ((drstd * (rstd * rstd)) * -s) *
 * h_i, then + dmean * s where there is one, or dmean * s alone; s = 1/n in f64, rounded to c. */
ref_tensor ref_norm_stats_grad(const ref_tensor *x, const ref_tensor *mean, const ref_tensor *rstd,
                               const ref_tensor *dmean, const ref_tensor *drstd, int k)
{
    ref_dtype c = ref_compute(x->dtype);
    int64_t n = row_size(x, k);
    double s = ref_round(c, 1.0 / (double)n);
    ref_tensor e = ref_like(x, x->dtype);
    for (int64_t i = 0; i < ref_numel(x); i++) {
        double r = ref_get(rstd, i / n), v = 0;
        if (drstd) {
            double centered = mean ? ref_round(c, ref_get(x, i) - ref_get(mean, i / n))
                                   : ref_get(x, i);
            double w = ref_round(c, ref_get(drstd, i / n) * ref_round(c, r * r));
            v = ref_round(c, ref_round(c, w * -s) * ref_round(c, centered * r));
        }
        if (dmean) {
            double d = ref_round(c, ref_get(dmean, i / n) * s);
            v = drstd ? ref_round(c, v + d) : d;
        }
        ref_set(&e, i, v);
    }
    return e;
}
