/* bind.c: memory from outside - inputs, parameters, host memory, accumulators - when a run begins,
 * and the fate of the gradients when it ends.
 *
 * A program that consumes its gradients (tl_step, tl_grad_clear) and then calls tl_backward again
 * has several parts, each with records and accumulators of its own. Those of the first part go on
 * with what waits on the user's tape. Those of later parts begin at zero, in memory of the graph;
 * gradients that the last part does not consume are put on the user's tape. */
#include <string.h>

#include "autograd/graph/internal.h"

void tl_root_bind(tl_root *r, void *base)
{
    if (r->base == base)
        return;
    r->base = base;
    for (const tl_spot *p = r->spots; p != NULL; p = p->next)
        p->a->data = r->base + p->offset;
}

/* Gives a root memory of its own, but not that of the last run if somebody still holds it. */
static tl_status bind_own(tl_graph *g, tl_root *r)
{
    if (r->st != NULL && atomic_load(&r->st->refs) > 1) {
        tl_storage_release(r->st);
        r->st = NULL;
    }
    if (r->st == NULL && (r->st = tl_storage_new(g->user->arena, r->bytes, false)) == NULL)
        return tl_fail(&g->user->head.err, TL_ENOMEM,
                       "no memory for %zu bytes of a graph's input, output or gradient", r->bytes);
    tl_root_bind(r, r->st->data);
    return TL_OK;
}

tl_storage *tl_graph_copy(tl_graph *g, const tl_array *a, tl_array *copy)
{
    const tl_shape shape = tl_array_shape(a);
    tl_storage *st = tl_storage_new(g->user->arena, tl_array_room(a), false);
    if (st != NULL) {
        *copy = tl_array_make(a->dtype, &shape, st->data);
        tl_array_copy(copy, a);
    }
    return st;
}

tl_storage *tl_graph_storage(const tl_graph *g, const tl_root *r)
{
    if (r->st != NULL)
        return r->st;
    switch (r->kind) {
    case TL_ROOT_MODEL: return tl_values_at(&g->user->model->values, r->at)->st;
    case TL_ROOT_ACC: return tl_leaf_grad_find(g->user, g->t->grad[r->at].leaf)->acc[r->acc].st;
    case TL_ROOT_DERIVED: return tl_values_at(&g->user->lasting->values, r->at)->st;
    default: return NULL;
    }
}

/* ---- gradients ---- */

static tl_grad_note noted(const tl_graph *g, const tl_leaf_grad *mine)
{
    const tl_part_grads *p = &tl_traced_of(g->t)->grads;
    const size_t record = (size_t)(mine - g->t->grad);
    return record < p->cap_notes ? p->note[record] : (tl_grad_note){0};
}

/* The fate of a gradient. */
typedef enum {
    GOES_ON, /* of the first part: it is added to what waits on the user's tape */
    STAYS,   /* of the last of several parts: it is put on the user's tape when the run ends */
    ENDS     /* of a part before that, or of a marked input: it ends with the part, or the run */
} fate;

static fate fate_of(const tl_graph *g, const tl_leaf_grad *mine)
{
    const int part = tl_grad_part(g->t, (int)(mine - g->t->grad));
    if (mine->leaf.owner == g->t->values.owner)
        return ENDS;
    if (part == 0)
        return GOES_ON;
    return part == tl_traced_of(g->t)->part ? STAYS : ENDS;
}

/* The number that a call of tl_backward has on the user's tape. The program's first is the next
 * there; calls before it, whose gradients the program has found, keep theirs. */
static int their_call(const tl_graph *g, const tl_leaf_grad *mine, int call)
{
    return fate_of(g, mine) != GOES_ON || call < g->tracing->calls ? call : call + g->call_shift;
}

/* The fate of an accumulator. One that has been sent on below derived values ends. */
static fate fate_there(const tl_graph *g, const tl_root *r)
{
    const tl_leaf_grad *mine = r->kind == TL_ROOT_ACC ? &g->t->grad[r->at] : NULL;
    return mine == NULL || mine->acc[r->use].call >= TL_BELOW ? ENDS : fate_of(g, mine);
}

