/* fuse.c: which values are computed inside their users' loops and never written.
 *
 * Nodes are looked at in the order they run, so that what a value reads is known: itself
 * and the values inlined into it (its body), and below those the values in memory (its
 * leaves). A value is inlined if every user is a pointwise loop that walks it element by
 * element, no leaf changes before the last of them, and cost.c does not want it kept. */
#include "autograd/graph/cost.h"
#include "autograd/graph/fused.h"
#include "autograd/graph/readers.h"

/* What is known of a value's computation. */
typedef struct {
    tl_tensor leaf[TL_FUSED_INS];
    int n_leaves, body;
    bool heavy;
    int ops, ins; /* of the loop that would store it: no more than fit */
} expression;

typedef struct {
    tl_readers r;
    expression *expr; /* by position in order; of fusable nodes */
} fuser;

static const tl_array *array_of(const tl_graph *g, tl_tensor x) { return &tl_peek(g->t, x)->a; }

static void add_leaf(expression *e, tl_tensor x)
{
    for (int i = 0; i < e->n_leaves; i++)
        if (tl_same_handle(e->leaf[i], x))
            return;
    e->leaf[e->n_leaves++] = x; /* fits(): there is room */
}

/* Body and leaves of a fusable node, the inlined values below it taken in. */
static void express(fuser *s, uint32_t at)
{
    tl_graph *g = s->r.g;
    const tl_node *n = &g->t->node[g->order[at]];
    expression *e = &s->expr[at];
    e->body = 1;
    e->heavy = n->op->traits & TL_HEAVY;
    for (int k = 0; k < n->n_in; k++) {
        tl_tensor x = tl_fuse_whole(g, n->in[k]);
        int32_t below = x.owner == g->t->values.owner ? tl_values_at(&g->t->values, x.index)->node
                                                      : -1;
        if (below < 0 || !g->inlined[below]) {
            add_leaf(e, tl_graph_resolve(g, n->in[k]));
            continue;
        }
        const expression *b = &s->expr[s->r.position[below]];
        e->body +=
            b->body; /* counted once a path: a bound, and what computing it by paths would take */
        e->heavy |= b->heavy;
        for (int i = 0; i < b->n_leaves; i++)
            add_leaf(e, b->leaf[i]);
    }
}

/* Every user's loop has room for the body and the leaves of the value at that position. */
static bool fits(fuser *s, uint32_t at)
{
    const expression *e = &s->expr[at];
    const tl_tensor y = tl_node_out(s->r.g->t, &s->r.g->t->node[s->r.g->order[at]], 0);
    for (const tl_reader *u = s->r.of[y.index]; u != NULL; u = u->next) {
        const expression *to = &s->expr[s->r.position[u->node]];
        if (1 + to->ops + e->body > TL_FUSED_OPS ||
            s->r.g->t->node[u->node].n_in + to->ins + e->n_leaves > TL_FUSED_INS)
            return false;
    }
    return true;
}

/* It is inlined: its users' loops carry it. */
static void load(fuser *s, uint32_t at)
{
    const expression *e = &s->expr[at];
    const tl_tensor y = tl_node_out(s->r.g->t, &s->r.g->t->node[s->r.g->order[at]], 0);
    for (const tl_reader *u = s->r.of[y.index]; u != NULL; u = u->next) {
        s->expr[s->r.position[u->node]].ops += e->body;
        s->expr[s->r.position[u->node]].ins += e->n_leaves;
    }
}

static bool from_outside(const tl_graph *g, uint32_t root)
{
    tl_root_kind k = g->roots[root].kind;
    return k == TL_ROOT_INPUT || k == TL_ROOT_MODEL || k == TL_ROOT_BOUND || k == TL_ROOT_CONSTANT;
}

