/* An optimizer's state cut over ranks, which are threads here: each has its part, weights and
 * checkpoints are those of one. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/observer.h"
#include "nn/opt.h"
#include "tensor/memory.h"
#include "tests/support/logged_run.h"
#include "tests/support/ring.h"

extern const struct CMUnitTest tl_tests_shard[];
extern const size_t tl_tests_shard_count;

typedef struct {
    const char *load, *save;
    int from, to; /* steps */
    tl_dtype dtype;
    bool forgets; /* to hand its weights on */
} shard_job;

/* out: the hash, how many elements of state the rank has after its last step, and whether
 * tl_checkpoint_save is refused. */
static void train_sharded(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    const shard_job *j = ctx;
    const grouped_program *p = &grouped_programs[1];
    int64_t state = 0;
    int refused = 0;
    grouped_rank r;
    grouped_begin(&r, p, j->dtype);
    tl_group *g = tl_group_new(r.t, link);
    grouped_shard(&r, g);
    if (j->load != NULL)
        tl_checkpoint_load(r.m, r.opt, j->load, NULL, NULL, 0);
    tl_group_agree(g, NULL, 0);
    for (int step = j->from; step < j->to && !tl_failed(r.t); step++) {
        const tl_group_part part = tl_group_take(g, GROUPED_SAMPLES);
        grouped_backward(&r, p, step, (int)part.first, (int)(part.first + part.n), link.size > 1);
        tl_group_fold(g);
        tl_group_share(g);
        tl_step(r.opt, r.t);
        if (!j->forgets)
            tl_group_weights(g);
        tl_tape_reset(r.t);
    }
    for (int i = 0; i < tl_model_count(r.m); i++) {
        const tl_named x = tl_model_at(r.m, i);
        const bool is = strncmp(x.name, "adamw.", 6) == 0 || strncmp(x.name, "master.", 7) == 0;
        state += is ? tl_array_count(&x.array) : 0;
    }
    tl_group_agree(g, NULL, 0);
    if (j->save != NULL && link.size > 1)
        refused += tl_checkpoint_save(r.m, r.opt, j->save, NULL, 0) == TL_EUSAGE;
    tl_error_clear(r.m);
    if (j->save != NULL)
        tl_group_save(g, r.m, r.opt, j->save, NULL, 0);
    tl_group_free(g);
    grouped_end(&r, out);
    if (strlen(out) == 64)
        snprintf(out + 64, GROUPED_HASH - 64, " %ld %d", (long)state, refused);
}

static void parts_must_make_sense_and_stay(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    const float one[2] = {1, 2};
    const tl_tensor x = tl_data(m, one, TL_F32, TL_DIMS(1, 2));
    tl_opt *o[3] = {tl_sgd_new(m, .lr = 0.1, .part = 2, .parts = 2),
                    tl_sgd_new(m, .lr = 0.1, .part = 1),
                    tl_sgd_new(m, .lr = 0.1, .part = 1, .parts = 2)};
    (void)unused;
    for (int i = 0; i < 3; i++) {
        tl_backward(t, tl_sum(t, tl_linear(t, m, "l", x, 3), TL_ALL, false));
        assert_int_equal(tl_step(o[i], t), i < 2 ? TL_EDOMAIN : TL_OK);
        if (i < 2)
            assert_non_null(strstr(tl_error(t), i ? "part 1 of 0" : "part 2 of 2"));
        tl_error_clear(t);
        tl_tape_reset(t);
    }
    tl_tensor y = tl_linear(t, m, "k", tl_linear(t, m, "l", x, 3), 3);
    tl_backward(t, tl_sum(t, y, TL_ALL, false));
    assert_int_equal(tl_step(o[2], t), TL_EUSAGE);
    assert_non_null(strstr(tl_error(t), "parameters have been added"));
    tl_error_clear(t);
    tl_free(o[0], o[1], o[2], t, m);
}

