/* test_attention.c: every vector level's attention equals NUMERICS 7, bit for bit, forward and backward.
 *
 * The reference below is as naive as can be and knows nothing of tiles, blocks or panels;
 * it takes only exp from the library (which test_math.c holds to account). It computes f32
 * in doubles, rounding after each operation: that is exact for + - * /.
 * Outputs are compared whole, so what lies between their elements must stay as it was; all
 * NaNs count as one. TL_TEST_SEED sets the seed.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/kernels/attention.h"
#include "tensor/kernels/math.h"

extern const struct CMUnitTest tl_tests_attention[];
extern const size_t tl_tests_attention_count;

typedef struct {
    const char *name;
    const tl_attention_table *table;
} level;

static int available_levels(level *out)
{
    int n = 0;
    out[n++] = (level){ "scalar", &tl_attention_table_scalar };
#if TL_HAVE_V2
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt"))
        out[n++] = (level){ "v2", &tl_attention_table_v2 };
#endif
#if TL_HAVE_V3
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        out[n++] = (level){ "v3", &tl_attention_table_v3 };
#endif
#if TL_HAVE_V4
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl"))
        out[n++] = (level){ "v4", &tl_attention_table_v4 };
#endif
#if TL_HAVE_NEON
    out[n++] = (level){ "neon", &tl_attention_table_neon };
#endif
    return n;
}

/* --- the problem: sizes, and tensors of any strides ----------------------------- */

enum { Q, K, V, DOUT, O, DQ, DK, DV, TENSORS };
enum { BSHD, BHSD, GAPS, LAYOUTS };

typedef struct {
    int64_t sb, sh, ss, count;
    char *data;
} tensor;

typedef struct {
    int64_t batch, q_heads, kv_heads, q_len, kv_len, dim;
    bool causal, f64;
    double scale;
    int64_t *start, *end;
    int layout;
    tensor x[TENSORS];
} problem;

static size_t bytes_of(const problem *p) { return p->f64 ? 8 : 4; }

static double get(const problem *p, int x, int64_t b, int64_t h, int64_t s, int64_t d)
{
    const tensor *t = &p->x[x];
    const int64_t at = b * t->sb + h * t->sh + s * t->ss + d;
    return p->f64 ? ((double *)(void *)t->data)[at] : (double)((float *)(void *)t->data)[at];
}

static void set(const problem *p, int x, int64_t b, int64_t h, int64_t s, int64_t d, double value)
{
    const tensor *t = &p->x[x];
    const int64_t at = b * t->sb + h * t->sh + s * t->ss + d;
    if (p->f64)
        ((double *)(void *)t->data)[at] = value;
    else
        ((float *)(void *)t->data)[at] = (float)value;
}

static uint64_t state;

static uint64_t seed(void)
{
    const char *s = getenv("TL_TEST_SEED");
    return s ? strtoull(s, NULL, 0) : 20240607;
}

static uint32_t draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* PLAIN: between -2 and 2. SPECIAL: now and then zeros of both signs, tiny, huge, infinite, NaN.
 * TINY: the smallest magnitude there is, so that sums of products end in -0. */
enum { PLAIN, SPECIAL, TINY };

static double value(int kind, bool f64)
{
    if (kind == TINY)
        return (draw() & 3 ? -1 : 1) * (f64 ? 0x1p-1074 : 0x1p-149);
    static const double special[] = { 0.0, -0.0, 1.0, -1.0, HUGE_VAL, -HUGE_VAL, (double)NAN, 0x1p-149, -0x1p-140,
                                      0x1p-75, -0x1p-70, 0x1p127, 90, -90 };
    if (kind == SPECIAL && draw() % 64 == 0)
        return special[draw() % 14];
    return (draw() & 1 ? -1 : 1) * (double)(draw() >> 9) * 0x1p-22 * (kind == SPECIAL && draw() % 4 == 0 ? 0x1p-70 : 1);
}

static void place(const problem *p, tensor *t, bool keys)
{
    const int64_t heads = keys ? p->kv_heads : p->q_heads, len = keys ? p->kv_len : p->q_len, gap = p->layout == GAPS ? 3 : 0;
    const int64_t row = p->dim + gap;
    t->ss = p->layout == BSHD ? heads * row : row;
    t->sh = p->layout == BSHD ? row : len * row + gap;
    t->sb = heads * len * row + heads * gap;
    t->count = p->batch * t->sb;
    t->data = malloc((size_t)t->count * bytes_of(p) + 1);
    assert_non_null(t->data);
}

