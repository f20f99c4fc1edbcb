/* A group of ranks trains to the bits of one, and says which of them differs, has failed or makes
 * other calls. Ranks are threads here, whose ring is a row of queues; tests/mpi.sh has processes.
 * TL_TEST_SEED repeats. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/logged_run.h"
#include "tests/support/ring.h"
#include "tests/support/skip.h"

extern const struct CMUnitTest tl_tests_group[];
extern const size_t tl_tests_group_count;

/* ---- one hash ---- */

enum { CALLED, COMPILED, MIXED };

typedef struct {
    const grouped_program *p;
    tl_dtype dtype;
    int compiled; /* MIXED: every other rank */
    uint64_t seed;
} job;

static void train(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    const job *j = ctx;
    grouped_train(j->p, j->dtype, j->compiled == MIXED ? link.rank % 2 : j->compiled == COMPILED,
                  link, j->seed, out);
}

static void one_hash_for_any_number_of_ranks(void **unused)
{
    static const int ranks[] = {2, 3, 4, 7};
    static const char *const how[] = {"called", "compiled", "mixed"};
    static ring g;
    const char *env = getenv("TL_TEST_SEED");
    const uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : 1;
    int wrong = 0;
    (void)unused;
    for (int i = 0; i < 2 * grouped_count; i++) {
        job j = {.p = &grouped_programs[i / 2],
                 .dtype = i % 2 ? TL_BF16 : TL_F32,
                 .seed = seed * 100 + (uint64_t)i};
        char want[GROUPED_HASH];
        grouped_train(j.p, j.dtype, false, grouped_alone(), j.seed + 7, want);
        assert_non_null(strchr(want, ' '));
        for (int k = 0; k < 12; k++) {
            const int size = ranks[k / 3];
            j.seed++;
            j.compiled = k % 3;
            train_all(&g, size, train, &j);
            for (int r = 0; r < size; r++)
                if (strcmp(g.r[r].out, want) != 0 && ++wrong)
                    print_error("TL_TEST_SEED=%llu: %s, %s, %s, rank %d of %d: %s for %s\n",
                                (unsigned long long)seed, j.p->name, tl_dtype_name(j.dtype),
                                how[j.compiled], r, size, g.r[r].out, want);
        }
    }
    assert_int_equal(wrong, 0);
}

/* ---- batches of a loader, counts ---- */

/* Two epochs of 23 samples in batches of 8, micro-batches of 5: some parts are empty. */
static void train_loaded(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    static const float x[23][2] = {{1, 2}, {3, -1}, {0.5f, 4}, {-2, 1}, {1e-3f, 7}};
    grouped_rank r = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = r.t = tl_tape_new(r.m);
    r.opt = tl_sgd_new(r.m, .lr = 0.1);
    tl_group *g = link.size > 1 ? tl_group_new(t, link) : NULL;
    const tl_array a = tl_array_make(TL_F32, &TL_DIMS(23, 2), (void *)(uintptr_t)x);
    tl_loader l = tl_loader_new(t, "x", &a, 1, .batch = 8);
    (void)ctx;
    for (int step = 0; step < 6 && !tl_failed(t); step++) {
        do {
            tl_tensor in;
            const tl_group_part p = tl_group_take(g, 5);
            int64_t n = tl_group_next(g, t, &l, p.n, &in), all = tl_group_count(g, n);
            tl_tensor y = tl_linear(t, r.m, "l", in, 3);
            y = tl_dropout(t, y, 0.5, .stream = "d",
                           .sample = tl_scalar(t, TL_I64, (double)l.number));
            y = tl_scale(t, tl_sum(t, tl_square(t, y), TL_ALL, false), 1.0 / (double)all);
            tl_backward(t, y, .put_off = link.size > 1);
            tl_group_fold(g);
            tl_tape_reset(t);
        } while (l.left > 0 && !tl_failed(t));
        tl_group_share(g);
        tl_step(r.opt, t);
        tl_tape_reset(t);
    }
    tl_group_free(g);
    grouped_end(&r, out);
}

static void loaders_take_parts(void **unused)
{
    static ring g;
    char want[GROUPED_HASH];
    (void)unused;
    train_loaded(NULL, grouped_alone(), want);
    assert_int_equal(strlen(want), 64);
    for (int size = 2; size <= 4; size++) {
        train_all(&g, size, train_loaded, NULL);
        for (int i = 0; i < size; i++)
            assert_string_equal(g.r[i].out, want);
    }
}

/* ---- what is sent ---- */

/* A step of `parts` micro-batches, with weights that go round if it is sharded, and gradients that
 * do not if it is cut. */
typedef struct {
    int parts;
    bool sharded, cut;
} step_job;

/* One step of layers of some size. out: its hash, and bytes sent for each of accumulators. */
static void train_counted(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    static const float x[8][256] = {{1}};
    static const char *const layer[7] = {"a", "b", "c", "d", "e", "f", "g"};
    const step_job *j = ctx;
    const int parts = j->parts;
    grouped_rank r = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = r.t = tl_tape_new(r.m);
    tl_group *g = tl_group_new(t, link);
    r.opt = tl_sgd_new(r.m, .lr = 0.1, .part = j->sharded ? tl_group_rank(g) : 0,
                       .parts = j->sharded ? tl_group_shard(g) : 0);
    if (j->cut)
        tl_group_cut(g, r.opt);
    for (int k = 0; k < parts; k++) {
        const tl_group_part p = tl_group_take(g, 8 / parts);
        tl_tensor y = tl_data(t, x[k * (8 / parts) + p.first], TL_F32, TL_DIMS(p.n, 256));
        for (int i = 0; i < 7; i++)
            y = tl_linear(t, r.m, layer[i], y, 256);
        tl_backward(t, tl_sum(t, y, TL_ALL, false), .put_off = true);
        tl_group_fold(g);
        tl_tape_reset(t);
    }
    tl_group_share(g);
    tl_step(r.opt, t);
    if (j->sharded)
        tl_group_weights(g);
    const tl_group_cost c = tl_group_costs(g);
    tl_group_free(g);
    grouped_end(&r, out);
    if (strlen(out) == 64)
        snprintf(out + 64, GROUPED_HASH - 64, " %.4f", (double)c.sent / (double)c.sums);
}

