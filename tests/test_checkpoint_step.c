/* A checkpoint taken within a step: gradients come back bit for bit, and a file whose gradients
 * cannot be right is refused whole. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <tally_extend.h>

#include "tensor/files/safetensors.h"
#include "tensor/memory.h"
#include "tests/support/fresh_dir.h"

extern const struct CMUnitTest tl_tests_checkpoint_step[];
extern const size_t tl_tests_checkpoint_step_count;

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *o;
} run;

static tl_op turn; /* a view of a user's, if it has a name */

/* w is used twice, b once, by a fold. */
static tl_tensor loss(run *r, float x)
{
    static const tl_shape dims = {2, {1, 0}};
    tl_tensor w = tl_param(r->t, r->m, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1),
              b = tl_param(r->t, r->m, "b", TL_F32, TL_DIMS(2), TL_INIT_NORMAL, 1);
    w = turn.name == NULL ? w : tl_apply1(TL_AT(r->t), &turn, &dims, &w, 1);
    tl_tensor h = tl_matmul(r->t, tl_fill(r->t, TL_F32, TL_DIMS(3, 2), (double)x), w);
    return tl_sum(r->t, tl_square(r->t, tl_add(r->t, tl_matmul(r->t, h, w), b)), TL_ALL, false);
}

static run begin(void)
{
    run r = {.m = tl_model_new(.seed = 4)};
    r.t = tl_tape_new(r.m);
    r.o = tl_adamw_new(r.m, .lr = 0.1);
    loss(&r, 1);
    tl_tape_reset(r.t);
    return r;
}

static void micro(run *r, float x)
{
    assert_int_equal(tl_backward(r->t, loss(r, x)), TL_OK);
    tl_tape_reset(r->t);
}

static void end(run *r) { tl_free(r->o, r->t, r->m); }

static void come_back(void)
{
    run a = begin(), b = begin();
    char want[65], got[65];
    micro(&a, 1);
    assert_int_equal(tl_accumulating_count(a.t), 2);
    assert_int_equal(tl_checkpoint_save_tape(a.t, a.o, path, NULL, 0), TL_OK);
    assert_int_equal(tl_checkpoint_load_tape(b.t, b.o, path, NULL, NULL, 0), TL_OK);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 2; i++) {
            tl_sha256(a.t, tl_grad(a.t, tl_model_find(a.m, i ? "w" : "b")), want);
            tl_sha256(b.t, tl_grad(b.t, tl_model_find(b.m, i ? "w" : "b")), got);
            assert_string_equal(got, want);
        }
        micro(&a, -0.3f);
        micro(&b, -0.3f);
    }
    assert_int_equal(tl_step(a.o, a.t), TL_OK);
    assert_int_equal(tl_step(b.o, b.t), TL_OK);
    tl_model_sha256(a.m, want);
    tl_model_sha256(b.m, got);
    assert_string_equal(got, want);
    /* after the step there is nothing under way: the file is one without gradients */
    assert_int_equal(tl_checkpoint_save_tape(a.t, a.o, path, NULL, 0), TL_OK);
    assert_int_equal(tl_checkpoint_load(a.m, a.o, path, NULL, NULL, 0), TL_OK);
    end(&a);
    end(&b);
}

/* The second time w is seen through a view whose name has the dots of kinds of use and parameters.
 */
static void gradients_come_back(void **unused)
{
    (void)unused;
    come_back();
    turn = *tl_op_find("permute");
    turn.name = "lab.turn.w";
    come_back();
    turn = (tl_op){0};
}

/* A micro-batch that uses w @ w, which is made of parameters alone, or not. */
static void derived(run *r, bool uses)
{
    tl_tensor x = tl_data(r->t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(2, 2)),
              w = tl_model_find(r->m, "w"),
              y = uses ? tl_matmul(r->t, x, tl_matmul(r->t, w, w))
                       : tl_add(r->t, x, tl_model_find(r->m, "b"));
    tl_tensor sum = tl_sum(r->t, tl_square(r->t, y), TL_ALL, false);
    assert_int_equal(tl_backward(r->t, sum, .partial = true, .ragged = true), TL_OK);
    tl_tape_reset(r->t);
}

/* NUMERICS 12.7: what has come to such a value goes on once a micro-batch after the stop uses it.
 */
