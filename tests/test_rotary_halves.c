/* Rotary on two halves that lie apart: the bits of rotary on the whole, what is refused, what is
 * kept. TL_TEST_SEED repeats a run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/support/expect.h"

extern const struct CMUnitTest tl_tests_rotary_halves[];
extern const size_t tl_tests_rotary_halves_count;

enum { B = 2, N = 3, S = 5, D = 6 };

/* The chunks of one tensor, with half-width tables: the bits of rotary on the whole, conjugate: of
 * rotary_turned. */
static void test_halves(void **unused)
{
    uint64_t seed = expect_seed();
    (void)unused;
    for (int d = 0; d < 4; d++)
        for (int conjugate = 0; conjugate < 2; conjugate++) {
            static const ref_dtype dtypes[] = {REF_F64, REF_F32, REF_F16, REF_BF16};
            ref_tensor x = tl_case_values(dtypes[d], &TL_DIMS(B, N, S, D), &seed, CASE_PLAIN),
                       dy = tl_case_values(dtypes[d], &TL_DIMS(B, N, S, D), &seed, CASE_PLAIN);
            ref_tensor c = tl_case_values(dtypes[d], &TL_DIMS(S, D / 2), &seed, CASE_PLAIN),
                       s = tl_case_values(dtypes[d], &TL_DIMS(S, D / 2), &seed, CASE_PLAIN);
            ref_tensor want[2];
            for (int apart = 0; apart < 2; apart++) {
                tl_tape *t = tl_tape_new(NULL);
                tl_tensor leaf = trained_leaf(t, &x), co = tl_case_leaf(t, &c),
                          si = tl_case_leaf(t, &s), half[2], out;
                tl_array part, whole;
                if (apart) {
                    tl_chunk(t, leaf, 2, -1, half);
                    assert_true(tl_array_of(t, half[1], &part) && tl_array_of(t, leaf, &whole));
                    assert_ptr_equal(part.data,
                                     (char *)whole.data +
                                         (size_t)(D / 2) *
                                             tl_dtype_size(whole.dtype)); /* read where it lies */
                    half[0] = tl_rotary_halves(t, half[0], half[1], co, si, conjugate, &half[1]);
                    out = tl_concat(t, half, 2, -1);
                } else {
                    tl_tensor a = tl_rotary_widen(t, co, TL_ROTARY_HALF),
                              b = tl_rotary_widen(t, si, TL_ROTARY_HALF);
                    out = conjugate ? tl_rotary_turned(t, leaf, a, b, TL_ROTARY_HALF)
                                    : tl_rotary(t, leaf, a, b, TL_ROTARY_HALF);
                }
                tl_tensor both[2] = {out, TL_NONE};
                tl_backward(t, out, .cotangent = tl_case_leaf(t, &dy), .retain = true);
                both[1] = tl_grad(t, leaf);
                for (int k = 0; k < 2; k++)
                    if (apart)
                        expect_bits(t, both[k], &want[k]);
                    else
                        want[k] = tl_case_read(t, both[k]);
                expect_no_error(t);
                tl_free(t);
            }
            tl_case_free(4, (ref_tensor[]){x, dy, c, s});
            tl_case_free(2, want);
        }
}

static void test_halves_refuse(void **unused)
{
    uint64_t seed = expect_seed();
    (void)unused;
    ref_tensor x = tl_case_values(REF_F32, &TL_DIMS(4, 3), &seed, CASE_PLAIN),
               w = tl_case_values(REF_F32, &TL_DIMS(4, 6), &seed, CASE_PLAIN),
               h = ref_cast(&x, REF_F16);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor a = tl_case_leaf(t, &x), wide = tl_case_leaf(t, &w), f16 = tl_case_leaf(t, &h), y2;
    assert_true(tl_is_none(tl_rotary_halves(t, a, wide, a, a, false, &y2)) && tl_is_none(y2));
    expect_failure(t, TL_ESHAPE, "rotary_halves: the halves have shapes [4, 3] and [4, 6]");
    tl_rotary_halves(t, a, f16, a, a, false, &y2);
    expect_failure(t, TL_EDTYPE, "F32 and F16");
    tl_rotary_halves(t, a, a, wide, a, false, &y2); /* full-width tables are rotary's */
    expect_failure(t, TL_ESHAPE, "table [4, 6]");
    tl_rotary_halves(t, a, a, a, f16, false, &y2);
    expect_failure(t, TL_EDTYPE, "table is F16");
    tl_free(t);
    tl_case_free(3, (ref_tensor[]){x, w, h});
}

