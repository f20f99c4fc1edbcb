/* tl_explain_invariance: which parameters' gradients depend on the split into micro-batches, and
 * why. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include <tally_extend.h>

#include "tests/support/fresh.h"

extern const struct CMUnitTest tl_tests_explain[];
extern const size_t tl_tests_explain_count;

static char text[4096];

/* One line of the text names all of that. */
static void names(const char *param, const char *op, int line)
{
    char quoted[64], place[64];
    snprintf(quoted, sizeof quoted, "'%s' goes through %s (", param, op);
    snprintf(place, sizeof place, "test_explain.c:%d)", line);
    for (char *at = text; *at;) {
        char *stop = strchr(at, '\n');
        assert_non_null(stop);
        *stop = '\0';
        bool here = strstr(at, quoted) != NULL && strstr(at, place) != NULL;
        *stop = '\n';
        if (here)
            return;
        at = stop + 1;
    }
    fail_msg("'%s', %s, line %d wanted in:\n%s", param, op, line, text);
}

static int explain(tl_tensor y)
{
    int n = tl_explain_invariance(t, y, text, sizeof text), lines = 0;
    if (n < 0)
        fail_msg("%s", tl_error(t));
    for (char *p = text; *p; p++)
        lines += *p == '\n';
    assert_int_equal(lines, n);
    return n;
}

static tl_tensor weight(const char *name)
{
    return tl_param(t, m, name, TL_F32, TL_DIMS(4, 4), TL_INIT_NORMAL, 1);
}
static tl_tensor batch(void) { return tl_fill(t, TL_F32, TL_DIMS(6, 4), 0.5); }
static tl_tensor loss_of(tl_tensor x) { return tl_sum(t, x, TL_ALL, false); }

static void a_cast_and_a_square_on_the_way_are_named(void **unused)
{
    (void)unused;
    tl_tensor good = weight("good"), w = weight("cast"), s = weight("squared"), x = batch();
    int line = __LINE__ + 1;
    tl_tensor h = tl_cast(t, tl_cast(t, w, TL_BF16), TL_F32);
    tl_tensor q = tl_square(t, s); /* line + 1 */
    tl_tensor y = loss_of(tl_matmul(t, tl_matmul(t, tl_matmul(t, x, good), h), q));
    assert_int_equal(explain(y), 2);
    names("cast", "cast", line);
    names("squared", "square", line + 1);
    assert_null(strstr(text, "'good'"));
    assert_non_null(strstr(text, "once per step")); /* and what to do */
}

static void every_use_is_named(void **unused)
{
    (void)unused;
    tl_tensor w = weight("w"), x = batch();
    int line = __LINE__ + 1;
    tl_tensor y = tl_add(t, tl_matmul(t, x, tl_exp(t, w)), tl_matmul(t, x, tl_softmax(t, w, -1)));
    tl_tensor z = tl_add(t, y,
                         tl_matmul(t, x, tl_transpose(t, w, 0, 1))); /* a view is no trouble */
    assert_int_equal(explain(loss_of(z)), 2);
    names("w", "exp", line);
    names("w", "softmax", line);
}

static void weight_decay_in_the_loss_is_named(void **unused)
{
    (void)unused;
    tl_tensor w = weight("w"), x = batch();
    int line = __LINE__ + 1;
    tl_tensor penalty = tl_sum(t, tl_square(t, w), TL_ALL, false);
    assert_int_equal(explain(tl_add(t, loss_of(tl_matmul(t, x, w)), penalty)), 1);
    names("w", "square", line);
}

/* Ops that fold a weight, directly, through views and where it is broadcast. */
static void direct_uses_by_folding_ops_are_none(void **unused)
{
    static const int64_t ids[] = {0, 1, 3};
    (void)unused;
    tl_tensor g = tl_param(t, m, "g", TL_F32, TL_DIMS(4), TL_INIT_ONES, 0), table = weight("table"),
              w = weight("w");
    tl_tensor x = tl_embedding(t, table, tl_data(t, ids, TL_I64, TL_DIMS(3)));
    tl_tensor y = tl_layer_norm(t, tl_rms_norm(t, tl_matmul(t, x, w), g, 1e-5), g, g, 1e-5);
    y = tl_mul(t, tl_add(t, y, g), g); /* broadcast: un-broadcast by a fold */
    y = tl_addmm(t, g, y, tl_transpose(t, w, 0, 1), 1, 1);
    if (explain(loss_of(y)) != 0)
        fail_msg("%s", text);
    assert_string_equal(text, "");
}

