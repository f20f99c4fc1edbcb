/* explain.c: tl_explain_invariance, which names the ops that make gradients depend on how a batch
 * is split, and why: kernels that promise no bits, ops that mix samples, and values of parameters
 * that changed between micro-batches. */
#include <stdio.h>

#include "autograd/batch.h"

typedef struct {
    char *buf;
    size_t cap, at; /* at may be beyond cap: the rest of the text is cut */
    int lines;
} report;

static void line(report *r, const char *fmt, ...) TL_PRINTF(2, 3);
static void line(report *r, const char *fmt, ...)
{
    const size_t left = r->at < r->cap ? r->cap - r->at : 0;
    va_list ap;
    va_start(ap, fmt);
    int w = vsnprintf(left > 0 ? r->buf + r->at : NULL, left, fmt, ap);
    va_end(ap);
    r->at += w > 0 ? (size_t)w : 0;
    r->lines++;
}

/* Reports a node that a kernel without promised bits computed. */
static void explain_kernel(report *r, const tl_node *n)
{
    if (n->kernel != NULL && n->kernel->mode & TL_FAST)
        line(r,
             "%s ran kernel '%.60s' (%s:%d), which promises no bits: nothing computed from it, "
             "forward or backward, is invariant.\n",
             n->op->name, n->kernel->name, n->file, n->line);
}

/* Whether kernel k of selection c, which was in force at node i, has been reported: because a node
 * ran it, or because an earlier node has the same selection. */
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

/* Reports kernels without promised bits that were selected around node i but did not run: backward
 * may call them. */
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

/* Reports a node that mixes samples, with the reason. */
static void explain_batch(report *r, tl_tape *t, const tl_node *n)
{
    char why[TL_MESSAGE_MAX];
    if (tl_batch_blames(t, n, why))
        line(r, "%s (%s:%d) %s.\n", n->op->name, n->file, n->line, why);
}

/* Reports values made of parameters alone that had other values in earlier micro-batches. */
static void explain_derived(report *r, tl_tape *t, const uint32_t *order, uint32_t n)
{
    char why[TL_MESSAGE_MAX];
    if (t->lasting == NULL || t->recorder != NULL)
        return;
    for (int i = t->first_grad; i < t->n_grads; i++)
        t->grad[i].reached = false;
    for (uint32_t i = 0; i < n; i++)
        for (int k = 0; k < t->node[order[i]].n_in; k++) {
            const tl_node *node = &t->node[order[i]];
            const tl_tensor x = tl_accumulates(t, node, k);
            const tl_value *v = tl_peek(t, x); /* NULL, too, if it has been removed */
            const tl_tensor leaf = v == NULL || v->node < 0 ? TL_NONE : tl_derived_leaf(t, x);
            tl_leaf_grad *g = tl_is_none(leaf) ? NULL : tl_leaf_grad_get(t, leaf);
            if (g != NULL)
                g->reached = true;
        }
    for (int i = t->first_grad; i < t->n_grads; i++)
        if (tl_derived_strays(t, i, t->calls, why))
            line(r, "%s.\n", why);
}

int tl_explain_invariance(tl_tape *t, tl_tensor y, char *buf, size_t cap)
{
    uint32_t *all, *order, n_all, n;
    report r = {buf, cap, 0, 0};
    if (TL_NEED_N_AT(tl_nowhere(t), buf, cap > 0) != TL_OK)
        return -1;
    if (cap > 0)
        buf[0] = '\0';
    if (tl_failed(t) || tl_deref(tl_nowhere(t), y, "tl_explain_invariance") == NULL ||
        tl_canonical_order(t, y, TL_TO_ALL, &all, &n_all) != TL_OK ||
        tl_canonical_order(t, y, TL_TO_GRAD, &order, &n) != TL_OK)
        return -1;
    for (uint32_t i = 0; i < n_all; i++) {
        explain_kernel(&r, &t->node[all[i]]);
        explain_choices(&r, t, all, n_all, i);
        const tl_node *node = &t->node[all[i]];
        if (node->op->traits & TL_RANDOM && !node->needs_grad &&
            tl_values_at(&t->values, node->out)->batch >= 0)
            explain_batch(&r, t, node);
    }
    for (uint32_t i = 0; i < n; i++)
        explain_batch(&r, t, &t->node[order[i]]);
    explain_derived(&r, t, order, n);
    return tl_failed(t) ? -1 : r.lines;
}
