/* replace.c: rewrites a graph in passes until nothing matches any more, and reports what was done.
 *
 * A pass tries the rules at every node, from the last to the first. The replacements that it finds
 * are recorded behind the program, and the graph is rebuilt with all of them at once and compared
 * with the old one (compare.c). If nothing has changed it takes the old one's place. Otherwise the
 * matches to blame are barred from their places and the next pass goes without them; if no match
 * can be blamed, it tries half as many. So time grows with the graph, not with its square. A rule
 * is also barred from what it has made, however often that has been rewritten: so passes end. */
#include <limits.h>
#include <string.h>

#include "autograd/replace/internal.h"

/* Counts one more in that list, in the line of that reason and of r's replacement. */
static void count_in(tl_graph *g, tl_remark **list, const tl_rule *r, const char *why, bool rounds)
{
    tl_remark *l = *list;
    r -= r->form;
    for (; l != NULL && (l->rule != r || strcmp(l->why, why) != 0); l = l->next)
        list = &l->next;
    if (l == NULL && (l = tl_remark_add(g, list, r, why)) == NULL)
        return;
    l->times++;
    l->rounds += rounds;
}

/* ---- the report ---- */

int tl_graph_replaced(const tl_graph *g, const char *name)
{
    for (const tl_remark *l = tl_lives(g) && name != NULL ? g->made : NULL; l != NULL; l = l->next)
        if (strcmp(l->rule->o.name, name) == 0)
            return l->times;
    return 0;
}

void tl_graph_report(const tl_graph *g, FILE *f)
{
    const bool lives = tl_lives(g);
    if (f == NULL)
        return;
    if (!lives || g->made == NULL)
        fprintf(f, "nothing was replaced\n");
    for (const tl_remark *l = lives ? g->made : NULL; l != NULL; l = l->next) {
        const char *how = l->rounds == 0         ? "exact"
                          : l->rounds < l->times ? "some ROUNDS"
                                                 : "ROUNDS";
        fprintf(f, "%s: replaced %d time%s, %s\n", l->rule->o.name, l->times,
                l->times > 1 ? "s" : "", how);
    }
    for (int joint = 0; joint < 2; joint++)
        for (const tl_remark *l = lives ? g->missed[joint] : NULL; l != NULL; l = l->next)
            fprintf(f, "%s: not replaced: %s (%d time%s)\n", l->rule->o.name, l->why, l->times,
                    l->times > 1 ? "s" : "");
}

/* The bars of the nodes that m has put: its own rule, and those that made the nodes it replaces. */
static tl_remark *bars_behind(tl_pass *p, const tl_match *m)
{
    static const char ever[] = "was made by this replacement: it would go on for ever";
    tl_remark *all = NULL;
    count_in(p->g, &all, m->rule, ever, false);
    for (int k = 0; k < m->search->n_nodes; k++)
        for (const tl_remark *b = p->bars[m->b.node[k]]; b != NULL; b = b->next)
            if (b->times > 0)
                count_in(p->g, &all, b->rule, ever, false);
    return all;
}

/* ---- a pass ---- */

/* Notes the first rule that matches at the node. All matches of a pass are made together. */
static void try_rules(tl_pass *p, uint32_t node)
{
    for (int i = 0; i < p->n_rules && !p->owner[node] && p->why.status != TL_ENOMEM; i++) {
        const tl_rule *r = p->rule[i];
        if (r->pattern->node[r->pattern->out[0].node].op != p->t->node[node].op)
            continue;
        tl_err_clear(&p->why);
        tl_match m = {r, p, r->pattern, .root = node};
        tl_match *copy = tl_match_at(&m, NULL) ? tl_pass_room(p, 1, sizeof *copy) : NULL;
        if (p->why.status != TL_OK)
            count_in(p->g, &p->g->missed[p->joint], r, p->why.message, false);
        if (copy == NULL)
            continue;
        *copy = m;
        p->found[p->n_found++] = copy;
        for (int k = 0; k < m.search->n_nodes; k++)
            p->owner[m.b.node[k]] = copy;
        for (int k = 0; k < m.search->n_out; k++)
            if (!tl_is_none(m.out[k]))
                p->stand_in[m.out[k].index] = m.put[k];
    }
}

