/* What stops half way, or comes too late: a backward or a step that an error of the model ends, a
 * load that cannot be finished, a leaf marked or a parameter thawed after it was used. Nothing of
 * it passes in silence, and nothing is left half done. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <tally_extend.h>
#include "tests/support/expect.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_half_way[];
extern const size_t tl_tests_half_way_count;

static tl_tensor pair(tl_tape *t, float x)
{
    const float data[2] = {x, x};
    return tl_data(t, data, TL_F32, TL_DIMS(2));
}

static tl_tensor ones(tl_tape *t, tl_model *m, const char *name)
{
    return tl_param(t, m, name, TL_F32, TL_DIMS(2), .kind = TL_INIT_ONES);
}

static tl_tensor total(tl_tape *t, tl_tensor x) { return tl_sum(t, x, TL_ALL, false); }

/* ---- too late ---- */

/* How the result depends on a use of x before its mark. */
enum {
    BY_GRADIENT,
    NOT,
    USED_WITHOUT,
    USED_ONCE_WITHOUT,
    IN_RECORDING_BEFORE,
    BY_MASK,
    BY_CAST,
    DETACHED,
    GOES_ON_WITHOUT,
    ANOTHER_IN_TIME,
    WAYS
};

static void a_use_before_the_mark_is_refused(void **unused)
{
    (void)unused;
    for (int way = 0; way < WAYS; way++) {
        float dx[2];
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor x = pair(t, 3), made = TL_NONE;
        const bool late = way == BY_GRADIENT || way == ANOTHER_IN_TIME;
        int mode = tl_mode_push(t,
                                way == USED_WITHOUT || way == USED_ONCE_WITHOUT ? TL_NO_GRAD : 0);
        tl_tensor before = tl_reshape(t, tl_square(t, tl_reshape(t, x, TL_DIMS(2, 1))), TL_DIMS(2));
        before = way == USED_ONCE_WITHOUT ? tl_square(t, x) : before;
        tl_mode_pop(t, mode);
        if (way == IN_RECORDING_BEFORE)
            tl_tape_reset(t), x = pair(t, 3);
        tl_require_grad(t, x);
        if (way == ANOTHER_IN_TIME)
            tl_require_grad(t, pair(t, 1));
        mode = tl_mode_push(t, way == GOES_ON_WITHOUT ? TL_NO_GRAD : 0);
        if (way == DETACHED)
            before = tl_detach(t, before);
        else if (way == GOES_ON_WITHOUT)
            before = tl_exp(t, before);
        tl_mode_pop(t, mode);
        tl_tensor y = tl_scale(t, x, 3);
        if (way == BY_MASK)
            y = tl_where(t, tl_gt(t, before, pair(t, 2)), y, pair(t, 0));
        else if (way == BY_CAST)
            y = tl_where(t, tl_cast(t, before, TL_BOOL), y, pair(t, 0));
        else if (way != NOT && way != IN_RECORDING_BEFORE)
            y = tl_add(t, y, before);
        y = total(t, y);
        const tl_status want = late ? TL_EUSAGE : TL_OK;
        assert_int_equal(tl_backward(t, y, .retain = true), want);
        if (late) {
            expect_failure(t, TL_EUSAGE, "reshape (tests/test_half_way.c:");
        } else {
            assert_int_equal(tl_keep(t, tl_grad(t, x), dx, sizeof dx), TL_OK);
            assert_true(dx[0] == 3);
        }
        assert_int_equal(tl_gradients(t, y, &x, 1, TL_NONE, &made), want);
        tl_error_clear(t);
        tl_free(t);
    }
}

/* A constant made of what is frozen is one, compiled, too. */
static void detaches(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                     void *ctx)
{
    tl_model *m = ctx;
    (void)n_in, (void)n_out;
    tl_model_freeze(m, "p", true);
    tl_tensor target = tl_detach(t, tl_square(t, ones(t, m, "p")));
    tl_model_freeze(m, "p", false);
    out[0] = total(t, tl_mul(t, tl_add(t, ones(t, m, "p"), target), in[0]));
    tl_backward(t, out[0]);
}

