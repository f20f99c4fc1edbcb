/* rng.h: random numbers that are pure functions of where they belong. Public.
 *
 * A draw is a function of a key (a seed and the name of a stream) and of two 64-bit coordinates
 * (a, b), such as a sample's global number and the position in it; there is no state. Draws of
 * different kinds at the same coordinates share words, so give each use a stream of its own.
 *
 * The formulas ([] are words, all words little-endian):
 *
 *   key          K = first 8 bytes of SHA-256(seed as 8 little-endian bytes, name's bytes)
 *                k[0] = K as u64 mod 2^32,  k[1] = K as u64 div 2^32
 *   block(a, q)  Philox4x32-10, counter c = {q mod 2^32, q div 2^32, a mod 2^32, a div 2^32};
 *                ten times:
 *                  p0 = 0xD2511F53 * c[0],  p1 = 0xCD9E8D57 * c[2]            (64-bit products)
 *                  c = {hi(p1) ^ c[1] ^ k[0], lo(p1), hi(p0) ^ c[3] ^ k[1], lo(p0)}
 *                  k[0] += 0x9E3779B9,  k[1] += 0xBB67AE85                    (mod 2^32)
 *   u32(a, b)    block(a, b div 4)[b mod 4]
 *   u64(a, b)    w[0] + 2^32 w[1],  w = block(a, b div 2) from word 2 (b mod 2) on
 *   uniform32    (u32(a, b) div 2^8) * 2^-24                                  in [0, 1), exact
 *   uniform64    (u64(a, b) div 2^11) * 2^-53                                 in [0, 1), exact
 *   below(n)     (u64(a, b) * n) div 2^64                  in 0 .. n-1, within 2^-64 of even
 *   normal64     Box-Muller on h = b - b mod 2:
 *                  u = (u64(a, h) div 2^11 + 1) * 2^-53                       in (0, 1]
 *                  v = uniform64(a, h + 1)
 *                  r = sqrt(-2 * log64(u)),  t = 0x1.921fb54442d18p+2 * v     (2 pi, rounded)
 *                  r * cos64(t) for even b,  r * sin64(t) for odd b           |.| < 8.6
 *                with log64, cos64, sin64 of tensor/kernels/math64.h; every operation rounds once.
 * Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3". */
#ifndef TL_RNG_H
#define TL_RNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/status.h"
TL_BEGIN

/* A stream's key. Draw from it only if status is TL_OK, not TL_EDOMAIN (no name) or TL_ENOMEM. */
typedef struct {
    uint32_t k[2];
    tl_status status;
} tl_rng_key;
tl_rng_key tl_rng_stream(uint64_t seed, const char *name);

/* Philox4x32-10 itself: counter and key to four words. out may be c. */
void tl_philox4x32(uint32_t out[4], const uint32_t c[4], const uint32_t k[2]);

/* Draw (a, b) of a stream. */
uint32_t tl_rng_u32(tl_rng_key key, uint64_t a, uint64_t b);               /* bits */
uint64_t tl_rng_u64(tl_rng_key key, uint64_t a, uint64_t b);               /* bits */
float tl_rng_uniform32(tl_rng_key key, uint64_t a, uint64_t b);            /* in [0, 1) */
double tl_rng_uniform64(tl_rng_key key, uint64_t a, uint64_t b);           /* in [0, 1) */
uint64_t tl_rng_below(tl_rng_key key, uint64_t a, uint64_t b, uint64_t n); /* < n; 0 for n = 0 */
double tl_rng_normal64(tl_rng_key key, uint64_t a, uint64_t b); /* normal: mean 0, variance 1 */

/* out[i] = the draw (uniform32, uniform64, normal64) at (a, b + i), i < n; a block is made once. */
void tl_rng_fill_uniform32(float *out, size_t n, tl_rng_key key, uint64_t a, uint64_t b);
void tl_rng_fill_uniform64(double *out, size_t n, tl_rng_key key, uint64_t a, uint64_t b);
void tl_rng_fill_normal64(double *out, size_t n, tl_rng_key key, uint64_t a, uint64_t b);
/* Sets element i, row-major, to scale times a draw at (0, i): normal64, or 2 * uniform64 - 1. */
struct tl_array;
void tl_rng_fill_array(const struct tl_array *out, tl_rng_key key, bool normal, double scale);
TL_END
#endif
