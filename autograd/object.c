/* object.c: errors as users read them; how a call begins that may fail; freeing what users hold. */
#include <stdio.h>
#include <string.h>

#include "autograd/internal.h"

static _Atomic bool warn = true;

void tl_warnings(bool on) { atomic_store(&warn, on); }

const char *tl_error(const void *object)
{
    if (object == NULL)
        return "out of memory: the object could not be made";
    if (!tl_lives(object))
        return "this object has been freed";
    tl_object *o = (tl_object *)object;
    tl_model *m = o->kind == TL_KIND_TAPE ? ((tl_tape *)o)->model : NULL;
    if (m != NULL && o->err.status == TL_OK)
        o = &m->head;
    if (o->err.status == TL_OK)
        return o->err.message;
    o->err.read = true;
    if (m != NULL && strcmp(m->head.err.message, o->err.message) == 0) /* tl_tape_stopped */
        m->head.err.read = true;
    return o->err.message;
}

_Thread_local const void *tl_recording;

tl_status tl_error_begin(void *object)
{
    if (object == NULL || object != tl_recording)
        return tl_error_renew(object);
    return tl_fail(tl_error_record(object), TL_ETRACED,
                   "a call in a traced function acts on the model at once, not in each run; use "
                   "tl_assign or tl_host");
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
