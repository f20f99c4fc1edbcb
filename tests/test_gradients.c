/* Gradients of any value by any others, gradients of gradients, Hessian-vector products. What the
 * checker says: test_gradients_checker.c, test_curve.c. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include <tally.h>

#include "tests/support/functions.h"

extern const struct CMUnitTest tl_tests_gradients[];
extern const size_t tl_tests_gradients_count;

static tl_tensor leaf(int n, const double *x)
{
    tl_tensor l = tl_data(t, x, TL_F64, TL_DIMS(n));
    tl_require_grad(t, l);
    return l;
}
#define LEAF(...) \
    leaf((int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (const double[]){__VA_ARGS__})

static void is(tl_tensor x, int n, const double *want, const char *what)
{
    expect_ok(t, what);
    for (int i = 0; i < n; i++)
        if (!(fabs(element_of(t, x, i) - want[i]) <= 1e-13 * fmax(1, fabs(want[i]))))
            fail_msg("%s: element %d is %.17g, not %.17g", what, i, element_of(t, x, i), want[i]);
}
#define IS(x, ...)                                                                                \
    is(x, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (const double[]){__VA_ARGS__}, \
       #x)

/* ---- known derivatives ---- */

static void known_derivatives(void **unused)
{
    tl_tensor dx[2];
    (void)unused;
    tl_tensor x = LEAF(1, 2, 3), y = LEAF(4, 5, 6), in[] = {x, y};
    tl_gradients(t, sum(tl_mul(t, tl_square(t, x), y)), in, 2, TL_NONE, dx);
    IS(dx[0], 8, 20, 36);
    IS(dx[1], 1, 4, 9);
    tl_gradients(t, tl_mul(t, x, y), in, 2, LEAF(1, 10, 100), dx); /* with a cotangent */
    IS(dx[0], 4, 50, 600);
    IS(dx[1], 1, 20, 300);
    tl_gradients(t, tl_mul(t, x, x), in, 1, LEAF(1, 1, 1), dx);
    IS(dx[0], 2, 4, 6);
}

/* Dims may be counted from the end, and are found again on the way back. */
static void by_dims_from_the_end(void **unused)
{
    tl_tensor x = LEAF(1, 2, 3, 4, 5, 6), w = LEAF(2, 3, 5, 7, 11, 13), d;
    (void)unused;
    tl_tensor turned = tl_permute(t, tl_reshape(t, x, TL_DIMS(1, 2, 3)), TL_DIMS(-1, 0, 1));
    tl_gradients(t, sum(tl_mul(t, turned, tl_reshape(t, w, TL_DIMS(3, 1, 2)))), &x, 1, TL_NONE, &d);
    IS(d, 2, 5, 11, 3, 7, 13);
    tl_tensor last = tl_select(t, tl_reshape(t, x, TL_DIMS(2, 3)), -1, -2);
    tl_gradients(t, sum(tl_square(t, last)), &x, 1, TL_NONE, &d);
    IS(d, 0, 4, 0, 0, 10, 0);
}

static void by_a_value_in_between(void **unused)
{
    tl_tensor d[3];
    (void)unused;
    tl_tensor x = LEAF(1, 2), h = tl_square(t, x), k = tl_scale(t, h, 3),
              y = sum(tl_mul(t, k, tl_add(t, h, x)));
    tl_tensor by[] = {k, h, x};
    tl_gradients(t, y, by, 3, TL_NONE, d);
    IS(d[0], 2, 6);                           /* h + x: what depends on k, with h held */
    IS(d[1], 9, 30);                          /* h as a value: 3(h + x) + k */
    IS(d[2], 2 * 9 + 3, 4 * 30 + 12);         /* the whole way down: dh * 2x + k */
    tl_gradients(t, h, &h, 1, LEAF(5, 7), d); /* by itself */
    IS(d[0], 5, 7);
}

static void by_itself_is_the_cotangent(void **unused)
{
    tl_tensor d[1];
    (void)unused;
    tl_tensor x = LEAF(1, 2);
    tl_gradients(t, x, &x, 1, LEAF(5, 7), d);
    IS(d[0], 5, 7);
}

