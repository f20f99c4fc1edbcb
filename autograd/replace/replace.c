/* replace.c: a graph rewritten, in passes, until nothing matches any more; and the report of it.
 *
 * A pass looks at every node from the last to the first for what may be replaced. Replacements are
 * recorded behind the program, the values that they give stand for those that they replace, and
 * the graph is rebuilt with all of them, and compared (compare.c). Where something would differ,
 * it is tried with each half of them, and one that cannot be is given up: with few of those, time
 * grows with the graph and not with its square. A rule does not match what it has made itself,
 * however often that was rewritten since: so passes end. */
#include <string.h>

#include "autograd/replace/internal.h"

/* ---- the report ---- */

/* Made: why is NULL. Missed in the last pass of its kind: why says why. */
typedef struct tl_report_line {
    const char *name, *why;
    int times, rounds;
    bool joint, gone;
    struct tl_report_line *next;
} line;

static line *find(tl_graph *g, const char *name, const char *why)
{
    line **l = &g->report;
    for (; *l != NULL; l = &(*l)->next)
        if (!(*l)->gone && strcmp((*l)->name, name) == 0 &&
            ((*l)->why == NULL ? why == NULL : why != NULL && strcmp((*l)->why, why) == 0))
            return *l;
    size_t n = why == NULL ? 0 : strlen(why) + 1;
    char *text = n == 0 ? NULL : tl_bump_get(&g->bump, n);
    *l = tl_bump_get(&g->bump, sizeof **l);
    if (*l == NULL || (n > 0 && text == NULL)) {
        tl_fail(&g->head.err, TL_ENOMEM, "no memory for a report");
        return NULL;
    }
    (*l)->name = name;
    (*l)->why = n == 0 ? NULL : memcpy(text, why, n);
    return *l;
}

/* A new pass: what was missed in the last one may be found now. */
static void report_begin(tl_graph *g, bool joint)
{
    for (line *l = g->report; l != NULL; l = l->next)
        l->gone |= l->why != NULL && l->joint == joint;
}

static tl_status report_made(tl_graph *g, const tl_match *m)
{
    line *l = find(g, m->rule->o.name, NULL);
    if (l != NULL) {
        l->times++;
        l->rounds += m->rounds;
    }
    return g->head.err.status;
}

tl_status tl_report_missed(tl_graph *g, const tl_rule *r, const char *why)
{
    line *l = find(g, r->o.name, why);
    if (l != NULL) {
        l->times++;
        l->joint = r->o.trace == TL_TRACE_JOINT;
    }
    return g->head.err.status;
}

/* ---- what is known of a tape ---- */

static tl_status no_memory(tl_pass *p)
{
    return tl_fail(&p->g->head.err, TL_ENOMEM, "no memory to replace in a graph of %u nodes",
                   p->n_nodes);
}

static void hold(tl_pass *p, tl_tensor x)
{
    if (!tl_is_none(x) && x.owner == p->t->values.owner)
        p->held[x.index] = true;
}

/* Something of that size for each node or value, what there was first; NULL when out of memory. */
static void *grown(tl_pass *p, const void *was, size_t n, size_t room, size_t size)
{
    void *to = tl_bump_get(&p->bump, (room + 1) * size);
    return to == NULL || n == 0 ? to : memcpy(to, was, n * size);
}

static bool make_room(tl_pass *p, uint32_t nodes, uint32_t values)
{
    uint32_t n = p->t->n_nodes, v = atomic_load(&p->t->values.count),
             was = p->owner == NULL ? 0 : n, had = p->owner == NULL ? 0 : v;
    p->owner = grown(p, p->owner, was, n + nodes, sizeof *p->owner);
    p->gone = grown(p, p->gone, was, n + nodes, sizeof *p->gone);
    p->origin = grown(p, p->origin, was, n + nodes, sizeof *p->origin);
    p->stand_in = grown(p, p->stand_in, had, v + values, sizeof *p->stand_in);
    return p->owner != NULL && p->gone != NULL && p->origin != NULL && p->stand_in != NULL;
}

