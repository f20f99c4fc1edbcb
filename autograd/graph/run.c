/* run.c: one run - inputs checked and bound, accumulators opened, steps run, outputs handed out.
 *
 * Nothing is recorded, no shape is worked out, and no memory is asked for unless the
 * caller still holds what the last run gave out. */
#include <string.h>

#include "autograd/graph/fused.h"
#include "tensor/threads.h"

static void bind(tl_root *r, void *base)
{
    if (r->base == base)
        return;
    r->base = base;
    for (const tl_spot *p = r->spots; p != NULL; p = p->next)
        p->a->data = r->base + p->offset;
}

/* ---- what a run needs from outside, checked before anything changes ---- */

/* An input in memory that the graph changes as a parameter, buffer or gradient: its order of reads and changes knows nothing of that. */
static tl_status check_alias(tl_graph *g, tl_at at, int i, const tl_value *v)
{
    for (uint32_t k = 0; k < g->n_roots; k++) {
        const tl_root *r = &g->roots[k];
        bool model = r->kind == TL_ROOT_MODEL && r->written && tl_values_at(&g->user->model->values, r->at)->st == v->st;
        bool itself = r->kind == TL_ROOT_INPUT && r->written && r->at == (uint32_t)i && g->user->model != NULL && v->st->arena == g->user->model->arena;
        if (model || itself)
            return tl_tape_fail(at, TL_EUSAGE, "tl_graph_run: input %d lies in a tensor of the model that the graph changes; take it inside the program (tl_param, tl_buffer)", i);
        if (r->kind == TL_ROOT_ACC && v->st->arena == g->user->grad_arena)
            return tl_tape_fail(at, TL_EUSAGE, "tl_graph_run: input %d lies in a gradient, and the graph changes gradients; call tl_grad inside the program", i);
    }
    return TL_OK;
}

static tl_status check_input(tl_graph *g, tl_at at, int i, tl_tensor x)
{
    char a[TL_SHAPE_TEXT], b[TL_SHAPE_TEXT];
    const tl_array *want = &g->signature[i];
    const tl_value *v = tl_deref(at, x, "tl_graph_run");
    if (v == NULL)
        return tl_error_status(at.tape);
    if (v->st == NULL)
        return tl_tape_fail(at, TL_ETRACED, "tl_graph_run: input %d is part of a trace and has no contents", i);
    if (!tl_array_same_shape(&v->a, want) || v->a.dtype != want->dtype)
        return tl_tape_fail(at, v->a.dtype != want->dtype ? TL_EDTYPE : TL_ESHAPE, "tl_graph_run: input %d is %s %s, but the graph was traced with %s %s", i,
                            tl_dtype_name(v->a.dtype), tl_array_shape_text(a, &v->a), tl_dtype_name(want->dtype), tl_array_shape_text(b, want));
    if (v->needs_grad && !(at.tape->mode & TL_NO_GRAD))
        return tl_tape_fail(at, TL_ENOGRAD, "tl_graph_run: input %d needs a gradient, which a graph does not hand on; mark it inside the program (tl_require_grad), tl_detach it, or run under TL_NO_GRAD", i);
    return check_alias(g, at, i, v);
}

static tl_status check_gradients(tl_graph *g, tl_at at)
{
    tl_tape *u = g->user;
    if (!g->tracing->has_backward && g->needs_grad && !(u->mode & TL_NO_GRAD))
        return tl_tape_fail(at, TL_ENOGRAD, "tl_graph_run: parameters in the graph need gradients, but it holds no backward; run it under TL_NO_GRAD, or trace the backward with it");
    for (int i = 0; i < g->t->n_grads; i++) {
        const tl_leaf_grad *mine = &g->t->grad[i], *theirs = tl_leaf_grad_find(u, mine->leaf);
        if (theirs != NULL && theirs->live && theirs->n_uses != mine->n_uses)
            return tl_tape_fail(at, TL_EUSAGE, "tl_graph_run: parameter '%s' is used %d times here but was used %d times in an earlier micro-batch of this step",
                                tl_leaf_name(u, mine->leaf), mine->n_uses, theirs->n_uses);
    }
    for (int i = 0; g->tracing->clears && i < u->n_grads; i++)
        if (u->grad[i].live && u->grad[i].leaf.owner != u->values.owner && tl_leaf_grad_find(g->t, u->grad[i].leaf) == NULL)
            return tl_tape_fail(at, TL_EUSAGE, "tl_graph_run: parameter '%s' has a gradient that the graph's optimizer step knows nothing of", tl_leaf_name(u, u->grad[i].leaf));
    return TL_OK;
}

/* ---- binding ---- */

/* Memory of its own for a root, another than the last run's if somebody still holds that. */
static tl_status bind_own(tl_graph *g, tl_root *r)
{
    if (r->st != NULL && atomic_load(&r->st->refs) > 1) {
        tl_storage_release(r->st);
        r->st = NULL;
    }
    if (r->st == NULL && (r->st = tl_storage_new(g->user->arena, r->bytes, false)) == NULL)
        return tl_fail(&g->user->head.err, TL_ENOMEM, "no memory for %zu bytes of a graph's input, output or gradient", r->bytes);
    bind(r, r->st->data);
    return TL_OK;
}