static void what_is_detached_may_be_thawed(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor x = pair(t, 1), out;
    detaches(t, &x, 1, &out, 1, m);
    expect_no_error(t);
    tl_tape_reset(t);
    tl_grad_clear(t);
    x = pair(t, 1);
    tl_compiled *c = tl_compile(t, detaches, 1, m);
    if (tl_run(c, &x, 1, &out) != TL_OK)
        fail_msg("%s", tl_error(t));
    tl_free(c, t, m);
}

enum { AROUND_BACKWARD, AROUND_STEP, STAYS, FREEZINGS };

/* What is frozen while a backward is traced would be thawed when that is planned: it is refused,
 * and so is what stays frozen or thawed. */
typedef struct {
    tl_model *m;
    tl_opt *o;
    int how;
} freezing;

static void freezes(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    const freezing *f = ctx;
    (void)n_in, (void)n_out;
    tl_tensor p = ones(t, f->m, "p"), q = ones(t, f->m, "q");
    tl_model_freeze(f->m, "p", f->how == AROUND_BACKWARD);
    out[0] = total(t, tl_mul(t, tl_mul(t, p, q), in[0]));
    tl_backward(t, out[0]);
    tl_model_freeze(f->m, "p", f->how != AROUND_BACKWARD);
    tl_step(f->o, t);
    tl_model_freeze(f->m, "p", f->how == STAYS);
}

static void freezing_while_it_is_traced(void **unused)
{
    (void)unused;
    for (int how = 0; how < FREEZINGS; how++) {
        char hex[2][65];
        for (int compiled = 0; compiled < 2; compiled++) {
            tl_model *m = tl_model_new(.seed = 1);
            tl_tape *t = tl_tape_new(m);
            freezing f = {m, tl_sgd_new(m, .lr = 0.1), how};
            ones(t, m, "p"), ones(t, m, "q");
            tl_compiled *c = tl_compile(t, freezes, 1, &f);
            for (int i = 0; i < 3; i++) {
                tl_tensor x = pair(t, 1), out;
                if (compiled)
                    tl_run(c, &x, 1, &out);
                else
                    freezes(t, &x, 1, &out, 1, &f);
                tl_tape_reset(t);
            }
            assert_int_equal(tl_model_sha256(m, hex[compiled]), TL_OK);
            if (compiled && how != AROUND_STEP)
                expect_failure(t, TL_ETRACED, "has frozen or thawed parameters");
            else
                expect_no_error(t);
            tl_free(c, f.o, t, m);
        }
        if (how == AROUND_STEP)
            assert_string_equal(hex[0], hex[1]);
    }
}

static void a_use_before_the_thaw_is_refused(void **unused)
{
    (void)unused;
    for (int reset = 0; reset < 2; reset++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor x = pair(t, 1), p = ones(t, m, "p");
        tl_model_freeze(m, "p", true);
        tl_tensor before = tl_square(t, p);
        tl_model_freeze(m, "p", false);
        if (reset)
            tl_tape_reset(t), x = pair(t, 1), before = tl_square(t, p);
        tl_status s = tl_backward(t, total(t, tl_add(t, tl_mul(t, before, x), tl_mul(t, p, x))));
        if (reset) {
            float dp[2];
            assert_int_equal(s, TL_OK);
            assert_int_equal(tl_keep(t, tl_grad(t, p), dp, sizeof dp), TL_OK);
            assert_true(dp[0] == 3);
        } else {
            assert_int_equal(s, TL_EUSAGE);
            expect_failure(t, TL_EUSAGE, "used p before it took a gradient");
        }
        tl_free(t, m);
    }
}

/* ---- half way ---- */

typedef struct {
    tl_model *m;
    int left; /* calls of `gave` or `ran` until the model fails */
} saboteur;

static void harm(saboteur *s)
{
    if (s->left > 0 && --s->left == 0)
        tl_save(s->m, "/nowhere/at/all");
}

static void harm_at_gradient(void *ctx, tl_tape *t, const tl_given *g)
{
    (void)t, (void)g, harm(ctx);
}

