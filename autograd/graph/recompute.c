/* recompute.c: values that backward computes a second time instead of keeping them from forward.
 *
 * Between its last use in forward and its first use in backward a value only takes room. It is
 * computed again if that takes one pass over values that are in memory anyway, and if
 * tl_cost_decide, asked as if the two computations were two users, does not want it kept. A heavy
 * value comes back for free where the gradient of its op computes the heavy part anyway and can
 * give the value, too (tl_op.result_of). Source: Chen et al. 2016. */
#include <string.h>

#include "autograd/graph/internal.h"

/* ---- steps that are added and moved ---- */

/* The root in which step number `at` finds the value that was made in root r. */
static uint32_t root_for(const tl_graph *g, uint32_t r, uint32_t at)
{
    while (g->roots[r].remade_by != NULL && g->roots[r].remade_by->at < at)
        r = g->roots[r].remade;
    return r;
}

/* Makes the steps after s that read root r read root `to` instead. */
static void redirect(tl_graph *g, uint32_t r, const tl_plan_step *s, uint32_t to)
{
    tl_root *from = &g->roots[r];
    tl_spot **end = &g->roots[to].spots;
    while (from->spots != NULL && from->spots->step->at > s->at) {
        tl_spot *p = from->spots;
        from->spots = p->next;
        p->root = to;
        p->next = *end;
        *end = p;
        end = &p->next;
    }
    from->remade_by = s;
    from->remade = to;
}

static void insert(tl_graph *g, tl_plan_step *s, uint32_t at)
{
    memmove(g->step + at + 1, g->step + at, (g->n_steps - at) * sizeof *g->step);
    g->step[at] = s;
    g->n_steps++;
    for (uint32_t i = at; i < g->n_steps; i++)
        g->step[i]->at = i;
    tl_step_link(g, s, 0);
}

static void unlink_step(tl_graph *g, tl_plan_step *s)
{
    for (int k = 0; k < s->n_in + s->n_out; k++) {
        tl_spot **p = &g->roots[s->spot[k].root].spots;
        while (*p != &s->spot[k])
            p = &(*p)->next;
        *p = s->spot[k].next;
    }
}

/* Moves s down until it stands behind step number `below`. False, with nothing moved, if it cannot
 * change places with a step on the way. */
static bool sink(tl_graph *g, tl_plan_step *s, uint32_t below)
{
    for (uint32_t i = s->at + 1; i <= below; i++)
        if (!tl_steps_may_swap(s, g->step[i]))
            return false;
    unlink_step(g, s);
    for (; s->at < below; s->at++) {
        g->step[s->at] = g->step[s->at + 1];
        g->step[s->at]->at--;
    }
    g->step[below] = s;
    tl_step_link(g, s, 0);
    return true;
}

static uint32_t new_root(tl_graph *g, uint32_t like)
{
    return tl_root_new(g, (tl_root){.kind = TL_ROOT_SLAB, .bytes = g->roots[like].bytes});
}

/* ---- a value computed by a second step ---- */

/* The spot of input k of s, NULL if it is absent. */
static const tl_spot *input_spot(const tl_plan_step *s, int k)
{
    int at = 0;
    for (int i = 0; i < k; i++)
        at += s->in[i] != NULL;
    return s->in[k] == NULL ? NULL : &s->spot[at];
}

/* Another op can compute the value of s, as the op of s declares. A user's op may declare nonsense;
 * then the op itself computes the value. */
static bool other_op_can(const tl_plan_step *s)
{
    const tl_op *op = s->call.op, *other = op->again.op;
    const int n = op->again.n;
    if (s->fused != NULL || other == NULL || n < 0 || n > 4 ||
        (other->n_in >= 0 && other->n_in != n) || (n == 0 && other->traits & TL_POINTWISE) ||
        other->n_out < 1 || other->n_out > s->n_out || other->attr_size > op->attr_size ||
        other->traits & (TL_VIEW | TL_MUTATES | TL_RANDOM))
        return false;
    for (int k = 0; k < n; k++) {
        const int from = op->again.from[k];
        if (from < 0
                ? ~from < other->n_out || ~from >= s->n_out
                : from >= s->call.n_in || (s->in[from] == NULL && !(other->optional & TL_BIT(k))))
            return false;
    }
    return true;
}

