/* math_loop.t.h: an array function from an inline scalar one.
 *
 * Parameters, undefined at the end:
 *   TL_LOOP_T     float or double
 *   TL_LOOP_NAME  the function defined here: void name(int64_t n, const T *x, T *y)
 *   TL_LOOP_F     y = TL_LOOP_F(x); with TL_LOOP_POW defined, name takes an exponent
 *                 e before y, and y = TL_LOOP_F(x, tl_pow_exponent_of(e))
 *   TL_LOOP_FAR   optional: elements where TL_LOOP_FAR(x) is 1 are computed again as
 *                 TL_LOOP_REDO(x)
 * Tiles go through two local arrays: the compiler needs no overlap checks (x may be y),
 * every load is aligned, and a short tail runs the same vector code, padded with zeros.
 */
#ifndef TL_LOOP_TILE
#define TL_LOOP_TILE 256
#define TL_LOOP_PAD 16
#endif

#ifdef TL_LOOP_POW
#define TL_LOOP_PARAMS int64_t n, const TL_LOOP_T *x, double e, TL_LOOP_T *y
#define TL_LOOP_CALL(v) TL_LOOP_F(v, exponent)
#else
#define TL_LOOP_PARAMS int64_t n, const TL_LOOP_T *x, TL_LOOP_T *y
#define TL_LOOP_CALL(v) TL_LOOP_F(v)
#endif

void TL_LOOP_NAME(TL_LOOP_PARAMS);
void TL_LOOP_NAME(TL_LOOP_PARAMS)
{
    _Alignas(64) TL_LOOP_T in[TL_LOOP_TILE], out[TL_LOOP_TILE];
#ifdef TL_LOOP_POW
    const tl_pow_exponent exponent = tl_pow_exponent_of(e);
#endif
    for (int64_t at = 0; at < n; at += TL_LOOP_TILE) {
        size_t m = n - at < TL_LOOP_TILE ? (size_t)(n - at) : TL_LOOP_TILE;
        size_t padded = (m + TL_LOOP_PAD - 1) / TL_LOOP_PAD * TL_LOOP_PAD;
        memcpy(in, x + at, m * sizeof *x);
        memset(in + m, 0, (padded - m) * sizeof *x);
        for (size_t i = 0; i < padded; i++)
            out[i] = TL_LOOP_CALL(in[i]);
#ifdef TL_LOOP_FAR
        int any = 0;
        for (size_t i = 0; i < padded; i++)
            any |= TL_LOOP_FAR(in[i]);
        for (size_t i = 0; any && i < m; i++)
            if (TL_LOOP_FAR(in[i]))
                out[i] = TL_LOOP_REDO(in[i]);
#endif
        memcpy(y + at, out, m * sizeof *y);
    }
}

#undef TL_LOOP_CALL
#undef TL_LOOP_PARAMS
#undef TL_LOOP_NAME
#undef TL_LOOP_T
#undef TL_LOOP_F
#undef TL_LOOP_POW
#undef TL_LOOP_FAR
#undef TL_LOOP_REDO
