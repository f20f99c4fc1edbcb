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

/* Where x lies. */
static tl_status find_spot(tl_graph *g, tl_tensor x, tl_spot *p)
{
    x = tl_graph_resolve(g, x);
    *p = (tl_spot){.a = &tl_peek(g->t, x)->a, .root = tl_graph_root(g, x)};
    return tl_graph_offset(g, x, &p->offset);
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

/* The array *a of s, its next one, lies at p and is like that there. */
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
    tl_spot p;
    for (int k = 0; s != NULL && k < s->call.n_in; k++) {
        const tl_tensor x = f != NULL ? f->in[k].value : n->in[k];
        if (tl_is_none(x))
            continue;
        if (find_spot(g, x, &p) != TL_OK)
            return NULL;
        p.written = f == NULL && tl_node_writes(n, k);
        tl_step_add_in(s, k, p);
    }
    for (int j = 0; s != NULL && j < n->n_out; j++) {
        if (find_spot(g, tl_node_out(g->t, n, j), &p) != TL_OK)
            return NULL;
        tl_step_add_out(s, p);
    }
    if (s != NULL && f != NULL) {
        s->fused = f;
        tl_fused_ready(f, &s->call);
    }
    return s;
}

static tl_status make_steps(tl_graph *g)
{
    g->step = tl_graph_room(g, 2 * (size_t)g->n_order, sizeof *g->step); /* each may run again */
    if (g->step == NULL)
        return g->head.err.status;
    for (uint32_t i = 0; i < g->n_order; i++) {
        const tl_node *n = &g->t->node[g->order[i]];
        g->stats.views += n->op->traits & TL_VIEW ? 1 : 0;
        if (tl_node_idle(n) || tl_inlined(g, g->order[i]))
            continue;
        tl_plan_step *s = tl_plan_step_of(g, g->order[i]);
        if (s == NULL)
            return g->head.err.status;
        g->step[g->n_steps++] = s;
    }
    return TL_OK;
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
           tl_may_begin(s->call.op, sum->a, st);
}

/* A fold into a gradient's accumulator takes no room and lets its operands go, so it runs as soon
 * as it can. Then the steps are numbered and linked. */
static void order_steps(tl_graph *g)
{
    for (uint32_t i = 0; i < g->n_steps; i++) {
        tl_plan_step *s = g->step[i];
        uint32_t at = i;
        for (bool folds = step_folds(g, s);
             folds && at > 0 && tl_steps_may_swap(g->step[at - 1], s); at--)
            g->step[at] = g->step[at - 1];
        g->step[at] = s;
    }
    for (uint32_t i = 0; i < g->n_steps; i++) {
        g->step[i]->at = i;
        tl_step_link(g, g->step[i], 0);
    }
}

/* ---- made once a step ---- */

/* The number on the lasting tape of the derived value that s makes, in memory of its own, of
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
        const bool made_before = kind == TL_ROOT_CONSTANT || kind == TL_ROOT_DERIVED,
                   unchanged = kind == TL_ROOT_MODEL &&
                               !tl_root_written_between(g, s->spot[k].root, -1, s->at);
        if (!made_before && !unchanged)
            return -1;
    }
    return tl_derived_number(g->t, v->print);
}

static void mark_derived(tl_graph *g)
{
    for (uint32_t i = 0; i < g->n_steps; i++) {
        const int64_t at = derived_by(g, g->step[i]);
        tl_root *r = &g->roots[g->step[i]->spot[g->step[i]->n_in].root];
        if (at >= 0) {
            r->kind = TL_ROOT_DERIVED;
            r->at = (uint32_t)at;
        }
    }
}

/* ---- the slab ---- */

enum { ALIGN = 64 };

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
            r->last = i;
            *(p->written ? &g->stats.written : &g->stats.read) += tl_array_room(p->a);
        }
    }
}

/* ---- results over operands ---- */

/* Element i is read before it is written, if every array of the operand's memory is walked like the
 * result. */
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
        uint32_t from = s->spot[k].root;
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
        const tl_node *n = &g->t->node[g->step[i]->node];
        if (n->kernel != NULL && n->kernel->tile == NULL)
            continue; /* a user's forward is not bound to read before it writes */
        if (n->op->traits & (TL_POINTWISE | TL_ELEMENTWISE | TL_STORES))
            for (int j = 0; j < g->step[i]->n_out; j++)
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
    const int n = tl_graph_results(g);
    g->result_array = tl_graph_room(g, (size_t)n, sizeof *g->result_array);
    g->result_spot = tl_graph_room(g, (size_t)n, sizeof *g->result_spot);
    for (int i = 0; i < n && g->head.err.status == TL_OK; i++) {
        tl_spot *p = &g->result_spot[i];
        TL_TRY(find_spot(g, *tl_graph_result(g, i), p));
        g->result_array[i] = *p->a;
        p->a = &g->result_array[i];
    }
    return g->head.err.status;
}

/* Every array in the slab gets its data. The other roots are listed: a run binds them. */
static void place_roots(tl_graph *g)
{
    for (int i = 0; i < tl_graph_results(g); i++) {
        tl_root *r = &g->roots[g->result_spot[i].root];
        g->result_spot[i].next = r->spots;
        r->spots = &g->result_spot[i];
    }
    for (uint32_t i = g->n_roots; i-- > 0;) {
        tl_root *r = &g->roots[i], *at = r;
        if (r->kind != TL_ROOT_SLAB) {
            r->next = g->outside;
            g->outside = r;
            continue;
        }
        while (at != &g->roots[at->place])
            at = &g->roots[at->place];
        tl_root_bind(r, (char *)g->slab->data + at->offset);
    }
}

tl_status tl_graph_plan(tl_graph *g)
{
    TL_TRY(make_steps(g));
    TL_TRY(place_results(g));
    order_steps(g);
    mark_derived(g);
    TL_TRY(tl_plan_recompute(g));
    TL_TRY(tl_later_order(g));
    TL_TRY(make_slab(g));
    place_roots(g);
    g->stats.nodes = (int)g->t->n_nodes;
    g->stats.needed = (int)g->n_order;
    g->stats.steps = (int)g->n_steps;
    return TL_OK;
}