/* A step that computes result 0 of s by the op that can do that from other values (tl_op.again).
 * NULL, with g's error, if there is no memory. */
static tl_plan_step *step_of_other_op(tl_graph *g, const tl_plan_step *s)
{
    const tl_op *op = s->call.op;
    tl_plan_step *again = tl_step_new(g, s->node, op->again.op, op->again.n);
    for (int k = 0; again != NULL && k < op->again.n; k++) {
        const int from = op->again.from[k];
        const tl_spot *p = from >= 0 ? input_spot(s, from) : &s->spot[s->n_in + ~from];
        if (p != NULL)
            tl_step_add_in(again, k, (tl_spot){.a = p->a, .root = p->root, .offset = p->offset});
    }
    for (int j = 0; again != NULL && j < op->again.op->n_out; j++)
        tl_step_add_out(again, s->spot[s->n_in + j]);
    return again;
}

/* Before step number `at`, all operands of `again`, a second step of s, are as they were for s, and
 * none of them lives longer because of it, unless it is small. */
static bool operands_stay(const tl_graph *g, const tl_plan_step *again, const tl_plan_step *s,
                          uint32_t at)
{
    const size_t bytes = g->roots[s->spot[s->n_in].root].bytes;
    for (int k = 0; k < again->n_in; k++) {
        const uint32_t root = again->spot[k].root; /* what is remade elsewhere is never changed */
        const tl_root *r = &g->roots[root_for(g, root, at)];
        const bool used = r->spots != NULL && r->spots->step->at >= at;
        if (tl_root_written_between(g, root, s->at, at) ||
            (r->kind == TL_ROOT_SLAB && 8 * r->bytes > bytes && !used))
            return false;
    }
    return true;
}

/* Inserts `again`, a second step of s, before step number `at`; from there on its value is read. */
static void remake_before(tl_graph *g, const tl_plan_step *s, tl_plan_step *again, uint32_t at)
{
    const uint32_t r = s->spot[s->n_in].root, fresh = g->n_roots;
    for (int k = 0; k < again->n_in; k++)
        again->spot[k].root = root_for(g, again->spot[k].root, at);
    for (int j = 0; j < again->n_out; j++) {
        tl_spot *p = &again->spot[again->n_in + j];
        p->root = new_root(g, p->root);
    }
    insert(g, again, at);
    redirect(g, r, again, fresh);
}

/* ---- a heavy value, from the step of its own gradient ---- */

/* d computes the gradient of s's op from a cotangent and the operands of s, and can give the result
 * of s, too. */
static bool can_give(const tl_graph *g, const tl_plan_step *d, const tl_plan_step *s)
{
    if (d->fused != NULL || d->call.op->result_of != g->t->node[s->node].op ||
        d->n_out > d->call.op->n_out || d->n_out == TL_OUTS || d->n_in != s->n_in + 1 ||
        d->call.kernel != NULL)
        return false;
    for (int k = 0; k < s->n_in; k++) {
        const tl_spot *a = &s->spot[k], *b = &d->spot[k + 1];
        if (a->root != b->root || a->offset != b->offset || !tl_array_same_shape(a->a, b->a) ||
            a->a->dtype != b->a->dtype || tl_array_contiguous(a->a) != tl_array_contiguous(b->a))
            return false;
    }
    return true;
}

/* The first step from number `from` on that can give the result of s; NULL: none. */
static tl_plan_step *gradient_step(const tl_graph *g, const tl_plan_step *s, uint32_t from)
{
    tl_plan_step *first = NULL;
    if (s->fused != NULL || s->n_in == 0)
        return NULL;
    for (const tl_spot *p = g->roots[s->spot[0].root].spots; p != NULL && p->step->at >= from;
         p = p->next)
        if (can_give(g, p->step, s))
            first = p->step;
    return first;
}

/* Makes the uses of the value of s from step number `after` on take it from the step of its
 * gradient. Returns false, and the value stays where it is, if no such step can give it or a use
 * cannot move behind that step. */
