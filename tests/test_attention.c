/* test_attention.c: every vector level's attention equals NUMERICS 7, bit for bit, forward and
 * backward.
 *
 * Outputs are compared whole, so what lies between their elements must stay as it was; all
 * NaNs count as one. TL_TEST_SEED sets the seed.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tensor/isa.h"
#include "tests/support/both.h"
#include "tests/support/attention_problem.h"

extern const struct CMUnitTest tl_tests_attention[];
extern const size_t tl_tests_attention_count;

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

static void assert_same(const attention_problem *p, const attention_problem *want, const char *who)
{
    static const char *const names[] = {[O] = "o", [DQ] = "dq", [DK] = "dk", [DV] = "dv"};
    for (int x = O; x < TENSORS; x++)
        for (int64_t i = 0; i < p->x[x].count; i++)
            if (!same(p->f64, p->x[x].data + (size_t)i * attention_bytes(p),
                      want->x[x].data + (size_t)i * attention_bytes(p)))
                fail_msg("%s: %s differs at %ld: batch %ld, heads %ld/%ld, queries %ld, keys %ld, "
                         "dim %ld, f%d%s, layout %d "
                         "(seed %lu)",
                         who, names[x], (long)i, (long)p->batch, (long)p->q_heads,
                         (long)p->kv_heads, (long)p->q_len, (long)p->kv_len, (long)p->dim,
                         p->f64 ? 64 : 32, p->causal ? " causal" : "", p->layout,
                         (unsigned long)attention_seed());
}

/* Every level against the reference; `p` has its outputs as they were before. */
static void check_made(const attention_problem *p)
{
    attention_problem want = attention_twin(p);
    attention_reference(&want);
    for (int l = 0; tl_isa_at(l) != NULL; l++) {
        attention_problem got = attention_twin(p);
        const tl_attention_args a = attention_args_of(&got);
        attention_run(tl_isa_at(l)->attention, &a);
        assert_same(&got, &want, tl_isa_at(l)->name);
        attention_drop_twin(&got);
    }
    attention_drop_twin(&want);
}

static void check(attention_problem sizes, int kind)
{
    attention_problem p = attention_make(sizes, kind);
    check_made(&p);
    attention_drop(&p);
}

/* --- against the reference ---------------------------------------------------------- */

static const int64_t lengths[] = {0, 1, 7, 8, 9, 31, 32, 33, 64, 65};
static const int64_t dims[] = {1, 4, 8, 16, 24, 32, 40, 64, 80, 128};
static const int64_t groups[] = {1, 2, 4};

static void lengths_on_every_boundary(void **unused)
{
    (void)unused;
    attention_start();
    for (int i = 0; i < 10; i++)
        for (int j = 0; j < 10; j++)
            for (int variant = 0; variant < 4; variant++)
                check((attention_problem){.batch = 1,
                                          .kv_heads = 1,
                                          .q_heads = groups[(i + j) % 3],
                                          .q_len = lengths[i],
                                          .kv_len = lengths[j],
                                          .dim = dims[(3 * i + j) % 6],
                                          .causal = variant & 1,
                                          .f64 = variant & 2,
                                          .layout = (i + 2 * j) % LAYOUTS},
                      (i + j) % 2 ? PLAIN : SPECIAL);
}

static void dims_on_every_boundary(void **unused)
{
    (void)unused;
    attention_start();
    for (int i = 0; i < 10; i++)
        for (int variant = 0; variant < 4; variant++)
            check((attention_problem){.batch = 2,
                                      .kv_heads = 2,
                                      .q_heads = 2 * groups[i % 3],
                                      .q_len = 17 - 3 * (variant & 1),
                                      .kv_len = 17,
                                      .dim = dims[i],
                                      .causal = i % 2,
                                      .f64 = variant & 2,
                                      .layout = (i + variant) % LAYOUTS},
                  (i + variant) % 3);
}

