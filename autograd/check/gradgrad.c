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
        if (!isfinite(tl_shadow_element(a, i)))
            return false;
    return true;
}

/* A random cotangent on t for f's output, whose shape a run on a tape of its own tells. */
static tl_tensor cotangent(tl_at at, tl_function *f, const tl_tensor *in, int n, void *ctx,
                           uint64_t seed)
{
    tl_tape *t = at.tape, *s = tl_tape_new(t->model);
    tl_rng_key key = tl_rng_stream(seed, "tl_gradgradcheck");
    tl_tensor c = TL_NONE, *copy = tl_bump_get(&t->bump, (size_t)(n + 1) * sizeof *copy);
    for (int i = 0; s != NULL && copy != NULL && i < n; i++) {
        const tl_value *v = tl_deref(at, in[i], "tl_gradgradcheck");
        if (v == NULL)
            break;
        copy[i] = tl_data(s, NULL, v->a.dtype, tl_array_shape(&v->a));
        if (!tl_is_none(copy[i]))
            tl_array_copy(&tl_peek(s, copy[i])->a, &v->a);
    }
    tl_tensor y = s == NULL || copy == NULL || tl_failed(t) ? TL_NONE : f(s, copy, n, ctx);
    const tl_value *v = s == NULL || tl_failed(s) || tl_is_none(y) ? NULL : tl_peek(s, y);
    if (v == NULL || !tl_dtype_is_float(v->a.dtype)) {
        tl_tape_fail(at, TL_ENOGRAD, "tl_gradgradcheck: %.300s",
                     s != NULL && tl_failed(s) ? tl_error(s)
                                               : "the function gives no floating tensor");
    } else if (!all_finite(&v->a)) {
        tl_tape_fail(at, TL_EDOMAIN, "tl_gradgradcheck: the function's own result is not finite");
    } else {
        tl_tensor wide = tl_data(t, NULL, TL_F64, tl_array_shape(&v->a));
        tl_array a;
        if (tl_array_of(t, wide, &a))
            for (int64_t i = 0; i < tl_array_count(&a); i++)
                ((double *)a.data)[i] = 2 * tl_rng_uniform64(key, 0, (uint64_t)i) - 1;
        tl_sum_to_attrs to = {tl_array_shape(&v->a), v->a.dtype};
        c = tl_apply1(at, &tl_op_sum_to, &to, (tl_tensor[]){wide, TL_NONE}, 2);
    }
    tl_free(s);
    return c;
}

tl_verdict tl_gradgradcheck_at(tl_at at, tl_function *f, const tl_tensor *in, int n, void *ctx,
                               tl_gradcheck_options o, tl_gradcheck_report *report)
{
    tl_tape *t = at.tape;
    tl_gradcheck_report own, *r = report != NULL ? report : &own;
    inner k = {f, ctx, 0};
    memset(r, 0, sizeof *r);
    r->verdict = TL_NO_SIGNAL;
    tl_tensor c = tl_failed(t) ? TL_NONE : cotangent(at, f, in, n, ctx, o.seed ? o.seed : 21);
    tl_tensor *all = tl_failed(t) ? NULL : tl_bump_get(&t->bump, (size_t)(n + 1) * sizeof *all);
    if (all == NULL || tl_failed(t)) {
        snprintf(r->text, sizeof r->text, "gradgradcheck: %.400s", tl_error(t));
        r->verdict = TL_WRONG;
        return r->verdict;
    }
    memcpy(all, in, (size_t)n * sizeof *all);
    all[n] = c;
    o.constant_ok = true;
    for (int i = 0; i < n; i++) {
        tl_array a;
        if (!tl_array_of(t, in[i], &a) || !tl_dtype_is_float(a.dtype))
            continue;
        k.which = i;
        if (tl_gradcheck_at(at, gradient_of_f, all, n + 1, &k, o, r) != TL_RIGHT)
            return r->verdict;
    }
    if (r->leaves == 0) {
        snprintf(r->text, sizeof r->text,
                 "gradgradcheck: no signal: no floating input to differentiate by");
        tl_tape_fail(at, TL_ENOGRAD, "%s", r->text);
    }
    return r->verdict;
}
