/* Anomaly mode: the first op that makes a NaN or an infinity is named, with its place, and no
 * other. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tally_extend.h>

extern const struct CMUnitTest tl_tests_anomaly[];
extern const size_t tl_tests_anomaly_count;

static tl_tape *t;

static int begin(void **unused)
{
    (void)unused;
    t = tl_tape_new(NULL);
    return t == NULL;
}

static int end(void **unused)
{
    (void)unused;
    tl_free(t);
    return 0;
}

static tl_tensor leaf(tl_dtype d, double a, double b, double c)
{
    const double x[] = {a, b, c};
    tl_tensor l = tl_zeros(t, d, TL_DIMS(3)),
              from = tl_cast(t, tl_data(t, x, TL_F64, TL_DIMS(3)), d);
    tl_array to, f;
    if (tl_array_of(t, l, &to) && tl_array_of(t, from, &f))
        tl_array_copy(&to, &f);
    return l;
}

/* The error names that op, this file and that line, and begins with start. */
static void blames(const char *start, const char *op, int line)
{
    char place[64];
    snprintf(place, sizeof place, "test_anomaly.c:%d)", line);
    if (tl_error_status(t) != TL_EDOMAIN || strncmp(tl_error(t), start, strlen(start)) != 0 ||
        strstr(tl_error(t), op) == NULL || strstr(tl_error(t), place) == NULL ||
        strstr(tl_error(t), "from finite inputs") == NULL)
        fail_msg("'%s', '%s' and line %d wanted: %s", start, op, line, tl_error(t));
    tl_error_clear(t);
}

static const tl_dtype floats[] = {TL_F64, TL_F32, TL_F16, TL_BF16};

static void the_first_op_is_named_and_no_later_one(void **unused)
{
    (void)unused;
    for (int d = 0; d < 4; d++) {
        int depth = tl_mode_push(t, TL_ANOMALY);
        tl_tensor x = leaf(floats[d], 1, -2, 3), y = tl_square(t, x);
        assert_false(tl_failed(t));
        int line = __LINE__ + 1;
        tl_tensor z = tl_log(t, x);
        assert_true(tl_is_none(z));
        tl_exp(t, z);
        tl_add(t, y, z); /* later ones change nothing about it */
        if (strstr(tl_error(t), "nan") == NULL ||
            strstr(tl_error(t), "element 1 of its output [3]") == NULL)
            fail_msg("%s", tl_error(t));
        blames("log: made", "log", line);
        tl_mode_pop(t, depth);
    }
}

static void infinities_are_named_as_nans_are(void **unused)
{
    (void)unused;
    int depth = tl_mode_push(t, TL_ANOMALY), line;
    tl_tensor x = leaf(TL_F32, 1, 2, 0), big = leaf(TL_F32, 3e38, 1, -1),
              half = leaf(TL_F16, 6e4, 1, 1);
    line = __LINE__ + 1;
    tl_div(t, big, x);
    blames("div: made -inf", "element 2", line);
    line = __LINE__ + 1;
    tl_scale(t, big, 2);
    blames("scale: made inf at element 0", "scale", line);
    line = __LINE__ + 1;
    tl_add(t, half, half); /* finite in f32, not in f16 */
    blames("add: made inf at element 0", "add", line);
    line = __LINE__ + 1;
    tl_matmul(t, big, big);
    blames("matmul: made inf", "matmul", line);
    line = __LINE__ + 1;
    tl_cast(t, big, TL_F16);
    blames("cast: made inf at element 0", "cast", line);
    line = __LINE__ + 1;
    tl_mean(t, tl_fill(t, TL_F32, TL_DIMS(0), 0), TL_ALL, false);
    blames("mean: made", "nan", line);
    tl_mode_pop(t, depth);
}

static void what_came_in_is_not_blamed(void **unused)
{
    (void)unused;
    int depth = tl_mode_push(t, TL_ANOMALY);
    static const double bad[] = {(double)INFINITY, -(double)INFINITY, (double)NAN};
    for (int d = 0; d < 4; d++)
        for (int i = 0; i < 3; i++) {
            tl_tensor x = leaf(floats[d], 1, bad[i], 3), one = leaf(floats[d], 1, 1, 1);
            tl_sub(t, tl_mul(t, tl_exp(t, tl_square(t, x)), one), x);
            tl_softmax(t, tl_add(t, one, x), -1);
            tl_max(t, x, TL_ALL, false);
            if (tl_failed(t))
                fail_msg("%s: %s", tl_dtype_name(floats[d]), tl_error(t));
        }
    tl_mode_pop(t, depth);
}

