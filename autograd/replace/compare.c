/* compare.c: compares a graph in which replacements have been made with the graph before. Each node
 * of the new graph is a copy of one of the old. All that could change a bit is compared:
 *   - memory: every node reads its operands after the same changes in place, and an output lies in
 *     the same memory as before, if that is ever changed;
 *   - gradients of leaves: the same uses at the same numbers, of one kind (NUMERICS 10);
 *   - gradients of other values: the same terms in the same order. The first two may change places
 *     (an IEEE addition commutes), and terms of one match count as one if the sum begins with them:
 *     the rule's claim is about their sum;
 *   - gradients of outputs that the match itself reads: the replacement adds its term to the sum of
 *     the others, so the term must have been the last, or one of two. */
#include <string.h>

#include "autograd/replace/internal.h"

void *tl_pass_room(tl_pass *p, size_t n, size_t size)
{
    void *room = tl_bump_get(&p->bump, n * size);
    if (room == NULL)
        tl_fail(&p->why, TL_ENOMEM, "no memory to compare graphs of %u nodes", p->t->n_nodes);
    return room;
}

tl_remark *tl_remark_add(tl_graph *g, tl_remark **list, const tl_rule *r, const char *why)
{
    tl_remark *b = tl_graph_room(g, 1, sizeof *b + strlen(why) + 1);
    if (b == NULL)
        return NULL;
    *b = (tl_remark){.rule = r, .next = *list};
    strcpy(b->why, why);
    return *list = b;
}

bool tl_refuse(tl_pass *p, const tl_node *n, const char *fmt, ...)
{
    tl_err e = {.status = TL_OK};
    va_list ap;
    va_start(ap, fmt);
    tl_vfail(&e, TL_EUSAGE, fmt, ap);
    va_end(ap);
    if (n != NULL)
        tl_fail(&p->why, e.status, "%s at %.150s:%d %s", n->op->name, n->file, n->line, e.message);
    tl_fail(&p->why, e.status, "%s", e.message); /* nothing if there is a reason already */
    return false;
}

void tl_match_bar(tl_pass *p, tl_match *m)
{
    m->blamed = true;
    p->n_barred++;
    tl_remark_add(p->g, &p->bars[m->root], m->rule, p->why.message);
    tl_err_clear(&p->why);
}

tl_status tl_same_kind(const tl_array *a, const tl_array *b, const char *what, int i, tl_err *err)
{
    if (b == NULL)
        return tl_fail(err, TL_EUSAGE, "its replacement sets no %s %d", what, i);
    if (a->dtype == b->dtype && tl_array_same_shape(a, b))
        return TL_OK;
    return tl_fail(err, a->dtype != b->dtype ? TL_EDTYPE : TL_ESHAPE,
                   "%s %d of its replacement is %s %s, of its search %s %s", what, i,
                   tl_dtype_name(b->dtype), TL_TEXT(b), tl_dtype_name(a->dtype), TL_TEXT(a));
}

uint32_t tl_pass_slot(const tl_pass *p, tl_tensor x)
{
    return x.owner == p->t->values.owner ? p->n_others + x.index : x.index;
}

static uint32_t slots(const tl_pass *p) { return p->n_others + atomic_load(&p->t->values.count); }

/* The match that computes or has put the value in that slot; NULL: none. */
static tl_match *maker_of(const tl_pass *p, uint32_t slot)
{
    const int32_t i = slot < p->n_others ? -1
                                         : tl_values_at(&p->t->values, slot - p->n_others)->node;
    return i < 0 ? NULL : p->owner[i];
}

/* The slot of the memory that x lies in. */
static uint32_t memory_of(const tl_pass *p, tl_tensor x)
{
    const tl_leaf l = tl_leaf_of(p->t, x = tl_bottom(p->t, x));
    return l.kind == TL_LEAF_ACC ? p->first_acc[l.at] + l.use : tl_pass_slot(p, x);
}

/* y, put for x, lies where x lay, or each has its own memory, or nobody changes anything there: a
 * node of the graph, or the program with a result that it is handed. */
