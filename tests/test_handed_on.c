/* test_handed_on.c: what becomes of a gradient on its way to an operand that was broadcast or is of
 * another dtype, and where results are rounded twice:
 * NUMERICS 1.6, 4.1, 5.5, 6.11, 7.3, 10.2, 11.4. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>
#include <tally.h>

#include "tests/ref/ref.h"

extern const struct CMUnitTest tl_tests_handed_on[];
extern const size_t tl_tests_handed_on_count;

typedef struct {
    tl_model *m;
    tl_tape *t;
} setup;

static setup begin(void)
{
    setup s = {.m = tl_model_new(.seed = 7)};
    s.t = tl_tape_new(s.m);
    return s;
}

static void end(setup s)
{
    if (tl_failed(s.t))
        fail_msg("%s", tl_error(s.t));
    tl_free(s.t, s.m);
}

/* Random numbers of that dtype, at most ROOM, that take a gradient and are no leaf. */
static tl_tensor value(setup s, const char *name, tl_dtype dtype, tl_shape shape)
{
    enum { ROOM = 4096 };
    static float numbers[ROOM];
    const tl_tensor x = tl_normal(s.t, TL_F32, shape, name);
    size_t bytes = sizeof *numbers;
    for (int i = 0; i < shape.ndim; i++)
        bytes *= (size_t)shape.dim[i];
    assert_int_equal(tl_keep(s.t, x, numbers, bytes), TL_OK);
    const tl_tensor leaf = tl_data_tape_at(s.t, numbers, (tl_c_data){0}, TL_F32, shape, NULL, 0);
    assert_int_equal(tl_require_grad(s.t, leaf), TL_OK);
    return dtype == TL_F32 ? tl_scale(s.t, leaf, 1) : tl_cast(s.t, leaf, dtype);
}

static tl_tensor gradient(setup s, tl_tensor y, tl_tensor x, tl_tensor dy)
{
    tl_tensor dx = TL_NONE;
    tl_gradients(s.t, y, &x, 1, dy, &dx);
    return dx;
}

static void assert_alike(setup s, tl_tensor x, tl_tensor y)
{
    char a[65], b[65];
    tl_sha256(s.t, x, a);
    tl_sha256(s.t, y, b);
    assert_string_equal(a, b);
}

/* How many elements of x and y, cast to x's dtype, are not alike. */
static double others(setup s, tl_tensor x, tl_tensor y)
{
    tl_tensor ne = tl_ne(s.t, x, tl_cast(s.t, y, tl_dtype_of(s.t, x)));
    return tl_item(s.t, tl_sum(s.t, tl_cast(s.t, ne, TL_F32), TL_ALL, false));
}

/* -0 is handed on, but every sum has +0 added. */
static void a_gradient_of_its_operands_form_is_handed_on(void **unused)
{
    (void)unused;
    setup s = begin();
    static const struct {
        tl_dtype a, b;
        bool row, cast, kept;
    } form[] = {
        {TL_F32, TL_F32, false, false, true},   {TL_F16, TL_F16, false, false, true},
        {TL_F32, TL_F32, true, false, false},   {TL_F16, TL_F32, false, false, false},
        {TL_BF16, TL_F32, false, false, false}, {TL_F16, TL_F16, false, true, true},
    };
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        tl_tensor a = value(s, "a", form[i].a, form[i].row ? TL_DIMS(1, 3) : TL_DIMS(2, 3)),
                  b = tl_fill(s.t, form[i].b, TL_DIMS(2, 3), 1),
                  y = form[i].cast ? tl_cast(s.t, a, TL_F32) : tl_mul(s.t, a, b),
                  dy = tl_fill(s.t, tl_dtype_of(s.t, y), TL_DIMS(2, 3), -0.0);
        tl_tensor dx = tl_reciprocal(s.t, tl_cast(s.t, gradient(s, y, a, dy), TL_F32));
        float got[6];
        assert_int_equal(tl_keep(s.t, dx, got, form[i].row ? 12 : 24), TL_OK);
        for (int k = 0; k < (form[i].row ? 3 : 6); k++)
            if (got[k] != (form[i].kept ? -INFINITY : INFINITY))
                fail_msg("form %zu: 1 / dx is %g", i, (double)got[k]);
    }
    double least = -5e-324, mean = (double)NAN;
    tl_tensor two = tl_data(s.t, ((double[2]){least, 0}), TL_F64, TL_DIMS(2));
    assert_int_equal(tl_keep(s.t, tl_mean(s.t, two, TL_ALL, false), &mean, 8), TL_OK);
    assert_true(mean == 0 && !signbit(mean));
    end(s);
}

