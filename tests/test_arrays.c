/* arrays.h: files that numpy wrote, and the digit files' format, and tables, are read as what they
 * say, by element; what is wrong with a file is said with numbers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fenv.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tensor/storage.h"
#include "tensor/files/arrays.h"
#include "tensor/files/file.h"
#include "tests/support/comma.h"
#include "tests/support/skip.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_arrays[];
extern const size_t tl_tests_arrays_count;

#define CORPUS TL_ROOT "/tests/corpus/"

static tl_arrays *opened(const char *name, tl_arrays_options o)
{
    char path[1024];
    tl_arrays *f;
    tl_err err = {.status = TL_OK};
    snprintf(path, sizeof path, CORPUS "%s", name);
    if (tl_arrays_open_with(&f, path, &err, o) != TL_OK)
        fail_msg("%s", err.message);
    assert_null(strstr(err.message, "/"));
    return f;
}

/* The one array of a file: dtype, dims and elements. */
static void holds(const char *name, tl_arrays_options o, tl_dtype dtype, tl_shape shape,
                  const double *want)
{
    char text[TL_SHAPE_TEXT];
    tl_arrays *f = opened(name, o);
    tl_array a = tl_arrays_at(f, 0);
    tl_shape got = tl_array_shape(&a);
    assert_int_equal(tl_arrays_count(f), 1);
    assert_string_equal(tl_arrays_name(f, 0), "");
    if (a.dtype != dtype || !tl_shape_equal(&got, &shape) || a.data == NULL)
        fail_msg("%s: %s %s", name, tl_dtype_name(a.dtype), tl_shape_text(text, &got));
    for (int64_t i = 0; i < tl_array_count(&a); i++)
        if (tl_array_get(&a, i) != want[i] && !(isnan(want[i]) && isnan(tl_array_get(&a, i))))
            fail_msg("%s: element %d is %g, not %g", name, (int)i, tl_array_get(&a, i), want[i]);
    tl_arrays_close(f);
}

#define NUMBERS(...) ((const double[]){__VA_ARGS__})
static const double quarters[] = {-0.5, -0.25, 0, 0.25, 0.5, 0.75};

static void files_are_read_as_what_they_say(void **unused)
{
    const tl_arrays_options as_is = {.map = false}, f32 = {.as = TL_F32}, mapped = {.map = true};
    double count[24];
    (void)unused;
    for (int i = 0; i < 24; i++)
        count[i] = i;
    holds("f4.npy", as_is, TL_F32, TL_DIMS(2, 3), quarters);
    holds("f4.npy", mapped, TL_F32, TL_DIMS(2, 3), quarters);
    holds("f8_columns.npy", as_is, TL_F64, TL_DIMS(2, 3), quarters);
    holds("f8_columns.npy", mapped, TL_F64, TL_DIMS(2, 3), quarters);
    holds("f2.npy", as_is, TL_F16, TL_DIMS(2, 3), quarters);
    holds("f2.npy", f32, TL_F32, TL_DIMS(2, 3), quarters);
    holds("i2.npy", as_is, TL_I64, TL_DIMS(2, 3), NUMBERS(-3000, -2000, -1000, 0, 1000, 2000));
    holds("i2.npy", f32, TL_F32, TL_DIMS(2, 3), NUMBERS(-3000, -2000, -1000, 0, 1000, 2000));
    holds("bool.npy", as_is, TL_BOOL, TL_DIMS(2, 3), NUMBERS(0, 1, 0, 1, 0, 1));
    holds("scalar.npy", as_is, TL_F64, TL_SCALAR, NUMBERS(2.5));
    holds("none.npy", as_is, TL_I64, TL_DIMS(0, 3), NULL);
    holds("pictures.idx", as_is, TL_I64, TL_DIMS(2, 3, 4), count);
    holds("pictures.idx", f32, TL_F32, TL_DIMS(2, 3, 4), count);
    holds("steps.idx", mapped, TL_F32, TL_DIMS(4), NUMBERS(0, 0.5, -1, 1e10));
    holds("plain.csv", as_is, TL_F64, TL_DIMS(3, 1), NUMBERS(1, 2, -3));
    holds("table.csv", as_is, TL_F64, TL_DIMS(3, 3),
          NUMBERS(1, -2.5, 1e3, 0.5, (double)NAN, -(double)INFINITY, 0.1, 1e-320, 7));
    tl_arrays *f = opened("u8.npy", as_is);
    tl_array a = tl_arrays_at(f, 0);
    for (int64_t i = 0; i < 6; i++)
        assert_int_equal(((int64_t *)a.data)[i], (INT64_C(1) << 62) + i);
    tl_arrays_close(f);
}

/* Whole numbers of 1 to 8 bytes in both byte orders, aligned as numpy aligns them, and every type
 * of an IDX file. */
