/* spoilt.c: no node of a graph reads what another has changed in place since.
 *
 * A tape with memory sees this when a value is read (tl_deref). A trace has none, so the
 * same rule is applied to the places that views have in their roots - also to what
 * backward reads of values that a program overwrote. */
#include "autograd/graph/internal.h"
#include "tensor/change.h"

typedef struct change {
    const tl_array *where;
    int64_t offset;       /* in its root */
    uint32_t by;          /* node */
    struct change *older; /* of the same memory */
} change;

typedef struct {
    tl_graph *g;
    change **last; /* by root: what has been changed there so far, newest first */
    int32_t *
        born; /* by value: the node whose result it shows, itself or through views; -1 for a leaf */
} changes;

/* What a view shows was recorded before it. */
static void find_born(changes *c)
{
    const tl_tape *t = c->g->t;
    uint32_t n = atomic_load(&t->values.count);
    for (uint32_t i = 0; i < n; i++) {
        const tl_value *v = tl_values_at(&t->values, i);
        bool changed = v->node >= 0 && tl_node_mutates(&t->node[v->node]);
        tl_tensor from = changed ? TL_NONE
                                 : tl_below(t, (tl_tensor){t->values.owner, i, t->generation});
        c->born[i] = tl_is_none(from) || from.owner != t->values.owner ? v->node
                                                                       : c->born[from.index];
    }
}

static bool variable(const tl_graph *g, uint32_t root)
{
    return g->roots[root].kind == TL_ROOT_MODEL || g->roots[root].kind == TL_ROOT_ACC;
}

static tl_status check(changes *c, tl_tensor x, const char *who, const char *file, int line)
{
    tl_graph *g = c->g;
    int64_t offset;
    if (x.owner != g->t->values.owner)
        return TL_OK;
    x = tl_graph_resolve(g, x);
    if (x.owner != g->t->values.owner || variable(g, tl_graph_root(g, x)))
        return TL_OK;
    for (const change *k = c->last[tl_graph_root(g, x)];
         k != NULL && c->born[x.index] < (int64_t)k->by; k = k->older) {
        const tl_node *by = &g->t->node[k->by];
        TL_TRY(tl_graph_offset(g, x, &offset));
        if (tl_arrays_overlap_apart(&tl_peek(g->t, x)->a, k->where, k->offset - offset))
            return tl_fail(&g->head.err, TL_EINPLACE,
                           "%s (%.90s:%d) reads a value that was changed in place by %s "
                           "(%.90s:%d); use what that call returned",
                           who, file, line, by->op->name, by->file, by->line);
    }
    return TL_OK;
}

static tl_status no_memory(tl_graph *g)
{
    return tl_fail(&g->head.err, TL_ENOMEM, "no memory to check the changes in place of %u nodes",
                   g->n_order);
}

/* Node i changes x, unless that is a variable. */
static tl_status note(changes *c, uint32_t i, tl_tensor x)
{
    tl_graph *g = c->g;
    x = tl_graph_resolve(g, x);
    uint32_t root = tl_graph_root(g, x);
    change *k = variable(g, root) ? NULL : tl_bump_get(&g->bump, sizeof *k);
    if (k == NULL)
        return variable(g, root) ? TL_OK : no_memory(g);
    *k = (change){.where = &tl_peek(g->t, x)->a, .by = i, .older = c->last[root]};
    c->last[root] = k;
    return tl_graph_offset(g, x, &k->offset);
}

/* What a node changes, then what it reads beside: that must not be the same. */
static tl_status visit(changes *c, uint32_t i)
{
    const tl_node *n = &c->g->t->node[i];
    for (int k = 0; k < n->n_in; k++)
        if (tl_node_writes(n, k)) {
            TL_TRY(check(c, n->in[k], n->op->name, n->file, n->line));
            TL_TRY(note(c, i, n->in[k]));
        }
    for (int k = 0; k < n->n_in && !(n->op->traits & TL_VIEW); k++)
        if (!tl_is_none(n->in[k]) && !tl_node_writes(n, k))
            TL_TRY(check(c, n->in[k], n->op->name, n->file, n->line));
    return TL_OK;
}

/* A watch is read when the graph has run: a parameter or gradient that the graph changes is another
 * then. */
static tl_status check_watch(changes *c, const tl_watch_entry *w)
{
    tl_graph *g = c->g;
    uint32_t root = tl_graph_root(g, tl_graph_resolve(g, w->x));
    for (uint32_t i = 0; variable(g, root) && i < g->n_order; i++) {
        const tl_node *n = &g->t->node[g->order[i]];
        for (int k = 0; k < n->n_in; k++)
            if (tl_node_writes(n, k) && tl_graph_root(g, tl_graph_resolve(g, n->in[k])) == root)
                return tl_fail(&g->head.err, TL_EINPLACE,
                               "tl_watch (%.90s:%d) of a tensor that %s (%.90s:%d) changes; watch "
                               "a value computed from it",
                               w->file, w->line, n->op->name, n->file, n->line);
    }
    return check(c, w->x, "tl_watch", w->file, w->line);
}

tl_status tl_graph_check_spoilt(tl_graph *g)
{
    size_t n = atomic_load(&g->t->values.count);
    changes c = {.g = g,
                 .last = tl_bump_get(&g->bump, (g->cap_roots + 1) * sizeof *c.last),
                 .born = tl_bump_get(&g->bump, (n + 1) * sizeof *c.born)};
    if (c.last == NULL || c.born == NULL)
        return no_memory(g);
    find_born(&c);
    for (uint32_t i = 0; i < g->n_order; i++)
        TL_TRY(visit(&c, g->order[i]));
    for (int i = 0; i < g->n_out; i++)
        TL_TRY(check(&c, g->out[i], "the program's output", g->file, g->line));
    for (int i = 0; i < g->tracing->n_watch; i++)
        TL_TRY(check_watch(&c, &g->tracing->watch[i]));
    return TL_OK;
}
