/* softmax.t.h: softmax and log_softmax (NUMERICS 6.3, 6.4), cross entropy (6.5; with label
 * smoothing 6.9), and their gradients, of rows of one compute type. Included by rows.k.c after
 * sums.t.h. */

enum { F(BLOCK) = 512 };

/* y = exp(x - m), in blocks that stay in the first cache; returns the sum of y by lanes. y may be
 * x, or NULL if only the sum is wanted. */
static T F(exp_row)(int64_t n, const T *x, T m, T *y)
{
    F(lanes_t) l = {0};
    T less[F(BLOCK)], local[F(BLOCK)], *e = local;
    int64_t used = 0, full = 0;
    for (int64_t at = 0; at < n; at += used) {
        used = n - at < F(BLOCK) ? n - at : F(BLOCK);
        full = used / 32 * 32;
        e = y != NULL ? y + at : local;
        for (int64_t i = 0; i < used; i++)
            less[i] = x[at + i] - m;
        M(exp)(used, less, e);
        for (int64_t i = 0; i < full; i += 32)
            F(lanes_add)(&l, e + i);
    }
    return F(lanes_finish)(&l, e + full, used - full);
}

static void F(softmax)(void *rows, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const tl_rows *j = rows;
    const int64_t n = j->n;
    const T *x = (const T *)j->in[0] + begin * n;
    T *y = (T *)j->out[0] + begin * n;
    for (; begin < end; begin++, x += n, y += n) {
        T r = 1 / F(exp_row)(n, x, F(max)(n, x), y);
        for (int64_t i = 0; i < n; i++)
            y[i] = y[i] * r;
    }
}

static void F(softmax_grad)(void *rows, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const tl_rows *j = rows;
    const int64_t n = j->n;
    const T *dy = (const T *)j->in[0] + begin * n, *y = (const T *)j->in[1] + begin * n;
    T *dx = (T *)j->out[0] + begin * n;
    for (; begin < end; begin++, dy += n, y += n, dx += n) {
        T d = F(lanes_of_products)(n, dy, y, 0);
        for (int64_t i = 0; i < n; i++)
            dx[i] = y[i] * (dy[i] - d);
    }
}

static void F(log_softmax)(void *rows, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const tl_rows *j = rows;
    const int64_t n = j->n;
    const T *x = (const T *)j->in[0] + begin * n;
    T *y = (T *)j->out[0] + begin * n;
    for (; begin < end; begin++, x += n, y += n) {
        T m = F(max)(n, x), l = LOG(F(exp_row)(n, x, m, y));
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - m) - l;
    }
}

static void F(log_softmax_grad)(void *rows, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const tl_rows *j = rows;
    const int64_t n = j->n;
    const T *dy = (const T *)j->in[0] + begin * n, *y = (const T *)j->in[1] + begin * n;
    T *dx = (T *)j->out[0] + begin * n;
    for (; begin < end; begin++, dy += n, y += n, dx += n) {
        T d = F(lanes)(n, dy);
        M(exp)(n, y, dx);
        for (int64_t i = 0; i < n; i++)
            dx[i] = dy[i] - dx[i] * d;
    }
}

/* With smoothing eps; 0 leaves the mean over all classes out. */
static double F(cross_entropy)(int64_t n, const T *z, int64_t t, double eps)
{
    const T m = F(max)(n, z), l = LOG(F(exp_row)(n, z, m, NULL));
    if (eps == 0)
        return (double)(l - (z[t] - m));
    F(lanes_t) u = {0};
    T q[32], hit = (T)(1 - eps), rest = (T)eps;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int k = 0; k < 32; k++)
            q[k] = l - (z[i + k] - m);
        F(lanes_add)(&u, q);
    }
    for (int64_t k = i; k < n; k++)
        q[k - i] = l - (z[k] - m);
    T mean = F(lanes_finish)(&u, q, n - i) / (T)n;
    return (double)(hit * (l - (z[t] - m)) + rest * mean);
}

static void F(cross_entropy_grad)(int64_t n, const T *z, int64_t t, double eps, double dy, T *dz)
{
    T r = 1 / F(exp_row)(n, z, F(max)(n, z), dz), share = (T)eps / (T)n, hit = (T)(1 - eps) + share;
    T at = dz[t] * r - hit, w = (T)dy;
    for (int64_t i = 0; i < n; i++)
        dz[i] = (eps == 0 ? dz[i] * r : dz[i] * r - share) * w;
    dz[t] = at * w;
}
