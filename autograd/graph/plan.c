/* plan.c: the steps of a run made ready - calls with their arrays, and one slab in
 * which every value has its place from the step that makes it to the last that reads it. */
#include <stdlib.h>
#include <string.h>

#include "autograd/graph/fused.h"
#include "autograd/kernel.h"

enum { ALIGN = 64, DUMMY = 4096 };

tl_status tl_graph_offset(tl_graph *g, tl_tensor x, int64_t *offset)
{
    *offset = 0;
    if (x.owner != g->t->values.owner)
        return TL_OK;
    const tl_value *v = tl_values_at(&g->t->values, x.index);
    if (v->node < 0)
        return tl_is_none(v->source) ? TL_OK : tl_graph_offset(g, v->source, offset);
    const tl_node *n = &g->t->node[v->node];
    if (v->out == 0 && tl_node_mutates(n))
        return tl_graph_offset(g, n->in[n->op->mutates], offset);
    if (v->out != 0 || !(n->op->traits & TL_VIEW))
        return TL_OK;
    TL_TRY(tl_graph_offset(g, n->in[0], offset));
    tl_array in = tl_peek(g->t, n->in[0])->a, out = {0};
    const tl_array *ins = &in;
    in.data = (char *)(uintptr_t)(DUMMY + *offset); /* never read: views only move the pointer */
    tl_call c = {.op = n->op, .attrs = n->attrs, .n_in = 1, .n_out = 1, .in = &ins, .out = &out, .err = &g->head.err};
    TL_TRY(n->op->shape(&c));
    *offset = (int64_t)(uintptr_t)out.data - DUMMY;
    return TL_OK;
}

