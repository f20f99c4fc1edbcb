/* Graphs: what a trace refuses, what guards a run, and that a training step replayed is the step called - also when both
 * kinds are mixed, in micro-batches, with half precision, and over many steps. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally.h>

extern const struct CMUnitTest tl_tests_graph[];
extern const size_t tl_tests_graph_count;

static void assert_failed(tl_tape *t, tl_status want, const char *first, const char *second)
{
    if (tl_error_status(t) != want)
        fail_msg("%s wanted, got %s: %s", tl_status_name(want), tl_status_name(tl_error_status(t)), tl_error(t));
    if (strstr(tl_error(t), first) == NULL || strstr(tl_error(t), second) == NULL)
        fail_msg("'%s' and '%s' wanted in: %s", first, second, tl_error(t));
    tl_error_clear(t);
}

/* ---- a small model, trained in both ways ---- */

enum { BATCH = 6, SEQ = 8 };

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *o;
    tl_llama_config c;
    double count;
    bool tied_norm;
} fixture;

static fixture begin(tl_dtype dtype, bool tied)
{
    fixture f = {.m = tl_model_new(.seed = 3), .count = BATCH * SEQ};
    f.c = (tl_llama_config){.vocab = 11, .width = 16, .layers = 2, .heads = 2, .kv_heads = 1, .hidden = 32, .max_positions = SEQ, .tied = tied, .dtype = dtype};
    f.t = tl_tape_new(f.m);
    f.o = tl_adamw_new(f.m, .lr = 1e-2, .weight_decay = 0.1, .clip = 0.5, .schedule = {TL_COSINE, .warmup = 3, .total = 20});
    return f;
}

static void end(fixture *f) { tl_free(f->o, f->t, f->m); }

static void part(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_cross_entropy(t, tl_llama(t, f->m, &f->c, in[0]), in[1], TL_MEAN, .count = tl_scalar(t, TL_F64, f->count));
    tl_backward(t, out[0]);
}

static void last(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    part(t, in, n_in, out, n_out, ctx);
    tl_step(((fixture *)ctx)->o, t);
}

static void rows_of(tl_tape *t, int step, int first, int n, tl_tensor in[2])
{
    int64_t ids[BATCH * SEQ], targets[BATCH * SEQ];
    for (int i = 0; i < n * SEQ; i++) {
        ids[i] = (i + first * SEQ) * 7 % 11 + step % 3 - ((i + first * SEQ) * 7 % 11 + step % 3 > 10 ? 11 : 0);
        targets[i] = (ids[i] * 3 + 1) % 11;
    }
    in[0] = tl_data(t, ids, TL_I64, TL_DIMS(n, SEQ));
    in[1] = tl_data(t, targets, TL_I64, TL_DIMS(n, SEQ));
}

typedef enum { EAGER, COMPILED, MIXED } way;

/* Steps with the batch in parts of the given sizes; the weights' hash. */
static void train(tl_dtype dtype, bool tied, way how, const int *sizes, int steps, char hash[65])
{
    fixture f = begin(dtype, tied);
    tl_compiled *one = tl_compile(f.t, part, 1, &f), *two = tl_compile(f.t, last, 1, &f);
    for (int s = 0; s < steps; s++) {
        for (int first = 0, k = 0; first < BATCH; first += sizes[k++]) {
            bool is_last = first + sizes[k] == BATCH, graph = how == COMPILED || (how == MIXED && (s + k) % 2 == 0);
            tl_tensor in[2], loss;
            rows_of(f.t, s, first, sizes[k], in);
            if (graph)
                tl_run(is_last ? two : one, in, 2, &loss);
            else
                (is_last ? last : part)(f.t, in, 2, &loss, 1, &f);
            if (tl_failed(f.t))
                fail_msg("step %d: %s", s, tl_error(f.t));
            tl_tape_reset(f.t);
        }
    }
    assert_int_equal(tl_opt_steps(f.o), steps);
    assert_int_equal(tl_model_sha256(f.m, hash), TL_OK);
    tl_free(one, two);
    end(&f);
}

