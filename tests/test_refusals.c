/* A gradient is never lost in silence: what backward and the op interface refuse, and a user's op
 * that does not keep its promises. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally.h>
#include <tally_extend.h>

#include "tests/support/expect.h"

extern const struct CMUnitTest tl_tests_refusals[];
extern const size_t tl_tests_refusals_count;

static tl_tensor marked(tl_tape *t)
{
    tl_tensor x = tl_data(t, ((float[]){1, 2, 3}), TL_F32, TL_DIMS(3));
    tl_require_grad(t, x);
    return x;
}

static tl_tensor total(tl_tape *t, tl_tensor x) { return tl_sum(t, x, TL_ALL, false); }

/* ---- parameters that are not reached ---- */

static void an_unreached_parameter_is_named(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.5);
    tl_tensor a = tl_param(t, m, "first", TL_F32, TL_SCALAR, TL_INIT_ONES, 1);
    tl_tensor b = tl_param(t, m, "second.bias", TL_F32, TL_SCALAR, TL_INIT_ONES, 1);
    (void)unused;
    assert_int_equal(tl_backward(t, tl_detach(t, tl_mul(t, a, b))),
                     TL_ENOGRAD); /* a detached loss reaches none */
    expect_failure_both(t, TL_ENOGRAD, "depends on no parameter", "detached");
    assert_int_equal(tl_backward(t, tl_mul(t, a, tl_detach(t, b))), TL_ENOGRAD);
    assert_int_equal(tl_step(o, t), TL_ENOGRAD); /* and no step is taken */
    expect_failure_both(t, TL_ENOGRAD, "'second.bias'", ".partial");
    assert_int_equal(tl_opt_steps(o), 0);
    assert_int_equal(tl_backward(t, tl_square(t, a), .partial = true), TL_OK);
    assert_true(tl_item(t, tl_grad(t, a)) == 2 && tl_is_none(tl_grad(t, b)));
    tl_grad_clear(t);
    assert_int_equal(tl_model_freeze(m, "second", true), 1);
    assert_int_equal(tl_backward(t, tl_mul(t, tl_square(t, a), b)), TL_OK);
    assert_true(tl_is_none(tl_grad(t, b)));
    assert_int_equal(tl_step(o, t), TL_OK);
    assert_true(tl_item(t, a) == 0 && tl_item(t, b) == 1);
    assert_int_equal(tl_model_freeze(m, "", false), 2);
    tl_tape_reset(t);
    assert_int_equal(tl_backward(t, tl_square(t, a)), TL_ENOGRAD);
    expect_failure_both(t, TL_ENOGRAD, "'second.bias'", "freeze");
    tl_free(o, t, m);
}

static void a_step_without_gradients(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1), *other = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.5), *theirs = tl_sgd_new(other, .lr = 0.5);
    tl_tensor a = tl_param(t, m, "a", TL_F32, TL_SCALAR, TL_INIT_ONES, 1);
    (void)unused;
    assert_int_equal(tl_step(o, t), TL_EUSAGE);
    expect_failure_both(t, TL_EUSAGE, "tl_step", "tl_backward");
    tl_backward(t, tl_square(t, a));
    assert_int_equal(tl_step(o, t), TL_OK);
    assert_int_equal(tl_step(o, t), TL_EUSAGE); /* the first consumed them */
    expect_failure_both(t, TL_EUSAGE, "tl_step", "gradient");
    tl_tape_reset(t);
    tl_backward(t,
                tl_square(t, a)); /* in scopes that could leave half a step, or have no numbers */
    int mode = tl_mode_push(t, TL_ANOMALY);
    assert_int_equal(tl_step(o, t), TL_EUSAGE);
    tl_mode_pop(t, mode);
    expect_failure_both(t, TL_EUSAGE, "a TL_ANOMALY scope is open", "tl_mode_pop");
    mode = tl_mode_push(t, TL_TRACE);
    assert_int_equal(tl_step(o, t), TL_ETRACED);
    tl_mode_pop(t, mode);
    expect_failure_both(t, TL_ETRACED, "a TL_TRACE scope is open", "contents");
    assert_int_equal(tl_opt_steps(o), 1);
    tl_grad_clear(t);
    tl_tape_reset(t);
    tl_backward(t, tl_add(t, tl_square(t, a), tl_scalar(t, TL_F32, 1)));
    assert_int_not_equal(tl_step(theirs, t), TL_OK); /* an optimizer of another model */
    assert_true(tl_item(t, a) == 0 || tl_failed(t));
    tl_free(o, theirs, t, m, other);
}

