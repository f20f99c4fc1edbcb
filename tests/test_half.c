/* Training in f16 and bf16 through f32 masters, and the optimizers and schedules against loops written from NUMERICS 12. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tally.h>

#include "tensor/isa.h"
#include "tests/ref/ref.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_half[];
extern const size_t tl_tests_half_count;

static const tl_dtype halves[] = {TL_BF16, TL_F16};

/* ---- optimizers: one parameter against a naive loop ---- */

enum { N = 37, STEPS = 9 };

typedef enum { SGD, NESTEROV, ADAM, ADAMW } rule;
typedef struct {
    const char *what;
    rule rule;
    tl_opt_options o;
} trial;

/* beta 0 stands for the default. */
static const trial trials[] = {
    {"momentum", SGD, {.lr = 0.1, .momentum = 0.9}},
    {"Nesterov", NESTEROV, {.lr = 0.1, .momentum = 0.9, .nesterov = true}},
    {"Nesterov, decay, clipped", NESTEROV, {.lr = 0.05, .momentum = 0.7, .nesterov = true, .weight_decay = 0.02, .clip = 2}},
    {"Adam", ADAM, {.lr = 1e-2}},
    {"Adam, decay", ADAM, {.lr = 3e-3, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1}},
    {"Adam, decay, clipped, warm-up and linear", ADAM, {.lr = 3e-3, .weight_decay = 0.1, .clip = 1, .schedule = {.kind = TL_LINEAR, .warmup = 2, .total = 7, .min_ratio = 0.1}}},
    {"AdamW, decay, stable, then falling", ADAMW, {.lr = 3e-3, .weight_decay = 0.1, .schedule = {.kind = TL_WARMUP_STABLE_DECAY, .warmup = 2, .total = 8, .decay = 3}}},
};

/* NUMERICS 12.5, from its text. */
static double naive_lr(const tl_schedule *s, double lr, int64_t step)
{
    double w = (double)s->warmup, total = (double)s->total, low = lr * s->min_ratio, from;
    if (step < s->warmup)
        return lr * ((double)step + 1) / w;
    if (s->kind == TL_CONSTANT)
        return lr;
    from = s->kind == TL_LINEAR ? w : total - (double)s->decay;
    if (step >= s->total)
        return low + (lr - low) * (1 - 1.0);
    if ((double)step < from)
        return lr;
    return low + (lr - low) * (1 - ((double)step - from) / (total - from));
}

static float rounded(double x) { return (float)x; }

