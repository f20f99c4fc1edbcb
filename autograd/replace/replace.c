/* replace.c: a graph rewritten, in passes, until nothing matches any more; and the report of it.
 *
 * A pass looks at every node from the last to the first for what may be replaced. Replacements are
 * recorded behind the program, the values that they give stand for those that they replace, and the
 * graph is rebuilt with all of them and compared (compare.c). Those to blame for a difference go,
 * and the rest is compared again; where nobody can be blamed it is tried with each half. So time
 * grows with the graph and not with its square. A rule does not match what it has made itself,
 * however often that was rewritten since: so passes end. */
#include <string.h>

#include "autograd/replace/internal.h"

/* ---- the report ---- */

/* Made: why is "". Missed in the last pass of its kind: why says why. */
typedef struct tl_report_line {
    const char *name, *why;
    int times, rounds;
    bool joint;
    struct tl_report_line *next;
} line;

/* One more for that name and reason; without memory an error of the graph's. */
static void count_in(tl_graph *g, const tl_rule *r, const char *why, bool rounds)
{
    line **l = &g->report;
    while (*l != NULL && (strcmp((*l)->name, r->o.name) != 0 || strcmp((*l)->why, why) != 0))
        l = &(*l)->next;
    if (*l == NULL) {
        char *text = tl_bump_get(&g->bump, strlen(why) + 1);
        line *fresh = tl_bump_get(&g->bump, sizeof *fresh);
        if (fresh == NULL || text == NULL) {
            tl_fail(&g->head.err, TL_ENOMEM, "no memory for a report");
            return;
        }
        *fresh = (line){r->o.name, strcpy(text, why), 0, 0, r->o.trace == TL_TRACE_JOINT, NULL};
        *l = fresh;
    }
    (*l)->times++;
    (*l)->rounds += rounds;
}

void tl_report_missed(tl_graph *g, const tl_rule *r, const char *why)
{
    count_in(g, r, why, false);
}

/* A new pass: what was missed in the last one may be found now. */
static void report_begin(tl_graph *g, bool joint)
{
    for (line **l = &g->report; *l != NULL;)
        if ((*l)->why[0] != 0 && (*l)->joint == joint)
            *l = (*l)->next;
        else
            l = &(*l)->next;
}

static tl_status no_memory(tl_pass *p)
{
    return tl_fail(&p->g->head.err, TL_ENOMEM, "no memory to replace in a graph of %u nodes",
                   p->n_nodes);
}

/* ---- a replacement in its place ---- */

/* The rule itself, and those that made what it replaces; NULL when out of memory. */
static bool *origin_of(tl_pass *p, const tl_match *m)
{
    bool *set = tl_bump_get(&p->g->bump, (size_t)p->n_rules);
    for (int k = 0; set != NULL && k < m->search->n_nodes; k++)
        for (int r = 0; r < p->n_rules && p->origin[m->b.node[k]] != NULL; r++)
            set[r] |= p->origin[m->b.node[k]][r];
    if (set != NULL)
        set[m->rule_at] = true;
    return set;
}

/* Records what m puts behind the program, as where its first output is called. */
static tl_status record(tl_pass *p, tl_match *m)
{
    tl_tape *t = p->t;
    const uint32_t root = (uint32_t)m->b.node[m->search->out[0].node], first = t->n_nodes;
    const tl_node like = t->node[root];
    const int part = tl_traced_of(t)->part;
    bool consumed[TL_PATTERN_ARGS] = {false};
    if ((m->origin = origin_of(p, m)) == NULL)
        return no_memory(p);
    for (int i = 0; i < m->with->n_args; i++) { /* not yet where it is going to stand */
        tl_value *v = tl_is_none(m->b.arg[i]) ? NULL : tl_peek(t, m->b.arg[i]);
        consumed[i] = v != NULL && v->consumed;
        if (v != NULL)
            v->consumed = false;
    }
    tl_scope outer = tl_scope_of(t, &like, /* expanded: nothing is to differentiate */
                                 like.mode | (p->joint ? TL_NO_GRAD : 0));
    tl_trace_part(t, tl_node_part(t, root));
    tl_pattern_run((tl_at){t, like.file, like.line}, m->with, m->b.arg, m->put);
    tl_trace_part(t, part);
    tl_scope_end(t, outer);
    for (int i = 0; i < m->with->n_args; i++)
        if (consumed[i])
            tl_peek(t, m->b.arg[i])->consumed = true;
    if (tl_failed(t))
        return tl_fail(&p->g->head.err, tl_error_status(t), "%s", tl_error(t));
    for (uint32_t i = first; i < t->n_nodes; i++) {
        p->owner[i] = m;
        for (int j = 0; p->joint && j < t->node[i].n_out; j++) /* other joint rules ask */
            tl_peek(t, tl_node_out(t, &t->node[i], j))->needs_grad =
                (m->with->node[i - first].grad_out & TL_BIT(j)) != 0;
    }
    return TL_OK;
}

