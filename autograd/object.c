/* object.c: what tapes, models and optimizers have in common - an error that
 * sticks, and an end. */
#include "autograd/internal.h"
#include "tensor/isa.h"
#include "tensor/pool.h"

tl_status tl_environment_check(tl_err *err)
{
    TL_TRY(tl_isa_environment(err));
    return tl_threads_environment(err);
}

static const tl_object *speaker(const void *object)
{
    const tl_object *o = object;
    if (o != NULL && o->kind == TL_KIND_TAPE && o->err.status == TL_OK) {
        const tl_tape *t = object;
        if (t->model != NULL)
            return &t->model->head;
    }
    return o;
}

bool tl_failed(const void *object)
{
    return object == NULL || ((const tl_object *)object)->err.status != TL_OK;
}

const char *tl_error(const void *object)
{
    return object == NULL ? "out of memory: the object could not be made"
                          : speaker(object)->err.message;
}

tl_status tl_error_status(const void *object)
{
    return object == NULL ? TL_ENOMEM : speaker(object)->err.status;
}

tl_err *tl_error_record(void *object)
{
    return object == NULL ? NULL : &((tl_object *)object)->err;
}

void tl_error_clear(void *object)
{
    tl_object *o = object;
    if (o == NULL || o->err.status == TL_OK)
        return;
    if (o->kind ==
        TL_KIND_TAPE) /* what failed may have been part of a batch: its gradients go too */
        tl_grad_clear(object);
    tl_err_clear(&o->err);
}

void tl_object_hold(void *object)
{
    if (object != NULL)
        __atomic_fetch_add(&((tl_object *)object)->held, 1, __ATOMIC_SEQ_CST);
}

void tl_object_release(void *object)
{
    tl_object *o = object;
    if (o != NULL && __atomic_fetch_sub(&o->held, 1, __ATOMIC_SEQ_CST) == 0)
        o->destroy(o);
}

void tl_free_objects(void *const *objects, size_t n)
{
    for (size_t i = 0; objects != NULL && i < n; i++)
        tl_object_release(objects[i]);
}
