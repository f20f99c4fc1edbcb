/* match.c: a pattern found in a graph, and whether what is found may be replaced. Each refusal says
 * why.
 *
 * From the node of the first output downwards, what a node of the pattern reads is what the graph's
 * node reads. Where there is a choice - the order of commutative operands, which user of a value a
 * further output is - each way is tried on a copy of the binding. One node of the pattern has one
 * node of the graph and the other way round; one argument has one value.
 *
 * That finds a place where the ops are those of the pattern. There the search is traced again with
 * what stands there and must agree in full; then what lies around the match, what the rule claims
 * and what the user says decide. What only shows in the whole graph is left to comparing it
 * (compare.c). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/replace/internal.h"

typedef struct {
    tl_pass *p;
    const tl_form *form;
    const tl_pattern *q;
    bool exact;
    tl_found *found;
    void *ctx;
} search;

bool tl_refuse(tl_pass *p, const tl_node *n, const char *fmt, ...)
{
    tl_err e = {.status = TL_OK};
    char place[200] = "";
    va_list ap;
    va_start(ap, fmt);
    tl_vfail(&e, TL_EUSAGE, fmt, ap);
    va_end(ap);
    if (n != NULL)
        snprintf(place, sizeof place, "%s at %s:%d ", n->op->name, n->file, n->line);
    return tl_fail(&p->why, e.status, "%s%s", place, e.message), false;
}

/* Scalars are read off in the first stage, and for patterns built by hand. */
static bool bind_scalars(tl_binding *b, const tl_pattern_node *q, const tl_node *n)
{
    for (int i = 0; n->op->attr != NULL && n->op->attr[i].name != NULL; i++) {
        int k = q->scalar[i];
        double v = k < 0 ? 0 : tl_attr_number(&n->op->attr[i], n->attrs);
        if (k < 0)
            continue;
        if (b->has_scalar & TL_BIT(k) && memcmp(&b->scalar[k], &v, sizeof v) != 0)
            return false;
        b->scalar[k] = v;
        b->has_scalar |= TL_BIT(k);
    }
    return true;
}

/* Pattern node k is node i: everything about the node itself; its inputs are open. */
static bool bind_node(search *f, tl_binding *s, int k, uint32_t i)
{
    tl_pass *p = f->p;
    const tl_pattern_node *q = &f->q->node[k];
    const tl_node *n = &p->t->node[i];
    char a[TL_ATTRS_TEXT], b[TL_ATTRS_TEXT];
    if (s->node[k] >= 0)
        return s->node[k] == (int32_t)i;
    if (n->op->traits & TL_RANDOM && n->op != q->op)
        return tl_refuse(p, n, "draws random numbers where %s is expected", q->op->name);
    if (n->op != q->op || n->n_in != q->n_in || tl_node_mutates(n) || p->owner[i] != NULL)
        return false;
    for (int j = 0; j < f->q->n_nodes; j++)
        if (s->node[j] == (int32_t)i)
            return false;
    for (const tl_remark *bar = p->bars == NULL ? NULL : p->bars[i]; bar != NULL; bar = bar->next)
        if (bar->form == NULL ? bar->rule == f->form->rule
                              : bar->form == f->form && k == f->q->out[0].node)
            return tl_refuse(p, bar->form == NULL ? n : NULL, "%s", bar->why);
    if (n->needs_grad && n->n_out > 0 && tl_values_at(&p->t->values, n->out)->fixed)
        return tl_refuse(p, n, "makes a weight, which is known by what it is made of");
    const tl_value *first = n->n_in == 0 || tl_is_none(n->in[0]) ? NULL : tl_peek(p->t, n->in[0]);
    if (f->exact &&
        !tl_attrs_agree(n->op, n->attrs, q->attrs, first == NULL ? 0 : first->a.ndim, q->scalar))
        return tl_refuse(p, n, "has%s, the pattern%s", tl_attrs_text(n->op, n->attrs, a),
                         tl_attrs_text(q->op, q->attrs, b));
    s->node[k] = (int32_t)i;
    s->open[k] = true;
    return bind_scalars(s, q, n);
}

static bool bind_arg(search *f, tl_binding *b, int i, tl_tensor x)
{
    const tl_replacement *o = &f->form->rule->o;
    if (tl_is_none(x) || !tl_is_none(b->arg[i]))
        return !tl_is_none(x) && tl_same_handle(b->arg[i], x);
    for (int j = 0; i < o->n_in && o->example_inputs[i].exclusive && j < o->n_in; j++)
        if (o->example_inputs[j].exclusive && tl_same_handle(b->arg[j], x))
            return false;
    b->arg[i] = x;
    return true;
}

