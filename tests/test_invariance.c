/* The promise of invariance, as properties of every op case and of a small network: a row's result does not depend on the other rows,
 * on their number or on its place; micro-batches give a parameter's gradient the same bits as the whole batch; so do all numbers of
 * threads, padded rows and padded positions. TL_TEST_SEED repeats a run. */
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
#include "tests/cases/cases.h"
#include "tests/cases/network.h"

extern const struct CMUnitTest tl_tests_invariance[];
extern const size_t tl_tests_invariance_count;

static uint64_t seed0;
static int wrong, compared;

static void begin(void)
{
    const char *env = getenv("TL_TEST_SEED");
    seed0 = env != NULL ? strtoull(env, NULL, 0) : 1;
    printf("TL_TEST_SEED=%llu\n", (unsigned long long)seed0);
    wrong = compared = 0;
}

static void end(void)
{
    printf("%d comparisons, %d differ\n", compared, wrong);
    assert_int_equal(wrong, 0);
    assert_true(compared > 0);
}

static void complain(const char *label, const char *what, int k, const char *detail)
{
    if (wrong++ < 40)
        fprintf(stderr, "[ seed %llu ] %s: %s %d: %s\n", (unsigned long long)seed0, label, what, k, detail);
}

static void same(const char *label, const char *what, int k, const ref_tensor *got, const ref_tensor *want)
{
    compared++;
    if (want->data == NULL || got->data == NULL || !ref_same_bits(got, want))
        complain(label, what, k, want->data == NULL || got->data == NULL ? "nothing came out" : "other bits");
}

static void same_results(const char *label, const case_result *got, const case_result *want)
{
    for (int i = 0; i < want->n_out; i++)
        same(label, "output", i, &got->out[i], &want->out[i]);
    for (int i = 0; i < CASE_INPUTS; i++)
        if (want->grad[i].data != NULL)
            same(label, "gradient of input", i, &got->grad[i], &want->grad[i]);
}

static bool failed(tl_tape *t, const char *label)
{
    if (tl_failed(t))
        complain(label, "error", 0, tl_error(t));
    bool f = tl_failed(t);
    tl_error_clear(t);
    return f;
}

/* ---- rows stand alone ---- */

/* Any number of rows, in any order, some twice: each as it was among all. */
static void rows_case(tl_tape *t, const case_run *r, uint64_t *state, case_kind kind)
{
    ref_tensor leaf[CASE_INPUTS];
    tl_case_fill(r, state, kind, leaf);
    case_problem p = tl_case_problem_of(t, r, leaf, state, kind);
    int64_t all[512], some[512];
    for (int64_t i = 0; i < p.batch; i++)
        all[i] = i;
    case_problem whole = tl_case_rows_of(&p, (int)p.batch, all);
    case_result want, got;
    tl_case_problem_run(t, &whole, &want);
    bool bad = failed(t, r->label);
    for (int trial = 0; trial < 3 && !bad; trial++) {
        int n = trial == 0 ? 1 : 1 + (int)(tl_case_random(state) % (uint64_t)(p.batch + 2));
        for (int i = 0; i < n; i++)
            some[i] = (int64_t)(tl_case_random(state) % (uint64_t)p.batch);
        case_problem part = tl_case_rows_of(&p, n, some);
        tl_case_problem_run(t, &part, &got);
        bad = failed(t, r->label);
        for (int i = 0; i < want.n_out && !bad; i++) {
            ref_tensor w = tl_case_gather(&want.out[i], n, some);
            same(r->label, "rows of output", i, &got.out[i], &w);
            ref_free(&w);
        }
        for (int i = 0; i < r->n && !bad; i++)
            if (r->c->rows[i] == 'b' && want.grad[i].data != NULL) {
                ref_tensor w = tl_case_gather(&want.grad[i], n, some);
                same(r->label, "rows of the gradient of input", i, &got.grad[i], &w);
                ref_free(&w);
            }
        tl_case_result_free(&got);
        tl_case_problem_free(&part);
    }
    tl_case_free(r->n, leaf);
    tl_case_result_free(&want);
    tl_case_problem_free(&whole);
    tl_case_problem_free(&p);
}

