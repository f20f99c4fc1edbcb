/* Logs that are no good: cut off, damaged, or that could not be written. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tally.h>

#include "autograd/log/read.h"
#include "autograd/log/state.h"
#include "tensor/files/file.h"
#include "tests/support/logged_run.h"
#include "tests/support/skip.h"

extern const struct CMUnitTest tl_tests_log_bad[];
extern const size_t tl_tests_log_bad_count;

/* ---- logs that are no good ---- */

static void cut(const char *from, const char *to, size_t n)
{
    char *text;
    size_t bytes;
    tl_err err = {.status = TL_OK};
    assert_int_equal(tl_file_read(logged_file(from), 1 << 28, &text, &bytes, &err), TL_OK);
    FILE *f = fopen(logged_file(to), "wb");
    fwrite(text, 1, n < bytes ? n : bytes, f);
    fclose(f);
    tl_free_raw(text);
}

static void unreadable_logs(void **unused)
{
    (void)unused;
    logged_train(logged_file("plain"), (logged_run){0});
    cut("plain", "empty", 0);
    assert_int_equal(logged_diff("plain", "empty"), 2);
    logged_says("empty is empty");
    assert_int_equal(logged_diff("plain", "nowhere"), 2);
    logged_says("nowhere");
    assert_int_equal(logged_diff("plain", "."), 2);
    cut("plain", "head", 12);
    assert_int_equal(logged_diff("plain", "head"), 2);
    logged_says("B  head: no step");
    FILE *f = fopen(logged_file("letter"), "w");
    fputs("Dear Sir,\nthis is no log.\n", f);
    fclose(f);
    assert_int_equal(logged_diff("letter", "plain"), 2);
    logged_says("letter is no log: it does not begin with 'tally-log'");
    f = fopen(logged_file("letter"), "w");
    fputs("tally-log\t1\n", f);
    fclose(f);
    assert_int_equal(logged_diff("letter", "plain"), 2);
    logged_says("of another version (1");
}

static void logs_cut_off_by_a_crash(void **unused)
{
    char *text;
    size_t bytes;
    tl_err err = {.status = TL_OK};
    (void)unused;
    logged_train(logged_file("plain"), (logged_run){0});
    assert_int_equal(tl_file_read(logged_file("plain"), 1 << 28, &text, &bytes, &err), TL_OK);
    const char *third = strstr(text, "step\t3");
    assert_non_null(third);
    cut("plain", "crash", (size_t)(third - text) + 1000);
    assert_int_equal(logged_diff("plain", "crash"), 0);
    logged_says("B  crash: steps 1 to 3, the last one cut off");
    logged_says("A goes on to step 4");
    tl_free_raw(text);
    logged_train(logged_file("crash"),
                 (logged_run){.steps = 1,
                              .log = {.append = true,
                                      .first = 9}}); /* half a line does not spoil the next one */
    assert_int_equal(logged_diff("crash", "crash"), 0);
    logged_says("B  crash: steps 1 to 9\n");
}

