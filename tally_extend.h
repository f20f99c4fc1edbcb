/* tally_extend.h: tally.h, and what programs need that bring something of their own: ops, kernels,
 * replacements in graphs, observers, recorders, optimizers, files; and the order of a sum. */
#ifndef TALLY_EXTEND_H
#define TALLY_EXTEND_H

#include "tally.h"

#include "autograd/op.h"
#include "autograd/kernel.h"
#include "ops/matmul_kernel.h"
#include "ops/optimize.h"
#include "autograd/object.h"
#include "autograd/observer.h"
#include "autograd/recorder.h"
#include "autograd/replace/pattern.h"
#include "tensor/files/safetensors.h"
#include "tensor/reveal/reveal.h"

#endif
