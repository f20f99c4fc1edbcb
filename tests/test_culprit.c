/* After a verdict of wrong gradcheck names the op at fault: its name and place, the input, and what
 * kind of error it is. Ops are damaged by the hook for tests, and written wrong. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/support/mutate.h"
#include "autograd/internal.h"
#include <tally.h>

#include "tests/support/functions.h"

extern const struct CMUnitTest tl_tests_culprit[];
extern const size_t tl_tests_culprit_count;

/* ---- a whole Llama ---- */

static const int64_t ids[12] = {3, 16, 0, 8, 3, 1, 12, 12, 5, 9, 2, 3};

static tl_tensor llama(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    const tl_llama_config c = {.vocab = 17,
                               .width = 8,
                               .layers = 2,
                               .heads = 4,
                               .kv_heads = 2,
                               .hidden = 12,
                               .max_positions = 5};
    (void)n, (void)ctx;
    return tl_cross_entropy(on, tl_llama(on, tl_tape_model(on), &c, in[0]), in[1], TL_MEAN);
}

/* The ops of the program and their inputs that gradients go to. */
typedef struct {
    const tl_op *op;
    int input;
} target;

static int targets_of(tl_model *owner, target *all, int room)
{
    tl_tape *on = tl_tape_new(owner);
    tl_tensor in[2] = {tl_data(on, ids, TL_I64, TL_DIMS(2, 5)),
                       tl_data(on, ids + 2, TL_I64, TL_DIMS(2, 5))};
    uint32_t *order, n_order;
    int n = 0;
    tl_tensor y = llama(on, in, 2, NULL);
    assert_int_equal(tl_canonical_order(on, y, TL_TO_GRAD, &order, &n_order), TL_OK);
    for (uint32_t i = 0; i < n_order; i++) {
        const tl_node *node = &on->node[order[i]];
        for (int k = 0; k < node->n_in; k++) {
            bool met = tl_is_none(node->in[k]) || !tl_peek(on, node->in[k])->needs_grad;
            for (int j = 0; j < n; j++)
                met |= all[j].op == node->op && all[j].input == k;
            assert_true(n < room);
            if (!met)
                all[n++] = (target){node->op, k};
        }
    }
    tl_free(on);
    return n;
}

static const struct {
    tl_mutation_kind kind;
    double ratio;
    const char *words;
} damages[] = {{TL_MUTATE_SIGN, -1, "has the wrong sign (analytic/numeric = -1)"},
               {TL_MUTATE_DROP, 0, "is missing (analytic/numeric = 0)"},
               {TL_MUTATE_FACTOR, 1.001, "is off by a factor (analytic/numeric = 1.001)"}};

static void every_op_of_a_llama_damaged(void **unused)
{
    target all[64];
    (void)unused;
    tl_model *owner = tl_model_new(.seed = 21);
    int n = targets_of(owner, all, 64), named = 0;
    assert_true(n > 15);
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof damages / sizeof *damages; k++)
            for (int d = 0; d < (k == 0 ? 2 : 1); d++) { /* the second: leaf by leaf */
                tl_mutation hurt = {all[i].op, all[i].input, damages[k].kind, 0, 0};
                tl_tape *on = tl_tape_new(owner);
                tl_tensor in[2] = {tl_data(on, ids, TL_I64, TL_DIMS(2, 5)),
                                   tl_data(on, ids + 2, TL_I64, TL_DIMS(2, 5))};
                tl_gradcheck_report r;
                char place[64], want[160];
                tl_observe(on, &tl_mutator, &hurt);
                tl_verdict v = d == 0 ? tl_gradcheck_with(on, llama, in, 2, NULL, &r, .fast = true)
                                      : tl_gradcheck_with(on, llama, in, 2, NULL, &r, .elements = 1,
                                                          .directions = 1);
                if (all[i].op->traits & TL_VIEW && damages[k].ratio == -1) {
                    assert_int_equal(v, TL_RIGHT); /* every path has two: their signs cancel */
                    tl_free(on);
                    continue;
                }
                if (hurt.applied == 0 || v != TL_WRONG)
                    fail_msg("%s, input %d, damage %d is not caught (%d applied): %s",
                             all[i].op->name, all[i].input, (int)k, hurt.applied, r.text);
                snprintf(place, sizeof place, "wrong: %s (tests/test_culprit.c:", all[i].op->name);
                snprintf(want, sizeof want, "by input %d %s", all[i].input, damages[k].words);
                if (strstr(r.text, place) == NULL || strstr(r.text, want) == NULL ||
                    strcmp(r.culprit.op, all[i].op->name) != 0 || r.culprit.input != all[i].input ||
                    r.culprit.others != 0 || fabs(r.culprit.ratio - damages[k].ratio) > 1e-6 ||
                    strchr(r.text, '\n') != NULL)
                    fail_msg("%s and %s wanted: %s", place, want, r.text);
                named++;
                tl_free(on);
            }
    print_message("%d damages to %d gradients named\n", named, n);
    tl_free(owner);
}

