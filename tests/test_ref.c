/* The references themselves - scalars, pointwise functions, sums, products - against values
 * computed by hand and against MPFR. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include <mpfr.h>

#include "tests/support/values.h"

extern const struct CMUnitTest tl_tests_ref[];
extern const size_t tl_tests_ref_count;

/* ---- scalars ---- */

static double half_by_mpfr(ref_dtype dtype, double v)
{
    mpfr_t t;
    mpfr_exp_t emin = mpfr_get_emin(), emax = mpfr_get_emax();
    mpfr_init2(t, dtype == REF_F16 ? 11 : 8);
    mpfr_set_emin(dtype == REF_F16 ? -23
                                   : -132); /* smallest subnormal 2^-24, 2^-133, as 1/2 * 2^emin */
    mpfr_set_emax(dtype == REF_F16 ? 16 : 128);
    int ternary = mpfr_set_d(t, v, MPFR_RNDN);
    ternary = mpfr_check_range(t, ternary, MPFR_RNDN);
    mpfr_subnormalize(t, ternary, MPFR_RNDN);
    double r = mpfr_get_d(t, MPFR_RNDN);
    mpfr_clear(t);
    mpfr_set_emin(emin);
    mpfr_set_emax(emax);
    return r;
}

static void test_halves(void **unused)
{
    (void)unused;
    for (int b = 0; b < 65536; b++)
        for (ref_dtype d = REF_F16; d <= REF_BF16; d++) {
            double v = ref_half_value(d, (uint16_t)b);
            if (!isnan(v))
                assert_int_equal(ref_half_bits(d, v), b);
        }
    assert_int_equal(ref_half_bits(REF_F16, 1.0), 0x3c00);
    assert_int_equal(ref_half_bits(REF_BF16, -2.0), 0xc000);
    assert_int_equal(ref_half_bits(REF_F16, 65519.99), 0x7bff);
    assert_int_equal(ref_half_bits(REF_F16, 65520.0), 0x7c00);
    assert_int_equal(ref_half_bits(REF_F16, 0x1p-25), 0);
    assert_int_equal(ref_half_bits(REF_F16, 0x1.000001p-25), 1);
    for (int i = 0; i < 100000; i++) {
        double v = ldexp(values_uniform(), (int)(values_random() % 46) - 28),
               w = ldexp(values_uniform(), (int)(values_random() % 270) - 136);
        if (i % 2)
            v = ldexp(nearbyint(ldexp(v, 26)), -26); /* ties are frequent here */
        assert_value(ref_round(REF_F16, v), half_by_mpfr(REF_F16, v));
        assert_value(ref_round(REF_BF16, w), half_by_mpfr(REF_BF16, w));
    }
}

/* Operations in double, rounded to f32, are the f32 operations; also where the result is subnormal.
 */
static void test_double_rounding_is_innocuous(void **unused)
{
    (void)unused;
    for (int i = 0; i < 200000; i++) {
        float a = (float)ldexp(values_uniform(), (int)(values_random() % 140) - 100),
              b = (float)ldexp(values_uniform(), (int)(values_random() % 140) - 60);
        volatile float sum = a + b, product = a * b, quotient = a / b;
        assert_value(ref_round(REF_F32, (double)a + (double)b), (double)sum);
        assert_value(ref_round(REF_F32, (double)a * (double)b), (double)product);
        assert_value(ref_round(REF_F32, (double)a / (double)b), (double)quotient);
        assert_value(ref_sqrt1(REF_F32, fabs((double)a)), (double)sqrtf(fabsf(a)));
    }
    /* The product 1 + 2^-11 + 2^-24 is a tie, and the addend decides: an fma rounded by way of
     * double would not see it. */
    assert_value(ref_fma(REF_F32, 0x1.001p0, 0x1.001p0, 0x1p-80), 0x1.002002p0);
    assert_value(ref_fma(REF_F32, 0x1.001p0, 0x1.001p0, -0x1p-80), 0x1.002p0);
}

static double always_42(double x)
{
    (void)x;
    return 42;
}

