/* run.c: one run. Inputs are checked and bound (bind.c), steps run, and outputs handed out.
 *
 * Nothing is recorded, no shape is computed, and no memory is asked for unless the caller still
 * holds what the last run gave out. */
#include "autograd/graph/internal.h"
#include "tensor/threads.h"

/* ---- what a run needs from outside, checked before anything changes ---- */

/* Refuses an input in memory that the graph changes as a parameter, buffer or gradient: the order
 * of reads and changes was fixed without knowing of that. */
static tl_status check_alias(tl_graph *g, tl_at at, int i, const tl_value *v)
{
    for (const tl_root *r = g->outside; r != NULL; r = r->next) {
        bool model = r->kind == TL_ROOT_MODEL && r->written && tl_graph_storage(g, r) == v->st;
        bool itself = r->kind == TL_ROOT_INPUT && r->written && r->at == (uint32_t)i &&
                      g->user->model != NULL && v->st->arena == g->user->model->arena;
        if (model || itself)
            return tl_tape_fail(at, TL_EUSAGE,
                                "tl_graph_run: input %d lies in a tensor of the model that the "
                                "graph changes; take it inside the program (tl_param, tl_buffer)",
                                i);
        if (r->kind == TL_ROOT_ACC && v->st->arena == g->user->grad_arena)
            return tl_tape_fail(at, TL_EUSAGE,
                                "tl_graph_run: input %d lies in a gradient, and the graph changes "
                                "gradients; call tl_grad inside the program",
                                i);
    }
    return TL_OK;
}

static tl_status check_input(tl_graph *g, tl_at at, const tl_tensor *in, int i)
{
    const tl_value *v = tl_deref(at, in[i], "tl_graph_run");
    if (v == NULL)
        return tl_error_status(at.tape);
    if (v->st == NULL)
        return tl_tape_fail(at, TL_ETRACED,
                            "tl_graph_run: input %d is part of a trace and has no contents", i);
    TL_TRY(tl_graph_input_fits(g, in, i, &at));
    if (v->needs_grad && !(at.tape->now.mode & TL_NO_GRAD))
        return tl_tape_fail(
            at, TL_ENOGRAD,
            "tl_graph_run: input %d needs a gradient, which a graph does not hand on; mark it "
            "inside the program (tl_require_grad), tl_detach it, or run under TL_NO_GRAD",
            i);
    return check_alias(g, at, i, v);
}

/* ---- running ---- */

/* *at: the step that was begun last. */
static tl_status run_steps(tl_graph *g, uint32_t *at)
{
    tl_status s = TL_OK;
    g->n_waiting = 0;
    for (uint32_t i = 0; i < g->n_now && s == TL_OK; i++) {
        tl_plan_step *p = g->step[i];
        *at = i;
        TL_TRY(tl_later_wait(g, i));
        if (p->n_out == 0 || !g->roots[p->spot[p->n_in].root].full)
            s = tl_graph_run_call(g, p, &p->call);
        if (s == TL_OK)
            tl_graph_log_step(g, p);
    }
    return s;
}

/* Gives the tensors of the model that the graph has changed a new version. */
static void note_changes(tl_graph *g)
{
    for (const tl_root *r = g->outside; r != NULL; r = r->next)
        if (r->kind == TL_ROOT_MODEL && r->written)
            tl_storage_note(tl_graph_storage(g, r), (tl_changer){"tl_run", g->file, g->line}, NULL);
}

/* Calls the hooks of the parts before `end` up to one that fails, and all that are TL_AFTER_ALL. */
static tl_status call_hooks(tl_graph *g, tl_host_when when, int end)
{
    tl_status s = tl_error_status(g->user);
    for (int i = 0; i < g->tracing->n_hook; i++) {
        const tl_host_hook h = g->tracing->hook[i];
        const bool due = h.when == when ? s == TL_OK : when == TL_AFTER && h.when == TL_AFTER_ALL;
        if (!due || h.part >= end)
            continue;
        h.f(g->user, h.ctx);
        tl_fpenv_enter(); /* whatever it has left */
        s = s == TL_OK ? tl_tape_stopped(g->user, tl_error_status(g->user)) : s;
    }
    return s;
}

/* The storage of an output, as a value of the user's tape. */
static tl_storage *storage_of(tl_graph *g, const tl_root *r, const tl_tensor *in)
{
    const bool copy = r->st != NULL && r->base == r->st->data;
    return r->kind == TL_ROOT_INPUT && !copy ? tl_peek(g->user, in[r->at])->st
                                             : tl_graph_storage(g, r);
}

/* An output that lies in a constant or in host memory is a copy of it. */
static tl_tensor copied(tl_graph *g, const tl_array *a)
{
    tl_array copy;
    tl_storage *st = tl_graph_copy(g, a, &copy);
    tl_tensor x = tl_handle(st == NULL ? NULL : tl_tape_value(g->user, &copy, st));
    if (st == NULL)
        tl_fail(&g->user->head.err, TL_ENOMEM, "no memory for a copy of a graph's output");
    tl_storage_release(st);
    return x;
}

static void give_outputs(tl_graph *g, const tl_tensor *in, tl_tensor *out, int n_out)
{
    for (int i = 0; i < n_out; i++) {
        const tl_root *r = &g->roots[g->result_spot[i].root];
        if (r->kind == TL_ROOT_CONSTANT || r->kind == TL_ROOT_BOUND)
            out[i] = copied(g, &g->result_array[i]);
        else
            out[i] = tl_handle(tl_tape_value(g->user, &g->result_array[i], storage_of(g, r, in)));
        if (!tl_is_none(out[i]))
            tl_batch_like(tl_peek(g->user, out[i]), tl_peek(g->t, g->out[i]));
    }
}

