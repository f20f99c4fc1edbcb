/* live.c: where each value lies, which nodes are needed, and the order they run in.
 *
 * A root is one memory: views of a value and what is changed in place share it. The
 * order is canonical - post-order from the outputs, then from each change of something
 * outside the graph - with one thing added: a node that reads a memory comes before
 * the node that changes it, as it was recorded. */
#include "autograd/graph/internal.h"

enum { NO_ROOT = UINT32_MAX };

static uint32_t new_root(tl_graph *g, tl_root r)
{
    if (g->n_roots == g->cap_roots) { /* counted beforehand: a slot for each value and model value */
        tl_fail(&g->head.err, TL_ENOMEM, "a graph of %u memories has no room for more", g->n_roots);
        return 0;
    }
    g->roots[g->n_roots] = r;
    return g->n_roots++;
}

static size_t array_bytes(const tl_array *a) { return (size_t)tl_array_count(a) * tl_dtype_size(a->dtype); }

static const tl_root_kind kind_of_leaf[] = {[TL_LEAF_INPUT] = TL_ROOT_INPUT, [TL_LEAF_BOUND] = TL_ROOT_BOUND,
                                            [TL_LEAF_CONSTANT] = TL_ROOT_CONSTANT, [TL_LEAF_ACC] = TL_ROOT_ACC};

/* Leaves that stand for the same thing share a root. */
static uint32_t leaf_root(tl_graph *g, const tl_value *v)
{
    tl_root_kind kind = kind_of_leaf[v->leaf];
    for (uint32_t i = 0; kind == TL_ROOT_ACC && i < g->n_roots; i++)
        if (g->roots[i].kind == kind && g->roots[i].at == v->leaf_at && g->roots[i].use == v->leaf_use)
            return i;
    return new_root(g, (tl_root){.kind = kind, .at = v->leaf_at, .use = v->leaf_use, .bytes = array_bytes(&v->a)});
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
        g->model_root[x.index] = new_root(g, (tl_root){.kind = TL_ROOT_MODEL, .at = x.index, .bytes = array_bytes(&tl_peek(g->t, x)->a)});
    return g->model_root[x.index];
}

static uint32_t root_of_value(tl_graph *g, uint32_t i)
{
    const tl_value *v = tl_values_at(&g->t->values, i);
    if (v->node < 0)
        return tl_is_none(v->source) ? leaf_root(g, v) : tl_graph_root(g, v->source);
    const tl_node *n = &g->t->node[v->node];
    if (v->out == 0 && n->op->traits & TL_VIEW)
        return tl_graph_root(g, n->in[0]);
    if (v->out == 0 && tl_node_mutates(n))
        return tl_graph_root(g, n->in[n->op->mutates]);
    return new_root(g, (tl_root){.kind = TL_ROOT_SLAB, .bytes = array_bytes(&v->a)});
}

