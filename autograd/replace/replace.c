/* replace.c: a graph rewritten, in passes, until nothing matches any more.
 *
 * A pass looks at every node from the last to the first, takes what may be replaced,
 * and records the graph again with the replacements in place. A rule does not
 * match what it has made itself, however often that was rewritten since: so passes end. */
#include <string.h>

#include "autograd/replace/internal.h"
#include "autograd/internal.h"

/* ---- what is known of a tape ---- */

static void hold(tl_pass *p, tl_tensor x)
{
    if (!tl_is_none(x) && x.owner == p->t->values.owner)
        p->held[x.index] = 1;
}

static void note_holders(tl_pass *p)
{
    uint32_t n = atomic_load(&p->t->values.count);
    for (int i = 0; i < p->g->n_out; i++)
        hold(p, p->g->out[i]);
    for (int i = 0; i < p->g->tracing->n_watch; i++)
        hold(p, p->g->tracing->watch[i].x);
    for (uint32_t v = 0; v < n; v++)
        hold(p, tl_values_at(&p->t->values, v)->source);
}

tl_status tl_pass_index(tl_pass *p)
{
    tl_tape *t = p->t;
    uint32_t n = p->n_values = atomic_load(&t->values.count), total = 0;
    n += t->model == NULL ? 0 : atomic_load(&t->model->values.count);
    for (uint32_t i = 0; i < t->n_nodes; i++)
        total += (uint32_t)t->node[i].n_in;
    p->user_start = tl_bump_get(&p->bump, (n + 2) * sizeof *p->user_start);
    p->user = tl_bump_get(&p->bump, (total + 1) * sizeof *p->user);
    p->held = tl_bump_get(&p->bump, n + 1);
    p->owner = tl_bump_get(&p->bump, (t->n_nodes + 1) * sizeof *p->owner);
    uint32_t *at = tl_bump_get(&p->bump, (n + 2) * sizeof *at);
    if (p->user_start == NULL || p->user == NULL || p->held == NULL || p->owner == NULL ||
        at == NULL)
        return tl_fail(&p->g->head.err, TL_ENOMEM, "no memory to look through a graph of %u nodes",
                       t->n_nodes);
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t i = 0; i < t->n_nodes; i++)
            for (int k = 0; k < t->node[i].n_in; k++) {
                tl_tensor x = t->node[i].in[k];
                if (tl_is_none(x))
                    continue;
                if (fill)
                    p->user[at[tl_pass_slot(p, x)]++] = i;
                else
                    p->user_start[tl_pass_slot(p, x) + 1]++;
            }
        for (uint32_t v = 0; v < n && !fill; v++) {
            p->user_start[v + 1] += p->user_start[v];
            at[v] = p->user_start[v];
        }
    }
    memset(p->owner, -1, t->n_nodes * sizeof *p->owner);
    note_holders(p);
    return TL_OK;
}

/* ---- recording with replacements ---- */

static tl_status add_origin(tl_pass *p, tl_origin **list, const tl_rule *r)
{
    for (const tl_origin *o = *list; o != NULL; o = o->next)
        if (o->rule == r)
            return TL_OK;
    tl_origin *o = tl_bump_get(&p->g->bump, sizeof *o);
    if (o == NULL)
        return tl_fail(&p->g->head.err, TL_ENOMEM, "no memory to replace in a graph");
    *o = (tl_origin){r, *list};
    *list = o;
    return TL_OK;
}

/* The rule itself, and those that made what it replaces. */
static tl_status origins_of(tl_pass *p, const tl_match *m, tl_origin **list)
{
    *list = NULL;
    TL_TRY(add_origin(p, list, m->rule));
    for (int k = 0; k < m->search->n_nodes; k++)
        for (const tl_origin *o = p->g->origin == NULL ? NULL : p->g->origin[m->node[k]]; o != NULL;
             o = o->next)
            TL_TRY(add_origin(p, list, o->rule));
    return TL_OK;
}

static tl_tensor here(tl_pass *p, tl_tape *dst, tl_tensor *map, tl_tensor x);