/* Everything allocated; inputs drawn; outputs full of a value that must survive between their elements. */
static problem make(problem p, int kind)
{
    p.scale = p.scale != 0 ? p.scale : 1 / sqrt((double)p.dim);
    for (int x = 0; x < TENSORS; x++) {
        place(&p, &p.x[x], x == K || x == V || x == DK || x == DV);
        const tensor flat = { 0, 0, 0, p.x[x].count, p.x[x].data };
        problem q = p;
        q.x[x] = flat;
        for (int64_t i = 0; i < flat.count; i++)
            set(&q, x, 0, 0, 0, i, x < O ? value(kind, p.f64) : -12345);
    }
    return p;
}

static void drop(problem *p)
{
    for (int x = 0; x < TENSORS; x++)
        free(p->x[x].data);
}

/* The same inputs (shared), outputs of its own as they were. */
static problem twin(const problem *p)
{
    problem t = *p;
    for (int x = O; x < TENSORS; x++) {
        t.x[x].data = malloc((size_t)t.x[x].count * bytes_of(p) + 1);
        memcpy(t.x[x].data, p->x[x].data, (size_t)t.x[x].count * bytes_of(p));
    }
    return t;
}

static void drop_twin(problem *t)
{
    for (int x = O; x < TENSORS; x++)
        free(t->x[x].data);
}

/* --- the reference: NUMERICS 3.1, 7.1, 7.2 ---------------------------------------- */

static double rnd(const problem *p, double x) { return p->f64 ? x : (double)(float)x; }

static double chain(const problem *p, double a, double b, double acc)
{
    return p->f64 ? fma(a, b, acc) : (double)fmaf((float)a, (float)b, (float)acc);
}

static double ref_exp(const problem *p, double x)
{
    float f = (float)x;
    if (p->f64)
        tl_math_table_scalar.exp64(1, &x, &x);
    else
        tl_math_table_scalar.exp32(1, &f, &f);
    return p->f64 ? x : (double)f;
}

static bool allowed(const problem *p, int64_t b, int64_t i, int64_t j)
{
    if ((p->start && j < p->start[b]) || (p->end && j >= p->end[b]))
        return false;
    return !p->causal || j <= i + (p->kv_len - p->q_len);
}

static double meet(const problem *p, double lane[32])
{
    for (int w = 16; w >= 1; w /= 2)
        for (int i = 0; i < w; i++)
            lane[i] = rnd(p, lane[i] + lane[i + w]);
    return lane[0] + 0;
}

/* prob[j] of query i; false if it sees no key. */
static bool ref_probabilities(const problem *p, int64_t b, int64_t h, int64_t i, double *prob)
{
    const int64_t hk = h / (p->q_heads / p->kv_heads);
    double m = -HUGE_VAL, lane[32] = { 0 };
    bool any = false;
    for (int64_t j = 0; j < p->kv_len; j++)
        if (allowed(p, b, i, j)) {
            double s = 0;
            for (int64_t d = 0; d < p->dim; d++)
                s = chain(p, get(p, Q, b, h, i, d), get(p, K, b, hk, j, d), s);
            prob[j] = rnd(p, s * rnd(p, p->scale));
            m = isnan(m) || isnan(prob[j]) ? (double)NAN : prob[j] > m ? prob[j] : m;
            any = true;
        }
    for (int64_t j = 0; j < p->kv_len; j++)
        if (allowed(p, b, i, j)) {
            prob[j] = ref_exp(p, rnd(p, prob[j] - m));
            lane[j % 32] = rnd(p, lane[j % 32] + prob[j]);
        }
    const double r = rnd(p, 1 / meet(p, lane));
    for (int64_t j = 0; j < p->kv_len; j++)
        prob[j] = rnd(p, prob[j] * r);
    return any;
}

/* t[j] of query i from prob[j]. */
static void ref_score_gradients(const problem *p, int64_t b, int64_t h, int64_t i, const double *prob, double *t)
{
    const int64_t hk = h / (p->q_heads / p->kv_heads);
    double lane[32] = { 0 };
    for (int64_t j = 0; j < p->kv_len; j++)
        if (allowed(p, b, i, j)) {
            t[j] = 0;
            for (int64_t d = 0; d < p->dim; d++)
                t[j] = chain(p, get(p, DOUT, b, h, i, d), get(p, V, b, hk, j, d), t[j]);
            lane[j % 32] = rnd(p, lane[j % 32] + rnd(p, prob[j] * t[j]));
        }
    const double sum = meet(p, lane);
    for (int64_t j = 0; j < p->kv_len; j++)
        t[j] = rnd(p, rnd(p, prob[j] * rnd(p, t[j] - sum)) * rnd(p, p->scale));
}

