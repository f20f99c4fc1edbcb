/* vec.t.h: the vectors of this level.
 *
 * The first part, which is compiled once, says how large they are and whether they have fma. The
 * second defines the vector of one floating type. Parameters: V(name) gives names their suffix,
 * VEC_BITS is 32 or 64; both are undefined at the end. Defines elem, vec and
 *   load, store       whole vectors, any alignment
 *   load_n, store_n   the first n lanes, 1 <= n <= all of them; touches no others
 *   spread            one element in all lanes
 *   max               the larger; either of the two if one is NaN or both are zero
 *   fma               a*b + c per lane with one rounding, if VEC_FMA
 */
#ifndef VEC_BYTES
/* Before a loop: unrolls all of it, so that its index is a constant. */
#if defined(__clang__)
#define VEC_UNROLL _Pragma("unroll")
#else
#define VEC_UNROLL _Pragma("GCC unroll 16")
#endif
/* SHUFFLE: the lanes of x, and then of y, that have the numbers given, as many as x has; ints is a
 * vector of as many integers of the same size. PAIR: lanes i and i + 1. FOUR: two pairs of floats.
 */
#if !defined(__clang__) && __GNUC__ < 12
typedef float vec_four __attribute__((vector_size(16)));
#define VEC_SHUFFLE(ints, x, y, ...) __builtin_shuffle(x, y, (ints){__VA_ARGS__})
#define VEC_PAIR(x, i) ((float_pair){(x)[i], (x)[(i) + 1]})
#define VEC_FOUR(x, y) ((vec_four){(x)[0], (x)[1], (y)[0], (y)[1]})
#else
#define VEC_SHUFFLE(ints, x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#define VEC_PAIR(x, i) __builtin_shufflevector(x, x, i, (i) + 1)
#define VEC_FOUR(x, y) __builtin_shufflevector(x, y, 0, 1, 2, 3)
#endif

#if defined(__AVX512F__)
#include <immintrin.h>
#define VEC_BYTES 64
#define VEC_FMA 1
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define VEC_BYTES 32
#define VEC_FMA 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#define VEC_BYTES 16
#define VEC_FMA 1
#else
#define VEC_BYTES 16
#define VEC_FMA 0

/* The fma of two floats, kept in double lanes: rounds each sum to odd and then to float, as tl_fmaf
 * does (see fma.h). Conversions stay between whole vectors: gcc 12 simplifies {(double)(float)x[0],
 * (double)(float)x[1]} to x. */
typedef double double_pair __attribute__((vector_size(16)));
typedef float float_pair __attribute__((vector_size(8)));

static inline double_pair to_float(double_pair x)
{
    return __builtin_convertvector(__builtin_convertvector(x, float_pair), double_pair);
}

static __attribute__((noinline, cold)) double_pair fma_odd(double_pair a, double_pair b,
                                                           double_pair c)
{
    typedef uint64_t bits __attribute__((vector_size(16)));
    double_pair p = a * b, s = p + c, t = s - p;
    double_pair e = (p - (s - t)) + (c - t);
    bits u = (bits)s, inexact = (bits)(e < 0) | (bits)(e > 0);
    u -= ((u ^ (bits)e) >> 63) & inexact;
    u |= inexact & 1;
    return to_float((double_pair)u);
}

/* Rounding twice can only err where the double sum is a tie between floats: its last 29 bits are
 * 2^28, or the float is subnormal, where ties lie elsewhere. One unsigned comparison of 32-bit
 * halves finds both: low - 2^28 < 1, and high - 1 < h - 1, with high without its sign and h that of
 * 2^-126. Little-endian order is assumed; on big-endian machines every sum takes the slow way. */
