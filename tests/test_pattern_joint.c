/* Pattern replacement, joint with backward: several outputs, of which some are dead; arguments
 * without a gradient; one match beside another; and what is refused, with the reason. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/rules.h"

extern const struct CMUnitTest tl_tests_pattern_joint[];
extern const size_t tl_tests_pattern_joint_count;

/* ---- add + rms_norm, whose sum goes on: two outputs ---- */

static void search_add_norm(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                            void *ctx)
{
    const tl_pattern_values *v = ctx;
    (void)n_in, (void)n_out;
    out[1] = tl_add(t, in[0], in[1]);
    out[0] = tl_rms_norm(t, out[1], in[2], v->scalar[0]);
}

static void put_add_norm(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                         void *ctx)
{
    const tl_pattern_values *v = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_add_rms_norm(t, in[0], in[1], in[2], v->scalar[0], NULL, &out[1]);
}

static const tl_pattern_arg norm_args[] = {TL_ARG("x1", TL_F32, TL_DIMS(3, 37)),
                                           TL_ARG("x2", TL_F32, TL_DIMS(3, 37)),
                                           TL_ARG("gamma", TL_F32, TL_DIMS(37))};
static const tl_pattern_scalar eps[] = {{"eps", 0x1.5p-13}};
static const tl_replacement add_norm = {.name = "joint_add_norm",
                                        .search = search_add_norm,
                                        .replace = put_add_norm,
                                        .example_inputs = norm_args,
                                        .n_in = 3,
                                        .n_out = 2,
                                        .scalars = eps,
                                        .n_scalars = 1,
                                        .trace = TL_TRACE_JOINT,
                                        .exact = TL_ALL_FLOATS};

/* Layers of x = s + tanh(norm(s = x + f(x)) * w): the sum is used again, in the last layer too or
 * not. */
typedef struct {
    tl_model *m;
    int layers;
    bool sum_lives, norm_lives, from_input;
} stack;

PROGRAM(residuals)
{
    const stack *k = ctx;
    tl_tensor w = rule_weight(t, k->m), x = k->from_input ? in[0] : tl_matmul(t, in[0], w),
              gamma = tl_add(t, rule_gamma(t, k->m, "gamma"), tl_select(t, in[1], 0, 0));
    (void)n_in, (void)n_out;
    for (int l = 0; l < k->layers; l++) {
        tl_tensor s = tl_add(t, x, k->from_input && l == 0 ? in[1] : tl_sin(t, x)),
                  y = tl_rms_norm(t, s, gamma, 1e-5);
        bool last = l == k->layers - 1;
        x = last && !k->norm_lives ? tl_tanh(t, s) : tl_matmul(t, tl_exp(t, y), w);
        if (!last || (k->sum_lives && k->norm_lives))
            x = tl_add(t, x, s);
    }
    rule_trained(t, k->m, x, out);
}

static both_result residuals_of(stack k, tl_graph_options o)
{
    k.m = tl_model_new(.seed = 2);
    tl_tensor in[2] = {both_data(k.m, TL_F32, TL_DIMS(5, 8), 3),
                       both_data(k.m, TL_F32, TL_DIMS(5, 8), 4)};
    both_result r = both_ways(k.m, residuals, in, 2, 3, &k, o);
    tl_free(k.m);
    assert_true(r.same);
    return r;
}

static void two_outputs_are_matched_with_all_their_gradients(void **state)
{
    (void)state;
    const tl_graph_options alone = {.without = "add_rms_norm"};
    rule_on(&add_norm);
    expect_text(
        residuals_of((stack){.layers = 1, .sum_lives = true, .norm_lives = true}, alone).replaced,
        "joint_add_norm: replaced 1 time, exact");
    expect_text(
        residuals_of((stack){.layers = 4, .sum_lives = true, .norm_lives = true}, alone).replaced,
        "joint_add_norm: replaced 4 times, exact");
    expect_text(residuals_of((stack){.layers = 3, .norm_lives = true}, alone).replaced,
                "joint_add_norm: replaced 3 times, exact"); /* a dead sum at the end */
    expect_text(
        residuals_of(
            (stack){.layers = 2, .sum_lives = true, .norm_lives = true, .from_input = true}, alone)
            .replaced,
        "joint_add_norm: replaced 2 times, exact"); /* in the first, gamma alone takes a gradient */
    rule_off(&add_norm);
}

