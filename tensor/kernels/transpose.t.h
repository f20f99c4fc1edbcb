/* transpose.t.h: transposes elements, for packing and for tiles of C. Moves bits only.
 *
 * Parameters: G(name) gives names their suffix and has G(elem); after vec.t.h. The first part,
 * which is compiled once for all G, treats this level's widest registers as rows of 16-byte pieces:
 * zip32 and zip64 interleave the low (lo) or high (hi) halves of corresponding pieces.
 */
#ifndef TRANSPOSE_ONCE
#define TRANSPOSE_ONCE
#if defined(__AVX512F__)
#include <immintrin.h>
enum { PIECES = 4 };
typedef __m512 wide_vec;

/* Loads `pieces` pieces, from p, p + step, ... (bytes); the other pieces are undefined. */
static inline wide_vec wide_load(const char *p, int64_t step, int pieces)
{
    wide_vec v = _mm512_castps128_ps512(_mm_loadu_ps((const float *)(const void *)p));
    if (pieces > 1)
        v = _mm512_mask_broadcast_f32x4(v, 0x00f0,
                                        _mm_loadu_ps((const float *)(const void *)(p + step)));
    if (pieces > 2)
        v = _mm512_mask_broadcast_f32x4(v, 0x0f00,
                                        _mm_loadu_ps((const float *)(const void *)(p + 2 * step)));
    if (pieces > 3)
        v = _mm512_mask_broadcast_f32x4(v, 0xf000,
                                        _mm_loadu_ps((const float *)(const void *)(p + 3 * step)));
    return v;
}
static inline void wide_store(void *p, wide_vec v, int pieces)
{
    _mm512_mask_storeu_ps(p, (__mmask16)(0xffff >> (16 - 4 * pieces)), v);
}
static inline wide_vec zip32_lo(wide_vec a, wide_vec b) { return _mm512_unpacklo_ps(a, b); }
static inline wide_vec zip32_hi(wide_vec a, wide_vec b) { return _mm512_unpackhi_ps(a, b); }
static inline wide_vec zip64_lo(wide_vec a, wide_vec b)
{
    return (wide_vec)_mm512_unpacklo_pd((__m512d)a, (__m512d)b);
}
static inline wide_vec zip64_hi(wide_vec a, wide_vec b)
{
    return (wide_vec)_mm512_unpackhi_pd((__m512d)a, (__m512d)b);
}

#elif defined(__AVX2__)
#include <immintrin.h>
enum { PIECES = 2 };
typedef __m256 wide_vec;

static inline wide_vec wide_load(const char *p, int64_t step, int pieces)
{
    wide_vec v = _mm256_castps128_ps256(_mm_loadu_ps((const float *)(const void *)p));
    if (pieces > 1)
        v = _mm256_insertf128_ps(v, _mm_loadu_ps((const float *)(const void *)(p + step)), 1);
    return v;
}
static inline void wide_store(void *p, wide_vec v, int pieces)
{
    if (pieces > 1)
        _mm256_storeu_ps(p, v);
    else
        _mm_storeu_ps(p, _mm256_castps256_ps128(v));
}
static inline wide_vec zip32_lo(wide_vec a, wide_vec b) { return _mm256_unpacklo_ps(a, b); }
static inline wide_vec zip32_hi(wide_vec a, wide_vec b) { return _mm256_unpackhi_ps(a, b); }
static inline wide_vec zip64_lo(wide_vec a, wide_vec b)
{
    return (wide_vec)_mm256_unpacklo_pd((__m256d)a, (__m256d)b);
}
static inline wide_vec zip64_hi(wide_vec a, wide_vec b)
{
    return (wide_vec)_mm256_unpackhi_pd((__m256d)a, (__m256d)b);
}

#else
enum { PIECES = 1 };
typedef float wide_vec __attribute__((vector_size(16)));
typedef int32_t wide_ints __attribute__((vector_size(16)));

static inline wide_vec wide_load(const char *p, int64_t step, int pieces)
{
    wide_vec v;
    (void)step;
    (void)pieces;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void wide_store(void *p, wide_vec v, int pieces)
{
    (void)pieces;
    memcpy(p, &v, sizeof v);
}
static inline wide_vec zip32_lo(wide_vec a, wide_vec b)
{
    return VEC_SHUFFLE(wide_ints, a, b, 0, 4, 1, 5);
}
static inline wide_vec zip32_hi(wide_vec a, wide_vec b)
{
    return VEC_SHUFFLE(wide_ints, a, b, 2, 6, 3, 7);
}
static inline wide_vec zip64_lo(wide_vec a, wide_vec b)
{
    return VEC_SHUFFLE(wide_ints, a, b, 0, 1, 4, 5);
}
static inline wide_vec zip64_hi(wide_vec a, wide_vec b)
{
    return VEC_SHUFFLE(wide_ints, a, b, 2, 3, 6, 7);
}
#endif
#endif

/* A step transposes STEP values of k of `pieces` times STEP lines. Piece q of row r is line
 * q * STEP + r, so that transposing each piece by itself leaves every line in its place. */
enum { G(STEP) = 16 / sizeof(G(elem)) };

static inline __attribute__((always_inline)) void G(turn_step)(wide_vec y[G(STEP)],
                                                               const G(elem) * src, int64_t line,
                                                               int pieces)
{
    enum { N = G(STEP) };
    const int64_t bytes = line * (int64_t)sizeof *src;
    wide_vec x[4];
    VEC_UNROLL for (int r = 0; r < N; r++)
        x[r] = wide_load((const char *)src + r * bytes, N * bytes, pieces);
    if (N == 4) {
        const wide_vec a = zip32_lo(x[0], x[1]), b = zip32_hi(x[0], x[1]);
        const wide_vec c = zip32_lo(x[2], x[3]), d = zip32_hi(x[2], x[3]);
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
    wide_vec y[G(STEP)];
    G(turn_step)(y, src, line, pieces);
    VEC_UNROLL for (int r = 0; r < G(STEP); r++) wide_store(dst + r * stride, y[r], pieces);
}

/* Transposes `pieces` times STEP lines along all of k. */
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

/* dst[p * stride + i] = src[i * line + p] for i < count, p < k. It takes a few lines at a time and
 * so uses up each cache line at once, which matters where lines are a power of two apart and share
 * cache sets. */
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
