/* Faults that other systems have had, one test each: every one would be caught here. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tally.h>

extern const struct CMUnitTest tl_tests_faults[];
extern const size_t tl_tests_faults_count;

static tl_tape *t;

static int begin(void **unused)
{
    (void)unused;
    t = tl_tape_new(NULL);
    return t == NULL;
}

static int end(void **unused)
{
    (void)unused;
    tl_free(t);
    return 0;
}

static const tl_dtype floats[] = {TL_F64, TL_F32, TL_F16, TL_BF16};

/* A leaf of that dtype with the values of a f64 tensor. */
static tl_tensor leaf_of(tl_tape *on, tl_tensor wide, tl_dtype d)
{
    tl_tensor x = tl_data(on, NULL, d, tl_shape_of(on, wide));
    tl_array from, to;
    if (tl_array_of(on, tl_cast(on, wide, d), &from) && tl_array_of(on, x, &to))
        tl_array_copy(&to, &from);
    return x;
}

/* A leaf of normal values, drawn by name. */
static tl_tensor noise(tl_tape *on, const char *name, tl_dtype d, tl_shape s)
{
    tl_rng_key key = tl_rng_stream(7, name);
    tl_tensor x = tl_data(on, NULL, TL_F64, s);
    tl_array a;
    if (tl_array_of(on, x, &a))
        for (int64_t i = 0; i < tl_array_count(&a); i++)
            ((double *)a.data)[i] = tl_rng_normal64(key, 0, (uint64_t)i);
    return leaf_of(on, x, d);
}

/* Element i of x as a double. */
static double at(tl_tensor x, int64_t i)
{
    tl_array a;
    tl_tensor wide = tl_cast(t, tl_detach(t, x), TL_F64);
    if (!tl_array_of(t, wide, &a))
        fail_msg("%s", tl_error(t));
    assert_true(i < tl_array_count(&a));
    return *(const double *)tl_array_at(&a, i);
}

static void same_bits(tl_tensor x, tl_tensor y, const char *what)
{
    char a[65], b[65];
    if (tl_sha256(t, x, a) != TL_OK || tl_sha256(t, y, b) != TL_OK)
        fail_msg("%s: %s", what, tl_error(t));
    if (strcmp(a, b) != 0)
        fail_msg("%s: other bits", what);
}

static void no_error(const char *what)
{
    if (tl_failed(t))
        fail_msg("%s: %s", what, tl_error(t));
}

static void fails(tl_status s, const char *words)
{
    if (tl_error_status(t) != s || strstr(tl_error(t), words) == NULL)
        fail_msg("%s and '%s' wanted: %s: %s", tl_status_name(s), words, tl_status_name(tl_error_status(t)), tl_error(t));
    tl_error_clear(t);
}

static bool has_shape(tl_tensor x, tl_shape want)
{
    tl_shape s = tl_shape_of(t, x);
    return tl_shape_equal(&s, &want);
}

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
        fails(TL_ESHAPE, "add");
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

static const tl_op op_leaky = {.name = "leaky", .n_in = 1, .n_out = 1, .shape = like_first, .forward = copy_first, .vjp = leaky_vjp};

static void a_vjp_that_leaves_a_scope_open_leaves_it_to_nobody(void **unused)
{
    (void)unused;
    tl_tensor x = noise(t, "x", TL_F32, TL_DIMS(3));
    tl_require_grad(t, x);
    tl_backward(t, tl_sum(t, tl_apply1(TL_AT(t), &op_leaky, NULL, &x, 1), TL_ALL, false));
    no_error("leaky");
    assert_int_equal(tl_mode(t), TL_INVARIANT);
}

/* ---- variants that escape ---- */

static void the_accumulating_matmul_keeps_the_bits(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        tl_tensor a = noise(t, "a", floats[i], TL_DIMS(5, 300)), b = noise(t, "b", floats[i], TL_DIMS(300, 33));
        tl_tensor want = tl_matmul(t, a, b), acc = tl_fill(t, floats[i], TL_DIMS(5, 33), 0);
        for (int64_t k = 0; k < 300; k += 75)
            acc = tl_matmul_into_at(TL_AT(t), tl_slice(t, a, 1, k, k + 75, 1), tl_slice(t, b, 0, k, k + 75, 1), acc, (tl_matmul_attrs){.batch = TL_SCALAR});
        same_bits(acc, want, "matmul continued over pieces of k");
        tl_tensor row = tl_matmul_into_at(TL_AT(t), tl_slice(t, a, 0, 3, 4, 1), b, tl_fill(t, floats[i], TL_DIMS(1, 33), 0), (tl_matmul_attrs){.batch = TL_SCALAR});
        same_bits(row, tl_slice(t, want, 0, 3, 4, 1), "one row continued");
    }
}

static void an_op_in_place_obeys_every_mode(void **unused)
{
    (void)unused;
    tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(1, 4), 1), one = tl_fill(t, TL_F32, TL_DIMS(4), 1), zero = tl_fill(t, TL_F32, TL_DIMS(4), 0);
    tl_tensor big = tl_fill(t, TL_F32, TL_DIMS(1, 4), 3e38);
    int depth = tl_mode_push(t, TL_TRACE);
    tl_rotary_(t, x, tl_fill(t, TL_F32, TL_DIMS(4), 7), zero, TL_ROTARY_HALF);
    tl_mode_pop(t, depth);
    no_error("a trace");
    tl_array a;
    x = tl_fill(t, TL_F32, TL_DIMS(1, 4), 1);
    assert_true(tl_array_of(t, x, &a));
    depth = tl_mode_push(t, TL_TRACE);
    tl_rotary_(t, x, tl_scale(t, one, 7), zero, TL_ROTARY_HALF);
    tl_mode_pop(t, depth);
    assert_true(((const float *)a.data)[0] == 1.0f); /* only its shape was recorded */
    tl_tensor leaf = noise(t, "leaf", TL_F32, TL_DIMS(1, 4));
    tl_require_grad(t, leaf);
    depth = tl_mode_push(t, TL_NO_GRAD);
    tl_tensor y = tl_rotary_(t, tl_scale(t, leaf, 1), one, zero, TL_ROTARY_HALF);
    tl_mode_pop(t, depth);
    tl_backward(t, tl_sum(t, y, TL_ALL, false));
    fails(TL_ENOGRAD, "depends on no parameter");
    depth = tl_mode_push(t, TL_ANOMALY);
    tl_rotary_(t, big, tl_scale(t, one, 2), zero, TL_ROTARY_HALF);
    tl_mode_pop(t, depth);
    fails(TL_EDOMAIN, "rotary_");
}

