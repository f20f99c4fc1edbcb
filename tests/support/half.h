/* half.h: parameters of half precision, read with their masters, and numbers rounded by the
 * reference. */
#ifndef TESTS_SUPPORT_HALF_H
#define TESTS_SUPPORT_HALF_H

#include <tally.h>

extern const tl_dtype half_dtypes[2];

/* The bytes of x on t. */
void half_read(tl_tape *t, tl_tensor x, void *to, size_t bytes);
/* The f32 buffer "master...NAME". */
void half_master(tl_tape *t, tl_model *m, const char *name, float *to);
uint16_t half_of(tl_dtype d, float x);
float half_value(tl_dtype d, uint16_t h);

#endif
