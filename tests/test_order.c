/* tl_reveal_order on functions whose order is known, on those that have none, and the text of
 * trees. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/kernels/half.h"
#include "tensor/reveal/reveal.h"
#include "tests/stated_order.h"

extern const struct CMUnitTest tl_tests_order[];
extern const size_t tl_tests_order_count;

/* ---- summing functions over f32 ---- */

static double up(void *ctx, int64_t n, const void *x)
{
    const float *f = x;
    float s = 0;
    (void)ctx;
    for (int64_t i = 0; i < n; i++)
        s += f[i];
    return (double)s;
}

static double down(void *ctx, int64_t n, const void *x)
{
    const float *f = x;
    float s = 0;
    (void)ctx;
    for (int64_t i = n; i-- > 0;)
        s += f[i];
    return (double)s;
}

static float halves(const float *x, int64_t n)
{
    return n == 1 ? x[0] : halves(x, n / 2) + halves(x + n / 2, n - n / 2);
}

static double pairwise(void *ctx, int64_t n, const void *x)
{
    (void)ctx;
    return (double)halves(x, n);
}

/* Blocks of *(int *)ctx, each a fold from +0, then folded. */
static double blocks(void *ctx, int64_t n, const void *x)
{
    const float *f = x;
    float s = 0;
    for (int64_t at = 0; at < n; at += *(int *)ctx) {
        float b = 0;
        for (int64_t i = at; i < n && i < at + *(int *)ctx; i++)
            b += f[i];
        s += b;
    }
    return (double)s;
}

static double in_f64(void *ctx, int64_t n, const void *x)
{
    const float *f = x;
    double s = 0;
    (void)ctx;
    for (int64_t i = 0; i < n; i++)
        s += (double)f[i];
    return s;
}

static double by_lanes(void *ctx, int64_t n, const void *x)
{
    const float *f = x;
    float lane[32] = {0};
    (void)ctx;
    for (int64_t i = 0; i < n; i++)
        lane[i % 32] += f[i];
    for (int w = 16; w >= 1; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] += lane[l + w];
    return (double)lane[0];
}

/* What a unit that adds several at once does: all are cut to a grid set by the largest, and rounded
 * once. */
static double cut_and_add(double a, const float *x, int64_t k)
{
    double top = fabs(a), sum;
    for (int64_t i = 0; i < k; i++)
        top = fmax(top, fabs((double)x[i]));
    double grid = top * 0x1p-24;
    sum = trunc(a / grid);
    for (int64_t i = 0; i < k; i++)
        sum += trunc((double)x[i] / grid);
    return top == 0 ? 0 : sum * grid;
}

/* acc and the next *(int *)ctx terms at once. */
static double fused(void *ctx, int64_t n, const void *x)
{
    double acc = 0;
    for (int64_t i = 0; i < n; i += *(int *)ctx)
        acc = cut_and_add(acc, (const float *)x + i, n - i < *(int *)ctx ? n - i : *(int *)ctx);
    return acc;
}

static void reads(tl_sum_fn *sum, void *ctx, int64_t n, const char *text)
{
    char got[512];
    tl_order *o;
    tl_err err = {0};
    if (tl_reveal_order(sum, ctx, TL_F32, n, &o, &err) != TL_OK)
        fail_msg("%s", err.message);
    assert_int_equal(tl_order_format(got, sizeof got, o, &err), TL_OK);
    assert_string_equal(got, text);
    tl_order_free(o);
}

