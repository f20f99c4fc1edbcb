/* uses.c: the uses of a leaf - which accumulator and which fold takes each, what samples it has,
 * and what a deferred one saves.
 *
 * Uses of one kind share an accumulator. Those through the same view are one fold; but if two views
 * show a common element, all uses of the accumulator are one fold. */
#include <stdio.h>
#include <stdlib.h>
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
    const tl_value *x = n->value[k];
    for (const tl_node *v; (v = tl_view_at(t, x)) != NULL && at + 32 < TL_ATTRS_TEXT;
         x = v->value[0])
        at += (size_t)snprintf(buf + at, TL_ATTRS_TEXT - at, "+%.30s", v->op->name);
    return buf;
}

/* Whether x and y, which show one leaf or derived value, show it through the same views. */
static bool same_view(const tl_tape *t, const tl_value *x, const tl_value *y)
{
    for (;;) {
        const tl_node *a = tl_view_at(t, x), *b = tl_view_at(t, y);
        if (a == NULL || b == NULL)
            return a == b;
        if (a->op != b->op || !tl_attrs_agree(a->op, a->attrs, b->attrs, 0, NULL))
            return false;
        x = a->value[0];
        y = b->value[0];
    }
}

/* A number for an accumulator and the views through which x shows its leaf. */
static uint64_t number_of(const tl_tape *t, int leaf, int acc, const tl_value *x)
{
    uint64_t h = tl_mix(tl_mix(1, (uint64_t)leaf), (uint64_t)acc);
    for (const tl_node *v; (v = tl_view_at(t, x)) != NULL; x = v->value[0])
        h = tl_mix_attrs(tl_mix(h, (uintptr_t)v->op), v->op, v->attrs);
    return h | 1;
}

/* The fold of the uses that see record `leaf` as input k of n does; NULL when out of memory. folds:
 * all folds so far, by number_of. */
static tl_fold *fold_of(tl_tape *t, tl_key_map *folds, int leaf, const tl_node *n, int k)
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
    if (acc->folds != NULL && same_view(t, acc->folds->x, n->value[k]))
        return acc->folds;
    const uint64_t number = number_of(t, leaf, i, n->value[k]);
    const uint64_t *found = tl_key_map_find(folds, number);
    tl_fold *met = found == NULL ? NULL : (tl_fold *)(uintptr_t)*found;
    for (tl_fold *f = met; f != NULL; f = f->met)
        if (f->leaf == leaf && f->acc == i && same_view(t, f->x, n->value[k]))
            return f;
    tl_fold *f = tl_tape_room(t, 1, sizeof *f);
    if (f == NULL || !tl_key_map_put(folds, number, (uintptr_t)f)) {
        tl_fail(&t->head.err, TL_ENOMEM, "no memory for the uses of %s", tl_leaf_name(t, g->leaf));
        return NULL;
    }
    *f = (tl_fold){
        .leaf = leaf, .acc = i, .x = n->value[k], .size = -1, .next = acc->folds, .met = met};
    return acc->folds = f;
}

/* Where in its leaf the view of a fold lies, wherever the leaf is: a value made of parameters may
 * have been computed twice, or, in a trace, not at all. Its first element, and bytes [low, high).
 */
typedef struct {
    const tl_array *a;
    int64_t first, low, high;
} place;

static tl_status find_place(const tl_tape *t, const tl_fold *f, place *p, tl_err *err)
{
    const tl_array *a = &f->x->a;
    const int64_t size = (int64_t)tl_dtype_size(a->dtype);
    *p = (place){.a = a};
    const tl_value *x = f->x;
    for (const tl_node *v; (v = tl_view_at(t, x)) != NULL; x = v->value[0])
        TL_TRY(tl_view_offset(v, &v->value[0]->a, &p->first, err));
    p->low = p->first;
    p->high = p->first + size;
    for (int i = 0; i < a->ndim; i++)
        *(a->stride[i] < 0 ? &p->low : &p->high) += (a->dim[i] - 1) * a->stride[i] * size;
    return TL_OK;
}

