/* explain.c: parameters whose gradient depends on how a batch is split, and why. */
#include <stdio.h>

#include "autograd/walk.h"

/* The parameter under x through injective views, or TL_NONE. */
static tl_tensor parameter_under(const tl_tape *t, tl_tensor x)
{
    for (;;) {
        const tl_value *v = tl_is_none(x) ? NULL : tl_peek(t, x);
        if (v == NULL || !v->needs_grad)
            return TL_NONE;
        if (v->node < 0)
            return x.owner == t->values.owner ? TL_NONE : x;
        const tl_node *n = &t->node[v->node];
        if (!(n->op->traits & TL_VIEW) || n->op->traits & TL_REPEATS)
            return TL_NONE;
        x = n->in[0];
    }
}

/* A use continues an accumulator if its op folds that input, or if the engine does
 * because the parameter was broadcast to the result's shape. */
static bool folds(const tl_tape *t, const tl_node *n, int k)
{
    if (k < 32 && n->op->folds & TL_BIT(k))
        return true;
    if (n->op->traits & TL_VIEW)
        return !(n->op->traits & TL_REPEATS) || tl_array_count(&tl_values_at(&t->values, n->out)->a) >= tl_array_count(&tl_peek(t, n->in[k])->a);
    const tl_array *y = &tl_values_at(&t->values, n->out)->a, *w = &tl_peek(t, n->in[k])->a;
    return n->op->traits & TL_POINTWISE && y->ndim > 0 && (w->ndim < y->ndim || (w->dim[0] == 1 && y->dim[0] != 1));
}

int tl_explain_invariance(tl_tape *t, tl_tensor y, char *buf, size_t cap)
{
    uint32_t *order, n;
    int found = 0;
    size_t at = 0;
    if (cap > 0)
        buf[0] = '\0';
    if (tl_failed(t) || tl_deref(TL_AT(t), y, "tl_explain_invariance") == NULL || tl_canonical_order(t, y, true, &order, &n) != TL_OK)
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        const tl_node *node = &t->node[order[i]];
        for (int k = 0; k < node->n_in; k++) {
            tl_tensor p = parameter_under(t, node->in[k]);
            if (tl_is_none(p) || (node->op->traits & TL_VIEW && !(node->op->traits & TL_REPEATS)) || folds(t, node, k))
                continue;
            found++;
            int w = snprintf(at < cap ? buf + at : NULL, at < cap ? cap - at : 0,
                             "'%s' goes through %s (%s:%d): its gradient adds finished sums, one a micro-batch, so its bits depend on the split. "
                             "Compute the derived weight once per step and differentiate it once, or use the parameter directly.\n",
                             tl_leaf_name(t, p), node->op->name, node->file, node->line);
            at += w > 0 ? (size_t)w : 0;
        }
    }
    return found;
}
