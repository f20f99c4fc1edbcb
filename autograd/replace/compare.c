/* compare.c: a graph with replacements made, beside the graph without.
 *
 * What could show in a bit is compared, each node of the new one standing for the node that it is a
 * copy of:
 *   - memory: every node reads what it read, after the same changes in place, and outputs lie in
 *     the memory that they lay in, if that is ever changed;
 *   - leaves: the same uses at the same numbers, with accumulators of one kind (NUMERICS 10);
 *   - other values: the terms of their gradients in the same order. The first two may change places
 *     (an IEEE addition commutes), and terms that all come from one match, one after another from
 *     the first, count as one: the rule's own claim is about their sum;
 *   - outputs of a match that it reads itself, which the replacement keeps to itself: its term is
 *     added to the sum of the others, so it must have been the last (or one of two). */
#include <string.h>

#include "autograd/replace/internal.h"

uint32_t tl_pass_slot(const tl_pass *p, tl_tensor x)
{
    return x.owner == p->t->values.owner ? p->n_others + x.index : x.index;
}
static uint32_t slots(const tl_pass *p) { return p->n_others + atomic_load(&p->t->values.count); }

static bool no_memory(tl_pass *p)
{
    return tl_fail(&p->why, TL_ENOMEM, "no memory to compare graphs of %u nodes", p->t->n_nodes),
           false;
}

/* The match on trial that made the value in that slot; NULL: none. */
static tl_match *maker_of(const tl_pass *p, uint32_t slot)
{
    const int32_t i = slot < p->n_others ? -1
                                         : tl_values_at(&p->t->values, slot - p->n_others)->node;
    return i < 0 ? NULL : p->owner[i];
}

/* ---- memory ---- */

static uint32_t memory_of(const tl_pass *p, tl_tensor x)
{
    x = tl_bottom(p->t, x);
    const tl_leaf l = tl_leaf_of(p->t, x);
    return l.kind == TL_LEAF_ACC ? p->first_acc[l.at] + l.use : tl_pass_slot(p, x);
}

/* How that memory is yet to be changed; NULL: it is not. */
static const tl_user *due(const tl_pass *p, uint32_t memory)
{
    return memory < p->n_others + p->n_values ? p->due[memory] : NULL;
}

bool tl_same_outputs(tl_pass *p, const tl_match *m)
{
    char sx[TL_SHAPE_TEXT], sy[TL_SHAPE_TEXT];
    for (int i = 0; i < m->search->n_out; i++) {
        const tl_tensor x = m->out[i], y = m->put[i];
        if (tl_is_none(x))
            continue;
        if (tl_is_none(y))
            return tl_refuse(p, NULL, "its replacement sets no output %d", i);
        const tl_value *v = tl_peek(p->t, x), *w = tl_peek(p->t, y);
        const tl_array *a = &v->a, *b = &w->a;
        if (!tl_array_same_shape(a, b) || a->dtype != b->dtype)
            return tl_fail(&p->why, a->dtype != b->dtype ? TL_EDTYPE : TL_ESHAPE,
                           "output %d of its replacement is %s %s, of its search %s %s", i,
                           tl_dtype_name(b->dtype), tl_array_shape_text(sy, b),
                           tl_dtype_name(a->dtype), tl_array_shape_text(sx, a)),
                   false;
        for (int d = 0; !p->example && d < a->ndim; d++)
            if (a->dim[d] > 1 && a->stride[d] != b->stride[d])
                return tl_refuse(p, NULL,
                                 "output %d of the replacement has other strides in dim %d (%lld, "
                                 "not %lld)",
                                 i, d, (long long)b->stride[d], (long long)a->stride[d]);
        const uint32_t was = memory_of(p, x), is = memory_of(p, y);
        const tl_user *c = due(p, was) != NULL ? due(p, was) : due(p, is);
        const bool both_own = was == tl_pass_slot(p, x) && is == tl_pass_slot(p, y);
        const tl_node *by = c == NULL ? NULL : &p->t->node[c->node];
        if (by != NULL && was != is && !(both_own && y.index >= p->n_values))
            return tl_refuse(p, NULL,
                             "an output would lie in other memory, which %s at %s:%d changes in "
                             "place",
                             by->op->name, by->file, by->line);
        if (!p->joint && !p->example && v->needs_grad != w->needs_grad) /* to lead elsewhere */
            return tl_refuse(p, NULL,
                             "an output of the replacement carries %s gradient, of its search %s",
                             w->needs_grad ? "a" : "no", v->needs_grad ? "one" : "none");
    }
    return true;
}

