/* Programs of several parts - backward, step, backward, step: traced, they are what they are called, bit for bit, whoever steps, however
 * often each parameter is used in each part, and whatever is left unconsumed at the end. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include <tally.h>

extern const struct CMUnitTest tl_tests_graph_parts[];
extern const size_t tl_tests_graph_parts_count;

enum { ROWS = 6, WIDE = 5 };

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *a, *b;
    tl_dtype dtype;
} fixture;

static tl_tensor layer(tl_tape *t, fixture *f, const char *name, tl_tensor x)
{
    tl_tensor w = tl_param(t, f->m, name, f->dtype, TL_DIMS(WIDE, WIDE), .kind = TL_INIT_UNIFORM, .scale = 0.7);
    return tl_tanh(t, tl_matmul(t, x, w));
}

static tl_tensor loss_of(tl_tape *t, fixture *f, tl_tensor x)
{
    tl_tensor h = layer(t, f, "d.one", layer(t, f, "d.one", x)); /* twice */
    return tl_mean(t, tl_square(t, tl_cast(t, layer(t, f, "d.two", h), TL_F32)), TL_ALL, false);
}

/* ---- programs; every one gives two numbers ---- */

static void two_steps(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    (void)n_in, (void)n_out;
    for (int i = 0; i < 2; i++) {
        out[i] = loss_of(t, f, in[i]);
        tl_backward(t, out[i]);
        tl_step(f->a, t);
    }
}

static void two_optimizers(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    (void)n_in, (void)n_out;
    for (int i = 0; i < 2; i++) {
        out[i] = loss_of(t, f, in[i]);
        tl_backward(t, out[i]);
        tl_step(i == 0 ? f->a : f->b, t);
    }
}

/* One network learns to tell real rows from made ones - two uses of its parameters -, the other to make them - one use. */
static void adversaries(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    (void)n_in, (void)n_out;
    tl_tensor made = layer(t, f, "g.two", layer(t, f, "g.one", in[0]));
    tl_tensor real = layer(t, f, "d.one", in[1]), fake = layer(t, f, "d.one", tl_detach(t, made));
    out[0] = tl_sub(t, tl_mean(t, tl_cast(t, fake, TL_F32), TL_ALL, false), tl_mean(t, tl_cast(t, real, TL_F32), TL_ALL, false));
    tl_backward(t, out[0], .partial = true);
    tl_step(f->a, t);
    out[1] = tl_neg(t, tl_mean(t, tl_cast(t, layer(t, f, "d.one", made), TL_F32), TL_ALL, false));
    tl_backward(t, out[1], .partial = true);
    tl_step(f->b, t);
}

static void two_backwards_before_a_step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    (void)n_in, (void)n_out;
    for (int i = 0; i < 2; i++) {
        out[i] = loss_of(t, f, in[i]);
        tl_backward(t, out[i]);
    }
    tl_step(f->a, t);
}

/* The last gradients stay: the next call begins with them. */
static void a_backward_after_the_step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    two_steps(t, in, n_in, out, n_out, f);
    tl_backward(t, loss_of(t, f, in[0]));
    out[0] = tl_sum(t, tl_grad(t, tl_model_find(f->m, "d.one")), TL_ALL, false);
}