static void test_elementary(void **unused)
{
    (void)unused;
    const double inf = (double)INFINITY;
    const ref_f64_table *before = ref_set_f64_functions(NULL);
    assert_value(ref_exp1(REF_F32, 1.0), 0x1.5bf0a8p+1);
    assert_value(ref_exp1(REF_F64, 1.0), 0x1.5bf0a8b145769p+1);
    assert_value(ref_exp1(REF_F32, -103.9), 0x1p-149);
    assert_value(ref_exp1(REF_F32, 89.0), inf);
    assert_value(ref_log1(REF_F32, 2.0), 0x1.62e43p-1);
    assert_value(ref_log1(REF_F32, -0.0), -inf);
    assert_value(ref_sin1(REF_F32, -0.0), -0.0);
    assert_value(ref_sin1(REF_F64, 1.0), 0x1.aed548f090ceep-1);
    assert_value(ref_cos1(REF_F32, 0.0), 1.0);
    assert_value(ref_tanh1(REF_F32, -inf), -1.0);
    assert_value(ref_sigmoid1(REF_F32, 0.0), 0.5);
    assert_value(ref_sigmoid1(REF_F32, -inf), 0.0);
    assert_value(ref_sigmoid1(REF_F32, inf), 1.0);
    assert_value(ref_sigmoid1(REF_F32, -103.0), 0x1p-149); /* e^-103 = 1.3 * 2^-149 */
    assert_value(ref_rsqrt1(REF_F32, -0.0), -inf);
    assert_value(ref_rsqrt1(REF_F64, 0.0), inf);
    assert_value(ref_rsqrt1(REF_F32, 16.0), 0.25);
    assert_value(ref_rsqrt1(REF_F32, inf), 0.0);
    assert_value(ref_pow1(REF_F32, 3.0, -2.0), (double)(float)(1.0 / 9.0));
    assert_value(ref_pow1(REF_F32, 4.0, 1.5), 8.0);
    assert_value(ref_pow1(REF_F32, -2.0, 3.0), -8.0);
    assert_value(ref_pow1(REF_F32, 2.0, 0.25), (double)(float)0x1.306fe0a31b715p+0);
    for (double x = -5; x < 5; x += 0.37)
        assert_near(ref_sigmoid1(REF_F64, x), 1 / (1 + exp(-x)), 1e-15);
    for (double x = -5; x < 5; x += 0.37)
        assert_near(ref_tanh1(REF_F64, x), tanh(x), 1e-15);
    ref_f64_table own = {.exp = always_42};
    ref_set_f64_functions(&own);
    assert_value(ref_exp1(REF_F64, 0.0), 42.0);
    assert_value(ref_exp1(REF_F32, 0.0), 1.0);
    ref_set_f64_functions(before);
}

static double lanes_of(const double *v, int64_t n, int64_t zeros_before, int64_t zeros_after)
{
    ref_lanes s;
    ref_lanes_start(&s, REF_F32);
    for (int64_t i = 0; i < zeros_before; i++)
        ref_lanes_add(&s, i, i % 2 ? 0.0 : -0.0);
    for (int64_t i = 0; i < n; i++)
        ref_lanes_add(&s, zeros_before + i, v[i]);
    for (int64_t i = 0; i < zeros_after; i++)
        ref_lanes_add(&s, zeros_before + n + i, 0.0);
    return ref_lanes_sum(&s);
}

static void test_lanes(void **unused)
{
    (void)unused;
    double v[1000], exact;
    mpfr_t sum;
    mpfr_init2(sum, 2000);
    mpfr_set_zero(sum, 1);
    for (int i = 0; i < 1000; i++) {
        v[i] = ref_round(REF_F32, values_uniform());
        mpfr_add_d(sum, sum, v[i], MPFR_RNDN);
    }
    exact = mpfr_get_d(sum, MPFR_RNDN);
    mpfr_clear(sum);
    assert_near(lanes_of(v, 1000, 0, 0), exact, 1000 * (1000 / 32 + 6) * 0x1p-24);
    for (int64_t z = 0; z < 70; z++)
        assert_value(lanes_of(v, 1000, z, 70 - z), lanes_of(v, 1000, 0, 0));
    assert_value(lanes_of(v, 0, 0, 0), 0.0);
    double minus_zero = -0.0;
    assert_value(lanes_of(&minus_zero, 1, 0, 0), 0.0);
    double cancel[] = {
        0x1p24, 1.0,
        -0x1p24}; /* lanes 0, 1, 2: (2^24 + -2^24) + 1 by the tree, and not (2^24 + 1) - 2^24 = 0 */
    assert_value(lanes_of(cancel, 3, 0, 0), 1.0);
}

