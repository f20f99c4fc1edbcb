/* Graphs at their edges: outputs that show inputs, constants or host memory; inputs that are one
 * tensor, or memory the graph changes; what a program may not do twice; and the order in which
 * things are freed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fenv.h>
#include <stdio.h>
#include <string.h>

#include <tally_extend.h>
#include "tensor/memory.h"

extern const struct CMUnitTest tl_tests_graph_edges[];
extern const size_t tl_tests_graph_edges_count;

static void assert_failed(tl_tape *t, tl_status want, const char *words)
{
    if (tl_error_status(t) != want || strstr(tl_error(t), words) == NULL)
        fail_msg("%s with '%s' wanted, got %s: %s", tl_status_name(want), words,
                 tl_status_name(tl_error_status(t)), tl_error(t));
    tl_error_clear(t);
}

static tl_tensor four(tl_tape *t, float first)
{
    float x[4] = {first, first + 1, first + 2, first + 3};
    return tl_data(t, x, TL_F32, TL_DIMS(4));
}

static void assert_first(tl_tape *t, tl_tensor x, double want)
{
    double got = tl_item(t, tl_slice(t, tl_reshape(t, x, TL_DIMS(-1)), 0, 0, 1, 1));
    if (got != want)
        fail_msg("%g, want %g (%s)", got, want, tl_error(t));
}

/* ---- results that might take the place of what they are made of ---- */

enum { ROWS = 96, ELEMENTS = ROWS * ROWS };

/* Of x^2, which is read for the last time there, in other places than the result is written: the
 * other way round, half of it as wider numbers, and half of it twice. */
static void in_place_or_not(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m,
                            void *ctx)
{
    const int kind = *(const int *)ctx;
    tl_tensor y = tl_square(t, in[0]);
    (void)n, (void)m;
    if (kind == 0)
        y = tl_sin(t, tl_transpose(t, y, 0, 1));
    else if (kind == 1)
        y = tl_cast(t, tl_slice(t, tl_reshape(t, y, TL_DIMS(-1)), 0, 0, ELEMENTS / 2, 1), TL_F64);
    else
        y = tl_mul(t, tl_slice(t, tl_reshape(t, y, TL_DIMS(-1)), 0, 0, ELEMENTS / 2, 1),
                   tl_fill(t, TL_F32, TL_DIMS(2, 1), 3));
    out[0] = tl_cumsum(t, y, 0, false); /* not the result itself: that has memory of its own */
}

static void a_result_takes_no_place_that_is_still_read(void **state)
{
    static float x[ELEMENTS];
    (void)state;
    for (int i = 0; i < ELEMENTS; i++)
        x[i] = (float)(i * 7919 % 1009) / 512 - 1;
    for (int kind = 0; kind < 3; kind++)
        for (int plain = 0; plain < 2; plain++) {
            tl_tape *t = tl_tape_new(NULL);
            tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(ROWS, ROWS)), called, ran;
            char want[65], got[65];
            int k = kind;
            in_place_or_not(t, &in, 1, &called, 1, &k);
            tl_sha256(t, called, want);
            tl_compiled *c = tl_compile(t, in_place_or_not, 1, &k, .no_fuse = plain);
            assert_int_equal(tl_run(c, &in, 1, &ran), TL_OK);
            tl_sha256(t, ran, got);
            if (tl_failed(t) || strcmp(got, want) != 0)
                fail_msg("%d, %d: other bits %s", kind, plain, tl_error(t));
            tl_free(c, t);
        }
}

/* ---- what a graph changes of the model, and reads after that ---- */

static void changes_and_reads(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m,
                              void *ctx)
{
    tl_tensor kept = tl_buffer(t, ctx, "kept", TL_F32, TL_DIMS(4));
    (void)n, (void)m;
    tl_assign(t, kept, in[0]);
    out[0] = tl_scale(t, kept, 2);
}

/* It is changed all the same: whoever has read it before is told, and it is no input. */
static void what_is_read_again_is_changed_all_the_same(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(4), TL_INIT_ONES, 0),
              kept = tl_buffer(t, m, "kept", TL_F32, TL_DIMS(4)),
              x = tl_buffer(t, m, "x", TL_F32, TL_DIMS(4)), y;
    tl_assign(t, x, four(t, 1));
    tl_graph *g = tl_trace(t, changes_and_reads, &x, 1, 1, m);
    tl_tensor before = tl_sum(t, tl_mul(t, w, kept), TL_ALL, false);
    assert_int_equal(tl_graph_run(g, &x, 1, &y, 1), TL_OK);
    assert_first(t, y, 2);
    tl_backward(t, before, .partial = true);
    assert_failed(t, TL_EINPLACE, "tl_run");
    tl_graph_run(g, &kept, 1, &y, 1);
    assert_failed(t, TL_EUSAGE, "input 0 lies in a tensor of the model that the graph changes");
    tl_free(g, t, m);
}

/* What the graph reads and does not change may be an input as well: a tensor of the model, beside
 * another that it changes, or a gradient. */
static void reads_alone(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m;
    out[0] = tl_add(t, in[0], tl_buffer(t, ctx, "x", TL_F32, TL_DIMS(4)));
}

static void what_is_not_changed_may_be_an_input(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(4), TL_INIT_ONES, 0),
              x = tl_buffer(t, m, "x", TL_F32, TL_DIMS(4)), y;
    tl_assign(t, x, four(t, 3));
    tl_graph *g = tl_trace(t, reads_alone, &x, 1, 1, m);
    assert_int_equal(tl_graph_run(g, &x, 1, &y, 1), TL_OK);
    assert_first(t, y, 6);
    tl_graph_run(g, &x, 1, NULL, 1); /* but there must be room for what comes out */
    assert_failed(t, TL_EDOMAIN, "out is NULL");
    tl_graph_run(g, NULL, 1, &y, 1);
    assert_failed(t, TL_EDOMAIN, "in is NULL");
    tl_backward(t, tl_sum(t, tl_mul(t, w, x), TL_ALL, false));
    tl_tensor dw = tl_detach(t, tl_grad(t, w));
    tl_free(g);
    g = tl_trace(t, reads_alone, &dw, 1, 1, m);
    if (tl_graph_run(g, &dw, 1, &y, 1) != TL_OK)
        fail_msg("%s", tl_error(t));
    assert_first(t, y, 6);
    tl_free(g, t, m);
}

