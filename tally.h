/* tally.h: everything a program needs. Link with -ltally (see README.md). */
#ifndef TALLY_H
#define TALLY_H

#define TL_VERSION "0.1.0"

#include "autograd/check/gradcheck.h"
#include "autograd/log/log.h"
#include "autograd/graph/graph.h"
#include "autograd/replace/pattern.h"
#include "autograd/kernel.h"
#include "autograd/model.h"
#include "autograd/object.h"
#include "autograd/observer.h"
#include "autograd/recorder.h"
#include "autograd/op.h"
#include "autograd/tape.h"
#include "nn/nn.h"
#include "ops/matmul_kernel.h"
#include "ops/ops.h"
#include "ops/optimize.h"
#include "tensor/elementary.h"
#include "tensor/reveal/reveal.h"
#include "tensor/rng.h"
#include "tensor/files/safetensors.h"
#include "tensor/threads.h"

#endif
