/* update.c: the results of an optimizer's update. */
#include "autograd/log/walker.h"

/* Nodes whose results no other node of the update reads, in recorded order: an optimizer
 * goes through parameters by name. */
void tl_log_update_end(tl_tape *t)
{
    tl_run_log *l = tl_log_of(t);
    tl_log_walker w;
    if (l->failure.status != TL_OK)
        return;
    if (!l->of_trace)
        tl_log_take_accumulators(t, false);
    uint32_t mark = l->of_trace ? 0 : l->update_mark > 0 ? l->update_mark - 1 : t->n_nodes;
    l->update_mark = 0;
    uint8_t *read = mark > t->n_nodes ? NULL : tl_bump_get(&t->bump, t->n_nodes - mark + 1);
    if (read == NULL)
        return;
    tl_log_walker_begin(&w, t, mark, (tl_log_key){.pass = TL_KEY_UPDATE});
    for (uint32_t i = mark; i < t->n_nodes; i++)
        for (int k = 0; k < t->node[i].n_in; k++) {
            const tl_tensor x = t->node[i].in[k];
            int32_t p = x.owner == t->values.owner ? tl_peek(t, x)->node : -1;
            if (tl_log_walker_has(&w, (int32_t)i) && tl_log_walker_has(&w, p))
                read[(uint32_t)p - mark] = 1;
        }
    for (uint32_t i = mark; i < t->n_nodes; i++)
        if (tl_log_walker_has(&w, (int32_t)i) && !read[i - mark] && t->node[i].n_out > 0 &&
            t->node[i].n_in > 0) /* a constant that nothing reads is no result */
            tl_log_walker_walk(&w, (tl_tensor){t->values.owner, t->node[i].out, t->generation});
}
