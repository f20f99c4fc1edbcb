/* Two optimizers over one model, each of parameters of its own: a checkpoint knows whose state is
 * whose, so that such a run can be stopped and resumed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <tally.h>

#include "tests/support/fresh_dir.h"

extern const struct CMUnitTest tl_tests_two_optimizers[];
extern const size_t tl_tests_two_optimizers_count;

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *o[2]; /* of "d" and of "g" */
} run;

static const char *const prefix[2] = {"d", "g"};
static char file[2][1024];

static tl_tensor data(const run *r, int step)
{
    float x[12];
    for (int i = 0; i < 12; i++)
        x[i] = (float)((i * 7 + step * 5) % 11) / 11 - 0.5f;
    return tl_data(r->t, x, TL_F32, TL_DIMS(4, 3));
}

/* `kinds`: "aa" is Adam twice, "as" Adam and SGD with momentum. */
static run begin(uint64_t seed, const char *kinds)
{
    run r = {.m = tl_model_new(.seed = seed)};
    r.t = tl_tape_new(r.m);
    for (int k = 0; k < 2; k++) {
        r.o[k] = kinds[k] == 'a' ? tl_adam_new(r.m, .lr = 0.01 * (k + 1))
                                 : tl_sgd_new(r.m, .lr = 0.1, .momentum = 0.9);
        tl_linear(r.t, r.m, prefix[k], data(&r, 0), 2);
    }
    tl_tape_reset(r.t);
    return r;
}

static void end(run *r) { tl_free(r->o[0], r->o[1], r->t, r->m); }

static tl_status step(run *r, int k, int step)
{
    tl_tensor y = tl_linear(r->t, r->m, prefix[k], data(r, step), 2);
    tl_backward(r->t, tl_sum(r->t, tl_square(r->t, tl_sin(r->t, y)), TL_ALL, false),
                .partial = true);
    const tl_status s = tl_step(r->o[k], r->t);
    tl_tape_reset(r->t);
    return s;
}

static void steps(run *r, int from, int to)
{
    for (int i = from; i < to; i++)
        for (int k = 0; k < 2; k++)
            assert_int_equal(step(r, k, i), TL_OK);
}

static void hash(const run *r, char hex[65])
{
    assert_int_equal(tl_model_sha256(r->m, hex), TL_OK);
}

/* 4 steps, after which each optimizer has a file; 4 more, whose end is `want`. */
static void make_files(const char *kinds, char want[65])
{
    run r = begin(1, kinds);
    steps(&r, 0, 4);
    for (int k = 0; k < 2; k++) {
        temp_dir_file(file[k], &dir, prefix[k]);
        assert_int_equal(tl_checkpoint_save(r.m, r.o[k], file[k], NULL, 0), TL_OK);
    }
    steps(&r, 4, 8);
    hash(&r, want);
    end(&r);
}

static void load(run *r, int k)
{
    assert_int_equal(tl_checkpoint_load(r->m, r->o[k], file[k], NULL, NULL, 0), TL_OK);
}

static void a_file_for_each_resumes_the_run(void **unused)
{
    static const char *const kinds[] = {"aa", "as", "sa", "ss"};
    (void)unused;
    for (int i = 0; i < 4; i++) {
        char want[65], got[65];
        make_files(kinds[i], want);
        for (int first = 0; first < 2; first++) {
            run r = begin(9, kinds[i]);
            load(&r, first);
            load(&r, !first);
            steps(&r, 4, 8);
            hash(&r, got);
            assert_string_equal(got, want);
            load(&r, !first); /* the run goes back to where the files were written */
            load(&r, first);
            steps(&r, 4, 8);
            hash(&r, got);
            assert_string_equal(got, want);
            end(&r);
        }
    }
}

