/* What backward puts off: folds run one parameter at a time, in any order, and continue
 * accumulators that came from another tape. Ranks - each a model and a tape of its own - train on
 * parts of each batch, and end with the weights of one tape that had all of it. TL_TEST_SEED
 * repeats. */
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

#include "tests/cases/cases.h"
#include "tests/support/fresh_dir.h"

extern const struct CMUnitTest tl_tests_accumulate[];
extern const size_t tl_tests_accumulate_count;

enum { SAMPLES = 11, S = 5, VOCAB = 9, D = 8, STEPS = 2, PARTS = 2, RANKS = 7, NAMES = 128 };

/* ---- the programs: ids (b, S) and how long each sample is -> (b, ...) ---- */

typedef struct {
    tl_tape *t;
    tl_model *m;
    tl_dtype dtype;
    tl_tensor ids, end;
} input;

static tl_tensor param(const input *in, const char *name, tl_shape s)
{
    return tl_param(in->t, in->m, name, in->dtype, s, TL_INIT_NORMAL, 0.4);
}

static tl_tensor embedded(const input *in)
{
    return tl_embedding(in->t, param(in, "e", TL_DIMS(VOCAB, D)), in->ids);
}

static tl_tensor mlp(const input *in)
{
    tl_tape *t = in->t;
    tl_tensor x = tl_reshape(t, embedded(in), TL_DIMS(-1, S * D));
    x = tl_tanh(t, tl_linear(t, in->m, "l1", x, 12));
    return tl_linear(t, in->m, "l2", tl_norm_layer(t, in->m, "n", x, 1e-5), 3);
}

static tl_tensor llama(const input *in)
{
    const tl_llama_config c = {.vocab = VOCAB,
                               .width = D,
                               .layers = 2,
                               .heads = 2,
                               .kv_heads = 1,
                               .hidden = 12,
                               .pairing = TL_ROTARY_HALF,
                               .dtype = in->dtype};
    return tl_llama(in->t, in->m, &c, in->ids);
}

static tl_tensor gpt2(const input *in)
{
    const tl_gpt2_config c = {.vocab = VOCAB,
                              .width = D,
                              .layers = 2,
                              .heads = 2,
                              .max_positions = S,
                              .dtype = in->dtype};
    return tl_gpt2(in->t, in->m, &c, in->ids);
}

static tl_tensor lstm(const input *in)
{
    return tl_lstm(in->t, in->m, "r", embedded(in), D, .layers = 2, .both = true, .end = in->end);
}

/* A weight used at each step as it is and turned, another once before all of them. */
static tl_tensor cell(const input *in)
{
    tl_tape *t = in->t;
    tl_tensor x = tl_matmul(t, tl_permute(t, embedded(in), TL_DIMS(1, 0, 2)),
                            param(in, "w", TL_DIMS(D, D)));
    tl_tensor u = param(in, "u", TL_DIMS(D, D)), h = tl_select(t, x, 0, 0);
    for (int i = 1; i < S; i++) {
        h = tl_tanh(t, tl_add(t, tl_select(t, x, 0, i), tl_matmul(t, h, u)));
        h = tl_add(t, tl_matmul(t, h, tl_transpose(t, u, 0, 1)), param(in, "b", TL_DIMS(D)));
    }
    return h;
}

/* Positions that all samples share, a product of weights, a weight's cast, the embedding again. */
static tl_tensor derived(const input *in)
{
    static const int64_t place[S] = {0, 1, 2, 1, 0};
    tl_tape *t = in->t;
    tl_tensor p = tl_embedding(t, param(in, "p", TL_DIMS(S, D)),
                               tl_constant(t, place, TL_I64, TL_DIMS(S)));
    tl_tensor ab = tl_matmul(t, param(in, "a", TL_DIMS(D, 2)), param(in, "b", TL_DIMS(2, D)));
    tl_tensor x = tl_matmul(t, tl_add(t, embedded(in), p), ab);
    tl_tensor wide = tl_cast(t, param(in, "w", TL_DIMS(D, D)), TL_F64);
    x = tl_cast(t, tl_matmul(t, tl_cast(t, tl_tanh(t, x), TL_F64), wide), in->dtype);
    return tl_matmul(t, tl_add(t, x, tl_matmul(t, x, ab)),
                     tl_transpose(t, param(in, "e", TL_DIMS(VOCAB, D)), 0, 1));
}

typedef struct {
    const char *name;
    tl_tensor (*f)(const input *in);
    bool two;   /* backwards */
    bool below; /* has derived values: who has no samples runs the program on none */
} program;
static const program programs[] = {
    {"mlp", mlp, true, false},     {"llama", llama, false, false},
    {"gpt2", gpt2, false, false},  {"lstm", lstm, false, false},
    {"a cell", cell, true, false}, {"derived and tied", derived, false, true},
};
enum { PROGRAMS = sizeof programs / sizeof *programs };

