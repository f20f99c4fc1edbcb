/* again.c: values that would be kept from forward to backward, computed again there instead.
 *
 * Between its last use in forward and its first in backward a value only takes room. It is computed
 * again if that takes one pass over values that are there anyway and cost.c, asked with the two
 * computations as two users, does not want it kept. A heavy value comes back without its price
 * where the gradient of its op computes the heavy part anyway (tl_op.with_result). remake.c does
 * what is decided here. Source: Chen et al. 2016. */
#include "autograd/graph/fused.h"
#include "autograd/graph/plan.h"
#include "autograd/graph/remake.h"

/* Every value that step i is computed from is there, unchanged, at step `at`: without living longer
 * for it, unless it is small. */
static bool sources_stay(const tl_touches *t, uint32_t i, uint32_t at, size_t bytes)
{
    const tl_graph *g = t->g;
    const tl_plan_step *s = &g->step[i];
    for (int k = 0; k < tl_remake_sources(s); k++) {
        const tl_spot *p = tl_remake_source(g, s, k);
        uint32_t r = p == NULL ? 0 : tl_touches_root(t, p->root, at);
        if (p == NULL)
            continue;
        if (tl_touches_written(t, p->root, i, at)) /* what has been moved is never written */
            return false;
        if (g->roots[r].kind == TL_ROOT_SLAB && 8 * g->roots[r].bytes > bytes &&
            !tl_touches_used(t, r, at))
            return false;
    }
    return true;
}

static bool is_result(const tl_graph *g, uint32_t r)
{
    for (int i = 0; i < g->n_out; i++)
        if (g->out_spot[i].root == r)
            return true;
    for (int i = 0; i < g->tracing->n_watch; i++)
        if (g->watch_spot[i].root == r)
            return true;
    return false;
}

/* The value in result 0 of step i rests long enough, in memory of its own, to be worth a
 * thought; it is used again by step *after. */
static tl_status rests(tl_touches *t, uint32_t i, bool *does, uint32_t *after)
{
    const tl_graph *g = t->g;
    const tl_cost_limits *l = &g->opt.limits;
    const tl_plan_step *s = &g->step[i];
    const tl_node *n = &g->t->node[s->node];
    int64_t bytes = l->again_bytes > 0 ? l->again_bytes : 4096,
            steps = l->again_steps > 0 ? l->again_steps : 16;
    uint32_t before;
    *does = false;
    if (s->n_out == 0 || tl_node_mutates(n) || n->op->traits & TL_RANDOM ||
        n->mode & TL_WATCHED_MODES)
        return TL_OK;
    uint32_t r = s->array[s->n_in].root;
    if (g->roots[r].kind != TL_ROOT_SLAB || (int64_t)g->roots[r].bytes < bytes || is_result(g, r))
        return TL_OK;
    if (!tl_touches_rest(t, r, i, &before, after))
        return tl_remake_no_memory(t->g, s);
    *does = *after - before >= steps && !tl_touches_written(t, r, i, g->n_steps);
    return TL_OK;
}

static tl_cost_question question_of(const tl_plan_step *s, const tl_node *n)
{
    const tl_array *y = s->array[s->n_in].a;
    bool loop = tl_fusable(n);
    tl_cost_question q = {.counts = loop,
                          .heavy = s->fused != NULL ? s->fused->heavy : n->op->traits & TL_HEAVY,
                          .users = 2,
                          .sizes_known = true,
                          .body = s->fused != NULL ? s->fused->n_ops : 1,
                          .written = tl_array_count(y) * (int64_t)tl_dtype_size(y->dtype)};
    for (int k = 0; k < s->n_in; k++)
        if (tl_array_count(s->array[k].a) != 1)
            q.read += tl_array_count(s->array[k].a) * (int64_t)tl_dtype_size(s->array[k].a->dtype);
    return q;
}

/* Step i's value, which rests, is kept or not; the decision is noted. */
static tl_status settle(tl_touches *t, uint32_t i, uint32_t after)
{
    tl_graph *g = t->g;
    const tl_plan_step *s = &g->step[i];
    tl_decision *d = &g->rest[s->node];
    uint32_t roots = g->n_roots;
    d->asked = true;
    d->question = question_of(s, &g->t->node[s->node]);
    d->answer = tl_cost_decide(d->question, g->opt.limits);
    if (!d->answer.keep && !sources_stay(t, i, after, g->roots[s->array[s->n_in].root].bytes))
        d->answer.keep = true, d->answer.rule = "operands are gone";
    if (!d->answer.keep)
        return tl_remake_before(t, i, after);
    TL_TRY(tl_remake_in_gradient(t, i, after));
    if (g->n_roots > roots)
        d->answer.keep = false, d->answer.rule = "its gradient's step";
    return TL_OK;
}

static bool may_be_made_again(const tl_graph *g, const tl_plan_step *s)
{
    const tl_node *n = &g->t->node[s->node];
    bool one_pass = tl_fusable(n) || n->op->traits & (TL_ONE_PASS | TL_ELEMENTWISE);
    return !s->again && n->kernel == NULL && one_pass &&
           g->n_roots + (uint32_t)s->n_out <= g->cap_roots;
}

tl_status tl_plan_again(tl_graph *g)
{
    tl_touches t;
    g->rest = tl_bump_get(&g->bump, (g->t->n_nodes + 1) * sizeof *g->rest);
    if (g->rest == NULL || !tl_touches_begin(&t, g))
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan a graph of %u nodes",
                       g->t->n_nodes);
    for (uint32_t i = 0; i < g->n_steps && !g->opt.limits.never_inline; i++) {
        bool does;
        uint32_t after;
        if (!may_be_made_again(g, &g->step[i]))
            continue;
        TL_TRY(rests(&t, i, &does, &after));
        if (does)
            TL_TRY(settle(&t, i, after));
    }
    return TL_OK;
}