/* k micro-batches: k times and once more, whatever the number of ranks; and weights, if the state
 * is cut, or those instead of sums if gradients go to one rank each. */
static void a_step_sends_accumulators_once_more_than_micro_batches(void **unused)
{
    static ring g;
    char want[GROUPED_HASH];
    static const int ranks[] = {2, 3, 4, 7};
    step_job j = {1, false, false};
    (void)unused;
    train_counted(&j, grouped_alone(), want);
    for (int i = 0; i < 9; i++)
        for (int s = 0; s < 4; s++) {
            const int k = 1 << i / 3, size = ranks[s];
            double most = 0;
            j = (step_job){k, i % 3 > 0, i % 3 > 1};
            train_all(&g, size, train_counted, &j);
            for (int r = 0; r < size; r++) {
                const double ratio = strtod(g.r[r].out + 64, NULL);
                most = ratio > most ? ratio : most;
                if (strncmp(g.r[r].out, want, 64) != 0 ||
                    !(ratio > 0.4 && ratio <= 1.05 * (k + 1 + (j.sharded && !j.cut))))
                    fail_msg("%d micro-batches, rank %d: %s, alone %s", k, r, g.r[r].out, want);
            }
            assert_true(most > k); /* they are counted */
        }
}

/* ---- while backward is under way ---- */

typedef struct {
    bool known, compiled; /* what has come; each micro-batch */
    atomic_int folded;    /* ranks whose first fold is over */
} early;

typedef struct {
    tl_model *m;
    tl_group *g;
} layered;

/* Two layers, of which one is used twice. */
static void layers(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    const layered *l = ctx;
    (void)n_in, (void)n_out;
    tl_tensor y = tl_linear(t, l->m, "a", tl_tanh(t, tl_linear(t, l->m, "a", in[0], 4)), 4);
    y = tl_square(t, tl_linear(t, l->m, "b", y, 3));
    out[0] = tl_sum(t, y, TL_ALL, false);
    tl_group_backward(l->g, t, out[0]);
}

/* In the first micro-batch a rank begins backward when the one before has folded. out: the hash,
 * and what part of its sums it folded then before backward was over. */
static void train_early(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    static const float x[6][4] = {{1, 2}, {3, -1}, {0.5f, 4}, {-2, 1}, {1e-3f, 7}, {0, 5}};
    early *e = ctx;
    grouped_rank r = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = r.t = tl_tape_new(r.m);
    r.opt = tl_sgd_new(r.m, .lr = 0.1);
    link.comes = e->known ? link.comes : NULL;
    layered l = {r.m, tl_group_new(t, link)};
    r.c = e->compiled ? tl_compile(t, layers, 1, &l) : NULL;
    tl_group_cost cost = {0};
    for (int k = 0; k < 2; k++) {
        const tl_group_part p = tl_group_take(l.g, 3);
        tl_tensor loss, in = tl_data(t, x[3 * k + p.first], TL_F32, TL_DIMS(p.n, 4));
        while (k == 0 && link.size > 1 && atomic_load(&e->folded) < link.rank)
            sched_yield();
        if (e->compiled)
            tl_run(r.c, &in, 1, &loss);
        else
            layers(t, &in, 1, &loss, 1, &l);
        tl_group_fold(l.g);
        atomic_fetch_add(&e->folded, 1);
        cost = k == 0 ? tl_group_costs(l.g) : cost;
        tl_tape_reset(t);
    }
    tl_group_share(l.g);
    tl_step(r.opt, t);
    tl_group_free(l.g);
    grouped_end(&r, out);
    if (strlen(out) == 64)
        snprintf(out + 64, GROUPED_HASH - 64, " %.4f",
                 cost.sums > 0 ? (double)cost.early / (double)cost.sums : 0);
}

static void folds_begin_while_backward_is_under_way(void **unused)
{
    static ring g;
    char want[GROUPED_HASH];
    static early e;
    (void)unused;
    train_early(&e, grouped_alone(), want);
    for (int i = 0; i < 16; i++) {
        const int size = 2 + i % 4;
        atomic_store(&e.folded, 0);
        e.known = i & 4;
        e.compiled = i & 8;
        train_all(&g, size, train_early, &e);
        for (int r = 0; r < size; r++) {
            const double share = strtod(g.r[r].out + 64, NULL);
            /* Rank 0 never waits. In a graph of no samples some steps do nothing, and are not. */
            if (strncmp(g.r[r].out, want, 64) != 0 ||
                (share != (r == 0 || e.known) && !(e.compiled && r >= 3)))
                fail_msg("rank %d of %d%s: %s, alone %s", r, size, e.compiled ? ", compiled" : "",
                         g.r[r].out, want);
        }
    }
}

/* ---- a rank that has nothing to send of a parameter ---- */

static void looked_up(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                      void *ctx)
{
    const layered *l = ctx;
    (void)n_in, (void)n_out;
    tl_tensor table = tl_param(t, l->m, "table", TL_F32, TL_DIMS(5, 6), TL_INIT_NORMAL, 1);
    out[0] = tl_sum(t, tl_square(t, tl_embedding(t, table, tl_transpose(t, in[0], 0, 1))), TL_ALL,
                    false);
    tl_group_backward(l->g, t, out[0]);
}

/* All samples are those of rank *ctx. Ranks before it, which are compiled, have none: nothing waits
 * there, and no number of parts is too large. */
static void train_one_rank(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    static const int64_t ids[4][2] = {{4, 0}, {4, 3}, {1, 4}, {0, 0}};
    const int one = link.size > 1 ? *(const int *)ctx : 0;
    grouped_rank r = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = r.t = tl_tape_new(r.m);
    r.opt = tl_sgd_new(r.m, .lr = 0.1);
    layered l = {r.m, tl_group_new(t, link)};
    r.c = link.rank < one ? tl_compile(t, looked_up, 1, &l) : NULL;
    tl_group_parts(l.g, 2);
    for (int step = 0; step < 2; step++) {
        const int64_t n = link.rank == one ? 4 : 0;
        tl_group_begin(l.g, (tl_group_part){link.rank > one ? 4 : 0, n, 4});
        tl_tensor loss, in = tl_data(t, ids[0], TL_I64, TL_DIMS(n, 2));
        if (r.c != NULL)
            tl_run(r.c, &in, 1, &loss);
        else
            looked_up(t, &in, 1, &loss, 1, &l);
        tl_group_fold(l.g);
        tl_group_share(l.g);
        tl_step(r.opt, t);
        tl_tape_reset(t);
    }
    tl_group_free(l.g);
    grouped_end(&r, out);
}

