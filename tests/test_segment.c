/* Checkpointing: values dropped after forward and computed again leave the same bits and less
 * memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include <tally.h>

#include "tests/support/expect.h"
#include "tests/support/fresh.h"

extern const struct CMUnitTest tl_tests_segment[];
extern const size_t tl_tests_segment_count;

static void no_error(const char *what)
{
    if (tl_failed(t))
        fail_msg("%s: %s", what, tl_error(t));
}

/* ---- a deep chain ---- */

typedef struct {
    int depth, length; /* layers, layers to a segment; 0: no segments */
    bool verify, dropout, attend;
} chain;

enum { ROWS = 16, WIDTH = 64 };

static tl_tensor layer(tl_tensor x, int i, const chain *c)
{
    char name[32];
    snprintf(name, sizeof name, "layer%02d", i);
    tl_tensor y = tl_norm(t, m, name, x, 1e-5);
    strcat(name, ".fc");
    y = tl_tanh(t, tl_linear(t, m, name, y, WIDTH, .no_bias = i % 2 == 1));
    if (c->attend) {
        tl_tensor h = tl_transpose(t, tl_reshape(t, y, TL_DIMS(2, ROWS / 2, 4, WIDTH / 4)), 1, 2);
        y = tl_reshape(t, tl_transpose(t, tl_attention(t, h, h, h), 1, 2), TL_DIMS(ROWS, WIDTH));
    }
    if (c->dropout)
        y = tl_dropout(t, y, 0.25, .stream = name);
    return tl_add(t, x, y);
}

/* Forward and backward on a fresh tape; the model's gradients as one hash, and peak bytes of the
 * tape. */
static size_t run(const chain *c, char hex[65])
{
    static float data[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++)
        data[i] = (float)(i % 37) / 37 - 0.5f;
    tl_free(t);
    t = tl_tape_new(m);
    tl_tensor x = tl_data(t, data, TL_F32, TL_DIMS(ROWS, WIDTH)), all[160];
    tl_require_grad(t, x);
    for (int i = 0; i < c->depth; i += c->length ? c->length : c->depth) {
        uint32_t at = tl_segment_begin(t);
        int stop = c->length && i + c->length < c->depth ? i + c->length : c->depth;
        for (int k = i; k < stop; k++)
            x = layer(x, k, c);
        if (c->length)
            assert_int_equal(tl_segment_end(t, at, &x, 1, c->verify), TL_OK);
    }
    tl_backward(t, tl_mean(t, tl_square(t, x), TL_ALL, false));
    no_error("chain");
    size_t peak = tl_memory_stats(t).tape.peak;
    int n = 0;
    for (int i = 0; i < tl_model_count(m); i++)
        all[n++] = tl_reshape(t, tl_grad(t, tl_model_at(m, i).tensor), TL_DIMS(-1));
    assert_in_range(n, c->depth * 2, 160);
    assert_int_equal(tl_sha256(t, tl_concat(t, all, n, 0), hex), TL_OK);
    return peak;
}

static void the_same_gradients_with_and_without(void **unused)
{
    static const chain plain[] = {{.depth = 12},
                                  {.depth = 12, .attend = true},
                                  {.depth = 12, .dropout = true},
                                  {.depth = 6, .dropout = true, .attend = true}};
    (void)unused;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        char want[65], got[65];
        tl_free(t, m);
        m = tl_model_new(.seed = 5 + i);
        t = NULL;
        run(&plain[i], want);
        for (int length = 1; length <= 13; length = length < 4 ? length + 1 : 2 * length - 3)
            for (int verify = 0; verify < 2; verify++) {
                chain c = plain[i];
                c.length = length;
                c.verify = verify;
                run(&c, got);
                if (strcmp(want, got) != 0)
                    fail_msg("chain %d, segments of %d, verify %d: other gradients", (int)i, length,
                             verify);
            }
    }
}

static void and_with_any_number_of_threads(void **unused)
{
    const chain c = {.depth = 8, .length = 3, .verify = true, .dropout = true, .attend = true};
    char want[65], got[65];
    (void)unused;
    tl_threads_set(1);
    run(&c, want);
    tl_threads_set(3);
    run(&c, got);
    tl_threads_set(0);
    assert_string_equal(want, got);
}

/* Without: depth * layer. With segments of length k: depth / k boundaries and one segment of k
 * layers at a time. */
