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
    bool passes = p->joint || tl_splice_passes(p, m),
         rounds = p->g->opt.rounds; /* joint, gradients are among what is claimed */
    bool exact = claim(m, passes) != 0;
    if (!exact && !rounds)
        return tl_refuse(p, "it rounds elsewhere in %s%s; ask for it by .rounds",
                         tl_dtype_name(m->array[0].dtype),
                         passes && claim(m, false) ? ", in the gradient" : "");
    bool same = p->joint || tl_splice_glance(p, m);
    m->rounds = !same || !exact;
    return same || rounds;
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
    return tl_check_around(c->p, &c->m);
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
        for (uint32_t u = c->p->user_start[v]; u < c->p->user_start[v + 1] && !out; u++) {
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

static void note_outputs(candidate *c)
{
    tl_match *m = &c->m;
    m->last = 0;
    for (int k = 0; k < m->search->n_nodes; k++)
        m->last = (uint32_t)m->node[k] > m->last ? (uint32_t)m->node[k] : m->last;
    for (int i = 0; i < m->search->n_out; i++)
        if (m->search->out[i].node >= 0)
            m->out[i] = c->p->t->node[m->node[m->search->out[i].node]].out +
                        (uint32_t)m->search->out[i].at;
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
    note_outputs(c);
    if (c->r->o.extra_check != NULL && !c->r->o.extra_check(m, c->r->o.ctx))
        return tl_refuse(p, "extra_check says no");
    m->with = tl_rule_trace(c->r, false, p->scratch, &p->bump, &c->at, &p->why);
    return m->with != NULL && tl_check_replacement(p, m) && tl_check_storage(p, m) &&
           check_claim(p, m);
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
