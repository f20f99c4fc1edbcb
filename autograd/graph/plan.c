/* plan.c: a graph made ready to run - the calls and arrays of its steps, what is computed again
 * (again.c), and one block, the slab, in which every value has its place from the step that makes
 * it to the last that reads it. */
#include <stdlib.h>
#include <string.h>

#include "autograd/graph/fused.h"
#include "autograd/kernel.h"

/* ---- steps ---- */

tl_call tl_graph_call(tl_graph *g, const tl_node *n, const tl_array *const *in, tl_array *out,
                      tl_err *err)
{
    return (tl_call){.op = n->op,
                     .attrs = n->attrs,
                     .n_in = n->n_in,
                     .n_out = n->n_out,
                     .in = in,
                     .out = out,
                     .mode = n->mode & ~(unsigned)TL_TRACE,
                     .arena = g->user->arena,
                     .err = err,
                     .kernel = n->kernel};
}

static tl_status find_offset(tl_graph *g, tl_tensor x, int64_t *offset)
{
    *offset = 0;
    tl_tensor below = tl_below(g->t, x);
    if (tl_is_none(below))
        return TL_OK;
    TL_TRY(tl_graph_offset(g, tl_graph_resolve(g, below), offset));
    const tl_node *n = tl_maker(g->t, x);
    if (n == NULL || !(n->op->traits & TL_VIEW))
        return TL_OK;
    char *somewhere = (char *)g; /* a view's shape rule moves an address, and follows none; NULL
                                    would say that there is none */
    tl_array in = tl_peek(g->t, n->in[0])->a, out = {0};
    const tl_array *ins = &in;
    in.data = somewhere;
    tl_call c = tl_graph_call(g, n, &ins, &out, &g->head.err);
    TL_TRY(n->op->shape(&c));
    *offset += (int64_t)((uintptr_t)out.data - (uintptr_t)somewhere);
    return TL_OK;
}

/* Each is worked out once: chains of views and changes in place are long. */
tl_status tl_graph_offset(tl_graph *g, tl_tensor x, int64_t *offset)
{
    if (x.owner != g->t->values.owner)
        return *offset = 0, TL_OK;
    if (!g->offset_known[x.index]) {
        TL_TRY(find_offset(g, x, &g->offset[x.index]));
        g->offset_known[x.index] = true;
    }
    *offset = g->offset[x.index];
    return TL_OK;
}

static tl_status place_spot(tl_graph *g, tl_spot *p, tl_array *a, tl_tensor x, bool written)
{
    x = tl_graph_resolve(g, x);
    *a = tl_peek(g->t, x)->a;
    *p = (tl_spot){.a = a, .root = tl_graph_root(g, x), .written = written};
    return tl_graph_offset(g, x, &p->offset);
}

static tl_status no_memory(tl_graph *g, const tl_plan_step *s)
{
    return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan %s", g->t->node[s->node].op->name);
}

static tl_status op_step(tl_graph *g, tl_plan_step *s)
{
    const tl_node *n = &g->t->node[s->node];
    const tl_array **in = tl_bump_get(&g->bump, (size_t)(n->n_in + 1) * sizeof *in);
    tl_array *at = tl_bump_get(&g->bump, (size_t)(n->n_in + n->n_out + 1) * sizeof *at);
    s->array = tl_bump_get(&g->bump, (size_t)(n->n_in + n->n_out + 1) * sizeof *s->array);
    if (in == NULL || at == NULL || s->array == NULL)
        return no_memory(g, s);
    for (int k = 0; k < n->n_in; k++) {
        in[k] = tl_is_none(n->in[k]) ? NULL : &at[k];
        if (in[k] != NULL)
            TL_TRY(place_spot(g, &s->array[s->n_in++], &at[k], n->in[k], tl_node_writes(n, k)));
    }
    for (int j = 0; j < n->n_out; j++)
        TL_TRY(place_spot(g, &s->array[s->n_in + s->n_out++], &at[n->n_in + j],
                          tl_node_out(g->t, n, j), true));
    s->call = tl_graph_call(g, n, in, at + n->n_in, &g->run_err);
    return TL_OK;
}