/* ---- micro-batches ---- */

/* The batch whole, then cut anywhere into two and three parts, empty ones among them, and into single rows. */
static void micro_case(tl_tape *t0, const case_run *r, uint64_t *state, case_kind kind)
{
    ref_tensor leaf[CASE_INPUTS];
    tl_case_fill(r, state, kind, leaf);
    case_problem p = tl_case_problem_of(t0, r, leaf, state, kind);
    case_result want = {.n_out = 0}, got;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int ways = 1; ways <= 4 && p.dy.data != NULL; ways++) {
        int64_t cut[2] = {(int64_t)(tl_case_random(state) % (uint64_t)(p.batch + 1)), (int64_t)(tl_case_random(state) % (uint64_t)(p.batch + 1))};
        tl_grad_clear(t);
        for (int64_t at = 0, part = 0; part == 0 || at < p.batch; part++) {
            int64_t to = ways == 1 ? p.batch : ways == 4 ? at + 1 : part < ways - 1 ? cut[part] : p.batch;
            to = to < at ? at : to;
            tl_case_micro_batch(t, m, r, &p, leaf, at, (int)(to - at));
            at = to;
        }
        case_result *res = ways == 1 ? &want : &got;
        tl_case_parameter_gradients(t, m, r, res);
        if (failed(t, r->label))
            break;
        if (ways > 1) {
            same_results(r->label, &got, &want);
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
        if (!failed(t, r->label) && k > 0)
            same_results(r->label, &got, &want);
        if (k > 0)
            tl_case_result_free(&got);
    }
    tl_threads_set(before);
    tl_case_result_free(&want);
    tl_case_free(r->n, leaf);
    tl_case_problem_free(&p);
}

/* ---- every case ---- */

static bool has(const tl_case *c, char kind) { return c->rows != NULL && strchr(c->rows, kind) != NULL && strchr(c->rows, 'b') != NULL; }
static bool in_rows(const tl_case *c) { return has(c, 'b') && tl_case_batch(c) > 0 && !(c->flags & CASE_BIG); }
static bool in_parts(const tl_case *c) { return has(c, 'p') && tl_case_differentiable(c) && !(c->flags & CASE_BIG); }
static bool in_threads(const tl_case *c) { return c->build != NULL; }

static void every_case(bool (*wanted)(const tl_case *), void (*body)(tl_tape *, const case_run *, uint64_t *, case_kind))
{
    begin();
    tl_tape *t = tl_tape_new(NULL);
    for (int i = 0; i < tl_case_count(); i++) {
        tl_dtype d;
        for (int k = 0; wanted(tl_case_at(i)) && tl_case_dtype(tl_case_at(i), k, &d); k++)
            for (case_kind kind = CASE_PLAIN; kind <= CASE_HARD; kind++) {
                case_run r = tl_case_run(tl_case_at(i), d);
                uint64_t state = tl_case_seed(seed0, &r, kind);
                body(t, &r, &state, kind);
            }
    }
    tl_free(t);
    end();
}

static void test_rows(void **unused) { (void)unused, every_case(in_rows, rows_case); }
static void test_micro_batches(void **unused) { (void)unused, every_case(in_parts, micro_case); }
static void test_threads(void **unused) { (void)unused, every_case(in_threads, threads_case); }

/* ---- zero terms in lanes ---- */

/* The same row with `before` and `after` elements of value `pad` around it. */
static tl_tensor padded(tl_tape *t, const ref_tensor *row, int64_t before, int64_t after, double pad)
{
    int64_t n = row->dim[0];
    ref_tensor x = ref_new(row->dtype, 2, (int64_t[]){1, before + n + after});
    for (int64_t i = 0; i < before + n + after; i++)
        ref_set(&x, i, i < before || i >= before + n ? pad : ref_get(row, i - before));
    tl_tensor h = tl_case_leaf(t, &x);
    ref_free(&x);
    return h;
}

