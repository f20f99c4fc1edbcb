/* uses.c: the uses of a leaf - which accumulator and which fold takes each, what samples it has,
 * and what a deferred one saves.
 *
 * Uses of one kind share an accumulator. Of these, uses through the same view are one fold; but
 * where two views show a common element, all uses of the accumulator are one fold. */
#include <stdio.h>
#include <string.h>

#include "autograd/batch/internal.h"

/* ---- which fold takes a use ---- */

const char *tl_use_kind(const tl_tape *t, const tl_node *n, int k, char buf[TL_ATTRS_TEXT])
{
    size_t at = 3;
    if (tl_op_folds(n->op, k) && !tl_op_folds_f64(n->op, n->attrs, k))
        at = (size_t)snprintf(buf, TL_ATTRS_TEXT, "%.100s:%d", n->op->name, k);
    else
        memcpy(buf, "sum", at + 1);
    for (const tl_node *v = n;
         (v = tl_view_at(t, v->in[v == n ? k : 0])) != NULL && at + 32 < TL_ATTRS_TEXT;)
        at += (size_t)snprintf(buf + at, TL_ATTRS_TEXT - at, "+%.30s", v->op->name);
    return buf;
}

/* x and y show one leaf, or derived value, through the same views. */
static bool same_view(const tl_tape *t, tl_tensor x, tl_tensor y)
{
    for (;;) {
        const tl_node *a = tl_view_at(t, x), *b = tl_view_at(t, y);
        if (a == NULL || b == NULL)
            return a == b;
        if (a->op != b->op || !tl_attrs_agree(a->op, a->attrs, b->attrs, 0, NULL))
            return false;
        x = a->in[0];
        y = b->in[0];
    }
}

/* Two views of a leaf may show a common element. (A derived value may have been computed twice, in
 * different memory.) */
static bool meet(const tl_tape *t, tl_tensor x, tl_tensor y)
{
    const tl_value *a = tl_peek(t, x), *b = tl_peek(t, y);
    return a->st == NULL || a->st != b->st || tl_arrays_overlap(&a->a, &b->a);
}

/* The fold of the uses that see record `leaf` as input k of n does; NULL without memory. */
static tl_fold *fold_of(tl_tape *t, int leaf, const tl_node *n, int k)
{
    tl_leaf_grad *g = &t->grad[leaf];
    char kind[TL_ATTRS_TEXT];
    /* The gradient of a leaf of the tape ends with the reset: its backwards count as one. */
    const int call = g->leaf.owner == t->values.owner ? 0 : t->calls;
    const int i = tl_acc_get(t, g, call, tl_use_kind(t, n, k, kind));
    if (i < 0)
        return NULL;
    tl_accumulator *acc = &g->acc[i];
    if (acc->folds != NULL && acc->folds->meets) /* all uses are one fold */
        return acc->folds;
    tl_fold fresh = {.leaf = leaf, .acc = i, .x = n->in[k], .size = -1, .next = acc->folds};
    for (tl_fold *f = acc->folds; f != NULL; f = f->next) {
        if (same_view(t, f->x, n->in[k]))
            return f;
        fresh.meets |= meet(t, f->x, n->in[k]);
    }
    tl_fold *f = tl_tape_room(t, 1, sizeof *f);
    if (f != NULL)
        *f = fresh;
    return acc->folds = f;
}

/* The fold of all uses of f's accumulator, if two of its views meet; else f. The first that met
 * another was the last to be made. */
static tl_fold *joined(const tl_tape *t, tl_fold *f)
{
    tl_fold *last = t->grad[f->leaf].acc[f->acc].folds;
    return last->meets ? last : f;
}

tl_status tl_fold_deal(tl_walk *w)
{
    tl_tape *t = w->t;
    for (int i = t->first_grad; i < t->n_grads; i++)
        for (int k = 0; k < t->grad[i].n_accs; k++)
            t->grad[i].acc[k].folds = NULL;
    for (uint32_t i = 0; i < w->n; i++) {
        const tl_node *n = &t->node[w->order[i]];
        for (int k = 0; k < n->n_in; k++) {
            tl_edge *e = &w->edge[i][k];
            if (e->leaf > 0)
                e->fold = fold_of(t, e->leaf - 1, n, k);
            TL_TRY(t->head.err.status);
        }
    }
    /* Only now it is known which views meet. */
    for (uint32_t i = 0; i < w->n; i++)
        for (int k = 0; k < t->node[w->order[i]].n_in; k++) {
            tl_edge *e = &w->edge[i][k];
            if (e->leaf > 0) {
                e->fold = joined(t, e->fold);
                e->use = e->fold->n++;
            }
        }
    return TL_OK;
}

/* ---- what a use is made of ---- */

/* Nothing is summed before the samples of a use: the dims in front of them are 1, or the leaf's. */
static bool samples_lead(const tl_use *u, const tl_array *leaf)
{
    for (int j = 0; j < u->n_saved; j++) {
        const tl_saved *s = &u->saved[j];
        for (int i = 0; s->like != NULL && i < s->axis; i++) {
            const int64_t dim = s->like->a.dim[i];
            if (dim != 1 && (leaf->ndim != s->like->a.ndim || leaf->dim[i] != dim))
                return false;
        }
    }
    return true;
}