/* ---- pointwise ---- */

static void test_pointwise(void **unused)
{
    (void)unused;
    const double nan = (double)NAN, inf = (double)INFINITY;
    for (ref_dtype d = REF_F64; d <= REF_BF16; d++) {
        ref_tensor x = ref_from(d, DIMS(4), VALUES(-2, -0.0, 4, nan)),
                   r = ref_from(d, DIMS(1, 2), VALUES(1, 2)),
                   c = ref_from(d, DIMS(2, 1), VALUES(10, 20)),
                   z = ref_from(d, DIMS(4), VALUES(0.0, 0.0, 5, 1));
        assert_values(ref_neg(&x), d, 4, VALUES(2, 0.0, -4, nan));
        assert_values(ref_abs(&x), d, 4, VALUES(2, 0.0, 4, nan));
        assert_values(ref_square(&x), d, 4, VALUES(4, 0.0, 16, nan));
        assert_values(ref_relu(&x), d, 4, VALUES(0.0, 0.0, 4, nan));
        assert_values(ref_sqrt(&x), d, 4, VALUES(nan, -0.0, 2, nan));
        assert_values(ref_rsqrt(&x), d, 4, VALUES(nan, -inf, 0.5, nan));
        assert_values(ref_scale(&x, 0.5), d, 4, VALUES(-1, -0.0, 2, nan));
        assert_values(ref_shift(&x, 3), d, 4, VALUES(1, 3, 7, nan));
        assert_values(ref_pow(&x, 2), d, 4, VALUES(4, 0.0, 16, nan));
        assert_values(ref_add(&r, &c), d, 4, VALUES(11, 12, 21, 22));
        assert_values(ref_sub(&r, &c), d, 4, VALUES(-9, -8, -19, -18));
        assert_values(ref_mul(&r, &c), d, 4, VALUES(10, 20, 20, 40));
        assert_values(ref_div(&c, &r), d, 4, VALUES(10, 5, 20, 10));
        assert_values(ref_maximum(&x, &z), d, 4, VALUES(0.0, 0.0, 5, nan));
        assert_values(ref_minimum(&x, &z), d, 4, VALUES(-2, -0.0, 4, nan));
        assert_values(ref_eq(&x, &z), REF_BOOL, 4, VALUES(0, 1, 0, 0));
        assert_values(ref_ne(&x, &z), REF_BOOL, 4, VALUES(1, 0, 1, 1));
        assert_values(ref_lt(&x, &z), REF_BOOL, 4, VALUES(1, 0, 1, 0));
        assert_values(ref_le(&x, &z), REF_BOOL, 4, VALUES(1, 1, 1, 0));
        assert_values(ref_gt(&z, &x), REF_BOOL, 4, VALUES(1, 0, 1, 0));
        assert_values(ref_ge(&z, &x), REF_BOOL, 4, VALUES(1, 1, 1, 0));
        ref_tensor lt = ref_lt(&x, &z);
        assert_values(ref_where(&lt, &x, &z), d, 4, VALUES(-2, 0.0, 4, 1));
        FREE(&x, &r, &c, &z, &lt);
    }
    ref_tensor h = ref_from(REF_F16, DIMS(1), VALUES(1)),
               f = ref_from(REF_F32, DIMS(2), VALUES(1, -1));
    assert_values(ref_shift(&h, 0x1p-11), REF_F16, 1, VALUES(1)); /* exact in f32, a tie in f16 */
    assert_values(ref_silu(&f), REF_F32, 2,
                  VALUES((double)(float)0x1.764d4f5d5a2bdp-1,
                         (double)(float)-0x1.136561454ba86p-2));
    assert_values(ref_scale(&f, 0.1), REF_F32, 2, VALUES((double)0.1f, -(double)0.1f));
    FREE(&h, &f);
}

