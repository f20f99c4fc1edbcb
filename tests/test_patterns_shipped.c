/* The shipped replacements: each is there, its claims hold by the property test and on other shapes, and programs that have it
 * written out keep their bits, forward and trained, in every dtype - and are replaced exactly where that is claimed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/patterns/patterns.h"
#include "tests/support/both.h"

extern const struct CMUnitTest tl_tests_patterns_shipped[];
extern const size_t tl_tests_patterns_shipped_count;

static uint64_t seed_now(void)
{
    const char *env = getenv("TL_TEST_SEED");
    return env != NULL ? strtoull(env, NULL, 0) : 20261;
}

static void every_claim_holds(void **state)
{
    (void)state;
    uint64_t seed = seed_now();
    print_message("seed %llu (TL_TEST_SEED)\n", (unsigned long long)seed);
    for (int i = 0; tl_shipped_replacements[i] != NULL; i++) {
        tl_err e = {.status = TL_OK};
        if (tl_replacement_check(tl_shipped_replacements[i]->name, seed, 32, &e) != TL_OK)
            fail_msg("%s", e.message);
    }
}

/* Sizes around the lanes; empty and single rows; more dims. */
static void claims_hold_for_other_shapes(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 31, 32, 33, 64, 100};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int64_t rows = 0; rows < 4; rows++) {
            const int64_t n = sizes[i];
            const tl_shape norm[] = {TL_DIMS(rows, n), TL_DIMS(n)}, add[] = {TL_DIMS(2, rows, n), TL_DIMS(2, rows, n), TL_DIMS(n)};
            const tl_shape ce[] = {TL_DIMS(rows, n), TL_DIMS(rows)}, gate[] = {TL_DIMS(rows, 2, n), TL_DIMS(rows, 2, n)};
            const tl_shape att[] = {TL_DIMS(rows, 2, 3, 4), TL_DIMS(rows, 2, n, 4), TL_DIMS(rows, 2, n, 4)};
            const tl_shape rot[] = {TL_DIMS(2, rows, 2 * n), TL_DIMS(rows, 2 * n), TL_DIMS(rows, 2 * n)};
            tl_err e = {.status = TL_OK};
            uint64_t seed = seed_now() + (uint64_t)(n * 10 + rows);
            for (int d = 0; d < 2; d++) {
                tl_replacement_compare("rms_norm_square", (tl_dtype)d, norm, false, seed, 4, &e);
                tl_replacement_compare("rotary_half", (tl_dtype)d, rot, false, seed, 4, &e);
                tl_replacement_compare("swiglu", (tl_dtype)d, gate, true, seed, 4, &e);
                tl_replacement_compare("attention_full", (tl_dtype)d, att, true, seed, 4, &e);
                if (n == 100) /* examples' targets are below 35 */
                    tl_replacement_compare("cross_entropy", (tl_dtype)d, ce, false, seed, 4, &e);
            }
            for (int d = TL_F64; d <= TL_BF16; d++)
                tl_replacement_compare("add_rms_norm", (tl_dtype)d, add, true, seed, 4, &e);
            if (e.status != TL_OK)
                fail_msg("%s", e.message);
        }
}

/* The test can fail: what is not claimed is not so. */
static void what_is_not_claimed_rounds(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        tl_dtype dtype;
        bool backward;
    } rounds[] = {{"swiglu", TL_F16, false}, {"swiglu", TL_BF16, false}, {"rms_norm_square", TL_F32, true}, {"rms_norm_square", TL_F64, true}, {"rms_norm_square", TL_F16, false},
                  {"rms_norm_square_cast_gamma", TL_BF16, false}, {"rotary_half", TL_F32, true}, {"rotary_chunks", TL_F64, true}, {"rotary_half", TL_F16, false},
                  {"cross_entropy", TL_F32, true}, {"cross_entropy", TL_F16, false}, {"attention_full", TL_BF16, false}, {"attention_causal_mask", TL_F32, false}};
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        tl_err e = {.status = TL_OK};
        if (tl_replacement_compare(rounds[i].name, rounds[i].dtype, NULL, rounds[i].backward, 5, 32, &e) != TL_EDOMAIN)
            fail_msg("%s in %s %s is exact, or fails: %s", rounds[i].name, tl_dtype_name(rounds[i].dtype), rounds[i].backward ? "backward" : "forward", e.message);
    }
}

