/* All 65536 inputs of f16 and of bf16 through every elementary function and activation, as ops, at
 * every vector level: the f32 result for the widened input, rounded (NUMERICS 2.2). The judge of
 * the f32 functions is math_oracle.h, the rounding that of tests/ref; the compositions of 2.6
 * to 2.10 are written here once more, one IEEE operation a step. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "tally_extend.h"
#include "tensor/isa.h"
#include "tests/math_run.h"
#include "tests/ref/ref.h"
#include "tests/support/contract.h"

extern const struct CMUnitTest tl_tests_math_half[];
extern const size_t tl_tests_math_half_count;

enum { INPUTS = 65536 };

/* The judge's function of that name, rounded to f32. */
static float judged(const char *name, float x)
{
    const tl_judge *f = tl_judge_named(name);
    int64_t asked = 0;
    assert_non_null(f);
    return tl_judge_float(f, x, &asked);
}

static float silu(float x) { return x * judged("sigmoid", x); }

static float softplus(float x)
{
    float top = x > 0 ? x : 0, rest = judged("log1p", judged("exp", -fabsf(x)));
    return top + rest;
}

static float gelu(float x)
{
    float e = judged("erf", x * (float)0x1.6a09e667f3bcdp-1);
    return x * (0.5f * (1 + e));
}

static float gelu_tanh(float x)
{
    float inner = x + (float)0.044715 * ((x * x) * x);
    return (0.5f * x) * (1 + judged("tanh", (float)0x1.9884533d43651p-1 * inner));
}

/* One IEEE operation, or a choice of bits. */
static float neg(float x) { return -x; }
static float absolute(float x) { return x < 0 || (x == 0 && signbit(x)) ? -x : x; }
static float square(float x) { return x * x; }
static float reciprocal(float x) { return 1 / x; }
static float relu(float x) { return isnan(x) || x > 0 ? x : 0; }

/* An op and what judges it: a name of math_oracle.h (with its power for pow), or a composition. */
typedef struct {
    const char *judge;
    tl_tensor (*op)(tl_at at, tl_tensor x);
    float (*composed)(float x);
    double power;
} subject;

static const subject subjects[] = {
    {"exp", tl_exp_at, NULL, 0},
    {"exp2", tl_exp2_at, NULL, 0},
    {"expm1", tl_expm1_at, NULL, 0},
    {"log", tl_log_at, NULL, 0},
    {"log2", tl_log2_at, NULL, 0},
    {"log1p", tl_log1p_at, NULL, 0},
    {"sin", tl_sin_at, NULL, 0},
    {"cos", tl_cos_at, NULL, 0},
    {"tanh", tl_tanh_at, NULL, 0},
    {"sigmoid", tl_sigmoid_at, NULL, 0},
    {"rsqrt", tl_rsqrt_at, NULL, 0},
    {"sqrt", tl_sqrt_at, NULL, 0},
    {"erf", tl_erf_at, NULL, 0},
    {"pow-2", NULL, NULL, -2},
    {"pow-1", NULL, NULL, -1},
    {"pow-1/2", NULL, NULL, -0.5},
    {"pow1/2", NULL, NULL, 0.5},
    {"pow3/2", NULL, NULL, 1.5},
    {"pow2", NULL, NULL, 2},
    {"pow3", NULL, NULL, 3},
    {"silu", tl_silu_at, silu, 0},
    {"softplus", tl_softplus_at, softplus, 0},
    {"gelu", tl_gelu_at, gelu, 0},
    {"gelu_tanh", tl_gelu_tanh_at, gelu_tanh, 0},
    {"neg", tl_neg_at, neg, 0},
    {"abs", tl_abs_at, absolute, 0},
    {"square", tl_square_at, square, 0},
    {"reciprocal", tl_reciprocal_at, reciprocal, 0},
    {"relu", tl_relu_at, relu, 0},
};
enum { SUBJECTS = sizeof subjects / sizeof subjects[0] };

static void expect(const subject *s, ref_dtype d, uint16_t *want)
{
    for (int u = 0; u < INPUTS; u++) {
        float x = (float)ref_half_value(d, (uint16_t)u);
        want[u] = ref_half_bits(d, (double)(s->composed ? s->composed(x) : judged(s->judge, x)));
    }
}

/* Any NaN is as good as another. */
static bool same(ref_dtype d, uint16_t a, uint16_t b)
{
    return a == b || (isnan(ref_half_value(d, a)) && isnan(ref_half_value(d, b)));
}

static int wrong_at_level(const subject *s, ref_dtype d, tl_tape *t, const uint16_t *x,
                          const uint16_t *want)
{
    static uint16_t y[INPUTS];
    int wrong = 0;
    tl_tensor in = tl_data(t, x, d == REF_F16 ? TL_F16 : TL_BF16, TL_DIMS(INPUTS));
    tl_tensor out = s->op ? s->op(TL_AT(t), in) : tl_pow(t, in, s->power);
    assert_int_equal(tl_keep(t, out, y, sizeof y), TL_OK);
    for (int u = 0; u < INPUTS; u++)
        if (!same(d, y[u], want[u]) && wrong++ == 0)
            fprintf(stderr, "%s, %s, %s(%04x) = %04x, should be %04x\n", tl_isa_now()->name,
                    d == REF_F16 ? "f16" : "bf16", s->judge, (unsigned)u, (unsigned)y[u],
                    (unsigned)want[u]);
    tl_tape_reset(t);
    return wrong;
}

/* For make contract: "pow-2" and its like are the op pow. */
static void write_down(const subject *s, ref_dtype d, bool right)
{
    (right ? tl_ran : tl_ran_failed)(s->op != NULL ? s->judge : "pow",
                                     d == REF_F16 ? "all f16" : "all bf16");
}

