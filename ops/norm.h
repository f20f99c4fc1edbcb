/* norm.h: what rms_norm and layer_norm share (norm.c) - their shape rule; the shape rule, forward
 * and vjps of their fused gradients; the gradient from mean and rstd. Private to ops/. */
#ifndef TL_OPS_NORM_H
#define TL_OPS_NORM_H

#include "ops/build.h"

/* ---- rms_norm and layer_norm; their attributes are the kernel's (kernels/rows.h) ---- */

/* For tl_norm_attrs.k: as many dims as the weights have, 1 without any. The shape rule settles it.
 */
#define TL_BY_WEIGHT INT64_MIN
extern const tl_attr tl_norm_schema[];

/* Settles attrs.k and an eps of NaN, checks input 0 and the attributes against the weights, which
 * may be NULL, and sets the first two outputs: y is like input 0; a statistic of each row has 1 for
 * the normalized dims, in the compute type. */
tl_status tl_norm_shape(tl_call *c, const tl_array *gamma, const tl_array *beta);

/* dx plus what the cotangents of mean and rstd, if they have any, add to it (NUMERICS 6.12). dx,
 * dmean, drstd and, for rms_norm, mean may be TL_NONE. */
tl_tensor tl_norm_stats_grad(tl_vjp *g, tl_tensor x, tl_tensor mean, tl_tensor rstd,
                             tl_tensor dmean, tl_tensor drstd, tl_tensor dx);
/* The gradient of weight i where y has no cotangent: its accumulator as it stands, or zeros. */
tl_tensor tl_norm_no_grad(tl_vjp *g, int i);

/* ---- rms_norm_grad and layer_norm_grad: (dy, x, gamma?, [mean,] rstd, acc?) -> dgamma, dx ---- */

typedef struct {
    int64_t k;
    bool want_dx, want_dgamma, plus_one;
} tl_norm_grad_attrs;
extern const tl_attr tl_norm_grad_schema[];

/* dgamma has gamma's shape, in the accumulator or the compute type; dx is like x. An output that is
 * not wanted is empty. */
tl_status tl_norm_grad_shape(tl_call *c);
/* dgamma continues acc, if given. */
tl_status tl_norm_grad_forward(tl_call *c);
/* Samples are rows of dx, and dgamma is their total. */
void tl_norm_grad_batch(const tl_call *c, const tl_batch *in, tl_batch *out);
void tl_rms_norm_grad_vjp(tl_vjp *v);
void tl_layer_norm_grad_vjp(tl_vjp *v);

#endif
