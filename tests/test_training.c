/* Training: optimizers against the reference, schedules, and one hash for a small Llama however it
 * is run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tally_data.h>

#include "tensor/isa.h"
#include "tensor/kernels/math64.h"
#include "tests/ref/ref.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_training[];
extern const size_t tl_tests_training_count;

/* The contract leaves the bits of f64 functions to the library; the reference takes this one from
 * there. */
static double library_cos(double x) { return tl_cos64(x); }
static const ref_f64_table own = {.cos = library_cos};

/* ---- optimizers against tests/ref ---- */

enum { PARAMS = 4, STEPS = 7 };
static const char *const names[PARAMS] = {"b.weight", "a.norm", "B", "a.weight"};
static const int64_t sizes[PARAMS] = {15, 7, 1, 40000}; /* the last one is cut between threads */

typedef struct {
    ref_tensor p[PARAMS], g[PARAMS], m[PARAMS], v[PARAMS];
} judge;

typedef struct {
    const char *what;
    bool adamw, groups;
    tl_opt_options o;
} trial;

static const trial trials[] = {
    {"sgd", false, false, {.lr = 0.1}},
    {"sgd, momentum, decay", false, false, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01}},
    {"sgd, momentum, decay beside it",
     false,
     false,
     {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .decoupled = true}},
    {"sgd, Nesterov, decay, clipped",
     false,
     false,
     {.lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01, .clip = 0.75}},
    {"sgd, clipped, groups, warm-up",
     false,
     true,
     {.lr = 0.3,
      .momentum = 0.5,
      .clip = 0.75,
      .schedule = {.kind = TL_CONSTANT, .warmup = 3, .total = 0, .min_ratio = 0}}},
    {"adamw", true, false, {.lr = 1e-2}},
    {"adamw, decay, betas",
     true,
     false,
     {.lr = 3e-3, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1}},
    {"adamw, clipped, groups, cosine",
     true,
     true,
     {.lr = 3e-3,
      .beta2 = 0.99,
      .weight_decay = 0.1,
      .clip = 150,
      .schedule = {.kind = TL_COSINE, .warmup = 2, .total = STEPS, .min_ratio = 0.05}}},
};

static double lr_of(const tl_opt_options *o, int64_t step)
{
    const tl_schedule *s = &o->schedule;
    if (s->kind == TL_COSINE || step < s->warmup)
        return ref_warmup_cosine(o->lr, o->lr * s->min_ratio, step, s->warmup, s->total);
    return o->lr;
}

/* One step of the reference on all parameters. */
static double judge_step(judge *j, const trial *c, int64_t step)
{
    const ref_tensor *g[PARAMS] = {&j->g[0], &j->g[1], &j->g[2], &j->g[3]};
    double norm = ref_global_norm(PARAMS, g, names),
           f = c->o.clip > 0 ? ref_clip_factor(norm, c->o.clip) : 1;
    for (int i = 0; i < PARAMS; i++) {
        double lr = lr_of(&c->o, step), wd = c->o.weight_decay;
        if (c->groups && strstr(names[i], "norm") != NULL)
            lr *= 0.5, wd = 0;
        if (c->groups && names[i][0] == 'B') /* matches two groups: the last one wins */
            lr *= 3, wd = 0.25;
        ref_adamw_options a = {lr, c->o.beta1 > 0 ? c->o.beta1 : 0.9,
                               c->o.beta2 > 0 ? c->o.beta2 : 0.999, c->o.eps > 0 ? c->o.eps : 1e-8,
                               wd};
        if (c->adamw)
            ref_adamw(&j->p[i], &j->g[i], &j->m[i], &j->v[i], f, a, step + 1);
        else
            ref_sgd(&j->p[i], &j->g[i], c->o.momentum > 0 ? &j->m[i] : NULL, f, lr,
                    (ref_sgd_options){c->o.momentum, wd, c->o.nesterov, c->o.decoupled});
    }
    return norm;
}

