/* object.c: what users hold: tapes, models, optimizers and graphs, with their errors and their end;
 * and what a message says of the place where something went wrong. */
#include <stdio.h>
#include <string.h>

#include "autograd/internal.h"

static _Atomic bool warn = true;

void tl_warnings(bool on) { atomic_store(&warn, on); }

/* ---- objects ---- */

/* All objects that exist, newest first. Any other address has been freed, or never was one. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tl_object *living;

/* A cache for tl_lives, which every call asks: living objects, hashed by address. Written under the
 * lock, read without it. */
enum { MET_BITS = 6 };
static _Atomic(const void *) met[1 << MET_BITS];

/* The link that points to the object, or the list's last one, which is NULL. Needs the lock. */
static tl_object **link_to(const void *object)
{
    tl_object **at = &living;
    while (*at != NULL && *at != object)
        at = &(*at)->next;
    return at;
}

void tl_object_begin(tl_object *o, tl_kind kind, void (*destroy)(void *))
{
    if (o == NULL)
        return;
    o->kind = kind;
    o->destroy = destroy;
    pthread_mutex_lock(&lock);
    o->next = living;
    living = o;
    pthread_mutex_unlock(&lock);
}

static inline bool lives(const void *object)
{
    const uint64_t hash = (uint64_t)(uintptr_t)object * 0x9e3779b97f4a7c15u;
    _Atomic(const void *) *known = &met[hash >> (64 - MET_BITS)];
    if (object == NULL || atomic_load(known) == object)
        return object != NULL;
    pthread_mutex_lock(&lock);
    const bool found = *link_to(object) != NULL;
    if (found)
        atomic_store(known, object);
    pthread_mutex_unlock(&lock);
    return found;
}

bool tl_lives(const void *object) { return lives(object); }

static void end(tl_object *o)
{
    o->destroy(o);
    pthread_mutex_lock(&lock);
    tl_object **at = link_to(o);
    *at = o->next;
    for (int i = 0; i < 1 << MET_BITS; i++)
        if (atomic_load(&met[i]) == o)
            atomic_store(&met[i], NULL);
    pthread_mutex_unlock(&lock);
    tl_free_raw(o);
}

/* Sets whether the user owns the object; returns whether the user did before. */
static bool set_given(void *object, bool now)
{
    pthread_mutex_lock(&lock);
    tl_object *o = *link_to(object);
    const bool was = o != NULL && o->given;
    if (o != NULL)
        o->given = now;
    pthread_mutex_unlock(&lock);
    return was;
}

void tl_object_give(tl_object *o) { set_given(o, true); }

bool tl_object_take(void *object) { return set_given(object, false); }

bool tl_object_given(const void *object)
{
    return tl_lives(object) && ((const tl_object *)object)->given;
}

/* The object whose error counts: a tape without an error of its own reports its model's. */
static tl_object *speaker(const void *object)
{
    tl_object *o = (tl_object *)object;
    tl_model *m = o->kind == TL_KIND_TAPE ? ((tl_tape *)o)->model : NULL;
    return m != NULL && __atomic_load_n(&o->err.status, __ATOMIC_ACQUIRE) == TL_OK ? &m->head : o;
}

bool tl_failed(const void *object) { return tl_error_status(object) != TL_OK; }

const char *tl_error(const void *object)
{
    if (object == NULL)
        return "out of memory: the object could not be made";
    if (!tl_lives(object))
        return "this object has been freed";
    tl_object *o = speaker(object);
    if (o->err.status == TL_OK)
        return o->err.message;
    o->err.read = true;
    tl_model *m = o->kind == TL_KIND_TAPE ? ((tl_tape *)o)->model : NULL;
    if (m != NULL && strcmp(m->head.err.message, o->err.message) == 0) /* tl_tape_stopped */
        m->head.err.read = true;
    return o->err.message;
}

tl_status tl_error_status(const void *object)
{
    if (!lives(object))
        return object == NULL ? TL_ENOMEM : TL_ESTALE;
    return __atomic_load_n(&speaker(object)->err.status, __ATOMIC_ACQUIRE);
}

tl_err *tl_error_record(void *object)
{
    return tl_lives(object) ? &((tl_object *)object)->err : NULL;
}

_Thread_local const void *tl_recording;

tl_status tl_error_begin(void *object)
{
    if (object == NULL || object != tl_recording)
        return tl_error_renew(object);
    return tl_fail(tl_error_record(object), TL_ETRACED,
                   "this acts on the model at once, not in each run; use tl_assign or tl_host");
}

tl_status tl_error_renew(void *object)
{
    tl_err *err = tl_error_record(object);
    if (err == NULL || (err->status != TL_OK && !err->read))
        return err == NULL ? tl_error_status(object) : err->status;
    if (err->status != TL_OK) /* tapes of other threads may be asking */
        tl_err_clear(err);
    return TL_OK;
}

/* ---- the error of a tape, with the place ---- */

tl_at tl_place(tl_at at)
{
    const tl_tape *t = at.tape;
    bool open = t != NULL && t->now.place_depth > t->now.place_base &&
                t->now.place_base < TL_PLACES;
    return open ? t->places[t->now.place_base].at : at;
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

bool tl_between(tl_tape *t, const char *who)
{
    const char *within = t->inside != NULL                  ? t->inside
                         : t->now.phase & TL_PHASE_BACKWARD ? "a backward"
                         : t->telling > 0                   ? "an observer's callback"
                                                            : NULL;
    return within == NULL ||
           tl_tape_fail(tl_nowhere(t), TL_EUSAGE, "%s: %s is under way", who, within) == TL_OK;
}

/* ---- the end of an object ---- */

void tl_object_hold(void *object)
{
    if (tl_lives(object))
        __atomic_fetch_add(&((tl_object *)object)->held, 1, __ATOMIC_SEQ_CST);
}

void tl_object_release(void *object)
{
    tl_object *o = object;
    if (tl_lives(o) && __atomic_fetch_sub(&o->held, 1, __ATOMIC_SEQ_CST) == 0)
        end(o);
}

void tl_object_end(void *object)
{
    tl_object_take(object);
    tl_object_release(object);
}

void tl_free_objects(void *const *objects, size_t n)
{
    for (size_t i = 0; objects != NULL && i < n; i++) {
        tl_object *o = objects[i];
        if (o == NULL ||
            (tl_lives(o) && o->kind == TL_KIND_TAPE && !tl_between(objects[i], "tl_free")))
            continue;
        if (!tl_object_take(o)) {
            if (atomic_load(&warn))
                fprintf(stderr,
                        "tally: tl_free: argument %zu is not a live object; was it freed "
                        "before?\n",
                        i + 1);
            continue;
        }
        if (o->err.status != TL_OK && !o->err.read && atomic_load(&warn))
            fprintf(stderr, "tally: %s is freed, and nobody has read its error: %s\n",
                    o->kind == TL_KIND_TAPE    ? "a tape"
                    : o->kind == TL_KIND_MODEL ? "a model"
                    : o->kind == TL_KIND_GRAPH ? "a graph"
                                               : "an optimizer",
                    o->err.message);
        tl_object_release(o);
    }
}
