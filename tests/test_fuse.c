/* Several pointwise ops in one loop give the bits of the ops one by one: every pair of ops, in
 * every dtype, on operands that broadcast, stride or start anywhere, at sizes around a tile, at
 * every vector level and number of threads, whatever the limits. And what must not be computed
 * later than it was recorded is not. TL_TEST_SEED repeats a run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally_extend.h>

#include "tensor/isa.h"
#include "tensor/kernels/pointwise.h"
#include "tensor/threads.h"

extern const struct CMUnitTest tl_tests_fuse[];
extern const size_t tl_tests_fuse_count;

static uint64_t next(uint64_t *s) /* splitmix64 */
{
    uint64_t z = *s += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Works f out on in, called and compiled twice: the same bits. The graph's figures. */
static tl_graph_stats same_bits(tl_tape *t, tl_program *f, const tl_tensor *in, int n_in, int n_out,
                                void *ctx, tl_graph_options o, const char *what)
{
    tl_tensor a[4], b[4];
    char want[65], got[65];
    f(t, in, n_in, a, n_out, ctx);
    tl_graph *g = tl_trace_at(TL_AT(t), f, in, n_in, n_out, ctx, o);
    for (int round = 0; round < 2 && g != NULL; round++) {
        if (tl_graph_run(g, in, n_in, b, n_out) != TL_OK)
            break;
        for (int i = 0; i < n_out; i++)
            if (tl_sha256(t, a[i], want) != TL_OK || tl_sha256(t, b[i], got) != TL_OK ||
                strcmp(want, got) != 0)
                fail_msg("%s: output %d differs %s", what, i, tl_error(t));
    }
    if (tl_failed(t))
        fail_msg("%s: %s", what, tl_error(t));
    tl_graph_stats s = tl_graph_stats_of(g);
    tl_free(g);
    return s;
}

/* ---- every pair of ops ---- */

enum { LAYOUTS = 6, SIZES = 7 };
static const tl_dtype dtypes[] = {TL_F32, TL_F64, TL_F16, TL_BF16};
/* No element, one, and either side of a tile's length and of twice that. */
static const int64_t sizes[SIZES][2] = {{0, 3},   {1, 1},   {7, 73}, {2, 256},
                                        {27, 19}, {41, 25}, {3, 683}};

typedef struct {
    const tl_op *f, *g;
    tl_dtype dtype;
    int64_t r, c;
    int layout[3];
} pair;

/* x as an operand that the loop meets in another way, of shape (r, c) or one that broadcasts to it.
 * in: flat numbers. */
static tl_tensor operand(tl_tape *t, const tl_tensor *in, const pair *p, int i)
{
    tl_tensor flat = tl_slice(t, in[i % 2], 0, 0, p->r * p->c, 1);
    switch (p->layout[i]) {
    case 0: return tl_reshape(t, flat, TL_DIMS(p->r, p->c));
    case 1: return tl_transpose(t, tl_reshape(t, flat, TL_DIMS(p->c, p->r)), 0, 1);
    case 2:
        return tl_reshape(t, tl_slice(t, in[i % 2], 0, 1, p->r * p->c + 1, 1),
                          TL_DIMS(p->r, p->c));               /* a step off where memory begins */
    case 3: return tl_slice(t, in[i % 2], 0, 3, 3 + p->c, 1); /* a row */
    case 4:
        return tl_reshape(t, tl_slice(t, in[i % 2], 0, 5, 5 + p->r, 1),
                          TL_DIMS(p->r, 1)); /* a column */
    default: return tl_reshape(t, tl_slice(t, in[i % 2], 0, 7, 8, 1), TL_SCALAR);
    }
}

static tl_tensor apply(tl_tape *t, const tl_op *op, tl_tensor x, const tl_tensor *others,
                       tl_dtype d)
{
    union {
        tl_const_attrs c;
        tl_clamp_attrs clamp;
        tl_cast_attrs cast;
    } attrs = {.clamp = {0.75, 1.25}};
    tl_tensor in[3] = {x, others[0], others[1]};
    if (op->slot == TL_TILE_cast)
        attrs.cast.dtype = d == TL_F64    ? TL_F16
                           : d == TL_F16  ? TL_F64
                           : d == TL_BF16 ? TL_F32
                                          : TL_BF16;
    bool chooses = op->slot == TL_TILE_where, casts = op->slot == TL_TILE_cast,
         yes_no = tl_dtype_of(t, x) == TL_BOOL;
    if (tl_dtype_of(t, x) != d && !casts && !(chooses && yes_no))
        in[0] = tl_cast(t, x, d);
    if (chooses)
        in[0] = yes_no ? x : tl_gt(t, in[0], others[0]), in[1] = others[1], in[2] = others[0];
    return tl_apply1(TL_AT(t), op, &attrs, in, op->n_in);
}

static void run_pair(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    const pair *p = ctx;
    (void)n, (void)m;
    tl_tensor x[3] = {operand(t, in, p, 0), operand(t, in, p, 1), operand(t, in, p, 2)};
    tl_tensor whole = tl_add(t,
                             tl_reshape(t, tl_slice(t, in[0], 0, 0, p->r * p->c, 1),
                                        TL_DIMS(p->r, p->c)),
                             x[0]); /* of the whole shape */
    out[0] = apply(t, p->g, apply(t, p->f, whole, x + 1, p->dtype), x + 1, p->dtype);
}

static tl_tensor numbers(tl_tape *t, tl_dtype d, uint64_t *s)
{
    static const double hard[] = {0.0, -0.0, 1, -1, 0x1p-140, -0x1p-24, 70000, -1e30, 0.5, 0x1p-14};
    enum { N = 2400 };
    static double x[N];
    for (int i = 0; i < N; i++)
        x[i] = next(s) % 7 == 0 ? hard[next(s) % 10] : (double)(int64_t)next(s) * 0x1p-62;
    return tl_detach(t, tl_cast(t, tl_data(t, x, TL_F64, TL_DIMS(N)), d));
}

static int listed(const tl_op **list)
{
    int n = 0;
    for (int i = 0; i < tl_op_count(); i++) {
        const tl_op *op = tl_op_at(i);
        if (op->slot != 0 && op->traits & (TL_POINTWISE | TL_STORES) && op->n_in <= 3 &&
            op->n_out == 1 && n < 64)
            list[n++] = op;
    }
    return n;
}

static tl_graph_options random_options(uint64_t *s)
{
    tl_graph_options o = {.no_fuse = next(s) % 8 == 0,
                          .no_simplify = next(s) % 4 == 0,
                          .copy_inputs = next(s) % 4 == 0};
    o.limits = (tl_cost_limits){.never_inline = next(s) % 8 == 0,
                                .heavy_inline = next(s) % 2,
                                .body = (int64_t)(next(s) % 4)};
    return o;
}

static void every_pair_of_ops_in_one_loop(void **state)
{
    const char *env = getenv("TL_TEST_SEED");
    uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : 1, s = seed;
    const tl_op *op[64];
    int n = listed(op), tried = 0, one = 0;
    (void)state;
    printf("TL_TEST_SEED=%llu, %d ops\n", (unsigned long long)seed, n);
    assert_true(n >= 40);
    tl_tape *t = tl_tape_new(NULL);
    for (int i = 0; i < n * n * 4; i++) {
        tl_dtype d = dtypes[i % 4];
        const int64_t *size = sizes[next(&s) % SIZES];
        pair p = {op[i / 4 % n], op[i / 4 / n], d, size[0], size[1], {0}};
        char what[200];
        for (int k = 0; k < 3; k++)
            p.layout[k] = (int)(next(&s) % LAYOUTS);
        tl_tensor in[2] = {numbers(t, d, &s), numbers(t, d, &s)};
        tl_graph_options o = random_options(&s);
        snprintf(what, sizeof what, "[ seed %llu ] %s of %s in %s, %lld x %lld, layouts %d %d %d",
                 (unsigned long long)seed, p.g->name, p.f->name, tl_dtype_name(d), (long long)p.r,
                 (long long)p.c, p.layout[0], p.layout[1], p.layout[2]);
        tl_graph_stats g = same_bits(t, run_pair, in, 2, 1, &p, o, what);
        tried++;
        one += !o.no_fuse && !o.limits.never_inline && g.steps == 1;
        tl_tape_reset(t);
    }
    tl_free(t);
    printf("%d pairs, %d of them one loop\n", tried, one);
    assert_true(one > tried / 2);
}

/* ---- levels and threads ---- */

static void mixture(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    tl_tensor a = tl_tanh(t, tl_add(t, in[0], tl_slice(t, in[1], 0, 1, 2, 1)));
    tl_tensor b = tl_cast(t, tl_mul(t, a, in[1]), TL_BF16);
    tl_tensor c = tl_where(t, tl_gt(t, b, in[2]), tl_scale(t, b, 0.3), tl_sub(t, in[2], b));
    out[0] = tl_cast(t, tl_square(t, c), TL_F32);
    out[1] = tl_where(t, tl_eq(t, in[3], tl_cast(t, tl_scale(t, in[0], 4), TL_I64)), in[0],
                      tl_neg(t, in[1]));
}

static void one_graph_at_every_level_and_number_of_threads(void **state)
{
    enum { N = 70001 };
    const char *now = tl_isa_now()->name;
    int64_t *ids = calloc(N, sizeof *ids);
    float *x = calloc(N, sizeof *x);
    uint64_t s = 7;
    char want[2][65], got[65];
    tl_tensor in[4], out[2];
    (void)state;
    for (int i = 0; i < N; i++)
        x[i] = (float)((double)(int64_t)next(&s) * 0x1p-61), ids[i] = (int64_t)(next(&s) % 5);
    tl_tape *t = tl_tape_new(NULL);
    in[0] = tl_data(t, x, TL_F32, TL_DIMS(N));
    in[1] = tl_scale(t, in[0], 0.7);
    in[2] = tl_cast(t, in[0], TL_BF16);
    in[3] = tl_data(t, ids, TL_I64, TL_DIMS(N));
    mixture(t, in, 4, out, 2, NULL);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tl_sha256(t, out[i], want[i]), TL_OK);
    tl_graph *g = tl_trace(t, mixture, in, 4, 2, NULL);
    assert_true(tl_graph_stats_of(g).steps < 6);
    int threads = tl_threads();
    for (int level = 0; tl_isa_at(level) != NULL; level++)
        for (int k = 1; k <= 4; k++) {
            assert_true(tl_isa_force(tl_isa_at(level)->name));
            tl_threads_set(k);
            assert_int_equal(tl_graph_run(g, in, 4, out, 2), TL_OK);
            for (int i = 0; i < 2; i++) {
                tl_sha256(t, out[i], got);
                if (strcmp(got, want[i]) != 0)
                    fail_msg("output %d at level %s with %d threads differs", i,
                             tl_isa_at(level)->name, k);
            }
        }
    tl_threads_set(threads);
    tl_isa_force(now);
    tl_free(g, t);
    free(x);
    free(ids);
}

