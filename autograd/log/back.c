/* back.c: the results of backward: what a vjp recorded is walked from the gradients it gave. */
#include "autograd/log/walker.h"
#include "autograd/internal.h"

/* What waits for the input, or was folded into its accumulator: dx, or the engine's own sum_to of
 * it. */
static tl_tensor brought(tl_tape *t, uint32_t mark, tl_tensor dx, tl_tensor delivered)
{
    uint32_t leaf, use;
    if (tl_traced(t) && !tl_is_none(delivered))
        return delivered;
    const tl_storage *st = tl_is_none(delivered) ? NULL : tl_peek(t, delivered)->st;
    for (uint32_t i = t->n_nodes; i-- > mark;) {
        const tl_node *n = &t->node[i];
        if (n->op != &tl_op_sum_to || n->in[0].owner != dx.owner || n->in[0].index != dx.index)
            continue;
        if (st != NULL ? tl_values_at(&t->values, n->out)->st == st
                       : tl_use_holding(t, tl_node_out(t, n, 0), &leaf, &use))
            return (tl_tensor){t->values.owner, n->out, t->generation};
    }
    return dx;
}

/* In a trace: all that was added up to x has a key. If a replacement brought some of it, it is not
 * what the called program adds. */
static bool comes_known(const tl_log_walker *w, tl_tensor x)
{
    const tl_tape *t = w->t;
    for (;;) { /* a chain: each adds one more to what there was */
        const tl_value *v = tl_is_none(x) || x.owner != t->values.owner ? NULL : tl_peek(t, x);
        if (v == NULL || v->node < 0)
            return true;
        const tl_node *n = &t->node[v->node];
        if (v->node < (int32_t)w->mark)
            return n->n_in == 0 || tl_log_key_of(w->t, x) != 0;
        for (int k = 1; k < n->n_in; k++)
            if (!tl_is_none(n->in[k]) && n->in[k].owner == t->values.owner &&
                tl_peek(t, n->in[k])->node >= 0 && tl_log_key_of(w->t, n->in[k]) == 0)
                return false;
        x = n->in[0];
    }
}

/* What was added up to x has no keys. */
static void pass_over(tl_log_walker *w, tl_tensor x)
{
    for (int32_t i; !tl_is_none(x) && x.owner == w->t->values.owner &&
                    (i = tl_peek(w->t, x)->node) >= (int32_t)w->mark;
         x = w->t->node[i].in[0])
        w->t->node[i].visit = w->order.visit;
}

void tl_log_visit(tl_tape *t, const tl_given *g)
{
    tl_run_log *l = tl_log_of(t);
    tl_log_walker w;
    if (l->failure.status != TL_OK || !tl_log_full(l) || l->key_generation != t->generation)
        return;
    const uint32_t out = t->node[g->node].out;
    uint64_t key = out < l->cap_keys ? l->key_of[out] : 0;
    if (tl_log_mark_of(t, out).stand_in) /* another op than the called program's: its vjp's results
                                            are others */
        return;
    if (key == 0)
        return;
    tl_log_walker_begin(&w, t, g->first,
                        (tl_log_key){.pass = l->now,
                                     .backward = true,
                                     .adding = true,
                                     .at = tl_log_key_unpack(key).at});
    for (int j = 0; j < g->n_out; j++)
        if (!l->of_trace || comes_known(&w, g->dy[j]))
            tl_log_walker_walk(&w, g->dy[j]);
        else
            pass_over(&w, g->dy[j]);
    w.key.adding = false;
    w.key.sub = 0;
    for (int k = 0; k < g->n_in; k++) {
        if (tl_is_none(g->dx[k]))
            continue;
        tl_tensor x = brought(t, g->first, g->dx[k], g->delivered[k]);
        tl_log_walker_walk(&w, g->dx[k]);
        tl_log_walker_walk(&w, x);
        if (!tl_is_none(g->delivered[k]))
            tl_log_set_key(t, g->delivered[k].index, tl_log_key_of(t, x));
    }
}

void tl_log_take_accumulators(tl_tape *t, bool own)
{
    tl_run_log *l = tl_log_of(t);
    for (uint32_t i = 0; i < l->n; i++) {
        const tl_log_entry *e = &l->entry[i];
        const tl_leaf_grad *g = e->use < 0 || own != (e->leaf.owner == t->values.owner)
                                    ? NULL
                                    : tl_leaf_grad_find(t, e->leaf);
        if (g != NULL && e->use < g->n_uses && g->use[e->use].open)
            tl_log_take(l, e, &g->use[e->use].acc, g->use[e->use].st);
    }
}

void tl_log_backward_end(tl_tape *t)
{
    if (tl_log_of(t)->failure.status != TL_OK)
        return;
    if (tl_traced(t)) {
        tl_log_keys_out(t);
        return;
    }
    tl_log_take_accumulators(t, true); /* of the tape's own leaves: they end with it */
    tl_log_settle(tl_log_of(t));
}
