/* fold.c: what comes to a leaf, added to its accumulators (NUMERICS 10.3).
 *
 * Uses of one kind are one fold: by sample, of a sample by use in the order of the forward pass, of
 * a use by row. Backward meets them from the last to the first: what their gradients are made of is
 * kept until all have been visited. Then samples of all uses are put beside each other, as if they
 * were more samples of one use, and the op's own vjp is called once for as many as scratch of 1 MiB
 * holds. Where tl_backward puts off all that comes to parameters, a single use is kept, too, and
 * folded as it would have been, whole or in parts (waiting.c). */
#include <string.h>

#include "autograd/batch/fold.h"
#include "tensor/threads.h"

enum { SCRATCH = 1 << 20 };

/* The accumulator as a value of the tape, seen as input k of n sees the leaf. */
static tl_tensor accumulator(tl_walk *w, tl_fold *f, const tl_node *n, int k)
{
    tl_tape *t = w->t;
    tl_leaf_grad *g = &t->grad[f->leaf];
    int32_t view[64]; /* by number: nodes move while others are recorded */
    int depth = 0;
    bool own = tl_op_folds(n->op, k) && !tl_op_folds_f64(n->op, n->attrs, k);
    if (tl_acc_open(t, g, f->acc, own ? tl_dtype_compute(tl_peek(t, g->leaf)->a.dtype) : TL_F64) !=
        TL_OK)
        return TL_NONE;
    for (const tl_node *v = n; (v = tl_view_at(t, v->in[v == n ? k : 0])) != NULL;) {
        if (depth == 64) {
            tl_tape_fail(w->at, TL_EUSAGE,
                         "tl_backward: more than 64 views between a parameter and its use");
            return TL_NONE;
        }
        view[depth++] = (int32_t)(v - t->node);
    }
    tl_tensor x = tl_acc_value(t, g, f->acc);
    while (depth-- > 0)
        x = tl_apply1(w->at, t->node[view[depth]].op, t->node[view[depth]].attrs, &x, 1);
    return x;
}

/* Continues acc with x, which it broadcasts to; in f64 whatever the shapes: a batch of one row must
 * not fold otherwise than the others. */
static tl_status sum(tl_walk *w, tl_tensor x, tl_tensor acc)
{
    tl_sum_to_attrs at = {tl_array_shape(&tl_peek(w->t, acc)->a), TL_F64};
    tl_apply1(w->at, &tl_op_sum_to, &at, (tl_tensor[]){x, acc}, 2);
    return w->t->head.err.status;
}

/* The vjp has continued acc. */
static tl_status continued(tl_walk *w, const tl_node *n, int k, tl_tensor dx, tl_tensor acc)
{
    const tl_value *d = tl_is_none(dx) ? NULL : tl_peek(w->t, dx);
    if (d != NULL && d->st == tl_peek(w->t, acc)->st &&
        (d->st != NULL || tl_same_handle(tl_bottom(w->t, dx), tl_bottom(w->t, acc))))
        return TL_OK;
    return tl_tape_fail(w->at, TL_EUSAGE,
                        "tl_backward: the vjp of %s did not continue the accumulator of input %d",
                        n->op->name, k);
}

/* ---- samples ---- */

tl_tensor tl_put_of(const tl_tape *t, const tl_node *n, int j)
{
    return j < n->n_in ? n->in[j] : tl_node_out(t, n, (j - n->n_in) % n->n_out);
}

/* The value that kept[j] is, or has the shape of, and along which axis its samples lie. */
static const tl_value *shown_by(const tl_tape *t, const tl_put *p, int j, tl_batch *axis)
{
    const tl_node *n = &t->node[p->node];
    const bool given = !tl_op_folds(n->op, p->input);
    const tl_tensor x = given ? p->kept[0] : tl_put_of(t, n, j);
    const tl_value *v = tl_is_none(x) ? NULL : tl_peek(t, x);
    *axis = v == NULL ? TL_FREE : given ? p->axis : v->batch;
    return v;
}

/* What a vjp gave has the samples of the node's output, or, where that has none (it repeats the
 * leaf), its own. */
static const tl_value *samples_given(const tl_tape *t, const tl_node *n, tl_tensor dx)
{
    const tl_value *y = tl_values_at(&t->values, n->out), *d = tl_peek(t, dx);
    return y->batch != TL_FREE && tl_array_same_shape(&y->a, &d->a) ? y : d;
}

