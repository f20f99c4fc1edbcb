/* Parameters that are used often: the fold itself against the reference; uses of any shape, however
 * the samples fall into micro-batches; and what it costs. TL_TEST_SEED repeats. (Random programs:
 * tests/test_splits.c.) */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/graph/graph.h"
#include "autograd/internal.h"
#include "nn/nn.h"
#include "ops/ops.h"
#include "tensor/isa.h"
#include "tests/cases/cases.h"

extern const struct CMUnitTest tl_tests_folds[];
extern const size_t tl_tests_folds_count;

enum { SAMPLES = 7 };

static uint64_t seed0(void)
{
    const char *env = getenv("TL_TEST_SEED");
    return env != NULL ? strtoull(env, NULL, 0) : 1;
}

static bool one_in(uint64_t *s, int n) { return tl_case_random(s) % (uint64_t)n == 0; }

/* ---- against the reference ---- */

/* x_u w + b for uses of several shapes, in a random order of samples' lengths: what the weights
 * get is the fold over samples, uses and rows. */
static void the_fold_is_the_one_stated(void **unused)
{
    static const tl_dtype dtypes[] = {TL_F32, TL_F64, TL_F16, TL_BF16};
    enum { USES = 5, MOST = 3 };
    (void)unused;
    for (uint64_t seed = seed0(); seed < seed0() + 40; seed++) {
        uint64_t at = tl_case_random(&(uint64_t){seed}), *s = &at;
        const tl_dtype d = dtypes[seed % 4];
        const int uses = 1 + (int)(tl_case_random(s) % USES);
        const bool alike = one_in(s, 2), time_first = one_in(s, 2);
        ref_tensor x[USES], dy[USES], w = {0}, b = {0};
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor tw = tl_param(t, m, "w", d, TL_DIMS(4, 5), TL_INIT_NORMAL, 1),
                  tb = tl_param(t, m, "b", d, TL_DIMS(5), TL_INIT_NORMAL, 1), sum = TL_NONE;
        for (int u = 0; u < uses; u++) {
            int64_t rows = alike ? 2 : 1 + (int64_t)(tl_case_random(s) % MOST);
            tl_shape sx = TL_DIMS(6, rows, 4), sy = TL_DIMS(6, rows, 5);
            x[u] = tl_case_values(tl_case_ref_dtype(d), &sx, s, CASE_PLAIN);
            dy[u] = tl_case_values(tl_case_ref_dtype(d), &sy, s, CASE_PLAIN);
            tl_tensor tx = tl_case_leaf(t, &x[u]), ty = tl_case_leaf(t, &dy[u]);
            if (time_first) {
                tx = tl_permute(t, tx, TL_DIMS(1, 0, 2));
                ty = tl_permute(t, ty, TL_DIMS(1, 0, 2));
            }
            tl_tensor y = tl_add(t, tl_matmul(t, tx, tw), tb);
            y = tl_sum(t, tl_mul(t, tl_cast(t, y, tl_dtype_compute(d)), ty), TL_ALL, false);
            sum = tl_is_none(sum) ? y : tl_add(t, sum, y);
        }
        assert_int_equal(tl_backward(t, sum), TL_OK);
        ref_fold_uses(uses, x, dy, &w, &b);
        ref_tensor gw = tl_case_read(t, tl_grad(t, tw)), gb = tl_case_read(t, tl_grad(t, tb));
        if (!ref_same_bits(&gw, &w) || !ref_same_bits(&gb, &b))
            fail_msg("TL_TEST_SEED=%llu: %s, %d uses%s%s", (unsigned long long)seed,
                     tl_dtype_name(d), uses, alike ? " alike" : "",
                     time_first ? ", time first" : "");
        for (int u = 0; u < uses; u++) {
            ref_free(&x[u]);
            ref_free(&dy[u]);
        }
        ref_free(&w);
        ref_free(&b);
        ref_free(&gw);
        ref_free(&gb);
        tl_free(t, m);
    }
}

/* ---- accumulators of several kinds ---- */

