/* remake.c: a value computed a second time - by a step of its own, or in the step of its gradient.
 */
#include "autograd/graph/remake.h"

#include "autograd/graph/fused.h"
#include "autograd/graph/plan.h"

enum { NONE = UINT32_MAX };

tl_status tl_remake_no_memory(tl_graph *g, const tl_plan_step *s)
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

int tl_remake_sources(const tl_plan_step *s)
{
    return s->fused == NULL && s->call.op->again.op != NULL ? s->call.op->again.n : s->n_in;
}

const tl_spot *tl_remake_source(const tl_graph *g, const tl_plan_step *s, int k)
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
        return tl_remake_no_memory(g, s);
    for (int k = 0; k < n; k++) {
        const tl_spot *p = tl_remake_source(g, s, k);
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

tl_status tl_remake_before(tl_touches *t, uint32_t i, uint32_t at)
{
    tl_graph *g = t->g;
    tl_plan_step again;
    uint32_t r = g->step[i].array[g->step[i].n_in].root, fresh = 0;
    TL_TRY(g->step[i].fused == NULL && g->step[i].call.op->again.op != NULL
               ? other_step(g, &g->step[i], &again)
               : tl_plan_step_of(g, g->step[i].node, &again));
    again.again = true;
    for (int k = 0; k < again.n_in; k++) /* what it reads may have been made again before */
        again.array[k].root = tl_touches_root(t, again.array[k].root, at);
    for (int j = 0; j < again.n_out; j++) {
        uint32_t to = new_root(g, again.array[again.n_in + j].root);
        fresh = j == 0 ? to : fresh;
        again.array[again.n_in + j].root = to;
    }
    if (!tl_touches_insert(t, at, &again))
        return tl_remake_no_memory(g, &again);
    tl_touches_move(t, at, r, fresh);
    return TL_OK;
}

/* ---- a heavy value, from the step of its own gradient ---- */

/* Step d computes the gradient of s's op from the same operands, after a cotangent, and can give
 * its result besides. */
static bool remakes(const tl_graph *g, const tl_plan_step *d, const tl_plan_step *s)
{
    if (d->fused != NULL || d->call.op->with_result == NULL ||
        d->call.op->remakes != g->t->node[s->node].op || d->n_in != s->n_in + 1 ||
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
static uint32_t gradient_step(const tl_touches *t, uint32_t i, uint32_t from)
{
    const tl_plan_step *s = &t->g->step[i];
    uint32_t first = NONE;
    for (const tl_touch *u = s->fused == NULL && s->n_in > 0 ? t->of[s->array[0].root] : NULL;
         u != NULL; u = u->next)
        if (*u->step >= from && *u->step < first && remakes(t->g, &t->g->step[*u->step], s))
            first = *u->step;
    return first;
}

/* Moves step u down until it stands behind step `below`; false, with nothing moved, if something is
 * in its way. */
static bool sink(tl_touches *t, uint32_t u, uint32_t below)
{
    for (uint32_t k = u + 1; k <= below; k++)
        if (!tl_steps_may_swap(&t->g->step[u], &t->g->step[k]))
            return false;
    tl_touches_sink(t, u, below);
    return true;
}

static tl_status add_result(tl_graph *g, tl_plan_step *d, const tl_plan_step *s, uint32_t root)
{
    int n = d->n_in + d->n_out;
    tl_spot *spots = tl_bump_get(&g->bump, (size_t)(n + 1) * sizeof *spots);
    tl_array *out = tl_bump_get(&g->bump, (size_t)(d->n_out + 1) * sizeof *out);
    if (spots == NULL || out == NULL)
        return tl_remake_no_memory(g, d);
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
    d->call.op = d->call.op->with_result;
    d->call.out = out;
    d->call.n_out = d->n_out;
    return TL_OK;
}

tl_status tl_remake_in_gradient(tl_touches *t, uint32_t i, uint32_t after)
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
    if (!tl_touches_add(t, d, &g->step[d].array[g->step[d].n_in + g->step[d].n_out - 1]))
        return tl_remake_no_memory(g, &g->step[d]);
    g->step[d].again = true;
    tl_touches_move(t, d, r, fresh);
    return TL_OK;
}