/* Nothing of a is added up before its samples: dims in front of them are 1, or the leaf's, too. */
static bool leads(const tl_array *a, int axis, const tl_array *leaf)
{
    while (--axis >= 0 &&
           (a->dim[axis] == 1 || (leaf->ndim == a->ndim && leaf->dim[axis] == a->dim[axis])))
        ;
    return axis < 0;
}

/* Input k of n gives when it is visited: there is no other use, and its samples come first. dx:
 * what its vjp gave, where the engine folds. */
static bool now(const tl_tape *t, const tl_node *n, int k, const tl_fold *f, tl_tensor dx)
{
    const tl_value *leaf = tl_peek(t, f->x);
    bool lead = f->n == 1;
    if (!lead || leaf->batch != TL_FREE) /* a sample's gradient is its own */
        return lead;
    if (!tl_op_folds(n->op, k))
        return leads(&tl_peek(t, dx)->a, samples_given(t, n, dx)->batch, &leaf->a);
    for (int j = 0; lead && j < n->n_in + n->n_out; j++) {
        const tl_tensor x = tl_put_of(t, n, j);
        lead = tl_is_none(x) || leads(&tl_peek(t, x)->a, tl_peek(t, x)->batch, &leaf->a);
    }
    return lead;
}

/* The fold waits for tl_accumulate. */
static bool waits(const tl_walk *w, const tl_fold *f)
{
    return w->opt.put_off && w->t->grad[f->leaf].leaf.owner != w->t->values.owner;
}

/* The leaf is as long as a along that axis: a sample's gradient is its own there, too. */
static bool along(const tl_array *a, int axis, const tl_array *leaf)
{
    const int i = axis - (a->ndim - leaf->ndim);
    return axis >= 0 && i >= 0 && leaf->dim[i] > 1;
}

/* How many samples the use has, and whether they come first. */
static void count_samples(const tl_tape *t, tl_put *p)
{
    const tl_node *n = &t->node[p->node];
    const tl_value *leaf = tl_peek(t, n->in[p->input]);
    const bool given = !tl_op_folds(n->op, p->input);
    if (given) {
        const tl_value *d = samples_given(t, n, p->kept[0]);
        p->axis = d->batch;
        p->samples = d->samples;
    } else {
        p->samples = -1;
        for (int j = 0; p->samples < 0 && j < n->n_in + n->n_out; j++)
            p->samples = tl_is_none(tl_put_of(t, n, j)) ? -1
                                                        : tl_peek(t, tl_put_of(t, n, j))->samples;
    }
    bool full = false;
    p->each = -1;
    for (int j = 0; p->samples >= 0 && j < (given ? 1 : n->n_in + n->n_out); j++) {
        tl_batch axis;
        const tl_value *x = shown_by(t, p, j, &axis);
        if (x == NULL || (axis == TL_FREE && j < n->n_in && !given))
            continue;
        const int64_t each = axis < 0 ? -1 : p->samples > 0 ? x->a.dim[axis] / p->samples : 1;
        p->samples = each < 0 || (p->each >= 0 && each != p->each) ? -1 : p->samples;
        p->each = each;
        p->first |= !leads(&x->a, axis, &leaf->a);
        full |= axis > 0 && x->a.ndim == TL_MAX_DIMS;
    }
    p->alone = p->first && full;
    if (leaf->batch != TL_FREE || (given && along(&tl_peek(t, p->kept[0])->a, p->axis, &leaf->a)))
        p->samples = -1;
}

/* Bytes of what a sample has to be put beside others. */
static size_t sample_bytes(const tl_tape *t, const tl_put *p)
{
    int64_t bytes = 0;
    for (int j = 0; j < p->n_kept; j++) {
        tl_batch axis;
        (void)shown_by(t, p, j, &axis);
        if (tl_is_none(p->kept[j]) || axis == TL_FREE)
            continue;
        const tl_array *a = &tl_peek(t, p->kept[j])->a;
        bytes += tl_array_count(a) * (int64_t)tl_dtype_size(a->dtype);
    }
    return (size_t)(bytes / (p->samples > 0 ? p->samples : 1));
}

