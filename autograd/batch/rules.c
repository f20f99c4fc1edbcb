/* rules.c: how values depend on the batch (tl_batch in tape.h). For leaves, tl_batch_axis declares
 * it; for the results of a call, it follows from the op's rule. The common rules, and the parts to
 * make others of, are here. check/explain.c names and refuses what falls outside the promise. */
#include <string.h>

#include "autograd/batch/internal.h"
#include "autograd/batch/samples.h"

tl_batch tl_batch_of(tl_tape *t, tl_tensor x)
{
    const tl_value *v = tl_lives(t) ? tl_peek(t, x) : NULL;
    return v == NULL ? TL_MIXED : v->batch;
}

/* Whether the program may declare how v depends on the batch, because nothing else tells: v shows,
 * perhaps through views, a leaf, a draw or a result without inputs; or expand repeats along that
 * axis. */
static bool may_be_told(const tl_tape *t, const tl_value *v, int axis)
{
    const tl_node *n = v->node < 0 ? NULL : &t->node[v->node];
    if (n != NULL && n->op->traits & TL_REPEATS && axis >= 0 && axis < v->a.ndim)
        return tl_input(n, 0) != NULL && tl_input(n, 0)->batch == TL_FREE &&
               (v->a.stride[axis] == 0 || v->a.dim[axis] == 1);
    for (; v != NULL && v->node >= 0 && t->node[v->node].n_in > 0; v = tl_input(n, 0)) {
        n = &t->node[v->node];
        if (n->op->traits & TL_RANDOM && n->op->traits & TL_NONDIFF)
            return true;
        if (!(n->op->traits & TL_VIEW))
            return false;
    }
    return v != NULL && !v->needs_grad; /* it may have been removed from the model */
}

/* Whether v lies along that axis, or may: nothing tells along which axis a single sample lies. */
static bool may_lie_along(const tl_value *v, int axis)
{
    return v->batch == axis || (v->batch >= 0 && v->samples == 1 && axis >= 0 && axis < v->a.ndim);
}

/* The first call since x was made that has used it; NULL: none. */
static const tl_node *used(const tl_tape *t, tl_tensor x)
{
    const tl_node *first = NULL;
    for (uint32_t i = t->n_nodes; i-- > 0 && t->node[i].out > x.index;)
        for (int k = 0; k < t->node[i].n_in; k++)
            if (tl_same_handle(t->node[i].in[k], x))
                first = &t->node[i];
    return first;
}

/* Sets v's axis, if `told` allows it. name: v's, if it is a named tensor of the model. */
static tl_status set_axis(tl_value *v, int axis, bool told, const char *name, tl_err *e)
{
    if (!told && name != NULL)
        return tl_fail(e, TL_EUSAGE,
                       "tl_batch_axis: '%.200s' is a tensor of the model; those with names are "
                       "free of the batch",
                       name);
    if (!told)
        return tl_fail(e, TL_EUSAGE,
                       "tl_batch_axis: only data, draws, results without inputs, views of them, "
                       "and along what expand repeats are told; others follow from what they are "
                       "made of");
    if (axis != TL_FREE && axis != TL_MIXED && (axis < 0 || axis >= v->a.ndim))
        return tl_fail(e, TL_ESHAPE, "tl_batch_axis: %d is neither TL_FREE nor an axis of %s", axis,
                       TL_TEXT(&v->a));
    if (v->batch != axis) /* if equal, keep its samples: a view may have merged them with rows */
        tl_batch_set(v, axis);
    v->fixed &= axis == TL_FREE;
    return TL_OK;
}

bool tl_draws_alike(const tl_tape *t, const tl_node *n)
{
    bool alike = false;
    for (int i = 0; n->op->traits & TL_RANDOM && i < n->n_in; i++) {
        const tl_value *v = tl_input(n, i);
        alike |= v != NULL && v->a.ndim == 0 && v->batch == TL_MIXED && v->node >= 0 &&
                 t->node[v->node].op == &tl_op_fill;
    }
    return alike;
}

