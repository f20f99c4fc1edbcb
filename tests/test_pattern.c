/* Pattern replacement: every rule of matching and every refusal, each with the reason it gives; whatever is replaced or not,
 * the graph has the bits of the program. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/both.h"

extern const struct CMUnitTest tl_tests_pattern[];
extern const size_t tl_tests_pattern_count;

static void expect(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("'%s' wanted in:\n%s", part, text);
}

static void expect_none(const char *text, const char *part)
{
    if (strstr(text, part) != NULL)
        fail_msg("'%s' not wanted in:\n%s", part, text);
}

/* f is not replaced, for that reason, and gives its bits. */
static void expect_refused(tl_model *m, tl_program *f, const tl_tensor *in, int n_in, int n_out, const char *why)
{
    both_result r = both_ways(m, f, in, n_in, n_out, m, (tl_graph_options){0});
    assert_true(r.same);
    expect(r.report, why);
}

/* Adds a rule, or switches it on again when the group runs twice. */
static void on(const tl_replacement *o)
{
    tl_err e = {.status = TL_OK};
    if (!tl_replacement_enable(o->name, true) && tl_register_replacement_with(&e, *o) != TL_OK)
        fail_msg("%s", e.message);
}

static void off(const tl_replacement *o) { assert_true(tl_replacement_enable(o->name, false)); }

#define PROGRAM(name) static void name(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
#define UNUSED (void)n_in, (void)n_out, (void)ctx

static tl_tensor gamma_of(tl_tape *t, tl_model *m, const char *name) { return tl_param(t, m, name, TL_F32, TL_DIMS(8), TL_INIT_UNIFORM, 1.5); }
static tl_tensor weight_of(tl_tape *t, tl_model *m) { return tl_param(t, m, "w", TL_F32, TL_DIMS(8, 8), TL_INIT_NORMAL, 0.4); }

/* A loss of y with backward; out: loss, the gradients of gamma and w. */
static void finish(tl_tape *t, tl_model *m, tl_tensor y, tl_tensor *out)
{
    out[0] = tl_sum(t, tl_mul(t, y, tl_sin(t, y)), TL_ALL, false);
    tl_backward(t, out[0]);
    out[1] = tl_grad(t, gamma_of(t, m, "gamma"));
    out[2] = tl_grad(t, weight_of(t, m));
}

/* ---- users outside, and the order of gradients ---- */

/* The sum has as many other users, before the norm or after it in canonical order. */
typedef struct {
    tl_model *m;
    int before, after;
} users;

PROGRAM(sum_and_norm)
{
    const users *u = ctx;
    tl_tensor x = tl_tanh(t, tl_matmul(t, in[0], weight_of(t, u->m))), s = tl_add(t, in[0], x), y = TL_NONE;
    (void)n_in, (void)n_out;
    for (int i = 0; i < u->before; i++)
        y = tl_is_none(y) ? tl_scale(t, s, 0.3) : tl_add(t, y, tl_scale(t, s, 0.7 + i));
    tl_tensor z = tl_rms_norm(t, s, gamma_of(t, u->m, "gamma"), 1e-5);
    y = tl_is_none(y) ? z : tl_mul(t, y, z);
    for (int i = 0; i < u->after; i++)
        y = tl_mul(t, y, tl_scale(t, s, 1.1 + i));
    finish(t, u->m, y, out);
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
                expect(r.replaced, "add_rms_norm: replaced 1 time, exact");
            else {
                expect_none(r.replaced, "add_rms_norm");
                expect(r.report, "other users: their gradients would be added in another order");
                r = both_ways(u.m, sum_and_norm, &x, 1, 3, &u, (tl_graph_options){.rounds = true});
                expect(r.replaced, "add_rms_norm: replaced 1 time, ROUNDS");
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
    tl_tensor in[3] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1), both_data(m, TL_F32, TL_DIMS(3, 8), 2), both_data(m, TL_F32, TL_DIMS(8), 3)};
    expect_refused(m, silu_used_twice, in, 2, 2, "swiglu: not replaced: silu at tests/test_pattern.c:");
    expect_refused(m, silu_used_twice, in, 2, 2, "has 1 other user of output 0");
    expect_refused(m, silu_given_out, in, 2, 2, "has 1 other user of output 0");
    expect_refused(m, silu_detached, in, 2, 2, "has 1 other user of output 0");
    expect_refused(m, rstd_used, in, 3, 2, "has 1 other user of output 1, which the pattern knows nothing of");
    tl_free(m);
}

