/* gemm_vec.t.h: the vector type of one arithmetic at this level.
 *
 * Parameters: G(name) gives names their suffix; GEMM_ARITH is 32, 64 or 48 (f64
 * with exact products). Defines elem (the type in memory), vec, LANES and
 *   load, store       whole vectors, any alignment
 *   load_n, store_n   the first n lanes, 1 <= n <= LANES; touches no others
 *   spread            one element in all lanes
 *   fma               a*b + c per lane with one rounding
 * Without hardware fma the f32 arithmetic keeps floats in double lanes and
 * rounds each sum to odd and then to float, as tl_fmaf does (see fma.h).
 */
#if GEMM_ARITH == 32
typedef float G(elem);
#else
typedef double G(elem);
#endif

#if defined(__AVX512F__)
#define GEMM_MASKED
#if GEMM_ARITH == 32
enum { G(LANES) = 16 };
typedef __m512 G(vec);
static inline G(vec) G(load)(const float *p) { return _mm512_loadu_ps(p); }
static inline G(vec) G(load_n)(const float *p, int n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
static inline void G(store)(float *p, G(vec) v) { _mm512_storeu_ps(p, v); }
static inline void G(store_n)(float *p, G(vec) v, int n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
}
static inline G(vec) G(spread)(float x) { return _mm512_set1_ps(x); }
static inline G(vec) G(fma)(G(vec) a, G(vec) b, G(vec) c) { return _mm512_fmadd_ps(a, b, c); }
#else
enum { G(LANES) = 8 };
typedef __m512d G(vec);
static inline G(vec) G(load)(const double *p) { return _mm512_loadu_pd(p); }
static inline G(vec) G(load_n)(const double *p, int n)
{
    return _mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
}
static inline void G(store)(double *p, G(vec) v) { _mm512_storeu_pd(p, v); }
static inline void G(store_n)(double *p, G(vec) v, int n)
{
    _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1), v);
}
static inline G(vec) G(spread)(double x) { return _mm512_set1_pd(x); }
static inline G(vec) G(fma)(G(vec) a, G(vec) b, G(vec) c) { return _mm512_fmadd_pd(a, b, c); }
#endif

