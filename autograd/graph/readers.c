/* readers.c: who reads each value, element by element or otherwise, and when memories change. */
#include "autograd/graph/readers.h"

#include <string.h>

#include "autograd/graph/fused.h"

static const tl_array *array_of(const tl_graph *g, tl_tensor x) { return &tl_peek(g->t, x)->a; }

tl_tensor tl_fuse_whole(const tl_graph *g, tl_tensor x)
{
    for (;;) {
        x = tl_graph_resolve(g, x);
        if (x.owner != g->t->values.owner)
            return x;
        const tl_value *v = tl_values_at(&g->t->values, x.index);
        const tl_node *n = v->node < 0 ? NULL : &g->t->node[v->node];
        tl_tensor below = n != NULL && (tl_node_mutates(n) || n->op->traits & TL_REPEATS)
                              ? TL_NONE
                              : tl_below(g->t, x);
        const tl_array *a = tl_is_none(below) ? NULL : array_of(g, below);
        if (a == NULL || (n != NULL && (!tl_array_contiguous(&v->a) || !tl_array_contiguous(a) ||
                                        tl_array_count(&v->a) != tl_array_count(a))))
            return x;
        x = below;
    }
}

static bool add_reader(tl_readers *r, tl_tensor x, uint32_t node, bool walks)
{
    tl_reader *u = tl_bump_get(&r->g->bump, sizeof *u);
    if (u == NULL)
        return false;
    *u = (tl_reader){node, walks, r->of[x.index]};
    r->of[x.index] = u;
    return true;
}

/* A view that is no plain one hides what happens to the memory below it: that stays. */
static void pin(tl_readers *r, tl_tensor x)
{
    x = tl_fuse_whole(r->g, x);
    if (x.owner == r->g->t->values.owner)
        r->pinned[x.index] = true;
}

static bool note_reads(tl_readers *r, uint32_t i)
{
    tl_graph *g = r->g;
    const tl_node *n = &g->t->node[i];
    for (int k = 0; k < n->n_in; k++) {
        if (tl_is_none(n->in[k]))
            continue;
        tl_tensor x = tl_fuse_whole(g, n->in[k]);
        if (x.owner != g->t->values.owner)
            continue;
        if (n->op->traits & TL_VIEW) { /* a plain view reads nothing: its users do */
            tl_tensor y = tl_fuse_whole(g, tl_node_out(g->t, n, 0));
            r->pinned[x.index] |= !tl_same_handle(x, y);
            continue;
        }
        const tl_array *a = array_of(g, x),
                       *out = n->n_out > 0 ? &tl_values_at(&g->t->values, n->out)->a : a;
        bool walks = tl_fusable(n) && tl_array_count(a) == tl_array_count(out) &&
                     tl_array_contiguous(array_of(g, tl_graph_resolve(g, n->in[k]))) &&
                     tl_tile_dtype(g, n, k) == tl_dtype_compute(a->dtype);
        if (!add_reader(r, x, i, walks))
            return false;
    }
    return true;
}

static bool append(tl_graph *g, tl_positions *p, uint32_t at)
{
    if (p->n == p->cap) {
        uint32_t *grown = tl_bump_get(&g->bump, (2 * p->cap + 4) * sizeof *grown);
        if (grown == NULL)
            return false;
        if (p->n > 0)
            memcpy(grown, p->at, p->n * sizeof *grown);
        p->at = grown;
        p->cap = 2 * p->cap + 4;
    }
    p->at[p->n++] = at;
    return true;
}

static bool note_writes(tl_readers *r, uint32_t at)
{
    tl_graph *g = r->g;
    const tl_node *n = &g->t->node[g->order[at]];
    for (int k = 0; k < n->n_in; k++) {
        if (!tl_node_writes(n, k))
            continue;
        if (!append(g, &r->writes[tl_graph_root(g, tl_graph_resolve(g, n->in[k]))], at))
            return false;
        pin(r, n->in[k]); /* it is changed where it lies */
    }
    return true;
}

bool tl_readers_changes(const tl_readers *r, tl_tensor x, uint32_t from, uint32_t to)
{
    const tl_positions *w = &r->writes[tl_graph_root(r->g, tl_graph_resolve(r->g, x))];
    uint32_t low = 0, high = w->n; /* the first after from */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (w->at[middle] > from)
            high = middle;
        else
            low = middle + 1;
    }
    return low < w->n && w->at[low] < to;
}

bool tl_readers_find(tl_readers *r, tl_graph *g)
{
    uint32_t n = atomic_load(&g->t->values.count);
    *r = (tl_readers){.g = g,
                      .of = tl_bump_get(&g->bump, (n + 1) * sizeof *r->of),
                      .pinned = tl_bump_get(&g->bump, n + 1),
                      .position = tl_bump_get(&g->bump, (g->t->n_nodes + 1) * sizeof *r->position),
                      .writes = tl_bump_get(&g->bump, (g->cap_roots + 1) * sizeof *r->writes)};
    if (r->of == NULL || r->pinned == NULL || r->position == NULL || r->writes == NULL)
        return false;
    for (uint32_t at = 0; at < g->n_order; at++) {
        r->position[g->order[at]] = at;
        if (!note_reads(r, g->order[at]) || !note_writes(r, at))
            return false;
    }
    for (int i = 0; i < g->n_out; i++)
        pin(r, g->out[i]);
    for (int i = 0; i < g->tracing->n_watch; i++)
        pin(r, g->tracing->watch[i].x);
    return true;
}
