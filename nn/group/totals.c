/* totals.c: running totals, such as the sum of a loss. The forward passes of the ranks add to them
 * one after the other. */
#include "autograd/observer.h"
#include "nn/group/internal.h"

/* The total that a call adds to; -1: none. */
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

static tl_status check_same(tl_group *g, int came, int k)
{
    return came == k ? TL_OK
                     : tl_group_fail(g, TL_EUSAGE,
                                     "tl_group: rank %d adds to total %d, where rank %d adds to %d",
                                     rank_before(g), came, g->link.rank, k);
}

/* Receives a total when it is needed: by then the rank before has most likely sent it. */
static void runs(void *ctx, tl_tape *t, const tl_seen *c)
{
    tl_group *g = ctx;
    int k = total_of(g, c), came = k;
    if (k < 0 || tl_failed(t))
        return;
    if (g->added[k]) {
        tl_group_fail(g, TL_EUSAGE,
                      "tl_group_total: total %d is added to twice in a micro-batch; give each its "
                      "own",
                      k);
        return;
    }
    g->added[k] = true;
    double *x = c->call->in[c->call->op->mutates]->data, before;
    if (is_last(g) && g->round > 0 && /* the first rank goes on from there */
        tl_group_send(g, TOTAL, k, x, sizeof *x) != TL_OK)
        return;
    if ((g->link.rank > 0 || g->round > 0) &&
        tl_group_receive_number(g, TOTAL, &came, &before) == TL_OK &&
        check_same(g, came, k) == TL_OK)
        *x = before;
}

static tl_status ran(void *ctx, tl_tape *t, const tl_seen *c)
{
    tl_group *g = ctx;
    const int k = total_of(g, c);
    if (k < 0 || is_last(g) || tl_failed(t))
        return tl_error_status(t);
    return tl_group_send(g, TOTAL, k, c->call->out[0].data, sizeof(double));
}

static const tl_observer watches_totals = {.runs = runs, .ran = ran};

tl_status tl_group_total(tl_group *g, tl_tensor total)
{
    tl_array a;
    if (g == NULL || g->link.size == 1)
        return TL_OK;
    TL_TRY(tl_group_begins(g));
    if (g->n_totals == TOTALS || !tl_array_of(g->t, total, &a) || a.dtype != TL_F64 || a.ndim != 0)
        return tl_group_fail(g, TL_EUSAGE, "tl_group_total: at most %d, 0-d f64 of the model",
                             TOTALS);
    g->total[g->n_totals++] = total;
    return tl_observed(g->t, &watches_totals) != NULL ? TL_OK
                                                      : tl_observe(g->t, &watches_totals, g);
}

void tl_group_unwatch_totals(tl_group *g) { tl_observe_end(g->t, &watches_totals); }

tl_status tl_group_share_totals(tl_group *g)
{
    for (int k = 0; k < g->n_totals; k++) {
        double x = is_last(g) ? tl_item(g->t, g->total[k]) : 0;
        int came = k;
        TL_TRY(tl_group_round(g, TOTAL, &came, &x));
        TL_TRY(check_same(g, came, k));
        if (!is_last(g) && tl_write(tl_tape_model(g->t), g->total[k], &x, sizeof x) != TL_OK)
            return tl_error_status(g->t);
    }
    return TL_OK;
}
