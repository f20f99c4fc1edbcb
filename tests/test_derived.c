/* Values derived from parameters and constants alone: computed once and differentiated once a step,
 * so that weights trained through them have one hash however the batch is split. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <math.h>
#include <string.h>

#include <tally_extend.h>

#include "tensor/memory.h"
#include "tensor/files/safetensors.h"
#include "tests/support/expect.h"
#include "tests/support/own_kernels.h"
#include "tests/support/steps.h"
#include "tests/support/fresh_dir.h"

extern const struct CMUnitTest tl_tests_derived[];
extern const size_t tl_tests_derived_count;

enum { SAMPLES = 12, S = 3, D = 4, STEPS = 3 };

typedef struct {
    const char *name;
    tl_tensor (*f)(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype);
} program;

/* ---- the programs: x is (B, S, D), and so is what they give ---- */

static tl_tensor param(tl_tape *t, tl_model *m, const char *name, tl_dtype dtype, tl_shape shape)
{
    return tl_param(t, m, name, dtype, shape, TL_INIT_NORMAL, 0.5);
}

static tl_tensor weight(tl_tape *t, tl_model *m, const char *name, tl_dtype dtype)
{
    return param(t, m, name, dtype, TL_DIMS(D, D));
}

static tl_tensor numbers(tl_tape *t, tl_dtype dtype, tl_shape shape)
{
    float v[64];
    for (int i = 0; i < 64; i++)
        v[i] = (float)((i * 37) % 11 - 5) / 7;
    return tl_cast(t, tl_constant(t, v, TL_F32, shape), dtype);
}

static tl_tensor low_rank(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor a = param(t, m, "a", dtype, TL_DIMS(D, 2)),
              b = param(t, m, "b", dtype, TL_DIMS(2, D));
    return tl_matmul(t, x, tl_matmul(t, a, b));
}

static tl_tensor low_rank_frozen(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    return tl_tanh(t, tl_matmul(t, low_rank(t, m, x, dtype), weight(t, m, "w", dtype)));
}

static tl_tensor positions(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    int64_t ids[S] = {2, 0, 2};
    tl_tensor p = param(t, m, "p", dtype, TL_DIMS(5, D));
    return tl_add(t, x, tl_embedding(t, p, tl_constant(t, ids, TL_I64, TL_DIMS(S))));
}

static tl_tensor counted(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor p = param(t, m, "p", dtype, TL_DIMS(5, D));
    return tl_add(t, x, tl_embedding(t, p, tl_arange(t, TL_I64, 0, S, 1)));
}

/* Scores between positions, with a learned number for each distance. */
static tl_tensor relative(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    int64_t ids[S][S];
    for (int i = 0; i < S; i++)
        for (int j = 0; j < S; j++)
            ids[i][j] = i - j + S - 1;
    tl_tensor rel = param(t, m, "rel", dtype, TL_DIMS(2 * S - 1, 1));
    tl_tensor bias = tl_embedding(t, rel, tl_constant(t, ids, TL_I64, TL_DIMS(S, S)));
    tl_tensor s = tl_matmul(t, x, tl_transpose(t, x, 1, 2));
    s = tl_add(t, s, tl_reshape(t, bias, TL_DIMS(S, S)));
    return tl_matmul(t, tl_softmax(t, s, -1), x);
}

static tl_tensor scaled(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor s = param(t, m, "s", dtype, TL_DIMS(1));
    return tl_matmul(t, x, tl_mul(t, numbers(t, dtype, TL_DIMS(D, D)), s));
}

static tl_tensor curved(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor w = tl_matmul(t, numbers(t, dtype, TL_DIMS(D, D)), weight(t, m, "w", dtype));
    return tl_matmul(t, x, tl_tanh(t, w));
}

static tl_tensor widened(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor w = tl_cast(t, weight(t, m, "w", TL_BF16), TL_F32);
    return tl_cast(t, tl_matmul(t, tl_cast(t, x, TL_F32), w), dtype);
}

static tl_tensor normalised(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor v = weight(t, m, "v", dtype), g = param(t, m, "g", dtype, TL_DIMS(1, D));
    tl_tensor n = tl_rsqrt(t, tl_sum(t, tl_square(t, v), TL_DIMS(0), true));
    tl_tensor w = tl_mul(t, tl_mul(t, v, n), g);
    return tl_matmul(t, x, w);
}

/* Rounded in the forward pass, and not in the gradient ("straight through"). */
static tl_tensor rounded(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor w = weight(t, m, "w", dtype);
    tl_tensor q = tl_cast(t, tl_cast(t, tl_scale(t, w, 4), TL_I64), dtype);
    q = tl_add(t, w, tl_detach(t, tl_sub(t, tl_scale(t, q, 0.25), w)));
    return tl_matmul(t, tl_tanh(t, tl_matmul(t, x, q)), q);
}

/* What is detached is a parameter, a derived value that gradients reach as well, a constant, and
 * again what was detached. */
static tl_tensor detached(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor w = weight(t, m, "w", dtype), v = weight(t, m, "v", dtype);
    tl_tensor h = tl_matmul(t, w, v), c = tl_detach(t, numbers(t, dtype, TL_DIMS(D, D)));
    tl_tensor k = tl_detach(t, tl_detach(t, h)), n = tl_tanh(t, tl_mul(t, v, tl_detach(t, w)));
    tl_tensor y = tl_tanh(t, tl_matmul(t, x, tl_add(t, h, tl_mul(t, c, tl_mul(t, w, k)))));
    return tl_matmul(t, tl_add(t, y, tl_matmul(t, x, h)), n);
}

static tl_tensor summed_exp(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor w = weight(t, m, "w", dtype);
    return tl_mul(t, tl_matmul(t, x, w), tl_logsumexp(t, w, TL_DIMS(1), false));
}

/* With zeros, ids and factors that take their shapes from a parameter. */
static tl_tensor shaped_alike(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    int64_t ids[D] = {2, 0, 1, 2};
    tl_tensor w = weight(t, m, "w", dtype), b = param(t, m, "b", dtype, TL_DIMS(D));
    tl_tensor p = tl_pad(t, tl_tanh(t, tl_slice(t, w, 1, 1, D, 1)), 1, 1, 0, 0.5);
    tl_tensor q = tl_index_select(t, p, -2, tl_constant(t, ids, TL_I64, TL_DIMS(D)));
    q = tl_addmm(t, b, q, w, 2, 1);
    tl_tensor a = tl_avg_pool1d(t, tl_reshape(t, w, TL_DIMS(1, D, D)), .kernel = {2}, .stride = {1},
                                .padding = {1});
    q = tl_add(t, q, tl_reshape(t, tl_slice(t, a, 2, 0, D, 1), TL_DIMS(D, D)));
    return tl_matmul(t, x, q);
}

/* Parameters used directly and below, a derived value used twice and by two kinds of op. */
static tl_tensor many(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor w = weight(t, m, "w", dtype), h = tl_matmul(t, w, tl_transpose(t, w, 0, 1));
    tl_tensor y = tl_tanh(t, tl_matmul(t, x, w));
    y = tl_tanh(t, tl_matmul(t, y, tl_transpose(t, h, 0, 1)));
    y = tl_add(t, tl_matmul(t, y, h), tl_slice(t, h, 0, 0, S, 1));
    return tl_add(t, y,
                  tl_reshape(t, tl_sum(t, tl_square(t, h), TL_DIMS(0), false), TL_DIMS(1, D)));
}

/* Samples behind the steps: (S, B, D), and ids (S, B). */
static tl_tensor turned(tl_tape *t, tl_tensor x) { return tl_permute(t, x, TL_DIMS(1, 0, 2)); }
static tl_tensor time_first(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor w = weight(t, m, "w", dtype), b = param(t, m, "b", dtype, TL_DIMS(D));
    tl_tensor y = tl_tanh(t, tl_add(t, tl_matmul(t, turned(t, x), w), b));
    return turned(t, tl_matmul(t, y, w));
}
static tl_tensor ids_time_first(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor e = weight(t, m, "e", dtype), ids = tl_argmax(t, x, -1, false);
    return tl_add(t, x, turned(t, tl_embedding(t, e, tl_transpose(t, ids, 0, 1))));
}

static tl_tensor tied_to(tl_tape *t, tl_tensor x, tl_tensor e)
{
    tl_tensor y = tl_add(t, x, tl_embedding(t, e, tl_argmax(t, x, -1, false)));
    return tl_matmul(t, tl_tanh(t, y), tl_transpose(t, e, 0, 1));
}
static tl_tensor tied(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    return tied_to(t, x, weight(t, m, "e", dtype));
}
static tl_tensor tied_widened(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor e = tl_cast(t, weight(t, m, "e", dtype == TL_F32 ? TL_BF16 : dtype), TL_F32);
    return tied_to(t, tl_cast(t, x, TL_F32), e);
}