static void state_is_cut_over_ranks_and_saved_whole(void **unused)
{
    static ring g;
    char whole[GROUPED_HASH], half[GROUPED_HASH], command[4096];
    const char *by_one = logged_file("one"), *by_all = logged_file("all");
    (void)unused;
    for (int i = 0; i < 2; i++) {
        const tl_dtype dtype = i ? TL_BF16 : TL_F32; /* with masters, which are state */
        shard_job first = {NULL, by_one, 0, 2, dtype, false},
                  all = {NULL, NULL, 0, 4, dtype, false};
        train_sharded(&first, grouped_alone(), half);
        train_sharded(&all, grouped_alone(), whole);
        const long state = strtol(whole + 64, NULL, 10);
        snprintf(command, sizeof command, "cmp '%s' '%s'", by_one, by_all);
        for (int size = 2; size <= 4; size++) {
            long sum = 0;
            first.save = by_all;
            train_all(&g, size, train_sharded, &first);
            for (int r = 0; r < size; r++) {
                char *refused;
                const long mine = strtol(g.r[r].out + 64, &refused, 10);
                assert_string_equal(refused, " 1"); /* to save a part as if it were all */
                assert_memory_equal(g.r[r].out, half, 64);
                assert_in_range(mine, state / size / 2, 2 * state / size);
                sum += mine;
            }
            assert_int_equal(sum, state);
            assert_int_equal(system(command), 0); /* what one would have saved */
            shard_job rest = {by_all, NULL, 2, 4, dtype, false};
            train_all(&g, size % 3 + 2, train_sharded, &rest);
            for (int r = 0; r < size % 3 + 2; r++)
                assert_memory_equal(g.r[r].out, whole, 64);
        }
    }
    shard_job forgets = {NULL, NULL, 0, 1, TL_F32, true};
    train_all(&g, 2, train_sharded, &forgets);
    for (int r = 0; r < 2; r++)
        assert_non_null(strstr(g.r[r].out, "rank 1 has "));
}

/* ---- gradients that go to one rank ---- */

typedef struct {
    const grouped_program *p;
    tl_dtype dtype;
    bool compiled, cut;
    double clip;
    const char *frozen, *unreached; /* parameters whose names begin so; NULL: none */
} cut_job;

/* Adds to `wrong` where a gradient is, though others update the parameter, or is not. */
static void count_gradients(const grouped_rank *r, bool cut, bool all, int *wrong)
{
    int n = 0;
    const char **others = tl_opt_others(r->opt, &n);
    for (int i = 0; cut && !all && i < n; i++)
        *wrong += !tl_is_none(tl_grad(r->t, tl_model_find(r->m, others[i])));
    tl_free_raw(others);
}

/* Two micro-batches a step. out: the hash, the norm of the last step's gradients, and how many were
 * where they should not be. */
static void train_cut(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    const cut_job *j = ctx;
    int wrong = 0;
    grouped_rank r;
    grouped_begin(&r, j->p, j->dtype);
    grouped_compile(&r, j->compiled);
    tl_group *g = tl_group_new(r.t, link);
    tl_free(r.opt);
    r.opt = tl_adamw_new(r.m, .lr = 0.02, .clip = j->clip, .weight_decay = 0.1,
                         .part = tl_group_rank(g), .parts = tl_group_shard(g));
    tl_opt_group(r.opt, "*e*", 0.5, 0.2);
    if (j->cut)
        tl_group_cut(g, r.opt);
    if (j->frozen != NULL)
        tl_model_freeze(r.m, j->frozen, true);
    for (int step = 0; step < 3 && !tl_failed(r.t); step++) {
        if (j->unreached != NULL)
            tl_model_freeze(r.m, j->unreached, true);
        for (int k = 0; k < 2; k++) {
            const int first = k * 5, rows = k ? GROUPED_SAMPLES - 5 : 5;
            const tl_group_part part = tl_group_take(g, rows);
            grouped_backward(&r, j->p, step, first + (int)part.first,
                             first + (int)(part.first + part.n), link.size > 1);
            tl_group_fold(g);
            tl_tape_reset(r.t);
        }
        if (j->unreached != NULL)
            tl_model_freeze(r.m, j->unreached, false);
        tl_group_share(g);
        count_gradients(&r, j->cut && link.size > 1, link.rank == link.size - 1, &wrong);
        tl_step(r.opt, r.t);
        tl_group_weights(g);
        tl_tape_reset(r.t);
    }
    const double norm = tl_opt_grad_norm(r.opt);
    tl_group_agree(g, NULL, 0);
    tl_group_free(g);
    grouped_end(&r, out);
    if (strlen(out) == 64)
        snprintf(out + 64, GROUPED_HASH - 64, " %a %d", norm, wrong);
}