static void optimizer_case(const trial *c)
{
    judge j;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = c->adamw ? tl_adamw_new_at(m, c->o, __FILE__, __LINE__)
                         : tl_sgd_new_at(m, c->o, __FILE__, __LINE__);
    if (c->groups) {
        tl_opt_group(o, "*norm", 0.5, 0);
        tl_opt_group(o, "B*", 7, 7);
        tl_opt_group(o, "?", 3, 0.25);
    }
    for (int i = 0; i < PARAMS; i++) {
        tl_tensor p = tl_param(t, m, names[i], TL_F32, TL_DIMS(sizes[i]), TL_INIT_NORMAL, 1);
        j.p[i] = ref_new(REF_F32, 1, &sizes[i]);
        j.g[i] = ref_like(&j.p[i], REF_F32);
        j.m[i] = ref_like(&j.p[i], REF_F32);
        j.v[i] = ref_like(&j.p[i], REF_F32);
        tl_keep(t, p, j.p[i].data, (size_t)sizes[i] * 4);
    }
    for (int64_t step = 0; step < STEPS; step++) {
        tl_tensor loss = tl_scalar(t, TL_F32, 0);
        for (int i = 0; i < PARAMS; i++) { /* the gradient of p by sum(p * g) is g */
            tl_rng_key key = tl_rng_stream(5, names[i]);
            for (int64_t k = 0; k < sizes[i]; k++)
                ref_set(&j.g[i], k, tl_rng_normal64(key, (uint64_t)step, (uint64_t)k));
            tl_tensor g = tl_data(t, j.g[i].data, TL_F32, TL_DIMS(sizes[i]));
            loss = tl_add(t, loss,
                          tl_sum(t, tl_mul(t, tl_model_find(m, names[i]), g), TL_ALL, false));
        }
        assert_true(tl_opt_lr(o) == lr_of(&c->o, step));
        tl_backward(t, loss);
        assert_int_equal(tl_step(o, t), TL_OK);
        double norm = judge_step(&j, c, step);
        assert_true(c->o.clip > 0 ? tl_opt_grad_norm(o) == norm : isnan(tl_opt_grad_norm(o)));
        assert_int_equal(tl_opt_steps(o), step + 1);
        for (int i = 0; i < PARAMS; i++) {
            static float got[40000];
            tl_keep(t, tl_model_find(m, names[i]), got, (size_t)sizes[i] * 4);
            if (memcmp(got, j.p[i].data, (size_t)sizes[i] * 4) != 0)
                fail_msg("%s: step %d: %s differs from the reference", c->what, (int)step,
                         names[i]);
        }
        tl_tape_reset(t);
    }
    for (int i = 0; i < PARAMS; i++)
        ref_free(&j.p[i]), ref_free(&j.g[i]), ref_free(&j.m[i]), ref_free(&j.v[i]);
    tl_free(o, t, m);
}

static void optimizers_equal_the_reference(void **unused)
{
    (void)unused;
    const ref_f64_table *was = ref_set_f64_functions(&own);
    for (int threads = 1; threads <= 3; threads += 2)
        for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
            tl_threads_set(threads);
            optimizer_case(&trials[i]);
        }
    tl_threads_set(0);
    ref_set_f64_functions(was);
}

static void schedules(void **unused)
{
    const ref_f64_table *was = ref_set_f64_functions(&own);
    (void)unused;
    for (int64_t warmup = 0; warmup <= 30; warmup += 10)
        for (int64_t total = 40; total <= 97; total += 57) {
            tl_schedule s = {.kind = TL_COSINE,
                             .warmup = warmup,
                             .total = total,
                             .min_ratio = 0.05};
            for (int64_t step = 0; step <= total; step++)
                assert_true(tl_schedule_lr(&s, 3e-3, step) ==
                            ref_warmup_cosine(3e-3, 3e-3 * 0.05, step, warmup, total));
            assert_true(tl_schedule_lr(&s, 3e-3, total + 1) ==
                        tl_schedule_lr(&s, 3e-3, total)); /* stays at the end */
            assert_true(tl_schedule_lr(&s, 3e-3, INT64_MAX) == tl_schedule_lr(&s, 3e-3, total));
            s.kind = TL_CONSTANT;
            assert_true(tl_schedule_lr(&s, 3e-3, warmup) == 3e-3);
        }
    tl_schedule none = {0},
                instant = {.kind = TL_COSINE, .warmup = 5, .total = 5, .min_ratio = 0.5};
    assert_true(tl_schedule_lr(&none, 0.7, 0) == 0.7);
    assert_true(tl_schedule_lr(&instant, 1, 5) == 0.5); /* no step between warm-up and end */
    ref_set_f64_functions(was);
}

