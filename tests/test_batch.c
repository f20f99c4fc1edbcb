/* How values depend on the batch: what leaves are told, and every op's rule against its numerics.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <tally_data.h>
#include <tally_extend.h>

#include "ops/build.h"
#include "tests/support/fresh.h"

extern const struct CMUnitTest tl_tests_batch[];
extern const size_t tl_tests_batch_count;

static tl_tensor zeros(tl_shape s) { return tl_zeros(t, TL_F32, s); }
#define IS(x, want) assert_int_equal(tl_batch_of(t, x), want)

static void leaves_are_told(void **unused)
{
    float x[6] = {0};
    (void)unused;
    IS(tl_data(t, x, TL_F32, TL_DIMS(6)), 0);
    IS(tl_bound(t, x, TL_F32, TL_DIMS(3, 2)), 0);
    IS(tl_data(m, x, TL_F32, TL_DIMS(6)), 0);
    IS(tl_zeros(m, TL_F32, TL_DIMS(6)), 0);
    IS(tl_data(t, x, TL_F32, TL_SCALAR), TL_FREE);
    IS(tl_data(m, x, TL_F32, TL_SCALAR), TL_FREE);
    IS(tl_constant(t, x, TL_F32, TL_DIMS(6)), TL_FREE);
    IS(tl_fill(t, TL_F32, TL_DIMS(6), 1), TL_FREE);
    IS(tl_param(t, m, "w", TL_F32, TL_DIMS(2), TL_INIT_ONES, 0), TL_FREE);
    IS(tl_buffer(t, m, "b", TL_F32, TL_DIMS(2)), TL_FREE);
    IS(tl_detach(t, zeros(TL_DIMS(3))), 0);
    assert_false(tl_failed(t));
}

static void the_user_says_otherwise(void **unused)
{
    tl_tensor x = zeros(TL_DIMS(3, 2)), of_model = tl_zeros(m, TL_F32, TL_DIMS(3, 2)),
              h = tl_fill(t, TL_F32, TL_DIMS(6, 4), 0), y = tl_select(t, of_model, 0, 1);
    (void)unused;
    assert_int_equal(tl_batch_axis(t, x, 1), TL_OK);
    assert_int_equal(tl_batch_axis(m, of_model, TL_FREE), TL_OK);
    assert_int_equal(tl_batch_axis(t, h, 0), TL_OK);
    assert_int_equal(tl_batch_axis(t, y, 0), TL_OK);
    IS(x, 1);
    IS(of_model, TL_FREE);
    IS(h, 0);
    IS(y, 0);
    assert_int_equal(tl_batch_axis(m, of_model, 2), TL_ESHAPE);
    assert_non_null(strstr(tl_error(m), "2 is neither TL_FREE nor an axis of [3, 2]"));
    assert_non_null(strstr(tl_error(m), "test_batch.c:"));
    tl_error_clear(m);
    assert_int_equal(tl_batch_axis(t, tl_tanh(t, x), 1), TL_OK); /* as it is */
    assert_int_equal(tl_batch_axis(t, tl_tanh(t, x), 0), TL_EUSAGE);
    tl_error_clear(t);
    /* What has used x has taken it as what it was. */
    assert_int_equal(tl_batch_axis(t, x, 1), TL_OK);
    assert_int_equal(tl_batch_axis(t, x, 0), TL_EUSAGE);
    assert_non_null(strstr(tl_error(t), "tl_batch_axis: tanh ("));
    assert_non_null(strstr(tl_error(t), ") has used x already"));
    tl_error_clear(t);
    IS(x, 1);
    assert_int_equal(tl_batch_axis(t, tl_param(t, m, "w", TL_F32, TL_DIMS(2), TL_INIT_ONES, 0), 0),
                     TL_EUSAGE);
    assert_non_null(strstr(tl_error(t), "'w' is a tensor of the model"));
    tl_error_clear(t);
    assert_int_equal(tl_batch_axis(m, tl_buffer(t, m, "held", TL_F32, TL_DIMS(2)), 0), TL_EUSAGE);
    assert_non_null(strstr(tl_error(m), "'held' is a tensor of the model"));
    tl_error_clear(m);
    assert_int_equal(tl_batch_axis(t, of_model, 0), TL_EUSAGE);
    assert_non_null(strstr(tl_error(t), "tl_batch_axis(m, x, axis)"));
}