/* ---- operands ---- */

PROGRAM(turned_swiglu)
{
    UNUSED;
    out[0] = tl_mul(t, in[1], tl_silu(t, in[0]));
}

PROGRAM(silu_times_itself)
{
    tl_model *m = ctx;
    tl_tensor x = tl_matmul(t, in[0], weight_of(t, m));
    (void)n_in, (void)n_out;
    out[0] = tl_sum(t, tl_mul(t, x, tl_silu(t, x)), TL_ALL, false);
    tl_backward(t, out[0]);
    out[1] = tl_grad(t, weight_of(t, m));
}

PROGRAM(search_swiglu)
{
    UNUSED;
    out[0] = tl_mul(t, tl_silu(t, in[0]), in[1]);
}

PROGRAM(put_swiglu)
{
    UNUSED;
    out[0] = tl_swiglu(t, in[0], in[1]);
}

static bool yes(const tl_match *m, void *ctx)
{
    (void)m, (void)ctx;
    return true;
}

static void commutative_operands_match_in_both_orders(void **state)
{
    (void)state;
    static const tl_pattern_arg args[] = {TL_ARG("a", TL_F32, TL_DIMS(2, 4), .exclusive = true), TL_ARG("b", TL_F32, TL_DIMS(2, 4), .exclusive = true)};
    static const tl_replacement apart = {.name = "test_apart", .search = search_swiglu, .replace = put_swiglu, .example_inputs = args, .n_in = 2, .n_out = 1, .extra_check = yes, .exact = TL_BIT(TL_F32)};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1), both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    both_result r = both_ways(m, turned_swiglu, in, 2, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect(r.replaced, "swiglu: replaced 1 time, exact");
    r = both_ways(m, silu_times_itself, in, 1, 2, m, (tl_graph_options){0}); /* two arguments, one value */
    assert_true(r.same);
    expect(r.replaced, "swiglu: replaced 1 time, exact");
    on(&apart); /* unless they are exclusive */
    r = both_ways(m, silu_times_itself, in, 1, 2, m, (tl_graph_options){.without = "swiglu"});
    expect_none(r.replaced, "test_apart");
    r = both_ways(m, turned_swiglu, in, 2, 1, m, (tl_graph_options){.without = "swiglu"});
    expect(r.replaced, "test_apart: replaced 1 time");
    off(&apart);
    tl_free(m);
}

PROGRAM(search_twice_used)
{
    UNUSED;
    out[0] = tl_sub(t, tl_mul(t, in[0], in[1]), in[0]);
}

PROGRAM(put_twice_used)
{
    UNUSED;
    out[0] = tl_neg(t, tl_sub(t, in[0], tl_mul(t, in[0], in[1])));
}

PROGRAM(other_value)
{
    UNUSED;
    out[0] = tl_sub(t, tl_mul(t, in[0], in[1]), in[2]);
}