/* One element, w, as either operand of a matmul, in a sum and in a view: its gradient is the sum of
 * the accumulators by kind, in f64, rounded once (NUMERICS 10.3). */
static void accumulators_are_added_in_f64(void **unused)
{
    (void)unused;
    for (uint64_t seed = seed0(); seed < seed0() + 200; seed++) {
        uint64_t at = tl_case_random(&(uint64_t){seed}), *s = &at;
        const tl_shape one = TL_DIMS(1, 1), rows = TL_DIMS(6, 1), line = TL_DIMS(1, 6);
        ref_tensor x = tl_case_values(REF_F32, &rows, s, CASE_PLAIN),
                   y = tl_case_values(REF_F32, &line, s, CASE_PLAIN),
                   z = tl_case_values(REF_F32, &rows, s, CASE_PLAIN);
        tl_model *m = tl_model_new(.seed = seed);
        tl_tape *t = tl_tape_new(m);
        tl_tensor w = tl_param(t, m, "w", TL_F32, one, TL_INIT_NORMAL, 1), tx = tl_case_leaf(t, &x),
                  ty = tl_case_leaf(t, &y), tz = tl_case_leaf(t, &z);
        tl_tensor loss = tl_sum(t, tl_mul(t, tz, w), TL_ALL, false);
        loss = tl_add(t, loss, tl_sum(t, tl_matmul(t, tx, w), TL_ALL, false));
        loss = tl_add(t, loss, tl_sum(t, tl_matmul(t, w, ty), TL_ALL, false));
        assert_int_equal(tl_backward(t, loss, .ragged = true), TL_OK);
        float left = 0, right = 0, got; /* matmul:0, matmul:1, sum */
        double sum = 0;
        for (int64_t i = 0; i < 6; i++) {
            left = left + (float)ref_get(&y, i);
            right = right + (float)ref_get(&x, i);
            sum = sum + ref_get(&z, i);
        }
        const float want = (float)(((double)left + (double)right) + sum);
        assert_int_equal(tl_keep(t, tl_grad(t, w), &got, sizeof got), TL_OK);
        if (got != want)
            fail_msg("TL_TEST_SEED=%llu: %a, not %a", (unsigned long long)seed, (double)got,
                     (double)want);
        tl_case_free(3, (ref_tensor[]){x, y, z});
        tl_free(t, m);
    }
}

/* ---- sums over rows of what no cache holds, which go by columns of another number ---- */

static void rows_sum_to(tl_dtype d, int64_t rows, int64_t n)
{
    const bool wide = d == TL_F64;
    double *x = malloc((size_t)(rows * n) * sizeof *x), *sum = calloc((size_t)n, sizeof *sum);
    float *narrow = (float *)x;
    uint64_t s = 1;
    assert_true(x != NULL && sum != NULL);
    for (int64_t i = 0; i < rows * n; i++) {
        const int64_t bits = (int64_t)(tl_case_random(&s) % 2001) - 1000;
        const float v = i % n == 3 ? -0.0f : (float)bits * 0x1.01p-4f;
        sum[i % n] += (double)v;
        if (wide)
            x[i] = (double)v;
        else
            narrow[i] = v;
    }
    tl_tape *t = tl_tape_new(NULL);
    for (int level = 0; tl_isa_at(level) != NULL; level++) {
        assert_true(tl_isa_force(tl_isa_at(level)->name));
        tl_tensor y = tl_sum(t, tl_data(t, (void *)x, d, TL_DIMS(rows, n)), TL_DIMS(0), false);
        tl_array got;
        assert_true(tl_array_of(t, y, &got));
        for (int64_t i = 0; i < n; i++) {
            const float f = (float)sum[i];
            const size_t size = wide ? sizeof *sum : sizeof f;
            if (memcmp((const char *)got.data + (size_t)i * size,
                       wide ? (void *)&sum[i] : (void *)&f, size) != 0)
                fail_msg("%s, %s: column %lld of %lld rows by %lld", tl_isa_now()->name,
                         tl_dtype_name(d), (long long)i, (long long)rows, (long long)n);
        }
        tl_tape_reset(t);
    }
    tl_free(t);
    free(x);
    free(sum);
}

