/* plan.c: a graph made ready to run. Every needed node that does work becomes a step: a call with
 * its arrays, or a fused loop. The steps are put in order, some values are computed a second time
 * (recompute.c), and every value gets its place in one block, the slab, from the step that makes it
 * to the last step that reads it. */
#include <stdlib.h>
#include <string.h>

#include "autograd/graph/internal.h"
#include "autograd/kernel.h"

/* ---- steps ---- */

static tl_status make_steps(tl_graph *g)
{
    g->step = tl_graph_room(g, 2 * (size_t)g->n_order, sizeof *g->step); /* each may run again */
    for (uint32_t i = 0; i < g->n_order && g->head.err.status == TL_OK; i++) {
        const tl_op *op = g->t->node[g->order[i]].op;
        const bool works = op->forward != NULL || op->traits & TL_POINTWISE; /* no view or mark */
        g->stats.views += op->traits & TL_VIEW ? 1 : 0;
        if (works && !tl_inlined(g, g->order[i]))
            g->step[g->n_steps++] = tl_plan_step_of(g, g->order[i]);
    }
    return g->head.err.status;
}

/* ---- order ---- */

/* A fold into an accumulator takes no room and lets its operands go, so each runs as soon as it
 * can. Then the steps are numbered and linked. */
static void order_steps(tl_graph *g)
{
    for (uint32_t i = 0; i < g->n_steps; i++) {
        tl_plan_step *s = g->step[i];
        const bool folds = tl_step_folds(g, s);
        uint32_t at = i;
        for (; folds && at > 0 && tl_steps_may_swap(g->step[at - 1], s); at--)
            g->step[at] = g->step[at - 1];
        g->step[at] = s;
    }
    for (uint32_t i = 0; i < g->n_steps; i++) {
        g->step[i]->at = i;
        tl_step_link(g, g->step[i], 0);
    }
}

/* ---- made once for all micro-batches ---- */

/* The number on the lasting tape of the derived value that s makes, in memory of its own, from
 * parameters as they are when a run begins; -1 if it makes none. */
static int64_t derived_by(const tl_graph *g, const tl_plan_step *s)
{
    const tl_value *v = tl_values_at(&g->t->values, g->t->node[s->node].out);
    const uint32_t root = s->spot[s->n_in].root;
    if (s->n_out != 1 || v->print == 0 || !v->fixed || !v->needs_grad ||
        tl_node_part(g->t, s->node) != 0 || g->roots[root].kind != TL_ROOT_SLAB ||
        tl_root_written_between(g, root, -1, s->at) ||
        tl_root_written_between(g, root, s->at, g->n_steps))
        return -1;
    for (int k = 0; k < s->n_in; k++) {
        const tl_root_kind kind = g->roots[s->spot[k].root].kind;
        const bool lasts = kind == TL_ROOT_CONSTANT || kind == TL_ROOT_DERIVED,
                   unchanged = kind == TL_ROOT_MODEL &&
                               !tl_root_written_between(g, s->spot[k].root, -1, s->at);
        if (!lasts && !unchanged)
            return -1;
    }
    return tl_derived_number(g->t, v->print);
}

static void mark_derived(tl_graph *g)
{
    for (uint32_t i = 0; i < g->n_steps; i++) {
        const int64_t number = derived_by(g, g->step[i]);
        tl_root *r = &g->roots[g->step[i]->spot[g->step[i]->n_in].root];
        if (number >= 0) {
            r->kind = TL_ROOT_DERIVED;
            r->at = (uint32_t)number;
        }
    }
}

/* ---- how long values live ---- */

/* Roots that put-off steps use live on when a run is over. */
static void note_lives(tl_graph *g)
{
    for (uint32_t i = 0; i < g->n_steps; i++) {
        const tl_plan_step *s = g->step[i];
        for (int k = 0; k < s->n_in + s->n_out; k++) {
            const tl_spot *p = &s->spot[k];
            tl_root *r = &g->roots[p->root];
            if (!r->used)
                r->first = i;
            r->used = true;
            r->later |= i >= g->n_now;
            r->last = r->later ? g->n_steps : i;
            *(p->written ? &g->stats.written : &g->stats.read) += tl_array_room(p->a);
        }
    }
}

/* An output that the graph computes has storage of its own, which outlives the run. A watched value
 * is read when the last step has run. */
static tl_status place_results(tl_graph *g)
{
    const int n = tl_graph_results(g);
    g->result_array = tl_graph_room(g, (size_t)n, sizeof *g->result_array);
    g->result_spot = tl_graph_room(g, (size_t)n, sizeof *g->result_spot);
    for (int i = 0; i < n && g->head.err.status == TL_OK; i++) {
        tl_spot *p = &g->result_spot[i];
        *p = tl_spot_of(g, *tl_graph_result(g, i));
        g->result_array[i] = *p->a;
        p->a = &g->result_array[i];
        tl_root *r = &g->roots[p->root];
        p->next = r->spots;
        r->spots = p;
        if (r->kind == TL_ROOT_SLAB && i < g->n_out)
            r->kind = TL_ROOT_OUTPUT;
        else if (r->kind == TL_ROOT_SLAB)
            r->last = g->n_steps;
    }
    return g->head.err.status;
}

/* ---- results that take the place of an operand ---- */

/* Result j may take the memory of operand k: each element is read before it is written, if no other
 * operand lies there and k is walked as the result is. */
