/* Arenas: alignment, counts, used and peak, what jemalloc holds, and the hook that makes
 * allocations fail. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tensor/storage.h"

extern const struct CMUnitTest tl_tests_arena[];
extern const size_t tl_tests_arena_count;

#ifndef TL_JEMALLOC
#define TL_JEMALLOC 1
#endif

/* Refusing what is too large is part of what is tested; AddressSanitizer would end the program
 * there. */
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifdef SANITIZED
/* Its runtime looks for it by name. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1:max_allocation_size_mb=8192";
}
#endif

static const size_t sizes[] = {1, 7, 63, 64, 65, 255, 4096, 14336, 14337, 65536, 1048577, 5000000};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static void blocks_are_aligned_and_apart(void **unused)
{
    tl_arena *a = tl_arena_new();
    tl_storage *s[SIZES];
    (void)unused;
    assert_non_null(a);
    for (size_t i = 0; i < SIZES; i++) {
        s[i] = tl_storage_new(a, sizes[i], false);
        assert_non_null(s[i]);
        assert_int_equal((uintptr_t)s[i]->data % 64, 0);
        assert_int_equal(s[i]->bytes, sizes[i]);
        assert_int_equal(s[i]->refs, 1);
        assert_int_equal(s[i]->version, 0);
        assert_ptr_equal(s[i]->arena, a);
        memset(s[i]->data, (int)i + 1, sizes[i]);
    }
    for (size_t i = 0; i < SIZES; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            if (((unsigned char *)s[i]->data)[k] != i + 1)
                fail_msg("block %zu was written by another", i);
    for (size_t i = 0; i < SIZES; i++)
        tl_storage_release(s[i]);
    tl_arena_free(a);
}

static void zeroed_means_zero(void **unused)
{
    tl_arena *a = tl_arena_new();
    (void)unused;
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < SIZES; i++) {
            tl_storage *s = tl_storage_new(a, sizes[i], true);
            assert_non_null(s);
            for (size_t k = 0; k < sizes[i]; k++)
                if (((unsigned char *)s->data)[k] != 0)
                    fail_msg("byte %zu of %zu is not zero", k, sizes[i]);
            memset(s->data, 0xff, sizes[i]); /* dirty for the next round */
            tl_storage_release(s);
        }
    tl_arena_free(a);
}

static void nothing_has_an_address(void **unused)
{
    tl_arena *a = tl_arena_new();
    tl_storage *s = tl_storage_new(a, 0, true);
    (void)unused;
    assert_non_null(s);
    assert_non_null(s->data);
    assert_int_equal(tl_arena_stats(a).used, 0);
    assert_int_equal(tl_arena_stats(a).blocks, 1);
    tl_storage_release(s);
    tl_storage_release(NULL);
    assert_int_equal(tl_arena_stats(a).blocks, 0);
    tl_arena_free(a);
    tl_arena_free(NULL);
}

static void references_are_counted(void **unused)
{
    tl_arena *a = tl_arena_new();
    tl_storage *s = tl_storage_new(a, 1000, false);
    (void)unused;
    tl_storage_retain(s);
    tl_storage_retain(s);
    for (int left = 2; left >= 0; left--) {
        assert_int_equal(tl_arena_stats(a).used, 1000);
        assert_int_equal(tl_arena_stats(a).blocks, 1);
        tl_storage_release(s);
    }
    assert_int_equal(tl_arena_stats(a).used, 0);
    assert_int_equal(tl_arena_stats(a).blocks, 0);
    tl_arena_free(a);
}

static void used_and_peak(void **unused)
{
    tl_arena *a = tl_arena_new(), *b = tl_arena_new();
    tl_storage *s[3];
    (void)unused;
    s[0] = tl_storage_new(a, 100, false);
    s[1] = tl_storage_new(a, 200, false);
    tl_storage_release(s[0]);
    s[2] = tl_storage_new(a, 50, false);
    tl_memory_stats_t m = tl_arena_stats(a);
    assert_int_equal(m.used, 250);
    assert_int_equal(m.peak, 300);
    assert_int_equal(m.blocks, 2);
    tl_storage_release(s[1]);
    tl_storage_release(s[2]);
    m = tl_arena_stats(a);
    assert_int_equal(m.used, 0);
    assert_int_equal(m.peak, 300);
    assert_int_equal(tl_arena_stats(b).peak, 0); /* each counts for itself */
    tl_arena_free(a);
    tl_arena_free(b);
}

