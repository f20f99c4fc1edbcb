/* pointwise.h: operands of tile loops, for loops of one op (op.c) and of several
 * (graph/fused.c). */
#ifndef TL_POINTWISE_H
#define TL_POINTWISE_H

#include "tensor/operands.h"

/* An operand while the loop runs: used where it lies, or gathered tile by tile. */
typedef struct {
    tl_array a;  /* of the loop's shape, collapsed */
    bool direct; /* contiguous, of the tile's dtype */
    tl_dtype tile;
} tl_operand;

/* The tiles of a loop, one after the other in memory of this size on the stack, which may be small.
 * More tiles are shorter ones, but all stay where they are fast to reach. */
enum { TL_TILES_BYTES = 16384 };
typedef struct {
    int64_t len;  /* elements of each: at most TL_TILE_LEN */
    size_t bytes; /* from one to the next; a multiple of 64 */
} tl_tiles;
tl_tiles tl_tiles_of(int n, size_t unit); /* of elements of at most `unit` bytes */

/* a must have the loop's shape (tl_array_expand). */
tl_operand tl_operand_of(const tl_array *a, tl_dtype tile);
/* Copies elements [from, from + n) in row-major order between an operand and a contiguous tile: out
 * of it, or into it. */
void tl_operand_move(const tl_operand *o, int64_t from, int64_t n, void *tile, bool store);

#endif