/* A half that was read changes afterwards: that matters to the tables' gradients alone. */
static void test_halves_are_kept_for_tables_alone(void **unused)
{
    uint64_t seed = expect_seed();
    (void)unused;
    ref_tensor v = tl_case_values(REF_F32, &TL_DIMS(3, 8), &seed, CASE_PLAIN),
               r = tl_case_values(REF_F32, &TL_DIMS(4), &seed, CASE_PLAIN);
    for (int which = 0; which < 3; which++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor c = tl_case_leaf(t, &r), a = which == 1 ? trained_leaf(t, &r) : c,
                  b = which == 2 ? trained_leaf(t, &r) : c, half[2];
        tl_chunk(t, tl_scale(t, trained_leaf(t, &v), 1), 2, -1, half);
        tl_tensor y2, y = tl_rotary_halves(t, half[0], half[1], a, b, which == 1, &y2);
        tl_rotary_(t, half[1], c, c, TL_ROTARY_HALF);
        tl_tensor dy = tl_fill(t, TL_F32, TL_DIMS(3, 4), 1);
        expect_no_error(t);
        tl_backward(t, tl_mul(t, y, y2), .cotangent = dy);
        if (which == 0)
            expect_no_error(t);
        else
            expect_failure(t, TL_EINPLACE, "input 1 of rotary_halves");
        tl_free(t);
    }
    tl_case_free(2, (ref_tensor[]){v, r});
}

/* The tables' gradients are sums of products that no f16 holds, each rounded to f32 alone. */
static void test_tables_of_halves_in_f16(void **unused)
{
    const float odd = 0x1.004p0f; /* 1 + 2^-10, whose square f16 rounds */
    (void)unused;
    for (int conjugate = 0; conjugate < 2; conjugate++) {
        const float want[2] = {2 * odd * odd, 0};
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor x = tl_fill(t, TL_F16, TL_DIMS(1, 1), (double)odd), y2,
                  table[2] = {tl_data(t, &odd, TL_F32, TL_DIMS(1)),
                              tl_data(t, &odd, TL_F32, TL_DIMS(1))};
        tl_require_grad(t, table[0]);
        tl_require_grad(t, table[1]);
        tl_tensor y = tl_rotary_halves(t, x, x, table[0], table[1], conjugate, &y2);
        tl_backward(t, tl_add(t, y, y2), .cotangent = x);
        for (int i = 0; i < 2; i++) {
            float got;
            assert_int_equal(tl_keep(t, tl_grad(t, table[i]), &got, sizeof got), TL_OK);
            if (got != want[i])
                fail_msg("table %d: %a, not %a", i, (double)got, (double)want[i]);
        }
        expect_no_error(t);
        tl_free(t);
    }
}

/* An output that nothing depends on has the cotangent +0 (NUMERICS 8.7), which is multiplied like
 * any other. */
static void test_half_a_cotangent_is_zero(void **unused)
{
    static const float one = 1, table[2] = {1, INFINITY};
    (void)unused;
    for (int k = 0; k < 8; k++) {
        const bool second = k & 1, conjugate = k & 2;
        const float s = table[k / 4];
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor leaf = tl_data(t, &one, TL_F32, TL_DIMS(1)), x[2], dx[2], y[2];
        tl_require_grad(t, leaf);
        for (int i = 0; i < 2; i++)
            x[i] = tl_scale(t, leaf, 2);
        y[0] = tl_rotary_halves(t, x[0], x[1], tl_data(t, &one, TL_F32, TL_DIMS(1)),
                                tl_data(t, &s, TL_F32, TL_DIMS(1)), conjugate, &y[1]);
        tl_gradients(t, y[second], x, 2, tl_fill(t, TL_F32, TL_DIMS(1), -0.0), dx);
        /* the other flag: dx1 = (c*dy1) -+ (s*dy2), dx2 = (c*dy2) +- (s*dy1) */
        const float zero = 0, dy[2] = {second ? zero : -zero, second ? -zero : zero}, p = s * dy[1],
                    q = s * dy[0],
                    want[2] = {conjugate ? dy[0] - p : dy[0] + p,
                               conjugate ? dy[1] + q : dy[1] - q};
        for (int i = 0; i < 2; i++) {
            float got;
            assert_int_equal(tl_keep(t, dx[i], &got, sizeof got), TL_OK);
            if (isnan(want[i]) ? !isnan(got) : memcmp(&got, &want[i], sizeof got) != 0)
                fail_msg("way %d: dx%d is %a, not %a", k, i + 1, (double)got, (double)want[i]);
        }
        expect_no_error(t);
        tl_free(t);
    }
}

const struct CMUnitTest tl_tests_rotary_halves[] = {
    cmocka_unit_test(test_halves),
    cmocka_unit_test(test_halves_refuse),
    cmocka_unit_test(test_halves_are_kept_for_tables_alone),
    cmocka_unit_test(test_tables_of_halves_in_f16),
    cmocka_unit_test(test_half_a_cotangent_is_zero),
};
const size_t tl_tests_rotary_halves_count = sizeof tl_tests_rotary_halves /
                                            sizeof tl_tests_rotary_halves[0];