/* Rebuilds the graph with all matches found; false, with p->why, if it has no order or changed. */
static bool rebuild(tl_pass *p)
{
    const size_t n = p->t->n_nodes;
    bool *cyclic = tl_pass_room(p, n, 1), *gone = tl_pass_room(p, p->n_nodes, 1);
    tl_match **owner = tl_pass_room(p, n, sizeof *owner);
    p->from = tl_pass_room(p, n, sizeof *p->from);
    if (p->why.status != TL_OK)
        return false;
    for (uint32_t i = 0; i < p->n_nodes; i++)
        gone[i] = p->owner[i] != NULL;
    p->owner = memcpy(owner, p->owner, p->n_nodes * sizeof *owner);
    for (int k = 0; k < p->n_found; k++)
        for (uint32_t i = p->found[k]->first; i < p->found[k]->end; i++)
            owner[i] = p->found[k];
    const tl_splice splice = {p->n_nodes, p->n_values, gone, p->stand_in, p->from, cyclic};
    p->now = tl_graph_again(p->g, !p->joint, &splice, &p->map, &p->why);
    const tl_err why = p->why;
    for (uint32_t i = p->n_nodes; i < n; i++)
        if (cyclic[i] && !owner[i]->blamed) {
            p->why = why;
            tl_match_bar(p, owner[i]);
        }
    if (p->now == NULL)
        return false;
    p->was = tl_pass_room(p, atomic_load(&p->now->values.count), sizeof *p->was);
    for (uint32_t v = atomic_load(&p->t->values.count); p->was != NULL && v-- > 0;)
        if (p->map[v].owner == p->now->values.owner) /* the first, if it stands for others */
            p->was[p->map[v].index] = p->n_others + v;
    return p->was != NULL && tl_same_graph(p) && p->n_barred == 0;
}

/* Puts the rebuilt graph in the place of the old one. */
static bool take(tl_pass *p)
{
    tl_graph *g = p->g;
    tl_tape *dst = p->now;
    tl_remark **bars = tl_graph_room(g, dst->n_nodes, sizeof *bars), *behind = NULL;
    const tl_match *last = NULL;
    if (bars == NULL)
        return false;
    for (uint32_t i = 0; i < dst->n_nodes; i++) {
        const tl_match *m = p->owner[p->from[i]];
        if (p->from[i] >= p->n_nodes && m != last)
            behind = bars_behind(p, last = m);
        bars[i] = p->from[i] < p->n_nodes ? p->bars[p->from[i]] : behind;
    }
    p->bars = bars;
    if (p->joint) { /* the same accumulators */
        tl_trace_take_gradients(dst, p->t);
        for (int i = 0; i < dst->n_grads; i++) {
            dst->grad[i].leaf = tl_rebuild_map(dst, p->t, p->map, dst->grad[i].leaf);
            if (dst->grad[i].born > 1) /* by the numbers that nodes have now */
                tl_derived_left(dst, &dst->grad[i], p->t, &dst->grad[i]);
        }
        tl_leaf_grads_key(dst);
    }
    for (int i = 0; i < p->n_found; i++)
        count_in(g, &g->made, p->found[i]->rule, "", p->found[i]->rounds);
    tl_graph_take(g, dst, p->map);
    return true;
}

/* One pass: makes all matches that it finds, or none. most: how many it may look for. Returns that
 * number for the next pass; 0: nothing is left to find. */
static int sweep(tl_pass *p, int most)
{
    p->found = tl_pass_room(p, p->t->n_nodes, sizeof *p->found);
    if (!tl_pass_index(p))
        return 0;
    for (uint32_t i = p->n_nodes; i-- > 0 && p->n_found < most && p->why.status != TL_ENOMEM;)
        try_rules(p, i);
    if (p->n_found == 0 || p->why.status == TL_ENOMEM)
        return 0;
    tl_err_clear(&p->why);
    if (rebuild(p) && take(p))
        return INT_MAX;
    tl_graph_leave(p->now);
    p->t->n_nodes = p->n_nodes;
    atomic_store(&p->t->values.count, p->n_values);
    if (p->n_barred == 0 && p->n_found == 1 && p->why.status != TL_ENOMEM)
        tl_match_bar(p, p->found[0]);
    return p->n_barred == 0 ? p->n_found / 2 : INT_MAX;
}

tl_status tl_graph_replaces(tl_graph *g, bool joint)
{
    int most = INT_MAX, n = 0;
    const tl_rule **rule = NULL;
    if (!g->opt.no_replace)
        TL_TRY(tl_rules_on(g, joint, &rule, &n));
    if (n == 0)
        return TL_OK;
    tl_tape *scratch = tl_rule_tape(&g->head.err);
    if (scratch != NULL && !joint) /* what matches must not depend on the order of recording */
        tl_graph_rebuild(g, true);
    tl_pass p = {.bars = tl_graph_room(g, g->t->n_nodes, sizeof *p.bars)};
    while (g->head.err.status == TL_OK && most > 0) {
        p = (tl_pass){g, g->t, scratch, rule, n, joint, .bars = p.bars};
        g->missed[joint] = NULL; /* the pass finds them again */
        most = sweep(&p, most);
        if (p.why.status == TL_ENOMEM)
            tl_fail(&g->head.err, TL_ENOMEM, "no memory to replace in a graph of %u nodes",
                    g->t->n_nodes);
        tl_bump_free(&p.bump);
    }
    tl_rule_tape_end(scratch);
    return g->head.err.status;
}
