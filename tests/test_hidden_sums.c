/* Sums that masks cannot enter - exponentials in softmax, attention and cross entropy, squares in
 * norms - on rows whose terms differ much in size, against the reference at every level; and how
 * often such rows tell the lanes from other orders. TL_TEST_SEED repeats a run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/isa.h"
#include "tests/cases/cases.h"
#include "tests/support/reveal_probes.h"

extern const struct CMUnitTest tl_tests_hidden_sums[];
extern const size_t tl_tests_hidden_sums_count;

enum { SPREAD_EVEN, SPREAD_POWERS, SPREADS };

static uint64_t seed_of(void)
{
    const char *env = getenv("TL_TEST_SEED");
    uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : 1;
    printf("TL_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* Evenly in [-20, 20), so that exponentials span 2^57; or powers of two times something, so that
 * squares do. */
static double spread(int how, uint64_t *state)
{
    double u = tl_case_uniform(state), v = tl_case_uniform(state);
    if (how == SPREAD_EVEN)
        return 40 * u - 20;
    return (tl_case_random(state) & 1 ? 1 : -1) * ldexp(1 + v, (int)(24 * u) - 12);
}

static bool is_hidden(const char *op)
{
    for (int i = 0; i < reveal_probe_count(); i++)
        if (reveal_probe_at(i)->hidden != NULL && strcmp(reveal_probe_at(i)->op, op) == 0)
            return true;
    return false;
}

static void fill(const case_run *r, int how, uint64_t *state, ref_tensor *leaf)
{
    tl_case_fill(r, state, CASE_PLAIN, leaf);
    for (int i = 0; i < r->n; i++)
        for (int64_t k = 0; tl_case_floating(&r->in[i]) && r->in[i].domain == CASE_NORMAL &&
                            k < ref_numel(&leaf[i]);
             k++)
            ref_set(&leaf[i], k, spread(how, state));
}

static int compared;

static void compare(tl_tape *t, const case_run *r, const ref_tensor *leaf, const ref_tensor *want)
{
    case_result got;
    tl_case_result(t, r, leaf, NULL, &got);
    if (tl_failed(t))
        fail_msg("%s: %s", r->label, tl_error(t));
    for (int i = 0; i < got.n_out; i++, compared++)
        if (!ref_same_bits(&got.out[i], &want[i]))
            fail_msg("%s, %s: output %d is not the reference's", r->label, tl_isa_now()->name, i);
    tl_case_result_free(&got);
}

static void one_case(tl_tape *t, const case_run *r, int how, uint64_t seed)
{
    ref_tensor leaf[CASE_INPUTS], seen[CASE_INPUTS] = {{0}}, want[CASE_OUTPUTS] = {{0}};
    uint64_t state = tl_case_seed(seed, r, CASE_PLAIN) + (uint64_t)how;
    fill(r, how, &state, leaf);
    for (int i = 0; i < r->n; i++)
        seen[i] = tl_case_seen(&r->in[i], &leaf[i]);
    r->c->reference(r->c, seen, want);
    for (int l = 0; tl_isa_at(l) != NULL; l++) {
        tl_isa_force(tl_isa_at(l)->name);
        compare(t, r, leaf, want);
    }
    tl_case_free(r->n, leaf);
    tl_case_free(r->n, seen);
    tl_case_free(CASE_OUTPUTS, want);
}

/* f64 is left to sums of squares: other f64 functions are not correctly rounded, and test_reference
 * has them. */
static void test_rows_of_all_sizes(void **unused)
{
    (void)unused;
    char now[16];
    uint64_t seed = seed_of();
    tl_tape *t = tl_tape_new(NULL);
    snprintf(now, sizeof now, "%s", tl_isa_now()->name);
    compared = 0;
    for (int i = 0; i < tl_case_count(); i++) {
        const tl_case *c = tl_case_at(i);
        tl_dtype d;
        for (int k = 0; is_hidden(c->op) && tl_case_dtype(c, k, &d); k++) {
            case_run r = tl_case_run(c, d);
            for (int how = 0; how < SPREADS && (d != TL_F64 || strcmp(c->op, "square_sum") == 0);
                 how++)
                one_case(t, &r, how, seed);
        }
    }
    tl_isa_force(now);
    tl_free(t);
    printf("%d comparisons\n", compared);
    assert_true(compared > 500);
}

/* ---- what other orders would give ---- */

/* n terms to `lanes` lanes, which meet by halves, or one after the other. */
static float by_lanes(const float *x, int n, int lanes, bool in_order)
{
    float lane[64] = {0};
    for (int i = 0; i < n; i++)
        lane[i % lanes] += x[i];
    for (int w = lanes / 2; !in_order && w >= 1; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] += lane[l + w];
    for (int l = 1; in_order && l < lanes; l++)
        lane[0] += lane[l];
    return lane[0];
}

static float neighbours(const float *x, int n)
{
    return n == 1 ? x[0] : neighbours(x, n / 2) + neighbours(x + n / 2, n - n / 2);
}

static float in_f64(const float *x, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++)
        s += (double)x[i];
    return (float)s;
}

/* Each way of adding but the lanes', on the same row: does it give other bits? */
static void count_differences(const float *x, int n, int count[6])
{
    float right = by_lanes(x, n, 32, false);
    count[0] += by_lanes(x, n, 1, false) != right;
    count[1] += by_lanes(x, n, 16, false) != right;
    count[2] += by_lanes(x, n, 64, false) != right;
    count[3] += by_lanes(x, n, 32, true) != right;
    count[4] += neighbours(x, n) != right;
    count[5] += in_f64(x, n) != right;
}

static void test_rows_tell_orders_apart(void **unused)
{
    (void)unused;
    static const char *const names[] = {"one chain",          "16 lanes",      "64 lanes",
                                        "lanes met in order", "by neighbours", "in f64"};
    enum { ROWS = 200, N = 301 };
    uint64_t state = seed_of();
    for (int how = 0; how < SPREADS; how++) {
        int count[6] = {0};
        for (int r = 0; r < ROWS; r++) {
            float x[N];
            for (int i = 0; i < N; i++) {
                double v = spread(how, &state);
                x[i] = (float)(how == SPREAD_EVEN ? exp(v - 20) : v * v);
            }
            count_differences(x, N, count);
        }
        for (int k = 0; k < 6; k++) {
            printf("%s: %s differs in %d of %d rows\n",
                   how == SPREAD_EVEN ? "exponentials" : "squares", names[k], count[k], ROWS);
            assert_true(count[k] > ROWS / 40);
        }
    }
}

const struct CMUnitTest tl_tests_hidden_sums[] = {cmocka_unit_test(test_rows_of_all_sizes),
                                                  cmocka_unit_test(test_rows_tell_orders_apart)};
const size_t tl_tests_hidden_sums_count = sizeof tl_tests_hidden_sums /
                                          sizeof tl_tests_hidden_sums[0];
