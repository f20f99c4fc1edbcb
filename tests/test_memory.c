/* Memory: steps in the steady state ask the operating system for nothing and leak nothing; backward
 * gives back as it goes.
 *
 * The program's own mmap, munmap, mremap, madvise, brk and sbrk stand before the C library's, so
 * that whatever the allocator asks for is counted here. (Under a sanitizer, or without jemalloc,
 * allocators are others and the counts say nothing.) */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <tally.h>

#include "tests/support/skip.h"

extern const struct CMUnitTest tl_tests_memory[];
extern const size_t tl_tests_memory_count;

#if defined(__SANITIZE_ADDRESS__)
#define COUNTED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define COUNTED 0
#endif
#endif
#ifndef COUNTED
#define COUNTED TL_JEMALLOC
#endif

#if COUNTED
#include <jemalloc/jemalloc.h>

static _Atomic long calls[6];
enum { MMAP, MUNMAP, MREMAP, MADVISE, BRK, SBRK };

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t from)
{
    calls[MMAP]++;
#if defined(SYS_mmap)
    return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, from);
#else
    return (void *)syscall(SYS_mmap2, at, n, prot, flags, fd, from / 4096);
#endif
}

int munmap(void *at, size_t n)
{
    calls[MUNMAP]++;
    return (int)syscall(SYS_munmap, at, n);
}

void *mremap(void *at, size_t was, size_t n, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(ap, void *) : NULL;
    va_end(ap);
    calls[MREMAP]++;
    return (void *)syscall(SYS_mremap, at, was, n, flags, to);
}

int madvise(void *at, size_t n, int advice)
{
    calls[MADVISE]++;
    return (int)syscall(SYS_madvise, at, n, advice);
}

/* The program break is left where it is: allocators then use mmap, which is counted. */
int brk(void *to)
{
    (void)to;
    calls[BRK]++;
    errno = ENOMEM;
    return -1;
}

void *sbrk(intptr_t by)
{
    calls[SBRK]++;
    if (by != 0) {
        errno = ENOMEM;
        return (void *)-1;
    }
    return (void *)syscall(SYS_brk, 0);
}

/* Bytes in use, the thread's cache of freed ones emptied. */
static size_t allocated(void)
{
    uint64_t epoch = 1;
    mallctl("thread.tcache.flush", NULL, NULL, NULL, 0);
    size_t n = 0, len = sizeof epoch;
    mallctl("epoch", &epoch, &len, &epoch, len);
    len = sizeof n;
    assert_int_equal(mallctl("stats.allocated", &n, &len, NULL, 0), 0);
    return n;
}

/* What earlier work has freed goes back at once, and not bit by bit over the next ten seconds. */
static void settle(void)
{
    char key[64];
    mallctl("thread.tcache.flush", NULL, NULL, NULL, 0);
    snprintf(key, sizeof key, "arena.%u.purge", (unsigned)MALLCTL_ARENAS_ALL);
    assert_int_equal(mallctl(key, NULL, NULL, NULL, 0), 0);
}

/* The line of /proc/self/status that begins with a word, in kB. */
static long status_kb(const char *word)
{
    char line[256];
    long kb = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, word, strlen(word)) == 0)
            sscanf(line + strlen(word), ": %ld", &kb);
    if (f != NULL)
        fclose(f);
    return kb;
}

static int maps(void)
{
    int lines = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    for (int c; f != NULL && (c = fgetc(f)) != EOF;)
        lines += c == '\n';
    if (f != NULL)
        fclose(f);
    return lines;
}
#endif

/* ---- one training run ---- */

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *o;
    int64_t seq, width;
} run;

static run begin(int64_t seq, int64_t width)
{
    run r = {.m = tl_model_new(.seed = 3), .seq = seq, .width = width};
    r.t = tl_tape_new(r.m);
    r.o = tl_adamw_new(r.m, .lr = 1e-3, .clip = 1, .weight_decay = 0.1);
    return r;
}

