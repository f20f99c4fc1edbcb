/* rows.h: kernels over contiguous rows, folds of rows into accumulators, and optimizer updates.
 *
 * A row is n contiguous elements of the compute type. Sums within a row are by lanes
 * (NUMERICS 3.1); folds continue one f64 accumulator per element (NUMERICS 3.2). */
#ifndef TL_KERNELS_ROWS_H
#define TL_KERNELS_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/operands.h"
#include "tensor/threads.h"

/* The scalars of an optimizer step. Kernels round them to their type (NUMERICS 12.3, 12.4). */
typedef struct {
    double b1, b1c, b2, b2c, eps, lr, wd, c1, c2, clip;
    double l2; /* Adam adds l2 * p to the gradient; for AdamW it is 0, and nothing is added */
} tl_adamw_step;

typedef struct {
    double mu, lr, wd, clip;
    bool nesterov, decoupled;
} tl_sgd_step;

/* Operands of an op that works by rows: contiguous and of the compute type. Row r of most of them
 * begins at element r*n; in[i] is NULL if the operand is absent. A row kernel is called for rows
 * [begin, end). */
enum { TL_ROWS_MOST = TL_TILE_MAX_IN };
typedef struct {
    int64_t n, rows;
    const void *in[TL_ROWS_MOST];
    void *out[TL_ROWS_MOST];
    const void *attrs; /* the op's */
} tl_rows;

/* Attributes of norms. */
typedef struct {
    double eps;    /* NaN: the compute type's epsilon */
    int64_t k;     /* normalized dims, from the last: a row */
    bool plus_one; /* the weight is 1 + gamma */
} tl_norm_attrs;

/* Operands of a norm's gradient. mean, which is NULL for rms_norm, and rstd have one element per
 * row; gamma, which may be NULL, is one row. */
typedef struct {
    int64_t n, rows;
    const void *x, *dy, *gamma;
    const void *mean, *rstd;
    void *dx;
    double *fold; /* a row of accumulators, for dgamma */
} tl_norm_rows;

/* The slots of row kernels, which op structs name. */
#define TL_ROW_LIST(X) \
    X(rms_norm) X(layer_norm) X(softmax) X(softmax_grad) X(log_softmax) X(log_softmax_grad)
enum {
    TL_ROW_none,
#define X(name) TL_ROW_##name,
    TL_ROW_LIST(X)
#undef X
        TL_ROW_COUNT
};

/* Lists the kernels of compute type T as X(result, name, operands); names end in S. In ops, TL_ROW
 * calls one of them by dtype. */
/* clang-format off */
#define TL_ROW_FUNCTIONS(X, T, S)                                                                 \
    X(T, lanes##S, (int64_t n, const T *x))                                                       \
    X(T, max##S, (int64_t n, const T *x))                                                         \
    X(T, min##S, (int64_t n, const T *x))                                                         \
    /* lanes' sum of squares, in f64 */                                                           \
    X(double, square_sum##S, (int64_t n, const T *x))                                             \
    /* y[i] += x[i], in T */                                                                      \
    X(void, accumulate##S, (int64_t n, const T *x, T *y))                                         \
    /* Of a tl_norm_rows, by 6.7 or, without a mean, by 6.2: dx for rows [begin, end); and, row by \
     * row, fold[i] += (double)(dy[i] * ((x[i] - mean) * rstd)) for columns i in [begin, end) */  \
    X(void, norm_grad##S, (void *rows, int64_t begin, int64_t end, int thread))                   \
    X(void, norm_fold##S, (void *columns, int64_t begin, int64_t end, int thread))                \
    /* The plain fold of a tl_norm_rows with x, n, rows and fold alone: fold[i] += (double)x[i] */ \
    X(void, fold##S, (void *columns, int64_t begin, int64_t end, int thread))                     \
    /* loss of one row with target t (6.5) and smoothing eps (6.9), and its gradient, given that of \
     * the loss */                                                                                \
    X(double, cross_entropy##S, (int64_t n, const T *z, int64_t t, double eps))                   \
    X(void, cross_entropy_grad##S,                                                                \
      (int64_t n, const T *z, int64_t t, double eps, double dy, T *dz))                           \
    /* y = r1*x + r2*R(x) over n dims (NUMERICS 8.1), or, turned, y = r1*x - R(r2*x) */           \
    X(void, rotary##S, (int64_t n, const T *x, const T *r1, const T *r2, bool interleaved,        \
                        bool turned, T *y))                                                       \
    /* da, db (2.7) and, unless y is NULL, y = swiglu(a, b) */                                    \
    X(void, swiglu_grad##S, (int64_t n, const T *dy, const T *a, const T *b, T *da, T *db, T *y)) \
    /* a step of a recurrent layer, and its gradient (recur.t.h) */                               \
    X(void, lstm##S, (int64_t n, const T *g, const T *u, const T *b, T *a, T *c))                 \
    X(void, lstm_out##S, (int64_t n, const T *a, const T *c, T *h))                               \
    X(void, gru##S, (int64_t n, const T *g, const T *u, const T *b, T *a, T *h))                  \
    X(void, rnn##S, (int64_t n, const T *g, const T *u, const T *b, bool relu, T *h))             \
    X(void, lstm_grad##S, (int64_t n, const T *dh, T *dc, const T *a, const T *c, const T *old,   \
                           const T *da, T *ds))                                                   \
    X(void, gru_grad##S,                                                                          \
      (int64_t n, T *dh, const T *a, const T *old, const T *da, T *dg, T *ds))                    \
    X(void, rnn_grad##S, (int64_t n, const T *dh, const T *h, bool relu, T *ds))                  \
    X(void, adamw##S, (int64_t n, T *p, const T *g, T *m, T *v, const tl_adamw_step *s))          \
    /* b NULL: no momentum */                                                                     \
    X(void, sgd##S, (int64_t n, T *p, const T *g, T *b, const tl_sgd_step *s))
/* clang-format on */

typedef struct {
#define X(result, name, operands) result(*name) operands;
    TL_ROW_FUNCTIONS(X, float, 32)
    TL_ROW_FUNCTIONS(X, double, 64)
#undef X
    /* Kernels of a tl_rows, by slot: (x, gamma?) -> (y, rstd) of NUMERICS 6.1; (x, gamma?, beta?)
     * -> (y, mean, rstd) of 6.6; x -> y of 6.3 and 6.4, and (dy, y) -> dx of these. */
    tl_range_fn *rows32[TL_ROW_COUNT], *rows64[TL_ROW_COUNT];
} tl_row_table;

/* Calls the kernel of f64, or that of f32, of table k. Operands are void pointers. */
#define TL_ROW(k, f64, name, ...) ((f64) ? (k)->name##64(__VA_ARGS__) : (k)->name##32(__VA_ARGS__))

extern const tl_row_table tl_row_table_scalar, tl_row_table_v2, tl_row_table_v3, tl_row_table_v4,
    tl_row_table_neon;

#endif
