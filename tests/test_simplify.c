/* What a graph computes once, and what not at all: equal values, constants, and algebra that is
 * exact for every number. What looks alike and is not - other contents by then, another draw, -0
 * against +0 - stays. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally_extend.h>

extern const struct CMUnitTest tl_tests_simplify[];
extern const size_t tl_tests_simplify_count;

enum { N = 16 };

/* What is special to some op: zeros and infinities of both signs, NaN, subnormals, the largest. */
static const double special[N] = {0.0,
                                  -0.0,
                                  1,
                                  -1,
                                  (double)INFINITY,
                                  -(double)INFINITY,
                                  (double)NAN,
                                  0x1p-149,
                                  -0x1p-149,
                                  0x1p-24,
                                  65504,
                                  -65504,
                                  3,
                                  0.1,
                                  -2.5,
                                  0x1p-14};

static tl_tensor input(tl_tape *t, tl_dtype d)
{
    return tl_detach(t, tl_cast(t, tl_data(t, special, TL_F64, TL_DIMS(N)), d));
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = strstr(text, what); at != NULL; at = strstr(at + 1, what))
        n++;
    return n;
}

/* Runs f called and compiled: the same bits. How many nodes of that op the graph has left. */
static int left(tl_program *f, const tl_tensor *in, int n_in, int n_out, void *ctx, tl_tape *t,
                const char *op, tl_graph_options o, tl_graph_stats *stats)
{
    tl_tensor a[4], b[4];
    char want[65], got[65], name[64], *text = NULL;
    size_t size = 0;
    f(t, in, n_in, a, n_out, ctx);
    tl_graph *g = tl_trace_at(TL_AT(t), f, in, n_in, n_out, ctx, o);
    if (g == NULL)
        fail_msg("%s", tl_error(t));
    for (int round = 0; round < 2; round++) {
        if (tl_graph_run(g, in, n_in, b, n_out) != TL_OK)
            fail_msg("%s", tl_error(t));
        for (int i = 0; i < n_out; i++) {
            tl_sha256(t, a[i], want);
            tl_sha256(t, b[i], got);
            if (strcmp(want, got) != 0)
                fail_msg("output %d of a graph with %s differs", i, op);
        }
    }
    FILE *file = open_memstream(&text, &size);
    tl_graph_print(g, file);
    fclose(file);
    snprintf(name, sizeof name, "= %s(", op);
    int n = count(text, name);
    if (stats != NULL)
        *stats = tl_graph_stats_of(g);
    free(text);
    tl_free(g);
    return n;
}

/* ---- algebra ---- */

typedef struct {
    const char *op; /* that stands in it */
    int kind;
    bool gone; /* exact: nothing is left of it */
} form;

static const form forms[] = {{"mul", 0, true},    {"mul", 1, true},      {"scale", 2, true},
                             {"div", 3, true},    {"sub", 4, true},      {"sub", 5, false},
                             {"add", 6, true},    {"add", 7, false},     {"shift", 8, true},
                             {"shift", 9, false}, {"cast", 10, true},    {"neg", 11, true},
                             {"where", 12, true}, {"where", 13, true},   {"div", 14, false},
                             {"sub", 15, false},  {"mul", 16, false},    {"add", 17, true},
                             {"mul", 18, false},  {"permute", 19, true}, {"mul", 20, true},
                             {"mul", 21, true},   {"reshape", 22, true}};

/* What the program hands over, and no op makes. */
static tl_tensor constant_ones(tl_tape *t, tl_dtype d, tl_shape s)
{
    static const float ones[N] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    tl_tensor x = tl_constant(t, ones, TL_F32, s);
    return d == TL_F32 ? x : tl_cast(t, x, d);
}

