/* call.c: a case on the tape, and small things that references share. */
#include <string.h>

#include "autograd/internal.h"
#include "tests/cases/cases.h"

int tl_case_call(tl_tape *t, const case_run *r, const tl_tensor *leaf, tl_tensor *out)
{
    tl_tensor in[CASE_INPUTS] = {TL_NONE};
    for (int i = 0; i < r->n; i++)
        in[i] = r->in[i].present ? tl_case_view(t, &r->in[i], leaf[i]) : TL_NONE;
    return r->c->build(t, in, r->c, out);
}

bool tl_case_calls(const tl_tape *t, const char *op)
{
    for (uint32_t i = 0; i < t->n_nodes; i++)
        if (strcmp(t->node[i].op->name, op) == 0)
            return true;
    return false;
}

int tl_case_carriers(const tl_tape *t, const char *op)
{
    for (uint32_t i = t->n_nodes; i-- > 0;) {
        const tl_node *n = &t->node[i];
        int carriers = 0;
        if (strcmp(n->op->name, op) != 0)
            continue;
        for (int k = 0; k < n->n_out; k++) {
            const tl_array *a = &tl_values_at(&t->values, n->out + (uint32_t)k)->a;
            carriers += tl_dtype_is_float(a->dtype) && tl_array_count(a) > 0 &&
                        !(n->op->nodiff_out & TL_BIT(k));
        }
        return carriers;
    }
    return 0;
}

int tl_case_floats(tl_tape *t, const case_call *k, tl_tensor *in)
{
    int n = 0;
    for (int i = 0; i < k->run->n; i++)
        if (k->run->in[i].present && !k->run->in[i].fixed && tl_dtype_is_float(k->run->in[i].dtype))
            in[n++] = tl_case_leaf(t, &k->leaf[i]);
    return n;
}

static tl_tensor flat(tl_tape *t, tl_tensor x, tl_dtype dtype)
{
    x = tl_reshape(t, x, TL_DIMS(-1));
    return tl_dtype_of(t, x) == dtype ? x : tl_cast(t, x, dtype);
}

/* x through another op than the one in question. */
static tl_tensor through(tl_tape *t, const char *op, tl_tensor x)
{
    return strcmp(op, "scale") == 0 ? tl_div(t, x, tl_scalar(t, tl_dtype_of(t, x), 1.25))
                                    : tl_scale(t, x, 0.75);
}

tl_tensor tl_case_function(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    const case_call *k = ctx;
    tl_tensor leaf[CASE_INPUTS], out[CASE_OUTPUTS] = {TL_NONE};
    int at = 0, diff = k->run->c->diff;
    for (int i = 0; i < k->run->n; i++) {
        const case_input *x = &k->run->in[i];
        bool given = x->present && !x->fixed && tl_dtype_is_float(x->dtype) && at < n;
        leaf[i] = given ? in[at++] : tl_case_leaf(t, &k->leaf[i]);
        if (given && k->inside)
            leaf[i] = through(t, k->run->c->op, leaf[i]);
    }
    tl_case_call(t, k->run, leaf, out);
    for (int i = 0; k->inside && i < (diff > 1 ? diff : 1); i++)
        out[i] = through(t, k->run->c->op, out[i]);
    if (diff <= 1)
        return out[0];
    tl_dtype dtype = tl_dtype_compute(tl_dtype_of(t, out[0]));
    for (int i = 0; i < diff; i++)
        out[i] = flat(t, out[i], dtype);
    return tl_concat(t, out, diff, 0);
}

const ref_tensor *tl_case_opt(const ref_tensor *x) { return x->data == NULL ? NULL : x; }

ref_tensor tl_case_shaped(const ref_tensor *x, int ndim, const int64_t *dim)
{
    ref_tensor y = *x;
    y.ndim = ndim;
    for (int i = 0; i < ndim; i++)
        y.dim[i] = dim[i];
    return y;
}

void tl_case_meet(const ref_tensor *a, const ref_tensor *b, ref_tensor both[2])
{
    ref_dtype d = a->dtype == b->dtype ? a->dtype : REF_F32;
    both[0] = ref_cast(a, d);
    both[1] = ref_cast(b, d);
}

void tl_case_continue(ref_tensor *acc, ref_tensor x)
{
    if (acc->data != NULL)
        for (int64_t i = 0; i < ref_numel(&x); i++) {
            int64_t ix[8] = {0};
            ref_unflatten(x.ndim, x.dim, i, ix);
            int64_t j = ref_broadcast_at(acc, x.ndim, ix);
            ref_set(acc, j, ref_round(acc->dtype, ref_get(acc, j) + ref_get(&x, i)));
        }
    for (int64_t j = 0; acc->data != NULL && j < ref_numel(acc); j++)
        ref_set(acc, j, ref_get(acc, j) + 0.0);
    ref_free(&x);
}