/* *acc: the accumulator on the user's tape, opened. */
static tl_status open_theirs(tl_graph *g, const tl_root *r, tl_accumulator **acc)
{
    const tl_leaf_grad *mine = &g->t->grad[r->at];
    tl_leaf_grad *theirs = tl_leaf_grad_find(g->user, mine->leaf);
    *acc = &theirs->acc[r->acc];
    return tl_acc_open(g->user, theirs, r->acc, mine->acc[r->use].sum.dtype);
}

/* The first part reads gradients, and what waits in that derived value goes on to them. */
static bool sends_on(const tl_graph *g, tl_tensor derived)
{
    for (int i = 0; i < g->t->n_grads; i++)
        if (tl_grad_part(g->t, i) == 0 && tl_same_handle(g->t->grad[i].leaf, derived))
            return noted(g, &g->t->grad[i]).read;
    return false;
}

/* The graph reads this gradient as a whole, and the user's record holds accumulators that the graph
 * did not have when it first read it. */
static bool reads_less(const tl_graph *g, const tl_leaf_grad *mine, const tl_leaf_grad *theirs)
{
    int open = 0;
    for (int k = 0; k < theirs->n_accs; k++)
        open += tl_acc_holds(&theirs->acc[k]);
    for (int k = 0; k < noted(g, mine).summed; k++) {
        const tl_accumulator *u = &mine->acc[k];
        const int at = tl_acc_find(theirs, their_call(g, mine, u->call), u->kind);
        open -= tl_acc_holds(u) && at >= 0 && theirs->acc[at].open;
    }
    return noted(g, mine).read && open > 0;
}

/* A record of the graph's first part does not fit what waits on the user's tape. */
static bool record_misfits(const tl_graph *g, const tl_leaf_grad *mine)
{
    /* A call of the program would have the number of an earlier one. */
    for (int k = 0; g->call_shift < 0 && k < mine->n_accs; k++)
        if (mine->acc[k].call < g->tracing->calls)
            return true;
    const tl_leaf_grad *theirs = tl_leaf_grad_find(g->user, mine->leaf);
    return theirs != NULL && theirs->live ? reads_less(g, mine, theirs) : noted(g, mine).earlier;
}

tl_tensor tl_bind_misfit(tl_graph *g)
{
    g->call_shift = g->tracing->clears_first ? 0 : g->user->calls - g->tracing->calls;
    for (int i = 0; i < g->tracing->n_missed; i++) {
        const tl_leaf_grad *theirs = tl_leaf_grad_find(g->user, g->tracing->missed[i]);
        if (theirs != NULL && theirs->live)
            return theirs->leaf;
    }
    if (g->tracing->clears_first) /* whatever waits there is dropped */
        return TL_NONE;
    for (int i = 0; i < g->user->n_grads; i++) {
        const tl_tensor leaf = g->user->grad[i].leaf;
        const bool ends_there = g->tracing->reads && tl_derived(g->user, leaf) &&
                                !sends_on(g, leaf);
        const bool untold = tl_clears(g->t) && tl_model_value(g->user->model, leaf) != NULL &&
                            leaf.index >= g->traced_values; /* made since */
        if (g->user->grad[i].live && (ends_there || untold))
            return leaf;
    }
    for (int i = 0; i < g->t->n_grads; i++)
        if (tl_grad_part(g->t, i) == 0 && record_misfits(g, &g->t->grad[i]))
            return g->t->grad[i].leaf;
    return TL_NONE;
}

tl_status tl_bind_check_gradients(tl_graph *g, tl_at at)
{
    tl_tape *u = g->user;
    if (g->t->n_grads > 0)
        TL_TRY(tl_check_waiting(at, "tl_run"));
    const tl_tensor misfit = tl_bind_misfit(g);
    if (!tl_is_none(misfit)) {
        const tl_leaf_grad *theirs = tl_leaf_grad_find(u, misfit);
        const bool now = theirs != NULL && theirs->live;
        const char *what = tl_derived(u, misfit) ? "what is made of parameters by" : "parameter";
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_graph_run: %s '%s' %s a gradient, and %s when the program "
                            "was traced, which asks for it; trace it again",
                            what, tl_leaf_name(u, misfit), now ? "has" : "has not",
                            now ? "had none, or less of it," : "had one");
    }
    if (!g->tracing->has_backward && g->needs_grad && !(u->now.mode & TL_NO_GRAD))
        return tl_tape_fail(
            at, TL_ENOGRAD,
            "tl_graph_run: an output needs a gradient, but the graph holds no backward: trace the "
            "backward with it, tl_detach the output, or tl_graph_run it under TL_NO_GRAD");
    return TL_OK;
}

