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

#include "tests/support/expect.h"
#include "tests/support/fresh.h"

extern const struct CMUnitTest tl_tests_explain[];
extern const size_t tl_tests_explain_count;

static char text[4096];

/* One line of the text is of op there, and says that. */
static void names(const char *what, const char *op, int line)
{
    char begins[64];
    snprintf(begins, sizeof begins, "%s (tests/test_explain.c:%d)", op, line);
    for (char *at = text, *stop; *at && (stop = strchr(at, '\n')) != NULL; at = stop + 1) {
        *stop = '\0';
        bool here = strncmp(at, begins, strlen(begins)) == 0 && strstr(at, what) != NULL;
        *stop = '\n';
        if (here)
            return;
    }
    fail_msg("%s, %s wanted in:\n%s", begins, what, text);
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
static tl_tensor batch(void) { return tl_zeros(t, TL_F32, TL_DIMS(6, 4)); }
static tl_tensor loss_of(tl_tensor x) { return tl_sum(t, x, TL_ALL, false); }

/* What is made of weights together with something that is neither a weight nor a constant, though
 * no sample decides it, and of weights that were repeated. */
static void weights_made_of_data_are_named(void **unused)
{
    static const float two = 2;
    (void)unused;
    tl_tensor good = weight("good"), w = weight("scaled"), s = weight("repeated"), x = batch();
    tl_tensor number = tl_data(t, &two, TL_F32, TL_SCALAR);
    int line = __LINE__ + 1;
    tl_tensor h = tl_mul(t, tl_exp(t, w), number);
    tl_tensor q = tl_square(t, tl_expand(t, tl_select(t, s, 0, 1), TL_DIMS(4, 4))); /* line + 1 */
    tl_tensor y = tl_matmul(t, tl_matmul(t, tl_matmul(t, x, tl_exp(t, good)), h), q);
    assert_int_equal(explain(loss_of(tl_matmul(t, y, tl_square(t, weight("squared"))))), 2);
    names("'exp'", "mul", line);
    names("'repeated'", "square", line + 1);
    assert_null(strstr(text, "'good'"));
    assert_non_null(strstr(text, "tl_constant")); /* and what to do */
}

/* A recurrent net's first state, say: the message tells what to do, and then there is none. */
static void a_state_of_samples_has_to_be_called_one(void **unused)
{
    (void)unused;
    for (int said = 0; said < 2; said++) {
        tl_tensor h = tl_fill(t, TL_F32, TL_DIMS(6, 4), 0.5);
        if (said)
            tl_batch_axis(t, h, 0);
        const int line = __LINE__ + 1;
        tl_tensor y = tl_add(t, batch(), tl_matmul(t, h, weight("wh")));
        assert_int_equal(explain(loss_of(y)) > 0, !said);
        if (!said) {
            names("'wh' apart from the batch", "matmul", line);
            names("say so by tl_batch_axis", "matmul", line);
        }
    }
}

/* A value that is mixed is blamed on what mixed it, however long ago. */
static void what_mixed_samples_is_named(void **unused)
{
    char what[128];
    (void)unused;
    tl_tensor x = batch();
    const int made = __LINE__ + 1;
    tl_tensor mean = tl_matmul(t, tl_transpose(t, x, 0, 1), tl_exp(t, tl_cumsum(t, x, 0, false)));
    for (int i = 0; i < 3; i++)
        mean = tl_exp(t, mean);
    const int line = __LINE__ + 1;
    tl_tensor y = tl_matmul(t, tl_matmul(t, x, weight("w")), mean);
    assert_true(explain(loss_of(y)) > 0);
    snprintf(what, sizeof what,
             "uses what cumsum (tests/test_explain.c:%d) made of all samples "
             "together",
             made);
    names(what, "matmul", line);
}

static void adds_up(tl_tape *on, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    out[0] = tl_cumsum(on, in[0], 0, false);
}

/* What a graph gives has no ops behind it to name. */
static void what_a_graph_has_mixed_is_said(void **unused)
{
    (void)unused;
    tl_tensor x = batch(), y;
    tl_compiled *g = tl_compile(t, adds_up, 1, NULL);
    assert_int_equal(tl_run(g, &x, 1, &y), TL_OK);
    assert_int_equal(explain(y), 1);
    assert_non_null(strstr(text, "ask inside its program"));
    tl_free(g);
}

static void weight_decay_in_the_loss_is_named(void **unused)
{
    (void)unused;
    tl_tensor w = weight("w"), x = batch();
    tl_tensor penalty = tl_sum(t, tl_square(t, w), TL_ALL, false),
              loss = loss_of(tl_matmul(t, x, w));
    int line = __LINE__ + 1;
    explain(tl_add(t, loss, penalty));
    names("input 0 [] a total over samples (6), input 1 [] free of the batch", "add", line);
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

/* The gradient of a sum of exp(y) by x, recorded. */
static tl_tensor slope(tl_tensor y, tl_tensor x)
{
    tl_tensor d;
    tl_gradients(t, loss_of(tl_exp(t, y)), &x, 1, TL_NONE, &d);
    return d;
}

/* Where nothing depends on an output, the zeros for its cotangent have its samples. */
static void absent_cotangents_have_the_samples(void **unused)
{
    (void)unused;
    tl_tensor table = tl_param(t, m, "table", TL_F32, TL_DIMS(2), TL_INIT_NORMAL, 1), half[2], end,
              of[3];
    const char *const name[] = {"q", "k", "v"};
    tl_chunk(t, tl_matmul(t, batch(), weight("w")), 2, 1, half);
    tl_tensor y = tl_rotary_halves(t, half[0], half[1], table, table, false, &end);
    if (explain(loss_of(tl_add(t, y, slope(end, half[1])))) != 0)
        fail_msg("%s", text);
    for (int i = 0; i < 3; i++)
        of[i] = tl_reshape(t, tl_matmul(t, batch(), weight(name[i])), TL_DIMS(6, 1, 2, 2));
    for (int i = 0; i < 3; i++) {
        y = slope(slope(tl_attention(t, of[0], of[1], of[2]), of[i]), of[i]);
        if (explain(loss_of(y)) != 0)
            fail_msg("%s: %s", name[i], text);
    }
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
              y = tl_add(t, loss_of(tl_matmul(t, x, w)), loss_of(tl_square(t, w)));
    y = tl_mul(t, loss_of(tl_softmax(t, tl_matmul(t, x, w), 0)), y);
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

/* Of what it does not name, no gradient changes with the split: used directly, or made into another
 * weight. */
static void what_it_does_not_name_holds(void **unused)
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
            assert_int_equal(explain(loss), 0);
            assert_int_equal(tl_backward(t, loss), TL_OK);
        }
        tl_sha256(t, tl_grad(t, w), hex[split][0]);
        tl_sha256(t, tl_grad(t, s), hex[split][1]);
        tl_grad_clear(t);
    }
    assert_false(tl_failed(t));
    assert_string_equal(hex[0][0], hex[1][0]);
    assert_string_equal(hex[0][1], hex[1][1]);
}

