/* Programs of several parts - backward, step, backward, step: traced, they are what they are
 * called, bit for bit, whoever steps, however often each parameter is used in each part, and
 * whatever is left unconsumed at the end. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tensor/memory.h"
#include "tests/support/parts.h"

extern const struct CMUnitTest tl_tests_graph_parts[];
extern const size_t tl_tests_graph_parts_count;

/* ---- programs; every one gives two numbers ---- */

static void two_steps(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                      void *ctx)
{
    parts_fixture *f = ctx;
    (void)n_in, (void)n_out;
    for (int i = 0; i < 2; i++) {
        out[i] = parts_loss(t, f, in[i]);
        tl_backward(t, out[i]);
        tl_step(f->a, t);
    }
}

static void two_optimizers(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                           void *ctx)
{
    parts_fixture *f = ctx;
    (void)n_in, (void)n_out;
    for (int i = 0; i < 2; i++) {
        out[i] = parts_loss(t, f, in[i]);
        tl_backward(t, out[i]);
        tl_step(i == 0 ? f->a : f->b, t);
    }
}

/* One network learns to tell real rows from made ones - two uses of its parameters -, the other to
 * make them - one use. */
static void adversaries(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                        void *ctx)
{
    parts_fixture *f = ctx;
    (void)n_in, (void)n_out;
    tl_tensor made = parts_layer(t, f, "g.two", parts_layer(t, f, "g.one", in[0]));
    tl_tensor real = parts_layer(t, f, "d.one", in[1]),
              fake = parts_layer(t, f, "d.one", tl_detach(t, made));
    out[0] = tl_sub(t, tl_mean(t, tl_cast(t, fake, TL_F32), TL_ALL, false),
                    tl_mean(t, tl_cast(t, real, TL_F32), TL_ALL, false));
    tl_backward(t, out[0], .partial = true);
    tl_step(f->a, t);
    out[1] = tl_neg(t, tl_mean(t, tl_cast(t, parts_layer(t, f, "d.one", made), TL_F32), TL_ALL,
                               false));
    tl_backward(t, out[1], .partial = true);
    tl_step(f->b, t);
}

static void two_backwards_before_a_step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out,
                                        int n_out, void *ctx)
{
    parts_fixture *f = ctx;
    (void)n_in, (void)n_out;
    for (int i = 0; i < 2; i++) {
        out[i] = parts_loss(t, f, in[i]);
        tl_backward(t, out[i]);
    }
    tl_step(f->a, t);
}

/* The last gradients stay: the next call begins with them. */
static void a_backward_after_the_step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out,
                                      int n_out, void *ctx)
{
    parts_fixture *f = ctx;
    two_steps(t, in, n_in, out, n_out, f);
    tl_backward(t, parts_loss(t, f, in[0]));
    out[0] = tl_sum(t, tl_grad(t, tl_model_find(f->m, "d.one")), TL_ALL, false);
}