/* ---- values changed after they were saved ---- */

static void a_saved_value_changed_in_place(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor p = tl_param(t, m, "p", TL_F32, TL_DIMS(3), TL_INIT_ONES, 1), x = marked(t),
              y = total(t, tl_mul(t, p, x));
    const float other[3] = {7, 8, 9};
    (void)unused;
    assert_int_equal(tl_write(m, p, other, sizeof other), TL_OK);
    assert_int_equal(tl_backward(t, y), TL_EINPLACE);
    expect_failure_both(t, TL_EINPLACE, "mul", "changed in place");
    tl_tape_reset(t);
    x = marked(t);
    y = total(t, tl_add(t, p, x)); /* add saves nothing: no harm done */
    tl_write(m, p, other, sizeof other);
    assert_int_equal(tl_backward(t, y), TL_OK);
    tl_tape_reset(t);
    x = marked(t);
    tl_tensor wide = tl_data(t, ((double[]){1, 1, 1}), TL_F64,
                             TL_DIMS(3)); /* changed on the tape */
    y = total(t, tl_mul(t, tl_cast(t, x, TL_F64), wide));
    tl_sum_to(t, tl_detach(t, x), TL_DIMS(3), wide);
    assert_int_equal(tl_backward(t, y, .partial = true), TL_EINPLACE);
    expect_failure_both(t, TL_EINPLACE, "input 1 of mul", "by sum_to (tests/test_refusals.c");
    tl_tape_reset(t);
    x = marked(t);
    assert_true(tl_is_none(tl_sum_to(t, x, TL_DIMS(3), x))); /* a leaf that wants a gradient */
    expect_failure_both(t, TL_EINPLACE, "sum_to", "leaf");
    assert_int_equal(tl_assign(t, p, tl_scale(t, p, 2)), TL_OK);
    tl_free(t, m);
}

/* An op of a table, rows of logits and the like (3, 2), by whole numbers (3), or by BOOL. */
enum { BY_BOOL = 10 };
static tl_tensor by_ids(tl_tape *t, int kind, tl_tensor x, tl_tensor ids)
{
    const tl_tensor column = tl_reshape(t, ids, TL_DIMS(3, 1));
    switch (kind) {
    case 0: return tl_embedding(t, x, ids);
    case 1: return tl_index_select(t, x, 0, ids);
    case 2: return tl_gather(t, x, column, 1);
    case 3: return tl_scatter_add_dim(t, tl_slice(t, x, 1, 0, 1, 1), column, 0, TL_DIMS(2, 1));
    case 4: return tl_cross_entropy(t, x, ids, TL_SUM);
    case 5: return tl_nll(t, x, ids, TL_SUM);
    case 6: return tl_embedding_padded(t, x, ids, 2);
    case 7: return tl_embedding_acc64(t, x, ids);
    case 8:
        x = tl_reshape(t, x, TL_DIMS(1, 1, 3, 2));
        return tl_attention(t, x, x, x, .full = true, .key_start = tl_slice(t, ids, 0, 0, 1, 1));
    case 9:
        x = tl_reshape(t, x, TL_DIMS(1, 1, 3, 2));
        return tl_attention(t, x, x, x, .full = true, .key_end = tl_slice(t, ids, 0, 0, 1, 1));
    default: return tl_where(t, column, x, tl_scalar(t, TL_F32, 0));
    }
}

