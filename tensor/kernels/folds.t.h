/* folds.t.h: folds of rows into f64 accumulators, one a column (NUMERICS 3.2): of x, and of what
 * rms_norm's and layer_norm's gamma gets (6.2, 6.7). Included by rows.k.c.
 *
 * A strip of columns has its accumulators in registers while DEEP rows go by; then the next strip,
 * and the next rows after the last, so that memory is read nearly in order. Each column's terms
 * are added in the order of the rows. +0 is added before the first: no sum that begins with it is
 * -0. */

enum { F(PLAIN), F(RMS), F(LAYER) };
enum { F(LANES) = sizeof(vec64) / sizeof(double), F(STRIP) = 8, F(DEEP) = 16 };

static inline __attribute__((always_inline)) H F(load)(const void *x, int64_t at)
{
    H v;
    memcpy(&v, (const T *)x + at, sizeof v);
    return v;
}

/* The terms of columns i, i + 1, ... of row r. */
static inline __attribute__((always_inline)) H F(fold_term)(const int kind, const tl_norm_rows *j,
                                                            int64_t r, int64_t i)
{
    const int64_t at = r * j->n + i;
    H x = F(load)(j->x, at);
    if (kind == F(LAYER))
        x = x - ((const T *)j->mean)[r];
    return kind == F(PLAIN) ? x : F(load)(j->dy, at) * (x * ((const T *)j->rstd)[r]);
}

static inline __attribute__((always_inline)) void F(fold_strip)(const int kind, const int parts,
                                                                const tl_norm_rows *j,
                                                                int64_t begin, int64_t end,
                                                                int64_t i)
{
    vec64 sum[F(STRIP)];
#pragma GCC unroll 8
    for (int p = 0; p < parts; p++) {
        memcpy(&sum[p], j->fold + i + p * F(LANES), sizeof sum[p]);
        sum[p] += 0;
    }
    for (int64_t r = begin; r < end; r++)
#pragma GCC unroll 8
        for (int p = 0; p < parts; p++)
            sum[p] += F(widen)(F(fold_term)(kind, j, r, i + p * F(LANES)));
#pragma GCC unroll 8
    for (int p = 0; p < parts; p++)
        memcpy(j->fold + i + p * F(LANES), &sum[p], sizeof sum[p]);
}

static inline __attribute__((always_inline)) void F(fold_columns)(const int kind,
                                                                  const tl_norm_rows *j,
                                                                  int64_t begin, int64_t end)
{
    for (int64_t r = 0; r < j->rows; r += F(DEEP)) {
        const int64_t last = r + F(DEEP) < j->rows ? r + F(DEEP) : j->rows;
        int64_t i = begin;
        for (; i + F(STRIP) * F(LANES) <= end; i += F(STRIP) * F(LANES))
            F(fold_strip)(kind, F(STRIP), j, r, last, i);
        for (; i + F(LANES) <= end; i += F(LANES))
            F(fold_strip)(kind, 1, j, r, last, i);
        for (; i < end; i++) {
            double sum = j->fold[i] + 0;
            for (int64_t k = r; k < last; k++) {
                T x = ((const T *)j->x)[k * j->n + i];
                if (kind == F(LAYER))
                    x = x - ((const T *)j->mean)[k];
                if (kind != F(PLAIN))
                    x = ((const T *)j->dy)[k * j->n + i] * (x * ((const T *)j->rstd)[k]);
                sum += (double)x;
            }
            j->fold[i] = sum;
        }
    }
}

static void F(fold)(void *columns, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    F(fold_columns)(F(PLAIN), columns, begin, end);
}

static void F(rms_norm_fold)(void *columns, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    F(fold_columns)(F(RMS), columns, begin, end);
}

static void F(layer_norm_fold)(void *columns, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    F(fold_columns)(F(LAYER), columns, begin, end);
}