/* ---- outputs that are no results ---- */

static const float host_memory[4] = {1, 2, 3, 4};

static void shows(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    out[0] = tl_reshape(t, in[0], TL_DIMS(2, 2));
    out[1] = tl_constant(t, host_memory, TL_F32, TL_DIMS(4));
    out[2] = tl_bound(t, host_memory, TL_F32, TL_DIMS(4));
}

static void outputs_stay_what_they_were(void **state)
{
    (void)state;
    for (int copies = 0; copies < 2; copies++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor x = four(t, 1), y = four(t, 5), a[3], b[3];
        tl_graph *g = tl_trace(t, shows, &x, 1, 3, NULL, .copy_inputs = copies);
        assert_int_equal(tl_graph_run(g, &x, 1, a, 3), TL_OK);
        assert_int_equal(tl_graph_run(g, &y, 1, b, 3), TL_OK);
        assert_first(t, a[0], 1);
        assert_first(t, b[0], 5);
        assert_first(t, a[1], 1);
        assert_first(t, a[2], 1);
        tl_free(g, t);
    }
}

/* Host memory and constants that the program changes in place: each run begins with what they hold,
 * and leaves it. */
static void changes(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    static const float cos[2] = {0.5f, 0.5f}, sin[2] = {2, 2};
    const tl_shape row = TL_DIMS(1, 1, 1, 2);
    (void)n, (void)m;
    tl_tensor r1 = tl_constant(t, cos, TL_F32, row), r2 = tl_constant(t, sin, TL_F32, row);
    out[0] = tl_rotary_(t, tl_bound(t, (float *)ctx, TL_F32, row), r1, r2, TL_ROTARY_HALF);
    out[1] = tl_rotary_(t, tl_constant(t, (float *)ctx, TL_F32, row), r1, r2, TL_ROTARY_HALF);
    out[2] = tl_add(t, in[0], r1);
}

static void what_a_program_changes_begins_anew_at_each_run(void **state)
{
    (void)state;
    float host[2] = {1, 2};
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, ((float[2]){3, 4}), TL_F32, TL_DIMS(1, 1, 1, 2)), called[3], out[3];
    changes(t, &x, 1, called, 3, host);
    tl_graph *g = tl_trace(t, changes, &x, 1, 3, host, .copy_inputs = false);
    for (int run = 0; run < 3; run++) {
        assert_int_equal(tl_graph_run(g, &x, 1, out, 3), TL_OK);
        for (int i = 0; i < 3; i++)
            assert_first(t, out[i],
                         tl_item(t,
                                 tl_slice(t, tl_reshape(t, called[i], TL_DIMS(-1)), 0, 0, 1, 1)));
        assert_true(host[0] == 1 && host[1] == 2);
    }
    tl_free(g, t);
}

/* ---- inputs that are not alone ---- */

static void product_gradient(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m,
                             void *ctx)
{
    (void)n, (void)m, (void)ctx;
    tl_require_grad(t, in[0]);
    tl_backward(t, tl_sum(t, tl_mul(t, in[0], in[1]), TL_ALL, false), .partial = true);
    out[0] = tl_grad(t, in[0]);
}

static void one_tensor_may_be_two_inputs(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    tl_compiled *c = tl_compile(t, product_gradient, 1, NULL);
    tl_tensor x = four(t, 1), y = four(t, 5), twice[2] = {x, x}, two[2] = {x, y}, out;
    assert_int_equal(tl_run(c, twice, 2, &out), TL_OK);
    assert_first(t, out, 2); /* 2x */
    assert_int_equal(tl_run(c, two, 2, &out), TL_OK);
    assert_first(t, out, 5); /* y */
    assert_int_equal(tl_run(c, two, 2, &out), TL_OK);
    assert_first(t, out, 5);                /* of this run alone, */
    assert_true(tl_is_none(tl_grad(t, x))); /* which leaves nothing on the tensor */
    assert_int_equal(tl_compiled_count(c), 2);
    assert_int_equal(tl_graph_run(tl_compiled_at(c, 0), two, 2, &out, 1), TL_EUSAGE);
    assert_failed(t, TL_EUSAGE, "the same tensor");
    tl_free(c, t);
}

static tl_tensor parameter(tl_tape *t)
{
    return tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(4), .kind = TL_INIT_ONES);
}

static void steps(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m;
    out[0] = tl_sum(t, tl_mul(t, parameter(t), in[0]), TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(ctx, t);
}

static void inputs_that_the_graph_changes_are_refused(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.5);
    tl_compiled *c = tl_compile(t, steps, 1, o);
    tl_tensor w = tl_detach(t, parameter(t)), x = four(t, 1), out;
    assert_int_equal(tl_run(c, &x, 1, &out), TL_OK);
    assert_int_equal(tl_run(c, &w, 1, &out), TL_EUSAGE);
    assert_failed(t, TL_EUSAGE, "input 0 lies in a tensor of the model");
    tl_require_grad(t, x);
    assert_int_equal(tl_run(c, &x, 1, &out), TL_ENOGRAD);
    assert_failed(t, TL_ENOGRAD, "input 0 needs a gradient");
    tl_free(c, o, t, m);
}

static void turns(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    tl_tensor half = tl_constant(t, ((float[]){.5, .5}), TL_F32, TL_DIMS(2));
    (void)n, (void)m, (void)ctx;
    out[0] = tl_rotary_(t, in[0], half, half, TL_ROTARY_HALF);
}

