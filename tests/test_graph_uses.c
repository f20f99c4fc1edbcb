/* Which parameters a backward reaches, how often each is used and in which order: the same called
 * and compiled, with parameters that are reached by paths that give nothing, values that carry no
 * gradient, and gradients of gradients. Each parameter that is reached decays, each use has an
 * accumulator of its own which calls and runs continue in turn: the weights tell. */
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

extern const struct CMUnitTest tl_tests_graph_uses[];
extern const size_t tl_tests_graph_uses_count;

enum { ROWS = 3, WIDTH = 6, STEPS = 7, PARAMS = 3, PROGRAMS = 600, TRAINED = 3 };
/* What is compiled of a step of two micro-batches, the second with the optimizer or without. */
enum { NOTHING, BOTH, SECOND, FIRST, BOTH_AND_STEP, SECOND_AND_STEP, WAYS };

typedef struct {
    tl_model *m;
    uint64_t seed, state;
    int steps;
    tl_dtype dtype;
    tl_opt *o;
} program;

static int below(program *p, int n)
{
    uint64_t z = p->state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (int)((z ^ (z >> 31)) % (uint64_t)n);
}

static tl_tensor param(tl_tape *t, program *p, char kind, int i)
{
    const char name[3] = {kind, (char)('0' + i), 0};
    return tl_param(t, p->m, name, p->dtype, kind == 'w' ? TL_DIMS(WIDTH, WIDTH) : TL_DIMS(WIDTH),
                    TL_INIT_UNIFORM, 1);
}

static tl_tensor gamma_of(tl_tape *t, program *p) { return param(t, p, 'g', below(p, PARAMS)); }

/* One more value: of those there are, recent ones are likelier. */
static tl_tensor next(tl_tape *t, program *p, const tl_tensor *have, int n)
{
    tl_tensor a = have[n - 1 - below(p, n < 3 ? n : 3)], b = have[below(p, n)], y, s;
    switch (below(p, 13)) {
    case 0: return tl_add(t, a, b);
    case 1:
    case 2: return tl_rms_norm(t, tl_add(t, a, b), gamma_of(t, p), 1e-3);
    case 3: return tl_rms_norm(t, a, gamma_of(t, p), 1e-3);
    case 4: /* the sum alone, and a norm of it that may lead nowhere */
        s = tl_add(t, a, b);
        y = tl_rms_norm(t, s, gamma_of(t, p), 1e-3);
        return below(p, 2) ? s : tl_add(t, tl_detach(t, y), s);
    case 5: return tl_layer_norm(t, a, gamma_of(t, p), param(t, p, 'b', below(p, PARAMS)), 1e-3);
    case 6: return tl_mul(t, tl_silu(t, a), b);
    case 7: return tl_matmul(t, a, param(t, p, 'w', below(p, PARAMS)));
    case 8: return tl_detach(t, a);
    case 9: return tl_mul(t, a, gamma_of(t, p));
    case 10:
        y = tl_add_rms_norm(t, a, b, gamma_of(t, p), 1e-3, NULL, &s);
        return below(p, 2) ? y : s;
    case 11: /* it decides, and nothing comes back to it */
        return tl_where(t, tl_cast(t, tl_mul(t, a, gamma_of(t, p)), TL_BOOL), a, b);
    default: return tl_sub(t, tl_sin(t, a), b);
    }
}

static tl_tensor squared(tl_tape *t, tl_tensor x)
{
    return tl_mean(t, tl_square(t, tl_cast(t, x, TL_F32)), TL_ALL, false);
}

/* Linear in x, its gradient knows nothing of what was only added to x: a norm's bias is reached by
 * the norm's other results, and nothing comes to it. */
static tl_tensor measured(tl_tape *t, program *p, tl_tensor x)
{
    return below(p, 2) ? squared(t, x) : tl_mean(t, tl_cast(t, x, TL_F32), TL_ALL, false);
}

