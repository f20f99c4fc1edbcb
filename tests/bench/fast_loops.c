/* fast_loops.c: see fast_loops.h. Plain loops; the compiler is free. */
#include "tests/bench/fast_loops.h"

#include <math.h>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#define LOOP(name, value)                                    \
    void fast_##name(int64_t n, const float *restrict x, float *restrict y) \
    {                                                        \
        for (int64_t i = 0; i < n; i++)                      \
            y[i] = value;                                    \
    }
LOOP(exp, expf(x[i]))
LOOP(log, logf(x[i]))
LOOP(sin, sinf(x[i]))
LOOP(cos, cosf(x[i]))
LOOP(tanh, tanhf(x[i]))
LOOP(erf, erff(x[i]))
LOOP(sigmoid, 1 / (1 + expf(-x[i])))
LOOP(silu, x[i] / (1 + expf(-x[i])))
LOOP(gelu, x[i] * 0.5f * (1 + erff(x[i] * 0.70710678f)))
LOOP(rsqrt, 1 / sqrtf(x[i]))

float fast_sum(int64_t n, const float *x)
{
    float s = 0;
    for (int64_t i = 0; i < n; i++)
        s += x[i];
    return s;
}

float fast_max(int64_t n, const float *x)
{
    float m = x[0];
    for (int64_t i = 1; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

void fast_fold(int64_t n, const float *restrict x, float *restrict acc)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] += x[i];
}

void fast_softmax(int64_t n, const float *restrict x, float *restrict y)
{
    float m = fast_max(n, x), s = 0;
    for (int64_t i = 0; i < n; i++)
        s += y[i] = expf(x[i] - m);
    for (int64_t i = 0; i < n; i++)
        y[i] *= 1 / s;
}

enum { BLOCK = 64 };

void fast_softmax_online(int64_t n, const float *restrict x, float *restrict y)
{
    float m = -INFINITY, s = 0;
    for (int64_t at = 0; at < n; at += BLOCK) { /* rescaled once a block, not once an element */
        int64_t len = n - at < BLOCK ? n - at : BLOCK;
        float top = fast_max(len, x + at), part = 0;
        top = top > m ? top : m;
        for (int64_t i = 0; i < len; i++)
            part += expf(x[at + i] - top);
        s = s * expf(m - top) + part;
        m = top;
    }
    for (int64_t i = 0; i < n; i++)
        y[i] = expf(x[i] - m) / s;
}

static float log_of_sum(int64_t n, const float *x, float m)
{
    float s = 0;
    for (int64_t i = 0; i < n; i++)
        s += expf(x[i] - m);
    return m + logf(s);
}

void fast_log_softmax(int64_t n, const float *restrict x, float *restrict y)
{
    float l = log_of_sum(n, x, fast_max(n, x));
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] - l;
}

float fast_cross_entropy(int64_t n, const float *z, int64_t target) { return log_of_sum(n, z, fast_max(n, z)) - z[target]; }

