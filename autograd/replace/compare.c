/* compare.c: a graph with replacements made, beside the graph without.
 *
 * What could show in a bit is read off both tapes and compared, each node of the new one standing
 * for the node that it is a copy of:
 *   - memory: every node reads what it read, after the same changes in place, and changes come in
 *     their order;
 *   - leaves: the same uses at the same numbers, with accumulators of one kind (NUMERICS 10);
 *   - other values: the terms of their gradients in the same order. The first two may change places
 *     (an IEEE addition commutes), and terms that all come from one match, one after another from
 *     the first, count as one: the rule's own claim is about their sum;
 *   - outputs of a match that it reads itself, which the replacement keeps to itself: its term is
 *     added to the sum of the others, so it must have been the last (or one of two). */
#include <string.h>

#include "autograd/replace/internal.h"

/* ---- a node, a value and a memory of either tape, by one number ---- */

static uint32_t node_of(const tl_side *s, uint32_t i) { return s->from == NULL ? i : s->from[i]; }

static uint32_t slot_of(const tl_pass *p, const tl_side *s, tl_tensor x)
{
    if (x.owner == s->t->values.owner)
        x = (tl_tensor){p->t->values.owner, s->back == NULL ? x.index : s->back[x.index], 0};
    return tl_pass_slot(p, x);
}

/* The match on trial that node is part of, or that has put it there; NULL for others. */
static const tl_match *tried(const tl_pass *p, uint32_t node)
{
    return p->owner[node] != NULL && p->owner[node]->tried ? p->owner[node] : NULL;
}

/* Which output of m the value in that slot is, or -1. */
static int output_of(const tl_pass *p, const tl_match *m, uint32_t slot)
{
    for (int i = 0; m != NULL && i < m->search->n_out; i++)
        if (m->search->out[i].node >= 0 && p->n_others + m->out[i] == slot)
            return i;
    return -1;
}

/* ---- memory ---- */

static uint32_t memory_of(const tl_pass *p, const tl_side *s, tl_tensor x)
{
    x = tl_bottom(s->t, x);
    const tl_leaf l = x.owner == s->t->values.owner ? tl_leaf_of(s->t, x.index)
                                                    : (tl_leaf){TL_LEAF_NONE, 0, 0};
    return l.kind == TL_LEAF_ACC ? p->first_acc[l.at] + l.use : slot_of(p, s, x);
}

/* x, when `last` (by memory; one more, 0: none) were the last nodes to change something. */
static tl_read read_of(const tl_pass *p, const tl_side *s, tl_tensor x, const uint32_t *last)
{
    if (tl_is_none(x))
        return (tl_read){UINT32_MAX, UINT32_MAX, 0, false};
    const uint32_t memory = memory_of(p, s, x);
    return (tl_read){slot_of(p, s, x), memory, last[memory], tl_peek(s->t, x)->needs_grad};
}

static void note_changes(const tl_pass *p, const tl_side *s, uint32_t i, uint32_t *last)
{
    const tl_node *n = &s->t->node[i];
    for (int k = 0; k < n->n_in; k++)
        if (tl_node_writes(n, k))
            last[memory_of(p, s, n->in[k])] = node_of(s, i) + 1;
}

static uint32_t slots(const tl_pass *p) { return p->n_others + atomic_load(&p->t->values.count); }

/* What the nodes of the pass's own tape read. */
static bool note_reads(tl_pass *p, const tl_side *s)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < p->n_nodes; i++)
        at += (uint32_t)p->t->node[i].n_in;
    p->read = tl_bump_get(&p->bump, (at + 1) * sizeof *p->read);
    p->first_read = tl_bump_get(&p->bump, (p->n_nodes + 1) * sizeof *p->first_read);
    p->changer = tl_bump_get(&p->bump, (slots(p) + 1) * sizeof *p->changer);
    if (p->read == NULL || p->first_read == NULL || p->changer == NULL)
        return false;
    at = 0;
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        p->first_read[i] = at;
        for (int k = 0; k < p->t->node[i].n_in; k++)
            p->read[at++] = read_of(p, s, p->t->node[i].in[k], p->changer);
        note_changes(p, s, i, p->changer);
    }
    return true;
}

typedef struct {
    tl_pass *p;
    const tl_side *s;
    uint32_t *last, *changer; /* of the new tape: so far; of all of it */
} memories;

static const tl_node *changer_of(const memories *c, tl_read r)
{
    uint32_t n_was = c->p->n_others + c->p->n_values, m = r.memory, by = c->changer[m];
    by = by == 0 && m < n_was ? c->p->changer[m] : by;
    return by == 0 ? NULL : &c->p->t->node[by - 1];
}

