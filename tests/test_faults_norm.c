/* Faults that other systems have had in rms_norm: eps, rows of zeros, infinities, NaNs, no rows,
 * large halves. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include <tally.h>

#include "tests/support/expect.h"
#include "tests/support/fresh.h"

extern const struct CMUnitTest tl_tests_faults_norm[];
extern const size_t tl_tests_faults_norm_count;

static const tl_dtype floats[] = {TL_F64, TL_F32, TL_F16, TL_BF16};

static void no_eps_means_the_compute_types(void **unused)
{
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_tensor zero = tl_fill(t, floats[d], TL_DIMS(2, 5), 0),
                  x = tl_scale(t, noise_leaf(t, "x", floats[d], TL_DIMS(2, 5)), 0x1p-12), rstd;
        double eps = d == 0 ? 0x1p-52 : 0x1p-23;
        tl_rms_norm_rstd(t, zero, TL_NONE, (double)NAN, &rstd);
        assert_true(element_of(t, rstd, 0) == (d == 0 ? 0x1p26 : (double)(float)sqrt(0x1p23)));
        expect_same(t, tl_rms_norm(t, x, TL_NONE, (double)NAN), tl_rms_norm(t, x, TL_NONE, eps),
                    "rms_norm without eps");
        expect_same(t, tl_layer_norm(t, x, TL_NONE, TL_NONE, (double)NAN),
                    tl_layer_norm(t, x, TL_NONE, TL_NONE, eps), "layer_norm without eps");
    }
    tl_rms_norm(t, tl_fill(t, TL_F32, TL_DIMS(2, 5), 0), TL_NONE, -1e-9);
    expect_failure(t, TL_EDOMAIN, "rms_norm");
}

static tl_tensor normed(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    tl_tensor rms = tl_rms_norm(on, in[0], TL_NONE, (double)NAN), sum;
    (void)n, (void)ctx;
    sum = tl_add_rms_norm(on, in[0], in[0], TL_NONE, (double)NAN, NULL, NULL);
    return tl_add(on, tl_add(on, rms, sum),
                  tl_layer_norm(on, in[0], TL_NONE, TL_NONE, (double)NAN));
}

/* So it does where the check runs the call again in f64, of rows that are as small as eps. */
static void no_eps_is_checked_as_it_was(void **unused)
{
    static const float x[2][4] = {{1e-3f, -2e-3f, 1.5e-3f, 4e-4f}, {0, 3e-4f, 1e-4f, -1e-4f}};
    (void)unused;
    tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(2, 4));
    if (tl_gradcheck(t, normed, &in, 1, NULL) != TL_RIGHT)
        fail_msg("%s", tl_error(t));
}

/* y and dx of rms_norm without gamma; dy = 1, 2, 3, ... */
static void norm_of(const double *x, tl_shape s, tl_dtype d, double eps, tl_tensor *y,
                    tl_tensor *rstd, tl_tensor *dx)
{
    tl_tensor in = leaf_of(t, tl_data(t, x, TL_F64, s), d), dy = tl_zeros(t, TL_F64, s);
    tl_array a;
    tl_require_grad(t, in);
    assert_true(tl_array_of(t, dy, &a));
    for (int64_t i = 0; i < tl_array_count(&a); i++)
        ((double *)a.data)[i] = (double)(i + 1);
    *y = tl_rms_norm_rstd(t, in, TL_NONE, eps, rstd);
    tl_gradients(t, *y, &in, 1, tl_cast(t, dy, d), dx);
    expect_ok(t, "rms_norm");
}

static void rms_norm_of_a_row_of_zeros(void **unused)
{
    static const double x[] = {0, 0, 0, 0, 1, 2, 3, 4};
    tl_tensor y, rstd, dx;
    (void)unused;
    for (int d = 0; d < 4; d++) {
        norm_of(x, TL_DIMS(2, 4), floats[d], 0.0625, &y, &rstd, &dx);
        for (int i = 0; i < 4; i++) {
            assert_true(element_of(t, y, i) == 0);
            assert_true(element_of(t, dx, i) == 4.0 * (i + 1));
        }
        assert_true(element_of(t, rstd, 0) == 4);
        norm_of(x, TL_DIMS(2, 4), floats[d], 0, &y, &rstd, &dx);
        for (int i = 0; i < 4; i++) {
            assert_true(isnan(element_of(t, y, i)));
            assert_true(isnan(element_of(t, dx, i)));
            assert_true(isfinite(element_of(t, y, i + 4)) &&
                        isfinite(element_of(t, dx, i + 4))); /* its row alone */
        }
    }
}

