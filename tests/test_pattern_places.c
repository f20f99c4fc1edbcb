/* Pattern replacement, where it may stand: changes of memory, outputs that lead back, shared
 * storage, and what only shows with the graph's own shapes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "tests/support/rules.h"

extern const struct CMUnitTest tl_tests_pattern_places[];
extern const size_t tl_tests_pattern_places_count;

/* ---- places ---- */

static void clear_buffer(tl_tape *t, void *ctx)
{
    static const double zeros[24] = {0};
    (void)t;
    assert_int_equal(tl_write(ctx, tl_model_find(ctx, "b"), zeros, sizeof zeros), TL_OK);
}

PROGRAM(changed_between)
{
    tl_model *m = ctx;
    tl_tensor b = tl_buffer(t, m, "b", TL_F64, TL_DIMS(3, 8));
    (void)n_in, (void)n_out;
    tl_host(t, TL_BEFORE, clear_buffer, m);
    tl_sum_to(t, in[0], TL_DIMS(3, 8), b);
    tl_tensor p = tl_mul(t, b, in[1]);
    tl_sum_to(t, in[1], TL_DIMS(3, 8), b);
    out[0] = tl_sub(t, p, b);
}

PROGRAM(changed_before)
{
    tl_model *m = ctx;
    tl_tensor b = tl_buffer(t, m, "b", TL_F64, TL_DIMS(3, 8));
    (void)n_in, (void)n_out;
    tl_host(t, TL_BEFORE, clear_buffer, m);
    tl_sum_to(t, in[0], TL_DIMS(3, 8), b);
    out[0] = tl_sub(t, tl_mul(t, b, in[1]), b);
    tl_sum_to(t, in[1], TL_DIMS(3, 8), b);
}

static void a_match_does_not_reach_across_a_change_of_memory(void **state)
{
    (void)state;
    static const tl_pattern_arg args[] = {TL_ARG("x", TL_F32, TL_DIMS(2, 4)),
                                          TL_ARG("y", TL_F32, TL_DIMS(2, 4))};
    static const tl_replacement rule = {.name = "test_across",
                                        .search = rule_twice_used,
                                        .replace = rule_twice_used_otherwise,
                                        .example_inputs = args,
                                        .n_in = 2,
                                        .n_out = 1,
                                        .extra_check = rule_yes,
                                        .exact_forward = TL_ALL_FLOATS};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F64, TL_DIMS(3, 8), 1),
                       both_data(m, TL_F64, TL_DIMS(3, 8), 2)};
    rule_on(&rule);
    expect_refused(m, changed_between, in, 2, 1, "changes a memory in place between what it reads");
    both_result r = both_ways(m, changed_before, in, 2, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "test_across: replaced 1 time");
    rule_off(&rule);
    tl_free(m);
}

PROGRAM(gamma_from_the_sum)
{
    UNUSED;
    tl_tensor s = tl_add(t, in[0], in[1]);
    out[0] = tl_rms_norm(t, s, tl_select(t, tl_tanh(t, s), 0, 1), 1e-5);
}

PROGRAM(gamma_made_late)
{
    UNUSED;
    tl_tensor s = tl_add(t, in[0], in[1]), u = tl_tanh(t, s), gamma = tl_exp(t, in[2]);
    out[0] = tl_mul(t, u, tl_rms_norm(t, s, gamma, 1e-5));
    out[1] = u;
}

static void outputs_that_lead_back_are_refused_and_late_inputs_are_pulled(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[3] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1),
                       both_data(m, TL_F32, TL_DIMS(3, 8), 2), both_data(m, TL_F32, TL_DIMS(8), 3)};
    expect_refused(m, gamma_from_the_sum, in, 2, 1,
                   "its outputs lead back to its inputs: it cannot stand in one place");
    both_result r = both_ways(m, gamma_made_late, in, 3, 2, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "add_rms_norm: replaced 1 time, exact");
    tl_free(m);
}

PROGRAM(search_view)
{
    UNUSED;
    out[0] = tl_transpose(t, tl_transpose(t, in[0], 0, 1), 0, 1);
}