static void ids_changed_in_place(void **unused)
{
    static const int64_t first[3] = {1, 0, 1}, then[3] = {0, 1, 0};
    static const bool first_bool[3] = {true, false, true}, then_bool[3] = {false, true, false};
    (void)unused;
    for (int kind = 0; kind <= BY_BOOL; kind++) {
        const bool is = kind == BY_BOOL;
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4, 5, 6}), TL_F32, TL_DIMS(3, 2)),
                  ids = tl_buffer(t, m, "ids", is ? TL_BOOL : TL_I64, TL_DIMS(3));
        const size_t bytes = is ? sizeof first_bool : sizeof first;
        tl_require_grad(t, x);
        tl_write(m, ids, is ? (const void *)first_bool : first, bytes);
        tl_tensor y = total(t, by_ids(t, kind, x, ids));
        assert_int_equal(tl_write(m, ids, is ? (const void *)then_bool : then, bytes), TL_OK);
        if (tl_backward(t, y) != TL_EINPLACE)
            fail_msg("kind %d: %s", kind, tl_error(t));
        expect_failure_both(t, TL_EINPLACE, "changed in place", "");
        tl_free(t, m);
    }
}

/* ---- a user's op ---- */

static tl_status like_first(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

static tl_status copy_first(tl_call *c)
{
    tl_array_copy(&c->out[0], c->in[0]);
    return TL_OK;
}

static void gives_nothing(tl_vjp *g) { (void)g; }
static void gives_wrong_shape(tl_vjp *g)
{
    g->dx[0] = tl_reshape(g->t, tl_slice(g->t, g->dy[0], 0, 0, 2, 1), TL_DIMS(2, 1));
}
static void gives_integers(tl_vjp *g) { g->dx[0] = tl_cast(g->t, g->dy[0], TL_I64); }
static void gives_stale(tl_vjp *g)
{
    g->dx[0] = (tl_tensor){g->dy[0].owner, g->dy[0].index, g->dy[0].generation + 9};
}
static void reads_undeclared(tl_vjp *g) { g->dx[0] = tl_mul(g->t, g->dy[0], g->in[0]); }
static void forgets_accumulator(tl_vjp *g) { g->dx[0] = tl_neg(g->t, g->dy[0]); }
static void calls_wrongly(tl_vjp *g) { g->dx[0] = tl_reshape(g->t, g->dy[0], TL_DIMS(5)); }

/* As if by another thread, which works on the same model. */
static void model_fails(tl_vjp *g)
{
    tl_fail(tl_error_record(tl_tape_model(g->t)), TL_EUSAGE, "another thread's mistake");
    g->dx[0] = tl_scale(g->t, g->dy[0], 2);
}

#define OP(id, ...)                                      \
    static const tl_op op_##id = {.name = #id,           \
                                  .n_in = 1,             \
                                  .n_out = 1,            \
                                  .shape = like_first,   \
                                  .forward = copy_first, \
                                  __VA_ARGS__}
OP(no_vjp, .saves_in = 1);
OP(not_differentiable, .traits = TL_NONDIFF);
OP(nothing, .vjp = gives_nothing);
OP(wrong_shape, .vjp = gives_wrong_shape);
OP(integers, .vjp = gives_integers);
OP(stale, .vjp = gives_stale);
OP(undeclared, .vjp = reads_undeclared);
OP(forgetful, .vjp = forgets_accumulator, .folds = 1);
OP(wrongly, .vjp = calls_wrongly);
OP(elsewhere, .vjp = model_fails);

static tl_tensor apply(tl_tape *t, const tl_op *op, tl_tensor x)
{
    return tl_apply1(TL_AT(t), op, NULL, &x, 1);
}

static void an_op_without_derivative_refuses(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = marked(t), plain = tl_data(t, ((float[]){1, 2, 3}), TL_F32, TL_DIMS(3));
    (void)unused;
    assert_true(tl_is_none(apply(t, &op_no_vjp, x)));
    expect_failure_both(t, TL_ENOGRAD, "no_vjp: has no derivative", "tl_detach");
    assert_true(tl_is_none(apply(t, &op_no_vjp, tl_neg(t, x))));
    expect_failure_both(t, TL_ENOGRAD, "no_vjp", "needs a gradient");
    assert_false(tl_is_none(apply(t, &op_no_vjp, plain)));
    assert_false(tl_is_none(apply(t, &op_no_vjp, tl_detach(t, x))));
    int s = tl_mode_push(t, TL_NO_GRAD);
    assert_false(tl_is_none(apply(t, &op_no_vjp, x)));
    tl_mode_pop(t, s);
    assert_int_equal(tl_backward(t, total(t, apply(t, &op_not_differentiable, x))),
                     TL_ENOGRAD); /* it said so */
    expect_failure_both(t, TL_ENOGRAD, "tl_backward", "output 0 of not_differentiable");
    tl_free(t);
}

