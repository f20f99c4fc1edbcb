/* observe.c: attaching observers to a tape, and telling them of events. */
#include "autograd/internal.h"

/* Notes which events anyone hears, so that calls nobody watches cost nothing. */
static void note_watched(tl_tape *t)
{
    tl_observe_none(t);
    for (int i = 0; i < t->n_watchers; i++) {
        const tl_observer *o = t->watcher[i].o;
        t->records_watched |= o->records != NULL;
        t->run_watched |= o->runs != NULL || o->ran != NULL;
        t->given_watched |= o->gave != NULL || o->delivered != NULL;
        t->values_watched |= o->backward_begins != NULL;
    }
}

void tl_observe_none(tl_tape *t)
{
    t->records_watched = t->run_watched = t->given_watched = t->values_watched = false;
    t->heard_modes = 0;
    for (const tl_observer *const *o = tl_observers_shipped; *o != NULL; o++)
        t->heard_modes |= (*o)->mode;
}

tl_status tl_observe(tl_tape *t, const tl_observer *o, void *ctx)
{
    if (!tl_lives(t))
        return tl_error_status(t);
    TL_TRY(TL_NEED(&t->head.err, o));
    for (int i = 0; i < t->n_watchers; i++)
        if (t->watcher[i].o == o)
            return tl_fail(&t->head.err, TL_EUSAGE,
                           "tl_observe: this observer watches the tape already");
    tl_watcher *grown = tl_realloc(t->watcher, (size_t)(t->n_watchers + 1) * sizeof *grown);
    if (grown == NULL)
        return tl_fail(&t->head.err, TL_ENOMEM, "tl_observe: no memory for observer %d",
                       t->n_watchers);
    t->watcher = grown;
    t->watcher[t->n_watchers++] = (tl_watcher){o, ctx};
    note_watched(t);
    return TL_OK;
}

void tl_observe_end(tl_tape *t, const tl_observer *o)
{
    if (!tl_lives(t))
        return;
    int kept = 0;
    for (int i = 0; i < t->n_watchers; i++)
        if (t->watcher[i].o != o)
            t->watcher[kept++] = t->watcher[i];
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

/* The next observer from number *i on, the shipped ones first, that hears of calls like c; *ctx:
 * its context. NULL: that was all. */
static const tl_observer *next(const tl_tape *t, int *i, const tl_call *c, void **ctx)
{
    int shipped = 0;
    while (tl_observers_shipped[shipped] != NULL)
        shipped++;
    for (int k; (k = (*i)++) < shipped + t->n_watchers;) {
        const tl_observer *o = k < shipped ? tl_observers_shipped[k] : t->watcher[k - shipped].o;
        *ctx = k < shipped ? NULL : t->watcher[k - shipped].ctx;
        if (o->mode == 0 || o->mode & c->mode)
            return o;
    }
    return NULL;
}

/* What observers say to a call before or after it ran; they may leave the words to us. */
static tl_status answer(tl_tape *t, const tl_seen *s, bool ran)
{
    const tl_at at = {t, s->file, s->line, s->by};
    const char *name = s->call->op->name;
    tl_status status = TL_OK;
    const tl_observer *o;
    void *ctx;
    for (int i = 0; status == TL_OK && (o = next(t, &i, s->call, &ctx)) != NULL;) {
        if ((ran ? o->ran : o->records) != NULL)
            status = (ran ? o->ran : o->records)(ctx, t, s);
        status = status == TL_OK ? tl_error_status(t) : status;
    }
    return status == TL_OK
               ? TL_OK
               : tl_tape_fail(at, status, "%s: an observer refuses it and does not say why", name);
}

tl_status tl_tell_records(tl_tape *t, const tl_seen *s) { return answer(t, s, false); }

tl_status tl_tell_ran(tl_tape *t, const tl_seen *s) { return answer(t, s, true); }

void tl_tell_runs(tl_tape *t, const tl_seen *s)
{
    const tl_observer *o;
    void *ctx;
    for (int i = 0; (o = next(t, &i, s->call, &ctx)) != NULL;)
        if (o->runs != NULL)
            o->runs(ctx, t, s);
}

void tl_tell_recorded(tl_tape *t) { TL_TELL(t, recorded, t, t->n_nodes - 1); }

static void tell_begins(tl_tape *t, void *unused)
{
    (void)unused;
    TL_TELL(t, update_begins, t);
}

void tl_update_begin(tl_tape *t)
{
    if (!tl_lives(t))
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
