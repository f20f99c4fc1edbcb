/* What the gradient checker says of functions that bend at the point or near it, and of inputs that
 * are constants to an op: a right gradient is not called wrong, and a wrong one is. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include <tally_extend.h>

#include "tests/support/functions.h"
#include "tests/support/mutate.h"

extern const struct CMUnitTest tl_tests_bends[];
extern const size_t tl_tests_bends_count;

/* ---- at the point ---- */

typedef struct {
    bool pool; /* a tie of max_pool, else relu at 0 */
    double size;
} bend;

/* A bend of that size beside what is smooth. */
static tl_tensor f_small(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    const bend *b = ctx;
    tl_tensor x = tl_slice(on, in[0], 0, 0, 2, 1);
    (void)n;
    x = b->pool ? tl_max_pool1d(on, tl_reshape(on, x, TL_DIMS(1, 1, 2)), .kernel = {2})
                : tl_relu(on, x);
    return tl_add(on, tl_scale(on, tl_sum(on, x, TL_ALL, false), b->size),
                  tl_sum(on, tl_sin(on, in[0]), TL_ALL, false));
}

static tl_verdict check_small(bend b, tl_dtype d, bool fast, tl_gradcheck_report *r)
{
    tl_tensor x = tl_data(t, ((double[]){0, 0, 0.5, 1}), TL_F64, TL_DIMS(4));
    x = d == TL_F64 ? x : tl_cast(t, x, d);
    tl_verdict v = tl_gradcheck_with(t, f_small, &x, 1, &b, r, .fast = fast);
    tl_error_clear(t);
    return v;
}

static void a_small_bend_is_a_kink(void **unused)
{
    (void)unused;
    for (int way = 0; way < 8; way++)
        for (double size = 1; size > 1e-7; size /= 10) {
            const bend b = {way & 1, size};
            tl_gradcheck_report r;
            if (check_small(b, way & 2 ? TL_F32 : TL_F64, way & 4, &r) != TL_KINK)
                fail_msg("way %d, a bend of %g: %s", way, size, r.text);
        }
}

static void a_bend_excuses_no_wrong_gradient(void **unused)
{
    (void)unused;
    for (int way = 0; way < 8; way++)
        for (double size = 1e-5; size > 1e-8; size /= 10) {
            const bend b = {way & 1, size};
            tl_mutation factor = {&tl_op_sin, 0, TL_MUTATE_FACTOR, 0, 0};
            tl_gradcheck_report r;
            tl_observe(t, &tl_mutator, &factor);
            check_small(b, way & 2 ? TL_F32 : TL_F64, way & 4, &r);
            tl_observe_end(t, &tl_mutator);
            if (r.verdict != TL_WRONG)
                fail_msg("way %d, a bend of %g: %s", way, size, r.text);
        }
}

/* ---- beside the point ---- */

/* It bends at 1 + away, and turns quickly. */
static tl_tensor f_beside(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    tl_tensor x = tl_sum(on, in[0], TL_ALL, false);
    (void)n;
    tl_tensor smooth = tl_sin(on, tl_scale(on, x, 3));
    return tl_add(on, smooth,
                  tl_scale(on, tl_relu(on, tl_shift(on, x, -1 - *(double *)ctx)), 1e-4));
}

static void a_bend_beside_the_point_is_not_wrong(void **unused)
{
    (void)unused;
    for (double away = 1e-2; away > 1e-10; away /= 1.7)
        for (int way = 0; way < 4; way++) {
            tl_gradcheck_report r;
            tl_tensor x = tl_data(t, ((double[]){1}), TL_F64, TL_DIMS(1));
            x = way & 1 ? tl_cast(t, x, TL_F32) : x;
            tl_gradcheck_with(t, f_beside, &x, 1, &away, &r, .fast = way > 1);
            if (r.verdict == TL_WRONG)
                fail_msg("%g away: %s", away, r.text);
            tl_error_clear(t);
        }
}

/* The gradient in F32 alone is wrong there: a bend is no excuse for that. */
typedef struct {
    double factor;
} factor_attrs;
static const tl_attr factor_schema[] = {{"factor", TL_ATTR_F64, offsetof(factor_attrs, factor)},
                                        {0}};
