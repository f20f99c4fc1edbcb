/* Pattern replacement, rules of one's own: the modes they act in, switching them off, a check of
 * one's own, an end to replacing, patterns joint with backward and patterns built by hand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/support/rules.h"

extern const struct CMUnitTest tl_tests_pattern_rules[];
extern const size_t tl_tests_pattern_rules_count;

/* ---- modes, switches ---- */

PROGRAM(fast)
{
    UNUSED;
    int mode = tl_mode_push(t, TL_FAST);
    out[0] = tl_mul(t, tl_silu(t, in[0]), in[1]);
    tl_mode_pop(t, mode);
}

PROGRAM(selected)
{
    UNUSED;
    int mode = tl_kernel_push(t, NULL, TL_ANY_DTYPE, "invariant");
    out[0] = tl_mul(t, tl_silu(t, in[0]), in[1]);
    tl_mode_pop(t, mode);
}

PROGRAM(two_modes)
{
    UNUSED;
    int mode = tl_mode_push(t, TL_ANOMALY);
    tl_tensor s = tl_silu(t, in[0]);
    tl_mode_pop(t, mode);
    out[0] = tl_mul(t, s, in[1]);
}

static void modes_agree(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1),
                       both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    expect_refused(m, fast, in, 2, 1, "it was recorded under TL_FAST");
    expect_refused(m, selected, in, 2, 1, "kernels are selected where it was recorded");
    expect_refused(m, two_modes, in, 2, 1, "were recorded in different modes");
    tl_free(m);
}

static void what_is_switched_off_is_absent(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1),
                       both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    const tl_graph_options without = {.without = "add_rms_norm,swiglu"},
                           other = {.without = "add_rms_norm"}, none = {.no_replace = true};
    expect_text(both_ways(m, rule_turned_swiglu, in, 2, 1, m, other).replaced, "swiglu");
    expect_text(both_ways(m, rule_turned_swiglu, in, 2, 1, m, without).report,
                "nothing was replaced\n");
    expect_text(both_ways(m, rule_turned_swiglu, in, 2, 1, m, none).report,
                "nothing was replaced\n");
    assert_true(tl_replacement_enable("swiglu", false));
    expect_text(both_ways(m, rule_turned_swiglu, in, 2, 1, m, (tl_graph_options){0}).report,
                "nothing was replaced\n");
    assert_true(tl_replacement_enable("swiglu", true));
    assert_false(tl_replacement_enable("no such name", true));
    const char *was = getenv("TL_WITHOUT");
    char *saved = was == NULL ? NULL : strdup(was);
    setenv("TL_WITHOUT", "swiglu", 1);
    expect_text(both_ways(m, rule_turned_swiglu, in, 2, 1, m, (tl_graph_options){0}).report,
                "nothing was replaced\n");
    setenv("TL_WITHOUT", "all", 1);
    expect_text(both_ways(m, rule_turned_swiglu, in, 2, 1, m, (tl_graph_options){0}).report,
                "nothing was replaced\n");
    if (saved != NULL)
        setenv("TL_WITHOUT", saved, 1);
    else
        unsetenv("TL_WITHOUT");
    free(saved);
    tl_free(m);
}

/* ---- the usual example: a fusion of one's own where the last dim is 7168 ---- */

PROGRAM(search_add_norm)
{
    const tl_pattern_values *v = ctx;
    (void)n_in, (void)n_out;
    out[1] = tl_add(t, in[0], in[1]);
    out[0] = tl_rms_norm(t, out[1], in[2], v->scalar[0]);
}

PROGRAM(put_add_norm)
{
    const tl_pattern_values *v = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_add_rms_norm(t, in[0], in[1], in[2], v->scalar[0], NULL, &out[1]);
}

static bool last_dim_is_7168(const tl_match *m, void *ctx)
{
    const tl_array *x = tl_match_input(m, "x1");
    int line;
    (void)ctx;
    assert_null(tl_match_input(m, "no such name"));
    assert_null(tl_match_constant(m, "x1"));
    assert_true(tl_match_scalar(m, "eps") == 1e-6 &&
                tl_match_scalar(m, "no such name") != tl_match_scalar(m, "no such name"));
    expect_text(tl_match_place(m, &line), "test_pattern_rules.c");
    assert_true(line > 0 && x->dtype == TL_F32);
    return x->dim[x->ndim - 1] == 7168;
}

PROGRAM(add_norm)
{
    UNUSED;
    out[0] = tl_rms_norm(t, tl_add(t, in[0], in[1]), in[2], 1e-6);
}