/* A sum that continues one of -0 with terms of -0 is +0; one that gets no term stays (1.6). */
static void a_total_is_never_minus_0(void **unused)
{
    (void)unused;
    setup s = begin();
    static const int64_t targets[2] = {0, 0};
    static const struct {
        int64_t rows, columns;
        bool by_rows;
    } form[] = {{2, 3, true},    {2, 3, false}, {1, 3, true}, {300, 1, true},
                {1, 300, false}, {0, 3, true},  {3, 0, false}};
    const double minus = -0.0;
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        const tl_shape all = TL_DIMS(form[i].rows, form[i].columns),
                       kept = form[i].by_rows ? TL_DIMS(form[i].columns) : TL_DIMS(form[i].rows, 1);
        tl_tensor acc = tl_fill(s.t, TL_F64, kept, minus),
                  y = tl_sum_to(s.t, tl_fill(s.t, TL_F32, all, minus), kept, acc);
        tl_tensor least = tl_min(s.t, tl_reciprocal(s.t, y), TL_ALL, false);
        const bool none = form[i].rows == 0 || form[i].columns == 0;
        assert_true(tl_item(s.t, least) == (double)(none ? -INFINITY : INFINITY));
    }
    for (int i = 0; i < 4; i++) {
        tl_tensor ids = tl_data(s.t, targets, TL_I64, TL_DIMS(2)),
                  x = tl_zeros(s.t, TL_F32, TL_DIMS(2, 1)),
                  total = tl_data(s.t, &minus, TL_F64, TL_SCALAR), y;
        if (i % 2) /* a loss of 0, or -log 1 = -0 */
            y = tl_nll(s.t, x, ids, TL_SUM, .total = total, .ignore = i < 2);
        else
            y = tl_cross_entropy(s.t, x, ids, TL_SUM, .total = total, .ignore = i < 2);
        const double loss = tl_item(s.t, y);
        assert_true(loss == 0 && !signbit(loss));
    }
    end(s);
}

static void linear_rounds_its_product(void **unused)
{
    (void)unused;
    for (int h = 0; h < 2; h++) {
        setup s = begin();
        tl_tensor x = value(s, "x", h ? TL_BF16 : TL_F16, TL_DIMS(40, 33)),
                  y = tl_linear(s.t, s.m, "l", x, 31),
                  w = tl_transpose(s.t, tl_model_find(s.m, "l.weight"), 0, 1),
                  b = tl_model_find(s.m, "l.bias");
        assert_alike(s, y, tl_add(s.t, tl_matmul(s.t, x, w), b));
        assert_true(others(s, y, tl_addmm(s.t, b, x, w, 1, 1)) > 10);
        end(s);
    }
}

/* A gradient that is a sum and goes on as a value of f16 or bf16 is rounded to c and then again. */
static void sums_that_go_on_are_rounded_twice(void **unused)
{
    (void)unused;
    for (int h = 0; h < 2; h++) {
        setup s = begin();
        const tl_dtype half = h ? TL_BF16 : TL_F16;
        tl_tensor a = value(s, "a", half, TL_DIMS(400, 9)),
                  b = value(s, "b", TL_F32, TL_DIMS(9, 33)), y = tl_matmul_acc64(s.t, a, b),
                  dy = tl_normal(s.t, TL_F32, TL_DIMS(400, 33), "dy"),
                  turned = tl_transpose(s.t, b, 0, 1);
        assert_alike(s, gradient(s, y, a, dy),
                     tl_cast(s.t, tl_matmul_acc64(s.t, dy, turned), half));
        /* of whole numbers and a little, the way by f32 shows: 2049 + 2^-30 is 2050 or 2048 */
        tl_tensor one = tl_cast(s.t, value(s, "one", TL_F32, TL_DIMS(1, 1)), half),
                  row = tl_data(s.t, ((float[2]){h ? 257 : 2049, 0x1p-30f}), TL_F32, TL_DIMS(1, 2)),
                  ones = tl_fill(s.t, TL_F32, TL_DIMS(1, 2), 1);
        tl_tensor dx = gradient(s, tl_matmul_acc64(s.t, one, row), one, ones);
        assert_true(tl_item(s.t, dx) == (h ? 256 : 2048));
        end(s);
    }
}

