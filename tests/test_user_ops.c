/* Ops, kernels and observers of users that do not do what they say: each is named, and nothing is
 * lost in silence. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <tally.h>
#include <tally_extend.h>

#include "tests/support/expect.h"

extern const struct CMUnitTest tl_tests_user_ops[];
extern const size_t tl_tests_user_ops_count;

static tl_tensor row(tl_tape *t) { return tl_data(t, ((float[]){1, 2, 3}), TL_F32, TL_DIMS(3)); }

static tl_status like(tl_call *c)
{
    for (int i = 0; i < c->n_out; i++)
        c->out[i] = tl_array_make(TL_F32, &TL_DIMS(3), NULL);
    return TL_OK;
}

static tl_status copies(tl_call *c)
{
    for (int i = 0; i < c->n_out; i++)
        for (int k = 0; k < 3; k++)
            tl_array_put(&c->out[i], k, tl_array_get(c->in[0], k));
    return TL_OK;
}

static void doubles(const tl_tile *t)
{
    for (int64_t i = 0; i < t->n; i++)
        ((float *)t->out)[i] = 2 * ((const float *)t->in[0])[i];
}

static const tl_attr beyond[] = {{"far", TL_ATTR_F64, 4}, {NULL, 0, 0}},
                     no_kind[] = {{"none", (tl_attr_kind)77, 0}, {NULL, 0, 0}};

static void odd_ops_are_refused(void **unused)
{
    static const struct {
        tl_op op;
        const char *says;
    } odd[] = {
        {{.n_in = 0, .n_out = 1, .traits = TL_VIEW}, "a view"},
        {{.n_in = 1, .n_out = 2, .traits = TL_VIEW}, "a view"},
        {{.n_in = 1, .n_out = 1, .traits = TL_VIEW, .optional = 1}, "a view"},
        {{.n_in = 1, .n_out = 1, .traits = TL_VIEW | TL_MUTATES}, "a view"},
        {{.n_in = 1, .n_out = 1, .traits = TL_VIEW | TL_POINTWISE, .tile = doubles}, "a view"},
        {{.n_in = 2, .n_out = 1, .traits = TL_POINTWISE, .tile = doubles, .optional = 2},
         "all inputs of a pointwise op"},
        {{.n_in = 1, .n_out = 1, .traits = TL_POINTWISE, .tile = doubles, .slot = 100000},
         "one kernel"},
        {{.n_in = 40, .n_out = 1, .traits = TL_MUTATES, .mutates = 35, .forward = copies},
         "first 32"},
        {{.n_in = 1, .n_out = 1, .changes = 1, .forward = copies}, "further inputs"},
        {{.n_in = 2, .n_out = 1, .traits = TL_MUTATES, .changes = 4, .forward = copies},
         "further inputs"},
        {{.n_in = 2,
          .n_out = 1,
          .traits = TL_MUTATES,
          .optional = 1,
          .changes = 2,
          .forward = copies},
         "further inputs"},
        {{.n_in = 2,
          .n_out = 1,
          .traits = TL_MUTATES | TL_WIDENED,
          .changes = 2,
          .forward = copies},
         "further inputs"},
        {{.n_in = 1, .n_out = 0, .forward = copies}, "has an output"},
        {{.n_in = 1, .n_out = 1, .forward = copies, .attr = beyond}, "attribute far is of no kind"},
        {{.n_in = 1, .n_out = 1, .forward = copies, .attr = beyond, .attr_size = 8}, "far is"},
        {{.n_in = 1, .n_out = 1, .forward = copies, .attr = no_kind, .attr_size = 8}, "none is"},
        {{.n_in = 1, .n_out = 1, .forward = copies, .attr_size = (size_t)-8}, ".attr_size of 18"},
        {{.n_in = 1, .n_out = 1, .forward = copies, .attr_size = 16, .row_dims = 9},
         ".row_dims at 9"},
    };
    static const char attrs[64];
    (void)unused;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        tl_op op = odd[i].op;
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor in[40], out[8], x = row(t);
        for (int k = 0; k < 40; k++)
            in[k] = x;
        op.name = "odd";
        op.shape = like;
        tl_apply(TL_AT(t), &op, op.attr_size > 0 ? attrs : NULL, in, op.n_in, out);
        expect_failure(t, TL_EUSAGE, odd[i].says);
        tl_free(t);
    }
}

static tl_status far(tl_call *c)
{
    c->out[0] = *c->in[0];
    c->out[0].dim[0] = -4;
    return TL_OK;
}

static tl_status longer(tl_call *c)
{
    c->out[0] = tl_array_make(TL_F32, &TL_DIMS(6), NULL);
    return TL_OK;
}

static tl_status repeats(tl_call *c)
{
    c->out[0] = tl_array_make(TL_F32, &TL_DIMS(2000), c->in[0]->data);
    return TL_OK;
}

static tl_status shows_nothing(tl_call *c)
{
    c->out[0] = tl_array_make(TL_F32, &TL_DIMS(3), NULL);
    return TL_OK;
}

static tl_status backwards(tl_call *c)
{
    c->out[0] = *c->in[0];
    c->out[0].stride[0] = -1;
    c->strided = true;
    return TL_OK;
}

static void looks(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *op)
{
    (void)n, (void)n_out;
    out[0] = tl_sum(t, tl_apply1(TL_AT(t), op, NULL, in, 1), TL_ALL, false);
}

/* A view shows what lies in its input's memory, and a new output lies in its own. */
static void memory_that_is_not_there(void **unused)
{
    static const tl_op
        more = {.name = "more", .n_in = 1, .n_out = 1, .traits = TL_VIEW, .shape = repeats},
        nothing = {.name = "nothing",
                   .n_in = 1,
                   .n_out = 1,
                   .traits = TL_VIEW,
                   .shape = shows_nothing},
        before = {.name = "before", .n_in = 1, .n_out = 1, .shape = backwards, .forward = copies};
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = row(t);
    tl_apply1(TL_AT(t), &more, NULL, &x, 1);
    expect_failure(t, TL_EUSAGE, "more: shows [2000] elements that do not lie in its input");
    tl_tensor y;
    tl_compiled *c = tl_compile(t, looks, 1, (void *)(uintptr_t)&more);
    assert_int_equal(tl_run(c, &x, 1, &y), TL_EUSAGE);
    expect_failure(t, TL_EUSAGE, "more: shows [2000] elements");
    tl_free(c);
    tl_apply1(TL_AT(t), &nothing, NULL, &x, 1);
    expect_failure(t, TL_EUSAGE, "nothing: shows [3] elements");
    tl_apply1(TL_AT(t), &before, NULL, &x, 1);
    expect_failure(t, TL_EUSAGE, "before: strides that leave the 12 bytes");
    tl_free(t);
}

