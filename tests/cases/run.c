/* run.c: a whole run of a case, forward and backward, brought off the tape. */
#include <string.h>

#include "tests/cases/cases.h"

bool tl_case_floating(const case_input *in)
{
    return in->present && !in->fixed && tl_dtype_is_float(in->dtype);
}

bool tl_case_differentiable(const tl_case *c)
{
    const tl_op *op = tl_op_find(c->op);
    case_run r = tl_case_run(c, TL_F32);
    bool any = false;
    for (int i = 0; i < r.n; i++)
        any |= tl_case_floating(&r.in[i]);
    bool to_float = strcmp(c->op, "cast") != 0 || tl_dtype_is_float((tl_dtype)c->p[0]);
    return op != NULL && op->vjp != NULL && c->diff <= 1 && any && to_float;
}

ref_tensor tl_case_cotangent(const ref_tensor *out, uint64_t *seed, case_kind kind)
{
    tl_shape s = {.ndim = out->ndim};
    memcpy(s.dim, out->dim, sizeof s.dim);
    return tl_case_values(out->dtype, &s, seed, kind);
}

void tl_case_result(tl_tape *t, const case_run *r, const ref_tensor *leaf, const ref_tensor *dy,
                    case_result *res)
{
    tl_tensor in[CASE_INPUTS], out[CASE_OUTPUTS];
    *res = (case_result){.n_out = 0};
    tl_tape_reset(t);
    for (int i = 0; i < r->n; i++) {
        in[i] = tl_case_rows(t, &r->in[i], &leaf[i]);
        if (dy != NULL && tl_case_floating(&r->in[i]))
            tl_require_grad(t, in[i]);
    }
    int n = tl_case_call(t, r, in, out);
    for (int i = 0; i < n && !tl_failed(t); i++)
        res->out[res->n_out++] = tl_case_read(t, out[i]);
    if (dy == NULL || tl_failed(t))
        return;
    tl_backward(t, out[0], .cotangent = tl_case_leaf(t, dy));
    for (int i = 0; i < r->n; i++)
        if (tl_case_floating(&r->in[i]))
            res->grad[i] = tl_case_read(t, tl_grad(t, in[i]));
}

void tl_case_result_free(case_result *x)
{
    tl_case_free(CASE_OUTPUTS, x->out);
    tl_case_free(CASE_INPUTS, x->grad);
}
