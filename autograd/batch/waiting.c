/* waiting.c: folds that wait for tl_accumulate (tl_backward with .put_off), which adds them as a
 * whole or in parts; and accumulators that go elsewhere or come from there.
 *
 * A part is a range of the parameter's elements along one axis. The op's rule for the batch tells
 * whether it can be added alone: suppose the elements along the axis were samples. If the results
 * then had these samples, too (or were totals over them, another input having them as well), the
 * vjp of the whole is the vjp of each part. */
#include "autograd/batch/internal.h"
#include "tensor/threads.h"

/* ---- how a fold is cut into parts ---- */

enum { MOST = 8 }; /* inputs, or outputs, of an op whose sums are cut */

int tl_axis_of_view(const tl_array *x, const tl_array *leaf, int axis)
{
    const int64_t stride = leaf->stride[axis], size = leaf->dim[axis];
    int j = x->ndim - 1;
    while (j >= 0 && (x->dim[j] != size || x->stride[j] != stride))
        j--;
    if (j < 0 || size < 2 || tl_array_count(x) == tl_array_count(leaf))
        return size < 2 ? -1 : j;
    if (x->data == NULL || leaf->data == NULL)
        return -1;
    /* x shows a part: it must begin at index 0 of the axis, and no other dim may lead along it */
    const ptrdiff_t bytes = (const char *)x->data - (const char *)leaf->data;
    const int64_t from = (int64_t)bytes / (int64_t)tl_dtype_size(leaf->dtype);
    int64_t within = from % stride;
    for (int i = 0; i < x->ndim; i++)
        if (i != j && x->dim[i] > 1 && x->stride[i] < stride)
            within += x->stride[i] < 0 ? stride : (x->dim[i] - 1) * x->stride[i];
        else if (i != j && x->dim[i] > 1 && x->stride[i] % (stride * size) != 0)
            return -1;
    return from / stride % size == 0 && within < stride ? j : -1;
}

/* Whether x repeats its elements `size` times along an axis, perhaps once for each sample. The rule
 * for the batch allows that, but a part would have to repeat them fewer times. */
static bool repeats(const tl_array *x, int64_t size)
{
    for (int a = 0; x != NULL && size > 1 && a < x->ndim; a++)
        if (x->dim[a] == size && x->stride[a] == 0)
            return true;
    return false;
}

/* Tries input k with samples along `axis`: the results must have them, too. With i >= 0, tries
 * input i with the same samples along `its` as well: the results must then be totals over them.
 * Sets the axis along which each saved tensor is cut. */
static bool try_samples(const tl_call *c, int k, int axis, int i, int its, tl_saved *saved)
{
    tl_batch in[MOST], out[MOST];
    const int64_t size = c->in[k]->dim[axis];
    if (i >= 0 && c->op->saves_out != 0) /* saved totals would be over all samples */
        return false;
    for (int j = 0; j < c->n_in; j++) {
        saved[j].cut = j == k ? axis : j == i ? its : -1;
        if (saved[j].cut < 0 && repeats(c->in[j], size))
            return false;
        in[j] = saved[j].cut < 0 ? TL_FREE : (tl_batch)saved[j].cut;
    }
    c->op->batch(c, in, out);
    for (int j = 0; j < c->n_out; j++) {
        if (i >= 0 ? out[j] != TL_TOTAL : out[j] < 0 || c->out[j].dim[out[j]] != size)
            return false;
        saved[c->n_in + j].cut = saved[c->n_in + c->n_out + j].cut = i >= 0 ? -1 : out[j];
    }
    return true;
}

static bool cut_by_rule(const tl_node *n, int k, int axis, tl_saved *saved)
{
    const tl_array *in[MOST];
    tl_array out[MOST];
    if (n->op->batch == NULL || n->n_in > MOST || n->n_out > MOST)
        return false;
    for (int i = 0; i < n->n_in; i++)
        in[i] = n->value[i] == NULL ? NULL : &n->value[i]->a;
    for (int i = 0; i < n->n_out; i++)
        out[i] = n->made[i]->a;
    const int64_t size = in[k]->dim[axis];
    const tl_call c = {.op = n->op,
                       .attrs = n->attrs,
                       .n_in = n->n_in,
                       .n_out = n->n_out,
                       .in = in,
                       .out = out,
                       .samples = size};
    if (try_samples(&c, k, axis, -1, -1, saved))
        return true;
    for (int i = 0; i < n->n_in; i++)
        for (int a = 0; i != k && in[i] != NULL && a < in[i]->ndim; a++)
            if (in[i]->dim[a] == size && try_samples(&c, k, axis, i, a, saved))
                return true;
    return false;
}

