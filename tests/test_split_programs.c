/* Programs whose operands are laid out so that one sample looks like none, or like all of them: any
 * split gives one hash, or TL_STRICT refuses each. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <tally.h>

#include "tests/support/expect.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_split_programs[];
extern const size_t tl_tests_split_programs_count;

enum { N = 8 };
static float data[N][4][6];

static void fill(void)
{
    for (int i = 0; i < N * 4 * 6; i++)
        (&data[0][0][0])[i] = (float)((i * 37) % 101 - 50) / 37;
}

static tl_tensor normal(tl_tape *t, tl_model *m, tl_shape s)
{
    return tl_param(t, m, "w", TL_F32, s, .kind = TL_INIT_NORMAL, .scale = 1);
}

static tl_tensor total(tl_tape *t, tl_tensor x) { return tl_sum(t, x, TL_ALL, false); }

typedef tl_tensor program(tl_tape *t, tl_model *m, tl_tensor x);

/* Weights of heads times columns, each of which is a sample: the weights have more dims. */
static tl_tensor columns(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor w = normal(t, m, TL_DIMS(2, 4, 6)), rows = tl_select(t, x, 1, 0);
    return total(t, tl_tanh(t, tl_matmul(t, w, tl_transpose(t, rows, 0, 1))));
}

/* As many heads as there are samples in some splits, and one. */
static tl_tensor more_columns(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor rows = tl_transpose(t, tl_select(t, x, 1, 0), 0, 1), y = tl_scalar(t, TL_F32, 0);
    for (int heads = 1; heads <= N; heads *= 2) {
        char name[8] = {'w', (char)('0' + heads)};
        tl_tensor w = tl_param(t, m, name, TL_F32, TL_DIMS(heads, 4, 6), .kind = TL_INIT_NORMAL,
                               .scale = 1);
        y = tl_add(t, y, total(t, tl_tanh(t, tl_matmul(t, w, rows))));
    }
    return y;
}

/* The weights on the right, of one dim more. */
static tl_tensor on_the_right(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor w = normal(t, m, TL_DIMS(3, 1, 6, 2)), y = tl_transpose(t, x, 0, 1);
    return total(t, tl_tanh(t, tl_matmul(t, y, w)));
}

/* Time before samples: an embedding's indices have a dim less than its rows. */
static tl_tensor words(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor w = normal(t, m, TL_DIMS(6, 3)), ids = tl_argmax(t, x, 2, false);
    ids = tl_transpose(t, ids, 0, 1);
    return total(t, tl_tanh(t, tl_embedding(t, w, ids)));
}

/* Of one sample a transpose is row-major already. */
static tl_tensor copies(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor y = tl_transpose(t, tl_linear(t, m, "l", x, 6), 0, 1), c = tl_contiguous(t, y);
    return total(t, tl_add(t, tl_add(t, tl_tanh(t, c), tl_sin(t, y)), tl_exp(t, c)));
}

/* What comes from one sample to a parameter of one row is a total, too. */
static tl_tensor gradient(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor p = normal(t, m, TL_DIMS(1, 6)), rows = tl_select(t, x, 1, 0), g;
    tl_gradients(t, total(t, tl_tanh(t, tl_mul(t, rows, p))), &p, 1, TL_NONE, &g);
    return total(t, g);
}

static tl_tensor squared_gradient(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor p = normal(t, m, TL_DIMS(1, 6)), rows = tl_select(t, x, 1, 0), g;
    tl_gradients(t, total(t, tl_tanh(t, tl_mul(t, rows, p))), &p, 1, TL_NONE, &g);
    return total(t, tl_square(t, g));
}

/* Repeated within a sample, and then once for each. */
static tl_tensor repeated_twice(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor p = normal(t, m, TL_DIMS(4, 1)), e = tl_expand(t, p, TL_DIMS(4, 6));
    e = tl_expand(t, e, tl_shape_of(t, x));
    tl_batch_axis(t, e, 0);
    return total(t, tl_tanh(t, tl_mul(t, x, e)));
}