/* NUMERICS 12.2: lanes of squares in f64, the root, the factor. */
static float clip_of(const float *g, double max)
{
    double lane[32] = {0};
    if (!(max > 0))
        return 1;
    for (int i = 0; i < N; i++)
        lane[i % 32] = lane[i % 32] + (double)g[i] * (double)g[i];
    for (int w = 16; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            lane[i] = lane[i] + lane[i + w];
    double norm = sqrt(0.0 + (lane[0] + 0.0));
    return rounded(norm > max ? max / norm : 1);
}

/* NUMERICS 12.3, 12.4. t counts from 1. */
static void naive_step(const trial *c, int t, float lr, const float *g, float *w, float *m, float *v)
{
    double b1 = c->o.beta1 != 0 ? c->o.beta1 : 0.9, b2 = c->o.beta2 != 0 ? c->o.beta2 : 0.999, e = c->o.eps != 0 ? c->o.eps : 1e-8, p1 = 1, p2 = 1;
    float f = clip_of(g, c->o.clip), wd = rounded(c->o.weight_decay), mu = rounded(c->o.momentum);
    for (int i = 0; i < t; i++) {
        p1 = p1 * b1;
        p2 = p2 * b2;
    }
    float c1 = rounded(1 / (1 - p1)), c2 = rounded(1 / (1 - p2)), B1 = rounded(b1), B2 = rounded(b2), R1 = rounded(1 - b1), R2 = rounded(1 - b2), eps = rounded(e);
    for (int i = 0; i < N; i++) {
        float s = g[i] * f, step, decay = wd * w[i], u;
        if (c->rule == ADAM)
            s = s + decay;
        if (c->rule == SGD || c->rule == NESTEROV) {
            m[i] = (mu * m[i]) + s;
            step = c->rule == NESTEROV ? s + (mu * m[i]) : m[i];
            w[i] = w[i] - (lr * (step + decay));
            continue;
        }
        m[i] = (B1 * m[i]) + (R1 * s);
        v[i] = (B2 * v[i]) + ((R2 * s) * s);
        u = (m[i] * c1) / (sqrtf(v[i] * c2) + eps);
        w[i] = w[i] - (lr * (c->rule == ADAMW ? u + decay : u));
    }
}

static tl_opt *optimizer(const trial *c, tl_model *m)
{
    return c->rule == ADAM ? tl_adam_new_with(m, c->o) : c->rule == ADAMW ? tl_adamw_new_with(m, c->o) : tl_sgd_new_with(m, c->o);
}

/* The bytes of x on t. */
static void read_all(tl_tape *t, tl_tensor x, void *to, size_t bytes)
{
    if (tl_keep(t, x, to, bytes) != TL_OK)
        fail_msg("%s", tl_error(t));
}

/* The f32 buffer "master...NAME". */
static void master_of(tl_tape *t, tl_model *m, const char *name, float *to)
{
    for (int i = 0; i < tl_model_count(m); i++) {
        tl_named p = tl_model_at(m, i);
        size_t n = strlen(p.name), k = strlen(name);
        if (!p.param && strstr(p.name, "master") != NULL && n > k && strcmp(p.name + n - k, name) == 0) {
            assert_int_equal(p.array.dtype, TL_F32);
            read_all(t, p.tensor, to, (size_t)tl_array_count(&p.array) * sizeof *to);
            return;
        }
    }
    fail_msg("no master of '%s'", name);
}

static uint16_t narrow(tl_dtype d, float x)
{
    uint16_t h;
    ref_tensor r = ref_new(d == TL_F16 ? REF_F16 : REF_BF16, 1, (int64_t[]){1});
    ref_set(&r, 0, ref_round(r.dtype, (double)x));
    memcpy(&h, r.data, 2);
    ref_free(&r);
    return h;
}

static float widened(tl_dtype d, uint16_t h)
{
    ref_tensor r = ref_new(d == TL_F16 ? REF_F16 : REF_BF16, 1, (int64_t[]){1});
    memcpy(r.data, &h, 2);
    float x = (float)ref_get(&r, 0);
    ref_free(&r);
    return x;
}

static void one_trial(const trial *c, tl_dtype dtype)
{
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = optimizer(c, m);
    float w[N], mean[N] = {0}, square[N] = {0}, got[N];
    uint16_t half[N];
    bool small = dtype != TL_F32;
    tl_tensor p = tl_param(t, m, "p", dtype, TL_DIMS(N), TL_INIT_NORMAL, 1);
    read_all(t, tl_cast(t, p, TL_F32), w, sizeof w);
    for (int step = 0; step < STEPS; step++) {
        float g[N];
        for (int i = 0; i < N; i++) /* exact in every dtype */
            g[i] = small ? widened(TL_BF16, narrow(TL_BF16, (float)sin(step * 3.1 + i))) : (float)sin(step * 3.1 + i);
        assert_true(tl_opt_lr(o) == naive_lr(&c->o.schedule, c->o.lr, step));
        tl_backward(t, tl_sum(t, tl_mul(t, tl_cast(t, p, TL_F32), tl_data(t, g, TL_F32, TL_DIMS(N))), TL_ALL, false));
        if (tl_step(o, t) != TL_OK)
            fail_msg("%s: %s", c->what, tl_error(t));
        naive_step(c, step + 1, rounded(naive_lr(&c->o.schedule, c->o.lr, step)), g, w, mean, square);
        if (small) {
            master_of(t, m, "p", got);
            read_all(t, p, half, sizeof half);
        } else {
            read_all(t, p, got, sizeof got);
        }
        for (int i = 0; i < N; i++) {
            if (memcmp(&got[i], &w[i], sizeof w[i]) != 0)
                fail_msg("%s, %s: step %d, element %d: %a, not %a", c->what, tl_dtype_name(dtype), step, i, (double)got[i], (double)w[i]);
            if (small && half[i] != narrow(dtype, w[i]))
                fail_msg("%s, %s: step %d, element %d is not its master rounded", c->what, tl_dtype_name(dtype), step, i);
        }
        tl_tape_reset(t);
    }
    tl_free(o, t, m);
}

static void optimizers_against_naive_loops(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++)
        for (int d = 0; d < 3; d++)
            one_trial(&trials[i], d ? halves[d - 1] : TL_F32);
}

