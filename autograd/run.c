/* run.c: runs a call: tells observers, and computes it by the kernel that was selected for it
 * (kernels/table.c) or the op's own, as it is or in the loops of compute.c. */
#include <string.h>

#include "autograd/internal.h"
#include "autograd/pointwise.h"
#include "tensor/operands.h"

/* ---- observers ---- */

/* The next observer from number *i on, the shipped ones first, that hears of calls like c; *ctx:
 * its context. NULL: no more. n: how many were attached when the event began. */
static const tl_observer *next(const tl_tape *t, int n, int *i, const tl_call *c, void **ctx)
{
    int shipped = 0;
    while (tl_observers_shipped[shipped] != NULL)
        shipped++;
    for (int k; (k = (*i)++) < shipped + n;) {
        const tl_observer *o = k < shipped ? tl_observers_shipped[k] : t->watcher[k - shipped].o;
        *ctx = k < shipped ? NULL : t->watcher[k - shipped].ctx;
        if (o->mode == 0 || o->mode & c->mode)
            return o;
    }
    return NULL;
}

/* An observer may refuse without saying so on the tape; then this does. */
tl_status tl_tell(tl_tape *t, const tl_seen *s, bool ran)
{
    const tl_observer *o;
    tl_status status = TL_OK;
    void *ctx;
    const int n = t->n_watchers;
    t->telling++;
    for (int i = 0; status == TL_OK && (o = next(t, n, &i, s->call, &ctx)) != NULL;) {
        if ((ran ? o->ran : o->records) != NULL)
            status = (ran ? o->ran : o->records)(ctx, t, s);
        status = status == TL_OK ? tl_error_status(t) : status;
    }
    t->telling--;
    return status == TL_OK
               ? TL_OK
               : tl_tape_fail((tl_at){t, s->file, s->line, s->by}, status,
                              "%s: an observer refuses it and does not say why", s->call->op->name);
}

void tl_tell_runs(tl_tape *t, const tl_seen *s)
{
    const tl_observer *o;
    void *ctx;
    const int n = t->n_watchers;
    t->telling++;
    for (int i = 0; (o = next(t, n, &i, s->call, &ctx)) != NULL;)
        if (o->runs != NULL)
            o->runs(ctx, t, s);
    t->telling--;
}

tl_status tl_tell_recorded(tl_tape *t)
{
    const int n = t->n_watchers;
    t->telling++;
    for (int i = 0; i < n; i++)
        if (t->watcher[i].o->recorded != NULL)
            t->watcher[i].o->recorded(t->watcher[i].ctx, t, t->n_nodes - 1);
    t->telling--;
    return n > 0 ? tl_error_status(t) : TL_OK;
}

/* ---- what computes a call ---- */

static tl_status no_tiles(tl_call *c)
{
    return tl_call_fail(c, TL_EUSAGE, "kernel '%.60s' is a tile, and this op is not pointwise",
                        c->kernel->name);
}

typedef tl_status forward(tl_call *c);
static forward run_apart;

/* What computes the call: the selected kernel, the loop over tiles, or the op's forward, as it is
 * or between conversions of operands that it does not take. */
static forward *way_of(const tl_call *c)
{
    const tl_op *op = c->op;
    const tl_array *operand = op->traits & TL_MUTATES ? c->in[op->mutates] : NULL;
    const bool tiles = op->traits & TL_POINTWISE;
    if (operand != NULL && operand->data != c->out[0].data)
        return run_apart;
    const bool runs = c->kernel != NULL && c->kernel->run != NULL;
    if (!runs && (tiles || c->kernel != NULL))
        return tiles ? tl_pointwise_run : no_tiles;
    const bool look = !c->plain && op->traits & (TL_WIDENED | TL_ROWS);
    for (int i = 0; look && i < c->n_in + c->n_out; i++) {
        const tl_array *a = i < c->n_in ? c->in[i] : &c->out[i - c->n_in];
        if (a != NULL && !tl_array_plain(a, op->traits & TL_ROWS))
            return tl_widened_run;
    }
    return runs ? c->kernel->run : op->forward;
}

/* Changes a copy of the operand, which is output 0. */
static tl_status run_apart(tl_call *c)
{
    const tl_array **in = tl_scratch(c, (size_t)c->n_in * sizeof *in, false);
    tl_call on_copy = *c;
    if (in == NULL)
        return TL_ENOMEM;
    memcpy(in, c->in, (size_t)c->n_in * sizeof *in);
    tl_array_copy(&c->out[0], c->in[c->op->mutates]);
    in[c->op->mutates] = &c->out[0];
    on_copy.in = in;
    return way_of(&on_copy)(&on_copy);
}

/* The floating-point environment is set here; for a loop over tiles, by tl_parallel_for. */
tl_status tl_op_run(tl_call *c)
{
    forward *way = way_of(c);
    if (tl_arrays_empty(c->out, c->n_out) && !(c->op->traits & TL_LOOKUP))
        return TL_OK;
    if (way == tl_pointwise_run)
        return way(c);
    tl_storage *scratch = NULL, *next;
    c->scratch = &scratch;
    const tl_fpenv saved = tl_fpenv_enter();
    tl_status s = way(c);
    tl_fpenv_leave(saved);
    s = s == TL_OK ? c->err->status : s;
    if (s != TL_OK && c->err->message[0] == '\0')
        s = tl_fail(c->err, s, "%s: %.60s failed and does not say why (tl_call_fail)", c->op->name,
                    c->kernel == NULL ? "its forward" : c->kernel->name);
    for (; scratch != NULL; scratch = next) {
        next = scratch->next_free;
        tl_storage_release(scratch);
    }
    c->scratch = NULL;
    return s;
}