static void shapes_that_cannot_be(void **unused)
{
    static const tl_op view = {.name = "far",
                               .n_in = 1,
                               .n_out = 1,
                               .traits = TL_VIEW,
                               .shape = far},
                       other = {.name = "longer",
                                .n_in = 1,
                                .n_out = 1,
                                .traits = TL_MUTATES,
                                .shape = longer,
                                .forward = copies};
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = row(t);
    tl_apply1(TL_AT(t), &view, NULL, &x, 1);
    expect_failure(t, TL_ESHAPE, "-4");
    for (int apart = 0; apart < 2; apart++) {
        const int scope = apart ? tl_mode_push(t, TL_APART) : 0;
        tl_apply1(TL_AT(t), &other, NULL, &x, 1);
        expect_failure_both(t, TL_ESHAPE, "[3]", "[6]");
        if (apart)
            tl_mode_pop(t, scope);
    }
    tl_tensor none = tl_zeros(t, TL_F32, TL_DIMS(0));
    tl_reshape(t, none, TL_DIMS(0, 2, INT64_MAX / 2));
    expect_failure(t, TL_ESHAPE, "");
    tl_diagonal(t, tl_reshape(t, none, TL_DIMS(0, INT64_MAX)), 0, 0, 1);
    expect_failure(t, TL_ESHAPE, "");
    tl_free(t);
}

/* ---- failures that do not say why, or come too late ---- */

static tl_status says_and_goes_on(tl_call *c)
{
    tl_call_fail(c, TL_EDOMAIN, "said, and gone on");
    return like(c);
}

static tl_status forward_says(tl_call *c)
{
    tl_call_fail(c, TL_EDOMAIN, "said, and gone on");
    return copies(c);
}

static tl_status forward_is_silent(tl_call *c)
{
    (void)c;
    return TL_EDOMAIN;
}

static void fails(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *op)
{
    (void)n, (void)n_out;
    out[0] = tl_apply1(TL_AT(t), op, NULL, in, 1);
}

/* A run of a graph fails as the call does, by the same words. */
static void what_is_said_counts_compiled(void **unused)
{
    static tl_op op[2] = {
        {.name = "f", .n_in = 1, .n_out = 1, .shape = like, .forward = forward_says},
        {.name = "g", .n_in = 1, .n_out = 1, .shape = like, .forward = forward_is_silent}};
    const char *const says[] = {"f: said, and gone on",
                                "g: its forward failed and does not say why (tl_call_fail)"};
    (void)unused;
    for (int i = 0; i < 2; i++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor x = row(t), y;
        fails(t, &x, 1, &y, 1, &op[i]);
        expect_failure(t, TL_EDOMAIN, says[i]);
        tl_compiled *c = tl_compile(t, fails, 1, &op[i]);
        assert_int_equal(tl_run(c, &x, 1, &y), TL_EDOMAIN);
        expect_failure(t, TL_EDOMAIN, says[i]);
        tl_free(c, t);
    }
}