/* ---- where it speaks, something differs; where it does not, nothing ---- */

enum { SAMPLES = 6 };

static tl_tensor hidden(tl_tensor x) { return tl_tanh(t, tl_matmul(t, x, weight("w"))); }
static tl_tensor summed(tl_tensor h) { return tl_sum(t, tl_sin(t, h), TL_ALL, false); }

static tl_tensor means(tl_tensor x) { return tl_mean(t, hidden(x), TL_ALL, false); }
static tl_tensor centers(tl_tensor x)
{
    tl_tensor h = hidden(x);
    return summed(tl_sub(t, h, tl_scale(t, tl_sum(t, h, TL_DIMS(0), true), 0.1)));
}
static tl_tensor largest(tl_tensor x) { return summed(tl_max(t, hidden(x), TL_DIMS(0), false)); }
static tl_tensor across(tl_tensor x) { return summed(tl_softmax(t, hidden(x), 0)); }
static tl_tensor running(tl_tensor x) { return summed(tl_cumsum(t, hidden(x), 0, false)); }
static tl_tensor first(tl_tensor x)
{
    tl_tensor h = hidden(x);
    return summed(tl_sub(t, h, tl_slice(t, h, 0, 0, 1, 1)));
}
static tl_tensor pairs(tl_tensor x)
{
    tl_tensor h = hidden(x);
    return summed(tl_matmul(t, h, tl_transpose(t, h, 0, 1)));
}
static tl_tensor squared(tl_tensor x) { return tl_square(t, summed(hidden(x))); }
static tl_tensor decayed(tl_tensor x)
{
    return tl_add(t, summed(hidden(x)), tl_sum(t, tl_square(t, weight("w")), TL_ALL, false));
}
static tl_tensor factor(tl_tensor x)
{
    tl_tensor s = tl_param(t, m, "s", TL_F32, TL_SCALAR, TL_INIT_ONES, 0);
    return tl_mul(t, summed(hidden(x)), s);
}
static tl_tensor regrouped(tl_tensor x)
{
    int64_t n = tl_shape_of(t, x).dim[0];
    return summed(tl_softmax(t, tl_reshape(t, hidden(x), TL_DIMS(4, n)), -1));
}

