/* gemm_block.t.h: a block of C, tile by tile.
 *
 * Parameters: G(name), GEMM_ARITH (see gemm_vec.t.h), GEMM_MR and GEMM_NV (rows
 * and vectors of the common tile), GEMM_FEW (rows for which tiles 4 and 8
 * vectors wide exist: with few rows, width is what hides fma's latency).
 */
#include "tensor/kernels/gemm_vec.t.h"
#include "tensor/kernels/gemm_transpose.t.h"

typedef struct {
    int64_t k;
    const G(elem) * a;
    int64_t ars, acs;
    const G(elem) * b;
    int64_t brs;
    G(elem) * c;
    int64_t rsc;
    int last; /* lanes in use of the last vector */
    bool accumulate;
} G(tile);

typedef void G(tile_fn)(const G(tile) * t);

#define T(name) G(name##_part1)
#define GEMM_VECS 1
#define GEMM_FULL 0
#define GEMM_MOST GEMM_MR
#include "tensor/kernels/gemm_tiles.t.h"
#define T(name) G(name##_part)
#define GEMM_VECS GEMM_NV
#define GEMM_FULL 0
#define GEMM_MOST GEMM_MR
#include "tensor/kernels/gemm_tiles.t.h"
#define T(name) G(name##_full)
#define GEMM_VECS GEMM_NV
#define GEMM_FULL 1
#define GEMM_MOST GEMM_MR
#include "tensor/kernels/gemm_tiles.t.h"
#define T(name) G(name##_full4)
#define GEMM_VECS 4
#define GEMM_FULL 1
#define GEMM_MOST GEMM_FEW
#include "tensor/kernels/gemm_tiles.t.h"
#define T(name) G(name##_full8)
#define GEMM_VECS 8
#define GEMM_FULL 1
#define GEMM_MOST GEMM_FEW
#include "tensor/kernels/gemm_tiles.t.h"

enum {
    G(NR) = GEMM_NV * G(LANES),
    G(WIDE) = 8 * G(LANES),
    G(BUFFER) = (GEMM_MR * GEMM_NV > 8 * GEMM_FEW ? GEMM_MR * GEMM_NV : 8 * GEMM_FEW) * G(LANES),
};

/* Rows of the next panel: the last two share what is left evenly. */
static inline int64_t G(panel_rows)(int64_t left)
{
    return left >= 2 * GEMM_MR ? GEMM_MR : left > GEMM_MR ? (left + 1) / 2 : left;
}

/* The tile for the next columns, how many it takes, and of its last vector. */
static inline G(tile_fn) * G(choose)(int64_t rows, int64_t left, int64_t *cols, int *last)
{
    const int64_t r = rows - 1;
    *last = G(LANES);
    if (rows <= GEMM_FEW && left >= 4 * G(LANES)) {
        const bool eight = left >= 8 * G(LANES);
        *cols = eight ? 8 * G(LANES) : 4 * G(LANES);
        return (eight ? G(rows_full8) : G(rows_full4))[r];
    }
    if (left >= G(NR)) {
        *cols = G(NR);
        return G(rows_full)[r];
    }
    if (left > G(NR) - G(LANES)) {
        *cols = left;
        *last = (int)(left - (GEMM_NV - 1) * G(LANES));
        return G(rows_part)[r];
    }
    *cols = left < G(LANES) ? left : G(LANES);
    *last = (int)*cols;
    return G(rows_part1)[r];
}

/* A tile of C whose columns are not adjacent goes by way of a buffer. */
static void G(scattered)(G(tile_fn) * fn, G(tile) t, int64_t rows, int64_t cols, int64_t csc)
{
    G(elem) buffer[G(BUFFER)];
    G(elem) *c = t.c;
    const int64_t rsc = t.rsc;
    if (t.accumulate && rsc == 1)
        G(transpose)(buffer, cols, c, csc, cols, rows);
    else if (t.accumulate)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++)
                buffer[i * cols + j] = c[i * rsc + j * csc];
    t.c = buffer;
    t.rsc = cols;
    fn(&t);
    if (rsc == 1) {
        G(transpose)(c, csc, buffer, cols, rows, cols);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            c[i * rsc + j * csc] = buffer[i * cols + j];
}

/* One panel of rows against one strip of columns. */
static void G(panel)(G(tile) t, int64_t rows, int64_t cols, int64_t csc)
{
    while (cols > 0) {
        int64_t width;
        G(tile_fn) *fn = G(choose)(rows, cols, &width, &t.last);
        if (csc == 1)
            fn(&t);
        else
            G(scattered)(fn, t, rows, width, csc);
        t.b += width;
        t.c += width * csc;
        cols -= width;
    }
}

/* C's tile comes from far away and is wanted all at once: asked for a tile ahead. */
static inline void G(prefetch)(const G(elem) * c, int64_t rsc, int64_t rows, int64_t cols)
{
    enum { LINE = 64 / sizeof(G(elem)) };
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j += LINE)
            __builtin_prefetch(c + i * rsc + j, 1);
}

static void G(block)(const tl_gemm_block *g)
{
    for (int64_t j = 0; j < g->n; j += g->strip) {
        const int64_t cols = g->n - j < g->strip ? g->n - j : g->strip;
        G(tile)
        t = {.k = g->k, .ars = g->ars, .acs = g->acs, .rsc = g->rsc, .accumulate = g->accumulate};
        t.b = (const G(elem) *)g->b + (g->b_packed ? j * g->k : j);
        t.brs = g->b_packed ? (cols + G(LANES) - 1) / G(LANES) * G(LANES) : g->brs;
        for (int64_t i = 0, rows; i < g->m; i += rows) {
            rows = G(panel_rows)(g->m - i);
            if (g->a_packed) {
                t.ars = 1;
                t.acs = rows;
            }
            t.a = (const G(elem) *)g->a + (g->a_packed ? i * g->k : i * g->ars);
            t.c = (G(elem) *)g->c + i * g->rsc + j * g->csc;
            if (g->k >= PREFETCH_K && g->m - i - rows >= GEMM_MR) {
                if (g->csc == 1)
                    G(prefetch)(t.c + rows * g->rsc, g->rsc, GEMM_MR, cols);
                else
                    G(prefetch)(t.c + rows * g->rsc, g->csc, cols, GEMM_MR);
            }
            G(panel)(t, rows, cols, g->csc);
        }
    }
}
