/* How values depend on the batch: what leaves are told, and every op's rule against its numerics.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <tally_extend.h>

#include "tests/support/fresh.h"

extern const struct CMUnitTest tl_tests_batch[];
extern const size_t tl_tests_batch_count;

static tl_tensor zeros(tl_shape s) { return tl_zeros(t, TL_F32, s); }
#define IS(x, want) assert_int_equal(tl_batch_of(t, x), want)

static void leaves_are_told(void **unused)
{
    float x[6] = {0};
    (void)unused;
    IS(tl_data(t, x, TL_F32, TL_DIMS(6)), 0);
    IS(tl_bound(t, x, TL_F32, TL_DIMS(3, 2)), 0);
    IS(tl_data(m, x, TL_F32, TL_DIMS(6)), 0);
    IS(tl_zeros(m, TL_F32, TL_DIMS(6)), 0);
    IS(tl_data(t, x, TL_F32, TL_SCALAR), TL_FREE);
    IS(tl_data(m, x, TL_F32, TL_SCALAR), TL_FREE);
    IS(tl_constant(t, x, TL_F32, TL_DIMS(6)), TL_FREE);
    IS(tl_fill(t, TL_F32, TL_DIMS(6), 1), TL_FREE);
    IS(tl_param(t, m, "w", TL_F32, TL_DIMS(2), TL_INIT_ONES, 0), TL_FREE);
    IS(tl_buffer(t, m, "b", TL_F32, TL_DIMS(2)), TL_FREE);
    IS(tl_detach(t, zeros(TL_DIMS(3))), 0);
    assert_false(tl_failed(t));
}

static void the_user_says_otherwise(void **unused)
{
    tl_tensor x = zeros(TL_DIMS(3, 2)), of_model = tl_zeros(m, TL_F32, TL_DIMS(3, 2)),
              h = tl_fill(t, TL_F32, TL_DIMS(6, 4), 0), y = tl_select(t, of_model, 0, 1);
    (void)unused;
    assert_int_equal(tl_batch_axis(t, x, 1), TL_OK);
    assert_int_equal(tl_batch_axis(m, of_model, TL_FREE), TL_OK);
    assert_int_equal(tl_batch_axis(t, h, 0), TL_OK);
    assert_int_equal(tl_batch_axis(t, y, 0), TL_OK);
    IS(x, 1);
    IS(of_model, TL_FREE);
    IS(h, 0);
    IS(y, 0);
    assert_int_equal(tl_batch_axis(m, of_model, 2), TL_ESHAPE);
    assert_non_null(strstr(tl_error(m), "2 is neither TL_FREE nor an axis of [3, 2]"));
    assert_non_null(strstr(tl_error(m), "test_batch.c:"));
    tl_error_clear(m);
    assert_int_equal(tl_batch_axis(t, tl_tanh(t, x), 1), TL_EUSAGE);
    tl_error_clear(t);
    assert_int_equal(tl_batch_axis(t, tl_param(t, m, "w", TL_F32, TL_DIMS(2), TL_INIT_ONES, 0), 0),
                     TL_EUSAGE);
}

static void ops_hand_it_on(void **unused)
{
    tl_tensor x = zeros(TL_DIMS(6, 4, 5)), p = tl_fill(t, TL_F32, TL_DIMS(5, 3), 1),
              axis1 = zeros(TL_DIMS(4, 6));
    (void)unused;
    tl_tensor y = tl_matmul(t, x, p), turned = tl_permute(t, y, TL_DIMS(1, 0, 2));
    IS(y, 0);
    IS(turned, 1);
    IS(tl_matmul(t, turned, tl_fill(t, TL_F32, TL_DIMS(3, 2), 1)), 1);
    IS(tl_add(t, x, tl_fill(t, TL_F32, TL_DIMS(4, 5), 1)), 0);
    IS(tl_add(t, x, tl_fill(t, TL_F32, TL_DIMS(6, 4, 5), 1)), TL_MIXED);
    IS(tl_add(t, x, tl_expand(t, tl_fill(t, TL_F32, TL_DIMS(4, 5), 1), TL_DIMS(6, 4, 5))), 0);
    IS(tl_add(t, p, p), TL_FREE);
    IS(tl_reshape(t, x, TL_DIMS(24, 5)), 0);
    IS(tl_reshape(t, x, TL_DIMS(6, 20)), 0);
    IS(tl_reshape(t, x, TL_DIMS(1, 6, 20)), 1);
    IS(tl_reshape(t, x, TL_DIMS(3, 2, 20)), 0);
    IS(tl_reshape(t, x, TL_DIMS(5, 24)), TL_MIXED);
    IS(tl_reshape(t, turned, TL_DIMS(4, 6, 3, 1)), 1);
    IS(tl_sum(t, x, TL_DIMS(1, 2), false), 0);
    IS(tl_sum(t, turned, TL_DIMS(0), false), 0);
    IS(tl_sum(t, turned, TL_DIMS(0), true), 1);
    tl_tensor total = tl_sum(t, x, TL_ALL, false);
    IS(total, TL_TOTAL);
    IS(tl_scale(t, total, 0.5), TL_TOTAL);
    IS(tl_add(t, total, total), TL_TOTAL);
    IS(tl_mul(t, total, total), TL_MIXED);
    IS(tl_exp(t, total), TL_MIXED);
    IS(tl_mul(t, total, tl_param(t, m, "s", TL_F32, TL_SCALAR, TL_INIT_ONES, 0)), TL_MIXED);
    IS(tl_mean(t, x, TL_ALL, false), TL_MIXED);
    IS(tl_mean(t, x, TL_DIMS(1), false), 0);
    IS(tl_select(t, x, 0, 1), TL_MIXED);
    IS(tl_select(t, turned, 0, 1), 0);
    IS(tl_slice(t, x, 0, 0, 6, 1), 0);
    IS(tl_slice(t, x, 0, 1, 6, 1), 0); /* a micro-batch of data ... */
    IS(tl_mul(t, tl_slice(t, x, 0, 1, 6, 1), tl_slice(t, x, 0, 0, 5, 1)), TL_MIXED);
    IS(tl_mul(t, tl_slice(t, x, 0, 1, 6, 1), tl_slice(t, x, 0, 1, 6, 1)), 0);
    IS(tl_slice(t, tl_exp(t, x), 0, 1, 6, 1), TL_MIXED); /* and nothing but data */
    IS(tl_rms_norm(t, x, TL_NONE, 1e-5), 0);
    IS(tl_rms_norm(t, tl_permute(t, x, TL_DIMS(1, 2, 0)), TL_NONE, 1e-5), TL_MIXED);
    IS(tl_matmul(t, tl_transpose(t, zeros(TL_DIMS(6, 3)), 0, 1), zeros(TL_DIMS(6, 2))), TL_TOTAL);
    IS(tl_matmul(t, axis1, zeros(TL_DIMS(6, 3))), TL_MIXED);
    assert_false(tl_failed(t));
}

const struct CMUnitTest tl_tests_batch[] = {
    TEST(leaves_are_told),
    TEST(the_user_says_otherwise),
    TEST(ops_hand_it_on),
};
const size_t tl_tests_batch_count = sizeof tl_tests_batch / sizeof tl_tests_batch[0];