static void ops_hand_it_on(void **unused)
{
    tl_tensor x = zeros(TL_DIMS(6, 4, 5)), p = tl_fill(t, TL_F32, TL_DIMS(5, 3), 1),
              axis1 = zeros(TL_DIMS(4, 6));
    (void)unused;
    tl_tensor y = tl_matmul(t, x, p), turned = tl_permute(t, y, TL_DIMS(1, 0, 2));
    IS(y, 0);
    IS(turned, 1);
    IS(tl_matmul(t, turned, tl_fill(t, TL_F32, TL_DIMS(3, 2), 1)), 1);
    IS(tl_add(t, x, tl_fill(t, TL_F32, TL_DIMS(4, 5), 1)), 0);
    IS(tl_add(t, x, tl_fill(t, TL_F32, TL_DIMS(6, 4, 5), 1)), TL_MIXED);
    IS(tl_add(t, x, tl_expand(t, tl_fill(t, TL_F32, TL_DIMS(4, 5), 1), TL_DIMS(6, 4, 5))), 0);
    IS(tl_add(t, p, p), TL_FREE);
    IS(tl_reshape(t, x, TL_DIMS(24, 5)), 0);
    IS(tl_reshape(t, x, TL_DIMS(6, 20)), 0);
    IS(tl_reshape(t, x, TL_DIMS(1, 6, 20)), 1);
    IS(tl_reshape(t, x, TL_DIMS(5, 24)), TL_MIXED);
    IS(tl_reshape(t, turned, TL_DIMS(4, 6, 3, 1)), 1);
    IS(tl_expand(t, zeros(TL_DIMS(1, 3)), TL_DIMS(4, 3)), TL_MIXED); /* one sample, repeated */
    tl_tensor one = zeros(TL_DIMS(1, 1, 6));
    tl_batch_axis(t, one, 1);
    IS(tl_reshape(t, one, TL_DIMS(1, 1, 2, 3)), 1); /* of two dims of 1 the place of the old */
    tl_tensor third = zeros(TL_DIMS(1, 1, 1, 6));
    tl_batch_axis(t, third, 2);
    IS(tl_reshape(t, zeros(TL_DIMS(1, 6)), TL_DIMS(1, 1, 6)), 0);
    IS(tl_permute(t, x, TL_DIMS(1, 2, -3)), 2);
    IS(tl_reshape(t, third, TL_DIMS(1, 1, 6)), 1); /* where a dim of 1 before it went */
    IS(tl_sum(t, x, TL_DIMS(1, 2), false), 0);
    IS(tl_sum(t, turned, TL_DIMS(0), false), 0);
    IS(tl_sum(t, turned, TL_DIMS(0), true), 1);
    tl_tensor total = tl_sum(t, x, TL_ALL, false);
    IS(total, TL_TOTAL);
    IS(tl_scale(t, total, 0.5), TL_TOTAL);
    IS(tl_add(t, total, total), TL_TOTAL);
    IS(tl_mul(t, total, total), TL_MIXED);
    IS(tl_div(t, total, tl_fill(t, TL_F32, TL_SCALAR, 3)), TL_TOTAL);
    IS(tl_div(t, tl_fill(t, TL_F32, TL_SCALAR, 3), total), TL_MIXED);
    IS(tl_exp(t, total), TL_MIXED);
    tl_tensor none = tl_fill(t, TL_F32, TL_SCALAR, 0), yes = tl_ge(t, none, none);
    IS(tl_where(t, yes, total, total), TL_TOTAL); /* whichever side it takes */
    IS(tl_where(t, tl_ge(t, total, none), total, total), TL_MIXED);
    IS(tl_mul(t, total, tl_param(t, m, "s", TL_F32, TL_SCALAR, TL_INIT_ONES, 0)), TL_MIXED);
    IS(tl_mean(t, x, TL_ALL, false), TL_MIXED);
    IS(tl_mean(t, x, TL_DIMS(1), false), 0);
    IS(tl_select(t, x, 0, 1), TL_MIXED);
    IS(tl_select(t, turned, 0, 1), 0);
    IS(tl_slice(t, x, 0, 0, 6, 1), 0);
    IS(tl_slice(t, x, 0, 1, 6, 1), 0); /* a micro-batch of data ... */
    IS(tl_mul(t, tl_slice(t, x, 0, 1, 6, 1), tl_slice(t, x, 0, 0, 5, 1)), TL_MIXED);
    IS(tl_mul(t, tl_slice(t, x, 0, 1, 6, 1), tl_slice(t, x, 0, 1, 6, 1)), 0);
    IS(tl_slice(t, tl_exp(t, x), 0, 1, 6, 1), TL_MIXED); /* and nothing but data */
    IS(tl_rms_norm(t, x, TL_NONE, 1e-5), 0);
    IS(tl_rms_norm(t, tl_permute(t, x, TL_DIMS(1, 2, 0)), TL_NONE, 1e-5), TL_MIXED);
    IS(tl_matmul(t, tl_transpose(t, zeros(TL_DIMS(6, 3)), 0, 1), zeros(TL_DIMS(6, 2))), TL_TOTAL);
    IS(tl_matmul(t, axis1, zeros(TL_DIMS(6, 3))), TL_MIXED);
    IS(tl_pad(t, x, 1, 1, 2, 0), 0);
    IS(tl_pad(t, x, 0, 1, 0, 0), TL_MIXED);
    IS(tl_slice_grad(t, x, 6, 0, 0, 1), 0);
    IS(tl_slice_grad(t, x, 7, 0, 1, 1), TL_MIXED);
    IS(tl_slice_grad(t, x, 7, 1, 0, 2), 0);
    tl_tensor ids = tl_zeros(t, TL_I64, TL_DIMS(6, 2, 5)),
              table = tl_expand(t, tl_fill(t, TL_F32, TL_DIMS(4, 5), 1), TL_DIMS(6, 4, 5));
    IS(tl_gather(t, x, ids, 1), 0);
    IS(tl_gather(t, table, ids, 1), 0);
    IS(tl_gather(t, x, tl_fill(t, TL_I64, TL_DIMS(3, 2, 5), 0), 1), TL_MIXED); /* of half of them */
    IS(tl_gather(t, x, ids, 0), TL_MIXED);
    assert_false(tl_failed(t));
}

