/* scope.c: what is in force for the calls made on a tape: modes, selections of kernels, places; and
 * who watches the tape or redirects it. Layers of one name are told apart by their places. */
#include <string.h>

#include "autograd/internal.h"

/* ---- modes ---- */

/* What is in force for calls made later cannot change while one is under way. */
static bool apart(tl_tape *t, const char *who)
{
    if (t->inside != NULL)
        tl_tape_fail(tl_nowhere(t), TL_EUSAGE, "%s: called inside %s", who, t->inside);
    return t->inside == NULL;
}

int tl_mode_push(tl_tape *t, unsigned mode)
{
    const int depth = tl_mode_open(t, mode);
    const bool opened = tl_lives(t) && t->now.mode_depth > depth;
    if (!opened || mode != TL_INVARIANT || t->now.choice == NULL)
        return depth;
    if (!tl_choice_open(tl_nowhere(t), NULL, TL_ANY_DTYPE, "invariant"))
        tl_mode_pop(t, depth);
    else
        t->now.mode &= ~(unsigned)TL_FAST;
    return depth;
}

int tl_mode_open(tl_tape *t, unsigned mode)
{
    if (!tl_lives(t))
        return 0;
    int depth = t->now.mode_depth;
    if (!apart(t, "tl_mode_push"))
        return depth;
    if (depth == TL_MODE_DEPTH) {
        tl_fail(&t->head.err, TL_EUSAGE,
                "tl_mode_push: %d scopes are open: is a tl_mode_pop missing?", depth);
        return depth;
    }
    if (mode & 0xff80u) /* neither a mode nor an observer's bit */
        return tl_tape_fail(tl_nowhere(t), TL_EDOMAIN, "tl_mode_push: no mode %#x", mode), depth;
    t->mode_stack[depth].mode = t->now.mode;
    t->mode_stack[depth].choice = t->now.choice;
    if (mode & TL_FAST && !tl_choice_open(tl_nowhere(t), NULL, TL_ANY_DTYPE, "fast"))
        return depth;
    t->now.mode_depth++;
    t->now.mode |= mode;
    return depth;
}

void tl_mode_pop(tl_tape *t, int depth)
{
    if (!tl_lives(t) || depth < 0 || depth >= t->now.mode_depth)
        return;
    t->now.mode = t->mode_stack[depth].mode;
    t->now.choice = t->mode_stack[depth].choice;
    t->now.mode_depth = depth;
}

unsigned tl_mode(const tl_tape *t) { return tl_lives(t) ? t->now.mode : 0; }

/* ---- who redirects a tape, and who watches it ---- */

bool tl_traced(const tl_tape *t) { return tl_lives(t) && t->recorder != NULL; }

void tl_record_with(tl_tape *t, const tl_recorder *r, void *ctx)
{
    void (*callback)(void);
    if (!tl_lives(t))
        return;
    if (r == NULL) {
        tl_tape_fail(tl_nowhere(t), TL_EUSAGE, "tl_record_with: r is NULL");
        return;
    }
    for (size_t i = 0; i < sizeof *r; i += sizeof callback) { /* a recorder is callbacks alone */
        memcpy(&callback, (const char *)r + i, sizeof callback);
        if (callback == NULL) {
            tl_tape_fail(tl_nowhere(t), TL_EUSAGE, "tl_record_with: callback %zu of %zu is NULL",
                         i / sizeof callback, sizeof *r / sizeof callback);
            return;
        }
    }
    t->recorder = r;
    t->recorder_ctx = ctx;
    t->now.mode |= TL_TRACE;
}

tl_status tl_host(tl_tape *t, tl_host_when when, tl_host_fn *f, void *ctx)
{
    TL_TRY(tl_error_status(t));
    TL_TRY(TL_NEED_AT(tl_nowhere(t), f));
    if (when != TL_BEFORE && when != TL_AFTER && when != TL_AFTER_ALL)
        return tl_tape_fail(tl_nowhere(t), TL_EDOMAIN,
                            "tl_host: %d is neither TL_BEFORE nor TL_AFTER nor TL_AFTER_ALL",
                            (int)when);
    if (!apart(t, "tl_host"))
        return TL_EUSAGE;
    if (t->recorder != NULL)
        return t->recorder->host(t->recorder_ctx, TL_AT(t), when, f, ctx);
    f(t, ctx);
    return tl_error_status(t);
}

/* Notes which events anyone hears, so that calls nobody watches cost nothing. */
static void note_watched(tl_tape *t)
{
    t->records_watched = t->run_watched = t->given_watched = t->values_watched = false;
    t->heard_modes = 0;
    for (const tl_observer *const *o = tl_observers_shipped; *o != NULL; o++)
        t->heard_modes |= (*o)->mode;
    for (int i = 0; i < t->n_watchers; i++) {
        const tl_observer *o = t->watcher[i].o;
        t->records_watched |= o->records != NULL;
        t->run_watched |= o->runs != NULL || o->ran != NULL;
        t->given_watched |= o->gave != NULL || o->delivered != NULL;
        t->values_watched |= o->backward_begins != NULL;
    }
}

tl_tape *tl_tape_bare(tl_model *m, void (*destroy)(void *))
{
    tl_tape *t = tl_calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    tl_object_begin(&t->head, TL_KIND_TAPE, destroy);
    t->model = m;
    t->thaws = m == NULL ? 0 : m->thaws;
    tl_object_hold(m);
    t->generation = 1;
    t->limit = 3;
    note_watched(t);
    if (tl_values_init(&t->values) != TL_OK) {
        tl_object_end(t);
        return NULL;
    }
    return t;
}

/* Stands in the place of one that has left while callbacks were under way, so that each of the
 * others is told. */
