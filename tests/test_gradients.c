/* Gradients of any value by any others, gradients of gradients, and what the gradient checker says of odd functions. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally.h>

extern const struct CMUnitTest tl_tests_gradients[];
extern const size_t tl_tests_gradients_count;

static tl_tape *t;
static tl_model *m;

static int begin(void **unused)
{
    (void)unused;
    m = tl_model_new(.seed = 5);
    t = tl_tape_new(m);
    return t == NULL;
}

static int end(void **unused)
{
    (void)unused;
    tl_free(t, m);
    return 0;
}

static void no_error(const char *what)
{
    if (tl_failed(t))
        fail_msg("%s: %s", what, tl_error(t));
}

static void fails(tl_status s, const char *words)
{
    if (tl_error_status(t) != s || strstr(tl_error(t), words) == NULL)
        fail_msg("%s and '%s' wanted: %s: %s", tl_status_name(s), words, tl_status_name(tl_error_status(t)), tl_error(t));
    tl_error_clear(t);
}

static tl_tensor leaf(int n, const double *x)
{
    tl_tensor l = tl_data(t, x, TL_F64, TL_DIMS(n));
    tl_require_grad(t, l);
    return l;
}
#define LEAF(...) leaf((int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (const double[]){__VA_ARGS__})

static double at(tl_tensor x, int64_t i)
{
    tl_array a;
    if (!tl_array_of(t, x, &a) || a.data == NULL || i >= tl_array_count(&a))
        fail_msg("no element %d: %s", (int)i, tl_error(t));
    return a.dtype == TL_F64 ? *(double *)tl_array_at(&a, i) : (double)*(float *)tl_array_at(&a, i);
}

static void is(tl_tensor x, int n, const double *want, const char *what)
{
    no_error(what);
    for (int i = 0; i < n; i++)
        if (!(fabs(at(x, i) - want[i]) <= 1e-13 * fmax(1, fabs(want[i]))))
            fail_msg("%s: element %d is %.17g, not %.17g", what, i, at(x, i), want[i]);
}
#define IS(x, ...) is(x, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (const double[]){__VA_ARGS__}, #x)

static tl_tensor sum(tl_tensor x) { return tl_sum(t, x, TL_ALL, false); }

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

static void by_a_value_in_between(void **unused)
{
    tl_tensor d[3];
    (void)unused;
    tl_tensor x = LEAF(1, 2), h = tl_square(t, x), k = tl_scale(t, h, 3), y = sum(tl_mul(t, k, tl_add(t, h, x)));
    tl_tensor by[] = {k, h, x};
    tl_gradients(t, y, by, 3, TL_NONE, d);
    IS(d[0], 2, 6);           /* h + x: what depends on k, with h held */
    IS(d[1], 9, 30);          /* h as a value: 3(h + x) + k */
    IS(d[2], 2 * 9 + 3, 4 * 30 + 12); /* the whole way down: dh * 2x + k */
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
    tl_gradients(t, sum(tl_square(t, x)), &later, 1, TL_NONE, d); /* made beside the way, not on it */
    IS(d[0], 0, 0);
}

static void by_parameters_whose_accumulators_stay(void **unused)
{
    char before[65], after[65];
    tl_tensor d[2], again[2];
    (void)unused;
    tl_tensor w = tl_param(t, m, "w", TL_F64, TL_DIMS(2, 3), TL_INIT_NORMAL, 1), b = tl_param(t, m, "b", TL_F64, TL_DIMS(2), TL_INIT_NORMAL, 1);
    tl_tensor x = tl_data(t, ((double[]){1, 2, 3, 4, 5, 6}), TL_F64, TL_DIMS(2, 3)), params[] = {w, b};
    tl_tensor y = sum(tl_tanh(t, tl_linear(t, m, "no", x, 2, .no_bias = true))), z = sum(tl_square(t, tl_add(t, tl_matmul(t, x, tl_transpose(t, w, 0, 1)), b)));
    tl_gradients(t, z, params, 2, TL_NONE, d);
    no_error("by parameters");
    assert_true(tl_is_none(tl_grad(t, w))); /* nothing was accumulated */
    tl_error_clear(t);
    tl_backward(t, tl_add(t, y, z), .retain = true);
    no_error("backward");
    tl_tensor gw = tl_grad(t, w), gb = tl_grad(t, b);
    for (int i = 0; i < 6; i++)
        assert_true(at(d[0], i) == at(gw, i));
    for (int i = 0; i < 2; i++)
        assert_true(at(d[1], i) == at(gb, i));
    tl_sha256(t, gw, before);
    tl_gradients(t, z, params, 2, TL_NONE, again);
    tl_sha256(t, tl_grad(t, w), after);
    assert_string_equal(before, after);
    for (int i = 0; i < 6; i++)
        assert_true(at(again[0], i) == at(d[0], i));
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
    no_error("and backward still goes");
    assert_true(at(tl_grad(t, x), 1) == at(d, 1));
}

