/* splice.c: what the order of a graph has to keep, and matches put into it on trial. */
#include <string.h>

#include "autograd/replace/internal.h"

typedef tl_dep dep;

typedef struct {
    tl_pass *p;
    uint32_t n_values;
    int32_t *writer;      /* by memory: the last node that changed it */
    dep **reader;         /* by memory: nodes that read it since */
    uint32_t *acc, n_acc; /* leaves of accumulators: equal ones are one memory */
} hazards;

static tl_status push(tl_pass *p, dep **list, uint32_t node)
{
    dep *d = tl_bump_get(&p->bump, sizeof *d);
    if (d == NULL)
        return tl_fail(&p->g->head.err, TL_ENOMEM, "no memory to order a graph");
    *d = (dep){node, *list};
    *list = d;
    return TL_OK;
}

static uint32_t memory_of(hazards *h, tl_tensor x)
{
    const tl_tape *t = h->p->t;
    x = tl_bottom(t, x);
    if (x.owner != t->values.owner)
        return h->n_values + x.index;
    const tl_leaf l = tl_leaf_of(t, x.index);
    if (l.kind != TL_LEAF_ACC)
        return x.index;
    for (uint32_t i = 0; i < h->n_acc; i++) {
        const tl_leaf a = tl_leaf_of(t, h->acc[i]);
        if (a.at == l.at && a.use == l.use)
            return h->acc[i];
    }
    h->acc[h->n_acc++] = x.index;
    return x.index;
}

static tl_status order_memory(hazards *h, uint32_t i, int k)
{
    tl_pass *p = h->p;
    const tl_node *n = &p->t->node[i];
    uint32_t m = memory_of(h, n->in[k]);
    if (h->writer[m] >= 0 && h->writer[m] != (int32_t)i)
        TL_TRY(push(p, &p->dep[i], (uint32_t)h->writer[m]));
    if (!tl_node_writes(n, k))
        return push(p, &h->reader[m], i);
    for (const dep *d = h->reader[m]; d != NULL; d = d->next)
        if (d->node != i)
            TL_TRY(push(p, &p->dep[i], d->node));
    h->reader[m] = NULL;
    h->writer[m] = (int32_t)i;
    return TL_OK;
}

tl_status tl_splice_prepare(tl_pass *p)
{
    tl_tape *t = p->t;
    uint32_t n_values = atomic_load(&t->values.count),
             n_model = t->model == NULL ? 0 : atomic_load(&t->model->values.count);
    hazards h = {.p = p, .n_values = n_values};
    int32_t barrier = -1;
    h.writer = tl_bump_get(&p->bump, (n_values + n_model + 1) * sizeof *h.writer);
    h.reader = tl_bump_get(&p->bump, (n_values + n_model + 1) * sizeof *h.reader);
    h.acc = tl_bump_get(&p->bump, (n_values + 1) * sizeof *h.acc);
    p->dep = tl_bump_get(&p->bump, (t->n_nodes + 1) * sizeof *p->dep);
    p->match = tl_bump_get(&p->bump, (t->n_nodes + 2) * sizeof *p->match);
    p->found = tl_bump_get(&p->bump, (t->n_nodes + 2) * sizeof *p->found);
    p->mark = tl_bump_get(&p->bump, (t->n_nodes + 1) * sizeof *p->mark);
    if (h.writer == NULL || h.reader == NULL || h.acc == NULL || p->dep == NULL ||
        p->match == NULL || p->found == NULL || p->mark == NULL)
        return tl_fail(&p->g->head.err, TL_ENOMEM, "no memory to order a graph of %u nodes",
                       t->n_nodes);
    memset(h.writer, -1, (n_values + n_model + 1) * sizeof *h.writer);
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const tl_node *n = &t->node[i];
        for (int k = 0; k < n->n_in; k++)
            if (!tl_is_none(n->in[k]))
                TL_TRY(order_memory(&h, i, k));
        if (n->op == &tl_op_mark_backward)
            p->mark[p->n_marks++] = i;
        if (!tl_is_mark(n) && !tl_node_mutates(n))
            continue;
        if (barrier >= 0) /* what is changed and marked keeps its order */
            TL_TRY(push(p, &p->dep[i], (uint32_t)barrier));
        barrier = (int32_t)i;
    }
    p->uses = tl_splice_tables(p, &p->use_bump[0]);
    return p->uses != NULL ? TL_OK
                           : tl_fail(&p->g->head.err, TL_ENOMEM,
                                     "no memory for the uses of a graph of %u nodes", t->n_nodes);
}

/* ---- matches on trial ---- */

void tl_splice_try(tl_pass *p, tl_match **m, int n)
{
    for (int i = 0; i < n; i++) {
        const tl_match *last = p->n_match + i == 0 ? NULL : p->match[p->n_match + i - 1];
        m[i]->first = last == NULL ? 0 : last->first + (uint32_t)last->with->n_nodes;
        p->match[p->n_match + i] = m[i];
        for (int k = 0; k < m[i]->search->n_nodes; k++)
            p->owner[m[i]->node[k]] = p->n_match + i;
    }
    p->n_tried = p->n_match + n;
}

void tl_splice_drop(tl_pass *p)
{
    for (int i = p->n_match; i < p->n_tried; i++)
        for (int k = 0; k < p->match[i]->search->n_nodes; k++)
            p->owner[p->match[i]->node[k]] = -1;
    p->n_tried = p->n_match;
    p->uses_tried = NULL;
}

bool tl_splice_accept(tl_pass *p)
{
    if (p->uses_tried == NULL && p->n_marks > 0) {
        tl_bump_reset(&p->use_bump[1 - p->use_now]);
        p->uses_tried = tl_splice_tables(p, &p->use_bump[1 - p->use_now]);
        if (p->uses_tried == NULL)
            return false;
    }
    if (p->uses_tried != NULL) {
        p->uses = p->uses_tried;
        p->use_now = 1 - p->use_now;
    }
    p->uses_tried = NULL;
    p->n_match = p->n_tried;
    return true;
}