/* Another number of uses, and accumulators of another type, in each part. */
static void sums_of_two_kinds(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    (void)n_in, (void)n_out;
    tl_tensor w = tl_param(t, f->m, "w", TL_F32, TL_DIMS(WIDE, WIDE), .kind = TL_INIT_UNIFORM, .scale = 0.7);
    tl_tensor x = tl_cast(t, in[0], TL_F32), y = tl_cast(t, in[1], TL_F32);
    out[0] = tl_mean(t, tl_square(t, tl_matmul(t, x, w)), TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(f->a, t);
    out[1] = tl_mean(t, tl_square(t, tl_add(t, tl_mul(t, tl_select(t, w, 0, 0), y), tl_select(t, w, 0, 1))), TL_ALL, false);
    tl_backward(t, out[1]);
    tl_step(f->b, t);
    tl_backward(t, tl_mean(t, tl_square(t, tl_matmul(t, y, w)), TL_ALL, false));
}

/* The loss is a parameter itself. */
static void the_root_is_a_leaf(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    (void)n_in, (void)n_out;
    tl_tensor w = tl_param(t, f->m, "w", f->dtype, TL_DIMS(ROWS, WIDE), .kind = TL_INIT_ONES);
    tl_backward(t, w, .cotangent = in[0]);
    out[0] = tl_sum(t, tl_grad(t, w), TL_ALL, false);
    out[1] = tl_sum(t, tl_mul(t, in[1], w), TL_ALL, false);
    tl_step(f->a, t);
}

/* ---- called, compiled, and by turns ---- */

static fixture begin(tl_dtype dtype)
{
    fixture f = {.m = tl_model_new(.seed = 4), .dtype = dtype};
    f.t = tl_tape_new(f.m);
    f.a = tl_adamw_new(f.m, .lr = 0.03, .weight_decay = 0.1, .clip = 0.05, .schedule = {TL_COSINE, .warmup = 3, .total = 20});
    f.b = tl_sgd_new(f.m, .lr = 0.05, .momentum = 0.9);
    return f;
}

static void rows_of(fixture *f, int step, tl_tensor in[2])
{
    for (int i = 0; i < 2; i++) {
        float x[ROWS * WIDE];
        for (int k = 0; k < ROWS * WIDE; k++)
            x[k] = (float)((k * 7 + step * 5 + i * 3) % 11) / 5 - 1;
        in[i] = tl_cast(f->t, tl_data(f->t, x, TL_F32, TL_DIMS(ROWS, WIDE)), f->dtype);
    }
}

typedef struct {
    char weights[65];
    double out[2], norm;
    int64_t steps;
} end_of_run;

enum { CALLED, COMPILED, BY_TURNS };

static end_of_run train(tl_program *p, tl_dtype dtype, int how)
{
    fixture f = begin(dtype);
    tl_compiled *c = tl_compile(f.t, p, 2, &f);
    end_of_run e;
    for (int i = 0; i < 6; i++) {
        tl_tensor in[2], out[2];
        rows_of(&f, i, in);
        if (how == COMPILED || (how == BY_TURNS && i % 2 == 1))
            tl_run(c, in, 2, out);
        else
            p(f.t, in, 2, out, 2, &f);
        e.out[0] = tl_item(f.t, out[0]);
        e.out[1] = tl_item(f.t, out[1]);
        tl_tape_reset(f.t);
    }
    if (tl_failed(f.t))
        fail_msg("%s", tl_error(f.t));
    e.norm = tl_opt_grad_norm(f.a);
    e.steps = tl_opt_steps(f.a) + 100 * tl_opt_steps(f.b);
    assert_int_equal(tl_model_sha256(f.m, e.weights), TL_OK);
    tl_free(c, f.a, f.b, f.t, f.m);
    return e;
}

static void compiled_parts_are_the_called_ones(void **state)
{
    (void)state;
    static const struct { const char *name; tl_program *f; } list[] = {
        {"two steps", two_steps}, {"two optimizers", two_optimizers}, {"adversaries", adversaries}, {"two backwards", two_backwards_before_a_step},
        {"a backward after", a_backward_after_the_step}, {"sums of two kinds", sums_of_two_kinds}, {"the root is a leaf", the_root_is_a_leaf}};
    static const tl_dtype dtypes[] = {TL_F32, TL_BF16};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (size_t d = 0; d < 2; d++) {
            end_of_run want = train(list[i].f, dtypes[d], CALLED);
            for (int how = COMPILED; how <= BY_TURNS; how++) {
                end_of_run got = train(list[i].f, dtypes[d], how);
                if (strcmp(got.weights, want.weights) != 0 || memcmp(got.out, want.out, sizeof got.out) != 0 || memcmp(&got.norm, &want.norm, sizeof got.norm) != 0 || got.steps != want.steps)
                    fail_msg("%s, %s, way %d: %s %g %g %g %lld, want %s %g %g %g %lld", list[i].name, tl_dtype_name(dtypes[d]), how, got.weights, got.out[0], got.out[1], got.norm,
                             (long long)got.steps, want.weights, want.out[0], want.out[1], want.norm, (long long)want.steps);
            }
        }
}

/* ---- gradients that were there before ---- */

static void only_a_step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_sum(t, in[0], TL_ALL, false);
    out[1] = tl_sum(t, tl_grad(t, tl_model_find(f->m, "d.one")), TL_ALL, false);
    tl_step(f->a, t);
}

static void only_backward(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    (void)n_in, (void)n_out;
    for (int i = 0; i < 2; i++) {
        out[i] = loss_of(t, f, in[i]);
        tl_backward(t, out[i], .partial = true);
    }
}

/* Another parameter, another number of uses: what the partial backward before has left goes through the same step. */
static void another_backward_and_step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_mean(t, tl_cast(t, layer(t, f, "g.one", in[0]), TL_F32), TL_ALL, false);
    tl_backward(t, out[0], .partial = true);
    out[1] = out[0];
    tl_step(f->a, t);
}