static tl_tensor layers(tl_tensor x) { return summed(hidden(hidden(x))); }
static tl_tensor normed(tl_tensor x)
{
    tl_tensor g = tl_param(t, m, "g", TL_F32, TL_DIMS(4), TL_INIT_ONES, 0);
    return summed(tl_layer_norm(t, tl_rms_norm(t, hidden(x), g, 1e-5), g, g, 1e-5));
}
static tl_tensor token(tl_tensor x)
{
    int64_t n = tl_shape_of(t, x).dim[0];
    tl_tensor cls = tl_param(t, m, "cls", TL_F32, TL_DIMS(1, 4), TL_INIT_NORMAL, 1);
    tl_tensor both[] = {tl_expand(t, cls, TL_DIMS(n, 4)), hidden(x)};
    return summed(tl_concat(t, both, 2, 1));
}
static tl_tensor rowwise(tl_tensor x)
{
    tl_tensor h = hidden(x);
    h = tl_mul(t, tl_softmax(t, h, 1), tl_max(t, h, TL_DIMS(1), true));
    return summed(tl_cumsum(t, tl_slice(t, h, 1, 1, 4, 1), 1, true));
}
static tl_tensor reshaped(tl_tensor x)
{
    tl_tensor h = tl_reshape(t, tl_reshape(t, hidden(x), TL_DIMS(-1, 2)), TL_DIMS(-1, 2, 2));
    return summed(tl_mean(t, tl_permute(t, h, TL_DIMS(0, 2, 1)), TL_DIMS(1), false));
}
static tl_tensor counted(tl_tensor x) { return tl_scale(t, tl_neg(t, summed(hidden(x))), 1.0 / 6); }
static tl_tensor biased(tl_tensor x)
{
    tl_tensor b = tl_param(t, m, "b", TL_F32, TL_DIMS(4), TL_INIT_NORMAL, 1);
    return tl_add(t, summed(tl_mul(t, tl_add(t, hidden(x), b), b)), summed(tl_relu(t, hidden(x))));
}
static tl_tensor added(tl_tensor x)
{
    tl_tensor c = weight("c");
    return summed(tl_addmm(t, tl_select(t, c, 0, 1), x, weight("w"), 0.3, 1.7));
}

