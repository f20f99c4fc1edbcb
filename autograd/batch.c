/* batch.c: how values depend on the batch (tape.h): what leaves are told, and for the results of an
 * op its rule, of which the common ones are here. */
#include "autograd/internal.h"

tl_batch tl_batch_of(tl_tape *t, tl_tensor x)
{
    const tl_value *v = t == NULL ? NULL : tl_peek(t, x);
    return v == NULL ? TL_MIXED : v->batch;
}

/* Nothing below x but views depends on anything. */
static bool given(const tl_tape *t, const tl_value *v)
{
    while (v != NULL && v->node >= 0 && t->node[v->node].n_in > 0) {
        const tl_node *n = &t->node[v->node];
        v = n->op->traits & TL_VIEW ? tl_peek(t, n->in[0]) : NULL;
    }
    return v != NULL && !v->needs_grad;
}

static tl_status set_axis(tl_value *v, int axis, bool leaf, tl_err *e)
{
    char text[TL_SHAPE_TEXT];
    if (!leaf)
        return tl_fail(e, TL_EUSAGE,
                       "tl_batch_axis: only data, results without inputs and views of them are "
                       "told; others follow from what they are made of");
    if (axis != TL_FREE && (axis < 0 || axis >= v->a.ndim))
        return tl_fail(e, TL_ESHAPE, "tl_batch_axis: %d is neither TL_FREE nor an axis of %s", axis,
                       tl_array_shape_text(text, &v->a));
    v->batch = (tl_batch)axis;
    return TL_OK;
}

tl_status tl_batch_axis_tape_at(tl_tape *t, tl_tensor x, int axis, const char *file, int line)
{
    const tl_at at = {t, file, line};
    tl_err e = {.status = TL_OK};
    if (tl_failed(t))
        return tl_error_status(t);
    tl_value *v = tl_deref_view(at, x, "tl_batch_axis");
    if (v == NULL)
        return tl_error_status(t);
    const bool own = x.owner == t->values.owner;
    return set_axis(v, axis, own && given(t, v), &e) == TL_OK
               ? TL_OK
               : tl_tape_fail(at, e.status, "%s%s", e.message,
                              own ? "" : "; of a tensor of the model the model is told");
}

tl_status tl_batch_axis_model_at(tl_model *m, tl_tensor x, int axis, const char *file, int line)
{
    tl_err e = {.status = TL_OK};
    if (m == NULL)
        return TL_ENOMEM;
    TL_TRY(tl_error_begin(m));
    tl_value *v = tl_model_value(m, x);
    if (v == NULL)
        tl_fail(&e, TL_ESTALE, "tl_batch_axis: not a tensor of this model");
    else
        set_axis(v, axis, tl_model_name_of(m, x) == NULL, &e);
    return e.status == TL_OK
               ? TL_OK
               : tl_fail(&m->head.err, e.status, "%.380s (%.90s:%d)", e.message, file, line);
}

/* ---- rules ---- */

/* Dims of the result before those of input i. */
static int lead(const tl_call *c, int i, int ndim)
{
    return ndim == TL_FROM_FRONT ? 0 : ndim - c->in[i]->ndim;
}

tl_batch tl_batch_meet(const tl_call *c, const tl_batch *in, unsigned which, int ndim)
{
    int axis = TL_FREE;
    int64_t n = 1;
    for (int i = 0; i < c->n_in; i++) {
        if (in[i] == TL_FREE)
            continue;
        const int a = in[i] + (in[i] < 0 ? 0 : lead(c, i, ndim));
        const int64_t size = in[i] < 0 ? 1 : c->in[i]->dim[in[i]];
        if (!(which & TL_BIT(i & 31)) || (axis != TL_FREE && (a != axis || size != n)))
            return TL_MIXED;
        axis = a;
        n = size;
    }
    for (int i = 0; i < c->n_in && axis >= 0; i++) {
        if (in[i] != TL_FREE || c->in[i] == NULL || !(which & TL_BIT(i & 31)))
            continue;
        const int at = axis - lead(c, i, ndim);
        if (at >= 0 && at < c->in[i]->ndim && c->in[i]->dim[at] != 1 &&
            (c->in[i]->dim[at] != n || c->in[i]->stride[at] != 0))
            return TL_MIXED;
    }
    return (tl_batch)axis;
}

static void all(const tl_call *c, tl_batch b, tl_batch *out)
{
    for (int i = 0; i < c->n_out; i++)
        out[i] = b;
}

void tl_batch_aligned(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_batch b = tl_batch_meet(c, in, TL_ALL_INPUTS, c->out[0].ndim);
    all(c, b == TL_TOTAL ? TL_MIXED : b, out);
}

void tl_batch_linear(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    all(c, tl_batch_meet(c, in, TL_ALL_INPUTS, c->out[0].ndim), out);
}

void tl_batch_bilinear(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    int depend = 0;
    for (int i = 0; i < c->n_in; i++)
        depend += in[i] != TL_FREE;
    (depend > 1 ? tl_batch_aligned : tl_batch_linear)(c, in, out);
}

void tl_batch_rows(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const int nd = c->out[0].ndim;
    all(c, tl_batch_outside(tl_batch_meet(c, in, TL_ALL_INPUTS, nd), nd, 1), out);
}

tl_batch tl_batch_reduced(tl_batch a, int64_t dims, bool keep)
{
    int before = 0;
    for (int i = 0; i < a; i++)
        before += !keep && dims >> i & 1;
    return a < 0 ? a : dims >> a & 1 ? TL_MIXED : (tl_batch)(a - before);
}

tl_batch tl_batch_continuing(tl_batch a, const tl_call *c, const tl_batch *in, int acc)
{
    const bool free_one = a == TL_FREE || in[acc] == TL_FREE;
    if (c->in[acc] == NULL || a == in[acc])
        return a;
    return free_one && (a == TL_TOTAL || in[acc] == TL_TOTAL) ? TL_TOTAL : TL_MIXED;
}

tl_batch tl_batch_outside(tl_batch a, int ndim, int64_t k)
{
    return a < 0 ? a == TL_FREE ? a : TL_MIXED : a >= ndim - k ? TL_MIXED : a;
}

tl_batch tl_batch_beside(tl_batch a, int ndim, int64_t dim)
{
    return a >= 0 && a == (dim < 0 ? dim + ndim : dim) ? TL_MIXED : a;
}

void tl_batch_infer(const tl_call *c, tl_value *const *value, tl_batch *in, tl_batch *out)
{
    bool mixed = false, total = false, free_grad = false;
    for (int i = 0; i < c->n_in; i++) {
        in[i] = value[i] == NULL ? TL_FREE : value[i]->batch;
        mixed |= in[i] == TL_MIXED;
        total |= in[i] == TL_TOTAL;
        free_grad |= in[i] == TL_FREE && value[i] != NULL && value[i]->needs_grad;
    }
    if (mixed || (total && free_grad)) /* what a total gives to a parameter is a finished sum */
        all(c, TL_MIXED, out);
    else if (c->op->batch != NULL)
        c->op->batch(c, in, out);
    else if (c->op->traits & TL_POINTWISE)
        tl_batch_aligned(c, in, out);
    else
        all(c, TL_MIXED, out);
}