/* ---- addmm, mean, matmul with another dtype ---- */

static void addmm_heeds_alpha_and_beta(void **unused)
{
    static const double c[] = {1, 2, 3, 4}, a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8}, ab[] = {19, 22, 43, 50};
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_tensor x[3] = {tl_cast(t, tl_data(t, c, TL_F64, TL_DIMS(2, 2)), floats[d]), tl_cast(t, tl_data(t, a, TL_F64, TL_DIMS(2, 2)), floats[d]),
                          tl_cast(t, tl_data(t, b, TL_F64, TL_DIMS(2, 2)), floats[d])};
        tl_tensor y = tl_addmm(t, x[0], x[1], x[2], 3, 0.5), z = tl_addmm(t, x[0], x[1], x[2], 1, 1), w = tl_addmm(t, x[0], x[1], x[2], 0, 2);
        for (int i = 0; i < 4; i++) {
            assert_true(at(y, i) == 3 * c[i] + 0.5 * ab[i]);
            assert_true(at(z, i) == c[i] + ab[i]);
            assert_true(at(w, i) == 2 * ab[i]);
        }
        tl_tensor nan = tl_fill(t, floats[d], TL_DIMS(2, 2), (double)NAN);
        same_bits(tl_addmm(t, nan, x[1], x[2], 0, 2), w, "beta = 0 does not read c");
    }
}

static void addmm_heeds_alpha_and_beta_in_its_gradients(void **unused)
{
    (void)unused;
    tl_tensor x[3] = {noise(t, "c", TL_F64, TL_DIMS(4)), noise(t, "a", TL_F64, TL_DIMS(3, 5)), noise(t, "b", TL_F64, TL_DIMS(5, 4))}, g[2][3];
    for (int i = 0; i < 3; i++)
        tl_require_grad(t, x[i]);
    for (int k = 0; k < 2; k++)
        tl_gradients(t, tl_sum(t, tl_addmm(t, x[0], x[1], x[2], k ? 4 : 1, k ? 8 : 1), TL_ALL, false), x, 3, TL_NONE, g[k]);
    no_error("addmm");
    same_bits(g[1][0], tl_scale(t, g[0][0], 4), "dc = beta * sum dy");
    same_bits(g[1][1], tl_scale(t, g[0][1], 8), "da = alpha * dy b'");
    same_bits(g[1][2], tl_scale(t, g[0][2], 8), "db = alpha * a' dy");
    assert_true(at(g[0][0], 0) == 3);
}

static void a_mean_over_no_dims_is_no_sum(void **unused)
{
    const tl_shape none = {0, {0}};
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_tensor x = noise(t, "x", floats[d], TL_DIMS(3, 5));
        same_bits(tl_mean(t, x, none, false), x, "mean over no dims");
        same_bits(tl_sum(t, x, none, true), x, "sum over no dims");
        assert_true(has_shape(tl_mean(t, x, TL_ALL, false), TL_SCALAR));
    }
    tl_tensor x = noise(t, "x", TL_F64, TL_DIMS(3, 5)), dx;
    tl_require_grad(t, x);
    tl_tensor dy = noise(t, "dy", TL_F64, TL_DIMS(3, 5));
    tl_gradients(t, tl_mean(t, x, none, false), &x, 1, dy, &dx);
    same_bits(dx, dy, "and its gradient");
}

static void a_mean_rounds_once_and_after_the_division(void **unused)
{
    (void)unused;
    for (int64_t n = 64; n <= 1 << 12; n *= 2) {
        tl_tensor x = tl_fill(t, TL_F16, TL_DIMS(3, n), 1000);
        tl_tensor m[] = {tl_mean(t, x, TL_DIMS(-1), false), tl_mean(t, tl_transpose(t, x, 0, 1), TL_DIMS(0), false), tl_mean(t, x, TL_ALL, true)};
        for (int k = 0; k < 3; k++)
            assert_true(at(m[k], 0) == 1000);
    }
    assert_true(isinf(at(tl_sum(t, tl_fill(t, TL_F16, TL_DIMS(128), 1000), TL_ALL, false), 0))); /* a sum of that size is none in f16 */
}

static void a_wide_product_was_never_narrow(void **unused)
{
    static const double a[] = {1, 1}, b[] = {100, 100, 0, 0.0625};
    (void)unused;
    tl_tensor x = tl_cast(t, tl_data(t, a, TL_F64, TL_DIMS(1, 2)), TL_BF16), w = tl_cast(t, tl_data(t, b, TL_F64, TL_DIMS(2, 2)), TL_BF16);
    tl_tensor wide = tl_matmul_to(t, x, w, TL_F32), narrow = tl_matmul(t, x, w);
    assert_int_equal(tl_dtype_of(t, wide), TL_F32);
    assert_true(at(wide, 0) == 100 && at(wide, 1) == 100.0625);
    assert_true(at(narrow, 0) == 100 && at(narrow, 1) == 100); /* in bf16 they tie */
    assert_true(at(tl_argmax(t, wide, -1, false), 0) == 1);
}

/* ---- gradients that an override drops ---- */

typedef struct {
    const char *name;
    int n;
    tl_shape shape[3];
    tl_function *f;
} covered;