static void whole_numbers_of_every_size_are_read(void **unused)
{
    static const struct {
        int type, size;
        int64_t second;
    } idx[] = {{8, 1, 200}, {9, 1, -2}, {11, 2, -300}, {12, 4, -70000}, {14, 8, -2}};
    (void)unused;
    for (int i = 0; i < 16; i++) {
        const int size = 1 << (i & 3), big = i >> 2 & 1, is_signed = i >> 3 & 1;
        const int64_t want[] = {1, is_signed ? -2 : (INT64_C(1) << (8 * size - 2)) + 1, 100};
        unsigned char b[128 + 3 * 8] = "\x93NUMPY\1\0\x76";
        memset(b + 10, ' ', 118);
        int n = snprintf((char *)b + 10, 100,
                         "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (3,), }",
                         big ? '>' : '<', is_signed ? 'i' : 'u', size);
        b[10 + n] = ' ';
        for (int j = 0; j < 3 * size; j++)
            b[128 + j] = (unsigned char)((uint64_t)want[j / size] >>
                                         8 * (big ? size - 1 - j % size : j % size));
        tl_arrays *f;
        tl_err err = {.status = TL_OK};
        if (tl_arrays_open_memory(&f, b, 128 + 3 * (size_t)size, "it", &err,
                                  (tl_arrays_options){0}) != TL_OK)
            fail_msg("%s", err.message);
        tl_array a = tl_arrays_at(f, 0);
        assert_int_equal(a.dtype, TL_I64);
        for (int j = 0; j < 3; j++)
            if (((const int64_t *)a.data)[j] != want[j])
                fail_msg("%.60s: element %d", (const char *)b + 10, j);
        tl_arrays_close(f);
    }
    for (size_t i = 0; i < sizeof idx / sizeof *idx; i++) {
        unsigned char b[8 + 2 * 8] = {0, 0, (unsigned char)idx[i].type, 1, 0, 0, 0, 2};
        const int size = idx[i].size;
        if (idx[i].type == 14) /* -2.0 */
            b[16] = 0xc0;
        else
            for (int j = 0; j < size; j++)
                b[8 + size + j] = (unsigned char)((uint64_t)idx[i].second >> 8 * (size - 1 - j));
        tl_arrays *f;
        tl_err err = {.status = TL_OK};
        if (tl_arrays_open_memory(&f, b, 8 + 2 * (size_t)size, "it", &err,
                                  (tl_arrays_options){0}) != TL_OK)
            fail_msg("%s", err.message);
        tl_array a = tl_arrays_at(f, 0);
        assert_int_equal(a.dtype, idx[i].type == 14 ? TL_F64 : TL_I64);
        assert_true(tl_array_get(&a, 0) == 0 && tl_array_get(&a, 1) == (double)idx[i].second);
        tl_arrays_close(f);
    }
}

static void members_of_an_archive(void **unused)
{
    (void)unused;
    tl_arrays *f = opened("three.npz", (tl_arrays_options){.map = true});
    assert_int_equal(tl_arrays_count(f), 3);
    assert_string_equal(tl_arrays_name(f, 0), "pictures");
    assert_int_equal(tl_arrays_find(f, "labels"), 1);
    assert_int_equal(tl_arrays_find(f, "label"), -1);
    assert_int_equal(tl_arrays_find(f, NULL), -1);
    tl_array pictures = tl_arrays_at(f, 0), labels = tl_arrays_at(f, 1), x = tl_arrays_at(f, 2);
    assert_int_equal(tl_array_count(&pictures), 24);
    assert_int_equal((int)tl_array_get(&pictures, 23), 23);
    assert_true(labels.dtype == TL_I64 && tl_array_get(&labels, 1) == 9);
    assert_true(x.dtype == TL_F64 && tl_array_get(&x, 1) == -0.5);
    assert_null(tl_arrays_at(f, 3).data);
    assert_null(tl_arrays_at(f, -1).data);
    assert_string_equal(tl_arrays_name(f, 3), "");
    assert_int_equal(tl_arrays_count(NULL), 0);
    tl_arrays_close(f);
}

/* As savez_compressed writes it: deflated members, one stored, one without elements. */
static void deflated_members(void **unused)
{
    static const double columns[] = {0, 2, 4, 1, 3, 5}, x[] = {0, 1, 2, 3, 4};
    (void)unused;
    for (int map = 0; map < 2; map++) {
        tl_arrays *f = opened("compressed.npz", (tl_arrays_options){.map = map});
        tl_array a = tl_arrays_at(f, 0), b = tl_arrays_at(f, 1), c = tl_arrays_at(f, 2);
        assert_int_equal(tl_arrays_count(f), 4);
        assert_string_equal(tl_arrays_name(f, 0), "ramp");
        assert_true(a.dtype == TL_F32 && a.ndim == 2 && a.dim[0] == 64 && a.dim[1] == 64);
        for (int i = 0; i < 4096; i++)
            assert_true(tl_array_get(&a, i) == i % 64 / 64.0);
        assert_true(b.dtype == TL_I64 && b.ndim == 2 && b.dim[0] == 2);
        for (int i = 0; i < 6; i++)
            assert_true(tl_array_get(&b, i) == columns[i]);
        assert_true(c.dtype == TL_F64 && tl_array_get(&c, 1) == -0.5);
        assert_int_equal(tl_arrays_at(f, 3).dim[0], 0);
        tl_arrays_close(f);
        f = opened("deflated.npz", (tl_arrays_options){.map = map, .as = TL_F16});
        a = tl_arrays_at(f, 0);
        assert_true(a.dtype == TL_F16 && tl_array_count(&a) == 5);
        for (int i = 0; i < 5; i++)
            assert_true(tl_array_get(&a, i) == x[i]);
        tl_arrays_close(f);
    }
}

static void a_table_is_read(void)
{
    static const double want[] = {1,   -2.5,   1e3, 0.5, (double)NAN, -(double)INFINITY,
                                  0.1, 1e-320, 7};
    holds("table.csv", (tl_arrays_options){.map = false}, TL_F64, TL_DIMS(3, 3), want);
}

static void a_table_is_read_alike_where_sums_round_up(void **unused)
{
    (void)unused;
    fesetround(FE_UPWARD);
    a_table_is_read();
    assert_int_equal(fegetround(), FE_UPWARD);
}