/* The accumulator that use k of leaf record i has on the user's tape, opened. */
static tl_status bind_accumulator(tl_graph *g, tl_root *r)
{
    tl_leaf_grad *mine = &g->t->grad[r->at];
    const tl_array *acc = &mine->use[r->use].acc;
    if (mine->leaf.owner == g->t->values.owner) { /* of an input: it ends with the run */
        TL_TRY(bind_own(g, r));
        if (r->bytes > 0)
            memset(r->st->data, 0, r->bytes);
        return TL_OK;
    }
    tl_leaf_grad *theirs = tl_leaf_grad_get(g->user, mine->leaf);
    if (theirs == NULL)
        return tl_fail(&g->user->head.err, TL_ENOMEM, "no memory for a gradient record");
    TL_TRY(tl_uses_reserve(g->user, theirs, mine->n_uses));
    if (!theirs->live)
        theirs->n_uses = mine->n_uses;
    TL_TRY(tl_use_open(g->user, theirs, (int)r->use, acc->dtype));
    bind(r, theirs->use[r->use].st->data);
    return TL_OK;
}


/* An input where it lies or, strided or on request, copied. */
static tl_status bind_input(tl_graph *g, tl_root *r, tl_tensor x)
{
    const tl_array *a = &tl_peek(g->user, x)->a;
    if (!g->opt.copy_inputs && tl_array_contiguous(a) && !r->written) {
        bind(r, a->data);
        return TL_OK;
    }
    TL_TRY(bind_own(g, r));
    tl_array copy = g->signature[r->at];
    copy.data = r->st->data;
    tl_array_copy(&copy, a);
    return TL_OK;
}

static tl_status bind_all(tl_graph *g, const tl_tensor *in)
{
    for (uint32_t i = 0; i < g->n_roots; i++) {
        tl_root *r = &g->roots[i];
        tl_status s = TL_OK;
        switch (r->kind) {
        case TL_ROOT_INPUT: s = bind_input(g, r, in[r->at]); break;
        case TL_ROOT_MODEL: bind(r, tl_values_at(&g->user->model->values, r->at)->a.data); break;
        case TL_ROOT_BOUND: bind(r, (char *)(uintptr_t)g->tracing->bound[r->at].data); break;
        case TL_ROOT_CONSTANT: bind(r, g->tracing->constant[r->at].st->data); break;
        case TL_ROOT_ACC: s = bind_accumulator(g, r); break;
        case TL_ROOT_OUTPUT: s = bind_own(g, r); break;
        case TL_ROOT_SLAB: break;
        }
        TL_TRY(s);
    }
    return TL_OK;
}

/* ---- running ---- */

static tl_status run_steps(tl_graph *g)
{
    tl_status s = TL_OK;
    for (uint32_t i = 0; i < g->n_steps && s == TL_OK; i++) {
        tl_plan_step *p = &g->step[i];
        const tl_node *n = &g->t->node[p->node];
        if (p->fused != NULL) {
            tl_fused_run(p->fused);
            continue;
        }
        s = tl_op_run(&p->call);
        if (s == TL_OK && n->mode & TL_ANOMALY)
            s = tl_anomaly_check((tl_at){g->user, n->file, n->line}, &p->call);
        if (s != TL_OK)
            tl_tape_fail((tl_at){g->user, n->file, n->line}, s, "%.400s", g->run_err.message);
    }
    tl_err_clear(&g->run_err);
    return s;
}

/* What the graph has changed outside is another version of it now. */
static void note_versions(tl_graph *g)
{
    for (uint32_t i = 0; i < g->n_roots; i++) {
        const tl_root *r = &g->roots[i];
        if (r->kind == TL_ROOT_MODEL && r->written)
            tl_values_at(&g->user->model->values, r->at)->st->version++;
        if (r->kind == TL_ROOT_ACC && g->t->grad[r->at].leaf.owner != g->t->values.owner)
            tl_leaf_grad_find(g->user, g->t->grad[r->at].leaf)->use[r->use].st->version++;
    }
}

static void note_gradients(tl_graph *g)
{
    for (int i = 0; i < g->t->n_grads; i++) {
        tl_leaf_grad *theirs = tl_leaf_grad_find(g->user, g->t->grad[i].leaf);
        if (theirs != NULL && g->t->grad[i].n_uses > 0)
            theirs->live = true;
    }
    if (g->tracing->clears)
        tl_grad_clear(g->user);
}

static tl_status call_hooks(tl_graph *g, tl_host_when when)
{
    for (int i = 0; i < g->tracing->n_hook && !tl_failed(g->user); i++)
        if (g->tracing->hook[i].when == when)
            g->tracing->hook[i].f(g->user, g->tracing->hook[i].ctx);
    return tl_failed(g->user) ? tl_error_status(g->user) : TL_OK;
}

