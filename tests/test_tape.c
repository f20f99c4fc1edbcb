/* Gradients: canonical order, an accumulator for each use, what backward keeps and frees, and what
 * it refuses. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tally_data.h>

#include "tests/support/expect.h"

extern const struct CMUnitTest tl_tests_tape[];
extern const size_t tl_tests_tape_count;

#define TINY 0x1p-24 /* half a unit of 1 in f32: 1 + TINY is 1, TINY + TINY + 1 is not */

static void assert_item(tl_tape *t, tl_tensor x, double want)
{
    double got = tl_item(t, x);
    if (got != want)
        fail_msg("got %a, want %a (%s)", got, want, tl_error(t));
}

static tl_tensor marked(tl_tape *t, float value)
{
    tl_tensor x = tl_data(t, &value, TL_F32, TL_SCALAR);
    tl_require_grad(t, x);
    return x;
}

static tl_tensor random_data(tl_tape *t, tl_shape s, const char *name)
{
    double x[512];
    int64_t n = tl_shape_count(&s);
    tl_rng_fill_normal64(x, (size_t)n, tl_rng_stream(7, name), 0, 0);
    return tl_cast(t, tl_data(t, x, TL_F64, s), TL_F32);
}

static void gradients_hash(tl_tape *t, tl_model *m, char hex[65])
{
    tl_tensor g[32];
    int n = 0;
    for (int i = 0; i < tl_model_count(m); i++)
        if (tl_model_at(m, i).param)
            g[n++] = tl_reshape(t, tl_grad(t, tl_model_at(m, i).tensor), TL_DIMS(-1));
    assert_int_equal(tl_sha256(t, tl_concat(t, g, n, 0), hex), TL_OK);
}

/* ---- order ---- */

/* (h + h*TINY) + h*TINY, its parts recorded in the order that the digits of `order` say. */
static double three_uses(int order, bool tiny_first)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = marked(t, 1), h = tl_neg(t, x), part[3];
    for (int k = 0; k < 3; k++, order /= 10)
        part[order % 10] = tl_scale(t, h, order % 10 == 0 ? 1 : TINY);
    tl_tensor y = tiny_first ? tl_add(t, tl_add(t, part[1], part[2]), part[0])
                             : tl_add(t, tl_add(t, part[0], part[1]), part[2]);
    assert_int_equal(tl_backward(t, y), TL_OK);
    double g = tl_item(t, tl_grad(t, x));
    tl_free(t);
    return g;
}

static void cotangents_add_in_order_of_use(void **unused)
{
    static const int orders[] = {12, 21, 102, 120, 201, 210}; /* of recording; it decides nothing */
    (void)unused;
    for (int i = 0; i < 6; i++) {
        assert_true(three_uses(orders[i], false) == -1.0);           /* (1 + TINY) + TINY */
        assert_true(three_uses(orders[i], true) == -(1 + 2 * TINY)); /* (TINY + TINY) + 1 */
    }
}

static tl_tensor attend(tl_tape *t, tl_model *m, tl_tensor x, int order)
{
    static const char *const name[3] = {"q", "k", "v"};
    tl_tensor h = tl_norm(t, m, "norm", x, 1e-5), p[3];
    for (int k = 0; k < 3; k++, order /= 10)
        p[order % 10] = tl_linear(t, m, name[order % 10], h, 8);
    for (int k = 0; k < 3; k++)
        p[k] = tl_permute(t, tl_reshape(t, p[k], TL_DIMS(2, 5, 2, 4)), TL_DIMS(0, 2, 1, 3));
    tl_tensor y = tl_attention(t, p[0], p[1], p[2]);
    return tl_sum(t, tl_mul(t, y, tl_add(t, y, p[2])), TL_ALL, false);
}

