/* Graphs: what a trace refuses, what guards a run, numbers of the host, and graphs as people see
 * them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally.h>

#include "autograd/author.h"
#include "tests/support/expect.h"

extern const struct CMUnitTest tl_tests_graph[];
extern const size_t tl_tests_graph_count;

/* ---- what a trace refuses ---- */

static tl_graph *trace_one(tl_tape *t, tl_program *f, void *ctx)
{
    tl_tensor in = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(4));
    return tl_trace(t, f, &in, 1, 1, ctx);
}

static void reads_item(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    tl_tensor s = tl_sum(t, in[0], TL_ALL, false);
    out[0] = tl_item(t, s) > 0 ? in[0] : tl_neg(t, in[0]);
}

static void reads_parameter(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m,
                            void *ctx)
{
    (void)n, (void)m, (void)ctx;
    tl_tensor w = tl_param(t, tl_tape_model(t), "w", TL_F32, TL_SCALAR, .kind = TL_INIT_ONES);
    out[0] = tl_item(t, w) > 0 ? in[0] : tl_neg(t, in[0]);
}

static void takes_data(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    out[0] = tl_add(t, in[0], tl_data(t, ((float[]){1}), TL_F32, TL_DIMS(1)));
}

static void writes(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    tl_model *model = tl_tape_model(t);
    (void)n, (void)m;
    const int way = *(int *)ctx;
    if (way == 0)
        tl_write(model, tl_model_find(model, "w"), (float[]){2}, 4);
    else if (way == 1)
        tl_save(model, "/nowhere/at/all");
    else
        tl_data(model, ((float[]){1}), TL_F32, TL_DIMS(1));
    out[0] = tl_add(t, in[0], tl_model_find(model, "w"));
}

static void selects(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    out[0] = tl_index_select(t, in[0], 0, in[1]);
}

/* Called or run, where the result has no elements as well. */
static void ids_are_checked(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, selects, 1, NULL);
    for (int bad = 0; bad < 2; bad++) {
        tl_tensor y, in[] = {tl_zeros(t, TL_F32, TL_DIMS(2, 0)),
                             tl_data(t, ((int64_t[]){0, bad + 1}), TL_I64, TL_DIMS(2))};
        assert_int_equal(tl_run(c, in, 2, &y), bad ? TL_EINDEX : TL_OK);
        tl_error_clear(t);
    }
    tl_free(c, t, m);
}

static void sets_nothing(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)t, (void)in, (void)n, (void)out, (void)m, (void)ctx;
}

static void adds_wrongly(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    out[0] = tl_add(t, in[0], tl_fill(t, TL_F32, TL_DIMS(3), 1));
}

static void what_cannot_be_traced_is_named_with_its_place(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    assert_null(trace_one(t, reads_item, NULL));
    expect_failure_both(t, TL_ETRACED, "tl_item", "test_graph.c");
    assert_null(trace_one(t, reads_parameter, NULL));
    expect_failure_both(t, TL_ETRACED, "tl_item", "test_graph.c");
    assert_null(trace_one(t, takes_data, NULL));
    expect_failure_both(t, TL_ETRACED, "tl_constant", "test_graph.c");
    for (int way = 0; way < 3; way++) {
        assert_null(trace_one(t, writes, &way));
        assert_int_equal(tl_error_status(m), TL_ETRACED);
        expect_failure_both(t, TL_ETRACED, "the model at once", "not in each run");
        tl_error_clear(m);
    }
    assert_true(tl_item(t, tl_model_find(m, "w")) == 1);
    assert_int_equal(tl_write(m, tl_model_find(m, "w"), (float[]){2}, 4), TL_OK);
    assert_null(trace_one(t, sets_nothing, NULL));
    expect_failure_both(t, TL_EUSAGE, "output 0", "");
    assert_null(trace_one(t, adds_wrongly, NULL));
    expect_failure_both(t, TL_ESHAPE, "[4]", "[3]");
    tl_free(t, m);
}

