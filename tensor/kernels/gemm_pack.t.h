/* gemm_pack.t.h: packs operands into panels of the compute type, k-major.
 *
 * Parameters: G(name), GEMM_MR, GEMM_NV; after gemm_block.t.h of the same G.
 * A panel holds `count` rows of A or columns of B ("lines"): dst[k * stride + line],
 * zeros from count to stride. Widening is exact; nothing else is computed here.
 */

#if GEMM_ARITH == 32 && defined(__F16C__)
/* Widens adjacent f16 with the processor's conversion, which takes a quarter of the time and is
 * exact (it quiets signalling NaNs, but all NaNs count as one value here). Returns how many it has
 * done. */
static inline int64_t widen_f16(float *restrict dst, const uint16_t *s, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(s + i))));
    return i;
}
#endif

/* Widens n elements, step apart, into adjacent ones. Inlined so that n can be a constant. */
static inline __attribute__((always_inline)) void G(widen)(G(elem) *restrict dst, const void *src,
                                                           tl_gemm_type type, int64_t first,
                                                           int64_t step, int64_t n)
{
    if (type == TL_GEMM_F32) {
        const float *s = (const float *)src + first;
        for (int64_t i = 0; i < n; i++)
            dst[i] = (G(elem))s[i * step];
    } else if (type == TL_GEMM_F16) {
        const uint16_t *s = (const uint16_t *)src + first;
        int64_t i = 0;
#if GEMM_ARITH == 32 && defined(__F16C__)
        i = step == 1 ? widen_f16(dst, s, n) : 0;
#endif
        for (; i < n; i++)
            dst[i] = (G(elem))tl_f16_to_f32(s[i * step]);
    } else if (type == TL_GEMM_BF16) {
        const uint16_t *s = (const uint16_t *)src + first;
        for (int64_t i = 0; i < n; i++)
            dst[i] = (G(elem))tl_bf16_to_f32(s[i * step]);
    } else {
        const G(elem) *s = (const G(elem) *)src + first; /* f64 into f64 */
        for (int64_t i = 0; i < n; i++)
            dst[i] = s[i * step];
    }
}

/* Like transpose, from a narrower type, by way of a small widened copy. */
static void G(transpose_widened)(G(elem) * dst, int64_t stride, const void *src, tl_gemm_type type,
                                 int64_t line, int64_t count, int64_t k)
{
    enum { LINES = 16, DEPTH = 64 };
    G(elem) copy[LINES * DEPTH];
    for (int64_t p = 0; p < k; p += DEPTH) {
        const int64_t depth = k - p < DEPTH ? k - p : DEPTH;
        for (int64_t i = 0; i < count; i += LINES) {
            const int64_t lines = count - i < LINES ? count - i : LINES;
            for (int64_t x = 0; x < lines; x++)
                G(widen)(copy + x * DEPTH, src, type, (i + x) * line + p, 1, depth);
            G(transpose)(dst + p * stride + i, stride, copy, DEPTH, lines, depth);
        }
    }
}

/* Packs lines that lie side by side: each k is one copy, of constant size for whole panels. Rows
 * are too far apart for the hardware prefetcher, so later rows are prefetched here. */
static void G(copy)(G(elem) * dst, int64_t stride, const G(elem) * src, int64_t step, int64_t count,
                    int64_t k)
{
    enum { LINE = 64 / sizeof(G(elem)) };
    if (count == GEMM_NV * G(LANES))
        for (int64_t p = 0; p < k; p++) {
            for (int i = 0; i < GEMM_NV * G(LANES) && k - p > ROWS_AHEAD; i += LINE)
                __builtin_prefetch(src + (p + ROWS_AHEAD) * step + i);
            memcpy(dst + p * stride, src + p * step, GEMM_NV * G(LANES) * sizeof *dst);
        }
    else
        for (int64_t p = 0; p < k; p++)
            for (int64_t i = 0; i < count; i++)
                dst[p * stride + i] = src[p * step + i];
}

static void G(copy_widened)(G(elem) * dst, int64_t stride, const void *src, tl_gemm_type type,
                            int64_t step, int64_t count, int64_t k)
{
    if (count == GEMM_NV * G(LANES))
        for (int64_t p = 0; p < k; p++)
            G(widen)(dst + p * stride, src, type, p * step, 1, GEMM_NV * G(LANES));
    else
        for (int64_t p = 0; p < k; p++)
            G(widen)(dst + p * stride, src, type, p * step, 1, count);
}

