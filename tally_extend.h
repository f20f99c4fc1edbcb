/* tally_extend.h: tally.h, and what it takes to bring something of your own: ops, kernels, modules,
 * optimizers, observers, recorders, replacements in graphs; to read and write safetensors; to find
 * the order of a sum. */
#ifndef TALLY_EXTEND_H
#define TALLY_EXTEND_H

#include "tally.h"

#include "autograd/op.h"
#include "autograd/kernel.h"
#include "ops/matmul_kernel.h"
#include "ops/optimize.h"
#include "autograd/author.h"
#include "autograd/observer.h"
#include "autograd/recorder.h"
#include "autograd/replace/pattern.h"
#include "tensor/files/safetensors.h"
#include "tensor/reveal/reveal.h"

#endif
