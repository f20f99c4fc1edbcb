/* fuse.c: which values are computed inside their users' loops and never written.
 *
 * Nodes are looked at in the order they run, so that what a value reads is known: itself
 * and the values inlined into it (its body), and below those the values in memory (its
 * leaves). A value is inlined if every user is a pointwise loop that walks it element by
 * element, no leaf changes before the last of them, and the cost of it does not speak for keeping
 * it. */
#include <string.h>

#include "autograd/graph/fused.h"

/* ---- the decision, as a function of numbers alone ---- */

tl_cost_answer tl_cost_decide(tl_cost_question q, tl_cost_limits limits)
{
    int64_t body = limits.body > 0 ? limits.body : 30, reads = limits.reads > 0 ? limits.reads : 4,
            u = q.users;
    tl_cost_answer a = {.inlined = q.read * u, .kept = q.read + q.written * (1 + u)};
    if (limits.never_inline)
        a.keep = true, a.rule = "all are kept";
    else if (u <= 1)
        a.rule = "one user";
    else if (!q.counts)
        a.rule = "another kind of op";
    else if (q.heavy && !limits.heavy_inline)
        a.keep = true, a.rule = "heavy";
    else if (q.body > body)
        a.keep = true, a.rule = "large body";
    else if (q.inputs_only)
        a.rule = "inputs only";
    else if (!q.sizes_known)
        a.keep = q.reads > reads, a.rule = "reads";
    else
        a.keep = q.read * (u - 1) >= q.written * (1 + u), a.rule = "bytes";
    return a;
}

/* ---- who reads each value, element by element or otherwise, and when memories change ---- */

typedef struct reader {
    uint32_t node;
    bool walks; /* a loop that reads it element by element, in its own tile type */
    struct reader *next;
} reader;

/* Positions in order, ascending. */
typedef struct {
    uint32_t *at, n, cap;
} positions;

typedef struct {
    tl_graph *g;
    reader **of;        /* by value: who reads it, also through plain views */
    bool *pinned;       /* by value: needed in memory whoever reads it */
    uint32_t *position; /* of a node in order */
    positions *writes;  /* by root: of the nodes that change it */
} read_index;

static const tl_array *array_of(const tl_graph *g, tl_tensor x) { return &tl_peek(g->t, x)->a; }

tl_tensor tl_fuse_whole(const tl_graph *g, tl_tensor x)
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
        const tl_array *a = tl_is_none(below) ? NULL : array_of(g, below);
        if (a == NULL || (n != NULL && (!tl_array_contiguous(&v->a) || !tl_array_contiguous(a) ||
                                        tl_array_count(&v->a) != tl_array_count(a))))
            return x;
        x = below;
    }
}

static bool add_reader(read_index *r, tl_tensor x, uint32_t node, bool walks)
{
    reader *u = tl_bump_get(&r->g->bump, sizeof *u);
    if (u == NULL)
        return false;
    *u = (reader){node, walks, r->of[x.index]};
    r->of[x.index] = u;
    return true;
}

/* A view that is no plain one hides what happens to the memory below it: that stays. */
static void pin(read_index *r, tl_tensor x)
{
    x = tl_fuse_whole(r->g, x);
    if (x.owner == r->g->t->values.owner)
        r->pinned[x.index] = true;
}

static bool note_reads(read_index *r, uint32_t i)
{
    tl_graph *g = r->g;
    const tl_node *n = &g->t->node[i];
    for (int k = 0; k < n->n_in; k++) {
        if (tl_is_none(n->in[k]))
            continue;
        tl_tensor x = tl_fuse_whole(g, n->in[k]);
        if (x.owner != g->t->values.owner)
            continue;
        if (n->op->traits & TL_VIEW) { /* a plain view reads nothing: its users do */
            tl_tensor y = tl_fuse_whole(g, tl_node_out(g->t, n, 0));
            r->pinned[x.index] |= !tl_same_handle(x, y);
            continue;
        }
        const tl_array *a = array_of(g, x),
                       *out = n->n_out > 0 ? &tl_values_at(&g->t->values, n->out)->a : a;
        bool walks = tl_fusable(n) && tl_array_count(a) == tl_array_count(out) &&
                     tl_array_contiguous(array_of(g, tl_graph_resolve(g, n->in[k]))) &&
                     tl_tile_dtype(g, n, k) == tl_dtype_compute(a->dtype);
        if (!add_reader(r, x, i, walks))
            return false;
    }
    return true;
}

