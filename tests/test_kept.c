/* Values made of parameters and constants are kept from micro-batch to micro-batch: each
 * micro-batch computes what it would alone, whatever changed in between. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <tally.h>
#include <tally_extend.h>

#include "tests/support/expect.h"

extern const struct CMUnitTest tl_tests_kept[];
extern const size_t tl_tests_kept_count;

static tl_tensor ones(tl_tape *t, tl_model *m, tl_shape s)
{
    return tl_param(t, m, "w", TL_F32, s, .kind = TL_INIT_ONES);
}

/* A constant is changed in place after it was read. What was made of it and of parameters is not
 * found by what it has become, and has a way back only if another micro-batch has noted what it
 * was.
 */
static void a_constant_changed_in_place(void **unused)
{
    static const bool changes[] = {true, false, true, true, false}, fails[] = {1, 0, 0, 1, 0};
    float k[4] = {10, 20, 30, 40}, got[4], want[4];
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int i = 0; i < 5; i++) {
        tl_tensor w = ones(t, m, TL_DIMS(1, 4)),
                  r = tl_data(t, ((float[]){.5f, .25f, .5f, .25f}), TL_F32, TL_DIMS(4)),
                  x = tl_constant(t, k, TL_F32, TL_DIMS(1, 4)), y = tl_add(t, w, x);
        for (int e = 0; e < 4; e++)
            want[e] = -(k[e] + 1);
        if (changes[i])
            tl_keep(t, tl_rotary_(t, x, r, r, TL_ROTARY_HALF), k, sizeof k);
        tl_keep(t, tl_neg(t, y), got, sizeof got);
        assert_memory_equal(got, want, sizeof got);
        y = tl_sum(t, tl_mul(t, r, y), TL_ALL, false);
        assert_int_equal(tl_backward(t, y, .ragged = true), fails[i] ? TL_EINPLACE : TL_OK);
        if (fails[i])
            expect_failure(t, TL_EINPLACE, "tl_constant");
        tl_tape_reset(t);
    }
    tl_free(t, m);
}

/* Two values of one expression, one of which is changed in place: in each micro-batch alike. */
static void twins_of_which_one_changes(void **unused)
{
    char first[65], hex[65];
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int i = 0; i < 3; i++) {
        tl_tensor x = tl_data(t, ((float[]){1, 2}), TL_F32, TL_DIMS(1, 2)),
                  r = tl_constant(t, ((float[]){.5f, .25f}), TL_F32, TL_DIMS(2)),
                  w = ones(t, m, TL_DIMS(2, 2)), q = tl_scale(t, w, 2), k = tl_scale(t, w, 2);
        tl_tensor turned = tl_rotary_(t, q, r, r, TL_ROTARY_HALF);
        tl_tensor y = tl_mul(t, tl_matmul(t, x, turned), tl_matmul(t, x, k));
        tl_sha256(t, y, i == 0 ? first : hex);
        assert_true(i == 0 || strcmp(first, hex) == 0);
        tl_tensor old = tl_neg(t, q); /* refused in each, too */
        expect_failure(t, TL_ESTALE, "in place");
        assert_true(tl_is_none(old));
        tl_tape_reset(t);
        expect_no_error(t);
    }
    for (int i = 0; i < 3; i++) { /* and with gradients that wait */
        tl_tensor w = ones(t, m, TL_DIMS(2, 2)), q = tl_scale(t, w, 2), k = tl_scale(t, w, 2),
                  r = tl_constant(t, ((float[]){.5f, .25f}), TL_F32, TL_DIMS(2));
        q = tl_rotary_(t, q, r, r, TL_ROTARY_HALF);
        assert_int_equal(tl_backward(t, tl_sum(t, tl_mul(t, q, k), TL_ALL, false)), TL_OK);
        tl_tape_reset(t);
    }
    tl_free(t, m);
}

static void adds_and_turns(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m;
    tl_tensor r = tl_constant(t, ((float[]){.5f, .5f, .5f, .5f}), TL_F32, TL_DIMS(4)),
              q = tl_scale(t, ones(t, ctx, TL_DIMS(1, 4)), 2);
    out[0] = tl_add(t, in[0], q);
    out[1] = tl_rotary_(t, q, r, r, TL_ROTARY_HALF);
    tl_tensor y = tl_add(t, tl_mul(t, in[0], out[1]), out[0]);
    assert_int_equal(tl_backward(t, tl_sum(t, y, TL_ALL, false), .retain = true, .ragged = true),
                     TL_OK);
}