/* ---- an op of a user, wrong in each way ---- */

typedef struct {
    double factor;  /* of the gradient */
    int64_t broken; /* the element that is wrong alone; -1: all are, -2: each by another factor, -3:
                       in f32 only, -4: by 0/0 */
} wrong_attrs;
static const tl_attr wrong_schema[] = {{"factor", TL_ATTR_F64, offsetof(wrong_attrs, factor)},
                                       {"broken", TL_ATTR_I64, offsetof(wrong_attrs, broken)},
                                       {0}};

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

static tl_status like_first(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

/* y = a*b */
static tl_status product_forward(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        put(&c->out[0], i, get(c->in[0], i) * get(c->in[1], i));
    return TL_OK;
}

static void product_vjp(tl_vjp *g)
{
    const wrong_attrs *w = g->attrs;
    tl_array a;
    if (g->wants[0])
        g->dx[0] = tl_mul(g->t, g->dy[0], g->in[1]);
    if (!g->wants[1])
        return;
    tl_tensor good = tl_mul(g->t, g->dy[0], g->in[0]);
    if (w->broken == -3 && tl_dtype_of(g->t, good) == TL_F64) {
        g->dx[1] = good;
    } else if (w->broken == -4) {
        tl_tensor none = tl_sub(g->t, good, good);
        g->dx[1] = tl_div(g->t, none, none);
    } else if (w->broken == -1 || w->broken == -3) {
        g->dx[1] = tl_scale(g->t, good, w->factor);
    } else {
        g->dx[1] = tl_scale(g->t, good, 1);
        if (tl_array_of(g->t, g->dx[1], &a))
            for (int64_t i = 0; i < tl_array_count(&a); i++)
                if (w->broken == -2 || i == w->broken)
                    put(&a, i, get(&a, i) * (w->broken == -2 ? 2 + (double)i : w->factor));
    }
}

static const tl_op op_product = {.name = "user_product",
                                 .n_in = 2,
                                 .n_out = 1,
                                 .attr = wrong_schema,
                                 .attr_size = sizeof(wrong_attrs),
                                 .shape = like_first,
                                 .forward = product_forward,
                                 .vjp = product_vjp,
                                 .saves_in = 3};

/* Both inputs are one value: deep inside, and only the second gradient is wrong. */
static tl_tensor f_deep(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    tl_tensor x = tl_sin(on, tl_scale(on, in[0], 1.5));
    tl_tensor y = tl_apply1(TL_AT(on), &op_product, ctx, (tl_tensor[]){x, x}, 2);
    return tl_mul(on, tl_sigmoid(on, y), x);
}

static void each_kind_of_error_is_told(void **unused)
{
    static const struct {
        wrong_attrs a;
        double ratio; /* NaN: none */
        const char *words;
    } kinds[] = {
        {{-1, -1}, -1, "has the wrong sign (analytic/numeric = -1)"},
        {{2, -1}, 2, "is doubled, or lacks a half (analytic/numeric = 2)"},
        {{0.5, -1}, 0.5, "is halved, or lacks one of two equal terms (analytic/numeric = 0.5)"},
        {{0, -1}, 0, "is missing (analytic/numeric = 0)"},
        {{1.001, -1}, 1.001, "is off by a factor (analytic/numeric = 1.001)"},
        {{-3, -1}, -3, "is off by a factor (analytic/numeric = -3)"},
        {{1.5, -3}, 1.5, "is off by a factor (analytic/numeric = 1.5"},
        {{1, -2}, (double)NAN, "is wrong by no one factor at"},
        {{1, -4}, (double)NAN, "is not finite at"},
        {{-1, 777}, -1, "has the wrong sign (analytic/numeric = -1) at 1 of 33 elements: [777]"},
        {{1.25, 3}, 1.25, "is off by a factor (analytic/numeric = 1.25) at 1 of"},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int way = 0; way < 3; way++) {
            int64_t n = kinds[i].a.broken == 777 ? 1000 : 12;
            tl_dtype d = way > 0 || kinds[i].a.broken == -3 ? TL_F32 : TL_F64;
            tl_tensor x = random_leaf(d, TL_DIMS(n));
            wrong_attrs a = kinds[i].a;
            tl_gradcheck_report r;
            tl_gradcheck_options o = {.fast = way == 2};
            if (tl_gradcheck_at(TL_AT(t), f_deep, &x, 1, &a, o, &r) != TL_WRONG)
                fail_msg("error %d is not found (%d): %s", (int)i, way, r.text);
            if (strstr(r.text, "wrong: user_product (tests/test_culprit.c:") == NULL ||
                strstr(r.text, "its gradient by input 1 ") == NULL ||
                strstr(r.text, kinds[i].words) == NULL || r.culprit.input != 1 ||
                r.culprit.by != -1 || r.culprit.calls != 1 || r.culprit.others != 0 ||
                isnan(r.culprit.ratio) != isnan(kinds[i].ratio) ||
                fabs(r.culprit.ratio - kinds[i].ratio) > 1e-4)
                fail_msg("user_product, input 1 and '%s' wanted (%d): %s", kinds[i].words, way,
                         r.text);
            if (kinds[i].a.broken >= 0)
                assert_true(r.culprit.worst[0].element == kinds[i].a.broken);
            assert_non_null(strstr(tl_error(t), "user_product (tests/test_culprit.c:"));
            tl_error_clear(t);
        }
}

/* Each element's gradient is larger than that before it, and wrong. */
static tl_tensor f_rising(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    return tl_apply1(TL_AT(on), &op_product, ctx, in, n);
}

static void the_worst_elements_are_told_worst_first(void **unused)
{
    double rising[10], x = 1;
    (void)unused;
    for (int i = 0; i < 10; i++, x *= 16)
        rising[i] = x;
    tl_tensor in[2] = {tl_data(t, rising, TL_F64, TL_DIMS(10)), random_leaf(TL_F64, TL_DIMS(10))};
    tl_gradcheck_report r;
    wrong_attrs a = {-1, -1};
    const char *first, *second;
    assert_int_equal(tl_gradcheck_with(t, f_rising, in, 2, &a, &r, .seed = 0), TL_WRONG);
    assert_int_equal(r.culprit.n_worst, 3);
    for (int i = 0; i < 3; i++)
        assert_true(r.culprit.worst[i].element == 9 - i);
    assert_string_equal(r.culprit.kind, "has the wrong sign");
    assert_non_null(first = strstr(r.text, ": [9] numeric "));
    assert_non_null(second = strstr(r.text, "; [8] numeric "));
    assert_true(first < second && strstr(r.text, "[7] numeric") == NULL);
    assert_non_null(strstr(r.text, "of 2 leaves"));
    tl_error_clear(t);
}

static tl_tensor f_twice_one(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    return tl_apply1(TL_AT(on), &op_product, ctx, (tl_tensor[]){in[0], in[0]}, 2);
}

/* Of many elements some are looked at, perhaps twice; none is told twice. */
static void no_element_is_told_twice(void **unused)
{
    (void)unused;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        tl_tensor x = random_leaf(TL_F64, TL_DIMS(40));
        tl_gradcheck_report r;
        wrong_attrs a = {-1, -1};
        assert_int_equal(tl_gradcheck_with(t, f_twice_one, &x, 1, &a, &r, .seed = seed), TL_WRONG);
        assert_int_equal(r.culprit.n_worst, 3);
        for (int i = 1; i < 3; i++)
            for (int k = 0; k < i; k++)
                assert_true(r.culprit.worst[i].element != r.culprit.worst[k].element);
        assert_non_null(strstr(r.text, "of 1 leaf"));
        assert_null(strstr(r.text, "of 1 leaves"));
        tl_error_clear(t);
    }
}