/* ---- what guards a run ---- */

static void doubles(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    out[0] = tl_scale(t, in[0], 2);
}

static void inputs_of_another_kind_are_refused(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    tl_graph *g = trace_one(t, doubles, NULL);
    tl_tensor x3 = tl_data(t, ((float[]){1, 2, 3}), TL_F32, TL_DIMS(3)),
              xd = tl_data(t, ((double[]){1, 2, 3, 4}), TL_F64, TL_DIMS(4)), y;
    tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(4)), two[2] = {x, x};
    assert_int_equal(tl_graph_run(g, &x3, 1, &y, 1), TL_ESHAPE);
    assert_true(tl_is_none(y));
    expect_failure_both(t, TL_ESHAPE, "[3]", "[4]");
    tl_graph_run(g, &xd, 1, &y, 1);
    expect_failure_both(t, TL_EDTYPE, "F64", "F32");
    tl_graph_run(g, two, 2, &y, 1);
    expect_failure_both(t, TL_EUSAGE, "inputs: 2 given, 1 in the graph", "1");
    tl_graph_run(g, &TL_NONE, 1, &y, 1);
    expect_failure_both(t, TL_ESTALE, "tl_graph_run", "");
    tl_tape_reset(t);
    tl_graph_run(g, &x, 1, &y, 1); /* dead storage */
    expect_failure_both(t, TL_ESTALE, "reset", "test_graph.c");
    x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(4)); /* the graph is unharmed */
    assert_int_equal(tl_graph_run(g, &x, 1, &y, 1), TL_OK);
    float out[4];
    tl_keep(t, y, out, sizeof out);
    assert_memory_equal(out, ((float[]){2, 4, 6, 8}), sizeof out);
    tl_free(g, t);
}

static void other_shapes_are_other_graphs(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    tl_compiled *c = tl_compile(t, doubles, 1, NULL);
    for (int round = 0; round < 3; round++)
        for (int64_t n = 0; n < 5; n++)
            for (int wide = 0; wide < 2; wide++) {
                float x[4] = {1, 2, 3, 4};
                double xd[4] = {1, 2, 3, 4};
                tl_tensor in = tl_data(t, wide ? (void *)xd : (void *)x, wide ? TL_F64 : TL_F32,
                                       TL_DIMS(n)),
                          y;
                assert_int_equal(tl_run(c, &in, 1, &y), TL_OK);
                assert_int_equal(tl_shape_of(t, y).dim[0], n);
                assert_int_equal(tl_dtype_of(t, y), wide ? TL_F64 : TL_F32);
                if (n > 0)
                    assert_true(tl_item(t, tl_slice(t, y, 0, n - 1, n, 1)) == 2.0 * (double)n);
                tl_tape_reset(t);
            }
    assert_int_equal(tl_compiled_count(c), 10);
    tl_free(c, t);
}

/* A strided input is copied, an output stays as it is when the graph runs again, and a copy can be
 * asked for. */
static void inputs_and_outputs_keep_to_themselves(void **state)
{
    (void)state;
    for (int copies = 0; copies < 2; copies++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_compiled *c = tl_compile(t, doubles, 1, NULL, .copy_inputs = copies);
        tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4, 5, 6}), TL_F32, TL_DIMS(2, 3)),
                  turned = tl_transpose(t, x, 0, 1), a, b;
        assert_int_equal(tl_run(c, &turned, 1, &a), TL_OK);
        tl_tensor other = tl_data(t, ((float[]){10, 20, 30, 40, 50, 60}), TL_F32, TL_DIMS(3, 2));
        assert_int_equal(tl_run(c, &other, 1, &b), TL_OK);
        float out[6];
        tl_keep(t, a, out, sizeof out);
        assert_memory_equal(out, ((float[]){2, 8, 4, 10, 6, 12}), sizeof out);
        tl_keep(t, b, out, sizeof out);
        assert_memory_equal(out, ((float[]){20, 40, 60, 80, 100, 120}), sizeof out);
        tl_free(c, t);
    }
}

