/* settle.c: which of the matches found are made.
 *
 * Each is good by itself; whether the graph still has an order with it, and every gradient its
 * terms, is asked for all at once, for it costs a walk over the graph. Where the answer is no, it
 * is asked for each half: with few that cannot be, time grows with the graph and not with its
 * square. */
#include <string.h>

#include "autograd/replace/internal.h"

enum { WAITING = INT32_MAX }; /* owner of a node of one that is found */

static tl_status no_memory(tl_pass *p)
{
    return tl_fail(&p->g->head.err, TL_ENOMEM, "no memory to replace in a graph");
}

tl_status tl_settle_later(tl_pass *p, const tl_match *m)
{
    tl_match *copy = p->found[p->n_found] = tl_bump_get(&p->bump, sizeof *copy);
    if (copy == NULL)
        return no_memory(p);
    *copy = *m;
    p->n_found++;
    for (int k = 0; k < m->search->n_nodes; k++)
        p->owner[m->node[k]] = WAITING;
    return TL_OK;
}

tl_status tl_settle_retry(tl_pass *p, uint32_t node, int from, int to)
{
    tl_retry *r = tl_bump_get(&p->bump, sizeof *r);
    if (r == NULL)
        return no_memory(p);
    *r = (tl_retry){node, from, to, p->retry};
    p->retry = r;
    return TL_OK;
}

static tl_status accept(tl_pass *p)
{
    for (int i = p->n_match; i < p->n_tried; i++)
        TL_TRY(tl_report_made(p->g, p->match[i]));
    return tl_splice_accept(p) ? TL_OK : no_memory(p);
}

static tl_status refuse(tl_pass *p, const tl_match *m)
{
    tl_splice_drop(p);
    if (p->why.status == TL_ENOMEM)
        return no_memory(p);
    p->refused = true;
    TL_TRY(tl_report_missed(p->g, m->rule, p->why.message));
    return tl_settle_retry(p, m->at, m->rule_at + 1,
                           p->n_rules); /* the next rules have a chance there */
}

static tl_status settle(tl_pass *p, tl_match **m, int n, bool compare)
{
    if (n == 0)
        return TL_OK;
    tl_err_clear(&p->why);
    tl_splice_try(p, m, n);
    bool ordered = tl_splice_order(p), same = ordered && (!compare || tl_splice_uses(p));
    if (same)
        return accept(p);
    if (n == 1 && ordered && p->g->opt.rounds && p->why.status != TL_ENOMEM) {
        m[0]->rounds = true;
        return accept(p);
    }
    if (n == 1)
        return refuse(p, m[0]);
    tl_splice_drop(p);
    TL_TRY(settle(p, m, n / 2, compare));
    return settle(p, m + n / 2, n - n / 2, compare);
}

tl_status tl_settle(tl_pass *p)
{
    tl_match **m = p->found, *keep;
    int rounding = 0;
    for (int i = 0; i < p->n_found; i++) {
        for (int k = 0; k < m[i]->search->n_nodes; k++)
            p->owner[m[i]->node[k]] = -1;
        if (m[i]->rounds) { /* nothing to compare: they come first */
            keep = m[i];
            memmove(m + rounding + 1, m + rounding, (size_t)(i - rounding) * sizeof *m);
            m[rounding++] = keep;
        }
    }
    tl_status s = settle(p, m, rounding, false);
    if (s == TL_OK)
        s = settle(p, m + rounding, p->n_found - rounding, true);
    p->n_found = 0;
    return s;
}
