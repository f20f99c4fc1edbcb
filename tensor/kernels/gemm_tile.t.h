/* gemm_tile.t.h: one register tile, GEMM_ROWS rows by GEMM_VECS vectors of C.
 *
 * Parameters: GEMM_TILE (the function's name), GEMM_ROWS, GEMM_VECS, GEMM_FULL
 * (1: the last vector is full, 0: its first t->last lanes count); G(name) with
 * what gemm_vec.t.h defines, and G(tile) below. The first two are undefined at
 * the end.
 * Bits: each lane of each accumulator is one chain, from C or +0, k ascending.
 * Preconditions: rows of B and C have unit stride; nothing outside the tile's
 * elements of A, B and C is touched.
 */
static void GEMM_TILE(const G(tile) * t)
{
    enum { LAST = GEMM_VECS - 1 };
    const int n = GEMM_FULL ? G(LANES) : t->last;
    const G(vec) zero = G(spread)(0);
    G(vec) acc[GEMM_ROWS][GEMM_VECS];

    VEC_UNROLL for (int i = 0; i < GEMM_ROWS; i++) VEC_UNROLL for (int v = 0; v < GEMM_VECS; v++)
        acc[i][v] = zero;
    if (t->accumulate) {
        VEC_UNROLL for (int i = 0; i < GEMM_ROWS; i++)
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
        VEC_UNROLL for (int i = 0; i < GEMM_ROWS; i++)
        {
            const G(vec) y = G(spread)(a[i * ars]);
            VEC_UNROLL for (int v = 0; v < GEMM_VECS; v++) acc[i][v] = G(fma)(y, x[v], acc[i][v]);
        }
        a += acs;
        b += brs;
    }

    VEC_UNROLL for (int i = 0; i < GEMM_ROWS; i++)
    {
        G(elem) *c = t->c + i * t->rsc;
        VEC_UNROLL for (int v = 0; v < LAST; v++) G(store)(c + v * G(LANES), acc[i][v] + zero);
        if (GEMM_FULL)
            G(store)(c + LAST * G(LANES), acc[i][LAST] + zero);
        else
            G(store_n)(c + LAST * G(LANES), acc[i][LAST] + zero, n);
    }
}
#undef GEMM_TILE
#undef GEMM_ROWS