static void test_known_orders(void **unused)
{
    (void)unused;
    int three = 3, four = 4, all = 100;
    reads(up, NULL, 1, "0");
    reads(up, NULL, 2, "(0 + 1)");
    reads(up, NULL, 3, "(0 + 1 + 2)");
    reads(up, NULL, 1000, "(0 + 1 + ... + 999)");
    reads(in_f64, NULL, 1000, "(0 + 1 + ... + 999)");
    reads(down, NULL, 4, "(3 + 2 + ... + 0)");
    reads(down, NULL, 1000, "(999 + 998 + ... + 0)");
    reads(pairwise, NULL, 4, "((0 + 1) + (2 + 3))");
    reads(pairwise, NULL, 5, "((0 + 1) + (4 + 3 + 2))");
    reads(blocks, &four, 10, "((0 + 1 + ... + 3) + (4 + 5 + ... + 7) + (8 + 9))");
    reads(blocks, &three, 15, "((0 + 1 + 2) + (3 + 4 + 5) + ... + (12 + 13 + 14))");
    reads(by_lanes, NULL, 33,
          "(((((0 + 32 + 16) + (8 + 24)) + ((4 + 20) + (12 + 28))) + (((2 + 18) + (10 + 26)) + ((6 "
          "+ 22) + (14 + 30)))) + "
          "((((1 + 17) + (9 + 25)) + ((5 + 21) + (13 + 29))) + (((3 + 19) + (11 + 27)) + ((7 + 23) "
          "+ (15 + 31)))))");
    reads(fused, &all, 4, "{0, 1, 2, 3}");
    reads(fused, &four, 10, "({0, 1, 2, 3} + {4, 5, 6, 7} + {8, 9})");
    reads(fused, &three, 4, "({0, 1, 2} + 3)");
}

/* Trees that were found are those that were stated, for all small n and around the lanes. */
static void test_against_stated(void **unused)
{
    (void)unused;
    static int64_t term[1100];
    for (int64_t i = 0; i < 1100; i++)
        term[i] = i;
    for (int64_t n = 1; n <= 1100; n += n < 70 ? 1 : 333) {
        tl_order *lanes, *chain, *stated = tl_order_new(n), *other = tl_order_new(n);
        stated_lanes(stated, term, n);
        stated_fold(other, -1, term, n);
        assert_int_equal(tl_reveal_order(by_lanes, NULL, TL_F32, n, &lanes, NULL), TL_OK);
        assert_int_equal(tl_reveal_order(up, NULL, TL_F32, n, &chain, NULL), TL_OK);
        assert_true(tl_order_same(lanes, stated));
        assert_true(tl_order_same(chain, other));
        assert_int_equal(tl_order_same(chain, stated), n < 3);
        tl_order_free(lanes);
        tl_order_free(chain);
        tl_order_free(stated);
        tl_order_free(other);
    }
}

/* The order of ((a + b) + c) ..., of additions of two given values each. */
static tl_order *order_of(int64_t n, const int64_t add[][2])
{
    tl_order *o = tl_order_new(n);
    for (int64_t i = 0; i < n - 1; i++)
        assert_int_equal(tl_order_add(o, add[i], 2), n + i);
    return o;
}

static void is_written(const tl_order *o, const char *text)
{
    char got[512];
    assert_int_equal(tl_order_format(got, sizeof got, o, NULL), TL_OK);
    assert_string_equal(got, text);
}

/* What is abbreviated is alike and evenly spaced; trees of one shape with other terms are others.
 */
static void test_what_is_alike(void **unused)
{
    (void)unused;
    tl_order *o = tl_order_new(6);
    stated_fold(o, -1, (int64_t[]){0, 1, 3, 4, 2, 5}, 6);
    is_written(o, "(0 + 1 + 3 + 4 + 2 + 5)");
    tl_order_free(o);
    /* Four pairs of a sum of three and one of two: in the third pair the three meet otherwise. */
    enum { EACH = 5, N = 4 * EACH };
    for (int other = 0; other < 2; other++) {
        o = tl_order_new(N);
        int64_t pair[4];
        for (int64_t i = 0; i < 4; i++) {
            const int64_t at = i * EACH, last = i == 2 && other ? at + 1 : at + 2,
                          second = 2 * at + 3 - last;
            int64_t three = tl_order_add(o, (int64_t[]){at, second}, 2),
                    two = tl_order_add(o, (int64_t[]){at + 3, at + 4}, 2);
            three = tl_order_add(o, (int64_t[]){three, last}, 2);
            pair[i] = tl_order_add(o, (int64_t[]){three, two}, 2);
        }
        stated_fold(o, -1, pair, 4);
        is_written(o, other ? "(((0 + 1 + 2) + (3 + 4)) + ((5 + 6 + 7) + (8 + 9)) + "
                              "((10 + 12 + 11) + (13 + 14)) + ((15 + 16 + 17) + (18 + 19)))"
                            : "(((0 + 1 + 2) + (3 + 4)) + ((5 + 6 + 7) + (8 + 9)) + ... + "
                              "((15 + 16 + 17) + (18 + 19)))");
        tl_order_free(o);
    }
    tl_order *a = order_of(4, (const int64_t[][2]){{0, 1}, {2, 3}, {4, 5}}),
             *b = order_of(4, (const int64_t[][2]){{0, 2}, {1, 3}, {4, 5}});
    assert_true(tl_order_same(a, a) && tl_order_same(b, b));
    assert_false(tl_order_same(a, b) || tl_order_same(b, a));
    tl_order_free(a);
    tl_order_free(b);
}

