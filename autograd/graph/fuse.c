/* fuse.c: which values are computed inside their users' loops and never written to memory.
 *
 * Nodes are visited in the order in which they run, so that the expression of a value is known: the
 * ops that compute it in one loop (its body) and the values in memory that this loop reads (its
 * leaves). A value is inlined if every user is a pointwise loop that walks it element by element,
 * if no leaf changes before the last user, and if tl_cost_decide does not want it kept. */
#include "autograd/graph/internal.h"

/* ---- the decision (internal.h says how), as a function of numbers alone ---- */

static tl_cost_answer answer(const tl_cost_question *q, bool keep, const char *rule)
{
    const int64_t u = q->users;
    return (tl_cost_answer){keep, rule, q->read * u, q->read + q->written * (1 + u)};
}

tl_cost_answer tl_cost_decide(tl_cost_question q, tl_cost_limits limits)
{
    const int64_t body = limits.body > 0 ? limits.body : 30,
                  reads = limits.reads > 0 ? limits.reads : 4, u = q.users;
    if (limits.never_inline)
        return answer(&q, true, "all are kept");
    if (u <= 1)
        return answer(&q, false, "one user");
    if (!q.counts)
        return answer(&q, false, "another kind of op");
    if (q.heavy && !limits.heavy_inline)
        return answer(&q, true, "heavy");
    if (q.body > body)
        return answer(&q, true, "large body");
    if (q.inputs_only)
        return answer(&q, false, "inputs only");
    if (!q.sizes_known)
        return answer(&q, q.reads > reads, "reads");
    return answer(&q, q.read * (u - 1) >= q.written * (1 + u), "bytes");
}

/* ---- who reads each value, and how ---- */

typedef struct reader {
    uint32_t node;
    bool walks; /* a loop that reads it element by element, in the value's own tile type */
    struct reader *next;
} reader;

/* A node's value: who reads it, and how it is computed. */
typedef struct {
    reader *readers; /* also through plain views */
    bool pinned;     /* needed in memory, whoever reads it */
    /* Of a fusable node: the expression. */
    tl_tensor leaf[TL_FUSED_LEAVES];
    int n_leaves, body;
    bool heavy;
    int ops, ins; /* what values inlined so far add to the loop that stores this one */
    int reads;    /* how often ops read leaves, those of inlined values included */
} expression;

typedef struct {
    tl_graph *g;
    expression *of; /* by node: of its first result, the only one that may be inlined */
} fuser;

/* The expression of x, if it is a node's first result; else NULL. */
static expression *expression_of(const fuser *s, tl_tensor x)
{
    const tl_node *n = tl_maker(s->g->t, x);
    return n == NULL || n->out != x.index ? NULL : &s->of[n - s->g->t->node];
}

/* Notes that node i reads or changes its input k. A node that changes memory is not fusable, so it
 * never walks what it changes. */
static void note_use(const fuser *s, uint32_t i, int k)
{
    tl_graph *g = s->g;
    const tl_node *n = &g->t->node[i];
    const tl_tensor x = tl_graph_whole(g, n->in[k]);
    expression *e = expression_of(s, x);
    if (e == NULL)
        return;
    if (n->op->traits & TL_VIEW) {
        /* The users of a plain view read x. Any other view hides what happens to x's memory. */
        e->pinned |= !tl_same_handle(x, tl_graph_whole(g, tl_node_out(g->t, n, 0)));
        return;
    }
    reader *u = tl_graph_room(g, 1, sizeof *u);
    if (u == NULL)
        return;
    const tl_array *a = tl_graph_array(g, x),
                   *out = n->n_out > 0 ? &tl_values_at(&g->t->values, n->out)->a : a;
    const bool walks = tl_fusable(n) && tl_array_count(a) == tl_array_count(out) &&
                       tl_array_contiguous(out) && /* a user's op may lay it out otherwise */
                       tl_array_contiguous(tl_graph_array(g, tl_graph_resolve(g, n->in[k]))) &&
                       tl_tile_dtype(g, n, k) == tl_dtype_compute(a->dtype);
    *u = (reader){i, walks, e->readers};
    e->readers = u;
}

static void find_readers(const fuser *s)
{
    tl_graph *g = s->g;
    for (uint32_t at = 0; at < g->n_order; at++)
        for (int k = 0; k < g->t->node[g->order[at]].n_in; k++)
            if (!tl_is_none(g->t->node[g->order[at]].in[k]))
                note_use(s, g->order[at], k);
    for (int i = 0; i < tl_graph_results(g); i++) {
        expression *e = expression_of(s, tl_graph_whole(g, *tl_graph_result(g, i)));
        if (e != NULL)
            e->pinned = true;
    }
}

/* ---- which are inlined ---- */

static void add_leaf(expression *e, tl_tensor x)
{
    for (int i = 0; i < e->n_leaves; i++)
        if (tl_same_handle(e->leaf[i], x))
            return;
    e->leaf[e->n_leaves++] = x; /* fits(): there is room */
}

