/* recur.t.h: one step of a recurrent layer of n units for one sample, forward and backward
 * (NUMERICS 6.18, 6.19). g holds the part of the gates that comes from x, u the part from the
 * state; b, unless NULL, is added to u. A row of several gates holds the n units of the first, then
 * those of the second, and so on. Included by rows.k.c. */

/* x = g + (u + b) */
static void F(gates)(int64_t n, const T *restrict g, const T *restrict u, const T *restrict b,
                     T *restrict x)
{
    if (b == NULL)
        for (int64_t i = 0; i < n; i++)
            x[i] = g[i] + u[i];
    else
        for (int64_t i = 0; i < n; i++)
            x[i] = g[i] + (u[i] + b[i]);
}

/* a = i, f, g, o (4n); c = f*c + i*g */
static void F(lstm)(int64_t n, const T *g, const T *u, const T *b, T *restrict a, T *restrict c)
{
    F(gates)(4 * n, g, u, b, a);
    M(sigmoid)(2 * n, a, a);
    M(tanh)(n, a + 2 * n, a + 2 * n);
    M(sigmoid)(n, a + 3 * n, a + 3 * n);
    for (int64_t i = 0; i < n; i++)
        c[i] = a[n + i] * c[i] + a[i] * a[2 * n + i];
}

/* h = o*tanh(c) */
static void F(lstm_out)(int64_t n, const T *a, const T *c, T *h)
{
    M(tanh)(n, c, h);
    for (int64_t i = 0; i < n; i++)
        h[i] = a[3 * n + i] * h[i];
}

/* a = r, z, n, v (4n), where v = u + b of the last gate; h = (1 - z)*n + z*h */
static void F(gru)(int64_t n, const T *restrict g, const T *restrict u, const T *restrict b,
                   T *restrict a, T *restrict h)
{
    T *r = a, *z = a + n, *m = a + 2 * n, *v = a + 3 * n;
    F(gates)(2 * n, g, u, b, a);
    M(sigmoid)(2 * n, a, a);
    for (int64_t i = 0; i < n; i++) {
        v[i] = b == NULL ? u[2 * n + i] : u[2 * n + i] + b[2 * n + i];
        m[i] = g[2 * n + i] + r[i] * v[i];
    }
    M(tanh)(n, m, m);
    for (int64_t i = 0; i < n; i++)
        h[i] = (1 - z[i]) * m[i] + z[i] * h[i];
}

static void F(rnn)(int64_t n, const T *g, const T *u, const T *b, bool relu, T *h)
{
    F(gates)(n, g, u, b, h);
    if (!relu)
        M(tanh)(n, h, h);
    else
        for (int64_t i = 0; i < n; i++)
            h[i] = h[i] > 0 ? h[i] : h[i] != h[i] ? h[i] : 0;
}

/* old is the cell before the step. dc is the gradient of the cell after the step, and becomes that
 * of old. da (4n) is the gradient of a, or NULL. */
static void F(lstm_grad)(int64_t n, const T *restrict dh, T *restrict dc, const T *restrict a,
                         const T *c, const T *restrict old, const T *restrict da, T *restrict ds)
{
    const T *in = a, *f = a + n, *g = a + 2 * n, *o = a + 3 * n;
    T *di = ds, *df = ds + n, *dg = ds + 2 * n, *dout = ds + 3 * n;
    M(tanh)(n, c, dout);
    for (int64_t i = 0; i < n; i++) {
        T t = dout[i], d = dc[i] + (dh[i] * o[i]) * (1 - t * t);
        di[i] = d * g[i];
        df[i] = d * old[i];
        dg[i] = d * in[i];
        dout[i] = dh[i] * t;
        dc[i] = d * f[i];
    }
    for (int64_t i = 0; i < 4 * n && da != NULL; i++)
        ds[i] = ds[i] + da[i];
    for (int64_t i = 0; i < n; i++) {
        di[i] = di[i] * (in[i] * (1 - in[i]));
        df[i] = df[i] * (f[i] * (1 - f[i]));
        dg[i] = dg[i] * (1 - g[i] * g[i]);
        dout[i] = dout[i] * (o[i] * (1 - o[i]));
    }
}

/* old is the state before the step. dh is the gradient of the state after the step, and becomes the
 * part of old's gradient that comes through z. */
static void F(gru_grad)(int64_t n, T *restrict dh, const T *restrict a, const T *restrict old,
                        const T *restrict da, T *restrict dg, T *restrict ds)
{
    const T *r = a, *z = a + n, *m = a + 2 * n, *v = a + 3 * n;
    for (int64_t i = 0; i < n; i++) {
        T dm = dh[i] * (1 - z[i]), dz = dh[i] * (old[i] - m[i]);
        dm = (da == NULL ? dm : dm + da[2 * n + i]) * (1 - m[i] * m[i]);
        T dr = dm * v[i], dv = dm * r[i];
        ds[i] = dg[i] = (da == NULL ? dr : dr + da[i]) * (r[i] * (1 - r[i]));
        ds[n + i] = dg[n + i] = (da == NULL ? dz : dz + da[n + i]) * (z[i] * (1 - z[i]));
        dg[2 * n + i] = dm;
        ds[2 * n + i] = da == NULL ? dv : dv + da[3 * n + i];
        dh[i] = dh[i] * z[i];
    }
}

static void F(rnn_grad)(int64_t n, const T *restrict dh, const T *restrict h, bool relu,
                        T *restrict ds)
{
    for (int64_t i = 0; i < n; i++)
        ds[i] = relu ? (h[i] > 0 ? dh[i] : 0) : dh[i] * (1 - h[i] * h[i]);
}
