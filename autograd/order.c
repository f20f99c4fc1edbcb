/* order.c: canonical order and the re-run of recorded nodes.
 *
 * C leaves the order of argument evaluation open, so the order of recording
 * differs between compilers. The post-order from the outputs, inputs left to
 * right, does not: everything that could show in a bit follows it.
 *
 * The canonical order knows what a node reads, not who still reads what it overwrites.
 * It need not: a tape's values are what their memory held when they were made (reading
 * one whose memory has changed is an error), so a re-run gives every op that works in
 * place a copy of its operand and computes the same values in any order. */
#include "autograd/internal.h"

/* The node that made x on this tape, or -1 for leaves and other owners. What a vjp has
 * detached depends on its source all the same: a re-run must follow it. */
static int32_t producer(const tl_tape *t, tl_tensor x, bool through_detached)
{
    for (;;) {
        if (x.owner != t->values.owner || x.generation != t->generation)
            return -1;
        const tl_value *v = tl_values_at(&t->values, x.index);
        if (v->node >= 0 || !through_detached || tl_is_none(v->source))
            return v->node;
        x = v->source;
    }
}

/* Depth-first, the way back written in the nodes: deep graphs must not exhaust the C stack, and
 * what was recorded before, and is not reached, costs nothing. */
tl_status tl_canonical_order(tl_tape *t, tl_tensor y, bool only_grad, uint32_t **order, uint32_t *n)
{
    const uint32_t visit = ++t->visits;
    int32_t at = -1, last = -1, to = producer(t, y, !only_grad);
    *n = 0;
    for (;;) {
        if (to >= 0 && t->node[to].visit != visit && (!only_grad || t->node[to].needs_grad)) {
            t->node[to].visit = visit;
            t->node[to].link = at;
            t->node[to].next = 0;
            at = to;
        }
        while (at >= 0 && t->node[at].next == t->node[at].n_in) {
            int32_t up = t->node[at].link;
            t->node[at].link = last;
            last = at;
            at = up;
            (*n)++;
        }
        if (at < 0)
            break;
        to = producer(t, t->node[at].in[t->node[at].next++], !only_grad);
    }
    *order = tl_bump_get(&t->bump, ((size_t)*n + 1) * sizeof **order);
    if (*order == NULL)
        return tl_fail(&t->head.err, TL_ENOMEM, "no memory to order %u nodes", *n);
    for (uint32_t i = *n; i-- > 0; last = t->node[last].link)
        (*order)[i] = (uint32_t)last;
    return TL_OK;
}

typedef struct {
    tl_tape *dst, *src;
    tl_leaf_map *leaf;
    void *ctx;
    tl_tensor *map; /* src value index -> handle on dst */
} rerunner;

static tl_tensor mapped(rerunner *r, tl_tensor x)
{
    if (tl_is_none(x))
        return x;
    if (x.owner != r->src->values.owner)
        return r->leaf(r->ctx, x);
    tl_tensor *m = &r->map[x.index];
    if (!tl_is_none(*m))
        return *m;
    tl_tensor source = tl_values_at(&r->src->values, x.index)->source;
    if (!tl_is_none(source))
        *m = tl_detach(r->dst, mapped(r, source));
    else if (producer(r->src, x, false) < 0)
        *m = r->leaf(r->ctx, x);
    return *m;
}

static void rerun_node(rerunner *r, const tl_node *n)
{
    tl_tensor out[8] = {TL_NONE},
              *in = tl_bump_get(&r->dst->bump, (size_t)(n->n_in + 1) * sizeof *in);
    if (in == NULL) {
        tl_fail(&r->dst->head.err, TL_ENOMEM, "no memory to re-run %s", n->op->name);
        return;
    }
    for (int i = 0; i < n->n_in; i++)
        in[i] = mapped(r, n->in[i]);
    int depth = tl_mode_open(r->dst, (n->mode & ~(unsigned)TL_TRACE) | TL_APART);
    if (tl_choice_follow(r->dst, n->choice))
        tl_apply((tl_at){r->dst, n->file, n->line}, n->op, n->attrs, in, n->n_in, out);
    tl_mode_pop(r->dst, depth);
    for (int i = 0; i < n->n_out; i++)
        r->map[n->out + (uint32_t)i] = out[i];
}

tl_tensor tl_rerun(tl_tape *dst, tl_tape *src, tl_tensor y, tl_leaf_map *leaf, void *ctx)
{
    uint32_t *order, n;
    rerunner r = {.dst = dst, .src = src, .leaf = leaf, .ctx = ctx};
    r.map = tl_bump_get(&dst->bump, (atomic_load(&src->values.count) + 1) * sizeof *r.map);
    if (r.map == NULL || tl_canonical_order(src, y, false, &order, &n) != TL_OK) {
        tl_fail(&dst->head.err, TL_ENOMEM, "no memory to re-run a tape of %u nodes", src->n_nodes);
        return TL_NONE;
    }
    for (uint32_t i = 0; i < n && !tl_failed(dst); i++)
        rerun_node(&r, &src->node[order[i]]);
    return tl_failed(dst) ? TL_NONE : mapped(&r, y);
}
