/* plan.c: a graph made ready to run. Every needed node that does work becomes a step: a call with
 * its arrays, or a fused loop. The steps are put in order, some values are computed a second time
 * (recompute.c), and every value gets its place in one block, the slab, from the step that makes it
 * to the last step that reads it. */
#include <stdlib.h>
#include <string.h>

#include "autograd/graph/internal.h"
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

/* Where x lies. */
static tl_spot spot_of(tl_graph *g, tl_tensor x)
{
    x = tl_graph_resolve(g, x);
    return (tl_spot){.a = &tl_peek(g->t, x)->a,
                     .root = tl_graph_root(g, x),
                     .offset = tl_graph_offset(g, x)};
}

tl_plan_step *tl_step_new(tl_graph *g, uint32_t node, const tl_op *op, int n_in)
{
    const size_t n = (size_t)(n_in + op->n_out + 1); /* recompute.c may add a result */
    tl_plan_step *s = tl_graph_room(g, 1, sizeof *s);
    tl_array *a = tl_graph_room(g, n, sizeof *a);
    const tl_array **in = tl_graph_room(g, (size_t)n_in, sizeof *in);
    tl_spot *spot = tl_graph_room(g, n, sizeof *spot);
    if (g->head.err.status != TL_OK)
        return NULL;
    *s = (tl_plan_step){.node = node, .in = in, .spot = spot};
    s->call = tl_graph_call(g, &g->t->node[node], in, a + n_in, &g->run_err);
    s->call.op = op;
    s->call.n_in = n_in;
    s->call.n_out = op->n_out;
    return s;
}

/* Makes *a, an array of s, like *p.a, lying at p. */
static void add_spot(tl_plan_step *s, tl_array *a, tl_spot p)
{
    tl_spot *spot = &s->spot[s->n_in + s->n_out];
    *a = *p.a;
    *spot = p;
    spot->a = a;
    spot->step = s;
}

void tl_step_add_in(tl_plan_step *s, int k, tl_spot p)
{
    tl_array *a = s->call.out - s->call.n_in + k;
    s->in[k] = a;
    add_spot(s, a, p);
    s->n_in++;
}

void tl_step_add_out(tl_plan_step *s, tl_spot p)
{
    p.written = true;
    add_spot(s, s->call.out + s->n_out, p);
    s->n_out++;
}

tl_plan_step *tl_plan_step_of(tl_graph *g, uint32_t node)
{
    const tl_node *n = &g->t->node[node];
    tl_fused *f = tl_fused_new(g, node);
    tl_plan_step *s = tl_step_new(g, node, n->op, f != NULL ? f->n_in : n->n_in);
    if (s == NULL)
        return NULL;
    for (int k = 0; k < s->call.n_in; k++) {
        const tl_tensor x = f != NULL ? f->in[k].value : n->in[k];
        if (tl_is_none(x))
            continue;
        tl_spot p = spot_of(g, x);
        p.written = f == NULL && tl_node_writes(n, k);
        tl_step_add_in(s, k, p);
    }
    for (int j = 0; j < n->n_out; j++)
        tl_step_add_out(s, spot_of(g, tl_node_out(g->t, n, j)));
    if (f != NULL) {
        s->fused = f;
        tl_fused_ready(f, &s->call);
    }
    return g->head.err.status == TL_OK ? s : NULL;
}

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

/* ---- who uses a root ---- */

void tl_step_link(tl_graph *g, tl_plan_step *s, int first)
{
    for (int k = first; k < s->n_in + s->n_out; k++) {
        tl_spot *p = &s->spot[k], **at = &g->roots[p->root].spots;
        while (*at != NULL && (*at)->step->at > s->at)
            at = &(*at)->next;
        p->next = *at;
        *at = p;
        g->roots[p->root].written |= p->written;
    }
}

bool tl_root_written_between(const tl_graph *g, uint32_t root, int64_t from, int64_t to)
{
    const tl_root *r = &g->roots[root];
    for (const tl_spot *p = r->written ? r->spots : NULL; p != NULL && p->step->at > from;
         p = p->next)
        if (p->written && p->step->at < to)
            return true;
    return false;
}

/* ---- order ---- */

bool tl_step_touches(const tl_plan_step *s, uint32_t root, bool only_writes)
{
    for (int k = 0; k < s->n_in + s->n_out; k++)
        if (s->spot[k].root == root && (s->spot[k].written || !only_writes))
            return true;
    return false;
}

bool tl_steps_may_swap(const tl_plan_step *a, const tl_plan_step *b)
{
    for (int k = 0; k < b->n_in + b->n_out; k++)
        if (tl_step_touches(a, b->spot[k].root, !b->spot[k].written))
            return false;
    return true;
}

/* s adds to the accumulator of a gradient. */
static bool step_folds(const tl_graph *g, const tl_plan_step *s)
{
    return s->fused == NULL && tl_node_mutates(&g->t->node[s->node]) && s->n_out == 1 &&
           g->roots[s->spot[s->n_in].root].kind == TL_ROOT_ACC;
}

bool tl_step_may_begin(const tl_graph *g, const tl_plan_step *s, const tl_storage *st)
{
    const tl_spot *sum = &s->spot[s->n_in];
    int reads = 0;
    for (int k = 0; k < s->n_in; k++)
        reads += s->spot[k].root == sum->root;
    return reads == 1 && step_folds(g, s) && s->call.kernel == NULL &&
           tl_op_begins(s->call.op, sum->a, st);
}

/* A fold into an accumulator takes no room and lets its operands go, so each runs as soon as it
 * can. Then the steps are numbered and linked. */
static void order_steps(tl_graph *g)
{
    for (uint32_t i = 0; i < g->n_steps; i++) {
        tl_plan_step *s = g->step[i];
        const bool folds = step_folds(g, s);
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
        *p = spot_of(g, *tl_graph_result(g, i));
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
    if (!tl_array_same_shape(in, out) || !tl_array_contiguous(in) || in->dtype != out->dtype)
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
