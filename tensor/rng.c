/* rng.c: Philox4x32-10 and the draws made from it. rng.h has the formulas. */
#include "tensor/rng.h"

#include <math.h>
#include <string.h>

#include "tensor/array.h"
#include "tensor/files/bytes.h"
#include "tensor/files/hash.h"
#include "tensor/isa.h"
#include "tensor/memory.h"
#include "tensor/threads.h"

enum { ROUNDS = 10 };

tl_rng_key tl_rng_stream(uint64_t seed, const char *name)
{
    tl_sha256_ctx ctx;
    unsigned char hash[TL_SHA256_BYTES];
    tl_rng_key key = {{0, 0}, name == NULL ? TL_EDOMAIN : TL_OK};
    if (name == NULL)
        return key;
    (void)tl_sha256_begin(&ctx, NULL); /* finish reports a failure */
    tl_sha256_feed_u64(&ctx, seed);
    tl_sha256_feed(&ctx, name, strlen(name));
    key.status = tl_sha256_finish(&ctx, hash, NULL);
    uint64_t word = tl_bytes_get64(hash);
    key.k[0] = (uint32_t)word;
    key.k[1] = (uint32_t)(word >> 32);
    return key;
}

static inline void round_of(uint32_t *c0, uint32_t *c1, uint32_t *c2, uint32_t *c3, uint32_t k0,
                            uint32_t k1)
{
    const uint64_t p0 = (uint64_t)0xD2511F53u * *c0, p1 = (uint64_t)0xCD9E8D57u * *c2;
    *c0 = (uint32_t)(p1 >> 32) ^ *c1 ^ k0;
    *c1 = (uint32_t)p1;
    *c2 = (uint32_t)(p0 >> 32) ^ *c3 ^ k1;
    *c3 = (uint32_t)p0;
}

/* The key of round i. */
static inline uint32_t key0(const uint32_t k[2], int i) { return k[0] + (uint32_t)i * 0x9E3779B9u; }
static inline uint32_t key1(const uint32_t k[2], int i) { return k[1] + (uint32_t)i * 0xBB67AE85u; }

void tl_philox4x32(uint32_t out[4], const uint32_t c[4], const uint32_t k[2])
{
    uint32_t c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3];
    for (int i = 0; i < ROUNDS; i++)
        round_of(&c0, &c1, &c2, &c3, key0(k, i), key1(k, i));
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static void block(uint32_t out[4], tl_rng_key key, uint64_t a, uint64_t q)
{
    uint32_t c[4] = {(uint32_t)q, (uint32_t)(q >> 32), (uint32_t)a, (uint32_t)(a >> 32)};
    tl_philox4x32(out, c, key.k);
}

/* The n blocks from that of draw b on, at most TOGETHER; a block has 1 << shift draws. Returns how
 * many there are. All are made side by side, in vectors. */
enum { TOGETHER = 8 };
static int blocks(uint32_t w[4 * TOGETHER], size_t n, tl_rng_key key, uint64_t a, uint64_t b,
                  int shift)
{
    uint32_t c0[TOGETHER], c1[TOGETHER], c2[TOGETHER], c3[TOGETHER];
    if (n < TOGETHER) {
        for (size_t l = 0; l < n; l++)
            block(w + 4 * l, key, a, (b + (l << shift)) >> shift);
        return (int)n;
    }
    for (int l = 0; l < TOGETHER; l++) {
        const uint64_t q = (b + ((uint64_t)l << shift)) >> shift; /* draws go on from 2^64 at 0 */
        c0[l] = (uint32_t)q;
        c1[l] = (uint32_t)(q >> 32);
        c2[l] = (uint32_t)a;
        c3[l] = (uint32_t)(a >> 32);
    }
    for (int i = 0; i < ROUNDS; i++)
        for (int l = 0; l < TOGETHER; l++)
            round_of(&c0[l], &c1[l], &c2[l], &c3[l], key0(key.k, i), key1(key.k, i));
    for (int l = 0; l < TOGETHER; l++) {
        w[4 * l + 0] = c0[l];
        w[4 * l + 1] = c1[l];
        w[4 * l + 2] = c2[l];
        w[4 * l + 3] = c3[l];
    }
    return TOGETHER;
}

/* A block w gives four draws of 32 bits, or two of 64, or a pair of normals. */

static float uniform32_of(uint32_t x) { return (float)(x >> 8) * 0x1p-24f; }
static double uniform64_of(uint64_t x) { return (double)(x >> 11) * 0x1p-53; }
static uint64_t pair_of(const uint32_t w[4], int i)
{
    return w[2 * i] | (uint64_t)w[2 * i + 1] << 32;
}

