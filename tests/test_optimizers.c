/* Optimizers and schedules against loops written from NUMERICS 12: one parameter, in f32, in f64
 * and through masters of halves. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/support/half.h"

extern const struct CMUnitTest tl_tests_optimizers[];
extern const size_t tl_tests_optimizers_count;

enum { N = 37, STEPS = 9 };

typedef enum { SGD, NESTEROV, ADAM, ADAMW } rule; /* decay: coupled, but for ADAMW and decoupled */
typedef struct {
    const char *what;
    rule rule;
    tl_opt_options o;
} trial;

/* beta 0 stands for the default. */
static const trial trials[] = {
    {"momentum", SGD, {.lr = 0.1, .momentum = 0.9}},
    {"Nesterov", NESTEROV, {.lr = 0.1, .momentum = 0.9, .nesterov = true}},
    {"Nesterov, decay, clipped",
     NESTEROV,
     {.lr = 0.05, .momentum = 0.7, .nesterov = true, .weight_decay = 0.02, .clip = 2}},
    {"SGD, decay", SGD, {.lr = 0.1, .weight_decay = 0.02}},
    {"SGD, decay beside it", SGD, {.lr = 0.1, .weight_decay = 0.02, .decoupled = true}},
    {"momentum, decay beside it",
     SGD,
     {.lr = 0.05, .momentum = 0.7, .weight_decay = 0.02, .decoupled = true}},
    {"Nesterov, decay beside it",
     NESTEROV,
     {.lr = 0.05, .momentum = 0.7, .nesterov = true, .weight_decay = 0.02, .decoupled = true}},
    {"Adam", ADAM, {.lr = 1e-2}},
    {"Adam, decay",
     ADAM,
     {.lr = 3e-3, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1}},
    {"Adam, decay, clipped, warm-up and linear",
     ADAM,
     {.lr = 3e-3,
      .weight_decay = 0.1,
      .clip = 1,
      .schedule = {.kind = TL_LINEAR, .warmup = 2, .total = 7, .min_ratio = 0.1}}},
    {"AdamW, decay, stable, then falling",
     ADAMW,
     {.lr = 3e-3,
      .weight_decay = 0.1,
      .schedule = {.kind = TL_WARMUP_STABLE_DECAY, .warmup = 2, .total = 8, .decay = 3}}},
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

/* To the type that the update computes in. */
static double rounded(bool wide, double x) { return wide ? x : (double)(float)x; }

/* NUMERICS 12.2: lanes of squares in f64, the root, the factor. */
static double clip_of(const double *g, double max)
{
    double lane[32] = {0};
    if (!(max > 0))
        return 1;
    for (int i = 0; i < N; i++)
        lane[i % 32] = lane[i % 32] + g[i] * g[i];
    for (int w = 16; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            lane[i] = lane[i] + lane[i + w];
    double norm = sqrt(0.0 + (lane[0] + 0.0));
    return norm > max ? max / norm : 1;
}

/* NUMERICS 12.3, 12.4, every operation rounded. t counts from 1. */
static void naive_step(const trial *c, bool wide, int t, double rate, const double *g, double *w,
                       double *m, double *v)
{
#define R(x) rounded(wide, x)
    double b1 = c->o.beta1 != 0 ? c->o.beta1 : 0.9, b2 = c->o.beta2 != 0 ? c->o.beta2 : 0.999,
           e = c->o.eps != 0 ? c->o.eps : 1e-8, p1 = 1, p2 = 1;
    double f = R(clip_of(g, c->o.clip)), wd = R(c->o.weight_decay), mu = R(c->o.momentum),
           lr = R(rate);
    bool beside = c->rule == ADAMW || c->o.decoupled;
    for (int i = 0; i < t; i++) {
        p1 = p1 * b1;
        p2 = p2 * b2;
    }
    double c1 = R(1 / (1 - p1)), c2 = R(1 / (1 - p2)), B1 = R(b1), B2 = R(b2), R1 = R(1 - b1),
           R2 = R(1 - b2), eps = R(e);
    for (int i = 0; i < N; i++) {
        double s = R(g[i] * f), u, decay = R(wd * w[i]);
        if (!beside)
            s = R(s + decay);
        if (c->rule == SGD || c->rule == NESTEROV) {
            m[i] = R(R(mu * m[i]) + s);
            u = c->rule == NESTEROV ? R(s + R(mu * m[i])) : m[i];
        } else {
            m[i] = R(R(B1 * m[i]) + R(R1 * s));
            v[i] = R(R(B2 * v[i]) + R(R(R2 * s) * s));
            u = R(R(m[i] * c1) / R(R(sqrt(R(v[i] * c2))) + eps));
        }
        if (beside)
            u = R(u + decay);
        w[i] = R(w[i] - R(lr * u));
    }
#undef R
}

static tl_opt *optimizer(const trial *c, tl_model *m)
{
    return c->rule == ADAM    ? tl_adam_new_at(m, c->o, __FILE__, __LINE__)
           : c->rule == ADAMW ? tl_adamw_new_at(m, c->o, __FILE__, __LINE__)
                              : tl_sgd_new_at(m, c->o, __FILE__, __LINE__);
}

/* Parameter or master, widened. */
static void weights(tl_tape *t, tl_model *m, tl_tensor p, tl_dtype dtype, double *to)
{
    float narrow[N];
    if (dtype == TL_F64) {
        half_read(t, p, to, N * sizeof *to);
        return;
    }
    if (dtype == TL_F32)
        half_read(t, p, narrow, sizeof narrow);
    else
        half_master(t, m, "p", narrow);
    for (int i = 0; i < N; i++)
        to[i] = (double)narrow[i];
}

/* An optimizer, and beside it what its state ought to be. */
typedef struct {
    const trial *c;
    tl_opt *o;
    int steps;
    double mean[N], square[N];
} tried;

/* A step of the optimizer on p, whose values or master are w, and the same of the loops. */
static void one_step(tried *k, tl_tape *t, tl_model *m, tl_dtype dtype, int step, double *w)
{
    const trial *c = k->c;
    double g[N], got[N], rate = naive_lr(&c->o.schedule, c->o.lr, k->steps);
    uint16_t half[N];
    bool small = tl_dtype_size(dtype) == 2;
    tl_dtype wide = tl_dtype_compute(dtype);
    tl_tensor p = tl_model_find(m, "p");
    for (int i = 0; i < N; i++) { /* exact in every dtype */
        g[i] = rounded(dtype == TL_F64, sin(step * 3.1 + i));
        if (small)
            g[i] = (double)half_value(TL_BF16, half_of(TL_BF16, (float)g[i]));
    }
    assert_true(tl_opt_lr(k->o) == rate);
    tl_tensor gradient = tl_cast(t, tl_data(t, g, TL_F64, TL_DIMS(N)), wide);
    tl_backward(t, tl_sum(t, tl_mul(t, tl_cast(t, p, wide), gradient), TL_ALL, false));
    if (tl_step(k->o, t) != TL_OK)
        fail_msg("%s: %s", c->what, tl_error(t));
    naive_step(c, dtype == TL_F64, ++k->steps, rate, g, w, k->mean, k->square);
    weights(t, m, p, dtype, got);
    if (small)
        half_read(t, p, half, sizeof half);
    for (int i = 0; i < N; i++) {
        if (memcmp(&got[i], &w[i], sizeof w[i]) != 0)
            fail_msg("%s, %s: step %d, element %d: %a, not %a", c->what, tl_dtype_name(dtype), step,
                     i, got[i], w[i]);
        if (small && half[i] != half_of(dtype, (float)w[i]))
            fail_msg("%s, %s: step %d, element %d is not its master rounded", c->what,
                     tl_dtype_name(dtype), step, i);
    }
    tl_tape_reset(t);
}

static void one_trial(const trial *c, tl_dtype dtype)
{
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tried k = {.c = c, .o = optimizer(c, m)};
    double w[N];
    half_read(t, tl_cast(t, tl_param(t, m, "p", dtype, TL_DIMS(N), TL_INIT_NORMAL, 1), TL_F64), w,
              sizeof w);
    for (int step = 0; step < STEPS; step++)
        one_step(&k, t, m, dtype, step, w);
    tl_free(k.o, t, m);
}

static void optimizers_against_naive_loops(void **unused)
{
    static const tl_dtype dtypes[] = {TL_F64, TL_F32, TL_F16, TL_BF16};
    (void)unused;
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++)
        for (int d = 0; d < 4; d++)
            one_trial(&trials[i], dtypes[d]);
}

/* The buffers of a rule's state: 0 for none. */
static int state_of(const trial *c)
{
    return c->rule == ADAM || c->rule == ADAMW ? 2 : c->o.momentum != 0;
}

/* Two optimizers of one parameter, by turns or one after the other: each has its own state, and
 * where the names are the same, two that live are refused. */
static void two_trials(const trial *a, const trial *b, bool turns, tl_dtype dtype)
{
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tried k[2] = {{.c = a, .o = optimizer(a, m)}, {.c = b, .o = optimizer(b, m)}};
    double w[N], after[N];
    tl_tensor p = tl_param(t, m, "p", dtype, TL_DIMS(N), TL_INIT_NORMAL, 1);
    half_read(t, tl_cast(t, p, TL_F64), w, sizeof w);
    bool shared = state_of(a) != 0 && state_of(a) == state_of(b);
    for (int step = 0; step < 3; step++) {
        one_step(&k[0], t, m, dtype, step, w);
        if (turns && !shared)
            one_step(&k[1], t, m, dtype, step, w);
    }
    if (shared) {
        tl_backward(t, tl_sum(t, p, TL_ALL, false));
        assert_int_equal(tl_step(k[1].o, t), TL_EUSAGE);
        assert_non_null(strstr(tl_error(t), state_of(a) == 2 ? "'adamw.m.p'" : "'sgd.b.p'"));
        assert_non_null(strstr(tl_error(t), "3 steps), which lives"));
        assert_int_equal(tl_opt_steps(k[1].o), 0);
        tl_error_clear(t);
        weights(t, m, p, dtype, after);
        assert_memory_equal(after, w, sizeof w);
        tl_tape_reset(t);
    }
    tl_free(k[0].o);
    for (int step = 3; step < 6; step++)
        one_step(&k[1], t, m, dtype, step, w);
    tl_free(k[1].o, t, m);
}

static void each_optimizer_has_its_own_state(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++)
        for (size_t j = 0; j < sizeof trials / sizeof *trials; j++)
            for (int k = 0; k < 4; k++)
                two_trials(&trials[i], &trials[j], k % 2 == 0, k < 2 ? TL_F32 : TL_BF16);
}

