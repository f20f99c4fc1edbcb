/* erf, log1p, expm1, exp2, log2 and what is made of them: softplus, the two gelus and their
 * gradients; clamp, masked_fill (2.8 to 2.11). */
#include "tests/ref/ref.h"

#include <math.h>
#include <mpfr.h>

typedef int (*mpfr_fn)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t);

/* f(x) with far more bits than any f32 needs, or f64, then rounded once. */
static double once(ref_dtype c, mpfr_fn f, double x)
{
    mpfr_t t;
    mpfr_init2(t, c == REF_F64 ? 400 : 200);
    mpfr_set_d(t, x, MPFR_RNDN);
    f(t, t, MPFR_RNDN);
    double r = c == REF_F64 ? mpfr_get_d(t, MPFR_RNDN) : (double)mpfr_get_flt(t, MPFR_RNDN);
    mpfr_clear(t);
    return r;
}

static double erf64(double x) { return once(REF_F64, mpfr_erf, x); }
static double log1p64(double x) { return once(REF_F64, mpfr_log1p, x); }
static double expm164(double x) { return once(REF_F64, mpfr_expm1, x); }

static double exp264(double x) { return once(REF_F64, mpfr_exp2, x); }
static double log264(double x) { return once(REF_F64, mpfr_log2, x); }

static const ref_f64_more of_mpfr = {erf64, log1p64, expm164, exp264, log264};
static const ref_f64_more *f64 = &of_mpfr;

const ref_f64_more *ref_set_f64_more(const ref_f64_more *table)
{
    const ref_f64_more *before = f64;
    f64 = table ? table : &of_mpfr;
    return before;
}

/* 2.8 for f32, 2.3 for f64. */
double ref_erf1(ref_dtype c, double x) { return c == REF_F64 ? f64->erf(x) : once(c, mpfr_erf, x); }
double ref_log1p1(ref_dtype c, double x)
{
    return c == REF_F64 ? f64->log1p(x) : once(c, mpfr_log1p, x);
}
double ref_expm1_1(ref_dtype c, double x)
{
    return c == REF_F64 ? f64->expm1(x) : once(c, mpfr_expm1, x);
}
double ref_exp2_1(ref_dtype c, double x)
{
    return c == REF_F64 ? f64->exp2(x) : once(c, mpfr_exp2, x);
}
double ref_log2_1(ref_dtype c, double x)
{
    return c == REF_F64 ? f64->log2(x) : once(c, mpfr_log2, x);
}

/* 2.8: max(x, 0) + log1p(exp(-|x|)), where max(x, 0) is x if x > 0, else +0. */
static double softplus1(ref_dtype c, double x)
{
    double top = x > 0 ? x : 0.0;
    return ref_round(c, top + ref_log1p1(c, ref_exp1(c, -fabs(x))));
}

/* 2.9: 0.5 * (1 + erf(x * h)). */
static double phi1(ref_dtype c, double x)
{
    double h = ref_round(c, 0x1.6a09e667f3bcdp-1);
    return ref_round(c, 0.5 * ref_round(c, 1 + ref_erf1(c, ref_round(c, x * h))));
}

static double gelu1(ref_dtype c, double x) { return ref_round(c, x * phi1(c, x)); }

/* 2.9: dy * (phi + (x * (exp(-0.5 * (x * x)) * g))). */
static double gelu_grad1(ref_dtype c, double dy, double x)
{
    double g = ref_round(c, 0x1.9884533d43651p-2);
    double e = ref_exp1(c, ref_round(c, -0.5 * ref_round(c, x * x)));
    double bell = ref_round(c, x * ref_round(c, e * g));
    return ref_round(c, dy * ref_round(c, phi1(c, x) + bell));
}

/* 2.10: t = tanh(k * (x + (0.044715 * ((x * x) * x)))). */
static double t1(ref_dtype c, double x)
{
    double k = ref_round(c, 0x1.9884533d43651p-1), cube = ref_round(c, ref_round(c, x * x) * x);
    double inner = ref_round(c, x + ref_round(c, ref_round(c, 0.044715) * cube));
    return ref_tanh1(c, ref_round(c, k * inner));
}

static double gelu_tanh1(ref_dtype c, double x)
{
    return ref_round(c, ref_round(c, 0.5 * x) * ref_round(c, 1 + t1(c, x)));
}

/* 2.10: dy * ((0.5 * (1 + t)) + (((0.5 * x) * (1 - (t * t))) * u)), u = k * (1 + (0.134145 * (x *
 * x))). */
