/* gemm.k.c: matrix multiplication at one vector level; gemm.h has the contract.
 *
 * Tile sizes fill the register file: 6 rows by 4 vectors, or 12 by 2, where there are 32 registers
 * (v4, neon), 6 by 2 where there are 16 (v3). Levels without hardware fma compute f32 in double
 * lanes (gemm_vec.t.h). They have a third arithmetic, f64 with exact products, which needs no fma.
 */
#include "tensor/kernels/level.h"
#include "tensor/kernels/fma.h"
#include "tensor/kernels/gemm.h"
#include "tensor/kernels/half.h"
#include "tensor/kernels/vec.t.h"

/* X(1) X(2) ... X(n), for the n that gemm_tile.t.h has as GEMM_MOST. */
#define GEMM_ROWS_1 X(1)
#define GEMM_ROWS_2 GEMM_ROWS_1 X(2)
#define GEMM_ROWS_4 GEMM_ROWS_2 X(3) X(4)
#define GEMM_ROWS_6 GEMM_ROWS_4 X(5) X(6)
#define GEMM_ROWS_12 GEMM_ROWS_6 X(7) X(8) X(9) X(10) X(11) X(12)
#define GEMM_ROWS_OF(n) GEMM_ROWS_##n
#define GEMM_ROWS(n) GEMM_ROWS_OF(n)

#if defined(__clang__)
#define GEMM_TWICE _Pragma("unroll 2")
#else
#define GEMM_TWICE _Pragma("GCC unroll 2")
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
#define GEMM_MR 6
#define GEMM_NV 4
#define GEMM_TALL 12
#define GEMM_BROAD GEMM_MR
#define GEMM_FEW 2
#elif VEC_FMA
#define GEMM_MR 6
#define GEMM_NV 2
#define GEMM_TALL GEMM_MR
#define GEMM_BROAD GEMM_FEW
#define GEMM_FEW 1
#else
#define GEMM_MR 4
#define GEMM_NV 2
#define GEMM_TALL GEMM_MR
#define GEMM_BROAD GEMM_FEW
#define GEMM_FEW 1
#endif

enum { PREFETCH_K = 64, ROWS_AHEAD = 8 };

/* lines() transposes in the registers that it multiplies with, and has no form for exact products.
 * (With -march=native, the scalar level may have AVX-512's registers, but is told to use no fma.)
 */
#define GEMM_LINES (VEC_FMA && TL_HAS_FMA)

#define G(name) name##_f32
#define GEMM_ARITH 32
#include "tensor/kernels/gemm_block.t.h"
#include "tensor/kernels/gemm_pack.t.h"
#if GEMM_LINES
#include "tensor/kernels/gemm_lines.t.h"
#endif
#undef GEMM_ARITH
#undef G

#define G(name) name##_f64
#define GEMM_ARITH 64
#include "tensor/kernels/gemm_block.t.h"
#include "tensor/kernels/gemm_pack.t.h"
#if GEMM_LINES
#include "tensor/kernels/gemm_lines.t.h"
#endif
#undef GEMM_ARITH
#undef G

#if GEMM_LINES
#define LINES(name) .lines = lines_##name
#else
#define LINES(name) .lines = NULL
#endif
#define KERNEL(name, in)                                                                         \
    {                                                                                            \
        .mr = GEMM_MR, .tall = GEMM_TALL, .nr = NR_##name, .few = GEMM_FEW, .wide = WIDE_##name, \
        .lanes = LANES_##name, .block = block_##name, .pack_a = pack_a_##in,                     \
        .pack_b = pack_b_##in, .gather_b = gather_b_##in, LINES(name)                            \
    }
#if TL_HAS_FMA
#define WIDE_KERNEL KERNEL(f64, f64)
#else
#define G(name) name##_f64x
#define GEMM_ARITH 48
#include "tensor/kernels/gemm_block.t.h"
#undef GEMM_ARITH
#undef G
#define WIDE_KERNEL KERNEL(f64x, f64)
#endif

const tl_gemm_table TL_K(tl_gemm_table) = {{
    [TL_GEMM_IN_F32] = KERNEL(f32, f32),
    [TL_GEMM_IN_F64] = KERNEL(f64, f64),
    [TL_GEMM_WIDE] = WIDE_KERNEL,
}};