/* Cuts the saved tensors of a use along an axis of the leaf; false if they cannot be cut. */
static bool cut_use(const tl_tape *t, const tl_array *leaf, tl_use *u, int axis)
{
    const tl_node *n = &t->node[u->node];
    const tl_array *x = &n->value[u->input]->a;
    /* The record of a leaf may have no memory. */
    const tl_value *base = tl_peek(t, tl_behind(t, n->in[u->input], TL_VIEW, TL_REPEATS));
    u->leaf_axis = base == NULL || !tl_array_same_shape(&base->a, leaf)
                       ? -1
                       : tl_axis_of_view(x, &base->a, axis);
    if (u->leaf_axis < 0)
        return false;
    if (u->by_op)
        return cut_by_rule(n, u->input, u->leaf_axis, u->saved);
    const tl_array *dx = &u->saved[0].like->a;
    const int j = u->leaf_axis + dx->ndim - x->ndim;
    u->saved[0].cut = j >= 0 && dx->dim[j] == x->dim[u->leaf_axis] ? j : -1;
    return true;
}

/* Cuts all uses along the first axis of the leaf that allows it; returns that, or TL_WHOLE. */
static int cut_fold(const tl_tape *t, tl_fold *f)
{
    const tl_array *leaf = &tl_peek(t, t->grad[f->leaf].leaf)->a;
    for (int axis = 0; axis < leaf->ndim; axis++) {
        int u = 0;
        while (u < f->n && cut_use(t, leaf, &f->use[u], axis))
            u++;
        if (u == f->n)
            return axis;
    }
    return TL_WHOLE;
}

void tl_fold_wait(tl_tape *t, tl_fold *f, tl_fold_run *run)
{
    tl_leaf_grad *g = &t->grad[f->leaf];
    f->run = run;
    f->axis = cut_fold(t, f);
    f->later = g->waiting;
    g->waiting = f;
    t->waiting++;
}

/* ---- all that waits for a parameter ---- */

/* The axis along which what waits for accumulator k is cut; TL_ANY_AXIS: nothing waits. */
static int axis_of(const tl_leaf_grad *g, int k)
{
    int axis = TL_ANY_AXIS;
    for (const tl_fold *f = g->waiting; f != NULL; f = f->later)
        if (f->acc == k)
            axis = axis == TL_ANY_AXIS || axis == f->axis ? f->axis : TL_WHOLE;
    return axis;
}

/* Adds part i of `of` of all folds that wait for a record. (Records may move meanwhile.) */
static tl_status run_record(tl_tape *t, int record, int i, int of)
{
    for (tl_fold *f = t->grad[record].waiting; f != NULL; f = f->later) {
        f->parts = of;
        f->part = i + 1;
        TL_TRY(f->run(t, f, i, of));
        if (i == of - 1) {
            t->grad[record].waiting = f->later;
            t->waiting--;
        }
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
    TL_TRY(tl_error_status(t));
    const int k = g == NULL ? -1 : tl_acc_find(g, call, kind);
    *axis = k < 0 ? TL_ANY_AXIS : axis_of(g, k);
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
        const int axis = axis_of(g, f->acc);
        parts = axis < 0 ? 1 : parts < leaf->dim[axis] ? parts : leaf->dim[axis];
    }
    return parts < 1 ? 1 : parts > INT32_MAX ? INT32_MAX : (int)parts;
}

tl_status tl_accumulate_part(tl_tape *t, const char *param, int i, int of)
{
    TL_TRY(tl_error_status(t));
    const tl_leaf_grad *g = record_of(t, param);
    TL_TRY(tl_error_status(t));
    if (i < 0 || i >= of)
        return tl_tape_fail(tl_nowhere(t), TL_EUSAGE, "tl_accumulate_part: part %d of %d", i, of);
    if (g == NULL)
        return TL_OK;
    for (const tl_fold *f = g->waiting; f != NULL; f = f->later) {
        if (f->part != i || (i > 0 && f->parts != of))
            return tl_tape_fail(tl_nowhere(t), TL_EUSAGE,
                                "tl_accumulate_part: part %d of %d of '%.100s', where part %d of "
                                "%d is next",
                                i, of, param, f->part, f->part > 0 ? f->parts : of);
        if (of > 1 && axis_of(g, f->acc) < 0)
            return tl_tape_fail(tl_nowhere(t), TL_EUSAGE,
                                "tl_accumulate_part: what waits for '%.100s' is added as a whole "
                                "only",
                                param);
    }
    const tl_tensor leaf = g->leaf;
    t->busy++;
    tl_fpenv saved = tl_fpenv_enter();
    if (g->waiting != NULL && run_record(t, (int)(g - t->grad), i, of) == TL_OK)
        tl_leaf_grad_find(t, leaf)->live = true; /* records may have moved */
    tl_fpenv_leave(saved);
    t->busy--;
    return tl_tape_stopped(t, tl_error_status(t));
}

