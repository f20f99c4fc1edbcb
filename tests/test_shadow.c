/* The shadow check of a whole Llama: every parameter's gradient is right - and an op with a
 * gradient a little off is not. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <tally_extend.h>

#include "tests/support/expect.h"

extern const struct CMUnitTest tl_tests_shadow[];
extern const size_t tl_tests_shadow_count;

static const tl_llama_config config = {.vocab = 17,
                                       .width = 32,
                                       .layers = 2,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .hidden = 48,
                                       .max_positions = 5};

static tl_tensor llama(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    return tl_cross_entropy(t, tl_llama(t, tl_tape_model(t), ctx, in[0]), in[1], TL_MEAN);
}

static void whole_llama(bool tied)
{
    static const int64_t ids[12] = {3, 16, 0, 8, 3, 1, 12, 12, 5, 9, 2, 3};
    tl_llama_config c = config;
    tl_gradcheck_report r;
    c.tied = tied;
    tl_model *m = tl_model_new(.seed = 21);
    tl_tape *t = tl_tape_new(m);
    tl_tensor in[2] = {tl_data(t, ids, TL_I64, TL_DIMS(2, 5)),
                       tl_data(t, ids + 2, TL_I64, TL_DIMS(2, 5))};
    tl_verdict v = tl_gradcheck_with(t, llama, in, 2, &c, &r, .elements = 4, .directions = 1);
    if (v != TL_RIGHT)
        fail_msg("%s", r.text);
    int params = 0;
    for (int i = 0; i < tl_model_count(m); i++)
        params += tl_model_at(m, i).param;
    assert_int_equal(params, tied ? 20 : 21);
    assert_int_equal(r.leaves, params); /* every one of them was compared */
    assert_int_equal(r.compared, params * 5);
    assert_false(tl_failed(t));
    tl_free(t, m);
}

static void a_llama(void **unused)
{
    (void)unused;
    whole_llama(false);
}
static void a_tied_llama(void **unused)
{
    (void)unused;
    whole_llama(true);
}

/* ---- y = x * x with a gradient of factor * x * dy ---- */

typedef struct {
    double factor;
} factor_attrs;

static const tl_attr factor_schema[] = {{"factor", TL_ATTR_F64, offsetof(factor_attrs, factor)},
                                        {0}};

static void square_tile(const tl_tile *k)
{
    for (int64_t i = 0; i < k->n; i++)
        if (k->dtype == TL_F64)
            ((double *)k->out)[i] = ((const double *)k->in[0])[i] * ((const double *)k->in[0])[i];
        else
            ((float *)k->out)[i] = ((const float *)k->in[0])[i] * ((const float *)k->in[0])[i];
}

static void square_vjp(tl_vjp *g)
{
    const factor_attrs *a = g->attrs;
    g->dx[0] = tl_mul(g->t, tl_scale(g->t, g->in[0], a->factor), g->dy[0]);
}

static const tl_op square = {.name = "my_square",
                             .n_in = 1,
                             .n_out = 1,
                             .traits = TL_POINTWISE,
                             .shape = tl_pointwise_shape,
                             .tile = square_tile,
                             .attr = factor_schema,
                             .attr_size = sizeof(factor_attrs),
                             .vjp = square_vjp,
                             .saves_in = 1};

static tl_tensor squared(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    return tl_apply1(TL_AT(t), &square, ctx, in, n);
}

static void a_users_op_right_and_wrong(void **unused)
{
    static const struct {
        double factor;
        tl_verdict want;
    } cases[] = {{2, TL_RIGHT}, {2.001, TL_WRONG}, {-2, TL_WRONG},
                 {0, TL_WRONG}, {4, TL_WRONG},     {2 + 1e-5, TL_WRONG}};
    (void)unused;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor x = tl_data(t, ((float[]){-1.5f, 0.25f, 3}), TL_F32, TL_DIMS(3));
        factor_attrs a = {cases[i].factor};
        tl_gradcheck_report r;
        tl_verdict v = tl_gradcheck_with(t, squared, &x, 1, &a, &r, 0);
        if (v != cases[i].want)
            fail_msg("a gradient of %g x is called %s: %s", cases[i].factor, tl_verdict_name(v),
                     r.text);
        assert_int_equal(tl_failed(t), v != TL_RIGHT); /* anything but right is an error */
        if (v == TL_WRONG) {
            assert_non_null(strstr(tl_error(t), "wrong"));
            assert_non_null(strstr(tl_error(t), "input 0"));
        }
        tl_error_clear(t);
        assert_true(tl_item(t, tl_sum(t, x, TL_ALL, false)) ==
                    1.75); /* the tape keeps its values */
        tl_free(t);
    }
}