#define FUNCTION(name, call)                                                 \
    static tl_tensor name(tl_tape *on, const tl_tensor *in, int n, void *ctx) \
    {                                                                        \
        (void)n, (void)ctx;                                                  \
        return call;                                                         \
    }
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
                in[k] = noise(t, names[k], floats[d], set[i].shape[k]);
            if (tl_gradcheck_with(t, set[i].f, in, set[i].n, NULL, &r, .elements = 4) != TL_RIGHT || r.leaves != set[i].n)
                fail_msg("%s: %s", set[i].name, r.text);
        }
}

static const tl_op op_no_vjp = {.name = "no_vjp", .n_in = 1, .n_out = 1, .shape = like_first, .forward = copy_first};

static void an_op_without_derivative_says_so_at_once(void **unused)
{
    (void)unused;
    tl_tensor x = noise(t, "x", TL_F32, TL_DIMS(3)), y = tl_apply1(TL_AT(t), &op_no_vjp, NULL, &x, 1);
    no_error("nothing wants a gradient");
    tl_require_grad(t, x);
    assert_true(tl_is_none(tl_apply1(TL_AT(t), &op_no_vjp, NULL, &x, 1)));
    fails(TL_ENOGRAD, "no_vjp: has no derivative");
    assert_true(has_shape(y, TL_DIMS(3)));
}

/* ---- nothing in a dim ---- */

static void rows_of_no_elements_and_no_rows_are_no_error(void **unused)
{
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_tensor wide = tl_data(t, NULL, floats[d], TL_DIMS(4, 0)), high = tl_data(t, NULL, floats[d], TL_DIMS(0, 4)), w = noise(t, "w", floats[d], TL_DIMS(4, 3));
        tl_require_grad(t, wide);
        tl_require_grad(t, high);
        assert_true(has_shape(tl_softmax(t, wide, -1), TL_DIMS(4, 0)));
        assert_true(has_shape(tl_log_softmax(t, wide, -1), TL_DIMS(4, 0)));
        assert_true(has_shape(tl_log_softmax(t, high, -1), TL_DIMS(0, 4)));
        assert_true(has_shape(tl_rms_norm(t, wide, TL_NONE, 1e-5), TL_DIMS(4, 0)));
        assert_true(has_shape(tl_rms_norm(t, high, TL_NONE, 1e-5), TL_DIMS(0, 4)));
        assert_true(has_shape(tl_mm(t, high, w), TL_DIMS(0, 3)));
        assert_true(has_shape(tl_mean(t, high, TL_DIMS(1), false), TL_DIMS(0)));
        tl_tensor none = tl_mm(t, wide, tl_fill(t, floats[d], TL_DIMS(0, 3), 0)), sum = tl_sum(t, wide, TL_DIMS(1), false);
        assert_true(has_shape(none, TL_DIMS(4, 3)) && at(none, 11) == 0);
        assert_true(has_shape(sum, TL_DIMS(4)) && at(sum, 3) == 0);
        assert_true(isnan(at(tl_mean(t, wide, TL_DIMS(1), false), 3)));
        tl_backward(t, tl_sum(t, tl_add(t, tl_mm(t, high, w), tl_sum(t, tl_log_softmax(t, wide, -1), TL_ALL, false)), TL_ALL, false));
        no_error("empty dims");
        assert_true(has_shape(tl_grad(t, wide), TL_DIMS(4, 0)) && has_shape(tl_grad(t, high), TL_DIMS(0, 4)));
        no_error("gradients of empty dims");
    }
    tl_tensor empty = tl_fill(t, TL_F32, TL_DIMS(5, 0), 0);
    assert_true(has_shape(tl_reshape(t, empty, TL_DIMS(0)), TL_DIMS(0)));
    assert_true(has_shape(tl_reshape(t, empty, TL_DIMS(7, 0)), TL_DIMS(7, 0)));
    assert_true(tl_is_none(tl_reshape(t, empty, TL_DIMS(-1, 0)))); /* any size would do: which one is meant is not known */
    fails(TL_ESHAPE, "reshape");
}

/* ---- rows that depend on their neighbours ---- */

static void a_row_does_not_know_how_many_others_there_are(void **unused)
{
    static const int64_t counts[] = {1, 2, 3, 5, 8, 16, 17, 31, 64, 70};
    enum { ROWS = 70, N = 129 };
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_tensor x = noise(t, "x", floats[d], TL_DIMS(ROWS, N)), w = noise(t, "w", floats[d], TL_DIMS(N, 37)), b = noise(t, "b", floats[d], TL_DIMS(37)), g = noise(t, "g", floats[d], TL_DIMS(N));
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            int64_t n = counts[i], from = (ROWS - n) / 2;
            tl_tensor some = tl_slice(t, x, 0, from, from + n, 1);
#define ROWWISE(what, f)                                                        \
    do {                                                                        \
        tl_tensor in = x, all = f;                                              \
        in = some;                                                              \
        same_bits(f, tl_slice(t, all, 0, from, from + n, 1), what);             \
    } while (0)
            ROWWISE("mm", tl_mm(t, in, w));
            ROWWISE("addmm", tl_addmm(t, b, in, w, 0.3, 1.7));
            ROWWISE("matmul_to", tl_matmul_to(t, in, w, d == 0 ? TL_F64 : TL_F32));
            ROWWISE("matmul_acc64", tl_matmul_acc64(t, in, w));
            ROWWISE("log_softmax", tl_log_softmax(t, in, -1));
            ROWWISE("softmax", tl_softmax(t, in, -1));
            ROWWISE("mean", tl_mean(t, in, TL_DIMS(-1), false));
            ROWWISE("rms_norm", tl_rms_norm(t, in, g, 1e-6));
            ROWWISE("layer_norm", tl_layer_norm(t, in, g, g, 1e-6));
        }
        no_error("rows");
        tl_tape_reset(t);
    }
}

/* ---- rms_norm ---- */

