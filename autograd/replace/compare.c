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

static uint32_t memory_of(const tl_pass *p, const tl_side *s, tl_tensor x)
{
    x = tl_bottom(s->t, x);
    const tl_leaf l = tl_leaf_of(s->t, x);
    return l.kind == TL_LEAF_ACC ? p->first_acc[l.at] + l.use : slot_of(p, s, x);
}

static uint32_t slots(const tl_pass *p) { return p->n_others + atomic_load(&p->t->values.count); }

/* ---- uses ---- */

int tl_accumulator_kind(const tl_op *op, const void *attrs, int k)
{
    if (k >= 32 || !(op->folds & TL_BIT(k)))
        return 0;
    return op->folds_f64 & TL_BIT(k) || (op->folds_wide != NULL && op->folds_wide(attrs)) ? 2 : 1;
}

/* The uses of values by n nodes, in that order (NULL: as recorded); or only those that take a
 * gradient, a leaf's also through views. False: out of memory. */
static bool list_uses(const tl_pass *p, const tl_side *s, const uint32_t *order, uint32_t n,
                      bool grads, tl_uses *u)
{
    const tl_walk w = {.t = s->t};
    tl_bump *mem = &s->t->bump;
    uint32_t total = 0, n_uses = 0;
    for (uint32_t i = 0; i < n; i++)
        total += (uint32_t)s->t->node[order == NULL ? i : order[i]].n_in;
    u->n_slots = slots(p);
    tl_use_of *all = tl_bump_get(mem, (total + 1) * sizeof *all);
    u->use = tl_bump_get(mem, (total + 1) * sizeof *u->use);
    u->start = tl_bump_get(mem, (u->n_slots + 2) * sizeof *u->start);
    if (all == NULL || u->use == NULL || u->start == NULL)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = order == NULL ? i : order[i];
        const tl_node *node = &s->t->node[at];
        for (int k = 0; k < node->n_in && !(grads && tl_walk_skips(&w, node)); k++) {
            tl_tensor x = node->in[k];
            if (tl_is_none(x) || (grads && !tl_peek(s->t, x)->needs_grad))
                continue;
            tl_tensor leaf = grads ? tl_leaf_under(s->t, x) : TL_NONE;
            int kind = tl_is_none(leaf) ? TL_USE_OF_VALUE
                                        : tl_accumulator_kind(node->op, node->attrs, k);
            all[n_uses] = (tl_use_of){slot_of(p, s, tl_is_none(leaf) ? x : leaf), node_of(s, at), k,
                                      kind};
            u->start[all[n_uses++].slot + 2]++;
        }
    }
    for (uint32_t v = 2; v < u->n_slots + 2; v++)
        u->start[v] += u->start[v - 1];
    for (uint32_t i = 0; i < n_uses; i++)
        u->use[u->start[all[i].slot + 1]++] = all[i];
    return true;
}

/* Of each backward. */
static bool list_gradient_uses(tl_pass *p, tl_side *s)
{
    uint32_t *order, n;
    int at = 0;
    s->uses = tl_bump_get(&s->t->bump, ((size_t)p->n_marks + 1) * sizeof *s->uses);
    bool ok = s->uses != NULL;
    for (uint32_t i = 0; i < s->t->n_nodes && ok && at < p->n_marks; i++) {
        if (s->t->node[i].op != &tl_op_mark_backward)
            continue;
        ok = tl_canonical_order(s->t, s->t->node[i].in[0], true, &order, &n) == TL_OK &&
             list_uses(p, s, order, n, true, &s->uses[at++]);
        for (uint32_t k = 0; ok && s->from == NULL && k < n; k++)
            p->reached[order[k]] = true;
    }
    return ok || (tl_fail(&p->why, TL_ENOMEM, "no memory for the uses of %u nodes", s->t->n_nodes),
                  false);
}

/* ---- memory ---- */

/* x, when `last` (by memory; one more, 0: none) were the last nodes to change something. */
static tl_read read_of(const tl_pass *p, const tl_side *s, tl_tensor x, const uint32_t *last)
{
    if (tl_is_none(x))
        return (tl_read){UINT32_MAX, UINT32_MAX, 0, false};
    const uint32_t memory = memory_of(p, s, x);
    return (tl_read){slot_of(p, s, x), memory, last[memory], tl_peek(s->t, x)->needs_grad};
}

