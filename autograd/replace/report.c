/* report.c: what was replaced, and what was not and why. */
#include <string.h>

#include "autograd/replace/internal.h"

/* Made: why is NULL. Missed in the last pass of its kind: why says why. */
typedef struct tl_report_line {
    const char *name, *why;
    int times, rounds;
    bool joint, gone;
    struct tl_report_line *next;
} line;

static line *find(tl_graph *g, const char *name, const char *why)
{
    line **l = &g->report;
    for (; *l != NULL; l = &(*l)->next)
        if (!(*l)->gone && strcmp((*l)->name, name) == 0 &&
            ((*l)->why == NULL ? why == NULL : why != NULL && strcmp((*l)->why, why) == 0))
            return *l;
    size_t n = why == NULL ? 0 : strlen(why) + 1;
    char *text = n == 0 ? NULL : tl_bump_get(&g->bump, n);
    *l = tl_bump_get(&g->bump, sizeof **l);
    if (*l == NULL || (n > 0 && text == NULL)) {
        tl_fail(&g->head.err, TL_ENOMEM, "no memory for a report");
        return NULL;
    }
    (*l)->name = name;
    (*l)->why = n == 0 ? NULL : memcpy(text, why, n);
    return *l;
}

void tl_report_begin(tl_graph *g, bool joint)
{
    for (line *l = g->report; l != NULL; l = l->next)
        l->gone |= l->why != NULL && l->joint == joint;
}

tl_status tl_report_made(tl_graph *g, const tl_match *m)
{
    line *l = find(g, m->rule->o.name, NULL);
    if (l != NULL) {
        l->times++;
        l->rounds += m->rounds;
    }
    return g->head.err.status;
}

tl_status tl_report_missed(tl_graph *g, const tl_rule *r, const char *why)
{
    line *l = find(g, r->o.name, why);
    if (l != NULL) {
        l->times++;
        l->joint = r->o.trace == TL_TRACE_JOINT;
    }
    return g->head.err.status;
}

int tl_graph_replaced(const tl_graph *g, const char *name)
{
    for (const line *l = g == NULL ? NULL : g->report; l != NULL; l = l->next)
        if (l->why == NULL && strcmp(l->name, name) == 0)
            return l->times;
    return 0;
}

void tl_graph_report(const tl_graph *g, FILE *f)
{
    bool any = false;
    if (f == NULL)
        return;
    for (const line *l = g == NULL ? NULL : g->report; l != NULL; l = l->next) {
        if (l->why != NULL)
            continue;
        any = true;
        fprintf(f, "%s: replaced %d time%s, %s\n", l->name, l->times, l->times > 1 ? "s" : "",
                l->rounds == 0          ? "exact"
                : l->rounds == l->times ? "ROUNDS"
                                        : "some ROUNDS");
    }
    if (!any)
        fprintf(f, "nothing was replaced\n");
    for (const line *l = g == NULL ? NULL : g->report; l != NULL; l = l->next)
        if (l->why != NULL && !l->gone)
            fprintf(f, "%s: not replaced%s: %s\n", l->name, l->times > 1 ? " (several times)" : "",
                    l->why);
}
