/* norm.h: what rms_norm and layer_norm share (norm.c): their shape rule and their gradient.
 * Private to ops/. */
#ifndef TL_OPS_NORM_H
#define TL_OPS_NORM_H

#include "ops/build.h"

/* Their attributes are the kernel's (kernels/rows.h). For k: as many dims as the weights have, 1
 * without any. The shape rule settles it. */
#define TL_BY_WEIGHT INT64_MIN
extern const tl_attr tl_norm_schema[];

/* Settles attrs.k and an eps of NaN, checks input 0 and the attributes against the weights, which
 * may be NULL, and sets the first two outputs: y is like input 0; a statistic of each row has 1 for
 * the normalized dims, in the compute type. */
tl_status tl_norm_shape(tl_call *c, const tl_array *gamma, const tl_array *beta);

/* The vjp of rms_norm, whose outputs are y and rstd, or (layer) of layer_norm, which has the mean
 * between them. x is the value that was normalized, and input `gamma` its weight. Returns dx, or
 * TL_NONE if it is not wanted; sets dx[gamma]. */
tl_tensor tl_norm_gradient(tl_vjp *g, tl_tensor x, int gamma, bool layer, bool want_dx);
/* The gradient of weight i where y has no cotangent: its accumulator as it stands, or zeros. */
tl_tensor tl_norm_no_grad(tl_vjp *g, int i);

/* Attributes of rms_norm_grad and layer_norm_grad. */
typedef struct {
    int64_t k;
    bool want_dx, want_dgamma, plus_one;
} tl_norm_grad_attrs;

#endif
