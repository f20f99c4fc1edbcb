/* The gradients of pointwise functions of one operand and of a quotient: NUMERICS 2.14. Every
 * operation on that page is an op, whose result is stored in the dtype. */
#include "tests/ref/ref.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* v as an op stores it: rounded to the compute type, and from there to the dtype. */
static double stored(ref_dtype d, double v) { return ref_round(d, ref_round(ref_compute(d), v)); }

/* A constant is rounded to the compute type before it multiplies. */
static double scaled(ref_dtype d, double v, double k)
{
    return stored(d, v * ref_round(ref_compute(d), k));
}

/* What dy is multiplied by, or divided by, in those of that form. */
static double factor(const char *op, ref_dtype d, double x, double y, double e)
{
    const ref_dtype c = ref_compute(d);
    const double ln2 = 0x1.62e42fefa39efp-1, slope = 0x1.20dd750429b6dp+0; /* 2/sqrt(pi) */
    if (strcmp(op, "sqrt") == 0)
        return scaled(d, y, 2);
    if (strcmp(op, "rsqrt") == 0)
        return scaled(d, stored(d, ref_pow1(c, y, 3)), -0.5);
    if (strcmp(op, "exp") == 0)
        return y;
    if (strcmp(op, "log") == 0)
        return x;
    if (strcmp(op, "sin") == 0)
        return stored(d, ref_cos1(c, x));
    if (strcmp(op, "cos") == 0)
        return stored(d, ref_sin1(c, x));
    if (strcmp(op, "tanh") == 0)
        return stored(d, 1 - stored(d, y * y));
    if (strcmp(op, "sigmoid") == 0)
        return stored(d, y * stored(d, 1 - y));
    if (strcmp(op, "erf") == 0)
        return scaled(d, stored(d, ref_exp1(c, -stored(d, x * x))), slope);
    if (strcmp(op, "log1p") == 0)
        return stored(d, x + 1);
    if (strcmp(op, "expm1") == 0)
        return stored(d, y + 1);
    if (strcmp(op, "exp2") == 0)
        return scaled(d, y, ln2);
    if (strcmp(op, "log2") == 0)
        return scaled(d, x, ln2);
    if (strcmp(op, "pow") == 0)
        return e == 0 ? 0 : scaled(d, stored(d, ref_pow1(c, x, e - 1)), e);
    if (strcmp(op, "square") == 0)
        return scaled(d, x, 2);
    if (strcmp(op, "reciprocal") == 0)
        return stored(d, y * y);
    if (strcmp(op, "softplus") == 0)
        return stored(d, ref_sigmoid1(c, x));
    fprintf(stderr, "ref_slope.c has no gradient of %s (NUMERICS 2.14)\n", op);
    abort();
}

/* silu_grad of 2.6, stored once. */
static double silu_slope(ref_dtype d, double dy, double x)
{
    const ref_dtype c = ref_compute(d);
    const double s = ref_sigmoid1(c, x), rest = ref_round(c, x * ref_round(c, 1 - s));
    return stored(d, dy * ref_round(c, s * ref_round(c, 1 + rest)));
}

static double slope(const char *op, ref_dtype d, double dy, double x, double y, double e)
{
    static const char *const divided[] = {"sqrt", "log", "log1p", "log2"};
    if (strcmp(op, "silu") == 0)
        return silu_slope(d, dy, x);
    if (strcmp(op, "neg") == 0)
        return -dy;
    if (strcmp(op, "abs") == 0)
        return x > 0 ? dy : x < 0 ? -dy : 0;
    if (strcmp(op, "relu") == 0)
        return x > 0 ? dy : 0;
    const double f = factor(op, d, x, y, e);
    for (size_t i = 0; i < sizeof divided / sizeof *divided; i++)
        if (strcmp(op, divided[i]) == 0)
            return stored(d, dy / f);
    const double v = stored(d, dy * f);
    return strcmp(op, "cos") == 0 || strcmp(op, "reciprocal") == 0 ? -v : v;
}

ref_tensor ref_slope(const char *op, const ref_tensor *dy, const ref_tensor *x, const ref_tensor *y,
                     double exponent)
{
    ref_tensor dx = ref_like(x, x->dtype);
    for (int64_t i = 0; i < ref_numel(x); i++)
        ref_set(&dx, i,
                slope(op, x->dtype, ref_get(dy, i), ref_get(x, i), ref_get(y, i), exponent));
    return dx;
}

ref_tensor ref_div_slope(const ref_tensor *dy, const ref_tensor *b, const ref_tensor *y)
{
    ref_tensor db = ref_like(dy, dy->dtype);
    for (int64_t i = 0; i < ref_numel(dy); i++) {
        int64_t ix[8] = {0};
        ref_unflatten(dy->ndim, dy->dim, i, ix);
        const double v = stored(dy->dtype, ref_get(dy, i) * ref_get(y, i));
        ref_set(&db, i, -stored(dy->dtype, v / ref_get(b, ref_broadcast_at(b, dy->ndim, ix))));
    }
    return db;
}