#elif defined(__AVX2__) && defined(__FMA__)
#define GEMM_MASKED
#if GEMM_ARITH == 32
enum { G(LANES) = 8 };
typedef __m256 G(vec);
static inline __m256i G(mask)(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline G(vec) G(load)(const float *p) { return _mm256_loadu_ps(p); }
static inline G(vec) G(load_n)(const float *p, int n) { return _mm256_maskload_ps(p, G(mask)(n)); }
static inline void G(store)(float *p, G(vec) v) { _mm256_storeu_ps(p, v); }
static inline void G(store_n)(float *p, G(vec) v, int n) { _mm256_maskstore_ps(p, G(mask)(n), v); }
static inline G(vec) G(spread)(float x) { return _mm256_set1_ps(x); }
static inline G(vec) G(fma)(G(vec) a, G(vec) b, G(vec) c) { return _mm256_fmadd_ps(a, b, c); }
#else
enum { G(LANES) = 4 };
typedef __m256d G(vec);
static inline __m256i G(mask)(int n)
{
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
static inline G(vec) G(load)(const double *p) { return _mm256_loadu_pd(p); }
static inline G(vec) G(load_n)(const double *p, int n) { return _mm256_maskload_pd(p, G(mask)(n)); }
static inline void G(store)(double *p, G(vec) v) { _mm256_storeu_pd(p, v); }
static inline void G(store_n)(double *p, G(vec) v, int n) { _mm256_maskstore_pd(p, G(mask)(n), v); }
static inline G(vec) G(spread)(double x) { return _mm256_set1_pd(x); }
static inline G(vec) G(fma)(G(vec) a, G(vec) b, G(vec) c) { return _mm256_fmadd_pd(a, b, c); }
#endif

#elif defined(__aarch64__) && GEMM_ARITH == 32
enum { G(LANES) = 4 };
typedef float32x4_t G(vec);
static inline G(vec) G(load)(const float *p) { return vld1q_f32(p); }
static inline void G(store)(float *p, G(vec) v) { vst1q_f32(p, v); }
static inline G(vec) G(spread)(float x) { return vdupq_n_f32(x); }
static inline G(vec) G(fma)(G(vec) a, G(vec) b, G(vec) c) { return vfmaq_f32(c, a, b); }

#elif defined(__aarch64__)
enum { G(LANES) = 2 };
typedef float64x2_t G(vec);
static inline G(vec) G(load)(const double *p) { return vld1q_f64(p); }
static inline void G(store)(double *p, G(vec) v) { vst1q_f64(p, v); }
static inline G(vec) G(spread)(double x) { return vdupq_n_f64(x); }
static inline G(vec) G(fma)(G(vec) a, G(vec) b, G(vec) c) { return vfmaq_f64(c, a, b); }

#else
enum { G(LANES) = 2 };
typedef double G(vec) __attribute__((vector_size(16)));
/* Conversions stay between whole vectors: gcc 12 simplifies {(double)(float)x[0],
 * (double)(float)x[1]} to x. */
typedef G(elem) G(pair) __attribute__((vector_size(2 * sizeof(G(elem)))));
static inline G(vec) G(load)(const G(elem) * p)
{
    G(pair) x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, G(vec));
}
static inline void G(store)(G(elem) * p, G(vec) v)
{
    const G(pair) x = __builtin_convertvector(v, G(pair));
    memcpy(p, &x, sizeof x);
}
static inline G(vec) G(spread)(G(elem) x) { return (G(vec)){(double)x, (double)x}; }
#if GEMM_ARITH == 32
static __attribute__((noinline, cold)) G(vec) G(fma_odd)(G(vec) a, G(vec) b, G(vec) c)
{
    typedef uint64_t bits __attribute__((vector_size(16)));
    G(vec) p = a * b, s = p + c, t = s - p;
    G(vec) e = (p - (s - t)) + (c - t);
    bits u = (bits)s, inexact = (bits)(e < 0) | (bits)(e > 0);
    u -= ((u ^ (bits)e) >> 63) & inexact;
    u |= inexact & 1;
    return __builtin_convertvector(__builtin_convertvector((G(vec))u, G(pair)), G(vec));
}

/* Rounding twice can only err where the double sum is a tie between floats: its last 29 bits are
 * 2^28, or the float is subnormal, where ties lie elsewhere. One comparison of 32-bit halves finds
 * both: low half - 2^28 < 1, high half without sign - 1 < that of 2^-126, less 1. This assumes
 * little-endian order; on big-endian machines every sum takes the slow way. */
static inline G(vec) G(fma)(G(vec) a, G(vec) b, G(vec) c)
{
    typedef uint32_t halves __attribute__((vector_size(16)));
    typedef int32_t order __attribute__((vector_size(16)));
    typedef int64_t flags __attribute__((vector_size(16)));
    const halves field = {0x1fffffff, 0x7fffffff, 0x1fffffff, 0x7fffffff};
    const halves less = {0x70000000, 0x7fffffff, 0x70000000,
                         0x7fffffff}; /* and 2^31, to compare as signed */
    const halves limit = {0x80000001, 0xb80fffff, 0x80000001, 0xb80fffff};
    G(vec) s = a * b + c;
    flags doubt = (flags)((order)(((halves)s & field) + less) < (order)limit);
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ ||
        __builtin_expect((doubt[0] | doubt[1]) != 0, 0))
        return G(fma_odd)(a, b, c);
    return __builtin_convertvector(__builtin_convertvector(s, G(pair)), G(vec));
}
#elif GEMM_ARITH == 48
static inline G(vec) G(fma)(G(vec) a, G(vec) b, G(vec) c) { return a * b + c; }
#else
static inline G(vec) G(fma)(G(vec) a, G(vec) b, G(vec) c)
{
    return (G(vec)){tl_fma(a[0], b[0], c[0]), tl_fma(a[1], b[1], c[1])};
}
#endif
#endif

#ifndef GEMM_MASKED
static inline G(vec) G(load_n)(const G(elem) * p, int n)
{
    G(elem) x[G(LANES)] = {0};
    for (int i = 0; i < n; i++)
        x[i] = p[i];
    return G(load)(x);
}

static inline void G(store_n)(G(elem) * p, G(vec) v, int n)
{
    G(elem) x[G(LANES)];
    G(store)(x, v);
    for (int i = 0; i < n; i++)
        p[i] = x[i];
}
#endif
#undef GEMM_MASKED
