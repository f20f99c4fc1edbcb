/* bind.c: the library's declarations as text, for bindings to other languages (tally_bind.h). */
#include <string.h>

/* face.awk makes face.inc from the public headers. It includes them and defines tl_face_text, their
 * text, and FACE_TYPES(X), which is X(name) for each type. */
#include "nn/face.inc"

const char *tl_face(void) { return tl_face_text; }

size_t tl_face_size(const char *type)
{
    static const struct {
        const char *name;
        size_t size;
    } types[] = {
#define X(name) {#name, sizeof(name)},
        FACE_TYPES(X)
#undef X
    };
    for (size_t i = 0; type != NULL && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, type) == 0)
            return types[i].size;
    return 0;
}

tl_tensor tl_callback_run(tl_tape *t, const tl_tensor *in, int n, void *callback)
{
    const tl_callback *c = callback;
    tl_tensor out = TL_NONE;
    if (c != NULL && c->call != NULL)
        c->call(t, in, n, &out, c->ctx);
    return out;
}
