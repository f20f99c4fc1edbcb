/* Elementary functions through MPFR, with far more bits than the hardest case of any of them needs:
 * 160 for f32, 400 for f64. Exact results (pow with a listed exponent, rsqrt) fit, so that rounding
 * the long value is rounding the true one. */
#include "tests/ref/ref.h"

#include <math.h>
#include <mpfr.h>

static mpfr_prec_t bits(ref_dtype c) { return c == REF_F64 ? 400 : 160; }

typedef int (*mpfr_fn)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t);

/* f(x) rounded once to f32 or f64, subnormals kept (mpfr_get_flt and mpfr_get_d round to the
 * format's own grid). */
static double once(ref_dtype c, mpfr_fn f, double x)
{
    mpfr_t t;
    mpfr_init2(t, bits(c));
    mpfr_set_d(t, x, MPFR_RNDN);
    f(t, t, MPFR_RNDN);
    double r = c == REF_F64 ? mpfr_get_d(t, MPFR_RNDN) : (double)mpfr_get_flt(t, MPFR_RNDN);
    mpfr_clear(t);
    return r;
}

/* 2.1: sigmoid(x) = 1/(1+e^-x), a function of its own. */
static int sigmoid_mpfr(mpfr_ptr r, mpfr_srcptr x, mpfr_rnd_t rnd)
{
    mpfr_neg(r, x, rnd);
    mpfr_exp(r, r, rnd);
    mpfr_add_ui(r, r, 1, rnd);
    return mpfr_ui_div(r, 1, r, rnd);
}

/* 2.1: rsqrt(+-0) = +-inf. MPFR alone would give +inf for both. */
static int rsqrt_mpfr(mpfr_ptr r, mpfr_srcptr x, mpfr_rnd_t rnd)
{
    if (!mpfr_zero_p(x))
        return mpfr_rec_sqrt(r, x, rnd);
    mpfr_set_inf(r, mpfr_signbit(x) ? -1 : 1);
    return 0;
}

static double pow_once(ref_dtype c, double x, double y)
{
    mpfr_t t, u;
    mpfr_inits2(bits(c), t, u, (mpfr_ptr)0);
    mpfr_set_d(t, x, MPFR_RNDN);
    mpfr_set_d(u, y, MPFR_RNDN);
    mpfr_pow(t, t, u, MPFR_RNDN);
    double r = c == REF_F64 ? mpfr_get_d(t, MPFR_RNDN) : (double)mpfr_get_flt(t, MPFR_RNDN);
    mpfr_clears(t, u, (mpfr_ptr)0);
    return r;
}

static double exp64(double x) { return once(REF_F64, mpfr_exp, x); }
static double log64(double x) { return once(REF_F64, mpfr_log, x); }
static double sin64(double x) { return once(REF_F64, mpfr_sin, x); }
static double cos64(double x) { return once(REF_F64, mpfr_cos, x); }
static double tanh64(double x) { return once(REF_F64, mpfr_tanh, x); }
static double sigmoid64(double x) { return once(REF_F64, sigmoid_mpfr, x); }
static double rsqrt64(double x) { return once(REF_F64, rsqrt_mpfr, x); }
static double pow64(double x, double y) { return pow_once(REF_F64, x, y); }

static const ref_f64_table of_mpfr = {exp64,  log64,     sin64,   cos64,
                                      tanh64, sigmoid64, rsqrt64, pow64};
static const ref_f64_table *f64 = &of_mpfr;

const ref_f64_table *ref_set_f64_functions(const ref_f64_table *table)
{
    const ref_f64_table *before = f64;
    f64 = table ? table : &of_mpfr;
    return before;
}

/* 2.1 for f32, 2.3 for f64. */
double ref_exp1(ref_dtype c, double x) { return c == REF_F64 ? f64->exp(x) : once(c, mpfr_exp, x); }
double ref_log1(ref_dtype c, double x) { return c == REF_F64 ? f64->log(x) : once(c, mpfr_log, x); }
double ref_sin1(ref_dtype c, double x) { return c == REF_F64 ? f64->sin(x) : once(c, mpfr_sin, x); }
double ref_cos1(ref_dtype c, double x) { return c == REF_F64 ? f64->cos(x) : once(c, mpfr_cos, x); }
double ref_tanh1(ref_dtype c, double x)
{
    return c == REF_F64 ? f64->tanh(x) : once(c, mpfr_tanh, x);
}
double ref_sigmoid1(ref_dtype c, double x)
{
    return c == REF_F64 ? f64->sigmoid(x) : once(c, sigmoid_mpfr, x);
}
double ref_rsqrt1(ref_dtype c, double x)
{
    return c == REF_F64 ? f64->rsqrt(x) : once(c, rsqrt_mpfr, x);
}

/* 1.2: sqrt is the IEEE operation in both types. */
double ref_sqrt1(ref_dtype c, double x) { return ref_round(c, sqrt(x)); }

/* 2.1: the exponents with a correctly rounded f32 power. */
static int listed(double y)
{
    return y == -2 || y == -1 || y == -0.5 || y == 0.5 || y == 1.5 || y == 2 || y == 3;
}

/* 2.1, 2.4.
 * Special values are those of IEC 60559 (C annex F), hence pow(-0, 1/2) = +0 and pow(-inf, 1/2) =
 * +inf, unlike sqrt, and pow(-0, -1/2) = +inf, unlike rsqrt. NUMERICS does not say: which f64
 * sequence an f64 pow with a listed exponent takes. It is here the table's pow for all exponents.
 */
double ref_pow1(ref_dtype c, double x, double exponent)
{
    if (c == REF_F64)
        return f64->pow(x, exponent);
    if (listed(exponent))
        return pow_once(c, x, exponent);
    return ref_round(c, f64->pow(x, exponent));
}