PROGRAM(put_copy)
{
    UNUSED;
    out[0] = tl_scale(t, in[0], 1);
}

PROGRAM(put_other_strides)
{
    UNUSED;
    out[0] = tl_transpose(t, tl_contiguous(t, tl_transpose(t, in[0], 0, 1)), 0, 1);
}

PROGRAM(view_changed)
{
    UNUSED;
    tl_tensor x = tl_exp(t, in[0]), v = tl_transpose(t, tl_transpose(t, x, 0, 1), 0, 1);
    out[0] = tl_scale(t, x, 3);
    out[1] = tl_rotary_(t, v, in[1], in[1], TL_ROTARY_HALF);
}

PROGRAM(view_read)
{
    UNUSED;
    out[0] = tl_sin(t, tl_transpose(t, tl_transpose(t, tl_exp(t, in[0]), 0, 1), 0, 1));
}

static const tl_replacement copy = {.name = "test_copy",
                                    .search = search_view,
                                    .replace = put_copy,
                                    .example_inputs = rule_one_arg,
                                    .n_in = 1,
                                    .n_out = 1,
                                    .exact = TL_ALL_FLOATS};

static void storage_that_is_shared_stays_shared(void **state)
{
    (void)state;
    static const tl_replacement strides = {.name = "test_strides",
                                           .search = search_view,
                                           .replace = put_other_strides,
                                           .example_inputs = rule_one_arg,
                                           .n_in = 1,
                                           .n_out = 1,
                                           .extra_check = rule_yes,
                                           .exact = TL_BIT(TL_F32)};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1), both_data(m, TL_F32, TL_DIMS(8), 2)};
    rule_on(&copy);
    expect_refused(m, view_changed, in, 2, 2, "rotary_ at tests/test_pattern_places.c:");
    both_result r = both_ways(m, view_read, in, 1, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "test_copy: replaced 1 time");
    rule_off(&copy);
    rule_on(&strides);
    expect_refused(m, view_read, in, 1, 1, "output 0 has other strides in dim 0 (1, not 8)");
    rule_off(&strides);
    tl_free(m);
}

PROGRAM(variable_changed)
{
    tl_model *m = ctx;
    tl_tensor b = tl_buffer(t, m, "b", TL_F64, TL_DIMS(3, 8)), v;
    (void)n_in, (void)n_out;
    tl_host(t, TL_BEFORE, clear_buffer, m);
    v = tl_transpose(t, tl_transpose(t, b, 0, 1), 0, 1);
    tl_sum_to(t, in[0], TL_DIMS(3, 8), b);
    out[0] = tl_scale(t, v, 2);
}

/* A copy in the place of a view would not show the change: neither to the program nor to what
 * another replacement puts. */
static void what_another_match_reads_is_read_in_the_same_state(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F64, TL_DIMS(3, 8), 1);
    rule_on(&copy);
    rule_on(&rule_doubled);
    both_result r = both_ways(m, variable_changed, &in, 1, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "test_double: replaced 1 time");
    expect_text(r.report, "changes the memory of an output, which would lie elsewhere (1 time)");
    rule_off(&rule_doubled);
    rule_off(&copy);
    tl_free(m);
}

/* Views that are changed beneath and views that are not, by turns. */
enum { BY_TURNS = 24 };

PROGRAM(views_by_turns)
{
    tl_model *m = ctx;
    tl_tensor b = tl_buffer(t, m, "b", TL_F64, TL_DIMS(3, 8)), y = in[0];
    (void)n_in, (void)n_out;
    tl_host(t, TL_BEFORE, clear_buffer, m);
    for (int i = 0; i < BY_TURNS; i++) {
        tl_tensor v = tl_transpose(t, tl_transpose(t, i % 2 ? b : y, 0, 1), 0, 1);
        tl_sum_to(t, in[0], TL_DIMS(3, 8), b);
        y = tl_add(t, y, tl_sin(t, v));
    }
    out[0] = y;
}

