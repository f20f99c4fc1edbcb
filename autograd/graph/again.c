/* again.c: values that would be kept from forward to backward, computed again there instead.
 *
 * Between its last use in forward and its first in backward a value only takes room. It is computed
 * again if that takes one pass over values that are there anyway and tl_cost_decide, asked with the
 * two computations as two users, does not want it kept. A heavy value comes back without its price
 * where the gradient of its op computes the heavy part anyway (tl_op.result_of).
 * Source: Chen et al. 2016. */
#include <string.h>

#include "autograd/graph/fused.h"

/* ---- which steps read and write a memory, while steps are added and moved: so that no question
 * walks all steps ---- */

typedef struct touch {
    const uint32_t *step; /* where the step stands now */
    bool written;
    struct touch *next;
} touch;

typedef struct {
    tl_graph *g;
    touch **of;       /* by root, in any order */
    bool *written;    /* by root: ever */
    uint32_t **place; /* by step: holds its number, wherever it goes */
    struct {
        uint32_t to;
        const uint32_t *since; /* a step */
    } * moved; /* by root: who reads it after that step finds it in `to`; since NULL: nowhere else
                */
    uint32_t *sorted, cap; /* room for a list of steps */
} touches;

/* Step `at` has another array, its last; false when out of memory. */
static bool touches_add(touches *t, uint32_t at, const tl_spot *p)
{
    touch *new = tl_bump_get(&t->g->bump, sizeof *new);
    if (new == NULL)
        return false;
    *new = (touch){t->place[at], p->written, t->of[p->root]};
    t->of[p->root] = new;
    t->written[p->root] |= p->written;
    return true;
}

static bool add_step(touches *t, uint32_t at, const tl_plan_step *s)
{
    t->place[at] = tl_bump_get(&t->g->bump, sizeof **t->place);
    if (t->place[at] == NULL)
        return false;
    *t->place[at] = at;
    for (int k = 0; k < s->n_in + s->n_out; k++)
        if (!touches_add(t, at, &s->array[k]))
            return false;
    return true;
}

/* Of g's steps as they stand; false when out of memory. */
static bool touches_begin(touches *t, tl_graph *g)
{
    size_t roots = (size_t)g->cap_roots + 1;
    *t = (touches){.g = g,
                   .of = tl_bump_get(&g->bump, roots * sizeof *t->of),
                   .written = tl_bump_get(&g->bump, roots),
                   .moved = tl_bump_get(&g->bump, roots * sizeof *t->moved),
                   .place = tl_bump_get(
                       &g->bump, (2 * (size_t)g->n_order + 1) *
                                     sizeof *t->place)}; /* as many as there are steps at most */
    if (t->of == NULL || t->written == NULL || t->moved == NULL || t->place == NULL)
        return false;
    for (uint32_t i = 0; i < g->n_steps; i++)
        if (!add_step(t, i, &g->step[i]))
            return false;
    return true;
}

/* Step s at number `at`, the others after it; false when out of memory. */
static bool touches_insert(touches *t, uint32_t at, const tl_plan_step *s)
{
    tl_graph *g = t->g;
    memmove(g->step + at + 1, g->step + at, (g->n_steps - at) * sizeof *g->step);
    memmove(t->place + at + 1, t->place + at, (g->n_steps - at) * sizeof *t->place);
    g->step[at] = *s;
    g->n_steps++;
    for (uint32_t i = at + 1; i < g->n_steps; i++)
        *t->place[i] = i;
    return add_step(t, at, s);
}

/* Step `from` goes to number `to`, behind it; those between move up. */
static void touches_sink(touches *t, uint32_t from, uint32_t to)
{
    tl_plan_step moved = t->g->step[from];
    uint32_t *place = t->place[from];
    for (uint32_t i = from; i < to; i++) {
        t->g->step[i] = t->g->step[i + 1];
        t->place[i] = t->place[i + 1];
        *t->place[i] = i;
    }
    t->g->step[to] = moved;
    t->place[to] = place;
    *place = to;
}

/* Steps after `since` that read r find it in `to`. */
static void touches_move(touches *t, uint32_t since, uint32_t r, uint32_t to)
{
    for (touch **at = &t->of[r]; *at != NULL;) {
        touch *u = *at;
        tl_plan_step *s = &t->g->step[*u->step];
        if (*u->step <= since) {
            at = &u->next;
            continue;
        }
        for (int k = 0; k < s->n_in; k++)
            if (s->array[k].root == r)
                s->array[k].root = to;
        *at = u->next;
        u->next = t->of[to];
        t->of[to] = u;
    }
    t->moved[r].to = to;
    t->moved[r].since = t->place[since];
}