/* PyTorch's formulas as its documentation has them, in f64: what NUMERICS 12.10 calls the same is
 * the same but for roundings. */
static void torch_step(const trial *c, int t, double g, double *w, double *m, double *v)
{
    double wd = c->o.weight_decay, mu = c->o.momentum, lr = c->o.lr;
    if (c->rule == ADAMW)
        *w = *w - lr * wd * *w;
    else if (wd != 0)
        g = g + wd * *w;
    if (c->rule == SGD || c->rule == NESTEROV) {
        *m = t == 1 ? g : mu * *m + g;
        if (mu != 0)
            g = c->rule == NESTEROV ? g + mu * *m : *m;
        *w = *w - lr * g;
        return;
    }
    *m = 0.9 * *m + (1 - 0.9) * g;
    *v = 0.999 * *v + (1 - 0.999) * g * g;
    *w = *w - lr * (*m / (1 - pow(0.9, t))) / (sqrt(*v) / sqrt(1 - pow(0.999, t)) + 1e-8);
}

static void decays_as_pytorch(void **unused)
{
    static const trial same[] = {
        {"SGD", SGD, {.lr = 0.1}},
        {"SGD, decay", SGD, {.lr = 0.1, .weight_decay = 0.3}},
        {"momentum, decay", SGD, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.3}},
        {"Nesterov, decay",
         NESTEROV,
         {.lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.3}},
        {"Adam, decay", ADAM, {.lr = 0.1, .weight_decay = 0.3}},
        {"AdamW, decay", ADAMW, {.lr = 0.1, .weight_decay = 0.3}},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        tl_model *m = tl_model_new(.seed = 3);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = optimizer(&same[i], m);
        tl_tensor p = tl_param(t, m, "p", TL_F64, TL_SCALAR, TL_INIT_ONES, 1);
        double w = 1, mean = 0, square = 0;
        for (int step = 1; step <= STEPS; step++) {
            double g = sin(step * 3.1);
            tl_backward(t, tl_scale(t, p, g));
            assert_int_equal(tl_step(o, t), TL_OK);
            torch_step(&same[i], step, g, &w, &mean, &square);
            if (!(fabs(tl_item(t, p) - w) < 1e-13))
                fail_msg("%s, step %d: %.17g, PyTorch's %.17g", same[i].what, step, tl_item(t, p),
                         w);
            tl_tape_reset(t);
        }
        tl_free(o, t, m);
    }
}