/* a was read, b is. */
static bool same_read(const memories *c, tl_read a, tl_read b)
{
    const tl_node *n;
    if (a.memory == UINT32_MAX || b.memory == UINT32_MAX)
        return a.memory == b.memory;
    if (a.memory == b.memory && a.writer == b.writer)
        return true;
    if (a.memory == b.memory) {
        n = &c->p->t->node[(a.writer > b.writer ? a.writer : b.writer) - 1];
        return tl_refuse(c->p, "%s at %s:%d changes a memory in place between what it reads",
                         n->op->name, n->file, n->line);
    }
    if ((n = changer_of(c, a)) == NULL && (n = changer_of(c, b)) == NULL)
        return true;
    return tl_refuse(c->p,
                     "an output would lie in other memory, which %s at %s:%d changes in place",
                     n->op->name, n->file, n->line);
}

/* And it carries a gradient where it did: else backward leads to parameters that it did not, or no
 * longer to some. */
static bool same_carried(const memories *c, tl_read a, tl_read b)
{
    if (!same_read(c, a, b))
        return false;
    if (c->p->joint || a.grad == b.grad)
        return true;
    return tl_refuse(c->p, "an output of the replacement carries %s gradient, of its search %s",
                     b.grad ? "a" : "no", a.grad ? "one" : "none");
}

/* What a replacement reads, all nodes in its place read in the same state. */
static bool same_as_members(const memories *c, const tl_match *m, tl_read r)
{
    const tl_pass *p = c->p;
    for (int i = 0; i < m->search->n_nodes; i++) {
        const tl_read *a = &p->read[p->first_read[m->node[i]]];
        for (int k = 0; k < p->t->node[m->node[i]].n_in; k++)
            if ((a[k].slot == r.slot || a[k].memory == r.memory) && !same_read(c, a[k], r))
                return false;
    }
    return true;
}

static bool same_node(const memories *c, uint32_t i)
{
    const tl_pass *p = c->p;
    const tl_node *n = &c->s->t->node[i];
    const uint32_t is = node_of(c->s, i);
    for (int k = 0; k < n->n_in; k++) {
        tl_read r = read_of(p, c->s, n->in[k], c->last);
        const tl_read *a = is < p->n_nodes ? &p->read[p->first_read[is] + (uint32_t)k] : NULL;
        if (a == NULL ? !same_as_members(c, p->owner[is], r) : !same_carried(c, *a, r))
            return false;
    }
    return true;
}

/* What is handed out at the end; of the new tape by its handle there. */
static bool same_result(const memories *c, const tl_side *was, tl_tensor x)
{
    tl_read a = read_of(c->p, was, x, c->p->changer),
            b = read_of(c->p, c->s, tl_rebuild_map(c->s->t, c->p->t, c->s->map, x), c->last);
    return same_carried(c, a, b);
}

bool tl_same_memory(tl_pass *p, const tl_side *s)
{
    const tl_side was = {.t = p->t};
    memories c = {p, s, tl_bump_get(&s->t->bump, (slots(p) + 1) * sizeof *c.last),
                  tl_bump_get(&s->t->bump, (slots(p) + 1) * sizeof *c.changer)};
    if (c.last == NULL || c.changer == NULL)
        return tl_fail(&p->why, TL_ENOMEM, "no memory to compare graphs"), false;
    for (uint32_t i = 0; i < s->t->n_nodes; i++)
        note_changes(p, s, i, c.changer);
    for (uint32_t i = 0, last = 0; i < s->t->n_nodes; i++) {
        const tl_node *n = &s->t->node[i];
        if (!same_node(&c, i))
            return false;
        note_changes(p, s, i, c.last);
        if (!tl_is_mark(n) && !tl_node_mutates(n))
            continue;
        if (node_of(s, i) < last)
            return tl_refuse(p, "%s at %s:%d would come before what it came after", n->op->name,
                             n->file, n->line);
        last = node_of(s, i);
    }
    for (int i = 0; i < p->g->n_out; i++)
        if (!same_result(&c, &was, p->g->out[i]))
            return false;
    for (int i = 0; i < p->g->tracing->n_watch; i++)
        if (!same_result(&c, &was, p->g->tracing->watch[i].x))
            return false;
    return true;
}

/* ---- uses ---- */

int tl_accumulator_kind(const tl_op *op, const void *attrs, int k)
{
    if (k >= 32 || !(op->folds & TL_BIT(k)))
        return 0;
    return op->folds_f64 & TL_BIT(k) || (op->folds_wide != NULL && op->folds_wide(attrs)) ? 2 : 1;
}

