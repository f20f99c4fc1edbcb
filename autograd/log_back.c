/* log_back.c: the results of backward and of the update, in canonical order.
 *
 * A vjp is C, and C may record its calls in any order: what it recorded is walked from
 * the gradients it gave, inputs first, left to right. */
#include "autograd/log_state.h"
#include "autograd/uses.h"

/* The nodes from mark on, walked in post-order from roots. */
typedef struct {
    tl_tape *t;
    uint32_t mark;
    uint8_t *seen;
    struct frame {
        uint32_t node;
        int next;
    } *stack;
    tl_log_key key; /* of the last result */
} walker;

static bool walker_begin(walker *w, tl_tape *t, uint32_t mark, tl_log_key key)
{
    size_t n = t->n_nodes - mark + 1;
    *w = (walker){.t = t, .mark = mark, .seen = tl_bump_get(&t->bump, n), .stack = tl_bump_get(&t->bump, n * sizeof *w->stack), .key = key};
    if (w->seen == NULL || w->stack == NULL)
        tl_log_stop(t->log, TL_ENOMEM, "no memory to order %zu nodes for the log", n);
    return w->seen != NULL && w->stack != NULL;
}

static uint64_t next_key(walker *w)
{
    uint32_t *n = w->key.pass == TL_KEY_UPDATE ? &w->key.at : &w->key.sub;
    ++*n;
    w->key.out = 0;
    return tl_log_key_pack(w->key);
}

static bool wanted(const walker *w, const tl_array *a) { return a->ndim == 0 || tl_log_full(w->t->log); }

/* The accumulator that holds st: its entry's key, 0 if this step has none. */
static uint64_t accumulator_key(tl_tape *t, const tl_storage *st)
{
    const tl_run_log *l = t->log;
    for (uint32_t i = 0; i < l->n; i++) {
        const tl_leaf_grad *g = l->entry[i].use < 0 ? NULL : tl_leaf_grad_find(t, l->entry[i].leaf);
        if (g != NULL && g->use[l->entry[i].use].st == st)
            return l->entry[i].key;
    }
    return 0;
}

/* A value that was there before the walk, not named yet. */
static void outside(walker *w, tl_tensor x)
{
    tl_tape *t = w->t;
    const tl_value *v = tl_peek(t, x);
    if (v == NULL || v->st == NULL)
        return;
    if (v->st->arena == t->grad_arena) {
        if (x.owner == t->values.owner)
            tl_log_set_key(t, x.index, accumulator_key(t, v->st));
        return;
    }
    if (x.owner != t->values.owner && w->key.pass == TL_KEY_UPDATE)
        return; /* an optimizer's state: what it is after the update stands behind it */
    uint64_t key = next_key(w);
    if (x.owner == t->values.owner)
        tl_log_set_key(t, x.index, key);
    else
        tl_key_map_put(&t->log->model_key, (uint64_t)x.index + 1, key);
    if (wanted(w, &v->a))
        tl_log_leaf(t, key, x);
}