static double gelu_tanh_grad1(ref_dtype c, double dy, double x)
{
    double t = t1(c, x), k = ref_round(c, 0x1.9884533d43651p-1);
    double u = ref_round(c, k * ref_round(c, 1 + ref_round(c, ref_round(c, 0.134145) *
                                                                  ref_round(c, x * x))));
    double left = ref_round(c, 0.5 * ref_round(c, 1 + t));
    double slope = ref_round(c, ref_round(c, 0.5 * x) * ref_round(c, 1 - ref_round(c, t * t)));
    return ref_round(c, dy * ref_round(c, left + ref_round(c, slope * u)));
}

static ref_tensor map(const ref_tensor *x, double (*f)(ref_dtype, double))
{
    ref_tensor y = ref_like(x, x->dtype);
    for (int64_t i = 0; i < ref_numel(x); i++)
        ref_set(&y, i, f(ref_compute(x->dtype), ref_get(x, i)));
    return y;
}

ref_tensor ref_erf(const ref_tensor *x) { return map(x, ref_erf1); }
ref_tensor ref_log1p(const ref_tensor *x) { return map(x, ref_log1p1); }
ref_tensor ref_expm1(const ref_tensor *x) { return map(x, ref_expm1_1); }
ref_tensor ref_exp2(const ref_tensor *x) { return map(x, ref_exp2_1); }
ref_tensor ref_log2(const ref_tensor *x) { return map(x, ref_log2_1); }
ref_tensor ref_softplus(const ref_tensor *x) { return map(x, softplus1); }
ref_tensor ref_gelu(const ref_tensor *x) { return map(x, gelu1); }
ref_tensor ref_gelu_tanh(const ref_tensor *x) { return map(x, gelu_tanh1); }

static ref_tensor map2(const ref_tensor *a, const ref_tensor *b,
                       double (*f)(ref_dtype, double, double))
{
    ref_check(a->dtype == b->dtype, "two inputs of one dtype wanted");
    ref_tensor y = ref_broadcast_shape(a, b, a->dtype);
    for (int64_t i = 0; i < ref_numel(&y); i++) {
        int64_t ix[8] = {0};
        ref_unflatten(y.ndim, y.dim, i, ix);
        double va = ref_get(a, ref_broadcast_at(a, y.ndim, ix)),
               vb = ref_get(b, ref_broadcast_at(b, y.ndim, ix));
        ref_set(&y, i, f(ref_compute(a->dtype), va, vb));
    }
    return y;
}

ref_tensor ref_gelu_grad(const ref_tensor *dy, const ref_tensor *x)
{
    return map2(dy, x, gelu_grad1);
}
ref_tensor ref_gelu_tanh_grad(const ref_tensor *dy, const ref_tensor *x)
{
    return map2(dy, x, gelu_tanh_grad1);
}

/* 2.11: v = lo if x < lo, else x; the result is hi if v > hi, else v. */
ref_tensor ref_clamp(const ref_tensor *x, double lo, double hi)
{
    ref_dtype c = ref_compute(x->dtype);
    ref_tensor y = ref_like(x, x->dtype);
    lo = ref_round(c, lo);
    hi = ref_round(c, hi);
    for (int64_t i = 0; i < ref_numel(x); i++) {
        double v = ref_get(x, i) < lo ? lo : ref_get(x, i);
        ref_set(&y, i, v > hi ? hi : v);
    }
    return y;
}

/* 2.11: dy where x >= lo and x <= hi, else +0. */
ref_tensor ref_clamp_grad(const ref_tensor *dy, const ref_tensor *x, double lo, double hi)
{
    ref_dtype c = ref_compute(x->dtype);
    ref_tensor dx = ref_like(x, x->dtype);
    for (int64_t i = 0; i < ref_numel(x); i++) {
        double v = ref_get(x, i);
        ref_set(&dx, i, v >= ref_round(c, lo) && v <= ref_round(c, hi) ? ref_get(dy, i) : 0.0);
    }
    return dx;
}

/* 2.11: where(mask, value, x) with value rounded to x's dtype. */
ref_tensor ref_masked_fill(const ref_tensor *x, const ref_tensor *mask, double value)
{
    ref_tensor v = ref_from(x->dtype, 0, (int64_t[]){0}, &value), y = ref_where(mask, &v, x);
    ref_free(&v);
    return y;
}