static void several_targets_and_the_same_one_twice(void **unused)
{
    tl_tensor d[4];
    (void)unused;
    tl_tensor x = LEAF(1, 2), y = LEAF(3, 4), in[] = {x, y, x, x};
    tl_gradients(t, sum(tl_mul(t, x, tl_exp(t, tl_sub(t, y, y)))), in, 4, TL_NONE, d);
    IS(d[0], 1, 1);
    IS(d[1], 0, 0);
    IS(d[2], 1, 1);
    IS(d[3], 1, 1);
}

static void a_target_not_reached_gets_zeros(void **unused)
{
    tl_tensor d[2];
    (void)unused;
    tl_tensor x = LEAF(1, 2), far = LEAF(7, 8, 9), in[] = {x, far}, later = tl_exp(t, x);
    tl_gradients(t, sum(tl_square(t, x)), in, 2, TL_NONE, d);
    IS(d[0], 2, 4);
    IS(d[1], 0, 0, 0);
    tl_tensor s = tl_shape_of(t, d[1]).ndim == 1 ? d[1] : TL_NONE;
    assert_true(tl_dtype_of(t, s) == TL_F64);
    tl_gradients(t, sum(tl_square(t, x)), &later, 1, TL_NONE,
                 d); /* made beside the way, not on it */
    IS(d[0], 0, 0);
}

static void by_parameters_whose_accumulators_stay(void **unused)
{
    char before[65], after[65];
    tl_tensor d[2], again[2];
    (void)unused;
    tl_tensor w = tl_param(t, m, "w", TL_F64, TL_DIMS(2, 3), TL_INIT_NORMAL, 1),
              b = tl_param(t, m, "b", TL_F64, TL_DIMS(2), TL_INIT_NORMAL, 1);
    tl_tensor x = tl_data(t, ((double[]){1, 2, 3, 4, 5, 6}), TL_F64, TL_DIMS(2, 3)),
              params[] = {w, b};
    tl_tensor y = sum(tl_tanh(t, tl_linear(t, m, "no", x, 2, .no_bias = true))),
              z = sum(tl_square(t, tl_add(t, tl_matmul(t, x, tl_transpose(t, w, 0, 1)), b)));
    tl_gradients(t, z, params, 2, TL_NONE, d);
    expect_ok(t, "by parameters");
    assert_true(tl_is_none(tl_grad(t, w))); /* nothing was accumulated */
    tl_error_clear(t);
    tl_backward(t, tl_add(t, y, z), .retain = true);
    expect_ok(t, "backward");
    tl_tensor gw = tl_grad(t, w), gb = tl_grad(t, b);
    for (int i = 0; i < 6; i++)
        assert_true(element_of(t, d[0], i) == element_of(t, gw, i));
    for (int i = 0; i < 2; i++)
        assert_true(element_of(t, d[1], i) == element_of(t, gb, i));
    tl_sha256(t, gw, before);
    tl_gradients(t, z, params, 2, TL_NONE, again);
    assert_int_equal(tl_gradients(t, z, NULL, 0, TL_NONE, NULL), TL_OK); /* by nothing at all */
    tl_sha256(t, tl_grad(t, w), after);
    assert_string_equal(before, after);
    for (int i = 0; i < 6; i++)
        assert_true(element_of(t, again[0], i) == element_of(t, d[0], i));
}

static void nothing_is_freed(void **unused)
{
    double want[2], got[2];
    tl_tensor d, x = LEAF(1, 2), h = tl_exp(t, tl_sin(t, x)), y = sum(tl_mul(t, h, x));
    (void)unused;
    tl_keep(t, h, want, sizeof want);
    for (int i = 0; i < 3; i++)
        tl_gradients(t, y, &x, 1, TL_NONE, &d);
    assert_int_equal(tl_keep(t, h, got, sizeof got), TL_OK);
    assert_memory_equal(want, got, sizeof got);
    tl_backward(t, y);
    expect_ok(t, "and backward still goes");
    assert_true(element_of(t, tl_grad(t, x), 1) == element_of(t, d, 1));
}

