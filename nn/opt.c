/* opt.c: SGD and AdamW - the gradients of a tape into updates of a model. */
#include "nn/opt.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nn/layers.h"
#include "ops/optimize.h"
#include "tensor/threads.h"

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

tl_opt *tl_adam_new_with(tl_model *m, tl_opt_options options)
{
    tl_opt *o = opt_new(m, options, true);
    if (o != NULL)
        o->coupled = true;
    return o;
}

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

/* One parameter's update, everything it needs in hand. */
typedef struct {
    tl_tensor in[8];
    double decay;
    tl_tensor half; /* the f16 or bf16 parameter whose f32 master in[0] is */
} ready;

static bool trained(const tl_named *p) { return p->param && !p->frozen; }

/* NUMERICS 12.2: the factor that brings the global norm down to the limit. */
static double clip_factor(const tl_opt *o, tl_tape *t, const ready *r, int n, double *norm)
{
    double sum = 0;
    *norm = (double)NAN;
    if (!(o->o.clip > 0))
        return 1;
    for (int i = 0; i < n; i++)
        sum += tl_item(t, tl_square_sum_at(TL_AT(t), r[i].in[1]));
    *norm = sqrt(sum);
    return *norm > o->o.clip ? o->o.clip / *norm : 1;
}

/* A state buffer of a parameter, made at the first step. */
static tl_tensor state(tl_opt *o, tl_tape *t, const char *kind, const tl_named *p)
{
    char name[TL_NAME_MAX];
    return tl_buffer(t, o->model, tl_join(t, name, kind, p->name), TL_F32, tl_array_shape(&p->array));
}

/* The f32 master of an f16 or bf16 parameter: what small updates add up in. It is
 * taken anew from a parameter that has been changed by other means (loaded, say). */
static tl_tensor master(tl_opt *o, tl_tape *t, const tl_named *p)
{
    tl_tensor m = state(o, t, "master", p), wide = tl_cast(t, p->tensor, TL_F32), rounded = tl_cast(t, m, p->array.dtype);
    tl_array a, b, w, to;
    if (!tl_array_of(t, p->tensor, &a) || !tl_array_of(t, rounded, &b) || !tl_array_of(t, wide, &w) || !tl_array_of(t, m, &to))
        return TL_NONE;
    if (memcmp(a.data, b.data, (size_t)tl_array_count(&a) * tl_dtype_size(a.dtype)) != 0)
        tl_array_copy(&to, &w);
    return m;
}

static void factors(const tl_opt *o, const char *name, double *lr_scale, double *decay)
{
    *lr_scale = 1;
    *decay = o->o.weight_decay;
    for (int i = 0; i < o->n_groups; i++)
        if (fnmatch(o->group[i].pattern, name, 0) == 0) {
            *lr_scale = o->group[i].lr_scale;
            *decay = o->group[i].weight_decay;
        }
}

/* A parameter's gradient, state and learning rate. Makes buffers, so names move: looked up by name. */
static void gather(tl_opt *o, tl_tape *t, const tl_named *p, ready *r)
{
    double lr_scale;
    factors(o, p->name, &lr_scale, &r->decay);
    bool half = p->array.dtype == TL_F16 || p->array.dtype == TL_BF16;
    r->half = half ? p->tensor : TL_NONE;
    r->in[0] = half ? master(o, t, p) : p->tensor;
    r->in[1] = tl_grad(t, p->tensor);
    r->in[2] = o->adamw ? state(o, t, "adamw.m", p) : o->o.momentum != 0 ? state(o, t, "sgd.b", p) : TL_NONE;
    r->in[3] = o->adamw ? state(o, t, "adamw.v", p) : TL_NONE;
    r->in[4] = tl_scalar(t, TL_F64, tl_opt_lr(o) * lr_scale);
    if (!half && p->array.dtype != TL_F32)
        tl_tape_fail(TL_AT(t), TL_EDTYPE, "tl_step: parameter '%s' is %s; F32, F16 and BF16 can be updated", p->name,
                     tl_dtype_name(p->array.dtype));
}

