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

/* Whether the vjp is asked now for input k of n, which the fold takes; *acc: what it continues. */
bool tl_fold_asks(tl_walk *w, const tl_node *n, int k, tl_fold *f, tl_tensor *acc);
/* Input k of order[i] is added to its accumulator, if it has not continued that (acc), or put off.
 * dx: what the vjp gave, if it was asked. */
tl_status tl_fold_deliver(tl_walk *w, uint32_t i, int k, const tl_tensor *dy, tl_tensor dx,
                          tl_tensor acc);
/* Node n, order[i], has been visited: what was put off until then is added. */
tl_status tl_fold_visited(tl_walk *w, uint32_t i, const tl_node *n);

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
