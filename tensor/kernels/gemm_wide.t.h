/* gemm_wide.t.h: this level's widest registers as rows of 16-byte pieces, for transposing.
 *
 * No parameters; included once. Moves bits, computes nothing. zip32 and zip64
 * interleave the low (lo) or high halves of corresponding pieces.
 */
#if defined(__AVX512F__)
enum { PIECES = 4 };
typedef __m512 wide;

/* Pieces at p, p + step, ... (bytes); those from `pieces` on are anything. */
static inline wide wide_load(const char *p, int64_t step, int pieces)
{
    wide v = _mm512_castps128_ps512(_mm_loadu_ps((const float *)(const void *)p));
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
static inline void wide_store(void *p, wide v, int pieces)
{
    _mm512_mask_storeu_ps(p, (__mmask16)(0xffff >> (16 - 4 * pieces)), v);
}
static inline wide zip32_lo(wide a, wide b) { return _mm512_unpacklo_ps(a, b); }
static inline wide zip32_hi(wide a, wide b) { return _mm512_unpackhi_ps(a, b); }
static inline wide zip64_lo(wide a, wide b)
{
    return (wide)_mm512_unpacklo_pd((__m512d)a, (__m512d)b);
}
static inline wide zip64_hi(wide a, wide b)
{
    return (wide)_mm512_unpackhi_pd((__m512d)a, (__m512d)b);
}

#elif defined(__AVX2__)
enum { PIECES = 2 };
typedef __m256 wide;

static inline wide wide_load(const char *p, int64_t step, int pieces)
{
    wide v = _mm256_castps128_ps256(_mm_loadu_ps((const float *)(const void *)p));
    if (pieces > 1)
        v = _mm256_insertf128_ps(v, _mm_loadu_ps((const float *)(const void *)(p + step)), 1);
    return v;
}
static inline void wide_store(void *p, wide v, int pieces)
{
    if (pieces > 1)
        _mm256_storeu_ps(p, v);
    else
        _mm_storeu_ps(p, _mm256_castps256_ps128(v));
}
static inline wide zip32_lo(wide a, wide b) { return _mm256_unpacklo_ps(a, b); }
static inline wide zip32_hi(wide a, wide b) { return _mm256_unpackhi_ps(a, b); }
static inline wide zip64_lo(wide a, wide b)
{
    return (wide)_mm256_unpacklo_pd((__m256d)a, (__m256d)b);
}
static inline wide zip64_hi(wide a, wide b)
{
    return (wide)_mm256_unpackhi_pd((__m256d)a, (__m256d)b);
}

#else
enum { PIECES = 1 };
typedef float wide __attribute__((vector_size(16)));

static inline wide wide_load(const char *p, int64_t step, int pieces)
{
    wide v;
    (void)step;
    (void)pieces;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void wide_store(void *p, wide v, int pieces)
{
    (void)pieces;
    memcpy(p, &v, sizeof v);
}
static inline wide zip32_lo(wide a, wide b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
static inline wide zip32_hi(wide a, wide b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
static inline wide zip64_lo(wide a, wide b) { return __builtin_shufflevector(a, b, 0, 1, 4, 5); }
static inline wide zip64_hi(wide a, wide b) { return __builtin_shufflevector(a, b, 2, 3, 6, 7); }
#endif
