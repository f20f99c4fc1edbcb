/* sanity.c: is it a function? Run twice it does the same, beside its inputs it does the same ops,
 * and it leaves its inputs as they were. */
#include <math.h>
#include <string.h>

#include "autograd/check/shadow.h"

static bool equal_bytes(const tl_array *a, const tl_array *b)
{
    if (!tl_array_same_shape(a, b) || a->dtype != b->dtype)
        return false;
    for (int64_t i = 0; i < tl_array_count(a); i++)
        if (memcmp(tl_array_at(a, i), tl_array_at(b, i), tl_dtype_size(a->dtype)) != 0)
            return false;
    return true;
}

static bool same_ops(tl_tape *a, tl_tensor ya, tl_tape *b, tl_tensor yb)
{
    uint32_t *oa, *ob, na, nb;
    if (tl_canonical_order(a, ya, TL_TO_ALL, &oa, &na) != TL_OK ||
        tl_canonical_order(b, yb, TL_TO_ALL, &ob, &nb) != TL_OK || na != nb)
        return false;
    for (uint32_t i = 0; i < na; i++)
        if (a->node[oa[i]].op != b->node[ob[i]].op)
            return false;
    return true;
}

/* The function has left its inputs as they were. */
static tl_status check_inputs_kept(tl_checker *c, tl_tape *t, const tl_tensor *in, int n)
{
    tl_shadow *s = &c->s;
    for (int i = 0; i < n; i++) {
        const tl_value *was = tl_peek(t, in[i]), *is = tl_peek(s->rec, s->copies[i]);
        if (was == NULL || is == NULL)
            return tl_fail(&s->err, TL_EUSAGE, "the function resets %s tape",
                           was == NULL ? "its caller's" : "its");
        if (!equal_bytes(&was->a, &is->a))
            return tl_fail(&s->err, TL_EINPLACE, "the function changes its input %d", i);
    }
    return TL_OK;
}

typedef struct {
    tl_function *f;
    void *ctx;
    bool nearby;
} beside;

/* f, its inputs moved a little. */
static tl_tensor run_beside(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    const beside *k = ctx;
    for (int i = 0; k->nearby && i < n; i++)
        tl_shadow_nudge(&tl_peek(t, in[i])->a, i);
    return k->f(t, in, n, k->ctx);
}

/* A second run, with inputs as they are and with inputs a little beside: the function
 * must not change its inputs, must repeat its result, and must do the same ops nearby. */
tl_status tl_check_sanity(tl_checker *c, tl_at at, tl_function *f, const tl_tensor *in, int n,
                          void *ctx)
{
    tl_shadow *s = &c->s;
    const tl_array *first = &tl_peek(s->rec, s->y)->a;
    for (int64_t i = 0; i < tl_array_count(first); i++)
        if (!isfinite(tl_array_get(first, i)))
            return tl_fail(&s->err, TL_EDOMAIN, "the function's result is %g at element %lld",
                           tl_array_get(first, i), (long long)i);
    TL_TRY(check_inputs_kept(c, at.tape, in, n));
    tl_tape *again = tl_tape_new(at.tape->model);
    for (int nearby = 0; nearby < 2 && s->err.status == TL_OK; nearby++) {
        tl_err e = {.status = TL_OK};
        tl_tensor y;
        beside k = {f, ctx, nearby != 0};
        tl_tape_reset(again);
        if (again == NULL)
            tl_fail(&s->err, TL_ENOMEM, "no memory for a second run");
        else if (tl_shadow_record(at, c->who, run_beside, in, n, &k, !c->o.skip_inputs, again,
                                  s->copies + n, &y, &e) != TL_OK)
            tl_fail(&s->err, e.status, "a second run of the function fails: %.300s", e.message);
        else if (!same_ops(s->rec, s->y, again, y))
            tl_fail(&s->err, tl_failed(again) || tl_failed(s->rec) ? TL_ENOMEM : TL_EUSAGE,
                    tl_failed(again) || tl_failed(s->rec) ? "no memory to compare two runs"
                    : nearby ? "the function branches: beside these inputs it does other ops"
                             : "the function is not deterministic: run twice, it does other ops");
        else if (!nearby && !equal_bytes(first, &tl_peek(again, y)->a))
            tl_fail(&s->err, TL_EUSAGE,
                    "the function is not deterministic: run twice on the same inputs, it "
                    "gives other results");
    }
    tl_object_end(again);
    return s->err.status;
}
