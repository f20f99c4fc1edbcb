/* Runs that differ: what tally-diff says about their logs. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally.h>

#include "autograd/log/read/internal.h"
#include "tensor/threads.h"
#include "tests/support/logged_run.h"

extern const struct CMUnitTest tl_tests_log_diff[];
extern const size_t tl_tests_log_diff_count;

/* ---- runs that differ ---- */

#ifndef TL_ROOT
#define TL_ROOT "."
#endif

/* Every line of the sample in autograd/log/README.md. */
static void is_as_in_readme(void)
{
    char line[512];
    int lines = 0;
    FILE *f = fopen(TL_ROOT "/autograd/log/README.md", "r");
    assert_non_null(f);
    for (bool in = false;
         fgets(line, sizeof line, f) != NULL && (!in || *line == ' ' || *line == '\n');) {
        in |= strstr(line, "    They agree up to step 36") == line;
        lines += in;
        char *place = strstr(line, "  called at"); /* its number may change */
        if (place != NULL)
            *place = '\0';
        if (in && *line == ' ')
            logged_says(line + 4);
    }
    fclose(f);
    assert_true(lines > 10);
}

static void a_flipped_bit_is_found(void **unused)
{
    (void)unused;
    for (int64_t n = LOGGED_BATCH; n >= 4; n -= 8) { /* the same split, then another */
        logged_train(logged_file("good"), (logged_run){.steps = 40, .log = {.keep = 37}});
        logged_train(logged_file("bad"), (logged_run){.steps = 40,
                                                      .micro_batch = n,
                                                      .flip_at = 37,
                                                      .log = {.keep = 37}});
        assert_int_equal(logged_diff("good", "bad"), 1);
        logged_says("They agree up to step 36 and part in step 37, at b");
        logged_says("    flip in the backward of pass (f");
        logged_says("They still agreed, so this op is to blame.");
        logged_says("more\n"); /* the path goes down to where the program began: */
        logged_says("The path that led there:\n"
                    "    same         f1       [11, 16]           parameter embed\n");
        if (n == LOGGED_BATCH) {
            is_as_in_readme();
            logged_says("1 of 1536 elements differ, the first at [0, 2, 5]");
            logged_says("   3 to 4         1  ####");
            logged_says(
                "  +----------------+\n  |     :          |\n"); /* [0, 2, 5]: in the first of 16
                                                                    rows, each of 6 x 1 elements */
        }
    }
}

/* In a compiled run, against a called one and a compiled one; its values can be kept, too. */
static void a_flipped_bit_in_a_graph_is_found(void **unused)
{
    (void)unused;
    logged_train(logged_file("bad"),
                 (logged_run){.steps = 40, .compile = true, .flip_at = 37, .log = {.keep = 37}});
    for (int compile = 0; compile < 2; compile++) {
        logged_train(logged_file("good"),
                     (logged_run){.steps = 40, .compile = compile, .log = {.keep = 37}});
        assert_int_equal(logged_diff("good", "bad"), 1);
        logged_says("They agree up to step 36 and part in step 37, at b");
        logged_says("    flip in the backward of pass (f");
        logged_says("They still agreed, so this op is to blame.");
        logged_says("1 of 1536 elements differ, the first at [0, 2, 5]");
    }
}

/* A program that takes no backward: its results are named to the log. */
static void evaluate(const char *path, double factor, int threads)
{
    static const float x[4][8] = {{1, 2, 3}, {4, 5}, {0, 6}, {7, 8, 9, 10}};
    tl_threads_set(threads);
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_log_open(t, path);
    for (int step = 0; step < 3; step++, tl_tape_reset(t)) {
        int mode = tl_mode_push(t, TL_NO_GRAD);
        tl_tensor h = tl_scale(t, tl_linear(t, m, "l", tl_data(t, x, TL_F32, TL_DIMS(4, 8)), 5),
                               step == 2 ? factor : 1);
        tl_log_reached(t, tl_softmax(t, tl_tanh(t, h), -1));
        tl_mode_pop(t, mode);
        tl_tensor p = tl_data(t, x, TL_F32, TL_DIMS(4, 8)), g;
        tl_require_grad(t, p);
        tl_gradients(t, tl_sum(t, tl_exp(t, tl_scale(t, p, factor / 8)), TL_ALL, false), &p, 1,
                     TL_NONE, &g);
        tl_log_reached(t, g);
        tl_log_step(t);
    }
    assert_int_equal(tl_log_close(t), TL_OK);
    tl_free(t, m);
    tl_threads_set(0);
}

