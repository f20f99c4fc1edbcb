/* gemm_transpose.t.h: transposing elements of one arithmetic, for packing and for tiles of C.
 *
 * Parameters: G(name); after gemm_vec.t.h of the same G and gemm_wide.t.h. Moves bits only.
 */

/* STEP values of k of `pieces` times STEP lines: piece q of row r is line q * STEP + r,
 * so that transposing each piece by itself leaves every line in its place. */
enum { G(STEP) = 16 / sizeof(G(elem)) };

static inline __attribute__((always_inline)) void G(turn_step)(wide y[G(STEP)], const G(elem) * src,
                                                               int64_t line, int pieces)
{
    enum { N = G(STEP) };
    const int64_t bytes = line * (int64_t)sizeof *src;
    wide x[4];
    GEMM_UNROLL for (int r = 0; r < N; r++)
        x[r] = wide_load((const char *)src + r * bytes, N * bytes, pieces);
    if (N == 4) {
        const wide a = zip32_lo(x[0], x[1]), b = zip32_hi(x[0], x[1]);
        const wide c = zip32_lo(x[2], x[3]), d = zip32_hi(x[2], x[3]);
        y[0] = zip64_lo(a, c);
        y[1] = zip64_hi(a, c);
        y[N - 2] = zip64_lo(b, d);
        y[N - 1] = zip64_hi(b, d);
    } else {
        y[0] = zip64_lo(x[0], x[1]);
        y[1] = zip64_hi(x[0], x[1]);
    }
}

static inline void G(transpose_step)(G(elem) * dst, int64_t stride, const G(elem) * src,
                                     int64_t line, int pieces)
{
    wide y[G(STEP)];
    G(turn_step)(y, src, line, pieces);
    GEMM_UNROLL for (int r = 0; r < G(STEP); r++) wide_store(dst + r * stride, y[r], pieces);
}

/* `pieces` times STEP lines, all of k. */
static inline void G(transpose_lines)(G(elem) * dst, int64_t stride, const G(elem) * src,
                                      int64_t line, int64_t k, int pieces)
{
    int64_t p = 0;
    for (; p + G(STEP) <= k; p += G(STEP))
        G(transpose_step)(dst + p * stride, stride, src + p, line, pieces);
    for (; p < k; p++)
        for (int i = 0; i < pieces * G(STEP); i++)
            dst[p * stride + i] = src[i * line + p];
}

/* dst[p * stride + i] = src[i * line + p] for i < count, p < k. A few lines at a time: each of
 * their cache lines is used up at once, which matters where lines are a power of two apart and
 * share cache sets. */
static void G(transpose)(G(elem) * dst, int64_t stride, const G(elem) * src, int64_t line,
                         int64_t count, int64_t k)
{
    enum { LINES = PIECES * G(STEP) };
    int64_t i = 0;
    for (; i + LINES <= count; i += LINES)
        G(transpose_lines)(dst + i, stride, src + i * line, line, k, PIECES);
    const int64_t pieces = (count - i) / G(STEP);
    if (pieces > 0)
        G(transpose_lines)(dst + i, stride, src + i * line, line, k, (int)pieces);
    for (i += pieces * G(STEP); i < count; i++)
        for (int64_t p = 0; p < k; p++)
            dst[p * stride + i] = src[i * line + p];
}