/* ---- large loops ---- */

/* kind 0: a chain of many ops; 1: a sum of many operands; 2: a tree; 3: one value read by many; 4:
 * through reshapes; 5: through one that moves a broadcast. */
static void large(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    int kind = ((int *)ctx)[0], size = ((int *)ctx)[1];
    tl_tensor x = in[0], v[64] = {TL_NONE};
    (void)n, (void)m;
    if (kind == 0)
        for (int i = 0; i < size; i++)
            x = i % 3 ? tl_shift(t, tl_scale(t, x, 0.99), 0.01) : tl_sub(t, x, in[1]);
    if (kind == 1)
        for (int i = 0; i < size; i++)
            x = tl_add(t, x, tl_slice(t, in[1], 0, i, i + 1000, 1));
    if (kind == 2) {
        for (int i = 0; i < size; i++)
            v[i] = tl_mul(t, tl_slice(t, in[1], 0, 2 * i, 2 * i + 1000, 1),
                          tl_scale(t, x, 1.0 + i));
        for (int w = size; w > 1; w = (w + 1) / 2)
            for (int i = 0; i < w / 2; i++)
                v[i] = tl_add(t, v[i], v[w - 1 - i]);
        x = v[0];
    }
    if (kind == 3) {
        tl_tensor y = tl_mul(t, x, tl_slice(t, in[1], 0, 9, 1009, 1)), z = y;
        for (int i = 0; i < size; i++)
            z = tl_add(t, z, tl_mul(t, y, tl_scale(t, y, 0.1 * i)));
        x = z;
    }
    if (kind == 4)
        for (int i = 0; i < size; i++)
            x = tl_neg(t, tl_reshape(t,
                                     tl_mul(t, tl_reshape(t, x, TL_DIMS(10, 100)),
                                            tl_slice(t, in[1], 0, i, i + 100, 1)),
                                     TL_DIMS(1000)));
    if (kind == 5) { /* one column, along two different dims */
        tl_tensor column = tl_reshape(t, tl_slice(t, in[1], 0, size, size + 10, 1), TL_DIMS(10, 1));
        x = tl_mul(t,
                   tl_reshape(t, tl_mul(t, tl_reshape(t, x, TL_DIMS(10, 100)), column),
                              TL_DIMS(10, 10, 10)),
                   column);
    }
    out[0] = kind == 0 ? x : tl_reshape(t, x, TL_DIMS(1000));
}