/* Body and leaves of fusable node i, which takes in the inlined values that it reads. */
static void express(const fuser *s, uint32_t i)
{
    tl_graph *g = s->g;
    const tl_node *n = &g->t->node[i];
    expression *e = &s->of[i];
    e->body = 1;
    e->heavy = n->op->traits & TL_HEAVY;
    for (int k = 0; k < n->n_in; k++) {
        int32_t below = tl_maker_at(g->t, tl_graph_whole(g, n->in[k]));
        if (below < 0 || !tl_inlined(g, (uint32_t)below)) {
            add_leaf(e, tl_graph_resolve(g, n->in[k]));
            e->reads++;
            continue;
        }
        const expression *b = &s->of[below];
        e->body += b->body; /* an op that is reached by two paths counts twice: a bound */
        e->heavy |= b->heavy;
        for (int j = 0; j < b->n_leaves; j++)
            add_leaf(e, b->leaf[j]);
    }
}

/* Every user's loop has room for the body and the leaves. */
static bool fits(const fuser *s, const expression *e)
{
    for (const reader *u = e->readers; u != NULL; u = u->next) {
        const expression *to = &s->of[u->node];
        if (1 + to->ops + e->body > TL_FUSED_OPS ||
            s->g->t->node[u->node].n_in + to->ins + e->n_leaves > TL_FUSED_LEAVES ||
            s->g->t->node[u->node].n_in + to->reads + e->reads > TL_FUSED_INS)
            return false;
    }
    return true;
}

static tl_cost_question question_of(tl_graph *g, const expression *e, const tl_array *value)
{
    tl_cost_question q = {.counts = true,
                          .heavy = e->heavy,
                          .body = e->body,
                          .sizes_known = true,
                          .inputs_only = true,
                          .written = (int64_t)tl_array_room(value)};
    for (const reader *u = e->readers; u != NULL; u = u->next)
        q.users++;
    for (int i = 0; i < e->n_leaves; i++) {
        const tl_array *a = tl_graph_array(g, e->leaf[i]);
        const tl_root_kind k = g->roots[tl_graph_root(g, e->leaf[i])].kind;
        q.inputs_only &= k == TL_ROOT_INPUT || k == TL_ROOT_MODEL || k == TL_ROOT_BOUND ||
                         k == TL_ROOT_CONSTANT;
        if (tl_array_count(a) == 1)
            continue;
        q.reads++;
        q.read += (int64_t)tl_array_room(a);
    }
    return q;
}

/* Why the value of node i cannot be inlined; NULL if it can. */
static const char *obstacle(const fuser *s, uint32_t i)
{
    tl_graph *g = s->g;
    const expression *e = &s->of[i];
    bool walked = e->readers != NULL &&
                  tl_array_contiguous(tl_graph_array(g, tl_node_out(g->t, &g->t->node[i], 0)));
    uint32_t last = i;
    if (e->pinned)
        return "must lie in memory";
    for (const reader *u = e->readers; u != NULL; u = u->next) {
        walked &= u->walks;
        last = u->node > last ? u->node : last;
    }
    for (int k = 0; k < e->n_leaves && walked; k++) {
        const uint32_t root = tl_graph_root(g, e->leaf[k]);
        walked = !tl_root_changes_between(g, root, i + 1, last + 1);
    }
    return !walked ? "read otherwise" : fits(s, e) ? NULL : "loop too large";
}

static void decide(const fuser *s, uint32_t i)
{
    tl_graph *g = s->g;
    const expression *e = &s->of[i];
    const char *why = obstacle(s, i);
    tl_decision *d = &g->decision[i];
    d->question = question_of(g, e, tl_graph_array(g, tl_node_out(g->t, &g->t->node[i], 0)));
    d->answer = tl_cost_decide(d->question, g->opt.limits);
    if (why != NULL) {
        d->answer.keep = true;
        d->answer.rule = why;
    }
    for (const reader *u = e->readers; u != NULL && !d->answer.keep; u = u->next) {
        s->of[u->node].ops += e->body; /* its users' loops carry it */
        s->of[u->node].ins += e->n_leaves;
        s->of[u->node].reads += e->reads;
    }
}

tl_status tl_graph_fuse(tl_graph *g)
{
    const fuser s = {g, tl_graph_room(g, g->t->n_nodes, sizeof *s.of)};
    g->decision = tl_graph_room(g, g->t->n_nodes, sizeof *g->decision);
    if (g->head.err.status != TL_OK || g->opt.no_fuse)
        return g->head.err.status;
    find_readers(&s);
    for (uint32_t at = 0; at < g->n_order && g->head.err.status == TL_OK; at++)
        if (tl_fusable(&g->t->node[g->order[at]])) {
            express(&s, g->order[at]);
            decide(&s, g->order[at]);
        }
    return g->head.err.status;
}
