/* roots.c: the memory that each value lies in, and which nodes are needed.
 *
 * A root is one memory: a value shares it with its views and with the results of changes in place.
 * Nodes run in the order in which they stand: rebuild.c has put them into canonical order, and
 * backward and optimizers record theirs in it. */
#include "autograd/graph/internal.h"

void *tl_graph_room(tl_graph *g, size_t n, size_t size)
{
    void *p = tl_bump_get(&g->bump, n * size);
    if (p == NULL)
        tl_fail(&g->head.err, TL_ENOMEM, "no memory for %zu bytes to plan a graph of %u nodes",
                n * size, g->t->n_nodes);
    return p;
}

/* ---- roots ---- */

uint32_t tl_root_new(tl_graph *g, tl_root r)
{
    g->roots[g->n_roots] = r;
    return g->n_roots++;
}

tl_tensor tl_graph_resolve(const tl_graph *g, tl_tensor x)
{
    while (x.owner == g->t->values.owner && !tl_same_handle(g->value[x.index].same, x))
        x = g->value[x.index].same;
    return x;
}

uint32_t tl_graph_root(tl_graph *g, tl_tensor x)
{
    x = tl_graph_resolve(g, x);
    if (x.owner == g->t->values.owner)
        return g->value[x.index].root;
    uint32_t *known = &g->model_root[x.index];
    if (*known == 0)
        *known = 1 + tl_root_new(g, (tl_root){.kind = TL_ROOT_MODEL,
                                              .at = x.index,
                                              .bytes = tl_array_room(tl_graph_array(g, x))});
    return *known - 1;
}

/* Leaves that stand for the same accumulator share a root. */
static uint32_t root_of_value(tl_graph *g, tl_tensor x)
{
    const tl_tensor below = tl_below(g->t, x);
    if (!tl_is_none(below))
        return tl_graph_root(g, below);
    const tl_leaf l = tl_leaf_of(g->t, x);
    uint32_t *known = l.kind == TL_LEAF_ACC ? &g->acc_root[l.at][l.use] : NULL;
    if (known != NULL && *known != 0)
        return *known - 1;
    const uint32_t r = tl_root_new(g, (tl_root){.kind = (tl_root_kind)l.kind,
                                                .at = l.at,
                                                .use = l.use,
                                                .bytes = tl_array_room(tl_graph_array(g, x))});
    if (known != NULL)
        *known = r + 1;
    return r;
}

tl_status tl_graph_find_roots(tl_graph *g)
{
    const tl_tape *t = g->t;
    const uint32_t n = atomic_load(&t->values.count),
                   n_model = t->model == NULL ? 0 : atomic_load(&t->model->values.count);
    g->cap_values = 2 * n;          /* with a constant for each value (simplify.c) */
    g->cap_roots = 3 * n + n_model; /* and with a root for each value that is computed again */
    g->value = tl_graph_room(g, g->cap_values, sizeof *g->value);
    g->roots = tl_graph_room(g, g->cap_roots, sizeof *g->roots);
    g->model_root = tl_graph_room(g, n_model, sizeof *g->model_root);
    g->acc_root = tl_graph_room(g, (size_t)t->n_grads, sizeof *g->acc_root);
    for (int i = 0; g->acc_root != NULL && i < t->n_grads; i++)
        g->acc_root[i] = tl_graph_room(g, (size_t)t->grad[i].n_accs, sizeof **g->acc_root);
    for (uint32_t i = 0; i < n && g->head.err.status == TL_OK; i++) {
        g->value[i].same = tl_tape_handle(t, i);
        g->value[i].root = root_of_value(g, g->value[i].same);
    }
    for (int i = 0; i < tl_graph_results(g) && g->head.err.status == TL_OK; i++)
        g->roots[tl_graph_root(g, *tl_graph_result(g, i))].result = true;
    return g->head.err.status;
}

void tl_graph_adopt(tl_graph *g, tl_tensor leaf)
{
    g->value[leaf.index] = (tl_value_plan){.same = leaf, .root = root_of_value(g, leaf)};
}

