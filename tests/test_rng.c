/* test_rng.c: Philox against the published vectors, each draw against its
 * formula, and the distributions against their moments. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "autograd/internal.h"
#include "ops/list.h"
#include "tally.h"
#include "tensor/kernels/math64.h"
#include "tensor/rng.h"
#include "tests/support/both.h"

/* Random123 1.14, tests/kat_vectors: "philox4x32 10". */
static void philox_known_answers(void **state)
{
    (void)state;
    static const uint32_t rows[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        tl_philox4x32(out, rows[i], rows[i] + 4);
        assert_memory_equal(out, rows[i] + 6, sizeof out);
    }
}

/* block(a, q) as rng.h states it. */
static void block(uint32_t out[4], tl_rng_key key, uint64_t a, uint64_t q)
{
    uint32_t c[4] = {(uint32_t)q, (uint32_t)(q >> 32), (uint32_t)a, (uint32_t)(a >> 32)};
    tl_philox4x32(out, c, key.k);
}

/* printf '\1\0\0\0\0\0\0\0init' | sha256sum, and the like. */
static void key_is_the_hash_of_seed_and_name(void **state)
{
    (void)state;
    tl_rng_key key = tl_rng_stream(1, "init");
    assert_int_equal(key.status, TL_OK);
    assert_int_equal(key.k[0], 0xf3bc0aeb);
    assert_int_equal(key.k[1], 0xcbf1bf25);
    key = tl_rng_stream(0xfedcba9876543210u, "");
    assert_int_equal(key.k[0], 0x155db7ae);
    assert_int_equal(key.k[1], 0x00dbcb14);
}

static void draws_follow_the_formulas(void **state)
{
    (void)state;
    tl_rng_key key = tl_rng_stream(7, "formulas");
    uint64_t bs[] = {0, 1, 2, 3, 4, 5, 1000003, UINT64_MAX - 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof bs / sizeof *bs; i++) {
        uint64_t a = 3 + i * 0x100000001u, b = bs[i];
        uint32_t w[4], v[4];
        block(w, key, a, b / 4);
        block(v, key, a, b / 2);
        uint64_t low = v[0] + ((uint64_t)v[1] << 32), high = v[2] + ((uint64_t)v[3] << 32);
        uint64_t x = b % 2 ? high : low;
        assert_int_equal(tl_rng_u32(key, a, b), w[b % 4]);
        assert_true(tl_rng_u64(key, a, b) == x);
        assert_true(tl_rng_uniform32(key, a, b) == (float)(w[b % 4] / 256) / 16777216.0f);
        assert_true(tl_rng_uniform64(key, a, b) == (double)(x / 2048) / 9007199254740992.0);
        double u = (double)(low / 2048 + 1) / 9007199254740992.0;
        double t = 6.283185307179586 * ((double)(high / 2048) / 9007199254740992.0);
        double near = sqrt(-2 * log(u)) * (b % 2 ? sin(t) : cos(t));
        double exact = sqrt(-2 * tl_log64(u)) * (b % 2 ? tl_sin64(t) : tl_cos64(t));
        assert_true(fabs(tl_rng_normal64(key, a, b) - near) < 1e-13);
        assert_true(tl_rng_normal64(key, a, b) == exact);
    }
}

static void fills_equal_draws(void **state)
{
    (void)state;
    tl_rng_key key = tl_rng_stream(2, "fill");
    uint64_t starts[] = {0, 1, 2, 3, 5, 0xffffffffu, UINT64_MAX - 6, UINT64_MAX - 50};
    float f[75];
    double u[75], z[75];
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++)
        for (size_t n = 0; n <= 75; n++) {
            memset(f, 0xff, sizeof f);
            tl_rng_fill_uniform32(f, n, key, 9, starts[s]);
            tl_rng_fill_uniform64(u, n, key, 9, starts[s]);
            tl_rng_fill_normal64(z, n, key, 9, starts[s]);
            for (size_t i = 0; i < n; i++) {
                assert_true(f[i] == tl_rng_uniform32(key, 9, starts[s] + i));
                assert_true(u[i] == tl_rng_uniform64(key, 9, starts[s] + i));
                assert_true(z[i] == tl_rng_normal64(key, 9, starts[s] + i));
            }
            for (size_t i = n; i < 75; i++)
                assert_true(f[i] != f[i]); /* untouched */
        }
}

