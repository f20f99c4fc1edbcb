/* accumulators.c: what micro-batches have left, taken out and put back between two of them. */
#include <string.h>

#include "autograd/uses.h"

/* The i-th parameter that has a gradient, or NULL. */
static const tl_leaf_grad *nth(const tl_tape *t, int i)
{
    for (int k = 0; t != NULL && t->model != NULL && k < t->n_grads; k++)
        if (t->grad[k].live && t->grad[k].leaf.owner == t->model->values.owner && i-- == 0)
            return &t->grad[k];
    return NULL;
}

int tl_accumulating_count(const tl_tape *t)
{
    int n = 0;
    while (nth(t, n) != NULL)
        n++;
    return n;
}

tl_accumulating tl_accumulating_at(const tl_tape *t, int i)
{
    const tl_leaf_grad *g = i < 0 ? NULL : nth(t, i);
    return g == NULL ? (tl_accumulating){NULL, 0}
                     : (tl_accumulating){tl_leaf_name(t, g->leaf), g->n_uses};
}

bool tl_accumulator(const tl_tape *t, const char *param, int use, tl_array *out)
{
    const tl_leaf_grad *g = NULL;
    for (int i = 0; (g = nth(t, i)) != NULL; i++)
        if (strcmp(tl_leaf_name(t, g->leaf), param) == 0)
            break;
    if (g == NULL || use < 0 || use >= g->n_uses || !g->use[use].open)
        return false;
    *out = g->use[use].acc;
    return true;
}

tl_status tl_accumulator_open(tl_tape *t, const char *param, int uses, int use, tl_dtype dtype,
                              tl_array *out)
{
    tl_tensor leaf = t == NULL ? TL_NONE : tl_model_find(t->model, param);
    if (t == NULL)
        return TL_ENOMEM;
    if (tl_is_none(leaf) || !tl_model_value(t->model, leaf)->needs_grad)
        return tl_tape_fail(TL_AT(t), TL_ENAME, "'%.100s' is no parameter that is trained", param);
    if (uses < 0 || use < -1 || use >= uses)
        return tl_tape_fail(TL_AT(t), TL_EUSAGE, "use %d of %d of '%.100s'", use, uses, param);
    tl_leaf_grad *g = tl_leaf_grad_get(t, leaf);
    if (g == NULL || tl_uses_reserve(t, g, uses) != TL_OK)
        return tl_tape_fail(TL_AT(t), TL_ENOMEM, "no memory for %d accumulators of '%.100s'", uses,
                            param);
    if (use >= 0)
        TL_TRY(tl_use_open(t, g, use, dtype));
    if (use >= 0)
        *out = g->use[use].acc;
    g->n_uses = uses;
    g->live = true;
    return TL_OK;
}