static void peak_memory_falls_as_theory_says(void **unused)
{
    char hex[65];
    size_t unit = ROWS * WIDTH * sizeof(float), peak[7];
    static const int lengths[7] = {0, 1, 2, 4, 8, 16, 64};
    (void)unused;
    for (int i = 0; i < 7; i++)
        peak[i] = run(&(chain){.depth = 64, .length = lengths[i]}, hex);
    size_t each = peak[0] / 64; /* bytes a layer */
    assert_in_range(each, 3 * unit, 12 * unit);
    for (int i = 1; i < 7; i++) {
        size_t theory = (size_t)(64 / lengths[i]) * unit + (size_t)lengths[i] * each;
        if (peak[i] > theory + theory / 2 + 8 * each)
            fail_msg("segments of %d: %zu bytes, about %zu by theory, %zu without", lengths[i],
                     peak[i], theory, peak[0]);
    }
    assert_true(peak[4] * 3 < peak[0]);
    print_message("peak of 64 layers: %zu bytes; in segments of 1, 2, 4, 8, 16, 64: %zu %zu %zu "
                  "%zu %zu %zu\n",
                  peak[0], peak[1], peak[2], peak[3], peak[4], peak[5], peak[6]);
}

/* ---- what it refuses ---- */

static tl_tensor leaf(double first)
{
    const double x[] = {first, 2, 3, 4};
    tl_tensor l = tl_data(t, x, TL_F64, TL_DIMS(1, 4));
    tl_require_grad(t, l);
    return l;
}

static void verifying_catches_a_changed_input(void **unused)
{
    (void)unused;
    for (int verify = 0; verify < 2; verify++) {
        double now[] = {1, 2, 3, 4}, later[] = {1, 2, 3, 5};
        tl_tensor w = tl_buffer(t, m, "w", TL_F64, TL_DIMS(4)), loss;
        tl_write(m, w, now, sizeof now);
        tl_tensor x = leaf(1);
        uint32_t at = tl_segment_begin(t);
        loss = tl_sum(t, tl_exp(t, tl_mul(t, x, w)), TL_ALL, false);
        assert_int_equal(tl_segment_end(t, at, &loss, 1, verify), TL_OK);
        assert_int_equal(tl_write(m, w, later, sizeof later), TL_OK);
        tl_backward(t, loss);
        if (!tl_failed(t))
            fail_msg("verify %d: a weight that changed before the segment ran again went unnoticed",
                     verify);
        expect_failure(t, TL_EINPLACE, "changed");
        tl_tape_reset(t);
    }
}

/* The change is behind the library's back: only the hashes can show it. */
static void verifying_catches_what_no_version_shows(void **unused)
{
    (void)unused;
    for (int verify = 0; verify < 2; verify++) {
        double w[] = {1, 2, 3, 4};
        tl_tensor x = leaf(1), c = tl_data(t, w, TL_F64, TL_DIMS(4)), loss;
        tl_array a;
        uint32_t at = tl_segment_begin(t);
        loss = tl_sum(t, tl_exp(t, tl_mul(t, x, tl_sin(t, c))), TL_ALL, false);
        assert_int_equal(tl_segment_end(t, at, &loss, 1, verify), TL_OK);
        assert_true(tl_array_of(t, c, &a));
        ((double *)a.data)[2] = 7;
        tl_backward(t, loss);
        if (verify)
            expect_failure(t, TL_EINPLACE, "sin computed again differs");
        no_error("without verify nothing is compared");
        tl_tape_reset(t);
    }
}

/* What was recomputed and then changed is not shown as it was. */
static void a_recomputed_value_that_was_changed(void **unused)
{
    tl_array a;
    (void)unused;
    tl_tensor x = leaf(1);
    uint32_t at = tl_segment_begin(t);
    tl_tensor y = tl_exp(t, x), loss = tl_sum(t, tl_square(t, y), TL_ALL, false);
    assert_int_equal(tl_segment_end(t, at, &loss, 1, false), TL_OK);
    assert_int_equal(tl_backward(t, loss, .retain = true), TL_OK);
    assert_true(tl_array_of(t, y, &a) && a.data != NULL);
    const int mode = tl_mode_push(t, TL_NO_GRAD);
    tl_tensor c = tl_zeros(t, TL_F64, TL_DIMS(2));
    tl_rotary_(t, y, c, c, TL_ROTARY_HALF);
    tl_mode_pop(t, mode);
    no_error("turned in place");
    assert_true(tl_array_of(t, y, &a) && a.data == NULL);
}