static tl_tensor rotary_learned(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor r1 = param(t, m, "r1", dtype, TL_DIMS(S, D)),
              r2 = param(t, m, "r2", dtype, TL_DIMS(S, D));
    return tl_rotary(t, tl_tanh(t, tl_rotary(t, x, r1, r2, TL_ROTARY_HALF)), r1, r2,
                     TL_ROTARY_HALF);
}
static tl_tensor rotary_waves(tl_tape *t, tl_model *m, tl_tensor x, tl_dtype dtype)
{
    tl_tensor f = param(t, m, "f", dtype, TL_DIMS(1, D / 2));
    tl_tensor at = tl_mul(t, numbers(t, dtype, TL_DIMS(S, 1)), f);
    tl_tensor r1 = tl_rotary_widen(t, tl_cos(t, at), TL_ROTARY_INTERLEAVED),
              r2 = tl_rotary_widen(t, tl_sin(t, at), TL_ROTARY_INTERLEAVED);
    return tl_rotary(t, x, r1, r2, TL_ROTARY_INTERLEAVED);
}

static const program programs[] = {
    {"x @ (A @ B)", low_rank},
    {"A frozen", low_rank_frozen},
    {"positions", positions},
    {"positions counted", counted},
    {"relative bias", relative},
    {"constant * s", scaled},
    {"tanh(constant @ W)", curved},
    {"a weight's cast", widened},
    {"weight norm", normalised},
    {"straight through", rounded},
    {"detached", detached},
    {"logsumexp", summed_exp},
    {"shaped alike", shaped_alike},
    {"many uses", many},
    {"time first", time_first},
    {"ids time first", ids_time_first},
    {"tied", tied},
    {"tied, widened", tied_widened},
    {"rotary, learned", rotary_learned},
    {"rotary, learned waves", rotary_waves},
};
enum { PROGRAMS = sizeof programs / sizeof *programs };

/* ---- training ---- */

/* STOPPED: a checkpoint after each micro-batch, taken up by another process, as it were. */
typedef enum { CALLED, COMPILED, TURNS, WHOLE, STOPPED, WAYS } way;

typedef struct {
    const program *p;
    tl_model *m;
    tl_dtype dtype;
    tl_opt *opt;
    bool steps; /* the optimizer's step is part of it */
} run;

static tl_tensor loss_of(tl_tape *t, const run *r, tl_tensor x)
{
    tl_tensor y = tl_cast(t, r->p->f(t, r->m, x, r->dtype), TL_F32);
    tl_tensor e = tl_square(t, tl_sub(t, y, tl_scalar(t, TL_F32, 0.3)));
    return tl_scale(t, tl_sum(t, e, TL_ALL, false), 1.0 / SAMPLES);
}

static void micro(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const run *r = ctx;
    (void)n, (void)n_out;
    char said[1024];
    out[0] = loss_of(t, r, in[0]);
    if (!tl_traced(t) && tl_explain_invariance(t, out[0], said, sizeof said) != 0)
        fail_msg("%s, a false alarm: %s%s", r->p->name, said, tl_error(t));
    tl_backward(t, out[0]);
    out[0] = tl_detach(t, out[0]);
    if (r->steps)
        tl_step(r->opt, t);
}

static tl_tensor batch(tl_tape *t, int from, int to, tl_dtype dtype)
{
    static float x[SAMPLES][S][D];
    for (int i = 0; i < SAMPLES * S * D; i++)
        ((float *)x)[i] = (float)((i * 7919) % 1009) / 500 - 1;
    return tl_cast(t, tl_data(t, x[from], TL_F32, TL_DIMS(to - from, S, D)), dtype);
}

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *opt;
    tl_compiled *c, *end;
    run part, last;
} process;

static void begin(process *q, const program *p, tl_dtype dtype)
{
    q->m = tl_model_new(.seed = 5);
    q->t = tl_tape_new(q->m);
    q->opt = tl_adamw_new(q->m, .lr = 0.05);
    if (p->f == low_rank_frozen)
        tl_model_freeze(q->m, "a", true);
    q->part = q->last = (run){p, q->m, dtype, q->opt, false};
    q->last.steps = true;
    q->c = q->end = NULL;
}

static void end(process *q) { tl_free(q->c, q->end, q->opt, q->t, q->m); }

static void stop_and_go_on(process *q)
{
    process other;
    begin(&other, q->part.p, q->part.dtype);
    loss_of(other.t, &other.part, batch(other.t, 0, 1, q->part.dtype)); /* parameters are made */
    tl_tape_reset(other.t);
    assert_int_equal(tl_checkpoint_save_tape(q->t, q->opt, path, NULL, 0), TL_OK);
    assert_int_equal(tl_checkpoint_load_tape(other.t, other.opt, path, NULL, NULL, 0), TL_OK);
    end(q);
    *q = other;
}

/* cut: sizes of the micro-batches, ended by 0. */
static void train(const program *p, tl_dtype dtype, const int *cut, way w, char hex[65])
{
    process q;
    begin(&q, p, dtype);
    q.c = tl_compile(q.t, micro, 1, &q.part);
    q.end = tl_compile(q.t, micro, 1, &q.last);
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0, at = 0; cut[i] > 0; at += cut[i++]) {
            tl_tensor x = batch(q.t, at, at + cut[i], dtype), out = TL_NONE;
            bool step = cut[i + 1] == 0,
                 run_it = w == TURNS ? (i + s) % 2 : w != CALLED && w != STOPPED;
            if (run_it)
                tl_run(w == WHOLE && step ? q.end : q.c, &x, 1, &out);
            else
                micro(q.t, &x, 1, &out, 1, &q.part);
            if (step && w != WHOLE)
                tl_step(q.opt, q.t);
            tl_tape_reset(q.t);
            if (w == STOPPED && !tl_failed(q.t))
                stop_and_go_on(&q);
        }
    }
    if (tl_failed(q.t))
        fprintf(stderr, "%s: %s\n", p->name, tl_error(q.t));
    assert_false(tl_failed(q.t));
    assert_int_equal(tl_model_sha256(q.m, hex), TL_OK);
    end(&q);
}

static const int whole[] = {SAMPLES, 0};
static const int splits[][SAMPLES + 1] = {
    {1, 11, 0}, {5, 7, 0}, {7, 4, 1, 0}, {2, 3, 1, 6, 0}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}};
enum { SPLITS = sizeof splits / sizeof *splits };

static int compare(tl_dtype dtype, way w)
{
    int wrong = 0;
    for (int p = 0; p < PROGRAMS; p++) {
        char want[65], got[65];
        train(&programs[p], dtype, whole, CALLED, want);
        for (int i = -1; i < SPLITS; i++) {
            train(&programs[p], dtype, i < 0 ? whole : splits[i], w, got);
            if (strcmp(got, want) != 0 && ++wrong)
                fprintf(stderr, "%s, %s, split %d, way %d: other weights\n", programs[p].name,
                        tl_dtype_name(dtype), i, (int)w);
        }
    }
    return wrong;
}

static void one_hash_called(void **unused)
{
    (void)unused;
    assert_int_equal(compare(TL_F32, CALLED) + compare(TL_BF16, CALLED) + compare(TL_F16, CALLED),
                     0);
}

static void one_hash_compiled(void **unused)
{
    (void)unused;
    int wrong = 0;
    for (int w = COMPILED; w <= WHOLE; w++)
        wrong += compare(TL_F32, (way)w) + compare(TL_BF16, (way)w) + compare(TL_F16, (way)w);
    assert_int_equal(wrong, 0);
}

static void one_hash_over_checkpoints(void **unused)
{
    (void)unused;
    assert_int_equal(compare(TL_F32, STOPPED) + compare(TL_BF16, STOPPED), 0);
}

/* ---- at the edges ---- */

static tl_tensor through(tl_tape *t, tl_model *m, double c)
{
    tl_tensor w = weight(t, m, "w", TL_F32), x = batch(t, 0, 2, TL_F32);
    return tl_sum(t, tl_matmul(t, x, tl_tanh(t, tl_scale(t, w, c))), TL_ALL, false);
}

static void expect_error(tl_tape *t, const char *words)
{
    if (strstr(tl_error(t), words) == NULL)
        fail_msg("'%s' wanted, got '%s'", words, tl_error(t));
    tl_error_clear(t);
    tl_tape_reset(t);
}

