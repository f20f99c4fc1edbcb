/* What a program lets go leaves memory at once, unless somebody may still read it; gradients have
 * the bits that they had. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <tally.h>
#include <tally_extend.h>

#include "tests/support/expect.h"
#include "tests/support/fresh.h"

extern const struct CMUnitTest tl_tests_let_go[];
extern const size_t tl_tests_let_go_count;

enum { N = 64, BYTES = N * sizeof(float) };

static tl_tensor data(void)
{
    float x[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)(i % 7) / 8 - 0.25f;
    return tl_data(t, x, TL_F32, TL_DIMS(8, 8));
}

static tl_tensor leaf(void)
{
    tl_tensor l = data();
    tl_require_grad(t, l);
    return l;
}

static size_t in_use(void) { return tl_memory_stats(t).tape.used; }

/* ---- when memory goes, and when it stays ---- */

static void what_no_gradient_reads_goes_at_once(void **unused)
{
    (void)unused;
    tl_tensor x = leaf(), s = tl_add(t, x, x), y = tl_tanh(t, s);
    const size_t before = in_use();
    tl_let_go(t, s);
    assert_int_equal(before - in_use(), BYTES);
    tl_let_go(t, y); /* tanh's own gradient reads it */
    assert_int_equal(before - in_use(), BYTES);
    tl_tensor z = tl_square(t, y);
    tl_let_go(t, y); /* so does the square's */
    tl_let_go(t, z);
    assert_int_equal(before - in_use(), BYTES); /* z came, and went */
    assert_true(element_of(t, y, 0) < 0);
}

static void without_gradients_all_of_it_goes(void **unused)
{
    (void)unused;
    tl_tensor x = leaf();
    const int depth = tl_mode_push(t, TL_NO_GRAD);
    const size_t before = in_use();
    tl_tensor y = tl_tanh(t, x), z = tl_square(t, y);
    tl_let_go(t, y);
    assert_int_equal(in_use() - before, BYTES);
    tl_mode_pop(t, depth);
    assert_true(element_of(t, z, 0) >= 0);
}

static void what_shows_it_keeps_its_memory(void **unused)
{
    (void)unused;
    tl_tensor x = leaf(), s = tl_add(t, x, x), v = tl_transpose(t, s, 0, 1);
    const size_t before = in_use();
    tl_let_go(t, s);
    assert_int_equal(in_use(), before);
    tl_let_go(t, v);
    assert_int_equal(before - in_use(), BYTES);
    s = tl_add(t, x, x);
    v = tl_transpose(t, s, 0, 1);
    tl_let_go(t, s);
    tl_add(t, x, x); /* would take the memory */
    assert_true(element_of(t, v, 0) == -0.5);
}

/* -x, for softplus, and 1 - y, for x, are what bce_with_logits' gradient reads of all it makes. */
static void a_loss_lets_go_what_it_made_on_the_way(void **unused)
{
    (void)unused;
    for (int learns = 0; learns < 2; learns++) {
        tl_tensor x = learns ? leaf() : data(), y = data();
        const size_t before = in_use();
        tl_tensor each = tl_bce_with_logits(t, x, y, TL_EACH);
        assert_int_equal(in_use() - before, (learns ? 3 : 1) * BYTES);
        tl_tensor sum = tl_bce_with_logits(t, x, y, TL_SUM);
        assert_in_range(in_use() - before, (learns ? 5 : 1) * BYTES,
                        (learns ? 5 : 1) * BYTES + BYTES / 2);
        assert_true(element_of(t, each, 0) > 0 && tl_item(t, sum) > 0);
        if (learns)
            tl_backward(t, sum);
        expect_no_error(t);
    }
}

static void leaves_and_values_of_parameters_stay(void **unused)
{
    (void)unused;
    tl_tensor x = leaf(), p = tl_param(t, m, "p", TL_F32, TL_DIMS(8, 8), TL_INIT_NORMAL, 1),
              q = tl_exp(t, p);
    const size_t before = in_use();
    tl_let_go(t, x);
    tl_let_go(t, p);
    tl_let_go(t, q);
    assert_int_equal(in_use(), before);
    tl_backward(t, tl_sum(t, tl_mul(t, x, q), TL_ALL, false));
    expect_no_error(t);
}

static void begins(void *ctx, tl_tape *tape, tl_tensor y) { (void)ctx, (void)tape, (void)y; }

static void nothing_goes_while_somebody_may_read_it(void **unused)
{
    static const tl_observer watcher = {.backward_begins = begins};
    (void)unused;
    assert_int_equal(tl_observe(t, &watcher, NULL), TL_OK);
    tl_tensor x = leaf(), s = tl_add(t, x, x);
    const size_t before = in_use();
    tl_let_go(t, s);
    assert_int_equal(in_use(), before);
    tl_observe_end(t, &watcher);
    tl_let_go(t, s);
    assert_int_equal(before - in_use(), BYTES);
}

