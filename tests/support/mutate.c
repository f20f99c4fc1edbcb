/* mutate.c: an observer that damages what one op's vjp gives, before the engine un-broadcasts it.
 */
#include <string.h>

#include "autograd/internal.h"
#include "tests/support/mutate.h"

/* A copy of dx with every element times factor. */
static tl_tensor scaled(tl_tape *t, tl_tensor dx, double factor)
{
    const tl_array from = tl_peek(t, dx)->a;
    tl_tensor out = tl_zeros(t, from.dtype, tl_array_shape(&from));
    if (tl_is_none(out))
        return out;
    const tl_array *a = &tl_peek(t, out)->a;
    for (int64_t i = 0; i < tl_array_count(a); i++)
        tl_array_put(a, i, tl_array_get(&from, i) * factor);
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
    return tl_handle(tl_tape_value(t, &a, tl_peek(t, dx)->st));
}

static bool same_bits(tl_tape *t, tl_tensor x, tl_tensor y)
{
    const tl_array *a = &tl_peek(t, x)->a, *b = &tl_peek(t, y)->a;
    for (int64_t i = 0; i < tl_array_count(a); i++)
        if (memcmp(tl_array_at(a, i), tl_array_at(b, i), tl_dtype_size(a->dtype)) != 0)
            return false;
    return true;
}

/* All elements of an accumulator times factor; false if that changes nothing. */
static bool scale_in_place(tl_tape *t, tl_tensor dx, double factor)
{
    const tl_array *a = &tl_peek(t, dx)->a;
    bool changed = false;
    for (int64_t i = 0; i < tl_array_count(a); i++) {
        double x = tl_array_get(a, i);
        tl_array_put(a, i, x * factor);
        changed |= x != 0;
    }
    return changed;
}

/* What the mutation makes of dx[i]; TL_NONE where there is nothing to damage so. */
static tl_tensor damaged(tl_tape *t, const tl_mutation *m, const tl_array *x, tl_tensor *dx,
                         const bool *wants, int n_in)
{
    int i = m->input, j = i + 1;
    switch (m->kind) {
    case TL_MUTATE_SIGN: return scaled(t, dx[i], -1);
    case TL_MUTATE_FACTOR: return scaled(t, dx[i], 1.001);
    case TL_MUTATE_DROP: return scaled(t, dx[i], 0);
    case TL_MUTATE_SWAP:
        if (j < n_in && wants[j] && !tl_is_none(dx[j]) &&
            tl_peek(t, dx[j])->a.dtype == tl_peek(t, dx[i])->a.dtype &&
            tl_array_same_shape(&tl_peek(t, dx[i])->a, &tl_peek(t, dx[j])->a))
            return dx[j];
        return TL_NONE;
    default:
        return tl_array_same_shape(x, &tl_peek(t, dx[i])->a) ? TL_NONE : first_only(t, dx[i], x);
    }
}

static void mutate(void *ctx, tl_tape *t, const tl_given *g)
{
    tl_mutation *m = ctx;
    int i = m->input;
    tl_tensor *dx = g->dx;
    if (m->op != g->op || i >= g->n_in || !g->wants[i] || tl_is_none(dx[i]))
        return;
    if (tl_peek(t, dx[i])->st->arena ==
        t->grad_arena) { /* a continued accumulator, fresh in a check */
        double factor = m->kind == TL_MUTATE_SIGN ? -1 : m->kind == TL_MUTATE_FACTOR ? 1.001 : 0;
        if (m->kind <= TL_MUTATE_DROP)
            m->applied += scale_in_place(t, dx[i], factor);
        return;
    }
    tl_tensor bad = damaged(t, m, &tl_peek(t, g->in[i])->a, dx, g->wants, g->n_in);
    if (tl_is_none(bad))
        return;
    bool shapes = tl_array_same_shape(&tl_peek(t, bad)->a, &tl_peek(t, dx[i])->a);
    if (shapes && same_bits(t, bad, dx[i])) {
        m->equal++;
        return;
    }
    if (m->kind == TL_MUTATE_SWAP)
        dx[i + 1] = dx[i];
    dx[i] = bad;
    m->applied++;
}

const tl_observer tl_mutator = {.follows = true, .gave = mutate};
