/* rotary.t.h: rotary embedding of a row of one compute type (NUMERICS 8.1, 8.2). Included by
 * rows.k.c. */

/* R(x) = (-x2, x1); its transpose is -R. Signs are exact, so r2*R(x) and R(r2*x) differ only in
 * which r2 is multiplied with which x. The loop is only vectorised because ylo and yhi are
 * restrict. */
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

/* The sign is chosen for each element. Otherwise gcc's vectoriser would turn a sum next to a
 * difference into a fused add-subtract (vfmaddsub), which -ffp-contract=off does not prevent. */
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