/* Two samples that are alike, at once or one by one: each micro-batch begins its own sum. */
static void train_alike(const char *path, int n)
{
    static const float x[2][3] = {{1, 2, 3}, {1, 2, 3}};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    tl_log_open(t, path);
    for (int at = 0; at < 2; at += n) {
        tl_tensor in = tl_data(t, x[at], TL_F32, TL_DIMS(n, 3));
        tl_tensor y = tl_sum(t, tl_tanh(t, tl_linear(t, m, "l", in, 2)), TL_ALL, false);
        tl_backward(t, tl_scale(t, y, 0.5));
        if (at + n < 2)
            tl_tape_reset(t);
    }
    tl_step(o, t);
    assert_int_equal(tl_log_close(t), TL_OK);
    tl_free(o, t, m);
}

static void sums_of_samples_that_are_alike(void **unused)
{
    (void)unused;
    train_alike(logged_file("good"), 2);
    train_alike(logged_file("bad"), 1);
    assert_int_equal(logged_diff("good", "bad"), 0);
    logged_says("No difference: ");
    logged_says("2 more results could not be compared");
}

/* A table that each micro-batch makes anew, of one size whatever the split. */
static void train_by_table(const char *path, int n, double factor)
{
    static const float x[2][3] = {{1, 2, 3}, {4, 5, 6}}, table[2][3] = {{1, 0, 2}, {0, 3, 0}};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    tl_log_open(t, path, .keep = 1);
    for (int at = 0; at < 2; at += n) {
        tl_tensor h = tl_linear(t, m, "l", tl_data(t, x[at], TL_F32, TL_DIMS(n, 3)), 2);
        tl_tensor k = tl_scale(t, tl_data(t, table, TL_F32, TL_DIMS(2, 3)), factor);
        tl_backward(t, tl_sum(t, tl_matmul(t, h, k), TL_ALL, false));
        if (at + n < 2)
            tl_tape_reset(t);
    }
    tl_step(o, t);
    assert_int_equal(tl_log_close(t), TL_OK);
    tl_free(o, t, m);
}

/* Its elements are compared in the last part that each run made. */
static void a_table_of_each_micro_batch(void **unused)
{
    (void)unused;
    train_by_table(logged_file("good"), 2, 1);
    for (int n = 1; n <= 2; n++) {
        train_by_table(logged_file("bad"), n, 1);
        assert_int_equal(logged_diff("good", "bad"), 0);
        train_by_table(logged_file("bad"), n, 2);
        for (int turned = 0; turned < 2; turned++) {
            assert_int_equal(turned ? logged_diff("bad", "good") : logged_diff("good", "bad"), 1);
            logged_says("3 of 6 elements differ, the first at [0, 0]");
        }
    }
}

static void programs_without_backward_are_logged(void **unused)
{
    (void)unused;
    evaluate(logged_file("one"), 1, 1);
    evaluate(logged_file("two"), 1, 3);
    assert_int_equal(logged_diff("one", "two"), 0);
    logged_says("results of 3 steps are the same");
    evaluate(logged_file("two"), 1.5, 1);
    assert_int_equal(logged_diff("one", "two"), 1);
    logged_says("They part in step 1, at 1:f");
    logged_says("    scale\n");
    logged_says("Its attributes differ: {c=0.125} in A, {c=0.1875} in B.");
}

