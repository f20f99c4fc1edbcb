/* print.h: arrays as people read them.
 *
 *     [[ 1.0000, -2.5000,     nan],
 *      [ 0.0000,  3.1416,     inf]]
 *     [2, 3] f32
 *
 * As torch does it: floats with 4 decimals; "1." when all of them are whole;
 * scientific (1.0000e-05) when the largest magnitude exceeds 1e8 or 1000 times the
 * smallest, or - if not all are whole - the smallest is below 1e-4 (zeros, infinities
 * and NaNs do not count); integers plainly; true and false. Columns are aligned,
 * lines broken at 80. Beyond 1000 elements every dim longer than 6 shows 3 at each
 * end and "..." between; the format is chosen by what is shown. The last line is
 * shape and dtype. The text does not depend on the locale and ends in a newline.
 */
#ifndef TL_PRINT_H
#define TL_PRINT_H

#include <stdio.h>

#include "tensor/array.h"

/* Writes a, which may have any strides, to f. Errors: TL_EDTYPE, TL_ETRACED (a has elements, but no
 * data), TL_EIO. */
tl_status tl_array_print(FILE *f, const tl_array *a, tl_err *err);

/* An element of that dtype as text, with digits enough to tell any two apart; returns buf. */
enum { TL_ELEMENT_TEXT = 40 };
const char *tl_element_text(char buf[TL_ELEMENT_TEXT], tl_dtype d, const void *p);

#endif