/* Weights made of weights alone, or with data that no sample decides, or of repeated ones. */
static tl_tensor made(tl_tensor x)
{
    return summed(tl_matmul(t, tl_matmul(t, x, tl_square(t, weight("c"))),
                            tl_matmul(t, weight("w"), tl_transpose(t, weight("w"), 0, 1))));
}
static tl_tensor made_of_data(tl_tensor x)
{
    static const float two = 2;
    tl_tensor number = tl_data(t, &two, TL_F32, TL_SCALAR);
    return summed(tl_matmul(t, x, tl_mul(t, tl_exp(t, weight("w")), number)));
}
static tl_tensor made_of_repeated(tl_tensor x)
{
    tl_tensor row = tl_expand(t, tl_select(t, weight("w"), 0, 1), TL_DIMS(4, 4));
    return summed(tl_matmul(t, x, tl_square(t, row)));
}
/* A repeated weight: for each sample a gradient (like token), or one sum for all of them. */
static tl_tensor column(void) { return tl_slice(t, weight("w"), 1, 0, 1, 1); }
static tl_tensor repeated(tl_tensor x)
{
    return summed(tl_matmul(t, x, tl_expand(t, column(), TL_DIMS(4, 4))));
}
static tl_tensor repeated_view(tl_tensor x)
{
    tl_tensor four = tl_expand(t, column(), TL_DIMS(4, 4));
    return summed(
        tl_addmm(t, tl_select(t, weight("c"), 0, 1), x, tl_transpose(t, four, 0, 1), 1, 1));
}
static tl_tensor repeated_each(tl_tensor x)
{
    int64_t n = tl_shape_of(t, x).dim[0];
    tl_tensor row = tl_expand(t, tl_slice(t, weight("w"), 0, 0, 1, 1), TL_DIMS(n, 4));
    return summed(tl_where(t, tl_gt(t, x, tl_fill(t, TL_F32, TL_SCALAR, 0)), hidden(x), row));
}
static tl_tensor repeated_logits(tl_tensor x)
{
    const int64_t n = tl_shape_of(t, x).dim[0];
    tl_tensor row = tl_expand(t, tl_slice(t, weight("w"), 0, 0, 1, 1), TL_DIMS(n, 4));
    tl_tensor loss = tl_cross_entropy(t, row, tl_argmax(t, x, 1, false), TL_SUM);
    return tl_add(t, loss, summed(hidden(x)));
}
static tl_tensor repeated_batch(tl_tensor x)
{
    const int64_t n = tl_shape_of(t, x).dim[0];
    tl_tensor w = tl_expand(t, tl_reshape(t, weight("w"), TL_DIMS(1, 4, 4)), TL_DIMS(n, 4, 4));
    return summed(tl_matmul(t, tl_reshape(t, x, TL_DIMS(n, 1, 4)), w));
}
/* For each sample a gradient of what had been repeated before: of that a sum for all of them. */
static tl_tensor twice(tl_tensor x, bool told)
{
    const int64_t n = tl_shape_of(t, x).dim[0];
    tl_tensor row = tl_reshape(t, tl_slice(t, weight("w"), 0, 0, 1, 1), TL_DIMS(1, 1, 4)),
              two = tl_expand(t, tl_expand(t, row, TL_DIMS(1, 2, 4)), TL_DIMS(n, 2, 4)),
              h = tl_reshape(t, hidden(x), TL_DIMS(n, 1, 4));
    if (told)
        tl_batch_axis(t, two, 0);
    return summed(tl_concat(t, (tl_tensor[]){two, h}, 2, 1));
}
static tl_tensor repeated_twice(tl_tensor x) { return twice(x, false); }
static tl_tensor told_twice(tl_tensor x) { return twice(x, true); }
/* As often as there are samples, by chance, and along no axis of theirs. */
static tl_tensor repeated_by_chance(tl_tensor x)
{
    const int64_t n = tl_shape_of(t, x).dim[0];
    tl_tensor row = tl_expand(t, tl_slice(t, weight("w"), 0, 0, 1, 1), TL_DIMS(SAMPLES, 4));
    tl_tensor h = tl_expand(t, tl_reshape(t, hidden(x), TL_DIMS(n, 1, 4)), TL_DIMS(n, SAMPLES, 4));
    return summed(tl_rotary(t, h, row, row, TL_ROTARY_HALF));
}
static tl_tensor repeated_state(tl_tensor x)
{
    const int64_t n = tl_shape_of(t, x).dim[0];
    tl_tensor w = tl_param(t, m, "r", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1),
              h = tl_expand(t, tl_param(t, m, "h0", TL_F32, TL_DIMS(1, 2), TL_INIT_NORMAL, 1),
                            TL_DIMS(n, 2));
    return summed(tl_recur(t, tl_reshape(t, hidden(x), TL_DIMS(n, 2, 2)), w, TL_RNN_TANH, .h = h));
}
/* What a layer or an op repeats by itself has the axis of its samples. */
static tl_tensor padded(tl_tensor x)
{
    return summed(
        tl_matmul(t, tl_pad(t, tl_slice(t, hidden(x), 1, 0, 2, 1), 1, 1, 1, 0.5), weight("c")));
}
/* Rows into which samples were merged. */
static tl_tensor flat(tl_tensor x) { return tl_reshape(t, hidden(x), TL_DIMS(-1, 2)); }
static tl_tensor flat_weight(tl_tensor h)
{
    const int64_t n = tl_shape_of(t, h).dim[1];
    const char name[] = {'f', (char)('0' + n), '\0'};
    return summed(tl_matmul(t, h, tl_param(t, m, name, TL_F32, TL_DIMS(n, 3), TL_INIT_NORMAL, 1)));
}
static tl_tensor flat_padded(tl_tensor x) { return flat_weight(tl_pad(t, flat(x), 1, 1, 2, 0.5)); }
static tl_tensor flat_added(tl_tensor x)
{
    tl_tensor c = tl_param(t, m, "fc", TL_F32, TL_DIMS(3), TL_INIT_NORMAL, 1),
              v = tl_param(t, m, "fu", TL_F32, TL_DIMS(2, 3), TL_INIT_NORMAL, 1);
    return flat_weight(tl_addmm(t, c, flat(x), v, 0.3, 1.7));
}
static tl_tensor flat_joined(tl_tensor x)
{
    tl_tensor h = flat(x), both[] = {h, tl_pad(t, tl_exp(t, h), 1, 1, 0, 0)};
    return flat_weight(tl_concat(t, both, 2, 1));
}
static tl_tensor flat_stacked(tl_tensor x)
{
    tl_tensor h = flat(x), y = tl_stack(t, (tl_tensor[]){h, tl_exp(t, h)}, 2, 0);
    return flat_weight(
        tl_concat(t, (tl_tensor[]){tl_select(t, y, 0, 0), tl_select(t, y, 0, 1)}, 2, 1));
}
static tl_tensor attends(tl_tensor x)
{
    tl_tensor b = tl_param(t, m, "bias", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1),
              h = tl_reshape(t, hidden(x), TL_DIMS(-1, 1, 2, 2));
    return summed(
        tl_attention(t, h, h, h, .bias = b, .mask = tl_causal_mask(t, 2, 2), .full = true));
}
static tl_tensor rotary(tl_tensor x)
{
    tl_tensor r1 = tl_param(t, m, "r1", TL_F32, TL_DIMS(4), TL_INIT_NORMAL, 1),
              r2 = tl_param(t, m, "r2", TL_F32, TL_DIMS(4), TL_INIT_NORMAL, 1);
    return summed(tl_rotary(t, hidden(x), r1, r2, TL_ROTARY_HALF));
}
static tl_tensor tied(tl_tensor x)
{
    tl_tensor h = tl_add(t, x, tl_embedding(t, weight("w"), tl_argmax(t, x, 1, false)));
    return summed(tl_matmul(t, tl_tanh(t, h), tl_transpose(t, weight("w"), 0, 1)));
}
static tl_tensor behind(tl_tensor x)
{
    x = tl_permute(t, tl_reshape(t, x, TL_DIMS(-1, 2, 2)), TL_DIMS(1, 0, 2));
    tl_tensor u = tl_param(t, m, "u", TL_F32, TL_DIMS(2, 4), TL_INIT_NORMAL, 1);
    return summed(tl_matmul(t, x, u));
}
static tl_tensor positions(tl_tensor x)
{
    tl_tensor p = tl_embedding(t, weight("c"), tl_arange(t, TL_I64, 0, 2, 1));
    return summed(tl_add(t, tl_reshape(t, hidden(x), TL_DIMS(-1, 1, 4)), p));
}

