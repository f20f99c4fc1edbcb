/* test_walk.c: roots, cotangents and accumulators at the edges of a backward walk. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tally.h"

/* A parameter whose batch axis is 1 meets batches of one row and of several: one fold in f64 all
 * the same. */
static void batches_of_one_row_fold_like_others(void **state)
{
    static const float x[4] = {1e8f, 3, 3, -1e8f};
    static const int split[3][4] = {{4}, {3, 1}, {1, 1, 1, 1}};
    (void)state;
    for (int s = 0; s < 3; s++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        for (int part = 0, row = 0; part < 4 && split[s][part] > 0; row += split[s][part++]) {
            tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(1, 1), TL_INIT_ZEROS, 0);
            tl_tensor o = tl_fill(t, TL_F32, TL_DIMS(split[s][part], 1), 2),
                      f = tl_data(t, x + row, TL_F32, TL_DIMS(split[s][part], 1));
            tl_backward(t, tl_sum(t, tl_mul(t, tl_add(t, o, w), f), TL_ALL, false));
            tl_tape_reset(t);
        }
        assert_true(tl_item(t, tl_grad(t, tl_model_find(m, "w"))) == 6);
        assert_string_equal(tl_error(t), "");
        tl_free(t, m);
    }
}

static void a_traced_loss_is_refused(void **state)
{
    (void)state;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    int mode = tl_mode_push(t, TL_TRACE);
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(3), TL_INIT_ONES, 1);
    tl_tensor y = tl_sum(t, tl_square(t, w), TL_ALL, false);
    tl_mode_pop(t, mode);
    assert_int_equal(tl_backward(t, y), TL_ETRACED);
    tl_free(t, m);
}

static void a_cotangent_may_come_from_the_graph(void **state)
{
    (void)state;
    float one[2] = {1, 5};
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, one, TL_F32, TL_DIMS(2));
    tl_require_grad(t, x);
    tl_tensor h = tl_scale(t, x, 2), y = tl_scale(t, h, 3);
    assert_int_equal(tl_backward(t, y, .cotangent = h), TL_OK);
    assert_true(tl_item(t, tl_select(t, tl_grad(t, x), 0, 1)) == 60);
    tl_free(t);
}

const struct CMUnitTest tl_tests_walk[] = {
    cmocka_unit_test(batches_of_one_row_fold_like_others),
    cmocka_unit_test(a_traced_loss_is_refused),
    cmocka_unit_test(a_cotangent_may_come_from_the_graph),
};
const size_t tl_tests_walk_count = sizeof tl_tests_walk / sizeof *tl_tests_walk;
