/* object.h: the head of every object that tl_error, tl_failed and tl_free take. Public. An
 * optimizer of your own that begins with one is taken, too. */
#ifndef TL_OBJECT_H
#define TL_OBJECT_H

#include <stdint.h>

#include "tensor/status.h"
TL_BEGIN

typedef enum { TL_KIND_TAPE = 0x7a9e1, TL_KIND_MODEL, TL_KIND_OPT, TL_KIND_GRAPH } tl_kind;

/* First member of the object. */
typedef struct tl_object {
    tl_kind kind;
    tl_err err;
    void (*destroy)(void *);
    int32_t held;           /* by so many others: it lives until the last of them lets go */
    struct tl_object *next; /* of those that the user holds */
} tl_object;

/* Another object needs this one: a tape its model, a graph an optimizer that steps in it. tl_free
 * lets go for the user, so the order of frees does not matter. NULL is fine. */
void tl_object_hold(void *object);
void tl_object_release(void *object);

/* The object is the user's from here on, who frees it by tl_free: the last step of making one. And
 * no longer, as tl_free begins; false if it was not. Only the address is looked at. */
void tl_object_give(tl_object *o);
bool tl_object_take(void *object);
/* Frees one that no user knows of, without a word. NULL is fine. */
void tl_object_end(void *object);

/* How a call that reports to the object begins: an error that nobody has read stays and is
 * returned, and the call is not made; one that was read is forgotten. */
tl_status tl_error_begin(void *object);

/* Where failures of the object are recorded (tl_fail); NULL for NULL. */
tl_err *tl_error_record(void *object);
TL_END
#endif
