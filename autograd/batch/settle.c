/* settle.c: sends the gradients of derived values (derived.c) back to the parameters, once a step;
 * and notices when micro-batches of a step make different derived values in one place. */
#include <stdio.h>
#include <stdlib.h>

#include "autograd/batch/internal.h"

/* ---- the last change below a value of the lasting tape ---- */

static int32_t inside(void *l, const tl_node *n, int k)
{
    return tl_maker_at(l, tl_attached(l, n->in[k]));
}

/* The last change of x, a tensor of the model: its number or, in a trace, 1 + the node's. */
static uint64_t last_change(tl_tape *t, tl_tensor x)
{
    return t->recorder == NULL ? tl_peek(t, x)->st->changed
                               : (uint64_t)(t->recorder->last_change(t->recorder_ctx, t, x) + 1);
}

/* The last change below an input of a node, once the nodes below it have theirs. */
static uint64_t below(tl_tape *t, tl_tensor in)
{
    const tl_tape *l = t->lasting;
    in = tl_attached(l, in);
    const int32_t maker = tl_maker_at(l, in);
    if (maker >= 0 || tl_is_none(in) || in.owner == l->values.owner)
        return maker >= 0 ? l->node[maker].below : 0;
    return tl_peek(l, in) == NULL ? TL_REMOVED - 1 : last_change(t, in);
}

/* Begins a walk, or continues the last one if its findings still hold: nothing has changed since,
 * and no other walk has been here. */
static void look_below(tl_tape *t, tl_postorder *o)
{
    tl_tape *l = t->lasting;
    const uint32_t names = t->model == NULL ? 0 : t->model->names;
    const uint64_t changes = tl_changes();
    const bool on = t->recorder == NULL && l->looked.visit != 0 && l->looked.visit == l->visits &&
                    l->looked.names == names && l->looked.changes == changes;
    l->visits -= on;
    tl_postorder_begin(o, l, inside, l);
    l->looked.visit = t->recorder != NULL ? 0 : l->visits;
    l->looked.names = names;
    l->looked.changes = changes;
}

uint64_t tl_derived_last_change(tl_tape *t, tl_tensor x)
{
    tl_tape *l = t->lasting;
    const int32_t root = tl_peek(l, x)->node;
    tl_postorder o;
    look_below(t, &o);
    tl_postorder_from(&o, root);
    for (int32_t i; (i = tl_postorder_next(&o)) >= 0;) {
        uint64_t last = 0;
        for (int k = 0; k < l->node[i].n_in; k++) {
            const uint64_t change = below(t, l->node[i].in[k]);
            last = change > last ? change : last;
        }
        l->node[i].below = last;
    }
    return 1 + (root < 0 ? 0 : l->node[root].below);
}

/* ---- from derived values to parameters ---- */

tl_status tl_derived_waits(tl_tape *t, tl_tensor leaf)
{
    return tl_fail(&t->head.err, TL_EUSAGE,
                   "a gradient waits in a value made of parameters (%s), which have been changed "
                   "since: tl_grad or tl_step come before that, or tl_grad_clear",
                   tl_leaf_name(t, leaf));
}

void tl_derived_left(tl_tape *t, tl_leaf_grad *theirs, tl_tape *trace, const tl_leaf_grad *mine)
{
    if (!tl_derived(t, mine->leaf))
        return;
    const uint64_t now = tl_derived_last_change(t, tl_derived_made(t, mine->leaf));
    const uint64_t traced = tl_derived_last_change(trace, tl_derived_made(trace, mine->leaf));
    /* If the program has changed the parameters since, any number but that of the last change. */
    theirs->born = mine->born == traced ? now : now - 1;
}