/* ---- programs with the written forms ---- */

typedef tl_tensor body_fn(tl_tape *t, const tl_tensor *in, int variant);

/* variant: the square, the casts; from 9 on without gamma */
static tl_tensor norm_written(tl_tape *t, const tl_tensor *in, int variant)
{
    int square = variant % 3, cast = variant % 9 / 3;
    tl_dtype d = tl_dtype_of(t, in[0]);
    tl_tensor x = cast ? tl_cast(t, in[0], TL_F32) : in[0];
    tl_tensor q = square == 0 ? tl_square(t, x) : square == 1 ? tl_mul(t, x, x) : tl_pow(t, x, 2);
    tl_tensor h = tl_mul(t, tl_rsqrt(t, tl_shift(t, tl_mean(t, q, TL_DIMS(-1), true), 1e-6)), x);
    if (cast == 2)
        h = tl_cast(t, h, d);
    tl_tensor y = variant < 9 ? tl_mul(t, in[1], h) : h;
    return cast == 1 ? tl_cast(t, y, d) : y;
}

static tl_tensor add_norm_written(tl_tape *t, const tl_tensor *in, int variant)
{
    (void)variant;
    return tl_rms_norm(t, tl_add(t, in[0], in[1]), in[2], 1e-5);
}

static tl_tensor gate_written(tl_tape *t, const tl_tensor *in, int variant)
{
    return variant ? tl_mul(t, in[1], tl_silu(t, in[0])) : tl_mul(t, tl_silu(t, in[0]), in[1]);
}

/* variant: halves as chunks; dims from the front */
static tl_tensor rotary_written(tl_tape *t, const tl_tensor *in, int variant)
{
    int dim = variant & 1 ? 2 : -1;
    tl_tensor x[2], y[2];
    tl_shape s = tl_shape_of(t, in[0]);
    int64_t d = s.dim[s.ndim - 1];
    tl_slice_at(TL_AT(t), in[0], dim, 0, 0, 1);
    tl_chunk(t, in[0], 2, dim, x);
    if (variant < 2) {
        tl_tensor half[2] = {tl_neg(t, x[1]), x[0]};
        return tl_add(t, tl_mul(t, in[0], in[1]), tl_mul(t, tl_concat(t, half, 2, dim), in[2]));
    }
    tl_tensor c = tl_slice(t, in[1], -1, 0, d / 2, 1), z = tl_slice(t, in[2], -1, 0, d / 2, 1);
    y[0] = tl_sub(t, tl_mul(t, x[0], c), tl_mul(t, x[1], z));
    y[1] = tl_add(t, tl_mul(t, x[0], z), tl_mul(t, x[1], c));
    return tl_concat(t, y, 2, dim);
}

enum { QUERIES = 4, KEYS = 6 };

static tl_tensor attention_written(tl_tape *t, const tl_tensor *in, int variant)
{
    tl_tensor s = tl_scale(t, tl_matmul(t, in[0], tl_transpose(t, in[1], -1, -2)), 0.35355339059327379);
    tl_dtype d = tl_dtype_of(t, s);
    if (variant == 1) {
        float mask[QUERIES][KEYS];
        for (int i = 0; i < QUERIES; i++)
            for (int j = 0; j < KEYS; j++)
                mask[i][j] = j <= i + KEYS - QUERIES ? 0 : -(float)INFINITY;
        s = tl_add(t, s, tl_cast(t, tl_constant(t, mask, TL_F32, TL_DIMS(QUERIES, KEYS)), TL_F32));
    }
    if (variant == 2)
        s = tl_where(t, tl_causal_mask(t, QUERIES, KEYS), s, tl_scalar(t, d, -(double)INFINITY));
    return tl_matmul(t, tl_softmax(t, s, -1), in[2]);
}

static tl_tensor entropy_written(tl_tape *t, const tl_tensor *in, int variant)
{
    tl_tensor logp = tl_log_softmax(t, in[0], -1);
    return variant ? tl_nll(t, logp, in[1], TL_MEAN, .count = tl_scalar(t, TL_F64, 11)) : tl_nll(t, logp, in[1], TL_SUM, .ignore = true, .ignore_index = 2);
}

