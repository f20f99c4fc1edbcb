/* Tables of rotary embeddings: frequencies, Llama 3's scaling, half-width tables. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/isa.h"
#include "tests/support/expect.h"
#include "tests/support/library_f64.h"

extern const struct CMUnitTest tl_tests_rotary_table[];
extern const size_t tl_tests_rotary_table_count;

static const tl_rotary_pairing pairings[] = {TL_ROTARY_HALF, TL_ROTARY_INTERLEAVED};
static ref_pairing of(tl_rotary_pairing p)
{
    return p == TL_ROTARY_HALF ? REF_HALF : REF_INTERLEAVED;
}

enum { S = 5, D = 6 };

/* Bit for bit with the library's f64 functions; with correctly rounded ones to the last place, or
 * to the angle's own error: some units in the last place of frequency and angle. */
static void compare(const ref_tensor *want, const float *got, bool exact, double biggest_angle)
{
    for (int64_t i = 0; i < ref_numel(want); i++) {
        double w = ref_get(want, i), g = (double)got[i],
               last = fabs(w - (double)nextafterf((float)w, 2));
        if (exact ? g != w : !(fabs(g - w) <= fmax(last, 32 * biggest_angle * 0x1p-52)))
            fail_msg("element %lld is %a, %a expected", (long long)i, g, w);
    }
}

static void table(int64_t first, int64_t n, int64_t dim, double base, tl_rotary_pairing p,
                  const tl_rotary_scaling *s)
{
    size_t bytes = (size_t)(n * dim + 1) * sizeof(float);
    float *r1 = malloc(bytes), *r2 = malloc(bytes);
    assert_true(r1 != NULL && r2 != NULL);
    assert_int_equal(s ? tl_rotary_table_scaled(first, n, dim, base, p, s, r1, r2)
                       : tl_rotary_table(first, n, dim, base, p, r1, r2),
                     TL_OK);
    for (int exact = 0; exact < 2; exact++) {
        ref_tensor w1, w2;
        const ref_f64_table *before = ref_set_f64_functions(exact ? &library_f64 : NULL);
        if (s) {
            ref_rotary_scaling rs = {s->factor, s->low_freq_factor, s->high_freq_factor,
                                     s->original};
            ref_rotary_table_scaled(first, n, dim, base, of(p), &rs, &w1, &w2);
        } else {
            ref_rotary_table(first, n, dim, base, of(p), &w1, &w2);
        }
        ref_set_f64_functions(before);
        compare(&w1, r1, exact, fabs((double)(first + n)));
        compare(&w2, r2, exact, fabs((double)(first + n)));
        tl_case_free(2, (ref_tensor[]){w1, w2});
    }
    free(r1);
    free(r2);
}

/* 8.3 without its last rounding. */
static void table64(int64_t first, int64_t n, int64_t dim, double base, tl_rotary_pairing p)
{
    size_t count = (size_t)(n * dim);
    double *r1 = malloc(count * sizeof *r1), *r2 = malloc(count * sizeof *r2);
    assert_true(r1 != NULL && r2 != NULL);
    assert_int_equal(tl_rotary_table64(first, n, dim, base, p, NULL, r1, r2), TL_OK);
    const ref_f64_table *before = ref_set_f64_functions(&library_f64);
    for (int64_t i = 0; i < n * dim; i++) {
        int64_t at = i % dim, k = p == TL_ROTARY_HALF ? at % (dim / 2) : at / 2;
        double f = ref_exp1(REF_F64, -((double)(2 * k) / (double)dim) * ref_log1(REF_F64, base)),
               angle = (double)(first + i / dim) * f;
        assert_true(r1[i] == ref_cos1(REF_F64, angle) && r2[i] == ref_sin1(REF_F64, angle));
    }
    ref_set_f64_functions(before);
    free(r1);
    free(r2);
}

