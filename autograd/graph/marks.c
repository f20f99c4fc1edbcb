/* marks.c: backward, the gradients read and their clearing, in a trace.
 *
 * While tracing->whole each is one node (a mark): so the forward part can still be
 * rewritten. rebuild.c then makes the marks real. */
#include "autograd/graph/internal.h"

typedef struct {
    bool retain, partial;
} backward_attrs;

typedef struct {
    int64_t owner, index;
    tl_shape shape;
    tl_dtype dtype;
} grad_attrs;

static tl_status mark_shape(tl_call *c)
{
    const grad_attrs *a = c->attrs;
    if (c->n_out > 0)
        c->out[0] = tl_array_make(a->dtype, &a->shape, NULL);
    return TL_OK;
}

const tl_op tl_op_mark_backward = {.name = "backward",
                                   .n_in = 2,
                                   .optional = TL_BIT(1),
                                   .traits = TL_NONDIFF,
                                   .shape = mark_shape,
                                   .attr_size = sizeof(backward_attrs)};
const tl_op tl_op_mark_grad = {.name = "grad",
                               .n_in = 0,
                               .n_out = 1,
                               .traits = TL_NONDIFF,
                               .shape = mark_shape,
                               .attr_size = sizeof(grad_attrs)};
const tl_op tl_op_mark_clear = {.name = "grad_clear",
                                .n_in = 0,
                                .traits = TL_NONDIFF,
                                .shape = mark_shape};

static tl_status mark_leaf(tl_tape *t, tl_tensor x)
{
    const tl_value *v = tl_is_none(x) ? NULL : tl_peek(t, x);
    if (v == NULL || !v->needs_grad || v->node >= 0)
        return TL_OK;
    tl_leaf_grad *g = tl_leaf_grad_get(t, x);
    if (g == NULL)
        return tl_fail(&t->head.err, TL_ENOMEM, "tl_backward: no memory for a gradient record");
    g->live = true;
    return TL_OK;
}

/* Backward will come to these leaves: their gradients can be read. */
static tl_status mark_reached(tl_tape *t, tl_tensor y)
{
    uint32_t *order, n;
    TL_TRY(mark_leaf(t, y));
    TL_TRY(tl_canonical_order(t, y, true, &order, &n));
    for (uint32_t i = 0; i < n; i++) {
        const tl_node *node = &t->node[order[i]];
        for (int k = 0; k < node->n_in; k++)
            TL_TRY(mark_leaf(t, node->in[k]));
    }
    return TL_OK;
}

tl_status tl_trace_backward(tl_at at, tl_tensor y, const tl_backward_options *o)
{
    tl_tape *t = at.tape;
    const tl_value *v = tl_deref(at, y, "tl_backward");
    if (v == NULL)
        return tl_error_status(t);
    if (!v->needs_grad)
        return tl_tape_fail(at, TL_ENOGRAD,
                            "tl_backward: the output depends on no parameter or marked leaf "
                            "(detached, or recorded without gradients)");
    backward_attrs a = {o->retain, o->partial};
    tl_apply(at, &tl_op_mark_backward, &a, (tl_tensor[]){y, o->cotangent}, 2, NULL);
    t->tracing->has_backward = true;
    return tl_failed(t) ? tl_error_status(t) : mark_reached(t, y);
}

tl_tensor tl_trace_grad(tl_at at, tl_tensor x)
{
    const tl_array *a = &tl_peek(at.tape, x)->a;
    grad_attrs g = {x.owner, x.index, tl_array_shape(a), tl_dtype_compute(a->dtype)};
    return tl_apply1(at, &tl_op_mark_grad, &g, NULL, 0);
}

/* The program goes on with a gradient that waits on the user's tape: the same uses, in accumulators
 * of the same kind. */
static tl_status take_earlier(tl_tape *t, const tl_leaf_grad *theirs, tl_leaf_grad *g)
{
    TL_TRY(tl_uses_reserve(t, g, theirs->n_uses));
    g->n_uses = theirs->n_uses;
    for (int k = 0; k < g->n_uses; k++)
        if (theirs->use[k].open)
            TL_TRY(tl_use_open(t, g, k, theirs->use[k].acc.dtype));
    g->live = g->earlier = true;
    t->tracing->has_earlier = true;
    return TL_OK;
}

tl_leaf_grad *tl_trace_wanted(tl_at at, tl_tensor x)
{
    tl_tape *t = at.tape;
    tl_leaf_grad *g = tl_leaf_grad_get(t, x);
    if (g == NULL) {
        tl_tape_fail(at, TL_ENOMEM, "tl_grad: no memory for a gradient record");
        return NULL;
    }
    const tl_leaf_grad *theirs = x.owner == t->values.owner || t->tracing->user == NULL
                                     ? NULL
                                     : tl_leaf_grad_find(t->tracing->user, x);
    bool first = t->part == 0 && !t->tracing->clears_first && !g->live;
    g->read = true;
    g->none |= first && (theirs == NULL || !theirs->live);
    if (first && theirs != NULL && theirs->live && take_earlier(t, theirs, g) != TL_OK)
        return NULL;
    return g;
}

/* What comes after belongs to another part: its backward begins new gradients. */
void tl_trace_clear(tl_tape *t)
{
    if (!t->tracing->has_backward && !t->tracing->has_earlier) {
        t->tracing->clears_first = true;
        return;
    }
    if (t->tracing->whole)
        tl_apply(TL_AT(t), &tl_op_mark_clear, NULL, NULL, 0, NULL);
    t->tracing->clears = true;
    t->part++;
}

/* A mark made real on dst: called by rebuild.c with the inputs' handles there. */
tl_status tl_mark_expand(tl_tape *dst, const tl_node *n, const tl_tensor *in, tl_tensor leaf,
                         tl_tensor *out)
{
    tl_at at = {dst, n->file, n->line};
    if (n->op == &tl_op_mark_backward) {
        const backward_attrs *a = n->attrs;
        tl_backward_options o = {.cotangent = in[1], .retain = a->retain, .partial = a->partial};
        return tl_backward_at(at, in[0], o);
    }
    if (n->op == &tl_op_mark_grad)
        out[0] = tl_grad_at(at, leaf);
    else
        tl_grad_clear(dst);
    return tl_failed(dst) ? tl_error_status(dst) : TL_OK;
}

tl_tensor tl_mark_leaf(const tl_node *n)
{
    const grad_attrs *a = n->attrs;
    return (tl_tensor){(uint32_t)a->owner, (uint32_t)a->index, 1};
}
