/* walk.c: prepares a backward. Before the first vjp runs it decides, in canonical order, which
 * gradients are wanted, where each goes, and what vjps will read; and it refuses what must be
 * refused. */
#include "autograd/batch.h"

bool tl_walk_skips(const tl_walk *w, const tl_node *n)
{
    return w->target == NULL && !tl_is_none(tl_leaf_under(w->t, n->made[0]->self));
}

static int target_of(const tl_walk *w, tl_tensor x)
{
    for (int i = 0; i < w->n_targets; i++)
        if (tl_same_handle(w->target[i], x))
            return i;
    return -1;
}

tl_inbox *tl_walk_box(const tl_walk *w, tl_tensor x)
{
    return &w->box[tl_walk_holds(w, x) ? x.index - w->first_value
                                       : w->n_values + (uint32_t)target_of(w, x)];
}

static bool leads(const tl_walk *w, int32_t node)
{
    return node >= 0 && (uint32_t)node - w->first_node < w->n_nodes &&
           w->leads[(uint32_t)node - w->first_node];
}

/* Whether a gradient is wanted by input k of n, or beyond it. */
static bool wanted(const tl_walk *w, const tl_node *n, int k)
{
    const tl_value *v = tl_input(n, k);
    return v != NULL && v->needs_grad &&
           (w->target == NULL || target_of(w, n->in[k]) >= 0 || leads(w, v->node));
}

/* A functional walk visits only nodes that have a target below them. */
static void mark_leads(tl_walk *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        const tl_node *n = &w->t->node[w->order[i]];
        for (int k = 0; k < n->n_in; k++)
            if (wanted(w, n, k))
                w->leads[w->order[i] - w->first_node] = 1;
    }
}

/* A gradient is never lost in silence: refuses a path through v, an output that carries none
 * although its inputs need one. */
static tl_status refuse_cut(const tl_walk *w, const tl_value *v)
{
    const tl_node *n = v->node < 0 ? NULL : &w->t->node[v->node];
    if (n == NULL || !(n->op->traits & TL_NONDIFF || n->op->nodiff_out & TL_BIT(v->out)) ||
        (w->target != NULL && !leads(w, v->node)))
        return TL_OK;
    return tl_tape_fail(w->at, TL_ENOGRAD,
                        "%s: the result depends on output %d of %s (%.90s:%d), which "
                        "carries no gradient, though its inputs need one; tl_detach it",
                        w->who, v->out, n->op->name, n->file == NULL ? "?" : n->file, n->line);
}

/* Decides for each input of each node where its gradient goes - to a leaf's record, or into the
 * inbox of the value - and which values vjps will read. */
static tl_status make_edges(tl_walk *w)
{
    tl_tape *t = w->t;
    for (int i = t->first_grad; w->target == NULL && i < t->n_grads; i++) {
        t->grad[i].reached = false;
        for (int k = 0; k < t->grad[i].n_accs; k++)
            t->grad[i].acc[k].folds = NULL; /* those of a walk before */
    }
    for (uint32_t i = 0; i < w->n; i++) {
        const tl_node *n = &t->node[w->order[i]];
        tl_edge *e = w->edge[i];
        unsigned takes = 0;
        for (int k = 0; k < n->n_in; k++) {
            tl_tensor leaf = tl_accumulates(t, n, k);
            const tl_value *v = tl_peek(t, leaf);
            if (!tl_is_none(leaf) && v == NULL)
                return tl_tape_fail(w->at, TL_ESTALE, "%s: a parameter of %s has been removed",
                                    w->who, n->op->name);
            if (!(e[k].wanted = wanted(w, n, k)))
                continue;
            takes |= k < 32 ? TL_BIT(k) : 0;
            TL_TRY(refuse_cut(w, n->value[k]));
            leaf = w->target != NULL ? TL_NONE : leaf;
            if (!tl_is_none(leaf) && v->node >= 0)
                leaf = tl_derived_leaf(t, leaf);
            TL_TRY(tl_error_status(t));
            tl_inbox *b = tl_is_none(leaf) ? tl_walk_box(w, n->in[k]) : &w->uses;
            *(b->last == NULL ? &b->first : &b->last->next) = &e[k];
            b->last = &e[k];
            if (tl_is_none(leaf))
                continue;
            tl_leaf_grad *g = tl_leaf_grad_get(t, leaf);
            if (g == NULL)
                return tl_error_status(t);
            g->reached = true;
            w->lasts |= leaf.owner != t->values.owner;
            e[k].leaf = (int)(g - t->grad);
            e[k].node = w->order[i];
            e[k].input = k;
        }
        w->reads[i] = tl_op_reads(n->op, takes);
        for (int k = 0; k < n->n_in && k < 32; k++)
            if (w->reads[i] & TL_BIT(k) && tl_walk_holds(w, n->in[k]))
                w->saved[n->in[k].index - w->first_value] = 1;
        for (int k = 0; k < n->n_out; k++)
            if (n->op->saves_out & TL_BIT(k))
                w->saved[n->out - w->first_value + (uint32_t)k] = 1;
    }
    return TL_OK;
}

