/* tape.c: making, resetting and freeing tapes; scopes of modes; who watches; the places of calls,
 * which errors name and by which two layers of one name are told apart. */
#include "autograd/batch.h"

#include <string.h>

#include "tensor/environment.h"
#include "tensor/threads.h"

static void tape_destroy(void *object)
{
    tl_tape *t = object;
    TL_TELL(t, freed, t);
    tl_free_raw(t->watcher);
    tl_values_drop(&t->values, 0);
    tl_prints_free(&t->prints);
    tl_leaf_grads_drop(t, 0, 0);
    if (t->arena != NULL) /* a trace shares the lasting tape of the user */
        tl_derived_forget(t);
    tl_object_release(t->lasting);
    tl_free_raw(t->grad);
    tl_key_map_free(&t->grad_at);
    tl_values_free(&t->values);
    tl_free_raw(t->node);
    tl_free_raw(t->site);
    tl_free_raw(t->again);
    tl_key_map_free(&t->found);
    tl_choices_free(t);
    tl_bump_free(&t->bump);
    tl_arena_free(t->arena);
    tl_arena_free(t->grad_arena);
    tl_object_release(t->model);
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

tl_tape *tl_tape_bare(tl_model *m)
{
    tl_tape *t = tl_calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    tl_object_begin(&t->head, TL_KIND_TAPE, tape_destroy);
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

tl_tape *tl_tape_new(tl_model *m)
{
    tl_tape *t = tl_tape_bare(tl_lives(m) ? m : NULL);
    if (t == NULL)
        return NULL;
    t->arena = tl_arena_new();
    t->grad_arena = tl_arena_new();
    if (t->arena == NULL || t->grad_arena == NULL) {
        tl_object_end(t);
        return NULL;
    }
    if (m != t->model)
        tl_fail(&t->head.err, TL_ESTALE, "tl_tape_new: the model has been freed");
    /* A setting in the environment that makes no sense is an error, not ignored. */
    tl_environment_check(&t->head.err);
    tl_object_give(&t->head);
    return t;
}

tl_model *tl_tape_model(const tl_tape *t) { return tl_lives(t) ? t->model : NULL; }

bool tl_between(tl_tape *t, const char *who)
{
    const char *within = t->inside != NULL                  ? t->inside
                         : t->now.phase & TL_PHASE_BACKWARD ? "a backward"
                         : t->telling > 0                   ? "an observer's callback"
                                                            : NULL;
    return within == NULL ||
           tl_tape_fail(tl_nowhere(t), TL_EUSAGE, "%s: %s is under way", who, within) == TL_OK;
}

void tl_tape_reset(tl_tape *t)
{
    if (!tl_lives(t) || !tl_between(t, "tl_tape_reset"))
        return;
    TL_TELL(t, reset, t);
    tl_check_waiting(tl_nowhere(t), "tl_tape_reset");
    tl_values_drop(&t->values, 0);
    tl_leaf_grads_drop(t, t->values.owner, 0); /* those of parameters stay */
    tl_derived_reset(t);
    t->n_nodes = 0;
    t->now.phase = 0;
    t->thaws = t->model == NULL ? 0 : t->model->thaws;
    t->late = false;
    tl_prints_end(t);
    t->steps = t->calls = 0;
    t->segments = NULL;
    tl_bump_rewind(&t->bump, 0);
    if (++t->generation == 0)
        t->generation = 1;
}

void tl_tape_limit(tl_tape *t, int steps)
{
    if (tl_lives(t) && steps < 0)
        tl_tape_fail(tl_nowhere(t), TL_EDOMAIN, "tl_tape_limit: %d steps; 0 is no limit", steps);
    else if (tl_lives(t))
        t->limit = steps;
}

tl_status tl_steps_count(tl_at at, int n)
{
    tl_tape *t = at.tape;
    TL_TRY(tl_error_status(t));
    if (n > 0 && t->limit > 0 && t->steps > t->limit - n)
        return tl_tape_fail(at, TL_EUSAGE,
                            "%d optimizer steps in one recording of %u nodes and %u values, where "
                            "%d are the limit: forgot tl_tape_reset? tl_tape_limit raises it",
                            t->steps + n, t->n_nodes, (unsigned)atomic_load(&t->values.count),
                            t->limit);
    t->steps += n > 0 && t->limit > 0 ? n : 0;
    return TL_OK;
}

tl_status tl_tape_steps(tl_at at, int n)
{
    if (tl_failed(at.tape) || !tl_between(at.tape, "tl_step"))
        return tl_error_status(at.tape);
    return n > 0 && tl_prints_step(at) != TL_OK ? tl_error_status(at.tape) : tl_steps_count(at, n);
}

tl_status tl_tape_reserve(tl_tape *t, uint32_t calls, int inputs)
{
    TL_TRY(tl_error_status(t));
    TL_TRY(tl_need(&t->head.err, __func__, "inputs", true, inputs));
    size_t each = ((size_t)inputs + 2) * 64 + 512;
    bool ok = calls <= SIZE_MAX / 2 / each && tl_nodes_room(t, calls) == TL_OK &&
              tl_bump_room(&t->bump, calls * each) && tl_values_room(&t->values, calls);
    return ok ? TL_OK : tl_fail(&t->head.err, TL_ENOMEM, "no memory to record %u calls", calls);
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

bool tl_traced(const tl_tape *t) { return tl_lives(t) && t->recorder != NULL; }

void tl_record_with(tl_tape *t, const tl_recorder *r, void *ctx)
{
    void (*callback)(void);
    if (!tl_lives(t) || r == NULL)
        return;
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

/* Whether the message begins with "NAME:", "NAME " or "tl_NAME:". */
static bool begins_with_call(const char *message, const char *name)
{
    const size_t n = strlen(name);
    message += strncmp(message, "tl_", 3) == 0 ? 3 : 0;
    return strncmp(message, name, n) == 0 && (message[n] == ':' || message[n] == ' ');
}

tl_status tl_tape_fail(tl_at at, tl_status s, const char *fmt, ...)
{
    if (tl_failed(at.tape)) /* perhaps its model has, and says why */
        return s;
    va_list ap;
    va_start(ap, fmt);
    tl_err e = {.status = TL_OK};
    tl_vfail(&e, s, fmt, ap);
    va_end(ap);
    at = tl_place(at);
    const char *call = at.call == NULL || begins_with_call(e.message, at.call) ? "" : at.call;
    char where[112] = "";
    if (at.file != NULL)
        snprintf(where, sizeof where, " (%.90s:%d)", at.file, at.line);
    const size_t n = strlen(e.message), w = strlen(where);
    if (w <= n && strcmp(e.message + n - w, where) == 0) /* the message ends with it */
        where[0] = '\0';
    return tl_fail(&at.tape->head.err, s, "%s%s%.*s%s", call, *call == '\0' ? "" : ": ",
                   TL_MESSAGE_MAX - 128 - (int)strlen(call), e.message, where);
}

tl_status tl_tape_stopped(tl_tape *t, tl_status s)
{
    tl_err *from = t->model == NULL ? NULL : &t->model->head.err;
    if (s == TL_OK || from == NULL || t->head.err.status != TL_OK)
        return s;
    const bool there = from->status != TL_OK && *from->message != '\0';
    return tl_fail(&t->head.err, s, "%s",
                   there ? from->message : "stopped by an error of the model, cleared since");
}

tl_status tl_tape_need(tl_at at, const char *func, const char *what, bool there, int64_t n)
{
    tl_err e = {.status = TL_OK};
    return tl_need(&e, func, what, there, n) == TL_OK ? TL_OK
                                                      : tl_tape_fail(at, e.status, "%s", e.message);
}

tl_tape_memory tl_memory_stats(const tl_tape *t)
{
    if (!tl_lives(t))
        return (tl_tape_memory){0};
    tl_tape_memory m = {.tape = tl_arena_stats(t->arena),
                        .gradients = tl_arena_stats(t->grad_arena),
                        .nodes = t->n_nodes,
                        .values = atomic_load(&t->values.count)};
    for (const tl_tape *l = t; l != NULL; l = l->lasting)
        m.records += l->n_nodes * sizeof *l->node + tl_bump_used(&l->bump);
    if (t->model == NULL)
        return m;
    pthread_mutex_lock(&t->model->lock);
    m.model = tl_arena_stats(t->model->arena);
    pthread_mutex_unlock(&t->model->lock);
    return m;
}

/* ---- observers ---- */

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
                        name, a.file, a.line, b.file, b.line);
}