static void a_large_sum_over_rows_is_the_one_stated(void **unused)
{
    const char *level = tl_isa_now()->name;
    (void)unused;
    for (int k = 0; k < 2; k++) {
        const tl_dtype d = k == 0 ? TL_F32 : TL_F64;
        rows_sum_to(d, 9001, 139);
        rows_sum_to(d, 1100, 1003);
        rows_sum_to(d, 401, 4101);
    }
    tl_isa_force(level);
}

/* ---- uses of other shapes ---- */

static tl_tensor made(tl_tape *t, const char *name, tl_tensor like, tl_shape s)
{
    return tl_param(t, tl_tape_model(t), name, tl_dtype_of(t, like), s, TL_INIT_NORMAL, 0.5);
}

static tl_tensor conv_twice(tl_tape *t, tl_tensor x)
{
    tl_tensor w = made(t, "w", x, TL_DIMS(4, 4, 3));
    return tl_conv1d(t, tl_tanh(t, tl_conv1d(t, x, w, .padding = {1})), w, .dilation = {2});
}
static tl_tensor flat(tl_tape *t, tl_tensor x) { return tl_reshape(t, x, TL_DIMS(-1, 6)); }
static tl_tensor flat_and_whole(tl_tape *t, tl_tensor x)
{
    tl_tensor w = made(t, "w", x, TL_DIMS(6, 6)), y = tl_tanh(t, tl_matmul(t, x, w));
    y = tl_tanh(t, tl_matmul(t, flat(t, y), w));
    return tl_matmul(t, tl_reshape(t, y, TL_DIMS(-1, 2, 2, 6)), w);
}
static tl_tensor flat_scales(tl_tape *t, tl_tensor x)
{
    tl_tensor s = made(t, "s", x, TL_DIMS(6));
    return tl_mul(t, tl_tanh(t, flat(t, tl_mul(t, x, s))), s);
}
static tl_tensor turned(tl_tape *t, tl_tensor x) { return tl_permute(t, x, TL_DIMS(1, 0, 2)); }
static tl_tensor repeated(tl_tape *t, tl_tensor x)
{
    tl_tensor h = made(t, "h", x, TL_DIMS(6));
    return tl_tanh(t, tl_mul(t, x, tl_expand(t, h, tl_shape_of(t, x))));
}
static tl_tensor repeated_once(tl_tape *t, tl_tensor x) { return repeated(t, turned(t, x)); }
static tl_tensor repeated_twice(tl_tape *t, tl_tensor x) { return repeated(t, repeated(t, x)); }
static tl_tensor repeated_behind(tl_tape *t, tl_tensor x)
{
    return repeated(t, turned(t, repeated(t, turned(t, repeated(t, x)))));
}
static tl_tensor many_dims(tl_tape *t, tl_tensor x)
{
    x = tl_reshape(t, x, TL_DIMS(-1, 2, 1, 2, 1, 1, 1, 6));
    x = tl_permute(t, x, TL_DIMS(1, 2, 3, 4, 0, 5, 6, 7));
    return tl_matmul(t, x, made(t, "w", x, TL_DIMS(6, 6)));
}
static tl_tensor many_dims_twice(tl_tape *t, tl_tensor x)
{
    return tl_matmul(t, tl_tanh(t, many_dims(t, x)), made(t, "w", x, TL_DIMS(6, 6)));
}