/* Called, the program would change the buffer itself. */
static void a_tensor_of_the_model_is_no_input_to_change(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, turns, 1, NULL);
    tl_tensor b = tl_buffer(t, m, "b", TL_F32, TL_DIMS(1, 4)), two = tl_slice(t, b, 1, 1, 3, 1),
              x = tl_data(t, ((float[]){4, 2}), TL_F32, TL_DIMS(1, 2)), out;
    assert_int_equal(tl_run(c, &x, 1, &out), TL_OK);
    assert_first(t, out, 1);
    assert_int_equal(tl_run(c, &two, 1, &out), TL_EUSAGE);
    assert_failed(t, TL_EUSAGE, "input 0 lies in a tensor of the model");
    tl_free(c, t, m);
}

static void adds_up(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    tl_tensor w = tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(2, 2), .kind = TL_INIT_ONES);
    (void)n, (void)m, (void)ctx;
    out[0] = tl_scale(t, in[0], 3);
    tl_backward(t, tl_sum(t, tl_matmul(t, in[0], w), TL_ALL, false));
}

/* What tl_grad has lent would grow while the program reads it. */
static void a_gradient_is_no_input_of_what_adds_to_it(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, adds_up, 1, NULL);
    tl_tensor x = tl_reshape(t, four(t, 1), TL_DIMS(2, 2)), out;
    assert_int_equal(tl_run(c, &x, 1, &out), TL_OK);
    tl_tensor lent = tl_detach(t, tl_grad(t, tl_model_find(m, "w"))), copy = tl_scale(t, lent, 1);
    assert_int_equal(tl_run(c, &lent, 1, &out), TL_EUSAGE);
    assert_failed(t, TL_EUSAGE, "input 0 lies in a gradient");
    assert_int_equal(tl_run(c, &copy, 1, &out), TL_OK);
    assert_first(t, out, 12);
    assert_first(t, tl_grad(t, tl_model_find(m, "w")),
                 10); /* 4 + 6: the error has cost what was there */
    tl_free(c, t, m);
}

/* ---- what a program may not do ---- */

static void watches_what_changes(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m,
                                 void *ctx)
{
    static double seen;
    tl_watch(t, tl_slice(t, parameter(t), 0, 0, 1, 1), &seen);
    steps(t, in, n, out, m, ctx);
}

static void traces(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)m, (void)ctx;
    tl_free(tl_trace(t, shows, in, n, 3, NULL));
    out[0] = in[0];
}

static void watches_many(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    static double seen;
    (void)n, (void)m, (void)ctx;
    tl_watch(t, in[0], &seen);
    out[0] = in[0];
}

static void what_a_graph_cannot_hold_is_refused(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.5);
    tl_tensor x = four(t, 1);
    const struct {
        tl_program *f;
        tl_status status;
        const char *words;
    } list[] = {{watches_what_changes, TL_EINPLACE, "tl_watch"},
                {watches_many, TL_ESHAPE, "tl_watch: a tensor of 4 elements; one is needed"},
                {traces, TL_ETRACED, "a trace itself"}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        assert_null(tl_trace(t, list[i].f, &x, 1, 1, o));
        if (strstr(tl_error(t), "test_graph_edges.c") == NULL)
            fail_msg("no place: %s", tl_error(t));
        assert_failed(t, list[i].status, list[i].words);
    }
    tl_free(o, t, m);
}

static void clears_first(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    tl_grad_clear(t);
    out[0] = tl_sum(t, tl_mul(t, parameter(t), in[0]), TL_ALL, false);
    tl_backward(t, out[0]);
}

static void gradients_may_be_dropped_first(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, clears_first, 1, NULL);
    for (int i = 1; i < 4; i++) {
        tl_tensor x = four(t, (float)i), out;
        assert_int_equal(tl_run(c, &x, 1, &out), TL_OK);
        assert_first(t, tl_grad(t, parameter(t)), i); /* this run's alone */
        tl_tape_reset(t);
    }
    tl_free(c, t, m);
}

static void reads_its_own(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    tl_backward(t, tl_sum(t, tl_mul(t, parameter(t), in[0]), TL_ALL, false), .ragged = true);
    out[0] = tl_scale(t, tl_grad(t, parameter(t)), 1);
}

/* A program that has a gradient of its own when it asks finds what waits as well, and needs nothing
 * to wait. */
static void gradients_that_wait_are_optional(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_backward(t, tl_sum(t, parameter(t), TL_ALL, false), .ragged = true);
    tl_tape_reset(t);
    tl_tensor x = four(t, 1), out;
    tl_graph *g = tl_trace(t, reads_its_own, &x, 1, 1, NULL);
    for (int i = 0; i < 2; i++) {
        x = four(t, 2);
        if (tl_graph_run(g, &x, 1, &out, 1) != TL_OK)
            fail_msg("%s", tl_error(t));
        assert_first(t, out, 3 - i);
        tl_grad_clear(t);
        tl_tape_reset(t);
    }
    tl_free(g, t, m);
}

static void weighs_by_constant(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                               void *ctx)
{
    (void)n_in, (void)n_out, (void)ctx;
    tl_tensor w = tl_mul(t, parameter(t), in[1]);
    out[0] = tl_sum(t, tl_mul(t, in[0], w), TL_ALL, false);
    tl_backward(t, out[0]);
}

/* Weights that are made of a constant are those of that constant: another one of the same contents
 * passes, one of others does not. */
static void a_constant_in_a_weight_is_no_other(void **state)
{
    static const float half[4] = {0.5f, 0.5f, 1, 2}, same[4] = {0.5f, 0.5f, 1, 2},
                       other[4] = {0.5f, 0.5f, 1, 3};
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor out, in[2] = {four(t, 1), tl_constant(t, half, TL_F32, TL_DIMS(4))};
    tl_graph *g = tl_trace(t, weighs_by_constant, in, 2, 1, NULL);
    assert_non_null(g);
    for (int k = 0; k < 3; k++) {
        tl_tape_reset(t);
        in[0] = four(t, 1);
        in[1] = tl_constant(t, k == 0 ? half : k == 1 ? same : other, TL_F32, TL_DIMS(4));
        const tl_status s = tl_graph_run(g, in, 2, &out, 1);
        if (k == 2)
            assert_failed(t, TL_EUSAGE, "or is another constant, of which weights are made");
        else if (s != TL_OK)
            fail_msg("%d: %s", k, tl_error(t));
    }
    tl_grad_clear(t);
    tl_free(g, t, m);
}