/* One wrong gradient deep in a Llama, the loss still falling: it is found, and the parameter named
 * is one that it spoils. */
static tl_tensor spoiled(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    tl_model *m = tl_tape_model(t);
    (void)n;
    tl_tensor h = tl_embed(t, m, "embed", in[0], 17, 8, 0.5);
    h = tl_linear(t, m, "before", h, 8);
    h = tl_apply1(TL_AT(t), &square, ctx, &h, 1);
    return tl_cross_entropy(t, tl_linear(t, m, "after", h, 17), in[1], TL_MEAN);
}

static void one_wrong_op_in_a_model(void **unused)
{
    static const int64_t ids[6] = {3, 16, 0, 8, 3, 1};
    (void)unused;
    for (int wrong = 0; wrong < 2; wrong++) {
        tl_model *m = tl_model_new(.seed = 21);
        tl_tape *t = tl_tape_new(m);
        tl_tensor in[2] = {tl_data(t, ids, TL_I64, TL_DIMS(5)),
                           tl_data(t, ids + 1, TL_I64, TL_DIMS(5))};
        factor_attrs a = {wrong ? 2.02 : 2};
        tl_gradcheck_report r;
        tl_verdict v = tl_gradcheck_with(t, spoiled, in, 2, &a, &r, 0);
        if (v != (wrong ? TL_WRONG : TL_RIGHT))
            fail_msg("%s", r.text);
        if (wrong)
            assert_true(strncmp(r.leaf, "before", 6) == 0 || strncmp(r.leaf, "embed", 5) == 0);
        tl_free(t, m);
    }
}

/* ---- a user's op by rows has a forward of its own; what no loop of the engine has room for, or a
 * kernel, is refused ---- */

static tl_status own_shape(tl_call *c)
{
    for (int i = 0; i < c->n_out; i++)
        c->out[i] = tl_array_make(c->in[0]->dtype, &(tl_shape){1, {3}}, NULL);
    return TL_OK;
}

static tl_status own_forward(tl_call *c)
{
    for (int k = 0; k < c->n_out; k++)
        for (int i = 0; i < 3; i++)
            ((float *)c->out[k].data)[i] = ((const float *)c->in[0]->data)[i] + (float)c->n_in;
    return TL_OK;
}

