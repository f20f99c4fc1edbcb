/* fold.c: adds the gradients of a leaf's uses to its accumulators (NUMERICS 10.3).
 *
 *     tl_fold_deal      before the walk (uses.c): each use of a leaf gets its fold, and a number
 *     tl_fold_asks      a node is visited: may its vjp add to the accumulator at once?
 *     tl_fold_deliver   the vjp has done so; or the engine adds dx; or the use is deferred
 *     tl_fold_visited   after the last use of a fold: fold_uses adds the deferred ones, now or
 *                       (.put_off) when tl_accumulate is called (waiting.c)
 *
 * The order of a fold is by sample, then by use in the order of the forward pass, then by row.
 * Backward meets uses from the last to the first, so it defers them if a fold has several, or if
 * one alone would sum something before its samples. To fold them, their samples are stacked as if
 * they were more samples of one use, and the op's own vjp is called once for as many as fit:
 *
 *     sample   0         1         2
 *     use      u0 u1 u2  u0 u1 u2  u0 u1 u2  -> accumulator
 */
#include "autograd/batch/internal.h"
#include "tensor/threads.h"

enum { SCRATCH = 1 << 20 }; /* bytes that are stacked for one call */

/* Accumulator acc of a leaf, seen through the same views through which x shows the leaf. */
static tl_tensor seen_as(tl_walk *w, tl_tensor acc, const tl_value *x, int depth)
{
    const tl_node *view = tl_view_at(w->t, x);
    if (view == NULL)
        return acc;
    if (depth == 64) {
        tl_tape_fail(w->at, TL_EUSAGE,
                     "tl_backward: more than 64 views between a parameter and its use");
        return TL_NONE;
    }
    const tl_node copy = *view; /* nodes may move */
    acc = seen_as(w, acc, copy.value[0], depth + 1);
    return tl_apply1(w->at, copy.op, copy.attrs, &acc, 1);
}

/* The accumulator of a fold as input k of n sees the leaf. */
static tl_tensor accumulator(tl_walk *w, const tl_fold *f, const tl_node *n, int k)
{
    tl_leaf_grad *g = &w->t->grad[f->leaf];
    const bool f64 = !tl_op_folds(n->op, k) || tl_op_folds_f64(n->op, n->attrs, k);
    const tl_dtype dtype = f64 ? TL_F64 : tl_dtype_compute(n->value[k]->a.dtype);
    if (tl_acc_open(w->t, g, f->acc, dtype) != TL_OK)
        return TL_NONE;
    const tl_tensor acc = tl_acc_value(w->t, g, f->acc);
    if (tl_is_none(acc))
        return tl_tape_fail(w->at, TL_EUSAGE, "tl_backward: the recorder gives no accumulator"),
               acc;
    return seen_as(w, acc, n->value[k], 0);
}

/* Adds x to acc, which broadcasts to it. The sum is in f64 whatever the shapes: a batch of one row
 * must be folded like any other. */
static tl_status add(tl_walk *w, tl_tensor x, tl_tensor acc)
{
    tl_folded(w->at, x, acc, &tl_peek(w->t, acc)->a, TL_F64);
    return tl_error_status(w->t);
}

/* Fails unless the vjp has added to acc. */
static tl_status check_added(tl_walk *w, const tl_node *n, int k, tl_tensor dx, tl_tensor acc)
{
    const tl_value *d = tl_peek(w->t, dx);
    if (d != NULL && d->st == tl_peek(w->t, acc)->st &&
        (d->st != NULL || tl_same_handle(tl_bottom(w->t, dx), tl_bottom(w->t, acc))))
        return TL_OK;
    return tl_tape_fail(w->at, TL_EUSAGE,
                        "tl_backward: the vjp of %s did not continue the accumulator of input %d",
                        n->op->name, k);
}

/* ---- folding deferred uses ---- */

/* What one call folds: samples [from, from + n), of `each` elements, of the uses [first, end),
 * which are alike. n < 0: use `first` as a whole. */
typedef struct {
    tl_fold *f;
    int first, end;
    int64_t from, n, each;
} chunk;

/* A value that has only a shape. */
static tl_tensor shape_only(tl_tape *t, const tl_array *a)
{
    tl_value *v = tl_tape_value(t, a, NULL);
    if (v != NULL)
        v->freed = true;
    return tl_handle(v);
}

static tl_tensor slice(tl_walk *w, tl_tensor x, int axis, const tl_fold *f)
{
    const tl_slice_attrs at = {axis, f->from, f->from + f->size, 1};
    return tl_apply1(w->at, &tl_op_slice, &at, &x, 1);
}