static void through_it(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out;
    tl_tensor h = tl_tanh(t, tl_scale(t, weight(t, ctx, "w", TL_F32), 2));
    out[0] = tl_sum(t, tl_matmul(t, in[0], h), TL_ALL, false);
    tl_backward(t, out[0]);
}

/* Never a gradient of other weights than those that backward has seen. */
static void what_changes_meanwhile_is_an_error(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 5);
    tl_tape *t = tl_tape_new(m);
    for (int again = 0; again < 3; again++) {
        tl_backward(t, through(t, m, 2));
        tl_assign(t, tl_model_find(m, "w"), tl_fill(t, TL_F32, TL_DIMS(D, D), 0.5));
        tl_compiled *c = again == 2 ? tl_compile(t, through_it, 1, m) : NULL;
        tl_tensor x = batch(t, 0, 2, TL_F32), y;
        if (again == 2)
            tl_run(c, &x, 1, &y);
        else if (again)
            tl_backward(t, through(t, m, 2));
        else
            tl_grad(t, tl_model_find(m, "w"));
        expect_error(t, "a gradient waits in a value made of parameters (tanh)");
        tl_free(c);
    }
    tl_free(t, m);
}

/* Of parameters as they were, it would be kept for micro-batches to come, and go back through what
 * the parameters are by then. */
static void what_was_recorded_before_a_change_is_an_error(void **unused)
{
    (void)unused;
    for (int how = 0; how < 4; how++) {
        tl_model *m = tl_model_new(.seed = 5);
        tl_tape *t = tl_tape_new(m);
        tl_opt *opt = tl_sgd_new(m, .lr = 0.5);
        tl_tensor w = param(t, m, "w", TL_F32, TL_DIMS(D, D)), x = batch(t, 0, 2, TL_F32), y, z;
        y = how % 2 ? tl_cast(t, w, TL_F64) : tl_tanh(t, tl_scale(t, w, 2));
        y = tl_square(t, tl_matmul(t, tl_cast(t, x, tl_dtype_of(t, y)), y));
        y = tl_sum(t, y, TL_ALL, false);
        z = tl_scale(t, y, 3);
        if (how < 2) {
            tl_assign(t, w, tl_fill(t, TL_F32, TL_DIMS(D, D), 0.5));
        } else {
            tl_backward(t, y, .retain = true);
            tl_step(opt, t);
        }
        assert_string_equal(tl_error(t), "");
        assert_int_equal(tl_backward(t, how < 2 ? y : z), TL_EINPLACE);
        expect_error(t, how < 2 ? "changed in place by assign" : "changed in place by sgd");
        tl_free(opt, t, m);
    }
}

static void another_expression_is_another_program(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 5);
    tl_tape *t = tl_tape_new(m);
    tl_backward(t, through(t, m, 2));
    tl_tape_reset(t);
    assert_int_equal(tl_backward(t, through(t, m, 3)), TL_EUSAGE);
    expect_error(t, "run different programs");
    tl_free(t, m);
}

/* Read, continued and read again, the gradient is that of both. */
static void a_gradient_is_read_between_backwards(void **unused)
{
    char hex[2][65];
    (void)unused;
    for (int early = 0; early < 2; early++) {
        tl_model *m = tl_model_new(.seed = 5);
        tl_tape *t = tl_tape_new(m);
        for (int i = 0; i < 3; i++) {
            tl_backward(t, through(t, m, 2));
            tl_tensor g = early ? tl_grad(t, tl_model_find(m, "w")) : TL_NONE;
            (void)g;
            tl_tape_reset(t);
        }
        tl_sha256(t, tl_grad(t, tl_model_find(m, "w")), hex[early]);
        assert_string_equal(tl_error(t), "");
        tl_free(t, m);
    }
    assert_string_equal(hex[0], hex[1]);
}

enum { WIDE = 96 };

/* The scope in which a gradient is read chooses no kernel for the way back. */
static void a_gradient_is_read_in_a_fast_scope(void **unused)
{
    char hex[2][65];
    (void)unused;
    for (int fast = 0; fast < 2; fast++) {
        tl_model *m = tl_model_new(.seed = 5);
        tl_tape *t = tl_tape_new(m);
        tl_tensor w = param(t, m, "w", TL_F32, TL_DIMS(WIDE, WIDE)), h = tl_matmul(t, w, w);
        tl_tensor y = tl_matmul(t, tl_fill(t, TL_F32, TL_DIMS(2, WIDE), 0.3), h);
        assert_int_equal(tl_backward(t, tl_sum(t, tl_square(t, y), TL_ALL, false)), TL_OK);
        const int scope = tl_mode_push(t, fast ? TL_FAST : 0);
        tl_sha256(t, tl_grad(t, w), hex[fast]);
        tl_mode_pop(t, scope);
        assert_string_equal(tl_error(t), "");
        tl_free(t, m);
    }
    assert_string_equal(hex[0], hex[1]);
}

/* A scope that brings in no other bits makes no other value. */
static void a_scope_that_keeps_the_promise_makes_no_value_anew(void **unused)
{
    enum { NONE, OWN_KERNEL, INVARIANT_IN_FAST, SCOPES };
    char hex[SCOPES][65];
    (void)unused;
    for (int i = 0; i < SCOPES; i++) {
        tl_model *m = tl_model_new(.seed = 5);
        tl_tape *t = tl_tape_new(m);
        own_kernels(t);
        tl_tensor w = weight(t, m, "w", TL_F32), x = batch(t, 0, SAMPLES, TL_F32);
        tl_tensor h = tl_tanh(t, tl_matmul(t, x, tl_tanh(t, w)));
        const int scope = tl_mode_push(t, i == INVARIANT_IN_FAST ? TL_FAST : 0);
        if (i == INVARIANT_IN_FAST)
            tl_mode_push(t, TL_INVARIANT);
        if (i == OWN_KERNEL)
            tl_kernel_push(t, "neg", TL_F32, "test-neg");
        h = tl_matmul(t, h, tl_tanh(t, w));
        tl_mode_pop(t, scope);
        assert_int_equal(tl_backward(t, tl_sum(t, tl_tanh(t, h), TL_ALL, false)), TL_OK);
        own_hash(t, tl_grad(t, w), hex[i]);
        tl_free(t, m);
        assert_string_equal(hex[i], hex[NONE]);
    }
}

/* What comes to a value goes nowhere if all that it is made of has been frozen since. */
static void what_is_frozen_meanwhile_gets_nothing(void **unused)
{
    float before[2][D * D], after[2][D * D];
    (void)unused;
    tl_model *m = tl_model_new(.seed = 5);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.5);
    tl_tensor w = weight(t, m, "w", TL_F32), v = weight(t, m, "v", TL_F32);
    tl_tensor y = tl_matmul(t, tl_matmul(t, batch(t, 0, 2, TL_F32), tl_tanh(t, w)), v);
    assert_int_equal(tl_backward(t, tl_sum(t, y, TL_ALL, false)), TL_OK);
    tl_model_freeze(m, "w", true);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tl_keep(t, i ? v : w, before[i], sizeof before[i]), TL_OK);
    assert_int_equal(tl_step(o, t), TL_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tl_keep(t, i ? v : w, after[i], sizeof after[i]), TL_OK);
    assert_memory_equal(before[0], after[0], sizeof after[0]);
    assert_memory_not_equal(before[1], after[1], sizeof after[1]);
    tl_free(o, t, m);
}

/* ---- computed once a step ---- */

static void count_tanh(void *ctx, tl_tape *t, const tl_seen *c)
{
    (void)t;
    *(int *)ctx += strcmp(c->call->op->name, "tanh") == 0;
}
static const tl_observer counting = {.runs = count_tanh};

/* x @ tanh(cast(A) @ B), and the weight that it is made of. */
static tl_tensor counted_loss(tl_tape *t, tl_model *m, tl_tensor x, tl_tensor *made)
{
    tl_tensor a = tl_cast(t, param(t, m, "a", TL_BF16, TL_DIMS(D, 2)), TL_F32);
    *made = tl_tanh(t, tl_matmul(t, a, param(t, m, "b", TL_F32, TL_DIMS(2, D))));
    return tl_sum(t, tl_square(t, tl_matmul(t, x, *made)), TL_ALL, false);
}

/* What a tape that knows nothing makes of the model as it is. */
static void expect_made(tl_tape *t, tl_model *m, tl_tensor made)
{
    char got[65], want[65];
    tl_tensor fresh;
    tl_tape *other = tl_tape_new(m);
    counted_loss(other, m, batch(other, 0, 1, TL_F32), &fresh);
    tl_sha256(other, fresh, want);
    tl_sha256(t, made, got);
    assert_string_equal(got, want);
    assert_string_equal(tl_error(t), "");
    tl_free(other);
}