static void a_llama_has_none(void **unused)
{
    static const int64_t ids[] = {1, 2, 3, 4, 5, 6, 0, 1};
    static const tl_dtype dtypes[] = {TL_F32, TL_BF16, TL_F16};
    (void)unused;
    for (int d = 0; d < 3; d++)
        for (int tied = 0; tied < 2; tied++) {
            tl_model *own = tl_model_new(.seed = 1);
            tl_tape *on = tl_tape_new(own);
            tl_llama_config c = {.vocab = 7,
                                 .width = 16,
                                 .layers = 2,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .hidden = 24,
                                 .max_positions = 4,
                                 .tied = tied,
                                 .dtype = dtypes[d]};
            tl_tensor z = tl_llama(on, own, &c, tl_data(on, ids, TL_I64, TL_DIMS(2, 4)));
            tl_tensor loss = tl_cross_entropy(on, z, tl_data(on, ids, TL_I64, TL_DIMS(2, 4)),
                                              TL_SUM);
            int n = tl_explain_invariance(on, loss, text, sizeof text);
            if (n != 0)
                fail_msg("%s, tied %d: %d: %s%s", tl_dtype_name(dtypes[d]), tied, n, text,
                         tl_error(on));
            tl_backward(on, loss); /* asking changed nothing */
            assert_false(tl_failed(on));
            tl_free(on, own);
        }
}

static void a_gpt2_has_none(void **unused)
{
    static const int64_t ids[] = {1, 2, 3, 4, 5, 6, 0, 1};
    (void)unused;
    tl_gpt2_config c = {.vocab = 7, .width = 16, .layers = 2, .heads = 2, .max_positions = 4};
    tl_tensor z = tl_gpt2(t, m, &c, tl_data(t, ids, TL_I64, TL_DIMS(2, 4)));
    if (explain(tl_cross_entropy(t, z, tl_data(t, ids, TL_I64, TL_DIMS(2, 4)), TL_SUM)) != 0)
        fail_msg("%s", text);
}

static void a_small_buffer_is_safe(void **unused)
{
    char whole[4096], cut[4096];
    (void)unused;
    tl_tensor w = weight("w"), x = batch(),
              y = loss_of(tl_matmul(t, tl_matmul(t, x, tl_exp(t, w)), tl_square(t, w)));
    assert_int_equal(tl_explain_invariance(t, y, whole, sizeof whole), 2);
    size_t n = strlen(whole);
    for (size_t cap = 0; cap < n + 3; cap++) {
        memset(cut, '#', sizeof cut);
        assert_int_equal(tl_explain_invariance(t, y, cut, cap), 2);
        size_t want = cap == 0 ? 0 : cap - 1 < n ? cap - 1 : n;
        if (cap > 0 && (strlen(cut) != want || memcmp(cut, whole, want) != 0))
            fail_msg("cap %zu: '%s'", cap, cut);
        for (size_t i = cap; i < sizeof cut; i++)
            assert_true(cut[i] == '#');
    }
    assert_int_equal(tl_explain_invariance(t, y, NULL, 0), 2);
}

static void a_stale_or_failed_tape_gives_minus_one(void **unused)
{
    (void)unused;
    tl_tensor y = loss_of(weight("w"));
    assert_true(tl_explain_invariance(t, y, text, sizeof text) >= 0);
    tl_tape_reset(t);
    assert_int_equal(tl_explain_invariance(t, y, text, sizeof text), -1);
    assert_int_equal(tl_error_status(t), TL_ESTALE);
    assert_int_equal(tl_explain_invariance(t, y, text, sizeof text), -1);
    assert_string_equal(text, "");
}

/* What it says is true: the gradient of the parameter it names does change with the split, the
 * other's does not. */
static void what_it_says_is_so(void **unused)
{
    enum { ROWS = 64 };
    char hex[2][2][65];
    tl_tensor w = weight("direct"), s = weight("squared");
    (void)unused;
    for (int split = 0; split < 2; split++) {
        int64_t step = split ? 1 : ROWS;
        for (int64_t at = 0; at < ROWS; at += step) {
            tl_tape_reset(t);
            float *x = tl_tape_scratch(t, (size_t)step * 4 * sizeof *x);
            for (int64_t i = 0; i < step * 4; i++)
                x[i] = (float)((at * 4 + i) * 7 % 101) / 101 - 0.4f;
            tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(step, 4));
            tl_tensor loss = loss_of(
                tl_sin(t, tl_matmul(t, tl_tanh(t, tl_matmul(t, in, w)), tl_square(t, s))));
            assert_int_equal(explain(loss), 1);
            assert_non_null(strstr(text, "'squared'"));
            assert_int_equal(tl_backward(t, loss), TL_OK);
        }
        tl_sha256(t, tl_grad(t, w), hex[split][0]);
        tl_sha256(t, tl_grad(t, s), hex[split][1]);
        tl_grad_clear(t);
    }
    assert_false(tl_failed(t));
    assert_string_equal(hex[0][0], hex[1][0]);
    assert_string_not_equal(hex[0][1], hex[1][1]);
}

const struct CMUnitTest tl_tests_explain[] = {
    TEST(a_cast_and_a_square_on_the_way_are_named),
    TEST(every_use_is_named),
    TEST(weight_decay_in_the_loss_is_named),
    TEST(direct_uses_by_folding_ops_are_none),
    TEST(a_llama_has_none),
    TEST(a_gpt2_has_none),
    TEST(a_small_buffer_is_safe),
    TEST(a_stale_or_failed_tape_gives_minus_one),
    TEST(what_it_says_is_so),
};
const size_t tl_tests_explain_count = sizeof tl_tests_explain / sizeof tl_tests_explain[0];