/* All that may fail comes before the first update: gradients, state, scalars, room. */
static int prepare(tl_opt *o, tl_tape *t, ready *r, double pow1, double pow2, double *norm)
{
    int n = 0, count = 0;
    tl_named *params = tl_tape_scratch(t, ((size_t)tl_model_count(o->model) + 1) * sizeof *params);
    if (params == NULL)
        return tl_tape_fail(TL_AT(t), TL_ENOMEM, "tl_step: no memory"), 0;
    for (int i = 0; i < tl_model_count(o->model); i++) {
        tl_named p = tl_model_at(o->model, i);
        if (trained(&p) && !tl_is_none(tl_grad(t, p.tensor)))
            params[count++] = p;
    }
    for (; n < count && !tl_failed(t); n++)
        gather(o, t, &params[n], &r[n]);
    if (n == 0)
        return tl_tape_fail(TL_AT(t), TL_EUSAGE, "tl_step: no parameter has a gradient; call tl_backward first"), 0;
    tl_tensor clip = tl_scalar(t, TL_F64, clip_factor(o, t, r, n, norm));
    tl_tensor c1 = tl_scalar(t, TL_F64, 1 / (1 - pow1)), c2 = tl_scalar(t, TL_F64, 1 / (1 - pow2));
    for (int i = 0; i < n; i++) {
        r[i].in[5] = clip;
        r[i].in[6] = c1;
        r[i].in[7] = c2;
    }
    tl_tape_reserve(t, 2 * (uint32_t)n, 8);
    return n;
}

static void update(const tl_opt *o, tl_tape *t, const ready *r)
{
    if (o->adamw)
        tl_adamw_update_at(TL_AT(t), r->in, (tl_adamw_attrs){o->o.beta1, o->o.beta2, o->o.eps, r->decay, o->coupled});
    else
        tl_sgd_update_at(TL_AT(t), r->in[0], r->in[1], r->in[2], r->in[4], r->in[5], (tl_sgd_attrs){o->o.momentum, r->decay, o->o.nesterov});
    if (!tl_is_none(r->half))
        tl_store_at(TL_AT(t), r->half, r->in[0]);
}

static __attribute__((noinline)) tl_status step(tl_opt *o, tl_at at)
{
    tl_tape *t = at.tape;
    if (o == NULL || tl_failed(t))
        return o == NULL ? TL_ENOMEM : tl_error_status(t);
    if (tl_mode(t) & (TL_TRACE | TL_ANOMALY)) /* an update that stops half way would leave half a step */
        return tl_tape_fail(at, tl_mode(t) & TL_TRACE ? TL_ETRACED : TL_EUSAGE, "tl_step: not inside a %s scope",
                            tl_mode(t) & TL_TRACE ? "TL_TRACE" : "TL_ANOMALY");
    int mode = tl_mode_push(t, TL_NO_GRAD), place = tl_place_push(at);
    ready *r = tl_tape_scratch(t, ((size_t)tl_model_count(o->model) + 1) * sizeof *r);
    double pow1 = o->pow1 * o->o.beta1, pow2 = o->pow2 * o->o.beta2, norm;
    if (r == NULL)
        tl_tape_fail(at, TL_ENOMEM, "tl_step: no memory for %d updates", tl_model_count(o->model));
    int n = r == NULL ? 0 : prepare(o, t, r, pow1, pow2, &norm);
    if (!tl_failed(t)) {
        for (int i = 0; i < n; i++)
            update(o, t, &r[i]);
        o->steps++;
        o->pow1 = pow1;
        o->pow2 = pow2;
        o->grad_norm = norm;
        tl_grad_clear(t);
    }
    tl_place_pop(t, place);
    tl_mode_pop(t, mode);
    return tl_failed(t) ? tl_error_status(t) : TL_OK;
}

tl_status tl_step_at(tl_opt *o, tl_at at)
{
    tl_fpenv saved = tl_fpenv_enter(); /* norms, powers and rates are computed here, outside any op */
    tl_status s = step(o, at);
    tl_fpenv_leave(saved);
    return s;
}
