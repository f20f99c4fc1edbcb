/* kernel.c: scopes that select kernels, and which kernel they give to a call. The table of kernels
 * is in kernels/. */
#include <string.h>

#include "autograd/internal.h"

static bool same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* The tape's record of a selection inside outer, made on demand; NULL when out of memory. */
static const tl_choice *record(tl_tape *t, const char *op, tl_dtype dtype, const char *name,
                               const tl_choice *outer)
{
    for (tl_choice *c = t->choices; c != NULL; c = c->next)
        if (c->outer == outer && c->dtype == dtype && same(c->op, op) && same(c->name, name))
            return c;
    tl_choice *c = tl_calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    *c = (tl_choice){op, name, dtype, outer, t->choices};
    t->choices = c;
    return c;
}

void tl_choices_free(tl_tape *t)
{
    while (t->choices != NULL) {
        tl_choice *c = t->choices;
        t->choices = c->next;
        tl_free_raw(c);
    }
}

bool tl_choice_open(tl_at at, const char *op, tl_dtype dtype, const char *name)
{
    tl_tape *t = at.tape;
    const tl_choice *c = record(t, op, dtype, name, t->choice);
    if (c == NULL)
        tl_tape_fail(at, TL_ENOMEM, "no memory to select a kernel");
    else
        t->choice = c;
    return c != NULL;
}

bool tl_choice_follow(tl_tape *dst, const tl_choice *c)
{
    if (c == NULL) {
        dst->choice = NULL;
        return true;
    }
    return tl_choice_follow(dst, c->outer) &&
           tl_choice_open((tl_at){dst, __FILE__, __LINE__, NULL}, c->op, c->dtype, c->name);
}

/* The dtype of the first floating input, else of the first input, else of the output. */
static tl_dtype call_dtype(const tl_call *c)
{
    int first = -1;
    for (int i = 0; i < c->n_in; i++) {
        if (c->in[i] == NULL)
            continue;
        if (tl_dtype_is_float(c->in[i]->dtype))
            return c->in[i]->dtype;
        first = first < 0 ? i : first;
    }
    return first < 0 ? c->out[0].dtype : c->in[first]->dtype;
}

tl_dtype tl_node_dtype(const tl_tape *t, const tl_node *n)
{
    const tl_array *in[TL_TILE_MAX_IN], *out = &tl_values_at(&t->values, n->out)->a;
    int n_in = n->n_in < TL_TILE_MAX_IN ? n->n_in : TL_TILE_MAX_IN;
    for (int k = 0; k < n_in; k++)
        in[k] = tl_is_none(n->in[k]) ? NULL : &tl_peek(t, n->in[k])->a;
    tl_array first = *out;
    return call_dtype(&(tl_call){.n_in = n_in, .in = in, .out = &first});
}

/* The innermost scope that covers the call decides. If its kernel does not fit, the op's own runs.
 */
const tl_kernel *tl_kernel_for(const tl_choice *c, const tl_call *call)
{
    tl_dtype dtype = c == NULL ? TL_ANY_DTYPE : call_dtype(call);
    for (; c != NULL; c = c->outer) {
        if ((c->op != NULL && strcmp(c->op, call->op->name) != 0) ||
            (c->dtype != TL_ANY_DTYPE && c->dtype != dtype))
            continue;
        if (strcmp(c->name, "invariant") == 0)
            return NULL;
        const tl_kernel *k = tl_kernel_find(call->op->name, dtype, c->name);
        if (k != NULL)
            return k->fits == NULL || k->fits(call) ? k : NULL;
    }
    return NULL;
}
