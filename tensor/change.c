/* change.c: which regions of a storage have changed, and whether regions meet. */
#include "tensor/change.h"

#include <stdio.h>

/* What one dim adds to the distance of two elements: stride * t with lo <= t <= hi. */
typedef struct {
    int64_t stride, lo, hi;
} reach;

enum { STEPS = 4096 };

/* Inserts a term, by falling stride; dims of equal stride become one term. */
static int add_reach(reach *r, int n, int64_t stride, int64_t extent)
{
    reach x = {stride < 0 ? -stride : stride, stride < 0 ? -extent : 0, stride < 0 ? 0 : extent};
    int at = 0;
    if (stride == 0 || extent == 0)
        return n;
    while (at < n && r[at].stride > x.stride)
        at++;
    if (at < n && r[at].stride == x.stride) {
        r[at].lo += x.lo;
        r[at].hi += x.hi;
        return n;
    }
    for (int i = n; i > at; i--)
        r[i] = r[i - 1];
    r[at] = x;
    return n + 1;
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* Whether the terms can add up to a value from low to high. */
static bool reaches(const reach *r, int n, int64_t low, int64_t high, int *steps)
{
    int64_t least = 0, most = 0;
    if (n == 0)
        return low <= 0 && high >= 0;
    for (int i = 1; i < n; i++) {
        least += r[i].stride * r[i].lo;
        most += r[i].stride * r[i].hi;
    }
    int64_t first = -floor_div(most - low, r->stride), last = floor_div(high - least, r->stride);
    first = first < r->lo ? r->lo : first;
    last = last > r->hi ? r->hi : last;
    for (int64_t t = first; t <= last; t++) {
        if (--*steps < 0)
            return true;
        if (reaches(r + 1, n - 1, low - r->stride * t, high - r->stride * t, steps))
            return true;
    }
    return false;
}

bool tl_arrays_overlap(const tl_array *a, const tl_array *b)
{
    return tl_arrays_overlap_apart(a, b, (int64_t)((intptr_t)b->data - (intptr_t)a->data));
}

bool tl_arrays_overlap_apart(const tl_array *a, const tl_array *b, int64_t apart)
{
    reach r[2 * TL_MAX_DIMS];
    int n = 0, steps = STEPS;
    int64_t ea = (int64_t)tl_dtype_size(a->dtype), eb = (int64_t)tl_dtype_size(b->dtype);
    if (tl_array_count(a) == 0 || tl_array_count(b) == 0)
        return false;
    for (int i = 0; i < a->ndim; i++)
        n = add_reach(r, n, a->stride[i] * ea, a->dim[i] - 1);
    for (int i = 0; i < b->ndim; i++)
        n = add_reach(r, n, -b->stride[i] * eb, b->dim[i] - 1);
    return reaches(r, n, apart - ea + 1, apart + eb - 1, &steps);
}

static _Atomic uint64_t changes;

uint64_t tl_changes(void) { return atomic_load(&changes); }

void tl_storage_note(tl_storage *s, tl_change *c)
{
    s->changed = ++changes;
    c->version = ++s->version;
    c->next = s->changes;
    s->changes = c;
}

void tl_storage_note_whole(tl_storage *s, const char *what, const char *file, int line)
{
    s->changed = ++changes;
    s->version++;
    s->whole = (tl_changer){what, file, line};
}

bool tl_storage_changed(const tl_storage *s, uint32_t since, const tl_array *a, tl_changer *by)
{
    uint32_t known = 0;
    const tl_change *c = s->changes;
    for (; s->version != since && c != NULL && c->version > since; c = c->next, known++)
        if (tl_arrays_overlap(&c->where, a)) {
            *by = c->by;
            return true;
        }
    *by = s->whole;
    return known != s->version - since;
}

const char *tl_changer_text(char buf[TL_CHANGER_TEXT], tl_changer by)
{
    snprintf(buf, TL_CHANGER_TEXT, by.file == NULL ? "%.60s" : "%.60s (%.90s:%d)",
             by.what == NULL ? "a write to all of it" : by.what, by.file, by.line);
    return buf;
}

void tl_changes_free(tl_change *c)
{
    while (c != NULL) {
        tl_change *next = c->next;
        tl_free_raw(c);
        c = next;
    }
}