/* Fails unless y can be differentiated: with the given cotangent or, for one element, with 1. */
static tl_status check_start(const tl_walk *w)
{
    tl_tape *t = w->t;
    const tl_value *y = w->root;
    if (y->st == NULL && t->recorder == NULL)
        return tl_tape_fail(w->at, TL_ETRACED,
                            "%s: the output has no value: it is of a trace, or was "
                            "dropped by a segment (list it in keep)",
                            w->who);
    if (!y->needs_grad || w->n == 0)
        return tl_tape_fail(w->at, TL_ENOGRAD,
                            "%s: the output depends on no parameter or marked leaf "
                            "(detached, frozen, or recorded without gradients)",
                            w->who);
    TL_TRY(refuse_cut(w, y));
    if (tl_is_none(w->opt.cotangent))
        return tl_array_count(&y->a) == 1
                   ? TL_OK
                   : tl_tape_fail(w->at, TL_ESHAPE,
                                  "%s: the output has shape %s; without a cotangent it "
                                  "must have one element",
                                  w->who, TL_TEXT(&y->a));
    const tl_value *c = tl_deref(w->at, w->opt.cotangent, w->who);
    if (c == NULL)
        return tl_error_status(t);
    if (c->st == NULL && t->recorder == NULL)
        return tl_tape_fail(w->at, TL_ETRACED,
                            "%s: the cotangent has no value: it is of a trace, or was "
                            "dropped by a segment (list it in keep)",
                            w->who);
    if (!tl_array_same_shape(&c->a, &y->a) || c->a.dtype != y->a.dtype)
        return tl_tape_fail(w->at, TL_ESHAPE, "%s: the cotangent is %s %s, the output %s %s",
                            w->who, TL_TEXT(&c->a), tl_dtype_name(c->a.dtype), TL_TEXT(&y->a),
                            tl_dtype_name(y->a.dtype));
    return TL_OK;
}

/* A root that is a leaf, or a view of one, has no node to start from: an identity is recorded
 * behind it. */
static tl_status find_root(tl_walk *w)
{
    tl_tape *t = w->t;
    const tl_value *y = w->root = tl_deref(w->at, w->y, w->who);
    if (y == NULL)
        return tl_error_status(t);
    if (!y->needs_grad || (y->node >= 0 && !tl_walk_skips(w, &t->node[y->node])))
        return TL_OK;
    unsigned mode = t->now.mode;
    t->now.mode &= ~(unsigned)TL_NO_GRAD;
    w->y = tl_folded(w->at, w->y, TL_NONE, &y->a, y->a.dtype);
    w->root = tl_peek(t, w->y);
    t->now.mode = mode;
    return tl_error_status(t);
}

