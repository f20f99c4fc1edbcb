/* pointwise.h: the tables of built-in tile kernels, which pointwise.t.h lists.
 *
 * Slot TL_TILE_x of each level's table is the kernel of op x. An op struct names its slot; the
 * level is looked up when the op runs. */
#ifndef TL_KERNELS_POINTWISE_H
#define TL_KERNELS_POINTWISE_H

#include "tensor/kernels/pointwise.t.h"
#include "tensor/operands.h"

enum {
    TL_TILE_none,
#define X(name) TL_TILE_##name,
    TL_TILE_LIST(X)
#undef X
        TL_TILE_COUNT
};

extern tl_tile_fn *const tl_tile_table_scalar[],
    *const tl_tile_table_v2[], *const tl_tile_table_v3[], *const tl_tile_table_v4[],
                                                              *const tl_tile_table_neon[];

/* Attributes that tile kernels read. */
typedef struct {
    double c;
} tl_const_attrs; /* scale, shift, pow: the constant */
typedef struct {
    double lo, hi;
} tl_clamp_attrs;
typedef struct {
    tl_dtype dtype;
} tl_cast_attrs;

#endif