static void a_fusion_for_7168_fires_there_and_only_there(void **state)
{
    (void)state;
    static const tl_pattern_arg args[] = {TL_ARG("x1", TL_F32, TL_DIMS(2, 40)),
                                          TL_ARG("x2", TL_F32, TL_DIMS(2, 40)),
                                          TL_ARG("gamma", TL_F32, TL_DIMS(40), .or_f32 = true)};
    static const tl_pattern_scalar scalars[] = {{"eps", 0x1.3p-11}};
    static const tl_replacement rule = {.name = "my_add_norm",
                                        .search = search_add_norm,
                                        .replace = put_add_norm,
                                        .example_inputs = args,
                                        .n_in = 3,
                                        .n_out = 2,
                                        .scalars = scalars,
                                        .n_scalars = 1,
                                        .extra_check = last_dim_is_7168,
                                        .exact = TL_ALL_FLOATS};
    tl_model *m = tl_model_new(.seed = 1);
    rule_on(&rule);
    for (int64_t d = 7167; d <= 7169; d++) {
        tl_tensor in[3] = {both_data(m, TL_F32, TL_DIMS(2, d), 1),
                           both_data(m, TL_F32, TL_DIMS(2, d), 2),
                           both_data(m, TL_F32, TL_DIMS(d), 3)};
        both_result r = both_ways(m, add_norm, in, 3, 1, m,
                                  (tl_graph_options){.without = "add_rms_norm"});
        assert_true(r.same);
        expect_text(r.report, d == 7168 ? "my_add_norm: replaced 1 time, exact"
                                        : "my_add_norm: not replaced: extra_check says no");
        r = both_ways(m, add_norm, in, 3, 1, m, (tl_graph_options){0}); /* one's own comes first */
        expect_text(r.replaced, d == 7168 ? "my_add_norm" : "add_rms_norm: replaced 1 time");
        r = both_ways(m, add_norm, in, 3, 1, m,
                      (tl_graph_options){.without = "my_add_norm,add_rms_norm"});
        expect_text(r.report, "nothing was replaced\n");
    }
    rule_off(&rule);
    tl_free(m);
}

/* ---- without end ---- */

static const tl_replacement halved = {.name = "test_undouble",
                                      .search = rule_add_itself,
                                      .replace = rule_scale_by_2,
                                      .example_inputs = rule_one_arg,
                                      .n_in = 1,
                                      .n_out = 1,
                                      .exact = TL_ALL_FLOATS};

PROGRAM(negated)
{
    UNUSED;
    out[0] = tl_neg(t, in[0]);
}

PROGRAM(negated_thrice)
{
    UNUSED;
    out[0] = tl_neg(t, tl_neg(t, tl_neg(t, in[0])));
}

static const tl_replacement tripled = {.name = "test_triple",
                                       .search = negated,
                                       .replace = negated_thrice,
                                       .example_inputs = rule_one_arg,
                                       .n_in = 1,
                                       .n_out = 1,
                                       .exact = TL_ALL_FLOATS};

/* Two that undo each other, and one that holds what it searches for. */
static void replacing_comes_to_an_end(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    rule_on(&rule_doubled);
    rule_on(&halved);
    both_result r = both_ways(m, rule_scale_by_2, &in, 1, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "test_double: replaced 1 time");
    expect_text(r.replaced, "test_undouble: replaced 1 time");
    expect_text(r.report, "was made by this replacement: it would go on for ever");
    rule_off(&rule_doubled);
    rule_off(&halved);
    rule_on(&tripled);
    r = both_ways(m, negated, &in, 1, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "test_triple: replaced 1 time, exact");
    expect_text(r.report, "was made by this replacement: it would go on for ever");
    rule_off(&tripled);
    tl_free(m);
}

/* ---- joint with backward, and patterns built by hand ---- */

PROGRAM(trained_swiglu)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    tl_tensor a = tl_matmul(t, in[0], rule_weight(t, m)),
              b = tl_mul(t, in[0], rule_gamma(t, m, "gamma"));
    rule_trained(t, m, tl_mul(t, tl_silu(t, a), b), out);
}

