/* gradgrad.c: second derivatives, checked as first derivatives of the gradient.
 *
 * For each input x_i the function (inputs, c) -> gradient of <c, f> by x_i goes through the
 * gradient checker. It is linear in c, so there is a signal even where f is linear and the gradient
 * does not depend on the inputs. */
#include <string.h>

#include "autograd/check/shadow.h"

typedef struct {
    const tl_subject *of;
    int which;
} inner;

static tl_tensor gradient_of_f(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    inner *k = ctx;
    tl_tensor dx = TL_NONE, y = k->of->f(t, in, n - 1, k->of->ctx);
    if (!tl_failed(t))
        tl_gradients(t, y, &in[k->which], 1, in[n - 1], &dx);
    return dx;
}

/* used[i]: y, on tape t, is made of x[i], one of n. */
static tl_status find_used(tl_tape *t, tl_tensor y, const tl_tensor *x, int n, bool *used)
{
    uint32_t *order, n_order;
    TL_TRY(tl_canonical_order(t, y, TL_TO_GRAD, &order, &n_order));
    for (int i = 0; i < n; i++) {
        used[i] = tl_same_handle(x[i], y);
        for (uint32_t at = 0; at < n_order && !used[i]; at++)
            for (int k = 0; k < t->node[order[at]].n_in; k++)
                used[i] |= tl_same_handle(x[i], t->node[order[at]].in[k]);
        used[i] &= tl_peek(t, x[i]) != NULL && tl_peek(t, x[i])->needs_grad;
    }
    return TL_OK;
}

/* Sets all[n] to c, a random tensor on the caller's tape with the dtype and shape of f's output.
 * Runs f on tape `on` to learn these, and which inputs the output is made of. all[0 .. n-1] are
 * scratch. */
static tl_status cotangent(tl_checker *c, const tl_subject *f, tl_tape *on, tl_tensor *all,
                           bool *used)
{
    const int n = f->n;
    tl_tape *t = f->at.tape;
    tl_rng_key key = tl_rng_stream(c->o.seed ? c->o.seed : 21, "tl_gradgradcheck");
    tl_tensor y = TL_NONE;
    TL_TRY(tl_shadow_record(f, c->who, true, on, all, &y, &c->s.err));
    if (find_used(on, y, all, n, used) != TL_OK)
        return tl_fail(&c->s.err, TL_ENOMEM, "no memory to order the nodes");
    const tl_array *a = &tl_peek(on, y)->a;
    c->empty = !tl_dtype_is_float(a->dtype);
    if (c->empty)
        return tl_fail(&c->s.err, TL_ENOGRAD, "the function does not give a floating tensor");
    if (tl_bad_element(a) >= 0)
        return tl_fail(&c->s.err, TL_EDOMAIN, "the function's own result is not finite");
    all[n] = tl_zeros(t, a->dtype, tl_array_shape(a));
    for (int64_t i = 0; !tl_is_none(all[n]) && i < tl_array_count(a); i++)
        tl_array_put(&tl_peek(t, all[n])->a, i, 2 * tl_rng_uniform64(key, 0, (uint64_t)i) - 1);
    return tl_shadow_failed(&c->s, t);
}

/* One check for each floating input that f uses. Each begins with a fresh checker. */
static tl_status check_each(tl_checker *c, const tl_subject *f, const tl_tensor *all,
                            const bool *used, int *by)
{
    const tl_checker fresh = {.o = c->o, .r = c->r, .who = c->who, .only = c->only};
    const int asked = *by;
    inner k = {f, 0};
    const tl_subject gradient = {f->at, gradient_of_f, all, f->n + 1, &k};
    for (int i = 0; i < f->n; i++) {
        if (!used[i] || (asked >= 0 && i != asked))
            continue;
        tl_shadow_free(&c->s);
        *c = fresh;
        *by = k.which = i;
        TL_TRY(tl_check_run(c, &gradient));
        if (c->r->verdict != TL_RIGHT)
            return TL_OK;
    }
    if (c->r->leaves == 0)
        c->why = asked >= 0 ? "the function does not use that floating input, if it is one"
                            : "the function uses no floating input to differentiate by";
    return TL_OK;
}

tl_status tl_check_second(tl_checker *c, const tl_subject *f, int *by)
{
    *c->r = (tl_gradcheck_report){.verdict = TL_NO_SIGNAL};
    c->o.constant_ok = true;
    tl_tape *on = tl_tape_new(f->at.tape->model);
    tl_tensor *all = tl_calloc((size_t)f->n + 1, sizeof *all);
    bool *used = tl_calloc((size_t)f->n + 1, sizeof *used);
    tl_status s = on == NULL || all == NULL || used == NULL
                      ? tl_fail(&c->s.err, TL_ENOMEM, "no memory for %d inputs", f->n)
                      : cotangent(c, f, on, all, used);
    tl_object_end(on);
    if (s == TL_OK && f->n > 0)
        memcpy(all, f->in, (size_t)f->n * sizeof *all);
    if (s == TL_OK)
        s = check_each(c, f, all, used, by);
    tl_free_raw(used);
    tl_free_raw(all);
    return s;
}
