/* prints.c: micro-batches of a step that run different programs are noticed. Each tl_backward
 * leaves the print of its walk - a number for each node, of its op, dtype and what it reads, in
 * canonical order, sizes and what only sizes decide (views and copies) aside -, and the same call
 * of a later micro-batch must have the same. */
#include "autograd/batch.h"

static void drop(tl_prints *p)
{
    for (int i = 0; i < p->n; i++)
        tl_free_raw(p->print[i].node);
    p->n = 0;
}

void tl_prints_free(tl_prints *p)
{
    drop(p);
    tl_free_raw(p->print);
    *p = (tl_prints){0};
}

static bool put(tl_prints *p, tl_print x)
{
    if (p->n == p->cap) {
        const int cap = p->cap ? 2 * p->cap : 4;
        tl_print *grown = tl_realloc(p->print, (size_t)cap * sizeof *grown);
        if (grown == NULL)
            return false;
        p->print = grown;
        p->cap = cap;
    }
    p->print[p->n++] = x;
    return true;
}

/* Of node n; place: by node from w->first_node on, where it stands among the prints. */
static uint64_t print_of(const tl_walk *w, const tl_node *n, const uint32_t *place)
{
    const tl_tape *t = w->t;
    const tl_value *y = tl_values_at(&t->values, n->out);
    uint64_t h = tl_mix(tl_mix((uintptr_t)n->op, (uint64_t)y->a.dtype), (uint64_t)n->n_in);
    for (int k = 0; k < n->n_in; k++) {
        tl_tensor x = n->in[k];
        const tl_value *v = tl_is_none(x) ? NULL : tl_peek(t, x);
        while (v != NULL && v->node >= 0 && tl_passes_on(&t->node[v->node])) {
            x = t->node[v->node].in[0];
            v = tl_peek(t, x);
        }
        uint64_t from = v == NULL ? 1 : 2;
        const bool derived = v != NULL && v->needs_grad && v->fixed && v->node >= 0,
                   param = v != NULL && v->needs_grad && x.owner != t->values.owner;
        if (param)
            from = 3 + ((uint64_t)x.owner << 32 | x.index);
        else if (derived && !y->fixed)
            from = v->print;
        else if (v != NULL && v->node >= 0 && t->node[v->node].needs_grad &&
                 (uint32_t)v->node - w->first_node < w->n_nodes)
            from = ~((uint64_t)place[(uint32_t)v->node - w->first_node] << 8 | v->out);
        h = tl_mix(h, from);
    }
    return h;
}

/* What call number k of this micro-batch left is that of the ones before; remembered if it is the
 * first. order: the nodes of its numbers, or NULL. */
static tl_status meet(tl_at at, int k, const tl_print *x, const uint32_t *order)
{
    tl_tape *t = at.tape;
    tl_prints *p = &t->prints;
    uint32_t i = 0, n = k < p->n && p->print[k].n < x->n ? p->print[k].n : x->n;
    p->ragged |= x->ragged;
    if (k >= p->n) {
        if (p->n > 0 && p->print[0].generation != t->generation && !x->ragged)
            return tl_tape_fail(at, TL_EUSAGE,
                                "tl_backward: call %d of this micro-batch; those before it in this "
                                "step had %d (.ragged = true allows it)",
                                k + 1, p->n);
        tl_print own = {x->n, t->generation, x->ragged, tl_calloc(x->n + 1, sizeof *own.node)};
        if (own.node == NULL || !put(p, own)) {
            tl_free_raw(own.node);
            return tl_tape_fail(at, TL_ENOMEM, "tl_backward: no memory for the print of %u nodes",
                                x->n);
        }
        for (; i < x->n; i++)
            own.node[i] = x->node[i];
        return TL_OK;
    }
    while (i < n && p->print[k].node[i] == x->node[i])
        i++;
    if (x->ragged || (i == n && p->print[k].n == x->n))
        return TL_OK;
    const tl_node *node = order != NULL && i < x->n ? &t->node[order[i]] : NULL;
    return tl_tape_fail(
        at, TL_EUSAGE,
        "tl_backward: micro-batches of one step run different programs: node %u of "
        "%u, %s (%.90s:%d), where one before had %u nodes; .ragged = true allows it",
        i, x->n, node == NULL ? "in a graph or at the end" : node->op->name,
        node == NULL || node->file == NULL ? "?" : node->file, node == NULL ? 0 : node->line,
        p->print[k].n);
}