/* A loss is a total. With a count of the samples at hand it depends on how they are divided, and so
 * do its gradients, with that count or with a total as their cotangent. */
static void a_count_of_samples_mixes_them(void **unused)
{
    const tl_loss_attrs entropy = {.reduction = TL_MEAN},
                        nll = {.reduction = TL_MEAN, .classes = 4};
    (void)unused;
    tl_tensor z = zeros(TL_DIMS(6, 4)), ids = tl_zeros(t, TL_I64, TL_DIMS(6)),
              all = tl_fill(t, TL_F64, TL_SCALAR, 60),
              some = tl_sum(t, tl_zeros(t, TL_F64, TL_DIMS(6)), TL_ALL, false),
              dy = tl_fill(t, TL_F32, TL_SCALAR, 1), total = tl_sum(t, z, TL_ALL, false);
    IS(some, TL_TOTAL);
    for (int i = 0; i < 2; i++) {
        const tl_tensor count = i ? some : all;
        const int each = i ? TL_MIXED : 0;
        IS(tl_cross_entropy(t, z, ids, TL_MEAN, .count = count), i ? TL_MIXED : TL_TOTAL);
        IS(tl_nll(t, z, ids, TL_MEAN, .count = count), i ? TL_MIXED : TL_TOTAL);
        IS(tl_apply1(TL_AT(t), &tl_op_cross_entropy_grad, &entropy,
                     (tl_tensor[]){dy, z, ids, count}, 4),
           each);
        IS(tl_apply1(TL_AT(t), &tl_op_nll_grad, &nll, (tl_tensor[]){dy, ids, count}, 3), each);
    }
    IS(tl_apply1(TL_AT(t), &tl_op_cross_entropy_grad, &entropy, (tl_tensor[]){total, z, ids, all},
                 4),
       TL_MIXED);
    IS(tl_apply1(TL_AT(t), &tl_op_nll_grad, &nll, (tl_tensor[]){total, ids, all}, 3), TL_MIXED);
    assert_false(tl_failed(t));
}

/* Samples are merged with what follows, but not with each other; and counted. */
static void samples_stay_whole(void **unused)
{
    tl_tensor x = zeros(TL_DIMS(6, 4, 5)), rows = tl_reshape(t, x, TL_DIMS(24, 5)),
              pairs = tl_reshape(t, x, TL_DIMS(3, 2, 20)), total = tl_sum(t, x, TL_ALL, false),
              one = tl_reshape(t, zeros(TL_DIMS(1, 4, 5)), TL_DIMS(4, 5));
    (void)unused;
    IS(rows, 0);
    IS(tl_reshape(t, rows, TL_DIMS(6, 20)), 0);
    IS(tl_reshape(t, rows, TL_DIMS(12, 10)), 0);
    IS(tl_reshape(t, tl_exp(t, rows), TL_DIMS(8, 15)), TL_MIXED);
    IS(tl_reshape(t, one, TL_DIMS(1, 4, 5)), 0);
    IS(tl_reshape(t, x, TL_DIMS(2, -1)), TL_MIXED); /* whatever the batch, two rows */
    IS(pairs, TL_MIXED);
    assert_int_equal(tl_batch_axis(t, pairs, 0), TL_OK);
    IS(tl_exp(t, pairs), 0);
    IS(tl_mul(t, tl_reshape(t, pairs, TL_DIMS(6, 20)), tl_reshape(t, x, TL_DIMS(6, 20))), TL_MIXED);
    IS(tl_add(t, total, tl_sum(t, zeros(TL_DIMS(6)), TL_ALL, false)), TL_TOTAL);
    IS(tl_add(t, total, tl_sum(t, zeros(TL_DIMS(5)), TL_ALL, false)), TL_MIXED);
    tl_tensor some = tl_slice(t, x, 0, 1, 6, 1), others = tl_slice(t, x, 0, 0, 5, 1);
    IS(tl_mul(t, tl_detach(t, some), some), 0);
    IS(tl_mul(t, tl_detach(t, some), others), TL_MIXED);
    assert_false(tl_failed(t));
    tl_mode_push(t, TL_STRICT);
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(5), TL_INIT_ONES, 0);
    tl_reshape(t, tl_mul(t, rows, w), TL_DIMS(8, 15));
    assert_non_null(strstr(tl_error(t), "input 0 [24, 5] per sample along axis 0 (6)"));
}

