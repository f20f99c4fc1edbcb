/* again.c: recorded nodes run again, on the same tape or another.
 *
 * A map, by index of src's values, holds the handles on dst. src keeps the map, blank, from run to
 * run: each run blanks the entries it has set, so that many runs of a few nodes each take no longer
 * on a large tape. */
#include "autograd/batch/internal.h"

void tl_again_apply(tl_tape *dst, const tl_node *n, const tl_tensor *in, unsigned mode,
                    tl_tensor *out)
{
    tl_scope outer = tl_scope_of(dst, n, mode);
    tl_apply((tl_at){dst, n->file, n->line, NULL}, n->op, n->attrs, in, n->n_in, out);
    tl_scope_end(dst, outer);
}

void tl_again_fixed(tl_tape *dst, const tl_tensor *in, const tl_tensor *out, const tl_node *n)
{
    const bool fixed = tl_all_fixed(dst, in, n->n_in);
    for (int k = 0; k < n->n_out && fixed; k++)
        if (!tl_is_none(out[k]))
            tl_peek(dst, out[k])->fixed |= n->made[k]->fixed;
}

tl_tensor tl_again_value(tl_again *r, tl_tensor x)
{
    if (tl_is_none(x))
        return x;
    if (x.owner != r->src->values.owner)
        return r->leaf(r->ctx, x);
    tl_tensor *m = &r->map[x.index];
    const tl_value *v = tl_values_at(&r->src->values, x.index);
    if (!tl_is_none(*m) || v->node >= 0)
        return *m;
    if (tl_is_none(v->source))
        return *m = r->leaf(r->ctx, x);
    *m = tl_detach_at(tl_nowhere(r->dst), tl_again_value(r, v->source));
    if (!tl_is_none(*m) && v->needs_grad) {
        tl_value *made = tl_peek(r->dst, *m);
        made->needs_grad = true;
        tl_batch_unfix(r->dst, made);
    }
    return *m;
}

const tl_tensor *tl_again_inputs(tl_again *r, const tl_node *n)
{
    tl_tensor *in = tl_tape_room(r->dst, (size_t)n->n_in, sizeof *in);
    for (int k = 0; in != NULL && k < n->n_in; k++)
        in[k] = tl_again_value(r, n->in[k]);
    return in;
}

static void rerun_node(tl_again *r, const tl_node *n)
{
    tl_tensor out[TL_OUTS] = {TL_NONE};
    const tl_tensor *in = tl_again_inputs(r, n); /* NULL: dst has failed, and nothing is applied */
    tl_again_apply(r->dst, n, in,
                   r->dst->now.mode | (n->mode & ~(unsigned)(TL_TRACE | TL_STRICT)) | TL_APART,
                   out);
    if (!tl_failed(r->dst))
        tl_again_fixed(r->dst, in, out, n);
    for (int i = 0; i < n->n_out; i++)
        r->map[n->out + (uint32_t)i] = out[i];
    if (r->made != NULL)
        r->made(r->ctx, n, out);
}

/* Blanks the entries of x and of what it was detached from. */
static void forget(tl_again *r, tl_tensor x)
{
    while (x.owner == r->src->values.owner) {
        r->map[x.index] = TL_NONE;
        x = tl_values_at(&r->src->values, x.index)->source;
    }
}

/* Takes src's map: blank, with room for all of src's values. NULL: no memory. */
static tl_tensor *take_map(tl_tape *src, uint32_t *n)
{
    const uint32_t values = atomic_load(&src->values.count);
    tl_tensor *map = src->again;
    *n = src->n_again;
    src->again = NULL; /* so that a run inside this one does not take it */
    src->n_again = 0;
    if (*n >= values && map != NULL)
        return map;
    tl_free_raw(map);
    *n = 2 * values;
    return tl_calloc((size_t)*n + 1, sizeof *map);
}

/* Fails if a leaf whose elements node i read has changed since. */
static tl_status check_leaves(tl_tape *dst, tl_tape *src, uint32_t i)
{
    const tl_node *n = &src->node[i];
    for (int k = 0; k < n->n_in && !(n->op->traits & TL_VIEW); k++)
        if (n->in[k].owner == src->values.owner &&
            tl_maker_at(src, tl_behind(src, n->in[k], TL_VIEW, 0)) < 0)
            TL_TRY(tl_input_unchanged(src, i, k, dst, "", "the call cannot be run again"));
    return TL_OK;
}

tl_tensor tl_rerun(tl_tape *dst, tl_tape *src, tl_tensor y, tl_leaf_map *leaf, tl_made *made,
                   void *ctx)
{
    uint32_t *order, n, n_map;
    tl_again r = {.dst = dst, .src = src, .leaf = leaf, .made = made, .ctx = ctx};
    r.map = take_map(src, &n_map);
    if (r.map == NULL || tl_canonical_order(src, y, TL_TO_ALL, &order, &n) != TL_OK) {
        tl_fail(&dst->head.err, TL_ENOMEM, "no memory to re-run a tape of %u nodes", src->n_nodes);
        if (src == dst->lasting) /* nobody reads its errors */
            tl_err_clear(&src->head.err);
        tl_free_raw(r.map);
        return TL_NONE;
    }
    for (uint32_t i = 0; i < n && check_leaves(dst, src, order[i]) == TL_OK && !tl_failed(dst); i++)
        rerun_node(&r, &src->node[order[i]]);
    const tl_tensor again = tl_failed(dst) ? TL_NONE : tl_again_value(&r, y);
    forget(&r, y);
    for (uint32_t i = 0; i < n; i++) {
        const tl_node *node = &src->node[order[i]];
        for (int k = 0; k < node->n_in; k++)
            forget(&r, node->in[k]);
        for (int k = 0; k < node->n_out; k++)
            forget(&r, tl_node_out(src, node, k));
    }
    tl_free_raw(src->again); /* of a run inside this one */
    src->again = r.map;
    src->n_again = n_map;
    return again;
}
