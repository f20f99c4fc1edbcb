/* Gradient checkers that lie: wrong gradients of y = x^2 and of softmax, by ops of a user, and none
 * may pass. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include <tally.h>

#include "tests/support/functions.h"

extern const struct CMUnitTest tl_tests_faults_checker[];
extern const size_t tl_tests_faults_checker_count;

static const tl_dtype floats[] = {TL_F64, TL_F32, TL_F16, TL_BF16};

static tl_status like_first(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

typedef enum {
    FINE,
    FLIPPED,
    ALMOST,
    DOUBLED,
    ABSOLUTE,
    NOTHING,
    ZERO,
    NANS,
    ONES,
    ONE_ELEMENT,
    TURNED,
    DETACHED,
    MEAN_OF,
    WRONGS
} wrong_kind;
typedef struct {
    int64_t kind;
} wrong_attrs;
static const tl_attr wrong_schema[] = {{"kind", TL_ATTR_I64, offsetof(wrong_attrs, kind)}, {0}};

static double get(const tl_array *a, int64_t i)
{
    return a->dtype == TL_F64 ? *(double *)tl_array_at(a, i) : (double)*(float *)tl_array_at(a, i);
}

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
    tl_tensor good = tl_mul(on, tl_scale(on, g->in[0], 2), g->dy[0]),
              none = tl_sub(on, g->in[0], g->in[0]), bit;
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
    case DETACHED:
        g->dx[0] = tl_fill(on, tl_dtype_of(on, g->in[0]), tl_shape_of(on, g->in[0]), 0);
        return;
    case MEAN_OF:
        g->dx[0] = tl_expand(on, tl_mean(on, good, TL_ALL, true), tl_shape_of(on, good));
        return;
    default: g->dx[0] = good;
    }
}

static const tl_op op_square = {.name = "user_square",
                                .n_in = 1,
                                .n_out = 1,
                                .attr = wrong_schema,
                                .attr_size = sizeof(wrong_attrs),
                                .shape = like_first,
                                .forward = square_forward,
                                .vjp = square_vjp,
                                .saves_in = 1};

static tl_tensor f_square(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    return tl_apply1(TL_AT(on), &op_square, ctx, in, 1);
}

static void every_lie_about_a_square_is_caught(void **unused)
{
    static const char *const names[] = {"none",
                                        "a flipped sign",
                                        "2.001 for 2",
                                        "twice as much",
                                        "absolute values",
                                        "no gradient given",
                                        "zero",
                                        "0/0",
                                        "the cotangent as it came",
                                        "one element of nine",
                                        "transposed",
                                        "a constant zero",
                                        "its mean"};
    (void)unused;
    for (int64_t kind = FINE; kind < WRONGS; kind++)
        for (int way = 0; way < 6; way++) {
            tl_gradcheck_report r;
            wrong_attrs a = {kind};
            tl_tensor x = noise_leaf(t, "x", way % 2 ? TL_F32 : TL_F64, TL_DIMS(3, 3));
            tl_gradcheck_options o = {.all = way / 2 == 1, .fast = way / 2 == 2};
            tl_verdict v = tl_gradcheck_at(TL_AT(t), f_square, &x, 1, &a, o, &r);
            bool right = kind == FINE;
            if (right != (v == TL_RIGHT) || r.verdict != v || tl_failed(t) == right)
                fail_msg("%s (%d): %s: %s", names[kind], way, tl_verdict_name(v), r.text);
            if (!right && v != TL_WRONG)
                fail_msg("%s (%d): wrong, not %s: %s", names[kind], way, tl_verdict_name(v),
                         r.text);
            assert_null(strstr(r.text, "-nan"));
            assert_true((strstr(r.text, "ULPs") != NULL) == (right || r.analytic != 0));
            assert_true(r.text[0] != '\0' && (right || strstr(tl_error(t), "gradcheck") != NULL));
            tl_error_clear(t);
        }
}

/* y = 3x, whose gradient has a factor in one dtype, and is right in the others. */
typedef struct {
    int64_t dtype;
    double factor;
} factor_attrs;
static const tl_attr factor_schema[] = {{"dtype", TL_ATTR_I64, offsetof(factor_attrs, dtype)},
                                        {"factor", TL_ATTR_F64, offsetof(factor_attrs, factor)},
                                        {0}};