typedef tl_tensor program(tl_tensor x);
static const struct {
    const char *name;
    program *f;
    bool speaks;
} programs[] = {
    {"means", means, true},
    {"centers", centers, true},
    {"largest", largest, true},
    {"across", across, true},
    {"running", running, true},
    {"first", first, true},
    {"pairs", pairs, true},
    {"squared", squared, true},
    {"decayed", decayed, true},
    {"factor", factor, true},
    {"regrouped", regrouped, true},
    {"layers", layers, false},
    {"normed", normed, false},
    {"token", token, false},
    {"rowwise", rowwise, false},
    {"reshaped", reshaped, false},
    {"counted", counted, false},
    {"biased", biased, false},
    {"added", added, false},
    {"made", made, false},
    {"data", made_of_data, true},
    {"repeated", made_of_repeated, true},
    {"rotary", rotary, false},
    {"tied", tied, false},
    {"behind", behind, false},
    {"positions", positions, false},
    {"repeated", repeated, true},
    {"its view", repeated_view, true},
    {"each", repeated_each, false},
    {"twice", repeated_twice, true},
    {"told", told_twice, true},
    {"padded", padded, false},
    {"attends", attends, false},
    {"logits", repeated_logits, false},
    {"batch", repeated_batch, false},
    {"state", repeated_state, false},
    {"flat", flat_padded, false},
    {"flat sum", flat_added, false},
    {"joined", flat_joined, false},
    {"stacked", flat_stacked, false},
    {"chance", repeated_by_chance, true},
};
enum { PROGRAMS = sizeof programs / sizeof *programs, INPUTS = 50 };

/* Gradients of all parameters after parts of so many rows; how many lines are said of the first. */
static int gradients(program *f, const float *x, int64_t part, char hex[8][65])
{
    int lines = 0;
    memset(hex, 0, 8 * 65);
    tl_grad_clear(t);
    for (int64_t at = 0; at < SAMPLES; at += part) {
        int64_t n = at + part < SAMPLES ? part : SAMPLES - at;
        tl_tape_reset(t);
        tl_tensor loss = f(tl_data(t, x + at * 4, TL_F32, TL_DIMS(n, 4)));
        lines = at == 0 ? explain(loss) : lines;
        assert_int_equal(tl_backward(t, loss), TL_OK);
    }
    for (int i = 0; i < tl_model_count(m) && i < 8; i++)
        tl_sha256(t, tl_grad(t, tl_model_at(m, i).tensor), hex[i]);
    assert_false(tl_failed(t));
    return lines;
}

static void it_speaks_where_gradients_differ(void **unused)
{
    uint32_t seed = 1;
    (void)unused;
    for (int p = 0; p < PROGRAMS; p++) {
        int differ = 0;
        tl_free(t, m);
        m = tl_model_new(.seed = 5);
        t = tl_tape_new(m);
        for (int k = 0; k < INPUTS; k++) {
            char whole[8][65], parts[8][65];
            float x[SAMPLES * 4];
            for (int i = 0; i < SAMPLES * 4; i++)
                x[i] = (float)((seed = seed * 1664525u + 1013904223u) >> 8) / 8388608.f - 1;
            if ((gradients(programs[p].f, x, SAMPLES, whole) > 0) != programs[p].speaks)
                fail_msg("%s: %s", programs[p].name, text);
            if (gradients(programs[p].f, x, 1 + k % 5, parts) > 0 && !programs[p].speaks)
                fail_msg("%s, of %d samples: %s", programs[p].name, 1 + k % 5, text);
            differ += memcmp(whole, parts, sizeof whole) != 0;
        }
        if ((differ > 0) != programs[p].speaks)
            fail_msg("%s: %d of %d differ", programs[p].name, differ, INPUTS);
    }
}

/* Padding in front of the samples of a decoder is within the promise (NUMERICS 12.7). */
static void a_decoder_with_starts_is_not_named(void **unused)
{
    static const int64_t ids[3][4] = {{1, 2, 3, 0}, {0, 0, 1, 1}, {0, 2, 2, 4}},
                         start[] = {0, 2, 1};
    const tl_llama_config llama = {
        .vocab = 5, .width = 8, .layers = 1, .heads = 2, .hidden = 8, .max_positions = 8};
    const tl_gpt2_config gpt2 = {
        .vocab = 5, .width = 8, .layers = 1, .heads = 2, .max_positions = 8};
    (void)unused;
    for (int k = 0; k < 2; k++) {
        tl_free(t, m);
        m = tl_model_new(.seed = 5);
        t = tl_tape_new(m);
        tl_mode_push(t, TL_STRICT);
        tl_tensor in = tl_data(t, &ids[0][0], TL_I64, TL_DIMS(3, 4)),
                  from = tl_data(t, start, TL_I64, TL_DIMS(3)),
                  y = k == 0 ? tl_llama(t, m, &llama, in, .columns.start = from)
                             : tl_gpt2(t, m, &gpt2, in, .columns.start = from);
        tl_tensor loss = summed(y);
        if (explain(loss) != 0)
            fail_msg("%d: %s", k, text);
        if (tl_backward(t, loss, .partial = true) != TL_OK)
            fail_msg("%d: %s", k, tl_error(t));
    }
}