static void test_cast(void **unused)
{
    (void)unused;
    const double nan = (double)NAN, inf = (double)INFINITY;
    ref_tensor x = ref_from(REF_F64, DIMS(5), VALUES(-1.75, 0x1.002000001p0, nan, -0.0, 70000));
    assert_values(ref_cast(&x, REF_I64), REF_I64, 5, VALUES(-1, 1, 0, 0, 70000));
    assert_values(ref_cast(&x, REF_BOOL), REF_BOOL, 5, VALUES(1, 1, 1, 0, 1));
    assert_values(ref_cast(&x, REF_F16), REF_F16, 5,
                  VALUES(-1.75, 0x1.004p0, nan, -0.0, inf)); /* by f32 it would be a tie, to 1 */
    assert_values(ref_cast(&x, REF_BF16), REF_BF16, 5, VALUES(-1.75, 1, nan, -0.0, 70144));
    /* The low 1 of the second and third decides a tie of bf16 and of f32, and would be lost in f64
     * on the way. */
    int64_t big[] = {(1 << 24) + 1, 257 * ((int64_t)1 << 54) + 1,
                     ((int64_t)1 << 62) + ((int64_t)1 << 38) + 1, -65519, INT64_MIN};
    ref_tensor n = ref_from_i64(DIMS(5), big);
    assert_values(ref_cast(&n, REF_F32), REF_F32, 5,
                  VALUES(0x1p24, 257 * 0x1p54, 0x1p62 + 0x1p39, -65519, -0x1p63));
    assert_values(ref_cast(&n, REF_BF16), REF_BF16, 5,
                  VALUES(0x1p24, 129 * 0x1p55, 0x1p62, -65536, -0x1p63));
    assert_values(ref_cast(&n, REF_F16), REF_F16, 5, VALUES(inf, inf, inf, -65504, -inf));
    FREE(&x, &n);
}

/* ---- reductions ---- */

