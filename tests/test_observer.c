/* Observers: what they hear, in which order, and that they change nothing. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <tally_extend.h>

extern const struct CMUnitTest tl_tests_observer[];
extern const size_t tl_tests_observer_count;

enum { STEPS = 3 };

/* Everything that is heard, counted; open: between begins and ends. */
typedef struct {
    int runs, ran, recorded, gave, delivered, begins, ends, updates, updated, cleared, resets,
        freed;
    int phase[8], restored;
    bool running, refuse, order; /* order: something was heard out of turn */
    uint32_t last;
} heard;

static void runs(void *ctx, tl_tape *t, const tl_seen *c)
{
    heard *h = ctx;
    (void)t;
    h->order |= h->running || c->file == NULL || c->call->op == NULL || c->fused < 1;
    h->running = true;
    h->runs++;
    h->phase[c->phase & 7]++;
}

static tl_status ran(void *ctx, tl_tape *t, const tl_seen *c)
{
    heard *h = ctx;
    h->order |= !h->running;
    h->running = false;
    h->ran++;
    if (!h->refuse)
        return TL_OK;
    return tl_tape_fail((tl_at){t, c->file, c->line, NULL}, TL_EDOMAIN, "%s refused",
                        c->call->op->name);
}

static void recorded(void *ctx, tl_tape *t, uint32_t node)
{
    heard *h = ctx;
    (void)t;
    bool again = h->begins > h->ends && h->recorded > 0 && node <= h->last; /* of a segment */
    h->order |= !again && node != (h->recorded == 0 ? 0 : h->last + 1);
    h->last = node;
    h->recorded++;
}

static void restored(void *ctx, tl_tape *t, uint32_t first, uint32_t end)
{
    (void)t;
    ((heard *)ctx)->restored += (int)(end - first);
}

static void gave(void *ctx, tl_tape *t, const tl_given *g)
{
    heard *h = ctx;
    h->order |= (!tl_traced(t) && h->begins != h->ends + 1) || g->delivered != NULL ||
                g->node >= g->first;
    h->gave++;
}

static void delivered(void *ctx, tl_tape *t, const tl_given *g)
{
    heard *h = ctx;
    (void)t;
    h->order |= ++h->delivered != h->gave || g->delivered == NULL;
}

static void begins(void *ctx, tl_tape *t, tl_tensor y)
{
    (void)t;
    ((heard *)ctx)->begins += !tl_is_none(y);
}

#define COUNTS(event)                        \
    static void event(void *ctx, tl_tape *t) \
    {                                        \
        (void)t;                             \
        ((heard *)ctx)->event++;             \
    }
COUNTS(ends)
COUNTS(updates)
COUNTS(updated)
COUNTS(cleared)

static void resets(void *ctx, tl_tape *t)
{
    (void)t;
    ((heard *)ctx)->resets++;
    ((heard *)ctx)->recorded = 0;
}
COUNTS(freed)

static const tl_observer all = {.runs = runs,
                                .ran = ran,
                                .recorded = recorded,
                                .segment_restored = restored,
                                .backward_begins = begins,
                                .gave = gave,
                                .delivered = delivered,
                                .backward_ends = ends,
                                .update_begins = updates,
                                .updated = updated,
                                .cleared = cleared,
                                .reset = resets,
                                .freed = freed};
static const tl_observer another = {.runs = runs, .ran = ran};

/* Trains a little, watched by h (NULL: nobody), called or compiled, perhaps through a segment. */
static void program(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *opt)
{
    tl_model *m = tl_tape_model(t);
    uint32_t s = tl_segment_begin(t);
    tl_tensor h = tl_tanh(t, tl_linear(t, m, "l1", in[0], 8));
    tl_segment_end(t, s, &h, 1, false);
    (void)n, (void)n_out;
    *out = tl_mean(t, tl_square(t, tl_linear(t, m, "l2", h, 1)), TL_ALL, false);
    tl_backward(t, *out);
    tl_step(opt, t);
}

static void train(heard *h, bool compiled, char hash[65])
{
    float x[4][3] = {{1, 2, 3}, {-1, 0.5f, 2}, {0.25f, -2, 1}, {3, 1, -1}};
    tl_model *m = tl_model_new(.seed = 3);
    tl_opt *opt = tl_adamw_new(m, .lr = 0.01);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, program, 1, opt);
    if (h != NULL)
        assert_int_equal(tl_observe(t, &all, h), TL_OK);
    for (int i = 0; i < STEPS; i++) {
        tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(4, 3)), loss;
        if (compiled)
            tl_run(c, &in, 1, &loss);
        else
            program(t, &in, 1, &loss, 1, opt);
        tl_tape_reset(t);
    }
    assert_string_equal(tl_error(t), "");
    assert_int_equal(tl_model_sha256(m, hash), TL_OK);
    tl_free(c, opt, t, m);
}

