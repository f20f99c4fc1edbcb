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
    if (want->data != NULL && (got->data == NULL || !ref_same_bits(got, want)))
        complain(label, what, k, got->data == NULL ? "nothing came out" : "other bits");
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

/* Rows `row` of x along axis 0. */
static ref_tensor gather(const ref_tensor *x, int n, const int64_t *row)
{
    ref_tensor shape = *x;
    shape.dim[0] = n;
    ref_tensor y = ref_like(&shape, x->dtype);
    size_t bytes = x->dim[0] == 0 ? 0 : (size_t)(ref_numel(x) / x->dim[0]) * (size_t)ref_itemsize(x->dtype);
    for (int i = 0; i < n; i++)
        memcpy((char *)y.data + (size_t)i * bytes, (const char *)x->data + (size_t)row[i] * bytes, bytes);
    return y;
}

typedef struct {
    case_run r;            /* inputs contiguous */
    ref_tensor in[CASE_INPUTS];
    int64_t batch;
    ref_tensor dy;         /* no data: forward only */
} problem;

/* The case as the op sees it, row-major, with a cotangent where it has a gradient. */
static problem problem_of(tl_tape *t, const case_run *r, uint64_t *state, case_kind kind)
{
    problem p = {.r = *r};
    ref_tensor leaf[CASE_INPUTS];
    case_result res;
    tl_case_fill(r, state, kind, leaf);
    for (int i = 0; i < r->n; i++) {
        p.in[i] = tl_case_seen(&r->in[i], &leaf[i]);
        p.r.in[i].layout = CASE_ROW;
        if (r->c->rows != NULL && r->c->rows[i] == 'b')
            p.batch = r->in[i].shape.dim[0];
    }
    tl_case_result(t, r, leaf, NULL, &res);
    if (!failed(t, r->label) && tl_case_differentiable(r->c))
        p.dy = tl_case_cotangent(&res.out[0], state, kind);
    tl_case_result_free(&res);
    tl_case_free(r->n, leaf);
    return p;
}

static void problem_free(problem *p)
{
    tl_case_free(p->r.n, p->in);
    ref_free(&p->dy);
}

/* The problem with rows `row` of its batch. */
static problem rows_of(const problem *p, int n, const int64_t *row)
{
    problem q = {.r = p->r, .batch = n, .dy = p->dy.data ? gather(&p->dy, n, row) : (ref_tensor){0}};
    for (int i = 0; i < p->r.n; i++) {
        bool b = p->r.c->rows[i] == 'b' && p->in[i].data != NULL;
        q.in[i] = p->in[i].data == NULL ? (ref_tensor){0} : b ? gather(&p->in[i], n, row) : ref_copy(&p->in[i]);
        if (b)
            q.r.in[i].shape.dim[0] = n;
        q.r.in[i].leaf = q.r.in[i].shape;
    }
    return q;
}

static void run(tl_tape *t, const problem *p, case_result *res)
{
    tl_case_result(t, &p->r, p->in, p->dy.data ? &p->dy : NULL, res);
}

/* ---- rows stand alone ---- */

/* Any number of rows, in any order, some twice: each as it was among all. */
static void rows_case(tl_tape *t, const case_run *r, uint64_t *state, case_kind kind)
{
    problem p = problem_of(t, r, state, kind);
    int64_t all[512], some[512];
    for (int64_t i = 0; i < p.batch; i++)
        all[i] = i;
    problem whole = rows_of(&p, (int)p.batch, all);
    case_result want, got;
    run(t, &whole, &want);
    bool bad = failed(t, r->label);
    for (int trial = 0; trial < 3 && !bad; trial++) {
        int n = trial == 0 ? 1 : 1 + (int)(tl_case_random(state) % (uint64_t)(p.batch + 2));
        for (int i = 0; i < n; i++)
            some[i] = (int64_t)(tl_case_random(state) % (uint64_t)p.batch);
        problem part = rows_of(&p, n, some);
        run(t, &part, &got);
        bad = failed(t, r->label);
        for (int i = 0; i < want.n_out && !bad; i++) {
            ref_tensor w = gather(&want.out[i], n, some);
            same(r->label, "rows of output", i, &got.out[i], &w);
            ref_free(&w);
        }
        for (int i = 0; i < r->n && !bad; i++)
            if (r->c->rows[i] == 'b' && want.grad[i].data != NULL) {
                ref_tensor w = gather(&want.grad[i], n, some);
                same(r->label, "rows of the gradient of input", i, &got.grad[i], &w);
                ref_free(&w);
            }
        tl_case_result_free(&got);
        problem_free(&part);
    }
    tl_case_result_free(&want);
    problem_free(&whole);
    problem_free(&p);
}

/* ---- micro-batches ---- */

static tl_tensor parameter(tl_tape *t, tl_model *m, const case_input *in, int i, const ref_tensor *leaf)
{
    char name[16];
    snprintf(name, sizeof name, "p%d", i);
    bool old = !tl_is_none(tl_model_find(m, name));
    tl_tensor p = tl_param(t, m, name, in->dtype, in->leaf, .kind = TL_INIT_ZEROS);
    if (!old)
        tl_write(m, p, leaf->data, (size_t)ref_numel(leaf) * (size_t)ref_itemsize(leaf->dtype));
    return p;
}

