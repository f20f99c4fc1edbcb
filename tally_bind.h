/* tally_bind.h: for bindings to other languages, which are made of what the library says of itself;
 * examples/python is one. Public. */
#ifndef TALLY_BIND_H
#define TALLY_BIND_H

#include <stddef.h>

#include "autograd/handle.h"
TL_BEGIN

/* Every declaration of the public headers as the library was compiled with it: C without comments
 * and macros. A binding that reads it has the library's own structs and functions, whatever headers
 * lie about. Never NULL. */
const char *tl_face(void);
/* Bytes of a type that tl_face names ("tl_shape"), to be compared with those that a binding finds;
 * 0 for another name or NULL. */
size_t tl_face_size(const char *type);

/* Stands for a tl_function (gradcheck.h) where functions return no structs: calls callback->call,
 * which sets *out, TL_NONE until then, and returns that. callback: a tl_callback, borrowed; for one
 * that is NULL, or has no call, the result is TL_NONE. */
typedef struct {
    void (*call)(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, void *ctx);
    void *ctx;
} tl_callback;
tl_tensor tl_callback_run(tl_tape *t, const tl_tensor *in, int n, void *callback);
TL_END
#endif
