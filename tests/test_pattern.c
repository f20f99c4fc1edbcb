/* Pattern replacement, what matches: users outside, the order of operands and of gradients, names,
 * constants and attributes; each refusal with the reason it gives. Whatever is replaced or not, the
 * graph has the bits of the program. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/rules.h"

extern const struct CMUnitTest tl_tests_pattern[];
extern const size_t tl_tests_pattern_count;

/* ---- users outside, and the order of gradients ---- */

/* The sum has as many other users, before the norm or after it in canonical order. */
typedef struct {
    tl_model *m;
    int before, after;
} users;

PROGRAM(sum_and_norm)
{
    const users *u = ctx;
    tl_tensor x = tl_tanh(t, tl_matmul(t, in[0], rule_weight(t, u->m))), s = tl_add(t, in[0], x),
              y = TL_NONE;
    (void)n_in, (void)n_out;
    for (int i = 0; i < u->before; i++)
        y = tl_is_none(y) ? tl_scale(t, s, 0.3) : tl_add(t, y, tl_scale(t, s, 0.7 + i));
    tl_tensor z = tl_rms_norm(t, s, rule_gamma(t, u->m, "gamma"), 1e-5);
    y = tl_is_none(y) ? z : tl_mul(t, y, z);
    for (int i = 0; i < u->after; i++)
        y = tl_mul(t, y, tl_scale(t, s, 1.1 + i));
    rule_trained(t, u->m, y, out);
}

static void one_more_user_of_a_sum_keeps_the_bits_and_three_would_not(void **state)
{
    (void)state;
    for (int before = 0; before < 4; before++)
        for (int after = 0; after < 4; after++) {
            users u = {tl_model_new(.seed = 5), before, after};
            tl_tensor x = both_data(u.m, TL_F32, TL_DIMS(5, 8), 3);
            both_result r = both_ways(u.m, sum_and_norm, &x, 1, 3, &u, (tl_graph_options){0});
            assert_true(r.same);
            if (after == 0 || before + after == 1)
                expect_text(r.replaced, "add_rms_norm: replaced 1 time, exact");
            else {
                expect_no_text(r.replaced, "add_rms_norm");
                expect_text(r.report, "the gradient of an output, which has ");
                r = both_ways(u.m, sum_and_norm, &x, 1, 3, &u, (tl_graph_options){.rounds = true});
                expect_text(r.replaced, "add_rms_norm: replaced 1 time, ROUNDS");
                assert_true(r.far < 1e-4);
            }
            tl_free(u.m);
        }
}

PROGRAM(silu_used_twice)
{
    tl_tensor s = tl_silu(t, in[0]);
    UNUSED;
    out[0] = tl_mul(t, s, in[1]);
    out[1] = tl_exp(t, s);
}

PROGRAM(silu_given_out)
{
    UNUSED;
    out[1] = tl_silu(t, in[0]);
    out[0] = tl_mul(t, out[1], in[1]);
}

PROGRAM(silu_detached)
{
    tl_tensor s = tl_silu(t, in[0]);
    UNUSED;
    out[0] = tl_mul(t, s, in[1]);
    out[1] = tl_exp(t, tl_detach(t, s));
}

PROGRAM(rstd_used)
{
    tl_tensor rstd, s = tl_add(t, in[0], in[1]);
    UNUSED;
    out[0] = tl_rms_norm_rstd(t, s, in[2], 1e-5, &rstd);
    out[1] = tl_exp(t, rstd);
}

static void an_intermediate_has_no_users_outside(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[3] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1),
                       both_data(m, TL_F32, TL_DIMS(3, 8), 2), both_data(m, TL_F32, TL_DIMS(8), 3)};
    expect_refused(m, silu_used_twice, in, 2, 2,
                   "swiglu: not replaced: silu at tests/test_pattern.c:");
    expect_refused(m, silu_used_twice, in, 2, 2, "has 1 other user of output 0");
    expect_refused(m, silu_given_out, in, 2, 2, "has 1 other user of output 0");
    expect_refused(m, silu_detached, in, 2, 2, "has 1 other user of output 0");
    expect_refused(m, rstd_used, in, 3, 2, "has 1 other user of output 1");
    tl_free(m);
}

/* ---- operands ---- */

PROGRAM(silu_times_itself)
{
    tl_model *m = ctx;
    tl_tensor x = tl_matmul(t, in[0], rule_weight(t, m));
    (void)n_in, (void)n_out;
    out[0] = tl_sum(t, tl_mul(t, x, tl_silu(t, x)), TL_ALL, false);
    tl_backward(t, out[0]);
    out[1] = tl_grad(t, rule_weight(t, m));
}

