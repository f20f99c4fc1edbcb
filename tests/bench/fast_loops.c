/* fast_loops.c: see fast_loops.h. Plain loops; the compiler is free. */
#include "tests/bench/fast_loops.h"

#include <math.h>

#define LOOP(name, value)                                                   \
    void fast_##name(int64_t n, const float *restrict x, float *restrict y) \
    {                                                                       \
        for (int64_t i = 0; i < n; i++)                                     \
            y[i] = value;                                                   \
    }
LOOP(exp, expf(x[i]))
LOOP(log, logf(x[i]))
LOOP(sin, sinf(x[i]))
LOOP(cos, cosf(x[i]))
LOOP(tanh, tanhf(x[i]))
LOOP(erf, erff(x[i]))
LOOP(sigmoid, 1 / (1 + expf(-x[i])))
LOOP(silu, x[i] / (1 + expf(-x[i])))
LOOP(gelu, x[i] * 0.5f * (1 + erff(x[i] * 0.70710678f)))
LOOP(rsqrt, 1 / sqrtf(x[i]))
LOOP(exp2, exp2f(x[i]))
LOOP(expm1, expm1f(x[i]))
LOOP(log2, log2f(x[i]))
LOOP(log1p, log1pf(x[i]))
LOOP(pow, x[i] * sqrtf(x[i]))
LOOP(softplus, fmaxf(x[i], 0) + log1pf(expf(-fabsf(x[i]))))
LOOP(gelu_tanh, 0.5f * x[i] * (1 + tanhf(0.79788456f * (x[i] + 0.044715f * x[i] * x[i] * x[i]))))

void fast_add(int64_t n, const float *restrict a, const float *restrict b, float *restrict y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

void fast_swiglu(int64_t n, const float *restrict a, const float *restrict b, float *restrict y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] / (1 + expf(-a[i])) * b[i];
}

float fast_sum(int64_t n, const float *x)
{
    float s = 0;
    for (int64_t i = 0; i < n; i++)
        s += x[i];
    return s;
}

float fast_mean(int64_t n, const float *x) { return fast_sum(n, x) / (float)n; }

float fast_square_sum(int64_t n, const float *x)
{
    float s = 0;
    for (int64_t i = 0; i < n; i++)
        s += x[i] * x[i];
    return s;
}

float fast_max(int64_t n, const float *x)
{
    float m = x[0];
    for (int64_t i = 1; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

void fast_fold(int64_t n, const float *restrict x, float *restrict acc)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] += x[i];
}

void fast_softmax(int64_t n, const float *restrict x, float *restrict y)
{
    float m = fast_max(n, x), s = 0;
    for (int64_t i = 0; i < n; i++)
        s += y[i] = expf(x[i] - m);
    for (int64_t i = 0; i < n; i++)
        y[i] *= 1 / s;
}

void fast_softmax_grad(int64_t n, const float *restrict y, const float *restrict dy,
                       float *restrict dx)
{
    float s = 0;
    for (int64_t i = 0; i < n; i++)
        s += y[i] * dy[i];
    for (int64_t i = 0; i < n; i++)
        dx[i] = y[i] * (dy[i] - s);
}

enum { BLOCK = 64 };

void fast_softmax_online(int64_t n, const float *restrict x, float *restrict y)
{
    float m = -INFINITY, s = 0;
    for (int64_t at = 0; at < n; at += BLOCK) { /* rescaled once a block, not once an element */
        int64_t len = n - at < BLOCK ? n - at : BLOCK;
        float top = fast_max(len, x + at), part = 0;
        top = top > m ? top : m;
        for (int64_t i = 0; i < len; i++)
            part += expf(x[at + i] - top);
        s = s * expf(m - top) + part;
        m = top;
    }
    for (int64_t i = 0; i < n; i++)
        y[i] = expf(x[i] - m) / s;
}