/* What a graph is traced with must be there. */
static void an_input_that_is_gone_traces_no_graph(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor in[2] = {four(t, 1), four(t, 2)};
    tl_tape_reset(t);
    in[0] = four(t, 1);
    assert_null(tl_trace(t, reads_its_own, in, 2, 1, NULL));
    assert_failed(t, TL_ESTALE, "before the tape was reset");
    in[1] = TL_NONE;
    assert_null(tl_trace(t, reads_its_own, in, 2, 1, NULL));
    assert_failed(t, TL_ESTALE, "given no tensor");
    tl_free(t, m);
}

/* ---- environment, and the end ---- */

static void train(tl_model *m, bool compiled, double *norm)
{
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_adamw_new(m, .lr = 0.1, .clip = 1,
                             .schedule = {TL_COSINE, .warmup = 5, .total = 100});
    tl_compiled *c = tl_compile(t, steps, 1, o);
    for (int i = 0; i < 50; i++) {
        tl_tensor x = four(t, (float)(i % 5)), out;
        if (compiled)
            tl_run(c, &x, 1, &out);
        else
            steps(t, &x, 1, &out, 1, o);
        tl_tape_reset(t);
    }
    assert_false(tl_failed(t));
    *norm = tl_opt_lr(o);
    tl_free(c, o, t);
}

static void host_work_has_the_environment_of_the_contract(void **state)
{
    (void)state;
    char hash[3][65];
    double lr[3];
    for (int i = 0; i < 3; i++) {
        tl_model *m = tl_model_new(.seed = 1);
        fesetround(i == 2 ? FE_UPWARD : FE_TONEAREST);
        train(m, i > 0, &lr[i]);
        fesetround(FE_TONEAREST);
        assert_int_equal(tl_model_sha256(m, hash[i]), TL_OK);
        tl_free(m);
    }
    assert_string_equal(hash[0], hash[1]);
    assert_string_equal(hash[0], hash[2]);
}

/* ---- what a hook leaves; what fails when the updates have run ---- */

static void rounds_upwards(tl_tape *t, void *ctx) { (void)t, (void)ctx, fesetround(FE_UPWARD); }

static void steps_between_hooks(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m,
                                void *ctx)
{
    const bool *rounded = ((void **)ctx)[1];
    tl_tensor w = tl_param(t, tl_tape_model(t), "w", TL_F64, TL_DIMS(4), TL_INIT_NORMAL, 1);
    (void)n, (void)m;
    if (*rounded)
        tl_host(t, TL_BEFORE, rounds_upwards, NULL);
    out[0] = tl_sum(t, tl_square(t, tl_mul(t, w, tl_cast(t, in[0], TL_F64))), TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(((void **)ctx)[0], t);
    if (*rounded)
        tl_host(t, TL_AFTER, rounds_upwards, NULL);
}

/* Rates and powers of the optimizer are computed by a hook of its own, after the user's. */
static void rounding_that_a_hook_leaves_changes_no_bit(void **state)
{
    (void)state;
    char hash[2][65];
    for (int k = 0; k < 2; k++) {
        bool rounded = k;
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_adamw_new(m, .lr = 0.1, .beta1 = 0.7, .schedule = {TL_COSINE, .total = 100});
        tl_compiled *c = tl_compile(t, steps_between_hooks, 1, ((void *[]){o, &rounded}));
        for (int i = 0; i < 20; i++) {
            tl_tensor x = four(t, (float)i), out;
            assert_int_equal(tl_run(c, &x, 1, &out), TL_OK);
            fesetround(FE_TONEAREST);
            tl_tape_reset(t);
        }
        assert_int_equal(tl_model_sha256(m, hash[k]), TL_OK);
        tl_free(c, o, t, m);
    }
    assert_string_equal(hash[0], hash[1]);
}

static tl_tensor table(tl_tape *t)
{
    return tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(4, 3), TL_INIT_NORMAL, 1);
}

static void steps_and_goes_on(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m,
                              void *ctx)
{
    tl_tensor w = table(t), column = tl_reshape(t, in[0], TL_DIMS(4, 1));
    (void)n, (void)m;
    tl_backward(t, tl_sum(t, tl_matmul(t, tl_reshape(t, in[0], TL_DIMS(1, 4)), w), TL_ALL, false));
    tl_step(ctx, t);
    out[0] = tl_sum(t, tl_square(t, tl_mul(t, table(t), column)), TL_ALL, false); /* in f64 */
    tl_backward(t, out[0]);
}

/* Memory that is missing behind an update, for the gradient that a run leaves, stops no counting of
 * steps: weights and counts go together. */
static void updates_are_counted_though_the_run_fails(void **state)
{
    (void)state;
    int failed = 0;
    for (int64_t k = 1, ok = 0; !ok; k++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_adamw_new(m, .lr = 0.1);
        tl_compiled *c = tl_compile(t, steps_and_goes_on, 1, o);
        tl_tensor x = four(t, 1), out;
        char before[65], after[65];
        table(t);
        tl_model_sha256(m, before);
        tl_alloc_fail_after(k);
        ok = tl_run(c, &x, 1, &out) == TL_OK;
        tl_alloc_fail_after(0);
        tl_error_clear(t);
        tl_model_sha256(m, after);
        assert_int_equal(tl_opt_steps(o), strcmp(before, after) != 0);
        failed += !ok;
        tl_error_clear(m);
        tl_free(c, o, t, m);
    }
    assert_true(failed > 10);
}