/* A program changes what it has made of parameters in place: no run finds it changed. */
static void what_a_graph_makes_and_changes(void **unused)
{
    (void)unused;
    for (int how = 0; how < 3; how++) { /* called, compiled, in turn */
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_compiled *c = tl_compile(t, adds_and_turns, 2, m);
        for (int i = 0; i < 4; i++) {
            tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(1, 4)), out[2];
            if (how == 1 || (how == 2 && i % 2 == 0))
                assert_int_equal(tl_run(c, &x, 1, out), TL_OK);
            else
                adds_and_turns(t, &x, 1, out, 2, m);
            assert_true(element_of(t, out[0], 0) == 1 + 2);
            assert_true(element_of(t, out[1], 0) == .5 * 2 - .5 * 2);
            assert_true(element_of(t, out[1], 3) == .5 * 2 + .5 * 2);
            tl_tape_reset(t);
        }
        expect_no_error(t);
        tl_free(c, t, m);
    }
}

typedef struct {
    tl_model *m;
    bool assigns; /* it begins with another w, and makes less of it */
} making;

static void assigns_and_makes(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                              void *ctx)
{
    const making *p = ctx;
    (void)n, (void)n_out;
    tl_tensor w = ones(t, p->m, TL_DIMS(1, 1));
    if (p->assigns) {
        const int scope = tl_mode_push(t, TL_NO_GRAD);
        tl_assign(t, w, in[0]);
        tl_mode_pop(t, scope);
    }
    tl_tensor made = tl_scale(t, w, 2);
    out[0] = tl_matmul(t, in[0], p->assigns ? made : tl_neg(t, made));
    assert_int_equal(tl_backward(t, tl_sum(t, out[0], TL_ALL, false), .retain = true), TL_OK);
}

/* While a gradient waits, what calls have made of w is kept. A program that assigns w makes it
 * anew. */
static void what_a_graph_makes_of_what_it_assigns(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    making waits = {m, false}, then = {m, true};
    tl_compiled *c = tl_compile(t, assigns_and_makes, 1, &then);
    for (int i = 1; i < 4; i++) {
        tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(1, 1), i), out;
        assigns_and_makes(t, &x, 1, &out, 1, &waits);
        assert_true(element_of(t, out, 0) == -i * 2 * (i == 1 ? 1 : i - 1));
        assert_int_equal(tl_run(c, &x, 1, &out), TL_OK);
        assert_true(element_of(t, out, 0) == i * 2 * i);
        tl_grad(t, tl_model_find(m, "w"));
        expect_failure(t, TL_EUSAGE, "have been changed since");
        tl_tape_reset(t);
    }
    tl_free(c, t, m);
}

/* What is detached and then changed in place may lie where another value of that expression does,
 * from the second micro-batch on: that one stays what it is. */
static void what_is_detached_and_changed(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int i = 0; i < 4; i++) {
        tl_tensor w = ones(t, m, TL_DIMS(1, 4)), y = tl_scale(t, w, 2),
                  x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(1, 4)),
                  r = tl_data(t, ((float[]){.5f, .25f, .5f, .25f}), TL_F32, TL_DIMS(4));
        tl_tensor other = tl_rotary_(t, tl_detach(t, tl_scale(t, w, 2)), r, r, TL_ROTARY_HALF);
        assert_true(element_of(t, other, 0) != 2);
        assert_true(element_of(t, y, 0) == 2);
        assert_int_equal(tl_backward(t, tl_sum(t, tl_mul(t, x, y), TL_ALL, false)), TL_OK);
        tl_tape_reset(t);
        expect_no_error(t);
    }
    tl_free(t, m);
}

typedef struct {
    int64_t k;
} wide_attrs;
static const tl_attr wide_schema[] = {{"k", offsetof(wide_attrs, k), TL_ATTR_I64},
                                      {NULL, 0, TL_ATTR_I64}};

static tl_status same(tl_call *c)
{
    c->out[0] = tl_array_make(TL_F32, &TL_DIMS(2), NULL);
    return TL_OK;
}

static tl_status adds_last_digit(tl_call *c)
{
    const wide_attrs *a = c->attrs;
    for (int i = 0; i < 2; i++)
        tl_array_put(&c->out[0], i, tl_array_get(c->in[0], i) + (double)(a->k % 10));
    return TL_OK;
}

