/* Faults that other systems have had in modes, variants of ops and gradients, one test each: every
 * one would be caught here. The others: test_faults_rows.c, test_faults_norm.c,
 * test_faults_rotary.c, test_faults_checker.c. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include <tally_extend.h>

#include "ops/build.h"
#include "tests/support/functions.h"

extern const struct CMUnitTest tl_tests_faults[];
extern const size_t tl_tests_faults_count;

static const tl_dtype floats[] = {TL_F64, TL_F32, TL_F16, TL_BF16};

/* ---- modes ---- */

/* Opens scopes, fails, and returns without closing any: as an exception would. */
static void broken_module(int scopes)
{
    for (int i = 0; i < scopes; i++)
        tl_mode_push(t, i % 2 ? TL_FAST : TL_NO_GRAD);
    tl_add(t, tl_fill(t, TL_F32, TL_DIMS(2), 0), tl_fill(t, TL_F32, TL_DIMS(3), 0));
}

static void a_scope_ends_though_an_error_path_left_inner_ones_open(void **unused)
{
    (void)unused;
    for (int scopes = 1; scopes < 5; scopes++) {
        int depth = tl_mode_push(t, 0);
        broken_module(scopes);
        assert_true(tl_mode(t) & TL_NO_GRAD);
        expect_failure(t, TL_ESHAPE, "add");
        tl_mode_pop(t, depth);
        assert_int_equal(tl_mode(t), TL_INVARIANT);
    }
    assert_int_equal(tl_mode_push(t, 0), 0); /* and none is open still */
    tl_mode_pop(t, 0);
}

static void an_inner_exit_leaves_the_outer_scope_on(void **unused)
{
    (void)unused;
    int outer = tl_mode_push(t, TL_NO_GRAD);
    int same = tl_mode_push(t, TL_NO_GRAD);
    tl_mode_pop(t, same);
    assert_int_equal(tl_mode(t), TL_NO_GRAD);
    int other = tl_mode_push(t, TL_FAST);
    assert_int_equal(tl_mode(t), TL_NO_GRAD | TL_FAST);
    tl_mode_pop(t, other);
    tl_mode_pop(t, other); /* twice closes no more than once */
    assert_int_equal(tl_mode(t), TL_NO_GRAD);
    tl_mode_pop(t, outer);
    assert_int_equal(tl_mode(t), TL_INVARIANT);
    tl_mode_pop(t, outer);
    tl_mode_pop(t, -1);
    assert_int_equal(tl_mode(t), TL_INVARIANT);
}

/* TL_INVARIANT is the promise: pushed inside what gives it up, it holds again until its pop - in
 * backward, too. */
static void the_invariant_scope_holds_inside_others(void **unused)
{
    (void)unused;
    tl_tensor x = noise_leaf(t, "x", TL_F32, TL_DIMS(300, 700));
    tl_require_grad(t, x);
    tl_tensor want = tl_matmul(t, x, tl_transpose(t, x, 0, 1));
    for (int way = 0; way < 2; way++) {
        int outer = way == 0 ? tl_mode_push(t, TL_FAST | TL_EVAL)
                             : tl_kernel_push(t, "matmul", TL_F32, "fast");
        int inner = tl_mode_push(t, TL_INVARIANT);
        assert_int_equal(tl_mode(t), way == 0 ? TL_EVAL : TL_INVARIANT);
        tl_tensor y = tl_matmul(t, x, tl_transpose(t, x, 0, 1)), dx;
        assert_non_null(strstr(tl_kernel_of(t, y), "invariant"));
        expect_same(t, tl_detach(t, y), tl_detach(t, want), "matmul in an inner scope");
        tl_gradients(t, tl_sum(t, y, TL_ALL, false), &x, 1, TL_NONE, &dx);
        assert_non_null(strstr(tl_kernel_of(t, dx), "invariant"));
        int again = tl_mode_push(t, TL_FAST);
        assert_true(tl_mode(t) & TL_FAST);
#if TL_BLIS
        assert_non_null(strstr(tl_kernel_of(t, tl_matmul(t, x, tl_transpose(t, x, 0, 1))), "blis"));
#endif
        tl_mode_pop(t, again);
        assert_non_null(
            strstr(tl_kernel_of(t, tl_matmul(t, x, tl_transpose(t, x, 0, 1))), "invariant"));
        tl_mode_pop(t, inner);
#if TL_BLIS
        assert_non_null(strstr(tl_kernel_of(t, tl_matmul(t, x, tl_transpose(t, x, 0, 1))), "blis"));
#endif
        tl_mode_pop(t, outer);
    }
    expect_ok(t, "scopes");
}

