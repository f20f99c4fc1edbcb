/* Every op case against its reference, bit for bit (all NaNs one): at every vector level, with one
 * thread and with three, on plain values, on any finite values and with NaN and infinity. Gradients
 * too, where NUMERICS says their bits: one backward, and two that accumulate. TL_TEST_SEED repeats
 * a run.
 *
 * f64 elementary functions are not correctly rounded; NUMERICS 2.3 pins their bits by digests
 * elsewhere. So that everything around them can be compared bit for bit, the references take them
 * from the library's scalar table. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/isa.h"
#include "tensor/threads.h"
#include "tests/cases/cases.h"
#include "tests/support/contract.h"
#include "tests/support/library_f64.h"

extern const struct CMUnitTest tl_tests_reference[];
extern const size_t tl_tests_reference_count;

enum { SHOWN = 2 }; /* of each case and dtype */
static int shown, wrong, compared;
static uint64_t seed0;
static tl_tape *tape; /* one for all runs, reset in between */

/* ---- what differs ---- */

static void complain(const char *where, const case_run *r, const char *what, const char *detail)
{
    wrong++;
    if (shown++ < SHOWN)
        fprintf(stderr, "[ seed %llu ] %s: %s: %s: %s\n", (unsigned long long)seed0, r->label,
                where, what, detail);
}

static void same(const char *where, const case_run *r, const char *what, const ref_tensor *got,
                 const ref_tensor *want)
{
    char text[256] = "nothing came out";
    compared++;
    if (got->data != NULL && ref_same_bits(got, want))
        return;
    if (got->data != NULL)
        snprintf(text, sizeof text, "dtype %d for %d, %d dims for %d, %lld elements for %lld",
                 (int)got->dtype, (int)want->dtype, got->ndim, want->ndim,
                 (long long)ref_numel(got), (long long)ref_numel(want));
    bool alike = got->data != NULL && got->dtype == want->dtype &&
                 ref_numel(got) == ref_numel(want);
    for (int64_t i = 0; alike && i < ref_numel(want); i++) {
        double g = ref_get(got, i), w = ref_get(want, i);
        if (memcmp(&g, &w, sizeof g) != 0 && !(g != g && w != w)) {
            snprintf(text, sizeof text, "element %lld of %lld is %a, %a expected", (long long)i,
                     (long long)ref_numel(want), g, w);
            break;
        }
    }
    complain(where, r, what, text);
}

/* ---- one run of the library ---- */

typedef struct {
    const case_run *r;
    const ref_tensor *leaf;
    char where[64];
} job;

/* What a run has shown of the op: its reference met, at the vector level of the moment. */
static void record(const job *j, const char *axis, int wrong_before)
{
    char level[32];
    snprintf(level, sizeof level, "level %s", tl_isa_now()->name);
    void (*say)(const char *, const char *) = wrong == wrong_before ? tl_ran : tl_ran_failed;
    say(j->r->c->op, axis);
    say(j->r->c->op, level);
}

static tl_tape *fresh_tape(void)
{
    tl_error_clear(tape);
    tl_tape_reset(tape);
    return tape;
}

static void run_forward(const job *j, int n_out, const ref_tensor *want)
{
    tl_tape *t = fresh_tape();
    tl_tensor leaf[CASE_INPUTS], out[CASE_OUTPUTS] = {TL_NONE};
    for (int i = 0; i < j->r->n; i++)
        leaf[i] = tl_case_leaf(t, &j->leaf[i]);
    int n = tl_case_call(t, j->r, leaf, out);
    if (tl_failed(t))
        complain(j->where, j->r, "error", tl_error(t));
    for (int i = 0; i < n_out && !tl_failed(t); i++) {
        char what[32];
        snprintf(what, sizeof what, "output %d", i);
        ref_tensor got = i < n ? tl_case_read(t, out[i]) : (ref_tensor){0};
        same(j->where, j->r, what, &got, &want[i]);
        ref_free(&got);
    }
}