static void a_joint_pattern_is_found_in_the_expanded_graph(void **state)
{
    (void)state;
    static const tl_pattern_arg args[] = {TL_ARG("a", TL_F32, TL_DIMS(2, 4)),
                                          TL_ARG("b", TL_F32, TL_DIMS(2, 4))};
    static const tl_replacement rule = {.name = "test_joint",
                                        .search = rule_written_swiglu,
                                        .replace = rule_swiglu,
                                        .example_inputs = args,
                                        .n_in = 2,
                                        .n_out = 1,
                                        .trace = TL_TRACE_JOINT,
                                        .exact = TL_BIT(TL_F32) | TL_BIT(TL_F64)};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    rule_on(&rule);
    both_result r = both_ways(m, trained_swiglu, &in, 1, 3, m,
                              (tl_graph_options){.without = "swiglu"});
    assert_true(r.same);
    expect_text(r.report, "test_joint: replaced 1 time, exact");
    rule_off(&rule);
    r = both_ways(m, trained_swiglu, &in, 1, 3, m,
                  (tl_graph_options){0}); /* the same by the forward pattern */
    assert_true(r.same);
    expect_text(r.replaced, "swiglu: replaced 1 time, exact");
    tl_free(m);
}

PROGRAM(search_add_norm_plus_one)
{
    const tl_pattern_values *v = ctx;
    (void)n_in, (void)n_out;
    out[1] = tl_add(t, in[0], in[1]);
    out[0] = tl_rms_norm_plus_one(t, out[1], in[2], v->scalar[0]);
}

PROGRAM(put_add_norm_plus_one)
{
    const tl_pattern_values *v = ctx;
    (void)n_in, (void)n_out;
    out[1] = tl_add(t, in[0], in[1]);
    out[0] = tl_rms_norm(t, out[1], tl_shift(t, in[2], 1), v->scalar[0]);
}

PROGRAM(add_norm_plus_one)
{
    UNUSED;
    out[0] = tl_rms_norm_plus_one(t, tl_add(t, in[0], in[1]), in[2], 1e-6);
}

/* Two rules of the same ops, which differ in an attribute behind the one that may be any number. */
static void rules_may_differ_in_one_attribute(void **state)
{
    (void)state;
    static const tl_pattern_arg args[] = {TL_ARG("x1", TL_F32, TL_DIMS(2, 40)),
                                          TL_ARG("x2", TL_F32, TL_DIMS(2, 40)),
                                          TL_ARG("gamma", TL_F32, TL_DIMS(40))};
    static const tl_pattern_scalar scalars[] = {{"eps", 0x1.3p-11}};
    static const tl_replacement rule = {.name = "my_add_norm_plus_one",
                                        .search = search_add_norm_plus_one,
                                        .replace = put_add_norm_plus_one,
                                        .example_inputs = args,
                                        .n_in = 3,
                                        .n_out = 2,
                                        .scalars = scalars,
                                        .n_scalars = 1};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[3] = {both_data(m, TL_F32, TL_DIMS(2, 8), 1),
                       both_data(m, TL_F32, TL_DIMS(2, 8), 2), both_data(m, TL_F32, TL_DIMS(8), 3)};
    rule_on(&rule);
    both_result r = both_ways(m, add_norm_plus_one, in, 3, 1, m,
                              (tl_graph_options){.rounds = true});
    expect_text(r.replaced, "my_add_norm_plus_one: replaced 1 time");
    r = both_ways(m, add_norm, in, 3, 1, m, (tl_graph_options){.rounds = true});
    expect_text(r.replaced, "add_rms_norm: replaced 1 time");
    rule_off(&rule);
    tl_free(m);
}

PROGRAM(scaled_exp)
{
    const tl_pattern_values *v = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_scale(t, tl_exp(t, in[0]), v->scalar[0]);
}

PROGRAM(put_scaled_exp)
{
    const tl_pattern_values *v = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_mul(t, tl_exp(t, in[0]), tl_scalar(t, tl_dtype_of(t, in[0]), v->scalar[0]));
}

PROGRAM(scaled_exps)
{
    UNUSED;
    out[0] = tl_add(t, tl_scale(t, tl_exp(t, in[0]), 3.25), tl_scale(t, tl_exp(t, in[1]), -0.5));
}

static void a_scalar_differs_from_match_to_match(void **state)
{
    (void)state;
    static const tl_pattern_scalar scalars[] = {{"c", 0.75}};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1),
                       both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    if (!tl_replacement_enable("test_scaled", true)) {
        tl_err e = {.status = TL_OK};
        tl_register_replacement(&e, .name = "test_scaled", .search = scaled_exp,
                                .replace = put_scaled_exp, .example_inputs = rule_one_arg,
                                .n_in = 1, .n_out = 1, .scalars = scalars, .n_scalars = 1,
                                .exact_forward = TL_BIT(TL_F32));
        assert_string_equal(e.message, "");
    }
    both_result r = both_ways(m, scaled_exps, in, 2, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "test_scaled: replaced 2 times, exact");
    assert_true(tl_replacement_enable("test_scaled", false));
    tl_free(m);
}

