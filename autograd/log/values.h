/* values.h: how two tensors of one shape differ - how many elements, which first, by how
 * many units in the last place, and where. */
#ifndef TL_LOG_VALUES_H
#define TL_LOG_VALUES_H

#include <stdio.h>

#include "tensor/array.h"

enum { TL_ULP_BUCKETS = 66, TL_PICTURE_ROWS = 16, TL_PICTURE_COLUMNS = 64 };

typedef struct {
    int64_t count, differ;
    int64_t first; /* row-major index of the first that differs; -1: none */
    /* Of those that differ: [0] a NaN against a number, or no floats; [1] 1 ULP, [2] 2,
     * [3] 3 to 4, [4] 5 to 8, [k] up to 2^(k-1). +0 and -0 are 1 apart here: they are other bits.
     */
    int64_t ulps[TL_ULP_BUCKETS];
    /* The tensor as a table, its last axis across, all others down, in cells: how many elements
     * of each cell there are and differ. */
    int rows, columns;
    int64_t cell[TL_PICTURE_ROWS][TL_PICTURE_COLUMNS], of[TL_PICTURE_ROWS][TL_PICTURE_COLUMNS];
    int64_t cell_height, cell_width; /* elements; the last cells may be smaller */
} tl_value_difference;

/* Compares a with b: same shape, same dtype, any strides (TL_ESHAPE, TL_EDTYPE). NaNs are alike. */
tl_status tl_value_compare(tl_value_difference *d, const tl_array *a, const tl_array *b,
                           tl_err *err);

/* Units in the last place between two elements of a floating dtype, 0 for equal bits or two NaNs;
 * UINT64_MAX when one is NaN. */
uint64_t tl_ulp_distance(tl_dtype d, const void *a, const void *b);

/* An element of that dtype as text that tells any two apart; returns buf. */
enum { TL_ELEMENT_TEXT = 40 };
const char *tl_element_text(char buf[TL_ELEMENT_TEXT], tl_dtype d, const void *p);

/* Prints the first element that differs, how far apart how many are, and where they lie (show.c).
 */
void tl_value_show(FILE *f, const tl_value_difference *d, const tl_array *a, const tl_array *b);

#endif