/* Two backwards with a cotangent each; gradients compared after each. */
static void run_gradient(const job *j, const ref_tensor dy[2], ref_tensor want[2][CASE_INPUTS])
{
    tl_tape *t = fresh_tape();
    tl_tensor leaf[CASE_INPUTS];
    for (int pass = 0; pass < 2; pass++) {
        tl_tensor out[CASE_OUTPUTS];
        for (int i = 0; i < j->r->n; i++) {
            bool floats = tl_case_floating(&j->r->in[i]);
            if (pass == 0 || !floats)
                leaf[i] = tl_case_leaf(t, &j->leaf[i]);
            if (pass == 0 && floats)
                tl_require_grad(t, leaf[i]);
        }
        tl_case_call(t, j->r, leaf, out);
        tl_backward(t, out[0], .cotangent = tl_case_leaf(t, &dy[pass]));
        for (int i = 0; i < j->r->n; i++) {
            char what[64];
            if (!tl_case_floating(&j->r->in[i]))
                continue;
            snprintf(what, sizeof what, "gradient of input %d after %d backward", i, pass + 1);
            ref_tensor got = tl_case_read(t, tl_grad(t, leaf[i]));
            if (tl_failed(t))
                complain(j->where, j->r, what, tl_error(t));
            else
                same(j->where, j->r, what, &got, &want[pass][i]);
            ref_free(&got);
        }
    }
}

/* ---- references of a case, then the library at every level ---- */

static void at_every_level(job *j, void (*body)(const job *, void *), void *ctx)
{
    char now[16];
    int threads = tl_threads();
    snprintf(now, sizeof now, "%s", tl_isa_now()->name);
    for (int i = 0; tl_isa_at(i) != NULL; i++)
        for (int n = 1; n <= 3; n += 2) {
            snprintf(j->where + strcspn(j->where, ","), 32, ", %s, %d threads", tl_isa_at(i)->name,
                     n);
            assert_true(tl_isa_force(tl_isa_at(i)->name));
            tl_threads_set(n);
            body(j, ctx);
        }
    tl_isa_force(now);
    tl_threads_set(threads);
}

typedef struct {
    int n;
    ref_tensor out[CASE_OUTPUTS];
    ref_tensor dy[2], grad[2][CASE_INPUTS];
} expected;

static void forward_body(const job *j, void *ctx)
{
    const expected *e = ctx;
    int before = wrong;
    run_forward(j, e->n, e->out);
    record(j, "reference", before);
}

static void gradient_body(const job *j, void *ctx)
{
    expected *e = ctx;
    int before = wrong;
    run_gradient(j, e->dy, e->grad);
    record(j, "reference-grad", before);
}

static const char *const kinds[] = {"plain", "hard", "special"};

static void forward_case(const case_run *r, uint64_t *state, case_kind kind)
{
    ref_tensor leaf[CASE_INPUTS], seen[CASE_INPUTS] = {{0}};
    expected e = {.n = 0};
    job j = {.r = r, .leaf = leaf};
    snprintf(j.where, sizeof j.where, "%s", kinds[kind]);
    tl_case_fill(r, state, kind, leaf);
    for (int i = 0; i < r->n; i++)
        seen[i] = tl_case_seen(&r->in[i], &leaf[i]);
    r->c->reference(r->c, seen, e.out);
    while (e.n < CASE_OUTPUTS && e.out[e.n].data != NULL)
        e.n++;
    at_every_level(&j, forward_body, &e);
    tl_case_free(r->n, leaf);
    tl_case_free(r->n, seen);
    tl_case_free(e.n, e.out);
}

static void new_accumulators(const case_run *r, const ref_tensor *seen, ref_tensor *acc)
{
    for (int i = 0; i < r->n; i++) {
        bool wanted = tl_case_floating(&r->in[i]) && r->c->acc[i] != '-';
        acc[i] = !wanted ? (ref_tensor){0}
                         : ref_like(&seen[i],
                                    r->c->acc[i] == 'd' ? REF_F64 : ref_compute(seen[i].dtype));
    }
}