static void triple_tile(const tl_tile *k)
{
    for (int64_t i = 0; i < k->n; i++)
        if (k->dtype == TL_F64)
            ((double *)k->out)[i] = 3 * ((const double *)k->in[0])[i];
        else
            ((float *)k->out)[i] = 3 * ((const float *)k->in[0])[i];
}

static void triple_vjp(tl_vjp *g)
{
    const factor_attrs *a = g->attrs;
    bool here = tl_dtype_of(g->t, g->dy[0]) == (tl_dtype)a->dtype;
    g->dx[0] = tl_scale(g->t, g->dy[0], here ? 3 * a->factor : 3);
}

static const tl_op op_triple = {.name = "user_triple",
                                .n_in = 1,
                                .n_out = 1,
                                .attr = factor_schema,
                                .attr_size = sizeof(factor_attrs),
                                .traits = TL_POINTWISE,
                                .shape = tl_pointwise_shape,
                                .tile = triple_tile,
                                .vjp = triple_vjp};

static tl_tensor f_triple(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    return tl_apply1(TL_AT(on), &op_triple, ctx, in, 1);
}

static tl_tensor f_triple_of_square(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    return tl_tanh(on,
                   tl_apply1(TL_AT(on), &op_triple, ctx, (tl_tensor[]){tl_square(on, in[0])}, 1));
}

static void a_factor_in_one_dtype_is_caught(void **unused)
{
    static const struct {
        tl_dtype dtype;
        double factor[11]; /* ends with 1, which is right */
    } planted[] = {{TL_F64, {-5, -1, 0, 0.5, 1.5, 2, 5, 1.01, 1.0005, 1.000001, 1}},
                   {TL_F32, {-5, -1, 0, 0.5, 1.5, 2, 5, 1.01, 1.0005, 1}},
                   {TL_F16, {-5, -1, 0, 0.5, 1.5, 2, 5, 1}},
                   {TL_BF16, {-5, -1, 0, 0.5, 1.5, 2, 5, 1}}};
    (void)unused;
    for (size_t d = 0; d < sizeof planted / sizeof *planted; d++)
        for (int i = 0; i == 0 || planted[d].factor[i - 1] != 1; i++)
            for (int way = 0; way < 6; way++) {
                if (way > 3 && planted[d].dtype == TL_BF16 && fabs(planted[d].factor[i] - 1) < 1)
                    continue; /* along one direction terms cancel, which have their roundings */
                factor_attrs a = {planted[d].dtype, planted[d].factor[i]};
                tl_tensor x = tl_cast(t, noise_leaf(t, "x", TL_F32, TL_DIMS(3, 4)),
                                      planted[d].dtype);
                tl_gradcheck_options o = {.all = way / 2 == 1, .fast = way / 2 == 2};
                tl_gradcheck_report r;
                tl_verdict v = tl_gradcheck_at(TL_AT(t), way % 2 ? f_triple_of_square : f_triple,
                                               &x, 1, &a, o, &r);
                if (v != (a.factor == 1 ? TL_RIGHT : TL_WRONG))
                    fail_msg("%s, factor %g (%d): %s: %s", tl_dtype_name(planted[d].dtype),
                             a.factor, way, tl_verdict_name(v), r.text);
                tl_error_clear(t);
            }
}

/* ---- the precision that a gradient is judged by is that of what it passes through ---- */

static tl_status triple_and_count_shape(tl_call *c)
{
    c->out[0] = *c->in[0];
    c->out[1] = tl_array_make(TL_I64, &(tl_shape){1, {2}}, NULL);
    return TL_OK;
}

static tl_status triple_and_count(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        put(&c->out[0], i, 3 * get(c->in[0], i));
    memset(c->out[1].data, 0, 2 * sizeof(int64_t));
    return TL_OK;
}

/* Beside what gradients go through, it gives integers. */
static const tl_op op_counts = {.name = "user_counts",
                                .n_in = 1,
                                .n_out = 2,
                                .attr = factor_schema,
                                .attr_size = sizeof(factor_attrs),
                                .shape = triple_and_count_shape,
                                .forward = triple_and_count,
                                .vjp = triple_vjp};

