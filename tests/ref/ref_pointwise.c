/* Pointwise arithmetic: widen, compute in the compute type, round once when stored (1.1, 1.2,
 * section 2). */
#include "tests/ref/ref.h"

#include <math.h>

typedef double (*unary_fn)(ref_dtype c, double x);
typedef double (*binary_fn)(ref_dtype c, double a, double b);

static ref_tensor map(const ref_tensor *x, unary_fn f)
{
    ref_dtype c = ref_compute(x->dtype);
    ref_tensor y = ref_like(x, x->dtype);
    for (int64_t i = 0; i < ref_numel(x); i++)
        ref_set(&y, i, f(c, ref_get(x, i)));
    return y;
}

static double neg1(ref_dtype c, double x)
{
    (void)c;
    return -x;
} /* 2.6 */
static double abs1(ref_dtype c, double x)
{
    (void)c;
    return fabs(x);
}
static double square1(ref_dtype c, double x) { return ref_round(c, x * x); }
static double silu1(ref_dtype c, double x)
{
    return ref_round(c, x * ref_sigmoid1(c, x));
} /* 2.6 */

/* 2.6: x if x > 0, NaN if x is NaN, else +0. */
static double relu1(ref_dtype c, double x)
{
    (void)c;
    if (x > 0)
        return x;
    if (isnan(x))
        return x;
    return 0.0;
}

ref_tensor ref_neg(const ref_tensor *x) { return map(x, neg1); }
ref_tensor ref_abs(const ref_tensor *x) { return map(x, abs1); }
ref_tensor ref_square(const ref_tensor *x) { return map(x, square1); }
ref_tensor ref_sqrt(const ref_tensor *x) { return map(x, ref_sqrt1); }
ref_tensor ref_rsqrt(const ref_tensor *x) { return map(x, ref_rsqrt1); }
ref_tensor ref_exp(const ref_tensor *x) { return map(x, ref_exp1); }
ref_tensor ref_log(const ref_tensor *x) { return map(x, ref_log1); }
ref_tensor ref_sin(const ref_tensor *x) { return map(x, ref_sin1); }
ref_tensor ref_cos(const ref_tensor *x) { return map(x, ref_cos1); }
ref_tensor ref_tanh(const ref_tensor *x) { return map(x, ref_tanh1); }
ref_tensor ref_sigmoid(const ref_tensor *x) { return map(x, ref_sigmoid1); }
ref_tensor ref_silu(const ref_tensor *x) { return map(x, silu1); }
ref_tensor ref_relu(const ref_tensor *x) { return map(x, relu1); }

/* 2.4: to f16 and bf16 by way of f32. */
ref_tensor ref_pow(const ref_tensor *x, double exponent)
{
    ref_dtype c = ref_compute(x->dtype);
    ref_tensor y = ref_like(x, x->dtype);
    for (int64_t i = 0; i < ref_numel(x); i++)
        ref_set(&y, i, ref_pow1(c, ref_get(x, i), exponent));
    return y;
}

/* 1.8: the constant is rounded to the compute type first. */
ref_tensor ref_scale(const ref_tensor *x, double k)
{
    ref_dtype c = ref_compute(x->dtype);
    ref_tensor y = ref_like(x, x->dtype);
    for (int64_t i = 0; i < ref_numel(x); i++)
        ref_set(&y, i, ref_round(c, ref_get(x, i) * ref_round(c, k)));
    return y;
}

ref_tensor ref_shift(const ref_tensor *x, double k)
{
    ref_dtype c = ref_compute(x->dtype);
    ref_tensor y = ref_like(x, x->dtype);
    for (int64_t i = 0; i < ref_numel(x); i++)
        ref_set(&y, i, ref_round(c, ref_get(x, i) + ref_round(c, k)));
    return y;
}

/* 1.8: callers widen inputs of several dtypes to the one in which they meet. */
static ref_tensor map2(const ref_tensor *a, const ref_tensor *b, binary_fn f)
{
    ref_check(a->dtype == b->dtype, "two inputs of one dtype wanted");
    ref_dtype c = ref_compute(a->dtype);
    ref_tensor y = ref_broadcast_shape(a, b, a->dtype);
    for (int64_t i = 0; i < ref_numel(&y); i++) {
        int64_t ix[8];
        ref_unflatten(y.ndim, y.dim, i, ix);
        double va = ref_get(a, ref_broadcast_at(a, y.ndim, ix)),
               vb = ref_get(b, ref_broadcast_at(b, y.ndim, ix));
        ref_set(&y, i, f(c, va, vb));
    }
    return y;
}

/* 1.2, and 1.6: add is left as it is. */
static double add2(ref_dtype c, double a, double b) { return ref_round(c, a + b); }
static double sub2(ref_dtype c, double a, double b) { return ref_round(c, a - b); }
static double mul2(ref_dtype c, double a, double b) { return ref_round(c, a * b); }
static double div2(ref_dtype c, double a, double b) { return ref_round(c, a / b); }
/* 4.2: NaN wins, +0 > -0. */
static double maximum2(ref_dtype c, double a, double b)
{
    (void)c;
    return ref_max2(a, b);
}
static double minimum2(ref_dtype c, double a, double b)
{
    (void)c;
    return ref_min2(a, b);
}

ref_tensor ref_add(const ref_tensor *a, const ref_tensor *b) { return map2(a, b, add2); }
ref_tensor ref_sub(const ref_tensor *a, const ref_tensor *b) { return map2(a, b, sub2); }
ref_tensor ref_mul(const ref_tensor *a, const ref_tensor *b) { return map2(a, b, mul2); }
ref_tensor ref_div(const ref_tensor *a, const ref_tensor *b) { return map2(a, b, div2); }
ref_tensor ref_maximum(const ref_tensor *a, const ref_tensor *b) { return map2(a, b, maximum2); }
ref_tensor ref_minimum(const ref_tensor *a, const ref_tensor *b) { return map2(a, b, minimum2); }
