/* gemm_tile.t.h: the register tile, a few rows by a few vectors of C.
 *
 * Parameters: G(name), and from gemm_vec.t.h its types and functions;
 * GEMM_MR rows and GEMM_NV vectors of the tile that large blocks are made of,
 * GEMM_FEW rows up to which tiles of 4 and 8 vectors exist.
 * Each lane of each accumulator is one chain, from C or +0, k ascending.
 * Preconditions: at least one row and one column; rows of B and C of unit
 * stride; a, b and c hold the tile's elements and no others are touched.
 */
typedef struct {
    int64_t k;
    const G(elem) *a;
    int64_t ars, acs;
    const G(elem) *b;
    int64_t brs;
    G(elem) *c;
    int64_t rsc;
    int last;                  /* lanes in use of the last vector */
    bool accumulate;
} G(tile);

/* One step of k; a0, a3, ... keep the addresses of rows within an index and a scale. */
static inline __attribute__((always_inline))
void G(tile_body)(const int rows, const int vecs, const bool unit, const bool whole, const G(tile) *t)
{
    G(vec) acc[GEMM_MR][GEMM_NV > 8 ? GEMM_NV : 8];
    const int last = vecs - 1, n = t->last;
    const G(vec) zero = G(spread)(0);

    TL_UNROLL for (int i = 0; i < rows; i++)
        TL_UNROLL for (int v = 0; v < vecs; v++)
            acc[i][v] = zero;
    if (t->accumulate) {
        TL_UNROLL for (int i = 0; i < rows; i++)
            TL_UNROLL for (int v = 0; v < vecs; v++) {
                const G(elem) *p = t->c + i * t->rsc + v * G(LANES);
                acc[i][v] = whole || v < last ? G(load)(p) : G(load_n)(p, n);
            }
    }

    const G(elem) *a = t->a, *b = t->b;
    const int64_t ars = t->ars, acs = t->acs, brs = t->brs;
    for (int64_t k = t->k; k > 0; k--) {
        G(vec) x[8];
        TL_UNROLL for (int v = 0; v < vecs; v++)
            x[v] = whole || v < last ? G(load)(b + v * G(LANES)) : G(load_n)(b + v * G(LANES), n);
        TL_UNROLL for (int i = 0; i < rows; i++) {
            G(vec) y = G(spread)(a[unit ? i : i * ars]);
            TL_UNROLL for (int v = 0; v < vecs; v++)
                acc[i][v] = G(fma)(y, x[v], acc[i][v]);
        }
        a += acs;
        b += brs;
    }

    TL_UNROLL for (int i = 0; i < rows; i++)
        TL_UNROLL for (int v = 0; v < vecs; v++) {
            G(elem) *p = t->c + i * t->rsc + v * G(LANES);
            if (whole || v < last)
                G(store)(p, acc[i][v] + zero);
            else
                G(store_n)(p, acc[i][v] + zero, n);
        }
}
