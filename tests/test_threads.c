/* Threads: the floating-point environment in and out, forked children, and several tapes over one
 * model. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

#include <tally_data.h>

#include "autograd/internal.h"
#include "tensor/print.h"
#include "tests/support/print_text.h"
#if TL_BLIS
#include <blis.h>
#endif

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

extern const struct CMUnitTest tl_tests_threads[];
extern const size_t tl_tests_threads_count;

static int restore(void **unused)
{
    (void)unused;
    tl_threads_set(0);
    return 0;
}

/* ---- a small program with subnormals, roundings, draws and an optimizer ---- */

static tl_tensor program(tl_tape *t, tl_model *m, const int64_t *data)
{
    tl_llama_config c = {.vocab = 13,
                         .width = 16,
                         .layers = 1,
                         .heads = 4,
                         .kv_heads = 2,
                         .hidden = 24,
                         .max_positions = 12};
    tl_tensor z = tl_llama(t, m, &c, tl_data(t, data, TL_I64, TL_DIMS(3, 12)));
    return tl_cross_entropy(t, z, tl_data(t, data + 1, TL_I64, TL_DIMS(3, 12)), TL_MEAN);
}

static const int64_t *letters(uint64_t seed)
{
    static _Thread_local int64_t data[40];
    for (int i = 0; i < 40; i++)
        data[i] = (int64_t)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 33) % 13;
    return data;
}

/* Creates and trains a model for three steps; the hash of its weights, and of sums of subnormals.
 */
static void train(char hex[65], char tiny[65])
{
    tl_model *m = tl_model_new(.seed = 5);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o =
        tl_adamw_new(m, .lr = 0.01, .weight_decay = 0.1, .clip = 0.5,
                     .schedule = {.kind = TL_COSINE, .warmup = 1, .total = 3, .min_ratio = 0.1});
    for (int i = 0; i < 3; i++) {
        tl_backward(t, program(t, m, letters((uint64_t)i + 1)));
        tl_step(o, t);
        tl_tape_reset(t);
    }
    tl_model_sha256(m, hex);
    tl_tensor x = tl_scale(t, tl_fill(t, TL_F32, TL_DIMS(64, 2048), 0x1.234568p-100), 0x1p-40);
    tl_tensor y = tl_matmul(t, tl_exp(t, tl_slice(t, x, 1, 0, 1000, 3)),
                            tl_transpose(t, tl_slice(t, x, 1, 0, 1000, 3), 0, 1));
    tl_sha256(t,
              tl_concat(t,
                        ((tl_tensor[]){tl_reshape(t, x, TL_DIMS(-1)), tl_reshape(t, y, TL_DIMS(-1)),
                                       tl_sum(t, x, TL_DIMS(1), false)}),
                        3, 0),
              tiny);
    assert_string_equal(tl_error(t), "");
    tl_free(o, t, m);
}

/* What is read, drawn, printed and made outside of ops; 0: all the same bits. */
static int outside_ops(unsigned char out[256])
{
    tl_tape *t = tl_tape_new(NULL);
    tl_rng_key key = tl_rng_stream(7, "environment");
    double x[16] = {0};
    float small = 0x1.234568p-140f, tenth;
    char text[128] = "";
    memset(out, 0, 256);
    x[0] = tl_item(t, tl_data(t, &small, TL_F32, TL_SCALAR));
    x[1] = tl_item(t, tl_scalar(t, TL_F32, 0x1.234568p-140));
    x[2] = tl_item(t, tl_fill(t, TL_F16, TL_SCALAR, 0x1.8p-24));
    x[3] = tl_rng_normal64(key, 3, 4);
    tl_rng_fill_normal64(x + 4, 5, key, 6, 7);
    x[9] = tl_rng_uniform64(key, 8, 9);
    x[10] = tl_item(t, tl_scalar(t, TL_F32, 0.1));
    x[11] = tl_item(t, tl_scalar(t, TL_BF16, 0.1));
    tl_array a = tl_array_make(TL_F64, &TL_DIMS(2), (double[]){0.12345678901234567, 1.0 / 3});
    tl_err err = {.status = TL_OK};
    print_text(text, sizeof text, &a, &err);
    tl_keep(t, tl_scalar(t, TL_F32, 0.7), &tenth, sizeof tenth);
    x[12] = (double)tenth;
    memcpy(out, x, sizeof x);
    memcpy(out + sizeof x, text, sizeof text);
    int bad = tl_failed(t) || err.status != TL_OK;
    tl_free(t);
    return bad;
}