/* Whether a gradient can pass through n. */
static bool passes(const tl_node *n)
{
    return !(n->mode & TL_NO_GRAD || n->op->traits & TL_NONDIFF);
}

static int32_t follow_late(void *ctx, const tl_node *n, int k)
{
    const tl_tape *t = ctx;
    const tl_value *v = passes(n) ? tl_input(n, k) : NULL;
    const bool on = v != NULL && v->node >= 0 && tl_dtype_is_float(v->a.dtype) &&
                    !(t->node[v->node].op->nodiff_out & TL_BIT(v->out));
    return on ? v->node : -1;
}

/* Fails if a node on the way to y used a leaf before the leaf took a gradient. */
static tl_status check_late(const tl_walk *w)
{
    tl_tape *t = w->t;
    tl_postorder o;
    tl_postorder_begin(&o, t, follow_late, t);
    tl_postorder_from(&o, w->root->node);
    for (int32_t i; (i = tl_postorder_next(&o)) >= 0;) {
        const tl_node *n = &t->node[i];
        for (int k = 0; k < n->n_in && !n->needs_grad && passes(n); k++)
            if (tl_maker_at(t, n->in[k]) < 0 && wanted(w, n, k))
                return tl_tape_fail(w->at, TL_EUSAGE,
                                    "%s (%.90s:%d) used %s before it took a gradient, so that "
                                    "gradient would be lost: thaw (tl_model_freeze) or mark "
                                    "(tl_require_grad) what takes one before it is used, and "
                                    "tl_detach what is a constant",
                                    n->op->name, n->file == NULL ? "?" : n->file, n->line,
                                    tl_leaf_name(t, n->in[k]));
    }
    return TL_OK;
}

/* Fails unless each tl_model_freeze has met a parameter and the walk reaches all trained ones. */
static tl_status check_parameters(const tl_walk *w)
{
    tl_model *m = w->t->model;
    const char *first = "", *missed = NULL;
    int n = 0;
    if (m == NULL || (w->opt.partial && m->freezes == NULL))
        return TL_OK;
    pthread_mutex_lock(&m->lock);
    for (int i = m->n_entries; i-- > 0;) {
        const tl_entry *e = &m->entry[i];
        const bool trained = e->param && !e->frozen && !w->opt.partial;
        const tl_leaf_grad *g = trained ? tl_leaf_grad_find(w->t, tl_model_handle(m, e->value))
                                        : NULL;
        n += e->param;
        first = e->param ? e->name : first;
        missed = trained && (g == NULL || !g->reached) ? e->name : missed;
    }
    const tl_freeze *f = m->freezes;
    while (f != NULL && f->met)
        f = f->next;
    pthread_mutex_unlock(&m->lock);
    if (f != NULL)
        return tl_tape_fail(w->at, TL_ENAME,
                            "tl_backward: tl_model_freeze(\"%.100s\") matches none of the "
                            "model's %d parameters, the first of which is '%.100s'",
                            f->prefix, n, first);
    if (missed != NULL)
        return tl_tape_fail(w->at, TL_ENOGRAD,
                            "tl_backward: the output does not reach parameter '%s'; freeze it "
                            "(tl_model_freeze), or pass .partial = true",
                            missed);
    return TL_OK;
}

/* The number of the first value of the tape that a target may be: 0 for targets of the model. */
static uint32_t first_target(const tl_walk *w)
{
    uint32_t first = UINT32_MAX;
    for (int i = 0; i < w->n_targets; i++) {
        const bool own = w->target[i].owner == w->t->values.owner;
        const uint32_t at = own ? w->target[i].index : 0;
        first = at < first ? at : first;
    }
    return first;
}