/* An op without inputs that is asked for an infinity has done what it was told. */
static void a_constant_is_not_an_anomaly(void **unused)
{
    (void)unused;
    int depth = tl_mode_push(t, TL_ANOMALY);
    tl_tensor mask = tl_causal_mask(t, 3, 3), x = tl_zeros(t, TL_F32, TL_DIMS(3, 3));
    tl_tensor y = tl_softmax(t, tl_masked_fill(t, x, mask, -(double)INFINITY), -1);
    if (tl_failed(t))
        fail_msg("%s", tl_error(t));
    tl_fill(t, TL_F32, TL_DIMS(3), (double)INFINITY);
    if (tl_failed(t))
        fail_msg("%s", tl_error(t));
    (void)y;
    tl_mode_pop(t, depth);
}

static void backward_names_the_forward_ops_place(void **unused)
{
    (void)unused;
    for (int d = 0; d < 2; d++) {
        tl_tensor x = leaf(floats[d], 1, 0, 4);
        tl_require_grad(t, x);
        int depth = tl_mode_push(t, TL_ANOMALY), line = __LINE__ + 1;
        tl_tensor y = tl_sqrt(t, x); /* finite; its slope at 0 is not */
        tl_tensor loss = tl_sum(t, tl_scale(t, y, 3), TL_ALL, false);
        assert_false(tl_failed(t));
        tl_backward(t, loss);
        blames("sqrt: backward: ", "made", line);
        tl_mode_pop(t, depth);
        tl_tape_reset(t);
        tl_grad_clear(t);
    }
}

static void gradients_name_the_forward_ops_place(void **unused)
{
    (void)unused;
    tl_tensor x = leaf(TL_F64, 1, 0, 4), dx;
    tl_require_grad(t, x);
    int depth = tl_mode_push(t, TL_ANOMALY), line = __LINE__ + 1;
    tl_tensor y = tl_sqrt(t, x);
    tl_gradients(t, tl_sum(t, y, TL_ALL, false), &x, 1, TL_NONE, &dx);
    blames("sqrt: backward: ", "made", line);
    tl_mode_pop(t, depth);
}

static void a_module_is_blamed_at_its_callers_place(void **unused)
{
    (void)unused;
    int depth = tl_mode_push(t, TL_ANOMALY), line = __LINE__ + 1;
    int place = tl_place_push(TL_AT(t));
    tl_tensor x = leaf(TL_F32, 1, 2, -1);
    tl_log(t, tl_scale(t, x, 2));
    tl_place_pop(t, place);
    blames("log: made", "log", line);
    tl_mode_pop(t, depth);
}

/* ---- an op that changes its inputs, and one with two outputs ---- */

static tl_status like_first(tl_call *c)
{
    for (int i = 0; i < c->n_out; i++)
        c->out[i] = *c->in[0];
    return TL_OK;
}

/* p += m * x, after m += x. */
static tl_status gather_speed(tl_call *c)
{
    float *p = c->in[0]->data, *m = c->in[1]->data;
    const float *x = c->in[2]->data;
    for (int i = 0; i < 3; i++)
        p[i] += (m[i] += x[i]) * x[i];
    return TL_OK;
}

static const tl_op op_speed = {.name = "gather_speed",
                               .n_in = 3,
                               .n_out = 1,
                               .traits = TL_MUTATES | TL_NONDIFF,
                               .mutates = 0,
                               .changes = TL_BIT(1),
                               .shape = like_first,
                               .forward = gather_speed};

/* What an op changes is what it made, if that was finite before: all of it, or its first input
 * alone. But what it only reads, or was not finite before, came from elsewhere. */
static void an_op_that_changes_its_inputs_is_blamed(void **unused)
{
    (void)unused;
    for (int whose = 0; whose < 6; whose++) {
        tl_tensor in[] = {leaf(TL_F32, 1, 2, 3), leaf(TL_F32, 1, 1, whose == 1 ? 3e38 : 1),
                          leaf(TL_F32, 1, 0,
                               whose == 1   ? 3e38
                               : whose == 0 ? 2e19
                                            : 1)};
        tl_array x;
        if (whose >= 2 && whose < 5 && tl_array_of(t, in[4 - whose], &x))
            tl_array_put(&x, 0, (double)NAN);
        const int depth = tl_mode_push(t, TL_ANOMALY), line = __LINE__ + 1;
        tl_apply1(TL_AT(t), &op_speed, NULL, in, 3);
        if (whose < 2)
            blames("gather_speed: made inf at element 2", "gather_speed", line);
        if (tl_failed(t))
            fail_msg("%d: %s", whose, tl_error(t));
        tl_mode_pop(t, depth);
    }
}

