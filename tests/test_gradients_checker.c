/* The gradient checker's options, orders and verdicts, and what it says of functions that no
 * gradient can be checked of. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tally_extend.h>

#include "autograd/check/shadow.h"
#include "tests/support/functions.h"
#include "tests/support/mutate.h"

extern const struct CMUnitTest tl_tests_gradients_checker[];
extern const size_t tl_tests_gradients_checker_count;

FUNCTION(f_softmax, tl_softmax(on, in[0], -1))
FUNCTION(f_same, in[0])
FUNCTION(f_shift, tl_shift(on, in[0], 1))
FUNCTION(f_product, tl_mul(on, in[0], tl_sin(on, in[1])))
FUNCTION(f_log, tl_log(on, in[0]))
FUNCTION(f_one_hot, tl_one_hot(on, in[0], 4, TL_F64))
FUNCTION(f_chosen, tl_mul(on, tl_sin(on, in[0]), tl_one_hot(on, in[1], 3, TL_F32)))
FUNCTION(f_bends, tl_square(on, tl_relu(on, in[0])))
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
    in[0] = random_leaf(TL_F32, TL_DIMS(2, 3)); /* and made floats, of the width of others */
    in[1] = tl_data(t, ((int64_t[]){2, 0}), TL_I64, TL_DIMS(2));
    if (tl_gradcheck_with(t, f_chosen, in, 2, NULL, &r, .seed = 0) != TL_RIGHT)
        fail_msg("%s", r.text);
}

/* Each of the three runs with moved roundings counts, wherever it moved a gradient furthest. */
static void noise_is_that_of_every_roll(void **unused)
{
    enum { N = 60 };
    tl_tensor x = random_leaf(TL_F32, TL_DIMS(N));
    const tl_subject f = {TL_AT(t), f_softmax, &x, 1, NULL};
    tl_checker c = {.who = "this test"};
    double moved[3][N];
    (void)unused;
    assert_int_equal(tl_check_begin(&c, &f), TL_OK);
    assert_int_equal(tl_check_record(&c, &f), TL_OK);
    assert_int_equal(c.s.n, N);
    assert_int_equal(tl_shadow_noise(&c.s, true), TL_OK);
    for (int roll = 0; roll < 3; roll++) {
        int furthest = 0;
        assert_int_equal(tl_shadow_gradients(&c.s, false, roll + 1), TL_OK);
        for (int k = 0; k < N; k++) {
            moved[roll][k] = fabs(c.s.found[0][k] - c.s.g[0][k]);
            if (!(c.s.noise[1][k] >= moved[roll][k]))
                fail_msg("roll %d moves element %d by %g, its noise is %g", roll + 1, k,
                         moved[roll][k], c.s.noise[1][k]);
            furthest += c.s.noise[1][k] == moved[roll][k];
        }
        assert_true(furthest > 0);
    }
    tl_shadow_free(&c.s);
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
    if (tl_gradgradcheck_with(t, f_same, &x, 1, NULL, &r, .seed = 0) != TL_RIGHT)
        fail_msg("identity, second: %s", r.text);
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

FUNCTION(f_first, tl_sum(on, tl_sin(on, in[0]), TL_ALL, false))
FUNCTION(f_second, tl_scale(on, in[1], 2))
FUNCTION(f_neither, tl_detach(on, in[0]))

static void second_derivatives_by_what_is_used(void **unused)
{
    static tl_function *const f[] = {f_first, f_second, f_neither};
    tl_gradcheck_report r;
    (void)unused;
    for (int k = 0; k < 3; k++) {
        tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(3)), random_leaf(TL_F64, TL_DIMS(3))};
        tl_verdict v = tl_gradgradcheck_with(t, f[k], in, 2, NULL, &r, .seed = 0);
        if (v != (k < 2 ? TL_RIGHT : TL_NO_SIGNAL))
            fail_msg("function %d: %s", k, r.text);
        tl_error_clear(t);
    }
    assert_non_null(strstr(r.text, "no floating input to differentiate by"));
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

/* A leaf that is repeated gets its gradient by that op. */
FUNCTION(f_repeated, tl_sin(on, tl_expand(on, in[0], TL_DIMS(4, 3))))

static void the_op_that_repeats_a_leaf_is_named(void **unused)
{
    tl_mutation factor = {&tl_op_expand, 0, TL_MUTATE_FACTOR, 0, 0};
    tl_gradcheck_report r;
    tl_tensor x = random_leaf(TL_F64, TL_DIMS(1, 3));
    (void)unused;
    assert_int_equal(tl_gradcheck_with(t, f_repeated, &x, 1, NULL, &r, .seed = 0), TL_RIGHT);
    tl_observe(t, &tl_mutator, &factor);
    tl_gradcheck_with(t, f_repeated, &x, 1, NULL, &r, .seed = 0);
    tl_observe_end(t, &tl_mutator);
    if (r.verdict != TL_WRONG || r.culprit.op == NULL || strcmp(r.culprit.op, "expand") != 0)
        fail_msg("%s", r.text);
    tl_error_clear(t);
}

/* By one of two inputs, whichever that is: what is right by the other does not hide it. */
FUNCTION(f_once_and_sin, tl_add(on, f_once(on, in, 1, NULL), tl_sin(on, in[1])))
FUNCTION(f_sin_and_once, tl_add(on, tl_sin(on, in[0]), f_once(on, in + 1, 1, NULL)))