tl_status tl_pass_index(tl_pass *p)
{
    tl_tape *t = p->t;
    uint32_t n, total = 0;
    p->n_nodes = t->n_nodes;
    p->n_values = atomic_load(&t->values.count);
    p->n_others = t->model == NULL ? 0 : atomic_load(&t->model->values.count);
    p->first_acc = tl_bump_get(&p->bump, ((size_t)t->n_grads + 1) * sizeof *p->first_acc);
    for (int i = 0; i < t->n_grads && p->first_acc != NULL; i++) {
        p->first_acc[i] = p->n_others;
        p->n_others += (uint32_t)t->grad[i].n_uses;
    }
    n = p->n_others + p->n_values;
    for (uint32_t i = 0; i < t->n_nodes; i++)
        total += (uint32_t)t->node[i].n_in;
    p->user_start = tl_bump_get(&p->bump, (n + 3) * sizeof *p->user_start);
    p->user = tl_bump_get(&p->bump, (total + 1) * sizeof *p->user);
    p->held = tl_bump_get(&p->bump, p->n_values + 1);
    p->found = tl_bump_get(&p->bump, (t->n_nodes + 1) * sizeof *p->found);
    if (p->first_acc == NULL || p->user_start == NULL || p->user == NULL || p->held == NULL ||
        p->found == NULL || !make_room(p, 0, 0))
        return no_memory(p);
    for (uint32_t i = 0; p->known != NULL && i < t->n_nodes; i++)
        p->origin[i] = p->known[i];
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t i = 0; i < t->n_nodes; i++)
            for (int k = 0; k < t->node[i].n_in; k++) {
                uint32_t *at = &p->user_start[2];
                if (tl_is_none(t->node[i].in[k]))
                    continue;
                at += tl_pass_slot(p, t->node[i].in[k]);
                if (fill)
                    p->user[at[-1]++] = i;
                else
                    ++*at;
            }
        for (uint32_t v = 0; v < n && !fill; v++)
            p->user_start[v + 2] += p->user_start[v + 1];
    }
    for (int i = 0; i < p->g->n_out; i++)
        hold(p, p->g->out[i]);
    for (int i = 0; i < p->g->tracing->n_watch; i++)
        hold(p, p->g->tracing->watch[i].x);
    for (uint32_t v = 0; v < p->n_values; v++)
        hold(p, tl_values_at(&t->values, v)->source);
    return TL_OK;
}

/* ---- a replacement in its place ---- */

/* The rule itself, and those that made what it replaces; NULL when out of memory. */
static bool *origin_of(tl_pass *p, const tl_match *m)
{
    bool *set = tl_bump_get(&p->g->bump, (size_t)p->n_rules);
    for (int k = 0; set != NULL && k < m->search->n_nodes; k++)
        for (int r = 0; r < p->n_rules && p->origin[m->node[k]] != NULL; r++)
            set[r] |= p->origin[m->node[k]][r];
    if (set != NULL)
        set[m->rule_at] = true;
    return set;
}

/* Records what m puts behind the program, as where its first output is called. */
static tl_status record(tl_pass *p, tl_match *m)
{
    tl_tape *t = p->t;
    const tl_node like = t->node[m->node[m->search->out[0].node]];
    const uint32_t first = t->n_nodes;
    const int part = tl_traced_of(t)->part;
    bool consumed[TL_PATTERN_ARGS] = {false}, *origin = origin_of(p, m);
    if (origin == NULL)
        return no_memory(p);
    for (int i = 0; i < m->with->n_args; i++) { /* not yet where it is going to stand */
        tl_value *v = tl_is_none(m->arg[i]) ? NULL : tl_peek(t, m->arg[i]);
        consumed[i] = v != NULL && v->consumed;
        if (v != NULL)
            v->consumed = false;
    }
    tl_scope outer = tl_scope_of(t, &like, /* expanded: nothing is to differentiate */
                                 like.mode | (p->joint ? TL_NO_GRAD : 0));
    tl_trace_part(t, tl_node_part(t, (uint32_t)m->node[m->search->out[0].node]));
    tl_pattern_run((tl_at){t, like.file, like.line}, m->with, m->arg, m->put);
    tl_trace_part(t, part);
    tl_scope_end(t, outer);
    for (int i = 0; i < m->with->n_args; i++)
        if (consumed[i])
            tl_peek(t, m->arg[i])->consumed = true;
    if (tl_failed(t))
        return tl_fail(&p->g->head.err, tl_error_status(t), "%s", tl_error(t));
    for (uint32_t i = first; i < t->n_nodes; i++) {
        p->owner[i] = m;
        p->origin[i] = origin;
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
        (*m)->tried = there;
        for (int k = 0; k < (*m)->search->n_nodes; k++)
            p->gone[(*m)->node[k]] = there;
        for (int i = 0; i < (*m)->search->n_out; i++)
            if ((*m)->search->out[i].node >= 0)
                p->stand_in[(*m)->out[i]] = there ? (*m)->put[i] : TL_NONE;
    }
}

