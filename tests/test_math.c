/* test_math: the elementary functions against MPFR, against themselves at every level, and at their
 * edges.
 *
 * All 2^32 inputs of every f32 function are the business of tests/exhaustive.c; here are
 * the hardest of them, the special values, fresh samples (the seed is printed; TL_TEST_SEED
 * repeats it), bit-equality of the levels, and the golden digests of f64.
 * Run from the root of the repository.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/math_run.h"
#include "tests/math_vectors.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

extern const struct CMUnitTest tl_tests_math[];
extern const size_t tl_tests_math_count;

enum { SAMPLES32 = 50000, SAMPLES64 = 20000, CHUNK = 1024, GOLDEN = 1 << 16 };

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static double double_of(uint64_t u)
{
    double x;
    memcpy(&x, &u, 8);
    return x;
}

/* xorshift64*: the tests' own random numbers. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1du;
}

static uint64_t seed_of(const char *test)
{
    const char *given = getenv("TL_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    printf("%s: TL_TEST_SEED=%llu\n", test, (unsigned long long)seed);
    return seed * 0x9e3779b97f4a7c15u + 1;
}

/* Half the samples have random bits, half lie evenly in [-range, range]. */
static double sample64(uint64_t *state, double range)
{
    uint64_t u = next_random(state), v = next_random(state);
    return u & 1 ? double_of(v) : range * ((double)(v >> 11) * 0x1p-52 - 1);
}

static float sample32(uint64_t *state, float range)
{
    uint64_t u = next_random(state), v = next_random(state);
    return u & 1 ? float_of((uint32_t)(v >> 32)) : range * ((float)(v >> 40) * 0x1p-23f - 1);
}

static const double ranges[] = {0.01, 1, 10, 800};

static void fail_at(const char *level, const char *name, double x, double got, double want)
{
    fail_msg("%s, %s: f(%a) = %a, should be %a", level, name, x, got, want);
}

static void test_math_hard_cases_f32(void **state)
{
    (void)state;
    for (int l = 0; l < TL_RUN_LEVELS; l++)
        for (size_t i = 0; tl_run_here(tl_run_levels[l].name) && i < TL_VECTORS32; i++) {
            const tl_vector32 *v = &tl_vectors32[i];
            const tl_judge *f = tl_judge_named(v->name);
            assert_non_null(f);
            float x = float_of(v->x), y = 0;
            tl_run32(tl_run_levels[l].table, f, 1, &x, &y);
            if (tl_run_bits32(y) != v->y)
                fail_msg("%s, %s(%08x) = %08x, should be %08x: %s", tl_run_levels[l].name, v->name,
                         v->x, tl_run_bits32(y), v->y, v->why);
        }
}

static void test_math_special_values_f64(void **state)
{
    (void)state;
    for (int l = 0; l < TL_RUN_LEVELS; l++)
        for (size_t i = 0; tl_run_here(tl_run_levels[l].name) && i < TL_SPECIALS64; i++) {
            const tl_special64 *v = &tl_specials64[i];
            const tl_judge *f = tl_judge_named(v->name);
            assert_non_null(f);
            double y = 0;
            tl_run64(tl_run_levels[l].table, f, 1, &v->x, &y);
            if (tl_run_bits64(y) != tl_run_bits64(v->y))
                fail_at(tl_run_levels[l].name, v->name, v->x, y, v->y);
        }
}

static void test_math_special_values_pow(void **state)
{
    (void)state;
    for (int l = 0; l < TL_RUN_LEVELS; l++)
        for (size_t i = 0; tl_run_here(tl_run_levels[l].name) && i < TL_SPECIALS_POW; i++) {
            const tl_special_pow *v = &tl_specials_pow[i];
            double y = 0;
            float x32 = (float)v->x, y32 = 0;
            tl_run_levels[l].table->pow64(1, &v->x, v->e, &y);
            tl_run_levels[l].table->pow32(1, &x32, v->e, &y32);
            if (tl_run_bits64(y) != tl_run_bits64(v->y) ||
                tl_run_bits32(y32) != tl_run_bits32((float)v->y))
                fail_msg("%s, pow(%a, %a) = %a in f64, %a in f32, should be %a",
                         tl_run_levels[l].name, v->x, v->e, y, (double)y32, v->y);
        }
}

static void test_math_f32_is_correctly_rounded(void **state)
{
    (void)state;
    uint64_t s = seed_of("f32 samples");
    for (int k = 0; k < TL_JUDGES; k++)
        for (int done = 0; done < SAMPLES32; done += CHUNK) {
            const tl_judge *f = &tl_judges[k];
            float x[CHUNK], y[CHUNK], right[CHUNK];
            int64_t asked = 0;
            for (int i = 0; i < CHUNK; i++) {
                x[i] = sample32(&s, (float)ranges[i % 4]);
                right[i] = tl_judge_float(f, x[i], &asked);
            }
            for (int l = 0; l < TL_RUN_LEVELS; l++) {
                if (!tl_run_here(tl_run_levels[l].name))
                    continue;
                tl_run32(tl_run_levels[l].table, f, CHUNK, x, y);
                for (int i = 0; i < CHUNK; i++)
                    if (tl_run_bits32(y[i]) != tl_run_bits32(right[i]))
                        fail_at(tl_run_levels[l].name, f->name, (double)x[i], (double)y[i],
                                (double)right[i]);
            }
        }
}