static void recording_order_decides_nothing(void **unused)
{
    static const int orders[] = {12, 21, 102, 120, 201, 210};
    char want[65], got[65];
    (void)unused;
    for (int i = 0; i < 6; i++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor x = random_data(t, TL_DIMS(2, 5, 8), "x");
        if (i % 2) /* nor do nodes that nothing depends on */
            tl_exp(t, tl_linear(t, m, "q", x, 8, .shared = true));
        assert_int_equal(tl_backward(t, attend(t, m, x, orders[i])), TL_OK);
        gradients_hash(t, m, i == 0 ? want : got);
        if (i > 0)
            assert_string_equal(got, want);
        tl_free(t, m);
    }
}

/* ---- accumulators ---- */

static void uses_are_added_in_f64(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    static const double first[3] = {1, TINY, TINY};
    (void)unused;
    for (int i = 0; i < 3; i++) {
        tl_tensor p = tl_param(t, m, "p", TL_F32, TL_SCALAR, TL_INIT_ONES, 1);
        assert_int_equal(tl_backward(t, tl_add(t, tl_scale(t, p, first[i]), tl_scale(t, p, TINY))),
                         TL_OK);
        tl_tape_reset(t);
    }
    assert_item(t, tl_grad(t, tl_model_find(m, "p")),
                1 + 4 * TINY); /* 1 + 5 TINY in f64, rounded once, to even */
    tl_grad_clear(t);
    assert_true(tl_is_none(tl_grad(t, tl_model_find(m, "p"))));
    assert_false(tl_failed(t));
    tl_free(t, m);
}

static void the_uses_of_a_leaf_meet_in_f64(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = marked(t, 1);
    (void)unused;
    tl_backward(t,
                tl_add(t, tl_add(t, tl_neg(t, x), tl_scale(t, x, TINY)), tl_scale(t, x, 3 * TINY)));
    assert_item(t, tl_grad(t, x), -1 + 4 * TINY);
    tl_tape_reset(t);
    assert_int_equal(tl_memory_stats(t).gradients.blocks, 0); /* a leaf's gradient ends with it */
    tl_free(t);
}

/* A parameter as embedding and, seen transposed, as output projection, against two parameters of
 * the same values. */
static void a_tied_parameter_adds_its_two_uses(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    const int64_t ids[6] = {0, 3, 3, 1, 4, 3}, next[6] = {3, 3, 1, 4, 3, 0};
    float g[2][5 * 4], tied[5 * 4];
    (void)unused;
    for (int both = 0; both < 2; both++) {
        tl_grad_clear(t);
        for (int batch = 0; batch < 2; batch++) { /* two micro-batches of three */
            tl_tensor e = tl_param(t, m, "e", TL_F32, TL_DIMS(5, 4), TL_INIT_NORMAL, 1), o = e;
            if (!both) {
                o = tl_param(t, m, "o", TL_F32, TL_DIMS(5, 4), TL_INIT_ZEROS, 0);
                tl_assign(t, o, e);
            }
            tl_tensor h = tl_tanh(t, tl_embedding(t, e,
                                                  tl_data(t, ids + 3 * batch, TL_I64, TL_DIMS(3))));
            tl_tensor z = tl_matmul(t, h, tl_transpose(t, o, 0, 1));
            assert_int_equal(
                tl_backward(t,
                            tl_cross_entropy(t, z, tl_data(t, next + 3 * batch, TL_I64, TL_DIMS(3)),
                                             TL_SUM),
                            .partial = both),
                TL_OK);
            tl_tape_reset(t);
        }
        tl_keep(t, tl_grad(t, tl_model_find(m, "e")), both ? tied : g[0], sizeof tied);
        if (!both)
            tl_keep(t, tl_grad(t, tl_model_find(m, "o")), g[1], sizeof tied);
    }
    for (int i = 0; i < 20; i++) {
        float want = (float)((double)g[0][i] + (double)g[1][i]);
        assert_memory_equal(&want, &tied[i], sizeof want);
    }
    tl_free(t, m);
}