static const tl_observer nobody;

tl_status tl_observe(tl_tape *t, const tl_observer *o, void *ctx)
{
    if (!tl_lives(t))
        return tl_error_status(t);
    TL_TRY(TL_NEED(&t->head.err, o));
    int at = t->n_watchers;
    for (int i = t->n_watchers; i-- > 0;) {
        if (t->watcher[i].o == o)
            return tl_fail(&t->head.err, TL_EUSAGE,
                           "tl_observe: this observer watches the tape already");
        at = t->watcher[i].o == &nobody ? i : at;
    }
    if (at == t->n_watchers) {
        tl_watcher *grown = tl_realloc(t->watcher, (size_t)(at + 1) * sizeof *grown);
        if (grown == NULL)
            return tl_fail(&t->head.err, TL_ENOMEM, "tl_observe: no memory for observer %d", at);
        t->watcher = grown;
        t->n_watchers++;
    }
    t->watcher[at] = (tl_watcher){o, ctx};
    note_watched(t);
    return TL_OK;
}

void tl_observe_end(tl_tape *t, const tl_observer *o)
{
    if (!tl_lives(t))
        return;
    int kept = 0;
    for (int i = 0; i < t->n_watchers; i++) {
        const tl_watcher w = t->watcher[i];
        if (t->telling > 0 || (w.o != o && w.o != &nobody))
            t->watcher[kept++] = w.o == o ? (tl_watcher){&nobody, NULL} : w;
    }
    t->n_watchers = kept;
    note_watched(t);
}

void *tl_observed(const tl_tape *t, const tl_observer *o)
{
    for (int i = 0; tl_lives(t) && i < t->n_watchers; i++)
        if (t->watcher[i].o == o)
            return t->watcher[i].ctx;
    return NULL;
}

tl_status tl_observe_like(tl_tape *dst, const tl_tape *src)
{
    for (int i = 0; i < src->n_watchers; i++)
        if (src->watcher[i].o->follows)
            TL_TRY(tl_observe(dst, src->watcher[i].o, src->watcher[i].ctx));
    return TL_OK;
}

static void tell_begins(tl_tape *t, TL_UNUSED void *unused) { TL_TELL(t, update_begins, t); }

void tl_update_begin(tl_tape *t)
{
    if (!tl_lives(t) || !apart(t, "tl_update_begin"))
        return;
    t->now.phase |= TL_PHASE_UPDATE;
    tell_begins(t, NULL);
    if (t->recorder != NULL) /* and again in each run of the program */
        tl_host(t, TL_BEFORE, tell_begins, NULL);
}

void tl_update_end(tl_tape *t)
{
    if (!tl_lives(t))
        return;
    t->now.phase &= (uint8_t)~TL_PHASE_UPDATE;
    if (tl_tape_stopped(t, tl_error_status(t)) == TL_OK) /* half an update stays an error */
        TL_TELL(t, updated, t);
}

/* ---- places ---- */

int tl_share_push(tl_at at, bool shared)
{
    tl_tape *t = at.tape;
    if (!tl_lives(t))
        return 0;
    if (t->now.place_depth < TL_PLACES)
        t->places[t->now.place_depth] = (tl_place_frame){at, shared};
    return t->now.place_depth++;
}

int tl_place_push(tl_at at) { return tl_share_push(at, false); }

void tl_place_pop(tl_tape *t, int depth)
{
    if (tl_lives(t) && depth >= 0 && depth < t->now.place_depth)
        t->now.place_depth = depth;
}

tl_scope tl_scope_open(tl_at at, unsigned mode, unsigned phase)
{
    tl_tape *t = at.tape;
    const tl_scope outer = t->now;
    t->now.mode |= mode;
    t->now.phase |= (uint8_t)phase;
    tl_place_push(at);
    return outer;
}

tl_scope tl_scope_of(tl_tape *t, const tl_node *n, unsigned mode)
{
    const tl_scope outer = tl_scope_open((tl_at){t, n->file, n->line, NULL}, 0, 0);
    if (tl_choice_follow(t, n->choice)) {
        t->now.mode = mode;
        t->now.phase = n->phase;
    }
    return outer;
}

/* A layer is identified by the places of the calls that are open around the lookup. A lookup
 * outside any call, or under TL_NO_GRAD, belongs to no layer. */
tl_status tl_site_check(tl_at at, const char *name, uint32_t index)
{
    tl_tape *t = at.tape;
    int n = (t->now.place_depth < TL_PLACES ? t->now.place_depth : TL_PLACES) - t->now.place_base,
        k = 0;
    bool shared = false;
    if (n <= 0 || t->now.mode & TL_NO_GRAD)
        return TL_OK;
    const tl_place_frame *open = t->places + t->now.place_base;
    for (int i = 0; i < n; i++)
        shared |= open[i].shared;
    tl_site *s = tl_grow_to(&t->site, &t->n_sites, index, sizeof *s) ? &t->site[index] : NULL;
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
    while (k < n && k < s->n && open[k].at.line == s->open[k].at.line &&
           tl_same_text(open[k].at.file, s->open[k].at.file))
        k++;
    if (s->shared || (k == n && k == s->n))
        return TL_OK;
    const tl_at a = s->open[k < s->n ? k : s->n - 1].at, b = open[k < n ? k : n - 1].at;
    return tl_tape_fail(at, TL_ENAME,
                        "'%.100s' is of a layer called at %.90s:%d and, in the same recording, of "
                        "one at %.90s:%d; name one otherwise, or share it by .shared = true",
                        name, a.file == NULL ? "?" : a.file, a.line, b.file == NULL ? "?" : b.file,
                        b.line);
}
