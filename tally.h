/* tally.h: everything a program needs. Link with -ltally (see README.md).
 *
 * To be read from the top: the ops, layers and optimizers made of them, the tape that records and
 * differentiates, the model that owns parameters; then what else there is. Ops, kernels, observers
 * and replacements of your own: tally_extend.h. */
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
#include "tensor/threads.h"
#include "tensor/rng.h"
#include "tensor/elementary.h"

#endif
