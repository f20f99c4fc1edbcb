/* Arrays: sizes that overflow, broadcasting, collapsing, reshape views and copies - each against a
 * naive walk over indices. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/array.h"
#include "tensor/operands.h"
#include "tensor/storage.h"

extern const struct CMUnitTest tl_tests_array[];
extern const size_t tl_tests_array_count;

static uint64_t state;

static uint64_t random64(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint64_t z = (state ^ state >> 31) * 0x9e3779b97f4a7c15u;
    return z ^ z >> 29;
}

static int64_t below(int64_t n) { return (int64_t)(random64() % (uint64_t)n); }

/* TALLY_SEED=n repeats a run. */
static void seeded(void)
{
    const char *s = getenv("TALLY_SEED");
    state = s != NULL ? strtoull(s, NULL, 10) : 20240607;
    print_message("seed %llu\n", (unsigned long long)state);
}

/* The naive walk: element number `flat` in row-major order, found by counting up an index. */
static int64_t offset_of(const tl_array *a, int64_t flat)
{
    int64_t at[TL_MAX_DIMS] = {0}, off = 0;
    for (int64_t k = 0; k < flat; k++)
        for (int i = a->ndim - 1; i >= 0 && ++at[i] == a->dim[i]; i--)
            at[i] = 0;
    for (int i = 0; i < a->ndim; i++)
        off += at[i] * a->stride[i];
    return off;
}

/* ---- sizes ---- */

static void check_shape(tl_shape s, tl_dtype d, tl_status want, const char *word)
{
    tl_err e = {.status = TL_OK};
    tl_status got = tl_shape_check(&s, d, &e);
    if (got != want || (word != NULL && strstr(e.message, word) == NULL))
        fail_msg("%s wanted with '%s', got %s: %s", tl_status_name(want), word ? word : "",
                 tl_status_name(got), e.message);
    assert_int_equal(tl_shape_check(&s, d, NULL), want); /* and without a record */
}

static void sizes_are_checked(void **unused)
{
    (void)unused;
    const int64_t big = (int64_t)1 << 31, most = INT64_MAX;
    check_shape(TL_SCALAR, TL_F64, TL_OK, NULL);
    check_shape(TL_DIMS(0), TL_F32, TL_OK, NULL);
    check_shape(TL_DIMS(3, 0, 2), TL_I64, TL_OK, NULL);
    check_shape(TL_DIMS(1, 1, 1, 1, 1, 1, 1, 1), TL_BOOL, TL_OK, NULL);
    check_shape(TL_DIMS(most), TL_BOOL, TL_OK, NULL);
    check_shape(TL_DIMS(most), TL_F16, TL_ESHAPE, "9223372036854775807");
    check_shape(TL_DIMS(most / 8), TL_F64, TL_OK, NULL);
    check_shape(TL_DIMS(most / 8 + 1), TL_F64, TL_ESHAPE, "F64");
    check_shape(TL_DIMS(big, big), TL_BOOL, TL_OK, NULL);
    check_shape(TL_DIMS(big, big), TL_F16, TL_ESHAPE, "[2147483648, 2147483648]");
    check_shape(TL_DIMS(big, big, 0), TL_F64, TL_ESHAPE,
                "[2147483648, 2147483648, 0]"); /* strides would overflow all the same */
    check_shape(TL_DIMS(0, big, big, big), TL_F32, TL_ESHAPE, "64-bit");
    check_shape(TL_DIMS(4, -1), TL_F32, TL_ESHAPE, "dim 1 has size -1");
    check_shape(TL_DIMS(INT64_MIN), TL_F32, TL_ESHAPE, "-9223372036854775808");
    check_shape((tl_shape){9, {1}}, TL_F32, TL_ESHAPE, "9 dims");
    check_shape((tl_shape){-1, {1}}, TL_F32, TL_ESHAPE, "-1 dims");
    check_shape(TL_DIMS(2), TL_DTYPE_COUNT, TL_EDTYPE, "7 is not a dtype");
    check_shape(TL_DIMS(2), TL_DTYPE_DEFAULT, TL_EDTYPE, "no dtype is given");
    check_shape(TL_DIMS(2), (tl_dtype)-1, TL_EDTYPE, "-1 is not a dtype");
}