/* bit i of how: program i compiled. The second is called with and without gradients that the first has left. */
static void train_two(tl_program *second, int how, char hash[65])
{
    tl_program *p[2] = {only_backward, second};
    fixture f = begin(TL_F32);
    tl_compiled *c[2] = {tl_compile(f.t, p[0], 2, &f), tl_compile(f.t, p[1], 2, &f)};
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 2; k++) {
            tl_tensor in[2], out[2];
            rows_of(&f, i, in);
            if (k == 0 && second != only_a_step && i % 3 == 2)
                continue;
            if (how >> k & 1)
                tl_run(c[k], in, 2, out);
            else
                p[k](f.t, in, 2, out, 2, &f);
            if (tl_failed(f.t))
                fail_msg("how %d, step %d: %s", how, i, tl_error(f.t));
            tl_tape_reset(f.t);
        }
    assert_int_equal(tl_model_sha256(f.m, hash), TL_OK);
    assert_int_equal(tl_opt_steps(f.a), 6);
    if (how == 3)
        assert_int_equal(tl_compiled_count(c[1]), second == only_a_step ? 1 : 2); /* another set of gradients is another graph */
    tl_free(c[0], c[1], f.a, f.b, f.t, f.m);
}

static void gradients_of_before_are_found(void **state)
{
    (void)state;
    tl_program *const second[] = {only_a_step, another_backward_and_step};
    for (int s = 0; s < 2; s++) {
        char want[65], got[65];
        train_two(second[s], 0, want);
        for (int how = 1; how < 4; how++) {
            train_two(second[s], how, got);
            if (strcmp(got, want) != 0)
                fail_msg("program %d, how %d: %s, want %s", s, how, got, want);
        }
    }
}

/* Uses of d.one: two in the one, one in the other; nobody reads the gradient in between. */
static void fewer_uses(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    (void)n_in, (void)n_out;
    out[0] = out[1] = tl_mean(t, layer(t, f, "d.one", in[0]), TL_ALL, false);
    tl_backward(t, out[0], .partial = true);
}

static void partial_backwards_may_use_a_parameter_more_or_less_often(void **state)
{
    (void)state;
    tl_program *const order[2][2] = {{fewer_uses, only_backward}, {only_backward, fewer_uses}};
    for (int o = 0; o < 2; o++) {
        char hash[4][65];
        for (int how = 0; how < 4; how++) {
            fixture f = begin(TL_F32);
            tl_compiled *c[2] = {tl_compile(f.t, order[o][0], 2, &f), tl_compile(f.t, order[o][1], 2, &f)};
            for (int i = 0; i < 6; i++) {
                tl_tensor in[2], out[2];
                rows_of(&f, i, in);
                if (how >> i % 2 & 1)
                    tl_run(c[i % 2], in, 2, out);
                else
                    order[o][i % 2](f.t, in, 2, out, 2, &f);
                if (i == 3)
                    tl_step(f.a, f.t);
                tl_tape_reset(f.t);
            }
            tl_step(f.b, f.t);
            if (tl_failed(f.t))
                fail_msg("%s", tl_error(f.t));
            assert_int_equal(tl_model_sha256(f.m, hash[how]), TL_OK);
            assert_string_equal(hash[how], hash[0]);
            tl_free(c[0], c[1], f.a, f.b, f.t, f.m);
        }
    }
}

static void a_graph_refuses_other_gradients_than_it_was_traced_with(void **state)
{
    (void)state;
    fixture f = begin(TL_F32);
    tl_tensor in[2], out[2];
    rows_of(&f, 0, in);
    only_backward(f.t, in, 2, out, 2, &f);
    tl_graph *g = tl_trace(f.t, only_a_step, in, 2, 2, &f);
    assert_int_equal(tl_graph_run(g, in, 2, out, 2), TL_OK);
    assert_int_equal(tl_graph_run(g, in, 2, out, 2), TL_EUSAGE); /* they have been consumed */
    if (strstr(tl_error(f.t), "'d.one' has not a gradient, and had one when") == NULL)
        fail_msg("%s", tl_error(f.t));
    assert_int_equal(tl_opt_steps(f.a), 1);
    tl_free(g, f.a, f.b, f.t, f.m);
}

/* ---- what may not be, is refused in both ways ---- */

/* The second loss was computed before the step changed what its gradient reads. */
static void too_late(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    (void)n_in, (void)n_out;
    out[0] = loss_of(t, f, in[0]);
    out[1] = loss_of(t, f, in[1]);
    tl_backward(t, out[0]);
    tl_step(f->a, t);
    tl_backward(t, out[1]);
}