tl_status tl_batch_axis_tape_at(tl_tape *t, tl_tensor x, int axis, const char *file, int line)
{
    const tl_at at = {t, file, line, NULL};
    tl_err e = {.status = TL_OK};
    TL_TRY(tl_error_status(t));
    tl_value *v = tl_look_up(at, x, "tl_batch_axis", TL_VIEWS);
    if (v == NULL)
        return tl_error_status(t);
    const bool own = x.owner == t->values.owner, told = own && may_be_told(t, v, axis);
    /* A reshape of one sample: whichever axis has merged with others, it is still one. */
    const tl_node *by = own ? tl_view_at(t, v) : NULL;
    const bool reshaped = by != NULL && by->op->attr != NULL &&
                          by->op->attr->kind == TL_ATTR_SHAPE && v->batch >= 0 && v->samples == 1;
    const bool one = own && (!told || reshaped) && may_lie_along(v, axis);
    const tl_node *n = (told || one) && v->batch != axis ? used(t, x) : NULL;
    if (n != NULL)
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_batch_axis: %s (%.90s:%d) has used x already, as what it was "
                            "before; it is told before x is used",
                            n->op->name, n->file == NULL ? "?" : n->file, n->line);
    const tl_node *draw = own ? tl_maker(t, tl_behind(t, x, TL_VIEW, 0)) : NULL;
    if (axis >= 0 && axis < v->a.ndim && t->now.mode & TL_STRICT && draw != NULL &&
        tl_draws_alike(t, draw))
        return tl_tape_fail(
            at, TL_EUSAGE,
            "tl_batch_axis: TL_STRICT: %s (%.90s:%d) draws the same for the samples "
            "of each micro-batch; give it their numbers (.sample)",
            draw->op->name, draw->file == NULL ? "?" : draw->file, draw->line);
    if (one) {
        v->batch = (tl_batch)axis;
        return TL_OK;
    }
    const char *name = own ? NULL : tl_model_name_of(t->model, x);
    if (!own && name == NULL)
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_batch_axis: value %u is a tensor of the model, which is told "
                            "instead of the tape: tl_batch_axis(m, x, axis)",
                            x.index);
    return set_axis(v, axis, told, name, &e) == TL_OK ? TL_OK
                                                      : tl_tape_fail(at, e.status, "%s", e.message);
}

tl_status tl_batch_axis_model_at(tl_model *m, tl_tensor x, int axis, const char *file, int line)
{
    tl_err e = {.status = TL_OK};
    if (m == NULL)
        return TL_ENOMEM;
    TL_TRY(tl_error_renew(m));
    tl_value *v = tl_model_value(m, x);
    const char *name = tl_model_name_of(m, x);
    if (v == NULL)
        tl_fail(&e, TL_ESTALE, "tl_batch_axis: not a tensor of this model");
    else if (set_axis(v, axis, name == NULL, name, &e) == TL_OK)
        return TL_OK;
    return tl_fail(&m->head.err, e.status, "%.800s (%.90s:%d)", e.message,
                   file == NULL ? "?" : file, line);
}

void tl_batch_samples_of(tl_tape *t, tl_tensor y, tl_tensor x, int axis)
{
    const tl_node *n = tl_failed(t) ? NULL : tl_maker(t, y);
    const tl_value *v = n == NULL ? NULL : tl_peek(t, x);
    if (v == NULL)
        return;
    tl_value *made = tl_peek(t, y);
    if (v->batch >= 0) {
        tl_batch_like(made, v);
        made->batch = (tl_batch)axis;
        made->fixed = false;
        return;
    }
    made->fixed |= v->fixed && tl_all_fixed(t, n->in, n->n_in);
}

tl_status tl_batch_assigns(tl_at at, tl_tensor dst, tl_tensor x)
{
    const tl_tape *t = at.tape;
    const tl_value *to = tl_peek(t, dst), *v = tl_peek(t, x);
    const bool trains = t->now.phase == 0 && !(t->now.mode & (TL_EVAL | TL_NO_GRAD));
    const bool data = tl_maker(t, tl_behind(t, x, TL_VIEW, 0)) == NULL; /* declared, not computed */
    if (!(t->now.mode & TL_STRICT) || !trains || data || v->batch == TL_FREE ||
        v->batch == to->batch || (v->batch >= 0 && to->batch >= 0 && v->samples == 1))
        return TL_OK;
    return tl_tape_fail(at, TL_EUSAGE,
                        "tl_assign: TL_STRICT: what is computed of samples goes into a tensor of "
                        "the model that does not hold these, so that the next micro-batch reads "
                        "what this one was. Where each keeps its own, say along which axis of that "
                        "tensor (tl_batch_axis); else assign it under TL_NO_GRAD");
}