/* More queries than a block of backward or a task of forward holds; more keys than fit a block. */
static void long_sequences(void **unused)
{
    (void)unused;
    attention_start();
    for (int f64 = 0; f64 < 2; f64++) {
        check((attention_problem){.batch = 1,
                                  .kv_heads = 1,
                                  .q_heads = 2,
                                  .q_len = 150,
                                  .kv_len = 150,
                                  .dim = 8,
                                  .causal = true,
                                  .f64 = f64},
              PLAIN);
        check((attention_problem){.batch = 1,
                                  .kv_heads = 1,
                                  .q_heads = 1,
                                  .q_len = 40,
                                  .kv_len = 1030,
                                  .dim = 5,
                                  .causal = true,
                                  .f64 = f64},
              PLAIN);
        check((attention_problem){.batch = 1,
                                  .kv_heads = 1,
                                  .q_heads = 1,
                                  .q_len = 130,
                                  .kv_len = 257,
                                  .dim = 16,
                                  .f64 = f64},
              PLAIN);
        check((attention_problem){.batch = 1,
                                  .kv_heads = 2,
                                  .q_heads = 4,
                                  .q_len = 1,
                                  .kv_len = 1000,
                                  .dim = 64,
                                  .causal = true,
                                  .f64 = f64},
              PLAIN);
    }
}

static void padding_ranges(void **unused)
{
    (void)unused;
    attention_start();
    int64_t start[] = {0, 3, 0, 5, 40, 33, 20, 7}, end[] = {40, 40, 9, 38, 40, 40, 12, 8};
    for (int variant = 0; variant < 16; variant++) {
        attention_problem p = {.batch = 8,
                               .kv_heads = 1,
                               .q_heads = 2,
                               .q_len = variant & 8 ? 45 : 40,
                               .kv_len = 40,
                               .dim = 12,
                               .causal = variant & 1,
                               .f64 = variant & 2};
        p.start = variant & 4 ? start : NULL;
        p.end = variant & 4 && variant & 8 ? NULL : end;
        check(p, variant & 1 ? SPECIAL : PLAIN);
    }
}

/* --- what follows from it, said outright ----------------------------------------------- */

static void assert_finite(const attention_problem *p, int x)
{
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->q_heads; h++)
            for (int64_t i = 0; i < p->q_len - 1; i++)
                for (int64_t d = 0; d < p->dim; d++)
                    assert_true(isfinite(attention_get(p, x, b, h, i, d)));
}

/* NaN and inf outside the range, and in the last key, which only the last query sees. */
static void masked_keys_reach_nobody(void **unused)
{
    (void)unused;
    attention_start();
    int64_t start[] = {2, 0}, end[] = {35, 30};
    for (int l = 0; tl_isa_at(l) != NULL; l++)
        for (int f64 = 0; f64 < 2; f64++) {
            attention_problem p = attention_make((attention_problem){.batch = 2,
                                                                     .kv_heads = 1,
                                                                     .q_heads = 2,
                                                                     .q_len = 35,
                                                                     .kv_len = 35,
                                                                     .dim = 20,
                                                                     .causal = true,
                                                                     .f64 = f64,
                                                                     .start = start,
                                                                     .end = end},
                                                 PLAIN);
            for (int64_t b = 0; b < 2; b++)
                for (int64_t j = 0; j < 35; j++)
                    for (int64_t d = 0; d < 20 && (j < start[b] || j >= end[b] || j == 34); d++) {
                        attention_set(&p, K, b, 0, j, d, j % 2 ? (double)NAN : HUGE_VAL);
                        attention_set(&p, V, b, 0, j, d, j % 3 ? (double)NAN : -HUGE_VAL);
                    }
            const tl_attention_args a = attention_args_of(&p);
            attention_run(tl_isa_at(l)->attention, &a);
            assert_finite(&p, O);
            assert_finite(&p, DQ);
            check_made(&p);
            attention_drop(&p);
        }
}

