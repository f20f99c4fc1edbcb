/* fold.c: what comes to a leaf, added to its accumulators (NUMERICS 10.3).
 *
 * Uses of one kind are one fold: by sample, of a sample by use in the order of the forward pass, of
 * a use by row. Backward meets them from the last to the first: what their gradients are made of is
 * kept until all have been visited. Then samples of all uses are put beside each other, as if they
 * were more samples of one use, and the op's own vjp is called once for as many as scratch of 1 MiB
 * holds. */
#include <string.h>

#include "autograd/batch.h"

enum { SCRATCH = 1 << 20 };

/* A use that is folded later: what its gradient is made of. */
typedef struct tl_put {
    uint32_t node;
    int input;
    tl_tensor *kept; /* of the node's inputs, outputs and their cotangents; or, where the engine
                        folds, what the vjp gave, alone. NULL: nothing came to it */
} tl_put;

tl_tensor tl_fold_accumulator(tl_walk *w, tl_fold *f, const tl_node *n, int k)
{
    tl_tape *t = w->t;
    int32_t view[64]; /* by number: nodes move while others are recorded */
    int depth = 0;
    bool own = tl_op_folds(n->op, k) && !tl_op_folds_f64(n->op, n->attrs, k);
    if (tl_use_open(t, f->leaf, f->use,
                    own ? tl_dtype_compute(tl_peek(t, f->leaf->leaf)->a.dtype) : TL_F64) != TL_OK)
        return TL_NONE;
    for (const tl_value *v = tl_peek(t, n->in[k]); v->node >= 0;
         v = tl_peek(t, t->node[view[depth++]].in[0])) {
        if (depth == 64) {
            tl_tape_fail(w->at, TL_EUSAGE,
                         "tl_backward: more than 64 views between a parameter and its use");
            return TL_NONE;
        }
        view[depth] = v->node;
    }
    tl_tensor x = tl_use_value(t, f->leaf, f->use);
    while (depth-- > 0)
        x = tl_apply1(w->at, t->node[view[depth]].op, t->node[view[depth]].attrs, &x, 1);
    return x;
}

tl_status tl_fold_sum(tl_walk *w, const tl_node *n, int k, tl_tensor x, tl_tensor acc)
{
    tl_sum_to_attrs at = {tl_array_shape(&tl_peek(w->t, n->in[k])->a), TL_F64};
    tl_apply1(w->at, &tl_op_sum_to, &at, (tl_tensor[]){x, acc}, 2);
    return w->t->head.err.status;
}

/* ---- samples ---- */

/* What kept[j] of a use is, or was: inputs, then outputs, then outputs again, whose cotangents have
 * the same samples. */
static tl_tensor kept_of(const tl_tape *t, const tl_node *n, int j)
{
    return j < n->n_in ? n->in[j] : tl_node_out(t, n, (j - n->n_in) % n->n_out);
}

static tl_batch batch_of(const tl_tape *t, tl_tensor x) { return tl_peek(t, x)->batch; }

static int n_kept(const tl_node *n) { return n->n_in + 2 * n->n_out; }

/* Nothing of a is added up before its samples: dims in front of them are 1, or the leaf's, too. */
static bool leads(const tl_array *a, int axis, const tl_array *leaf)
{
    while (--axis >= 0 &&
           (a->dim[axis] == 1 || (leaf->ndim == a->ndim && leaf->dim[axis] == a->dim[axis])))
        ;
    return axis < 0;
}

bool tl_fold_now(const tl_tape *t, const tl_node *n, const tl_edge *e)
{
    bool lead = e->fold->n == 1;
    const bool own = batch_of(t, e->fold->x) != TL_FREE; /* a sample's gradient is its own */
    for (int j = 0; lead && !own && j < n->n_in + n->n_out; j++) {
        tl_tensor x = kept_of(t, n, j);
        lead = tl_is_none(x) ||
               leads(&tl_peek(t, x)->a, batch_of(t, x), &tl_peek(t, e->fold->x)->a);
    }
    return lead;
}

