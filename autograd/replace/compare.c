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

static bool no_memory(tl_pass *p)
{
    return tl_fail(&p->why, TL_ENOMEM, "no memory to compare graphs of %u nodes", p->t->n_nodes),
           false;
}

/* The node that made the value in that slot, -1: none; the match on trial that did; NULL. */
static int32_t maker_at(const tl_pass *p, uint32_t slot)
{
    return slot < p->n_others ? -1 : tl_values_at(&p->t->values, slot - p->n_others)->node;
}
static tl_match *maker_of(const tl_pass *p, uint32_t slot)
{
    const int32_t i = maker_at(p, slot);
    return i < 0 ? NULL : p->owner[i];
}

/* ---- memory ---- */

/* x, when `last` (by memory; one more, 0: none) were the last nodes to change something. What no
 * node of the graph before changes has no state: where one does so now, its own read tells. */
static tl_read read_of(const tl_pass *p, const tl_side *s, tl_tensor x, const uint32_t *last)
{
    if (tl_is_none(x))
        return (tl_read){.slot = UINT32_MAX};
    const uint64_t memory = memory_of(p, s, x);
    const bool varies = memory < p->n_others + p->n_values && p->changer[memory] != 0;
    return (tl_read){slot_of(p, s, x), varies ? (memory + 1) << 32 | last[memory] : 0,
                     tl_peek(s->t, x)->needs_grad};
}

static bool list_reads(tl_pass *p, tl_side *s)
{
    const uint32_t n = s->t->n_nodes;
    tl_bump *mem = &s->t->bump;
    uint32_t *last = tl_bump_get(mem, (slots(p) + (size_t)1) * sizeof *last);
    s->read = tl_bump_get(mem, (n + (size_t)1) * sizeof *s->read);
    for (uint32_t i = 0; last != NULL && s->read != NULL && i <= n; i++) {
        const tl_node *node = i < n ? &s->t->node[i] : NULL;
        const int n_in = node != NULL ? node->n_in : tl_graph_results(p->g);
        if ((s->read[i] = tl_bump_get(mem, ((size_t)n_in + 1) * sizeof **s->read)) == NULL)
            return no_memory(p);
        for (int k = 0; k < n_in; k++) {
            tl_tensor x = node != NULL ? node->in[k] : *tl_graph_result(p->g, k);
            if (node == NULL && s->map != NULL)
                x = tl_rebuild_map(s->t, p->t, s->map, x);
            s->read[i][k] = read_of(p, s, x, last);
        }
        for (int k = 0; node != NULL && k < n_in; k++)
            if (tl_node_writes(node, k))
                last[memory_of(p, s, node->in[k])] = node_of(s, i) + 1;
    }
    return (last != NULL && s->read != NULL) || no_memory(p);
}

/* a was read, b is: the same memory in the same state. */
static bool same_state(tl_pass *p, const tl_read *a, const tl_read *b)
{
    const uint64_t state = a->state > b->state ? a->state : b->state;
    const bool moved = a->state >> 32 != b->state >> 32;
    if (a->state == b->state)
        return true;
    const tl_node *n = &p->t->node[(moved ? p->changer[(state >> 32) - 1] : (uint32_t)state) - 1];
    return tl_refuse(p,
                     moved ? "an output would lie in other memory, which %s at %s:%d changes in "
                             "place"
                           : "%s at %s:%d changes a memory in place between what it reads",
                     n->op->name, n->file, n->line);
}

/* And it carries a gradient where it did: else backward leads to parameters that it did not, or no
 * longer to some. */
static bool same_read(tl_pass *p, const tl_read *a, const tl_read *b)
{
    if (!same_state(p, a, b))
        return false;
    return p->joint || a->grad == b->grad ||
           tl_refuse(p, "an output of the replacement carries %s gradient, of its search %s",
                     b->grad ? "a" : "no", a->grad ? "one" : "none");
}