static void a_replayed_step_is_the_step(void **state)
{
    (void)state;
    static const int whole[] = {6}, parts[] = {1, 3, 2};
    static const tl_dtype dtypes[] = {TL_F32, TL_BF16, TL_F16};
    for (size_t d = 0; d < 3; d++)
        for (int tied = 0; tied < 2; tied++) {
            char want[65], got[65];
            train(dtypes[d], tied, EAGER, whole, 8, want);
            const struct { way how; const int *sizes; } list[] = {{COMPILED, whole}, {COMPILED, parts}, {MIXED, whole}, {MIXED, parts}};
            for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
                train(dtypes[d], tied, list[i].how, list[i].sizes, 8, got);
                if (strcmp(got, want) != 0)
                    fail_msg("%s, tied %d, way %d, %d parts: %s, want %s", tl_dtype_name(dtypes[d]), tied, list[i].how, list[i].sizes == whole ? 1 : 3, got, want);
            }
        }
}

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

static void reads_parameter(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
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

static void sets_nothing(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx) { (void)t, (void)in, (void)n, (void)out, (void)m, (void)ctx; }

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
    assert_failed(t, TL_ETRACED, "tl_item", "test_graph.c");
    assert_null(trace_one(t, reads_parameter, NULL));
    assert_failed(t, TL_ETRACED, "tl_item", "test_graph.c");
    assert_null(trace_one(t, takes_data, NULL));
    assert_failed(t, TL_ETRACED, "tl_constant", "test_graph.c");
    assert_null(trace_one(t, sets_nothing, NULL));
    assert_failed(t, TL_EUSAGE, "output 0", "");
    assert_null(trace_one(t, adds_wrongly, NULL));
    assert_failed(t, TL_ESHAPE, "[4]", "[3]");
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
    tl_tensor x3 = tl_data(t, ((float[]){1, 2, 3}), TL_F32, TL_DIMS(3)), xd = tl_data(t, ((double[]){1, 2, 3, 4}), TL_F64, TL_DIMS(4)), y;
    tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(4)), two[2] = {x, x};
    assert_int_equal(tl_graph_run(g, &x3, 1, &y, 1), TL_ESHAPE);
    assert_true(tl_is_none(y));
    assert_failed(t, TL_ESHAPE, "[3]", "[4]");
    tl_graph_run(g, &xd, 1, &y, 1);
    assert_failed(t, TL_EDTYPE, "F64", "F32");
    tl_graph_run(g, two, 2, &y, 1);
    assert_failed(t, TL_EUSAGE, "2 inputs", "1");
    tl_graph_run(g, &TL_NONE, 1, &y, 1);
    assert_failed(t, TL_ESTALE, "tl_graph_run", "");
    tl_tape_reset(t);
    tl_graph_run(g, &x, 1, &y, 1); /* dead storage */
    assert_failed(t, TL_ESTALE, "reset", "test_graph.c");
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
                tl_tensor in = tl_data(t, wide ? (void *)xd : (void *)x, wide ? TL_F64 : TL_F32, TL_DIMS(n)), y;
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

/* A strided input is copied, an output stays as it is when the graph runs again, and a copy can be asked for. */
static void inputs_and_outputs_keep_to_themselves(void **state)
{
    (void)state;
    for (int copies = 0; copies < 2; copies++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_compiled *c = tl_compile(t, doubles, 1, NULL, .copy_inputs = copies);
        tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4, 5, 6}), TL_F32, TL_DIMS(2, 3)), turned = tl_transpose(t, x, 0, 1), a, b;
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
    out[0] = tl_mul(t, in[0], tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(4), .kind = TL_INIT_ONES));
}