/* The uses of one backward, in canonical order: by slot in u. */
static bool list_uses(tl_pass *p, const tl_side *s, tl_tensor root, tl_uses *u)
{
    const tl_walk w = {.t = s->t};
    tl_bump *mem = &s->t->bump;
    uint32_t *order, n, total = 0, n_uses = 0;
    u->n_slots = slots(p);
    if (tl_canonical_order(s->t, root, true, &order, &n) != TL_OK)
        return false;
    for (uint32_t i = 0; i < n; i++)
        total += (uint32_t)s->t->node[order[i]].n_in;
    tl_use_of *all = tl_bump_get(mem, (total + 1) * sizeof *all);
    u->use = tl_bump_get(mem, (total + 1) * sizeof *u->use);
    u->start = tl_bump_get(mem, (u->n_slots + 2) * sizeof *u->start);
    if (all == NULL || u->use == NULL || u->start == NULL)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const tl_node *node = &s->t->node[order[i]];
        if (s->from == NULL)
            p->reached[order[i]] = true;
        for (int k = 0; k < node->n_in && !tl_walk_skips(&w, node); k++) {
            if (tl_is_none(node->in[k]) || !tl_peek(s->t, node->in[k])->needs_grad)
                continue;
            tl_tensor leaf = tl_leaf_under(s->t, node->in[k]);
            bool own = tl_is_none(leaf);
            tl_use_of *use = &all[n_uses++];
            *use = (tl_use_of){slot_of(p, s, own ? node->in[k] : leaf), node_of(s, order[i]), k,
                               own ? TL_USE_OF_VALUE
                                   : tl_accumulator_kind(node->op, node->attrs, k)};
            u->start[use->slot + 2]++;
        }
    }
    for (uint32_t v = 2; v < u->n_slots + 2; v++)
        u->start[v] += u->start[v - 1];
    for (uint32_t i = 0; i < n_uses; i++)
        u->use[u->start[all[i].slot + 1]++] = all[i];
    return true;
}

static bool list_all_uses(tl_pass *p, tl_side *s)
{
    int at = 0;
    s->uses = tl_bump_get(&s->t->bump, ((size_t)p->n_marks + 1) * sizeof *s->uses);
    bool ok = s->uses != NULL;
    for (uint32_t i = 0; i < s->t->n_nodes && ok && at < p->n_marks; i++)
        if (s->t->node[i].op == &tl_op_mark_backward)
            ok = list_uses(p, s, s->t->node[i].in[0], &s->uses[at++]);
    return ok || (tl_fail(&p->why, TL_ENOMEM, "no memory for the uses of %u nodes", s->t->n_nodes),
                  false);
}

/* The uses of one value. */
typedef struct {
    const tl_use_of *use;
    int n;
} uses_of;

static uses_of in_slot(const tl_uses *u, uint32_t slot)
{
    return slot >= u->n_slots
               ? (uses_of){NULL, 0}
               : (uses_of){u->use + u->start[slot], (int)(u->start[slot + 1] - u->start[slot])};
}

typedef struct {
    const tl_match *match; /* that it comes from, of those tried; or NULL and */
    uint32_t node;         /* what uses the value */
    int input;
} term;

static bool equal(term a, term b)
{
    return a.match == b.match && a.node == b.node && a.input == b.input;
}

static term term_of(const tl_pass *p, const tl_use_of *u)
{
    const tl_match *m = tried(p, u->node);
    return m != NULL ? (term){m, 0, 0} : (term){NULL, u->node, u->input};
}

/* A leaf's uses are numbered: nothing may move, and those of a match stay of one kind. */
static bool same_leaf(const tl_pass *p, uses_of a, uses_of b)
{
    bool same = a.n == b.n;
    for (int i = 0; i < a.n && same; i++)
        same = equal(term_of(p, &a.use[i]), term_of(p, &b.use[i])) &&
               a.use[i].kind == b.use[i].kind;
    return same;
}

/* The terms of a sum, several of a match as one where they come first; how many, or -1 where they
 * come later, for that is not their sum. n_own: of these, the match's whose output it is. */
static int terms_of(const tl_pass *p, uses_of u, const tl_match *own, term *to, int *n_own)
{
    int n = 0;
    *n_own = 0;
    for (int i = 0; i < u.n; i++) {
        const term t = term_of(p, &u.use[i]);
        bool again = false;
        *n_own += own != NULL && t.match == own;
        for (int j = 0; j < n && t.match != NULL && t.match != own; j++)
            again |= to[j].match == t.match;
        if (again && n > 1)
            return -1;
        if (!again)
            to[n++] = t;
    }
    return n;
}

