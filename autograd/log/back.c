/* back.c: what a backward and an update recorded, numbered in canonical order.
 *
 * C may record its calls in any order: what was recorded is walked from its results, inputs first,
 * left to right. */
#include "autograd/log/internal.h"

/* The nodes from mark on, walked in post-order from roots. */
typedef struct {
    tl_tape *t;
    uint32_t mark;
    tl_postorder order;
    tl_log_key key; /* of the last result */
} walker;

static uint64_t next_key(walker *w)
{
    if (w->key.pass == TL_KEY_UPDATE) {
        w->key.at++;
        w->key.sub = 0;
    } else {
        w->key.sub++;
    }
    w->key.out = 0;
    return tl_log_key_pack(w->key);
}

/* A gradient read for the update stands behind the result before it: how it is put together does
 * not count in the numbers of the others. */
static uint64_t key_of_node(walker *w, const tl_node *n)
{
    if (w->key.pass != TL_KEY_UPDATE || !(n->phase & TL_PHASE_GRADIENT))
        return next_key(w);
    w->key.sub++;
    w->key.out = 0;
    return tl_log_key_pack(w->key);
}

static bool wanted(const walker *w, const tl_array *a)
{
    return a->ndim == 0 || tl_log_full(tl_log_of(w->t));
}

static uint64_t entry_of_use(const tl_run_log *l, tl_tensor leaf, int use)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (l->entry[i].use == use && l->entry[i].leaf.owner == leaf.owner &&
            l->entry[i].leaf.index == leaf.index)
            return l->entry[i].key;
    return 0;
}

/* A value that was there before the walk, not named yet. */
static void outside(walker *w, tl_tensor x)
{
    tl_tape *t = w->t;
    const tl_value *v = tl_peek(t, x);
    uint32_t leaf, use;
    if (v == NULL || (v->st == NULL && !tl_traced(t)))
        return;
    if (tl_acc_holding(t, x, &leaf, &use)) {
        if (x.owner == t->values.owner)
            tl_log_set_key(t, x.index, entry_of_use(tl_log_of(t), t->grad[leaf].leaf, (int)use));
        return;
    }
    if (v->st != NULL && v->st->arena == t->grad_arena)
        return;
    if (tl_traced(t) && x.owner == t->values.owner && v->node >= 0 && t->node[v->node].n_in > 0)
        return; /* a replacement made it: it has no key */
    if (x.owner != t->values.owner && w->key.pass == TL_KEY_UPDATE)
        return; /* an optimizer's state: what it is after the update stands behind it */
    uint64_t key = next_key(w);
    if (x.owner == t->values.owner)
        tl_log_set_key(t, x.index, key);
    else
        tl_key_map_put(&tl_log_of(t)->model_key, (uint64_t)x.index + 1, key);
    if (wanted(w, &v->a))
        tl_log_leaf(t, key, x);
}

/* An accumulator is hashed when the step ends: here it is only named. */
static void name_accumulator(tl_tape *t, tl_log_entry *e, const tl_leaf_grad *g, int use)
{
    const char *name = g->leaf.owner == t->values.owner ? NULL
                                                        : tl_model_name_of(t->model, g->leaf);
    e->leaf = g->leaf;
    e->use = use;
    e->name = name != NULL ? name : "";
    e->dtype = g->acc[use].sum.dtype;
}

/* An update is known by the parameter that it changes. */
static void name_changed(tl_tape *t, tl_log_entry *e, tl_tensor x)
{
    const char *name = x.owner == t->values.owner ? NULL : tl_model_name_of(t->model, x);
    if (name == NULL)
        return;
    e->name = name;
    e->update = true;
}

/* What else of the model the op in the entry `by` reads or changes: an optimizer's state, as it is
 * after it. */
static void states(walker *w, const tl_node *n, uint64_t by)
{
    for (int k = 0; k < n->n_in; k++) {
        tl_tensor x = tl_log_resolve(w->t, n->in[k]);
        bool changed = n->op->traits & TL_MUTATES && k == n->op->mutates;
        if (!tl_is_none(x) && x.owner != w->t->values.owner && !changed &&
            tl_log_key_of(w->t, x) == 0 && tl_log_full(tl_log_of(w->t)))
            tl_log_state(w->t, next_key(w), x, by);
    }
}

static void finish(walker *w, uint32_t index)
{
    tl_tape *t = w->t;
    const tl_node *n = &t->node[index];
    if (n->op->traits & TL_VIEW)
        return;
    const uint64_t by = key_of_node(w, n);
    uint64_t key = by;
    uint32_t leaf, use;
    for (int j = 0; j < n->n_out; j++, key++) {
        const tl_value *v = tl_values_at(&t->values, n->out + (uint32_t)j);
        tl_log_set_key(t, n->out + (uint32_t)j, key);
        tl_log_entry *e = wanted(w, &v->a) ? tl_log_describe(t, key, n, j) : NULL;
        if (e != NULL && tl_acc_holding(t, tl_node_out(t, n, j), &leaf, &use))
            name_accumulator(t, e, &t->grad[leaf], (int)use);
        else
            tl_log_take_value(t, e, n, j);
        if (e != NULL && j == 0 && n->op->traits & TL_MUTATES && !tl_is_none(n->in[n->op->mutates]))
            name_changed(t, e, n->in[n->op->mutates]);
    }
    if (w->key.pass == TL_KEY_UPDATE)
        states(w, n, by);
}

