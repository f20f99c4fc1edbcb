/* candidate.c: is a match one that may be replaced? Each refusal says why.
 *
 * The first stage has found a place where the ops are those of the pattern. Here the search
 * is traced again with what stands there and must agree in full; then what lies
 * around the match, what the rule claims and what the user says decide. */
#include <math.h>
#include <string.h>

#include "autograd/graph/pattern_internal.h"

typedef struct {
    tl_pass *p;
    const tl_rule *r;
    tl_match m;
    uint32_t at;
    bool same;          /* the second stage found it again */
} candidate;

static bool inside(const tl_match *m, uint32_t node)
{
    for (int k = 0; k < m->search->n_nodes; k++)
        if (m->node[k] == (int32_t)node)
            return true;
    return false;
}

static bool gives(const tl_pattern *q, int k, int j)
{
    for (int i = 0; i < q->n_out; i++)
        if (q->out[i].node == k && q->out[i].at == j)
            return true;
    return false;
}

/* No argument is what the match itself computes: mul(h, h) of h = silu(a) is no silu(a)*b. */
static bool check_arguments(tl_pass *p, const tl_match *m)
{
    for (int i = 0; i < m->search->n_args; i++) {
        if (m->arg[i].owner != p->t->values.owner)
            continue;
        int32_t maker = tl_values_at(&p->t->values, m->arg[i].index)->node;
        if (maker >= 0 && inside(m, (uint32_t)maker))
            return tl_refuse(p, "argument %d is %s at %s:%d, which the match computes", i, p->t->node[maker].op->name, p->t->node[maker].file, p->t->node[maker].line);
    }
    return true;
}

/* What the pattern does not give out has no users outside. */
static bool check_users(tl_pass *p, const tl_match *m)
{
    for (int k = 0; k < m->search->n_nodes; k++) {
        const tl_node *n = &p->t->node[m->node[k]];
        for (int j = 0; j < n->n_out; j++) {
            uint32_t v = n->out + (uint32_t)j, others = p->held[v] != 0;
            for (uint32_t u = p->user_start[v]; u < p->user_start[v + 1]; u++)
                others += !inside(m, p->user[u]);
            if (others > 0 && !gives(m->search, k, j)) {
                const char *note = m->search->node[k].used & TL_BIT(j) ? "" : ", which the pattern knows nothing of";
                return tl_refuse(p, "%s at %s:%d has %u other user%s of output %d%s", n->op->name, n->file, n->line, others, others > 1 ? "s" : "", j, note);
            }
        }
    }
    return true;
}

/* Everything was recorded in one mode; bits of TL_FAST and of selected kernels are not those that were compared. */
static bool check_mode(tl_pass *p, const tl_match *m)
{
    const tl_node *first = &p->t->node[m->node[0]];
    unsigned ignored = p->joint ? TL_NO_GRAD : 0;
    for (int k = 0; k < m->search->n_nodes; k++) {
        const tl_node *n = &p->t->node[m->node[k]];
        if ((n->mode & ~ignored) != (first->mode & ~ignored) || n->choice != first->choice)
            return tl_refuse(p, "%s at %s:%d and %s at %s:%d were recorded in different modes", first->op->name, first->file, first->line, n->op->name, n->file, n->line);
    }
    if (first->mode & TL_FAST && !p->g->opt.rounds)
        return tl_refuse(p, "it was recorded under TL_FAST");
    if (first->choice != NULL && !p->g->opt.rounds)
        return tl_refuse(p, "kernels are selected where it was recorded");
    return true;
}

