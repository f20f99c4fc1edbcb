/* apply.h: a call while it is being made, for apply.c and what it asks. */
#ifndef TL_APPLY_H
#define TL_APPLY_H

#include "autograd/internal.h"

/* Sets of inputs are bit masks. */
typedef struct {
    tl_at at;
    tl_call call;
    const tl_tensor *in;
    tl_value **value;       /* records of the inputs; NULL where absent */
    const tl_array **array; /* their arrays */
    uint32_t *versions;     /* of storages, for the node */
    tl_batch *batch;        /* how the inputs depend on the batch */
    unsigned wanted;        /* inputs that need a gradient */
    bool needs_grad;        /* one of them does, and gradients are recorded */
    bool depends;           /* some input depends on the batch */
    bool fixed;             /* parameters and constants give what it makes, and are not repeated */
    bool operand;           /* the op changes an operand in place, and it is present */
    bool mutates;           /* this call does so, rather than change a copy */
    bool earlier;           /* the outputs were computed before, from the same parameters */
    unsigned changes;       /* inputs whose memory this call changes */
    unsigned regions; /* those in the tape's arena, where changes are tracked by region; tensors of
                       * the model and accumulators change as a whole */
    tl_value *made[TL_OUTS]; /* records of the outputs */
    uint32_t first;          /* index of made[0]; the others follow */
    tl_change *change;       /* reserved notes of the changes to come */
} tl_making;

/* in_place.c: the call may change its operand, and notes of the changes are made: once its kernel
 * has begun it must not fail for want of memory. */
tl_status tl_change_check(tl_making *k);

#endif