tl_tensor tl_graph_whole(const tl_graph *g, tl_tensor x)
{
    for (;;) {
        x = tl_graph_resolve(g, x);
        if (x.owner != g->t->values.owner)
            return x;
        const tl_value *v = tl_values_at(&g->t->values, x.index);
        const tl_node *n = v->node < 0 ? NULL : &g->t->node[v->node];
        tl_tensor below = n != NULL && (tl_node_mutates(n) || n->op->traits & TL_REPEATS)
                              ? TL_NONE
                              : tl_below(g->t, x);
        const tl_array *a = tl_is_none(below) ? NULL : tl_graph_array(g, below);
        if (a == NULL || (n != NULL && (!tl_array_contiguous(&v->a) || !tl_array_contiguous(a) ||
                                        tl_array_count(&v->a) != tl_array_count(a))))
            return x;
        x = below;
    }
}

/* ---- where a value lies in its root ---- */

tl_call tl_graph_call(tl_graph *g, const tl_node *n, const tl_array *const *in, tl_array *out,
                      tl_err *err)
{
    return (tl_call){.op = n->op,
                     .attrs = n->attrs,
                     .n_in = n->n_in,
                     .n_out = n->n_out,
                     .in = in,
                     .out = out,
                     .mode = n->mode & ~(unsigned)TL_TRACE,
                     .arena = g->user->arena,
                     .err = err,
                     .kernel = n->kernel};
}

static int64_t find_offset(tl_graph *g, tl_tensor x)
{
    const tl_tensor below = tl_below(g->t, x);
    const tl_node *n = tl_maker(g->t, x);
    int64_t offset = tl_is_none(below) ? 0 : tl_graph_offset(g, tl_graph_resolve(g, below));
    if (!tl_is_none(below) && n != NULL && n->op->traits & TL_VIEW)
        tl_view_offset(n, tl_graph_array(g, n->in[0]), &offset, &g->head.err);
    return offset;
}

/* Chains of views and of changes in place are long, so each offset is worked out once. */
int64_t tl_graph_offset(tl_graph *g, tl_tensor x)
{
    if (x.owner != g->t->values.owner)
        return 0;
    tl_value_plan *v = &g->value[x.index];
    if (!v->offset_known) {
        v->offset = find_offset(g, x);
        v->offset_known = true;
    }
    return v->offset;
}

/* ---- needed nodes ---- */

static void need(tl_graph *g, tl_tensor x)
{
    while (!tl_is_none(x)) {
        x = tl_graph_resolve(g, x);
        g->roots[tl_graph_root(g, x)].needed = true;
        if (x.owner != g->t->values.owner)
            return;
        g->value[x.index].needed = true;
        x = tl_values_at(&g->t->values, x.index)->source;
    }
}

/* Something after the node needs what it makes or changes. */
static bool needed(tl_graph *g, const tl_node *n)
{
    for (int j = 0; j < n->n_out; j++)
        if (g->value[n->out + (uint32_t)j].needed)
            return true;
    for (int k = 0; k < n->n_in; k++) {
        if (!tl_node_writes(n, k))
            continue;
        uint32_t r = tl_graph_root(g, n->in[k]);
        if (g->roots[r].kind != TL_ROOT_SLAB || g->roots[r].needed)
            return true;
    }
    return false;
}

tl_status tl_graph_order(tl_graph *g)
{
    const tl_tape *t = g->t;
    uint32_t *end = tl_graph_room(g, t->n_nodes, sizeof *end);
    if (end == NULL)
        return g->head.err.status;
    for (int i = 0; i < tl_graph_results(g); i++)
        need(g, *tl_graph_result(g, i));
    end += t->n_nodes;
    g->order = end;
    for (uint32_t i = t->n_nodes; i-- > 0;) {
        const tl_node *n = &t->node[i];
        if (!needed(g, n))
            continue;
        *--g->order = i;
        for (int k = 0; k < n->n_in; k++)
            need(g, n->in[k]);
    }
    g->n_order = (uint32_t)(end - g->order);
    return g->head.err.status;
}