/* ---- arguments without a gradient ---- */

PROGRAM(one_side)
{
    tl_model *m = ctx;
    tl_tensor a = tl_matmul(t, in[0], rule_weight(t, m)),
              g = tl_mul(t, in[0], rule_gamma(t, m, "gamma"));
    (void)n_in, (void)n_out;
    rule_trained(t, m, tl_add(t, tl_mul(t, tl_silu(t, a), in[1]), tl_mul(t, tl_silu(t, in[1]), g)),
                 out);
}

PROGRAM(forward_alone)
{
    UNUSED;
    out[0] = tl_mul(t, tl_silu(t, in[0]), in[1]);
}

static const tl_pattern_arg two[] = {TL_ARG("a", TL_F32, TL_DIMS(2, 4)),
                                     TL_ARG("b", TL_F32, TL_DIMS(2, 4))};

static const tl_replacement one_sided = {.name = "joint_one_side",
                                         .search = rule_written_swiglu,
                                         .replace = rule_swiglu,
                                         .example_inputs = two,
                                         .n_in = 2,
                                         .n_out = 1,
                                         .trace = TL_TRACE_JOINT,
                                         .extra_check = rule_yes,
                                         .exact = TL_BIT(TL_F32)};

static void an_argument_may_take_no_gradient(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1),
                       both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    rule_on(&one_sided);
    both_result r = both_ways(m, one_side, in, 2, 3, m, (tl_graph_options){.without = "swiglu"});
    assert_true(r.same);
    expect_text(r.replaced, "joint_one_side: replaced 2 times, exact");
    r = both_ways(m, forward_alone, in, 2, 1, m,
                  (tl_graph_options){.without = "swiglu"}); /* a graph without backward */
    assert_true(r.same);
    expect_no_text(r.replaced, "joint_one_side");
    expect_text(r.report, "no gradient comes back through it as its search has it");
    rule_off(&one_sided);
    tl_free(m);
}

/* ---- what a joint rule claims ---- */

PROGRAM(exp_times_itself)
{
    UNUSED;
    tl_tensor e = tl_exp(t, in[0]);
    out[0] = tl_mul(t, e, e);
}

PROGRAM(square_of_exp)
{
    UNUSED;
    out[0] = tl_square(t, tl_exp(t, in[0]));
}

PROGRAM(trained_exp)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    tl_tensor x = tl_mul(t, tl_matmul(t, in[0], rule_weight(t, m)), rule_gamma(t, m, "gamma")),
              e = tl_exp(t, x);
    rule_trained(t, m, tl_mul(t, e, e), out);
}

static void exact_forward_is_not_enough_for_gradients(void **state)
{
    (void)state;
    static const tl_replacement rule = {.name = "joint_values",
                                        .search = exp_times_itself,
                                        .replace = square_of_exp,
                                        .example_inputs = rule_one_arg,
                                        .n_in = 1,
                                        .n_out = 1,
                                        .trace = TL_TRACE_JOINT,
                                        .exact_forward = TL_BIT(TL_F32)};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor x = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    rule_on(&rule);
    both_result r = both_ways(m, trained_exp, &x, 1, 3, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.report, "joint_values: not replaced: it rounds elsewhere in F32");
    r = both_ways(m, trained_exp, &x, 1, 3, m, (tl_graph_options){.rounds = true});
    expect_text(r.replaced, "joint_values: replaced 1 time, ROUNDS");
    rule_off(&rule);
    tl_free(m);
}

/* ---- registration ---- */

PROGRAM(no_gradient)
{
    UNUSED;
    out[0] = tl_detach(t, in[0]);
    out[0] = tl_exp(t, out[0]);
}

PROGRAM(gradient_of_one)
{
    UNUSED;
    out[0] = tl_mul(t, tl_exp(t, in[0]), tl_exp(t, in[1]));
}