static void a_rank_without_sums_is_passed_in_parts(void **unused)
{
    static ring g;
    char want[GROUPED_HASH];
    (void)unused;
    train_one_rank(NULL, grouped_alone(), want);
    assert_int_equal(strlen(want), 64);
    for (int size = 2; size <= 4; size++)
        for (int one = 0; one < size; one++) {
            train_all(&g, size, train_one_rank, &one);
            for (int r = 0; r < size; r++)
                if (strcmp(g.r[r].out, want) != 0)
                    fail_msg("samples of rank %d, rank %d of %d: %s for %s", one, r, size,
                             g.r[r].out, want);
        }
}

/* Calls that may not stand there; rank 1 of 2 hears of it. */
static void misplace(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    const int f = *(const int *)ctx;
    grouped_rank r = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = r.t = tl_tape_new(r.m);
    r.opt = tl_sgd_new(r.m, .lr = 0.1);
    tl_group *g = tl_group_new(t, link);
    tl_tensor x = tl_data(t, ((float[4]){1, 2, 3, 4}), TL_F32, TL_DIMS(1, 4));
    tl_tensor h = tl_linear(t, r.m, "a", x, 2, .shared = true), y = tl_sum(t, h, TL_ALL, false);
    if (f == 5) {
        tl_backward(t, y);
        tl_group_share(g);
    }
    if (f > 0)
        tl_group_take(g, 2);
    tl_group_backward(g, t, f == 7 ? tl_mean(t, h, TL_ALL, false) : y);
    if (f == 1)
        tl_group_backward(g, t, y);
    y = tl_sum(t, tl_linear(t, r.m, "a", x, 2, .shared = true), TL_ALL, false);
    if (f == 2 || f == 3)
        tl_backward(t, y, .put_off = f == 2);
    if (f == 4)
        tl_group_count(g, 1);
    if (f != 6)
        tl_group_fold(g);
    if (f == 6 || f == 8)
        tl_step(r.opt, t);
    tl_group_free(g);
    grouped_end(&r, out);
}

/* Sums of 7 MB, which are sent in pieces of one: of a matrix, or with a number of elements in *ctx
 * of a table, in parts of so many, which are columns. */
enum { WIDE = 1000, OUT = 900 };
static float wide_x[3][WIDE];
static const int64_t row_of[3][2] = {{0, 2999}, {7, 7}, {2999, 1500}};

static void train_wide(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    const int64_t parts = *(const int64_t *)ctx;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 1e-3);
    tl_group *g = tl_group_new(t, link);
    if (parts > 0)
        tl_group_parts(g, parts);
    for (int step = 0; step < 2; step++) {
        const tl_group_part p = tl_group_take(g, 3);
        tl_tensor in = tl_data(t, wide_x[p.first], TL_F32, TL_DIMS(p.n, WIDE)),
                  ids = tl_data(t, row_of[p.first], TL_I64, TL_DIMS(p.n, 2)),
                  w = tl_param(t, m, "w", TL_F32,
                               parts > 0 ? TL_DIMS(3000, 300) : TL_DIMS(WIDE, OUT),
                               .kind = TL_INIT_NORMAL, .scale = 0.01),
                  y = parts > 0 ? tl_embedding(t, w, ids) : tl_matmul(t, in, w);
        tl_group_backward(g, t, tl_sum(t, tl_square(t, y), TL_ALL, false));
        tl_group_fold(g);
        tl_tape_reset(t);
        tl_group_share(g);
        tl_step(o, t);
    }
    snprintf(out, GROUPED_HASH, "%s", tl_error(t));
    if (!tl_failed(t))
        tl_model_sha256(m, out);
    tl_error_clear(t);
    tl_group_free(g);
    tl_free(o, t, m);
}

static void sums_larger_than_a_message(void **unused)
{
    static ring g;
    char want[GROUPED_HASH];
    (void)unused;
    for (int i = 0; i < 3 * WIDE; i++)
        wide_x[i / WIDE][i % WIDE] = (float)(i * 37 % 101 - 50) / 64;
    for (int64_t parts = 0; parts <= 400000; parts += 400000) {
        train_wide(&parts, grouped_alone(), want);
        assert_int_equal(strlen(want), 64);
        train_all(&g, 3, train_wide, &parts);
        for (int r = 0; r < 3; r++)
            assert_string_equal(g.r[r].out, want);
    }
}

/* Without a group every call counts as one of a process that trains alone. */
static void a_group_that_cannot_be_is_an_error(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    (void)unused;
    assert_null(tl_group_new(t, (tl_link){.rank = 1, .size = 2}));
    assert_int_equal(tl_error_status(t), TL_EUSAGE);
    assert_non_null(strstr(tl_error(t), "tl_group_new: a tape without a model"));
    tl_err e = {.status = TL_OK};
    assert_int_not_equal(tl_link_mpi(NULL, 0, &e), TL_OK);
    assert_non_null(strstr(e.message, "tl_link_mpi: out"));
    for (int i = 0; i < 2; i++) {
        tl_link link;
        tl_err_clear(&e);
        assert_int_equal(tl_link_mpi(&link, i == 0 ? -1 : (double)NAN, &e), TL_EDOMAIN);
        assert_non_null(strstr(e.message, i == 0 ? "timeout of -1" : "nan"));
    }
    static const char *const started[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS",
                                          "SLURM_STEP_NUM_TASKS"};
    for (int i = 0; i < 8; i++) { /* a process without MPI that a launcher started as one of two */
        tl_link link;
        tl_err_clear(&e);
        setenv(started[i / 2], i % 2 ? "2" : "1", 1);
        assert_int_equal(tl_link_mpi(&link, 0, &e), i % 2 ? TL_EUSAGE : TL_OK);
        assert_true(i % 2 == 0 || strstr(e.message, started[i / 2]) != NULL);
        unsetenv(started[i / 2]);
    }
    tl_model *m = tl_model_new(.seed = 1);
    const int odd[][2] = {{0, 0}, {3, 2}, {-1, 2}, {0, -1}, {0, 2}};
    const char *const says[] = {"rank 0 of 0", "rank 3 of 2", "rank -1 of 2", "rank 0 of -1",
                                "rank 0 of 2, or without its functions"};
    for (int i = 0; i < 5; i++) {
        tl_free(t);
        t = tl_tape_new(m);
        assert_null(tl_group_new(t, (tl_link){.rank = odd[i][0], .size = odd[i][1]}));
        assert_int_equal(tl_error_status(t), TL_EUSAGE);
        assert_non_null(strstr(tl_error(t), says[i]));
    }
    tl_free(t, m);
}