/* What a replacement reads, all nodes in its place read in the same state. */
static bool same_as_members(tl_pass *p, const tl_match *m, const tl_read *b)
{
    for (int i = 0; i < m->search->n_nodes; i++) {
        const tl_read *a = p->was.read[m->b.node[i]];
        for (int k = 0; k < p->t->node[m->b.node[i]].n_in; k++, a++)
            if ((a->slot == b->slot || (a->state != 0 && a->state >> 32 == b->state >> 32)) &&
                !same_state(p, a, b))
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

/* What is read differs by the match that gives that value, or, if none does, by m: that goes, and
 * what differs beside it is looked for. False: by nobody. */
static bool is_doing_of(tl_pass *p, uint32_t slot, tl_match *m)
{
    m = maker_of(p, slot) != NULL ? maker_of(p, slot) : m;
    if (m != NULL && !m->blamed)
        tl_match_bar(p, m);
    else if (m != NULL)
        tl_err_clear(&p->why);
    return m != NULL;
}

bool tl_same_memory(tl_pass *p, tl_side *s)
{
    const uint32_t n = s->t->n_nodes;
    if (!map_back(p, s) || !list_reads(p, s))
        return false;
    for (uint32_t i = 0, last = 0; i <= n; i++) { /* the last: what is handed out */
        const tl_node *node = i < n ? &s->t->node[i] : NULL;
        const uint32_t from = node != NULL ? s->from[i] : p->n_nodes;
        tl_match *m = node == NULL || from < p->n_nodes ? NULL : p->owner[from];
        const tl_read *a = m == NULL ? p->was.read[from] : NULL, *b = s->read[i];
        for (int k = 0; k < (node != NULL ? node->n_in : tl_graph_results(p->g)); k++)
            if ((a == NULL ? !same_as_members(p, m, &b[k]) : !same_read(p, &a[k], &b[k])) &&
                !is_doing_of(p, a == NULL ? b[k].slot : a[k].slot, m))
                return false;
        if (node == NULL || (!tl_is_mark(node) && !tl_node_mutates(node)))
            continue;
        if (from < last)
            return tl_refuse(p, "%s at %s:%d would come before what it came after", node->op->name,
                             node->file, node->line);
        last = from;
    }
    return true;
}

/* ---- gradients ---- */

/* A term of a sum: the match that it comes from, and what tells it from others. */
typedef struct term {
    tl_match *m;
    uint64_t name;
    struct term *next;
} term;

/* The gradient of a value in one backward, its terms in their order. */
typedef struct {
    term *first, *last;
    int n;
} sum;

static int terms_of(const sum *x, const tl_match *m)
{
    int n = 0;
    for (const term *e = m == NULL ? NULL : x->first; e != NULL; e = e->next)
        n += e->m == m;
    return n;
}

/* One more term of the value in that slot, from input k of a node: told by its match, or by that
 * place; and a leaf's by the kind of accumulator. Several of one match that come first count as
 * one, but for a leaf's, which are all numbered, and those of what the match gives out. */
static bool add_term(const tl_pass *p, const tl_side *s, sum *x, uint32_t node, int k,
                     uint32_t slot, bool leaf)
{
    char kind[TL_ATTRS_TEXT] = "";
    const uint32_t from = node_of(s, node);
    tl_match *m = p->owner[from];
    if (m != NULL && !leaf && x->n == 1 && x->last->m == m && m != maker_of(p, slot))
        return true;
    term *e = tl_bump_get(&s->t->bump, sizeof *e);
    if (e == NULL)
        return false;
    *e = (term){m, m != NULL ? (uint64_t)1 << 55 | m->root : (uint64_t)from << 16 | (uint64_t)k,
                NULL};
    for (const char *c = leaf ? tl_use_kind(s->t, &s->t->node[node], k, kind) : kind; *c != 0; c++)
        e->name = (e->name ^ e->name >> 29) * 0x9e3779b97f4a7c15u + (uint64_t)*c;
    *(x->last == NULL ? &x->first : &x->last->next) = e;
    x->last = e;
    x->n++;
    return true;
}

/* By slot, of a backward from y; a leaf's uses also through views. NULL: out of memory. */
static sum *sums_of(tl_pass *p, const tl_side *s, tl_tensor y)
{
    const tl_walk w = {.t = s->t};
    uint32_t *order, n;
    sum *all = tl_bump_get(&s->t->bump, (slots(p) + (size_t)1) * sizeof *all);
    bool ok = all != NULL && tl_canonical_order(s->t, y, TL_TO_GRAD, &order, &n) == TL_OK;
    for (uint32_t i = 0; ok && i < n; i++) {
        const tl_node *node = &s->t->node[order[i]];
        if (s->from == NULL)
            p->reached[order[i]] = true;
        for (int k = 0; k < node->n_in && !tl_walk_skips(&w, node); k++) {
            const tl_tensor x = node->in[k];
            if (tl_is_none(x) || !tl_peek(s->t, x)->needs_grad)
                continue;
            const tl_tensor leaf = tl_leaf_under(s->t, x);
            const uint32_t slot = slot_of(p, s, tl_is_none(leaf) ? x : leaf);
            ok &= add_term(p, s, &all[slot], order[i], k, slot, !tl_is_none(leaf));
        }
    }
    return ok ? all : NULL;
}

/* Both are the same sum; else *m is the match to blame, if one is. The first two terms may change
 * places. An output that its match reads itself has had that term last of all, or as one of two:
 * the replacement adds it to the sum of the others. */
static bool same_sum(tl_pass *p, sum *a, sum *b, uint32_t slot, tl_match **m)
{
    tl_match *own = *m = maker_of(p, slot);
    const bool leaf = maker_at(p, slot) < 0;
    const int own_a = terms_of(a, own), own_b = terms_of(b, own);
    const bool late = own_a == 1 && own_b == 0 && (a->n == 2 || a->last->m == own);
    if (own != NULL && own_a == a->n && own_b == b->n)
        return true;
    if (own_a > 1 || (own_a != own_b && !late))
        return false;
    for (term **e = &a->first; late; e = &(*e)->next)
        if ((*e)->m == own) {
            *e = (*e)->next;
            a->n--;
            break;
        }
    term *x = a->first, *y = b->first, *z = y == NULL ? NULL : y->next;
    if (!leaf && z != NULL && x != NULL && x->next != NULL && x->name == z->name) {
        y->next = z->next; /* turned */
        z->next = y;
        y = z;
    }
    for (p->sums++; x != NULL && y != NULL && x->name == y->name; x = x->next, y = y->next) {
        if (!leaf && x->m != NULL && x->m->sum == p->sums) /* scattered */
            return *m = x->m, false;
        if (x->m != NULL)
            x->m->sum = p->sums;
    }
    const bool same = x == NULL && y == NULL;
    for (; *m == NULL && (x != NULL || y != NULL);
         x = x == NULL ? x : x->next, y = y == NULL ? y : y->next)
        *m = y != NULL && y->m != NULL ? y->m : x != NULL ? x->m : NULL;
    return same;
}

/* Why m may not be: the gradient of the value in that slot, which was a. */
static bool say_why(tl_pass *p, const tl_match *m, uint32_t slot, const sum *a)
{
    const int out = slot < p->n_others ? -1 : tl_match_output(m, slot - p->n_others);
    const int others = a->n - terms_of(a, m);
    if (out >= 0) {
        const tl_node *n = &p->t->node[m->b.node[m->search->out[out].node]];
        return tl_refuse(p,
                         "%s at %s:%d has %d other users: their gradients would be added in "
                         "another order",
                         n->op->name, n->file, n->line, others);
    }
    for (int i = 0; i < m->form->rule->o.n_in; i++)
        if (tl_pass_slot(p, m->b.arg[i]) == slot)
            return tl_refuse(p,
                             "the gradient of '%s', which has %d other users, would be added in "
                             "another order",
                             m->form->rule->o.example_inputs[i].name, others);
    return tl_refuse(p, "a gradient further up would be added in another order");
}

/* m is to go for another sum, or rounds - unless one who has to do with it is to go already, or may
 * round. False: nobody is to blame. */
static bool blame(tl_pass *p, uint32_t slot, const sum *a, const sum *b, tl_match *m)
{
    const tl_match *own = maker_of(p, slot);
    bool known = own != NULL && (own->blamed || own->rounds);
    for (int side = 0; side < 2; side++)
        for (const term *e = side == 0 ? a->first : b->first; e != NULL; e = e->next)
            known |= e->m != NULL && (e->m->blamed || e->m->rounds);
    if (known)
        return true;
    if (m == NULL)
        return tl_refuse(p, "a gradient further up would be added in another order");
    m->rounds = p->g->opt.rounds;
    if (!m->rounds) {
        say_why(p, m, slot, a);
        tl_match_bar(p, m);
    }
    return true;
}

/* The next backward of s from node *i on; NULL: none. */
static const tl_node *next_backward(const tl_side *s, uint32_t n, uint32_t *i)
{
    while (*i < n && s->t->node[*i].op != &tl_op_mark_backward)
        ++*i;
    return *i < n ? &s->t->node[(*i)++] : NULL;
}

bool tl_same_gradients(tl_pass *p, tl_side *s)
{
    uint32_t i = 0, j = 0;
    tl_match *m;
    for (const tl_node *is; (is = next_backward(s, s->t->n_nodes, &j)) != NULL;) {
        const tl_node *was = next_backward(&p->was, p->n_nodes, &i);
        sum *a = sums_of(p, &p->was, was->in[0]), *b = a == NULL ? NULL : sums_of(p, s, is->in[0]);
        if (b == NULL)
            return no_memory(p);
        for (uint32_t slot = 0; slot < slots(p); slot++)
            if (a[slot].n + b[slot].n > 0 && !same_sum(p, &a[slot], &b[slot], slot, &m) &&
                !blame(p, slot, &a[slot], &b[slot], m))
                return false;
    }
    return true;
}

/* ---- before anything is replaced ---- */

/* x is read, by a node or otherwise. */
static bool add_user(tl_pass *p, uint32_t node, tl_tensor x)
{
    const tl_user **first = tl_is_none(x) ? NULL : &p->users[tl_pass_slot(p, x)];
    tl_user *u = first == NULL ? NULL : tl_bump_get(&p->bump, sizeof *u);
    if (u != NULL) {
        *u = (tl_user){node, *first};
        *first = u;
    }
    return first == NULL || u != NULL;
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
        p->n_others += (uint32_t)t->grad[i].n_accs;
    }
    p->owner = tl_bump_get(&p->bump, (p->n_nodes + 1) * sizeof *p->owner);
    p->users = tl_bump_get(&p->bump, (slots(p) + 1) * sizeof *p->users);
    bool ok = p->first_acc != NULL && p->owner != NULL && p->users != NULL;
    for (int i = 0; i < tl_graph_results(p->g) && ok; i++)
        ok = add_user(p, UINT32_MAX, *tl_graph_result(p->g, i));
    for (uint32_t v = 0; v < p->n_values && ok; v++)
        ok = add_user(p, UINT32_MAX, tl_values_at(&t->values, v)->source);
    for (uint32_t i = p->n_nodes; i-- > 0;) /* the last first: in order, when each comes in front */
        for (int k = t->node[i].n_in; k-- > 0 && ok;)
            ok = add_user(p, i, t->node[i].in[k]);
    return ok ? TL_OK : (no_memory(p), TL_ENOMEM);
}

tl_status tl_compare_prepare(tl_pass *p)
{
    p->reached = tl_bump_get(&p->bump, p->n_nodes + 1);
    p->changer = tl_bump_get(&p->bump, (slots(p) + 1) * sizeof *p->changer);
    if (p->reached == NULL || p->changer == NULL)
        return TL_ENOMEM;
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const tl_node *n = &p->t->node[i];
        if (n->op == &tl_op_mark_backward && sums_of(p, &p->was, n->in[0]) == NULL)
            return TL_ENOMEM;
        for (int k = 0; k < n->n_in; k++)
            if (tl_node_writes(n, k))
                p->changer[memory_of(p, &p->was, n->in[k])] = i + 1;
    }
    return list_reads(p, &p->was) ? TL_OK : TL_ENOMEM;
}
