/* Pattern replacement, registration: what it refuses, with the reason; threads that register at the
 * same time. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <string.h>

#include "tests/support/rules.h"

extern const struct CMUnitTest tl_tests_pattern_registration[];
extern const size_t tl_tests_pattern_registration_count;

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

static const tl_op noisy = {
    .name = "noisy", .n_in = 1, .n_out = 1, .traits = TL_RANDOM | TL_NONDIFF, .shape = noisy_shape};

PROGRAM(draws)
{
    UNUSED;
    tl_tensor p = tl_mul(t, in[0], in[1]);
    out[0] = tl_apply1(TL_AT(t), &noisy, NULL, &p, 1);
}

PROGRAM(changes)
{
    UNUSED;
    out[0] = tl_rotary_(t, tl_mul(t, in[0], in[1]), tl_detach(t, in[1]), tl_detach(t, in[1]),
                        TL_ROTARY_HALF);
}

PROGRAM(apart)
{
    UNUSED;
    out[0] = tl_exp(t, in[0]);
    out[1] = tl_exp(t, in[1]);
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

/* x, which has y's gradient come to nothing. */
static tl_status first_forward(tl_call *c)
{
    tl_array_copy(&c->out[0], c->in[0]);
    return TL_OK;
}

static void first_vjp(tl_vjp *g)
{
    g->dx[0] = g->dy[0];
    g->dx[1] = tl_scale(g->t,
                        tl_fill(g->t, tl_dtype_of(g->t, g->in[1]), tl_shape_of(g->t, g->in[1]), 1),
                        0);
}

static const tl_op first_op = {.name = "first",
                               .n_in = 2,
                               .n_out = 1,
                               .shape = noisy_shape,
                               .forward = first_forward,
                               .vjp = first_vjp};

PROGRAM(first)
{
    UNUSED;
    out[0] = tl_apply1(TL_AT(t), &first_op, NULL, in, 2);
}

PROGRAM(first_alone)
{
    UNUSED;
    out[0] = tl_reshape(t, in[0], tl_shape_of(t, in[0]));
}