static void fewer_uses_in_a_later_step(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = marked(t, 3);
    (void)unused;
    tl_backward(t, tl_add(t, tl_square(t, x), tl_scale(t, x, 10)));
    assert_item(t, tl_grad(t, x), 16);
    tl_grad_clear(t);
    tl_backward(t, tl_square(t, x));
    assert_item(t, tl_grad(t, x), 6);
    tl_tape_reset(t);
    assert_int_equal(tl_memory_stats(t).gradients.blocks, 0);
    assert_int_equal(tl_memory_stats(t).gradients.used, 0);
    tl_free(t);
}

/* ---- what is kept and what is freed ---- */

static void retained_graphs_run_again(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = marked(t, 3), h = tl_square(t, x), y = tl_exp(t, tl_scale(t, h, 0)),
              z = tl_add(t, tl_square(t, h), y);
    (void)unused;
    assert_int_equal(tl_backward(t, z, .retain = true), TL_OK);
    assert_item(t, tl_grad(t, x), 4 * 27);
    assert_item(t, h, 9); /* values are still there */
    assert_int_equal(tl_backward(t, z), TL_OK);
    assert_item(t, tl_grad(t, x), 8 * 27); /* added to what was there */
    assert_int_equal(tl_backward(t, z), TL_ESTALE);
    expect_failure_both(t, TL_ESTALE, "retain", "freed by an earlier backward");
    tl_free(t);
}

static void backward_frees_values_but_not_the_root(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = marked(t, 3), shown = tl_reshape(t, x, TL_SCALAR), h = tl_square(t, shown),
              unsaved = tl_shift(t, h, 1), y = tl_exp(t, tl_neg(t, unsaved)), z = tl_scale(t, y, 2);
    tl_tensor aside = tl_neg(t, h); /* not on the way: stays */
    (void)unused;
    assert_int_equal(tl_backward(t, z), TL_OK);
    assert_true(tl_item(t, z) > 0);
    assert_item(t, x, 3);
    assert_item(t, shown, 3); /* a view of a leaf */
    assert_item(t, aside, -9);
    tl_tensor gone[] = {h, unsaved, y};
    for (int i = 0; i < 3; i++) {
        assert_true(isnan(tl_item(t, gone[i])));
        expect_failure_both(t, TL_ESTALE, "freed by backward", "tl_keep");
        char hex[65] = "left";
        assert_int_equal(tl_sha256(t, gone[i], hex), TL_ESTALE);
        expect_failure_both(t, TL_ESTALE, "freed by backward", "tl_sha256");
        assert_string_equal(hex, "");
    }
    tl_free(t);
}

static void a_cotangent_of_the_callers(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    const float v[4] = {1, 2, 3, 4}, c[4] = {1, 10, 100, 1000};
    tl_tensor x = tl_data(t, v, TL_F32, TL_DIMS(2, 2)), u = tl_data(t, c, TL_F32, TL_DIMS(2, 2));
    float g[4];
    (void)unused;
    tl_require_grad(t, x);
    tl_tensor y = tl_square(t, x);
    assert_int_equal(tl_backward(t, y), TL_ESHAPE);
    expect_failure_both(t, TL_ESHAPE, "[2, 2]", "cotangent");
    assert_int_equal(tl_backward(t, y, .cotangent = tl_reshape(t, u, TL_DIMS(4))), TL_ESHAPE);
    expect_failure_both(t, TL_ESHAPE, "[4] F32", "[2, 2] F32");
    assert_int_equal(tl_backward(t, y, .cotangent = tl_cast(t, u, TL_F64)), TL_ESHAPE);
    expect_failure_both(t, TL_ESHAPE, "F64", "F32");
    assert_int_equal(tl_backward(t, y, .cotangent = u, .retain = true), TL_OK);
    tl_keep(t, tl_grad(t, x), g, sizeof g);
    assert_memory_equal(g, ((float[]){2, 40, 600, 8000}), sizeof g);
    assert_item(t, tl_sum(t, u, TL_ALL, false), 1111); /* it is the caller's and stays */
    assert_int_equal(tl_backward(t, y, .cotangent = y), TL_OK);
    assert_item(t, tl_sum(t, y, TL_ALL, false), 30);
    tl_free(t);
}