static void one_name_is_one_value(void **state)
{
    (void)state;
    static const tl_pattern_arg args[] = {TL_ARG("x", TL_F32, TL_DIMS(2, 4)), TL_ARG("y", TL_F32, TL_DIMS(2, 4))};
    static const tl_replacement rule = {.name = "test_one_value", .search = search_twice_used, .replace = put_twice_used, .example_inputs = args, .n_in = 2, .n_out = 1};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[3];
    for (int i = 0; i < 3; i++)
        in[i] = both_data(m, TL_F32, TL_DIMS(3, 8), (unsigned)i + 1);
    on(&rule);
    both_result r = both_ways(m, search_twice_used, in, 2, 1, m, (tl_graph_options){.rounds = true});
    expect(r.replaced, "test_one_value: replaced 1 time, ROUNDS");
    r = both_ways(m, other_value, in, 3, 1, m, (tl_graph_options){.rounds = true});
    expect_none(r.report, "test_one_value");
    r = both_ways(m, search_twice_used, in, 2, 1, m, (tl_graph_options){0}); /* claims nothing: only on request */
    assert_true(r.same);
    expect(r.report, "test_one_value: not replaced: it rounds elsewhere in F32; ask for it by .rounds");
    off(&rule);
    tl_free(m);
}

/* ---- constants ---- */

PROGRAM(search_double)
{
    UNUSED;
    out[0] = tl_scale(t, in[0], 2);
}

PROGRAM(put_double)
{
    UNUSED;
    out[0] = tl_add(t, in[0], in[0]);
}

static const tl_pattern_arg one_arg[] = {TL_ARG("x", TL_F32, TL_DIMS(3, 5))};
static const tl_replacement doubled = {.name = "test_double", .search = search_double, .replace = put_double, .example_inputs = one_arg, .n_in = 1, .n_out = 1, .exact = TL_ALL_FLOATS};
static const tl_replacement halved = {.name = "test_undouble", .search = put_double, .replace = search_double, .example_inputs = one_arg, .n_in = 1, .n_out = 1, .exact = TL_ALL_FLOATS};

PROGRAM(scaled)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    tl_tensor x = tl_matmul(t, in[0], weight_of(t, m)), e = tl_mul(t, tl_scale(t, tl_exp(t, x), 3), gamma_of(t, m, "gamma"));
    finish(t, m, tl_sub(t, tl_scale(t, x, 2), e), out);
}

PROGRAM(scaled_last)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    tl_tensor x = tl_matmul(t, in[0], weight_of(t, m)), e = tl_mul(t, tl_exp(t, x), gamma_of(t, m, "gamma"));
    finish(t, m, tl_sub(t, e, tl_scale(t, x, 2)), out);
}

PROGRAM(leaf_doubled)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    finish(t, m, tl_mul(t, tl_matmul(t, in[0], weight_of(t, m)), tl_scale(t, gamma_of(t, m, "gamma"), 2)), out);
}

static void constants_agree_and_leaves_keep_their_uses(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1), both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    tl_err e = {.status = TL_OK};
    on(&doubled);
    assert_int_equal(tl_replacement_check("test_double", 3, 8, &e), TL_OK);
    both_result r = both_ways(m, scaled, in, 1, 3, m, (tl_graph_options){0});
    assert_true(r.same);
    expect(r.report, "has c = 3, the pattern 2");
    expect(r.replaced, "test_double: replaced 1 time, exact"); /* twice by the match, then exp: (a + a) + e either way */
    r = both_ways(m, scaled_last, in, 1, 3, m, (tl_graph_options){0});
    assert_true(r.same);
    expect(r.report, "the gradient of 'x', which has 1 other users, would be added in another order"); /* (e + a) + a is not e + (a + a) */
    r = both_ways(m, leaf_doubled, in, 1, 3, m, (tl_graph_options){0});
    assert_true(r.same);
    expect(r.report, "the gradient of 'x', which has 0 other users, would be added in another order"); /* two accumulators for one */
    off(&doubled);
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
    expect_refused(m, acc64, in, 3, 1, "has acc_f64 = 1, the pattern 0");
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
    expect_refused(m, bias_then_norm, in, 2, 1, "its replacement cannot be traced here: add_rms_norm: x1 is F32 [3, 8], x2 F32 [8]; they must be alike");
    tl_free(m);
}

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
    static const tl_pattern_arg args[] = {TL_ARG("x", TL_F32, TL_DIMS(2, 4)), TL_ARG("y", TL_F32, TL_DIMS(2, 4))};
    static const tl_replacement rule = {.name = "test_across", .search = search_twice_used, .replace = put_twice_used, .example_inputs = args, .n_in = 2, .n_out = 1, .extra_check = yes, .exact_forward = TL_ALL_FLOATS};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F64, TL_DIMS(3, 8), 1), both_data(m, TL_F64, TL_DIMS(3, 8), 2)};
    on(&rule);
    expect_refused(m, changed_between, in, 2, 1, "changes a memory in place between what it reads");
    both_result r = both_ways(m, changed_before, in, 2, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect(r.replaced, "test_across: replaced 1 time");
    off(&rule);
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
    tl_tensor in[3] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1), both_data(m, TL_F32, TL_DIMS(3, 8), 2), both_data(m, TL_F32, TL_DIMS(8), 3)};
    expect_refused(m, gamma_from_the_sum, in, 2, 1, "its outputs lead back to its inputs: it cannot stand in one place");
    both_result r = both_ways(m, gamma_made_late, in, 3, 2, m, (tl_graph_options){0});
    assert_true(r.same);
    expect(r.replaced, "add_rms_norm: replaced 1 time, exact");
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