static tl_status same_shape(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}
static tl_status same_forward(tl_call *c)
{
    tl_array_copy(&c->out[0], c->in[0]);
    return TL_OK;
}
static void same_vjp(tl_vjp *g)
{
    const factor_attrs *a = g->attrs;
    const bool own = tl_dtype_of(g->t, g->dy[0]) == TL_F32;
    g->dx[0] = tl_scale(g->t, g->dy[0], own ? a->factor : 1);
}
static const tl_op op_same = {.name = "same_in_f64",
                              .n_in = 1,
                              .n_out = 1,
                              .attr = factor_schema,
                              .attr_size = sizeof(factor_attrs),
                              .shape = same_shape,
                              .forward = same_forward,
                              .vjp = same_vjp};

static tl_tensor f_beside_in_f32(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    const double *given = ctx; /* how far away the bend is, and the factor */
    const factor_attrs a = {given[1]};
    (void)n;
    tl_tensor x = tl_apply1(TL_AT(on), &op_same, &a, in, 1);
    return f_beside(on, &x, 1, (void *)(uintptr_t)given);
}

static void a_bend_beside_it_excuses_no_gradient_in_f32(void **unused)
{
    int kinks = 0;
    (void)unused;
    for (double away = 1e-2; away > 1e-8; away /= 1.7)
        for (int wrong = 0; wrong < 2; wrong++) {
            double given[] = {away, wrong ? 1.5 : 1};
            tl_gradcheck_report r;
            tl_tensor x = tl_data(t, ((float[]){1}), TL_F32, TL_DIMS(1));
            tl_gradcheck_with(t, f_beside_in_f32, &x, 1, given, &r, .seed = 0);
            kinks += r.verdict == TL_KINK;
            if ((r.verdict == TL_WRONG) != wrong)
                fail_msg("%g away, %d: %s", away, wrong, r.text);
            tl_error_clear(t);
        }
    assert_true(kinks > 0);
}

/* ---- scores beside a mask of huge numbers ---- */

static tl_tensor f_masked(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    tl_tensor p = tl_softmax(on, tl_add(on, in[0], in[1]), -1);
    return tl_sum(on, tl_mul(on, p, in[2]), TL_ALL, false);
}

/* The steps that suit -1e30 are none for the zeros beside it. damaged: softmax has a wrong
 * gradient.
 */
static tl_verdict check_masked(tl_dtype d, double huge, bool damaged, tl_gradcheck_report *r)
{
    double mask[16];
    tl_mutation factor = {&tl_op_softmax, 0, TL_MUTATE_FACTOR, 0, 0};
    for (int i = 0; i < 16; i++)
        mask[i] = i % 4 > i / 4 ? -huge : 0;
    tl_tensor in[] = {random_leaf(d, TL_DIMS(4, 4)),
                      tl_cast(t, tl_data(t, mask, TL_F64, TL_DIMS(4, 4)), d),
                      random_leaf(d, TL_DIMS(4, 4))};
    if (damaged)
        tl_observe(t, &tl_mutator, &factor);
    tl_gradcheck_with(t, f_masked, in, 3, NULL, r);
    if (damaged)
        tl_observe_end(t, &tl_mutator);
    tl_error_clear(t);
    return r->verdict;
}

static void huge_numbers_hide_no_score(void **unused)
{
    (void)unused;
    for (int way = 0; way < 4; way++)
        for (double huge = 1e4; huge < 1e38; huge *= 1e13) {
            tl_gradcheck_report r;
            const bool damaged = way & 2;
            if (check_masked(way & 1 ? TL_F32 : TL_F64, huge, damaged, &r) !=
                (damaged ? TL_WRONG : TL_RIGHT))
                fail_msg("way %d, a mask of %g: %s", way, huge, r.text);
        }
}

/* A bias that is the same for all keys has no gradient, and no op is to blame for that. */
static tl_tensor f_shifted(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    tl_tensor y = tl_attention(on, in[0], in[1], in[1], .bias = in[2]);
    return tl_sum(on, tl_mul(on, y, in[0]), TL_ALL, false);
}