static bool check_replacement(tl_pass *p, const tl_match *m)
{
    char a[TL_SHAPE_TEXT], b[TL_SHAPE_TEXT];
    for (int i = 0; i < m->search->n_out; i++) {
        if (m->search->out[i].node == TL_REF_NONE)
            continue;
        if (m->with->out[i].node == TL_REF_NONE)
            return tl_refuse(p, "the replacement sets no output %d", i);
        const tl_array *x = &tl_values_at(&p->t->values, m->out[i])->a, *y = &m->with->out_array[i];
        if (!tl_array_same_shape(x, y) || x->dtype != y->dtype)
            return tl_refuse(p, "output %d of the replacement is %s %s, not %s %s", i, tl_dtype_name(y->dtype), tl_array_shape_text(a, y), tl_dtype_name(x->dtype),
                             tl_array_shape_text(b, x));
        for (int d = 0; d < x->ndim; d++)
            if (x->dim[d] > 1 && x->stride[d] != y->stride[d])
                return tl_refuse(p, "output %d of the replacement has other strides in dim %d (%lld, not %lld)", i, d, (long long)y->stride[d], (long long)x->stride[d]);
    }
    return true;
}

/* ---- storage shared by views ---- */

/* The argument whose memory an output of q shows, or -1. */
static int shown(const tl_pattern *q, tl_pattern_ref x)
{
    while (x.node >= 0 && q->node[x.node].op->traits & TL_VIEW && x.at == 0)
        x = q->node[x.node].in[0];
    return x.node == TL_REF_ARG ? x.at : -1;
}

static bool changed(const tl_pass *p, tl_tensor base, const tl_node **who)
{
    for (uint32_t i = 0; i < p->t->n_nodes; i++) {
        const tl_node *n = *who = &p->t->node[i];
        for (int k = 0; k < n->n_in; k++)
            if (tl_node_writes(p->t, n, k) && tl_same_handle(tl_bottom(p->t, n->in[k]), base))
                return true;
    }
    return false;
}

static bool check_storage(tl_pass *p, const tl_match *m)
{
    const tl_node *who;
    for (int i = 0; i < m->search->n_out; i++) {
        if (m->search->out[i].node == TL_REF_NONE)
            continue;
        int was = shown(m->search, m->search->out[i]), is = shown(m->with, m->with->out[i]);
        if (was == is)
            continue;
        tl_tensor out = {p->t->values.owner, m->out[i], p->t->generation};
        if (changed(p, tl_bottom(p->t, out), &who) || (is >= 0 && changed(p, tl_bottom(p->t, m->arg[is]), &who)))
            return tl_refuse(p, "output %d would lie in other memory, which %s at %s:%d changes in place", i, who->op->name, who->file, who->line);
    }
    return true;
}

/* ---- what the rule claims ---- */

static unsigned claim(const tl_match *m, bool passes)
{
    const tl_replacement *o = &m->rule->o;
    tl_dtype d = m->array[0].dtype;
    for (int i = 0; i < o->n_in; i++) { /* the claim is for these dtypes */
        const tl_pattern_arg *a = &o->example_inputs[i];
        tl_dtype is = m->array[i].dtype;
        if (a->fixed ? is != a->dtype : is != d && !(a->or_f32 && is == TL_F32))
            return 0;
    }
    return (o->exact | (passes ? 0 : o->exact_forward)) & TL_BIT(d);
}

static bool check_claim(tl_pass *p, const tl_match *m)
{
    bool passes = false, rounds = p->g->opt.rounds;
    bool same = p->joint || tl_splice_uses(p, &passes);
    bool exact = claim(m, passes) != 0;
    p->match[p->n_tried - 1]->rounds = !same || !exact;
    if (!exact && !rounds) {
        tl_err_clear(&p->why);
        return tl_refuse(p, "it rounds elsewhere in %s%s; ask for it by .rounds", tl_dtype_name(m->array[0].dtype),
                         passes && claim(m, false) ? ", in the gradient" : "");
    }
    return same || rounds;
}

/* ---- stages ---- */

static bool found_again(void *ctx, const tl_binding *b)
{
    candidate *c = ctx;
    memcpy(c->m.node, b->node, sizeof c->m.node);
    memcpy(c->m.arg, b->arg, sizeof c->m.arg);
    if (c->r->o.search_pattern != NULL)
        memcpy(c->m.scalar, b->scalar, sizeof c->m.scalar);
    c->same = true;
    return check_arguments(c->p, &c->m) && check_users(c->p, &c->m) && check_mode(c->p, &c->m);
}

