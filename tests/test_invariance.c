/* The promise of invariance, as properties of every op case and of a small network: a row's result
 * does not depend on the other rows, on their number or on its place; micro-batches give a
 * parameter's gradient the same bits as the whole batch; so do all numbers of threads, rows of
 * padding, terms that count for nothing, and all layouts in memory. Forward and backward; every
 * listed op has an answer on every axis (tests/support/axes.h). TL_TEST_SEED repeats a run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/model.h"
#include "tensor/threads.h"
#include "tests/support/axes.h"
#include "tests/cases/network.h"

extern const struct CMUnitTest tl_tests_invariance[];
extern const size_t tl_tests_invariance_count;

/* ---- rows stand alone ---- */

/* Any number of rows, in any order, some twice: each as it was among all. */
static void rows_case(tl_tape *t, const case_run *r, uint64_t *state, case_kind kind)
{
    ref_tensor leaf[CASE_INPUTS];
    tl_case_fill(r, state, kind, leaf);
    case_problem p = tl_case_problem_of(t, r, leaf, state, kind);
    int64_t *all = calloc((size_t)p.batch + 2, sizeof *all), /* as many as a trial may take */
        *some = calloc((size_t)p.batch + 2, sizeof *some);
    for (int64_t i = 0; i < p.batch; i++)
        all[i] = i;
    case_problem whole = tl_case_rows_of(&p, (int)p.batch, all);
    case_result want, got;
    tl_case_problem_run(t, &whole, &want);
    bool bad = tl_axes_failed(t, r->label);
    for (int trial = 0; trial < 4 && !bad; trial++) {
        int n = trial == 0 ? 1
                           : 1 + (int)(tl_case_random(state) %
                                       (uint64_t)(trial < 3 ? p.batch + 2 : p.batch));
        int64_t from = (int64_t)(tl_case_random(state) %
                                 (uint64_t)(p.batch - n + 1 > 0 ? p.batch - n + 1 : 1));
        for (int i = 0; i < n; i++) /* any rows; at last a part of the batch, as a micro-batch is */
            some[i] = trial == 3 ? from + i : (int64_t)(tl_case_random(state) % (uint64_t)p.batch);
        case_problem part = tl_case_rows_of(&p, n, some);
        tl_case_problem_run(t, &part, &got);
        bad = tl_axes_failed(t, r->label);
        for (int i = 0; i < want.n_out && !bad; i++) {
            ref_tensor w = tl_case_gather(&want.out[i], n, some);
            tl_axes_same(r->label, "rows of output", i, &got.out[i], &w);
            ref_free(&w);
        }
        for (int i = 0; i < r->n && !bad; i++)
            if (r->c->rows[i] == 'b' && want.grad[i].data != NULL) {
                ref_tensor w = tl_case_gather(&want.grad[i], n, some);
                tl_axes_same(r->label, "rows of the gradient of input", i, &got.grad[i], &w);
                ref_free(&w);
            }
        tl_axes_ran(t, trial == 3 ? AXIS_micro : AXIS_rows);
        tl_case_result_free(&got);
        tl_case_problem_free(&part);
    }
    free(all);
    free(some);
    tl_case_free(r->n, leaf);
    tl_case_result_free(&want);
    tl_case_problem_free(&whole);
    tl_case_problem_free(&p);
}

/* ---- micro-batches ---- */

/* The batch whole, then cut anywhere into two and three parts, empty ones among them, and into
 * single rows. */
static void micro_case(tl_tape *t0, const case_run *r, uint64_t *state, case_kind kind)
{
    ref_tensor leaf[CASE_INPUTS];
    tl_case_fill(r, state, kind, leaf);
    case_problem p = tl_case_problem_of(t0, r, leaf, state, kind);
    case_result want = {.n_out = 0}, got;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int ways = 1; ways <= 4 && p.dy.data != NULL; ways++) {
        int64_t cut[2] = {(int64_t)(tl_case_random(state) % (uint64_t)(p.batch + 1)),
                          (int64_t)(tl_case_random(state) % (uint64_t)(p.batch + 1))};
        tl_grad_clear(t);
        for (int64_t at = 0, part = 0; part == 0 || at < p.batch; part++) {
            int64_t to = ways == 1         ? p.batch
                         : ways == 4       ? at + 1
                         : part < ways - 1 ? cut[part]
                                           : p.batch;
            to = to < at ? at : to;
            tl_case_micro_batch(t, m, r, &p, leaf, at, (int)(to - at));
            at = to;
        }
        case_result *res = ways == 1 ? &want : &got;
        tl_case_parameter_gradients(t, m, r, res);
        if (tl_axes_failed(t, r->label))
            break;
        if (ways > 1) {
            tl_axes_same_results(r->label, &got, &want);
            tl_axes_ran(t, AXIS_micro);
            tl_case_result_free(&got);
        }
    }
    tl_case_result_free(&want);
    tl_case_free(r->n, leaf);
    tl_case_problem_free(&p);
    tl_free(t, m);
}

/* ---- numbers of threads ---- */

static void threads_case(tl_tape *t, const case_run *r, uint64_t *state, case_kind kind)
{
    static const int numbers[] = {1, 2, 3, 8};
    ref_tensor leaf[CASE_INPUTS];
    tl_case_fill(r, state, kind, leaf);
    case_problem p = tl_case_problem_of(t, r, leaf, state, kind);
    case_result want, got;
    int before = tl_threads();
    for (int k = 0; k < 4; k++) {
        tl_threads_set(numbers[k]);
        tl_case_result(t, r, leaf, p.dy.data ? &p.dy : NULL, k == 0 ? &want : &got);
        if (!tl_axes_failed(t, r->label) && k > 0) {
            tl_axes_same_results(r->label, &got, &want);
            tl_axes_ran(t, AXIS_threads);
        }
        if (k > 0)
            tl_case_result_free(&got);
    }
    tl_threads_set(before);
    tl_case_result_free(&want);
    tl_case_free(r->n, leaf);
    tl_case_problem_free(&p);
}