PROGRAM(gradient_lost)
{
    UNUSED;
    out[0] = tl_cast(t, tl_lt(t, in[0], in[1]), TL_F32);
}

PROGRAM(without_gradients)
{
    UNUSED;
    int mode = tl_mode_push(t, TL_NO_GRAD);
    out[0] = tl_exp(t, tl_add(t, in[0], in[1]));
    tl_mode_pop(t, mode);
}

PROGRAM(scope_left_open)
{
    UNUSED;
    tl_mode_push(t, TL_NO_GRAD);
    out[0] = tl_exp(t, tl_add(t, in[0], in[1]));
}

static void refused(tl_replacement r, tl_status want, const char *say)
{
    tl_err e = {.status = TL_OK};
    assert_int_equal(tl_register_replacement_with(&e, r), want);
    expect_text(e.message, say);
}

/* Equal but for one number among very many. */
PROGRAM(clamped)
{
    UNUSED;
    out[0] = tl_clamp(t, in[0], -3e38, 3e38);
}

PROGRAM(not_clamped)
{
    UNUSED;
    out[0] = tl_scale(t, in[0], 1);
}

PROGRAM(up_and_down)
{
    UNUSED;
    out[0] = tl_scale(t, tl_scale(t, in[0], 2), 0.5);
}

PROGRAM(down_and_up)
{
    UNUSED;
    out[0] = tl_scale(t, tl_scale(t, in[0], 0.5), 2);
}

/* In every dtype, and by an example of one element too. */
static void claims_that_extremes_contradict_are_refused(void **state)
{
    (void)state;
    static const tl_pattern_arg lone = TL_ARG("x", TL_F32, TL_DIMS(1));
    const struct {
        tl_program *search;
        unsigned dtypes;
    } c[] = {{clamped, TL_BIT(TL_F32) | TL_BIT(TL_BF16)},
             {up_and_down, TL_BIT(TL_F64) | TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16)},
             {down_and_up, TL_BIT(TL_F64) | TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16)}};
    for (int i = 0; i < 3; i++)
        for (unsigned left = c[i].dtypes; left != 0; left &= left - 1)
            for (int how = 0; how < 4; how++) {
                tl_replacement r = {.name = "joint_extremes",
                                    .search = c[i].search,
                                    .replace = not_clamped,
                                    .example_inputs = how & 1 ? &lone : rule_one_arg,
                                    .n_in = 1,
                                    .n_out = 1};
                *(how & 2 ? &r.exact_forward : &r.exact) = left & -left;
                refused(r, TL_EDOMAIN, "by its replacement");
            }
}

static void bad_joint_rules_are_refused(void **state)
{
    (void)state;
    const tl_replacement good = {.name = "joint_refused",
                                 .search = gradient_of_one,
                                 .replace = rule_swiglu,
                                 .example_inputs = two,
                                 .n_in = 2,
                                 .n_out = 1,
                                 .trace = TL_TRACE_JOINT};
    tl_replacement r = good;
    r.n_out = 5, refused(r, TL_EUSAGE, "5 outputs; 1 to 4 are possible");
    r = good, r.replace = gradient_lost,
    refused(r, TL_EUSAGE, "gradients come to its search, but not to its replacement");
    r = good, r.replace = without_gradients,
    refused(r, TL_EUSAGE, "its replacement calls add, which is called in a scope of its own");
    r = good, r.search = scope_left_open,
    refused(r, TL_EUSAGE, "its search calls add, which is called in a scope of its own");
    r = good, r.search = no_gradient,
    refused(r, TL_EUSAGE, "its search reads a tensor that is no argument");
}

/* ---- beside changes in place, which are told by the numbers of nodes: a match renumbers them ----
 */

typedef struct {
    tl_model *m;
    int layers, pads;
    bool late; /* w changes again while a gradient waits in w @ v */
} changes;

static void assign(tl_tape *t, tl_tensor w, tl_tensor x, int pads)
{
    int mode = tl_mode_push(t, TL_NO_GRAD);
    for (int i = 0; i < pads; i++)
        x = tl_scale(t, x, 0.9);
    tl_assign(t, w, tl_scale(t, tl_detach(t, x), 0.5));
    tl_mode_pop(t, mode);
}

