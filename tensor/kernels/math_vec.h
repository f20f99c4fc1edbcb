/* math_vec.h: a vector of floats at this level, for the trials of math32_try.h.
 *
 * v3 and v4 have what those need: fma, a table of 16 floats picked from by lane, an estimate of
 * 1/sqrt(x). TL_VEC is the number of lanes there, and undefined at the other levels.
 *   tl_v        a vector; + - * / are its operators
 *   tl_v_bits   its bits as unsigned integers (tl_vi; tl_vs: signed), tl_v_of the way back
 *   tl_v_mask   one truth value per lane; comparisons with NaN are false
 *   tl_v_fma    a*b + c;  tl_v_fnma: c - a*b;  tl_v_fms: a*b - c, with one rounding
 *   tl_v_pick   table[i mod 16]
 *   tl_v_about_rsqrt  relative error below 2^-11; processors differ in it, so no bit may show it
 *   tl_w        a vector of doubles, half as many lanes
 *   tl_w_low, tl_w_high  the halves of a tl_v, widened;  tl_w_narrow rounds two halves to floats
 */
#ifndef TL_KERNELS_MATH_VEC_H
#define TL_KERNELS_MATH_VEC_H

#include <stdint.h>

#if defined(TL_NO_TRIALS)
/* v3 and v4 as the levels without trials are: so these can be run over all inputs, too */
#elif defined(__AVX512F__)
#include <immintrin.h>
#define TL_VEC 16
typedef __m512 tl_v;
typedef __mmask16 tl_v_mask;
typedef uint16_t tl_v_lane_bits;
typedef uint32_t tl_vi __attribute__((vector_size(64)));
typedef int32_t tl_vs __attribute__((vector_size(64)));
typedef __m512d tl_w;
typedef uint64_t tl_wi __attribute__((vector_size(64)));

static inline tl_v tl_v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void tl_v_store(float *p, tl_v a) { _mm512_storeu_ps(p, a); }
static inline tl_v tl_v_all(float x) { return _mm512_set1_ps(x); }
static inline tl_v tl_v_fma(tl_v a, tl_v b, tl_v c) { return _mm512_fmadd_ps(a, b, c); }
static inline tl_v tl_v_fnma(tl_v a, tl_v b, tl_v c) { return _mm512_fnmadd_ps(a, b, c); }
static inline tl_v tl_v_fms(tl_v a, tl_v b, tl_v c) { return _mm512_fmsub_ps(a, b, c); }
static inline tl_v tl_v_min(tl_v a, tl_v b) { return _mm512_min_ps(a, b); }
static inline tl_v tl_v_max(tl_v a, tl_v b) { return _mm512_max_ps(a, b); }
static inline tl_v tl_v_about_rsqrt(tl_v a) { return _mm512_rsqrt14_ps(a); }
static inline tl_v tl_v_pick(const float table[16], tl_vi i)
{
    return _mm512_permutexvar_ps((__m512i)i, _mm512_loadu_ps(table));
}
static inline tl_v_mask tl_v_less(tl_v a, tl_v b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline tl_v_mask tl_v_equal(tl_v a, tl_v b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
static inline tl_v_mask tl_v_and(tl_v_mask a, tl_v_mask b) { return (tl_v_mask)(a & b); }
static inline tl_v_mask tl_v_or(tl_v_mask a, tl_v_mask b) { return (tl_v_mask)(a | b); }
static inline tl_v tl_v_if(tl_v_mask m, tl_v a, tl_v b) { return _mm512_mask_blend_ps(m, b, a); }
static inline unsigned tl_v_lanes(tl_v_mask m) { return m; }
static inline tl_w tl_w_all(double x) { return _mm512_set1_pd(x); }
static inline tl_w tl_w_fma(tl_w a, tl_w b, tl_w c) { return _mm512_fmadd_pd(a, b, c); }
static inline tl_w tl_w_fnma(tl_w a, tl_w b, tl_w c) { return _mm512_fnmadd_pd(a, b, c); }
static inline tl_w tl_w_low(tl_v a) { return _mm512_cvtps_pd(_mm512_castps512_ps256(a)); }
static inline tl_w tl_w_high(tl_v a) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)); }
static inline tl_v tl_w_narrow(tl_w low, tl_w high)
{
    tl_v a = _mm512_castps256_ps512(_mm512_cvtpd_ps(low));
    return _mm512_insertf32x8(a, _mm512_cvtpd_ps(high), 1);
}