static void loops_too_large_are_cut(void **state)
{
    static const int limits[] = {0, 1, 3, 1000};
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    uint64_t s = 3;
    for (int kind = 0; kind < 6; kind++)
        for (int size = 1; size < 64; size = size * 3 / 2 + 1)
            for (int l = 0; l < 4; l++) {
                tl_tensor all = numbers(t, dtypes[l], &s),
                          in[2] = {tl_detach(t, tl_slice(t, all, 0, 0, 1000, 1)), all};
                int ctx[2] = {kind, size};
                char what[64];
                if (kind == 0)
                    in[1] = in[0];
                snprintf(what, sizeof what, "kind %d, size %d, body %d", kind, size, limits[l]);
                same_bits(t, large, in, 2, 1, ctx,
                          (tl_graph_options){.limits = {.body = limits[l], .heavy_inline = true}},
                          what);
                tl_tape_reset(t);
            }
    tl_free(t);
}

/* ---- what is decided shows in the number of loops ---- */

/* kind: the value with two loops as users; outputs are the loops. */
static void shared(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m;
    tl_tensor made = tl_cumsum(t, in[0], 0, false),
              x = TL_NONE; /* no input, so that bytes decide */
    switch (*(int *)ctx) {
    case 0: x = tl_scale(t, made, 3); break;                            /* T = O */
    case 1: x = tl_exp(t, made); break;                                 /* heavy */
    case 2: x = tl_add(t, tl_add(t, made, in[1]), in[2]); break;        /* T = 3O: kept by bytes */
    case 3: x = tl_neg(t, tl_shift(t, tl_scale(t, made, 3), 1)); break; /* a body of three */
    default:
        x = tl_matmul(t, tl_reshape(t, tl_scale(t, made, 3), TL_DIMS(20, 50)),
                      tl_reshape(t, in[1], TL_DIMS(50, 20)));
        break;
    }
    out[0] = tl_sub(t, x, tl_scalar(t, TL_F32, 2));
    out[1] = tl_square(t, x);
}