/* out row = chain over allowed j of w[j] * row j of x. */
static void ref_mix(const problem *p, int out, int x, int64_t b, int64_t h, int64_t i, const double *w)
{
    for (int64_t d = 0; d < p->dim; d++) {
        double acc = 0;
        for (int64_t j = 0; j < p->kv_len; j++)
            if (allowed(p, b, i, j))
                acc = chain(p, w[j], get(p, x, b, h / (p->q_heads / p->kv_heads), j, d), acc);
        set(p, out, b, h, i, d, acc + 0);
    }
}

/* out = chain over the group's heads, then queries, of w * row of x; w is [q_heads][q_len][kv_len]. */
static void ref_fold(const problem *p, int out, int x, int64_t b, int64_t hk, const double *w)
{
    const int64_t group = p->q_heads / p->kv_heads;
    for (int64_t j = 0; j < p->kv_len; j++)
        for (int64_t d = 0; d < p->dim; d++) {
            double acc = 0;
            for (int64_t h = hk * group; h < (hk + 1) * group; h++)
                for (int64_t i = 0; i < p->q_len; i++)
                    if (allowed(p, b, i, j))
                        acc = chain(p, w[(h * p->q_len + i) * p->kv_len + j], get(p, x, b, h, i, d), acc);
            set(p, out, b, hk, j, d, acc + 0);
        }
}

static void reference(const problem *p)
{
    const size_t n = (size_t)(p->q_heads * p->q_len * p->kv_len + 1);
    double *prob = calloc(n, sizeof *prob), *t = calloc(n, sizeof *t);
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->q_heads; h++)
            for (int64_t i = 0; i < p->q_len; i++) {
                double *w = prob + (h * p->q_len + i) * p->kv_len, *g = t + (h * p->q_len + i) * p->kv_len;
                if (ref_probabilities(p, b, h, i, w))
                    ref_score_gradients(p, b, h, i, w, g);
                ref_mix(p, O, V, b, h, i, w);
                ref_mix(p, DQ, K, b, h, i, g);
            }
        for (int64_t h = 0; h < p->kv_heads; h++) {
            ref_fold(p, DK, Q, b, h, t);
            ref_fold(p, DV, DOUT, b, h, prob);
        }
    }
    free(prob);
    free(t);
}

/* --- running a kernel ------------------------------------------------------------------ */

static tl_attention_in input(const problem *p, int x)
{
    return (tl_attention_in){ p->x[x].data, p->x[x].sb, p->x[x].sh, p->x[x].ss };
}

static tl_attention_out output(const problem *p, int x)
{
    return (tl_attention_out){ p->x[x].data, p->x[x].sb, p->x[x].sh, p->x[x].ss };
}

static tl_attention_args args_of(const problem *p)
{
    return (tl_attention_args){
        .batch = p->batch, .q_heads = p->q_heads, .kv_heads = p->kv_heads, .q_len = p->q_len, .kv_len = p->kv_len,
        .dim = p->dim, .causal = p->causal, .f64 = p->f64, .scale = p->scale, .key_start = p->start, .key_end = p->end,
        .q = input(p, Q), .k = input(p, K), .v = input(p, V), .o = output(p, O),
        .dout = input(p, DOUT), .dq = output(p, DQ), .dk = output(p, DK), .dv = output(p, DV),
    };
}

/* Last task first, in scratch full of NaNs. */
static void run(const tl_attention_table *table, const tl_attention_args *a)
{
    for (int backward = 0; backward < 2; backward++) {
        const size_t bytes = table->scratch_bytes(a, backward);
        void *scratch = aligned_alloc(64, bytes);
        assert_non_null(scratch);
        const int64_t tasks = backward ? tl_attention_backward_tasks(a) : tl_attention_forward_tasks(a);
        for (int64_t task = tasks - 1; task >= 0; task--) {
            memset(scratch, 0xff, bytes);
            (backward ? table->backward : table->forward)(a, task, scratch);
        }
        free(scratch);
    }
}

static bool same(bool f64, const char *x, const char *y)
{
    double a = 0, b = 0;
    float u = 0, v = 0;
    if (memcmp(x, y, f64 ? 8 : 4) == 0)
        return true;
    memcpy(f64 ? (void *)&a : (void *)&u, x, f64 ? 8 : 4);
    memcpy(f64 ? (void *)&b : (void *)&v, y, f64 ? 8 : 4);
    return f64 ? isnan(a) && isnan(b) : isnan(u) && isnan(v);
}