/* The parameters that a derived value is made of must not change while a gradient waits in it. */
static tl_status check_below(tl_tape *t, tl_tensor leaf)
{
    tl_value *v = tl_peek(t->lasting, leaf);
    const uint64_t last = tl_derived_last_change(t, tl_derived_made(t, leaf));
    tl_leaf_grad *g = tl_leaf_grad_find(t, leaf);
    if (g->live && g->born != 0 && g->born != last && last != TL_REMOVED)
        return tl_derived_waits(t, leaf);
    g->born = last;
    if (v->after != last && t->recorder == NULL) {
        tl_derived_drop(v);
        v->after = last;
    }
    return TL_OK;
}

/* Gradients do not go through what was detached. */
static int32_t inside_grad(void *l, const tl_node *n, int k) { return tl_maker_at(l, n->in[k]); }

static void reach(tl_tape *t, tl_tensor in)
{
    const tl_value *v = tl_derived(t, in) ? NULL : tl_peek(t->lasting, in);
    tl_leaf_grad *g = v != NULL && v->needs_grad ? tl_leaf_grad_get(t, in) : NULL;
    if (g != NULL)
        g->reached = true;
}

/* Marks the parameters below reached derived values as reached, too. */
static tl_status reach_below(tl_tape *t)
{
    tl_tape *l = t->lasting;
    tl_postorder o;
    tl_postorder_begin(&o, l, inside_grad, l);
    for (int i = t->first_grad; i < t->n_grads; i++) { /* the list grows */
        const tl_tensor leaf = t->grad[i].leaf;
        if (!tl_derived(t, leaf) || !t->grad[i].reached)
            continue;
        tl_postorder_from(&o, tl_peek(l, tl_derived_made(t, leaf))->node);
        for (int32_t n; (n = tl_postorder_next(&o)) >= 0;)
            for (int k = 0; k < l->node[n].n_in; k++)
                reach(t, l->node[n].in[k]);
    }
    return tl_error_status(t);
}

tl_status tl_derived_reach(tl_tape *t)
{
    bool any = false;
    for (int i = t->first_grad; i < t->n_grads; i++)
        if (tl_derived(t, t->grad[i].leaf) && t->grad[i].reached) {
            any = true;
            TL_TRY(check_below(t, t->grad[i].leaf));
        }
    return any ? reach_below(t) : TL_OK;
}

void tl_derived_unsettle(tl_tape *t)
{
    t->settlings = t->recorder == NULL ? 0 : t->settlings + t->settled; /* each has its own sums */
    t->settled = false;
    for (int i = t->first_grad; i < t->n_grads; i++)
        for (int k = 0; k < t->grad[i].n_accs; k++)
            t->grad[i].acc[k].open &= t->grad[i].acc[k].call < TL_BELOW;
}

/* For tl_rerun: makes constants of the lasting tape again; parameters stand for themselves. */
static tl_tensor leaf_again(void *ctx, tl_tensor x)
{
    tl_tape *t = ctx;
    if (!tl_derived(t, x))
        return x;
    const tl_array *a = &tl_peek(t, x)->a;
    return tl_constant(t, a->data, a->dtype, tl_array_shape(a));
}

/* Runs the expression of a derived value again, and a backward through it. */
static tl_status send_back(tl_at at, tl_tensor of)
{
    tl_tape *t = at.tape;
    const unsigned mode = t->now.mode;
    const int calls = t->calls;
    const tl_tensor leaf = tl_derived_made(t, of);
    if (tl_is_none(leaf))
        return tl_tape_fail(at, TL_EUSAGE,
                            "a gradient waits in a value made of parameters that no backward has "
                            "reached since it came, from a checkpoint or from another rank: save "
                            "before the last micro-batch that uses the value, or after tl_step, "
                            "and of several ranks let each use it");
    TL_TRY(check_below(t, of));
    tl_tensor dy = tl_leaf_grad_sum(at, tl_leaf_grad_find(t, of), tl_peek(t, leaf)->a.dtype);
    t->now.mode &= ~(unsigned)(TL_NO_GRAD | TL_FAST);
    tl_tensor y = tl_rerun(t, t->lasting, leaf, leaf_again, NULL, t);
    t->now.mode = mode;
    tl_walk w = {.t = t, .at = at, .who = "tl_backward", .y = y, .asked = y};
    w.opt = (tl_backward_options){.cotangent = dy, .partial = true};
    TL_TRY(tl_error_status(t));
    if (!tl_peek(t, y)->needs_grad) /* frozen since: its gradient goes nowhere */
        return TL_OK;
    t->calls = TL_BELOW + t->settlings;
    tl_status s = tl_walk_prepare(&w);
    if (s == TL_OK)
        s = tl_walk_run(&w);
    t->calls = calls;
    return s;
}

