/* pointwise.h: operands brought to the type that is computed in (op.c) - tile by tile, for the
 * loops of one pointwise op and of several fused (graph/fused.c), or whole, for other ops. */
#ifndef TL_POINTWISE_H
#define TL_POINTWISE_H

#include "autograd/op.h"
#include "tensor/arena.h"

/* An operand while the loop runs: used where it lies, or gathered tile by tile. */
typedef struct {
    tl_array a;    /* of the loop's shape, collapsed */
    bool direct;   /* contiguous, of the tile's dtype */
    bool constant; /* one element throughout: a tile of it serves all */
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

/* Memory until the call has run; NULL with an error when there is none. */
void *tl_scratch(tl_call *c, size_t bytes, bool zeroed);
/* a is as the op takes it: in its compute type, and row-major or (TL_ROWS) in rows. */
static inline bool tl_operand_fits(const tl_op *op, const tl_array *a)
{
    const int last = a->ndim - 1;
    if (a->dtype == TL_F16 || a->dtype == TL_BF16)
        return false;
    return op->traits & TL_ROWS ? last < 0 || a->stride[last] == 1 || a->dim[last] == 1
                                : tl_array_contiguous(a);
}
/* a row-major in its compute type: a itself where it fits, else a copy in scratch. */
tl_status tl_as_compute(tl_call *c, const tl_array *a, tl_array *out);
/* The same room for output i, contents undefined; tl_store_compute rounds it into the output. */
tl_status tl_out_compute(tl_call *c, int i, tl_array *out);
void tl_store_compute(tl_call *c, int i, const tl_array *out);
/* Runs an op that is TL_WIDENED, TL_ROWS or TL_BY_ROWS on such operands. */
tl_status tl_widened_run(tl_call *c);
/* The loop of an op that is TL_BY_ROWS, on such operands. */
tl_status tl_rows_run(tl_call *c);

#endif