static void the_next_call_has_its_own_place(void **unused)
{
    char place[64];
    tl_tensor d, x = LEAF(1, 2), y = sum(tl_square(t, x));
    (void)unused;
    tl_gradients(t, y, &x, 1, TL_NONE, &d);
    snprintf(place, sizeof place, "test_gradients.c:%d", __LINE__ + 1);
    tl_reshape(t, d, TL_DIMS(3));
    expect_failure(t, TL_ESHAPE, place);
}

static void refusals(void **unused)
{
    tl_tensor d, x = LEAF(1, 2), y = tl_square(t, x),
                 constant = tl_data(t, ((double[]){1, 2}), TL_F64, TL_DIMS(2));
    (void)unused;
    tl_gradients(t, y, &x, 1, TL_NONE, &d);
    assert_true(tl_is_none(d));
    expect_failure(t, TL_ESHAPE, "tl_gradients: the output has shape [2]; without a cotangent");
    tl_gradients(t, y, &x, 1, LEAF(1, 2, 3), &d);
    assert_true(tl_failed(t) && tl_is_none(d));
    tl_error_clear(t);
    tl_gradients(t, sum(y), &constant, 1, TL_NONE, &d);
    assert_true(tl_is_none(d));
    expect_failure(t, TL_ENOGRAD, "target 0 takes no gradient");
    tl_gradients(t, sum(constant), &x, 1, TL_NONE, &d);
    expect_failure(t, TL_ENOGRAD, "tl_gradients: the output depends on no parameter");
    tl_gradients(t, sum(y), (tl_tensor[]){TL_NONE}, 1, TL_NONE, &d);
    assert_true(tl_failed(t));
    tl_error_clear(t);
    tl_tensor old = sum(y);
    tl_tape_reset(t);
    tl_gradients(t, old, &x, 1, TL_NONE, &d);
    expect_failure(t, TL_ESTALE, "");
}

/* ---- gradients of gradients ---- */

static void derivatives_of_a_cube(void **unused)
{
    tl_tensor x = LEAF(-2, 0.5, 3), d[4];
    (void)unused;
    d[0] = tl_mul(t, tl_mul(t, x, x), x);
    for (int i = 0; i < 3; i++)
        tl_gradients(t, sum(d[i]), &x, 1, TL_NONE, &d[i + 1]);
    IS(d[1], 12, 0.75, 27);
    IS(d[2], -12, 3, 18);
    IS(d[3], 6, 6, 6);
    tl_tensor p = tl_pow(t, x, 3);
    tl_gradients(t, sum(p), &x, 1, TL_NONE, &d[1]);
    tl_gradients(t, sum(d[1]), &x, 1, TL_NONE, &d[2]);
    IS(d[2], -12, 3, 18);
}

static void derivatives_of_a_sine(void **unused)
{
    tl_tensor x = LEAF(0.3, 1.1), d = tl_sin(t, x), next;
    (void)unused;
    for (int i = 0; i < 8; i++, d = next)
        tl_gradients(t, sum(d), &x, 1, TL_NONE, &next);
    IS(d, sin(0.3), sin(1.1)); /* the eighth */
}

static void mixed_derivatives_agree(void **unused)
{
    tl_tensor x = LEAF(0.3, 1.1), y = LEAF(0.7, -0.2), dx, dy, dxy, dyx;
    (void)unused;
    tl_tensor f = sum(tl_exp(t, tl_mul(t, tl_sin(t, x), y)));
    tl_gradients(t, f, &x, 1, TL_NONE, &dx);
    tl_gradients(t, f, &y, 1, TL_NONE, &dy);
    tl_gradients(t, sum(dx), &y, 1, TL_NONE, &dxy);
    tl_gradients(t, sum(dy), &x, 1, TL_NONE, &dyx);
    for (int i = 0; i < 2; i++)
        assert_true(fabs(element_of(t, dxy, i) - element_of(t, dyx, i)) < 1e-14);
}