/* A parameter repeated is the samples' where the user says so; draws are of samples whose numbers
 * follow from a first one. */
static void what_is_repeated_or_drawn_is_told(void **unused)
{
    tl_tensor h = tl_param(t, m, "h", TL_F32, TL_DIMS(4), TL_INIT_ONES, 0),
              u = tl_param(t, m, "u", TL_F32, TL_DIMS(4, 4), TL_INIT_ONES, 0),
              all = tl_expand(t, h, TL_DIMS(6, 4)), told = tl_expand(t, h, TL_DIMS(6, 4)),
              x = zeros(TL_DIMS(6, 4)), first = tl_scalar(t, TL_I64, 3);
    (void)unused;
    IS(all, TL_FREE);
    IS(tl_add(t, x, tl_matmul(t, all, u)), TL_MIXED);
    assert_int_equal(tl_batch_axis(t, all, 1), TL_EUSAGE);
    tl_error_clear(t);
    assert_int_equal(tl_batch_axis(t, told, 1), TL_EUSAGE); /* which shows each of h's once */
    assert_non_null(strstr(tl_error(t), "along what expand repeats"));
    tl_error_clear(t);
    assert_int_equal(tl_batch_axis(t, told, 0), TL_OK);
    IS(tl_add(t, x, tl_matmul(t, told, u)), 0);
    IS(tl_uniform(t, TL_F32, TL_DIMS(6, 4), "s"), TL_FREE);
    IS(tl_add(t, x, tl_uniform(t, TL_F32, TL_DIMS(4), "s")), 0);
    IS(tl_add(t, x, tl_uniform(t, TL_F32, TL_DIMS(6, 4), "s")), TL_MIXED);
    tl_tensor drawn = tl_normal(t, TL_F32, TL_DIMS(6, 4), "s", .sample = first);
    IS(drawn, 0);
    IS(tl_add(t, x, drawn), 0);
    IS(tl_add(t, x, tl_bernoulli(t, tl_sigmoid(t, x), "s", .sample = first)), 0);
    IS(tl_permutation(t, 5, "s", .sample = first), TL_FREE);
    drawn = tl_normal(t, TL_F32, TL_DIMS(6, 4), "s", .sample = first);
    assert_int_equal(tl_batch_axis(t, drawn, TL_FREE), TL_OK);
    IS(tl_exp(t, drawn), TL_FREE);
    assert_false(tl_failed(t));
}

/* Rows 0, 1, ... again in each micro-batch: named, before a gradient is needed, too. */
static void draws_without_samples_are_named(void **unused)
{
    char text[1024];
    (void)unused;
    for (int numbered = 0; numbered < 2; numbered++)
        for (int weighted = 0; weighted < 2; weighted++) {
            tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(4), TL_INIT_ONES, 0),
                      x = zeros(TL_DIMS(6, 4)),
                      first = numbered ? tl_scalar(t, TL_I64, 3) : TL_NONE;
            x = weighted ? tl_mul(t, x, w) : x;
            tl_tensor y = tl_dropout(t, x, 0.5, .stream = "s", .sample = first);
            IS(y, 0);
            y = tl_sum(t, weighted ? y : tl_mul(t, y, w), TL_ALL, false);
            const int lines = tl_explain_invariance(t, y, text, sizeof text);
            if (lines != !numbered || (lines > 0 && strstr(text, "dropout (tests/") == NULL))
                fail_msg("%d: %s", lines, text);
            const int mode = tl_mode_push(t, TL_STRICT);
            assert_int_equal(tl_is_none(tl_dropout(t, x, 0.5, .stream = "s", .sample = first)),
                             !numbered);
            tl_mode_pop(t, mode);
            assert_int_equal(strstr(tl_error(t), "the same draws again in each") != NULL,
                             !numbered);
            tl_error_clear(t);
        }
}