static bool note_reads(tl_pass *p, const tl_side *s, tl_reads *r)
{
    uint32_t at = 0, n = s->t->n_nodes;
    for (uint32_t i = 0; i < n; i++)
        at += (uint32_t)s->t->node[i].n_in;
    r->read = tl_bump_get(&s->t->bump, (at + 1) * sizeof *r->read);
    r->first = tl_bump_get(&s->t->bump, (n + 1) * sizeof *r->first);
    r->changer = tl_bump_get(&s->t->bump, (slots(p) + 1) * sizeof *r->changer);
    if (r->read == NULL || r->first == NULL || r->changer == NULL)
        return tl_fail(&p->why, TL_ENOMEM, "no memory to compare graphs"), false;
    at = 0;
    for (uint32_t i = 0; i < n; i++) {
        const tl_node *node = &s->t->node[i];
        r->first[i] = at;
        for (int k = 0; k < node->n_in; k++)
            r->read[at++] = read_of(p, s, node->in[k], r->changer);
        for (int k = 0; k < node->n_in; k++)
            if (tl_node_writes(node, k))
                r->changer[memory_of(p, s, node->in[k])] = node_of(s, i) + 1;
    }
    return true;
}

static const tl_node *changer_of(const tl_pass *p, const tl_reads *is, uint32_t memory)
{
    uint32_t by = is->changer[memory];
    if (by == 0 && memory < p->n_others + p->n_values)
        by = p->reads.changer[memory];
    return by == 0 ? NULL : &p->t->node[by - 1];
}

/* a was read, b is. */
static bool same_read(tl_pass *p, const tl_reads *is, const tl_read *a, const tl_read *b)
{
    const tl_node *n;
    if (a->memory == UINT32_MAX || b->memory == UINT32_MAX)
        return a->memory == b->memory;
    if (a->memory == b->memory && a->writer == b->writer)
        return true;
    if (a->memory == b->memory) {
        n = &p->t->node[(a->writer > b->writer ? a->writer : b->writer) - 1];
        return tl_refuse(p, "%s at %s:%d changes a memory in place between what it reads",
                         n->op->name, n->file, n->line);
    }
    if ((n = changer_of(p, is, a->memory)) == NULL && (n = changer_of(p, is, b->memory)) == NULL)
        return true;
    return tl_refuse(p, "an output would lie in other memory, which %s at %s:%d changes in place",
                     n->op->name, n->file, n->line);
}

/* And it carries a gradient where it did: else backward leads to parameters that it did not, or no
 * longer to some. */
static bool same_carried(tl_pass *p, const tl_reads *is, const tl_read *a, const tl_read *b)
{
    if (!same_read(p, is, a, b))
        return false;
    if (p->joint || a->grad == b->grad)
        return true;
    return tl_refuse(p, "an output of the replacement carries %s gradient, of its search %s",
                     b->grad ? "a" : "no", a->grad ? "one" : "none");
}

/* What a replacement reads, all nodes in its place read in the same state. */
static bool same_as_members(tl_pass *p, const tl_reads *is, const tl_match *m, const tl_read *b)
{
    for (int i = 0; i < m->search->n_nodes; i++) {
        const tl_read *a = &p->reads.read[p->reads.first[m->b.node[i]]];
        for (int k = 0; k < p->t->node[m->b.node[i]].n_in; k++, a++)
            if ((a->slot == b->slot || a->memory == b->memory) && !same_read(p, is, a, b))
                return false;
    }
    return true;
}

/* What is handed out at the end. */
static bool same_result(tl_pass *p, const tl_side *s, const tl_reads *is, tl_tensor x)
{
    tl_read a = read_of(p, &p->was, x, p->reads.changer),
            b = read_of(p, s, tl_rebuild_map(s->t, p->t, s->map, x), is->changer);
    return same_carried(p, is, &a, &b);
}

static bool map_back(tl_pass *p, tl_side *s)
{
    s->back = tl_bump_get(&s->t->bump, (atomic_load(&s->t->values.count) + 1) * sizeof *s->back);
    for (int replaced = 0; s->back != NULL && replaced < 2; replaced++)
        for (uint32_t v = atomic_load(&p->t->values.count); v-- > 0;) {
            tl_tensor y = v < p->n_values ? p->stand_in[v] : TL_NONE, x = s->map[v];
            bool put = y.owner == p->t->values.owner && y.index >= p->n_values;
            if (x.owner == s->t->values.owner && (tl_is_none(y) ? !replaced : put && replaced))
                s->back[x.index] = v;
        }
    return s->back != NULL || (tl_fail(&p->why, TL_ENOMEM, "no memory to compare graphs"), false);
}