static void dtypes_have_names_and_sizes(void **unused)
{
    static const struct {
        tl_dtype d, compute;
        const char *name;
        size_t size;
        bool flt;
    } want[] = {{TL_F64, TL_F64, "F64", 8, true},  {TL_F32, TL_F32, "F32", 4, true},
                {TL_F16, TL_F32, "F16", 2, true},  {TL_BF16, TL_F32, "BF16", 2, true},
                {TL_I64, TL_I64, "I64", 8, false}, {TL_BOOL, TL_BOOL, "BOOL", 1, false}};
    (void)unused;
    assert_int_equal(TL_DTYPE_COUNT, 7);
    for (size_t i = 0; i < 6; i++) {
        assert_string_equal(tl_dtype_name(want[i].d), want[i].name);
        assert_int_equal(tl_dtype_size(want[i].d), want[i].size);
        assert_int_equal(tl_dtype_is_float(want[i].d), want[i].flt);
        assert_int_equal(tl_dtype_compute(want[i].d), want[i].compute);
    }
    assert_string_equal(tl_dtype_name((tl_dtype)77), "?");
    assert_int_equal(tl_dtype_size((tl_dtype)-3), 0);
}

static void text_of_shapes(void **unused)
{
    char buf[TL_SHAPE_TEXT];
    const int64_t m = INT64_MIN;
    (void)unused;
    tl_shape s = TL_SCALAR;
    assert_string_equal(tl_shape_text(buf, &s), "[]");
    s = TL_DIMS(7);
    assert_string_equal(tl_shape_text(buf, &s), "[7]");
    s = TL_DIMS(2, 0, 3);
    assert_string_equal(tl_shape_text(buf, &s), "[2, 0, 3]");
    s = TL_DIMS(m, m, m, m, m, m, m, m); /* the longest text there is */
    assert_int_equal(strlen(tl_shape_text(buf, &s)), 8 * 20 + 7 * 2 + 2);
}

/* ---- broadcasting ---- */

static void broadcast_case(tl_shape a, tl_shape b, tl_shape want)
{
    tl_array x = tl_array_make(TL_F32, &a, NULL), y = tl_array_make(TL_F32, &b, NULL);
    for (int swap = 0; swap < 2; swap++) {
        tl_shape got = {0};
        assert_int_equal(tl_shape_broadcast(&got, swap ? &y : &x, swap ? &x : &y, NULL), TL_OK);
        assert_true(tl_shape_equal(&got, &want));
    }
}

static void broadcasting(void **unused)
{
    (void)unused;
    broadcast_case(TL_SCALAR, TL_SCALAR, TL_SCALAR);
    broadcast_case(TL_SCALAR, TL_DIMS(2, 3), TL_DIMS(2, 3));
    broadcast_case(TL_DIMS(3), TL_DIMS(2, 3), TL_DIMS(2, 3));
    broadcast_case(TL_DIMS(2, 1), TL_DIMS(1, 3), TL_DIMS(2, 3));
    broadcast_case(TL_DIMS(4, 1, 3), TL_DIMS(5, 1), TL_DIMS(4, 5, 3));
    broadcast_case(TL_DIMS(0), TL_DIMS(1), TL_DIMS(0)); /* 1 meets 0: 0 */
    broadcast_case(TL_DIMS(2, 0), TL_DIMS(1, 1, 1), TL_DIMS(1, 2, 0));
    tl_shape a = TL_DIMS(2, 3), b = TL_DIMS(2, 4), z = TL_DIMS(0), two = TL_DIMS(2), out;
    tl_array x = tl_array_make(TL_F32, &a, NULL), y = tl_array_make(TL_F32, &b, NULL);
    tl_err e = {.status = TL_OK};
    assert_int_equal(tl_shape_broadcast(&out, &x, &y, &e), TL_ESHAPE);
    assert_non_null(strstr(e.message, "[2, 3] and [2, 4]"));
    assert_non_null(strstr(e.message, "3 and 4"));
    x = tl_array_make(TL_F32, &z, NULL);
    y = tl_array_make(TL_F32, &two, NULL);
    assert_int_equal(tl_shape_broadcast(&out, &x, &y, NULL), TL_ESHAPE);
}