/* ---- views ---- */

enum { PARAMETER, MADE_ONCE, MADE_TWICE };

static tl_tensor has_halves(tl_tape *t, int made)
{
    tl_model *m = tl_tape_model(t);
    if (made == PARAMETER)
        return tl_param(t, m, "w", TL_F32, TL_DIMS(8, 3), TL_INIT_NORMAL, 1);
    return tl_matmul(t, tl_param(t, m, "v", TL_F32, TL_DIMS(8, 2), TL_INIT_NORMAL, 1),
                     tl_param(t, m, "w", TL_F32, TL_DIMS(2, 3), TL_INIT_NORMAL, 1));
}

static void uses_halves(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    const int made = *(const int *)ctx;
    tl_tensor w = has_halves(t, made), v = made == MADE_TWICE ? has_halves(t, made) : w;
    (void)n, (void)m;
    tl_tensor y = tl_matmul(t, in[0], tl_slice(t, w, 0, 0, 4, 1)),
              z = tl_matmul(t, in[1], tl_slice(t, v, 0, 4, 8, 1));
    out[0] = tl_add(t, tl_sum(t, tl_square(t, y), TL_ALL, false),
                    tl_sum(t, tl_square(t, z), TL_ALL, false));
    tl_backward(t, out[0]);
}

/* Two halves, which do not overlap, of a parameter or of what is made of two, by other numbers of
 * rows: a sum each, wherever they lie. */
static void halves_have_sums_of_their_own(void **state)
{
    float x[5 * 6 * 4], z[3 * 4];
    (void)state;
    for (int i = 0; i < 120; i++)
        x[i] = (float)(i * 37 % 101 - 50) / 77;
    for (int i = 0; i < 12; i++)
        z[i] = (float)(i * 29 % 31 - 15) / 13;
    char hash[6][65];
    for (int i = 0; i < 6; i++) {
        int made = i / 2;
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_compiled *c = tl_compile(t, uses_halves, 1, &made);
        tl_tensor in[2] = {tl_data(t, x, TL_F32, TL_DIMS(5, 6, 4)),
                           tl_data(t, z, TL_F32, TL_DIMS(3, 4))},
                  out;
        tl_batch_axis(t, in[0], 1);
        tl_batch_axis(t, in[1], TL_FREE);
        if (i % 2)
            tl_run(c, in, 2, &out);
        else
            uses_halves(t, in, 2, &out, 1, &made);
        tl_sha256(t, tl_grad(t, tl_model_find(m, "w")), hash[i]);
        assert_false(tl_failed(t));
        tl_free(c, t, m);
    }
    for (int i = 0; i < 6; i++)
        assert_string_equal(hash[i], hash[i < 2 ? 0 : 2]);
}

/* Turns a total as rotary does, written out: TL_STRICT takes what is written, not rotary. */
static void turns_a_total(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    static const float cos[4] = {1, 2, 3, 4}, sin[4] = {.5f, .25f, .125f, 1};
    const int outer = tl_mode_push(t, TL_STRICT);
    tl_tensor w = tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(4, 4), TL_INIT_NORMAL, 1);
    tl_tensor y = tl_matmul(t, in[0], w), x = tl_sum(t, y, TL_DIMS(0), true);
    tl_tensor half[2] = {tl_neg(t, tl_slice(t, x, -1, 2, 4, 1)), tl_slice(t, x, -1, 0, 2, 1)};
    (void)n, (void)m, (void)ctx;
    out[0] = tl_detach(t, tl_add(t, tl_mul(t, x, tl_constant(t, cos, TL_F32, TL_DIMS(4))),
                                 tl_mul(t, tl_concat(t, half, 2, -1),
                                        tl_constant(t, sin, TL_F32, TL_DIMS(4)))));
    tl_backward(t, tl_sum(t, tl_tanh(t, y), TL_ALL, false));
    tl_mode_pop(t, outer);
}

/* What comes of a leaf that was detached from a parameter, and marked: its gradient goes out. */
static void marks_what_is_detached(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m,
                                   void *ctx)
{
    tl_tensor w = tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(4, 4), TL_INIT_NORMAL, 1);
    tl_tensor y = tl_detach(t, *(const int *)ctx ? tl_scale(t, w, 2) : w);
    (void)n, (void)m;
    tl_require_grad(t, y);
    tl_backward(t, tl_add(t, tl_sum(t, tl_matmul(t, in[0], w), TL_ALL, false),
                          tl_sum(t, tl_square(t, y), TL_ALL, false)));
    out[0] = tl_grad(t, y);
}

/* A replacement that is refused costs no gradients, and marked leaves are leaves again. */
static void graphs_have_the_gradients_of_calls(void **state)
{
    static int of_scaled[3] = {0, 0, 1};
    static const float rows[2][8] = {{1, -2, 3, 0, 2, 1, -1, 0.5f}, {0, 1, 1, -3, 4, 2, -2, 1}};
    (void)state;
    for (int k = 0; k < 3; k++) {
        char hash[2][2][65];
        tl_program *f = k == 0 ? turns_a_total : marks_what_is_detached;
        for (int compiled = 0; compiled < 2; compiled++) {
            tl_model *m = tl_model_new(.seed = 1);
            tl_tape *t = tl_tape_new(m);
            tl_compiled *c = tl_compile(t, f, 1, &of_scaled[k]);
            for (int i = 0; i < 2; i++) { /* the first micro-batch is called */
                tl_tensor x = tl_data(t, rows[i], TL_F32, TL_DIMS(2, 4)), out;
                if (compiled && i == 1)
                    tl_run(c, &x, 1, &out);
                else
                    f(t, &x, 1, &out, 1, &of_scaled[k]);
                tl_sha256(t, out, hash[compiled][0]);
                if (i == 0)
                    tl_tape_reset(t);
            }
            tl_sha256(t, tl_grad(t, tl_model_find(m, "w")), hash[compiled][1]);
            if (tl_failed(t))
                fail_msg("%d: %s", k, tl_error(t));
            tl_free(c, t, m);
        }
        assert_string_equal(hash[0][0], hash[1][0]);
        assert_string_equal(hash[0][1], hash[1][1]);
    }
}