static void environment_case(const char *name, const char *hex, const char *tiny)
{
    char now[65], now_tiny[65];
    unsigned char read[256];
#if defined(__SSE2__)
    unsigned before = _mm_getcsr() & ~0x3fu;
#endif
    int round = fegetround();
    train(now, now_tiny);
    int bad = outside_ops(read);
#if defined(__SSE2__)
    unsigned after = _mm_getcsr() & ~0x3fu;
    _mm_setcsr(0x1f80);
    assert_int_equal(before, after);
#endif
    int left = fegetround();
    fesetround(FE_TONEAREST);
#if !defined(__SSE2__)
    assert_int_equal(left, round); /* SSE's own control word was compared above */
#endif
    (void)left, (void)round;
    unsigned char want[256];
    assert_int_equal(bad | outside_ops(want), 0);
    assert_memory_equal(read, want, sizeof want);
    if (strcmp(now_tiny, tiny) != 0)
        fail_msg("%s: ops on small numbers give other bits", name);
    if (strcmp(now, hex) != 0)
        fail_msg("%s: training gives other weights", name);
}

static void the_callers_environment(void **unused)
{
    char hex[65], tiny[65];
    static const struct {
        const char *name;
        int mode;
    } rounding[] = {{"round up", FE_UPWARD},
                    {"round down", FE_DOWNWARD},
                    {"round to zero", FE_TOWARDZERO}};
    (void)unused;
    tl_threads_set(2);
    train(hex, tiny);
    for (size_t i = 0; i < 3; i++) {
        fesetround(rounding[i].mode);
        environment_case(rounding[i].name, hex, tiny);
    }
#if defined(__SSE2__)
    _mm_setcsr(0x1f80 | 0x8040); /* flush to zero, subnormals are zero */
    environment_case("FTZ and DAZ", hex, tiny);
#endif
}

/* ---- fork ---- */

static void a_forked_child_computes(void **unused)
{
    char mine[2][65], its[2][65] = {"", ""};
    int fd[2], status = 0;
    (void)unused;
    tl_threads_set(2);
    train(mine[0], mine[1]); /* the runtime has its threads now */
    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60); /* a hang is a failure */
        train(its[0], its[1]);
        _exit(write(fd[1], its, sizeof its) == sizeof its && tl_parallel_width(1 << 20, 1) == 1
                  ? 0
                  : 1);
    }
    close(fd[1]);
    ssize_t got = read(fd[0], its, sizeof its);
    close(fd[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(got, sizeof its);
    assert_memory_equal(its, mine, sizeof mine);
}

/* TL_FAST promises no bits, but an answer. */
static void a_forked_child_computes_under_tl_fast(void **unused)
{
    (void)unused;
    int status = 0;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(600, 600), 0.5);
    tl_mode_push(t, TL_FAST);
#if TL_BLIS
    bli_thread_set_num_threads(2);
#endif
    assert_true(tl_item(t, tl_sum(t, tl_matmul(t, x, x), TL_ALL, false)) == 54e6);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60);
        _exit(tl_item(t, tl_sum(t, tl_matmul(t, x, x), TL_ALL, false)) == 54e6 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
#if TL_BLIS
    bli_thread_set_num_threads(1);
#endif
    tl_free(t);
}

/* ---- tapes of several threads over one model ---- */

typedef struct {
    tl_model *m;
    uint64_t seed;
    int rounds;
    pthread_barrier_t *start;
    char hex[65], error[TL_MESSAGE_MAX];
} worker;

