#include "tests/support/rules.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

void expect_text(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("'%s' wanted in:\n%s", part, text);
}

void expect_no_text(const char *text, const char *part)
{
    if (strstr(text, part) != NULL)
        fail_msg("'%s' not wanted in:\n%s", part, text);
}

void expect_refused(tl_model *m, tl_program *f, const tl_tensor *in, int n_in, int n_out,
                    const char *why)
{
    both_result r = both_ways(m, f, in, n_in, n_out, m, (tl_graph_options){0});
    assert_true(r.same);
    expect_text(r.report, why);
}

void rule_on(const tl_replacement *o)
{
    tl_err e = {.status = TL_OK};
    if (!tl_replacement_enable(o->name, true) && tl_register_replacement_with(&e, *o) != TL_OK)
        fail_msg("%s", e.message);
}

void rule_off(const tl_replacement *o) { assert_true(tl_replacement_enable(o->name, false)); }

tl_tensor rule_gamma(tl_tape *t, tl_model *m, const char *name)
{
    return tl_param(t, m, name, TL_F32, TL_DIMS(8), TL_INIT_UNIFORM, 1.5);
}
tl_tensor rule_weight(tl_tape *t, tl_model *m)
{
    return tl_param(t, m, "w", TL_F32, TL_DIMS(8, 8), TL_INIT_NORMAL, 0.4);
}

void rule_trained(tl_tape *t, tl_model *m, tl_tensor y, tl_tensor *out)
{
    out[0] = tl_sum(t, tl_mul(t, y, tl_sin(t, y)), TL_ALL, false);
    tl_backward(t, out[0]);
    out[1] = tl_grad(t, rule_gamma(t, m, "gamma"));
    out[2] = tl_grad(t, rule_weight(t, m));
}

/* ---- programs ---- */

void rule_turned_swiglu(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                        void *ctx)
{
    UNUSED;
    out[0] = tl_mul(t, in[1], tl_silu(t, in[0]));
}

void rule_written_swiglu(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                         void *ctx)
{
    UNUSED;
    out[0] = tl_mul(t, tl_silu(t, in[0]), in[1]);
}

void rule_swiglu(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    UNUSED;
    out[0] = tl_swiglu(t, in[0], in[1]);
}

bool rule_yes(const tl_match *m, void *ctx)
{
    (void)m, (void)ctx;
    return true;
}

void rule_twice_used(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                     void *ctx)
{
    UNUSED;
    out[0] = tl_sub(t, tl_mul(t, in[0], in[1]), in[0]);
}

void rule_twice_used_otherwise(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                               void *ctx)
{
    UNUSED;
    out[0] = tl_add(t, tl_mul(t, in[0], in[1]), tl_neg(t, in[0]));
}

void rule_scale_by_2(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                     void *ctx)
{
    UNUSED;
    out[0] = tl_scale(t, in[0], 2);
}

void rule_add_itself(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                     void *ctx)
{
    UNUSED;
    out[0] = tl_add(t, in[0], in[0]);
}

/* ---- rules ---- */

const tl_pattern_arg rule_one_arg[] = {TL_ARG("x", TL_F32, TL_DIMS(3, 5))};
const tl_replacement rule_doubled = {.name = "test_double",
                                     .search = rule_scale_by_2,
                                     .replace = rule_add_itself,
                                     .example_inputs = rule_one_arg,
                                     .n_in = 1,
                                     .n_out = 1,
                                     .exact = TL_ALL_FLOATS};