/* Samples merged with rows, beside a dim of 1 in front: of one sample the axis is told. */
static tl_tensor merged(tl_tape *t, tl_model *m, tl_tensor x)
{
    const tl_shape s = tl_shape_of(t, x);
    tl_tensor h = normal(t, m, TL_DIMS(8, 1, 1, 6)),
              r = tl_reshape(t, x, TL_DIMS(1, s.dim[0] * 4, 6)),
              w = tl_param(t, m, "v", TL_F32, TL_DIMS(6, 2), .kind = TL_INIT_NORMAL, .scale = 1);
    tl_batch_axis(t, r, 1);
    return total(t, tl_tanh(t, tl_matmul(t, tl_mul(t, r, h), w)));
}

/* Two uses of one weight go by sample: one sample counts as one, not as its rows. */
static tl_tensor merged_twice(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor w = normal(t, m, TL_DIMS(6, 2)),
              r = tl_reshape(t, x, TL_DIMS(1, tl_shape_of(t, x).dim[0] * 4, 6));
    tl_batch_axis(t, r, 1);
    tl_tensor y = tl_tanh(t, tl_matmul(t, r, w));
    return total(t, tl_square(t, tl_add(t, y, tl_matmul(t, tl_sin(t, r), w))));
}

/* Dims in front of the samples, or beside them, go, and vjps put them back: a gradient by what
 * their op was given, in a program of its own. */
static tl_tensor in_front(tl_tape *t, tl_model *m, tl_tensor x, int64_t rows)
{
    tl_tensor w = tl_param(t, m, "front", TL_F32, TL_DIMS(6, 6), .kind = TL_INIT_NORMAL,
                           .scale = 1);
    return tl_tanh(t, tl_matmul(t, tl_transpose(t, tl_slice(t, x, 1, 0, rows, 1), 0, 1), w));
}

static tl_tensor used_again(tl_tape *t, tl_model *m, tl_tensor y, tl_tensor h)
{
    tl_tensor g;
    tl_gradients(t, total(t, tl_square(t, tl_tanh(t, y))), &h, 1, TL_NONE, &g);
    return total(t, tl_tanh(t, tl_matmul(t, g, normal(t, m, TL_DIMS(6, 6)))));
}

static tl_tensor selected(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor h = in_front(t, m, x, 4);
    return used_again(t, m, tl_select(t, h, 0, 2), h);
}

static tl_tensor summed(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor h = in_front(t, m, x, 4);
    return used_again(t, m, tl_sum(t, h, TL_DIMS(0), false), h);
}

static tl_tensor greatest(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor h = in_front(t, m, x, 4);
    return used_again(t, m, tl_max(t, h, TL_DIMS(0), false), h);
}

static tl_tensor stacked(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor h = in_front(t, m, x, 1);
    return used_again(t, m, tl_stack(t, ((tl_tensor[]){h, tl_sin(t, h)}), 2, 2), h);
}

static tl_tensor log_summed(tl_tape *t, tl_model *m, tl_tensor x)
{
    return total(t, tl_tanh(t, tl_logsumexp(t, in_front(t, m, x, 1), TL_DIMS(2), false)));
}

/* The library's own reshapes of (1, samples, 6). */
static tl_tensor by_a_vector(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor h = in_front(t, m, x, 1), y = tl_matmul(t, h, normal(t, m, TL_DIMS(6)));
    return total(t, tl_add(t, tl_tanh(t, y), tl_sum(t, h, TL_DIMS(2), false)));
}

static tl_tensor each_loss(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor h = in_front(t, m, x, 1),
              ids = tl_transpose(t, tl_slice(t, tl_argmax(t, x, 2, false), 1, 0, 1, 1), 0, 1),
              y = tl_cross_entropy(t, h, ids, TL_EACH, .smoothing = 0.25);
    return total(t, tl_add(t, tl_tanh(t, y), tl_sum(t, h, TL_DIMS(2), false)));
}

