/* opt.c: SGD, Adam and AdamW: their options, groups of parameters, schedules of the learning rate.
 * step.c has a step. */
#include "nn/opt.h"

#include <math.h>

#include "tensor/elementary.h"
#include "tensor/memory.h"

/* ---- learning rates as f64 formulas (NUMERICS 12.5) ---- */

/* a - b, or the nearest number that fits. */
static int64_t less(int64_t a, int64_t b)
{
    int64_t d;
    return __builtin_sub_overflow(a, b, &d) ? (b < 0 ? INT64_MAX : INT64_MIN) : d;
}

static __attribute__((noinline)) double rate(const tl_schedule *s, double lr, int64_t step)
{
    if (step < s->warmup)
        return (lr * (double)less(step, -1)) / (double)s->warmup;
    if (s->kind == TL_CONSTANT)
        return lr;
    double low = lr * s->min_ratio, u = 1;
    int64_t start = s->kind == TL_WARMUP_STABLE_DECAY ? less(s->total, s->decay) : s->warmup;
    if (step < start)
        return lr;
    if (step < s->total)
        u = (double)less(step, start) / (double)less(s->total, start);
    if (s->kind == TL_COSINE) /* pi is rounded */
        return low + (0.5 * (lr - low)) * (1 + tl_f64_cos(0x1.921fb54442d18p+1 * u));
    return low + (lr - low) * (1 - u);
}

double tl_schedule_lr(const tl_schedule *s, double lr, int64_t step)
{
    if (s == NULL)
        return (double)NAN;
    tl_fpenv saved = tl_fpenv_enter();
    double r = rate(s, lr, step > 0 ? step : 0);
    tl_fpenv_leave(saved);
    return r;
}

/* ---- optimizers ---- */

static void opt_destroy(void *object)
{
    tl_opt *o = object;
    tl_buffer_give(o->model, NULL, o, NULL);
    for (int i = 0; i < o->n_groups; i++)
        tl_free_raw(o->group[i].pattern);
    while (o->traced != NULL) {
        tl_opt_numbers *gone = o->traced;
        o->traced = gone->older;
        tl_free_raw(gone);
    }
    tl_free_raw(o->group);
    tl_free_raw(o->param);
    tl_object_release(o->model);
}

/* Fails unless 0 <= x < high. */
static void below(tl_opt *o, const char *what, double x, double high)
{
    char most[32] = "on";
    if (!isinf(high))
        snprintf(most, sizeof most, "to below %g", high);
    if (!(x >= 0 && x < high))
        tl_fail(&o->head.err, TL_EDOMAIN, "tl_%s_new: %s is %g; a number from 0 %s is needed",
                o->name, what, x, most);
}

/* The first option that makes no sense becomes the optimizer's error, and tl_step reports it. */
static void check_options(tl_opt *o)
{
    const tl_opt_options *p = &o->o;
    const tl_schedule *s = &p->schedule;
    tl_err *e = &o->head.err;
    double any = (double)INFINITY;
    if (!(p->lr > 0 && p->lr < any))
        tl_fail(e, TL_EDOMAIN,
                "tl_%s_new: lr is %g; a number above 0 is needed; tl_opt_group's lr_scale may be 0",
                o->name, p->lr);
    below(o, "momentum", p->momentum, any);
    below(o, "weight_decay", p->weight_decay, any);
    below(o, "beta1", p->beta1, 1);
    below(o, "beta2", p->beta2, 1);
    below(o, "eps", p->eps, any);
    below(o, "clip", p->clip, any);
    below(o, "schedule.min_ratio", s->min_ratio, any);
    if ((unsigned)s->kind > TL_WARMUP_STABLE_DECAY || s->warmup < 0 || s->decay < 0)
        tl_fail(e, TL_EDOMAIN,
                "tl_%s_new: schedule.kind %d, warmup %lld, decay %lld: a kind, and numbers from 0 "
                "on, are needed",
                o->name, (int)s->kind, (long long)s->warmup, (long long)s->decay);
    if (s->kind != TL_CONSTANT && s->total < 1)
        tl_fail(e, TL_EDOMAIN, "tl_%s_new: schedule.total is %lld steps; 1 is the least", o->name,
                (long long)s->total);
    if (s->kind == TL_CONSTANT && (s->total != 0 || s->min_ratio != 0 || s->decay != 0))
        tl_fail(e, TL_EDOMAIN,
                "tl_%s_new: schedule.total %lld, min_ratio %g, decay %lld without a schedule.kind: "
                "0 is TL_CONSTANT, which has none of them",
                o->name, (long long)s->total, s->min_ratio, (long long)s->decay);
    if (s->kind != TL_WARMUP_STABLE_DECAY && s->kind != TL_CONSTANT && s->decay != 0)
        tl_fail(e, TL_EDOMAIN, "tl_%s_new: schedule.decay %lld is TL_WARMUP_STABLE_DECAY's alone",
                o->name, (long long)s->decay);
    if (e->status == TL_OK && s->kind == TL_WARMUP_STABLE_DECAY && s->decay > 0 &&
        s->decay > s->total - s->warmup)
        tl_fail(e, TL_EDOMAIN,
                "tl_%s_new: schedule.warmup %lld and decay %lld are more than the total of %lld "
                "steps",
                o->name, (long long)s->warmup, (long long)s->decay, (long long)s->total);
    if (o->adam ? p->momentum != 0 || p->nesterov : p->beta1 != 0 || p->beta2 != 0 || p->eps != 0)
        tl_fail(e, TL_EDOMAIN, "tl_%s_new: %s", o->name,
                o->adam ? "momentum and nesterov are SGD's; Adam has beta1"
                        : "beta1, beta2 and eps are Adam's; SGD has momentum");
    if (p->parts < 0 || p->part < 0 || p->part >= (p->parts > 0 ? p->parts : 1))
        tl_fail(e, TL_EDOMAIN,
                "tl_%s_new: part %d of %d; a number from 0 to below that of parts is needed",
                o->name, p->part, p->parts);
    if (p->nesterov && p->momentum == 0)
        tl_fail(e, TL_EDOMAIN, "tl_%s_new: nesterov with a momentum of 0", o->name);
    if (p->decoupled && o->adam)
        tl_fail(e, TL_EDOMAIN,
                "tl_%s_new: decoupled is SGD's; tl_adamw_new decays beside the gradient, "
                "tl_adam_new through it",
                o->name);
}

