/* pointwise.t.h: the built-in pointwise ops: their list and their loops, so that a new one is
 * written in one place. A result depends on nothing but its element: NUMERICS 1 and 2.
 *
 * pointwise.h takes the list from here. The loops are a template, which pointwise.k.c includes for
 * each floating compute type and, without M, for i64. Parameters: T the type, F(name) the suffixed
 * function name, M(stem) that type's array function in math.k.c; all are undefined at the end. */
#ifndef TL_TILE_LIST
/* clang-format off */
/* Loops F(name)(n, x, y) and F(name)(n, a, b, y), below. NUMBER has a loop for i64, too. */
#define TL_TILE_UNARY(X)                                                                         \
    X(neg) X(abs) X(square) X(reciprocal) X(relu) X(silu) X(softplus) X(gelu) X(gelu_tanh)
#define TL_TILE_NUMBER(X) X(add) X(sub) X(mul)
#define TL_TILE_BINARY(X)                                                                        \
    X(div) X(maximum) X(minimum) X(silu_grad) X(swiglu) X(gelu_grad) X(gelu_tanh_grad)
#define TL_TILE_INTEGER(X) X(floor_divide) X(remainder)
#define TL_TILE_COMPARE(X) X(eq) X(ne) X(lt) X(le) X(gt) X(ge) /* as NUMBER */
/* Functions of math.k.c. */
#define TL_TILE_MATH(X)                                                                          \
    X(sqrt) X(rsqrt) X(exp) X(log) X(sin) X(cos) X(tanh) X(sigmoid) X(erf) X(log1p)
/* Ops that pointwise.k.c calls in a way of their own. */
#define TL_TILE_OTHER(X) X(where) X(scale) X(shift) X(cast) X(clamp) X(pow)
#define TL_TILE_LIST(X)                                                                          \
    TL_TILE_UNARY(X) TL_TILE_NUMBER(X) TL_TILE_BINARY(X) TL_TILE_INTEGER(X) TL_TILE_COMPARE(X)   \
    TL_TILE_OTHER(X) TL_TILE_MATH(X) X(expm1) X(exp2) X(log2)
/* clang-format on */
#endif

#ifdef T

/* y[i] = value for each i. */
#define LOOP(name, operands, value)     \
    static void F(name) operands        \
    {                                   \
        for (int64_t i = 0; i < n; i++) \
            y[i] = value;               \
    }
#define COMPARE(name, is) \
    LOOP(name, (int64_t n, const T *a, const T *b, unsigned char *y), a[i] is b[i])
COMPARE(eq, ==)
COMPARE(ne, !=)
COMPARE(lt, <)
COMPARE(le, <=)
COMPARE(gt, >)
COMPARE(ge, >=)

LOOP(where, (int64_t n, const unsigned char *c, const T *a, const T *b, T *y), c[i] ? a[i] : b[i])

#ifdef M /* T is a floating type */

LOOP(add, (int64_t n, const T *a, const T *b, T *y), a[i] + b[i])
LOOP(sub, (int64_t n, const T *a, const T *b, T *y), a[i] - b[i])
LOOP(mul, (int64_t n, const T *a, const T *b, T *y), a[i] * b[i])
LOOP(div, (int64_t n, const T *a, const T *b, T *y), a[i] / b[i])

/* NaN wins; +0 > -0. a + b is the NaN when either is one, and +0 when the zeros differ. */
static void F(maximum)(int64_t n, const T *a, const T *b, T *y)
{
    for (int64_t i = 0; i < n; i++) {
        T s = a[i] + b[i], m = a[i] > b[i] ? a[i] : b[i];
        m = a[i] == b[i] && a[i] == 0 ? s : m;
        y[i] = a[i] != a[i] || b[i] != b[i] ? s : m;
    }
}

/* NaN wins; -0 < +0: of two zeros -(-a + -b) is -0 unless both are +0. */
static void F(minimum)(int64_t n, const T *a, const T *b, T *y)
{
    for (int64_t i = 0; i < n; i++) {
        T s = a[i] + b[i], m = a[i] < b[i] ? a[i] : b[i];
        m = a[i] == b[i] && a[i] == 0 ? -(-a[i] - b[i]) : m;
        y[i] = a[i] != a[i] || b[i] != b[i] ? s : m;
    }
}