static void rms_norm_of_infinities_and_nans(void **unused)
{
    static const double x[] = {1, (double)INFINITY, -3, 4, 1, (double)NAN, 3, 4, 1, 2, 3, 4};
    tl_tensor y, rstd, dx;
    (void)unused;
    for (int d = 0; d < 4; d++) {
        norm_of(x, TL_DIMS(3, 4), floats[d], 1e-5, &y, &rstd, &dx);
        assert_true(element_of(t, rstd, 0) == 0);
        for (int i = 0; i < 4; i++) {
            assert_true(i == 1 ? isnan(element_of(t, y, i)) : element_of(t, y, i) == 0);
            assert_true(isnan(element_of(t, y, 4 + i)));
            assert_true(isfinite(element_of(t, y, 8 + i)) && isfinite(element_of(t, dx, 8 + i)));
        }
    }
}

static void rms_norm_of_no_rows(void **unused)
{
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_tensor x = tl_zeros(t, floats[d], TL_DIMS(0, 4)),
                  gamma = noise_leaf(t, "g", floats[d], TL_DIMS(4)), rstd;
        tl_require_grad(t, x);
        tl_require_grad(t, gamma);
        tl_tensor y = tl_rms_norm_rstd(t, x, gamma, 1e-5, &rstd);
        tl_backward(t, tl_sum(t, y, TL_ALL, false));
        expect_ok(t, "no rows");
        assert_true(has_shape(t, y, TL_DIMS(0, 4)) && has_shape(t, rstd, TL_DIMS(0, 1)));
        for (int i = 0; i < 4; i++)
            assert_true(element_of(t, tl_grad(t, gamma), i) == 0);
    }
}

static void rms_norm_of_large_halves(void **unused)
{
    static const double x[] = {1e4, -1e4, 1e4, 1e4, 6e4, 6e4, 6e4, -6e4};
    tl_tensor y, rstd, dx;
    (void)unused;
    norm_of(x, TL_DIMS(2, 4), TL_F16, 1e-5, &y, &rstd, &dx);
    for (int i = 0; i < 8; i++) {
        assert_true(element_of(t, y, i) == (x[i] > 0 ? 1 : -1));
        assert_true(isfinite(element_of(t, dx, i)));
    }
    tl_tensor big = tl_cast(t, tl_data(t, x, TL_F64, TL_DIMS(2, 4)), TL_F16);
    assert_true(element_of(t, tl_layer_norm(t, big, TL_NONE, TL_NONE, 1e-5), 1) < -1.7);
}

static void rstd_has_xs_rank_and_a_gradient(void **unused)
{
    (void)unused;
    static const tl_shape gammas[] = {{1, {8}}, {2, {4, 8}}, {3, {3, 4, 8}}, {4, {2, 3, 4, 8}}};
    static const tl_shape wants[] = {{4, {2, 3, 4, 1}},
                                     {4, {2, 3, 1, 1}},
                                     {4, {2, 1, 1, 1}},
                                     {4, {1, 1, 1, 1}}};
    for (int d = 0; d < 4; d++)
        for (int k = 0; k < 4; k++) {
            tl_tensor x = noise_leaf(t, "x", floats[d], TL_DIMS(2, 3, 4, 8)),
                      gamma = noise_leaf(t, "g", floats[d], gammas[k]), rstd;
            tl_require_grad(t, x);
            tl_rms_norm_rstd(t, x, gamma, 1e-5, &rstd);
            expect_ok(t, "gamma over several dims");
            assert_true(has_shape(t, rstd, wants[k]));
            assert_int_equal(tl_dtype_of(t, rstd), d == 0 ? TL_F64 : TL_F32);
            tl_backward(t, tl_sum(t, rstd, TL_ALL, false));
            expect_ok(t, "rstd alone in the loss");
            tl_tensor dx = tl_grad(t, x);
            for (int i = 0; i < 8; i++) /* a larger row has a smaller rstd */
                assert_true(element_of(t, dx, i) * element_of(t, x, i) < 0);
        }
    tl_tensor eight = noise_leaf(t, "x", TL_F32, TL_DIMS(2, 1, 2, 1, 2, 1, 2, 3)), rstd;
    tl_rms_norm_rstd(t, eight, noise_leaf(t, "g", TL_F32, TL_DIMS(2, 1, 2, 3)), 1e-5, &rstd);
    assert_true(has_shape(t, rstd, TL_DIMS(2, 1, 2, 1, 1, 1, 1, 1)));
}

/* x of 1 to 8 dims, gamma over any number of the last: the bits of the same rows in two dims,
 * forward and backward. */
