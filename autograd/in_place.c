/* in_place.c: changes in place: whose memory a value uses, and when a call may change it. */
#include "autograd/apply.h"

/* The record of a value of the tape itself; NULL: x is none. */
static tl_value *own(const tl_tape *t, tl_tensor x)
{
    return x.owner == t->values.owner ? tl_values_at(&t->values, x.index) : NULL;
}

tl_tensor tl_below(const tl_tape *t, tl_tensor x)
{
    const tl_value *v = own(t, x);
    if (v == NULL || v->node < 0)
        return v == NULL ? TL_NONE : v->source;
    const tl_node *n = &t->node[v->node];
    const unsigned traits = v->out == 0 ? n->op->traits : 0;
    return traits & TL_VIEW ? n->in[0] : traits & TL_MUTATES ? n->in[n->op->mutates] : TL_NONE;
}

tl_tensor tl_attached(const tl_tape *t, tl_tensor x)
{
    for (const tl_value *v; (v = own(t, x)) != NULL && v->node < 0 && !tl_is_none(v->source);)
        x = v->source;
    return x;
}

/* x's bottom if it is cached, else the value one step down. */
static tl_tensor lower(const tl_tape *t, tl_tensor x)
{
    const tl_value *v = own(t, x);
    return v != NULL && !tl_is_none(v->bottom) ? v->bottom : tl_below(t, x);
}

/* Chains of views and of in-place changes can be long, so every value on the way caches it. */
tl_tensor tl_bottom(const tl_tape *t, tl_tensor x)
{
    tl_tensor bottom = x;
    for (tl_tensor y = lower(t, x); !tl_is_none(y); y = lower(t, y))
        bottom = y;
    for (tl_tensor y; !tl_is_none(y = lower(t, x)); x = y)
        own(t, x)->bottom = bottom;
    return bottom;
}

/* ---- when a call may change it ---- */

/* Input i has its elements in the memory of the operand, whose bottom is `under`. In a trace only
 * the model has memory. */
static bool shares(const tl_making *k, int i, tl_tensor under)
{
    const tl_tape *t = k->at.tape;
    if (!(k->call.mode & TL_TRACE))
        return k->value[i]->st == k->value[k->call.op->mutates]->st;
    const tl_tensor x = tl_bottom(t, k->in[i]);
    const tl_value *v = tl_model_value(t->model, x);
    return v != NULL && v == tl_model_value(t->model, under);
}

/* Nothing reads the operand as it was, neither a gradient nor the call itself, and nothing else
 * counts on its memory. */
tl_status tl_change_check(tl_making *k)
{
    const tl_op *op = k->call.op;
    const tl_tape *t = k->at.tape;
    const tl_value *x = k->value[op->mutates];
    const unsigned changes = TL_BIT(op->mutates) | op->changes;
    char a[TL_SHAPE_TEXT], b[TL_SHAPE_TEXT];
    /* What the op's own kernel overwrites whole, and nobody watches, can stay blank. */
    k->call.begins = x->st != NULL && x->st->blank && k->mutates && t->choice == NULL &&
                     !t->run_watched && !(k->call.mode & TL_TRACE) &&
                     tl_op_begins(op, &x->a, x->st);
    if (!tl_array_same_shape(&k->call.out[0], &x->a))
        return tl_tape_fail(k->at, TL_ESHAPE,
                            "%s: changes input %d of shape %s, and its shape rule makes %s of it",
                            op->name, op->mutates, tl_array_shape_text(a, &x->a),
                            tl_array_shape_text(b, &k->call.out[0]));
    if (x->st != NULL && !k->call.begins)
        tl_storage_settle(x->st);
    if (!k->mutates)
        return TL_OK;
    const tl_value *base = tl_peek(t, tl_behind(t, k->in[op->mutates], TL_VIEW, 0));
    if (base == NULL)
        return tl_tape_fail(k->at, TL_ESTALE, "%s: what input %d shows was removed from the model",
                            op->name, op->mutates);
    for (int i = 0; i < x->a.ndim; i++)
        if (x->a.dim[i] > 1 && x->a.stride[i] == 0)
            return tl_tape_fail(k->at, TL_EINPLACE,
                                "%s: dim %d of input %d shows one element %lld times; it cannot be "
                                "changed in place",
                                op->name, i, op->mutates, (long long)x->a.dim[i]);
    if (k->needs_grad && !(op->traits & TL_NONDIFF)) {
        if (base->node < 0 && base->needs_grad)
            return tl_tape_fail(k->at, TL_EINPLACE,
                                "%s: cannot change a leaf that needs a gradient in place",
                                op->name);
        if (tl_op_reads(op, k->wanted) & TL_BIT(op->mutates))
            return tl_tape_fail(k->at, TL_EINPLACE,
                                "%s: a gradient that is wanted reads input %d as it was before "
                                "this call changes it",
                                op->name, op->mutates);
    }
    const tl_tensor under = tl_bottom(t, k->in[op->mutates]);
    uint32_t leaf, use;
    if (t->phase == 0 && tl_acc_holding(t, under, &leaf, &use))
        return tl_tape_fail(k->at, TL_EINPLACE,
                            "%s: cannot change the gradient that tl_grad has lent in place",
                            op->name);
    for (int i = 0; i < k->call.n_in && op != &tl_op_assign; i++) /* that copies before it writes */
        if (k->value[i] != NULL && (i >= 32 || !(changes & TL_BIT(i))) && shares(k, i, under) &&
            tl_arrays_overlap(&k->value[i]->a, &x->a))
            return tl_tape_fail(k->at, TL_EINPLACE,
                                "%s: input %d lies in memory of input %d, which the call changes",
                                op->name, i, op->mutates);
    for (unsigned left = k->call.mode & TL_TRACE ? 0 : k->regions; left != 0; left &= left - 1) {
        tl_change *c = tl_calloc(1, sizeof *c);
        if (c == NULL)
            return tl_tape_fail(k->at, TL_ENOMEM, "%s: no memory to note a change", op->name);
        c->next = k->change;
        k->change = c;
    }
    return TL_OK;
}
