/* norm.t.h: rms_norm (NUMERICS 6.1) and layer_norm (6.6) and their gradients dx (6.2, 6.7), over
 * rows of one compute type; folds.t.h has dgamma. T is the compute type, F(x) a name for it.
 * Included by rows.k.c after sums.t.h, whose lanes add up each row. */

/* rstd = 1/sqrt(mean(x^2) + eps), y = (x*rstd)*gamma */
static void F(rms_norm)(void *rows, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const tl_rows *j = rows;
    const tl_norm_attrs *a = j->attrs;
    const int64_t n = j->n;
    const T *x = (const T *)j->in[0] + begin * n, *gamma = j->in[1];
    const T eps = (T)a->eps;
    T *y = (T *)j->out[0] + begin * n, *rstd = j->out[1];
    for (int64_t r = begin; r < end; r++, x += n, y += n) {
        const T k = rstd[r] = RSQRT(F(lanes_of_products)(n, x, x, 0) / (T)n + eps);
        if (gamma == NULL)
            for (int64_t i = 0; i < n; i++)
                y[i] = x[i] * k;
        else if (a->plus_one)
            for (int64_t i = 0; i < n; i++)
                y[i] = (x[i] * k) * (1 + gamma[i]);
        else
            for (int64_t i = 0; i < n; i++)
                y[i] = (x[i] * k) * gamma[i];
    }
}

/* rstd = 1/sqrt(mean((x - mean)^2) + eps), y = ((x - mean)*rstd)*gamma + beta */
static void F(layer_norm)(void *rows, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const tl_rows *j = rows;
    const tl_norm_attrs *a = j->attrs;
    const int64_t n = j->n;
    const T *x = (const T *)j->in[0] + begin * n, *gamma = j->in[1], *beta = j->in[2];
    const T eps = (T)a->eps;
    T *y = (T *)j->out[0] + begin * n;
    for (int64_t r = begin; r < end; r++, x += n, y += n) {
        const T m = F(lanes)(n, x) / (T)n;
        const T rstd = RSQRT(F(lanes_of_products)(n, x, x, m) / (T)n + eps);
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - m) * rstd;
        for (int64_t i = 0; gamma != NULL && i < n; i++)
            y[i] = y[i] * gamma[i];
        for (int64_t i = 0; beta != NULL && i < n; i++)
            y[i] = y[i] + beta[i];
        ((T *)j->out[1])[r] = m;
        ((T *)j->out[2])[r] = rstd;
    }
}

/* gamma may be NULL. */
static inline T F(scaled_by)(T dy, const T *gamma, int64_t i) { return gamma ? dy * gamma[i] : dy; }

/* With g = dy*gamma, h = (x - mean)*rstd, b = mean(g*h): dx = rstd*((g - a) - h*b). For
 * layer_norm a = mean(g); for rms_norm, which is not centered, mean and a are 0: nothing is
 * subtracted. */
static inline __attribute__((always_inline)) void F(norm_grad_row)(const bool centered, int64_t n,
                                                                   const T *dy, const T *x,
                                                                   const T *gamma, T mean, T rstd,
                                                                   T *dx)
{
    T q[32], qh[32];
    F(lanes_t) l = {0}, lh = {0};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int k = 0; k < 32; k++) {
            q[k] = F(scaled_by)(dy[i + k], gamma, i + k);
            qh[k] = q[k] * ((x[i + k] - mean) * rstd);
        }
        if (centered)
            F(lanes_add)(&l, q);
        F(lanes_add)(&lh, qh);
    }
    for (int64_t k = i; k < n; k++) {
        q[k - i] = F(scaled_by)(dy[k], gamma, k);
        qh[k - i] = q[k - i] * ((x[k] - mean) * rstd);
    }
    const T a = centered ? F(lanes_finish)(&l, q, n - i) / (T)n : 0,
            b = F(lanes_finish)(&lh, qh, n - i) / (T)n;
    for (int64_t k = 0; k < n; k++)
        dx[k] = rstd * ((F(scaled_by)(dy[k], gamma, k) - a) - ((x[k] - mean) * rstd) * b);
}

/* dx of layer_norm or, where there is no mean, of rms_norm. */
static void F(norm_grad)(void *rows, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const tl_norm_rows *j = rows;
    const T *mean = j->mean, *rstd = j->rstd;
    for (int64_t r = begin; r < end; r++) {
        const T *dy = (const T *)j->dy + r * j->n, *x = (const T *)j->x + r * j->n;
        T *dx = (T *)j->dx + r * j->n;
        if (mean == NULL)
            F(norm_grad_row)(false, j->n, dy, x, j->gamma, 0, rstd[r], dx);
        else
            F(norm_grad_row)(true, j->n, dy, x, j->gamma, mean[r], rstd[r], dx);
    }
}
