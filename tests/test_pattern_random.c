/* Random programs full of what is replaced, with values used again and again and parameters tied:
 * trained, every gradient keeps its bits, wherever a replacement is made and wherever it is
 * refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/support/both.h"

extern const struct CMUnitTest tl_tests_pattern_random[];
extern const size_t tl_tests_pattern_random_count;

enum { ROWS = 3, WIDTH = 8, MAX_STEPS = 24, PARAMS = 3, PROGRAMS = 800 };

typedef struct {
    tl_model *m;
    uint64_t seed, state;
    int steps;
    tl_dtype dtype;
    bool trained;
} program;

static uint64_t draw(program *p)
{
    uint64_t z = p->state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int below(program *p, int n) { return (int)(draw(p) % (uint64_t)n); }

static tl_tensor param(tl_tape *t, program *p, char kind, int i, tl_shape s)
{
    char name[3] = {kind, (char)('0' + i), 0};
    return tl_param(t, p->m, name, p->dtype, s, TL_INIT_UNIFORM, 1.2);
}

static tl_tensor gamma_of(tl_tape *t, program *p, int i)
{
    return param(t, p, 'g', i, TL_DIMS(WIDTH));
}
static tl_tensor weight_of(tl_tape *t, program *p, int i)
{
    return param(t, p, 'w', i, TL_DIMS(WIDTH, WIDTH));
}

static tl_tensor norm_written(tl_tape *t, tl_tensor x, tl_tensor gamma)
{
    tl_tensor v = tl_shift(t, tl_mean(t, tl_square(t, x), TL_DIMS(-1), true), 1e-3);
    return tl_mul(t, tl_mul(t, x, tl_rsqrt(t, v)), gamma);
}

/* One more value from those there are; recent ones are likelier, so that chains and diamonds come
 * about. */
static tl_tensor step(tl_tape *t, program *p, const tl_tensor *have, int n)
{
    tl_tensor a = have[n - 1 - below(p, n < 3 ? n : 3)], b = have[below(p, n)];
    int i = below(p, PARAMS);
    switch (below(p, 9)) {
    case 0: return tl_add(t, a, b);
    case 1: return tl_rms_norm(t, tl_add(t, a, b), gamma_of(t, p, i), 1e-3);
    case 2: return tl_rms_norm(t, a, gamma_of(t, p, i), 1e-3);
    case 3: return tl_mul(t, tl_silu(t, a), b);
    case 4: return tl_mul(t, b, tl_silu(t, a));
    case 5: return norm_written(t, a, gamma_of(t, p, i));
    case 6: return tl_scale(t, a, 2);
    case 7: return tl_tanh(t, tl_matmul(t, a, weight_of(t, p, i)));
    default: return tl_sub(t, tl_sin(t, a), b);
    }
}

static void call(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    program *p = ctx;
    int mode = tl_mode_push(t, p->trained ? 0 : TL_NO_GRAD);
    tl_tensor have[MAX_STEPS + 1] = {tl_tanh(t, tl_matmul(t, in[0], weight_of(t, p, 0)))};
    int n = 1;
    (void)n_in, (void)n_out;
    p->state = p->seed;
    while (n <= p->steps) {
        have[n] = step(t, p, have, n);
        n++;
    }
    tl_tensor y = have[n - 1];
    for (int k = below(p, 4); k > 0; k--) /* a few other values come into the loss */
        y = tl_add(t, tl_tanh(t, have[below(p, n)]), y);
    for (int i = 0; i < PARAMS; i++) /* every parameter is reached */
        y = tl_sub(t, tl_mul(t, y, gamma_of(t, p, i)), tl_matmul(t, in[0], weight_of(t, p, i)));
    out[0] = y;
    tl_mode_pop(t, mode);
    if (!p->trained)
        return;
    out[0] = tl_mean(t, tl_mul(t, y, tl_sin(t, y)), TL_ALL, false);
    tl_backward(t, out[0]);
    for (int i = 0; i < PARAMS; i++) {
        out[1 + i] = tl_grad(t, gamma_of(t, p, i));
        out[1 + PARAMS + i] = tl_grad(t, weight_of(t, p, i));
    }
}

static both_result both(program *p)
{
    p->m = tl_model_new(.seed = 4);
    tl_tensor x = both_data(p->m, p->dtype, TL_DIMS(ROWS, WIDTH), 7);
    both_result r = both_ways(p->m, call, &x, 1, p->trained ? 1 + 2 * PARAMS : 1, p,
                              (tl_graph_options){0});
    tl_free(p->m);
    return r;
}

/* The shortest program of that seed that fails, for who mends it. */
static void tell(program p)
{
    both_result r = {.same = true};
    for (int n = 1, all = p.steps; n <= all && r.same; n++) {
        p.steps = n;
        r = both(&p);
    }
    fail_msg("other bits: TL_TEST_SEED=%llu, %d steps, %s, %s\n%s", (unsigned long long)p.seed,
             p.steps, tl_dtype_name(p.dtype), p.trained ? "trained" : "forward", r.report);
}

static void search_double(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                          void *ctx)
{
    (void)n_in, (void)n_out, (void)ctx;
    out[0] = tl_scale(t, in[0], 2);
}

static void put_double(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                       void *ctx)
{
    (void)n_in, (void)n_out, (void)ctx;
    out[0] = tl_add(t, in[0], in[0]);
}

static bool yes(const tl_match *m, void *ctx)
{
    (void)m, (void)ctx;
    return true;
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part))
        n++;
    return n;
}

static void random_programs_keep_their_bits(void **state)
{
    (void)state;
    static const tl_pattern_arg args[] = {TL_ARG("x", TL_F32, TL_DIMS(2, 3))};
    tl_err e = {.status = TL_OK};
    const char *env = getenv("TL_TEST_SEED");
    uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : 20262;
    int made = 0, reordered = 0;
    if (!tl_replacement_enable("random_double",
                               true)) /* a value used twice where it was used once */
        tl_register_replacement(&e, .name = "random_double", .search = search_double,
                                .replace = put_double, .example_inputs = args, .n_in = 1,
                                .n_out = 1, .extra_check = yes, .exact = TL_ALL_FLOATS);
    assert_string_equal(e.message, "");
    print_message("seed %llu (TL_TEST_SEED), %d programs\n", (unsigned long long)seed, PROGRAMS);
    for (int i = 0; i < PROGRAMS; i++) {
        program p = {.seed = seed + (uint64_t)i,
                     .steps = 2 + i % (MAX_STEPS - 1),
                     .dtype = (tl_dtype)(TL_F64 + i % 4),
                     .trained = i % 5 != 0};
        both_result r = both(&p);
        if (!r.same)
            tell(p);
        made += count(r.replaced, "exact");
        reordered += count(r.report, "in another order");
    }
    assert_true(made > PROGRAMS / 2 && reordered > PROGRAMS / 4); /* it was about something */
    assert_true(tl_replacement_enable("random_double", false));
}

const struct CMUnitTest tl_tests_pattern_random[] = {
    cmocka_unit_test(random_programs_keep_their_bits),
};
const size_t tl_tests_pattern_random_count = sizeof tl_tests_pattern_random /
                                             sizeof *tl_tests_pattern_random;