/* ---- dtypes ---- */

static double up_f64(void *ctx, int64_t n, const void *x)
{
    double s = 0;
    (void)ctx;
    for (int64_t i = 0; i < n; i++)
        s += ((const double *)x)[i];
    return s;
}

static double up_half(void *ctx, int64_t n, const void *x)
{
    float s = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = ((const uint16_t *)x)[i];
        s += *(tl_dtype *)ctx == TL_F16 ? tl_f16_to_f32(h) : tl_bf16_to_f32(h);
    }
    return (double)s;
}

static void test_dtypes(void **unused)
{
    (void)unused;
    tl_order *o;
    tl_err err = {0};
    char text[64];
    tl_dtype halves_of[] = {TL_F16, TL_BF16};
    for (int k = 0; k < 3; k++) {
        assert_int_equal(tl_reveal_order(k < 2 ? up_half : up_f64, &halves_of[k % 2],
                                         k < 2 ? halves_of[k] : TL_F64, 700, &o, &err),
                         TL_OK);
        assert_int_equal(tl_order_format(text, sizeof text, o, NULL), TL_OK);
        assert_string_equal(text, "(0 + 1 + ... + 699)");
        tl_order_free(o);
    }
}

/* Two folds of pairs that are alike: deep, and with branches at each step. */
static void test_deep(void **unused)
{
    enum { PAIRS = 100000 };
    tl_order *o = tl_order_new(4 * PAIRS);
    int64_t half[2] = {-1, -1};
    char text[256];
    tl_err err = {0};
    (void)unused;
    for (int h = 0; h < 2; h++)
        for (int64_t k = 0; k < PAIRS; k++) {
            const int64_t first = h * 2 * PAIRS + 2 * k;
            int64_t sum[2] = {half[h], tl_order_add(o, (int64_t[]){first, first + 1}, 2)};
            half[h] = k == 0 ? sum[1] : tl_order_add(o, sum, 2);
        }
    tl_order_add(o, half, 2);
    assert_int_equal(tl_order_format(text, sizeof text, o, &err), TL_OK);
    assert_string_equal(text,
                        "(((0 + 1) + (2 + 3) + ... + (199998 + 199999)) + ((200000 + 200001) + "
                        "(200002 + 200003) + ... + (399998 + 399999)))");
    tl_order_free(o);
}

/* ---- what has no order ---- */

static double larger_first(void *ctx, int64_t n, const void *x)
{
    const float *f = x;
    float s = 0;
    (void)ctx;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < n; i++)
            s += (f[i] < 1) == pass ? f[i] : 0;
    return (double)s;
}

/* Additions in an order of their own at each call. */
static double restless(void *ctx, int64_t n, const void *x)
{
    return (*(int *)ctx)++ % 2 ? up(NULL, n, x) : down(NULL, n, x);
}

static double most(void *ctx, int64_t n, const void *x)
{
    float m = 0;
    (void)ctx;
    for (int64_t i = 0; i < n; i++)
        m = fmaxf(m, ((const float *)x)[i]);
    return (double)m;
}

static double all_but_last(void *ctx, int64_t n, const void *x) { return up(ctx, n - 1, x); }
static double not_a_number(void *ctx, int64_t n, const void *x)
{
    return (double)NAN * up(ctx, n, x);
}

/* Masks of f16 are within 2^39 of the units: an f64 accumulator holds both. */
static double wide_half(void *ctx, int64_t n, const void *x)
{
    double s = 0;
    (void)ctx;
    for (int64_t i = 0; i < n; i++)
        s += (double)tl_f16_to_f32(((const uint16_t *)x)[i]);
    return s;
}

