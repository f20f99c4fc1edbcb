/* gradgrad.c: second derivatives, checked as first derivatives of the gradient.
 *
 * For each input x_i the function (inputs, c) -> gradient of <c, f> by x_i goes
 * through the gradient checker. It is linear in c, so there is a signal even where
 * f is linear and the gradient does not depend on the inputs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/check/gradcheck.h"
#include "autograd/check/shadow.h"
#include "tensor/rng.h"
#include "tensor/threads.h"

typedef struct {
    tl_function *f;
    void *ctx;
    int which;
} inner;

static tl_tensor gradient_of_f(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    inner *k = ctx;
    tl_tensor dx = TL_NONE, y = k->f(t, in, n - 1, k->ctx);
    if (!tl_failed(t))
        tl_gradients(t, y, &in[k->which], 1, in[n - 1], &dx);
    return dx;
}

static bool all_finite(const tl_array *a)
{
    for (int64_t i = 0; i < tl_array_count(a); i++)
        if (!isfinite(tl_array_get(a, i)))
            return false;
    return true;
}

/* A random cotangent on the caller's tape for f's output, whose shape a run on another tells. */
static tl_status cotangent(tl_checker *c, tl_at at, tl_function *f, const tl_tensor *in, int n,
                           void *ctx, tl_tensor *all)
{
    tl_tape *t = at.tape, *on = tl_tape_new(t->model);
    tl_rng_key key = tl_rng_stream(c->o.seed ? c->o.seed : 21, "tl_gradgradcheck");
    tl_tensor y = TL_NONE;
    if (on == NULL)
        return tl_fail(&c->s.err, TL_ENOMEM, "no memory for a tape");
    tl_status s = tl_shadow_record(at, c->who, f, in, n, ctx, false, on, all, &y, &c->s.err);
    const tl_value *v = s == TL_OK ? tl_peek(on, y) : NULL;
    if (v != NULL && !tl_dtype_is_float(v->a.dtype)) {
        s = tl_fail(&c->s.err, TL_ENOGRAD, "the function gives no floating tensor");
    } else if (v != NULL && !all_finite(&v->a)) {
        s = tl_fail(&c->s.err, TL_EDOMAIN, "the function's own result is not finite");
    } else if (v != NULL) {
        tl_tensor wide = tl_zeros(t, TL_F64, tl_array_shape(&v->a));
        tl_array a;
        if (tl_array_of(t, wide, &a))
            for (int64_t i = 0; i < tl_array_count(&a); i++)
                ((double *)a.data)[i] = 2 * tl_rng_uniform64(key, 0, (uint64_t)i) - 1;
        tl_sum_to_attrs to = {tl_array_shape(&v->a), v->a.dtype};
        all[n] = tl_apply1(at, &tl_op_sum_to, &to, (tl_tensor[]){wide, TL_NONE}, 2);
        if (tl_failed(t))
            s = tl_fail(&c->s.err, tl_error_status(t), "%.400s", tl_error(t));
    }
    tl_object_end(on);
    return s;
}

/* One check a floating input. What is asked and where it goes are given anew to each. */
static tl_status check_each(tl_checker *c, tl_at at, tl_function *f, const tl_tensor *all, int n,
                            void *ctx, int *by)
{
    const tl_checker fresh = {.o = c->o, .r = c->r, .who = c->who, .only = c->only};
    const int asked = *by;
    inner k = {f, ctx, 0};
    for (int i = 0; i < n; i++) {
        if (!tl_dtype_is_float(tl_dtype_of(at.tape, all[i])) || (asked >= 0 && i != asked))
            continue;
        tl_shadow_free(&c->s);
        *c = fresh;
        *by = k.which = i;
        TL_TRY(tl_check_run(c, at, gradient_of_f, all, n + 1, &k));
        if (c->r->verdict != TL_RIGHT)
            return TL_OK;
    }
    return c->r->leaves > 0
               ? TL_OK
               : tl_fail(&c->s.err, TL_ENOGRAD, "no signal: no floating input to differentiate by");
}

tl_status tl_check_second(tl_checker *c, tl_at at, tl_function *f, const tl_tensor *in, int n,
                          void *ctx, int *by)
{
    tl_tape *t = at.tape;
    memset(c->r, 0, sizeof *c->r);
    c->r->verdict = TL_NO_SIGNAL;
    c->o.constant_ok = true;
    if (tl_failed(t) || tl_shadow_usable(at, c->who, f, in, n) != TL_OK)
        return tl_fail(&c->s.err, tl_error_status(t), "%.400s", tl_error(t));
    tl_tensor *all = tl_calloc((size_t)n + 1, sizeof *all);
    if (all == NULL)
        return tl_fail(&c->s.err, TL_ENOMEM, "no memory for %d inputs", n);
    tl_status s = cotangent(c, at, f, in, n, ctx, all);
    if (n > 0)
        memcpy(all, in, (size_t)n * sizeof *all);
    if (s == TL_OK)
        s = check_each(c, at, f, all, n, ctx, by);
    tl_free_raw(all);
    return s;
}

/* An op of the gradient whose own gradient is wrong; without one, an op of f that leaves something
 * out of its gradient: there everything recorded is right, and what is not recorded is wrong. */
static void find_culprit(tl_checker *c, tl_at at, tl_function *f, const tl_tensor *in, int n,
                         void *ctx)
{
    tl_tape *rec = tl_tape_new(at.tape->model);
    tl_tensor y, *copies = tl_calloc((size_t)n + 1, sizeof *copies);
    tl_err e = {.status = TL_OK};
    tl_culprit_find(c->s.rec, c->s.y, 1, c->o, c->r);
    if (rec != NULL)
        tl_observe_like(rec, at.tape);
    if (c->r->culprit.op == NULL && rec != NULL && copies != NULL &&
        tl_shadow_record(at, c->who, f, in, n, ctx, true, rec, copies, &y, &e) == TL_OK)
        tl_culprit_find(rec, y, 2, c->o, c->r);
    tl_free_raw(copies);
    tl_object_end(rec);
}

tl_verdict tl_gradgradcheck_at(tl_at at, tl_function *f, const tl_tensor *in, int n, void *ctx,
                               tl_gradcheck_options o, tl_gradcheck_report *report)
{
    tl_gradcheck_report own;
    tl_checker c = {.o = o, .r = report != NULL ? report : &own, .who = "tl_gradgradcheck"};
    int by = -1;
    tl_textenv saved = tl_textenv_enter();
    if (tl_check_second(&c, at, f, in, n, ctx, &by) == TL_OK &&
        (c.r->verdict == TL_WRONG || c.lost[0] || c.lost[1]))
        find_culprit(&c, at, f, in, n, ctx);
    tl_verdict v = tl_check_end(&c, at);
    tl_textenv_leave(saved);
    return v;
}