static void assert_same(const problem *p, const problem *want, const char *who)
{
    static const char *const names[] = { [O] = "o", [DQ] = "dq", [DK] = "dk", [DV] = "dv" };
    for (int x = O; x < TENSORS; x++)
        for (int64_t i = 0; i < p->x[x].count; i++)
            if (!same(p->f64, p->x[x].data + (size_t)i * bytes_of(p), want->x[x].data + (size_t)i * bytes_of(p)))
                fail_msg("%s: %s differs at %ld: batch %ld, heads %ld/%ld, queries %ld, keys %ld, dim %ld, f%d%s, layout %d "
                         "(seed %lu)",
                         who, names[x], (long)i, (long)p->batch, (long)p->q_heads, (long)p->kv_heads, (long)p->q_len,
                         (long)p->kv_len, (long)p->dim, p->f64 ? 64 : 32, p->causal ? " causal" : "", p->layout,
                         (unsigned long)seed());
}

/* Every level against the reference; `p` has its outputs as they were before. */
static void check_made(const problem *p)
{
    level levels[5];
    const int n = available_levels(levels);
    problem want = twin(p);
    reference(&want);
    for (int l = 0; l < n; l++) {
        problem got = twin(p);
        const tl_attention_args a = args_of(&got);
        run(levels[l].table, &a);
        assert_same(&got, &want, levels[l].name);
        drop_twin(&got);
    }
    drop_twin(&want);
}

static void check(problem sizes, int kind)
{
    problem p = make(sizes, kind);
    check_made(&p);
    drop(&p);
}

/* --- against the reference ---------------------------------------------------------- */

static const int64_t lengths[] = { 0, 1, 7, 8, 9, 31, 32, 33, 64, 65 };
static const int64_t dims[] = { 1, 4, 8, 16, 24, 32, 40, 64, 80, 128 };
static const int64_t groups[] = { 1, 2, 4 };

static void lengths_on_every_boundary(void **unused)
{
    (void)unused;
    state = seed();
    for (int i = 0; i < 10; i++)
        for (int j = 0; j < 10; j++)
            for (int variant = 0; variant < 4; variant++)
                check((problem){ .batch = 1, .kv_heads = 1, .q_heads = groups[(i + j) % 3], .q_len = lengths[i],
                                 .kv_len = lengths[j], .dim = dims[(3 * i + j) % 6],
                                 .causal = variant & 1, .f64 = variant & 2, .layout = (i + 2 * j) % LAYOUTS },
                      (i + j) % 2 ? PLAIN : SPECIAL);
}

static void dims_on_every_boundary(void **unused)
{
    (void)unused;
    state = seed();
    for (int i = 0; i < 10; i++)
        for (int variant = 0; variant < 4; variant++)
            check((problem){ .batch = 2, .kv_heads = 2, .q_heads = 2 * groups[i % 3], .q_len = 17 - 3 * (variant & 1), .kv_len = 17,
                             .dim = dims[i], .causal = i % 2, .f64 = variant & 2, .layout = (i + variant) % LAYOUTS },
                  (i + variant) % 3);
}

/* More queries than a block of backward or a task of forward holds; more keys than fit a block. */
static void long_sequences(void **unused)
{
    (void)unused;
    state = seed();
    for (int f64 = 0; f64 < 2; f64++) {
        check((problem){ .batch = 1, .kv_heads = 1, .q_heads = 2, .q_len = 150, .kv_len = 150, .dim = 8,
                         .causal = true, .f64 = f64 }, PLAIN);
        check((problem){ .batch = 1, .kv_heads = 1, .q_heads = 1, .q_len = 40, .kv_len = 1030, .dim = 5,
                         .causal = true, .f64 = f64 }, PLAIN);
        check((problem){ .batch = 1, .kv_heads = 1, .q_heads = 1, .q_len = 130, .kv_len = 257, .dim = 16,
                         .f64 = f64 }, PLAIN);
        check((problem){ .batch = 1, .kv_heads = 2, .q_heads = 4, .q_len = 1, .kv_len = 1000, .dim = 64,
                         .causal = true, .f64 = f64 }, PLAIN);
    }
}

