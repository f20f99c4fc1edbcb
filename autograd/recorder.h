/* recorder.h: what stands in for contents and gradients while a program is recorded for later.
 * Public.
 *
 * A tape with a recorder runs no op: calls are checked, shaped and recorded as nodes (TL_TRACE).
 * What would need contents goes to the recorder, which answers with values that stand for them. The
 * tracing of graphs is one (graph/trace.c); another might record programs for a machine of your
 * own. Every callback gets the context given to tl_record_with. */
#ifndef TL_RECORDER_H
#define TL_RECORDER_H

#include "autograd/op.h"
#include "autograd/tape.h"
TL_BEGIN

/* How a program brings host memory in. */
typedef enum { TL_SOURCE_DATA, TL_SOURCE_CONSTANT, TL_SOURCE_BOUND } tl_source;

typedef struct {
    /* tl_data, tl_zeros (data is NULL), tl_constant, tl_bound, called `who`, with shape and data
     * checked: gives a leaf, or TL_NONE with an error. */
    tl_tensor (*source)(void *ctx, tl_at at, const char *who, tl_source kind, const void *data,
                        tl_dtype dtype, tl_shape shape);
    /* tl_item, tl_keep, tl_print, tl_sha256 ask for the contents of x: TL_OK if they are there. */
    tl_status (*read)(void *ctx, tl_at at, tl_tensor x, const char *who);
    tl_status (*watch)(void *ctx, tl_at at, tl_tensor x, double *to); /* tl_watch */
    tl_status (*host)(void *ctx, tl_at at, tl_host_when when, tl_host_fn *f, void *f_ctx);
    tl_status (*hold)(void *ctx, tl_at at, void *object); /* tl_host_hold */

    /* tl_backward, tl_grad: true if done, with the answer in *s or *dx; false: the engine does it,
     * op by op. */
    bool (*backward)(void *ctx, tl_at at, tl_tensor y, const tl_backward_options *o, tl_status *s);
    bool (*grad)(void *ctx, tl_at at, tl_tensor x, tl_tensor *dx);
    void (*grad_clear)(void *ctx, tl_tape *t); /* tl_grad_clear */

    /* The accumulator of use `use` of the tape's gradient record `leaf`, of a's shape and dtype, as
     * a value of the tape. */
    tl_tensor (*accumulator)(void *ctx, tl_tape *t, const tl_array *a, uint32_t leaf, uint32_t use);
    /* Whether x lies in one, and in which. */
    bool (*accumulator_of)(void *ctx, const tl_tape *t, tl_tensor x, uint32_t *leaf, uint32_t *use);
    /* The last node that changes the memory of x, a tensor of the model, in place; -1: none.
     * (Memory that is not there has no versions to tell.) */
    int64_t (*last_change)(void *ctx, tl_tape *t, tl_tensor x);
    /* A number for where the contents of the leaf x come from. */
    uint64_t (*origin)(void *ctx, const tl_tape *t, tl_tensor x);
    /* A number for the contents of the leaf x, a constant of which weights are made: the program
     * is for them. */
    uint64_t (*constant)(void *ctx, tl_tape *t, tl_tensor x);
} tl_recorder;

/* t, a fresh tape, records for r from now on; r must outlive it. */
void tl_record_with(tl_tape *t, const tl_recorder *r, void *ctx);
TL_END
#endif