static void a_gradient_is_not_lost_in_a_graph_without_backward(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_graph *g = trace_one(t, squares, NULL), *h = trace_one(t, doubles, NULL);
    tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(4)), y;
    tl_graph_run(g, &x, 1, &y, 1);
    assert_failed(t, TL_ENOGRAD, "TL_NO_GRAD", "test_graph.c");
    tl_require_grad(t, x);
    tl_graph_run(h, &x, 1, &y, 1);
    assert_failed(t, TL_ENOGRAD, "input 0", "TL_NO_GRAD");
    int mode = tl_mode_push(t, TL_NO_GRAD);
    assert_int_equal(tl_graph_run(g, &x, 1, &y, 1), TL_OK);
    assert_int_equal(tl_graph_run(h, &x, 1, &y, 1), TL_OK);
    tl_mode_pop(t, mode);
    tl_free(g, h, t, m);
}

static void drops(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    out[0] = tl_dropout(t, tl_mul(t, in[0], tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(4), .kind = TL_INIT_ONES)), 0.5, .stream = "d");
    tl_backward(t, tl_sum(t, out[0], TL_ALL, false), .partial = true);
}

/* What a scope or a frozen parameter decides is part of the graph: elsewhere it is another graph. */
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
    assert_failed(t, TL_EUSAGE, "scopes", "test_graph.c");
    assert_int_equal(tl_run(c, &in, 1, &y), TL_OK);
    tl_keep(t, y, eval, sizeof eval);
    assert_memory_equal(eval, x, sizeof x);
    assert_memory_not_equal(trained, x, sizeof x);
    tl_mode_pop(t, mode);
    tl_param(t, m, "u", TL_F32, TL_SCALAR, .kind = TL_INIT_ONES);
    tl_model_freeze(m, "u", true);
    assert_int_equal(tl_graph_run(tl_compiled_at(c, 0), &in, 1, &y, 1), TL_EUSAGE);
    tl_error_clear(t);
    assert_int_equal(tl_run(c, &in, 1, &y), TL_OK);
    assert_int_equal(tl_compiled_count(c), 3);
    tl_free(c, t, m);
}