static void padding_ranges(void **unused)
{
    (void)unused;
    state = seed();
    int64_t start[] = { 0, 3, 0, 5, 40, 33, 20, 7 }, end[] = { 40, 40, 9, 38, 40, 40, 12, 8 };
    for (int variant = 0; variant < 16; variant++) {
        problem p = { .batch = 8, .kv_heads = 1, .q_heads = 2, .q_len = variant & 8 ? 45 : 40, .kv_len = 40,
                      .dim = 12, .causal = variant & 1, .f64 = variant & 2 };
        p.start = variant & 4 ? start : NULL;
        p.end = variant & 4 && variant & 8 ? NULL : end;
        check(p, variant & 1 ? SPECIAL : PLAIN);
    }
}

/* --- what follows from it, said outright ----------------------------------------------- */

static void assert_finite(const problem *p, int x)
{
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->q_heads; h++)
            for (int64_t i = 0; i < p->q_len - 1; i++)
                for (int64_t d = 0; d < p->dim; d++)
                    assert_true(isfinite(get(p, x, b, h, i, d)));
}

/* NaN and inf outside the range, and in the last key, which only the last query sees. */
static void masked_keys_reach_nobody(void **unused)
{
    (void)unused;
    state = seed();
    level levels[5];
    int64_t start[] = { 2, 0 }, end[] = { 35, 30 };
    for (int l = available_levels(levels) - 1; l >= 0; l--)
        for (int f64 = 0; f64 < 2; f64++) {
            problem p = make((problem){ .batch = 2, .kv_heads = 1, .q_heads = 2, .q_len = 35, .kv_len = 35, .dim = 20, .causal = true,
                                        .f64 = f64, .start = start, .end = end }, PLAIN);
            for (int64_t b = 0; b < 2; b++)
                for (int64_t j = 0; j < 35; j++)
                    for (int64_t d = 0; d < 20 && (j < start[b] || j >= end[b] || j == 34); d++) {
                        set(&p, K, b, 0, j, d, j % 2 ? (double)NAN : HUGE_VAL);
                        set(&p, V, b, 0, j, d, j % 3 ? (double)NAN : -HUGE_VAL);
                    }
            const tl_attention_args a = args_of(&p);
            run(levels[l].table, &a);
            assert_finite(&p, O);
            assert_finite(&p, DQ);
            check_made(&p);
            drop(&p);
        }
}

/* A view of `p`: sample b, queries from i, keys from j. */
static problem view(problem p, int64_t b, int64_t i, int64_t j)
{
    for (int x = 0; x < TENSORS; x++) {
        tensor *t = &p.x[x];
        const bool keys = x == K || x == V || x == DK || x == DV;
        t->data += (size_t)(b * t->sb + (keys ? j : i) * t->ss) * bytes_of(&p);
    }
    p.start = p.start ? p.start + b : NULL;
    p.end = p.end ? p.end + b : NULL;
    p.batch = 1;
    p.q_len -= i;
    p.kv_len -= j;
    return p;
}

static void samples_alone_equal_samples_in_a_batch(void **unused)
{
    (void)unused;
    state = seed();
    level levels[5];
    int64_t start[] = { 0, 5, 2 }, end[] = { 21, 21, 20 };
    for (int l = available_levels(levels) - 1; l >= 0; l--) {
        problem p = make((problem){ .batch = 3, .kv_heads = 2, .q_heads = 4, .q_len = 21, .kv_len = 21, .dim = 16, .causal = true,
                                    .start = start, .end = end }, PLAIN);
        problem got = twin(&p);
        tl_attention_args a = args_of(&p);
        run(levels[l].table, &a);
        for (int64_t b = 0; b < 3; b++) {
            const problem one = view(got, b, 0, 0);
            a = args_of(&one);
            run(levels[l].table, &a);
        }
        assert_same(&got, &p, levels[l].name);
        drop_twin(&got);
        drop(&p);
    }
}

/* One query at a time over a growing number of keys; also: gradients that are not wanted. */
static void decoding_equals_the_full_pass(void **unused)
{
    (void)unused;
    state = seed();
    level levels[5];
    for (int l = available_levels(levels) - 1; l >= 0; l--) {
        problem p = make((problem){ .batch = 1, .kv_heads = 2, .q_heads = 4, .q_len = 70, .kv_len = 70, .dim = 32,
                                    .causal = true }, PLAIN);
        problem got = twin(&p);
        tl_attention_args a = args_of(&p);
        a.dk.data = a.dv.data = NULL;
        run(levels[l].table, &a);
        for (int64_t i = 0; i < 70; i++) {
            problem one = view(got, 0, i, 0);
            one.q_len = 1;
            one.kv_len = i + 1;
            a = args_of(&one);
            a.dk.data = a.dv.data = NULL;
            run(levels[l].table, &a);
        }
        assert_same(&got, &p, levels[l].name);
        drop_twin(&got);
        drop(&p);
    }
}

