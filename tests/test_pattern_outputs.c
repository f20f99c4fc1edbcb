/* Pattern replacement, several outputs: found beside each other through what they share, dead in
 * the program or left out of the search; and one node of the pattern for one of the graph. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/rules.h"

extern const struct CMUnitTest tl_tests_pattern_outputs[];
extern const size_t tl_tests_pattern_outputs_count;

static const tl_pattern_arg two[] = {TL_ARG("x", TL_F32, TL_DIMS(2, 4)),
                                     TL_ARG("y", TL_F32, TL_DIMS(2, 4))};

/* ---- two outputs of one value: exp and sin, neither above the other ---- */

PROGRAM(exp_and_sin)
{
    UNUSED;
    tl_tensor h = tl_tanh(t, in[0]);
    out[0] = tl_exp(t, h);
    out[1] = tl_sin(t, h);
}

PROGRAM(exp_and_sin_otherwise)
{
    UNUSED;
    tl_tensor h = tl_neg(t, tl_tanh(t, tl_neg(t, in[0]))); /* tanh is odd, to the bit */
    out[0] = tl_exp(t, h);
    out[1] = tl_sin(t, h);
}

static const tl_replacement beside = {.name = "test_beside",
                                      .search = exp_and_sin,
                                      .replace = exp_and_sin_otherwise,
                                      .example_inputs = rule_one_arg,
                                      .n_in = 1,
                                      .n_out = 2,
                                      .exact_forward = TL_ALL_FLOATS};

PROGRAM(with_a_decoy)
{
    UNUSED;
    tl_tensor h = tl_tanh(t, in[0]), other = tl_sin(t, tl_sin(t, in[1]));
    out[1] = tl_sub(t, other, tl_sin(t, h));
    out[0] = tl_exp(t, h);
}

PROGRAM(one_of_two)
{
    UNUSED;
    out[0] = tl_exp(t, tl_tanh(t, in[0]));
    out[1] = tl_sin(t, in[0]);
}

PROGRAM(shared_elsewhere)
{
    UNUSED;
    tl_tensor h = tl_tanh(t, in[0]);
    out[0] = tl_add(t, tl_exp(t, h), tl_cos(t, h));
    out[1] = tl_sin(t, h);
}

static void outputs_are_found_through_users_of_what_is_matched(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1),
                       both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    rule_on(&beside);
    both_result r = both_ways(m, with_a_decoy, in, 2, 2, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "test_beside: replaced 1 time, exact");
    r = both_ways(m, one_of_two, in, 1, 2, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_no_text(r.report, "test_beside: replaced");
    expect_refused(m, shared_elsewhere, in, 1, 2, "tanh at tests/test_pattern_outputs.c:");
    rule_off(&beside);
    tl_free(m);
}

/* ---- what they share is an argument: a value of the program, or a parameter ---- */

PROGRAM(exp_and_cos_of_x)
{
    UNUSED;
    out[0] = tl_exp(t, in[0]);
    out[1] = tl_cos(t, in[0]);
}

PROGRAM(exp_and_cos_of_minus_x)
{
    UNUSED;
    tl_tensor n = tl_neg(t, in[0]);
    out[0] = tl_exp(t, tl_neg(t, n));
    out[1] = tl_cos(t, n);
}

PROGRAM(of_a_parameter)
{
    int mode = tl_mode_push(t, TL_NO_GRAD);
    tl_tensor g = rule_gamma(t, ctx, "gamma");
    (void)in, (void)n_in, (void)n_out;
    out[1] = tl_cos(t, g);
    out[0] = tl_exp(t, g);
    tl_mode_pop(t, mode);
}

static void an_argument_alone_may_hold_them_together(void **state)
{
    (void)state;
    static const tl_replacement rule = {.name = "test_argument",
                                        .search = exp_and_cos_of_x,
                                        .replace = exp_and_cos_of_minus_x,
                                        .example_inputs = rule_one_arg,
                                        .n_in = 1,
                                        .n_out = 2,
                                        .exact_forward = TL_ALL_FLOATS};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    rule_on(&rule);
    both_result r = both_ways(m, exp_and_cos_of_x, &in, 1, 2, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "test_argument: replaced 1 time, exact");
    r = both_ways(m, of_a_parameter, &in, 1, 2, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "test_argument: replaced 1 time, exact");
    rule_off(&rule);
    tl_free(m);
}

/* ---- dead outputs ---- */

PROGRAM(only_sin)
{
    UNUSED;
    tl_tensor h = tl_tanh(t, in[0]);
    tl_exp(t, h); /* computed, and nobody reads it */
    out[0] = tl_sin(t, h);
}

PROGRAM(only_exp)
{
    UNUSED;
    tl_tensor h = tl_tanh(t, in[0]);
    out[0] = tl_exp(t, h);
    out[1] = TL_NONE; /* the replacement gives more than this */
}

PROGRAM(exp_of_tanh)
{
    UNUSED;
    out[0] = tl_exp(t, tl_tanh(t, in[0]));
}