static tl_tensor f_counts(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    tl_tensor out[2] = {TL_NONE, TL_NONE};
    tl_apply(TL_AT(on), &op_counts, ctx, in, n, out);
    return tl_square(on, out[0]);
}

static void integers_beside_it_excuse_no_wrong_gradient(void **unused)
{
    static const double factor[] = {1, 1.01, 0.97};
    (void)unused;
    for (size_t k = 0; k < sizeof factor / sizeof *factor; k++) {
        factor_attrs a = {TL_F32, factor[k]};
        tl_gradcheck_report r;
        tl_tensor x = noise_leaf(t, "x", TL_F32, TL_DIMS(3, 4));
        tl_gradcheck_with(t, f_counts, &x, 1, &a, &r, .seed = 0);
        if (r.verdict != (k == 0 ? TL_RIGHT : TL_WRONG))
            fail_msg("factor %g: %s", factor[k], r.text);
        tl_error_clear(t);
    }
}

FUNCTION(f_widened, tl_square(on, tl_cast(on, in[0], TL_F64)))

/* All ops but one run in f64; the gradient that the leaf gets is of its own dtype. */
static void a_narrow_leaf_has_narrow_gradients(void **unused)
{
    (void)unused;
    for (int d = 0; d < 4; d++)
        for (int all = 0; all < 2; all++) {
            tl_gradcheck_report r;
            tl_tensor x = tl_cast(t, noise_leaf(t, "x", TL_F32, TL_DIMS(3, 4)), floats[d]);
            if (tl_gradcheck_with(t, f_widened, &x, 1, NULL, &r, .all = all) != TL_RIGHT)
                fail_msg("%s: %s", tl_dtype_name(floats[d]), r.text);
        }
}

/* ---- digits that are lost where terms cancel are no wrong gradient; a wrong one there is. ---- */

static tl_tensor f_cancels(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    tl_tensor x = tl_shift(on, tl_shift(on, in[0], 1e6), -1e6);
    return tl_square(on, tl_apply1(TL_AT(on), &op_triple, ctx, &x, 1));
}

/* A row whose class is as good as certain: its gradient is 1 - (1 - 4e-6). */
static tl_tensor f_certain(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    static const int64_t class[3] = {0, 1, 2};
    (void)n;
    tl_tensor x = tl_apply1(TL_AT(on), &op_triple, ctx, in, 1);
    return tl_cross_entropy(on, x, tl_data(on, class, TL_I64, TL_DIMS(3)), TL_MEAN);
}

/* A line through points that lie on it as far as f32 goes. */
static tl_tensor f_fitted(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    float x[40], y[40];
    (void)n;
    for (int i = 0; i < 40; i++) {
        x[i] = (float)(i % 11) / 7 - 0.4f;
        y[i] = 0.9f * x[i] + 0.1f;
    }
    tl_tensor at = tl_cast(on, tl_data(on, x, TL_F32, TL_DIMS(40)), tl_dtype_of(on, in[0])),
              want = tl_cast(on, tl_data(on, y, TL_F32, TL_DIMS(40)), tl_dtype_of(on, in[0])),
              slope = tl_apply1(TL_AT(on), &op_triple, ctx, in, 1);
    return tl_mse(on, tl_shift(on, tl_mul(on, at, slope), 0.1), want);
}