tl_status tl_graph_place(tl_graph *g, tl_array *a, tl_tensor x)
{
    x = tl_graph_resolve(g, x);
    tl_patch *p = tl_bump_get(&g->bump, sizeof *p);
    if (p == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan a graph");
    *a = tl_peek(g->t, x)->a;
    TL_TRY(tl_graph_offset(g, x, &p->offset));
    tl_root *r = &g->roots[tl_graph_root(g, x)];
    p->a = a;
    p->next = r->patch;
    r->patch = p;
    return TL_OK;
}

/* ---- steps ---- */

static tl_status op_step(tl_graph *g, tl_plan_step *s)
{
    const tl_node *n = &g->t->node[s->node];
    const tl_array **in = tl_bump_get(&g->bump, (size_t)(n->n_in + 1) * sizeof *in);
    tl_array *at = tl_bump_get(&g->bump, (size_t)(n->n_in + n->n_out + 1) * sizeof *at);
    if (in == NULL || at == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan %s", n->op->name);
    for (int k = 0; k < n->n_in; k++) {
        in[k] = tl_is_none(n->in[k]) ? NULL : &at[k];
        if (in[k] != NULL)
            TL_TRY(tl_graph_place(g, &at[k], n->in[k]));
    }
    for (int j = 0; j < n->n_out; j++)
        TL_TRY(tl_graph_place(g, &at[n->n_in + j], tl_node_out(g->t, n, j)));
    s->call = (tl_call){.op = n->op, .attrs = n->attrs, .n_in = n->n_in, .n_out = n->n_out, .in = in, .out = at + n->n_in,
                        .mode = n->mode & ~(unsigned)TL_TRACE, .arena = g->user->arena, .err = &g->run_err, .kernel = n->kernel};
    return TL_OK;
}

static tl_status fused_step(tl_graph *g, tl_plan_step *s, uint32_t *nodes)
{
    int n = tl_fuse_members(g, s->node, nodes);
    if (n <= 1)
        return op_step(g, s);
    s->fused = tl_fused_new(g, nodes, n);
    if (s->fused == NULL)
        return g->head.err.status;
    for (int k = 0; k < s->fused->n_in; k++)
        TL_TRY(tl_graph_place(g, &s->fused->in[k], s->fused->in_value[k]));
    for (int k = 0; k < s->fused->n_out; k++)
        TL_TRY(tl_graph_place(g, &s->fused->out[k], s->fused->out_value[k]));
    tl_fused_ready(s->fused);
    return TL_OK;
}

static tl_status make_steps(tl_graph *g)
{
    uint32_t nodes[TL_FUSED_OPS];
    g->step = tl_bump_get(&g->bump, (g->n_order + 1) * sizeof *g->step);
    if (g->step == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan %u steps", g->n_order);
    for (uint32_t i = 0; i < g->n_order; i++) {
        const tl_node *n = &g->t->node[g->order[i]];
        g->stats.views += n->op->traits & TL_VIEW ? 1 : 0;
        if (tl_node_idle(n) || g->inlined[g->order[i]])
            continue;
        tl_plan_step *s = &g->step[g->n_steps++];
        s->node = g->order[i];
        TL_TRY(tl_fusable(n) ? fused_step(g, s, nodes) : op_step(g, s));
    }
    return TL_OK;
}

/* ---- order, for the sake of memory ---- */

/* A step's operands and results, whether it is one op or a loop of several. */
static int step_ins(const tl_graph *g, const tl_plan_step *s) { return s->fused != NULL ? s->fused->n_in : g->t->node[s->node].n_in; }
static int step_outs(const tl_graph *g, const tl_plan_step *s) { return s->fused != NULL ? s->fused->n_out : g->t->node[s->node].n_out; }
static tl_tensor step_in(const tl_graph *g, const tl_plan_step *s, int k) { return s->fused != NULL ? s->fused->in_value[k] : g->t->node[s->node].in[k]; }
static tl_tensor step_out(const tl_graph *g, const tl_plan_step *s, int j)
{
    return s->fused != NULL ? s->fused->out_value[j] : tl_node_out(g->t, &g->t->node[s->node], j);
}
static const tl_array *in_array(const tl_plan_step *s, int k) { return s->fused != NULL ? &s->fused->in[k] : s->call.in[k]; }
static const tl_array *out_array(const tl_plan_step *s, int j) { return s->fused != NULL ? &s->fused->out[j] : &s->call.out[j]; }

static bool touches(tl_graph *g, const tl_plan_step *s, uint32_t root)
{
    for (int k = 0; k < step_ins(g, s); k++)
        if (!tl_is_none(step_in(g, s, k)) && tl_graph_root(g, tl_graph_resolve(g, step_in(g, s, k))) == root)
            return true;
    for (int j = 0; j < step_outs(g, s); j++)
        if (tl_graph_root(g, step_out(g, s, j)) == root)
            return true;
    return false;
}

static bool writes(tl_graph *g, const tl_plan_step *s, uint32_t root)
{
    const tl_node *n = &g->t->node[s->node];
    for (int j = 0; j < step_outs(g, s); j++)
        if (tl_graph_root(g, step_out(g, s, j)) == root)
            return true;
    for (int k = 0; s->fused == NULL && k < n->n_in; k++)
        if (tl_node_writes(g, n, k) && tl_graph_root(g, tl_graph_resolve(g, n->in[k])) == root)
            return true;
    return false;
}

/* b may run before a: neither writes what the other touches. */
static bool may_swap(tl_graph *g, const tl_plan_step *a, const tl_plan_step *b)
{
    for (int k = 0; k < step_ins(g, b); k++)
        if (!tl_is_none(step_in(g, b, k)) && writes(g, a, tl_graph_root(g, tl_graph_resolve(g, step_in(g, b, k)))))
            return false;
    for (int j = 0; j < step_outs(g, b); j++)
        if (touches(g, a, tl_graph_root(g, step_out(g, b, j))))
            return false;
    const tl_node *n = &g->t->node[b->node];
    for (int k = 0; b->fused == NULL && k < n->n_in; k++)
        if (tl_node_writes(g, n, k) && touches(g, a, tl_graph_root(g, tl_graph_resolve(g, n->in[k]))))
            return false;
    return true;
}

/* Folds into a gradient's accumulator take no room and let their operands go: each runs as soon as it can. */
static void hoist_folds(tl_graph *g)
{
    for (uint32_t i = 1; i < g->n_steps; i++) {
        tl_plan_step moved = g->step[i];
        const tl_node *n = &g->t->node[moved.node];
        bool folds = moved.fused == NULL && tl_node_mutates(n) && n->n_out == 1 &&
                     g->roots[tl_graph_root(g, tl_graph_resolve(g, n->in[n->op->mutates]))].kind == TL_ROOT_ACC;
        uint32_t at = i;
        for (; folds && at > 0 && may_swap(g, &g->step[at - 1], &moved); at--)
            g->step[at] = g->step[at - 1];
        g->step[at] = moved;
    }
}

/* ---- the slab ---- */

/* Calls f on every array of a step with the value it shows. */
typedef void visit_fn(tl_graph *g, uint32_t step, tl_tensor x, const tl_array *a, bool out);
static void each_array(tl_graph *g, visit_fn *f)
{
    for (uint32_t i = 0; i < g->n_steps; i++) {
        const tl_plan_step *s = &g->step[i];
        const tl_node *n = &g->t->node[s->node];
        if (s->fused != NULL) {
            for (int k = 0; k < s->fused->n_in; k++)
                f(g, i, s->fused->in_value[k], &s->fused->in[k], false);
            for (int k = 0; k < s->fused->n_out; k++)
                f(g, i, s->fused->out_value[k], &s->fused->out[k], true);
            continue;
        }
        for (int k = 0; k < n->n_in; k++)
            if (!tl_is_none(n->in[k]))
                f(g, i, n->in[k], s->call.in[k], tl_node_writes(g, n, k));
        for (int j = 0; j < n->n_out; j++)
            f(g, i, tl_node_out(g->t, n, j), &s->call.out[j], true);
    }
}

static void note_use(tl_graph *g, uint32_t step, tl_tensor x, const tl_array *a, bool out)
{
    tl_root *r = &g->roots[tl_graph_root(g, tl_graph_resolve(g, x))];
    size_t bytes = (size_t)tl_array_count(a) * tl_dtype_size(a->dtype);
    if (!r->used)
        r->first = step;
    r->used = true;
    r->last = step;
    r->written |= out;
    *(out ? &g->stats.written : &g->stats.read) += bytes;
}

/* Element i is read before it is written, if every array of the operand's memory is walked like the result. */
static bool may_share(tl_graph *g, const tl_plan_step *s, int k, int j)
{
    const tl_array *in = in_array(s, k), *out = out_array(s, j);
    uint32_t root = tl_graph_root(g, tl_graph_resolve(g, step_in(g, s, k)));
    if (!tl_array_same_shape(in, out) || !tl_array_contiguous(in) || in->dtype != out->dtype)
        return false;
    for (int i = 0; i < step_ins(g, s); i++)
        if (i != k && !tl_is_none(step_in(g, s, i)) && tl_graph_root(g, tl_graph_resolve(g, step_in(g, s, i))) == root)
            return false;
    return true;
}

/* Result j of step i takes the place of an operand that is read there for the last time. */
static void share_place(tl_graph *g, uint32_t i, int j)
{
    const tl_plan_step *s = &g->step[i];
    uint32_t to = tl_graph_root(g, step_out(g, s, j));
    tl_root *b = &g->roots[to];
    for (int k = 0; k < step_ins(g, s); k++) {
        if (tl_is_none(step_in(g, s, k)))
            continue;
        uint32_t from = tl_graph_root(g, tl_graph_resolve(g, step_in(g, s, k)));
        tl_root *a = &g->roots[from];
        if (a->kind != TL_ROOT_SLAB || b->kind != TL_ROOT_SLAB || a->last != i || a->taken || b->first != i || a->bytes != b->bytes || !may_share(g, s, k, j))
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
        if (n->kernel != NULL && n->kernel->tile == NULL) /* a user's forward is not bound to read before it writes */
            continue;
        for (int j = 0; n->op->traits & (TL_POINTWISE | TL_ELEMENTWISE | TL_STORES) && j < step_outs(g, &g->step[i]); j++)
            share_place(g, i, j);
    }
}

/* Largest first, each at the lowest place that is free while it lives. */
static int by_size(const void *pa, const void *pb)
{
    const tl_root *a = *(tl_root *const *)pa, *b = *(tl_root *const *)pb;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->first != b->first ? (a->first < b->first ? -1 : 1) : (a < b ? -1 : a > b);
}

static size_t rounded(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static void give_place(tl_root *r, tl_root **placed, uint32_t *n)
{
    size_t at = 0;
    uint32_t i, where = 0;
    for (i = 0; i < *n; i++) { /* placed[] is in order of offset */
        const tl_root *p = placed[i];
        if (p->held < r->first || r->held < p->first)
            continue;
        if (p->offset >= at + rounded(r->bytes))
            break;
        if (p->offset + rounded(p->bytes) > at)
            at = p->offset + rounded(p->bytes);
    }
    r->offset = at;
    while (where < *n && placed[where]->offset <= at)
        where++;
    memmove(placed + where + 1, placed + where, (*n - where) * sizeof *placed);
    placed[where] = r;
    ++*n;
}

static tl_status lay_out(tl_graph *g)
{
    tl_root **list = tl_bump_get(&g->bump, (g->n_roots + 1) * sizeof *list), **placed = tl_bump_get(&g->bump, (g->n_roots + 1) * sizeof *placed);
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
    for (int i = 0; i < g->n_out; i++) {
        tl_root *r = &g->roots[tl_graph_root(g, tl_graph_resolve(g, g->out[i]))];
        if (r->kind == TL_ROOT_SLAB)
            r->kind = TL_ROOT_OUTPUT;
    }
    for (int i = 0; i < g->tracing->n_watch; i++) { /* read when the last step has run */
        tl_root *r = &g->roots[tl_graph_root(g, tl_graph_resolve(g, g->tracing->watch[i].x))];
        if (r->kind == TL_ROOT_SLAB)
            r->last = g->n_steps;
    }
}

static tl_status place_results(tl_graph *g)
{
    g->out_array = tl_bump_get(&g->bump, (size_t)(g->n_out + 1) * sizeof *g->out_array);
    g->watch_array = tl_bump_get(&g->bump, (size_t)(g->tracing->n_watch + 1) * sizeof *g->watch_array);
    if (g->out_array == NULL || g->watch_array == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan a graph");
    for (int i = 0; i < g->n_out; i++)
        TL_TRY(tl_graph_place(g, &g->out_array[i], g->out[i]));
    for (int i = 0; i < g->tracing->n_watch; i++)
        TL_TRY(tl_graph_place(g, &g->watch_array[i], g->tracing->watch[i].x));
    return TL_OK;
}

tl_status tl_graph_plan(tl_graph *g)
{
    TL_TRY(make_steps(g));
    hoist_folds(g);
    TL_TRY(place_results(g));
    each_array(g, note_use);
    mark_outputs(g);
    TL_TRY(lay_out(g));
    g->slab = tl_storage_new(g->tracing->arena, g->stats.slab, false);
    if (g->slab == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory for a slab of %zu bytes", g->stats.slab);
    for (uint32_t i = 0; i < g->n_roots; i++) {
        tl_root *r = &g->roots[i];
        uint32_t place = i;
        if (r->kind != TL_ROOT_SLAB)
            continue;
        while (g->roots[place].place != place)
            place = g->roots[place].place;
        r->base = (char *)g->slab->data + g->roots[place].offset;
        for (const tl_patch *p = r->patch; p != NULL; p = p->next)
            p->a->data = r->base + p->offset;
    }
    g->stats.nodes = (int)g->t->n_nodes;
    g->stats.steps = (int)g->n_steps;
    return TL_OK;
}
