/* attention_tile.t.h: register tiles of ROWS rows by VECS vectors.
 *
 * Parameters: ROWS, VECS, and T(name), which gives names a suffix for both (all undefined at
 * the end); A(name) with attention.t.h. Defines
 *   scores   s[r][j] = scale * chain over d of a[r][d] * panel[d][j]
 *   mix      out[r][d] = chain over j < n[r] of w[r][j] * b[j][d]; n ascends with r
 *
 * Bits: each lane of each accumulator is one chain, ascending.
 */
static void T(scores)(const A(tile) * t, int64_t depth, const A(elem) * panel, A(elem) * s)
{
    const A(elem) * a[ROWS];
    A(vec) acc[ROWS][VECS];
    VEC_UNROLL for (int r = 0; r < ROWS; r++)
    {
        a[r] = t->a[r];
        VEC_UNROLL for (int v = 0; v < VECS; v++) acc[r][v] = A(spread)(0);
    }
    for (int64_t d = 0; d < depth; d++) {
        A(vec) x[VECS];
        VEC_UNROLL for (int v = 0; v < VECS; v++) x[v] = A(load)(panel + d * A(PANEL) + v * LANES);
        VEC_UNROLL for (int r = 0; r < ROWS; r++)
        {
            const A(vec) y = A(spread)(a[r][d]);
            VEC_UNROLL for (int v = 0; v < VECS; v++) acc[r][v] = A(fma)(y, x[v], acc[r][v]);
        }
    }
    const A(vec) scale = A(spread)(t->scale);
    VEC_UNROLL for (int r = 0; r < ROWS; r++) VEC_UNROLL for (int v = 0; v < VECS; v++)
        A(store)(s + r * t->ld + v * LANES, acc[r][v] * scale);
}

/* Continues the rows from `first` on with keys j to end. Inlined once for each `first`. */
static inline __attribute__((always_inline)) int64_t T(mix_from)(int first, int64_t j, int64_t end,
                                                                 const A(elem) *const w[ROWS],
                                                                 const A(elem) * b, int64_t ldb,
                                                                 A(vec) acc[ROWS][VECS])
{
    for (; j < end; j++) {
        A(vec) x[VECS];
        VEC_UNROLL for (int v = 0; v < VECS; v++) x[v] = A(load)(b + j * ldb + v * LANES);
        VEC_UNROLL for (int r = 0; r < ROWS; r++) if (r >= first)
        {
            const A(vec) y = A(spread)(w[r][j]);
            VEC_UNROLL for (int v = 0; v < VECS; v++) acc[r][v] = A(fma)(y, x[v], acc[r][v]);
        }
    }
    return j;
}

/* Takes the columns of b from c on; stores `last` lanes of the last vector. */
static void T(mix)(const A(tile) * t, const A(elem) * s, const A(elem) * b, int64_t ldb, int64_t c,
                   int64_t last)
{
    const A(elem) * w[ROWS];
    A(vec) acc[ROWS][VECS];
    VEC_UNROLL for (int r = 0; r < ROWS; r++)
    {
        w[r] = s + r * t->ld;
        VEC_UNROLL for (int v = 0; v < VECS; v++) acc[r][v] = A(spread)(0);
    }
    if (t->n[ROWS - 1] > 0)
        b += c;
    int64_t j = T(mix_from)(0, 0, t->n[0], w, b, ldb, acc);
#if ROWS >= 2
    j = T(mix_from)(1, j, t->n[1], w, b, ldb, acc);
#endif
#if ROWS >= 4
    j = T(mix_from)(2, j, t->n[2], w, b, ldb, acc);
    j = T(mix_from)(3, j, t->n[3], w, b, ldb, acc);
#endif
#if ROWS >= 8
    j = T(mix_from)(4, j, t->n[4], w, b, ldb, acc);
    j = T(mix_from)(5, j, t->n[5], w, b, ldb, acc);
    j = T(mix_from)(6, j, t->n[6], w, b, ldb, acc);
    j = T(mix_from)(7, j, t->n[7], w, b, ldb, acc);
#endif
    (void)j;
    VEC_UNROLL for (int r = 0; r < ROWS; r++) if (r < t->rows)
    {
        VEC_UNROLL for (int v = 0; v < VECS - 1; v++)
            A(store)(t->out[r] + c + v * LANES, acc[r][v] + A(spread)(0));
        A(store_last)(t->out[r] + c + (VECS - 1) * LANES, acc[r][VECS - 1] + A(spread)(0), last);
    }
}
#undef T
#undef ROWS
#undef VECS
