/* backward.c: gradients, by visiting the nodes of the canonical order from the last to the first.
 *
 * A visit adds up the cotangents of the node's outputs, in the order of their uses, calls the op's
 * vjp, and delivers what it returns: to the inbox of the input's value, where it waits until all
 * uses have been visited; or, where the input is a leaf or a view of one, to the leaf's accumulator
 * (batch/fold.c). walk.c has decided all that beforehand. */
#include <string.h>

#include "autograd/batch.h"
#include "tensor/threads.h"

void tl_walk_free_unsaved(tl_walk *w)
{
    tl_tape *t = w->t;
    const uint32_t first = w->first_value;
    /* Segments read their inputs when they are recomputed. */
    for (const tl_segment *s = t->segments; s != NULL && s->end > w->first_node; s = s->next)
        for (uint32_t i = s->first; i < s->end; i++)
            for (int k = 0; k < t->node[i].n_in; k++)
                if (tl_walk_holds(w, t->node[i].in[k]))
                    w->saved[t->node[i].in[k].index - first] = 1;
    const tl_tensor kept[] = {w->y, w->asked, w->opt.cotangent};
    for (int k = 0; k < 3; k++)
        if (tl_walk_holds(w, kept[k]))
            w->saved[kept[k].index - first] = 1;
    for (uint32_t i = 0; i < w->n; i++) {
        const tl_node *n = &t->node[w->order[i]];
        for (int k = 0; k < n->n_out; k++)
            if (!w->saved[n->out - first + (uint32_t)k])
                tl_value_give_back(n->made[k]);
    }
}

/* Reports that a saved value is gone. The error names the place of this backward, not the op's. */
static tl_status fail_freed(tl_walk *w, const tl_node *n, const char *what)
{
    int base = w->t->now.place_base;
    w->t->now.place_base = w->t->now.place_depth;
    tl_tape_fail(w->at, TL_ESTALE,
                 "%s: %s of %s (%.90s:%d) was freed by an earlier backward; pass .retain "
                 "= true to the first",
                 w->who, what, n->op->name, n->file == NULL ? "?" : n->file, n->line);
    w->t->now.place_base = base;
    return TL_ESTALE;
}

/* Fails unless what the vjp of node i will read is still there and unchanged. */
static tl_status check_saved(tl_walk *w, uint32_t i, unsigned reads)
{
    tl_tape *t = w->t;
    const tl_node *n = &t->node[i];
    for (int k = 0; k < n->n_in + n->n_out; k++) {
        bool in = k < n->n_in;
        unsigned mask = in ? reads : n->op->saves_out;
        int bit = in ? k : k - n->n_in;
        if (bit >= 32 || !(mask & TL_BIT(bit)) || (in && tl_is_none(n->in[k])))
            continue;
        if ((in ? n->value[k] : n->made[bit])->freed)
            return fail_freed(w, n, in ? "an input" : "the output");
        tl_changer by = {NULL, NULL, 0};
        char text[TL_CHANGER_TEXT], name[TL_SHOWN_TEXT];
        if (!tl_changed_since(t, i, k, &by))
            continue;
        return tl_tape_fail(w->at, TL_EINPLACE,
                            "%s: %s %d of %s%s, saved for its gradient, was changed in "
                            "place by %s",
                            w->who, in ? "input" : "output", bit, n->op->name,
                            in ? tl_shown_text(name, t, n->in[k]) : "", tl_changer_text(text, by));
    }
    return TL_OK;
}

tl_tensor tl_walk_collect(tl_walk *w, const tl_inbox *b)
{
    tl_tensor sum = TL_NONE;
    for (const tl_edge *e = b->first; e != NULL; e = e->next) {
        const tl_tensor dy = e->cotangent;
        if (!tl_is_none(dy))
            sum = tl_is_none(sum) ? dy
                                  : tl_apply1(w->at, &tl_op_add, NULL, (tl_tensor[]){sum, dy}, 2);
    }
    return sum;
}

/* Brings d, which a vjp returned for input x, to x's shape and dtype, into the inbox. */
static tl_status deliver(tl_walk *w, tl_edge *e, const tl_value *x, tl_value *d)
{
    tl_tape *t = w->t;
    /* If x is free of the batch, its gradient from samples is a total over them, even over one. */
    const bool total = w->target != NULL && x->batch == TL_FREE && d->batch >= 0;
    if (total || !tl_array_same_shape(&x->a, &d->a) || d->a.dtype != x->a.dtype)
        d = tl_peek(t, tl_folded(w->at, d->self, TL_NONE, &x->a, x->a.dtype));
    if (total && d != NULL && d->batch >= 0)
        d->batch = TL_TOTAL;
    /* tl_gradients keeps the value, which can be differentiated again. tl_backward takes a record
     * of its own: d may be in several inboxes, or be a tensor of the model. */
    d = w->target != NULL ? d : tl_hold(t, d);
    const bool own = d != NULL && d->self.owner == t->values.owner;
    if (own && w->target != NULL && d->self.index >= w->made && w->root->batch == TL_MIXED)
        tl_batch_set(d, TL_MIXED); /* like y, whose derivative it is */
    else if (own && d->batch == TL_FREE && x->batch >= 0)
        tl_batch_like(d, x); /* for example ones, one for each sample */
    e->cotangent = tl_handle(d);
    return tl_error_status(t);
}