static tl_tensor one_micro_batch(tl_tape *t, tl_model *m, int i)
{
    tl_tensor made, y = counted_loss(t, m, batch(t, i, i + 1, TL_F32), &made);
    assert_int_equal(tl_backward(t, y), TL_OK);
    expect_made(t, m, made);
    return made;
}

static void one_computation_a_step(void **unused)
{
    const size_t kept = sizeof(float) * (D * 2 + D * D + D * D); /* a cast, the product, its tanh */
    int ran = 0;
    (void)unused;
    tl_model *m = tl_model_new(.seed = 5);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_adamw_new(m, .lr = 0.05);
    assert_int_equal(tl_observe(t, &counting, &ran), TL_OK);
    for (int s = 1; s <= STEPS; s++) {
        for (int i = 0; i < SAMPLES; i++) {
            one_micro_batch(t, m, i);
            if (i == SAMPLES - 1)
                tl_step(o, t);
            tl_tape_reset(t);
            assert_int_equal(tl_memory_stats(t).tape.used, i < SAMPLES - 1 ? kept : 0);
        }
        assert_int_equal(ran, s); /* the gradient's way back has not computed it either */
    }
    one_micro_batch(t, m, 0);
    tl_grad_clear(t);
    tl_tape_reset(t);
    assert_int_equal(tl_memory_stats(t).tape.used, 0);
    assert_string_equal(tl_error(t), "");
    tl_free(o, t, m);
}

static void twist(tl_tape *t, tl_tensor x)
{
    static const float by[D] = {0.5f, 2, 3, 0.25f};
    tl_tensor r = tl_constant(t, by, TL_F32, TL_DIMS(D));
    tl_rotary_(t, x, r, r, TL_ROTARY_HALF);
}

typedef struct {
    tl_model *m;
    tl_opt *o; /* NULL: no step */
} counted_run;

static void counted_micro(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                          void *ctx)
{
    const counted_run *r = ctx;
    (void)n, (void)n_out;
    tl_tensor loss = counted_loss(t, r->m, in[0], &out[0]);
    tl_backward(t, loss);
    if (r->o != NULL)
        tl_step(r->o, t);
}

/* By graphs of several sizes, called, and in turn: all find what one has made. */
static void one_computation_a_step_of_graphs(void **unused)
{
    static const int sizes[] = {3, 3, 1, 4, 1};
    static const float ones[2 * D] = {1, 1, 1, 1, 1, 1, 1, 1};
    (void)unused;
    for (int how = 0; how < 4; how++) { /* bits: called in turn, a graph steps */
        int ran = 0;
        tl_model *m = tl_model_new(.seed = 5);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_adamw_new(m, .lr = 0.05);
        counted_run r = {m, NULL}, last = {m, o};
        tl_compiled *c = tl_compile(t, counted_micro, 1, &r),
                    *end = tl_compile(t, counted_micro, 1, &last);
        assert_int_equal(tl_observe(t, &counting, &ran), TL_OK);
        for (int s = 1; s <= STEPS; s++) {
            for (int i = 0, from = 0; i < 5; from += sizes[i++]) {
                tl_tensor x = batch(t, from, from + sizes[i], TL_F32), made;
                if (how & 1 && (i + s) % 2 && i < 4)
                    counted_micro(t, &x, 1, &made, 1, &r);
                else
                    tl_run(how & 2 && i == 4 ? end : c, &x, 1, &made);
                if (i < 4)
                    expect_made(t, m, made);
                if (i == 4 && !(how & 2))
                    tl_step(o, t);
                tl_tape_reset(t);
                assert_true(i < 4 ? tl_memory_stats(t).tape.used > 0 : true);
            }
            assert_string_equal(tl_error(t), "");
            assert_int_equal(ran, s);
        }
        tl_tensor x = batch(t, 0, 3, TL_F32), made;
        tl_run(c, &x, 1, &made);
        tl_grad_clear(t);
        tl_write(m, tl_model_find(m, "b"), ones, sizeof ones);
        tl_run(c, &x, 1, &made);
        expect_made(t, m, made);
        twist(t, made); /* memory that the graph has given out */
        tl_run(c, &x, 1, &made);
        expect_made(t, m, made);
        assert_int_equal(ran, STEPS + 3);
        if (how & 1)
            tl_free(t, c, end, o, m);
        else
            tl_free(c, end, o, t, m);
    }
}

/* Whatever changes a parameter, or the memory of what was made of it, it is made anew. */
static void what_has_changed_is_made_anew(void **unused)
{
    enum { WRITTEN, ASSIGNED, IN_PLACE, STEPPED, ITSELF, OTHER_TAPE, CHANGES };
    static const float ones[2 * D] = {1, 1, 1, 1, 1, 1, 1, 1};
    (void)unused;
    for (int how = 0; how < CHANGES; how++) {
        int ran = 0;
        tl_model *m = tl_model_new(.seed = 5);
        tl_tape *t = tl_tape_new(m), *u = how == OTHER_TAPE ? tl_tape_new(m) : t;
        tl_opt *o = tl_sgd_new(m, .lr = 0.5);
        assert_int_equal(tl_observe(t, &counting, &ran), TL_OK);
        one_micro_batch(t, m, 0);
        tl_tensor made = one_micro_batch(t, m, 1), b = tl_model_find(m, "b");
        assert_int_equal(ran, 1);
        int scope = tl_mode_push(t, TL_NO_GRAD);
        if (how == WRITTEN)
            tl_write(m, b, ones, sizeof ones);
        else if (how == ASSIGNED || how == OTHER_TAPE)
            tl_assign(u, tl_select(u, b, 0, 1), tl_fill(u, TL_F32, TL_DIMS(D), 0.5));
        else if (how == IN_PLACE)
            twist(t, tl_slice(t, b, 0, 0, 1, 1));
        else if (how == ITSELF)
            twist(t, made);
        else
            tl_step(o, t);
        tl_mode_pop(t, scope);
        tl_tensor loss = counted_loss(t, m, batch(t, 2, 3, TL_F32), &made);
        expect_made(t, m, made);
        assert_int_equal(ran, how == ITSELF ? 1 : 2); /* a copy of it has been changed */
        if (how != STEPPED && how != ITSELF) {        /* gradients wait for what it was */
            assert_int_equal(tl_backward(t, loss), TL_EUSAGE);
            expect_error(t, "have been changed since");
        } else {
            assert_int_equal(tl_backward(t, loss), TL_OK);
        }
        tl_error_clear(u);
        if (u != t)
            tl_free(u);
        tl_free(o, t, m);
    }
}

/* A graph keeps what it refers to; what calls beside it have made, of another constant each step,
 * and the names of what waits, end with the step. */
static void a_graph_beside_it_keeps_no_more_each_step(void **unused)
{
    size_t before = 0;
    (void)unused;
    tl_model *m = tl_model_new(.seed = 5);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_adamw_new(m, .lr = 1e-3);
    tl_compiled *c = tl_compile(t, through_it, 1, m);
    for (int s = 0; s < 1000; s++) {
        tl_tensor x = batch(t, 0, 2, TL_F32), y;
        tl_run(c, &x, 1, &y);
        tl_step(o, t);
        tl_tape_reset(t);
        tl_tensor w = tl_mul(t, weight(t, m, "w", TL_F32), tl_scalar(t, TL_F32, 1 + s / 1e3));
        tl_backward(t, tl_sum(t, tl_matmul(t, batch(t, 0, 2, TL_F32), w), TL_ALL, false));
        for (int i = tl_accumulating_count(t); i-- > 0;)
            assert_non_null(tl_accumulating_at(t, i).param);
        tl_step(o, t);
        tl_tape_reset(t);
        const tl_tape_memory now = tl_memory_stats(t);
        if (s == 1)
            before = now.records + now.tape.used + now.gradients.used;
        else if (s > 1)
            assert_int_equal(now.records + now.tape.used + now.gradients.used, before);
    }
    assert_string_equal(tl_error(t), "");
    tl_run(c, (tl_tensor[]){batch(t, 0, 2, TL_F32)}, 1, (tl_tensor[1]){TL_NONE});
    assert_string_equal(tl_error(t), "");
    tl_free(c, o, t, m);
}

/* ---- a change in the middle of a program ---- */