static inline double_pair fma_pair(double_pair a, double_pair b, double_pair c)
{
    typedef uint32_t halves __attribute__((vector_size(16)));
    typedef int32_t order __attribute__((vector_size(16)));
    typedef int64_t flags __attribute__((vector_size(16)));
    const halves field = {0x1fffffff, 0x7fffffff, 0x1fffffff, 0x7fffffff};
    const halves less = {0x70000000, 0x7fffffff, 0x70000000,
                         0x7fffffff}; /* and 2^31, to compare as signed */
    const halves limit = {0x80000001, 0xb80fffff, 0x80000001, 0xb80fffff};
    double_pair s = a * b + c;
    flags doubt = (flags)((order)(((halves)s & field) + less) < (order)limit);
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ ||
        __builtin_expect((doubt[0] | doubt[1]) != 0, 0))
        return fma_odd(a, b, c);
    return to_float(s);
}
#endif
#endif

#ifdef V
#if VEC_BITS == 32
typedef float V(elem);
#else
typedef double V(elem);
#endif
typedef V(elem) V(vec) __attribute__((vector_size(VEC_BYTES)));

/* VEC_OP is an intrinsic of this vector, VEC_MASK the mask of its first n lanes. */
#if VEC_BYTES == 64 && VEC_BITS == 32
#define VEC_OP(name) _mm512_##name##_ps
#define VEC_MASK(n) (__mmask16)((1u << (n)) - 1)
#elif VEC_BYTES == 64
#define VEC_OP(name) _mm512_##name##_pd
#define VEC_MASK(n) (__mmask8)((1u << (n)) - 1)
#elif VEC_BYTES == 32 && VEC_BITS == 32
#define VEC_OP(name) _mm256_##name##_ps
#define VEC_MASK(n) \
    _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
#elif VEC_BYTES == 32
#define VEC_OP(name) _mm256_##name##_pd
#define VEC_MASK(n) _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3))
#elif VEC_FMA && VEC_BITS == 32
#define VEC_OP(name) name##_f32
#elif VEC_FMA
#define VEC_OP(name) name##_f64
#endif

static inline V(vec) V(load)(const V(elem) * p)
{
    V(vec) v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void V(store)(V(elem) * p, V(vec) v) { memcpy(p, &v, sizeof v); }

#if VEC_BYTES == 64
static inline V(vec) V(load_n)(const V(elem) * p, int64_t n)
{
    return VEC_OP(maskz_loadu)(VEC_MASK(n), p);
}
static inline void V(store_n)(V(elem) * p, V(vec) v, int64_t n)
{
    VEC_OP(mask_storeu)(p, VEC_MASK(n), v);
}
#elif VEC_BYTES == 32
static inline V(vec) V(load_n)(const V(elem) * p, int64_t n)
{
    return VEC_OP(maskload)(p, VEC_MASK(n));
}
static inline void V(store_n)(V(elem) * p, V(vec) v, int64_t n)
{
    VEC_OP(maskstore)(p, VEC_MASK(n), v);
}
#else
static inline V(vec) V(load_n)(const V(elem) * p, int64_t n)
{
    V(vec) v = {0};
    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
}
static inline void V(store_n)(V(elem) * p, V(vec) v, int64_t n)
{
    memcpy(p, &v, (size_t)n * sizeof *p);
}
#endif

#if VEC_BYTES > 16
static inline V(vec) V(spread)(V(elem) x) { return VEC_OP(set1)(x); }
static inline V(vec) V(max)(V(vec) a, V(vec) b) { return VEC_OP(max)(a, b); }
static inline V(vec) V(fma)(V(vec) a, V(vec) b, V(vec) c) { return VEC_OP(fmadd)(a, b, c); }
#else
static inline V(vec) V(spread)(V(elem) x)
{
#if VEC_BITS == 32
    return (V(vec)){x, x, x, x};
#else
    return (V(vec)){x, x};
#endif
}
static inline V(vec) V(max)(V(vec) a, V(vec) b)
{
    typedef uint64_t bits __attribute__((vector_size(VEC_BYTES)));
    const bits m = (bits)(a > b);
    return (V(vec))(((bits)a & m) | ((bits)b & ~m));
}
#if VEC_FMA
static inline V(vec) V(fma)(V(vec) a, V(vec) b, V(vec) c) { return VEC_OP(vfmaq)(c, a, b); }
#endif
#endif
#undef VEC_OP
#undef VEC_MASK
#undef VEC_BITS
#undef V
#endif
