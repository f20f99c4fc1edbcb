/* spoilt.c: no node of a graph reads what another has changed in place since.
 *
 * A tape with memory sees this when a value is read (tl_deref). A trace has none, so the
 * same rule is applied to the places that views have in their roots - also to what
 * backward reads of values that a program overwrote. */
#include "autograd/graph/internal.h"
#include "tensor/change.h"

enum { DUMMY = 4096 };

typedef struct {
    tl_graph *g;
    tl_array *where;           /* changed so far, and by which node */
    uint32_t *by, n;
} changes;

/* x as an array whose address is its place in its root. */
static tl_status placed(tl_graph *g, tl_tensor x, tl_array *a)
{
    int64_t offset;
    TL_TRY(tl_graph_offset(g, x, &offset));
    *a = tl_peek(g->t, x)->a;
    a->data = (char *)(uintptr_t)(DUMMY + offset); /* never followed */
    return TL_OK;
}

/* The node whose result x shows, itself or through views; -1 for a leaf. */
static int64_t born(const tl_graph *g, tl_tensor x)
{
    for (;;) {
        const tl_value *v = tl_values_at(&g->t->values, x.index);
        const tl_node *n = v->node < 0 ? NULL : &g->t->node[v->node];
        tl_tensor from = n == NULL ? v->source : n->op->traits & TL_VIEW && v->out == 0 ? n->in[0] : TL_NONE;
        if (tl_is_none(from) || from.owner != g->t->values.owner)
            return v->node;
        x = from;
    }
}

static bool variable(const tl_graph *g, uint32_t root) { return g->roots[root].kind == TL_ROOT_MODEL || g->roots[root].kind == TL_ROOT_ACC; }

static tl_status check(changes *c, tl_tensor x, const char *who, const char *file, int line)
{
    tl_graph *g = c->g;
    tl_array a = {0};
    if (c->n == 0 || x.owner != g->t->values.owner)
        return TL_OK;
    x = tl_graph_resolve(g, x);
    if (x.owner != g->t->values.owner || variable(g, tl_graph_root(g, x)))
        return TL_OK;
    for (uint32_t i = c->n; i-- > 0 && born(g, x) < (int64_t)c->by[i];) {
        const tl_node *by = &g->t->node[c->by[i]];
        if (tl_graph_root(g, tl_node_out(g->t, by, 0)) != tl_graph_root(g, x))
            continue;
        if (a.data == NULL)
            TL_TRY(placed(g, x, &a));
        if (tl_arrays_overlap(&a, &c->where[i]))
            return tl_fail(&g->head.err, TL_EINPLACE, "%s (%.90s:%d) reads a value that was changed in place by %s (%.90s:%d); use what that call returned",
                           who, file, line, by->op->name, by->file, by->line);
    }
    return TL_OK;
}

static tl_status visit(changes *c, uint32_t i)
{
    tl_graph *g = c->g;
    const tl_node *n = &g->t->node[i];
    for (int k = 0; k < n->n_in && !(n->op->traits & TL_VIEW); k++)
        if (!tl_is_none(n->in[k]))
            TL_TRY(check(c, n->in[k], n->op->name, n->file, n->line));
    if (!tl_node_mutates(n) || variable(g, tl_graph_root(g, tl_node_out(g->t, n, 0))))
        return TL_OK;
    c->by[c->n] = i;
    return placed(g, tl_node_out(g->t, n, 0), &c->where[c->n++]);
}

/* A watch is read when the graph has run: a parameter or gradient that the graph changes is another then. */
static tl_status check_watch(changes *c, const tl_watch_entry *w)
{
    tl_graph *g = c->g;
    uint32_t root = tl_graph_root(g, tl_graph_resolve(g, w->x));
    for (uint32_t i = 0; variable(g, root) && i < g->n_order; i++) {
        const tl_node *n = &g->t->node[g->order[i]];
        for (int k = 0; k < n->n_in; k++)
            if (tl_node_writes(g->t, n, k) && tl_graph_root(g, tl_graph_resolve(g, n->in[k])) == root)
                return tl_fail(&g->head.err, TL_EINPLACE, "tl_watch (%.90s:%d) of a tensor that %s (%.90s:%d) changes; watch a value computed from it", w->file, w->line,
                               n->op->name, n->file, n->line);
    }
    return check(c, w->x, "tl_watch", w->file, w->line);
}

tl_status tl_graph_check_spoilt(tl_graph *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_order; i++)
        n += tl_node_mutates(&g->t->node[g->order[i]]);
    changes c = {.g = g, .where = tl_bump_get(&g->bump, (n + 1) * sizeof *c.where), .by = tl_bump_get(&g->bump, (n + 1) * sizeof *c.by)};
    if (c.where == NULL || c.by == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to check %u changes in place", n);
    for (uint32_t i = 0; i < g->n_order; i++)
        TL_TRY(visit(&c, g->order[i]));
    for (int i = 0; i < g->n_out; i++)
        TL_TRY(check(&c, g->out[i], "the program's output", g->file, g->line));
    for (int i = 0; i < g->tracing->n_watch; i++)
        TL_TRY(check_watch(&c, &g->tracing->watch[i]));
    return TL_OK;
}