/* Where what lay in r lies for step `at`. */
static uint32_t touches_root(const touches *t, uint32_t r, uint32_t at)
{
    while (t->moved[r].since != NULL && *t->moved[r].since < at)
        r = t->moved[r].to;
    return r;
}

/* A step behind `from` and before `to` writes r. */
static bool touches_written(const touches *t, uint32_t r, uint32_t from, uint32_t to)
{
    for (const touch *u = t->written[r] ? t->of[r] : NULL; u != NULL; u = u->next)
        if (u->written && *u->step > from && *u->step < to)
            return true;
    return false;
}

/* A step from `from` on reads or writes r. */
static bool touches_used(const touches *t, uint32_t r, uint32_t from)
{
    for (const touch *u = t->of[r]; u != NULL; u = u->next)
        if (*u->step >= from)
            return true;
    return false;
}

/* The steps after `from` that touch r, in order, into t->sorted; -1: no memory. */
static int64_t sort(touches *t, uint32_t r, uint32_t from)
{
    uint32_t n = 0, all = 0;
    for (const touch *u = t->of[r]; u != NULL; u = u->next)
        all += *u->step > from;
    if (all > t->cap) {
        t->cap = 2 * all;
        t->sorted = tl_bump_get(&t->g->bump, t->cap * sizeof *t->sorted);
        if (t->sorted == NULL)
            return -1;
    }
    for (const touch *u = t->of[r]; u != NULL; u = u->next) { /* newest first: mostly in reverse */
        uint32_t at = all - n;
        if (*u->step <= from)
            continue;
        for (n++; at < all && t->sorted[at] < *u->step; at++)
            t->sorted[at - 1] = t->sorted[at];
        t->sorted[at - 1] = *u->step;
    }
    return all;
}

/* The longest stretch after step `from` in which r is not touched: the steps on both sides. False:
 * no memory. */
static bool touches_rest(touches *t, uint32_t r, uint32_t from, uint32_t *before, uint32_t *after)
{
    int64_t n = sort(t, r, from);
    uint32_t last = *before = *after = from;
    for (int64_t i = 0; i < n; i++) {
        if (t->sorted[i] - last > *after - *before) {
            *before = last;
            *after = t->sorted[i];
        }
        last = t->sorted[i];
    }
    return n >= 0;
}

/* ---- a value computed a second time: by a step of its own, or in the step of its gradient ---- */

enum { NONE = UINT32_MAX };

static tl_status no_memory(tl_graph *g, const tl_plan_step *s)
{
    return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan %s", g->t->node[s->node].op->name);
}

/* The step's input number k, NULL if absent. */
static const tl_spot *input_spot(const tl_graph *g, const tl_plan_step *s, int k)
{
    const tl_node *n = &g->t->node[s->node];
    int at = 0;
    for (int i = 0; i < k; i++)
        at += !tl_is_none(n->in[i]);
    return tl_is_none(n->in[k]) ? NULL : &s->array[at];
}

/* How many values computing result 0 of s again reads, and which; NULL for an absent one. */
static int n_sources(const tl_plan_step *s)
{
    return s->fused == NULL && s->call.op->again.op != NULL ? s->call.op->again.n : s->n_in;
}

static const tl_spot *source(const tl_graph *g, const tl_plan_step *s, int k)
{
    if (s->fused != NULL || s->call.op->again.op == NULL)
        return &s->array[k];
    int from = s->call.op->again.from[k];
    return from >= 0 ? input_spot(g, s, from) : &s->array[s->n_in + ~from];
}

static uint32_t new_root(tl_graph *g, uint32_t like)
{
    g->roots[g->n_roots] = (tl_root){.kind = TL_ROOT_SLAB, .bytes = g->roots[like].bytes};
    return g->n_roots++;
}