typedef enum { STEP, ASSIGN, ASSIGN_PART, TURN, MIDDLES } middle;
typedef enum { LATE, LATE_AGAIN, NEW_USE, WAITS, WAITS_LONGER, ANEW, LATES } late;
typedef struct {
    tl_model *m;
    tl_opt *o;
    tl_tensor (*of)(tl_tape *t, tl_tensor w, tl_tensor v);
    middle change;
    late late;
    int parts; /* bits: before the change, it, after it */
} changed;

static tl_tensor of_curve(tl_tape *t, tl_tensor w, tl_tensor v)
{
    (void)v;
    return tl_tanh(t, tl_scale(t, w, 2));
}
static tl_tensor of_cast(tl_tape *t, tl_tensor w, tl_tensor v)
{
    (void)v;
    return tl_cast(t, tl_cast(t, w, TL_F64), TL_F32);
}
static tl_tensor of_product(tl_tape *t, tl_tensor w, tl_tensor v) { return tl_matmul(t, v, w); }
static tl_tensor of_other(tl_tape *t, tl_tensor w, tl_tensor v)
{
    (void)w;
    return tl_exp(t, v);
}
static tl_tensor of_row(tl_tape *t, tl_tensor w, tl_tensor v)
{
    return tl_mul(t, v, tl_slice(t, w, 0, D - 1, D, 1));
}
static tl_tensor of_detached(tl_tape *t, tl_tensor w, tl_tensor v)
{
    return tl_mul(t, tl_tanh(t, v), tl_detach(t, tl_exp(t, w)));
}
static tl_tensor of_held(tl_tape *t, tl_tensor w, tl_tensor v)
{
    return tl_mul(t, tl_tanh(t, v), tl_detach(t, w));
}

static void change_it(tl_tape *t, const changed *c, tl_tensor w)
{
    const int mode = tl_mode_push(t, TL_NO_GRAD);
    const bool part = c->change == ASSIGN_PART;
    if (c->change == STEP)
        tl_step(c->o, t);
    else if (c->change == TURN)
        twist(t, tl_slice(t, w, 0, 0, 1, 1));
    else
        tl_assign(t, part ? tl_slice(t, w, 0, 0, 1, 1) : w,
                  tl_fill(t, TL_F32, TL_DIMS(part ? 1 : D, D), 0.5));
    tl_mode_pop(t, mode);
}

static tl_tensor through_h(tl_tape *t, tl_tensor x, tl_tensor h)
{
    return tl_sum(t, tl_square(t, tl_matmul(t, x, h)), TL_ALL, false);
}

/* A step has gradients of all parameters, whatever h is made of. */
static void changed_meanwhile(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                              void *ctx)
{
    const changed *c = ctx;
    (void)n, (void)n_out;
    tl_tensor w = weight(t, c->m, "w", TL_F32), v = weight(t, c->m, "v", TL_F32);
    tl_tensor h = TL_NONE, z = TL_NONE;
    const bool early = c->late != LATE && c->late != NEW_USE;
    out[0] = out[1] = tl_scalar(t, TL_F32, 0);
    if (c->parts & 1) {
        h = c->of(t, w, v);
        tl_tensor y = through_h(t, in[0], h);
        z = tl_scale(t, y, 3);
        if (early)
            tl_backward(t, y, .partial = true, .retain = true);
        if (!early || c->change == STEP)
            tl_backward(t, through_h(t, in[0], tl_add(t, w, v)), .partial = true);
    }
    if (c->parts & 2)
        change_it(t, c, w);
    if (!(c->parts & 4))
        return;
    if (c->late == NEW_USE || c->late == WAITS_LONGER)
        z = through_h(t, tl_scale(t, in[0], 2), h);
    if (c->late == ANEW)
        z = through_h(t, in[0], c->of(t, w, v));
    if (c->late != WAITS)
        tl_backward(t, z, .partial = true);
    for (int i = 0; i < 2 && !tl_failed(t); i++) {
        tl_tensor g = tl_grad(t, i ? v : w);
        out[i] = tl_is_none(g) ? out[i] : tl_scale(t, g, 1);
    }
}

/* The error, or the hashes of gradients and weights. cut: which parts begin a call of their own;
 * compiled: which of these calls are runs. */
static void run_changed(changed c, int cut, int compiled, char said[512])
{
    c.m = tl_model_new(.seed = 5);
    c.o = tl_sgd_new(c.m, .lr = 0.5);
    tl_tape *t = tl_tape_new(c.m);
    weight(t, c.m, "w", TL_F32), weight(t, c.m, "v", TL_F32);
    tl_tensor x = batch(t, 0, 1, TL_F32), out[2];
    changed of[3];
    tl_compiled *graph[3];
    for (int i = 0; i < 3; i++) {
        of[i] = c;
        for (int k = i; k == i || (k < 3 && !(cut & 1 << k)); k++)
            of[i].parts |= 1 << k;
        graph[i] = tl_compile(t, changed_meanwhile, 2, &of[i]);
    }
    for (int i = 0; i < 3; i++)
        if (i > 0 && !(cut & 1 << i))
            continue;
        else if (compiled & 1 << i)
            tl_run(graph[i], &x, 1, out);
        else
            changed_meanwhile(t, &x, 1, out, 2, &of[i]);
    snprintf(said, 512, "%s", tl_error(t));
    for (int i = 0; !tl_failed(t) && i < 2; i++)
        tl_sha256(t, out[i], said + 64 * i);
    if (!tl_failed(t))
        tl_model_sha256(c.m, said + 128);
    tl_error_clear(t);
    tl_free(graph[0], graph[1], graph[2], c.o, t, c.m);
}

/* Wherever calls end, and whichever of them are runs. */
static void a_change_in_a_graph_is_as_it_is_called(void **unused)
{
    static tl_tensor (*const of[])(tl_tape *, tl_tensor,
                                   tl_tensor) = {of_curve, of_cast,     of_product, of_other,
                                                 of_row,   of_detached, of_held};
    enum { FORMS = sizeof of / sizeof *of, ALL = FORMS * MIDDLES * LATES };
    int wrong = 0, refused = 0;
    (void)unused;
    for (int i = 0; i < ALL; i++) {
        char want[512], got[512];
        changed c = {.of = of[i % FORMS],
                     .change = (middle)(i / FORMS % MIDDLES),
                     .late = (late)(i / FORMS / MIDDLES)};
        const bool one = c.late != WAITS && c.late != ANEW; /* a value goes over the change */
        run_changed(c, 0, 0, want);
        refused += strlen(want) != 192;
        for (int cut = 0; cut < (one ? 2 : 8); cut += 2)
            for (int compiled = 1; compiled < 8; compiled++) {
                if (compiled & ~(cut | 1))
                    continue;
                run_changed(c, cut, compiled, got);
                if (strcmp(want, got) != 0 && ++wrong)
                    fprintf(stderr, "of %d, change %d, late %d, cut %d: %s; compiled %d: %s\n",
                            i % FORMS, (int)c.change, (int)c.late, cut, want, compiled, got);
            }
    }
    assert_int_equal(wrong, 0);
    assert_in_range(refused, 20, ALL - 20);
}

/* ---- micro-batches as long as their longest sample ---- */

enum { LONG = 5, FAMILIES = 8, RAGGED = 6 };

/* Sizes that follow the micro-batch make other values of parameters in each, which one word tells;
 * what is made for all and then cut is one value. x is (B, steps, D). */