/* The matches' values stand for what they replace, or no longer. */
static void stand_in(tl_pass *p, tl_match **m, int n, bool there)
{
    for (; n > 0; n--, m++) {
        (*m)->in_place = there;
        for (int k = 0; k < (*m)->search->n_nodes; k++)
            p->gone[(*m)->b.node[k]] = there;
        for (int i = 0; i < (*m)->search->n_out; i++)
            if ((*m)->out[i] != UINT32_MAX)
                p->stand_in[(*m)->out[i]] = there ? (*m)->put[i] : TL_NONE;
    }
}

/* The graph with all that stands in for something now; false, with p->why, where it has no order or
 * reads memory otherwise. */
static bool rebuild(tl_pass *p, tl_side *s)
{
    *s = (tl_side){.from = tl_bump_get(&p->bump, (p->t->n_nodes + 1) * sizeof *s->from)};
    const tl_splice splice = {p->n_nodes, p->n_values, p->gone, p->stand_in, s->from};
    if (s->from == NULL)
        return tl_fail(&p->why, TL_ENOMEM, "no memory to rebuild a graph"), false;
    s->t = tl_graph_again(p->g, !p->joint, &splice, &s->map, &p->why);
    return s->t != NULL && tl_same_memory(p, s);
}

/* The rebuilt graph in the place of the old; *origin is that of its nodes. */
static tl_status take(tl_pass *p, bool ***origin)
{
    tl_graph *g = p->g;
    tl_tape *dst = p->now.t;
    *origin = tl_bump_get(&g->bump, (dst->n_nodes + 1) * sizeof **origin);
    if (*origin == NULL)
        return no_memory(p);
    for (uint32_t i = 0; i < dst->n_nodes; i++) {
        uint32_t from = p->now.from[i];
        (*origin)[i] = from < p->n_nodes ? p->origin[from] : p->owner[from]->origin;
    }
    if (p->joint) { /* the same accumulators */
        tl_trace_take_gradients(dst, p->t);
        for (int i = 0; i < dst->n_grads; i++)
            dst->grad[i].leaf = tl_rebuild_map(dst, p->t, p->now.map, dst->grad[i].leaf);
    }
    tl_graph_take(g, dst, p->now.map);
    p->now.t = NULL;
    return TL_OK;
}

/* ---- which are made ---- */

/* Rules from .. to - 1 may be tried again at a node. */
static tl_status retry_later(tl_pass *p, uint32_t node, int from, int to)
{
    tl_retry *r = tl_bump_get(&p->bump, sizeof *r);
    if (r == NULL)
        return no_memory(p);
    *r = (tl_retry){node, from, to, p->retry};
    p->retry = r;
    return TL_OK;
}

static tl_status accept(tl_pass *p, tl_match **m, int n, const tl_side *s)
{
    tl_graph_leave(p->now.t);
    p->now = *s;
    p->n_made += n;
    for (int i = 0; i < n; i++) {
        m[i]->settled = true;
        count_in(p->g, m[i]->rule, "", m[i]->rounds);
    }
    return p->g->head.err.status;
}

/* Its nodes are free again, and others have a chance there. */
static tl_status give_up(tl_pass *p, const tl_match *m)
{
    p->refused = true;
    for (int k = 0; k < m->search->n_nodes; k++)
        p->owner[m->b.node[k]] = NULL;
    return retry_later(p, m->root, m->rule_at + 1, p->n_rules);
}

/* As many of these as can be: without those to blame for another sum; where it cannot be said who
 * is, half of them after the other. */
static tl_status settle(tl_pass *p, tl_match **m, int n)
{
    tl_side s;
    while (n > 0) {
        int kept = 0;
        tl_err_clear(&p->why);
        stand_in(p, m, n, true);
        bool there = rebuild(p, &s) && tl_compare_uses(p, &s);
        for (int i = 0; i < n; i++)
            kept += !m[i]->blamed;
        if (there && kept == n)
            return accept(p, m, n, &s);
        tl_graph_leave(s.t);
        stand_in(p, m, n, false);
        TL_TRY(p->g->head.err.status);
        if (p->why.status == TL_ENOMEM)
            return no_memory(p);
        if (kept == n && n > 1) {
            TL_TRY(settle(p, m, n / 2));
            m += n / 2, n -= n / 2;
            continue;
        }
        if (kept == n) {
            m[0]->blamed = true;
            tl_report_missed(p->g, m[0]->rule, p->why.message);
        }
        kept = 0;
        for (int i = 0; i < n; i++)
            if (m[i]->blamed)
                TL_TRY(give_up(p, m[i]));
            else
                m[kept++] = m[i];
        n = kept;
    }
    return p->g->head.err.status;
}

/* All that is found by now, recorded and settled together. */
static tl_status settle_found(tl_pass *p)
{
    tl_match **m = p->found, **owner;
    const int n = p->n_found;
    uint32_t nodes = p->t->n_nodes;
    for (int i = 0; i < n; i++)
        nodes += (uint32_t)m[i]->with->n_nodes;
    p->n_found = 0;
    p->found = tl_bump_get(&p->bump, (p->n_nodes + 1) * sizeof *p->found);
    owner = tl_bump_get(&p->bump, (nodes + 1) * sizeof *owner);
    if (p->found == NULL || owner == NULL)
        return no_memory(p);
    p->owner = memcpy(owner, p->owner, p->t->n_nodes * sizeof *owner);
    for (int i = 0; i < n; i++)
        TL_TRY(record(p, m[i]));
    return settle(p, m, n);
}