static void what_is_said_counts(void **unused)
{
    static const tl_op
        shape = {.name = "s", .n_in = 1, .n_out = 1, .shape = says_and_goes_on, .forward = copies},
        forward = {.name = "f", .n_in = 1, .n_out = 1, .shape = like, .forward = forward_says};
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = row(t);
    assert_true(tl_is_none(tl_apply1(TL_AT(t), &shape, NULL, &x, 1)));
    expect_failure(t, TL_EDOMAIN, "said");
    assert_true(tl_is_none(tl_apply1(TL_AT(t), &forward, NULL, &x, 1)));
    expect_failure(t, TL_EDOMAIN, "said");
    tl_free(t);
}

/* However long a failure is, its place in the program stays. */
static tl_status says_much(tl_call *c)
{
    char much[TL_MESSAGE_MAX];
    memset(much, 'm', sizeof much - 1);
    much[sizeof much - 1] = '\0';
    return tl_call_fail(c, TL_EDOMAIN, "%s", much);
}

static void a_long_message_keeps_its_place(void **unused)
{
    static const tl_op
        shape = {.name = "s", .n_in = 1, .n_out = 1, .shape = says_much, .forward = copies},
        forward = {.name = "f", .n_in = 1, .n_out = 1, .shape = like, .forward = says_much};
    const tl_op *op[] = {&shape, &forward};
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    for (int i = 0; i < 2; i++) {
        tl_tensor x = row(t);
        tl_apply1(TL_AT(t), op[i], NULL, &x, 1);
        assert_true(strlen(tl_error(t)) > TL_MESSAGE_MAX - 160);
        expect_failure(t, TL_EDOMAIN, "mmm (tests/test_user_ops.c:");
    }
    tl_free(t);
}

/* An op that is not defined in F64, where gradients are checked. */
static tl_status single_alone(tl_call *c)
{
    return c->mode & TL_SHADOW ? tl_call_fail(c, TL_EDTYPE, "f32 alone") : copies(c);
}

static void pass_on(tl_vjp *g) { g->dx[0] = g->dy[0]; }

static tl_tensor single(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    static const tl_op op = {.name = "single",
                             .n_in = 1,
                             .n_out = 1,
                             .shape = like,
                             .forward = single_alone,
                             .vjp = pass_on};
    (void)n, (void)ctx;
    return tl_apply1(TL_AT(t), &op, NULL, in, 1);
}

static void a_check_says_that_it_computes_in_f64(void **unused)
{
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = row(t);
    assert_int_equal(tl_gradcheck(t, single, &x, 1, NULL), TL_WRONG);
    expect_failure(t, TL_EDTYPE, "run again in F64: single: f32 alone");
    tl_free(t);
}

static tl_status half(tl_call *c)
{
    tl_array_put(&c->out[0], 0, 77);
    return TL_EDOMAIN;
}

static void a_kernel_that_fails_half_way_spoils_its_operand(void **unused)
{
    static const tl_op op = {.name = "half",
                             .n_in = 1,
                             .n_out = 1,
                             .traits = TL_MUTATES,
                             .shape = like,
                             .forward = half};
    float out[3];
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = row(t);
    tl_apply1(TL_AT(t), &op, NULL, &x, 1);
    expect_failure(t, TL_EDOMAIN, "does not say why");
    assert_int_equal(tl_keep(t, x, out, sizeof out), TL_EINPLACE);
    expect_failure(t, TL_EINPLACE, "by half");
    tl_free(t);
}

static tl_status refuses(void *ctx, tl_tape *t, const tl_seen *s)
{
    (void)ctx, (void)t, (void)s;
    return TL_EUSAGE;
}

static tl_status says_so_alone(void *ctx, tl_tape *t, const tl_seen *s)
{
    (void)ctx;
    tl_tape_fail((tl_at){t, s->file, s->line, s->by}, TL_EDOMAIN, "%s: an observer minds",
                 s->call->op->name);
    return TL_OK;
}

static tl_status records(void *ctx, tl_tape *t, const tl_seen *s)
{
    static bool inside;
    (void)ctx;
    if (!inside && strcmp(s->call->op->name, "square") == 0) {
        inside = true; /* a call made here is seen as well */
        tl_scalar(t, TL_F32, 1);
        inside = false;
    }
    return TL_OK;
}

static void observers_that_break_their_promise(void **unused)
{
    static const tl_observer silent[] = {{.records = refuses}, {.ran = refuses}};
    static const tl_observer lax[] = {{.records = says_so_alone}, {.ran = says_so_alone}};
    static const tl_observer busy[] = {{.records = records}, {.ran = records}};
    (void)unused;
    for (int i = 0; i < 2; i++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor x = row(t);
        assert_int_equal(tl_observe(t, &silent[i], NULL), TL_OK);
        assert_true(tl_is_none(tl_square(t, x)));
        expect_failure_both(t, TL_EUSAGE, "square", "observer");
        tl_free(t);
        t = tl_tape_new(NULL);
        x = row(t);
        assert_int_equal(tl_observe(t, &lax[i], NULL), TL_OK);
        assert_true(tl_is_none(tl_mse(t, x, x)));
        expect_failure(t, TL_EDOMAIN, "mse: "); /* the function that was called */
        assert_int_equal(tl_memory_stats(t).nodes, 0);
        tl_free(t);
        t = tl_tape_new(NULL);
        x = row(t);
        assert_int_equal(tl_observe(t, &busy[i], NULL), TL_OK);
        assert_true(tl_is_none(tl_square(t, x)));
        const size_t nodes = tl_memory_stats(t).nodes;
        expect_failure_both(t, TL_EUSAGE, "square", "inside");
        assert_int_equal(nodes, 0);
        tl_free(t);
    }
}