/* Whatever is in a log, reading and comparing end, and touch no memory but their own. */
static void damaged_logs_are_read(void **unused)
{
    const char *given = getenv("TL_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : 20240611;
    tl_rng_key key = tl_rng_stream(seed, "test_log.damage");
    tl_err err = {.status = TL_OK};
    tl_log_file *good, *f;
    char *text;
    size_t bytes;
    (void)unused;
    logged_train(logged_file("plain"), (logged_run){.steps = 2, .micro_batch = 5});
    assert_int_equal(tl_file_read(logged_file("plain"), 1 << 28, &text, &bytes, &err), TL_OK);
    assert_int_equal(tl_log_read(&good, logged_file("plain"), &err), TL_OK);
    for (uint64_t round = 0; round < 300; round++) {
        char *copy = malloc(bytes);
        size_t n = round % 3 == 0 ? (size_t)tl_rng_below(key, round, 0, bytes) : bytes;
        memcpy(copy, text, bytes);
        for (uint64_t i = 0; i < 1 + round % 40; i++) {
            size_t at = 12 + (size_t)tl_rng_below(key, round, 3 * i + 1, bytes - 12),
                   kind = (size_t)tl_rng_below(key, round, 3 * i + 2, 4);
            static const char usual[] = "\t\n*+,:/.-0f9b%";
            copy[at] = (char)(kind < 3
                                  ? usual[tl_rng_below(key, round, 3 * i + 3, sizeof usual - 1)]
                                  : (int)tl_rng_below(key, round, 3 * i + 3, 256));
            if (kind == 2) /* a stretch of the file somewhere else */
                memcpy(copy + at, text + tl_rng_below(key, round, 3 * i + 3, bytes - 300),
                       bytes - at < 300 ? bytes - at : 300);
        }
        FILE *file = fopen(logged_file("damaged"), "wb");
        fwrite(copy, 1, n, file);
        fclose(file);
        free(copy);
        err.status = TL_OK;
        if (tl_log_read(&f, logged_file("damaged"), &err) != TL_OK) {
            if (err.status != TL_EFORMAT)
                fail_msg("seed %" PRIu64 ", round %" PRIu64 ": %s", seed, round, err.message);
            continue;
        }
        for (int i = 0; i < tl_log_steps(f); i++)
            for (int k = 0; k < tl_log_steps(good); k++) {
                tl_log_comparison c;
                assert_int_equal(tl_log_compare(&c, tl_log_step_at(f, i), tl_log_step_at(good, k)),
                                 TL_OK);
                tl_log_comparison_free(&c);
            }
        tl_log_file_close(f);
        if (round < 12) /* and the program says something sensible */
            assert_in_range(logged_diff("plain", "damaged"), 0, 2);
    }
    tl_log_file_close(good);
    tl_free_raw(text);
}

/* ---- what goes wrong while a log is written ---- */

static void a_full_disk_stops_the_log_not_the_run(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    (void)unused;
    if (access("/dev/full", W_OK) != 0)
        TL_SKIP();
    tl_log_open(t, logged_file("x"));
    assert_int_equal(tl_log_close(t), TL_OK);
    if (tl_log_open(t, "/dev/full") == TL_OK) { /* the header is the first to meet it */
        tl_log_close(t);
        fail_msg("the full device took a log");
    }
    assert_non_null(strstr(tl_error(t), "No space left"));
    tl_error_clear(t);
    tl_log_open(t, logged_file("x"));
    assert_non_null(freopen("/dev/full", "w", tl_log_of(t)->f)); /* the disk fills up later */
    for (int i = 0; i < 3; i++) {
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(3000), TL_INIT_ONES, 1);
        tl_backward(t, tl_sum(t, tl_square(t, w), TL_ALL, false));
        assert_int_equal(tl_step(o, t), TL_OK);
        tl_tape_reset(t);
    }
    assert_int_equal(tl_opt_steps(o), 3);
    assert_non_null(strstr(tl_log_error(t), "cannot be written further (step 1): No space left"));
    assert_string_equal(tl_error(t), "");
    assert_int_equal(tl_log_close(t), TL_EIO);
    assert_non_null(strstr(tl_error(t), "cannot be written further"));
    tl_free(o, t, m);
}

static void wrong_use_is_refused(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    (void)unused;
    assert_int_equal(tl_log_open(t, logged_file("no/such/folder")), TL_EIO);
    assert_non_null(strstr(tl_error(t), "No such file"));
    tl_error_clear(t);
    assert_int_equal(tl_log_open(t, logged_file("x"), .every = -1), TL_EDOMAIN);
    tl_error_clear(t);
    assert_int_equal(tl_log_open(t, logged_file("x")), TL_OK);
    assert_int_equal(tl_log_open(t, logged_file("y")), TL_EUSAGE);
    tl_error_clear(t);
    assert_int_equal(tl_log_close(t), TL_OK);
    assert_int_equal(tl_log_close(t), TL_OK);
    tl_log_open(t, logged_file("x"));
    tl_free(t);
}

static void step_program(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                         void *ctx)
{
    (void)n_in, (void)n_out;
    tl_tensor w = tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(30, 30), TL_INIT_ONES, 1);
    out[0] = tl_sum(t, tl_matmul(t, tl_tanh(t, w), in[0]), TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(ctx, t);
}

/* Every allocation fails once: the run goes on without its log, or says why it cannot. */
static void out_of_memory(void **unused)
{
    static float x[900];
    int whole = 0;
    (void)unused;
    for (int compile = 0; compile < 2; compile++)
        for (int64_t n = 1; n < 700; n += 3) {
            tl_model *m = tl_model_new(.seed = 1);
            tl_tape *t = tl_tape_new(m);
            tl_opt *o = tl_sgd_new(m, .lr = 0.1);
            tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(30, 30)), out;
            tl_compiled *c = tl_compile(t, step_program, 1, o);
            tl_alloc_fail_after(n);
            tl_log_open(t, logged_file("x"), .keep = 1);
            if (compile)
                tl_run(c, &in, 1, &out);
            else
                step_program(t, &in, 1, &out, 1, o);
            tl_alloc_fail_after(0);
            tl_status s = tl_log_close(t);
            assert_true(s == TL_OK || (s == TL_ENOMEM && tl_failed(t)));
            whole += s == TL_OK && !tl_failed(t);
            tl_free(c, o, t, m);
        }
    assert_true(whole > 10); /* the last ones have all the memory they want */
}

const struct CMUnitTest tl_tests_log_bad[] = {
    cmocka_unit_test_setup_teardown(unreadable_logs, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(logs_cut_off_by_a_crash, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(damaged_logs_are_read, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(a_full_disk_stops_the_log_not_the_run, logged_begin,
                                    logged_end),
    cmocka_unit_test_setup_teardown(wrong_use_is_refused, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(out_of_memory, logged_begin, logged_end),
};
const size_t tl_tests_log_bad_count = sizeof tl_tests_log_bad / sizeof *tl_tests_log_bad;