static tl_tensor diagonals(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor h = tl_reshape(t, in_front(t, m, x, 1), TL_DIMS(1, tl_shape_of(t, x).dim[0], 2, 3));
    tl_batch_axis(t, h, 1);
    tl_tensor y = tl_diagonal(t, h, 0, 2, 3);
    return total(t, tl_tanh(t, tl_mul(t, y, tl_slice(t, tl_select(t, h, 2, 0), 2, 0, 2, 1))));
}

/* Repeated as often as a micro-batch has samples, but not for each. */
static tl_tensor repeated_beside(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor p = tl_expand(t, normal(t, m, TL_DIMS(1, 6)), TL_DIMS(4, 6));
    return total(t, tl_tanh(t, tl_mul(t, tl_tanh(t, x), p)));
}

static const struct {
    const char *name;
    program *f;
    bool refused;
} programs[] = {
    {"columns", columns, false},
    {"more_columns", more_columns, false},
    {"on_the_right", on_the_right, false},
    {"words", words, false},
    {"copies", copies, false},
    {"merged", merged, false},
    {"merged_twice", merged_twice, false},
    {"selected", selected, false},
    {"summed", summed, false},
    {"greatest", greatest, false},
    {"stacked", stacked, false},
    {"log_summed", log_summed, false},
    {"by_a_vector", by_a_vector, false},
    {"each_loss", each_loss, false},
    {"diagonals", diagonals, false},
    {"gradient", gradient, false},
    {"squared_gradient", squared_gradient, true},
    {"repeated_twice", repeated_twice, true},
    {"repeated_beside", repeated_beside, true},
};

static void any_split_gives_one_hash(void **unused)
{
    static const int split[][2] = {{8, 8}, {4, 4}, {2, 2}, {1, 1}, {7, 1}, {3, 5}};
    (void)unused;
    fill();
    for (size_t k = 0; k < sizeof programs / sizeof *programs; k++) {
        char first[65] = "", hex[65];
        for (size_t s = 0; s < sizeof split / sizeof *split; s++) {
            tl_model *m = tl_model_new(.seed = 1);
            tl_tape *t = tl_tape_new(m);
            tl_opt *o = tl_sgd_new(m, .lr = 0.1);
            tl_mode_push(t, TL_STRICT);
            for (int at = 0, b; at < N; at += b, tl_tape_reset(t)) {
                b = split[s][at > 0];
                tl_tensor x = tl_data(t, data[at], TL_F32, TL_DIMS(b, 4, 6));
                tl_backward(t, programs[k].f(t, m, x));
            }
            tl_step(o, t);
            if (programs[k].refused) {
                expect_failure(t, TL_EUSAGE, "TL_STRICT");
            } else {
                if (tl_failed(t))
                    fail_msg("%s by %d: %s", programs[k].name, split[s][0], tl_error(t));
                tl_model_sha256(m, s == 0 ? first : hex);
                if (s > 0 && strcmp(first, hex) != 0)
                    fail_msg("%s by %d, then %d: another hash", programs[k].name, split[s][0],
                             split[s][1]);
            }
            tl_free(o, t, m);
        }
    }
}

static tl_tensor checked(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    const int *which = ctx;
    (void)n;
    tl_tensor w = in[1];
    return total(t, tl_tanh(t, *which == 0 ? tl_matmul(t, w, tl_transpose(t, in[0], 0, 1))
                                           : tl_matmul(t, in[0], w)));
}

