/* The references of softmax, norms, losses, attention and rotary, and their gradients against
 * finite differences in f64. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "tests/support/values.h"

extern const struct CMUnitTest tl_tests_ref_gradients[];
extern const size_t tl_tests_ref_gradients_count;

/* ---- gradients: sum(c * f(x)) differentiated along a random direction, in f64 ---- */

typedef ref_tensor (*function)(const ref_tensor *x, const void *context);

static double along(function f, const void *context, const ref_tensor *x,
                    const ref_tensor *direction, double h, const ref_tensor *c)
{
    ref_tensor moved = ref_copy(x);
    for (int64_t i = 0; i < ref_numel(x); i++)
        ref_set(&moved, i, ref_get(x, i) + h * ref_get(direction, i));
    ref_tensor y = f(&moved, context);
    double s = 0;
    assert_int_equal(ref_numel(&y), ref_numel(c));
    for (int64_t i = 0; i < ref_numel(&y); i++)
        s += ref_get(&y, i) * ref_get(c, i);
    FREE(&moved, &y);
    return s;
}

/* The error of dx relative to what it predicts; dx is freed. */
static double gradient_error(function f, const void *context, const ref_tensor *x,
                             const ref_tensor *c, ref_tensor dx)
{
    const double h = 1e-5;
    ref_tensor v = values_tensor(REF_F64, x->ndim, x->dim);
    double measured = (along(f, context, x, &v, h, c) - along(f, context, x, &v, -h, c)) / (2 * h),
           predicted = 0;
    assert_int_equal(ref_numel(&dx), ref_numel(x));
    for (int64_t i = 0; i < ref_numel(x); i++)
        predicted += ref_get(&dx, i) * ref_get(&v, i);
    FREE(&v, &dx);
    assert_true(fabs(measured) > 1e-4); /* there is a signal */
    return fabs(predicted - measured) / fabs(measured);
}

static void assert_gradient(function f, const void *context, const ref_tensor *x,
                            const ref_tensor *c, ref_tensor dx)
{
    double e = gradient_error(f, context, x, c, dx);
    if (!(e < 1e-6))
        fail_msg("relative error of the gradient %g", e);
}

static ref_tensor softmax_f(const ref_tensor *x, const void *dim)
{
    return ref_softmax(x, *(const int *)dim);
}
static ref_tensor log_softmax_f(const ref_tensor *x, const void *dim)
{
    return ref_log_softmax(x, *(const int *)dim);
}

static void test_softmax(void **unused)
{
    (void)unused;
    const double nan = (double)NAN, inf = (double)INFINITY;
    ref_tensor u = ref_from(REF_F16, DIMS(2, 2), VALUES(3, 3, -inf, -inf)),
               v = ref_from(REF_F32, DIMS(1, 2), VALUES(0, -inf));
    assert_values(ref_softmax(&u, 1), REF_F16, 4, VALUES(0.5, 0.5, nan, nan));
    assert_values(ref_softmax(&v, 1), REF_F32, 2, VALUES(1, 0));
    assert_values(ref_log_softmax(&v, 1), REF_F32, 2, VALUES(0.0, -inf));
    FREE(&u, &v);
    for (int dim = 0; dim < 3; dim++) {
        ref_tensor x = values_tensor(REF_F64, DIMS(3, 4, 5)),
                   dy = values_tensor(REF_F64, DIMS(3, 4, 5));
        ref_tensor y = ref_softmax(&x, dim), z = ref_log_softmax(&x, dim),
                   total = ref_sum(&y, 1u << dim, 0, NULL);
        for (int64_t i = 0; i < ref_numel(&total); i++)
            assert_near(ref_get(&total, i), 1, 1e-15);
        for (int64_t i = 0; i < 60; i++)
            assert_near(log(ref_get(&y, i)), ref_get(&z, i), 1e-14);
        assert_gradient(softmax_f, &dim, &x, &dy, ref_softmax_grad(&dy, &y, dim));
        assert_gradient(log_softmax_f, &dim, &x, &dy, ref_log_softmax_grad(&dy, &z, dim));
        FREE(&x, &dy, &y, &z, &total);
    }
}