static void storage_that_is_shared_stays_shared(void **state)
{
    (void)state;
    static const tl_replacement copy = {.name = "test_copy", .search = search_view, .replace = put_copy, .example_inputs = one_arg, .n_in = 1, .n_out = 1, .exact = TL_BIT(TL_F32)};
    static const tl_replacement strides = {.name = "test_strides", .search = search_view, .replace = put_other_strides, .example_inputs = one_arg, .n_in = 1, .n_out = 1, .extra_check = yes, .exact = TL_BIT(TL_F32)};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1), both_data(m, TL_F32, TL_DIMS(8), 2)};
    on(&copy);
    expect_refused(m, view_changed, in, 2, 2, "output 0 would lie in other memory, which rotary_ at tests/test_pattern.c:");
    both_result r = both_ways(m, view_read, in, 1, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect(r.replaced, "test_copy: replaced 1 time");
    off(&copy);
    on(&strides);
    expect_refused(m, view_read, in, 1, 1, "output 0 of the replacement has other strides in dim 0 (1, not 8)");
    off(&strides);
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
    static const tl_replacement fixed = {.name = "test_fixed", .search = search_flat, .replace = put_flat, .example_inputs = one_arg, .n_in = 1, .n_out = 1};
    static const tl_replacement shorter = {.name = "test_shorter", .search = search_sine, .replace = put_shorter, .example_inputs = one_arg, .n_in = 1, .n_out = 1};
    static const tl_replacement wider = {.name = "test_wider", .search = search_sine, .replace = put_wider, .example_inputs = one_arg, .n_in = 1, .n_out = 1, .extra_check = yes};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    on(&fixed);
    expect_refused(m, flat, &in, 1, 1, "its search cannot be traced here: reshape:");
    off(&fixed);
    on(&shorter);
    expect_refused(m, search_sine, &in, 1, 1, "output 0 of the replacement is F32 [1, 8], not F32 [3, 8]");
    off(&shorter);
    on(&wider);
    expect_refused(m, search_sine, &in, 1, 1, "output 0 of the replacement is F64 [3, 8], not F32 [3, 8]");
    off(&wider);
    tl_free(m);
}

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
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1), both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    expect_refused(m, fast, in, 2, 1, "it was recorded under TL_FAST");
    expect_refused(m, selected, in, 2, 1, "kernels are selected where it was recorded");
    expect_refused(m, two_modes, in, 2, 1, "were recorded in different modes");
    tl_free(m);
}