/* What the pattern calls `want` is x. */
static bool bind(search *f, tl_binding *b, tl_pattern_ref want, tl_tensor x)
{
    if (want.node == TL_REF_NONE)
        return tl_is_none(x);
    if (want.node == TL_REF_ARG)
        return bind_arg(f, b, want.at, x);
    const int32_t maker = tl_maker_at(f->p->t, x);
    return maker >= 0 && tl_peek(f->p->t, x)->out == want.at &&
           bind_node(f, b, want.node, (uint32_t)maker);
}

static bool solve(search *f, const tl_binding *b);

/* The inputs of pattern node k are its node's - the first two turned round, if so - and the rest
 * follows. */
static bool solve_inputs(search *f, const tl_binding *was, int k, bool turned)
{
    const tl_node *n = &f->p->t->node[was->node[k]];
    tl_binding b = *was;
    b.open[k] = false;
    for (int j = 0; j < n->n_in; j++)
        if (!bind(f, &b, f->q->node[k].in[j], n->in[turned && j < 2 ? 1 - j : j]))
            return false;
    return solve(f, &b);
}

/* The value that stands for a reference, if that is known. */
static tl_tensor bound(const tl_tape *t, const tl_binding *b, tl_pattern_ref x)
{
    return x.node == TL_REF_ARG                  ? b->arg[x.at]
           : x.node >= 0 && b->node[x.node] >= 0 ? tl_node_out(t, &t->node[b->node[x.node]], x.at)
                                                 : TL_NONE;
}

/* Node k of the pattern is a user of x, and the rest follows. */
static bool solve_user(search *f, const tl_binding *was, int k, tl_tensor x)
{
    for (const tl_user *u = f->p->users[tl_pass_slot(f->p, x)]; u != NULL; u = u->next) {
        tl_binding b = *was;
        if (u->node != UINT32_MAX && f->p->t->node[u->node].op == f->q->node[k].op &&
            bind_node(f, &b, k, u->node) && solve(f, &b))
            return true;
    }
    return false;
}

static bool solve(search *f, const tl_binding *b)
{
    bool all = true;
    for (int k = f->q->n_nodes - 1; k >= 0; k--) {
        if (!b->open[k])
            continue;
        const tl_node *n = &f->p->t->node[b->node[k]];
        bool turns = n->op->traits & TL_COMMUTATIVE && n->n_in >= 2 &&
                     !tl_same_handle(n->in[0], n->in[1]);
        return solve_inputs(f, b, k, false) || (turns && solve_inputs(f, b, k, true));
    }
    for (int k = 0; k < f->q->n_nodes; k++) { /* no user has led there */
        const tl_pattern_node *q = &f->q->node[k];
        for (int j = 0; b->node[k] < 0 && j < q->n_in; j++) {
            tl_tensor x = bound(f->p->t, b, q->in[j]);
            if (!tl_is_none(x))
                return solve_user(f, b, k, x);
        }
        all &= b->node[k] >= 0;
    }
    return all && f->found(f->ctx, b);
}

bool tl_match_pattern(tl_pass *p, const tl_form *form, const tl_pattern *q, bool exact, uint32_t at,
                      const tl_binding *begin, tl_found *found, void *ctx)
{
    search f = {p, form, q, exact, found, ctx};
    tl_binding b = {.has_scalar = 0};
    const int root = q->out[0].node;
    if (root < 0)
        return tl_refuse(p, NULL, "its search computes nothing as output 0 here");
    if (p->t->node[at].op != q->node[root].op)
        return false;
    if (q->n_nodes > TL_PATTERN_NODES)
        return tl_refuse(p, NULL, "its search has %d calls here", q->n_nodes);
    if (begin != NULL)
        memcpy(b.arg, begin->arg, sizeof b.arg);
    memset(b.node, -1, sizeof b.node);
    return bind_node(&f, &b, root, at) && solve(&f, &b);
}

int tl_match_output(const tl_match *m, tl_tensor x)
{
    int i = m->search->n_out - 1;
    while (i >= 0 && !tl_same_handle(m->out[i], x))
        i--;
    return i;
}

/* ---- is what was found one that may be replaced? ---- */

/* How much outside the match, or in it, reads that value; outside the replacement does, where it is
 * an argument, too: mul(h, h) of h = silu(a) is no silu(a)*b. */
static int readers(const tl_pass *p, const tl_match *m, tl_tensor x, bool outside)
{
    int n = 0;
    for (const tl_user *u = p->users[tl_pass_slot(p, x)]; u != NULL; u = u->next) {
        int k = m->search->n_nodes - 1;
        while (k >= 0 && m->b.node[k] != (int32_t)u->node)
            k--;
        n += (k < 0) == outside;
    }
    for (int i = 0; i < m->search->n_args && outside; i++)
        n += tl_same_handle(m->b.arg[i], x);
    return n;
}