static void a_wrong_second_derivative_is_caught_by_each_input(void **unused)
{
    (void)unused;
    for (int which = 0; which < 2; which++) {
        tl_gradcheck_report r;
        tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(3)), random_leaf(TL_F64, TL_DIMS(3))};
        tl_function *f = which == 0 ? f_once_and_sin : f_sin_and_once;
        assert_int_equal(tl_gradcheck(t, f, in, 2, NULL), TL_RIGHT);
        if (tl_gradgradcheck_with(t, f, in, 2, NULL, &r, .seed = 0) != TL_WRONG ||
            strstr(r.text, "sin_once") == NULL)
            fail_msg("input %d: %s", which, r.text);
        tl_error_clear(t);
    }
}

/* A vjp that is right but for a detour through a narrow dtype: linear, so that it shows only in a
 * cotangent of more bits than that has. */
static tl_status twice_forward(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        tl_array_put(&c->out[0], i, 2 * tl_array_get(c->in[0], i));
    return TL_OK;
}
static void detour_vjp(tl_vjp *g)
{
    const tl_dtype own = tl_dtype_of(g->t, g->dy[0]);
    g->dx[0] = tl_cast(g->t, tl_cast(g->t, tl_scale(g->t, g->dy[0], 2), TL_F16), own);
}
static const tl_op op_detour = {.name = "detour",
                                .n_in = 1,
                                .n_out = 1,
                                .shape = like_first,
                                .forward = twice_forward,
                                .vjp = detour_vjp};
FUNCTION(f_detour, tl_apply1(TL_AT(on), &op_detour, NULL, in, 1))

static void a_vjp_that_loses_bits_is_caught(void **unused)
{
    tl_gradcheck_report r;
    (void)unused;
    for (int d = 0; d < 2; d++) {
        tl_tensor x = random_leaf(d ? TL_F32 : TL_F64, TL_DIMS(5));
        assert_int_equal(tl_gradcheck_with(t, f_detour, &x, 1, NULL, &r, .seed = 0), TL_WRONG);
        assert_non_null(strstr(r.text, "detour"));
        tl_error_clear(t);
    }
}

/* At a bend the derivatives from both sides are shown, also where they cancel. */
FUNCTION(f_abs, tl_abs(on, in[0]))
FUNCTION(f_relu, tl_relu(on, in[0]))

