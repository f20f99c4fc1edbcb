/* opt.c: SGD and AdamW - the gradients of a tape into updates of a model. */
#include "nn/opt.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nn/layers.h"
#include "ops/optimize.h"

static void opt_destroy(void *object)
{
    tl_opt *o = object;
    for (int i = 0; i < o->n_groups; i++)
        tl_free_raw(o->group[i].pattern);
    tl_free_raw(o->group);
    tl_free_raw(o);
}

static tl_opt *opt_new(tl_model *m, tl_opt_options options, bool adamw)
{
    tl_opt *o = m == NULL ? NULL : tl_calloc(1, sizeof *o);
    if (o == NULL)
        return NULL;
    o->head.kind = TL_KIND_OPT;
    o->head.destroy = opt_destroy;
    o->model = m;
    o->adamw = adamw;
    o->o = options;
    o->pow1 = o->pow2 = 1;
    o->grad_norm = (double)NAN;
    if (o->o.beta1 == 0)
        o->o.beta1 = 0.9;
    if (o->o.beta2 == 0)
        o->o.beta2 = 0.999;
    if (o->o.eps == 0)
        o->o.eps = 1e-8;
    return o;
}

tl_opt *tl_sgd_new_with(tl_model *m, tl_opt_options o) { return opt_new(m, o, false); }
tl_opt *tl_adamw_new_with(tl_model *m, tl_opt_options o) { return opt_new(m, o, true); }

tl_status tl_opt_group(tl_opt *o, const char *pattern, double lr_scale, double weight_decay)
{
    if (o == NULL)
        return TL_ENOMEM;
    tl_opt_group_t *grown = tl_realloc(o->group, (size_t)(o->n_groups + 1) * sizeof *grown);
    if (grown == NULL)
        return tl_fail(&o->head.err, TL_ENOMEM, "tl_opt_group: no memory for group %d", o->n_groups);
    o->group = grown;
    char *copy = tl_strdup(pattern);
    if (copy == NULL)
        return tl_fail(&o->head.err, TL_ENOMEM, "tl_opt_group: no memory for '%.100s'", pattern);
    o->group[o->n_groups++] = (tl_opt_group_t){copy, lr_scale, weight_decay};
    return TL_OK;
}

int64_t tl_opt_steps(const tl_opt *o) { return o == NULL ? 0 : o->steps; }
double tl_opt_lr(const tl_opt *o) { return o == NULL ? 0 : tl_schedule_lr(&o->o.schedule, o->o.lr, o->steps); }
double tl_opt_grad_norm(const tl_opt *o) { return o == NULL ? (double)NAN : o->grad_norm; }

/* What an update of every parameter shares. */
typedef struct {
    tl_opt *o;
    tl_tape *t;
    double lr;
    tl_tensor clip, c1, c2;
    double pow1, pow2;
} stepper;

static bool trained(const tl_named *p) { return p->param && !p->frozen; }

/* NUMERICS 12.2: the factor that brings the global norm down to the limit. */
static double clip_factor(stepper *s)
{
    tl_opt *o = s->o;
    double sum = 0;
    if (!(o->o.clip > 0))
        return 1;
    for (int i = 0; i < tl_model_count(o->model); i++) {
        tl_named p = tl_model_at(o->model, i);
        tl_tensor g = trained(&p) ? tl_grad(s->t, p.tensor) : TL_NONE;
        if (!tl_is_none(g))
            sum += tl_item(s->t, tl_square_sum_at(TL_AT(s->t), g));
    }
    o->grad_norm = sqrt(sum);
    return o->grad_norm > o->o.clip ? o->o.clip / o->grad_norm : 1;
}

