/* pointwise_gelu.t.h: more tile kernels of one floating compute type, included by
 * pointwise.k.c after pointwise.t.h, whose parameters it uses: softplus and gelu by
 * erf and by tanh, with their gradients. Literal formulas: NUMERICS 2.8 to 2.10. */

/* max(x, 0) + log1p(exp(-|x|)); NaN stays */
static void F(softplus)(int64_t n, const T *x, T *y)
{
    T e[F(BLOCK)];
    for (int64_t at = 0; at < n; at += F(BLOCK)) {
        int64_t m = n - at < F(BLOCK) ? n - at : F(BLOCK);
        for (int64_t i = 0; i < m; i++)
            e[i] = x[at + i] < 0 ? x[at + i] : -x[at + i];
        M(exp)(m, e, e);
        M(log1p)(m, e, e);
        for (int64_t i = 0; i < m; i++)
            y[at + i] = (x[at + i] > 0 ? x[at + i] : 0) + e[i];
    }
}

/* x * (0.5 * (1 + erf(x * sqrt(1/2)))) */
static void F(gelu)(int64_t n, const T *x, T *y)
{
    T e[F(BLOCK)];
    for (int64_t at = 0; at < n; at += F(BLOCK)) {
        int64_t m = n - at < F(BLOCK) ? n - at : F(BLOCK);
        for (int64_t i = 0; i < m; i++)
            e[i] = x[at + i] * (T)0x1.6a09e667f3bcdp-1;
        M(erf)(m, e, e);
        for (int64_t i = 0; i < m; i++)
            y[at + i] = x[at + i] * ((T)0.5 * (1 + e[i]));
    }
}

/* dy * (P + x*b), P = 0.5*(1 + erf(x*sqrt(1/2))), b = exp(-0.5*(x*x)) / sqrt(2 pi) */
static void F(gelu_grad)(int64_t n, const T *dy, const T *x, T *y)
{
    T e[F(BLOCK)], b[F(BLOCK)];
    for (int64_t at = 0; at < n; at += F(BLOCK)) {
        int64_t m = n - at < F(BLOCK) ? n - at : F(BLOCK);
        for (int64_t i = 0; i < m; i++) {
            e[i] = x[at + i] * (T)0x1.6a09e667f3bcdp-1;
            b[i] = (T)-0.5 * (x[at + i] * x[at + i]);
        }
        M(erf)(m, e, e);
        M(exp)(m, b, b);
        for (int64_t i = 0; i < m; i++)
            y[at + i] = dy[at + i] *
                        ((T)0.5 * (1 + e[i]) + x[at + i] * (b[i] * (T)0x1.9884533d43651p-2));
    }
}

/* tanh(sqrt(2/pi) * (x + 0.044715*((x*x)*x))) into t, m <= BLOCK */
static void F(gelu_tanh_part)(int64_t m, const T *x, T *t)
{
    for (int64_t i = 0; i < m; i++)
        t[i] = (T)0x1.9884533d43651p-1 * (x[i] + (T)0.044715 * ((x[i] * x[i]) * x[i]));
    M(tanh)(m, t, t);
}

/* (0.5*x) * (1 + t) */
static void F(gelu_tanh)(int64_t n, const T *x, T *y)
{
    T t[F(BLOCK)];
    for (int64_t at = 0; at < n; at += F(BLOCK)) {
        int64_t m = n - at < F(BLOCK) ? n - at : F(BLOCK);
        F(gelu_tanh_part)(m, x + at, t);
        for (int64_t i = 0; i < m; i++)
            y[at + i] = ((T)0.5 * x[at + i]) * (1 + t[i]);
    }
}

/* dy * (0.5*(1 + t) + ((0.5*x) * (1 - t*t)) * u), u = sqrt(2/pi) * (1 + 0.134145*(x*x)) */
static void F(gelu_tanh_grad)(int64_t n, const T *dy, const T *x, T *y)
{
    T t[F(BLOCK)];
    for (int64_t at = 0; at < n; at += F(BLOCK)) {
        int64_t m = n - at < F(BLOCK) ? n - at : F(BLOCK);
        F(gelu_tanh_part)(m, x + at, t);
        for (int64_t i = 0; i < m; i++) {
            T v = x[at + i], u = (T)0x1.9884533d43651p-1 * (1 + (T)0.134145 * (v * v));
            y[at + i] = dy[at + i] * ((T)0.5 * (1 + t[i]) + (((T)0.5 * v) * (1 - t[i] * t[i])) * u);
        }
    }
}

#undef T
#undef F
#undef M
