/* rebuild.c: a trace recorded again on another tape, with other values in the place of some
 * (tl_splice), or with the marks for backward expanded into its ops. */
#include "autograd/graph/internal.h"
#include "autograd/log/internal.h"

/* The leaf x of src as a leaf of dst; the model's tensors stand for themselves. */
static tl_tensor copy_leaf(void *ctx, tl_tensor x)
{
    const tl_again *r = ctx;
    if (x.owner != r->src->values.owner)
        return x;
    const tl_value *v = tl_peek(r->src, x);
    tl_tensor y = tl_trace_leaf(r->dst, &v->a, tl_leaf_of(r->src, x));
    if (tl_is_none(y))
        return y;
    tl_value *w = tl_peek(r->dst, y);
    w->needs_grad = v->needs_grad;
    w->fixed = v->fixed;
    w->print = v->print;
    tl_batch_like(w, v);
    tl_log_carry(r->dst, y, r->src, x, false);
    return y;
}

tl_tensor tl_rebuild_map(tl_tape *dst, const tl_tape *src, tl_tensor *map, tl_tensor x)
{
    tl_again r = {.dst = dst, .src = src, .leaf = copy_leaf, .ctx = &r, .map = map};
    return tl_again_value(&r, x);
}

typedef struct {
    tl_again to;
    const tl_splice *splice; /* NULL: none */
    tl_postorder order;
    bool *done; /* by node of the source: copied */
    bool cycle; /* there is no order */
} copier;

static void rebuild_node(copier *c, const tl_node *n)
{
    tl_tape *dst = c->to.dst;
    const tl_tape *src = c->to.src;
    const tl_at at = {dst, n->file, n->line, NULL};
    tl_tensor out[TL_OUTS] = {TL_NONE};
    const tl_tensor *in = tl_again_inputs(&c->to, n);
    if (in == NULL)
        return;
    tl_scope outer = tl_scope_of(dst, n, n->mode);
    tl_trace_part(dst, tl_node_part(src, (uint32_t)(n - src->node)));
    tl_tensor leaf = n->op == &tl_op_mark_grad ? tl_again_value(&c->to, tl_mark_leaf(n)) : TL_NONE;
    if (tl_is_mark(n) && !tl_tracing_of(dst)->whole)
        tl_mark_expand(dst, n, in, leaf, out);
    else if (n->op == &tl_op_mark_grad)
        out[0] = tl_mark_gradient(at, leaf);
    else
        tl_apply(at, n->op, n->attrs, in, n->n_in, out);
    tl_scope_end(dst, outer);
    if (!tl_failed(dst))
        tl_again_fixed(dst, in, out, n);
    for (int j = 0; j < n->n_out; j++) {
        const tl_tensor x = tl_node_out(src, n, j);
        c->to.map[x.index] = out[j];
        if (!tl_is_none(out[j])) { /* a walk back may have set these on the source */
            tl_batch_like(tl_peek(dst, out[j]), tl_peek(src, x));
            tl_peek(dst, out[j])->print = tl_peek(src, x)->print;
        }
        tl_log_carry(dst, out[j], src, x, false);
    }
}

/* The stand-in for x; TL_NONE if it has none. */
static tl_tensor stand_in(const copier *c, tl_tensor x)
{
    const bool may = c->splice != NULL && !tl_is_none(x) && x.owner == c->to.src->values.owner &&
                     x.index < c->splice->n_values;
    return may ? c->splice->stand_in[x.index] : TL_NONE;
}

/* If x, or the value that x was detached from, has a stand-in, maps it to the stand-in's handle. */
static void map_stand_in(copier *c, tl_tensor x)
{
    x = tl_attached(c->to.src, x);
    tl_tensor y = stand_in(c, x);
    if (tl_is_none(y) || !tl_is_none(c->to.map[x.index]))
        return;
    map_stand_in(c, y);
    c->to.map[x.index] = tl_again_value(&c->to, y);
    tl_log_carry(c->to.dst, c->to.map[x.index], c->to.src, x, true);
}

static void copy(copier *c, uint32_t i)
{
    tl_tape *dst = c->to.dst;
    const tl_node *n = &c->to.src->node[i];
    const uint32_t at = dst->n_nodes;
    c->done[i] = true;
    if (tl_failed(dst) || c->cycle)
        return;
    for (int k = 0; k < n->n_in; k++)
        map_stand_in(c, n->in[k]);
    rebuild_node(c, n);
    if (c->splice == NULL || tl_failed(dst))
        return;
    c->splice->from[at] = i;
    for (int j = 0; j < n->n_out && !tl_tracing_of(dst)->whole; j++) { /* known from the source */
        const tl_tensor x = tl_node_out(c->to.src, n, j);
        tl_peek(dst, c->to.map[x.index])->needs_grad = tl_peek(c->to.src, x)->needs_grad;
    }
}

/* The node that made x or its stand-in, also behind a detached leaf; -1 if there is none. */
static int32_t maker(const copier *c, tl_tensor x)
{
    for (tl_tensor y = x; !tl_is_none(y); y = stand_in(c, x))
        x = tl_attached(c->to.src, y);
    return tl_maker_at(c->to.src, x);
}

/* The node behind input k of n. If the path leads back to a node on it, the stand-in nearest to its
 * end is noted as cyclic. Nothing more is copied then, but the search goes on for other such
 * paths. */