static void what_is_switched_off_is_absent(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1), both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    const tl_graph_options without = {.without = "add_rms_norm,swiglu"}, other = {.without = "swig,add_rms_norm"}, none = {.no_replace = true};
    expect(both_ways(m, turned_swiglu, in, 2, 1, m, other).replaced, "swiglu");
    expect(both_ways(m, turned_swiglu, in, 2, 1, m, without).report, "nothing was replaced\n");
    expect(both_ways(m, turned_swiglu, in, 2, 1, m, none).report, "nothing was replaced\n");
    assert_true(tl_replacement_enable("swiglu", false));
    expect(both_ways(m, turned_swiglu, in, 2, 1, m, (tl_graph_options){0}).report, "nothing was replaced\n");
    assert_true(tl_replacement_enable("swiglu", true));
    assert_false(tl_replacement_enable("no such name", true));
    const char *was = getenv("TL_WITHOUT");
    char *saved = was == NULL ? NULL : strdup(was);
    setenv("TL_WITHOUT", "swiglu", 1);
    expect(both_ways(m, turned_swiglu, in, 2, 1, m, (tl_graph_options){0}).report, "nothing was replaced\n");
    setenv("TL_WITHOUT", "all", 1);
    expect(both_ways(m, turned_swiglu, in, 2, 1, m, (tl_graph_options){0}).report, "nothing was replaced\n");
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
    assert_true(tl_match_scalar(m, "eps") == 1e-6 && tl_match_scalar(m, "no such name") != tl_match_scalar(m, "no such name"));
    expect(tl_match_place(m, &line), "test_pattern.c");
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
    static const tl_pattern_arg args[] = {TL_ARG("x1", TL_F32, TL_DIMS(2, 40)), TL_ARG("x2", TL_F32, TL_DIMS(2, 40)), TL_ARG("gamma", TL_F32, TL_DIMS(40), .or_f32 = true)};
    static const tl_pattern_scalar scalars[] = {{"eps", 0x1.3p-11}};
    static const tl_replacement rule = {.name = "my_add_norm", .search = search_add_norm, .replace = put_add_norm, .example_inputs = args, .n_in = 3, .n_out = 2,
                                        .scalars = scalars, .n_scalars = 1, .extra_check = last_dim_is_7168, .exact = TL_ALL_FLOATS, .verify = true};
    tl_model *m = tl_model_new(.seed = 1);
    on(&rule);
    for (int64_t d = 7167; d <= 7169; d++) {
        tl_tensor in[3] = {both_data(m, TL_F32, TL_DIMS(2, d), 1), both_data(m, TL_F32, TL_DIMS(2, d), 2), both_data(m, TL_F32, TL_DIMS(d), 3)};
        both_result r = both_ways(m, add_norm, in, 3, 1, m, (tl_graph_options){.without = "add_rms_norm"});
        assert_true(r.same);
        expect(r.report, d == 7168 ? "my_add_norm: replaced 1 time, exact" : "my_add_norm: not replaced: extra_check says no");
        r = both_ways(m, add_norm, in, 3, 1, m, (tl_graph_options){0}); /* one's own comes first */
        expect(r.replaced, d == 7168 ? "my_add_norm" : "add_rms_norm: replaced 1 time");
        r = both_ways(m, add_norm, in, 3, 1, m, (tl_graph_options){.without = "my_add_norm,add_rms_norm"});
        expect(r.report, "nothing was replaced\n");
    }
    off(&rule);
    tl_free(m);
}

/* ---- without end ---- */

static void replacing_comes_to_an_end(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    on(&doubled);
    on(&halved);
    both_result r = both_ways(m, search_double, &in, 1, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect(r.replaced, "test_double: replaced 1 time");
    expect(r.replaced, "test_undouble: replaced 1 time");
    expect(r.report, "was made by this replacement: it would go on for ever");
    off(&doubled);
    off(&halved);
    tl_free(m);
}

/* ---- joint with backward, and patterns built by hand ---- */

PROGRAM(trained_swiglu)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    tl_tensor a = tl_matmul(t, in[0], weight_of(t, m)), b = tl_mul(t, in[0], gamma_of(t, m, "gamma"));
    finish(t, m, tl_mul(t, tl_silu(t, a), b), out);
}