PROGRAM(reads_constant)
{
    static const float c[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    UNUSED;
    out[0] = tl_mul(t, tl_mul(t, in[0], in[1]), tl_constant(t, c, TL_F32, TL_DIMS(2, 4)));
}

PROGRAM(makes_constant)
{
    static const float c[2] = {1, 2};
    UNUSED;
    tl_constant(t, c, TL_F32, TL_DIMS(2));
    out[0] = tl_sin(t, tl_tanh(t, in[0]));
}

PROGRAM(watches)
{
    static double seen;
    UNUSED;
    out[0] = tl_mul(t, in[0], in[1]);
    tl_watch(t, tl_sum(t, out[0], TL_ALL, false), &seen);
}

PROGRAM(too_long)
{
    UNUSED;
    out[0] = tl_mul(t, in[0], in[1]);
    for (int i = 0; i < TL_PATTERN_NODES; i++)
        out[0] = tl_sin(t, out[0]);
}

PROGRAM(too_wide)
{
    tl_tensor all[TL_PATTERN_ARGS + 1];
    UNUSED;
    for (int i = 0; i < TL_PATTERN_ARGS + 1; i++)
        all[i] = in[i % 2];
    out[0] = tl_concat(t, all, TL_PATTERN_ARGS + 1, 0);
}

/* A check that no other rule has, so that no rule is the same as another. */
static bool own_check(const tl_match *m, void *ctx)
{
    (void)m, (void)ctx;
    return true;
}

static void refused(tl_replacement r, tl_status want, const char *say)
{
    tl_err e = {.status = TL_OK};
    if (tl_register_replacement_with(&e, r) != want || e.status != want)
        fail_msg("%s wanted (%s), got %s: %s", tl_status_name(want), say, tl_status_name(e.status),
                 e.message);
    expect_text(e.message, say);
}

PROGRAM(written_silu)
{
    UNUSED;
    out[0] = tl_mul(t, tl_sigmoid(t, in[0]), in[0]);
}

PROGRAM(silu)
{
    UNUSED;
    out[0] = tl_silu(t, in[0]);
}

/* Given twice, the second one is not added. */
static void a_pattern_may_be_given_twice(void)
{
    tl_err e = {.status = TL_OK};
    tl_replacement r = rule_doubled;
    r.name = "test_given_twice", r.search = written_silu, r.replace = silu;
    r.exact = 0, r.exact_forward = TL_BIT(TL_F32), r.extra_check = rule_yes;
    r.skip_duplicates = true;
    for (int i = 0; i < 2; i++)
        refused(r, TL_OK, "");
    assert_int_equal(tl_replacement_check(r.name, 1, 1, &e), TL_OK);
    assert_true(tl_replacement_enable(r.name, false));
}

static void bad_input_to_registration_is_a_clear_error(void **state)
{
    (void)state;
    static const tl_pattern_arg two[] = {TL_ARG("x", TL_F32, TL_DIMS(2, 4)),
                                         TL_ARG("y", TL_F32, TL_DIMS(2, 4))};
    static const tl_pattern_arg huge[] = {TL_ARG("x", TL_F32, TL_DIMS(1LL << 40)),
                                          TL_ARG("y", TL_F32, TL_DIMS(1LL << 40))};
    static const tl_pattern_scalar unused[] = {{"eps", 0.125}}, nameless[] = {{NULL, 0.125}};
    static const tl_pattern_arg anonymous[] = {TL_ARG("x", TL_F32, TL_DIMS(2, 4)),
                                               TL_ARG(NULL, TL_F32, TL_DIMS(2, 4))},
                                untyped[] = {TL_ARG("x", (tl_dtype)0, TL_DIMS(2, 4)),
                                             TL_ARG("y", TL_F32, TL_DIMS(2, 4))};
    const tl_replacement good = {.name = "test_refused",
                                 .search = rule_written_swiglu,
                                 .replace = rule_swiglu,
                                 .example_inputs = two,
                                 .n_in = 2,
                                 .n_out = 1,
                                 .extra_check = own_check};
    tl_replacement r = good;
    r.name = NULL, refused(r, TL_ENAME, "it needs a name");
    r.name = "all", refused(r, TL_ENAME, "that name stands for all replacements");
    r.name = "a,b", refused(r, TL_ENAME, "without a comma");
    r.name = "add_rms_norm", refused(r, TL_ENAME, "the name is taken");
    r = good, r.replace = NULL, refused(r, TL_EUSAGE, "a search and a replace are needed");
    r = good, r.n_in = 0, refused(r, TL_EUSAGE, "0 arguments");
    r = good, r.search = ignores_y, refused(r, TL_EUSAGE, "does not use its argument 'y'");
    r = good, r.scalars = unused, r.n_scalars = 1,
    refused(r, TL_EUSAGE, "no attribute of its search is its scalar 'eps'");
    r.scalars = nameless, refused(r, TL_EUSAGE, "scalar 0 has no name");
    r.scalars = NULL, refused(r, TL_EUSAGE, "scalar 0 has no name");
    r = good, r.example_inputs = anonymous,
    refused(r, TL_EUSAGE, "argument 1 has no name or no dtype");
    r = good, r.example_inputs = untyped,
    refused(r, TL_EUSAGE, "argument 0 has no name or no dtype");
    r = good, r.example_inputs = NULL, refused(r, TL_EUSAGE, "argument 0 has no name or no dtype");
    r = good, r.search = watches, refused(r, TL_EUSAGE, "its search calls tl_host or tl_watch");
    r = good, r.replace = watches,
    refused(r, TL_EUSAGE, "its replacement calls tl_host or tl_watch");
    r = good, r.search = too_long,
    refused(r, TL_EUSAGE, "calls sin with 1 inputs as call 128; a pattern has at most 128 of");
    r = good, r.search = too_wide, refused(r, TL_EUSAGE, "with 17 inputs as call 0; a pattern");
    r = good, r.replace = other_shape,
    refused(r, TL_ESHAPE, "output 0 of its replacement is F32 [4], of its search F32 [2, 4]");
    r = good, r.replace = other_dtype,
    refused(r, TL_EDTYPE, "output 0 of its replacement is F64 [2, 4], of its search F32 [2, 4]");
    r = good, r.search = cannot, refused(r, TL_ESHAPE, "its search cannot be traced here: matmul:");
    r = good, r.replace = cannot,
    refused(r, TL_ESHAPE, "its replacement cannot be traced here: matmul:");
    r = good, r.search = draws,
    refused(r, TL_EUSAGE, "its search calls noisy, which draws random numbers");
    r = good, r.replace = draws,
    refused(r, TL_EUSAGE, "its replacement calls noisy, which draws random numbers");
    r = good, r.search = changes,
    refused(r, TL_EUSAGE, "its search calls rotary_, which changes its operand in place");
    r = good, r.search = r.replace = apart, r.n_out = 2,
    refused(r, TL_EUSAGE, "its search has parts that share nothing");
    r = good, r.search = r.replace = second_only, r.n_out = 2,
    refused(r, TL_EUSAGE, "its search computes nothing as output 0");
    r = good, r.search = reads_constant,
    refused(r, TL_EUSAGE,
            "its search reads a tensor that is no argument (a constant, or detached)");
    r = good, r.replace = nothing, refused(r, TL_EUSAGE, "its replacement sets no output 0");
    r = good, r.replace = near, r.exact_forward = TL_BIT(TL_F32),
    refused(r, TL_EDOMAIN, "by its replacement (seed"); /* a claim that is not true */
    r = good, r.example_inputs = huge, r.exact_forward = TL_BIT(TL_F32),
    refused(r, TL_ESHAPE, "'x' has 1099511627776 elements"); /* and drawing them has no end */
    r = good, r.search = first, r.replace = first_alone, r.exact = TL_BIT(TL_F32),
    refused(r, TL_EDOMAIN, "argument 'y' has a gradient by its search alone");
    rule_on(&rule_doubled);
    rule_off(&rule_doubled);
    r = rule_doubled, r.name = "test_duplicate",
    refused(r, TL_EUSAGE, "'test_double' searches for the same pattern under the same extra_check");
    r.skip_duplicates = true, refused(r, TL_OK, ""); /* no error, and not there */
    assert_false(tl_replacement_enable("test_duplicate", true));
    tl_err e = {.status = TL_OK};
    a_pattern_may_be_given_twice();
    assert_int_equal(tl_replacement_check("no such name", 1, 1, &e), TL_ENAME);
}

static const tl_op blind = {.name = "blind",
                            .n_in = 1,
                            .n_out = 1,
                            .traits = TL_NONDIFF,
                            .attr_size = sizeof(double),
                            .shape = noisy_shape,
                            .forward = first_forward};

PROGRAM(calls_blind)
{
    static const double two = 2;
    UNUSED;
    out[0] = tl_apply1(TL_AT(t), &blind, &two, in, 1);
}

static void attributes_without_a_schema_are_no_pattern(void **state)
{
    (void)state;
    const tl_replacement r = {.name = "test_blind",
                              .search = calls_blind,
                              .replace = rule_add_itself,
                              .example_inputs = rule_one_arg,
                              .n_in = 1,
                              .n_out = 1};
    refused(r, TL_EUSAGE, "its search calls blind, whose attributes have no schema (.attr)");
}

PROGRAM(sum_of_rows)
{
    UNUSED;
    out[0] = tl_sum(t, in[0], TL_DIMS(-1), true);
}

PROGRAM(first_two_of_rows)
{
    UNUSED;
    out[0] = tl_add(t, tl_slice(t, in[0], -1, 0, 1, 1), tl_slice(t, in[0], -1, 1, 2, 1));
}

static bool rows_of_two(const tl_match *m, void *ctx)
{
    (void)ctx;
    return tl_match_input(m, "x")->dim[1] == 2;
}

/* What is exact at the example's width alone is refused, unless a check says where it is made. */
static void a_claim_holds_at_other_sizes(void **state)
{
    (void)state;
    static const tl_pattern_arg args[] = {TL_ARG("x", TL_F32, TL_DIMS(4, 2))};
    tl_replacement r = {.name = "test_sizes",
                        .search = sum_of_rows,
                        .replace = first_two_of_rows,
                        .example_inputs = args,
                        .n_in = 1,
                        .n_out = 1,
                        .exact_forward = TL_BIT(TL_F32)};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor two = both_data(m, TL_F32, TL_DIMS(3, 2), 1),
              six = both_data(m, TL_F32, TL_DIMS(3, 6), 2);
    refused(r, TL_EDOMAIN, "'test_sizes' in F32, x being [5, 3]: element ");
    r.extra_check = rows_of_two;
    rule_on(&r);
    both_result b = both_ways(m, sum_of_rows, &two, 1, 1, m, (tl_graph_options){0});
    assert_true(b.same);
    expect_text(b.replaced, "test_sizes: replaced 1 time, exact");
    expect_refused(m, sum_of_rows, &six, 1, 1, "extra_check says no");
    rule_off(&r);
    tl_free(m);
}

/* Constants lie in the arena of the tape on which a program is traced. */
static void a_search_may_make_what_it_does_not_use(void **state)
{
    (void)state;
    static const tl_replacement rule = {.name = "test_unused_constant",
                                        .search = makes_constant,
                                        .replace = makes_constant,
                                        .example_inputs = rule_one_arg,
                                        .n_in = 1,
                                        .n_out = 1,
                                        .exact = TL_BIT(TL_F32)};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    rule_on(&rule);
    both_result r = both_ways(m, makes_constant, &in, 1, 1, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "test_unused_constant: replaced 1 time, exact");
    rule_off(&rule);
    tl_free(m);
}

/* ---- forms ---- */

PROGRAM(sine_doubled)
{
    const tl_pattern_values *v = ctx;
    tl_tensor s = tl_sin(t, in[0]);
    (void)n_in, (void)n_out;
    out[0] = v->form == 0   ? tl_add(t, s, s)
             : v->form == 1 ? tl_scale(t, s, 2)
                            : tl_scale(t, s, 2.5);
}

PROGRAM(minus_sine_doubled)
{
    UNUSED;
    out[0] = tl_scale(t, tl_sin(t, tl_neg(t, in[0])), -2);
}

PROGRAM(three_sines)
{
    (void)n_in, (void)n_out;
    for (int form = 0; form < 3; form++)
        sine_doubled(t, &in[0], 1, &out[form], 1, &(tl_pattern_values){.form = form, .ctx = ctx});
}

PROGRAM(same_in_every_form)
{
    UNUSED;
    out[0] = tl_cos(t, tl_sin(t, in[0]));
}

static void forms_share_a_name_and_a_claim_but_for_some(void **state)
{
    (void)state;
    static const tl_replacement rule = {.name = "test_forms",
                                        .search = sine_doubled,
                                        .replace = minus_sine_doubled,
                                        .example_inputs = rule_one_arg,
                                        .n_in = 1,
                                        .n_out = 1,
                                        .forms = 3,
                                        .rounding_forms = 4,
                                        .exact_forward = TL_BIT(TL_F32)};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in = both_data(m, TL_F32, TL_DIMS(3, 8), 1);
    tl_err e = {.status = TL_OK};
    int named = 0;
    rule_on(&rule);
    for (int i = 0; tl_replacement_at(i) != NULL; i++)
        named += strcmp(tl_replacement_at(i), "test_forms") == 0;
    assert_int_equal(named, 1);
    both_result r = both_ways(m, three_sines, &in, 1, 3, NULL, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.replaced, "test_forms: replaced 2 times, exact");
    r = both_ways(m, three_sines, &in, 1, 3, NULL, (tl_graph_options){.rounds = true});
    expect_text(r.replaced, "test_forms: replaced 3 times, some ROUNDS");
    rule_off(&rule); /* all of them */
    r = both_ways(m, three_sines, &in, 1, 3, NULL, (tl_graph_options){.rounds = true});
    expect_no_text(r.report, "test_forms");
    assert_int_equal(tl_replacement_compare("test_forms", 2, TL_F32, NULL, false, 1, 8, &e),
                     TL_EDOMAIN);
    assert_int_equal(tl_replacement_compare("test_forms", 3, TL_F32, NULL, false, 1, 8, &e),
                     TL_ENAME);
    tl_err_clear(&e);
    tl_replacement bad = rule;
    bad.name = "test_forms_bad", bad.search = same_in_every_form, bad.replace = rule_add_itself,
    bad.exact_forward = 0;
    refused(bad, TL_EUSAGE, "'test_forms_bad' searches for the same pattern");
    bad.forms = 65, refused(bad, TL_EUSAGE, "65 forms; 0 to 64 are possible");
    assert_false(tl_replacement_enable("test_forms_bad", true));
    bad.name = "test_forms_once", bad.forms = 2, bad.skip_duplicates = true;
    rule_on(&bad); /* the second form, which is the first again, is left out, and checked with it */
    assert_int_equal(tl_replacement_check("test_forms_once", 1, 1, &e), TL_OK);
    rule_off(&bad);
    tl_free(m);
}

/* ---- threads ---- */

static void *register_and_trace(void *arg)
{
    tl_err e = {.status = TL_OK};
    tl_status *s = arg;
    *s = tl_register_replacement(&e, .name = "test_threads", .search = ignores_y,
                                 .replace = rule_add_itself, .example_inputs = rule_one_arg,
                                 .n_in = 1, .n_out = 1);
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(3, 8), 1),
                       both_data(m, TL_F32, TL_DIMS(3, 8), 2)};
    both_result r = both_ways(m, rule_turned_swiglu, in, 2, 1, m, (tl_graph_options){0});
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

const struct CMUnitTest tl_tests_pattern_registration[] = {
    cmocka_unit_test(attributes_without_a_schema_are_no_pattern),
    cmocka_unit_test(a_claim_holds_at_other_sizes),
    cmocka_unit_test(a_search_may_make_what_it_does_not_use),
    cmocka_unit_test(bad_input_to_registration_is_a_clear_error),
    cmocka_unit_test(forms_share_a_name_and_a_claim_but_for_some),
    cmocka_unit_test(threads_register_at_the_same_time),
};
const size_t tl_tests_pattern_registration_count = sizeof tl_tests_pattern_registration /
                                                   sizeof *tl_tests_pattern_registration;