/* ---- inside of a call ---- */

static tl_tape *outer;
static tl_status records_inside(tl_call *c)
{
    tl_square(outer, tl_scalar(outer, TL_F32, 2));
    return copies(c);
}
static tl_status resets_inside(tl_call *c)
{
    tl_tape_reset(outer);
    return copies(c);
}
static tl_tensor leaf_outside, result_outside; /* of the tape */
static tl_status differentiates_inside(tl_call *c)
{
    tl_tensor dx;
    tl_gradients(outer, result_outside, &leaf_outside, 1, TL_NONE, &dx);
    return copies(c);
}
static tl_graph *graph_outside;
static tl_status runs_a_graph_inside(tl_call *c)
{
    tl_tensor y;
    tl_graph_run(graph_outside, &leaf_outside, 1, &y, 1);
    return copies(c);
}

static void calls(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *op)
{
    (void)n_out;
    out[0] = tl_apply1(TL_AT(t), op, NULL, in, n);
}

static void squares(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    out[0] = tl_square(t, in[0]);
}

static tl_status shape_records_inside(tl_call *c)
{
    tl_square(outer, tl_scalar(outer, TL_F32, 2));
    return tl_call_fail(c, TL_ESHAPE, "no");
}

/* Nor may a shape rule: its call would get the place of the values to come. */
static void a_shape_rule_that_uses_its_tape(void **unused)
{
    static const tl_op busy = {
        .name = "busy", .n_in = 1, .n_out = 1, .shape = shape_records_inside, .forward = copies};
    (void)unused;
    tl_tape *t = outer = tl_tape_new(NULL);
    tl_tensor x = row(t);
    const size_t values = tl_memory_stats(t).values;
    assert_true(tl_is_none(tl_apply1(TL_AT(t), &busy, NULL, &x, 1)));
    expect_failure(t, TL_EUSAGE, "fill: called inside busy");
    assert_true(tl_memory_stats(t).nodes == 0 && tl_memory_stats(t).values == values);
    tl_free(t);
}

/* The call's own record is not overwritten, nor dropped. */
static void a_forward_that_uses_its_tape(void **unused)
{
    static tl_status (*const way[])(tl_call * c) = {records_inside, resets_inside,
                                                    differentiates_inside, runs_a_graph_inside};
    static const char *const says[] = {"fill: called inside busy",
                                       "tl_tape_reset: busy is under way",
                                       "tl_gradients: called inside busy",
                                       "tl_graph_run: called inside busy, on the same tape"};
    (void)unused;
    for (int i = 0; i < 4; i++) {
        const tl_op busy = {
            .name = "busy", .n_in = 1, .n_out = 1, .shape = like, .forward = way[i]};
        tl_tape *t = outer = tl_tape_new(NULL);
        tl_tensor x = row(t);
        tl_require_grad(t, leaf_outside = row(t));
        result_outside = tl_sum(t, leaf_outside, TL_ALL, false);
        graph_outside = tl_trace(t, squares, &x, 1, 1, NULL);
        tl_apply1(TL_AT(t), &busy, NULL, &x, 1);
        expect_failure(t, TL_EUSAGE, says[i]);
        tl_error_clear(t);
        assert_true(tl_item(t, tl_sum(t, x, TL_ALL, false)) == 6);
        tl_compiled *c = tl_compile(t, calls, 1, (void *)&busy);
        tl_tensor y;
        tl_run(c, &x, 1, &y);
        expect_failure(t, TL_EUSAGE, says[i]);
        tl_free(graph_outside, c, t);
    }
}

/* y = x W, whose gradient of W is summed over the samples by the vjp: a finished sum. */
static tl_status linear_shape(tl_call *c)
{
    c->out[0] = *c->in[0];
    c->out[0].dim[1] = c->in[1]->dim[1];
    return TL_OK;
}
static tl_status linear_forward(tl_call *c)
{
    const int64_t rows = c->in[0]->dim[0], k = c->in[0]->dim[1], n = c->in[1]->dim[1];
    for (int64_t i = 0; i < rows * n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < k; j++)
            sum += tl_array_get(c->in[0], i / n * k + j) * tl_array_get(c->in[1], j * n + i % n);
        tl_array_put(&c->out[0], i, sum);
    }
    return TL_OK;
}
static void linear_vjp(tl_vjp *g)
{
    g->dx[1] = tl_matmul(g->t, tl_transpose(g->t, g->in[0], 0, 1), g->dy[0]);
}
static void linear_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    (void)c;
    out[0] = in[1] == TL_FREE ? in[0] : TL_MIXED;
}