static void test_no_order(void **unused)
{
    (void)unused;
    int calls = 0;
    struct {
        tl_sum_fn *sum;
        tl_dtype dtype;
    } bad[] = {{larger_first, TL_F32}, {restless, TL_F32},     {most, TL_F32},
               {all_but_last, TL_F32}, {not_a_number, TL_F32}, {wide_half, TL_F16}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tl_order *o = (tl_order *)&calls;
        tl_err err = {0};
        assert_int_equal(tl_reveal_order(bad[i].sum, &calls, bad[i].dtype, 9, &o, &err),
                         TL_EDOMAIN);
        assert_null(o);
        assert_non_null(strstr(err.message, "reveal_order"));
    }
    tl_order *o;
    assert_int_equal(tl_reveal_order(up, NULL, TL_I64, 9, &o, NULL), TL_EDTYPE);
    assert_int_equal(tl_reveal_order(up, NULL, TL_F32, 0, &o, NULL), TL_EDOMAIN);
}

/* ---- trees ---- */

static void test_trees(void **unused)
{
    (void)unused;
    tl_order *o = tl_order_new(4);
    char text[8];
    tl_err err = {0};
    assert_int_equal(tl_order_root(o), -1);
    assert_int_equal(tl_order_format(text, sizeof text, o, &err), TL_EUSAGE);
    assert_int_equal(tl_order_add(o, (int64_t[]){1, 1}, 2), -1);
    assert_int_equal(tl_order_add(o, (int64_t[]){0, 4}, 2), -1);
    int64_t a = tl_order_add(o, (int64_t[]){2, 0}, 2);
    assert_int_equal(tl_order_add(o, (int64_t[]){a, 2}, 2), -1);
    assert_int_equal(tl_order_child(o, a, 0), 0);
    assert_int_equal(tl_order_child(o, a, 1), 2);
    assert_int_equal(tl_order_child(o, a, 2), -1);
    int64_t root = tl_order_add(o, (int64_t[]){3, a, 1}, 3);
    assert_int_equal(tl_order_root(o), root);
    assert_int_equal(tl_order_meeting(o, 0, 2), a);
    assert_int_equal(tl_order_meeting(o, 2, 3), root);
    err = (tl_err){0};
    assert_int_equal(tl_order_format(text, sizeof text, o, &err), TL_EDOMAIN);
    assert_string_equal(text, "(0 + 2 ");
    assert_non_null(strstr(err.message, "17 bytes"));
    tl_order_free(o);
    assert_null(tl_order_new(0));
    assert_null(tl_order_new((INT64_C(1) << 61) + 1)); /* whose bytes would overflow to a few */
    tl_order_free(NULL);
}

/* The long form: whole lines where they fit, every addition but the last ones on a line of its own.
 */
static void test_print(void **unused)
{
    (void)unused;
    tl_order *o;
    char *text = NULL;
    size_t size = 0;
    assert_int_equal(tl_reveal_order(by_lanes, NULL, TL_F32, 64, &o, NULL), TL_OK);
    FILE *f = open_memstream(&text, &size);
    assert_int_equal(tl_order_print(f, o, NULL), TL_OK);
    fclose(f);
    assert_non_null(strstr(text, "+ of two, 64 terms\n    + of two, 32 terms\n"));
    assert_non_null(strstr(text, "        (((0 + 32) + (16 + 48)) + ((8 + 40) + (24 + 56)))\n"));
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        assert_true(strlen(line) <= 100);
    free(text);
    tl_order_free(o);
}

const struct CMUnitTest tl_tests_order[] = {
    cmocka_unit_test(test_known_orders), cmocka_unit_test(test_against_stated),
    cmocka_unit_test(test_dtypes),       cmocka_unit_test(test_deep),
    cmocka_unit_test(test_no_order),     cmocka_unit_test(test_trees),
    cmocka_unit_test(test_print),        cmocka_unit_test(test_what_is_alike),
};
const size_t tl_tests_order_count = sizeof tl_tests_order / sizeof tl_tests_order[0];