static tl_status loop_step(tl_graph *g, tl_plan_step *s)
{
    uint32_t nodes[TL_FUSED_OPS];
    int n = tl_fuse_members(g, s->node, nodes, 0);
    if (n <= 1)
        return op_step(g, s);
    tl_fused *f = s->fused = tl_fused_new(g, nodes, n);
    if (f == NULL)
        return g->head.err.status;
    s->array = tl_bump_get(&g->bump, (size_t)(f->n_in + 1) * sizeof *s->array);
    if (s->array == NULL)
        return no_memory(g, s);
    for (int k = 0; k < f->n_in; k++)
        TL_TRY(place_spot(g, &s->array[s->n_in++], &f->in[k].a, f->in[k].value, false));
    TL_TRY(place_spot(g, &s->array[s->n_in + s->n_out++], &f->out, f->out_value, true));
    tl_fused_ready(f);
    return TL_OK;
}

tl_status tl_plan_step_of(tl_graph *g, uint32_t node, tl_plan_step *s)
{
    *s = (tl_plan_step){.node = node};
    return tl_fusable(&g->t->node[node]) ? loop_step(g, s) : op_step(g, s);
}

static tl_status make_steps(tl_graph *g)
{
    g->step = tl_bump_get(&g->bump,
                          (2 * (size_t)g->n_order + 1) * sizeof *g->step); /* each may run again */
    if (g->step == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan %u steps", g->n_order);
    for (uint32_t i = 0; i < g->n_order; i++) {
        const tl_node *n = &g->t->node[g->order[i]];
        g->stats.views += n->op->traits & TL_VIEW ? 1 : 0;
        if (!tl_node_idle(n) && !g->inlined[g->order[i]])
            TL_TRY(tl_plan_step_of(g, g->order[i], &g->step[g->n_steps++]));
    }
    return TL_OK;
}

/* ---- order ---- */

bool tl_step_touches(const tl_plan_step *s, uint32_t root, bool only_writes)
{
    for (int k = 0; k < s->n_in + s->n_out; k++)
        if (s->array[k].root == root && (s->array[k].written || !only_writes))
            return true;
    return false;
}

bool tl_steps_may_swap(const tl_plan_step *a, const tl_plan_step *b)
{
    for (int k = 0; k < b->n_in + b->n_out; k++)
        if (tl_step_touches(a, b->array[k].root, !b->array[k].written))
            return false;
    return true;
}

static bool step_folds(const tl_graph *g, const tl_plan_step *s)
{
    const tl_node *n = &g->t->node[s->node];
    return s->fused == NULL && tl_node_mutates(n) && n->n_out == 1 &&
           g->roots[s->array[s->n_in].root].kind == TL_ROOT_ACC;
}

bool tl_step_may_begin(const tl_graph *g, const tl_plan_step *s, const tl_storage *st)
{
    const tl_node *n = &g->t->node[s->node];
    int touches = 0;
    for (int k = 0; k < s->n_in; k++)
        touches += s->array[k].root == s->array[s->n_in].root;
    return touches == 1 && step_folds(g, s) && n->kernel == NULL &&
           tl_may_begin(n->op, s->array[s->n_in].a, st);
}

/* Folds into a gradient's accumulator take no room and let their operands go: each runs as soon as
 * it can. */
static void hoist_folds(tl_graph *g)
{
    for (uint32_t i = 1; i < g->n_steps; i++) {
        tl_plan_step moved = g->step[i];
        uint32_t at = i;
        for (bool folds = step_folds(g, &moved);
             folds && at > 0 && tl_steps_may_swap(&g->step[at - 1], &moved); at--)
            g->step[at] = g->step[at - 1];
        g->step[at] = moved;
    }
}

/* ---- made once a step ---- */

/* Step i makes a derived value, in memory of its own, of parameters as they are when a run begins:
 * its number on the lasting tape, or -1. */
static int64_t derived_by(const tl_graph *g, uint32_t i)
{
    const tl_plan_step *s = &g->step[i];
    const tl_value *v = tl_values_at(&g->t->values, g->t->node[s->node].out);
    bool lasts = s->n_out == 1 && v->print != 0 && v->fixed && v->needs_grad &&
                 tl_node_part(g->t, s->node) == 0 &&
                 g->roots[s->array[s->n_in].root].kind == TL_ROOT_SLAB;
    for (int k = 0; k < s->n_in && lasts; k++) {
        const tl_root_kind kind = g->roots[s->array[k].root].kind;
        lasts = kind == TL_ROOT_MODEL || kind == TL_ROOT_CONSTANT || kind == TL_ROOT_DERIVED;
        for (uint32_t j = 0; j < i && lasts && kind == TL_ROOT_MODEL; j++)
            lasts = !tl_step_touches(&g->step[j], s->array[k].root, true);
    }
    for (uint32_t j = 0; j < g->n_steps && lasts; j++)
        lasts = j == i || !tl_step_touches(&g->step[j], s->array[s->n_in].root, true);
    return lasts ? tl_derived_number(g->t, v->print) : -1;
}

static void mark_derived(tl_graph *g)
{
    for (uint32_t i = 0; i < g->n_steps; i++) {
        const int64_t at = derived_by(g, i);
        tl_root *r = &g->roots[g->step[i].array[g->step[i].n_in].root];
        if (at >= 0)
            r->kind = TL_ROOT_DERIVED, r->at = (uint32_t)at;
    }
}

/* ---- the slab ---- */

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
            *(p->written ? &g->stats.written : &g->stats.read) += tl_array_room(p->a);
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

/* Outputs that the graph computes have storage of their own: they outlive the run. What is watched
 * is read when the last step has run. */
static void mark_results(tl_graph *g)
{
    for (int i = 0; i < tl_graph_results(g); i++) {
        tl_root *r = &g->roots[g->result_spot[i].root];
        if (r->kind == TL_ROOT_SLAB && i < g->n_out)
            r->kind = TL_ROOT_OUTPUT;
        else if (r->kind == TL_ROOT_SLAB)
            r->last = g->n_steps;
    }
}

static tl_status make_slab(tl_graph *g)
{
    note_lives(g);
    tl_later_mark(g);
    mark_results(g);
    TL_TRY(lay_out(g));
    g->slab = tl_storage_new(g->tracing->arena, g->stats.slab, false);
    return g->slab == NULL ? tl_fail(&g->head.err, TL_ENOMEM, "no memory for a slab of %zu bytes",
                                     g->stats.slab)
                           : TL_OK;
}

/* ---- all of it ---- */

static tl_status place_results(tl_graph *g)
{
    const size_t n = (size_t)tl_graph_results(g) + 1;
    g->result_array = tl_bump_get(&g->bump, n * sizeof *g->result_array);
    g->result_spot = tl_bump_get(&g->bump, n * sizeof *g->result_spot);
    if (g->result_array == NULL || g->result_spot == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan %zu results of a graph", n - 1);
    for (int i = 0; i < tl_graph_results(g); i++)
        TL_TRY(
            place_spot(g, &g->result_spot[i], &g->result_array[i], *tl_graph_result(g, i), false));
    return TL_OK;
}

static void link_spot(tl_graph *g, tl_spot *p)
{
    p->next = g->roots[p->root].spots;
    g->roots[p->root].spots = p;
}

/* Every array gets its data in the slab, or is listed with the root that it will have it from, and
 * that root with its like. */
static void link_spots(tl_graph *g)
{
    for (uint32_t i = 0; i < g->n_steps; i++)
        for (int k = 0; k < g->step[i].n_in + g->step[i].n_out; k++)
            link_spot(g, &g->step[i].array[k]);
    for (int i = 0; i < tl_graph_results(g); i++)
        link_spot(g, &g->result_spot[i]);
    for (uint32_t i = g->n_roots; i-- > 0;) {
        uint32_t at = i;
        if (g->roots[i].kind != TL_ROOT_SLAB) {
            g->roots[i].next = g->outside;
            g->outside = &g->roots[i];
            continue;
        }
        while (g->roots[at].place != at)
            at = g->roots[at].place;
        g->roots[i].base = (char *)g->slab->data + g->roots[at].offset;
        for (const tl_spot *p = g->roots[i].spots; p != NULL; p = p->next)
            p->a->data = g->roots[i].base + p->offset;
    }
}

tl_status tl_graph_plan(tl_graph *g)
{
    TL_TRY(make_steps(g));
    TL_TRY(place_results(g));
    hoist_folds(g);
    mark_derived(g);
    TL_TRY(tl_plan_again(g));
    TL_TRY(tl_later_order(g));
    TL_TRY(make_slab(g));
    link_spots(g);
    g->stats.nodes = (int)g->t->n_nodes;
    g->stats.needed = (int)g->n_order;
    g->stats.steps = (int)g->n_steps;
    return TL_OK;
}
