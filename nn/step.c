/* step.c: a step of an optimizer. It looks up the trained parameters and their state, prepares
 * everything that can fail, and then records one update for each parameter that has a gradient.
 * Updates are ops, so that a step can be part of a graph. */
#include "nn/opt.h"

#include <math.h>

#include "autograd/check/gradcheck.h"
#include "autograd/log/log.h"
#include "autograd/observer.h"
#include "nn/layers.h"
#include "tensor/files/bytes.h"

/* ---- parameters and their state ---- */

static void set_factors(tl_opt *o, tl_opt_param *p)
{
    p->lr_scale = 1;
    p->decay = o->o.weight_decay;
    for (int i = 0; i < o->n_groups; i++) {
        tl_opt_group_t *g = &o->group[i];
        if (tl_name_fits(g->pattern, p->param.name)) {
            p->lr_scale = g->lr_scale;
            p->decay = g->weight_decay;
            g->met = true;
        }
    }
}

/* Looks up the trained parameters, unless the model is as it was at the last look. Another thread
 * may add tensors meanwhile, which moves others; then they are looked up again. False: no memory.
 */
static bool find_params(tl_opt *o)
{
    for (uint64_t now; (now = tl_model_state(o->model)) != o->found;) {
        const int n = tl_model_count(o->model);
        tl_opt_param *p = tl_realloc(o->param, ((size_t)n + 1) * sizeof *p);
        if (p == NULL)
            return false;
        o->param = p;
        tl_opt_cut cut = tl_opt_cut_of(o->model, o->o.parts);
        o->moved |= o->bytes != 0 && o->bytes != cut.all;
        o->bytes = cut.all;
        for (int i = 0; i < n; i++) {
            const tl_named x = tl_model_at(o->model, i);
            const bool mine = tl_opt_part(&cut, &x) == o->o.part;
            const bool half = tl_dtype_compute(x.array.dtype) != x.array.dtype;
            if (!x.param)
                continue;
            *p = (tl_opt_param){.param = x, .mine = mine, .half = half};
            set_factors(o, p); /* a group may mean parameters that are frozen now */
            p += !x.frozen;
        }
        o->n_params = (int)(p - o->param);
        if (tl_model_state(o->model) == now && tl_model_count(o->model) == n)
            o->found = now;
    }
    return true;
}

/* Each group must match some parameter, now that there are parameters. */
static void check_groups(const tl_opt *o, tl_tape *t)
{
    for (int k = 0; k < o->n_groups; k++) {
        const tl_opt_group_t *g = &o->group[k];
        int n = 0;
        const char *first = "";
        if (g->met)
            continue;
        for (int i = tl_model_count(o->model); i-- > 0;)
            if (tl_model_at(o->model, i).param) {
                first = tl_model_at(o->model, i).name;
                n++;
            }
        tl_tape_fail(TL_AT(t), TL_ENAME,
                     "tl_step: tl_opt_group's pattern '%.100s' matches none of the model's %d "
                     "parameters, the first of which is '%.100s'",
                     g->pattern, n, first);
    }
}

const char **tl_opt_others(const tl_opt *o, int *n)
{
    const int most = tl_model_count(o->model);
    const char **name = tl_calloc((size_t)most + 1, sizeof *name);
    tl_opt_cut cut = tl_opt_cut_of(o->model, o->o.parts);
    *n = 0;
    for (int i = 0; name != NULL && i < most; i++) {
        const tl_named p = tl_model_at(o->model, i);
        if (tl_opt_part(&cut, &p) != o->o.part && p.param)
            name[(*n)++] = p.name;
    }
    return name;
}

const char tl_opt_elsewhere = 0;

tl_status tl_opt_check_owner(const tl_opt *o, const char *state, const void *whose, tl_err *err)
{
    const tl_opt *other = whose;
    if (whose == NULL || other == o)
        return TL_OK;
    if (whose == &tl_opt_elsewhere)
        return tl_fail(err, TL_EUSAGE,
                       "'%.100s' came with the checkpoint of another optimizer; load the one that "
                       "was saved with this optimizer, too (or weights alone, with no optimizer)",
                       state);
    return tl_fail(err, TL_EUSAGE,
                   "'%.100s' is the state of another optimizer (tl_%s_new, %lld steps), which %s; "
                   "free that, or keep the parameter from one of them (tl_model_freeze)",
                   state, other->name, (long long)other->steps,
                   tl_object_given(other) ? "lives" : "a compiled program steps with");
}

/* The buffer KIND.NAME of a parameter, in its compute type; made at the first step. */
static tl_tensor buffer(tl_opt *o, tl_tape *t, const char *kind, const tl_opt_param *p, bool own)
{
    char name[TL_NAME_MAX];
    tl_err err = {.status = TL_OK};
    const tl_array *a = &p->param.array;
    tl_tensor x = tl_buffer(t, o->model, tl_join(t, name, kind, p->param.name),
                            tl_dtype_compute(a->dtype), tl_array_shape(a));
    if (tl_is_none(x) || !own ||
        tl_opt_check_owner(o, name, tl_buffer_take(o->model, name, o), &err) == TL_OK)
        return x;
    tl_tape_fail(TL_AT(t), err.status, "tl_step: %s", err.message);
    return TL_NONE;
}