static void those_to_blame_alone_are_refused(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F64, TL_DIMS(3, 8), 1);
    char text[64];
    snprintf(text, sizeof text, "test_copy: replaced %d times, exact", BY_TURNS / 2);
    rule_on(&copy);
    both_result r = both_ways(m, views_by_turns, &in, 1, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, text);
    expect_text(r.report, "test_copy: not replaced: ");
    expect_text(r.report, "(12 times)");
    rule_off(&copy);
    tl_free(m);
}

/* ---- what only shows with the graph's own shapes ---- */

PROGRAM(search_flat)
{
    UNUSED;
    out[0] = tl_reshape(t, tl_exp(t, in[0]), TL_DIMS(15));
}

PROGRAM(flat)
{
    UNUSED;
    out[0] = tl_reshape(t, tl_exp(t, in[0]), TL_DIMS(24));
}

PROGRAM(put_flat)
{
    UNUSED;
    out[0] = tl_exp(t, tl_reshape(t, in[0], TL_DIMS(15)));
}

PROGRAM(search_sine)
{
    UNUSED;
    out[0] = tl_neg(t, tl_sin(t, in[0]));
}

static bool as_in_the_example(tl_tape *t, tl_tensor x) { return tl_shape_of(t, x).dim[1] == 5; }

PROGRAM(put_shorter)
{
    UNUSED;
    tl_tensor y = tl_sin(t, tl_neg(t, in[0]));
    out[0] = as_in_the_example(t, in[0]) ? y : tl_sum(t, y, TL_DIMS(0), true);
}

PROGRAM(put_wider)
{
    UNUSED;
    tl_tensor y = tl_sin(t, tl_neg(t, in[0]));
    out[0] = as_in_the_example(t, in[0]) ? y : tl_cast(t, y, TL_F64);
}

static void what_shows_with_real_shapes_is_refused(void **state)
{
    (void)state;
    static const tl_replacement fixed = {.name = "test_fixed",
                                         .search = search_flat,
                                         .replace = put_flat,
                                         .example_inputs = rule_one_arg,
                                         .n_in = 1,
                                         .n_out = 1};
    static const tl_replacement shorter = {.name = "test_shorter",
                                           .search = search_sine,
                                           .replace = put_shorter,
                                           .example_inputs = rule_one_arg,
                                           .n_in = 1,
                                           .n_out = 1};
    static const tl_replacement wider = {.name = "test_wider",
                                         .search = search_sine,
                                         .replace = put_wider,
                                         .example_inputs = rule_one_arg,
                                         .n_in = 1,
                                         .n_out = 1,
                                         .extra_check = rule_yes};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    rule_on(&fixed);
    expect_refused(m, flat, &in, 1, 1, "its search cannot be traced here: reshape:");
    rule_off(&fixed);
    rule_on(&shorter);
    expect_refused(m, search_sine, &in, 1, 1,
                   "output 0 of its replacement is F32 [1, 8], of its search F32 [3, 8]");
    rule_off(&shorter);
    rule_on(&wider);
    expect_refused(m, search_sine, &in, 1, 1,
                   "output 0 of its replacement is F64 [3, 8], of its search F32 [3, 8]");
    rule_off(&wider);
    tl_free(m);
}

/* ---- an argument as it is ---- */

PROGRAM(put_argument)
{
    UNUSED;
    (void)t;
    out[0] = in[0];
}

/* A check that no other rule of this search has. */
static bool always(const tl_match *m, void *ctx)
{
    (void)ctx;
    return m != NULL;
}

static const tl_replacement through = {.name = "test_through",
                                       .search = search_view,
                                       .replace = put_argument,
                                       .example_inputs = rule_one_arg,
                                       .n_in = 1,
                                       .n_out = 1,
                                       .extra_check = always,
                                       .exact = TL_ALL_FLOATS};

static tl_tensor turned_twice(tl_tape *t, tl_tensor x)
{
    return tl_transpose(t, tl_transpose(t, x, 0, 1), 0, 1);
}

PROGRAM(view_of_a_value)
{
    UNUSED;
    out[0] = tl_sin(t, turned_twice(t, tl_exp(t, in[0])));
}