/* ---- ranks ---- */

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *opt;
    input in;
} rank;

/* Gradients of samples [from, to) of the step's batch. */
static void backward(rank *r, const program *p, int step, int from, int to, bool put_off)
{
    int64_t ids[SAMPLES * S], end[SAMPLES];
    tl_tape *t = r->t;
    for (int i = from; i < to; i++) {
        uint64_t s = (uint64_t)(step * SAMPLES + i);
        end[i - from] = 1 + (int64_t)(tl_case_random(&s) % S);
        for (int j = 0; j < S; j++)
            ids[(i - from) * S + j] = (int64_t)(tl_case_random(&s) % VOCAB);
    }
    r->in.ids = tl_data(t, ids, TL_I64, TL_DIMS(to - from, S));
    r->in.end = tl_data(t, end, TL_I64, TL_DIMS(to - from));
    tl_tensor y = tl_cast(t, p->f(&r->in), TL_F32);
    tl_tensor loss = tl_scale(t, tl_sum(t, tl_square(t, y), TL_ALL, false), 1.0 / SAMPLES);
    tl_backward(t, loss, .put_off = put_off, .retain = p->two);
    if (p->two)
        tl_backward(t, tl_sum(t, tl_sin(t, y), TL_ALL, false), .put_off = put_off);
}

static void begin(rank *r, const program *p, tl_dtype dtype)
{
    r->m = tl_model_new(.seed = 3);
    r->t = tl_tape_new(r->m);
    r->opt = tl_adamw_new(r->m, .lr = 0.02, .clip = 1);
    r->in = (input){.t = r->t, .m = r->m, .dtype = dtype};
    backward(r, p, 0, 0, 1, false); /* parameters are made */
    tl_tape_reset(r->t);
    tl_grad_clear(r->t);
}

static void end(rank *r, char hex[512])
{
    if (tl_failed(r->t))
        snprintf(hex, 512, "%s", tl_error(r->t));
    else
        tl_model_sha256(r->m, hex);
    tl_error_clear(r->t);
    tl_free(r->opt, r->t, r->m);
}

/* What `from` has of a parameter, of all if NULL, goes to `to`. */
static void hand_on(const rank *from, rank *to, const char *name)
{
    for (int i = 0; from != to && i < tl_accumulating_count(from->t); i++) {
        tl_accumulating a = tl_accumulating_at(from->t, i);
        tl_array into = {.data = NULL};
        if (name != NULL && strcmp(a.param, name) != 0)
            continue;
        tl_shape shape = {.ndim = a.array.ndim};
        memcpy(shape.dim, a.array.dim, sizeof shape.dim);
        if (tl_accumulator_open(to->t, a.param, a.call, a.kind, a.array.dtype, shape, &into) ==
                TL_OK &&
            into.data != NULL)
            memcpy(into.data, a.array.data,
                   (size_t)tl_shape_count(&shape) * tl_dtype_size(a.array.dtype));
    }
}

static int add_name(char (*name)[64], int n, const char *new)
{
    for (int i = 0; i < n; i++)
        if (strcmp(name[i], new) == 0)
            return n;
    assert_true(n < NAMES);
    snprintf(name[n], 64, "%s", new);
    return n + 1;
}

/* A micro-batch: rank i has samples [cut[i], cut[i + 1]). Folds are a pipeline: parameters in a
 * random order, each from rank to rank. last: what the micro-batch before has left. */
static void micro_batch(rank *r, int ranks, const program *p, int step, const int *cut,
                        const rank *last, uint64_t *s)
{
    static char name[NAMES][64];
    int n = 0, next[NAMES] = {0}, left = 0;
    for (int i = 0; i < ranks; i++)
        if (cut[i] < cut[i + 1] || p->below)
            backward(&r[i], p, step, cut[i], cut[i + 1], true);
    for (int i = 0; i < ranks; i++) {
        for (int k = 0; tl_waiting_at(r[i].t, k) != NULL; k++)
            n = add_name(name, n, tl_waiting_at(r[i].t, k));
        for (int k = 0; k < tl_accumulating_count(r[i].t); k++)
            n = add_name(name, n, tl_accumulating_at(r[i].t, k).param);
    }
    for (left = n * ranks; left > 0; left--) {
        int k = (int)(tl_case_random(s) % (uint64_t)n);
        while (next[k] == ranks)
            k = (k + 1) % n;
        const int to = next[k]++;
        if (to > 0 || last != NULL)
            hand_on(to > 0 ? &r[to - 1] : last, &r[to], name[k]);
        if (tl_accumulate(r[to].t, name[k]) != TL_OK)
            print_error("rank %d: %s\n", to, tl_error(r[to].t));
    }
    for (int i = 0; i < ranks; i++) {
        assert_null(tl_waiting_at(r[i].t, 0));
        tl_tape_reset(r[i].t);
    }
}