static void no_eps_means_the_compute_types(void **unused)
{
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_tensor zero = tl_fill(t, floats[d], TL_DIMS(2, 5), 0), x = tl_scale(t, noise(t, "x", floats[d], TL_DIMS(2, 5)), 0x1p-12), rstd;
        double eps = d == 0 ? 0x1p-52 : 0x1p-23;
        tl_rms_norm_rstd(t, zero, TL_NONE, (double)NAN, &rstd);
        assert_true(at(rstd, 0) == (d == 0 ? 0x1p26 : (double)(float)sqrt(0x1p23)));
        same_bits(tl_rms_norm(t, x, TL_NONE, (double)NAN), tl_rms_norm(t, x, TL_NONE, eps), "rms_norm without eps");
        same_bits(tl_layer_norm(t, x, TL_NONE, TL_NONE, (double)NAN), tl_layer_norm(t, x, TL_NONE, TL_NONE, eps), "layer_norm without eps");
    }
    tl_rms_norm(t, tl_fill(t, TL_F32, TL_DIMS(2, 5), 0), TL_NONE, -1e-9);
    fails(TL_EDOMAIN, "rms_norm");
}

/* y and dx of rms_norm without gamma; dy = 1, 2, 3, ... */
static void norm_of(const double *x, tl_shape s, tl_dtype d, double eps, tl_tensor *y, tl_tensor *rstd, tl_tensor *dx)
{
    tl_tensor in = leaf_of(t, tl_data(t, x, TL_F64, s), d), dy = tl_data(t, NULL, TL_F64, s);
    tl_array a;
    tl_require_grad(t, in);
    assert_true(tl_array_of(t, dy, &a));
    for (int64_t i = 0; i < tl_array_count(&a); i++)
        ((double *)a.data)[i] = (double)(i + 1);
    *y = tl_rms_norm_rstd(t, in, TL_NONE, eps, rstd);
    tl_gradients(t, *y, &in, 1, tl_cast(t, dy, d), dx);
    no_error("rms_norm");
}

static void rms_norm_of_a_row_of_zeros(void **unused)
{
    static const double x[] = {0, 0, 0, 0, 1, 2, 3, 4};
    tl_tensor y, rstd, dx;
    (void)unused;
    for (int d = 0; d < 4; d++) {
        norm_of(x, TL_DIMS(2, 4), floats[d], 0.0625, &y, &rstd, &dx);
        for (int i = 0; i < 4; i++) {
            assert_true(at(y, i) == 0);
            assert_true(at(dx, i) == 4.0 * (i + 1));
        }
        assert_true(at(rstd, 0) == 4);
        norm_of(x, TL_DIMS(2, 4), floats[d], 0, &y, &rstd, &dx);
        for (int i = 0; i < 4; i++) {
            assert_true(isnan(at(y, i)));
            assert_true(isnan(at(dx, i)));
            assert_true(isfinite(at(y, i + 4)) && isfinite(at(dx, i + 4))); /* its row alone */
        }
    }
}

static void rms_norm_of_infinities_and_nans(void **unused)
{
    static const double x[] = {1, (double)INFINITY, -3, 4, 1, (double)NAN, 3, 4, 1, 2, 3, 4};
    tl_tensor y, rstd, dx;
    (void)unused;
    for (int d = 0; d < 4; d++) {
        norm_of(x, TL_DIMS(3, 4), floats[d], 1e-5, &y, &rstd, &dx);
        assert_true(at(rstd, 0) == 0);
        for (int i = 0; i < 4; i++) {
            assert_true(i == 1 ? isnan(at(y, i)) : at(y, i) == 0);
            assert_true(isnan(at(y, 4 + i)));
            assert_true(isfinite(at(y, 8 + i)) && isfinite(at(dx, 8 + i)));
        }
    }
}

static void rms_norm_of_no_rows(void **unused)
{
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_tensor x = tl_data(t, NULL, floats[d], TL_DIMS(0, 4)), gamma = noise(t, "g", floats[d], TL_DIMS(4)), rstd;
        tl_require_grad(t, x);
        tl_require_grad(t, gamma);
        tl_tensor y = tl_rms_norm_rstd(t, x, gamma, 1e-5, &rstd);
        tl_backward(t, tl_sum(t, y, TL_ALL, false));
        no_error("no rows");
        assert_true(has_shape(y, TL_DIMS(0, 4)) && has_shape(rstd, TL_DIMS(0, 1)));
        for (int i = 0; i < 4; i++)
            assert_true(at(tl_grad(t, gamma), i) == 0);
    }
}

static void rms_norm_of_large_halves(void **unused)
{
    static const double x[] = {1e4, -1e4, 1e4, 1e4, 6e4, 6e4, 6e4, -6e4};
    tl_tensor y, rstd, dx;
    (void)unused;
    norm_of(x, TL_DIMS(2, 4), TL_F16, 1e-5, &y, &rstd, &dx);
    for (int i = 0; i < 8; i++) {
        assert_true(at(y, i) == (x[i] > 0 ? 1 : -1));
        assert_true(isfinite(at(dx, i)));
    }
    tl_tensor big = tl_cast(t, tl_data(t, x, TL_F64, TL_DIMS(2, 4)), TL_F16);
    assert_true(at(tl_layer_norm(t, big, TL_NONE, TL_NONE, 1e-5), 1) < -1.7);
}

static void rstd_has_xs_rank_and_no_gradient(void **unused)
{
    (void)unused;
    static const tl_shape gammas[] = {{1, {8}}, {2, {4, 8}}, {3, {3, 4, 8}}, {4, {2, 3, 4, 8}}};
    static const tl_shape wants[] = {{4, {2, 3, 4, 1}}, {4, {2, 3, 1, 1}}, {4, {2, 1, 1, 1}}, {4, {1, 1, 1, 1}}};
    for (int d = 0; d < 4; d++)
        for (int k = 0; k < 4; k++) {
            tl_tensor x = noise(t, "x", floats[d], TL_DIMS(2, 3, 4, 8)), gamma = noise(t, "g", floats[d], gammas[k]), rstd;
            tl_require_grad(t, x);
            tl_rms_norm_rstd(t, x, gamma, 1e-5, &rstd);
            no_error("gamma over several dims");
            assert_true(has_shape(rstd, wants[k]));
            assert_int_equal(tl_dtype_of(t, rstd), d == 0 ? TL_F64 : TL_F32);
            tl_backward(t, tl_sum(t, rstd, TL_ALL, false));
            fails(TL_ENOGRAD, "depends on no parameter");
        }
    tl_tensor eight = noise(t, "x", TL_F32, TL_DIMS(2, 1, 2, 1, 2, 1, 2, 3)), rstd;
    tl_rms_norm_rstd(t, eight, noise(t, "g", TL_F32, TL_DIMS(2, 1, 2, 3)), 1e-5, &rstd);
    assert_true(has_shape(rstd, TL_DIMS(2, 1, 2, 1, 1, 1, 1, 1)));
}

