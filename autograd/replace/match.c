/* match.c: a pattern found in a graph.
 *
 * A list of goals - "this value of the graph is that value of the pattern" - is worked off
 * from the first output downwards. Where there is a choice (the order of commutative
 * operands, which user of a value a further output is) the state is copied and each way
 * is tried. One pattern node has one node of the graph and the other way round; one
 * argument has one value. */
#include <math.h>
#include <string.h>

#include "autograd/replace/internal.h"

enum { GOALS = 192 };

typedef struct {
    tl_pattern_ref want;
    tl_tensor x;
} goal;

typedef struct {
    tl_binding b;
    goal goal[GOALS];
    int n_goals;
} state;

typedef struct {
    tl_pass *p;
    const tl_rule *r;
    const tl_pattern *q;
    bool exact;
    tl_found *found;
    void *ctx;
} search;

bool tl_refuse(tl_pass *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    tl_vfail(&p->why, TL_EUSAGE, fmt, ap);
    va_end(ap);
    return false;
}

static void copy(state *to, const state *s)
{
    to->b = s->b;
    to->n_goals = s->n_goals;
    memcpy(to->goal, s->goal, (size_t)s->n_goals * sizeof *s->goal);
}

static bool add_goal(state *s, tl_pattern_ref want, tl_tensor x)
{
    if (s->n_goals == GOALS)
        return false;
    s->goal[s->n_goals++] = (goal){want, x};
    return true;
}

static bool made_by(const tl_pass *p, uint32_t node, const tl_rule *r)
{
    for (int i = 0; p->origin[node] != NULL && i < p->n_rules; i++)
        if (p->origin[node][i] && strcmp(p->rule[i]->o.name, r->o.name) == 0)
            return true;
    return false;
}

/* Scalars are read off in the first stage, and for patterns built by hand. */
static bool bind_scalars(state *s, const tl_pattern_node *q, const tl_node *n)
{
    for (int i = 0; n->op->attr != NULL && n->op->attr[i].name != NULL; i++) {
        int k = q->scalar[i];
        double v = k < 0 ? 0 : tl_attr_number(&n->op->attr[i], n->attrs);
        if (k < 0)
            continue;
        if (s->b.has_scalar[k] && memcmp(&s->b.scalar[k], &v, sizeof v) != 0)
            return false;
        s->b.scalar[k] = v;
        s->b.has_scalar[k] = true;
    }
    return true;
}

/* Everything about the node itself; its inputs are goals to come. */
static bool node_fits(search *f, state *s, int k, uint32_t i)
{
    tl_pass *p = f->p;
    const tl_pattern_node *q = &f->q->node[k];
    const tl_node *n = &p->t->node[i];
    char a[TL_ATTRS_TEXT], b[TL_ATTRS_TEXT];
    if (n->op->traits & TL_RANDOM && n->op != q->op) {
        p->near = true;
        return tl_refuse(p, "%s at %s:%d draws random numbers where %s is expected", n->op->name,
                         n->file, n->line, q->op->name);
    }
    if (n->op != q->op || n->n_in != q->n_in || tl_node_mutates(n))
        return false;
    for (int j = 0; j < f->q->n_nodes; j++)
        if (s->b.node[j] == (int32_t)i)
            return false;
    if (p->owner[i] != NULL) {
        p->overlaps = true;
        return tl_refuse(p, "%s at %s:%d is part of another match", n->op->name, n->file, n->line);
    }
    if (made_by(p, i, f->r)) {
        p->near = true;
        return tl_refuse(p, "%s at %s:%d was made by this replacement: it would go on for ever",
                         n->op->name, n->file, n->line);
    }
    const tl_value *first = n->n_in == 0 || tl_is_none(n->in[0]) ? NULL : tl_peek(p->t, n->in[0]);
    if (f->exact &&
        !tl_attrs_agree(n->op, n->attrs, q->attrs, first == NULL ? 0 : first->a.ndim, q->scalar))
        return tl_refuse(p, "%s at %s:%d has%s, the pattern%s", n->op->name, n->file, n->line,
                         tl_attrs_text(n->op, n->attrs, a), tl_attrs_text(q->op, q->attrs, b));
    return bind_scalars(s, q, n);
}

static bool solve(search *f, state *s);

/* Pattern node k is node i, and the rest follows. */
static bool bind_node(search *f, state *s, int k, uint32_t i)
{
    const tl_pattern_node *q = &f->q->node[k];
    const tl_node *n = &f->p->t->node[i];
    if (s->b.node[k] >= 0)
        return s->b.node[k] == (int32_t)i && solve(f, s);
    if (!node_fits(f, s, k, i))
        return false;
    s->b.node[k] = (int32_t)i;
    bool turn = n->op->traits & TL_COMMUTATIVE && n->n_in >= 2 &&
                !tl_same_handle(n->in[0], n->in[1]);
    state other;
    if (turn)
        copy(&other, s);
    for (int j = n->n_in - 1; j >= 0; j--) {
        if (!add_goal(s, q->in[j], n->in[j]) ||
            (turn && !add_goal(&other, q->in[j], n->in[j < 2 ? 1 - j : j])))
            return false;
    }
    return solve(f, s) || (turn && solve(f, &other));
}