static void a_table_is_read_alike_where_a_comma_is_the_decimal_point(void **unused)
{
    (void)unused;
    if (!comma_enter())
        TL_SKIP();
    a_table_is_read();
    assert_true(comma_leave());
}

/* Whether the test has passed or not. */
static int as_before(void **unused)
{
    (void)unused;
    fesetround(FE_TONEAREST);
    setlocale(LC_NUMERIC, "C");
    return 0;
}

/* Numbers are rounded to the dtype asked for once: here, to f64 and from there is to another. */
static void numbers_are_rounded_once(void **unused)
{
    static const struct {
        tl_dtype as;
        const char *text;
        double want;
    } table[] = {
        {TL_F32, "16777217.000000000000001", 16777218}, /* 2^24 + 1: a tie, and a bit more */
        {TL_F32, "16777217", 16777216},
        {TL_F32, "16777218.999999999999999", 16777218},
        {TL_F32, "16777219", 16777220},
        {TL_F32, "-16777217.000000000000001", -16777218},
        {TL_F32, "1.00000005960464477539062501", 0x1.000002p0},
        {TL_F32, "340282356779733661637539395458142568447.9", (double)FLT_MAX}, /* 8.0: infinity */
        {TL_F32, "1e400", (double)INFINITY},
        {TL_F32, "1e-400", 0},
        {TL_F32, "0.1", (double)0.1f},
        {TL_F32, "7.006492321624085354618e-46", 0}, /* half of the least, and more */
        {TL_F32, "7.0064923216240853546186479164495807e-46", 0x1p-149},
        {TL_F16, "2049.0000000000000000001", 2050},
        {TL_F16, "2049", 2048},
        {TL_F16, "65519.999999999999999", 65504},
        {TL_F16, "0.1", 0x1.998p-4},
        {TL_BF16, "257.00000000000000000001", 258},
        {TL_BF16, "257", 256},
        {TL_F64, "0.1", 0.1},
    };
    static const struct {
        tl_dtype as;
        int64_t x;
        double want;
    } whole[] = {
        {TL_F32, (INT64_C(1) << 60) + (INT64_C(1) << 36) + 1, 0x1.000002p60},
        {TL_F32, (INT64_C(1) << 60) + (INT64_C(1) << 36), 0x1p60},
        {TL_F32, -(INT64_C(1) << 60) - (INT64_C(1) << 36) - 1, -0x1.000002p60},
        {TL_F32, (INT64_C(1) << 60) + 3 * (INT64_C(1) << 36) - 1, 0x1.000002p60},
        {TL_F32, INT64_MAX, 0x1p63},
        {TL_F32, INT64_MIN, -0x1p63},
        {TL_F32, (1 << 24) + 1, 1 << 24},
        {TL_BF16, (INT64_C(1) << 60) + (INT64_C(1) << 52) + 1, 0x1.02p60},
        {TL_BF16, 257, 256},
        {TL_F16, 2049, 2048},
        {TL_F64, (INT64_C(1) << 53) + 1, 0x1p53},
        {TL_F64, (INT64_C(1) << 53) + 3, 0x1.0000000000002p53},
    };
    static const int mode[] = {FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO};
    (void)unused;
    for (size_t i = 0; i < 3 * (sizeof table / sizeof *table + sizeof whole / sizeof *whole); i++) {
        char b[256] = "\x93NUMPY\1\0", text[64];
        const size_t k = i / 3, n = sizeof table / sizeof *table;
        const char *dict = "{'descr': '>i8', 'fortran_order': False, 'shape': ()}";
        size_t bytes = k < n ? strlen(table[k].text) : 10 + strlen(dict) + 8;
        const double want = k < n ? table[k].want : whole[k - n].want;
        snprintf(text, sizeof text, "%" PRId64, k < n ? 0 : whole[k - n].x);
        b[8] = (char)strlen(dict);
        memcpy(b + 10, dict, strlen(dict));
        for (int j = 0; j < 8 && k >= n; j++)
            b[bytes - 8 + (size_t)j] = (char)((uint64_t)whole[k - n].x >> (56 - 8 * j));
        tl_arrays *f;
        tl_err err = {.status = TL_OK};
        fesetround(mode[i % 3]);
        tl_status s = tl_arrays_open_memory(&f, k < n ? table[k].text : b, bytes, "it", &err,
                                            (tl_arrays_options){.as = k < n ? table[k].as
                                                                            : whole[k - n].as});
        fesetround(FE_TONEAREST);
        tl_array a = tl_arrays_at(f, 0);
        if (s != TL_OK || tl_array_get(&a, 0) != want)
            fail_msg("%s as %s is %a, not %a %s", k < n ? table[k].text : text,
                     tl_dtype_name(a.dtype), s == TL_OK ? tl_array_get(&a, 0) : 0, want,
                     err.message);
        tl_arrays_close(f);
    }
}

/* ---- what is refused ---- */

static void refuses(const void *bytes, size_t n, tl_status s, const char *words)
{
    tl_arrays *f = (tl_arrays *)(uintptr_t)1;
    tl_err err = {.status = TL_OK};
    (void)tl_alloc_peak(true);
    tl_status got = tl_arrays_open_memory(&f, bytes, n, "it", &err, (tl_arrays_options){0});
    if (got != s || f != NULL || strstr(err.message, words) == NULL)
        fail_msg("%s, but %s: '%s' was expected: %s", tl_status_name(s), tl_status_name(got), words,
                 err.message);
    assert_true(tl_alloc_peak(false) < 4096 + 16 * (int64_t)n);
}

