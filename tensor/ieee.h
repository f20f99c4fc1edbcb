/* ieee.h: included first by the build in every source (-include). Flags that change arithmetic are
 * overridden by the Makefile's own, which come last; what gets through all the same - another build
 * system, a flag that cannot be taken back - stops the build here, with the reason. */
#ifndef TL_IEEE_H
#define TL_IEEE_H

#if defined(__FAST_MATH__) || defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "Tally's bits need IEEE arithmetic: build without -ffast-math and -ffinite-math-only"
#endif
#if defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error "Tally's bits need every operation as written: build without -funsafe-math-optimizations"
#endif
#if !defined(__FLT_EVAL_METHOD__) || __FLT_EVAL_METHOD__ != 0
#error "Tally's bits need floats evaluated as float: FLT_EVAL_METHOD 0, so no -mfpmath=387"
#endif

_Static_assert(sizeof 1.0 == sizeof(double),
               "Tally's bits need double constants: build without -fsingle-precision-constant");
_Static_assert(sizeof(float) == 4 && sizeof(double) == 8,
               "Tally's bits need binary32 and binary64");

#endif