/* The fold's own gradients are those of the op. */
static void their_gradients_are_right(void **unused)
{
    (void)unused;
    fill();
    for (int which = 0; which < 2; which++)
        for (int b = 1; b <= 4; b++) {
            tl_model *m = tl_model_new(.seed = 1);
            tl_tape *t = tl_tape_new(m);
            tl_tensor in[2] = {tl_data(m, data, TL_F32, TL_DIMS(b, 6)),
                               normal(t, m, which == 0 ? TL_DIMS(2, 4, 6) : TL_DIMS(2, 3, 6, 4))};
            if (tl_gradcheck(t, checked, in, 2, &which) != TL_RIGHT)
                fail_msg("%d, %d samples: %s", which, b, tl_error(t));
            tl_free(t, m);
        }
}

/* A value made of parameters that is broadcast in one backward and multiplied in the next; the step
 * is stopped between its micro-batches. */
static void two_backwards(tl_tape *t, tl_model *m, int at)
{
    tl_tensor x = tl_data(t, data[at], TL_F32, TL_DIMS(1, 4, 6)), rows = tl_select(t, x, 1, 0),
              v = tl_tanh(t, normal(t, m, TL_DIMS(1, 6)));
    tl_backward(t, total(t, tl_mul(t, rows, v)), .retain = true);
    tl_backward(t, total(t, tl_tanh(t, tl_matmul(t, v, tl_reshape(t, rows, TL_DIMS(1, 6, 1))))));
    tl_tape_reset(t);
}

static void stopped_between_micro_batches(void **unused)
{
    char hex[2][65], path[1024];
    temp_dir dir;
    (void)unused;
    fill();
    assert_true(temp_dir_make(&dir));
    temp_dir_file(path, &dir, "step");
    for (int stop = 0; stop < 2; stop++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.1);
        two_backwards(t, m, 0);
        if (stop) {
            assert_int_equal(tl_checkpoint_save_tape(t, o, path, NULL, 0), TL_OK);
            tl_grad_clear(t);
            tl_free(o, t, m);
            t = tl_tape_new(m = tl_model_new(.seed = 1));
            o = tl_sgd_new(m, .lr = 0.1);
            normal(t, m, TL_DIMS(1, 6));
            assert_int_equal(tl_checkpoint_load_tape(t, o, path, NULL, NULL, 0), TL_OK);
        }
        for (int at = 1; at < 3; at++)
            two_backwards(t, m, at);
        assert_int_equal(tl_step(o, t), TL_OK);
        tl_model_sha256(m, hex[stop]);
        tl_free(o, t, m);
    }
    temp_dir_remove(&dir);
    assert_string_equal(hex[0], hex[1]);
}

/* Samples of four steps and of one, padded to the longest of all or of their micro-batch. */
typedef tl_tensor by_length(tl_tape *t, tl_model *m, tl_tensor x, tl_tensor there);

/* Of one step nothing is broadcast, and the gradient of that is not summed. */
static tl_tensor penalty(tl_tape *t, tl_model *m, tl_tensor x, tl_tensor there)
{
    tl_tensor none = tl_scalar(t, TL_F32, 0), g;
    tl_tensor h = tl_where(t, there, tl_linear(t, m, "l", x, 6, .no_bias = true), none);
    tl_tensor y = tl_tanh(t, tl_mul(t, h, tl_sum(t, h, TL_DIMS(1), true)));
    tl_tensor loss = total(t, tl_where(t, there, y, none));
    tl_gradients(t, loss, &h, 1, TL_NONE, &g);
    return tl_add(t, loss, total(t, tl_square(t, tl_where(t, there, g, none))));
}