static void refuses_text(const char *text, const char *words)
{
    refuses(text, strlen(text), TL_EFORMAT, words);
}

/* A version 1 header around a dict, and some bytes behind it. */
static void refuses_dict(const char *dict, size_t bytes, const char *words)
{
    unsigned char b[512] = "\x93NUMPY\1\0";
    size_t n = strlen(dict);
    b[8] = (unsigned char)n;
    memcpy(b + 10, dict, n);
    refuses(b, 10 + n + bytes, TL_EFORMAT, words);
}

static void bad_headers(void **unused)
{
    (void)unused;
#define DICT(descr, order, shape) \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape "}"
    refuses_dict(DICT("'<f4'", "False", "(2, 3)"), 23,
                 "[2, 3], with elements of 4 bytes, does not "
                 "take the 23");
    refuses_dict(DICT("'<f4'", "False", "(9223372036854775807,)"), 24, "at most 8 sizes");
    refuses_dict(DICT("'<f4'", "False", "(500000000000000000, 3)"), 24, "does not take the 24");
    refuses_dict(DICT("'<f4'", "False", "(1000000000000, )"), 24, "does not take the 24");
    refuses_dict(DICT("'<f4'", "False", "(1,1,1,1,1,1,1,1,1)"), 4, "at most 8 sizes");
    refuses_dict(DICT("'<f4'", "False", "(-1,)"), 4, "at most 8 sizes");
    refuses_dict(DICT("'<f4'", "Maybe", "(1,)"), 4, "True or False");
    refuses_dict(DICT("'|O'", "False", "(1,)"), 8, "byte 20 of the header, before ''|O'");
    refuses_dict(DICT("'<c8'", "False", "(1,)"), 8, "'<' or '>' with f8");
    refuses_dict(DICT("'|f4'", "False", "(1,)"), 4, "'|' with i1");
    refuses_dict(DICT("[('a', '<f4')]", "False", "(1,)"), 4, "'<' or '>' with f8");
    refuses_dict("{'descr': '<f4', 'descr': '<f4', 'shape': (1,)}", 4, "each once");
    refuses_dict(
        "{'descr': '<f4', 'shape': (1,)}", 4,
        "it: its array: byte 41 of the header, before its end: an end after three entries");
    refuses("\x93NUMPY\4\0\0\0", 10, TL_EFORMAT,
            "it: its array is not a .npy file of version 1 to 3: 10 bytes that begin with 0x93");
    refuses("\x93NUMPY\1\0\xff\xff{}", 12, TL_EFORMAT,
            "it: its array claims a header of 65535 bytes; the file has 12");
    refuses("\x93NUMPY\2\0\xff\xff\xff\xff{}", 14, TL_EFORMAT, "header of 4294967295 bytes");
    refuses("\0\0\x08\3\0\0\0\2\xff\xff\xff\xff\xff\xff\xff\xff", 16, TL_EFORMAT,
            "does not take the 0 that follow");
    refuses("\0\0\x0a\1\0\0\0\1", 8, TL_EFORMAT, "byte 2, the type, is 10");
    refuses("\0\0\x08\x09\0\0\0\1", 8, TL_EFORMAT, "byte 3 says 9 dims; at most 8");
    refuses("\0\0", 2, TL_EFORMAT, "byte 2");
    refuses("\x1f\x8b\x08", 3, TL_EFORMAT, "gunzip");
    refuses("PK\3\4", 4, TL_EFORMAT, "no directory");
}

static void bad_elements(void **unused)
{
    char b[256] = "\x93NUMPY\1\0";
    const char *dict[] = {DICT("'|b1'", "False", "(2,)"), DICT("'>u8'", "False", "(1,)")};
    (void)unused;
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(dict[i]), at = 10 + n;
        b[8] = (char)n;
        memcpy(b + 10, dict[i], n);
        memcpy(b + at, i == 0 ? "\1\2" : "\x80\0\0\0\0\0\0\0", i == 0 ? 2 : 8);
        refuses(b, at + (i == 0 ? 2 : 8), TL_EFORMAT,
                i == 0 ? "element 1 is 2; a bool is 0 or 1" : "element 0 is 9223372036854775808");
    }
}

static void bad_tables(void **unused)
{
    (void)unused;
    refuses_text("", "is empty");
    refuses_text("a,b\n", "no rows of numbers");
    refuses_text("1,2\n3\n", "row 2 has fewer fields than the 2");
    refuses_text("1,2\n3,4,5\n", "row 2 has more fields than the 2");
    refuses_text("a,b\n1,2\n3,x\n", "row 3, column 2: 'x' is not a number");
    refuses_text("1,2\n3,\n", "row 2, column 2: an empty field is not a number");
    refuses_text("5.1,,0\n1,2,1\n", "row 1, column 2: an empty field is not a number");
    refuses_text("5.1,NA\n1,2\n", "row 1, column 2: 'NA' is not a number (names have no numbers");
    refuses_text("1,2\n\n3,4\n", "row 2 has fewer");
    refuses_text("1\n0x10\n", "row 2, column 1: '0x10' is not a number");
    refuses_text("1\n0x1\n", "row 2, column 1: '0x1' is not a number");
    refuses_text("1\nnan(1)\n", "row 2, column 1: 'nan(1)' is not a number");
    refuses_text("1\n1e\n", "'1e' is not a number");
    refuses_text("1\n1 2\n", "'1 2' is not a number");
    refuses_text("1,2\r3,4\n", "byte 3, in row 1, is a CR without LF");
    refuses_text("1,2\n3,4\r", "byte 7, in row 2, is a CR without LF");
    refuses("1\n2\0003\n", 6, TL_EFORMAT, "byte 3, in row 2, is a NUL");
    refuses_text("a,b\r1,2\r", "byte 3, in row 1, is a CR without LF");
    refuses_text("\"a,b\n1,2\n", "no rows of numbers");
    refuses_text("1,2\n\"3\",4\n", "row 2, column 1: '\"3\"' is not a number");
}