/* How many samples a use has; -1 if it is not made of samples. */
static int64_t samples_of(const tl_tape *t, const tl_put *p)
{
    const tl_node *n = &t->node[p->node];
    const bool given = !tl_op_folds(n->op, p->input);
    int64_t samples = -1;
    if (batch_of(t, n->in[p->input]) != TL_FREE)
        return -1;
    for (int j = given ? n->n_in : 0; j < n->n_in + n->n_out; j++) {
        tl_tensor x = kept_of(t, n, j);
        int axis = tl_is_none(x) ? TL_FREE : batch_of(t, x);
        if (axis == TL_FREE && j < n->n_in)
            continue;
        const tl_array *a = &tl_peek(t, x)->a;
        if (axis < 0 || (samples >= 0 && a->dim[axis] != samples) ||
            (axis > 0 && a->ndim == TL_MAX_DIMS) ||
            (given && !tl_array_same_shape(a, &tl_peek(t, p->kept[0])->a)))
            return -1;
        samples = a->dim[axis];
    }
    return samples;
}

/* Bytes of what a sample has to be put beside others. */
static size_t sample_bytes(const tl_tape *t, const tl_put *p, int64_t samples)
{
    const tl_node *n = &t->node[p->node];
    int64_t bytes = 0;
    for (int j = 0; j < (tl_op_folds(n->op, p->input) ? n_kept(n) : 1); j++)
        if (!tl_is_none(p->kept[j]) && batch_of(t, p->kept[j]) != TL_FREE) {
            const tl_array *a = &tl_peek(t, p->kept[j])->a;
            bytes += tl_array_count(a) * (int64_t)tl_dtype_size(a->dtype);
        }
    return (size_t)(bytes / (samples > 0 ? samples : 1));
}

/* Samples of both can be put beside each other, and one call folds them. */
static bool alike(const tl_tape *t, const tl_put *p, const tl_put *q)
{
    const tl_node *a = &t->node[p->node], *b = &t->node[q->node];
    const bool given = !tl_op_folds(a->op, p->input);
    if (given != !tl_op_folds(b->op, q->input) ||
        !tl_same_view(t, a->in[p->input], b->in[q->input]))
        return false;
    if (given)
        return batch_of(t, kept_of(t, a, a->n_in)) == batch_of(t, kept_of(t, b, b->n_in)) &&
               tl_array_same_shape(&tl_peek(t, p->kept[0])->a, &tl_peek(t, q->kept[0])->a) &&
               tl_peek(t, p->kept[0])->a.dtype == tl_peek(t, q->kept[0])->a.dtype;
    if (a->op != b->op || p->input != q->input || (a->mode ^ b->mode) & TL_FAST ||
        a->choice != b->choice || !tl_attrs_agree(a->op, a->attrs, b->attrs, 0, NULL))
        return false;
    for (int j = 0; j < n_kept(a); j++) {
        tl_tensor x = kept_of(t, a, j), y = kept_of(t, b, j);
        if (tl_is_none(x) != tl_is_none(y) || tl_is_none(p->kept[j]) != tl_is_none(q->kept[j]))
            return false;
        if (tl_is_none(x) || j == p->input)
            continue;
        const tl_array *v = &tl_peek(t, x)->a, *u = &tl_peek(t, y)->a;
        tl_batch axis = batch_of(t, x);
        if (axis != batch_of(t, y) || v->dtype != u->dtype || !tl_array_same_shape(v, u) ||
            (axis == TL_FREE && !tl_same_handle(x, y)))
            return false;
    }
    return true;
}

/* ---- putting off ---- */