/* What the pattern does not give out has no users outside. Everything was recorded in one mode;
 * bits of TL_FAST and of selected kernels are not those that were compared. */
static bool check_around(tl_pass *p, const tl_match *m)
{
    const tl_node *first = &p->t->node[m->b.node[0]];
    const unsigned ignored = p->joint ? TL_NO_GRAD : 0;
    for (int k = 0; k < m->search->n_nodes; k++) {
        const tl_node *n = &p->t->node[m->b.node[k]];
        for (int j = 0; j < n->n_out; j++) {
            const tl_tensor x = tl_node_out(p->t, n, j);
            const int others = tl_match_output(m, x) >= 0 ? 0 : readers(p, m, x, true);
            if (others > 0)
                return tl_refuse(p, n, "has %d other user%s of output %d%s", others,
                                 others > 1 ? "s" : "", j,
                                 readers(p, m, x, false) > 0
                                     ? ""
                                     : ", which the pattern knows nothing of");
        }
        if ((n->mode & ~ignored) != (first->mode & ~ignored) || n->choice != first->choice)
            return tl_refuse(p, first, "and %s at %s:%d were recorded in different modes",
                             n->op->name, n->file, n->line);
    }
    if (first->mode & TL_FAST && !p->g->opt.rounds)
        return tl_refuse(p, NULL, "it was recorded under TL_FAST");
    if (first->choice != NULL && !p->g->opt.rounds)
        return tl_refuse(p, NULL, "kernels are selected where it was recorded");
    return true;
}

/* The rule claims the bits for these dtypes, and where a gradient passes for gradients. */
static bool check_claim(tl_pass *p, tl_match *m)
{
    const tl_replacement *o = &m->form->rule->o;
    const tl_dtype d = m->at.array[0].dtype;
    bool passes = p->joint, fits = true;
    for (int k = 0; k < m->search->n_nodes; k++)
        passes |= p->reached[m->b.node[k]];
    for (int i = 0; i < o->n_in; i++) {
        const tl_pattern_arg *a = &o->example_inputs[i];
        const tl_dtype is = m->at.array[i].dtype;
        fits &= a->fixed ? is == a->dtype : is == d || (a->or_f32 && is == TL_F32);
    }
    m->rounds = !fits || !tl_form_claims(m->form, d, passes);
    if (m->rounds && !p->g->opt.rounds)
        return tl_refuse(p, NULL, "it rounds elsewhere in %s%s; ask for it by .rounds",
                         tl_dtype_name(d),
                         fits && tl_form_claims(m->form, d, false) ? ", in the gradient" : "");
    return true;
}

static bool found_again(void *ctx, const tl_binding *b)
{
    tl_match *m = ctx;
    m->b = *b;
    for (int i = 0; i < m->search->n_out; i++) {
        const tl_pattern_ref x = m->search->out[i];
        m->out[i] = x.node < 0 ? TL_NONE : bound(m->pass->t, b, x);
    }
    return m->pass->example || check_around(m->pass, m);
}

/* The search, traced with what stands there; joint with the gradients that come to all outputs, or,
 * if there is no such place, to fewer. Cotangents have the strides they have there. */
static bool find_again(tl_match *m, const tl_binding *b)
{
    tl_pass *p = m->pass;
    const tl_replacement *o = &m->form->rule->o;
    m->at.seeded = p->joint ? TL_BIT(o->n_out) - 1 : 0;
    do {
        m->search = o->search_pattern;
        if (m->search == NULL)
            m->search = tl_rule_trace(m->form, true, p->scratch, &p->bump, &m->at, NULL, &p->why);
        if (m->search == NULL || (p->joint && m->search->n_out == o->n_out) ||
            !tl_match_pattern(p, m->form, m->search, true, m->root, b, found_again, m))
            continue;
        for (int i = o->n_in; i < o->n_in + o->n_out; i++)
            if (!tl_is_none(m->b.arg[i]))
                m->at.array[i] = tl_peek(p->t, m->b.arg[i])->a;
        return true;
    } while (m->at.seeded-- > 1);
    return tl_refuse(p, NULL, "%s",
                     p->joint ? "no gradient comes back through it as its search has it"
                              : "traced with these shapes and constants, its search is another "
                                "program");
}

