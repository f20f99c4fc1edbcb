/* lasting.c: the lasting tape, which notes how derived values (derived.c) are made. Its values are
 * found by their prints. When a walk reaches one, the parameters below it are reached, too, and
 * must not have changed while a gradient waits. */
#include "autograd/batch/internal.h"

/* ---- values by their prints ---- */

tl_value *tl_lasting_find(const tl_tape *l, uint64_t print, bool made)
{
    const uint64_t *at = tl_key_map_find(&l->found, print);
    const uint32_t i = at == NULL ? 0 : made ? (uint32_t)(*at >> 32) : (uint32_t)*at;
    return i == 0 ? NULL : tl_values_at(&l->values, i - 1);
}

bool tl_lasting_place(tl_tape *l, tl_value *v, uint64_t print)
{
    const tl_value *first = tl_lasting_find(l, print, false);
    const tl_value *made = tl_lasting_find(l, print, true);
    first = first == NULL ? v : first;
    made = made == NULL && (v->node >= 0 || v->fixed) ? v : made;
    const uint64_t low = first->self.index + 1, high = made == NULL ? 0 : made->self.index + 1;
    v->print = print;
    return tl_key_map_put(&l->found, print, high << 32 | low) ||
           tl_fail(&l->head.err, TL_ENOMEM, "no memory for the place of a value") == TL_OK;
}

const tl_value *tl_derived_made(const tl_tape *t, tl_tensor leaf)
{
    return tl_lasting_find(t->lasting, tl_peek(t, leaf)->print, true);
}

void tl_derived_drop(tl_value *v)
{
    tl_storage_release(v->st);
    v->st = NULL;
}

/* ---- the last change below a value ---- */

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

uint64_t tl_derived_last_change(tl_tape *t, const tl_value *x)
{
    tl_tape *l = t->lasting;
    tl_postorder o;
    look_below(t, &o);
    tl_postorder_from(&o, x->node);
    for (int32_t i; (i = tl_postorder_next(&o)) >= 0;) {
        uint64_t last = 0;
        for (int k = 0; k < l->node[i].n_in; k++) {
            const uint64_t change = below(t, l->node[i].in[k]);
            last = change > last ? change : last;
        }
        l->node[i].below = last;
    }
    return 1 + (x->node < 0 ? 0 : l->node[x->node].below);
}

/* ---- the derived values that a walk reaches ---- */

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

tl_status tl_derived_check(tl_tape *t, tl_tensor leaf)
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
        tl_postorder_from(&o, tl_derived_made(t, leaf)->node);
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
            TL_TRY(tl_derived_check(t, t->grad[i].leaf));
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