static tl_status harm_at_update(void *ctx, tl_tape *t, const tl_seen *seen)
{
    (void)t;
    if (seen->phase & TL_PHASE_UPDATE && strcmp(seen->call->op->name, "sgd") == 0)
        harm(ctx);
    return TL_OK;
}

static tl_tensor product(tl_tape *t, tl_model *m)
{
    return total(t, tl_mul(t, tl_mul(t, pair(t, 1), ones(t, m, "a")), ones(t, m, "b")));
}

/* The error is the tape's, however well the model does afterwards. */
static void half_a_backward_gives_no_step(void **unused)
{
    static const tl_observer observer = {.gave = harm_at_gradient};
    temp_dir dir;
    char path[1024], before[65], after[65];
    (void)unused;
    assert_true(temp_dir_make(&dir));
    temp_dir_file(path, &dir, "fine");
    for (int at = 1; at < 4; at++) {
        saboteur s = {tl_model_new(.seed = 1), 0};
        tl_tape *t = tl_tape_new(s.m);
        tl_opt *o = tl_sgd_new(s.m, .lr = 1);
        tl_observe(t, &observer, &s);
        assert_int_equal(tl_backward(t, product(t, s.m)), TL_OK);
        tl_model_sha256(s.m, before);
        s.left = at;
        assert_int_equal(tl_backward(t, product(t, s.m)), TL_EIO);
        /* read, by the tape's or the model's name: the next call forgets it */
        assert_non_null(strstr(tl_error(at % 2 ? (void *)t : s.m), "/nowhere"));
        assert_int_equal(tl_save(s.m, path), TL_OK);
        assert_int_equal(tl_step(o, t), TL_EIO);
        tl_model_sha256(s.m, after);
        assert_string_equal(after, before);
        expect_failure(t, TL_EIO, "/nowhere");
        tl_free(o, t, s.m);
    }
    temp_dir_remove(&dir);
}

static int changes; /* of the model's error, by what hears of gradients */

static void fail_at_model(void *ctx, tl_tape *t, const tl_given *g)
{
    (void)t, (void)g;
    changes++;
    tl_save(ctx, "/nowhere/at/all");
}

static void clear_model(void *ctx, tl_tape *t) { (void)t, tl_error_clear(ctx); }

/* As another thread's would be: what is made of parameters is noted all the same. */
static void an_error_of_the_model_cleared_meanwhile_costs_nothing(void **unused)
{
    static const tl_observer observer = {.gave = fail_at_model, .backward_ends = clear_model};
    char hex[2][65];
    (void)unused;
    for (int harmed = 0; harmed < 2; harmed++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor x = pair(t, 3);
        for (int i = 0; i < 4; i++) {
            char name[2] = {(char)('a' + i), '\0'};
            tl_tensor w = tl_param(t, m, name, TL_F32, TL_DIMS(2), TL_INIT_NORMAL, 1);
            x = tl_mul(t, tl_mul(t, x, tl_scale(t, w, 0.75)), w);
        }
        if (harmed)
            tl_observe(t, &observer, m);
        changes = 0;
        assert_int_equal(tl_backward(t, total(t, x)), TL_OK);
        assert_true(!harmed || changes > 4);
        if (harmed)
            tl_observe_end(t, &observer);
        tl_tensor da = tl_grad(t, tl_model_find(m, "a")), dd = tl_grad(t, tl_model_find(m, "d"));
        assert_int_equal(tl_sha256(t, tl_concat(t, ((tl_tensor[]){da, dd}), 2, 0), hex[harmed]),
                         TL_OK);
        tl_free(t, m);
    }
    assert_string_equal(hex[0], hex[1]);
}

/* ---- a read that fails in a callback ---- */

static void read_badly(void *ctx, tl_tape *t, const tl_given *g)
{
    int *left = ctx;
    if (--*left == 0)
        tl_item(t, g->dx[0]); /* of two elements */
}

static void read_badly_at_once(tl_tape *t, void *ctx)
{
    if (--*(int *)ctx == 0)
        tl_item(t, pair(t, 1));
}

