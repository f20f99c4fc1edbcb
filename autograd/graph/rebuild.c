/* rebuild.c: a trace recorded again on another tape - with parts replaced, or with
 * the marks for backward made real. */
#include <string.h>

#include "autograd/graph/internal.h"

/* The leaf x of src as a leaf of dst; the model's tensors stand for themselves. */
static tl_tensor copy_leaf(void *ctx, tl_tensor x)
{
    const tl_again *r = ctx;
    if (x.owner != r->src->values.owner)
        return x;
    const tl_value *v = tl_values_at(&r->src->values, x.index);
    tl_tensor y = tl_trace_leaf(r->dst, &v->a, tl_leaf_of(r->src, x.index));
    if (tl_is_none(y))
        return y;
    tl_values_at(&r->dst->values, y.index)->needs_grad = v->needs_grad;
    tl_graph_keys_carry(r->dst, y, r->src, x, false);
    return y;
}

tl_tensor tl_rebuild_map(tl_tape *dst, const tl_tape *src, tl_tensor *map, tl_tensor x)
{
    tl_again r = {dst, src, copy_leaf, &r, map};
    return tl_again_value(&r, x);
}

void tl_rebuild_node(tl_tape *dst, const tl_tape *src, const tl_node *n, tl_tensor *map)
{
    tl_tensor out[8] = {TL_NONE};
    tl_again r = {dst, src, copy_leaf, &r, map};
    const tl_tensor *in = tl_again_inputs(&r, n);
    if (in == NULL)
        return;
    tl_scope outer = tl_scope_of(dst, n, n->mode);
    tl_trace_part(dst, tl_node_part(src, (uint32_t)(n - src->node)));
    tl_tensor leaf = n->op == &tl_op_mark_grad ? tl_again_value(&r, tl_mark_leaf(n)) : TL_NONE;
    if (tl_is_mark(n) && !tl_tracing_of(dst)->whole)
        tl_mark_expand(dst, n, in, leaf, out);
    else if (n->op == &tl_op_mark_grad)
        out[0] = tl_mark_gradient((tl_at){dst, n->file, n->line}, leaf);
    else
        tl_apply((tl_at){dst, n->file, n->line}, n->op, n->attrs, in, n->n_in, out);
    tl_scope_end(dst, outer);
    for (int j = 0; j < n->n_out; j++) {
        map[n->out + (uint32_t)j] = out[j];
        tl_graph_keys_carry(dst, out[j], src, tl_node_out(src, n, j), false);
    }
}

typedef struct {
    tl_tape *dst, *src;
    tl_tensor *map;
    tl_postorder order;
} copier;

static void copy(copier *c, uint32_t i)
{
    c->src->node[i].visit = c->order.visit;
    if (!tl_failed(c->dst))
        tl_rebuild_node(c->dst, c->src, &c->src->node[i], c->map);
}

/* The node that made x, also behind a detached leaf; -1 for others. */
static int32_t maker(const tl_tape *t, tl_tensor x)
{
    x = tl_attached(t, x);
    return tl_is_none(x) || x.owner != t->values.owner ? -1
                                                       : tl_values_at(&t->values, x.index)->node;
}

static int32_t follow(void *ctx, const tl_node *n, int k)
{
    return maker(((const copier *)ctx)->src, n->in[k]);
}

static void copy_below(copier *c, tl_tensor x)
{
    tl_postorder_from(&c->order, maker(c->src, x));
    for (int32_t i; (i = tl_postorder_next(&c->order)) >= 0;)
        copy(c, (uint32_t)i);
}

/* Canonical order, except that what a program changed or marked keeps its turn: all that was
 * recorded before stays before. */
tl_status tl_rebuild(tl_tape *dst, tl_tape *src, tl_tensor *map, const tl_tensor *out, int n_out)
{
    copier c = {.dst = dst, .src = src, .map = map};
    uint32_t left = 0;
    tl_postorder_begin(&c.order, src, follow, &c);
    for (uint32_t i = 0; i < src->n_nodes; i++) {
        const tl_node *n = &src->node[i];
        if (!tl_is_mark(n) && !tl_node_mutates(n))
            continue;
        for (int k = 0; k < n->n_in; k++)
            copy_below(&c, n->in[k]);
        for (; left <= i; left++)
            if (src->node[left].visit != c.order.visit)
                copy(&c, left);
    }
    for (int i = 0; i < n_out; i++)
        copy_below(&c, out[i]);
    for (; left < src->n_nodes; left++)
        if (src->node[left].visit != c.order.visit)
            copy(&c, left);
    return tl_failed(dst) ? tl_error_status(dst) : TL_OK;
}

tl_status tl_graph_rebuild(tl_graph *g, bool whole, tl_rebuilder *record, void *ctx)
{
    tl_tape *src = g->t, *dst = tl_trace_tape(g->user, g->tracing);
    if (dst == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory for a tape");
    g->tracing->whole = whole;
    tl_tensor *map = tl_bump_get(&dst->bump, (atomic_load(&src->values.count) + 1) * sizeof *map);
    tl_status s = map == NULL || !tl_graph_keys_share(dst, src)
                      ? tl_fail(&g->head.err, TL_ENOMEM, "no memory to rebuild a graph")
                      : TL_OK;
    for (int i = 0; s == TL_OK && i < g->n_in; i++) /* unused inputs are inputs still */
        g->in[i] = tl_rebuild_map(dst, src, map, g->in[i]);
    if (s == TL_OK && (s = record != NULL ? record(ctx, dst, src, map)
                                          : tl_rebuild(dst, src, map, g->out, g->n_out)) != TL_OK)
        tl_fail(&g->head.err, s, "%s", tl_error(dst));
    for (int i = 0; s == TL_OK && i < g->n_out; i++)
        g->out[i] = tl_rebuild_map(dst, src, map, g->out[i]);
    for (int i = 0; s == TL_OK && i < g->tracing->n_watch; i++)
        g->tracing->watch[i].x = tl_rebuild_map(dst, src, map, g->tracing->watch[i].x);
    tl_tape *gone = s == TL_OK ? src : dst;
    tl_graph_keys_leave(gone);
    if (s == TL_OK) {
        tl_trace_part(dst, tl_traced_of(src)->part);
        dst->steps = src->steps;
        g->t = dst;
    }
    tl_free(gone);
    return s;
}