static void a_verdict_has_a_name(void **unused)
{
    (void)unused;
    assert_string_equal(tl_verdict_name(TL_RIGHT), "right");
    assert_string_equal(tl_verdict_name(TL_NO_SIGNAL), "no signal");
    assert_string_equal(tl_verdict_name((tl_verdict)(TL_NO_SIGNAL + 1)), "?");
}

/* Two that are wrong: one is named, the other counted. */
static tl_tensor f_two_wrong(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    const wrong_attrs less = {1.01, -1};
    tl_tensor x = tl_apply1(TL_AT(on), &op_product, &less, (tl_tensor[]){in[0], in[0]}, 2);
    return tl_apply1(TL_AT(on), &op_product, ctx, (tl_tensor[]){tl_exp(on, x), x}, 2);
}

static void calls_that_are_wrong_are_counted(void **unused)
{
    (void)unused;
    tl_tensor x = random_leaf(TL_F64, TL_DIMS(4));
    tl_gradcheck_report r;
    wrong_attrs a = {-1, -1};
    assert_int_equal(tl_gradcheck_with(t, f_two_wrong, &x, 1, &a, &r, .seed = 0), TL_WRONG);
    assert_int_equal(r.culprit.calls, 2);
    assert_non_null(strstr(r.text, "; 1 more calls of it and 0 of other ops are wrong"));
    tl_error_clear(t);
}

