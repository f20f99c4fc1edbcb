/* mutate.c: a test hook - damages what one op's vjp gives, before the engine
 * un-broadcasts it, so that a test can show that the damage is noticed. */
#include <string.h>

#include "autograd/uses.h"

static double element(const tl_array *a, int64_t i)
{
    const void *p = tl_array_at(a, i);
    return a->dtype == TL_F64 ? *(const double *)p : (double)*(const float *)p;
}

static void set_element(const tl_array *a, int64_t i, double v)
{
    void *p = tl_array_at(a, i);
    if (a->dtype == TL_F64)
        *(double *)p = v;
    else
        *(float *)p = (float)v;
}

/* A copy of dx with every element times factor; an accumulator is changed in place. */
static tl_tensor scaled(tl_tape *t, tl_tensor dx, double factor, bool accumulated)
{
    const tl_value *v = tl_peek(t, dx);
    tl_array a = v->a;
    tl_tensor out = dx;
    if (!accumulated) {
        out = tl_data_tape(t, NULL, a.dtype, tl_array_shape(&a));
        if (tl_is_none(out))
            return out;
        a = tl_peek(t, out)->a;
    }
    for (int64_t i = 0; i < tl_array_count(&a); i++)
        set_element(&a, i, element(&v->a, i) * factor);
    return out;
}

/* The first of the elements that should have been summed, instead of the sum. */
static tl_tensor first_only(tl_tape *t, tl_tensor dx, const tl_array *x)
{
    tl_array a = tl_peek(t, dx)->a;
    int lead = a.ndim - x->ndim;
    for (int i = 0; i < x->ndim; i++) {
        a.dim[i] = x->dim[i];
        a.stride[i] = a.stride[i + lead];
    }
    a.ndim = x->ndim;
    return tl_tape_value(t, &a, tl_peek(t, dx)->st);
}

void tl_mutate(tl_tape *t, const tl_node *n, tl_tensor *dx, const bool *wants)
{
    const tl_mutation *m = t->mutation;
    int i = m->input;
    if (m->op != n->op || i >= n->n_in || !wants[i] || tl_is_none(dx[i]))
        return;
    const tl_array *x = &tl_peek(t, n->in[i])->a, *d = &tl_peek(t, dx[i])->a;
    bool folded = i < 32 && n->op->folds & TL_BIT(i) && tl_peek(t, dx[i])->st->arena == t->grad_arena;
    switch (m->kind) {
    case TL_MUTATE_SIGN: dx[i] = scaled(t, dx[i], -1, folded); break;
    case TL_MUTATE_FACTOR: dx[i] = scaled(t, dx[i], 1.001, folded); break;
    case TL_MUTATE_DROP: dx[i] = scaled(t, dx[i], 0, folded); break;
    case TL_MUTATE_SWAP: {
        int j = i + 1;
        if (j >= n->n_in || !wants[j] || folded || !tl_array_same_shape(d, &tl_peek(t, dx[j])->a))
            return;
        tl_tensor keep = dx[i];
        dx[i] = dx[j];
        dx[j] = keep;
        break;
    }
    case TL_MUTATE_UNBROADCAST:
        if (folded || tl_array_same_shape(x, d))
            return;
        dx[i] = first_only(t, dx[i], x);
        break;
    default: return;
    }
    ++*m->applied;
}
