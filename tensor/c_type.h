/* c_type.h: the C type of the elements that a pointer or an array holds, known when it is compiled,
 * so that data of another type than its dtype is refused. */
#ifndef TL_C_TYPE_H
#define TL_C_TYPE_H

#include <stdbool.h>

#include "tensor/array.h"

/* clang-format off */

/* A pointer to elements, an array of them, rows of an array of arrays; and a pointer to pointers,
 * which holds no elements however many there are. */
#define TL_C_CASE(type)                                                             \
    type *: #type,   const type *: #type,   type (*)[]: #type,   const type (*)[]: #type, \
    type **: #type " *",   type *const *: #type " *",                               \
    const type **: #type " *",   const type *const *: #type " *",
#define TL_C_CASES                                                                      \
    TL_C_CASE(float) TL_C_CASE(double) TL_C_CASE(_Bool) TL_C_CASE(signed char)          \
    TL_C_CASE(short) TL_C_CASE(int) TL_C_CASE(long)                                     \
    TL_C_CASE(unsigned char) TL_C_CASE(unsigned short) TL_C_CASE(unsigned)              \
    TL_C_CASE(unsigned long) TL_C_CASE(long long) TL_C_CASE(unsigned long long)

/* "float" for float *, float[6], float[2][3] and float[2][3][4], const or not. NULL, not checked, for
 * void * and char *, which may be bytes of anything, for arrays of more dims and for other types.
 * data is not evaluated. */
#define TL_C_TYPE(data)                                                                     \
    _Generic((data), TL_C_CASES void *: (const char *)0, const void *: (const char *)0,     \
        default: _Generic(*_Generic((data), void *: "", const void *: "", default: (data)), \
            TL_C_CASES default: (const char *)0))

/* clang-format on */

/* TL_EDTYPE where elements of that C type are not how dtype is stored: float is F32, double F64,
 * 64-bit integers I64, unsigned short F16 and BF16, bool and unsigned char BOOL. */
tl_status tl_c_type_check(const char *c_type, tl_dtype dtype, tl_err *err);

#endif