/* Backward over the rows [at, at + n) with the parameters of m, as memory holds them in the case. */
static void micro_batch(tl_tape *t, tl_model *m, const case_run *r, const problem *p, const ref_tensor *leaf, int64_t at, int n)
{
    int64_t row[512];
    for (int i = 0; i < n; i++)
        row[i] = at + i;
    problem part = rows_of(p, n, row);
    tl_tensor in[CASE_INPUTS], out[CASE_OUTPUTS];
    tl_tape_reset(t);
    for (int i = 0; i < r->n; i++) {
        bool param = r->c->rows[i] == 'p' && tl_case_floating(&r->in[i]);
        in[i] = param ? tl_case_view(t, &r->in[i], parameter(t, m, &r->in[i], i, &leaf[i])) : tl_case_leaf(t, &part.in[i]);
    }
    r->c->build(t, in, r->c, out);
    tl_backward(t, out[0], .cotangent = tl_case_leaf(t, &part.dy));
    problem_free(&part);
}

static void gradients_of(tl_tape *t, tl_model *m, const case_run *r, case_result *res)
{
    char name[16];
    *res = (case_result){.n_out = 0};
    for (int i = 0; i < r->n; i++) {
        snprintf(name, sizeof name, "p%d", i);
        tl_tensor p = tl_model_find(m, name);
        if (!tl_is_none(p))
            res->grad[i] = tl_case_read(t, tl_grad(t, p));
    }
}

/* The batch whole, then cut anywhere into two and three parts, empty ones among them, and into single rows. */
static void micro_case(tl_tape *t0, const case_run *r, uint64_t *state, case_kind kind)
{
    ref_tensor leaf[CASE_INPUTS];
    uint64_t again = *state;
    problem p = problem_of(t0, r, state, kind);
    tl_case_fill(r, &again, kind, leaf);
    case_result want = {.n_out = 0}, got;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int ways = 1; ways <= 4 && p.dy.data != NULL; ways++) {
        int64_t cut[2] = {(int64_t)(tl_case_random(state) % (uint64_t)(p.batch + 1)), (int64_t)(tl_case_random(state) % (uint64_t)(p.batch + 1))};
        tl_grad_clear(t);
        for (int64_t at = 0, part = 0; part == 0 || at < p.batch; part++) {
            int64_t to = ways == 1 ? p.batch : ways == 4 ? at + 1 : part < ways - 1 ? cut[part] : p.batch;
            to = to < at ? at : to;
            micro_batch(t, m, r, &p, leaf, at, (int)(to - at));
            at = to;
        }
        case_result *res = ways == 1 ? &want : &got;
        gradients_of(t, m, r, res);
        if (failed(t, r->label))
            break;
        if (ways > 1) {
            same_results(r->label, &got, &want);
            tl_case_result_free(&got);
        }
    }
    tl_case_result_free(&want);
    tl_case_free(r->n, leaf);
    problem_free(&p);
    tl_free(t, m);
}

/* ---- numbers of threads ---- */

static void threads_case(tl_tape *t, const case_run *r, uint64_t *state, case_kind kind)
{
    static const int numbers[] = {1, 2, 3, 8};
    ref_tensor leaf[CASE_INPUTS];
    uint64_t again = *state;
    problem p = problem_of(t, r, state, kind);
    tl_case_fill(r, &again, kind, leaf);
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
    problem_free(&p);
}

/* ---- every case ---- */

static bool has(const tl_case *c, char kind) { return c->rows != NULL && strchr(c->rows, kind) != NULL && strchr(c->rows, 'b') != NULL; }
static bool in_rows(const tl_case *c) { return has(c, 'b') && !(c->flags & CASE_BIG); }
static bool in_parts(const tl_case *c) { return has(c, 'p') && tl_case_differentiable(c) && !(c->flags & CASE_BIG); }
static bool in_threads(const tl_case *c) { return (c->flags & CASE_BIG) != 0; }

static void every_case(bool (*wanted)(const tl_case *), void (*body)(tl_tape *, const case_run *, uint64_t *, case_kind))
{
    begin();
    tl_tape *t = tl_tape_new(NULL);
    for (int i = 0; i < tl_case_count(); i++) {
        tl_dtype d;
        for (int k = 0; wanted(tl_case_at(i)) && tl_case_dtype(tl_case_at(i), k, &d); k++)
            for (case_kind kind = CASE_PLAIN; kind <= CASE_HARD; kind++) {
                case_run r = tl_case_run(tl_case_at(i), d);
                uint64_t state = seed0 + (uint64_t)i * 7919 + (uint64_t)k * 31 + (uint64_t)kind;
                body(t, &r, &state, kind);
            }
    }
    tl_free(t);
    end();
}

static void test_rows(void **unused) { (void)unused, every_case(in_rows, rows_case); }
static void test_micro_batches(void **unused) { (void)unused, every_case(in_parts, micro_case); }
static void test_threads(void **unused) { (void)unused, every_case(in_threads, threads_case); }

const struct CMUnitTest tl_tests_invariance[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_micro_batches), cmocka_unit_test(test_threads)};
const size_t tl_tests_invariance_count = sizeof tl_tests_invariance / sizeof tl_tests_invariance[0];
