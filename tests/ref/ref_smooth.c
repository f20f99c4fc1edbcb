/* cross entropy with label smoothing (6.9), nll (6.10) and their gradients. */
#include "tests/ref/ref.h"

#include <math.h>

static int64_t classes(const ref_tensor *z) { return z->dim[z->ndim - 1]; }

/* Of a row: m and l of 6.3, e_i = exp(z_i - m). */
typedef struct {
    ref_dtype c;
    const ref_tensor *z;
    int64_t row;
    double m, l;
} softmax_row;

static double difference(const softmax_row *s, int64_t i)
{
    return ref_round(s->c, ref_get(s->z, s->row * classes(s->z) + i) - s->m);
}

static softmax_row row_of(const ref_tensor *z, int64_t row)
{
    softmax_row s = {ref_compute(z->dtype), z, row, -(double)INFINITY, 0};
    ref_lanes l;
    for (int64_t i = 0; i < classes(z); i++)
        s.m = ref_max2(s.m, ref_get(z, row * classes(z) + i));
    ref_lanes_start(&l, s.c);
    for (int64_t i = 0; i < classes(z); i++)
        ref_lanes_add(&l, i, ref_exp1(s.c, difference(&s, i)));
    s.l = ref_lanes_sum(&l);
    return s;
}

/* 6.9: L = log(l), u_i = L - (z_i - m), a = lanes(u) / n, loss = (k * u_t) + (r * a). */
static double smooth_loss(const ref_tensor *z, int64_t row, int64_t t, double e)
{
    softmax_row s = row_of(z, row);
    double big = ref_log1(s.c, s.l), ut = ref_round(s.c, big - difference(&s, t));
    ref_lanes u;
    ref_lanes_start(&u, s.c);
    for (int64_t i = 0; i < classes(z); i++)
        ref_lanes_add(&u, i, ref_round(s.c, big - difference(&s, i)));
    double a = ref_round(s.c, ref_lanes_sum(&u) / ref_round(s.c, (double)classes(z)));
    double k = ref_round(s.c, 1 - e), r = ref_round(s.c, e);
    return ref_round(s.c, ref_round(s.c, k * ut) + ref_round(s.c, r * a));
}

/* 6.5 */
static double divisor(const ref_tensor *target, ref_loss_options o)
{
    int64_t n = 0;
    for (int64_t row = 0; row < ref_numel(target); row++)
        n += ref_get_i64(target, row) != o.ignore_index;
    return (double)(o.count >= 0 ? o.count : n);
}

/* 6.5: total (sum) or total / (f64) count (mean), rounded once. */
static ref_tensor reduced(double total, const ref_tensor *target, ref_loss_options o, ref_dtype out,
                          ref_tensor *acc)
{
    ref_tensor y = ref_new(out, 0, (int64_t[]){0});
    total = total + 0.0;
    if (acc)
        ref_set(acc, 0, total);
    ref_set(&y, 0, o.mean ? total / divisor(target, o) : total);
    return y;
}

ref_tensor ref_cross_entropy_smooth(const ref_tensor *z, const ref_tensor *target,
                                    ref_loss_options o, double e, ref_dtype out, ref_tensor *acc)
{
    double total = acc ? ref_get(acc, 0) : 0.0;
    for (int64_t row = 0; row < ref_numel(target); row++) {
        int64_t t = ref_get_i64(target, row);
        if (t != o.ignore_index)
            total = total + smooth_loss(z, row, t, e);
    }
    return reduced(total, target, o, out, acc);
}

/* 6.5: w = (c)((f64) dy / (f64) count) (mean) or dy (sum). */
static double weight(const ref_tensor *dy, const ref_tensor *target, ref_loss_options o,
                     ref_dtype c)
{
    return ref_round(c, o.mean ? ref_get(dy, 0) / divisor(target, o) : ref_get(dy, 0));
}

/* 6.9: q = r / n; dz_i = ((e_i * (1/l)) - q) * w for i != t, ((e_t * (1/l)) - (k + q)) * w at t. */
ref_tensor ref_cross_entropy_smooth_grad(const ref_tensor *dy, const ref_tensor *z,
                                         const ref_tensor *target, ref_loss_options o, double e)
{
    ref_dtype c = ref_compute(z->dtype);
    ref_tensor dz = ref_like(z, z->dtype);
    double w = weight(dy, target, o, c), k = ref_round(c, 1 - e), r = ref_round(c, e);
    double q = ref_round(c, r / ref_round(c, (double)classes(z))), kq = ref_round(c, k + q);
    for (int64_t row = 0; row < ref_numel(target); row++) {
        int64_t t = ref_get_i64(target, row);
        if (t == o.ignore_index)
            continue;
        softmax_row s = row_of(z, row);
        double inverse = ref_round(c, 1 / s.l);
        for (int64_t i = 0; i < classes(z); i++) {
            double p = ref_round(c, ref_exp1(c, difference(&s, i)) * inverse);
            ref_set(&dz, row * classes(z) + i,
                    ref_round(c, ref_round(c, p - (i == t ? kq : q)) * w));
        }
    }
    return dz;
}

/* 6.10: loss = -logp_t widened to f64. */
ref_tensor ref_nll(const ref_tensor *logp, const ref_tensor *target, ref_loss_options o,
                   ref_dtype out, ref_tensor *acc)
{
    double total = acc ? ref_get(acc, 0) : 0.0;
    for (int64_t row = 0; row < ref_numel(target); row++) {
        int64_t t = ref_get_i64(target, row);
        if (t != o.ignore_index)
            total = total + -ref_get(logp, row * classes(logp) + t);
    }
    return reduced(total, target, o, out, acc);
}

/* 6.10: -w at the target, +0 elsewhere and in ignored rows.
 * NUMERICS does not say: the gradient's dtype. It is the caller's argument here. */
ref_tensor ref_nll_grad(const ref_tensor *dy, const ref_tensor *target, int64_t n,
                        ref_loss_options o, ref_dtype dtype)
{
    int64_t dim[8];
    for (int d = 0; d < target->ndim; d++)
        dim[d] = target->dim[d];
    dim[target->ndim] = n;
    ref_tensor dx = ref_new(dtype, target->ndim + 1, dim);
    double w = weight(dy, target, o, ref_compute(dtype));
    for (int64_t row = 0; row < ref_numel(target); row++) {
        int64_t t = ref_get_i64(target, row);
        if (t != o.ignore_index)
            ref_set(&dx, row * n + t, -w);
    }
    return dx;
}