static tl_tensor build(tl_tape *t, tl_tensor x, int kind)
{
    tl_dtype d = tl_dtype_of(t, x);
    tl_shape s = tl_shape_of(t, x);
    tl_tensor wide = tl_fill(t, d, s, 1);
    switch (kind) {
    case 0: return tl_mul(t, x, tl_scalar(t, d, 1));
    case 1: return tl_mul(t, wide, x);
    case 2: return tl_scale(t, x, 1);
    case 3: return tl_div(t, x, tl_scalar(t, d, 1));
    case 4: return tl_sub(t, x, tl_scalar(t, d, 0.0));
    case 5: return tl_sub(t, x, tl_scalar(t, d, -0.0));
    case 6: return tl_add(t, x, tl_scalar(t, d, -0.0));
    case 7: return tl_add(t, x, tl_scalar(t, d, 0.0));
    case 8: return tl_shift(t, x, -0.0);
    case 9: return tl_shift(t, x, 0.0);
    case 10: return tl_cast(t, x, d);
    case 11: return tl_neg(t, tl_neg(t, x));
    case 12: return tl_where(t, tl_fill(t, TL_BOOL, TL_SCALAR, 1), x, wide);
    case 13: return tl_where(t, tl_fill(t, TL_BOOL, s, 0), wide, x);
    case 14: return tl_div(t, tl_scalar(t, d, 1), x);
    case 15: return tl_sub(t, tl_scalar(t, d, 0), x);
    case 16: return tl_mul(t, x, tl_scalar(t, d, -1));
    case 17: return tl_add(t, tl_fill(t, d, s, -0.0), x);
    case 18:
        return tl_reshape(t, tl_mul(t, x, tl_fill(t, d, TL_DIMS(3, 1), 1)),
                          TL_DIMS(3 * N)); /* x three times */
    case 19:
        return tl_reshape(t,
                          tl_transpose(t, tl_transpose(t, tl_reshape(t, x, TL_DIMS(4, 4)), 0, 1), 0,
                                       1),
                          TL_DIMS(N));
    case 20: return tl_mul(t, constant_ones(t, d, s), x);
    case 21: return tl_mul(t, x, constant_ones(t, d, s));
    default: return tl_reshape(t, tl_reshape(t, x, TL_DIMS(2, 8)), TL_DIMS(N));
    }
}

/* The result is handed out after one more op, that keeps signs: results themselves are never
 * shared. */
static void algebra(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m;
    out[0] = tl_abs(t, in[0]);
    out[1] = tl_concat(t, ((tl_tensor[]){build(t, in[0], *(int *)ctx), out[0]}), 2, 0);
}

static void exact_algebra_is_done_and_no_other(void **state)
{
    static const tl_dtype dtypes[] = {TL_F32, TL_F64, TL_F16, TL_BF16};
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    for (int d = 0; d < 4; d++)
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
            int kind = forms[i].kind;
            tl_tensor x = input(t, dtypes[d]);
            int n = left(algebra, &x, 1, 2, &kind, t, forms[i].op,
                         (tl_graph_options){.no_fuse = true}, NULL);
            if ((n == 0) != forms[i].gone)
                fail_msg("form %d (%s) in %s: %d left", kind, forms[i].op, tl_dtype_name(dtypes[d]),
                         n);
            assert_true(left(algebra, &x, 1, 2, &kind, t, forms[i].op,
                             (tl_graph_options){.no_simplify = true}, NULL) > 0);
            tl_tape_reset(t);
        }
    tl_free(t);
}

/* ---- equal values ---- */