/* The first backward folds w in f32 (matmul), the second in f64 (mul of another shape): one accumulator cannot be both. */
static void two_kinds_at_once(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    (void)n_in, (void)n_out;
    tl_tensor w = tl_param(t, f->m, "w", TL_F32, TL_DIMS(WIDE, WIDE), .kind = TL_INIT_ONES);
    out[0] = tl_sum(t, tl_matmul(t, in[0], w), TL_ALL, false);
    tl_backward(t, out[0]);
    out[1] = tl_sum(t, tl_square(t, w), TL_ALL, false);
    tl_backward(t, out[1]);
}

static void accumulators_of_two_kinds_are_refused(void **state)
{
    (void)state;
    for (int traced = 0; traced < 2; traced++) {
        fixture f = begin(TL_F32);
        tl_tensor in[2], out[2];
        rows_of(&f, 0, in);
        if (traced)
            assert_null(tl_trace(f.t, two_kinds_at_once, in, 2, 2, &f));
        else
            two_kinds_at_once(f.t, in, 2, out, 2, &f);
        assert_int_equal(tl_error_status(f.t), TL_EUSAGE);
        if (strstr(tl_error(f.t), "accumulates in F64, but in the micro-batch before in F32") == NULL)
            fail_msg("%s", tl_error(f.t));
        tl_free(f.a, f.b, f.t, f.m);
    }
}

static void a_parameter_changed_before_its_backward_is_refused(void **state)
{
    (void)state;
    for (int traced = 0; traced < 2; traced++) {
        fixture f = begin(TL_F32);
        tl_tensor in[2], out[2];
        rows_of(&f, 0, in);
        if (traced)
            assert_null(tl_trace(f.t, too_late, in, 2, 2, &f));
        else
            too_late(f.t, in, 2, out, 2, &f);
        assert_int_equal(tl_error_status(f.t), TL_EINPLACE);
        if (strstr(tl_error(f.t), "saved for its gradient, was changed in place by") == NULL || strstr(tl_error(f.t), "test_graph_parts.c") == NULL)
            fail_msg("%s", tl_error(f.t));
        tl_free(f.a, f.b, f.t, f.m);
    }
}

/* Memory that runs out anywhere, tracing or running: an error, and no weight has changed but by steps that are counted. */
static void memory_may_run_out_in_any_part(void **state)
{
    (void)state;
    tl_program *const list[] = {adversaries, a_backward_after_the_step, sums_of_two_kinds};
    for (int p = 0; p < 3; p++) {
        fixture f = begin(TL_F32);
        tl_tensor in[2], out[2];
        rows_of(&f, 0, in);
        list[p](f.t, in, 2, out, 2, &f); /* makes parameters and state */
        tl_grad_clear(f.t);
        tl_tape_reset(f.t);
        int failures = 0, early = 0;
        bool done = false;
        for (int64_t n = 1; !done && n < 100000; n += 1 + n / 50) {
            char before[65], after[65];
            int64_t steps = tl_opt_steps(f.a) + tl_opt_steps(f.b);
            rows_of(&f, 1, in);
            assert_int_equal(tl_model_sha256(f.m, before), TL_OK);
            tl_alloc_fail_after(n);
            tl_compiled *c = tl_compile(f.t, list[p], 2, &f);
            tl_status s = tl_run(c, in, 2, out);
            tl_alloc_fail_after(0);
            done = c != NULL && s == TL_OK;
            tl_free(c);
            if (done)
                break;
            failures++;
            tl_error_clear(f.t);
            assert_int_equal(tl_model_sha256(f.m, after), TL_OK);
            assert_int_equal(strcmp(after, before) != 0, tl_opt_steps(f.a) + tl_opt_steps(f.b) != steps);
            early += strcmp(after, before) != 0;
            tl_tape_reset(f.t);
        }
        assert_true(done && failures > 10 && early > 0);
        tl_free(f.a, f.b, f.t, f.m);
    }
}

const struct CMUnitTest tl_tests_graph_parts[] = {
    cmocka_unit_test(compiled_parts_are_the_called_ones),
    cmocka_unit_test(gradients_of_before_are_found),
    cmocka_unit_test(partial_backwards_may_use_a_parameter_more_or_less_often),
    cmocka_unit_test(a_graph_refuses_other_gradients_than_it_was_traced_with),
    cmocka_unit_test(memory_may_run_out_in_any_part),
    cmocka_unit_test(accumulators_of_two_kinds_are_refused),
    cmocka_unit_test(a_parameter_changed_before_its_backward_is_refused),
};
const size_t tl_tests_graph_parts_count = sizeof tl_tests_graph_parts / sizeof *tl_tests_graph_parts;