/* Calls the vjp of node n, order[i], for the inputs that want a gradient now, and delivers it. */
static tl_status call_vjp(tl_walk *w, uint32_t i, const tl_node *n, uint32_t first,
                          const tl_tensor *dy)
{
    tl_tape *t = w->t;
    tl_edge *e = w->edge[i];
    const size_t n_in = (size_t)n->n_in;
    tl_tensor *dx = tl_bump_get(&t->bump, (3 * n_in + (size_t)n->n_out + 1) * sizeof *dx);
    bool *wants = tl_bump_get(&t->bump, n_in + 1), any = false;
    if (dx == NULL || wants == NULL)
        return tl_tape_fail(w->at, TL_ENOMEM, "%s: no memory for the vjp of %s", w->who,
                            n->op->name);
    tl_tensor *acc = dx + n_in, *waits = acc + n_in, *out = waits + n_in;
    TL_TRY(check_saved(w, w->order[i], w->reads[i]));
    for (int j = 0; j < n->n_out; j++)
        out[j] = n->made[j]->self;
    for (int k = 0; k < n->n_in; k++) {
        wants[k] = e[k].wanted && (e[k].fold == NULL || tl_fold_asks(w, n, &e[k], &acc[k]));
        any |= wants[k];
    }
    TL_TRY(tl_error_status(t));
    tl_vjp g = {t, n->attrs, n->n_in, n->n_out, n->in, out, dy, acc, wants, dx};
    if (any)
        TL_TRY(tl_walk_vjp(w, w->order[i], first, &g));
    for (int k = 0; k < n->n_in; k++) {
        tl_value *d = wants[k] ? tl_peek(t, dx[k]) : NULL;
        if (d != NULL && tl_deref(w->at, dx[k], n->op->name) == NULL)
            return tl_error_status(t);
        if (wants[k] && d == NULL)
            return tl_tape_fail(w->at, TL_ENOGRAD,
                                "%s: the vjp of %s gives no gradient for its input %d", w->who,
                                n->op->name, k);
        if (e[k].wanted)
            TL_TRY(e[k].fold == NULL ? deliver(w, &e[k], n->value[k], d)
                                     : tl_fold_deliver(w, n, &e[k], dy, dx[k], acc[k]));
        waits[k] = e[k].cotangent;
    }
    if (t->given_watched && w->target == NULL) {
        tl_given given = tl_given_of(n, w->order[i], first, &g);
        given.delivered = waits;
        TL_TELL(t, delivered, t, &given);
    }
    return TL_OK;
}

/* After a visit: releases the cotangents of the node's outputs and, unless .retain, the outputs. */
static void free_visited(tl_walk *w, const tl_node *n)
{
    tl_tape *t = w->t;
    if (w->target != NULL)
        return;
    for (int j = 0; j < n->n_out; j++) {
        const tl_tensor x = n->made[j]->self;
        for (const tl_edge *e = w->box[x.index - w->first_value].first; e != NULL; e = e->next)
            if (e->cotangent.owner == t->values.owner && /* not a tensor of the model */
                !tl_same_handle(e->cotangent, w->opt.cotangent))
                tl_value_give_back(tl_peek(t, e->cotangent));
        bool wanted = tl_same_handle(x, w->y) || tl_same_handle(x, w->asked) ||
                      tl_same_handle(x, w->opt.cotangent) || tl_segment_awaits(t, n->made[j]);
        if (!w->opt.retain && !wanted)
            tl_value_give_back(n->made[j]);
    }
}

/* Visits node order[i], with its place, mode and selections in force. */
static tl_status visit(tl_walk *w, uint32_t i)
{
    tl_tape *t = w->t;
    const tl_node copy = t->node[w->order[i]], *n = &copy; /* the vjp records: nodes may move */
    uint32_t mark = atomic_load(&t->values.count), node_mark = t->n_nodes;
    /* errors name the forward op and its place, not tl_backward's */
    if (t->now.place_base < TL_PLACES)
        t->places[t->now.place_base].at = (tl_at){t, n->file, n->line, n->op->name};
    tl_tensor *dy = tl_bump_get(&t->bump, (size_t)(n->n_out + 1) * sizeof *dy);
    if (dy == NULL)
        return tl_tape_fail(w->at, TL_ENOMEM, "%s: no memory to visit %s", w->who, n->op->name);
    t->now.mode = (t->now.mode & ~(unsigned)TL_FAST) | (n->mode & TL_FAST);
    t->now.choice = n->choice;
    bool any = false;
    TL_TRY(tl_segment_restore(t, w->order[i]));
    for (int j = 0; j < n->n_out; j++) {
        dy[j] = tl_walk_collect(w, &w->box[n->out + (uint32_t)j - w->first_value]);
        any |= !tl_is_none(dy[j]);
    }
    TL_TRY(tl_error_status(t));
    if (any && (w->target == NULL || w->leads[w->order[i] - w->first_node]))
        TL_TRY(call_vjp(w, i, n, node_mark, dy));
    TL_TRY(tl_fold_visited(w, i, n));
    if (w->target == NULL)
        tl_walk_free_since(w, mark);
    free_visited(w, n);
    return TL_OK;
}

tl_status tl_walk_run(tl_walk *w)
{
    tl_tape *t = w->t;
    tl_status s = TL_OK;
    tl_fpenv saved = tl_fpenv_enter(); /* vjps compute constants outside ops */
    w->made = atomic_load(&t->values.count);
    const tl_scope outer = tl_scope_open(w->at, w->target == NULL ? TL_NO_GRAD : 0,
                                         TL_PHASE_BACKWARD);
    t->now.place_base = outer.place_depth; /* each visit fills that frame with its node's place */
    for (uint32_t i = w->n; i-- > 0 && s == TL_OK;)
        s = visit(w, i);
    tl_scope_end(t, outer);
    tl_fpenv_leave(saved);
    return s;
}