static tl_tensor square_of(tl_tape *t, tl_model *m, const char *name)
{
    return tl_param(t, m, name, TL_F32, TL_DIMS(4, 4), TL_INIT_NORMAL, 0.5);
}

PROGRAM(derived_after_matches)
{
    const changes *c = ctx;
    (void)n_in, (void)n_out;
    tl_tensor w = square_of(t, c->m, "w"), v = square_of(t, c->m, "v"),
              a = tl_matmul(t, in[0], square_of(t, c->m, "u"));
    for (int i = 0; i < c->layers; i++)
        a = tl_mul(t, tl_silu(t, a), in[0]);
    tl_backward(t, tl_sum(t, a, TL_ALL, false), .partial = true, .retain = true);
    assign(t, w, a, 0);
    tl_tensor y = tl_matmul(t, in[0], tl_matmul(t, w, v));
    tl_backward(t, tl_sum(t, tl_square(t, y), TL_ALL, false), .partial = true, .retain = true);
    if (c->late)
        assign(t, w, in[0], c->pads);
    out[0] = y;
}

/* The gradient's hash, or what refuses it. */
static void gradient_of_v(changes c, bool traced, char said[512])
{
    const float x[16] = {-0.3f, 0.2f, 0.7f, -0.05f, 0.4f, 1, -1, 0.1f};
    c.m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(c.m);
    tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(4, 4)), out;
    tl_graph *g = traced ? tl_trace(t, derived_after_matches, &in, 1, 1, &c, .without = "swiglu")
                         : NULL;
    if (traced) {
        assert_int_equal(tl_graph_replaced(g, "joint_one_side"), c.layers);
        assert_int_equal(tl_graph_replaced(g, NULL), 0);
        assert_int_equal(tl_graph_run(g, &in, 1, &out, 1), TL_OK);
    } else
        derived_after_matches(t, &in, 1, &out, 1, &c);
    tl_tensor dv = tl_grad(t, tl_model_find(c.m, "v"));
    if (tl_is_none(dv))
        snprintf(said, 512, "%.60s", tl_error(t));
    else
        assert_int_equal(tl_sha256(t, dv, said), TL_OK);
    assert_true(tl_is_none(dv) == c.late);
    tl_free(g, t, c.m);
}

static void changes_in_place_are_told_by_the_nodes_of_now(void **state)
{
    (void)state;
    rule_on(&one_sided);
    for (int late = 0; late < 2; late++)
        for (int layers = 1; layers <= 12; layers += 11)
            for (int pads = 0; pads < (late ? 24 : 1); pads++) {
                const changes c = {.layers = layers, .pads = pads, .late = late};
                char called[512], traced[512];
                gradient_of_v(c, false, called);
                gradient_of_v(c, true, traced);
                assert_string_equal(called, traced);
            }
    rule_off(&one_sided);
}

/* ---- micro-batches, of which the last takes the step ---- */

typedef struct {
    tl_model *m;
    tl_opt *o;
    bool steps;
} micro_batch;

PROGRAM(through_a_made_weight)
{
    const micro_batch *k = ctx;
    (void)n_in, (void)n_out;
    tl_tensor x = tl_matmul(t, in[0], tl_exp(t, rule_weight(t, k->m)));
    out[0] = tl_sum(t, tl_mul(t, tl_silu(t, x), in[0]), TL_ALL, false);
    tl_backward(t, out[0]);
    if (k->steps)
        tl_step(k->o, t);
}

static void a_gradient_waits_for_a_graph_that_takes_the_step(void **state)
{
    char hex[2][65];
    (void)state;
    rule_on(&one_sided);
    for (int compiled = 0; compiled < 2; compiled++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.125);
        micro_batch k[] = {{m, o, false}, {m, o, true}};
        for (int i = 0; i < 2; i++) {
            tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(3, 8), 0.5 + i), y;
            tl_compiled *c = tl_compile(t, through_a_made_weight, 1, &k[i], .without = "swiglu");
            if (compiled) {
                assert_int_equal(tl_run(c, &x, 1, &y), TL_OK);
                assert_int_equal(tl_graph_replaced(tl_compiled_at(c, 0), "joint_one_side"), 1);
            } else
                through_a_made_weight(t, &x, 1, &y, 1, &k[i]);
            tl_tape_reset(t);
            tl_free(c);
        }
        assert_int_equal(tl_model_sha256(m, hex[compiled]), TL_OK);
        tl_free(o, t, m);
    }
    rule_off(&one_sided);
    assert_string_equal(hex[0], hex[1]);
}

