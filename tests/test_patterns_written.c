/* What programs write out keeps its bits, forward and trained, in every dtype, and is replaced by
 * the shipped rule of its name exactly where that is claimed, and on request anywhere. Every
 * spelling that the cards of ops/patterns/ name. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "ops/patterns/patterns.h"
#include "tests/support/both.h"

extern const struct CMUnitTest tl_tests_patterns_written[];
extern const size_t tl_tests_patterns_written_count;

/* ---- one program: forward, trained, trained on parameters as they are ---- */

typedef tl_tensor body_fn(tl_tape *t, const tl_tensor *in, const int *how);

typedef struct {
    const char *name; /* of the rule */
    body_fn *body;
    int how[4];
    bool rounding; /* this form claims nothing */
    int n_in;
    tl_shape shape[3];
    unsigned no_grad, ids; /* bit i: input i takes no gradient; holds ids */
    unsigned dtypes;       /* in which it can be written */
} program;

typedef enum { FORWARD, TRAINED, ON_LEAVES } way;

typedef struct {
    const program *p;
    tl_model *m;
    way way;
    tl_dtype dtype;
} context;

/* Trained: each input times a parameter, or the parameter itself, and a loss; out: the loss and the
 * parameters' gradients. */
static void call(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    const context *c = ctx;
    tl_tensor x[3], w[3];
    int n = 1;
    (void)n_out;
    for (int i = 0; i < n_in; i++) {
        char name[8] = {'w', (char)('0' + i), 0};
        bool grad = c->way != FORWARD && !(c->p->no_grad & TL_BIT(i));
        w[i] = grad ? tl_param(t, c->m, name, c->dtype, tl_shape_of(t, in[i]), TL_INIT_UNIFORM, 1.5)
                    : TL_NONE;
        x[i] = !grad ? in[i] : c->way == TRAINED ? tl_mul(t, in[i], w[i]) : w[i];
    }
    tl_tensor y = c->p->body(t, x, c->p->how);
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

static void check_way(const program *p, tl_dtype d, way w)
{
    context c = {p, tl_model_new(.seed = 8), w, d};
    const tl_replacement *rule = rule_named(p->name);
    tl_tensor in[3];
    int64_t ids[] = {3, 2, 0, 10, 2, 7, 1};
    int n_out = 1;
    char line[64], what[160];
    snprintf(what, sizeof what, "%s (%d %d %d %d), %s, way %d", p->name, p->how[0], p->how[1],
             p->how[2], p->how[3], tl_dtype_name(d), w);
    for (int i = 0; i < p->n_in; i++) {
        in[i] = p->ids & TL_BIT(i) ? tl_data(c.m, ids, TL_I64, p->shape[i])
                                   : both_data(c.m, d, p->shape[i], (unsigned)i + 1);
        n_out += w != FORWARD && !(p->no_grad & TL_BIT(i));
    }
    bool claimed = !p->rounding &&
                   (rule->exact | (w == FORWARD ? rule->exact_forward : 0)) & TL_BIT(d);
    snprintf(line, sizeof line, "%s: replaced 1 time, ", p->name);
    both_result r = both_ways(c.m, call, in, p->n_in, n_out, &c, (tl_graph_options){0});
    if (!r.same)
        fail_msg("%s: other bits\n%s", what, r.report);
    if (w != ON_LEAVES && (strstr(r.replaced, line) != NULL) != claimed)
        fail_msg("%s: %s expected\n%s", what, claimed ? "replaced" : "not replaced", r.report);
    r = both_ways(c.m, call, in, p->n_in, n_out, &c, (tl_graph_options){.no_replace = true});
    if (!r.same || r.replaced[0] != 0)
        fail_msg("%s, without replacements: %s", what, r.report);
    r = both_ways(c.m, call, in, p->n_in, n_out, &c, (tl_graph_options){.rounds = true});
    strcat(line, claimed ? "exact" : "ROUNDS");
    /* a few places of the dtype; in half precision the loss and its gradient carry them far: there
     * only the values are held */
    double far = d == TL_BF16 ? 0.05 : d == TL_F16 ? 0.01 : 1e-4;
    bool half = tl_dtype_compute(d) != d && w != FORWARD;
    if ((w != ON_LEAVES && strstr(r.replaced, line) == NULL) || (r.far > far && !half) ||
        isnan(r.far))
        fail_msg("%s, rounding: '%s' expected, %g off\n%s", what, line, r.far, r.report);
    tl_free(c.m);
}

static void check(program p)
{
    for (int d = TL_F64; d <= TL_BF16; d++)
        for (int w = FORWARD; p.dtypes & TL_BIT(d) && w <= ON_LEAVES; w++)
            check_way(&p, (tl_dtype)d, (way)w);
}

enum {
    CASTS = TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16),
    WIDE = TL_BIT(TL_F32) | TL_BIT(TL_F64)
};

