/* Random sequences of events on one tape - backwards of several programs, steps of two optimizers,
 * reads and drops of gradients, changed and frozen parameters - called, compiled, and in turns: all
 * three say the same after each event, whatever waits from the ones before. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tally.h>

#include "nn/files.h"

extern const struct CMUnitTest tl_tests_alternate[];
extern const size_t tl_tests_alternate_count;

enum { RUNS = 1200, EVENTS = 24, ACTS = 4, WAYS = 3 };

typedef enum {
    BACK_W,    /* backward through x*w */
    BACK_MADE, /* ... x*tanh(w), of which the gradient waits in tanh(w) */
    BACK_V,    /* ... x*v*v */
    BACK_BOTH, /* ... x*tanh(v)*w */
    READ_W,
    READ_V,
    STEP_A,
    STEP_B,
    STEP_IF_W, /* if w has a gradient */
    CLEAR,
    NOTHING,
    KINDS
} act;

/* What a program does, in order. */
typedef struct {
    act does[ACTS];
} plan;

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *a, *b;
    const plan *now;
    tl_compiled *c[EVENTS];
    plan of[EVENTS];
    int n;
    char said[256]; /* the error of the last event */
} run;

static uint64_t next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}

static tl_tensor parameter(const run *r, tl_tape *t, const char *name)
{
    return tl_param(t, r->m, name, TL_F64, TL_DIMS(1), TL_INIT_ONES, 0);
}

static void backward(const run *r, tl_tape *t, act what, tl_tensor x)
{
    tl_tensor w = parameter(r, t, "w"), v = parameter(r, t, "v"), y;
    switch (what) {
    case BACK_W: y = tl_mul(t, x, w); break;
    case BACK_MADE: y = tl_mul(t, x, tl_tanh(t, w)); break;
    case BACK_V: y = tl_mul(t, tl_mul(t, x, v), v); break;
    default: y = tl_mul(t, tl_mul(t, x, tl_tanh(t, v)), w); break;
    }
    tl_backward(t, tl_sum(t, y, TL_ALL, false), .partial = true, .ragged = true);
}

/* out[0] is all that it has read. */
static void program(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    run *r = ctx;
    tl_tensor read = tl_sum(t, in[0], TL_ALL, false);
    (void)n_in, (void)n_out;
    for (int i = 0; i < ACTS; i++) {
        const act what = r->now->does[i];
        const char *name = what == READ_V ? "v" : "w";
        if (what == READ_W || what == READ_V) {
            tl_tensor g = tl_grad(t, parameter(r, t, name));
            if (!tl_is_none(g))
                read = tl_add(t, tl_scale(t, read, 3), tl_sum(t, g, TL_ALL, false));
        } else if (what == STEP_A || what == STEP_B) {
            tl_step(what == STEP_A ? r->a : r->b, t);
        } else if (what == STEP_IF_W) {
            if (!tl_is_none(tl_grad(t, parameter(r, t, name))))
                tl_step(r->a, t);
        } else if (what == CLEAR) {
            tl_grad_clear(t);
        } else if (what != NOTHING) {
            backward(r, t, what, in[0]);
        }
    }
    out[0] = tl_detach(t, read);
}

static plan make_plan(uint64_t *s)
{
    plan p = {{NOTHING, NOTHING, NOTHING, NOTHING}};
    const int n = 1 + (int)(next(s) % ACTS);
    for (int i = 0; i < n; i++)
        p.does[i] = (act)(next(s) % KINDS);
    return p;
}

/* The program of that plan, compiled once. */
static tl_compiled *compiled(run *r, const plan *p)
{
    int i = 0;
    while (i < r->n && memcmp(r->of[i].does, p->does, sizeof p->does) != 0)
        i++;
    if (i == r->n) {
        r->of[i] = *p;
        r->c[i] = tl_compile(r->t, program, 1, r);
        r->n++;
    }
    return r->c[i];
}

static void begin(run *r)
{
    *r = (run){.m = tl_model_new(.seed = 1)};
    r->t = tl_tape_new(r->m);
    r->a = tl_sgd_new(r->m, .lr = 0.125);
    r->b = tl_sgd_new(r->m, .lr = 0.0625);
    parameter(r, r->t, "w"), parameter(r, r->t, "v");
}

