/* gemm_block.t.h: multiplies a block of C, tile by tile.
 *
 * Parameters: G(name), GEMM_ARITH (see gemm_vec.t.h), GEMM_MR and GEMM_NV (rows and vectors of the
 * common tile), the most rows of a tile of 2 vectors (GEMM_TALL), of 4 (GEMM_BROAD) and of 8
 * (GEMM_FEW: with few rows only width hides the latency of fma).
 */
#include "tensor/kernels/gemm_vec.t.h"
#include "tensor/kernels/transpose.t.h"

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
#define GEMM_MOST GEMM_TALL
#include "tensor/kernels/gemm_tile.t.h"
#define T(name) G(name##_part2)
#define GEMM_VECS 2
#define GEMM_FULL 0
#define GEMM_MOST GEMM_TALL
#include "tensor/kernels/gemm_tile.t.h"
#define T(name) G(name##_full2)
#define GEMM_VECS 2
#define GEMM_FULL 1
#define GEMM_MOST GEMM_TALL
#include "tensor/kernels/gemm_tile.t.h"
#if GEMM_NV == 4
#define T(name) G(name##_part3)
#define GEMM_VECS 3
#define GEMM_FULL 0
#define GEMM_MOST GEMM_MR
#include "tensor/kernels/gemm_tile.t.h"
#define T(name) G(name##_part4)
#define GEMM_VECS 4
#define GEMM_FULL 0
#define GEMM_MOST GEMM_MR
#include "tensor/kernels/gemm_tile.t.h"
#endif
#define T(name) G(name##_full4)
#define GEMM_VECS 4
#define GEMM_FULL 1
#define GEMM_MOST GEMM_BROAD
#include "tensor/kernels/gemm_tile.t.h"
#define T(name) G(name##_full8)
#define GEMM_VECS 8
#define GEMM_FULL 1
#define GEMM_MOST GEMM_FEW
#include "tensor/kernels/gemm_tile.t.h"

enum {
    G(NR) = GEMM_NV * G(LANES),
    G(WIDE) = 8 * G(LANES),
    G(NARROW) = 2 * G(LANES),
    G(BUFFER) = (GEMM_MR * GEMM_NV > 8 * GEMM_FEW ? GEMM_MR * GEMM_NV : 8 * GEMM_FEW) * G(LANES),
};

/* The tiles whose last vector may be partial, by number of vectors. */
static G(tile_fn) *const *const G(part)[GEMM_NV] = {
    G(rows_part1),
    G(rows_part2),
#if GEMM_NV == 4
    G(rows_part3),
    G(rows_part4),
#endif
};

/* Rows of the next panel of A: the last two panels share the remaining rows evenly. */
static inline int64_t G(panel_rows)(int64_t left, int64_t cols)
{
    const int64_t most = cols <= G(NARROW) ? GEMM_TALL : GEMM_MR;
    return left >= 2 * most ? most : left > most ? (left + 1) / 2 : left;
}

/* The tile function for the next columns; *cols is how many it takes, *last the lanes in use of its
 * last vector. */
static inline G(tile_fn) * G(choose)(int64_t rows, int64_t left, int64_t *cols, int *last)
{
    const int64_t r = rows - 1, whole = (left - 1) / G(LANES);
    *last = G(LANES);
    if (rows <= GEMM_FEW && left >= 8 * G(LANES)) {
        *cols = 8 * G(LANES);
        return G(rows_full8)[r];
    }
    if (rows <= GEMM_BROAD && left >= 4 * G(LANES)) {
        *cols = 4 * G(LANES);
        return G(rows_full4)[r];
    }
    if (GEMM_NV == 2 ? left >= G(NARROW) : left == G(NARROW)) {
        *cols = G(NARROW);
        return G(rows_full2)[r];
    }
    *cols = left;
    *last = (int)(left - whole * G(LANES));
    return G(part)[whole][r];
}