static void how_to_see_the_elements_is_said(void **unused)
{
    (void)unused;
    logged_train(logged_file("good"), (logged_run){0});
    logged_train(logged_file("bad"), (logged_run){.flip_at = 2});
    assert_int_equal(logged_diff("good", "bad"), 1);
    logged_says("To see the elements, run both again with --log-keep 2 (in a program of yours: "
                "tl_log_open's .keep = 2).");
    logged_train(logged_file("bad"), (logged_run){.flip_at = 2, .log = {.keep = 2}});
    assert_int_equal(logged_diff("good", "bad"), 1);
    logged_says("run A again with --log-keep 2");
    FILE *f = fopen(logged_file("good.step2.safetensors"), "w");
    fputs("nothing", f);
    fclose(f);
    assert_int_equal(logged_diff("good", "bad"), 1);
    logged_says("The values that were kept cannot be read: good.step2.safetensors: has 7 bytes");
}

/* Two products of long rows; the second one under TL_FAST, or not. BLIS cuts rows this long into
 * blocks. */
static void two_products(const char *path, bool fast, int64_t width)
{
    enum { ROWS = 64 };
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    tl_log_open(t, path);
    tl_tensor x = tl_param(t, m, "x", TL_F32, TL_DIMS(ROWS, width), TL_INIT_NORMAL, 1);
    tl_tensor h = tl_linear(t, m, "first", x, width);
    int depth = tl_mode_push(t, fast ? TL_FAST : 0);
    h = tl_linear(t, m, "second", h, width);
    tl_mode_pop(t, depth);
    tl_backward(t, tl_mean(t, tl_square(t, h), TL_ALL, false));
    tl_step(o, t);
    assert_string_equal(tl_error(t), "");
    tl_log_close(t);
    tl_free(o, t, m);
}

static void the_first_fast_matmul_is_named(void **unused)
{
    (void)unused;
    two_products(logged_file("plain"), false, 1500);
    two_products(logged_file("fast"), true, 1500);
    int status = logged_diff("plain", "fast");
#if TL_BLIS
    assert_int_equal(status, 1);
    logged_says("    matmul\n");
    logged_says("parameter second.weight");
    logged_says("They still agreed, so this op is to blame.\nB recorded it under TL_FAST, where "
                "nothing is promised.");
#else
    assert_int_equal(status, 0); /* there is nothing faster */
#endif
}

static void other_values_data_and_rates(void **unused)
{
    (void)unused;
    logged_train(logged_file("plain"), (logged_run){0});
    logged_train(logged_file("seed"), (logged_run){.seed = 2});
    assert_int_equal(logged_diff("plain", "seed"), 1);
    logged_says("part in step 1, at f1:\n\n    parameter embed\n");
    logged_says("The runs began with other values (another seed?): 7 of 7 parameters differ.");
    logged_says("so do 7 of 7 updated parameters");
    logged_train(logged_file("data"), (logged_run){.other_data = true});
    assert_int_equal(logged_diff("plain", "data"), 1);
    logged_says("    data\n    I64 [12, 8]\n");
    logged_says("This is what the program was given: no op is to blame.");
    logged_train(logged_file("rate"), (logged_run){.lr = 0.25});
    assert_int_equal(logged_diff("plain", "rate"), 1);
    logged_says("They part in step 1, at u1:\n\n    the learning rate\n    F64 scalar\n    A  "
                "0.01\n    B  0.25\n");
    logged_says("no op is to blame");
    logged_says_not("--log-keep");
    logged_train(logged_file("from3"), (logged_run){.log = {.first = 3}, .steps = 2});
    assert_int_equal(logged_diff("plain", "from3"), 1);
    logged_says("part in step 3");
}

static void other_programs(void **unused)
{
    (void)unused;
    logged_train(logged_file("plain"), (logged_run){0});
    logged_train(logged_file("deep"), (logged_run){.layers = 3});
    assert_int_equal(logged_diff("plain", "deep"), 1);
    logged_says("Not the same program: the first difference is in step 1, at f21:\n\n"
                "    A  parameter out.weight, F32 [11, 16]\n"
                "    B  parameter layer2.weight, F32 [16, 16]\n");
    logged_says(
        "Parameters of the same name, shape and dtype: 7\n    only in B: 2 (layer2.weight, ...)\n");
    logged_says_not("updated parameters");
    two_products(logged_file("small"), false, 8);
    two_products(logged_file("large"), false, 12);
    assert_int_equal(logged_diff("small", "large"), 1);
    logged_says(
        "    A  parameter first.weight, F32 [8, 8]\n    B  parameter first.weight, F32 [12, 12]\n");
    logged_says(
        "of another shape or dtype: 5 (first.weight: F32 [8, 8] in A, F32 [12, 12] in B, ...)");
    logged_diff("large", "small"); /* and the other way round */
    logged_says(
        "    A  parameter first.weight, F32 [12, 12]\n    B  parameter first.weight, F32 [8, 8]\n");
}