/* With y_p = sum over k of w_k x_(p + 2k): thirds of a conv's derivatives take steps backwards. */
static void third_derivatives_of_a_conv(void **unused)
{
    static const double u[] = {2, -1, 3, 0.5, 1}, v[] = {1.5, -2}, w[] = {3, 0.25};
    double want[5] = {0};
    tl_tensor x = LEAF(1, 2, -1, 4, 3), k = LEAF(3, 0.25), d;
    (void)unused;
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < 2; i++)
            want[p + 2 * i] += v[i] * (w[0] * u[p] + w[1] * u[p + 2]) +
                               w[i] * (v[0] * u[p] + v[1] * u[p + 2]);
    tl_tensor y = tl_conv1d(t, tl_reshape(t, x, TL_DIMS(1, 1, 5)),
                            tl_reshape(t, k, TL_DIMS(1, 1, 2)), .dilation = {2});
    tl_gradients(t, sum(tl_scale(t, tl_square(t, y), 0.5)), &x, 1, TL_NONE, &d);
    tl_gradients(t, sum(tl_mul(t, d, tl_data(t, u, TL_F64, TL_DIMS(5)))), &k, 1, TL_NONE, &d);
    tl_gradients(t, sum(tl_mul(t, d, tl_data(t, v, TL_F64, TL_DIMS(2)))), &x, 1, TL_NONE, &d);
    is(d, 5, want, "the third derivative");
}

/* backward of a gradient: the second derivative arrives in the parameters' accumulators. */
static void backward_through_a_gradient(void **unused)
{
    (void)unused;
    tl_tensor w = tl_param(t, m, "w", TL_F64, TL_DIMS(2), TL_INIT_ONES, 0), x = LEAF(2, 3), dx;
    tl_tensor y = sum(tl_mul(t, tl_square(t, w), tl_mul(t, tl_square(t, x), x)));
    tl_gradients(t, y, &x, 1, TL_NONE, &dx); /* 3 w^2 x^2 */
    tl_backward(t, sum(tl_square(t, dx)));   /* d/dw 9 w^4 x^4 = 36 w^3 x^4 */
    IS(tl_grad(t, w), 36 * 16, 36 * 81);
    IS(tl_grad(t, x), 36 * 8, 36 * 27);
}

/* Where x is a constant, second derivatives go through the cotangent of the norm alone. */
static void norms_of_a_constant_have_second_derivatives(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        tl_tensor w = LEAF(2, 3), gamma = LEAF(1, 1), dgamma, dw;
        tl_tensor x = tl_data(t, ((double[]){1, -1}), TL_F64, TL_DIMS(2));
        tl_tensor y = i ? tl_layer_norm(t, x, gamma, TL_NONE, 3) : tl_rms_norm(t, x, gamma, 3);
        tl_gradients(t, sum(tl_mul(t, y, w)), &gamma, 1, TL_NONE, &dgamma); /* w*h, h = x/2 */
        IS(dgamma, 1, -1.5);
        tl_gradients(t, sum(tl_square(t, dgamma)), &w, 1, TL_NONE, &dw); /* 2*w*h^2 */
        IS(dw, 1, 1.5);
    }
}

/* ---- Hessian-vector product of a small MLP ---- */

enum { IN = 3, HIDDEN = 5, BATCH = 4, PARAMS = HIDDEN * IN + HIDDEN + 2 * HIDDEN + 2 };
static const int64_t sizes[] = {HIDDEN * IN, HIDDEN, 2 * HIDDEN, 2};