tl_status tl_fold_put(tl_walk *w, uint32_t i, int k, const tl_tensor *dy, tl_tensor dx)
{
    tl_tape *t = w->t;
    const tl_edge *e = &w->edge[i][k];
    const tl_node *n = &t->node[w->order[i]];
    tl_fold *f = e->fold;
    const bool folds = tl_op_folds(n->op, k);
    if (f->put == NULL)
        f->put = tl_bump_get(&t->bump, (size_t)f->n * sizeof *f->put);
    tl_tensor *kept = tl_bump_get(&t->bump, (size_t)n_kept(n) * sizeof *kept);
    if (f->put == NULL || kept == NULL)
        return tl_tape_fail(w->at, TL_ENOMEM, "tl_backward: no memory to put a gradient off");
    const unsigned reads = tl_op_reads(n->op, TL_BIT(k));
    for (int j = 0; j < (folds ? n_kept(n) : 1); j++) {
        tl_tensor x = kept_of(t, n, j);
        int out = j - n->n_in;
        bool read = j < n->n_in ? j == k || (j < 32 && reads & TL_BIT(j)) ||
                                      (!tl_is_none(x) && batch_of(t, x) == TL_FREE)
                                : out >= n->n_out || n->op->saves_out & TL_BIT(out);
        kept[j] = !folds  ? tl_hold(t, dx)
                  : !read ? TL_NONE
                          : tl_hold(t, out >= n->n_out ? dy[out - n->n_out] : x);
    }
    f->put[e->use] = (tl_put){w->order[i], k, kept};
    return t->head.err.status;
}

/* ---- folding ---- */

/* Uses [first, end) of a fold, alike, samples [from, from + n) of each; n < 0: one use as a whole.
 */
typedef struct {
    tl_fold *f;
    int first, end;
    int64_t from, n;
} part;

/* kept[j] of a part's uses, sample by sample. What no vjp reads has only a shape. */
static tl_tensor beside(tl_walk *w, const part *p, int j)
{
    tl_tape *t = w->t;
    const tl_put *put = &p->f->put[p->first];
    const tl_node *n = &t->node[put->node];
    tl_tensor x = kept_of(t, n, tl_op_folds(n->op, put->input) ? j : n->n_in), kept = put->kept[j];
    if (tl_is_none(x) || (tl_is_none(kept) && (p->n < 0 || j >= n->n_in + n->n_out)))
        return p->n < 0 && j < n->n_in + n->n_out ? x : TL_NONE;
    const int axis = batch_of(t, x);
    if (p->n < 0 || axis == TL_FREE)
        return kept;
    if (tl_is_none(kept)) {
        const tl_array *of = &tl_peek(t, x)->a;
        tl_stack_samples_attrs none = {axis, 0, 0};
        tl_array shaped = {.ndim = 0};
        tl_call c = {.op = &tl_op_stack_samples, .attrs = &none, .n_in = 1, .n_out = 1};
        c.in = &of, c.out = &shaped, c.err = &t->head.err;
        if (c.op->shape(&c) != TL_OK)
            return TL_NONE;
        shaped.dim[0] = p->n * (p->end - p->first);
        kept = tl_tape_value(t, &shaped, NULL);
        if (!tl_is_none(kept))
            tl_peek(t, kept)->freed = true;
        return kept;
    }
    tl_tensor *all = tl_bump_get(&t->bump, (size_t)(p->end - p->first) * sizeof *all);
    if (all == NULL)
        return tl_tape_fail(w->at, TL_ENOMEM, "tl_backward: no memory to fold"), TL_NONE;
    for (int u = p->first; u < p->end; u++)
        all[u - p->first] = p->f->put[u].kept[j];
    tl_stack_samples_attrs a = {axis, p->from, p->n};
    return tl_apply1(w->at, &tl_op_stack_samples, &a, all, p->end - p->first);
}

