/* Out of memory at every single allocation of forward, backward and step: a message each time, no
 * crash, nothing leaked, and the weights as they were, bit for bit, unless the step succeeded. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include <tally.h>
#include <tally_extend.h>

#include "tensor/memory.h"

extern const struct CMUnitTest tl_tests_out_of_memory[];
extern const size_t tl_tests_out_of_memory_count;

static const int64_t ids[12] = {0, 3, 1, 4, 2, 0, 1, 1, 3, 4, 0, 2};

/* A Llama with one block and a linear layer, so that every kind of layer allocates. */
static tl_tensor program(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    tl_model *m = ctx;
    tl_llama_config c = {
        .vocab = 5, .width = 8, .layers = 1, .heads = 2, .kv_heads = 1, .hidden = 8, .tied = true};
    (void)n;
    tl_tensor z = tl_linear(t, m, "head", tl_llama(t, m, &c, in[0]), 5);
    return tl_cross_entropy(t, z, in[1], TL_MEAN,
                            .total = tl_data(t, (double[]){0}, TL_F64, TL_SCALAR));
}

/* in_parts: gradients wait, and are added some elements at a time. */
static tl_status step(tl_model *m, tl_tape *t, tl_opt *o, bool in_parts)
{
    tl_tensor in[2] = {tl_data(t, ids, TL_I64, TL_DIMS(2, 5)),
                       tl_data(t, ids + 1, TL_I64, TL_DIMS(2, 5))};
    tl_tensor loss = program(t, in, 2, m);
    tl_backward(t, loss, .put_off = in_parts);
    for (const char *name; !tl_failed(t) && (name = tl_waiting_at(t, 0)) != NULL;)
        for (int i = 0, of = tl_accumulate_parts(t, name, 7); i < of && !tl_failed(t); i++)
            tl_accumulate_part(t, name, i, of);
    return tl_step(o, t);
}

/* All named tensors of the model, buffers too unless they are zero: state made by a step that then
 * failed. */
static void fingerprint(tl_model *m, char hex[65])
{
    tl_tape *t = tl_tape_new(m);
    tl_tensor all[128];
    int n = 0;
    for (int i = 0; i < tl_model_count(m); i++) {
        tl_named p = tl_model_at(m, i);
        bool zero = true;
        for (int64_t k = 0; k < tl_array_count(&p.array); k++)
            zero &= ((const float *)p.array.data)[k] == 0;
        if (p.param || !zero)
            all[n++] = tl_reshape(t, tl_detach(t, p.tensor), TL_DIMS(-1));
    }
    assert_int_equal(tl_sha256(t, tl_concat(t, all, n, 0), hex), TL_OK);
    tl_free(t);
}

static tl_opt *optimizer(tl_model *m, int kind)
{
    return kind != 1 ? tl_adamw_new(m, .lr = 0.01, .clip = 0.1, .weight_decay = 0.1)
                     : tl_sgd_new(m, .lr = 0.1, .momentum = 0.9);
}

/* Fails the n-th allocation of a step on a new tape; true when the step got through. */
static bool fail_step(tl_model *m, int64_t n, int kind, const char *before, const char *after)
{
    char hex[65];
    tl_opt *o = optimizer(m, kind);
    tl_tape *t = tl_tape_new(m);
    assert_non_null(o);
    assert_non_null(t);
    tl_alloc_fail_after(n);
    tl_status s = step(m, t, o, kind == 2);
    tl_alloc_fail_after(0);
    if ((s == TL_OK) == tl_failed(t))
        fail_msg("allocation %d: status %s, but the tape says '%s'", (int)n, tl_status_name(s),
                 tl_error(t));
    fingerprint(m, hex);
    if (s != TL_OK) {
        if (tl_error_status(t) != TL_ENOMEM || tl_error(t)[0] == '\0' || s != TL_ENOMEM)
            fail_msg("allocation %d: %s: %s", (int)n, tl_status_name(tl_error_status(t)),
                     tl_error(t));
        if (strcmp(hex, before) != 0)
            fail_msg("allocation %d: the weights changed, although: %s", (int)n, tl_error(t));
        if (tl_opt_steps(o) != 0)
            fail_msg("allocation %d: the failed step was counted", (int)n);
        tl_error_clear(t); /* and the tape can go on as if nothing had been */
        tl_tape_reset(t);
        if (tl_memory_stats(t).tape.used != 0 || tl_memory_stats(t).tape.blocks != 0)
            fail_msg("allocation %d: %zu bytes in %zu blocks stay on the tape", (int)n,
                     tl_memory_stats(t).tape.used, tl_memory_stats(t).tape.blocks);
    } else {
        assert_string_equal(hex, after);
    }
    tl_free(o, t);
    return s == TL_OK;
}

/* A model as it is before the step under test. */
static tl_model *fresh(void)
{
    tl_model *m = tl_model_new(.seed = 4);
    tl_tape *t = tl_tape_new(m);
    tl_tensor in[2] = {tl_data(t, ids, TL_I64, TL_DIMS(2, 5)),
                       tl_data(t, ids + 1, TL_I64, TL_DIMS(2, 5))};
    program(t, in, 2, m);
    assert_string_equal(tl_error(t), "");
    tl_free(t);
    return m;
}

