/* kinds.c: which uses of a leaf share an accumulator, and which of these are one fold. */
#include <stdio.h>
#include <string.h>

#include "autograd/batch.h"

const char *tl_use_kind(const tl_tape *t, const tl_node *n, int k, char buf[TL_ATTRS_TEXT])
{
    size_t at = 3;
    if (tl_op_folds(n->op, k) && !tl_op_folds_f64(n->op, n->attrs, k))
        at = (size_t)snprintf(buf, TL_ATTRS_TEXT, "%.100s:%d", n->op->name, k);
    else
        memcpy(buf, "sum", at + 1);
    for (const tl_node *v = n;
         (v = tl_view_at(t, v->in[v == n ? k : 0])) != NULL && at + 32 < TL_ATTRS_TEXT;)
        at += (size_t)snprintf(buf + at, TL_ATTRS_TEXT - at, "+%.30s", v->op->name);
    return buf;
}

bool tl_same_view(const tl_tape *t, tl_tensor x, tl_tensor y)
{
    for (;;) {
        const tl_node *a = tl_view_at(t, x), *b = tl_view_at(t, y);
        if (a == NULL || b == NULL)
            return a == b;
        if (a->op != b->op || !tl_attrs_agree(a->op, a->attrs, b->attrs, 0, NULL))
            return false;
        x = a->in[0];
        y = b->in[0];
    }
}

/* Two views of a leaf show an element in common, as far as is known. (A derived value may have been
 * computed twice.) */
static bool meet(const tl_tape *t, tl_tensor x, tl_tensor y)
{
    const tl_value *a = tl_peek(t, x), *b = tl_peek(t, y);
    return a->st == NULL || a->st != b->st || tl_arrays_overlap(&a->a, &b->a);
}

/* The fold that takes input k of n. *again: it meets one that was thought apart. */
static tl_fold *fold_of(tl_tape *t, int leaf, const tl_node *n, int k, bool *again)
{
    tl_leaf_grad *g = &t->grad[leaf];
    char kind[TL_ATTRS_TEXT];
    /* to a leaf of the tape, which a reset ends, another backward is another micro-batch */
    int call = g->leaf.owner == t->values.owner ? 0 : t->calls;
    int i = tl_acc_get(g, call, tl_use_kind(t, n, k, kind));
    tl_accumulator *u = i < 0 ? NULL : &g->acc[i];
    if (u == NULL)
        return NULL;
    for (tl_fold *f = u->folds; f != NULL; f = f->next)
        if (u->meets || tl_same_view(t, f->x, n->in[k]))
            return f;
    for (const tl_fold *f = u->folds; f != NULL && !u->meets; f = f->next)
        *again |= u->meets = meet(t, f->x, n->in[k]);
    tl_fold *f = tl_bump_get(&t->bump, sizeof *f);
    if (f != NULL)
        *f = (tl_fold){.leaf = leaf, .acc = i, .x = n->in[k], .next = u->folds};
    return f == NULL ? NULL : (u->folds = f);
}

/* Leaves' uses are dealt out to folds; once more with those that meet as one. */
tl_status tl_fold_deal(tl_walk *w)
{
    tl_tape *t = w->t;
    bool again = true;
    for (int i = t->first_grad; i < t->n_grads; i++)
        for (int k = 0; k < t->grad[i].n_accs; k++)
            t->grad[i].acc[k].meets = false;
    while (again) {
        again = false;
        for (int i = t->first_grad; i < t->n_grads; i++)
            for (int k = 0; k < t->grad[i].n_accs; k++)
                t->grad[i].acc[k].folds = NULL;
        for (uint32_t i = 0; i < w->n; i++) {
            const tl_node *n = &t->node[w->order[i]];
            for (int k = 0; k < n->n_in; k++) {
                tl_edge *e = &w->edge[i][k];
                if (e->leaf == 0)
                    continue;
                e->fold = fold_of(t, e->leaf - 1, n, k, &again);
                if (e->fold == NULL)
                    return tl_tape_fail(w->at, TL_ENOMEM, "tl_backward: no memory for a use");
                e->use = e->fold->n++;
            }
        }
    }
    return TL_OK;
}