/* Under TL_STRICT the same programs are refused where they are recorded, the others are not. */
static void strict_refuses_what_it_names(void **unused)
{
    static const float x[SAMPLES * 4] = {0.5f, 1, 2};
    (void)unused;
    for (int p = 0; p < PROGRAMS; p++) {
        tl_tape_reset(t);
        int scope = tl_mode_push(t, TL_STRICT);
        tl_tensor loss = programs[p].f(tl_data(t, x, TL_F32, TL_DIMS(SAMPLES, 4)));
        tl_mode_pop(t, scope);
        tl_grad_clear(t);
        if (!programs[p].speaks && (tl_is_none(loss) || tl_backward(t, loss, .partial = true)))
            fail_msg("%s: %s", programs[p].name, tl_error(t));
        if (programs[p].speaks &&
            (tl_error_status(t) != TL_EUSAGE || strstr(tl_error(t), "TL_STRICT") == NULL ||
             strstr(tl_error(t), "test_explain.c:") == NULL))
            fail_msg("%s: '%s'", programs[p].name, tl_error(t));
        tl_error_clear(t);
    }
}

static void tile_of_blind(const tl_tile *c)
{
    for (int64_t i = 0; i < c->n; i++)
        ((float *)c->out)[i] = *(const float *)c->attrs * ((const float *)c->in[0])[i];
}

static void vjp_of_blind(tl_vjp *g)
{
    g->dx[0] = tl_scale(g->t, g->dy[0], (double)*(const float *)g->attrs);
}

/* An op whose attributes have no schema makes of a weight what nothing else is known to equal. */
static void an_op_without_a_schema_is_told_so(void **unused)
{
    static const tl_attr schema[] = {{"k", TL_ATTR_INT, 0}, {NULL, 0, 0}};
    static const float twice = 2;
#define TWICE(id, schema_)                                                             \
    {                                                                                  \
        .name = id, .n_in = 1, .n_out = 1, .traits = TL_POINTWISE, .attr = schema_,    \
        .attr_size = sizeof twice, .shape = tl_pointwise_shape, .tile = tile_of_blind, \
        .vjp = vjp_of_blind                                                            \
    }
    static const tl_op op[] = {TWICE("blind", NULL), TWICE("told", schema)};
    (void)unused;
    for (int told = 0; told < 2; told++) {
        tl_tape_reset(t);
        tl_tensor w = weight("w"), y = tl_apply1(TL_AT(t), &op[told], &twice, &w, 1);
        assert_int_equal(explain(loss_of(tl_matmul(t, batch(), y))), !told);
        assert_true(told || strstr(text, "give the op one (.attr)") != NULL);
    }
}

/* It names the function that was called, not only the op of which that is made. */
static void strict_names_the_call(void **unused)
{
    static const float x[SAMPLES * 4] = {0.5f, 1, 2};
    (void)unused;
    tl_tape_reset(t);
    int scope = tl_mode_push(t, TL_STRICT);
    tl_tensor w = tl_param(t, m, "strict", TL_F32, TL_DIMS(4), .kind = TL_INIT_ONES);
    tl_mse(t, tl_mul(t, tl_data(t, x, TL_F32, TL_DIMS(SAMPLES, 4)), w), w);
    tl_mode_pop(t, scope);
    assert_int_equal(tl_error_status(t), TL_EUSAGE);
    assert_non_null(strstr(tl_error(t), "mse: mean: TL_STRICT: "));
    tl_error_clear(t);
}

/* A checker runs leaves of its own: what was recorded is not refused once more. */
static tl_tensor strictly(tl_tape *tape, const tl_tensor *in, int n, void *ctx)
{
    const int scope = tl_mode_push(tape, TL_STRICT);
    tl_tensor h = tl_tanh(tape, tl_matmul(tape, tl_transpose(tape, in[0], 0, 1), in[1]));
    (void)n, (void)ctx;
    h = tl_sum(tape, tl_square(tape, tl_sum(tape, h, TL_DIMS(0), false)), TL_ALL, false);
    tl_mode_pop(tape, scope);
    return h;
}

/* An op that the program has not called is named with the function that has. */
static void the_function_called_is_named(void **unused)
{
    static const int64_t ids[] = {2, 0};
    (void)unused;
    tl_tensor h = tl_matmul(t, batch(), weight("w"));
    tl_tensor two = tl_data(t, ids, TL_I64, TL_DIMS(2));
    const int line = __LINE__ + 1;
    explain(loss_of(tl_index_select(t, h, 0, two)));
    names("mixes samples", "index_select's gather", line);
    explain(loss_of(tl_gather(t, h, tl_data(t, ids, TL_I64, TL_DIMS(1, 2)), 0)));
    names("mixes samples", "gather", line + 2);
}