static void turns_often(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    tl_tensor x = in[0];
    (void)n, (void)m, (void)ctx;
    for (int i = 0; i < 50000; i++)
        x = tl_transpose(t, x, 0, 1);
    out[0] = tl_exp(t, x);
}

static void a_long_chain_of_views_is_no_deep_recursion(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    for (int watched = 0; watched < 2; watched++) {
        tl_tensor x = tl_reshape(t, four(t, 0), TL_DIMS(2, 2)), y;
        const int outer = tl_mode_push(t, watched ? TL_ANOMALY : 0);
        tl_compiled *c = tl_compile(t, turns_often, 1, NULL, .no_simplify = !watched);
        assert_int_equal(tl_run(c, &x, 1, &y), TL_OK);
        tl_mode_pop(t, outer);
        assert_first(t, y, 1);
        tl_free(c);
    }
    tl_free(t);
}

static void fails_afterwards(tl_tape *t, void *ctx)
{
    if (*(bool *)ctx)
        tl_tape_fail(TL_AT(t), TL_EUSAGE, "the hook fails");
}

static void has_a_hook(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m;
    tl_host(t, TL_AFTER, fails_afterwards, ctx);
    out[0] = tl_neg(t, in[0]);
}

static void a_failed_hook_leaves_no_output(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    bool fails = false;
    tl_compiled *c = tl_compile(t, has_a_hook, 1, &fails);
    tl_tensor x = four(t, 1), out;
    assert_int_equal(tl_run(c, &x, 1, &out), TL_OK);
    assert_first(t, out, -1);
    fails = true;
    assert_int_equal(tl_run(c, &x, 1, &out), TL_EUSAGE);
    assert_true(tl_is_none(out));
    assert_failed(t, TL_EUSAGE, "the hook fails");
    fails = false;
    assert_int_equal(tl_run(c, &x, 1, &out), TL_OK);
    assert_first(t, out, -1);
    tl_free(c, t);
}

static void a_tape_may_go_before_its_graphs(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = four(t, 1), out[3];
    tl_graph *g = tl_trace(t, shows, &x, 1, 3, NULL);
    assert_int_equal(tl_graph_run(g, &x, 1, out, 3), TL_OK);
    tl_free(t);
    assert_int_equal(tl_graph_run(g, &x, 1, out, 3), TL_ESTALE);
    assert_int_equal(tl_graph_print(g, stdout), TL_ESTALE);
    assert_int_equal(tl_graph_explain(NULL, stdout), TL_ENOMEM);
    tl_free(g);
}

/* A program outlives its tape, and cannot run any more. */
static void a_program_whose_tape_is_freed_is_stale(void **state)
{
    (void)state;
    for (int runs = 0; runs < 2; runs++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_compiled *c = tl_compile(t, shows, 3, NULL), *other = tl_compile(t, shows, 3, NULL);
        tl_tensor x = four(t, 1), y[3];
        if (runs)
            assert_int_equal(tl_run(c, &x, 1, y), TL_OK);
        tl_free(other, t);
        assert_int_equal(tl_run(c, &x, 1, y), TL_ESTALE);
        assert_true(tl_is_none(y[0]) && tl_is_none(y[2]));
        tl_free(c);
    }
}

typedef struct {
    tl_tape *outer;
    int use;
} stray;

/* Uses the tape that it is traced for instead of the one that it is given. */
static void strays(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    const stray *s = ctx;
    tl_tensor x = four(s->outer, 1), dx;
    shows(t, in, n, out, m, NULL);
    tl_require_grad(s->outer, x);
    switch (s->use) {
    case 0: tl_exp(s->outer, x); break;
    case 1: tl_backward(s->outer, x, .cotangent = x); break;
    case 2: tl_tape_reset(s->outer); break;
    case 3: tl_free_objects((void *[]){s->outer}, 1); break;
    case 4: tl_gradients(s->outer, x, &x, 1, x, &dx); break;
    case 5: tl_mode_push(s->outer, TL_FAST); break;
    case 6: tl_update_begin(s->outer); break;
    case 7: tl_kernel_push(s->outer, NULL, TL_ANY_DTYPE, "fast"); break;
    }
}

/* What is done on the outer tape would be done once, as the program is traced. */
static void a_program_keeps_to_its_own_tape(void **state)
{
    (void)state;
    for (int use = 0; use < 8; use++)
        for (int runs = 0; runs < 2; runs++) {
            tl_tape *t = tl_tape_new(NULL);
            tl_tensor x = four(t, 1), y[3];
            stray s = {t, use};
            tl_compiled *c = tl_compile(t, strays, 3, &s);
            if (runs)
                assert_int_equal(tl_run(c, &x, 1, y), TL_EUSAGE);
            else
                assert_null(tl_trace(t, strays, &x, 1, 3, &s));
            if (strstr(tl_error(t), "a traced function (use the tape that it is given)") == NULL)
                fail_msg("%d: %s", use, tl_error(t));
            tl_error_clear(t);
            assert_int_equal(tl_mode(t), 0);
            assert_false(tl_is_none(tl_exp(t, x))); /* which is as it was */
            tl_free(c, t);
        }
}

static void resets(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)ctx;
    shows(t, in, n, out, m, NULL);
    tl_tape_reset(t);
}

static void a_reset_inside_a_program_is_refused(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = four(t, 1), y[3];
    tl_compiled *c = tl_compile(t, resets, 3, NULL);
    assert_int_equal(tl_run(c, &x, 1, y), TL_ETRACED);
    assert_non_null(strstr(tl_error(t), "tl_tape_reset: not inside a traced function"));
    tl_free(c, t);
}