/* ---- rotary ---- */

static void the_pairing_is_no_guess(void **unused)
{
    (void)unused;
    tl_tensor x = noise(t, "x", TL_F64, TL_DIMS(3, 8)), c = noise(t, "c", TL_F64, TL_DIMS(8)), s = noise(t, "s", TL_F64, TL_DIMS(8));
    assert_true(tl_is_none(tl_rotary(t, x, c, s, (tl_rotary_pairing)0)));
    fails(TL_EDOMAIN, "pairing");
    assert_true(tl_is_none(tl_rotary(t, x, c, s, (tl_rotary_pairing)3)));
    fails(TL_EDOMAIN, "pairing");
    tl_tensor y[2] = {tl_rotary(t, x, c, s, TL_ROTARY_HALF), tl_rotary(t, x, c, s, TL_ROTARY_INTERLEAVED)};
    for (int i = 0; i < 24; i++) {
        int row = i / 8 * 8, k = i % 8;
        double half = k < 4 ? -at(x, row + k + 4) : at(x, row + k - 4), inter = k % 2 ? at(x, i - 1) : -at(x, i + 1);
        assert_true(at(y[0], i) == at(c, k) * at(x, i) + at(s, k) * half);
        assert_true(at(y[1], i) == at(c, k) * at(x, i) + at(s, k) * inter);
    }
}

static double largest_gap(tl_tensor a, tl_tensor b)
{
    double gap = 0;
    tl_array s;
    assert_true(tl_array_of(t, a, &s));
    for (int64_t i = 0; i < tl_array_count(&s); i++)
        gap = fmax(gap, fabs(at(a, i) - at(b, i)));
    return gap;
}

static void backward_holds_for_unequal_halves_where_the_shortcut_does_not(void **unused)
{
    static const tl_rotary_pairing pairings[] = {TL_ROTARY_HALF, TL_ROTARY_INTERLEAVED};
    (void)unused;
    for (int k = 0; k < 2; k++) {
        tl_tensor in[3] = {noise(t, "x", TL_F64, TL_DIMS(2, 3, 8)), noise(t, "c", TL_F64, TL_DIMS(3, 8)), noise(t, "s", TL_F64, TL_DIMS(3, 8))}, d[3];
        tl_tensor g = noise(t, "g", TL_F64, TL_DIMS(2, 3, 8));
        for (int i = 0; i < 3; i++)
            tl_require_grad(t, in[i]);
        tl_gradients(t, tl_rotary(t, in[0], in[1], in[2], pairings[k]), in, 3, g, d);
        no_error("rotary");
        for (int r = 0; r < 6; r++)
            for (int i = 0; i < 8; i++) { /* dx = r1*g - R(r2*g) */
                int j = k ? i ^ 1 : (i + 4) % 8, table = r % 3 * 8;
                double sign = (k ? i % 2 : i >= 4) ? 1 : -1, turned = sign * (at(in[2], table + j) * at(g, r * 8 + j));
                assert_true(at(d[0], r * 8 + i) == at(in[1], table + i) * at(g, r * 8 + i) - turned);
            }
        for (int i = 0; i < 24; i++) { /* dr1 = g*x, dr2 = g*R(x), over the broadcast dim */
            int row = i / 8 * 8, e = i % 8, j = row + (k ? e ^ 1 : (e + 4) % 8);
            double sign = (k ? e % 2 : e >= 4) ? 1 : -1;
            assert_true(at(d[1], i) == at(g, i) * at(in[0], i) + at(g, 24 + i) * at(in[0], 24 + i));
            assert_true(at(d[2], i) == at(g, i) * (sign * at(in[0], j)) + at(g, 24 + i) * (sign * at(in[0], 24 + j)));
        }
        tl_tensor shortcut = tl_rotary(t, g, in[1], tl_neg(t, in[2]), pairings[k]), other = tl_neg(t, tl_rotary(t, g, in[1], in[2], pairings[k]));
        assert_true(largest_gap(d[0], shortcut) > 0.1);
        assert_true(largest_gap(d[0], other) > 0.1);
        tl_tensor equal = tl_rotary_widen(t, noise(t, "h", TL_F64, TL_DIMS(3, 4)), pairings[k]), dx; /* equal halves: the shortcut holds */
        tl_gradients(t, tl_rotary(t, in[0], in[1], equal, pairings[k]), in, 1, g, &dx);
        assert_true(largest_gap(dx, tl_rotary(t, g, in[1], tl_neg(t, equal), pairings[k])) < 1e-15);
    }
}