static void arguments_and_exit_statuses(void **unused)
{
    (void)unused;
    logged_train(logged_file("plain"), (logged_run){.steps = 1});
    assert_int_equal(logged_tool("--help"), 0);
    logged_says("exit status: 0 no difference in the steps that both have, 1 the runs differ,\n2 "
                "trouble: ");
    assert_int_equal(logged_tool("plain -h"), 0);
    logged_says("usage: tally-diff LOG_A LOG_B");
    assert_int_equal(logged_tool(""), 2);
    logged_says("two logs are needed\nusage: tally-diff LOG_A LOG_B");
    assert_int_equal(logged_tool("plain"), 2);
    logged_says("only one is given: plain");
    assert_int_equal(logged_tool("plain plain plain"), 2);
    assert_int_equal(logged_tool("--verbose plain"), 2);
    logged_says("unknown flag --verbose");
    assert_int_equal(logged_tool("plain plain"), 0);
    logged_says("A  plain: step 1 (XXH3-128)\n");
}

/* ---- what another program does without another op ---- */

enum { AS_IT_IS, WIRED, FORGETFUL, SCALED, FROZEN };

/* Three steps; from the third on what that variant does otherwise. n samples at once of 4. */
static void train_variant(const char *path, int variant, int n)
{
    static const float x[4][3] = {{1, 2, 3}, {4, 5, 6}, {-1, 0, 1}, {2, -2, 2}};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1, .momentum = 0.9);
    tl_log_open(t, path);
    for (int step = 0; step < 3; step++) {
        const int now = step == 2 ? variant : AS_IT_IS;
        for (int at = 0; at < 4; at += n) {
            tl_tensor in = tl_data(t, x[at], TL_F32, TL_DIMS(n, 3));
            tl_tensor h = tl_linear(t, m, "h", in, 2), p = tl_tanh(t, h);
            tl_tensor y = tl_mul(t, p, now == WIRED ? p : h);
            y = tl_scale(t, y, now == SCALED ? 0.5 : 0.25);
            tl_backward(t, tl_sum(t, y, TL_ALL, false));
            if (at + n < 4)
                tl_tape_reset(t);
        }
        if (now == FROZEN)
            tl_model_freeze(m, "h.bias", true);
        if (now == FORGETFUL) {
            tl_opt *fresh = tl_sgd_new(m, .lr = 0.1, .momentum = 0.9);
            tl_free(o);
            o = fresh;
        }
        tl_step(o, t);
        tl_tape_reset(t);
    }
    assert_int_equal(tl_log_close(t), TL_OK);
    tl_free(o, t, m);
}

/* The same ops, but other inputs, a state that is not logged before it is used, an attribute beside
 * another split, updates that are not there: no op is blamed for these. */
static void what_is_no_op_s_fault_is_told(void **unused)
{
    static const struct {
        int variant, n;
        const char *said, *not_said;
    } of[] = {{AS_IT_IS, 2, "No difference", "differ, too"},
              {WIRED, 4, ": another program.", "to blame"},
              {FORGETFUL, 4, "the optimizer's state, which is logged after the update", "to blame"},
              {SCALED, 4, "Its attributes differ: {c=0.25} in A, {c=0.5} in B.", "to blame"},
              {SCALED, 2, "{c=0.5} in B; so do the splits, which may be why.", "to blame"},
              {FROZEN, 2, "Not the same program: the first difference is in step 3, at u",
               "to blame"}};
    (void)unused;
    train_variant(logged_file("good"), AS_IT_IS, 4);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        train_variant(logged_file("bad"), of[i].variant, of[i].n);
        assert_int_equal(logged_diff("good", "bad"), of[i].variant != AS_IT_IS);
        logged_says(of[i].said);
        logged_says_not(of[i].not_said);
    }
}