static void doubly(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    tl_model *m = *(tl_model **)ctx;
    (void)n_in, (void)n_out;
    out[0] = total(t, tl_mul(t, tl_mul(t, in[0], ones(t, m, "a")), ones(t, m, "b")));
    tl_backward(t, out[0]);
    tl_host(t, TL_AFTER, read_badly_at_once, (int *)((tl_model **)ctx)[1]);
}

/* Called and compiled: it ends the backward that is under way, whose half is stepped by nobody. */
static void a_read_in_a_callback_ends_what_is_under_way(void **unused)
{
    static const tl_observer observer = {.gave = read_badly};
    (void)unused;
    for (int compiled = 0; compiled < 2; compiled++)
        for (int at = 1; at < 3 - compiled; at++) {
            tl_model *m = tl_model_new(.seed = 1);
            tl_tape *t = tl_tape_new(m);
            tl_opt *o = tl_sgd_new(m, .lr = 1);
            int left = 0;
            void *both[] = {m, &left};
            tl_compiled *c = tl_compile(t, doubly, 1, both);
            tl_tensor x = pair(t, 3), y;
            if (!compiled)
                tl_observe(t, &observer, &left);
            assert_int_equal(compiled ? tl_run(c, &x, 1, &y) : tl_backward(t, product(t, m)),
                             TL_OK);
            left = at;
            tl_status s = compiled ? tl_run(c, &x, 1, &y) : tl_backward(t, product(t, m));
            assert_int_equal(s, TL_ESHAPE);
            expect_failure(t, TL_ESHAPE, "tl_item: a tensor of shape [2]");
            assert_int_equal(tl_step(o, t), TL_EUSAGE);
            expect_failure(t, TL_EUSAGE, "no parameter has a gradient");
            tl_free(c, o, t, m);
        }
}

/* What comes to a and b by their product is told them when a step asks for it. */
static void half_of_what_waits_gives_no_step(void **unused)
{
    static const tl_observer observer = {.gave = harm_at_gradient};
    temp_dir dir;
    char path[1024], before[65], after[65];
    (void)unused;
    assert_true(temp_dir_make(&dir));
    saboteur s = {tl_model_new(.seed = 1), 0};
    tl_tape *t = tl_tape_new(s.m);
    tl_opt *o = tl_sgd_new(s.m, .lr = 1);
    tl_observe(t, &observer, &s);
    tl_tensor both = tl_mul(t, ones(t, s.m, "a"), ones(t, s.m, "b"));
    tl_tensor y = tl_mul(t, tl_mul(t, pair(t, 1), both), ones(t, s.m, "c"));
    assert_int_equal(tl_backward(t, total(t, y)), TL_OK);
    tl_model_sha256(s.m, before);
    s.left = 1;
    assert_int_equal(tl_step(o, t), TL_EIO);
    assert_non_null(strstr(tl_error(t), "/nowhere"));
    assert_int_equal(tl_save(s.m, temp_dir_file(path, &dir, "fine")), TL_OK);
    assert_int_equal(tl_step(o, t), TL_EIO);
    tl_model_sha256(s.m, after);
    assert_string_equal(after, before);
    tl_free(o, t, s.m);
    temp_dir_remove(&dir);
}

typedef struct {
    saboteur s;
    tl_opt *o;
    int announced;
} stepping;

static void harm_by_host(tl_tape *t, void *ctx) { (void)t, harm(&((stepping *)ctx)->s); }

static void announce(tl_tape *t, void *ctx)
{
    stepping *p = ctx;
    p->announced++;
    assert_false(tl_failed(t));
}

static void steps(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    stepping *p = ctx;
    (void)n_in, (void)n_out;
    out[0] = total(t, tl_mul(t, in[0], ones(t, p->s.m, "p")));
    tl_host(t, TL_AFTER, harm_by_host, p);
    tl_host(t, TL_AFTER, announce, p);
    tl_backward(t, out[0]);
    tl_step(p->o, t);
}