/* ---- norms: how = square, root, cast, weight ---- */

static tl_tensor normed(tl_tape *t, tl_tensor x, tl_tensor v, int root)
{
    if (root < 2)
        return tl_mul(t, root == 0 ? tl_rsqrt(t, v) : tl_pow(t, v, -0.5), x);
    tl_tensor s = tl_sqrt(t, v);
    return root == 2   ? tl_mul(t, x, tl_reciprocal(t, s))
           : root == 3 ? tl_mul(t, tl_div(t, tl_scalar(t, tl_dtype_of(t, s), 1), s), x)
                       : tl_div(t, x, s);
}

static tl_tensor norm_written(tl_tape *t, const tl_tensor *in, const int *how)
{
    int square = how[0], cast = how[2], weight = how[3];
    tl_dtype d = tl_dtype_of(t, in[0]);
    tl_tensor x = cast ? tl_cast(t, in[0], TL_F32) : in[0];
    tl_tensor q = square == 0 ? tl_square(t, x) : square == 1 ? tl_mul(t, x, x) : tl_pow(t, x, 2);
    tl_tensor y = normed(
        t, x, tl_shift(t, tl_mean(t, q, TL_DIMS(tl_shape_of(t, q).ndim - 1), true), 1e-6), how[1]);
    if (cast == 2)
        y = tl_cast(t, y, d);
    if (weight == 1)
        y = tl_mul(t, in[1], y);
    else if (weight != 0)
        y = tl_mul(t, y, tl_shift(t, weight == 3 ? tl_cast(t, in[1], TL_F32) : in[1], 1));
    return cast == 1 ? tl_cast(t, y, d) : y;
}

static void norms_in_every_spelling(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int cast, weight;
    } kind[] = {{"rms_norm", 0, 1},
                {"rms_norm_cast", 1, 1},
                {"rms_norm_cast_gamma", 2, 1},
                {"rms_norm_bare", 0, 0},
                {"rms_norm_bare_cast", 1, 0},
                {"rms_norm_plus_one", 0, 2},
                {"rms_norm_plus_one_gamma", 1, 2},
                {"rms_norm_plus_one_cast", 1, 3}};
    for (size_t k = 0; k < sizeof kind / sizeof *kind; k++)
        for (int form = 0; form < 7;
             form++) { /* each square with the first root, each root with the first square */
            int square = form < 3 ? form : 0, root = form < 3 ? 0 : form - 2;
            check((program){.name = kind[k].name,
                            .body = norm_written,
                            .how = {square, root, kind[k].cast, kind[k].weight},
                            .rounding = root >= 2,
                            .n_in = kind[k].weight ? 2 : 1,
                            .shape = {TL_DIMS(2, 2, 33), TL_DIMS(33)},
                            .dtypes = kind[k].cast ? CASTS : TL_ALL_FLOATS});
        }
}

static tl_tensor add_norm_written(tl_tape *t, const tl_tensor *in, const int *how)
{
    return tl_rms_norm(t, tl_add(t, in[0], in[1]), how[0] ? TL_NONE : in[2], 1e-5);
}