static void a_training_run_is_heard_in_order(void **unused)
{
    (void)unused;
    char bare[65], watched[65], run[65];
    heard h = {0}, g = {0};
    train(NULL, false, bare);
    train(&h, false, watched);
    train(&g, true, run);
    assert_string_equal(bare, watched);
    assert_string_equal(bare, run);
    assert_false(h.order || g.order || h.running || g.running);
    assert_true(h.runs == h.ran && h.runs > 0 && g.runs == g.ran && g.runs > 0);
    assert_true(h.begins == STEPS && h.ends == STEPS && h.gave > STEPS && h.delivered == h.gave);
    assert_true(h.updates == STEPS && h.updated == STEPS && h.cleared >= STEPS);
    assert_true(h.restored > 0 && h.resets == STEPS && h.freed == 1 && g.freed == 1);
    assert_true(h.phase[0] > 0 && h.phase[TL_PHASE_BACKWARD] > 0);
    assert_true(h.phase[TL_PHASE_UPDATE] > 0 && g.phase[TL_PHASE_UPDATE] > 0);
    assert_true(g.phase[0] > 0 && g.phase[TL_PHASE_BACKWARD] > 0);
    assert_true(g.recorded == 0 && g.begins == 0); /* a run of a graph records nothing */
    assert_true(g.gave > 0 && g.delivered == 0);
}

static void turns(void *ctx, tl_tape *t, const tl_given *g)
{
    (void)ctx;
    if (strcmp(g->op->name, "tanh") == 0)
        g->dx[0] = tl_neg(t, g->dx[0]);
}

/* What an observer puts in place of a gradient is there in every run of a program, also if it comes
 * or goes after the first one. */
static void replaced_gradients_are_in_graphs(void **unused)
{
    static const tl_observer reversal = {.gave = turns};
    (void)unused;
    for (int first = 0; first < 2; first++) {
        char hash[2][65];
        for (int compiled = 0; compiled < 2; compiled++) {
            tl_model *m = tl_model_new(.seed = 1);
            tl_tape *t = tl_tape_new(m);
            tl_opt *o = tl_sgd_new(m, .lr = 0.1);
            tl_compiled *c = tl_compile(t, program, 1, o);
            for (int i = 0; i < 4; i++) {
                tl_tensor loss,
                    x = tl_data(t, ((float[2][2]){{1, 2}, {3, 4}}), TL_F32, TL_DIMS(2, 2));
                if (i % 2 == first)
                    assert_int_equal(tl_observe(t, &reversal, NULL), TL_OK);
                else
                    tl_observe_end(t, &reversal);
                if (compiled)
                    tl_run(c, &x, 1, &loss);
                else
                    program(t, &x, 1, &loss, 1, o);
                tl_tape_reset(t);
            }
            assert_string_equal(tl_error(t), "");
            assert_true(!compiled || tl_compiled_count(c) == 2);
            assert_int_equal(tl_model_sha256(m, hash[compiled]), TL_OK);
            tl_free(c, o, t, m);
        }
        assert_string_equal(hash[0], hash[1]);
    }
}

/* In every callback, called and in a run of a graph, a reset or a tl_free is refused. */
enum {
    RECORDS,
    RUNS,
    RAN,
    RECORDED,
    BEGINS,
    GAVE,
    DELIVERED,
    ENDS,
    UPDATES,
    UPDATED,
    CLEARED,
    ALL
};
static const char *const callbacks[ALL] = {"records", "runs",    "ran",       "recorded",
                                           "begins",  "gave",    "delivered", "ends",
                                           "updates", "updated", "cleared"};
typedef struct {
    int at, met;
    bool frees;
} ending;

static void ends_it(void *ctx, tl_tape *t, int at)
{
    ending *e = ctx;
    if (at != e->at || e->met++ > 0 || tl_traced(t))
        return;
    if (e->frees)
        tl_free(t);
    else
        tl_tape_reset(t);
}

#define ENDS_AT(name, at) \
    static void name(void *ctx, tl_tape *t) { ends_it(ctx, t, at); }
#define ENDS_CALL(name, at)                                        \
    static tl_status name(void *ctx, tl_tape *t, const tl_seen *c) \
    {                                                              \
        (void)c, ends_it(ctx, t, at);                              \
        return TL_OK;                                              \
    }
