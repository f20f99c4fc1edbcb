/* The f32 masters of f16 and bf16 parameters: small steps add up, a loaded parameter gives a new
 * one, checkpoints keep them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/support/half.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_masters[];
extern const size_t tl_tests_masters_count;

enum { N = 37 };

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *o;
} setup;

static setup new_setup(uint64_t seed, double lr)
{
    setup s = {.m = tl_model_new(.seed = seed)};
    s.t = tl_tape_new(s.m);
    s.o = tl_sgd_new(s.m, .lr = lr);
    return s;
}

static void free_setup(setup *s) { tl_free(s->o, s->t, s->m); }

/* One step along a gradient of ones. */
static void step_of_ones(setup *s, tl_dtype d)
{
    tl_tensor p = tl_param(s->t, s->m, "p", d, TL_DIMS(N), TL_INIT_NORMAL, 1);
    tl_backward(s->t, tl_sum(s->t, tl_cast(s->t, p, TL_F32), TL_ALL, false));
    if (tl_step(s->o, s->t) != TL_OK)
        fail_msg("%s", tl_error(s->t));
    tl_tape_reset(s->t);
}

/* Steps far below a half's last place add up in the master; without it nothing would ever move. */
static void small_steps_add_up(void **unused)
{
    (void)unused;
    for (int d = 0; d < 2; d++) {
        setup s = new_setup(3, 1e-5);
        uint16_t before[N], half[N];
        float master[N];
        int moved = 0;
        tl_tensor p = tl_param(s.t, s.m, "p", half_dtypes[d], TL_DIMS(N), TL_INIT_NORMAL, 1);
        half_read(s.t, p, before, sizeof before);
        for (int i = 0; i < 1500; i++) {
            step_of_ones(&s, half_dtypes[d]);
            tl_tape_reset(s.t);
        }
        half_read(s.t, p, half, sizeof half);
        half_master(s.t, s.m, "p", master);
        for (int i = 0; i < N; i++) {
            assert_true(fabs((double)(master[i] - half_value(half_dtypes[d], before[i])) + 0.015) <
                        1e-3);
            assert_int_equal(half[i], half_of(half_dtypes[d], master[i]));
            moved += half[i] != before[i];
        }
        assert_true(moved > N / 2);
        free_setup(&s);
    }
}

static void a_loaded_parameter_gives_a_new_master(void **unused)
{
    (void)unused;
    for (int d = 0; d < 2; d++) {
        temp_dir dir;
        char path[1024];
        float master[N];
        uint16_t first[N], half[N];
        assert_true(temp_dir_make(&dir));
        setup s = new_setup(3, 1e-4);
        tl_tensor p = tl_param(s.t, s.m, "p", half_dtypes[d], TL_DIMS(N), TL_INIT_NORMAL, 1);
        half_read(s.t, p, first, sizeof first);
        assert_int_equal(tl_save(s.m, temp_dir_file(path, &dir, "p")), TL_OK);
        for (int i = 0; i < 5; i++)
            step_of_ones(&s, half_dtypes[d]);
        half_master(s.t, s.m, "p", master);
        for (int i = 0; i < N; i++)
            assert_true(master[i] != half_value(half_dtypes[d], first[i]));
        uint16_t other[N];
        for (int i = 0; i < N; i++) /* values far from the master */
            other[i] = half_of(half_dtypes[d], (float)i);
        assert_int_equal(tl_write(s.m, p, other, sizeof other), TL_OK);
        step_of_ones(&s, half_dtypes[d]);
        half_master(s.t, s.m, "p", master);
        for (int i = 0; i < N; i++) {
            float want = (float)i - (float)1e-4 * 1.0f;
            assert_true(master[i] == want);
        }
        if (tl_load(s.m, path) != TL_OK)
            fail_msg("%s", tl_error(s.m));
        step_of_ones(&s, half_dtypes[d]);
        half_master(s.t, s.m, "p", master);
        half_read(s.t, p, half, sizeof half);
        for (int i = 0; i < N; i++) {
            float want = half_value(half_dtypes[d], first[i]) - (float)1e-4 * 1.0f;
            assert_true(master[i] == want);
            assert_int_equal(half[i], half_of(half_dtypes[d], want));
        }
        temp_dir_remove(&dir);
        free_setup(&s);
    }
}

/* A master of several pieces, each of which is compared with the parameter: one number that was
 * written, in the last piece, is noticed, and nothing else is taken for written. */