static void schedules_against_naive_formulas(void **unused)
{
    (void)unused;
    for (int64_t warmup = 0; warmup <= 20; warmup += 10)
        for (int64_t total = 30; total <= 61; total += 31)
            for (int64_t decay = 1; decay <= 10; decay += 9)
                for (int kind = 0; kind < 2; kind++) {
                    tl_schedule s = {.kind = kind ? TL_LINEAR : TL_WARMUP_STABLE_DECAY, .warmup = warmup, .total = total, .min_ratio = 0.05, .decay = decay};
                    for (int64_t step = 0; step < total + 5; step++)
                        if (tl_schedule_lr(&s, 3e-3, step) != naive_lr(&s, 3e-3, step))
                            fail_msg("kind %d, warm-up %d, total %d, decay %d: step %d is %a, not %a", (int)s.kind, (int)warmup, (int)total, (int)decay,
                                     (int)step, tl_schedule_lr(&s, 3e-3, step), naive_lr(&s, 3e-3, step));
                    assert_true(tl_schedule_lr(&s, 3e-3, INT64_MAX) == 3e-3 * 0.05);
                    assert_true(tl_schedule_lr(&s, 3e-3, warmup) == 3e-3);
                    if (!kind) /* stable until its last steps */
                        assert_true(tl_schedule_lr(&s, 3e-3, total - decay) == 3e-3 && tl_schedule_lr(&s, 3e-3, total - decay + 1) < 3e-3);
                }
}

/* ---- masters ---- */

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
        tl_tensor p = tl_param(s.t, s.m, "p", halves[d], TL_DIMS(N), TL_INIT_NORMAL, 1);
        read_all(s.t, p, before, sizeof before);
        for (int i = 0; i < 1500; i++) {
            step_of_ones(&s, halves[d]);
            tl_tape_reset(s.t);
        }
        read_all(s.t, p, half, sizeof half);
        master_of(s.t, s.m, "p", master);
        for (int i = 0; i < N; i++) {
            assert_true(fabs((double)(master[i] - widened(halves[d], before[i])) + 0.015) < 1e-3);
            assert_int_equal(half[i], narrow(halves[d], master[i]));
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
        tl_tensor p = tl_param(s.t, s.m, "p", halves[d], TL_DIMS(N), TL_INIT_NORMAL, 1);
        read_all(s.t, p, first, sizeof first);
        assert_int_equal(tl_save(s.m, temp_dir_file(path, &dir, "p")), TL_OK);
        for (int i = 0; i < 5; i++)
            step_of_ones(&s, halves[d]);
        master_of(s.t, s.m, "p", master);
        for (int i = 0; i < N; i++)
            assert_true(master[i] != widened(halves[d], first[i]));
        uint16_t other[N];
        for (int i = 0; i < N; i++) /* values far from the master */
            other[i] = narrow(halves[d], (float)i);
        assert_int_equal(tl_write(s.m, p, other, sizeof other), TL_OK);
        step_of_ones(&s, halves[d]);
        master_of(s.t, s.m, "p", master);
        for (int i = 0; i < N; i++) {
            float want = (float)i - rounded(1e-4) * 1.0f;
            assert_true(master[i] == want);
        }
        if (tl_load(s.m, path) != TL_OK)
            fail_msg("%s", tl_error(s.m));
        step_of_ones(&s, halves[d]);
        master_of(s.t, s.m, "p", master);
        read_all(s.t, p, half, sizeof half);
        for (int i = 0; i < N; i++) {
            float want = widened(halves[d], first[i]) - rounded(1e-4) * 1.0f;
            assert_true(master[i] == want);
            assert_int_equal(half[i], narrow(halves[d], want));
        }
        temp_dir_remove(&dir);
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
            step_of_ones(&s, halves[d]);
        master_of(s.t, s.m, "p", was);
        assert_int_equal(tl_checkpoint_save(s.m, s.o, temp_dir_file(path, &dir, "c"), NULL, 0), TL_OK);
        step_of_ones(&s, halves[d]);
        master_of(s.t, s.m, "p", now);
        setup fresh = new_setup(77, 1e-4);
        tl_param(fresh.t, fresh.m, "p", halves[d], TL_DIMS(N), TL_INIT_NORMAL, 1);
        if (tl_checkpoint_load(fresh.m, fresh.o, path, NULL, NULL, 0) != TL_OK)
            fail_msg("%s", tl_error(fresh.m));
        float loaded[N];
        master_of(fresh.t, fresh.m, "p", loaded);
        assert_memory_equal(loaded, was, sizeof was);
        assert_int_equal(tl_opt_steps(fresh.o), 5);
        step_of_ones(&fresh, halves[d]);
        master_of(fresh.t, fresh.m, "p", loaded);
        assert_memory_equal(loaded, now, sizeof now);
        free_setup(&s);
        free_setup(&fresh);
        temp_dir_remove(&dir);
    }
}

