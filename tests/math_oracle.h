/* math_oracle.h: the judge of the elementary functions: MPFR, and nothing of the library.
 *
 * A function is judged by its name. tl_judge_double gives it in double by the C
 * library, good to 2^-44 with a wide margin (its functions err by a few ULP, that
 * is 2^-50); tl_judge_mpfr in 300 bits, far more than any case here needs to be
 * told from a tie. tl_judge_float rounds right: it asks MPFR only when the double,
 * moved by 2^-44 down and up, rounds to two different floats.
 */
#ifndef TL_TESTS_MATH_ORACLE_H
#define TL_TESTS_MATH_ORACLE_H

#include <math.h>
#include <mpfr.h>
#include <stdint.h>
#include <string.h>

#define TL_JUDGE_BITS 300
#define TL_JUDGE_MARGIN 0x1p-44

typedef struct {
    const char *name;
    double (*near)(double x);
    int (*exact)(mpfr_ptr y, mpfr_srcptr x, mpfr_rnd_t r);
    double power; /* the exponent, where near and exact are null */
} tl_judge;

static double tl_near_sigmoid(double x) { return 1 / (1 + exp(-x)); }

static double tl_near_rsqrt(double x) { return 1 / sqrt(x); }

static int tl_exact_sigmoid(mpfr_ptr y, mpfr_srcptr x, mpfr_rnd_t r)
{
    mpfr_neg(y, x, r);
    mpfr_exp(y, y, r);
    mpfr_add_ui(y, y, 1, r);
    return mpfr_ui_div(y, 1, y, r);
}

/* 1/sqrt, so that -0 gives -inf: mpfr_rec_sqrt differs there. */
static int tl_exact_rsqrt(mpfr_ptr y, mpfr_srcptr x, mpfr_rnd_t r)
{
    mpfr_sqrt(y, x, r);
    return mpfr_ui_div(y, 1, y, r);
}

static const tl_judge tl_judges[] = {
    {"exp", exp, mpfr_exp, 0},
    {"exp2", exp2, mpfr_exp2, 0},
    {"expm1", expm1, mpfr_expm1, 0},
    {"log", log, mpfr_log, 0},
    {"log2", log2, mpfr_log2, 0},
    {"log1p", log1p, mpfr_log1p, 0},
    {"sin", sin, mpfr_sin, 0},
    {"cos", cos, mpfr_cos, 0},
    {"tanh", tanh, mpfr_tanh, 0},
    {"sigmoid", tl_near_sigmoid, tl_exact_sigmoid, 0},
    {"rsqrt", tl_near_rsqrt, tl_exact_rsqrt, 0},
    {"sqrt", sqrt, mpfr_sqrt, 0},
    {"erf", erf, mpfr_erf, 0},
    {"pow-2", 0, 0, -2},
    {"pow-1", 0, 0, -1},
    {"pow-1/2", 0, 0, -0.5},
    {"pow1/2", 0, 0, 0.5},
    {"pow3/2", 0, 0, 1.5},
    {"pow2", 0, 0, 2},
    {"pow3", 0, 0, 3},
};

enum { TL_JUDGES = sizeof tl_judges / sizeof tl_judges[0] };

static inline double tl_judge_double(const tl_judge *f, double x)
{
    return f->near ? f->near(x) : pow(x, f->power);
}

/* y must have TL_JUDGE_BITS bits; it gets the value to those bits. */
static inline void tl_judge_mpfr(const tl_judge *f, mpfr_t y, double x)
{
    mpfr_t a, e;
    mpfr_inits2(64, a, e, (mpfr_ptr)0);
    mpfr_set_d(a, x, MPFR_RNDN);
    mpfr_set_d(e, f->power, MPFR_RNDN);
    if (f->exact)
        f->exact(y, a, MPFR_RNDN);
    else
        mpfr_pow(y, a, e, MPFR_RNDN);
    mpfr_clears(a, e, (mpfr_ptr)0);
}

static inline float tl_judge_float_slow(const tl_judge *f, float x)
{
    mpfr_t y;
    mpfr_init2(y, TL_JUDGE_BITS);
    tl_judge_mpfr(f, y, (double)x);
    float r = mpfr_get_flt(y, MPFR_RNDN); /* one rounding, into the subnormals too */
    mpfr_clear(y);
    return r;
}

/* The judge's double d for input x, rounded right; *asked counts the calls to MPFR. */
static inline float tl_judge_float(const tl_judge *f, float x, int64_t *asked)
{
    double d = tl_judge_double(f, (double)x);
    if (!isfinite(d) || d == 0)
        return (float)d; /* float's range is far inside double's: these are no approximations */
    double margin = fabs(d) * TL_JUDGE_MARGIN;
    float lo = (float)(d - margin), hi = (float)(d + margin);
    if (lo == hi)
        return lo;
    ++*asked;
    return tl_judge_float_slow(f, x);
}

#endif