static void lost_digits_are_not_a_wrong_gradient(void **unused)
{
    static const float few[4] = {0.3f, -1.2f, 2.1f, 0.7f}, one[1] = {0.3f},
                       certain[9] = {4.4f, 0, 0.5f, -0.3f, 4.1f, 0.2f, 0, 0.1f, 4.2f};
    tl_tensor x[] = {tl_data(t, few, TL_F32, TL_DIMS(4)),
                     tl_data(t, certain, TL_F32, TL_DIMS(3, 3)),
                     tl_data(t, one, TL_F32, TL_DIMS(1))};
    tl_function *const f[] = {f_cancels, f_certain, f_fitted};
    static const double factor[] = {1, -5, -1, 0, 2};
    (void)unused;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 3; i++)
            for (size_t k = 0; k < sizeof factor / sizeof *factor; k++)
                for (int all = 0; all < 2; all++) {
                    factor_attrs a = {d ? TL_F32 : TL_F64, factor[k]};
                    tl_tensor in = tl_cast(t, x[i], d ? TL_F32 : TL_F64);
                    tl_gradcheck_report r;
                    tl_verdict v = tl_gradcheck_with(t, f[i], &in, 1, &a, &r, .all = all);
                    bool lost = v == TL_PRECISION_LIMITED && strstr(r.text, "lost digits") != NULL;
                    bool named = r.culprit.op != NULL && strcmp(r.culprit.op, "user_triple") == 0;
                    if (k == 0 ? d == 0 ? v != TL_RIGHT && !lost : !lost : v != TL_WRONG || !named)
                        fail_msg("function %d, %s, factor %g: %s", i, d ? "f32" : "f64", factor[k],
                                 r.text);
                    tl_error_clear(t);
                }
}

/* One row that is surer and surer of its class: in f32 p - 1 is some units of 1, and by chance its
 * roundings are alike at all the points at which the check looks for them. */
static tl_tensor f_sure(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    static const int64_t class[1] = {0};
    (void)n;
    tl_tensor x = tl_apply1(TL_AT(on), &op_triple, ctx, in, 1);
    return tl_cross_entropy(on, x, tl_data(on, class, TL_I64, TL_DIMS(1)), TL_MEAN,
                            .count = tl_scalar(on, TL_F64, 3));
}

static void roundings_that_are_alike_everywhere_are_not_wrong(void **unused)
{
    int limited = 0;
    (void)unused;
    for (int i = 6; i < 50; i++)
        for (int way = 0; way < 4; way++) {
            const float row[3] = {0, -0.12f * (float)i, -0.15f * (float)i};
            factor_attrs a = {TL_F32, way % 2 ? -1 : 1};
            tl_tensor x = tl_data(t, row, TL_F32, TL_DIMS(1, 3));
            tl_gradcheck_report r;
            tl_verdict v = tl_gradcheck_with(t, f_sure, &x, 1, &a, &r, .fast = way / 2);
            if (way % 2 ? v != TL_WRONG || r.culprit.op == NULL ||
                              strcmp(r.culprit.op, "user_triple") != 0
                        : v == TL_WRONG)
                fail_msg("logits of %g and %g, factor %g: %s", (double)row[1], (double)row[2],
                         a.factor, r.text);
            limited += v == TL_PRECISION_LIMITED;
            tl_error_clear(t);
        }
    assert_true(limited > 10);
}

/* x times a small number, whose gradient has a factor in F32 alone. */
typedef struct {
    double by, factor;
} small_attrs;
static const tl_attr small_schema[] = {{"by", TL_ATTR_F64, offsetof(small_attrs, by)},
                                       {"factor", TL_ATTR_F64, offsetof(small_attrs, factor)},
                                       {0}};

static tl_status small_forward(tl_call *c)
{
    const small_attrs *a = c->attrs;
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        put(&c->out[0], i, a->by * get(c->in[0], i));
    return TL_OK;
}

static void small_vjp(tl_vjp *g)
{
    const small_attrs *a = g->attrs;
    const bool own = tl_dtype_of(g->t, g->dy[0]) == TL_F32;
    g->dx[0] = tl_scale(g->t, g->dy[0], a->by * (own ? a->factor : 1));
}

static const tl_op op_small = {.name = "user_small",
                               .n_in = 1,
                               .n_out = 1,
                               .attr = small_schema,
                               .attr_size = sizeof(small_attrs),
                               .shape = like_first,
                               .forward = small_forward,
                               .vjp = small_vjp};

static tl_tensor f_small(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    return tl_apply1(TL_AT(on), &op_small, ctx, in, n);
}

static tl_tensor f_small_whole(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    return tl_scale(on, f_small(on, in, n, ctx), 1 / ((const small_attrs *)ctx)->by);
}

