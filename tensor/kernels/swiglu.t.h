/* swiglu.t.h: the gradient of swiglu for a row of one compute type (NUMERICS 2.7). With s =
 * sigmoid(a): da = (dy*b) * (s*(1 + a*(1-s))), db = dy * (a*s) and, if wanted, y = (a*s) * b.
 * Included by rows.k.c. */

/* m elements, with s = sigmoid(a). da, db and y may be the same memory as dy, a or b. Inlined, so
 * that m can be a constant. */
static inline __attribute__((always_inline)) void F(swiglu_piece)(int64_t m, const T *dy,
                                                                  const T *a, const T *b,
                                                                  const T *s, T *da, T *db, T *y)
{
    T p[64 / sizeof(T)], q[64 / sizeof(T)], r[64 / sizeof(T)];
    for (int64_t i = 0; i < m; i++) {
        T x = a[i], g = dy[i];
        p[i] = (g * b[i]) * (s[i] * (1 + x * (1 - s[i])));
        q[i] = g * (x * s[i]);
        r[i] = (x * s[i]) * b[i];
    }
    memcpy(da, p, (size_t)m * sizeof(T));
    memcpy(db, q, (size_t)m * sizeof(T));
    if (y != NULL)
        memcpy(y, r, (size_t)m * sizeof(T));
}

static void F(swiglu_grad)(int64_t n, const T *dy, const T *a, const T *b, T *da, T *db, T *y)
{
    enum { PIECE = 64 / sizeof(T), TILE = 16 * PIECE };
    T s[TILE];
    for (int64_t at = 0; at < n; at += PIECE) {
        const T *z = s + at % TILE;
        if (z == s)
            M(sigmoid)(n - at < TILE ? n - at : TILE, a + at, s);
        T *to = y == NULL ? NULL : y + at;
        if (n - at >= PIECE)
            F(swiglu_piece)(PIECE, dy + at, a + at, b + at, z, da + at, db + at, to);
        else
            F(swiglu_piece)(n - at, dy + at, a + at, b + at, z, da + at, db + at, to);
    }
}