/* The numbers 1, 2, 3, ... in rows. */
static void reads_text(const char *text, int64_t rows, int64_t columns)
{
    tl_arrays *f;
    tl_err err = {.status = TL_OK};
    if (tl_arrays_open_memory(&f, text, strlen(text), "it", &err, (tl_arrays_options){0}) != TL_OK)
        fail_msg("%s", err.message);
    const tl_array a = tl_arrays_at(f, 0);
    assert_true(a.ndim == 2 && a.dim[0] == rows && a.dim[1] == columns);
    for (int64_t i = 0; i < rows * columns; i++)
        assert_true(tl_array_get(&a, i) == (double)(i + 1));
    tl_arrays_close(f);
}

static void names_may_hold_anything(void **unused)
{
    (void)unused;
    reads_text("PKG,PKH\n1,2\n3,4\n", 2, 2);
    reads_text("\"a,b\",\"c \"\"d\"\" e\", f\n1,2,3\n", 1, 3);
    reads_text("\"two\nlines\",b\r\n1,2\r\n3,4\r\n", 2, 2);
}

static void bad_options_and_places(void **unused)
{
    tl_arrays *f;
    tl_err err = {.status = TL_OK};
    (void)unused;
    assert_int_equal(tl_arrays_open(&f, CORPUS "f4.npy", &err, .as = TL_I64), TL_EDTYPE);
    assert_non_null(strstr(err.message, "I64"));
    tl_err_clear(&err);
    assert_int_equal(tl_arrays_open(&f, CORPUS "nowhere", &err), TL_EIO);
    tl_err_clear(&err);
    assert_int_equal(tl_arrays_open(&f, CORPUS "table.csv", &err, .map = true), TL_EFORMAT);
    assert_non_null(strstr(err.message, "only .npy, .npz and IDX are mapped"));
}

/* Cut anywhere, a file is refused; of an archive, so it is with any byte of a member changed. */
static void damage_is_noticed(void **unused)
{
    static const char *const name[] = {"f4.npy",       "f8_columns.npy", "bool.npy",
                                       "pictures.idx", "steps.idx",      "three.npz"};
    (void)unused;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        char path[1024], *b;
        size_t n;
        snprintf(path, sizeof path, CORPUS "%s", name[i]);
        assert_int_equal(tl_file_read(path, 4096, &b, &n, NULL), TL_OK);
        for (size_t cut = 0; cut < n; cut++) {
            tl_arrays *f = NULL;
            tl_err err = {.status = TL_OK};
            if (tl_arrays_open_memory(&f, b, cut, name[i], &err, (tl_arrays_options){0}) == TL_OK)
                fail_msg("%s: its first %zu of %zu bytes are read", name[i], cut, n);
            assert_non_null(strstr(err.message, name[i]));
        }
        size_t member = 0;
        while (strstr(name[i], ".npz") != NULL && b[member] != '\x93')
            member++;
        for (size_t at = member; member > 0 && at < member + 128 + 24; at++) {
            tl_arrays *f = NULL;
            b[at] ^= 4;
            assert_int_equal(tl_arrays_open_memory(&f, b, n, "x", NULL, (tl_arrays_options){0}),
                             TL_EFORMAT);
            b[at] ^= 4;
        }
        tl_free_raw(b);
    }
}

/* What the directory claims of compressed.npz's first member, spoilt: refused, and no memory is
 * taken for a claim that does not come true. */
static void lies_about_deflated_members(void **unused)
{
    static const struct {
        int at, size; /* in the directory's entry */
        uint64_t value;
        const char *words;
        int64_t most; /* memory, less what it holds */
    } lie[] = {
        {24, 4, 16511, "inflate to 16512 of 16511", 1 << 16},
        {24, 4, 16513, "inflate to 16512 of 16513", 1 << 16},
        {24, 4, 1032 * 301, "inflate to 16512 of 310632", 1 << 16},
        {24, 4, 1032 * 302, "neither stored nor deflated: method 8", 4096},
        {24, 4, 0xfffffffe, "neither stored nor deflated: method 8", 4096},
        {24, 4, 0, "inflate to 1 of 0", 1 << 16},
        {20, 4, 300, "300 of its 300 bytes inflate", 1 << 16},
        {20, 4, 302, "301 of its 302 bytes inflate", 1 << 16},
        {20, 4, 0, "neither stored nor deflated", 4096},
        {20, 4, 1068, "claims 1068 bytes from byte", 4096},
        {20, 4, 1069, "claims 1069 bytes; others", 4096},
        {16, 4, 0, "CRC is", 1 << 16},
        {10, 2, 9, "method 9", 4096},
        {10, 2, 0, "neither stored nor deflated: method 0", 4096},
        {8, 2, 1, "flags 1", 4096},
    };
    unsigned char *b;
    size_t n, entry = 0;
    (void)unused;
    assert_int_equal(tl_file_read(CORPUS "compressed.npz", 4096, (char **)&b, &n, NULL), TL_OK);
    assert_int_equal(n, 1068);
    while (memcmp(b + entry, "PK\1\2", 4) != 0)
        entry++;
    for (size_t i = 0; i < sizeof lie / sizeof *lie; i++) {
        unsigned char was[8], *p = b + entry + lie[i].at;
        tl_arrays *f = NULL;
        tl_err err = {.status = TL_OK};
        memcpy(was, p, 8);
        for (int k = 0; k < lie[i].size; k++)
            p[k] = (unsigned char)(lie[i].value >> 8 * k);
        (void)tl_alloc_peak(true);
        tl_status s = tl_arrays_open_memory(&f, b, n, "it", &err, (tl_arrays_options){0});
        if (s != TL_EFORMAT || strstr(err.message, lie[i].words) == NULL)
            fail_msg("'%s' was expected: %s: %s", lie[i].words, tl_status_name(s), err.message);
        assert_in_range(tl_alloc_peak(false), 1, lie[i].most + 3 * 16512);
        memcpy(p, was, 8);
    }
    tl_free_raw(b);
}