/* |got - exact| in units of the last place of a format with `bits` bits and least exponent `least`.
 */
static double error_in_ulps(mpfr_t exact, double got, int bits, int least)
{
    double near = mpfr_get_d(exact, MPFR_RNDN);
    double largest = ldexp(2 - ldexp(1, 1 - bits), bits == 24 ? 127 : 1023);
    if (near != near || got != got || isinf(got) || fabs(near) > largest)
        return (near != near && got != got) ||
                       (isinf(got) && got * near > 0 && fabs(near) > largest)
                   ? 0
                   : HUGE_VAL;
    int e = mpfr_zero_p(exact) ? least : (int)mpfr_get_exp(exact) - bits;
    mpfr_t d;
    mpfr_init2(d, TL_JUDGE_BITS);
    mpfr_sub_d(d, exact, got, MPFR_RNDN);
    mpfr_mul_2si(d, d, -(e < least ? least : e), MPFR_RNDN);
    double error = fabs(mpfr_get_d(d, MPFR_RNDU));
    mpfr_clear(d);
    return error;
}

static void test_math_f64_within_one_ulp(void **state)
{
    (void)state;
    uint64_t s = seed_of("f64 samples");
    mpfr_t exact;
    mpfr_init2(exact, TL_JUDGE_BITS);
    for (int k = 0; k < TL_JUDGES; k++) {
        double worst = 0;
        for (int done = 0; done < SAMPLES64; done += CHUNK) {
            double x[CHUNK], y[CHUNK];
            for (int i = 0; i < CHUNK; i++)
                x[i] = sample64(&s, ranges[i % 4]);
            tl_run64(tl_run_levels[0].table, &tl_judges[k], CHUNK, x, y);
            for (int i = 0; i < CHUNK; i++) {
                tl_judge_mpfr(&tl_judges[k], exact, x[i]);
                double error = error_in_ulps(exact, y[i], 53, -1074);
                if (!(error < 1))
                    fail_msg("%s(%a) = %a: %g ULP", tl_judges[k].name, x[i], y[i], error);
                worst = error > worst ? error : worst;
            }
        }
        printf("  %-8s %.3f ULP\n", tl_judges[k].name, worst);
    }
    mpfr_clear(exact);
}

static void test_math_pow_within_one_ulp(void **state)
{
    (void)state;
    uint64_t s = seed_of("pow samples");
    const tl_math_table *t = tl_run_levels[0].table;
    tl_judge f = {"pow", 0, 0, 0};
    mpfr_t exact;
    mpfr_init2(exact, TL_JUDGE_BITS);
    for (int i = 0; i < SAMPLES64; i++) {
        double x = fabs(sample64(&s, 2)), y64;
        double want =
            sample64(&s, 740); /* an exponent that gives a result in range, half of the time */
        f.power = i & 1 ? want : want / log(x);
        float x32 = (float)x, y32;
        if (x != x || f.power != f.power)
            continue;
        t->pow64(1, &x, f.power, &y64);
        tl_judge_mpfr(&f, exact, x);
        double error64 = error_in_ulps(exact, y64, 53, -1074);
        t->pow32(1, &x32, f.power, &y32);
        tl_judge_mpfr(&f, exact, (double)x32);
        double error32 = error_in_ulps(exact, (double)y32, 24, -149);
        if (!(error64 < 1) || !(error32 < 1))
            fail_msg("pow(%a, %a) = %a, %g ULP in f64; pow(%a, ...) = %a, %g ULP in f32", x,
                     f.power, y64, error64, (double)x32, (double)y32, error32);
    }
    mpfr_clear(exact);
}

/* Lengths around 0 and 1, the vector widths (8, 16), their doubles, and several tiles with a tail.
 */
static const int lengths[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 1000};
enum { LENGTHS = sizeof lengths / sizeof lengths[0], LONGEST = 1000, GUARD = 3 };

/* Every level, at every length, misaligned by `off` elements, in place and not: the bits of level
 * 0, one at a time. */