tl_status tl_accumulate(tl_tape *t, const char *param)
{
    return tl_accumulate_part(t, param, 0, 1);
}

/* ---- accumulators that go elsewhere and come from there: a checkpoint, another process ---- */

/* How many entries of a record a checkpoint holds: its accumulators, or one that says that the
 * parameter was reached without receiving anything. */
static int entries(const tl_tape *t, const tl_leaf_grad *g)
{
    const bool derived = tl_derived(t, g->leaf);
    int n = 0;
    if (!g->live || (!derived && tl_model_value(t->model, g->leaf) == NULL))
        return 0;
    for (int k = 0; k < g->n_accs; k++)
        n += tl_acc_holds(&g->acc[k]);
    return n > 0 || derived ? n : 1;
}

int tl_accumulating_count(const tl_tape *t)
{
    int n = 0;
    for (int k = 0; tl_lives(t) && t->model != NULL && k < t->n_grads; k++)
        n += entries(t, &t->grad[k]);
    return n;
}

tl_accumulating tl_accumulating_at(const tl_tape *t, int i)
{
    const int records = tl_lives(t) && t->model != NULL && i >= 0 ? t->n_grads : 0;
    int use = -1, k = 0;
    for (int n; k < records && i >= (n = entries(t, &t->grad[k])); k++)
        i -= n;
    if (k == records)
        return (tl_accumulating){NULL, 0, NULL, {0}};
    tl_leaf_grad *g = &t->grad[k];
    const char *param = tl_leaf_grad_name(t, g);
    while ((use = tl_acc_next(g, use)) >= 0)
        if (tl_acc_holds(&g->acc[use]) && i-- == 0)
            break;
    if (use < 0)
        return (tl_accumulating){param, 0, "", {0}};
    if (g->acc[use].st != NULL)
        tl_storage_settle(g->acc[use].st);
    return (tl_accumulating){param, g->acc[use].call, g->acc[use].kind, g->acc[use].sum};
}

uint64_t tl_accumulated(const tl_tape *t)
{
    uint64_t sum = 0;
    for (int i = 0; tl_lives(t) && i < t->n_grads; i++)
        for (int k = 0; k < t->grad[i].n_accs && t->grad[i].leaf.owner != t->values.owner; k++)
            sum += t->grad[i].acc[k].st != NULL ? t->grad[i].acc[k].st->version : 0;
    return sum;
}

tl_tensor tl_grad_named(tl_tape *t, const char *param, tl_dtype dtype, const tl_shape *shape)
{
    tl_tensor leaf = tl_model_find(t->model, param);
    const bool derived = tl_is_none(leaf) && param != NULL && *param == '=';
    leaf = derived ? tl_derived_named(t, param, dtype, shape) : leaf;
    if (!tl_is_none(leaf) && (derived || tl_model_value(t->model, leaf)->needs_grad))
        return leaf;
    tl_tape_fail(tl_nowhere(t), TL_ENAME, "'%.100s' is not a parameter that is trained",
                 param == NULL ? "NULL" : param);
    return TL_NONE;
}

tl_status tl_accumulator_open(tl_tape *t, const char *param, int call, const char *kind,
                              tl_dtype dtype, tl_shape shape, tl_array *out)
{
    if (!tl_lives(t))
        return tl_error_status(t);
    TL_TRY(TL_NEED_AT(tl_nowhere(t), kind));
    TL_TRY(TL_NEED_N_AT(tl_nowhere(t), out, *kind != '\0'));
    TL_TRY(*kind == '\0' ? TL_OK : tl_shape_check(&shape, dtype, &t->head.err));
    if (*kind != '\0' && dtype != TL_F32 && dtype != TL_F64)
        return tl_tape_fail(tl_nowhere(t), TL_EDTYPE,
                            "tl_accumulator_open: sums in %s; f32 and f64 are possible",
                            tl_dtype_name(dtype));
    if (t->recorder != NULL)
        return tl_tape_fail(tl_nowhere(t), TL_ETRACED, "tl_accumulator_open: not inside a trace");
    tl_derived_unsettle(t);
    const tl_tensor leaf = tl_grad_named(t, param, dtype, *kind == '\0' ? NULL : &shape);
    TL_TRY(tl_error_status(t));
    if (call < 0 || call >= TL_BELOW)
        return tl_tape_fail(tl_nowhere(t), TL_EUSAGE, "backward %d of '%.100s'", call, param);
    tl_leaf_grad *g = tl_leaf_grad_get(t, leaf);
    int k = g == NULL || *kind == '\0' ? -1 : tl_acc_get(t, g, call, kind);
    TL_TRY(tl_error_status(t));
    if (k >= 0) {
        TL_TRY(tl_acc_open(t, g, k, dtype));
        tl_storage_settle(g->acc[k].st);
        *out = g->acc[k].sum;
    }
    g->live = true;
    return TL_OK;
}