static void norms_of_sums(void **state)
{
    (void)state;
    check((program){.name = "add_rms_norm",
                    .body = add_norm_written,
                    .n_in = 3,
                    .shape = {TL_DIMS(3, 4, 9), TL_DIMS(3, 4, 9), TL_DIMS(9)},
                    .dtypes = TL_ALL_FLOATS});
    check((program){.name = "add_rms_norm_bare",
                    .body = add_norm_written,
                    .how = {1},
                    .n_in = 2,
                    .shape = {TL_DIMS(3, 4, 9), TL_DIMS(3, 4, 9)},
                    .dtypes = TL_ALL_FLOATS});
}

/* ---- gates: how = spelling of silu, order ---- */

static tl_tensor silu_written(tl_tape *t, const tl_tensor *in, const int *how)
{
    tl_tensor x = in[0], below = how[0] < 2 ? TL_NONE : tl_shift(t, tl_exp(t, tl_neg(t, x)), 1);
    switch (how[0]) {
    case 0: return tl_mul(t, x, tl_sigmoid(t, x));
    case 1: return tl_mul(t, tl_sigmoid(t, x), x);
    case 2: return tl_div(t, x, below);
    case 3: return tl_mul(t, x, tl_reciprocal(t, below));
    default: return tl_mul(t, tl_div(t, tl_scalar(t, tl_dtype_of(t, x), 1), below), x);
    }
}

static tl_tensor gate_written(tl_tape *t, const tl_tensor *in, const int *how)
{
    tl_tensor s = how[0] < 0 ? tl_silu(t, in[0]) : silu_written(t, in, how);
    return how[1] ? tl_mul(t, in[1], s) : tl_mul(t, s, in[1]);
}

static void gates_in_every_spelling(void **state)
{
    (void)state;
    const tl_shape s = TL_DIMS(3, 40);
    for (int turned = 0; turned < 2; turned++)
        check((program){.name = "swiglu",
                        .body = gate_written,
                        .how = {-1, turned},
                        .n_in = 2,
                        .shape = {s, s},
                        .dtypes = TL_ALL_FLOATS});
    for (int how = 0; how < 5; how++) {
        const char *name = how < 2 ? "silu" : "silu_exp";
        check((program){.name = name,
                        .body = silu_written,
                        .how = {how},
                        .n_in = 1,
                        .shape = {s},
                        .dtypes = TL_ALL_FLOATS});
        for (int turned = 0; turned < 2; turned++) /* silu first, then swiglu of it */
            check((program){.name = name,
                            .body = gate_written,
                            .how = {how, turned},
                            .n_in = 2,
                            .shape = {s, s},
                            .dtypes = TL_ALL_FLOATS});
    }
}

/* ---- rotary: how = interleaved, half-width tables, dims from the front, pairs by reshape ---- */

static tl_tensor rotary_written(tl_tape *t, const tl_tensor *in, const int *how)
{
    int dim = how[2] ? 2 : -1;
    tl_tensor x[2], y[2];
    tl_shape s = tl_shape_of(t, in[0]);
    int64_t d = s.dim[2];
    if (!how[0])
        tl_chunk(t, in[0], 2, dim, x);
    tl_tensor pairs = how[3] ? tl_reshape(t, in[0], TL_DIMS(s.dim[0], s.dim[1], d / 2, 2))
                             : TL_NONE;
    for (int i = 0; how[0] && i < 2; i++)
        x[i] = how[3] ? tl_select(t, pairs, how[2] ? 3 : -1, i) : tl_slice(t, in[0], dim, i, d, 2);
    y[0] = how[1] ? tl_sub(t, tl_mul(t, x[0], in[1]), tl_mul(t, x[1], in[2])) : tl_neg(t, x[1]);
    y[1] = how[1] ? tl_add(t, tl_mul(t, x[0], in[2]), tl_mul(t, x[1], in[1])) : x[0];
    tl_tensor z = how[0] ? tl_reshape(t, tl_stack(t, y, 2, how[2] ? 3 : -1), s)
                         : tl_concat(t, y, 2, dim);
    return how[1] ? z : tl_add(t, tl_mul(t, in[0], in[1]), tl_mul(t, z, in[2]));
}