static void gradients_go_to_one_rank(void **unused)
{
    static ring g;
    static const int ranks[] = {1, 2, 3, 4, 7}, program[] = {0, 1, 6, 0, 0};
    static const double clip[] = {1, 0, 1e-3};
    int wrong = 0;
    (void)unused;
    for (int i = 0; i < 30; i++) {
        cut_job j = {&grouped_programs[program[i / 6]], i % 2 ? TL_BF16 : TL_F32,
                     .clip = clip[i / 2 % 3]};
        char want[GROUPED_HASH];
        j.frozen = i / 6 == 3 ? "l1." : NULL;
        j.unreached = i / 6 == 4 ? "n." : NULL;
        train_cut(&j, grouped_alone(), want);
        assert_string_equal(want + strlen(want) - 2, " 0");
        for (int k = 0; k < 10; k++) {
            const int size = ranks[k % 5];
            j.cut = k != (i % 5); /* once as before */
            j.compiled = k > 4;
            train_all(&g, size, train_cut, &j);
            for (int r = 0; r < size; r++)
                if (strcmp(g.r[r].out, want) != 0 && ++wrong)
                    print_error(
                        "%d %s, %s, clip %g, cut %d, compiled %d, rank %d of %d: %s for %s\n", i,
                        j.p->name, tl_dtype_name(j.dtype), j.clip, j.cut, j.compiled, r, size,
                        g.r[r].out, want);
        }
    }
    assert_int_equal(wrong, 0);
}

typedef enum {
    OTHER_STEPS,
    RUN_STEPS, /* of a graph, which a rank without parameters cannot trace */
    OWN_UPDATE,
    FREEZES,
    BACKWARD_AGAIN, /* all ranks add something to the complete sums */
    STEPS_TWICE,
    OTHER_PARTS,
    NOT_ALL, /* ranks call tl_group_cut */
    GROUP_ENDS,
    CLEARS,     /* and goes on alone */
    OTHER_RATE, /* of one rank */
    OTHER_STEP, /* one has made more of them */
    OTHER_PART, /* without tl_group_cut */
    FREED,      /* the optimizer; another has all gradients */
    LINK_FAILS,
    LINK_FAILS_LATE,
    NO_MEMORY,
    CUT_FAULTS
} cut_fault;

/* A link that fails once: as the n-th message goes straight to a rank, or comes straight. */
typedef struct {
    tl_link link;
    int n;
    bool sends;
} bad_link;

static tl_status bad_send(void *ctx, int to, const void *bytes, size_t n, tl_err *e)
{
    bad_link *b = ctx;
    if (b->sends && to != (b->link.rank + 1) % b->link.size && b->n-- == 0)
        return tl_fail(e, TL_EIO, "the wire is cut");
    return b->link.send(b->link.ctx, to, bytes, n, e);
}
static tl_status bad_receive(void *ctx, int from, void *bytes, size_t n, tl_err *e)
{
    bad_link *b = ctx;
    if (!b->sends && (from + 1) % b->link.size != b->link.rank && b->n-- == 0)
        return tl_fail(e, TL_ENOMEM, "no memory for what comes");
    return b->link.receive(b->link.ctx, from, bytes, n, e);
}
static tl_status good_settle(void *ctx, const void *bytes, tl_err *e)
{
    bad_link *b = ctx;
    return b->link.settle(b->link.ctx, bytes, e);
}

static void steps_of(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *opt)
{
    (void)in, (void)n, (void)n_out;
    out[0] = tl_fill(t, TL_F32, TL_SCALAR, 1);
    tl_step(opt, t);
}

