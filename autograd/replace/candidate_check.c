/* candidate_check.c: what lies around a match, and what would take its place. Each refusal says
 * why. */
#include "autograd/replace/internal.h"

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
    for (uint32_t u = p->user_start[value]; u < p->user_start[value + 1]; u++)
        n += !inside(m, p->user[u]);
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

/* An output that is read carries a gradient where it did: else what is computed from it leads
 * backward to parameters that it did not, or no longer to some. */
static bool check_carries(tl_pass *p, const tl_match *m, int i)
{
    const tl_pattern_ref x = m->with->out[i];
    bool was = tl_values_at(&p->t->values, m->out[i])->needs_grad;
    bool is = x.node >= 0 ? (m->with->node[x.node].grad_out & TL_BIT(x.at)) != 0
                          : tl_peek(p->t, m->arg[x.at])->needs_grad;
    if (p->joint || was == is || readers(p, m, m->out[i]) == 0)
        return true;
    return tl_refuse(p, "output %d of the replacement carries %s gradient, of its search %s", i,
                     is ? "a" : "no", was ? "one" : "none");
}

bool tl_check_replacement(tl_pass *p, const tl_match *m)
{
    char a[TL_SHAPE_TEXT], b[TL_SHAPE_TEXT];
    if (m->with->n_out < m->search->n_out)
        return tl_refuse(p, "gradients come to its search, but not to its replacement");
    for (int i = 0; i < m->search->n_out; i++) {
        if (m->search->out[i].node == TL_REF_NONE)
            continue;
        if (m->with->out[i].node == TL_REF_NONE)
            return tl_refuse(p, "the replacement sets no output %d", i);
        const tl_array *x = &tl_values_at(&p->t->values, m->out[i])->a, *y = &m->with->out_array[i];
        if (!tl_array_same_shape(x, y) || x->dtype != y->dtype)
            return tl_refuse(p, "output %d of the replacement is %s %s, not %s %s", i,
                             tl_dtype_name(y->dtype), tl_array_shape_text(a, y),
                             tl_dtype_name(x->dtype), tl_array_shape_text(b, x));
        for (int d = 0; d < x->ndim; d++)
            if (x->dim[d] > 1 && x->stride[d] != y->stride[d])
                return tl_refuse(
                    p, "output %d of the replacement has other strides in dim %d (%lld, not %lld)",
                    i, d, (long long)y->stride[d], (long long)x->stride[d]);
        if (!check_carries(p, m, i))
            return false;
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
            if (tl_node_writes(n, k) && tl_same_handle(tl_bottom(p->t, n->in[k]), base))
                return true;
    }
    return false;
}

bool tl_check_storage(tl_pass *p, const tl_match *m)
{
    const tl_node *who;
    for (int i = 0; i < m->search->n_out; i++) {
        if (m->search->out[i].node == TL_REF_NONE)
            continue;
        int was = shown(m->search, m->search->out[i]), is = shown(m->with, m->with->out[i]);
        if (was == is)
            continue;
        tl_tensor out = {p->t->values.owner, m->out[i], p->t->generation};
        if (changed(p, tl_bottom(p->t, out), &who) ||
            (is >= 0 && changed(p, tl_bottom(p->t, m->arg[is]), &who)))
            return tl_refuse(
                p, "output %d would lie in other memory, which %s at %s:%d changes in place", i,
                who->op->name, who->file, who->line);
    }
    return true;
}

bool tl_check_around(tl_pass *p, const tl_match *m)
{
    return check_arguments(p, m) && check_users(p, m) && check_mode(p, m);
}
