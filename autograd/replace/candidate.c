/* candidate.c: is a match one that may be replaced? Each refusal says why.
 *
 * The first stage has found a place where the ops are those of the pattern. Here the search is
 * traced again with what stands there and must agree in full; then what lies around the match, what
 * the rule claims and what the user says decide. What only shows in the whole graph is left to
 * comparing it (compare.c). */
#include <string.h>

#include "autograd/replace/internal.h"

/* ---- what lies around a match ---- */

/* How much outside the match, or in it, reads that value; outside the replacement does, where it is
 * an argument, too: mul(h, h) of h = silu(a) is no silu(a)*b. */
static int readers(const tl_pass *p, const tl_match *m, uint32_t value, bool outside)
{
    int n = 0;
    for (const tl_user *u = p->users[p->n_others + value]; u != NULL; u = u->next)
        n += (tl_match_node(m, u->node) < 0) == outside;
    for (int i = 0; i < m->search->n_args && outside; i++)
        n += m->b.arg[i].owner == p->t->values.owner && m->b.arg[i].index == value;
    return n;
}

/* What the pattern does not give out has no users outside. */
static bool check_users(tl_pass *p, const tl_match *m)
{
    for (int k = 0; k < m->search->n_nodes; k++) {
        const tl_node *n = &p->t->node[m->b.node[k]];
        for (int j = 0; j < n->n_out; j++) {
            const uint32_t value = n->out + (uint32_t)j;
            const int others = tl_match_output(m, value) >= 0 ? 0 : readers(p, m, value, true);
            if (others > 0)
                return tl_refuse(p, "%s at %s:%d has %d other user%s of output %d%s", n->op->name,
                                 n->file, n->line, others, others > 1 ? "s" : "", j,
                                 readers(p, m, value, false) > 0
                                     ? ""
                                     : ", which the pattern knows nothing of");
        }
    }
    return true;
}

/* Everything was recorded in one mode; bits of TL_FAST and of selected kernels are not those that
 * were compared. */
static bool check_mode(tl_pass *p, const tl_match *m)
{
    const tl_node *first = &p->t->node[m->b.node[0]];
    unsigned ignored = p->joint ? TL_NO_GRAD : 0;
    for (int k = 0; k < m->search->n_nodes; k++) {
        const tl_node *n = &p->t->node[m->b.node[k]];
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

/* ---- what the rule claims ---- */

static bool claims(const tl_match *m, bool passes)
{
    const tl_dtype d = m->at.array[0].dtype;
    for (int i = 0; i < m->form->rule->o.n_in; i++) { /* the claim is for these dtypes */
        const tl_pattern_arg *a = &m->form->rule->o.example_inputs[i];
        const tl_dtype is = m->at.array[i].dtype;
        if (a->fixed ? is != a->dtype : is != d && !(a->or_f32 && is == TL_F32))
            return false;
    }
    return tl_form_claims(m->form, d, passes);
}

static bool check_claim(tl_pass *p, tl_match *m)
{
    bool passes = p->joint; /* then gradients are among the values */
    for (int k = 0; k < m->search->n_nodes; k++)
        passes |= p->reached[m->b.node[k]];
    m->rounds = !claims(m, passes);
    if (m->rounds && !p->g->opt.rounds)
        return tl_refuse(p, "it rounds elsewhere in %s%s; ask for it by .rounds",
                         tl_dtype_name(m->at.array[0].dtype),
                         claims(m, false) ? ", in the gradient" : "");
    return true;
}

/* ---- the search, traced again ---- */

static bool found_again(void *ctx, const tl_binding *b)
{
    tl_match *m = ctx;
    m->b = *b;
    for (int i = 0; i < m->search->n_out; i++) {
        tl_pattern_ref x = m->search->out[i];
        m->out[i] = x.node < 0 ? UINT32_MAX
                               : m->pass->t->node[b->node[x.node]].out + (uint32_t)x.at;
    }
    return check_users(m->pass, m) && check_mode(m->pass, m);
}

static bool trace_and_find(tl_match *m, const tl_binding *b, unsigned seeded)
{
    tl_pass *p = m->pass;
    const tl_replacement *o = &m->form->rule->o;
    m->at.seeded = seeded;
    m->search = o->search_pattern;
    if (m->search == NULL)
        m->search = tl_rule_trace(m->form, true, p->scratch, &p->bump, &m->at, &p->why);
    if (m->search == NULL || (seeded != 0 && m->search->n_out == o->n_out))
        return false;
    return tl_match_pattern(p, m->form, m->search, true, m->root, b, found_again, m);
}

/* With its gradients: those that come to all outputs, or, if there is no such place, to fewer. The
 * replacement's cotangents have the strides they have there. */
static bool find_joint(tl_match *m, const tl_binding *b)
{
    const tl_rule *r = m->form->rule;
    for (unsigned seeded = TL_BIT(r->o.n_out) - 1; seeded != 0; seeded--) {
        if (!trace_and_find(m, b, seeded))
            continue;
        for (int i = r->o.n_in; i < r->o.n_in + r->o.n_out; i++)
            if (!tl_is_none(m->b.arg[i]))
                m->at.array[i] = tl_peek(m->pass->t, m->b.arg[i])->a;
        return true;
    }
    return tl_refuse(m->pass, "no gradient comes back through it as its search has it");
}

static bool judge(void *ctx, const tl_binding *b)
{
    tl_match *m = ctx;
    tl_pass *p = m->pass;
    const tl_rule *r = m->form->rule;
    tl_array was[TL_PATTERN_MOST];
    m->at = (tl_rule_at){.seeded = 0};
    memcpy(m->at.scalar, b->scalar, sizeof m->at.scalar);
    for (int i = 0; i < r->o.n_in; i++) {
        const tl_value *v = tl_is_none(b->arg[i]) ? NULL : tl_peek(p->t, b->arg[i]);
        if (v == NULL)
            return tl_refuse(p, "argument %d is not found", i);
        m->at.array[i] = v->a;
        m->at.array[i].data = NULL;
        m->at.grad[i] = v->needs_grad && (!p->joint || tl_rule_grad(r, i));
    }
    p->scratch->mode = TL_TRACE | (p->joint ? 0 : p->t->node[m->root].mode);
    if (!(p->joint ? find_joint(m, b) : trace_and_find(m, b, 0)))
        return tl_refuse(p,
                         "traced with these shapes and constants, its search is another program");
    for (int i = 0; i < m->search->n_out; i++)
        if (m->out[i] != UINT32_MAX)
            was[i] = tl_values_at(&p->t->values, m->out[i])->a;
    if (r->o.extra_check != NULL && !r->o.extra_check(m, r->o.ctx))
        return tl_refuse(p, "extra_check says no");
    m->with = tl_rule_trace(m->form, false, p->scratch, &p->bump, &m->at, &p->why);
    return m->with != NULL && tl_outputs_agree(m->search, was, m->with, true, &p->why) == TL_OK &&
           check_claim(p, m);
}

bool tl_candidate(tl_pass *p, const tl_form *f, uint32_t node, tl_match *m)
{
    *m = (tl_match){.form = f, .pass = p, .root = node};
    tl_err_clear(&p->why);
    return tl_match_pattern(p, f, f->pattern, f->rule->o.search_pattern != NULL, node, NULL, judge,
                            m);
}