static void refusals(void **unused)
{
    tl_tensor d, x = LEAF(1, 2), y = tl_square(t, x), constant = tl_data(t, ((double[]){1, 2}), TL_F64, TL_DIMS(2));
    (void)unused;
    tl_gradients(t, y, &x, 1, TL_NONE, &d); /* two elements and no cotangent */
    assert_true(tl_is_none(d));
    assert_true(tl_failed(t));
    tl_error_clear(t);
    tl_gradients(t, y, &x, 1, LEAF(1, 2, 3), &d);
    assert_true(tl_failed(t) && tl_is_none(d));
    tl_error_clear(t);
    tl_gradients(t, sum(y), &constant, 1, TL_NONE, &d);
    assert_true(tl_is_none(d));
    fails(TL_ENOGRAD, "target 0 takes no gradient");
    tl_gradients(t, sum(constant), &x, 1, TL_NONE, &d);
    fails(TL_ENOGRAD, "");
    tl_gradients(t, sum(y), (tl_tensor[]){TL_NONE}, 1, TL_NONE, &d);
    assert_true(tl_failed(t));
    tl_error_clear(t);
    tl_tensor old = sum(y);
    tl_tape_reset(t);
    tl_gradients(t, old, &x, 1, TL_NONE, &d);
    fails(TL_ESTALE, "");
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
        assert_true(fabs(at(dxy, i) - at(dyx, i)) < 1e-14);
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
    tl_tensor h = tl_gelu(t, tl_add(t, tl_matmul(t, x, tl_transpose(t, leaves[0], 0, 1)), leaves[1]));
    tl_tensor z = tl_add(t, tl_matmul(t, h, tl_transpose(t, leaves[2], 0, 1)), leaves[3]);
    *loss = tl_cross_entropy(t, z, tl_data(t, ((int64_t[]){0, 1, 1, 0}), TL_I64, TL_DIMS(BATCH)), TL_MEAN);
}

static void gradient_at(const double *theta, double *g)
{
    tl_tensor leaves[4], loss, d[4];
    tl_tape_reset(t);
    mlp(theta, leaves, &loss);
    tl_gradients(t, loss, leaves, 4, TL_NONE, d);
    no_error("mlp");
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
    no_error("Hv");
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

/* ---- the checker's options ---- */

#define FUNCTION(name, call)                                                 \
    static tl_tensor name(tl_tape *on, const tl_tensor *in, int n, void *ctx) \
    {                                                                        \
        (void)on, (void)n, (void)ctx;                                        \
        return call;                                                         \
    }
FUNCTION(f_softmax, tl_softmax(on, in[0], -1))
FUNCTION(f_same, in[0])
FUNCTION(f_shift, tl_shift(on, in[0], 1))
FUNCTION(f_product, tl_mul(on, in[0], tl_sin(on, in[1])))
FUNCTION(f_log, tl_log(on, in[0]))
FUNCTION(f_one_hot, tl_one_hot(on, in[0], 4, TL_F64))
FUNCTION(f_integers, tl_sum(on, tl_square(on, tl_embedding(on, in[0], in[1])), TL_ALL, false))

static tl_tensor random_leaf(tl_dtype d, tl_shape s)
{
    tl_tensor x = tl_data(t, NULL, d, s);
    tl_array a;
    assert_true(tl_array_of(t, x, &a));
    for (int64_t i = 0; i < tl_array_count(&a); i++) {
        double v = sin((double)i * 1.3 + 0.4);
        if (d == TL_F64)
            ((double *)a.data)[i] = v;
        else
            ((float *)a.data)[i] = (float)v;
    }
    return x;
}

static void all_compares_every_element(void **unused)
{
    tl_gradcheck_report r;
    (void)unused;
    tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(5, 7)), random_leaf(TL_F64, TL_DIMS(7))};
    assert_int_equal(tl_gradcheck_with(t, f_product, in, 2, NULL, &r, .all = true), TL_RIGHT);
    assert_int_equal(r.leaves, 2);
    assert_in_range(r.compared, 42, 42 + 2 * 8); /* and some directions */
    assert_int_equal(tl_gradcheck_with(t, f_product, in, 2, NULL, &r, .elements = 3, .directions = 1), TL_RIGHT);
    assert_int_equal(r.compared, 2 * 4);
}

