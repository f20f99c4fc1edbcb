/* The references of what moves values and of training, against values computed by hand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/values.h"

extern const struct CMUnitTest tl_tests_ref_training[];
extern const size_t tl_tests_ref_training_count;

/* ---- moving, training ---- */

static void test_moving(void **unused)
{
    (void)unused;
    ref_tensor w = ref_from(REF_F16, DIMS(3, 2), VALUES(0, 1, 2, 3, 4, 5)),
               ids = ref_from_i64(DIMS(1, 3), (int64_t[]){2, 0, 2});
    ref_tensor y = ref_embedding(&w, &ids),
               acc = ref_from(REF_F32, DIMS(3, 2), VALUES(0, 0, 7, 0, 0, 0.5));
    assert_int_equal(y.ndim, 3);
    assert_values(ref_embedding_grad(&y, &ids, 3, &acc), REF_F16, 6, VALUES(0, 1, 7, 0, 8, 10.5));
    assert_values(ref_copy(&acc), REF_F32, 6, VALUES(0, 1, 7, 0, 8, 10.5));
    assert_values(y, REF_F16, 6, VALUES(4, 5, 0, 1, 4, 5));
    assert_values(ref_concat(2, (const ref_tensor *[]){&w, &w}, 1), REF_F16, 12,
                  VALUES(0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5));
    assert_values(ref_permute(&w, (int[]){1, 0}), REF_F16, 6, VALUES(0, 2, 4, 1, 3, 5));
    ref_tensor s = ref_slice(&w, 0, 0, 3, 2);
    assert_values(ref_slice_grad(&s, 0, 4, 1, 2), REF_F16, 8, VALUES(0, 0, 0, 1, 0, 0, 4, 5));
    assert_values(s, REF_F16, 4, VALUES(0, 1, 4, 5));
    FREE(&w, &ids, &acc);
}

static void test_training(void **unused)
{
    (void)unused;
    ref_tensor p = ref_from(REF_F32, DIMS(1), VALUES(1)), g = ref_from(REF_F32, DIMS(1), VALUES(2)),
               b = ref_new(REF_F32, DIMS(1));
    ref_sgd(&p, &g, NULL, 0.5, 0.25, (ref_sgd_options){.wd = 1}); /* 1 - 0.25 * (1 + 1) */
    assert_value(ref_get(&p, 0), 0.5);
    ref_sgd(&p, &g, &b, 1, 0.125, (ref_sgd_options){.mu = 0.5}); /* b = 2 */
    ref_sgd(&p, &g, &b, 1, 0.125, (ref_sgd_options){.mu = 0.5}); /* b = 3 */
    assert_value(ref_get(&b, 0), 3);
    assert_value(ref_get(&p, 0), -0.125);
    ref_set(&b, 0, 0);
    ref_set(&p, 0, 1);
    ref_tensor p2 = ref_copy(&p), b2 = ref_copy(&b);
    for (int i = 0; i < 2; i++) { /* the decay gathers momentum, or does not: b = 3, p = 0.25 .. */
        ref_sgd(&p, &g, &b, 1, 0.25, (ref_sgd_options){.mu = 0.5, .wd = 1});
        ref_sgd(&p2, &g, &b2, 1, 0.25, (ref_sgd_options){.mu = 0.5, .wd = 1, .decoupled = 1});
    }
    assert_value(ref_get(&b, 0), 3.75); /* 3 / 2 + 2 + 0.25 */
    assert_value(ref_get(&p, 0), 0.25 - 3.75 / 4);
    assert_value(ref_get(&b2, 0), 3);
    assert_value(ref_get(&p2, 0), 0.25 - 3.25 / 4);
    FREE(&p2, &b2);
    /* Adam's first step is lr * sign(g), whatever the size of g, plus the decay. */
    ref_tensor q = ref_from(REF_F32, DIMS(2), VALUES(1, 1)),
               h = ref_from(REF_BF16, DIMS(2), VALUES(0.01, -100));
    ref_tensor m = ref_new(REF_F32, DIMS(2)), v = ref_new(REF_F32, DIMS(2));
    ref_adamw(&q, &h, &m, &v, 1.0, (ref_adamw_options){0.1, 0.9, 0.999, 0, 0.5}, 1);
    assert_near(ref_get(&q, 0), 1 - 0.1 * 1.5, 1e-6);
    assert_near(ref_get(&q, 1), 1 + 0.1 * 0.5, 1e-6);
    assert_near(ref_get(&m, 1), -10, 1e-5);
    assert_near(ref_get(&v, 1), 10, 1e-5);
    ref_tensor three = ref_from(REF_F32, DIMS(1), VALUES(3)),
               four = ref_from(REF_F16, DIMS(1), VALUES(4));
    assert_value(ref_global_norm(2, (const ref_tensor *[]){&three, &four},
                                 (const char *[]){"b", "a"}),
                 5);
    assert_value(ref_clip_factor(5, 1), 0.2);
    assert_value(ref_clip_factor(0.5, 1), 1);
    assert_value(ref_warmup_cosine(1, 0, 0, 4, 8), 0.25);
    assert_value(ref_warmup_cosine(1, 0, 3, 4, 8), 1);
    assert_value(ref_warmup_cosine(1, 0.5, 4, 4, 8), 1);
    assert_near(ref_warmup_cosine(1, 0.5, 6, 4, 8), 0.75, 1e-15);
    assert_near(ref_warmup_cosine(1, 0.5, 8, 4, 8), 0.5, 1e-15);
    FREE(&p, &g, &b, &q, &h, &m, &v, &three, &four);
}

const struct CMUnitTest tl_tests_ref_training[] = {
    cmocka_unit_test(test_moving),
    cmocka_unit_test(test_training),
};
const size_t tl_tests_ref_training_count = sizeof tl_tests_ref_training /
                                           sizeof *tl_tests_ref_training;
