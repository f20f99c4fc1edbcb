/* touches.c: an index of steps by the memory they touch, so that no question walks all steps. */
#include "autograd/graph/touches.h"

#include <string.h>

bool tl_touches_add(tl_touches *t, uint32_t at, const tl_spot *p)
{
    tl_touch *new = tl_bump_get(&t->g->bump, sizeof *new);
    if (new == NULL)
        return false;
    *new = (tl_touch){t->place[at], p->written, t->of[p->root]};
    t->of[p->root] = new;
    t->written[p->root] |= p->written;
    return true;
}

static bool add_step(tl_touches *t, uint32_t at, const tl_plan_step *s)
{
    t->place[at] = tl_bump_get(&t->g->bump, sizeof **t->place);
    if (t->place[at] == NULL)
        return false;
    *t->place[at] = at;
    for (int k = 0; k < s->n_in + s->n_out; k++)
        if (!tl_touches_add(t, at, &s->array[k]))
            return false;
    return true;
}

bool tl_touches_begin(tl_touches *t, tl_graph *g)
{
    size_t roots = (size_t)g->cap_roots + 1;
    *t = (tl_touches){.g = g,
                      .of = tl_bump_get(&g->bump, roots * sizeof *t->of),
                      .written = tl_bump_get(&g->bump, roots),
                      .moved = tl_bump_get(&g->bump, roots * sizeof *t->moved),
                      .place = tl_bump_get(
                          &g->bump, (2 * (size_t)g->n_order + 1) *
                                        sizeof *t->place)}; /* as many as there are steps at most */
    if (t->of == NULL || t->written == NULL || t->moved == NULL || t->place == NULL)
        return false;
    for (uint32_t i = 0; i < g->n_steps; i++)
        if (!add_step(t, i, &g->step[i]))
            return false;
    return true;
}

bool tl_touches_insert(tl_touches *t, uint32_t at, const tl_plan_step *s)
{
    tl_graph *g = t->g;
    memmove(g->step + at + 1, g->step + at, (g->n_steps - at) * sizeof *g->step);
    memmove(t->place + at + 1, t->place + at, (g->n_steps - at) * sizeof *t->place);
    g->step[at] = *s;
    g->n_steps++;
    for (uint32_t i = at + 1; i < g->n_steps; i++)
        *t->place[i] = i;
    return add_step(t, at, s);
}

void tl_touches_sink(tl_touches *t, uint32_t from, uint32_t to)
{
    tl_plan_step moved = t->g->step[from];
    uint32_t *place = t->place[from];
    for (uint32_t i = from; i < to; i++) {
        t->g->step[i] = t->g->step[i + 1];
        t->place[i] = t->place[i + 1];
        *t->place[i] = i;
    }
    t->g->step[to] = moved;
    t->place[to] = place;
    *place = to;
}

void tl_touches_move(tl_touches *t, uint32_t since, uint32_t r, uint32_t to)
{
    for (tl_touch **at = &t->of[r]; *at != NULL;) {
        tl_touch *u = *at;
        tl_plan_step *s = &t->g->step[*u->step];
        if (*u->step <= since) {
            at = &u->next;
            continue;
        }
        for (int k = 0; k < s->n_in; k++)
            if (s->array[k].root == r)
                s->array[k].root = to;
        *at = u->next;
        u->next = t->of[to];
        t->of[to] = u;
    }
    t->moved[r].to = to;
    t->moved[r].since = t->place[since];
}

uint32_t tl_touches_root(const tl_touches *t, uint32_t r, uint32_t at)
{
    while (t->moved[r].since != NULL && *t->moved[r].since < at)
        r = t->moved[r].to;
    return r;
}

bool tl_touches_written(const tl_touches *t, uint32_t r, uint32_t from, uint32_t to)
{
    for (const tl_touch *u = t->written[r] ? t->of[r] : NULL; u != NULL; u = u->next)
        if (u->written && *u->step > from && *u->step < to)
            return true;
    return false;
}

bool tl_touches_used(const tl_touches *t, uint32_t r, uint32_t from)
{
    for (const tl_touch *u = t->of[r]; u != NULL; u = u->next)
        if (*u->step >= from)
            return true;
    return false;
}

/* The steps after `from` that touch r, in order, into t->sorted; -1: no memory. */
static int64_t sort(tl_touches *t, uint32_t r, uint32_t from)
{
    uint32_t n = 0, all = 0;
    for (const tl_touch *u = t->of[r]; u != NULL; u = u->next)
        all += *u->step > from;
    if (all > t->cap) {
        t->cap = 2 * all;
        t->sorted = tl_bump_get(&t->g->bump, t->cap * sizeof *t->sorted);
        if (t->sorted == NULL)
            return -1;
    }
    for (const tl_touch *u = t->of[r]; u != NULL;
         u = u->next) { /* newest first: mostly in reverse */
        uint32_t at = all - n;
        if (*u->step <= from)
            continue;
        for (n++; at < all && t->sorted[at] < *u->step; at++)
            t->sorted[at - 1] = t->sorted[at];
        t->sorted[at - 1] = *u->step;
    }
    return all;
}

bool tl_touches_rest(tl_touches *t, uint32_t r, uint32_t from, uint32_t *before, uint32_t *after)
{
    int64_t n = sort(t, r, from);
    uint32_t last = *before = *after = from;
    for (int64_t i = 0; i < n; i++) {
        if (t->sorted[i] - last > *after - *before) {
            *before = last;
            *after = t->sorted[i];
        }
        last = t->sorted[i];
    }
    return n >= 0;
}