static void fast_moves_everything_once(void **unused)
{
    tl_gradcheck_report r;
    (void)unused;
    for (int d = 0; d < 2; d++) {
        tl_tensor in[] = {random_leaf(d ? TL_F32 : TL_F64, TL_DIMS(50, 70)), random_leaf(d ? TL_F32 : TL_F64, TL_DIMS(70))};
        if (tl_gradcheck_with(t, f_product, in, 2, NULL, &r, .fast = true) != TL_RIGHT)
            fail_msg("%s", r.text);
        assert_int_equal(r.compared, 1);
        assert_int_equal(r.leaves, 2);
    }
}

static void integers_are_held(void **unused)
{
    tl_gradcheck_report r;
    (void)unused;
    tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(4, 3)), tl_data(t, ((int64_t[]){3, 0, 3}), TL_I64, TL_DIMS(3))};
    if (tl_gradcheck_with(t, f_integers, in, 2, NULL, &r, .seed = 0) != TL_RIGHT)
        fail_msg("%s", r.text);
    assert_int_equal(r.leaves, 1);
}

static void the_identity_is_right(void **unused)
{
    tl_gradcheck_report r;
    (void)unused;
    tl_tensor x = random_leaf(TL_F64, TL_DIMS(3));
    if (tl_gradcheck_with(t, f_same, &x, 1, NULL, &r, .seed = 0) != TL_RIGHT)
        fail_msg("identity: %s", r.text);
    if (tl_gradgradcheck_with(t, f_shift, &x, 1, NULL, &r, .seed = 0) != TL_RIGHT) /* its gradient is the cotangent as it came */
        fail_msg("shift: %s", r.text);
}

static void second_derivatives_by_check(void **unused)
{
    tl_gradcheck_report r;
    (void)unused;
    tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(2, 4)), random_leaf(TL_F64, TL_DIMS(4))};
    if (tl_gradgradcheck_with(t, f_product, in, 2, NULL, &r, .seed = 0) != TL_RIGHT)
        fail_msg("%s", r.text);
    if (tl_gradgradcheck(t, f_softmax, in, 1, NULL) != TL_RIGHT)
        fail_msg("%s", tl_error(t));
}

/* A sine whose second derivative alone is wrong: its vjp treats x as a constant. */
static tl_status like_first(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

static tl_status sin_forward(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++) {
        if (c->in[0]->dtype == TL_F64)
            *(double *)tl_array_at(&c->out[0], i) = sin(*(double *)tl_array_at(c->in[0], i));
        else
            *(float *)tl_array_at(&c->out[0], i) = (float)sin((double)*(float *)tl_array_at(c->in[0], i));
    }
    return TL_OK;
}

static void sin_vjp(tl_vjp *g) { g->dx[0] = tl_mul(g->t, g->dy[0], tl_cos(g->t, tl_detach(g->t, g->in[0]))); }

static const tl_op op_once = {.name = "sin_once", .n_in = 1, .n_out = 1, .shape = like_first, .forward = sin_forward, .vjp = sin_vjp, .saves_in = 1};
FUNCTION(f_once, tl_apply1(TL_AT(on), &op_once, NULL, in, 1))

static void a_wrong_second_derivative_is_caught(void **unused)
{
    tl_gradcheck_report r;
    (void)unused;
    tl_tensor x = random_leaf(TL_F64, TL_DIMS(3));
    assert_int_equal(tl_gradcheck(t, f_once, &x, 1, NULL), TL_RIGHT);
    assert_int_not_equal(tl_gradgradcheck_with(t, f_once, &x, 1, NULL, &r, .seed = 0), TL_RIGHT);
    if (r.verdict != TL_WRONG)
        fail_msg("%s: %s", tl_verdict_name(r.verdict), r.text);
    assert_true(tl_failed(t));
}