tl_status tl_walk_check(tl_walk *w)
{
    tl_tape *t = w->t;
    if (t->inside != NULL)
        return tl_tape_fail(w->at, TL_EUSAGE, "%s: called inside %s", w->who, t->inside);
    TL_TRY(find_root(w));
    TL_TRY(w->target == NULL ? tl_canonical_order(t, w->y, TL_TO_LEAVES, &w->order, &w->n)
                             : tl_order_since(t, w->y, first_target(w), &w->order, &w->n));
    if (w->n > 0) {
        uint32_t first = w->order[0], last = first;
        for (uint32_t i = 1; i < w->n; i++) {
            first = w->order[i] < first ? w->order[i] : first;
            last = w->order[i] > last ? w->order[i] : last;
        }
        w->first_node = first;
        w->n_nodes = last - first + 1;
        w->first_value = t->node[first].out;
        w->n_values = t->node[last].out + (uint32_t)t->node[last].n_out - w->first_value;
    }
    size_t inputs = 0;
    for (uint32_t i = 0; i < w->n; i++)
        inputs += (size_t)t->node[w->order[i]].n_in;
    w->edge = tl_tape_room(t, w->n, sizeof *w->edge);
    tl_edge *edge = tl_tape_room(t, inputs, sizeof *edge);
    w->reads = tl_tape_room(t, w->n, sizeof *w->reads);
    w->box = tl_tape_room(t, w->n_values + (size_t)w->n_targets, sizeof *w->box);
    w->saved = tl_tape_room(t, w->n_values, 1);
    w->leads = tl_tape_room(t, w->n_nodes, 1);
    TL_TRY(tl_error_status(t));
    for (uint32_t i = 0; i < w->n; edge += t->node[w->order[i++]].n_in)
        w->edge[i] = edge;
    if (w->target != NULL)
        mark_leads(w);
    TL_TRY(check_start(w));
    TL_TRY(make_edges(w));
    if (t->late || (t->model != NULL && t->model->thaws != t->thaws))
        TL_TRY(check_late(w));
    if (w->target != NULL)
        return TL_OK;
    if (t->lasting != NULL)
        TL_TRY(tl_derived_reach(t));
    return check_parameters(w);
}

tl_status tl_walk_prepare(tl_walk *w)
{
    TL_TRY(tl_walk_check(w));
    if (tl_is_none(w->opt.cotangent))
        w->opt.cotangent = tl_filled(w->at, &w->root->a, w->root->a.dtype, 1);
    TL_TRY(tl_error_status(w->t));
    w->start.cotangent = w->opt.cotangent;
    tl_walk_box(w, w->y)->first = &w->start;
    return w->target == NULL ? tl_fold_deal(w) : TL_OK;
}

/* ---- what visits and folds share ---- */

tl_given tl_given_of(const tl_node *n, uint32_t node, uint32_t first, const tl_vjp *g)
{
    return (tl_given){n->op,    n->file, n->line, node,     first, n->n_in,
                      n->n_out, g->in,   g->dy,   g->wants, g->dx, NULL};
}

tl_value *tl_hold(tl_tape *t, tl_value *x)
{
    if (x == NULL || x->st == NULL || x->self.owner != t->values.owner)
        return x;
    tl_value *h = tl_tape_value(t, &x->a, x->st);
    if (h != NULL) {
        h->held = true;
        h->source = x->self;
        h->bottom = tl_bottom(t, x->self);
        tl_batch_like(h, x);
    }
    return h;
}

tl_status tl_walk_vjp(tl_walk *w, uint32_t node, uint32_t first, tl_vjp *g)
{
    tl_tape *t = w->t;
    t->node[node].op->vjp(g);
    if (t->given_watched && tl_error_status(t) == TL_OK) {
        tl_given given = tl_given_of(&t->node[node], node, first, g);
        TL_TELL(t, gave, t, &given);
    }
    return tl_error_status(t);
}

void tl_walk_free_since(tl_walk *w, uint32_t mark)
{
    uint32_t end = atomic_load(&w->t->values.count);
    for (uint32_t i = mark; i < end; i++) {
        tl_value *v = tl_values_at(&w->t->values, i);
        if (v->st != NULL && !v->held)
            tl_value_give_back(v);
    }
}
