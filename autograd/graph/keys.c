/* keys.c: a graph that can be logged - which of its values is which result of the called program.
 *
 * Forward results are numbered while the program is as it was called (trace.c), and a value keeps
 * its key over replacements and rebuilding; those of backward are numbered when that is recorded op
 * by op, those of the update at the end. What a replacement puts in the place of several ops has
 * the key of the value that it gives, which has the same bytes; what is inside it, and what its own
 * vjp gives, has none. */
#include "autograd/graph/internal.h"
#include "autograd/log/internal.h"

tl_status tl_graph_keys_begin(tl_graph *g)
{
    if (tl_log_of(g->user) == NULL)
        return TL_OK;
    return tl_log_of_trace(g->t) == TL_OK
               ? TL_OK
               : tl_fail(&g->head.err, TL_ENOMEM, "no memory to log a graph");
}

void tl_graph_keys_forward(tl_graph *g)
{
    tl_run_log *l = tl_log_of(g->t);
    if (l == NULL)
        return;
    for (uint32_t i = 0; i < g->t->n_nodes; i++)
        if (g->t->node[i].op == &tl_op_mark_backward)
            tl_log_number_forward(g->t, g->t->node[i].in[0]);
    l->now = -1; /* backward counts its passes again */
}

tl_status tl_graph_keys_end(tl_graph *g)
{
    tl_run_log *l = tl_log_of(g->t);
    if (l == NULL)
        return TL_OK;
    if (l->updates > 1)
        tl_log_stop(l, TL_EUSAGE,
                    "a graph of %d optimizer steps cannot be logged, only of one or none",
                    l->updates);
    tl_log_keys_in(g->t, -1);
    tl_log_update_end(g->t);
    tl_log_keys_out(g->t);
    g->pass = tl_bump_get(&g->bump, ((size_t)l->n_passes + 1) * sizeof *g->pass);
    return g->pass != NULL ? TL_OK : tl_fail(&g->head.err, TL_ENOMEM, "no memory to log a graph");
}

bool tl_graph_keys_missing(const tl_graph *g)
{
    return tl_log_of(g->user) != NULL && tl_log_of(g->t) == NULL && g->tracing->has_backward;
}