/* Samples of both can be put beside each other, and one call folds them. */
static bool alike(const tl_tape *t, const tl_put *p, const tl_put *q)
{
    const tl_node *a = &t->node[p->node], *b = &t->node[q->node];
    const bool given = !tl_op_folds(a->op, p->input);
    if (given != !tl_op_folds(b->op, q->input) || p->n_kept != q->n_kept || p->alone || q->alone ||
        p->each != q->each || !tl_same_view(t, a->in[p->input], b->in[q->input]))
        return false;
    if (!given && (a->op != b->op || p->input != q->input || (a->mode ^ b->mode) & TL_FAST ||
                   a->choice != b->choice || !tl_attrs_agree(a->op, a->attrs, b->attrs, 0, NULL)))
        return false;
    for (int j = 0; j < p->n_kept; j++) {
        tl_batch axis, other;
        const tl_value *v = shown_by(t, p, j, &axis), *u = shown_by(t, q, j, &other);
        if ((v == NULL) != (u == NULL) || tl_is_none(p->kept[j]) != tl_is_none(q->kept[j]))
            return false;
        if (v != NULL && (given || j != p->input) &&
            (axis != other || v->a.dtype != u->a.dtype || !tl_array_same_shape(&v->a, &u->a) ||
             (axis == TL_FREE && v != u)))
            return false;
    }
    return true;
}

/* ---- putting off ---- */

/* Input k of order[i] is put off; dx: what its vjp gave, where the engine folds. */
static tl_status put(tl_walk *w, uint32_t i, int k, const tl_tensor *dy, tl_tensor dx)
{
    tl_tape *t = w->t;
    const tl_edge *e = &w->edge[i][k];
    const tl_node *n = &t->node[w->order[i]];
    tl_fold *f = e->fold;
    const bool folds = tl_op_folds(n->op, k);
    tl_put p = {.node = w->order[i], .input = k, .n_kept = folds ? n->n_in + 2 * n->n_out : 1};
    if (f->put == NULL)
        f->put = tl_bump_get(&t->bump, (size_t)f->n * sizeof *f->put);
    p.kept = tl_bump_get(&t->bump, (size_t)p.n_kept * sizeof *p.kept);
    if (f->put == NULL || p.kept == NULL)
        return tl_tape_fail(w->at, TL_ENOMEM, "tl_backward: no memory to put a gradient off");
    const unsigned reads = tl_op_reads(n->op, TL_BIT(k));
    for (int j = 0; j < p.n_kept; j++) {
        tl_tensor x = tl_put_of(t, n, j);
        int out = j - n->n_in;
        bool read = j < n->n_in ? j == k || (j < 32 && reads & TL_BIT(j)) ||
                                      (!tl_is_none(x) && tl_peek(t, x)->batch == TL_FREE)
                                : out >= n->n_out || n->op->saves_out & TL_BIT(out);
        p.kept[j] = !folds  ? tl_hold(t, dx)
                    : !read ? TL_NONE
                            : tl_hold(t, out >= n->n_out ? dy[out - n->n_out] : x);
    }
    TL_TRY(t->head.err.status);
    count_samples(t, &p);
    if (now(t, n, k, f, dx)) /* but for tl_accumulate */
        p.samples = -1;
    f->put[e->use] = p;
    return TL_OK;
}

/* ---- folding ---- */

/* Uses [first, end) of a fold, alike, samples [from, from + n) of each, of `each` elements; n < 0:
 * one use as a whole. */
typedef struct {
    tl_fold *f;
    int first, end;
    int64_t from, n, each;
} part;

/* A value that has only a shape. */
static tl_tensor shape_only(tl_tape *t, const tl_array *a)
{
    const tl_tensor x = tl_tape_value(t, a, NULL);
    if (!tl_is_none(x))
        tl_peek(t, x)->freed = true;
    return x;
}