static void steps_twice(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                        void *ctx)
{
    stepping *p = ctx;
    (void)n_in, (void)n_out;
    for (int i = 0; i < 2; i++) {
        out[0] = total(t, tl_mul(t, in[0], ones(t, p->s.m, "p")));
        tl_backward(t, out[0]);
        tl_host(t, TL_AFTER, announce, p);
        tl_step(p->o, t);
    }
}

/* What the first step of a program was is known though the second is stopped. */
static void a_part_that_is_over_is_over(void **unused)
{
    static const tl_observer observer = {.ran = harm_at_update};
    (void)unused;
    stepping p = {.s = {tl_model_new(.seed = 1), 0}};
    tl_tape *t = tl_tape_new(p.s.m);
    p.o = tl_sgd_new(p.s.m, .lr = 1, .clip = 9);
    tl_observe(t, &observer, &p.s);
    tl_tensor x = pair(t, 1), out;
    tl_compiled *c = tl_compile(t, steps_twice, 1, &p);
    p.s.left = 2;
    assert_int_equal(tl_run(c, &x, 1, &out), TL_EIO);
    assert_int_equal(tl_opt_steps(p.o), 1);
    assert_int_equal(p.announced, 1);
    assert_true(tl_opt_grad_norm(p.o) > 1 && tl_opt_grad_norm(p.o) < 2);
    tl_error(t);
    tl_free(c, p.o, t, p.s.m);
}

static tl_status fail_at_update(void *ctx, tl_tape *t, const tl_seen *seen)
{
    int *left = ctx;
    if (seen->phase & TL_PHASE_UPDATE && strcmp(seen->call->op->name, "sgd") == 0 && --*left == 0)
        return tl_tape_fail(TL_AT(t), TL_EIO, "the disk is full");
    return TL_OK;
}

/* So is the work on the host that belongs to it: it finds a tape that has not failed. */
static void the_hooks_of_a_part_that_is_over_follow(void **unused)
{
    static const tl_observer observer = {.ran = fail_at_update};
    (void)unused;
    for (int left = 1; left <= 2; left++) {
        int n = left;
        stepping p = {.s = {tl_model_new(.seed = 1), 0}};
        tl_tape *t = tl_tape_new(p.s.m);
        p.o = tl_sgd_new(p.s.m, .lr = 1);
        tl_observe(t, &observer, &n);
        tl_tensor x = pair(t, 1), out;
        tl_compiled *c = tl_compile(t, steps_twice, 1, &p);
        assert_int_equal(tl_run(c, &x, 1, &out), TL_EIO);
        assert_int_equal(p.announced, left - 1);
        assert_int_equal(tl_opt_steps(p.o), left - 1);
        expect_failure(t, TL_EIO, "the disk is full");
        tl_free(c, p.o, t, p.s.m);
    }
}

/* Work of the program's own that fails behind an update leaves the optimizer where it is: the run
 * goes on as one in which nothing failed. */
static void a_compiled_step_is_whole(void **unused)
{
    temp_dir dir;
    char path[1024], hash[2][65];
    (void)unused;
    assert_true(temp_dir_make(&dir));
    temp_dir_file(path, &dir, "fine");
    for (int fails = 0; fails < 2; fails++) {
        stepping p = {.s = {tl_model_new(.seed = 1), 0}};
        tl_tape *t = tl_tape_new(p.s.m);
        p.o = tl_adamw_new(p.s.m, .lr = 0.1);
        tl_compiled *c = tl_compile(t, steps, 1, &p);
        for (int i = 1; i <= 4; i++) {
            tl_tensor x = pair(t, (float)i), out;
            const bool now = fails && i == 2;
            p.s.left = now;
            assert_int_equal(tl_run(c, &x, 1, &out), now ? TL_EIO : TL_OK);
            assert_int_equal(tl_opt_steps(p.o), i);
            if (now) {
                assert_non_null(strstr(tl_error(t), "/nowhere"));
                assert_int_equal(tl_save(p.s.m, path), TL_OK);
                tl_error_clear(t);
            }
            tl_tape_reset(t);
        }
        assert_int_equal(p.announced, fails ? 3 : 4);
        tl_model_sha256(p.s.m, hash[fails]);
        tl_free(c, p.o, t, p.s.m);
    }
    assert_string_equal(hash[1], hash[0]);
    temp_dir_remove(&dir);
}