static void schedules_against_naive_formulas(void **unused)
{
    (void)unused;
    for (int64_t warmup = 0; warmup <= 20; warmup += 10)
        for (int64_t total = 30; total <= 61; total += 31)
            for (int64_t decay = 1; decay <= 10; decay += 9)
                for (int kind = 0; kind < 2; kind++) {
                    tl_schedule s = {.kind = kind ? TL_LINEAR : TL_WARMUP_STABLE_DECAY,
                                     .warmup = warmup,
                                     .total = total,
                                     .min_ratio = 0.05,
                                     .decay = decay};
                    for (int64_t step = 0; step < total + 5; step++)
                        if (tl_schedule_lr(&s, 3e-3, step) != naive_lr(&s, 3e-3, step))
                            fail_msg(
                                "kind %d, warm-up %d, total %d, decay %d: step %d is %a, not %a",
                                (int)s.kind, (int)warmup, (int)total, (int)decay, (int)step,
                                tl_schedule_lr(&s, 3e-3, step), naive_lr(&s, 3e-3, step));
                    assert_true(tl_schedule_lr(&s, 3e-3, INT64_MAX) == 3e-3 * 0.05);
                    assert_true(tl_schedule_lr(&s, 3e-3, warmup) == 3e-3);
                    if (!kind) /* stable until its last steps */
                        assert_true(tl_schedule_lr(&s, 3e-3, total - decay) == 3e-3 &&
                                    tl_schedule_lr(&s, 3e-3, total - decay + 1) < 3e-3);
                }
}