/* ---- roots and views ---- */

static void a_root_that_is_a_view_of_a_leaf(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    const float v[3] = {5, 6, 7};
    tl_tensor x = tl_data(t, v, TL_F32, TL_DIMS(3));
    float g[3];
    (void)unused;
    tl_require_grad(t, x);
    assert_int_equal(tl_backward(t, tl_select(t, x, 0, 1)), TL_OK);
    assert_int_equal(tl_keep(t, tl_grad(t, x), g, sizeof g), TL_OK);
    assert_memory_equal(g, ((float[]){0, 1, 0}), sizeof g);
    tl_free(t);
}

static void views_share_one_gradient(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    const float v[6] = {1, 2, 3, 4, 5, 6};
    tl_tensor x = tl_data(t, v, TL_F32, TL_DIMS(2, 3));
    float g[6];
    (void)unused;
    tl_require_grad(t, x);
    tl_tensor a = tl_slice(t, tl_transpose(t, x, 0, 1), 0, 1, 3, 1); /* (2, 2): columns 1, 2 */
    tl_tensor b = tl_expand(t, tl_reshape(t, x, TL_DIMS(1, 6)), TL_DIMS(4, 6));
    tl_backward(t,
                tl_add(t, tl_sum(t, tl_square(t, a), TL_ALL, false), tl_sum(t, b, TL_ALL, false)));
    assert_int_equal(tl_keep(t, tl_grad(t, x), g, sizeof g), TL_OK);
    assert_memory_equal(g, ((float[]){4, 8, 10, 4, 14, 16}), sizeof g);
    tl_free(t);
}

static void a_graph_of_100000_nodes(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = marked(t, 1), y = x;
    (void)unused;
    for (int i = 0; i < 100000; i++)
        y = i % 2 ? tl_square(t, y) : tl_sqrt(t, y);
    assert_int_equal(tl_memory_stats(t).nodes, 100000);
    assert_int_equal(tl_backward(t, y), TL_OK);
    assert_item(t, y, 1);
    assert_item(t, tl_grad(t, x), 1); /* halved and doubled, exactly */
    tl_free(t);
}

static void a_wide_graph_adds_all_uses(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = marked(t, 2), h = tl_neg(t, x), y = h;
    (void)unused;
    for (int i = 1; i < 5000; i++)
        y = tl_add(t, y, h);
    tl_backward(t, y);
    assert_item(t, tl_grad(t, x), -5000);
    tl_free(t);
}

const struct CMUnitTest tl_tests_tape[] = {
    cmocka_unit_test(cotangents_add_in_order_of_use),
    cmocka_unit_test(recording_order_decides_nothing),
    cmocka_unit_test(uses_are_added_in_f64),
    cmocka_unit_test(the_uses_of_a_leaf_meet_in_f64),
    cmocka_unit_test(a_tied_parameter_adds_its_two_uses),
    cmocka_unit_test(fewer_uses_in_a_later_step),
    cmocka_unit_test(retained_graphs_run_again),
    cmocka_unit_test(backward_frees_values_but_not_the_root),
    cmocka_unit_test(a_cotangent_of_the_callers),
    cmocka_unit_test(a_root_that_is_a_view_of_a_leaf),
    cmocka_unit_test(views_share_one_gradient),
    cmocka_unit_test(a_graph_of_100000_nodes),
    cmocka_unit_test(a_wide_graph_adds_all_uses),
};
const size_t tl_tests_tape_count = sizeof tl_tests_tape / sizeof tl_tests_tape[0];
