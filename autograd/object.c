/* object.c: what tapes, models and optimizers have in common - an error that
 * sticks, and an end. */
#include <stdio.h>

#include "autograd/internal.h"
#include "tensor/isa.h"
#include "tensor/pool.h"

tl_status tl_environment_check(tl_err *err)
{
    TL_TRY(tl_isa_environment(err));
    return tl_threads_environment(err);
}

static _Atomic bool warn = true;

void tl_warnings(bool on) { atomic_store(&warn, on); }

/* All that there are, newest first: what is not among them has been freed, or never was. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tl_object *living;

/* Every call asks: the answer for objects met lately, each at the place of its address. They are
 * written under the lock. */
enum { MET_BITS = 6 };
static _Atomic(const void *) met[1 << MET_BITS];

/* The link to the object, under the lock; one that holds NULL: it is not there. */
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

bool tl_lives(const void *object)
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

/* It is the user's, and is from now on, or is not. */
static bool given(void *object, bool now)
{
    pthread_mutex_lock(&lock);
    tl_object *o = *link_to(object);
    const bool was = o != NULL && o->given;
    if (o != NULL)
        o->given = now;
    pthread_mutex_unlock(&lock);
    return was;
}

void tl_object_give(tl_object *o) { given(o, true); }

bool tl_object_take(void *object) { return given(object, false); }

bool tl_object_given(const void *object)
{
    pthread_mutex_lock(&lock);
    const tl_object *o = *link_to(object);
    const bool is = o != NULL && o->given;
    pthread_mutex_unlock(&lock);
    return is;
}

/* A tape without an error of its own speaks for its model. */
static tl_object *speaker(const void *object)
{
    tl_object *o = (tl_object *)object;
    tl_model *m = o->kind == TL_KIND_TAPE ? ((tl_tape *)o)->model : NULL;
    return m != NULL && o->err.status == TL_OK ? &m->head : o;
}

bool tl_failed(const void *object) { return tl_error_status(object) != TL_OK; }

const char *tl_error(const void *object)
{
    if (object == NULL)
        return "out of memory: the object could not be made";
    if (!tl_lives(object))
        return "this object has been freed";
    tl_err *err = &speaker(object)->err;
    if (err->status != TL_OK)
        err->read = true;
    return err->message;
}

/* Every call asks: what speaker would say. */
tl_status tl_error_status(const void *object)
{
    const tl_object *o = object;
    if (!tl_lives(o))
        return o == NULL ? TL_ENOMEM : TL_ESTALE;
    const tl_model *m = o->kind == TL_KIND_TAPE ? ((const tl_tape *)object)->model : NULL;
    return m == NULL || o->err.status != TL_OK ? o->err.status : m->head.err.status;
}

tl_err *tl_error_record(void *object)
{
    return tl_lives(object) ? &((tl_object *)object)->err : NULL;
}

tl_status tl_error_begin(void *object)
{
    tl_err *err = tl_error_record(object);
    if (err == NULL || (err->status != TL_OK && !err->read))
        return err == NULL ? tl_error_status(object) : err->status;
    tl_err_clear(err);
    return TL_OK;
}

void tl_error_clear(void *object)
{
    if (!tl_lives(object) || !tl_failed(object))
        return;
    if (((tl_object *)object)->kind ==
        TL_KIND_TAPE) /* what failed may have been part of a batch: its gradients go too */
        tl_grad_clear(object);
    tl_err_clear(&((tl_object *)object)->err);
    tl_err_clear(&speaker(object)->err);
}

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

static const char *name_of(tl_kind kind)
{
    return kind == TL_KIND_TAPE ? "tape" : kind == TL_KIND_MODEL ? "model" : "optimizer";
}

void tl_free_objects(void *const *objects, size_t n)
{
    for (size_t i = 0; objects != NULL && i < n; i++) {
        tl_object *o = objects[i];
        if (o == NULL)
            continue;
        if (!tl_object_take(o)) {
            if (atomic_load(&warn))
                fprintf(stderr,
                        "tally: tl_free: argument %zu is nothing that lives; was it freed "
                        "before?\n",
                        i + 1);
            continue;
        }
        if (o->err.status != TL_OK && !o->err.read && o->kind != TL_KIND_GRAPH &&
            atomic_load(&warn))
            fprintf(stderr, "tally: %s %s is freed, and nobody has read its error: %s\n",
                    o->kind == TL_KIND_OPT ? "an" : "a", name_of(o->kind), o->err.message);
        tl_object_release(o);
    }
}
