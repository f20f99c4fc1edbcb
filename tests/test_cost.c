/* The decision to keep a value or to compute it again: its rules in their order, its tables, and
 * that bytes along a chain of residual sums grow no faster than the chain. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally.h>

#include "autograd/graph/internal.h"

extern const struct CMUnitTest tl_tests_cost[];
extern const size_t tl_tests_cost_count;

static const tl_cost_limits usual;

static tl_cost_question bytes(int users, int64_t read, int64_t written)
{
    return (tl_cost_question){.counts = true,
                              .sizes_known = true,
                              .users = users,
                              .body = 1,
                              .reads = 2,
                              .read = read,
                              .written = written};
}

static void expect(tl_cost_question q, tl_cost_limits l, bool keep, const char *rule)
{
    tl_cost_answer a = tl_cost_decide(q, l);
    if (a.keep != keep || strcmp(a.rule, rule) != 0)
        fail_msg("u=%d T=%lld O=%lld: %s by '%s', want %s by '%s'", q.users, (long long)q.read,
                 (long long)q.written, a.keep ? "kept" : "inlined", a.rule,
                 keep ? "kept" : "inlined", rule);
}

static void the_table_of_bytes(void **state)
{
    (void)state;
    expect(bytes(2, 200, 100), usual, false, "bytes"); /* T = 2O: two users inline, */
    expect(bytes(3, 200, 100), usual, true, "bytes");  /* three keep: a tie */
    expect(bytes(2, 300, 100), usual, true, "bytes");  /* T = 3O: a tie at two */
    for (int u = 2; u < 1000; u++)
        expect(bytes(u, 100, 100), usual, false, "bytes"); /* T = O: never */
    expect(bytes(2, 2 * 2 * 50, 4 * 50), usual, false,
           "bytes"); /* two bf16 read, f32 written: T = O */
    for (int u = 2; u < 20; u++)
        for (int64_t t = 0; t < 800; t += 25)
            expect(bytes(u, t, 100), usual, t * (u - 1) >= 100 * (1 + u), "bytes");
    tl_cost_answer a = tl_cost_decide(bytes(3, 200, 100), usual);
    assert_true(a.inlined == 600 && a.kept == 600);
}

static void the_rules_in_their_order(void **state)
{
    (void)state;
    tl_cost_question q = bytes(1, 1000, 1);
    q.heavy = true;
    expect(q, usual, false, "one user");
    q = bytes(5, 1000, 1);
    q.counts = false;
    q.heavy = true;
    expect(q, usual, false, "another kind of op");
    q = bytes(2, 100, 100);
    q.heavy = true;
    q.body = 31;
    expect(q, usual, true, "heavy");
    q.heavy = false;
    expect(q, usual, true, "large body");
    q.body = 30;
    expect(q, usual, false, "bytes");
    q = bytes(3, 1000, 1);
    q.inputs_only = true;
    expect(q, usual, false, "inputs only");
    q = bytes(2, 0, 0);
    q.sizes_known = false;
    q.reads = 4;
    expect(q, usual, false, "reads");
    q.reads = 5;
    expect(q, usual, true, "reads");
}

static void limits_can_be_set(void **state)
{
    (void)state;
    tl_cost_question q = bytes(2, 100, 100);
    expect(q, (tl_cost_limits){.never_inline = true}, true, "all are kept");
    q.body = 6;
    expect(q, (tl_cost_limits){.body = 5}, true, "large body");
    q.body = 60;
    expect(q, (tl_cost_limits){.body = 60}, false, "bytes");
    q = bytes(2, 100, 100);
    q.heavy = true;
    expect(q, (tl_cost_limits){.heavy_inline = true}, false, "bytes");
    q.sizes_known = false;
    q.reads = 2;
    expect(q, (tl_cost_limits){.heavy_inline = true, .reads = 1}, true, "reads");
}

/* ---- a chain of residual sums, three users each ---- */

enum { N = 4096 };

/* x' = x + (x*y - x^2 * y): three users of each x. */
static void chain(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    tl_tensor x = in[0];
    (void)n, (void)m;
    for (int i = 0; i < *(int *)ctx; i++)
        x = tl_add(t, x, tl_sub(t, tl_mul(t, x, in[1]), tl_mul(t, tl_square(t, x), in[1])));
    out[0] = x;
}

static double moved(int depth, tl_cost_limits limits)
{
    static float data[N];
    for (int i = 0; i < N; i++)
        data[i] = 0.001f * (float)(i % 100);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor in[2] = {tl_data(t, data, TL_F32, TL_DIMS(N)), tl_data(t, data, TL_F32, TL_DIMS(N))},
              a, b;
    tl_graph *g = tl_trace(t, chain, in, 2, 1, &depth, .limits = limits);
    assert_int_equal(tl_graph_run(g, in, 2, &a, 1), TL_OK);
    chain(t, in, 2, &b, 1, &depth);
    char ha[65], hb[65];
    tl_sha256(t, a, ha);
    tl_sha256(t, b, hb);
    assert_string_equal(ha, hb);
    tl_graph_stats s = tl_graph_stats_of(g);
    tl_free(g, t);
    return (double)(s.read + s.written);
}