static tl_tensor put_value(tl_pass *p, const tl_match *m, tl_tape *dst, tl_tensor *map,
                           tl_pattern_ref r)
{
    return r.node >= 0            ? m->made[r.node][r.at]
           : r.node == TL_REF_ARG ? here(p, dst, map, m->arg[r.at])
                                  : TL_NONE;
}

/* What stands for x of the old graph in the new one: all that makes it is there. */
static tl_tensor here(tl_pass *p, tl_tape *dst, tl_tensor *map, tl_tensor x)
{
    const tl_value *v = tl_is_none(x) || x.owner != p->t->values.owner
                            ? NULL
                            : tl_values_at(&p->t->values, x.index);
    if (v != NULL && v->node < 0 && !tl_is_none(v->source))
        here(p, dst, map, v->source);
    if (v != NULL && v->node >= 0 && p->owner[v->node] >= 0 && tl_is_none(map[x.index])) {
        const tl_match *m = p->match[p->owner[v->node]];
        for (int i = 0; i < m->search->n_out; i++)
            if (m->search->out[i].node >= 0 && m->out[i] == x.index) {
                map[x.index] = put_value(p, m, dst, map, m->with->out[i]);
                tl_graph_keys_carry(dst, map[x.index], p->t, x, true);
            }
    }
    return tl_rebuild_map(dst, p->t, map, x);
}

/* Node k of what m puts. */
static tl_status put(tl_pass *p, tl_match *m, int k, tl_tape *dst, tl_tensor *map,
                     tl_origin **origin)
{
    const tl_pattern_node *q = &m->with->node[k];
    const tl_node *like = &p->t->node[m->node[m->search->out[0].node]];
    tl_tensor in[TL_PATTERN_ARGS];
    if (m->made == NULL)
        m->made = tl_bump_get(&p->bump, (size_t)m->with->n_nodes * sizeof *m->made);
    if (m->made == NULL)
        return tl_fail(&dst->head.err, TL_ENOMEM, "no memory to replace in a graph");
    TL_TRY(origins_of(p, m, origin));
    for (int j = 0; j < q->n_in; j++)
        in[j] = put_value(p, m, dst, map, q->in[j]);
    tl_scope outer = tl_scope_of(dst, like,
                                 like->mode |
                                     (p->joint ? TL_NO_GRAD : 0)); /* expanded: nothing is
                                                                      differentiated any more */
    tl_apply((tl_at){dst, like->file, like->line}, q->op, q->attrs, in, q->n_in, m->made[k]);
    tl_scope_end(dst, outer);
    for (int j = 0; p->joint && !tl_failed(dst) && j < q->op->n_out;
         j++) /* gradients came through it: other joint rules ask */
        tl_values_at(&dst->values, m->made[k][j].index)->needs_grad = (q->grad_out & TL_BIT(j)) !=
                                                                      0;
    return tl_failed(dst) ? tl_error_status(dst) : TL_OK;
}

/* Backward has been expanded on src: dst has the same accumulators. */
static void carry_gradients(tl_tape *dst, tl_tape *src, tl_tensor *map)
{
    tl_trace_take_gradients(dst, src);
    for (int i = 0; i < dst->n_grads; i++)
        dst->grad[i].leaf = tl_rebuild_map(dst, src, map, dst->grad[i].leaf);
}

static tl_status record(void *ctx, tl_tape *dst, tl_tape *src, tl_tensor *map)
{
    tl_pass *p = ctx;
    tl_origin **origin = tl_bump_get(&p->g->bump, (p->n_order + 1) * sizeof(tl_origin *));
    if (origin == NULL)
        return tl_fail(&dst->head.err, TL_ENOMEM, "no memory to replace in a graph");
    for (uint32_t i = 0; i < p->n_order && !tl_failed(dst); i++) {
        uint32_t node = p->order[i], at = dst->n_nodes;
        if (node >= src->n_nodes) {
            const tl_match *m = tl_splice_match(p, node);
            TL_TRY(put(p, p->match[p->owner[m->node[0]]], (int)(node - src->n_nodes - m->first),
                       dst, map, &origin[at]));
            continue;
        }
        for (int k = 0; k < src->node[node].n_in; k++)
            here(p, dst, map, src->node[node].in[k]);
        origin[at] = p->g->origin == NULL ? NULL : p->g->origin[node];
        tl_rebuild_node(dst, src, &src->node[node], map);
    }
    for (int i = 0; i < p->n_match && !tl_failed(dst); i++)
        for (int j = 0; j < p->match[i]->search->n_out; j++)
            if (p->match[i]->search->out[j].node >= 0)
                here(p, dst, map,
                     (tl_tensor){src->values.owner, p->match[i]->out[j], src->generation});
    if (tl_failed(dst))
        return tl_error_status(dst);
    if (p->joint)
        carry_gradients(dst, src, map);
    p->g->origin = origin;
    return TL_OK;
}

