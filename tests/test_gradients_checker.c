/* The gradient checker's options, orders and verdicts, and what it says of functions that no
 * gradient can be checked of. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include <tally.h>

#include "tests/support/functions.h"

extern const struct CMUnitTest tl_tests_gradients_checker[];
extern const size_t tl_tests_gradients_checker_count;

FUNCTION(f_softmax, tl_softmax(on, in[0], -1))
FUNCTION(f_same, in[0])
FUNCTION(f_shift, tl_shift(on, in[0], 1))
FUNCTION(f_product, tl_mul(on, in[0], tl_sin(on, in[1])))
FUNCTION(f_log, tl_log(on, in[0]))
FUNCTION(f_one_hot, tl_one_hot(on, in[0], 4, TL_F64))
FUNCTION(f_integers, tl_sum(on, tl_square(on, tl_embedding(on, in[0], in[1])), TL_ALL, false))

static void all_compares_every_element(void **unused)
{
    tl_gradcheck_report r;
    (void)unused;
    tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(5, 7)), random_leaf(TL_F64, TL_DIMS(7))};
    assert_int_equal(tl_gradcheck_with(t, f_product, in, 2, NULL, &r, .all = true), TL_RIGHT);
    assert_int_equal(r.leaves, 2);
    assert_in_range(r.compared, 42, 42 + 2 * 8); /* and some directions */
    assert_int_equal(tl_gradcheck_with(t, f_product, in, 2, NULL, &r, .elements = 3,
                                       .directions = 1),
                     TL_RIGHT);
    assert_int_equal(r.compared, 2 * 4);
}

static void fast_moves_everything_once(void **unused)
{
    tl_gradcheck_report r;
    (void)unused;
    for (int d = 0; d < 2; d++) {
        tl_tensor in[] = {random_leaf(d ? TL_F32 : TL_F64, TL_DIMS(50, 70)),
                          random_leaf(d ? TL_F32 : TL_F64, TL_DIMS(70))};
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
    tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(4, 3)),
                      tl_data(t, ((int64_t[]){3, 0, 3}), TL_I64, TL_DIMS(3))};
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
    if (tl_gradgradcheck_with(t, f_shift, &x, 1, NULL, &r, .seed = 0) !=
        TL_RIGHT) /* its gradient is the cotangent as it came */
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
            *(float *)tl_array_at(&c->out[0],
                                  i) = (float)sin((double)*(float *)tl_array_at(c->in[0], i));
    }
    return TL_OK;
}

static void sin_vjp(tl_vjp *g)
{
    g->dx[0] = tl_mul(g->t, g->dy[0], tl_cos(g->t, tl_detach(g->t, g->in[0])));
}

static const tl_op op_once = {.name = "sin_once",
                              .n_in = 1,
                              .n_out = 1,
                              .shape = like_first,
                              .forward = sin_forward,
                              .vjp = sin_vjp,
                              .saves_in = 1};
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
static const tl_op op_cos = {
    .name = "cos_flat", .n_in = 1, .n_out = 1, .shape = like_first, .forward = sin_forward};
static void stops_vjp(tl_vjp *g)
{
    g->dx[0] = tl_mul(g->t, g->dy[0], tl_apply1(TL_AT(g->t), &op_cos, NULL, &g->in[0], 1));
}
static const tl_op op_stops = {.name = "stops",
                               .n_in = 1,
                               .n_out = 1,
                               .shape = like_first,
                               .forward = sin_forward,
                               .vjp = stops_vjp,
                               .saves_in = 1};
FUNCTION(f_stops, tl_apply1(TL_AT(on), &op_stops, NULL, in, 1))

static void a_second_derivative_that_is_not_there_is_said_to_be_missing(void **unused)
{
    tl_gradcheck_report r;
    tl_tensor x = random_leaf(TL_F64, TL_DIMS(3)), dx;
    (void)unused;
    tl_require_grad(t, x);
    tl_backward(t, sum(f_stops(t, &x, 1, NULL))); /* the first is there */
    expect_ok(t, "first");
    assert_int_not_equal(tl_gradgradcheck_with(t, f_stops, &x, 1, NULL, &r, .seed = 0), TL_RIGHT);
    assert_non_null(strstr(r.text, "cos_flat: has no derivative"));
    expect_failure(t, TL_ENOGRAD, "cos_flat: has no derivative");
    tl_gradients(t, sum(f_stops(t, &x, 1, NULL)), &x, 1, TL_NONE, &dx);
    expect_failure(t, TL_ENOGRAD, "cos_flat: has no derivative");
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
    assert_int_not_equal(tl_gradgradcheck_with(t, f_one_hot, &ids, 1, NULL, &r, .seed = 0),
                         TL_RIGHT);
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
            if (way < 3 &&
                (strstr(r.text, bad[i].words) == NULL || strstr(tl_error(t), bad[i].words) == NULL))
                fail_msg("function %d: '%s' wanted: %s / %s", (int)i, bad[i].words, r.text,
                         tl_error(t));
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
    assert_true(isfinite(r.numeric) && isfinite(r.analytic) && isfinite(r.ulps) &&
                isfinite(r.relative) && r.error >= 0);
    assert_non_null(strstr(r.text, "ULPs"));
}

const struct CMUnitTest tl_tests_gradients_checker[] = {
    TEST(all_compares_every_element),
    TEST(fast_moves_everything_once),
    TEST(integers_are_held),
    TEST(the_identity_is_right),
    TEST(second_derivatives_by_check),
    TEST(a_wrong_second_derivative_is_caught),
    TEST(a_second_derivative_that_is_not_there_is_said_to_be_missing),
    TEST(a_failed_tape_is_never_right),
    TEST(second_order_of_nothing_is_never_right),
    TEST(each_kind_of_bad_function_has_its_message),
    TEST(a_report_names_the_worst_element),
};
const size_t tl_tests_gradients_checker_count = sizeof tl_tests_gradients_checker /
                                                sizeof tl_tests_gradients_checker[0];
