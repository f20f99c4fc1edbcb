/* rows_more.t.h: more row kernels of one compute type, included by rows.k.c after
 * rows.t.h, whose parameters and lanes it uses: minimum, layer norm, smoothed cross
 * entropy, the gradient of swiglu. */

/* The minimum is the maximum turned round: NaN wins, -0 < +0. */
static T F(min)(int64_t n, const T *x) { return -F(extreme)(n, x, -1); }

/* ---- layer norm ---- */

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

/* ---- cross entropy with label smoothing ---- */

static T F(smooth_entropy)(int64_t n, const T *z, int64_t t, double eps)
{
    F(lanes_t) u = {0};
    T q[32], m = F(max)(n, z), l = F(exp_sum)(n, z, m), hit = (T)(1 - eps), rest = (T)eps;
    int64_t i = 0;
    M(log)(1, &l, &l);
    for (; i + 32 <= n; i += 32) {
        for (int k = 0; k < 32; k++)
            q[k] = l - (z[i + k] - m);
        F(lanes_add)(&u, q);
    }
    for (int64_t k = i; k < n; k++)
        q[k - i] = l - (z[k] - m);
    T mean = F(lanes_finish)(&u, q, n - i) / (T)n;
    return hit * (l - (z[t] - m)) + rest * mean;
}

static void F(smooth_entropy_grad)(int64_t n, const T *z, int64_t t, double eps, T w, T *dz)
{
    T r = 1 / F(exp_row)(n, z, F(max)(n, z), dz), share = (T)eps / (T)n, hit = (T)(1 - eps) + share;
    T at = dz[t] * r - hit;
    for (int64_t i = 0; i < n; i++)
        dz[i] = (dz[i] * r - share) * w;
    dz[t] = at * w;
}

/* ---- swiglu: with s = sigmoid(a), da = (dy*b) * (s*(1 + a*(1-s))), db = dy * (a*s); y = (a*s) *
 * b, if asked for ---- */

static void F(swiglu_grad)(int64_t n, const T *dy, const T *a, const T *b, T *da, T *db, T *y)
{
    T s[256], p[256], q[256], r[256]; /* da, db and y may lie over dy, a or b */
    for (int64_t at = 0; at < n; at += 256) {
        int64_t m = n - at < 256 ? n - at : 256;
        M(sigmoid)(m, a + at, s);
        for (int64_t i = 0; i < m; i++) {
            T x = a[at + i], g = dy[at + i];
            p[i] = (g * b[at + i]) * (s[i] * (1 + x * (1 - s[i])));
            q[i] = g * (x * s[i]);
            r[i] = (x * s[i]) * b[at + i];
        }
        memcpy(da + at, p, (size_t)m * sizeof(T));
        memcpy(db + at, q, (size_t)m * sizeof(T));
        if (y != NULL)
            memcpy(y + at, r, (size_t)m * sizeof(T));
    }
}

#undef T
#undef I
#undef V
#undef F
#undef M