static void squares(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    out[0] = tl_mul(t, in[0],
                    tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(4), .kind = TL_INIT_ONES));
}

/* d/dx sum(x^2 w) for w = 1, as a number: nobody can ask for its gradient. */
static void slopes(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    tl_require_grad(t, in[0]);
    tl_tensor w = tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(4), .kind = TL_INIT_ONES);
    tl_tensor g, y = tl_sum(t, tl_mul(t, tl_square(t, in[0]), w), TL_ALL, false);
    tl_gradients(t, y, in, 1, TL_NONE, &g);
    out[0] = tl_detach(t, g);
}

static void a_detached_output_needs_no_backward(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, slopes, 1, NULL);
    tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(4)), y;
    float got[4];
    for (int i = 0; i < 2; i++)
        assert_int_equal(tl_run(c, &x, 1, &y), TL_OK);
    tl_keep(t, y, got, sizeof got);
    assert_memory_equal(got, ((float[]){2, 4, 6, 8}), sizeof got);
    tl_free(c, t, m);
}

static void a_gradient_is_not_lost_in_a_graph_without_backward(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_graph *g = trace_one(t, squares, NULL), *h = trace_one(t, doubles, NULL);
    tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(4)), y;
    tl_graph_run(g, &x, 1, &y, 1);
    expect_failure_both(t, TL_ENOGRAD, "TL_NO_GRAD", "test_graph.c");
    tl_require_grad(t, x);
    tl_graph_run(h, &x, 1, &y, 1);
    expect_failure_both(t, TL_ENOGRAD, "input 0", "TL_NO_GRAD");
    int mode = tl_mode_push(t, TL_NO_GRAD);
    assert_int_equal(tl_graph_run(g, &x, 1, &y, 1), TL_OK);
    assert_int_equal(tl_graph_run(h, &x, 1, &y, 1), TL_OK);
    tl_graph *k = trace_one(t, doubles, NULL);
    tl_mode_pop(t, mode);
    tl_graph_run(k, &x, 1, &y, 1); /* the other way round it is another graph */
    expect_failure_both(t, TL_EUSAGE, "other settings: modes (", "now 0)");
    tl_free(g, h, k, t, m);
}

static void drops(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    out[0] = tl_dropout(t,
                        tl_mul(t, in[0],
                               tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(4),
                                        .kind = TL_INIT_ONES)),
                        0.5, .stream = "d");
    tl_backward(t, tl_sum(t, out[0], TL_ALL, false), .partial = true);
}

/* What a scope or a frozen parameter decides is part of the graph: elsewhere it is another graph.
 */
