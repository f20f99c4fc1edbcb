/* gradients.c: tl_backward, tl_gradients, and reading or dropping the gradients of leaves.
 *
 * walk.c prepares a walk over the recorded nodes, and backward.c visits them. */
#include "autograd/batch.h"

tl_status tl_backward_at(tl_at at, tl_tensor y, tl_backward_options o)
{
    tl_tape *t = at.tape;
    TL_TRY(tl_may_add(t));
    tl_status s;
    if (t->lasting != NULL)
        tl_derived_unsettle(t);
    if (t->recorder != NULL && t->recorder->backward(t->recorder_ctx, at, y, &o, &s))
        return s;
    if (t->now.mode & TL_TRACE && t->recorder == NULL)
        return tl_tape_fail(at, TL_ETRACED, "tl_backward: this tape is being traced");
    t->busy++;
    const tl_scope outer = tl_scope_open(at, TL_NO_GRAD, 0);
    tl_walk w = {.t = t, .at = at, .who = "tl_backward", .y = y, .asked = y, .opt = o};
    s = tl_walk_prepare(&w);
    if (s == TL_OK && t->recorder == NULL)
        s = tl_prints_check(&w);
    if (s == TL_OK && t->now.mode & TL_STRICT)
        s = tl_derived_agree(at, t->calls);
    if (s == TL_OK) {
        TL_TELL(t, backward_begins, t, w.y);
        if (!o.retain)
            tl_walk_free_unsaved(&w);
        s = tl_walk_run(&w);
    }
    if (s == TL_OK) {
        for (int i = t->first_grad; i < t->n_grads; i++)
            t->grad[i].live |= t->grad[i].reached;
        TL_TELL(t, backward_ends, t);
        t->calls += w.lasts;
    }
    tl_scope_end(t, outer);
    t->busy--;
    s = tl_tape_stopped(t, s == TL_OK ? tl_error_status(t) : s); /* an observer's refusal, too */
    t->missed |= s != TL_OK;                                     /* and a read's in a callback */
    return s;
}

tl_status tl_gradients_at(tl_at at, tl_tensor y, const tl_tensor *x, int n, tl_tensor cotangent,
                          tl_tensor *dx)
{
    tl_tape *t = at.tape;
    TL_TRY(TL_NEED_N_AT(at, dx, n));
    for (int i = 0; i < n; i++)
        dx[i] = TL_NONE;
    TL_TRY(tl_error_status(t));
    TL_TRY(TL_NEED_N_AT(at, x, n));
    for (int i = 0; i < n; i++) {
        const tl_value *v = tl_deref(at, x[i], "tl_gradients");
        if (v == NULL)
            return tl_error_status(t);
        if (!v->needs_grad)
            return tl_tape_fail(
                at, TL_ENOGRAD,
                "tl_gradients: target %d takes no gradient (mark a leaf with tl_require_grad)", i);
    }
    const tl_scope outer = tl_scope_open(at, 0, 0);
    tl_walk w = {.t = t, .at = at, .who = "tl_gradients", .y = y, .asked = y, .n_targets = n};
    w.opt = (tl_backward_options){.cotangent = cotangent, .retain = true};
    w.target = x == NULL ? &y : x; /* NULL would mean tl_backward */
    tl_status s = tl_walk_prepare(&w);
    if (s == TL_OK)
        s = tl_walk_run(&w);
    for (int i = 0; i < n && s == TL_OK; i++) {
        const tl_value *v = tl_peek(t, x[i]);
        dx[i] = tl_walk_collect(&w, tl_walk_box(&w, x[i]));
        if (tl_is_none(dx[i]) && !tl_is_none(dx[i] = tl_filled(at, &v->a, v->a.dtype, 0)))
            tl_batch_like(tl_peek(t, dx[i]), v); /* y does not depend on it */
        s = tl_error_status(t);
    }
    tl_scope_end(t, outer);
    return s;
}

tl_tensor tl_grad_at(tl_at at, tl_tensor x)
{
    tl_tape *t = at.tape;
    const tl_value *v = tl_failed(t) ? NULL : tl_deref(at, x, "tl_grad");
    if (v == NULL || tl_check_waiting(at, "tl_grad") != TL_OK)
        return TL_NONE;
    tl_tensor recorded;
    if (t->recorder != NULL && t->recorder->grad(t->recorder_ctx, at, x, &recorded))
        return recorded;
    const tl_leaf_grad *g = tl_leaf_grad_find(t, x);
    if (g == NULL || !g->live)
        return TL_NONE;
    t->busy++;
    const tl_scope outer = tl_scope_open(at, TL_NO_GRAD, TL_PHASE_GRADIENT);
    tl_tensor dx = TL_NONE;
    if (t->lasting == NULL || tl_derived_settle(at) == TL_OK) /* which may move the records */
        dx = tl_leaf_grad_sum(at, tl_leaf_grad_find(t, x), tl_dtype_compute(v->a.dtype));
    tl_scope_end(t, outer);
    t->busy--;
    return dx;
}

void tl_grad_clear(tl_tape *t)
{
    if (!tl_lives(t) || !tl_between(t, "tl_grad_clear"))
        return;
    const bool idle = t->recorder == NULL && t->now.phase == 0 && t->waiting == 0;
    tl_prints_clear(t);
    t->calls = 0;
    t->missed = false;
    if (t->lasting != NULL)
        tl_derived_unsettle(t);
    if (t->recorder != NULL)
        t->recorder->grad_clear(t->recorder_ctx, t);
    else
        tl_grads_drop(t);
    if (idle) /* no walk and no waiting fold needs them */
        tl_derived_reset(t);
}