/* x * n div 2^64, from a long division by bits. */
static uint64_t high_naive(uint64_t x, uint64_t n)
{
    uint64_t high = 0, low = 0;
    for (int i = 63; i >= 0; i--) {
        high = high << 1 | low >> 63;
        low <<= 1;
        if (x >> i & 1) {
            low += n;
            high += low < n;
        }
    }
    return high;
}

/* Over several threads, and blocks that are not whole. */
static void arrays_are_filled_with_draws(void **state)
{
    (void)state;
    enum { N = 3 * 4096 + 77 };
    static float x[N];
    const tl_rng_key key = tl_rng_stream(7, "w");
    const tl_array a = {.dtype = TL_F32, .ndim = 1, .dim = {N}, .stride = {1}, .data = x};
    const int before = tl_threads();
    for (int threads = 1; threads <= 3; threads++)
        for (int normal = 0; normal < 2; normal++) {
            tl_threads_set(threads);
            memset(x, 0, sizeof x);
            tl_rng_fill_array(&a, key, normal, 0.37);
            for (uint64_t i = 0; i < N; i++)
                assert_true(x[i] == (float)(0.37 * (normal ? tl_rng_normal64(key, 0, i)
                                                           : 2 * tl_rng_uniform64(key, 0, i) - 1)));
        }
    tl_threads_set(before);
}

static void below_is_the_upper_half_of_a_product(void **state)
{
    (void)state;
    tl_rng_key key = tl_rng_stream(3, "below");
    uint64_t ns[] = {0, 1, 2, 3, 10, 0xffffffffu, 0x100000000u, 0x8000000000000001u, UINT64_MAX};
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
        for (uint64_t b = 0; b < 200; b++) {
            uint64_t got = tl_rng_below(key, 1, b, ns[i]);
            assert_true(got == high_naive(tl_rng_u64(key, 1, b), ns[i]));
            assert_true(ns[i] == 0 ? got == 0 : got < ns[i]);
        }
    int seen[10] = {0};
    for (uint64_t b = 0; b < 100000; b++)
        seen[tl_rng_below(key, 2, b, 10)]++;
    double chi = 0;
    for (int i = 0; i < 10; i++)
        chi += (seen[i] - 10000.0) * (seen[i] - 10000.0) / 10000.0;
    assert_true(chi < 33.7); /* 9 degrees of freedom, p = 1e-4 */
}

static void uniforms_are_uniform(void **state)
{
    (void)state;
    enum { N = 400000, BINS = 100 };
    tl_rng_key key = tl_rng_stream(4, "uniform");
    double *x = malloc(N * sizeof *x);
    assert_non_null(x);
    tl_rng_fill_uniform64(x, N, key, 0, 0);
    int seen[BINS] = {0};
    double mean = 0, lag = 0, least = 1, most = 0;
    for (int i = 0; i < N; i++) {
        assert_true(x[i] >= 0 && x[i] < 1);
        seen[(int)(x[i] * BINS)]++;
        mean += x[i] / N;
        lag += i > 0 ? (x[i] - 0.5) * (x[i - 1] - 0.5) / N : 0;
        least = fmin(least, x[i]);
        most = fmax(most, x[i]);
    }
    free(x);
    double chi = 0, expect = (double)N / BINS;
    for (int i = 0; i < BINS; i++)
        chi += (seen[i] - expect) * (seen[i] - expect) / expect;
    assert_true(chi < 161); /* 99 degrees of freedom, p = 1e-4 */
    assert_true(fabs(mean - 0.5) < 4 * 0.2887 / sqrt(N));
    assert_true(fabs(lag) < 4 * (1.0 / 12) / sqrt(N));
    assert_true(least < 1e-4 && most > 1 - 1e-4);
}

static void normals_have_their_moments(void **state)
{
    (void)state;
    enum { N = 400000 };
    tl_rng_key key = tl_rng_stream(5, "normal");
    double *z = malloc(N * sizeof *z);
    assert_non_null(z);
    tl_rng_fill_normal64(z, N, key, 0, 0);
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, pair = 0;
    int inside = 0;
    for (int i = 0; i < N; i++) {
        double s = z[i] * z[i];
        assert_true(fabs(z[i]) < 8.6);
        m1 += z[i] / N;
        m2 += s / N;
        m3 += s * z[i] / N;
        m4 += s * s / N;
        pair += i % 2 ? z[i] * z[i - 1] / (N / 2) : 0;
        inside += fabs(z[i]) < 1;
    }
    free(z);
    double root = sqrt(N);
    assert_true(fabs(m1) < 4 / root);
    assert_true(fabs(m2 - 1) < 4 * sqrt(2) / root);
    assert_true(fabs(m3) < 4 * sqrt(15) / root);
    assert_true(fabs(m4 - 3) < 4 * sqrt(96) / root);
    assert_true(fabs(pair) < 4 * sqrt(2) / root);
    assert_true(fabs((double)inside / N - 0.682689) < 4 * 0.4655 / root);
}

