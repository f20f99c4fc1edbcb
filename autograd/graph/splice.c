/* splice.c: the order of a graph in which some matches have given way.
 *
 * A node comes after what makes its inputs and on the same side of every change of memory as it
 * was recorded; the nodes that a match puts, on the same side as all those it replaces. If there is
 * no such order - a match's outputs lead back to its inputs, or a memory changes between two of its
 * nodes - the match cannot be replaced. */
#include <string.h>

#include "autograd/graph/pattern_internal.h"

typedef struct tl_dep {
    uint32_t node;
    struct tl_dep *next;
} dep;

typedef struct {
    uint32_t node;
    int input, member, put; /* the next to look at: input, node replaced, node that the match of d's puts */
    const dep *d;
} frame;

/* ---- what comes before what ---- */

typedef struct {
    tl_pass *p;
    uint32_t n_values;
    int32_t *writer;       /* by memory: the last node that changed it */
    dep **reader;          /* by memory: nodes that read it since */
    uint32_t *acc, n_acc;  /* leaves of accumulators: equal ones are one memory */
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
        TL_TRY(push(p, &p->dep[i], (uint32_t)h->writer[m]));
    if (!tl_node_writes(p->t, n, k))
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
    uint32_t n_values = atomic_load(&t->values.count), n_model = t->model == NULL ? 0 : atomic_load(&t->model->values.count);
    hazards h = {.p = p, .n_values = n_values};
    int32_t barrier = -1;
    h.writer = tl_bump_get(&p->bump, (n_values + n_model + 1) * sizeof *h.writer);
    h.reader = tl_bump_get(&p->bump, (n_values + n_model + 1) * sizeof *h.reader);
    h.acc = tl_bump_get(&p->bump, (n_values + 1) * sizeof *h.acc);
    p->dep = tl_bump_get(&p->bump, (t->n_nodes + 1) * sizeof *p->dep);
    p->match = tl_bump_get(&p->bump, (t->n_nodes + 2) * sizeof *p->match);
    p->mark = tl_bump_get(&p->bump, (t->n_nodes + 1) * sizeof *p->mark);
    if (h.writer == NULL || h.reader == NULL || h.acc == NULL || p->dep == NULL || p->match == NULL || p->mark == NULL)
        return tl_fail(&p->g->head.err, TL_ENOMEM, "no memory to order a graph of %u nodes", t->n_nodes);
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
    return p->uses != NULL ? TL_OK : tl_fail(&p->g->head.err, TL_ENOMEM, "no memory for the uses of a graph of %u nodes", t->n_nodes);
}

/* ---- the order ---- */

typedef struct {
    tl_pass *p;
    bool memory;            /* with what memory asks for */
    frame *stack;
    unsigned char *colour;
    const tl_node *changer; /* on a cycle: the node that changes memory */
} sorter;

/* The node that makes input k, also behind detached leaves; -1: none. */
static int32_t maker(const tl_pass *p, uint32_t node, int k)
{
    tl_splice_ref x = tl_splice_input(p, node, k);
    while (x.node < 0 && !tl_is_none(x.x) && x.x.owner == p->t->values.owner)
        x = tl_splice_follow(p, tl_values_at(&p->t->values, x.x.index)->source);
    return x.node;
}

static const dep *first_deps(const tl_pass *p, uint32_t node)
{
    return p->dep[node < p->t->n_nodes ? node : (uint32_t)tl_splice_match(p, node)->node[0]];
}

/* The next node that f's must follow; false when there is none. */
static bool next_before(const sorter *s, frame *f, uint32_t *node)
{
    const tl_pass *p = s->p;
    while (f->input < tl_splice_inputs(p, f->node)) {
        int32_t from = maker(p, f->node, f->input++);
        *node = (uint32_t)from;
        if (from >= 0)
            return true;
    }
    const tl_match *own = f->node < p->t->n_nodes ? NULL : tl_splice_match(p, f->node);
    while (s->memory) {
        if (f->d == NULL) {
            if (own == NULL || ++f->member >= own->search->n_nodes)
                return false;
            f->d = p->dep[own->node[f->member]];
            continue;
        }
        *node = f->d->node;
        const tl_match *m = p->owner[*node] < 0 ? NULL : p->match[p->owner[*node]];
        if (m != NULL && m != own && f->put < m->with->n_nodes) {
            *node = p->t->n_nodes + m->first + (uint32_t)f->put++;
            return true;
        }
        f->d = f->d->next;
        f->put = 0;
        if (m == NULL)
            return true;
    }
    return false;
}