static void left_padding_equals_no_padding(void **unused)
{
    (void)unused;
    state = seed();
    level levels[5];
    for (int l = available_levels(levels) - 1; l >= 0; l--)
        for (int64_t pad = 1; pad < 40; pad += 6) {
            problem p = make((problem){ .batch = 1, .kv_heads = 1, .q_heads = 2, .q_len = 40 + pad, .kv_len = 40 + pad, .dim = 16,
                                        .causal = true, .start = &pad }, PLAIN);
            problem got = twin(&p);
            tl_attention_args a = args_of(&p);
            run(levels[l].table, &a);
            for (int x = O; x < TENSORS; x++)
                memset(got.x[x].data, 0, (size_t)got.x[x].count * bytes_of(&got));
            problem bare = view(got, 0, pad, pad);
            bare.start = NULL;
            a = args_of(&bare);
            run(levels[l].table, &a);
            assert_same(&got, &p, levels[l].name);
            drop_twin(&got);
            drop(&p);
        }
}

/* Each gradient wanted alone is the one wanted with the others. */
static void gradients_alone(void **unused)
{
    (void)unused;
    state = seed();
    level levels[5];
    for (int l = available_levels(levels) - 1; l >= 0; l--) {
        problem p = make((problem){ .batch = 1, .kv_heads = 1, .q_heads = 2, .q_len = 20, .kv_len = 30, .dim = 10,
                                    .causal = true }, PLAIN);
        problem got = twin(&p);
        tl_attention_args a = args_of(&p);
        run(levels[l].table, &a);
        for (int only = DQ; only <= DV; only++) {
            a = args_of(&got);
            if (only != DQ)
                a.dq.data = NULL;
            if (only != DK)
                a.dk.data = NULL;
            if (only != DV)
                a.dv.data = NULL;
            run(levels[l].table, &a);
        }
        assert_same(&got, &p, levels[l].name);
        drop_twin(&got);
        drop(&p);
    }
}

static double loss(const problem *p)
{
    const tl_attention_args a = args_of(p);
    double sum = 0;
    run(&tl_attention_table_scalar, &a);
    for (int64_t h = 0; h < p->q_heads; h++)
        for (int64_t i = 0; i < p->q_len; i++)
            for (int64_t d = 0; d < p->dim; d++)
                sum += get(p, DOUT, 0, h, i, d) * get(p, O, 0, h, i, d);
    return sum;
}

/* The formulas of 7.2 are the derivatives of those of 7.1: central differences, in f64. */
static void gradients_are_derivatives(void **unused)
{
    (void)unused;
    state = seed();
    problem p = make((problem){ .batch = 1, .kv_heads = 1, .q_heads = 2, .q_len = 3, .kv_len = 4, .dim = 3,
                                .causal = true, .f64 = true }, PLAIN);
    problem exact = twin(&p);
    loss(&exact);
    for (int x = Q; x <= V; x++)
        for (int64_t at = 0; at < p.x[x].count; at++) {
            double *e = (double *)(void *)p.x[x].data + at,
                   *g = (double *)(void *)exact.x[x == Q ? DQ : x == K ? DK : DV].data + at;
            const double was = *e, step = 0x1p-17;
            *e = was + step;
            const double up = loss(&p);
            *e = was - step;
            const double down = loss(&p);
            *e = was;
            assert_true(fabs((up - down) / (2 * step) - *g) < 1e-8 * (1 + fabs(*g)));
        }
    drop_twin(&exact);
    drop(&p);
}

const struct CMUnitTest tl_tests_attention[] = {
    cmocka_unit_test(lengths_on_every_boundary),
    cmocka_unit_test(dims_on_every_boundary),
    cmocka_unit_test(long_sequences),
    cmocka_unit_test(padding_ranges),
    cmocka_unit_test(masked_keys_reach_nobody),
    cmocka_unit_test(samples_alone_equal_samples_in_a_batch),
    cmocka_unit_test(decoding_equals_the_full_pass),
    cmocka_unit_test(left_padding_equals_no_padding),
    cmocka_unit_test(gradients_alone),
    cmocka_unit_test(gradients_are_derivatives),
};
const size_t tl_tests_attention_count = sizeof tl_tests_attention / sizeof tl_tests_attention[0];