/* The leaf is as long as x along x's samples: the gradient of each is its own there. */
static bool has_samples_of(const tl_array *leaf, const tl_saved *x)
{
    const int i = x->axis - (x->like->a.ndim - leaf->ndim);
    return x->axis >= 0 && i >= 0 && leaf->dim[i] > 1;
}

/* Elements of each of u->samples samples, and how they are stacked; or u->samples is -1, as they
 * cannot be told apart in all that the gradient is made of. */
static void split_samples(const tl_node *n, const tl_value *leaf, tl_use *u)
{
    bool full = false;
    u->each = -1;
    for (int j = 0; u->samples >= 0 && j < u->n_saved; j++) {
        const tl_saved *s = &u->saved[j];
        if (s->like == NULL || (s->axis == TL_FREE && u->by_op && j < n->n_in))
            continue;
        const int64_t each = s->axis < 0      ? -1
                             : u->samples > 0 ? s->like->a.dim[s->axis] / u->samples
                                              : 1;
        if (each < 0 || (u->each >= 0 && each != u->each))
            u->samples = -1;
        u->each = each;
        full |= s->axis > 0 && s->like->a.ndim == TL_MAX_DIMS;
    }
    /* Where the leaf has samples itself, the gradient of each is its own. */
    u->to_front = leaf->batch == TL_FREE && !samples_lead(u, &leaf->a);
    u->one_by_one = u->to_front && full;
    if (leaf->batch != TL_FREE || (!u->by_op && has_samples_of(&leaf->a, &u->saved[0])))
        u->samples = -1;
}

tl_status tl_use_of(tl_walk *w, const tl_node *n, int k, const tl_tensor *dy, tl_tensor dx,
                    tl_use *u)
{
    tl_tape *t = w->t;
    const unsigned reads = tl_op_reads(n->op, TL_BIT(k));
    *u = (tl_use){.input = k, .by_op = tl_op_folds(n->op, k)};
    u->n_saved = u->by_op ? n->n_in + 2 * n->n_out : 1;
    u->saved = tl_tape_room(t, (size_t)u->n_saved, sizeof *u->saved);
    TL_TRY(t->head.err.status);
    for (int j = 0; j < u->n_saved; j++) {
        tl_saved *s = &u->saved[j];
        const int out = j - n->n_in, grad = out - n->n_out;
        if (!u->by_op)
            *s = (tl_saved){.x = dx, .read = true};
        else if (out < 0)
            *s = (tl_saved){.x = n->in[j], .read = j < 32 && reads & TL_BIT(j)};
        else if (grad < 0)
            *s = (tl_saved){.x = tl_node_out(t, n, out), .read = n->op->saves_out & TL_BIT(out)};
        else
            *s = (tl_saved){.x = dy == NULL ? TL_NONE : dy[grad], .read = true};
        if (tl_is_none(s->x))
            continue;
        s->like = tl_peek(t, s->x);
        /* A cotangent has the samples of its output; dx has them, too, unless there are none, as
         * the output repeats the leaf. */
        const tl_value *y = tl_values_at(&t->values, n->out + (uint32_t)(grad > 0 ? grad : 0));
        const bool as_y = u->by_op ? grad >= 0
                                   : y->batch != TL_FREE && tl_array_same_shape(&y->a, &s->like->a);
        s->axis = as_y ? y->batch : s->like->batch;
        u->samples = as_y ? y->samples : s->like->samples; /* the last are those of an output */
    }
    split_samples(n, tl_peek(t, n->in[k]), u);
    return TL_OK;
}

size_t tl_use_sample_bytes(const tl_use *u)
{
    int64_t bytes = 0;
    for (int j = 0; j < u->n_saved; j++) {
        const tl_saved *s = &u->saved[j];
        if (s->like == NULL || !s->read || s->axis == TL_FREE)
            continue;
        bytes += tl_array_count(&s->like->a) * (int64_t)tl_dtype_size(s->like->a.dtype);
    }
    return (size_t)(bytes / (u->samples > 0 ? u->samples : 1));
}

bool tl_uses_alike(const tl_tape *t, const tl_use *u, const tl_use *v)
{
    const tl_node *a = &t->node[u->node], *b = &t->node[v->node];
    if (u->by_op != v->by_op || u->n_saved != v->n_saved || u->each != v->each || u->one_by_one ||
        v->one_by_one || !same_view(t, a->in[u->input], b->in[v->input]))
        return false;
    if (u->by_op && (a->op != b->op || u->input != v->input || (a->mode ^ b->mode) & TL_FAST ||
                     a->choice != b->choice || !tl_attrs_agree(a->op, a->attrs, b->attrs, 0, NULL)))
        return false;
    for (int j = 0; j < u->n_saved; j++) {
        const tl_saved *r = &u->saved[j], *s = &v->saved[j];
        if ((r->like == NULL) != (s->like == NULL))
            return false;
        if (r->like == NULL || (u->by_op && j == u->input))
            continue;
        if (r->axis != s->axis || r->like->a.dtype != s->like->a.dtype ||
            !tl_array_same_shape(&r->like->a, &s->like->a) ||
            (r->axis == TL_FREE && r->like != s->like))
            return false;
    }
    return true;
}
