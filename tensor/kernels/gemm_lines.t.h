/* gemm_lines.t.h: multiplies few rows by a B whose columns are contiguous along k ("lines").
 *
 * Parameters: G(name); included after gemm_block.t.h of the same G. Packing B would take longer
 * than multiplying, so LANES columns are transposed in registers, a few k at a time, and used
 * there:
 *
 *            b, one line of memory a column           x[0] .. x[STEP - 1]
 *     j      b[k] b[k+1] b[k+2] b[k+3] ...            b of j, j + 1, ..., j + LANES - 1 at k
 *     j + 1  b[k] b[k+1] b[k+2] b[k+3] ...     ->     the same at k + 1
 *     ...                                             ...
 *
 * Bits: each lane of each accumulator is one chain, from C or +0, k ascending.
 */

/* Multiplies `rows` rows by `groups` times LANES columns, reading a cache line of each line at a
 * time. Lines from beyond the second cache (far) are copied first, since those that are a power of
 * two apart share sets of the first cache; halves (of 2 bytes) are widened on the way. They are
 * also prefetched, further along the line or at the start of the next columns' lines: they are too
 * many streams for the hardware prefetcher. Inlined, so that rows, groups, far and halves are
 * constants. Loops over acc have literal bounds: clang keeps acc in memory if a bound is a
 * parameter. */
static inline __attribute__((always_inline)) void G(lines_tile)(const G(tile) * t,
                                                                const tl_gemm_type type,
                                                                const int rows, const int groups,
                                                                const bool far, const bool halves)
{
    enum { N = G(STEP), LINE = 64 / sizeof(G(elem)) };
    _Static_assert((int)TL_GEMM_LINES <= GEMM_MR, "all rows of a packed A are one panel");
    _Static_assert((int)G(LANES) == PIECES * (int)G(STEP), "a step fills a register");
    const int64_t line = t->brs, whole = t->k / N * N, size = halves ? 2 : sizeof(G(elem)),
                  next = 256 / size;
    _Alignas(64) G(elem) copy[G(LANES) * LINE];
    G(vec) acc[TL_GEMM_LINES][4];
    VEC_UNROLL for (int i = 0; i < TL_GEMM_LINES; i++) if (i < rows)
        VEC_UNROLL for (int v = 0; v < 4; v++) if (v < groups)
            acc[i][v] = t->accumulate ? G(load)(t->c + i * t->rsc + v * G(LANES)) : G(spread)(0);
    for (int64_t p = 0; p < whole; p += LINE) {
        const int64_t depth = whole - p < LINE ? whole - p : LINE,
                      ahead = p + next - (p + next < t->k ? 0 : t->k - groups * G(LANES) * line);
        VEC_UNROLL for (int v = 0; v < 4; v++) if (v < groups)
        {
            const char *first = (const char *)t->b + v * G(LANES) * line * size;
            if (far)
                VEC_UNROLL for (int l = 0; l < G(LANES); l++)
                    __builtin_prefetch(first + (l * line + ahead) * size, 0, 2);
            const G(elem) *b = (const void *)(first + p * size);
            if (halves) {
                for (int l = 0; l < G(LANES); l++)
                    G(widen)(copy + l * LINE, first, type, l * line + p, 1, depth);
                b = copy;
            } else if (far && depth == LINE) {
                VEC_UNROLL for (int l = 0; l < G(LANES); l++)
                    memcpy(copy + l * LINE, b + l * line, 64);
                b = copy;
            }
            for (int64_t q = 0; q < depth; q += N) {
                wide_vec x[N];
                G(turn_step)(x, b + q, b == copy ? LINE : line, PIECES);
                VEC_UNROLL for (int r = 0; r < N; r++)
                    VEC_UNROLL for (int i = 0; i < TL_GEMM_LINES; i++) if (i < rows)
                        acc[i][v] = G(fma)(G(spread)(t->a[i * t->ars + (p + q + r) * t->acs]),
                                           (G(vec))x[r], acc[i][v]);
            }
        }
    }
    for (int64_t p = whole; p < t->k; p++)
        VEC_UNROLL for (int v = 0; v < 4; v++) if (v < groups)
        {
            G(elem) x[G(LANES)];
            for (int l = 0; l < G(LANES); l++)
                G(widen)(x + l, t->b, type, (v * G(LANES) + l) * line + p, 1, 1);
            VEC_UNROLL for (int i = 0; i < TL_GEMM_LINES; i++) if (i < rows)
                acc[i][v] = G(fma)(G(spread)(t->a[i * t->ars + p * t->acs]), G(load)(x), acc[i][v]);
        }
    VEC_UNROLL for (int i = 0; i < TL_GEMM_LINES; i++) if (i < rows)
        VEC_UNROLL for (int v = 0; v < 4; v++) if (v < groups)
            G(store)(t->c + i * t->rsc + v * G(LANES), acc[i][v] + G(spread)(0));
}