/* A view of `p`: sample b, queries from i, keys from j. */
static attention_problem view(attention_problem p, int64_t b, int64_t i, int64_t j)
{
    for (int x = 0; x < TENSORS; x++) {
        attention_tensor *t = &p.x[x];
        const bool keys = x == K || x == V || x == DK || x == DV;
        t->data += (size_t)(b * t->sb + (keys ? j : i) * t->ss) * attention_bytes(&p);
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
    attention_start();
    int64_t start[] = {0, 5, 2}, end[] = {21, 21, 20};
    for (int l = 0; tl_isa_at(l) != NULL; l++) {
        attention_problem p = attention_make((attention_problem){.batch = 3,
                                                                 .kv_heads = 2,
                                                                 .q_heads = 4,
                                                                 .q_len = 21,
                                                                 .kv_len = 21,
                                                                 .dim = 16,
                                                                 .causal = true,
                                                                 .start = start,
                                                                 .end = end},
                                             PLAIN);
        attention_problem got = attention_twin(&p);
        tl_attention_args a = attention_args_of(&p);
        attention_run(tl_isa_at(l)->attention, &a);
        for (int64_t b = 0; b < 3; b++) {
            const attention_problem one = view(got, b, 0, 0);
            a = attention_args_of(&one);
            attention_run(tl_isa_at(l)->attention, &a);
        }
        assert_same(&got, &p, tl_isa_at(l)->name);
        attention_drop_twin(&got);
        attention_drop(&p);
    }
}

/* One query at a time over a growing number of keys; also: gradients that are not wanted. */
static void decoding_equals_the_full_pass(void **unused)
{
    (void)unused;
    attention_start();
    for (int l = 0; tl_isa_at(l) != NULL; l++) {
        attention_problem p = attention_make((attention_problem){.batch = 1,
                                                                 .kv_heads = 2,
                                                                 .q_heads = 4,
                                                                 .q_len = 70,
                                                                 .kv_len = 70,
                                                                 .dim = 32,
                                                                 .causal = true},
                                             PLAIN);
        attention_problem got = attention_twin(&p);
        tl_attention_args a = attention_args_of(&p);
        a.dk.data = a.dv.data = NULL;
        attention_run(tl_isa_at(l)->attention, &a);
        for (int64_t i = 0; i < 70; i++) {
            attention_problem one = view(got, 0, i, 0);
            one.q_len = 1;
            one.kv_len = i + 1;
            a = attention_args_of(&one);
            a.dk.data = a.dv.data = NULL;
            attention_run(tl_isa_at(l)->attention, &a);
        }
        assert_same(&got, &p, tl_isa_at(l)->name);
        attention_drop_twin(&got);
        attention_drop(&p);
    }
}

static void left_padding_equals_no_padding(void **unused)
{
    (void)unused;
    attention_start();
    for (int l = 0; tl_isa_at(l) != NULL; l++)
        for (int64_t pad = 1; pad < 40; pad += 6) {
            attention_problem p = attention_make((attention_problem){.batch = 1,
                                                                     .kv_heads = 1,
                                                                     .q_heads = 2,
                                                                     .q_len = 40 + pad,
                                                                     .kv_len = 40 + pad,
                                                                     .dim = 16,
                                                                     .causal = true,
                                                                     .start = &pad},
                                                 PLAIN);
            attention_problem got = attention_twin(&p);
            tl_attention_args a = attention_args_of(&p);
            attention_run(tl_isa_at(l)->attention, &a);
            for (int x = O; x < TENSORS; x++)
                memset(got.x[x].data, 0, (size_t)got.x[x].count * attention_bytes(&got));
            attention_problem bare = view(got, 0, pad, pad);
            bare.start = NULL;
            a = attention_args_of(&bare);
            attention_run(tl_isa_at(l)->attention, &a);
            assert_same(&got, &p, tl_isa_at(l)->name);
            attention_drop_twin(&got);
            attention_drop(&p);
        }
}

/* Each gradient wanted alone is the one wanted with the others. */
static void gradients_alone(void **unused)
{
    (void)unused;
    attention_start();
    for (int l = 0; tl_isa_at(l) != NULL; l++) {
        attention_problem p = attention_make((attention_problem){.batch = 1,
                                                                 .kv_heads = 1,
                                                                 .q_heads = 2,
                                                                 .q_len = 20,
                                                                 .kv_len = 30,
                                                                 .dim = 10,
                                                                 .causal = true},
                                             PLAIN);
        attention_problem got = attention_twin(&p);
        tl_attention_args a = attention_args_of(&p);
        attention_run(tl_isa_at(l)->attention, &a);
        for (int only = DQ; only <= DV; only++) {
            a = attention_args_of(&got);
            if (only != DQ)
                a.dq.data = NULL;
            if (only != DK)
                a.dk.data = NULL;
            if (only != DV)
                a.dv.data = NULL;
            attention_run(tl_isa_at(l)->attention, &a);
        }
        assert_same(&got, &p, tl_isa_at(l)->name);
        attention_drop_twin(&got);
        attention_drop(&p);
    }
}

static double loss(const attention_problem *p)
{
    const tl_attention_args a = attention_args_of(p);
    double sum = 0;
    attention_run(tl_attention_table_scalar, &a);
    for (int64_t h = 0; h < p->q_heads; h++)
        for (int64_t i = 0; i < p->q_len; i++)
            for (int64_t d = 0; d < p->dim; d++)
                sum += attention_get(p, DOUT, 0, h, i, d) * attention_get(p, O, 0, h, i, d);
    return sum;
}

/* The formulas of 7.2 are the derivatives of those of 7.1: central differences, in f64. */
static void gradients_are_derivatives(void **unused)
{
    (void)unused;
    attention_start();
    attention_problem p = attention_make((attention_problem){.batch = 1,
                                                             .kv_heads = 1,
                                                             .q_heads = 2,
                                                             .q_len = 3,
                                                             .kv_len = 4,
                                                             .dim = 3,
                                                             .causal = true,
                                                             .f64 = true},
                                         PLAIN);
    attention_problem exact = attention_twin(&p);
    loss(&exact);
    for (int x = Q; x <= V; x++)
        for (int64_t at = 0; at < p.x[x].count; at++) {
            double *e = (double *)(void *)p.x[x].data + at,
                   *g = (double *)(void *)exact.x[x == Q   ? DQ
                                                  : x == K ? DK
                                                           : DV]
                            .data +
                        at;
            const double was = *e, step = 0x1p-17;
            *e = was + step;
            const double up = loss(&p);
            *e = was - step;
            const double down = loss(&p);
            *e = was;
            assert_true(fabs((up - down) / (2 * step) - *g) < 1e-8 * (1 + fabs(*g)));
        }
    attention_drop_twin(&exact);
    attention_drop(&p);
}

/* ---- what is written out gives the op's bits, called and compiled ---- */

enum { B = 2, HQ = 4, HKV = 2, SQ = 5, SK = 7, WIDTH = 3 };

static void written_program(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                            void *ctx)
{
    tl_tensor lse;
    (void)n_in, (void)n_out, (void)ctx;
    out[0] = tl_attention(t, in[0], in[1], in[2]);
    out[1] = tl_attention(t, in[0], in[1], in[2], .offset = in[3]);
    out[2] = tl_attention(t, in[0], in[1], in[2], .lse = &lse);
    out[3] = tl_attention(t, in[0], in[1], in[2], .full = true);
    out[4] = tl_attention(t, in[0], in[1], in[2], .full = true,
                          .bias = tl_fill(t, tl_dtype_of(t, in[0]), TL_SCALAR, 0));
    out[5] = tl_attention(t, in[0], in[1], in[4], .full = true); /* values of another width */
    out[6] = tl_slice(t, out[5], -1, 0, WIDTH, 1);
    out[7] = lse;
}

static void written_out_equals_the_op(void **unused)
{
    static const int64_t offset[B] = {SK - SQ, SK - SQ};
    (void)unused;
    for (int d = 0; d < 2; d++) {
        tl_dtype dtype = d ? TL_F64 : TL_F32;
        tl_model *m = tl_model_new(.seed = 1);
        tl_tensor in[5] = {both_data(m, dtype, TL_DIMS(B, HQ, SQ, WIDTH), 1),
                           both_data(m, dtype, TL_DIMS(B, HKV, SK, WIDTH), 2),
                           both_data(m, dtype, TL_DIMS(B, HKV, SK, WIDTH), 3),
                           tl_data(m, offset, TL_I64, TL_DIMS(B))};
        tl_tape *t = tl_tape_new(m);
        in[4] = both_data(m, dtype, TL_DIMS(B, HKV, SK, WIDTH + 1), 4);
        tl_tensor out[8];
        double x[8][B * HQ * SQ * (WIDTH + 1)];
        written_program(t, in, 5, out, 8, NULL);
        size_t size = B * HQ * SQ * WIDTH * tl_dtype_size(dtype);
        for (int i = 0; i < 5; i++)
            assert_int_equal(tl_keep(t, out[i], (void *)x[i], size), TL_OK);
        assert_memory_equal(x[1], x[0], size);
        assert_memory_equal(x[2], x[0], size);
        assert_memory_equal(x[4], x[3], size);
        tl_tape_reset(t);
        both_result r = both_ways(m, written_program, in, 5, 8, NULL, (tl_graph_options){0});
        assert_true(r.same);
        tl_free(t, m);
    }
}

/* The weights' hash after a step with a penalty on gradients, of samples with `left` and `right`
 * steps of padding. */
static void hash_of_penalty(int left, int right, char hex[65])
{
    enum { N = 2, STEPS = 5, IN = 4 };
    const int all = left + STEPS + right;
    float x[N * 16 * IN] = {0};
    for (int i = 0; i < N * STEPS * IN; i++)
        x[(i / (STEPS * IN) * all + left) * IN + i % (STEPS * IN)] = (float)(i * 37 % 23) / 11 - 1;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    const int64_t starts[N] = {left, left}, ends[N] = {left + STEPS, left + STEPS};
    tl_tensor e = tl_linear(t, m, "e", tl_data(t, x, TL_F32, TL_DIMS(N, all, IN)), 8,
                            .no_bias = true),
              q = tl_transpose(t, tl_reshape(t, e, TL_DIMS(N, all, 2, 4)), 1, 2), d,
              y = tl_attention(t, q, q, q, .key_start = tl_data(t, starts, TL_I64, TL_DIMS(N)),
                               .key_end = tl_data(t, ends, TL_I64, TL_DIMS(N)));
    y = tl_slice(t, tl_tanh(t, y), 2, left, left + STEPS, 1);
    y = tl_sum(t, tl_square(t, y), TL_ALL, false);
    tl_gradients(t, y, &e, 1, TL_NONE, &d);
    d = tl_sum(t, tl_square(t, tl_slice(t, d, 1, left, left + STEPS, 1)), TL_ALL, false);
    tl_backward(t, tl_add(t, y, d));
    tl_step(o, t);
    assert_string_equal(tl_error(t), "");
    assert_int_equal(tl_model_sha256(m, hex), TL_OK);
    tl_free(o, t, m);
}

static void padding_changes_no_penalty_on_gradients(void **unused)
{
    char alone[65], padded[65];
    (void)unused;
    hash_of_penalty(0, 0, alone);
    for (int i = 1; i < 16; i++) {
        hash_of_penalty(i % 4, i / 4, padded);
        assert_string_equal(padded, alone);
    }
}

/* Where every key is seen an offset, which moves the diagonal, says nothing: the op computes the
 * attention as without one, and so it is written out. */
static void a_full_attention_has_no_diagonal(void **unused)
{
    static const int64_t offset[B] = {-SQ, 1};
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor q = tl_probe_numbers(t, TL_F32, TL_DIMS(B, HQ, SQ, WIDTH), 0, false),
              k = tl_probe_numbers(t, TL_F32, TL_DIMS(B, HKV, SK, WIDTH), 1, false),
              off = tl_data(t, offset, TL_I64, TL_DIMS(B)), y[4];
    tl_tensor mask = tl_lt(t, tl_probe_numbers(t, TL_F32, TL_DIMS(SQ, SK), 2, false),
                           tl_scalar(t, TL_F32, 0.5));
    float x[4][B * HQ * SQ * WIDTH];
    for (int i = 0; i < 4; i++) {
        const tl_tensor moved = i % 2 ? off : TL_NONE;
        y[i] = i < 2 ? tl_attention(t, q, k, k, .full = true, .offset = moved)
                     : tl_attention(t, q, k, k, .full = true, .offset = moved, .mask = mask);
        assert_int_equal(tl_keep(t, y[i], x[i], sizeof x[i]), TL_OK);
    }
    assert_memory_equal(x[0], x[1], sizeof x[0]);
    assert_memory_equal(x[2], x[3], sizeof x[2]);
    assert_memory_not_equal(x[0], x[2], sizeof x[0]);
    assert_string_equal(tl_kernel_of(t, y[1]), tl_kernel_of(t, y[0]));
    tl_free(t);
}

/* Nothing is summed: 0, and the logarithm of that. */
static void without_keys(void **unused)
{
    float y[6], l[2];
    tl_tensor lse;
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor q = tl_fill(t, TL_F32, TL_DIMS(1, 1, 2, 3), 1),
              k = tl_fill(t, TL_F32, TL_DIMS(1, 1, 0, 3), 1);
    tl_tensor out = tl_attention(t, q, k, k, .full = true, .lse = &lse);
    assert_int_equal(tl_keep(t, out, y, sizeof y), TL_OK);
    assert_int_equal(tl_keep(t, lse, l, sizeof l), TL_OK);
    for (int i = 0; i < 6; i++)
        assert_true(y[i] == 0);
    assert_true(l[0] == -INFINITY && l[1] == -INFINITY);
    tl_free(t);
}

/* NUMERICS 7.3: below -2^99 the log-sum-exp is -inf. Beside 2^98 a score and log(3) are
 * nothing. */
static void log_sums_at_their_bound(void **unused)
{
    static const float bias[4] = {-0x1p98f, -0x1p99f, -0x1.000002p99f, -0x1p100f},
                       want[4] = {-0x1p98f, -0x1p99f, -INFINITY, -INFINITY};
    float l[4];
    tl_tensor lse;
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor q = tl_fill(t, TL_F32, TL_DIMS(1, 1, 4, 2), 1),
              k = tl_fill(t, TL_F32, TL_DIMS(1, 1, 3, 2), 1);
    tl_attention(t, q, k, k, .full = true, .bias = tl_data(t, bias, TL_F32, TL_DIMS(4, 1)),
                 .lse = &lse);
    assert_int_equal(tl_keep(t, lse, l, sizeof l), TL_OK);
    assert_memory_equal(l, want, sizeof l);
    tl_free(t);
}

const struct CMUnitTest tl_tests_attention[] = {
    cmocka_unit_test(without_keys),
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
    cmocka_unit_test(written_out_equals_the_op),
    cmocka_unit_test(a_full_attention_has_no_diagonal),
    cmocka_unit_test(padding_changes_no_penalty_on_gradients),
    cmocka_unit_test(log_sums_at_their_bound),
};
const size_t tl_tests_attention_count = sizeof tl_tests_attention / sizeof *tl_tests_attention;