/* A gradient far below the units of 1 in its cotangent, which excuse roundings, but no factor. */
static void a_small_gradient_is_wrong_by_a_factor(void **unused)
{
    static const double factor[] = {1, 2, -1, 1.5, 0.9}, small[] = {1e-4, 1e-7, 1e-9, 1e-12};
    (void)unused;
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < 4; i++)
            for (int whole = 0; whole < 2; whole++) {
                small_attrs a = {small[i], factor[k]};
                tl_gradcheck_report r;
                tl_tensor x = noise_leaf(t, "x", TL_F32, TL_DIMS(2, 3));
                tl_gradcheck_with(t, whole ? f_small_whole : f_small, &x, 1, &a, &r, .seed = 0);
                if (r.verdict != (k == 0 ? TL_RIGHT : TL_WRONG) ||
                    (k > 0 && (r.culprit.op == NULL || strcmp(r.culprit.op, "user_small") != 0)))
                    fail_msg("%g, factor %g: %s", a.by, a.factor, r.text);
                tl_error_clear(t);
            }
}

/* A small number times x^2: the factor is that to the gradient in f64 at the same point. */
static tl_status small_square_forward(tl_call *c)
{
    const small_attrs *a = c->attrs;
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        put(&c->out[0], i, a->by * get(c->in[0], i) * get(c->in[0], i));
    return TL_OK;
}

static void small_square_vjp(tl_vjp *g)
{
    const small_attrs *a = g->attrs;
    const bool own = tl_dtype_of(g->t, g->dy[0]) == TL_F32;
    const double factor = own ? a->factor : 1;
    g->dx[0] = tl_scale(g->t, tl_mul(g->t, g->dy[0], g->in[0]), 2 * a->by * factor);
}

static tl_tensor f_small_square(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    static const tl_op op = {.name = "user_small_square",
                             .n_in = 1,
                             .n_out = 1,
                             .attr = small_schema,
                             .attr_size = sizeof(small_attrs),
                             .shape = like_first,
                             .forward = small_square_forward,
                             .vjp = small_square_vjp,
                             .saves_in = 1};
    return tl_apply1(TL_AT(on), &op, ctx, in, n);
}

static void a_small_gradient_that_turns_is_wrong_by_a_factor(void **unused)
{
    static const double factor[] = {1, 2, -1, 1.5, 0.9};
    (void)unused;
    for (int k = 0; k < 5; k++) {
        small_attrs a = {1e-9, factor[k]};
        tl_gradcheck_report r;
        tl_tensor x = noise_leaf(t, "x", TL_F32, TL_DIMS(2, 3));
        tl_gradcheck_with(t, f_small_square, &x, 1, &a, &r, .seed = 0);
        if (r.verdict != (k == 0 ? TL_RIGHT : TL_WRONG))
            fail_msg("factor %g: %s", a.factor, r.text);
        tl_error_clear(t);
    }
}

/* y = x^2 / 2, whose gradient goes through numbers so much larger than x that its roundings, which
 * jump from point to point, are beyond those of x; or is off by a factor as well. */
static tl_status half_square_forward(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        put(&c->out[0], i, get(c->in[0], i) * get(c->in[0], i) / 2);
    return TL_OK;
}

static void half_square_vjp(tl_vjp *g)
{
    const factor_attrs *a = g->attrs;
    const bool here = tl_dtype_of(g->t, g->dy[0]) == (tl_dtype)a->dtype;
    tl_tensor x = tl_shift(g->t, tl_shift(g->t, g->in[0], 3e4), -3e4);
    g->dx[0] = tl_scale(g->t, tl_mul(g->t, g->dy[0], x), here ? a->factor : 1);
}

static tl_tensor f_half_square(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    static const tl_op op = {.name = "user_half_square",
                             .n_in = 1,
                             .n_out = 1,
                             .attr = factor_schema,
                             .attr_size = sizeof(factor_attrs),
                             .shape = like_first,
                             .forward = half_square_forward,
                             .vjp = half_square_vjp,
                             .saves_in = 1};
    return tl_apply1(TL_AT(on), &op, ctx, in, n);
}

