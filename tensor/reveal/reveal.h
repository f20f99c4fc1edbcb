/* reveal.h: finds from outside the order in which a function adds. Public.
 *
 * The function need only sum its n terms by additions that round, in an order that depends on n
 * alone. One term is made huge, a second one its negative, and all others a small unit. Units that
 * meet the huge value before its negative does are swallowed, so the result counts the other units,
 * and n minus that count is the number of terms under the addition in which the two meet. These
 * numbers for all pairs determine the tree. A left fold takes about n calls, a balanced tree
 * log2(n) * n/2, none more than n^2/2 (and 64 to check it). Several values that are added with one
 * rounding (by fused instructions, which drop what is too small) become one node.
 *
 * Source: Xie, Gao, Xue 2024, "FPRev: Revealing the Order of Floating-Point Summation" (the idea).
 */
#ifndef TL_REVEAL_H
#define TL_REVEAL_H

#include "tensor/array.h"
#include "tensor/reveal/sum_tree.h"
TL_BEGIN

/* Sums x[0 .. n), which are powers of two with a sign, of the dtype asked for. Returns the sum in
 * the scale of its terms; a mean must be multiplied by its count first. */
typedef double tl_sum_fn(void *ctx, int64_t n, const void *x);

/* Sets *order, for tl_order_free, to the order in which sum adds n >= 1 terms of a float
 * dtype. It works for accumulators up to f64 and long double, and for f16 up to f32. A result that
 * is rounded to bf16 can count at most 256 terms, one rounded to f16 at most 2048. TL_EDTYPE: not a
 * float. TL_EDOMAIN: n < 1, or no tree explains what sum returns (it overflows, does not round,
 * leaves terms out, or orders them by their values); the message has the numbers. */
tl_status tl_reveal_order(tl_sum_fn *sum, void *ctx, tl_dtype dtype, int64_t n, tl_order **order,
                          tl_err *err);
TL_END
#endif