static tl_status like_first(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

static tl_status copy_first(tl_call *c)
{
    tl_array_copy(&c->out[0], c->in[0]);
    return TL_OK;
}

static void leaky_vjp(tl_vjp *g)
{
    tl_mode_push(g->t, TL_FAST);
    g->dx[0] = g->dy[0];
}

static const tl_op op_leaky = {.name = "leaky",
                               .n_in = 1,
                               .n_out = 1,
                               .shape = like_first,
                               .forward = copy_first,
                               .vjp = leaky_vjp};

static void a_vjp_that_leaves_a_scope_open_leaves_it_to_nobody(void **unused)
{
    (void)unused;
    tl_tensor x = noise_leaf(t, "x", TL_F32, TL_DIMS(3));
    tl_require_grad(t, x);
    tl_backward(t, tl_sum(t, tl_apply1(TL_AT(t), &op_leaky, NULL, &x, 1), TL_ALL, false));
    expect_ok(t, "leaky");
    assert_int_equal(tl_mode(t), TL_INVARIANT);
}

/* ---- variants that escape ---- */

static void the_accumulating_matmul_keeps_the_bits(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        tl_tensor a = noise_leaf(t, "a", floats[i], TL_DIMS(5, 300)),
                  b = noise_leaf(t, "b", floats[i], TL_DIMS(300, 33));
        tl_tensor want = tl_matmul(t, a, b), acc = tl_fill(t, floats[i], TL_DIMS(5, 33), 0);
        for (int64_t k = 0; k < 300; k += 75)
            acc = tl_matmul_into_at(TL_AT(t), tl_slice(t, a, 1, k, k + 75, 1),
                                    tl_slice(t, b, 0, k, k + 75, 1), acc,
                                    (tl_matmul_attrs){.batch = TL_SCALAR});
        expect_same(t, acc, want, "matmul continued over pieces of k");
        tl_tensor row = tl_matmul_into_at(TL_AT(t), tl_slice(t, a, 0, 3, 4, 1), b,
                                          tl_fill(t, floats[i], TL_DIMS(1, 33), 0),
                                          (tl_matmul_attrs){.batch = TL_SCALAR});
        expect_same(t, row, tl_slice(t, want, 0, 3, 4, 1), "one row continued");
    }
}