/* A saved tensor, or the slice of it that the current part of the fold needs. */
static tl_tensor part_of(tl_walk *w, const tl_fold *f, const tl_saved *s)
{
    if (f->size < 0 || s->cut < 0)
        return s->x->self;
    if (s->read)
        return slice(w, s->x->self, s->cut, f);
    tl_array a = s->like->a;
    a.dim[s->cut] = f->size;
    return shape_only(w->t, &a);
}

/* The shape of n tensors like x, stacked. */
static tl_tensor stacked_shape(tl_walk *w, tl_tensor x, const tl_stack_samples_attrs *at, int n)
{
    tl_array out = {.ndim = 0};
    if (tl_is_none(x) || tl_stacked(&tl_peek(w->t, x)->a, at, &out, &w->t->head.err) != TL_OK)
        return TL_NONE;
    out.dim[at->to] *= n;
    return shape_only(w->t, &out);
}

/* Saved tensor j of the uses of a chunk, with their samples stacked. */
static tl_tensor stacked(tl_walk *w, const chunk *c, int j)
{
    const tl_use *use = &c->f->use[c->first];
    const tl_saved *s = &use->saved[j];
    const int n = c->end - c->first, to = use->to_front && !use->one_by_one ? 0 : s->axis;
    tl_stack_samples_attrs at = {s->axis, to, c->from, c->n, c->each};
    if (s->like == NULL)
        return TL_NONE;
    if (c->n < 0 || s->axis == TL_FREE)
        return part_of(w, c->f, s);
    if (!s->read)
        return stacked_shape(w, part_of(w, c->f, s), &at, n);
    tl_tensor *x = tl_tape_room(w->t, (size_t)n, sizeof *x);
    for (int u = 0; x != NULL && u < n; u++)
        x[u] = part_of(w, c->f, &use[u].saved[j]);
    return tl_apply1(w->at, &tl_op_stack_samples, &at, x, n);
}

/* Calls the vjp of n, which adds a chunk to acc. */
static tl_status add_by_op(tl_walk *w, const chunk *c, const tl_node *n, tl_tensor acc)
{
    tl_tape *t = w->t;
    const uint32_t first = t->n_nodes;
    const tl_use *u = &c->f->use[c->first];
    tl_tensor *in = tl_tape_room(t, (size_t)(u->n_saved + 2 * n->n_in), sizeof *in);
    bool *wants = tl_tape_room(t, (size_t)n->n_in, sizeof *wants);
    TL_TRY(tl_error_status(t));
    tl_tensor *out = in + n->n_in, *dy = out + n->n_out, *accs = dy + n->n_out,
              *dx = accs + n->n_in;
    for (int j = 0; j < u->n_saved; j++)
        in[j] = stacked(w, c, j);
    TL_TRY(tl_error_status(t));
    wants[u->input] = true;
    accs[u->input] = acc;
    tl_vjp g = {t, n->attrs, n->n_in, n->n_out, in, out, dy, accs, wants, dx};
    TL_TRY(tl_walk_vjp(w, u->node, first, &g));
    return check_added(w, n, u->input, dx[u->input], acc);
}

static tl_status fold_chunk(tl_walk *w, const chunk *c)
{
    tl_tape *t = w->t;
    const tl_use *u = &c->f->use[c->first];
    const uint32_t mark = atomic_load(&t->values.count);
    const tl_node copy = t->node[u->node], *n = &copy; /* nodes may move */
    t->now.mode = (t->now.mode & ~(unsigned)TL_FAST) | (n->mode & TL_FAST);
    t->now.choice = n->choice;
    tl_tensor acc = accumulator(w, c->f, n, u->input);
    if (c->f->size >= 0)
        acc = slice(w, acc, u->leaf_axis, c->f);
    TL_TRY(tl_error_status(t));
    TL_TRY(u->by_op ? add_by_op(w, c, n, acc) : add(w, stacked(w, c, 0), acc));
    tl_walk_free_since(w, mark);
    return TL_OK;
}

/* Folds samples [from, from + n) of use u, which allows no new first axis: one element at a time,
 * in the order in which the others are folded. */
static tl_status fold_one_by_one(tl_walk *w, tl_fold *f, int u, int64_t from, int64_t n)
{
    const int64_t each = f->use[u].each;
    for (int64_t i = from * each; i < (from + n) * each; i++)
        TL_TRY(fold_chunk(w, &(chunk){f, u, u + 1, i, 1, 1}));
    return TL_OK;
}

/* Folds in chunks: as many samples of all uses as scratch holds, if the uses are alike; else as
 * many uses of one sample. */
