/* totals.c: running totals, such as a loss' sum, which the forward pass of rank after rank adds to.
 */
#include <string.h>

#include "autograd/observer.h"
#include "nn/group/internal.h"

tl_status tl_group_send_total(tl_group *g, int k, const double *x)
{
    return tl_group_send(g, TOTAL, k, x, sizeof *x);
}

tl_status tl_group_receive_total(tl_group *g, int k, double *x)
{
    head h;
    TL_TRY(tl_group_expect(g, &h, TOTAL));
    if (h.n != k || h.bytes != sizeof *x)
        return tl_tape_fail(tl_nowhere(g->t), TL_EUSAGE,
                            "tl_group: rank %d adds to total %d, where rank %d adds to %d",
                            rank_before(g), h.n, g->link.rank, k);
    memcpy(x, g->text, sizeof *x);
    return TL_OK;
}

/* The total that a call adds to; -1. */
static int total_of(const tl_group *g, const tl_seen *c)
{
    const tl_op *op = c->call->op;
    tl_array a;
    if (!g->begun || c->phase != 0 || !(op->traits & TL_MUTATES) || op->mutates >= c->call->n_in ||
        c->call->in[op->mutates] == NULL)
        return -1;
    for (int k = 0; k < g->n_totals; k++)
        if (tl_array_of(g->t, g->total[k], &a) && a.data == c->call->in[op->mutates]->data)
            return k;
    return -1;
}

/* A total comes when it is needed: by then the rank before has most likely sent it. */
static void total_comes(void *ctx, tl_tape *t, const tl_seen *c)
{
    tl_group *g = ctx;
    const int k = total_of(g, c);
    if (k < 0 || tl_failed(t))
        return;
    if (g->added[k]) {
        tl_tape_fail(
            tl_nowhere(t), TL_EUSAGE,
            "tl_group_total: total %d is added to twice in a micro-batch; give each its own", k);
        return;
    }
    g->added[k] = true;
    double *x = c->call->in[c->call->op->mutates]->data;
    if (is_last(g) && g->round > 0)
        tl_group_send_total(g, k, x);
    if (g->link.rank > 0 || g->round > 0)
        tl_group_receive_total(g, k, x);
}

static tl_status total_goes(void *ctx, tl_tape *t, const tl_seen *c)
{
    tl_group *g = ctx;
    const int k = total_of(g, c);
    return k < 0 || is_last(g) || tl_failed(t) ? tl_error_status(t)
                                               : tl_group_send_total(g, k, c->call->out[0].data);
}

static const tl_observer watches_totals = {.runs = total_comes, .ran = total_goes};

tl_status tl_group_total(tl_group *g, tl_tensor total)
{
    tl_array a;
    if (g == NULL || g->link.size == 1)
        return TL_OK;
    TL_TRY(tl_error_status(g->t));
    if (g->n_totals == TOTALS || !tl_array_of(g->t, total, &a) || a.dtype != TL_F64 || a.ndim != 0)
        return tl_tape_fail(tl_nowhere(g->t), TL_EUSAGE,
                            "tl_group_total: at most %d, 0-d f64 of the model", TOTALS);
    g->total[g->n_totals++] = total;
    return tl_observed(g->t, &watches_totals) != NULL ? TL_OK
                                                      : tl_observe(g->t, &watches_totals, g);
}

void tl_group_unwatch(tl_group *g) { tl_observe_end(g->t, &watches_totals); }
