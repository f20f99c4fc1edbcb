/* splice_compare.c: the terms of every gradient, before and after a replacement.
 *
 * The cotangents of a value are added in the canonical order of its uses, and each use of
 * a leaf has an accumulator of its own (NUMERICS 10). A replacement that computes the same
 * bits by itself may still change that order: it may use a value once instead of twice, or
 * visit its inputs in another order. So the lists of uses are compared:
 *   - leaves: the same uses at the same numbers, with accumulators of one kind;
 *   - other values: the same terms in the same order. The first two may change places (an
 *     IEEE addition commutes), and terms that all come from one match, one after
 *     another from the first, count as one: the rule's own claim is about their sum;
 *   - outputs of the match that it reads itself, which the replacement keeps to itself: its term
 *     is added to the sum of the others, so it must have been the last (or one of two).
 *
 * Several matches may be tried at once: each term knows which of them it comes from. */
#include "autograd/replace/internal.h"

enum { NO_MATCH = -1 };

typedef struct {
    int match;     /* that it comes from, of those tried; or NO_MATCH and */
    uint32_t node; /* what uses the value */
    int input;
} term;

typedef struct {
    term *t;
    int n, own; /* all; those of the match whose output it is */
} sum;

static int match_before(const tl_pass *p, uint32_t node)
{
    return node < p->t->n_nodes && p->owner[node] >= p->n_match ? p->owner[node] : NO_MATCH;
}

static int match_after(const tl_pass *p, uint32_t node)
{
    return node >= p->t->n_nodes + p->match[p->n_match]->first ? tl_splice_index(p, node)
                                                               : NO_MATCH;
}

static bool read_sum(const tl_pass *p, const tl_use_of *list, bool before, int own, tl_bump *mem,
                     sum *s)
{
    int n = 0, at = 0;
    for (const tl_use_of *u = list; u != NULL; u = u->next)
        n++;
    *s = (sum){tl_bump_get(mem, (size_t)(n + 2) * sizeof(term)), n, 0};
    for (const tl_use_of *u = list; s->t != NULL && u != NULL; u = u->next) {
        int m = before ? match_before(p, u->node) : match_after(p, u->node);
        s->own += m != NO_MATCH && m == own;
        s->t[at++] = m == NO_MATCH ? (term){m, u->node, u->input} : (term){m, 0, 0};
    }
    return s->t != NULL;
}

/* Several terms of a match as one, where they come first; false where they come later, for that is
 * not their sum. */
static bool collapse(sum *s, int own)
{
    int run = 1, left = 1;
    if (s->n > 0 && s->t[0].match != NO_MATCH && s->t[0].match != own)
        while (run < s->n && s->t[run].match == s->t[0].match)
            run++;
    for (int i = run; i < s->n; i++) {
        for (int j = 0; j < left && s->t[i].match != NO_MATCH && s->t[i].match != own; j++)
            if (s->t[j].match == s->t[i].match)
                return false;
        s->t[left++] = s->t[i];
    }
    s->n = s->n == 0 ? 0 : left;
    return true;
}

static bool equal(term a, term b)
{
    return a.match == b.match && a.node == b.node && a.input == b.input;
}

static bool same_sum(const sum *a, const sum *b)
{
    if (a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++) {
        bool swapped = i < 2 && a->n >= 2 && equal(a->t[i], b->t[1 - i]) &&
                       equal(a->t[1 - i], b->t[i]);
        if (!swapped && !equal(a->t[i], b->t[i]))
            return false;
    }
    return true;
}

/* A leaf's uses are numbered: nothing may move, and those of a match stay of one kind. */
static bool same_leaf(const tl_pass *p, const tl_use_of *a, const tl_use_of *b)
{
    for (; a != NULL && b != NULL; a = a->next, b = b->next) {
        int m = match_before(p, a->node);
        if (m != match_after(p, b->node) ||
            (m != NO_MATCH ? a->kind != b->kind : a->node != b->node || a->input != b->input))
            return false;
    }
    return a == NULL && b == NULL;
}

/* own: the match whose output it is, or NO_MATCH */
static bool same_value(tl_pass *p, const tl_use_of *before, const tl_use_of *after, int own,
                       tl_bump *mem)
{
    sum a, b;
    if (!read_sum(p, before, true, own, mem, &a) || !read_sum(p, after, false, own, mem, &b))
        return tl_fail(&p->why, TL_ENOMEM, "no memory to compare uses"), false;
    if (own != NO_MATCH && a.own == a.n && b.own == b.n)
        return true;
    if (a.own > 1 || (b.own != a.own && b.own != 0) || !collapse(&a, own) || !collapse(&b, own))
        return false;
    if (b.own < a.own) /* added last of all */
        b.t[b.n++] = (term){own, 0, 0};
    return same_sum(&a, &b);
}

