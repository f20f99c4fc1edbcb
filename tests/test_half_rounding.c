/* test_half_rounding.c: f16 and bf16 widened, and rounded from f32 and f64, against the reference.
 * TL_TEST_SEED sets the seed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>
#include <tally.h>

#include "tensor/isa.h"
#include "tensor/kernels/half.h"
#include "tests/ref/ref_gemm.h"
#include "tests/support/gemm_case.h"

extern const struct CMUnitTest tl_tests_half_rounding[];
extern const size_t tl_tests_half_rounding_count;

static bool same_half(uint16_t x, uint16_t y, uint16_t infinity)
{
    return x == y || ((x & 0x7fff) > infinity && (y & 0x7fff) > infinity);
}

static void test_half_widening(void **unused)
{
    (void)unused;
    for (uint32_t u = 0; u < 65536; u++) {
        const double h = (double)tl_f16_to_f32((uint16_t)u),
                     b = (double)tl_bf16_to_f32((uint16_t)u);
        const double rh = ref_h_to_f64((uint16_t)u), rb = ref_b_to_f64((uint16_t)u);
        assert_true((isnan(h) && isnan(rh)) || (h == rh && signbit(h) == signbit(rh)));
        assert_true((isnan(b) && isnan(rb)) || (b == rb && signbit(b) == signbit(rb)));
        assert_true(same_half(tl_f32_to_f16((float)h), (uint16_t)u, 0x7c00));
        assert_true(same_half(tl_f32_to_bf16((float)b), (uint16_t)u, 0x7f80));
        assert_true(same_half(tl_f64_to_f16(h), (uint16_t)u, 0x7c00));
        assert_true(same_half(tl_f64_to_bf16(b), (uint16_t)u, 0x7f80));
    }
}

static void check_narrowing(double x)
{
    const float f = (float)x;
    for (int s = 0; s < 2; s++, x = -x) {
        assert_true(same_half(tl_f64_to_f16(x), ref_f64_to_h(x), 0x7c00));
        assert_true(same_half(tl_f64_to_bf16(x), ref_f64_to_b(x), 0x7f80));
        assert_true(
            same_half(tl_f32_to_f16(s ? -f : f), ref_f64_to_h((double)(s ? -f : f)), 0x7c00));
        assert_true(
            same_half(tl_f32_to_bf16(s ? -f : f), ref_f64_to_b((double)(s ? -f : f)), 0x7f80));
    }
}

/* Every value, every midpoint between two, the floats and doubles next to each; then anything. */
static void test_half_narrowing(void **unused)
{
    (void)unused;
    for (int t = 0; t < 2; t++) {
        const uint16_t infinity = t ? 0x7f80 : 0x7c00;
        for (uint16_t u = 0; u < infinity; u++) {
            const double x = t ? ref_b_to_f64(u) : ref_h_to_f64(u);
            const uint16_t next = (uint16_t)(u + 1);
            const double top = t ? 0x1p128 : 0x1p16;
            const double up = next == infinity ? top : t ? ref_b_to_f64(next) : ref_h_to_f64(next);
            const double points[2] = {x, x + (up - x) / 2};
            for (int p = 0; p < 2; p++) {
                const float f = (float)points[p];
                check_narrowing(points[p]);
                check_narrowing(nextafter(points[p], (double)INFINITY));
                check_narrowing(nextafter(points[p], 0));
                check_narrowing((double)nextafterf(f, INFINITY));
                check_narrowing((double)nextafterf(f, 0));
            }
        }
    }
    gemm_start();
    for (int i = 0; i < 300000; i++) {
        const uint32_t u = gemm_random();
        const uint64_t w = (uint64_t)gemm_random() << 32 | u;
        float f;
        double d;
        memcpy(&f, &u, 4);
        memcpy(&d, &w, 8);
        check_narrowing((double)f);
        check_narrowing(d);
    }
}

/* Beyond 2^53 a whole number is rounded once, too: beside the middle of two f32 or bf16 it goes to
 * its side, though f64 has the middle alone. */