/* Two micro-batches and an update, and the loss read, as programs do. */
static void step(run *r)
{
    static int64_t ids[2 * 64 + 1];
    tl_llama_config c = {.vocab = 29,
                         .width = r->width,
                         .layers = 1,
                         .heads = 4,
                         .kv_heads = 2,
                         .hidden = 2 * r->width,
                         .max_positions = r->seq,
                         .tied = true};
    for (int i = 0; i < 2 * 64 + 1; i++)
        ids[i] = (ids[i] * 5 + i) % 29;
    for (int micro = 0; micro < 2; micro++) {
        tl_tensor z = tl_llama(r->t, r->m, &c, tl_data(r->t, ids, TL_I64, TL_DIMS(2, r->seq)));
        tl_tensor loss = tl_cross_entropy(r->t, z,
                                          tl_data(r->t, ids + 1, TL_I64, TL_DIMS(2, r->seq)),
                                          TL_MEAN,
                                          .count = tl_scalar(r->t, TL_F64, 4.0 * (double)r->seq));
        tl_backward(r->t, loss);
        assert_true(tl_item(r->t, loss) > 0);
        if (micro == 1)
            assert_int_equal(tl_step(r->o, r->t), TL_OK);
        tl_tape_reset(r->t);
    }
}

static void end(run *r)
{
    assert_string_equal(tl_error(r->t), "");
    tl_free(r->o, r->t, r->m);
}

static void the_system_is_asked_for_nothing(void **unused)
{
    (void)unused;
#if COUNTED
    static const int threads[] = {1, 2}, warm[] = {20, 5}, counted[] = {200, 200};
    for (int i = 0; i < 2; i++) {
        long was[6], vm;
        run r = begin(48, 48);
        tl_threads_set(threads[i]);
        settle();
        for (int k = 0; k < warm[i]; k++)
            step(&r);
        assert_true(calls[MMAP] > 0); /* the counting works */
        int lines = maps();
        lines = maps(); /* reading has its own buffers by now */
        vm = status_kb("VmSize");
        vm = status_kb("VmSize");
        for (int k = 0; k < 6; k++)
            was[k] = calls[k];
        for (int k = 0; k < counted[i]; k++)
            step(&r);
        for (int k = 0; k < 6; k++)
            if (calls[k] != was[k]) {
                static const char *const name[] = {"mmap",    "munmap", "mremap",
                                                   "madvise", "brk",    "sbrk"};
                fail_msg("%d threads: %ld calls of %s in %d steps", threads[i], calls[k] - was[k],
                         name[k], counted[i]);
            }
        assert_int_equal(status_kb("VmSize"), vm);
        assert_int_equal(maps(), lines);
        end(&r);
    }
    tl_threads_set(0);
#else
    TL_SKIP();
#endif
}

static void figures_equal(tl_tape_memory a, tl_tape_memory b)
{
    assert_int_equal(a.tape.used, b.tape.used);
    assert_int_equal(a.tape.blocks, b.tape.blocks);
    assert_int_equal(a.tape.peak, b.tape.peak);
    assert_int_equal(a.tape.mapped, b.tape.mapped);
    assert_int_equal(a.gradients.used, b.gradients.used);
    assert_int_equal(a.gradients.peak, b.gradients.peak);
    assert_int_equal(a.gradients.mapped, b.gradients.mapped);
    assert_int_equal(a.model.used, b.model.used);
    assert_int_equal(a.model.blocks, b.model.blocks);
    assert_int_equal(a.model.mapped, b.model.mapped);
}

static void ten_thousand_steps_leak_nothing(void **unused)
{
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 1e-4, .momentum = 0.5);
    tl_tape_memory was = {0};
    size_t bytes = 0;
    (void)unused;
    tl_threads_set(1);
    for (int i = 0; i < 10000; i++) {
        tl_tensor x = tl_data(t, ((float[]){1, -2, 0.5f, 3}), TL_F32, TL_DIMS(2, 2));
        tl_require_grad(t, x);
        tl_tensor y = tl_linear(t, m, "b", tl_tanh(t, tl_linear(t, m, "a", x, 3)), 1);
        tl_tensor loss = tl_mean(t, tl_square(t, y), TL_ALL, false);
        assert_int_equal(tl_backward(t, loss, .retain = i % 2), TL_OK);
        assert_false(tl_is_none(tl_grad(t, x)));
        assert_int_equal(tl_step(o, t), TL_OK);
        if (i % 100 == 7) { /* an error on the way leaves nothing either */
            tl_matmul(t, x, loss);
            tl_error_clear(t);
        }
        tl_tape_reset(t);
        if (i == 250) {
            was = tl_memory_stats(t);
#if COUNTED
            bytes = allocated();
#endif
        }
    }
    figures_equal(tl_memory_stats(t), was);
    assert_int_equal(was.tape.used, 0);
    assert_int_equal(was.tape.blocks, 0);