/* The cosine falls from the rate to its least, half way at the middle. */
static void the_cosine_schedule_is_half_a_period(void **unused)
{
    const tl_schedule s = {.kind = TL_COSINE, .warmup = 4, .total = 24, .min_ratio = 0.05};
    const double lr = 3e-3, low = lr * 0.05;
    (void)unused;
    for (int64_t step = 0; step < 4; step++)
        assert_true(tl_schedule_lr(&s, lr, step) == lr * (double)(step + 1) / 4);
    assert_true(tl_schedule_lr(&s, lr, 4) == lr);
    for (int64_t step = 4; step < 24; step++) {
        const double want = low + (lr - low) * (1 + cos(acos(-1) * (double)(step - 4) / 20)) / 2;
        if (!(fabs(tl_schedule_lr(&s, lr, step) - want) < 1e-15 * lr))
            fail_msg("step %d: %.17g, not %.17g", (int)step, tl_schedule_lr(&s, lr, step), want);
    }
    assert_true(fabs(tl_schedule_lr(&s, lr, 24) - low) < 1e-15 * lr);
    assert_true(tl_schedule_lr(&s, lr, INT64_MAX) == tl_schedule_lr(&s, lr, 24));
}

static void refuses(tl_opt *o, const char *words)
{
    tl_tape *t = tl_tape_new(NULL);
    assert_int_equal(tl_error_status(o), TL_EDOMAIN);
    if (strstr(tl_error(o), words) == NULL)
        fail_msg("'%s' expected, not '%s'", words, tl_error(o));
    assert_int_equal(tl_step(o, t), TL_EDOMAIN); /* said where the step is made, too */
    assert_non_null(strstr(tl_error(t), words));
    tl_error_clear(t), tl_error_clear(o);
    assert_int_equal(tl_step(o, t), TL_EUSAGE); /* clearing the error mends no numbers */
    assert_non_null(strstr(tl_error(t), strstr(words, "tl_opt_group: ") == NULL
                                            ? "refused this optimizer's numbers"
                                            : "of another model"));
    assert_int_equal(tl_opt_steps(o), 0);
    tl_free(o, t);
}