static void end(run *r)
{
    for (int i = 0; i < r->n; i++)
        tl_free(r->c[i]);
    tl_free(r->a, r->b, r->t, r->m);
}

/* The state after an event, as text. Of a program that is refused, part may have been called. */
static void tell(run *r, double read, char text[512])
{
    const bool failed = tl_failed(r->t);
    int at = failed ? snprintf(text, 512, "refused") : snprintf(text, 512, "read %.17g", read);
    snprintf(r->said, sizeof r->said, "%.250s", tl_error(r->t));
    tl_error_clear(r->t);
    for (int i = 0; i < 2 && !failed; i++) {
        tl_tensor p = tl_model_find(r->m, i == 0 ? "w" : "v"), g = tl_grad(r->t, p);
        at += snprintf(text + at, 512 - (size_t)at, ", %s %.17g gradient %.17g", i == 0 ? "w" : "v",
                       tl_item(r->t, p), tl_is_none(g) ? (double)NAN : tl_item(r->t, g));
        tl_error_clear(r->t);
    }
    if (!failed)
        snprintf(text + at, 512 - (size_t)at, ", steps %d %d", (int)tl_opt_steps(r->a),
                 (int)tl_opt_steps(r->b));
}

/* One event, the same for all ways but for whether a program is called. */
static void happen(run *r, bool run_it, const plan *p, int what, double number, char text[512])
{
    double x[3] = {number, 1, -0.5}, read = 0;
    tl_tensor in = tl_data(r->t, x, TL_F64, TL_DIMS(3, 1)), out = TL_NONE;
    tl_tensor w = tl_model_find(r->m, what & 1 ? "w" : "v");
    r->now = p;
    if (what < 4) /* tl_grad, with which each event ends, has sent on what waited below a change */
        tl_grad_clear(r->t);
    if (what < 2)
        tl_write(r->m, w, &number, sizeof number);
    else if (what == 2)
        tl_model_freeze(r->m, "w", !tl_model_named(r->m, "w").frozen);
    else if (what == 3)
        tl_model_freeze(r->m, "v", !tl_model_named(r->m, "v").frozen);
    else if (run_it)
        tl_run(compiled(r, p), &in, 1, &out);
    else
        program(r->t, &in, 1, &out, 1, r);
    if (!tl_is_none(out))
        read = tl_item(r->t, out);
    tell(r, read, text);
    tl_tape_reset(r->t);
}

static bool is_refused(const char *text) { return strncmp(text, "refused", 7) == 0; }

static void all_ways_agree(void **unused)
{
    int events = 0, refused = 0;
    (void)unused;
    tl_warnings(false);
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        uint64_t s = seed * 0x9e3779b97f4a7c15u;
        run r[WAYS];
        plan made[EVENTS];
        int n_made = 0;
        bool over = false;
        for (int i = 0; i < WAYS; i++)
            begin(&r[i]);
        for (int e = 0; e < EVENTS && !over; e++) {
            const int what = (int)(next(&s) % 40);
            const double number = (double)(next(&s) % 5) / 2 + 0.5;
            const bool again = n_made > 0 && next(&s) % 2 == 0;
            const plan p = again ? made[next(&s) % (uint64_t)n_made] : make_plan(&s);
            char text[WAYS][512];
            if (!again)
                made[n_made++] = p;
            for (int i = 0; i < WAYS; i++) {
                happen(&r[i], i == 1 || (i == 2 && e % 2), &p, what, number, text[i]);
                if (strcmp(text[i], text[0]) != 0)
                    fail_msg("seed %d, event %d (%d), program %d %d %d %d, %s:\n%s (%s)\n%s (%s)",
                             (int)seed, e, what, (int)p.does[0], (int)p.does[1], (int)p.does[2],
                             (int)p.does[3], i == 1 ? "compiled" : "in turns", text[0], r[0].said,
                             text[i], r[i].said);
            }
            events++;
            refused += over = is_refused(text[0]);
        }
        for (int i = 0; i < WAYS; i++)
            end(&r[i]);
    }
    tl_warnings(true);
    print_message("%d events, %d refused\n", events, refused);
    assert_true(events > 5000 && refused > 100);
}

/* A gradient waits in tanh(w) when w is changed: no program goes on with it, whatever it does
 * after its step. */