/* Gradients summed over rounds; all of them in one hash. */
static void *work(void *ctx)
{
    worker *w = ctx;
    tl_tape *t = tl_tape_new(w->m);
    pthread_barrier_wait(w->start);
    for (int i = 0; i < w->rounds; i++) {
        tl_tape_reset(t);
        tl_backward(t, program(t, w->m, letters(w->seed + (uint64_t)i)));
    }
    tl_tensor g[64];
    int n = 0;
    for (int i = 0; i < tl_model_count(w->m) && n < 64; i++)
        if (tl_model_at(w->m, i).param)
            g[n++] = tl_reshape(t, tl_grad(t, tl_model_at(w->m, i).tensor), TL_DIMS(-1));
    tl_sha256(t, tl_concat(t, g, n, 0), w->hex);
    strcpy(w->error, tl_error_status(t) == TL_OK ? "" : tl_error(t));
    tl_free(t);
    return NULL;
}

static void run_pair(worker *w, int n, void *(*body)(void *))
{
    pthread_t id[4];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        w[i].start = &start;
        assert_int_equal(pthread_create(&id[i], NULL, body, &w[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(id[i], NULL);
    pthread_barrier_destroy(&start);
    for (int i = 0; i < n; i++)
        assert_string_equal(w[i].error, "");
}

static void run_workers(worker *w, int n) { run_pair(w, n, work); }

static void two_tapes_over_one_model(void **unused)
{
    tl_model *m = tl_model_new(.seed = 2);
    worker alone[2] = {{.m = m, .seed = 10, .rounds = 150}, {.m = m, .seed = 500, .rounds = 150}},
           both[2];
    (void)unused;
    tl_threads_set(1);
    memcpy(both, alone, sizeof both);
    run_workers(&alone[0], 1);
    run_workers(&alone[1], 1);
    run_workers(both, 2);
    for (int i = 0; i < 2; i++)
        assert_string_equal(both[i].hex, alone[i].hex);
    for (int i = 0; i < tl_model_count(m);
         i++) { /* every view has given its reference back, none twice */
        tl_named p = tl_model_at(m, i);
        if (tl_model_value(m, p.tensor)->st->refs != 1)
            fail_msg("%s is held %d times after all tapes have ended", p.name,
                     (int)tl_model_value(m, p.tensor)->st->refs);
    }
    tl_free(m);
}

/* Views taken and given back as fast as it goes: a count that two threads change without care ends
 * wrong. */
static void *take_views(void *ctx)
{
    worker *w = ctx;
    tl_tape *t = tl_tape_new(w->m);
    tl_tensor p = tl_model_find(w->m, "p");
    pthread_barrier_wait(w->start);
    for (int i = 0; i < w->rounds; i++) {
        tl_detach(t, p);
        tl_transpose(t, p, 0, 1);
        if (i % 100 == 99)
            tl_tape_reset(t);
    }
    strcpy(w->error, tl_error(t));
    tl_free(t);
    return NULL;
}

static void two_tapes_hold_one_parameter(void **unused)
{
    tl_model *m = tl_model_new(.seed = 2);
    tl_tape *t = tl_tape_new(m);
    tl_tensor p = tl_param(t, m, "p", TL_F32, TL_DIMS(4, 4), TL_INIT_NORMAL, 1);
    worker w[2] = {{.m = m, .rounds = 100000}, {.m = m, .rounds = 100000}};
    tl_storage *st = tl_model_value(m, p)->st;
    (void)unused;
    for (int i = 0; i < 1 << 20;
         i++) /* out of reach of zero: a wrong count shall show, not crash */
        tl_storage_retain(st);
    run_pair(w, 2, take_views);
    int refs = st->refs - (1 << 20);
    for (int i = refs - 1 + (1 << 20); i > 0; i--)
        tl_storage_release(st);
    tl_free(t, m);
    if (refs != 1)
        fail_msg("the parameter is held %d times after all tapes have ended", refs);
}

/* A model gets tensors, and optimizers of it step and end. */
static void *make_tensors(void *ctx)
{
    worker *w = ctx;
    char name[32];
    tl_tape *t = tl_tape_new(w->m);
    pthread_barrier_wait(w->start);
    for (int i = 0; i < w->rounds; i++) {
        snprintf(name, sizeof name, "%d", i * 7919 % w->rounds);
        tl_param(t, w->m, name, TL_F32, TL_DIMS(2), TL_INIT_ZEROS, 0);
        tl_zeros(w->m, TL_F32, TL_DIMS(2));
    }
    strcpy(w->error, tl_error(t));
    tl_free(t);
    return NULL;
}

static void *step_and_end(void *ctx)
{
    worker *w = ctx;
    tl_tape *t = tl_tape_new(w->m);
    tl_tensor p = tl_param(t, w->m, "p", TL_F32, TL_DIMS(2), TL_INIT_ONES, 1);
    pthread_barrier_wait(w->start);
    for (int i = 0; i < w->rounds / 10; i++) {
        tl_opt *o = tl_sgd_new(w->m, .lr = 0.1, .momentum = 0.5);
        tl_backward(t, tl_sum(t, tl_square(t, p), TL_ALL, false), .partial = true);
        tl_step(o, t);
        tl_free(o);
        tl_tape_reset(t);
    }
    strcpy(w->error, tl_error(t));
    tl_free(t);
    return NULL;
}

static void *make_or_step(void *ctx)
{
    return ((worker *)ctx)->seed == 0 ? make_tensors(ctx) : step_and_end(ctx);
}

static void optimizers_end_while_tensors_are_made(void **unused)
{
    tl_model *m = tl_model_new(.seed = 2);
    worker w[2] = {{.m = m, .seed = 0, .rounds = 1000}, {.m = m, .seed = 1, .rounds = 1000}};
    (void)unused;
    run_pair(w, 2, make_or_step);
    assert_int_equal(tl_model_count(m), 1002); /* and p's momentum */
    tl_free(m);
}

static void two_tapes_make_one_model(void **unused)
{
    (void)unused;
    tl_threads_set(1);
    char want[2][65], got[65];
    for (int round = 0; round < 60; round++) {
        tl_model *m = tl_model_new(.seed = 3);
        worker w[2] = {{.m = m, .seed = 10, .rounds = 1}, {.m = m, .seed = 500, .rounds = 1}};
        if (round == 0) {
            run_workers(&w[0], 1);
            run_workers(&w[1], 1);
            strcpy(want[0], w[0].hex);
            strcpy(want[1], w[1].hex);
        } else {
            run_workers(w, 2);
            assert_string_equal(w[0].hex, want[0]);
            assert_string_equal(w[1].hex, want[1]);
        }
        assert_int_equal(tl_model_sha256(m, got), TL_OK);
        tl_free(m);
    }
}

/* In between, the locale is one of its own and no longer the caller's, whether that was the
 * process's or, where there is another one, the thread's. */
static void text_is_made_in_the_c_locale(void **unused)
{
    const locale_t callers[] = {LC_GLOBAL_LOCALE, newlocale(LC_ALL_MASK, "C.UTF-8", (locale_t)0)};
    locale_t within[2], again[2], after[2];
    const int n = callers[1] != (locale_t)0 ? 2 : 1;
    (void)unused;
    for (int i = 0; i < n; i++) {
        uselocale(callers[i]);
        tl_textenv outer = tl_textenv_enter();
        within[i] = uselocale((locale_t)0);
        tl_textenv inner = tl_textenv_enter();
        tl_textenv_leave(inner);
        again[i] = uselocale((locale_t)0);
        tl_textenv_leave(outer);
        after[i] = uselocale(LC_GLOBAL_LOCALE);
    }
    for (int i = 0; i < n; i++) {
        assert_true(within[i] != callers[i] && again[i] == within[i] && after[i] == callers[i]);
        assert_true(within[i] == within[0]);
    }
    if (n == 2)
        freelocale(callers[1]);
}

const struct CMUnitTest tl_tests_threads[] = {
    cmocka_unit_test(text_is_made_in_the_c_locale),
    cmocka_unit_test_teardown(the_callers_environment, restore),
    cmocka_unit_test_teardown(a_forked_child_computes, restore),
    cmocka_unit_test_teardown(a_forked_child_computes_under_tl_fast, restore),
    cmocka_unit_test_teardown(two_tapes_over_one_model, restore),
    cmocka_unit_test_teardown(two_tapes_hold_one_parameter, restore),
    cmocka_unit_test_teardown(two_tapes_make_one_model, restore),
    cmocka_unit_test_teardown(optimizers_end_while_tensors_are_made, restore),
};
const size_t tl_tests_threads_count = sizeof tl_tests_threads / sizeof tl_tests_threads[0];