static void every_rank_and_every_k(void **unused)
{
    static const int64_t sizes[8] = {2, 3, 1, 2, 3, 2, 1, 5};
    (void)unused;
    for (int rank = 1; rank <= 8; rank++)
        for (int k = 0; k <= rank; k++) { /* 0: no gamma */
            tl_shape s = {.ndim = rank}, tail = {.ndim = k}, stat;
            int64_t rows = 1, n = 1;
            for (int i = 0; i < rank; i++) {
                s.dim[i] = sizes[8 - rank + i];
                *(i < rank - (k > 0 ? k : 1) ? &rows : &n) *= s.dim[i];
            }
            stat = s;
            for (int i = rank - (k > 0 ? k : 1); i < rank; i++) {
                stat.dim[i] = 1;
                tail.dim[i - rank + (k > 0 ? k : 1)] = s.dim[i];
            }
            tl_tensor x[2], g[2], y[2], rstd[2], dx[2], dg[2] = {TL_NONE, TL_NONE};
            for (int flat = 0; flat < 2; flat++) {
                tl_tensor in[2] = {noise_leaf(t, "x", TL_F32, flat ? TL_DIMS(rows, n) : s),
                                   k > 0 ? noise_leaf(t, "g", TL_F32, flat ? TL_DIMS(n) : tail)
                                         : TL_NONE};
                tl_require_grad(t, x[flat] = in[0]);
                if (k > 0)
                    tl_require_grad(t, in[1]);
                g[flat] = in[1];
                y[flat] = tl_rms_norm_rstd(t, x[flat], g[flat], 1e-5, &rstd[flat]);
                tl_backward(t, y[flat],
                            .cotangent = noise_leaf(t, "dy", TL_F32, flat ? TL_DIMS(rows, n) : s),
                            .retain = true);
                dx[flat] = tl_grad(t, x[flat]);
                if (k > 0)
                    dg[flat] = tl_grad(t, g[flat]);
            }
            expect_ok(t, "a rank");
            assert_true(has_shape(t, rstd[0], stat));
            expect_same(t, tl_reshape(t, y[0], TL_DIMS(rows, n)), y[1], "y");
            expect_same(t, tl_reshape(t, rstd[0], TL_DIMS(rows, 1)), rstd[1], "rstd");
            expect_same(t, tl_reshape(t, dx[0], TL_DIMS(rows, n)), dx[1], "dx");
            if (k > 0)
                expect_same(t, tl_reshape(t, dg[0], TL_DIMS(n)), dg[1], "dgamma");
            tl_tape_reset(t);
        }
}

/* One rounding at the end: one more, of x * rstd before gamma, gives other bits somewhere, and
 * dgamma is f32 whatever gamma is. */
static void the_product_with_gamma_is_rounded_once(void **unused)
{
    (void)unused;
    for (int d = 2; d < 4; d++) {
        tl_tensor x = noise_leaf(t, "x", floats[d], TL_DIMS(20, 16)),
                  g = noise_leaf(t, "g", floats[d], TL_DIMS(16)), rstd;
        tl_require_grad(t, g);
        tl_tensor y = tl_rms_norm_rstd(t, x, g, 1e-5, &rstd),
                  wide = tl_mul(t, tl_mul(t, tl_cast(t, x, TL_F32), rstd), tl_cast(t, g, TL_F32));
        expect_same(t, y, tl_cast(t, wide, floats[d]), "y");
        tl_tensor twice = tl_mul(t, tl_rms_norm(t, x, TL_NONE, 1e-5), g);
        double apart = 0;
        for (int64_t i = 0; i < 320; i++)
            apart = fmax(apart, fabs(element_of(t, y, i) - element_of(t, twice, i)));
        assert_true(apart > 0);
        tl_backward(t, tl_sum(t, y, TL_ALL, false));
        assert_int_equal(tl_dtype_of(t, tl_grad(t, g)), TL_F32);
    }
}

const struct CMUnitTest tl_tests_faults_norm[] = {
    TEST(no_eps_means_the_compute_types),
    TEST(rms_norm_of_a_row_of_zeros),
    TEST(no_eps_is_checked_as_it_was),
    TEST(rms_norm_of_infinities_and_nans),
    TEST(rms_norm_of_no_rows),
    TEST(rms_norm_of_large_halves),
    TEST(rstd_has_xs_rank_and_a_gradient),
    TEST(every_rank_and_every_k),
    TEST(the_product_with_gamma_is_rounded_once),
};
const size_t tl_tests_faults_norm_count = sizeof tl_tests_faults_norm /
                                          sizeof tl_tests_faults_norm[0];