/* A step with anything wrong leaves weights, states and counts as they are. */
static void a_failed_step_changes_nothing(void **unused)
{
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_adamw_new(m, .lr = 0.1, .clip = 1);
    char before[65], after[65];
    (void)unused;
    tl_tensor a = tl_param(t, m, "a", TL_F32, TL_DIMS(3), TL_INIT_NORMAL, 1),
              z = tl_param(t, m, "z", TL_F64, TL_DIMS(3), TL_INIT_NORMAL, 1);
    tl_buffer(t, m, "adamw.v.z", TL_F64, TL_DIMS(2)); /* a name that the optimizer wants */
    tl_model_sha256(m, before);
    tl_backward(t, tl_add(t, tl_cast(t, tl_sum(t, tl_square(t, a), TL_ALL, false), TL_F64),
                          tl_sum(t, z, TL_ALL, false)));
    assert_string_equal(tl_error(t), "");
    assert_int_equal(
        tl_step(o, t),
        TL_ESHAPE); /* "z" cannot be trained: "a", which comes first, is not touched either */
    tl_model_sha256(m, after);
    assert_string_equal(before, after);
    assert_int_equal(tl_opt_steps(o), 0);
    tl_error_clear(t);
    tl_tape_reset(t);
    tl_model_freeze(m, "z", true);
    tl_backward(t, tl_sum(t, tl_square(t, a), TL_ALL,
                          false)); /* a good micro-batch, then one that fails */
    tl_add(t, a, tl_fill(t, TL_F32, TL_DIMS(2), 0));
    assert_int_equal(tl_step(o, t), TL_ESHAPE);
    tl_model_sha256(m, after);
    assert_string_equal(before, after);
    tl_error_clear(t);
    assert_int_equal(tl_step(o, t), TL_EUSAGE); /* clearing the error dropped the gradients */
    tl_free(o, t, m);
}

/* ---- a small Llama ---- */

enum { BATCH = 6 };

typedef struct {
    bool tied;
    int micro, threads, seq, steps, stop; /* stop: save and go on with a fresh model; 0: never */
    const char *isa;
    int64_t width;
} way;

static tl_tensor loss_of(tl_tape *t, tl_model *m, const way *w, int64_t rows, int64_t step,
                         int64_t first)
{
    tl_llama_config c = {.vocab = 17,
                         .width = w->width,
                         .layers = 2,
                         .heads = 4,
                         .kv_heads = 2,
                         .hidden = w->width * 3 / 2,
                         .max_positions = w->seq,
                         .tied = w->tied};
    static int64_t ids[BATCH * 64], next[BATCH * 64];
    tl_rng_key key = tl_rng_stream(1, "text");
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < w->seq; i++) {
            uint64_t sample = (uint64_t)(step * BATCH + first + r);
            ids[r * w->seq + i] = (int64_t)tl_rng_below(key, sample, (uint64_t)i, 17);
            next[r * w->seq + i] = (int64_t)tl_rng_below(key, sample, (uint64_t)i + 1, 17);
        }
    tl_tensor z = tl_llama(t, m, &c, tl_data(t, ids, TL_I64, TL_DIMS(rows, w->seq)));
    return tl_cross_entropy(t, z, tl_data(t, next, TL_I64, TL_DIMS(rows, w->seq)), TL_MEAN,
                            .count = tl_scalar(t, TL_F64, (double)(BATCH * w->seq)));
}

static tl_opt *new_optimizer(tl_model *m, const way *w)
{
    tl_opt *o = tl_adamw_new(
        m, .lr = 1e-2, .beta2 = 0.99, .weight_decay = 0.1, .clip = 0.5,
        .schedule = {.kind = TL_COSINE, .warmup = 2, .total = w->steps, .min_ratio = 0.1});
    tl_opt_group(o, "*norm*", 1, 0);
    return o;
}