/* A learned number for each distance, made once and cut to the steps there are. */
static tl_tensor biased_attention(tl_tape *t, tl_model *m, tl_tensor x, tl_tensor there)
{
    static const int64_t distance[4][4] = {{3, 2, 1, 0}, {4, 3, 2, 1}, {5, 4, 3, 2}, {6, 5, 4, 3}};
    const tl_shape s = tl_shape_of(t, x);
    tl_tensor w = tl_param(t, m, "by distance", TL_F32, TL_DIMS(7), .kind = TL_INIT_NORMAL,
                           .scale = 1);
    tl_tensor b = tl_embedding(t, tl_reshape(t, w, TL_DIMS(7, 1)),
                               tl_constant(t, distance, TL_I64, TL_DIMS(4, 4)));
    b = tl_slice(t, tl_slice(t, tl_reshape(t, b, TL_DIMS(4, 4)), 0, 0, s.dim[1], 1), 1, 0, s.dim[1],
                 1);
    tl_tensor q = tl_reshape(t, x, TL_DIMS(s.dim[0], 1, s.dim[1], 6));
    tl_tensor mask = tl_reshape(t, there, TL_DIMS(s.dim[0], 1, 1, s.dim[1]));
    tl_tensor y = tl_reshape(t, tl_attention(t, q, q, q, .mask = mask, .bias = b), s);
    return total(t, tl_where(t, there, tl_sin(t, y), tl_scalar(t, TL_F32, 0)));
}

static void micro_batches_as_long_as_their_longest(void **unused)
{
    static by_length *const f[] = {penalty, biased_attention};
    static const bool is[2][4] = {{true, true, true, true}, {true, false, false, false}};
    char hex[2][65];
    (void)unused;
    fill();
    for (size_t k = 0; k < sizeof f / sizeof *f; k++) {
        for (int cut = 0; cut < 2; cut++) {
            tl_model *m = tl_model_new(.seed = 1);
            tl_tape *t = tl_tape_new(m);
            tl_opt *o = tl_sgd_new(m, .lr = 0.1);
            tl_mode_push(t, TL_STRICT);
            for (int i = 0; i < 4; i++, tl_tape_reset(t)) {
                const int steps = cut && i % 2 ? 1 : 4;
                tl_tensor x = tl_data(t, data[i], TL_F32, TL_DIMS(1, steps, 6));
                tl_tensor there = tl_data(t, is[i % 2], TL_BOOL, TL_DIMS(1, steps, 1));
                tl_backward(t, f[k](t, m, x, there));
            }
            if (tl_step(o, t) != TL_OK)
                fail_msg("program %zu, cut %d: %s", k, cut, tl_error(t));
            tl_model_sha256(m, hex[cut]);
            tl_free(o, t, m);
        }
        assert_string_equal(hex[0], hex[1]);
    }
}

/* What a weight is seen through is part of its use: micro-batches that see it whole and those that
 * see a slice of it finish their sums apart. */
static void a_weight_is_seen_alike_in_all_micro_batches(void **unused)
{
    char hex[2][65];
    (void)unused;
    fill();
    for (int way = 0; way < 4; way++) { /* cut or not; sliced always, or only if need be */
        const bool cut = way & 1, always = !(way & 2);
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.1);
        tl_mode_push(t, TL_STRICT);
        for (int i = 0; i < 4; i++, tl_tape_reset(t)) {
            const int steps = i % 2 ? 3 : 4, room = cut ? steps : 4;
            tl_tensor x = tl_data(t, data[i], TL_F32, TL_DIMS(1, 4, 6)),
                      w = normal(t, m, TL_DIMS(4, 6));
            x = tl_slice(t, x, 1, 0, room, 1);
            if (always || room < 4)
                w = tl_slice(t, w, 0, 0, room, 1);
            tl_tensor y = tl_tanh(t, tl_matmul(t, x, tl_transpose(t, w, 0, 1)));
            y = tl_slice(t, tl_slice(t, y, 1, 0, steps, 1), 2, 0, steps, 1);
            tl_backward(t, total(t, y));
        }
        tl_step(o, t);
        if (cut && !always)
            expect_failure_both(t, TL_EUSAGE, "TL_STRICT: call 1", "sees a parameter otherwise");
        else
            tl_model_sha256(m, hex[way != 0]);
        tl_free(o, t, m);
        if (way == 1 || way == 2)
            assert_string_equal(hex[0], hex[1]);
    }
}