static void numbers_that_make_no_sense_are_refused(void **unused)
{
    (void)unused;
    double nan = (double)NAN, inf = (double)INFINITY;
    tl_model *m = tl_model_new(.seed = 1);
    char place[300];
    snprintf(place, sizeof place,
             "tl_sgd_new: lr is -0.1; a number above 0 is needed; tl_opt_group's lr_scale may be 0 "
             "(%s:%d)",
             __FILE__, __LINE__ + 1);
    refuses(tl_sgd_new(m, .lr = -0.1), place);
    refuses(tl_adamw_new(m, .lr = nan), "tl_adamw_new: lr is nan");
    refuses(tl_adamw_new(m, .lr = inf), "lr is inf");
    refuses(tl_adam_new(m, .lr = 1, .eps = -1e-8), "tl_adam_new: eps is -1e-08");
    refuses(tl_adamw_new(m, .lr = 1, .beta1 = 1),
            "beta1 is 1; a number from 0 to below 1 is needed");
    refuses(tl_adamw_new(m, .lr = 1, .beta2 = -0.5), "beta2 is -0.5");
    refuses(tl_adamw_new(m, .lr = 1, .weight_decay = -0.1), "weight_decay is -0.1");
    refuses(tl_adamw_new(m, .lr = 1, .clip = -1), "clip is -1");
    refuses(tl_sgd_new(m, .lr = 1, .momentum = -0.9), "momentum is -0.9");
    refuses(tl_sgd_new(m, .lr = 1, .nesterov = true), "nesterov with a momentum of 0");
    refuses(tl_adam_new(m, .lr = 1, .decoupled = true), "tl_adam_new: decoupled is SGD's");
    refuses(tl_adamw_new(m, .lr = 1, .decoupled = true), "tl_adamw_new: decoupled is SGD's");
    refuses(tl_adamw_new(m, .lr = 0), "tl_adamw_new: lr is 0");
    refuses(tl_adamw_new(m, .lr = 1, .momentum = 0.9), "momentum and nesterov are SGD's");
    refuses(tl_adam_new(m, .lr = 1, .nesterov = true), "momentum and nesterov are SGD's");
    refuses(tl_sgd_new(m, .lr = 1, .beta1 = 0.9), "beta1, beta2 and eps are Adam's");
    refuses(tl_sgd_new(m, .lr = 1, .eps = 1e-6), "beta1, beta2 and eps are Adam's");
    refuses(tl_sgd_new(m, .lr = 1, .schedule = {.total = 9}), "total 9, min_ratio 0");
    refuses(tl_sgd_new(m, .lr = 1, .schedule.min_ratio = 0.5), "without a schedule.kind");
    refuses(tl_sgd_new(m, .lr = 1, .schedule = {TL_LINEAR, .total = 9, .decay = 3}),
            "schedule.decay 3 is TL_WARMUP_STABLE_DECAY's alone");
    refuses(tl_sgd_new(m, .lr = 1, .schedule = {TL_WARMUP_STABLE_DECAY, .total = 9, .decay = 10}),
            "schedule.warmup 0 and decay 10 are more than the total of 9 steps");
    refuses(tl_sgd_new(m, .lr = 1,
                       .schedule = {TL_WARMUP_STABLE_DECAY, .warmup = 6, .total = 9, .decay = 4}),
            "schedule.warmup 6 and decay 4 are more than the total of 9 steps");
    refuses(tl_sgd_new(m, .lr = 1, .schedule = {(tl_schedule_kind)7, .total = 9}),
            "schedule.kind 7, warmup 0");
    refuses(tl_sgd_new(m, .lr = 1, .schedule = {TL_COSINE, .warmup = -1, .total = 9}),
            "warmup -1, decay 0");
    refuses(tl_sgd_new(m, .lr = 1, .schedule = {TL_WARMUP_STABLE_DECAY, .total = 9, .decay = -1}),
            "decay -1");
    refuses(tl_sgd_new(m, .lr = 1, .schedule.decay = 3), "decay 3 without a schedule.kind");
    refuses(tl_sgd_new(m, .lr = 1, .schedule = {TL_COSINE, .total = 9, .min_ratio = -0.5}),
            "schedule.min_ratio is -0.5");
    refuses(tl_sgd_new(m, .lr = 1, .parts = -1), "part 0 of -1");
    refuses(tl_sgd_new(m, .lr = 1, .part = -1, .parts = 2), "part -1 of 2");
    tl_model *gone = tl_model_new(.seed = 1);
    tl_free(gone);
    tl_opt *none = tl_sgd_new(gone, .lr = 1);
    assert_int_equal(tl_error_status(none), TL_ESTALE);
    assert_non_null(strstr(tl_error(none), "tl_sgd_new: the model has been freed"));
    tl_error_clear(none);
    tl_opt_group(none, "*", 1, 0);
    tl_opt_lr_set(none, 2);
    tl_error_clear(none);
    tl_free(none);
    tl_opt *o = tl_adamw_new(m, .lr = 1);
    assert_false(tl_failed(o));
    assert_true(isnan(tl_opt_grad_norm(o))); /* before a step */
    assert_int_equal(tl_opt_group(o, "*norm*", -1, 0), TL_EDOMAIN);
    refuses(o, "tl_opt_group: '*norm*' with lr_scale -1");
    tl_free(m);
}