/* The graph with all that stands in for something now; false, with p->why, where it has no order or
 * reads memory otherwise. */
static bool rebuild(tl_pass *p, tl_side *s)
{
    tl_splice splice = {p->n_nodes, p->gone, p->stand_in, NULL};
    *s = (tl_side){.from = tl_bump_get(&p->bump, (p->t->n_nodes + 1) * sizeof *s->from)};
    splice.from = s->from;
    if (s->from == NULL)
        return tl_fail(&p->why, TL_ENOMEM, "no memory to rebuild a graph"), false;
    s->t = tl_graph_again(p->g, !p->joint, &splice, &s->map, &p->why);
    return s->t != NULL && tl_compare_with(p, s) && tl_same_memory(p, s);
}

static void forget(tl_pass *p, const tl_side *s)
{
    if (s->t != p->t)
        tl_graph_leave(s->t);
}

/* The rebuilt graph in the place of the old. */
static tl_status take(tl_pass *p)
{
    tl_graph *g = p->g;
    tl_tape *dst = p->now.t;
    bool **origin = tl_bump_get(&g->bump, (dst->n_nodes + 1) * sizeof *origin);
    if (origin == NULL)
        return no_memory(p);
    for (uint32_t i = 0; i < dst->n_nodes; i++)
        origin[i] = p->origin[p->now.from[i]];
    p->known = origin;
    if (p->joint) { /* the same accumulators */
        tl_trace_take_gradients(dst, p->t);
        for (int i = 0; i < dst->n_grads; i++)
            dst->grad[i].leaf = tl_rebuild_map(dst, p->t, p->now.map, dst->grad[i].leaf);
    }
    tl_graph_take(g, dst, p->now.map);
    p->t = dst;
    return TL_OK;
}

/* ---- which are made ---- */

/* One that is good by itself waits for the others. */
static tl_status keep_found(tl_pass *p, const tl_match *m)
{
    tl_match *copy = p->found[p->n_found] = tl_bump_get(&p->bump, sizeof *copy);
    if (copy == NULL)
        return no_memory(p);
    *copy = *m;
    p->n_found++;
    for (int k = 0; k < m->search->n_nodes; k++)
        p->owner[m->node[k]] = copy;
    return TL_OK;
}

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
    forget(p, &p->now);
    p->now = *s;
    p->n_made += n;
    for (int i = 0; i < n; i++) {
        m[i]->tried = false;
        TL_TRY(report_made(p->g, m[i]));
    }
    return TL_OK;
}

static tl_status give_up(tl_pass *p, const tl_match *m)
{
    p->refused = true;
    for (int k = 0; k < m->search->n_nodes; k++)
        p->owner[m->node[k]] = NULL;
    TL_TRY(tl_report_missed(p->g, m->rule, p->why.message));
    return retry_later(p, m->at, m->rule_at + 1, p->n_rules); /* they have a chance there */
}

/* As many of these as can be. */
static tl_status settle(tl_pass *p, tl_match **m, int n, bool compare)
{
    tl_side s;
    if (n == 0)
        return TL_OK;
    tl_err_clear(&p->why);
    stand_in(p, m, n, true);
    bool there = rebuild(p, &s),
         same = there && (!compare || tl_same_uses(p, &s, n == 1 ? m[0] : NULL));
    if (there && !same && n == 1 && p->g->opt.rounds && p->why.status != TL_ENOMEM)
        m[0]->rounds = same = true;
    if (same)
        return accept(p, m, n, &s);
    forget(p, &s);
    stand_in(p, m, n, false);
    if (p->why.status == TL_ENOMEM)
        return no_memory(p);
    if (n == 1)
        return give_up(p, m[0]);
    TL_TRY(settle(p, m, n / 2, compare));
    return settle(p, m + n / 2, n - n / 2, compare);
}