static void rotary_in_every_spelling(void **state)
{
    (void)state;
    for (int k = 0; k < 12; k++) {
        int interleaved = k >= 4, half = k & 1, front = k >> 1 & 1, pairs = k >= 8;
        const char *name = interleaved ? half ? "rotary_pairs" : "rotary_interleaved"
                           : half      ? "rotary_chunks"
                                       : "rotary_half";
        const tl_shape table = TL_DIMS(5, half ? 6 : 12);
        check((program){.name = name,
                        .body = rotary_written,
                        .how = {interleaved, half, front, pairs},
                        .n_in = 3,
                        .shape = {TL_DIMS(2, 5, 12), table, table},
                        .no_grad = 6,
                        .dtypes = TL_ALL_FLOATS});
    }
}

/* One angle for all pairs: a table of one column is no narrower table of the op. */
static void tables_of_one_column_are_left_alone(void **state)
{
    (void)state;
    for (int k = 0; k < 12; k++)
        for (int d = TL_F64; d <= TL_F32; d++) {
            program p = {.body = rotary_written, .how = {k >= 4, k & 1, k >> 1 & 1, k >= 8}};
            context c = {&p, tl_model_new(.seed = 1), FORWARD, (tl_dtype)d};
            const tl_shape table = k % 3 == 0 ? TL_DIMS(1) : TL_DIMS(5, 1);
            tl_tensor in[3] = {both_data(c.m, c.dtype, TL_DIMS(2, 5, 12), 1),
                               both_data(c.m, c.dtype, table, 2),
                               both_data(c.m, c.dtype, table, 3)};
            for (int rounds = 0; rounds < 2; rounds++) {
                both_result r = both_ways(c.m, call, in, 3, 1, &c,
                                          (tl_graph_options){.rounds = rounds});
                if (!r.same || strstr(r.replaced, "rotary") != NULL)
                    fail_msg("%d: left alone expected\n%s", k, r.report);
            }
            tl_free(c.m);
        }
}

/* ---- attention: how = scaling, query heads per key head, mask, c ---- */

enum { QUERIES = 4, KEYS = 6 };

static tl_tensor heads_repeated(tl_tape *t, tl_tensor x, int times)
{
    tl_shape s = tl_shape_of(t, x);
    tl_tensor e = tl_expand(t, tl_reshape(t, x, TL_DIMS(s.dim[0], s.dim[1], 1, s.dim[2], s.dim[3])),
                            TL_DIMS(s.dim[0], s.dim[1], times, s.dim[2], s.dim[3]));
    return tl_reshape(t, e, TL_DIMS(s.dim[0], s.dim[1] * times, s.dim[2], s.dim[3]));
}

static int masked_wrongly; /* one element of the constant mask is not as causality has it */
static double masked_by;   /* unless 0, instead of what is as good as -inf */
static bool masked_heads;  /* the constant mask is of (heads, 1, keys) */