static void train(const way *w, char hex[65])
{
    const char *isa = tl_isa_now()->name;
    tl_model *m = tl_model_new(.seed = 11);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = new_optimizer(m, w);
    tl_threads_set(w->threads);
    if (w->isa != NULL)
        assert_true(tl_isa_force(w->isa));
    for (int64_t step = 0; step < w->steps; step++) {
        if (w->stop > 0 && step == w->stop) {
            temp_dir dir;
            char path[1024];
            assert_true(temp_dir_make(&dir));
            assert_int_equal(tl_checkpoint_save(m, o, temp_dir_file(path, &dir, "half"), NULL, 0),
                             TL_OK);
            tl_free(o, t, m);
            m = tl_model_new(.seed = 12); /* its own first draws do not matter */
            t = tl_tape_new(m);
            o = new_optimizer(m, w);
            loss_of(t, m, w, 1, 0, 0);
            tl_tape_reset(t);
            if (tl_checkpoint_load(m, o, path, NULL, NULL, 0) != TL_OK)
                fail_msg("%s", tl_error(m));
            temp_dir_remove(&dir);
        }
        for (int64_t first = 0; first < BATCH; first += w->micro) {
            tl_backward(t, loss_of(t, m, w, w->micro, step, first));
            if (first + w->micro == BATCH)
                tl_step(o, t);
            tl_tape_reset(t);
        }
    }
    assert_string_equal(tl_error(t), "");
    assert_int_equal(tl_model_sha256(m, hex), TL_OK);
    tl_free(o, t, m);
    tl_isa_force(isa);
    tl_threads_set(0);
}

static void assert_hash(const way *w, const char *want)
{
    char got[65];
    train(w, got);
    if (strcmp(got, want) != 0)
        fail_msg("other weights: width %d, %s, micro-batch %d, %d threads, %s, stopped at %d",
                 (int)w->width, w->tied ? "tied" : "untied", w->micro, w->threads,
                 w->isa ? w->isa : "own level", w->stop);
}

static void one_hash(bool tied, char hex[65])
{
    static const int micros[] = {1, 2, 3, 6}, threads[] = {2, 3, 8};
    const way base = {.tied = tied, .micro = 6, .threads = 1, .seq = 8, .steps = 8, .width = 32};
    train(&base, hex);
    for (int i = 0; i < 4; i++) {
        way w = base;
        w.micro = micros[i];
        assert_hash(&w, hex);
        w.stop = 4;
        assert_hash(&w, hex);
    }
    for (int i = 0; i < 3; i++) {
        way w = base;
        w.threads = threads[i];
        assert_hash(&w, hex);
    }
    for (int i = 0; tl_isa_at(i) != NULL; i++) {
        way w = base;
        w.isa = tl_isa_at(i)->name;
        assert_hash(&w, hex);
        w.micro = 2;
        w.threads = 3;
        w.stop = 1;
        assert_hash(&w, hex);
    }
}

static void one_hash_however_it_is_run(void **unused)
{
    char untied[65], tied[65];
    (void)unused;
    one_hash(false, untied);
    one_hash(true, tied);
    assert_string_not_equal(untied, tied);
}

/* Large enough for the work to be cut between threads. */
static void one_hash_at_a_larger_size(void **unused)
{
    char hex[65];
    static const int threads[] = {2, 3, 8};
    const way base = {.micro = 6, .threads = 1, .seq = 64, .steps = 2, .width = 96};
    (void)unused;
    train(&base, hex);
    for (int i = 0; i < 3; i++) {
        way w = base;
        w.threads = threads[i];
        w.micro = i == 2 ? 3 : 6;
        w.isa = i == 0 ? "scalar" : NULL;
        assert_hash(&w, hex);
    }
}

const struct CMUnitTest tl_tests_training[] = {
    cmocka_unit_test(optimizers_equal_the_reference), cmocka_unit_test(schedules),
    cmocka_unit_test(a_failed_step_changes_nothing),  cmocka_unit_test(one_hash_however_it_is_run),
    cmocka_unit_test(one_hash_at_a_larger_size),
};
const size_t tl_tests_training_count = sizeof tl_tests_training / sizeof tl_tests_training[0];