static tl_status halve_and_invert(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++) {
        const double x = tl_array_get(c->in[0], i);
        tl_array_put(&c->out[0], i, x / 2);
        tl_array_put(&c->out[1], i, 1 / x);
    }
    return TL_OK;
}

static void every_output_is_looked_through(void **unused)
{
    static const tl_op op = {.name = "two_of_one",
                             .n_in = 1,
                             .n_out = 2,
                             .shape = like_first,
                             .forward = halve_and_invert};
    (void)unused;
    for (int d = 0; d < 4; d++) {
        const tl_tensor x = leaf(floats[d], 1, 0, 3);
        tl_tensor out[2];
        const int depth = tl_mode_push(t, TL_ANOMALY), line = __LINE__ + 1;
        tl_apply(TL_AT(t), &op, NULL, &x, 1, out);
        blames("two_of_one: made inf at element 1", "two_of_one", line);
        tl_mode_pop(t, depth);
    }
}

static void off_by_default(void **unused)
{
    double g[3];
    (void)unused;
    assert_int_equal(tl_mode(t) & TL_ANOMALY, 0);
    tl_tensor x = leaf(TL_F64, 1, 0, -4);
    tl_require_grad(t, x);
    tl_tensor y = tl_log(t, x);
    tl_backward(t, tl_sum(t, tl_sqrt(t, y), TL_ALL, false));
    assert_false(tl_failed(t));
    assert_int_equal(tl_keep(t, tl_grad(t, x), g, sizeof g), TL_OK);
    assert_true(isnan(g[2]));
    int depth = tl_mode_push(t, TL_ANOMALY);
    tl_mode_pop(t, depth);
    tl_log(t, x);
    assert_false(tl_failed(t));
}

static void nothing_is_recorded_of_the_guilty_op(void **unused)
{
    (void)unused;
    tl_tensor x = leaf(TL_F32, 1, -1, 1);
    int depth = tl_mode_push(t, TL_ANOMALY);
    size_t nodes = tl_memory_stats(t).nodes, values = tl_memory_stats(t).values;
    tl_log(t, x);
    assert_int_equal(tl_memory_stats(t).nodes, nodes);
    assert_int_equal(tl_memory_stats(t).values, values);
    tl_error_clear(t);
    tl_mode_pop(t, depth);
    assert_false(tl_is_none(tl_log(t, x)));
}

static void powers(tl_tape *of, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    out[0] = tl_sum(of, tl_exp(of, tl_scale(of, in[0], 100)), TL_ALL, false);
}

/* A result would take the place of an operand: then the operand could not be looked at any more. */
static void a_graph_blames_alike(void **unused)
{
    (void)unused;
    tl_tensor x = leaf(TL_F32, 0, 1, 2), y;
    for (int plain = 0; plain < 2; plain++) {
        int depth = tl_mode_push(t, TL_ANOMALY);
        tl_compiled *c = tl_compile(t, powers, 1, NULL, .no_fuse = plain);
        assert_int_equal(tl_run(c, &x, 1, &y), TL_EDOMAIN);
        if (strncmp(tl_error(t), "exp: made inf at element 1", 26) != 0)
            fail_msg("%s", tl_error(t));
        tl_error_clear(t);
        tl_mode_pop(t, depth);
        assert_int_equal(tl_run(c, &x, 1, &y), TL_OK);
        tl_free(c);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
const struct CMUnitTest tl_tests_anomaly[] = {
    TEST(the_first_op_is_named_and_no_later_one),
    TEST(infinities_are_named_as_nans_are),
    TEST(what_came_in_is_not_blamed),
    TEST(a_constant_is_not_an_anomaly),
    TEST(backward_names_the_forward_ops_place),
    TEST(gradients_name_the_forward_ops_place),
    TEST(a_module_is_blamed_at_its_callers_place),
    TEST(a_graph_blames_alike),
    TEST(an_op_that_changes_its_inputs_is_blamed),
    TEST(every_output_is_looked_through),
    TEST(off_by_default),
    TEST(nothing_is_recorded_of_the_guilty_op),
};
const size_t tl_tests_anomaly_count = sizeof tl_tests_anomaly / sizeof tl_tests_anomaly[0];