static void tells(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    tl_batch_axis(t, in[0], 1);
    tl_tensor w = tl_param(t, ctx, "w", TL_F32, TL_DIMS(3, 2), .kind = TL_INIT_ONES);
    (void)n, (void)m;
    out[0] = tl_sum(t, tl_matmul(t, in[0], w), TL_ALL, false);
    tl_backward(t, out[0]);
    out[0] = tl_detach(t, out[0]);
}

/* A program may tell the axis of samples of its input, as it may when it is called. */
static void a_program_tells_the_axis_of_its_input(void **state)
{
    (void)state;
    static const float x[4][2][3] = {{{1, 2, 3}}};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, tells, 1, m);
    for (int i = 0; i < 3; i++) {
        tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(4, 2, 3)), y;
        if (tl_run(c, &in, 1, &y) != TL_OK)
            fail_msg("%d: %s", i, tl_error(t));
        assert_int_equal(tl_batch_of(t, in), 0);
        tl_tape_reset(t);
    }
    assert_int_equal(tl_compiled_count(c), 1);
    tl_free(c, t, m);
}

static void odd_name(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    out[0] = tl_detach(t, tl_mul(t, in[0], tl_model_find(tl_tape_model(t), "a\"b\\c")));
    out[1] = in[0];
}

/* What DOT would take for its own in a name. */
static void names_are_quoted_in_dot(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_param(t, m, "a\"b\\c", TL_F32, TL_DIMS(4), .kind = TL_INIT_ONES);
    tl_tensor x = four(t, 1);
    tl_graph *g = tl_trace(t, odd_name, &x, 1, 2, NULL);
    char text[4096] = "";
    FILE *f = fmemopen(text, sizeof text - 1, "w");
    assert_int_equal(tl_graph_dot(g, f), TL_OK);
    fclose(f);
    if (strstr(text, "label=\"a\\\"b\\\\c\"") == NULL ||
        strstr(text, "label=\"output 1: in0\"") == NULL)
        fail_msg("%s", text);
    tl_free(g, t, m);
}

/* ---- results for which an operand's memory is not free yet ---- */

enum { SIDE = 64, WATCHED = 1 << 20 };

/* In two passes: it writes before it reads. */
static tl_status two_passes(tl_call *c)
{
    const int64_t n = tl_array_count(c->in[0]);
    for (int64_t i = 0; i < n; i++)
        tl_array_put(&c->out[0], i, 0);
    for (int64_t i = 0; i < n; i++)
        tl_array_put(&c->out[0], i, -tl_array_get(c->in[0], i));
    return TL_OK;
}
static const tl_kernel in_two_passes = {.op = "neg",
                                        .name = "edges-two-passes",
                                        .mode = TL_FAST,
                                        .run = two_passes};

static tl_status negates(void *ctx, tl_tape *t, const tl_seen *s)
{
    const tl_call *c = s->call;
    (void)t;
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        assert_true(tl_array_get(&c->out[0], i) == -tl_array_get(c->in[0], i));
    ++*(int *)ctx;
    return TL_OK;
}

typedef enum { TRANSPOSED, BY_A_KERNEL, SEEN, BUSY_WAYS } busy;

static void makes_of_a_product(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m,
                               void *ctx)
{
    const busy how = *(const busy *)ctx;
    (void)n, (void)m;
    tl_tensor h = tl_matmul(t, in[0], in[0]), y;
    const int scope = how == BY_A_KERNEL ? tl_kernel_push(t, "neg", TL_F32, in_two_passes.name)
                                         : tl_mode_push(t, how == SEEN ? WATCHED : 0);
    y = how == TRANSPOSED ? tl_add(t, h, tl_transpose(t, h, 0, 1)) : tl_neg(t, h);
    tl_mode_pop(t, scope);
    out[0] = tl_matmul(t, y, in[1]);
}

/* A result takes no operand's place that is read in another order as well, by a kernel that may
 * write first, or by who watches. in[0], which has 1, 2, ... in its first column, is its own
 * square, and in[1] is the unit matrix. */
static void an_operand_keeps_its_place_while_it_is_read(void **state)
{
    static const tl_observer observer = {.mode = WATCHED, .ran = negates};
    static float column[SIDE][SIDE], unit[SIDE][SIDE], got[SIDE][SIDE];
    int seen = 0;
    (void)state;
    for (int i = 0; i < SIDE; i++) {
        column[i][0] = (float)(i + 1);
        unit[i][i] = 1;
    }
    tl_tape *t = tl_tape_new(NULL);
    assert_int_equal(tl_kernel_register(t, &in_two_passes), TL_OK);
    assert_int_equal(tl_observe(t, &observer, &seen), TL_OK);
    for (busy how = 0; how < BUSY_WAYS; how++) {
        tl_compiled *c = tl_compile(t, makes_of_a_product, 1, &how);
        tl_tensor in[] = {tl_data(t, column, TL_F32, TL_DIMS(SIDE, SIDE)),
                          tl_data(t, unit, TL_F32, TL_DIMS(SIDE, SIDE))},
                  out;
        assert_int_equal(tl_run(c, in, 2, &out), TL_OK);
        assert_int_equal(tl_keep(t, out, got, sizeof got), TL_OK);
        for (int i = 0; i < SIDE; i++)
            for (int j = 0; j < SIDE; j++) {
                const int there = j == 0 ? i + 1 : 0, across = i == 0 ? j + 1 : 0;
                assert_true(got[i][j] == (float)(how == TRANSPOSED ? there + across : -there));
            }
        tl_free(c);
    }
    assert_int_equal(seen, 1);
    tl_free(t);
}

/* ---- a run inside of itself ---- */

typedef struct {
    tl_compiled *c;
    bool by_op, by_observer, by_hook[2];
    tl_status inner;
} rerun;
static rerun again;

static void run_again(tl_tape *t, bool *asked)
{
    const bool asks = *asked;
    tl_tensor x, y;
    *asked = false;
    if (asks && !tl_is_none(x = four(t, 10)))
        again.inner = tl_run(again.c, &x, 1, &y);
}

