/* ref_gemm.h: matrix multiplication from the three lines of NUMERICS, as naively as possible.
 *
 * Shares nothing with the library. Types are letters: 's' binary32, 'd' binary64,
 * 'h' binary16, 'b' bfloat16, the last two as their 16 bits. Strides in elements.
 */
#ifndef REF_GEMM_H
#define REF_GEMM_H

#include <stdint.h>

typedef struct {
    const void *data;
    char type;
    long rs, cs;
} ref_mat;

/* c: float, or double when f64; the chain continues from c when accumulate. */
void ref_gemm(long m, long n, long k, ref_mat a, ref_mat b, void *c, long rsc, long csc, int f64,
              int accumulate);

double ref_h_to_f64(uint16_t bits);
double ref_b_to_f64(uint16_t bits);

/* The nearest one, ties to even, by search among all of them; NaN for NaN. */
uint16_t ref_f64_to_h(double x);
uint16_t ref_f64_to_b(double x);

#endif