static void stray_cut(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    const cut_fault f = *(const cut_fault *)ctx;
    const grouped_program *p = &grouped_programs[0];
    bad_link bad = {link, f == LINK_FAILS ? 0 : f == LINK_FAILS_LATE ? 4 : 1, f != NO_MEMORY};
    const bool fails = f >= LINK_FAILS && link.rank == (f == NO_MEMORY ? 1 : link.size - 1);
    grouped_rank r;
    grouped_begin(&r, p, TL_F32);
    if (fails)
        link = (tl_link){&bad,        link.rank,   link.size, bad_send,
                         bad_receive, good_settle, NULL,      link.end};
    tl_group *g = tl_group_new(r.t, link);
    grouped_shard(&r, g);
    tl_opt *other = tl_sgd_new(r.m, .lr = 0.1, .part = link.rank, .parts = link.size);
    if (f == OTHER_PARTS)
        tl_group_cut(g, tl_lives(other) ? other : NULL), tl_group_cut(g, NULL);
    else if ((f != NOT_ALL || link.rank != 1) && f != OTHER_PART)
        tl_group_cut(g, r.opt);
    if (f == OTHER_RATE && link.rank == 1)
        tl_opt_lr_set(r.opt, 0.03);
    if (f == OTHER_STEP && link.rank == 1)
        r.opt->steps++;
    if (f == OTHER_PART) {
        tl_free(r.opt);
        r.opt = tl_adamw_new(r.m, .lr = 0.02, .part = 0, .parts = link.size);
    }
    tl_compiled *steps = tl_compile(r.t, steps_of, 1, r.opt);
    tl_tensor one;
    if (f == FREED) {
        tl_free(r.opt);
        r.opt = tl_adamw_new(r.m, .lr = 0.02, .clip = 1, .part = link.rank, .parts = link.size);
    }
    for (int step = 0; step < 2 && !tl_failed(r.t); step++) {
        const tl_group_part part = tl_group_take(g, GROUPED_SAMPLES);
        grouped_backward(&r, p, step, (int)part.first, (int)(part.first + part.n), link.size > 1);
        tl_group_fold(g);
        tl_group_share(g);
        if (f == OTHER_STEPS)
            tl_step(other, r.t);
        if (f == RUN_STEPS)
            tl_run(steps, NULL, 0, &one);
        if (f == OWN_UPDATE)
            tl_update_begin(r.t), tl_update_end(r.t);
        if (f == BACKWARD_AGAIN) {
            tl_tensor w = tl_square(r.t, tl_model_find(r.m, "l1.weight"));
            tl_backward(r.t, tl_sum(r.t, w, TL_ALL, false), .partial = true, .ragged = true);
        }
        if (f == FREEZES)
            tl_model_freeze(r.m, "n.", true);
        if (f == GROUP_ENDS) {
            tl_group_free(g);
            g = NULL;
        }
        if (f == CLEARS) {
            tl_grad_clear(r.t);
            grouped_backward(&r, p, step, 0, GROUPED_SAMPLES, false);
        }
        tl_step(r.opt, r.t);
        if (f == STEPS_TWICE)
            tl_step(r.opt, r.t);
        tl_group_weights(g);
        tl_tape_reset(r.t);
    }
    tl_group_free(g);
    tl_free(steps, other);
    grouped_end(&r, out);
}

/* No rank waits for ever, none takes some gradients for all. */
static void what_a_cut_cannot_have_is_refused(void **unused)
{
    static const char *const says[CUT_FAULTS] = {
        [OTHER_STEPS] = "tl_group_cut: an update, but gradients have gone",
        [RUN_STEPS] = "tl_group_cut: an update, but gradients have gone",
        [OWN_UPDATE] = "tl_group_cut: an update, but gradients have gone",
        [FREEZES] = "parameters have been made or frozen",
        [BACKWARD_AGAIN] = "tl_group_cut: a backward between tl_group_share and tl_step",
        [STEPS_TWICE] = "no parameter has a gradient",
        [OTHER_PARTS] = "tl_group_cut: an optimizer of the tape's model is needed",
        [NOT_ALL] = "they make different calls",
        [GROUP_ENDS] = "no parameter has a gradient",
        [CLEARS] = "shared; call tl_group_take, tl_group_fold",
        [OTHER_RATE] = "tl_group_weights: rank ",
        [OTHER_STEP] = " has optimizer's steps ",
        [OTHER_PART] = "updates part 0 of ",
        [LINK_FAILS] = "the wire is cut",
        [LINK_FAILS_LATE] = "the wire is cut",
        [NO_MEMORY] = "no memory for what comes",
    };
    static ring g;
    char want[GROUPED_HASH];
    cut_fault none = FREED;
    (void)unused;
    stray_cut(&none, grouped_alone(), want);
    for (cut_fault f = 0; f < CUT_FAULTS; f++)
        for (int size = 3; size <= 4; size++) {
            train_all(&g, size, stray_cut, &f);
            int told = 0;
            for (int r = 0; r < size; r++) {
                told += says[f] != NULL && strstr(g.r[r].out, says[f]) != NULL;
                if (says[f] == NULL ? memcmp(g.r[r].out, want, 64) != 0 : strlen(g.r[r].out) == 64)
                    fail_msg("%d, rank %d of %d: %s", f, r, size, g.r[r].out);
            }
            const int most = f == NOT_ALL || f == RUN_STEPS || f == OTHER_PART ? 2 : size;
            if (says[f] != NULL && told < most)
                fail_msg("%d: %s; %s; %s; %s", f, g.r[0].out, g.r[1].out, g.r[2].out,
                         size > 3 ? g.r[3].out : "");
        }
}

/* One rank's optimizer differs in one number. */
typedef struct {
    const char *says;
    int kind; /* 0: SGD, 1: AdamW; 2: that and Adam */
    tl_opt_options all, one;
    double scale, decay; /* of the one's group; the others' has 1 and 0 */
} other_number;
#define LR .lr = 0.1

