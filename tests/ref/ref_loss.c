/* Cross entropy over the last dim, and its gradient (6.5). */
#include "tests/ref/ref.h"

#include <math.h>
#include <stddef.h>

/* The classes are z's last dim; the rows are the others, row-major. */
static int64_t classes(const ref_tensor *z) { return z->dim[z->ndim - 1]; }

/* 6.3: m, over row t's classes. */
static double row_max(const ref_tensor *z, int64_t row)
{
    double m = -(double)INFINITY;
    for (int64_t i = 0; i < classes(z); i++)
        m = ref_max2(m, ref_get(z, row * classes(z) + i));
    return m;
}

/* 6.3: e_i = exp(z_i - m). */
static double e_at(const ref_tensor *z, int64_t row, int64_t i, double m)
{
    ref_dtype c = ref_compute(z->dtype);
    return ref_exp1(c, ref_round(c, ref_get(z, row * classes(z) + i) - m));
}

/* 6.3: l = lanes(e). */
static double sum_e(const ref_tensor *z, int64_t row, double m)
{
    ref_lanes s;
    ref_lanes_start(&s, ref_compute(z->dtype));
    for (int64_t i = 0; i < classes(z); i++)
        ref_lanes_add(&s, i, e_at(z, row, i, m));
    return ref_lanes_sum(&s);
}

/* 6.5: loss = log(l) - (z_t - m). */
static double row_loss(const ref_tensor *z, int64_t row, int64_t t)
{
    ref_dtype c = ref_compute(z->dtype);
    ref_check(t >= 0 && t < classes(z), "cross_entropy: target out of range");
    double m = row_max(z, row), log_l = ref_log1(c, sum_e(z, row, m));
    double zt = ref_round(c, ref_get(z, row * classes(z) + t) - m);
    return ref_round(c, log_l - zt);
}

/* 6.5: without an explicit count it is the number of rows not ignored.
 * NUMERICS does not say: whether, with an accumulator, rows of earlier calls count too. Here only
 * those of this call. */
static double divisor(const ref_tensor *target, ref_loss_options o)
{
    if (o.count >= 0)
        return (double)o.count;
    int64_t n = 0;
    for (int64_t row = 0; row < ref_numel(target); row++)
        n += ref_get_i64(target, row) != o.ignore_index;
    return (double)n;
}

/* 6.5: the total is the fold of the rows' losses in f64, in row order; total or total / (f64)
 * count, rounded once. NUMERICS does not say: the result's dtype. It is the caller's argument here.
 * NUMERICS does not say: a mean over no rows. It is here 0 / 0 = NaN. */
ref_tensor ref_cross_entropy(const ref_tensor *z, const ref_tensor *target, ref_loss_options o,
                             ref_dtype out, ref_tensor *acc)
{
    ref_tensor y = ref_new(out, 0, NULL);
    ref_check(!acc || (acc->dtype == REF_F64 && ref_numel(acc) == 1),
              "cross_entropy: one f64 accumulator wanted");
    double total = acc ? ref_get(acc, 0) : 0.0;
    for (int64_t row = 0; row < ref_numel(target); row++) {
        int64_t t = ref_get_i64(target, row);
        if (t != o.ignore_index)
            total = total + row_loss(z, row, t);
    }
    total = total + 0.0; /* 1.6 */
    if (acc)
        ref_set(acc, 0, total);
    ref_set(&y, 0, o.mean ? total / divisor(target, o) : total);
    return y;
}

/* 6.5: w = (c)((f64) dy / (f64) count) (mean) or dy (sum); dz_i = (e_i * (1/l) - (i == t ? 1 : 0))
 * * w; 0 for ignored rows. */
ref_tensor ref_cross_entropy_grad(const ref_tensor *dy, const ref_tensor *z,
                                  const ref_tensor *target, ref_loss_options o)
{
    ref_dtype c = ref_compute(z->dtype);
    ref_tensor dz = ref_like(z, z->dtype);
    double w = ref_round(c, o.mean ? ref_get(dy, 0) / divisor(target, o) : ref_get(dy, 0));
    for (int64_t row = 0; row < ref_numel(target); row++) {
        int64_t t = ref_get_i64(target, row);
        if (t == o.ignore_index)
            continue;
        double m = row_max(z, row), r = ref_round(c, 1.0 / sum_e(z, row, m));
        for (int64_t i = 0; i < classes(z); i++) {
            double p = ref_round(c, e_at(z, row, i, m) * r);
            double difference = ref_round(c, p - (i == t ? 1.0 : 0.0));
            ref_set(&dz, row * classes(z) + i, ref_round(c, difference * w));
        }
    }
    return dz;
}