static bool remake_in_gradient(tl_graph *g, const tl_plan_step *s, uint32_t after)
{
    const tl_spot *y = &s->spot[s->n_in];
    tl_plan_step *d = gradient_step(g, s, after);
    if (d == NULL)
        return false;
    for (uint32_t i = d->at; i-- > after;)
        if (tl_step_touches(g->step[i], y->root, false) && !sink(g, g->step[i], d->at))
            return false;
    const uint32_t fresh = new_root(g, y->root);
    tl_step_add_out(d, (tl_spot){.a = y->a, .root = fresh, .offset = y->offset});
    d->call.n_out++;
    d->again = true;
    tl_step_link(g, d, d->n_in + d->n_out - 1);
    redirect(g, y->root, d, fresh);
    return true;
}

/* ---- which values ---- */

static bool may_be_remade(const tl_graph *g, const tl_plan_step *s)
{
    const tl_node *n = &g->t->node[s->node];
    const bool one_pass = tl_fusable(n) || n->op->traits & (TL_ONE_PASS | TL_ELEMENTWISE);
    return !s->again && n->kernel == NULL && one_pass && s->n_out > 0 && !tl_node_mutates(n) &&
           !(n->op->traits & TL_RANDOM) && !(n->mode & TL_WATCHED_MODES);
}

/* The value of s lies in memory of its own and is unused between two steps for long enough to ask
 * whether to keep it. *after: the number of the second of these. */
static bool rests(const tl_graph *g, const tl_plan_step *s, uint32_t *after)
{
    const tl_cost_limits *l = &g->opt.limits;
    const int64_t bytes = l->again_bytes > 0 ? l->again_bytes : 4096,
                  steps = l->again_steps > 0 ? l->again_steps : 8;
    const uint32_t r = s->spot[s->n_in].root;
    const tl_root *root = &g->roots[r];
    uint32_t longest = 0;
    if (root->kind != TL_ROOT_SLAB || (int64_t)root->bytes < bytes || root->result ||
        tl_root_written_between(g, r, s->at, g->n_steps))
        return false;
    for (const tl_spot *p = root->spots; p->step->at > s->at; p = p->next) {
        const uint32_t unused = p->step->at - p->next->step->at;
        if (unused >= longest) { /* of two equal ones the first */
            longest = unused;
            *after = p->step->at;
        }
    }
    return longest >= steps;
}

static tl_cost_question question_of(const tl_plan_step *s, const tl_node *n)
{
    const tl_fused *f = s->fused;
    tl_cost_question q = {.counts = tl_fusable(n),
                          .heavy = f != NULL ? f->heavy : n->op->traits & TL_HEAVY,
                          .users = 2,
                          .sizes_known = true,
                          .body = f != NULL ? f->n_ops : 1,
                          .written = (int64_t)tl_array_room(s->spot[s->n_in].a)};
    for (int k = 0; k < s->n_in; k++)
        if (tl_array_count(s->spot[k].a) != 1)
            q.read += (int64_t)tl_array_room(s->spot[k].a);
    return q;
}

/* Decides whether the value of s, which rests until step number `after`, is kept, and notes that.
 */
static tl_status settle(tl_graph *g, const tl_plan_step *s, uint32_t after)
{
    tl_decision *d = &g->rest[s->node];
    d->question = question_of(s, &g->t->node[s->node]);
    d->answer = tl_cost_decide(d->question, g->opt.limits);
    if (!d->answer.keep) {
        tl_plan_step *again = other_op_can(s) ? step_of_other_op(g, s)
                                              : tl_plan_step_of(g, s->node);
        if (again == NULL)
            return g->head.err.status;
        again->again = true;
        if (operands_stay(g, again, s, after)) {
            remake_before(g, s, again, after);
            return TL_OK;
        }
        d->answer.rule = "operands are gone";
    }
    d->answer.keep = !remake_in_gradient(g, s, after);
    if (!d->answer.keep)
        d->answer.rule = "its gradient's step";
    return TL_OK;
}

tl_status tl_plan_recompute(tl_graph *g)
{
    uint32_t after = 0;
    g->rest = tl_graph_room(g, g->t->n_nodes, sizeof *g->rest);
    if (g->rest == NULL)
        return g->head.err.status;
    for (uint32_t i = 0; i < g->n_steps && !g->opt.limits.never_inline; i++)
        if (may_be_remade(g, g->step[i]) && rests(g, g->step[i], &after))
            TL_TRY(settle(g, g->step[i], after));
    return TL_OK;
}