/* ---- outputs ---- */

/* Which output of m the value in that slot is, or -1. */
static int output_of(const tl_match *m, uint32_t slot)
{
    for (int i = 0; i < m->search->n_out; i++)
        if (m->search->out[i].node >= 0 && m->out[i] == slot)
            return i;
    return -1;
}

static bool of_match(const tl_match *m, uint32_t node)
{
    for (int k = 0; k < m->search->n_nodes; k++)
        if (m->node[k] == (int32_t)node)
            return true;
    return false;
}

static bool tell(tl_pass *p, const tl_match *m, uint32_t slot, const tl_use_of *list)
{
    uint32_t n_values = p->n_values;
    int out = output_of(m, slot), others = 0;
    for (; list != NULL; list = list->next)
        others += !of_match(m, list->node);
    if (out >= 0) {
        const tl_node *n = &p->t->node[m->node[m->search->out[out].node]];
        return tl_refuse(
            p, "%s at %s:%d has %d other users: their gradients would be added in another order",
            n->op->name, n->file, n->line, others);
    }
    for (int i = 0; i < m->rule->o.n_in; i++)
        if (tl_pass_slot(p, m->arg[i]) == slot &&
            (m->arg[i].owner == p->t->values.owner) == (slot < n_values))
            return tl_refuse(
                p,
                "the gradient of '%s', which has %d other users, would be added in another order",
                m->rule->o.example_inputs[i].name, others);
    return tl_refuse(p, "a gradient further up would be added in another order");
}

/* The replacement reads its own output. */
static bool reads_itself(const tl_match *m, int out)
{
    tl_pattern_ref x = m->with->out[out];
    for (int k = 0; k < m->with->n_nodes; k++)
        for (int j = 0; j < m->with->node[k].n_in; j++)
            if (m->with->node[k].in[j].node == x.node && m->with->node[k].in[j].at == x.at)
                return true;
    return false;
}

bool tl_splice_glance(tl_pass *p, const tl_match *m)
{
    for (int i = 0; i < p->n_marks; i++)
        for (int o = 0; o < m->search->n_out; o++) {
            if (m->search->out[o].node < 0 || reads_itself(m, o))
                continue;
            const tl_use_of *list = p->uses[i]->head[m->out[o]];
            int n = 0, own = 0;
            bool last = false;
            for (const tl_use_of *u = list; u != NULL; u = u->next, n++) {
                last = of_match(m, u->node);
                own += last;
            }
            if (own == 1 && n > 2 && !last)
                return tell(p, m, m->out[o], list);
        }
    return true;
}

bool tl_splice_passes(const tl_pass *p, const tl_match *m)
{
    for (int i = 0; i < p->n_marks; i++)
        for (int k = 0; k < m->search->n_nodes; k++)
            if (p->uses[i]->seen[m->node[k]])
                return true;
    return false;
}

/* ---- all of them ---- */

static bool same_table(tl_pass *p, const tl_use_table *a, const tl_use_table *b, tl_bump *mem)
{
    const tl_tape *t = p->t;
    for (uint32_t s = 0; s < a->n_slots; s++) {
        const tl_use_of *x = a->head[s], *y = b->head[s];
        while (x != NULL && y != NULL && x->node == y->node && x->input == y->input)
            x = x->next, y = y->next;
        if (x == NULL && y == NULL)
            continue;
        const tl_value *v = s < p->n_values ? tl_values_at(&t->values, s) : NULL;
        int own = v == NULL || v->node < 0 ? NO_MATCH : match_before(p, (uint32_t)v->node);
        if (own != NO_MATCH && output_of(p->match[own], s) < 0)
            continue; /* inside a match: gone */
        bool leaf = a->leaf[s] || b->leaf[s];
        if (leaf ? same_leaf(p, a->head[s], b->head[s])
                 : same_value(p, a->head[s], b->head[s], own, mem))
            continue;
        return p->n_tried == p->n_match + 1 && tell(p, p->match[p->n_match], s, a->head[s]);
    }
    return true;
}

bool tl_splice_uses(tl_pass *p)
{
    tl_bump *mem = &p->use_bump[1 - p->use_now];
    if (p->n_marks == 0)
        return true;
    tl_bump_reset(mem);
    p->uses_tried = tl_splice_tables(p, mem);
    if (p->uses_tried == NULL) {
        tl_fail(&p->why, TL_ENOMEM, "no memory for the uses of a graph of %u nodes", p->t->n_nodes);
        return false;
    }
    for (int i = 0; i < p->n_marks; i++)
        if (!same_table(p, p->uses[i], p->uses_tried[i], mem))
            return false;
    return true;
}
