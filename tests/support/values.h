/* values.h: for tests of the references - tensors made of values, random ones, and what they must
 * equal. */
#ifndef TESTS_SUPPORT_VALUES_H
#define TESTS_SUPPORT_VALUES_H

#include "tests/ref/ref.h"

#define DIMS(...) \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }
#define VALUES(...) \
    (double[]) { __VA_ARGS__ }
#define FREE(...)                                                                    \
    values_free((int)(sizeof((ref_tensor *[]){__VA_ARGS__}) / sizeof(ref_tensor *)), \
                (ref_tensor *[]){__VA_ARGS__})
void values_free(int n, ref_tensor **t);

/* Always the same sequence: 64 bits; a number in [-1, 1); a tensor of such. */
uint64_t values_random(void);
double values_uniform(void);
ref_tensor values_tensor(ref_dtype dtype, int ndim, const int64_t *dim);

/* The same number with the same sign of zero, or both NaN. */
void assert_value(double got, double want);
/* All of t, which is freed. */
void assert_values(ref_tensor t, ref_dtype dtype, int64_t n, const double *want);
void assert_near(double got, double want, double tolerance);

#endif