/* kept[j] of a part's uses, sample by sample. What no vjp reads has only a shape. */
static tl_tensor beside(tl_walk *w, const part *p, int j)
{
    tl_tape *t = w->t;
    const tl_put *put = &p->f->put[p->first];
    const tl_node *n = &t->node[put->node];
    tl_tensor kept = put->kept[j];
    tl_batch axis;
    const tl_value *x = shown_by(t, put, j, &axis);
    if (x == NULL || (tl_is_none(kept) && j >= n->n_in + n->n_out))
        return TL_NONE;
    tl_array a = x->a;
    const bool cut = put->along != NULL && put->along[j] >= 0;
    if (cut)
        a.dim[put->along[j]] = put->cut;
    if (tl_is_none(kept) && p->n < 0)
        return cut ? shape_only(t, &a) : tl_put_of(t, n, j);
    if (p->n < 0 || axis == TL_FREE)
        return kept;
    tl_stack_samples_attrs at = {axis, put->first && !put->alone ? 0 : axis, p->from, p->n,
                                 p->each};
    if (tl_is_none(kept)) {
        const tl_array *of = &a;
        tl_array shaped = {.ndim = 0};
        tl_call c = {.op = &tl_op_stack_samples, .attrs = &at, .n_in = 1, .n_out = 1};
        c.in = &of, c.out = &shaped, c.err = &t->head.err;
        if (c.op->shape(&c) != TL_OK)
            return TL_NONE;
        shaped.dim[at.to] *= p->end - p->first;
        return shape_only(t, &shaped);
    }
    tl_tensor *all = tl_bump_get(&t->bump, (size_t)(p->end - p->first) * sizeof *all);
    if (all == NULL)
        return tl_tape_fail(w->at, TL_ENOMEM, "tl_backward: no memory to fold"), TL_NONE;
    for (int u = p->first; u < p->end; u++)
        all[u - p->first] = p->f->put[u].kept[j];
    return tl_apply1(w->at, &tl_op_stack_samples, &at, all, p->end - p->first);
}

/* The vjp of a part's op, for the one input. */
static tl_status fold_by_op(tl_walk *w, const part *p, const tl_node *n, int k, tl_tensor acc)
{
    tl_tape *t = w->t;
    const uint32_t first = t->n_nodes;
    const int n_kept = p->f->put[p->first].n_kept;
    tl_tensor *in = tl_bump_get(&t->bump, (size_t)(n_kept + 2 * n->n_in) * sizeof *in);
    bool *wants = tl_bump_get(&t->bump, (size_t)n->n_in);
    if (in == NULL || wants == NULL)
        return tl_tape_fail(w->at, TL_ENOMEM, "tl_backward: no memory to fold");
    tl_tensor *out = in + n->n_in, *dy = out + n->n_out, *all_acc = dy + n->n_out;
    for (int j = 0; j < n_kept; j++)
        in[j] = beside(w, p, j);
    TL_TRY(t->head.err.status);
    wants[k] = true;
    all_acc[k] = acc;
    tl_vjp g = {t, n->attrs, n->n_in, n->n_out, in, out, dy, all_acc, wants, all_acc + n->n_in};
    TL_TRY(tl_walk_vjp(w, p->f->put[p->first].node, first, &g));
    return continued(w, n, k, g.dx[k], acc);
}

static tl_status fold_part(tl_walk *w, const part *p)
{
    tl_tape *t = w->t;
    const tl_put *put = &p->f->put[p->first];
    const uint32_t mark = atomic_load(&t->values.count);
    const tl_node copy = t->node[put->node], *n = &copy; /* nodes may move */
    t->mode = (t->mode & ~(unsigned)TL_FAST) | (n->mode & TL_FAST);
    t->choice = n->choice;
    tl_tensor acc = accumulator(w, p->f, n, put->input);
    if (put->along != NULL)
        acc = tl_fold_slice(w, acc, put->axis_of_leaf, put->from, put->cut);
    TL_TRY(t->head.err.status);
    TL_TRY(tl_op_folds(n->op, put->input) ? fold_by_op(w, p, n, put->input, acc)
                                          : sum(w, beside(w, p, 0), acc));
    tl_walk_free_since(w, mark);
    return TL_OK;
}

/* Samples [from, from + n) of a use that stand alone: by element, as those that come first do. */
static tl_status fold_alone(tl_walk *w, tl_fold *f, int u, int64_t from, int64_t n)
{
    const int64_t each = f->put[u].each;
    for (int64_t i = from * each; i < (from + n) * each; i++)
        TL_TRY(fold_part(w, &(part){f, u, u + 1, i, 1, 1}));
    return TL_OK;
}

/* By sample, and of each by use: of uses that are all alike as many samples at a time, or of one
 * sample as many uses, as scratch holds. */