static void call(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    program *p = ctx;
    p->state = p->seed;
    (void)n_in, (void)n_out;
    tl_tensor have[STEPS + 2] = {in[0], tl_matmul(t, in[0], param(t, p, 'w', 0))}, h = have[1];
    int n = 2;
    while (n < p->steps + 2) {
        have[n] = next(t, p, have, n);
        n++;
    }
    tl_tensor loss = tl_add(t, measured(t, p, h), measured(t, p, have[n - 1]));
    for (int k = below(p, 3); k > 0; k--)
        loss = tl_add(t, measured(t, p, have[below(p, n)]), loss);
    if (below(p, 2)) { /* a penalty on a gradient */
        tl_tensor d;
        tl_gradients(t, loss, &h, 1, TL_NONE, &d);
        loss = below(p, 2) ? squared(t, d) : tl_add(t, loss, squared(t, d));
    }
    out[0] = loss;
    bool again = below(p, 4) == 0;
    tl_backward(t, loss, .partial = true, .retain = again);
    if (again)
        tl_backward(t, squared(t, tl_sin(t, h)), .partial = true);
}

static void call_and_step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                          void *ctx)
{
    call(t, in, n_in, out, n_out, ctx);
    tl_step(((program *)ctx)->o, t);
}

/* The weights' hash after TRAINED steps, or the error's text. */
static void train(program *p, int way, char hex[512])
{
    p->m = tl_model_new(.seed = 4);
    p->o = tl_adamw_new(p->m, .lr = 1e-2, .weight_decay = 0.1);
    tl_tape *t = tl_tape_new(p->m);
    tl_compiled *c[2] = {tl_compile(t, call, 1, p), tl_compile(t, call_and_step, 1, p)};
    for (int k = 0; k < 2 * TRAINED && !tl_failed(t); k++) {
        bool second = k % 2, step = second && way >= BOTH_AND_STEP;
        bool run = second ? way != NOTHING && way != FIRST
                          : way == BOTH || way == FIRST || way == BOTH_AND_STEP;
        float x[ROWS * WIDTH];
        for (int i = 0; i < ROWS * WIDTH; i++)
            x[i] = (float)((i + 5 * k) * 7 % 19) / 8 - 1;
        tl_tensor in = tl_cast(t, tl_data(t, x, TL_F32, TL_DIMS(ROWS, WIDTH)), p->dtype), y;
        if (run)
            tl_run(c[step], &in, 1, &y);
        else
            call(t, &in, 1, &y, 1, p);
        if (second && !step)
            tl_step(p->o, t);
        tl_tape_reset(t);
    }
    if (tl_failed(t))
        snprintf(hex, 512, "%s", tl_error(t));
    else
        tl_model_sha256(p->m, hex);
    tl_error_clear(t);
    tl_free(c[0], c[1], p->o, t, p->m);
}

/* The first way that gives something else than the program called, be it an error; NOTHING: none.
 */
static int differs(program *p, char want[512], char got[512])
{
    train(p, NOTHING, want);
    for (int way = BOTH; way < WAYS; way++) {
        train(p, way, got);
        if (strlen(want) == 64 ? strcmp(want, got) != 0 : strlen(got) == 64)
            return way;
    }
    return NOTHING;
}

static void random_programs_use_parameters_alike(void **unused)
{
    const char *env = getenv("TL_TEST_SEED");
    uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : 1;
    char want[512], got[512];
    int trained = 0;
    (void)unused;
    for (uint64_t i = 0; i < PROGRAMS; i++) {
        program p = {.seed = seed + i, .steps = STEPS, .dtype = i % 4 == 3 ? TL_F16 : TL_F32};
        int way = differs(&p, want, got);
        trained += strlen(want) == 64;
        if (way == NOTHING)
            continue;
        for (p.steps = 1;
             (way = differs(&p, want, got)) == NOTHING;) /* the shortest that differs */
            p.steps++;
        fail_msg("TL_TEST_SEED=%llu, %s, %d steps, way %d: %s, called %s",
                 (unsigned long long)p.seed, tl_dtype_name(p.dtype), p.steps, way, got, want);
    }
    assert_true(trained > PROGRAMS / 2);
}

