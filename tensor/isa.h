/* isa.h: the vector levels, and which of them runs. It is chosen once.
 *
 * TL_ISA=scalar|v2|v3|v4|neon in the environment forces one. Without it, or where the build or the
 * processor does not have that level, the best one is taken. All levels give the same bits. */
#ifndef TL_ISA_H
#define TL_ISA_H

#include "tensor/kernels/attention.h"
#include "tensor/kernels/convert.h"
#include "tensor/kernels/gemm.h"
#include "tensor/kernels/math.h"
#include "tensor/kernels/pointwise.h"
#include "tensor/kernels/rows.h"

typedef struct {
    const char *name; /* "v4" */
    const tl_math_table *math;
    const tl_gemm_table *gemm;
    const tl_convert_table *convert;
    tl_tile_fn *const *tile;
    const tl_row_table *row;
    const tl_attention_table *attention; /* of f32, then of f64 */
} tl_isa;

/* The running level. */
const tl_isa *tl_isa_now(void);
/* Level i of those that the build and the processor have, weakest first; NULL past the end. */
const tl_isa *tl_isa_at(int i);
/* Whether that is the name of a level, of any processor. */
bool tl_isa_is_name(const char *name);
/* Switches to the level of that name; returns false, and changes nothing, if there is none. */
bool tl_isa_force(const char *name);

#endif