/* The check itself notices a gradient that is 1.0001 times too large, and one with its sign
 * flipped. */
static void test_wrong_gradient_is_caught(void **unused)
{
    (void)unused;
    int dim = 1;
    ref_tensor x = values_tensor(REF_F64, DIMS(2, 6)), dy = values_tensor(REF_F64, DIMS(2, 6)),
               y = ref_softmax(&x, dim);
    ref_tensor dx = ref_softmax_grad(&dy, &y, dim);
    assert_true(gradient_error(softmax_f, &dim, &x, &dy, ref_scale(&dx, 1.0001)) > 5e-5);
    assert_true(gradient_error(softmax_f, &dim, &x, &dy, ref_neg(&dx)) > 1);
    FREE(&x, &dy, &y, &dx);
}

typedef struct {
    const ref_tensor *other;
    int k;
} norm_context;

static ref_tensor norm_of_x(const ref_tensor *x, const void *context)
{
    const norm_context *n = context;
    ref_tensor y;
    ref_rms_norm(x, n->other, n->k, 1e-3, &y, NULL);
    return y;
}

static ref_tensor norm_of_gamma(const ref_tensor *gamma, const void *context)
{
    const norm_context *n = context;
    ref_tensor y;
    ref_rms_norm(n->other, gamma, n->k, 1e-3, &y, NULL);
    return y;
}

static void test_rms_norm(void **unused)
{
    (void)unused;
    ref_tensor x = ref_from(REF_F16, DIMS(2, 4), VALUES(1, -1, 1, -1, 0, 0, 0, 0)),
               gamma = ref_from(REF_F32, DIMS(4), VALUES(1, 2, 3, 4));
    ref_tensor y, rstd, dx, dgamma;
    ref_rms_norm(&x, &gamma, 1, 3.0, &y, &rstd);
    assert_values(y, REF_F16, 8, VALUES(0.5, -1, 1.5, -2, 0, 0, 0, 0));
    assert_int_equal(rstd.ndim, 2);
    assert_values(rstd, REF_F32, 2, VALUES(0.5, (double)(float)0x1.279a74590331cp-1));
    ref_rms_norm(&x, NULL, 1, 0.0, &y, NULL);
    assert_values(y, REF_F16, 8,
                  VALUES(1, -1, 1, -1, (double)NAN, (double)NAN, (double)NAN, (double)NAN));
    FREE(&x, &gamma);
    for (int k = 1; k <= 2; k++) {
        ref_tensor a = values_tensor(REF_F64, DIMS(3, 4, 5)),
                   dy = values_tensor(REF_F64, DIMS(3, 4, 5));
        ref_tensor g = k == 1 ? values_tensor(REF_F64, DIMS(5))
                              : values_tensor(REF_F64, DIMS(4, 5));
        ref_rms_norm(&a, &g, k, 1e-3, NULL, &rstd);
        ref_rms_norm_grad(&dy, &a, &g, &rstd, k, &dx, &dgamma, NULL);
        assert_gradient(norm_of_x, &(norm_context){&g, k}, &a, &dy, dx);
        assert_gradient(norm_of_gamma, &(norm_context){&a, k}, &g, &dy, dgamma);
        ref_rms_norm_grad(&dy, &a, NULL, &rstd, k, &dx, NULL, NULL);
        assert_gradient(norm_of_x, &(norm_context){NULL, k}, &a, &dy, dx);
        FREE(&a, &dy, &g, &rstd);
    }
}

typedef struct {
    const ref_tensor *target;
    ref_loss_options o;
} loss_context;

static ref_tensor loss_f(const ref_tensor *z, const void *context)
{
    const loss_context *l = context;
    return ref_cross_entropy(z, l->target, l->o, REF_F64, NULL);
}

