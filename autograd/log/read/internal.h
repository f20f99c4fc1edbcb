/* internal.h: shared by the files that read logs: parameters matched by name, and how two tensors
 * differ. Private to this room. */
#ifndef TL_LOG_READ_INTERNAL_H
#define TL_LOG_READ_INTERNAL_H

#include "autograd/log/read/read.h"
#include "tensor/array.h"

/* ---- compare.c ---- */

/* Parameters of two steps, or their updates, matched by name. */
typedef struct {
    int same;     /* of one shape and dtype in both */
    int reshaped; /* of another shape or dtype */
    int differ;   /* of both kinds: with other values */
    int only[2];  /* in a alone, in b alone */
    /* the first in the step that is reshaped, in a and in b, and the first that is in one alone */
    const tl_log_def *reshaped_def[2], *only_def[2];
} tl_log_names;
/* TL_ENOMEM: none is matched. */
tl_status tl_log_match_names(tl_log_names *m, const tl_logged_step *a, const tl_logged_step *b,
                             bool updates);

/* ---- values.c ---- */

enum { TL_ULP_BUCKETS = 66, TL_PICTURE_ROWS = 16, TL_PICTURE_COLUMNS = 64 };

typedef struct {
    int64_t count, differ;
    int64_t first; /* row-major index of the first that differs; -1: none */
    /* Of those that differ: [0] a NaN against a number, or no floats; [1] 1 ULP, [2] 2,
     * [3] 3 to 4, [4] 5 to 8, [k] up to 2^(k-1). +0 and -0 are 1 apart here: they are other bits.
     */
    int64_t ulps[TL_ULP_BUCKETS];
    /* The tensor as a table, its last axis across and all others down, in cells of cell_height by
     * cell_width elements; the last may be smaller. cell: how many elements of a cell differ; of:
     * how many it has. */
    int rows, columns;
    int64_t cell_height, cell_width;
    int64_t cell[TL_PICTURE_ROWS][TL_PICTURE_COLUMNS], of[TL_PICTURE_ROWS][TL_PICTURE_COLUMNS];
} tl_value_difference;

/* Compares a with b: same shape, same dtype, any strides (TL_ESHAPE, TL_EDTYPE). NaNs are alike. */
tl_status tl_value_compare(tl_value_difference *d, const tl_array *a, const tl_array *b,
                           tl_err *err);

/* Units in the last place between two elements of a floating dtype, 0 for equal bits or two NaNs;
 * UINT64_MAX when one is NaN. */
uint64_t tl_ulp_distance(tl_dtype d, const void *a, const void *b);

/* Prints the first element that differs, a histogram of distances, and where they lie. */
void tl_value_show(FILE *f, const tl_value_difference *d, const tl_array *a, const tl_array *b);

#endif
