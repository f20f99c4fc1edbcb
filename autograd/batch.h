/* batch.h: what the engine asks of autograd/batch/, the room that knows how values depend on
 * samples. */
#ifndef TL_AUTOGRAD_BATCH_H
#define TL_AUTOGRAD_BATCH_H

#include "autograd/internal.h"

/* ---- rules.c ---- */

/* Of a call that is shaped and has an input that depends on the batch; in: room. like: part and
 * samples of the outputs. */
void tl_batch_infer(tl_call *c, tl_value *const *value, tl_batch *in, tl_batch *out,
                    tl_value *like);
/* Why gradients behind a node of op, with inputs in[] (records: value[], NULL for absent ones)
 * depend on the split into micro-batches; false if they do not, or if a node before
 * it is to blame. b: mixed if any output is, else output 0's. */
bool tl_batch_blames(const tl_tape *t, const tl_op *op, const tl_tensor *in, tl_value *const *value,
                     int n_in, tl_batch b, char why[TL_MESSAGE_MAX]);

/* ---- fold.c: what comes to a leaf, added to its accumulators ---- */

/* Input k of n gives when it is visited: there is no other use, and its samples come first. dx:
 * what its vjp gave, where the engine folds. */
bool tl_fold_now(const tl_tape *t, const tl_node *n, int k, const tl_fold *f, tl_tensor dx);
/* The accumulator as a value of the tape, seen as x sees the leaf. */
tl_tensor tl_fold_accumulator(tl_walk *w, tl_fold *f, const tl_node *n, int k);
/* Continues acc with x, which broadcasts to input k of n. */
tl_status tl_fold_sum(tl_walk *w, const tl_node *n, int k, tl_tensor x, tl_tensor acc);
/* Input k of order[i] is put off; dx: what its vjp gave, where the engine folds. */
tl_status tl_fold_put(tl_walk *w, uint32_t i, int k, const tl_tensor *dy, tl_tensor dx);
/* All of a fold's uses have been visited. */
tl_status tl_fold_run(tl_walk *w, tl_fold *f);

/* ---- prints.c: the programs of a step's micro-batches ---- */

/* The program is that of the micro-batches before, where nobody has asked for others. */
tl_status tl_prints_check(tl_walk *w);
/* Before an optimizer's step, and at a reset: so many backwards are over. */
tl_status tl_prints_step(tl_at at);
void tl_prints_end(tl_tape *t);
void tl_prints_clear(tl_tape *t);
/* At a run of a graph: what its trace left. */
tl_status tl_prints_run(tl_at at, const tl_prints *p);
void tl_prints_free(tl_prints *p);

#endif