PROGRAM(exp_beside_scaled)
{
    const tl_pattern_values *v = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_exp(t, in[0]);
    out[1] = tl_neg(t, tl_scale(t, in[0], v->scalar[0]));
}

PROGRAM(put_exp_beside_scaled)
{
    const tl_pattern_values *v = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_exp(t, in[0]);
    out[1] = tl_scale(t, tl_neg(t, in[0]), v->scalar[0]);
}

/* Of two products that fit, that by the example's number has another user: the other's number is
 * another. */
PROGRAM(exp_beside_two)
{
    const bool turned = *(const bool *)ctx;
    tl_tensor by[2];
    (void)n_in, (void)n_out;
    out[0] = tl_exp(t, in[0]);
    for (int i = 0; i < 2; i++)
        by[i] = tl_scale(t, in[0], (i == 0) == turned ? 3.25 : 0.75);
    out[1] = tl_neg(t, by[0]);
    out[2] = tl_neg(t, by[1]);
    out[3] = tl_cos(t, by[turned]);
}

static void the_scalar_of_a_place_is_that_of_its_nodes(void **state)
{
    (void)state;
    static const tl_pattern_scalar scalars[] = {{"c", 0.75}};
    static const tl_replacement rule = {.name = "test_exp_beside_scaled",
                                        .search = exp_beside_scaled,
                                        .replace = put_exp_beside_scaled,
                                        .example_inputs = rule_one_arg,
                                        .n_in = 1,
                                        .n_out = 2,
                                        .scalars = scalars,
                                        .n_scalars = 1,
                                        .exact_forward = TL_BIT(TL_F32)};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    rule_on(&rule);
    for (int turned = 0; turned < 2; turned++) {
        bool how = turned;
        both_result r = both_ways(m, exp_beside_two, &in, 1, 4, &how, (tl_graph_options){0});
        assert_true(r.same);
    }
    rule_off(&rule);
    tl_free(m);
}

PROGRAM(scaled_twice)
{
    const tl_pattern_values *v = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_scale(t, tl_exp(t, tl_scale(t, in[0], v->scalar[0])), v->scalar[0]);
}

PROGRAM(put_scaled_twice)
{
    const tl_pattern_values *v = ctx;
    tl_tensor c = tl_scalar(t, tl_dtype_of(t, in[0]), v->scalar[0]);
    (void)n_in, (void)n_out;
    out[0] = tl_mul(t, tl_exp(t, tl_mul(t, in[0], c)), c);
}

PROGRAM(scaled_by_two_numbers)
{
    const double *c = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_scale(t, tl_exp(t, tl_scale(t, in[0], c[0])), c[1]);
}

/* One scalar argument is one number wherever search uses it. */
static void a_scalar_used_twice_is_one_number(void **state)
{
    (void)state;
    static const tl_pattern_scalar scalars[] = {{"c", 0.75}};
    static const tl_replacement rule = {.name = "test_scaled_twice",
                                        .search = scaled_twice,
                                        .replace = put_scaled_twice,
                                        .example_inputs = rule_one_arg,
                                        .n_in = 1,
                                        .n_out = 1,
                                        .scalars = scalars,
                                        .n_scalars = 1,
                                        .exact_forward = TL_BIT(TL_F32)};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    rule_on(&rule);
    for (int other = 0; other < 2; other++) {
        double c[2] = {3.25, other ? -0.5 : 3.25};
        both_result r = both_ways(m, scaled_by_two_numbers, &in, 1, 1, c, (tl_graph_options){0});
        assert_true(r.same);
        expect_text(r.replaced, other ? "" : "test_scaled_twice: replaced 1 time, exact");
        if (other)
            expect_no_text(r.replaced, "replaced 1 time");
    }
    rule_off(&rule);
    tl_free(m);
}

const struct CMUnitTest tl_tests_pattern_rules[] = {
    cmocka_unit_test(modes_agree),
    cmocka_unit_test(what_is_switched_off_is_absent),
    cmocka_unit_test(a_fusion_for_7168_fires_there_and_only_there),
    cmocka_unit_test(rules_may_differ_in_one_attribute),
    cmocka_unit_test(replacing_comes_to_an_end),
    cmocka_unit_test(a_joint_pattern_is_found_in_the_expanded_graph),
    cmocka_unit_test(a_scalar_differs_from_match_to_match),
    cmocka_unit_test(the_scalar_of_a_place_is_that_of_its_nodes),
    cmocka_unit_test(a_scalar_used_twice_is_one_number),
};
const size_t tl_tests_pattern_rules_count = sizeof tl_tests_pattern_rules /
                                            sizeof *tl_tests_pattern_rules;