/* Runs a tile by way of a buffer, for a C whose columns are not adjacent. */
static void G(scattered)(G(tile_fn) * fn, G(tile) * t, int64_t rows, int64_t cols, int64_t csc)
{
    G(elem) buffer[G(BUFFER)];
    G(elem) *const c = t->c;
    const int64_t rsc = t->rsc;
    if (t->accumulate && rsc == 1)
        G(transpose)(buffer, cols, c, csc, cols, rows);
    else if (t->accumulate)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++)
                buffer[i * cols + j] = c[i * rsc + j * csc];
    t->c = buffer;
    t->rsc = cols;
    fn(t);
    t->c = c;
    t->rsc = rsc;
    if (rsc == 1) {
        G(transpose)(c, csc, buffer, cols, rows, cols);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            c[i * rsc + j * csc] = buffer[i * cols + j];
}

/* Multiplies one panel of rows by one strip of columns, and moves t along the strip. t is changed
 * in place because a copy would be loaded by vectors right after it was stored by words, and would
 * wait until the tile of C before it has left the store buffer. */
static void G(panel)(G(tile) * t, int64_t rows, int64_t cols, int64_t csc)
{
    while (cols > 0) {
        int64_t width;
        G(tile_fn) *fn = G(choose)(rows, cols, &width, &t->last);
        if (csc == 1)
            fn(t);
        else
            G(scattered)(fn, t, rows, width, csc);
        t->b += width;
        t->c += width * csc;
        cols -= width;
    }
}

/* Prefetches the next tile of C, which comes from far away and is needed all at once. */
static inline void G(prefetch)(const G(elem) * c, int64_t rsc, int64_t rows, int64_t cols)
{
    enum { LINE = 64 / sizeof(G(elem)) };
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j += LINE)
            __builtin_prefetch(c + i * rsc + j, 1);
}

/* Prefetches the next strip of a B that comes from memory. */
static inline void G(prefetch_strip)(const G(elem) * b, int64_t brs, int64_t k, int64_t cols)
{
    enum { LINE = 64 / sizeof(G(elem)) };
    for (int64_t p = 0; p < k; p++)
        for (int64_t j = 0; j < cols; j += LINE)
            __builtin_prefetch(b + p * brs + j);
}

static void G(block)(const tl_gemm_block *g)
{
    for (int64_t j = 0; j < g->n; j += g->strip) {
        const int64_t cols = g->n - j < g->strip ? g->n - j : g->strip;
        G(tile)
        t = {.k = g->k, .ars = g->ars, .acs = g->acs, .rsc = g->rsc, .accumulate = g->accumulate};
        const G(elem) *const b = (const G(elem) *)g->b + (g->b_packed ? j * g->k : j);
        t.brs = g->b_packed ? (cols + G(LANES) - 1) / G(LANES) * G(LANES) : g->brs;
        for (int64_t i = 0, rows; i < g->m; i += rows) {
            rows = G(panel_rows)(g->m - i, g->a_packed ? g->strip : cols);
            if (g->a_packed) {
                t.ars = 1;
                t.acs = rows;
            }
            t.a = (const G(elem) *)g->a + (g->a_packed ? i * g->k : i * g->ars);
            t.b = b;
            t.c = (G(elem) *)g->c + i * g->rsc + j * g->csc;
            if (g->k >= PREFETCH_K && g->m - i - rows >= rows) {
                if (g->csc == 1)
                    G(prefetch)(t.c + rows * g->rsc, g->rsc, rows, cols);
                else
                    G(prefetch)(t.c + rows * g->rsc, g->csc, cols, rows);
            }
            const int64_t left = i == 0 && g->b_beside && !g->b_packed ? g->n - j - cols : 0;
            if (left > 0)
                G(prefetch_strip)(b + cols, g->brs, g->k, left < cols ? left : cols);
            G(panel)(&t, rows, cols, g->csc);
        }
    }
}