/* Records what m puts behind the program, as where its first output is called. */
static bool put(tl_match *m, const tl_pattern *with)
{
    tl_pass *p = m->pass;
    tl_tape *t = p->t;
    const uint32_t root = (uint32_t)m->b.node[m->search->out[0].node];
    const tl_node like = t->node[root];
    const int part = tl_traced_of(t)->part;
    tl_scope outer = tl_scope_of(t, &like, /* expanded: nothing is to differentiate */
                                 like.mode | (p->joint ? TL_NO_GRAD : 0));
    tl_trace_part(t, tl_node_part(t, root));
    tl_pattern_run((tl_at){t, like.file, like.line, NULL}, with, m->b.arg, m->put);
    tl_trace_part(t, part);
    tl_scope_end(t, outer);
    m->end = t->n_nodes;
    for (int i = 0; p->joint && i < m->search->n_out; i++) /* other joint rules ask */
        if (!tl_is_none(m->out[i]) && m->put[i].owner == t->values.owner)
            tl_peek(t, m->put[i])->needs_grad = tl_peek(t, m->out[i])->needs_grad;
    if (tl_failed(t))
        tl_fail(&p->why, tl_error_status(t), "%s", tl_error(t));
    return !tl_failed(t);
}

/* What stands at a place is traced, put behind the program, and taken back if it does not do. */
static bool judge(void *ctx, const tl_binding *b)
{
    tl_match *m = ctx;
    tl_pass *p = m->pass;
    const tl_rule *r = m->form->rule;
    m->at = (tl_rule_at){.seeded = 0};
    memcpy(m->at.scalar, b->scalar, sizeof m->at.scalar);
    for (int i = 0; i < r->o.n_in; i++) {
        const tl_value *v = tl_is_none(b->arg[i]) ? NULL : tl_peek(p->t, b->arg[i]);
        if (v == NULL)
            return tl_refuse(p, NULL, "its search does not use its argument '%s'",
                             r->o.example_inputs[i].name);
        m->at.array[i] = v->a;
        m->at.array[i].data = NULL;
        m->at.grad[i] = v->needs_grad && (!p->joint || tl_rule_grad(r, i));
    }
    for (int i = 0; i < r->o.n_scalars; i++)
        if (!(b->has_scalar & TL_BIT(i)))
            return tl_refuse(p, NULL,
                             "its search does not use its scalar '%s' as an attribute of that "
                             "value (%g)",
                             r->o.scalars[i].name, r->o.scalars[i].value);
    p->scratch->mode = TL_TRACE | (p->joint ? 0 : p->t->node[m->root].mode);
    if (!find_again(m, b))
        return false;
    if (!p->example && r->o.extra_check != NULL && !r->o.extra_check(m, r->o.ctx))
        return tl_refuse(p, NULL, "extra_check says no");
    const uint32_t n_values = atomic_load(&p->t->values.count);
    m->first = p->t->n_nodes;
    const tl_pattern *with = tl_rule_trace(m->form, false, p->scratch, &p->bump, &m->at, NULL,
                                           &p->why);
    if (with != NULL && with->n_out < m->search->n_out)
        return tl_refuse(p, NULL, "gradients come to its search, but not to its replacement");
    if (with != NULL && put(m, with) && tl_same_outputs(p, m) && (p->example || check_claim(p, m)))
        return true;
    p->t->n_nodes = m->first;
    atomic_store(&p->t->values.count, n_values);
    return false;
}

bool tl_candidate(tl_pass *p, const tl_form *f, uint32_t node, tl_match *m)
{
    *m = (tl_match){.form = f, .pass = p, .root = node};
    tl_err_clear(&p->why);
    return tl_match_pattern(p, f, f->pattern, f->rule->o.search_pattern != NULL, node, NULL, judge,
                            m);
}

/* ---- what an extra_check may ask about a match ---- */

static int index_of(const tl_match *m, const char *name)
{
    for (int i = 0; m != NULL && name != NULL && i < m->form->rule->o.n_in; i++)
        if (strcmp(m->form->rule->o.example_inputs[i].name, name) == 0)
            return i;
    return -1;
}

const tl_array *tl_match_input(const tl_match *m, const char *name)
{
    int i = index_of(m, name);
    return i < 0 ? NULL : &m->at.array[i];
}

const tl_array *tl_match_constant(const tl_match *m, const char *name)
{
    int i = index_of(m, name);
    if (i < 0)
        return NULL;
    const tl_leaf l = tl_leaf_of(m->pass->t, m->b.arg[i]);
    return l.kind == TL_LEAF_CONSTANT ? &m->pass->g->tracing->constant[l.at].a : NULL;
}

double tl_match_scalar(const tl_match *m, const char *name)
{
    for (int i = 0; m != NULL && name != NULL && i < m->form->rule->o.n_scalars; i++)
        if (strcmp(m->form->rule->o.scalars[i].name, name) == 0)
            return m->at.scalar[i];
    return (double)NAN;
}

const char *tl_match_place(const tl_match *m, int *line)
{
    if (m == NULL)
        return NULL;
    const tl_node *n = &m->pass->t->node[m->b.node[m->search->out[0].node]];
    if (line != NULL)
        *line = n->line;
    return n->file;
}