static void scalars(stepper *s)
{
    tl_opt *o = s->o;
    s->pow1 = o->pow1 * o->o.beta1;
    s->pow2 = o->pow2 * o->o.beta2;
    s->lr = tl_opt_lr(o);
    s->clip = tl_scalar(s->t, TL_F64, clip_factor(s));
    s->c1 = tl_scalar(s->t, TL_F64, 1 / (1 - s->pow1));
    s->c2 = tl_scalar(s->t, TL_F64, 1 / (1 - s->pow2));
}

/* A state buffer of a parameter, made at the first step. */
static tl_tensor state(stepper *s, const char *kind, const tl_named *p)
{
    char name[TL_NAME_MAX];
    return tl_buffer(s->t, s->o->model, tl_join(name, kind, p->name), TL_F32, tl_array_shape(&p->array));
}

static void update(stepper *s, const tl_named *p, tl_tensor g)
{
    tl_opt *o = s->o;
    double lr_scale = 1, decay = o->o.weight_decay;
    for (int i = 0; i < o->n_groups; i++)
        if (fnmatch(o->group[i].pattern, p->name, 0) == 0) {
            lr_scale = o->group[i].lr_scale;
            decay = o->group[i].weight_decay;
        }
    tl_tensor lr = tl_scalar(s->t, TL_F64, s->lr * lr_scale);
    if (o->adamw) {
        tl_tensor in[8] = {p->tensor, g, state(s, "adamw.m", p), state(s, "adamw.v", p), lr, s->clip, s->c1, s->c2};
        tl_adamw_update_at(TL_AT(s->t), in, (tl_adamw_attrs){o->o.beta1, o->o.beta2, o->o.eps, decay});
    } else {
        tl_tensor b = o->o.momentum != 0 ? state(s, "sgd.b", p) : TL_NONE;
        tl_sgd_update_at(TL_AT(s->t), p->tensor, g, b, lr, s->clip, (tl_sgd_attrs){o->o.momentum, decay});
    }
}

/* All that may fail comes before the first update: gradients, state, scalars. */
static tl_status prepare(stepper *s, int *found)
{
    tl_opt *o = s->o;
    *found = 0;
    for (int pass = 0; pass < 2; pass++) /* buffers enter the list of names: find them all first */
        for (int i = 0; i < tl_model_count(o->model) && !tl_failed(s->t); i++) {
            tl_named p = tl_model_at(o->model, i);
            if (!trained(&p) || tl_is_none(tl_grad(s->t, p.tensor)))
                continue;
            *found += pass;
            if (o->adamw) {
                state(s, "adamw.m", &p);
                state(s, "adamw.v", &p);
            } else if (o->o.momentum != 0) {
                state(s, "sgd.b", &p);
            }
        }
    scalars(s);
    return tl_failed(s->t) ? tl_error_status(s->t) : TL_OK;
}

tl_status tl_step(tl_opt *o, tl_tape *t)
{
    if (o == NULL || tl_failed(t))
        return o == NULL ? TL_ENOMEM : tl_error_status(t);
    stepper s = {.o = o, .t = t};
    int found, mode = tl_mode_push(t, TL_NO_GRAD), place = tl_place_push((tl_at){t, "tl_step", 0});
    tl_status st = prepare(&s, &found);
    if (st == TL_OK && found == 0)
        st = tl_tape_fail((tl_at){t, "tl_step", 0}, TL_EUSAGE, "tl_step: no parameter has a gradient; call tl_backward first");
    for (int i = 0; st == TL_OK && i < tl_model_count(o->model); i++) {
        tl_named p = tl_model_at(o->model, i);
        tl_tensor g = trained(&p) ? tl_grad(t, p.tensor) : TL_NONE;
        if (!tl_is_none(g))
            update(&s, &p, g);
    }
    st = tl_failed(t) ? tl_error_status(t) : st;
    if (st == TL_OK) {
        o->steps++;
        o->pow1 = s.pow1;
        o->pow2 = s.pow2;
        tl_grad_clear(t);
    }
    tl_place_pop(t, place);
    tl_mode_pop(t, mode);
    return st;
}