static tl_status fold_samples(tl_walk *w, tl_fold *f, int64_t samples)
{
    int64_t n = samples;
    size_t largest = 0;
    for (int u = 0; u < f->n; u++) {
        const size_t bytes = tl_use_sample_bytes(&f->use[u]);
        largest = bytes > largest ? bytes : largest;
        if (u > 0 && !tl_uses_alike(w->t, &f->use[u - 1], &f->use[u]))
            n = 1;
    }
    const int64_t most = largest > SCRATCH ? 1 : (int64_t)(SCRATCH / (largest + 1)),
                  of_all = most / f->n > 0 ? most / f->n : 1;
    n = n < of_all ? n : of_all;
    chunk c = {.f = f};
    for (; c.from < samples; c.from += c.n) {
        c.n = n < samples - c.from ? n : samples - c.from;
        for (c.first = 0; c.first < f->n; c.first = c.end) {
            const tl_use *u = &f->use[c.first];
            for (c.end = c.first + 1; c.end < f->n && (c.n > 1 || c.end - c.first < most); c.end++)
                if (!tl_uses_alike(w->t, u, &f->use[c.end]))
                    break;
            c.each = u->each;
            TL_TRY(u->one_by_one ? fold_one_by_one(w, f, c.first, c.from, c.n) : fold_chunk(w, &c));
        }
    }
    return TL_OK;
}

/* Adds the deferred uses to the accumulator, or the part given by f->from and f->size. */
static tl_status fold_uses(tl_walk *w, tl_fold *f)
{
    int64_t samples = f->use[0].samples;
    for (int u = 1; u < f->n; u++)
        samples = f->use[u].samples == samples ? samples : -1;
    if (samples >= 0)
        return fold_samples(w, f, samples);
    for (int u = 0; u < f->n; u++)
        TL_TRY(fold_chunk(w, &(chunk){f, u, u + 1, 0, -1, 0}));
    return TL_OK;
}

/* Releases what the uses hold. */
static void release(tl_fold *f)
{
    for (int u = 0; u < f->n; u++)
        for (int j = 0; j < f->use[u].n_saved; j++) {
            const tl_saved *s = &f->use[u].saved[j];
            if (s->like != NULL && s->read && s->x->held)
                tl_value_give_back(s->x);
        }
}

/* ---- a fold that waits for tl_accumulate ---- */

/* Fails if a tensor of the model that the vjp of a use gets has been removed since it was recorded,
 * or has changed, if the vjp will read it.
 * (Values of the tape are checked when they are read.) */
static tl_status check_unchanged(tl_walk *w, const tl_use *u)
{
    tl_tape *t = w->t;
    const tl_node *n = &t->node[u->node];
    tl_changer by;
    char text[TL_CHANGER_TEXT], name[TL_SHOWN_TEXT];
    for (int j = 0; u->by_op && j < n->n_in; j++) {
        const tl_saved *s = &u->saved[j];
        if (s->like == NULL || n->in[j].owner == t->values.owner)
            continue;
        const tl_value *v = tl_input(n, j);
        if (v == NULL)
            return tl_tape_fail(w->at, TL_ESTALE,
                                "tl_accumulate: input %d of %s was removed from the model "
                                "meanwhile",
                                j, n->op->name);
        if (s->read && v->st != NULL && tl_storage_changed(v->st, n->versions[j], &v->a, &by))
            return tl_tape_fail(w->at, TL_EINPLACE,
                                "tl_accumulate: input %d of %s%s was changed meanwhile by %s", j,
                                n->op->name, tl_shown_text(name, t, n->in[j]),
                                tl_changer_text(text, by));
    }
    return TL_OK;
}

/* Adds part i of `of` of a fold. */
static tl_status run(tl_tape *t, tl_fold *f, int i, int of)
{
    const tl_node *n = &t->node[f->use[0].node];
    tl_walk w = {.t = t, .at = {t, n->file, n->line, NULL}};
    const tl_scope outer = tl_scope_open(w.at, TL_NO_GRAD, TL_PHASE_BACKWARD);
    tl_status s = TL_OK;
    t->now.place_base = outer.place_depth; /* as in the visit of a node */
    for (int u = 0; u < f->n && s == TL_OK; u++)
        s = check_unchanged(&w, &f->use[u]);
    if (of > 1) {
        const int64_t size = tl_peek(t, t->grad[f->leaf].leaf)->a.dim[f->axis];
        f->from = size * i / of;
        f->size = size * (i + 1) / of - f->from; /* even a part of 0 opens the accumulator */
    }
    if (s == TL_OK)
        s = fold_uses(&w, f);
    if (s == TL_OK && i == of - 1)
        release(f);
    tl_scope_end(t, outer);
    return s;
}

/* ---- what the engine asks ---- */

/* Whether a fold is left to tl_accumulate. (A leaf of the tape ends with the reset: its folds never
 * wait.) */
static bool put_off(const tl_walk *w, const tl_fold *f)
{
    return w->opt.put_off && w->t->grad[f->leaf].leaf.owner != w->t->values.owner;
}

