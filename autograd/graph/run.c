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
    if (v->needs_grad && !g->tracing->has_backward && !(at.tape->mode & TL_NO_GRAD))
        return tl_tape_fail(at, TL_ENOGRAD, "tl_graph_run: input %d needs a gradient, but the graph holds no backward; run it under TL_NO_GRAD, or trace the backward with it", i);
    return TL_OK;
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

/* The accumulator that use k of leaf record i has on the user's tape, opened. */
static tl_status bind_accumulator(tl_graph *g, tl_root *r)
{
    tl_leaf_grad *mine = &g->t->grad[r->at];
    const tl_array *acc = &mine->use[r->use].acc;
    if (mine->leaf.owner == g->t->values.owner) { /* of an input: it ends with the run */
        if (r->st == NULL && (r->st = tl_storage_new(g->tracing->arena, r->bytes, false)) == NULL)
            return tl_fail(&g->user->head.err, TL_ENOMEM, "no memory for %zu bytes of gradient", r->bytes);
        if (r->bytes > 0)
            memset(r->st->data, 0, r->bytes);
        bind(r, r->st->data);
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

static tl_status bind_output(tl_graph *g, tl_root *r)
{
    if (r->st != NULL && atomic_load(&r->st->refs) > 1) { /* somebody still holds the last one */
        tl_storage_release(r->st);
        r->st = NULL;
    }
    if (r->st == NULL && (r->st = tl_storage_new(g->user->arena, r->bytes, false)) == NULL)
        return tl_fail(&g->user->head.err, TL_ENOMEM, "no memory for %zu bytes of output", r->bytes);
    bind(r, r->st->data);
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
    if (r->st == NULL && (r->st = tl_storage_new(g->tracing->arena, r->bytes, false)) == NULL)
        return tl_fail(&g->user->head.err, TL_ENOMEM, "no memory for a copy of %zu bytes of input", r->bytes);
    tl_array copy = g->signature[r->at];
    copy.data = r->st->data;
    tl_array_copy(&copy, a);
    bind(r, r->st->data);
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
        case TL_ROOT_OUTPUT: s = bind_output(g, r); break;
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
    case TL_ROOT_CONSTANT: return g->tracing->constant[r->at].st;
    case TL_ROOT_ACC: return r->st != NULL ? r->st : tl_leaf_grad_find(g->user, g->t->grad[r->at].leaf)->use[r->use].st;
    default: return r->st;
    }
}

static void give_outputs(tl_graph *g, const tl_tensor *in, tl_tensor *out, int n_out)
{
    for (int i = 0; i < n_out; i++) {
        if (tl_is_none(g->out[i]))
            continue;
        const tl_root *r = &g->roots[tl_graph_root(g, tl_graph_resolve(g, g->out[i]))];
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
        return tl_tape_fail(at, TL_EUSAGE, "tl_graph_run: the graph was traced in other scopes (modes %#x, now %#x; or selected kernels, or frozen parameters); trace it again",
                            g->traced_mode, g->user->mode);
    for (int i = 0; i < n_in; i++)
        TL_TRY(check_input(g, at, i, in[i]));
    return check_gradients(g, at);
}

tl_status tl_graph_run_at(const char *file, int line, tl_graph *g, const tl_tensor *in, int n_in, tl_tensor *out, int n_out)
{
    for (int i = 0; i < n_out; i++)
        out[i] = TL_NONE;
    if (g == NULL)
        return TL_ENOMEM;
    tl_tape *u = g->user;
    if (tl_failed(u))
        return tl_error_status(u);
    TL_TRY(check(g, (tl_at){u, file, line}, in, n_in, n_out));
    TL_TRY(call_hooks(g, TL_BEFORE));
    tl_status s = bind_all(g, in);
    if (s != TL_OK)
        return s;
    u->half_backward = g->tracing->has_backward;
    tl_fpenv saved = tl_fpenv_enter();
    s = run_steps(g);
    tl_fpenv_leave(saved);
    if (s != TL_OK)
        return s;
    note_versions(g);
    note_gradients(g);
    u->half_backward = false;
    read_watches(g);
    give_outputs(g, in, out, n_out);
    return call_hooks(g, TL_AFTER);
}