static void mlp(const double *theta, tl_tensor leaves[4], tl_tensor *loss)
{
    static const tl_shape shapes[] = {{2, {HIDDEN, IN}}, {1, {HIDDEN}}, {2, {2, HIDDEN}}, {1, {2}}};
    double data[BATCH * IN];
    for (int i = 0; i < BATCH * IN; i++)
        data[i] = sin(i * 1.7);
    tl_tensor x = tl_data(t, data, TL_F64, TL_DIMS(BATCH, IN));
    for (int i = 0; i < 4; theta += sizes[i++]) {
        leaves[i] = tl_data(t, theta, TL_F64, shapes[i]);
        tl_require_grad(t, leaves[i]);
    }
    tl_tensor h = tl_gelu(t,
                          tl_add(t, tl_matmul(t, x, tl_transpose(t, leaves[0], 0, 1)), leaves[1]));
    tl_tensor z = tl_add(t, tl_matmul(t, h, tl_transpose(t, leaves[2], 0, 1)), leaves[3]);
    *loss = tl_cross_entropy(t, z, tl_data(t, ((int64_t[]){0, 1, 1, 0}), TL_I64, TL_DIMS(BATCH)),
                             TL_MEAN);
}

static void gradient_at(const double *theta, double *g)
{
    tl_tensor leaves[4], loss, d[4];
    tl_tape_reset(t);
    mlp(theta, leaves, &loss);
    tl_gradients(t, loss, leaves, 4, TL_NONE, d);
    expect_ok(t, "mlp");
    for (int i = 0; i < 4; g += sizes[i++])
        tl_keep(t, d[i], g, (size_t)sizes[i] * sizeof *g);
}

static void hessian_vector_product_of_an_mlp(void **unused)
{
    double theta[PARAMS], v[PARAMS], moved[PARAMS], up[PARAMS], down[PARAMS], hv[PARAMS], *to = hv;
    const double *from = v, h = 1e-5;
    tl_tensor leaves[4], loss, d[4], hd[4], dot = TL_NONE;
    double largest = 0;
    (void)unused;
    for (int i = 0; i < PARAMS; i++) {
        theta[i] = sin(i * 0.9 + 1);
        v[i] = cos(i * 2.3);
    }
    mlp(theta, leaves, &loss);
    tl_gradients(t, loss, leaves, 4, TL_NONE, d);
    for (int i = 0; i < 4; from += sizes[i++]) {
        tl_tensor part = sum(tl_mul(t, d[i], tl_data(t, from, TL_F64, tl_shape_of(t, d[i]))));
        dot = i ? tl_add(t, dot, part) : part;
    }
    tl_gradients(t, dot, leaves, 4, TL_NONE, hd);
    expect_ok(t, "Hv");
    for (int i = 0; i < 4; to += sizes[i++])
        tl_keep(t, hd[i], to, (size_t)sizes[i] * sizeof *to);
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < PARAMS; i++)
            moved[i] = theta[i] + (s ? -h : h) * v[i];
        gradient_at(moved, s ? down : up);
    }
    for (int i = 0; i < PARAMS; i++)
        largest = fmax(largest, fabs(hv[i]));
    assert_true(largest > 0.01);
    for (int i = 0; i < PARAMS; i++) {
        double want = (up[i] - down[i]) / (2 * h);
        if (!(fabs(hv[i] - want) < 1e-7 * largest))
            fail_msg("Hv[%d] is %.12g, by differences %.12g", i, hv[i], want);
    }
}

const struct CMUnitTest tl_tests_gradients[] = {
    TEST(known_derivatives),
    TEST(by_dims_from_the_end),
    TEST(third_derivatives_of_a_conv),
    TEST(by_a_value_in_between),
    TEST(by_itself_is_the_cotangent),
    TEST(several_targets_and_the_same_one_twice),
    TEST(a_target_not_reached_gets_zeros),
    TEST(by_parameters_whose_accumulators_stay),
    TEST(nothing_is_freed),
    TEST(the_next_call_has_its_own_place),
    TEST(refusals),
    TEST(derivatives_of_a_cube),
    TEST(derivatives_of_a_sine),
    TEST(mixed_derivatives_agree),
    TEST(backward_through_a_gradient),
    TEST(norms_of_a_constant_have_second_derivatives),
    TEST(hessian_vector_product_of_an_mlp),
};
const size_t tl_tests_gradients_count = sizeof tl_tests_gradients / sizeof tl_tests_gradients[0];