/* What the program's node i reads is in memory now as it was there. */
static bool in_time(tl_pass *p, uint32_t i)
{
    const tl_node *n = &p->t->node[i];
    for (int k = 0; k < n->n_in; k++) {
        const uint32_t memory = tl_is_none(n->in[k]) ? 0 : memory_of(p, n->in[k]);
        const tl_user *c = due(p, memory);
        const bool late = memory < p->n_others + p->n_values && p->last[memory] > i;
        if (!tl_is_none(n->in[k]) && (late || (c != NULL && i > c->node)))
            return tl_refuse(p, &p->t->node[late ? p->last[memory] - 1 : c->node],
                             "changes a memory in place between what it reads");
    }
    return true;
}

static bool same_memory(tl_pass *p)
{
    for (uint32_t i = 0, mark = 0; i < p->now->n_nodes; i++) {
        const uint32_t from = p->from[i];
        const tl_node *n = &p->t->node[from];
        tl_match *m = from < p->n_nodes ? NULL : p->owner[from];
        if (m == NULL && !in_time(p, from)) /* by nobody's doing that is known */
            return false;
        for (int k = 0; m != NULL && !m->blamed && k < m->search->n_nodes; k++)
            if (!in_time(p, (uint32_t)m->b.node[k]) && !m->blamed)
                tl_match_bar(p, m);
        for (int k = 0; k < n->n_in; k++) {
            const uint32_t memory = tl_node_writes(n, k) ? memory_of(p, n->in[k]) : 0;
            if (tl_node_writes(n, k) && p->due[memory] != NULL) {
                p->due[memory] = p->due[memory]->next;
                p->last[memory] = from + 1;
            }
        }
        if (tl_is_mark(n) && from < mark)
            return tl_refuse(p, n, "would come before what it came after");
        mark = tl_is_mark(n) || tl_node_mutates(n) ? from : mark;
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
    bool leaf;
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
static bool add_term(const tl_pass *p, bool now, sum *x, uint32_t node, int k, const tl_match *own)
{
    tl_tape *t = now ? p->now : p->t;
    char kind[TL_ATTRS_TEXT] = "";
    const uint32_t from = now ? p->from[node] : node;
    tl_match *m = p->owner[from];
    if (m != NULL && !x->leaf && x->n == 1 && x->last->m == m && m != own)
        return true;
    term *e = tl_bump_get(&t->bump, sizeof *e);
    if (e == NULL)
        return false;
    *e = (term){m, m != NULL ? (uint64_t)1 << 55 | m->root : (uint64_t)from << 16 | (uint64_t)k,
                NULL};
    for (const char *c = x->leaf ? tl_use_kind(t, &t->node[node], k, kind) : kind; *c != 0; c++)
        e->name = (e->name ^ e->name >> 29) * 0x9e3779b97f4a7c15u + (uint64_t)*c;
    *(x->last == NULL ? &x->first : &x->last->next) = e;
    x->last = e;
    x->n++;
    return true;
}

/* x, or what stands for it now; and the slot that either has on both sides. */
static tl_tensor actual(const tl_pass *p, bool now, tl_tensor x)
{
    while (now && x.owner == p->t->values.owner && x.index < p->n_values &&
           !tl_is_none(p->stand_in[x.index]))
        x = p->stand_in[x.index];
    return x;
}
static uint32_t slot_of(const tl_pass *p, tl_tensor x)
{
    const bool put = x.owner == p->t->values.owner && x.index >= p->n_values;
    return put && p->number[x.index] != 0 ? p->n_others + p->number[x.index] - 1
                                          : tl_pass_slot(p, x);
}

/* By slot, of a backward from y; a leaf's uses also through views. NULL: out of memory. */
static sum *sums_of(tl_pass *p, bool now, tl_tensor y)
{
    tl_tape *t = now ? p->now : p->t;
    const tl_walk w = {.t = t};
    uint32_t *order, n;
    sum *all = tl_bump_get(&t->bump, (slots(p) + (size_t)1) * sizeof *all);
    bool ok = all != NULL && tl_canonical_order(t, y, TL_TO_GRAD, &order, &n) == TL_OK;
    for (uint32_t i = 0; ok && i < n; i++) {
        const tl_node *node = &t->node[order[i]], *view;
        const uint32_t from = now ? p->from[order[i]] : order[i];
        for (int k = 0; k < node->n_in && !tl_walk_skips(&w, node); k++) {
            const tl_tensor x = node->in[k];
            if (tl_is_none(x) || !tl_peek(t, x)->needs_grad)
                continue;
            const bool leaf = !tl_is_none(tl_leaf_under(t, x));
            tl_tensor at = actual(p, now, p->t->node[from].in[k]);
            while (leaf && (view = tl_view_at(p->t, at)) != NULL)
                at = actual(p, now, view->in[0]);
            const uint32_t slot = slot_of(p, at);
            all[slot].leaf = leaf;
            ok &= add_term(p, now, &all[slot], order[i], k, maker_of(p, slot));
        }
    }
    return ok ? all : NULL;
}

/* An output that its match reads itself: that term is added to the sum of the others, and not named
 * where it is the last, or one of two. */
static void trim(sum *x, const tl_match *own)
{
    term **e = &x->first;
    if (terms_of(x, own) != 1 || (x->n > 2 && x->last->m != own))
        return;
    while ((*e)->m != own)
        e = &(*e)->next;
    *e = (*e)->next;
    x->n--;
}

/* Both are the same sum; else *m is the match to blame, if one is. The first two terms may change
 * places. */
static bool same_sum(tl_pass *p, sum *a, sum *b, uint32_t slot, tl_match **m)
{
    tl_match *own = *m = maker_of(p, slot);
    if (own != NULL && terms_of(a, own) == a->n && terms_of(b, own) == b->n)
        return true;
    trim(a, own);
    trim(b, own);
    term *x = a->first, *y = b->first, *z = y == NULL ? NULL : y->next;
    if (!b->leaf && z != NULL && x != NULL && x->next != NULL && x->name == z->name) {
        y->next = z->next; /* turned */
        z->next = y;
        y = z;
    }
    for (p->sums++; x != NULL && y != NULL && x->name == y->name; x = x->next, y = y->next) {
        if (!b->leaf && x->m != NULL && x->m->sum == p->sums) /* scattered */
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

/* m is to go for the gradient of the value in that slot, which was a and is b, or rounds - unless
 * one who has to do with it is to go already, or may round. False: nobody is to blame. */
static bool blame(tl_pass *p, uint32_t slot, const sum *a, const sum *b, tl_match *m)
{
    const tl_match *own = maker_of(p, slot);
    bool known = own != NULL && (own->blamed || own->rounds);
    for (int side = 0; side < 2; side++)
        for (const term *e = side == 0 ? a->first : b->first; e != NULL; e = e->next)
            known |= e->m != NULL && (e->m->blamed || e->m->rounds);
    if (known)
        return true;
    if (m != NULL && (m->rounds = p->g->opt.rounds))
        return true;
    const tl_tensor x = {p->t->values.owner, slot - p->n_others, p->t->generation};
    const int out = m == NULL || slot < p->n_others ? -1 : tl_match_output(m, x);
    const int others = a->n - terms_of(a, m);
    if (out >= 0)
        tl_refuse(p, &p->t->node[m->b.node[m->search->out[out].node]],
                  "has %d other users: their gradients would be added in another order", others);
    for (int i = 0; m != NULL && i < m->form->rule->o.n_in; i++)
        if (tl_pass_slot(p, m->b.arg[i]) == slot)
            tl_refuse(p, NULL,
                      "the gradient of '%s', which has %d other users, would be added in another "
                      "order",
                      m->form->rule->o.example_inputs[i].name, others);
    tl_refuse(p, NULL, "a gradient further up would be added in another order");
    if (m != NULL)
        tl_match_bar(p, m);
    return m != NULL;
}

static bool same_gradients(tl_pass *p)
{
    tl_match *m;
    for (uint32_t i = 0; i < p->now->n_nodes; i++) {
        const tl_node *is = &p->now->node[i], *old = &p->t->node[p->from[i]];
        if (is->op != &tl_op_mark_backward)
            continue;
        sum *a = sums_of(p, false, old->in[0]), *b = sums_of(p, true, is->in[0]);
        if (a == NULL || b == NULL)
            return no_memory(p);
        for (uint32_t slot = 0; slot < slots(p); slot++)
            if (a[slot].n + b[slot].n > 0 && !same_sum(p, &a[slot], &b[slot], slot, &m) &&
                !blame(p, slot, &a[slot], &b[slot], m))
                return false;
    }
    return true;
}

bool tl_same_graph(tl_pass *p) { return same_memory(p) && same_gradients(p); }

/* ---- before anything is replaced ---- */

static bool add_in_front(tl_pass *p, const tl_user **list, uint32_t node)
{
    tl_user *u = tl_bump_get(&p->bump, sizeof *u);
    if (u != NULL) {
        *u = (tl_user){node, *list};
        *list = u;
    }
    return u != NULL;
}

/* x is read, by a node or otherwise. */
static bool add_user(tl_pass *p, uint32_t node, tl_tensor x)
{
    return tl_is_none(x) || add_in_front(p, &p->users[tl_pass_slot(p, x)], node);
}

tl_status tl_pass_index(tl_pass *p)
{
    tl_tape *t = p->t;
    p->n_nodes = t->n_nodes;
    p->n_values = atomic_load(&t->values.count);
    p->n_others = t->model == NULL ? 0 : atomic_load(&t->model->values.count);
    p->first_acc = tl_bump_get(&p->bump, ((size_t)t->n_grads + 1) * sizeof *p->first_acc);
    for (int i = 0; i < t->n_grads && p->first_acc != NULL; i++) {
        p->first_acc[i] = p->n_others;
        p->n_others += (uint32_t)t->grad[i].n_accs;
    }
    p->owner = tl_bump_get(&p->bump, (p->n_nodes + 1) * sizeof *p->owner);
    p->reached = tl_bump_get(&p->bump, p->n_nodes + 1);
    p->due = tl_bump_get(&p->bump, (slots(p) + 1) * sizeof *p->due);
    p->users = tl_bump_get(&p->bump, (slots(p) + 1) * sizeof *p->users);
    bool ok = p->first_acc != NULL && p->owner != NULL && p->users != NULL && p->reached != NULL &&
              p->due != NULL;
    for (int i = 0; i < tl_graph_results(p->g) && ok; i++)
        ok = add_user(p, UINT32_MAX, *tl_graph_result(p->g, i));
    for (uint32_t v = 0; v < p->n_values && ok; v++) {
        tl_values_at(&t->values, v)->consumed = false; /* behind the program all may be read */
        ok = add_user(p, UINT32_MAX, tl_values_at(&t->values, v)->source);
    }
    for (uint32_t i = p->n_nodes; i-- > 0;) /* the last first: in order, when each comes in front */
        for (int k = t->node[i].n_in; k-- > 0 && ok;)
            ok = add_user(p, i, t->node[i].in[k]) &&
                 (!tl_node_writes(&t->node[i], k) ||
                  add_in_front(p, &p->due[memory_of(p, t->node[i].in[k])], i));
    for (uint32_t i = 0, n, *order; i < p->n_nodes && ok; i++) {
        if (t->node[i].op != &tl_op_mark_backward)
            continue;
        ok = tl_canonical_order(t, t->node[i].in[0], TL_TO_GRAD, &order, &n) == TL_OK;
        while (ok && n-- > 0)
            p->reached[order[n]] = true;
    }
    return ok ? TL_OK : (no_memory(p), TL_ENOMEM);
}

/* What m has put stands for what it replaces. */
static void stand_in(tl_pass *p, tl_match *m)
{
    for (uint32_t i = m->first; i < m->end; i++)
        p->owner[i] = m;
    for (int k = 0; k < m->search->n_nodes; k++)
        p->gone[m->b.node[k]] = true;
    for (int i = m->search->n_out; i-- > 0;) {
        if (tl_is_none(m->out[i]))
            continue;
        p->stand_in[m->out[i].index] = m->put[i];
        if (m->put[i].owner == p->t->values.owner)
            p->number[m->put[i].index] = m->out[i].index + 1;
    }
}

tl_status tl_compare_prepare(tl_pass *p)
{
    const size_t values = atomic_load(&p->t->values.count) + (size_t)1;
    tl_match **owner = tl_bump_get(&p->bump, (p->t->n_nodes + (size_t)1) * sizeof *owner);
    p->gone = tl_bump_get(&p->bump, p->n_nodes + (size_t)1);
    p->stand_in = tl_bump_get(&p->bump, values * sizeof *p->stand_in);
    p->number = tl_bump_get(&p->bump, values * sizeof *p->number);
    p->last = tl_bump_get(&p->bump, (p->n_others + values) * sizeof *p->last);
    if (owner == NULL || p->gone == NULL || p->stand_in == NULL || p->number == NULL ||
        p->last == NULL)
        return TL_ENOMEM;
    p->owner = memcpy(owner, p->owner, p->n_nodes * sizeof *owner);
    for (int i = 0; i < p->n_found; i++)
        stand_in(p, p->found[i]);
    return TL_OK;
}