static void limits_decide(void **state)
{
    static const struct {
        int kind;
        tl_cost_limits limits;
        int steps; /* one of them the running sum */
    } want[] = {{0, {0}, 3},         {0, {.never_inline = true}, 4},
                {1, {0}, 4},         {1, {.heavy_inline = true}, 3},
                {2, {0}, 4},         {3, {0}, 3},
                {3, {.body = 2}, 4}, {3, {.never_inline = true}, 6},
                {4, {0}, 5}};
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    uint64_t s = 5;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        tl_tensor in[3];
        char what[64];
        int kind = want[i].kind;
        for (int k = 0; k < 3; k++)
            in[k] = tl_detach(t, tl_slice(t, numbers(t, TL_F32, &s), 0, 0, 1000, 1));
        snprintf(what, sizeof what, "case %zu", i);
        tl_graph_stats g = same_bits(t, shared, in, 3, 2, &kind,
                                     (tl_graph_options){.limits = want[i].limits}, what);
        if (g.steps != want[i].steps)
            fail_msg("case %zu: %d steps, want %d", i, g.steps, want[i].steps);
        tl_tape_reset(t);
    }
    tl_free(t);
}

/* ---- a value that is read in many shapes is many operands of a loop ---- */

/* Reads in[1] and in[2] in another shape at each of *ctx steps. */
static void turned(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    const int steps = *(const int *)ctx;
    tl_tensor x = in[0];
    (void)n, (void)m;
    for (int a = 0, done = 0; a <= 6; a++)
        for (int b = 0; a + b <= 6; b++)
            for (int c = 0; a + b + c <= 6 && done < steps; c++, done++) {
                x = tl_reshape(t, x, TL_DIMS(1 << a, 1 << b, 1 << c, 1 << (6 - a - b - c)));
                x = tl_where(t, in[1], x, in[2]);
            }
    out[0] = x;
}