/* own: the match whose output it is, or NULL */
static bool same_value(tl_pass *p, uses_of was, uses_of is, const tl_match *own, tl_bump *mem)
{
    term *a = tl_bump_get(mem, (size_t)(was.n + is.n + 2) * sizeof *a), *b = a + was.n;
    int own_a, own_b;
    if (a == NULL)
        return tl_fail(&p->why, TL_ENOMEM, "no memory to compare uses"), false;
    int n = terms_of(p, was, own, a, &own_a), n_b = terms_of(p, is, own, b, &own_b);
    if (own != NULL && own_a == was.n && own_b == is.n)
        return true;
    if (own_a > 1 || (own_b != own_a && own_b != 0))
        return false;
    if (own_b < own_a && n_b >= 0) /* added last of all */
        b[n_b++] = (term){own, 0, 0};
    bool turned = n >= 2 && n_b >= 2 && equal(a[0], b[1]) && equal(a[1], b[0]), same = n == n_b;
    for (int i = turned ? 2 : 0; i < n && same; i++)
        same = equal(a[i], b[i]);
    return same && n >= 0;
}

static bool tell(tl_pass *p, const tl_match *m, uint32_t slot, uses_of u)
{
    int out = output_of(p, m, slot), others = 0;
    for (int i = 0; i < u.n; i++)
        others += !tl_match_holds(m, u.use[i].node);
    if (out >= 0) {
        const tl_node *n = &p->t->node[m->node[m->search->out[out].node]];
        return tl_refuse(
            p, "%s at %s:%d has %d other users: their gradients would be added in another order",
            n->op->name, n->file, n->line, others);
    }
    for (int i = 0; i < m->rule->o.n_in; i++)
        if (tl_pass_slot(p, m->arg[i]) == slot)
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
            if (tl_same_ref(m->with->node[k].in[j], x))
                return true;
    return false;
}

bool tl_glance_at_uses(tl_pass *p, const tl_match *m)
{
    for (int i = 0; i < p->n_marks; i++)
        for (int o = 0; o < m->search->n_out; o++) {
            if (m->search->out[o].node < 0 || reads_itself(m, o))
                continue;
            uses_of u = in_slot(&p->now.uses[i], p->n_others + m->out[o]);
            int own = 0;
            for (int k = 0; k < u.n; k++)
                own += tl_match_holds(m, u.use[k].node);
            if (own == 1 && u.n > 2 && !tl_match_holds(m, u.use[u.n - 1].node))
                return tell(p, m, p->n_others + m->out[o], u);
        }
    return true;
}

static bool same_uses(tl_pass *p, const tl_uses *was, const tl_uses *is, tl_bump *mem,
                      const tl_match *alone)
{
    for (uint32_t s = 0; s < is->n_slots; s++) {
        uses_of a = in_slot(was, s), b = in_slot(is, s);
        int k = 0;
        while (k < a.n && k < b.n && a.use[k].node == b.use[k].node &&
               a.use[k].input == b.use[k].input)
            k++;
        if (k == a.n && k == b.n)
            continue;
        const tl_value *v = s < p->n_others ? NULL : tl_values_at(&p->t->values, s - p->n_others);
        const tl_match *own = v == NULL || v->node < 0 ? NULL : tried(p, (uint32_t)v->node);
        if (own != NULL && output_of(p, own, s) < 0)
            continue; /* inside a match: gone */
        bool leaf = (a.n > 0 ? a : b).use[0].kind != TL_USE_OF_VALUE;
        if (leaf ? same_leaf(p, a, b) : same_value(p, a, b, own, mem))
            continue;
        return alone != NULL && tell(p, alone, s, a);
    }
    return true;
}

bool tl_same_uses(tl_pass *p, const tl_side *s, const tl_match *alone)
{
    for (int i = 0; i < p->n_marks; i++)
        if (!same_uses(p, &p->now.uses[i], &s->uses[i], &s->t->bump, alone))
            return false;
    return true;
}

/* ---- before anything is replaced ---- */

bool tl_compare_prepare(tl_pass *p)
{
    p->now = (tl_side){.t = p->t};
    p->reached = tl_bump_get(&p->bump, p->n_nodes + 1);
    for (uint32_t i = 0; i < p->n_nodes; i++)
        p->n_marks += p->t->node[i].op == &tl_op_mark_backward;
    return p->reached != NULL && note_reads(p, &p->now) && list_all_uses(p, &p->now);
}

static bool map_back(tl_pass *p, tl_side *s)
{
    s->back = tl_bump_get(&s->t->bump, (atomic_load(&s->t->values.count) + 1) * sizeof *s->back);
    for (int replaced = 0; s->back != NULL && replaced < 2; replaced++)
        for (uint32_t v = atomic_load(&p->t->values.count); v-- > 0;) {
            tl_tensor y = p->stand_in[v], x = s->map[v];
            bool put = y.owner == p->t->values.owner && y.index >= p->n_values;
            if (x.owner == s->t->values.owner && (tl_is_none(y) ? !replaced : put && replaced))
                s->back[x.index] = v;
        }
    return s->back != NULL || (tl_fail(&p->why, TL_ENOMEM, "no memory to compare graphs"), false);
}

bool tl_compare_with(tl_pass *p, tl_side *s) { return map_back(p, s) && list_all_uses(p, s); }
