/* attention_vec.t.h: the vector of one compute type at this level.
 *
 * Parameters: A(name) gives names their suffix; ATTN_BITS is 32 or 64. LANES, the elements of a
 * vector, is defined from here to the end of attention.t.h. Defines elem, vec and
 *   load, store       whole vectors, any alignment
 *   load_n, store_n   the first n lanes, 1 <= n <= LANES; touches no others
 *   spread            one element in all lanes
 *   first             the first n lanes of a vector, the others from another
 *   fma               a*b + c per lane with one rounding
 *   max               the larger; either of the two if one is NaN or both are zero
 *   zip_lo, zip_hi    a0 b0 a1 b1 ... of the lower or the upper halves
 *   swap8 .. swap1    lane i to lane i xor w, for w < LANES
 */
#if ATTN_BITS == 32
typedef float A(elem);
typedef int32_t A(mask);
#define LANES (ATTN_BYTES / 4)
#else
typedef double A(elem);
typedef int64_t A(mask);
#define LANES (ATTN_BYTES / 8)
#endif
typedef A(elem) A(vec) __attribute__((vector_size(ATTN_BYTES)));
typedef A(mask) A(maskvec) __attribute__((vector_size(ATTN_BYTES)));

static inline A(vec) A(load)(const A(elem) * p)
{
    A(vec) v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void A(store)(A(elem) * p, A(vec) v) { memcpy(p, &v, sizeof v); }

static inline A(vec) A(load_n)(const A(elem) * p, int64_t n)
{
    A(vec) v = {0};
    if (n == LANES)
        return A(load)(p);
    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
}

static inline void A(store_n)(A(elem) * p, A(vec) v, int64_t n)
{
    if (n == LANES)
        A(store)(p, v);
    else
        memcpy(p, &v, (size_t)n * sizeof *p);
}

static inline A(vec) A(first)(A(vec) v, int64_t n, A(vec) other)
{
    static const A(mask) window[2 * LANES] = {[0 ... LANES - 1] = -1};
    A(maskvec) m;
    memcpy(&m, window + LANES - n, sizeof m);
    return (A(vec))(((A(maskvec))v & m) | ((A(maskvec))other & ~m));
}

#if ATTN_BYTES == 64 && ATTN_BITS == 32
static inline A(vec) A(spread)(float x) { return (A(vec))_mm512_set1_ps(x); }
static inline A(vec) A(fma)(A(vec) a, A(vec) b, A(vec) c)
{
    return (A(vec))_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
static inline A(vec) A(max)(A(vec) a, A(vec) b)
{
    return (A(vec))_mm512_max_ps((__m512)a, (__m512)b);
}
#elif ATTN_BYTES == 64
static inline A(vec) A(spread)(double x) { return (A(vec))_mm512_set1_pd(x); }
static inline A(vec) A(fma)(A(vec) a, A(vec) b, A(vec) c)
{
    return (A(vec))_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
static inline A(vec) A(max)(A(vec) a, A(vec) b)
{
    return (A(vec))_mm512_max_pd((__m512d)a, (__m512d)b);
}
#elif ATTN_BYTES == 32 && ATTN_BITS == 32
static inline A(vec) A(spread)(float x) { return (A(vec))_mm256_set1_ps(x); }
static inline A(vec) A(fma)(A(vec) a, A(vec) b, A(vec) c)
{
    return (A(vec))_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
static inline A(vec) A(max)(A(vec) a, A(vec) b)
{
    return (A(vec))_mm256_max_ps((__m256)a, (__m256)b);
}
#elif ATTN_BYTES == 32
static inline A(vec) A(spread)(double x) { return (A(vec))_mm256_set1_pd(x); }
static inline A(vec) A(fma)(A(vec) a, A(vec) b, A(vec) c)
{
    return (A(vec))_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
static inline A(vec) A(max)(A(vec) a, A(vec) b)
{
    return (A(vec))_mm256_max_pd((__m256d)a, (__m256d)b);
}
#else
static inline A(vec) A(max)(A(vec) a, A(vec) b)
{
    A(maskvec) m = (A(maskvec))(a > b);
    return (A(vec))(((A(maskvec))a & m) | ((A(maskvec))b & ~m));
}
#if ATTN_BITS == 64
static inline A(vec) A(spread)(double x) { return (A(vec)){x, x}; }
#if defined(__aarch64__)
static inline A(vec) A(fma)(A(vec) a, A(vec) b, A(vec) c)
{
    return (A(vec))vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}
#else
static inline A(vec) A(fma)(A(vec) a, A(vec) b, A(vec) c)
{
    return (A(vec)){tl_fma(a[0], b[0], c[0]), tl_fma(a[1], b[1], c[1])};
}
#endif
#else
static inline A(vec) A(spread)(float x) { return (A(vec)){x, x, x, x}; }
#if defined(__aarch64__)
static inline A(vec) A(fma)(A(vec) a, A(vec) b, A(vec) c)
{
    return (A(vec))vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#elif defined(__SSE2__) && !TL_HAS_FMA
/* As tl_fmaf, two lanes at a time: the double sum rounded to odd, then to float. */
static inline __m128 A(fma_half)(__m128 a, __m128 b, __m128 c)
{
    typedef uint64_t bits __attribute__((vector_size(16)));
    const __m128d p = _mm_cvtps_pd(a) * _mm_cvtps_pd(b), d = _mm_cvtps_pd(c);
    const __m128d s = p + d, t = s - p, e = (p - (s - t)) + (d - t);
    bits u = (bits)s, inexact = (bits)(e < 0) | (bits)(e > 0);
    u -= ((u ^ (bits)e) >> 63) & inexact;
    u |= inexact & 1;
    return _mm_cvtpd_ps((__m128d)u);
}

static inline A(vec) A(fma)(A(vec) a, A(vec) b, A(vec) c)
{
    const __m128 x = (__m128)a, y = (__m128)b, z = (__m128)c;
    const __m128 lo = A(fma_half)(x, y, z);
    return (A(vec))_mm_movelh_ps(lo, A(fma_half)(_mm_movehl_ps(x, x), _mm_movehl_ps(y, y),
                                                 _mm_movehl_ps(z, z)));
}
#else
static inline A(vec) A(fma)(A(vec) a, A(vec) b, A(vec) c)
{
    return (A(vec)){tl_fmaf(a[0], b[0], c[0]), tl_fmaf(a[1], b[1], c[1]), tl_fmaf(a[2], b[2], c[2]),
                    tl_fmaf(a[3], b[3], c[3])};
}
#endif
#endif
#endif

#if LANES == 16
#define ATTN_ZIP_LO 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ATTN_ZIP_HI 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define ATTN_SWAP8 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7
#define ATTN_SWAP4 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11
#define ATTN_SWAP2 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13
#define ATTN_SWAP1 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#elif LANES == 8
#define ATTN_ZIP_LO 0, 8, 1, 9, 2, 10, 3, 11
#define ATTN_ZIP_HI 4, 12, 5, 13, 6, 14, 7, 15
#define ATTN_SWAP4 4, 5, 6, 7, 0, 1, 2, 3
#define ATTN_SWAP2 2, 3, 0, 1, 6, 7, 4, 5
#define ATTN_SWAP1 1, 0, 3, 2, 5, 4, 7, 6
#elif LANES == 4
#define ATTN_ZIP_LO 0, 4, 1, 5
#define ATTN_ZIP_HI 2, 6, 3, 7
#define ATTN_SWAP2 2, 3, 0, 1
#define ATTN_SWAP1 1, 0, 3, 2
#else
#define ATTN_ZIP_LO 0, 2
#define ATTN_ZIP_HI 1, 3
#define ATTN_SWAP1 1, 0
#endif
static inline A(vec) A(zip_lo)(A(vec) a, A(vec) b)
{
    return __builtin_shufflevector(a, b, ATTN_ZIP_LO);
}
static inline A(vec) A(zip_hi)(A(vec) a, A(vec) b)
{
    return __builtin_shufflevector(a, b, ATTN_ZIP_HI);
}
#if LANES >= 16
static inline A(vec) A(swap8)(A(vec) v) { return __builtin_shufflevector(v, v, ATTN_SWAP8); }
#endif
#if LANES >= 8
static inline A(vec) A(swap4)(A(vec) v) { return __builtin_shufflevector(v, v, ATTN_SWAP4); }
#endif
#if LANES >= 4
static inline A(vec) A(swap2)(A(vec) v) { return __builtin_shufflevector(v, v, ATTN_SWAP2); }
#endif
static inline A(vec) A(swap1)(A(vec) v) { return __builtin_shufflevector(v, v, ATTN_SWAP1); }
#undef ATTN_ZIP_LO
#undef ATTN_ZIP_HI
#undef ATTN_SWAP8
#undef ATTN_SWAP4
#undef ATTN_SWAP2
#undef ATTN_SWAP1