static void half_a_step_stays_an_error(void **unused)
{
    static const tl_observer observer = {.ran = harm_at_update};
    temp_dir dir;
    char path[1024];
    (void)unused;
    assert_true(temp_dir_make(&dir));
    saboteur s = {tl_model_new(.seed = 1), 1};
    tl_tape *t = tl_tape_new(s.m);
    tl_opt *o = tl_sgd_new(s.m, .lr = 1);
    tl_observe(t, &observer, &s);
    assert_int_equal(tl_backward(t, product(t, s.m)), TL_OK);
    assert_int_equal(tl_step(o, t), TL_EIO);
    assert_non_null(strstr(tl_error(s.m), "/nowhere"));
    assert_int_equal(tl_save(s.m, temp_dir_file(path, &dir, "fine")), TL_OK);
    assert_int_equal(tl_error_status(t), TL_EIO);
    expect_failure(t, TL_EIO, "/nowhere");
    tl_free(o, t, s.m);
    temp_dir_remove(&dir);
}

static unsigned phase;
static tl_status note_phase(void *ctx, tl_tape *t, const tl_seen *seen)
{
    (void)ctx, (void)t;
    phase = seen->phase;
    return TL_OK;
}

static void a_step_that_is_refused_is_over(void **unused)
{
    static const tl_observer observer = {.records = note_phase};
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 1);
    tl_observe(t, &observer, NULL);
    product(t, m);
    assert_int_equal(tl_step(o, t), TL_EUSAGE);
    tl_error_clear(t);
    phase = 9;
    tl_square(t, pair(t, 1));
    assert_int_equal(phase, 0);
    tl_free(o, t, m);
}

/* The state of one parameter has no owner, that of the other has: neither is touched. */
static void a_load_that_is_refused_takes_no_state(void **unused)
{
    temp_dir dir;
    char path[1024];
    float state[2];
    (void)unused;
    assert_true(temp_dir_make(&dir));
    temp_dir_file(path, &dir, "c");
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *first = tl_adamw_new(m, .lr = 0.1);
    tl_backward(t, product(t, m));
    tl_step(first, t);
    tl_tape_reset(t);
    assert_int_equal(tl_checkpoint_save(m, first, path, NULL, 0), TL_OK);
    tl_free(first);
    tl_model_freeze(m, "a", true);
    tl_opt *second = tl_adamw_new(m, .lr = 0.1);
    tl_backward(t, product(t, m));
    assert_int_equal(tl_step(second, t), TL_OK); /* it has b's state */
    tl_tape_reset(t);
    tl_model_freeze(m, "a", false);
    tl_opt *third = tl_adamw_new(m, .lr = 0.1);
    assert_int_equal(tl_checkpoint_load(m, third, path, NULL, NULL, 0), TL_EUSAGE);
    assert_non_null(strstr(tl_error(m), "'adamw.m.b' is the state of another optimizer"));
    tl_error_clear(m);
    assert_int_equal(tl_keep(t, tl_model_find(m, "adamw.m.a"), state, sizeof state), TL_OK);
    assert_true(state[0] != 0);
    tl_free(third, second, t, m);
    temp_dir_remove(&dir);
}

static tl_tensor attend(tl_tape *t, tl_model *m, int64_t n)
{
    return tl_self_attention(t, m, "attention", tl_zeros(t, TL_F32, TL_DIMS(1, n, 8)), .heads = 2,
                             .pairing = TL_ROTARY_HALF);
}