/* A changed bit is noticed, or changes nothing; memory that runs out is said. */
static void deflated_members_spoilt_or_without_memory(void **unused)
{
    char *b;
    size_t n;
    tl_arrays *f;
    (void)unused;
    assert_int_equal(tl_file_read(CORPUS "deflated.npz", 4096, &b, &n, NULL), TL_OK);
    int same = 0, refused = 0;
    for (size_t bit = 8 * 30; bit < 8 * (30 + 5 + 20 + 82); bit++) {
        b[bit / 8] ^= (char)(1 << bit % 8);
        tl_status s = tl_arrays_open_memory(&f, b, n, "x", NULL, (tl_arrays_options){0});
        refused += s == TL_EFORMAT;
        for (int i = 0; s == TL_OK && i < 5; i++) {
            tl_array a = tl_arrays_at(f, 0);
            assert_true(tl_array_get(&a, i) == i);
            same += i == 0;
        }
        tl_arrays_close(f);
        b[bit / 8] ^= (char)(1 << bit % 8);
    }
    assert_true(refused > 500 && same + refused == 8 * (5 + 20 + 82));
    for (int64_t k = 1;; k++) {
        tl_err err = {.status = TL_OK};
        tl_alloc_fail_after(k);
        tl_status s = tl_arrays_open_memory(&f, b, n, "x", &err, (tl_arrays_options){0});
        tl_alloc_fail_after(0);
        if (s == TL_OK) {
            assert_true(k > 6); /* zlib's own among them */
            tl_arrays_close(f);
            break;
        }
        assert_true(s == TL_ENOMEM && f == NULL && strstr(err.message, "no memory") != NULL);
    }
    tl_free_raw(b);
}

/* ---- written ---- */

static temp_dir dir;

static int begin_dir(void **unused)
{
    (void)unused;
    return temp_dir_make(&dir) ? 0 : -1;
}

static int end_dir(void **unused)
{
    (void)unused;
    temp_dir_remove(&dir);
    return 0;
}

/* The files of the corpus whose bytes are little-endian are numpy's own. */
static void what_numpy_wrote_is_written_alike(void **unused)
{
    static const char *const name[] = {"f2.npy",   "f4.npy",     "i2.npy", "none.npy",
                                       "bool.npy", "scalar.npy", "u8.npy", "f8_columns.npy"};
    int same = 0;
    char path[1024], corpus[1024], *b[2];
    size_t n[2];
    tl_err err = {.status = TL_OK};
    (void)unused;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        tl_arrays *f = opened(name[i], (tl_arrays_options){.map = false}), *g = NULL;
        tl_array a = tl_arrays_at(f, 0), back;
        temp_dir_file(path, &dir, name[i]);
        if (tl_arrays_save(path, NULL, &a, 1, &err) != TL_OK ||
            tl_arrays_open(&g, path, &err) != TL_OK)
            fail_msg("%s", err.message);
        back = tl_arrays_at(g, 0);
        assert_true(back.dtype == a.dtype && tl_array_same_shape(&a, &back));
        assert_memory_equal(back.data, a.data, (size_t)tl_array_count(&a) * tl_dtype_size(a.dtype));
        snprintf(corpus, sizeof corpus, CORPUS "%s", name[i]);
        assert_int_equal(tl_file_read(path, 4096, &b[0], &n[0], NULL), TL_OK);
        assert_int_equal(tl_file_read(corpus, 4096, &b[1], &n[1], NULL), TL_OK);
        same += n[0] == n[1] && memcmp(b[0], b[1], n[0]) == 0;
        tl_free_raw(b[0]);
        tl_free_raw(b[1]);
        tl_arrays_close(f);
        tl_arrays_close(g);
    }
    assert_int_equal(same, 5);
}