static tl_tensor looked_up(tl_tape *t, tl_model *m, int steps, tl_dtype dtype)
{
    static const int64_t ids[LONG] = {0, 1, 2, 3, 4};
    return tl_embedding(t, param(t, m, "p", dtype, TL_DIMS(LONG, D)),
                        tl_constant(t, ids, TL_I64, TL_DIMS(steps)));
}
static tl_tensor ranged(tl_tape *t, tl_model *m, int steps, tl_dtype dtype)
{
    tl_tensor p = param(t, m, "p", dtype, TL_DIMS(LONG, D));
    return tl_embedding(t, p, tl_arange(t, TL_I64, 0, steps, 1));
}
static tl_tensor waves(tl_tape *t, tl_model *m, int steps, tl_dtype dtype)
{
    static const float at[LONG] = {0, 1, 2, 3, 4};
    tl_tensor f = param(t, m, "f", dtype, TL_DIMS(1, D));
    return tl_cos(t,
                  tl_mul(t, tl_cast(t, tl_constant(t, at, TL_F32, TL_DIMS(steps, 1)), dtype), f));
}
static tl_tensor cut_first(tl_tape *t, tl_model *m, int steps, tl_dtype dtype)
{
    return tl_tanh(t, tl_slice(t, param(t, m, "p", dtype, TL_DIMS(LONG, D)), 0, 0, steps, 1));
}
static tl_tensor cut(tl_tape *t, tl_tensor x, int steps) { return tl_slice(t, x, 0, 0, steps, 1); }
static tl_tensor looked_up_and_cut(tl_tape *t, tl_model *m, int steps, tl_dtype dtype)
{
    return cut(t, looked_up(t, m, LONG, dtype), steps);
}
static tl_tensor waves_and_cut(tl_tape *t, tl_model *m, int steps, tl_dtype dtype)
{
    return cut(t, waves(t, m, LONG, dtype), steps);
}
static tl_tensor cut_alone(tl_tape *t, tl_model *m, int steps, tl_dtype dtype)
{
    return cut(t, param(t, m, "p", dtype, TL_DIMS(LONG, D)), steps);
}
/* Two made alike, in each micro-batch. */
static tl_tensor both(tl_tape *t, tl_model *m, int steps, tl_dtype dtype)
{
    tl_tensor p = param(t, m, "p", dtype, TL_DIMS(LONG, D)), y = tl_tanh(t, tl_scale(t, p, 2));
    return cut(t, tl_add(t, y, tl_tanh(t, tl_scale(t, p, 3))), steps);
}
static const struct {
    const char *name;
    tl_tensor (*f)(tl_tape *t, tl_model *m, int steps, tl_dtype dtype);
    bool speaks;
} cuts[] = {
    {"looked up", looked_up, true},
    {"arange", ranged, true},
    {"waves", waves, true},
    {"cut first", cut_first, true},
    {"looked up and cut", looked_up_and_cut, false},
    {"waves and cut", waves_and_cut, false},
    {"cut", cut_alone, false},
    {"both", both, false},
};

typedef struct {
    int k;
    tl_model *m;
    tl_opt *opt;
    tl_dtype dtype;
    int said; /* lines of explanation */
} ragged;
enum { RAGGED_CALLED, RAGGED_COMPILED, RAGGED_STEP, RAGGED_WAYS }; /* the last: all in graphs */

static void ragged_micro(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                         void *ctx)
{
    ragged *r = ctx;
    char text[1024];
    (void)n, (void)n_out;
    const int steps = (int)tl_shape_of(t, in[0]).dim[1];
    tl_tensor y = tl_tanh(t, tl_add(t, in[0], cuts[r->k].f(t, r->m, steps, r->dtype)));
    y = tl_mul(t, tl_cast(t, tl_matmul(t, y, weight(t, r->m, "w", r->dtype)), TL_F32), in[1]);
    out[0] = tl_sum(t, tl_square(t, y), TL_ALL, false);
    if (!tl_traced(t))
        r->said += tl_explain_invariance(t, out[0], text, sizeof text);
    tl_backward(t, out[0], .ragged = true);
}
static void ragged_last(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                        void *ctx)
{
    ragged_micro(t, in, n, out, n_out, ctx);
    tl_step(((ragged *)ctx)->opt, t);
}

/* The hash of the gradients, or of the weights after a step, or the error, after micro-batches of
 * those sizes. */
static void ragged_gradient(ragged *r, const int *length, const int *sizes, int how, bool strict,
                            char hex[512])
{
    r->m = tl_model_new(.seed = 5);
    r->opt = tl_sgd_new(r->m, .lr = 0.5);
    r->said = 0;
    tl_tape *t = tl_tape_new(r->m);
    tl_compiled *c = tl_compile(t, ragged_micro, 1, r), *last = tl_compile(t, ragged_last, 1, r);
    if (strict)
        tl_mode_push(t, TL_STRICT);
    for (int i = 0, from = 0; sizes[i] > 0 && !tl_failed(t); from += sizes[i++]) {
        float x[RAGGED * LONG * D] = {0}, there[RAGGED * LONG] = {0};
        int steps = 1;
        for (int j = 0; j < sizes[i]; j++)
            steps = length[from + j] > steps ? length[from + j] : steps;
        for (int j = 0; j < sizes[i] * steps; j++) {
            const int sample = from + j / steps, at = j % steps;
            there[j] = at < length[sample] ? 1 : 0;
            for (int d = 0; d < D; d++)
                x[j * D + d] = (float)(((sample * LONG + at) * D + d) * 7919 % 1009) / 500 - 1;
        }
        tl_tensor out,
            in[] = {tl_cast(t, tl_data(t, x, TL_F32, TL_DIMS(sizes[i], steps, D)), r->dtype),
                    tl_data(t, there, TL_F32, TL_DIMS(sizes[i], steps, 1))};
        if (how == RAGGED_CALLED)
            ragged_micro(t, in, 2, &out, 1, r);
        else
            tl_run(how == RAGGED_STEP && sizes[i + 1] == 0 ? last : c, in, 2, &out);
        tl_tape_reset(t);
    }
    snprintf(hex, 512, "%s", tl_error(t));
    for (int i = 0; !tl_failed(t) && i < tl_model_count(r->m) && i < 2; i++) {
        const tl_tensor w = tl_model_at(r->m, i).tensor;
        tl_sha256(t, how == RAGGED_STEP ? w : tl_grad(t, w), hex + 64 * i);
    }
    tl_error_clear(t);
    tl_free(c, last, r->opt, t, r->m);
}

