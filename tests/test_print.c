/* test_print.c: the text of arrays, compared whole. The expected forms are those
 * torch prints, without its "tensor(...)" around them. */
#define _GNU_SOURCE /* fopencookie */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tensor/print.h"
#include "tests/support/comma.h"
#include "tests/support/print_text.h"
#include "tests/support/skip.h"

static void expect_text(const tl_array *a, const char *want)
{
    static char buf[1 << 16];
    assert_int_equal(print_text(buf, sizeof buf, a, NULL), TL_OK);
    assert_string_equal(buf, want);
}

static void expect_floats(const double *x, int64_t n, const char *want)
{
    double copy[16];
    memcpy(copy, x, (size_t)n * sizeof *x);
    tl_array a = tl_array_make(TL_F64, &TL_DIMS(n), copy);
    expect_text(&a, want);
}
#define FLOATS(want, ...)                  \
    expect_floats((double[]){__VA_ARGS__}, \
                  (int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), want)

static void floats_take_the_form_that_suits_all(void **state)
{
    (void)state;
    FLOATS("[1.0000, 2.5000]\n[2] f64\n", 1, 2.5);
    FLOATS("[1., 2., 0.]\n[3] f64\n", 1, 2, 0);
    FLOATS("[ 1., -2., 10.]\n[3] f64\n", 1, -2, 10);
    FLOATS("[ 0.5000, -0.2500]\n[2] f64\n", 0.5, -0.25);
    FLOATS("[1.0000e+00, 2.0000e+03]\n[2] f64\n", 1, 2000);
    FLOATS("[   1., 1000.]\n[2] f64\n", 1, 1000);
    FLOATS("[0.0001]\n[1] f64\n", 1e-4);
    FLOATS("[2.0000e+08]\n[1] f64\n", 2e8);
    FLOATS("[100000000.]\n[1] f64\n", 1e8);
    FLOATS("[1.0000e-05, 2.0000e-05]\n[2] f64\n", 1e-5, 2e-5);
    FLOATS("[-1.0000e-308,  1.0000e+308]\n[2] f64\n", -1e-308, 1e308);
    FLOATS("[0.0000, 0.1235]\n[2] f64\n", 0, 0.123456);
    FLOATS("[0., 0.]\n[2] f64\n", 0, 0);
    FLOATS("[-0.]\n[1] f64\n", -0.0);
}

static void not_finite(void **state)
{
    (void)state;
    const double none = (double)NAN, endless = (double)INFINITY;
    FLOATS("[ nan,  inf, -inf]\n[3] f64\n", none, endless, -endless);
    FLOATS("[1.5000,    nan,   -inf]\n[3] f64\n", 1.5, -none, -endless);
    FLOATS("[ 1., nan]\n[2] f64\n", 1, none);
}

static void every_dtype(void **state)
{
    (void)state;
    float f[3] = {0.1f, -1.5f, 3};
    uint16_t h[2] = {0x3c00, 0xc100}, b[2] = {0x3f80, 0xc020};
    int64_t i[3] = {INT64_MIN, 0, 7};
    unsigned char t[3] = {1, 0, 1};
    tl_array a = tl_array_make(TL_F32, &TL_DIMS(3), f);
    expect_text(&a, "[ 0.1000, -1.5000,  3.0000]\n[3] f32\n");
    a = tl_array_make(TL_F16, &TL_DIMS(2), h);
    expect_text(&a, "[ 1.0000, -2.5000]\n[2] f16\n");
    a = tl_array_make(TL_BF16, &TL_DIMS(2), b);
    expect_text(&a, "[ 1.0000, -2.5000]\n[2] bf16\n");
    a = tl_array_make(TL_I64, &TL_DIMS(3), i);
    expect_text(&a,
                "[-9223372036854775808,                    0,                    7]\n[3] i64\n");
    a = tl_array_make(TL_BOOL, &TL_DIMS(3), t);
    expect_text(&a, "[ true, false,  true]\n[3] bool\n");
}