static void expanding_repeats_elements(void **unused)
{
    float v[3] = {1, 2, 3};
    tl_shape s = TL_DIMS(3, 1), to = TL_DIMS(2, 3, 4);
    (void)unused;
    tl_array a = tl_array_make(TL_F32, &s, v), big = tl_array_expand(&a, &to);
    for (int64_t i = 0; i < 24; i++)
        assert_true(*(float *)tl_array_at(&big, i) == v[i / 4 % 3]);
    assert_true(tl_array_contiguous(&a));
    assert_false(tl_array_contiguous(&big));
}

/* ---- random strided arrays over a buffer of numbered elements ---- */

enum { ROOM = 1 << 16 };
static int64_t number[ROOM];

/* Up to 5 dims of sizes 0..4 (0 rarely), strides positive, negative, zero or with gaps; data inside
 * the buffer. */
static tl_array random_array(bool repeats)
{
    tl_array a = {.dtype = TL_I64, .ndim = (int)below(6)};
    int order[5] = {0, 1, 2, 3, 4};
    int64_t step = 1, low = 0;
    for (int i = a.ndim - 1; i > 0; i--) {
        int j = below(2) ? i : (int)below(i + 1), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    for (int i = 0; i < a.ndim; i++)
        a.dim[i] = below(20) == 0 ? 0 : 1 + below(4);
    for (int k = a.ndim - 1; k >= 0; k--) {
        int i = order[k];
        step *= below(4) == 0 ? 1 + below(3) : 1; /* sometimes a gap */
        a.stride[i] = repeats && below(6) == 0 ? 0 : below(5) == 0 ? -step : step;
        if (a.stride[i] < 0 && a.dim[i] > 0)
            low += (a.dim[i] - 1) * a.stride[i];
        step *= a.dim[i] > 1 ? a.dim[i] : 1;
    }
    a.data = number + (ROOM / 2 - low) % ROOM;
    return a;
}

static int64_t element(const tl_array *a, int64_t flat)
{
    return *(const int64_t *)tl_array_at(a, flat);
}

static void number_all(void)
{
    for (int64_t i = 0; i < ROOM; i++)
        number[i] = i;
}

static void elements_by_index(void **unused)
{
    (void)unused;
    seeded();
    number_all();
    for (int round = 0; round < 400; round++) {
        tl_array a = random_array(true);
        for (int64_t i = 0; i < tl_array_count(&a); i++)
            assert_ptr_equal(tl_array_at(&a, i), (int64_t *)a.data + offset_of(&a, i));
    }
}

static void collapse_keeps_order(void **unused)
{
    (void)unused;
    seeded();
    number_all();
    for (int round = 0; round < 1000; round++) {
        tl_array v[2] = {random_array(true), {0}}, was[2];
        v[1] = v[0];
        for (int i = 0; i < v[1].ndim; i++) /* another layout of the same shape */
            v[1].stride[i] = below(2) ? v[0].stride[i] : below(7);
        memcpy(was, v, sizeof v);
        tl_array_collapse(v, 2);
        assert_int_equal(v[0].ndim, v[1].ndim);
        assert_true(v[0].ndim <= was[0].ndim);
        assert_int_equal(tl_array_count(&v[0]), tl_array_count(&was[0]));
        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; i < tl_array_count(&v[0]); i++)
                assert_ptr_equal(tl_array_at(&v[k], i),
                                 (int64_t *)was[k].data + offset_of(&was[k], i));
    }
    tl_shape s = TL_DIMS(2, 1, 3, 4); /* contiguous: one dim; all ones: none */
    tl_array c = tl_array_make(TL_I64, &s, number);
    tl_array_collapse(&c, 1);
    assert_int_equal(c.ndim, 1);
    assert_int_equal(c.dim[0], 24);
    s = TL_DIMS(1, 1);
    c = tl_array_make(TL_I64, &s, number);
    tl_array_collapse(&c, 1);
    assert_int_equal(c.ndim, 0);
}