static void test_sums(void **unused)
{
    (void)unused;
    const double nan = (double)NAN;
    double v[24];
    for (int i = 0; i < 24; i++)
        v[i] = i;
    ref_tensor x = ref_from(REF_F32, DIMS(2, 3, 4), v);
    assert_values(ref_sum(&x, 1u << 2, 0, NULL), REF_F32, 6, VALUES(6, 22, 38, 54, 70, 86));
    assert_values(ref_sum(&x, 1u << 1 | 1u << 2, 1, NULL), REF_F32, 2, VALUES(66, 210));
    assert_values(ref_sum(&x, 1u << 0 | 1u << 2, 0, NULL), REF_F32, 3, VALUES(60, 92, 124));
    assert_values(ref_sum(&x, 1u << 0 | 1u << 1, 0, NULL), REF_F32, 4, VALUES(60, 66, 72, 78));
    assert_values(ref_sum(&x, 7u, 0, NULL), REF_F32, 1, VALUES(276));
    assert_values(ref_mean(&x, 1u << 1, 0), REF_F32, 8, VALUES(4, 5, 6, 7, 16, 17, 18, 19));
    assert_values(ref_mean(&x, 7u, 0), REF_F32, 1, VALUES(11.5));
    assert_values(ref_max(&x, 1u << 0 | 1u << 2, 0), REF_F32, 3, VALUES(15, 19, 23));
    assert_values(ref_argmax(&x, 1, 0), REF_I64, 8, VALUES(2, 2, 2, 2, 2, 2, 2, 2));
    assert_values(ref_sum_to(&x, DIMS(3, 1), NULL), REF_F32, 3, VALUES(60, 92, 124));
    assert_values(ref_sum_to(&x, DIMS(4), NULL), REF_F32, 4, VALUES(60, 66, 72, 78));
    ref_tensor acc = ref_from(REF_F64, DIMS(4), VALUES(0.5, 1, 1, 0));
    assert_values(ref_sum_to(&x, DIMS(4), &acc), REF_F32, 4, VALUES(60.5, 67, 73, 78));
    assert_values(ref_copy(&acc), REF_F64, 4, VALUES(60.5, 67, 73, 78));
    FREE(&x, &acc);

    /* A row is summed in f32 by lanes, a fold in f64: 1 is lost in the one and kept in the other.
     */
    double w[33] = {0x1p24};
    w[1] = -0x1p24;
    w[32] = 1;
    ref_tensor row = ref_from(REF_F32, DIMS(1, 33), w), fold = ref_from(REF_F32, DIMS(33), w);
    ref_tensor h = ref_new(REF_F16, DIMS(1, 128)), empty = ref_new(REF_F32, DIMS(0, 3));
    assert_values(ref_sum(&row, 2u, 0, NULL), REF_F32, 1, VALUES(0.0));
    assert_values(ref_sum(&fold, 1u, 0, NULL), REF_F32, 1, VALUES(1));
    for (int i = 0; i < 128; i++)
        ref_set(&h, i, 1000);
    assert_values(ref_mean(&h, 2u, 0), REF_F16, 1, VALUES(1000));
    assert_values(ref_sum(&empty, 3u, 0, NULL), REF_F32, 1, VALUES(0.0));
    assert_values(ref_sum(&empty, 1u, 0, NULL), REF_F32, 3, VALUES(0.0, 0.0, 0.0));
    FREE(&row, &fold, &h, &empty);

    ref_tensor m = ref_from(REF_F16, DIMS(3, 3), VALUES(-0.0, 0.0, 0.0, 7, nan, nan, 2, 5, 5));
    assert_values(ref_max(&m, 2u, 0), REF_F16, 3, VALUES(0.0, nan, 5));
    assert_values(ref_argmax(&m, 1, 1), REF_I64, 3, VALUES(1, 1, 1));
    FREE(&m);
}

static void test_matmul(void **unused)
{
    (void)unused;
    ref_tensor a = ref_from(REF_BF16, DIMS(2, 2), VALUES(1, 2, 3, 4)),
               b = ref_from(REF_BF16, DIMS(2, 2), VALUES(5, 6, 7, 8));
    assert_values(ref_matmul(&a, &b, REF_BF16, 0, 0, NULL, NULL), REF_BF16, 4,
                  VALUES(19, 22, 43, 50));
    ref_tensor acc = ref_from(REF_F32, DIMS(2, 2), VALUES(1, 1, 1, 0.5));
    assert_values(ref_matmul(&a, &b, REF_F32, 0, 0, NULL, &acc), REF_F32, 4,
                  VALUES(20, 23, 44, 50.5));
    assert_values(ref_copy(&acc), REF_F32, 4, VALUES(20, 23, 44, 50.5));
    FREE(&a, &b, &acc);

    /* Batches broadcast; a batch dim that the output lacks is the outer part of the chain: equal to
     * the flattened product. */
    ref_tensor x = values_tensor(REF_F32, DIMS(3, 2, 5)), y = values_tensor(REF_F32, DIMS(3, 5, 4)),
               w = values_tensor(REF_F32, DIMS(5, 4));
    ref_tensor xt = ref_new(REF_F32, DIMS(2, 15)), yf = ref_copy(&y);
    yf.ndim = 2, yf.dim[0] = 15, yf.dim[1] = 4;
    for (int64_t n = 0; n < 3; n++)
        for (int64_t i = 0; i < 2; i++)
            for (int64_t k = 0; k < 5; k++)
                ref_set(&xt, i * 15 + n * 5 + k, ref_get(&x, (n * 2 + i) * 5 + k));
    ref_tensor s = ref_matmul(&x, &y, REF_F32, 0, DIMS(2, 4), NULL),
               flat = ref_matmul(&xt, &yf, REF_F32, 0, 0, NULL, NULL);
    assert_true(ref_same_bits(&s, &flat));
    ref_tensor xw = ref_matmul(&x, &w, REF_F32, 0, 0, NULL, NULL),
               second = ref_slice(&x, 0, 1, 2, 1), part = ref_slice(&xw, 0, 1, 2, 1);
    ref_tensor one = ref_matmul(&second, &w, REF_F32, 0, 0, NULL, NULL);
    assert_true(ref_same_bits(&part, &one));

    /* The chain in f64: 2^24 + 1 - 2^24. */
    ref_tensor p = ref_from(REF_F32, DIMS(1, 3), VALUES(0x1p24, 1, -0x1p24)),
               ones = ref_from(REF_F32, DIMS(3, 1), VALUES(1, 1, 1));
    assert_values(ref_matmul(&p, &ones, REF_F32, 0, 0, NULL, NULL), REF_F32, 1, VALUES(0.0));
    assert_values(ref_matmul(&p, &ones, REF_F32, 1, 0, NULL, NULL), REF_F32, 1, VALUES(1));
    FREE(&x, &y, &w, &xt, &yf, &s, &flat, &xw, &second, &part, &one, &p, &ones);
}