static void note_end(void *ctx, bool failed) { ((int *)ctx)[failed]++; }

static void a_link_is_told_of_its_end(void **unused)
{
    (void)unused;
    for (int failed = 0; failed < 2; failed++) {
        int ends[2] = {0, 0};
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_link link = grouped_alone();
        link.ctx = ends;
        link.end = note_end;
        tl_group *g = tl_group_new(t, link);
        if (failed)
            tl_group_parts(g, 0);
        tl_group_free(g);
        assert_true(ends[failed] == 1 && ends[!failed] == 0);
        tl_error_clear(t);
        tl_free(t, m);
    }
    assert_int_equal(tl_group_parts(NULL, 0), TL_OK); /* without a group */
    assert_int_equal(tl_group_begin(NULL, (tl_group_part){0, 1, 1}), TL_OK);
    tl_group_free(NULL);
}

/* A second group's totals and early folds would not be heard of. */
static void a_tape_has_one_group(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    grouped_rank r = {.m = tl_model_new(.seed = 1)};
    (void)ctx;
    r.t = tl_tape_new(r.m);
    tl_group *g = tl_group_new(r.t, link);
    if (tl_group_new(r.t, link) == NULL)
        snprintf(out, GROUPED_HASH, "%s", tl_error(r.t));
    tl_error_clear(r.t);
    tl_group_free(g);
    tl_free(r.t, r.m);
}

static void a_second_group_is_refused(void **unused)
{
    static ring g;
    (void)unused;
    train_all(&g, 2, a_tape_has_one_group, NULL);
    for (int r = 0; r < 2; r++)
        assert_non_null(strstr(g.r[r].out, "tl_group_new: the tape has a group already"));
}

static void calls_between_backward_and_fold_are_refused(void **unused)
{
    static const char *const says[] = {
        "no micro-batch has begun",
        "it is a micro-batch's last, and this has one",
        "another backward behind tl_group_backward",
        "has a backward whose gradients do not wait",
        "a count between tl_group_backward and tl_group_fold",
        "no micro-batch has been folded",
        "call tl_group_fold and tl_group_share first",
        "how many ranks there are: mean (tests/test_group.c",
        "are shared; call tl_group_share first",
    };
    static ring g;
    (void)unused;
    for (int f = 0; f < 9; f++) {
        train_all(&g, 2, misplace, &f);
        for (int r = 0; r < 2; r++)
            if (strlen(g.r[r].out) == 64 || (r == 0 && strstr(g.r[r].out, says[f]) == NULL))
                fail_msg("%d, rank %d: %s", f, r, g.r[r].out);
    }
}

/* ---- what would part the ranks in silence ---- */

typedef enum {
    OF_PARAMETERS,
    EARLIER_MEAN,
    NO_GROUP,
    NO_GROUP_LATER,
    ENDS,
    AGAIN,
    PARTINGS
} parting;

static void part_ranks(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    const parting f = *(const parting *)ctx;
    grouped_rank r = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = r.t = tl_tape_new(r.m);
    r.opt = tl_sgd_new(r.m, .lr = 0.1);
    tl_group *g = tl_group_new(t, link);
    for (int step = 0; step < 2 && !tl_failed(t); step++) {
        const bool joins = f != NO_GROUP && (f != NO_GROUP_LATER || step == 0);
        tl_tensor w = tl_param(t, r.m, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1),
                  x = tl_data(t, ((float[4]){1, 2, 3, 4}), TL_F32, TL_DIMS(2, 2)),
                  y = tl_square(t, tl_matmul(t, x, w));
        if (joins)
            tl_group_take(g, 2 * link.size);
        if (f == EARLIER_MEAN)
            assert_int_equal(tl_backward(t, tl_mean(t, y, TL_ALL, false), .put_off = true,
                                         .retain = true),
                             link.size == 1 ? TL_OK : TL_EUSAGE);
        y = tl_sum(t, f == OF_PARAMETERS ? tl_square(t, w) : y, TL_ALL, false);
        if (joins)
            tl_group_backward(g, t, y);
        else
            tl_backward(t, y);
        if (joins && tl_group_fold(g) == TL_OK && f == ENDS)
            tl_group_free(g), g = NULL;
        if (joins && g != NULL)
            tl_group_share(g);
        if (f == AGAIN) { /* one fails, and all clear that */
            if (link.rank == 1)
                tl_group_begin(g, (tl_group_part){3, 2, 4});
            tl_group_count(g, 1);
            assert_true(tl_failed(t));
            tl_error_clear(t);
            for (int i = 0; i < 2; i++) {
                assert_int_equal(tl_group_count(g, 10), 0);
                assert_non_null(strstr(tl_error(t), "2 samples from 3 on, of 4"));
                if (i == 0)
                    tl_error_clear(t);
            }
        }
        tl_step(r.opt, t);
        tl_tape_reset(t);
    }
    tl_group_free(g);
    grouped_end(&r, out);
}

static void what_would_part_ranks_is_refused(void **unused)
{
    static const char *const says[PARTINGS] = {
        [OF_PARAMETERS] = "a loss of parameters alone would count once for each of",
        [EARLIER_MEAN] = "how many ranks there are: mean (tests/test_group.c",
        [NO_GROUP] = "shared; call tl_group_take, tl_group_fold",
        [NO_GROUP_LATER] = "shared; call tl_group_take, tl_group_fold",
        [ENDS] = "no parameter has a gradient",
        [AGAIN] = "tl_group: it has ended with a failure",
    };
    static ring g;
    (void)unused;
    for (parting f = 0; f < PARTINGS; f++)
        for (int size = 2; size <= 3; size++) {
            train_all(&g, size, part_ranks, &f);
            for (int r = 0; r < size; r++)
                if (strlen(g.r[r].out) == 64 || (r == 0 && strstr(g.r[r].out, says[f]) == NULL))
                    fail_msg("%d, rank %d of %d: %s", f, r, size, g.r[r].out);
        }
}

