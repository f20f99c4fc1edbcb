/* changes.c: finds changes of memory in place, and checks that no node reads a changed value.
 *
 * A tape with memory detects such a read when the value is used (tl_deref). A trace has no memory,
 * so the same rule is applied to the places that views have in their roots. This also covers what
 * backward reads of values that the program overwrote. */
#include "autograd/graph/internal.h"

/* ---- the index of changes ---- */

/* Counts, or lists, the changes that node i makes. end: by root, the end of its changes so far. */
static void add_changes(tl_graph *g, uint32_t i, uint32_t *end)
{
    const tl_node *n = &g->t->node[i];
    for (int k = 0; k < n->n_in; k++) {
        if (!tl_node_writes(n, k))
            continue;
        const uint32_t at = end[tl_graph_root(g, n->in[k])]++;
        if (g->change != NULL)
            g->change[at] = (tl_node_change){i, k};
    }
}

tl_status tl_graph_find_changes(tl_graph *g)
{
    const uint32_t n = g->order != NULL ? g->n_order : g->t->n_nodes;
    uint32_t *end = tl_graph_room(g, g->cap_roots + 1, sizeof *end), total = 0;
    g->first_change = tl_graph_room(g, g->cap_roots + 1, sizeof *g->first_change);
    g->change = NULL;
    if (g->head.err.status != TL_OK)
        return g->head.err.status;
    for (uint32_t i = 0; i < n; i++)
        add_changes(g, g->order != NULL ? g->order[i] : i, end);
    for (uint32_t r = 0; r <= g->cap_roots; r++) {
        g->first_change[r] = total;
        total += end[r];
        end[r] = g->first_change[r];
    }
    g->change = tl_graph_room(g, total, sizeof *g->change);
    for (uint32_t i = 0; i < n && g->change != NULL; i++)
        add_changes(g, g->order != NULL ? g->order[i] : i, end);
    return g->head.err.status;
}

/* The first change of that root by node `node` or a later one: its index in change[], or the end of
 * the root's changes if there is none. */
static uint32_t first_from(const tl_graph *g, uint32_t root, uint32_t node)
{
    uint32_t low = g->first_change[root], high = g->first_change[root + 1];
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (g->change[middle].node >= node)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool tl_root_changes(const tl_graph *g, uint32_t root)
{
    return g->first_change[root] < g->first_change[root + 1];
}

bool tl_root_changes_between(const tl_graph *g, uint32_t root, uint32_t first, uint32_t end)
{
    const uint32_t at = first_from(g, root, first);
    return at < g->first_change[root + 1] && g->change[at].node < end;
}

/* ---- reads of changed values ---- */

/* Finds value[].born. A view is recorded after the value that it shows, so one pass does. */
static void find_born(tl_graph *g)
{
    const tl_tape *t = g->t;
    for (uint32_t i = 0, n = atomic_load(&t->values.count); i < n; i++) {
        const tl_value *v = tl_values_at(&t->values, i);
        tl_graph_offset(g, tl_tape_handle(t, i)); /* in order: a long chain is no deep recursion */
        bool changed = v->node >= 0 && tl_node_mutates(&t->node[v->node]);
        tl_tensor from = changed ? TL_NONE : tl_below(t, tl_tape_handle(t, i));
        g->value[i].born = tl_is_none(from) || from.owner != t->values.owner
                               ? v->node
                               : g->value[from.index].born;
    }
}

/* Parameters, buffers and gradients: a read finds what was written last. */
static bool variable(const tl_graph *g, uint32_t root)
{
    return g->roots[root].kind == TL_ROOT_MODEL || g->roots[root].kind == TL_ROOT_ACC;
}

/* Checks that neither the reader nor an earlier node has changed x since it was made. Node `reader`
 * reads x as its input `input`; a reader past the last node is not in the graph. */
static tl_status check(tl_graph *g, tl_tensor x, uint32_t reader, int input, const char *who,
                       const char *file, int line)
{
    x = tl_graph_resolve(g, x);
    const uint32_t root = tl_graph_root(g, x);
    if (x.owner != g->t->values.owner || variable(g, root))
        return TL_OK;
    for (uint32_t i = first_from(g, root, reader + 1); i-- > g->first_change[root];) {
        const tl_node_change *k = &g->change[i];
        const tl_node *by = &g->t->node[k->node];
        const tl_tensor y = tl_graph_resolve(g, by->in[k->input]);
        if (g->value[x.index].born >= (int64_t)k->node)
            break;
        if ((k->node != reader || k->input != input) &&
            tl_arrays_overlap_apart(tl_graph_array(g, x), tl_graph_array(g, y),
                                    tl_graph_offset(g, y) - tl_graph_offset(g, x)))
            return tl_fail(&g->head.err, TL_EINPLACE,
                           "%s (%.90s:%d) reads a value that was changed in place by %s "
                           "(%.90s:%d); use what that call returned",
                           who, file, line, by->op->name, by->file, by->line);
    }
    return TL_OK;
}

/* A watch is read when the graph has run. By then a parameter or gradient that the graph changes
 * has other contents. */
static tl_status check_watch(tl_graph *g, const tl_watch_entry *w)
{
    const uint32_t root = tl_graph_root(g, w->x);
    if (variable(g, root) && tl_root_changes(g, root)) {
        const tl_node *by = &g->t->node[g->change[g->first_change[root]].node];
        return tl_fail(&g->head.err, TL_EINPLACE,
                       "tl_watch (%.90s:%d) of a tensor that %s (%.90s:%d) changes; watch a value "
                       "computed from it",
                       w->file, w->line, by->op->name, by->file, by->line);
    }
    return check(g, w->x, g->t->n_nodes, 0, "tl_watch", w->file, w->line);
}

tl_status tl_graph_check_changes(tl_graph *g)
{
    const uint32_t n_nodes = g->t->n_nodes;
    find_born(g);
    for (uint32_t at = 0; at < g->n_order; at++) {
        const uint32_t i = g->order[at];
        const tl_node *node = &g->t->node[i];
        for (int k = 0; k < node->n_in && !(node->op->traits & TL_VIEW); k++)
            if (!tl_is_none(node->in[k]))
                TL_TRY(check(g, node->in[k], i, k, node->op->name, node->file, node->line));
    }
    for (int i = 0; i < g->n_out; i++)
        TL_TRY(check(g, g->out[i], n_nodes, 0, "the program's output", g->file, g->line));
    for (int i = 0; i < g->tracing->n_watch; i++)
        TL_TRY(check_watch(g, &g->tracing->watch[i]));
    return g->head.err.status;
}