static void train_by_other_numbers(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    const other_number *n = ctx;
    const bool one = link.rank == 1;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt_options with = one ? n->one : n->all;
    with.part = link.rank;
    with.parts = link.size;
    tl_opt *o = n->kind == 0          ? tl_sgd_new_at(m, with, NULL, 0)
                : n->kind == 2 && one ? tl_adam_new_at(m, with, NULL, 0)
                                      : tl_adamw_new_at(m, with, NULL, 0);
    tl_opt_group(o, one && n->scale == 0 ? "w*" : "w", one && n->scale != 0 ? n->scale : 1,
                 one ? n->decay : 0);
    tl_param(t, m, "w", TL_F32, TL_DIMS(2), TL_INIT_ONES, 0);
    tl_group *g = tl_group_new(t, link);
    tl_group_cut(g, o);
    tl_group_weights(g);
    snprintf(out, GROUPED_HASH, "%s", tl_error(t));
    tl_error_clear(t);
    tl_group_free(g); /* what has been read and cleared is not said again */
    if (tl_failed(t))
        snprintf(out, GROUPED_HASH, "again: %s", tl_error(t));
    tl_error_clear(t);
    tl_free(o, t, m);
}

static void each_number_of_an_optimizer_is_compared(void **unused)
{
    static const other_number other[] = {
        {"the optimizer", 2, {LR}, {LR}, 1, 0},
        {"lr", 1, {LR}, {.lr = 0.2}, 1, 0},
        {"momentum", 0, {LR, .momentum = 0.9}, {LR, .momentum = 0.8}, 1, 0},
        {"weight_decay", 1, {LR}, {LR, .weight_decay = 0.5}, 1, 0},
        {"beta1", 1, {LR}, {LR, .beta1 = 0.5}, 1, 0},
        {"beta2", 1, {LR}, {LR, .beta2 = 0.5}, 1, 0},
        {"eps", 1, {LR}, {LR, .eps = 0.5}, 1, 0},
        {"clip", 1, {LR}, {LR, .clip = 0.5}, 1, 0},
        {"nesterov", 0, {LR, .momentum = 0.5}, {LR, .momentum = 0.5, .nesterov = true}, 1, 0},
        {"decoupled", 0, {LR}, {LR, .decoupled = true}, 1, 0},
        {"schedule.kind",
         1,
         {LR, .schedule = {TL_COSINE, .total = 9}},
         {LR, .schedule = {TL_LINEAR, .total = 9}},
         1,
         0},
        {"schedule.warmup", 1, {LR}, {LR, .schedule.warmup = 3}, 1, 0},
        {"schedule.total",
         1,
         {LR, .schedule = {TL_COSINE, .total = 9}},
         {LR, .schedule = {TL_COSINE, .total = 8}},
         1,
         0},
        {"schedule.min_ratio",
         1,
         {LR, .schedule = {TL_COSINE, .total = 9}},
         {LR, .schedule = {TL_COSINE, .total = 9, .min_ratio = 0.5}},
         1,
         0},
        {"schedule.decay",
         1,
         {LR, .schedule = {TL_WARMUP_STABLE_DECAY, .total = 9, .decay = 2}},
         {LR, .schedule = {TL_WARMUP_STABLE_DECAY, .total = 9, .decay = 3}},
         1,
         0},
        {"tl_opt_group of", 1, {LR}, {LR}, 0, 0},
        {"its lr_scale", 1, {LR}, {LR}, 0.5, 0},
        {"its weight_decay", 1, {LR}, {LR}, 1, 0.5},
    };
    static ring g;
    (void)unused;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        other_number n = other[i];
        char says[64];
        snprintf(says, sizeof says, " has %s ", n.says);
        train_all(&g, 2, train_by_other_numbers, &n);
        for (int r = 0; r < 2; r++)
            if (strstr(g.r[r].out, "tl_group_weights: ") == NULL ||
                strstr(g.r[r].out, says) == NULL || strstr(g.r[r].out, "again") != NULL)
                fail_msg("%s: rank %d: %s", n.says, r, g.r[r].out);
    }
}
#undef LR

const struct CMUnitTest tl_tests_shard[] = {
    cmocka_unit_test(each_number_of_an_optimizer_is_compared),
    cmocka_unit_test(gradients_go_to_one_rank),
    cmocka_unit_test(what_a_cut_cannot_have_is_refused),
    cmocka_unit_test_setup_teardown(state_is_cut_over_ranks_and_saved_whole, logged_begin,
                                    logged_end),
    cmocka_unit_test(parts_must_make_sense_and_stay),
};
const size_t tl_tests_shard_count = sizeof tl_tests_shard / sizeof *tl_tests_shard;
