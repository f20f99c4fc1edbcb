/* test_kernels_backward.c: what was selected forward holds in backward, in segments and in graphs;
 * threads have scopes of their own. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/own_kernels.h"
#include "tests/support/fresh.h"

extern const struct CMUnitTest tl_tests_kernels_backward[];
extern const size_t tl_tests_kernels_backward_count;

/* ---- backward, segments, graphs ---- */

static void backward_uses_it_though_the_scope_is_closed(void **unused)
{
    char mine[2][65], library[2][65];
    (void)unused;
    own_kernels(t);
    for (int pass = 0; pass < 2; pass++) {
        tl_tape_reset(t);
        tl_grad_clear(t);
        own_calls = 0;
        tl_tensor a = own_weight(t, m, "a", 700, 30), b = own_weight(t, m, "b", 30, 8);
        int s = pass ? tl_kernel_push(t, "matmul", TL_F32, "test-own") : 0;
        tl_tensor y = own_total(t, tl_tanh(t, tl_matmul(t, a, b)));
        if (pass)
            tl_mode_pop(t, s);
        assert_int_equal(own_calls, pass);
        assert_int_equal(tl_backward(t, y), TL_OK);
        assert_int_equal(own_calls,
                         3 * pass); /* dA = dC B^T, dB = A^T dC: the second is a chain of 700 */
        own_hash(t, tl_grad(t, a), pass ? mine[0] : library[0]);
        own_hash(t, tl_grad(t, b), pass ? mine[1] : library[1]);
    }
    assert_string_equal(mine[0], library[0]); /* chains of 8: halves are the whole */
    assert_string_not_equal(mine[1], library[1]);
    own_calls = 0;
    tl_grad_clear(t);
    tl_tensor y = own_total(t, tl_matmul(t, own_weight(t, m, "a", 700, 30),
                                         own_weight(t, m, "b", 30, 8)));
    int s = tl_kernel_push(t, "matmul", TL_F32, "test-own");
    tl_backward(t, y); /* a scope around the call of tl_backward is not the nodes' */
    tl_mode_pop(t, s);
    assert_int_equal(own_calls, 0);
    expect_no_error(t);
}

static void a_kernel_of_an_op_that_only_backward_calls(void **unused)
{
    (void)unused;
    own_kernels(t);
    tl_tensor w = own_weight(t, m, "w", 4, 4);
    int s = tl_kernel_push(t, "silu_grad", TL_F32, "test-doubled");
    tl_tensor y = own_total(t, tl_silu(t, w));
    tl_mode_pop(t, s);
    assert_int_equal(own_calls, 0);
    tl_backward(t, y);
    expect_no_error(t);
    assert_true(own_calls > 0);
    assert_true(tl_item(t, tl_max(t, tl_grad(t, w), TL_ALL, false)) == 2); /* twice the cotangent */
}

static void a_segment_is_computed_again_by_the_same_kernel(void **unused)
{
    (void)unused;
    own_kernels(t);
    tl_tensor w = own_weight(t, m, "w", 40, 40), x = own_numbers(t, TL_F32, 8, 40, 0);
    uint32_t from = tl_segment_begin(t);
    int s = tl_kernel_push(t, "matmul", TL_F32, "test-own");
    tl_tensor h = tl_exp(t, tl_tanh(t, tl_matmul(t, x, w)));
    tl_mode_pop(t, s);
    tl_segment_end(t, from, &h, 1, true); /* verified: other bits would be an error */
    tl_tensor y = own_total(t, tl_square(t, h));
    assert_int_equal(own_calls, 1);
    tl_backward(t, y);
    expect_no_error(t);
    assert_int_equal(own_calls, 3); /* again, and for the gradient of w */
}

static void program(tl_tape *on, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                    void *ctx)
{
    (void)n_in, (void)n_out, (void)ctx;
    tl_tensor x = tl_matmul(on, in[0], in[1]);
    int s = tl_kernel_push(on, "silu", TL_F32, "test-doubled");
    tl_tensor h = tl_silu(on, x);
    tl_mode_pop(on, s);
    out[0] = tl_add(on, h, tl_add(on, tl_silu(on, h), tl_silu(on, x))); /* x's are not the same */
}