static int by_low(const void *a, const void *b)
{
    const int64_t x = ((const place *)a)->low, y = ((const place *)b)->low;
    return (x > y) - (x < y);
}

/* Notes in an accumulator's newest fold whether two views of its folds show a common element. Only
 * views whose bounds overlap are compared. */
static tl_status find_meeting(tl_tape *t, tl_accumulator *acc)
{
    size_t all = 0, n = 0;
    for (const tl_fold *f = acc->folds; f != NULL; f = f->next)
        all++;
    if (all < 2 || acc->folds->meets)
        return TL_OK;
    place *p = tl_tape_room(t, all, sizeof *p);
    TL_TRY(tl_error_status(t));
    for (const tl_fold *f = acc->folds; f != NULL; f = f->next)
        if (tl_array_count(&f->x->a) > 0)
            TL_TRY(find_place(t, f, &p[n++], &t->head.err));
    qsort(p, n, sizeof *p, by_low);
    for (size_t i = 0; i < n && !acc->folds->meets; i++)
        for (size_t k = i + 1; k < n && p[k].low < p[i].high && !acc->folds->meets; k++)
            acc->folds->meets = tl_arrays_overlap_apart(p[i].a, p[k].a, p[k].first - p[i].first);
    return TL_OK;
}

/* The newest fold of f's accumulator, which takes all its uses, if two of its views meet; else f.
 * NULL when out of memory. */
static tl_fold *joined(tl_tape *t, tl_fold *f)
{
    tl_accumulator *acc = &t->grad[f->leaf].acc[f->acc];
    tl_fold *last = acc->folds;
    if (!last->sought && find_meeting(t, acc) != TL_OK)
        return NULL;
    last->sought = true;
    return last->meets ? last : f;
}

tl_status tl_fold_deal(tl_walk *w)
{
    tl_tape *t = w->t;
    tl_key_map folds = {0};
    bool room = true;
    for (tl_edge *e = w->uses.first; e != NULL && room; e = e->next)
        room = (e->fold = fold_of(t, &folds, e->leaf, &t->node[e->node], e->input)) != NULL;
    tl_key_map_free(&folds);
    /* Only now is it known which views meet. */
    for (tl_edge *e = w->uses.first; e != NULL && room; e = e->next) {
        room = (e->fold = joined(t, e->fold)) != NULL;
        if (room)
            e->use = e->fold->n++;
    }
    return tl_error_status(t);
}

/* ---- what a use saves ---- */

/* Whether nothing is summed before a use's samples: the dims in front are 1, or the leaf's. */
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

/* Whether the leaf extends along x's samples: each then has its own gradient there. */
static bool has_samples_of(const tl_array *leaf, const tl_saved *x)
{
    const int i = x->axis - (x->like->a.ndim - leaf->ndim);
    return x->axis >= 0 && i >= 0 && leaf->dim[i] > 1;
}

tl_status tl_stacked(const tl_array *x, const tl_stack_samples_attrs *at, tl_array *out,
                     tl_err *err)
{
    tl_stack_samples_attrs attrs = *at;
    tl_call c = {.op = &tl_op_stack_samples,
                 .attrs = &attrs,
                 .n_in = 1,
                 .n_out = 1,
                 .in = &x,
                 .out = out,
                 .err = err};
    return c.op->shape(&c);
}

/* Whether n's op, given its operands with their samples along a new first axis, has the samples of
 * its output there, too, by its rule for that many samples. (Operands with different numbers of
 * dims may be aligned at their last dims: then only one of them has its samples in front.) */