/* Tables of rotary positions follow from their names: one program may have used longer ones. */
static void a_checkpoint_loads_whatever_lengths_it_has_seen(void **unused)
{
    temp_dir dir;
    char path[1024];
    (void)unused;
    assert_true(temp_dir_make(&dir));
    tl_model *m[2] = {tl_model_new(.seed = 1), tl_model_new(.seed = 2)};
    tl_tape *t[2] = {tl_tape_new(m[0]), tl_tape_new(m[1])};
    attend(t[0], m[0], 3);
    attend(t[0], m[0], 200);
    attend(t[1], m[1], 3);
    assert_int_equal(tl_checkpoint_save(m[0], NULL, temp_dir_file(path, &dir, "c"), NULL, 0),
                     TL_OK);
    if (tl_checkpoint_load(m[1], NULL, path, NULL, NULL, 0) != TL_OK)
        fail_msg("%s", tl_error(m[1]));
    tl_free(t[0], m[0]);
    static const char *const strangers[] = {
        "rope.2x2.10000.half.tan",  "rope.2x2.10000.third.cos",      "rope.2x3.10000.half.cos",
        "rope.2x2.my.half.cos",     "rope.2x2.10000.half.f64.cos",   "rope.2x2.half.cos",
        "rope.2x2.10000.half.more", "rope.2x2.10000.half.cos.scale", "rope.2.half.cos"};
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) { /* they are no tables */
        m[0] = tl_model_new(.seed = 1);
        t[0] = tl_tape_new(m[0]);
        attend(t[0], m[0], 3);
        tl_buffer(t[0], m[0], strangers[i], TL_F32, TL_DIMS(2, 2));
        assert_int_equal(tl_checkpoint_save(m[0], NULL, path, NULL, 0), TL_OK);
        if (tl_checkpoint_load(m[1], NULL, path, NULL, NULL, 0) != TL_ENAME)
            fail_msg("%s", strangers[i]);
        tl_error_clear(m[1]);
        tl_free(t[0], m[0]);
    }
    tl_free(t[1], m[1]);
    temp_dir_remove(&dir);
}

/* ---- views ---- */

/* Rows of a view that begins within a row of the parameter are no rows of it, so its sums are not
 * added in parts. */
static void a_shifted_view_is_added_as_a_whole(void **unused)
{
    (void)unused;
    for (int64_t from = 0; from < 5; from += 2) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor p = tl_param(t, m, "p", TL_F32, TL_DIMS(5, 4), .kind = TL_INIT_ONES);
        tl_tensor part = tl_slice(t, tl_reshape(t, p, TL_DIMS(20)), 0, from, from + 16, 1);
        tl_tensor x = tl_zeros(t, TL_F32, TL_DIMS(3, 4, 4));
        tl_backward(t, total(t, tl_mul(t, x, tl_reshape(t, part, TL_DIMS(4, 4)))), .put_off = true);
        assert_int_equal(tl_accumulate_parts(t, "p", 10), from % 4 == 0 ? 2 : 1);
        assert_int_equal(tl_accumulate(t, "p"), TL_OK);
        tl_free(t, m);
    }
}

static void an_array_of_what_was_changed_has_no_contents(void **unused)
{
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    const float zero[2] = {0, 0}, one[2] = {1, 1};
    tl_tensor x = tl_reshape(t, pair(t, 2), TL_DIMS(1, 2)), view = tl_reshape(t, x, TL_DIMS(2));
    tl_array a;
    assert_true(tl_array_of(t, view, &a));
    tl_tensor turned = tl_rotary_(t, x, tl_data(t, zero, TL_F32, TL_DIMS(1, 2)),
                                  tl_data(t, one, TL_F32, TL_DIMS(1, 2)), TL_ROTARY_HALF);
    assert_true(tl_array_of(t, view, &a) && a.data == NULL);
    assert_true(tl_array_of(t, turned, &a) && a.data != NULL);
    expect_no_error(t);
    tl_free(t);
}

/* ---- a program that runs itself ---- */

static tl_compiled *itself;
static int depth;

/* ctx: the handle that the user passed. */
static void again(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    tl_tensor inner = TL_NONE;
    (void)n_in, (void)n_out;
    if (depth-- > 0)
        assert_int_equal(tl_run(itself, ctx, 1, &inner), TL_EUSAGE);
    out[0] = tl_square(t, in[0]);
}

