/* math.h: elementary functions over arrays, one table of them per vector level.
 *
 * table.exp32(n, x, y) computes y[i] = exp(x[i]) for i < n. x and y are the same
 * array or do not overlap; any alignment; n may be 0. A value depends on its
 * input alone, not on n, on its place in the array or on the level: every table
 * gives the same bits (NaN results apart: which NaN is not promised).
 * f32 functions are correctly rounded, f64 ones err by less than 1 ULP.
 * pow32 and pow64 raise to one constant exponent e: correctly rounded in f32
 * for e = -2 -1 -1/2 0 1/2 1 3/2 2 3, under 1 ULP otherwise.
 * No errors are reported: an argument outside a domain gives NaN.
 */
#ifndef TL_KERNELS_MATH_H
#define TL_KERNELS_MATH_H

#include <stdint.h>

/* A stem that ends in a digit carries an underscore to part it from the 32 or 64: exp2_32. */
/* clang-format off */
#define TL_MATH_LIST(X)                                                                          \
    X(exp) X(exp2_) X(expm1_) X(log) X(log2_) X(log1p) X(sin) X(cos) X(tanh) X(sigmoid) X(rsqrt) \
    X(sqrt) X(erf)
/* clang-format on */

typedef void tl_math32_fn(int64_t n, const float *x, float *y);
typedef void tl_math64_fn(int64_t n, const double *x, double *y);

#define TL_MATH_MEMBERS(f) \
    tl_math32_fn *f##32;   \
    tl_math64_fn *f##64;
typedef struct {
    TL_MATH_LIST(TL_MATH_MEMBERS)
    void (*pow32)(int64_t n, const float *x, double e, float *y);
    void (*pow64)(int64_t n, const double *x, double e, double *y);
} tl_math_table;
#undef TL_MATH_MEMBERS

/* Only those levels exist that the build compiled. */
extern const tl_math_table tl_math_table_scalar, tl_math_table_v2, tl_math_table_v3,
    tl_math_table_v4, tl_math_table_neon;

#endif
