/* match.c: finds a pattern in a graph, and decides whether it may be replaced there, or why not.
 * The pattern is laid over the graph from the node of its first output downwards. Where there is a
 * choice - the order of commutative operands, which user of a value computes a further output -
 * each way is tried on a copy of the binding. Nodes are bound one to one.
 *
 * The first match is by ops alone. There the search is traced again with the shapes and constants
 * of the place, and must match in full. Then the surroundings, the rule's claims and extra_check
 * decide. Conditions on the whole graph are left to compare.c. */
#include <math.h>
#include <string.h>

#include "autograd/replace/internal.h"

/* The binding has node i of the graph as one of the pattern's n nodes. */
static bool has_node(const tl_binding *b, int n, uint32_t i)
{
    while (n > 0 && b->node[n - 1] != (int32_t)i)
        n--;
    return n > 0;
}

/* Binds node k of the pattern to node i of the graph, if all but its inputs agrees. */
static bool bind_node(const tl_match *m, tl_binding *s, int k, uint32_t i)
{
    tl_pass *p = m->pass;
    const tl_pattern_node *q = &m->search->node[k];
    const tl_node *n = &p->t->node[i];
    char a[TL_ATTRS_TEXT], b[TL_ATTRS_TEXT];
    if (s->node[k] >= 0)
        return s->node[k] == (int32_t)i;
    if (n->op->traits & TL_RANDOM && n->op != q->op)
        return tl_refuse(p, n, "draws random numbers where %s is expected", q->op->name);
    if (n->op != q->op || n->n_in != q->n_in || tl_node_mutates(n) || p->owner[i] != NULL ||
        has_node(s, m->search->n_nodes, i))
        return false;
    for (const tl_remark *r = p->bars == NULL ? NULL : p->bars[i]; r != NULL; r = r->next)
        if (r->times > 0 ? r->rule == m->rule - m->rule->form
                         : r->rule == m->rule && k == m->search->out[0].node)
            return tl_refuse(p, r->times > 0 ? n : NULL, "%s", r->why);
    if (p->weight[i])
        return tl_refuse(p, n, "makes a weight, which is known by what it is made of");
    const tl_value *first = n->n_in == 0 ? NULL : tl_peek(p->t, n->in[0]);
    if (m->search != m->rule->pattern &&
        !tl_attrs_agree(n->op, n->attrs, q->attrs, first == NULL ? 0 : first->a.ndim, q->scalar))
        return tl_refuse(p, n, "has%s, the pattern%s", tl_attrs_text(n->op, n->attrs, a),
                         tl_attrs_text(q->op, q->attrs, b));
    s->node[k] = (int32_t)i;
    for (const tl_attr *f = n->op->attr; f != NULL && f->name != NULL; f++) {
        const int c = q->scalar[f - n->op->attr];
        const double v = tl_attr_number(f, n->attrs);
        if (c < 0)
            continue;
        if (s->has_scalar & TL_BIT(c) && memcmp(&s->scalar[c], &v, sizeof v) != 0)
            return false;
        s->scalar[c] = v;
        s->has_scalar |= TL_BIT(c);
    }
    return true;
}

/* Binds the pattern's reference `want` to x. */
static bool bind(const tl_match *m, tl_binding *b, tl_pattern_ref want, tl_tensor x)
{
    const tl_replacement *o = &m->rule->o;
    const int32_t maker = tl_maker_at(m->pass->t, x);
    tl_tensor *known = want.node == TL_REF_ARG ? &b->arg[want.at] : NULL;
    if (want.node == TL_REF_NONE || tl_is_none(x))
        return want.node == TL_REF_NONE && tl_is_none(x);
    if (known == NULL)
        return maker >= 0 && tl_peek(m->pass->t, x)->out == want.at &&
               bind_node(m, b, want.node, (uint32_t)maker);
    if (!tl_is_none(*known))
        return tl_same_handle(*known, x);
    if (want.at < o->n_in && o->example_inputs[want.at].exclusive)
        for (int j = 0; j < o->n_in; j++)
            if (o->example_inputs[j].exclusive && tl_same_handle(b->arg[j], x))
                return false;
    *known = x;
    return true;
}