/* Nor does telling their axis make them other draws in each micro-batch. */
static void draws_that_are_told_an_axis_are_named(void **unused)
{
    char text[1024];
    (void)unused;
    for (int numbered = 0; numbered < 2; numbered++)
        for (int strict = 0; strict < 2; strict++) {
            tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(4), TL_INIT_ONES, 0),
                      first = numbered ? tl_scalar(t, TL_I64, 3) : TL_NONE,
                      y = tl_normal(t, TL_F32, TL_DIMS(6, 4), "s", .sample = first),
                      shown = strict ? tl_reshape(t, y, TL_DIMS(6, 2, 2)) : y;
            const int mode = tl_mode_push(t, strict ? TL_STRICT : 0);
            assert_int_equal(tl_batch_axis(t, shown, 0), numbered || !strict ? TL_OK : TL_EUSAGE);
            tl_mode_pop(t, mode);
            assert_int_equal(strstr(tl_error(t), "give it their numbers (.sample)") != NULL,
                             !numbered && strict);
            tl_error_clear(t);
            y = tl_sum(t, tl_mul(t, tl_add(t, y, zeros(TL_DIMS(6, 4))), w), TL_ALL, false);
            const int lines = strict ? 0 : tl_explain_invariance(t, y, text, sizeof text);
            if (lines != (!numbered && !strict) || (lines > 0 && strstr(text, "draw (") == NULL))
                fail_msg("%d: %s", lines, text);
        }
}

/* The number of a micro-batch's first sample is one, wherever it comes from. */
static void draws_by_the_first_number(void **unused)
{
    (void)unused;
    const int64_t numbers[6] = {3, 4, 5, 6, 7, 8};
    const int mode = tl_mode_push(t, TL_STRICT);
    tl_tensor ids = tl_data(t, numbers, TL_I64, TL_DIMS(6)),
              first = tl_reshape(t, tl_slice(t, ids, 0, 0, 1, 1), TL_SCALAR);
    IS(tl_normal(t, TL_F32, TL_DIMS(6, 4), "s", .sample = first), 0);
    IS(tl_uniform(t, TL_F32, TL_DIMS(6, 4), "s"), TL_FREE); /* the same for all */
    assert_int_not_equal(tl_permutation(t, 5, "s", .sample = first).owner, 0);
    assert_string_equal(tl_error(t), "");
    tl_mode_pop(t, mode);
}

/* A cotangent without a batch of its own, handed on by a vjp, is of the samples it goes to. */
static void gradients_by_a_given_cotangent(void **unused)
{
    (void)unused;
    tl_tensor b = tl_param(t, m, "b", TL_F32, TL_DIMS(4), TL_INIT_ONES, 0),
              x = tl_add(t, tl_mul(t, zeros(TL_DIMS(6, 4)), b), b),
              dy = tl_fill(t, TL_F32, TL_DIMS(6, 4), 1), by[2] = {x, b}, dx[2];
    assert_int_equal(tl_gradients(t, tl_add(t, x, b), by, 2, dy, dx), TL_OK);
    IS(dx[0], 0);
    IS(dx[1], TL_TOTAL);
}

/* ---- micro-batches that run different programs ---- */

static tl_tensor program(tl_tape *on, const tl_tensor *in, int steps, void (*more)(tl_tensor *))
{
    tl_tensor w = tl_param(on, m, "w", TL_F32, TL_DIMS(3, 3), TL_INIT_NORMAL, 1), h = in[0];
    for (int i = 0; i < steps; i++)
        h = tl_tanh(on, tl_matmul(on, h, w));
    if (more != NULL)
        more(&h);
    return tl_sum(on, h, TL_ALL, false);
}
static void rooted(tl_tensor *h) { *h = tl_square(t, *h); }
static tl_status one(int64_t n, int steps, void (*more)(tl_tensor *), tl_backward_options o)
{
    tl_tape_reset(t);
    tl_tensor x = zeros(TL_DIMS(n, 3));
    return tl_backward_at(TL_AT(t), program(t, &x, steps, more), o);
}