/* 3.4: the first two rows, then the other three, from the same accumulator, give the bits of all
 * five at once. */
static void test_continuing(void **unused)
{
    (void)unused;
    ref_tensor x = values_tensor(REF_F32, DIMS(5, 40)), dy = values_tensor(REF_F32, DIMS(5, 40)),
               r = values_tensor(REF_F32, DIMS(5, 1));
    ref_tensor x1 = ref_slice(&x, 0, 0, 2, 1), x2 = ref_slice(&x, 0, 2, 5, 1),
               dy1 = ref_slice(&dy, 0, 0, 2, 1), dy2 = ref_slice(&dy, 0, 2, 5, 1),
               r1 = ref_slice(&r, 0, 0, 2, 1), r2 = ref_slice(&r, 0, 2, 5, 1);
    ref_tensor acc = ref_new(REF_F64, DIMS(1)), all = ref_sum(&x, 3u, 0, NULL);
    ref_tensor a = ref_sum(&x1, 3u, 0, &acc), b = ref_sum(&x2, 3u, 0, &acc);
    assert_true(ref_same_bits(&all, &b));
    FREE(&acc, &all, &a, &b);
    acc = ref_new(REF_F64, DIMS(40));
    ref_rms_norm_grad(&dy, &x, NULL, &r, 1, NULL, &all, NULL);
    ref_rms_norm_grad(&dy1, &x1, NULL, &r1, 1, NULL, &a, &acc);
    ref_rms_norm_grad(&dy2, &x2, NULL, &r2, 1, NULL, &b, &acc);
    assert_true(ref_same_bits(&all, &b));
    FREE(&acc, &all, &a, &b);
    ref_tensor t = ref_permute(&x, (int[]){1, 0}), t1 = ref_permute(&x1, (int[]){1, 0}),
               t2 = ref_permute(&x2, (int[]){1, 0});
    acc = ref_new(REF_F32, DIMS(40, 40));
    all = ref_matmul(&t, &dy, REF_F32, 0, 0, NULL, NULL);
    a = ref_matmul(&t1, &dy1, REF_F32, 0, 0, NULL, &acc);
    b = ref_matmul(&t2, &dy2, REF_F32, 0, 0, NULL, &acc);
    assert_true(ref_same_bits(&all, &b));
    FREE(&acc, &all, &a, &b, &t, &t1, &t2, &x, &dy, &r, &x1, &x2, &dy1, &dy2, &r1, &r2);
}

const struct CMUnitTest tl_tests_ref[] = {
    cmocka_unit_test(test_halves),     cmocka_unit_test(test_double_rounding_is_innocuous),
    cmocka_unit_test(test_elementary), cmocka_unit_test(test_lanes),
    cmocka_unit_test(test_pointwise),  cmocka_unit_test(test_cast),
    cmocka_unit_test(test_sums),       cmocka_unit_test(test_matmul),
    cmocka_unit_test(test_continuing),
};
const size_t tl_tests_ref_count = sizeof tl_tests_ref / sizeof *tl_tests_ref;