static tl_cost_question question_of(tl_graph *g, const tl_tensor *leaf, int n_leaves,
                                    tl_cost_question q, const tl_array *value)
{
    q.sizes_known = true;
    q.inputs_only = true;
    q.written = tl_array_count(value) * (int64_t)tl_dtype_size(value->dtype);
    for (int i = 0; i < n_leaves; i++) {
        const tl_array *a = array_of(g, leaf[i]);
        q.inputs_only &= from_outside(g, tl_graph_root(g, leaf[i]));
        if (tl_array_count(a) == 1)
            continue;
        q.reads++;
        q.read += tl_array_count(a) * (int64_t)tl_dtype_size(a->dtype);
    }
    return q;
}

/* The value of the node at that position is not written. */
static bool inlines(fuser *s, uint32_t at)
{
    tl_graph *g = s->r.g;
    const tl_node *n = &g->t->node[g->order[at]];
    const expression *e = &s->expr[at];
    tl_tensor y = tl_node_out(g->t, n, 0);
    tl_cost_question q = {.counts = true, .heavy = e->heavy, .body = e->body};
    tl_decision *d = &g->decision[g->order[at]];
    uint32_t last = at;
    bool possible = !s->r.pinned[y.index] && s->r.of[y.index] != NULL &&
                    tl_array_contiguous(array_of(g, y));
    for (const tl_reader *u = s->r.of[y.index]; u != NULL; u = u->next) {
        q.users++;
        possible &= u->walks;
        last = s->r.position[u->node] > last ? s->r.position[u->node] : last;
    }
    for (int i = 0; i < e->n_leaves && possible; i++)
        possible = !tl_readers_changes(&s->r, e->leaf[i], at, last + 1);
    bool room = possible && fits(s, at);
    q = question_of(g, e->leaf, e->n_leaves, q, array_of(g, y));
    d->answer = tl_cost_decide(q, g->opt.limits);
    d->question = q;
    d->asked = true;
    if (!room)
        d->answer.keep = true, d->answer.rule = s->r.pinned[y.index] ? "must lie in memory"
                                                : possible           ? "loop too large"
                                                                     : "read otherwise";
    if (!d->answer.keep)
        load(s, at);
    return !d->answer.keep;
}

tl_status tl_graph_fuse(tl_graph *g)
{
    fuser s = {.expr = tl_bump_get(&g->bump, (g->n_order + 1) * sizeof *s.expr)};
    g->decision = tl_bump_get(&g->bump, (g->t->n_nodes + 1) * sizeof *g->decision);
    if (s.expr == NULL || g->decision == NULL || !tl_readers_find(&s.r, g))
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to fuse a graph of %u nodes",
                       g->n_order);
    if (g->opt.no_fuse)
        return TL_OK;
    for (uint32_t at = 0; at < g->n_order; at++) {
        if (!tl_fusable(&g->t->node[g->order[at]]))
            continue;
        express(&s, at);
        g->inlined[g->order[at]] = inlines(&s, at);
    }
    return TL_OK;
}

/* ---- members of a loop ---- */

static bool listed(const uint32_t *nodes, int n, uint32_t i)
{
    for (int k = 0; k < n; k++)
        if (nodes[k] == i)
            return true;
    return false;
}

static int gather(const tl_graph *g, uint32_t i, uint32_t *nodes, int n)
{
    const tl_node *node = &g->t->node[i];
    for (int k = 0; k < node->n_in; k++) {
        tl_tensor x = tl_fuse_whole(g, node->in[k]);
        int32_t below = x.owner == g->t->values.owner ? tl_values_at(&g->t->values, x.index)->node
                                                      : -1;
        if (below >= 0 && g->inlined[below] && !listed(nodes, n, (uint32_t)below))
            n = gather(g, (uint32_t)below, nodes, n);
    }
    nodes[n] = i;
    return n + 1;
}

int tl_fuse_members(const tl_graph *g, uint32_t last, uint32_t *nodes)
{
    return gather(g, last, nodes, 0);
}
