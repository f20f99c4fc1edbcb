/* waiting.c: what tl_backward has put off (.put_off), added when tl_accumulate asks for it.
 *
 * A parameter's part - some elements of it along one axis - can be added alone where all that comes
 * to those needs only a part of each operand, too. The op's rule for the batch knows: elements that
 * could be samples of an input are samples of the results, or are added up with those of another
 * input, and the vjp of the whole is that of each part. */
#include <string.h>

#include "autograd/batch/fold.h"
#include "tensor/threads.h"

/* ---- what a use will read ---- */

/* What the vjp of a use will read of the model is what it was when recorded. (Values of the tape
 * know that themselves.) */
static tl_status check_kept(tl_walk *w, const tl_put *p)
{
    tl_tape *t = w->t;
    const tl_node *n = &t->node[p->node];
    const unsigned reads = tl_op_folds(n->op, p->input) ? tl_op_reads(n->op, TL_BIT(p->input)) : 0;
    tl_changer by;
    char text[TL_CHANGER_TEXT];
    for (int j = 0; j < n->n_in && j < 32 && p->kept != NULL; j++) {
        const tl_tensor x = reads & TL_BIT(j) ? p->kept[j] : TL_NONE;
        const tl_value *v = tl_is_none(x) || x.owner == t->values.owner ? NULL : tl_peek(t, x);
        if (v != NULL && v->st != NULL && tl_storage_changed(v->st, n->versions[j], &v->a, &by))
            return tl_tape_fail(w->at, TL_EINPLACE,
                                "tl_accumulate: input %d of %s was changed meanwhile by %s", j,
                                n->op->name, tl_changer_text(text, by));
    }
    return TL_OK;
}

/* ---- parts ---- */

enum { MOST = 8 }; /* inputs, or outputs, of an op whose sums are cut */

/* Which axis of x, a view of the leaf, is that axis of the leaf; -1. */
static int axis_of_view(const tl_array *x, const tl_array *leaf, int axis)
{
    int j = x->ndim - 1;
    while (j >= 0 && (x->dim[j] != leaf->dim[axis] || x->stride[j] != leaf->stride[axis]))
        j--;
    return leaf->dim[axis] > 1 ? j : -1;
}

/* It shows the same elements so many times along an axis, perhaps once for each sample: the rule
 * for the batch lets it be, but a part has fewer. */
static bool repeats(const tl_array *x, int64_t size)
{
    for (int a = 0; x != NULL && size > 1 && a < x->ndim; a++)
        if (x->dim[a] == size && x->stride[a] == 0)
            return true;
    return false;
}

/* Were input k of n one sample an element along the axis, and input i (-1: none) along its own: */
static bool as_samples(const tl_call *c, int k, int axis, int i, int its, int *along)
{
    tl_batch in[MOST], out[MOST];
    const int64_t size = c->in[k]->dim[axis];
    for (int j = 0; j < c->n_in; j++)
        in[j] = TL_FREE;
    in[k] = (tl_batch)axis;
    if (i >= 0)
        in[i] = (tl_batch)its;
    c->op->batch(c, in, out);
    for (int j = 0; j < c->n_in; j++) {
        along[j] = j == k ? axis : j == i ? its : -1;
        if (along[j] < 0 && repeats(c->in[j], size))
            return false;
    }
    for (int j = 0; j < c->n_out; j++) {
        const bool cut = i < 0 && out[j] >= 0 && c->out[j].dim[out[j]] == size;
        if (!cut && (i < 0 || out[j] != TL_TOTAL))
            return false;
        along[c->n_in + j] = along[c->n_in + c->n_out + j] = cut ? out[j] : -1;
    }
    return i < 0 || c->op->saves_out == 0;
}

static bool cut_by_rule(const tl_tape *t, const tl_node *n, int k, int axis, int *along)
{
    const tl_array *in[MOST];
    tl_array out[MOST];
    if (n->op->batch == NULL || n->n_in > MOST || n->n_out > MOST)
        return false;
    for (int i = 0; i < n->n_in; i++)
        in[i] = tl_is_none(n->in[i]) ? NULL : &tl_peek(t, n->in[i])->a;
    for (int i = 0; i < n->n_out; i++)
        out[i] = tl_peek(t, tl_node_out(t, n, i))->a;
    const int64_t size = in[k]->dim[axis];
    const tl_call c = {.op = n->op,
                       .attrs = n->attrs,
                       .n_in = n->n_in,
                       .n_out = n->n_out,
                       .in = in,
                       .out = out,
                       .samples = size};
    bool can = as_samples(&c, k, axis, -1, -1, along);
    for (int i = 0; i < n->n_in && !can; i++)
        for (int a = 0; i != k && in[i] != NULL && a < in[i]->ndim && !can; a++)
            can = in[i]->dim[a] == size && as_samples(&c, k, axis, i, a, along);
    return can;
}