static bool same_place(tl_pass *p, tl_tensor x, tl_tensor y)
{
    const uint32_t was = memory_of(p, x), is = memory_of(p, y);
    const tl_user *due = p->at[was].due != NULL || is >= p->n_known ? p->at[was].due
                                                                    : p->at[is].due;
    if (was == is ||
        (was == tl_pass_slot(p, x) && is == tl_pass_slot(p, y) && y.index >= p->n_values))
        return true;
    for (int k = 0; is < p->n_known && k < p->g->n_out; k++)
        if (memory_of(p, p->g->out[k]) == was)
            return tl_refuse(p, NULL, "a result of the graph would lie in other memory");
    return due == NULL || tl_refuse(p, &p->t->node[due->node],
                                    "changes the memory of an output, which would lie elsewhere");
}

bool tl_same_outputs(tl_pass *p, const tl_match *m)
{
    for (int i = 0; i < m->search->n_out; i++) {
        const tl_value *v = tl_peek(p->t, m->out[i]), *w = tl_peek(p->t, m->put[i]);
        if (tl_is_none(m->out[i]))
            continue;
        if (tl_same_kind(&v->a, w == NULL ? NULL : &w->a, "output", i, &p->why) != TL_OK)
            return false;
        for (int d = 0; !p->example && d < v->a.ndim; d++)
            if (v->a.dim[d] > 1 && v->a.stride[d] != w->a.stride[d])
                return tl_refuse(p, NULL, "output %d has other strides in dim %d (%lld, not %lld)",
                                 i, d, (long long)w->a.stride[d], (long long)v->a.stride[d]);
        if (!p->joint && !p->example && v->needs_grad != w->needs_grad)
            return tl_refuse(p, NULL, "output %d carries a gradient in its %s alone", i,
                             v->needs_grad ? "search" : "replacement");
        if (!p->joint && !p->example && w->needs_grad &&
            (v->batch != w->batch || v->samples != w->samples))
            return tl_refuse(p, NULL, "output %d depends on samples otherwise (by .batch?)", i);
        if (!same_place(p, m->out[i], m->put[i]))
            return false;
    }
    return true;
}