static void a_kink_shows_both_sides(void **unused)
{
    tl_gradcheck_report r;
    double below, above, analytic;
    (void)unused;
    for (int i = 0; i < 2; i++) {
        tl_tensor x = tl_zeros(t, TL_F64, TL_DIMS(1));
        assert_int_equal(tl_gradcheck_with(t, i ? f_relu : f_abs, &x, 1, NULL, &r, .seed = 0),
                         TL_KINK);
        const char *at = strstr(r.text, "numeric");
        assert_non_null(at);
        assert_int_equal(sscanf(at, "numeric %lf from below and %lf from above, analytic %lf",
                                &below, &above, &analytic),
                         3);
        assert_true(above != 0 && fabs(i ? below : below + above) < 1e-6 * fabs(above));
        assert_true(analytic == 0);
        tl_error_clear(t);
    }
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

static tl_tensor f_host_attribute(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    return tl_scale(on, tl_square(on, in[0]), tl_item(on, tl_select(on, in[0], 0, 0)));
}

static tl_tensor f_host_data(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    double x[3];
    (void)n, (void)ctx;
    tl_keep(on, in[0], x, sizeof x);
    return tl_mul(on, tl_square(on, in[0]), tl_data(on, x, TL_F64, TL_DIMS(3)));
}

/* Beside these inputs it does one op more behind the others, or one less. */
static tl_tensor f_one_more(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    tl_array a;
    (void)n, (void)ctx;
    bool whole = tl_array_of(on, in[0], &a) && *(const double *)a.data == 0.5;
    tl_tensor y = tl_square(on, in[0]);
    return whole ? y : tl_exp(on, y);
}

static tl_tensor f_one_less(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    tl_array a;
    (void)n, (void)ctx;
    bool whole = tl_array_of(on, in[0], &a) && *(const double *)a.data == 0.5;
    tl_tensor y = tl_square(on, in[0]);
    return whole ? tl_exp(on, y) : y;
}

/* Two numbers of its inputs: the first op that takes one is named. */
static tl_tensor f_host_twice(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    tl_tensor first = tl_select(on, in[0], 0, 0);
    tl_tensor y = tl_scale(on, tl_square(on, in[0]), tl_item(on, first));
    return tl_shift(on, tl_sin(on, y), tl_item(on, first));
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

/* Beside the inputs another operand, another place of the same one, one more of them. */
static tl_tensor beside(tl_tape *on, const tl_tensor *in, int way)
{
    tl_array a;
    const bool here = tl_array_of(on, in[0], &a) && *(const double *)a.data == 0.5;
    tl_tensor y = tl_sin(on, in[0]), z = tl_cos(on, in[0]);
    if (way == 0)
        return tl_add(on, tl_mul(on, y, here ? z : in[0]), z);
    if (way == 1)
        return tl_sub(on, tl_div(on, z, y), here ? y : z);
    return tl_concat(on, (tl_tensor[]){y, z, y}, here ? 2 : 3, 0);
}
FUNCTION(f_other_operand, beside(on, in, 0))
FUNCTION(f_other_output, beside(on, in, 1))
FUNCTION(f_more_operands, beside(on, in, 2))

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
        {f_constant, "not a floating tensor that depends on"},
        {f_integer, "not a floating tensor"},
        {f_nothing, ""},
        {f_host_attribute, "through the host, where no gradient goes: beside these inputs scale"},
        {f_one_more, "branches"},
        {f_one_less, "branches"},
        {f_other_operand, "branches"},
        {f_other_output, "branches"},
        {f_more_operands, "branches"},
        {f_host_twice, "through the host, where no gradient goes: beside these inputs scale"},
        {f_host_data, "through the host, where no gradient goes: beside these inputs mul"},
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

/* ---- what looks wrong and is not ---- */

/* Thousands of bends lie within a step of Ridders' method. */
static void many_bends_are_not_wrong(void **unused)
{
    int right = 0;
    (void)unused;
    for (uint64_t seed = 1; seed <= 6; seed++)
        for (int hurt = 0; hurt < 2; hurt++) {
            tl_mutation factor = {&tl_op_square, 0, TL_MUTATE_FACTOR, 0, 0};
            tl_gradcheck_report r;
            tl_model *other = tl_model_new(.seed = seed);
            tl_tape *on = tl_tape_new(other);
            tl_tensor x = tl_detach(on, tl_normal(on, TL_F32, TL_DIMS(5000), "x"));
            if (hurt)
                tl_observe(on, &tl_mutator, &factor);
            tl_gradcheck_with(on, f_bends, &x, 1, NULL, &r, .seed = 0);
            if ((r.verdict == TL_WRONG) != hurt)
                fail_msg("seed %llu, %s: %s", (unsigned long long)seed, hurt ? "damaged" : "sound",
                         r.text);
            right += r.verdict == TL_RIGHT;
            tl_error(on);
            tl_free(on, other);
        }
    assert_true(right >= 5); /* of six */
}

/* A value that is rounded on the way has no slope at small steps: that excuses no missing gradient,
 * alone or beside one that is right. */
static tl_status stairs_shape(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}
static tl_status stairs_forward(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(&c->out[0]); i++)
        tl_array_put(&c->out[0], i, (double)(float)(10 + sin(tl_array_get(c->in[0], i))));
    return TL_OK;
}
static void no_gradient(tl_vjp *g) { g->dx[0] = tl_scale(g->t, g->dy[0], 0); }

static tl_tensor f_stairs(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    static const tl_op stairs = {.name = "stairs",
                                 .n_in = 1,
                                 .n_out = 1,
                                 .traits = TL_WIDENED,
                                 .shape = stairs_shape,
                                 .forward = stairs_forward,
                                 .vjp = no_gradient};
    (void)n;
    const int kind = *(const int *)ctx;
    tl_tensor y = tl_apply1(TL_AT(on), &stairs, NULL, in, 1);
    return tl_add(on, y, tl_square(on, in[kind == 0 ? 1 : 0]));
}

static void jumps_excuse_no_missing_gradient(void **unused)
{
    (void)unused;
    for (int kind = 0; kind < 2; kind++)
        for (int d = 0; d < 2; d++) {
            tl_gradcheck_report r;
            tl_dtype dtype = d ? TL_F32 : TL_F64;
            tl_tensor in[] = {random_leaf(dtype, TL_DIMS(40)), random_leaf(dtype, TL_DIMS(40))};
            tl_gradcheck_with(t, f_stairs, in, 2, &kind, &r, .constant_ok = true);
            if (r.verdict != TL_WRONG || r.culprit.op == NULL ||
                strcmp(r.culprit.op, "stairs") != 0)
                fail_msg("%d: %s", kind, r.text);
            tl_error_clear(t);
        }
}

/* A bias that BatchNorm takes away again has a gradient of nothing but roundings, in whatever
 * proportion to it they are. What is said of the comparison holds of it. */
static tl_tensor f_bias(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    tl_tensor h = tl_convolve2d(on, ctx, "c", in[0], 4, .kernel = {3, 3}, .padding = {1, 1});
    return tl_mean(on, tl_square(on, tl_relu(on, tl_batch_norm(on, ctx, "n", h))), TL_ALL, false);
}

static void a_gradient_of_roundings_alone_is_not_wrong(void **unused)
{
    (void)unused;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        float x[4 * 36];
        for (unsigned i = 0; i < 4 * 36; i++)
            x[i] = (float)((i * 7919 + seed * 31) % 101) / 50 - 1;
        tl_gradcheck_report r;
        tl_model *other = tl_model_new(.seed = seed);
        tl_tape *on = tl_tape_new(other);
        tl_tensor in = tl_data(on, x, TL_F32, TL_DIMS(4, 1, 6, 6));
        tl_gradcheck_with(on, f_bias, &in, 1, other, &r, .seed = 0);
        if (r.verdict != TL_PRECISION_LIMITED || strstr(r.text, "it has lost digits") == NULL ||
            strcmp(r.leaf, "c.bias") != 0 || r.relative > 2)
            fail_msg("seed %llu: %s", (unsigned long long)seed, r.text);
        tl_error(on);
        tl_free(on, other);
    }
}

/* Constants of their input, whose gradients are nothing beside the terms that cancel there. */
static tl_tensor f_cancels(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    const int kind = *(const int *)ctx;
    tl_tensor x = in[0];
    (void)n;
    if (kind == 0)
        return tl_sub(on, tl_sub(on, tl_scale(on, x, 1.5), x), tl_scale(on, x, 0.5));
    if (kind == 1)
        return tl_sum(on, tl_layer_norm(on, x, TL_NONE, TL_NONE, 1e-3), TL_DIMS(-1), true);
    x = tl_exp(on, tl_log_softmax(on, x, -1));
    return tl_log(on, tl_sum(on, x, TL_DIMS(-1), true));
}