/* (x) -> 2x, 3x, argmax(x); the second carries no gradient, the third is a number. */
static tl_status split_shape(tl_call *c)
{
    c->out[0] = c->out[1] = *c->in[0];
    c->out[2] = tl_array_make(TL_I64, &(tl_shape){.ndim = 0}, NULL);
    return TL_OK;
}

static tl_status split_forward(tl_call *c)
{
    const float *x = c->in[0]->data;
    *(int64_t *)c->out[2].data = 0;
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++) {
        ((float *)c->out[0].data)[i] = 2 * x[i];
        ((float *)c->out[1].data)[i] = 3 * x[i];
    }
    return TL_OK;
}

static void split_vjp(tl_vjp *g) { g->dx[0] = tl_scale(g->t, g->dy[0], 2); }

static const tl_op op_split = {.name = "split",
                               .n_in = 1,
                               .n_out = 3,
                               .shape = split_shape,
                               .forward = split_forward,
                               .vjp = split_vjp,
                               .nodiff_out = TL_BIT(1)};

/* What a program does with the output that carries none. */
enum { ALONE, ADDED, DEEP, VIEWED, TARGETED, DETACHED, NOT_RECORDED, UNUSED, NUMBER, USES };

static tl_tensor uses_split(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    tl_tensor out[3], y;
    int use = *(const int *)ctx, mode = tl_mode_push(t, use == NOT_RECORDED ? TL_NO_GRAD : 0);
    (void)n;
    tl_apply(TL_AT(t), &op_split, NULL, in, 1, out);
    tl_mode_pop(t, mode);
    y = use == NOT_RECORDED ? in[0] : out[0];
    switch (use) {
    case ALONE: return total(t, out[1]);
    case DEEP: out[1] = tl_exp(t, tl_scale(t, tl_sigmoid(t, out[1]), 2)); break;
    case VIEWED: out[1] = tl_reshape(t, tl_reshape(t, out[1], TL_DIMS(3, 1)), TL_DIMS(3)); break;
    case DETACHED: out[1] = tl_detach(t, out[1]); break;
    case UNUSED: return total(t, y);
    case NUMBER: return total(t, tl_scale(t, tl_add(t, y, tl_cast(t, out[2], TL_F32)), 2));
    default: break;
    }
    return total(t, tl_add(t, y, out[1]));
}

static void uses_split_program(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m,
                               void *ctx)
{
    (void)m;
    tl_require_grad(t, in[0]);
    out[0] = uses_split(t, in, n, ctx);
    tl_backward(t, out[0]);
}

static void nothing_goes_in_silence_through_an_output_without_gradient(void **unused)
{
    (void)unused;
    for (int use = 0; use < USES; use++)
        for (int how = 0; how < 3; how++) { /* backward, functional gradients, compiled */
            tl_tape *t = tl_tape_new(NULL);
            bool refused = use <= TARGETED;
            tl_tensor x = how == 2 ? tl_data(t, ((float[]){1, 2, 3}), TL_F32, TL_DIMS(3))
                                   : marked(t),
                      dx = TL_NONE;
            if (how == 2) {
                tl_graph *g = tl_trace(t, uses_split_program, &x, 1, 1, &use);
                tl_free(g);
            } else if (how == 1) {
                tl_gradients(t, uses_split(t, &x, 1, &use), &x, 1, TL_NONE, &dx);
            } else {
                tl_backward(t, uses_split(t, &x, 1, &use));
                dx = tl_grad(t, x);
            }
            if (refused != tl_failed(t))
                fail_msg("use %d, way %d: %s", use, how, tl_error(t));
            if (refused) {
                assert_int_equal(tl_error_status(t), TL_ENOGRAD);
                assert_non_null(strstr(tl_error(t), "output 1 of split (tests/test_refusals.c:"));
                assert_non_null(strstr(tl_error(t), "tl_detach"));
                tl_error_clear(t);
                assert_true(tl_is_none(how == 0 ? tl_grad(t, x) : dx)); /* nothing has begun */
            }
            tl_free(t);
        }
}