static void a_joint_pattern_is_found_in_the_expanded_graph(void **state)
{
    (void)state;
    static const tl_pattern_arg args[] = {TL_ARG("a", TL_F32, TL_DIMS(2, 4)), TL_ARG("b", TL_F32, TL_DIMS(2, 4))};
    static const tl_replacement rule = {.name = "test_joint", .search = search_swiglu, .replace = put_swiglu, .example_inputs = args, .n_in = 2, .n_out = 1, .trace = TL_TRACE_JOINT,
                                        .exact = TL_BIT(TL_F32) | TL_BIT(TL_F64), .verify = true};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    on(&rule);
    both_result r = both_ways(m, trained_swiglu, &in, 1, 3, m, (tl_graph_options){.without = "swiglu"});
    assert_true(r.same);
    expect(r.report, "test_joint: replaced 1 time, exact");
    off(&rule);
    r = both_ways(m, trained_swiglu, &in, 1, 3, m, (tl_graph_options){0}); /* the same by the forward pattern */
    assert_true(r.same);
    expect(r.replaced, "swiglu: replaced 1 time, exact");
    tl_free(m);
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

static void a_pattern_may_be_built_by_hand(void **state)
{
    (void)state;
    static const tl_pattern_scalar scalars[] = {{"c", 0}};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1), both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    if (!tl_replacement_enable("test_by_hand", true)) {
        tl_err e = {.status = TL_OK};
        tl_pattern *p = tl_pattern_new();
        tl_pattern_ref x = tl_pattern_input(0), y = tl_pattern_call(p, tl_op_find("exp"), NULL, &x, 1), z = tl_pattern_call(p, tl_op_find("scale"), NULL, &y, 1);
        tl_pattern_free_attr(p, z, "c", 0);
        tl_pattern_output(p, 0, z);
        tl_register_replacement(&e, .name = "test_by_hand", .search_pattern = p, .replace = put_scaled_exp, .example_inputs = one_arg, .n_in = 1, .n_out = 1, .scalars = scalars,
                                .n_scalars = 1, .exact_forward = TL_BIT(TL_F32), .verify = true);
        assert_string_equal(e.message, "");
    }
    both_result r = both_ways(m, scaled_exps, in, 2, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect(r.replaced, "test_by_hand: replaced 2 times, exact");
    assert_true(tl_replacement_enable("test_by_hand", false));
    tl_pattern *bad = tl_pattern_new(); /* errors stick and come out */
    tl_pattern_ref none = tl_pattern_absent();
    tl_err e = {.status = TL_OK};
    tl_pattern_call(bad, tl_op_find("exp"), NULL, &none, 2);
    assert_int_equal(tl_register_replacement(&e, .name = "test_bad", .search_pattern = bad, .replace = put_scaled_exp, .example_inputs = one_arg, .n_in = 1, .n_out = 1), TL_EUSAGE);
    expect(e.message, "calls exp with 2 inputs");
    tl_pattern_free(bad);
    tl_free(m);
}

/* ---- what registration refuses ---- */

PROGRAM(ignores_y)
{
    UNUSED;
    out[0] = tl_exp(t, in[0]);
}

PROGRAM(other_shape)
{
    UNUSED;
    out[0] = tl_sum(t, tl_mul(t, in[0], in[1]), TL_DIMS(0), false);
}

PROGRAM(other_dtype)
{
    UNUSED;
    out[0] = tl_cast(t, tl_mul(t, in[0], in[1]), TL_F64);
}

PROGRAM(cannot)
{
    UNUSED;
    out[0] = tl_matmul(t, in[0], in[1]);
}

static tl_status noisy_shape(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

static const tl_op noisy = {.name = "noisy", .n_in = 1, .n_out = 1, .traits = TL_RANDOM | TL_NONDIFF, .shape = noisy_shape};

PROGRAM(draws)
{
    UNUSED;
    tl_tensor p = tl_mul(t, in[0], in[1]);
    out[0] = tl_apply1(TL_AT(t), &noisy, NULL, &p, 1);
}

PROGRAM(changes)
{
    UNUSED;
    out[0] = tl_rotary_(t, tl_mul(t, in[0], in[1]), tl_detach(t, in[1]), tl_detach(t, in[1]), TL_ROTARY_HALF);
}

PROGRAM(apart)
{
    UNUSED;
    out[0] = tl_exp(t, in[0]);
    out[1] = tl_exp(t, in[1]);
}

PROGRAM(contains_itself)
{
    UNUSED;
    out[0] = tl_add(t, tl_mul(t, tl_silu(t, in[0]), in[1]), in[0]);
}

PROGRAM(nothing)
{
    UNUSED;
    (void)t, (void)in;
    out[0] = TL_NONE;
}

PROGRAM(second_only)
{
    UNUSED;
    out[1] = tl_mul(t, in[0], in[1]);
}

PROGRAM(near)
{
    UNUSED;
    out[0] = tl_div(t, in[0], tl_div(t, tl_shift(t, tl_exp(t, tl_neg(t, in[0])), 1), in[1]));
}

static void refused(tl_replacement r, tl_status want, const char *say)
{
    tl_err e = {.status = TL_OK};
    if (tl_register_replacement_with(&e, r) != want || e.status != want)
        fail_msg("%s wanted (%s), got %s: %s", tl_status_name(want), say, tl_status_name(e.status), e.message);
    expect(e.message, say);
}

static void bad_input_to_registration_is_a_clear_error(void **state)
{
    (void)state;
    static const tl_pattern_arg two[] = {TL_ARG("x", TL_F32, TL_DIMS(2, 4)), TL_ARG("y", TL_F32, TL_DIMS(2, 4))};
    static const tl_pattern_scalar unused[] = {{"eps", 0.125}};
    const tl_replacement good = {.name = "test_refused", .search = search_swiglu, .replace = put_swiglu, .example_inputs = two, .n_in = 2, .n_out = 1, .extra_check = last_dim_is_7168};
    tl_replacement r = good;
    r.name = NULL, refused(r, TL_ENAME, "it needs a name");
    r.name = "a,b", refused(r, TL_ENAME, "without a comma");
    r.name = "add_rms_norm", refused(r, TL_ENAME, "the name is taken");
    r = good, r.replace = NULL, refused(r, TL_EUSAGE, "a search (or search_pattern) and a replace are needed");
    r = good, r.n_in = 0, refused(r, TL_EUSAGE, "0 arguments");
    r = good, r.search = ignores_y, refused(r, TL_EUSAGE, "does not use its argument 'y'");
    r = good, r.scalars = unused, r.n_scalars = 1, refused(r, TL_EUSAGE, "does not use its scalar 'eps'");
    r = good, r.replace = other_shape, refused(r, TL_ESHAPE, "output 0 of its replacement is F32 [4], of its search F32 [2, 4]");
    r = good, r.replace = other_dtype, refused(r, TL_EDTYPE, "output 0 of its replacement is F64 [2, 4], of its search F32 [2, 4]");
    r = good, r.search = cannot, refused(r, TL_ESHAPE, "its search cannot be traced here: matmul:");
    r = good, r.replace = cannot, refused(r, TL_ESHAPE, "its replacement cannot be traced here: matmul:");
    r = good, r.search = draws, refused(r, TL_EUSAGE, "its search calls noisy, which draws random numbers");
    r = good, r.replace = draws, refused(r, TL_EUSAGE, "its replacement calls noisy, which draws random numbers");
    r = good, r.search = changes, refused(r, TL_EUSAGE, "its search calls rotary_, which changes its operand in place");
    r = good, r.search = r.replace = apart, r.n_out = 2, refused(r, TL_EUSAGE, "its search has parts that share nothing");
    r = good, r.replace = contains_itself, refused(r, TL_EUSAGE, "it would be replaced for ever");
    r = good, r.search = r.replace = second_only, r.n_out = 2, refused(r, TL_EUSAGE, "its search computes nothing as output 0");
    r = good, r.replace = nothing, refused(r, TL_EUSAGE, "its replacement sets no output 0");
    r = good, r.replace = near, r.exact_forward = TL_BIT(TL_F32), r.verify = true, refused(r, TL_EDOMAIN, "by its replacement (seed"); /* a claim that is not true */
    on(&doubled);
    off(&doubled);
    r = doubled, r.name = "test_duplicate", refused(r, TL_EUSAGE, "'test_double' searches for the same pattern under the same extra_check");
    r.skip_duplicates = true, refused(r, TL_OK, ""); /* no error, and not there */
    assert_false(tl_replacement_enable("test_duplicate", true));
    tl_err e = {.status = TL_OK};
    assert_int_equal(tl_replacement_check("no such name", 1, 1, &e), TL_ENAME);
}

/* ---- threads ---- */

static void *register_and_trace(void *arg)
{
    tl_err e = {.status = TL_OK};
    tl_status *s = arg;
    *s = tl_register_replacement(&e, .name = "test_threads", .search = ignores_y, .replace = put_double, .example_inputs = one_arg, .n_in = 1, .n_out = 1);
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1), both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    both_result r = both_ways(m, turned_swiglu, in, 2, 1, m, (tl_graph_options){0});
    if (!r.same || strstr(r.replaced, "swiglu: replaced 1 time, exact") == NULL)
        *s = TL_EFORMAT;
    tl_free(m);
    return NULL;
}

static void threads_register_at_the_same_time(void **state)
{
    (void)state;
    pthread_t thread[8];
    tl_status s[8];
    int ok = 0;
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, register_and_trace, &s[i]), 0);
    for (int i = 0; i < 8; i++) {
        pthread_join(thread[i], NULL);
        ok += s[i] == TL_OK;
        assert_true(s[i] == TL_OK || s[i] == TL_EUSAGE); /* a duplicate */
    }
    assert_true(ok <= 1 && tl_replacement_enable("test_threads", false));
}