/* Uneven contiguous parts of [from, to); from two ranks on, one of them is empty. */
static void cut_at_random(int *cut, int ranks, int from, int to, uint64_t *s)
{
    const int empty = ranks == 1 ? -1 : (int)(tl_case_random(s) % (uint64_t)ranks);
    cut[0] = from;
    for (int i = 0; i < ranks; i++) {
        const int at = cut[i], last = i == ranks - 1 || (empty == ranks - 1 && i == ranks - 2);
        const int n = (int)(tl_case_random(s) % (uint64_t)(to - at + 1));
        cut[i + 1] = i == empty ? at : last ? to : at + n;
    }
}

static void train(const program *p, tl_dtype dtype, int ranks, uint64_t seed, char hex[512])
{
    rank r[RANKS];
    uint64_t s = seed;
    for (int i = 0; i < ranks; i++)
        begin(&r[i], p, dtype);
    for (int step = 0; step < STEPS; step++) {
        const int half = 1 + (int)(tl_case_random(&s) % (SAMPLES - 1));
        for (int k = 0; k < PARTS; k++) {
            int cut[RANKS + 1];
            cut_at_random(cut, ranks, k ? half : 0, k ? SAMPLES : half, &s);
            micro_batch(r, ranks, p, step, cut, k ? &r[ranks - 1] : NULL, &s);
        }
        for (int i = 0; i < ranks; i++) {
            hand_on(&r[ranks - 1], &r[i], NULL);
            tl_step(r[i].opt, r[i].t);
            tl_tape_reset(r[i].t);
        }
    }
    end(&r[0], hex);
    for (int i = 1; i < ranks; i++) {
        char other[512];
        end(&r[i], other);
        assert_string_equal(other, hex);
    }
}

static void alone(const program *p, tl_dtype dtype, char hex[512])
{
    rank r;
    begin(&r, p, dtype);
    for (int step = 0; step < STEPS; step++) {
        backward(&r, p, step, 0, SAMPLES, false);
        tl_step(r.opt, r.t);
        tl_tape_reset(r.t);
    }
    end(&r, hex);
}

static void one_hash_for_any_number_of_ranks(void **unused)
{
    static const int ranks[] = {1, 2, 3, 4, 7};
    const char *env = getenv("TL_TEST_SEED");
    const uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : 1;
    int wrong = 0;
    (void)unused;
    for (int i = 0; i < 2 * PROGRAMS; i++) {
        const program *p = &programs[i / 2];
        const tl_dtype dtype = i % 2 ? TL_BF16 : TL_F32;
        char want[512], got[512];
        alone(p, dtype, want);
        assert_int_equal(strlen(want), 64);
        for (int k = 0; k < 5; k++) {
            train(p, dtype, ranks[k], seed * 100 + (uint64_t)(i * 5 + k), got);
            if (strcmp(got, want) == 0)
                continue;
            wrong++;
            print_error("TL_TEST_SEED=%llu: %s, %s, %d ranks: %s for %s\n",
                        (unsigned long long)seed, p->name, tl_dtype_name(dtype), ranks[k], got,
                        want);
        }
    }
    assert_int_equal(wrong, 0);
}

/* ---- what is refused ---- */

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_tensor x, w, v, fixed;
} small;

/* (x v) w + fixed w of four samples: its gradients wait. */
static void put_off(small *a)
{
    static const float x[4][2] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}};
    tl_tape *t = a->t;
    tl_tape_reset(t);
    a->w = tl_param(t, a->m, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1);
    a->v = tl_param(t, a->m, "v", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1);
    a->fixed = tl_buffer(t, a->m, "fixed", TL_F32, TL_DIMS(4, 2));
    a->x = tl_data(t, x, TL_F32, TL_DIMS(4, 2));
    tl_tensor y = tl_matmul(t, tl_matmul(t, a->x, a->v), a->w);
    y = tl_add(t, y, tl_matmul(t, a->fixed, a->w));
    assert_int_equal(tl_backward(t, tl_sum(t, y, TL_ALL, false), .put_off = true), TL_OK);
    assert_string_equal(tl_waiting_at(t, 1), "w");
    assert_string_equal(tl_waiting_at(t, 0), "v");
    assert_null(tl_waiting_at(t, 2));
    assert_null(tl_waiting_at(t, -1));
}