static void dead_outputs_need_no_pattern_of_their_own(void **state)
{
    (void)state;
    static const tl_replacement less = {.name = "test_left_out",
                                        .search = only_exp,
                                        .replace = exp_and_sin_otherwise,
                                        .example_inputs = rule_one_arg,
                                        .n_in = 1,
                                        .n_out = 2,
                                        .exact_forward = TL_ALL_FLOATS};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    rule_on(&beside);
    both_result r = both_ways(m, only_sin, &in, 1, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "test_beside: replaced 1 time, exact");
    rule_off(&beside);
    rule_on(&less);
    r = both_ways(m, exp_of_tanh, &in, 1, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "test_left_out: replaced 1 time, exact");
    rule_off(&less);
    tl_free(m);
}

/* ---- one node for one node ---- */

PROGRAM(product_of_exps)
{
    UNUSED;
    out[0] = tl_mul(t, tl_exp(t, in[0]), tl_exp(t, in[1]));
}

PROGRAM(product_turned)
{
    UNUSED;
    out[0] = tl_neg(t, tl_mul(t, tl_neg(t, tl_exp(t, in[1])), tl_exp(t, in[0])));
}

PROGRAM(one_exp)
{
    UNUSED;
    tl_tensor e = tl_exp(t, in[0]);
    out[0] = tl_mul(t, e, e);
}

PROGRAM(square_of_one_exp)
{
    UNUSED;
    tl_tensor e = tl_exp(t, in[0]);
    out[0] = tl_mul(t, e, e);
}

PROGRAM(square_otherwise)
{
    UNUSED;
    out[0] = tl_square(t, tl_exp(t, in[0]));
}

static void one_pattern_node_is_one_node(void **state)
{
    (void)state;
    static const tl_replacement pair = {.name = "test_pair",
                                        .search = product_of_exps,
                                        .replace = product_turned,
                                        .example_inputs = two,
                                        .n_in = 2,
                                        .n_out = 1,
                                        .exact_forward = TL_ALL_FLOATS};
    static const tl_replacement single = {.name = "test_single",
                                          .search = square_of_one_exp,
                                          .replace = square_otherwise,
                                          .example_inputs = rule_one_arg,
                                          .n_in = 1,
                                          .n_out = 1,
                                          .exact_forward = TL_ALL_FLOATS};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1),
                       both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    rule_on(&pair);
    expect_text(both_ways(m, product_of_exps, in, 2, 1, m, (tl_graph_options){0}).replaced,
                "test_pair: replaced 1 time");
    expect_no_text(both_ways(m, one_exp, in, 1, 1, m, (tl_graph_options){0}).replaced,
                   "test_pair"); /* two nodes of the pattern, one here */
    rule_off(&pair);
    rule_on(&single);
    expect_text(both_ways(m, one_exp, in, 1, 1, m, (tl_graph_options){0}).replaced,
                "test_single: replaced 1 time");
    expect_no_text(both_ways(m, product_of_exps, in, 2, 1, m, (tl_graph_options){0}).replaced,
                   "test_single"); /* one node, two here */
    rule_off(&single);
    tl_free(m);
}

/* ---- an output that the match reads itself has its own term first, then two of another match ----
 */

PROGRAM(norm_then_doubled)
{
    UNUSED;
    tl_tensor w = tl_param(t, ctx, "w", TL_F16, TL_DIMS(8), TL_INIT_NORMAL, 1);
    tl_tensor x = tl_mul(t, in[0], w);
    tl_tensor a = tl_add(t, x, x);
    tl_tensor s = tl_add(t, tl_swiglu(t, x, tl_rms_norm(t, a, TL_NONE, 1e-3)), x);
    tl_tensor y = tl_rms_norm(t, s, rule_gamma(t, ctx, "one"), 1e-3);
    tl_tensor z = tl_rms_norm(t, tl_add(t, s, s), rule_gamma(t, ctx, "other"), 1e-3);
    tl_tensor first = tl_mul(t, y, tl_sin(t, y)), then = tl_square(t, z);
    out[0] = tl_add(t, tl_sum(t, tl_cast(t, a, TL_F32), TL_ALL, false),
                    tl_add(t, tl_mean(t, tl_cast(t, first, TL_F32), TL_ALL, false),
                           tl_mean(t, tl_cast(t, then, TL_F32), TL_ALL, false)));
    tl_backward(t, out[0]);
    out[1] = tl_grad(t, w);
}

static void two_terms_of_one_match_are_two_behind_its_own(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    for (unsigned seed = 1; seed <= 20; seed++) {
        tl_tensor x = both_data(m, TL_F16, TL_DIMS(4, 8), seed);
        both_result r = both_ways(m, norm_then_doubled, &x, 1, 2, m, (tl_graph_options){0});
        assert_true(r.same);
        expect_text(r.report,
                    "an output, which has 2 other users, would be added in another order");
    }
    tl_free(m);
}

const struct CMUnitTest tl_tests_pattern_outputs[] = {
    cmocka_unit_test(outputs_are_found_through_users_of_what_is_matched),
    cmocka_unit_test(an_argument_alone_may_hold_them_together),
    cmocka_unit_test(dead_outputs_need_no_pattern_of_their_own),
    cmocka_unit_test(one_pattern_node_is_one_node),
    cmocka_unit_test(two_terms_of_one_match_are_two_behind_its_own),
};
const size_t tl_tests_pattern_outputs_count = sizeof tl_tests_pattern_outputs /
                                              sizeof *tl_tests_pattern_outputs;