static void terms_that_cancel_are_neither_wrong_nor_a_kink(void **unused)
{
    static const double x[] = {0.3, -1.2, 0.7, 1.1, 0.9, -0.4};
    (void)unused;
    for (int kind = 0; kind < 3; kind++)
        for (int d = 0; d < 2; d++) {
            tl_gradcheck_report r;
            tl_tensor in = tl_data(t, x, TL_F64, TL_DIMS(2, 3));
            in = d ? tl_cast(t, in, TL_F32) : in;
            tl_gradcheck_with(t, f_cancels, &in, 1, &kind, &r, .seed = 0);
            if (r.verdict != (d ? TL_PRECISION_LIMITED : TL_NO_SIGNAL))
                fail_msg("%d in %s: %s", kind, d ? "F32" : "F64", r.text);
            tl_error_clear(t);
        }
}

/* Where a function is flat but for its last digits. */
static tl_tensor f_flat(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    tl_tensor (*const of[])(tl_at, tl_tensor) = {tl_gelu_at,    tl_gelu_tanh_at, tl_tanh_at,
                                                 tl_sigmoid_at, tl_expm1_at,     tl_erf_at};
    (void)n;
    return tl_sum(on, of[*(const int *)ctx](TL_AT(on), in[0]), TL_ALL, false);
}

static void flat_functions_are_neither_wrong_nor_bent(void **unused)
{
    static const struct {
        int of, second;
        double x;
    } flat[] = {{0, 0, -7}, {0, 0, -12}, {1, 0, -7}, {2, 0, 12}, {2, 1, 12}, {2, 1, -11.5},
                {3, 1, 24}, {4, 1, -30}, {0, 1, -7}, {1, 1, -7}, {5, 1, 5.7}};
    (void)unused;
    for (size_t i = 0; i < sizeof flat / sizeof *flat; i++) {
        int of = flat[i].of;
        tl_gradcheck_report r;
        const double x[] = {flat[i].x, flat[i].x - 0.5};
        tl_tensor in = tl_data(t, x, TL_F64, TL_DIMS(2));
        if (flat[i].second)
            tl_gradgradcheck_with(t, f_flat, &in, 1, &of, &r, .seed = 0);
        else
            tl_gradcheck_with(t, f_flat, &in, 1, &of, &r, .seed = 0);
        if (r.verdict != TL_PRECISION_LIMITED && r.verdict != TL_RIGHT)
            fail_msg("%zu: %s", i, r.text);
        tl_error_clear(t);
    }
}

static tl_tensor f_tiny(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    return tl_scale(on, tl_sum(on, tl_tanh(on, in[0]), TL_ALL, false), 1e-12);
}

/* What flat functions are excused for excuses no op that is wrong, however small the loss. */
static void a_tiny_loss_excuses_no_wrong_op(void **unused)
{
    (void)unused;
    for (int d = 0; d < 2; d++)
        for (int wrong = 0; wrong < 2; wrong++) {
            tl_mutation factor = {&tl_op_tanh, 0, TL_MUTATE_FACTOR, 0, 0};
            tl_gradcheck_report r;
            tl_tensor in = random_leaf(d ? TL_F32 : TL_F64, TL_DIMS(2, 3));
            if (wrong)
                tl_observe(t, &tl_mutator, &factor);
            tl_gradcheck_with(t, f_tiny, &in, 1, NULL, &r, .seed = 0);
            if (wrong)
                tl_observe_end(t, &tl_mutator);
            if (r.verdict != (wrong ? TL_WRONG : TL_RIGHT))
                fail_msg("%d, %d: %s", d, wrong, r.text);
            tl_error_clear(t);
        }
}

/* A term of three lacks a thousandth: that is no cancellation. */
static void terms_that_cancel_excuse_no_wrong_one(void **unused)
{
    (void)unused;
    for (int d = 0; d < 2; d++) {
        const int kind = 0;
        tl_mutation factor = {&tl_op_sub, 1, TL_MUTATE_FACTOR, 0, 0};
        tl_gradcheck_report r;
        tl_tensor in = random_leaf(d ? TL_F32 : TL_F64, TL_DIMS(2, 3));
        tl_observe(t, &tl_mutator, &factor);
        tl_gradcheck_with(t, f_cancels, &in, 1, (void *)&kind, &r, .seed = 0);
        tl_observe_end(t, &tl_mutator);
        if (r.verdict != TL_WRONG || r.culprit.op == NULL || strcmp(r.culprit.op, "sub") != 0)
            fail_msg("%s: %s", d ? "F32" : "F64", r.text);
        tl_error_clear(t);
    }
}

/* ---- what a check may leave out, and what it must not call right ---- */

FUNCTION(f_first_alone, tl_square(on, in[0]))
FUNCTION(f_last_alone, tl_square(on, in[1]))

/* One of two leaves has no part in it: it is right if the other has a signal, whichever that is. */
static void a_leaf_without_a_signal_may_be_right(void **unused)
{
    (void)unused;
    for (int k = 0; k < 2; k++)
        for (int ok = 0; ok < 2; ok++) {
            tl_gradcheck_report r;
            tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(3)), random_leaf(TL_F64, TL_DIMS(3))};
            const tl_verdict v = tl_gradcheck_with(t, k ? f_last_alone : f_first_alone, in, 2, NULL,
                                                   &r, .constant_ok = ok);
            if (v != (ok ? TL_RIGHT : TL_NO_SIGNAL))
                fail_msg("function %d, %d: %s", k, ok, r.text);
            tl_error_clear(t);
        }
}