static void note_outputs(candidate *c)
{
    tl_match *m = &c->m;
    m->last = 0;
    for (int k = 0; k < m->search->n_nodes; k++)
        m->last = (uint32_t)m->node[k] > m->last ? (uint32_t)m->node[k] : m->last;
    for (int i = 0; i < m->search->n_out; i++)
        if (m->search->out[i].node >= 0)
            m->out[i] = c->p->t->node[m->node[m->search->out[i].node]].out + (uint32_t)m->search->out[i].at;
}

static bool judge(void *ctx, const tl_binding *b)
{
    candidate *c = ctx;
    tl_pass *p = c->p;
    tl_match *m = &c->m;
    bool grad[TL_PATTERN_ARGS] = {false};
    p->near = true;
    memcpy(m->scalar, b->scalar, sizeof m->scalar);
    for (int i = 0; i < c->r->n_args; i++) {
        const tl_value *v = tl_is_none(b->arg[i]) ? NULL : tl_peek(p->t, b->arg[i]);
        if (v == NULL)
            return tl_refuse(p, "argument %d is not found", i);
        m->array[i] = v->a;
        m->array[i].data = NULL;
        grad[i] = p->joint ? tl_rule_grad(c->r, i) : v->needs_grad;
    }
    p->scratch->mode = TL_TRACE | (p->joint ? 0 : p->t->node[c->at].mode);
    m->search = c->r->o.search_pattern;
    if (m->search == NULL)
        m->search = tl_rule_trace(c->r, true, p->scratch, &p->bump, m->array, grad, m->scalar, &p->why);
    if (m->search == NULL || !tl_match_pattern(p, c->r, m->search, true, c->at, b, found_again, c))
        return tl_refuse(p, "traced with these shapes and constants, its search is another program");
    note_outputs(c);
    if (c->r->o.extra_check != NULL && !c->r->o.extra_check(m, c->r->o.ctx))
        return tl_refuse(p, "extra_check says no");
    m->with = tl_rule_trace(c->r, false, p->scratch, &p->bump, m->array, grad, m->scalar, &p->why);
    if (m->with == NULL || !check_replacement(p, m) || !check_storage(p, m))
        return false;
    if (tl_splice_try(p, m) && tl_splice_order(p) && check_claim(p, m))
        return true;
    tl_splice_drop(p);
    return false;
}

bool tl_candidate(tl_pass *p, const tl_rule *r, uint32_t node)
{
    candidate c = {.p = p, .r = r, .at = node, .m = {.rule = r, .pass = p}};
    tl_err_clear(&p->why);
    p->near = false;
    if (tl_match_pattern(p, r, r->pattern, r->o.search_pattern != NULL, node, NULL, judge, &c)) {
        tl_splice_accept(p);
        return tl_report_made(p->g, p->match[p->n_match - 1]) == TL_OK;
    }
    if (p->why.status == TL_ENOMEM)
        return tl_fail(&p->g->head.err, TL_ENOMEM, "%s", p->why.message), false;
    if (p->near)
        tl_report_missed(p->g, r, p->why.message);
    return false;
}

/* ---- what an extra_check may ask ---- */

static int index_of(const tl_match *m, const char *name)
{
    for (int i = 0; i < m->rule->o.n_in; i++)
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
    const tl_value *v = tl_values_at(&m->pass->t->values, m->arg[i].index);
    return v->leaf == TL_LEAF_CONSTANT ? &m->pass->g->tracing->constant[v->leaf_at].a : NULL;
}

double tl_match_scalar(const tl_match *m, const char *name)
{
    for (int i = 0; i < m->rule->o.n_scalars; i++)
        if (strcmp(m->rule->o.scalars[i].name, name) == 0)
            return m->scalar[i];
    return (double)NAN;
}

const char *tl_match_place(const tl_match *m, int *line)
{
    const tl_node *n = &m->pass->t->node[m->node[m->search->out[0].node]];
    *line = n->line;
    return n->file;
}