/* ---- rules ---- */

/* Inputs from number 31 on share bit 31. */
static bool is_among(unsigned which, int i) { return which >> (i < 31 ? i : 31) & 1; }

tl_batch tl_batch_meet(const tl_call *c, const tl_batch *in, unsigned which, int ndim)
{
    const bool left = ndim == TL_FROM_FRONT; /* else inputs align to the right */
    int axis = TL_FREE;
    int64_t n = 1;
    for (int i = 0; i < c->n_in; i++) {
        if (in[i] == TL_FREE)
            continue;
        const int a = in[i] + (in[i] < 0 || left ? 0 : ndim - c->in[i]->ndim);
        const int64_t size = in[i] < 0 ? 1 : c->in[i]->dim[in[i]];
        if (!is_among(which, i) || (axis != TL_FREE && (a != axis || size != n)))
            return TL_MIXED;
        axis = a;
        n = size;
    }
    for (int i = 0; i < c->n_in && axis >= 0; i++) {
        if (in[i] != TL_FREE || c->in[i] == NULL || !is_among(which, i))
            continue;
        const int at = axis - (left ? 0 : ndim - c->in[i]->ndim);
        if (at >= 0 && at < c->in[i]->ndim && c->in[i]->dim[at] != 1 &&
            (c->in[i]->dim[at] != n || c->in[i]->stride[at] != 0))
            return TL_MIXED;
    }
    return (tl_batch)axis;
}

void tl_batch_aligned(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_batch b = tl_batch_meet(c, in, TL_ALL_INPUTS, c->out[0].ndim);
    memset(out, b == TL_TOTAL ? TL_MIXED : b, (size_t)c->n_out);
}

void tl_batch_linear(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    memset(out, tl_batch_meet(c, in, TL_ALL_INPUTS, c->out[0].ndim), (size_t)c->n_out);
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
    const tl_batch b = tl_batch_meet(c, in, ~c->op->folds, nd);
    memset(out, tl_batch_outside(b, nd, tl_row_dims(c)), (size_t)c->n_out);
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
    return a < 0 ? a == TL_FREE ? a : TL_MIXED : k >= (int64_t)ndim - a ? TL_MIXED : a;
}

tl_batch tl_batch_beside(tl_batch a, int ndim, int64_t dim)
{
    return a >= 0 && dim == (dim < 0 ? (int64_t)a - ndim : a) ? TL_MIXED : a;
}

/* Whether view c shows only a part of x along its axis of samples. (If it shows all elements, it
 * only lays them out differently.) Then *samples is how many it shows, or -1 if it cuts one; *part
 * is a number made of the view's attributes: values made of different parts must not meet. */
static bool cuts(const tl_call *c, const tl_value *x, int64_t m, int64_t *samples, uint32_t *part)
{
    const unsigned char *bytes = c->attrs;
    const int64_t n = x->a.dim[x->batch], each = x->samples > 0 ? n / x->samples : 1;
    if (m == n || tl_array_count(&c->out[0]) == tl_array_count(&x->a))
        return false;
    uint64_t h = tl_mix_attrs(x->part, c->op, c->attrs);
    for (size_t i = 0; i < c->op->attr_size && c->op->attr == NULL; i++)
        h = tl_mix(h, bytes[i]); /* without a schema, compare bytes */
    *samples = each > 0 && m % each == 0 ? m / each : -1;
    *part = (uint32_t)(tl_mix(h, (uintptr_t)c->op) >> 32) | 1;
    return true;
}