static void a_graph_runs_the_kernels_it_was_traced_with(void **unused)
{
    char eager[2][65], replay[2][65];
    (void)unused;
    own_kernels(t);
    tl_compiled *c = tl_compile(t, program, 1, NULL);
    for (int own = 0; own < 2; own++) {
        tl_tape_reset(t);
        int s = tl_mode_push(t, TL_NO_GRAD);
        if (own) {
            tl_kernel_push(t, "matmul", TL_F32, "test-own");
            tl_kernel_push(t, "abs", TL_F32, "invariant"); /* inside the other, which holds on */
        }
        tl_tensor in[2] = {own_numbers(t, TL_F32, 6, 300, 0), own_numbers(t, TL_F32, 300, 7, 1)},
                  out;
        program(t, in, 2, &out, 1, NULL);
        own_hash(t, out, eager[own]);
        for (int again = 0; again < 2; again++) {
            own_calls = 0;
            assert_int_equal(tl_run(c, in, 2, &out), TL_OK);
            assert_int_equal(own_calls, 1 + own); /* one tile of silu; and the product */
            own_hash(t, out, replay[own]);
            assert_string_equal(replay[own], eager[own]);
        }
        tl_mode_pop(t, s);
    }
    assert_int_equal(tl_compiled_count(c), 2); /* another selection, another graph */
    assert_string_not_equal(eager[0], eager[1]);
    tl_free(c);
}

/* ---- threads ---- */

typedef struct {
    bool own;
    char hex[65], ran[64];
} worker;

static void *work(void *ctx)
{
    worker *w = ctx;
    for (int i = 0; i < 20; i++) {
        tl_tape *on = tl_tape_new(NULL);
        if (w->own)
            tl_kernel_push(on, "matmul", TL_F32, "test-own");
        tl_tensor y = tl_matmul(on, tl_probe_numbers(on, TL_F32, TL_DIMS(9, 600), 0, false),
                                tl_probe_numbers(on, TL_F32, TL_DIMS(600, 9), 1, false));
        const char *name = tl_kernel_of(on, y);
        snprintf(w->ran, sizeof w->ran, "%s", name == NULL ? tl_error(on) : name);
        tl_sha256(on, y, w->hex);
        tl_free(on);
    }
    return NULL;
}

static void threads_have_scopes_of_their_own(void **unused)
{
    worker w[4] = {{.own = true}, {.own = false}, {.own = true}, {.own = false}};
    pthread_t id[4];
    (void)unused;
    own_kernels(t);
    int s = tl_mode_push(t, TL_FAST);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&id[i], NULL, work, &w[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(id[i], NULL);
    tl_mode_pop(t, s);
    for (int i = 0; i < 4; i++)
        assert_true((strcmp(w[i].ran, "matmul F32 test-own") == 0) == w[i].own);
    assert_string_equal(w[0].hex, w[2].hex);
    assert_string_equal(w[1].hex, w[3].hex);
    assert_string_not_equal(w[0].hex, w[1].hex);
}

/* Of a weight with two uses one is in a scope that selects a kernel: what comes to the weight by it
 * is added by that kernel, what comes by the other is not, whichever is called first. */
static void each_use_is_added_by_its_own_kernel(void **unused)
{
    (void)unused;
    own_kernels(t);
    for (int first = 0; first < 2; first++) {
        tl_tape_reset(t);
        tl_grad_clear(t);
        tl_tensor w = own_weight(t, m, "w", 20, 300), y[2];
        for (int use = 0; use < 2; use++) {
            const int scope = tl_mode_push(t, 0);
            if (use == first)
                tl_kernel_push(t, "matmul", TL_F32, "test-right");
            y[use] = tl_sin(t, tl_matmul(t, own_numbers(t, TL_F32, 1, 20, use), w));
            tl_mode_pop(t, scope);
        }
        own_calls = 0;
        tl_backward(t, own_total(t, tl_add(t, y[0], y[1])));
        expect_ok(t, "backward");
        if (own_calls != 1)
            fail_msg("the kernel around use %d ran %d times in backward", first, own_calls);
    }
}

const struct CMUnitTest tl_tests_kernels_backward[] = {
    TEST(each_use_is_added_by_its_own_kernel),
    TEST(backward_uses_it_though_the_scope_is_closed),
    TEST(a_kernel_of_an_op_that_only_backward_calls),
    TEST(a_segment_is_computed_again_by_the_same_kernel),
    TEST(a_graph_runs_the_kernels_it_was_traced_with),
    TEST(threads_have_scopes_of_their_own),
};
const size_t tl_tests_kernels_backward_count = sizeof tl_tests_kernels_backward /
                                               sizeof *tl_tests_kernels_backward;