static void what_waits_in_a_value_needs_its_use(void **unused)
{
    (void)unused;
    run a = begin();
    char want[65], got[65];
    derived(&a, true);
    assert_int_equal(tl_checkpoint_save_tape(a.t, a.o, path, NULL, 0), TL_OK);
    derived(&a, true);
    assert_int_equal(tl_step(a.o, a.t), TL_OK);
    tl_model_sha256(a.m, want);
    for (int uses = 0; uses < 2; uses++) {
        run b = begin();
        assert_int_equal(tl_checkpoint_load_tape(b.t, b.o, path, NULL, NULL, 0), TL_OK);
        derived(&b, uses);
        assert_int_equal(tl_step(b.o, b.t), uses ? TL_OK : TL_EUSAGE);
        if (!uses)
            assert_non_null(strstr(tl_error(b.t), "from a checkpoint or from another rank"));
        tl_model_sha256(b.m, got);
        assert_int_equal(strcmp(got, want) == 0, uses);
        end(&b);
    }
    end(&a);
}

static void refused(run *r, bool tape, tl_status want, const char *word)
{
    char before[65], after[65];
    int held = tl_accumulating_count(r->t);
    tl_model_sha256(r->m, before);
    tl_status s = tape ? tl_checkpoint_load_tape(r->t, r->o, path, NULL, NULL, 0)
                       : tl_checkpoint_load(r->m, r->o, path, NULL, NULL, 0);
    if (s != want || strstr(tl_error(r->m), word) == NULL)
        fail_msg("%s with '%s' wanted, got %s: %s", tl_status_name(want), word, tl_status_name(s),
                 tl_error(r->m));
    tl_error_clear(r->m);
    tl_model_sha256(r->m, after);
    assert_string_equal(after, before);
    assert_int_equal(tl_accumulating_count(r->t), held);
    assert_false(tl_failed(r->t));
}

static void to_the_wrong_place(void **unused)
{
    (void)unused;
    run a = begin();
    micro(&a, 1);
    assert_int_equal(tl_checkpoint_save_tape(a.t, a.o, path, NULL, 0), TL_OK);
    tl_model_freeze(a.m, "b", true); /* what could not be loaded is not written */
    assert_int_equal(tl_checkpoint_save_tape(a.t, a.o, path, NULL, 0), TL_EUSAGE);
    assert_non_null(strstr(tl_error(a.m), "'b' was frozen after it got a gradient"));
    tl_error_clear(a.m);
    tl_model_freeze(a.m, "b", false);
    refused(&a, false, TL_EUSAGE, "a step that is not finished");
    refused(&a, true, TL_EUSAGE, "the tape holds gradients");
    tl_grad_clear(a.t);
    tl_model_freeze(a.m, "b", true);
    refused(&a, true, TL_EFORMAT, "belongs to no accumulator");
    end(&a);
}

/* A right file but for one more entry, or one in another's place. */
static void lie(const char *name, tl_dtype dtype, tl_shape shape, tl_status want, const char *word)
{
    static int64_t data[8] = {2, 0};
    run a = begin();
    tl_st_entry e[8];
    int n = 0;
    for (; n < 2; n++)
        e[n] = (tl_st_entry){tl_model_at(a.m, n).name, tl_model_at(a.m, n).array};
    e[n++] = (tl_st_entry){name, tl_array_make(dtype, &shape, data)};
    e[n++] = (tl_st_entry){"grad.1.matmul:1.w", tl_array_make(TL_F32, &TL_DIMS(2, 2), data)};
    tl_st_meta meta[2] = {{"tally.optimizer", "adamw"}, {"tally.steps", "0"}};
    assert_int_equal(tl_st_write(path, e, n, meta, 2, NULL), TL_OK);
    if (want == TL_OK) {
        assert_int_equal(tl_checkpoint_load_tape(a.t, a.o, path, NULL, NULL, 0), TL_OK);
        assert_int_equal(tl_accumulating_count(a.t), 2);
    } else {
        refused(&a, true, want, word);
    }
    end(&a);
}