/* ---- passes ---- */

static tl_status try_rules(tl_pass *p, uint32_t node, int from, int to)
{
    tl_match m;
    for (int r = from; r < to && p->owner[node] < 0; r++) {
        if (p->rule[r]->root != p->t->node[node].op ||
            p->rule[r]->o.trace != (p->joint ? TL_TRACE_JOINT : TL_TRACE_FORWARD))
            continue;
        if (tl_candidate(p, p->rule[r], node, &m)) {
            m.at = node;
            m.rule_at = r;
            TL_TRY(tl_settle_later(p, &m));
        } else {
            TL_TRY(p->g->head.err.status);
            if (p->overlaps)
                TL_TRY(tl_settle_retry(p, node, r, r + 1));
        }
    }
    return TL_OK;
}

static tl_status sweep(tl_pass *p)
{
    tl_graph *g = p->g;
    TL_TRY(tl_pass_index(p));
    TL_TRY(tl_splice_prepare(p));
    for (uint32_t i = p->t->n_nodes; i-- > 0;)
        TL_TRY(try_rules(p, i, 0, p->n_rules));
    TL_TRY(tl_settle(p));
    while (p->refused) { /* what it stood in the way of */
        const tl_retry *again = p->retry;
        p->retry = NULL;
        p->refused = false;
        for (; again != NULL; again = again->next)
            TL_TRY(try_rules(p, again->node, again->from, again->to));
        TL_TRY(tl_settle(p));
    }
    if (p->n_match == 0)
        return TL_OK;
    if (!tl_splice_order(p))
        return tl_fail(&g->head.err, p->why.status,
                       "a graph with its replacements has no order: %.300s", p->why.message);
    return tl_graph_rebuild(g, !p->joint, record, p);
}

static void end_pass(tl_pass *p)
{
    tl_bump_free(&p->bump);
    tl_bump_free(&p->use_bump[0]);
    tl_bump_free(&p->use_bump[1]);
}

static bool any(const tl_rule **rule, int n, bool joint)
{
    for (int i = 0; i < n; i++)
        if ((rule[i]->o.trace == TL_TRACE_JOINT) == joint)
            return true;
    return false;
}

tl_status tl_graph_replace(tl_graph *g, bool joint)
{
    const tl_rule **rule;
    tl_tracing *s;
    int n = g->opt.no_replace ? 0 : tl_rules_on(&g->bump, &g->opt, &rule, &g->head.err);
    if (n < 0) {
        tl_fail(&g->head.err, TL_ENOMEM, "no memory for the list of replacements");
        return g->head.err.status;
    }
    if (n == 0 || !any(rule, n, joint))
        return TL_OK;
    tl_tape *scratch = tl_rule_tape(&s);
    if (scratch == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory for a tape");
    tl_status status =
        joint ? TL_OK
              : tl_graph_rebuild(
                    g, true, NULL,
                    NULL); /* canonical order: what matches first must not hang on recording */
    for (int made = 1; status == TL_OK && made > 0;) {
        tl_pass p = {
            .g = g, .t = g->t, .joint = joint, .scratch = scratch, .rule = rule, .n_rules = n};
        tl_report_begin(g, joint);
        status = sweep(&p);
        made = p.n_match;
        end_pass(&p);
    }
    tl_free(scratch);
    tl_tracing_free(s);
    return status;
}