static void a_vjp_that_sums_over_samples(void **unused)
{
    static const tl_op linear = {.name = "linear",
                                 .n_in = 2,
                                 .n_out = 1,
                                 .shape = linear_shape,
                                 .forward = linear_forward,
                                 .vjp = linear_vjp,
                                 .saves_in = 1,
                                 .batch = linear_batch};
    (void)unused;
    for (int strict = 0; strict < 2; strict++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_mode_push(t, strict ? TL_STRICT : 0);
        tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(2, 2)),
                  w = tl_param(t, m, "w", TL_F32, TL_DIMS(2, 3), .kind = TL_INIT_ONES),
                  y = tl_apply1(TL_AT(t), &linear, NULL, (tl_tensor[]){x, w}, 2);
        tl_backward(t, tl_sum(t, y, TL_ALL, false));
        if (strict)
            expect_failure(t, TL_EUSAGE, "the vjp of linear sums its gradient for input 1");
        else
            assert_true(tl_item(t, tl_sum(t, tl_grad(t, w), TL_ALL, false)) == 30);
        tl_free(t, m);
    }
}

/* ---- shapes ---- */

static tl_status column(tl_call *c)
{
    c->out[0] = tl_array_make(TL_F32, &TL_DIMS(3, 1), NULL);
    return TL_OK;
}
static tl_status windows(tl_call *c)
{
    c->out[0] = *c->in[0];
    c->out[0].ndim = 2;
    c->out[0].dim[0] = c->out[0].dim[1] = 2;
    c->out[0].stride[0] = c->out[0].stride[1] = 1;
    return TL_OK;
}
static tl_status loops(tl_call *c) { return tl_pointwise_run(c); }
static tl_status none_there(tl_call *c) { return tl_pointwise_shape(c); }

static void shapes_that_do_not_fit(void **unused)
{
    static const tl_op
        wide = {.name = "wide",
                .n_in = 1,
                .n_out = 1,
                .traits = TL_POINTWISE,
                .shape = column,
                .tile = doubles},
        once = {.name = "once", .n_in = 1, .n_out = 1, .traits = TL_VIEW, .shape = windows},
        often = {.name = "often",
                 .n_in = 1,
                 .n_out = 1,
                 .traits = TL_VIEW | TL_REPEATS,
                 .shape = windows},
        tiled = {.name = "tiled",
                 .n_in = 2,
                 .n_out = 1,
                 .optional = 2,
                 .shape = like,
                 .tile = doubles,
                 .forward = loops},
        bare = {.name = "bare", .n_in = 1, .n_out = 1, .shape = like, .forward = loops},
        empty = {.name = "empty", .n_out = 1, .shape = none_there, .forward = loops};
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x[2] = {row(t), TL_NONE};
    (void)unused;
    tl_apply1(TL_AT(t), &wide, NULL, x, 1);
    expect_failure(t, TL_ESHAPE, "wide: input 0 does not broadcast to the output");
    tl_error_clear(t);
    tl_apply1(TL_AT(t), &once, NULL, x, 1);
    expect_failure(t, TL_EUSAGE, "once: shows elements more than once");
    tl_error_clear(t);
    tl_tensor r = tl_data(t, ((float[]){2, 2}), TL_F32, TL_DIMS(2));
    tl_rotary_(t, tl_apply1(TL_AT(t), &often, NULL, x, 1), r, r, TL_ROTARY_HALF);
    expect_failure(t, TL_EINPLACE, "[2, 2], shows elements more than once");
    tl_error_clear(t);
    tl_apply1(TL_AT(t), &tiled, NULL, x, 2);
    expect_failure(t, TL_EUSAGE, "tiled: a pointwise loop over 2 inputs");
    tl_error_clear(t);
    tl_apply1(TL_AT(t), &bare, NULL, x, 1);
    expect_failure(t, TL_EUSAGE, "bare: has no .tile");
    tl_error_clear(t);
    tl_apply1(TL_AT(t), &empty, NULL, NULL, 0);
    expect_failure(t, TL_EUSAGE, "empty: a pointwise loop over 0 inputs");
    tl_error_clear(t);
    x[1] = row(t); /* out among the inputs */
    tl_apply(TL_AT(t), &tl_op_add, NULL, x, 2, &x[1]);
    assert_true(tl_item(t, tl_sum(t, x[1], TL_ALL, false)) == 12);
    tl_free(t);
}

/* ---- vjps ---- */

static void stale_vjp(tl_vjp *g)
{
    tl_tensor r = tl_data(g->t, ((float[]){2, 2}), TL_F32, TL_DIMS(2));
    tl_rotary_(g->t, tl_reshape(g->t, tl_slice(g->t, g->dy[0], 0, 0, 2, 1), TL_DIMS(1, 2)), r, r,
               TL_ROTARY_HALF);
    g->dx[0] = g->dy[0];
}