static void a_bias_without_effect_is_no_fault_of_softmax(void **unused)
{
    tl_tensor in[] = {random_leaf(TL_F32, TL_DIMS(1, 2, 4, 2)),
                      random_leaf(TL_F32, TL_DIMS(1, 2, 4, 2)),
                      random_leaf(TL_F32, TL_DIMS(1, 1, 1))};
    tl_gradcheck_report r;
    (void)unused;
    tl_gradcheck_with(t, f_shifted, in, 3, NULL, &r);
    if (r.verdict != TL_PRECISION_LIMITED)
        fail_msg("%s", r.text);
    tl_error_clear(t);
}

/* ---- wrong at the point alone ---- */

static tl_status like_first(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

static tl_status square_forward(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++) {
        const double x = tl_array_get(c->in[0], i);
        tl_array_put(&c->out[0], i, x * x);
    }
    return TL_OK;
}

/* 2x, but at x = 1 it is off by a thousandth. */
static void square_vjp(tl_vjp *g)
{
    tl_tensor x = g->in[0];
    tl_tensor at = tl_eq(g->t, x, tl_scalar(g->t, tl_dtype_of(g->t, x), 1));
    tl_tensor dx = tl_mul(g->t, g->dy[0], tl_scale(g->t, x, 2));
    g->dx[0] = tl_where(g->t, at, tl_scale(g->t, dx, 1.001), dx);
}

static const tl_op op_square = {.name = "square_but_at_1",
                                .n_in = 1,
                                .n_out = 1,
                                .shape = like_first,
                                .forward = square_forward,
                                .vjp = square_vjp,
                                .saves_in = 1};
FUNCTION(f_square, tl_apply1(TL_AT(on), &op_square, NULL, in, 1))

static void a_gradient_wrong_at_the_point_alone_is_wrong(void **unused)
{
    (void)unused;
    for (int fast = 0; fast < 2; fast++) {
        tl_gradcheck_report r;
        tl_tensor x = tl_data(t, ((double[]){1, 0.5}), TL_F64, TL_DIMS(2));
        if (tl_gradcheck_with(t, f_square, &x, 1, NULL, &r, .fast = fast) != TL_WRONG)
            fail_msg("%s", r.text);
        tl_error_clear(t);
    }
}

/* Ops that give one of several slopes each may give none together: at 0, x as relu(x) - relu(-x),
 * the square of |x|, sorted squares. */
FUNCTION(f_both_sides, tl_sub(on, tl_relu(on, in[0]), tl_relu(on, tl_neg(on, in[0]))))
FUNCTION(f_even, tl_square(on, tl_abs(on, in[0])))
FUNCTION(f_sorted, tl_sort(on, tl_square(on, in[0]), 0, false, NULL))
FUNCTION(f_bent_and_sin, tl_add(on, f_both_sides(on, in, n, ctx), tl_sin(on, in[0])))

static void slopes_of_composed_ops_are_a_kink(void **unused)
{
    static const struct {
        tl_function *f;
        int order;
    } rows[] = {{f_both_sides, 1}, {f_even, 2}, {f_sorted, 2}};
    (void)unused;
    for (int i = 0; i < 9; i++) {
        const tl_dtype d = i / 3 == 0 ? TL_F64 : i / 3 == 1 ? TL_F32 : TL_BF16;
        tl_tensor x = tl_data(t, ((double[]){0, 0.5, 0, -1}), TL_F64, TL_DIMS(4));
        tl_gradcheck_report r;
        x = d == TL_F64 ? x : tl_cast(t, x, d);
        if (rows[i % 3].order == 1)
            tl_gradcheck_with(t, rows[i % 3].f, &x, 1, NULL, &r, .seed = 0);
        else
            tl_gradgradcheck_with(t, rows[i % 3].f, &x, 1, NULL, &r, .seed = 0);
        if (r.verdict != TL_KINK)
            fail_msg("row %d: %s", i, r.text);
        if (strstr(r.text, "the whole is at a bend or a tie: beside it, it is right") == NULL)
            fail_msg("row %d: %s", i, r.text);
        tl_error_clear(t);
    }
}

