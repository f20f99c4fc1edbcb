/* live.c: where each value lies, and which nodes are needed.
 *
 * A root is one memory: views of a value and what is changed in place share it. Nodes
 * run in the order in which they stand: rebuild.c has put them into canonical order, and
 * backward and optimizer record theirs so. */
#include "autograd/graph/internal.h"

enum { NO_ROOT = UINT32_MAX };

static uint32_t new_root(tl_graph *g, tl_root r)
{
    if (g->n_roots ==
        g->cap_roots) { /* counted beforehand: a slot for each value and model value */
        tl_fail(&g->head.err, TL_ENOMEM, "a graph of %u memories has no room for more", g->n_roots);
        return 0;
    }
    g->roots[g->n_roots] = r;
    return g->n_roots++;
}

static const tl_root_kind kind_of_leaf[] = {[TL_LEAF_INPUT] = TL_ROOT_INPUT,
                                            [TL_LEAF_BOUND] = TL_ROOT_BOUND,
                                            [TL_LEAF_CONSTANT] = TL_ROOT_CONSTANT,
                                            [TL_LEAF_ACC] = TL_ROOT_ACC};

/* Leaves that stand for the same accumulator share a root. */
static uint32_t leaf_root(tl_graph *g, tl_tensor x)
{
    const tl_value *v = tl_values_at(&g->t->values, x.index);
    const tl_leaf l = tl_leaf_of(g->t, x);
    uint32_t *known = l.kind == TL_LEAF_ACC ? &g->acc_root[l.at][l.use] : NULL;
    if (known != NULL && *known != NO_ROOT)
        return *known;
    uint32_t r = new_root(g, (tl_root){.kind = kind_of_leaf[l.kind],
                                       .at = l.at,
                                       .use = l.use,
                                       .bytes = tl_array_room(&v->a)});
    if (known != NULL)
        *known = r;
    return r;
}

/* No accumulator has a root yet. */
static bool prepare_accumulators(tl_graph *g)
{
    const tl_tape *t = g->t;
    g->acc_root = tl_bump_get(&g->bump, ((size_t)t->n_grads + 1) * sizeof *g->acc_root);
    for (int i = 0; g->acc_root != NULL && i < t->n_grads; i++) {
        g->acc_root[i] = tl_bump_get(&g->bump,
                                     ((size_t)t->grad[i].n_accs + 1) * sizeof **g->acc_root);
        if (g->acc_root[i] == NULL)
            return false;
        for (int k = 0; k < t->grad[i].n_accs; k++)
            g->acc_root[i][k] = NO_ROOT;
    }
    return g->acc_root != NULL;
}

tl_tensor tl_graph_resolve(const tl_graph *g, tl_tensor x)
{
    while (x.owner == g->t->values.owner && !tl_same_handle(g->same[x.index], x))
        x = g->same[x.index];
    return x;
}

uint32_t tl_graph_root(tl_graph *g, tl_tensor x)
{
    if (x.owner == g->t->values.owner)
        return g->root[x.index];
    if (g->model_root[x.index] == NO_ROOT)
        g->model_root[x.index] = new_root(g,
                                          (tl_root){.kind = TL_ROOT_MODEL,
                                                    .at = x.index,
                                                    .bytes = tl_array_room(&tl_peek(g->t, x)->a)});
    return g->model_root[x.index];
}

static uint32_t root_of_value(tl_graph *g, tl_tensor x)
{
    const tl_value *v = tl_values_at(&g->t->values, x.index);
    tl_tensor below = tl_below(g->t, x);
    if (!tl_is_none(below))
        return tl_graph_root(g, below);
    return v->node < 0
               ? leaf_root(g, x)
               : new_root(g, (tl_root){.kind = TL_ROOT_SLAB, .bytes = tl_array_room(&v->a)});
}