static void resetting_vjp(tl_vjp *g)
{
    g->dx[0] = g->dy[0];
    tl_tape_reset(g->t);
}

static void a_vjp_that_returns_what_it_may_not(void **unused)
{
    static const tl_op stale = {.name = "stale",
                                .n_in = 1,
                                .n_out = 1,
                                .shape = like,
                                .forward = copies,
                                .vjp = stale_vjp},
                       reset = {.name = "reset",
                                .n_in = 1,
                                .n_out = 1,
                                .shape = like,
                                .forward = copies,
                                .vjp = resetting_vjp};
    (void)unused;
    for (int i = 0; i < 2; i++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor x = row(t);
        tl_require_grad(t, x);
        tl_tensor y = tl_scale(t, tl_apply1(TL_AT(t), i == 0 ? &stale : &reset, NULL, &x, 1), 3);
        assert_int_not_equal(tl_backward(t, tl_sum(t, tl_square(t, y), TL_ALL, false)), TL_OK);
        expect_failure(t, i == 0 ? TL_EINPLACE : TL_EUSAGE, i == 0 ? "stale" : "under way");
        tl_free(t);
    }
}

static tl_opt *steps_inside;
static void clearing_vjp(tl_vjp *g)
{
    g->dx[0] = g->dy[0];
    if (steps_inside != NULL)
        tl_step(steps_inside, g->t);
    else
        tl_grad_clear(g->t);
}

static void steps(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    static const tl_op clears = {.name = "clears",
                                 .n_in = 1,
                                 .n_out = 1,
                                 .shape = like,
                                 .forward = copies,
                                 .vjp = clearing_vjp};
    tl_model *m = tl_tape_model(t);
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(3), .kind = TL_INIT_ONES);
    tl_tensor y = tl_mul(t, tl_apply1(TL_AT(t), &clears, NULL, &w, 1), in[0]);
    (void)n, (void)n_out;
    out[0] = tl_sum(t, tl_square(t, tl_sub(t, y, in[0])), TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(ctx, t);
}

/* What a backward walks over is not dropped under its feet. */
static void a_vjp_that_drops_gradients(void **unused)
{
    (void)unused;
    for (int way = 0; way < 3; way++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.1);
        tl_tensor x = row(t), y = TL_NONE;
        tl_compiled *c = way == 1 ? tl_compile(t, steps, 1, o) : NULL;
        float w[3];
        if (way == 2) { /* there is a gradient, of an earlier backward */
            tl_tensor p = tl_param(t, m, "w", TL_F32, TL_DIMS(3), .kind = TL_INIT_ONES);
            tl_backward(t, tl_sum(t, p, TL_ALL, false));
            steps_inside = o;
        }
        if (way == 1)
            tl_run(c, &x, 1, &y);
        else
            steps(t, &x, 1, &y, 1, o);
        steps_inside = NULL;
        expect_failure(t, TL_EUSAGE,
                       way == 2 ? "tl_step: a backward is under way"
                                : "tl_grad_clear: a backward is under way");
        tl_error_clear(t);
        tl_tape_reset(t);
        assert_int_equal(tl_keep(t, tl_model_find(m, "w"), w, sizeof w), TL_OK);
        assert_true(w[0] == 1 && w[1] == 1 && w[2] == 1);
        tl_free(c, o, t, m);
    }
}

/* Returns an accumulator to which it has nothing to add. */
static bool adds;
static void idle_vjp(tl_vjp *g)
{
    g->dx[0] = adds ? tl_sum_to(g->t, g->dy[0], TL_DIMS(3), g->acc[0]) : g->acc[0];
}

static void an_accumulator_is_zero_however_it_is_read(void **unused)
{
    static const tl_op op = {.name = "idle",
                             .n_in = 1,
                             .n_out = 1,
                             .shape = like,
                             .forward = copies,
                             .vjp = idle_vjp,
                             .folds = 1};
    (void)unused;
    for (int how = 0; how < 3; how++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        adds = true;
        for (int step = 0; step < 2; step++, adds = false) {
            float out[3];
            tl_array a;
            tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(3), .kind = TL_INIT_ONES);
            tl_tensor y = tl_sum(t, tl_apply1(TL_AT(t), &op, NULL, &w, 1), TL_ALL, false);
            assert_int_equal(tl_backward(t, y), TL_OK);
            tl_tensor g = tl_grad(t, w);
            if (how == 0)
                assert_int_equal(tl_keep(t, g, out, sizeof out), TL_OK);
            else if (how == 1)
                out[2] = (float)tl_item(t, tl_select(t, g, 0, 2));
            else
                out[2] = tl_array_of(t, g, &a) ? (float)tl_array_get(&a, 2) : -1;
            assert_true(out[2] == (step == 0));
            tl_grad_clear(t);
            tl_tape_reset(t);
        }
        expect_no_error(t);
        tl_free(t, m);
    }
}