static int32_t follow(void *ctx, const tl_node *n, int k)
{
    copier *c = ctx;
    const tl_node *node = c->to.src->node;
    int32_t i = maker(c, n->in[k]), at = (int32_t)(n - node);
    if (i < 0 || node[i].visit != c->order.visit || c->done[i])
        return i;
    while (at != i && (uint32_t)at < c->splice->n_nodes)
        at = node[at].link;
    c->splice->cyclic[at] = c->cycle = true;
    return -1;
}

/* Copies a node and what it needs, in post-order. */
static void copy_from(copier *c, int32_t node)
{
    tl_postorder_from(&c->order, node);
    for (int32_t i; (i = tl_postorder_next(&c->order)) >= 0;)
        copy(c, (uint32_t)i);
}

/* Copies node i or, if it is gone, the nodes that stand for its outputs. */
static void copy_in_turn(copier *c, uint32_t i)
{
    const tl_node *n = &c->to.src->node[i];
    if (c->splice == NULL || !c->splice->gone[i]) {
        copy_from(c, (int32_t)i);
        return;
    }
    for (int j = 0; j < n->n_out; j++) {
        tl_tensor x = tl_node_out(c->to.src, n, j);
        if (tl_is_none(stand_in(c, x)))
            continue;
        copy_from(c, maker(c, x));
        if (!c->cycle && !tl_failed(c->to.dst))
            map_stand_in(c, x);
    }
}

/* Copies all nodes in canonical order, except that marks and changes in place keep their turn:
 * nodes recorded before them stay before them. */
static void rebuild(copier *c, uint32_t n_nodes, const tl_tensor *out, int n_out)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < n_nodes; i++) {
        const tl_node *n = &c->to.src->node[i];
        if (!tl_is_mark(n) && !tl_node_mutates(n))
            continue;
        for (int k = 0; k < n->n_in; k++)
            copy_from(c, maker(c, n->in[k]));
        for (; left <= i; left++)
            copy_in_turn(c, left);
    }
    for (int i = 0; i < n_out; i++)
        copy_from(c, maker(c, out[i]));
    for (; left < n_nodes; left++)
        copy_in_turn(c, left);
}

tl_tape *tl_graph_again(tl_graph *g, bool whole, const tl_splice *splice, tl_tensor **map,
                        tl_err *err)
{
    tl_tape *src = g->t, *dst = tl_trace_tape(g->user, g->tracing);
    if (dst == NULL) {
        tl_fail(err, TL_ENOMEM, "no memory for a tape");
        return NULL;
    }
    const size_t n_values = atomic_load(&src->values.count);
    dst->busy = 1; /* as in compile() */
    copier c = {.to = {.dst = dst, .src = src, .leaf = copy_leaf, .ctx = &c.to}, .splice = splice};
    g->tracing->whole = whole;
    tl_postorder_begin(&c.order, src, follow, &c);
    c.to.map = *map = tl_bump_get(&dst->bump, n_values * sizeof **map);
    c.done = tl_bump_get(&dst->bump, src->n_nodes);
    if (c.to.map == NULL || c.done == NULL ||
        (tl_log_of(src) != NULL && tl_log_attach(dst, tl_log_of(src)) != TL_OK)) {
        tl_fail(err, TL_ENOMEM, "no memory to rebuild a graph of %u nodes", src->n_nodes);
    } else {
        for (int i = 0; i < g->n_in; i++) /* unused inputs are inputs, too */
            tl_again_value(&c.to, g->in[i]);
        rebuild(&c, splice == NULL ? src->n_nodes : splice->n_nodes, g->out, g->n_out);
        tl_trace_part(dst, tl_traced_of(src)->part); /* makes room, which tl_graph_take needs */
        if (c.cycle)
            tl_fail(err, TL_EUSAGE,
                    "its outputs lead back to its inputs: it cannot stand in one place");
        else if (tl_failed(dst))
            tl_fail(err, tl_error_status(dst), "%s", tl_error(dst));
        else
            return dst;
    }
    tl_graph_leave(dst);
    return NULL;
}

void tl_graph_leave(tl_tape *t)
{
    if (t != NULL && tl_log_of(t) != NULL)
        tl_log_attach(t, NULL); /* it belongs to the other tape */
    tl_object_end(t);
}

void tl_graph_take(tl_graph *g, tl_tape *dst, tl_tensor *map)
{
    tl_tape *src = g->t;
    for (int i = 0; i < g->n_in; i++)
        g->in[i] = tl_rebuild_map(dst, src, map, g->in[i]);
    for (int i = 0; i < tl_graph_results(g); i++)
        *tl_graph_result(g, i) = tl_rebuild_map(dst, src, map, *tl_graph_result(g, i));
    tl_trace_part(dst, tl_traced_of(src)->part);
    dst->steps = src->steps;
    g->t = dst;
    tl_graph_leave(src);
}

tl_status tl_graph_rebuild(tl_graph *g, bool whole)
{
    tl_tensor *map;
    tl_tape *dst = tl_graph_again(g, whole, NULL, &map, &g->head.err);
    if (dst == NULL)
        return g->head.err.status;
    tl_graph_take(g, dst, map);
    return TL_OK;
}