static void compositions_cast_once(void **unused)
{
    (void)unused;
    for (int h = 0; h < 2; h++) {
        setup s = begin();
        const tl_dtype half = h ? TL_BF16 : TL_F16;
        tl_tensor a = value(s, "a", half, TL_DIMS(50, 1)), b = value(s, "b", half, TL_DIMS(50, 7)),
                  a32 = tl_cast(s.t, a, TL_F32), b32 = tl_cast(s.t, b, TL_F32),
                  mse = tl_mse(s.t, a, b), dy = tl_fill(s.t, TL_F32, TL_SCALAR, 1);
        tl_tensor apart = tl_mean(s.t, tl_square(s.t, tl_sub(s.t, a32, b32)), TL_ALL, false);
        assert_alike(s, gradient(s, mse, a, dy), gradient(s, apart, a, dy));
        assert_alike(s, gradient(s, mse, b, dy), gradient(s, apart, b, dy));

        tl_tensor q = value(s, "q", half, TL_DIMS(2, 3, 40, 8)),
                  bias = value(s, "bias", half, TL_DIMS(3, 1, 40)),
                  wide = tl_cast(s.t, bias, TL_F32);
        tl_tensor y = tl_attention(s.t, q, q, q, .bias = bias),
                  z = tl_attention(s.t, q, q, q, .bias = wide);
        tl_tensor dz = tl_cast(s.t, tl_normal(s.t, TL_F32, TL_DIMS(2, 3, 40, 8), "dz"), half);
        assert_alike(s, y, z);
        assert_alike(s, gradient(s, y, bias, dz), gradient(s, z, bias, dz));
        end(s);
    }
}

/* NUMERICS 6.15: the gradient of class weights in nll's mean, by hand. w is of that dtype. Of the
 * two casts each gives its part, rounded to it: by v = logp * w in c, and by D, whose rows are
 * folded in f64 by target. */
enum { ROWS = 11, CLASSES = 3 };
static void by_hand(ref_dtype dtype, const float *logp, const int64_t *target, int64_t ignored,
                    const float *w, double dy, double got[CLASSES])
{
    double sum = 0, weights = 0, by_v[CLASSES] = {0}, by_d[CLASSES] = {0};
    for (int r = 0; r < ROWS; r++) {
        const int64_t t = target[r];
        if (t == ignored)
            continue;
        sum = sum + -ref_round(REF_F32, (double)logp[r * CLASSES + t] * (double)w[t]);
        weights = weights + (double)w[t];
    }
    const double d = ref_round(REF_F32, weights),
                 loss = ref_round(REF_F32, ref_round(REF_F32, sum) / d);
    const double of_sum = ref_round(REF_F32, dy / d),
                 of_d = -ref_round(REF_F32, ref_round(REF_F32, dy * loss) / d);
    for (int r = 0; r < ROWS; r++) {
        const int64_t t = target[r];
        if (t == ignored)
            continue;
        by_v[t] = by_v[t] + ref_round(REF_F32, -of_sum * (double)logp[r * CLASSES + t]);
        by_d[t] = by_d[t] + of_d;
    }
    for (int i = 0; i < CLASSES; i++)
        got[i] = ref_round(dtype, ref_round(dtype, ref_round(REF_F32, by_v[i])) +
                                      ref_round(dtype, by_d[i]));
}