static tl_tensor mask_written(tl_tape *t, tl_tensor s, int kind)
{
    float f[QUERIES][KEYS];
    double g[QUERIES][KEYS];
    uint16_t h[QUERIES][KEYS];
    bool b[QUERIES][KEYS];
    tl_dtype d = tl_dtype_of(t, s);
    double much = d == TL_F16 ? -65504 : kind % 2 ? -1e9 : -(double)INFINITY;
    much = masked_by != 0 ? masked_by : much;
    for (int i = 0; i < QUERIES; i++)
        for (int j = 0; j < KEYS; j++) {
            bool allowed = j <= i + KEYS - QUERIES && !(masked_wrongly && i + j == 0);
            g[i][j] = allowed ? 0 : much;
            f[i][j] = (float)g[i][j];
            h[i][j] = allowed ? 0 : d == TL_F16 ? 0xfc00 : 0xff80; /* -inf */
            b[i][j] = allowed == (kind == 3);
        }
    const tl_shape heads = TL_DIMS(QUERIES, 1, KEYS),
                   two = masked_heads ? heads : TL_DIMS(QUERIES, KEYS),
                   four = masked_heads ? heads : TL_DIMS(1, 1, QUERIES, KEYS);
    tl_tensor off = tl_scalar(t, d, much);
    switch (kind) {
    case 1:
        return tl_add(t, s,
                      d == TL_F64   ? tl_constant(t, g, d, two)
                      : d == TL_F32 ? tl_constant(t, f, d, four)
                                    : tl_constant(t, h, d, two));
    case 2: return tl_where(t, tl_causal_mask(t, QUERIES, KEYS), s, off);
    case 3: return tl_where(t, tl_constant(t, b, TL_BOOL, four), s, off);
    default: return tl_where(t, tl_constant(t, b, TL_BOOL, two), off, s);
    }
}

static tl_tensor attention_written(tl_tape *t, const tl_tensor *in, const int *how)
{
    tl_tensor q = in[0], k = how[1] > 1 ? heads_repeated(t, in[1], how[1]) : in[1],
              v = how[1] > 1 ? heads_repeated(t, in[2], how[1]) : in[2];
    tl_tensor c = tl_scalar(t, tl_dtype_of(t, q), how[3]);
    if (how[0] >= 2)
        q = how[0] == 2 ? tl_scale(t, q, 1.0 / how[3]) : tl_div(t, q, c);
    tl_tensor s = tl_matmul(t, q, tl_transpose(t, k, 2, 3));
    if (how[0] < 2)
        s = how[0] == 0 ? tl_scale(t, s, 1.0 / how[3]) : tl_div(t, s, c);
    if (how[2])
        s = mask_written(t, s, how[2]);
    return tl_matmul(t, tl_softmax(t, s, -1), v);
}

static void attention_in_every_spelling(void **state)
{
    (void)state;
    static const char *const masked[] = {NULL, "attention_added", "attention_chosen",
                                         "attention_constant", "attention_excluded"};
    for (int scaling = 0; scaling < 4; scaling++)
        for (int grouped = 1; grouped <= 4; grouped *= 2)
            for (int mask = 0; mask < (scaling < 2 ? 5 : 1); mask++)
                for (int c = 4; c <= (mask ? 4 : 5); c++) {
                    const char *name = grouped > 1 ? "attention_grouped" : "attention_full";
                    if (mask || scaling)
                        name = mask                    ? masked[mask]
                               : scaling > 1 || c == 5 ? "attention_scaled"
                               : grouped > 1           ? "attention_grouped_divided"
                                                       : "attention_divided";
                    const tl_shape kv = TL_DIMS(2, 4 / grouped, KEYS, 16);
                    check((program){.name = name,
                                    .body = attention_written,
                                    .how = {scaling, grouped, mask, c},
                                    .n_in = 3,
                                    .shape = {TL_DIMS(2, 4, QUERIES, 16), kv, kv},
                                    .dtypes = TL_ALL_FLOATS});
                }
}

static void masked_call(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                        void *ctx)
{
    (void)n_in, (void)n_out;
    out[0] = attention_written(t, in, ctx);
}