/* ---- passes ---- */

/* One that is good by itself waits for the others. */
static tl_status try_rules(tl_pass *p, uint32_t node, int from, int to)
{
    tl_match m;
    for (int r = from; r < to && p->owner[node] == NULL; r++) {
        if (p->rule[r]->root != p->t->node[node].op)
            continue;
        if (!tl_candidate(p, p->rule[r], node, &m)) {
            TL_TRY(p->g->head.err.status);
            if (p->overlaps)
                TL_TRY(retry_later(p, node, r, r + 1));
            continue;
        }
        tl_match *copy = p->found[p->n_found++] = tl_bump_get(&p->bump, sizeof *copy);
        if (copy == NULL)
            return no_memory(p);
        *copy = m;
        copy->root = node;
        copy->rule_at = r;
        for (int k = 0; k < m.search->n_nodes; k++)
            p->owner[m.b.node[k]] = copy;
    }
    return TL_OK;
}

/* *origin: by node of the graph's tape, as it was and as it is now. */
static tl_status sweep(tl_pass *p, bool ***origin)
{
    size_t n = p->t->n_nodes + (size_t)1, values = atomic_load(&p->t->values.count) + (size_t)1;
    p->origin = *origin != NULL ? *origin : tl_bump_get(&p->bump, n * sizeof *p->origin);
    p->gone = tl_bump_get(&p->bump, n);
    p->found = tl_bump_get(&p->bump, n * sizeof *p->found);
    p->stand_in = tl_bump_get(&p->bump, values * sizeof *p->stand_in);
    if (p->origin == NULL || p->gone == NULL || p->found == NULL || p->stand_in == NULL ||
        tl_pass_index(p) != TL_OK || !tl_compare_prepare(p))
        return no_memory(p);
    for (uint32_t i = p->n_nodes; i-- > 0;)
        TL_TRY(try_rules(p, i, 0, p->n_rules));
    TL_TRY(settle_found(p));
    while (p->refused) { /* what it stood in the way of */
        const tl_retry *again = p->retry;
        p->retry = NULL;
        p->refused = false;
        for (; again != NULL; again = again->next)
            TL_TRY(try_rules(p, again->node, again->from, again->to));
        TL_TRY(settle_found(p));
    }
    if (p->n_made > 0)
        return take(p, origin);
    p->t->n_nodes = p->n_nodes; /* nothing of what was tried */
    atomic_store(&p->t->values.count, p->n_values);
    return TL_OK;
}

tl_status tl_graph_replace(tl_graph *g, bool joint)
{
    const tl_rule **rule;
    int n = 0;
    if (!g->opt.no_replace)
        TL_TRY(tl_rules_on(&g->bump, &g->opt, joint, &rule, &n, &g->head.err));
    if (n == 0)
        return TL_OK;
    tl_tape *scratch = tl_rule_tape();
    if (scratch == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory for a tape");
    /* in canonical order: what matches first must not hang on recording */
    tl_status status = joint ? TL_OK : tl_graph_rebuild(g, true);
    bool **origin = NULL;
    for (int made = 1; status == TL_OK && made > 0;) {
        tl_pass p = {
            .g = g, .t = g->t, .joint = joint, .scratch = scratch, .rule = rule, .n_rules = n};
        report_begin(g, joint);
        status = sweep(&p, &origin);
        made = p.n_made;
        tl_graph_leave(p.now.t);
        tl_bump_free(&p.bump);
    }
    tl_rule_tape_end(scratch);
    return status;
}

/* ---- the report, read ---- */

int tl_graph_replaced(const tl_graph *g, const char *name)
{
    for (const line *l = tl_lives(g) ? g->report : NULL; l != NULL; l = l->next)
        if (l->why[0] == 0 && strcmp(l->name, name) == 0)
            return l->times;
    return 0;
}

void tl_graph_report(const tl_graph *g, FILE *f)
{
    const line *all = tl_lives(g) ? g->report : NULL;
    bool any = false;
    for (const line *l = f == NULL ? NULL : all; l != NULL; l = l->next)
        if (l->why[0] == 0) {
            any = true;
            fprintf(f, "%s: replaced %d time%s, %s\n", l->name, l->times, l->times > 1 ? "s" : "",
                    l->rounds == 0          ? "exact"
                    : l->rounds == l->times ? "ROUNDS"
                                            : "some ROUNDS");
        }
    if (f != NULL && !any)
        fprintf(f, "nothing was replaced\n");
    for (const line *l = f == NULL ? NULL : all; l != NULL; l = l->next)
        if (l->why[0] != 0)
            fprintf(f, "%s: not replaced%s: %s\n", l->name, l->times > 1 ? " (several times)" : "",
                    l->why);
}