/* Whether the use can be added while its node is visited: it is the only one of its fold, and
 * nothing is summed before its samples. */
static bool is_simple(const tl_fold *f, const tl_use *u) { return f->n == 1 && !u->to_front; }

bool tl_fold_asks(tl_walk *w, const tl_node *n, const tl_edge *e, tl_tensor *acc)
{
    tl_use u;
    if (!tl_op_folds(n->op, e->input))
        return true;
    if (put_off(w, e->fold) || tl_use_of(w, n, e->input, NULL, TL_NONE, &u) != TL_OK ||
        !is_simple(e->fold, &u))
        return false;
    *acc = accumulator(w, e->fold, n, e->input);
    return true;
}

/* Holds, until the fold is added, the tensors from which the gradient of a use is computed. */
static tl_status defer(tl_walk *w, tl_fold *f, int number, tl_use u)
{
    if (f->use == NULL)
        f->use = tl_tape_room(w->t, (size_t)f->n, sizeof *f->use);
    TL_TRY(tl_error_status(w->t));
    for (int j = 0; j < u.n_saved; j++)
        if (u.saved[j].read)
            u.saved[j].x = tl_hold(w->t, u.saved[j].x);
    f->use[number] = u;
    return tl_error_status(w->t);
}

/* Refuses, under TL_STRICT, a vjp (a user's) that has summed over samples by itself: its result is
 * a finished sum, one for each micro-batch. */
static tl_status check_strict(const tl_walk *w, const tl_node *n, int k, const tl_use *u)
{
    const tl_value *dx = u->saved[0].like;
    bool samples = false;
    for (int i = 0; n->mode & TL_STRICT && i < n->n_in; i++)
        samples |= i != k && n->value[i] != NULL && n->value[i]->batch >= 0;
    if (!samples || u->by_op || dx == NULL || (dx->batch != TL_TOTAL && dx->batch != TL_MIXED))
        return TL_OK;
    return tl_tape_fail(w->at, TL_EUSAGE,
                        "tl_backward: TL_STRICT: the vjp of %s sums its gradient for input %d over "
                        "the samples of each micro-batch; list the input in .folds, and add to "
                        "acc[%d]",
                        n->op->name, k, k);
}

tl_status tl_fold_deliver(tl_walk *w, const tl_node *n, const tl_edge *e, const tl_tensor *dy,
                          tl_tensor dx, tl_tensor acc)
{
    const int k = e->input;
    tl_use u;
    if (!tl_is_none(acc))
        return check_added(w, n, k, dx, acc);
    TL_TRY(tl_use_of(w, n, k, dy, dx, &u));
    TL_TRY(check_strict(w, n, k, &u));
    u.node = e->node;
    const bool simple = is_simple(e->fold, &u);
    if (simple)
        u.samples = -1; /* no need to split them */
    if (u.by_op || put_off(w, e->fold) || !simple)
        return defer(w, e->fold, e->use, u);
    acc = accumulator(w, e->fold, n, k);
    return tl_is_none(acc) ? tl_error_status(w->t) : add(w, dx, acc);
}

/* Tells observers that what waits for a leaf is complete, if all its uses have been visited. */
static tl_status tell_put_off(tl_tape *t, tl_leaf_grad *g)
{
    for (int k = 0; k < g->n_accs; k++)
        for (const tl_fold *f = g->acc[k].folds; f != NULL; f = f->next)
            if (f->visited < f->n)
                return TL_OK;
    const char *param = g->waiting == NULL ? NULL : tl_leaf_grad_name(t, g);
    if (param != NULL)
        TL_TELL(t, put_off, t, param);
    return tl_error_status(t);
}

/* Called once all uses have been visited: adds the deferred ones, or leaves them waiting. */
static tl_status complete(tl_walk *w, tl_fold *f)
{
    int n = 0;
    for (int u = 0; u < f->n; u++)
        if (f->use[u].saved != NULL) /* else no gradient has come to it */
            f->use[n++] = f->use[u];
    f->n = n;
    if (put_off(w, f)) {
        tl_fold_wait(w->t, f, run);
        return TL_OK;
    }
    TL_TRY(fold_uses(w, f));
    release(f);
    return TL_OK;
}

tl_status tl_fold_visited(tl_walk *w, uint32_t i, const tl_node *n)
{
    for (int k = 0; k < n->n_in; k++) {
        tl_fold *f = w->edge[i][k].fold;
        if (f == NULL || ++f->visited < f->n)
            continue;
        if (f->use != NULL)
            TL_TRY(complete(w, f));
        if (w->t->n_watchers > 0)
            TL_TRY(tell_put_off(w->t, &w->t->grad[f->leaf]));
    }
    return TL_OK;
}