/* Packs `count` lines from element `first` of src; line and step are the distances, in elements,
 * from one line and from one k to the next. */
static void G(pack)(G(elem) * dst, int64_t stride, const void *src, tl_gemm_type type,
                    int64_t first, int64_t line, int64_t step, int64_t count, int64_t k)
{
    const bool same = type == (sizeof(G(elem)) == 4 ? TL_GEMM_F32 : TL_GEMM_F64);
    src = (const char *)src + first * tl_gemm_size(type);
    if (same && line == 1)
        G(copy)(dst, stride, src, step, count, k);
    else if (same && step == 1)
        G(transpose)(dst, stride, src, line, count, k);
    else if (step == 1)
        G(transpose_widened)(dst, stride, src, type, line, count, k);
    else if (line == 1)
        G(copy_widened)(dst, stride, src, type, step, count, k);
    else
        for (int64_t p = 0; p < k; p++)
            G(widen)(dst + p * stride, src, type, p * step, line, count);
    if (count < stride)
        for (int64_t p = 0; p < k; p++)
            for (int64_t i = count; i < stride; i++)
                dst[p * stride + i] = 0;
}

static void G(pack_a)(const tl_gemm_mat *a, int64_t m, int64_t k, int64_t strip, void *dst)
{
    for (int64_t i = 0, rows; i < m; i += rows) {
        rows = G(panel_rows)(m - i, strip);
        G(pack)
        ((G(elem) *)dst + i * k, rows, a->data, a->type, i * a->rs, a->rs, a->cs, rows, k);
    }
}

static void G(pack_b)(const tl_gemm_mat *b, int64_t n, int64_t k, int64_t strip, void *dst)
{
    for (int64_t j = 0; j < n; j += strip) {
        const int64_t cols = n - j < strip ? n - j : strip;
        const int64_t stride = (cols + G(LANES) - 1) / G(LANES) * G(LANES);
        G(pack)((G(elem) *)dst + j * k, stride, b->data, b->type, j * b->cs, b->cs, b->rs, cols, k);
    }
}

/* Copies n elements, as two pieces of constant size that may overlap. */
static inline void G(copy_run)(G(elem) *restrict to, const G(elem) *restrict from, int64_t n)
{
#define PIECES(size)                                                               \
    do {                                                                           \
        __builtin_memcpy(to, from, (size) * sizeof *to);                           \
        __builtin_memcpy(to + n - (size), from + n - (size), (size) * sizeof *to); \
    } while (0)
    if (n < 4)
        for (int64_t i = 0; i < n; i++)
            to[i] = from[i];
    else if (n < 8)
        PIECES(4);
    else if (n < 16)
        PIECES(8);
    else if (n < 32)
        PIECES(16);
    else if (n <= 64)
        PIECES(32);
    else
        memcpy(to, from, (size_t)n * sizeof *to);
#undef PIECES
}

/* Packs the elements src[row[p] + col[i]], with one copy for each run of adjacent columns. */
static void G(gather_b)(const void *src, const int64_t *row, const int64_t *col, int64_t n,
                        int64_t k, int64_t strip, void *to)
{
    enum { RUNS = 16 };
    for (int64_t j = 0; j < n; j += strip) {
        const int64_t cols = n - j < strip ? n - j : strip;
        const int64_t stride = (cols + G(LANES) - 1) / G(LANES) * G(LANES);
        G(elem) *dst = (G(elem) *)to + j * k;
        int64_t start[RUNS + 1] = {0}, runs = 1;
        for (int64_t i = 1; i < cols && runs <= RUNS; i++)
            if (col[j + i] != col[j + i - 1] + 1)
                start[runs++] = i;
        for (int64_t p = 0; p < k; p++, dst += stride) {
            const G(elem) *from = (const G(elem) *)src + row[p];
            if (runs == 1 && cols == GEMM_NV * G(LANES))
                memcpy(dst, from + col[j], GEMM_NV * G(LANES) * sizeof *dst);
            else if (runs > RUNS)
                for (int64_t i = 0; i < cols; i++)
                    dst[i] = from[col[j + i]];
            else
                for (int64_t r = 0; r < runs; r++) {
                    const int64_t end = r + 1 < runs ? start[r + 1] : cols;
                    G(copy_run)(dst + start[r], from + col[j + start[r]], end - start[r]);
                }
            for (int64_t i = cols; i < stride; i++)
                dst[i] = 0;
        }
    }
}
