/* tape.c: a tape begins, is reset and ends; what it counts; its memory; clearing its error. */
#include "autograd/batch.h"

#include <string.h>

#include "tensor/environment.h"
#include "tensor/threads.h"

static void tape_destroy(void *object)
{
    tl_tape *t = object;
    TL_TELL(t, freed, t);
    tl_free_raw(t->watcher);
    tl_values_drop(&t->values, 0);
    tl_prints_free(&t->prints);
    tl_leaf_grads_drop(t, 0, 0);
    if (t->arena != NULL) /* a trace shares the lasting tape of the user */
        tl_derived_forget(t);
    tl_object_release(t->lasting);
    tl_free_raw(t->grad);
    tl_key_map_free(&t->grad_at);
    tl_values_free(&t->values);
    tl_free_raw(t->node);
    tl_free_raw(t->site);
    tl_free_raw(t->again);
    tl_key_map_free(&t->found);
    tl_choices_free(t);
    tl_bump_free(&t->bump);
    tl_arena_free(t->arena);
    tl_arena_free(t->grad_arena);
    tl_object_release(t->model);
}

tl_tape *tl_tape_new(tl_model *m)
{
    tl_tape *t = tl_tape_bare(tl_lives(m) ? m : NULL, tape_destroy);
    if (t == NULL)
        return NULL;
    t->arena = tl_arena_new();
    t->grad_arena = tl_arena_new();
    if (t->arena == NULL || t->grad_arena == NULL) {
        tl_object_end(t);
        return NULL;
    }
    if (m != t->model)
        tl_fail(&t->head.err, TL_ESTALE, "tl_tape_new: the model has been freed");
    /* A setting in the environment that makes no sense is an error, not ignored. */
    if (tl_isa_check(&t->head.err) == TL_OK)
        tl_threads_check(&t->head.err);
    tl_object_give(&t->head);
    return t;
}

tl_model *tl_tape_model(const tl_tape *t) { return tl_lives(t) ? t->model : NULL; }

void tl_tape_rewind(tl_tape *t)
{
    TL_TELL(t, reset, t);
    tl_check_waiting(tl_nowhere(t), "tl_tape_reset");
    tl_values_drop(&t->values, 0);
    tl_leaf_grads_drop(t, t->values.owner, 0); /* those of parameters stay */
    tl_derived_reset(t);
    t->n_nodes = 0;
    t->now.phase = 0;
    t->thaws = t->model == NULL ? 0 : t->model->thaws;
    t->late = false;
    tl_prints_end(t);
    t->steps = t->calls = 0;
    t->segments = NULL;
    tl_bump_rewind(&t->bump, 0);
    if (++t->generation == 0)
        t->generation = 1;
}

void tl_tape_reset(tl_tape *t)
{
    if (!tl_lives(t) || !tl_between(t, "tl_tape_reset"))
        return;
    if (t->recorder == NULL)
        tl_tape_rewind(t);
    else
        tl_tape_fail(tl_nowhere(t), TL_ETRACED,
                     "tl_tape_reset: not inside a traced function; call it between runs");
}

void tl_tape_limit(tl_tape *t, int steps)
{
    if (tl_lives(t) && steps < 0)
        tl_tape_fail(tl_nowhere(t), TL_EDOMAIN, "tl_tape_limit: %d steps; 0 is no limit", steps);
    else if (tl_lives(t))
        t->limit = steps;
}

tl_status tl_steps_count(tl_at at, int n)
{
    tl_tape *t = at.tape;
    TL_TRY(tl_error_status(t));
    if (n > 0 && t->limit > 0 && t->steps > t->limit - n)
        return tl_tape_fail(at, TL_EUSAGE,
                            "%d optimizer steps in one recording of %u nodes and %u values, where "
                            "%d are the limit: forgot tl_tape_reset? tl_tape_limit raises it",
                            t->steps + n, t->n_nodes, (unsigned)atomic_load(&t->values.count),
                            t->limit);
    t->steps += n > 0 && t->limit > 0 ? n : 0;
    return TL_OK;
}

tl_status tl_tape_steps(tl_at at, int n)
{
    if (tl_failed(at.tape) || !tl_between(at.tape, "tl_step"))
        return tl_error_status(at.tape);
    return n > 0 && tl_prints_step(at) != TL_OK ? tl_error_status(at.tape) : tl_steps_count(at, n);
}

tl_status tl_tape_reserve(tl_tape *t, uint32_t calls, int inputs)
{
    TL_TRY(tl_error_status(t));
    TL_TRY(tl_need(&t->head.err, __func__, "inputs", true, inputs));
    size_t each = ((size_t)inputs + 2) * 64 + 512;
    bool ok = calls <= SIZE_MAX / 2 / each && tl_nodes_room(t, calls) == TL_OK &&
              tl_bump_room(&t->bump, calls * each) && tl_values_room(&t->values, calls);
    return ok ? TL_OK : tl_fail(&t->head.err, TL_ENOMEM, "no memory to record %u calls", calls);
}

void tl_error_clear(void *object)
{
    tl_object *o = object;
    if (!tl_lives(o) || !tl_failed(o))
        return;
    tl_tape *t = o->kind == TL_KIND_TAPE ? object : NULL;
    if (t != NULL && ((o->err.status != TL_OK && !t->only_read) || t->missed))
        tl_grad_clear(t); /* what failed may have been part of a batch */
    if (t != NULL)
        t->only_read = false;
    tl_err_clear(&o->err);
    if (tl_failed(o)) /* the model; without an error, other threads may be reading it */
        tl_err_clear(&((tl_tape *)o)->model->head.err);
}

tl_tape_memory tl_memory_stats(const tl_tape *t)
{
    if (!tl_lives(t))
        return (tl_tape_memory){0};
    tl_tape_memory m = {.tape = tl_arena_stats(t->arena),
                        .gradients = tl_arena_stats(t->grad_arena),
                        .nodes = t->n_nodes,
                        .values = atomic_load(&t->values.count)};
    for (const tl_tape *l = t; l != NULL; l = l->lasting)
        m.records += l->n_nodes * sizeof *l->node + tl_bump_used(&l->bump);
    if (t->model == NULL)
        return m;
    pthread_mutex_lock(&t->model->lock);
    m.model = tl_arena_stats(t->model->arena);
    pthread_mutex_unlock(&t->model->lock);
    return m;
}
