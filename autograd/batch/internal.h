/* internal.h: what the files of autograd/batch/ share with each other; fold.c has a picture of uses
 * and folds.
 *
 * A use is one input of one node that is a leaf (a parameter, say) or a view of one. A use is
 * deferred if its gradient cannot be added when the walk reaches its node. The tensors from which
 * the gradient is computed are then held until it can be. */
#ifndef TL_BATCH_INTERNAL_H
#define TL_BATCH_INTERNAL_H

#include "autograd/batch.h"

/* A tensor from which the gradient of a use is computed. */
typedef struct {
    const tl_value *like; /* the tensor as the node has it, which has its shape; NULL: absent */
    tl_value *x;          /* the same, or the record that holds it */
    bool read; /* the vjp reads it: it is held until the fold ends; else only its shape counts */
    tl_batch axis; /* that of its samples, or TL_FREE, TL_TOTAL, TL_MIXED */
    int cut; /* the axis along which parts of the fold cut it; -1: each part needs all of it */
} tl_saved;

typedef struct tl_use {
    uint32_t node;
    int input;
    bool by_op;      /* the op's vjp adds to the accumulator; else the engine adds the vjp's dx */
    int n_saved;     /* by_op: the node's inputs, outputs and cotangents; else dx alone */
    tl_saved *saved; /* NULL: no gradient came to the use */
    int64_t samples; /* how many it has; -1: it is added as a whole */
    int64_t each;    /* elements of a sample along its axis */
    bool to_front;   /* samples move to a new first axis, so that nothing is summed before them */
    bool one_by_one; /* to_front, but no dim is left for it, or the op's rule does not take it */
    int leaf_axis;   /* the axis of the input along which the fold's parts are cut */
} tl_use;

/* ---- uses.c ---- */

/* The shape that tl_op_stack_samples gives for x alone. */
tl_status tl_stacked(const tl_array *x, const tl_stack_samples_attrs *at, tl_array *out,
                     tl_err *err);

/* Describes input k of n as a use; the caller sets its node. Holds nothing yet. dy: the cotangents
 * of the node's outputs; NULL: not known yet. dx: the result of the vjp, if the engine adds it. */
tl_status tl_use_of(tl_walk *w, const tl_node *n, int k, const tl_tensor *dy, tl_tensor dx,
                    tl_use *u);
/* Whether one call can fold samples of both. */
bool tl_uses_alike(const tl_tape *t, const tl_use *u, const tl_use *v);
/* Bytes of one sample in all tensors that have to be stacked. */
size_t tl_use_sample_bytes(const tl_use *u);

/* ---- waiting.c ---- */

/* Leaves the fold waiting for tl_accumulate, which calls run. */
void tl_fold_wait(tl_tape *t, tl_fold *f, tl_fold_run *run);

/* ---- lasting.c: the lasting tape ---- */

/* The first value with that print on the lasting tape; NULL if there is none. made: the first that
 * shows how it was made; a value that a checkpoint has named does not. */
tl_value *tl_lasting_find(const tl_tape *l, uint64_t print, bool made);
/* Gives v its print. It is found from now on, unless an earlier value has that print. False,
 * with an error on l, when out of memory. */
bool tl_lasting_place(tl_tape *l, tl_value *v, uint64_t print);

/* The value on the lasting tape that shows how `leaf` was made; NULL if none does. */
const tl_value *tl_derived_made(const tl_tape *t, tl_tensor leaf);
/* 1 + the number of the last change of any parameter from which x, on the lasting tape, is made; 1:
 * there was none. Each change has its own number, so an equal result means that nothing has
 * changed. TL_REMOVED: a parameter has been removed from the model (tl_model_rollback). */
#define TL_REMOVED UINT64_MAX
uint64_t tl_derived_last_change(tl_tape *t, const tl_value *x);
/* Releases the memory that v, on the lasting tape, keeps. */
void tl_derived_drop(tl_value *v);

/* The parameters that a derived value is made of must not change while a gradient waits in it. */
tl_status tl_derived_check(tl_tape *t, tl_tensor leaf);

/* ---- prints.c ---- */

/* A number for the way in which x, on the lasting tape l, is made: the same if only sizes, numbers,
 * views and copies differ. 0: not known, or x is NULL. */
uint64_t tl_print_made(tl_tape *l, const tl_value *x);

#endif