/* An op of a user's that says it draws: alike or not, two calls are two draws. */
static tl_status draw_shape(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

static tl_status draw_forward(tl_call *c)
{
    tl_array_copy(&c->out[0], c->in[0]);
    return TL_OK;
}

static const tl_op op_draw = {.name = "draw",
                              .n_in = 1,
                              .n_out = 1,
                              .traits = TL_RANDOM | TL_NONDIFF,
                              .shape = draw_shape,
                              .forward = draw_forward};

static void twice(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    tl_tensor x = in[0], y = in[1], a = TL_NONE, b = TL_NONE;
    (void)n, (void)m;
    switch (*(int *)ctx) {
    case 0: a = tl_exp(t, x), b = tl_exp(t, x); break;
    case 1: a = tl_add(t, x, y), b = tl_add(t, y, x); break;
    case 2: a = tl_sub(t, x, y), b = tl_sub(t, y, x); break;
    case 3: a = tl_scale(t, x, 0.5), b = tl_scale(t, x, 0.25); break;
    case 4: a = tl_softmax(t, x, 0), b = tl_softmax(t, x, 0); break;
    case 5:
        a = tl_dropout(t, x, 0.5, .stream = "a"), b = tl_dropout(t, x, 0.5, .stream = "a");
        break;
    case 6:
        a = tl_exp(t, tl_reshape(t, x, TL_DIMS(4, 4))),
        b = tl_exp(t, tl_reshape(t, x, TL_DIMS(4, 4)));
        break;
    case 7:
        a = tl_exp(t, tl_reshape(t, x, TL_DIMS(4, 4))),
        b = tl_exp(t, tl_reshape(t, x, TL_DIMS(2, 8)));
        break;
    case 8: a = tl_scale(t, x, 0.0), b = tl_scale(t, x, -0.0); break;
    case 9: a = tl_exp(t, tl_neg(t, tl_neg(t, x))), b = tl_exp(t, tl_scale(t, x, 1)); break;
    case 10:
        a = tl_apply1(TL_AT(t), &op_draw, NULL, &x, 1),
        b = tl_apply1(TL_AT(t), &op_draw, NULL, &x, 1);
        break;
    default: a = tl_exp(t, tl_detach(t, x)), b = tl_exp(t, x); break;
    }
    out[0] = tl_concat(
        t, ((tl_tensor[]){tl_reshape(t, a, TL_DIMS(-1)), tl_reshape(t, b, TL_DIMS(-1))}), 2, 0);
}

static void equal_values_are_computed_once(void **state)
{
    static const struct {
        const char *op;
        int left;
    } want[] = {{"exp", 1}, {"add", 1}, {"sub", 2},   {"scale", 2}, {"softmax", 1}, {"dropout", 2},
                {"exp", 1}, {"exp", 2}, {"scale", 2}, {"exp", 1},   {"draw", 2},    {"exp", 1}};
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int i = 0; i < (int)(sizeof want / sizeof *want); i++) {
        tl_tensor in[2] = {input(t, TL_F32), tl_fill(t, TL_F32, TL_DIMS(N), 2)};
        tl_graph_stats s;
        int n = left(twice, in, 2, 1, &i, t, want[i].op, (tl_graph_options){.no_fuse = true}, &s);
        if (n != want[i].left || (n == 1 && s.merged == 0))
            fail_msg("pair %d: %d of %s left, want %d; %d merged", i, n, want[i].op, want[i].left,
                     s.merged);
        tl_tape_reset(t);
    }
    tl_free(t, m);
}

/* One handle, other contents: a parameter before and after its optimizer's step. */
typedef struct {
    tl_model *m;
    tl_opt *o;
} training;

static void before_and_after(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m,
                             void *ctx)
{
    training *run = ctx;
    tl_tensor w = tl_param(t, run->m, "w", TL_F32, TL_DIMS(N), .kind = TL_INIT_NORMAL, .scale = 1);
    (void)n, (void)m;
    tl_tensor a = tl_square(t, w), copy = tl_scale(t, w, 1);
    tl_backward(t, tl_sum(t, tl_mul(t, a, in[0]), TL_ALL, false), .retain = true);
    tl_step(run->o, t);
    out[0] = tl_sub(t, tl_square(t, w), a);
    out[1] = tl_add(t, copy, in[0]);
}

static void what_has_changed_in_between_is_computed_again(void **state)
{
    char hash[2][2][65], *text = NULL;
    size_t size = 0;
    (void)state;
    for (int compiled = 0; compiled < 2; compiled++) {
        training run = {.m = tl_model_new(.seed = 1)};
        tl_tape *t = tl_tape_new(run.m);
        tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(N), 3), out[2];
        run.o = tl_sgd_new(run.m, .lr = 0.125);
        tl_compiled *c = tl_compile(t, before_and_after, 2, &run, .no_fuse = true);
        if (compiled)
            tl_run(c, &x, 1, out);
        else
            before_and_after(t, &x, 1, out, 2, &run);
        for (int i = 0; i < 2; i++)
            if (tl_sha256(t, out[i], hash[compiled][i]) != TL_OK)
                fail_msg("%s", tl_error(t));
        if (compiled) {
            FILE *f = open_memstream(&text, &size);
            tl_graph_print(tl_compiled_at(c, 0), f);
            fclose(f);
        }
        tl_free(c, run.o, t, run.m);
    }
    assert_memory_equal(hash[0], hash[1], sizeof hash[0]);
    assert_int_equal(count(text, "= square("), 2);
    assert_true(count(text, "= scale(") >= 1); /* the copy of what was */
    free(text);
}

/* Two results, alike: each has memory of its own, and neither is the input's. */
static void results(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    out[0] = tl_scale(t, in[0], 1);
    out[1] = tl_scale(t, in[0], 1);
    out[2] = tl_fill(t, TL_F32, TL_DIMS(N), 7);
}