/* What stands at a bend is not to blame for what is wrong elsewhere. */
static tl_tensor f_bent(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    tl_tensor bent = tl_relu(on, in[0]);
    return tl_add(on, bent, tl_apply1(TL_AT(on), &op_product, ctx, (tl_tensor[]){in[1], in[1]}, 2));
}

static void a_bend_is_no_fault(void **unused)
{
    (void)unused;
    tl_tensor in[2] = {tl_data(t, ((double[]){0, 1, -1, 0}), TL_F64, TL_DIMS(4)),
                       random_leaf(TL_F64, TL_DIMS(4))};
    tl_gradcheck_report r;
    wrong_attrs a = {-1, -1}, fine = {1, -1};
    assert_int_equal(tl_gradcheck_with(t, f_bent, in, 2, &a, &r, .seed = 0), TL_WRONG);
    assert_string_equal(r.culprit.op, "user_product");
    assert_int_equal(r.culprit.others, 0);
    assert_int_equal(r.culprit.unjudged, 1);
    tl_error_clear(t);
    assert_int_equal(tl_gradcheck_with(t, f_bent, in, 2, &fine, &r, .seed = 0), TL_KINK);
    assert_null(r.culprit.op); /* and where nothing is wrong, nobody looks */
    assert_int_equal(r.culprit.judged + r.culprit.unjudged, 0);
    tl_error_clear(t);
}

static void a_right_gradient_costs_no_search(void **unused)
{
    (void)unused;
    tl_tensor x = random_leaf(TL_F64, TL_DIMS(4));
    tl_gradcheck_report r;
    wrong_attrs fine = {1, -1};
    assert_int_equal(tl_gradcheck_with(t, f_deep, &x, 1, &fine, &r, .seed = 0), TL_RIGHT);
    assert_true(r.culprit.op == NULL && r.culprit.judged == 0 && r.culprit.unjudged == 0);
}

/* ---- what no op is to blame for ---- */

static double stash;

static tl_status leave_forward(tl_call *c)
{
    stash = get(c->in[0], 0);
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        put(&c->out[0], i, get(c->in[0], i));
    return TL_OK;
}

static tl_status take_forward(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        put(&c->out[0], i, get(c->in[0], i) + stash);
    return TL_OK;
}

static void same_vjp(tl_vjp *g) { g->dx[0] = g->dy[0]; }

static const tl_op op_leave = {.name = "leave",
                               .n_in = 1,
                               .n_out = 1,
                               .shape = like_first,
                               .forward = leave_forward,
                               .vjp = same_vjp};
static const tl_op op_take = {.name = "take",
                              .n_in = 1,
                              .n_out = 1,
                              .shape = like_first,
                              .forward = take_forward,
                              .vjp = same_vjp};