static void an_op_in_place_obeys_every_mode(void **unused)
{
    (void)unused;
    tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(1, 4), 1), one = tl_fill(t, TL_F32, TL_DIMS(4), 1),
              zero = tl_fill(t, TL_F32, TL_DIMS(4), 0);
    tl_tensor big = tl_fill(t, TL_F32, TL_DIMS(1, 4), 3e38);
    int depth = tl_mode_push(t, TL_TRACE);
    tl_rotary_(t, x, tl_fill(t, TL_F32, TL_DIMS(4), 7), zero, TL_ROTARY_HALF);
    tl_mode_pop(t, depth);
    expect_ok(t, "a trace");
    tl_array a;
    x = tl_fill(t, TL_F32, TL_DIMS(1, 4), 1);
    assert_true(tl_array_of(t, x, &a));
    depth = tl_mode_push(t, TL_TRACE);
    tl_rotary_(t, x, tl_scale(t, one, 7), zero, TL_ROTARY_HALF);
    tl_mode_pop(t, depth);
    assert_true(((const float *)a.data)[0] == 1.0f); /* only its shape was recorded */
    tl_tensor leaf = noise_leaf(t, "leaf", TL_F32, TL_DIMS(1, 4));
    tl_require_grad(t, leaf);
    depth = tl_mode_push(t, TL_NO_GRAD);
    tl_tensor y = tl_rotary_(t, tl_scale(t, leaf, 1), one, zero, TL_ROTARY_HALF);
    tl_mode_pop(t, depth);
    tl_backward(t, tl_sum(t, y, TL_ALL, false));
    expect_failure(t, TL_ENOGRAD, "depends on no parameter");
    depth = tl_mode_push(t, TL_ANOMALY);
    tl_rotary_(t, big, tl_scale(t, one, 2), zero, TL_ROTARY_HALF);
    tl_mode_pop(t, depth);
    expect_failure(t, TL_EDOMAIN, "rotary_");
}

/* ---- gradients that an override drops ---- */

typedef struct {
    const char *name;
    int n;
    tl_shape shape[3];
    tl_function *f;
} covered;

FUNCTION(f_mm, tl_mm(on, in[0], in[1]))
FUNCTION(f_bmm, tl_bmm(on, in[0], in[1]))
FUNCTION(f_addmm, tl_addmm(on, in[0], in[1], in[2], 0.5, 2))
FUNCTION(f_mm_to, tl_matmul_to(on, in[0], in[1], tl_dtype_of(on, in[0])))
FUNCTION(f_mm64, tl_matmul_acc64(on, in[0], in[1]))
FUNCTION(f_softmax, tl_softmax(on, in[0], -1))
FUNCTION(f_log_softmax, tl_log_softmax(on, in[0], -1))
FUNCTION(f_mean, tl_mean(on, in[0], TL_DIMS(0, 1), false))
FUNCTION(f_sum, tl_sum(on, in[0], TL_DIMS(1), true))
FUNCTION(f_rms_norm, tl_rms_norm(on, in[0], in[1], (double)NAN))
FUNCTION(f_layer_norm, tl_layer_norm(on, in[0], in[1], in[2], 1e-5))

static const covered set[] = {
    {"mm", 2, {{2, {3, 4}}, {2, {4, 5}}}, f_mm},
    {"bmm", 2, {{3, {2, 3, 4}}, {3, {2, 4, 5}}}, f_bmm},
    {"addmm", 3, {{1, {5}}, {2, {3, 4}}, {2, {4, 5}}}, f_addmm},
    {"matmul_to", 2, {{2, {3, 4}}, {2, {4, 5}}}, f_mm_to},
    {"matmul_acc64", 2, {{2, {3, 4}}, {2, {4, 5}}}, f_mm64},
    {"softmax", 1, {{2, {3, 7}}}, f_softmax},
    {"log_softmax", 1, {{2, {3, 7}}}, f_log_softmax},
    {"mean", 1, {{3, {2, 3, 4}}}, f_mean},
    {"sum", 1, {{3, {2, 3, 4}}}, f_sum},
    {"rms_norm", 2, {{2, {3, 7}}, {1, {7}}}, f_rms_norm},
    {"layer_norm", 3, {{2, {3, 7}}, {1, {7}}, {1, {7}}}, f_layer_norm},
};
enum { SET = sizeof set / sizeof set[0] };

static void no_op_of_the_invariant_set_drops_a_gradient(void **unused)
{
    static const char *const names[] = {"p", "q", "r"};
    (void)unused;
    for (int i = 0; i < SET; i++)
        for (int d = 0; d < 2; d++) {
            tl_tensor in[3];
            tl_gradcheck_report r;
            for (int k = 0; k < set[i].n; k++)
                in[k] = noise_leaf(t, names[k], floats[d], set[i].shape[k]);
            if (tl_gradcheck_with(t, set[i].f, in, set[i].n, NULL, &r, .elements = 4) != TL_RIGHT ||
                r.leaves != set[i].n)
                fail_msg("%s: %s", set[i].name, r.text);
        }
}