#define ENDS_GIVEN(name, at) \
    static void name(void *ctx, tl_tape *t, const tl_given *g) { (void)g, ends_it(ctx, t, at); }
ENDS_CALL(end_records, RECORDS)
ENDS_CALL(end_ran, RAN)
ENDS_GIVEN(end_gave, GAVE)
ENDS_GIVEN(end_delivered, DELIVERED)
ENDS_AT(end_ends, ENDS)
ENDS_AT(end_updates, UPDATES)
ENDS_AT(end_updated, UPDATED)
ENDS_AT(end_cleared, CLEARED)
static void end_runs(void *ctx, tl_tape *t, const tl_seen *c) { (void)c, ends_it(ctx, t, RUNS); }
static void end_recorded(void *ctx, tl_tape *t, uint32_t n) { (void)n, ends_it(ctx, t, RECORDED); }
static void end_begins(void *ctx, tl_tape *t, tl_tensor y) { (void)y, ends_it(ctx, t, BEGINS); }

static void callbacks_do_not_end_what_calls_them(void **unused)
{
    static const tl_observer observer = {.records = end_records,
                                         .runs = end_runs,
                                         .ran = end_ran,
                                         .recorded = end_recorded,
                                         .backward_begins = end_begins,
                                         .gave = end_gave,
                                         .delivered = end_delivered,
                                         .backward_ends = end_ends,
                                         .update_begins = end_updates,
                                         .updated = end_updated,
                                         .cleared = end_cleared};
    int met[2] = {0, 0};
    (void)unused;
    for (int at = 0; at < ALL; at++)
        for (int way = 0; way < 4; way++) {
            ending e = {at, 0, way / 2};
            tl_model *m = tl_model_new(.seed = 1);
            tl_tape *t = tl_tape_new(m);
            tl_opt *o = tl_sgd_new(m, .lr = 0.1);
            tl_compiled *c = tl_compile(t, program, 1, o);
            tl_tensor x = tl_data(t, ((float[2][2]){{1, 2}, {3, 4}}), TL_F32, TL_DIMS(2, 2)), loss;
            tl_observe(t, &observer, &e);
            if (way % 2)
                tl_run(c, &x, 1, &loss);
            else
                program(t, &x, 1, &loss, 1, o);
            met[way % 2] += e.met > 0;
            if (e.met > 0 && (way % 2 == 0 || at != GAVE) &&
                (tl_error_status(t) != TL_EUSAGE ||
                 strstr(tl_error(t), e.frees ? "tl_free: " : "tl_tape_reset: ") == NULL))
                fail_msg("%s, way %d: '%s'", callbacks[at], way, tl_error(t));
            tl_free(c, o, t, m);
        }
    assert_true(met[0] == 2 * ALL && met[1] >= 2 * 5);
}

static void frees_the_optimizer(void *ctx, tl_tape *t)
{
    (void)t;
    tl_free(ctx);
}

/* The step that is under way still has what it needs. */
static void an_optimizer_freed_in_its_own_step(void **unused)
{
    static const tl_observer observer = {.update_begins = frees_the_optimizer};
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.5);
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(2), .kind = TL_INIT_ONES);
    tl_observe(t, &observer, o);
    tl_backward(t, tl_sum(t, w, TL_ALL, false));
    assert_int_equal(tl_step(o, t), TL_OK);
    assert_true(tl_item(t, tl_sum(t, w, TL_ALL, false)) == 1);
    tl_free(t, m);
}

static void observers_come_and_go(void **unused)
{
    (void)unused;
    heard h[2] = {{0}, {0}};
    tl_tape *t = tl_tape_new(NULL);
    assert_int_equal(tl_observe(t, &all, &h[0]), TL_OK);
    assert_int_equal(tl_observe(t, &another, &h[1]), TL_OK);
    assert_ptr_equal(tl_observed(t, &another), &h[1]);
    assert_int_equal(tl_observe(t, &all, &h[1]), TL_EUSAGE);
    tl_error_clear(t);
    static const tl_observer silent = {.runs = NULL};
    assert_int_equal(tl_observe(t, &silent, NULL), TL_OK);
    assert_int_equal(tl_observe(t, &silent, NULL), TL_EUSAGE);
    tl_error_clear(t);
    tl_observe_end(t, &silent);
    tl_tensor x = tl_scalar(t, TL_F32, 2);
    tl_mul(t, x, x);
    assert_true(h[0].ran == 2 && h[1].ran == 2 && h[0].recorded == 2);
    tl_observe_end(t, &all);
    assert_null(tl_observed(t, &all));
    tl_observe_end(t, &all);
    tl_mul(t, x, x);
    assert_true(h[0].ran == 2 && h[1].ran == 3);
    h[1].refuse = true; /* a call that one of them refuses has not happened */
    assert_true(tl_is_none(tl_mul(t, x, x)));
    assert_int_equal(tl_error_status(t), TL_EDOMAIN);
    assert_non_null(strstr(tl_error(t), "mul refused"));
    assert_int_equal(tl_memory_stats(t).nodes, 3);
    assert_int_equal(tl_observe(NULL, &all, &h[0]), TL_ENOMEM);
    tl_observe_end(NULL, &all);
    assert_null(tl_observed(NULL, &all));
    tl_free(t);
    assert_int_equal(h[0].freed, 0);
}