static void lengths_samples_and_appended_logs(void **unused)
{
    (void)unused;
    logged_train(logged_file("plain"), (logged_run){.steps = 6});
    logged_train(logged_file("short"), (logged_run){.steps = 4});
    assert_int_equal(logged_diff("plain", "short"), 0);
    logged_says("A goes on to step 6, which B does not have.");
    logged_train(logged_file("every"), (logged_run){.steps = 6, .log = {.every = 3}});
    assert_int_equal(logged_diff("plain", "every"), 0);
    logged_says("6 steps are the same.\nOf 3 of these steps one log has the scalars alone");
    logged_train(logged_file("spoilt"),
                 (logged_run){.steps = 6, .flip_at = 2, .log = {.every = 3}});
    assert_int_equal(logged_diff("plain", "spoilt"), 1);
    logged_says("Only scalars of step 2 were logged in B. The last step compared whole is 1: the "
                "cause lies after it.");
    logged_train(logged_file("later"), (logged_run){.steps = 2, .log = {.first = 7}});
    assert_int_equal(logged_diff("plain", "later"), 2);
    logged_says("no step is in both logs");
    logged_train(logged_file("short"),
                 (logged_run){.steps = 2,
                              .log = {.append = true,
                                      .first = 5}}); /* weights are new: a run that went astray */
    assert_int_equal(logged_diff("plain", "short"), 1);
    logged_says("part in step 5");
}

static void distances_and_pictures(void **unused)
{
    float a[8] = {0, 1, 1, 2, -1, 5, 0, 3}, b[8] = {-0.0f, 1, 1.0000001f, 2, -1, 5, 0, 3};
    tl_shape s = TL_DIMS(2, 4);
    tl_array x = tl_array_make(TL_F32, &s, a), y = tl_array_make(TL_F32, &s, b);
    tl_value_difference d;
    tl_err err = {.status = TL_OK};
    uint32_t nan1 = 0x7fc00001u, nan2 = 0xffc00000u, tiny = 1, minus = 0x80000001u;
    (void)unused;
    assert_int_equal(tl_value_compare(&d, &x, &y, &err), TL_OK);
    assert_int_equal(d.differ, 2);
    assert_int_equal(d.first, 0);
    assert_int_equal(d.ulps[1], 2);
    assert_int_equal(d.rows, 2);
    assert_int_equal(d.columns, 4);
    assert_int_equal(d.cell[0][0], 1);
    assert_int_equal(d.cell[1][0], 0);
    assert_true(tl_ulp_distance(TL_F32, &nan1, &nan2) == 0);
    assert_true(tl_ulp_distance(TL_F32, &nan1, &tiny) == UINT64_MAX);
    assert_true(tl_ulp_distance(TL_F32, &tiny, &minus) == 3); /* -tiny, -0, +0, tiny */
    double p = 1.7976931348623157e308, q = -p;
    assert_true(tl_ulp_distance(TL_F64, &p, &q) > (uint64_t)1 << 63);
    tl_shape none = TL_DIMS(0, 4);
    x = tl_array_make(TL_F32, &none, a);
    assert_int_equal(tl_value_compare(&d, &x, &x, &err), TL_OK);
    assert_int_equal(d.first, -1);
    assert_int_equal(tl_value_compare(&d, &x, &y, &err), TL_ESHAPE);
}

const struct CMUnitTest tl_tests_log_diff[] = {
    cmocka_unit_test(distances_and_pictures),
    cmocka_unit_test_setup_teardown(a_flipped_bit_is_found, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(a_flipped_bit_in_a_graph_is_found, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(sums_of_samples_that_are_alike, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(a_table_of_each_micro_batch, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(programs_without_backward_are_logged, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(how_to_see_the_elements_is_said, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(the_first_fast_matmul_is_named, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(other_values_data_and_rates, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(other_programs, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(what_is_no_op_s_fault_is_told, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(arguments_and_exit_statuses, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(lengths_samples_and_appended_logs, logged_begin, logged_end),
};
const size_t tl_tests_log_diff_count = sizeof tl_tests_log_diff / sizeof *tl_tests_log_diff;