static bool bind_arg(search *f, state *s, int i, tl_tensor x)
{
    const tl_pattern_arg *arg = i < f->r->o.n_in ? &f->r->o.example_inputs[i] : NULL;
    if (tl_is_none(x))
        return false;
    if (!tl_is_none(s->b.arg[i]))
        return tl_same_handle(s->b.arg[i], x);
    for (int j = 0; arg != NULL && arg->exclusive && j < f->r->o.n_in; j++)
        if (f->r->o.example_inputs[j].exclusive && tl_same_handle(s->b.arg[j], x))
            return tl_refuse(f->p, "arguments '%s' and '%s' are exclusive, and are one value",
                             f->r->o.example_inputs[j].name, arg->name);
    s->b.arg[i] = x;
    return true;
}

/* A node of the pattern that no goal has led to is a user of one of its inputs, if that is known.
 */
static bool solve_rest(search *f, state *s)
{
    tl_pass *p = f->p;
    bool all = true;
    for (int k = 0; k < f->q->n_nodes; k++) {
        const tl_pattern_node *q = &f->q->node[k];
        for (int j = 0; s->b.node[k] < 0 && j < q->n_in; j++) {
            tl_tensor x = TL_NONE;
            if (q->in[j].node == TL_REF_ARG)
                x = s->b.arg[q->in[j].at];
            else if (q->in[j].node >= 0 && s->b.node[q->in[j].node] >= 0)
                x = tl_node_out(p->t, &p->t->node[s->b.node[q->in[j].node]], q->in[j].at);
            if (tl_is_none(x))
                continue;
            const uint32_t *start = &p->user_start[tl_pass_slot(p, x)];
            for (uint32_t u = start[0]; u < start[1]; u++) {
                state next;
                if (p->t->node[p->user[u]].op != q->op)
                    continue;
                copy(&next, s);
                if (bind_node(f, &next, k, p->user[u]))
                    return true;
            }
            return false;
        }
        all &= s->b.node[k] >= 0;
    }
    return all && f->found(f->ctx, &s->b);
}

static bool solve(search *f, state *s)
{
    while (s->n_goals > 0) {
        goal g = s->goal[--s->n_goals];
        if (g.want.node == TL_REF_NONE) {
            if (!tl_is_none(g.x))
                return false;
            continue;
        }
        if (g.want.node == TL_REF_ARG) {
            if (!bind_arg(f, s, g.want.at, g.x))
                return false;
            continue;
        }
        const tl_value *v = tl_is_none(g.x) || g.x.owner != f->p->t->values.owner
                                ? NULL
                                : tl_peek(f->p->t, g.x);
        if (v == NULL || v->node < 0 || v->out != g.want.at)
            return false;
        return bind_node(f, s, g.want.node, (uint32_t)v->node);
    }
    return solve_rest(f, s);
}

bool tl_match_pattern(tl_pass *p, const tl_rule *r, const tl_pattern *q, bool exact, uint32_t at,
                      const tl_binding *begin, tl_found *found, void *ctx)
{
    search f = {p, r, q, exact, found, ctx};
    state s;
    if (p->t->node[at].op != q->node[q->out[0].node].op)
        return false;
    memset(&s.b, 0, sizeof s.b);
    s.n_goals = 0;
    if (begin != NULL)
        memcpy(s.b.arg, begin->arg, sizeof s.b.arg);
    memset(s.b.node, -1, sizeof s.b.node);
    return bind_node(&f, &s, q->out[0].node, at);
}

/* ---- what an extra_check may ask about a match ---- */

static int index_of(const tl_match *m, const char *name)
{
    for (int i = 0; m != NULL && name != NULL && i < m->rule->o.n_in; i++)
        if (strcmp(m->rule->o.example_inputs[i].name, name) == 0)
            return i;
    return -1;
}

const tl_array *tl_match_input(const tl_match *m, const char *name)
{
    int i = index_of(m, name);
    return i < 0 ? NULL : &m->array[i];
}

const tl_array *tl_match_constant(const tl_match *m, const char *name)
{
    int i = index_of(m, name);
    if (i < 0 || m->arg[i].owner != m->pass->t->values.owner)
        return NULL;
    const tl_leaf l = tl_leaf_of(m->pass->t, m->arg[i].index);
    return l.kind == TL_LEAF_CONSTANT ? &m->pass->g->tracing->constant[l.at].a : NULL;
}

double tl_match_scalar(const tl_match *m, const char *name)
{
    for (int i = 0; m != NULL && name != NULL && i < m->rule->o.n_scalars; i++)
        if (strcmp(m->rule->o.scalars[i].name, name) == 0)
            return m->scalar[i];
    return (double)NAN;
}

const char *tl_match_place(const tl_match *m, int *line)
{
    if (m == NULL)
        return NULL;
    const tl_node *n = &m->pass->t->node[m->node[m->search->out[0].node]];
    if (line != NULL)
        *line = n->line;
    return n->file;
}