/* ---- a small Llama ---- */

enum { BATCH = 6, SEQ = 8, VOCAB = 11 };

typedef struct {
    tl_dtype dtype;
    bool tied;
    int micro, threads, steps, stop; /* stop: save and go on with a fresh model; 0: never */
    const char *isa;
} way;

static tl_tensor loss_of(tl_tape *t, tl_model *m, const way *w, int64_t rows, int64_t step, int64_t first)
{
    tl_llama_config c = {.vocab = VOCAB, .width = 16, .layers = 2, .heads = 4, .kv_heads = 2, .hidden = 24, .max_positions = SEQ, .tied = w->tied, .dtype = w->dtype};
    static int64_t ids[BATCH * SEQ], next[BATCH * SEQ];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < SEQ; i++) { /* counting by a step of the sample's own: to be learnt */
            int64_t sample = step * BATCH + first + r;
            ids[r * SEQ + i] = (sample + i * (1 + sample % 2)) % VOCAB;
            next[r * SEQ + i] = (sample + (i + 1) * (1 + sample % 2)) % VOCAB;
        }
    tl_tensor z = tl_llama(t, m, &c, tl_data(t, ids, TL_I64, TL_DIMS(rows, SEQ)));
    return tl_cross_entropy(t, z, tl_data(t, next, TL_I64, TL_DIMS(rows, SEQ)), TL_MEAN, .count = tl_scalar(t, TL_F64, (double)(BATCH * SEQ)));
}

static tl_opt *new_optimizer(tl_model *m)
{
    return tl_adamw_new(m, .lr = 1e-2, .weight_decay = 0.01, .clip = 1, .schedule = {.kind = TL_WARMUP_STABLE_DECAY, .warmup = 2, .total = 200, .decay = 50});
}

