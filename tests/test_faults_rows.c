/* Faults that other systems have had in rows: products, means, empty dims, and rows that depend on
 * their neighbours. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include <tally.h>

#include "tests/support/expect.h"
#include "tests/support/fresh.h"

extern const struct CMUnitTest tl_tests_faults_rows[];
extern const size_t tl_tests_faults_rows_count;

static const tl_dtype floats[] = {TL_F64, TL_F32, TL_F16, TL_BF16};

/* ---- addmm, mean, matmul with another dtype ---- */

static void addmm_heeds_alpha_and_beta(void **unused)
{
    static const double c[] = {1, 2, 3, 4}, a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8},
                        ab[] = {19, 22, 43, 50};
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_tensor x[3] = {tl_cast(t, tl_data(t, c, TL_F64, TL_DIMS(2, 2)), floats[d]),
                          tl_cast(t, tl_data(t, a, TL_F64, TL_DIMS(2, 2)), floats[d]),
                          tl_cast(t, tl_data(t, b, TL_F64, TL_DIMS(2, 2)), floats[d])};
        tl_tensor y = tl_addmm(t, x[0], x[1], x[2], 3, 0.5),
                  z = tl_addmm(t, x[0], x[1], x[2], 1, 1), w = tl_addmm(t, x[0], x[1], x[2], 0, 2);
        for (int i = 0; i < 4; i++) {
            assert_true(element_of(t, y, i) == 3 * c[i] + 0.5 * ab[i]);
            assert_true(element_of(t, z, i) == c[i] + ab[i]);
            assert_true(element_of(t, w, i) == 2 * ab[i]);
        }
        tl_tensor nan = tl_fill(t, floats[d], TL_DIMS(2, 2), (double)NAN);
        expect_same(t, tl_addmm(t, nan, x[1], x[2], 0, 2), w, "beta = 0 does not read c");
    }
}

static void addmm_heeds_alpha_and_beta_in_its_gradients(void **unused)
{
    (void)unused;
    tl_tensor x[3] = {noise_leaf(t, "c", TL_F64, TL_DIMS(4)),
                      noise_leaf(t, "a", TL_F64, TL_DIMS(3, 5)),
                      noise_leaf(t, "b", TL_F64, TL_DIMS(5, 4))},
              g[2][3];
    for (int i = 0; i < 3; i++)
        tl_require_grad(t, x[i]);
    for (int k = 0; k < 2; k++)
        tl_gradients(t,
                     tl_sum(t, tl_addmm(t, x[0], x[1], x[2], k ? 4 : 1, k ? 8 : 1), TL_ALL, false),
                     x, 3, TL_NONE, g[k]);
    expect_ok(t, "addmm");
    expect_same(t, g[1][0], tl_scale(t, g[0][0], 4), "dc = beta * sum dy");
    expect_same(t, g[1][1], tl_scale(t, g[0][1], 8), "da = alpha * dy b'");
    expect_same(t, g[1][2], tl_scale(t, g[0][2], 8), "db = alpha * a' dy");
    assert_true(element_of(t, g[0][0], 0) == 3);
}

static void a_mean_over_no_dims_is_no_sum(void **unused)
{
    const tl_shape none = {0, {0}};
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_tensor x = noise_leaf(t, "x", floats[d], TL_DIMS(3, 5));
        expect_same(t, tl_mean(t, x, none, false), x, "mean over no dims");
        expect_same(t, tl_sum(t, x, none, true), x, "sum over no dims");
        assert_true(has_shape(t, tl_mean(t, x, TL_ALL, false), TL_SCALAR));
    }
    tl_tensor x = noise_leaf(t, "x", TL_F64, TL_DIMS(3, 5)), dx;
    tl_require_grad(t, x);
    tl_tensor dy = noise_leaf(t, "dy", TL_F64, TL_DIMS(3, 5));
    tl_gradients(t, tl_mean(t, x, none, false), &x, 1, dy, &dx);
    expect_same(t, dx, dy, "and its gradient");
}

static void a_mean_rounds_once_and_after_the_division(void **unused)
{
    (void)unused;
    for (int64_t n = 64; n <= 1 << 12; n *= 2) {
        tl_tensor x = tl_fill(t, TL_F16, TL_DIMS(3, n), 1000);
        tl_tensor mean[] = {tl_mean(t, x, TL_DIMS(-1), false),
                            tl_mean(t, tl_transpose(t, x, 0, 1), TL_DIMS(0), false),
                            tl_mean(t, x, TL_ALL, true)};
        for (int k = 0; k < 3; k++)
            assert_true(element_of(t, mean[k], 0) == 1000);
    }
    assert_true(
        isinf(element_of(t, tl_sum(t, tl_fill(t, TL_F16, TL_DIMS(128), 1000), TL_ALL, false),
                         0))); /* a sum of that size is none in f16 */
}

static void a_wide_product_was_never_narrow(void **unused)
{
    static const double a[] = {1, 1}, b[] = {100, 100, 0, 0.0625};
    (void)unused;
    tl_tensor x = tl_cast(t, tl_data(t, a, TL_F64, TL_DIMS(1, 2)), TL_BF16),
              w = tl_cast(t, tl_data(t, b, TL_F64, TL_DIMS(2, 2)), TL_BF16);
    tl_tensor wide = tl_matmul_to(t, x, w, TL_F32), narrow = tl_matmul(t, x, w);
    assert_int_equal(tl_dtype_of(t, wide), TL_F32);
    assert_true(element_of(t, wide, 0) == 100 && element_of(t, wide, 1) == 100.0625);
    assert_true(element_of(t, narrow, 0) == 100 &&
                element_of(t, narrow, 1) == 100); /* in bf16 they tie */
    assert_true(element_of(t, tl_argmax(t, wide, -1, false), 0) == 1);
}

