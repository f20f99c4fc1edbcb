/* candidate.c: is a match one that may be replaced? Each refusal says why.
 *
 * The first stage has found a place where the ops are those of the pattern. Here the search
 * is traced again with what stands there and must agree in full; then what lies
 * around the match, what the rule claims and what the user says decide. */
#include <string.h>

#include "autograd/replace/internal.h"

typedef struct {
    tl_pass *p;
    const tl_rule *r;
    tl_match m;
    uint32_t node; /* the pattern's first output there */
    bool grad[TL_PATTERN_ARGS];
    tl_rule_at at;
    bool same; /* the second stage found it again */
} candidate;

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

static bool check_claim(tl_pass *p, tl_match *m)
{
    bool passes = p->joint, rounds = p->g->opt.rounds; /* joint, gradients are among the values */
    for (int k = 0; k < m->search->n_nodes; k++)
        passes |= p->reached[m->node[k]];
    bool exact = claim(m, passes) != 0;
    if (!exact && !rounds)
        return tl_refuse(p, "it rounds elsewhere in %s%s; ask for it by .rounds",
                         tl_dtype_name(m->array[0].dtype),
                         passes && claim(m, false) ? ", in the gradient" : "");
    bool same = p->joint || tl_glance_at_uses(p, m);
    m->rounds = !same || !exact;
    return same || rounds;
}

/* ---- what lies around a match, and what would take its place ---- */

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
        if (maker >= 0 && tl_match_holds(m, (uint32_t)maker))
            return tl_refuse(p, "argument %d is %s at %s:%d, which the match computes", i,
                             p->t->node[maker].op->name, p->t->node[maker].file,
                             p->t->node[maker].line);
    }
    return true;
}

/* How much outside the match reads that value. */
static uint32_t readers(const tl_pass *p, const tl_match *m, uint32_t value)
{
    uint32_t n = p->held[value] != 0;
    const uint32_t *start = &p->user_start[p->n_others + value];
    for (uint32_t u = start[0]; u < start[1]; u++)
        n += !tl_match_holds(m, p->user[u]);
    return n;
}

/* What the pattern does not give out has no users outside. */
static bool check_users(tl_pass *p, const tl_match *m)
{
    for (int k = 0; k < m->search->n_nodes; k++) {
        const tl_node *n = &p->t->node[m->node[k]];
        for (int j = 0; j < n->n_out; j++) {
            uint32_t others = readers(p, m, n->out + (uint32_t)j);
            if (others > 0 && !gives(m->search, k, j)) {
                const char *note = m->search->node[k].used & TL_BIT(j)
                                       ? ""
                                       : ", which the pattern knows nothing of";
                return tl_refuse(p, "%s at %s:%d has %u other user%s of output %d%s", n->op->name,
                                 n->file, n->line, others, others > 1 ? "s" : "", j, note);
            }
        }
    }
    return true;
}

/* Everything was recorded in one mode; bits of TL_FAST and of selected kernels are not those that
 * were compared. */
static bool check_mode(tl_pass *p, const tl_match *m)
{
    const tl_node *first = &p->t->node[m->node[0]];
    unsigned ignored = p->joint ? TL_NO_GRAD : 0;
    for (int k = 0; k < m->search->n_nodes; k++) {
        const tl_node *n = &p->t->node[m->node[k]];
        if ((n->mode & ~ignored) != (first->mode & ~ignored) || n->choice != first->choice)
            return tl_refuse(p, "%s at %s:%d and %s at %s:%d were recorded in different modes",
                             first->op->name, first->file, first->line, n->op->name, n->file,
                             n->line);
    }
    if (first->mode & TL_FAST && !p->g->opt.rounds)
        return tl_refuse(p, "it was recorded under TL_FAST");
    if (first->choice != NULL && !p->g->opt.rounds)
        return tl_refuse(p, "kernels are selected where it was recorded");
    return true;
}

static bool check_replacement(tl_pass *p, const tl_match *m)
{
    const tl_array *was[TL_PATTERN_ARGS + TL_PATTERN_OUTS];
    for (int i = 0; i < m->search->n_out; i++)
        was[i] = &tl_values_at(&p->t->values, m->out[i])->a;
    if (tl_outputs_agree(m->search, was, m->with, &p->why) != TL_OK)
        return false;
    for (int i = 0; i < m->search->n_out; i++) {
        const tl_array *x = was[i], *y = &m->with->out_array[i];
        for (int d = 0; m->search->out[i].node != TL_REF_NONE && d < x->ndim; d++)
            if (x->dim[d] > 1 && x->stride[d] != y->stride[d])
                return tl_refuse(
                    p, "output %d of the replacement has other strides in dim %d (%lld, not %lld)",
                    i, d, (long long)y->stride[d], (long long)x->stride[d]);
    }
    return true;
}

/* ---- the search, traced again ---- */

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