/* The derivative by the output itself does not go through it. */
static void an_output_without_gradient_as_a_target(void **unused)
{
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = marked(t), out[3], dx;
    tl_apply(TL_AT(t), &op_split, NULL, &x, 1, out);
    tl_gradients(t, total(t, tl_scale(t, out[1], 5)), &out[1], 1, TL_NONE, &dx);
    assert_true(element_of(t, dx, 0) == 5 && element_of(t, dx, 2) == 5);
    tl_free(t);
}

/* The library's own: running totals of losses. */
static void running_totals_carry_no_gradient(void **unused)
{
    (void)unused;
    static const char *const names[] = {"cross_entropy", "nll"};
    for (int i = 0; i < 2; i++) {
        tl_tape *t = tl_tape_new(NULL);
        struct {
            int64_t reduction, ignore_index;
            bool ignore;
            double smoothing;
            int64_t classes;
        } a = {TL_SUM, 0, false, 0, 0};
        assert_int_equal(sizeof a, tl_op_find(names[i])->attr_size);
        tl_tensor z = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(2, 2)), out[2],
                  y = tl_data(t, ((int64_t[]){0, 1}), TL_I64, TL_DIMS(2));
        tl_require_grad(t, z);
        tl_apply(TL_AT(t), tl_op_find(names[i]), &a, (tl_tensor[]){z, y, TL_NONE, TL_NONE}, 2 + 2,
                 out);
        assert_int_equal(tl_backward(t, out[0]), TL_ENOGRAD);
        expect_failure_both(t, TL_ENOGRAD, "output 0 of ", names[i]);
        tl_free(t);
    }
}

static void a_vjp_that_breaks_its_promise(void **unused)
{
    static const struct {
        const tl_op *op;
        tl_status want;
        const char *word;
    } cases[] = {
        {&op_nothing, TL_ENOGRAD, "gives no gradient for its input 0"},
        {&op_wrong_shape, TL_ESHAPE, "[2, 1]"},
        {&op_integers, TL_EDTYPE, "I64"},
        {&op_stale, TL_ENOGRAD, "input 0"},
        {&op_undeclared, TL_ESTALE, "freed"},
        {&op_forgetful, TL_EUSAGE, "did not continue the accumulator of input 0"},
        {&op_wrongly, TL_ESHAPE, "reshape"},
    };
    (void)unused;
    for (int interior = 0; interior < 2; interior++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            if (interior && cases[i].op == &op_forgetful)
                continue; /* only leaves have accumulators */
            if (!interior && cases[i].op == &op_undeclared)
                continue; /* leaves are never freed */
            tl_tape *t = tl_tape_new(NULL);
            tl_tensor x = marked(t), y = apply(t, cases[i].op, interior ? tl_scale(t, x, 2) : x);
            tl_tensor z = total(t, tl_scale(t, y, 2));
            if (tl_backward(t, z) == TL_OK)
                fail_msg("%s goes unnoticed", cases[i].op->name);
            if (tl_error_status(t) != cases[i].want || strstr(tl_error(t), cases[i].word) == NULL)
                fail_msg("%s: %s with '%s' wanted, got %s: %s", cases[i].op->name,
                         tl_status_name(cases[i].want), cases[i].word,
                         tl_status_name(tl_error_status(t)), tl_error(t));
            assert_true(tl_is_none(tl_grad(t, x)));
            tl_error_clear(t);
            assert_true(tl_is_none(tl_grad(t, x))); /* nothing of the half is left */
            tl_free(t);
        }
}

/* What fails on the model while a tape is in a backward ends that as well. */
static void a_model_that_fails_in_the_middle(void **unused)
{
    (void)unused;
    for (int way = 0; way < 4; way++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(3), TL_INIT_ONES, 1), dx;
        tl_tensor x = way & 1 ? tl_scale(t, w, 3) : w;
        tl_tensor y = total(t, tl_mul(t, apply(t, &op_elsewhere, x), tl_exp(t, x)));
        const tl_status s = way & 2 ? tl_gradients(t, y, &w, 1, TL_NONE, &dx) : tl_backward(t, y);
        assert_int_equal(s, TL_EUSAGE);
        assert_non_null(strstr(tl_error(t), "another thread's mistake"));
        tl_error_clear(t);
        assert_true(tl_is_none(tl_grad(t, w))); /* nothing of the half is left */
        tl_free(t, m);
    }
}