/* Its gradient is made by an op that has none itself. */
static const tl_op op_cos = {.name = "cos_flat", .n_in = 1, .n_out = 1, .shape = like_first, .forward = sin_forward};
static void stops_vjp(tl_vjp *g) { g->dx[0] = tl_mul(g->t, g->dy[0], tl_apply1(TL_AT(g->t), &op_cos, NULL, &g->in[0], 1)); }
static const tl_op op_stops = {.name = "stops", .n_in = 1, .n_out = 1, .shape = like_first, .forward = sin_forward, .vjp = stops_vjp, .saves_in = 1};
FUNCTION(f_stops, tl_apply1(TL_AT(on), &op_stops, NULL, in, 1))

static void a_second_derivative_that_is_not_there_is_said_to_be_missing(void **unused)
{
    tl_gradcheck_report r;
    tl_tensor x = random_leaf(TL_F64, TL_DIMS(3)), dx;
    (void)unused;
    tl_require_grad(t, x);
    tl_backward(t, sum(f_stops(t, &x, 1, NULL))); /* the first is there */
    no_error("first");
    assert_int_not_equal(tl_gradgradcheck_with(t, f_stops, &x, 1, NULL, &r, .seed = 0), TL_RIGHT);
    assert_non_null(strstr(r.text, "cos_flat: has no derivative"));
    fails(TL_ENOGRAD, "cos_flat: has no derivative");
    tl_gradients(t, sum(f_stops(t, &x, 1, NULL)), &x, 1, TL_NONE, &dx);
    fails(TL_ENOGRAD, "cos_flat: has no derivative");
}

static void a_failed_tape_is_never_right(void **unused)
{
    tl_gradcheck_report r;
    tl_tensor x = random_leaf(TL_F64, TL_DIMS(3));
    (void)unused;
    tl_add(t, x, random_leaf(TL_F64, TL_DIMS(2)));
    assert_true(tl_failed(t));
    assert_int_not_equal(tl_gradcheck_with(t, f_log, &x, 1, NULL, &r, .seed = 0), TL_RIGHT);
    assert_non_null(strstr(r.text, "failed before"));
    assert_int_not_equal(tl_gradgradcheck_with(t, f_log, &x, 1, NULL, &r, .seed = 0), TL_RIGHT);
    assert_true(r.text[0] != '\0');
}

static void second_order_of_nothing_is_never_right(void **unused)
{
    tl_gradcheck_report r;
    tl_tensor ids = tl_data(t, ((int64_t[]){3, 0, 3}), TL_I64, TL_DIMS(3));
    (void)unused;
    assert_int_not_equal(tl_gradgradcheck_with(t, f_one_hot, &ids, 1, NULL, &r, .seed = 0), TL_RIGHT);
    assert_true(tl_failed(t) && r.text[0] != '\0');
}

/* ---- functions that no gradient can be checked of ---- */

static int calls;

static tl_tensor f_counting(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    return tl_scale(on, in[0], 1 + calls++);
}

static tl_tensor f_other_ops(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    return calls++ % 2 ? tl_scale(on, in[0], 2) : tl_add(on, in[0], in[0]);
}

static tl_tensor f_branch(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    tl_array a;
    (void)n, (void)ctx;
    bool whole = tl_array_of(on, in[0], &a) && *(const double *)a.data == 0.5;
    return whole ? tl_square(on, in[0]) : tl_exp(on, in[0]);
}

static tl_tensor f_changes(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    tl_array a;
    (void)n, (void)ctx;
    tl_tensor y = tl_square(on, tl_scale(on, in[0], 1));
    if (tl_array_of(on, in[0], &a))
        ((double *)a.data)[1] += 1;
    return y;
}

static tl_tensor f_nothing(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)on, (void)in, (void)n, (void)ctx;
    return TL_NONE;
}

static tl_tensor f_fails(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    return tl_add(on, in[0], tl_fill(on, TL_F64, TL_DIMS(5), 1));
}

static tl_tensor f_constant(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    return tl_detach(on, in[0]);
}
FUNCTION(f_integer, tl_argmax(on, in[0], 0, false))