static void all_inputs(ref_dtype d)
{
    static uint16_t x[INPUTS], want[INPUTS];
    char now[16];
    int wrong = 0, levels = 0;
    tl_tape *t = tl_tape_new(NULL);
    snprintf(now, sizeof now, "%s", tl_isa_now()->name);
    for (int u = 0; u < INPUTS; u++)
        x[u] = (uint16_t)u;
    for (int k = 0; k < SUBJECTS; k++) {
        int before = wrong;
        expect(&subjects[k], d, want);
        for (levels = 0; tl_isa_at(levels) != NULL; levels++) {
            tl_isa_force(tl_isa_at(levels)->name);
            wrong += wrong_at_level(&subjects[k], d, t, x, want);
        }
        write_down(&subjects[k], d, wrong == before);
    }
    tl_isa_force(now);
    tl_free(t);
    printf("%s: %d functions, %d inputs, %d levels, %d wrong\n", d == REF_F16 ? "f16" : "bf16",
           SUBJECTS, INPUTS, levels, wrong);
    assert_int_equal(wrong, 0);
}

static void test_f16(void **unused)
{
    (void)unused;
    all_inputs(REF_F16);
}

static void test_bf16(void **unused)
{
    (void)unused;
    all_inputs(REF_BF16);
}

/* ---- rounded twice, to f32 and then to 16 bits ---- */

/* f(x) rounded once to d. */
static uint16_t rounded_once(const tl_judge *f, ref_dtype d, float x)
{
    double y = tl_judge_double(f, (double)x), margin = fabs(y) * TL_JUDGE_MARGIN;
    uint16_t low = ref_half_bits(d, y - margin);
    if (!isfinite(y) || y == 0 || low == ref_half_bits(d, y + margin))
        return isfinite(y) && y != 0 ? low : ref_half_bits(d, y);
    mpfr_t exact;
    union {
        double d;
        uint64_t u;
    } cut;
    mpfr_init2(exact, TL_JUDGE_BITS);
    tl_judge_mpfr(f, exact, (double)x);
    cut.d = mpfr_get_d(exact, MPFR_RNDZ);
    cut.u |= mpfr_cmp_d(exact, cut.d) != 0; /* to odd: the next rounding is the only one */
    mpfr_clear(exact);
    return ref_half_bits(d, cut.d);
}

/* The inputs of f16 at which that is another number, for each function; none of bf16. NUMERICS 2.2
 * tells these counts. */
static int twice_counts(const char *name)
{
    static const struct {
        const char *name;
        int n;
    } f16[] = {{"exp", 2}, {"exp2", 1}, {"expm1", 1},   {"log", 1}, {"log1p", 2},
               {"sin", 4}, {"cos", 2},  {"sigmoid", 7}, {"erf", 2}};
    for (size_t i = 0; i < sizeof f16 / sizeof *f16; i++)
        if (strcmp(f16[i].name, name) == 0)
            return f16[i].n;
    return 0;
}

static void test_rounded_twice(void **unused)
{
    int all = 0;
    (void)unused;
    for (int i = 0; i < 2 * TL_JUDGES; i++) {
        const tl_judge *f = &tl_judges[i / 2];
        ref_dtype d = i % 2 ? REF_BF16 : REF_F16;
        int n = 0, want = d == REF_F16 ? twice_counts(f->name) : 0;
        for (int u = 0; u < INPUTS; u++) {
            float x = (float)ref_half_value(d, (uint16_t)u);
            uint16_t twice = ref_half_bits(d, (double)judged(f->name, x));
            n += !same(d, twice, rounded_once(f, d, x));
        }
        if (n != want)
            fail_msg("%s in %s: %d inputs at which two roundings are not one, not %d", f->name,
                     d == REF_F16 ? "f16" : "bf16", n, want);
        all += n;
    }
    assert_int_equal(all, 22);
}

/* No judge of math_oracle.h is left out. */
static void test_every_judge(void **unused)
{
    (void)unused;
    for (int i = 0; i < TL_JUDGES; i++) {
        int found = 0;
        for (int k = 0; k < SUBJECTS; k++)
            found += strcmp(subjects[k].judge, tl_judges[i].name) == 0;
        if (found != 1)
            fail_msg("%s stands %d times among the functions tried in f16 and bf16",
                     tl_judges[i].name, found);
    }
}

/* Nor any listed op that makes one number of one number, of attributes pow's exponent alone. */
static void test_every_op(void **unused)
{
    (void)unused;
    int ops = 0;
    for (int i = 0; i < tl_op_count(); i++) {
        const tl_op *op = tl_op_at(i);
        int found = strcmp(op->name, "pow") == 0;
        if (!(op->traits & TL_POINTWISE) || op->n_in != 1 || (op->attr != NULL && !found))
            continue;
        for (int k = 0; k < SUBJECTS; k++)
            found += strcmp(subjects[k].judge, op->name) == 0;
        if (found != 1)
            fail_msg("%s stands %d times among the functions tried in f16 and bf16", op->name,
                     found);
        ops++;
    }
    assert_true(ops > 0);
}

const struct CMUnitTest tl_tests_math_half[] = {
    cmocka_unit_test(test_f16),           cmocka_unit_test(test_bf16),
    cmocka_unit_test(test_rounded_twice), cmocka_unit_test(test_every_judge),
    cmocka_unit_test(test_every_op),
};
const size_t tl_tests_math_half_count = sizeof tl_tests_math_half / sizeof tl_tests_math_half[0];
