/* gemm_tiles.t.h: the tiles of 1 to GEMM_MOST rows, GEMM_VECS vectors wide, and T(rows), a table of
 * them.
 *
 * Parameters: T(name) gives names their suffix; GEMM_VECS, GEMM_FULL (see
 * gemm_tile.t.h) and GEMM_MOST, one of 1, 2, 4, 6, 12. All undefined at the end.
 */
#define GEMM_ROWS 1
#define GEMM_TILE T(tile1)
#include "tensor/kernels/gemm_tile.t.h"
#if GEMM_MOST >= 2
#define GEMM_ROWS 2
#define GEMM_TILE T(tile2)
#include "tensor/kernels/gemm_tile.t.h"
#endif
#if GEMM_MOST >= 4
#define GEMM_ROWS 3
#define GEMM_TILE T(tile3)
#include "tensor/kernels/gemm_tile.t.h"
#define GEMM_ROWS 4
#define GEMM_TILE T(tile4)
#include "tensor/kernels/gemm_tile.t.h"
#endif
#if GEMM_MOST >= 6
#define GEMM_ROWS 5
#define GEMM_TILE T(tile5)
#include "tensor/kernels/gemm_tile.t.h"
#define GEMM_ROWS 6
#define GEMM_TILE T(tile6)
#include "tensor/kernels/gemm_tile.t.h"
#endif
#if GEMM_MOST >= 12
#define GEMM_ROWS 7
#define GEMM_TILE T(tile7)
#include "tensor/kernels/gemm_tile.t.h"
#define GEMM_ROWS 8
#define GEMM_TILE T(tile8)
#include "tensor/kernels/gemm_tile.t.h"
#define GEMM_ROWS 9
#define GEMM_TILE T(tile9)
#include "tensor/kernels/gemm_tile.t.h"
#define GEMM_ROWS 10
#define GEMM_TILE T(tile10)
#include "tensor/kernels/gemm_tile.t.h"
#define GEMM_ROWS 11
#define GEMM_TILE T(tile11)
#include "tensor/kernels/gemm_tile.t.h"
#define GEMM_ROWS 12
#define GEMM_TILE T(tile12)
#include "tensor/kernels/gemm_tile.t.h"
#endif

static G(tile_fn) *const T(rows)[GEMM_MOST] = {
    T(tile1),
#if GEMM_MOST >= 2
    T(tile2),
#endif
#if GEMM_MOST >= 4
    T(tile3), T(tile4),
#endif
#if GEMM_MOST >= 6
    T(tile5), T(tile6),
#endif
#if GEMM_MOST >= 12
    T(tile7), T(tile8), T(tile9), T(tile10), T(tile11), T(tile12),
#endif
};
#undef T
#undef GEMM_VECS
#undef GEMM_FULL
#undef GEMM_MOST