/* State that has come with another's file is neither used nor cleared. */
static void a_step_without_its_own_file_is_refused(void **unused)
{
    static const char *const kinds[] = {"aa", "as"};
    (void)unused;
    for (int i = 0; i < 2; i++) {
        char want[65], got[65], now[65];
        make_files(kinds[i], want);
        run r = begin(9, kinds[i]);
        load(&r, 0);
        hash(&r, now);
        assert_int_equal(step(&r, 1, 4), TL_EUSAGE);
        assert_non_null(strstr(tl_error(r.t), i == 0 ? "'adamw.m.g.bias' came with the checkpoint"
                                                     : "'sgd.b.g.bias' came with the checkpoint"));
        tl_grad_clear(r.t);
        tl_error_clear(r.t);
        hash(&r, got);
        assert_string_equal(got, now);
        /* A checkpoint of the half that is there says the same. */
        assert_int_equal(tl_checkpoint_save(r.m, r.o[0], file[0], NULL, 0), TL_OK);
        run again = begin(3, kinds[i]);
        load(&again, 0);
        assert_int_equal(step(&again, 1, 4), TL_EUSAGE);
        tl_error_clear(again.t);
        end(&again);
        load(&r, 1);
        steps(&r, 4, 8);
        hash(&r, got);
        assert_string_equal(got, want);
        end(&r);
    }
}

/* One optimizer goes back to its file: what the other has learned goes with the other's steps. */
static void the_other_keeps_its_state(void **unused)
{
    char want[65], got[65];
    float now[2], after[2];
    (void)unused;
    make_files("aa", want);
    run r = begin(1, "aa");
    steps(&r, 0, 6);
    tl_tensor g = tl_model_find(r.m, "adamw.m.g.bias");
    assert_int_equal(tl_keep(r.t, g, now, sizeof now), TL_OK);
    load(&r, 0);
    assert_int_equal(tl_keep(r.t, g, after, sizeof after), TL_OK);
    assert_memory_equal(after, now, sizeof now);
    load(&r, 1);
    assert_int_equal(tl_keep(r.t, g, after, sizeof after), TL_OK);
    assert_true(memcmp(after, now, sizeof now) != 0);
    assert_int_equal(tl_opt_steps(r.o[1]), 4);
    steps(&r, 4, 8);
    hash(&r, got);
    assert_string_equal(got, want);
    end(&r);
}

/* A file of one optimizer is no other's of its kind while the first has what is in it. */
static void one_file_is_not_for_two(void **unused)
{
    char want[65], now[65], got[65];
    (void)unused;
    make_files("aa", want);
    run r = begin(9, "aa");
    load(&r, 0);
    hash(&r, now);
    assert_int_equal(tl_checkpoint_load(r.m, r.o[1], file[0], NULL, NULL, 0), TL_EUSAGE);
    assert_non_null(strstr(tl_error(r.m), "'adamw.m.d.bias' is the state of another optimizer"));
    tl_error_clear(r.m);
    hash(&r, got);
    assert_string_equal(got, now);
    end(&r);
}

/* State of an optimizer that is gone begins at zero when another takes it, also if the run was
 * stopped between. */
static void what_nobody_owns_is_not_kept(void **unused)
{
    char want[65], got[65];
    (void)unused;
    for (int stop = 0; stop < 2; stop++) {
        run r = begin(1, "aa");
        tl_free(r.o[1]);
        r.o[1] = r.o[0];
        steps(&r, 0, 3);
        tl_free(r.o[0]);
        r.o[0] = r.o[1] = tl_adam_new(r.m, .lr = 0.01);
        assert_int_equal(step(&r, 0, 3), TL_OK);
        if (stop) {
            assert_int_equal(tl_checkpoint_save(r.m, r.o[0], path, NULL, 0), TL_OK);
            run again = begin(5, "aa");
            assert_int_equal(tl_checkpoint_load(again.m, again.o[0], path, NULL, NULL, 0), TL_OK);
            tl_free(r.o[0], r.t, r.m, again.o[1]);
            r = again;
            r.o[1] = r.o[0];
        }
        steps(&r, 4, 6);
        hash(&r, stop ? got : want);
        tl_free(r.o[0], r.t, r.m);
    }
    assert_string_equal(got, want);
}

/* Weights alone: an optimizer starts afresh. */
static void weights_are_for_anyone(void **unused)
{
    char want[65], got[65];
    (void)unused;
    make_files("as", want);
    run r = begin(9, "as"), fresh = begin(9, "as");
    assert_int_equal(tl_checkpoint_load(r.m, NULL, file[0], NULL, NULL, 0), TL_OK);
    assert_int_equal(tl_save(r.m, path), TL_OK);
    assert_int_equal(tl_load(fresh.m, path), TL_OK);
    steps(&r, 4, 6);
    steps(&fresh, 4, 6);
    hash(&r, want);
    hash(&fresh, got);
    assert_string_equal(got, want);
    end(&r), end(&fresh);
}