static void note_changer(sorter *s, uint32_t node)
{
    const tl_node *n = node < s->p->t->n_nodes ? &s->p->t->node[node] : NULL;
    if (n != NULL && tl_node_mutates(n))
        s->changer = n;
}

/* Post-order, with a stack of our own; false on a cycle. */
static bool visit(sorter *s, uint32_t node)
{
    tl_pass *p = s->p;
    uint32_t depth = 0;
    if (s->colour[node])
        return true;
    s->stack[depth++] = (frame){node, 0, 0, 0, first_deps(p, node)};
    s->colour[node] = 1;
    while (depth > 0) {
        if (!next_before(s, &s->stack[depth - 1], &node)) {
            s->colour[s->stack[--depth].node] = 2;
            p->order[p->n_order++] = s->stack[depth].node;
        } else if (s->colour[node] == 0) {
            s->colour[node] = 1;
            s->stack[depth++] = (frame){node, 0, 0, 0, first_deps(p, node)};
        } else if (s->colour[node] == 1) {
            do
                note_changer(s, s->stack[--depth].node);
            while (s->stack[depth].node != node);
            return false;
        }
    }
    return true;
}

static bool sort(sorter *s, bool memory)
{
    tl_pass *p = s->p;
    s->memory = memory;
    memset(s->colour, 0, tl_splice_count(p));
    p->n_order = 0;
    for (uint32_t i = 0; i < p->t->n_nodes; i++) {
        const tl_match *m = p->owner[i] < 0 ? NULL : p->match[p->owner[i]];
        if (m == NULL && !visit(s, i))
            return false;
        for (int k = 0; m != NULL && i == m->last && k < m->with->n_nodes; k++)
            if (!visit(s, p->t->n_nodes + m->first + (uint32_t)k))
                return false;
    }
    return true;
}

bool tl_splice_order(tl_pass *p)
{
    sorter s = {.p = p};
    uint32_t n = tl_splice_count(p);
    tl_bump *mem = &p->use_bump[1 - p->use_now];
    tl_bump_reset(mem);
    p->order = tl_bump_get(mem, (n + 1) * sizeof *p->order);
    s.stack = tl_bump_get(mem, (n + 1) * sizeof *s.stack);
    s.colour = tl_bump_get(mem, n + 1);
    if (p->order == NULL || s.stack == NULL || s.colour == NULL)
        return tl_fail(&p->why, TL_ENOMEM, "no memory to order a graph of %u nodes", n), false;
    if (sort(&s, true))
        return true;
    const tl_node *changer = s.changer;
    if (!sort(&s, false))
        return tl_refuse(p, "its outputs lead back to its inputs: it cannot stand in one place");
    if (changer == NULL)
        return tl_refuse(p, "a memory it reads is changed in place in between");
    return tl_refuse(p, "%s at %s:%d changes a memory in place between what it reads", changer->op->name, changer->file, changer->line);
}

/* ---- the match tried ---- */

bool tl_splice_try(tl_pass *p, const tl_match *m)
{
    tl_match *copy = p->match[p->n_match];
    if (copy == NULL)
        copy = p->match[p->n_match] = tl_bump_get(&p->bump, sizeof *copy);
    if (copy == NULL)
        return tl_fail(&p->why, TL_ENOMEM, "no memory for a match"), false;
    *copy = *m;
    copy->first = p->n_match == 0 ? 0 : p->match[p->n_match - 1]->first + (uint32_t)p->match[p->n_match - 1]->with->n_nodes;
    for (int k = 0; k < m->search->n_nodes; k++)
        p->owner[m->node[k]] = p->n_match;
    p->n_tried = p->n_match + 1;
    return true;
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
