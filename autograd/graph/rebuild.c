/* rebuild.c: a trace recorded again on another tape - with parts replaced, or with
 * the marks for backward made real. */
#include <string.h>

#include "autograd/graph/internal.h"

/* The leaf x of src as a leaf of dst. */
static tl_tensor copy_leaf(tl_tape *dst, const tl_tape *src, tl_tensor x)
{
    const tl_value *v = tl_values_at(&src->values, x.index);
    tl_tensor y = tl_trace_leaf(dst, &v->a, tl_leaf_of(src, x.index));
    if (tl_is_none(y))
        return y;
    tl_values_at(&dst->values, y.index)->needs_grad = v->needs_grad;
    tl_graph_keys_carry(dst, y, src, x, false);
    return y;
}

tl_tensor tl_rebuild_map(tl_tape *dst, const tl_tape *src, tl_tensor *map, tl_tensor x)
{
    if (tl_is_none(x) || x.owner != src->values.owner)
        return x;
    tl_tensor *m = &map[x.index];
    const tl_value *v = tl_values_at(&src->values, x.index);
    if (!tl_is_none(*m) || v->node >= 0)
        return *m;
    if (tl_is_none(v->source)) {
        *m = copy_leaf(dst, src, x);
        return *m;
    }
    *m = tl_detach(dst, tl_rebuild_map(dst, src, map, v->source));
    if (!tl_is_none(*m))
        tl_values_at(&dst->values, m->index)->needs_grad = v->needs_grad;
    return *m;
}

void tl_rebuild_node(tl_tape *dst, const tl_tape *src, const tl_node *n, tl_tensor *map)
{
    tl_tensor out[8] = {TL_NONE}, *in = tl_bump_get(&dst->bump, (size_t)(n->n_in + 1) * sizeof *in);
    if (in == NULL) {
        tl_fail(&dst->head.err, TL_ENOMEM, "no memory to rebuild %s", n->op->name);
        return;
    }
    for (int k = 0; k < n->n_in; k++)
        in[k] = tl_rebuild_map(dst, src, map, n->in[k]);
    const unsigned mode = dst->mode;
    const tl_choice *choice = dst->choice;
    const uint8_t phase = dst->phase;
    if (!tl_choice_follow(dst, n->choice))
        return;
    dst->mode = n->mode;
    dst->phase = n->phase;
    tl_trace_part(dst, tl_node_part(src, (uint32_t)(n - src->node)));
    tl_tensor leaf = n->op == &tl_op_mark_grad ? tl_rebuild_map(dst, src, map, tl_mark_leaf(n))
                                               : TL_NONE;
    if (tl_is_mark(n) && !tl_tracing_of(dst)->whole) {
        tl_mark_expand(dst, n, in, leaf, out);
    } else if (n->op == &tl_op_mark_grad) {
        out[0] = tl_mark_gradient((tl_at){dst, n->file, n->line}, leaf);
    } else {
        tl_apply((tl_at){dst, n->file, n->line}, n->op, n->attrs, in, n->n_in, out);
    }
    dst->mode = mode;
    dst->phase = phase;
    dst->choice = choice;
    for (int j = 0; j < n->n_out; j++) {
        map[n->out + (uint32_t)j] = out[j];
        tl_graph_keys_carry(dst, out[j], src, tl_node_out(src, n, j), false);
    }
}

typedef struct {
    tl_tape *dst;
    const tl_tape *src;
    tl_tensor *map;
    bool *done; /* by node of src */
    struct {
        uint32_t node;
        int next;
    } * stack;
} copier;

static void copy(copier *c, uint32_t i)
{
    c->done[i] = true;
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

/* What x needs, in post-order, inputs left to right, with a stack of our own: graphs are deep. */
static void copy_below(copier *c, tl_tensor x)
{
    int32_t from = maker(c->src, x);
    uint32_t depth = 0;
    if (from < 0 || c->done[from])
        return;
    c->done[from] = true; /* seen; copied when its inputs are */
    c->stack[depth].node = (uint32_t)from;
    c->stack[depth++].next = 0;
    while (depth > 0) {
        uint32_t i = c->stack[depth - 1].node;
        const tl_node *n = &c->src->node[i];
        if (c->stack[depth - 1].next == n->n_in) {
            copy(c, i);
            depth--;
            continue;
        }
        int32_t p = maker(c->src, n->in[c->stack[depth - 1].next++]);
        if (p < 0 || c->done[p])
            continue;
        c->done[p] = true;
        c->stack[depth].node = (uint32_t)p;
        c->stack[depth++].next = 0;
    }
}

/* Canonical order, except that what a program changed or marked keeps its turn: all that was
 * recorded before stays before. */
tl_status tl_rebuild(tl_tape *dst, const tl_tape *src, tl_tensor *map, const tl_tensor *out,
                     int n_out)
{
    copier c = {.dst = dst, .src = src, .map = map};
    uint32_t left = 0;
    c.done = tl_bump_get(&dst->bump, src->n_nodes + 1);
    c.stack = tl_bump_get(&dst->bump, (src->n_nodes + 1) * sizeof *c.stack);
    if (c.done == NULL || c.stack == NULL)
        return tl_fail(&dst->head.err, TL_ENOMEM, "no memory to rebuild a graph of %u nodes",
                       src->n_nodes);
    for (uint32_t i = 0; i < src->n_nodes; i++) {
        const tl_node *n = &src->node[i];
        if (!tl_is_mark(n) && !tl_node_mutates(n))
            continue;
        for (int k = 0; k < n->n_in; k++)
            copy_below(&c, n->in[k]);
        for (; left <= i; left++)
            if (!c.done[left])
                copy(&c, left);
    }
    for (int i = 0; i < n_out; i++)
        copy_below(&c, out[i]);
    for (; left < src->n_nodes; left++)
        if (!c.done[left])
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