static void results_share_nothing(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = input(t, TL_F32), out[3];
    tl_array a[4];
    tl_graph *g = tl_trace(t, results, &x, 1, 3, NULL);
    assert_int_equal(tl_graph_run(g, &x, 1, out, 3), TL_OK);
    tl_array_of(t, x, &a[3]);
    for (int i = 0; i < 3; i++) {
        tl_array_of(t, out[i], &a[i]);
        assert_ptr_not_equal(a[i].data, a[3].data);
    }
    assert_ptr_not_equal(a[0].data, a[1].data);
    memset(a[2].data, 0,
           N * sizeof(float)); /* what the caller does to a result stays with the caller */
    assert_int_equal(tl_graph_run(g, &x, 1, out, 3), TL_OK);
    tl_array_of(t, out[2], &a[2]);
    assert_true(((float *)a[2].data)[0] == 7);
    tl_free(g, t);
}

/* ---- constants ---- */

static void constants(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    int64_t size = *(int64_t *)ctx;
    (void)n, (void)m;
    tl_tensor c = tl_fill(t, TL_F32, TL_DIMS(size), 0.3),
              k = tl_constant(t, special, TL_F64, TL_DIMS(N));
    tl_tensor y = tl_sum(t, tl_exp(t, tl_mul(t, c, tl_reshape(t, c, TL_DIMS(size)))), TL_ALL,
                         false);
    out[0] = tl_add(t, in[0], y);
    tl_tensor part = tl_tanh(t, tl_scale(t, tl_slice(t, k, 0, 0, N, 2), -1));
    out[1] = tl_concat(t, ((tl_tensor[]){tl_cast(t, in[0], TL_F64), part}), 2, 0);
}

static void small_constants_are_computed_when_the_graph_is_made(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    tl_graph_stats s;
    tl_tensor x = input(t, TL_F32);
    int64_t size = 100;
    assert_int_equal(left(constants, &x, 1, 2, &size, t, "exp", (tl_graph_options){0}, &s), 0);
    assert_int_equal(left(constants, &x, 1, 2, &size, t, "tanh", (tl_graph_options){0}, NULL), 0);
    assert_true(s.constants >= 5);
    assert_true(left(constants, &x, 1, 2, &size, t, "exp", (tl_graph_options){.no_simplify = true},
                     &s) > 0);
    assert_int_equal(s.constants, 0);
    size = 5000; /* too large to keep for good */
    assert_true(left(constants, &x, 1, 2, &size, t, "exp", (tl_graph_options){0}, NULL) > 0);
    tl_free(t);
}

/* Two values that are equal until an update changes each of them, and would be constants without
 * it; and the state of two updates. */
static void updates(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    tl_tensor state[4];
    (void)n, (void)m;
    for (int i = 0; i < 4; i++)
        state[i] = tl_scale(t, tl_fill(t, TL_F32, TL_DIMS(N), 0.5), 0.5);
    for (int i = 0; i < 2; i++) {
        tl_tensor one = tl_scalar(t, TL_F64, 0.5), p = tl_scale(t, in[0], 0.5);
        out[i] = *(bool *)ctx
                     ? tl_adamw_update_at(TL_AT(t),
                                          (tl_tensor[]){p, in[0], state[2 * i], state[2 * i + 1],
                                                        one, one, one, one},
                                          (tl_adamw_attrs){.beta1 = 0.5, .beta2 = 0.25, .eps = 1})
                     : tl_sgd_update_at(TL_AT(t), p, in[0], state[i], one, one,
                                        (tl_sgd_attrs){.momentum = 0.5});
    }
}

static void the_state_of_an_update_is_no_constant_and_not_shared(void **unused)
{
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = input(t, TL_F32);
    bool adamw = false;
    assert_int_equal(left(updates, &x, 1, 2, &adamw, t, "sgd", (tl_graph_options){0}, NULL), 2);
    adamw = true;
    assert_int_equal(left(updates, &x, 1, 2, &adamw, t, "adamw", (tl_graph_options){0}, NULL), 2);
    tl_free(t);
}

const struct CMUnitTest tl_tests_simplify[] = {
    cmocka_unit_test(exact_algebra_is_done_and_no_other),
    cmocka_unit_test(equal_values_are_computed_once),
    cmocka_unit_test(what_has_changed_in_between_is_computed_again),
    cmocka_unit_test(results_share_nothing),
    cmocka_unit_test(small_constants_are_computed_when_the_graph_is_made),
    cmocka_unit_test(the_state_of_an_update_is_no_constant_and_not_shared),
};
const size_t tl_tests_simplify_count = sizeof tl_tests_simplify / sizeof *tl_tests_simplify;
