/* fast_attention.c: attention with online softmax, blocks of keys for blocks of queries; see
 * fast_loops.h. */
#include "tests/bench/fast_loops.h"

#include <math.h>
#include <string.h>

#if defined(__AVX512F__)
enum { WIDE = 16 };
#elif defined(__AVX__)
enum { WIDE = 8 };
#else
enum { WIDE = 4 };
#endif
enum { KEYS = 64, QUERIES = 8, MOST = 128 };

typedef float vec __attribute__((vector_size(WIDE * sizeof(float))));

static inline vec load(const float *x)
{
    vec v;
    memcpy(&v, x, sizeof v);
    return v;
}
static inline void store(float *x, vec v) { memcpy(x, &v, sizeof v); }

/* Where a query stands: the largest score so far, the sum and the output that belong to it. */
typedef struct {
    float max[QUERIES], sum[QUERIES], out[QUERIES][MOST];
} running;

/* Keys side by side: kt[i][j] is number i of key j, zero past the last key. */
static void turn(int64_t keys, int64_t dim, int64_t ld, const float *restrict k,
                 float kt[MOST][KEYS])
{
    for (int64_t i = 0; i < dim; i++)
        for (int64_t j = 0; j < KEYS; j++)
            kt[i][j] = j < keys ? k[j * ld + i] : 0;
}

/* s[r][j] = q_r . k_j * scale */
static void scores(int64_t dim, int64_t ld, const float *restrict q, float kt[MOST][KEYS],
                   float scale, float s[QUERIES][KEYS])
{
    for (int64_t at = 0; at < KEYS; at += WIDE) {
        vec acc[QUERIES] = {{0}};
        for (int64_t i = 0; i < dim; i++) {
            vec k = load(kt[i] + at);
#pragma GCC unroll 8
            for (int r = 0; r < QUERIES; r++)
                acc[r] += q[r * ld + i] * k;
        }
#pragma GCC unroll 8
        for (int r = 0; r < QUERIES; r++)
            store(s[r] + at, acc[r] * scale);
    }
}

/* Scores of allowed keys become weights; what a query holds so far is rescaled to its new maximum.
 */
static void weigh(int64_t allowed, int64_t dim, float *restrict s, float *restrict max,
                  float *restrict sum, float *restrict out)
{
    float top = *max, part = 0;
    for (int64_t j = 0; j < allowed; j++)
        top = s[j] > top ? s[j] : top;
    for (int64_t j = 0; j < KEYS; j++)
        part += s[j] = j < allowed ? expf(s[j] - top) : 0;
    float factor = expf(*max - top);
    for (int64_t d = 0; d < dim; d++)
        out[d] *= factor;
    *sum = *sum * factor + part;
    *max = top;
}

static void add_values(int64_t keys, int64_t dim, int64_t ld, float s[QUERIES][KEYS],
                       const float *restrict v, running *restrict w)
{
    for (int64_t at = 0; at < dim; at += WIDE) {
        vec acc[QUERIES];
#pragma GCC unroll 8
        for (int r = 0; r < QUERIES; r++)
            acc[r] = load(w->out[r] + at);
        for (int64_t j = 0; j < keys; j++) {
            vec x = load(v + j * ld + at);
#pragma GCC unroll 8
            for (int r = 0; r < QUERIES; r++)
                acc[r] += s[r][j] * x;
        }
#pragma GCC unroll 8
        for (int r = 0; r < QUERIES; r++)
            store(w->out[r] + at, acc[r]);
    }
}

void fast_attention(int64_t len, int64_t dim, int64_t ld, const float *q, const float *k,
                    const float *v, float scale, float *o, float *scratch)
{
    float(*kt)[MOST][KEYS] = (float(*)[MOST][KEYS])scratch, s[QUERIES][KEYS];
    for (int64_t at = 0; at < len; at += KEYS)
        turn(len - at < KEYS ? len - at : KEYS, dim, ld, k + at * ld, kt[at / KEYS]);
    for (int64_t i = 0; i < len; i += QUERIES) {
        running w = {.sum = {0}};
        for (int r = 0; r < QUERIES; r++)
            w.max[r] = -1e30f;
        for (int64_t at = 0; at < i + QUERIES; at += KEYS) {
            scores(dim, ld, q + i * ld, kt[at / KEYS], scale, s);
            for (int r = 0; r < QUERIES; r++)
                weigh(i + r + 1 - at < KEYS ? i + r + 1 - at : KEYS, dim, s[r], &w.max[r],
                      &w.sum[r], w.out[r]);
            add_values(len - at < KEYS ? len - at : KEYS, dim, ld, s, v + at * ld, &w);
        }
        for (int r = 0; r < QUERIES; r++)
            for (int64_t d = 0; d < dim; d++)
                o[(i + r) * ld + d] = w.out[r][d] / w.sum[r];
    }
}