static void other_sizes_make_other_values_and_are_named(void **unused)
{
    static const int sizes[][RAGGED + 1] = {{6},       {1, 5}, {5, 1},
                                            {2, 2, 2}, {3, 3}, {1, 1, 1, 1, 1, 1}};
    (void)unused;
    for (int k = 0; k < (int)(sizeof cuts / sizeof *cuts); k++) {
        int differ = 0;
        for (int f = 0; f < FAMILIES * 2 * RAGGED_WAYS; f++) {
            char want[512], got[512], word[512];
            int length[RAGGED];
            const int how = f % RAGGED_WAYS, family = f / RAGGED_WAYS / 2;
            ragged r = {.k = k, .dtype = f / RAGGED_WAYS % 2 ? TL_BF16 : TL_F32};
            for (int i = 0; i < RAGGED; i++)
                length[i] = 1 + (family * 7 + i * i * 3 + i * family) % LONG;
            ragged_gradient(&r, length, sizes[0], how, false, want);
            for (int s = 0; s < (int)(sizeof sizes / sizeof *sizes); s++) {
                ragged_gradient(&r, length, sizes[s], how, false, got);
                const int said = r.said;
                ragged_gradient(&r, length, sizes[s], how, true, word);
                const bool refused = strstr(word, "TL_STRICT") != NULL, other = strcmp(got, want);
                differ += other;
                if (strlen(want) != 128 || strlen(got) != 128 || (other && !refused) ||
                    (refused && (!cuts[k].speaks || !strstr(word, "test_derived.c:"))) ||
                    (!refused && strcmp(word, got) != 0) ||
                    (how == RAGGED_CALLED && (said > 0) != refused))
                    fail_msg("%s, %d, way %d, family %d: %s, whole %s, strict %s, %d lines",
                             cuts[k].name, s, how, f, got, want, word, said);
            }
        }
        if ((differ > 0) != cuts[k].speaks)
            fail_msg("%s: %d differ", cuts[k].name, differ);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_dir, remove_dir)
/* ---- out of memory, and then there is some again ---- */

static void one_backward(tl_tape *t, tl_model *m)
{
    const float x[D][D] = {{1, 2, 3}};
    tl_tensor h = tl_matmul(t, weight(t, m, "w", TL_F32), weight(t, m, "v", TL_F32)),
              y = tl_matmul(t, tl_data(t, x, TL_F32, TL_DIMS(D, D)), h);
    tl_backward(t, tl_sum(t, y, TL_ALL, false), .partial = true);
}

static void trained(tl_tape *t, tl_model *m, char hex[65])
{
    tl_error_clear(m);
    tl_error_clear(t);
    tl_tape_reset(t);
    tl_grad_clear(t);
    one_backward(t, m);
    if (tl_sha256(t, tl_grad(t, tl_model_find(m, "w")), hex) != TL_OK)
        fail_msg("%s", tl_error(t));
}

enum { RECORD, SAVE, LOAD, CALLS };

/* Allocation k fails; false if there are not so many. What is done then is done whole or said. */
static bool fails_at(int call, int k, const char *want)
{
    char hex[65];
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    if (call == SAVE)
        one_backward(t, m);
    tl_data(t, &(float){0}, TL_F32, TL_DIMS(1)); /* there is a tape, and there are parameters */
    weight(t, m, "w", TL_F32), weight(t, m, "v", TL_F32);
    tl_alloc_fail_after(k);
    tl_status s = TL_OK;
    if (call == RECORD)
        one_backward(t, m), tl_grad(t, tl_model_find(m, "w")), s = tl_error_status(t);
    else if (call == SAVE)
        s = tl_checkpoint_save_tape(t, NULL, path, NULL, 0);
    else
        s = tl_checkpoint_load_tape(t, NULL, path, NULL, NULL, 0);
    tl_alloc_fail_after(0);
    if (s != TL_OK && s != TL_ENOMEM)
        fail_msg("call %d, allocation %d: %s %s", call, k, tl_error(m), tl_error(t));
    if (call == SAVE && s == TL_OK) {
        tl_grad_clear(t);
        tl_tape_reset(t);
        if (tl_checkpoint_load_tape(t, NULL, path, NULL, NULL, 0) != TL_OK)
            fail_msg("saved though allocation %d failed: %s %s", k, tl_error(m), tl_error(t));
    } else if (call != LOAD || s != TL_OK) {
        trained(t, m, hex);
        assert_string_equal(hex, want);
    }
    tl_free(t, m);
    return s != TL_OK;
}

static void want_of_memory_passes(void **unused)
{
    char want[65];
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_warnings(false);
    trained(t, m, want);
    assert_int_equal(tl_checkpoint_save_tape(t, NULL, path, NULL, 0), TL_OK);
    for (int call = 0; call < CALLS; call++) {
        int k = 1;
        while (fails_at(call, k, want))
            k++;
        assert_true(k > 5);
    }
    tl_warnings(true);
    tl_free(t, m);
}

/* Two sums in a file for one value, of which the second is shorter. */
static void sums_of_one_value_have_one_shape(void **unused)
{
    static float many[4096], one[1], w[D * D];
    const tl_shape long_one = TL_DIMS(4096), short_one = TL_DIMS(1), square = TL_DIMS(D, D);
    const tl_st_entry e[] = {{"grad.0.a.=1234", tl_array_make(TL_F32, &long_one, many)},
                             {"grad.0.b.=1234", tl_array_make(TL_F32, &short_one, one)},
                             {"w", tl_array_make(TL_F32, &square, w)}};
    const tl_st_meta seed = {"tally.seed", "1"};
    tl_err err = {.status = TL_OK};
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    weight(t, m, "w", TL_F32);
    assert_int_equal(tl_st_write(path, e, 3, &seed, 1, &err), TL_OK);
    assert_int_equal(tl_checkpoint_load_tape(t, NULL, path, NULL, NULL, 0), TL_ESHAPE);
    assert_non_null(strstr(tl_error(m), "of shape [4096], which has shape [1]"));
    assert_int_equal(tl_accumulating_count(t), 0);
    tl_free(t, m);
}

/* The tensor that a waiting gradient goes back to has been taken out of the model. */
static void a_tensor_removed_under_it_gets_no_gradient(void **unused)
{
    static const float x[] = {1, 2, 3, 4, 5, 6};
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.5);
    tl_tensor v = tl_param(t, m, "v", TL_F32, TL_DIMS(3), .kind = TL_INIT_ONES);
    const uint32_t mark = tl_model_mark(m);
    tl_tensor w = tl_tanh(t, tl_param(t, m, "w", TL_F32, TL_DIMS(3), .kind = TL_INIT_ONES));
    tl_tensor y = tl_mul(t, tl_add(t, v, w), tl_data(t, x, TL_F32, TL_DIMS(2, 3)));
    assert_int_equal(tl_backward(t, tl_sum(t, y, TL_ALL, false)), TL_OK);
    tl_tape_reset(t);
    tl_model_rollback(m, mark);
    assert_int_equal(tl_model_count(m), 1);
    assert_int_equal(tl_step(o, t), TL_ESTALE);
    expect_error(t, "was removed from the model");
    tl_error_clear(t);
    tl_tape_reset(t);
    tl_tensor u = tl_param(t, m, "u", TL_F32, TL_DIMS(1, 3), .kind = TL_INIT_ONES);
    y = tl_reshape(t, u, TL_DIMS(3)); /* a program that was recorded before */
    y = tl_sum(t, tl_mul(t, y, tl_data(t, x, TL_F32, TL_DIMS(2, 3))), TL_ALL, false);
    tl_model_rollback(m, mark);
    assert_int_equal(tl_backward(t, y), TL_ESTALE);
    expect_error(t, "a parameter of mul has been removed");
    tl_error_clear(t);
    tl_tape_reset(t);
    for (int read = 0; read < 2; read++) { /* by the gradient of v */
        tl_tensor dv;
        tl_tape_reset(t);
        v = tl_param(t, m, "v", TL_F32, TL_DIMS(3));
        u = tl_param(t, m, "u", TL_F32, TL_DIMS(3), .kind = TL_INIT_ONES);
        y = tl_sum(t, read ? tl_mul(t, v, u) : tl_add(t, v, u), TL_ALL, false);
        tl_model_rollback(m, mark);
        assert_int_equal(read ? tl_gradients(t, y, &v, 1, TL_NONE, &dv) : tl_backward(t, y),
                         TL_ESTALE);
        expect_error(t, read ? "a parameter of mul has been removed"
                             : "a parameter of add has been removed");
        tl_error_clear(t);
    }
    tl_free(o, t, m);
}

static void use_w(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    const uint32_t *remove = ctx;
    (void)n_in, (void)n_out;
    tl_tensor w = tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(3), .kind = TL_INIT_ONES);
    out[0] = tl_detach(t, tl_mul(t, tl_tanh(t, w), in[0]));
    if (*remove > 0)
        tl_model_rollback(tl_tape_model(t), *remove);
}

/* A graph is of tensors, not of the places where they lay. */
static void a_graph_of_a_removed_tensor_is_refused_or_traced_again(void **unused)
{
    static const float x[] = {1, 2, 3};
    uint32_t remove = 0;
    tl_tensor out[2];
    float got[2][3];
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_param(t, m, "v", TL_F32, TL_DIMS(3));
    tl_tensor in = tl_data(m, x, TL_F32, TL_DIMS(3));
    const uint32_t mark = tl_model_mark(m);
    tl_graph *g = tl_trace(t, use_w, &in, 1, 1, &remove);
    tl_compiled *c = tl_compile(t, use_w, 1, &remove);
    assert_int_equal(tl_graph_run(g, &in, 1, out, 1), TL_OK);
    assert_int_equal(tl_run(c, &in, 1, out), TL_OK);
    tl_buffer(t, m, "later", TL_F32, TL_DIMS(1)); /* and removed: none of the graphs' business */
    tl_model_rollback(m, tl_model_mark(m) - 1);
    assert_int_equal(tl_run(c, &in, 1, out), TL_OK);
    assert_int_equal(tl_compiled_count(c), 1);
    tl_model_rollback(m, mark);
    assert_int_equal(tl_graph_run(g, &in, 1, out, 1), TL_EUSAGE);
    expect_error(t, "tensors of the model that are no more");
    tl_error_clear(t);
    tl_param(t, m, "another", TL_F32, TL_DIMS(1)); /* where w was */
    assert_int_equal(tl_graph_run(g, &in, 1, out, 1), TL_EUSAGE);
    tl_error_clear(t);
    assert_int_equal(tl_run(c, &in, 1, out), TL_OK);
    assert_int_equal(tl_compiled_count(c), 1); /* another: the one before is over */
    use_w(t, &in, 1, out + 1, 1, &remove);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tl_keep(t, out[i], got[i], sizeof got[i]), TL_OK);
    assert_memory_equal(got[0], got[1], sizeof *got);
    remove = mark;
    assert_null(tl_trace(t, use_w, &in, 1, 1, &remove));
    expect_error(t, "input 0 of tanh was removed from the model");
    tl_error_clear(t);
    tl_free(c, g, t, m);
}

/* ---- gradients beside what is detached: those of v for x * tanh(v) * c with numbers c ---- */

enum { LAYERED, MARKED_LATE, UNTRAINED_FIRST, UNTRAINED_LAST, BESIDES };