/* Cells written out, each sample's state beginning with what is learned. */
static tl_tensor begun(tl_tape *t, tl_tensor x)
{
    tl_tensor h = tl_expand(t, made(t, "h", x, TL_DIMS(6)), TL_DIMS(tl_shape_of(t, x).dim[0], 6));
    tl_batch_axis(t, h, 0);
    return h;
}
static tl_tensor gate(tl_tape *t, tl_tensor z, int i)
{
    return tl_slice(t, z, 1, 6 * i, 6 * i + 6, 1);
}
static tl_tensor lstm(tl_tape *t, tl_tensor x)
{
    tl_tensor h = begun(t, x), c = h, b = made(t, "s", x, TL_DIMS(24));
    for (int i = 0; i < 4; i++) {
        tl_tensor z = tl_matmul(t, tl_select(t, x, 1, i), made(t, "w", x, TL_DIMS(6, 24)));
        z = tl_add(t, tl_add(t, z, tl_matmul(t, h, made(t, "u", x, TL_DIMS(6, 24)))), b);
        tl_tensor in = tl_mul(t, tl_sigmoid(t, gate(t, z, 0)), tl_tanh(t, gate(t, z, 1)));
        c = tl_add(t, tl_mul(t, tl_sigmoid(t, gate(t, z, 2)), c), in);
        h = tl_mul(t, tl_sigmoid(t, gate(t, z, 3)), tl_tanh(t, c));
    }
    return h;
}
static tl_tensor gru(tl_tape *t, tl_tensor x)
{
    tl_tensor h = begun(t, x), w = made(t, "w", x, TL_DIMS(6, 18)),
              u = made(t, "u", x, TL_DIMS(18, 6)), all[4];
    for (int i = 0; i < 4; i++) {
        tl_tensor a = tl_matmul(t, tl_select(t, x, 1, i), w),
                  b = tl_matmul(t, h, tl_transpose(t, u, 0, 1)),
                  r = tl_sigmoid(t, tl_add(t, gate(t, a, 0), gate(t, b, 0))),
                  z = tl_sigmoid(t, tl_add(t, gate(t, a, 1), gate(t, b, 1))),
                  n = tl_tanh(t, tl_add(t, gate(t, a, 2), tl_mul(t, r, gate(t, b, 2))));
        h = all[i] = tl_add(t, n, tl_mul(t, z, tl_sub(t, h, n)));
    }
    return tl_stack(t, all, 4, 0);
}

static const struct {
    const char *name;
    tl_tensor (*y)(tl_tape *t, tl_tensor x);
} shapes[] = {
    {"lstm", lstm},
    {"gru", gru},
    {"conv twice", conv_twice},
    {"flat and whole", flat_and_whole},
    {"flat scales", flat_scales},
    {"repeated once", repeated_once},
    {"repeated twice", repeated_twice},
    {"repeated behind", repeated_behind},
    {"many dims", many_dims},
    {"many dims twice", many_dims_twice},
};

static void shaped(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    (void)n_in, (void)n_out;
    const int *k = ctx;
    tl_tensor x = tl_cast(t, in[0], k[1] == 0 ? TL_F32 : TL_F64);
    out[0] = tl_sum(t, tl_square(t, shapes[k[0]].y(t, x)), TL_ALL, false);
    tl_backward(t, out[0]);
}

/* The gradient's hash, or the error; the samples begin anew after each bit of split. */
static void gradient_of(int k, int wide, uint64_t split, bool compiled, char hex[512])
{
    float x[SAMPLES][4 * 6];
    char text[256];
    int which[2] = {k, wide};
    tl_model *m = tl_model_new(.seed = 5);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, shaped, 1, which);
    tl_mode_push(t, TL_STRICT);
    for (int i = 0; i < SAMPLES * 4 * 6; i++)
        (&x[0][0])[i] = (float)(tl_case_random(&(uint64_t){(uint64_t)i + 9}) % 512) / 256 - 1;
    for (int from = 0, n; from < SAMPLES; from += n) {
        tl_tape_reset(t);
        for (n = 1; from + n < SAMPLES && !(split >> (from + n) & 1);)
            n++;
        tl_tensor in = tl_data(t, x[from], TL_F32, TL_DIMS(n, 4, 6)), y;
        if (compiled)
            tl_run(c, &in, 1, &y);
        else
            shaped(t, &in, 1, &y, 1, which);
        if (!compiled && tl_explain_invariance(t, y, text, sizeof text) > 0)
            fail_msg("%s: %s", shapes[k].name, text);
    }
    snprintf(hex, 512, "%s", tl_error(t));
    for (const char *name = "wsuh"; !tl_failed(t) && *name != '\0'; name++) {
        tl_tensor w = tl_model_find(m, (char[]){*name, '\0'});
        if (!tl_is_none(w))
            tl_sha256(t, tl_grad(t, w), hex);
    }
    tl_error_clear(t);
    tl_free(c, t, m);
}

