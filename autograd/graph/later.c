/* later.c: what a traced backward puts off (.put_off). A run leaves it waiting on the user's tape,
 * as a called backward does; tl_accumulate then runs the steps of one parameter.
 *
 * They stand behind all other steps, and come in whatever order tl_accumulate is called, from the
 * place on at which the last of the parameter's stood: what they read keeps its place in the slab
 * for good, and inputs are copied. Accumulators are bound only then, with what other tapes may have
 * put there. Nothing runs the graph again meanwhile: a graph with gradients refuses to run while
 * any wait. */
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

/* The step changes the model: a total, statistics of a norm. Who folds beside the run has seen all
 * of that before. */
static bool changes_model(const tl_graph *g, const tl_plan_step *s)
{
    for (int k = 0; k < s->n_in + s->n_out; k++)
        if (s->array[k].written && g->roots[s->array[k].root].kind == TL_ROOT_MODEL)
            return true;
    return false;
}

/* A parameter whose steps wait, ... */
typedef struct tl_later {
    int64_t record;
    uint32_t from; /* ... until so many others have run */
} tl_later;

/* The parameters, as they are complete: the last of a parameter's steps tells. */
static void list_folds(tl_graph *g, const uint32_t *from, uint32_t least)
{
    uint32_t n = 0;
    for (uint32_t k = g->n_steps; k-- > g->n_now;) {
        const int64_t record = g->step[k].record;
        uint32_t i = 0;
        while (i < n && g->fold[i].record != record)
            i++;
        const uint32_t at = from[k - g->n_now];
        if (i == n)
            g->fold[n++] = (tl_later){record, at > least ? at : least};
    }
    g->n_folds = n;
    for (uint32_t i = 0; i < n / 2; i++) {
        const tl_later last = g->fold[n - 1 - i];
        g->fold[n - 1 - i] = g->fold[i];
        g->fold[i] = last;
    }
}

tl_status tl_later_order(tl_graph *g)
{
    uint32_t n = 0, n_later = 0, changed = 0;
    g->n_now = g->n_steps;
    if (!g->tracing->put_off)
        return TL_OK;
    tl_plan_step *later = tl_bump_get(&g->bump, (g->n_steps + 1) * sizeof *later);
    uint32_t *from = tl_bump_get(&g->bump, (g->n_steps + 1) * sizeof *from);
    g->fold = tl_bump_get(&g->bump, ((size_t)g->t->n_grads + 1) * sizeof *g->fold);
    if (later == NULL || from == NULL || g->fold == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to put off %u steps", g->n_steps);
    for (uint32_t i = 0; i < g->n_steps; i++) {
        if (record_of(g, &g->step[i]) >= 0) {
            from[n_later] = n;
            later[n_later] = g->step[i];
            later[n_later++].record = record_of(g, &g->step[i]);
            continue;
        }
        for (uint32_t k = 0; k < n_later; k++)
            if (!tl_steps_may_swap(&later[k], &g->step[i]))
                return crosses(g, &later[k], &g->step[i]);
        g->step[n++] = g->step[i];
        changed = changes_model(g, &g->step[i]) ? n : changed;
    }
    g->n_now = n;
    for (uint32_t k = 0; k < n_later; k++)
        g->step[n + k] = later[k];
    list_folds(g, from, changed);
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
        if (g->step[i].record == w->record)
            TL_TRY(unchanged(g, &g->step[i]));
    for (tl_root *r = g->outside; r != NULL; r = r->next)
        if (r->later && r->at == w->record && tl_bind_theirs(g, r))
            TL_TRY(tl_bind_accumulator(g, r));
    for (uint32_t i = g->n_now; i < g->n_steps; i++)
        if (g->step[i].record == w->record)
            TL_TRY(tl_graph_run_step(g, i));
    for (const tl_root *r = g->outside; r != NULL; r = r->next)
        if (r->later && r->at == w->record && tl_bind_theirs(g, r))
            tl_bind_accumulated(g, r)->version++;
    return TL_OK;
}

/* What a parameter's steps read of memory that others may change is as it is now. */
static void note_versions(tl_graph *g, int64_t record)
{
    for (uint32_t i = g->n_now; i < g->n_steps; i++)
        for (int k = 0; g->step[i].record == record && k < g->step[i].n_in; k++) {
            tl_root *r = &g->roots[g->step[i].array[k].root];
            const tl_storage *st = shared(g, r);
            r->since = st == NULL ? 0 : st->version;
        }
}

static tl_status wait_for(tl_graph *g, int64_t record)
{
    tl_tape *u = g->user;
    tl_leaf_grad *theirs = tl_leaf_grad_find(u, g->t->grad[record].leaf);
    if (theirs == NULL)
        return TL_OK;
    waiting *w = tl_bump_get(&u->bump, sizeof *w);
    if (w == NULL)
        return tl_fail(&u->head.err, TL_ENOMEM, "tl_run: no memory to put a gradient off");
    *w = (waiting){{.run = fold, .later = theirs->waiting}, g, g->later, record};
    theirs->waiting = &w->f;
    u->waiting++;
    note_versions(g, record);
    const char *param = u->n_watchers > 0 ? tl_leaf_grad_name(u, theirs) : NULL;
    if (param != NULL)
        TL_TELL(u, put_off, u, param);
    return u->head.err.status;
}

tl_status tl_later_wait(tl_graph *g, uint32_t n)
{
    for (; g->n_waiting < g->n_folds && g->fold[g->n_waiting].from <= n; g->n_waiting++)
        TL_TRY(wait_for(g, g->fold[g->n_waiting].record));
    return TL_OK;
}

tl_status tl_later_over(tl_graph *g)
{
    for (tl_root *r = g->outside; g->n_now < g->n_steps && r != NULL; r = r->next) {
        const tl_storage *st = shared(g, r);
        r->since = st == NULL ? 0 : st->version;
    }
    return tl_later_wait(g, g->n_now);
}

void tl_later_forget(tl_graph *g)
{
    for (int i = 0; i < g->user->n_grads; i++)
        for (tl_fold *f = g->user->grad[i].waiting; f != NULL; f = f->later)
            if (f->run == fold && ((waiting *)f)->g == g)
                ((waiting *)f)->g = NULL;
}