static const struct program {
    const char *name;
    body_fn *body;
    int variant, n_in;
    tl_shape shape[3];
    unsigned no_grad, ids;      /* bit i: input i takes no gradient; holds ids */
    unsigned dtypes;            /* in which it can be written */
} programs[] = {
    {"rms_norm_square", norm_written, 0, 2, {TL_DIMS(4, 33), TL_DIMS(33)}, 0, 0, TL_ALL_FLOATS},
    {"rms_norm_times", norm_written, 1, 2, {TL_DIMS(4, 33), TL_DIMS(33)}, 0, 0, TL_ALL_FLOATS},
    {"rms_norm_power", norm_written, 2, 2, {TL_DIMS(4, 33), TL_DIMS(33)}, 0, 0, TL_ALL_FLOATS},
    {"rms_norm_square_cast", norm_written, 3, 2, {TL_DIMS(2, 2, 33), TL_DIMS(33)}, 0, 0, TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16)},
    {"rms_norm_times_cast", norm_written, 4, 2, {TL_DIMS(4, 33), TL_DIMS(33)}, 0, 0, TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16)},
    {"rms_norm_power_cast", norm_written, 5, 2, {TL_DIMS(4, 33), TL_DIMS(33)}, 0, 0, TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16)},
    {"rms_norm_square_cast_gamma", norm_written, 6, 2, {TL_DIMS(4, 33), TL_DIMS(33)}, 0, 0, TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16)},
    {"rms_norm_times_cast_gamma", norm_written, 7, 2, {TL_DIMS(4, 33), TL_DIMS(33)}, 0, 0, TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16)},
    {"rms_norm_power_cast_gamma", norm_written, 8, 2, {TL_DIMS(4, 33), TL_DIMS(33)}, 0, 0, TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16)},
    {"rms_norm_bare_square", norm_written, 9, 1, {TL_DIMS(4, 33)}, 0, 0, TL_ALL_FLOATS},
    {"rms_norm_bare_times", norm_written, 10, 1, {TL_DIMS(2, 2, 33)}, 0, 0, TL_ALL_FLOATS},
    {"rms_norm_bare_power", norm_written, 11, 1, {TL_DIMS(4, 33)}, 0, 0, TL_ALL_FLOATS},
    {"rms_norm_bare_square_cast", norm_written, 12, 1, {TL_DIMS(4, 33)}, 0, 0, TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16)},
    {"rms_norm_bare_times_cast", norm_written, 13, 1, {TL_DIMS(4, 33)}, 0, 0, TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16)},
    {"rms_norm_bare_power_cast", norm_written, 14, 1, {TL_DIMS(4, 33)}, 0, 0, TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16)},
    {"add_rms_norm", add_norm_written, 0, 3, {TL_DIMS(3, 4, 9), TL_DIMS(3, 4, 9), TL_DIMS(9)}, 0, 0, TL_ALL_FLOATS},
    {"swiglu", gate_written, 0, 2, {TL_DIMS(3, 40), TL_DIMS(3, 40)}, 0, 0, TL_ALL_FLOATS},
    {"swiglu", gate_written, 1, 2, {TL_DIMS(3, 40), TL_DIMS(3, 40)}, 0, 0, TL_ALL_FLOATS},
    {"rotary_half", rotary_written, 0, 3, {TL_DIMS(2, 5, 12), TL_DIMS(5, 12), TL_DIMS(5, 12)}, 6, 0, TL_ALL_FLOATS},
    {"rotary_half_front", rotary_written, 1, 3, {TL_DIMS(2, 5, 12), TL_DIMS(5, 12), TL_DIMS(5, 12)}, 6, 0, TL_ALL_FLOATS},
    {"rotary_chunks", rotary_written, 2, 3, {TL_DIMS(2, 5, 12), TL_DIMS(5, 12), TL_DIMS(5, 12)}, 6, 0, TL_ALL_FLOATS},
    {"rotary_chunks_front", rotary_written, 3, 3, {TL_DIMS(2, 5, 12), TL_DIMS(5, 12), TL_DIMS(5, 12)}, 6, 0, TL_ALL_FLOATS},
    {"attention_full", attention_written, 0, 3, {TL_DIMS(2, 3, QUERIES, 8), TL_DIMS(2, 3, KEYS, 8), TL_DIMS(2, 3, KEYS, 8)}, 0, 0, TL_ALL_FLOATS},
    {"attention_causal_mask", attention_written, 2, 3, {TL_DIMS(2, 3, QUERIES, 8), TL_DIMS(2, 3, KEYS, 8), TL_DIMS(2, 3, KEYS, 8)}, 0, 0, TL_ALL_FLOATS},
    {"cross_entropy", entropy_written, 0, 2, {TL_DIMS(7, 11), TL_DIMS(7)}, 2, 2, TL_ALL_FLOATS},
    {"cross_entropy_count", entropy_written, 1, 2, {TL_DIMS(7, 11), TL_DIMS(7)}, 2, 2, TL_ALL_FLOATS},
};

