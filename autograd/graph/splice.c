/* splice.c: the order of a graph in which some matches have given way.
 *
 * A unit is a node, or all of a match at once. It comes after what makes its inputs and on
 * the same side of every change of memory that it reads, as recorded. If there is no such
 * order - the match's outputs lead back to its inputs, or a memory changes between two
 * of its nodes - it cannot be put in one place. */
#include <string.h>

#include "autograd/graph/pattern_internal.h"

typedef struct tl_dep {
    uint32_t node;
    bool data;          /* makes an input; else a matter of memory */
    struct tl_dep *next;
} dep;

typedef struct {
    uint32_t unit;
    int member;         /* of a match */
    const dep *d;
} frame;

int32_t tl_splice_maker(const tl_tape *t, tl_tensor x)
{
    while (!tl_is_none(x) && x.owner == t->values.owner) {
        const tl_value *v = tl_values_at(&t->values, x.index);
        if (v->node >= 0)
            return v->node;
        x = v->source;
    }
    return -1;
}

tl_tensor tl_splice_base(const tl_tape *t, tl_tensor x)
{
    while (x.owner == t->values.owner) {
        const tl_value *v = tl_values_at(&t->values, x.index);
        const tl_node *n = v->node < 0 ? NULL : &t->node[v->node];
        if (n == NULL && tl_is_none(v->source))
            break;
        if (n == NULL)
            x = v->source;
        else if (v->out == 0 && n->op->traits & TL_VIEW)
            x = n->in[0];
        else if (v->out == 0 && tl_node_mutates(n))
            x = n->in[n->op->mutates];
        else
            break;
    }
    return x;
}

/* ---- what comes before what ---- */

typedef struct {
    tl_pass *p;
    uint32_t n_values;
    int32_t *writer;       /* by memory: the last node that changed it */
    dep **reader;          /* by memory: nodes that read it since */
    uint32_t *acc, n_acc;  /* leaves of accumulators: equal ones are one memory */
} hazards;

static tl_status push(tl_pass *p, dep **list, uint32_t node, bool data)
{
    dep *d = tl_bump_get(&p->bump, sizeof *d);
    if (d == NULL)
        return tl_fail(&p->g->head.err, TL_ENOMEM, "no memory to order a graph");
    *d = (dep){node, data, *list};
    *list = d;
    return TL_OK;
}

static uint32_t memory_of(hazards *h, tl_tensor x)
{
    const tl_tape *t = h->p->t;
    x = tl_splice_base(t, x);
    if (x.owner != t->values.owner)
        return h->n_values + x.index;
    const tl_value *v = tl_values_at(&t->values, x.index);
    if (v->leaf != TL_LEAF_ACC)
        return x.index;
    for (uint32_t i = 0; i < h->n_acc; i++) {
        const tl_value *a = tl_values_at(&t->values, h->acc[i]);
        if (a->leaf_at == v->leaf_at && a->leaf_use == v->leaf_use)
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
        TL_TRY(push(p, &p->dep[i], (uint32_t)h->writer[m], false));
    if (!tl_node_writes(p->g, n, k))
        return push(p, &h->reader[m], i, false);
    for (const dep *d = h->reader[m]; d != NULL; d = d->next)
        if (d->node != i)
            TL_TRY(push(p, &p->dep[i], d->node, false));
    h->reader[m] = NULL;
    h->writer[m] = (int32_t)i;
    return TL_OK;
}

static bool is_mark(const tl_node *n) { return n->op == &tl_op_mark_backward || n->op == &tl_op_mark_grad || n->op == &tl_op_mark_clear; }

tl_status tl_splice_prepare(tl_pass *p)
{
    tl_tape *t = p->t;
    uint32_t n_values = atomic_load(&t->values.count), n_model = t->model == NULL ? 0 : atomic_load(&t->model->values.count);
    hazards h = {.p = p, .n_values = n_values};
    int32_t barrier = -1;
    h.writer = tl_bump_get(&p->bump, (n_values + n_model + 1) * sizeof *h.writer);
    h.reader = tl_bump_get(&p->bump, (n_values + n_model + 1) * sizeof *h.reader);
    h.acc = tl_bump_get(&p->bump, (n_values + 1) * sizeof *h.acc);
    p->dep = tl_bump_get(&p->bump, (t->n_nodes + 1) * sizeof *p->dep);
    p->match = tl_bump_get(&p->bump, (t->n_nodes + 2) * sizeof *p->match);
    p->order = tl_bump_get(&p->bump, (t->n_nodes + 2) * sizeof *p->order);
    p->colour = tl_bump_get(&p->bump, 2 * (size_t)t->n_nodes + 2);
    p->stack = tl_bump_get(&p->bump, (t->n_nodes + 2) * sizeof(frame));
    p->mark = tl_bump_get(&p->bump, (t->n_nodes + 1) * sizeof *p->mark);
    if (h.writer == NULL || h.reader == NULL || h.acc == NULL || p->dep == NULL || p->match == NULL || p->order == NULL || p->colour == NULL || p->stack == NULL || p->mark == NULL)
        return tl_fail(&p->g->head.err, TL_ENOMEM, "no memory to order a graph of %u nodes", t->n_nodes);
    memset(h.writer, -1, (n_values + n_model + 1) * sizeof *h.writer);
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const tl_node *n = &t->node[i];
        for (int k = 0; k < n->n_in; k++) {
            int32_t from = tl_splice_maker(t, n->in[k]);
            if (from >= 0)
                TL_TRY(push(p, &p->dep[i], (uint32_t)from, true));
            if (!tl_is_none(n->in[k]))
                TL_TRY(order_memory(&h, i, k));
        }
        if (n->op == &tl_op_mark_backward)
            p->mark[p->n_marks++] = i;
        if (!is_mark(n) && !tl_node_mutates(n))
            continue;
        if (barrier >= 0) /* what is changed and marked keeps its order */
            TL_TRY(push(p, &p->dep[i], (uint32_t)barrier, false));
        barrier = (int32_t)i;
    }
    p->uses = tl_splice_tables(p, &p->use_bump[0]);
    return p->uses != NULL ? TL_OK : tl_fail(&p->g->head.err, TL_ENOMEM, "no memory for the uses of a graph of %u nodes", t->n_nodes);
}