static void a_step_survives(int kind)
{
    char before[65], after[65];
    tl_model *m = fresh();
    fingerprint(m, before);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = optimizer(m, kind);
    assert_int_equal(step(m, t, o, false), TL_OK);
    fingerprint(m, after);
    assert_string_not_equal(before, after);
    tl_free(o, t, m);
    m = fresh();
    int64_t n = 1;
    while (!fail_step(m, n, kind, before, after) && n < 20000)
        n++;
    assert_in_range(n, 50, 19999);
    print_message("%d allocations failed in turn\n", (int)n - 1);
    tl_free(m);
}

static void a_step_of_adamw(void **unused)
{
    (void)unused;
    a_step_survives(0);
}
static void a_step_of_sgd(void **unused)
{
    (void)unused;
    a_step_survives(1);
}

static void a_step_in_parts(void **unused)
{
    (void)unused;
    a_step_survives(2);
}

/* Micro-batches: what a failed second one leaves behind never gets into the weights. */
static void the_second_micro_batch(void **unused)
{
    char before[65], hex[65];
    tl_model *m = fresh();
    bool through = false;
    (void)unused;
    fingerprint(m, before);
    for (int64_t n = 1; !through; n += 5) {
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = optimizer(m, 0);
        tl_tensor in[2] = {tl_data(t, ids, TL_I64, TL_DIMS(2, 5)),
                           tl_data(t, ids + 1, TL_I64, TL_DIMS(2, 5))};
        assert_int_equal(tl_backward(t, program(t, in, 2, m)), TL_OK);
        tl_alloc_fail_after(n);
        through = tl_backward(t, program(t, in, 2, m)) == TL_OK;
        tl_alloc_fail_after(0);
        if (!through) {
            assert_int_equal(tl_step(o, t), TL_ENOMEM);
            tl_error_clear(t); /* the half gradient goes with the error */
            assert_int_equal(tl_step(o, t), TL_EUSAGE);
            fingerprint(m, hex);
            assert_string_equal(hex, before);
        }
        tl_free(o, t);
    }
    tl_free(m);
}

/* The whole program, objects included. */
static bool whole(int64_t n)
{
    tl_alloc_fail_after(n);
    tl_model *m = tl_model_new(.seed = 4);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_adamw_new(m, .lr = 0.01);
    tl_opt_group(o, "*norm*", 1, 0);
    tl_status s = step(m, t, o, false);
    bool ok = s == TL_OK;
    tl_alloc_fail_after(0);
    if (s != TL_OK && (!tl_failed(t) || tl_error(t)[0] == '\0') && o != NULL)
        fail_msg("allocation %d: %s, but no message", (int)n, tl_status_name(s));
    if (m != NULL && t != NULL && o != NULL &&
        tl_failed(t)) { /* once there is memory again it works, to the same weights */
        tl_error_clear(t);
        tl_tape_reset(t);
        if (tl_failed(o)) { /* a group that was lost stops the step: it is added again */
            tl_error_clear(o);
            assert_int_equal(tl_opt_group(o, "*norm*", 1, 0), TL_OK);
        }
        assert_int_equal(step(m, t, o, false), TL_OK);
    }
    static char want[65];
    char hex[65];
    if (m != NULL && t != NULL && o != NULL && tl_model_sha256(m, hex) == TL_OK) {
        if (want[0] == '\0')
            strcpy(want, hex);
        assert_string_equal(hex, want);
    }
    tl_free(o, t, m);
    return ok;
}

static void a_whole_program(void **unused)
{
    int64_t n = 1;
    (void)unused;
    while (!whole(n) && n < 20000)
        n++;
    assert_in_range(n, 100, 19999);
}

static void a_gradient_check(void **unused)
{
    (void)unused;
    tl_model *m = fresh();
    tl_verdict v = TL_WRONG;
    for (int64_t n = 1; v != TL_RIGHT && n < 100000;
         n += n < 600 ? 7 : n) { /* every allocation would take minutes */
        tl_tape *t = tl_tape_new(m);
        tl_tensor in[2] = {tl_data(t, ids, TL_I64, TL_DIMS(2, 5)),
                           tl_data(t, ids + 1, TL_I64, TL_DIMS(2, 5))};
        tl_alloc_fail_after(n);
        v = tl_gradcheck_with(t, program, in, 2, m, NULL, .elements = 1, .directions = 1);
        tl_alloc_fail_after(0);
        if (v != TL_RIGHT && (tl_error_status(t) != TL_ENOMEM))
            fail_msg("allocation %d: %s: %s", (int)n, tl_verdict_name(v), tl_error(t));
        tl_free(t);
    }
    tl_free(m);
}

/* Second derivatives and curves say what is missing, too: memory, and not a gradient. */
static tl_tensor product(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    return tl_mul(t, in[0], tl_tanh(t, in[1]));
}

