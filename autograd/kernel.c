/* kernel.c: scopes that select kernels, which kernel they give to a call, and running what computes
 * a call. The table of kernels is in kernels/. */
#include <string.h>

#include "autograd/internal.h"
#include "autograd/pointwise.h"
#include "tensor/isa.h"

/* The tape's record of a selection inside outer, made on demand; NULL when out of memory. */
static const tl_choice *record(tl_tape *t, const char *op, tl_dtype dtype, const char *name,
                               const tl_choice *outer)
{
    for (tl_choice *c = t->choices; c != NULL; c = c->next)
        if (c->outer == outer && c->dtype == dtype && tl_same_text(c->op, op) &&
            tl_same_text(c->name, name))
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
    const tl_choice *c = record(t, op, dtype, name, t->now.choice);
    if (c == NULL)
        tl_tape_fail(at, TL_ENOMEM, "no memory to select a kernel");
    else
        t->now.choice = c;
    return c != NULL;
}

bool tl_choice_follow(tl_tape *dst, const tl_choice *c)
{
    if (c == NULL) {
        dst->now.choice = NULL;
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
    for (int k = 0; k < n_in; k++) {
        const tl_value *v = tl_peek(t, n->in[k]); /* NULL, too, once removed from the model */
        in[k] = v == NULL ? NULL : &v->a;
    }
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

/* ---- running it ---- */

int64_t tl_row_dims(const tl_call *c)
{
    const size_t at = c->op->row_dims;
    return at == 0 ? 1 : *(const int64_t *)(const void *)((const char *)c->attrs + at);
}

static tl_status no_tiles(tl_call *c)
{
    return tl_call_fail(c, TL_EUSAGE, "kernel '%.60s' is a tile, and this op is not pointwise",
                        c->kernel->name);
}

typedef tl_status forward(tl_call *c);

/* What computes the call: the selected kernel, the loop over tiles, or the op's forward, as it is
 * or between conversions of operands that it would not take. */
static forward *way_of(const tl_call *c)
{
    const tl_op *op = c->op;
    const bool tiles = op->traits & TL_POINTWISE;
    if (c->kernel != NULL && c->kernel->run != NULL)
        return c->kernel->run;
    if (tiles || c->kernel != NULL)
        return tiles ? tl_pointwise_run : no_tiles;
    const bool look = !c->plain && op->traits & (TL_WIDENED | TL_ROWS);
    for (int i = 0; look && i < c->n_in + c->n_out; i++) {
        const tl_array *a = i < c->n_in ? c->in[i] : &c->out[i - c->n_in];
        if (a != NULL && !tl_array_plain(a, op->traits & TL_ROWS))
            return tl_widened_run;
    }
    return op->forward;
}

/* tl_parallel_for sets the floating-point environment for the loop over tiles; for other kernels it
 * is set here. */
tl_status tl_op_run(tl_call *c)
{
    forward *way = way_of(c);
    if (tl_arrays_empty(c->out, c->n_out))
        return TL_OK;
    if (way == tl_pointwise_run)
        return way(c);
    tl_storage *scratch = NULL, *next;
    c->scratch = &scratch;
    const tl_fpenv saved = tl_fpenv_enter();
    const tl_status s = way(c);
    tl_fpenv_leave(saved);
    for (; scratch != NULL; scratch = next) {
        next = scratch->next_free;
        tl_storage_release(scratch);
    }
    c->scratch = NULL;
    return s;
}