static tl_tensor linear(tl_tensor x) { return tl_linear(t, m, "linear", x, 8); }
static tl_tensor mlp(tl_tensor x) { return tl_mlp_gelu(t, m, "mlp", x, 8); }
static tl_tensor convolution(tl_tensor x)
{
    x = tl_reshape(t, x, TL_DIMS(2, 4, 8));
    return tl_convolve1d(t, m, "conv", x, 4, .kernel = {1});
}

/* The sum of a product and a bias is all that is left of it, also after a step. (GELU's gradient
 * reads what goes in, that of the layer behind it what comes out.) */
static void layers_keep_no_product_that_a_bias_is_added_to(void **unused)
{
    static const struct {
        tl_tensor (*run)(tl_tensor x);
        size_t kept;
    } layer[] = {{linear, 1}, {mlp, 3}, {convolution, 1}};
    (void)unused;
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    for (int i = 0; i < 2; i++) {
        tl_tensor x = leaf(), loss = tl_sum(t, x, TL_ALL, false);
        for (size_t k = 0; k < sizeof layer / sizeof *layer; k++) {
            const size_t before = in_use();
            tl_tensor y = layer[k].run(x);
            assert_int_equal(in_use() - before, layer[k].kept * BYTES);
            loss = tl_add(t, loss, tl_sum(t, tl_square(t, y), TL_ALL, false));
        }
        tl_backward(t, loss);
        tl_step(o, t);
        expect_no_error(t);
        tl_tape_reset(t);
    }
    tl_free(o);
}

/* ---- what it refuses ---- */

static void what_was_let_go_cannot_be_read(void **unused)
{
    float out[N];
    (void)unused;
    tl_tensor x = leaf(), s = tl_add(t, x, x);
    tl_let_go(t, s);
    assert_true(tl_is_none(tl_neg(t, s)));
    expect_failure(t, TL_ESTALE, "was let go");
    tl_keep(t, s, out, sizeof out);
    expect_failure(t, TL_ESTALE, "was let go");
    tl_let_go(t, s);
    expect_failure(t, TL_ESTALE, "tl_let_go: value 1 was let go");
    tl_backward(t, s);
    expect_failure(t, TL_ESTALE, "was let go");
    tl_let_go(t, TL_NONE);
    expect_failure(t, TL_ESTALE, "tl_let_go: given no tensor: of a call that failed");
    tl_tape_reset(t);
    tl_let_go(t, x);
    expect_failure(t, TL_ESTALE, "before the tape was reset");
    tl_let_go(NULL, x);
}

/* ---- the same bits ---- */

/* Backward, twice over retained values, with all ways to differentiate; ways: 0 keeps everything,
 * 1 lets go, 2 and 3 in a segment (3: compared with hashes), 4 and 5 half of it in a segment. */
static tl_tensor forward(tl_tensor x, int way)
{
    uint32_t at = tl_segment_begin(t);
    tl_tensor a = tl_add(t, x, x), b = tl_sub(t, a, tl_scalar(t, TL_F32, 0.125)), c;
    if (way == 1)
        tl_let_go(t, a);
    if (way >= 4)
        at = tl_segment_begin(t);
    c = tl_scale(t, tl_sin(t, tl_mul(t, b, x)), 3);
    if (way > 0) {
        tl_tensor d = tl_add(t, c, c), e = tl_neg(t, d);
        tl_let_go(t, d);
        c = tl_scale(t, e, -0.5);
        tl_let_go(t, e);
    } else
        c = tl_scale(t, tl_neg(t, tl_add(t, c, c)), -0.5);
    if (way >= 2 && way < 4)
        tl_let_go(t, a);
    tl_tensor y = tl_exp(t, c);
    if (way == 2 || way == 3)
        tl_segment_end(t, at, &y, 1, way == 3);
    if (way >= 4) {
        if (way == 5)
            tl_let_go(t, a);
        tl_segment_end(t, at, &y, 1, true);
        if (way == 4)
            tl_let_go(t, a); /* the segment does not read it */
    }
    return tl_sum(t, y, TL_ALL, false);
}