static void streams_differ(void **state)
{
    (void)state;
    tl_rng_key k[4] = {tl_rng_stream(0, "a"), tl_rng_stream(0, "b"), tl_rng_stream(1, "a"),
                       tl_rng_stream(0, "ab")};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++) {
            assert_true(memcmp(k[i].k, k[j].k, sizeof k[i].k) != 0);
            assert_true(tl_rng_u64(k[i], 0, 0) != tl_rng_u64(k[j], 0, 0));
        }
    assert_true(tl_rng_u64(k[0], 0, 1) != tl_rng_u64(k[0], 1, 0));
}

/* (f64) u >= p keeps the element (NUMERICS 11.3): seen where p is a draw. */
static void dropout_keeps_a_draw_equal_to_p(void **state)
{
    enum { N = 32 };
    float ones[N], y[N];
    (void)state;
    for (int i = 0; i < N; i++)
        ones[i] = 1;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tl_tensor x[2] = {tl_data(t, ones, TL_F32, TL_DIMS(1, N))};
    x[1] = tl_cast(t, x[0], TL_F64);
    tl_rng_key key = tl_rng_stream(3, "here");
    for (uint64_t k = 0; k < 2 * N; k++) {
        double p = (double)tl_rng_uniform32(key, 0, k / 2);
        tl_tensor kept = tl_dropout(t, x[k % 2], p, .stream = "here");
        tl_keep(t, tl_cast(t, kept, TL_F32), y, sizeof y);
        for (uint64_t i = 0; i < N; i++)
            assert_true((y[i] != 0) == ((double)tl_rng_uniform32(key, 0, i) >= p));
    }
    assert_false(tl_failed(t));
    tl_free(t, m);
}

/* A sample's draws are its own, in whatever batch, behind whatever padding. */
static void draws_are_of_their_sample(void **state)
{
    static const int64_t number[4] = {7, 1000, 8, 3}, pad[2] = {2, 0};
    float all[4][5], one[5], next[2][5], padded[2][5];
    (void)state;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tl_tensor numbers = tl_data(t, number, TL_I64, TL_DIMS(4));
    tl_keep(t, tl_normal(t, TL_F32, TL_DIMS(4, 5), "z", .sample = numbers), all, sizeof all);
    for (int i = 0; i < 4; i++) {
        tl_tensor n = tl_data(t, &number[i], TL_I64, TL_SCALAR);
        tl_keep(t, tl_normal(t, TL_F32, TL_DIMS(1, 5), "z", .sample = n), one, sizeof one);
        assert_memory_equal(one, all[i], sizeof one);
    }
    tl_tensor two = tl_data(t, number, TL_I64, TL_DIMS(2)), base = tl_select(t, numbers, 0, 0);
    tl_keep(t, tl_normal(t, TL_F32, TL_DIMS(2, 5), "z", .sample = base), next, sizeof next);
    assert_memory_equal(next[0], all[0], sizeof one);
    assert_memory_equal(next[1], all[2], sizeof one);
    tl_tensor start = tl_data(t, pad, TL_I64, TL_DIMS(2));
    tl_keep(t, tl_normal(t, TL_F32, TL_DIMS(2, 5), "z", .sample = two, .start = start), padded,
            sizeof padded);
    assert_true(padded[0][0] == 0 && padded[0][1] == 0);
    assert_memory_equal(&padded[0][2], all[0], 3 * sizeof(float));
    assert_memory_equal(padded[1], all[1], sizeof one);
    tl_keep(t, tl_normal(t, TL_F32, TL_DIMS(1, 5), "other", .sample = base), one, sizeof one);
    assert_memory_not_equal(one, all[0], sizeof one);
    assert_false(tl_failed(t));
    tl_free(t, m);
}