static void a_value_is_read_in_many_shapes(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    uint64_t s = 7;
    bool kept[1] = {true};
    for (int steps = 2; steps <= 80; steps += 13) {
        tl_tensor in[3] = {tl_detach(t, tl_slice(t, numbers(t, TL_F32, &s), 0, 0, 64, 1)),
                           tl_data(t, kept, TL_BOOL, TL_DIMS(1)),
                           tl_detach(t, tl_slice(t, numbers(t, TL_F32, &s), 0, 0, 1, 1))};
        same_bits(t, turned, in, 3, 1, &steps, (tl_graph_options){.limits.body = 100}, "turned");
        tl_tape_reset(t);
    }
    tl_free(t);
}

/* ---- operands that change ---- */

/* A value made of what is changed in place before it is used. */
static void before_a_change(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m,
                            void *ctx)
{
    (void)n, (void)m, (void)ctx;
    tl_tensor x = tl_cumsum(t, in[0], 1, false), before = tl_scale(t, x, 3),
              half = tl_scale(t, in[1], 0.5);
    tl_tensor after = tl_rotary_(t, x, in[1], half, TL_ROTARY_HALF);
    out[0] = tl_sub(t, before, after);
}

static void what_an_operand_was_is_not_read_when_it_is_something_else(void **state)
{
    (void)state;
    tl_tape *t = tl_tape_new(NULL);
    uint64_t s = 11;
    for (int never = 0; never < 2; never++) {
        tl_tensor x = tl_detach(t, tl_reshape(t, tl_slice(t, numbers(t, TL_F32, &s), 0, 0, 480, 1),
                                              TL_DIMS(2, 5, 6, 8)));
        tl_tensor in[2] = {x,
                           tl_detach(t,
                                     tl_reshape(t, tl_slice(t, numbers(t, TL_F32, &s), 0, 0, 40, 1),
                                                TL_DIMS(5, 1, 8)))};
        same_bits(t, before_a_change, in, 2, 1, NULL,
                  (tl_graph_options){.limits.never_inline = never}, "rotary_");
    }
    tl_free(t);
}

typedef struct {
    tl_model *m;
    tl_opt *o;
} training;

/* A value made of a parameter, used when the optimizer has changed that. */
static void before_a_step(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    training *run = ctx;
    (void)n, (void)m;
    tl_tensor w = tl_param(t, run->m, "w", TL_F32, TL_DIMS(100), .kind = TL_INIT_NORMAL,
                           .scale = 1),
              before = tl_scale(t, w, 3);
    tl_backward(t, tl_sum(t, tl_mul(t, before, in[0]), TL_ALL, false), .retain = true);
    tl_step(run->o, t);
    out[0] = tl_add(t, before, in[0]);
    out[1] = tl_add(t, tl_scale(t, w, 3), in[0]);
}

static void parameters_are_read_before_their_step(void **state)
{
    char hash[2][2][65];
    (void)state;
    for (int compiled = 0; compiled < 2; compiled++) {
        training run = {.m = tl_model_new(.seed = 1)};
        tl_tape *t = tl_tape_new(run.m);
        tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(100), 3), out[2];
        run.o = tl_sgd_new(run.m, .lr = 0.125);
        tl_compiled *c = tl_compile(t, before_a_step, 2, &run);
        if (compiled)
            tl_run(c, &x, 1, out);
        else
            before_a_step(t, &x, 1, out, 2, &run);
        for (int i = 0; i < 2; i++)
            if (tl_sha256(t, out[i], hash[compiled][i]) != TL_OK)
                fail_msg("%s", tl_error(t));
        tl_free(c, run.o, t, run.m);
    }
    assert_memory_equal(hash[0], hash[1], sizeof hash[0]);
    assert_string_not_equal(hash[0][0],
                            hash[0][1]); /* before and after differ, or nothing was shown */
}