tl_status tl_graph_find_roots(tl_graph *g)
{
    tl_tape *t = g->t;
    uint32_t n = atomic_load(&t->values.count);
    g->n_model = t->model == NULL ? 0 : atomic_load(&t->model->values.count);
    g->cap_roots = 3 * n + g->n_model; /* what is computed again has another root, and so has a
                                          constant that is found */
    g->same = tl_bump_get(&g->bump, (2 * (size_t)n + 1) * sizeof *g->same);
    g->root = tl_bump_get(&g->bump, (2 * (size_t)n + 1) * sizeof *g->root);
    g->model_root = tl_bump_get(&g->bump, (g->n_model + 1) * sizeof *g->model_root);
    g->roots = tl_bump_get(&g->bump, (g->cap_roots + 1) * sizeof *g->roots);
    g->inlined = tl_bump_get(&g->bump, t->n_nodes + 1);
    g->offset = tl_bump_get(&g->bump, (2 * (size_t)n + 1) *
                                          sizeof *g->offset); /* also of constants that are found */
    g->offset_known = tl_bump_get(&g->bump, 2 * (size_t)n + 1);
    if (g->same == NULL || g->root == NULL || g->model_root == NULL || g->roots == NULL ||
        g->inlined == NULL || g->offset == NULL || g->offset_known == NULL ||
        !prepare_accumulators(g))
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to lay out a graph of %u values", n);
    for (uint32_t i = 0; i < g->n_model; i++)
        g->model_root[i] = NO_ROOT;
    for (uint32_t i = 0; i < n; i++) {
        g->same[i] = (tl_tensor){t->values.owner, i, t->generation};
        g->root[i] = root_of_value(g, g->same[i]);
    }
    return g->head.err.status;
}

bool tl_graph_adopt(tl_graph *g, tl_tensor leaf)
{
    g->same[leaf.index] = leaf;
    g->root[leaf.index] = leaf_root(g, leaf);
    return g->head.err.status == TL_OK;
}

void tl_graph_move_roots(tl_graph *g, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        tl_tensor below = tl_below(g->t, (tl_tensor){g->t->values.owner, i, g->t->generation});
        if (!tl_is_none(below))
            g->root[i] = tl_graph_root(g, tl_graph_resolve(g, below));
    }
}

/* ---- needed nodes ---- */

/* Node n changes the memory of its input k. */
bool tl_node_writes(const tl_node *n, int k)
{
    if (!tl_node_mutates(n) || tl_is_none(n->in[k]))
        return false;
    return k == n->op->mutates || (k < 32 && n->op->changes & TL_BIT(k));
}

typedef struct {
    tl_graph *g;
    bool *value, *root; /* somebody needs it after the node looked at */
} needs;

static void need(needs *s, tl_tensor x)
{
    for (;;) {
        x = tl_graph_resolve(s->g, x);
        s->root[tl_graph_root(s->g, x)] = true;
        if (x.owner != s->g->t->values.owner)
            return;
        s->value[x.index] = true;
        tl_tensor source = tl_values_at(&s->g->t->values, x.index)->source;
        if (tl_is_none(source))
            return;
        x = source;
    }
}

static bool needed(needs *s, const tl_node *n)
{
    tl_graph *g = s->g;
    for (int j = 0; j < n->n_out; j++)
        if (s->value[n->out + (uint32_t)j])
            return true;
    for (int k = 0; k < n->n_in; k++) {
        if (!tl_node_writes(n, k))
            continue;
        uint32_t r = tl_graph_root(g, tl_graph_resolve(g, n->in[k]));
        if (g->roots[r].kind != TL_ROOT_SLAB || s->root[r])
            return true;
    }
    return false;
}

tl_status tl_graph_order(tl_graph *g)
{
    tl_tape *t = g->t;
    needs s = {.g = g};
    g->order = tl_bump_get(&g->bump, (t->n_nodes + 1) * sizeof *g->order);
    s.value = tl_bump_get(&g->bump, atomic_load(&t->values.count) + 1);
    s.root = tl_bump_get(&g->bump, g->cap_roots + 1);
    if (g->order == NULL || s.value == NULL || s.root == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to order a graph of %u nodes",
                       t->n_nodes);
    for (int i = 0; i < tl_graph_results(g); i++)
        need(&s, *tl_graph_result(g, i));
    g->n_order = 0;
    for (uint32_t i = t->n_nodes; i-- > 0;) {
        const tl_node *n = &t->node[i];
        if (!needed(&s, n))
            continue;
        g->order[t->n_nodes - 1 - g->n_order++] = i;
        for (int k = 0; k < n->n_in; k++)
            if (!tl_is_none(n->in[k]))
                need(&s, n->in[k]);
    }
    g->order += t->n_nodes - g->n_order;
    return g->head.err.status;
}