/* Another number of uses, and accumulators of another type, in each part. */
static void sums_of_two_kinds(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                              void *ctx)
{
    parts_fixture *f = ctx;
    (void)n_in, (void)n_out;
    tl_tensor w = tl_param(t, f->m, "w", TL_F32, TL_DIMS(WIDE, WIDE), .kind = TL_INIT_UNIFORM,
                           .scale = 0.7);
    tl_tensor x = tl_cast(t, in[0], TL_F32), y = tl_cast(t, in[1], TL_F32);
    out[0] = tl_mean(t, tl_square(t, tl_matmul(t, x, w)), TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(f->a, t);
    out[1] = tl_mean(t,
                     tl_square(t, tl_add(t, tl_mul(t, tl_select(t, w, 0, 0), y),
                                         tl_select(t, w, 0, 1))),
                     TL_ALL, false);
    tl_backward(t, out[1]);
    tl_step(f->b, t);
    tl_backward(t, tl_mean(t, tl_square(t, tl_matmul(t, y, w)), TL_ALL, false));
}

/* The loss is a parameter itself. */
static void the_root_is_a_leaf(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                               void *ctx)
{
    parts_fixture *f = ctx;
    (void)n_in, (void)n_out;
    tl_tensor w = tl_param(t, f->m, "w", f->dtype, TL_DIMS(ROWS, WIDE), .kind = TL_INIT_ONES);
    tl_backward(t, w, .cotangent = in[0]);
    out[0] = tl_sum(t, tl_grad(t, w), TL_ALL, false);
    out[1] = tl_sum(t, tl_mul(t, in[1], w), TL_ALL, false);
    tl_step(f->a, t);
}

/* ---- called, compiled, and by turns ---- */

typedef struct {
    char weights[65];
    double out[2], norm;
    int64_t steps;
} end_of_run;

enum { CALLED, COMPILED, BY_TURNS };

static end_of_run train(tl_program *p, tl_dtype dtype, int how)
{
    parts_fixture f = parts_begin(dtype);
    tl_compiled *c = tl_compile(f.t, p, 2, &f);
    end_of_run e;
    for (int i = 0; i < 6; i++) {
        tl_tensor in[2], out[2];
        parts_rows(&f, i, in);
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
    static const struct {
        const char *name;
        tl_program *f;
    } list[] = {{"two steps", two_steps},
                {"two optimizers", two_optimizers},
                {"adversaries", adversaries},
                {"two backwards", two_backwards_before_a_step},
                {"a backward after", a_backward_after_the_step},
                {"sums of two kinds", sums_of_two_kinds},
                {"the root is a leaf", the_root_is_a_leaf}};
    static const tl_dtype dtypes[] = {TL_F32, TL_BF16};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (size_t d = 0; d < 2; d++) {
            end_of_run want = train(list[i].f, dtypes[d], CALLED);
            for (int how = COMPILED; how <= BY_TURNS; how++) {
                end_of_run got = train(list[i].f, dtypes[d], how);
                if (strcmp(got.weights, want.weights) != 0 ||
                    memcmp(got.out, want.out, sizeof got.out) != 0 ||
                    memcmp(&got.norm, &want.norm, sizeof got.norm) != 0 || got.steps != want.steps)
                    fail_msg("%s, %s, way %d: %s %g %g %g %lld, want %s %g %g %g %lld",
                             list[i].name, tl_dtype_name(dtypes[d]), how, got.weights, got.out[0],
                             got.out[1], got.norm, (long long)got.steps, want.weights, want.out[0],
                             want.out[1], want.norm, (long long)want.steps);
            }
        }
}

/* ---- what may not be, is refused in both ways ---- */

/* The second loss was computed before the step changed what its gradient reads. */
static void too_late(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                     void *ctx)
{
    parts_fixture *f = ctx;
    (void)n_in, (void)n_out;
    out[0] = parts_loss(t, f, in[0]);
    out[1] = parts_loss(t, f, in[1]);
    tl_backward(t, out[0]);
    tl_step(f->a, t);
    tl_backward(t, out[1]);
}

static void a_parameter_changed_before_its_backward_is_refused(void **state)
{
    (void)state;
    for (int traced = 0; traced < 2; traced++) {
        parts_fixture f = parts_begin(TL_F32);
        tl_tensor in[2], out[2];
        parts_rows(&f, 0, in);
        if (traced)
            assert_null(tl_trace(f.t, too_late, in, 2, 2, &f));
        else
            too_late(f.t, in, 2, out, 2, &f);
        assert_int_equal(tl_error_status(f.t), TL_EINPLACE);
        if (strstr(tl_error(f.t), "saved for its gradient, was changed in place by") == NULL ||
            strstr(tl_error(f.t), "parts.c:") == NULL)
            fail_msg("%s", tl_error(f.t));
        tl_free(f.a, f.b, f.t, f.m);
    }
}

/* Memory that runs out anywhere, tracing or running: an error, and no weight has changed but by
 * steps that are counted. */
static void memory_may_run_out_in_any_part(void **state)
{
    (void)state;
    tl_program *const list[] = {adversaries, a_backward_after_the_step, sums_of_two_kinds};
    for (int p = 0; p < 3; p++) {
        parts_fixture f = parts_begin(TL_F32);
        tl_tensor in[2], out[2];
        tl_free(f.a); /* one whose rate never is 0, however many runs end late */
        f.a = tl_adamw_new(f.m, .lr = 0.03, .weight_decay = 0.1, .clip = 0.05);
        parts_rows(&f, 0, in);
        list[p](f.t, in, 2, out, 2, &f); /* makes parameters and state */
        tl_grad_clear(f.t);
        tl_tape_reset(f.t);
        int failures = 0, early = 0, done = 0; /* some memory can be done without */
        for (int64_t n = 1; done < 5 && n < 100000; n += 1 + n / 60) {
            char before[65], after[65];
            int64_t steps = tl_opt_steps(f.a) + tl_opt_steps(f.b);
            parts_rows(&f, 1, in);
            assert_int_equal(tl_model_sha256(f.m, before), TL_OK);
            tl_alloc_fail_after(n);
            tl_compiled *c = tl_compile(f.t, list[p], 2, &f);
            tl_status s = tl_run(c, in, 2, out);
            tl_alloc_fail_after(0);
            const bool ran = c != NULL && s == TL_OK;
            tl_free(c);
            done = ran ? done + 1 : 0;
            failures += !ran;
            tl_error_clear(f.t);
            tl_grad_clear(f.t);
            assert_int_equal(tl_model_sha256(f.m, after), TL_OK);
            assert_int_equal(strcmp(after, before) != 0,
                             tl_opt_steps(f.a) + tl_opt_steps(f.b) != steps);
            early += !ran && strcmp(after, before) != 0;
            tl_tape_reset(f.t);
        }
        assert_true(done == 5 && failures > 10 && early > 0);
        tl_free(f.a, f.b, f.t, f.m);
    }
}

const struct CMUnitTest tl_tests_graph_parts[] = {
    cmocka_unit_test(compiled_parts_are_the_called_ones),
    cmocka_unit_test(memory_may_run_out_in_any_part),
    cmocka_unit_test(a_parameter_changed_before_its_backward_is_refused),
};
const size_t tl_tests_graph_parts_count = sizeof tl_tests_graph_parts /
                                          sizeof *tl_tests_graph_parts;