/* ---- what is needed in memory though a loop could compute it, and loops of too many inputs ----
 */

enum { OUTPUT, TURNED_FIRST, TURNED_LAST, WIDER, MANY, NEEDS, LEAVES = 40 };

/* Two halves, each a sum of as many inputs as one loop has room for, but not both. */
static tl_tensor sum_of_half(tl_tape *t, const tl_tensor *in)
{
    tl_tensor y = tl_mul(t, in[0], in[1]);
    for (int i = 2; i < LEAVES / 2; i++)
        y = tl_add(t, y, in[i]);
    return y;
}

static void needs_memory(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    const int kind = *(const int *)ctx;
    tl_tensor e = tl_exp(t, in[0]), turned, flat;
    (void)n, (void)m;
    if (kind == OUTPUT) { /* an output, read by a loop as well */
        out[0] = e;
        out[1] = tl_sin(t, e);
    } else if (kind == TURNED_FIRST || kind == TURNED_LAST) { /* seen as it lies and otherwise */
        turned = kind == TURNED_FIRST ? tl_transpose(t, e, 0, 1) : e;
        flat = tl_sin(t, tl_reshape(t, e, TL_DIMS(-1)));
        turned = kind == TURNED_LAST ? tl_transpose(t, e, 0, 1) : turned;
        out[0] = tl_matmul(t, turned, in[1]);
        out[1] = flat;
    } else if (kind == WIDER) { /* rounded before it is read in another type */
        e = tl_exp(t, tl_cast(t, in[0], TL_F16));
        out[0] = tl_sin(t, tl_cast(t, e, TL_F64));
        out[1] = tl_where(t, tl_gt(t, in[0], in[1]), tl_cast(t, e, TL_F32), in[1]);
    } else {
        out[0] = tl_sub(t, sum_of_half(t, in), sum_of_half(t, in + LEAVES / 2));
        out[1] = tl_neg(t, e);
    }
}

static void what_is_needed_in_memory_lies_there(void **state)
{
    enum { SIDE = 24 };
    static float x[LEAVES][SIDE * SIDE];
    uint64_t seed = 7;
    char what[64];
    (void)state;
    for (int i = 0; i < LEAVES * SIDE * SIDE; i++)
        x[i / (SIDE * SIDE)][i % (SIDE * SIDE)] = (float)(next(&seed) >> 40) / (1 << 24) - 0.5f;
    for (int kind = 0; kind < NEEDS; kind++)
        for (int plain = 0; plain < 2; plain++) {
            tl_tape *t = tl_tape_new(NULL);
            tl_tensor in[LEAVES];
            for (int i = 0; i < LEAVES; i++)
                in[i] = tl_data(t, x[i], TL_F32, TL_DIMS(SIDE, SIDE));
            snprintf(what, sizeof what, "kind %d, %s", kind, plain ? "plain" : "fused");
            same_bits(t, needs_memory, in, LEAVES, 2, &kind, (tl_graph_options){.no_fuse = plain},
                      what);
            tl_free(t);
        }
}

/* ---- ops of the user's ---- */

static tl_status turned_shape(tl_call *c)
{
    const tl_status s = tl_pointwise_shape(c);
    c->out[0].stride[0] = 1;
    c->out[0].stride[1] = c->out[0].dim[0];
    c->strided = true;
    return s;
}

static void tripled(const tl_tile *k)
{
    for (int64_t i = 0; i < k->n; i++)
        ((float *)k->out)[i] = 3 * ((const float *)k->in[0])[i];
}

static const tl_op turned_op = {.name = "turned",
                                .n_in = 1,
                                .n_out = 1,
                                .traits = TL_POINTWISE | TL_NONDIFF,
                                .shape = turned_shape,
                                .tile = tripled};

static void turned_square(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    out[0] = tl_apply1(TL_AT(t), &turned_op, NULL, (tl_tensor[]){tl_square(t, in[0])}, 1);
}