static bool append(tl_graph *g, positions *p, uint32_t at)
{
    if (p->n == p->cap) {
        uint32_t *grown = tl_bump_get(&g->bump, (2 * p->cap + 4) * sizeof *grown);
        if (grown == NULL)
            return false;
        if (p->n > 0)
            memcpy(grown, p->at, p->n * sizeof *grown);
        p->at = grown;
        p->cap = 2 * p->cap + 4;
    }
    p->at[p->n++] = at;
    return true;
}

static bool note_writes(read_index *r, uint32_t at)
{
    tl_graph *g = r->g;
    const tl_node *n = &g->t->node[g->order[at]];
    for (int k = 0; k < n->n_in; k++) {
        if (!tl_node_writes(n, k))
            continue;
        if (!append(g, &r->writes[tl_graph_root(g, tl_graph_resolve(g, n->in[k]))], at))
            return false;
        pin(r, n->in[k]); /* it is changed where it lies */
    }
    return true;
}

/* x's memory changes after position from and before position to. */
static bool changes_between(const read_index *r, tl_tensor x, uint32_t from, uint32_t to)
{
    const positions *w = &r->writes[tl_graph_root(r->g, tl_graph_resolve(r->g, x))];
    uint32_t low = 0, high = w->n; /* the first after from */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (w->at[middle] > from)
            high = middle;
        else
            low = middle + 1;
    }
    return low < w->n && w->at[low] < to;
}

/* False when out of memory. */
static bool find_readers(read_index *r, tl_graph *g)
{
    uint32_t n = atomic_load(&g->t->values.count);
    *r = (read_index){.g = g,
                      .of = tl_bump_get(&g->bump, (n + 1) * sizeof *r->of),
                      .pinned = tl_bump_get(&g->bump, n + 1),
                      .position = tl_bump_get(&g->bump, (g->t->n_nodes + 1) * sizeof *r->position),
                      .writes = tl_bump_get(&g->bump, (g->cap_roots + 1) * sizeof *r->writes)};
    if (r->of == NULL || r->pinned == NULL || r->position == NULL || r->writes == NULL)
        return false;
    for (uint32_t at = 0; at < g->n_order; at++) {
        r->position[g->order[at]] = at;
        if (!note_reads(r, g->order[at]) || !note_writes(r, at))
            return false;
    }
    for (int i = 0; i < tl_graph_results(g); i++)
        pin(r, *tl_graph_result(g, i));
    return true;
}

/* ---- which are inlined ---- */

/* What is known of a value's computation. */
typedef struct {
    tl_tensor leaf[TL_FUSED_INS];
    int n_leaves, body;
    bool heavy;
    int ops, ins; /* of the loop that would store it: no more than fit */
} expression;

typedef struct {
    read_index r;
    expression *expr; /* by position in order; of fusable nodes */
} fuser;

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
        int32_t below = tl_maker_at(g->t, tl_fuse_whole(g, n->in[k]));
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
    for (const reader *u = s->r.of[y.index]; u != NULL; u = u->next) {
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
    for (const reader *u = s->r.of[y.index]; u != NULL; u = u->next) {
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
    q.written = (int64_t)tl_array_room(value);
    for (int i = 0; i < n_leaves; i++) {
        const tl_array *a = array_of(g, leaf[i]);
        q.inputs_only &= from_outside(g, tl_graph_root(g, leaf[i]));
        if (tl_array_count(a) == 1)
            continue;
        q.reads++;
        q.read += (int64_t)tl_array_room(a);
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
    for (const reader *u = s->r.of[y.index]; u != NULL; u = u->next) {
        q.users++;
        possible &= u->walks;
        last = s->r.position[u->node] > last ? s->r.position[u->node] : last;
    }
    for (int i = 0; i < e->n_leaves && possible; i++)
        possible = !changes_between(&s->r, e->leaf[i], at, last + 1);
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
    if (s.expr == NULL || g->decision == NULL || !find_readers(&s.r, g))
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

int tl_fuse_members(const tl_graph *g, uint32_t i, uint32_t *nodes, int n)
{
    const tl_node *node = &g->t->node[i];
    for (int k = 0; k < node->n_in; k++) {
        int32_t below = tl_maker_at(g->t, tl_fuse_whole(g, node->in[k]));
        if (below >= 0 && g->inlined[below] && !listed(nodes, n, (uint32_t)below))
            n = tl_fuse_members(g, (uint32_t)below, nodes, n);
    }
    nodes[n] = i;
    return n + 1;
}
