/* softmax and log_softmax along one dim, with their gradients (6.3, 6.4). */
#include "tests/ref/ref.h"

#include <math.h>

/* The elements of row `row` along dim are start + i * stride, i < n. */
typedef struct {
    int64_t rows, n, stride;
} along;

static along along_dim(const ref_tensor *x, int dim)
{
    along a = {0, x->dim[dim], 1};
    for (int d = dim + 1; d < x->ndim; d++)
        a.stride *= x->dim[d];
    a.rows = a.n ? ref_numel(x) / a.n : 0;
    return a;
}

static int64_t at(along a, int64_t row, int64_t i)
{
    return (row / a.stride) * a.n * a.stride + row % a.stride + i * a.stride;
}

/* 6.3: m = max of the row (as 4.2). */
static double row_max(const ref_tensor *x, along a, int64_t row)
{
    double m = -(double)INFINITY;
    for (int64_t i = 0; i < a.n; i++)
        m = ref_max2(m, ref_get(x, at(a, row, i)));
    return m;
}

/* 6.3: e_i = exp(x_i - m). */
static double e_at(const ref_tensor *x, along a, int64_t row, int64_t i, double m)
{
    ref_dtype c = ref_compute(x->dtype);
    return ref_exp1(c, ref_round(c, ref_get(x, at(a, row, i)) - m));
}

/* 6.3: l = lanes(e). */
static double sum_e(const ref_tensor *x, along a, int64_t row, double m)
{
    ref_lanes s;
    ref_lanes_start(&s, ref_compute(x->dtype));
    for (int64_t i = 0; i < a.n; i++)
        ref_lanes_add(&s, i, e_at(x, a, row, i, m));
    return ref_lanes_sum(&s);
}

/* 6.3: r = 1 / l; y_i = e_i * r. */
ref_tensor ref_softmax(const ref_tensor *x, int dim)
{
    ref_dtype c = ref_compute(x->dtype);
    along a = along_dim(x, dim);
    ref_tensor y = ref_like(x, x->dtype);
    for (int64_t row = 0; row < a.rows; row++) {
        double m = row_max(x, a, row), r = ref_round(c, 1.0 / sum_e(x, a, row, m));
        for (int64_t i = 0; i < a.n; i++)
            ref_set(&y, at(a, row, i), ref_round(c, e_at(x, a, row, i, m) * r));
    }
    return y;
}

/* 6.3: d = lanes(dy_i * y_i); dx_i = y_i * (dy_i - d).
 * NUMERICS does not say: whether y is the stored output or its value before rounding. It is here
 * the stored one. */
ref_tensor ref_softmax_grad(const ref_tensor *dy, const ref_tensor *y, int dim)
{
    ref_dtype c = ref_compute(y->dtype);
    along a = along_dim(y, dim);
    ref_tensor dx = ref_like(y, y->dtype);
    for (int64_t row = 0; row < a.rows; row++) {
        ref_lanes s;
        ref_lanes_start(&s, c);
        for (int64_t i = 0; i < a.n; i++)
            ref_lanes_add(&s, i,
                          ref_round(c, ref_get(dy, at(a, row, i)) * ref_get(y, at(a, row, i))));
        double d = ref_lanes_sum(&s);
        for (int64_t i = 0; i < a.n; i++) {
            double difference = ref_round(c, ref_get(dy, at(a, row, i)) - d);
            ref_set(&dx, at(a, row, i), ref_round(c, ref_get(y, at(a, row, i)) * difference));
        }
    }
    return dx;
}

/* 6.4: y_i = (x_i - m) - log(l). */
ref_tensor ref_log_softmax(const ref_tensor *x, int dim)
{
    ref_dtype c = ref_compute(x->dtype);
    along a = along_dim(x, dim);
    ref_tensor y = ref_like(x, x->dtype);
    for (int64_t row = 0; row < a.rows; row++) {
        double m = row_max(x, a, row), log_l = ref_log1(c, sum_e(x, a, row, m));
        for (int64_t i = 0; i < a.n; i++) {
            double shifted = ref_round(c, ref_get(x, at(a, row, i)) - m);
            ref_set(&y, at(a, row, i), ref_round(c, shifted - log_l));
        }
    }
    return y;
}

/* 6.4: d = lanes(dy_i); dx_i = dy_i - exp(y_i) * d, y the stored output. */
ref_tensor ref_log_softmax_grad(const ref_tensor *dy, const ref_tensor *y, int dim)
{
    ref_dtype c = ref_compute(y->dtype);
    along a = along_dim(y, dim);
    ref_tensor dx = ref_like(y, y->dtype);
    for (int64_t row = 0; row < a.rows; row++) {
        ref_lanes s;
        ref_lanes_start(&s, c);
        for (int64_t i = 0; i < a.n; i++)
            ref_lanes_add(&s, i, ref_get(dy, at(a, row, i)));
        double d = ref_lanes_sum(&s);
        for (int64_t i = 0; i < a.n; i++) {
            double product = ref_round(c, ref_exp1(c, ref_get(y, at(a, row, i))) * d);
            ref_set(&dx, at(a, row, i), ref_round(c, ref_get(dy, at(a, row, i)) - product));
        }
    }
    return dx;
}