static void scopes_are_guarded(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, drops, 1, NULL);
    float x[4] = {1, 2, 3, 4}, trained[4], eval[4];
    tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(4)), y;
    assert_int_equal(tl_run(c, &in, 1, &y), TL_OK);
    tl_keep(t, y, trained, sizeof trained);
    int mode = tl_mode_push(t, TL_EVAL);
    assert_int_equal(tl_graph_run(tl_compiled_at(c, 0), &in, 1, &y, 1), TL_EUSAGE);
    expect_failure_both(t, TL_EUSAGE, "other settings: modes (0, now 0x40); trace", "test_graph.c");
    assert_int_equal(tl_run(c, &in, 1, &y), TL_OK);
    tl_keep(t, y, eval, sizeof eval);
    assert_memory_equal(eval, x, sizeof x);
    assert_memory_not_equal(trained, x, sizeof x);
    tl_mode_pop(t, mode);
    tl_param(t, m, "u", TL_F32, TL_SCALAR, .kind = TL_INIT_ONES);
    tl_model_freeze(m, "u", true);
    assert_int_equal(tl_graph_run(tl_compiled_at(c, 0), &in, 1, &y, 1), TL_EUSAGE);
    expect_failure_both(t, TL_EUSAGE, "other settings: frozen parameters; trace", "");
    tl_error_clear(t);
    assert_int_equal(tl_run(c, &in, 1, &y), TL_OK);
    assert_int_equal(tl_compiled_count(c), 3);
    tl_model_reseed(m, 2);
    mode = tl_mode_push(t, TL_FAST);
    assert_int_equal(tl_graph_run(tl_compiled_at(c, 2), &in, 1, &y, 1), TL_EUSAGE);
    expect_failure_both(t, TL_EUSAGE, "modes (0, now 0x1), selected kernels, seed (1, now 2); tr",
                        "");
    tl_mode_pop(t, mode);
    tl_model_reseed(m, 1);
    tl_opt *opt = tl_sgd_new(m, .lr = 1);
    assert_int_equal(tl_opt_group(opt, "u", 1, 0), TL_OK);
    assert_int_equal(tl_graph_run(tl_compiled_at(c, 2), &in, 1, &y, 1), TL_EUSAGE);
    expect_failure_both(t, TL_EUSAGE, "settings: optimizers' groups or names to freeze; tr", "");
    tl_free(opt);
    tl_free(c, t, m);
}

static void looks_up(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    out[0] = tl_sum(t,
                    tl_embedding(t,
                                 tl_param(t, tl_tape_model(t), "e", TL_F32, TL_DIMS(3, 2),
                                          .kind = TL_INIT_ONES),
                                 in[0]),
                    TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(ctx, t);
}

static void steps(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    squares(t, in, n, out, m, NULL);
    tl_backward(t, tl_sum(t, out[0], TL_ALL, false));
    tl_step(ctx, t);
}

/* A group made between two steps holds from the next one on, called or compiled. */
static void a_group_of_parameters_is_guarded(void **state)
{
    (void)state;
    char hash[2][65];
    for (int compiled = 0; compiled < 2; compiled++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.5);
        tl_compiled *c = tl_compile(t, steps, 1, o);
        for (int i = 0; i < 4; i++, tl_tape_reset(t)) {
            if (i == 2)
                tl_opt_group(o, "w", 0, 0);
            tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(4)), y;
            if (compiled)
                assert_int_equal(tl_run(c, &x, 1, &y), TL_OK);
            else
                steps(t, &x, 1, &y, 1, o);
        }
        float w[4];
        tl_keep(t, tl_detach(t, tl_model_find(m, "w")), w, sizeof w);
        assert_memory_equal(w, ((float[]){0, -1, -2, -3}), sizeof w);
        tl_model_sha256(m, hash[compiled]);
        tl_free(c, o, t, m);
    }
    assert_string_equal(hash[0], hash[1]);
}

static void two_players(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    tl_model *model = tl_tape_model(t);
    tl_tensor x = tl_tanh(t, tl_linear(t, model, "a", in[0], 4));
    (void)n, (void)m;
    out[0] = tl_mean(t, tl_square(t, tl_linear(t, model, "b", x, 4)), TL_ALL, false);
    tl_backward(t, out[0], .partial = true);
    tl_step(ctx, t);
}

/* Parameters that are frozen and thawed in turns have a graph for each set of frozen ones. */
static void players_in_turns_have_a_graph_each(void **state)
{
    char hash[2][65];
    (void)state;
    for (int compiled = 0; compiled < 2; compiled++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_adamw_new(m, .lr = 1e-2);
        tl_compiled *c = tl_compile(t, two_players, 1, o);
        for (int i = 0; i < 12; i++, tl_tape_reset(t)) {
            tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(1, 4)), y;
            if (compiled)
                assert_int_equal(tl_run(c, &x, 1, &y), TL_OK);
            else
                two_players(t, &x, 1, &y, 1, o);
            tl_model_freeze(m, "a", i % 2 == 0);
            tl_model_freeze(m, "b", i % 2 == 1);
        }
        assert_string_equal(tl_error(t), "");
        assert_int_equal(tl_compiled_count(c), compiled ? 3 : 0); /* one with both */
        tl_model_sha256(m, hash[compiled]);
        tl_free(c, o, t, m);
    }
    assert_string_equal(hash[0], hash[1]);
}