static void passes(tl_vjp *g) { g->dx[0] = g->dy[0]; }

/* 2^53 and 2^53 + 1 are one double. */
static void attributes_beyond_a_double(void **unused)
{
    static const tl_op op = {.name = "digit",
                             .n_in = 1,
                             .n_out = 1,
                             .attr = wide_schema,
                             .attr_size = sizeof(wide_attrs),
                             .shape = same,
                             .forward = adds_last_digit,
                             .vjp = passes};
    const int64_t large = (int64_t)1 << 53;
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int i = 0; i < 2; i++) {
        tl_tensor w = ones(t, m, TL_DIMS(2)), y[2];
        for (int k = 0; k < 2; k++) {
            y[k] = tl_apply1(TL_AT(t), &op, &(wide_attrs){large + k}, &w, 1);
            assert_true(element_of(t, y[k], 0) == 1 + (double)((large + k) % 10));
        }
        tl_tensor x = tl_data(t, ((float[]){1, 2}), TL_F32, TL_DIMS(2));
        y[0] = tl_mul(t, x, tl_add(t, y[0], y[1]));
        assert_int_equal(tl_backward(t, tl_sum(t, y[0], TL_ALL, false)), TL_OK);
        tl_tape_reset(t);
    }
    tl_free(t, m);
}

/* A parameter is taken out of the model, and another one of its name put in. */
static void another_parameter_of_that_name(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    const uint32_t mark = tl_model_mark(m);
    for (int i = 0; i < 2; i++) {
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(2), .kind = TL_INIT_UNIFORM, .scale = 1);
        tl_tensor y = tl_scale(t, w, 2), x = tl_data(t, ((float[]){1, 2}), TL_F32, TL_DIMS(2));
        assert_true(element_of(t, y, 0) == 2 * element_of(t, w, 0));
        if (i == 1)
            break;
        assert_int_equal(tl_backward(t, tl_sum(t, tl_mul(t, x, y), TL_ALL, false)), TL_OK);
        tl_tape_reset(t);
        tl_model_rollback(m, mark);
        const float two[2] = {2, 2};
        tl_tensor other = ones(t, m, TL_DIMS(2));
        assert_int_equal(tl_write(m, other, two, sizeof two), TL_OK);
    }
    tl_free(t, m);
}

static tl_status adds_to_both(tl_call *c)
{
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            tl_array_put(c->in[i], k, tl_array_get(c->in[i], k) + 100);
    return TL_OK;
}

/* An op changes two kept values in place: neither is found as it was. */
static void two_that_change(void **unused)
{
    static const tl_op op = {.name = "both",
                             .n_in = 2,
                             .n_out = 1,
                             .changes = 2,
                             .traits = TL_MUTATES | TL_NONDIFF,
                             .shape = same,
                             .forward = adds_to_both};
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int i = 0; i < 4; i++) {
        tl_tensor w = ones(t, m, TL_DIMS(2)), x = tl_data(t, ((float[]){1, 2}), TL_F32, TL_DIMS(2)),
                  in[] = {tl_scale(t, w, 2), tl_scale(t, w, 3)};
        tl_apply1(TL_AT(t), &op, NULL, in, 2);
        tl_tensor again = tl_scale(t, w, 3);
        assert_true(element_of(t, again, 0) == 3);
        tl_tensor loss = tl_sum(t, tl_mul(t, x, again), TL_ALL, false);
        assert_int_equal(tl_backward(t, loss, .ragged = true), TL_OK);
        tl_tape_reset(t);
    }
    tl_free(t, m);
}

const struct CMUnitTest tl_tests_kept[] = {
    cmocka_unit_test(two_that_change),
    cmocka_unit_test(a_constant_changed_in_place),
    cmocka_unit_test(twins_of_which_one_changes),
    cmocka_unit_test(what_a_graph_makes_and_changes),
    cmocka_unit_test(what_a_graph_makes_of_what_it_assigns),
    cmocka_unit_test(what_is_detached_and_changed),
    cmocka_unit_test(attributes_beyond_a_double),
    cmocka_unit_test(another_parameter_of_that_name),
};
const size_t tl_tests_kept_count = sizeof tl_tests_kept / sizeof tl_tests_kept[0];
