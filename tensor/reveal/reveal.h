/* reveal.h: the order in which a function adds, found from outside. Public.
 *
 * All that need be known of the function is that it sums its n terms by additions that round, in an
 * order that depends on n alone. One term is made huge, a second its negative, and all others a
 * small unit. Units that meet the huge value before its negative does are swallowed, so the result
 * counts the others, and n less that count is the number of terms below the addition in which the
 * two meet. These numbers for all pairs give the tree; a left fold or a balanced tree takes about n
 * calls, no order more than n^2/2. Values added several at a time in one rounding (by fused
 * instructions that drop what is too small) are one node.
 *
 * Source: Xie, Gao, Xue 2024, "FPRev: Revealing the Order of Floating-Point Summation" (the idea).
 */
#ifndef TL_REVEAL_H
#define TL_REVEAL_H

#include "tensor/array.h"
#include "tensor/reveal/order.h"
TL_BEGIN

/* Sums x[0 .. n), of the dtype asked for: powers of two with a sign. Returns the sum in the scale
 * of its terms, so a mean is multiplied by its count first. */
typedef double tl_sum_fn(void *ctx, int64_t n, const void *x);

/* Sets *order, which the caller frees, to the order in which sum adds n terms (n >= 1) of a float
 * dtype. Works for accumulators up to f64 and long double; of f16, up to f32. A result rounded to
 * bf16 counts at most 256 terms, to f16 2048. TL_EDTYPE. TL_EDOMAIN: n < 1, or no tree gives what
 * sum returns (it overflows, does not round, leaves terms out, or orders them by their values); the
 * message has the numbers. */
tl_status tl_reveal_order(tl_sum_fn *sum, void *ctx, tl_dtype dtype, int64_t n, tl_order **order,
                          tl_err *err);
TL_END
#endif
