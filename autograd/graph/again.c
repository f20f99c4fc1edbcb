/* again.c: values that would be kept from forward to backward, computed again there instead.
 *
 * Between its last use in forward and its first in backward a value only takes room. It is computed
 * again if that takes one pass over values that are there anyway and cost.c, asked with the two
 * computations as two users, does not want it kept. A heavy value comes back without its price where
 * the gradient of its op computes the heavy part anyway (tl_op.with_result). Source: Chen et al. 2016. */
#include "autograd/graph/fused.h"
#include "autograd/graph/plan.h"

enum { NONE = UINT32_MAX };

typedef struct {
    uint32_t before, after; /* the steps that use it on both sides of its longest rest */
} rest;

/* The longest stretch of steps in which the value that step i makes in root r is not used. */
static rest longest_rest(const tl_graph *g, uint32_t i, uint32_t r)
{
    rest best = {i, i};
    uint32_t last = i;
    for (uint32_t u = i + 1; u < g->n_steps; u++) {
        if (!tl_step_touches(&g->step[u], r, false))
            continue;
        if (u - last > best.after - best.before)
            best = (rest){last, u};
        last = u;
    }
    return best;
}

static bool written_between(const tl_graph *g, uint32_t r, uint32_t from, uint32_t to)
{
    for (uint32_t u = from + 1; u < to; u++)
        if (tl_step_touches(&g->step[u], r, true))
            return true;
    return false;
}

