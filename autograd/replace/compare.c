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
#include <stdlib.h>
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

/* The inputs of n nodes, in that order (NULL: as recorded). */
static size_t inputs(const tl_tape *t, const uint32_t *order, uint32_t n)
{
    size_t all = 0;
    for (uint32_t i = 0; i < n; i++)
        all += (size_t)t->node[order == NULL ? i : order[i]].n_in;
    return all;
}

static bool no_memory(tl_pass *p)
{
    return tl_fail(&p->why, TL_ENOMEM, "no memory to compare graphs of %u nodes", p->t->n_nodes),
           false;
}

/* ---- memory ---- */

/* x, as s->changer has it by now. */
static tl_read read_of(const tl_pass *p, const tl_side *s, tl_tensor x)
{
    if (tl_is_none(x))
        return (tl_read){UINT32_MAX, UINT32_MAX, 0, false};
    const uint32_t memory = memory_of(p, s, x);
    return (tl_read){slot_of(p, s, x), memory, s->changer[memory], tl_peek(s->t, x)->needs_grad};
}

static bool list_reads(tl_pass *p, tl_side *s)
{
    const uint32_t n = s->t->n_nodes;
    const int results = tl_graph_results(p->g);
    tl_bump *mem = &s->t->bump;
    tl_read *r = tl_bump_get(mem, (inputs(s->t, NULL, n) + (size_t)results + 1) * sizeof *r);
    s->read = tl_bump_get(mem, (n + 1) * sizeof *s->read);
    s->changer = tl_bump_get(mem, (slots(p) + 1) * sizeof *s->changer);
    if (r == NULL || s->read == NULL || s->changer == NULL)
        return no_memory(p);
    for (uint32_t i = 0; i < n; i++) {
        const tl_node *node = &s->t->node[i];
        s->read[i] = r;
        for (int k = 0; k < node->n_in; k++)
            *r++ = read_of(p, s, node->in[k]);
        for (int k = 0; k < node->n_in; k++)
            if (tl_node_writes(node, k))
                s->changer[memory_of(p, s, node->in[k])] = node_of(s, i) + 1;
    }
    s->read[n] = r;
    for (int i = 0; i < results; i++) {
        tl_tensor x = *tl_graph_result(p->g, i);
        *r++ = read_of(p, s, s->map == NULL ? x : tl_rebuild_map(s->t, p->t, s->map, x));
    }
    return true;
}

/* a was read, b is on s. */
static bool same_state(tl_pass *p, const tl_side *s, const tl_read *a, const tl_read *b)
{
    const bool moved = a->memory != b->memory;
    uint32_t by = a->writer == b->writer ? 0 : a->writer > b->writer ? a->writer : b->writer;
    if (a->memory == UINT32_MAX || b->memory == UINT32_MAX)
        return !moved;
    if (moved && (by = p->was.changer[a->memory]) == 0)
        by = s->changer[b->memory];
    if (by == 0)
        return true;
    const tl_node *n = &p->t->node[by - 1];
    return moved ? tl_refuse(p,
                             "an output would lie in other memory, which %s at %s:%d changes in "
                             "place",
                             n->op->name, n->file, n->line)
                 : tl_refuse(p, "%s at %s:%d changes a memory in place between what it reads",
                             n->op->name, n->file, n->line);
}

/* And it carries a gradient where it did: else backward leads to parameters that it did not, or no
 * longer to some. */
static bool same_read(tl_pass *p, const tl_side *s, const tl_read *a, const tl_read *b)
{
    if (!same_state(p, s, a, b))
        return false;
    return p->joint || a->grad == b->grad ||
           tl_refuse(p, "an output of the replacement carries %s gradient, of its search %s",
                     b->grad ? "a" : "no", a->grad ? "one" : "none");
}

/* What a replacement reads, all nodes in its place read in the same state. */
static bool same_as_members(tl_pass *p, const tl_side *s, const tl_match *m, const tl_read *b)
{
    for (int i = 0; i < m->search->n_nodes; i++) {
        const tl_read *a = p->was.read[m->b.node[i]];
        for (int k = 0; k < p->t->node[m->b.node[i]].n_in; k++, a++)
            if ((a->slot == b->slot || a->memory == b->memory) && !same_state(p, s, a, b))
                return false;
    }
    return true;
}

