/* math_try.t.h: an array function from a trial and the function that settles its doubts.
 *
 * Parameters, undefined at the end:
 *   TL_TRY_NAME  the function defined here: void name(int64_t n, const float *x, float *y)
 *   TL_TRY       the trial (math32_try.h)
 *   TL_TRY_REDO  y = TL_TRY_REDO(x), for one element
 *
 * Bits say which lanes are settled, and those of a tile are looked at when all of it has been
 * tried: to branch on each vector takes up to a fifth longer, as a wrong guess throws away the
 * vectors that are under way. 64 in doubt together are done in one loop, which vectorises.
 */
#ifndef TL_TRY_PART
#define TL_TRY_PART_(name) name##_part
#define TL_TRY_PART(name) TL_TRY_PART_(name)
#define TL_TRY_TILE 2048
#endif

/* -> the lanes that are settled, as bits */
static inline unsigned TL_TRY_PART(TL_TRY_NAME)(const float *x, float *y)
{
    tl_trial t = TL_TRY(tl_v_load(x));
    tl_v_store(y, t.y);
    return tl_v_lanes(t.settled);
}

void TL_TRY_NAME(int64_t n, const float *x, float *y);
void TL_TRY_NAME(int64_t n, const float *x, float *y)
{
    for (int64_t at = 0; at < n; at += TL_TRY_TILE, x += TL_TRY_TILE, y += TL_TRY_TILE) {
        float kept[TL_TRY_TILE], rest[TL_VEC] = {0};
        tl_v_lane_bits settled[TL_TRY_TILE / TL_VEC];
        int m = n - at < TL_TRY_TILE ? (int)(n - at) : TL_TRY_TILE, i = 0;
        memset(settled, 0xff, sizeof settled);
        const float *from = x == y ? memcpy(kept, x, (size_t)m * sizeof *x) : x;
        for (; i + TL_VEC <= m; i += TL_VEC)
            settled[i / TL_VEC] = (tl_v_lane_bits)TL_TRY_PART(TL_TRY_NAME)(x + i, y + i);
        if (i < m) {
            memcpy(rest, x + i, (size_t)(m - i) * sizeof *x);
            unsigned lanes = TL_TRY_PART(TL_TRY_NAME)(rest, rest) | ~0u << (m - i);
            settled[i / TL_VEC] = (tl_v_lane_bits)lanes;
            memcpy(y + i, rest, (size_t)(m - i) * sizeof *y);
        }
        for (i = 0; i < m; i += 64) {
            uint64_t doubt;
            memcpy(&doubt, settled + i / TL_VEC, sizeof doubt);
            doubt = ~doubt;
            if (doubt == UINT64_MAX)
                for (int k = 0; k < 64; k++)
                    y[i + k] = TL_TRY_REDO(from[i + k]);
            else
                for (; doubt != 0; doubt &= doubt - 1) {
                    int k = i + __builtin_ctzll(doubt);
                    y[k] = TL_TRY_REDO(from[k]);
                }
        }
    }
}

#undef TL_TRY_NAME
#undef TL_TRY
#undef TL_TRY_REDO