static void keep(const run *r, const char *name, float to[2])
{
    assert_int_equal(tl_keep(r->t, tl_model_find(r->m, name), to, 2 * sizeof *to), TL_OK);
}

/* They take nothing from an optimizer that lives. */
static void weights_alone_leave_state(void **unused)
{
    float before[2], after[2];
    (void)unused;
    run r = begin(9, "as"), fresh = begin(3, "as");
    assert_int_equal(tl_checkpoint_save(fresh.m, NULL, path, NULL, 0), TL_OK);
    steps(&r, 0, 2);
    keep(&r, "adamw.m.d.bias", before);
    assert_int_equal(tl_checkpoint_load(r.m, NULL, path, NULL, NULL, 0), TL_OK);
    keep(&r, "adamw.m.d.bias", after);
    assert_memory_equal(after, before, sizeof before);
    keep(&r, "d.bias", after);
    keep(&fresh, "d.bias", before);
    assert_memory_equal(after, before, sizeof before);
    steps(&r, 2, 3);
    end(&r), end(&fresh);
}

/* State that waits for its optimizer's file waits no more once weights alone have been loaded. */
static void weights_alone_end_the_wait(void **unused)
{
    char want[65], got[65];
    (void)unused;
    make_files("aa", want);
    run r = begin(9, "aa"), fresh = begin(9, "aa");
    load(&r, 0);
    assert_int_equal(tl_checkpoint_load(r.m, NULL, file[0], NULL, NULL, 0), TL_OK);
    assert_int_equal(tl_checkpoint_load(fresh.m, NULL, file[0], NULL, NULL, 0), TL_OK);
    for (int i = 4; i < 6; i++) {
        assert_int_equal(step(&r, 1, i), TL_OK);
        assert_int_equal(step(&fresh, 1, i), TL_OK);
    }
    tl_sha256(r.t, tl_model_find(r.m, "g.weight"), got);
    tl_sha256(fresh.t, tl_model_find(fresh.m, "g.weight"), want);
    assert_string_equal(got, want);
    end(&r), end(&fresh);
}

/* An optimizer that has stepped goes back to a file that says that part of its state is another's.
 */
static void what_was_its_own_may_be_anothers(void **unused)
{
    char want[65];
    (void)unused;
    make_files("aa", want);
    run r = begin(9, "aa");
    tl_free(r.o[1]);
    r.o[1] = r.o[0];
    steps(&r, 0, 2);
    load(&r, 0);
    assert_int_equal(step(&r, 0, 2), TL_OK);
    assert_int_equal(step(&r, 1, 2), TL_EUSAGE);
    assert_non_null(strstr(tl_error(r.t), "'adamw.m.g.bias' came with the checkpoint"));
    tl_error_clear(r.t);
    tl_free(r.o[0], r.t, r.m);
}

static void refused(run *r, int k)
{
    assert_int_equal(step(r, k, 0), TL_EUSAGE);
    assert_non_null(strstr(tl_error(r->t), "a checkpoint has been loaded since step"));
    assert_non_null(strstr(tl_error(r->t), "test_two_optimizers.c"));
    tl_grad_clear(r->t);
    tl_error_clear(r->t);
}

/* The other has begun since the file was written: its state stays, and it must be made anew. */
static void a_file_from_before_the_other(void **unused)
{
    float before[2], after[2];
    (void)unused;
    run r = begin(1, "aa");
    assert_int_equal(step(&r, 0, 0), TL_OK);
    assert_int_equal(tl_checkpoint_save(r.m, r.o[0], path, NULL, 0), TL_OK);
    assert_int_equal(step(&r, 1, 0), TL_OK);
    keep(&r, "adamw.m.g.bias", before);
    assert_int_equal(tl_checkpoint_load(r.m, r.o[0], path, NULL, NULL, 0), TL_OK);
    keep(&r, "adamw.m.g.bias", after);
    assert_memory_equal(after, before, sizeof before);
    refused(&r, 1);
    tl_free(r.o[1]);
    r.o[1] = tl_adam_new(r.m, .lr = 0.01);
    steps(&r, 1, 3);
    end(&r);
}