static void commutative_operands_match_in_both_orders(void **state)
{
    (void)state;
    static const tl_pattern_arg args[] = {TL_ARG("a", TL_F32, TL_DIMS(2, 4), .exclusive = true),
                                          TL_ARG("b", TL_F32, TL_DIMS(2, 4), .exclusive = true)};
    static const tl_replacement apart = {.name = "test_apart",
                                         .search = rule_written_swiglu,
                                         .replace = rule_swiglu,
                                         .example_inputs = args,
                                         .n_in = 2,
                                         .n_out = 1,
                                         .extra_check = rule_yes,
                                         .exact = TL_BIT(TL_F32)};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1),
                       both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    both_result r = both_ways(m, rule_turned_swiglu, in, 2, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "swiglu: replaced 1 time, exact");
    r = both_ways(m, silu_times_itself, in, 1, 2, m,
                  (tl_graph_options){0}); /* two arguments, one value */
    assert_true(r.same);
    expect_text(r.replaced, "swiglu: replaced 1 time, exact");
    rule_on(&apart); /* unless they are exclusive */
    r = both_ways(m, silu_times_itself, in, 1, 2, m, (tl_graph_options){.without = "swiglu"});
    expect_no_text(r.replaced, "test_apart");
    r = both_ways(m, rule_turned_swiglu, in, 2, 1, m, (tl_graph_options){.without = "swiglu"});
    expect_text(r.replaced, "test_apart: replaced 1 time");
    rule_off(&apart);
    tl_free(m);
}

PROGRAM(other_value)
{
    UNUSED;
    out[0] = tl_sub(t, tl_mul(t, in[0], in[1]), in[2]);
}

static void one_name_is_one_value(void **state)
{
    (void)state;
    static const tl_pattern_arg args[] = {TL_ARG("x", TL_F32, TL_DIMS(2, 4)),
                                          TL_ARG("y", TL_F32, TL_DIMS(2, 4))};
    static const tl_replacement rule = {.name = "test_one_value",
                                        .search = rule_twice_used,
                                        .replace = rule_twice_used_otherwise,
                                        .example_inputs = args,
                                        .n_in = 2,
                                        .n_out = 1};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[3];
    for (int i = 0; i < 3; i++)
        in[i] = both_data(m, TL_F32, TL_DIMS(3, 8), (unsigned)i + 1);
    rule_on(&rule);
    both_result r = both_ways(m, rule_twice_used, in, 2, 1, m, (tl_graph_options){.rounds = true});
    expect_text(r.replaced, "test_one_value: replaced 1 time, ROUNDS");
    r = both_ways(m, other_value, in, 3, 1, m, (tl_graph_options){.rounds = true});
    expect_no_text(r.report, "test_one_value");
    r = both_ways(m, rule_twice_used, in, 2, 1, m,
                  (tl_graph_options){0}); /* claims nothing: only on request */
    assert_true(r.same);
    expect_text(r.report,
                "test_one_value: not replaced: it rounds elsewhere in F32; ask for it by .rounds");
    rule_off(&rule);
    tl_free(m);
}

/* ---- constants ---- */

PROGRAM(scaled)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    tl_tensor x = tl_matmul(t, in[0], rule_weight(t, m)),
              e = tl_mul(t, tl_scale(t, tl_exp(t, x), 3), rule_gamma(t, m, "gamma"));
    rule_trained(t, m, tl_sub(t, tl_scale(t, x, 2), e), out);
}

PROGRAM(scaled_last)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    tl_tensor x = tl_matmul(t, in[0], rule_weight(t, m)),
              e = tl_mul(t, tl_exp(t, x), rule_gamma(t, m, "gamma"));
    rule_trained(t, m, tl_sub(t, e, tl_scale(t, x, 2)), out);
}

PROGRAM(weight_doubled)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    rule_trained(t, m,
                 tl_mul(t, tl_matmul(t, in[0], rule_weight(t, m)),
                        tl_scale(t, rule_gamma(t, m, "gamma"), 2)),
                 out);
}

PROGRAM(weight_times_its_double)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    tl_tensor g = rule_gamma(t, m, "gamma");
    int mode = tl_mode_push(t, TL_NO_GRAD);
    tl_tensor twice = tl_scale(t, g, 2);
    tl_mode_pop(t, mode);
    rule_trained(t, m, tl_mul(t, tl_matmul(t, in[0], rule_weight(t, m)), tl_mul(t, twice, g)), out);
}

PROGRAM(search_difference)
{
    UNUSED;
    out[0] = tl_sub(t, in[0], in[1]);
}

PROGRAM(put_turned_difference)
{
    UNUSED;
    out[0] = tl_add(t, tl_neg(t, in[1]), in[0]);
}

/* Behind x are one use and two, in one order or the other. */
PROGRAM(difference_of_three)
{
    tl_model *m = ctx;
    const bool turned = n_in == 2;
    (void)n_out;
    tl_tensor x = tl_matmul(t, in[0], rule_weight(t, m)),
              two = tl_add(t, tl_exp(t, x), tl_cos(t, x)), one = tl_tanh(t, x);
    rule_trained(t, m,
                 tl_mul(t, tl_sub(t, turned ? one : two, turned ? two : one),
                        rule_gamma(t, m, "gamma")),
                 out);
}

