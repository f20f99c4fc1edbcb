/* splice_uses.c: the terms of every gradient, in a graph in which some matches have given way.
 *
 * The canonical walk of a backward is made over the graph as it would be, and the uses of each
 * value are listed in the order in which it meets them. */
#include "autograd/replace/internal.h"

typedef struct {
    uint32_t node;
    int next;
} frame;

typedef struct {
    tl_pass *p;
    tl_bump *mem;
    uint32_t n_values, n_slots, n_all;
    bool failed;
} walk;

/* ---- the spliced graph ---- */

int tl_splice_index(const tl_pass *p, uint32_t node)
{
    int lo = 0, hi = p->n_tried - 1;
    uint32_t put = node - p->t->n_nodes;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (p->match[mid]->first <= put)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static tl_splice_ref follow_ref(const tl_pass *p, const tl_match *m, tl_pattern_ref r)
{
    if (r.node >= 0)
        return (tl_splice_ref){(int32_t)(p->t->n_nodes + m->first) + r.node, r.at, TL_NONE};
    return r.node == TL_REF_ARG ? tl_splice_follow(p, m->arg[r.at])
                                : (tl_splice_ref){-1, 0, TL_NONE};
}

tl_splice_ref tl_splice_follow(const tl_pass *p, tl_tensor x)
{
    const tl_value *v = tl_is_none(x) || x.owner != p->t->values.owner
                            ? NULL
                            : tl_values_at(&p->t->values, x.index);
    if (v == NULL || v->node < 0)
        return (tl_splice_ref){-1, 0, x};
    if (p->owner[v->node] < 0)
        return (tl_splice_ref){v->node, v->out, TL_NONE};
    const tl_match *m = p->match[p->owner[v->node]];
    for (int i = 0; i < m->search->n_out; i++)
        if (m->search->out[i].node >= 0 && m->out[i] == x.index)
            return follow_ref(p, m, m->with->out[i]);
    return (tl_splice_ref){-1, 0, TL_NONE};
}

static const tl_pattern_node *put_node(const tl_pass *p, uint32_t node)
{
    const tl_match *m = tl_splice_match(p, node);
    return &m->with->node[node - p->t->n_nodes - m->first];
}

static const tl_op *op_of(const tl_pass *p, uint32_t node, const void **attrs, int *n_in)
{
    if (node < p->t->n_nodes) {
        *attrs = p->t->node[node].attrs;
        *n_in = p->t->node[node].n_in;
        return p->t->node[node].op;
    }
    const tl_pattern_node *q = put_node(p, node);
    *attrs = q->attrs;
    *n_in = q->n_in;
    return q->op;
}

tl_splice_ref tl_splice_input(const tl_pass *p, uint32_t node, int k)
{
    if (node < p->t->n_nodes)
        return tl_splice_follow(p, p->t->node[node].in[k]);
    return follow_ref(p, tl_splice_match(p, node), put_node(p, node)->in[k]);
}

int tl_splice_inputs(const tl_pass *p, uint32_t node)
{
    return node < p->t->n_nodes ? p->t->node[node].n_in : put_node(p, node)->n_in;
}

uint32_t tl_splice_count(const tl_pass *p)
{
    const tl_match *last = p->n_tried == 0 ? NULL : p->match[p->n_tried - 1];
    return p->t->n_nodes + (last == NULL ? 0 : last->first + (uint32_t)last->with->n_nodes);
}

static bool node_grad(const tl_pass *p, uint32_t node)
{
    return node < p->t->n_nodes ? p->t->node[node].needs_grad : put_node(p, node)->needs_grad;
}

static bool value_grad(const tl_pass *p, tl_splice_ref x)
{
    if (x.node < 0)
        return !tl_is_none(x.x) && tl_peek(p->t, x.x)->needs_grad;
    if ((uint32_t)x.node >= p->t->n_nodes)
        return put_node(p, (uint32_t)x.node)->grad_out & TL_BIT(x.out);
    return tl_values_at(&p->t->values, p->t->node[x.node].out + (uint32_t)x.out)->needs_grad;
}

/* The leaf under x, through views that repeat nothing; TL_NONE for others. */
static tl_tensor leaf_under(const tl_pass *p, tl_splice_ref x)
{
    while (x.node >= 0) {
        const void *attrs;
        int n_in;
        const tl_op *op = op_of(p, (uint32_t)x.node, &attrs, &n_in);
        if (!(op->traits & TL_VIEW) || op->traits & TL_REPEATS)
            return TL_NONE;
        x = tl_splice_input(p, (uint32_t)x.node, 0);
    }
    return x.x;
}

/* The number of the list that uses of x are in; UINT32_MAX for what only a replacement knows. */
static uint32_t slot_of(const walk *w, tl_splice_ref x)
{
    const tl_pass *p = w->p;
    if ((uint32_t)x.node < p->t->n_nodes)
        return p->t->node[x.node].out + (uint32_t)x.out;
    const tl_match *m = tl_splice_match(p, (uint32_t)x.node);
    int k = x.node - (int)(p->t->n_nodes + m->first);
    for (int i = 0; i < m->search->n_out; i++)
        if (m->search->out[i].node >= 0 && m->with->out[i].node == k && m->with->out[i].at == x.out)
            return m->out[i];
    return UINT32_MAX;
}

/* ---- the table of one backward ---- */

int tl_accumulator_kind(const tl_op *op, const void *attrs, int k)
{
    if (k >= 32 || !(op->folds & TL_BIT(k)))
        return 0;
    return op->folds_f64 & TL_BIT(k) || (op->folds_wide != NULL && op->folds_wide(attrs)) ? 2 : 1;
}

static void add_use(walk *w, tl_use_table *u, uint32_t slot, uint32_t node, int k, int kind)
{
    tl_use_of *n = tl_bump_get(w->mem, sizeof *n);
    if (n == NULL) {
        w->failed = true;
        return;
    }
    *n = (tl_use_of){node, k, kind, NULL};
    if (u->tail[slot] == NULL)
        u->head[slot] = n;
    else
        u->tail[slot]->next = n;
    u->tail[slot] = n;
}

static void note_node(walk *w, tl_use_table *u, uint32_t node)
{
    const tl_pass *p = w->p;
    const void *attrs;
    int n_in;
    const tl_op *op = op_of(p, node, &attrs, &n_in);
    if (op->traits & TL_VIEW && !(op->traits & TL_REPEATS) &&
        !tl_is_none(leaf_under(p, tl_splice_input(p, node, 0))))
        return;
    for (int k = 0; k < n_in; k++) {
        tl_splice_ref x = tl_splice_input(p, node, k);
        if (!value_grad(p, x))
            continue;
        tl_tensor leaf = leaf_under(p, x);
        uint32_t slot = tl_is_none(leaf)                   ? slot_of(w, x)
                        : leaf.owner == p->t->values.owner ? leaf.index
                                                           : w->n_values + leaf.index;
        if (slot == UINT32_MAX)
            continue;
        u->leaf[slot] = !tl_is_none(leaf);
        add_use(w, u, slot, node, k, tl_accumulator_kind(op, attrs, k));
    }
}

static tl_use_table *make_table(walk *w, uint32_t mark)
{
    const tl_pass *p = w->p;
    tl_use_table *u = tl_bump_get(w->mem, sizeof *u);
    frame *stack = tl_bump_get(w->mem, (w->n_all + 1) * sizeof *stack);
    if (u == NULL || stack == NULL)
        return NULL;
    u->n_slots = w->n_slots;
    u->head = tl_bump_get(w->mem, (w->n_slots + 1) * sizeof *u->head);
    u->tail = tl_bump_get(w->mem, (w->n_slots + 1) * sizeof *u->tail);
    u->leaf = tl_bump_get(w->mem, w->n_slots + 1);
    u->seen = tl_bump_get(w->mem, w->n_all + 1);
    if (u->head == NULL || u->tail == NULL || u->leaf == NULL || u->seen == NULL)
        return NULL;
    tl_splice_ref root = tl_splice_follow(p, p->t->node[mark].in[0]);
    uint32_t depth = 0;
    if (root.node >= 0 && node_grad(p, (uint32_t)root.node)) {
        stack[depth++] = (frame){(uint32_t)root.node, 0};
        u->seen[root.node] = 1;
    }
    while (depth > 0) {
        frame *f = &stack[depth - 1];
        const void *attrs;
        int n_in;
        op_of(p, f->node, &attrs, &n_in);
        if (f->next == n_in) {
            note_node(w, u, f->node);
            depth--;
            continue;
        }
        tl_splice_ref x = tl_splice_input(p, f->node, f->next++);
        if (x.node < 0 || u->seen[x.node] || !node_grad(p, (uint32_t)x.node))
            continue;
        u->seen[x.node] = 1;
        stack[depth++] = (frame){(uint32_t)x.node, 0};
    }
    return w->failed ? NULL : u;
}

tl_use_table **tl_splice_tables(tl_pass *p, tl_bump *mem)
{
    walk w = {.p = p,
              .mem = mem,
              .n_values = atomic_load(&p->t->values.count),
              .n_all = tl_splice_count(p)};
    w.n_slots = w.n_values + (p->t->model == NULL ? 0 : atomic_load(&p->t->model->values.count));
    tl_use_table **u = tl_bump_get(mem, (size_t)(p->n_marks + 1) * sizeof *u);
    for (int i = 0; u != NULL && i < p->n_marks; i++)
        if ((u[i] = make_table(&w, p->mark[i])) == NULL)
            return NULL;
    return u;
}
