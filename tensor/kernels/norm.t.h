/* norm.t.h: rows of rms_norm (NUMERICS 6.1, 6.2) and layer_norm (6.6, 6.7) of one compute type,
 * their gradients and the folds of dgamma. Included by rows.k.c after sums.t.h. */

static T F(rms_norm)(int64_t n, const T *x, const T *gamma, T eps, T *y)
{
    T s = F(lanes_of_squares)(n, x) / (T)n + eps, rstd;
    M(rsqrt)(1, &s, &rstd);
    if (gamma == NULL)
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i] * rstd;
    else
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] * rstd) * gamma[i];
    return rstd;
}

static inline T F(rms_term)(T dy, T x, T gamma, T rstd) { return (dy * gamma) * (x * rstd); }

static void F(rms_norm_grad)(int64_t n, const T *dy, const T *x, const T *gamma, T rstd, T *dx)
{
    F(lanes_t) l = {0};
    T q[32];
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int k = 0; k < 32; k++)
            q[k] = gamma ? F(rms_term)(dy[i + k], x[i + k], gamma[i + k], rstd)
                         : dy[i + k] * (x[i + k] * rstd);
        F(lanes_add)(&l, q);
    }
    for (int64_t k = i; k < n; k++)
        q[k - i] = gamma ? F(rms_term)(dy[k], x[k], gamma[k], rstd) : dy[k] * (x[k] * rstd);
    T m = F(lanes_finish)(&l, q, n - i) / (T)n;
    if (gamma == NULL)
        for (int64_t k = 0; k < n; k++)
            dx[k] = rstd * (dy[k] - (x[k] * rstd) * m);
    else
        for (int64_t k = 0; k < n; k++)
            dx[k] = rstd * (dy[k] * gamma[k] - (x[k] * rstd) * m);
}

static void F(rms_norm_fold)(int64_t n, const T *dy, const T *x, T rstd, double *acc)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] += (double)(dy[i] * (x[i] * rstd));
}

static T F(lanes_of_deviations)(int64_t n, const T *x, T mean)
{
    F(lanes_t) l = {0};
    T q[32];
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int k = 0; k < 32; k++)
            q[k] = (x[i + k] - mean) * (x[i + k] - mean);
        F(lanes_add)(&l, q);
    }
    for (int64_t k = i; k < n; k++)
        q[k - i] = (x[k] - mean) * (x[k] - mean);
    return F(lanes_finish)(&l, q, n - i);
}

static T F(layer_norm)(int64_t n, const T *x, const T *gamma, const T *beta, T eps, T *mean, T *y)
{
    T m = F(lanes)(n, x) / (T)n, s = F(lanes_of_deviations)(n, x, m) / (T)n + eps, rstd;
    M(rsqrt)(1, &s, &rstd);
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - m) * rstd;
    for (int64_t i = 0; gamma != NULL && i < n; i++)
        y[i] = y[i] * gamma[i];
    for (int64_t i = 0; beta != NULL && i < n; i++)
        y[i] = y[i] + beta[i];
    *mean = m;
    return rstd;
}

static inline T F(scaled_by)(T dy, const T *gamma, int64_t i) { return gamma ? dy * gamma[i] : dy; }

static void F(layer_norm_grad)(int64_t n, const T *dy, const T *x, const T *gamma, T mean, T rstd,
                               T *dx)
{
    F(lanes_t) l = {0}, lh = {0};
    T q[32], qh[32];
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int k = 0; k < 32; k++) {
            q[k] = F(scaled_by)(dy[i + k], gamma, i + k);
            qh[k] = q[k] * ((x[i + k] - mean) * rstd);
        }
        F(lanes_add)(&l, q);
        F(lanes_add)(&lh, qh);
    }
    for (int64_t k = i; k < n; k++) {
        q[k - i] = F(scaled_by)(dy[k], gamma, k);
        qh[k - i] = q[k - i] * ((x[k] - mean) * rstd);
    }
    T a = F(lanes_finish)(&l, q, n - i) / (T)n, b = F(lanes_finish)(&lh, qh, n - i) / (T)n;
    for (int64_t k = 0; k < n; k++)
        dx[k] = rstd * ((F(scaled_by)(dy[k], gamma, k) - a) - ((x[k] - mean) * rstd) * b);
}

static void F(layer_norm_fold)(int64_t n, const T *dy, const T *x, T mean, T rstd, double *acc)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] += (double)(dy[i] * ((x[i] - mean) * rstd));
}
