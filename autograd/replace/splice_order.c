/* splice_order.c: the order of a graph in which some matches have given way.
 *
 * A node comes after what makes its inputs and on the same side of every change of memory as it
 * was recorded; the nodes that a match puts, on the same side as all those it replaces. If there is
 * no such order - a match's outputs lead back to its inputs, or a memory changes between two of its
 * nodes - the match cannot be replaced. */
#include <string.h>

#include "autograd/replace/internal.h"

typedef tl_dep dep;

typedef struct {
    uint32_t node;
    int input, member,
        put; /* the next to look at: input, node replaced, node that the match of d's puts */
    const dep *d;
} frame;

typedef struct {
    tl_pass *p;
    bool memory; /* with what memory asks for */
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
    return tl_refuse(p, "%s at %s:%d changes a memory in place between what it reads",
                     changer->op->name, changer->file, changer->line);
}