tl_status tl_graph_find_roots(tl_graph *g)
{
    tl_tape *t = g->t;
    uint32_t n = atomic_load(&t->values.count);
    g->n_model = t->model == NULL ? 0 : atomic_load(&t->model->values.count);
    g->cap_roots = n + g->n_model;
    g->same = tl_bump_get(&g->bump, (n + 1) * sizeof *g->same);
    g->root = tl_bump_get(&g->bump, (n + 1) * sizeof *g->root);
    g->model_root = tl_bump_get(&g->bump, (g->n_model + 1) * sizeof *g->model_root);
    g->roots = tl_bump_get(&g->bump, (g->cap_roots + 1) * sizeof *g->roots);
    g->inlined = tl_bump_get(&g->bump, t->n_nodes + 1);
    if (g->same == NULL || g->root == NULL || g->model_root == NULL || g->roots == NULL || g->inlined == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to lay out a graph of %u values", n);
    for (uint32_t i = 0; i < g->n_model; i++)
        g->model_root[i] = NO_ROOT;
    for (uint32_t i = 0; i < n; i++) {
        g->same[i] = (tl_tensor){t->values.owner, i, t->generation};
        g->root[i] = root_of_value(g, i);
    }
    return g->head.err.status;
}

/* ---- order ---- */

typedef struct hazard {
    uint32_t node;
    struct hazard *next;
} hazard;

typedef struct {
    uint32_t node;
    int next;   /* input to look at */
    hazard *h;  /* then these */
} frame;

typedef struct {
    tl_graph *g;
    frame *stack;
    hazard **after;   /* by node: nodes it must follow besides its inputs' makers, newest first */
    int32_t *writer;  /* by root: the last node that changed it */
    hazard **reader;  /* by root: the nodes that read it since */
    uint8_t *seen;
} sorter;

static void push(sorter *s, hazard **list, uint32_t node)
{
    hazard *h = tl_bump_get(&s->g->bump, sizeof *h);
    if (h == NULL)
        tl_fail(&s->g->head.err, TL_ENOMEM, "no memory to order a graph");
    else
        *h = (hazard){node, *list}, *list = h;
}

/* Node i changes input k's memory. An update op changes what it is given of the model. */
bool tl_node_writes(const tl_graph *g, const tl_node *n, int k)
{
    if (!tl_node_mutates(n) || tl_is_none(n->in[k]))
        return false;
    return k == n->op->mutates || (n->op->traits & TL_NONDIFF && n->in[k].owner != g->t->values.owner);
}

static void find_hazards(sorter *s, uint32_t i)
{
    tl_graph *g = s->g;
    const tl_node *n = &g->t->node[i];
    for (int k = 0; k < n->n_in; k++) {
        if (tl_is_none(n->in[k]))
            continue;
        uint32_t r = tl_graph_root(g, tl_graph_resolve(g, n->in[k]));
        if (s->writer[r] >= 0 && s->writer[r] != (int32_t)i)
            push(s, &s->after[i], (uint32_t)s->writer[r]);
        if (!tl_node_writes(g, n, k)) {
            push(s, &s->reader[r], i);
            continue;
        }
        for (hazard *h = s->reader[r]; h != NULL; h = h->next)
            if (h->node != i)
                push(s, &s->after[i], h->node);
        s->reader[r] = NULL;
        s->writer[r] = (int32_t)i;
    }
}

static int32_t maker(const tl_graph *g, tl_tensor x)
{
    for (;;) {
        x = tl_graph_resolve(g, x);
        if (tl_is_none(x) || x.owner != g->t->values.owner)
            return -1;
        const tl_value *v = tl_values_at(&g->t->values, x.index);
        if (v->node >= 0 || tl_is_none(v->source))
            return v->node;
        x = v->source;
    }
}

/* Post-order from a node, with a stack of our own: graphs are deep. */
static void visit(sorter *s, int32_t from)
{
    tl_graph *g = s->g;
    frame *stack = s->stack;
    uint32_t depth = 0;
    if (from < 0 || s->seen[from])
        return;
    stack[depth++] = (frame){(uint32_t)from, 0, s->after[from]};
    s->seen[from] = 1;
    while (depth > 0) {
        frame *f = &stack[depth - 1];
        const tl_node *n = &g->t->node[f->node];
        int32_t next = -1;
        if (f->next < n->n_in)
            next = maker(g, n->in[f->next++]);
        else if (f->h != NULL)
            next = (int32_t)f->h->node, f->h = f->h->next;
        else
            g->order[g->n_order++] = f->node, depth--;
        if (next >= 0 && !s->seen[next]) {
            s->seen[next] = 1;
            stack[depth++] = (frame){(uint32_t)next, 0, s->after[next]};
        }
    }
}

static bool changes_outside(tl_graph *g, const tl_node *n)
{
    for (int k = 0; k < n->n_in; k++)
        if (tl_node_writes(g, n, k) && g->roots[tl_graph_root(g, tl_graph_resolve(g, n->in[k]))].kind != TL_ROOT_SLAB)
            return true;
    return false;
}

tl_status tl_graph_order(tl_graph *g)
{
    tl_tape *t = g->t;
    sorter s = {.g = g};
    g->order = tl_bump_get(&g->bump, (t->n_nodes + 1) * sizeof *g->order);
    s.after = tl_bump_get(&g->bump, (t->n_nodes + 1) * sizeof *s.after);
    s.seen = tl_bump_get(&g->bump, t->n_nodes + 1);
    s.stack = tl_bump_get(&g->bump, (t->n_nodes + 1) * sizeof *s.stack);
    s.writer = tl_bump_get(&g->bump, (g->cap_roots + 1) * sizeof *s.writer);
    s.reader = tl_bump_get(&g->bump, (g->cap_roots + 1) * sizeof *s.reader);
    if (g->order == NULL || s.after == NULL || s.seen == NULL || s.stack == NULL || s.writer == NULL || s.reader == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to order a graph of %u nodes", t->n_nodes);
    for (uint32_t r = 0; r < g->cap_roots; r++)
        s.writer[r] = -1;
    for (uint32_t i = 0; i < t->n_nodes; i++)
        find_hazards(&s, i);
    g->n_order = 0;
    for (int i = 0; i < g->n_out; i++)
        visit(&s, maker(g, g->out[i]));
    for (int i = 0; i < g->tracing->n_watch; i++)
        visit(&s, maker(g, g->tracing->watch[i].x));
    for (uint32_t i = 0; i < t->n_nodes; i++)
        if (changes_outside(g, &t->node[i]))
            visit(&s, (int32_t)i);
    return g->head.err.status;
}