/* NUMERICS 12.3: one count of steps for all parameters, the one too that is reached at the third.
 */
static void a_parameter_that_is_reached_late(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_adam_new(m, .lr = 0.5);
    double late = 0;
    for (int i = 0; i < 3; i++) {
        tl_tensor a = tl_param(t, m, "a", TL_F64, TL_DIMS(1), TL_INIT_ONES, 0),
                  b = tl_param(t, m, "b", TL_F64, TL_DIMS(1), TL_INIT_ONES, 0);
        tl_backward(t, tl_sum(t, i < 2 ? a : tl_add(t, a, b), TL_ALL, false), .partial = true);
        assert_int_equal(tl_step(o, t), TL_OK);
        late = tl_item(t, b);
        assert_true(i == 2 || late == 1);
        tl_tape_reset(t);
    }
    const double c1 = 1 / (1 - 0.9 * 0.9 * 0.9), c2 = 1 / (1 - 0.999 * 0.999 * 0.999);
    assert_true(late == 1 - 0.5 * ((1 - 0.9) * c1 / (sqrt((1 - 0.999) * c2) + 1e-8)));
    assert_true(late > 0.6); /* with a count of its own it would be 0.5 */
    tl_free(o, t, m);
}

static void sets(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *o)
{
    (void)n_in, (void)n_out;
    out[0] = tl_square(t, in[0]);
    tl_opt_lr_set(o, 2);
}

