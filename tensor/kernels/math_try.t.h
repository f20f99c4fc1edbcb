/* math_try.t.h: an array function from a trial and the function that settles its doubts.
 *
 * Parameters, undefined at the end:
 *   TL_TRY_NAME  the function defined here: void name(int64_t n, const float *x, float *y)
 *   TL_TRY       the trial (math32_try.h)
 *   TL_TRY_REDO  y = TL_TRY_REDO(x), for one element
 */
#ifndef TL_TRY_PART
#define TL_TRY_PART_(name) name##_part
#define TL_TRY_PART(name) TL_TRY_PART_(name)
#endif

static inline void TL_TRY_PART(TL_TRY_NAME)(const float *x, float *y)
{
    tl_v v = tl_v_load(x);
    tl_trial t = TL_TRY(v);
    unsigned doubt = tl_v_lanes(t.settled) ^ ((1u << TL_VEC) - 1);
    if (__builtin_expect(doubt != 0, 0)) {
        float in[TL_VEC], out[TL_VEC];
        tl_v_store(in, v);
        tl_v_store(out, t.y);
        for (; doubt != 0; doubt &= doubt - 1) {
            int i = __builtin_ctz(doubt);
            out[i] = TL_TRY_REDO(in[i]);
        }
        memcpy(y, out, sizeof out);
        return;
    }
    tl_v_store(y, t.y);
}

void TL_TRY_NAME(int64_t n, const float *x, float *y);
void TL_TRY_NAME(int64_t n, const float *x, float *y)
{
    int64_t i = 0;
    for (; i + TL_VEC <= n; i += TL_VEC)
        TL_TRY_PART(TL_TRY_NAME)(x + i, y + i);
    if (i < n) {
        float in[TL_VEC], out[TL_VEC];
        for (int k = 0; k < TL_VEC; k++)
            in[k] = 1.0f; /* which every trial settles */
        memcpy(in, x + i, (size_t)(n - i) * sizeof *x);
        TL_TRY_PART(TL_TRY_NAME)(in, out);
        memcpy(y + i, out, (size_t)(n - i) * sizeof *y);
    }
}

#undef TL_TRY_NAME
#undef TL_TRY
#undef TL_TRY_REDO