static void each_kind_of_bad_function_has_its_message(void **unused)
{
    static const struct {
        tl_function *f;
        const char *words;
    } bad[] = {
        {f_counting, "not deterministic: run twice on the same inputs, it gives other results"},
        {f_other_ops, "not deterministic: run twice, it does other ops"},
        {f_branch, "branches"},
        {f_changes, "changes its input 0"},
        {f_log, "the function's result is nan at element 1"},
        {f_fails, "add"},
        {f_constant, "no floating tensor that depends on"},
        {f_integer, "no floating tensor"},
        {f_nothing, ""},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int way = 0; way < 4; way++) {
            double data[] = {0.5, i == 4 ? -1.0 : 2.0, 3};
            tl_gradcheck_report r;
            calls = 0;
            tl_tensor x = tl_data(t, data, TL_F64, TL_DIMS(3));
            tl_gradcheck_options o = {.fast = way == 1, .all = way == 2};
            tl_verdict v = way == 3 ? tl_gradgradcheck_at(TL_AT(t), bad[i].f, &x, 1, NULL, o, &r)
                                    : tl_gradcheck_at(TL_AT(t), bad[i].f, &x, 1, NULL, o, &r);
            if (v == TL_RIGHT || r.verdict == TL_RIGHT || !tl_failed(t))
                fail_msg("function %d passes (%d)", (int)i, way);
            if (way < 3 && (strstr(r.text, bad[i].words) == NULL || strstr(tl_error(t), bad[i].words) == NULL))
                fail_msg("function %d: '%s' wanted: %s / %s", (int)i, bad[i].words, r.text, tl_error(t));
            tl_error_clear(t);
        }
}

static void a_report_names_the_worst_element(void **unused)
{
    tl_gradcheck_report r;
    (void)unused;
    tl_tensor x = tl_data(t, ((double[]){1, -1e-30, 2}), TL_F64, TL_DIMS(3));
    tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(3)), random_leaf(TL_F64, TL_DIMS(3))};
    assert_int_equal(tl_gradcheck_with(t, f_log, &x, 1, NULL, &r, .seed = 0), TL_WRONG);
    tl_error_clear(t);
    assert_int_equal(tl_gradcheck_with(t, f_product, in, 2, NULL, &r, .seed = 0), TL_RIGHT);
    assert_true(strncmp(r.leaf, "input ", 6) == 0);
    assert_true(isfinite(r.numeric) && isfinite(r.analytic) && isfinite(r.ulps) && isfinite(r.relative) && r.error >= 0);
    assert_non_null(strstr(r.text, "ULPs"));
}

/* ---- the curve ---- */

static size_t curve_of(tl_curve_format format, int64_t element, char *buf, size_t room)
{
    tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(2, 4)), random_leaf(TL_F64, TL_DIMS(4))};
    FILE *f = tmpfile();
    assert_non_null(f);
    if (tl_gradcheck_curve(t, f_product, in, 2, NULL, 1, element, f, format) != TL_OK)
        fail_msg("%s", tl_error(t));
    rewind(f);
    size_t n = fread(buf, 1, room - 1, f);
    fclose(f);
    buf[n] = '\0';
    assert_in_range(n, 100, room - 2);
    assert_true(buf[n - 1] == '\n');
    return n;
}

static void the_curve_in_text_and_csv(void **unused)
{
    static char buf[1 << 16];
    (void)unused;
    for (int64_t element = -1; element < 4; element += 2) {
        curve_of(TL_CURVE_TEXT, element, buf, sizeof buf);
        assert_non_null(strstr(buf, "step"));
        assert_non_null(strstr(buf, "Ridders"));
        assert_non_null(strstr(buf, "analytic"));
        curve_of(TL_CURVE_CSV, element, buf, sizeof buf);
        assert_true(strncmp(buf, "step,central,error,one_sided_gap\n", 33) == 0);
        double last = HUGE_VAL, best = HUGE_VAL, first = -1;
        int rows = 0;
        for (char *line = strchr(buf, '\n') + 1; *line; line = strchr(line, '\n') + 1, rows++) {
            double h, central, error, gap;
            int used = 0;
            assert_int_equal(sscanf(line, "%lf,%lf,%lf,%lf%n", &h, &central, &error, &gap, &used), 4);
            assert_true(line[used] == '\n' && h > 0 && h < last && error >= 0 && isfinite(central) && isfinite(gap));
            first = first < 0 ? error : first;
            best = fmin(best, error);
            last = h;
        }
        assert_true(rows >= 10);
        assert_true(best < 1e-8 && best < first * 1e-4); /* it falls to a floor */
    }
}

