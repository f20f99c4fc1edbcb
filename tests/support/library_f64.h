/* library_f64.h: the library's f64 functions, for references to take in place of correctly rounded
 * ones. */
#ifndef TESTS_SUPPORT_LIBRARY_F64_H
#define TESTS_SUPPORT_LIBRARY_F64_H

#include "tests/ref/ref.h"

extern const ref_f64_table library_f64;

#endif
