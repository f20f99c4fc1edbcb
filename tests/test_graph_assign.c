/* tl_assign in a graph: what a program writes into the model itself - running means, averaged
 * weights - is written at each run, between the reads before it and the reads after it, as when it
 * is called. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include <tally.h>

extern const struct CMUnitTest tl_tests_graph_assign[];
extern const size_t tl_tests_graph_assign_count;

typedef struct {
    tl_model *m;
    tl_opt *o;
} made;

static tl_tensor weight(tl_tape *t, const made *a)
{
    return tl_param(t, a->m, "w", TL_F32, TL_DIMS(6, 6), .kind = TL_INIT_NORMAL, .scale = 0.5);
}
static tl_tensor six(tl_tape *t, const made *a, const char *name)
{
    return tl_buffer(t, a->m, name, TL_F32, TL_DIMS(6));
}

/* A layer that is centred by a running mean of its batches, and a slow average of the weight that
 * is trained. */
static void running_mean(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                         void *ctx)
{
    const made *a = ctx;
    (void)n, (void)n_out;
    tl_tensor w = weight(t, a), h = tl_matmul(t, in[0], w), mean = six(t, a, "mean");
    tl_assign(t, mean,
              tl_add(t, tl_scale(t, mean, 0.9),
                     tl_scale(t, tl_mean(t, h, TL_DIMS(0), false), 0.1)));
    out[0] = tl_sum(t, tl_square(t, tl_sub(t, h, six(t, a, "mean"))), TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(a->o, t);
    tl_tensor slow = tl_buffer(t, a->m, "slow", TL_F32, TL_DIMS(6, 6)),
              now = tl_detach(t, weight(t, a));
    tl_assign(t, slow, tl_add(t, tl_scale(t, slow, 0.99), tl_scale(t, now, 0.01)));
    out[1] = tl_scale(t, mean, 2);
}

/* Written whole, in part, by a strided view of itself, and read before and after each. */
static void written_often(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                          void *ctx)
{
    const made *a = ctx;
    (void)n, (void)n_out;
    int mode = tl_mode_push(t, TL_NO_GRAD);
    tl_tensor s = tl_buffer(t, a->m, "square", TL_F32, TL_DIMS(6, 6)), r = six(t, a, "row");
    tl_tensor before = tl_exp(t, r);
    tl_assign(t, r, tl_select(t, in[0], 0, 0));
    tl_tensor between = tl_exp(t, r);
    tl_assign(t, tl_slice(t, r, 0, 1, 4, 1), tl_slice(t, tl_add(t, before, between), 0, 1, 4, 1));
    out[0] = tl_add(t, before, between);
    out[1] = tl_exp(t, r);
    tl_assign(t, tl_select(t, s, 1, 2), r);
    tl_assign(t, s, tl_transpose(t, s, 0, 1));
    out[2] = tl_neg(t, before);
    out[3] = tl_scale(t, s, 3);
    tl_mode_pop(t, mode);
}

/* Nothing is given out: what is written is reason enough to run. A parameter may be written outside
 * of TL_NO_GRAD, too. */
static void only_writes(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                        void *ctx)
{
    (void)n, (void)out, (void)n_out;
    tl_tensor r = six(t, ctx, "row");
    tl_assign(t, r, tl_add(t, r, tl_select(t, in[0], 0, 1)));
    tl_tensor w = weight(t, ctx);
    tl_assign(t, w, tl_clamp(t, w, -0.25, 0.25));
}

static void assert_same_model(tl_model *a, tl_model *b, const char *what, int option)
{
    assert_int_equal(tl_model_count(a), tl_model_count(b));
    for (int i = 0; i < tl_model_count(a); i++) {
        tl_named x = tl_model_at(a, i), y = tl_model_at(b, i);
        assert_string_equal(x.name, y.name);
        if (memcmp(x.array.data, y.array.data,
                   (size_t)tl_array_count(&x.array) * tl_dtype_size(x.array.dtype)) != 0)
            fail_msg("%s, option %d: '%s' is another, called and compiled", what, option, x.name);
    }
}

static void both_ways(tl_program *f, int n_out, const char *what, int option, tl_graph_options o)
{
    made a[2];
    tl_tape *t[2];
    for (int i = 0; i < 2; i++) {
        a[i].m = tl_model_new(.seed = 1);
        a[i].o = tl_adamw_new(a[i].m, .lr = 1e-2);
        t[i] = tl_tape_new(a[i].m);
    }
    tl_compiled *c = tl_compile_at(TL_AT(t[1]), f, n_out, &a[1], o);
    for (int step = 0; step < 4; step++) {
        float x[4][6];
        for (int i = 0; i < 24; i++)
            x[i / 6][i % 6] = (float)((i * 7 + step * 5) % 11) / 8 - 0.5f;
        tl_tensor in[2], out[2][4] = {{TL_NONE}};
        for (int i = 0; i < 2; i++)
            in[i] = tl_data(t[i], x, TL_F32, TL_DIMS(4, 6));
        f(t[0], &in[0], 1, out[0], n_out, &a[0]);
        tl_run(c, &in[1], 1, out[1]);
        for (int k = 0; k < n_out; k++) {
            char hash[2][65];
            for (int i = 0; i < 2; i++)
                tl_sha256(t[i], out[i][k], hash[i]);
            if (strcmp(hash[0], hash[1]) != 0)
                fail_msg("%s, option %d, step %d: output %d is another, called and compiled", what,
                         option, step, k);
        }
        for (int i = 0; i < 2; i++) {
            if (tl_failed(t[i]))
                fail_msg("%s: %s", what, tl_error(t[i]));
            tl_tape_reset(t[i]);
        }
        assert_same_model(a[0].m, a[1].m, what, option);
    }
    tl_free(c, a[0].o, a[1].o, t[0], t[1], a[0].m, a[1].m);
}

static void what_a_program_writes_is_written_by_its_graph(void **state)
{
    (void)state;
    const tl_graph_options option[] = {{0},
                                       {.no_fuse = true},
                                       {.no_simplify = true},
                                       {.copy_inputs = true},
                                       {.limits.never_inline = true},
                                       {.limits.heavy_inline = true, .limits.body = 1000}};
    for (int i = 0; i < (int)(sizeof option / sizeof option[0]); i++) {
        both_ways(running_mean, 2, "running_mean", i, option[i]);
        both_ways(written_often, 4, "written_often", i, option[i]);
        both_ways(only_writes, 0, "only_writes", i, option[i]);
    }
}

static void writes_elsewhere(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                             void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    out[0] = tl_exp(t, in[0]);
    tl_assign(t, out[0], in[0]);
}

static void decodes(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out;
    static const tl_llama_config c = {.vocab = 5,
                                      .width = 8,
                                      .layers = 1,
                                      .heads = 2,
                                      .kv_heads = 2,
                                      .hidden = 8,
                                      .max_positions = 8};
    out[0] = tl_llama(t, tl_tape_model(t), &c, in[0], .columns.cache = ctx);
}

static void assert_refused(tl_tape *t, tl_program *f, tl_tensor x, void *ctx, tl_status want,
                           const char *words)
{
    assert_null(tl_trace(t, f, &x, 1, 1, ctx));
    if (tl_error_status(t) != want || strstr(tl_error(t), words) == NULL)
        fail_msg("%s with '%s' wanted, got %s: %s", tl_status_name(want), words,
                 tl_status_name(tl_error_status(t)), tl_error(t));
    tl_error_clear(t);
}

/* A cache grows from call to call, which no graph could know of. */
static void what_cannot_be_written_in_a_graph_is_refused(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_kv_cache cache = tl_kv_cache_new(m, TL_F32, 1, 1, 2, 8, 4);
    tl_tensor x = tl_data(t, ((float[]){1, 2}), TL_F32, TL_DIMS(2)),
              ids = tl_data(t, ((int64_t[]){1, 2}), TL_I64, TL_DIMS(1, 2));
    assert_refused(t, writes_elsewhere, x, NULL, TL_EUSAGE, "is the tape's");
    int mode = tl_mode_push(t, TL_NO_GRAD);
    assert_refused(t, decodes, ids, &cache, TL_ETRACED, "cannot be part of a trace");
    tl_mode_pop(t, mode);
    tl_free(t, m);
}

const struct CMUnitTest tl_tests_graph_assign[] = {
    cmocka_unit_test(what_a_program_writes_is_written_by_its_graph),
    cmocka_unit_test(what_cannot_be_written_in_a_graph_is_refused),
};
const size_t tl_tests_graph_assign_count = sizeof tl_tests_graph_assign /
                                           sizeof tl_tests_graph_assign[0];