/* Optimizers that live are taken back as well: each by its own file, or they step no more. */
static void a_run_that_goes_back(void **unused)
{
    char want[65], got[65];
    (void)unused;
    make_files("aa", want);
    run r = begin(1, "aa");
    steps(&r, 0, 6);
    assert_int_equal(tl_checkpoint_load(r.m, r.o[0], file[0], NULL, NULL, 0), TL_OK);
    refused(&r, 1);
    assert_int_equal(tl_checkpoint_load(r.m, r.o[1], file[1], NULL, NULL, 0), TL_OK);
    steps(&r, 4, 8);
    hash(&r, got);
    assert_string_equal(got, want);
    assert_int_equal(tl_checkpoint_load(r.m, NULL, file[0], NULL, NULL, 0), TL_OK);
    refused(&r, 0);
    end(&r);
}

static void compiled_step(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int m, void *ctx)
{
    (void)n, (void)m;
    tl_tensor y = tl_linear(t, tl_tape_model(t), "d", in[0], 2);
    out[0] = tl_sum(t, tl_square(t, y), TL_ALL, false);
    tl_backward(t, out[0], .partial = true);
    tl_step(ctx, t);
}

/* A compiled step is refused before it changes anything. */
static void a_compiled_run_that_goes_back(void **unused)
{
    char before[65], after[65];
    (void)unused;
    run r = begin(1, "aa");
    tl_compiled *c = tl_compile(r.t, compiled_step, 1, r.o[0]);
    for (int i = 0; i < 4; i++) {
        tl_tensor in = data(&r, i), y;
        if (i == 3)
            assert_int_equal(tl_checkpoint_load(r.m, NULL, path, NULL, NULL, 0), TL_OK);
        hash(&r, before);
        assert_int_equal(tl_run(c, &in, 1, &y), i == 3 ? TL_EUSAGE : TL_OK);
        hash(&r, after);
        assert_true((strcmp(before, after) == 0) == (i == 3));
        if (i == 0)
            assert_int_equal(tl_checkpoint_save(r.m, r.o[0], path, NULL, 0), TL_OK);
        tl_error_clear(r.t);
        tl_tape_reset(r.t);
    }
    assert_int_equal(tl_opt_steps(r.o[0]), 3);
    tl_free(c);
    end(&r);
}

/* A rate that was set after the file was written ends. */
static void a_rate_that_the_file_lacks(void **unused)
{
    (void)unused;
    run r = begin(1, "aa");
    assert_int_equal(step(&r, 0, 0), TL_OK);
    for (int set = 0; set < 2; set++) {
        assert_int_equal(tl_checkpoint_save(r.m, r.o[0], path, NULL, 0), TL_OK);
        tl_opt_lr_set(r.o[0], 0.25);
        assert_int_equal(tl_checkpoint_load(r.m, r.o[0], path, NULL, NULL, 0), TL_OK);
        assert_true(tl_opt_lr(r.o[0]) == (set ? 0.5 : 0.01));
        tl_opt_lr_set(r.o[0], 0.5);
    }
    end(&r);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_dir, remove_dir)
const struct CMUnitTest tl_tests_two_optimizers[] = {
    TEST(a_file_for_each_resumes_the_run),  TEST(a_step_without_its_own_file_is_refused),
    TEST(the_other_keeps_its_state),        TEST(one_file_is_not_for_two),
    TEST(what_nobody_owns_is_not_kept),     TEST(weights_are_for_anyone),
    TEST(weights_alone_leave_state),        TEST(weights_alone_end_the_wait),
    TEST(what_was_its_own_may_be_anothers), TEST(a_file_from_before_the_other),
    TEST(a_rate_that_the_file_lacks),       TEST(a_run_that_goes_back),
    TEST(a_compiled_run_that_goes_back),
};
const size_t tl_tests_two_optimizers_count = sizeof tl_tests_two_optimizers /
                                             sizeof tl_tests_two_optimizers[0];
