/* math64.h: the f64 elementary functions, as inline scalar code whose loops vectorise.
 *
 * The same names as math32.h with 64 in place of 32, and tl_pow64(x, y). Each is a
 * fixed sequence of IEEE operations with an error under 1 ULP: claimed, and
 * sampled against MPFR by tests/test_math.c. For whole arrays use math.h's tables.
 */
#ifndef TL_KERNELS_MATH64_H
#define TL_KERNELS_MATH64_H

#include "tensor/kernels/math64_erf.h"
#include "tensor/kernels/math64_exp.h"
#include "tensor/kernels/math64_log.h"
#include "tensor/kernels/math64_pow.h"
#include "tensor/kernels/math64_trig.h"

#endif