static tl_tape *runs_on;
static tl_status runs_shape(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}
static tl_status runs_forward(tl_call *c)
{
    run_again(runs_on, &again.by_op);
    tl_array_copy(&c->out[0], c->in[0]);
    return TL_OK;
}
static const tl_op runs_op = {
    .name = "runs", .n_in = 1, .n_out = 1, .shape = runs_shape, .forward = runs_forward};

static tl_status runs_ran(void *ctx, tl_tape *t, const tl_seen *s)
{
    (void)ctx;
    if (s->call->op == &runs_op)
        run_again(t, &again.by_observer);
    return TL_OK;
}

static void runs_hook(tl_tape *t, void *asked)
{
    (void)t;
    run_again(runs_on, asked);
}

/* in[0] times its sum, which waits in the slab while the op runs. */
static void waits(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    tl_host(t, TL_BEFORE, runs_hook, &again.by_hook[0]);
    tl_host(t, TL_AFTER, runs_hook, &again.by_hook[1]);
    tl_tensor sum = tl_sum(t, in[0], TL_ALL, true);
    out[0] = tl_mul(t, sum, tl_apply1(TL_AT(t), &runs_op, NULL, in, 1));
}

static void a_graph_does_not_run_inside_its_own_run(void **state)
{
    static const tl_observer observer = {.ran = runs_ran};
    (void)state;
    tl_tape *t = runs_on = tl_tape_new(NULL);
    assert_int_equal(tl_observe(t, &observer, NULL), TL_OK);
    again = (rerun){.c = tl_compile(t, waits, 1, NULL)};
    for (int i = 0; i < 4; i++) {
        tl_tensor x = four(t, 1), y;
        assert_int_equal(tl_run(again.c, &x, 1, &y), TL_OK);
        assert_first(t, y, 10);
        again.by_op = i == 0;
        again.by_observer = i == 1;
        again.by_hook[0] = i == 2;
        again.by_hook[1] = i == 3;
        again.inner = TL_OK;
        assert_int_equal(tl_run(again.c, &x, 1, &y), TL_EUSAGE);
        assert_int_equal(again.inner, TL_EUSAGE);
        assert_true(tl_is_none(y));
        assert_failed(t, TL_EUSAGE, "runs the graph that is running");
    }
    tl_tensor x = four(t, 1), y;
    assert_int_equal(tl_run(again.c, &x, 1, &y), TL_OK); /* it is over: it may run */
    assert_first(t, y, 10);
    tl_free(again.c, t);
}

static unsigned char flags[4];

static void by_flags(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    out[0] = tl_where(t, tl_bound(t, (const bool *)flags, TL_BOOL, TL_DIMS(4)), in[0],
                      tl_scale(t, in[0], 2));
}

static void host_memory_is_checked_at_each_run(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    tl_compiled *c = tl_compile(t, by_flags, 1, NULL);
    for (unsigned char flag = 0; flag < 5; flag++) {
        tl_tensor x = four(t, 1), y;
        flags[0] = flag % 3;
        assert_int_equal(tl_run(c, &x, 1, &y), flag == 2 ? TL_EDOMAIN : TL_OK);
        if (flag == 2)
            assert_failed(t, TL_EDOMAIN, "tl_bound: element 0 of BOOL data is 2");
        else
            assert_first(t, y, flags[0] == 1 ? 1 : 2);
    }
    tl_free(c, t);
}

const struct CMUnitTest tl_tests_graph_edges[] = {
    cmocka_unit_test(host_memory_is_checked_at_each_run),
    cmocka_unit_test(a_graph_does_not_run_inside_its_own_run),
    cmocka_unit_test(a_program_whose_tape_is_freed_is_stale),
    cmocka_unit_test(a_program_keeps_to_its_own_tape),
    cmocka_unit_test(a_program_tells_the_axis_of_its_input),
    cmocka_unit_test(a_reset_inside_a_program_is_refused),
    cmocka_unit_test(names_are_quoted_in_dot),
    cmocka_unit_test(a_result_takes_no_place_that_is_still_read),
    cmocka_unit_test(what_is_read_again_is_changed_all_the_same),
    cmocka_unit_test(what_is_not_changed_may_be_an_input),
    cmocka_unit_test(outputs_stay_what_they_were),
    cmocka_unit_test(what_a_program_changes_begins_anew_at_each_run),
    cmocka_unit_test(a_constant_in_a_weight_is_no_other),
    cmocka_unit_test(an_input_that_is_gone_traces_no_graph),
    cmocka_unit_test(one_tensor_may_be_two_inputs),
    cmocka_unit_test(inputs_that_the_graph_changes_are_refused),
    cmocka_unit_test(a_tensor_of_the_model_is_no_input_to_change),
    cmocka_unit_test(a_gradient_is_no_input_of_what_adds_to_it),
    cmocka_unit_test(what_a_graph_cannot_hold_is_refused),
    cmocka_unit_test(gradients_may_be_dropped_first),
    cmocka_unit_test(gradients_that_wait_are_optional),
    cmocka_unit_test(host_work_has_the_environment_of_the_contract),
    cmocka_unit_test(rounding_that_a_hook_leaves_changes_no_bit),
    cmocka_unit_test(updates_are_counted_though_the_run_fails),
    cmocka_unit_test(halves_have_sums_of_their_own),
    cmocka_unit_test(graphs_have_the_gradients_of_calls),
    cmocka_unit_test(a_long_chain_of_views_is_no_deep_recursion),
    cmocka_unit_test(a_failed_hook_leaves_no_output),
    cmocka_unit_test(an_operand_keeps_its_place_while_it_is_read),
    cmocka_unit_test(a_tape_may_go_before_its_graphs),
};
const size_t tl_tests_graph_edges_count = sizeof tl_tests_graph_edges /
                                          sizeof *tl_tests_graph_edges;
