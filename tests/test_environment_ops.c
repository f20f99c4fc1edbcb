/* The caller's floating-point environment decides no bit of an op, of its first or its second
 * derivatives. TL_TEST_SEED repeats a run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally.h>

#include "tests/cases/cases.h"
#include "tests/support/environment.h"

extern const struct CMUnitTest tl_tests_environment_ops[];
extern const size_t tl_tests_environment_ops_count;

enum { HASHES = CASE_OUTPUTS + CASE_INPUTS * (CASE_INPUTS + 1) };

typedef struct {
    int n;
    char hex[HASHES][65];
    char error[TL_MESSAGE_MAX];
} digest;

static tl_tensor cotangent(tl_tape *t, tl_tensor y)
{
    return tl_shift(t, tl_scale(t, tl_detach(t, y), 0.3), 0.7);
}

/* The first derivatives of y into x[n .. ], then the second ones behind; how many there are. */
static int derivatives(tl_tape *t, tl_tensor y, const tl_tensor *in, int n_in, tl_tensor *x)
{
    int n = 0;
    if (n_in == 0 || tl_gradients(t, y, in, n_in, cotangent(t, y), x) != TL_OK)
        return 0;
    n = n_in;
    for (int i = 0; i < n_in && !tl_failed(t); i++)
        if (tl_gradients(t, x[i], in, n_in, cotangent(t, x[i]), x + n) == TL_OK)
            n += n_in;
    return n;
}

static bool op_case(tl_tape *t, const case_run *r, const ref_tensor *leaf, int e, digest *d)
{
    tl_tensor in[CASE_INPUTS], wanted[CASE_INPUTS], out[HASHES];
    int n_wanted = 0;
    tl_tape_reset(t);
    for (int i = 0; i < r->n; i++) {
        in[i] = tl_case_leaf(t, &leaf[i]);
        if (tl_case_differentiable(r->c) && tl_case_floating(&r->in[i])) {
            tl_require_grad(t, in[i]);
            wanted[n_wanted++] = in[i];
        }
    }
    environment_enter(e);
    d->n = tl_case_call(t, r, in, out);
    if (!tl_failed(t))
        d->n += derivatives(t, out[0], wanted, n_wanted, out + d->n);
    bool kept = environment_leave(e);
    snprintf(d->error, sizeof d->error, "%s", tl_failed(t) ? tl_error(t) : "");
    tl_error_clear(t); /* a second derivative that there is not: the first ones are compared */
    for (int i = 0; i < d->n; i++)
        tl_sha256(t, out[i], d->hex[i]);
    if (tl_failed(t))
        fail_msg("%s: %s", r->label, tl_error(t));
    return kept;
}

static int compared, wrong;

static void compare_case(tl_tape *t, const case_run *r, uint64_t seed0, case_kind kind)
{
    static digest want, got;
    ref_tensor leaf[CASE_INPUTS] = {{0}};
    uint64_t seed = tl_case_seed(seed0, r, kind);
    tl_case_fill(r, &seed, kind, leaf);
    for (int e = 0; e < environments(); e++) {
        digest *d = e == 0 ? &want : &got;
        bool kept = op_case(t, r, leaf, e, d),
             same = kept && d->n == want.n && strcmp(d->error, want.error) == 0;
        int at = 0;
        while (same && at < d->n && strcmp(d->hex[at], want.hex[at]) == 0)
            at++;
        compared += d->n;
        if ((!same || at < d->n) && wrong++ < 20)
            fprintf(stderr, "[ seed %llu ] %s, kind %d, %s: %s %d of %d%s%s\n",
                    (unsigned long long)seed0, r->label, (int)kind, environment_name(e),
                    kept ? "other bits in result" : "the environment is changed;", at, want.n,
                    d->error[0] ? ": " : "", d->error);
    }
    tl_case_free(CASE_INPUTS, leaf);
}

static void every_op_and_its_derivatives(void **unused)
{
    const char *env = getenv("TL_TEST_SEED");
    uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : 1;
    tl_tape *t = tl_tape_new(NULL);
    tl_dtype dtype;
    (void)unused;
    printf("TL_TEST_SEED=%llu\n", (unsigned long long)seed);
    compared = wrong = 0;
    for (int i = 0; i < tl_case_count(); i++)
        for (int j = 0;
             !(tl_case_at(i)->flags & CASE_BIG) && tl_case_dtype(tl_case_at(i), j, &dtype); j++) {
            case_run r = tl_case_run(tl_case_at(i), dtype);
            for (int kind = CASE_PLAIN; kind <= CASE_HARD; kind++)
                compare_case(t, &r, seed, (case_kind)kind);
        }
    tl_free(t);
    printf("%d results compared, %d cases differ\n", compared, wrong);
    assert_int_equal(wrong, 0);
    assert_true(compared > 5000);
}

const struct CMUnitTest tl_tests_environment_ops[] = {
    cmocka_unit_test(every_op_and_its_derivatives),
};
const size_t tl_tests_environment_ops_count = sizeof tl_tests_environment_ops /
                                              sizeof tl_tests_environment_ops[0];
