/* pointwise.h: the tiles of a loop of one pointwise op or of several fused ones (graph/fused.c);
 * whole operands converted to the compute type, for other ops; and the loops of ops by rows. Ops
 * that gather piece by piece (a patch, a panel, a column) convert what they gather, by the same
 * loops (convert in tensor/isa.h). */
#ifndef TL_POINTWISE_H
#define TL_POINTWISE_H

#include "autograd/op.h"
#include "tensor/convert.h"
#include "tensor/storage.h"

/* The tiles of a loop. All together have TL_TILES_BYTES on the stack, which may be small, and so
 * stay in the fastest cache: the more there are, the shorter each is. */
enum { TL_TILES_BYTES = 16384 };
typedef struct {
    int64_t len;  /* elements of a tile: at most TL_TILE_LEN */
    size_t bytes; /* from one tile to the next; a multiple of 64 */
} tl_tiles;
/* n tiles whose elements have at most `unit` bytes. */
tl_tiles tl_tiles_of(int n, size_t unit);

/* Scratch memory, released when the call has run; NULL, with an error, when there is none. */
void *tl_scratch(tl_call *c, size_t bytes, bool zeroed);
/* Lays an array of that dtype and those dims out row-major in scratch memory. */
tl_status tl_scratch_array(tl_call *c, tl_array *a, bool zeroed);
/* Sets *out to a in row-major order and in the compute type: a itself if it is so, or, for a
 * TL_ROWS op, if its rows are; else a copy in scratch memory. */
tl_status tl_as_compute(tl_call *c, const tl_array *a, tl_array *out);
/* The same for output i, with undefined contents, which tl_store_compute then rounds into it. */
tl_status tl_out_compute(tl_call *c, int i, tl_array *out);
void tl_store_compute(tl_call *c, int i, const tl_array *out);
/* Runs a TL_WIDENED or TL_ROWS op on operands converted in that way. */
tl_status tl_widened_run(tl_call *c);
/* The forward of a TL_WIDENED op that supplies a row kernel (slot): the loop over its rows. */
tl_status tl_rows_run(tl_call *c);

#endif