static void roundings_within_a_gradient_are_not_wrong(void **unused)
{
    static const double factor[] = {1, -1, 0, 2};
    (void)unused;
    for (int k = 0; k < 4; k++)
        for (int all = 0; all < 2; all++) {
            factor_attrs a = {TL_F32, factor[k]};
            tl_gradcheck_report r;
            tl_tensor x = noise_leaf(t, "x", TL_F32, TL_DIMS(3, 4));
            tl_gradcheck_with(t, f_half_square, &x, 1, &a, &r, .all = all);
            if (r.verdict != (k == 0 ? TL_PRECISION_LIMITED : TL_WRONG))
                fail_msg("factor %g: %s", a.factor, r.text);
            tl_error_clear(t);
        }
}

/* Takes its operands for floats, whatever they are. */
static tl_status floats_alone(tl_call *c)
{
    memset(c->out[0].data, 0, (size_t)tl_array_count(&c->out[0]) * tl_dtype_size(c->out[0].dtype));
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        ((float *)c->out[0].data)[i] = 3 * ((const float *)c->in[0]->data)[i];
    return TL_OK;
}

static const tl_op op_floats_alone = {.name = "user_floats_alone",
                                      .n_in = 1,
                                      .n_out = 1,
                                      .attr = factor_schema,
                                      .attr_size = sizeof(factor_attrs),
                                      .shape = like_first,
                                      .forward = floats_alone,
                                      .vjp = triple_vjp};

static tl_tensor f_floats_alone(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    return tl_apply1(TL_AT(on), &op_floats_alone, ctx, in, n);
}

FUNCTION(f_loses_digits, tl_square(on, tl_shift(on, tl_shift(on, in[0], 1e6), -1e6)))

/* A value that is another in f64 is told, but not where digits were lost: no op is to blame then.
 */
static void doubles_taken_for_floats_are_suspected(void **unused)
{
    static const float x[] = {0.01f, 0.02f, -0.013f, 0.004f};
    (void)unused;
    for (int lost = 0; lost < 2; lost++) {
        factor_attrs a = {TL_F32, 1};
        tl_gradcheck_report r;
        tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(4));
        tl_gradcheck_with(t, lost ? f_loses_digits : f_floats_alone, &in, 1, &a, &r, .all = true);
        if (r.verdict != (lost ? TL_PRECISION_LIMITED : TL_WRONG) ||
            (strstr(r.text, "does an op take doubles for floats?") != NULL) == lost)
            fail_msg("%d: %s", lost, r.text);
        tl_error_clear(t);
    }
}

/* A mask kept as floats: beside 1 the function is another, which is no rounding's doing. */
static tl_tensor f_masked(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    static const float mask[4] = {1, 1, 0, 1};
    (void)n;
    tl_tensor own = tl_cast(on, tl_data(on, mask, TL_F32, TL_DIMS(4)), tl_dtype_of(on, in[0])),
              one = tl_scalar(on, tl_dtype_of(on, in[0]), 1),
              x = tl_apply1(TL_AT(on), &op_triple, ctx, in, 1);
    return tl_where(on, tl_eq(on, own, one), tl_square(on, x), own);
}

/* So is what turns between the points at which roundings are looked for. */
static tl_tensor f_turns(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    tl_tensor x = tl_apply1(TL_AT(on), &op_triple, ctx, in, 1);
    return tl_add(on, tl_sin(on, tl_scale(on, x, 60)), tl_scale(on, in[0], 100));
}

