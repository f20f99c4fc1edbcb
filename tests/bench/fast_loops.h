/* fast_loops.h: the ops as anybody would write them who promises no bits. Compiled by
 * -O3 -ffast-math -march=native, so that sums are reassociated, products contracted, and
 * elementary functions taken from the vector library of libm. f32 unless named 64, contiguous. */
#ifndef TL_FAST_LOOPS_H
#define TL_FAST_LOOPS_H

#include <stdint.h>

/* clang-format off */
#define FAST_UNARY(X)                                                                            \
    X(exp) X(log) X(sin) X(cos) X(tanh) X(erf) X(sigmoid) X(silu) X(gelu) X(rsqrt) X(exp2)       \
    X(expm1) X(log2) X(log1p) X(softplus) X(gelu_tanh) X(pow) /* pow: to 3/2 */
/* clang-format on */
#define X(name) void fast_##name(int64_t n, const float *x, float *y);
FAST_UNARY(X)
#undef X

void fast_add(int64_t n, const float *a, const float *b, float *y);
void fast_swiglu(int64_t n, const float *a, const float *b, float *y);
float fast_sum(int64_t n, const float *x);
float fast_mean(int64_t n, const float *x);
float fast_square_sum(int64_t n, const float *x);
float fast_max(int64_t n, const float *x);
void fast_fold(int64_t n, const float *x, float *acc);         /* acc += x */
void fast_softmax(int64_t n, const float *x, float *y);        /* two passes over the row */
void fast_softmax_online(int64_t n, const float *x, float *y); /* maximum and sum in one */
void fast_softmax_grad(int64_t n, const float *y, const float *dy, float *dx);
void fast_log_softmax(int64_t n, const float *x, float *y);
float fast_cross_entropy(int64_t n, const float *z, int64_t target);
void fast_rms_norm(int64_t n, const float *x, const float *gamma, float eps, float *y);
void fast_layer_norm(int64_t n, const float *x, const float *gamma, const float *beta, float eps,
                     float *y);
void fast_rms_norm_grad(int64_t n, const float *dy, const float *x, const float *gamma, float rstd,
                        float *dx);
void fast_layer_norm_grad(int64_t n, const float *dy, const float *x, const float *gamma,
                          float mean, float rstd, float *dx);
void fast_cross_entropy_grad(int64_t n, const float *z, int64_t target, float w, float *dz);
void fast_exp64(int64_t n, const double *x, double *y);
void fast_matmul64(int64_t m, int64_t n, int64_t k, const double *a, const double *b,
                   double *c); /* row by row, the columns vectorised */
void fast_rotary(int64_t n, const float *x, const float *cosine, const float *sine,
                 float *y); /* halves */
void fast_adamw(int64_t n, float *p, const float *g, float *m, float *v, float lr, float b1,
                float b2, float eps, float wd, float c1, float c2);

/* Causal attention of one head: len queries and keys (a multiple of 8), of dim numbers (a multiple
 * of 16, at most 128), rows ld apart; the softmax online, so that no row of scores is kept.
 * scratch: 128 numbers for each key, 64 keys at least. */
void fast_attention(int64_t len, int64_t dim, int64_t ld, const float *q, const float *k,
                    const float *v, float scale, float *o, float *scratch);

/* c (m x n, f32) = a (m x k) b (k x n), bf16, by the processor's products of bf16: dot products of
 * pairs (AVX512-BF16; k even, n a multiple of 32), or tiles (AMX; m, n and k multiples of 32). 0,
 * and nothing done, where it has none. scratch: n * k numbers. */
int fast_bf16_matmul(int64_t m, int64_t n, int64_t k, const uint16_t *a, const uint16_t *b,
                     float *c, uint16_t *scratch);
int fast_amx_matmul(int64_t m, int64_t n, int64_t k, const uint16_t *a, const uint16_t *b, float *c,
                    uint16_t *scratch);
/* For both: pairs of rows of b side by side, in strips of 32 columns. */
void fast_bf16_pack(int64_t n, int64_t k, const uint16_t *b, uint16_t *to);

#endif