static void other_programs_are_noticed(void **unused)
{
    const tl_backward_options plain = {.retain = false}, ragged = {.ragged = true};
    (void)unused;
    assert_int_equal(one(3, 1, NULL, plain), TL_OK);
    assert_int_equal(one(1, 1, NULL, plain), TL_OK); /* other sizes are the same program */
    assert_int_equal(one(2, 1, rooted, plain), TL_EUSAGE);
    assert_non_null(strstr(tl_error(t), "run different programs: node 2 of 4, square ("));
    assert_non_null(strstr(tl_error(t), "test_batch.c:"));
    tl_error_clear(t); /* and the gradients */
    assert_int_equal(one(2, 1, rooted, plain), TL_OK);
    assert_int_equal(one(2, 1, NULL, ragged), TL_OK);
    tl_grad_clear(t);
    assert_int_equal(one(2, 1, NULL, plain), TL_OK);
    assert_int_equal(tl_backward(t, program(t, (tl_tensor[]){zeros(TL_DIMS(2, 3))}, 1, rooted)),
                     TL_OK); /* a second call is a program of its own ... */
    assert_int_equal(one(2, 1, NULL, plain), TL_OK);
    assert_int_equal(tl_backward(t, program(t, (tl_tensor[]){zeros(TL_DIMS(2, 3))}, 1, NULL)),
                     TL_EUSAGE); /* ... which the next micro-batch has as well */
    tl_error_clear(t);
    assert_int_equal(one(2, 1, NULL, plain), TL_OK);
    assert_int_equal(one(2, 1, NULL, (tl_backward_options){.partial = true}), TL_OK);
    assert_int_equal(one(2, 1, rooted, (tl_backward_options){.partial = true}), TL_EUSAGE);
    tl_error_clear(t);
    assert_int_equal(one(2, 1, NULL, plain), TL_OK);
    assert_int_equal(one(2, 1, NULL, plain), TL_OK);
    assert_int_equal(tl_backward(t, program(t, (tl_tensor[]){zeros(TL_DIMS(2, 3))}, 1, NULL)),
                     TL_EUSAGE);
    assert_non_null(strstr(tl_error(t), "call 2 of this micro-batch"));
}

/* Also where the walk ends at a leaf of the tape, behind those at parameters. */
static void other_programs_beside_a_leaf(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        tl_tape_reset(t);
        tl_tensor x = zeros(TL_DIMS(2, 3)), z = zeros(TL_DIMS(2, 3));
        tl_require_grad(t, z);
        tl_tensor y = tl_add(t, program(t, &x, 1, i == 0 ? NULL : rooted),
                             tl_sum(t, z, TL_ALL, false));
        assert_int_equal(tl_backward(t, y), i == 0 ? TL_OK : TL_EUSAGE);
    }
    assert_non_null(strstr(tl_error(t), "run different programs"));
    tl_error_clear(t);
}

/* Nor is a sum over steps, or one that a program asks for, there for a size's sake; a root that is
 * a parameter has a print. */
static void other_sums_are_noticed(void **unused)
{
    (void)unused;
    for (int how = 0; how < 2; how++) {
        for (int i = 0; i < 2; i++) {
            tl_tape_reset(t);
            const char *name = how == 1 && i == 1 ? "v" : "w";
            tl_tensor x = zeros(TL_DIMS(2, 3)), dy = tl_fill(t, TL_F32, TL_DIMS(3), 1),
                      w = tl_param(t, m, name, TL_F32, TL_DIMS(3), TL_INIT_NORMAL, 1),
                      y = tl_mul(t, x, w);
            if (how == 0 && i == 1)
                y = tl_sum_to(t, y, TL_DIMS(2, 1), TL_NONE);
            const tl_status s = how == 0 ? tl_backward(t, tl_sum(t, tl_tanh(t, y), TL_ALL, false),
                                                       .partial = true)
                                         : tl_backward(t, w, .cotangent = dy, .partial = true);
            assert_int_equal(s, i == 0 ? TL_OK : TL_EUSAGE);
        }
        assert_non_null(strstr(tl_error(t), "run different programs"));
        tl_error_clear(t);
        tl_tape_reset(t);
    }
}

static tl_status twice(tl_backward_options second)
{
    TL_TRY(one(3, 1, NULL, (tl_backward_options){.retain = false}));
    return tl_backward_at(TL_AT(t), program(t, (tl_tensor[]){zeros(TL_DIMS(3, 3))}, 1, rooted),
                          second);
}

static void stepping(tl_tape *on, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *o)
{
    (void)n, (void)n_out;
    out[0] = program(on, in, 1, NULL);
    tl_backward(on, out[0]);
    tl_step(o, on);
}

/* One backward where the micro-batches before had two: at the reset, and at the optimizer's step,
 * called or compiled. */