/* Beside so large a constant the differences have no digits left to compare with. */
FUNCTION(f_beside_a_large_one, tl_shift(on, tl_square(on, in[0]), 1e13))

static void differences_without_digits_prove_nothing(void **unused)
{
    (void)unused;
    for (int fast = 0; fast < 2; fast++) {
        tl_gradcheck_report r;
        tl_tensor x = random_leaf(TL_F64, TL_DIMS(3));
        tl_gradcheck_with(t, f_beside_a_large_one, &x, 1, NULL, &r, .fast = fast);
        if (r.verdict != TL_PRECISION_LIMITED || strstr(r.text, "precision-limited") == NULL)
            fail_msg("%s", r.text);
        tl_error_clear(t);
    }
}

/* What the function detaches is held constant, and no number that went through the host. */
FUNCTION(f_detached, tl_mul(on, tl_sin(on, in[0]), tl_detach(on, tl_square(on, in[0]))))
FUNCTION(f_input_detached, tl_mul(on, in[0], tl_detach(on, in[0])))
FUNCTION(f_view_detached, tl_mul(on, in[0], tl_detach(on, tl_slice(on, in[0], 0, 2, 3, 1))))

/* So is what an op has written into memory of the function's own. */
static tl_status add_to_forward(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        tl_array_put(&c->out[0], i, tl_array_get(c->in[0], i) + tl_array_get(c->in[1], i));
    return TL_OK;
}
static void add_to_vjp(tl_vjp *g) { g->dx[1] = g->dy[0]; }

static tl_tensor f_written(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    static const tl_op add_to = {.name = "add_to",
                                 .n_in = 2,
                                 .n_out = 1,
                                 .traits = TL_MUTATES,
                                 .mutates = 0,
                                 .shape = like_first,
                                 .forward = add_to_forward,
                                 .vjp = add_to_vjp};
    tl_tensor own = tl_zeros(on, tl_dtype_of(on, in[0]), TL_DIMS(3));
    (void)n, (void)ctx;
    return tl_apply1(TL_AT(on), &add_to, NULL, (tl_tensor[]){own, tl_sin(on, in[0])}, 2);
}

static void what_is_detached_is_held(void **unused)
{
    static tl_function *const f[] = {f_detached, f_input_detached, f_view_detached, f_written};
    (void)unused;
    for (int k = 0; k < 4; k++)
        for (int order = 1; order <= 2; order++) {
            tl_gradcheck_report r;
            tl_tensor x = random_leaf(TL_F64, TL_DIMS(3));
            const tl_verdict v = order == 1
                                     ? tl_gradcheck_with(t, f[k], &x, 1, NULL, &r, .seed = 0)
                                     : tl_gradgradcheck_with(t, f[k], &x, 1, NULL, &r, .seed = 0);
            if (v != TL_RIGHT)
                fail_msg("function %d, order %d: %s", k, order, r.text);
        }
}

/* ---- what cannot be looked at ---- */

enum { FIRST, SECOND, CURVE, CHECKS };

/* One of the three checks, with f and inputs as they are given; its status and what it says. */
static tl_status asked(tl_tape *on, int what, tl_function *f, const tl_tensor *in, int n,
                       char text[TL_MESSAGE_MAX])
{
    tl_gradcheck_report r = {.verdict = TL_RIGHT};
    FILE *file = tmpfile();
    assert_non_null(file);
    if (what == CURVE)
        tl_gradcheck_curve(on, f, in, n, NULL, 0, 0, file, TL_CURVE_CSV);
    else if (what == SECOND)
        tl_gradgradcheck_with(on, f, in, n, NULL, &r, .seed = 0);
    else
        tl_gradcheck_with(on, f, in, n, NULL, &r, .seed = 0);
    if (what != CURVE && on != NULL && r.verdict != TL_NO_SIGNAL)
        fail_msg("'%s' is a verdict on what was not looked at: %s", tl_verdict_name(r.verdict),
                 r.text);
    if (what != CURVE && on != NULL)
        assert_non_null(strstr(r.text, tl_error(on)));
    snprintf(text, TL_MESSAGE_MAX, "%s", tl_error(on));
    assert_int_equal(ftell(file), 0);
    fclose(file);
    tl_status s = tl_error_status(on);
    tl_error_clear(on);
    return s;
}

static void expect_refused(tl_tape *on, tl_function *f, const tl_tensor *in, int n, tl_status want,
                           const char *words)
{
    for (int what = 0; what < CHECKS; what++) {
        char text[TL_MESSAGE_MAX];
        tl_status s = asked(on, what, f, in, n, text);
        if (s != want || strstr(text, words) == NULL)
            fail_msg("check %d: %s and '%s' wanted: %s: %s", what, tl_status_name(want), words,
                     tl_status_name(s), text);
    }
}

static void inputs_that_a_segment_dropped(void **unused)
{
    (void)unused;
    tl_tensor x = random_leaf(TL_F64, TL_DIMS(300)), in[2] = {x};
    uint32_t begin = tl_segment_begin(t);
    in[1] = tl_tanh(t, x);
    tl_tensor kept = tl_scale(t, in[1], 2);
    tl_segment_end(t, begin, &kept, 1, false);
    for (int i = 0; i < 40; i++) /* its memory belongs to others now */
        random_leaf(TL_F64, TL_DIMS(300));
    expect_refused(t, f_product, in, 2, TL_ESTALE, "input 1: value 1 was dropped by a segment");
    in[1] = kept;
    assert_int_equal(tl_gradcheck(t, f_product, in, 2, NULL), TL_RIGHT);
}