bool tl_same_memory(tl_pass *p, tl_side *s)
{
    tl_reads is;
    if (!map_back(p, s) || !note_reads(p, s, &is))
        return false;
    for (uint32_t i = 0, last = 0; i < s->t->n_nodes; i++) {
        const tl_node *n = &s->t->node[i];
        const uint32_t from = s->from[i];
        for (int k = 0; k < n->n_in; k++) {
            const tl_read *b = &is.read[is.first[i] + (uint32_t)k];
            if (from < p->n_nodes
                    ? !same_carried(p, &is, &p->reads.read[p->reads.first[from] + (uint32_t)k], b)
                    : !same_as_members(p, &is, p->owner[from], b))
                return false;
        }
        if (!tl_is_mark(n) && !tl_node_mutates(n))
            continue;
        if (from < last)
            return tl_refuse(p, "%s at %s:%d would come before what it came after", n->op->name,
                             n->file, n->line);
        last = from;
    }
    for (int i = 0; i < tl_graph_results(p->g); i++)
        if (!same_result(p, s, &is, *tl_graph_result(p->g, i)))
            return false;
    return true;
}

/* ---- gradients ---- */

/* The match in place that node is part of, or that has put it there; NULL for others. */
static tl_match *match_of(const tl_pass *p, uint32_t node)
{
    return p->owner[node] != NULL && p->owner[node]->in_place ? p->owner[node] : NULL;
}

/* What a term of a sum is told by: the match that it comes from, or what uses the value; and a
 * leaf's kind of accumulator. */
static uint64_t term_of(const tl_pass *p, const tl_use_of *u)
{
    const tl_match *m = match_of(p, u->node);
    uint64_t from = m != NULL ? (uint64_t)1 << 55 | m->root
                              : (uint64_t)u->node << 16 | (uint64_t)u->input;
    return (uint64_t)(u->kind - TL_USE_OF_VALUE) << 56 | from;
}

/* The terms of a sum, several of a match as one where they come first; how many. Where they come
 * later, that is not their sum: -1, and *scattered is that match. A leaf's are all numbered.
 * *n_own: those of the match whose output it is. */
static int terms_of(const tl_pass *p, tl_uses_of u, const tl_match *own, uint64_t *to, int *n_own,
                    tl_match **scattered)
{
    int n = 0;
    *n_own = 0;
    for (int i = 0; i < u.n; i++) {
        tl_match *m = match_of(p, u.use[i].node);
        bool again = false;
        to[n] = term_of(p, &u.use[i]);
        *n_own += own != NULL && m == own;
        for (int j = 0; j < n && u.use[i].kind == TL_USE_OF_VALUE && m != NULL && m != own; j++)
            again |= to[j] == to[n];
        if (again && n > 1) {
            *scattered = m;
            return -1;
        }
        n += !again;
    }
    return n;
}