typedef enum { FORWARD, TRAINED, ON_LEAVES } way;

typedef struct {
    const struct program *p;
    tl_model *m;
    way way;
    tl_dtype dtype;
} context;

/* Trained: each input times a parameter, or the parameter itself, and a loss; out: the loss and the parameters' gradients. */
static void call(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    const context *c = ctx;
    tl_tensor x[3], w[3];
    int n = 1;
    (void)n_out;
    for (int i = 0; i < n_in; i++) {
        char name[8] = {'w', (char)('0' + i), 0};
        bool grad = c->way != FORWARD && !(c->p->no_grad & TL_BIT(i));
        w[i] = grad ? tl_param(t, c->m, name, c->dtype, tl_shape_of(t, in[i]), TL_INIT_UNIFORM, 1.5) : TL_NONE;
        x[i] = !grad ? in[i] : c->way == TRAINED ? tl_mul(t, in[i], w[i]) : w[i];
    }
    tl_tensor y = c->p->body(t, x, c->p->variant);
    out[0] = y;
    if (c->way == FORWARD)
        return;
    out[0] = tl_sum(t, tl_mul(t, y, tl_sin(t, y)), TL_ALL, false);
    tl_backward(t, out[0]);
    for (int i = 0; i < n_in; i++)
        if (!tl_is_none(w[i]))
            out[n++] = tl_grad(t, w[i]);
}

static const tl_replacement *rule_named(const char *name)
{
    for (int i = 0; tl_shipped_replacements[i] != NULL; i++)
        if (strcmp(tl_shipped_replacements[i]->name, name) == 0)
            return tl_shipped_replacements[i];
    fail_msg("'%s' is not shipped", name);
    return NULL;
}

static void check_program(const struct program *p, tl_dtype d, way w)
{
    context c = {p, tl_model_new(.seed = 8), w, d};
    const tl_replacement *rule = rule_named(p->name);
    tl_tensor in[3];
    int64_t ids[] = {3, 2, 0, 10, 2, 7, 1};
    int n_out = 1;
    char line[64];
    for (int i = 0; i < p->n_in; i++) {
        in[i] = p->ids & TL_BIT(i) ? tl_data(c.m, ids, TL_I64, p->shape[i]) : both_data(c.m, d, p->shape[i], (unsigned)i + 1);
        n_out += w != FORWARD && !(p->no_grad & TL_BIT(i));
    }
    bool claimed = (rule->exact | (w == FORWARD ? rule->exact_forward : 0)) & TL_BIT(d);
    snprintf(line, sizeof line, "%s: replaced 1 time, ", p->name);
    both_result r = both_ways(c.m, call, in, p->n_in, n_out, &c, (tl_graph_options){0});
    if (!r.same)
        fail_msg("%s, %s, way %d: other bits\n%s", p->name, tl_dtype_name(d), w, r.report);
    if (w != ON_LEAVES && (strstr(r.replaced, line) != NULL) != claimed)
        fail_msg("%s, %s, way %d: %s expected\n%s", p->name, tl_dtype_name(d), w, claimed ? "replaced" : "not replaced", r.report);
    r = both_ways(c.m, call, in, p->n_in, n_out, &c, (tl_graph_options){.no_replace = true});
    if (!r.same || r.replaced[0] != 0)
        fail_msg("%s, %s, way %d, without replacements: %s", p->name, tl_dtype_name(d), w, r.report);
    r = both_ways(c.m, call, in, p->n_in, n_out, &c, (tl_graph_options){.rounds = true});
    strcat(line, claimed ? "exact" : "ROUNDS");
    /* a few places of the dtype; in half precision the loss and its gradient carry them far: there only the values are held */
    double far = d == TL_BF16 ? 0.05 : d == TL_F16 ? 0.01 : 1e-4;
    bool half = tl_dtype_compute(d) != d && w != FORWARD;
    if ((w != ON_LEAVES && strstr(r.replaced, line) == NULL) || (r.far > far && !half) || isnan(r.far))
        fail_msg("%s, %s, way %d, rounding: '%s' expected, %g off\n%s", p->name, tl_dtype_name(d), w, line, r.far, r.report);
    tl_free(c.m);
}