static void shapes(void **state)
{
    (void)state;
    float f[12] = {1, -2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    tl_array a = tl_array_make(TL_F32, &TL_SCALAR, f + 1);
    expect_text(&a, "-2.\n[] f32\n");
    a = tl_array_make(TL_F32, &TL_DIMS(0), NULL);
    expect_text(&a, "[]\n[0] f32\n");
    a = tl_array_make(TL_F32, &TL_DIMS(2, 0, 3), NULL);
    expect_text(&a, "[]\n[2, 0, 3] f32\n");
    a = tl_array_make(TL_F32, &TL_DIMS(2, 3), f);
    expect_text(&a, "[[ 1., -2.,  3.],\n [ 4.,  5.,  6.]]\n[2, 3] f32\n");
    a = tl_array_make(TL_F32, &TL_DIMS(2, 1, 2), f);
    expect_text(&a, "[[[ 1., -2.]],\n\n [[ 3.,  4.]]]\n[2, 1, 2] f32\n");
    a = tl_array_make(TL_F32, &TL_DIMS(3, 2), f); /* seen from the side */
    a.stride[0] = 1, a.stride[1] = 3;
    expect_text(&a, "[[ 1.,  4.],\n [-2.,  5.],\n [ 3.,  6.]]\n[3, 2] f32\n");
    a.stride[0] = a.stride[1] = 0;
    expect_text(&a, "[[1., 1.],\n [1., 1.],\n [1., 1.]]\n[3, 2] f32\n");
}

static void long_rows_break_at_80(void **state)
{
    (void)state;
    int64_t x[40];
    for (int i = 0; i < 40; i++)
        x[i] = 1000 + i;
    tl_array a = tl_array_make(TL_I64, &TL_DIMS(1, 40), x);
    expect_text(&a,
                "[[1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010, 1011, 1012,\n"
                "  1013, 1014, 1015, 1016, 1017, 1018, 1019, 1020, 1021, 1022, 1023, 1024, 1025,\n"
                "  1026, 1027, 1028, 1029, 1030, 1031, 1032, 1033, 1034, 1035, 1036, 1037, 1038,\n"
                "  1039]]\n[1, 40] i64\n");
    for (int i = 0; i < 20; i++) /* as in torch, a comma and a space count with each item */
        x[i] = 10;
    a = tl_array_make(TL_I64, &TL_DIMS(20), x);
    expect_text(&a, "[10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10,\n"
                    " 10]\n[20] i64\n");
}

static void large_arrays_show_their_edges(void **state)
{
    (void)state;
    int64_t *x = malloc(10000 * sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < 10000; i++)
        x[i] = i;
    tl_array a = tl_array_make(TL_I64, &TL_DIMS(1001), x);
    expect_text(&a, "[   0,    1,    2, ...,  998,  999, 1000]\n[1001] i64\n");
    a = tl_array_make(TL_I64, &TL_DIMS(100, 100), x);
    expect_text(&a, "[[   0,    1,    2, ...,   97,   98,   99],\n"
                    " [ 100,  101,  102, ...,  197,  198,  199],\n"
                    " [ 200,  201,  202, ...,  297,  298,  299],\n"
                    " ...,\n"
                    " [9700, 9701, 9702, ..., 9797, 9798, 9799],\n"
                    " [9800, 9801, 9802, ..., 9897, 9898, 9899],\n"
                    " [9900, 9901, 9902, ..., 9997, 9998, 9999]]\n[100, 100] i64\n");
    a = tl_array_make(TL_I64, &TL_DIMS(7, 143), x); /* of seven, one is left out */
    expect_text(&a, "[[   0,    1,    2, ...,  140,  141,  142],\n"
                    " [ 143,  144,  145, ...,  283,  284,  285],\n"
                    " [ 286,  287,  288, ...,  426,  427,  428],\n"
                    " ...,\n"
                    " [ 572,  573,  574, ...,  712,  713,  714],\n"
                    " [ 715,  716,  717, ...,  855,  856,  857],\n"
                    " [ 858,  859,  860, ...,  998,  999, 1000]]\n[7, 143] i64\n");
    a = tl_array_make(TL_I64, &TL_DIMS(2, 5000), x);
    expect_text(&a, "[[   0,    1,    2, ..., 4997, 4998, 4999],\n"
                    " [5000, 5001, 5002, ..., 9997, 9998, 9999]]\n[2, 5000] i64\n");
    a = tl_array_make(TL_I64, &TL_DIMS(1000), x);
    static char buf[1 << 14];
    assert_int_equal(print_text(buf, sizeof buf, &a, NULL), TL_OK);
    assert_null(strstr(buf, "..."));
    free(x);
}

static void one_element(void **state)
{
    static const double x[] = {0.1, 1.0 / 3, 1e300, -2};
    static const char *const want[] = {"0.1", "0.3333333333333333", "1e+300", "-2"};
    char buf[TL_ELEMENT_TEXT];
    (void)state;
    for (int i = 0; i < 4; i++)
        assert_string_equal(tl_element_text(buf, TL_F64, &x[i]), want[i]);
    const double none[2] = {(double)NAN, -(double)NAN};
    const float narrow[2] = {0.1f, NAN};
    for (int i = 0; i < 2; i++)
        assert_string_equal(tl_element_text(buf, TL_F64, &none[i]), "nan");
    assert_string_equal(tl_element_text(buf, TL_F32, &narrow[0]), "0.1");
    assert_string_equal(tl_element_text(buf, TL_F32, &narrow[1]), "nan");
    assert_string_equal(tl_element_text(buf, TL_I64, &(int64_t){INT64_MIN}),
                        "-9223372036854775808");
    assert_string_equal(tl_element_text(buf, TL_BOOL, &(unsigned char){1}), "1");
}

/* A file that takes all but its first bytes. */
static ssize_t all_but_the_first(void *taken, const char *bytes, size_t n)
{
    (void)bytes;
    return ++*(int *)taken == 1 ? 0 : (ssize_t)n;
}

static void a_hole_is_an_error(void **state)
{
    int writes = 0;
    float f[2] = {1, 2};
    tl_err err = {0};
    tl_array a = tl_array_make(TL_F32, &TL_DIMS(2), f);
    FILE *t = fopencookie(&writes, "w", (cookie_io_functions_t){.write = all_but_the_first});
    (void)state;
    assert_non_null(t);
    setvbuf(t, NULL, _IONBF, 0);
    assert_int_equal(tl_array_print(t, &a, &err), TL_EIO);
    assert_true(writes > 1);
    fclose(t);
}

static void files_and_errors(void **state)
{
    (void)state;
    float f[2] = {1, 2};
    char got[64] = {0};
    tl_array a = tl_array_make(TL_F32, &TL_DIMS(2), f);
    FILE *t = tmpfile();
    assert_non_null(t);
    assert_int_equal(tl_array_print(t, &a, NULL), TL_OK);
    rewind(t);
    assert_int_equal(fread(got, 1, sizeof got - 1, t), 17);
    fclose(t);
    assert_string_equal(got, "[1., 2.]\n[2] f32\n");
    tl_err err = {0};
    t = fopen("/dev/null", "r"); /* cannot be written */
    assert_non_null(t);
    assert_int_equal(tl_array_print(t, &a, &err), TL_EIO);
    fclose(t);
    a.data = NULL;
    err = (tl_err){0};
    assert_int_equal(print_text(got, sizeof got, &a, &err), TL_ETRACED);
    assert_non_null(strstr(err.message, "2 elements"));
    a.dtype = (tl_dtype)99;
    assert_int_equal(print_text(got, sizeof got, &a, NULL), TL_EDTYPE);
}

static void locale_does_not_show(void **state)
{
    (void)state;
    if (!comma_enter())
        TL_SKIP();
    FLOATS("[1.0000, 2.5000]\n[2] f64\n", 1, 2.5);
    assert_true(comma_leave());
}

const struct CMUnitTest tl_tests_print[] = {
    cmocka_unit_test(floats_take_the_form_that_suits_all),
    cmocka_unit_test(not_finite),
    cmocka_unit_test(every_dtype),
    cmocka_unit_test(shapes),
    cmocka_unit_test(long_rows_break_at_80),
    cmocka_unit_test(large_arrays_show_their_edges),
    cmocka_unit_test(one_element),
    cmocka_unit_test(files_and_errors),
    cmocka_unit_test(a_hole_is_an_error),
    cmocka_unit_test(locale_does_not_show),
};
const size_t tl_tests_print_count = sizeof tl_tests_print / sizeof *tl_tests_print;