/* own: the match whose output it is, or NULL; to: room for all terms and one more. */
static bool same_sum(const tl_pass *p, tl_uses_of was, tl_uses_of is, const tl_match *own,
                     uint64_t *to, tl_match **scattered)
{
    uint64_t *a = to, *b = to + was.n;
    int own_a, own_b, n = terms_of(p, was, own, a, &own_a, scattered),
                      n_b = terms_of(p, is, own, b, &own_b, scattered);
    bool value = (was.n > 0 ? was : is).use[0].kind == TL_USE_OF_VALUE;
    if (own != NULL && own_a == was.n && own_b == is.n)
        return true;
    if (n < 0 || n_b < 0 || own_a > 1 || (own_b != own_a && own_b != 0))
        return false;
    if (own_b < own_a) /* added last of all */
        b[n_b++] = (uint64_t)1 << 55 | own->root;
    if (value && n >= 2 && n_b >= 2 && a[0] == b[1] && a[1] == b[0])
        a += 2, b += 2, n -= 2, n_b -= 2;
    return n == n_b && memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

/* Of the matches whose terms these are: one that is blamed or rounds, one on trial. */
static void look(const tl_pass *p, tl_uses_of u, tl_match **known, tl_match **trial)
{
    for (int i = 0; i < u.n; i++) {
        tl_match *m = match_of(p, u.use[i].node);
        if (m != NULL && (m->blamed || m->rounds))
            *known = m;
        else if (m != NULL && !m->settled)
            *trial = m;
    }
}

/* Why m may not be: the value in that slot, which those others used. */
static void say_why(tl_pass *p, const tl_match *m, uint32_t slot, tl_uses_of u)
{
    int out = slot < p->n_others ? -1 : tl_match_output(m, slot - p->n_others), others = 0;
    for (int i = 0; i < u.n; i++)
        others += !tl_match_holds(m, u.use[i].node);
    if (out >= 0) {
        const tl_node *n = &p->t->node[m->b.node[m->search->out[out].node]];
        tl_refuse(p,
                  "%s at %s:%d has %d other users: their gradients would be added in another order",
                  n->op->name, n->file, n->line, others);
    }
    for (int i = 0; i < m->rule->o.n_in; i++)
        if (tl_pass_slot(p, m->b.arg[i]) == slot)
            tl_refuse(
                p,
                "the gradient of '%s', which has %d other users, would be added in another order",
                m->rule->o.example_inputs[i].name, others);
    tl_refuse(p, "a gradient further up would be added in another order");
}

/* The gradient of the value in that slot has terms a and would have b. One match is blamed for it:
 * whose terms are scattered, else whose output it is, else one whose term it is - unless one of
 * them is to go already, or may round. False: nobody is. */
static bool blame(tl_pass *p, uint32_t slot, tl_uses_of a, tl_uses_of b, tl_match *own,
                  tl_match *scattered)
{
    tl_match *known = NULL, *m = NULL;
    look(p, a, &known, &m);
    look(p, b, &known, &m);
    if (own != NULL && (own->blamed || own->rounds))
        known = own;
    if (known != NULL)
        return true;
    m = scattered != NULL && !scattered->settled ? scattered
        : own != NULL && !own->settled           ? own
                                                 : m;
    if (m == NULL)
        return tl_refuse(p, "a gradient further up would be added in another order");
    m->rounds = p->g->opt.rounds;
    m->blamed = !m->rounds;
    if (m->rounds)
        return true;
    say_why(p, m, slot, a);
    tl_report_missed(p->g, m->rule, p->why.message);
    tl_err_clear(&p->why);
    return true;
}

static bool compare_uses(tl_pass *p, const tl_uses *was, const tl_uses *is, tl_bump *mem)
{
    uint32_t all = was->start[was->n_slots] + is->start[is->n_slots];
    uint64_t *terms = tl_bump_get(mem, (all + (size_t)2) * sizeof *terms);
    if (terms == NULL)
        return tl_fail(&p->why, TL_ENOMEM, "no memory to compare %u uses", all), false;
    for (uint32_t s = 0; s < is->n_slots; s++) {
        tl_uses_of a = tl_uses_at(was, s), b = tl_uses_at(is, s);
        tl_match *scattered = NULL;
        int32_t maker = s < p->n_others ? -1 : tl_values_at(&p->t->values, s - p->n_others)->node;
        tl_match *own = maker < 0 ? NULL : match_of(p, (uint32_t)maker);
        if (a.n + b.n == 0 || (own != NULL && tl_match_output(own, s - p->n_others) < 0))
            continue; /* inside a match: gone */
        if (!same_sum(p, a, b, own, terms, &scattered) && !blame(p, s, a, b, own, scattered))
            return false;
    }
    return true;
}

bool tl_compare_uses(tl_pass *p, tl_side *s)
{
    bool ok = list_gradient_uses(p, s);
    for (int i = 0; i < p->n_marks && ok; i++)
        ok = compare_uses(p, &p->was.uses[i], &s->uses[i], &s->t->bump);
    return ok;
}

/* ---- before anything is replaced ---- */

static void hold(tl_pass *p, tl_tensor x)
{
    if (!tl_is_none(x) && x.owner == p->t->values.owner)
        p->held[x.index] = true;
}

tl_status tl_pass_index(tl_pass *p)
{
    tl_tape *t = p->t;
    p->was = (tl_side){.t = t};
    p->n_nodes = t->n_nodes;
    p->n_values = atomic_load(&t->values.count);
    p->n_others = t->model == NULL ? 0 : atomic_load(&t->model->values.count);
    p->first_acc = tl_bump_get(&p->bump, ((size_t)t->n_grads + 1) * sizeof *p->first_acc);
    for (int i = 0; i < t->n_grads && p->first_acc != NULL; i++) {
        p->first_acc[i] = p->n_others;
        p->n_others += (uint32_t)t->grad[i].n_uses;
    }
    p->held = tl_bump_get(&p->bump, p->n_values + 1);
    p->owner = tl_bump_get(&p->bump, (p->n_nodes + 1) * sizeof *p->owner);
    if (p->first_acc == NULL || p->held == NULL || p->owner == NULL ||
        !list_uses(p, &p->was, NULL, p->n_nodes, false, &p->users))
        return tl_fail(&p->why, TL_ENOMEM, "no memory for the uses of %u nodes", p->n_nodes);
    for (int i = 0; i < tl_graph_results(p->g); i++)
        hold(p, *tl_graph_result(p->g, i));
    for (uint32_t v = 0; v < p->n_values; v++)
        hold(p, tl_values_at(&t->values, v)->source);
    return TL_OK;
}

bool tl_compare_prepare(tl_pass *p)
{
    p->reached = tl_bump_get(&p->bump, p->n_nodes + 1);
    for (uint32_t i = 0; i < p->n_nodes; i++)
        p->n_marks += p->t->node[i].op == &tl_op_mark_backward;
    return p->reached != NULL && note_reads(p, &p->was, &p->reads) &&
           list_gradient_uses(p, &p->was);
}