/* Every memory that node i of the program reads has seen exactly the changes before the node. */
static bool in_time(tl_pass *p, uint32_t i)
{
    const tl_node *n = &p->t->node[i];
    for (int k = 0; k < n->n_in; k++) {
        if (tl_is_none(n->in[k]))
            continue;
        const tl_slot *s = &p->at[memory_of(p, n->in[k])];
        const bool late = s->last > i;
        if (late || (s->due != NULL && i > s->due->node))
            return tl_refuse(p, &p->t->node[late ? s->last - 1 : s->due->node],
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
        if (m == NULL && !in_time(p, from))
            return false; /* no match can be blamed */
        for (int k = 0; m != NULL && !m->blamed && k < m->search->n_nodes; k++)
            if (!in_time(p, (uint32_t)m->b.node[k]))
                tl_match_bar(p, m);
        for (int k = 0; k < n->n_in; k++) {
            const uint32_t at = tl_node_writes(n, k) ? memory_of(p, n->in[k]) : p->n_known;
            if (at < p->n_known && p->at[at].due != NULL) {
                p->at[at].due = p->at[at].due->next;
                p->at[at].last = from + 1;
            }
        }
        if (tl_is_mark(n) && from < mark)
            return tl_refuse(p, n, "would come before what it came after");
        mark = tl_is_mark(n) || tl_node_mutates(n) ? from : mark;
    }
    return true;
}

/* ---- gradients ---- */

/* A term of a gradient: its match (NULL: none), and a name that tells it from others. */
typedef struct term {
    tl_match *m;
    uint64_t name;
    struct term *next;
} term;

/* The terms of a value's gradient in one backward; those of its own match are only counted. */
typedef struct {
    term *first, *last;
    int n, n_own;
    int own_at; /* how many terms come before the last of its own */
    bool leaf;
} sum;

/* Adds the term that comes from input k of a node. Its match names it or, without one, that place;
 * a leaf's term is also named by the kind of accumulator. Terms of one match count as one if the
 * sum begins with them, except a leaf's, which are all numbered, and except behind a term of `own`.
 * Of the first two terms the smaller name comes first. */
static void add_term(tl_pass *p, tl_tape *t, sum *x, uint32_t node, int k, const tl_match *own)
{
    char kind[TL_ATTRS_TEXT];
    const uint32_t from = t == p->now ? p->from[node] : node;
    tl_match *m = p->owner[from];
    if (m != NULL && m == own && !x->leaf) {
        x->own_at = x->n;
        x->n_own++;
        return;
    }
    const term *known = m == NULL || x->leaf ? NULL : x->first;
    while (known != NULL && known->m != m)
        known = known->next;
    if (known != NULL && x->n == 1 && x->n_own == 0)
        return;
    term *e = tl_pass_room(p, 1, sizeof *e);
    if (e == NULL)
        return;
    e->m = m;
    e->name = m != NULL && known == NULL ? (uint64_t)1 << 55 | m->root
                                         : (uint64_t)from << 16 | (uint64_t)k;
    if (x->leaf)
        e->name = tl_mix_text(e->name, tl_use_kind(t, &t->node[node], k, kind));
    const bool front = x->n == 0 || (x->n == 1 && !x->leaf && e->name < x->first->name);
    e->next = front ? x->first : NULL;
    *(front ? &x->first : &x->last->next) = e;
    x->last = e->next == NULL ? e : x->last;
    x->n++;
}

/* The gradients of the backward from y, by slot. A leaf's view is the leaf, and a value made of
 * parameters alone is one where anything else is made of it. Without memory p->why says so. */
static sum *sums_of(tl_pass *p, tl_tape *t, tl_tensor y)
{
    const tl_walk w = {.t = t};
    uint32_t *order, n;
    sum *all = tl_pass_room(p, slots(p), sizeof *all);
    if (tl_canonical_order(t, y, TL_TO_GRAD, &order, &n) != TL_OK)
        tl_fail(&p->why, TL_ENOMEM, "no memory to compare gradients");
    for (uint32_t i = 0; p->why.status == TL_OK && i < n; i++) {
        const tl_node *node = &t->node[order[i]];
        for (int k = 0; k < node->n_in && !tl_walk_skips(&w, node); k++) {
            if (tl_is_none(node->in[k]) || !tl_peek(t, node->in[k])->needs_grad)
                continue;
            const tl_tensor leaf = tl_accumulates(t, node, k),
                            x = tl_is_none(leaf) ? node->in[k] : leaf;
            const uint32_t slot = t == p->now && x.owner == t->values.owner ? p->was[x.index]
                                                                            : tl_pass_slot(p, x);
            all[slot].leaf |= !tl_is_none(leaf);
            add_term(p, t, &all[slot], order[i], k, maker_of(p, slot));
        }
    }
    return all;
}

/* The term of the value's own match is the last, or one of two: the others may be summed first. */
static bool own_last(const sum *x)
{
    return x->n_own == 0 || (x->n_own == 1 && (x->n == 1 || x->own_at == x->n));
}

static bool settled(const tl_match *m) { return m != NULL && (m->blamed || m->rounds); }

/* The gradient of the value in that slot is a in the old graph and b in the new one. If they
 * differ, a match is barred, or rounds, unless one that has a term in them is barred or rounds
 * already. False: no match can be blamed. */
static bool same_sum(tl_pass *p, const sum *a, const sum *b, uint32_t slot)
{
    const term *x = a->first, *y = b->first;
    tl_match *m = maker_of(p, slot);
    for (; x != NULL && y != NULL && x->name == y->name; x = x->next)
        y = y->next;
    if (x == NULL && y == NULL && (a->n + b->n == 0 || (own_last(a) && own_last(b))))
        return true;
    bool known = settled(m);
    int others = 0;
    while (m == NULL && (x != NULL || y != NULL)) {
        m = y != NULL && y->m != NULL ? y->m : x != NULL ? x->m : NULL;
        x = x == NULL ? NULL : x->next;
        y = y == NULL ? NULL : y->next;
    }
    for (const term *e = a->first; e != NULL; e = e->next)
        known |= settled(e->m), others += e->m != m;
    for (const term *e = b->first; e != NULL; e = e->next)
        known |= settled(e->m);
    if (!known && m == NULL)
        return tl_refuse(p, NULL, "a gradient would be added in another order");
    if (known || (m->rounds = p->g->opt.rounds))
        return true;
    const char *of = maker_of(p, slot) == m ? "an output" : "a value further up";
    if (b->leaf && maker_of(p, slot) == m)
        tl_refuse(p, NULL, "it would make a weight, which has a gradient of its own");
    for (int i = 0; i < m->rule->o.n_in; i++)
        if (tl_pass_slot(p, m->b.arg[i]) == slot)
            of = m->rule->o.example_inputs[i].name;
    tl_refuse(p, NULL,
              "the gradient of %s, which has %d other users, would be added in another order", of,
              others);
    tl_match_bar(p, m);
    return true;
}

static bool same_gradients(tl_pass *p)
{
    for (uint32_t i = 0; i < p->now->n_nodes; i++) {
        if (p->now->node[i].op != &tl_op_mark_backward)
            continue;
        const sum *a = sums_of(p, p->t, p->t->node[p->from[i]].in[0]),
                  *b = sums_of(p, p->now, p->now->node[i].in[0]);
        for (uint32_t slot = 0; slot < slots(p); slot++)
            if (p->why.status != TL_OK || !same_sum(p, &a[slot], &b[slot], slot))
                return false;
    }
    return true;
}

bool tl_same_graph(tl_pass *p) { return same_memory(p) && same_gradients(p); }

/* ---- the tape before anything is replaced ---- */

/* Puts node `by` in front of a list. */
static void add_user(tl_pass *p, const tl_user **list, uint32_t by)
{
    tl_user *u = tl_pass_room(p, 1, sizeof *u);
    if (u == NULL)
        return;
    *u = (tl_user){by, *list};
    *list = u;
}

bool tl_pass_index(tl_pass *p)
{
    tl_tape *t = p->t;
    p->n_nodes = t->n_nodes;
    p->n_values = atomic_load(&t->values.count);
    p->n_others = t->model == NULL ? 0 : atomic_load(&t->model->values.count);
    p->first_acc = tl_pass_room(p, (size_t)t->n_grads, sizeof *p->first_acc);
    for (int i = 0; p->first_acc != NULL && i < t->n_grads; i++) {
        p->first_acc[i] = p->n_others;
        p->n_others += (uint32_t)t->grad[i].n_accs;
    }
    p->owner = tl_pass_room(p, p->n_nodes, sizeof *p->owner);
    p->reached = tl_pass_room(p, p->n_nodes, 1);
    p->weight = tl_pass_room(p, p->n_nodes, 1);
    p->stand_in = tl_pass_room(p, p->n_values, sizeof *p->stand_in);
    p->n_known = p->n_others + p->n_values;
    p->at = tl_pass_room(p, p->n_known, sizeof *p->at);
    if (p->why.status != TL_OK)
        return false;
    for (int i = 0; i < tl_graph_results(p->g); i++)
        add_user(p, &p->at[tl_pass_slot(p, *tl_graph_result(p->g, i))].users, UINT32_MAX);
    for (uint32_t i = 0; i < p->n_values; i++) {
        tl_value *v = tl_values_at(&t->values, i);
        v->consumed = false; /* a replacement behind the program may read it */
        if (!tl_is_none(v->source))
            add_user(p, &p->at[tl_pass_slot(p, v->source)].users, UINT32_MAX);
    }
    for (uint32_t i = p->n_nodes; i-- > 0;) { /* from the last, so that lists are in order */
        const tl_node *n = &t->node[i];
        p->weight[i] |= n->needs_grad && n->n_out > 0 && tl_values_at(&t->values, n->out)->fixed;
        for (int k = n->n_in; k-- > 0;) {
            const int32_t maker = tl_maker_at(t, n->in[k]);
            const bool root = n->op == &tl_op_mark_backward && k == 0;
            if (maker >= 0) {
                p->weight[maker] |= p->weight[i];
                p->reached[maker] |= (root || p->reached[i]) && t->node[maker].needs_grad;
            }
            if (!tl_is_none(n->in[k]))
                add_user(p, &p->at[tl_pass_slot(p, n->in[k])].users, i);
            if (tl_node_writes(n, k))
                add_user(p, &p->at[memory_of(p, n->in[k])].due, i);
        }
    }
    return p->why.status == TL_OK;
}
