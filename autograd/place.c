/* place.c: the places of calls - which one a message names, and at which a recording uses a
 * parameter. */
#include <string.h>

#include "autograd/internal.h"

static int push(tl_at at, bool shared)
{
    tl_tape *t = at.tape;
    if (t == NULL)
        return 0;
    if (t->place_depth < TL_PLACES)
        t->places[t->place_depth] = (tl_place_frame){at, shared};
    return t->place_depth++;
}

int tl_place_push(tl_at at) { return push(at, false); }

int tl_share_push(tl_at at, bool shared) { return push(at, shared); }

void tl_place_pop(tl_tape *t, int depth)
{
    if (t != NULL && depth >= 0 && depth < t->place_depth)
        t->place_depth = depth;
}

tl_at tl_place(tl_at at)
{
    const tl_tape *t = at.tape;
    bool open = t != NULL && t->place_depth > t->place_base && t->place_base < TL_PLACES;
    return open ? t->places[t->place_base].at : at;
}

static bool same(tl_at a, tl_at b)
{
    return a.line == b.line &&
           (a.file == b.file || (a.file != NULL && b.file != NULL && strcmp(a.file, b.file) == 0));
}

/* The record of the parameter with that index; NULL: no memory. */
static tl_site *site_of(tl_tape *t, uint32_t index)
{
    if (index >= t->n_sites) {
        uint32_t n = 2 * index + 64;
        tl_site *grown = tl_realloc(t->site, n * sizeof *grown);
        if (grown == NULL)
            return NULL;
        memset(grown + t->n_sites, 0, (n - t->n_sites) * sizeof *grown);
        t->site = grown;
        t->n_sites = n;
    }
    return &t->site[index];
}

/* A layer is the calls that are open around the lookup, by their places. What is looked up outside
 * of any, or where no gradient is recorded, is no layer of the recording's. */
tl_status tl_site_check(tl_at at, const char *name, uint32_t index)
{
    tl_tape *t = at.tape;
    int n = (t->place_depth < TL_PLACES ? t->place_depth : TL_PLACES) - t->place_base, k = 0;
    bool shared = false;
    if (n <= 0 || t->mode & TL_NO_GRAD)
        return TL_OK;
    const tl_place_frame *open = t->places + t->place_base;
    for (int i = 0; i < n; i++)
        shared |= open[i].shared;
    tl_site *s = site_of(t, index);
    if (s != NULL && s->generation != t->generation) {
        tl_place_frame *copy = tl_bump_get(&t->bump, (size_t)n * sizeof *copy);
        if (copy != NULL) {
            memcpy(copy, open, (size_t)n * sizeof *copy);
            *s = (tl_site){t->generation, n, shared, copy};
            return TL_OK;
        }
        s = NULL;
    }
    if (s == NULL)
        return tl_tape_fail(at, TL_ENOMEM, "no memory for the place of '%.100s'", name);
    s->shared |= shared;
    while (k < n && k < s->n && same(open[k].at, s->open[k].at))
        k++;
    if (s->shared || (k == n && k == s->n))
        return TL_OK;
    const tl_at a = s->open[k < s->n ? k : s->n - 1].at, b = open[k < n ? k : n - 1].at;
    return tl_tape_fail(at, TL_ENAME,
                        "'%.100s' is of a layer called at %.90s:%d and, in the same recording, of "
                        "one at %.90s:%d; name one otherwise, or share it by .shared = true",
                        name, a.file, a.line, b.file, b.line);
}