static tl_status settle_found(tl_pass *p)
{
    tl_match **m = p->found,
             **some = tl_bump_get(&p->bump, ((size_t)p->n_found + 1) * sizeof *some);
    const int n = p->n_found;
    uint32_t nodes = 0, values = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < m[i]->with->n_nodes; k++, nodes++)
            values += (uint32_t)m[i]->with->node[k].op->n_out;
    p->n_found = 0;
    p->found = tl_bump_get(&p->bump, (p->n_nodes + 1) * sizeof *p->found);
    if (some == NULL || p->found == NULL || (n > 0 && !make_room(p, nodes, values)))
        return no_memory(p);
    for (int i = 0; i < n; i++)
        TL_TRY(record(p, m[i]));
    for (int rounds = 1; rounds >= 0; rounds--) { /* first those of which nothing is compared */
        int n_some = 0;
        for (int i = 0; i < n; i++)
            if (m[i]->rounds == rounds)
                some[n_some++] = m[i];
        TL_TRY(settle(p, some, n_some, !rounds));
    }
    return TL_OK;
}

/* ---- passes ---- */

static tl_status try_rules(tl_pass *p, uint32_t node, int from, int to)
{
    tl_match m;
    for (int r = from; r < to && p->owner[node] == NULL; r++) {
        if (p->rule[r]->root != p->t->node[node].op)
            continue;
        if (tl_candidate(p, p->rule[r], node, &m)) {
            m.at = node;
            m.rule_at = r;
            TL_TRY(keep_found(p, &m));
        } else {
            TL_TRY(p->g->head.err.status);
            if (p->overlaps)
                TL_TRY(retry_later(p, node, r, r + 1));
        }
    }
    return TL_OK;
}

static tl_status sweep(tl_pass *p)
{
    TL_TRY(tl_pass_index(p));
    if (!tl_compare_prepare(p))
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
        return take(p);
    p->t->n_nodes = p->n_nodes; /* nothing of what was tried */
    atomic_store(&p->t->values.count, p->n_values);
    return TL_OK;
}

tl_status tl_graph_replace(tl_graph *g, bool joint)
{
    const tl_rule **rule;
    tl_tracing *s;
    int n = g->opt.no_replace ? 0 : tl_rules_on(&g->bump, &g->opt, joint, &rule, &g->head.err);
    if (n < 0) { /* an error of its own stays */
        tl_fail(&g->head.err, TL_ENOMEM, "no memory for the list of replacements");
        return g->head.err.status;
    }
    if (n == 0)
        return TL_OK;
    tl_tape *scratch = tl_rule_tape(&s);
    if (scratch == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory for a tape");
    /* in canonical order: what matches first must not hang on recording */
    tl_status status = joint ? TL_OK : tl_graph_rebuild(g, true);
    bool **known = NULL;
    for (int made = 1; status == TL_OK && made > 0;) {
        tl_pass p = {.g = g, .t = g->t, .joint = joint, .known = known};
        p.scratch = scratch;
        p.rule = rule;
        p.n_rules = n;
        report_begin(g, joint);
        status = sweep(&p);
        made = p.n_made;
        known = p.known;
        forget(&p, &p.now);
        tl_bump_free(&p.bump);
    }
    tl_object_end(scratch);
    tl_tracing_free(s);
    return status;
}

/* ---- the report, read ---- */

int tl_graph_replaced(const tl_graph *g, const char *name)
{
    for (const line *l = g == NULL ? NULL : g->report; l != NULL; l = l->next)
        if (l->why == NULL && strcmp(l->name, name) == 0)
            return l->times;
    return 0;
}

void tl_graph_report(const tl_graph *g, FILE *f)
{
    bool any = false;
    if (f == NULL)
        return;
    for (const line *l = g == NULL ? NULL : g->report; l != NULL; l = l->next) {
        if (l->why != NULL)
            continue;
        any = true;
        fprintf(f, "%s: replaced %d time%s, %s\n", l->name, l->times, l->times > 1 ? "s" : "",
                l->rounds == 0          ? "exact"
                : l->rounds == l->times ? "ROUNDS"
                                        : "some ROUNDS");
    }
    if (!any)
        fprintf(f, "nothing was replaced\n");
    for (const line *l = g == NULL ? NULL : g->report; l != NULL; l = l->next)
        if (l->why != NULL && !l->gone)
            fprintf(f, "%s: not replaced%s: %s\n", l->name, l->times > 1 ? " (several times)" : "",
                    l->why);
}