static void test_cross_entropy(void **unused)
{
    (void)unused;
    ref_tensor z = ref_new(REF_F32, DIMS(3, 4)), t = ref_from_i64(DIMS(3), (int64_t[]){0, -100, 3}),
               acc = ref_new(REF_F64, 0, NULL);
    ref_loss_options sum = {0, -100, -1}, mean = {1, -100, -1}, counted = {1, -100, 4};
    double log4 = (double)(float)0x1.62e42fefa39efp+0;
    assert_values(ref_cross_entropy(&z, &t, sum, REF_F32, &acc), REF_F32, 1, VALUES(2 * log4));
    assert_values(ref_cross_entropy(&z, &t, sum, REF_F32, &acc), REF_F32, 1, VALUES(4 * log4));
    assert_values(ref_cross_entropy(&z, &t, mean, REF_F32, NULL), REF_F32, 1, VALUES(log4));
    assert_values(ref_cross_entropy(&z, &t, counted, REF_F32, NULL), REF_F32, 1, VALUES(log4 / 2));
    ref_tensor one = ref_from(REF_F32, 0, NULL, VALUES(1)),
               two = ref_from(REF_F64, 0, NULL, VALUES(2));
    assert_values(ref_cross_entropy_grad(&one, &z, &t, counted), REF_F32, 12,
                  VALUES(-0.1875, 0.0625, 0.0625, 0.0625, 0, 0, 0, 0, 0.0625, 0.0625, 0.0625,
                         -0.1875));
    ref_tensor x = values_tensor(REF_F64, DIMS(3, 4));
    assert_gradient(loss_f, &(loss_context){&t, sum}, &x, &two,
                    ref_cross_entropy_grad(&two, &x, &t, sum));
    assert_gradient(loss_f, &(loss_context){&t, mean}, &x, &two,
                    ref_cross_entropy_grad(&two, &x, &t, mean));
    FREE(&z, &t, &acc, &one, &two, &x);
}

typedef struct {
    const ref_tensor *q, *k, *v; /* NULL: the variable */
    int causal;
} attention_context;

static ref_tensor attention_f(const ref_tensor *x, const void *context)
{
    const attention_context *a = context;
    return ref_attention(a->q ? a->q : x, a->k ? a->k : x, a->v ? a->v : x, 0.7,
                         (ref_keys){.causal = a->causal});
}

static void test_attention(void **unused)
{
    (void)unused;
    /* q = 0: every allowed key weighs the same. Three queries, two keys, causal: positions -1,
     * 0, 1. */
    ref_tensor q0 = ref_new(REF_F32, DIMS(1, 2, 3, 1)),
               k0 = ref_from(REF_F32, DIMS(1, 1, 2, 1), VALUES(5, 6));
    ref_tensor v0 = ref_from(REF_F32, DIMS(1, 1, 2, 2), VALUES(1, 2, 3, 4));
    assert_values(ref_attention(&q0, &k0, &v0, 1.0, (ref_keys){.causal = 1}), REF_F32, 12,
                  VALUES(0, 0, 1, 2, 2, 3, 0, 0, 1, 2, 2, 3));
    FREE(&q0, &k0, &v0);
    /* Not causal, one head: softmax(q k^T * scale) v. */
    ref_tensor q1 = values_tensor(REF_F64, DIMS(1, 1, 3, 5)),
               k1 = values_tensor(REF_F64, DIMS(1, 1, 4, 5)),
               v1 = values_tensor(REF_F64, DIMS(1, 1, 4, 2)),
               kt = ref_permute(&k1, (int[]){0, 1, 3, 2});
    ref_tensor s1 = ref_matmul(&q1, &kt, REF_F64, 0, 0, NULL, NULL), s2 = ref_scale(&s1, 0.7),
               p1 = ref_softmax(&s2, 3);
    ref_tensor want = ref_matmul(&p1, &v1, REF_F64, 0, 0, NULL, NULL),
               got = ref_attention(&q1, &k1, &v1, 0.7, (ref_keys){0});
    assert_true(ref_same_bits(&want, &got));
    FREE(&q1, &k1, &v1, &kt, &s1, &s2, &p1, &want, &got);
    for (int causal = 0; causal < 2; causal++)
        for (int64_t sq = 2; sq <= 6; sq += 2) {
            ref_tensor q = values_tensor(REF_F64, DIMS(2, 4, sq, 3)),
                       k = values_tensor(REF_F64, DIMS(2, 2, 4, 3));
            ref_tensor v = values_tensor(REF_F64, DIMS(2, 2, 4, 5)),
                       dout = values_tensor(REF_F64, DIMS(2, 4, sq, 5)), dq, dk, dv;
            ref_attention_grad(&dout, &q, &k, &v, 0.7, (ref_keys){.causal = causal}, &dq, &dk, &dv);
            assert_gradient(attention_f, &(attention_context){NULL, &k, &v, causal}, &q, &dout, dq);
            assert_gradient(attention_f, &(attention_context){&q, NULL, &v, causal}, &k, &dout, dk);
            assert_gradient(attention_f, &(attention_context){&q, &k, NULL, causal}, &v, &dout, dv);
            FREE(&q, &k, &v, &dout);
        }
}