static void test_whole_numbers_are_rounded_once(void **unused)
{
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    for (int k = 54; k < 62; k++)
        for (int i = 0; i < 16; i++) {
            const int64_t sign = i & 1 ? -1 : 1, by = i & 2 ? -1 : 1, steps = i & 4 ? 3 : 1;
            const int64_t one = INT64_C(1) << k, half = one >> (i & 8 ? 24 : 8);
            const tl_dtype dtype = i & 8 ? TL_F32 : TL_BF16;
            const int64_t x = sign * (one + steps * half + by),
                          y = sign * (one + (steps + by) * half);
            float got;
            const tl_tensor v = tl_cast(t, tl_data(t, &x, TL_I64, TL_DIMS(1)), dtype);
            assert_int_equal(tl_keep(t, tl_cast(t, v, TL_F32), &got, sizeof got), TL_OK);
            if ((int64_t)got != y)
                fail_msg("%lld became %lld, not %lld", (long long)x, (long long)got, (long long)y);
        }
    tl_free(t);
}

/* 1.7: what an op has in f64 goes to f16 or bf16 at once. A little more than the middle of two of
 * them goes up; by way of f32, which has the middle alone, it would go to the even one below. */
static void test_sums_in_f64_are_rounded_once(void **unused)
{
    static const struct {
        tl_dtype dtype;
        float even;
    } half[] = {{TL_F16, 2048}, {TL_BF16, 256}};
    (void)unused;
    for (int l = 0; tl_isa_at(l) != NULL; l++) {
        const char *now = tl_isa_now()->name;
        assert_true(tl_isa_force(tl_isa_at(l)->name));
        for (int h = 0; h < 2; h++) {
            tl_tape *t = tl_tape_new(NULL);
            const tl_dtype d = half[h].dtype;
            const float even = half[h].even, terms[4] = {even, 1, 0x1p-24f, 0};
            const double whole = (double)even + 1 + 0x1p-24;
            const tl_shape one = TL_DIMS(1);
            tl_tensor x = tl_cast(t, tl_data(t, terms, TL_F32, TL_DIMS(4, 1)), d),
                      ones = tl_fill(t, d, TL_DIMS(1, 4), 1), sums = tl_cumsum(t, x, 0, false);
            tl_tensor y[] = {tl_cast(t, tl_data(t, &whole, TL_F64, one), d),
                             tl_fill(t, d, one, whole),
                             tl_sum(t, x, TL_DIMS(0), false),
                             tl_mean(t, tl_scale(t, x, 4), TL_DIMS(0), false),
                             tl_sum_to(t, x, one, TL_NONE),
                             tl_slice(t, sums, 0, 2, 3, 1),
                             tl_matmul_acc64(t, ones, x)};
            for (size_t i = 0; i < sizeof y / sizeof *y; i++)
                if (tl_item(t, y[i]) != (double)even + 2)
                    fail_msg("%s, %s, way %zu: %g%s", tl_isa_now()->name, tl_dtype_name(d), i,
                             tl_item(t, y[i]), tl_error(t));
            tl_free(t);
        }
        tl_isa_force(now);
    }
}

/* 1.7: the +0 of 1.6 is added before the rounding, so that a sum or mean below 0 which vanishes in
 * its dtype is -0. */
static void test_what_vanishes_keeps_its_sign(void **unused)
{
    static const struct {
        tl_dtype dtype;
        double least;
    } of[] = {{TL_F16, 0x1p-24}, {TL_BF16, 0x1p-133}, {TL_F32, 0x1p-149}};
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        for (int fold = 0; fold < 2; fold++) {
            const double terms[4] = {-of[i].least, 0, 0, 0};
            const tl_shape s = fold ? TL_DIMS(4, 1) : TL_DIMS(1, 4);
            tl_tensor x = tl_cast(t, tl_data(t, terms, TL_F64, s), of[i].dtype),
                      y = tl_mean(t, x, TL_DIMS(fold ? 0 : 1), false);
            const double got = tl_item(t, y);
            if (got != 0 || !signbit(got))
                fail_msg("%s: %g%s", tl_dtype_name(of[i].dtype), got, tl_error(t));
        }
    tl_free(t);
}

const struct CMUnitTest tl_tests_half_rounding[] = {
    cmocka_unit_test(test_half_widening),
    cmocka_unit_test(test_half_narrowing),
    cmocka_unit_test(test_whole_numbers_are_rounded_once),
    cmocka_unit_test(test_sums_in_f64_are_rounded_once),
    cmocka_unit_test(test_what_vanishes_keeps_its_sign),
};
const size_t tl_tests_half_rounding_count = sizeof tl_tests_half_rounding /
                                            sizeof *tl_tests_half_rounding;