/* What is left of the padded results when the padding is cut off: sum, softmax, log_softmax, losses. */
static void padded_results(tl_tape *t, const ref_tensor *row, int64_t before, int64_t after, case_result *res)
{
    int64_t n = row->dim[0], target = before + n / 2;
    *res = (case_result){.n_out = 4};
    tl_tape_reset(t);
    tl_tensor z = padded(t, row, before, after, -(double)INFINITY), targets = tl_data(t, &target, TL_I64, TL_DIMS(1));
    tl_tensor out[4] = {tl_sum(t, padded(t, row, before, after, 0), TL_DIMS(1), false), tl_softmax(t, z, -1), tl_log_softmax(t, z, -1),
                        tl_cross_entropy(t, z, targets, TL_SUM)};
    for (int i = 0; i < 4; i++)
        res->out[i] = tl_case_read(t, i == 1 || i == 2 ? tl_slice(t, out[i], 1, before, before + n, 1) : out[i]);
}

static void test_zero_terms(void **unused)
{
    static const int64_t lengths[] = {1, 5, 31, 32, 33, 70, 300};
    (void)unused;
    begin();
    uint64_t state = seed0;
    tl_tape *t = tl_tape_new(NULL);
    for (int k = 0; k < 7 * 4; k++) {
        tl_shape s = TL_DIMS(lengths[k / 4]);
        ref_tensor row = tl_case_values((ref_dtype)(k % 4), &s, &state, CASE_PLAIN);
        case_result want, got;
        padded_results(t, &row, 0, 0, &want);
        for (int trial = 0; trial < 6 && !failed(t, "padding"); trial++) {
            padded_results(t, &row, (int64_t)(tl_case_random(&state) % 70), (int64_t)(tl_case_random(&state) % 70), &got);
            same_results("padding", &got, &want);
            tl_case_result_free(&got);
        }
        tl_case_result_free(&want);
        ref_free(&row);
    }
    tl_free(t);
    end();
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
    uint64_t state = seed0;
    net n = {.m = tl_model_new(.seed = seed0), .dtype = dtype};
    n.t = tl_tape_new(n.m);
    net_text x = tl_net_text(&state);
    net_gradients want = tl_net_train(&n, &x, NET_SAMPLES, 23);
    for (int i = 0; i < want.n; i++)
        if (!alive(&want.x[i]))
            complain("network", tl_model_at(n.m, i).name, i, "the gradient is zero or not finite");
    int before = tl_threads();
    for (int trial = 0; trial < 24 && !failed(n.t, "network"); trial++) {
        char label[64];
        int64_t more = trial / 4 % 3 * 2, extra = trial / 12 * 3, part = 1 + trial % 4;
        net_text y = tl_net_padded(&x, more, extra, &state);
        tl_threads_set((int[]){1, 2, 3, 8}[trial % 4]);
        net_gradients got = tl_net_train(&n, &y, part, 23);
        snprintf(label, sizeof label, "network %s, parts of %d, padded by %d and %d", tl_dtype_name(dtype), (int)part, (int)more, (int)extra);
        for (int i = 0; i < want.n; i++)
            same(label, tl_model_at(n.m, i).name, i, &got.x[i], &want.x[i]);
        tl_case_free(got.n, got.x);
    }
    tl_threads_set(before);
    tl_case_free(want.n, want.x);
    tl_free(n.t, n.m);
}

static void test_network(void **unused)
{
    (void)unused;
    begin();
    network_in(TL_F32);
    network_in(TL_F64);
    network_in(TL_BF16);
    network_in(TL_F16);
    end();
}

const struct CMUnitTest tl_tests_invariance[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_micro_batches), cmocka_unit_test(test_threads),
                                                 cmocka_unit_test(test_zero_terms), cmocka_unit_test(test_network)};
const size_t tl_tests_invariance_count = sizeof tl_tests_invariance / sizeof tl_tests_invariance[0];