static void partial_rotation_copies_the_rest(void **unused)
{
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_tensor x = noise(t, "x", floats[d], TL_DIMS(2, 3, 10)), c = noise(t, "c", floats[d], TL_DIMS(3, 4)), s = noise(t, "s", floats[d], TL_DIMS(3, 4)), dx;
        tl_tensor g = noise(t, "g", floats[d], TL_DIMS(2, 3, 10));
        tl_require_grad(t, x);
        tl_tensor y = tl_rotary(t, x, c, s, TL_ROTARY_HALF);
        tl_gradients(t, y, &x, 1, g, &dx);
        same_bits(tl_slice(t, y, -1, 4, 10, 1), tl_slice(t, x, -1, 4, 10, 1), "the rest");
        same_bits(tl_slice(t, dx, -1, 4, 10, 1), tl_slice(t, g, -1, 4, 10, 1), "the gradient of the rest");
        same_bits(tl_slice(t, y, -1, 0, 4, 1), tl_rotary(t, tl_slice(t, x, -1, 0, 4, 1), c, s, TL_ROTARY_HALF), "the rotated part");
    }
    tl_rotary(t, tl_fill(t, TL_F32, TL_DIMS(2, 10), 0), tl_fill(t, TL_F32, TL_DIMS(3), 0), tl_fill(t, TL_F32, TL_DIMS(3), 0), TL_ROTARY_HALF);
    fails(TL_ESHAPE, "even");
    tl_rotary(t, tl_fill(t, TL_F32, TL_DIMS(2, 2), 0), tl_fill(t, TL_F32, TL_DIMS(4), 0), tl_fill(t, TL_F32, TL_DIMS(4), 0), TL_ROTARY_HALF);
    fails(TL_ESHAPE, "4");
}

static void a_position_outside_the_table_is_an_error(void **unused)
{
    static const int64_t bad[] = {-1, 6, INT64_MAX, INT64_MIN};
    (void)unused;
    tl_tensor x = noise(t, "x", TL_F32, TL_DIMS(2, 3, 1, 8)), c = noise(t, "c", TL_F32, TL_DIMS(6, 8)), s = noise(t, "s", TL_F32, TL_DIMS(6, 8));
    for (int i = 0; i < 4; i++) {
        int64_t ids[] = {0, 5, 2, 3, bad[i], 1}, offset[] = {0, i == 1 ? 4 : bad[i]};
        assert_true(tl_is_none(tl_rotary_ids(t, x, c, s, tl_data(t, ids, TL_I64, TL_DIMS(2, 3)), 1, TL_ROTARY_HALF)));
        fails(TL_EINDEX, "6");
        if (i == 2)
            continue; /* the sum overflows: a test of positions, not of the table */
        assert_true(tl_is_none(tl_rotary_offsets(t, x, c, s, tl_data(t, offset, TL_I64, TL_DIMS(2)), 1, TL_ROTARY_HALF)));
        fails(TL_EINDEX, "");
    }
    int64_t good[] = {0, 3};
    assert_false(tl_is_none(tl_rotary_offsets(t, x, c, s, tl_data(t, good, TL_I64, TL_DIMS(2)), 1, TL_ROTARY_HALF)));
}

static void x_is_saved_for_the_tables_gradients_only(void **unused)
{
    (void)unused;
    for (int tables = 0; tables < 2; tables++) {
        tl_tensor leaf = noise(t, "x", TL_F32, TL_DIMS(2, 8)), c = noise(t, "c", TL_F32, TL_DIMS(8)), s = noise(t, "s", TL_F32, TL_DIMS(8));
        tl_require_grad(t, leaf);
        if (tables)
            tl_require_grad(t, c);
        tl_tensor x = tl_scale(t, leaf, 2), y = tl_rotary(t, x, c, s, TL_ROTARY_HALF);
        tl_tensor z = tl_rotary_(t, x, tl_detach(t, c), s, TL_ROTARY_HALF); /* overwrites x */
        tl_backward(t, tl_sum(t, tl_add(t, y, z), TL_ALL, false));
        if (tables)
            fails(TL_EINPLACE, "rotary");
        else
            no_error("x is not needed");
        tl_tape_reset(t);
    }
}

static void in_place_on_a_packed_qkv_changes_that_part_alone(void **unused)
{
    (void)unused;
    tl_tensor leaf = noise(t, "qkv", TL_F32, TL_DIMS(2, 3, 3, 2, 8)), c = noise(t, "c", TL_F32, TL_DIMS(3, 1, 8)), s = noise(t, "s", TL_F32, TL_DIMS(3, 1, 8));
    tl_tensor want[2], g = noise(t, "g", TL_F32, TL_DIMS(2, 3, 2, 8)), dx[2];
    tl_require_grad(t, leaf);
    for (int place = 0; place < 2; place++) {
        tl_tensor qkv = tl_scale(t, leaf, 1), k = tl_select(t, qkv, 2, 1);
        tl_tensor y = place ? tl_rotary_(t, k, c, s, TL_ROTARY_HALF) : tl_rotary(t, k, c, s, TL_ROTARY_HALF);
        want[place] = y;
        tl_gradients(t, y, &leaf, 1, g, &dx[place]);
        no_error("rotary of k");
        if (place) { /* q and v lie as they lay */
            same_bits(tl_select(t, qkv, 2, 0), tl_select(t, leaf, 2, 0), "q");
            same_bits(tl_select(t, qkv, 2, 2), tl_select(t, leaf, 2, 2), "v");
            tl_error_clear(t);
        }
    }
    same_bits(want[0], want[1], "k");
    same_bits(dx[0], dx[1], "gradient");
}

/* A gradient that two receive is not turned in place for one of them. */
static void in_place_overwrites_no_gradient_that_another_reads(void **unused)
{
    (void)unused;
    tl_tensor a = noise(t, "a", TL_F64, TL_DIMS(2, 8)), b = noise(t, "b", TL_F64, TL_DIMS(2, 8)), c = noise(t, "c", TL_F64, TL_DIMS(8)), s = noise(t, "s", TL_F64, TL_DIMS(8));
    tl_tensor g = noise(t, "g", TL_F64, TL_DIMS(2, 8));
    tl_require_grad(t, a);
    tl_require_grad(t, b);
    tl_tensor y = tl_add(t, tl_rotary_(t, tl_scale(t, a, 1), c, s, TL_ROTARY_HALF), tl_scale(t, b, 1)), before = tl_scale(t, g, 1);
    tl_backward(t, y, .cotangent = g);
    no_error("backward");
    same_bits(tl_grad(t, b), before, "the gradient of the other summand");
    same_bits(g, before, "the cotangent");
    same_bits(tl_grad(t, a), tl_rotary_turned(t, g, c, s, TL_ROTARY_HALF), "the gradient through rotary");
}