/* ---- reshape ---- */

/* A shape of the same count. */
static tl_shape random_split(int64_t count)
{
    tl_shape s = {0};
    while (s.ndim < 5 && (count > 1 || below(3) == 0)) {
        int64_t d = 1 + below(4);
        while (d > 1 && count % d != 0)
            d--;
        s.dim[s.ndim++] = d;
        count /= d;
    }
    if (count != 1)
        s.dim[s.ndim++] = count;
    return s;
}

/* Whether any strides at all give shape s the elements of a in order: tried stride by stride. */
static bool view_exists(const tl_array *a, const tl_shape *s)
{
    tl_array v = {.dtype = a->dtype, .ndim = s->ndim, .data = a->data};
    int64_t inner = 1;
    memcpy(v.dim, s->dim, sizeof v.dim);
    for (int i = s->ndim - 1; i >= 0; i--) { /* the step to the next index of dim i is forced */
        v.stride[i] = v.dim[i] > 1 ? offset_of(a, inner) - offset_of(a, 0) : 0;
        inner *= v.dim[i];
    }
    for (int64_t k = 0; k < tl_array_count(a); k++)
        if (offset_of(&v, k) != offset_of(a, k))
            return false;
    return true;
}

static void reshape_views(void **unused)
{
    int views = 0, refused = 0;
    (void)unused;
    seeded();
    number_all();
    for (int round = 0; round < 4000; round++) {
        tl_array a = random_array(true), out;
        int64_t n = tl_array_count(&a);
        tl_shape s = n == 0 ? TL_DIMS(3, 0, 2) : random_split(n);
        bool got = tl_array_reshape_view(&a, &s, &out);
        if (n > 0 && got != view_exists(&a, &s))
            fail_msg("round %d: a view %s, but reshape says %d", round,
                     got ? "does not exist" : "exists", got);
        if (!got) {
            refused++;
            continue;
        }
        views++;
        tl_shape have = tl_array_shape(&out);
        assert_true(tl_shape_equal(&have, &s));
        for (int64_t i = 0; i < n; i++)
            assert_int_equal(element(&out, i), element(&a, i));
    }
    assert_true(views > 500 && refused > 100);
}

/* ---- copies ---- */

static const tl_dtype copied[] = {TL_F64, TL_F32, TL_F16, TL_BOOL};

/* Every element lands in its place, and no byte beside them changes. */
static void copy_case(tl_array src, tl_array dst, tl_dtype d)
{
    static unsigned char from[ROOM * 8], to[ROOM * 8], want[ROOM * 8];
    size_t size = tl_dtype_size(d);
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)random64();
    memset(to, 0xa5, sizeof to);
    memcpy(want, to, sizeof to);
    src.dtype = dst.dtype = d;
    src.data = from + (size_t)((int64_t *)src.data - number) * size;
    dst.data = to + (size_t)((int64_t *)dst.data - number) * size;
    for (int64_t i = 0; i < tl_array_count(&src); i++)
        memcpy(want + ((unsigned char *)dst.data - to) + offset_of(&dst, i) * (int64_t)size,
               (unsigned char *)src.data + offset_of(&src, i) * (int64_t)size, size);
    tl_array_copy(&dst, &src);
    assert_memory_equal(to, want, sizeof to);
}