/* b is reached by the mean and rstd that the penalty reads, c by what it decides: both decay,
 * though nothing comes to them. */
static void penalty(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    program *p = ctx;
    tl_tensor d, h = tl_matmul(t, in[0], param(t, p, 'w', 0));
    tl_tensor y = tl_layer_norm(t, h, param(t, p, 'g', 0), param(t, p, 'b', 0), 1e-3);
    tl_tensor c = tl_cast(t, tl_shift(t, param(t, p, 'c', 0), 0.25), TL_BOOL);
    (void)n_in, (void)n_out;
    tl_gradients(t, tl_mean(t, y, TL_ALL, false), &h, 1, TL_NONE, &d);
    tl_backward(t, out[0] = squared(t, tl_where(t, c, d, tl_scale(t, d, 2))));
}

static void a_parameter_that_nothing_comes_to_decays(void **unused)
{
    char hex[2][65];
    (void)unused;
    for (int run = 0; run < 2; run++) {
        program p = {.m = tl_model_new(.seed = 4), .dtype = TL_F32};
        tl_tape *t = tl_tape_new(p.m);
        tl_opt *o = tl_adamw_new(p.m, .lr = 1e-2, .weight_decay = 0.1);
        tl_compiled *c = tl_compile(t, penalty, 1, &p);
        for (int k = 0; k < TRAINED; k++) {
            tl_tensor y, in = tl_scale(t, tl_fill(t, TL_F32, TL_DIMS(ROWS, WIDTH), 1 + k), 0.5);
            if (run)
                tl_run(c, &in, 1, &y);
            else
                penalty(t, &in, 1, &y, 1, &p);
            assert_string_equal(tl_error(t), "");
            for (const char *name = "bcgw"; *name != 0; name++)
                if (tl_is_none(tl_grad(t, param(t, &p, *name, 0))))
                    fail_msg("%s: '%c' has no gradient", run ? "compiled" : "called", *name);
            tl_step(o, t);
            tl_tape_reset(t);
        }
        assert_string_equal(tl_error(t), "");
        tl_model_sha256(p.m, hex[run]);
        tl_free(c, o, t, p.m);
    }
    assert_string_equal(hex[0], hex[1]);
}

/* Each is refused by its backward; what would fail after it is not the error. */
enum { A_CUT, ANOTHER_COTANGENT, NO_NUMBER, NOT_REACHED, NO_SUCH_FREEZE, REFUSALS };
static const char *const refusal[REFUSALS] = {"carries no gradient",
                                              "the cotangent is [2] F32, the output [] F32",
                                              "without a cotangent",
                                              "does not reach parameter 'w0'",
                                              "tl_model_freeze(\"nobody\")"};

static void refused(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    program *p = ctx;
    tl_backward_options o = {.partial = p->steps == A_CUT || p->steps == NO_SUCH_FREEZE};
    tl_tensor w = param(t, p, 'w', 0), h = tl_matmul(t, in[0], w), y = squared(t, h), made[2];
    static const int64_t class[ROWS] = {1, 0, 2};
    (void)n_in, (void)n_out;
    if (p->steps == A_CUT || p->steps == NOT_REACHED)
        tl_require_grad(t, in[0]), y = squared(t, in[0]);
    if (p->steps == A_CUT) { /* the running total of a loss */
        tl_apply(TL_AT(t), tl_op_find("cross_entropy"), (int64_t[8]){TL_SUM},
                 (tl_tensor[4]){in[0], tl_constant(t, class, TL_I64, TL_DIMS(ROWS))}, 4, made);
        y = tl_cast(t, made[0], TL_F32);
    }
    if (p->steps == ANOTHER_COTANGENT)
        o.cotangent = tl_fill(t, TL_F32, TL_DIMS(2), 1);
    if (p->steps == NO_SUCH_FREEZE)
        tl_model_freeze(p->m, "nobody", true);
    tl_backward_at(TL_AT(t), p->steps == NO_NUMBER ? h : y, o);
    out[0] = y;
    tl_matmul(t, y, y); /* no matrices */
    tl_step(p->o, t);
}