/* Of three terms the order counts, whatever the order of the first two. */
static void three_terms_keep_their_order(void **state)
{
    (void)state;
    static const tl_pattern_arg args[] = {TL_ARG("x", TL_F32, TL_DIMS(3, 8)),
                                          TL_ARG("y", TL_F32, TL_DIMS(3, 8))};
    static const tl_replacement rule = {.name = "test_turned_difference",
                                        .search = search_difference,
                                        .replace = put_turned_difference,
                                        .example_inputs = args,
                                        .n_in = 2,
                                        .n_out = 1,
                                        .extra_check = rule_yes, /* of its own */
                                        .exact = TL_ALL_FLOATS};
    tl_model *m = tl_model_new(.seed = 1);
    const tl_tensor x = both_data(m, TL_F32, TL_DIMS(3, 8), 1), in[] = {x, x};
    rule_on(&rule);
    for (int n = 1; n <= 2; n++)
        expect_refused(m, difference_of_three, in, n, 3, "would be added in another order");
    rule_off(&rule);
    tl_free(m);
}

static void constants_agree_and_leaves_keep_their_uses(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1),
                       both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    tl_err e = {.status = TL_OK};
    rule_on(&rule_doubled);
    assert_int_equal(tl_replacement_check("test_double", 3, 8, &e), TL_OK);
    both_result r = both_ways(m, scaled, in, 1, 3, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.report, "has {c=3}, the pattern {c=2}");
    expect_text(r.replaced, "test_double: replaced 1 time, exact"); /* twice by the match, then exp:
                                                                       (a + a) + e either way */
    r = both_ways(m, scaled_last, in, 1, 3, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.report, "the gradient of x, which has 1 other users, would be added in another "
                          "order"); /* (e + a) + a is not e + (a + a) */
    r = both_ways(m, weight_doubled, in, 1, 3, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.report, "makes a weight, which is known by what it is made of");
    r = both_ways(m, weight_times_its_double, in, 1, 3, m, (tl_graph_options){0});
    assert_true(r.same); /* nor are parts of one without a gradient */
    expect_no_text(r.replaced, "test_double");
    expect_text(r.report, "test_double: not replaced: scale at tests/test_pattern.c:");
    rule_off(&rule_doubled);
    tl_free(m);
}

PROGRAM(acc64)
{
    UNUSED;
    tl_tensor s = tl_scale(t, tl_matmul(t, in[0], tl_transpose(t, in[1], -1, -2)), 0.5);
    out[0] = tl_matmul_acc64(t, tl_softmax(t, s, -1), in[2]);
}

PROGRAM(with_dropout)
{
    UNUSED;
    tl_tensor s = tl_scale(t, tl_matmul(t, in[0], tl_transpose(t, in[1], -1, -2)), 0.5);
    out[0] = tl_matmul(t, tl_dropout(t, tl_softmax(t, s, -1), 0.25, .stream = "p"), in[2]);
}

static void unnamed_attributes_and_random_draws_are_refused(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[3];
    for (int i = 0; i < 3; i++)
        in[i] = both_data(m, TL_F32, TL_DIMS(2, 2, 4, 8), (unsigned)i + 1);
    expect_refused(m, acc64, in, 3, 1, "acc_f64=yes, wide=no}, the pattern {");
    expect_refused(m, with_dropout, in, 3, 1, "draws random numbers where softmax is expected");
    tl_free(m);
}

PROGRAM(bias_then_norm)
{
    UNUSED;
    out[0] = tl_rms_norm(t, tl_add(t, in[0], in[1]), in[1], 1e-5);
}

static void a_broadcasting_add_is_no_add_of_equals(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1), both_data(m, TL_F32, TL_DIMS(8), 2)};
    expect_refused(m, bias_then_norm, in, 2, 1,
                   "its replacement cannot be traced here: add_rms_norm: x1 is F32 [3, 8], x2 F32 "
                   "[8]; they must be alike");
    tl_free(m);
}

const struct CMUnitTest tl_tests_pattern[] = {
    cmocka_unit_test(one_more_user_of_a_sum_keeps_the_bits_and_three_would_not),
    cmocka_unit_test(an_intermediate_has_no_users_outside),
    cmocka_unit_test(commutative_operands_match_in_both_orders),
    cmocka_unit_test(one_name_is_one_value),
    cmocka_unit_test(constants_agree_and_leaves_keep_their_uses),
    cmocka_unit_test(three_terms_keep_their_order),
    cmocka_unit_test(unnamed_attributes_and_random_draws_are_refused),
    cmocka_unit_test(a_broadcasting_add_is_no_add_of_equals),
};
const size_t tl_tests_pattern_count = sizeof tl_tests_pattern / sizeof *tl_tests_pattern;