void fast_rms_norm(int64_t n, const float *restrict x, const float *restrict gamma, float eps, float *restrict y)
{
    float s = 0;
    for (int64_t i = 0; i < n; i++)
        s += x[i] * x[i];
    float r = 1 / sqrtf(s / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * r * gamma[i];
}

void fast_layer_norm(int64_t n, const float *restrict x, const float *restrict gamma, const float *restrict beta, float eps, float *restrict y)
{
    float s = 0, q = 0;
    for (int64_t i = 0; i < n; i++) {
        s += x[i];
        q += x[i] * x[i];
    }
    float mean = s / (float)n, r = 1 / sqrtf(q / (float)n - mean * mean + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * r * gamma[i] + beta[i];
}

void fast_rotary(int64_t n, const float *restrict x, const float *restrict cosine, const float *restrict sine, float *restrict y)
{
    for (int64_t i = 0; i < n / 2; i++) {
        y[i] = x[i] * cosine[i] - x[n / 2 + i] * sine[i];
        y[n / 2 + i] = x[n / 2 + i] * cosine[i] + x[i] * sine[i];
    }
}

void fast_adamw(int64_t n, float *restrict p, const float *restrict g, float *restrict m, float *restrict v, float lr, float b1, float b2, float eps,
                float wd, float c1, float c2)
{
    for (int64_t i = 0; i < n; i++) {
        m[i] = b1 * m[i] + (1 - b1) * g[i];
        v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
        p[i] -= lr * (m[i] * c1 / (sqrtf(v[i] * c2) + eps) + wd * p[i]);
    }
}

/* One query against a block of keys: new maximum, sum and output, rescaled. */
static void attend(int64_t keys, int64_t dim, int64_t ld, const float *restrict q, const float *restrict k, const float *restrict v, float scale,
                   float *m, float *sum, float *restrict o)
{
    float s[BLOCK], top = *m;
    for (int64_t j = 0; j < keys; j++) {
        float d = 0;
        for (int64_t i = 0; i < dim; i++)
            d += q[i] * k[j * ld + i];
        s[j] = d * scale;
        top = s[j] > top ? s[j] : top;
    }
    float turn = expf(*m - top), part = 0;
    for (int64_t j = 0; j < keys; j++)
        part += s[j] = expf(s[j] - top);
    for (int64_t i = 0; i < dim; i++)
        o[i] *= turn;
    for (int64_t j = 0; j < keys; j++)
        for (int64_t i = 0; i < dim; i++)
            o[i] += s[j] * v[j * ld + i];
    *sum = *sum * turn + part;
    *m = top;
}

void fast_attention(int64_t len, int64_t dim, int64_t ld, const float *q, const float *k, const float *v, float scale, float *out)
{
    for (int64_t i = 0; i < len; i++) {
        float m = -1e30f, sum = 0, o[128] = {0};
        for (int64_t at = 0; at <= i; at += BLOCK)
            attend(i + 1 - at < BLOCK ? i + 1 - at : BLOCK, dim, ld, q + i * ld, k + at * ld, v + at * ld, scale, &m, &sum, o);
        for (int64_t d = 0; d < dim; d++)
            out[i * ld + d] = o[d] / sum;
    }
}

#if defined(__AVX512BF16__)
enum { ROWS = 12 };

/* Pairs of rows of b side by side, in strips of 32 columns. */
static void pack(int64_t n, int64_t k, const uint16_t *restrict b, uint16_t *restrict to)
{
    for (int64_t j = 0; j < n; j += 32)
        for (int64_t p = 0; p < k; p += 2)
            for (int64_t i = 0; i < 32; i++) {
                *to++ = b[p * n + j + i];
                *to++ = b[(p + 1) * n + j + i];
            }
}

static inline __m512bh pair(const uint16_t *a)
{
    int both;
    __builtin_memcpy(&both, a, sizeof both);
    return (__m512bh)_mm512_set1_epi32(both);
}

static inline void tile(int64_t rows, int64_t n, int64_t k, const uint16_t *a, const uint16_t *strip, float *c)
{
    __m512 acc[ROWS][2];
    for (int r = 0; r < ROWS; r++)
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    for (int64_t p = 0; p < k; p += 2, strip += 64) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(strip), b1 = (__m512bh)_mm512_loadu_si512(strip + 32);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            __m512bh x = pair(a + (r < rows ? r : 0) * k + p);
            acc[r][0] = _mm512_dpbf16_ps(acc[r][0], x, b0);
            acc[r][1] = _mm512_dpbf16_ps(acc[r][1], x, b1);
        }
    }
    for (int r = 0; r < rows; r++) {
        _mm512_storeu_ps(c + r * n, acc[r][0]);
        _mm512_storeu_ps(c + r * n + 16, acc[r][1]);
    }
}

int fast_bf16_matmul(int64_t m, int64_t n, int64_t k, const uint16_t *a, const uint16_t *b, float *c, uint16_t *scratch)
{
    if (n % 32 != 0 || k % 2 != 0)
        return 0;
    pack(n, k, b, scratch);
    for (int64_t j = 0; j < n; j += 32)
        for (int64_t i = 0; i < m; i += ROWS)
            tile(m - i < ROWS ? m - i : ROWS, n, k, a + i * k, scratch + j * k, c + i * n + j);
    return 1;
}
#else
int fast_bf16_matmul(int64_t m, int64_t n, int64_t k, const uint16_t *a, const uint16_t *b, float *c, uint16_t *scratch)
{
    (void)m, (void)n, (void)k, (void)a, (void)b, (void)c, (void)scratch;
    return 0;
}
#endif