/* Makes records on the user's tape, with room for their uses, for all parameters that will have a
 * gradient, including those that backward reaches only by paths that give nothing. */
static tl_status bind_records(tl_graph *g)
{
    const int call = g->tracing->clears_first ? 0 : g->user->calls;
    for (int i = 0; i < g->user->n_grads; i++)
        g->user->grad[i].reached = false;
    for (int i = 0; i < g->t->n_grads; i++) {
        const tl_leaf_grad *mine = &g->t->grad[i];
        const fate is = fate_of(g, mine);
        if (!mine->live || is == ENDS)
            continue;
        tl_leaf_grad *theirs = tl_leaf_grad_get(g->user, mine->leaf);
        if (theirs == NULL)
            return tl_error_status(g->user);
        if (theirs->live && is == GOES_ON && mine->born > 1)
            return tl_derived_waits(g->user, mine->leaf);
        for (int k = 0; k < mine->n_accs; k++) {
            const tl_accumulator *u = &mine->acc[k];
            if (u->call >= TL_BELOW)
                continue;
            const int at = tl_acc_get(g->user, theirs, their_call(g, mine, u->call), u->kind);
            if (g->acc_root[i][k] > 0)
                g->roots[g->acc_root[i][k] - 1].acc = at;
        }
        TL_TRY(g->user->head.err.status);
        theirs->reached |= is == GOES_ON;
    }
    TL_TRY(tl_derived_reach(g->user));
    if (!g->tracing->strict)
        return TL_OK;
    for (int i = 0; i < g->t->n_grads; i++) {
        tl_leaf_grad *theirs = tl_leaf_grad_find(g->user, g->t->grad[i].leaf);
        if (theirs != NULL && fate_of(g, &g->t->grad[i]) == GOES_ON)
            theirs->reached &= noted(g, &g->t->grad[i]).reached;
    }
    return tl_derived_agree((tl_at){g->user, g->file, g->line, NULL}, call);
}

bool tl_step_folds(const tl_graph *g, const tl_plan_step *s)
{
    return s->fused == NULL && tl_node_mutates(&g->t->node[s->node]) && s->n_out == 1 &&
           g->roots[s->spot[s->n_in].root].kind == TL_ROOT_ACC;
}

/* s adds to an accumulator that is all of st, reads it nowhere else, and may begin there
 * (tl_op_begins). */
static bool may_begin(const tl_graph *g, const tl_plan_step *s, const tl_storage *st)
{
    const tl_spot *sum = &s->spot[s->n_in];
    int reads = 0;
    for (int k = 0; k < s->n_in; k++)
        reads += s->spot[k].root == sum->root;
    return reads == 1 && tl_step_folds(g, s) && s->call.kernel == NULL &&
           tl_op_begins(s->call.op, sum->a, st);
}

/* Lets the first step that uses an accumulator begin there, if the accumulator is blank and the
 * step can; else settles the accumulator. */
static void begin(tl_graph *g, const tl_root *r, tl_storage *st)
{
    tl_plan_step *s = r->used ? g->step[r->first] : NULL;
    const bool made = s != NULL && s->n_out > 0 && &g->roots[s->spot[s->n_in].root] == r;
    if (made)
        s->call.begins = st->blank && !g->user->run_watched && may_begin(g, s, st);
    if (!made || !s->call.begins)
        tl_storage_settle(st);
}

tl_status tl_bind_accumulator(tl_graph *g, tl_root *r)
{
    tl_accumulator *acc;
    if (g->tracing->put_off && !r->used) /* nothing comes to it */
        return TL_OK;
    if (tl_bind_theirs(g, r)) {
        TL_TRY(open_theirs(g, r, &acc));
        tl_root_bind(r, acc->st->data);
    } else { /* of the graph, blank */
        TL_TRY(bind_own(g, r));
        r->st->blank = true;
    }
    begin(g, r, r->st != NULL ? r->st : acc->st);
    return TL_OK;
}