/* ---- checkers that lie: a wrong gradient of y = x^2 or of softmax, by a user's op ---- */

typedef enum { FINE, FLIPPED, ALMOST, DOUBLED, ABSOLUTE, NOTHING, ZERO, NANS, ONES, ONE_ELEMENT, TURNED, DETACHED, MEAN_OF, WRONGS } wrong_kind;
typedef struct {
    int64_t kind;
} wrong_attrs;
static const tl_attr wrong_schema[] = {{"kind", TL_ATTR_I64, offsetof(wrong_attrs, kind)}, {0}};

static double get(const tl_array *a, int64_t i) { return a->dtype == TL_F64 ? *(double *)tl_array_at(a, i) : (double)*(float *)tl_array_at(a, i); }

static void put(const tl_array *a, int64_t i, double v)
{
    if (a->dtype == TL_F64)
        *(double *)tl_array_at(a, i) = v;
    else
        *(float *)tl_array_at(a, i) = (float)v;
}

static tl_status square_forward(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        put(&c->out[0], i, get(c->in[0], i) * get(c->in[0], i));
    return TL_OK;
}

static void square_vjp(tl_vjp *g)
{
    tl_tape *on = g->t;
    tl_tensor good = tl_mul(on, tl_scale(on, g->in[0], 2), g->dy[0]), none = tl_sub(on, g->in[0], g->in[0]), bit;
    tl_array a;
    switch ((wrong_kind)((const wrong_attrs *)g->attrs)->kind) {
    case FLIPPED: g->dx[0] = tl_neg(on, good); return;
    case ALMOST: g->dx[0] = tl_scale(on, good, 1.0005); return; /* 2.001 for 2 */
    case DOUBLED: g->dx[0] = tl_scale(on, good, 2); return;
    case ABSOLUTE: g->dx[0] = tl_abs(on, good); return;
    case NOTHING: return;
    case ZERO: g->dx[0] = tl_scale(on, good, 0); return;
    case NANS: g->dx[0] = tl_div(on, none, none); return;
    case ONES: g->dx[0] = g->dy[0]; return;
    case ONE_ELEMENT:
        bit = tl_scale(on, good, 1);
        if (tl_array_of(on, bit, &a))
            put(&a, tl_array_count(&a) - 1, 1.25 * get(&a, tl_array_count(&a) - 1));
        g->dx[0] = bit;
        return;
    case TURNED: g->dx[0] = tl_contiguous(on, tl_transpose(on, good, 0, 1)); return;
    case DETACHED: g->dx[0] = tl_fill(on, tl_dtype_of(on, g->in[0]), tl_shape_of(on, g->in[0]), 0); return;
    case MEAN_OF: g->dx[0] = tl_expand(on, tl_mean(on, good, TL_ALL, true), tl_shape_of(on, good)); return;
    default: g->dx[0] = good;
    }
}

static const tl_op op_square = {.name = "user_square", .n_in = 1, .n_out = 1, .attr = wrong_schema, .attr_size = sizeof(wrong_attrs),
                                .shape = like_first, .forward = square_forward, .vjp = square_vjp, .saves_in = 1};

static tl_tensor f_square(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    return tl_apply1(TL_AT(on), &op_square, ctx, in, 1);
}

static void every_lie_about_a_square_is_caught(void **unused)
{
    static const char *const names[] = {"none", "a flipped sign", "2.001 for 2", "twice as much", "absolute values", "no gradient given", "zero", "0/0",
                                        "the cotangent as it came", "one element of nine", "transposed", "a constant zero", "its mean"};
    (void)unused;
    for (int64_t kind = FINE; kind < WRONGS; kind++)
        for (int way = 0; way < 6; way++) {
            tl_gradcheck_report r;
            wrong_attrs a = {kind};
            tl_tensor x = noise(t, "x", way % 2 ? TL_F32 : TL_F64, TL_DIMS(3, 3));
            tl_gradcheck_options o = {.all = way / 2 == 1, .fast = way / 2 == 2};
            tl_verdict v = tl_gradcheck_at(TL_AT(t), f_square, &x, 1, &a, o, &r);
            bool right = kind == FINE;
            if (right != (v == TL_RIGHT) || r.verdict != v || tl_failed(t) == right)
                fail_msg("%s (%d): %s: %s", names[kind], way, tl_verdict_name(v), r.text);
            if (!right && v != TL_WRONG)
                fail_msg("%s (%d): wrong, not %s: %s", names[kind], way, tl_verdict_name(v), r.text);
            assert_true(r.text[0] != '\0' && (right || strstr(tl_error(t), "gradcheck") != NULL));
            tl_error_clear(t);
        }
}

static tl_status softmax_forward(tl_call *c)
{
    int64_t n = c->in[0]->dim[c->in[0]->ndim - 1], rows = tl_array_count(c->in[0]) / n;
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += exp(get(c->in[0], r * n + i));
        for (int64_t i = 0; i < n; i++)
            put(&c->out[0], r * n + i, exp(get(c->in[0], r * n + i)) / sum);
    }
    return TL_OK;
}

/* kind 1: dx = dy - sum(dy*y), without the factor y: 0, as it should be, for a cotangent of ones. */
static void softmax_vjp(tl_vjp *g)
{
    tl_tensor d = tl_sum(g->t, tl_mul(g->t, g->dy[0], g->out[0]), TL_DIMS(-1), true), dx = tl_sub(g->t, g->dy[0], d);
    g->dx[0] = ((const wrong_attrs *)g->attrs)->kind ? dx : tl_mul(g->t, g->out[0], dx);
}

static const tl_op op_softmax = {.name = "user_softmax", .n_in = 1, .n_out = 1, .attr = wrong_schema, .attr_size = sizeof(wrong_attrs),
                                 .shape = like_first, .forward = softmax_forward, .vjp = softmax_vjp, .saves_out = 1};