/* ---- programs ---- */

typedef enum {
    LOOP,
    OP,
    USE,
    BACKWARDS,
    LATER,
    FIRST_FORGETS,
    SECOND_FORGETS,
    RAGGED,
    PROGRAMS
} strange;

/* Parts of 2 of 4 samples. Rank 1's are of another program, in step 2: a longer loop, another op, a
 * use more, a backward more. LATER: rank 0 has no samples in the first micro-batch, and runs
 * nothing; rank 1 runs nothing in the second. A rank that forgets its backward has samples. RAGGED:
 * it is allowed. */
static void train_strange(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    const strange f = *(const strange *)ctx;
    grouped_rank r = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = r.t = tl_tape_new(r.m);
    r.opt = tl_sgd_new(r.m, .lr = 0.1);
    tl_group *g = tl_group_new(t, link);
    tl_param(t, r.m, "w", TL_F32, TL_DIMS(3, 3), TL_INIT_NORMAL, 1);
    for (int i = 0; i < 2 + (f == LATER); i++) {
        const bool strays = link.rank == 1 && i == 1 && f != LATER,
                   other = strays || (f == LATER && i == 2);
        const bool none = f == LATER && i > 0 && link.rank == i - 1;
        const bool forgets = i == 1 && ((f == FIRST_FORGETS && link.rank == 0) ||
                                        (f == SECOND_FORGETS && link.rank == 1));
        const int64_t first = f == LATER && i > 0 ? 2 * (i - 1) * link.rank : 2 * link.rank;
        tl_group_begin(g, (tl_group_part){first, none ? 0 : 2, f == LATER && i > 0 ? 2 : 4});
        tl_tensor w = tl_model_find(r.m, "w"),
                  x = tl_data(t, ((float[6]){1, 2, 3, 4, 5, 6}), TL_F32, TL_DIMS(2, 3));
        for (int k = 0; k < (strays && (f == LOOP || f == RAGGED) ? 3 : 2); k++)
            x = tl_matmul(t, tl_tanh(t, x), w);
        if (other && (f == OP || f == LATER))
            x = tl_sin(t, x);
        x = strays && f == USE ? tl_matmul(t, x, tl_transpose(t, w, 0, 1)) : tl_scale(t, x, 2);
        x = tl_sum(t, x, TL_ALL, false);
        if (strays && f == BACKWARDS)
            tl_backward(t, x, .put_off = true, .retain = true);
        if (f == RAGGED)
            tl_backward(t, x, .put_off = true, .ragged = true);
        else if (!none && !forgets)
            tl_group_backward(g, t, x);
        tl_group_fold(g);
        tl_tape_reset(t);
        if (f == LATER && i == 1)
            continue;
        tl_group_share(g);
        tl_step(r.opt, t);
        tl_tape_reset(t);
    }
    tl_group_free(g);
    grouped_end(&r, out);
}

static void ranks_of_other_programs_are_refused(void **unused)
{
    static ring g;
    (void)unused;
    for (strange f = 0; f < PROGRAMS; f++) {
        const char *says = "tl_group_fold: rank 1 runs another program than rank 0";
        if (f == LATER)
            says = "tl_group_fold: rank 0 runs another program than rank 1";
        else if (f == FIRST_FORGETS)
            says = "the ranks before rank 1 take 2 samples and call no tl_backward; rank 1 does";
        else if (f == SECOND_FORGETS)
            says = "rank 1 takes 2 samples and calls no tl_backward; rank 0 or one before it does";
        train_all(&g, 2, train_strange, &f);
        for (int i = 0; i < 2; i++)
            if (f == RAGGED ? strlen(g.r[i].out) != 64 : strstr(g.r[i].out, says) == NULL)
                fail_msg("%d, rank %d: %s", (int)f, i, g.r[i].out);
    }
}

/* Rank 1 of three has no samples and runs nothing; *ctx: rank 2 runs another program than rank 0.
 */
static void train_around(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    grouped_rank r = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = r.t = tl_tape_new(r.m);
    r.opt = tl_sgd_new(r.m, .lr = 0.1);
    tl_group *g = tl_group_new(t, link);
    tl_tensor w = tl_param(t, r.m, "w", TL_F32, TL_DIMS(3, 3), TL_INIT_NORMAL, 1);
    tl_group_begin(g, (tl_group_part){link.rank == 0 ? 0 : 2, link.rank == 1 ? 0 : 2, 4});
    tl_tensor x = tl_data(t, ((float[6]){1, 2, 3, 4, 5, 6}), TL_F32, TL_DIMS(2, 3));
    x = tl_matmul(t, x, w);
    if (*(const bool *)ctx && link.rank == 2)
        x = tl_sin(t, x);
    if (link.rank != 1)
        tl_group_backward(g, t, tl_sum(t, tl_square(t, x), TL_ALL, false));
    tl_group_fold(g);
    tl_tape_reset(t);
    tl_group_share(g);
    tl_step(r.opt, t);
    tl_group_free(g);
    grouped_end(&r, out);
}

static void programs_meet_across_a_rank_that_runs_nothing(void **unused)
{
    static ring g;
    (void)unused;
    for (int k = 0; k < 2; k++) {
        bool other = k == 1;
        train_all(&g, 3, train_around, &other);
        for (int i = 0; i < 3; i++)
            if (other ? strstr(g.r[i].out, "rank 2 runs another program than rank 1") == NULL
                      : strlen(g.r[i].out) != 64 || strcmp(g.r[i].out, g.r[0].out) != 0)
                fail_msg("%d, rank %d: %s", k, i, g.r[i].out);
    }
}

/* ---- totals ---- */