/* The loss of the first and of the last step. */
static void train(const way *w, char hex[65], double loss[2])
{
    const char *isa = tl_isa_now()->name;
    setup s = {.m = tl_model_new(.seed = 11)};
    s.t = tl_tape_new(s.m);
    s.o = new_optimizer(s.m);
    tl_threads_set(w->threads);
    if (w->isa != NULL)
        assert_true(tl_isa_force(w->isa));
    for (int64_t step = 0; step < w->steps; step++) {
        if (w->stop > 0 && step == w->stop) {
            temp_dir dir;
            char path[1024];
            assert_true(temp_dir_make(&dir));
            assert_int_equal(tl_checkpoint_save(s.m, s.o, temp_dir_file(path, &dir, "half"), NULL, 0), TL_OK);
            free_setup(&s);
            s.m = tl_model_new(.seed = 12);
            s.t = tl_tape_new(s.m);
            s.o = new_optimizer(s.m);
            loss_of(s.t, s.m, w, 1, 0, 0);
            tl_tape_reset(s.t);
            if (tl_checkpoint_load(s.m, s.o, path, NULL, NULL, 0) != TL_OK)
                fail_msg("%s", tl_error(s.m));
            temp_dir_remove(&dir);
        }
        double total = 0;
        for (int64_t first = 0; first < BATCH; first += w->micro) {
            tl_tensor l = loss_of(s.t, s.m, w, w->micro, step, first);
            total += tl_item(s.t, l);
            tl_backward(s.t, l);
            if (first + w->micro == BATCH)
                tl_step(s.o, s.t);
            tl_tape_reset(s.t);
        }
        if (step == 0 || step == w->steps - 1)
            loss[step > 0] = total;
    }
    assert_string_equal(tl_error(s.t), "");
    assert_int_equal(tl_model_sha256(s.m, hex), TL_OK);
    for (int i = 0; i < tl_model_count(s.m); i++) { /* the parameters stay what they are */
        tl_named p = tl_model_at(s.m, i);
        assert_true(!p.param || p.array.dtype == w->dtype);
    }
    free_setup(&s);
    tl_isa_force(isa);
    tl_threads_set(0);
}

static void a_llama_trains_in_halves(void **unused)
{
    (void)unused;
    for (int d = 0; d < 2; d++)
        for (int tied = 0; tied < 2; tied++) {
            double loss[2];
            char hex[65];
            way w = {.dtype = halves[d], .tied = tied, .micro = BATCH, .threads = 1, .steps = 100};
            train(&w, hex, loss);
            if (!(loss[0] > 2 && loss[1] < 0.6 * loss[0]))
                fail_msg("%s, tied %d: loss %g, then %g", tl_dtype_name(halves[d]), tied, loss[0], loss[1]);
        }
}

static void assert_hash(const way *w, const char *want)
{
    char got[65];
    double loss[2];
    train(w, got, loss);
    if (strcmp(got, want) != 0)
        fail_msg("other weights: %s, %s, micro-batch %d, %d threads, %s, stopped at %d", tl_dtype_name(w->dtype), w->tied ? "tied" : "untied", w->micro,
                 w->threads, w->isa ? w->isa : "own level", w->stop);
}

static void one_hash_however_it_is_run(void **unused)
{
    static const int micros[] = {1, 2, 3};
    (void)unused;
    for (int d = 0; d < 2; d++)
        for (int tied = 0; tied < 2; tied++) {
            double loss[2];
            char hex[65];
            const way base = {.dtype = halves[d], .tied = tied, .micro = BATCH, .threads = 1, .steps = 6};
            train(&base, hex, loss);
            for (int i = 0; i < 3; i++) {
                way w = base;
                w.micro = micros[i];
                assert_hash(&w, hex);
                w.threads = i + 2;
                w.stop = i + 1;
                assert_hash(&w, hex);
            }
            for (int i = 0; tl_isa_at(i) != NULL; i++) {
                way w = base;
                w.isa = tl_isa_at(i)->name;
                assert_hash(&w, hex);
                w.micro = 2;
                w.stop = 3;
                assert_hash(&w, hex);
            }
        }
}

const struct CMUnitTest tl_tests_half[] = {
    cmocka_unit_test(optimizers_against_naive_loops),       cmocka_unit_test(schedules_against_naive_formulas),
    cmocka_unit_test(small_steps_add_up),                   cmocka_unit_test(a_loaded_parameter_gives_a_new_master),
    cmocka_unit_test(masters_are_saved_with_a_checkpoint),  cmocka_unit_test(a_llama_trains_in_halves),
    cmocka_unit_test(one_hash_however_it_is_run),
};
const size_t tl_tests_half_count = sizeof tl_tests_half / sizeof tl_tests_half[0];