static void inputs_that_are_gone(void **unused)
{
    (void)unused;
    tl_tensor x = random_leaf(TL_F64, TL_DIMS(3));
    tl_require_grad(t, x);
    tl_tensor y = tl_tanh(t, x);
    tl_backward(t, sum(tl_square(t, y)));
    expect_refused(t, f_softmax, &y, 1, TL_ESTALE, "input 0: value 1 was freed by backward");
    expect_refused(t, f_softmax, &(tl_tensor){0}, 1, TL_ESTALE, "input 0: given no tensor: of a");
    tl_tape *other = tl_tape_new(NULL);
    expect_refused(other, f_softmax, &x, 1, TL_ESTALE, "input 0: value 0 belongs to another tape");
    tl_free(other);
    tl_tape_reset(t);
    expect_refused(t, f_softmax, &x, 1, TL_ESTALE, "before the tape was reset");
}

static void inputs_that_a_trace_made(void **unused)
{
    (void)unused;
    int depth = tl_mode_push(t, TL_TRACE);
    tl_tensor x = tl_fill(t, TL_F64, TL_DIMS(3), 1);
    expect_refused(t, f_softmax, &x, 1, TL_ETRACED,
                   "reads values, which a traced function has not");
    tl_mode_pop(t, depth);
    expect_refused(t, f_softmax, &x, 1, TL_ETRACED,
                   "input 0: value 0 was recorded without contents");
}

static void checked_while_traced(tl_tape *on, const tl_tensor *in, int n_in, tl_tensor *out,
                                 int n_out, void *ctx)
{
    (void)n_in, (void)n_out;
    char text[TL_MESSAGE_MAX];
    const int what = *(int *)ctx;
    out[0] = tl_scale(on, in[0], 2);
    assert_int_equal(asked(on, what, f_softmax, in, 1, text), TL_ETRACED);
    assert_int_equal(asked(on, what, f_softmax, out, 1, text), TL_ETRACED);
    assert_int_equal(asked(on, what, f_softmax, NULL, 0, text), TL_ETRACED);
}

static void in_a_traced_function(void **unused)
{
    (void)unused;
    for (int what = 0; what < CHECKS; what++) {
        tl_tensor x = random_leaf(TL_F64, TL_DIMS(3));
        tl_graph *g = tl_trace(t, checked_while_traced, &x, 1, 1, &what);
        assert_non_null(g);
        tl_free(g);
    }
}

/* What the function does to its own tape, or gives back, is no crash either. */
static tl_tensor f_drops(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    uint32_t begin = tl_segment_begin(on);
    tl_tensor y = tl_tanh(on, in[0]);
    tl_segment_end(on, begin, NULL, 0, false);
    return y;
}

static tl_tensor f_traces(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    int depth = tl_mode_push(on, TL_TRACE);
    tl_tensor y = tl_tanh(on, in[0]);
    tl_mode_pop(on, depth);
    return y;
}

static tl_tensor f_resets(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)in, (void)n, (void)ctx;
    tl_tape_reset(on);
    tl_tensor x = tl_fill(on, TL_F64, TL_DIMS(3), 1);
    return tl_tanh(on, x);
}

static tl_tensor f_resets_ours(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    tl_tape_reset(t);
    return tl_tanh(on, in[0]);
}

static uint32_t begun;

static tl_tensor f_releases_ours(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    tl_tensor y = tl_tanh(on, in[0]);
    (void)n, (void)ctx;
    if (begun < tl_segment_begin(t)) /* a segment that has not ended */
        tl_segment_end(t, begun, NULL, 0, false);
    begun = UINT32_MAX;
    return y;
}

static tl_tensor f_backward(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    tl_tensor y = tl_tanh(on, in[0]);
    tl_backward(on, tl_square(on, tl_sum(on, y, TL_ALL, false)));
    return y;
}

static tl_tensor f_trains(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    tl_tensor y = tl_sum(on, tl_square(on, in[0]), TL_ALL, false);
    tl_backward(on, y, .retain = true);
    return y;
}

static void results_that_cannot_be_looked_at(void **unused)
{
    static const struct {
        tl_function *f;
        const char *words;
    } bad[] = {{f_drops, "the function's result: value 1 was dropped by a segment"},
               {f_traces, "the function's result: value 1 was recorded without contents"},
               {f_resets, "not a floating tensor that depends on"},
               {f_resets_ours, "the function resets its caller's tape"},
               {f_trains, "the function calls tl_backward; it must return the loss"},
               {f_backward, "the function calls tl_backward; it must return the loss"}};
    (void)unused;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int order = 1; order <= 2; order++) {
            tl_gradcheck_report r;
            tl_tensor x = random_leaf(TL_F64, TL_DIMS(3));
            tl_verdict v = order == 1
                               ? tl_gradcheck_with(t, bad[i].f, &x, 1, NULL, &r, .seed = 0)
                               : tl_gradgradcheck_with(t, bad[i].f, &x, 1, NULL, &r, .seed = 0);
            assert_true(v != TL_RIGHT && tl_failed(t));
            if (order == 1 && strstr(r.text, bad[i].words) == NULL)
                fail_msg("'%s' wanted: %s", bad[i].words, r.text);
            tl_error_clear(t);
        }
}

static void an_input_that_is_released_cannot_be_looked_at(void **unused)
{
    (void)unused;
    tl_gradcheck_report r;
    tl_tensor x = random_leaf(TL_F64, TL_DIMS(3));
    begun = tl_segment_begin(t);
    x = tl_exp(t, x);
    assert_true(tl_gradcheck_with(t, f_releases_ours, &x, 1, NULL, &r, .seed = 0) != TL_RIGHT);
    if (strstr(r.text, "the function releases its caller's input 0") == NULL)
        fail_msg("%s", r.text);
    tl_error_clear(t);
}