/* Two totals, and a sum that each rank keeps for itself. */
static void train_totals(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    grouped_rank r = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = r.t = tl_tape_new(r.m);
    r.opt = tl_sgd_new(r.m, .lr = 0.1);
    tl_group *g = tl_group_new(t, link);
    tl_tensor total[3], w = tl_param(t, r.m, "w", TL_F32, TL_SCALAR, TL_INIT_ONES, 1);
    int64_t rows = 0;
    (void)ctx;
    for (int k = 0; k < 3; k++)
        total[k] = tl_data(r.m, (double[]){0}, TL_F64, TL_SCALAR);
    for (int k = 0; k < 2; k++)
        tl_group_total(g, total[k]);
    for (int step = 0; step < 2; step++) {
        const tl_group_part part = tl_group_take(g, 7);
        float x[7] = {0}, one[7] = {1, 1, 1, 1, 1, 1, 1};
        for (int64_t i = 0; i < part.n; i++)
            x[i] = 1 / (float)(part.first + i + 1 + 10 * step);
        rows += part.n;
        tl_tensor y = tl_mul(t, tl_data(t, x, TL_F32, TL_DIMS(part.n)), w);
        tl_sum_to(t, tl_data(t, one, TL_F32, TL_DIMS(part.n)), TL_SCALAR, total[2]);
        tl_sum_to(t, tl_detach(t, tl_square(t, y)), TL_SCALAR, total[1]);
        tl_sum_to(t, tl_detach(t, y), TL_SCALAR, total[0]);
        tl_group_backward(g, t, tl_sum(t, tl_square(t, y), TL_ALL, false));
        tl_group_fold(g);
        tl_tape_reset(t);
        tl_group_share(g);
        tl_step(r.opt, t);
        tl_tape_reset(t);
    }
    const double a = tl_item(t, total[0]), b = tl_item(t, total[1]);
    const bool own = tl_item(t, total[2]) == (double)rows;
    tl_group_free(g);
    grouped_end(&r, out);
    if (strlen(out) == 64)
        snprintf(out + 64, GROUPED_HASH - 64, " %a %a%s", a, b, own ? "" : " and not its own");
}

static void what_is_no_total_stays_with_its_rank(void **unused)
{
    static ring g;
    char want[GROUPED_HASH];
    (void)unused;
    train_totals(NULL, grouped_alone(), want);
    assert_true(strlen(want) > 64 && strstr(want, "own") == NULL);
    for (int size = 2; size <= 3; size++) {
        train_all(&g, size, train_totals, NULL);
        for (int i = 0; i < size; i++)
            if (strcmp(g.r[i].out, want) != 0)
                fail_msg("rank %d of %d: %s for %s", i, size, g.r[i].out, want);
    }
}

/* ---- where ranks part ---- */

static char logs[RING_MOST][1024];

/* Each rank logs its updates. A bit flips in the state of rank 1's optimizer before step *ctx. */
static void train_logged(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    const grouped_program *p = &grouped_programs[0];
    grouped_rank r;
    grouped_begin(&r, p, TL_F32);
    tl_group *g = tl_group_new(r.t, link);
    for (int step = 1; step <= 3; step++) {
        const tl_group_part part = tl_group_take(g, GROUPED_SAMPLES);
        grouped_backward(&r, p, step, (int)part.first, (int)(part.first + part.n), true);
        tl_group_fold(g);
        tl_group_share(g);
        tl_array m;
        if (step == *(const int *)ctx && link.rank == 1 &&
            tl_array_of(r.t, tl_model_find(r.m, "adamw.m.l2.bias"), &m))
            ((uint32_t *)m.data)[1] ^= 1u << 20;
        tl_log_open(r.t, logs[link.rank], .first = step, .append = step > 1);
        tl_step(r.opt, r.t);
        tl_log_close(r.t);
        tl_tape_reset(r.t);
    }
    tl_group_agree(g, NULL, 0);
    tl_group_free(g);
    grouped_end(&r, out);
}

/* What ranks differ in after an update is told by its log: before it all have the same gradients.
 */
static void logs_of_updates_tell_where_a_rank_parts(void **unused)
{
    static ring g;
    int step = 0; /* in none */
    (void)unused;
    for (int i = 0; i < 3; i++)
        snprintf(logs[i], sizeof logs[i], "%s", logged_file((const char *[]){"a", "b", "c"}[i]));
    train_all(&g, 3, train_logged, &step);
    for (int i = 0; i < 3; i++)
        assert_int_equal(strlen(g.r[i].out), 64);
    assert_int_equal(logged_diff("a", "b"), 0);
    logged_says("results of 3 steps are the same");
    assert_int_equal(logged_diff("a", "c"), 0);
    step = 2;
    train_all(&g, 3, train_logged, &step);
    for (int i = 0; i < 3; i++)
        assert_non_null(strstr(g.r[i].out, "rank 1 has "));
    assert_int_equal(logged_diff("a", "c"), 0);
    assert_int_equal(logged_diff("a", "b"), 1);
    logged_says("part in step 2");
    logged_says("l2.bias");
}

/* ---- what is noticed ---- */

typedef enum {
    SEED,
    FROZEN,
    WEIGHT,
    NOTE,
    UNKEYED,
    GAP,
    END_MISSING,
    STEPS,
    CALLS,
    FAILS,
    PUT_ON,
    PUT_ON_LATER, /* in a second micro-batch, the middle rank, or the last */
    PUT_ON_LAST,
    PUT_ON_RUN_LATER, /* of a graph */
    PUT_ON_RUN,
    TWICE,
    MIDDLE,
    FAULTS /* and from there on those that folds can meet while backward is under way */
} fault;

/* Rank 1 strays; TWICE: all do. */
static void stray(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    const fault given = *(const fault *)ctx, f = given % FAULTS;
    const bool strays = link.rank == 1;
    const grouped_program *p = &grouped_programs[0];
    char value[128];
    snprintf(value, sizeof value, "%0*d%c", 110, 0, strays && f == NOTE ? '3' : '2');
    tl_note note = {strays && f == UNKEYED ? NULL : "--lr", value};
    grouped_rank r;
    grouped_begin(&r, p, TL_F32);
    tl_group *g = tl_group_new(r.t, link);
    tl_tensor total = tl_data(r.m, (double[]){0}, TL_F64, TL_SCALAR);
    r.g = given < FAULTS ? NULL : g;
    if (strays && f == SEED)
        tl_model_reseed(r.m, 5);
    if (strays && f == FROZEN)
        tl_model_freeze(r.m, "l2.", true);
    if (strays && f == WEIGHT)
        tl_write(r.m, tl_model_find(r.m, "l1.bias"), (float[12]){1}, 12 * sizeof(float));
    if (f == TWICE)
        tl_group_total(g, total);
    grouped_compile(&r, f == PUT_ON_RUN);
    tl_group_agree(g, &note, 1);
    for (int step = 0; step < 3 && !tl_failed(r.t); step++) {
        tl_group_part part = tl_group_take(g, GROUPED_SAMPLES);
        if (strays && f == FAILS)
            tl_add(r.t, r.in.ids, tl_data(r.t, (float[3]){0}, TL_F32, TL_DIMS(3)));
        for (int i = 0; f == TWICE && i < 2; i++)
            tl_sum_to(r.t, tl_data(r.t, (float[3]){1}, TL_F32, TL_DIMS(3)), TL_SCALAR, total);
        grouped_backward(&r, p, step, (int)part.first, (int)(part.first + part.n),
                         !(strays && (f == PUT_ON || f == PUT_ON_RUN)));
        tl_group_fold(g);
        if (strays && f == MIDDLE)
            tl_model_freeze(r.m, "l2.", true);
        if (strays && f == CALLS)
            tl_group_count(g, 1);
        tl_group_share(g);
        tl_step(r.opt, r.t);
        tl_tape_reset(r.t);
    }
    tl_group_free(g);
    grouped_end(&r, out);
}