static void drops(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const bool *ahead = ctx; /* the lengths are, of the channels */
    tl_tensor x = tl_dropout(t, in[0], 0.5, .stream = "drops", .sample = in[1]),
              w = normal(t, tl_tape_model(t), TL_DIMS(3));
    (void)n, (void)n_out;
    out[0] = total(t, tl_tanh(t, tl_mul(t, x, *ahead ? w : tl_reshape(t, w, TL_DIMS(3, 1)))));
    tl_backward(t, out[0]);
}

/* An element's number among the draws of its sample counts along all inner dims, of which the first
 * alone may differ from one micro-batch to the next. */
static void draws_count_along_the_dims_of_a_sample(void **unused)
{
    (void)unused;
    fill();
    for (int way = 0; way < 8; way++) { /* lengths alike; behind the samples; compiled */
        const bool alike = way & 1, compiled = way & 4;
        bool ahead = way & 2;
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.1);
        tl_compiled *c = tl_compile(t, drops, 1, &ahead);
        tl_mode_push(t, TL_STRICT);
        for (int i = 0; i < 2; i++, tl_tape_reset(t)) {
            const int64_t length = i && !alike ? 2 : 4, number = 2 * i;
            tl_tensor in[2] = {tl_data(t, data[i], TL_F32,
                                       ahead ? TL_DIMS(2, length, 3) : TL_DIMS(2, 3, length)),
                               tl_scalar(t, TL_I64, (double)number)},
                      y;
            if (compiled)
                tl_run(c, in, 2, &y);
            else
                drops(t, in, 2, &y, 1, &ahead);
        }
        tl_step(o, t);
        if (!alike && !ahead)
            expect_failure_both(t, TL_EUSAGE, "TL_STRICT: call 1 draws random numbers (",
                                compiled ? "in a graph" : "dropout (tests/test_split_pro");
        else
            expect_no_error(t);
        tl_free(c, o, t, m);
    }
}

/* Inner sizes that differ and by which no element that both have is drawn by another number. */
static void sizes_that_number_draws_alike_are_allowed(void **unused)
{
    static const int64_t sizes[][2][3] = {{{2, 1, 4}, {2, 1, 2}},
                                          {{2, 4, 3}, {2, 1, 3}},
                                          {{2, 4, 3}, {2, 2, 3}},
                                          {{2, 1, 1}, {2, 3, 2}},
                                          {{2, 4, 3}, {0, 4, 2}}};
    (void)unused;
    fill();
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_mode_push(t, TL_STRICT);
        for (int i = 0; i < 2; i++, tl_tape_reset(t)) {
            const int64_t *d = sizes[k][i];
            tl_tensor x = tl_data(t, data[i], TL_F32, TL_DIMS(d[0], d[1], d[2])),
                      w = normal(t, m, TL_DIMS(1));
            x = tl_dropout(t, x, 0.5, .stream = "drops", .sample = tl_scalar(t, TL_I64, 2 * i));
            tl_backward(t, total(t, tl_tanh(t, tl_mul(t, x, w))));
        }
        expect_no_error(t);
        tl_free(t, m);
    }
}

/* NUMERICS 12.7: a padded inner dim shows in a row of several dims, and not in one sum after the
 * other. */