/* Every tag is closed, every attribute quoted, and there is a point for every step. */
static void the_curve_in_svg(void **unused)
{
    static char buf[1 << 16];
    int depth = 0, points = 0;
    (void)unused;
    curve_of(TL_CURVE_SVG, 2, buf, sizeof buf);
    assert_true(strncmp(buf, "<svg xmlns=\"http://www.w3.org/2000/svg\"", 39) == 0);
    assert_non_null(strstr(buf, "</svg>\n"));
    assert_null(strstr(buf, "nan"));
    assert_null(strstr(buf, "inf"));
    for (char *p = buf; (p = strchr(p, '<')) != NULL;) {
        char *stop = strchr(p, '>');
        int quotes = 0;
        assert_non_null(stop);
        for (char *q = p; q < stop; q++) {
            quotes += *q == '"';
            assert_true(q == p || *q != '<');
        }
        assert_int_equal(quotes % 2, 0);
        depth += p[1] == '/' ? -1 : stop[-1] == '/' ? 0 : 1;
        assert_true(depth >= 0 && (depth > 0 || stop[1] == '\n'));
        p = stop;
    }
    assert_int_equal(depth, 0);
    char *list = strstr(buf, "points=\"");
    assert_non_null(list);
    for (char *p = list + 8; *p != '"'; points++) {
        double x, y;
        int used = 0;
        assert_int_equal(sscanf(p, "%lf,%lf %n", &x, &y, &used), 2);
        assert_true(x >= 0 && x <= 640 && y >= 0 && y <= 400);
        p += used;
    }
    assert_true(points >= 10);
}

static void a_curve_of_what_is_not_there(void **unused)
{
    (void)unused;
    tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(2, 4)), random_leaf(TL_F64, TL_DIMS(4))};
    static const struct {
        int input;
        int64_t element;
    } bad[] = {{2, 0}, {-1, 0}, {1, 4}, {1, INT64_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FILE *f = tmpfile();
        assert_non_null(f);
        assert_int_not_equal(tl_gradcheck_curve(t, f_product, in, 2, NULL, bad[i].input, bad[i].element, f, TL_CURVE_TEXT), TL_OK);
        assert_true(tl_failed(t));
        tl_error_clear(t);
        assert_int_equal(ftell(f), 0);
        fclose(f);
    }
    FILE *full = fopen("/dev/full", "w");
    if (full == NULL)
        return;
    setvbuf(full, NULL, _IONBF, 0);
    assert_int_equal(tl_gradcheck_curve(t, f_product, in, 2, NULL, 0, -1, full, TL_CURVE_CSV), TL_EIO);
    fclose(full);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
const struct CMUnitTest tl_tests_gradients[] = {
    TEST(known_derivatives),                TEST(by_a_value_in_between),
    TEST(by_itself_is_the_cotangent),       TEST(several_targets_and_the_same_one_twice),
    TEST(a_target_not_reached_gets_zeros),  TEST(by_parameters_whose_accumulators_stay),
    TEST(nothing_is_freed),                 TEST(refusals),
    TEST(derivatives_of_a_cube),            TEST(derivatives_of_a_sine),
    TEST(mixed_derivatives_agree),          TEST(backward_through_a_gradient),
    TEST(hessian_vector_product_of_an_mlp), TEST(all_compares_every_element),
    TEST(fast_moves_everything_once),       TEST(integers_are_held),
    TEST(the_identity_is_right),            TEST(second_derivatives_by_check),
    TEST(a_wrong_second_derivative_is_caught), TEST(a_failed_tape_is_never_right),
    TEST(a_second_derivative_that_is_not_there_is_said_to_be_missing), TEST(second_order_of_nothing_is_never_right),
    TEST(each_kind_of_bad_function_has_its_message), TEST(a_report_names_the_worst_element),
    TEST(the_curve_in_text_and_csv),        TEST(the_curve_in_svg),
    TEST(a_curve_of_what_is_not_there),
};
const size_t tl_tests_gradients_count = sizeof tl_tests_gradients / sizeof tl_tests_gradients[0];