/* An accumulator is hashed when the step ends: here it is only named. */
static void name_accumulator(tl_tape *t, tl_log_entry *e, const tl_storage *st)
{
    for (int i = 0; i < t->n_grads; i++)
        for (int k = 0; k < t->grad[i].n_uses; k++)
            if (t->grad[i].use[k].st == st) {
                tl_tensor leaf = t->grad[i].leaf;
                const char *name = leaf.owner == t->values.owner ? NULL : tl_model_name_of(t->model, leaf);
                e->leaf = leaf;
                e->use = k;
                e->name = name != NULL ? name : "";
                e->dtype = t->grad[i].use[k].acc.dtype;
                return;
            }
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

/* What else of the model the op in the entry `by` reads or changes: an optimizer's state, as it is after it. */
static void states(walker *w, const tl_node *n, uint64_t by)
{
    for (int k = 0; k < n->n_in; k++) {
        tl_tensor x = tl_log_resolve(w->t, n->in[k]);
        bool changed = n->op->traits & TL_MUTATES && k == n->op->mutates;
        if (!tl_is_none(x) && x.owner != w->t->values.owner && !changed && tl_log_key_of(w->t, x) == 0 && tl_log_full(w->t->log))
            tl_log_state(w->t, next_key(w), x, by);
    }
}

static void finish(walker *w, uint32_t index)
{
    tl_tape *t = w->t;
    const tl_node *n = &t->node[index];
    if (n->op->traits & TL_VIEW)
        return;
    const uint64_t by = next_key(w);
    uint64_t key = by;
    for (int j = 0; j < n->n_out; j++, key++) {
        const tl_value *v = tl_values_at(&t->values, n->out + (uint32_t)j);
        tl_log_set_key(t, n->out + (uint32_t)j, key);
        tl_log_entry *e = wanted(w, &v->a) ? tl_log_describe(t, key, n, j) : NULL;
        if (e != NULL && v->st != NULL && v->st->arena == t->grad_arena)
            name_accumulator(t, e, v->st);
        else
            tl_log_take_value(t, e, n, j);
        if (e != NULL && j == 0 && n->op->traits & TL_MUTATES && !tl_is_none(n->in[n->op->mutates]))
            name_changed(t, e, n->in[n->op->mutates]);
    }
    if (w->key.pass == TL_KEY_UPDATE)
        states(w, n, by);
}

static void enter(walker *w, tl_tensor x, uint32_t *depth)
{
    const tl_tape *t = w->t;
    const tl_value *v = tl_is_none(x) ? NULL : tl_peek(t, x);
    for (; v != NULL && x.owner == t->values.owner && v->node < 0 && !tl_is_none(v->source); v = tl_peek(t, x))
        x = v->source;
    if (v == NULL)
        return;
    if (x.owner == t->values.owner && v->node >= (int32_t)w->mark) {
        uint32_t at = (uint32_t)v->node - w->mark;
        if (!w->seen[at]) {
            w->seen[at] = 1;
            w->stack[(*depth)++] = (struct frame){(uint32_t)v->node, 0};
        }
    } else if (tl_log_key_of(w->t, x) == 0) {
        outside(w, tl_log_resolve(t, x));
    }
}

static void walk(walker *w, tl_tensor root)
{
    uint32_t depth = 0;
    enter(w, root, &depth);
    while (depth > 0) {
        struct frame *f = &w->stack[depth - 1];
        const tl_node *n = &w->t->node[f->node];
        if (f->next < n->n_in) {
            int k = f->next++;
            if (!(n->op->traits & TL_MUTATES && k == n->op->mutates && n->in[k].owner != w->t->values.owner))
                enter(w, n->in[k], &depth);
            continue;
        }
        depth--;
        finish(w, f->node);
    }
}

/* What waits for the input, or was folded into its accumulator: dx, or the engine's own sum_to of it. */
static tl_tensor brought(const tl_tape *t, uint32_t mark, tl_tensor dx, tl_tensor delivered)
{
    const tl_storage *st = tl_is_none(delivered) ? NULL : tl_peek(t, delivered)->st;
    for (uint32_t i = t->n_nodes; i-- > mark;) {
        const tl_node *n = &t->node[i];
        const tl_storage *to = n->op == &tl_op_sum_to ? tl_values_at(&t->values, n->out)->st : NULL;
        if (to != NULL && (st != NULL ? to == st : to->arena == t->grad_arena) && n->in[0].owner == dx.owner && n->in[0].index == dx.index)
            return (tl_tensor){t->values.owner, n->out, t->generation};
    }
    return dx;
}

void tl_log_visit(tl_tape *t, uint32_t index, uint32_t mark, const tl_tensor *dy, int n_dy, const tl_tensor *dx,
                  const tl_tensor *delivered, int n_dx)
{
    tl_run_log *l = t->log;
    walker w;
    if (l->failure.status != TL_OK || !tl_log_full(l) || l->key_generation != t->generation)
        return;
    uint64_t key = t->node[index].out < l->cap_keys ? l->key_of[t->node[index].out] : 0;
    if (key == 0 || !walker_begin(&w, t, mark, (tl_log_key){.pass = l->now, .backward = true, .at = tl_log_key_unpack(key).at}))
        return;
    for (int j = 0; j < n_dy; j++)
        walk(&w, dy[j]);
    for (int k = 0; k < n_dx; k++) {
        if (tl_is_none(dx[k]))
            continue;
        tl_tensor x = brought(t, mark, dx[k], delivered[k]);
        walk(&w, dx[k]);
        walk(&w, x);
        if (!tl_is_none(delivered[k]))
            tl_log_set_key(t, delivered[k].index, tl_log_key_of(t, x));
    }
}

static void take_accumulators(tl_tape *t, bool own)
{
    tl_run_log *l = t->log;
    for (uint32_t i = 0; i < l->n; i++) {
        const tl_log_entry *e = &l->entry[i];
        const tl_leaf_grad *g = e->use < 0 || own != (e->leaf.owner == t->values.owner) ? NULL : tl_leaf_grad_find(t, e->leaf);
        if (g != NULL && e->use < g->n_uses && g->use[e->use].open)
            tl_log_take(l, e, &g->use[e->use].acc, g->use[e->use].st);
    }
}

void tl_log_backward_end(tl_tape *t)
{
    if (t->log->failure.status != TL_OK)
        return;
    take_accumulators(t, true); /* of the tape's own leaves: they end with it */
    tl_log_settle(t->log);
}

void tl_log_update_begin(tl_tape *t)
{
    if (t != NULL && t->log != NULL)
        t->log->update_mark = t->n_nodes + 1;
}

/* Nodes whose results no other node of the update reads, in recorded order: an optimizer
 * goes through parameters by name. */
void tl_log_update_end(tl_tape *t)
{
    tl_run_log *l = t->log;
    walker w;
    if (l->failure.status != TL_OK)
        return;
    take_accumulators(t, false);
    uint32_t mark = l->update_mark > 0 ? l->update_mark - 1 : t->n_nodes;
    l->update_mark = 0;
    uint8_t *read = mark > t->n_nodes ? NULL : tl_bump_get(&t->bump, t->n_nodes - mark + 1);
    if (read == NULL || !walker_begin(&w, t, mark, (tl_log_key){.pass = TL_KEY_UPDATE}))
        return;
    for (uint32_t i = mark; i < t->n_nodes; i++)
        for (int k = 0; k < t->node[i].n_in; k++) {
            const tl_tensor x = t->node[i].in[k];
            int32_t p = x.owner == t->values.owner ? tl_peek(t, x)->node : -1;
            if (p >= (int32_t)mark)
                read[(uint32_t)p - mark] = 1;
        }
    for (uint32_t i = mark; i < t->n_nodes; i++)
        if (!read[i - mark])
            walk(&w, (tl_tensor){t->values.owner, t->node[i].out, t->generation});
}