/* A value that is put has the number of what it stands for. */
static bool map_back(tl_pass *p, tl_side *s)
{
    s->back = tl_bump_get(&s->t->bump, (atomic_load(&s->t->values.count) + 1) * sizeof *s->back);
    for (uint32_t v = atomic_load(&p->t->values.count); s->back != NULL && v-- > 0;) {
        const tl_tensor y = v < p->n_values ? p->stand_in[v] : TL_NONE, x = s->map[v];
        if (x.owner == s->t->values.owner &&
            (tl_is_none(y) || (y.owner == p->t->values.owner && y.index >= p->n_values)))
            s->back[x.index] = v;
    }
    return s->back != NULL || no_memory(p);
}

bool tl_same_memory(tl_pass *p, tl_side *s)
{
    const uint32_t n = s->t->n_nodes;
    if (!map_back(p, s) || !list_reads(p, s))
        return false;
    for (uint32_t i = 0, last = 0; i < n; i++) {
        const tl_node *node = &s->t->node[i];
        const uint32_t from = s->from[i];
        for (int k = 0; k < node->n_in; k++)
            if (from < p->n_nodes ? !same_read(p, s, &p->was.read[from][k], &s->read[i][k])
                                  : !same_as_members(p, s, p->owner[from], &s->read[i][k]))
                return false;
        if (!tl_is_mark(node) && !tl_node_mutates(node))
            continue;
        if (from < last)
            return tl_refuse(p, "%s at %s:%d would come before what it came after", node->op->name,
                             node->file, node->line);
        last = from;
    }
    for (int i = 0; i < tl_graph_results(p->g); i++)
        if (!same_read(p, s, &p->was.read[p->n_nodes][i], &s->read[n][i]))
            return false;
    return true;
}

/* ---- the terms of gradients ---- */

/* How input k of an op adds to a leaf's accumulator: 0 through the engine, 1 by a fold in the
 * compute type, 2 in f64. */
static int accumulator_kind(const tl_node *n, int k)
{
    return tl_op_folds(n->op, k) + (tl_op_folds(n->op, k) && tl_op_folds_f64(n->op, n->attrs, k));
}

static int by_slot(const void *a, const void *b)
{
    const tl_term *x = a, *y = b;
    return x->slot != y->slot ? (x->slot < y->slot ? -1 : 1) : x->at < y->at ? -1 : 1;
}

/* A leaf's also through views. */
static bool list_terms_of(tl_pass *p, tl_side *s, tl_tensor y, tl_term **term, uint32_t *n_terms)
{
    const tl_walk w = {.t = s->t};
    uint32_t *order, n, at = 0;
    if (tl_canonical_order(s->t, y, true, &order, &n) != TL_OK)
        return no_memory(p);
    *term = tl_bump_get(&s->t->bump, (inputs(s->t, order, n) + 1) * sizeof **term);
    if (*term == NULL)
        return no_memory(p);
    for (uint32_t i = 0; i < n; i++) {
        const tl_node *node = &s->t->node[order[i]];
        if (s->from == NULL)
            p->reached[order[i]] = true;
        for (int k = 0; k < node->n_in && !tl_walk_skips(&w, node); k++) {
            tl_tensor x = node->in[k];
            if (tl_is_none(x) || !tl_peek(s->t, x)->needs_grad)
                continue;
            const tl_tensor leaf = tl_leaf_under(s->t, x);
            const bool value = tl_is_none(leaf);
            (*term)[at] = (tl_term){slot_of(p, s, value ? x : leaf), node_of(s, order[i]), at, k,
                                    value ? TL_TERM_OF_VALUE : accumulator_kind(node, k)};
            at++;
        }
    }
    qsort(*term, *n_terms = at, sizeof **term, by_slot);
    return true;
}

/* Of each backward. */
static bool list_terms(tl_pass *p, tl_side *s)
{
    int at = 0;
    s->term = tl_bump_get(&s->t->bump, ((size_t)p->n_marks + 1) * sizeof *s->term);
    s->n_terms = tl_bump_get(&s->t->bump, ((size_t)p->n_marks + 1) * sizeof *s->n_terms);
    if (s->term == NULL || s->n_terms == NULL)
        return no_memory(p);
    for (uint32_t i = 0; i < s->t->n_nodes && at < p->n_marks; i++)
        if (s->t->node[i].op == &tl_op_mark_backward) {
            if (!list_terms_of(p, s, s->t->node[i].in[0], &s->term[at], &s->n_terms[at]))
                return false;
            at++;
        }
    return true;
}