static tl_status fold_samples(tl_walk *w, tl_fold *f, int64_t samples)
{
    int64_t n = samples;
    part p = {.f = f};
    size_t largest = 0;
    for (int u = 0; u < f->n; u++) {
        const size_t bytes = sample_bytes(w->t, &f->put[u]);
        largest = bytes > largest ? bytes : largest;
        if (u > 0 && !alike(w->t, &f->put[u - 1], &f->put[u]))
            n = 1;
    }
    const int64_t most = largest > SCRATCH ? 1 : (int64_t)(SCRATCH / (largest + 1)),
                  each = most / f->n > 0 ? most / f->n : 1;
    n = n < each ? n : each;
    for (p.from = 0; p.from < samples; p.from += p.n) {
        p.n = n < samples - p.from ? n : samples - p.from;
        for (p.first = 0; p.first < f->n; p.first = p.end) {
            for (p.end = p.first + 1; p.end < f->n && (p.n > 1 || p.end - p.first < most); p.end++)
                if (!alike(w->t, &f->put[p.first], &f->put[p.end]))
                    break;
            p.each = f->put[p.first].each;
            TL_TRY(f->put[p.first].alone ? fold_alone(w, f, p.first, p.from, p.n)
                                         : fold_part(w, &p));
        }
    }
    return TL_OK;
}

tl_status tl_fold_uses(tl_walk *w, tl_fold *f)
{
    int64_t samples = f->put[0].samples;
    for (int u = 1; u < f->n; u++)
        samples = f->put[u].samples == samples ? samples : -1;
    tl_status s = samples < 0 ? TL_OK : fold_samples(w, f, samples);
    for (int u = 0; u < f->n && s == TL_OK && samples < 0; u++)
        s = fold_part(w, &(part){f, u, u + 1, 0, -1, 0});
    return s;
}

void tl_fold_begins(tl_fold *f)
{
    int n = 0;
    for (int u = 0; u < f->n; u++)
        if (f->put[u].kept != NULL)
            f->put[n++] = f->put[u];
    f->n = n;
}

void tl_fold_ends(tl_tape *t, tl_fold *f)
{
    for (int u = 0; u < f->n; u++)
        for (int j = 0; j < f->put[u].n_kept; j++) {
            tl_value *v = tl_is_none(f->put[u].kept[j]) ? NULL : tl_peek(t, f->put[u].kept[j]);
            if (v != NULL && v->held)
                tl_value_give_back(v);
        }
}

/* ---- what the engine asks ---- */

bool tl_fold_asks(tl_walk *w, const tl_node *n, int k, tl_fold *f, tl_tensor *acc)
{
    const bool folds = tl_op_folds(n->op, k),
               asks = !folds || (!waits(w, f) && now(w->t, n, k, f, TL_NONE));
    if (folds && asks)
        *acc = accumulator(w, f, n, k);
    return asks;
}

tl_status tl_fold_deliver(tl_walk *w, uint32_t i, int k, const tl_tensor *dy, tl_tensor dx,
                          tl_tensor acc)
{
    const tl_node node = w->t->node[w->order[i]], *n = &node; /* nodes may move */
    tl_fold *f = w->edge[i][k].fold;
    if (!tl_is_none(acc))
        return continued(w, n, k, dx, acc);
    if (tl_op_folds(n->op, k) || waits(w, f) || !now(w->t, n, k, f, dx))
        return put(w, i, k, dy, dx);
    acc = accumulator(w, f, n, k);
    return tl_is_none(acc) ? w->t->head.err.status : sum(w, dx, acc);
}

/* What waits for tl_accumulate may go now, if all uses of the leaf have been visited. */
static tl_status tell_put_off(tl_tape *t, tl_leaf_grad *g)
{
    for (int k = 0; k < g->n_accs; k++)
        for (const tl_fold *f = g->acc[k].folds; f != NULL; f = f->next)
            if (f->visited < f->n)
                return TL_OK;
    const char *param = g->waiting == NULL ? NULL : tl_leaf_grad_name(t, g);
    if (param != NULL)
        TL_TELL(t, put_off, t, param);
    return t->head.err.status;
}

tl_status tl_fold_visited(tl_walk *w, uint32_t i, const tl_node *n)
{
    for (int k = 0; k < n->n_in; k++) {
        tl_fold *f = w->edge[i][k].fold;
        if (f == NULL || ++f->visited < f->n)
            continue;
        if (f->put != NULL && !waits(w, f)) {
            tl_fold_begins(f);
            TL_TRY(tl_fold_uses(w, f));
            tl_fold_ends(w->t, f);
        }
        if (f->put != NULL && waits(w, f)) {
            tl_fold_begins(f);
            f->later = w->t->grad[f->leaf].waiting;
            w->t->grad[f->leaf].waiting = f;
            w->t->waiting++;
        }
        if (w->t->n_watchers > 0)
            TL_TRY(tell_put_off(w->t, &w->t->grad[f->leaf]));
    }
    return TL_OK;
}