static void what_backward_refuses_is_refused_compiled_by_the_same_words(void **unused)
{
    (void)unused;
    for (int k = 0; k < REFUSALS; k++) {
        char said[2][512];
        for (int run = 0; run < 2; run++) {
            program p = {.m = tl_model_new(.seed = 4), .dtype = TL_F32, .steps = k};
            tl_tape *t = tl_tape_new(p.m);
            p.o = tl_sgd_new(p.m, .lr = 1e-2);
            tl_compiled *c = tl_compile(t, refused, 1, &p);
            static const float ones[ROWS * WIDTH] = {1, 1, 1};
            tl_tensor y, in = tl_data(t, ones, TL_F32, TL_DIMS(ROWS, WIDTH));
            if (run)
                tl_run(c, &in, 1, &y);
            else
                refused(t, &in, 1, &y, 1, &p);
            snprintf(said[run], sizeof said[run], "%d: %s", (int)tl_error_status(t), tl_error(t));
            tl_error_clear(t);
            tl_free(c, p.o, t, p.m);
        }
        if (strstr(said[0], refusal[k]) == NULL || strcmp(said[0], said[1]) != 0)
            fail_msg("called %s; compiled %s", said[0], said[1]);
    }
}

/* w is used as often as there are rows. */
static void a_use_a_row(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                        void *ctx)
{
    program *p = ctx;
    (void)n_in, (void)n_out;
    tl_tensor w = param(t, p, 'w', 0), x = in[0];
    for (int i = 0; i < (int)tl_shape_of(t, in[0]).dim[0]; i++)
        x = tl_matmul(t, tl_sin(t, x), w);
    tl_backward(t, out[0] = squared(t, x), .partial = true);
    if (p->steps)
        tl_step(p->o, t);
}

/* Called or run, micro-batches may have any number of uses where backward is partial, also where a
 * graph adds up what others have left beside its own. */
static void uses_beyond_the_graphs_are_added_up_by_it(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2 * 2; i++) {
        char hex[2][65];
        const int more_first = i % 2, inside = i / 2;
        for (int run = 0; run < 2; run++) {
            program p = {.m = tl_model_new(.seed = 4), .dtype = TL_F32};
            tl_tape *t = tl_tape_new(p.m);
            p.o = tl_adamw_new(p.m, .lr = 1e-2);
            tl_compiled *c = tl_compile(t, a_use_a_row, 1, &p);
            for (int k = 0; k < 2; k++) {
                const int rows = (k == 0) == more_first ? 3 : 2;
                tl_tensor y, in = tl_fill(t, TL_F32, TL_DIMS(rows, WIDTH), 0.5);
                p.steps = k && inside;
                if (run && k)
                    tl_run(c, &in, 1, &y);
                else
                    a_use_a_row(t, &in, 1, &y, 1, &p);
            }
            if (!inside)
                tl_step(p.o, t);
            assert_string_equal(tl_error(t), "");
            tl_model_sha256(p.m, hex[run]);
            tl_free(c, p.o, t, p.m);
        }
        assert_string_equal(hex[0], hex[1]);
    }
}

const struct CMUnitTest tl_tests_graph_uses[] = {
    cmocka_unit_test(a_parameter_that_nothing_comes_to_decays),
    cmocka_unit_test(what_backward_refuses_is_refused_compiled_by_the_same_words),
    cmocka_unit_test(uses_beyond_the_graphs_are_added_up_by_it),
    cmocka_unit_test(random_programs_use_parameters_alike),
};
const size_t tl_tests_graph_uses_count = sizeof tl_tests_graph_uses / sizeof *tl_tests_graph_uses;
