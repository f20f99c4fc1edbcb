/* Gradients that backwards before a run have left on the tape: traced, a program finds them as it
 * does when it is called. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/support/parts.h"

extern const struct CMUnitTest tl_tests_graph_before[];
extern const size_t tl_tests_graph_before_count;

static void only_a_step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                        void *ctx)
{
    parts_fixture *f = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_sum(t, in[0], TL_ALL, false);
    out[1] = tl_sum(t, tl_grad(t, tl_model_find(f->m, "d.one")), TL_ALL, false);
    tl_step(f->a, t);
}

static void only_backward(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                          void *ctx)
{
    parts_fixture *f = ctx;
    (void)n_in, (void)n_out;
    for (int i = 0; i < 2; i++) {
        out[i] = parts_loss(t, f, in[i]);
        tl_backward(t, out[i], .partial = true, .ragged = true);
    }
}

/* Another parameter, another number of uses: what the partial backward before has left goes through
 * the same step. */
static void another_backward_and_step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out,
                                      int n_out, void *ctx)
{
    parts_fixture *f = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_mean(t, tl_cast(t, parts_layer(t, f, "g.one", in[0]), TL_F32), TL_ALL, false);
    tl_backward(t, out[0], .partial = true, .ragged = true);
    out[1] = out[0];
    tl_step(f->a, t);
}

/* bit i of how: program i compiled. The second is called with and without gradients that the first
 * has left. */
static void train_two(tl_program *second, int how, char hash[65])
{
    tl_program *p[2] = {only_backward, second};
    parts_fixture f = parts_begin(TL_F32);
    tl_compiled *c[2] = {tl_compile(f.t, p[0], 2, &f), tl_compile(f.t, p[1], 2, &f)};
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 2; k++) {
            tl_tensor in[2], out[2];
            parts_rows(&f, i, in);
            if (k == 0 && second != only_a_step && i % 3 == 2)
                continue;
            if (how >> k & 1)
                tl_run(c[k], in, 2, out);
            else
                p[k](f.t, in, 2, out, 2, &f);
            if (tl_failed(f.t))
                fail_msg("how %d, step %d: %s", how, i, tl_error(f.t));
            tl_tape_reset(f.t);
        }
    assert_int_equal(tl_model_sha256(f.m, hash), TL_OK);
    assert_int_equal(tl_opt_steps(f.a), 6);
    if (how == 3)
        assert_int_equal(tl_compiled_count(c[1]),
                         second == only_a_step ? 1
                                               : 2); /* another set of gradients is another graph */
    tl_free(c[0], c[1], f.a, f.b, f.t, f.m);
}

static void gradients_of_before_are_found(void **state)
{
    (void)state;
    tl_program *const second[] = {only_a_step, another_backward_and_step};
    for (int s = 0; s < 2; s++) {
        char want[65], got[65];
        train_two(second[s], 0, want);
        for (int how = 1; how < 4; how++) {
            train_two(second[s], how, got);
            if (strcmp(got, want) != 0)
                fail_msg("program %d, how %d: %s, want %s", s, how, got, want);
        }
    }
}

/* Uses of d.one: two in the one, one in the other; nobody reads the gradient in between. */
static void fewer_uses(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                       void *ctx)
{
    parts_fixture *f = ctx;
    (void)n_in, (void)n_out;
    out[0] = out[1] = tl_mean(t, parts_layer(t, f, "d.one", in[0]), TL_ALL, false);
    tl_backward(t, out[0], .partial = true, .ragged = true);
}

static void partial_backwards_may_use_a_parameter_more_or_less_often(void **state)
{
    (void)state;
    tl_program *const order[2][2] = {{fewer_uses, only_backward}, {only_backward, fewer_uses}};
    for (int o = 0; o < 2; o++) {
        char hash[4][65];
        for (int how = 0; how < 4; how++) {
            parts_fixture f = parts_begin(TL_F32);
            tl_compiled *c[2] = {tl_compile(f.t, order[o][0], 2, &f),
                                 tl_compile(f.t, order[o][1], 2, &f)};
            for (int i = 0; i < 6; i++) {
                tl_tensor in[2], out[2];
                parts_rows(&f, i, in);
                if (how >> i % 2 & 1)
                    tl_run(c[i % 2], in, 2, out);
                else
                    order[o][i % 2](f.t, in, 2, out, 2, &f);
                if (i == 3)
                    tl_step(f.a, f.t);
                tl_tape_reset(f.t);
            }
            tl_step(f.b, f.t);
            if (tl_failed(f.t))
                fail_msg("%s", tl_error(f.t));
            assert_int_equal(tl_model_sha256(f.m, hash[how]), TL_OK);
            assert_string_equal(hash[how], hash[0]);
            tl_free(c[0], c[1], f.a, f.b, f.t, f.m);
        }
    }
}

static void a_graph_refuses_other_gradients_than_it_was_traced_with(void **state)
{
    (void)state;
    parts_fixture f = parts_begin(TL_F32);
    tl_tensor in[2], out[2];
    parts_rows(&f, 0, in);
    only_backward(f.t, in, 2, out, 2, &f);
    tl_graph *g = tl_trace(f.t, only_a_step, in, 2, 2, &f);
    assert_int_equal(tl_graph_run(g, in, 2, out, 2), TL_OK);
    assert_int_equal(tl_graph_run(g, in, 2, out, 2), TL_EUSAGE); /* they have been consumed */
    if (strstr(tl_error(f.t), "'d.one' has not a gradient, and had one when") == NULL)
        fail_msg("%s", tl_error(f.t));
    assert_int_equal(tl_opt_steps(f.a), 1);
    tl_free(g, f.a, f.b, f.t, f.m);
}

const struct CMUnitTest tl_tests_graph_before[] = {
    cmocka_unit_test(gradients_of_before_are_found),
    cmocka_unit_test(partial_backwards_may_use_a_parameter_more_or_less_often),
    cmocka_unit_test(a_graph_refuses_other_gradients_than_it_was_traced_with),
};
const size_t tl_tests_graph_before_count = sizeof tl_tests_graph_before /
                                           sizeof *tl_tests_graph_before;