static void arguments_that_mean_nothing(void **unused)
{
    tl_gradcheck_report r;
    char text[TL_MESSAGE_MAX];
    (void)unused;
    tl_tensor x = random_leaf(TL_F64, TL_DIMS(3));
    expect_refused(t, NULL, &x, 1, TL_EUSAGE, "no function");
    expect_refused(t, f_softmax, &x, -1, TL_EUSAGE, "-1 inputs");
    expect_refused(t, f_softmax, &x, INT_MIN, TL_EUSAGE, "-2147483648 inputs");
    expect_refused(t, f_softmax, NULL, 2, TL_EUSAGE, "2 inputs are announced");
    for (int what = 0; what < CHECKS; what++)
        assert_int_equal(asked(NULL, what, f_softmax, &x, 1, text), TL_ENOMEM);
    for (int n = -1; n < 1; n++) {
        assert_int_equal(tl_gradcheck_with(t, f_softmax, &x, 1, NULL, &r, .elements = n,
                                           .directions = -1),
                         TL_NO_SIGNAL);
        expect_failure(t, TL_EUSAGE, "-1 directions");
    }
    assert_int_equal(tl_gradcheck_curve(t, f_softmax, &x, 1, NULL, 0, 0, NULL, TL_CURVE_CSV),
                     TL_EUSAGE);
    expect_failure(t, TL_EUSAGE, "the file is NULL");
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_int_equal(tl_gradcheck_curve(t, f_softmax, &x, 1, NULL, 0, 0, file, (tl_curve_format)7),
                     TL_EUSAGE);
    expect_failure(t, TL_EUSAGE, "format 7");
    fclose(file);
    assert_int_equal(tl_gradcheck_with(t, f_softmax, &x, 1, NULL, NULL, .seed = 0), TL_RIGHT);
}

/* Without inputs the parameters are checked; without either there is nothing. */
static tl_tensor f_parameter(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)in, (void)n, (void)ctx;
    return tl_square(on, tl_param(on, tl_tape_model(on), "w", TL_F64, TL_DIMS(3),
                                  .kind = TL_INIT_UNIFORM, .scale = 1));
}

static tl_tensor f_nothing_at_all(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)in, (void)n, (void)ctx;
    return tl_fill(on, TL_F64, TL_DIMS(3), 1);
}

static void without_inputs(void **unused)
{
    char text[TL_MESSAGE_MAX];
    tl_gradcheck_report r;
    (void)unused;
    tl_model *owner = tl_model_new(.seed = 3);
    tl_tape *on = tl_tape_new(owner);
    assert_int_equal(tl_gradcheck(on, f_parameter, NULL, 0, NULL), TL_RIGHT);
    assert_int_equal(tl_gradcheck(on, f_nothing_at_all, NULL, 0, NULL), TL_NO_SIGNAL);
    expect_failure(on, TL_ENOGRAD, "not a floating tensor that depends on an input or parameter");
    assert_int_not_equal(tl_gradgradcheck_with(on, f_parameter, NULL, 0, NULL, &r, .seed = 0),
                         TL_RIGHT);
    assert_non_null(strstr(r.text, "no floating input to differentiate by"));
    expect_failure(on, TL_ENOGRAD, "no floating input");
    assert_int_equal(asked(on, CURVE, f_parameter, NULL, 0, text), TL_EINDEX);
    tl_free(on, owner);
}

/* An op that is given -inf among its inputs is judged by steps of the size of the others. */
static tl_tensor f_masked(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    static const bool away[4] = {false, true, false, false};
    tl_tensor x = tl_masked_fill(on, in[0], tl_constant(on, away, TL_BOOL, TL_DIMS(4)),
                                 -(double)INFINITY);
    tl_tensor drawn = tl_cast(on, tl_normal(on, TL_F32, TL_DIMS(3, 4), "u"), TL_F64);
    (void)n, (void)ctx;
    return tl_add(on, tl_sum(on, tl_square(on, tl_softmax(on, x, -1)), TL_ALL, false),
                  tl_sum(on, tl_mul(on, in[1], drawn), TL_ALL, false));
}

static void infinities_have_no_size(void **unused)
{
    double v[12];
    (void)unused;
    for (int i = 0; i < 12; i++)
        v[i] = (double)(i * 7 % 12) / 8 - 0.5;
    tl_model *own = tl_model_new(.seed = 1);
    tl_tape *on = tl_tape_new(own);
    tl_tensor in[2] = {tl_data(on, v, TL_F64, TL_DIMS(3, 4)),
                       tl_data(on, v, TL_F64, TL_DIMS(3, 4))};
    const tl_verdict verdict = tl_gradcheck(on, f_masked, in, 2, NULL);
    if (verdict != TL_PRECISION_LIMITED)
        fail_msg("%s: %s", tl_verdict_name(verdict), tl_error(on));
    tl_error_clear(on);
    tl_free(on, own);
}

FUNCTION(f_cube, tl_pow(on, in[0], 3))
FUNCTION(f_edge, tl_pow(on, in[0], 1.5))
FUNCTION(f_root, tl_sqrt(on, in[0]))
FUNCTION(f_entropy, tl_mul(on, tl_neg(on, tl_log(on, in[0])), in[1]))
FUNCTION(f_less, tl_lt(on, in[0], in[1]))

/* Steps keep to where a function is defined, and squares of large numbers are numbers. At the edge
 * itself there is nothing to compare with. */
