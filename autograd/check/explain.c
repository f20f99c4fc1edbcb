/* explain.c: parameters whose gradient depends on how a batch is split, and why. */
#include <stdio.h>

#include "autograd/internal.h"

/* The parameter under x through injective views, or TL_NONE. */
static tl_tensor parameter_under(const tl_tape *t, tl_tensor x)
{
    const tl_value *v = tl_is_none(x) ? NULL : tl_peek(t, x);
    tl_tensor leaf = v == NULL || !v->needs_grad ? TL_NONE : tl_leaf_under(t, x);
    return leaf.owner == t->values.owner ? TL_NONE : leaf;
}

/* A use continues an accumulator if its op folds that input, or if the engine does
 * because the parameter was broadcast to the result's shape. */
static bool folds(const tl_tape *t, const tl_node *n, int k)
{
    if (k < 32 && n->op->folds & TL_BIT(k))
        return true;
    if (n->op->traits & TL_VIEW)
        return !(n->op->traits & TL_REPEATS) ||
               tl_array_count(&tl_values_at(&t->values, n->out)->a) >=
                   tl_array_count(&tl_peek(t, n->in[k])->a);
    const tl_array *y = &tl_values_at(&t->values, n->out)->a, *w = &tl_peek(t, n->in[k])->a;
    return n->op->traits & TL_POINTWISE && y->ndim > 0 &&
           (w->ndim < y->ndim || (w->dim[0] == 1 && y->dim[0] != 1));
}

/* One line of the text, cut at the end of the buffer. */
typedef struct {
    char *buf;
    size_t cap, at;
    int lines;
} report;

static void line(report *r, const char *fmt, ...) TL_PRINTF(2, 3);
static void line(report *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int w = vsnprintf(r->at < r->cap ? r->buf + r->at : NULL, r->at < r->cap ? r->cap - r->at : 0,
                      fmt, ap);
    va_end(ap);
    r->at += w > 0 ? (size_t)w : 0;
    r->lines++;
}

/* A node that a kernel with bits of its own computed. */
static void explain_kernel(report *r, const tl_node *n)
{
    if (n->kernel != NULL && n->kernel->mode & TL_FAST)
        line(r,
             "%s ran kernel '%.60s' (%s:%d), which promises no bits: nothing computed from it, "
             "forward or backward, is invariant.\n",
             n->op->name, n->kernel->name, n->file, n->line);
}

/* A kernel that node i's selections name, that no node before it names, and that ran nowhere:
 * backward may call it. */
static bool told(const tl_tape *t, const uint32_t *order, uint32_t n, uint32_t i,
                 const tl_choice *c, const tl_kernel *k)
{
    for (uint32_t at = 0; at < n; at++) {
        if (t->node[order[at]].kernel == k)
            return true;
        for (const tl_choice *b = t->node[order[at]].choice; at < i && b != NULL; b = b->outer)
            if (b == c)
                return true;
    }
    return false;
}

static void explain_choices(report *r, const tl_tape *t, const uint32_t *order, uint32_t n,
                            uint32_t i)
{
    const tl_node *node = &t->node[order[i]];
    for (const tl_choice *c = node->choice; c != NULL; c = c->outer) {
        const tl_kernel *k = c->op == NULL ? NULL : tl_kernel_find(c->op, c->dtype, c->name);
        if (k != NULL && k->mode & TL_FAST && !told(t, order, n, i, c, k))
            line(r,
                 "kernel '%.60s' is selected for %s around %s (%s:%d) and promises no bits: a "
                 "gradient that calls it is not invariant.\n",
                 k->name, c->op, node->op->name, node->file, node->line);
    }
}

static void explain_uses(report *r, const tl_tape *t, const tl_node *node)
{
    for (int k = 0; k < node->n_in; k++) {
        tl_tensor p = parameter_under(t, node->in[k]);
        if (tl_is_none(p) || (node->op->traits & TL_VIEW && !(node->op->traits & TL_REPEATS)) ||
            folds(t, node, k))
            continue;
        line(r,
             "'%s' goes through %s (%s:%d): its gradient adds finished sums, one a micro-batch, so "
             "its bits depend on the split. "
             "Compute the derived weight once per step and differentiate it once, or use the "
             "parameter directly.\n",
             tl_leaf_name(t, p), node->op->name, node->file, node->line);
    }
}

int tl_explain_invariance(tl_tape *t, tl_tensor y, char *buf, size_t cap)
{
    uint32_t *all, *order, n_all, n;
    report r = {buf, cap, 0, 0};
    if (TL_NEED_N_AT(TL_AT(t), buf, cap > 0) != TL_OK)
        return -1;
    if (cap > 0)
        buf[0] = '\0';
    if (tl_failed(t) || tl_deref(TL_AT(t), y, "tl_explain_invariance") == NULL ||
        tl_canonical_order(t, y, false, &all, &n_all) != TL_OK ||
        tl_canonical_order(t, y, true, &order, &n) != TL_OK)
        return -1;
    for (uint32_t i = 0; i < n_all; i++) {
        explain_kernel(&r, &t->node[all[i]]);
        explain_choices(&r, t, all, n_all, i);
    }
    for (uint32_t i = 0; i < n; i++)
        explain_uses(&r, t, &t->node[order[i]]);
    return r.lines;
}