/* The part of rank 1 has a gap before it, or the last rank's ends early; rank 1 has a micro-batch
 * more. */
static void stray_parts(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    const fault given = *(const fault *)ctx, f = given % FAULTS;
    const grouped_program *p = &grouped_programs[0];
    grouped_rank r;
    grouped_begin(&r, p, TL_F32);
    tl_group *g = tl_group_new(r.t, link);
    r.g = given < FAULTS ? NULL : g;
    for (int i = 0; i < 4; i++) {
        const int from = 3 * link.rank + (f == GAP && link.rank == 1),
                  to = 3 * link.rank + 3 - (f == END_MISSING && link.rank == link.size - 1);
        tl_group_begin(g, (tl_group_part){from, to - from, 3 * link.size});
        const int adds = f == PUT_ON_LATER || f == PUT_ON_RUN_LATER ? 1
                         : f == PUT_ON_LAST                         ? link.size - 1
                                                                    : -1;
        if (f == PUT_ON_RUN_LATER && i < 3) { /* another program in the second */
            tl_free(r.c);
            grouped_compile(&r, true);
        }
        grouped_backward(&r, p, 0, from, to, i != 1 || link.rank != adds);
        tl_group_fold(g);
        tl_tape_reset(r.t);
        if (i % 2 == 1 || (f == STEPS && link.rank != 1)) {
            tl_group_share(g);
            tl_grad_clear(r.t);
        }
    }
    tl_group_free(g);
    grouped_end(&r, out);
}

static void what_strays_is_named(void **unused)
{
    static const char *const says[FAULTS] = {
        [SEED] = "rank 1 has seed 5, rank 0 has 3",
        [FROZEN] = "rank 1 has l2.bias parameter F32 [3] frozen",
        [WEIGHT] = "rank 1 has l1.bias parameter F32 [12], sha256",
        [NOTE] = "rank 1 has --lr ...000000000000000000003, rank 0 has ...000000000000000000002",
        [UNKEYED] = "rank 1 has failed: tl_group_agree: a note is NULL",
        [GAP] = "rank 1 takes samples from 4 on, of 9; those of rank 0 ended at 3 of 9",
        [END_MISSING] = "rank 2 of 3 takes samples 6 to 8 of 9: the first is missing, or the last",
        [STEPS] = "rank 0 sends gradients, where rank 1 expects sums",
        [CALLS] = "rank 0 sends gradients, where rank 1 expects a count",
        [FAILS] = "rank 1 has failed: add: ",
        [PUT_ON] = "rank 1 has a backward whose gradients do not wait",
        [PUT_ON_LATER] = "rank 1 has a backward whose gradients do not wait",
        [PUT_ON_LAST] = "rank 2 has a backward whose gradients do not wait",
        [PUT_ON_RUN_LATER] = "rank 1 has a backward whose gradients do not wait",
        [PUT_ON_RUN] = "rank 1 has a backward whose gradients do not wait",
        [TWICE] = "total 0 is added to twice in a micro-batch",
        [MIDDLE] = "'l2.weight' is not a parameter that is trained",
    };
    static ring g;
    int bad = 0;
    (void)unused;
    for (fault given = 0; given < 2 * FAULTS; given++) {
        const fault f = given % FAULTS;
        int told = 0;
        if (given > f && f >= PUT_ON && f <= PUT_ON_RUN)
            continue;
        const int size = f == MIDDLE ? 4 : 3; /* gradients go from 3 to 0, 1, 2 */
        train_all(&g, size,
                  (f >= GAP && f <= STEPS) || (f >= PUT_ON_LATER && f <= PUT_ON_RUN_LATER)
                      ? stray_parts
                      : stray,
                  &given);
        for (int i = 0; i < size; i++) {
            told += strstr(g.r[i].out, says[f]) != NULL;
            if (strlen(g.r[i].out) == 64 && ++bad)
                print_error("fault %d: rank %d goes on\n", given, i);
        }
        if (told < (f < PUT_ON ? 2 : size) && ++bad) /* one may have a word of its own for it */
            print_error("fault %d: %s\n  %s\n  %s\n  %s\n", given, g.r[0].out, g.r[1].out,
                        g.r[2].out, size > 3 ? g.r[3].out : "");
    }
    assert_int_equal(bad, 0);
}

/* Data that wants a gradient, which is of no other rank; and a weight that is reached and given
 * nothing, called and compiled. */
static void only_rstd(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                      void *model)
{
    tl_model *m = model;
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(3, 2), .kind = TL_INIT_NORMAL, .scale = 1),
              gamma = tl_param(t, m, "gamma", TL_F32, TL_DIMS(2), .kind = TL_INIT_ONES), rstd;
    (void)n_in, (void)n_out;
    tl_rms_norm_rstd(t, tl_matmul(t, in[0], w), gamma, 1e-3, &rstd);
    out[0] = tl_detach(t, rstd);
    tl_backward(t, tl_sum(t, rstd, TL_ALL, false), .put_off = true, .partial = true);
}