static void gradients_have_the_same_bits(void **unused)
{
    float want[3][N], got[N];
    (void)unused;
    for (int way = 0; way < 6; way++) {
        tl_tensor x = leaf(), dx, ddx, y = forward(x, way);
        tl_gradients(t, y, &x, 1, TL_NONE, &dx);
        tl_gradients(t, tl_sum(t, tl_square(t, dx), TL_ALL, false), &x, 1, TL_NONE, &ddx);
        tl_keep(t, dx, way ? got : want[0], BYTES);
        assert_true(way == 0 || memcmp(got, want[0], BYTES) == 0);
        tl_keep(t, ddx, way ? got : want[1], BYTES);
        assert_true(way == 0 || memcmp(got, want[1], BYTES) == 0);
        tl_backward(t, y, .retain = true);
        tl_backward(t, y);
        if (tl_failed(t))
            fail_msg("way %d: %s", way, tl_error(t));
        tl_keep(t, tl_grad(t, x), way ? got : want[2], BYTES);
        assert_true(way == 0 || memcmp(got, want[2], BYTES) == 0);
        tl_tape_reset(t);
        tl_grad_clear(t);
    }
}

/* A segment cannot run again what reads a value from before it that is gone: such results stay. */
static void a_segment_keeps_what_it_could_not_make_again(void **unused)
{
    float want[N], got[N];
    (void)unused;
    for (int way = 0; way < 3; way++) {
        tl_tensor x = leaf(), a = tl_add(t, x, x);
        uint32_t at = tl_segment_begin(t);
        tl_tensor b = tl_neg(t, a), c = tl_sin(t, b), d = tl_mul(t, c, x);
        if (way == 1)
            tl_let_go(t, a);
        if (way > 0)
            tl_segment_end(t, at, &d, 1, true);
        if (way == 2)
            tl_let_go(t, a); /* the segment reads it: it stays */
        tl_backward(t, tl_sum(t, d, TL_ALL, false));
        if (tl_failed(t))
            fail_msg("way %d: %s", way, tl_error(t));
        tl_keep(t, tl_grad(t, x), way ? got : want, BYTES);
        assert_true(way == 0 || memcmp(got, want, BYTES) == 0);
        tl_tape_reset(t);
        tl_grad_clear(t);
    }
}

static tl_tensor checked(tl_tape *tape, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    tl_tensor s = tl_mul(tape, in[0], in[0]), y = tl_add(tape, s, in[0]), z;
    tl_let_go(tape, s);
    z = tl_sin(tape, y);
    tl_let_go(tape, y);
    return tl_sum(tape, z, TL_ALL, false);
}

static void gradients_can_be_checked(void **unused)
{
    (void)unused;
    tl_tensor x = leaf();
    assert_int_equal(tl_gradcheck(t, checked, &x, 1, NULL), TL_RIGHT);
    expect_no_error(t);
}

static void step(tl_tape *tape, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *opt)
{
    (void)n, (void)n_out;
    tl_tensor y = tl_linear(tape, m, "l", in[0], 8), s = tl_add(tape, y, in[0]);
    tl_let_go(tape, y);
    out[0] = tl_mean(tape, tl_square(tape, tl_tanh(tape, s)), TL_ALL, false);
    tl_backward(tape, out[0]);
    tl_step(opt, tape);
}

static void compiled_steps_are_those_that_are_called(void **unused)
{
    char hash[2][65];
    (void)unused;
    for (int way = 0; way < 2; way++) {
        tl_free(t, m);
        m = tl_model_new(.seed = 5);
        t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.5);
        tl_compiled *c = tl_compile(t, step, 1, o);
        for (int i = 0; i < 3; i++) {
            tl_tensor x = data(), loss;
            if (way)
                tl_run(c, &x, 1, &loss);
            else
                step(t, &x, 1, &loss, 1, o);
            tl_tape_reset(t);
        }
        assert_string_equal(tl_error(t), "");
        tl_model_sha256(m, hash[way]);
        tl_free(c, o);
    }
    assert_string_equal(hash[0], hash[1]);
}

const struct CMUnitTest tl_tests_let_go[] = {
    TEST(what_no_gradient_reads_goes_at_once),
    TEST(without_gradients_all_of_it_goes),
    TEST(what_shows_it_keeps_its_memory),
    TEST(a_loss_lets_go_what_it_made_on_the_way),
    TEST(leaves_and_values_of_parameters_stay),
    TEST(nothing_goes_while_somebody_may_read_it),
    TEST(layers_keep_no_product_that_a_bias_is_added_to),
    TEST(what_was_let_go_cannot_be_read),
    TEST(gradients_have_the_same_bits),
    TEST(a_segment_keeps_what_it_could_not_make_again),
    TEST(gradients_can_be_checked),
    TEST(compiled_steps_are_those_that_are_called),
};
const size_t tl_tests_let_go_count = sizeof tl_tests_let_go / sizeof tl_tests_let_go[0];
