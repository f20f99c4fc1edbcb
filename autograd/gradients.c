/* gradients.c: the gradient of any value by any others, as values that can be
 * differentiated again. */
#include "autograd/walk.h"

/* A target that y does not depend on has a gradient of zeros. */
static tl_tensor zeros_like(tl_walk *w, tl_tensor x)
{
    const tl_value *v = tl_peek(w->t, x);
    tl_fill_attrs zero = {tl_array_shape(&v->a), v->a.dtype, 0};
    return tl_apply1(w->at, &tl_op_fill, &zero, NULL, 0);
}

tl_status tl_gradients_at(tl_at at, tl_tensor y, const tl_tensor *x, int n, tl_tensor cotangent,
                          tl_tensor *dx)
{
    tl_tape *t = at.tape;
    for (int i = 0; i < n; i++)
        dx[i] = TL_NONE;
    if (tl_failed(t))
        return tl_error_status(t);
    for (int i = 0; i < n; i++) {
        const tl_value *v = tl_deref(at, x[i], "tl_gradients");
        if (v == NULL)
            return tl_error_status(t);
        if (!v->needs_grad)
            return tl_tape_fail(
                at, TL_ENOGRAD,
                "tl_gradients: target %d takes no gradient (mark a leaf with tl_require_grad)", i);
    }
    int place = tl_place_push(at);
    tl_walk w = {.t = t,
                 .at = at,
                 .y = y,
                 .asked = y,
                 .opt = {.cotangent = cotangent, .retain = true},
                 .target = x,
                 .n_targets = n};
    tl_status s = tl_walk_root(&w);
    if (s == TL_OK)
        s = tl_walk_prepare(&w);
    if (s == TL_OK)
        s = tl_walk_run(&w);
    for (int i = 0; i < n && s == TL_OK; i++) {
        dx[i] = tl_walk_collect(&w, tl_walk_box(&w, x[i]));
        if (tl_is_none(dx[i]))
            dx[i] = zeros_like(&w, x[i]);
        s = t->head.err.status;
    }
    tl_place_pop(t, place);
    return s;
}