static void nested_segments_are_refused(void **unused)
{
    (void)unused;
    tl_tensor x = leaf(1);
    uint32_t outer = tl_segment_begin(t);
    x = tl_exp(t, x);
    uint32_t inner = tl_segment_begin(t);
    tl_tensor y = tl_sin(t, x);
    assert_int_equal(tl_segment_end(t, inner, &y, 1, false), TL_OK);
    assert_int_equal(tl_segment_end(t, outer, &y, 1, false), TL_EUSAGE);
    expect_failure(t, TL_EUSAGE, "nest");
    assert_int_equal(tl_segment_end(t, UINT32_MAX, &y, 1, false), TL_EUSAGE);
    expect_failure(t, TL_EUSAGE, "tl_segment_end");
    tl_backward(t, tl_sum(t, y, TL_ALL, false)); /* the inner one stands */
    no_error("after a refusal");
}

static void an_empty_segment_is_nothing(void **unused)
{
    (void)unused;
    tl_tensor x = leaf(1), y = tl_exp(t, x);
    assert_int_equal(tl_segment_end(t, tl_segment_begin(t), NULL, 0, true), TL_OK);
    tl_backward(t, tl_sum(t, y, TL_ALL, false));
    no_error("empty");
}

static void a_dropped_value_cannot_be_read(void **unused)
{
    double buf[4];
    char hex[65];
    (void)unused;
    tl_tensor x = leaf(1);
    uint32_t at = tl_segment_begin(t);
    tl_tensor y = tl_exp(t, x), z = tl_sin(t, y), item = tl_sum(t, y, TL_ALL, false);
    tl_segment_end(t, at, &z, 1, false);
    tl_tensor w = tl_cos(t, z); /* what was kept can be used */
    no_error("kept");
    assert_true(tl_is_none(tl_neg(t, y)));
    expect_failure(t, TL_ESTALE, "dropped by a segment; list it in keep");
    tl_keep(t, y, buf, sizeof buf);
    expect_failure(t, TL_ESTALE, "dropped by a segment");
    tl_item(t, item);
    expect_failure(t, TL_ESTALE, "dropped by a segment");
    tl_sha256(t, y, hex);
    expect_failure(t, TL_ESTALE, "dropped by a segment");
    tl_backward(t, item);
    expect_failure(t, TL_ETRACED, "dropped by a segment (list it in keep)");
    tl_detach(t, y);
    expect_failure(t, TL_ESTALE, "dropped by a segment");
    tl_tensor dx;
    tl_gradients(t, z, &x, 1, y, &dx);
    expect_failure(t, TL_ETRACED, "tl_gradients: the cotangent has no value");
    assert_int_equal(tl_keep(t, z, buf, sizeof buf), TL_OK);
    tl_backward(t, tl_sum(t, w, TL_ALL, false));
    no_error("backward");
}

static void an_op_in_place_inside_is_refused(void **unused)
{
    (void)unused;
    tl_tensor x = leaf(1), one = tl_fill(t, TL_F64, TL_DIMS(4), 1);
    uint32_t at = tl_segment_begin(t);
    tl_tensor y = tl_rotary_(t, tl_scale(t, x, 1), one, one, TL_ROTARY_HALF);
    assert_int_equal(tl_segment_end(t, at, &y, 1, false), TL_EUSAGE);
    expect_failure(t, TL_EUSAGE, "rotary_ changes an operand in place");
}

/* ---- views ---- */

static void views_may_be_kept_or_dropped(void **unused)
{
    double want[4], got[4];
    (void)unused;
    for (int way = 0; way < 5; way++) {
        tl_tensor x = leaf(0.5), keep[2];
        uint32_t at = tl_segment_begin(t);
        tl_tensor y = tl_exp(t, x), v = tl_reshape(t, y, TL_DIMS(2, 2)),
                  u = tl_transpose(t, v, 0, 1), z = tl_sin(t, u);
        keep[0] = z;
        keep[1] = way == 2 ? y : way == 3 ? v : u;
        if (way > 0)
            assert_int_equal(tl_segment_end(t, at, keep, way == 1 ? 1 : 2, true), TL_OK);
        tl_tensor loss = tl_sum(t, tl_square(t, z), TL_ALL, false);
        if (way == 4) /* the view outlives the value that it shows */
            loss = tl_add(t, loss, tl_scale(t, tl_sum(t, tl_square(t, u), TL_ALL, false), 0));
        tl_backward(t, loss);
        no_error("views");
        assert_int_equal(tl_keep(t, tl_grad(t, x), way ? got : want, sizeof got), TL_OK);
        if (way)
            assert_memory_equal(got, want, sizeof got);
        tl_tape_reset(t);
        tl_grad_clear(t);
    }
}