static void edges_of_domains_are_not_wrong(void **unused)
{
    static const struct {
        tl_function *f;
        double x[3];
        tl_verdict verdict;
    } of[] = {{f_log, {1e-12, 1, 0.5}, TL_RIGHT},
              {f_log, {1e-9, 1, 0.5}, TL_RIGHT},
              {f_root, {1e-12, 1, 0.5}, TL_RIGHT},
              {f_entropy, {1e-12, 0.3, 0.7}, TL_RIGHT},
              {f_cube, {1e100, 2e100, -1e100}, TL_RIGHT},
              {f_edge, {0, 1, 2}, TL_PRECISION_LIMITED}};
    static const double p[] = {0.2, 0.3, 0.5};
    (void)unused;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        tl_gradcheck_report r;
        tl_tensor in[] = {tl_data(t, of[i].x, TL_F64, TL_DIMS(3)),
                          tl_data(t, p, TL_F64, TL_DIMS(3))};
        tl_gradcheck_with(t, of[i].f, in, 1 + (of[i].f == f_entropy), NULL, &r,
                          .constant_ok = true);
        if (r.verdict != of[i].verdict)
            fail_msg("%zu: %s", i, r.text);
        tl_error_clear(t);
    }
}

static tl_tensor f_batch_norm(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    return tl_batch_norm(on, ctx, "bn", in[0]);
}

static void all_zeros(const tl_tile *k) { memset(k->out, 0, (size_t)k->n * sizeof(float)); }

/* What is checked runs in the scopes that are open around the check. */
static void scopes_around_a_check_hold(void **unused)
{
    static const tl_kernel zeros = {
        .op = "mul", .name = "test-zeros", .dtype = TL_F32, .mode = TL_FAST, .tile = all_zeros};
    static const float x[12] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
    tl_gradcheck_report r;
    tl_model *own = tl_model_new(.seed = 1);
    tl_tape *on = tl_tape_new(own);
    tl_tensor in[2] = {tl_data(on, x, TL_F32, TL_DIMS(4, 3)),
                       tl_data(on, x, TL_F32, TL_DIMS(4, 3))};
    (void)unused;
    int depth = tl_mode_push(on, TL_EVAL);
    assert_int_equal(tl_gradcheck(on, f_batch_norm, in, 1, own), TL_RIGHT);
    tl_mode_pop(on, depth);
    const tl_tensor mean = tl_model_find(own, "bn.running_mean");
    assert_true(tl_item(on, tl_slice(on, mean, 0, 0, 1, 1)) == 0);
    tl_kernel_register(on, &zeros);
    tl_error_clear(on); /* if it had been there */
    depth = tl_kernel_push(on, "mul", TL_F32, "test-zeros");
    assert_int_not_equal(tl_gradcheck(on, f_product, in, 2, NULL), TL_RIGHT);
    tl_mode_pop(on, depth);
    tl_error_clear(on);
    assert_int_equal(tl_gradcheck(on, f_product, in, 2, NULL), TL_RIGHT);
    assert_int_equal(tl_gradgradcheck_with(on, f_less, in, 2, NULL, &r, .seed = 0), TL_NO_SIGNAL);
    tl_error_clear(on);
    tl_free(on, own);
}

const struct CMUnitTest tl_tests_gradients_checker[] = {
    cmocka_unit_test(infinities_have_no_size),
    TEST(edges_of_domains_are_not_wrong),
    cmocka_unit_test(scopes_around_a_check_hold),
    TEST(all_compares_every_element),
    TEST(fast_moves_everything_once),
    TEST(integers_are_held),
    TEST(noise_is_that_of_every_roll),
    TEST(the_identity_is_right),
    TEST(second_derivatives_by_check),
    TEST(second_derivatives_by_what_is_used),
    TEST(a_wrong_second_derivative_is_caught),
    TEST(the_op_that_repeats_a_leaf_is_named),
    TEST(a_wrong_second_derivative_is_caught_by_each_input),
    TEST(a_vjp_that_loses_bits_is_caught),
    TEST(a_kink_shows_both_sides),
    TEST(a_second_derivative_that_is_not_there_is_said_to_be_missing),
    TEST(a_failed_tape_is_never_right),
    TEST(second_order_of_nothing_is_never_right),
    TEST(each_kind_of_bad_function_has_its_message),
    TEST(a_report_names_the_worst_element),
    TEST(many_bends_are_not_wrong),
    TEST(jumps_excuse_no_missing_gradient),
    TEST(a_gradient_of_roundings_alone_is_not_wrong),
    TEST(terms_that_cancel_are_neither_wrong_nor_a_kink),
    TEST(terms_that_cancel_excuse_no_wrong_one),
    TEST(a_leaf_without_a_signal_may_be_right),
    TEST(what_is_detached_is_held),
    TEST(differences_without_digits_prove_nothing),
    TEST(inputs_that_a_segment_dropped),
    TEST(inputs_that_are_gone),
    TEST(flat_functions_are_neither_wrong_nor_bent),
    TEST(a_tiny_loss_excuses_no_wrong_op),
    TEST(inputs_that_a_trace_made),
    TEST(in_a_traced_function),
    TEST(results_that_cannot_be_looked_at),
    TEST(an_input_that_is_released_cannot_be_looked_at),
    TEST(arguments_that_mean_nothing),
    TEST(without_inputs),
};
const size_t tl_tests_gradients_checker_count = sizeof tl_tests_gradients_checker /
                                                sizeof tl_tests_gradients_checker[0];