static void turned_sums(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m, (void)ctx;
    tl_tensor x = tl_cumsum(t, in[0], 1, false);
    out[0] = tl_cumsum(t, tl_apply1(TL_AT(t), &turned_op, NULL, &x, 1), 1, false);
}

static void same_bits_of_a_table(tl_program *f, const char *what)
{
    uint64_t s = 13;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_detach(t, tl_reshape(t, numbers(t, TL_F32, &s), TL_DIMS(60, 40)));
    same_bits(t, f, &x, 1, 1, NULL, (tl_graph_options){0}, what);
    tl_free(t);
}

static void a_loop_stores_its_result_with_the_op_s_strides(void **state)
{
    (void)state;
    same_bits_of_a_table(turned_square, "turned");
}

static void a_result_with_other_strides_takes_no_operand_s_memory(void **state)
{
    (void)state;
    same_bits_of_a_table(turned_sums, "turned");
}

static tl_status half_shape(tl_call *c)
{
    const tl_status s = tl_pointwise_shape(c);
    c->out[0].dtype = TL_F16;
    return s;
}

static void tile_of_unequal(const tl_tile *k)
{
    for (int64_t i = 0; i < k->n; i++)
        ((bool *)k->out)[i] = ((const bool *)k->in[0])[i] != ((const bool *)k->in[1])[i];
}

static void tile_of_sign(const tl_tile *k)
{
    for (int64_t i = 0; i < k->n; i++)
        ((float *)k->out)[i] = ((const bool *)k->in[0])[i] ? 1 : -1;
}

/* Of so many gathered operands that tiles are short. */
static void signs(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    static const tl_op unequal = {.name = "unequal",
                                  .n_in = 2,
                                  .n_out = 1,
                                  .traits = TL_POINTWISE | TL_NONDIFF,
                                  .shape = tl_pointwise_shape,
                                  .tile = tile_of_unequal},
                       sign = {.name = "sign_of",
                               .n_in = 1,
                               .n_out = 1,
                               .traits = TL_POINTWISE | TL_NONDIFF,
                               .shape = half_shape,
                               .tile = tile_of_sign};
    enum { SIDE = 40, GATHERED = 12 };
    tl_tensor x = TL_NONE;
    (void)n, (void)m, (void)ctx;
    for (int i = 0; i <= GATHERED; i++) {
        tl_tensor y = tl_reshape(t, tl_slice(t, in[0], 0, i, i + SIDE * SIDE, 1),
                                 TL_DIMS(SIDE, SIDE));
        x = i == 0 ? y
                   : tl_apply1(TL_AT(t), &unequal, NULL, (tl_tensor[]){x, tl_transpose(t, y, 0, 1)},
                               2);
    }
    out[0] = tl_apply1(TL_AT(t), &sign, NULL, &x, 1);
}

static void a_loop_from_bool_to_f16_has_room_for_both(void **state)
{
    (void)state;
    uint64_t s = 17;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = numbers(t, TL_F32, &s), positive = tl_gt(t, x, tl_scalar(t, TL_F32, 0));
    tl_graph_stats g = same_bits(t, signs, &positive, 1, 1, NULL, (tl_graph_options){0}, "signs");
    assert_int_equal(g.steps, 1);
    tl_free(t);
}

const struct CMUnitTest tl_tests_fuse[] = {
    cmocka_unit_test(a_loop_stores_its_result_with_the_op_s_strides),
    cmocka_unit_test(a_result_with_other_strides_takes_no_operand_s_memory),
    cmocka_unit_test(a_loop_from_bool_to_f16_has_room_for_both),
    cmocka_unit_test(what_is_needed_in_memory_lies_there),
    cmocka_unit_test(every_pair_of_ops_in_one_loop),
    cmocka_unit_test(one_graph_at_every_level_and_number_of_threads),
    cmocka_unit_test(loops_too_large_are_cut),
    cmocka_unit_test(limits_decide),
    cmocka_unit_test(a_value_is_read_in_many_shapes),
    cmocka_unit_test(what_an_operand_was_is_not_read_when_it_is_something_else),
    cmocka_unit_test(parameters_are_read_before_their_step),
};
const size_t tl_tests_fuse_count = sizeof tl_tests_fuse / sizeof *tl_tests_fuse;