static bool fit_in_front(const tl_node *n, const tl_use *u)
{
    enum { MOST = 32 };
    tl_array a[MOST + TL_OUTS];
    const tl_array *in[MOST + TL_OUTS];
    tl_batch axis[MOST + TL_OUTS], out[TL_OUTS];
    bool fit = n->n_in <= MOST && n->op->batch != NULL;
    for (int j = 0; j < n->n_in + n->n_out && fit; j++) {
        const tl_saved *s = &u->saved[j];
        const bool splits = s->like != NULL && s->axis >= 0;
        in[j] = s->like == NULL ? NULL : &a[j];
        axis[j] = splits ? 0 : TL_FREE;
        if (s->like != NULL)
            a[j] = s->like->a;
        if (splits) {
            const tl_stack_samples_attrs front = {s->axis, 0, 0, u->samples, u->each};
            tl_err e = {.status = TL_OK};
            fit = tl_stacked(&s->like->a, &front, &a[j], &e) == TL_OK;
            tl_array_set_contiguous(&a[j]);
        }
    }
    const tl_call c = {.op = n->op,
                       .attrs = n->attrs,
                       .mode = n->mode,
                       .n_in = n->n_in,
                       .n_out = n->n_out,
                       .in = in,
                       .out = a + n->n_in,
                       .samples = u->samples};
    if (fit)
        n->op->batch(&c, axis, out);
    for (int j = 0; j < n->n_out && fit; j++)
        fit = u->saved[n->n_in + j].axis < 0 || out[j] == 0;
    return fit;
}

/* Sets the elements of each sample, and how samples are stacked; or sets u->samples to -1, if they
 * cannot be told apart in every tensor from which the gradient is computed. */
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
    /* If the leaf has samples itself, each has a gradient of its own. */
    u->to_front = leaf->batch == TL_FREE && !samples_lead(u, &leaf->a);
    u->one_by_one = u->to_front && (full || (u->by_op && !fit_in_front(n, u)));
    if (leaf->batch != TL_FREE || (!u->by_op && has_samples_of(&leaf->a, &u->saved[0])))
        u->samples = -1;
}

tl_status tl_use_of(tl_walk *w, const tl_node *n, int k, const tl_tensor *dy, tl_tensor dx,
                    tl_use *u)
{
    tl_tape *t = w->t;
    const unsigned reads = tl_op_reads(n->op, k < 32 ? TL_BIT(k) : 0);
    *u = (tl_use){.input = k, .by_op = tl_op_folds(n->op, k)};
    u->n_saved = u->by_op ? n->n_in + 2 * n->n_out : 1;
    u->saved = tl_tape_room(t, (size_t)u->n_saved, sizeof *u->saved);
    TL_TRY(tl_error_status(t));
    for (int j = 0; j < n->n_in; j++) /* by an observer */
        if (!tl_is_none(n->in[j]) && tl_input(n, j) == NULL)
            return tl_tape_fail(w->at, TL_ESTALE,
                                "tl_backward: input %d of %s was removed from the model meanwhile",
                                j, n->op->name);
    for (int j = 0; j < u->n_saved; j++) {
        tl_saved *s = &u->saved[j];
        const int out = j - n->n_in, grad = out - n->n_out;
        if (!u->by_op)
            *s = (tl_saved){.x = tl_peek(t, dx), .read = true};
        else if (out < 0)
            *s = (tl_saved){.x = n->value[j], .read = j < 32 && reads & TL_BIT(j)};
        else if (grad < 0)
            *s = (tl_saved){.x = n->made[out], .read = n->op->saves_out & TL_BIT(out)};
        else
            *s = (tl_saved){.x = dy == NULL ? NULL : tl_peek(t, dy[grad]), .read = true};
        s->like = s->x;
        if (s->x == NULL)
            continue;
        /* A cotangent has the samples of its output. So has dx, in the shape of the output, unless
         * that has none because it only repeats the leaf. */
        const tl_value *y = n->made[grad > 0 ? grad : 0];
        const bool as_y = u->by_op ? grad >= 0
                                   : y->batch != TL_FREE && tl_array_same_shape(&y->a, &s->like->a);
        s->axis = as_y ? y->batch : s->like->batch;
        u->samples = as_y ? y->samples : s->like->samples; /* an output's are set last */
    }
    split_samples(n, n->value[k], u);
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
        v->one_by_one || !same_view(t, a->value[u->input], b->value[v->input]))
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
