/* reveal.h: the order in which a function adds, found from outside. Public.
 *
 * Nothing need be known of the function but that it sums its n terms by rounding additions in an
 * order that depends on n alone. Of two terms one is made huge and the other its negative, all
 * others are a small unit: what meets the huge value before its negative does is swallowed, so the
 * result counts the units that come later, and n less that count is the number of terms below the
 * addition in which the two meet. All pairs' numbers give the tree; a left fold or a balanced tree
 * takes about n calls, no order more than n^2/2. Several values added in one rounding (fused
 * instructions that drop what is too small) are one node of several parts.
 *
 * Source: the idea is published as FPRev: Xie, Gao and Xue 2024, "FPRev: Revealing the Order of
 *         Floating-Point Summation". The code here is Tally's own. */
#ifndef TL_REVEAL_H
#define TL_REVEAL_H

#include "tensor/array.h"
#include "tensor/reveal/order.h"
TL_BEGIN

/* Sums x[0 .. n), of the dtype asked for; the values are powers of two with a sign. The sum comes
 * back as a double, scaled as the terms are: a mean is multiplied by its count first. */
typedef double tl_sum_fn(void *ctx, int64_t n, const void *x);

/* The order in which sum adds n terms (n >= 1) of a float dtype into *order, which the caller
 * frees. Masks reach sums whose accumulator is as wide as f64 or long double, f16 up to f32. A
 * result rounded to bf16 can count no more than 256 terms, to f16 2048. Errors: TL_EDTYPE;
 * TL_EDOMAIN: n < 1, or what sum returns is the sum by no tree (it overflows, does not round,
 * leaves terms out, or changes its order with the values; the message has the numbers);
 * TL_ENOMEM. */
tl_status tl_reveal_order(tl_sum_fn *sum, void *ctx, tl_dtype dtype, int64_t n, tl_order **order,
                          tl_err *err);
TL_END
#endif