void tl_batch_unfix(tl_tape *t, tl_value *v)
{
    const uint32_t end = v->fixed ? t->n_nodes : 0;
    uint32_t k = end;
    v->fixed = false;
    v->detached = TL_NONE;
    while (k > 0 && t->node[k - 1].out > v->self.index) /* made since v was */
        k--;
    for (; k < end; k++)
        for (int j = 0; j < t->node[k].n_out; j++)
            t->node[k].made[j]->fixed &= tl_all_fixed(t, t->node[k].in, t->node[k].n_in);
}

/* Asks the op's rule; without one, out stays as it is. */
static void ask_rule(const tl_call *c, const tl_batch *in, tl_batch out[TL_OUTS])
{
    if (c->op->batch != NULL)
        c->op->batch(c, in, out);
    else if (c->op->traits & TL_POINTWISE)
        tl_batch_aligned(c, in, out);
}

bool tl_batch_could(tl_tape *t, const tl_node *n, int i, int axis)
{
    const tl_value *y = n->made[0];
    tl_batch *in = tl_tape_room(t, (size_t)n->n_in, sizeof *in), out[TL_OUTS];
    const tl_array **array = tl_tape_room(t, (size_t)n->n_in, sizeof *array);
    tl_array made[TL_OUTS];
    if (in == NULL || array == NULL)
        return false;
    for (int k = 0; k < n->n_in; k++) {
        const tl_value *v = tl_input(n, k);
        array[k] = v == NULL ? NULL : &v->a;
        in[k] = v == NULL ? TL_FREE : k == i ? (tl_batch)axis : v->batch;
    }
    for (int k = 0; k < n->n_out; k++)
        made[k] = n->made[k]->a;
    const tl_call c = {.op = n->op,
                       .attrs = n->attrs,
                       .n_in = n->n_in,
                       .n_out = n->n_out,
                       .in = array,
                       .out = made,
                       .samples = y->samples};
    out[0] = TL_MIXED;
    ask_rule(&c, in, out);
    return out[0] == y->batch;
}

void tl_batch_infer(tl_call *c, tl_value *const *value, tl_batch *in, tl_value *const *made)
{
    const tl_op *op = c->op;
    bool mixed = false, total = false, free_grad = false;
    int64_t samples = -1;
    uint32_t part = 0;
    tl_batch out[TL_OUTS];
    for (int i = 0; i < c->n_in; i++) {
        const tl_value *v = value[i];
        in[i] = v == NULL ? TL_FREE : v->batch;
        if (v != NULL && op->traits & TL_RANDOM && v->a.ndim == 0 && !v->needs_grad)
            in[i] = TL_FREE; /* one number for all samples */
        if (v == NULL)
            continue;
        mixed |= in[i] == TL_MIXED || (v->part != 0 && part != 0 && v->part != part) ||
                 (v->samples >= 0 && samples >= 0 && v->samples != samples);
        total |= in[i] == TL_TOTAL;
        free_grad |= in[i] == TL_FREE && v->needs_grad;
        part = v->part != 0 ? v->part : part;
        samples = v->samples >= 0 ? v->samples : samples;
    }
    c->samples = samples;
    mixed |= total && free_grad; /* a total's gradient for a parameter is a finished sum */
    memset(out, TL_MIXED, sizeof out);
    if (!mixed)
        ask_rule(c, in, out);
    for (int i = 0; i < c->n_out; i++) /* a rule may be a user's */
        if (out[i] >= c->out[i].ndim || out[i] < TL_MIXED)
            out[i] = TL_MIXED;
    const tl_value *x = op->traits & TL_VIEW ? value[0] : NULL;
    if (x != NULL && !mixed && x->batch >= 0 && out[0] >= 0 &&
        cuts(c, x, c->out[0].dim[out[0]], &samples, &part) &&
        ((x->node >= 0 && x->part == 0) || samples < 0))
        out[0] = TL_MIXED; /* a part of data is a micro-batch; a part of anything else mixes */
    for (int i = 0; i < c->n_out; i++) {
        tl_value *y = made[i];
        const int64_t n = out[i] >= 0 ? y->a.dim[out[i]] : 0;
        y->batch = samples > 0 && n % samples != 0 ? TL_MIXED : out[i];
        y->samples = y->batch == TL_FREE || y->batch == TL_MIXED ? -1 : samples > 0 ? samples : n;
        y->part = part;
    }
}
