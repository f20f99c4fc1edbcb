/* walker.c: what a backward or an update recorded, in canonical order. */
#include "autograd/log/walker.h"
#include "autograd/internal.h"

static uint64_t next_key(tl_log_walker *w)
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
static uint64_t key_of_node(tl_log_walker *w, const tl_node *n)
{
    if (w->key.pass != TL_KEY_UPDATE || !(n->phase & TL_PHASE_GRADIENT))
        return next_key(w);
    w->key.sub++;
    w->key.out = 0;
    return tl_log_key_pack(w->key);
}

static bool wanted(const tl_log_walker *w, const tl_array *a)
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
static void outside(tl_log_walker *w, tl_tensor x)
{
    tl_tape *t = w->t;
    const tl_value *v = tl_peek(t, x);
    uint32_t leaf, use;
    if (v == NULL || (v->st == NULL && !tl_traced(t)))
        return;
    if (tl_use_holding(t, x, &leaf, &use)) {
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
    e->dtype = g->use[use].acc.dtype;
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
static void states(tl_log_walker *w, const tl_node *n, uint64_t by)
{
    for (int k = 0; k < n->n_in; k++) {
        tl_tensor x = tl_log_resolve(w->t, n->in[k]);
        bool changed = n->op->traits & TL_MUTATES && k == n->op->mutates;
        if (!tl_is_none(x) && x.owner != w->t->values.owner && !changed &&
            tl_log_key_of(w->t, x) == 0 && tl_log_full(tl_log_of(w->t)))
            tl_log_state(w->t, next_key(w), x, by);
    }
}

static void finish(tl_log_walker *w, uint32_t index)
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
        if (e != NULL && tl_use_holding(t, tl_node_out(t, n, j), &leaf, &use))
            name_accumulator(t, e, &t->grad[leaf], (int)use);
        else
            tl_log_take_value(t, e, n, j);
        if (e != NULL && j == 0 && n->op->traits & TL_MUTATES && !tl_is_none(n->in[n->op->mutates]))
            name_changed(t, e, n->in[n->op->mutates]);
    }
    if (w->key.pass == TL_KEY_UPDATE)
        states(w, n, by);
}

bool tl_log_walker_has(const tl_log_walker *w, int32_t node)
{
    return node >= (int32_t)w->mark &&
           (w->key.pass != TL_KEY_UPDATE || w->t->node[node].phase & TL_PHASE_UPDATE);
}

/* The node of the walk that made x; -1: x is something else, which has its key then. */
static int32_t enter(tl_log_walker *w, tl_tensor x)
{
    const tl_tape *t = w->t;
    x = tl_is_none(x) ? x : tl_attached(t, x);
    const tl_value *v = tl_is_none(x) ? NULL : tl_peek(t, x);
    if (v == NULL)
        return -1;
    if (x.owner == t->values.owner && tl_log_walker_has(w, v->node))
        return v->node;
    if (tl_log_key_of(w->t, x) == 0)
        outside(w, tl_log_resolve(t, x));
    return -1;
}

static int32_t follow(void *ctx, const tl_node *n, int k)
{
    tl_log_walker *w = ctx;
    bool changed = n->op->traits & TL_MUTATES && k == n->op->mutates;
    return changed && n->in[k].owner != w->t->values.owner ? -1 : enter(w, n->in[k]);
}

void tl_log_walker_begin(tl_log_walker *w, tl_tape *t, uint32_t mark, tl_log_key key)
{
    *w = (tl_log_walker){.t = t, .mark = mark, .key = key};
    tl_postorder_begin(&w->order, t, follow, w);
}

void tl_log_walker_walk(tl_log_walker *w, tl_tensor root)
{
    tl_postorder_from(&w->order, enter(w, root));
    for (int32_t i; (i = tl_postorder_next(&w->order)) >= 0;)
        finish(w, (uint32_t)i);
}