static float log_of_sum(int64_t n, const float *x, float m)
{
    float s = 0;
    for (int64_t i = 0; i < n; i++)
        s += expf(x[i] - m);
    return m + logf(s);
}

void fast_log_softmax(int64_t n, const float *restrict x, float *restrict y)
{
    float l = log_of_sum(n, x, fast_max(n, x));
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] - l;
}

float fast_cross_entropy(int64_t n, const float *z, int64_t target)
{
    return log_of_sum(n, z, fast_max(n, z)) - z[target];
}

void fast_rms_norm(int64_t n, const float *restrict x, const float *restrict gamma, float eps,
                   float *restrict y)
{
    float s = 0;
    for (int64_t i = 0; i < n; i++)
        s += x[i] * x[i];
    float r = 1 / sqrtf(s / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * r * gamma[i];
}

void fast_layer_norm(int64_t n, const float *restrict x, const float *restrict gamma,
                     const float *restrict beta, float eps, float *restrict y)
{
    float s = 0, q = 0;
    for (int64_t i = 0; i < n; i++) {
        s += x[i];
        q += x[i] * x[i];
    }
    float mean = s / (float)n, r = 1 / sqrtf(q / (float)n - mean * mean + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * r * gamma[i] + beta[i];
}

void fast_rms_norm_grad(int64_t n, const float *restrict dy, const float *restrict x,
                        const float *restrict gamma, float rstd, float *restrict dx)
{
    float s = 0;
    for (int64_t i = 0; i < n; i++)
        s += dy[i] * gamma[i] * x[i];
    float along = s * rstd * rstd * rstd / (float)n;
    for (int64_t i = 0; i < n; i++)
        dx[i] = dy[i] * gamma[i] * rstd - x[i] * along;
}

void fast_layer_norm_grad(int64_t n, const float *restrict dy, const float *restrict x,
                          const float *restrict gamma, float mean, float rstd, float *restrict dx)
{
    float s = 0, along = 0;
    for (int64_t i = 0; i < n; i++) {
        s += dy[i] * gamma[i];
        along += dy[i] * gamma[i] * (x[i] - mean);
    }
    s /= (float)n;
    along *= rstd * rstd / (float)n;
    for (int64_t i = 0; i < n; i++)
        dx[i] = rstd * (dy[i] * gamma[i] - s - (x[i] - mean) * along);
}

void fast_cross_entropy_grad(int64_t n, const float *restrict z, int64_t target, float w,
                             float *restrict dz)
{
    float l = log_of_sum(n, z, fast_max(n, z));
    for (int64_t i = 0; i < n; i++)
        dz[i] = w * expf(z[i] - l);
    dz[target] -= w;
}

void fast_exp64(int64_t n, const double *restrict x, double *restrict y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = exp(x[i]);
}

void fast_matmul64(int64_t m, int64_t n, int64_t k, const double *restrict a,
                   const double *restrict b, double *restrict c)
{
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++)
            c[i * n + j] = 0;
        for (int64_t l = 0; l < k; l++)
            for (int64_t j = 0; j < n; j++)
                c[i * n + j] += a[i * k + l] * b[l * n + j];
    }
}

void fast_rotary(int64_t n, const float *restrict x, const float *restrict cosine,
                 const float *restrict sine, float *restrict y)
{
    for (int64_t i = 0; i < n / 2; i++) {
        y[i] = x[i] * cosine[i] - x[n / 2 + i] * sine[i];
        y[n / 2 + i] = x[n / 2 + i] * cosine[i] + x[i] * sine[i];
    }
}

void fast_adamw(int64_t n, float *restrict p, const float *restrict g, float *restrict m,
                float *restrict v, float lr, float b1, float b2, float eps, float wd, float c1,
                float c2)
{
    for (int64_t i = 0; i < n; i++) {
        m[i] = b1 * m[i] + (1 - b1) * g[i];
        v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
        p[i] -= lr * (m[i] * c1 / (sqrtf(v[i] * c2) + eps) + wd * p[i]);
    }
}