static tl_tensor f_hidden(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    tl_tensor x = tl_apply1(TL_AT(on), &op_leave, NULL, in, 1);
    x = tl_tanh(on, x);
    return tl_apply1(TL_AT(on), &op_take, NULL, &x, 1);
}

static void hidden_state_is_told_apart(void **unused)
{
    (void)unused;
    for (int d = 0; d < 2; d++) {
        tl_tensor x = random_leaf(d ? TL_F32 : TL_F64, TL_DIMS(4));
        tl_gradcheck_report r;
        assert_int_equal(tl_gradcheck_with(t, f_hidden, &x, 1, NULL, &r, .seed = 0), TL_WRONG);
        assert_null(r.culprit.op);
        assert_int_equal(r.culprit.judged, 3);
        assert_non_null(strstr(r.text, "each of 3 ops is right by itself, so an op reads what is "
                                       "not its input, or the engine is wrong"));
        tl_error_clear(t);
    }
}

/* ---- second derivatives ---- */

/* exp whose gradient is an op of its own, y*dy; which is wrong by its first input, or by the
 * second, or which takes y for a constant. */
static void times_vjp(tl_vjp *g)
{
    const wrong_attrs *w = g->attrs;
    for (int i = 0; i < 2; i++)
        if (g->wants[i])
            g->dx[i] = tl_scale(g->t, tl_mul(g->t, g->dy[0], g->in[1 - i]),
                                w->broken == i ? w->factor : 1);
}

static const tl_op op_times = {.name = "exp_grad",
                               .n_in = 2,
                               .n_out = 1,
                               .attr = wrong_schema,
                               .attr_size = sizeof(wrong_attrs),
                               .shape = like_first,
                               .forward = product_forward,
                               .vjp = times_vjp,
                               .saves_in = 3};

static tl_status exp_forward(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        put(&c->out[0], i, exp(get(c->in[0], i)));
    return TL_OK;
}

static void exp_vjp(tl_vjp *g)
{
    const wrong_attrs *w = g->attrs;
    tl_tensor y = w->broken == 2 ? tl_detach(g->t, g->out[0]) : g->out[0];
    g->dx[0] = tl_apply1(TL_AT(g->t), &op_times, w, (tl_tensor[]){y, g->dy[0]}, 2);
}

static const tl_op op_exp = {.name = "user_exp",
                             .n_in = 1,
                             .n_out = 1,
                             .attr = wrong_schema,
                             .attr_size = sizeof(wrong_attrs),
                             .shape = like_first,
                             .forward = exp_forward,
                             .vjp = exp_vjp,
                             .saves_out = 1};

static tl_tensor f_exp(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    tl_tensor x = tl_scale(on, in[0], 0.5);
    return tl_sin(on, tl_apply1(TL_AT(on), &op_exp, ctx, &x, 1));
}

static void the_second_derivative_that_is_wrong(void **unused)
{
    static const struct {
        wrong_attrs a;
        const char *words;
    } kinds[] = {
        {{-1, 0}, "exp_grad (tests/test_culprit.c:%d): its gradient by input 0 has the wrong sign"},
        {{2, 1}, "exp_grad (tests/test_culprit.c:%d): its gradient by input 1 is doubled"},
        {{1, 2},
         "user_exp (tests/test_culprit.c:%d): its second derivative by input 0 and input 0 is "
         "missing (analytic/numeric = 0)"},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int d = 0; d < 2; d++) {
            tl_tensor x = random_leaf(d ? TL_F32 : TL_F64, TL_DIMS(5));
            tl_gradcheck_report r;
            wrong_attrs a = kinds[i].a;
            char want[200];
            assert_int_equal(tl_gradcheck(t, f_exp, &x, 1, &a), TL_RIGHT);
            assert_int_equal(tl_gradgradcheck_with(t, f_exp, &x, 1, &a, &r, .seed = 0), TL_WRONG);
            snprintf(want, sizeof want, kinds[i].words, r.culprit.line);
            if (strstr(r.text, want) == NULL || r.culprit.by != (i == 2 ? 0 : -1))
                fail_msg("'%s' wanted: %s", want, r.text);
            tl_error_clear(t);
        }
}