static void values_used_across_segments(void **unused)
{
    double want[4], got[4];
    (void)unused;
    for (int way = 0; way < 3; way++) {
        tl_tensor x = leaf(0.5), y[3];
        uint32_t at = tl_segment_begin(t);
        y[0] = tl_exp(t, tl_sin(t, x));
        if (way)
            tl_segment_end(t, at, y, 1, way == 2);
        at = tl_segment_begin(t);
        y[1] = tl_mul(t, tl_tanh(t, y[0]), x);
        if (way)
            tl_segment_end(t, at, &y[1], 1, way == 2);
        at = tl_segment_begin(t);
        y[2] = tl_sum(t, tl_mul(t, tl_exp(t, y[1]), tl_mul(t, y[0], x)), TL_ALL, false);
        if (way)
            tl_segment_end(t, at, &y[2], 1, way == 2);
        tl_backward(t, y[2]);
        no_error("across");
        assert_int_equal(tl_keep(t, tl_grad(t, x), way ? got : want, sizeof got), TL_OK);
        if (way)
            assert_memory_equal(got, want, sizeof got);
        tl_tape_reset(t);
        tl_grad_clear(t);
    }
}

/* Backward twice over retained values, and gradients of gradients, through a segment. */
static void backward_again_and_second_derivatives(void **unused)
{
    double twice[4], got[4], want[4];
    (void)unused;
    for (int way = 0; way < 2; way++) {
        tl_tensor x = leaf(0.5), dx, ddx;
        uint32_t at = tl_segment_begin(t);
        tl_tensor y = tl_sum(t, tl_exp(t, tl_sin(t, x)), TL_ALL, false);
        if (way)
            tl_segment_end(t, at, &y, 1, true);
        tl_gradients(t, y, &x, 1, TL_NONE, &dx);
        tl_gradients(t, tl_sum(t, dx, TL_ALL, false), &x, 1, TL_NONE, &ddx);
        no_error("second derivative");
        assert_int_equal(tl_keep(t, ddx, way ? got : want, sizeof got), TL_OK);
        if (way)
            assert_memory_equal(got, want, sizeof got);
        tl_backward(t, y, .retain = true);
        tl_backward(t, y);
        no_error("twice");
        assert_int_equal(tl_keep(t, tl_grad(t, x), way ? got : twice, sizeof got), TL_OK);
        if (way)
            assert_memory_equal(got, twice, sizeof got);
        tl_tape_reset(t);
        tl_grad_clear(t);
    }
}

/* A weight that was updated, seen through a view inside a segment, or detached: its memory is not
 * new when the view is computed again. */
static void updated_weights_may_be_viewed_inside(void **unused)
{
    char hash[2][65];
    (void)unused;
    for (int way = 0; way < 2; way++) {
        tl_model *mine = tl_model_new(.seed = 5);
        tl_tape *tape = tl_tape_new(mine);
        tl_opt *o = tl_sgd_new(mine, .lr = 0.1);
        for (int step = 0; step < 3; step++) {
            tl_tensor x = tl_fill(tape, TL_F32, TL_DIMS(4, 8), 0.5);
            uint32_t from = tl_segment_begin(tape);
            x = tl_tanh(tape, tl_linear(tape, mine, "l", x, 8));
            tl_tensor w = tl_detach(tape, tl_model_find(mine, "l.bias"));
            x = tl_mul(tape, x, tl_sin(tape, tl_reshape(tape, w, TL_DIMS(1, 8))));
            if (way)
                tl_segment_end(tape, from, &x, 1, true);
            tl_backward(tape, tl_sum(tape, x, TL_ALL, false));
            tl_step(o, tape);
            tl_tape_reset(tape);
        }
        assert_string_equal(tl_error(tape), "");
        tl_model_sha256(mine, hash[way]);
        tl_free(o, tape, mine);
    }
    assert_string_equal(hash[0], hash[1]);
}

const struct CMUnitTest tl_tests_segment[] = {
    TEST(the_same_gradients_with_and_without),
    TEST(and_with_any_number_of_threads),
    TEST(peak_memory_falls_as_theory_says),
    TEST(verifying_catches_a_changed_input),
    TEST(verifying_catches_what_no_version_shows),
    TEST(a_recomputed_value_that_was_changed),
    TEST(nested_segments_are_refused),
    TEST(an_empty_segment_is_nothing),
    TEST(a_dropped_value_cannot_be_read),
    TEST(an_op_in_place_inside_is_refused),
    TEST(views_may_be_kept_or_dropped),
    TEST(updated_weights_may_be_viewed_inside),
    TEST(values_used_across_segments),
    TEST(backward_again_and_second_derivatives),
};
const size_t tl_tests_segment_count = sizeof tl_tests_segment / sizeof tl_tests_segment[0];