/* Which axes of what a use keeps are cut with the leaf's: p->n_kept of them. */
static bool cut_use(const tl_tape *t, const tl_fold *f, const tl_put *p, int axis, int *along,
                    int *seen)
{
    const tl_node *n = &t->node[p->node];
    const tl_array *x = &tl_peek(t, n->in[p->input])->a;
    *seen = axis_of_view(x, &tl_peek(t, t->grad[f->leaf].leaf)->a, axis);
    if (*seen < 0)
        return false;
    if (tl_op_folds(n->op, p->input))
        return cut_by_rule(t, n, p->input, *seen, along);
    const tl_array *dx = &tl_peek(t, p->kept[0])->a;
    const int j = *seen + dx->ndim - x->ndim;
    along[0] = j >= 0 && dx->dim[j] == x->dim[*seen] ? j : -1;
    return true;
}

/* The first axis of the leaf along which a fold can be cut; -1. */
static int axis_of_fold(const tl_tape *t, const tl_fold *f)
{
    int along[3 * MOST], seen;
    if (f->run != NULL)
        return f->axis;
    const int ndim = tl_peek(t, t->grad[f->leaf].leaf)->a.ndim;
    for (int axis = 0; axis < ndim; axis++) {
        bool can = true;
        for (int u = 0; u < f->n && can; u++)
            can = cut_use(t, f, &f->put[u], axis, along, &seen);
        if (can)
            return axis;
    }
    return -1;
}

/* The fold, of elements [from, from + n) of the leaf along the axis alone. */
static tl_status fold_part(tl_walk *w, const tl_fold *f, int axis, int64_t from, int64_t n)
{
    tl_tape *t = w->t;
    tl_fold part = *f;
    part.put = tl_bump_get(&t->bump, (size_t)f->n * sizeof *part.put);
    for (int u = 0; u < f->n && part.put != NULL; u++) {
        const tl_put *p = &f->put[u];
        int *along = tl_bump_get(&t->bump, (size_t)p->n_kept * sizeof *along), seen;
        tl_tensor *kept = tl_bump_get(&t->bump, (size_t)p->n_kept * sizeof *kept);
        if (along == NULL || kept == NULL || !cut_use(t, f, p, axis, along, &seen))
            return tl_tape_fail(w->at, TL_ENOMEM, "tl_accumulate_part: no memory");
        for (int j = 0; j < p->n_kept; j++)
            kept[j] = tl_is_none(p->kept[j]) || along[j] < 0
                          ? p->kept[j]
                          : tl_fold_slice(w, p->kept[j], along[j], from, n);
        part.put[u] = *p;
        part.put[u].kept = kept;
        part.put[u].along = along;
        part.put[u].axis_of_leaf = seen;
        part.put[u].from = from;
        part.put[u].cut = n;
    }
    if (part.put == NULL)
        return tl_tape_fail(w->at, TL_ENOMEM, "tl_accumulate_part: no memory");
    TL_TRY(t->head.err.status);
    return tl_fold_uses(w, &part); /* of no elements, too: it opens the accumulator */
}

/* ---- all that waits for a parameter ---- */

/* Along which axis what waits for accumulator k of a record is cut. */
static int axis_of(const tl_tape *t, const tl_leaf_grad *g, int k)
{
    int axis = TL_ANY_AXIS;
    for (const tl_fold *f = g->waiting; f != NULL; f = f->later) {
        const int its = f->acc == k ? axis_of_fold(t, f) : axis;
        axis = axis == TL_ANY_AXIS || axis == its ? its : TL_WHOLE;
    }
    return axis;
}

/* Part i of `of` of a fold of this tape. */
static tl_status fold_waiting(tl_tape *t, tl_fold *f, int i, int of)
{
    const tl_node *n = &t->node[f->put[0].node];
    tl_walk w = {.t = t, .at = {t, n->file, n->line, NULL}};
    const tl_scope outer = tl_scope_open(w.at, TL_NO_GRAD, TL_PHASE_BACKWARD);
    const tl_leaf_grad *g = &t->grad[f->leaf];
    const int axis = of > 1 ? axis_of(t, g, f->acc) : TL_WHOLE;
    tl_status s = TL_OK;
    t->place_base = outer.place_depth; /* as in the visit of a node */
    for (int u = 0; u < f->n && s == TL_OK; u++)
        s = check_kept(&w, &f->put[u]);
    if (s == TL_OK && axis < 0) {
        s = tl_fold_uses(&w, f);
    } else if (s == TL_OK) {
        const int64_t size = tl_peek(t, g->leaf)->a.dim[axis], from = size * i / of;
        s = fold_part(&w, f, axis, from, size * (i + 1) / of - from);
    }
    if (s == TL_OK && i == of - 1)
        tl_fold_ends(t, f);
    tl_scope_end(t, outer);
    return s;
}