/* A step of another op that gives result 0 of s. */
static tl_status other_step(tl_graph *g, const tl_plan_step *s, tl_plan_step *out)
{
    const tl_op *op = s->call.op->again.op;
    int n = s->call.op->again.n;
    const tl_array **in = tl_bump_get(&g->bump, (size_t)n * sizeof *in);
    tl_array *at = tl_bump_get(&g->bump, (size_t)(n + op->n_out) * sizeof *at);
    *out = (tl_plan_step){.node = s->node,
                          .call = s->call,
                          .array = tl_bump_get(&g->bump,
                                               (size_t)(n + op->n_out) * sizeof *out->array)};
    if (in == NULL || at == NULL || out->array == NULL)
        return no_memory(g, s);
    for (int k = 0; k < n; k++) {
        const tl_spot *p = source(g, s, k);
        in[k] = p == NULL ? NULL : &at[k];
        if (p == NULL)
            continue;
        at[k] = *p->a;
        out->array[out->n_in] = *p;
        out->array[out->n_in].written = false;
        out->array[out->n_in++].a = &at[k];
    }
    for (int j = 0; j < op->n_out; j++) {
        at[n + j] = *s->array[s->n_in + j].a;
        out->array[out->n_in + j] = s->array[s->n_in + j];
        out->array[out->n_in + j].a = &at[n + j];
    }
    out->n_out = op->n_out;
    out->call.op = op;
    out->call.in = in;
    out->call.out = at + n;
    out->call.n_in = n;
    out->call.n_out = op->n_out;
    return TL_OK;
}

/* Step i once more, just before step `at`: from there on its value is found in the memory of that.
 */
static tl_status remake_before(touches *t, uint32_t i, uint32_t at)
{
    tl_graph *g = t->g;
    tl_plan_step again;
    uint32_t r = g->step[i].array[g->step[i].n_in].root, fresh = 0;
    TL_TRY(g->step[i].fused == NULL && g->step[i].call.op->again.op != NULL
               ? other_step(g, &g->step[i], &again)
               : tl_plan_step_of(g, g->step[i].node, &again));
    again.again = true;
    for (int k = 0; k < again.n_in; k++) /* what it reads may have been made again before */
        again.array[k].root = touches_root(t, again.array[k].root, at);
    for (int j = 0; j < again.n_out; j++) {
        uint32_t to = new_root(g, again.array[again.n_in + j].root);
        fresh = j == 0 ? to : fresh;
        again.array[again.n_in + j].root = to;
    }
    if (!touches_insert(t, at, &again))
        return no_memory(g, &again);
    touches_move(t, at, r, fresh);
    return TL_OK;
}

/* ---- a heavy value, from the step of its own gradient ---- */

/* Step d computes the gradient of s's op from the same operands, after a cotangent, and can give
 * its result besides. */
static bool remakes(const tl_graph *g, const tl_plan_step *d, const tl_plan_step *s)
{
    if (d->fused != NULL || d->call.op->result_of != g->t->node[s->node].op ||
        d->call.n_out > d->call.op->n_out || d->n_in != s->n_in + 1 ||
        g->t->node[d->node].kernel != NULL)
        return false;
    for (int k = 0; k < s->n_in; k++) {
        const tl_spot *a = &s->array[k], *b = &d->array[k + 1];
        if (a->root != b->root || a->offset != b->offset || !tl_array_same_shape(a->a, b->a) ||
            a->a->dtype != b->a->dtype || tl_array_contiguous(a->a) != tl_array_contiguous(b->a))
            return false;
    }
    return true;
}

/* The first step from `from` on that does so for step i. */
static uint32_t gradient_step(const touches *t, uint32_t i, uint32_t from)
{
    const tl_plan_step *s = &t->g->step[i];
    uint32_t first = NONE;
    for (const touch *u = s->fused == NULL && s->n_in > 0 ? t->of[s->array[0].root] : NULL;
         u != NULL; u = u->next)
        if (*u->step >= from && *u->step < first && remakes(t->g, &t->g->step[*u->step], s))
            first = *u->step;
    return first;
}

/* Moves step u down until it stands behind step `below`; false, with nothing moved, if something is
 * in its way. */
static bool sink(touches *t, uint32_t u, uint32_t below)
{
    for (uint32_t k = u + 1; k <= below; k++)
        if (!tl_steps_may_swap(&t->g->step[u], &t->g->step[k]))
            return false;
    touches_sink(t, u, below);
    return true;
}