/* ---- the order ---- */

static uint32_t unit_of(const tl_pass *p, uint32_t node)
{
    return p->owner[node] < 0 ? node : p->t->n_nodes + (uint32_t)p->owner[node];
}

static frame enter(const tl_pass *p, uint32_t unit)
{
    uint32_t n = p->t->n_nodes;
    return (frame){unit, 0, p->dep[unit < n ? unit : (uint32_t)p->match[unit - n]->node[0]]};
}

/* The next unit that f's must follow; false when there is none. */
static bool next_dep(const tl_pass *p, frame *f, bool data_only, uint32_t *unit)
{
    uint32_t n = p->t->n_nodes;
    for (;;) {
        for (; f->d != NULL; f->d = f->d->next) {
            *unit = unit_of(p, f->d->node);
            if (*unit != f->unit && (f->d->data || !data_only)) {
                f->d = f->d->next;
                return true;
            }
        }
        if (f->unit < n || ++f->member >= p->match[f->unit - n]->search->n_nodes)
            return false;
        f->d = p->dep[p->match[f->unit - n]->node[f->member]];
    }
}

/* Post-order; on a cycle the node on it that changes memory, or NULL, and false. */
static bool visit(tl_pass *p, uint32_t from, bool data_only, const tl_node **changer)
{
    frame *stack = p->stack;
    uint32_t depth = 0, unit;
    if (p->colour[from])
        return true;
    stack[depth++] = enter(p, from);
    p->colour[from] = 1;
    while (depth > 0) {
        if (!next_dep(p, &stack[depth - 1], data_only, &unit)) {
            p->colour[stack[--depth].unit] = 2;
            p->order[p->n_order++] = stack[depth].unit;
        } else if (p->colour[unit] == 0) {
            p->colour[unit] = 1;
            stack[depth++] = enter(p, unit);
        } else if (p->colour[unit] == 1) {
            while (depth-- > 0 && stack[depth].unit != unit)
                if (stack[depth].unit < p->t->n_nodes && tl_node_mutates(&p->t->node[stack[depth].unit]))
                    *changer = &p->t->node[stack[depth].unit];
            return false;
        }
    }
    return true;
}

static bool sort(tl_pass *p, bool data_only, const tl_node **changer)
{
    uint32_t n = p->t->n_nodes;
    memset(p->colour, 0, n + (size_t)p->n_tried + 1);
    p->n_order = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t unit = unit_of(p, i);
        if ((unit == i || i == p->match[unit - n]->last) && !visit(p, unit, data_only, changer))
            return false;
    }
    return true;
}

bool tl_splice_order(tl_pass *p)
{
    const tl_node *changer = NULL, *none = NULL;
    if (sort(p, false, &changer))
        return true;
    if (!sort(p, true, &none))
        return tl_refuse(p, "its outputs lead back to its inputs: it cannot stand in one place");
    if (changer == NULL)
        return tl_refuse(p, "a memory it reads is changed in place in between");
    return tl_refuse(p, "%s at %s:%d changes a memory in place between what it reads", changer->op->name, changer->file, changer->line);
}

/* ---- the match tried ---- */

void tl_splice_try(tl_pass *p, const tl_match *m)
{
    tl_match *copy = p->match[p->n_match];
    if (copy == NULL)
        copy = p->match[p->n_match] = tl_bump_get(&p->bump, sizeof *copy);
    if (copy == NULL) {
        tl_fail(&p->g->head.err, TL_ENOMEM, "no memory for a match");
        return;
    }
    *copy = *m;
    copy->first = p->n_match == 0 ? 0 : p->match[p->n_match - 1]->first + (uint32_t)p->match[p->n_match - 1]->with->n_nodes;
    for (int k = 0; k < m->search->n_nodes; k++)
        p->owner[m->node[k]] = p->n_match;
    p->n_tried = p->n_match + 1;
}

void tl_splice_drop(tl_pass *p)
{
    for (int k = 0; p->n_tried > p->n_match && k < p->match[p->n_match]->search->n_nodes; k++)
        p->owner[p->match[p->n_match]->node[k]] = -1;
    p->n_tried = p->n_match;
    p->uses_tried = NULL;
}

void tl_splice_accept(tl_pass *p)
{
    if (p->uses_tried != NULL) {
        p->uses = p->uses_tried;
        p->use_now = 1 - p->use_now;
    }
    p->uses_tried = NULL;
    p->n_match = p->n_tried;
}
