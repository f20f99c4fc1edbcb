/* internal.h: what the files of autograd/batch/ call of each other; fold.c has the picture of uses
 * and folds.
 *
 * A use is one input of one node that is the leaf (a parameter, say) or a view of it. A use is
 * deferred where its gradient cannot be added when the walk back meets it: then what the gradient
 * is made of is held until it can. */
#ifndef TL_BATCH_INTERNAL_H
#define TL_BATCH_INTERNAL_H

#include "autograd/batch.h"

/* One of the tensors that the gradient of a use is made of. */
typedef struct {
    const tl_value *like; /* a value of its shape; NULL: the tensor is absent */
    tl_tensor x;
    bool read; /* the vjp reads it: it is held until the fold ends; else only its shape counts */
    tl_batch axis; /* along which its samples lie, or TL_FREE */
    int cut;       /* along which a part of the fold cuts it; -1: every part needs all of it */
} tl_saved;

typedef struct tl_use {
    uint32_t node;
    int input;
    bool by_op;      /* the op's vjp adds to the accumulator; else the engine adds the vjp's dx */
    int n_saved;     /* by_op: the node's inputs, outputs and cotangents; else dx alone */
    tl_saved *saved; /* NULL: no gradient came to the use */
    int64_t samples; /* how many it has; -1: it is added as a whole */
    int64_t each;    /* elements of a sample along its axis */
    bool to_front;   /* samples move to a new first axis, lest something be summed before them */
    bool one_by_one; /* to_front, but there is no room for one more dim, or the op would pair it */
    int leaf_axis;   /* which axis of the input the axis of the fold's parts is */
} tl_use;

/* ---- uses.c ---- */

/* The shape of what tl_op_stack_samples makes of x alone. */
tl_status tl_stacked(const tl_array *x, const tl_stack_samples_attrs *at, tl_array *out,
                     tl_err *err);

/* Describes input k of n as a use, whose node the caller adds. Nothing is held yet. dy: cotangents
 * of the node's outputs, if they are known (else NULL). dx: what the vjp gave, where the engine
 * adds it. */
tl_status tl_use_of(tl_walk *w, const tl_node *n, int k, const tl_tensor *dy, tl_tensor dx,
                    tl_use *u);
/* It can be added while its node is visited: it is the only use of its fold, and nothing is summed
 * before its samples. */
static inline bool tl_use_is_simple(const tl_fold *f, const tl_use *u)
{
    return f->n == 1 && !u->to_front;
}
/* One call can fold samples of both. */
bool tl_uses_alike(const tl_tape *t, const tl_use *u, const tl_use *v);
/* Bytes of a sample in all that has to be stacked. */
size_t tl_use_sample_bytes(const tl_use *u);

/* ---- fold.c ---- */

/* Adds the deferred uses, or the part of them that f->from and f->size say, to the accumulator. */
tl_status tl_fold_uses(tl_walk *w, tl_fold *f);
/* Gives back what the uses hold. */
void tl_fold_ends(tl_tape *t, tl_fold *f);

/* ---- waiting.c ---- */

/* The fold waits for tl_accumulate. */
void tl_fold_wait(tl_tape *t, tl_fold *f);

/* ---- derived.c, settle.c: derived values ---- */

/* The value of the lasting tape that shows how `leaf` was made; TL_NONE: none does. */
tl_tensor tl_derived_made(const tl_tape *t, tl_tensor leaf);
/* 1 + the number of the last change of a parameter that x of the lasting tape is made of; 1: there
 * was none. No two changes have one number, so the same number tells that nothing has changed.
 * TL_REMOVED: one has been removed from the model (tl_model_rollback). */
#define TL_REMOVED UINT64_MAX
uint64_t tl_derived_last_change(tl_tape *t, tl_tensor x);
/* Gives back the memory that v of the lasting tape keeps. */
void tl_derived_drop(tl_value *v);

/* ---- prints.c ---- */

/* A number for what x of the lasting tape l is made of: the same if only sizes, numbers, views and
 * copies differ. 0: not known. */
uint64_t tl_print_made(tl_tape *l, tl_tensor x);

#endif