/* What a parameter is seen through tells its accumulators apart. */
PROGRAM(view_of_a_parameter)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    tl_tensor w = rule_weight(t, m), x = tl_matmul(t, in[0], w);
    rule_trained(t, m, tl_mul(t, tl_matmul(t, x, turned_twice(t, w)), rule_gamma(t, m, "gamma")),
                 out);
}

static void a_replacement_may_be_an_argument_of_its_own(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    rule_on(&through);
    both_result r = both_ways(m, view_of_a_value, &in, 1, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "test_through: replaced 1 time, exact");
    expect_refused(m, view_of_a_parameter, &in, 1, 3,
                   "makes a weight, which is known by what it is made of");
    rule_off(&through);
    tl_free(m);
}

/* ---- values made of parameters alone ---- */

PROGRAM(search_difference)
{
    UNUSED;
    out[0] = tl_sub(t, in[0], in[1]);
}

PROGRAM(put_difference)
{
    UNUSED;
    out[0] = tl_add(t, in[0], tl_neg(t, in[1]));
}

/* -gamma would have accumulators of its own, and the two uses of gamma would be added apart. */
PROGRAM(parameter_subtracted)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    tl_tensor gamma = rule_gamma(t, m, "gamma"), x = tl_matmul(t, in[0], rule_weight(t, m));
    rule_trained(t, m, tl_mul(t, tl_tanh(t, tl_sub(t, x, gamma)), gamma), out);
}

PROGRAM(value_subtracted)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    tl_tensor gamma = rule_gamma(t, m, "gamma"), x = tl_matmul(t, in[0], rule_weight(t, m));
    rule_trained(t, m, tl_sub(t, in[0], tl_mul(t, x, gamma)), out);
}

PROGRAM(parameter_subtracted_forward)
{
    (void)n_in, (void)n_out;
    out[0] = tl_detach(t, tl_sub(t, in[0], rule_gamma(t, ctx, "gamma")));
}

static void a_replacement_makes_no_weight_that_takes_a_gradient(void **state)
{
    (void)state;
    static const tl_pattern_arg args[] = {TL_ARG("x", TL_F32, TL_DIMS(3, 8)),
                                          TL_ARG("y", TL_F32, TL_DIMS(3, 8))};
    static const tl_replacement rule = {.name = "test_difference",
                                        .search = search_difference,
                                        .replace = put_difference,
                                        .example_inputs = args,
                                        .n_in = 2,
                                        .n_out = 1,
                                        .exact = TL_ALL_FLOATS};
    tl_program *const made[] = {value_subtracted, parameter_subtracted_forward};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    rule_on(&rule);
    expect_refused(m, parameter_subtracted, &in, 1, 3,
                   "it would make a weight, which has a gradient of its own (1 time)");
    for (int i = 0; i < 2; i++) {
        both_result r = both_ways(m, made[i], &in, 1, i == 0 ? 3 : 1, m, (tl_graph_options){0});
        assert_true(r.same);
        expect_text(r.replaced, "test_difference: replaced 1 time, exact");
    }
    rule_off(&rule);
    tl_free(m);
}

/* ---- how a value depends on samples ---- */

static tl_status product_shape(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

static tl_status product_forward(tl_call *c)
{
    const int64_t n = tl_array_count(c->in[1]);
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        tl_array_put(&c->out[0], i, tl_array_get(c->in[0], i) * tl_array_get(c->in[1], i % n));
    return TL_OK;
}

static void product_vjp(tl_vjp *g)
{
    for (int k = 0; k < 2; k++)
        if (g->wants[k])
            g->dx[k] = tl_mul(g->t, g->dy[0], g->in[1 - k]);
}

static const tl_op batchless = {.name = "batchless",
                                .n_in = 2,
                                .n_out = 1,
                                .shape = product_shape,
                                .forward = product_forward,
                                .vjp = product_vjp,
                                .saves_in = 3};

PROGRAM(search_product)
{
    UNUSED;
    out[0] = tl_mul(t, in[0], in[1]);
}

PROGRAM(put_batchless)
{
    UNUSED;
    out[0] = tl_apply1(TL_AT(t), &batchless, NULL, in, 2);
}

PROGRAM(samples_scaled)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    tl_tensor x = tl_matmul(t, in[0], rule_weight(t, m));
    rule_trained(t, m, tl_mul(t, x, rule_gamma(t, m, "gamma")), out);
}