static void test_rope_table(void **unused)
{
    static const tl_rotary_scaling llama3 = {8, 1, 4, 8192}, llama32 = {32, 1, 4, 8192},
                                   small = {2, 1, 8, 64};
    (void)unused;
    for (int k = 0; k < 2; k++) {
        table(0, 9, 2, 10000, pairings[k], NULL);
        table64(0, 9, 2, 10000, pairings[k]);
        table64(1000, 5, 64, 500000, pairings[k]);
        table(0, 33, 6, 10000, pairings[k], NULL);
        table(1000, 5, 64, 500000, pairings[k], NULL);
        table(131000, 3, 128, 500000, pairings[k], NULL);
        table(7, 0, 4, 10000, pairings[k], NULL);
        /* so far out that the last bit of a frequency shows in every cosine */
        table((int64_t)1 << 40, 3, 128, 500000, pairings[k], NULL);
        table((int64_t)1 << 40, 3, 96, 10000, pairings[k], &llama3);
        table(0, 9, 128, 500000, pairings[k], &llama3);
        table(8190, 5, 128, 500000, pairings[k], &llama3);
        table(100000, 3, 64, 500000, pairings[k], &llama32);
        table(0, 70, 16, 10000, pairings[k], &small);
    }
}

/* All three regions of the scaling occur: fast waves stay, slow ones turn 8 times slower, those
 * between lie between. */
static void test_scaling_has_three_regions(void **unused)
{
    static const tl_rotary_scaling llama3 = {8, 1, 4, 8192};
    float plain[2][128], scaled[2][128];
    int stay = 0, slow = 0, between = 0;
    (void)unused;
    tl_rotary_table(1, 1, 128, 500000, TL_ROTARY_HALF, plain[0], plain[1]);
    tl_rotary_table_scaled(1, 1, 128, 500000, TL_ROTARY_HALF, &llama3, scaled[0], scaled[1]);
    for (int i = 0; i < 64; i++) { /* at position 1 the angle is the frequency */
        double f = atan2((double)plain[1][i], (double)plain[0][i]),
               g = atan2((double)scaled[1][i], (double)scaled[0][i]);
        stay += f == g;
        slow += fabs(g * 8 / f - 1) < 1e-4;
        between += g < f * 0.999 && g > f / 7.99;
        assert_true(g <= f && g >= f / 8.001);
    }
    assert_true(stay > 20 && slow > 20 && between > 3 && stay + slow + between == 64);
}

static void test_tables_refuse(void **unused)
{
    static const tl_rotary_scaling crossed = {8, 4, 1, 8192}, level = {8, 4, 4, 8192},
                                   none = {0, 1, 4, 8192}, never = {8, 1, 4, 0};
    float a[64], b[64];
    (void)unused;
    assert_int_not_equal(tl_rotary_table(0, 2, 3, 10000, TL_ROTARY_HALF, a, b), TL_OK);
    assert_int_not_equal(tl_rotary_table(0, 2, 4, 10000, (tl_rotary_pairing)0, a, b), TL_OK);
    assert_int_not_equal(tl_rotary_table(0, -1, 4, 10000, TL_ROTARY_HALF, a, b), TL_OK);
    assert_int_not_equal(tl_rotary_table_scaled(0, 2, 4, 10000, TL_ROTARY_HALF, &crossed, a, b),
                         TL_OK);
    assert_int_not_equal(tl_rotary_table_scaled(0, 2, 4, 10000, TL_ROTARY_HALF, &level, a, b),
                         TL_OK);
    assert_int_not_equal(tl_rotary_table_scaled(0, 2, 4, 10000, TL_ROTARY_HALF, &none, a, b),
                         TL_OK);
    assert_int_not_equal(tl_rotary_table_scaled(0, 2, 4, 10000, TL_ROTARY_HALF, &never, a, b),
                         TL_OK);
    assert_int_not_equal(tl_rotary_table(0, 2, 4, (double)INFINITY, TL_ROTARY_HALF, a, b), TL_OK);
    assert_int_not_equal(tl_rotary_table(0, 2, 4, 0, TL_ROTARY_HALF, a, b), TL_OK);
}