/* The storage behind a root, for a value of the user's tape. */
static tl_storage *storage_of(tl_graph *g, const tl_root *r, const tl_tensor *in)
{
    switch (r->kind) {
    case TL_ROOT_INPUT: return r->st != NULL && r->base == r->st->data ? r->st : tl_peek(g->user, in[r->at])->st;
    case TL_ROOT_MODEL: return tl_values_at(&g->user->model->values, r->at)->st;
    case TL_ROOT_ACC: return r->st != NULL ? r->st : tl_leaf_grad_find(g->user, g->t->grad[r->at].leaf)->use[r->use].st;
    default: return r->st;
    }
}

/* An output that lies in a constant or in host memory is a copy of it. */
static tl_tensor copied(tl_graph *g, const tl_array *a)
{
    tl_shape shape = tl_array_shape(a);
    tl_storage *st = tl_storage_new(g->user->arena, (size_t)tl_array_count(a) * tl_dtype_size(a->dtype), false);
    if (st == NULL) {
        tl_fail(&g->user->head.err, TL_ENOMEM, "no memory for a copy of a graph's output");
        return TL_NONE;
    }
    tl_array own = tl_array_make(a->dtype, &shape, st->data);
    tl_array_copy(&own, a);
    tl_tensor x = tl_tape_value(g->user, &own, st);
    tl_storage_release(st);
    return x;
}

static void give_outputs(tl_graph *g, const tl_tensor *in, tl_tensor *out, int n_out)
{
    for (int i = 0; i < n_out; i++) {
        const tl_root *r = &g->roots[g->out_spot[i].root];
        if (r->kind == TL_ROOT_CONSTANT || r->kind == TL_ROOT_BOUND)
            out[i] = copied(g, &g->out_array[i]);
        else
            out[i] = tl_tape_value(g->user, &g->out_array[i], storage_of(g, r, in));
    }
}

static void read_watches(tl_graph *g)
{
    for (int i = 0; i < g->tracing->n_watch; i++) {
        tl_tensor x = tl_tape_value(g->user, &g->watch_array[i], g->slab);
        *g->tracing->watch[i].to = tl_item(g->user, x);
    }
}

static tl_status check(tl_graph *g, tl_at at, const tl_tensor *in, int n_in, int n_out)
{
    if (n_in != g->n_in || n_out != g->n_out)
        return tl_tape_fail(at, TL_EUSAGE, "tl_graph_run: given %d inputs and room for %d outputs; the graph has %d and %d", n_in, n_out, g->n_in, g->n_out);
    if (g->user->mode & TL_TRACE)
        return tl_tape_fail(at, TL_ETRACED, "tl_graph_run: not inside a trace; call the program itself");
    if (!tl_graph_scope_fits(g, g->traced_mode) && (g->tracing->has_backward || !tl_graph_scope_fits(g, g->traced_mode | TL_NO_GRAD)))
        return tl_tape_fail(at, TL_EUSAGE, "tl_graph_run: the graph was traced in other scopes (modes %#x, now %#x; or selected kernels, frozen parameters, seed); trace it again",
                            g->traced_mode, g->user->mode);
    for (int i = 0; i < n_in; i++) {
        TL_TRY(check_input(g, at, i, in[i]));
        if (tl_graph_twin(in, i) != g->twin[i])
            return tl_tape_fail(at, TL_EUSAGE, "tl_graph_run: inputs %d and %d are %s tensor, which they were %s when the graph was traced", i,
                                tl_graph_twin(in, i) != i ? tl_graph_twin(in, i) : g->twin[i], tl_graph_twin(in, i) != i ? "the same" : "not the same",
                                tl_graph_twin(in, i) != i ? "not" : "");
    }
    return check_gradients(g, at);
}

static tl_status run(tl_graph *g, const tl_tensor *in, tl_tensor *out, int n_out)
{
    tl_tape *u = g->user;
    TL_TRY(call_hooks(g, TL_BEFORE));
    if (g->tracing->clears_first)
        tl_grad_clear(u);
    TL_TRY(bind_all(g, in));
    TL_TRY(run_steps(g));
    note_versions(g);
    note_gradients(g);
    read_watches(g);
    give_outputs(g, in, out, n_out);
    return call_hooks(g, TL_AFTER);
}

tl_status tl_graph_run_at(const char *file, int line, tl_graph *g, const tl_tensor *in, int n_in, tl_tensor *out, int n_out)
{
    for (int i = 0; i < n_out; i++)
        out[i] = TL_NONE;
    if (g == NULL || g->user == NULL) /* its tape has been freed */
        return g == NULL ? TL_ENOMEM : TL_ESTALE;
    tl_tape *u = g->user;
    if (tl_failed(u))
        return tl_error_status(u);
    TL_TRY(check(g, (tl_at){u, file, line}, in, n_in, n_out));
    tl_fpenv saved = tl_fpenv_enter(); /* hooks compute, too */
    tl_status s = run(g, in, out, n_out);
    tl_fpenv_leave(saved);
    return s;
}