typedef struct {
    const ref_tensor *x, *r1, *r2; /* NULL: the variable */
    ref_pairing pairing;
} rotary_context;

static ref_tensor rotary_f(const ref_tensor *x, const void *context)
{
    const rotary_context *r = context;
    return ref_rotary(r->x ? r->x : x, r->r1 ? r->r1 : x, r->r2 ? r->r2 : x, r->pairing, 4);
}

static void test_rotary(void **unused)
{
    (void)unused;
    ref_tensor x = ref_from(REF_F32, DIMS(1, 5), VALUES(1, 2, 3, 4, 9)),
               c = ref_from(REF_F32, DIMS(4), VALUES(1, 10, 100, 1000)),
               s = ref_from(REF_F32, DIMS(4), VALUES(2, 3, 5, 7)), t1, t2;
    assert_values(ref_rotary(&x, &c, &s, REF_HALF, 4), REF_F32, 5,
                  VALUES(1 - 6, 20 - 12, 300 + 5, 4000 + 14, 9));
    assert_values(ref_rotary(&x, &c, &s, REF_INTERLEAVED, 4), REF_F32, 5,
                  VALUES(1 - 4, 20 + 3, 300 - 20, 4000 + 21, 9));
    FREE(&x, &c, &s);
    for (ref_pairing p = REF_HALF; p <= REF_INTERLEAVED; p++) {
        ref_tensor a = values_tensor(REF_F64, DIMS(2, 3, 2, 6)),
                   g = values_tensor(REF_F64, DIMS(2, 3, 2, 6)), dx, d1, d2;
        ref_tensor r1 = values_tensor(REF_F64, DIMS(3, 1, 4)),
                   r2 = values_tensor(REF_F64, DIMS(2, 1, 1, 4));
        ref_rotary_grad(&g, &a, &r1, &r2, p, 4, &dx, &d1, &d2, NULL, NULL);
        assert_gradient(rotary_f, &(rotary_context){NULL, &r1, &r2, p}, &a, &g, dx);
        assert_gradient(rotary_f, &(rotary_context){&a, NULL, &r2, p}, &r1, &g, d1);
        assert_gradient(rotary_f, &(rotary_context){&a, &r1, NULL, p}, &r2, &g, d2);
        FREE(&a, &g, &r1, &r2);
        ref_rotary_table(5, 2, 4, 10000.0, p, &t1, &t2);
        int second = p == REF_HALF ? 1 : 2; /* the first column of frequency 1/100 */
        assert_near(ref_get(&t1, 0), cos(5.0), 1e-7);
        assert_near(ref_get(&t1, 3), cos(0.05), 1e-7);
        assert_near(ref_get(&t2, second), sin(0.05), 1e-7);
        assert_near(ref_get(&t2, 4), sin(6.0), 1e-7);
        FREE(&t1, &t2);
    }
}

const struct CMUnitTest tl_tests_ref_gradients[] = {
    cmocka_unit_test(test_softmax),   cmocka_unit_test(test_wrong_gradient_is_caught),
    cmocka_unit_test(test_rms_norm),  cmocka_unit_test(test_cross_entropy),
    cmocka_unit_test(test_attention), cmocka_unit_test(test_rotary),
};
const size_t tl_tests_ref_gradients_count = sizeof tl_tests_ref_gradients /
                                            sizeof *tl_tests_ref_gradients;