/* The caller's rounding mode changes no bit of a table, and stays in force. */
static void a_table_leaves_the_rounding_mode(void **unused)
{
    float a[2][8], b[2][8];
    volatile float one = 1, tiny = 0x1p-30f, after[2];
    (void)unused;
    for (int i = 0; i < 2; i++) {
        fesetround(i ? FE_UPWARD : FE_TONEAREST);
        const tl_status s = tl_rotary_table(3, 2, 4, 10000, TL_ROTARY_HALF, a[i], b[i]);
        after[i] = one + tiny;
        fesetround(FE_TONEAREST);
        assert_int_equal(s, TL_OK);
    }
    assert_true(after[0] == 1 && after[1] > 1);
    assert_memory_equal(a[1], a[0], sizeof a[0]);
    assert_memory_equal(b[1], b[0], sizeof b[0]);
}

/* Each value of a half-width table where its pair's two elements are; widened tables are the full
 * ones. */
static void test_widened_tables_are_the_full_ones(void **unused)
{
    float full[2][S * D], half[2][S * D / 2];
    (void)unused;
    for (int k = 0; k < 2; k++) {
        assert_int_equal(tl_rotary_table(3, S, D, 10000, pairings[k], full[0], full[1]), TL_OK);
        for (int i = 0; i < S * D / 2; i++)
            for (int j = 0; j < 2; j++)
                half[j][i] = full[j][i / (D / 2) * D +
                                     i % (D / 2) * (pairings[k] == TL_ROTARY_HALF ? 1 : 2)];
        tl_tape *t = tl_tape_new(NULL);
        for (int j = 0; j < 2; j++) {
            ref_tensor want = ref_new(REF_F32, CASE_REF_DIMS(S, D));
            memcpy(want.data, full[j], sizeof full[j]);
            expect_bits(t,
                        tl_rotary_widen(t, tl_data(t, half[j], TL_F32, TL_DIMS(S, D / 2)),
                                        pairings[k]),
                        &want);
            ref_free(&want);
        }
        tl_free(t);
    }
}

/* The f64 table rounds to the f32 one; a tiny original slows all waves by the factor. */
static void test_scaling_in_f64_and_of_all_waves(void **unused)
{
    static const tl_rotary_scaling some[] = {{8, 1, 4, 32}, {4, 1, 2, DBL_MIN}};
    enum { N = 70, DIM = 16 };
    float r[2][N * DIM];
    double wide[2][N * DIM];
    (void)unused;
    for (int i = 0; i < 2; i++) {
        tl_rotary_table_scaled(0, N, DIM, 10000, TL_ROTARY_HALF, &some[i], r[0], r[1]);
        tl_rotary_table64(0, N, DIM, 10000, TL_ROTARY_HALF, &some[i], wide[0], wide[1]);
        for (int k = 0; k < N * DIM; k++)
            assert_true(r[0][k] == (float)wide[0][k] && r[1][k] == (float)wide[1][k]);
    }
    for (int k = 0; k < DIM / 2; k++) /* position 1 */
        assert_true(fabs(atan2(wide[1][DIM + k], wide[0][DIM + k]) -
                         pow(10000, -2.0 * k / DIM) / 4) < 1e-15);
}

const struct CMUnitTest tl_tests_rotary_table[] = {
    cmocka_unit_test(test_scaling_in_f64_and_of_all_waves),
    cmocka_unit_test(test_rope_table),
    cmocka_unit_test(test_scaling_has_three_regions),
    cmocka_unit_test(test_tables_refuse),
    cmocka_unit_test(a_table_leaves_the_rounding_mode),
    cmocka_unit_test(test_widened_tables_are_the_full_ones),
};
const size_t tl_tests_rotary_table_count = sizeof tl_tests_rotary_table /
                                           sizeof tl_tests_rotary_table[0];
