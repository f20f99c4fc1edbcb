/* attention_fold.t.h: register tiles that fold rows of queries into the gradients of ATTN_ROWS
 * keys.
 *
 * Parameters: VECS and T(name), which gives names a suffix for it (both undefined at the end);
 * A(name) with attention.t.h; ATTN_ROWS (1, 2, 4 or 8).
 *   fold   out[r][d] = chain, continued, over the rows i that allow key + r (n[i] > key + r)
 *          of w[i][key + r] * b[i][d]; n ascends with i
 * Bits: each lane of each accumulator is one chain, rows ascending.
 */

/* Folds rows from i on, as long as they allow only the first `most` keys, which include the first
 * `keys` of the tile; returns the next row. Inlined once for each number of keys. */
static inline __attribute__((always_inline)) int64_t T(fold_keys)(int keys, int64_t most, int64_t i,
                                                                  const A(fold) * f,
                                                                  const A(elem) * b,
                                                                  A(vec) acc[ATTN_ROWS][VECS])
{
    for (; i < f->rows && f->n[i] <= most; i++) {
        const A(elem) *w = f->w[i] + f->key;
        A(vec) x[VECS];
        VEC_UNROLL for (int v = 0; v < VECS; v++) x[v] = A(load)(b + i * f->ldb + v * LANES);
        VEC_UNROLL for (int r = 0; r < ATTN_ROWS; r++) if (r < keys)
        {
            const A(vec) y = A(spread)(w[r]);
            VEC_UNROLL for (int v = 0; v < VECS; v++) acc[r][v] = A(fma)(y, x[v], acc[r][v]);
        }
    }
    return i;
}

/* Folds the columns from c on; the last vector has `last` lanes in use. */
static void T(fold)(const A(fold) * f, int64_t c, int64_t last)
{
    A(vec) acc[ATTN_ROWS][VECS];
    A(elem) *out = f->out + c;
    VEC_UNROLL for (int r = 0; r < ATTN_ROWS; r++) VEC_UNROLL for (int v = 0; v < VECS; v++)
        acc[r][v] = r < f->keys
                        ? A(load_n)(out + r * f->ld_out + v * LANES, v < VECS - 1 ? LANES : last)
                        : A(spread)(0);
    const A(elem) *b = f->b + c;
    int64_t i = f->begin;
#if ATTN_ROWS >= 2
    i = T(fold_keys)(1, f->key + 1, i, f, b, acc);
#endif
#if ATTN_ROWS >= 4
    i = T(fold_keys)(2, f->key + 2, i, f, b, acc);
    i = T(fold_keys)(3, f->key + 3, i, f, b, acc);
#endif
#if ATTN_ROWS >= 8
    i = T(fold_keys)(4, f->key + 4, i, f, b, acc);
    i = T(fold_keys)(5, f->key + 5, i, f, b, acc);
    i = T(fold_keys)(6, f->key + 6, i, f, b, acc);
    i = T(fold_keys)(7, f->key + 7, i, f, b, acc);
#endif
    T(fold_keys)(ATTN_ROWS, INT64_MAX, i, f, b, acc);
    VEC_UNROLL for (int r = 0; r < ATTN_ROWS; r++) if (r < f->keys)
        VEC_UNROLL for (int v = 0; v < VECS; v++)
            A(store_last)(out + r * f->ld_out + v * LANES, acc[r][v] + A(spread)(0),
                          v < VECS - 1 ? LANES : last);
}
#undef T
#undef VECS