static void read_watches(tl_graph *g, int end)
{
    for (int i = 0; i < g->tracing->n_watch; i++)
        if (g->tracing->watch[i].part < end)
            *g->tracing->watch[i].to = tl_array_get(&g->result_array[g->n_out + i], 0);
}

static tl_status check(tl_graph *g, tl_at at, const tl_tensor *in, int n_in, int n_out)
{
    char text[TL_MISFITS_TEXT];
    if (n_in != g->n_in || n_out != g->n_out)
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_graph_run: inputs: %d given, %d in the graph; outputs: room for "
                            "%d, %d in the graph",
                            n_in, g->n_in, n_out, g->n_out);
    if (g->user->inside != NULL)
        return tl_tape_fail(at, TL_EUSAGE, "tl_graph_run: called inside %s, on the same tape",
                            g->user->inside);
    if (g->user->now.mode & TL_TRACE)
        return tl_tape_fail(at, TL_ETRACED,
                            "tl_graph_run: not inside a trace; call the program itself");
    const unsigned also = g->tracing->has_backward ? 0 : TL_NO_GRAD;
    const char *misfits = tl_graph_misfits(text, g, g->traced_mode | also);
    if (*misfits != '\0')
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_graph_run: the graph was traced with other settings: %s; trace it "
                            "again",
                            misfits);
    for (int i = 0; i < n_in; i++)
        TL_TRY(check_input(g, at, in, i));
    return tl_bind_check_gradients(g, at);
}

/* The run has failed in step `at`. The parts of the program before it are over: their optimizers
 * have stepped, and their watches and hooks follow, as if they had been called. */
static void end_early(tl_graph *g, uint32_t at)
{
    tl_err *err = &g->user->head.err, saved = *err;
    tl_err *of_model = g->user->model == NULL ? NULL : &g->user->model->head.err, model = {0};
    int end = tl_traced_of(g->t)->part;
    for (uint32_t i = at; i < g->n_steps; i++)
        if (tl_node_part(g->t, g->step[i]->node) < end)
            end = tl_node_part(g->t, g->step[i]->node);
    tl_err_clear(err);
    if (of_model != NULL && of_model->status != TL_OK) { /* else other threads may be reading it */
        model = *of_model;
        tl_err_clear(of_model);
    }
    read_watches(g, end);
    call_hooks(g, TL_AFTER, end);
    *err = saved;
    if (model.status != TL_OK)
        *of_model = model;
}

static tl_status run(tl_graph *g, tl_at place, const tl_tensor *in, tl_tensor *out, int n_out)
{
    tl_tape *u = g->user;
    const int all = tl_traced_of(g->t)->part + 1;
    uint32_t at = 0;
    TL_TRY(call_hooks(g, TL_BEFORE, all));
    if (g->tracing->n_hook > 0) /* which may have reset the tape, or dropped gradients */
        TL_TRY(check(g, place, in, g->n_in, n_out));
    TL_TRY(tl_prints_run(place, &g->prints));
    if (g->tracing->clears_first)
        tl_grads_drop(u);
    TL_TRY(tl_bind_all(g, in));
    /* Nothing but a hook fails once the steps have run. */
    if (!tl_values_room(&u->values, (uint32_t)(n_out + g->tracing->n_watch)))
        return tl_fail(&u->head.err, TL_ENOMEM,
                       "tl_graph_run: no memory for the records of %d outputs", n_out);
    tl_graph_log_begin(g, in);
    tl_status s = tl_tape_stopped(u, run_steps(g, &at));
    note_changes(g);
    if (s == TL_OK) {
        tl_graph_log_end(g);
        at = g->n_steps;
        s = tl_bind_gradients_over(g);
    }
    if (s == TL_OK)
        s = tl_later_over(g);
    if (s != TL_OK) {
        end_early(g, at);
        return s;
    }
    read_watches(g, all);
    give_outputs(g, in, out, n_out);
    return call_hooks(g, TL_AFTER, all);
}

tl_status tl_graph_run_at(const char *file, int line, tl_graph *g, const tl_tensor *in, int n_in,
                          tl_tensor *out, int n_out)
{
    for (int i = 0; out != NULL && i < n_out; i++)
        out[i] = TL_NONE;
    TL_TRY(tl_graph_there(g, "tl_graph_run"));
    tl_tape *u = g->user;
    const tl_at at = {u, file, line, NULL};
    TL_TRY(tl_may_add(u));
    if (g->running > 0)
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_graph_run: an op, an observer or a hook runs the graph that is "
                            "running; its values would be overwritten - trace another graph for "
                            "that");
    TL_TRY(TL_NEED_N_AT(at, in, n_in));
    TL_TRY(TL_NEED_N_AT(at, out, n_out));
    TL_TRY(check(g, at, in, n_in, n_out));
    TL_TRY(tl_steps_count(at, g->t->steps));
    tl_object_hold(g); /* hooks may free them, */
    tl_object_hold(u);
    tl_fpenv saved = tl_fpenv_enter(); /* and compute, too */
    g->running++;                      /* whoever is called from here on must not run g again */
    tl_status s = run(g, at, in, out, n_out);
    g->running--;
    tl_fpenv_leave(saved);
    for (int i = 0; s != TL_OK && i < n_out; i++)
        out[i] = TL_NONE;
    u->missed |= s != TL_OK;
    if (s != TL_OK)
        tl_derived_forget(u); /* some of them may have memory and no contents */
    tl_object_release(u);
    tl_object_release(g);
    return s;
}