static void a_change_below_what_waits_is_refused(void **unused)
{
    static const plan first = {{BACK_MADE, NOTHING, NOTHING, NOTHING}},
                      then[] = {{{BACK_MADE, NOTHING, NOTHING, NOTHING}},
                                {{BACK_MADE, STEP_A, NOTHING, NOTHING}},
                                {{BACK_MADE, STEP_A, BACK_MADE, NOTHING}},
                                {{BACK_MADE, STEP_A, BACK_W, STEP_A}},
                                {{BACK_W, READ_W, BACK_MADE, NOTHING}}};
    (void)unused;
    tl_warnings(false);
    for (size_t k = 0; k < sizeof then / sizeof *then; k++)
        for (int how = 0; how < 8; how++) { /* each program run or called; changed or not */
            run r;
            double x[3] = {1, 2, 0.5}, two = 2;
            begin(&r);
            for (int part = 0; part < 2; part++) {
                tl_tensor in = tl_data(r.t, x, TL_F64, TL_DIMS(3, 1)), out;
                r.now = part == 0 ? &first : &then[k];
                if (how >> part & 1)
                    tl_run(compiled(&r, r.now), &in, 1, &out);
                else
                    program(r.t, &in, 1, &out, 1, &r);
                tl_tape_reset(r.t);
                if (part == 0 && how < 4)
                    tl_write(r.m, tl_model_find(r.m, "w"), &two, sizeof two);
            }
            if (how < 4)
                assert_non_null(strstr(tl_error(r.t), "(tanh), which have been changed since"));
            assert_int_equal(tl_failed(r.t), how < 4);
            end(&r);
        }
    tl_warnings(true);
}

/* A program that only steps takes a gradient of a parameter that was made after it was traced. */
static void a_parameter_made_later_is_stepped(void **unused)
{
    double u[2] = {0};
    (void)unused;
    for (int how = 0; how < 2; how++) {
        static const plan only_step = {{STEP_A, NOTHING, NOTHING, NOTHING}};
        run r;
        double x[3] = {1, 2, 0.5};
        begin(&r);
        r.now = &only_step;
        for (int i = 0; i < 3; i++) {
            tl_tensor in = tl_data(r.t, x, TL_F64, TL_DIMS(3, 1)), out, y;
            y = tl_mul(r.t, in, parameter(&r, r.t, "w"));
            if (i == 2)
                y = tl_mul(r.t, y, parameter(&r, r.t, "u"));
            tl_backward(r.t, tl_sum(r.t, y, TL_ALL, false), .partial = true);
            if (how == 1)
                tl_run(compiled(&r, r.now), &in, 1, &out);
            else
                program(r.t, &in, 1, &out, 1, &r);
            tl_tape_reset(r.t);
        }
        assert_string_equal(tl_error(r.t), "");
        u[how] = tl_item(r.t, tl_model_find(r.m, "u"));
        end(&r);
    }
    assert_true(u[0] != 1 && u[1] == u[0]);
}

/* What is made of parameters and of a constant that changes from step to step is forgotten with the
 * step, also where no reset comes between a step and the next backward. */
static void each_step_forgets_what_it_has_made(void **unused)
{
    static float mask[256];
    size_t at[2] = {0};
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 1e-3);
    for (int step = 0; step < 40; step++) {
        mask[step] = 1;
        for (int part = 0; part < 2; part++) {
            tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(256), TL_INIT_ONES, 0),
                      d = tl_mul(t, w, tl_constant(t, mask, TL_F32, TL_DIMS(256))),
                      x = tl_zeros(t, TL_F32, TL_DIMS(2, 256));
            tl_backward(t, tl_sum(t, tl_mul(t, x, d), TL_ALL, false));
            tl_tape_reset(t);
        }
        assert_int_equal(tl_step(o, t), TL_OK);
        at[step >= 20] = tl_memory_stats(t).gradients.used;
    }
    assert_int_equal(at[1], at[0]);
    tl_free(o, t, m);
}

const struct CMUnitTest tl_tests_alternate[] = {
    cmocka_unit_test(all_ways_agree),
    cmocka_unit_test(a_change_below_what_waits_is_refused),
    cmocka_unit_test(a_parameter_made_later_is_stepped),
    cmocka_unit_test(each_step_forgets_what_it_has_made),
};
const size_t tl_tests_alternate_count = sizeof tl_tests_alternate / sizeof tl_tests_alternate[0];
