/* slab.c: one block in which every value has its place from the step that makes it to the last that
 * reads it. */
#include <stdlib.h>
#include <string.h>

#include "autograd/graph/fused.h"
#include "autograd/graph/plan.h"
#include "autograd/kernel.h"

enum { ALIGN = 64 };

static void note_lives(tl_graph *g)
{
    for (uint32_t i = 0; i < g->n_steps; i++) {
        const tl_plan_step *s = &g->step[i];
        for (int k = 0; k < s->n_in + s->n_out; k++) {
            const tl_spot *p = &s->array[k];
            tl_root *r = &g->roots[p->root];
            if (!r->used)
                r->first = i;
            r->used = true;
            r->last = i;
            r->written |= p->written;
            *(p->written ? &g->stats.written : &g->stats.read) += (size_t)tl_array_count(p->a) *
                                                                  tl_dtype_size(p->a->dtype);
        }
    }
}

/* ---- results over operands ---- */

/* Element i is read before it is written, if every array of the operand's memory is walked like the
 * result. */
static bool may_share(const tl_plan_step *s, int k, int j)
{
    const tl_array *in = s->array[k].a, *out = s->array[s->n_in + j].a;
    if (!tl_array_same_shape(in, out) || !tl_array_contiguous(in) || in->dtype != out->dtype)
        return false;
    for (int i = 0; i < s->n_in; i++)
        if (i != k && s->array[i].root == s->array[k].root)
            return false;
    return true;
}

/* Result j of step i takes the place of an operand that is read there for the last time. */
static void share_place(tl_graph *g, uint32_t i, int j)
{
    const tl_plan_step *s = &g->step[i];
    tl_root *b = &g->roots[s->array[s->n_in + j].root];
    for (int k = 0; k < s->n_in; k++) {
        uint32_t from = s->array[k].root;
        tl_root *a = &g->roots[from];
        if (a->kind != TL_ROOT_SLAB || b->kind != TL_ROOT_SLAB || a->last != i || a->taken ||
            b->first != i || a->bytes != b->bytes || !may_share(s, k, j))
            continue;
        a->taken = true;
        while (g->roots[from].place != from)
            from = g->roots[from].place;
        b->place = from;
        if (b->last > g->roots[from].held)
            g->roots[from].held = b->last;
        return;
    }
}

static void share_places(tl_graph *g)
{
    for (uint32_t i = 0; i < g->n_steps; i++) {
        const tl_node *n = &g->t->node[g->step[i].node];
        if (n->kernel != NULL &&
            n->kernel->tile == NULL) /* a user's forward is not bound to read before it writes */
            continue;
        for (int j = 0;
             n->op->traits & (TL_POINTWISE | TL_ELEMENTWISE | TL_STORES) && j < g->step[i].n_out;
             j++)
            share_place(g, i, j);
    }
}

/* ---- places ---- */

/* Largest first, each at the lowest place that is free while it lives. */
static int by_size(const void *pa, const void *pb)
{
    const tl_root *a = *(tl_root *const *)pa, *b = *(tl_root *const *)pb;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->first != b->first ? (a->first < b->first ? -1 : 1) : (a < b ? -1 : a > b);
}

static size_t rounded(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

/* A root that has its place: every later one is compared with it, so that it holds no more than
 * that needs. */
typedef struct {
    size_t from, to;
    uint32_t first, held;
} place;

static void give_place(tl_root *r, place *placed, uint32_t *n)
{
    size_t at = 0;
    uint32_t i, where = 0;
    for (i = 0; i < *n; i++) { /* placed[] is in order of from */
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

static tl_status lay_out(tl_graph *g)
{
    tl_root **list = tl_bump_get(&g->bump, (g->n_roots + 1) * sizeof *list);
    place *placed = tl_bump_get(&g->bump, (g->n_roots + 1) * sizeof *placed);
    uint32_t n = 0, n_placed = 0;
    if (list == NULL || placed == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan a slab");
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
        if (list[i]->offset + rounded(list[i]->bytes) > g->stats.slab)
            g->stats.slab = list[i]->offset + rounded(list[i]->bytes);
    }
    return TL_OK;
}

/* Outputs that the graph computes have storage of their own: they outlive the run. */
static void mark_outputs(tl_graph *g)
{
    for (int i = 0; i < g->n_out; i++)
        if (g->roots[g->out_spot[i].root].kind == TL_ROOT_SLAB)
            g->roots[g->out_spot[i].root].kind = TL_ROOT_OUTPUT;
    for (int i = 0; i < g->tracing->n_watch; i++) /* read when the last step has run */
        if (g->roots[g->watch_spot[i].root].kind == TL_ROOT_SLAB)
            g->roots[g->watch_spot[i].root].last = g->n_steps;
}

tl_status tl_plan_slab(tl_graph *g)
{
    note_lives(g);
    mark_outputs(g);
    TL_TRY(lay_out(g));
    g->slab = tl_storage_new(g->tracing->arena, g->stats.slab, false);
    return g->slab == NULL ? tl_fail(&g->head.err, TL_ENOMEM, "no memory for a slab of %zu bytes",
                                     g->stats.slab)
                           : TL_OK;
}