/* ---- modes of backward ---- */

/* How many inputs an op has is said by it, not by what the engine's loops can hold. */
static void another_number_of_inputs(void **unused)
{
    static const struct {
        int n;
        const char *says;
    } cases[] = {{9, "add: takes 2 inputs, given 9"}, {0, "add: takes 2 inputs, given 0"}};
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, ((float[]){1, 2, 3}), TL_F32, TL_DIMS(3)),
              in[9] = {x, x, x, x, x, x, x, x, x};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tl_apply1(TL_AT(t), &tl_op_add, NULL, in, cases[i].n);
        assert_int_equal(tl_error_status(t), TL_EUSAGE);
        assert_non_null(strstr(tl_error(t), cases[i].says));
        tl_error_clear(t);
    }
    tl_concat(t, in, -1, 0);
    assert_non_null(strstr(tl_error(t), "concat: -1 is not a count"));
    tl_error_clear(t);
    tl_free(t);
}

/* Nodes remember their mode: a scope around the call of tl_backward is not theirs. */
static void backward_runs_in_the_nodes_mode(void **unused)
{
    char hex[2][65];
    const int64_t n = 700;
    (void)unused;
    for (int fast = 0; fast < 2; fast++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor a = tl_param(t, m, "a", TL_F32, TL_DIMS(n, 9), TL_INIT_NORMAL, 1),
                  b = tl_param(t, m, "b", TL_F32, TL_DIMS(9, 40), TL_INIT_NORMAL, 1);
        tl_tensor y = total(t, tl_tanh(t, tl_matmul(t, a, b)));
        int s = fast ? tl_mode_push(t, TL_FAST) : 0;
        assert_int_equal(tl_backward(t, y), TL_OK); /* b's gradient: chains of 700 */
        if (fast)
            tl_mode_pop(t, s);
        assert_int_equal(tl_sha256(t, tl_grad(t, b), hex[fast]), TL_OK);
        assert_int_equal(tl_mode(t), TL_INVARIANT);
        tl_free(t, m);
    }
    assert_string_equal(hex[0], hex[1]);
}

static void gradients_that_nobody_asked_for(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = marked(t), ids = tl_data(t, ((int64_t[]){1}), TL_I64, TL_DIMS(1)),
              y = tl_square(t, x);
    (void)unused;
    assert_true(tl_is_none(tl_grad(t, x))); /* none yet is an answer, not an error */
    assert_true(tl_is_none(tl_grad(t, y)));
    assert_false(tl_failed(t));
    assert_int_equal(tl_require_grad(t, ids), TL_EUSAGE);
    expect_failure_both(t, TL_EUSAGE, "tl_require_grad", "floating leaf");
    assert_int_equal(tl_require_grad(t, y), TL_EUSAGE);
    expect_failure_both(t, TL_EUSAGE, "tl_require_grad", "leaf");
    assert_int_equal(tl_backward(t, tl_argmax(t, x, 0, false)), TL_ENOGRAD);
    expect_failure_both(t, TL_ENOGRAD, "tl_backward", "no parameter");
    assert_int_equal(tl_backward(t, y, .cotangent = tl_zeros(t, TL_F32, TL_DIMS(2))), TL_ESHAPE);
    expect_failure_both(t, TL_ESHAPE, "[2] F32", "[3] F32");
    assert_int_equal(tl_backward(t, y), TL_ESHAPE);
    expect_failure_both(t, TL_ESHAPE, "[3]", "one element");
    tl_free(t);
}

/* ---- recorders ---- */

static void never(void) { fail(); }

/* The first callback that is missing is told; a tape stays without that recorder. */
static void a_recorder_has_every_callback(void **unused)
{
    enum { CALLBACKS = sizeof(tl_recorder) / sizeof(void (*)(void)) };
    void (*callback[CALLBACKS + 1])(void) = {NULL};
    tl_recorder r;
    char says[64];
    tl_tape *bare = tl_tape_new(NULL);
    (void)unused;
    tl_record_with(bare, NULL, NULL);
    expect_failure(bare, TL_EUSAGE, "tl_record_with: r is NULL");
    tl_free(bare);
    for (int i = 0; i <= CALLBACKS; callback[i++] = never) {
        tl_tape *t = tl_tape_new(NULL);
        memcpy(&r, callback, sizeof r);
        tl_record_with(t, &r, NULL);
        assert_int_equal(tl_traced(t), i == CALLBACKS);
        if (i < CALLBACKS) {
            snprintf(says, sizeof says, "tl_record_with: callback %d of %d", i, (int)CALLBACKS);
            expect_failure(t, TL_EUSAGE, says);
            assert_int_equal(tl_mode(t) & TL_TRACE, 0);
            assert_true(tl_item(t, total(t, marked(t))) == 6);
        }
        tl_free(t);
    }
}