static void descends(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *o)
{
    tl_model *m = tl_tape_model(t);
    tl_tensor p = tl_param(t, m, "p", TL_F32, TL_DIMS(2), TL_INIT_ONES, 0);
    (void)n_in, (void)n_out;
    out[0] = tl_sum(t, tl_mul(t, p, in[0]), TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(o, t);
}

/* NUMERICS 12.10: a norm that is NaN clips nothing, and a beta of almost 0 is none. */
static void numbers_at_the_edge(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *sgd = tl_sgd_new(m, .lr = 0.1, .clip = 1);
    tl_tensor p = tl_param(t, m, "p", TL_F64, TL_DIMS(2), .kind = TL_INIT_ZEROS);
    const double slope[] = {(double)NAN, 100};
    double got[2];
    tl_tensor y = tl_mul(t, p, tl_data(t, slope, TL_F64, TL_DIMS(2)));
    assert_int_equal(tl_backward(t, tl_sum(t, y, TL_ALL, false)), TL_OK);
    assert_int_equal(tl_step(sgd, t), TL_OK);
    assert_int_equal(tl_keep(t, p, got, sizeof got), TL_OK);
    assert_true(isnan(got[0]) && got[1] == -10);
    for (int k = 0; k < 2; k++) { /* up and down: without a mean it is where it was */
        tl_opt *adam = tl_adam_new(m, .lr = 0.1, .beta1 = k ? 0 : 1e-300);
        p = tl_param(t, m, k ? "r" : "q", TL_F64, TL_SCALAR, .kind = TL_INIT_ZEROS);
        for (int step = 0; step < 2; step++) {
            tl_tape_reset(t);
            assert_int_equal(tl_backward(t, tl_scale(t, p, step ? -1 : 1), .partial = true), TL_OK);
            assert_int_equal(tl_step(adam, t), TL_OK);
        }
        assert_true((fabs(tl_item(t, p)) < 1e-12) == (k == 0));
        tl_free(adam);
    }
    const tl_schedule rising = {TL_LINEAR, .warmup = 4, .total = 8};
    assert_true(tl_schedule_lr(&rising, 1, -3) == tl_schedule_lr(&rising, 1, 0));
    tl_free(sgd, t, m);
}

/* NUMERICS 12.4: a decay that is 0 in the compute type is none, and multiplies nothing, not even an
 * infinity. */
static void a_decay_that_rounds_to_none(void **unused)
{
    (void)unused;
    for (int k = 0; k < 4; k++) {
        const bool adam = k % 2, wide = k / 2;
        const tl_dtype dtype = wide ? TL_F64 : TL_F32;
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = adam ? tl_adam_new(m, .lr = 0.5, .weight_decay = 1e-60)
                         : tl_sgd_new(m, .lr = 0.5, .weight_decay = 1e-60);
        tl_tensor p = tl_param(t, m, "p", dtype, TL_SCALAR, TL_INIT_ONES, 1);
        tl_assign(t, p, tl_scalar(t, dtype, (double)INFINITY));
        assert_int_equal(tl_backward(t, tl_scale(t, p, 1)), TL_OK);
        assert_int_equal(tl_step(o, t), TL_OK);
        const double got = tl_item(t, adam ? tl_model_find(m, "adamw.m.p") : p);
        const double mean = rounded(wide, 1 - 0.9);
        if (wide) /* inf - lr * (1 + inf), or inf */
            assert_true(adam ? isinf(got) : isnan(got));
        else
            assert_true(got == (adam ? mean : (double)INFINITY));
        tl_free(o, t, m);
    }
}

/* What is set goes through the schedule, and a compiled step reads it without being traced again.
 */
static void a_rate_that_is_set(void **unused)
{
    static const float g[2] = {0.5f, 2};
    (void)unused;
    for (int compiled = 0; compiled < 2; compiled++) {
        tl_model *m = tl_model_new(.seed = 3);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 1, .schedule = {TL_LINEAR, .total = 4});
        tl_compiled *c = tl_compile(t, descends, 1, o);
        float want[2] = {1, 1}, got[2];
        for (int i = 0; i < 3; i++) {
            tl_tensor x = tl_data(t, g, TL_F32, TL_DIMS(2)), y;
            const double lr = 0.25 * (i + 1);
            assert_int_equal(tl_opt_lr_set(o, lr), TL_OK);
            assert_true(tl_opt_lr(o) == naive_lr(&(tl_schedule){TL_LINEAR, .total = 4}, lr, i));
            for (int k = 0; k < 2; k++)
                want[k] -= (float)tl_opt_lr(o) * g[k];
            if (compiled)
                tl_run(c, &x, 1, &y);
            else
                descends(t, &x, 1, &y, 1, o);
            assert_string_equal(tl_error(t), "");
            tl_tape_reset(t);
            assert_int_equal(tl_keep(t, tl_model_find(m, "p"), got, sizeof got), TL_OK);
            assert_memory_equal(got, want, sizeof got);
        }
        assert_true(!compiled || tl_compiled_count(c) == 1);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(tl_opt_lr_set(o, i == 0 ? 0 : i == 1 ? (double)NAN : -1), TL_EDOMAIN);
            assert_non_null(strstr(tl_error(o), "tl_opt_lr_set: lr is"));
            tl_error_clear(o);
        }
        tl_compiled *d = tl_compile(t, sets, 1, o);
        tl_tensor x = tl_data(t, g, TL_F32, TL_DIMS(2)), y;
        assert_int_equal(tl_run(d, &x, 1, &y), TL_ETRACED);
        tl_error_clear(t);
        assert_true(tl_opt_lr(o) == 0.75 * 0.25);
        tl_free(c, d, o, t, m);
    }
}