static void fewer_backwards_are_noticed(void **unused)
{
    const tl_backward_options plain = {.retain = false}, ragged = {.ragged = true};
    tl_tensor y, x;
    tl_opt *o = tl_sgd_new(m, .lr = 1);
    tl_compiled *c = tl_compile(t, stepping, 1, o);
    (void)unused;
    assert_int_equal(twice(plain), TL_OK);
    assert_int_equal(one(3, 1, NULL, plain), TL_OK);
    assert_false(tl_failed(t));
    tl_tape_reset(t);
    assert_int_equal(tl_error_status(t), TL_EUSAGE);
    assert_non_null(strstr(tl_error(t), "had 1 tl_backward, those before it in this step 2"));
    tl_error_clear(t);
    assert_int_equal(twice(plain), TL_OK);
    tl_tape_reset(t); /* recordings without any are none */
    zeros(TL_DIMS(2));
    assert_int_equal(one(3, 1, NULL, ragged), TL_OK);
    tl_tape_reset(t);
    assert_int_equal(twice(plain), TL_OK);
    assert_int_equal(one(3, 1, NULL, plain), TL_OK);
    assert_int_equal(tl_step(o, t), TL_EUSAGE);
    tl_error_clear(t);
    assert_int_equal(twice(plain), TL_OK);
    tl_tape_reset(t);
    x = zeros(TL_DIMS(3, 3));
    assert_int_equal(tl_run(c, &x, 1, &y), TL_EUSAGE);
    assert_non_null(strstr(tl_error(t), "had 1 tl_backward, those before it in this step 2"));
    tl_error_clear(t);
    x = zeros(TL_DIMS(3, 3));
    assert_int_equal(twice(plain), TL_OK);
    assert_int_equal(tl_step(o, t), TL_OK);
    assert_int_equal(one(3, 1, NULL, plain), TL_OK);
    tl_tape_reset(t);
    x = zeros(TL_DIMS(3, 3));
    assert_int_equal(tl_run(c, &x, 1, &y), TL_OK);
    tl_free(c, o);
}

/* A backward to leaves of the tape alone counts nowhere. */
static void calls_that_reach_no_parameter_do_not_count(void **unused)
{
    const tl_backward_options plain = {.retain = false};
    (void)unused;
    for (int i = 0; i < 3; i++) {
        tl_tape_reset(t);
        tl_tensor x = zeros(TL_DIMS(2, 3));
        if (i != 1) {
            tl_require_grad(t, x);
            assert_int_equal(tl_backward(t, tl_sum(t, tl_exp(t, x), TL_ALL, false),
                                         .partial = true),
                             TL_OK);
        }
        x = zeros(TL_DIMS(2, 3));
        assert_int_equal(tl_backward_at(TL_AT(t), program(t, &x, 1, NULL), plain), TL_OK);
    }
    assert_int_equal(tl_accumulating_count(t), 1);
    assert_int_equal(tl_accumulating_at(t, 0).call, 0);
}

static void traced(tl_tape *on, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *more)
{
    (void)n, (void)n_out;
    tl_tensor w = tl_param(on, m, "w", TL_F32, TL_DIMS(3, 3), TL_INIT_NORMAL, 1);
    tl_tensor h = tl_tanh(on, tl_matmul(on, in[0], w));
    out[0] = tl_sum(on, more != NULL ? tl_square(on, h) : h, TL_ALL, false);
    tl_backward(on, out[0]);
}

/* Called, compiled and in turn: the prints are the same. */
static void graphs_leave_the_prints_of_what_is_called(void **unused)
{
    int yes = 1;
    (void)unused;
    tl_compiled *same = tl_compile(t, traced, 1, NULL), *other = tl_compile(t, traced, 1, &yes);
    for (int i = 0; i < 4; i++) {
        tl_tape_reset(t);
        tl_tensor x = zeros(TL_DIMS(2, 3)), y;
        if (i % 2 == 0)
            assert_int_equal(tl_backward(t, program(t, &x, 1, NULL)), TL_OK);
        else
            assert_int_equal(tl_run(same, &x, 1, &y), TL_OK);
    }
    tl_tape_reset(t);
    tl_tensor x = zeros(TL_DIMS(2, 3)), y;
    assert_int_equal(tl_run(other, &x, 1, &y), TL_EUSAGE);
    assert_non_null(strstr(tl_error(t), "run different programs"));
    assert_non_null(strstr(tl_error(t), ", in a graph or at the end, where one before had "));
    tl_error_clear(t);
    tl_tape_reset(t);
    x = zeros(TL_DIMS(2, 3));
    assert_int_equal(tl_run(other, &x, 1, &y), TL_OK);
    assert_int_equal(one(2, 1, NULL, (tl_backward_options){.retain = false}), TL_EUSAGE);
    tl_free(same, other);
}

