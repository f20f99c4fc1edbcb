/* later.c: what a traced backward puts off (.put_off). A run leaves it waiting on the user's tape,
 * as a called backward does; tl_accumulate then runs the steps of one parameter.
 *
 * They stand behind all other steps, and come in whatever order tl_accumulate is called: what they
 * read keeps its place in the slab for good, and inputs are copied. Accumulators are bound only
 * then, with what other tapes may have put there. Nothing runs the graph again meanwhile: a graph
 * with gradients refuses to run while any wait. */
#include "autograd/graph/internal.h"

/* The record of the user's gradient that the step adds to; -1. */
static int64_t record_of(const tl_graph *g, const tl_plan_step *s)
{
    int64_t at = -1;
    for (int k = 0; k < s->n_in + s->n_out && at < 0; k++)
        if (s->array[k].written && tl_bind_theirs(g, &g->roots[s->array[k].root]))
            at = g->roots[s->array[k].root].at;
    return at;
}

static tl_status crosses(tl_graph *g, const tl_plan_step *later, const tl_plan_step *now)
{
    const tl_node *n = &g->t->node[now->node];
    return tl_tape_fail((tl_at){g->user, n->file, n->line, NULL}, TL_ETRACED,
                        "%s changes what the gradient by %s reads, which .put_off leaves until "
                        "after the run; call this part of the program",
                        n->op->name, g->t->node[later->node].op->name);
}

tl_status tl_later_order(tl_graph *g)
{
    uint32_t n = 0, n_later = 0;
    g->n_now = g->n_steps;
    if (!g->tracing->put_off)
        return TL_OK;
    tl_plan_step *later = tl_bump_get(&g->bump, (g->n_steps + 1) * sizeof *later);
    if (later == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to put off %u steps", g->n_steps);
    for (uint32_t i = 0; i < g->n_steps; i++) {
        if (record_of(g, &g->step[i]) >= 0) {
            later[n_later++] = g->step[i];
            continue;
        }
        for (uint32_t k = 0; k < n_later; k++)
            if (!tl_steps_may_swap(&later[k], &g->step[i]))
                return crosses(g, &later[k], &g->step[i]);
        g->step[n++] = g->step[i];
    }
    g->n_now = n;
    for (uint32_t k = 0; k < n_later; k++)
        g->step[n + k] = later[k];
    return TL_OK;
}

void tl_later_mark(tl_graph *g)
{
    for (uint32_t i = g->n_now; i < g->n_steps; i++)
        for (int k = 0; k < g->step[i].n_in + g->step[i].n_out; k++) {
            tl_root *r = &g->roots[g->step[i].array[k].root];
            r->later = true;
            r->last = g->n_steps;
        }
}

typedef struct {
    tl_fold f;
    tl_graph *g; /* NULL: it has been freed */
    int later;   /* g->later of that run */
    int64_t record;
} waiting;

/* Memory that others may change between the run and tl_accumulate. */
static tl_storage *shared(tl_graph *g, const tl_root *r)
{
    const bool is = r->later && (r->kind == TL_ROOT_MODEL || r->kind == TL_ROOT_OUTPUT ||
                                 r->kind == TL_ROOT_DERIVED);
    return is ? tl_graph_storage(g, r) : NULL;
}

static tl_status unchanged(tl_graph *g, const tl_plan_step *s)
{
    tl_changer by;
    char text[TL_CHANGER_TEXT];
    const tl_node *n = &g->t->node[s->node];
    for (int k = 0; k < s->n_in; k++) {
        const tl_root *r = &g->roots[s->array[k].root];
        const tl_storage *st = shared(g, r);
        if (st != NULL && tl_storage_changed(st, r->since, s->array[k].a, &by))
            return tl_tape_fail((tl_at){g->user, n->file, n->line, NULL}, TL_EINPLACE,
                                "tl_accumulate: input %d of %s was changed meanwhile by %s", k,
                                n->op->name, tl_changer_text(text, by));
    }
    return TL_OK;
}

static tl_status fold(tl_tape *t, tl_fold *f)
{
    const waiting *w = (const waiting *)f;
    tl_graph *g = w->g;
    if (g == NULL)
        return tl_tape_fail(TL_AT(t), TL_ESTALE,
                            "tl_accumulate: the graph whose run put this off has been freed");
    g->later = w->later;
    for (uint32_t i = g->n_now; i < g->n_steps; i++)
        if (record_of(g, &g->step[i]) == w->record)
            TL_TRY(unchanged(g, &g->step[i]));
    for (tl_root *r = g->outside; r != NULL; r = r->next)
        if (r->later && r->at == w->record && tl_bind_theirs(g, r))
            TL_TRY(tl_bind_accumulator(g, r));
    for (uint32_t i = g->n_now; i < g->n_steps; i++)
        if (record_of(g, &g->step[i]) == w->record)
            TL_TRY(tl_graph_run_step(g, i));
    for (const tl_root *r = g->outside; r != NULL; r = r->next)
        if (r->later && r->at == w->record && tl_bind_theirs(g, r))
            tl_bind_accumulated(g, r)->version++;
    return TL_OK;
}

tl_status tl_later_wait(tl_graph *g)
{
    tl_tape *u = g->user;
    for (tl_root *r = g->outside; g->n_now < g->n_steps && r != NULL; r = r->next) {
        const tl_storage *st = shared(g, r);
        r->since = st == NULL ? 0 : st->version;
    }
    for (int64_t i = 0; g->n_now < g->n_steps && i < g->t->n_grads; i++) {
        bool any = false;
        for (uint32_t k = g->n_now; k < g->n_steps && !any; k++)
            any = record_of(g, &g->step[k]) == i;
        tl_leaf_grad *theirs = any ? tl_leaf_grad_find(u, g->t->grad[i].leaf) : NULL;
        if (theirs == NULL)
            continue;
        waiting *w = tl_bump_get(&u->bump, sizeof *w);
        if (w == NULL)
            return tl_fail(&u->head.err, TL_ENOMEM, "tl_run: no memory to put a gradient off");
        *w = (waiting){{.run = fold, .later = theirs->waiting}, g, g->later, i};
        theirs->waiting = &w->f;
        u->waiting++;
    }
    return TL_OK;
}

void tl_later_forget(tl_graph *g)
{
    for (int i = 0; i < g->user->n_grads; i++)
        for (tl_fold *f = g->user->grad[i].waiting; f != NULL; f = f->later)
            if (f->run == fold && ((waiting *)f)->g == g)
                ((waiting *)f)->g = NULL;
}