/* ---- what graphs believe ---- */

enum { SIDE = 64, BIG = SIDE * SIDE };

static tl_status like_input(tl_call *c)
{
    for (int i = 0; i < c->n_out; i++)
        c->out[i] = *c->in[0];
    return TL_OK;
}

static int made_by_other; /* calls of an op that the program does not make */
static tl_status bends(tl_call *c)
{
    made_by_other += strncmp(c->op->name, "bends", 5) == 0;
    for (int64_t i = 0; i < BIG; i++) {
        const double x = tl_array_get(c->in[0], i);
        for (int j = 0; j < c->n_out; j++)
            tl_array_put(&c->out[j], i, x / (1 + x * x));
    }
    return TL_OK;
}

/* Reads its output, which is what a graph may compute again. */
static void bends_vjp(tl_vjp *g) { g->dx[0] = tl_mul(g->t, g->dy[0], g->out[0]); }

static int the_absent_one(const void *attrs, const double *const *constant)
{
    (void)attrs, (void)constant;
    return 1;
}

#define BENDS                                                                      \
    .traits = TL_ELEMENTWISE | TL_ONE_PASS, .shape = like_input, .forward = bends, \
    .vjp = bends_vjp, .saves_out = 1
static const tl_op bends_alone = {.name = "bends", .n_in = 1, .n_out = 1, BENDS},
                   bends_two = {.name = "bends two", .n_in = 2, .n_out = 1, BENDS},
                   bends_more = {.name = "bends more", .n_in = 1, .n_out = 2, BENDS};
static const tl_op doubtful[] = {
    {.name = "sound", .n_in = 1, .n_out = 1, BENDS, .again = {&bends_alone, 1, {0}}},
    {.name = "far input", .n_in = 1, .n_out = 1, BENDS, .again = {&bends_alone, 1, {7}}},
    {.name = "far output", .n_in = 1, .n_out = 1, BENDS, .again = {&bends_alone, 1, {~5}}},
    {.name = "many", .n_in = 1, .n_out = 1, BENDS, .again = {&bends_alone, 9, {0}}},
    {.name = "below none", .n_in = 1, .n_out = 1, BENDS, .again = {&bends_alone, -1, {0}}},
    {.name = "none", .n_in = 1, .n_out = 1, BENDS, .again = {&bends_alone, 0, {0}}},
    {.name = "one of two", .n_in = 1, .n_out = 1, BENDS, .again = {&bends_two, 1, {0}}},
    {.name = "more results", .n_in = 1, .n_out = 1, BENDS, .again = {&bends_more, 1, {0}}},
    {.name = "itself", .n_in = 1, .n_out = 1, BENDS, .again = {&bends_alone, 1, {~0}}},
    {.name = "absent",
     .n_in = 2,
     .n_out = 1,
     .optional = 2,
     BENDS,
     .again = {&bends_alone, 1, {1}}},
    {.name = "same", .n_in = 2, .n_out = 1, .optional = 2, BENDS, .same_as = the_absent_one}};
#undef BENDS

static void deep(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const tl_op *op = ctx;
    (void)n, (void)n_out;
    tl_tensor w = tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(SIDE, SIDE),
                           .kind = TL_INIT_NORMAL, .scale = 0.1);
    tl_tensor y = tl_matmul(t, in[0], w);
    for (int i = 0; i < 12; i++) {
        y = tl_matmul(t, y, w);
        tl_tensor z = tl_apply1(TL_AT(t), op, NULL, (tl_tensor[]){y, TL_NONE}, op->n_in);
        y = tl_add(t, tl_square(t, y), tl_square(t, z)); /* so that y stays */
    }
    out[0] = tl_sum(t, y, TL_ALL, false);
    tl_backward(t, out[0]);
}

/* An op's word for how it is computed again, and for what it equals, that makes no sense is none.
 */
static void nonsense_is_not_believed(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof doubtful / sizeof *doubtful; i++) {
        static float rows[BIG];
        char hex[2][65];
        made_by_other = 0;
        for (int k = 0; k < BIG; k++)
            rows[k] = (float)(k % 7) * 0.01f;
        for (int compiled = 0; compiled < 2; compiled++) {
            tl_model *m = tl_model_new(.seed = 1);
            tl_tape *t = tl_tape_new(m);
            tl_tensor x = tl_data(t, rows, TL_F32, TL_DIMS(SIDE, SIDE)), y;
            tl_compiled *c = tl_compile(t, deep, 1, (void *)&doubtful[i]);
            if (compiled)
                tl_run(c, &x, 1, &y);
            else
                deep(t, &x, 1, &y, 1, (void *)&doubtful[i]);
            tl_sha256(t, tl_grad(t, tl_model_find(m, "w")), hex[compiled]);
            expect_ok(t, doubtful[i].name);
            tl_free(c, t, m);
        }
        if (strcmp(hex[0], hex[1]) != 0)
            fail_msg("%s: %s called, %s compiled", doubtful[i].name, hex[0], hex[1]);
        if ((made_by_other > 0) != (i == 0))
            fail_msg("%s: %d calls of what should make it again", doubtful[i].name, made_by_other);
    }
}