static void gradients_that_lie(void **unused)
{
    (void)unused;
    lie("grad.0.sum.w", TL_F64, TL_DIMS(2, 2), TL_OK, "");
    lie("grad.0..b", TL_I64, TL_SCALAR, TL_OK, "");
    lie("grad.0.sum.w", TL_F32, TL_DIMS(4), TL_ESHAPE, "'grad.0.sum.w' is [4] F32 there");
    lie("grad.0.sum.w", TL_BF16, TL_DIMS(2, 2), TL_ESHAPE, "is [2, 2] BF16 there");
    lie("grad.99999999999999999999.sum.w", TL_F32, TL_DIMS(2, 2), TL_EFORMAT,
        "belongs to no accumulator");
    lie("grad.0.sum.=0123456789abcdef", TL_F32, TL_DIMS(3), TL_OK, "");
    lie("grad.0.sum.=0123456789abcdef", TL_I64, TL_DIMS(3), TL_EFORMAT,
        "belongs to no accumulator");
    lie("grad.0.sum.v", TL_F32, TL_DIMS(2), TL_EFORMAT, "'grad.0.sum.v' belongs to no accumulator");
    lie("grad.0.w", TL_F32, TL_DIMS(2, 2), TL_ENAME, "'grad.0.w' that the model has not");
    lie("grad.x.sum.w", TL_F32, TL_DIMS(2, 2), TL_ENAME, "'grad.x.sum.w' that the model has not");
}

/* Out of memory at every allocation of saving and loading: nothing changes, and it works
 * afterwards. */
static void out_of_memory(void **unused)
{
    (void)unused;
    run a = begin(), b = begin();
    char before[65], after[65];
    tl_status s = TL_ENOMEM;
    int n = 0;
    micro(&a, 1);
    tl_model_sha256(b.m, before);
    while (s != TL_OK && n < 2000) {
        tl_alloc_fail_after(++n);
        s = tl_checkpoint_save_tape(a.t, a.o, path, NULL, 0);
        tl_alloc_fail_after(0);
        assert_true(s == TL_OK || temp_dir_count(&dir) == 0);
        assert_false(tl_failed(a.t) && s == TL_OK);
        tl_error_clear(a.m);
    }
    assert_in_range(n, 4, 1999);
    for (s = TL_ENOMEM, n = 0; s != TL_OK && n < 2000;) {
        tl_alloc_fail_after(++n);
        s = tl_checkpoint_load_tape(b.t, b.o, path, NULL, NULL, 0);
        tl_alloc_fail_after(0);
        tl_error_clear(b.m);
        tl_model_sha256(b.m, after);
        assert_string_equal(before, after); /* both models are of one seed */
        assert_int_equal(tl_accumulating_count(b.t), s == TL_OK ? 2 : 0);
        assert_false(tl_failed(b.t));
    }
    assert_in_range(n, 4, 1999);
    micro(&a, 2);
    micro(&b, 2);
    assert_int_equal(tl_step(a.o, a.t), TL_OK);
    assert_int_equal(tl_step(b.o, b.t), TL_OK);
    tl_model_sha256(a.m, before);
    tl_model_sha256(b.m, after);
    assert_string_equal(after, before);
    end(&a);
    end(&b);
}

/* An optimizer of a part whose model has grown updates again once a checkpoint of all is there. */
static void a_whole_checkpoint_ends_a_refusal(void **unused)
{
    (void)unused;
    run a = begin(), b = {.m = tl_model_new(.seed = 4)};
    micro(&a, 1);
    assert_int_equal(tl_step(a.o, a.t), TL_OK);
    assert_int_equal(tl_checkpoint_save(a.m, a.o, path, NULL, 0), TL_OK);
    b.t = tl_tape_new(b.m);
    b.o = tl_adamw_new(b.m, .lr = 0.1, .part = 0, .parts = 2);
    tl_tensor w = tl_param(b.t, b.m, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1);
    assert_int_equal(tl_backward(b.t, tl_sum(b.t, w, TL_ALL, false)), TL_OK);
    assert_int_equal(tl_step(b.o, b.t), TL_OK);
    tl_tape_reset(b.t);
    micro(&b, 1);
    assert_int_equal(tl_step(b.o, b.t), TL_EUSAGE);
    assert_non_null(strstr(tl_error(b.t), "parameters have been added to a model"));
    tl_error_clear(b.t);
    assert_int_equal(tl_checkpoint_load(b.m, b.o, path, NULL, NULL, 0), TL_OK);
    micro(&b, 1);
    assert_int_equal(tl_step(b.o, b.t), TL_OK);
    end(&a);
    end(&b);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_dir, remove_dir)
const struct CMUnitTest tl_tests_checkpoint_step[] = {
    TEST(gradients_come_back), TEST(what_waits_in_a_value_needs_its_use),
    TEST(to_the_wrong_place),  TEST(gradients_that_lie),
    TEST(out_of_memory),       TEST(a_whole_checkpoint_ends_a_refusal),
};
const size_t tl_tests_checkpoint_step_count = sizeof tl_tests_checkpoint_step /
                                              sizeof tl_tests_checkpoint_step[0];
