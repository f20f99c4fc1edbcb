/* fast_loops.h: the ops as anybody would write them who promises no bits. Compiled by
 * -O3 -ffast-math -march=native, so that sums are reassociated, products contracted, and
 * elementary functions taken from the vector library of libm. f32, contiguous. */
#ifndef TL_FAST_LOOPS_H
#define TL_FAST_LOOPS_H

#include <stdint.h>

#define FAST_UNARY(X) X(exp) X(log) X(sin) X(cos) X(tanh) X(erf) X(sigmoid) X(silu) X(gelu) X(rsqrt)
#define X(name) void fast_##name(int64_t n, const float *x, float *y);
FAST_UNARY(X)
#undef X

float fast_sum(int64_t n, const float *x);
float fast_max(int64_t n, const float *x);
void fast_fold(int64_t n, const float *x, float *acc);      /* acc += x */
void fast_softmax(int64_t n, const float *x, float *y);     /* two passes over the row */
void fast_softmax_online(int64_t n, const float *x, float *y); /* maximum and sum in one */
void fast_log_softmax(int64_t n, const float *x, float *y);
float fast_cross_entropy(int64_t n, const float *z, int64_t target);
void fast_rms_norm(int64_t n, const float *x, const float *gamma, float eps, float *y);
void fast_layer_norm(int64_t n, const float *x, const float *gamma, const float *beta, float eps, float *y);
void fast_rotary(int64_t n, const float *x, const float *cosine, const float *sine, float *y); /* halves */
void fast_adamw(int64_t n, float *p, const float *g, float *m, float *v, float lr, float b1, float b2, float eps, float wd, float c1, float c2);

/* Causal attention of one head, len queries and keys of dim numbers (at most 128, rows ld apart), one online pass. */
void fast_attention(int64_t len, int64_t dim, int64_t ld, const float *q, const float *k, const float *v, float scale, float *o);

/* c (m x n, f32) = a (m x k) b (k x n), bf16, by the processor's dot products of bf16 pairs;
 * 0 where it has none, or k is odd, or n no multiple of 32. scratch: n * k numbers. */
int fast_bf16_matmul(int64_t m, int64_t n, int64_t k, const uint16_t *a, const uint16_t *b, float *c, uint16_t *scratch);

#endif