static void bytes_along_a_residual_chain_are_linear(void **state)
{
    (void)state;
    static const tl_cost_limits list[] = {{.body = 0},
                                          {.heavy_inline = true},
                                          {.body = 4},
                                          {.body = 1000}};
    for (size_t l = 0; l < sizeof list / sizeof *list; l++) {
        double b4 = moved(4, list[l]), b8 = moved(8, list[l]), b16 = moved(16, list[l]),
               b32 = moved(32, list[l]);
        printf("depth 4, 8, 16, 32: %.0f %.0f %.0f %.0f bytes\n", b4, b8, b16, b32);
        assert_true(b8 <= 2.3 * b4 && b16 <= 2.3 * b8 && b32 <= 2.3 * b16);
        double all = moved(32, (tl_cost_limits){.never_inline = true});
        assert_true(b32 < all); /* and fusing moves less than keeping all */
    }
}

static void decisions_can_be_read(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor in[2] = {tl_fill(t, TL_F32, TL_DIMS(N), 1), tl_fill(t, TL_F32, TL_DIMS(N), 2)};
    int depth = 2;
    tl_graph *g = tl_trace(t, chain, in, 2, 1, &depth);
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    assert_int_equal(tl_graph_explain(g, f), TL_OK);
    fclose(f);
    assert_non_null(strstr(text, "users"));
    assert_non_null(strstr(text, "one user"));
    assert_non_null(strstr(text, "test_cost.c:"));
    assert_non_null(strstr(text, "values kept"));
    free(text);
    tl_free(g, t);
}

/* A norm and an exp, both read by a product in forward and by its gradient in backward. */
static void trained(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    tl_tensor w = tl_param(t, ctx, "w", TL_F32, TL_DIMS(32, 32), .kind = TL_INIT_NORMAL,
                           .scale = 1);
    tl_tensor v = tl_param(t, ctx, "v", TL_F32, TL_DIMS(32, 32), .kind = TL_INIT_NORMAL,
                           .scale = 1);
    (void)n, (void)m;
    tl_tensor a = tl_rms_norm(t, in[0], TL_NONE, 1e-3), b = tl_matmul(t, a, w),
              c = tl_matmul(t, tl_exp(t, tl_tanh(t, b)), v);
    out[0] = tl_sum(t, tl_square(t, tl_softmax(t, c, 1)), TL_ALL, false);
    tl_backward(t, out[0]);
}

/* What tl_graph_explain says of values that backward finds again; the caller frees it. */
static char *kept_for_backward(tl_cost_limits limits)
{
    tl_model *model = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(model);
    static float data[32 * 32];
    for (int i = 0; i < 32 * 32; i++)
        data[i] = 0.01f * (float)(i % 91);
    tl_tensor x = tl_data(t, data, TL_F32, TL_DIMS(32, 32));
    tl_graph *g = tl_trace(t, trained, &x, 1, 1, model, .limits = limits);
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (g == NULL || tl_graph_explain(g, f) != TL_OK)
        fail_msg("%s", tl_error(t));
    fclose(f);
    char *part = strstr(text, "computed again there");
    assert_non_null(part);
    memmove(text, part, strlen(part) + 1);
    tl_free(g, t, model);
    return text;
}

static void what_backward_finds_again_can_be_read_too(void **state)
{
    (void)state;
    tl_cost_limits all = {.again_bytes = 1, .again_steps = 1};
    char *text = kept_for_backward(all), *norm = strstr(text, "\nrms_norm"),
         *power = strstr(text, "\nexp");
    assert_true(norm != NULL && power != NULL);
    assert_true(strstr(norm, "again") != NULL && strstr(norm, "again") < strchr(norm + 1, '\n'));
    assert_non_null(strstr(power, "kept"));
    assert_true(strstr(power, "heavy") != NULL && strstr(power, "heavy") < strchr(power + 1, '\n'));
    free(text);
    all.never_inline = true;
    text = kept_for_backward(all);
    assert_null(strstr(text, "\nrms_norm")); /* nothing is asked: all are kept */
    free(text);
}

static void a_limit_below_0_is_refused(void **state)
{
    (void)state;
    tl_model *model = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(model);
    tl_tensor x = tl_zeros(t, TL_F32, TL_DIMS(32, 32));
    assert_null(tl_trace(t, trained, &x, 1, 1, model, .limits.reads = -1));
    assert_int_equal(tl_error_status(t), TL_EDOMAIN);
    assert_non_null(strstr(tl_error(t), "tl_trace: .limits.body 0, reads -1"));
    tl_free(t, model);
}

const struct CMUnitTest tl_tests_cost[] = {
    cmocka_unit_test(the_table_of_bytes),
    cmocka_unit_test(the_rules_in_their_order),
    cmocka_unit_test(limits_can_be_set),
    cmocka_unit_test(bytes_along_a_residual_chain_are_linear),
    cmocka_unit_test(decisions_can_be_read),
    cmocka_unit_test(what_backward_finds_again_can_be_read_too),
    cmocka_unit_test(a_limit_below_0_is_refused),
};
const size_t tl_tests_cost_count = sizeof tl_tests_cost / sizeof *tl_tests_cost;