static void uses_of_any_shape_fold_by_sample(void **unused)
{
    int wrong = 0;
    (void)unused;
    for (int i = 0; i < 2 * (int)(sizeof shapes / sizeof *shapes); i++) {
        char want[512], got[512];
        const int k = i / 2;
        gradient_of(k, i % 2, 0, false, want);
        for (uint64_t split = 0; split < 1 << SAMPLES; split += 2 + split % 14) {
            gradient_of(k, i % 2, split, split % 4 != 2, got);
            if (strlen(want) == 64 && strcmp(want, got) == 0)
                continue;
            wrong++;
            print_error("%s%s, split %llx: %s, whole: %s\n", shapes[k].name, i % 2 ? ", f64" : "",
                        (unsigned long long)split, got, want);
            break;
        }
    }
    assert_int_equal(wrong, 0);
}

/* ---- views that have elements in common ---- */

/* Rows 0 to 3 and 2 to 5 of w: elements of rows 2 and 3 have two uses a sample, and get both before
 * those of the next one. */
static void views_in_common(int64_t part, char hex[65])
{
    float x[8 * 4];
    for (int i = 0; i < 8 * 4; i++)
        x[i] = sinf((float)(i * i + 1)) * (i % 3 == 0 ? 100 : 1);
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int64_t at = 0; at < 8; at += part, tl_tape_reset(t)) {
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(6, 3), TL_INIT_NORMAL, 1),
                  in = tl_data(t, x + 4 * at, TL_F32, TL_DIMS(part, 4)),
                  first = tl_matmul(t, in, tl_slice(t, w, 0, 0, 4, 1)),
                  last = tl_matmul(t, tl_tanh(t, in), tl_slice(t, w, 0, 2, 6, 1));
        tl_backward(t, tl_sum(t, tl_mul(t, first, tl_sin(t, last)), TL_ALL, false));
    }
    tl_sha256(t, tl_grad(t, tl_model_find(m, "w")), hex);
    assert_string_equal(tl_error(t), "");
    tl_free(t, m);
}

static void views_in_common_fold_by_sample(void **unused)
{
    char whole[65], parts[65];
    (void)unused;
    views_in_common(8, whole);
    for (int64_t part = 1; part < 8; part *= 2) {
        views_in_common(part, parts);
        assert_string_equal(parts, whole);
    }
}

/* ---- cost ---- */

typedef struct {
    int products, stacks;
    tl_shape largest;
} counted;

static void count(void *ctx, tl_tape *t, const tl_seen *c)
{
    counted *n = ctx;
    (void)t;
    n->products += strcmp(c->call->op->name, "matmul") == 0 && c->call->in[2] != NULL;
    n->stacks += strcmp(c->call->op->name, "stack_samples") == 0;
}

/* h = tanh(x_i + h u): gradients take the accumulator of u alone, and its products are few and
 * long. */