#if COUNTED
    size_t now = allocated();
    if (now > bytes)
        fail_msg("%zu bytes more after 9,750 steps", now - bytes);
#endif
    (void)bytes;
    tl_threads_set(0);
    tl_free(o, t, m);
}

static void tapes_and_models_leak_nothing(void **unused)
{
    (void)unused;
#if COUNTED
    size_t was = 0;
    tl_threads_set(1);
    for (int i = 0; i < 60; i++) {
        run r = begin(16, 16);
        step(&r);
        char hex[65];
        tl_model_sha256(r.m, hex);
        end(&r);
        if (i == 20)
            was = allocated();
    }
    size_t now = allocated();
    tl_threads_set(0);
    if (now > was + 4096) /* the allocator's own books for 40 more arenas */
        fail_msg("%zu bytes more after 40 models and tapes", now - was);
#else
    TL_SKIP();
#endif
}

#if COUNTED
static void nothing(tl_tape *t, void *ctx) { (void)t, (void)ctx; }

/* All that a trace keeps; and, if `bad`, what no graph can hold. */
static void keeps_much(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    static const float ones[4] = {1, 1, 1, 1};
    static double seen;
    const bool bad = *(bool *)ctx;
    (void)n, (void)m;
    tl_tensor w = tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(4), .kind = TL_INIT_ONES),
              x = tl_mul(t, tl_constant(t, ones, TL_F32, TL_DIMS(4)),
                         tl_bound(t, ones, TL_F32, TL_DIMS(4))),
              z = tl_fill(t, TL_F32, TL_DIMS(2, 2), 0), old = tl_reshape(t, z, TL_DIMS(4));
    tl_rotary_(t, z, tl_slice(t, in[0], 0, 0, 2, 1), tl_slice(t, in[0], 0, 2, 4, 1),
               TL_ROTARY_HALF);
    tl_grad(t, w);
    tl_host(t, TL_AFTER, nothing, NULL);
    out[0] = tl_sum(t, tl_mul(t, tl_mul(t, w, x), in[0]), TL_ALL, false);
    tl_watch(t, out[0], &seen);
    tl_backward(t, out[0]);
    if (bad)
        out[0] = tl_exp(t, old);
}
#endif

static void graphs_leak_nothing(void **unused)
{
    (void)unused;
#if COUNTED
    size_t was = 0;
    tl_threads_set(1);
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int i = 0; i < 1200; i++) {
        bool bad = i % 2;
        tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(4), 0.5), y;
        tl_graph *g = tl_trace(t, keeps_much, &x, 1, 1, &bad);
        if (tl_error_status(t) != (bad ? TL_EINPLACE : TL_OK))
            fail_msg("%s", tl_error(t));
        if (g != NULL)
            assert_int_equal(tl_graph_run(g, &x, 1, &y, 1), TL_OK);
        tl_free(g);
        tl_error_clear(t);
        tl_grad_clear(t);
        tl_tape_reset(t);
        if (i == 200)
            was = allocated();
    }
    size_t now = allocated();
    tl_free(t, m);
    tl_threads_set(0);
    if (now > was + 4096)
        fail_msg("%zu bytes more after 1000 graphs", now - was);
#else
    TL_SKIP();
#endif
}

/* ---- what backward gives back ---- */