static void gradient_case(const case_run *r, uint64_t *state, case_kind kind)
{
    ref_tensor leaf[CASE_INPUTS], seen[CASE_INPUTS] = {{0}}, acc[CASE_INPUTS];
    expected e = {.n = 0};
    job j = {.r = r, .leaf = leaf};
    snprintf(j.where, sizeof j.where, "%s", kinds[kind]);
    tl_case_fill(r, state, kind, leaf);
    for (int i = 0; i < r->n; i++)
        seen[i] = tl_case_seen(&r->in[i], &leaf[i]);
    r->c->reference(r->c, seen, e.out);
    new_accumulators(r, seen, acc);
    for (int pass = 0; pass < 2; pass++) {
        e.dy[pass] = tl_case_cotangent(&e.out[0], state, kind);
        r->c->gradient(r->c, seen, e.out, &e.dy[pass], acc);
        for (int i = 0; i < r->n; i++)
            if (acc[i].data !=
                NULL) { /* 10.3: rounded once into the gradient's type, seen from the leaf */
                ref_tensor g = ref_cast(&acc[i], ref_compute(seen[i].dtype));
                e.grad[pass][i] = tl_case_unseen(&r->in[i], &g);
                ref_free(&g);
            }
    }
    at_every_level(&j, gradient_body, &e);
    tl_case_free(r->n, leaf);
    tl_case_free(r->n, seen);
    tl_case_free(r->n, acc);
    tl_case_free(CASE_OUTPUTS, e.out);
    tl_case_free(2, e.dy);
    tl_case_free(CASE_INPUTS, e.grad[0]);
    tl_case_free(CASE_INPUTS, e.grad[1]);
}

/* ---- all cases ---- */

static bool wanted(const tl_case *c)
{
    const char *only = getenv("TL_TEST_OP"); /* for work on one op */
    return only == NULL || strcmp(only, c->op) == 0;
}

static void all_cases(void (*run)(const case_run *, uint64_t *, case_kind), bool gradients)
{
    const char *env = getenv("TL_TEST_SEED");
    seed0 = env != NULL ? strtoull(env, NULL, 0) : 1;
    printf("TL_TEST_SEED=%llu\n", (unsigned long long)seed0);
    const ref_f64_table *before = ref_set_f64_functions(&library_f64);
    wrong = compared = 0;
    tape = tl_tape_new(NULL);
    for (int i = 0; i < tl_case_count(); i++) {
        const tl_case *c = tl_case_at(i);
        tl_dtype d;
        for (int k = 0; wanted(c) && (!gradients || c->gradient != NULL) && tl_case_dtype(c, k, &d);
             k++) {
            case_run r = tl_case_run(c, d);
            shown = 0;
            for (case_kind kind = CASE_PLAIN; kind < (c->flags & CASE_BIG ? CASE_HARD : CASE_KINDS);
                 kind++) {
                uint64_t state = tl_case_seed(seed0, &r, kind);
                run(&r, &state, kind);
            }
        }
    }
    ref_set_f64_functions(before);
    tl_free(tape);
    printf("%d comparisons, %d differ\n", compared, wrong);
    assert_int_equal(wrong, 0);
    assert_true(compared > 0);
}

static void test_forward(void **unused)
{
    (void)unused;
    all_cases(forward_case, false);
}

static void test_gradients(void **unused)
{
    (void)unused;
    all_cases(gradient_case, true);
}

const struct CMUnitTest tl_tests_reference[] = {cmocka_unit_test(test_forward),
                                                cmocka_unit_test(test_gradients)};
const size_t tl_tests_reference_count = sizeof tl_tests_reference / sizeof tl_tests_reference[0];
