/* splice_compare.c: the terms of every gradient, before and after a replacement.
 *
 * The cotangents of a value are added in the canonical order of its uses, and each use of
 * a leaf has an accumulator of its own (NUMERICS 10). A replacement that computes the same
 * bits by itself may still change that order: it may use a value once instead of twice, or
 * visit its inputs in another order. So the lists of uses are compared:
 *   - leaves: the same uses at the same numbers, with accumulators of one kind;
 *   - other values: the same terms in the same order. The first two may change places (an
 *     IEEE addition commutes), and terms that all come from the match, one after
 *     another from the first, count as one: the rule's own claim is about their sum;
 *   - outputs of the match that it reads itself, which the replacement keeps to itself: its term
 *     is added to the sum of the others, so it must have been the last (or one of two). */
#include "autograd/graph/pattern_internal.h"

typedef struct {
    uint32_t node;      /* UINT32_MAX: the match */
    int input;
} term;

typedef struct {
    term *t;
    int n, inside, outside;
    bool first;         /* those of the match come first, in one run */
} sum;

typedef struct {
    tl_pass *p;
    const tl_match *m;
    int index;          /* of m */
} comparison;

static bool before_inside(const comparison *c, uint32_t node)
{
    return node < c->p->t->n_nodes && c->p->owner[node] == c->index;
}

static bool after_inside(const comparison *c, uint32_t node) { return node >= c->p->t->n_nodes + c->m->first; }

static bool read_sum(const comparison *c, const tl_use_of *list, bool before, tl_bump *mem, sum *s)
{
    int n = 0, at = 0;
    for (const tl_use_of *u = list; u != NULL; u = u->next)
        n++;
    *s = (sum){tl_bump_get(mem, (size_t)(n + 2) * sizeof(term)), n, 0, 0, true};
    for (const tl_use_of *u = list; s->t != NULL && u != NULL; u = u->next, at++) {
        bool in = before ? before_inside(c, u->node) : after_inside(c, u->node);
        s->t[at] = in ? (term){UINT32_MAX, 0} : (term){u->node, u->input};
        s->first &= !in || s->outside == 0;
        s->inside += in;
        s->outside += !in;
    }
    return s->t != NULL;
}

/* Terms of the match as one, where they are; false if that is not their sum. */
static bool collapse(sum *s)
{
    if (s->inside <= 1)
        return true;
    if (!s->first)
        return false;
    for (int i = 1; i <= s->outside; i++)
        s->t[i] = s->t[i + s->inside - 1];
    s->n = s->outside + 1;
    return true;
}

static bool equal(term a, term b) { return a.node == b.node && (a.node == UINT32_MAX || a.input == b.input); }

static bool same_sum(const sum *a, const sum *b)
{
    if (a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++) {
        bool swapped = i < 2 && a->n >= 2 && equal(a->t[i], b->t[1 - i]) && equal(a->t[1 - i], b->t[i]);
        if (!swapped && !equal(a->t[i], b->t[i]))
            return false;
    }
    return true;
}

/* A leaf's uses are numbered: nothing may move, and those of the match stay of one kind. */
static bool same_leaf(const comparison *c, const tl_use_of *a, const tl_use_of *b)
{
    for (; a != NULL && b != NULL; a = a->next, b = b->next) {
        bool in = before_inside(c, a->node);
        if (in != after_inside(c, b->node) || (in ? a->kind != b->kind : a->node != b->node || a->input != b->input))
            return false;
    }
    return a == NULL && b == NULL;
}

static int output_of(const comparison *c, uint32_t slot)
{
    for (int i = 0; i < c->m->search->n_out; i++)
        if (c->m->search->out[i].node >= 0 && c->m->out[i] == slot)
            return i;
    return -1;
}

static bool same_value(const comparison *c, const tl_use_of *before, const tl_use_of *after, int output, tl_bump *mem)
{
    sum a, b;
    if (!read_sum(c, before, true, mem, &a) || !read_sum(c, after, false, mem, &b))
        return tl_fail(&c->p->why, TL_ENOMEM, "no memory to compare uses"), false;
    if (output >= 0) {
        if (a.outside == 0 && b.outside == 0)
            return true;
        if (a.inside == 1 && b.inside == 0) { /* added last of all */
            b.t[b.n++] = (term){UINT32_MAX, 0};
            return same_sum(&a, &b);
        }
        return a.inside == b.inside && a.inside <= 1 && same_sum(&a, &b);
    }
    return (a.inside > 0) == (b.inside > 0) && collapse(&a) && collapse(&b) && same_sum(&a, &b);
}

static bool tell(const comparison *c, uint32_t slot, const tl_use_of *list)
{
    tl_pass *p = c->p;
    const tl_match *m = c->m;
    uint32_t n_values = atomic_load(&p->t->values.count);
    int out = output_of(c, slot), others = 0;
    for (; list != NULL; list = list->next)
        others += !before_inside(c, list->node);
    if (out >= 0) {
        const tl_node *n = &p->t->node[m->node[m->search->out[out].node]];
        return tl_refuse(p, "%s at %s:%d has %d other users: their gradients would be added in another order", n->op->name, n->file, n->line, others);
    }
    for (int i = 0; i < m->rule->o.n_in; i++)
        if (m->arg[i].index == (slot < n_values ? slot : slot - n_values) && (m->arg[i].owner == p->t->values.owner) == (slot < n_values))
            return tl_refuse(p, "the gradient of '%s', which has %d other users, would be added in another order", m->rule->o.example_inputs[i].name, others);
    return tl_refuse(p, "a gradient further up would be added in another order");
}

static bool same_table(const comparison *c, const tl_use_table *a, const tl_use_table *b, tl_bump *mem)
{
    const tl_tape *t = c->p->t;
    uint32_t n_values = atomic_load(&t->values.count);
    for (uint32_t s = 0; s < a->n_slots; s++) {
        const tl_use_of *x = a->head[s], *y = b->head[s];
        while (x != NULL && y != NULL && x->node == y->node && x->input == y->input)
            x = x->next, y = y->next;
        if (x == NULL && y == NULL)
            continue;
        const tl_value *v = s < n_values ? tl_values_at(&t->values, s) : NULL;
        int out = output_of(c, s);
        if (v != NULL && v->node >= 0 && before_inside(c, (uint32_t)v->node) && out < 0)
            continue; /* inside the match: gone */
        bool leaf = a->leaf[s] || b->leaf[s];
        if (leaf ? !same_leaf(c, a->head[s], b->head[s]) : !same_value(c, a->head[s], b->head[s], out, mem))
            return tell(c, s, a->head[s]);
    }
    return true;
}

bool tl_splice_uses(tl_pass *p, bool *passes)
{
    comparison c = {p, p->match[p->n_tried - 1], p->n_tried - 1};
    tl_bump *mem = &p->use_bump[1 - p->use_now];
    *passes = false;
    if (p->n_marks == 0)
        return true;
    tl_bump_reset(mem);
    tl_use_table **after = tl_splice_tables(p, mem);
    if (after == NULL) {
        tl_fail(&p->why, TL_ENOMEM, "no memory for the uses of a graph of %u nodes", p->t->n_nodes);
        return false;
    }
    for (int i = 0; i < p->n_marks; i++)
        for (int k = 0; k < c.m->search->n_nodes; k++)
            *passes |= p->uses[i]->seen[c.m->node[k]] != 0;
    for (int i = 0; i < p->n_marks; i++)
        if (!same_table(&c, p->uses[i], after[i], mem))
            return false;
    p->uses_tried = after;
    return true;
}