/* Calls lines_tile with constants. groups is 1, or the most that fits: 4 for up to 2 rows, else 2.
 */
static void G(lines_rows)(const G(tile) * t, tl_gemm_type type, int64_t rows, int groups, bool far)
{
    const tl_gemm_type own = sizeof(G(elem)) == 4 ? TL_GEMM_F32 : TL_GEMM_F64;
#define ROWS(n, most)                                           \
    case n:                                                     \
        if (sizeof(G(elem)) == 4 && type != own && groups == 1) \
            G(lines_tile)(t, type, n, 1, false, true);          \
        else if (sizeof(G(elem)) == 4 && type != own)           \
            G(lines_tile)(t, type, n, most, true, true);        \
        else if (groups == 1)                                   \
            G(lines_tile)(t, own, n, 1, false, false);          \
        else if (far)                                           \
            G(lines_tile)(t, own, n, most, true, false);        \
        else                                                    \
            G(lines_tile)(t, own, n, most, false, false);       \
        break
    switch (rows) {
        ROWS(1, 4);
        ROWS(2, 4);
        ROWS(3, 2);
        ROWS(4, 2);
        ROWS(5, 2);
        ROWS(6, 2);
    }
#undef ROWS
}

/* Multiplies all columns, at least LANES. If the last ones do not fill a vector, they are computed
 * in a buffer together with the columns before them. */
static void G(lines)(const tl_gemm_block *g)
{
    const int64_t most = g->m <= 2 ? 4 : 2, rest = g->n % G(LANES), at = g->n - G(LANES),
                  size = tl_gemm_size(g->b_type);
    const bool far = g->n * g->k * (int64_t)sizeof(G(elem)) > TL_GEMM_FAR;
    G(elem) buffer[TL_GEMM_LINES * G(LANES)], *c = g->c;
    G(tile)
    t = {.k = g->k,
         .a = g->a,
         .ars = g->a_packed ? 1 : g->ars, /* in one panel */
         .acs = g->a_packed ? g->m : g->acs,
         .brs = g->bcs,
         .accumulate = g->accumulate};
    if (rest > 0) {
        t.b = (const void *)((const char *)g->b + at * g->bcs * size);
        t.c = buffer;
        t.rsc = G(LANES);
        for (int64_t i = 0; g->accumulate && i < g->m; i++)
            memcpy(buffer + i * G(LANES), c + i * g->rsc + at, G(LANES) * sizeof *c);
        G(lines_rows)(&t, g->b_type, g->m, 1, false);
    }
    t.rsc = g->rsc;
    for (int64_t j = 0, n; j < g->n - rest; j += n * G(LANES)) {
        n = g->n - rest - j >= most * G(LANES) ? most : 1;
        t.b = (const void *)((const char *)g->b + j * g->bcs * size);
        t.c = c + j;
        G(lines_rows)(&t, g->b_type, g->m, (int)n, far);
    }
    for (int64_t i = 0; rest > 0 && i < g->m; i++)
        memcpy(c + i * g->rsc + g->n - rest, buffer + (i + 1) * G(LANES) - rest,
               (size_t)rest * sizeof *c);
}