/* The pairs of normals from b on, which is even. The functions are faster on several at once. */
enum { PAIRS = 32 };
static void normals(double out[][2], int pairs, tl_rng_key key, uint64_t a, uint64_t b)
{
    const tl_math_table *math = tl_isa_now()->math;
    double r[PAIRS], t[PAIRS], part[PAIRS];
    for (int i = 0, m; i < pairs; i += m) {
        uint32_t w[4 * TOGETHER];
        m = blocks(w, (size_t)(pairs - i), key, a, b + 2 * (uint64_t)i, 1);
        for (int l = 0; l < m; l++) {
            r[i + l] = (double)((pair_of(w, 2 * l) >> 11) + 1) * 0x1p-53;
            t[i + l] = 0x1.921fb54442d18p+2 * uniform64_of(pair_of(w, 2 * l + 1));
        }
    }
    math->log64(pairs, r, r);
    for (int i = 0; i < pairs; i++)
        r[i] = sqrt(-2.0 * r[i]);
    math->cos64(pairs, t, part);
    for (int i = 0; i < pairs; i++)
        out[i][0] = r[i] * part[i];
    math->sin64(pairs, t, part);
    for (int i = 0; i < pairs; i++)
        out[i][1] = r[i] * part[i];
}

uint32_t tl_rng_u32(tl_rng_key key, uint64_t a, uint64_t b)
{
    uint32_t w[4];
    block(w, key, a, b / 4);
    return w[b % 4];
}

uint64_t tl_rng_u64(tl_rng_key key, uint64_t a, uint64_t b)
{
    uint32_t w[4];
    block(w, key, a, b / 2);
    return pair_of(w, (int)(b % 2));
}

float tl_rng_uniform32(tl_rng_key key, uint64_t a, uint64_t b)
{
    return uniform32_of(tl_rng_u32(key, a, b));
}

double tl_rng_uniform64(tl_rng_key key, uint64_t a, uint64_t b)
{
    return uniform64_of(tl_rng_u64(key, a, b));
}

uint64_t tl_rng_below(tl_rng_key key, uint64_t a, uint64_t b, uint64_t n)
{
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)tl_rng_u64(key, a, b) * n >> 64);
}

double tl_rng_normal64(tl_rng_key key, uint64_t a, uint64_t b)
{
    double x;
    tl_rng_fill_normal64(&x, 1, key, a, b);
    return x;
}

/* The blocks of n draws from b on, or of the first of them. *skip: draws of the first block that
 * come before b. Returns how many follow them. */
static size_t draws(uint32_t w[4 * TOGETHER], size_t n, tl_rng_key key, uint64_t a, uint64_t b,
                    int shift, size_t *skip)
{
    const size_t each = (size_t)1 << shift;
    *skip = b % each;
    const size_t there = each * (size_t)blocks(w, (*skip + n + each - 1) / each, key, a, b, shift);
    return there - *skip < n ? there - *skip : n;
}

void tl_rng_fill_uniform32(float *out, size_t n, tl_rng_key key, uint64_t a, uint64_t b)
{
    uint32_t w[4 * TOGETHER];
    for (size_t i = 0, m, skip; out != NULL && i < n; i += m) {
        m = draws(w, n - i, key, a, b + i, 2, &skip);
        for (size_t k = 0; k < m; k++)
            out[i + k] = uniform32_of(w[skip + k]);
    }
}

void tl_rng_fill_uniform64(double *out, size_t n, tl_rng_key key, uint64_t a, uint64_t b)
{
    uint32_t w[4 * TOGETHER];
    for (size_t i = 0, m, skip; out != NULL && i < n; i += m) {
        m = draws(w, n - i, key, a, b + i, 1, &skip);
        for (size_t k = 0; k < m; k++)
            out[i + k] = uniform64_of(pair_of(w, (int)(skip + k)));
    }
}

void tl_rng_fill_normal64(double *out, size_t n, tl_rng_key key, uint64_t a, uint64_t b)
{
    tl_fpenv saved = tl_fpenv_enter();
    for (size_t i = 0, m; out != NULL && i < n; i += m) {
        double pair[PAIRS][2];
        const size_t odd = (size_t)((b + i) % 2), left = n - i + odd;
        m = (left < 2 * PAIRS ? left : 2 * PAIRS) - odd;
        normals(pair, (int)((m + odd + 1) / 2), key, a, b + i - odd);
        memcpy(out + i, &pair[0][odd], m * sizeof *out);
    }
    tl_fpenv_leave(saved);
}

typedef struct {
    const tl_array *out;
    tl_rng_key key;
    bool normal;
    double scale;
} filling;

static void fill_range(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const filling *f = ctx;
    double x[2 * PAIRS];
    for (int64_t i = begin, n; i < end; i += n) {
        n = end - i < 2 * PAIRS ? end - i : 2 * PAIRS;
        (f->normal ? tl_rng_fill_normal64 : tl_rng_fill_uniform64)(x, (size_t)n, f->key, 0,
                                                                   (uint64_t)i);
        for (int64_t k = 0; k < n; k++)
            tl_array_put(f->out, i + k, (f->normal ? x[k] : 2 * x[k] - 1) * f->scale);
    }
}

void tl_rng_fill_array(const tl_array *out, tl_rng_key key, bool normal, double scale)
{
    if (out != NULL)
        tl_parallel_for(tl_array_count(out), 4096, fill_range, &(filling){out, key, normal, scale});
}
