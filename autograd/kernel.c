/* kernel.c: running what computes a call. Which kernel that is, is in kernels/. */
#include "autograd/internal.h"
#include "autograd/pointwise.h"

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
