/* tile.h: the shape of a pointwise kernel.
 *
 * A tile is n elements of every operand, contiguous, already widened to the
 * compute type (f64 for f64; f32 for f32, f16 and bf16; i64 and bool as they
 * are). A tile function reads in[], writes out and knows nothing of strides,
 * broadcasting or storage types: eager and fused execution both loop over it.
 */
#ifndef TL_KERNELS_TILE_H
#define TL_KERNELS_TILE_H

#include <stdint.h>

#include "tensor/array.h"

enum { TL_TILE_MAX_IN = 8, TL_TILE_LEN = 512 };

typedef struct {
    int64_t n;
    const void *in[TL_TILE_MAX_IN];
    void *out;         /* may equal an input of the same element size */
    tl_dtype dtype;    /* tile type of the last input: the compute type of the values */
    const void *attrs; /* the op's attributes */
} tl_tile;

typedef void tl_tile_fn(const tl_tile *t);

#endif
