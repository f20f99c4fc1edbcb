/* pointwise.h: the list of built-in tile kernels.
 *
 * Slot TL_TILE_x of every level's table is the kernel of op x. An op struct names
 * its slot; the running level is looked up when the op runs. */
#ifndef TL_KERNELS_POINTWISE_H
#define TL_KERNELS_POINTWISE_H

#include "tensor/operands.h"

/* clang-format off */
#define TL_TILE_LIST(X)                                                                          \
    X(add) X(sub) X(mul) X(div) X(maximum) X(minimum) X(eq) X(ne) X(lt) X(le) X(gt) X(ge)        \
    X(where) X(neg) X(abs) X(square) X(reciprocal) X(sqrt) X(rsqrt) X(exp) X(log) X(sin) X(cos)  \
    X(tanh) X(sigmoid) X(erf) X(log1p) X(expm1) X(exp2) X(log2) X(pow) X(relu) X(silu)           \
    X(silu_grad) X(swiglu) X(scale) X(shift) X(cast) X(clamp) X(softplus) X(gelu) X(gelu_grad)   \
    X(gelu_tanh) X(gelu_tanh_grad)
/* clang-format on */

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