bool tl_bind_theirs(const tl_graph *g, const tl_root *r) { return fate_there(g, r) == GOES_ON; }

/* From now on the user's tape has the gradients of that fate. */
static void leave_records(tl_graph *g, fate which)
{
    for (int i = 0; i < g->t->n_grads; i++) {
        const tl_leaf_grad *mine = &g->t->grad[i];
        if (!mine->live || fate_of(g, mine) != which)
            continue;
        tl_leaf_grad *theirs = tl_leaf_grad_find(g->user, mine->leaf);
        theirs->live = true;
        tl_derived_left(g->user, theirs, g->t, mine);
    }
}

tl_status tl_bind_gradients_over(tl_graph *g)
{
    for (const tl_root *r = g->outside; r != NULL; r = r->next)
        if (tl_bind_theirs(g, r) && !r->later && (r->used || !g->tracing->put_off))
            tl_graph_storage(g, r)->version++;
    leave_records(g, GOES_ON);
    tl_derived_unsettle(g->user);
    if (tl_clears(g->t))
        tl_grads_drop(g->user);
    g->user->calls = g->t->calls + (tl_clears(g->t) ? 0 : g->call_shift);
    /* The gradients of the last part take the place of the user's, which have been consumed. */
    leave_records(g, STAYS);
    for (const tl_root *r = g->outside; r != NULL; r = r->next) {
        tl_accumulator *acc;
        if (fate_there(g, r) != STAYS)
            continue;
        TL_TRY(open_theirs(g, r, &acc));
        memcpy(acc->st->data, r->st->data, r->bytes);
        acc->st->blank = false;
    }
    return TL_OK;
}

/* ---- everything ---- */

static tl_status bind_derived(tl_graph *g, tl_root *r)
{
    const tl_spot *p = r->spots;
    while (!p->written)
        p = p->next;
    void *room = tl_derived_room(g->user, r->at, p->a, &r->full);
    if (room != NULL)
        tl_root_bind(r, room);
    return g->user->head.err.status;
}

/* Binds a root to array a where that lies, or to a row-major copy. */
static tl_status bind_array(tl_graph *g, tl_root *r, const tl_array *a, bool copied)
{
    if (!copied) {
        tl_root_bind(r, a->data);
        return TL_OK;
    }
    TL_TRY(bind_own(g, r));
    const tl_shape shape = tl_array_shape(a);
    const tl_array copy = tl_array_make(a->dtype, &shape, r->st->data);
    tl_array_copy(&copy, a);
    return TL_OK;
}

static tl_status bind_root(tl_graph *g, tl_root *r, const tl_tensor *in)
{
    const tl_array *a;
    tl_err e = {.status = TL_OK};
    switch (r->kind) {
    case TL_ROOT_INPUT:
        a = &tl_peek(g->user, in[r->at])->a;
        return bind_array(g, r, a,
                          g->opt.copy_inputs || !tl_array_contiguous(a) || r->written || r->later);
    case TL_ROOT_BOUND:
        a = &g->tracing->bound[r->at];
        if (tl_data_check(a->data, (tl_c_data){0}, a, &e) != TL_OK)
            return tl_tape_fail((tl_at){g->user, g->file, g->line, NULL}, e.status, "tl_bound: %s",
                                e.message);
        return bind_array(g, r, a, r->written || r->later);
    case TL_ROOT_CONSTANT: return bind_array(g, r, &g->tracing->constant[r->at].a, r->written);
    case TL_ROOT_MODEL:
        return bind_array(g, r, &tl_values_at(&g->user->model->values, r->at)->a, false);
    case TL_ROOT_ACC: return r->later && tl_bind_theirs(g, r) ? TL_OK : tl_bind_accumulator(g, r);
    case TL_ROOT_OUTPUT: return bind_own(g, r);
    case TL_ROOT_DERIVED: return bind_derived(g, r);
    case TL_ROOT_SLAB: break;
    }
    return TL_OK;
}

tl_status tl_bind_all(tl_graph *g, const tl_tensor *in)
{
    TL_TRY(bind_records(g));
    for (tl_root *r = g->outside; r != NULL; r = r->next)
        TL_TRY(bind_root(g, r, in));
    return TL_OK;
}