const struct CMUnitTest tl_tests_pattern[] = {
    cmocka_unit_test(one_more_user_of_a_sum_keeps_the_bits_and_three_would_not),
    cmocka_unit_test(an_intermediate_has_no_users_outside),
    cmocka_unit_test(commutative_operands_match_in_both_orders),
    cmocka_unit_test(one_name_is_one_value),
    cmocka_unit_test(constants_agree_and_leaves_keep_their_uses),
    cmocka_unit_test(unnamed_attributes_and_random_draws_are_refused),
    cmocka_unit_test(a_broadcasting_add_is_no_add_of_equals),
    cmocka_unit_test(a_match_does_not_reach_across_a_change_of_memory),
    cmocka_unit_test(outputs_that_lead_back_are_refused_and_late_inputs_are_pulled),
    cmocka_unit_test(storage_that_is_shared_stays_shared),
    cmocka_unit_test(what_shows_with_real_shapes_is_refused),
    cmocka_unit_test(modes_agree),
    cmocka_unit_test(what_is_switched_off_is_absent),
    cmocka_unit_test(a_fusion_for_7168_fires_there_and_only_there),
    cmocka_unit_test(replacing_comes_to_an_end),
    cmocka_unit_test(a_joint_pattern_is_found_in_the_expanded_graph),
    cmocka_unit_test(a_pattern_may_be_built_by_hand),
    cmocka_unit_test(bad_input_to_registration_is_a_clear_error),
    cmocka_unit_test(threads_register_at_the_same_time),
};
const size_t tl_tests_pattern_count = sizeof tl_tests_pattern / sizeof *tl_tests_pattern;