static void written_forms_keep_their_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        for (int d = TL_F64; d <= TL_BF16; d++)
            for (int w = FORWARD; programs[i].dtypes & TL_BIT(d) && w <= ON_LEAVES; w++)
                check_program(&programs[i], (tl_dtype)d, (way)w);
}

/* ---- masks that are constants ---- */

static bool broken;

static void masked(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    float mask[QUERIES][KEYS];
    (void)n_in, (void)n_out, (void)ctx;
    for (int i = 0; i < QUERIES; i++)
        for (int j = 0; j < KEYS; j++)
            mask[i][j] = j <= i + KEYS - QUERIES && !(broken && i + j == 0) ? 0 : -(float)INFINITY;
    tl_tensor s = tl_scale(t, tl_matmul(t, in[0], tl_transpose(t, in[1], -1, -2)), 0.5);
    out[0] = tl_matmul(t, tl_softmax(t, tl_add(t, s, tl_constant(t, mask, TL_F32, TL_DIMS(QUERIES, KEYS))), -1), in[2]);
}

static void a_mask_that_is_not_causal_is_left_alone(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[3] = {both_data(m, TL_F32, TL_DIMS(2, 3, QUERIES, 8), 1), both_data(m, TL_F32, TL_DIMS(2, 3, KEYS, 8), 2), both_data(m, TL_F32, TL_DIMS(2, 3, KEYS, 8), 3)};
    for (int k = 0; k < 2; k++) {
        broken = k;
        both_result r = both_ways(m, masked, in, 3, 1, NULL, (tl_graph_options){.rounds = true});
        assert_true(r.same); /* finite values: the same bits, though it is not claimed */
        if (strstr(r.report, k ? "attention_added_mask: not replaced: extra_check says no" : "attention_added_mask: replaced 1 time, ROUNDS") == NULL)
            fail_msg("%s", r.report);
    }
    tl_free(m);
}

/* ---- written out and fused again, in a few passes ---- */

static void block(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    (void)n_in, (void)n_out, (void)ctx;
    tl_tensor h = in[0];
    for (int l = 0; l < 3; l++) {
        tl_tensor s = tl_add(t, h, tl_tanh(t, h)), y = norm_written(t, (tl_tensor[]){s, in[1]}, 0);
        h = tl_add(t, s, tl_mul(t, tl_silu(t, y), tl_sin(t, y)));
    }
    out[0] = h;
}

static void passes_build_on_each_other(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(5, 33), 1), both_data(m, TL_F32, TL_DIMS(33), 2)};
    both_result r = both_ways(m, block, in, 2, 1, NULL, (tl_graph_options){0});
    assert_true(r.same);
    if (strstr(r.replaced, "rms_norm_square: replaced 3 times, exact") == NULL || strstr(r.replaced, "add_rms_norm: replaced 3 times, exact") == NULL ||
        strstr(r.replaced, "swiglu: replaced 3 times, exact") == NULL)
        fail_msg("%s", r.report);
    tl_free(m);
}

const struct CMUnitTest tl_tests_patterns_shipped[] = {
    cmocka_unit_test(every_claim_holds),
    cmocka_unit_test(claims_hold_for_other_shapes),
    cmocka_unit_test(what_is_not_claimed_rounds),
    cmocka_unit_test(written_forms_keep_their_bits),
    cmocka_unit_test(a_mask_that_is_not_causal_is_left_alone),
    cmocka_unit_test(passes_build_on_each_other),
};
const size_t tl_tests_patterns_shipped_count = sizeof tl_tests_patterns_shipped / sizeof *tl_tests_patterns_shipped;
