/* rebuild.c: a trace recorded again on another tape - with parts replaced, or with
 * the marks for backward made real. */
#include <string.h>

#include "autograd/graph/internal.h"

/* The leaf x of src as a leaf of dst. */
static tl_tensor copy_leaf(tl_tape *dst, const tl_value *v)
{
    tl_tensor y = tl_trace_leaf(dst, &v->a, v->leaf, v->leaf_at, v->leaf_use);
    if (!tl_is_none(y))
        tl_values_at(&dst->values, y.index)->needs_grad = v->needs_grad;
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
        *m = copy_leaf(dst, v);
        return *m;
    }
    *m = tl_detach(dst, tl_rebuild_map(dst, src, map, v->source));
    if (!tl_is_none(*m))
        tl_values_at(&dst->values, m->index)->needs_grad = v->needs_grad;
    return *m;
}

static bool mark(const tl_node *n)
{
    return n->op == &tl_op_mark_backward || n->op == &tl_op_mark_grad || n->op == &tl_op_mark_clear;
}

static void copy_node(tl_tape *dst, const tl_tape *src, const tl_node *n, tl_tensor *map)
{
    tl_tensor out[8] = {TL_NONE}, *in = tl_bump_get(&dst->bump, (size_t)(n->n_in + 1) * sizeof *in);
    if (in == NULL) {
        tl_fail(&dst->head.err, TL_ENOMEM, "no memory to rebuild %s", n->op->name);
        return;
    }
    for (int k = 0; k < n->n_in; k++)
        in[k] = tl_rebuild_map(dst, src, map, n->in[k]);
    unsigned mode = dst->mode;
    dst->mode = n->mode;
    tl_tensor leaf = n->op == &tl_op_mark_grad ? tl_rebuild_map(dst, src, map, tl_mark_leaf(n)) : TL_NONE;
    if (mark(n) && !dst->tracing->whole) {
        tl_mark_expand(dst, n, in, leaf, out);
    } else if (n->op == &tl_op_mark_grad) {
        out[0] = tl_trace_grad((tl_at){dst, n->file, n->line}, leaf);
    } else {
        tl_apply((tl_at){dst, n->file, n->line}, n->op, n->attrs, in, n->n_in, out);
    }
    dst->mode = mode;
    for (int j = 0; j < n->n_out; j++)
        map[n->out + (uint32_t)j] = out[j];
}

tl_status tl_rebuild(tl_tape *dst, const tl_tape *src, tl_tensor *map, tl_rebuild_hook *hook, void *ctx)
{
    for (uint32_t i = 0; i < src->n_nodes && !tl_failed(dst); i++)
        if (hook == NULL || !hook(ctx, dst, i, map))
            copy_node(dst, src, &src->node[i], map);
    return tl_failed(dst) ? tl_error_status(dst) : TL_OK;
}

tl_status tl_graph_rebuild(tl_graph *g, bool whole, tl_rebuild_hook *hook, void *ctx)
{
    tl_tape *src = g->t, *dst = tl_trace_tape(g->user, g->tracing);
    if (dst == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory for a tape");
    g->tracing->whole = whole;
    tl_tensor *map = tl_bump_get(&dst->bump, (atomic_load(&src->values.count) + 1) * sizeof *map);
    tl_status s = map == NULL ? tl_fail(&g->head.err, TL_ENOMEM, "no memory to rebuild a graph") : TL_OK;
    for (int i = 0; s == TL_OK && i < g->n_in; i++) /* unused inputs are inputs still */
        g->in[i] = tl_rebuild_map(dst, src, map, g->in[i]);
    if (s == TL_OK && tl_rebuild(dst, src, map, hook, ctx) != TL_OK)
        s = tl_fail(&g->head.err, dst->head.err.status, "%s", dst->head.err.message);
    for (int i = 0; s == TL_OK && i < g->n_out; i++)
        g->out[i] = tl_rebuild_map(dst, src, map, g->out[i]);
    for (int i = 0; s == TL_OK && i < g->tracing->n_watch; i++)
        g->tracing->watch[i].x = tl_rebuild_map(dst, src, map, g->tracing->watch[i].x);
    tl_tape *gone = s == TL_OK ? src : dst;
    if (s == TL_OK)
        g->t = dst;
    tl_free(gone);
    return s;
}