static void a_mask_that_is_not_causal_is_left_alone(void **state)
{
    (void)state;
    static const char *const names[] = {NULL, "attention_added", NULL, "attention_constant",
                                        "attention_excluded"};
    tl_model *m = tl_model_new(.seed = 1);
    const tl_shape kv = TL_DIMS(2, 3, KEYS, 8);
    tl_tensor in[3] = {both_data(m, TL_F32, TL_DIMS(2, 3, QUERIES, 8), 1),
                       both_data(m, TL_F32, kv, 2), both_data(m, TL_F32, kv, 3)};
    for (int k = 0; k < 6; k++) {
        int how[] = {0, 1, k / 2 == 0 ? 1 : k / 2 + 2, 4};
        char text[80];
        masked_wrongly = k % 2;
        both_result r = both_ways(m, masked_call, in, 3, 1, how,
                                  (tl_graph_options){.rounds = true});
        masked_wrongly = 0;
        assert_true(r.same); /* finite values: the same bits, though it is not claimed */
        snprintf(text, sizeof text,
                 k % 2 ? "%s: not replaced: extra_check says no" : "%s: replaced 1 time, ROUNDS",
                 names[how[2]]);
        if (strstr(r.report, text) == NULL)
            fail_msg("'%s' expected\n%s", text, r.report);
    }
    for (int mask = 1; mask < 5; mask++) { /* in f32 scores may be as large as this */
        int how[] = {0, 1, mask, 4};
        masked_by = -4e4;
        both_result r = both_ways(m, masked_call, in, 3, 1, how,
                                  (tl_graph_options){.rounds = true});
        masked_by = 0;
        if (!r.same || strstr(r.replaced, "attention") != NULL)
            fail_msg("mask %d of -4e4\n%s", mask, r.report);
    }
    in[0] = both_data(m, TL_F32, TL_DIMS(2, QUERIES, QUERIES, 8), 1);
    in[1] = both_data(m, TL_F32, TL_DIMS(2, QUERIES, KEYS, 8), 2);
    in[2] = both_data(m, TL_F32, TL_DIMS(2, QUERIES, KEYS, 8), 3);
    for (int mask = 1; mask < 5; mask++) { /* as many heads as queries */
        int how[] = {0, 1, mask, 4};
        masked_heads = true;
        both_result r = both_ways(m, masked_call, in, 3, 1, how,
                                  (tl_graph_options){.rounds = true});
        masked_heads = false;
        if (!r.same || (mask != 2 && strstr(r.replaced, "attention") != NULL))
            fail_msg("mask %d of heads\n%s", mask, r.report);
    }
    tl_free(m);
}

/* ---- what looks alike and is something else: how = which ---- */

static void alike_call(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                       void *ctx)
{
    tl_tensor x = in[0], row = tl_slice(t, tl_select(t, x, 0, 0), 0, 0, 1, 1), p;
    (void)n_in, (void)n_out;
    switch (*(const int *)ctx) {
    case 0: /* a gate that is broadcast: its gradient is added up before silu's, not after it */
        out[0] = tl_mul(t, tl_silu(t, x), tl_contiguous(t, row));
        return;
    case 1: /* gamma of one number */
        p = tl_rsqrt(t, tl_shift(t, tl_mean(t, tl_square(t, x), TL_DIMS(-1), true), 1e-5));
        out[0] = tl_mul(t, tl_mul(t, x, p), tl_contiguous(t, row));
        return;
    default: /* targets of some of the rows */
        p = tl_gather(t, tl_log_softmax(t, x, -1), tl_fill(t, TL_I64, TL_DIMS(2, 1), 3), -1);
        out[0] = tl_mean(t, tl_neg(t, p), TL_ALL, false);
    }
}

static void what_is_broadcast_or_cut_is_left_alone(void **state)
{
    (void)state;
    static const char *const names[] = {"swiglu", "rms_norm", "cross_entropy_gather"};
    for (int how = 0; how < 3; how++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tensor in = both_data(m, TL_F32, TL_DIMS(5, 8), 1);
        char text[80];
        both_result r = both_ways(m, alike_call, &in, 1, 1, &how,
                                  (tl_graph_options){.rounds = true});
        snprintf(text, sizeof text,
                 how == 1 ? "%s_bare: replaced 1 time" : "%s: not replaced: extra_check says no",
                 names[how]); /* how 1: all but the product with gamma */
        if (!r.same || strstr(r.report, text) == NULL)
            fail_msg("'%s' expected\n%s", text, r.report);
        tl_free(m);
    }
}

/* ---- losses: how = count, or by gather: reduction, negated last ---- */