static void find_state(tl_opt *o, tl_tape *t, tl_opt_param *p)
{
    p->weight = p->half ? buffer(o, t, "master", p, false) : p->param.tensor;
    if (o->adam) {
        p->m = buffer(o, t, "adamw.m", p, true);
        p->v = buffer(o, t, "adamw.v", p, true);
    } else if (o->o.momentum != 0) {
        p->m = buffer(o, t, "sgd.b", p, true);
    }
    p->found = !tl_failed(t);
}

/* ---- the numbers of a step ---- */

/* Computes the numbers on the host, before the updates. */
static void before(tl_tape *t, void *ctx)
{
    tl_opt_numbers *now = ctx;
    const tl_opt *o = now->o;
    if (o->behind)
        tl_tape_fail((tl_at){t, NULL, 0, NULL}, TL_EUSAGE, /* or at the place of tl_step's call */
                     "tl_step: a checkpoint has been loaded since step %lld of this optimizer, "
                     "without it; load the one that was saved with it, too, or make it anew",
                     (long long)o->steps);
    now->pow1 = o->pow1;
    now->pow2 = o->pow2;
    for (int i = 0; i <= now->ahead; i++) {
        now->pow1 *= o->o.beta1;
        now->pow2 *= o->o.beta2;
    }
    now->c1 = 1 / (1 - now->pow1);
    now->c2 = 1 / (1 - now->pow2);
    now->lr = tl_schedule_lr(&o->o.schedule, o->o.lr, o->steps + now->ahead);
}

static void after(TL_UNUSED tl_tape *t, void *ctx)
{
    const tl_opt_numbers *now = ctx;
    tl_opt *o = now->o;
    o->steps++;
    o->pow1 = now->pow1;
    o->pow2 = now->pow2;
    o->grad_norm = now->norm;
}

/* Room for the numbers of the step that is being called. A graph reads those of its steps in each
 * run, so every traced step has its own. NULL: no memory. */
static tl_opt_numbers *numbers(tl_opt *o, tl_tape *t)
{
    if (!tl_traced(t)) {
        o->now = (tl_opt_numbers){.o = o};
        return &o->now;
    }
    tl_opt_numbers *now = tl_calloc(1, sizeof *now), *last = o->traced;
    if (now == NULL || tl_host_hold(t, o) != TL_OK) {
        tl_free_raw(now);
        return NULL;
    }
    now->o = o;
    now->trace = tl_scalar(t, TL_F64, 0).owner; /* unlike an address, never used again */
    now->ahead = last != NULL && last->trace == now->trace ? last->ahead + 1 : 0;
    now->older = last;
    return o->traced = now;
}

/* ---- a step ---- */

static bool reached(const tl_opt_param *p) { return !tl_is_none(p->grad); }

/* Whether other processes hold the gradients of the parameters that they update. */
static bool away(const tl_opt *o, const tl_tape *t) { return o->away.t == t && !tl_traced(t); }

/* The factor that brings the global norm down to the limit (NUMERICS 12.2). */
static tl_tensor clip_factor(const tl_opt *o, tl_opt_numbers *now, tl_tape *t)
{
    tl_tensor one = tl_scalar(t, TL_F64, 1), max = tl_scalar(t, TL_F64, o->o.clip), sum = TL_NONE;
    now->norm = (double)NAN;
    if (!(o->o.clip > 0))
        return one;
    if (away(o, t))
        sum = tl_scalar(t, TL_F64, o->away.squares);
    else
        for (const tl_opt_param *p = o->param; p < o->param + o->n_params; p++)
            sum = tl_opt_add_squares(t, sum, p->grad);
    tl_tensor norm = tl_sqrt(t, sum);
    tl_log_name(t, norm, "gradient norm");
    tl_log_name(t, max, "clip");
    tl_watch(t, norm, &now->norm);
    return tl_where(t, tl_gt(t, norm, max), tl_div(t, max, norm), one);
}

/* What all updates of a step read. */
typedef struct {
    tl_tensor clip, c1, c2;
} scalars;

/* Everything of a step that can fail comes before the first update: gradients, state, scalars,
 * room. (An observer can fail later.) */