/* A graph that cannot run again is freed before the next is traced; what it gave out stays. */
static void a_graph_that_is_over_is_freed(void **state)
{
    (void)state;
    for (int removed = 0; removed < 2; removed++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.5);
        tl_compiled *c = tl_compile(t, steps, 1, o);
        size_t first = 0;
        for (int i = 0; i < 20; i++, tl_tape_reset(t)) {
            float before[4], after[4];
            tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(4)), y, z;
            assert_int_equal(tl_run(c, &x, 1, &y), TL_OK);
            tl_keep(t, y, before, sizeof before);
            if (removed)
                tl_model_rollback(m, 0);
            else
                tl_opt_group(o, "w", 0.5, 0);
            assert_int_equal(tl_run(c, &x, 1, &z), TL_OK);
            assert_int_equal(tl_compiled_count(c), 1);
            tl_keep(t, y, after, sizeof after);
            assert_memory_equal(before, after, sizeof after);
            first = i == 0 ? tl_memory_stats(t).tape.used : first;
        }
        assert_string_equal(tl_error(t), "");
        assert_in_range(tl_memory_stats(t).tape.used, 0, first);
        tl_free(c, o, t, m);
    }
}

/* An op that fails in the middle: the error is the op's, with its place; nothing of the step is
 * done. */
static void an_op_that_fails_leaves_the_model_as_it_was(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_adamw_new(m, .lr = 1e-2);
    tl_compiled *c = tl_compile(t, looks_up, 1, o);
    tl_tensor good = tl_data(t, ((int64_t[]){0, 2}), TL_I64, TL_DIMS(2)),
              bad = tl_data(t, ((int64_t[]){0, 3}), TL_I64, TL_DIMS(2)), y;
    assert_int_equal(tl_run(c, &good, 1, &y), TL_OK);
    char before[65], after[65];
    tl_model_sha256(m, before);
    assert_int_equal(tl_run(c, &bad, 1, &y), TL_EINDEX);
    expect_failure_both(t, TL_EINDEX, "id 3", "test_graph.c");
    tl_model_sha256(m, after);
    assert_string_equal(before, after);
    assert_int_equal(tl_opt_steps(o), 1);
    assert_int_equal(tl_run(c, &good, 1, &y), TL_OK);
    assert_int_equal(tl_opt_steps(o), 2);
    tl_free(c, o, t, m);
}

/* ---- host numbers ---- */

typedef struct {
    double number, seen;
    int befores, afters;
} host;

static void count_before(tl_tape *t, void *ctx) { (void)t, ((host *)ctx)->befores++; }
static void count_after(tl_tape *t, void *ctx) { (void)t, ((host *)ctx)->afters++; }

static void with_host(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    host *h = ctx;
    (void)n, (void)m;
    tl_host(t, TL_BEFORE, count_before, h);
    tl_tensor k = tl_cast(t, tl_bound(t, &h->number, TL_F64, TL_SCALAR), TL_F32);
    out[0] = tl_add(t, tl_mul(t, in[0], k), tl_constant(t, ((float[]){1}), TL_F32, TL_DIMS(1)));
    tl_watch(t, tl_sum(t, out[0], TL_ALL, false), &h->seen);
    tl_host(t, TL_AFTER, count_after, h);
}

static void host_numbers_change_from_run_to_run(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    host h = {.number = 1}, e = {.number = 1};
    tl_compiled *c = tl_compile(t, with_host, 1, &h);
    for (int i = 1; i < 5; i++) {
        tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(4)), y, z;
        h.number = e.number = i;
        assert_int_equal(tl_run(c, &x, 1, &y), TL_OK);
        with_host(t, &x, 1, &z, 1, &e);
        assert_true(h.seen == 10.0 * i + 4 && h.seen == e.seen);
        assert_true(h.befores == i && h.afters == i && e.befores == i && e.afters == i);
        tl_tape_reset(t);
    }
    tl_free(c, t);
}