/* Any dtype, any strides, up to as many dims as there are, several to a file. */
static void arrays_come_back(void **unused)
{
    enum { N = 3000 };
    static double room[N];
    static const tl_dtype dtypes[] = {TL_F64, TL_F32, TL_F16, TL_BF16, TL_I64, TL_BOOL};
    const tl_shape shapes[] = {TL_SCALAR,        TL_DIMS(0),
                               TL_DIMS(7),       TL_DIMS(50, 60),
                               TL_DIMS(3, 0, 2), TL_DIMS(2500),
                               TL_DIMS(4, 5, 6), TL_DIMS(1, 2, 1, 2, 1, 2, 1, 3)};
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    const char *const names[SHAPES] = {"scalar", "none", "a/b.c", "матрица",
                                       "x y",    "long", "'",     "8"};
    char path[1024];
    tl_err err = {.status = TL_OK};
    (void)unused;
    for (int d = 0; d < 6; d++)
        for (int turned = 0; turned < 2; turned++) {
            tl_array a[SHAPES];
            tl_arrays *f = NULL;
            for (int i = 0; i < SHAPES; i++) {
                a[i] = tl_array_make(dtypes[d], &shapes[i], room);
                for (int k = 0; turned && k < a[i].ndim; k++) /* as Fortran has them */
                    a[i].stride[k] = k == 0 ? 1 : a[i].stride[k - 1] * a[i].dim[k - 1];
            }
            tl_array all = tl_array_make(dtypes[d], &TL_DIMS(N), room);
            for (int64_t i = 0; i < N; i++)
                tl_array_put(&all, i, dtypes[d] == TL_BOOL ? i % 3 == 0 : (double)(i % 251 - 100));
            temp_dir_file(path, &dir, "all.npz");
            for (int one = -1; one < SHAPES; one++) { /* first all, then each as .npy */
                int n = one < 0 ? SHAPES : 1;
                const tl_array *from = one < 0 ? a : &a[one];
                if (tl_arrays_save(path, one < 0 ? names : NULL, from, n, &err) != TL_OK ||
                    tl_arrays_open(&f, path, &err, .map = one % 2) != TL_OK)
                    fail_msg("%s", err.message);
                assert_int_equal(tl_arrays_count(f), n);
                for (int i = 0; i < n; i++) {
                    tl_array got = tl_arrays_at(f, i);
                    assert_string_equal(tl_arrays_name(f, i), one < 0 ? names[i] : "");
                    assert_int_equal(got.dtype, dtypes[d] == TL_BF16 ? TL_F32 : dtypes[d]);
                    assert_true(tl_array_same_shape(&got, &from[i]));
                    for (int64_t k = 0; k < tl_array_count(&got); k++)
                        assert_true(tl_array_get(&got, k) == tl_array_get(&from[i], k));
                }
                tl_arrays_close(f);
            }
        }
}

static void what_no_file_can_hold_is_refused(void **unused)
{
    static const double x[3] = {1, 2, 3};
    tl_array a[2] = {tl_array_make(TL_F64, &TL_DIMS(3), (void *)(uintptr_t)x),
                     tl_array_make(TL_F64, &TL_DIMS(3), NULL)};
    char path[1024], *before, *after;
    const char *const good[] = {"a", "b"}, *const twice[] = {"a", "a"}, *const empty[] = {"", "b"},
                      *const none[] = {NULL, "b"}, *const odd[] = {"a\xff", "b"};
    const struct {
        const char *const *names;
        int n;
        tl_status s;
        const char *says;
    } bad[] = {{good, 2, TL_EUSAGE, "array 1 has 3 elements, but no data"},
               {NULL, 2, TL_EUSAGE, "2 arrays without names"},
               {good, 0, TL_EUSAGE, "0 arrays with names"},
               {twice, 2, TL_ENAME, "arrays 0 and 1 are both named 'a'"},
               {empty, 1, TL_ENAME, "array 0 needs a name"},
               {none, 1, TL_ENAME, "array 0 needs a name"},
               {odd, 1, TL_ENAME, "array 0 needs a name"}};
    size_t n[2];
    (void)unused;
    temp_dir_file(path, &dir, "old.npz");
    assert_int_equal(tl_arrays_save(path, good, a, 1, NULL), TL_OK);
    assert_int_equal(tl_file_read(path, 4096, &before, &n[0], NULL), TL_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tl_err err = {.status = TL_OK};
        if (bad[i].names == twice)
            a[1] = a[0];
        tl_status s = tl_arrays_save(path, bad[i].names, a, bad[i].n, &err);
        if (s != bad[i].s || strstr(err.message, bad[i].says) == NULL)
            fail_msg("%zu: %s: %s", i, tl_status_name(s), err.message);
        assert_int_equal(tl_file_read(path, 4096, &after, &n[1], NULL), TL_OK);
        assert_true(n[0] == n[1] && memcmp(before, after, n[0]) == 0);
        tl_free_raw(after);
    }
    tl_free_raw(before);
}

/* Two names alike are found wherever they stand, among so many that comparing each with each would
 * take minutes. */
static void names_alike_are_found_among_many(void **unused)
{
    enum { MANY = 1 << 18 };
    static double one[1];
    static const size_t at[][2] = {{0, MANY - 1}, {0, 1}, {MANY / 2, MANY / 2 + 1}, {5, 70000}};
    char path[1024], said[64], (*text)[16] = calloc(MANY, sizeof *text);
    const char **names = calloc(MANY, sizeof *names);
    tl_array *a = calloc(MANY, sizeof *a);
    (void)unused;
    assert_true(text != NULL && names != NULL && a != NULL);
    for (int i = 0; i < MANY; i++) {
        snprintf(text[i], sizeof *text, "n%d", (int)((uint32_t)i * 40503 % MANY));
        names[i] = text[i];
        a[i] = tl_array_make(TL_F64, &TL_DIMS(1), one);
    }
    temp_dir_file(path, &dir, "many.npz");
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        tl_err err = {.status = TL_OK};
        const char *had = names[at[i][1]];
        names[at[i][1]] = names[at[i][0]];
        snprintf(said, sizeof said, "arrays %zu and %zu are both named", at[i][0], at[i][1]);
        assert_int_equal(tl_arrays_save(path, names, a, MANY, &err), TL_ENAME);
        assert_non_null(strstr(err.message, said));
        names[at[i][1]] = had;
    }
    assert_int_equal(tl_arrays_save(path, names, a, MANY, NULL), TL_OK);
    tl_arrays *f;
    tl_err err = {.status = TL_OK};
    assert_int_equal(tl_arrays_open(&f, path, &err), TL_OK);
    assert_int_equal(tl_arrays_count(f), MANY);
    tl_arrays_close(f);
    free(text);
    free(names);
    free(a);
}