static void bernoulli_and_permutation(void **state)
{
    enum { N = 300 };
    static int64_t order[N], rows[2][N];
    static const int64_t number[2] = {0, 5};
    float p[N], u[N], y[N];
    bool seen[N] = {false};
    (void)state;
    for (int i = 0; i < N; i++)
        p[i] = (float)i / N;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tl_tensor x = tl_data(t, p, TL_F32, TL_DIMS(1, N));
    tl_keep(t, tl_bernoulli(t, x, "b"), y, sizeof y);
    tl_keep(t, tl_uniform(t, TL_F32, TL_DIMS(1, N), "b"), u, sizeof u);
    for (int i = 0; i < N; i++)
        assert_true(y[i] == (u[i] < p[i] ? 1 : 0));
    tl_keep(t, tl_permutation(t, N, "p"), order, sizeof order);
    tl_keep(t, tl_permutation(t, N, "p", .sample = tl_data(t, number, TL_I64, TL_DIMS(2))), rows,
            sizeof rows);
    assert_memory_equal(order, rows[0], sizeof order);
    assert_memory_not_equal(order, rows[1], sizeof order);
    for (int i = 0; i < N; i++) {
        assert_true(order[i] >= 0 && order[i] < N && !seen[order[i]]);
        seen[order[i]] = true;
    }
    /* In f16 a draw has the digits of f32: half of them are below what they round to. */
    tl_tensor half = tl_cast(t, tl_data(t, u, TL_F32, TL_DIMS(1, N)), TL_F16);
    tl_keep(t, tl_cast(t, half, TL_F32), p, sizeof p);
    tl_keep(t, tl_cast(t, tl_bernoulli(t, half, "b"), TL_F32), y, sizeof y);
    for (int i = 0; i < N; i++)
        assert_true(y[i] == (u[i] < p[i] ? 1 : 0));
    assert_false(tl_failed(t));
    tl_tape *bare = tl_tape_new(NULL);
    tl_uniform(bare, TL_F32, TL_DIMS(2), "u");
    assert_non_null(strstr(tl_error(bare), "uniform: the tape has no model"));
    tl_error_clear(bare);
    tl_normal(t, TL_I64, TL_DIMS(2), "u");
    assert_non_null(strstr(tl_error(t), "draw: the result I64"));
    tl_error_clear(t);
    tl_bernoulli(t, tl_data(t, number, TL_I64, TL_DIMS(2)), "b");
    assert_non_null(strstr(tl_error(t), "I64"));
    tl_error_clear(t);
    tl_free(bare, t, m);
}

/* NUMERICS 11.4 of f64: coins and permutations are made of the draws of 53 bits. */
static void draws_of_f64_decide(void **state)
{
    enum { N = 2000 };
    static double p[2 * N], y[2 * N];
    static int64_t order[N];
    (void)state;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    const tl_rng_key coins = tl_rng_stream(3, "b"), places = tl_rng_stream(3, "p");
    for (uint64_t i = 0; i < 2 * N; i++) { /* the draw itself, and the next number */
        const double u = tl_rng_uniform64(coins, 0, i);
        p[i] = i % 2 ? nextafter(u, 1) : u;
    }
    tl_keep(t, tl_bernoulli(t, tl_data(t, p, TL_F64, TL_DIMS(1, 2 * N)), "b"), y, sizeof y);
    for (int i = 0; i < 2 * N; i++)
        assert_true(y[i] == i % 2);
    const int64_t sample = 7;
    tl_tensor number = tl_data(t, &sample, TL_I64, TL_DIMS(1));
    tl_keep(t, tl_permutation(t, N, "p", .sample = number), order, sizeof order);
    for (int i = 1; i < N; i++) {
        const double a = tl_rng_uniform64(places, 7, (uint64_t)order[i - 1]),
                     b = tl_rng_uniform64(places, 7, (uint64_t)order[i]);
        assert_true(a < b || (a == b && order[i - 1] < order[i]));
    }
    assert_false(tl_failed(t));
    tl_free(t, m);
}

/* NUMERICS 11.3: the keys of the dropouts on a tape are those of streams of these names. */
static void drops_from(const tl_tape *t, uint64_t seed, const char *const *names)
{
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const tl_node *n = &t->node[i];
        int64_t key = 0;
        if (n->op != &tl_op_dropout)
            continue;
        for (const tl_attr *a = n->op->attr; a->name != NULL; a++)
            if (strcmp(a->name, "key") == 0)
                memcpy(&key, (const char *)n->attrs + a->offset, sizeof key);
        if (*names == NULL)
            fail_msg("there are more dropouts than streams");
        const tl_rng_key want = tl_rng_stream(seed, *names);
        if ((uint64_t)key != ((uint64_t)want.k[1] << 32 | want.k[0]))
            fail_msg("a dropout has another stream than %s", *names);
        names++;
    }
    if (*names != NULL)
        fail_msg("there is no dropout %s", *names);
}