/* The value that a reference is bound to; TL_NONE: none yet. */
static tl_tensor bound(const tl_tape *t, const tl_binding *b, tl_pattern_ref x)
{
    return x.node == TL_REF_ARG                  ? b->arg[x.at]
           : x.node >= 0 && b->node[x.node] >= 0 ? tl_node_out(t, &t->node[b->node[x.node]], x.at)
                                                 : TL_NONE;
}

/* How many readers x has outside the match; 0 if it is one of the match's outputs. The replacement
 * is a reader if x is also an argument: mul(h, h) with h = silu(a) is not silu(a)*b. */
static int readers(const tl_match *m, tl_tensor x)
{
    int n = 0;
    for (int i = 0; i < m->search->n_out; i++)
        if (tl_same_handle(m->out[i], x))
            return 0;
    for (const tl_user *u = m->pass->at[tl_pass_slot(m->pass, x)].users; u != NULL; u = u->next)
        n += !has_node(&m->b, m->search->n_nodes, u->node);
    for (int i = 0; i < TL_PATTERN_MOST; i++)
        n += tl_same_handle(m->b.arg[i], x);
    return n;
}

/* The search has matched in full. Checks that only outputs have users outside, and that everything
 * was recorded in one mode, without TL_FAST or selected kernels, whose bits nobody has compared. */