/* The gradient of one value in one backward: its terms as they were, and as they are. */
typedef struct {
    uint32_t slot;
    const tl_term *term[2];
    uint32_t n[2];
    tl_match *own;       /* on trial, whose output the value is */
    tl_match *scattered; /* has several terms, which are not the first */
} sum;

static uint64_t name_of(const tl_match *m) { return (uint64_t)1 << 55 | m->root; }

/* What the terms are told by: the match that they come from, or what uses the value; and a leaf's
 * kind of accumulator. Several of a match are one where they come first; a leaf's are all numbered.
 * How many; *own: those of the match whose output it is. */
static uint32_t names_of(const tl_pass *p, sum *x, int side, uint64_t *to, uint32_t *own)
{
    uint32_t n = 0;
    *own = 0;
    for (const tl_term *u = x->term[side]; u < x->term[side] + x->n[side]; u++) {
        tl_match *m = p->owner[u->node];
        bool again = false;
        to[n] = (uint64_t)(u->kind - TL_TERM_OF_VALUE) << 56 |
                (m != NULL ? name_of(m) : (uint64_t)u->node << 16 | (uint64_t)u->input);
        *own += m != NULL && m == x->own;
        for (uint32_t j = 0; j < n && u->kind == TL_TERM_OF_VALUE && m != NULL && m != x->own; j++)
            again |= to[j] == to[n];
        if (again && n > 1)
            x->scattered = m;
        n += !again;
    }
    return n;
}

static void order_first_two(uint64_t *to, uint32_t n)
{
    const uint64_t first = to[0];
    if (n >= 2 && first > to[1])
        to[0] = to[1], to[1] = first;
}

/* to: room for all terms and one more. */
static bool same_sum(const tl_pass *p, sum *x, uint64_t *to)
{
    uint64_t *a = to, *b = to + x->n[0];
    uint32_t own_a, own_b, n_a = names_of(p, x, 0, a, &own_a), n_b = names_of(p, x, 1, b, &own_b);
    if (x->own != NULL && own_a == x->n[0] && own_b == x->n[1])
        return true;
    if (x->scattered != NULL || own_a > 1 || (own_b != own_a && own_b != 0))
        return false;
    if (own_b < own_a) /* added last of all */
        b[n_b++] = name_of(x->own);
    if ((x->n[0] > 0 ? x->term[0] : x->term[1])->kind == TL_TERM_OF_VALUE) {
        order_first_two(a, n_a);
        order_first_two(b, n_b);
    }
    return n_a == n_b && memcmp(a, b, n_a * sizeof *a) == 0;
}

/* Why m may not be. */
static bool say_why(tl_pass *p, const tl_match *m, const sum *x)
{
    const int out = x->slot < p->n_others ? -1 : tl_match_output(m, x->slot - p->n_others);
    int others = 0;
    for (uint32_t i = 0; i < x->n[0]; i++)
        others += tl_match_node(m, x->term[0][i].node) < 0;
    if (out >= 0) {
        const tl_node *n = &p->t->node[m->b.node[m->search->out[out].node]];
        return tl_refuse(p,
                         "%s at %s:%d has %d other users: their gradients would be added in "
                         "another order",
                         n->op->name, n->file, n->line, others);
    }
    for (int i = 0; i < m->form->rule->o.n_in; i++)
        if (tl_pass_slot(p, m->b.arg[i]) == x->slot)
            return tl_refuse(p,
                             "the gradient of '%s', which has %d other users, would be added in "
                             "another order",
                             m->form->rule->o.example_inputs[i].name, others);
    return tl_refuse(p, "a gradient further up would be added in another order");
}

/* One match is blamed for another sum: whose terms are scattered, else whose output it is, else one
 * whose term it is - unless one of them is to go already, or may round. False: nobody is. */
static bool blame(tl_pass *p, const sum *x)
{
    tl_match *m = x->own;
    bool known = m != NULL && (m->blamed || m->rounds);
    for (int side = 0; side < 2; side++)
        for (uint32_t i = 0; i < x->n[side]; i++) {
            tl_match *by = p->owner[x->term[side][i].node];
            known |= by != NULL && (by->blamed || by->rounds);
            m = x->own != NULL || by == NULL ? m : by;
        }
    if (known)
        return true;
    if (x->scattered != NULL)
        m = x->scattered;
    if (m == NULL)
        return tl_refuse(p, "a gradient further up would be added in another order");
    m->rounds = p->g->opt.rounds;
    if (!m->rounds) {
        say_why(p, m, x);
        tl_match_bar(p, m);
    }
    return true;
}