static void a_program_that_runs_itself_is_no_danger(void **unused)
{
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor in = TL_NONE, out;
    itself = tl_compile(t, again, 1, &in);
    for (int64_t n = 1; n < 12; n++) {
        in = tl_scale(t, tl_zeros(t, TL_F32, TL_DIMS(n)), 1);
        depth = 2;
        assert_int_equal(tl_run(itself, &in, 1, &out), TL_EUSAGE);
        assert_non_null(strstr(tl_error(t), "called inside a traced function"));
        tl_error_clear(t);
        depth = 0;
        assert_int_equal(tl_run(itself, &in, 1, &out), TL_OK);
    }
    tl_free(itself, t);
}

static void adds(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out;
    out[0] = tl_mul(t, in[0], tl_param(t, ctx, "w", TL_F32, TL_DIMS(1), TL_INIT_ZEROS, 0));
    tl_backward(t, out[0]);
}

/* A batch of four; before or after what the second one adds, the model fails, and is cleared: an
 * error that has kept nothing from the batch costs nothing, one that has costs what there was. */
static void a_cleared_error_costs_what_it_kept_away(void **unused)
{
    (void)unused;
    for (int way = 0; way < 6; way++) {
        const bool compiled = way % 2, before = way / 2 == 1, after = way / 2 == 2;
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 1);
        tl_compiled *g = tl_compile(t, adds, 1, m);
        for (int i = 0; i < 4; i++) {
            tl_tensor x = tl_data(t, (&(float){(float)(1 << i)}), TL_F32, TL_DIMS(1)), y;
            if (before && i == 1)
                assert_int_equal(tl_save(m, "/nowhere/at/all"), TL_EIO);
            if (compiled)
                tl_run(g, &x, 1, &y);
            else
                adds(t, &x, 1, &y, 1, m);
            if (after && i == 1)
                assert_int_equal(tl_save(m, "/nowhere/at/all"), TL_EIO);
            if (i == 1)
                assert_int_equal(tl_failed(t), before || after);
            tl_error(t);
            tl_error_clear(t);
            if (i < 3)
                tl_tape_reset(t);
        }
        assert_int_equal(tl_step(o, t), TL_OK);
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(1), TL_INIT_ZEROS, 0);
        assert_true(tl_item(t, w) == (before ? -(4 + 8) : -(1 + 2 + 4 + 8)));
        tl_free(g, o, t, m);
    }
}

const struct CMUnitTest tl_tests_half_way[] = {
    cmocka_unit_test(a_use_before_the_mark_is_refused),
    cmocka_unit_test(a_use_before_the_thaw_is_refused),
    cmocka_unit_test(half_a_backward_gives_no_step),
    cmocka_unit_test(an_error_of_the_model_cleared_meanwhile_costs_nothing),
    cmocka_unit_test(a_read_in_a_callback_ends_what_is_under_way),
    cmocka_unit_test(half_of_what_waits_gives_no_step),
    cmocka_unit_test(a_cleared_error_costs_what_it_kept_away),
    cmocka_unit_test(a_compiled_step_is_whole),
    cmocka_unit_test(a_part_that_is_over_is_over),
    cmocka_unit_test(the_hooks_of_a_part_that_is_over_follow),
    cmocka_unit_test(half_a_step_stays_an_error),
    cmocka_unit_test(what_is_detached_may_be_thawed),
    cmocka_unit_test(freezing_while_it_is_traced),
    cmocka_unit_test(a_step_that_is_refused_is_over),
    cmocka_unit_test(a_load_that_is_refused_takes_no_state),
    cmocka_unit_test(a_checkpoint_loads_whatever_lengths_it_has_seen),
    cmocka_unit_test(a_shifted_view_is_added_as_a_whole),
    cmocka_unit_test(an_array_of_what_was_changed_has_no_contents),
    cmocka_unit_test(a_program_that_runs_itself_is_no_danger),
};
const size_t tl_tests_half_way_count = sizeof tl_tests_half_way / sizeof *tl_tests_half_way;
