/* handle.h: what a user holds - a tensor handle, and the place of a call. Public. */
#ifndef TL_HANDLE_H
#define TL_HANDLE_H

#include <stdint.h>

#include "tensor/status.h"
TL_BEGIN

typedef struct tl_tape tl_tape;
typedef struct tl_model tl_model;

/* Names a tensor of a tape or a model; a small value to be copied freely, which owns nothing. It is
 * stale once its tape is reset. The zero handle is the result of a failed call, and stands for an
 * optional input that is absent. */
typedef struct {
    uint32_t owner, index, generation;
} tl_tensor;

#define TL_NONE (TL_MAKE(tl_tensor){0, 0, 0})
static inline int tl_is_none(tl_tensor x) { return x.owner == 0; }

/* The place of a call, and the function called there, if errors are to name it and not its ops. */
typedef struct {
    tl_tape *tape;
    const char *file;
    int line;
    const char *call;
} tl_at;

#define TL_AT(t) (TL_MAKE(tl_at){(t), __FILE__, __LINE__, NULL})
#define TL_BY(t, call) (TL_MAKE(tl_at){(t), __FILE__, __LINE__, #call})
/* Calls tl_CALL_at; errors then name CALL. */
#define TL_OP(call, t, ...) \
    tl_##call##_at(TL_MAKE(tl_at){(t), __FILE__, __LINE__, #call}, __VA_ARGS__)
TL_END
#endif
