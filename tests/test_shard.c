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

const struct CMUnitTest tl_tests_shard[] = {
    cmocka_unit_test_setup_teardown(state_is_cut_over_ranks_and_saved_whole, logged_begin,
                                    logged_end),
    cmocka_unit_test(parts_must_make_sense_and_stay),
};
const size_t tl_tests_shard_count = sizeof tl_tests_shard / sizeof *tl_tests_shard;