static void train_beside(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    static const float x[4][3] = {{1, 2, 3}, {.5f, -1, 2}, {-.25f, .75f, 1}, {2, 1, -1}};
    const int how = *(int *)ctx; /* marked data; a weight given nothing; the same compiled */
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    tl_group *g = tl_group_new(t, link);
    tl_compiled *c = tl_compile(t, only_rstd, 1, m);
    const tl_group_part p = tl_group_take(g, 4);
    tl_tensor in = tl_data(t, x[p.first], TL_F32, TL_DIMS(p.n, 3)), y;
    if (how == 0) {
        tl_require_grad(t, in);
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(3, 2), .kind = TL_INIT_NORMAL,
                               .scale = 1);
        tl_group_backward(g, t, tl_sum(t, tl_tanh(t, tl_matmul(t, in, w)), TL_ALL, false));
    } else if (how == 1) {
        only_rstd(t, &in, 1, &y, 1, m);
    } else {
        tl_run(c, &in, 1, &y);
    }
    tl_group_fold(g);
    tl_tape_reset(t);
    tl_group_share(g);
    tl_step(o, t);
    snprintf(out, GROUPED_HASH, "%s", tl_error(t));
    if (!tl_failed(t))
        tl_model_sha256(m, out);
    tl_group_free(g);
    tl_free(c);
    tl_free(o, t, m);
}

static void what_is_no_parameters_sum_is_left_alone(void **unused)
{
    char want[GROUPED_HASH] = "";
    (void)unused;
    for (int how = 0; how < 3; how++)
        for (int size = how == 2 ? 2 : 1; size <= 3; size++) { /* one rank: called */
            ring r;
            train_all(&r, size, train_beside, &how);
            if (size == 1)
                memcpy(want, r.r[0].out, sizeof want);
            for (int i = 0; i < size; i++)
                assert_string_equal(r.r[i].out, want);
            assert_int_equal(strlen(want), 64);
        }
}

/* A micro-batch of two backwards, of which the first is put off. */
static void train_twice_backward(void *ctx, tl_link link, char out[GROUPED_HASH])
{
    static const float x[4][3] = {{1, 2, 3}, {.5f, -1, 2}, {-.25f, .75f, 1}, {2, 1, -1}};
    const bool alone = ctx != NULL; /* without a group */
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    tl_group *g = alone ? NULL : tl_group_new(t, link);
    for (int step = 0; step < 2; step++) {
        const tl_group_part p = tl_group_take(g, 4);
        tl_tensor in = tl_data(t, x[p.first], TL_F32, TL_DIMS(p.n, 3));
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(3, 2), .kind = TL_INIT_NORMAL,
                               .scale = 1);
        tl_backward(t, tl_sum(t, tl_square(t, tl_matmul(t, in, w)), TL_ALL, false),
                    .put_off = true);
        tl_group_backward(g, t, tl_sum(t, tl_sin(t, tl_matmul(t, in, w)), TL_ALL, false));
        tl_group_fold(g);
        tl_tape_reset(t);
        tl_group_share(g);
        tl_step(o, t);
        tl_tape_reset(t);
    }
    snprintf(out, GROUPED_HASH, "%s", tl_error(t));
    if (!tl_failed(t))
        tl_model_sha256(m, out);
    tl_group_free(g);
    tl_free(o, t, m);
}

static void ends(void *ctx, bool failed) { (void)ctx, (void)failed; }

static void backwards_before_the_last_are_put_off(void **unused)
{
    char want[GROUPED_HASH] = "", alone[GROUPED_HASH] = "";
    (void)unused;
    train_twice_backward(want, (tl_link){0}, want);
    assert_int_equal(strlen(want), 64);
    train_twice_backward(alone, (tl_link){.size = 1, .end = ends}, alone); /* it sends nothing */
    assert_string_equal(alone, want);
    for (int size = 1; size <= 3; size++) {
        ring r;
        train_all(&r, size, train_twice_backward, NULL);
        for (int i = 0; i < size; i++)
            assert_string_equal(r.r[i].out, want);
    }
}

/* ---- processes ---- */

/* Of a build with MPI, where mpirun is. */
static void processes_end_with_the_same_hash(void **unused)
{
    char mpi[32] = "", command[2048];
    FILE *f = fopen(TL_BUILD "/mpi", "r");
    (void)unused;
    if (f != NULL) {
        fgets(mpi, sizeof mpi, f);
        fclose(f);
    }
    mpi[strcspn(mpi, "\n")] = '\0';
    snprintf(command, sizeof command,
             "command -v mpirun.%s mpirun > /dev/null && [ -x '" TL_BUILD "/tests/grouped' ]",
             mpi + (*mpi == '1' ? 2 : 0));
    if (*mpi != '1' || system(command) != 0)
        TL_SKIP();
    snprintf(command, sizeof command,
             "cd '" TL_ROOT "' && tests/mpi.sh '" TL_BUILD "' %s small > /dev/null", mpi + 2);
    assert_int_equal(system(command), 0);
}

const struct CMUnitTest tl_tests_group[] = {
    cmocka_unit_test(one_hash_for_any_number_of_ranks),
    cmocka_unit_test(loaders_take_parts),
    cmocka_unit_test(a_step_sends_accumulators_once_more_than_micro_batches),
    cmocka_unit_test(folds_begin_while_backward_is_under_way),
    cmocka_unit_test(a_rank_without_sums_is_passed_in_parts),
    cmocka_unit_test(a_group_that_cannot_be_is_an_error),
    cmocka_unit_test(sums_larger_than_a_message),
    cmocka_unit_test(a_link_is_told_of_its_end),
    cmocka_unit_test(a_second_group_is_refused),
    cmocka_unit_test(calls_between_backward_and_fold_are_refused),
    cmocka_unit_test(what_would_part_ranks_is_refused),
    cmocka_unit_test(ranks_of_other_programs_are_refused),
    cmocka_unit_test(programs_meet_across_a_rank_that_runs_nothing),
    cmocka_unit_test(what_is_no_total_stays_with_its_rank),
    cmocka_unit_test_setup_teardown(logs_of_updates_tell_where_a_rank_parts, logged_begin,
                                    logged_end),
    cmocka_unit_test(what_strays_is_named),
    cmocka_unit_test(backwards_before_the_last_are_put_off),
    cmocka_unit_test(what_is_no_parameters_sum_is_left_alone),
    cmocka_unit_test(processes_end_with_the_same_hash),
};
const size_t tl_tests_group_count = sizeof tl_tests_group / sizeof *tl_tests_group;