/* ---- a replacement whose gradient is summed in memory of its own ---- */

static tl_status passed_shape(tl_call *c)
{
    const tl_shape s = tl_array_shape(c->in[0]);
    c->out[0] = tl_array_make(c->in[0]->dtype, &s, NULL);
    return TL_OK;
}

static tl_status passed_forward(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        tl_array_put(&c->out[0], i, tl_array_get(c->in[0], i));
    return TL_OK;
}

static void passed_vjp(tl_vjp *g)
{
    const tl_shape s = tl_shape_of(g->t, g->dy[0]);
    const tl_sum_to_attrs to = {s, TL_F32};
    g->dx[0] = tl_fill(g->t, TL_F32, s, 0);
    for (int i = 0; i < 40; i++) {
        const tl_tensor term = i == 0 ? g->dy[0] : tl_fill(g->t, TL_F32, s, 0);
        g->dx[0] = tl_apply1(TL_AT(g->t), &tl_op_sum_to, &to, (tl_tensor[]){term, g->dx[0]}, 2);
    }
}

static const tl_op passed = {.name = "passed",
                             .n_in = 1,
                             .n_out = 1,
                             .shape = passed_shape,
                             .forward = passed_forward,
                             .vjp = passed_vjp};

PROGRAM(search_exp)
{
    UNUSED;
    out[0] = tl_exp(t, in[0]);
}

PROGRAM(put_exp)
{
    UNUSED;
    out[0] = tl_apply1(TL_AT(t), &passed, NULL, (tl_tensor[]){tl_exp(t, in[0])}, 1);
}

PROGRAM(of_exp)
{
    tl_tensor x = tl_matmul(t, in[0], rule_weight(t, ctx));
    (void)n_in, (void)n_out;
    for (int i = 0; i < 4; i++)
        x = tl_exp(t, tl_sin(t, x));
    rule_trained(t, ctx, tl_mul(t, x, rule_gamma(t, ctx, "gamma")), out);
}

static void a_replacement_may_change_what_it_has_made(void **state)
{
    static const tl_replacement rule = {.name = "joint_passed",
                                        .search = search_exp,
                                        .replace = put_exp,
                                        .example_inputs = rule_one_arg,
                                        .n_in = 1,
                                        .n_out = 1,
                                        .trace = TL_TRACE_JOINT};
    (void)state;
    tl_model *m = tl_model_new(.seed = 2);
    tl_tensor x = both_data(m, TL_F32, TL_DIMS(5, 8), 3);
    rule_on(&rule);
    both_result r = both_ways(m, of_exp, &x, 1, 3, m, (tl_graph_options){.rounds = true});
    rule_off(&rule);
    assert_true(r.same);
    expect_text(r.report, "joint_passed: replaced 4 times, ROUNDS");
    tl_free(m);
}

const struct CMUnitTest tl_tests_pattern_joint[] = {
    cmocka_unit_test(a_gradient_waits_for_a_graph_that_takes_the_step),
    cmocka_unit_test(a_replacement_may_change_what_it_has_made),
    cmocka_unit_test(changes_in_place_are_told_by_the_nodes_of_now),
    cmocka_unit_test(two_outputs_are_matched_with_all_their_gradients),
    cmocka_unit_test(an_argument_may_take_no_gradient),
    cmocka_unit_test(exact_forward_is_not_enough_for_gradients),
    cmocka_unit_test(claims_that_extremes_contradict_are_refused),
    cmocka_unit_test(bad_joint_rules_are_refused),
};
const size_t tl_tests_pattern_joint_count = sizeof tl_tests_pattern_joint /
                                            sizeof *tl_tests_pattern_joint;
