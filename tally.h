/* tally.h: everything a program needs. Link with -ltally (README.md).
 *
 * Read it from the top: the ops; the layers, models and optimizers made of them; the tape, which
 * records and differentiates; the model, which owns parameters; then the rest. Include
 * tally_data.h for data and batches, tally_extend.h for ops, kernels, ... of your own.
 *
 * What holds everywhere:
 *   Errors   The first one sticks to its tape, model or optimizer, with the numbers in it and, of
 *            macros, the caller's file and line: see tl_failed and tl_error. A call that fails
 *            returns its status, or else the zero handle, NULL, NaN, or what its comment says. Any
 *            call may run out of memory (TL_ENOMEM), or be given a stale handle (TL_ESTALE), what
 *            does not fit (TL_ESHAPE, TL_EDTYPE, TL_EDOMAIN, TL_EINDEX), or NULL (TL_EDOMAIN,
 *            TL_ENAME, TL_EUSAGE; of an object TL_ENOMEM); comments list what else is expected.
 *   Memory   Pointers are borrowed for the time of the call unless a comment says otherwise.
 *            Tensors, text and arrays that come from a tape last until its reset; what comes from
 *            a model lasts as long as the model.
 *   Macros   tl_f(t, ...) is tl_f_at(TL_AT(t), ...): it passes on the place of the call. The
 *            arguments at the end are options, .name = value; one left out is 0, its default (of
 *            none at all -pedantic warns before C23). An array written in the call may need
 *            parentheses of its own: ((int64_t[]){0, 9}); g++ wants one with a name.
 *   Threads  A tape is one thread's at a time. Several threads may each run a tape over one model
 *            and make its parameters together; in tl_step, tl_model_freeze and what writes to it or
 *            loads, no other may use it. A child forked while threads are in calls just execs. */
#ifndef TALLY_H
#define TALLY_H

#define TL_VERSION "0.1.0"

#include "ops/ops.h"
#include "nn/nn.h"
#include "autograd/tape.h"
#include "autograd/model.h"
#include "autograd/check/gradcheck.h"
#include "autograd/graph/graph.h"
#include "autograd/log/log.h"
#include "tensor/process.h"
#include "tensor/elementary.h"

#endif