/* ---- nothing in a dim ---- */

static void rows_of_no_elements_and_no_rows_are_no_error(void **unused)
{
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_tensor wide = tl_zeros(t, floats[d], TL_DIMS(4, 0)),
                  high = tl_zeros(t, floats[d], TL_DIMS(0, 4)),
                  w = noise_leaf(t, "w", floats[d], TL_DIMS(4, 3));
        tl_require_grad(t, wide);
        tl_require_grad(t, high);
        assert_true(has_shape(t, tl_softmax(t, wide, -1), TL_DIMS(4, 0)));
        assert_true(has_shape(t, tl_log_softmax(t, wide, -1), TL_DIMS(4, 0)));
        assert_true(has_shape(t, tl_log_softmax(t, high, -1), TL_DIMS(0, 4)));
        assert_true(has_shape(t, tl_rms_norm(t, wide, TL_NONE, 1e-5), TL_DIMS(4, 0)));
        assert_true(has_shape(t, tl_rms_norm(t, high, TL_NONE, 1e-5), TL_DIMS(0, 4)));
        assert_true(has_shape(t, tl_mm(t, high, w), TL_DIMS(0, 3)));
        assert_true(has_shape(t, tl_mean(t, high, TL_DIMS(1), false), TL_DIMS(0)));
        tl_tensor none = tl_mm(t, wide, tl_fill(t, floats[d], TL_DIMS(0, 3), 0)),
                  sum = tl_sum(t, wide, TL_DIMS(1), false);
        assert_true(has_shape(t, none, TL_DIMS(4, 3)) && element_of(t, none, 11) == 0);
        assert_true(has_shape(t, sum, TL_DIMS(4)) && element_of(t, sum, 3) == 0);
        assert_true(isnan(element_of(t, tl_mean(t, wide, TL_DIMS(1), false), 3)));
        tl_backward(t, tl_sum(t,
                              tl_add(t, tl_mm(t, high, w),
                                     tl_sum(t, tl_log_softmax(t, wide, -1), TL_ALL, false)),
                              TL_ALL, false));
        expect_ok(t, "empty dims");
        assert_true(has_shape(t, tl_grad(t, wide), TL_DIMS(4, 0)) &&
                    has_shape(t, tl_grad(t, high), TL_DIMS(0, 4)));
        expect_ok(t, "gradients of empty dims");
    }
    tl_tensor empty = tl_fill(t, TL_F32, TL_DIMS(5, 0), 0);
    assert_true(has_shape(t, tl_reshape(t, empty, TL_DIMS(0)), TL_DIMS(0)));
    assert_true(has_shape(t, tl_reshape(t, empty, TL_DIMS(7, 0)), TL_DIMS(7, 0)));
    assert_true(tl_is_none(
        tl_reshape(t, empty,
                   TL_DIMS(-1, 0)))); /* any size would do: which one is meant is not known */
    expect_failure(t, TL_ESHAPE, "reshape");
}

/* ---- rows that depend on their neighbours ---- */

static void a_row_does_not_know_how_many_others_there_are(void **unused)
{
    static const int64_t counts[] = {1, 2, 3, 5, 8, 16, 17, 31, 64, 70};
    enum { ROWS = 70, N = 129 };
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_tensor x = noise_leaf(t, "x", floats[d], TL_DIMS(ROWS, N)),
                  w = noise_leaf(t, "w", floats[d], TL_DIMS(N, 37)),
                  b = noise_leaf(t, "b", floats[d], TL_DIMS(37)),
                  g = noise_leaf(t, "g", floats[d], TL_DIMS(N));
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            int64_t n = counts[i], from = (ROWS - n) / 2;
            tl_tensor some = tl_slice(t, x, 0, from, from + n, 1);
#define ROWWISE(what, f)                                                 \
    do {                                                                 \
        tl_tensor in = x, all = f;                                       \
        in = some;                                                       \
        expect_same(t, f, tl_slice(t, all, 0, from, from + n, 1), what); \
    } while (0)
            ROWWISE("mm", tl_mm(t, in, w));
            ROWWISE("addmm", tl_addmm(t, b, in, w, 0.3, 1.7));
            ROWWISE("matmul_to", tl_matmul_to(t, in, w, d == 0 ? TL_F64 : TL_F32));
            ROWWISE("matmul_acc64", tl_matmul_acc64(t, in, w));
            ROWWISE("log_softmax", tl_log_softmax(t, in, -1));
            ROWWISE("softmax", tl_softmax(t, in, -1));
            ROWWISE("mean", tl_mean(t, in, TL_DIMS(-1), false));
            ROWWISE("rms_norm", tl_rms_norm(t, in, g, 1e-6));
            ROWWISE("layer_norm", tl_layer_norm(t, in, g, g, 1e-6));
        }
        expect_ok(t, "rows");
        tl_tape_reset(t);
    }
}

const struct CMUnitTest tl_tests_faults_rows[] = {
    TEST(addmm_heeds_alpha_and_beta),
    TEST(addmm_heeds_alpha_and_beta_in_its_gradients),
    TEST(a_mean_over_no_dims_is_no_sum),
    TEST(a_mean_rounds_once_and_after_the_division),
    TEST(a_wide_product_was_never_narrow),
    TEST(rows_of_no_elements_and_no_rows_are_no_error),
    TEST(a_row_does_not_know_how_many_others_there_are),
};
const size_t tl_tests_faults_rows_count = sizeof tl_tests_faults_rows /
                                          sizeof tl_tests_faults_rows[0];
