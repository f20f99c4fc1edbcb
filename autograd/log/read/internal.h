/* internal.h: the inside of a log that has been read, what its results are called, and how two
 * tensors differ. Private to this room. */
#ifndef TL_LOG_READ_INTERNAL_H
#define TL_LOG_READ_INTERNAL_H

#include "autograd/log/read/read.h"
#include "tensor/array.h"

/* ---- fields.c ---- */

/* The n bytes at s as a key; 0 if they are none. */
uint64_t tl_log_key_parse(const char *s, size_t n);
/* %XX back into bytes, in place. */
void tl_log_decode(char *s);
/* A whole number at *s, which moves behind it; false if there is none or it is too large. */
bool tl_log_whole(const char **s, int64_t *x);
/* d->shape into parts, rows, last and tail; false if it is no shape. */
bool tl_log_shape_parse(tl_log_def *d);
/* The keys in "f1,-,b3.1", at most room of them, into in; their number, -1 if they are no keys. */
int tl_log_inputs_parse(const char *s, uint64_t *in, int room);

/* ---- report.c ---- */

enum { TL_WORDS = 512, TL_LOG_SHAPE = 256 };

/* A parameter, buffer or data: computed by no op. */
bool tl_log_is_leaf(const tl_log_def *d);
/* "[12, 64, 128]", or "scalar"; parts: and in how many it came. Returns buf. */
const char *tl_log_shape_text(char buf[TL_LOG_SHAPE], const tl_log_def *d, bool parts);
/* "matmul in the backward of rms_norm (f5): the gradient of w"; s: the step that d is of. Returns
 * buf. */
const char *tl_log_words(char buf[TL_WORDS], const tl_logged_step *s, const tl_log_def *d);

/* ---- compare.c ---- */

/* Parameters of two steps, matched by name. */
typedef struct {
    int same;                          /* of the same shape and dtype, */
    int other_bytes;                   /* of these: with other values, */
    int reshaped;                      /* of another shape or dtype, */
    int only[2];                       /* in a alone, in b alone */
    const tl_log_def *reshaped_def[2]; /* the first of each kind */
    const tl_log_def *only_def[2];
} tl_log_parameters;
/* TL_ENOMEM. */
tl_status tl_log_match_parameters(tl_log_parameters *p, const tl_logged_step *a,
                                  const tl_logged_step *b);

/* Parameters whose updates are in both steps, by name, and how many of them came out otherwise.
 * TL_ENOMEM: none. */
tl_status tl_log_match_updates(const tl_logged_step *a, const tl_logged_step *b, int *n,
                               int *differ);

/* ---- values.c ---- */

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

/* Prints the first element that differs, how far apart how many are, and where they lie.
 */
void tl_value_show(FILE *f, const tl_value_difference *d, const tl_array *a, const tl_array *b);

#endif