static tl_status add_result(tl_graph *g, tl_plan_step *d, const tl_plan_step *s, uint32_t root)
{
    int n = d->n_in + d->n_out;
    tl_spot *spots = tl_bump_get(&g->bump, (size_t)(n + 1) * sizeof *spots);
    tl_array *out = tl_bump_get(&g->bump, (size_t)(d->n_out + 1) * sizeof *out);
    if (spots == NULL || out == NULL)
        return no_memory(g, d);
    for (int k = 0; k < n; k++)
        spots[k] = d->array[k];
    for (int j = 0; j < d->n_out; j++) {
        out[j] = *d->array[d->n_in + j].a;
        spots[d->n_in + j].a = &out[j];
    }
    out[d->n_out] = *s->array[s->n_in].a;
    spots[n] = (tl_spot){.a = &out[d->n_out],
                         .root = root,
                         .offset = s->array[s->n_in].offset,
                         .written = true};
    d->array = spots;
    d->n_out++;
    d->call.out = out;
    d->call.n_out = d->n_out;
    return TL_OK;
}

/* The uses of step i's value from step `after` on take it from the step of its gradient, if there
 * is one that can give it, and they can all come behind that; else nothing changes. */
static tl_status remake_in_gradient(touches *t, uint32_t i, uint32_t after)
{
    tl_graph *g = t->g;
    uint32_t r = g->step[i].array[g->step[i].n_in].root, d = gradient_step(t, i, after);
    if (d == NONE)
        return TL_OK;
    for (uint32_t u = d; u-- > after;)
        if (tl_step_touches(&g->step[u], r, false)) {
            if (!sink(t, u, d))
                return TL_OK;
            d--;
        }
    uint32_t fresh = new_root(g, r);
    TL_TRY(add_result(g, &g->step[d], &g->step[i], fresh));
    if (!touches_add(t, d, &g->step[d].array[g->step[d].n_in + g->step[d].n_out - 1]))
        return no_memory(g, &g->step[d]);
    g->step[d].again = true;
    touches_move(t, d, r, fresh);
    return TL_OK;
}

/* ---- which ---- */

/* Every value that step i is computed from is there, unchanged, at step `at`: without living longer
 * for it, unless it is small. */
static bool sources_stay(const touches *t, uint32_t i, uint32_t at, size_t bytes)
{
    const tl_graph *g = t->g;
    const tl_plan_step *s = &g->step[i];
    for (int k = 0; k < n_sources(s); k++) {
        const tl_spot *p = source(g, s, k);
        uint32_t r = p == NULL ? 0 : touches_root(t, p->root, at);
        if (p == NULL)
            continue;
        if (touches_written(t, p->root, i, at)) /* what has been moved is never written */
            return false;
        if (g->roots[r].kind == TL_ROOT_SLAB && 8 * g->roots[r].bytes > bytes &&
            !touches_used(t, r, at))
            return false;
    }
    return true;
}

static bool is_result(const tl_graph *g, uint32_t r)
{
    for (int i = 0; i < tl_graph_results(g); i++)
        if (g->result_spot[i].root == r)
            return true;
    return false;
}

/* The value in result 0 of step i rests long enough, in memory of its own, to be worth a
 * thought; it is used again by step *after. */
static tl_status rests(touches *t, uint32_t i, bool *does, uint32_t *after)
{
    const tl_graph *g = t->g;
    const tl_cost_limits *l = &g->opt.limits;
    const tl_plan_step *s = &g->step[i];
    const tl_node *n = &g->t->node[s->node];
    int64_t bytes = l->again_bytes > 0 ? l->again_bytes : 4096,
            steps = l->again_steps > 0 ? l->again_steps : 8;
    uint32_t before;
    *does = false;
    if (s->n_out == 0 || tl_node_mutates(n) || n->op->traits & TL_RANDOM ||
        n->mode & TL_WATCHED_MODES)
        return TL_OK;
    uint32_t r = s->array[s->n_in].root;
    if (g->roots[r].kind != TL_ROOT_SLAB || (int64_t)g->roots[r].bytes < bytes || is_result(g, r))
        return TL_OK;
    if (!touches_rest(t, r, i, &before, after))
        return no_memory(t->g, s);
    *does = *after - before >= steps && !touches_written(t, r, i, g->n_steps);
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
                          .written = (int64_t)tl_array_room(y)};
    for (int k = 0; k < s->n_in; k++)
        if (tl_array_count(s->array[k].a) != 1)
            q.read += (int64_t)tl_array_room(s->array[k].a);
    return q;
}

/* Step i's value, which rests, is kept or not; the decision is noted. */
static tl_status settle(touches *t, uint32_t i, uint32_t after)
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
        return remake_before(t, i, after);
    TL_TRY(remake_in_gradient(t, i, after));
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
    touches t;
    g->rest = tl_bump_get(&g->bump, (g->t->n_nodes + 1) * sizeof *g->rest);
    if (g->rest == NULL || !touches_begin(&t, g))
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