/* ---- every case ---- */

static bool has(const tl_case *c, char kind)
{
    return c->rows != NULL && strchr(c->rows, kind) != NULL && strchr(c->rows, 'b') != NULL;
}
static bool in_rows(const tl_case *c)
{
    return has(c, 'b') && tl_case_batch(c) > 0 && !(c->flags & CASE_BIG);
}
static bool in_parts(const tl_case *c)
{
    return has(c, 'p') && tl_case_differentiable(c) && !(c->flags & CASE_BIG);
}
static bool in_threads(const tl_case *c) { return c->build != NULL; }

static void every_case(bool (*wanted)(const tl_case *),
                       void (*body)(tl_tape *, const case_run *, uint64_t *, case_kind))
{
    tl_axes_begin();
    tl_tape *t = tl_tape_new(NULL);
    for (int i = 0; i < tl_case_count(); i++) {
        tl_dtype d;
        for (int k = 0; wanted(tl_case_at(i)) && tl_case_dtype(tl_case_at(i), k, &d); k++)
            for (case_kind kind = CASE_PLAIN; kind <= CASE_HARD; kind++) {
                case_run r = tl_case_run(tl_case_at(i), d);
                uint64_t state = tl_case_seed(tl_axes_seed(), &r, kind);
                body(t, &r, &state, kind);
            }
    }
    tl_free(t);
    tl_axes_end();
}

static bool in_layouts(const tl_case *c)
{
    return !(c->flags & CASE_BIG) && tl_axis_none(c->op, AXIS_layout) == NULL;
}

static void test_rows(void **unused) { (void)unused, every_case(in_rows, rows_case); }
static void test_micro_batches(void **unused) { (void)unused, every_case(in_parts, micro_case); }
static void test_threads(void **unused) { (void)unused, every_case(in_threads, threads_case); }
static void test_padding(void **unused) { (void)unused, every_case(in_rows, tl_axis_padding); }
static void test_layout(void **unused) { (void)unused, every_case(in_layouts, tl_axis_layout); }

static void test_terms(void **unused)
{
    (void)unused;
    tl_axes_begin();
    tl_axis_terms();
    tl_axes_end();
}

static void test_losses(void **unused)
{
    (void)unused;
    tl_axes_begin();
    tl_axis_losses();
    tl_axes_end();
}

/* Runs last: every listed op has an answer on every axis. */
static void test_answers(void **unused)
{
    (void)unused;
    assert_int_equal(tl_axes_finish(), 0);
}

/* ---- a small network ---- */

static bool alive(const ref_tensor *x)
{
    bool any = false;
    for (int64_t i = 0; x->data != NULL && i < ref_numel(x); i++) {
        any |= ref_get(x, i) != 0;
        if (!isfinite(ref_get(x, i)))
            return false;
    }
    return any;
}

static void network_in(tl_dtype dtype)
{
    uint64_t state = tl_axes_seed();
    net n = {.m = tl_model_new(.seed = tl_axes_seed()), .dtype = dtype};
    n.t = tl_tape_new(n.m);
    net_text x = tl_net_text(&state);
    net_gradients want = tl_net_train(&n, &x, NET_SAMPLES, 23);
    for (int i = 0; i < want.n; i++)
        if (!alive(&want.x[i]))
            tl_axes_complain("network", tl_model_at(n.m, i).name, i,
                             "the gradient is zero or not finite");
    int before = tl_threads();
    for (int trial = 0; trial < 24 && !tl_axes_failed(n.t, "network"); trial++) {
        char label[64];
        int64_t more = trial / 4 % 3 * 2, extra = trial / 12 * 3, part = 1 + trial % 4;
        net_text y = tl_net_padded(&x, more, extra, &state);
        tl_threads_set((int[]){1, 2, 3, 8}[trial % 4]);
        net_gradients got = tl_net_train(&n, &y, part, 23);
        snprintf(label, sizeof label, "network %s, parts of %d, padded by %d and %d",
                 tl_dtype_name(dtype), (int)part, (int)more, (int)extra);
        for (int i = 0; i < want.n; i++)
            tl_axes_same(label, tl_model_at(n.m, i).name, i, &got.x[i], &want.x[i]);
        tl_case_free(got.n, got.x);
    }
    tl_threads_set(before);
    tl_case_free(want.n, want.x);
    tl_free(n.t, n.m);
}

static void test_network(void **unused)
{
    (void)unused;
    tl_axes_begin();
    network_in(TL_F32);
    network_in(TL_F64);
    network_in(TL_BF16);
    network_in(TL_F16);
    tl_axes_end();
}

const struct CMUnitTest tl_tests_invariance[] = {
    cmocka_unit_test(test_rows),    cmocka_unit_test(test_micro_batches),
    cmocka_unit_test(test_threads), cmocka_unit_test(test_padding),
    cmocka_unit_test(test_layout),  cmocka_unit_test(test_terms),
    cmocka_unit_test(test_losses),  cmocka_unit_test(test_network),
    cmocka_unit_test(test_answers)};
const size_t tl_tests_invariance_count = sizeof tl_tests_invariance / sizeof tl_tests_invariance[0];
