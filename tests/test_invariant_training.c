/* One hash of the weights, through AdamW with clipping and dropout, however the batches are made: a
 * Llama and a GPT-2, in f32, f64 and halves, on samples of different lengths. And cached decoding
 * against the whole forward pass, bit for bit. TL_TEST_SEED repeats. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cases/cases.h"
#include "tests/cases/run_model.h"

extern const struct CMUnitTest tl_tests_invariant_training[];
extern const size_t tl_tests_invariant_training_count;

static uint64_t seed0;

static void begin(void)
{
    const char *env = getenv("TL_TEST_SEED");
    seed0 = env != NULL ? strtoull(env, NULL, 0) : 1;
    printf("TL_TEST_SEED=%llu\n", (unsigned long long)seed0);
}

/* Each sample alone, as long as it is, on one thread. */
static run_way plain(bool gpt2, tl_dtype dtype)
{
    return (run_way){.gpt2 = gpt2,
                     .dtype = dtype,
                     .padding = RUN_ALONE,
                     .micro = 1,
                     .threads = 1,
                     .stop_step = -1,
                     .seed = seed0};
}

static int runs, wrong;

static void assert_same(const run_way *w, const char *want)
{
    static const char *const names[] = {"alone", "padded on the left", "padded on the right",
                                        "padded anywhere"};
    char got[512];
    run_train(w, got);
    runs++;
    if (strcmp(got, want) == 0)
        return;
    wrong++;
    fprintf(stderr,
            "[ seed %llu ] %s %s, %s, %lld columns more, %d fillers, %d at a time, %d threads%s, "
            "stopped at %d.%d: %s for %s\n",
            (unsigned long long)seed0, w->gpt2 ? "gpt2" : "llama", tl_dtype_name(w->dtype),
            names[w->padding], (long long)w->more, w->fillers, w->micro, w->threads,
            w->reversed ? ", reversed" : "", w->stop_step, w->stop_part, got, want);
}

/* Each axis by itself. */
static void axes(bool gpt2, tl_dtype dtype)
{
    static const int micros[] = {1, 2, 4, 6}, threads[] = {2, 3, 8};
    const run_way base = plain(gpt2, dtype);
    char want[512];
    run_train(&base, want);
    assert_int_equal(strlen(want), 64);
    for (int p = RUN_LEFT; p <= RUN_ANYWHERE; p++)
        for (int i = 0; i < 4; i++) {
            run_way w = base;
            w.padding = (run_padding)p;
            w.micro = micros[i];
            w.more = i;
            assert_same(&w, want);
        }
    run_way batch = base;
    batch.padding = RUN_ANYWHERE;
    batch.micro = 3;
    for (int i = 0; i < 3; i++) {
        run_way w = batch;
        w.threads = threads[i];
        assert_same(&w, want);
        w.threads = 1;
        w.fillers = 2 * i + 1;
        assert_same(&w, want);
    }
    batch.reversed = true;
    assert_same(&batch, want);
    batch.reversed = false;
    for (batch.stop_step = 0; batch.stop_step < RUN_STEPS;
         batch.stop_step++) /* between steps and between micro-batches */
        for (batch.stop_part = batch.stop_step == 0; batch.stop_part < 2; batch.stop_part++)
            assert_same(&batch, want);
}

/* All axes at once, at random. */
static void mixtures(bool gpt2, tl_dtype dtype, uint64_t *state)
{
    const run_way base = plain(gpt2, dtype);
    char want[512];
    run_train(&base, want);
    for (int i = 0; i < 6; i++) {
        uint64_t r = tl_case_random(state);
        run_way w = {.gpt2 = gpt2,
                     .dtype = dtype,
                     .padding = (run_padding)(1 + r % 3),
                     .more = (int64_t)(r >> 8) % 8 & 7,
                     .fillers = (int)(r >> 16 & 3),
                     .micro = 1 + (int)(r >> 24 & 7),
                     .threads = 1 + (int)(r >> 32 & 3),
                     .reversed = r >> 40 & 1,
                     .stop_step = (int)(r >> 41 & 3),
                     .stop_part = (r >> 41 & 3) == 0 ? 1 : (int)(r >> 48 & 1),
                     .seed = r};
        assert_same(&w, want);
    }
}

static void end(void)
{
    printf("%d runs, %d of other weights\n", runs, wrong);
    assert_int_equal(wrong, 0);
    assert_true(runs > 0);
    runs = wrong = 0;
}

static void test_axes(void **unused)
{
    (void)unused;
    begin();
    for (int k = 0; k < 6; k++)
        axes(k & 1, (tl_dtype[]){TL_F32, TL_BF16, TL_F64}[k / 2]);
    end();
}

static void test_mixtures(void **unused)
{
    (void)unused;
    begin();
    uint64_t state = seed0;
    for (int k = 0; k < 8; k++)
        mixtures(k & 1, (tl_dtype[]){TL_F32, TL_BF16, TL_F16, TL_F64}[k / 2], &state);
    end();
}

/* ---- a forked child ---- */

static void test_fork(void **unused)
{
    (void)unused;
    begin();
    run_way w = plain(true, TL_F32);
    char want[512], got[512] = "";
    int pipes[2];
    w.padding = RUN_LEFT;
    w.micro = 6;
    w.threads = 3; /* the parent's pool has run by then; the child computes on one */
    run_train(&w, want);
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(120); /* a hang is a failure */
        run_train(&w, got);
        _exit(write(pipes[1], got, sizeof got) == (ssize_t)sizeof got ? 0 : 1);
    }
    assert_true(child > 0);
    close(pipes[1]);
    ssize_t n = read(pipes[0], got, sizeof got);
    close(pipes[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(n, (ssize_t)sizeof got);
    assert_string_equal(got, want);
}

const struct CMUnitTest tl_tests_invariant_training[] = {cmocka_unit_test(test_axes),
                                                         cmocka_unit_test(test_mixtures),
                                                         cmocka_unit_test(test_fork)};
const size_t tl_tests_invariant_training_count = sizeof tl_tests_invariant_training /
                                                 sizeof tl_tests_invariant_training[0];