/* ---- as people see it ---- */

/* Two equal values, one that nobody reads, a view, and three that become one loop. */
static void wastes(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    tl_tensor a = tl_square(t, in[0]), b = tl_square(t, in[0]);
    tl_exp(t, in[0]);
    out[0] = tl_reshape(t, tl_neg(t, tl_add(t, a, b)), TL_DIMS(2, 2));
}

static void the_counts_say_what_they_count(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    tl_graph *g = trace_one(t, wastes, NULL);
    tl_graph_stats s = tl_graph_stats_of(g);
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    assert_int_equal(tl_graph_print(g, f), TL_OK);
    fclose(f);
    int lines = 0;
    for (const char *at = text; (at = strstr(at, "\n  %")) != NULL; at++)
        lines++;
    assert_int_equal(s.nodes, 6);
    assert_int_equal(s.needed, 4);
    assert_int_equal(s.needed, lines);
    assert_int_equal(s.views, 1);
    assert_int_equal(s.steps, 1);
    if (strstr(text, "6 nodes recorded, 4 needed, run in 1 step, slab 0 bytes") == NULL)
        fail_msg("%s", text);
    free(text);
    f = open_memstream(&text, &size);
    assert_int_equal(tl_graph_explain(g, f), TL_OK);
    fclose(f);
    if (strstr(text, "a run writes 16 bytes and reads 16 bytes of values; slab 0 bytes") == NULL)
        fail_msg("%s", text);
    free(text);
    tl_free(g, t);
}

static void a_graph_prints_a_line_a_node(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    tl_graph *g = trace_one(t, doubles, NULL);
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    assert_int_equal(tl_graph_print(g, f), TL_OK);
    fclose(f);
    assert_non_null(strstr(text, "in0 : F32 [4]"));
    assert_non_null(strstr(text, "%0         = scale(in0) {c=2} : F32 [4]   # test_graph.c:"));
    assert_non_null(strstr(text, "return %0"));
    free(text);
    f = open_memstream(&text, &size);
    assert_int_equal(tl_graph_dot(g, f), TL_OK);
    fclose(f);
    assert_true(strncmp(text, "digraph", 7) == 0 && strstr(text, "label=\"scale\\n[4]\"") != NULL &&
                strstr(text, "{c=2}") != NULL && strstr(text, "-> out0") != NULL);
    free(text);
    tl_free(g, t);
}

const struct CMUnitTest tl_tests_graph[] = {
    cmocka_unit_test(what_cannot_be_traced_is_named_with_its_place),
    cmocka_unit_test(ids_are_checked),
    cmocka_unit_test(inputs_of_another_kind_are_refused),
    cmocka_unit_test(other_shapes_are_other_graphs),
    cmocka_unit_test(inputs_and_outputs_keep_to_themselves),
    cmocka_unit_test(a_gradient_is_not_lost_in_a_graph_without_backward),
    cmocka_unit_test(a_detached_output_needs_no_backward),
    cmocka_unit_test(a_group_of_parameters_is_guarded),
    cmocka_unit_test(players_in_turns_have_a_graph_each),
    cmocka_unit_test(a_graph_that_is_over_is_freed),
    cmocka_unit_test(scopes_are_guarded),
    cmocka_unit_test(an_op_that_fails_leaves_the_model_as_it_was),
    cmocka_unit_test(host_numbers_change_from_run_to_run),
    cmocka_unit_test(the_counts_say_what_they_count),
    cmocka_unit_test(a_graph_prints_a_line_a_node),
};
const size_t tl_tests_graph_count = sizeof tl_tests_graph / sizeof *tl_tests_graph;