static bool may_share(const tl_plan_step *s, int k, int j)
{
    const tl_array *in = s->spot[k].a, *out = s->spot[s->n_in + j].a;
    if (!tl_array_same_shape(in, out) || !tl_array_contiguous(in) || !tl_array_contiguous(out) ||
        in->dtype != out->dtype)
        return false;
    for (int i = 0; i < s->n_in; i++)
        if (i != k && s->spot[i].root == s->spot[k].root)
            return false;
    return true;
}

/* Result j of step i takes the place of an operand that is read there for the last time. */
static void share_place(tl_graph *g, uint32_t i, int j)
{
    const tl_plan_step *s = g->step[i];
    tl_root *b = &g->roots[s->spot[s->n_in + j].root];
    for (int k = 0; k < s->n_in; k++) {
        tl_root *a = &g->roots[s->spot[k].root];
        if (a->kind != TL_ROOT_SLAB || b->kind != TL_ROOT_SLAB || a->last != i || a->taken ||
            b->first != i || a->bytes != b->bytes || !may_share(s, k, j))
            continue;
        tl_root *whose = &g->roots[a->place];
        a->taken = true;
        b->place = a->place;
        whose->held = b->last > whose->held ? b->last : whose->held;
        return;
    }
}

static void share_places(tl_graph *g)
{
    for (uint32_t i = 0; i < g->n_steps; i++) {
        const tl_node *n = &g->t->node[g->step[i]->node];
        if (n->kernel != NULL && n->kernel->tile == NULL)
            continue; /* a user's forward is not bound to read before it writes */
        if (n->mode & TL_WATCHED_MODES)
            continue; /* an observer may look at the operands when the step has run */
        if (n->op->traits & (TL_POINTWISE | TL_ELEMENTWISE | TL_STORES))
            for (int j = 0; j < g->step[i]->n_out; j++)
                share_place(g, i, j);
    }
}

/* ---- places: the largest first, each at the lowest place that is free while it lives ---- */

enum { ALIGN = 64 };

static int by_size(const void *pa, const void *pb)
{
    const tl_root *a = *(tl_root *const *)pa, *b = *(tl_root *const *)pb;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->first != b->first ? (a->first < b->first ? -1 : 1) : (a < b ? -1 : a > b);
}

static size_t rounded(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

/* A root that has its place. Every later one is compared with it, so it holds only what a
 * comparison needs. */
typedef struct {
    size_t from, to;
    uint32_t first, held;
} place;

/* placed[0 .. *n) is in order of from. */
static void give_place(tl_root *r, place *placed, uint32_t *n)
{
    size_t at = 0;
    uint32_t where = 0;
    for (uint32_t i = 0; i < *n; i++) {
        const place *p = &placed[i];
        if (p->held < r->first || r->held < p->first)
            continue;
        if (p->from >= at + rounded(r->bytes))
            break;
        if (p->to > at)
            at = p->to;
    }
    r->offset = at;
    while (where < *n && placed[where].from <= at)
        where++;
    memmove(placed + where + 1, placed + where, (*n - where) * sizeof *placed);
    placed[where] = (place){at, at + rounded(r->bytes), r->first, r->held};
    ++*n;
}

static tl_status make_slab(tl_graph *g)
{
    tl_root **list = tl_graph_room(g, g->n_roots, sizeof *list);
    place *placed = tl_graph_room(g, g->n_roots, sizeof *placed);
    uint32_t n = 0, n_placed = 0;
    if (g->head.err.status != TL_OK)
        return g->head.err.status;
    for (uint32_t i = 0; i < g->n_roots; i++) {
        g->roots[i].place = i;
        g->roots[i].held = g->roots[i].last;
    }
    share_places(g);
    for (uint32_t i = 0; i < g->n_roots; i++) {
        tl_root *r = &g->roots[i];
        if (r->kind != TL_ROOT_SLAB || !r->used)
            continue;
        g->stats.values += rounded(r->bytes);
        if (r->place == i && r->bytes > 0)
            list[n++] = r;
    }
    qsort(list, n, sizeof *list, by_size);
    for (uint32_t i = 0; i < n; i++) {
        give_place(list[i], placed, &n_placed);
        const size_t end = list[i]->offset + rounded(list[i]->bytes);
        g->stats.slab = end > g->stats.slab ? end : g->stats.slab;
    }
    g->slab = tl_storage_new(g->tracing->arena, g->stats.slab, false);
    return g->slab != NULL ? TL_OK
                           : tl_fail(&g->head.err, TL_ENOMEM, "no memory for a slab of %zu bytes",
                                     g->stats.slab);
}

/* Roots in the slab are bound for good. The others are listed: each run binds them. */
static void bind_slab(tl_graph *g)
{
    for (uint32_t i = g->n_roots; i-- > 0;) {
        tl_root *r = &g->roots[i];
        if (r->kind == TL_ROOT_SLAB) {
            tl_root_bind(r, (char *)g->slab->data + g->roots[r->place].offset);
        } else {
            r->next = g->outside;
            g->outside = r;
        }
    }
}

/* ---- all of it ---- */

tl_status tl_graph_plan(tl_graph *g)
{
    TL_TRY(make_steps(g));
    order_steps(g);
    mark_derived(g);
    TL_TRY(tl_plan_recompute(g));
    TL_TRY(tl_later_order(g));
    note_lives(g);
    TL_TRY(place_results(g));
    TL_TRY(make_slab(g));
    bind_slab(g);
    g->stats.nodes = (int)g->t->n_nodes;
    g->stats.needed = (int)g->n_order;
    g->stats.steps = (int)g->n_steps;
    return TL_OK;
}