/* Of a file that another program has written so. */
static void names_alike_are_refused(void **unused)
{
    char path[1024], *b, *p;
    size_t n;
    const tl_array a = tl_array_make(TL_F64, &TL_DIMS(1), (double[]){1});
    (void)unused;
    temp_dir_file(path, &dir, "twice.npz");
    assert_int_equal(tl_arrays_save(path, (const char *[]){"x", "aa", "ab"}, (tl_array[]){a, a, a},
                                    3, NULL),
                     TL_OK);
    assert_int_equal(tl_file_read(path, 4096, &b, &n, NULL), TL_OK);
    for (size_t i = 0; i + 6 < n; i++)
        if ((p = memcmp(b + i, "ab.npy", 6) == 0 ? b + i : NULL) != NULL)
            p[1] = 'a';
    refuses(b, n, TL_EFORMAT, "arrays 1 and 2 are both named 'aa'");
    free(b);
}

/* The sizes of Zip64 that a directory's entry points to are within its extra field. */
static void numbers_beyond_their_field_are_refused(void **unused)
{
    static const unsigned char length[] = {8, 23, 200};
    char path[1024], *b;
    size_t n, entry = 0;
    const tl_array a = tl_array_make(TL_F64, &TL_DIMS(1), (double[]){1});
    (void)unused;
    temp_dir_file(path, &dir, "wide.npz");
    assert_int_equal(tl_arrays_save(path, (const char *[]){"x"}, &a, 1, NULL), TL_OK);
    assert_int_equal(tl_file_read(path, 4096, &b, &n, NULL), TL_OK);
    while (memcmp(b + entry, "PK\1\2", 4) != 0)
        entry++;
    char *field = b + entry + 46 + strlen("x.npy");
    assert_true(field[0] == 1 && field[2] == 24);
    for (size_t i = 0; i < sizeof length; i++) {
        field[2] = (char)length[i];
        refuses(b, n, TL_EFORMAT, "the entry at byte");
    }
    tl_free_raw(b);
}

/* .most: what is inflated, and what smaller elements become, is counted before it is asked for. */
static void memory_can_be_limited(void **unused)
{
    static const struct {
        const char *name;
        uint64_t most; /* with which it opens, and with one less it does not; 0: any do */
        const char *words;
    } of[] = {{"i2.npy", 6 * 8, "its array takes 48 bytes of memory; .most allows 47, of which 0"},
              {"f4.npy", 0, ""}, /* lies in the file's own bytes */
              {"plain.csv", 3 * 8, "its table takes 24 bytes of memory; .most allows 23"},
              {"compressed.npz", 16512 + 64 + 128, "'none.npy' takes 128 bytes"}};
    (void)unused;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char path[1024];
        tl_arrays *f;
        tl_err err = {.status = TL_OK};
        snprintf(path, sizeof path, CORPUS "%s", of[i].name);
        const uint64_t most = of[i].most == 0 ? 1 : of[i].most;
        assert_int_equal(tl_arrays_open(&f, path, NULL, .most = most), TL_OK);
        tl_arrays_close(f);
        if (of[i].most == 0)
            continue;
        assert_int_equal(tl_arrays_open(&f, path, &err, .most = most - 1), TL_EFORMAT);
        assert_null(f);
        if (strstr(err.message, of[i].words) == NULL)
            fail_msg("%s", err.message);
        (void)tl_alloc_peak(true);
        assert_int_equal(tl_arrays_open(&f, path, NULL, .most = 1), TL_EFORMAT);
        assert_in_range(tl_alloc_peak(false), 1, 8192);
    }
}

const struct CMUnitTest tl_tests_arrays[] = {
    cmocka_unit_test(memory_can_be_limited),
    cmocka_unit_test(deflated_members),
    cmocka_unit_test(numbers_are_rounded_once),
    cmocka_unit_test(lies_about_deflated_members),
    cmocka_unit_test(deflated_members_spoilt_or_without_memory),
    cmocka_unit_test(names_may_hold_anything),
    cmocka_unit_test(files_are_read_as_what_they_say),
    cmocka_unit_test(whole_numbers_of_every_size_are_read),
    cmocka_unit_test(members_of_an_archive),
    cmocka_unit_test_teardown(a_table_is_read_alike_where_sums_round_up, as_before),
    cmocka_unit_test_teardown(a_table_is_read_alike_where_a_comma_is_the_decimal_point, as_before),
    cmocka_unit_test(bad_headers),
    cmocka_unit_test(bad_elements),
    cmocka_unit_test(bad_tables),
    cmocka_unit_test(bad_options_and_places),
    cmocka_unit_test(damage_is_noticed),
    cmocka_unit_test_setup_teardown(what_numpy_wrote_is_written_alike, begin_dir, end_dir),
    cmocka_unit_test_setup_teardown(arrays_come_back, begin_dir, end_dir),
    cmocka_unit_test_setup_teardown(names_alike_are_refused, begin_dir, end_dir),
    cmocka_unit_test_setup_teardown(numbers_beyond_their_field_are_refused, begin_dir, end_dir),
    cmocka_unit_test_setup_teardown(what_no_file_can_hold_is_refused, begin_dir, end_dir),
    cmocka_unit_test_setup_teardown(names_alike_are_found_among_many, begin_dir, end_dir),
};
const size_t tl_tests_arrays_count = sizeof tl_tests_arrays / sizeof *tl_tests_arrays;
