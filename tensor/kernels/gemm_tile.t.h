/* gemm_tile.t.h: register tiles of 1 to GEMM_MOST rows, GEMM_VECS vectors of C wide, and T(rows), a
 * table of them.
 *
 * Parameters: T(name) gives names their suffix; GEMM_VECS; GEMM_FULL (1: the last vector is full,
 * 0: its first t->last lanes count); GEMM_MOST, one of 1, 2, 4, 6, 12 (all undefined at the end).
 * G(name) with what gemm_vec.t.h defines, and G(tile).
 * Bits: each lane of each accumulator is one chain, from C or +0, k ascending.
 * Preconditions: rows of B and C have unit stride; nothing outside the tile's
 * elements of A, B and C is touched.
 */

/* Inlined, so that rows is a constant. */
static inline __attribute__((always_inline)) void T(tile)(const G(tile) * t, const int rows)
{
    enum { LAST = GEMM_VECS - 1 };
    const int n = GEMM_FULL ? G(LANES) : t->last;
    const G(vec) zero = G(spread)(0);
    G(vec) acc[GEMM_MOST][GEMM_VECS];

    VEC_UNROLL for (int i = 0; i < GEMM_MOST; i++) VEC_UNROLL for (int v = 0; v < GEMM_VECS; v++)
        acc[i][v] = zero;
    if (t->accumulate) {
        VEC_UNROLL for (int i = 0; i < GEMM_MOST; i++) if (i < rows)
        {
            const G(elem) *c = t->c + i * t->rsc;
            VEC_UNROLL for (int v = 0; v < LAST; v++) acc[i][v] = G(load)(c + v * G(LANES));
            acc[i][LAST] = GEMM_FULL ? G(load)(c + LAST * G(LANES))
                                     : G(load_n)(c + LAST * G(LANES), n);
        }
    }

    const G(elem) *a = t->a, *b = t->b;
    const int64_t ars = t->ars, acs = t->acs, brs = t->brs;
    GEMM_TWICE for (int64_t k = t->k; k > 0; k--)
    {
        G(vec) x[GEMM_VECS];
        VEC_UNROLL for (int v = 0; v < LAST; v++) x[v] = G(load)(b + v * G(LANES));
        x[LAST] = GEMM_FULL ? G(load)(b + LAST * G(LANES)) : G(load_n)(b + LAST * G(LANES), n);
        VEC_UNROLL for (int i = 0; i < GEMM_MOST; i++) if (i < rows)
        {
            const G(vec) y = G(spread)(a[i * ars]);
            VEC_UNROLL for (int v = 0; v < GEMM_VECS; v++) acc[i][v] = G(fma)(y, x[v], acc[i][v]);
        }
        a += acs;
        b += brs;
    }

    VEC_UNROLL for (int i = 0; i < GEMM_MOST; i++) if (i < rows)
    {
        G(elem) *c = t->c + i * t->rsc;
        VEC_UNROLL for (int v = 0; v < LAST; v++) G(store)(c + v * G(LANES), acc[i][v] + zero);
        if (GEMM_FULL)
            G(store)(c + LAST * G(LANES), acc[i][LAST] + zero);
        else
            G(store_n)(c + LAST * G(LANES), acc[i][LAST] + zero, n);
    }
}

#define X(rows) \
    static void T(tile##rows)(const G(tile) * t) { T(tile)(t, rows); }
GEMM_ROWS(GEMM_MOST)
#undef X

#define X(rows) T(tile##rows),
static G(tile_fn) *const T(rows)[GEMM_MOST] = {GEMM_ROWS(GEMM_MOST)};
#undef X
#undef T
#undef GEMM_VECS
#undef GEMM_FULL
#undef GEMM_MOST