static void same_bits_f32(const tl_judge *f, const float *x, const tl_run_level *level, int n,
                          int off)
{
    float in[LONGEST + 2 * GUARD + 16], out[LONGEST + 2 * GUARD + 16];
    for (int in_place = 0; in_place < 2; in_place++) {
        float *a = in + GUARD + off, *b = in_place ? a : out + GUARD + off;
        memcpy(a, x, (size_t)n * sizeof *x);
        b[n] = b[-1] = 42.0f;
        tl_run32(level->table, f, n, a, b);
        assert_true(b[n] == 42.0f && b[-1] == 42.0f);
        for (int i = 0; i < n; i++) {
            float y;
            tl_run32(tl_run_levels[0].table, f, 1, &x[i], &y);
            if (tl_run_bits32(y) != tl_run_bits32(b[i]))
                fail_at(level->name, f->name, (double)x[i], (double)b[i], (double)y);
        }
    }
}

static void same_bits_f64(const tl_judge *f, const double *x, const tl_run_level *level, int n,
                          int off)
{
    double in[LONGEST + 2 * GUARD + 16], out[LONGEST + 2 * GUARD + 16];
    for (int in_place = 0; in_place < 2; in_place++) {
        double *a = in + GUARD + off, *b = in_place ? a : out + GUARD + off;
        memcpy(a, x, (size_t)n * sizeof *x);
        b[n] = b[-1] = 42.0;
        tl_run64(level->table, f, n, a, b);
        assert_true(b[n] == 42.0 && b[-1] == 42.0);
        for (int i = 0; i < n; i++) {
            double y;
            tl_run64(tl_run_levels[0].table, f, 1, &x[i], &y);
            if (tl_run_bits64(y) != tl_run_bits64(b[i]))
                fail_at(level->name, f->name, x[i], b[i], y);
        }
    }
}

static void test_math_levels_agree(void **state)
{
    (void)state;
    uint64_t s = seed_of("levels");
    static float x32[LONGEST];
    static double x64[LONGEST];
    static const tl_judge more[] = {{"pow0.3", 0, 0, 0.3}, {"pow-7", 0, 0, -7}, {"pow0", 0, 0, 0}};
    for (int k = 0; k < TL_JUDGES + 3; k++) {
        const tl_judge *f = k < TL_JUDGES ? &tl_judges[k] : &more[k - TL_JUDGES];
        for (int i = 0; i < LONGEST; i++) {
            x32[i] = sample32(&s, (float)ranges[i % 4]);
            x64[i] = sample64(&s, ranges[i % 4]);
        }
        for (int l = 0; l < TL_RUN_LEVELS; l++)
            for (int i = 0; tl_run_here(tl_run_levels[l].name) && i < LENGTHS; i++) {
                same_bits_f32(f, x32, &tl_run_levels[l], lengths[i], i % 4);
                same_bits_f64(f, x64, &tl_run_levels[l], lengths[i], i % 4);
            }
    }
}

/* SHA-256 over the outputs for a fixed sample, little-endian, every NaN as 7ff8000000000000. */
static void golden_digest(const tl_judge *f, const tl_math_table *t, char hex[65])
{
    static double x[GOLDEN], y[GOLDEN];
    static unsigned char bytes[GOLDEN * 8];
    unsigned char digest[32];
    uint64_t s = 1;
    for (int i = 0; i < GOLDEN; i++)
        x[i] = sample64(&s, ranges[i % 4]);
    tl_run64(t, f, GOLDEN, x, y);
    for (int i = 0; i < GOLDEN * 8; i++)
        bytes[i] = (unsigned char)(tl_run_bits64(y[i / 8]) >> (8 * (i % 8)));
    EVP_Digest(bytes, sizeof bytes, digest, NULL, EVP_sha256(), NULL);
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

static void test_math_golden_f64(void **state)
{
    (void)state;
    char line[256], name[64], want[128], hex[65];
    FILE *file = fopen("tests/golden/math64.txt", "r");
    int seen = 0;
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (line[0] == '#' || sscanf(line, "%63s %127s", name, want) != 2)
            continue;
        const tl_judge *f = tl_judge_named(name);
        assert_non_null(f);
        for (int l = 0; l < TL_RUN_LEVELS; l++) {
            if (!tl_run_here(tl_run_levels[l].name))
                continue;
            golden_digest(f, tl_run_levels[l].table, hex);
            if (strcmp(hex, want) != 0)
                fail_msg("%s, %s: digest %s, golden %s", tl_run_levels[l].name, name, hex, want);
        }
        seen++;
    }
    fclose(file);
    assert_int_equal(seen, TL_JUDGES);
}

const struct CMUnitTest tl_tests_math[] = {
    cmocka_unit_test(test_math_hard_cases_f32),
    cmocka_unit_test(test_math_special_values_f64),
    cmocka_unit_test(test_math_special_values_pow),
    cmocka_unit_test(test_math_f32_is_correctly_rounded),
    cmocka_unit_test(test_math_f64_within_one_ulp),
    cmocka_unit_test(test_math_pow_within_one_ulp),
    cmocka_unit_test(test_math_levels_agree),
    cmocka_unit_test(test_math_golden_f64),
};
const size_t tl_tests_math_count = sizeof tl_tests_math / sizeof tl_tests_math[0];