static tl_status check_once(int64_t n, int what, FILE *file, char text[TL_MESSAGE_MAX])
{
    tl_gradcheck_report r = {.verdict = TL_RIGHT};
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor in[2] = {tl_data(t, ((double[]){1, -2}), TL_F64, TL_DIMS(2)),
                       tl_data(t, ((double[]){0.5, 3}), TL_F64, TL_DIMS(2))};
    tl_alloc_fail_after(n);
    if (what == 0)
        tl_gradcheck_with(t, product, in, 2, NULL, &r, .elements = 1, .directions = 1);
    else if (what == 1)
        tl_gradgradcheck_with(t, product, in, 2, NULL, &r, .elements = 1, .directions = 1);
    else
        tl_gradcheck_curve(t, product, in, 2, NULL, 1, 0, file, TL_CURVE_CSV);
    tl_alloc_fail_after(0);
    tl_status s = tl_error_status(t);
    snprintf(text, TL_MESSAGE_MAX, "%s", tl_error(t));
    if (s != TL_OK && what < 2 && r.verdict != TL_NO_SIGNAL)
        fail_msg("allocation %d: '%s' is a verdict on what was not looked at: %s", (int)n,
                 tl_verdict_name(r.verdict), r.text);
    tl_free(t);
    return s;
}

static void every_check_of_gradients(void **unused)
{
    (void)unused;
    for (int what = 0; what < 3; what++) {
        tl_status s = TL_ENOMEM;
        int64_t n = 1;
        FILE *file = tmpfile();
        assert_non_null(file);
        for (; s != TL_OK && n < 1000000; n += n < 400 ? 1 : n / 20) {
            char text[TL_MESSAGE_MAX];
            s = check_once(n, what, file, text);
            if (s != TL_OK && (s != TL_ENOMEM || text[0] == '\0'))
                fail_msg("check %d, allocation %d: %s: %s", what, (int)n, tl_status_name(s), text);
        }
        assert_in_range(n, 100, 999999);
        fclose(file);
    }
}

/* Two steps, each of which sends what comes to tanh(w) on to w. */
static void two_steps(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out;
    for (int k = 0; k < 2; k++) {
        tl_tensor w = tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(3), .kind = TL_INIT_ONES);
        tl_tensor y = tl_mean(t, tl_square(t, tl_mul(t, in[0], tl_tanh(t, w))), TL_ALL, false);
        tl_backward(t, y);
        tl_step(ctx, t);
        out[k] = tl_detach(t, y);
    }
}

/* Each allocation of a compiled program's first run, tracing included: it fails, or the run is as
 * good as any, and so is the next one. */
static void a_compiled_program_of_two_steps(void **unused)
{
    static const float x[2][3] = {{1, 2, 3}, {-1, 0.5f, 2}};
    char want[65] = "", hex[65];
    int64_t n = 0;
    (void)unused;
    for (int through = 0; through < 20; n++) { /* some may be done without */
        tl_model *m = tl_model_new(.seed = 4);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.1);
        tl_tape_limit(t, 0);
        tl_tensor in = tl_data(m, x, TL_F32, TL_DIMS(2, 3)), out[2];
        tl_compiled *c = tl_compile(t, two_steps, 2, o);
        tl_alloc_fail_after(n);
        tl_status s = tl_run(c, &in, 1, out);
        tl_alloc_fail_after(0);
        through = s == TL_OK ? through + 1 : 0;
        const bool half = s != TL_OK && tl_opt_steps(o) == 1; /* the second step failed */
        if (s != TL_OK) {
            if (s != TL_ENOMEM || tl_error(t)[0] == '\0')
                fail_msg("allocation %d: %s: %s", (int)n, tl_status_name(s), tl_error(t));
            tl_error_clear(t);
            tl_error_clear(o);
            assert_int_equal(tl_run(c, &in, 1, out), TL_OK);
        }
        if (tl_run(c, &in, 1, out) != TL_OK || tl_model_sha256(m, hex) != TL_OK)
            fail_msg("allocation %d, the next run: %s", (int)n, tl_error(t));
        if (n == 0)
            strcpy(want, hex);
        if (!half && strcmp(hex, want) != 0)
            fail_msg("allocation %d: other weights", (int)n);
        tl_free(c, o, t, m);
    }
    assert_in_range(n, 100, 19999);
}

const struct CMUnitTest tl_tests_out_of_memory[] = {
    cmocka_unit_test(a_step_of_adamw),
    cmocka_unit_test(a_step_of_sgd),
    cmocka_unit_test(a_step_in_parts),
    cmocka_unit_test(the_second_micro_batch),
    cmocka_unit_test(a_compiled_program_of_two_steps),
    cmocka_unit_test(a_whole_program),
    cmocka_unit_test(a_gradient_check),
    cmocka_unit_test(every_check_of_gradients),
};
const size_t tl_tests_out_of_memory_count = sizeof tl_tests_out_of_memory /
                                            sizeof tl_tests_out_of_memory[0];