LOOP(neg, (int64_t n, const T *x, T *y), -x[i])
LOOP(abs, (int64_t n, const T *x, T *y), x[i] == 0 ? 0 : x[i] < 0 ? -x[i] : x[i])
LOOP(square, (int64_t n, const T *x, T *y), x[i] * x[i])
LOOP(reciprocal, (int64_t n, const T *x, T *y), 1 / x[i])
LOOP(relu, (int64_t n, const T *x, T *y), x[i] > 0 || x[i] != x[i] ? x[i] : 0)
LOOP(scale, (int64_t n, const T *x, T c, T *y), x[i] * c)
LOOP(shift, (int64_t n, const T *x, T c, T *y), x[i] + c)

static void F(clamp)(int64_t n, const T *x, T lo, T hi, T *y)
{
    for (int64_t i = 0; i < n; i++) {
        T v = x[i] < lo ? lo : x[i];
        y[i] = v > hi ? hi : v;
    }
}

enum { F(BLOCK) = 512 };

/* silu(x) = x * sigmoid(x) */
static void F(silu)(int64_t n, const T *x, T *y)
{
    T s[F(BLOCK)];
    for (int64_t at = 0; at < n; at += F(BLOCK)) {
        int64_t m = n - at < F(BLOCK) ? n - at : F(BLOCK);
        M(sigmoid)(m, x + at, s);
        for (int64_t i = 0; i < m; i++)
            y[at + i] = x[at + i] * s[i];
    }
}

/* dy * (s * (1 + x*(1 - s))), s = sigmoid(x) */
static void F(silu_grad)(int64_t n, const T *dy, const T *x, T *y)
{
    T s[F(BLOCK)];
    for (int64_t at = 0; at < n; at += F(BLOCK)) {
        int64_t m = n - at < F(BLOCK) ? n - at : F(BLOCK);
        M(sigmoid)(m, x + at, s);
        for (int64_t i = 0; i < m; i++)
            y[at + i] = dy[at + i] * (s[i] * (1 + x[at + i] * (1 - s[i])));
    }
}

/* silu(a) * b */
static void F(swiglu)(int64_t n, const T *a, const T *b, T *y)
{
    T s[F(BLOCK)];
    for (int64_t at = 0; at < n; at += F(BLOCK)) {
        int64_t m = n - at < F(BLOCK) ? n - at : F(BLOCK);
        M(sigmoid)(m, a + at, s);
        for (int64_t i = 0; i < m; i++)
            y[at + i] = (a[at + i] * s[i]) * b[at + i];
    }
}

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

#undef M
#else /* T is i64, whose arithmetic wraps around */

LOOP(add, (int64_t n, const T *a, const T *b, T *y), (T)((uint64_t)a[i] + (uint64_t)b[i]))
LOOP(sub, (int64_t n, const T *a, const T *b, T *y), (T)((uint64_t)a[i] - (uint64_t)b[i]))
LOOP(mul, (int64_t n, const T *a, const T *b, T *y), (T)((uint64_t)a[i] * (uint64_t)b[i]))

/* b is not 0. Division by -1, which would overflow for the least number, is a subtraction. */
LOOP(floor_divide, (int64_t n, const T *a, const T *b, T *y),
     b[i] == -1 ? (T)(0 - (uint64_t)a[i])
                : a[i] / b[i] - (a[i] % b[i] != 0 && (a[i] < 0) != (b[i] < 0)))

static void F(remainder)(int64_t n, const T *a, const T *b, T *y)
{
    for (int64_t i = 0; i < n; i++) {
        T r = b[i] == -1 ? 0 : a[i] % b[i];
        y[i] = r != 0 && (r < 0) != (b[i] < 0) ? r + b[i] : r;
    }
}
#endif
#undef LOOP
#undef COMPARE
#undef T
#undef F
#endif
