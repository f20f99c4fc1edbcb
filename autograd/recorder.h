/* recorder.h: what stands in for contents and gradients while a program is recorded to run later.
 * Public.
 *
 * A tape with a recorder runs no ops: calls are checked, shaped and recorded as nodes (TL_TRACE).
 * Whatever would need contents goes to the recorder, which answers with values that stand for them.
 * graph/trace.c is one; another might record programs for a machine of your own. Every callback
 * must be there, and gets the context that was given to tl_record_with. */
#ifndef TL_RECORDER_H
#define TL_RECORDER_H

#include "autograd/op.h"
#include "autograd/tape.h"
TL_BEGIN

/* How a program brings host memory in. */
typedef enum { TL_SOURCE_DATA, TL_SOURCE_CONSTANT, TL_SOURCE_BOUND } tl_source;

typedef struct {
    /* tl_data, tl_zeros (data is NULL), tl_constant or tl_bound, whose name is `who`; shape and
     * data have been checked. Returns a leaf, or TL_NONE with an error. */
    tl_tensor (*source)(void *ctx, tl_at at, const char *who, tl_source kind, const void *data,
                        tl_dtype dtype, tl_shape shape);
    /* tl_item, tl_keep, tl_print or tl_sha256 wants the contents of x; TL_OK if there are any. */
    tl_status (*read)(void *ctx, tl_at at, tl_tensor x, const char *who);
    tl_status (*watch)(void *ctx, tl_at at, tl_tensor x, double *to); /* tl_watch */
    tl_status (*host)(void *ctx, tl_at at, tl_host_when when, tl_host_fn *f, void *f_ctx);
    tl_status (*hold)(void *ctx, tl_at at, void *object); /* tl_host_hold */

    /* tl_backward, tl_grad: true if the recorder has done it, with the result in *s or *dx; false:
     * the engine does it, op by op. */
    bool (*backward)(void *ctx, tl_at at, tl_tensor y, const tl_backward_options *o, tl_status *s);
    bool (*grad)(void *ctx, tl_at at, tl_tensor x, tl_tensor *dx);
    void (*grad_clear)(void *ctx, tl_tape *t); /* tl_grad_clear */

    /* Accumulator `use` of gradient record `leaf`, with a's shape and dtype, as a tape's value. */
    tl_tensor (*accumulator)(void *ctx, tl_tape *t, const tl_array *a, uint32_t leaf, uint32_t use);
    /* Whether x lies in an accumulator, and in which. */
    bool (*accumulator_of)(void *ctx, const tl_tape *t, tl_tensor x, uint32_t *leaf, uint32_t *use);
    /* The last node that changes x, a tensor of the model, in place; -1: none. */
    int64_t (*last_change)(void *ctx, tl_tape *t, tl_tensor x);
    /* A number that identifies where the contents of leaf x come from. */
    uint64_t (*origin)(void *ctx, const tl_tape *t, tl_tensor x);
    /* A number that identifies the contents of leaf x, a constant from which weights are made; the
     * recorded program is then only for these contents. */
    uint64_t (*constant)(void *ctx, tl_tape *t, tl_tensor x);
} tl_recorder;

/* The fresh tape t records for r, which must outlive it. TL_EUSAGE: r or a callback is NULL. */
void tl_record_with(tl_tape *t, const tl_recorder *r, void *ctx);
TL_END
#endif