static tl_tensor no_source(void *ctx, tl_at at, const char *who, tl_source kind, const void *data,
                           tl_dtype dtype, tl_shape shape)
{
    (void)ctx, (void)at, (void)who, (void)kind, (void)data, (void)dtype, (void)shape;
    return TL_NONE;
}
static tl_status no_contents(void *ctx, tl_at at, tl_tensor x, const char *who)
{
    (void)ctx, (void)at, (void)x, (void)who;
    return TL_ETRACED;
}
static bool not_backward(void *ctx, tl_at at, tl_tensor y, const tl_backward_options *o,
                         tl_status *s)
{
    (void)ctx, (void)at, (void)y, (void)o, (void)s;
    return false;
}
static tl_tensor no_accumulator(void *ctx, tl_tape *t, const tl_array *a, uint32_t leaf,
                                uint32_t use)
{
    (void)ctx, (void)t, (void)a, (void)leaf, (void)use;
    return TL_NONE;
}

static int64_t no_change(void *ctx, tl_tape *t, tl_tensor x)
{
    (void)ctx, (void)t, (void)x;
    return -1;
}
static void nothing_to_clear(void *ctx, tl_tape *t) { (void)ctx, (void)t; }

/* What a recorder refuses without an error on the tape is an error all the same. */
static void a_recorder_need_not_say_why(void **unused)
{
    void (*callback[sizeof(tl_recorder) / sizeof(void (*)(void))])(void);
    tl_recorder r;
    (void)unused;
    for (size_t i = 0; i < sizeof callback / sizeof *callback; i++)
        callback[i] = never;
    memcpy(&r, callback, sizeof r);
    r.source = no_source;
    r.read = no_contents;
    r.backward = not_backward;
    r.accumulator = no_accumulator;
    r.last_change = no_change;
    r.grad_clear = nothing_to_clear;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_record_with(t, &r, NULL);
    assert_true(tl_is_none(tl_data(t, ((float[]){1}), TL_F32, TL_DIMS(1))));
    expect_failure(t, TL_EUSAGE, "tl_data: the recorder refuses it");
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(1), .kind = TL_INIT_ONES);
    tl_item(t, tl_tanh(t, w));
    expect_failure(t, TL_ETRACED, "tl_item: the recorder refuses it");
    tl_backward(t, tl_mul(t, w, tl_fill(t, TL_F32, TL_DIMS(1), 2)));
    expect_failure(t, TL_EUSAGE, "the recorder gives no accumulator");
    tl_free(t, m);
}

const struct CMUnitTest tl_tests_refusals[] = {
    cmocka_unit_test(a_recorder_has_every_callback),
    cmocka_unit_test(a_recorder_need_not_say_why),
    cmocka_unit_test(an_unreached_parameter_is_named),
    cmocka_unit_test(a_step_without_gradients),
    cmocka_unit_test(a_saved_value_changed_in_place),
    cmocka_unit_test(ids_changed_in_place),
    cmocka_unit_test(an_op_without_derivative_refuses),
    cmocka_unit_test(nothing_goes_in_silence_through_an_output_without_gradient),
    cmocka_unit_test(an_output_without_gradient_as_a_target),
    cmocka_unit_test(running_totals_carry_no_gradient),
    cmocka_unit_test(a_vjp_that_breaks_its_promise),
    cmocka_unit_test(a_model_that_fails_in_the_middle),
    cmocka_unit_test(another_number_of_inputs),
    cmocka_unit_test(backward_runs_in_the_nodes_mode),
    cmocka_unit_test(gradients_that_nobody_asked_for),
};
const size_t tl_tests_refusals_count = sizeof tl_tests_refusals / sizeof tl_tests_refusals[0];