/* The peak of a chain of n nodes of which each value is saved, during backward. */
static size_t chain_peak(int n, bool retain, size_t *left)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(10000), 0.5), y;
    x = tl_zeros(t, TL_F32, TL_DIMS(10000));
    tl_require_grad(t, x);
    y = x;
    for (int i = 0; i < n; i++)
        y = tl_shift(t, tl_square(t, y), -0.25); /* shift's input is saved by nobody */
    y = tl_sum(t, y, TL_ALL, false);
    assert_int_equal(tl_backward(t, y, .retain = retain), TL_OK);
    tl_tape_memory m = tl_memory_stats(t);
    *left = m.tape.used;
    tl_free(t);
    return m.tape.peak;
}

static void backward_gives_back_as_it_goes(void **unused)
{
    const size_t value = 40000, n = 100;
    size_t left[2], freed = chain_peak((int)n, false, &left[0]),
                    kept = chain_peak((int)n, true, &left[1]);
    (void)unused;
    if (freed > (2 * n + 12) * value) /* forward's values and a few cotangents at a time */
        fail_msg("peak %zu for a forward of %zu bytes", freed, 2 * n * value);
    assert_true(left[0] < 4 * value); /* x, y, the fill, a gradient */
    assert_true(left[1] >= 2 * n * value);
    assert_true(kept >= freed);
    /* A second program of backwards and forwards on one tape needs no more than the first did. */
    tl_tape *t = tl_tape_new(NULL);
    for (int round = 0; round < 4; round++) {
        tl_tensor x = tl_zeros(t, TL_F32, TL_DIMS(10000)), y = x;
        tl_require_grad(t, x);
        for (size_t i = 0; i < n; i++)
            y = tl_square(t, y);
        tl_backward(t, tl_sum(t, y, TL_ALL, false)); /* no reset: what was passed is free again */
    }
    assert_true(tl_memory_stats(t).tape.used < 16 * value);
    assert_true(tl_memory_stats(t).tape.peak < (n + 30) * value);
    tl_free(t);
}

/* Without retain a deep chain, backward included, stays well below what retaining takes. */
static void retaining_costs_what_it_says(void **unused)
{
    size_t peak[2];
    (void)unused;
    for (int retain = 0; retain < 2; retain++) {
        tl_tape *t = tl_tape_new(NULL);
        for (int round = 0; round < 3; round++) {
            tl_tensor x = tl_zeros(t, TL_F32, TL_DIMS(10000)), y = x;
            tl_require_grad(t, x);
            for (int i = 0; i < 50; i++)
                y = tl_square(t, y);
            tl_backward(t, tl_sum(t, y, TL_ALL, false), .retain = retain);
        }
        peak[retain] = tl_memory_stats(t).tape.peak;
        tl_free(t);
    }
    if (peak[0] > peak[1] / 2)
        fail_msg("peak %zu freeing, %zu retaining", peak[0], peak[1]);
}

static void gradients_take_the_same_room_every_step(void **unused)
{
    run r = begin(32, 16);
    tl_memory_stats_t first = {0};
    (void)unused;
    for (int i = 0; i < 20; i++) {
        step(&r);
        tl_memory_stats_t now = tl_memory_stats(r.t).gradients;
        if (i == 0)
            first = now;
        assert_int_equal(now.used, first.used);
        assert_int_equal(now.blocks, first.blocks);
        assert_int_equal(now.peak, first.peak);
    }
    assert_true(first.used >= (size_t)tl_model_parameters(r.m) * 4);
    assert_true(first.used <= (size_t)tl_model_parameters(r.m) * 4 *
                                  3); /* tied and folded ones have more than one use or f64 */
    end(&r);
}

const struct CMUnitTest tl_tests_memory[] = {
    cmocka_unit_test(the_system_is_asked_for_nothing),
    cmocka_unit_test(ten_thousand_steps_leak_nothing),
    cmocka_unit_test(tapes_and_models_leak_nothing),
    cmocka_unit_test(graphs_leak_nothing),
    cmocka_unit_test(backward_gives_back_as_it_goes),
    cmocka_unit_test(retaining_costs_what_it_says),
    cmocka_unit_test(gradients_take_the_same_room_every_step),
};
const size_t tl_tests_memory_count = sizeof tl_tests_memory / sizeof tl_tests_memory[0];