static void copies(void **unused)
{
    (void)unused;
    seeded();
    number_all();
    for (int round = 0; round < 160; round++) {
        tl_array dst = random_array(false), src = dst;
        int64_t step = 1;
        for (int i = 0; i < src.ndim;
             i++) { /* the same shape, laid out otherwise; may repeat elements */
            src.stride[i] = below(5) == 0 ? 0 : step;
            step *= src.dim[i] > 1 ? src.dim[i] : 1;
        }
        copy_case(below(2) ? src : dst, dst, copied[round % 4]);
    }
}

static void contiguity(void **unused)
{
    tl_shape s = TL_DIMS(2, 3), one = TL_DIMS(1, 3), none = TL_DIMS(2, 0);
    (void)unused;
    tl_array a = tl_array_make(TL_F32, &s, NULL);
    assert_int_equal(a.stride[0], 3);
    assert_int_equal(a.stride[1], 1);
    assert_true(tl_array_contiguous(&a));
    a.stride[0] = 4;
    assert_false(tl_array_contiguous(&a));
    a = tl_array_make(TL_F32, &one, NULL);
    a.stride[0] = 99; /* the stride of a size 1 decides nothing */
    assert_true(tl_array_contiguous(&a));
    a = tl_array_make(TL_F32, &none, NULL);
    a.stride[0] = -5;
    assert_true(tl_array_contiguous(&a)); /* nor do strides of nothing */
    assert_int_equal(tl_array_count(&a), 0);
    tl_shape scalar = TL_SCALAR;
    a = tl_array_make(TL_F32, &scalar, NULL);
    assert_int_equal(tl_array_count(&a), 1);
    assert_true(tl_array_contiguous(&a));
}

/* Bits count, but for those of a NaN. */
static void where_arrays_differ(void **unused)
{
    const uint32_t one = 0x3f800000, nan = 0x7fc00000, other = 0xffc00001, zero = 0,
                   minus = 0x80000000;
    const struct {
        uint32_t a, b;
        int64_t at;
    } floats[] = {{one, one, -1}, {nan, other, -1}, {nan, one, 1}, {one, nan, 1}, {zero, minus, 1}};
    (void)unused;
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        uint32_t x[2] = {one, floats[i].a}, y[2] = {one, floats[i].b};
        const tl_array a = tl_array_make(TL_F32, &TL_DIMS(2), x),
                       b = tl_array_make(TL_F32, &TL_DIMS(2), y);
        assert_int_equal(tl_arrays_differ(&a, &b), floats[i].at);
    }
    int64_t x[2] = {1, 2}, y[2] = {1, 3};
    const tl_array a = tl_array_make(TL_I64, &TL_DIMS(2), x),
                   b = tl_array_make(TL_I64, &TL_DIMS(2), y),
                   f = tl_array_make(TL_F64, &TL_DIMS(2), x);
    assert_int_equal(tl_arrays_differ(&a, &b), 1);
    assert_int_equal(tl_arrays_differ(&a, &f), 0);
    assert_int_equal(tl_arrays_differ(&a, &a), -1);
}

const struct CMUnitTest tl_tests_array[] = {
    cmocka_unit_test(where_arrays_differ),
    cmocka_unit_test(sizes_are_checked),
    cmocka_unit_test(dtypes_have_names_and_sizes),
    cmocka_unit_test(text_of_shapes),
    cmocka_unit_test(broadcasting),
    cmocka_unit_test(expanding_repeats_elements),
    cmocka_unit_test(elements_by_index),
    cmocka_unit_test(collapse_keeps_order),
    cmocka_unit_test(reshape_views),
    cmocka_unit_test(copies),
    cmocka_unit_test(contiguity),
};
const size_t tl_tests_array_count = sizeof tl_tests_array / sizeof tl_tests_array[0];