static tl_tensor user_softmax(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    return tl_apply1(TL_AT(on), &op_softmax, ctx, in, 1);
}

static void a_softmax_bug_does_not_hide_behind_a_cotangent_of_ones(void **unused)
{
    (void)unused;
    tl_tensor x = noise(t, "x", TL_F64, TL_DIMS(2, 5)), dx;
    wrong_attrs bug = {1}, fine = {0};
    tl_require_grad(t, x);
    tl_gradients(t, user_softmax(t, &x, 1, &bug), &x, 1, tl_fill(t, TL_F64, TL_DIMS(2, 5), 1), &dx);
    for (int i = 0; i < 10; i++)
        assert_true(fabs(at(dx, i)) < 1e-15); /* with ones it cannot be seen */
    assert_int_equal(tl_gradcheck(t, user_softmax, &x, 1, &fine), TL_RIGHT);
    assert_int_equal(tl_gradcheck(t, user_softmax, &x, 1, &bug), TL_WRONG);
    fails(TL_ENOGRAD, "wrong");
}

FUNCTION(f_nothing, tl_scale(on, in[0], 0))
FUNCTION(f_alone, tl_square(on, in[0]))
FUNCTION(f_exp, tl_exp(on, tl_scale(on, in[0], 30)))
FUNCTION(f_sqrt, tl_sqrt(on, in[0]))
FUNCTION(f_far, tl_sin(on, tl_scale(on, in[0], 1e-3)))

static void nothing_checked_is_not_passed(void **unused)
{
    (void)unused;
    tl_tensor x = noise(t, "x", TL_F32, TL_DIMS(4)), none = tl_fill(t, TL_F32, TL_DIMS(0), 0);
    tl_gradcheck_report r;
    assert_int_equal(tl_gradcheck_with(t, f_nothing, &x, 1, NULL, &r, .seed = 0), TL_NO_SIGNAL);
    fails(TL_ENOGRAD, "no signal");
    assert_int_not_equal(tl_gradcheck_with(t, f_alone, &x, 1, NULL, &r, .skip_inputs = true), TL_RIGHT);
    assert_true(tl_failed(t));
    tl_error_clear(t);
    assert_int_not_equal(tl_gradcheck_with(t, f_alone, &none, 1, NULL, &r, .seed = 0), TL_RIGHT); /* no element to move */
    assert_true(tl_failed(t));
    tl_error_clear(t);
    tl_tensor two[] = {x, noise(t, "y", TL_F32, TL_DIMS(2))};
    assert_int_not_equal(tl_gradcheck_with(t, f_alone, two, 2, NULL, &r, .seed = 0), TL_RIGHT);
    fails(TL_ENOGRAD, "input 1"); /* one of two inputs has no part in it */
}

static void a_good_gradient_passes_whatever_its_scale(void **unused)
{
    static const double tiny[] = {1e-9, 3e-7, 2e-8, 5e-9}, huge[] = {1e4, -3e5, 2e6, 7e3};
    (void)unused;
    for (int d = 0; d < 2; d++) {
        tl_tensor x = tl_cast(t, tl_data(t, tiny, TL_F64, TL_DIMS(4)), floats[d]), z = tl_cast(t, tl_data(t, huge, TL_F64, TL_DIMS(4)), floats[d]);
        tl_tensor y = noise(t, "y", floats[d], TL_DIMS(4));
        struct {
            tl_function *f;
            tl_tensor x;
        } good[] = {{f_sqrt, x}, {f_alone, x}, {f_exp, y}, {f_alone, z}, {f_far, z}};
        for (size_t i = 0; i < sizeof good / sizeof *good; i++)
            if (tl_gradcheck(t, good[i].f, &good[i].x, 1, NULL) != TL_RIGHT)
                fail_msg("function %d, %s: %s", (int)i, tl_dtype_name(floats[d]), tl_error(t));
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
const struct CMUnitTest tl_tests_faults[] = {
    TEST(a_scope_ends_though_an_error_path_left_inner_ones_open),
    TEST(an_inner_exit_leaves_the_outer_scope_on),
    TEST(a_vjp_that_leaves_a_scope_open_leaves_it_to_nobody),
    TEST(the_accumulating_matmul_keeps_the_bits),
    TEST(an_op_in_place_obeys_every_mode),
    TEST(addmm_heeds_alpha_and_beta),
    TEST(addmm_heeds_alpha_and_beta_in_its_gradients),
    TEST(a_mean_over_no_dims_is_no_sum),
    TEST(a_mean_rounds_once_and_after_the_division),
    TEST(a_wide_product_was_never_narrow),
    TEST(no_op_of_the_invariant_set_drops_a_gradient),
    TEST(an_op_without_derivative_says_so_at_once),
    TEST(rows_of_no_elements_and_no_rows_are_no_error),
    TEST(a_row_does_not_know_how_many_others_there_are),
    TEST(no_eps_means_the_compute_types),
    TEST(rms_norm_of_a_row_of_zeros),
    TEST(rms_norm_of_infinities_and_nans),
    TEST(rms_norm_of_no_rows),
    TEST(rms_norm_of_large_halves),
    TEST(rstd_has_xs_rank_and_no_gradient),
    TEST(the_pairing_is_no_guess),
    TEST(backward_holds_for_unequal_halves_where_the_shortcut_does_not),
    TEST(partial_rotation_copies_the_rest),
    TEST(a_position_outside_the_table_is_an_error),
    TEST(x_is_saved_for_the_tables_gradients_only),
    TEST(in_place_on_a_packed_qkv_changes_that_part_alone),
    TEST(in_place_overwrites_no_gradient_that_another_reads),
    TEST(every_lie_about_a_square_is_caught),
    TEST(a_softmax_bug_does_not_hide_behind_a_cotangent_of_ones),
    TEST(nothing_checked_is_not_passed),
    TEST(a_good_gradient_passes_whatever_its_scale),
};
const size_t tl_tests_faults_count = sizeof tl_tests_faults / sizeof tl_tests_faults[0];
