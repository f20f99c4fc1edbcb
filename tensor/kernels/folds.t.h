/* folds.t.h: folds rows into f64 accumulators, one per column (NUMERICS 3.2): rows of x, and the
 * gradients of rms_norm's and layer_norm's gamma (6.2, 6.7). Included by rows.k.c.
 *
 * A strip of columns keeps its accumulators in registers for DEEP rows. Then comes the next strip,
 * and after the last strip the next rows, so that memory is read nearly in order. Each column adds
 * its terms in the order of the rows. +0 is added before the first term, so that no sum is -0.
 *
 * 16 rows that come from memory are too many streams for the hardware prefetcher. So an x of more
 * than FAR bytes is taken row by row, over as many columns as have accumulators that fit in the
 * first cache, and is prefetched AHEAD bytes further on. */

enum { F(PLAIN), F(RMS), F(LAYER) };
enum { F(LANES) = sizeof(vec64) / sizeof(double), F(STRIP) = 8, F(DEEP) = 16 };
enum { F(AHEAD) = 8192, F(FAR) = 4 << 20 };

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

/* Folds `parts` vectors of columns, from column i on; prefetches the rows `ahead` rows further on.
 */
static inline __attribute__((always_inline)) void F(fold_strip)(const int kind, const int parts,
                                                                const tl_norm_rows *j,
                                                                int64_t begin, int64_t end,
                                                                int64_t i, int64_t ahead)
{
    vec64 sum[F(STRIP)];
#pragma GCC unroll 8
    for (int p = 0; p < parts; p++)
        memcpy(&sum[p], j->fold + i + p * F(LANES), sizeof sum[p]);
    for (int64_t r = begin; r < end; r++) {
        const T *next = (const T *)j->x + (r + ahead) * j->n + i;
        for (size_t b = 0; ahead > 0 && b < (size_t)parts * sizeof(H); b += 64)
            __builtin_prefetch((const char *)next + b);
#pragma GCC unroll 8
        for (int p = 0; p < parts; p++)
            sum[p] += F(widen)(F(fold_term)(kind, j, r, i + p * F(LANES)));
    }
#pragma GCC unroll 8
    for (int p = 0; p < parts; p++)
        memcpy(j->fold + i + p * F(LANES), &sum[p], sizeof sum[p]);
}

static inline __attribute__((always_inline)) void F(fold_columns)(const int kind, const int deep,
                                                                  const tl_norm_rows *j,
                                                                  int64_t begin, int64_t end,
                                                                  int64_t ahead)
{
    for (int64_t i = begin; j->rows > 0 && i < end; i++)
        j->fold[i] += 0;
    for (int64_t r = 0; r < j->rows; r += deep) {
        const int64_t last = r + deep < j->rows ? r + deep : j->rows;
        int64_t i = begin;
        for (; i + F(STRIP) * F(LANES) <= end; i += F(STRIP) * F(LANES))
            F(fold_strip)(kind, F(STRIP), j, r, last, i, ahead);
        for (; i + F(LANES) <= end; i += F(LANES))
            F(fold_strip)(kind, 1, j, r, last, i, ahead);
        for (; i < end; i++) {
            double sum = j->fold[i];
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

static void F(fold)(void *columns, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    enum { MOST = F(AHEAD) / (int)sizeof(T), WHOLE = F(STRIP) * F(LANES) };
    const tl_norm_rows *j = columns;
    const int64_t n = end - begin,
                  part = (n / ((n + MOST - 1) / MOST + !n) + WHOLE) / WHOLE * WHOLE;
    if (j->rows * n * (int64_t)sizeof(T) <= F(FAR) || n < 2 * WHOLE) {
        F(fold_columns)(F(PLAIN), F(DEEP), j, begin, end, 0);
        return;
    }
    for (int64_t last; begin < end; begin = last) {
        last = begin + part < end ? begin + part : end;
        F(fold_columns)(F(PLAIN), 1, j, begin, last, MOST / part + 1);
    }
}

static void F(norm_fold)(void *columns, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const tl_norm_rows *j = columns;
    if (j->mean == NULL)
        F(fold_columns)(F(RMS), F(DEEP), j, begin, end, 0);
    else
        F(fold_columns)(F(LAYER), F(DEEP), j, begin, end, 0);
}