static bool finish_match(tl_match *m, const tl_binding *b)
{
    tl_pass *p = m->pass;
    const tl_replacement *o = &m->rule->o;
    const tl_node *first = &p->t->node[b->node[0]];
    const unsigned ignored = p->joint ? TL_NO_GRAD : 0;
    m->b = *b;
    for (int i = 0; i < m->search->n_out; i++)
        m->out[i] = m->search->out[i].node < 0 ? TL_NONE : bound(p->t, b, m->search->out[i]);
    for (int i = 0; i < o->n_out; i++) {
        const tl_value *y = tl_peek(p->t, m->out[i]), *dy = tl_peek(p->t, b->arg[o->n_in + i]);
        if (y != NULL && dy != NULL &&
            (!tl_array_same_shape(&y->a, &dy->a) || y->a.dtype != dy->a.dtype))
            return tl_refuse(p, NULL, "what would be the gradient of an output has another shape");
    }
    for (int k = 0; k < m->search->n_nodes && !p->example; k++) {
        const tl_node *n = &p->t->node[b->node[k]];
        for (int j = 0; j < n->n_out; j++) {
            const int others = readers(m, tl_node_out(p->t, n, j));
            if (others > 0)
                return tl_refuse(p, n, "has %d other user%s of output %d", others,
                                 others > 1 ? "s" : "", j);
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

static bool try_place(tl_match *m, const tl_binding *b);

/* Completes a binding in which inputs of nodes above k are bound. Binds those of bound nodes from k
 * down, then nodes that read a bound value. Tries each way until one is good. */
static bool solve(tl_match *m, const tl_binding *was, int k)
{
    const tl_tape *t = m->pass->t;
    const tl_pattern_node *q = m->search->node;
    tl_binding b;
    bool all = true;
    while (k >= 0 && was->node[k] < 0)
        k--;
    for (int turned = 0, turns = 0; k >= 0 && turned <= turns; turned++) {
        const tl_node *n = &t->node[was->node[k]]; /* try_place() records, and nodes move */
        int j = 0;
        turns = n->op->traits & TL_COMMUTATIVE && n->n_in >= 2 &&
                !tl_same_handle(n->in[0], n->in[1]);
        b = *was;
        while (j < n->n_in && bind(m, &b, q[k].in[j], n->in[turned && j < 2 ? 1 - j : j]))
            j++;
        if (j == n->n_in && solve(m, &b, k - 1))
            return true;
    }
    if (k >= 0)
        return false;
    for (k = 0; k < m->search->n_nodes; k++) {
        for (int j = 0; was->node[k] < 0 && j < q[k].n_in; j++) {
            const tl_tensor x = bound(t, was, q[k].in[j]);
            if (tl_is_none(x))
                continue;
            const tl_user *u = m->pass->at[tl_pass_slot(m->pass, x)].users;
            for (; u != NULL; u = u->next) {
                b = *was;
                if (u->node != UINT32_MAX && t->node[u->node].op == q[k].op &&
                    bind_node(m, &b, k, u->node) && solve(m, &b, k))
                    return true;
            }
            return false;
        }
        all &= was->node[k] >= 0;
    }
    return all && (m->search == m->rule->pattern ? try_place : finish_match)(m, was);
}

bool tl_match_at(tl_match *m, const tl_binding *like)
{
    tl_binding b = like != NULL ? *like : (tl_binding){.has_scalar = 0};
    const int root = m->search->out[0].node;
    if (root < 0)
        return tl_refuse(m->pass, NULL, "its search computes nothing as output 0");
    memset(b.node, -1, sizeof b.node);
    return bind_node(m, &b, root, m->root) && solve(m, &b, root);
}

/* ---- may a match be replaced? ---- */

/* The rule claims the bits for these dtypes and, where a gradient passes, those of gradients. */
static bool check_claim(tl_pass *p, tl_match *m)
{
    const tl_pattern_arg *arg = m->rule->o.example_inputs;
    const tl_dtype d = m->call.array[0].dtype;
    bool passes = p->joint, fits = true;
    for (int k = 0; k < m->search->n_nodes; k++)
        passes |= p->reached[m->b.node[k]];
    for (int i = 0; i < m->rule->o.n_in; i++) {
        const tl_dtype is = m->call.array[i].dtype;
        fits &= is == (arg[i].fixed ? arg[i].dtype : d) || (arg[i].or_f32 && is == TL_F32);
    }
    m->rounds = !fits || !tl_rule_claims(m->rule, d, passes);
    return !m->rounds || p->g->opt.rounds ||
           tl_refuse(p, NULL, "it rounds elsewhere in %s%s; ask for it by .rounds",
                     tl_dtype_name(d),
                     fits && tl_rule_claims(m->rule, d, false) ? ", in the gradient" : "");
}

/* Traces the search with the arrays and scalars of the place, and matches that; a joint one with
 * the gradients of all outputs or, failing that, of fewer. Cotangents get the graph's strides. */
static bool match_in_full(tl_match *m, const tl_binding *b)
{
    tl_pass *p = m->pass;
    const tl_replacement *o = &m->rule->o;
    m->call.seeded = p->joint ? TL_BIT(o->n_out) - 1 : 0;
    do {
        m->search = tl_rule_trace(&m->call, true, p->scratch, &p->bump, &p->why);
        if (m->search == NULL || (p->joint && m->search->n_out == o->n_out) || !tl_match_at(m, b))
            continue;
        for (int i = o->n_in; i < o->n_in + o->n_out; i++)
            if (!tl_is_none(m->b.arg[i]))
                m->call.array[i] = tl_peek(p->t, m->b.arg[i])->a;
        return true;
    } while (m->call.seeded-- > 1);
    return tl_refuse(p, NULL,
                     p->joint ? "no gradient comes back through it as its search has it"
                              : "with these shapes and constants its search is another program");
}

/* Records the replacement behind the program, at the place of the call that gives output 0. */
static bool put(tl_match *m)
{
    tl_pass *p = m->pass;
    tl_tape *t = p->t;
    const tl_node like = t->node[m->root];
    const int part = tl_traced_of(t)->part;
    const tl_pattern *with = tl_rule_trace(&m->call, false, p->scratch, &p->bump, &p->why);
    tl_tensor in[TL_PATTERN_ARGS], out[TL_OUTS];
    tl_binding b = m->b; /* of the replacement, node by node */
    if (with == NULL)
        return false;
    if (with->n_out < m->search->n_out)
        return tl_refuse(p, NULL, "gradients come to its search, but not to its replacement");
    tl_scope outer = tl_scope_of(t, &like, /* backward is expanded already */
                                 like.mode | (p->joint ? TL_NO_GRAD : 0));
    tl_trace_part(t, tl_node_part(t, m->root));
    for (int i = 0; i < with->n_nodes && !tl_failed(t); i++) {
        const tl_pattern_node *q = &with->node[i];
        for (int j = 0; j < q->n_in; j++)
            in[j] = bound(t, &b, q->in[j]);
        b.node[i] = (int32_t)t->n_nodes;
        tl_apply((tl_at){t, like.file, like.line, NULL}, q->op, q->attrs, in, q->n_in, out);
    }
    for (int i = 0; i < with->n_out && !tl_failed(t); i++)
        m->put[i] = bound(t, &b, with->out[i]);
    tl_trace_part(t, part);
    tl_scope_end(t, outer);
    m->end = t->n_nodes;
    for (int i = 0; p->joint && i < m->search->n_out; i++) /* other joint rules ask */
        if (!tl_is_none(m->out[i]) && m->put[i].owner == t->values.owner)
            tl_peek(t, m->put[i])->needs_grad = tl_peek(t, m->out[i])->needs_grad;
    const tl_status s = tl_error_status(t);
    if (s != TL_OK)
        tl_fail(&p->why, s, "%s", tl_error(t));
    if (s != TL_OK && s != TL_ENOMEM)
        tl_err_clear(&t->head.err); /* this place is refused, and not the program */
    return s == TL_OK;
}

/* Tries a place where the ops match. If it is refused, the recorded replacement is taken back. */
static bool try_place(tl_match *m, const tl_binding *b)
{
    tl_pass *p = m->pass;
    const tl_replacement *o = &m->rule->o;
    const uint32_t n_values = atomic_load(&p->t->values.count);
    m->first = p->t->n_nodes;
    tl_rule_example(m->rule, NULL, &m->call, NULL);
    memcpy(m->call.scalar, b->scalar, sizeof m->call.scalar);
    for (int i = 0; i < o->n_in; i++) {
        const tl_value *v = tl_peek(p->t, b->arg[i]);
        if (v == NULL)
            return tl_refuse(p, NULL, "its search does not use its argument '%s'",
                             o->example_inputs[i].name);
        m->call.array[i] = v->a;
        m->call.array[i].data = NULL;
        m->call.grad[i] = v->needs_grad && (!p->joint || m->call.grad[i]);
    }
    for (int i = 0; i < o->n_scalars; i++)
        if (!(b->has_scalar & TL_BIT(i)))
            return tl_refuse(p, NULL, "no attribute of its search is its scalar '%s' (%g)",
                             o->scalars[i].name, o->scalars[i].value);
    /* Arguments have no samples there: TL_STRICT can refuse only where put() records. */
    const unsigned mode = p->joint ? 0 : p->t->node[m->root].mode & ~(unsigned)TL_STRICT;
    p->scratch->now.mode = TL_TRACE | mode;
    if (match_in_full(m, b) &&
        (p->example || o->extra_check == NULL || o->extra_check(m, o->ctx) ||
         tl_refuse(p, NULL, "extra_check says no")) &&
        put(m) && tl_same_outputs(p, m) && (p->example || check_claim(p, m)))
        return true;
    m->search = m->rule->pattern;
    p->t->n_nodes = m->first;
    atomic_store(&p->t->values.count, n_values);
    return false;
}

/* ---- questions of an extra_check about a match ---- */

const tl_array *tl_match_input(const tl_match *m, const char *name)
{
    for (int i = 0; m != NULL && name != NULL && i < m->rule->o.n_in; i++)
        if (strcmp(m->rule->o.example_inputs[i].name, name) == 0)
            return &m->call.array[i];
    return NULL;
}

const tl_array *tl_match_constant(const tl_match *m, const char *name)
{
    const tl_array *a = tl_match_input(m, name);
    const tl_leaf l = a == NULL ? (tl_leaf){0}
                                : tl_leaf_of(m->pass->t, m->b.arg[a - m->call.array]);
    return l.kind == TL_LEAF_CONSTANT ? &m->pass->g->tracing->constant[l.at].a : NULL;
}

double tl_match_scalar(const tl_match *m, const char *name)
{
    for (int i = 0; m != NULL && name != NULL && i < m->rule->o.n_scalars; i++)
        if (strcmp(m->rule->o.scalars[i].name, name) == 0)
            return m->call.scalar[i];
    return (double)NAN;
}

const char *tl_match_place(const tl_match *m, int *line)
{
    const tl_node *n = m == NULL ? NULL : tl_maker(m->pass->t, m->out[0]);
    if (n != NULL && line != NULL)
        *line = n->line;
    return n == NULL ? NULL : n->file;
}