/* The walk is about this node. */
static bool walker_has(const walker *w, int32_t node)
{
    return node >= (int32_t)w->mark &&
           (w->key.pass != TL_KEY_UPDATE || w->t->node[node].phase & TL_PHASE_UPDATE);
}

/* The node of the walk that made x; -1: x is something else, which has its key then. */
static int32_t enter(walker *w, tl_tensor x)
{
    const tl_tape *t = w->t;
    x = tl_is_none(x) ? x : tl_attached(t, x);
    const tl_value *v = tl_is_none(x) ? NULL : tl_peek(t, x);
    if (v == NULL)
        return -1;
    if (x.owner == t->values.owner && walker_has(w, v->node))
        return v->node;
    if (tl_log_key_of(w->t, x) == 0)
        outside(w, tl_log_resolve(t, x));
    return -1;
}

static int32_t follow(void *ctx, const tl_node *n, int k)
{
    walker *w = ctx;
    bool changed = n->op->traits & TL_MUTATES && k == n->op->mutates;
    return changed && n->in[k].owner != w->t->values.owner ? -1 : enter(w, n->in[k]);
}

/* Of the nodes from mark on; of those of an update, if key says so. */
static void walker_begin(walker *w, tl_tape *t, uint32_t mark, tl_log_key key)
{
    *w = (walker){.t = t, .mark = mark, .key = key};
    tl_postorder_begin(&w->order, t, follow, w);
}

/* Everything below root that has no key yet gets one, and an entry with its bytes. */
static void walker_walk(walker *w, tl_tensor root)
{
    tl_postorder_from(&w->order, enter(w, root));
    for (int32_t i; (i = tl_postorder_next(&w->order)) >= 0;)
        finish(w, (uint32_t)i);
}

/* ---- a backward ---- */

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
                       : tl_acc_holding(t, tl_node_out(t, n, 0), &leaf, &use))
            return (tl_tensor){t->values.owner, n->out, t->generation};
    }
    return dx;
}

/* In a trace: all that was added up to x has a key. If a replacement brought some of it, it is not
 * what the called program adds. */
static bool comes_known(const walker *w, tl_tensor x)
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
static void pass_over(walker *w, tl_tensor x)
{
    for (int32_t i; !tl_is_none(x) && x.owner == w->t->values.owner &&
                    (i = tl_peek(w->t, x)->node) >= (int32_t)w->mark;
         x = w->t->node[i].in[0])
        w->t->node[i].visit = w->order.visit;
}

void tl_log_visit(tl_tape *t, const tl_given *g)
{
    tl_run_log *l = tl_log_of(t);
    walker w;
    if (l->failure.status != TL_OK || !tl_log_full(l) || l->key_generation != t->generation)
        return;
    const uint32_t out = t->node[g->node].out;
    uint64_t key = out < l->cap_keys ? l->key_of[out] : 0;
    if (tl_log_mark_of(t, out).stand_in) /* another op than the called program's: its vjp's results
                                            are others */
        return;
    if (key == 0)
        return;
    walker_begin(&w, t, g->first,
                 (tl_log_key){.pass = l->now,
                              .backward = true,
                              .adding = true,
                              .at = tl_log_key_unpack(key).at});
    for (int j = 0; j < g->n_out; j++)
        if (!l->of_trace || comes_known(&w, g->dy[j]))
            walker_walk(&w, g->dy[j]);
        else
            pass_over(&w, g->dy[j]);
    w.key.adding = false;
    w.key.sub = 0;
    for (int k = 0; k < g->n_in; k++) {
        if (tl_is_none(g->dx[k]))
            continue;
        tl_tensor x = brought(t, g->first, g->dx[k], g->delivered[k]);
        walker_walk(&w, g->dx[k]);
        walker_walk(&w, x);
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
        if (g != NULL && e->use < g->n_accs && g->acc[e->use].open)
            tl_log_take(l, e, &g->acc[e->use].sum, g->acc[e->use].st);
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

/* ---- an update ---- */

/* Nodes whose results no other node of the update reads, in recorded order: an optimizer
 * goes through parameters by name. */
void tl_log_update_end(tl_tape *t)
{
    tl_run_log *l = tl_log_of(t);
    walker w;
    if (l->failure.status != TL_OK)
        return;
    if (!l->of_trace)
        tl_log_take_accumulators(t, false);
    uint32_t mark = l->of_trace ? 0 : l->update_mark > 0 ? l->update_mark - 1 : t->n_nodes;
    l->update_mark = 0;
    uint8_t *read = mark > t->n_nodes ? NULL : tl_bump_get(&t->bump, t->n_nodes - mark + 1);
    if (read == NULL)
        return;
    walker_begin(&w, t, mark, (tl_log_key){.pass = TL_KEY_UPDATE});
    for (uint32_t i = mark; i < t->n_nodes; i++)
        for (int k = 0; k < t->node[i].n_in; k++) {
            const tl_tensor x = t->node[i].in[k];
            int32_t p = x.owner == t->values.owner ? tl_peek(t, x)->node : -1;
            if (walker_has(&w, (int32_t)i) && walker_has(&w, p))
                read[(uint32_t)p - mark] = 1;
        }
    for (uint32_t i = mark; i < t->n_nodes; i++)
        if (walker_has(&w, (int32_t)i) && !read[i - mark] && t->node[i].n_out > 0 &&
            t->node[i].n_in > 0) /* a constant that nothing reads is no result */
            walker_walk(&w, (tl_tensor){t->values.owner, t->node[i].out, t->generation});
}