static tl_opt *opt_new(const char *name, tl_model *m, tl_opt_options options, const char *file,
                       int line)
{
    const bool lives = tl_lives(m); /* before o is made, perhaps where a freed model lay */
    tl_opt *o = m == NULL ? NULL : tl_calloc(1, sizeof *o);
    if (o == NULL)
        return NULL;
    tl_object_begin(&o->head, TL_KIND_OPT, opt_destroy);
    if (!lives)
        tl_fail(&o->head.err, TL_ESTALE, "tl_%s_new: the model has been freed", name);
    else
        tl_object_hold(o->model = m);
    o->name = name;
    o->adam = strcmp(name, "sgd") != 0;
    o->coupled = strcmp(name, "adam") == 0;
    o->o = options;
    o->lr_made = options.lr;
    o->pow1 = o->pow2 = 1;
    o->grad_norm = (double)NAN;
    check_options(o);
    o->refused = o->head.err.status != TL_OK;
    if (o->o.beta1 == 0)
        o->o.beta1 = 0.9;
    if (o->o.beta2 == 0)
        o->o.beta2 = 0.999;
    if (o->o.eps == 0)
        o->o.eps = 1e-8;
    if (o->head.err.status != TL_OK && file != NULL) {
        size_t n = strlen(o->head.err.message);
        snprintf(o->head.err.message + n, TL_MESSAGE_MAX - n, " (%.200s:%d)", file, line);
    }
    tl_object_give(&o->head);
    return o;
}

tl_opt *tl_sgd_new_at(tl_model *m, tl_opt_options o, const char *file, int line)
{
    return opt_new("sgd", m, o, file, line);
}

tl_opt *tl_adam_new_at(tl_model *m, tl_opt_options o, const char *file, int line)
{
    return opt_new("adam", m, o, file, line);
}

tl_opt *tl_adamw_new_at(tl_model *m, tl_opt_options o, const char *file, int line)
{
    return opt_new("adamw", m, o, file, line);
}

tl_status tl_opt_group(tl_opt *o, const char *pattern, double lr_scale, double weight_decay)
{
    TL_TRY(tl_error_status(o));
    TL_TRY(TL_NEED(&o->head.err, pattern));
    if (!(lr_scale >= 0 && isfinite(lr_scale) && weight_decay >= 0 && isfinite(weight_decay)))
        return tl_fail(&o->head.err, TL_EDOMAIN,
                       "tl_opt_group: '%.100s' with lr_scale %g and weight_decay %g; numbers from "
                       "0 on are needed",
                       pattern, lr_scale, weight_decay);
    tl_opt_group_t *grown = tl_realloc(o->group, (size_t)(o->n_groups + 1) * sizeof *grown);
    if (grown == NULL)
        return tl_fail(&o->head.err, TL_ENOMEM, "tl_opt_group: no memory for group %d",
                       o->n_groups);
    o->group = grown;
    char *copy = tl_strdup(pattern);
    if (copy == NULL)
        return tl_fail(&o->head.err, TL_ENOMEM, "tl_opt_group: no memory for '%.100s'", pattern);
    o->group[o->n_groups++] = (tl_opt_group_t){copy, lr_scale, weight_decay, false};
    tl_model_changed(o->model);
    return TL_OK;
}

int64_t tl_opt_steps(const tl_opt *o) { return tl_lives(o) ? o->steps : 0; }
double tl_opt_lr(const tl_opt *o)
{
    return !tl_lives(o) ? 0 : tl_schedule_lr(&o->o.schedule, o->o.lr, o->steps);
}
tl_status tl_opt_lr_set(tl_opt *o, double lr)
{
    TL_TRY(tl_error_status(o));
    TL_TRY(tl_error_begin(o->model)); /* refused in a traced function */
    if (!(lr > 0 && isfinite(lr)))
        return tl_fail(&o->head.err, TL_EDOMAIN,
                       "tl_opt_lr_set: lr is %g; a number above 0 is needed; tl_opt_group's "
                       "lr_scale may be 0",
                       lr);
    o->o.lr = lr;
    o->lr_set = true;
    return TL_OK;
}
double tl_opt_grad_norm(const tl_opt *o) { return tl_lives(o) ? o->grad_norm : (double)NAN; }