static void a_users_op_by_rows(void **unused)
{
    static const struct {
        tl_op op;
        const char *says; /* NULL: it runs */
    } cases[] = {
        {{.n_in = 1, .n_out = 1, .traits = TL_WIDENED, .forward = own_forward}, NULL},
        {{.n_in = 8, .n_out = 8, .traits = TL_WIDENED, .forward = own_forward}, NULL},
        {{.n_in = 9, .n_out = 1, .traits = 0, .forward = own_forward}, NULL},
        {{.n_in = 1, .n_out = 1, .traits = TL_WIDENED}, "neither a forward nor a kernel"},
        {{.n_in = 1, .n_out = 1, .traits = 0}, "neither a forward nor a kernel"},
        {{.n_in = 1, .n_out = 1, .traits = TL_POINTWISE}, "neither a forward nor a kernel"},
        {{.n_in = 9, .n_out = 1, .traits = TL_WIDENED, .forward = own_forward}, "0 to 8"},
        {{.n_in = 9, .n_out = 1, .traits = TL_ROWS, .forward = own_forward}, "9 inputs"},
        {{.n_in = 1, .n_out = 9, .traits = TL_WIDENED, .forward = own_forward}, "9 outputs"},
        {{.n_in = 1, .n_out = 1, .traits = TL_POINTWISE, .forward = own_forward}, "for tiles"},
        {{.n_in = 1, .n_out = 1, .traits = TL_POINTWISE, .slot = 9999}, "for tiles"},
        {{.n_in = 1, .n_out = 1, .traits = TL_MUTATES, .forward = own_forward, .mutates = 1},
         "changes input 1 of 1"},
        {{.n_in = 1, .n_out = 1, .traits = TL_MUTATES, .forward = own_forward, .mutates = -1},
         "changes input -1"},
        {{.n_in = 1, .n_out = 0, .traits = TL_MUTATES, .forward = own_forward}, "0 outputs"},
        {{.n_in = 9, .n_out = 1, .traits = TL_POINTWISE, .tile = square_tile}, "1 to 8"},
        {{.n_in = 0, .n_out = 1, .traits = TL_POINTWISE, .tile = square_tile}, "0 inputs"},
        {{.n_in = 1, .n_out = 2, .traits = TL_POINTWISE, .tile = square_tile}, "2 outputs"},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (tl_dtype d = TL_F32; d <= TL_BF16; d += TL_BF16 - TL_F32) {
            tl_op op = cases[i].op;
            op.name = "my_rows";
            op.shape = own_shape;
            if (op.traits == 0 && d != TL_F32)
                continue; /* its forward would have to look at the dtype */
            tl_tape *t = tl_tape_new(NULL);
            tl_tensor x = tl_cast(t, tl_data(t, ((float[]){1, 2, 4}), TL_F32, TL_DIMS(3)), d);
            tl_tensor in[9] = {x, x, x, x, x, x, x, x, x}, out[9];
            tl_apply(TL_AT(t), &op, NULL, in, op.n_in, out);
            if (cases[i].says == NULL) {
                assert_false(tl_failed(t));
                for (int k = 0; k < op.n_out; k++) {
                    tl_array a;
                    assert_true(tl_array_of(t, out[k], &a));
                    assert_true(tl_array_get(&a, 2) == 4 + op.n_in);
                }
            } else {
                assert_int_equal(tl_error_status(t), TL_EUSAGE);
                if (strstr(tl_error(t), cases[i].says) == NULL)
                    fail_msg("case %zu: %s", i, tl_error(t));
            }
            tl_error_clear(t);
            tl_free(t);
        }
}

static tl_status silent_shape(tl_call *c)
{
    (void)c;
    return TL_ESHAPE;
}

static int claimed;

static void claimed_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    (void)c, (void)in;
    out[0] = (tl_batch)claimed;
}

static void a_users_rules_that_make_no_sense(void **unused)
{
    tl_op op = {.name = "mine",
                .n_in = 1,
                .n_out = 1,
                .traits = TL_WIDENED | TL_NONDIFF,
                .shape = silent_shape,
                .forward = own_forward,
                .batch = claimed_batch};
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, ((float[]){1, 2, 4}), TL_F32, TL_DIMS(3));
    assert_true(tl_is_none(tl_apply1(TL_AT(t), &op, NULL, &x, 1)));
    expect_failure(t, TL_ESHAPE, "mine: its shape rule refuses the inputs (");
    op.shape = NULL;
    tl_apply1(TL_AT(t), &op, NULL, &x, 1);
    expect_failure(t, TL_EUSAGE, "mine: an op needs a name and a shape rule");
    op.shape = own_shape;
    for (int i = 0; i < 2; i++) {
        op.name = i == 0 ? NULL : "";
        tl_apply1(TL_AT(t), &op, NULL, &x, 1);
        expect_failure(t, TL_EUSAGE, "(no name): an op needs a name and a shape rule");
    }
    op.name = "mine";
    for (claimed = -128; claimed < 128; claimed++) {
        const tl_tensor y = tl_apply1(TL_AT(t), &op, NULL, &x, 1);
        assert_int_equal(tl_batch_of(t, y),
                         claimed <= 0 && claimed > TL_MIXED ? claimed : TL_MIXED);
    }
    assert_false(tl_failed(t));
    tl_free(t);
}

const struct CMUnitTest tl_tests_shadow[] = {
    cmocka_unit_test(a_users_rules_that_make_no_sense),
    cmocka_unit_test(a_users_op_by_rows),
    cmocka_unit_test(a_llama),
    cmocka_unit_test(a_tied_llama),
    cmocka_unit_test(a_users_op_right_and_wrong),
    cmocka_unit_test(one_wrong_op_in_a_model),
};
const size_t tl_tests_shadow_count = sizeof tl_tests_shadow / sizeof tl_tests_shadow[0];
