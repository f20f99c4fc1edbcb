/* match.c: a pattern found in a graph.
 *
 * From the node of the first output downwards, what a node of the pattern reads is what the graph's
 * node reads. Where there is a choice - the order of commutative operands, which user of a value a
 * further output is - each way is tried on a copy of the binding. One node of the pattern has one
 * node of the graph and the other way round; one argument has one value. */
#include <math.h>
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

bool tl_refuse(tl_pass *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    tl_vfail(&p->why, TL_EUSAGE, fmt, ap);
    va_end(ap);
    return false;
}

/* What keeps the form from node i, or, if it is to be the first, from there; NULL: nothing. */
static const tl_bar *bar_of(const tl_pass *p, uint32_t i, const tl_form *form, bool first)
{
    const tl_bar *b = p->bars == NULL ? NULL : p->bars[i];
    while (b != NULL && !(b->form == NULL ? b->rule == form->rule : first && b->form == form))
        b = b->next;
    return b;
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
    const tl_bar *bar;
    char a[TL_ATTRS_TEXT], b[TL_ATTRS_TEXT];
    if (s->node[k] >= 0)
        return s->node[k] == (int32_t)i;
    if (n->op->traits & TL_RANDOM && n->op != q->op)
        return tl_refuse(p, "%s at %s:%d draws random numbers where %s is expected", n->op->name,
                         n->file, n->line, q->op->name);
    if (n->op != q->op || n->n_in != q->n_in || tl_node_mutates(n))
        return false;
    for (int j = 0; j < f->q->n_nodes; j++)
        if (s->node[j] == (int32_t)i)
            return false;
    if (p->owner[i] != NULL) /* another match's, which is made, or barred and no longer there */
        return false;
    if ((bar = bar_of(p, i, f->form, k == f->q->out[0].node)) != NULL)
        return bar->form != NULL
                   ? tl_refuse(p, "%s", bar->why)
                   : tl_refuse(p,
                               "%s at %s:%d was made by this replacement: it would go on for ever",
                               n->op->name, n->file, n->line);
    if (n->needs_grad && n->n_out > 0 && tl_values_at(&p->t->values, n->out)->fixed)
        return tl_refuse(p, "%s at %s:%d makes a weight, which is known by what it is made of",
                         n->op->name, n->file, n->line);
    const tl_value *first = n->n_in == 0 || tl_is_none(n->in[0]) ? NULL : tl_peek(p->t, n->in[0]);
    if (f->exact &&
        !tl_attrs_agree(n->op, n->attrs, q->attrs, first == NULL ? 0 : first->a.ndim, q->scalar))
        return tl_refuse(p, "%s at %s:%d has%s, the pattern%s", n->op->name, n->file, n->line,
                         tl_attrs_text(n->op, n->attrs, a), tl_attrs_text(q->op, q->attrs, b));
    s->node[k] = (int32_t)i;
    s->open[k] = true;
    return bind_scalars(s, q, n);
}

static bool bind_arg(search *f, tl_binding *b, int i, tl_tensor x)
{
    const tl_pattern_arg *arg = f->form->rule->o.example_inputs;
    if (tl_is_none(x))
        return false;
    if (!tl_is_none(b->arg[i]))
        return tl_same_handle(b->arg[i], x);
    for (int j = 0; i < f->form->rule->o.n_in && arg[i].exclusive && j < f->form->rule->o.n_in; j++)
        if (arg[j].exclusive && tl_same_handle(b->arg[j], x))
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
static tl_tensor bound(const search *f, const tl_binding *b, tl_pattern_ref x)
{
    const tl_tape *t = f->p->t;
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
            tl_tensor x = bound(f, b, q->in[j]);
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
    if (p->t->node[at].op != q->node[root].op)
        return false;
    if (q->n_nodes > TL_PATTERN_NODES)
        return tl_refuse(p, "its search has %d calls here", q->n_nodes);
    if (begin != NULL)
        memcpy(b.arg, begin->arg, sizeof b.arg);
    memset(b.node, -1, sizeof b.node);
    return bind_node(&f, &b, root, at) && solve(&f, &b);
}

int tl_match_node(const tl_match *m, uint32_t node)
{
    int k = m->search->n_nodes - 1;
    while (k >= 0 && m->b.node[k] != (int32_t)node)
        k--;
    return k;
}

int tl_match_output(const tl_match *m, uint32_t value)
{
    int i = m->search->n_out - 1;
    while (i >= 0 && m->out[i] != value)
        i--;
    return i;
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