/* The last match wins, and a group may mean what is frozen. */
static void groups_that_overlap(void **unused)
{
    float got[2];
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.25);
    tl_tensor p = tl_param(t, m, "p", TL_F32, TL_DIMS(2), TL_INIT_ONES, 0),
              q = tl_param(t, m, "q", TL_F32, TL_DIMS(2), TL_INIT_ONES, 0);
    tl_model_freeze(m, "q", true);
    tl_opt_group(o, "?", 2, 0);
    tl_opt_group(o, "p*", 0.5, 0);
    tl_opt_group(o, "q", 4, 0);
    tl_backward(t, tl_sum(t, tl_mul(t, p, q), TL_ALL, false), .ragged = true);
    assert_int_equal(tl_step(o, t), TL_OK);
    assert_int_equal(tl_keep(t, p, got, sizeof got), TL_OK);
    assert_true(got[0] == 1 - 0.5f * 0.25f && got[1] == got[0]);
    tl_free(o, t, m);
}

/* An update that stopped half way would leave half a step. */
static void no_step_where_updates_may_stop(void **unused)
{
    float got[2];
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.5);
    tl_tensor p = tl_param(t, m, "p", TL_F32, TL_DIMS(2), TL_INIT_ONES, 0);
    for (int anomaly = 1; anomaly >= 0; anomaly--) {
        assert_int_equal(tl_backward(t, tl_sum(t, p, TL_ALL, false), .ragged = true), TL_OK);
        const int scope = tl_mode_push(t, anomaly ? TL_ANOMALY : 0);
        assert_int_equal(tl_step(o, t), anomaly ? TL_EUSAGE : TL_OK);
        tl_mode_pop(t, scope);
        if (anomaly)
            assert_non_null(strstr(tl_error(t), "a TL_ANOMALY scope is open"));
        tl_error_clear(t);
        assert_int_equal(tl_keep(t, p, got, sizeof got), TL_OK);
        assert_true(got[0] == (anomaly ? 1 : .5f));
        assert_int_equal(tl_opt_steps(o), !anomaly);
        tl_tape_reset(t);
    }
    tl_free(o, t, m);
}

/* The whole of the state is one part: a model may grow, as without parts. */
static void one_part_of_one_takes_what_is_made_later(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_adamw_new(m, .lr = 0.1, .parts = 1);
    for (int i = 0; i < 3; i++) {
        tl_tensor y = tl_param(t, m, i == 0 ? "a" : "b", TL_F32, TL_SCALAR, TL_INIT_ONES, 1);
        if (tl_backward(t, tl_square(t, y), .partial = true) != TL_OK || tl_step(o, t) != TL_OK)
            fail_msg("step %d: %s", i, tl_error(t));
        tl_tape_reset(t);
    }
    tl_free(o, t, m);
}

const struct CMUnitTest tl_tests_optimizers[] = {
    cmocka_unit_test(no_step_where_updates_may_stop),
    cmocka_unit_test(groups_that_overlap),
    cmocka_unit_test(optimizers_against_naive_loops),
    cmocka_unit_test(each_optimizer_has_its_own_state),
    cmocka_unit_test(decays_as_pytorch),
    cmocka_unit_test(schedules_against_naive_formulas),
    cmocka_unit_test(the_cosine_schedule_is_half_a_period),
    cmocka_unit_test(one_part_of_one_takes_what_is_made_later),
    cmocka_unit_test(numbers_that_make_no_sense_are_refused),
    cmocka_unit_test(numbers_at_the_edge),
    cmocka_unit_test(a_decay_that_rounds_to_none),
    cmocka_unit_test(a_rate_that_is_set),
    cmocka_unit_test(a_parameter_that_is_reached_late),
};
const size_t tl_tests_optimizers_count = sizeof tl_tests_optimizers / sizeof *tl_tests_optimizers;