static void streams_of_models(void **state)
{
    static const char *const gpt2[] = {"embed.dropout",        "blocks.0.attention.dropout",
                                       "blocks.0.mlp.dropout", "blocks.1.attention.dropout",
                                       "blocks.1.mlp.dropout", NULL},
                             *const rnn[] = {"rnn.dropout_l0", "rnn.dropout_l1", NULL};
    static const tl_gpt2_config config = {
        .vocab = 5, .width = 4, .layers = 2, .heads = 1, .max_positions = 3, .dropout = 0.1};
    (void)state;
    tl_model *m = tl_model_new(.seed = 9);
    tl_tape *t = tl_tape_new(m);
    tl_tensor sample = tl_scalar(t, TL_I64, 5);
    tl_gpt2(t, m, &config, tl_zeros(t, TL_I64, TL_DIMS(2, 3)), .sample = sample);
    assert_string_equal(tl_error(t), "");
    drops_from(t, 9, gpt2);
    tl_tape_reset(t);
    sample = tl_scalar(t, TL_I64, 5);
    tl_gru(t, m, "rnn", tl_zeros(t, TL_F32, TL_DIMS(2, 3, 4)), 4, .layers = 3, .dropout = 0.5,
           .sample = sample);
    assert_string_equal(tl_error(t), "");
    drops_from(t, 9, rnn);
    tl_free(t, m);
}

static void refuses(tl_tape *t, tl_tensor got, tl_status status, const char *words)
{
    if (!tl_is_none(got) || tl_error_status(t) != status || strstr(tl_error(t), words) == NULL)
        fail_msg("'%s' expected, not %s: '%s'", words, tl_status_name(tl_error_status(t)),
                 tl_error(t));
    tl_error_clear(t);
}

static void draws_that_make_no_sense_are_refused(void **state)
{
    static const int64_t below[2] = {0, -1}, end[2] = {3, 0}, beyond[2] = {0, 4};
    static const float odd[3] = {0, NAN, 1}, above[3] = {0, 1, 1.5f};
    (void)state;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(2, 3), 1), one = tl_fill(t, TL_F32, TL_SCALAR, 1),
              line = tl_fill(t, TL_F32, TL_DIMS(2), 1), ids = tl_zeros(t, TL_I64, TL_DIMS(2)),
              three = tl_zeros(t, TL_I64, TL_DIMS(3)), low = tl_data(t, below, TL_I64, TL_DIMS(2)),
              high = tl_data(t, beyond, TL_I64, TL_DIMS(2)), y;
#define DROPS(in, p, status, words, ...) \
    refuses(t, tl_dropout(t, in, p, .stream = "d", __VA_ARGS__), status, words)
    DROPS(x, (double)NAN, TL_EDOMAIN, "dropout: p is nan", .sample = ids);
    DROPS(x, 1.5, TL_EDOMAIN, "dropout: p is 1.5", .sample = ids);
    DROPS(x, -0.5, TL_EDOMAIN, "dropout: p is -0.5", .sample = ids);
    DROPS(ids, 0.5, TL_EDTYPE, "dropout: x I64, sample I64", .sample = ids);
    DROPS(x, 0.5, TL_EDTYPE, "dropout: x F32, sample F32", .sample = line);
    DROPS(one, 0.5, TL_ESHAPE, "dropout: shape [] has no rows", .sample = ids);
    DROPS(x, 0.5, TL_ESHAPE, "dropout: x has shape [2, 3], sample [3]", .sample = three);
    DROPS(x, 0.5, TL_ESHAPE, "start [2], F32; I64 for each", .sample = ids, .start = line);
    DROPS(x, 0.5, TL_ESHAPE, "start [3], I64; I64 for each", .sample = ids, .start = three);
    DROPS(x, 0.5, TL_ESHAPE, "start [2, 3], F32", .sample = ids, .start = x);
    DROPS(line, 0.5, TL_ESHAPE, "start [2], I64", .sample = ids, .start = ids);
    DROPS(x, 0.5, TL_EINDEX, "row 1 starts at index -1 of 3", .sample = ids, .start = low);
    DROPS(x, 0.5, TL_EINDEX, "row 1 starts at index 4 of 3", .sample = ids, .start = high);