static void expect_error(tl_tape *t, tl_status s, const char *words)
{
    if (tl_error_status(t) != s || strstr(tl_error(t), words) == NULL)
        fail_msg("%s, where '%s' was expected", tl_error(t), words);
    tl_error_clear(t);
}

static void backward_again(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                           void *put_off)
{
    tl_model *m = tl_tape_model(t);
    (void)in, (void)n, (void)n_out;
    out[0] = tl_sum(t, tl_mul(t, tl_model_find(m, "w"), tl_model_find(m, "v")), TL_ALL, false);
    tl_backward(t, out[0], .put_off = put_off != NULL);
}

static void what_waits_is_neither_read_nor_lost(void **unused)
{
    small a = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = a.t = tl_tape_new(a.m);
    tl_opt *o = tl_sgd_new(a.m, .lr = 1);
    tl_compiled *c = tl_compile(t, backward_again, 1, NULL),
                *off = tl_compile(t, backward_again, 1, &a);
    char before[65], after[65];
    tl_tensor y;
    (void)unused;
    put_off(&a);
    tl_model_sha256(a.m, before);
    assert_true(tl_is_none(tl_grad(t, a.w)));
    expect_error(t, TL_EUSAGE, "tl_grad: what tl_backward put off for 'v' waits");
    put_off(&a);
    tl_step(o, t);
    expect_error(t, TL_EUSAGE, "what tl_backward put off for 'v' waits");
    put_off(&a);
    tl_run(c, NULL, 0, &y);
    expect_error(t, TL_EUSAGE, "tl_run: what tl_backward put off for 'v' waits");
    put_off(&a);
    assert_int_equal(tl_accumulate(t, "fixed"), TL_ENAME);
    expect_error(t, TL_ENAME, "'fixed' is no parameter");
    assert_int_equal(tl_accumulate(t, NULL), TL_ENAME);
    expect_error(t, TL_ENAME, "'NULL' is no parameter");
    put_off(&a);
    assert_int_equal(tl_checkpoint_save_tape(t, o, path, NULL, 0), TL_EUSAGE);
    assert_non_null(strstr(tl_error(a.m), "a gradient of 'v' waits"));
    tl_error_clear(a.m);
    assert_int_equal(tl_accumulate(t, "v"), TL_OK);
    assert_int_equal(tl_accumulate(t, "v"), TL_OK);
    tl_tape_reset(t);
    assert_null(tl_waiting_at(t, 0));
    expect_error(t, TL_EUSAGE, "tl_tape_reset: what tl_backward put off for 'w' waits");
    put_off(&a);
    tl_grad_clear(t);
    assert_null(tl_waiting_at(t, 0));
    tl_tape_reset(t);
    tl_run(off, NULL, 0, &y);
    expect_error(t, TL_ETRACED, ".put_off");
    tl_model_sha256(a.m, after);
    assert_string_equal(before, after);
    tl_free(c, off, o, t, a.m);
}

/* What the gradients read, that is. */
static void what_waits_does_not_change(void **unused)
{
    small a = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = a.t = tl_tape_new(a.m);
    (void)unused;
    put_off(&a);
    tl_tensor r = tl_fill(t, TL_F32, TL_DIMS(4, 1, 2), 0.5);
    tl_rotary_(t, tl_reshape(t, a.x, TL_DIMS(1, 4, 1, 2)), r, r, TL_ROTARY_HALF);
    assert_int_equal(tl_accumulate(t, "w"), TL_OK);
    assert_int_equal(tl_accumulate(t, "v"), TL_EINPLACE);
    expect_error(t, TL_EINPLACE, "was changed in place");
    put_off(&a);
    tl_assign(t, a.fixed, tl_fill(t, TL_F32, TL_DIMS(4, 2), 3));
    assert_int_equal(tl_accumulate(t, "w"), TL_EINPLACE);
    expect_error(t, TL_EINPLACE, "input 0 of matmul was changed meanwhile by assign");
    put_off(&a);
    tl_assign(t, a.w, tl_fill(t, TL_F32, TL_DIMS(2, 2), 3));
    assert_int_equal(tl_accumulate(t, "w"), TL_OK);
    assert_int_equal(tl_accumulate(t, "v"), TL_OK);
    tl_free(t, a.m);
}

const struct CMUnitTest tl_tests_accumulate[] = {
    cmocka_unit_test(one_hash_for_any_number_of_ranks),
    cmocka_unit_test_setup_teardown(what_waits_is_neither_read_nor_lost, make_dir, remove_dir),
    cmocka_unit_test(what_waits_does_not_change),
};
const size_t tl_tests_accumulate_count = sizeof tl_tests_accumulate / sizeof *tl_tests_accumulate;
