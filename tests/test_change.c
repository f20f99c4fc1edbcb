/* Which strided arrays meet in memory, found by marking every byte; and what a storage remembers of
 * its changes. TL_TEST_SEED repeats a run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "tensor/storage.h"
#include "tests/support/expect.h"

extern const struct CMUnitTest tl_tests_change[];
extern const size_t tl_tests_change_count;

enum { ROOM = 4096 };

static int64_t below(uint64_t *seed, int64_t n)
{
    return (int64_t)(tl_case_random(seed) % (uint64_t)n);
}

/* A view of some dims around the middle of the room; strides of any sign, zero too. */
static tl_array some_view(uint64_t *seed, unsigned char *room)
{
    static const tl_dtype dtypes[] = {TL_F32, TL_F16, TL_BOOL, TL_F64};
    tl_array a = {.dtype = dtypes[below(seed, 4)], .ndim = (int)below(seed, 4)};
    for (int i = 0; i < a.ndim; i++) {
        a.dim[i] = below(seed, 9) == 0 ? 0 : 1 + below(seed, 4);
        a.stride[i] = below(seed, 2) ? below(seed, 9) - 4 : (int64_t)1 << below(seed, 5);
    }
    a.data = room + ROOM / 2 + below(seed, 200) - 100;
    return a;
}

/* A cut of a packed (4, 3, 2, 3): the ordinary case, where most do not meet. */
static tl_array some_cut(uint64_t *seed, unsigned char *room)
{
    static const int64_t dim[4] = {4, 3, 2, 3}, stride[4] = {18, 6, 3, 1};
    tl_array a = {.dtype = TL_F32, .ndim = 4, .data = room + ROOM / 2};
    for (int i = 0; i < 4; i++) {
        int64_t from = below(seed, dim[i]), step = 1 + below(seed, 2);
        a.data = (char *)a.data + 4 * from * stride[i];
        a.dim[i] = 1 + below(seed, (dim[i] - from + step - 1) / step);
        a.stride[i] = stride[i] * step;
    }
    return a;
}

static void mark(const tl_array *a, unsigned char *at, const unsigned char *room)
{
    for (int64_t i = 0; i < tl_array_count(a); i++)
        memset(at + ((unsigned char *)tl_array_at(a, i) - room), 1, tl_dtype_size(a->dtype));
}

static bool meet(const tl_array *a, const tl_array *b, const unsigned char *room)
{
    static unsigned char ma[ROOM], mb[ROOM];
    memset(ma, 0, ROOM);
    memset(mb, 0, ROOM);
    mark(a, ma, room);
    mark(b, mb, room);
    for (int i = 0; i < ROOM; i++)
        if (ma[i] && mb[i])
            return true;
    return false;
}

static void arrays_that_overlap(void **unused)
{
    static unsigned char room[ROOM];
    uint64_t seed = expect_seed();
    int found = 0, rounds = 40000;
    (void)unused;
    for (int i = 0; i < rounds; i++) {
        bool packed = i % 2;
        tl_array a = packed ? some_cut(&seed, room) : some_view(&seed, room),
                 b = packed ? some_cut(&seed, room) : some_view(&seed, room);
        bool want = meet(&a, &b, room);
        found += want;
        if (tl_arrays_overlap(&a, &b) != want || tl_arrays_overlap(&b, &a) != want)
            fail_msg("seed %llu, pair %d: they %s", (unsigned long long)expect_seed(), i,
                     want ? "meet" : "do not meet");
    }
    assert_in_range(found, rounds / 10, rounds - rounds / 10);
}

static void change(tl_storage *s, const tl_array *where, int line)
{
    tl_change *c = tl_calloc(1, sizeof *c);
    assert_non_null(c);
    c->where = *where;
    tl_storage_note(s, (tl_changer){"test", "here", line}, c);
}

/* The line of what changed it, 0: nothing. */
static int changed_at(const tl_storage *s, uint32_t since, const tl_array *a)
{
    tl_changer by;
    return tl_storage_changed(s, since, a, &by) ? by.line : 0;
}

static void changes_are_found_by_region_and_version(void **unused)
{
    tl_arena *arena = tl_arena_new();
    tl_storage *s = tl_storage_new(arena, 64, true);
    tl_shape four = {1, {4}};
    tl_array part[4];
    (void)unused;
    for (int i = 0; i < 4; i++)
        part[i] = tl_array_make(TL_F32, &four, (float *)s->data + 4 * i);
    change(s, &part[0], 1);
    change(s, &part[1], 2);
    assert_int_equal(s->version, 2);
    assert_int_equal(changed_at(s, 0, &part[0]), 1);
    assert_int_equal(changed_at(s, 0, &part[1]), 2);
    assert_int_equal(changed_at(s, 0, &part[2]), 0);
    assert_int_equal(changed_at(s, 1, &part[0]), 0); /* it had been there before */
    assert_int_equal(changed_at(s, 1, &part[1]), 2);
    assert_int_equal(changed_at(s, 2, &part[1]), 0);
    tl_storage_note(s, (tl_changer){"test", "here", 3}, NULL); /* nobody knows where: everywhere */
    for (int i = 0; i < 4; i++)
        assert_int_equal(changed_at(s, 2, &part[i]), 3);
    assert_int_equal(changed_at(s, 3, &part[0]), 0);
    change(s, &part[3], 4);
    assert_int_equal(changed_at(s, 3, &part[0]), 0);
    assert_int_equal(changed_at(s, 3, &part[3]), 4);
    char text[TL_CHANGER_TEXT];
    assert_string_equal(tl_changer_text(text, s->whole), "test (here:3)");
    assert_string_equal(tl_changer_text(text, (tl_changer){"tl_load", NULL, 0}), "tl_load");
    tl_storage_release(s);
    s = tl_storage_new(arena, 64, true); /* the same block again, without a past */
    assert_int_equal(s->version, 0);
    assert_int_equal(changed_at(s, 0, &part[0]), 0);
    tl_storage_release(s);
    tl_arena_free(arena);
}

const struct CMUnitTest tl_tests_change[] = {
    cmocka_unit_test(arrays_that_overlap),
    cmocka_unit_test(changes_are_found_by_region_and_version),
};
const size_t tl_tests_change_count = sizeof tl_tests_change / sizeof tl_tests_change[0];