static void a_replacement_depends_on_samples_as_its_search_does(void **state)
{
    (void)state;
    static const tl_pattern_arg args[] = {TL_ARG("x", TL_F32, TL_DIMS(4, 9)),
                                          TL_ARG("w", TL_F32, TL_DIMS(9))};
    static const tl_replacement rule = {.name = "test_batchless",
                                        .search = search_product,
                                        .replace = put_batchless,
                                        .example_inputs = args,
                                        .n_in = 2,
                                        .n_out = 1,
                                        .extra_check = rule_yes,
                                        .exact = TL_BIT(TL_F32)};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    rule_on(&rule);
    expect_refused(m, samples_scaled, &in, 1, 3, "output 0 depends on samples otherwise");
    rule_off(&rule);
    tl_free(m);
}

/* ---- results of the graph ---- */

PROGRAM(search_larger)
{
    UNUSED;
    out[0] = tl_maximum(t, in[0], in[0]);
}

static void a_result_lies_in_no_memory_of_an_input(void **state)
{
    (void)state;
    static const tl_replacement rule = {.name = "test_larger",
                                        .search = search_larger,
                                        .replace = put_argument,
                                        .example_inputs = rule_one_arg,
                                        .n_in = 1,
                                        .n_out = 1,
                                        .exact_forward = TL_BIT(TL_F32)};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    rule_on(&rule);
    expect_refused(m, search_larger, &in, 1, 1, "a result of the graph would lie in other memory");
    rule_off(&rule);
    tl_free(m);
}

/* ---- modes ---- */

PROGRAM(strict_norm)
{
    (void)n_in, (void)n_out;
    const int depth = tl_mode_push(t, TL_STRICT);
    tl_tensor gamma = tl_param(t, ctx, "gamma", TL_F32, TL_DIMS(8), .kind = TL_INIT_ONES);
    tl_tensor h = in[0];
    for (int i = 0; i < 2; i++) { /* one takes no gradient, and is none of the rule's */
        tl_tensor sum = tl_add(t, h, in[1]);
        h = tl_add(t, sum, tl_silu(t, tl_rms_norm(t, sum, gamma, 1e-5)));
    }
    out[0] = tl_sum(t, h, TL_ALL, false);
    tl_backward(t, out[0]);
    out[1] = tl_grad(t, gamma);
    tl_mode_pop(t, depth);
}

/* What stands for the arguments of a rule is no sample, and mixes nothing. */
static void a_program_under_strict_is_replaced_as_well(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1),
                       both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    both_result r = both_ways(m, strict_norm, in, 2, 2, m, (tl_graph_options){0});
    expect_text(r.replaced, "add_rms_norm: replaced 1 time, exact");
    assert_true(r.same);
    tl_free(m);
}

const struct CMUnitTest tl_tests_pattern_places[] = {
    cmocka_unit_test(a_replacement_depends_on_samples_as_its_search_does),
    cmocka_unit_test(a_result_lies_in_no_memory_of_an_input),
    cmocka_unit_test(a_program_under_strict_is_replaced_as_well),
    cmocka_unit_test(a_replacement_makes_no_weight_that_takes_a_gradient),
    cmocka_unit_test(a_replacement_may_be_an_argument_of_its_own),
    cmocka_unit_test(a_match_does_not_reach_across_a_change_of_memory),
    cmocka_unit_test(outputs_that_lead_back_are_refused_and_late_inputs_are_pulled),
    cmocka_unit_test(storage_that_is_shared_stays_shared),
    cmocka_unit_test(what_another_match_reads_is_read_in_the_same_state),
    cmocka_unit_test(those_to_blame_alone_are_refused),
    cmocka_unit_test(what_shows_with_real_shapes_is_refused),
};
const size_t tl_tests_pattern_places_count = sizeof tl_tests_pattern_places /
                                             sizeof *tl_tests_pattern_places;