static const tl_op op_no_vjp = {
    .name = "no_vjp", .n_in = 1, .n_out = 1, .shape = like_first, .forward = copy_first};

static void an_op_without_derivative_says_so_at_once(void **unused)
{
    (void)unused;
    tl_tensor x = noise_leaf(t, "x", TL_F32, TL_DIMS(3)),
              y = tl_apply1(TL_AT(t), &op_no_vjp, NULL, &x, 1);
    expect_ok(t, "nothing wants a gradient");
    tl_require_grad(t, x);
    assert_true(tl_is_none(tl_apply1(TL_AT(t), &op_no_vjp, NULL, &x, 1)));
    expect_failure(t, TL_ENOGRAD, "no_vjp: has no derivative");
    assert_true(has_shape(t, y, TL_DIMS(3)));
}

/* ---- a tensor of the model as a gradient ---- */

static tl_status to_number(tl_call *c)
{
    c->out[0] = tl_array_make(TL_F32, &TL_SCALAR, NULL);
    return TL_OK;
}

static tl_status dot(tl_call *c)
{
    double sum = 0;
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        sum += tl_array_get(c->in[0], i) * tl_array_get(c->in[1], i);
    tl_array_put(&c->out[0], 0, sum);
    return TL_OK;
}

static void give_the_other(tl_vjp *g) { g->dx[0] = g->in[1]; }

static const tl_op op_dot = {.name = "dot_by_one",
                             .n_in = 2,
                             .n_out = 1,
                             .shape = to_number,
                             .forward = dot,
                             .vjp = give_the_other,
                             .saves_in = 2};

static void a_tensor_of_the_model_outlives_being_a_gradient(void **unused)
{
    static const float ones[4] = {1, 1, 1, 1};
    (void)unused;
    for (int i = 0; i < 2; i++) {
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(4), TL_INIT_ZEROS, 0),
                  v = tl_buffer(t, m, "v", TL_F32, TL_DIMS(4));
        tl_write(m, v, (const float[]){1, 2, 3, 4}, 4 * sizeof(float));
        tl_tensor x = tl_tanh(t, tl_mul(t, tl_data(t, ones, TL_F32, TL_DIMS(4)), w));
        tl_backward(t, tl_apply1(TL_AT(t), &op_dot, NULL, (tl_tensor[]){x, v}, 2));
        float g[4] = {0};
        tl_keep(t, tl_grad(t, w), g, sizeof g);
        expect_ok(t, "a tensor of the model as a gradient");
        assert_true(g[0] == 1 && g[3] == 4);
        assert_true(tl_item(t, tl_sum(t, v, TL_ALL, false)) == 10);
        tl_grad_clear(t);
        tl_tape_reset(t);
    }
}

const struct CMUnitTest tl_tests_faults[] = {
    TEST(a_scope_ends_though_an_error_path_left_inner_ones_open),
    TEST(an_inner_exit_leaves_the_outer_scope_on),
    TEST(the_invariant_scope_holds_inside_others),
    TEST(a_vjp_that_leaves_a_scope_open_leaves_it_to_nobody),
    TEST(the_accumulating_matmul_keeps_the_bits),
    TEST(an_op_in_place_obeys_every_mode),
    TEST(no_op_of_the_invariant_set_drops_a_gradient),
    TEST(an_op_without_derivative_says_so_at_once),
    TEST(a_tensor_of_the_model_outlives_being_a_gradient),
};
const size_t tl_tests_faults_count = sizeof tl_tests_faults / sizeof tl_tests_faults[0];
