/* rows.t.h: row kernels of one compute type, included twice by rows.k.c.
 * f64 comes first: f32 uses its lanes. Parameters: T the type, V a vector of T of the level's
 * width, F(name) the suffixed name, I the signed integer of T's size, M(stem) the type's array
 * function in the math table; rows_more.t.h, included right after, uses them too and undefines
 * them. */

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

/* Adds the last n < 32 terms and meets the lanes by halves. */
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

static T F(lanes_of_squares)(int64_t n, const T *x)
{
    F(lanes_t) l = {0};
    T q[32];
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int k = 0; k < 32; k++)
            q[k] = x[i + k] * x[i + k];
        F(lanes_add)(&l, q);
    }
    for (int64_t k = i; k < n; k++)
        q[k - i] = x[k] * x[k];
    return F(lanes_finish)(&l, q, n - i);
}

static T F(lanes_of_products)(int64_t n, const T *x, const T *y)
{
    F(lanes_t) l = {0};
    T q[32];
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int k = 0; k < 32; k++)
            q[k] = x[i + k] * y[i + k];
        F(lanes_add)(&l, q);
    }
    for (int64_t k = i; k < n; k++)
        q[k - i] = x[k] * y[k];
    return F(lanes_finish)(&l, q, n - i);
}

/* Maximum is associative here (NaN wins, +0 > -0), so the running maxima may meet anyhow. They are
 * taken of whole numbers in the order of the values: the bits, with those of negative values turned
 * over. */
static const I F(MAGNITUDE) = (I)(~(uint64_t)0 >> (65 - 8 * sizeof(I))); /* all bits but the sign */

static inline I F(rank)(T x)
{
    I b;
    memcpy(&b, &x, sizeof b);
    return b ^ ((b >> (8 * sizeof b - 1)) & F(MAGNITUDE));
}

static inline T F(value)(I rank)
{
    T x;
    rank ^= (rank >> (8 * sizeof rank - 1)) & F(MAGNITUDE);
    memcpy(&x, &rank, sizeof x);
    return x;
}

/* The greatest of sign * x; sign is 1 or -1. */
static inline T F(extreme)(int64_t n, const T *x, T sign)
{
    I m[32], nan = 0;
    int64_t i = 0;
    for (int k = 0; k < 32; k++)
        m[k] = F(rank)(-(T)INFINITY);
    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 32; k++) {
            I r = F(rank)(sign * x[i + k]);
            nan |= x[i + k] != x[i + k];
            m[k] = r > m[k] ? r : m[k];
        }
    for (; i < n; i++) {
        I r = F(rank)(sign * x[i]);
        nan |= x[i] != x[i];
        m[0] = r > m[0] ? r : m[0];
    }
    for (int k = 1; k < 32; k++)
        m[0] = m[k] > m[0] ? m[k] : m[0];
    return nan ? (T)NAN : F(value)(m[0]);
}

static T F(max)(int64_t n, const T *x) { return F(extreme)(n, x, 1); }

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

static void F(fold)(int64_t n, const T *x, double *acc)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] = (acc[i] + (double)x[i]) + 0;
}

static void F(accumulate)(int64_t n, const T *x, T *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (y[i] + x[i]) + 0;
}

/* y = exp(x - max), returns the lanes' sum of y. x and y may be the same. */
static T F(exp_row)(int64_t n, const T *x, T m, T *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] - m;
    M(exp)(n, y, y);
    return F(lanes)(n, y);
}

static void F(softmax)(int64_t n, const T *x, T *y)
{
    T r = 1 / F(exp_row)(n, x, F(max)(n, x), y);
    for (int64_t i = 0; i < n; i++)
        y[i] = y[i] * r;
}

static void F(softmax_grad)(int64_t n, const T *y, const T *dy, T *dx)
{
    T d = F(lanes_of_products)(n, dy, y);
    for (int64_t i = 0; i < n; i++)
        dx[i] = y[i] * (dy[i] - d);
}

static void F(log_softmax)(int64_t n, const T *x, T *y)
{
    T m = F(max)(n, x), l = F(exp_row)(n, x, m, y);
    M(log)(1, &l, &l);
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - m) - l;
}