/* Gradients dropped before the first backward (more: 1), or between two. */
static void clearing(tl_tape *on, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *more)
{
    (void)n, (void)n_out;
    if (more == NULL)
        tl_backward(on, program(on, in, 2, NULL));
    tl_grad_clear(on);
    out[0] = program(on, in, 1, NULL);
    tl_backward(on, out[0]);
}

static void what_is_cleared_in_a_graph_leaves_no_print(void **unused)
{
    const tl_backward_options plain = {.retain = false};
    int yes = 1;
    (void)unused;
    for (int i = 0; i < 4; i++) {
        tl_tensor x, y;
        tl_compiled *c = tl_compile(t, clearing, 1, i % 2 ? &yes : NULL);
        tl_error_clear(t);
        tl_tape_reset(t);
        x = zeros(TL_DIMS(2, 3));
        if (i / 2 && i % 2) /* a call before, whose number is free again */
            assert_int_equal(tl_backward(t, program(t, &x, 1, rooted)), TL_OK);
        x = zeros(TL_DIMS(2, 3));
        assert_int_equal(tl_run(c, &x, 1, &y), TL_OK);
        assert_int_equal(tl_accumulating_at(t, 0).call, 0);
        assert_int_equal(one(2, 1, NULL, plain), TL_OK);
        assert_int_equal(one(2, 1, rooted, plain), TL_EUSAGE);
        tl_free(c);
    }
}

/* A penalty on weights counts once a step, by a backward of its own in the last micro-batch. Before
 * those that all micro-batches have it would take the number of one of them. */
static void weights_of_a_penalty(int rows, bool first, char hex[65])
{
    float x[8][3];
    tl_model *net = tl_model_new(.seed = 1);
    tl_tape *tape = tl_tape_new(net);
    tl_opt *opt = tl_sgd_new(net, .lr = 0.1);
    for (int i = 0; i < 24; i++)
        x[i / 3][i % 3] = 0.37f * (float)(i % 7) - 1.1f * (float)(i % 5);
    for (int step = 0; step < 3; step++)
        for (int row = 0; row < 8; row += rows) {
            tl_tensor in = tl_data(tape, x + row, TL_F32, TL_DIMS(rows, 3));
            tl_tensor y = tl_square(tape, tl_tanh(tape, tl_linear(tape, net, "a", in, 2)));
            tl_tensor w = tl_square(tape, tl_model_find(net, "a.weight"));
            tl_tensor loss[] = {tl_sum(tape, y, TL_ALL, false),
                                tl_scale(tape, tl_sum(tape, w, TL_ALL, false), 0.03)};
            const bool last = row + rows == 8, swap = first && last;
            for (int i = 0; i < 1 + last; i++)
                assert_int_equal(tl_backward(tape, loss[swap ? !i : i], .partial = i != swap,
                                             .ragged = swap || i > 0),
                                 TL_OK);
            if (last)
                assert_int_equal(tl_step(opt, tape), TL_OK);
            tl_tape_reset(tape);
        }
    assert_int_equal(tl_model_sha256(net, hex), TL_OK);
    tl_free(opt, tape, net);
}

static void a_penalty_comes_last(void **unused)
{
    char whole[65], split[65];
    (void)unused;
    weights_of_a_penalty(8, false, whole);
    for (int rows = 1; rows < 8; rows *= 2) {
        weights_of_a_penalty(rows, false, split);
        assert_string_equal(split, whole);
    }
    weights_of_a_penalty(8, true, whole);
    weights_of_a_penalty(2, true, split);
    assert_string_not_equal(split, whole);
}

const struct CMUnitTest tl_tests_batch[] = {
    TEST(a_penalty_comes_last),
    TEST(leaves_are_told),
    TEST(the_user_says_otherwise),
    TEST(ops_hand_it_on),
    TEST(a_count_of_samples_mixes_them),
    TEST(samples_stay_whole),
    TEST(what_is_repeated_or_drawn_is_told),
    TEST(draws_without_samples_are_named),
    TEST(draws_that_are_told_an_axis_are_named),
    TEST(draws_by_the_first_number),
    TEST(gradients_by_a_given_cotangent),
    TEST(other_programs_are_noticed),
    TEST(other_programs_beside_a_leaf),
    TEST(other_sums_are_noticed),
    TEST(fewer_backwards_are_noticed),
    TEST(calls_that_reach_no_parameter_do_not_count),
    TEST(graphs_leave_the_prints_of_what_is_called),
    TEST(what_is_cleared_in_a_graph_leaves_no_print),
};
const size_t tl_tests_batch_count = sizeof tl_tests_batch / sizeof tl_tests_batch[0];