/* What the figures of jemalloc say: the pages are there, and stay when the blocks go. */
static void jemalloc_holds_the_blocks(void **unused)
{
    tl_arena *a = tl_arena_new();
    tl_storage *s = tl_storage_new(a, 3 << 20, true);
    size_t mapped = tl_arena_stats(a).mapped;
    (void)unused;
    assert_non_null(s);
#if TL_JEMALLOC
    assert_true(mapped >= 3 << 20);
    tl_storage_release(s);
    assert_true(tl_arena_stats(a).mapped >= 3 << 20); /* kept for the next step */
    s = tl_storage_new(a, 3 << 20, false);
    assert_int_equal(tl_arena_stats(a).mapped, mapped);
#else
    assert_int_equal(mapped, 0);
#endif
    tl_storage_release(s);
    tl_arena_free(a);
}

/* Pages of addresses that the process holds; 0 where no system tells. */
static long address_pages(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f != NULL && fscanf(f, "%ld", &pages) != 1)
        pages = 0;
    if (f != NULL)
        fclose(f);
    return pages;
}

/* And leave no addresses behind. */
static void many_arenas_come_and_go(void **unused)
{
    long before = 0;
    (void)unused;
    for (int round = 0; round < 200; round++) {
        if (round == 10)
            before = address_pages();
        tl_arena *a = tl_arena_new();
        assert_non_null(a);
        tl_storage *s = tl_storage_new(a, 10000, true);
        assert_non_null(s);
        tl_storage_release(s);
        tl_arena_free(a);
    }
    assert_in_range(address_pages(), 0, before + 1000);
}

/* "Frees the arena and everything in it": a leak checker sees the rest. */
static void an_arena_ends_with_its_blocks(void **unused)
{
    tl_arena *a = tl_arena_new();
    (void)unused;
    for (size_t i = 0; i < SIZES; i++)
        assert_non_null(tl_storage_new(a, sizes[i], false));
    tl_arena_free(a);
}

static void sizes_beyond_reason_are_refused(void **unused)
{
    tl_arena *a = tl_arena_new();
    (void)unused;
    assert_null(tl_storage_new(a, SIZE_MAX, false));
    assert_null(tl_storage_new(a, SIZE_MAX / 2 + 1, false));
    assert_null(tl_storage_new(a, SIZE_MAX - 63, true));
    assert_int_equal(tl_arena_stats(a).used, 0);
    assert_int_equal(tl_arena_stats(a).blocks, 0);
    tl_arena_free(a);
}

/* ---- the fault hook ---- */

static bool nth_works(tl_arena *a, int which)
{
    void *p = NULL;
    tl_storage *s = NULL;
    switch (which % 4) {
    case 0: p = tl_calloc(2, 8); break;
    case 1: p = tl_realloc(NULL, 8); break;
    case 2: p = tl_strdup("name"); break;
    default: s = tl_storage_new(a, 8, false);
    }
    tl_free_raw(p);
    tl_storage_release(s);
    return p != NULL || s != NULL;
}

static void the_nth_allocation_fails(void **unused)
{
    tl_arena *a = tl_arena_new();
    (void)unused;
    for (int n = 1; n <= 12; n++) {
        tl_alloc_fail_after(n);
        for (int i = 1; i <= 20; i++)
            assert_int_equal(nth_works(a, i), i != n); /* once, and never again */
    }
    tl_alloc_fail_after(3);
    assert_true(nth_works(a, 0));
    tl_alloc_fail_after(0);
    for (int i = 0; i < 10; i++)
        assert_true(nth_works(a, i));
    assert_int_equal(tl_arena_stats(a).used, 0);
    tl_alloc_fail_after(1);
    assert_null(tl_arena_new());
    tl_alloc_fail_after(0);
    tl_arena_free(a);
}

static void a_failed_growth_keeps_the_old(void **unused)
{
    char *p = tl_strdup("still here"), *more;
    (void)unused;
    tl_alloc_fail_after(1);
    more = tl_realloc(p, 1 << 20);
    tl_alloc_fail_after(0);
    assert_null(more);
    assert_string_equal(p, "still here");
    tl_free_raw(p);
    p = tl_calloc(0, 0); /* nothing is an answer, NULL means failure */
    assert_non_null(p);
    tl_free_raw(p);
    assert_null(tl_calloc(SIZE_MAX / 2, 4));
}

const struct CMUnitTest tl_tests_arena[] = {
    cmocka_unit_test(blocks_are_aligned_and_apart),
    cmocka_unit_test(zeroed_means_zero),
    cmocka_unit_test(nothing_has_an_address),
    cmocka_unit_test(references_are_counted),
    cmocka_unit_test(used_and_peak),
    cmocka_unit_test(jemalloc_holds_the_blocks),
    cmocka_unit_test(many_arenas_come_and_go),
    cmocka_unit_test(an_arena_ends_with_its_blocks),
    cmocka_unit_test(sizes_beyond_reason_are_refused),
    cmocka_unit_test(the_nth_allocation_fails),
    cmocka_unit_test(a_failed_growth_keeps_the_old),
};
const size_t tl_tests_arena_count = sizeof tl_tests_arena / sizeof tl_tests_arena[0];
