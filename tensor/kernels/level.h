/* level.h: included first by every *.k.c file.
 *
 * The build compiles each *.k.c once per vector level, with -DTL_LEVEL=scalar
 * (or v2, v3, v4, neon) and that level's instruction-set flags. TL_K(name)
 * carries the level into every symbol a kernel file exports, so one source
 * yields tl_gemm_f32_scalar, tl_gemm_f32_v3, ... side by side. Everything else
 * in such a file is static. All levels give the same bits.
 */
#ifndef TL_KERNELS_LEVEL_H
#define TL_KERNELS_LEVEL_H

#ifndef TL_LEVEL
#error "kernel sources are compiled per vector level: -DTL_LEVEL=scalar|v2|v3|v4|neon"
#endif

#include "tensor/ieee.h"

#define TL_K_JOIN(name, level) name##_##level
#define TL_K_EXPAND(name, level) TL_K_JOIN(name, level)
#define TL_K(name) TL_K_EXPAND(name, TL_LEVEL)

#endif
