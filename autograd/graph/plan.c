/* plan.c: a graph made ready to run - steps, what is computed again, the slab, and every array's
 * place. */
#include "autograd/graph/plan.h"

static tl_status place_results(tl_graph *g)
{
    size_t n_watch = (size_t)g->tracing->n_watch;
    g->out_array = tl_bump_get(&g->bump, (size_t)(g->n_out + 1) * sizeof *g->out_array);
    g->out_spot = tl_bump_get(&g->bump, (size_t)(g->n_out + 1) * sizeof *g->out_spot);
    g->watch_array = tl_bump_get(&g->bump, (n_watch + 1) * sizeof *g->watch_array);
    g->watch_spot = tl_bump_get(&g->bump, (n_watch + 1) * sizeof *g->watch_spot);
    if (g->out_array == NULL || g->out_spot == NULL || g->watch_array == NULL ||
        g->watch_spot == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan a graph");
    for (int i = 0; i < g->n_out; i++)
        TL_TRY(tl_plan_spot(g, &g->out_spot[i], &g->out_array[i], g->out[i], false));
    for (int i = 0; i < g->tracing->n_watch; i++)
        TL_TRY(
            tl_plan_spot(g, &g->watch_spot[i], &g->watch_array[i], g->tracing->watch[i].x, false));
    return TL_OK;
}

static void link_spot(tl_graph *g, tl_spot *p)
{
    p->next = g->roots[p->root].spots;
    g->roots[p->root].spots = p;
}

/* Every array gets its data in the slab, or is listed with the root that it will have it from. */
static void link_spots(tl_graph *g)
{
    for (uint32_t i = 0; i < g->n_steps; i++)
        for (int k = 0; k < g->step[i].n_in + g->step[i].n_out; k++)
            link_spot(g, &g->step[i].array[k]);
    for (int i = 0; i < g->n_out; i++)
        link_spot(g, &g->out_spot[i]);
    for (int i = 0; i < g->tracing->n_watch; i++)
        link_spot(g, &g->watch_spot[i]);
    for (uint32_t i = 0; i < g->n_roots; i++) {
        uint32_t place = i;
        if (g->roots[i].kind != TL_ROOT_SLAB)
            continue;
        while (g->roots[place].place != place)
            place = g->roots[place].place;
        g->roots[i].base = (char *)g->slab->data + g->roots[place].offset;
        for (const tl_spot *p = g->roots[i].spots; p != NULL; p = p->next)
            p->a->data = g->roots[i].base + p->offset;
    }
}

tl_status tl_graph_plan(tl_graph *g)
{
    TL_TRY(tl_plan_steps(g));
    TL_TRY(place_results(g));
    tl_plan_hoist_folds(g);
    TL_TRY(tl_plan_again(g));
    TL_TRY(tl_plan_slab(g));
    link_spots(g);
    g->stats.nodes = (int)g->t->n_nodes;
    g->stats.needed = (int)g->n_order;
    g->stats.steps = (int)g->n_steps;
    return TL_OK;
}