static void what_jumps_or_turns_excuses_nothing(void **unused)
{
    static const float values[4] = {0.7f, -1.3f, 0.4f, 2};
    static const double factor[] = {1, -1, 2, 0.5, 1.00003};
    tl_function *const f[] = {f_masked, f_turns};
    (void)unused;
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < (i % 2 ? 4 : 5); k++) {
            factor_attrs a = {i % 2 ? TL_F32 : TL_F64, factor[k]};
            tl_tensor in = tl_cast(t, tl_data(t, values, TL_F32, TL_DIMS(4)), (tl_dtype)a.dtype);
            tl_gradcheck_report r;
            tl_verdict v = tl_gradcheck_with(t, f[i / 2 % 2], &in, 1, &a, &r, .all = i > 3);
            if (v != (k == 0 ? TL_RIGHT : TL_WRONG))
                fail_msg("function %d, factor %g: %s", i, factor[k], r.text);
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

/* kind 1: dx = dy - sum(dy*y), without the factor y: 0, as it should be, for a cotangent of ones.
 */
static void softmax_vjp(tl_vjp *g)
{
    tl_tensor d = tl_sum(g->t, tl_mul(g->t, g->dy[0], g->out[0]), TL_DIMS(-1), true),
              dx = tl_sub(g->t, g->dy[0], d);
    g->dx[0] = ((const wrong_attrs *)g->attrs)->kind ? dx : tl_mul(g->t, g->out[0], dx);
}

static const tl_op op_softmax = {.name = "user_softmax",
                                 .n_in = 1,
                                 .n_out = 1,
                                 .attr = wrong_schema,
                                 .attr_size = sizeof(wrong_attrs),
                                 .shape = like_first,
                                 .forward = softmax_forward,
                                 .vjp = softmax_vjp,
                                 .saves_out = 1};

static tl_tensor user_softmax(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    return tl_apply1(TL_AT(on), &op_softmax, ctx, in, 1);
}

static void a_softmax_bug_does_not_hide_behind_a_cotangent_of_ones(void **unused)
{
    (void)unused;
    tl_tensor x = noise_leaf(t, "x", TL_F64, TL_DIMS(2, 5)), dx;
    wrong_attrs bug = {1}, fine = {0};
    tl_require_grad(t, x);
    tl_gradients(t, user_softmax(t, &x, 1, &bug), &x, 1, tl_fill(t, TL_F64, TL_DIMS(2, 5), 1), &dx);
    for (int i = 0; i < 10; i++)
        assert_true(fabs(element_of(t, dx, i)) < 1e-15); /* with ones it cannot be seen */
    assert_int_equal(tl_gradcheck(t, user_softmax, &x, 1, &fine), TL_RIGHT);
    assert_int_equal(tl_gradcheck(t, user_softmax, &x, 1, &bug), TL_WRONG);
    expect_failure(t, TL_ENOGRAD, "wrong");
}

FUNCTION(f_nothing, tl_scale(on, in[0], 0))
FUNCTION(f_alone, tl_square(on, in[0]))
FUNCTION(f_exp, tl_exp(on, tl_scale(on, in[0], 30)))
FUNCTION(f_sqrt, tl_sqrt(on, in[0]))
FUNCTION(f_far, tl_sin(on, tl_scale(on, in[0], 1e-3)))

static void nothing_checked_is_not_passed(void **unused)
{
    (void)unused;
    tl_tensor x = noise_leaf(t, "x", TL_F32, TL_DIMS(4)), none = tl_fill(t, TL_F32, TL_DIMS(0), 0);
    tl_gradcheck_report r;
    assert_int_equal(tl_gradcheck_with(t, f_nothing, &x, 1, NULL, &r, .seed = 0), TL_NO_SIGNAL);
    expect_failure(t, TL_ENOGRAD, "no signal: the gradient of input 0 is zero");
    assert_int_equal(tl_gradcheck_with(t, f_nothing, &x, 1, NULL, &r, .constant_ok = true),
                     TL_NO_SIGNAL);
    expect_failure(t, TL_ENOGRAD, "no signal: the gradient of all that was checked is zero");
    assert_int_not_equal(tl_gradcheck_with(t, f_alone, &x, 1, NULL, &r, .skip_inputs = true),
                         TL_RIGHT);
    assert_true(tl_failed(t));
    tl_error_clear(t);
    assert_int_not_equal(tl_gradcheck_with(t, f_alone, &none, 1, NULL, &r, .seed = 0),
                         TL_RIGHT); /* no element to move */
    assert_true(tl_failed(t));
    tl_error_clear(t);
    tl_tensor two[] = {x, noise_leaf(t, "y", TL_F32, TL_DIMS(2))};
    assert_int_not_equal(tl_gradcheck_with(t, f_alone, two, 2, NULL, &r, .seed = 0), TL_RIGHT);
    expect_failure(t, TL_ENOGRAD, "input 1"); /* one of two inputs has no part in it */
}

static void a_good_gradient_passes_whatever_its_scale(void **unused)
{
    static const double tiny[] = {1e-9, 3e-7, 2e-8, 5e-9}, huge[] = {1e4, -3e5, 2e6, 7e3};
    (void)unused;
    for (int d = 0; d < 2; d++) {
        tl_tensor x = tl_cast(t, tl_data(t, tiny, TL_F64, TL_DIMS(4)), floats[d]),
                  z = tl_cast(t, tl_data(t, huge, TL_F64, TL_DIMS(4)), floats[d]);
        tl_tensor y = noise_leaf(t, "y", floats[d], TL_DIMS(4));
        struct {
            tl_function *f;
            tl_tensor x;
        } good[] = {{f_sqrt, x}, {f_alone, x}, {f_exp, y}, {f_alone, z}, {f_far, z}};
        for (size_t i = 0; i < sizeof good / sizeof *good; i++)
            if (tl_gradcheck(t, good[i].f, &good[i].x, 1, NULL) != TL_RIGHT)
                fail_msg("function %d, %s: %s", (int)i, tl_dtype_name(floats[d]), tl_error(t));
    }
}

/* y = a * x, with the gradient by a 25% too large in its last element: that element of that input
 * is named, with what it should be. */
static tl_tensor f_with_one_wrong(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    wrong_attrs a = {ONE_ELEMENT};
    (void)n, (void)ctx;
    return tl_mul(on, tl_sin(on, in[0]), tl_apply1(TL_AT(on), &op_square, &a, &in[1], 1));
}

static void the_worst_element_is_named_with_its_distance(void **unused)
{
    (void)unused;
    for (int d = 0; d < 2; d++) {
        tl_tensor in[2] = {noise_leaf(t, "a", floats[d], TL_DIMS(2, 3)),
                           noise_leaf(t, "x", floats[d], TL_DIMS(2, 3))};
        tl_gradcheck_report r;
        char words[64];
        assert_int_equal(tl_gradcheck_with(t, f_with_one_wrong, in, 2, NULL, &r, .all = true,
                                           .directions = 1),
                         TL_WRONG);
        assert_int_equal(r.verdict, TL_WRONG);
        assert_string_equal(r.leaf, "input 1");
        assert_true(r.element == 5);
        assert_true(fabs(r.analytic / r.numeric - 1.25) < 1e-4 &&
                    fabs(r.relative - fabs(r.analytic - r.numeric) / fabs(r.numeric)) < 0.06);
        double unit =
            d == 0 ? 0x1p-53
                   : 0x1p-24; /* a unit in the last place is one to two of these, relatively */
        assert_true(r.ulps >= 0.2 / (2 * unit) / 2 && r.ulps <= 0.25 / unit);
        snprintf(words, sizeof words, "%.6g", r.analytic);
        if (strstr(r.text, "input 1") == NULL || strstr(r.text, words) == NULL ||
            strstr(r.text, "ULPs") == NULL)
            fail_msg("'%s' wanted in: %s", words, r.text);
        expect_failure(t, TL_ENOGRAD, "input 1");
    }
}

const struct CMUnitTest tl_tests_faults_checker[] = {
    TEST(every_lie_about_a_square_is_caught),
    TEST(a_factor_in_one_dtype_is_caught),
    TEST(integers_beside_it_excuse_no_wrong_gradient),
    TEST(a_narrow_leaf_has_narrow_gradients),
    TEST(lost_digits_are_not_a_wrong_gradient),
    TEST(roundings_that_are_alike_everywhere_are_not_wrong),
    TEST(a_small_gradient_is_wrong_by_a_factor),
    TEST(a_small_gradient_that_turns_is_wrong_by_a_factor),
    TEST(roundings_within_a_gradient_are_not_wrong),
    TEST(doubles_taken_for_floats_are_suspected),
    TEST(what_jumps_or_turns_excuses_nothing),
    TEST(a_softmax_bug_does_not_hide_behind_a_cotangent_of_ones),
    TEST(nothing_checked_is_not_passed),
    TEST(a_good_gradient_passes_whatever_its_scale),
    TEST(the_worst_element_is_named_with_its_distance),
};
const size_t tl_tests_faults_checker_count = sizeof tl_tests_faults_checker /
                                             sizeof tl_tests_faults_checker[0];
