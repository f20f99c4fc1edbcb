/* math_sources.h: what the f32 functions are compiled from, as one hash. The runs over all 2^32
 * inputs (tests/exhaustive.c) hold for these sources: tests/golden/math32.txt has the hash of those
 * that were run. */
#ifndef TL_TEST_MATH_SOURCES_H
#define TL_TEST_MATH_SOURCES_H

#include <stdbool.h>

#include "tensor/files/hash.h"

/* SHA-256 over tensor/kernels/math.k.c and every file of ours that it includes, in the order in
 * which they are first included, and over the lines of the Makefile that guard the bits or choose a
 * vector level. False when one cannot be read. */
bool tl_math_sources(char hex[TL_SHA256_HEX]);

/* True when tests/golden/math32.txt has the line "NAME HEX". */
bool tl_math_golden(const char *name, const char *hex);

#endif