/* What is wrong with a total depends on what meets it. */
static void a_total_is_named_by_what_meets_it(void **unused)
{
    (void)unused;
    tl_tensor h = tl_matmul(t, batch(), weight("w"));
    tl_tensor s = tl_sum(t, h, TL_DIMS(0), false);
    const int line = __LINE__ + 1;
    explain(loss_of(tl_add(t, h, s)));
    names("mixes samples with a total", "add", line);
    explain(loss_of(tl_square(t, s)));
    names("uses a total, which is a sum over samples, other than linearly", "square", line + 2);
    tl_tensor one = tl_sum(t, h, TL_DIMS(1), true);
    explain(loss_of(tl_mul(t, one, tl_transpose(t, one, 0, 1))));
    names("mixes samples: they lie along different axes", "mul", line + 5);
    const int next = __LINE__ + 2;
    explain(
        tl_add(t, tl_sum(t, h, TL_ALL, false), tl_sum(t, tl_abs(t, weight("v")), TL_ALL, false)));
    names("a penalty on parameters is a tl_backward of its own", "add", next);
}

/* Rows of a table by numbers of the samples. */
static void a_lookup_names_its_mend(void **unused)
{
    (void)unused;
    tl_tensor ids = tl_data(t, ((int64_t[]){1, 0}), TL_I64, TL_DIMS(2));
    const int line = __LINE__ + 1;
    explain(loss_of(tl_index_select(t, weight("w"), 0, ids)));
    names("tl_embedding keeps samples apart", "index_select's gather", line);
    explain(loss_of(tl_embedding(t, weight("w"), ids)));
    assert_string_equal(text, "");

    /* data that no gradient goes to: the next product is what is named */
    static const float table[2][4] = {{1, 2}, {3, 4}};
    static const int64_t labels[2][1] = {{7}, {9}};
    tl_tensor x = tl_data(t, table, TL_F32, TL_DIMS(2, 4)), y = TL_NONE,
              at = tl_data(t, labels, TL_I64, TL_DIMS(2, 1));
    tl_batch_axis(t, x, TL_FREE);
    tl_batch_axis(t, at, TL_FREE);
    const int there = __LINE__ + 1;
    explain(loss_of(tl_matmul(t, tl_index_select(t, x, 0, ids), weight("v"))));
    names("by numbers of the samples (tl_embedding keeps samples apart)", "matmul", there);
    y = tl_embedding(t, at, ids);
    assert_true(element_of(t, y, 0) == 9 && element_of(t, y, 1) == 7);
    x = tl_mul(t, tl_embedding(t, x, ids), tl_cast(t, y, TL_F32));
    explain(loss_of(tl_matmul(t, x, weight("u"))));
    assert_string_equal(text, "");
}

static void what_is_strict_can_be_checked(void **unused)
{
    static const float x[2][4][3] = {{{0.5f, 1, 2}}, {{1, -1, 0.25f}}};
    (void)unused;
    tl_tape_reset(t);
    tl_tensor in[2] = {tl_data(t, x, TL_F32, TL_DIMS(2, 4, 3)),
                       tl_param(t, m, "checked", TL_F32, TL_DIMS(3, 2), .kind = TL_INIT_NORMAL,
                                .scale = 1)};
    if (tl_gradcheck(t, strictly, in, 2, NULL) != TL_RIGHT)
        fail_msg("%s", tl_error(t));
}

/* An op whose second output alone mixes samples. */
static tl_status both_shape(tl_call *c)
{
    c->out[0] = c->out[1] = *c->in[0];
    return TL_OK;
}

static tl_status both_forward(tl_call *c)
{
    for (int k = 0; k < 2; k++)
        tl_array_copy(&c->out[k], c->in[0]);
    return TL_OK;
}

static void both_vjp(tl_vjp *g) { g->dx[0] = tl_is_none(g->dy[0]) ? g->dy[1] : g->dy[0]; }

static void both_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    (void)c;
    out[0] = in[0];
    out[1] = in[0] == TL_FREE ? TL_FREE : TL_MIXED;
}

static void whichever_output_mixes_is_named(void **unused)
{
    static const tl_op op = {.name = "both",
                             .n_in = 1,
                             .n_out = 2,
                             .shape = both_shape,
                             .forward = both_forward,
                             .vjp = both_vjp,
                             .batch = both_batch};
    tl_tensor out[2];
    (void)unused;
    tl_tensor h = tl_matmul(t, batch(), weight("w"));
    const int line = __LINE__ + 1;
    tl_apply(TL_AT(t), &op, NULL, &h, 1, out);
    assert_int_equal(explain(loss_of(out[1])), 1);
    names("mixes samples", "both", line);
    tl_mode_push(t, TL_STRICT);
    tl_apply(TL_AT(t), &op, NULL, &h, 1, out);
    assert_int_equal(tl_error_status(t), TL_EUSAGE);
    assert_non_null(strstr(tl_error(t), "both: TL_STRICT: mixes samples"));
    tl_error_clear(t);
}

/* The first six inputs are described; a message has no room for any number of them. */
static void the_first_inputs_are_described(void **unused)
{
    tl_tensor h[8];
    (void)unused;
    for (int i = 0; i < 8; i++)
        h[i] = tl_matmul(t, batch(), weight("w"));
    const int line = __LINE__ + 1;
    explain(loss_of(tl_concat(t, h, 8, 0)));
    names("input 0 [6, 4] per sample along axis 0, input 1 [6, 4] per sample along axis 0, input 2 "
          "[6, 4] per sample along axis 0, input 3 [6, 4] per sample along axis 0, input 4 [6, 4] "
          "per "
          "sample along axis 0, input 5 [6, 4] per sample along axis 0; gradients",
          "concat", line);
}

