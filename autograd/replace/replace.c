/* replace.c: a graph rewritten, in passes, until nothing matches any more; and the report of it.
 *
 * A pass looks at every node from the last to the first for what may be replaced. Replacements are
 * recorded behind the program, the values that they give stand for those that they replace, and the
 * graph is rebuilt with all of them and compared (compare.c). If it is the same it takes the place
 * of the old one. Else those to blame for a difference are barred from their place, and the next
 * pass goes without them; where nobody can be blamed it tries half as many. So time grows with the
 * graph and not with its square. A rule is also barred from what it has made itself, however often
 * that was rewritten since: so passes end. */
#include <limits.h>
#include <string.h>

#include "autograd/batch.h"
#include "autograd/replace/internal.h"

static tl_status no_memory(tl_graph *g)
{
    return tl_fail(&g->head.err, TL_ENOMEM, "no memory to replace in a graph of %u nodes",
                   g->t->n_nodes);
}

static tl_remark *remark(tl_graph *g, tl_remark **list, const tl_rule *r, const tl_form *f,
                         const char *why)
{
    tl_remark *b = tl_bump_get(&g->bump, sizeof *b + strlen(why) + 1);
    if (b == NULL)
        return no_memory(g), NULL;
    *b = (tl_remark){.rule = r, .form = f, .next = *list};
    strcpy(b->why, why);
    return *list = b;
}

/* ---- the report ---- */

/* One more for that name and reason. */
static void count_in(tl_graph *g, const tl_rule *r, const char *why, bool rounds)
{
    tl_remark **l = &g->report;
    while (*l != NULL && ((*l)->rule != r || strcmp((*l)->why, why) != 0))
        l = &(*l)->next;
    if (*l == NULL && remark(g, l, r, NULL, why) == NULL)
        return;
    (*l)->times++;
    (*l)->rounds += rounds;
}

/* A new pass: what was missed in the last one may be found now. */
static void report_begin(tl_graph *g, bool joint)
{
    for (tl_remark **l = &g->report; *l != NULL;)
        if ((*l)->why[0] != 0 && ((*l)->rule->o.trace == TL_TRACE_JOINT) == joint)
            *l = (*l)->next;
        else
            l = &(*l)->next;
}

int tl_graph_replaced(const tl_graph *g, const char *name)
{
    for (const tl_remark *l = tl_lives(g) ? g->report : NULL; l != NULL; l = l->next)
        if (l->why[0] == 0 && strcmp(l->rule->o.name, name) == 0)
            return l->times;
    return 0;
}

void tl_graph_report(const tl_graph *g, FILE *f)
{
    const tl_remark *all = tl_lives(g) && f != NULL ? g->report : NULL;
    bool any = false;
    for (const tl_remark *l = all; l != NULL; l = l->next) {
        if (l->why[0] != 0)
            continue;
        any = true;
        fprintf(f, "%s: replaced %d time%s, %s\n", l->rule->o.name, l->times,
                l->times > 1 ? "s" : "",
                l->rounds == 0          ? "exact"
                : l->rounds == l->times ? "ROUNDS"
                                        : "some ROUNDS");
    }
    if (f != NULL && !any)
        fprintf(f, "nothing was replaced\n");
    for (const tl_remark *l = all; l != NULL; l = l->next)
        if (l->why[0] != 0)
            fprintf(f, "%s: not replaced%s: %s\n", l->rule->o.name,
                    l->times > 1 ? " (several times)" : "", l->why);
}

/* ---- bars ---- */

void tl_match_bar(tl_pass *p, tl_match *m)
{
    m->blamed = true;
    p->n_barred++;
    remark(p->g, &p->bars[m->root], m->form->rule, m->form, p->why.message);
    tl_err_clear(&p->why);
}

/* For what m has put: the rule itself, and those that made what it replaces. */
static tl_remark *bars_behind(tl_pass *p, const tl_match *m)
{
    static const char ever[] = "was made by this replacement: it would go on for ever";
    tl_remark *all = NULL;
    remark(p->g, &all, m->form->rule, NULL, ever);
    for (int k = 0; k < m->search->n_nodes; k++)
        for (const tl_remark *b = p->bars[m->b.node[k]]; b != NULL; b = b->next) {
            const tl_remark *known = all;
            while (known != NULL && known->rule != b->rule)
                known = known->next;
            if (b->form == NULL && known == NULL)
                remark(p->g, &all, b->rule, NULL, ever);
        }
    return all;
}

/* ---- a pass ---- */