static tl_tensor entropy_written(tl_tape *t, const tl_tensor *in, const int *how)
{
    tl_tensor logp = tl_log_softmax(t, in[0], -1);
    return how[0] ? tl_nll(t, logp, in[1], TL_MEAN, .count = tl_scalar(t, TL_F64, 11))
                  : tl_nll(t, logp, in[1], how[1] ? TL_MEAN : TL_SUM, .ignore = true,
                           .ignore_index = 2);
}

static tl_tensor entropy_gathered(tl_tape *t, const tl_tensor *in, const int *how)
{
    tl_tensor p = tl_gather(t, tl_log_softmax(t, in[0], -1), tl_reshape(t, in[1], TL_DIMS(7, 1)),
                            how[2] ? 1 : -1);
    if (!how[1])
        p = tl_neg(t, p);
    p = how[0] ? tl_sum(t, p, TL_ALL, false) : tl_mean(t, p, TL_ALL, false);
    return how[1] ? tl_neg(t, p) : p;
}

static void losses_in_every_spelling(void **state)
{
    (void)state;
    program p = {.body = entropy_written,
                 .n_in = 2,
                 .shape = {TL_DIMS(7, 11), TL_DIMS(7)},
                 .no_grad = 2,
                 .ids = 2,
                 .dtypes = TL_ALL_FLOATS};
    p.name = "cross_entropy_count", p.how[0] = 1, check(p);
    p.name = "cross_entropy", p.how[0] = 0, check(p);
    p.how[1] = 1, check(p);
    p.name = "cross_entropy_gather", p.body = entropy_gathered, p.dtypes = WIDE;
    for (int k = 0; k < 8; k++) {
        memcpy(p.how, (int[]){k & 1, k >> 1 & 1, k >> 2, 0}, sizeof p.how);
        check(p);
    }
}

/* ---- written out and fused again, in a few passes ---- */

static void block(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    static const int plain[4] = {0, 0, 0, 1};
    (void)n_in, (void)n_out, (void)ctx;
    tl_tensor h = in[0];
    for (int l = 0; l < 3; l++) {
        tl_tensor s = tl_add(t, h, tl_tanh(t, h)),
                  y = norm_written(t, (tl_tensor[]){s, in[1]}, plain);
        h = tl_add(t, s, tl_mul(t, tl_mul(t, y, tl_sigmoid(t, y)), tl_sin(t, y)));
    }
    out[0] = h;
}

static void passes_build_on_each_other(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(5, 33), 1),
                       both_data(m, TL_F32, TL_DIMS(33), 2)};
    both_result r = both_ways(m, block, in, 2, 1, NULL, (tl_graph_options){0});
    assert_true(r.same);
    if (strstr(r.replaced, "rms_norm: replaced 3 times, exact") == NULL ||
        strstr(r.replaced, "add_rms_norm: replaced 3 times, exact") == NULL ||
        strstr(r.replaced, "silu: replaced 3 times, exact") == NULL ||
        strstr(r.replaced, "swiglu: replaced 3 times, exact") == NULL)
        fail_msg("%s", r.report);
    tl_free(m);
}

const struct CMUnitTest tl_tests_patterns_written[] = {
    cmocka_unit_test(norms_in_every_spelling),
    cmocka_unit_test(norms_of_sums),
    cmocka_unit_test(gates_in_every_spelling),
    cmocka_unit_test(rotary_in_every_spelling),
    cmocka_unit_test(tables_of_one_column_are_left_alone),
    cmocka_unit_test(attention_in_every_spelling),
    cmocka_unit_test(a_mask_that_is_not_causal_is_left_alone),
    cmocka_unit_test(what_is_broadcast_or_cut_is_left_alone),
    cmocka_unit_test(losses_in_every_spelling),
    cmocka_unit_test(passes_build_on_each_other),
};
const size_t tl_tests_patterns_written_count = sizeof tl_tests_patterns_written /
                                               sizeof *tl_tests_patterns_written;