static void a_recurrent_weight_has_one_accumulator(void **unused)
{
    enum { T = 96, B = 4, H = 32 };
    static const tl_observer counting = {.runs = count};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    counted n = {0};
    (void)unused;
    assert_int_equal(tl_observe(t, &counting, &n), TL_OK);
    tl_tensor u = tl_param(t, m, "u", TL_F32, TL_DIMS(H, H), TL_INIT_NORMAL, 0.2),
              x = tl_fill(t, TL_F32, TL_DIMS(B, T, H), 0.5), h = tl_zeros(t, TL_F32, TL_DIMS(B, H));
    tl_batch_axis(t, x, 0);
    for (int i = 0; i < T; i++)
        h = tl_tanh(t, tl_add(t, tl_select(t, x, 1, i), tl_matmul(t, h, u)));
    tl_tensor y = tl_sum(t, h, TL_ALL, false);
    size_t before = tl_memory_stats(t).tape.used;
    assert_int_equal(tl_backward(t, y), TL_OK);
    tl_tape_memory used = tl_memory_stats(t);
    assert_int_equal(used.gradients.used, H * H * sizeof(float));
    assert_int_equal(n.products, 1);
    assert_int_equal(n.stacks, 2);
    /* cotangents of all uses, what is put beside each other, and what one step of backward needs */
    assert_in_range(used.tape.peak, before, before + 3 * T * B * H * sizeof(float) + (64 << 10));
    tl_free(t, m);
}

/* A gradient finds its way to the parameter through so many views, and is refused behind
          more. */
static void a_use_behind_many_views(void **unused)
{
    static const float x[4] = {1, 2, 3, 4};
    (void)unused;
    for (int views = 62; views < 68; views++) {
        double sums[4] = {0};
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1), seen = w;
        for (int i = 0; i < views; i++)
            seen = tl_transpose(t, seen, 0, 1);
        tl_tensor y = tl_matmul(t, tl_data(t, x, TL_F32, TL_DIMS(2, 2)), seen);
        const tl_status s = tl_backward(t, tl_sum(t, y, TL_ALL, false));
        if (views > 64) {
            assert_int_equal(s, TL_EUSAGE);
            assert_non_null(strstr(tl_error(t), "more than 64 views between a parameter and its "
                                                "use"));
        } else {
            assert_int_equal(s, TL_OK);
            tl_tensor dw = tl_cast(t, tl_grad(t, w), TL_F64);
            assert_int_equal(tl_keep(t, dw, sums, sizeof sums), TL_OK);
            for (int i = 0; i < 4; i++) /* of the columns of x, turned as often as w */
                assert_true(sums[i] == ((views % 2 ? i % 2 : i / 2) ? 6 : 4));
        }
        tl_error_clear(t);
        tl_free(t, m);
    }
}

/* So many uses that their gradients by one sample do not fit into what is stacked for a call. */
static void uses_beyond_the_room_of_a_call(void **unused)
{
    enum { LARGE = 4096, USES = 100 };
    static float x[2][LARGE];
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(LARGE), TL_INIT_ONES, 1), sum = TL_NONE;
    for (int i = 0; i < LARGE; i++)
        x[0][i] = (float)(i % 7), x[1][i] = (float)(i % 3);
    for (int u = 0; u < USES; u++) {
        tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(2, LARGE));
        tl_tensor y = tl_sum(t, tl_mul(t, in, w), TL_DIMS(1), false);
        sum = u == 0 ? y : tl_add(t, sum, y);
    }
    assert_int_equal(tl_backward(t, tl_sum(t, sum, TL_ALL, false)), TL_OK);
    tl_array g;
    assert_true(tl_array_of(t, tl_grad(t, w), &g));
    for (int i = 0; i < LARGE; i++)
        assert_true(((const float *)g.data)[i] == (float)(USES * (i % 7 + i % 3)));
    tl_free(t, m);
}

const struct CMUnitTest tl_tests_folds[] = {
    cmocka_unit_test(the_fold_is_the_one_stated),
    cmocka_unit_test(accumulators_are_added_in_f64),
    cmocka_unit_test(a_use_behind_many_views),
    cmocka_unit_test(a_large_sum_over_rows_is_the_one_stated),
    cmocka_unit_test(views_in_common_fold_by_sample),
    cmocka_unit_test(uses_of_any_shape_fold_by_sample),
    cmocka_unit_test(uses_beyond_the_room_of_a_call),
    cmocka_unit_test(a_recurrent_weight_has_one_accumulator),
};
const size_t tl_tests_folds_count = sizeof tl_tests_folds / sizeof *tl_tests_folds;
