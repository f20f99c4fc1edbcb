/* math32.h: the f32 elementary functions, as inline scalar code whose loops vectorise.
 *
 * tl_exp32 tl_exp2_32 tl_expm1_32 tl_log32 tl_log2_32 tl_log1p32 tl_sin32 tl_cos32
 * tl_tanh32 tl_sigmoid32 tl_rsqrt32 tl_sqrt32 tl_erf32, and the powers
 * tl_powm2_32 ... tl_pow3_32: correctly rounded for every input. tl_pow32: under 1 ULP.
 * For whole arrays use the tables of math.h, which try a vector at a time first (math32_try.h). In
 * a loop of your own, sin and cos are the exception that branches (math32_trig.h says how to avoid
 * it); the others are straight code. gcc vectorises such loops under -fno-trapping-math, and square
 * roots need -fno-math-errno with gcc and clang: neither flag changes a bit.
 */
#ifndef TL_KERNELS_MATH32_H
#define TL_KERNELS_MATH32_H

#include "tensor/kernels/math32_erf.h"
#include "tensor/kernels/math32_exp.h"
#include "tensor/kernels/math32_log.h"
#include "tensor/kernels/math32_pow.h"
#include "tensor/kernels/math32_trig.h"

#endif