/* An observer that leaves in its own callback hides that event from no other. */
typedef struct {
    tl_observer self;
    int heard;
} leaving;

static void leave(leaving *l, tl_tape *t)
{
    l->heard++;
    tl_observe_end(t, &l->self);
}
static tl_status leave_records(void *l, tl_tape *t, const tl_seen *c)
{
    return (void)c, leave(l, t), TL_OK;
}
static void leave_runs(void *l, tl_tape *t, const tl_seen *c) { (void)c, leave(l, t); }
static void leave_recorded(void *l, tl_tape *t, uint32_t node) { (void)node, leave(l, t); }
static void leave_reset(void *l, tl_tape *t) { leave(l, t); }

static void one_that_leaves_hides_nothing(void **unused)
{
    const tl_observer events[] = {{.records = leave_records}, {.runs = leave_runs},
                                  {.ran = leave_records},     {.recorded = leave_recorded},
                                  {.reset = leave_reset},     {.freed = leave_reset}};
    (void)unused;
    for (size_t e = 0; e < sizeof events / sizeof *events; e++) {
        leaving l[3] = {{events[e], 0}, {events[e], 0}, {events[e], 0}};
        tl_tape *t = tl_tape_new(NULL);
        for (int i = 0; i < 3; i++)
            assert_int_equal(tl_observe(t, &l[i].self, &l[i]), TL_OK);
        for (int i = 0; i < 2; i++) {
            tl_exp(t, tl_scalar(t, TL_F32, 1));
            tl_tape_reset(t);
        }
        assert_false(tl_failed(t));
        tl_free(t);
        for (int i = 0; i < 3; i++)
            if (l[i].heard != 1)
                fail_msg("event %zu, observer %d: heard %d times", e, i, l[i].heard);
    }
}

/* One that attaches itself again is told of the next event, and takes no more places. */
static tl_status comes_back(void *l, tl_tape *t, const tl_seen *c)
{
    leaving *self = l;
    (void)c;
    leave(self, t);
    return tl_observe(t, &self->self, self);
}

static void one_that_comes_back_hears_of_the_next(void **unused)
{
    leaving l[2] = {{{.ran = comes_back}, 0}, {{.ran = comes_back}, 0}};
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    for (int i = 0; i < 2; i++)
        tl_observe(t, &l[i].self, &l[i]);
    for (int n = 1; n <= 20; n++) {
        tl_scalar(t, TL_F32, 1);
        assert_int_equal(l[0].heard, n);
        assert_int_equal(l[1].heard, n);
    }
    tl_free(t);
}

/* A call whose observer fails the tape when it has been recorded has not happened. */
static void fails_recorded(void *ctx, tl_tape *t, uint32_t node)
{
    (void)ctx, (void)node;
    tl_tape_fail(tl_nowhere(t), TL_EDOMAIN, "that one not");
}

static void what_fails_when_recorded_has_not_happened(void **unused)
{
    static const tl_observer watch = {.recorded = fails_recorded};
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, ((float[]){1, 2, 3}), TL_F32, TL_DIMS(3)),
              w = tl_data(t, ((float[6]){1}), TL_F32, TL_DIMS(3, 2));
    tl_observe(t, &watch, NULL);
    assert_true(tl_is_none(tl_exp(t, x)));
    tl_error(t);
    tl_error_clear(t);
    assert_true(tl_is_none(tl_matmul(t, x, w)));
    assert_non_null(strstr(tl_error(t), "that one not"));
    tl_error_clear(t);
    assert_int_equal(tl_memory_stats(t).nodes, 0);
    tl_free(t);
}

/* Before it is recorded each call is heard, views as well, and one that is refused then has changed
 * nothing. */
