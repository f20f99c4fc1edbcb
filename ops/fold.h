/* fold.h: the two ways a sum runs over an array (NUMERICS 3): lanes within rows,
 * an f64 left fold across them. Private to ops/. */
#ifndef TL_OPS_FOLD_H
#define TL_OPS_FOLD_H

#include "ops/build.h"

/* Sums the last n_row dims of x by lanes. out: contiguous, x's compute type, x's other dims. */
tl_status tl_sum_rows(tl_call *c, const tl_array *x, int n_row, const tl_array *out);

/* acc (f64, any strides, x's ndim with sizes 1 where elements meet) continues with
 * x's elements in row-major order. */
tl_status tl_fold_into(tl_call *c, const tl_array *x, const tl_array *acc);

/* Rounds contiguous f64 values, each divided by *n first if n is given, once to out (contiguous).
 */
void tl_round_from_f64(const double *x, const double *n, const tl_array *out);

#endif