static uint32_t in_slot(const tl_term *u, uint32_t n, uint32_t slot)
{
    uint32_t k = 0;
    while (k < n && u[k].slot == slot)
        k++;
    return k;
}

static bool compare_terms(tl_pass *p, const tl_term *a, uint32_t n_a, const tl_term *b,
                          uint32_t n_b, tl_bump *mem)
{
    uint64_t *names = tl_bump_get(mem, ((size_t)n_a + n_b + 2) * sizeof *names);
    if (names == NULL)
        return no_memory(p);
    while (n_a + n_b > 0) {
        sum x = {.slot = n_a == 0 || (n_b > 0 && b->slot < a->slot) ? b->slot : a->slot};
        const uint32_t k = in_slot(a, n_a, x.slot), l = in_slot(b, n_b, x.slot);
        int32_t maker = x.slot < p->n_others
                            ? -1
                            : tl_values_at(&p->t->values, x.slot - p->n_others)->node;
        x.term[0] = a, x.n[0] = k, a += k, n_a -= k;
        x.term[1] = b, x.n[1] = l, b += l, n_b -= l;
        x.own = maker < 0 ? NULL : p->owner[maker];
        if (x.own != NULL && tl_match_output(x.own, x.slot - p->n_others) < 0)
            continue; /* inside a match: gone */
        if (!same_sum(p, &x, names) && !blame(p, &x))
            return false;
    }
    return true;
}

bool tl_same_gradients(tl_pass *p, tl_side *s)
{
    bool ok = list_terms(p, s);
    for (int i = 0; i < p->n_marks && ok; i++)
        ok = compare_terms(p, p->was.term[i], p->was.n_terms[i], s->term[i], s->n_terms[i],
                           &s->t->bump);
    return ok;
}

/* ---- before anything is replaced ---- */

/* x is read, by a node or otherwise; *to is used for it. */
static void add_user(tl_pass *p, tl_user **to, uint32_t node, tl_tensor x)
{
    if (tl_is_none(x))
        return;
    const tl_user **first = &p->users[tl_pass_slot(p, x)];
    **to = (tl_user){node, *first};
    *first = (*to)++;
}

tl_status tl_pass_index(tl_pass *p)
{
    tl_tape *t = p->t;
    const size_t results = (size_t)tl_graph_results(p->g);
    p->was = (tl_side){.t = t};
    p->n_nodes = t->n_nodes;
    p->n_values = atomic_load(&t->values.count);
    p->n_others = t->model == NULL ? 0 : atomic_load(&t->model->values.count);
    p->first_acc = tl_bump_get(&p->bump, ((size_t)t->n_grads + 1) * sizeof *p->first_acc);
    for (int i = 0; i < t->n_grads && p->first_acc != NULL; i++) {
        p->first_acc[i] = p->n_others;
        p->n_others += (uint32_t)t->grad[i].n_uses;
    }
    p->owner = tl_bump_get(&p->bump, (p->n_nodes + 1) * sizeof *p->owner);
    p->users = tl_bump_get(&p->bump, (slots(p) + 1) * sizeof *p->users);
    tl_user *u = tl_bump_get(&p->bump,
                             (inputs(t, NULL, p->n_nodes) + results + p->n_values + 1) * sizeof *u);
    if (p->first_acc == NULL || p->owner == NULL || p->users == NULL || u == NULL)
        return no_memory(p), TL_ENOMEM;
    for (size_t i = 0; i < results; i++)
        add_user(p, &u, UINT32_MAX, *tl_graph_result(p->g, (int)i));
    for (uint32_t v = 0; v < p->n_values; v++)
        add_user(p, &u, UINT32_MAX, tl_values_at(&t->values, v)->source);
    for (uint32_t i = p->n_nodes; i-- > 0;) /* the last first: in order, when each comes in front */
        for (int k = t->node[i].n_in; k-- > 0;)
            add_user(p, &u, i, t->node[i].in[k]);
    return TL_OK;
}

tl_status tl_compare_prepare(tl_pass *p)
{
    p->reached = tl_bump_get(&p->bump, p->n_nodes + 1);
    for (uint32_t i = 0; i < p->n_nodes; i++)
        p->n_marks += p->t->node[i].op == &tl_op_mark_backward;
    return p->reached != NULL && list_reads(p, &p->was) && list_terms(p, &p->was) ? TL_OK
                                                                                  : TL_ENOMEM;
}