/* A derived value in which a gradient waits. */
typedef struct {
    uint64_t print;
    tl_tensor leaf;
} waiting;

static int by_print(const void *a, const void *b)
{
    const uint64_t x = ((const waiting *)a)->print, y = ((const waiting *)b)->print;
    return (x > y) - (x < y);
}

tl_status tl_derived_settle(tl_at at)
{
    tl_tape *t = at.tape;
    if (t->settled)
        return TL_OK;
    t->settled = true;
    waiting *w = tl_tape_room(t, (size_t)(t->n_grads - t->first_grad), sizeof *w);
    size_t n = 0;
    TL_TRY(tl_error_status(t));
    for (int i = t->first_grad; i < t->n_grads; i++)
        if (t->grad[i].live && tl_derived(t, t->grad[i].leaf))
            w[n++] = (waiting){tl_peek(t, t->grad[i].leaf)->print, t->grad[i].leaf};
    qsort(w, n, sizeof *w, by_print);
    for (size_t i = 0; i < n; i++) /* no others begin to wait: these are made of parameters alone */
        TL_TRY(tl_tape_stopped(t, send_back(at, w[i].leaf)));
    return TL_OK;
}

/* ---- micro-batches that make different derived values in one place ---- */

/* Whether backward number `call` or a later one has reached g in earlier micro-batches. */
static bool met(const tl_leaf_grad *g, int call)
{
    for (int k = 0; k < g->n_accs; k++)
        if (tl_acc_holds(&g->acc[k]) && g->acc[k].call >= call)
            return true;
    return false;
}

bool tl_derived_strays(tl_tape *t, int i, int call, char why[TL_MESSAGE_MAX])
{
    const tl_leaf_grad *g = &t->grad[i], *other = NULL;
    if (!tl_derived(t, g->leaf) || !g->reached || met(g, call))
        return false;
    const tl_tensor x = tl_derived_made(t, g->leaf);
    const uint64_t h = tl_print_made(t->lasting, x);
    char a[TL_SHAPE_TEXT], b[TL_SHAPE_TEXT];
    for (int k = t->first_grad; h != 0 && k < t->n_grads && other == NULL; k++)
        if (tl_derived(t, t->grad[k].leaf) && !t->grad[k].reached && met(&t->grad[k], call) &&
            tl_print_made(t->lasting, tl_derived_made(t, t->grad[k].leaf)) == h)
            other = &t->grad[k];
    if (other == NULL)
        return false;
    const tl_node *n = &t->lasting->node[tl_peek(t, x)->node];
    snprintf(why, TL_MESSAGE_MAX,
             "%s (%.90s:%d) makes %s of parameters and constants alone, where a micro-batch before "
             "made another value, %s: what comes to each is finished apart; make one for all "
             "micro-batches, as large as any needs, and take views of it (tl_slice)",
             n->op->name, n->file == NULL ? "?" : n->file, n->line,
             tl_array_shape_text(a, &tl_peek(t, x)->a),
             tl_array_shape_text(b, &tl_peek(t, other->leaf)->a));
    return true;
}

tl_status tl_derived_agree(tl_at at, int call)
{
    char why[TL_MESSAGE_MAX];
    for (int i = at.tape->first_grad; at.tape->lasting != NULL && i < at.tape->n_grads; i++)
        if (tl_derived_strays(at.tape, i, call, why))
            return tl_tape_fail(at, TL_EUSAGE, "tl_backward: TL_STRICT: %s", why);
    return TL_OK;
}