static tl_status no_scaling(void *calls, tl_tape *t, const tl_seen *c)
{
    ++*(int *)calls;
    if (strcmp(c->call->op->name, "scale_by_") != 0)
        return TL_OK;
    return tl_tape_fail((tl_at){t, c->file, c->line, NULL}, TL_EDOMAIN, "none of these");
}

static tl_status doubled_shape(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

static tl_status doubled(tl_call *c)
{
    for (int i = 0; i < 3; i++)
        ((float *)c->out[0].data)[i] *= 2;
    return TL_OK;
}

static void what_is_refused_before_it_is_recorded(void **unused)
{
    static const tl_observer watch = {.records = no_scaling};
    static const tl_op scale = {.name = "scale_by_",
                                .n_in = 1,
                                .n_out = 1,
                                .traits = TL_MUTATES | TL_NONDIFF,
                                .shape = doubled_shape,
                                .forward = doubled};
    float v[3] = {1, 2, 3}, out[3];
    int calls = 0;
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, v, TL_F32, TL_DIMS(3));
    assert_int_equal(tl_observe(t, &watch, &calls), TL_OK);
    tl_reshape(t, x, TL_DIMS(3, 1));
    assert_int_equal(calls, 1);
    assert_true(tl_is_none(tl_apply1(TL_AT(t), &scale, NULL, &x, 1)));
    assert_int_equal(tl_error_status(t), TL_EDOMAIN);
    assert_int_equal(calls, 2);
    tl_error_clear(t);
    assert_int_equal(tl_keep(t, x, out, sizeof out), TL_OK);
    assert_memory_equal(out, v, sizeof v);
    tl_observe_end(t, &watch);
    x = tl_apply1(TL_AT(t), &scale, NULL, &x, 1);
    assert_int_equal(tl_keep(t, x, out, sizeof out), TL_OK);
    assert_true(out[2] == 6);
    tl_free(t);
}

static void count_casts(void *casts, tl_tape *t, const tl_seen *c)
{
    (void)t;
    *(int *)casts += strcmp(c->call->op->name, "cast") == 0;
}

/* A cast copies: compositions make one only where the dtype is another. */
static void what_has_its_dtype_already_is_not_cast(void **state)
{
    static const tl_observer counter = {.runs = count_casts};
    static const float v[4] = {0.5f, 0.25f, 1, 0};
    static const int64_t label[2] = {1, 0};
    (void)state;
    for (int half = 0; half < 2; half++) {
        tl_tape *t = tl_tape_new(NULL);
        int casts = 0;
        tl_tensor ids = tl_data(t, label, TL_I64, TL_DIMS(2)),
                  x = tl_cast(t, tl_data(t, v, TL_F32, TL_DIMS(2, 2)), half ? TL_BF16 : TL_F32),
                  w = tl_select(t, x, 0, 0);
        assert_int_equal(tl_observe(t, &counter, &casts), TL_OK);
        tl_bce_with_logits(t, x, x, TL_SUM, .weight = w, .pos_weight = w);
        assert_int_equal(casts, half ? 4 : 0);
        tl_logsumexp(t, x, TL_DIMS(1), false);
        assert_int_equal(casts, half ? 6 : 0);
        tl_cross_entropy(t, x, ids, TL_SUM, .weight = w);
        assert_int_equal(casts, half ? 8 : 0);
        tl_var(t, x, TL_DIMS(1), 0, false);
        assert_int_equal(casts, half ? 10 : 0);
        tl_avg_pool1d(t, tl_reshape(t, x, TL_DIMS(1, 2, 2)), .kernel = {2});
        assert_int_equal(casts, half ? 12 : 0);
        assert_string_equal(tl_error(t), "");
        tl_free(t);
    }
}

const struct CMUnitTest tl_tests_observer[] = {
    cmocka_unit_test(a_training_run_is_heard_in_order),
    cmocka_unit_test(replaced_gradients_are_in_graphs),
    cmocka_unit_test(callbacks_do_not_end_what_calls_them),
    cmocka_unit_test(an_optimizer_freed_in_its_own_step),
    cmocka_unit_test(observers_come_and_go),
    cmocka_unit_test(one_that_leaves_hides_nothing),
    cmocka_unit_test(one_that_comes_back_hears_of_the_next),
    cmocka_unit_test(what_fails_when_recorded_has_not_happened),
    cmocka_unit_test(what_is_refused_before_it_is_recorded),
    cmocka_unit_test(what_has_its_dtype_already_is_not_cast),
};
const size_t tl_tests_observer_count = sizeof tl_tests_observer / sizeof *tl_tests_observer;
