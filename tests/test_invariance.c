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

extern /* ---- zero terms in lanes ---- */

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
                        tl_cross_entropy(t, z, targets, .reduction = TL_SUM)};
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

enum { VOCABULARY = 11, WIDTH = 12, HIDDEN = 20, HEADS = 3, SAMPLES = 5, LENGTH = 7, LONGEST = LENGTH + 4, NONE = -1 };

typedef struct {
    tl_tape *t;
    tl_model *m;
    tl_dtype dtype;
} net;

static tl_tensor weight(const net *n, const char *name, int64_t rows, int64_t columns)
{
    return tl_param(n->t, n->m, name, n->dtype, TL_DIMS(rows, columns), .kind = TL_INIT_NORMAL, .scale = 0.3);
}

static tl_tensor norm(const net *n, tl_tensor x, const char *name)
{
    return tl_rms_norm(n->t, x, tl_param(n->t, n->m, name, n->dtype, TL_DIMS(WIDTH), .kind = TL_INIT_UNIFORM, .scale = 1), 1e-5);
}

static tl_tensor heads(const net *n, tl_tensor x, const char *name, int64_t samples, int64_t length)
{
    tl_tensor y = tl_matmul(n->t, x, tl_transpose(n->t, weight(n, name, WIDTH, WIDTH), 0, 1));
    return tl_transpose(n->t, tl_reshape(n->t, y, TL_DIMS(samples, length, HEADS, WIDTH / HEADS)), 1, 2);
}

/* Ids and targets (samples, length) -> backward of the summed loss over count; the embedding serves as output weights too. */
static void step(const net *n, const int64_t *ids, const int64_t *targets, int64_t samples, int64_t length, double count)
{
    tl_tape *t = n->t;
    tl_tape_reset(t);
    tl_tensor table = weight(n, "table", VOCABULARY, WIDTH), i = tl_data(t, ids, TL_I64, TL_DIMS(samples, length));
    tl_tensor x = tl_embedding(t, table, i), h = norm(n, x, "norm1");
    tl_tensor o = tl_attention(t, heads(n, h, "q", samples, length), heads(n, h, "k", samples, length), heads(n, h, "v", samples, length));
    o = tl_reshape(t, tl_transpose(t, o, 1, 2), TL_DIMS(samples, length, WIDTH));
    x = tl_add(t, x, tl_matmul(t, o, weight(n, "o", WIDTH, WIDTH)));
    h = norm(n, x, "norm2");
    h = tl_swiglu(t, tl_matmul(t, h, weight(n, "gate", WIDTH, HIDDEN)), tl_matmul(t, h, weight(n, "up", WIDTH, HIDDEN)));
    x = tl_add(t, x, tl_matmul(t, h, weight(n, "down", HIDDEN, WIDTH)));
    x = tl_add(t, x, tl_param(t, n->m, "bias", n->dtype, TL_DIMS(WIDTH), .kind = TL_INIT_UNIFORM, .scale = 1));
    tl_tensor z = tl_matmul(t, norm(n, x, "norm3"), tl_transpose(t, table, 0, 1));
    tl_tensor loss = tl_cross_entropy(t, z, tl_data(t, targets, TL_I64, TL_DIMS(samples, length)), .reduction = TL_MEAN, .ignore = true,
                                      .ignore_index = NONE, .count = tl_scalar(t, TL_F64, count),
                                      .total = tl_buffer(t, n->m, "total", TL_F64, TL_SCALAR));
    tl_backward(t, loss);
}

typedef struct {
    ref_tensor x[16];
    int n;
} gradients;

/* The gradient of every parameter, and the total of the losses. */
static gradients all_gradients(const net *n)
{
    gradients g = {.n = tl_model_count(n->m)};
    for (int i = 0; i < g.n; i++) {
        tl_named p = tl_model_at(n->m, i);
        g.x[i] = tl_case_read(n->t, p.param ? tl_grad(n->t, p.tensor) : p.tensor);
    }
    return g;
}

typedef struct {
    int64_t ids[2 * SAMPLES * LONGEST], targets[2 * SAMPLES * LONGEST];
    int64_t samples, length;
} text;

/* The same samples, each longer by `more` ignored positions, with `extra` ignored samples strewn in. */
static text padded_text(const text *x, int64_t more, int64_t extra, uint64_t *state)
{
    text y = {.length = x->length + more};
    for (int64_t s = 0; s < x->samples || extra > 0; y.samples++) {
        bool filler = extra > 0 && (s == x->samples || tl_case_random(state) % 2);
        for (int64_t i = 0; i < y.length; i++) {
            bool real = !filler && i < x->length;
            int64_t at = y.samples * y.length + i;
            y.ids[at] = real ? x->ids[s * x->length + i] : (int64_t)(tl_case_random(state) % VOCABULARY);
            y.targets[at] = real ? x->targets[s * x->length + i] : NONE;
        }
        extra -= filler;
        s += !filler;
    }
    return y;
}

/* The text in parts of at most `part` samples. */
static gradients train(const net *n, const text *x, int64_t part, double count)
{
    double zero = 0;
    tl_grad_clear(n->t);
    tl_tensor total = tl_model_find(n->m, "total");
    if (!tl_is_none(total))
        tl_write(n->m, total, &zero, sizeof zero);
    for (int64_t at = 0; at < x->samples; at += part) {
        int64_t k = x->samples - at < part ? x->samples - at : part;
        step(n, x->ids + at * x->length, x->targets + at * x->length, k, x->length, count);
    }
    return all_gradients(n);
}

static void network_in(tl_dtype dtype)
{
    uint64_t state = seed0;
    net n = {.m = tl_model_new(.seed = seed0), .dtype = dtype};
    n.t = tl_tape_new(n.m);
    text x = {.samples = SAMPLES, .length = LENGTH};
    for (int i = 0; i < SAMPLES * LENGTH; i++) {
        x.ids[i] = (int64_t)(tl_case_random(&state) % VOCABULARY);
        x.targets[i] = tl_case_random(&state) % 5 == 0 ? NONE : (int64_t)(tl_case_random(&state) % VOCABULARY);
    }
    gradients want = train(&n, &x, SAMPLES, 23);
    int before = tl_threads();
    for (int trial = 0; trial < 24 && !failed(n.t, "network"); trial++) {
        char label[64];
        int64_t more = trial / 4 % 3 * 2, extra = trial / 12 * 3, part = 1 + trial % 4;
        text y = padded_text(&x, more, extra, &state);
        tl_threads_set((int[]){1, 2, 3, 8}[trial % 4]);
        gradients got = train(&n, &y, part, 23);
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