/* dx is NaN at one element of many, and right elsewhere. */
static void hole_vjp(tl_vjp *g)
{
    static float nans[200];
    nans[150] = NAN;
    g->dx[0] = tl_add(g->t, g->dy[0],
                      tl_cast(g->t, tl_data(g->t, nans, TL_F32, TL_DIMS(200)),
                              tl_dtype_of(g->t, g->dy[0])));
}

static const tl_op op_hole = {.name = "hole",
                              .n_in = 1,
                              .n_out = 1,
                              .shape = like_first,
                              .forward = leave_forward,
                              .vjp = hole_vjp};

static tl_tensor f_hole(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    return tl_apply1(TL_AT(on), &op_hole, NULL, in, 1);
}

static void the_one_element_that_is_not_finite(void **unused)
{
    (void)unused;
    static double x[200];
    tl_gradcheck_report r;
    tl_tape *on = tl_tape_new(NULL);
    for (int i = 0; i < 200; i++)
        x[i] = 0.01 * i;
    tl_tensor in = tl_data(on, x, TL_F64, TL_DIMS(200));
    assert_int_equal(tl_gradcheck_with(on, f_hole, &in, 1, NULL, &r), TL_WRONG);
    if (strstr(r.text, "is not finite at 1 of") == NULL || strstr(r.text, "[150]") == NULL)
        fail_msg("%s", r.text);
    tl_free(on);
}

/* 90,000 is beyond F16; no op is at fault. */
static tl_tensor f_steep(tl_tape *on, const tl_tensor *in, int n, void *ctx)
{
    tl_tensor x = tl_scale(on, in[0], 300);
    (void)n, (void)ctx;
    return tl_mul(on, x, x);
}

static void an_overflow_is_told(void **unused)
{
    (void)unused;
    tl_tensor x = tl_cast(t, tl_data(t, ((double[]){0.5, -0.5}), TL_F64, TL_DIMS(2)), TL_F16);
    tl_gradcheck_report r;
    assert_int_equal(tl_gradcheck_with(t, f_steep, &x, 1, NULL, &r, .seed = 0), TL_WRONG);
    if (r.culprit.op != NULL ||
        strstr(r.text, "in f64 so is the whole; in F16 it is not finite, as after an overflow: "
                       "input 0") == NULL)
        fail_msg("%s", r.text);
    tl_error_clear(t);
}

/* Memory that ends during the search leaves the verdict, or is what is said. */
static void a_search_without_memory(void **unused)
{
    (void)unused;
    wrong_attrs a = {-1, -1};
    bool named = false;
    for (int64_t n = 1; !named && n < 1000000; n += n < 50 ? 7 : n / 12) {
        tl_gradcheck_report r;
        tl_tape *on = tl_tape_new(NULL);
        tl_tensor x = tl_data(on, ((double[]){1, -2}), TL_F64, TL_DIMS(2));
        tl_alloc_fail_after(n);
        tl_verdict v = tl_gradcheck_with(on, f_deep, &x, 1, &a, &r, .elements = 1, .directions = 1);
        tl_alloc_fail_after(0);
        named = v == TL_WRONG && r.culprit.op != NULL && r.culprit.n_worst == 2;
        if (v == TL_RIGHT || (v != TL_WRONG && tl_error_status(on) != TL_ENOMEM) ||
            strstr(r.text, "is right by itself") != NULL)
            fail_msg("allocation %d: %s: %s", (int)n, tl_verdict_name(v), r.text);
        tl_free(on);
    }
    assert_true(named);
}

const struct CMUnitTest tl_tests_culprit[] = {
    TEST(every_op_of_a_llama_damaged),
    TEST(each_kind_of_error_is_told),
    TEST(calls_that_are_wrong_are_counted),
    TEST(a_bend_is_no_fault),
    TEST(a_right_gradient_costs_no_search),
    TEST(hidden_state_is_told_apart),
    TEST(the_second_derivative_that_is_wrong),
    TEST(an_overflow_is_told),
    TEST(a_search_without_memory),
    TEST(the_one_element_that_is_not_finite),
    TEST(the_worst_elements_are_told_worst_first),
    TEST(no_element_is_told_twice),
    TEST(a_verdict_has_a_name),
};
const size_t tl_tests_culprit_count = sizeof tl_tests_culprit / sizeof tl_tests_culprit[0];