#undef DROPS
    refuses(t, tl_dropout(t, x, 0.5), TL_EUSAGE, "dropout: no .stream is named");
    refuses(t, tl_uniform(t, TL_F32, TL_SCALAR, "u"), TL_ESHAPE, "shape [] has no rows");
    refuses(t, tl_uniform(t, TL_F32, TL_DIMS(-1, 2), "u"), TL_ESHAPE, "dim 0 has size -1");
    refuses(t, tl_uniform(t, TL_F32, TL_DIMS(2, 3), "u", .sample = line), TL_EDTYPE,
            "draw: the result F32, sample F32");
    refuses(t, tl_uniform(t, TL_F32, TL_DIMS(2, 3), "u", .sample = three), TL_ESHAPE,
            "draw: the result has shape [2, 3], sample [3]; one number");
    refuses(t, tl_uniform(t, TL_F32, TL_DIMS(2, 3), "u", .sample = ids, .start = three), TL_ESHAPE,
            "draw: the result has shape [2, 3], start [3], I64");
    refuses(t, tl_bernoulli(t, tl_data(t, odd, TL_F32, TL_DIMS(3)), "b"), TL_EDOMAIN,
            "bernoulli: p is nan at position 1");
    refuses(t, tl_bernoulli(t, tl_data(t, above, TL_F32, TL_DIMS(3)), "b"), TL_EDOMAIN,
            "bernoulli: p is 1.5 at position 2");
    float all[2][3]; /* a row may be all padding */
    y = tl_normal(t, TL_F32, TL_DIMS(2, 3), "u", .sample = ids,
                  .start = tl_data(t, end, TL_I64, TL_DIMS(2)));
    assert_int_equal(tl_keep(t, y, all, sizeof all), TL_OK);
    for (int i = 0; i < 3; i++)
        assert_true(all[0][i] == 0 && !signbit(all[0][i]) && all[1][i] != 0);
    tl_free(t, m);
}

/* Noise of a step's samples, inside the step: z = mean + exp(0.5 v) * normal, and its loss. */
static void noisy(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    (void)n_in, (void)n_out;
    tl_model *m = ctx;
    tl_tensor h = tl_tanh(t, tl_linear(t, m, "in", in[0], 6)), mean = tl_linear(t, m, "mean", h, 3),
              v = tl_linear(t, m, "v", h, 3);
    tl_tensor noise = tl_normal(t, TL_F32, tl_shape_of(t, mean), "z", .sample = in[1]);
    tl_tensor coins = tl_bernoulli(t, tl_sigmoid(t, mean), "b", .sample = in[1]);
    tl_tensor z = tl_add(t, mean, tl_mul(t, tl_exp(t, tl_scale(t, v, 0.5)), noise));
    out[0] = tl_bce_with_logits(t, tl_linear(t, m, "out", z, 5), tl_sigmoid(t, in[0]), TL_SUM);
    tl_backward(t, out[0]);
    out[1] = tl_grad(t, tl_param(t, m, "in.weight", TL_F32, TL_DIMS(6, 5), TL_INIT_ONES, 0));
    out[2] = noise;
    out[3] = coins;
}

static void noise_compiles(void **state)
{
    static const int64_t number[4] = {7, 1000, 8, 3};
    (void)state;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(4, 5), 1),
                       tl_data(m, number, TL_I64, TL_DIMS(4))};
    both_result r = both_ways(m, noisy, in, 2, 4, m, (tl_graph_options){0});
    assert_true(r.same);
    tl_free(m);
}

const struct CMUnitTest tl_tests_rng[] = {
    cmocka_unit_test(philox_known_answers),
    cmocka_unit_test(key_is_the_hash_of_seed_and_name),
    cmocka_unit_test(draws_follow_the_formulas),
    cmocka_unit_test(fills_equal_draws),
    cmocka_unit_test(arrays_are_filled_with_draws),
    cmocka_unit_test(below_is_the_upper_half_of_a_product),
    cmocka_unit_test(uniforms_are_uniform),
    cmocka_unit_test(normals_have_their_moments),
    cmocka_unit_test(streams_differ),
    cmocka_unit_test(dropout_keeps_a_draw_equal_to_p),
    cmocka_unit_test(draws_are_of_their_sample),
    cmocka_unit_test(bernoulli_and_permutation),
    cmocka_unit_test(draws_of_f64_decide),
    cmocka_unit_test(streams_of_models),
    cmocka_unit_test(draws_that_make_no_sense_are_refused),
    cmocka_unit_test(noise_compiles),
};
const size_t tl_tests_rng_count = sizeof tl_tests_rng / sizeof *tl_tests_rng;