static void F(log_softmax_grad)(int64_t n, const T *y, const T *dy, T *dx)
{
    T d = F(lanes)(n, dy);
    M(exp)(n, y, dx);
    for (int64_t i = 0; i < n; i++)
        dx[i] = dy[i] - dx[i] * d;
}

/* The row's exp sum by blocks of 256, so that no scratch grows with n. */
static T F(exp_sum)(int64_t n, const T *z, T m)
{
    F(lanes_t) l = {0};
    T e[256];
    int64_t i = 0, used = 0, full = 0;
    for (; i < n; i += used) {
        used = n - i < 256 ? n - i : 256;
        for (int64_t k = 0; k < used; k++)
            e[k] = z[i + k] - m;
        M(exp)(used, e, e);
        full = used / 32 * 32;
        for (int64_t k = 0; k < full; k += 32)
            F(lanes_add)(&l, e + k);
    }
    return F(lanes_finish)(&l, e + full, used - full);
}

static T F(cross_entropy)(int64_t n, const T *z, int64_t t)
{
    T m = F(max)(n, z), l = F(exp_sum)(n, z, m);
    M(log)(1, &l, &l);
    return l - (z[t] - m);
}

static void F(cross_entropy_grad)(int64_t n, const T *z, int64_t t, T w, T *dz)
{
    T r = 1 / F(exp_row)(n, z, F(max)(n, z), dz), pt = dz[t] * r - 1;
    for (int64_t i = 0; i < n; i++)
        dz[i] = (dz[i] * r) * w;
    dz[t] = pt * w;
}

/* R(x) = (-x2, x1); its transpose is -R. Signs are exact, so r2*R(x) and R(r2*x) differ
 * only in which r2 meets which x. ylo and yhi overlap nothing: without that word the loop is not
 * vectorised. */
static void F(rotary_half)(int64_t h, const T *x, const T *r1, const T *r2, bool turned,
                           T *restrict ylo, T *restrict yhi)
{
    if (turned)
        for (int64_t i = 0; i < h; i++) {
            ylo[i] = r1[i] * x[i] - -(r2[h + i] * x[h + i]);
            yhi[i] = r1[h + i] * x[h + i] - r2[i] * x[i];
        }
    else
        for (int64_t i = 0; i < h; i++) {
            ylo[i] = r1[i] * x[i] + r2[i] * -x[h + i];
            yhi[i] = r1[h + i] * x[h + i] + r2[h + i] * x[i];
        }
}

/* The sign is chosen element by element: written as a sum beside a difference, gcc's vectoriser
 * makes fused add-subtracts of the two (vfmaddsub), which -ffp-contract=off does not forbid it. */
static void F(rotary_pairs)(int64_t n, const T *x, const T *r1, const T *r2, bool turned, T *y)
{
    for (int64_t i = 0; i + 1 < n; i += 2) {
        y[i] = turned ? r1[i] * x[i] - -(r2[i + 1] * x[i + 1]) : r1[i] * x[i] + r2[i] * -x[i + 1];
        y[i + 1] = turned ? r1[i + 1] * x[i + 1] - r2[i] * x[i]
                          : r1[i + 1] * x[i + 1] + r2[i + 1] * x[i];
    }
}

static void F(rotary)(int64_t n, const T *x, const T *r1, const T *r2, bool interleaved,
                      bool turned, T *y)
{
    if (interleaved)
        F(rotary_pairs)(n, x, r1, r2, turned, y);
    else
        F(rotary_half)(n / 2, x, r1, r2, turned, y, y + n / 2);
}

/* Squares of the widened values; the lanes are those of f64 for either type. */
static double F(square_sum)(int64_t n, const T *x)
{
    lanes_t_f64 l = {0};
    double q[32];
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int k = 0; k < 32; k++)
            q[k] = (double)x[i + k] * (double)x[i + k];
        lanes_add_f64(&l, q);
    }
    for (int64_t k = i; k < n; k++)
        q[k - i] = (double)x[k] * (double)x[k];
    return lanes_finish_f64(&l, q, n - i);
}
