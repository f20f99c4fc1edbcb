/* min, the gradient of max and min, var, cumsum, mse (4.4 to 4.6, 6.11). */
#include "tests/ref/ref.h"

#include <stddef.h>

/* 4.4: min(x) is -max(-x). */
ref_tensor ref_min(const ref_tensor *x, unsigned dims, int keepdims)
{
    ref_tensor nx = ref_neg(x), m = ref_max(&nx, dims, keepdims), y = ref_neg(&m);
    ref_free(&nx);
    ref_free(&m);
    return y;
}

/* A result over dims seen with these kept as 1. Borrows y's data. */
static ref_tensor kept(const ref_tensor *x, const ref_tensor *y, unsigned dims)
{
    ref_tensor k = *y;
    k.ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++)
        k.dim[d] = dims >> d & 1 ? 1 : x->dim[d];
    return k;
}

static int64_t partner(const ref_tensor *k, const ref_tensor *x, int64_t i)
{
    int64_t ix[8] = {0};
    ref_unflatten(x->ndim, x->dim, i, ix);
    return ref_broadcast_at(k, x->ndim, ix);
}

/* 4.4: dy / (number of elements equal to the extreme) at each of these, +0 elsewhere.
 * NUMERICS does not say: whether the quotient is rounded to x's dtype. It is not, here: the
 * gradient is of the compute type. Equal is that of IEEE 754: -0 equals +0, a NaN nothing. */
ref_tensor ref_extreme_grad(const ref_tensor *dy, const ref_tensor *x, const ref_tensor *y,
                            unsigned dims)
{
    ref_dtype c = ref_compute(x->dtype);
    ref_tensor ky = kept(x, y, dims), kdy = kept(x, dy, dims), n = ref_like(&ky, REF_F64),
               dx = ref_like(x, c);
    for (int64_t i = 0; i < ref_numel(x); i++) {
        int64_t to = partner(&ky, x, i);
        if (ref_get(x, i) == ref_get(&ky, to))
            ref_set(&n, to, ref_get(&n, to) + 1);
    }
    for (int64_t i = 0; i < ref_numel(x); i++) {
        int64_t to = partner(&ky, x, i);
        if (ref_get(x, i) == ref_get(&ky, to))
            ref_set(&dx, i, ref_round(c, ref_get(&kdy, to) / ref_round(c, ref_get(&n, to))));
    }
    ref_free(&n);
    return dx;
}

/* 4.5: m = mean(x), d = x - m, q = d * d, s = sum(q), y = s / (n - correction), all in c. */
ref_tensor ref_var(const ref_tensor *x, unsigned dims, int correction, int keepdims)
{
    ref_dtype c = ref_compute(x->dtype);
    int64_t n = 1;
    for (int d = 0; d < x->ndim; d++)
        n *= dims >> d & 1 ? x->dim[d] : 1;
    ref_tensor wide = ref_cast(x, c), m = ref_mean(&wide, dims, 1), d = ref_sub(&wide, &m),
               q = ref_square(&d);
    ref_tensor s = ref_sum(&q, dims, keepdims, NULL), y = ref_like(&s, x->dtype);
    double count = ref_round(c, n > correction ? (double)(n - correction) : 0);
    for (int64_t i = 0; i < ref_numel(&s); i++)
        ref_set(&y, i, ref_round(c, ref_get(&s, i) / count));
    ref_tensor *made[] = {&wide, &m, &d, &q, &s};
    for (int i = 0; i < 5; i++)
        ref_free(made[i]);
    return y;
}

/* The gradients of 4.5's ops by 2.14 and 4.1, in c: ds = dy / n', dd = (d * 2) * ds; m is given the
 * fold of -dd (10.2) and hands on its n-th part; x is given both, rounded once to its dtype. */
ref_tensor ref_var_grad(const ref_tensor *dy, const ref_tensor *x, unsigned dims, int correction)
{
    ref_dtype c = ref_compute(x->dtype);
    int64_t n = 1;
    for (int d = 0; d < x->ndim; d++)
        n *= dims >> d & 1 ? x->dim[d] : 1;
    double terms = (double)n, of = (double)(n > correction ? n - correction : 0);
    ref_tensor wide = ref_cast(x, c), m = ref_mean(&wide, dims, 1), d = ref_sub(&wide, &m),
               twice = ref_scale(&d, 2), g = ref_cast(dy, c), by_of = ref_from(c, 0, NULL, &of),
               by_n = ref_from(c, 0, NULL, &terms), ds = ref_div(&g, &by_of),
               seen = kept(x, &ds, dims), dd = ref_mul(&twice, &seen), minus = ref_neg(&dd),
               dm = ref_sum_to(&minus, m.ndim, m.dim, NULL), share = ref_div(&dm, &by_n),
               sum = ref_add(&dd, &share), dx = ref_cast(&sum, x->dtype);
    ref_tensor *made[] = {&wide, &m,  &d,     &twice, &g,     &by_of, &by_n,
                          &ds,   &dd, &minus, &dm,    &share, &sum};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        ref_free(made[i]);
    return dx;
}

/* 6.11: d = a - b, q = d * d, mean(q) over all dims; operands widened first. */
ref_tensor ref_mse(const ref_tensor *a, const ref_tensor *b)
{
    ref_dtype c = ref_compute(a->dtype);
    ref_tensor wa = ref_cast(a, c), wb = ref_cast(b, c), d = ref_sub(&wa, &wb), q = ref_square(&d);
    ref_tensor y = ref_mean(&q, (1u << q.ndim) - 1, 0), *made[] = {&wa, &wb, &d, &q};
    for (int i = 0; i < 4; i++)
        ref_free(made[i]);
    return y;
}

/* 4.6: acc = +0 in f64; for i ascending (reverse: descending) acc = acc + x_i, y_i = acc + 0
 * rounded once. */
ref_tensor ref_cumsum(const ref_tensor *x, int dim, int reverse)
{
    ref_tensor y = ref_like(x, x->dtype);
    int64_t inner = 1, n = x->dim[dim];
    for (int d = dim + 1; d < x->ndim; d++)
        inner *= x->dim[d];
    int64_t rows = n > 0 ? ref_numel(x) / n : 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t start = row / inner * n * inner + row % inner;
        double acc = 0.0;
        for (int64_t i = 0; i < n; i++) {
            int64_t at = start + (reverse ? n - 1 - i : i) * inner;
            acc = acc + ref_get(x, at);
            ref_set(&y, at, acc + 0.0);
        }
    }
    return y;
}
