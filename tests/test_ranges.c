/* Ranges cut between threads: every index once, for any number of threads, inside one another,
 * inside regions of the user's, and from several threads at once. */
#define _GNU_SOURCE /* the cores that a process may run on */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "tensor/threads.h"

extern const struct CMUnitTest tl_tests_ranges[];
extern const size_t tl_tests_ranges_count;

static int restore(void **unused)
{
    (void)unused;
    tl_threads_set(0);
    return 0;
}

enum { MOST = 5000 };

typedef struct {
    _Atomic int visits[MOST];
    _Atomic int chunks, shortest, thread[256];
} visited;

static void visit(void *ctx, int64_t begin, int64_t end, int thread)
{
    visited *v = ctx;
    for (int64_t i = begin; i < end; i++)
        v->visits[i]++;
    v->chunks++;
    v->thread[thread]++;
    int n = (int)(end - begin), was = v->shortest;
    while (n < was && !atomic_compare_exchange_weak(&v->shortest, &was, n))
        ;
}

static void range_case(int64_t n, int64_t grain, int threads)
{
    static visited v;
    memset(&v, 0, sizeof v);
    v.shortest = MOST + 1;
    tl_threads_set(threads);
    int width = tl_parallel_width(n, grain);
    assert_true(width >= 1 && width <= threads);
    assert_true(width == 1 || width <= n);
    tl_parallel_for(n, grain, visit, &v);
    for (int64_t i = 0; i < MOST; i++)
        if (v.visits[i] != (i < n))
            fail_msg("n %d, grain %d, %d threads: index %d visited %d times", (int)n, (int)grain,
                     threads, (int)i, v.visits[i]);
    assert_true(v.chunks <= width && (v.chunks > 0) == (n > 0));
    for (int t = 0; t < 256; t++)
        assert_true(v.thread[t] <= (t < width)); /* at most one chunk a thread */
    if (v.chunks > 1)
        assert_true(v.shortest >= grain);
}

static void every_index_once(void **unused)
{
    static const int64_t n[] = {0, 1, 2, 3, 5, 7, 8, 16, 31, 64, 100, 999, MOST},
                         grain[] = {0, 1, 2, 3, 8, 100, 4999, 1 << 30};
    static const int threads[] = {1, 2, 3, 8, 61};
    (void)unused;
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (size_t g = 0; g < sizeof grain / sizeof *grain; g++)
            for (size_t t = 0; t < sizeof threads / sizeof *threads; t++)
                range_case(n[i], grain[g], threads[t]);
    static visited v;
    tl_parallel_for(-3, 1, visit, &v); /* an empty range, too */
    assert_int_equal(v.chunks, 0);
}

static void numbers_of_threads(void **unused)
{
    (void)unused;
    tl_threads_set(3);
    assert_int_equal(tl_threads(), 3);
    tl_threads_set(1000);
    assert_int_equal(tl_threads(), 256);
    tl_threads_set(0);
    int cores = tl_threads();
    assert_true(cores >= 1);
    tl_threads_set(-7);
    assert_int_equal(tl_threads(), cores);
#if defined(__linux__)
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    tl_threads_set(0);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(tl_threads(), 1); /* the cores that it may use */
#endif
}

typedef struct {
    visited *inner;
    _Atomic int wide;
} nest;

static void outer(void *ctx, int64_t begin, int64_t end, int thread)
{
    nest *n = ctx;
    (void)thread;
    if (tl_parallel_width(1000, 1) != 1)
        n->wide++;
    for (int64_t i = begin; i < end; i++)
        tl_parallel_for(1000, 1, visit, n->inner);
}

static void regions_inside_regions(void **unused)
{
    static visited v;
    nest n = {.inner = &v};
    (void)unused;
    tl_threads_set(3);
    v.shortest = MOST;
    tl_parallel_for(6, 1, outer, &n);
    assert_int_equal(n.wide, 0); /* the inner ones run alone */
    assert_int_equal(v.chunks, 6);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(v.visits[i], 6);
}

/* The function of an OpenMP runtime, in its place. */
static int in_region;
int omp_in_parallel(void);
int omp_in_parallel(void) { return in_region; }

static void regions_of_the_users(void **unused)
{
    (void)unused;
    tl_threads_set(3);
    assert_int_equal(tl_parallel_width(1000, 1), 3);
    in_region = 1;
    const int width = tl_parallel_width(1000, 1);
    in_region = 0;
#if defined(__ELF__)
    assert_int_equal(width, 1);
#else
    assert_int_equal(width, 3); /* not asked for there */
#endif
}

/* ---- ranges of several threads at once ---- */

typedef struct {
    unsigned seed;
    int bad;
} user;

static void count_up(void *ctx, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        ((int *)ctx)[i]++;
}

static void *use_ranges(void *ctx)
{
    user *u = ctx;
    static _Thread_local int at[MOST];
    for (int r = 0; r < 2000; r++) {
        int n = 1 + (int)((u->seed = u->seed * 1664525u + 1013904223u) >> 8) % MOST;
        memset(at, 0, sizeof at);
        tl_parallel_for(n, 1 + r % 50, count_up, at);
        for (int i = 0; i < MOST; i++)
            u->bad += at[i] != (i < n);
    }
    return NULL;
}

static void ranges_of_several_threads(void **unused)
{
    user u[4] = {{.seed = 1}, {.seed = 2}, {.seed = 3}, {.seed = 4}};
    pthread_t id[4];
    (void)unused;
    tl_threads_set(5);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&id[i], NULL, use_ranges, &u[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(id[i], NULL);
        assert_int_equal(u[i].bad, 0);
    }
}

const struct CMUnitTest tl_tests_ranges[] = {
    cmocka_unit_test_teardown(every_index_once, restore),
    cmocka_unit_test_teardown(numbers_of_threads, restore),
    cmocka_unit_test_teardown(regions_inside_regions, restore),
    cmocka_unit_test_teardown(regions_of_the_users, restore),
    cmocka_unit_test_teardown(ranges_of_several_threads, restore),
};
const size_t tl_tests_ranges_count = sizeof tl_tests_ranges / sizeof tl_tests_ranges[0];