static void class_weights_have_two_gradients(void **unused)
{
    static const struct {
        tl_dtype dtype;
        ref_dtype ref;
    } of[] = {{TL_F32, REF_F32}, {TL_F16, REF_F16}, {TL_BF16, REF_BF16}};
    (void)unused;
    for (int k = 0; k < 300; k++) {
        float logp[ROWS * CLASSES], first[CLASSES], w[CLASSES], got[CLASSES];
        int64_t target[ROWS];
        double want[CLASSES];
        setup s = begin();
        /* near: three rows of one target, whose sum lies next to the middle between two halves */
        const bool near = k >= 150, ignores = near || k % 2;
        const double last = of[k % 3].dtype == TL_BF16 ? 0x1p-7 : 0x1p-10;
        float dy = (float)sin(k + 1.0);
        if (near)
            dy = (float)(ceil((1 + last * (k % 50 + 0.5)) / 3 * 0x1p25) * 0x1p-25 -
                         (k % 4 > 1 ? 0x1p-25 : 0));
        for (int i = 0; i < ROWS * CLASSES; i++)
            logp[i] = near ? -3 : (float)(-1.2 + sin(k * 7.1 + 3.3 * i));
        for (int r = 0; r < ROWS; r++) {
            target[r] = near ? r > 2 : (k + r * r) % CLASSES;
            for (int i = 0; i < CLASSES && ignores && target[r] == 1; i++)
                logp[r * CLASSES + i] = (float)NAN; /* of ignored rows nothing is read */
        }
        for (int i = 0; i < CLASSES; i++)
            first[i] = near ? 1 : (float)(1.1 + sin(k * 3.7 + i));
        const tl_tensor leaf = tl_data(s.t, first, TL_F32, TL_DIMS(CLASSES));
        tl_require_grad(s.t, leaf);
        const tl_tensor weight = of[k % 3].dtype == TL_F32 ? tl_scale(s.t, leaf, 1)
                                                           : tl_cast(s.t, leaf, of[k % 3].dtype);
        assert_int_equal(tl_keep(s.t, tl_cast(s.t, weight, TL_F32), w, sizeof w), TL_OK);
        by_hand(of[k % 3].ref, logp, target, ignores ? 1 : -1, w, (double)dy, want);
        tl_tensor loss = tl_nll(s.t, tl_data(s.t, logp, TL_F32, TL_DIMS(ROWS, CLASSES)),
                                tl_data(s.t, target, TL_I64, TL_DIMS(ROWS)), TL_MEAN,
                                .weight = weight, .ignore = ignores, .ignore_index = ignores);
        tl_tensor dw = gradient(s, loss, weight, tl_data(s.t, &dy, TL_F32, TL_SCALAR));
        assert_int_equal(tl_dtype_of(s.t, dw), of[k % 3].dtype);
        assert_int_equal(tl_keep(s.t, tl_cast(s.t, dw, TL_F32), got, sizeof got), TL_OK);
        for (int i = 0; i < CLASSES; i++)
            if ((double)got[i] != want[i])
                fail_msg("trial %d in %s: the gradient of weight %d is %a, not %a", k,
                         tl_dtype_name(of[k % 3].dtype), i, (double)got[i], want[i]);
        end(s);
    }
}

static void padding_of_coins_is_one(void **unused)
{
    (void)unused;
    setup s = begin();
    static const int64_t from[2] = {0, 3};
    float got[2][5];
    tl_tensor start = tl_data(s.t, from, TL_I64, TL_DIMS(2)),
              sample = tl_data(s.t, ((int64_t[2]){4, 4}), TL_I64, TL_DIMS(2));
    for (int some = 0; some < 2; some++) {
        tl_tensor p = tl_fill(s.t, TL_F32, TL_DIMS(2, 5), some ? 0.25 : 0);
        assert_int_equal(tl_keep(s.t, tl_bernoulli(s.t, p, "c", sample, .start = start), got,
                                 sizeof got),
                         TL_OK);
        for (int i = 0; i < 5; i++)
            assert_true(got[1][i] == (i < 3 ? (float)some : got[0][i - 3]));
    }
    end(s);
}

const struct CMUnitTest tl_tests_handed_on[] = {
    cmocka_unit_test(a_gradient_of_its_operands_form_is_handed_on),
    cmocka_unit_test(a_total_is_never_minus_0),
    cmocka_unit_test(linear_rounds_its_product),
    cmocka_unit_test(sums_that_go_on_are_rounded_twice),
    cmocka_unit_test(compositions_cast_once),
    cmocka_unit_test(class_weights_have_two_gradients),
    cmocka_unit_test(padding_of_coins_is_one),
};
const size_t tl_tests_handed_on_count = sizeof tl_tests_handed_on / sizeof *tl_tests_handed_on;
