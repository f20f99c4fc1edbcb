/* convert.h: moves elements between an array of any strides and storage dtype and contiguous memory
 * in a compute type, by tiles for the loops of pointwise ops, or all at once. For all rooms. */
#ifndef TL_CONVERT_H
#define TL_CONVERT_H

#include "tensor/array.h"

/* An operand of a loop, read (or written) in place or tile by tile. */
typedef struct {
    tl_array a;    /* in the loop's shape, collapsed */
    bool direct;   /* contiguous and of the tile's dtype: used in place */
    bool constant; /* the same element everywhere: one tile serves the whole loop */
    tl_dtype tile;
} tl_operand;

/* a must have the loop's shape (tl_array_expand). */
tl_operand tl_operand_of(const tl_array *a, tl_dtype tile);
/* Copies elements [from, from + n), in row-major order, from the operand into a contiguous tile;
 * with `store`, from the tile into the operand. */
void tl_operand_move(const tl_operand *o, int64_t from, int64_t n, void *tile, bool store);
/* The same for all elements of a, on all threads. */
void tl_operand_copy(const tl_array *a, tl_dtype tile, void *copy, bool store);

#endif