/* What would carry a sum over a micro-batch past it, or into its gradients, is refused. */
static void strict_refuses_finished_sums_by_other_ways(void **unused)
{
    (void)unused;
    for (int way = 0; way < 4; way++) {
        tl_tape_reset(t);
        const int scope = tl_mode_push(t, TL_STRICT);
        tl_tensor x = batch(), y = tl_matmul(t, x, weight("w")),
                  centre = tl_buffer(t, m, "centre", TL_F32, TL_DIMS(4)),
                  states = tl_zeros(m, TL_F32, TL_DIMS(6, 4));
        tl_mode_pop(t, scope); /* else the mean of samples is refused itself */
        tl_tensor mean = tl_mean(t, tl_detach(t, y), TL_DIMS(0), false),
                  dy = tl_sub(t, tl_detach(t, y), mean);
        tl_mode_push(t, TL_STRICT);
        if (way == 0) { /* samples go where samples are told to lie, and data anywhere */
            assert_int_equal(tl_assign(t, states, y), TL_OK);
            assert_int_equal(tl_assign(t, centre, tl_zeros(t, TL_F32, TL_DIMS(4))), TL_OK);
            tl_mode_push(t, TL_NO_GRAD);
            assert_int_equal(tl_assign(t, centre, mean), TL_OK);
        } else if (way == 1)
            assert_int_equal(tl_backward(t, y, .cotangent = tl_detach(t, y)), TL_OK);
        else if (way == 2)
            assert_int_equal(tl_assign(t, centre, mean), TL_EUSAGE);
        else
            assert_int_equal(tl_backward(t, y, .cotangent = dy), TL_EUSAGE);
        if (way > 1)
            assert_non_null(strstr(tl_error(t), way == 2 ? "goes into a tensor of the model"
                                                         : "the cotangent sums or mixes"));
        tl_error_clear(t);
        tl_mode_pop(t, scope);
    }
}

static void product_of_tiles(const tl_tile *k)
{
    for (int64_t i = 0; i < k->n; i++)
        ((float *)k->out)[i] = ((const float *)k->in[0])[i] * ((const float *)k->in[1])[i];
}

static void what_is_selected_for_every_op_is_named_by_what_calls_it(void **unused)
{
    static const tl_kernel fast = {.op = "mul",
                                   .name = "test-explained",
                                   .dtype = TL_F32,
                                   .mode = TL_FAST,
                                   .tile = product_of_tiles};
    static bool registered; /* as long as the process */
    (void)unused;
    if (!registered)
        assert_int_equal(tl_kernel_register(t, &fast), TL_OK);
    registered = true;
    tl_tensor h = tl_matmul(t, batch(), weight("w"));
    const int scope = tl_kernel_push(t, NULL, TL_ANY_DTYPE, "test-explained");
    h = tl_square(t, h);
    tl_mode_pop(t, scope);
    assert_int_equal(explain(loss_of(h)), 1);
    assert_non_null(
        strstr(text, "kernel 'test-explained' is selected for mul around square (tests/"));
}

/* The op's own kernels inside are not those of the scope around them. */
static void what_an_inner_scope_shields_is_not_named(void **unused)
{
    (void)unused;
    const int scope = tl_mode_push(t, TL_FAST);
    tl_mode_push(t, TL_INVARIANT);
    tl_tensor h = tl_square(t, tl_matmul(t, batch(), weight("w")));
    assert_int_equal(explain(loss_of(h)), 0);
    tl_mode_pop(t, scope);
}

const struct CMUnitTest tl_tests_explain[] = {
    TEST(what_is_selected_for_every_op_is_named_by_what_calls_it),
    TEST(what_an_inner_scope_shields_is_not_named),
    TEST(strict_refuses_finished_sums_by_other_ways),
    TEST(what_is_strict_can_be_checked),
    TEST(strict_names_the_call),
    TEST(the_function_called_is_named),
    TEST(weights_made_of_data_are_named),
    TEST(a_state_of_samples_has_to_be_called_one),
    TEST(weight_decay_in_the_loss_is_named),
    TEST(what_mixed_samples_is_named),
    TEST(what_a_graph_has_mixed_is_said),
    TEST(whichever_output_mixes_is_named),
    TEST(a_total_is_named_by_what_meets_it),
    TEST(a_lookup_names_its_mend),
    TEST(the_first_inputs_are_described),
    TEST(direct_uses_by_folding_ops_are_none),
    TEST(absent_cotangents_have_the_samples),
    TEST(a_llama_has_none),
    TEST(a_gpt2_has_none),
    TEST(a_small_buffer_is_safe),
    TEST(a_stale_or_failed_tape_gives_minus_one),
    TEST(what_it_does_not_name_holds),
    TEST(it_speaks_where_gradients_differ),
    TEST(strict_refuses_what_it_names),
    TEST(an_op_without_a_schema_is_told_so),
    TEST(a_decoder_with_starts_is_not_named),
};
const size_t tl_tests_explain_count = sizeof tl_tests_explain / sizeof tl_tests_explain[0];