static tl_status run_waiting(tl_tape *t, tl_fold *f, int i, int of)
{
    f->parts = of;
    f->part = i + 1;
    return f->run != NULL ? f->run(t, f, i, of) : fold_waiting(t, f, i, of);
}

/* Records may move meanwhile. */
static tl_status run_record(tl_tape *t, int record, int i, int of)
{
    for (tl_fold *f = t->grad[record].waiting; f != NULL && i < of - 1; f = f->later)
        TL_TRY(run_waiting(t, f, i, of));
    for (tl_fold *f; i == of - 1 && (f = t->grad[record].waiting) != NULL; t->waiting--) {
        TL_TRY(run_waiting(t, f, i, of));
        t->grad[record].waiting = f->later;
    }
    return TL_OK;
}

tl_status tl_fold_recorded(tl_tape *t)
{
    for (int i = t->first_grad; i < t->n_grads; i++)
        TL_TRY(run_record(t, i, 0, 1));
    return TL_OK;
}

static tl_leaf_grad *record_of(tl_tape *t, const char *param)
{
    const tl_tensor leaf = tl_grad_named(t, param, TL_F32, NULL);
    return tl_is_none(leaf) ? NULL : tl_leaf_grad_find(t, leaf);
}

tl_status tl_accumulator_axis(tl_tape *t, const char *param, int call, const char *kind, int *axis)
{
    TL_TRY(tl_error_status(t));
    TL_TRY(TL_NEED_AT(tl_nowhere(t), kind));
    TL_TRY(TL_NEED_AT(tl_nowhere(t), axis));
    const tl_leaf_grad *g = record_of(t, param);
    TL_TRY(t->head.err.status);
    *axis = TL_ANY_AXIS;
    for (int k = 0; g != NULL && k < g->n_accs; k++)
        if (g->acc[k].call == call && strcmp(g->acc[k].kind, kind) == 0)
            *axis = axis_of(t, g, k);
    return TL_OK;
}

int tl_accumulate_parts(tl_tape *t, const char *param, int64_t most)
{
    const tl_leaf_grad *g = tl_failed(t) ? NULL : record_of(t, param);
    if (g == NULL || most < 1)
        return 1;
    const tl_array *leaf = &tl_peek(t, g->leaf)->a;
    int64_t parts = (tl_array_count(leaf) + most - 1) / most;
    for (const tl_fold *f = g->waiting; f != NULL && parts > 1; f = f->later) {
        const int axis = axis_of(t, g, f->acc);
        parts = axis < 0 ? 1 : parts < leaf->dim[axis] ? parts : leaf->dim[axis];
    }
    return parts < 1 ? 1 : parts > INT32_MAX ? INT32_MAX : (int)parts;
}

tl_status tl_accumulate_part(tl_tape *t, const char *param, int i, int of)
{
    TL_TRY(tl_error_status(t));
    const tl_leaf_grad *g = record_of(t, param);
    TL_TRY(t->head.err.status);
    if (i < 0 || i >= of)
        return tl_tape_fail(tl_nowhere(t), TL_EUSAGE, "tl_accumulate_part: part %d of %d", i, of);
    if (g == NULL)
        return TL_OK;
    for (const tl_fold *f = g->waiting; f != NULL; f = f->later) {
        if (f->part != i || (i > 0 && f->parts != of))
            return tl_tape_fail(tl_nowhere(t), TL_EUSAGE,
                                "tl_accumulate: part %d of %d of '%.100s', behind part %d of %d", i,
                                of, param, f->part - 1, f->parts);
        if (of > 1 && axis_of(t, g, f->acc) < 0)
            return tl_tape_fail(tl_nowhere(t), TL_EUSAGE,
                                "tl_accumulate_part: what waits for '%.100s' is added as a whole "
                                "only",
                                param);
    }
    const tl_tensor leaf = g->leaf;
    tl_fpenv saved = tl_fpenv_enter();
    if (g->waiting != NULL && run_record(t, (int)(g - t->grad), i, of) == TL_OK)
        tl_leaf_grad_find(t, leaf)->live = true; /* records may have moved */
    tl_fpenv_leave(saved);
    return t->head.err.status;
}

tl_status tl_accumulate(tl_tape *t, const char *param)
{
    return tl_accumulate_part(t, param, 0, 1);
}