#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define TL_VEC 8
typedef __m256 tl_v;
typedef __m256 tl_v_mask;
typedef uint8_t tl_v_lane_bits;
typedef uint32_t tl_vi __attribute__((vector_size(32)));
typedef int32_t tl_vs __attribute__((vector_size(32)));
typedef __m256d tl_w;
typedef uint64_t tl_wi __attribute__((vector_size(32)));

static inline tl_v tl_v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void tl_v_store(float *p, tl_v a) { _mm256_storeu_ps(p, a); }
static inline tl_v tl_v_all(float x) { return _mm256_set1_ps(x); }
static inline tl_v tl_v_fma(tl_v a, tl_v b, tl_v c) { return _mm256_fmadd_ps(a, b, c); }
static inline tl_v tl_v_fnma(tl_v a, tl_v b, tl_v c) { return _mm256_fnmadd_ps(a, b, c); }
static inline tl_v tl_v_fms(tl_v a, tl_v b, tl_v c) { return _mm256_fmsub_ps(a, b, c); }
static inline tl_v tl_v_min(tl_v a, tl_v b) { return _mm256_min_ps(a, b); }
static inline tl_v tl_v_max(tl_v a, tl_v b) { return _mm256_max_ps(a, b); }
static inline tl_v tl_v_about_rsqrt(tl_v a) { return _mm256_rsqrt_ps(a); }
static inline tl_v tl_v_pick(const float table[16], tl_vi i)
{
    tl_v low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)i);
    tl_v high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), (__m256i)i);
    return _mm256_blendv_ps(low, high, (__m256)(i << 28));
}
static inline tl_v_mask tl_v_less(tl_v a, tl_v b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline tl_v_mask tl_v_equal(tl_v a, tl_v b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
static inline tl_v_mask tl_v_and(tl_v_mask a, tl_v_mask b) { return _mm256_and_ps(a, b); }
static inline tl_v_mask tl_v_or(tl_v_mask a, tl_v_mask b) { return _mm256_or_ps(a, b); }
static inline tl_v tl_v_if(tl_v_mask m, tl_v a, tl_v b) { return _mm256_blendv_ps(b, a, m); }
static inline unsigned tl_v_lanes(tl_v_mask m) { return (unsigned)_mm256_movemask_ps(m); }
static inline tl_w tl_w_all(double x) { return _mm256_set1_pd(x); }
static inline tl_w tl_w_fma(tl_w a, tl_w b, tl_w c) { return _mm256_fmadd_pd(a, b, c); }
static inline tl_w tl_w_fnma(tl_w a, tl_w b, tl_w c) { return _mm256_fnmadd_pd(a, b, c); }
static inline tl_w tl_w_low(tl_v a) { return _mm256_cvtps_pd(_mm256_castps256_ps128(a)); }
static inline tl_w tl_w_high(tl_v a) { return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)); }
static inline tl_v tl_w_narrow(tl_w low, tl_w high)
{
    tl_v a = _mm256_castps128_ps256(_mm256_cvtpd_ps(low));
    return _mm256_insertf128_ps(a, _mm256_cvtpd_ps(high), 1);
}
#endif

#ifdef TL_VEC
#define TL_V_SIGN ((tl_vi)tl_v_all(-0.0f))

static inline tl_vi tl_v_bits(tl_v a) { return (tl_vi)a; }
static inline tl_v tl_v_of(tl_vi a) { return (tl_v)a; }
static inline tl_v tl_v_minus(tl_v a) { return tl_v_of(tl_v_bits(a) | TL_V_SIGN); } /* -|a| */
static inline tl_v tl_v_abs(tl_v a) { return tl_v_of(tl_v_bits(a) & ~TL_V_SIGN); }

/* The magnitude of a with the sign of s. */
static inline tl_v tl_v_sign(tl_v a, tl_v s)
{
    return tl_v_of((tl_v_bits(a) & ~TL_V_SIGN) | (tl_v_bits(s) & TL_V_SIGN));
}
#endif

#endif