/* But not beside a gradient that is wrong at other points, too. */
static void slopes_of_composed_ops_excuse_nothing(void **unused)
{
    tl_mutation factor = {&tl_op_sin, 0, TL_MUTATE_FACTOR, 0, 0};
    tl_tensor x = tl_data(t, ((double[]){0, 0.5, 0, -1}), TL_F64, TL_DIMS(4));
    tl_gradcheck_report r;
    (void)unused;
    tl_observe(t, &tl_mutator, &factor);
    tl_gradcheck_with(t, f_bent_and_sin, &x, 1, NULL, &r, .seed = 0);
    tl_observe_end(t, &tl_mutator);
    if (r.verdict != TL_WRONG)
        fail_msg("%s", r.text);
}

/* ---- inputs that are constants to an op ---- */

FUNCTION(f_counted, tl_cross_entropy(on, in[0], in[1], TL_MEAN, .count = in[2]))
FUNCTION(f_counted_nll,
         tl_nll(on, tl_log_softmax(on, in[0], -1), in[1], TL_MEAN, .count = tl_scale(on, in[2], 2)))
FUNCTION(f_divided, tl_div(on, tl_cross_entropy(on, in[0], in[1], TL_SUM), in[2]))

FUNCTION(f_both, tl_add(on, f_counted(on, in, n, ctx), f_divided(on, in, n, ctx)))

static tl_tensor f_slope(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    tl_tensor dx = TL_NONE, y = f_counted(on, in, n, ctx);
    tl_gradients(on, y, in, 1, TL_NONE, &dx);
    return dx;
}

static void a_count_is_held(void **unused)
{
    static tl_function *const f[] = {f_counted, f_counted_nll, f_slope, f_divided};
    (void)unused;
    for (int k = 0; k < 4; k++)
        for (int order = 1; order <= 2; order++) {
            tl_gradcheck_report r;
            tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(2, 3)),
                              tl_data(t, ((int64_t[]){0, 2}), TL_I64, TL_DIMS(2)),
                              tl_data(t, ((double[]){2}), TL_F64, TL_SCALAR)};
            tl_verdict v = order == 1 ? tl_gradcheck_with(t, f[k], in, 3, NULL, &r, .seed = 0)
                                      : tl_gradgradcheck_with(t, f[k], in, 3, NULL, &r, .seed = 0);
            if (v != TL_RIGHT)
                fail_msg("function %d, order %d: %s", k, order, r.text);
            if (order == 1)
                assert_int_equal(r.leaves, k == 3 ? 2 : 1); /* what only divides varies */
        }
}

/* To differentiate by it is refused. */
static void a_count_takes_no_gradient(void **unused)
{
    tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(2, 3)),
                      tl_data(t, ((int64_t[]){0, 2}), TL_I64, TL_DIMS(2)),
                      tl_data(t, ((double[]){2}), TL_F64, TL_SCALAR)};
    (void)unused;
    for (int i = 0; i < 3; i += 2)
        tl_require_grad(t, in[i]);
    tl_backward(t, f_counted(t, in, 3, NULL));
    expect_failure(t, TL_ENOGRAD, "the vjp of cross_entropy gives no gradient for its input 2");
    in[2] = tl_data(t, ((double[]){2}), TL_F64, TL_SCALAR); /* a divisor, too: it is not held */
    assert_int_equal(tl_gradcheck(t, f_both, in, 3, NULL), TL_WRONG);
    expect_failure(t, TL_ENOGRAD, "gives no gradient for its input 2");
}

const struct CMUnitTest tl_tests_bends[] = {
    TEST(a_small_bend_is_a_kink),
    TEST(a_bend_excuses_no_wrong_gradient),
    TEST(a_bend_beside_the_point_is_not_wrong),
    TEST(a_bend_beside_it_excuses_no_gradient_in_f32),
    TEST(huge_numbers_hide_no_score),
    TEST(a_bias_without_effect_is_no_fault_of_softmax),
    TEST(a_gradient_wrong_at_the_point_alone_is_wrong),
    TEST(slopes_of_composed_ops_are_a_kink),
    TEST(slopes_of_composed_ops_excuse_nothing),
    TEST(a_count_is_held),
    TEST(a_count_takes_no_gradient),
};
const size_t tl_tests_bends_count = sizeof tl_tests_bends / sizeof tl_tests_bends[0];