/* What a form finds at that node waits for the others. */
static tl_status try_forms(tl_pass *p, uint32_t node)
{
    for (int i = 0; i < p->n_forms && p->owner[node] == NULL; i++) {
        const tl_form *f = p->form[i];
        tl_match m, *copy;
        if (f->pattern->node[f->pattern->out[0].node].op != p->t->node[node].op)
            continue;
        if (!tl_candidate(p, f, node, &m)) {
            if (p->why.status == TL_ENOMEM)
                return no_memory(p->g);
            if (p->why.status != TL_OK)
                count_in(p->g, f->rule, p->why.message, false);
            continue;
        }
        if ((copy = tl_bump_get(&p->bump, sizeof *copy)) == NULL)
            return no_memory(p->g);
        *copy = m;
        p->found[p->n_found++] = copy;
        for (int k = 0; k < m.search->n_nodes; k++)
            p->owner[m.b.node[k]] = copy;
    }
    return p->g->head.err.status;
}

/* The graph with all that stands in for something now; false, with p->why, where it has no order,
 * or is not the same in memory and gradients. */
static bool rebuild(tl_pass *p)
{
    const size_t n = p->t->n_nodes + (size_t)1;
    bool *cyclic = tl_bump_get(&p->bump, n);
    p->from = tl_bump_get(&p->bump, n * sizeof *p->from);
    const tl_splice splice = {p->n_nodes, p->n_values, p->gone, p->stand_in, p->from, cyclic};
    if (p->from == NULL || cyclic == NULL)
        return tl_fail(&p->why, TL_ENOMEM, "no memory for %zu bytes to rebuild a graph",
                       n * (sizeof *p->from + sizeof *cyclic)),
               false;
    p->now = tl_graph_again(p->g, !p->joint, &splice, &p->map, &p->why);
    const tl_err why = p->why;
    for (uint32_t i = p->n_nodes; i < p->t->n_nodes; i++)
        if (cyclic[i] && !p->owner[i]->blamed) {
            p->why = why;
            tl_match_bar(p, p->owner[i]);
        }
    return p->now != NULL && tl_same_graph(p) && p->n_barred == 0;
}

/* The rebuilt graph in the place of the old. */
static tl_status take(tl_pass *p)
{
    tl_graph *g = p->g;
    tl_tape *dst = p->now;
    tl_remark **bars = tl_bump_get(&g->bump, (dst->n_nodes + 1) * sizeof *bars), *behind = NULL;
    const tl_match *last = NULL;
    if (bars == NULL)
        return tl_graph_leave(dst), no_memory(g);
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
            if (dst->grad[i].born != 0) /* by the numbers that nodes have now */
                tl_derived_left(dst, &dst->grad[i], p->t, &dst->grad[i]);
        }
    }
    for (int i = 0; i < p->n_found; i++)
        count_in(g, p->found[i]->form->rule, "", p->found[i]->rounds);
    tl_graph_take(g, dst, p->map);
    return g->head.err.status;
}

/* All that is found is made, or nothing. *most: as much is looked for, and then in the next pass;
 * 0: there is none. */
static tl_status sweep(tl_pass *p, int *most)
{
    const size_t n = p->t->n_nodes + (size_t)1;
    if (p->bars == NULL)
        p->bars = tl_bump_get(&p->g->bump, n * sizeof *p->bars);
    p->found = tl_bump_get(&p->bump, n * sizeof *p->found);
    if (p->bars == NULL || p->found == NULL || tl_pass_index(p) != TL_OK)
        return no_memory(p->g);
    for (uint32_t i = p->n_nodes; i-- > 0 && p->n_found < *most;)
        TL_TRY(try_forms(p, i));
    *most = p->n_found == 0 ? 0 : INT_MAX;
    if (p->n_found == 0 || tl_compare_prepare(p) != TL_OK)
        return p->n_found == 0 ? TL_OK : no_memory(p->g);
    tl_err_clear(&p->why);
    if (rebuild(p) && p->g->head.err.status == TL_OK)
        return take(p);
    tl_graph_leave(p->now);
    if (p->why.status == TL_ENOMEM)
        return no_memory(p->g);
    if (p->n_barred == 0 && p->n_found == 1)
        tl_match_bar(p, p->found[0]);
    else if (p->n_barred == 0)
        *most = p->n_found / 2;
    p->t->n_nodes = p->n_nodes;
    atomic_store(&p->t->values.count, p->n_values);
    return p->g->head.err.status;
}

tl_status tl_graph_replace(tl_graph *g, bool joint)
{
    tl_pass p = {.g = NULL};
    int most = INT_MAX, n = 0;
    const tl_form **form;
    if (!g->opt.no_replace)
        TL_TRY(tl_forms_on(g, joint, &form, &n));
    if (n == 0)
        return TL_OK;
    tl_tape *scratch = tl_rule_tape();
    if (scratch == NULL)
        return no_memory(g);
    /* in canonical order: what matches first must not depend on the order of recording */
    tl_status status = joint ? TL_OK : tl_graph_rebuild(g, true);
    while (status == TL_OK && most > 0) {
        p = (tl_pass){.g = g, .t = g->t, .joint = joint, .scratch = scratch, .bars = p.bars};
        p.form = form;
        p.n_forms = n;
        report_begin(g, joint);
        status = sweep(&p, &most);
        tl_bump_free(&p.bump);
    }
    tl_rule_tape_end(scratch);
    return status;
}