/* ---- attributes that need alignment ---- */

typedef struct {
    _Alignas(16) double c;
} aligned_attrs;

static tl_status attrs_are_aligned(tl_call *c)
{
    assert_int_equal((uintptr_t)c->attrs % _Alignof(aligned_attrs), 0);
    c->out[0] = *c->in[0];
    for (int i = 1; i < c->n_out; i++)
        c->out[i] = *c->in[0];
    return TL_OK;
}

#define ALIGNED(in, out)                                                                  \
    {                                                                                     \
        .name = "user_aligned_" #in #out, .n_in = in, .n_out = out, .traits = TL_NONDIFF, \
        .attr_size = sizeof(aligned_attrs), .shape = attrs_are_aligned, .forward = copies \
    }

static void attributes_are_aligned(void **unused)
{
    static const tl_op op[] = {ALIGNED(1, 1), ALIGNED(1, 2), ALIGNED(2, 1), ALIGNED(2, 2)};
    static const aligned_attrs a = {1};
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    const tl_tensor x = tl_zeros(t, TL_F32, TL_DIMS(3));
    for (int i = 0; i < 4; i++) {
        tl_tensor out[2];
        tl_apply(TL_AT(t), &op[i], &a, (tl_tensor[]){x, x}, op[i].n_in, out);
        if (tl_failed(t))
            fail_msg("%s", tl_error(t));
    }
    tl_free(t);
}

/* ---- an input that is removed while a fold waits ---- */

static tl_status as_first(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

/* Asks for the shape of its first input, which it does not read. */
static void by_shape_vjp(tl_vjp *g)
{
    assert_int_equal(tl_shape_of(g->t, g->in[0]).ndim, 2);
    if (g->wants[1])
        g->dx[1] = tl_sum_to(g->t, g->dy[0], tl_shape_of(g->t, g->in[1]), g->acc[1]);
}

static void a_fold_whose_input_was_removed(void **unused)
{
    static const tl_op op = {.name = "user_by_shape",
                             .n_in = 2,
                             .n_out = 1,
                             .shape = as_first,
                             .forward = copies,
                             .vjp = by_shape_vjp,
                             .folds = 2,
                             .folds_f64 = 2};
    (void)unused;
    for (int again = 0; again < 2; again++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        const tl_tensor p = tl_param(t, m, "p", TL_F32, TL_DIMS(3), .kind = TL_INIT_ONES);
        const uint32_t mark = tl_model_mark(m);
        const tl_tensor in[2] = {tl_buffer(t, m, "b", TL_F32, TL_DIMS(2, 3)), p};
        const tl_tensor y = tl_apply1(TL_AT(t), &op, NULL, in, 2);
        assert_int_equal(tl_backward(t, tl_sum(t, y, TL_ALL, false), .put_off = true), TL_OK);
        tl_model_rollback(m, mark);
        if (again)
            tl_buffer(t, m, "other", TL_F32, TL_DIMS(7)); /* where b was */
        assert_int_equal(tl_accumulate(t, "p"), TL_ESTALE);
        assert_non_null(strstr(tl_error(t), "input 0 of user_by_shape was removed"));
        tl_error_clear(t);
        tl_free(t, m);
    }
}

const struct CMUnitTest tl_tests_user_ops[] = {
    cmocka_unit_test(attributes_are_aligned),
    cmocka_unit_test(a_fold_whose_input_was_removed),
    cmocka_unit_test(nonsense_is_not_believed),
    cmocka_unit_test(odd_ops_are_refused),
    cmocka_unit_test(shapes_that_cannot_be),
    cmocka_unit_test(memory_that_is_not_there),
    cmocka_unit_test(what_is_said_counts),
    cmocka_unit_test(what_is_said_counts_compiled),
    cmocka_unit_test(a_long_message_keeps_its_place),
    cmocka_unit_test(a_check_says_that_it_computes_in_f64),
    cmocka_unit_test(a_kernel_that_fails_half_way_spoils_its_operand),
    cmocka_unit_test(observers_that_break_their_promise),
    cmocka_unit_test(a_forward_that_uses_its_tape),
    cmocka_unit_test(a_shape_rule_that_uses_its_tape),
    cmocka_unit_test(a_vjp_that_sums_over_samples),
    cmocka_unit_test(shapes_that_do_not_fit),
    cmocka_unit_test(a_vjp_that_returns_what_it_may_not),
    cmocka_unit_test(a_vjp_that_drops_gradients),
    cmocka_unit_test(an_accumulator_is_zero_however_it_is_read),
};
const size_t tl_tests_user_ops_count = sizeof tl_tests_user_ops / sizeof tl_tests_user_ops[0];
