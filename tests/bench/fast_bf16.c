/* fast_bf16.c: bf16 products by AVX512-BF16, which flushes subnormals and rounds sums of pairs as
 * it likes; see fast_loops.h. */
#include "tests/bench/fast_loops.h"

void fast_bf16_pack(int64_t n, int64_t k, const uint16_t *restrict b, uint16_t *restrict to)
{
    for (int64_t j = 0; j < n; j += 32)
        for (int64_t p = 0; p < k; p += 2)
            for (int64_t i = 0; i < 32; i++) {
                *to++ = b[p * n + j + i];
                *to++ = b[(p + 1) * n + j + i];
            }
}

#if defined(__AVX512BF16__)
#include <immintrin.h>

enum { ROWS = 12 };

static inline __m512bh pair(const uint16_t *a)
{
    int both;
    __builtin_memcpy(&both, a, sizeof both);
    return (__m512bh)_mm512_set1_epi32(both);
}

static inline void tile(int64_t rows, int64_t n, int64_t k, const uint16_t *a,
                        const uint16_t *strip, float *c)
{
    __m512 acc[ROWS][2];
    for (int r = 0; r < ROWS; r++)
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    for (int64_t p = 0; p < k; p += 2, strip += 64) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(strip),
                 b1 = (__m512bh)_mm512_loadu_si512(strip + 32);
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

int fast_bf16_matmul(int64_t m, int64_t n, int64_t k, const uint16_t *a, const uint16_t *b,
                     float *c, uint16_t *scratch)
{
    if (n % 32 != 0 || k % 2 != 0)
        return 0;
    fast_bf16_pack(n, k, b, scratch);
    for (int64_t j = 0; j < n; j += 32)
        for (int64_t i = 0; i < m; i += ROWS)
            tile(m - i < ROWS ? m - i : ROWS, n, k, a + i * k, scratch + j * k, c + i * n + j);
    return 1;
}
#else
int fast_bf16_matmul(int64_t m, int64_t n, int64_t k, const uint16_t *a, const uint16_t *b,
                     float *c, uint16_t *scratch)
{
    (void)m, (void)n, (void)k, (void)a, (void)b, (void)c, (void)scratch;
    return 0;
}
#endif
