/* swiglu.t.h: the gradient of swiglu over a row of one compute type (NUMERICS 2.7): with s =
 * sigmoid(a), da = (dy*b) * (s*(1 + a*(1-s))), db = dy * (a*s); y = (a*s) * b, if asked for.
 * Included by rows.k.c. */

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
