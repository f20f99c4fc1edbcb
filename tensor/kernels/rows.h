/* rows.h: kernels over one contiguous row, and folds of a row into accumulators.
 *
 * A row is n contiguous elements of the compute type. Sums within it are by lanes
 * (NUMERICS 3.1); folds continue an f64 accumulator per element (NUMERICS 3.2). */
#ifndef TL_KERNELS_ROWS_H
#define TL_KERNELS_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/threads.h"

/* Scalars of one optimizer step, which the kernels round to their type (NUMERICS 12.3, 12.4). */
typedef struct {
    double b1, b1c, b2, b2c, eps, lr, wd, c1, c2, clip;
    double l2; /* Adam: added to the gradient as l2 * p; AdamW: 0, and not added */
} tl_adamw_step;

typedef struct {
    double mu, lr, wd, clip;
    bool nesterov, decoupled;
} tl_sgd_step;

/* Rows of a norm: contiguous operands of the compute type, row r from element r*n on; mean and rstd
 * have one element a row, gamma and beta, which may be NULL, are one row. */
typedef struct {
    int64_t n, rows;
    const void *x, *dy, *gamma, *beta;
    void *mean, *rstd;
    void *y; /* or dx */
    double eps;
    double *fold; /* dgamma's accumulator, a row */
} tl_norm_rows;

/* T is float for the f32 table and double for the f64 one. */
#define TL_ROW_FUNCTIONS(T, S)                                                                     \
    T (*lanes##S)(int64_t n, const T *x);                                                          \
    T (*max##S)(int64_t n, const T *x);                                                            \
    /* Over rows [begin, end) of a tl_norm_rows: y and rstd of NUMERICS 6.1; dx of 6.2. Over       \
     * columns of it: fold[i] += (double)(dy[i] * (x[i] * rstd)), all rows in order. */            \
    tl_range_fn *rms_norm##S, *rms_norm_grad##S, *rms_norm_fold##S;                                \
    /* The same of 6.6, with mean; of 6.7; and fold[i] += (double)(dy[i] * ((x[i] - mean) * rstd)) \
     */                                                                                            \
    tl_range_fn *layer_norm##S, *layer_norm_grad##S, *layer_norm_fold##S;                          \
    /* acc[i] += (double)x[i] */                                                                   \
    void (*fold##S)(int64_t n, const T *x, double *acc);                                           \
    void (*softmax##S)(int64_t n, const T *x, T *y);                                               \
    void (*softmax_grad##S)(int64_t n, const T *y, const T *dy, T *dx);                            \
    void (*log_softmax##S)(int64_t n, const T *x, T *y);                                           \
    void (*log_softmax_grad##S)(int64_t n, const T *y, const T *dy, T *dx);                        \
    /* loss of one row with target t (6.5) */                                                      \
    T (*cross_entropy##S)(int64_t n, const T *z, int64_t t);                                       \
    void (*cross_entropy_grad##S)(int64_t n, const T *z, int64_t t, T w, T *dz);                   \
    /* y = r1*x + r2*R(x) over n dims (NUMERICS 8.1), or, turned, y = r1*x - R(r2*x) */            \
    void (*rotary##S)(int64_t n, const T *x, const T *r1, const T *r2, bool interleaved,           \
                      bool turned, T *y);                                                          \
    /* lanes' sum of squares, in f64 */                                                            \
    double (*square_sum##S)(int64_t n, const T *x);                                                \
    /* y[i] += x[i], in T */                                                                       \
    void (*accumulate##S)(int64_t n, const T *x, T *y);                                            \
    T (*min##S)(int64_t n, const T *x);                                                            \
    /* loss of one row with target t and smoothing eps (6.9), and its gradient */                  \
    T (*smooth_entropy##S)(int64_t n, const T *z, int64_t t, double eps);                          \
    void (*smooth_entropy_grad##S)(int64_t n, const T *z, int64_t t, double eps, T w, T *dz);      \
    /* da, db of 2.8 for dy, a, b */                                                               \
    void (*swiglu_grad##S)(int64_t n, const T *dy, const T *a, const T *b, T *da, T *db, T *y);    \
    /* a step of a recurrent layer, and its gradient (recur.t.h) */                                \
    void (*lstm##S)(int64_t n, const T *g, const T *u, const T *b, T *a, T *c);                    \
    void (*lstm_out##S)(int64_t n, const T *a, const T *c, T *h);                                  \
    void (*gru##S)(int64_t n, const T *g, const T *u, const T *b, T *a, T *h);                     \
    void (*rnn##S)(int64_t n, const T *g, const T *u, const T *b, bool relu, T *h);                \
    void (*lstm_grad##S)(int64_t n, const T *dh, T *dc, const T *a, const T *c, const T *old,      \
                         const T *da, T *ds);                                                      \
    void (*gru_grad##S)(int64_t n, T * dh, const T *a, const T *old, const T *da, T *dg, T *ds);   \
    void (*rnn_grad##S)(int64_t n, const T *dh, const T *h, bool relu, T *ds);                     \
    void (*adamw##S)(int64_t n, T * p, const T *g, T *m, T *v, const tl_adamw_step *s);            \
    void (*sgd##S)(int64_t n, T * p, const T *g, T *b,                                             \
                   const tl_sgd_step *s); /* b NULL: no momentum */

typedef struct {
    TL_ROW_FUNCTIONS(float, 32)
    TL_ROW_FUNCTIONS(double, 64)
} tl_row_table;

extern const tl_row_table tl_row_table_scalar, tl_row_table_v2, tl_row_table_v3, tl_row_table_v4,
    tl_row_table_neon;

#endif