static bool used_from(const tl_graph *g, uint32_t r, uint32_t from)
{
    for (uint32_t u = from; u < g->n_steps; u++)
        if (tl_step_touches(&g->step[u], r, false))
            return true;
    return false;
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
static int sources(const tl_plan_step *s) { return s->fused == NULL && s->call.op->again.op != NULL ? s->call.op->again.n : s->n_in; }

static const tl_spot *source(const tl_graph *g, const tl_plan_step *s, int k)
{
    if (s->fused != NULL || s->call.op->again.op == NULL)
        return &s->array[k];
    int from = s->call.op->again.from[k];
    return from >= 0 ? input_spot(g, s, from) : &s->array[s->n_in + ~from];
}

/* These are there, unchanged, at step `at`: without living longer for it, unless they are small. */
static bool sources_stay(const tl_graph *g, uint32_t i, uint32_t at, size_t bytes)
{
    const tl_plan_step *s = &g->step[i];
    for (int k = 0; k < sources(s); k++) {
        const tl_spot *p = source(g, s, k);
        if (p == NULL)
            continue;
        if (written_between(g, p->root, i, at))
            return false;
        if (g->roots[p->root].kind == TL_ROOT_SLAB && 8 * g->roots[p->root].bytes > bytes && !used_from(g, p->root, at))
            return false;
    }
    return true;
}

static bool is_result(const tl_graph *g, uint32_t r)
{
    for (int i = 0; i < g->n_out; i++)
        if (g->out_spot[i].root == r)
            return true;
    for (int i = 0; i < g->tracing->n_watch; i++)
        if (g->watch_spot[i].root == r)
            return true;
    return false;
}

/* The value in result 0 of step i rests long enough, in memory of its own, to be worth a thought. */
static bool rests(const tl_graph *g, uint32_t i, rest *where)
{
    const tl_cost_limits *l = &g->opt.limits;
    const tl_plan_step *s = &g->step[i];
    const tl_node *n = &g->t->node[s->node];
    int64_t bytes = l->again_bytes > 0 ? l->again_bytes : 4096, steps = l->again_steps > 0 ? l->again_steps : 16;
    if (s->n_out == 0 || tl_node_mutates(n) || n->op->traits & TL_RANDOM || n->mode & TL_ANOMALY)
        return false;
    uint32_t r = s->array[s->n_in].root;
    if (g->roots[r].kind != TL_ROOT_SLAB || (int64_t)g->roots[r].bytes < bytes || is_result(g, r))
        return false;
    *where = longest_rest(g, i, r);
    return where->after - where->before >= steps && !written_between(g, r, i, g->n_steps);
}

static tl_cost_question question_of(const tl_plan_step *s, const tl_node *n)
{
    const tl_array *y = s->array[s->n_in].a;
    bool loop = tl_fusable(n);
    tl_cost_question q = {.counts = loop, .heavy = s->fused != NULL ? s->fused->heavy : n->op->traits & TL_HEAVY, .users = 2, .sizes_known = true,
                          .body = s->fused != NULL ? s->fused->n_ops : 1, .written = tl_array_count(y) * (int64_t)tl_dtype_size(y->dtype)};
    for (int k = 0; k < s->n_in; k++)
        if (tl_array_count(s->array[k].a) != 1)
            q.read += tl_array_count(s->array[k].a) * (int64_t)tl_dtype_size(s->array[k].a->dtype);
    return q;
}

static uint32_t new_root(tl_graph *g, uint32_t like)
{
    g->roots[g->n_roots] = (tl_root){.kind = TL_ROOT_SLAB, .bytes = g->roots[like].bytes};
    return g->n_roots++;
}

/* Steps from `from` on find the value in another root. */
static void move_uses(tl_graph *g, uint32_t from, uint32_t r, uint32_t to)
{
    for (uint32_t u = from; u < g->n_steps; u++)
        for (int k = 0; k < g->step[u].n_in; k++)
            if (g->step[u].array[k].root == r)
                g->step[u].array[k].root = to;
}

static bool room(const tl_graph *g, int roots) { return g->n_roots + (uint32_t)roots <= g->cap_roots; }

/* A step of another op that gives result 0 of s. */
static tl_status other_step(tl_graph *g, const tl_plan_step *s, tl_plan_step *out)
{
    const tl_op *op = s->call.op->again.op;
    int n = s->call.op->again.n;
    const tl_array **in = tl_bump_get(&g->bump, (size_t)n * sizeof *in);
    tl_array *at = tl_bump_get(&g->bump, (size_t)(n + op->n_out) * sizeof *at);
    *out = (tl_plan_step){.node = s->node, .call = s->call, .array = tl_bump_get(&g->bump, (size_t)(n + op->n_out) * sizeof *out->array)};
    if (in == NULL || at == NULL || out->array == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan %s", op->name);
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

/* Step i once more, just before step `at`. */
static tl_status repeat(tl_graph *g, uint32_t i, uint32_t at)
{
    tl_plan_step again;
    uint32_t r = g->step[i].array[g->step[i].n_in].root, fresh = 0;
    TL_TRY(g->step[i].fused == NULL && g->step[i].call.op->again.op != NULL ? other_step(g, &g->step[i], &again) : tl_plan_step_of(g, g->step[i].node, &again));
    again.again = true;
    for (int j = 0; j < again.n_out; j++) {
        uint32_t to = new_root(g, again.array[again.n_in + j].root);
        fresh = j == 0 ? to : fresh;
        again.array[again.n_in + j].root = to;
    }
    move_uses(g, at, r, fresh);
    for (uint32_t u = g->n_steps++; u > at; u--)
        g->step[u] = g->step[u - 1];
    g->step[at] = again;
    return TL_OK;
}

/* ---- a heavy value, from the step of its own gradient ---- */

/* The step after `from` whose op can give the value of step i again from the same operands. */
static uint32_t gradient_step(const tl_graph *g, uint32_t i, uint32_t from)
{
    const tl_plan_step *s = &g->step[i];
    const tl_op *op = g->t->node[s->node].op;
    for (uint32_t u = from; u < g->n_steps && s->fused == NULL; u++) {
        const tl_plan_step *d = &g->step[u];
        bool same = d->fused == NULL && d->call.op->with_result != NULL && d->call.op->remakes == op && d->n_in == s->n_in + 1 && g->t->node[d->node].kernel == NULL;
        for (int k = 0; k < s->n_in && same; k++) {
            const tl_spot *a = &s->array[k], *b = &d->array[k + 1];
            same = a->root == b->root && a->offset == b->offset && tl_array_same_shape(a->a, b->a) && a->a->dtype == b->a->dtype &&
                   tl_array_contiguous(a->a) == tl_array_contiguous(b->a);
        }
        if (same)
            return u;
    }
    return NONE;
}

/* Moves step u down until it stands behind step `below`; false, with nothing moved, if something is in its way. */
static bool sink(tl_graph *g, uint32_t u, uint32_t below)
{
    for (uint32_t k = u + 1; k <= below; k++)
        if (!tl_steps_may_swap(&g->step[u], &g->step[k]))
            return false;
    tl_plan_step moved = g->step[u];
    for (uint32_t k = u; k < below; k++)
        g->step[k] = g->step[k + 1];
    g->step[below] = moved;
    return true;
}

static tl_status add_result(tl_graph *g, tl_plan_step *d, const tl_plan_step *s, uint32_t root)
{
    int n = d->n_in + d->n_out;
    tl_spot *spots = tl_bump_get(&g->bump, (size_t)(n + 1) * sizeof *spots);
    tl_array *out = tl_bump_get(&g->bump, (size_t)(d->n_out + 1) * sizeof *out);
    if (spots == NULL || out == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan %s", d->call.op->name);
    for (int k = 0; k < n; k++)
        spots[k] = d->array[k];
    for (int j = 0; j < d->n_out; j++) {
        out[j] = *d->array[d->n_in + j].a;
        spots[d->n_in + j].a = &out[j];
    }
    out[d->n_out] = *s->array[s->n_in].a;
    spots[n] = (tl_spot){.a = &out[d->n_out], .root = root, .offset = s->array[s->n_in].offset, .written = true};
    d->array = spots;
    d->n_out++;
    d->call.op = d->call.op->with_result;
    d->call.out = out;
    d->call.n_out = d->n_out;
    return TL_OK;
}

/* The uses of step i's value after its rest take it from the gradient's step, if they can all come behind that. */
static tl_status take_from_gradient(tl_graph *g, uint32_t i, uint32_t after)
{
    uint32_t r = g->step[i].array[g->step[i].n_in].root, d = gradient_step(g, i, after);
    if (d == NONE)
        return TL_OK;
    for (uint32_t u = d; u-- > after;)
        if (tl_step_touches(&g->step[u], r, false)) {
            if (!sink(g, u, d))
                return TL_OK;
            d--;
        }
    uint32_t fresh = new_root(g, r);
    TL_TRY(add_result(g, &g->step[d], &g->step[i], fresh));
    g->step[d].again = true;
    move_uses(g, d + 1, r, fresh);
    return TL_OK;
}

/* Step i's value, which rests, is kept or not; the decision is noted. */
static tl_status settle(tl_graph *g, uint32_t i, uint32_t after)
{
    const tl_plan_step *s = &g->step[i];
    tl_decision *d = &g->rest[s->node];
    uint32_t roots = g->n_roots;
    d->asked = true;
    d->question = question_of(s, &g->t->node[s->node]);
    d->answer = tl_cost_decide(d->question, g->opt.limits);
    if (!d->answer.keep && !sources_stay(g, i, after, g->roots[s->array[s->n_in].root].bytes))
        d->answer.keep = true, d->answer.rule = "operands are gone";
    if (!d->answer.keep)
        return repeat(g, i, after);
    TL_TRY(take_from_gradient(g, i, after));
    if (g->n_roots > roots)
        d->answer.keep = false, d->answer.rule = "its gradient's step";
    return TL_OK;
}

tl_status tl_plan_again(tl_graph *g)
{
    g->rest = tl_bump_get(&g->bump, (g->t->n_nodes + 1) * sizeof *g->rest);
    if (g->rest == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan a graph of %u nodes", g->t->n_nodes);
    for (uint32_t i = 0; i < g->n_steps && !g->opt.limits.never_inline; i++) {
        const tl_plan_step *s = &g->step[i];
        const tl_node *n = &g->t->node[s->node];
        rest where;
        if (!s->again && n->kernel == NULL && (tl_fusable(n) || n->op->traits & (TL_ONE_PASS | TL_ELEMENTWISE)) && room(g, s->n_out) && rests(g, i, &where))
            TL_TRY(settle(g, i, where.after));
    }
    return TL_OK;
}