static void padding_lies_at_the_ends_of_rows(void **unused)
{
    enum { SAMPLES = 16, CHANNELS = 3, SHORT = 37, LONG = 50 };
    static float x[SAMPLES][CHANNELS][LONG];
    int differ = 0;
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    for (int s = 0; s < SAMPLES; s++)
        for (int c = 0; c < CHANNELS; c++)
            for (int i = 0; i < SHORT; i++)
                x[s][c][i] = (float)((i * 7919 + c * 353 + s * 131) % 1009 - 400) /
                             (float)(3 + i % 7);
    tl_tensor padded = tl_data(t, x, TL_F32, TL_DIMS(SAMPLES, CHANNELS, LONG)),
              bare = tl_contiguous(t, tl_slice(t, padded, 2, 0, SHORT, 1)), apart[2], row[2];
    for (int k = 0; k < 2; k++) {
        const tl_tensor z = k ? padded : bare;
        apart[k] = tl_sum(t, tl_sum(t, z, TL_DIMS(2), false), TL_DIMS(1), false);
        row[k] = tl_sum(t, z, TL_DIMS(1, 2), false);
    }
    expect_same(t, apart[0], apart[1], "one dim after the other");
    for (int s = 0; s < SAMPLES; s++)
        differ += element_of(t, row[0], s) != element_of(t, row[1], s);
    assert_true(differ > 0);
    tl_free(t);
}

/* A table that is as long as a micro-batch is another value in each. */
static void a_table_of_other_lengths_is_told_its_mend(void **unused)
{
    (void)unused;
    fill();
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int64_t length = 4; length > 2; length--, tl_tape_reset(t)) {
        tl_tensor w = normal(t, m, TL_DIMS(6)),
                  at = tl_reshape(t, tl_arange(t, TL_F32, 0, (double)length, 1),
                                  TL_DIMS(length, 1));
        tl_tensor x = tl_data(t, data[0], TL_F32, TL_DIMS(1, length, 6));
        tl_backward(t, total(t, tl_mul(t, x, tl_sin(t, tl_mul(t, at, w)))));
    }
    expect_failure_both(t, TL_EUSAGE, "run different programs: node 0 of",
                        "make one as large as any needs");
    tl_free(t, m);
}

/* What depends on no sample counts once a step, after the samples of all micro-batches. */
static void a_penalty_counts_once(void **unused)
{
    char first[65], hex[65];
    (void)unused;
    fill();
    for (int way = 0; way < 4; way++) {
        const int rows = way & 1 ? 2 : N;
        const bool each = way & 2;
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.1);
        tl_mode_push(t, TL_STRICT);
        for (int at = 0; at < N; at += rows, tl_tape_reset(t)) {
            tl_tensor x = tl_data(t, data[at], TL_F32, TL_DIMS(rows, 4, 6)),
                      w = normal(t, m, TL_DIMS(6, 2)),
                      loss = total(t, tl_tanh(t, tl_matmul(t, x, w)));
            tl_backward(t, loss);
            if (each || at + rows == N)
                tl_backward(t, tl_scale(t, total(t, tl_square(t, w)), 0.1), .partial = !each,
                            .ragged = !each);
        }
        tl_step(o, t);
        if (way == 3)
            expect_failure_both(t, TL_EUSAGE, "TL_STRICT: call 2", "counts once for each");
        else
            tl_model_sha256(m, way == 0 ? first : hex);
        if (way == 1)
            assert_string_equal(first, hex);
        tl_free(o, t, m);
    }
}

const struct CMUnitTest tl_tests_split_programs[] = {
    cmocka_unit_test(any_split_gives_one_hash),
    cmocka_unit_test(a_weight_is_seen_alike_in_all_micro_batches),
    cmocka_unit_test(draws_count_along_the_dims_of_a_sample),
    cmocka_unit_test(padding_lies_at_the_ends_of_rows),
    cmocka_unit_test(sizes_that_number_draws_alike_are_allowed),
    cmocka_unit_test(a_table_of_other_lengths_is_told_its_mend),
    cmocka_unit_test(a_penalty_counts_once),
    cmocka_unit_test(their_gradients_are_right),
    cmocka_unit_test(stopped_between_micro_batches),
    cmocka_unit_test(micro_batches_as_long_as_their_longest),
};
const size_t tl_tests_split_programs_count = sizeof tl_tests_split_programs /
                                             sizeof *tl_tests_split_programs;