static void looks_up(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    out[0] = tl_sum(t, tl_embedding(t, tl_param(t, tl_tape_model(t), "e", TL_F32, TL_DIMS(3, 2), .kind = TL_INIT_ONES), in[0]), TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(ctx, t);
}

/* An op that fails in the middle: the error is the op's, with its place; nothing of the step is done. */
static void an_op_that_fails_leaves_the_model_as_it_was(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_adamw_new(m, .lr = 1e-2);
    tl_compiled *c = tl_compile(t, looks_up, 1, o);
    tl_tensor good = tl_data(t, ((int64_t[]){0, 2}), TL_I64, TL_DIMS(2)), bad = tl_data(t, ((int64_t[]){0, 3}), TL_I64, TL_DIMS(2)), y;
    assert_int_equal(tl_run(c, &good, 1, &y), TL_OK);
    char before[65], after[65];
    tl_model_sha256(m, before);
    assert_int_equal(tl_run(c, &bad, 1, &y), TL_EINDEX);
    assert_failed(t, TL_EINDEX, "id 3", "test_graph.c");
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

/* ---- a run asks for nothing ---- */

#if TL_JEMALLOC
static void a_run_asks_nobody_for_memory(void **state)
{
    (void)state;
    static const tl_dtype dtypes[] = {TL_F32, TL_BF16};
    for (int d = 0; d < 2; d++) {
        fixture f = begin(dtypes[d], false);
        tl_compiled *c = tl_compile(f.t, last, 1, &f);
        tl_tensor in[2], loss;
        for (int s = 0; s < 3; s++) {
            rows_of(f.t, s, 0, BATCH, in);
            assert_int_equal(tl_run(c, in, 2, &loss), TL_OK);
            tl_tape_reset(f.t);
        }
        tl_tape_memory before = tl_memory_stats(f.t), after;
        for (int s = 0; s < 10; s++) {
            rows_of(f.t, s, 0, BATCH, in);
            size_t nodes = tl_memory_stats(f.t).nodes;
            assert_int_equal(tl_run(c, in, 2, &loss), TL_OK);
            assert_int_equal(tl_memory_stats(f.t).nodes, nodes); /* nothing is recorded */
            tl_tape_reset(f.t);
        }
        after = tl_memory_stats(f.t);
        assert_int_equal(after.tape.asked, before.tape.asked);
        assert_int_equal(after.gradients.asked, before.gradients.asked);
        assert_int_equal(after.model.asked, before.model.asked);
        tl_free(c);
        end(&f);
    }
}

#endif

/* What the plan is for: the peak of a compiled step is at most 0.7 of the called one's. */
static void a_compiled_step_needs_less_memory(void **state)
{
    (void)state;
    size_t peak[2];
    for (int compiled = 0; compiled < 2; compiled++) {
        fixture f = begin(TL_F32, false);
        f.c.layers = 4;
        f.c.width = 64;
        f.c.hidden = 176;
        tl_compiled *c = tl_compile(f.t, last, 1, &f);
        for (int s = 0; s < 3; s++) {
            tl_tensor in[2], loss;
            rows_of(f.t, s, 0, BATCH, in);
            if (compiled)
                tl_run(c, in, 2, &loss);
            else
                last(f.t, in, 2, &loss, 1, &f);
            assert_false(tl_failed(f.t));
            tl_tape_reset(f.t);
        }
        peak[compiled] = tl_memory_stats(f.t).tape.peak;
        tl_free(c);
        end(&f);
    }
    printf("peak %zu bytes called, %zu compiled: %.2f\n", peak[0], peak[1], (double)peak[1] / (double)peak[0]);
    assert_true(10 * peak[1] <= 7 * peak[0]);
}

/* Tracing and running with memory running out anywhere: an error, and the tape works on. */
static void memory_may_run_out_anywhere(void **state)
{
    (void)state;
    fixture f = begin(TL_F32, false);
    tl_tensor in[2], loss;
    rows_of(f.t, 0, 0, BATCH, in);
    part(f.t, in, 2, &loss, 1, &f); /* makes the parameters */
    tl_grad_clear(f.t);
    tl_tape_reset(f.t);
    int failures = 0;
    for (int64_t n = 1; n < 100000; n += 1 + n / 40) {
        rows_of(f.t, 0, 0, BATCH, in);
        tl_alloc_fail_after(n);
        tl_compiled *c = tl_compile(f.t, part, 1, &f);
        tl_status s = tl_run(c, in, 2, &loss);
        tl_alloc_fail_after(0);
        tl_free(c);
        if (c != NULL && s == TL_OK)
            break;
        if (c != NULL)
            assert_int_equal(s, TL_ENOMEM);
        failures++;
        tl_error_clear(f.t);
        tl_tape_reset(f.t);
    }
    assert_false(tl_failed(f.t));
    assert_true(failures > 10);
    end(&f);
}

/* ---- as people see it ---- */

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
    assert_true(strncmp(text, "digraph", 7) == 0 && strstr(text, "label=\"scale\\n[4]\"") != NULL && strstr(text, "{c=2}") != NULL && strstr(text, "-> out0") != NULL);
    free(text);
    tl_free(g, t);
}

const struct CMUnitTest tl_tests_graph[] = {
    cmocka_unit_test(a_replayed_step_is_the_step),
    cmocka_unit_test(what_cannot_be_traced_is_named_with_its_place),
    cmocka_unit_test(inputs_of_another_kind_are_refused),
    cmocka_unit_test(other_shapes_are_other_graphs),
    cmocka_unit_test(inputs_and_outputs_keep_to_themselves),
    cmocka_unit_test(a_gradient_is_not_lost_in_a_graph_without_backward),
    cmocka_unit_test(scopes_are_guarded),
    cmocka_unit_test(an_op_that_fails_leaves_the_model_as_it_was),
    cmocka_unit_test(host_numbers_change_from_run_to_run),
#if TL_JEMALLOC /* without it no block is kept: sanitizers see each by itself */
    cmocka_unit_test(a_run_asks_nobody_for_memory),
#endif
    cmocka_unit_test(a_compiled_step_needs_less_memory),
    cmocka_unit_test(memory_may_run_out_anywhere),
    cmocka_unit_test(a_graph_prints_a_line_a_node),
};
const size_t tl_tests_graph_count = sizeof tl_tests_graph / sizeof *tl_tests_graph;