/* A micro-batch of so many calls is over; it had as many as those before. */
static tl_status over(const tl_tape *t, int calls, tl_err *e)
{
    if (calls == 0 || calls >= t->prints.n || t->prints.ragged)
        return TL_OK;
    return tl_fail(
        e, TL_EUSAGE,
        "this micro-batch had %d tl_backward, those before it in this step %d (.ragged = "
        "true allows it)",
        calls, t->prints.n);
}

void tl_prints_end(tl_tape *t)
{
    if (t->recorder == NULL && t->head.err.status == TL_OK)
        over(t, t->calls, &t->head.err);
    t->prints.ragged = false;
}

tl_status tl_prints_check(tl_walk *w)
{
    tl_tape *t = w->t;
    if (!w->lasts) /* gradients of the tape's own leaves end with it */
        return TL_OK;
    uint32_t *place = tl_bump_get(&t->bump, ((size_t)w->n_nodes + 1) * sizeof *place);
    uint64_t *node = tl_bump_get(&t->bump, ((size_t)w->n + 1) * sizeof *node);
    uint32_t *order = tl_bump_get(&t->bump, ((size_t)w->n + 1) * sizeof *order), n = 0;
    if (place == NULL || node == NULL || order == NULL)
        return tl_tape_fail(w->at, TL_ENOMEM, "tl_backward: no memory for the print of %u nodes",
                            w->n);
    for (uint32_t i = 0; i < w->n; i++)
        if (!tl_passes_on(&t->node[w->order[i]])) {
            place[w->order[i] - w->first_node] = n;
            order[n] = w->order[i];
            node[n++] = print_of(w, &t->node[w->order[i]], place);
        }
    tl_print x = {n, t->generation, w->opt.ragged, node};
    if (t->recorder == NULL)
        return meet(w->at, t->calls, &x, order);
    x.node = tl_calloc((size_t)n + 1, sizeof *node); /* the trace's: met at each run */
    for (uint32_t i = 0; x.node != NULL && i < n; i++)
        x.node[i] = node[i];
    if (x.node != NULL && put(&t->prints, x))
        return TL_OK;
    tl_free_raw(x.node);
    return tl_tape_fail(w->at, TL_ENOMEM, "tl_backward: no memory for a print");
}

/* What a trace notes besides calls, without nodes. */
enum { CLEARED, STEPPED };

tl_status tl_prints_step(tl_at at)
{
    tl_tape *t = at.tape;
    tl_err e = {.status = TL_OK};
    if (t->recorder == NULL)
        return over(t, t->calls, &e) == TL_OK ? TL_OK : tl_tape_fail(at, e.status, "%s", e.message);
    return put(&t->prints, (tl_print){.n = STEPPED})
               ? TL_OK
               : tl_tape_fail(at, TL_ENOMEM, "no memory to note an optimizer's step");
}

void tl_prints_clear(tl_tape *t)
{
    if (t->recorder == NULL)
        drop(&t->prints);
    else if (!put(&t->prints, (tl_print){.n = CLEARED}))
        tl_fail(&t->head.err, TL_ENOMEM, "tl_grad_clear: no memory to note it");
}

tl_status tl_prints_run(tl_at at, const tl_prints *p)
{
    int calls = at.tape->calls;
    tl_err e = {.status = TL_OK};
    for (int i = 0; i < p->n; i++) {
        const tl_print *x = &p->print[i];
        if (x->node != NULL)
            TL_TRY(meet(at, calls++, x, NULL));
        else if (x->n == STEPPED && over(at.tape, calls, &e) != TL_OK)
            return tl_tape_fail(at, e.status, "%s", e.message);
        else if (x->n == CLEARED)
            drop(&at.tape->prints), calls = 0;
    }
    return TL_OK;
}