static void prepare(tl_opt *o, tl_opt_numbers *now, tl_tape *t, scalars *s)
{
    tl_opt_param *p, *end = o->param + o->n_params;
    uint32_t n = 0;
    if (away(o, t) && o->away.state != o->found)
        tl_tape_fail(TL_AT(t), TL_EUSAGE,
                     "tl_step: parameters have been made or frozen, or groups of them, since the "
                     "gradients of part %d of %d were shared",
                     o->o.part, o->o.parts);
    for (p = o->param; p < end; p++) {
        p->grad = p->mine || !away(o, t) ? tl_grad(t, p->param.tensor) : TL_NONE;
        n += reached(p);
    }
    if (n == 0 && !(away(o, t) && o->away.n > 0))
        tl_tape_fail(TL_AT(t), TL_EUSAGE,
                     "tl_step: no parameter has a gradient; call tl_backward first, on a loss "
                     "of parameters that are not frozen");
    check_groups(o, t);
    if (o->moved && o->o.parts > 1)
        tl_tape_fail(TL_AT(t), TL_EUSAGE,
                     "tl_step: parameters have been added to a model whose optimizer updates part "
                     "%d of %d: others would be updated by it, and their state is not there",
                     o->o.part, o->o.parts);
    for (p = o->param; p < end && !tl_failed(t); p++) {
        if (reached(p) && p->mine && !p->found)
            find_state(o, t, p);
        if (reached(p) && p->mine && p->half)
            tl_master_at(TL_AT(t), p->weight, p->param.tensor);
    }
    tl_host(t, TL_BEFORE, before, now);
    const tl_tensor lr = tl_bound(t, &now->lr, TL_F64, TL_SCALAR);
    s->clip = clip_factor(o, now, t);
    s->c1 = tl_bound(t, &now->c1, TL_F64, TL_SCALAR);
    s->c2 = tl_bound(t, &now->c2, TL_F64, TL_SCALAR);
    tl_log_name(t, lr, "learning rate");
    tl_log_name(t, s->c1, "1 / (1 - beta1^step)");
    tl_log_name(t, s->c2, "1 / (1 - beta2^step)");
    for (p = o->param; p < end; p++)
        p->lr = p->lr_scale == 1 || !reached(p) ? lr : tl_scale(t, lr, p->lr_scale);
    tl_tape_reserve(t, 2 * n, 8);
}

static void update(const tl_opt *o, tl_tape *t, const tl_opt_param *p, const scalars *s)
{
    if (o->adam) {
        const tl_tensor in[8] = {p->weight, p->grad, p->m, p->v, p->lr, s->clip, s->c1, s->c2};
        tl_adamw_update_at(TL_AT(t), in,
                           (tl_adamw_attrs){o->o.beta1, o->o.beta2, o->o.eps, p->decay,
                                            o->coupled});
    } else {
        tl_sgd_update_at(TL_AT(t), p->weight, p->grad, p->m, p->lr, s->clip,
                         (tl_sgd_attrs){o->o.momentum, p->decay, o->o.nesterov, o->o.decoupled});
    }
    if (p->half)
        tl_store_at(TL_AT(t), p->param.tensor, p->weight);
}

static __attribute__((noinline)) tl_status step(tl_opt *o, tl_at at)
{
    tl_tape *t = at.tape;
    TL_TRY(tl_error_status(t));
    if (o == NULL)
        return tl_tape_fail(at, TL_ENOMEM, "tl_step: the optimizer is NULL");
    if (!tl_object_given(o)) /* a graph that held it may be traced again */
        return tl_tape_fail(at, TL_ESTALE, "tl_step: the optimizer has been freed");
    if (tl_failed(o))
        return tl_tape_fail(at, tl_error_status(o), "tl_step: %s", tl_error(o));
    if (o->refused) /* and the error has been cleared */
        return tl_tape_fail(at, TL_EUSAGE, "tl_step: tl_%s_new refused this optimizer's numbers",
                            o->name);
    if (o->model != tl_tape_model(t))
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_step: the optimizer is of another model than the tape");
    if (tl_mode(t) & TL_ANOMALY) /* an update that stops half way would leave half a step */
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_step: a TL_ANOMALY scope is open, and could stop an update half "
                            "way; tl_mode_pop it before");
    if (tl_mode(t) & TL_TRACE && !tl_traced(t))
        return tl_tape_fail(at, TL_ETRACED,
                            "tl_step: a TL_TRACE scope is open, in which nothing has contents");
    int mode = tl_mode_push(t, TL_NO_GRAD), place = tl_place_push(at);
    scalars s;
    o->stepping = true;
    tl_update_begin(t);
    tl_opt_numbers *now = numbers(o, t);
    if (now == NULL || !find_params(o))
        tl_tape_fail(at, TL_ENOMEM, "tl_step: no memory for %d updates", tl_model_count(o->model));
    else
        prepare(o, now, t, &s);
    if (tl_tape_steps(at, 1) == TL_OK) {
        for (const tl_opt_param *p = o->param; p < o->param + o->n_params; p++)
            if (reached(p) && p->mine)
                update(o, t, p, &s);
        tl_host(t, TL_AFTER_ALL, after, now);
    }
    tl_update_end(t);
    if (!tl_failed(t))
        tl_grad_clear(t);
    o->stepping = false;
    tl_place_pop(t, place);
    tl_mode_pop(t, mode);
    return tl_error_status(t);
}

tl_status tl_step_at(tl_opt *o, tl_at at)
{
    tl_fpenv saved = tl_fpenv_enter(); /* norms, powers and rates are computed outside of ops */
    tl_object_hold(o);                 /* an observer may free it */
    tl_status s = step(o, at);
    tl_object_release(o);
    tl_fpenv_leave(saved);
    return s;
}