static bool trace_and_find(candidate *c, const tl_binding *b, unsigned seeded)
{
    tl_pass *p = c->p;
    tl_match *m = &c->m;
    c->same = false;
    c->at = (tl_rule_at){m->array, c->grad, m->scalar, seeded};
    m->search = c->r->o.search_pattern;
    if (m->search == NULL)
        m->search = tl_rule_trace(c->r, true, p->scratch, &p->bump, &c->at, &p->why);
    if (m->search == NULL || (seeded != 0 && m->search->n_out == c->r->o.n_out))
        return false;
    return tl_match_pattern(p, c->r, m->search, true, c->node, b, found_again, c);
}

/* The outputs that something outside the first stage's match reads: gradients may come to them. */
static unsigned live_outputs(const candidate *c, const tl_binding *b)
{
    const tl_pattern *q = c->r->first;
    unsigned live = 0;
    for (int i = 0; i < q->n_out; i++) {
        if (q->out[i].node < 0)
            continue;
        uint32_t v = c->p->t->node[b->node[q->out[i].node]].out + (uint32_t)q->out[i].at;
        bool out = c->p->held[v];
        const uint32_t *start = &c->p->user_start[c->p->n_others + v];
        for (uint32_t u = start[0]; u < start[1] && !out; u++) {
            out = true;
            for (int k = 0; k < q->n_nodes; k++)
                out &= b->node[k] != (int32_t)c->p->user[u];
        }
        live |= out && tl_values_at(&c->p->t->values, v)->needs_grad ? TL_BIT(i) : 0;
    }
    return live;
}

/* Cotangents have the strides they have there; false: they were traced with others. */
static bool note_cotangents(candidate *c, unsigned seeded)
{
    bool same = true;
    for (int i = 0; i < c->r->o.n_out; i++) {
        const tl_value *v = seeded & TL_BIT(i) && !tl_is_none(c->m.arg[c->r->o.n_in + i])
                                ? tl_peek(c->p->t, c->m.arg[c->r->o.n_in + i])
                                : NULL;
        tl_array *a = &c->m.array[c->r->o.n_in + i], was = *a;
        if (v == NULL)
            continue;
        *a = v->a;
        a->data = NULL;
        same &= tl_array_same_shape(&was, a) &&
                memcmp(was.stride, a->stride, sizeof was.stride) == 0;
    }
    return same;
}

/* With its gradients: those that come to all outputs that are read, or, if there is no such place,
 * to fewer. */
static bool find_joint(candidate *c, const tl_binding *b)
{
    unsigned live = live_outputs(c, b);
    for (unsigned seeded = live; seeded != 0; seeded = (seeded - 1) & live) {
        memset(&c->m.array[c->r->o.n_in], 0, (size_t)c->r->o.n_out * sizeof *c->m.array);
        if (trace_and_find(c, b, seeded) &&
            (note_cotangents(c, seeded) || trace_and_find(c, b, seeded)))
            return true;
    }
    return tl_refuse(c->p, "no gradient comes back through it as its search has it");
}

/* ---- stages ---- */

static bool judge(void *ctx, const tl_binding *b)
{
    candidate *c = ctx;
    tl_pass *p = c->p;
    tl_match *m = &c->m;
    p->near = true;
    memcpy(m->scalar, b->scalar, sizeof m->scalar);
    for (int i = 0; i < c->r->o.n_in; i++) {
        const tl_value *v = tl_is_none(b->arg[i]) ? NULL : tl_peek(p->t, b->arg[i]);
        if (v == NULL)
            return tl_refuse(p, "argument %d is not found", i);
        m->array[i] = v->a;
        m->array[i].data = NULL;
        c->grad[i] = v->needs_grad && (!p->joint || tl_rule_grad(c->r, i));
    }
    p->scratch->mode = TL_TRACE | (p->joint ? 0 : p->t->node[c->node].mode);
    if (!(p->joint ? find_joint(c, b) : trace_and_find(c, b, 0)))
        return tl_refuse(p,
                         "traced with these shapes and constants, its search is another program");
    for (int i = 0; i < m->search->n_out; i++)
        if (m->search->out[i].node >= 0)
            m->out[i] = p->t->node[m->node[m->search->out[i].node]].out +
                        (uint32_t)m->search->out[i].at;
    if (c->r->o.extra_check != NULL && !c->r->o.extra_check(m, c->r->o.ctx))
        return tl_refuse(p, "extra_check says no");
    m->with = tl_rule_trace(c->r, false, p->scratch, &p->bump, &c->at, &p->why);
    return m->with != NULL && check_replacement(p, m) && check_claim(p, m);
}

bool tl_candidate(tl_pass *p, const tl_rule *r, uint32_t node, tl_match *found)
{
    candidate c = {.p = p, .r = r, .node = node, .m = {.rule = r, .pass = p}};
    tl_err_clear(&p->why);
    p->near = p->overlaps = false;
    if (tl_match_pattern(p, r, r->first, r->o.search_pattern != NULL, node, NULL, judge, &c)) {
        *found = c.m;
        return true;
    }
    if (p->why.status == TL_ENOMEM)
        return tl_fail(&p->g->head.err, TL_ENOMEM, "%s", p->why.message), false;
    if (p->near && !p->overlaps)
        tl_report_missed(p->g, r, p->why.message);
    return false;
}
