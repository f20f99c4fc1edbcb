/* fold.h: uses of a leaf that are folded later, between fold.c and waiting.c. */
#ifndef TL_AUTOGRAD_BATCH_FOLD_H
#define TL_AUTOGRAD_BATCH_FOLD_H

#include "autograd/batch.h"

/* A use: what its gradient is made of. */
typedef struct tl_put {
    uint32_t node;
    int input;
    tl_tensor *kept; /* of the node's inputs, outputs and their cotangents; or, where the engine
                        folds, what the vjp gave, alone. NULL: nothing came to it */
    int n_kept;
    tl_batch axis;         /* of what the vjp gave */
    int64_t samples, each; /* how many, -1: it is not made of samples; elements of each */
    bool first, alone; /* samples come first, so that nothing is added up before them; one at a time
                          where there is no dim for that */
    /* Of a part: which axis of each of kept[] is cut to it, -1 for none, and of the leaf as it is
     * seen; its elements [from, from + cut) there. NULL: all. */
    const int *along;
    int axis_of_leaf;
    int64_t from, cut;
} tl_put;

/* What kept[j] of a use is, or was: inputs, then outputs, then outputs again, whose cotangents have
 * the same samples. */
tl_tensor tl_put_of(const tl_tape *t, const tl_node *n, int j);

/* x[from .. from + n) along an axis. */
static inline tl_tensor tl_fold_slice(tl_walk *w, tl_tensor x, int axis, int64_t from, int64_t n)
{
    const tl_slice_attrs at = {axis, from, from + n, 1};
    return tl_apply1(w->at, &tl_op_slice, &at, &x, 1);
}

/* All uses have been visited: those to which nothing came are left out. */
void tl_fold_begins(tl_fold *f);
/* Adds them to the accumulator. */
tl_status tl_fold_uses(tl_walk *w, tl_fold *f);
/* Nothing is kept for it any longer. */
void tl_fold_ends(tl_tape *t, tl_fold *f);

#endif