static void all_of_a_long_master_is_compared(void **unused)
{
    enum { LONG = 2500 };
    static float was[LONG], now[LONG];
    static uint16_t half[LONG];
    (void)unused;
    for (int d = 0; d < 2; d++) {
        setup s = new_setup(3, 1e-5);
        for (int i = 0; i < 4; i++) {
            tl_tensor p = tl_param(s.t, s.m, "p", half_dtypes[d], TL_DIMS(LONG), TL_INIT_NORMAL, 1);
            if (i > 0)
                half_master(s.t, s.m, "p", was);
            if (i == 3) {
                half_read(s.t, p, half, sizeof half);
                half[LONG - 1] = half_of(half_dtypes[d], 5);
                assert_int_equal(tl_write(s.m, p, half, sizeof half), TL_OK);
                for (int k = 0; k < LONG; k++)
                    was[k] = half_value(half_dtypes[d], half[k]);
            }
            tl_backward(s.t, tl_sum(s.t, tl_cast(s.t, p, TL_F32), TL_ALL, false));
            assert_int_equal(tl_step(s.o, s.t), TL_OK);
            tl_tape_reset(s.t);
            half_master(s.t, s.m, "p", now);
            for (int k = 0; k < LONG && i > 0; k++)
                assert_true(now[k] == was[k] - (float)1e-5 * 1.0f);
        }
        free_setup(&s);
    }
}

/* All NaNs are one (NUMERICS 1.5): another in the parameter does not change its master. */
static void one_nan_is_as_good_as_another(void **unused)
{
    (void)unused;
    for (int d = 0; d < 2; d++) {
        setup s = new_setup(3, 1e-5);
        uint16_t half[N];
        float was[N], now[N];
        tl_tensor p = tl_param(s.t, s.m, "p", half_dtypes[d], TL_DIMS(N), TL_INIT_NORMAL, 1);
        half_read(s.t, p, half, sizeof half);
        half[0] = half_of(half_dtypes[d], (float)NAN);
        assert_int_equal(tl_write(s.m, p, half, sizeof half), TL_OK);
        for (int i = 0; i < 3; i++)
            step_of_ones(&s, half_dtypes[d]);
        half_master(s.t, s.m, "p", was);
        half_read(s.t, p, half, sizeof half);
        half[0] = half_dtypes[d] == TL_F16 ? 0x7c01 : 0x7f81; /* a signalling one */
        assert_int_equal(tl_write(s.m, p, half, sizeof half), TL_OK);
        step_of_ones(&s, half_dtypes[d]);
        half_master(s.t, s.m, "p", now);
        for (int i = 1; i < N; i++)
            assert_true(now[i] == was[i] - (float)1e-5 * 1.0f);
        free_setup(&s);
    }
}

static void masters_are_saved_with_a_checkpoint(void **unused)
{
    (void)unused;
    for (int d = 0; d < 2; d++) {
        temp_dir dir;
        char path[1024];
        float was[N], now[N];
        assert_true(temp_dir_make(&dir));
        setup s = new_setup(3, 1e-4);
        for (int i = 0; i < 5; i++)
            step_of_ones(&s, half_dtypes[d]);
        half_master(s.t, s.m, "p", was);
        assert_int_equal(tl_checkpoint_save(s.m, s.o, temp_dir_file(path, &dir, "c"), NULL, 0),
                         TL_OK);
        step_of_ones(&s, half_dtypes[d]);
        half_master(s.t, s.m, "p", now);
        setup fresh = new_setup(77, 1e-4);
        tl_param(fresh.t, fresh.m, "p", half_dtypes[d], TL_DIMS(N), TL_INIT_NORMAL, 1);
        if (tl_checkpoint_load(fresh.m, fresh.o, path, NULL, NULL, 0) != TL_OK)
            fail_msg("%s", tl_error(fresh.m));
        float loaded[N];
        half_master(fresh.t, fresh.m, "p", loaded);
        assert_memory_equal(loaded, was, sizeof was);
        assert_int_equal(tl_opt_steps(fresh.o), 5);
        step_of_ones(&fresh, half_dtypes[d]);
        half_master(fresh.t, fresh.m, "p", loaded);
        assert_memory_equal(loaded, now, sizeof now);
        free_setup(&s);
        free_setup(&fresh);
        temp_dir_remove(&dir);
    }
}

const struct CMUnitTest tl_tests_masters[] = {
    cmocka_unit_test(small_steps_add_up),
    cmocka_unit_test(a_loaded_parameter_gives_a_new_master),
    cmocka_unit_test(all_of_a_long_master_is_compared),
    cmocka_unit_test(one_nan_is_as_good_as_another),
    cmocka_unit_test(masters_are_saved_with_a_checkpoint),
};
const size_t tl_tests_masters_count = sizeof tl_tests_masters / sizeof *tl_tests_masters;
