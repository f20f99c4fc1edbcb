/* object.h: the head of every object that tl_error, tl_failed and tl_free take. Public: an
 * optimizer of your own that begins with one is taken, too. */
#ifndef TL_OBJECT_H
#define TL_OBJECT_H

#include "tensor/status.h"

typedef enum { TL_KIND_TAPE = 0x7a9e1, TL_KIND_MODEL, TL_KIND_OPT, TL_KIND_GRAPH } tl_kind;

/* First member of the object. */
typedef struct {
    tl_kind kind;
    tl_err err;
    void (*destroy)(void *);
} tl_object;

/* Where failures of the object are recorded (tl_fail); NULL for NULL. */
tl_err *tl_error_record(void *object);

#endif
