/* norm.h: what rms_norm, layer_norm and their gradients share - shape rules, the fold that makes
 * dgamma, sums in vjps. Defined in rms_norm.c. Private to ops/. */
#ifndef TL_OPS_NORM_H
#define TL_OPS_NORM_H

#include "ops/build.h"

/* Normalized dims that the shape rule settles: those of the weights, 1 without any. */
#define TL_BY_WEIGHT INT64_MIN

typedef struct {
    int64_t k;
    bool want_dx, want_dgamma, plus_one;
} tl_norm_grad_attrs;

extern const tl_attr tl_norm_schema[], tl_norm_grad_schema[];

/* The rule for `batch` of a norm's gradient: samples are rows, and dgamma adds up. */
void tl_norm_grad_batch(const tl_call *c, const tl_batch *in, tl_batch *out);

/* Shape rule of a norm of input 0. Its optional inputs are gamma and beta; output 0 is as x, then
 * comes rstd or, with beta, mean and rstd: x's rank, the k dims as 1, the compute type. */
tl_status tl_norm_shape(tl_call *c);
/* Of a gradient (dy, x, gamma?, ...): dgamma in the accumulator (NULL: none) or the compute type,
 * dx in x's. What is not wanted is empty. */
tl_status tl_norm_grad_shape(tl_call *c, const tl_array *acc);

/* The forward of such a gradient: rows makes dx, columns folds dgamma, continuing acc if there is
 * one (kernels/rows.h). mean may be NULL. */
tl_status tl_norm_grad_run(tl_call *c, const tl_array *mean, const tl_array *rstd,
                           const tl_array *acc, tl_range_fn *rows, tl_range_fn *columns);
/* What the vjps of both gradients end with: of dy, cg*weight + w*h (weight, w: NONE without), and
 * of gamma, cg*dy. */
void tl_norm_grad_ends(tl_vjp *v, tl_tensor cg, tl_tensor weight, tl_tensor w, tl_tensor h);

/* x summed over its last k dims, kept as 1. */
tl_tensor tl_norm_row_sum(tl_tape *t, tl_tensor x, int64_t k);
/* 1 / the elements of a row of x. */
double tl_norm_inverse(tl_tape *t, tl_tensor x, int64_t k);

/* dx plus what the cotangents of the mean and of rstd bring to x (NUMERICS 6.12); dx, dmean, drstd
 * and, without a mean, mean may be NONE. */
tl_tensor tl_norm_stats_grad(tl_vjp *g, tl_tensor x, tl_tensor mean, tl_tensor rstd,
                             tl_tensor dmean, tl_tensor drstd, tl_tensor dx);
/* The gradient of input i where nothing comes to it: its accumulator as it stands, or zeros. */
tl_tensor tl_norm_nothing(tl_vjp *g, int i);

#endif