static void gradients_beside_what_is_detached(void **unused)
{
    static const double x[2 * D] = {1, -2, 3, 0.5, 0.25, 2, 1, -1};
    (void)unused;
    for (int k = 0; k < BESIDES; k++)
        for (int plain = 0; plain < 2; plain++) {
            static double got[2][2 * D], number[2 * D];
            tl_model *m = tl_model_new(.seed = 2);
            tl_tape *t = tl_tape_new(m);
            tl_tensor w = param(t, m, "w", TL_F64, TL_DIMS(2, D)),
                      v = param(t, m, "v", TL_F64, TL_DIMS(2 * D)), c, y, a, g;
            const int mode = k < UNTRAINED_FIRST ? 0 : tl_mode_push(t, TL_NO_GRAD);
            if (k == LAYERED) { /* what is detached has strides, by which a reshape is a view */
                c = tl_detach(t, tl_transpose(t, w, 0, 1));
                c = tl_reshape(t, tl_transpose(t, c, 0, 1), TL_DIMS(2 * D));
            } else {
                c = k == MARKED_LATE ? tl_detach(t, v) : tl_tanh(t, v);
            }
            if (k >= UNTRAINED_FIRST)
                tl_mode_pop(t, mode);
            if (plain) {
                assert_int_equal(tl_keep(t, c, number, sizeof number), TL_OK);
                c = tl_data(t, number, TL_F64, TL_DIMS(2 * D));
                tl_batch_axis(t, c, TL_FREE);
            }
            a = tl_tanh(t, v);
            y = k == UNTRAINED_FIRST ? tl_mul(t, c, a) : tl_mul(t, a, c);
            if (k == MARKED_LATE)
                tl_require_grad(t, c);
            y = tl_sum(t, tl_mul(t, tl_data(t, x, TL_F64, TL_DIMS(1, 2 * D)), y), TL_ALL, false);
            assert_int_equal(tl_backward(t, y, .partial = true), TL_OK);
            g = tl_grad(t, k == MARKED_LATE ? c : v);
            assert_false(tl_is_none(g));
            assert_int_equal(tl_keep(t, g, got[plain], sizeof *got), TL_OK);
            if (plain)
                for (int i = 0; i < 2 * D; i++)
                    if (!(fabs(got[0][i] - got[1][i]) <= 1e-12))
                        fail_msg("%d: %g is not %g", k, got[0][i], got[1][i]);
            tl_free(t, m);
        }
}

/* ---- ops of one name ---- */

static tl_status like_input(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

static tl_status power(tl_call *c, int n)
{
    for (int64_t i = 0; i < tl_array_count(&c->out[0]); i++) {
        const double x = tl_array_get(c->in[0], i);
        tl_array_put(&c->out[0], i, n == 2 ? x * x : x * x * x);
    }
    return TL_OK;
}
static tl_status squares(tl_call *c) { return power(c, 2); }
static tl_status cubes(tl_call *c) { return power(c, 3); }
static void squares_vjp(tl_vjp *g)
{
    g->dx[0] = tl_mul(g->t, g->dy[0], tl_scale(g->t, g->in[0], 2));
}
static void cubes_vjp(tl_vjp *g)
{
    g->dx[0] = tl_mul(g->t, g->dy[0], tl_scale(g->t, tl_square(g->t, g->in[0]), 3));
}

/* Their values go by their names, and would share an accumulator. */
static void two_ops_of_one_name_are_refused(void **unused)
{
    static const char *const names[] = {"squares", "mine", "tanh"};
    (void)unused;
    for (int k = 0; k < 3; k++) {
        const tl_op a = {.name = names[k],
                         .n_in = 1,
                         .n_out = 1,
                         .traits = TL_WIDENED,
                         .shape = like_input,
                         .forward = squares,
                         .vjp = squares_vjp,
                         .saves_in = 1},
                    b = {.name = "mine",
                         .n_in = 1,
                         .n_out = 1,
                         .traits = TL_WIDENED,
                         .shape = like_input,
                         .forward = cubes,
                         .vjp = cubes_vjp,
                         .saves_in = 1};
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(3), TL_INIT_ONES, 0),
                  x = tl_data(t, ((float[6]){1, 1, 1, 1, 1, 1}), TL_F32, TL_DIMS(2, 3));
        const float v[3] = {1, 2, 3};
        assert_int_equal(tl_write(m, w, v, sizeof v), TL_OK);
        tl_tensor y = tl_mul(t, x, tl_apply1(TL_AT(t), &a, NULL, &w, 1)),
                  z = k < 2 ? tl_mul(t, x, tl_apply1(TL_AT(t), &b, NULL, &w, 1))
                            : tl_mul(t, x, tl_tanh(t, w));
        tl_backward(t, tl_sum(t, tl_add(t, y, z), TL_ALL, false));
        if (k == 0) {
            float g[3];
            assert_int_equal(tl_keep(t, tl_grad(t, w), g, sizeof g), TL_OK);
            for (int i = 0; i < 3; i++)
                assert_true(g[i] == 2 * (2 * v[i] + 3 * v[i] * v[i]));
        } else {
            char says[64];
            snprintf(says, sizeof says, "%s: another op of this name", names[k]);
            expect_failure(t, TL_ENAME, says);
        }
        tl_free(t, m);
    }
}

/* ---- how the work grows ---- */

static tl_tensor chain(tl_tape *t, tl_tensor x, tl_tensor w, int n)
{
    for (int i = 0; i < n; i++)
        w = tl_tanh(t, w);
    return tl_mul(t, x, w);
}

static tl_tensor values_of_one(tl_tape *t, tl_tensor x, tl_tensor w, int n)
{
    tl_tensor y = x;
    for (int i = 0; i < n; i++)
        y = tl_add(t, y, tl_mul(t, x, tl_tanh(t, tl_scale(t, w, i + 1))));
    return y;
}

static tl_tensor views_of_one(tl_tape *t, tl_tensor x, tl_tensor w, int n)
{
    tl_tensor rows = tl_param(t, tl_tape_model(t), "rows", TL_F32, TL_DIMS(n, 4), TL_INIT_ONES, 0);
    for (int i = 0; i < n; i++)
        x = tl_mul(t, x, tl_select(t, rows, 0, i));
    return tl_mul(t, x, w);
}

/* Two micro-batches and a step. *bytes: of records. */
static int64_t steps_of(tl_tensor (*f)(tl_tape *, tl_tensor, tl_tensor, int), int n, size_t *bytes)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    const int64_t began = steps_taken();
    for (int i = 0; i < 2; i++) {
        tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(1, 4));
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(4), TL_INIT_ONES, 0);
        tl_backward(t, tl_sum(t, f(t, x, w, n), TL_ALL, false));
        if (i == 0)
            tl_tape_reset(t);
    }
    tl_step(o, t);
    *bytes = tl_memory_stats(t).records;
    assert_string_equal(tl_error(t), "");
    const int64_t took = steps_taken() - began;
    tl_free(o, t, m);
    return took;
}

/* Four times the program, four times the work and the records, or a little more; their square would
 * be sixteen times. */
static void work_grows_with_the_program(void **unused)
{
    static const struct {
        const char *name;
        tl_tensor (*f)(tl_tape *, tl_tensor, tl_tensor, int);
    } family[] = {{"chain", chain},
                  {"values of one parameter", values_of_one},
                  {"views of one parameter", views_of_one}};
    (void)unused;
    for (size_t i = 0; i < sizeof family / sizeof *family; i++) {
        size_t small, large;
        const int64_t few = steps_of(family[i].f, 150, &small),
                      many = steps_of(family[i].f, 600, &large);
        print_message("%s: %lld, %lld steps, %zu, %zu bytes\n", family[i].name, (long long)few,
                      (long long)many, small, large);
        assert_in_range(many, few, 6 * few);
        assert_in_range(large, small, 6 * small);
    }
}

const struct CMUnitTest tl_tests_derived[] = {
    TEST(a_scope_that_keeps_the_promise_makes_no_value_anew),
    TEST(work_grows_with_the_program),
    TEST(want_of_memory_passes),
    TEST(gradients_beside_what_is_detached),
    TEST(two_ops_of_one_name_are_refused),
    TEST(sums_of_one_value_have_one_shape),
    TEST(one_hash_called),
    TEST(one_hash_compiled),
    TEST(one_hash_over_checkpoints),
    TEST(what_changes_meanwhile_is_an_error),
    TEST(what_was_recorded_before_a_change_is_an_error),
    TEST(another_expression_is_another_program),
    TEST(a_gradient_is_read_between_backwards),
    TEST(a_gradient_is_read_in_a_fast_scope),
    TEST(what_is_frozen_meanwhile_gets_nothing),
    TEST(one_computation_a_step),
    TEST(one_computation_a_step_of_graphs),
    TEST(what_has_changed_is_made_anew),
    TEST(a_graph_beside_it_keeps_no_more_each_step),
    TEST(a_change_in_a_graph_is_as_it_is_called),
    TEST(other_sizes_make_other_values_and_are_named),
    TEST(a_tensor_removed_under_it_gets_no_gradient),
    TEST(a_graph_of_a_removed_tensor_is_refused_or_traced_again),
};
const size_t tl_tests_derived_count = sizeof tl_tests_derived / sizeof *tl_tests_derived;
