/* patterns.h: what the files of ops/patterns/ share. Each replacement is a constant struct, listed in shipped.c. */
#ifndef TL_OPS_PATTERNS_H
#define TL_OPS_PATTERNS_H

#include "autograd/graph/pattern.h"
#include "ops/ops.h"

extern const tl_replacement tl_replace_add_rms_norm, tl_replace_swiglu;

#define TL_COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

#endif
