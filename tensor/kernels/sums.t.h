/* sums.t.h: sums and extremes of a row of one compute type: lanes (NUMERICS 3.1), maximum and
 * minimum (4.2, 4.4). rows.k.c includes it first for each type, and explains its parameters. */

enum { F(WIDTH) = (int)(sizeof(V) / sizeof(T)), F(PARTS) = 32 / F(WIDTH) };

/* The 32 lanes in registers; term i of the row goes to lane i mod 32. */
typedef struct {
    V part[F(PARTS)];
} F(lanes_t);

static inline void F(lanes_add)(F(lanes_t) * l, const T *term)
{
    for (int p = 0; p < F(PARTS); p++) {
        V t;
        memcpy(&t, term + p * F(WIDTH), sizeof t);
        l->part[p] += t;
    }
}

/* Adds the last n < 32 terms; then the lanes meet by halves. */
static T F(lanes_finish)(const F(lanes_t) * l, const T *term, int64_t n)
{
    T lane[32];
    memcpy(lane, l->part, sizeof lane);
    for (int64_t i = 0; i < n; i++)
        lane[i] += term[i];
    for (int i = 0; i < 16; i++)
        lane[i] += lane[i + 16];
    for (int i = 0; i < 8; i++)
        lane[i] += lane[i + 8];
    for (int i = 0; i < 4; i++)
        lane[i] += lane[i + 4];
    lane[0] += lane[2];
    lane[1] += lane[3];
    return (lane[0] + lane[1]) + 0;
}

static T F(lanes)(int64_t n, const T *x)
{
    F(lanes_t) l = {0};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        F(lanes_add)(&l, x + i);
    return F(lanes_finish)(&l, x + i, n - i);
}

/* The sum of (x - m)*(y - m). Inlined, so that nothing is subtracted where m is 0. */
static inline __attribute__((always_inline)) T F(lanes_of_products)(int64_t n, const T *x,
                                                                    const T *y, T m)
{
    F(lanes_t) l = {0};
    T q[32];
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int k = 0; k < 32; k++)
            q[k] = (x[i + k] - m) * (y[i + k] - m);
        F(lanes_add)(&l, q);
    }
    for (int64_t k = i; k < n; k++)
        q[k - i] = (x[k] - m) * (y[k] - m);
    return F(lanes_finish)(&l, q, n - i);
}

/* The greatest of sign * x; sign is 1 or -1. Maximum is associative here (NaN wins, +0 > -0), so
 * the running maxima may meet in any order. They do not tell +0 from -0, so if the result is a
 * zero, the row is searched again. */
static inline T F(extreme)(int64_t n, const T *x, T sign)
{
    T m[32];
    I nan[32] = {0};
    int64_t i = 0;
    for (int k = 0; k < 32; k++)
        m[k] = -(T)INFINITY;
    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 32; k++) {
            T y = sign * x[i + k];
            nan[k] |= y != y;
            m[k] = y > m[k] ? y : m[k];
        }
    for (int k = 0; i < n; i++, k++) {
        T y = sign * x[i];
        nan[k] |= y != y;
        m[k] = y > m[k] ? y : m[k];
    }
    for (int w = 16; w > 0; w /= 2)
        for (int k = 0; k < w; k++) {
            nan[k] |= nan[k + w];
            m[k] = m[k + w] > m[k] ? m[k + w] : m[k];
        }
    bool positive = false;
    for (i = 0; m[0] == 0 && !positive && i < n; i++)
        positive = x[i] == 0 && !signbit(sign * x[i]);
    return nan[0] ? (T)NAN : positive ? 0 : m[0] == 0 ? -(T)0 : m[0];
}

static T F(max)(int64_t n, const T *x) { return F(extreme)(n, x, 1); }

/* The minimum is the negated maximum of -x: NaN wins, -0 < +0. */
static T F(min)(int64_t n, const T *x) { return -F(extreme)(n, x, -1); }

static void F(accumulate)(int64_t n, const T *x, T *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (y[i] + x[i]) + 0;
}

/* The sum of squares of the widened values; both types use the lanes of f64. */
static double F(square_sum)(int64_t n, const T *x)
{
    lanes_t64 l = {0};
    double q[32];
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int k = 0; k < 32; k++)
            q[k] = (double)x[i + k] * (double)x[i + k];
        lanes_add64(&l, q);
    }
    for (int64_t k = i; k < n; k++)
        q[k - i] = (double)x[k] * (double)x[k];
    return lanes_finish64(&l, q, n - i);
}