/* The vjp of a part's op, for the one input. */
static tl_status fold_by_op(tl_walk *w, const part *p, const tl_node *n, int k, tl_tensor acc)
{
    tl_tape *t = w->t;
    const uint32_t first = t->n_nodes;
    tl_tensor *in = tl_bump_get(&t->bump, (size_t)(n_kept(n) + 2 * n->n_in) * sizeof *in);
    bool *wants = tl_bump_get(&t->bump, (size_t)n->n_in);
    if (in == NULL || wants == NULL)
        return tl_tape_fail(w->at, TL_ENOMEM, "tl_backward: no memory to fold");
    tl_tensor *out = in + n->n_in, *dy = out + n->n_out, *all_acc = dy + n->n_out;
    for (int j = 0; j < n_kept(n); j++)
        in[j] = beside(w, p, j);
    TL_TRY(t->head.err.status);
    wants[k] = true;
    all_acc[k] = acc;
    tl_vjp g = {t, n->attrs, n->n_in, n->n_out, in, out, dy, all_acc, wants, all_acc + n->n_in};
    TL_TRY(tl_walk_vjp(w, p->f->put[p->first].node, first, &g));
    return tl_walk_continued(w, n, k, g.dx[k], acc);
}

static tl_status fold_part(tl_walk *w, const part *p)
{
    tl_tape *t = w->t;
    const tl_put *put = &p->f->put[p->first];
    const uint32_t mark = atomic_load(&t->values.count);
    const tl_node copy = t->node[put->node], *n = &copy; /* nodes may move */
    t->mode = (t->mode & ~(unsigned)TL_FAST) | (n->mode & TL_FAST);
    t->choice = n->choice;
    tl_tensor acc = tl_fold_accumulator(w, p->f, n, put->input);
    TL_TRY(t->head.err.status);
    TL_TRY(tl_op_folds(n->op, put->input) ? fold_by_op(w, p, n, put->input, acc)
                                          : tl_fold_sum(w, n, put->input, beside(w, p, 0), acc));
    tl_walk_free_since(w, mark);
    return TL_OK;
}

/* By sample, and of each by use: of uses that are all alike as many samples at a time, or of one
 * sample as many uses, as scratch holds. */
static tl_status fold_samples(tl_walk *w, tl_fold *f, int64_t samples)
{
    int64_t n = samples;
    part p = {.f = f};
    for (int u = 1; u < f->n; u++)
        if (!alike(w->t, &f->put[u - 1], &f->put[u]))
            n = 1;
    size_t each = sample_bytes(w->t, &f->put[0], samples),
           most = each > SCRATCH ? 1 : SCRATCH / (each + 1);
    if (n > (int64_t)most / f->n)
        n = (int64_t)most / f->n > 0 ? (int64_t)most / f->n : 1;
    for (p.from = 0; p.from < samples; p.from += p.n) {
        p.n = n < samples - p.from ? n : samples - p.from;
        for (p.first = 0; p.first < f->n; p.first = p.end) {
            for (p.end = p.first + 1; p.end < f->n && (p.n > 1 || p.end - p.first < (int)most);
                 p.end++)
                if (!alike(w->t, &f->put[p.first], &f->put[p.end]))
                    break;
            TL_TRY(fold_part(w, &p));
        }
    }
    return TL_OK;
}

tl_status tl_fold_run(tl_walk *w, tl_fold *f)
{
    tl_tape *t = w->t;
    int n = 0;
    for (int u = 0; f->put != NULL && u < f->n; u++) /* to which something came */
        if (f->put[u].kept != NULL)
            f->put[n++] = f->put[u];
    f->n = n;
    if (n == 0)
        return TL_OK;
    int64_t samples = samples_of(t, &f->put[0]);
    for (int u = 1; u < n; u++)
        if (samples_of(t, &f->put[u]) != samples)
            samples = -1;
    tl_status s = samples < 0 ? TL_OK : fold_samples(w, f, samples);
    for (int u = 0; u < n && s == TL_OK && samples < 0; u++)
        s = fold_part(w, &(part){f, u, u + 1, 0, -1});
    for (int u = 0; u < n; u++) {
        const tl_node *node = &t->node[f->put[u].node];
        for (int j = 0; j < (tl_op_folds(node->op, f->put[u].input) ? n_kept(node) : 1); j++) {
            tl_value *v = tl_is_none(f->put[u].kept[j]) ? NULL : tl_peek(t, f->put[u].kept[j]);
            if (v != NULL && v->held)
                tl_value_give_back(v);
        }
    }
    return s;
}
