/* math32_try.h: f32 functions over a vector of floats, with the lanes that they settle.
 *
 * A correctly rounded result is unique, so there may be two ways to it: a trial in float
 * arithmetic settles all but about one input in a thousand, and math32_*.h does those again.
 * A trial has its result as an unevaluated sum y + d, |d| far below |y|, with an error below a
 * known e; or as doubles, whose error is that of a short polynomial. Where y + (d - e) and y + (d +
 * e) round to one float, that float is the result. Elsewhere, and where the argument is none that
 * the trial covers, the lane is not settled. Bounds: errors are those of the last few roundings,
 * each below 2^-24 of a term that is itself small; e is more than what was found, and that every
 * input comes out right is shown by running all of them. Proof:  tests/exhaustive.c, at each level
 * that has trials.
 */
#ifndef TL_KERNELS_MATH32_TRY_H
#define TL_KERNELS_MATH32_TRY_H

#include "tensor/kernels/math_bits.h"
#include "tensor/kernels/math_vec.h"

#include <stddef.h>

#ifdef TL_VEC

typedef struct {
    tl_v y;
    tl_v_mask settled;
} tl_trial;

/* y + d, with an error below e; with a relative error below c. */
static inline tl_trial tl_try_round(tl_v y, tl_v d, tl_v e)
{
    tl_v up = y + (d + e), down = y + (d - e);
    tl_trial t = {up, tl_v_equal(up, down)};
    return t;
}

static inline tl_trial tl_try_round_relative(tl_v y, tl_v d, float c)
{
    tl_v up = y + tl_v_fma(y, tl_v_all(c), d), down = y + tl_v_fnma(y, tl_v_all(c), d);
    tl_trial t = {up, tl_v_equal(up, down)};
    return t;
}

/* ---- exp, exp2, expm1, sigmoid, tanh ---- */

/* 2^(i/16) e^(r + c) for an integer i, to which 127 * 16 has been added, |r| <= ln2/32 and c the
 * rest of r that r has no bits for: T and U, 2^(i mod 16 / 16) in two parts, times tl_try_scale(i);
 * p = e^(r + c) - 1 - r. */
typedef struct {
    tl_v t, u, r, p;
    tl_vi i;
} tl_try_power;

/* 2^(i div 16 - 127) */
static inline tl_v tl_try_scale(tl_vi i) { return tl_v_of((i << 19) & 0xff800000u); }

static inline tl_try_power tl_try_power_of(tl_vi i, tl_v r, tl_v c)
{
    static const float high[16] = {0x1.000000p+0f, 0x1.0b5586p+0f, 0x1.172b84p+0f, 0x1.2387a6p+0f,
                                   0x1.306fe0p+0f, 0x1.3dea64p+0f, 0x1.4bfdaep+0f, 0x1.5ab07ep+0f,
                                   0x1.6a09e6p+0f, 0x1.7a1148p+0f, 0x1.8ace54p+0f, 0x1.9c4918p+0f,
                                   0x1.ae89fap+0f, 0x1.c199bep+0f, 0x1.d5818ep+0f, 0x1.ea4afap+0f};
    /* clang-format off */
    static const float low[16] = {
                    0.0f,  0x1.9f3122p-25f, -0x1.c15742p-27f,  0x1.ceac48p-25f,
         0x1.4636e2p-25f,  0x1.824684p-25f, -0x1.593abcp-25f, -0x1.5bd5ecp-27f,
         0x1.9fcef4p-26f, -0x1.829fd0p-25f,  0x1.15506ep-27f,  0x1.51f848p-27f,
        -0x1.a94b14p-26f, -0x1.3d56b2p-27f, -0x1.822dbcp-27f,  0x1.52486cp-27f};
    /* clang-format on */
    tl_v q = tl_v_fma(r, tl_v_all(0x1.555698p-5f), tl_v_all(0x1.55571ep-3f)); /* to 2^-37 of e^r */
    q = tl_v_fma(r, q, tl_v_all(0.5f));
    tl_try_power e = {tl_v_pick(high, i), tl_v_pick(low, i), r, tl_v_fma(r * r, q, c), i};
    return e;
}

/* y + d = T e^r + b. b - y is exact: y lies near b, or b near -y, or b is 0. */
typedef struct {
    tl_v y, d;
} tl_try_sum;

static inline tl_try_sum tl_try_power_sum(tl_try_power e, tl_v b)
{
    tl_v y = tl_v_fma(e.t, e.r, b);
    tl_v lost = tl_v_fma(e.t, e.r, b - y);
    tl_try_sum s = {y, tl_v_fma(e.t, e.p, tl_v_fma(e.u, e.r, e.u)) + lost};
    return s;
}

/* Adding it rounds to an integer, which stands in the low bits of the sum with 127 * 16 more. */
#define TL_TRY_MAGIC (0x1.8p23f + 127 * 16)

/* |x| < 2^7 */
static inline tl_try_power tl_try_exp_power(tl_v x)
{
    tl_v i = tl_v_fma(x, tl_v_all(0x1.715476p+4f), tl_v_all(TL_TRY_MAGIC));
    tl_v k = i - tl_v_all(TL_TRY_MAGIC);
    tl_v a = tl_v_fnma(k, tl_v_all(0x1.62e430p-5f), x); /* exact */
    tl_v r = tl_v_fnma(k, tl_v_all(-0x1.05c610p-33f), a);
    tl_v c = tl_v_fnma(k, tl_v_all(-0x1.05c610p-33f), a - r);
    return tl_try_power_of(tl_v_bits(i), r, c);
}

/* Below -104 e^x rounds to 0, and from there to -87 nothing is covered. */
static inline tl_trial tl_try_exp(tl_v x)
{
    tl_try_power e = tl_try_exp_power(x);
    tl_try_sum s = tl_try_power_sum(e, e.t);
    tl_trial t = tl_try_round_relative(s.y, s.d, 0x1p-33f);
    tl_v_mask vanishes = tl_v_less(x, tl_v_all(-104.0f));
    t.y = tl_v_if(vanishes, tl_v_all(0.0f), t.y * tl_try_scale(e.i));
    t.settled = tl_v_and(t.settled, tl_v_less(tl_v_abs(x), tl_v_all(87.0f)));
    t.settled = tl_v_or(t.settled, vanishes);
    return t;
}

/* 2^x = power 2^(a + integer), where power = 2^(i/16 + apart); each `apart` is chosen so that power
 * and slope, power times ln2, are floats but for 2^-36 of them. a is exact. */
static inline tl_trial tl_try_exp2(tl_v x)
{
    /* clang-format off */
    static const float apart[16] = {
                   0.0f, -0x1.7b9e8p-11f,  -0x1.f666p-13f, -0x1.592d8p-11f,
        -0x1.95198p-11f,   0x1.8636p-11f, -0x1.0c924p-10f,  -0x1.94d2p-13f,
          0x1.3427p-12f,    0x1.451p-16f, -0x1.012f8p-11f,  0x1.1800cp-10f,
         -0x1.7138p-14f,  -0x1.a735p-12f,    0x1.36cp-14f,   0x1.5ddcp-14f};
    /* clang-format on */
    static const float power[16] = {0x1p+0f,        0x1.0b333p+0f,  0x1.171fa6p+0f, 0x1.23659ap+0f,
                                    0x1.304626p+0f, 0x1.3e1464p+0f, 0x1.4bc158p+0f, 0x1.5aa49ep+0f,
                                    0x1.6a1cc8p+0f, 0x1.7a1294p+0f, 0x1.8aabf8p+0f, 0x1.9c9744p+0f,
                                    0x1.ae834p+0f,  0x1.c1798cp+0f, 0x1.d587bap+0f, 0x1.ea523cp+0f};
    static const float slope[16] = {0x1.62e43p-1f,  0x1.726af4p-1f, 0x1.82f29p-1f,  0x1.93f63cp-1f,
                                    0x1.a5d038p-1f, 0x1.b8f3b8p-1f, 0x1.cbe912p-1f, 0x1.e08c9ep-1f,
                                    0x1.f5fe92p-1f, 0x1.060f58p+0f, 0x1.1190ccp+0f, 0x1.1dfc78p+0f,
                                    0x1.2a689ep+0f, 0x1.378d5cp+0f, 0x1.45741ap+0f, 0x1.53dd62p+0f};
    tl_v k = tl_v_fma(x, tl_v_all(16.0f), tl_v_all(TL_TRY_MAGIC));
    tl_vi i = tl_v_bits(k);
    tl_v a = tl_v_fnma(k - tl_v_all(TL_TRY_MAGIC), tl_v_all(0x1p-4f), x) - tl_v_pick(apart, i);
    tl_v q = tl_v_fma(a, tl_v_all(0x1.3b29dcp-7f), tl_v_all(0x1.c6b33cp-5f));
    q = a * tl_v_fma(a, q, tl_v_all(0x1.ebfbep-3f));
    tl_v p = tl_v_pick(power, i), b = tl_v_pick(slope, i), y = tl_v_fma(b, a, p);
    tl_v d = tl_v_fma(p * a, q, tl_v_fma(b, a, p - y));
    tl_trial t = tl_try_round_relative(y, d, 0x1.8p-34f);
    t.y *= tl_try_scale(i);
    t.settled = tl_v_and(t.settled, tl_v_less(tl_v_abs(x), tl_v_all(126.0f)));
    return t;
}

static inline tl_trial tl_try_expm1(tl_v x)
{
    tl_v one = tl_v_all(1.0f);
    tl_try_power e = tl_try_exp_power(x);
    tl_v scale = tl_try_scale(e.i);
    e.t *= scale;
    e.u *= scale;
    tl_v b = e.t - one, back = b - e.t;
    tl_v lost = (e.t - (b - back)) - (one + back); /* T - 1 is b + lost */
    tl_try_sum s = tl_try_power_sum(e, b);
    tl_v error = tl_v_min(tl_v_abs(s.y) * tl_v_all(0x1p-28f),
                          tl_v_fma(e.t, tl_v_all(0x1p-33f), tl_v_all(0x1p-48f)));
    tl_trial t = tl_try_round(s.y, s.d + lost, error);
    t.y = tl_v_sign(t.y, x);
    t.settled = tl_v_and(t.settled, tl_v_less(tl_v_abs(x), tl_v_all(87.0f)));
    return t;
}

/* (n + m) / (y + d), 1 <= y <= 2, as a quotient and the rest. */
static inline tl_try_sum tl_try_quotient(tl_v n, tl_v m, tl_v y, tl_v d)
{
    tl_v v = tl_v_all(1.0f) / y, q = n * v;
    tl_v rest = tl_v_fnma(y, q, n) + tl_v_fnma(d, q, m);
    rest *= v;
    tl_try_sum s = {q, tl_v_fnma(rest, d * v, rest)};
    return s;
}

/* z = e^-|x|: 1/(1 + z) for x >= 0, z/(1 + z) for x < 0. */
static inline tl_trial tl_try_sigmoid(tl_v x)
{
    tl_v one = tl_v_all(1.0f), zero = tl_v_all(0.0f);
    tl_try_power e = tl_try_exp_power(tl_v_max(tl_v_minus(x), tl_v_all(-80.0f)));
    tl_try_sum s = tl_try_power_sum(e, e.t);
    tl_v scale = tl_try_scale(e.i), z = s.y * scale, w = s.d * scale, y = one + z,
         d = (z - (y - one)) + w;
    tl_v_mask below = tl_v_less(x, zero);
    tl_try_sum q = tl_try_quotient(tl_v_if(below, z, one), tl_v_if(below, w, zero), y, d);
    tl_trial t = tl_try_round_relative(q.y, q.d, 0x1.8p-34f);
    t.settled = tl_v_and(t.settled, tl_v_less(tl_v_all(-72.0f), x));
    return t;
}

/* In 16 intervals of |x|, with r = |x| - center: value + r slope + r^2 bend + r^3 of a polynomial.
 * A center is chosen near the middle so that the first three are floats but for 2^-35 of tanh; 0 is
 * the center of the first interval. 2.9 |x| + 1.75 has the interval's number in its exponent and
 * the two bits below, as 16 from 1.75 to 28; tanh 9.02 rounds to 1. */
static inline tl_trial tl_try_tanh(tl_v x)
{
    static const float center[16] = {0x1.5f3eecp-3f, 0x1.6663fep-2f, 0x1.09a888p-1f, 0x1.5fe81ep-1f,
                                     0x1.e5b5b6p-1f, 0x1.4a7946p+0f, 0x1.a36c5cp+0f, 0x1.f9d3bp+0f,
                                     0x1.402112p+1f, 0x1.986202p+1f, 0x1.f0aa0ap+1f, 0x1.24437cp+2f,
                                     0x1.6698f8p+2f, 0x1.bec3a6p+2f, 0x1.0a2b24p+3f, 0.0f};
    static const float value[16] = {0x1.5bd788p-3f, 0x1.5870b2p-2f, 0x1.e84436p-2f, 0x1.31487cp-1f,
                                    0x1.7a74c6p-1f, 0x1.b7fecp-1f,  0x1.dabfdp-1f,  0x1.ecb074p-1f,
                                    0x1.f92906p-1f, 0x1.fe44d2p-1f, 0x1.ff904cp-1f, 0x1.ffe3bp-1f,
                                    0x1.fffc7p-1f,  0x1.ffffc6p-1f, 0x1.fffffcp-1f, 0.0f};
    static const float slope[16] = {
        0x1.f13afp-1f,   0x1.c6121ep-1f,  0x1.8b977cp-1f,  0x1.49f91ap-1f,
        0x1.d082f2p-2f,  0x1.0bc44cp-2f,  0x1.1f2a44p-3f,  0x1.2f2522p-4f,
        0x1.b2d1fcp-6f,  0x1.ba6e32p-8f,  0x1.be9f42p-10f, 0x1.c4f37ap-12f,
        0x1.c7fe6ep-15f, 0x1.cfffe4p-19f, 0x1.fffffap-23f, 1.0f};
    static const float bend[16] = {
        -0x1.51cec2p-3f,  -0x1.31781ep-2f, -0x1.794116p-2f,  -0x1.897f36p-2f,
        -0x1.575a9ep-2f,  -0x1.cc3814p-3f, -0x1.0a45b6p-3f,  -0x1.23b628p-4f,
        -0x1.ad02f4p-6f,  -0x1.b8ef3cp-8f, -0x1.be3dd2p-10f, -0x1.c4da6ep-12f,
        -0x1.c7fb42p-15f, -0x1.cfffbp-19f, -0x1.fffff6p-23f, 0.0f};
    static const float rest[6][16] = {
        {-0x1.62cd84p-8f, 0x1.d27db4p-4f, -0x1.45bfeap-2f, -0x1.ae0ed6p-5f, -0x1.031d24p-7f,
         -0x1.5a7db8p-9f, 0x1.ef31a8p-10f, 0x1.2aa34cp-11f, 0x1.6fa824p-15f, -0x1.836294p-17f,
         -0x1.56a9a8p-18f, -0x1.5a03bep-20f, -0x1.86dee6p-23f, -0x1.88490ep-27f, -0x1.9ea778p-31f,
         0.0f},
        {-0x1.19f894p-5f, 0x1.5cd23cp-7f, 0x1.93ceaap-6f, 0x1.d4dd7p-6f, 0x1.7ba74cp-8f,
         -0x1.36d1e8p-8f, -0x1.64cf8cp-9f, -0x1.8c5f2ep-11f, 0x1.2ddadep-14f, 0x1.1d4d08p-14f,
         0x1.5d1018p-16f, 0x1.6e76e6p-18f, 0x1.868f26p-21f, 0x1.8e1caep-25f, 0x1.b593bp-29f,
         -0x1.bacdaep-5f},
        {-0x1.c7fd9p-5f, -0x1.29de18p-4f, -0x1.591a8ep-5f, -0x1.696e04p-7f, 0x1.1e6264p-6f,
         0x1.c8fdbap-7f, 0x1.ee60b2p-9f, -0x1.8641f4p-15f, -0x1.79592cp-11f, -0x1.1a57c8p-12f,
         -0x1.35018ep-14f, -0x1.402406p-16f, -0x1.4363eep-19f, -0x1.49b044p-23f, -0x1.6c8afap-27f,
         0.0f},
        {0x1.a305e2p-4f, 0x1.deeb5p-6f, -0x1.0b7e7ap-5f, -0x1.f9fb0cp-5f, -0x1.a999cap-5f,
         -0x1.002bp-6f, 0x1.d479d6p-10f, 0x1.3a544p-8f, 0x1.76045cp-9f, 0x1.c031f8p-11f,
         0x1.d63ceap-13f, 0x1.e193d2p-15f, 0x1.e565acp-18f, 0x1.ee1b98p-22f, 0x1.10ae24p-25f,
         0x1.1112bp-3f},
        {0x1.aeea04p-4f, 0x1.522d9p-3f, 0x1.4b6d9cp-3f, 0x1.e9bb76p-4f, 0x1.4a6c1ep-5f,
         -0x1.0888d6p-6f, -0x1.9b5c32p-6f, -0x1.2e96ecp-6f, -0x1.073c32p-7f, -0x1.200054p-9f,
         -0x1.27f9b2p-11f, -0x1.2d8262p-13f, -0x1.2ff326p-16f, -0x1.3554c2p-20f, -0x1.555226p-24f,
         0.0f},
        {-0x1.2eccacp-2f, -0x1.8fed82p-3f, -0x1.4f60e4p-4f, 0x1.d493b8p-7f, 0x1.8bd7a6p-4f,
         0x1.b1f87p-4f, 0x1.2e5b28p-4f, 0x1.675264p-5f, 0x1.165712p-6f, 0x1.23f77cp-8f,
         0x1.28fcd6p-10f, 0x1.2dc582p-12f, 0x1.2ffb04p-15f, 0x1.355746p-19f, 0x1.555774p-23f,
         -0x1.555556p-2f}};
    static const float error[16] = {0x1.fp-32f, 0x1.2p-33f, 0x1.cp-34f, 0x1.3p-36f,
                                    0x1.2p-33f, 0x1.3p-33f, 0x1.9p-34f, 0x1.cp-35f,
                                    0x1.8p-33f, 0x1.7p-35f, 0x1.8p-37f, 0x1.9p-39f,
                                    0x1.bp-37f, 0x1.bp-41f, 0x1.cp-45f, 0x1.1p-31f};
    tl_v a = tl_v_min(tl_v_all(9.02f), tl_v_abs(x)); /* a NaN stays */
    tl_vi i = tl_v_bits(tl_v_fma(a, tl_v_all(2.9f), tl_v_all(1.75f))) >> 21;
    tl_v r = a - tl_v_pick(center, i), q = tl_v_pick(rest[0], i);
    for (int k = 1; k < 6; k++)
        q = tl_v_fma(r, q, tl_v_pick(rest[k], i));
    tl_v b = tl_v_pick(bend, i), c = tl_v_pick(slope, i), v = tl_v_pick(value, i);
    tl_v s = tl_v_fma(b, r, c), y = tl_v_fma(s, r, v);
    tl_v low = tl_v_fma(b, r, c - s), lost = tl_v_fma(s, r, v - y);
    tl_v d = tl_v_fma(r, tl_v_fma(r * r, q, low), lost), e = tl_v_pick(error, i);
    tl_v up = y + tl_v_fma(y, e, d), down = y + tl_v_fnma(y, e, d);
    tl_trial t = {tl_v_sign(up, x), tl_v_equal(up, down)};
    return t;
}

/* ---- log, log2, log1p ---- */

/* x + more = 2^e z (1 + more/x), z in [0.7, 1.4), in one of 16 intervals with a number C near 1/z
 * each: r + c = z C - 1, |r| < 2^-5, so that log x = e ln2 - log C + r + p. The interval round 1
 * has C = 1. */
typedef struct {
    tl_v e, r, p;
    tl_vi i;
} tl_try_logs;

static inline tl_try_logs tl_try_log_of(tl_v x, const tl_v *more)
{
    static const float inverse[16] = {0x1.66p+0f,  0x1.57p+0f, 0x1.498p+0f, 0x1.3c8p+0f,
                                      0x1.31p+0f,  0x1.26p+0f, 0x1.1b8p+0f, 0x1.12p+0f,
                                      0x1.098p+0f, 0x1p+0f,    0x1.e5p-1f,  0x1.cap-1f,
                                      0x1.b2p-1f,  0x1.9cp-1f, 0x1.88p-1f,  0x1.76p-1f};
    tl_vi offset = tl_v_bits(tl_v_all(0x1.66p-1f)), above = tl_v_bits(x) - offset;
    tl_vs e = (tl_vs)above >> 23;
    tl_vi k = (tl_vi)e << 23;
    tl_v z = tl_v_of(tl_v_bits(x) - k);
    tl_try_logs l = {.e = __builtin_convertvector(e, tl_v), .i = above >> 19};
    tl_v inv = tl_v_pick(inverse, l.i), product = z * inv;
    tl_v rest = tl_v_fms(z, inv, product);
    if (more != NULL)
        rest = tl_v_fma(*more * tl_v_of(tl_v_bits(tl_v_all(1.0f)) - k), inv, rest);
    tl_v near = product - tl_v_all(1.0f); /* exact */
    l.r = near + rest;
    tl_v c = rest - (l.r - near);
    tl_v q = tl_v_fma(l.r, tl_v_all(-0x1.559316p-3f), tl_v_all(0x1.99e02cp-3f));
    q = tl_v_fma(l.r, q, tl_v_all(-0x1.fffffep-3f));
    q = tl_v_fma(l.r, q, tl_v_all(0x1.555554p-2f));
    q = tl_v_fma(l.r, q, tl_v_all(-0.5f));
    l.p = tl_v_fma(l.r * l.r, q, tl_v_fnma(l.r, c, c));
    return l;
}

/* base + r + p: base is 0 or larger than r, `low` is what it lacks. */
static inline tl_trial tl_try_log_round(tl_v base, tl_v r, tl_v p, tl_v low)
{
    tl_v y = base + r;
    tl_v d = (r - (y - base)) + (low + p);
    tl_v size = tl_v_min(tl_v_abs(y), tl_v_all(0x1p-5f));
    return tl_try_round(y, d, size * tl_v_all(0x1p-28f));
}

static inline tl_trial tl_try_log_sum(tl_try_logs l)
{
    static const float high[16] = {-0x1.5768p-2f, -0x1.2b94p-2f, -0x1.0274p-2f, -0x1.b278p-3f,
                                   -0x1.66bp-3f,  -0x1.1b7p-3f,  -0x1.a1fp-4f,  -0x1.165p-4f,
                                   -0x1.2a8p-5f,  0.0f,          0x1.bbcp-5f,   0x1.c88p-4f,
                                   0x1.528p-3f,   0x1.bd08p-3f,  0x1.1178p-2f,  0x1.419cp-2f};
    static const float low[16] = {
        0x1.1d1754p-19f,  0x1.f8a8ecp-19f, -0x1.b82d84p-19f, -0x1.7ee464p-19f, 0x1.95ec6ap-18f,
        -0x1.56a97cp-18f, 0x1.c4ff3cp-21f, -0x1.b7751cp-19f, 0x1.3ddeb2p-21f,  0.0f,
        0x1.d7f8d2p-18f,  0x1.6006f2p-18f, -0x1.a1b5e4p-19f, 0x1.ce0ef6p-21f,  0x1.d044fcp-19f,
        -0x1.7b8542p-19f};
    tl_v base = tl_v_fma(l.e, tl_v_all(0x1.62e4p-1f), tl_v_pick(high, l.i)); /* exact */
    tl_v rest = tl_v_fma(l.e, tl_v_all(0x1.7f7d1cp-20f), tl_v_pick(low, l.i));
    return tl_try_log_round(base, l.r, l.p, rest);
}

/* Positive, normal and finite. */
static inline tl_v_mask tl_try_normal(tl_v x)
{
    return tl_v_and(tl_v_less(tl_v_all(0x1.fffffep-127f), x),
                    tl_v_less(x, tl_v_all(__builtin_inff())));
}

static inline tl_trial tl_try_log(tl_v x)
{
    tl_trial t = tl_try_log_sum(tl_try_log_of(x, NULL));
    t.settled = tl_v_and(t.settled, tl_try_normal(x));
    return t;
}

static inline tl_trial tl_try_log2(tl_v x)
{
    static const float high[16] = {-0x1.ef6cp-2f, -0x1.b03p-2f, -0x1.74ep-2f,  -0x1.3968p-2f,
                                   -0x1.02bcp-2f, -0x1.98fp-3f, -0x1.2d78p-3f, -0x1.919p-4f,
                                   -0x1.aeap-5f,  0.0f,         0x1.402p-4f,   0x1.495p-3f,
                                   0x1.e858p-3f,  0x1.4108p-2f, 0x1.8a88p-2f,  0x1.cffcp-2f};
    static const float low[16] = {
        -0x1.67328ep-18f, -0x1.befe06p-18f, 0x1.23d668p-20f,  -0x1.e254e8p-21f, 0x1.45db30p-18f,
        0x1.17c40cp-18f,  -0x1.c6937ep-19f, 0x1.7a46e8p-18f,  -0x1.98b04ap-20f, 0.0f,
        0x1.dbd936p-19f,  -0x1.e711c8p-21f, -0x1.6164f6p-22f, -0x1.fe83c2p-18f, 0x1.80abfcp-18f,
        -0x1.19ee52p-18f};
    tl_v inv = tl_v_all(0x1.715476p+0f);
    tl_try_logs l = tl_try_log_of(x, NULL);
    tl_v r = l.r * inv, c = tl_v_fms(l.r, inv, r);
    c = tl_v_fma(l.p, inv, tl_v_fma(l.r, tl_v_all(0x1.4ae0c0p-26f), c));
    tl_trial t = tl_try_log_round(l.e + tl_v_pick(high, l.i), r, c, tl_v_pick(low, l.i));
    t.settled = tl_v_and(t.settled, tl_try_normal(x));
    return t;
}

static inline tl_trial tl_try_log1p(tl_v x)
{
    tl_v one = tl_v_all(1.0f), x1 = one + x;
    tl_v more = tl_v_if(tl_v_less(x, one), x - (x1 - one), one - (x1 - x));
    tl_trial t = tl_try_log_sum(tl_try_log_of(x1, &more));
    t.y = tl_v_sign(t.y, x);
    t.settled = tl_v_and(t.settled, tl_try_normal(x1));
    return t;
}

/* ---- rsqrt and the powers of sqrt ---- */

/* 1/sqrt(x) = v + half rest, below 2^-42 relative: an estimate, a Newton step, and the exact
 * residual 1 - x v^2 of that. */
typedef struct {
    tl_v v, half, rest;
} tl_try_root;

static inline tl_try_root tl_try_root_of(tl_v x)
{
    tl_v one = tl_v_all(1.0f), v = tl_v_about_rsqrt(x);
    v = tl_v_fma(v * tl_v_all(0.5f), tl_v_fnma(x * v, v, one), v);
    tl_v h = x * v, low = tl_v_fms(x, v, h);
    tl_try_root s = {v, v * tl_v_all(0.5f), tl_v_fnma(low, v, tl_v_fnma(h, v, one))};
    return s;
}

/* Zeros, infinity, NaN and negative numbers become NaN on the way, which settles nothing. */
static inline tl_trial tl_try_rsqrt(tl_v x)
{
    tl_try_root s = tl_try_root_of(x);
    tl_v up = tl_v_fma(s.half, s.rest + tl_v_all(0x1p-39f), s.v);
    tl_v down = tl_v_fma(s.half, s.rest - tl_v_all(0x1p-39f), s.v);
    tl_trial t = {up, tl_v_equal(up, down)};
    return t;
}

/* x sqrt(x): sqrt(x) is x/sqrt(x) and its rest. */
static inline tl_trial tl_try_pow3h(tl_v x)
{
    tl_v v = tl_try_root_of(x).v, s = x * v;
    tl_v rest = tl_v_fnma(s, s, x) * (v * tl_v_all(0.5f));
    tl_v y = x * s, d = tl_v_fma(x, rest, tl_v_fms(x, s, y));
    tl_trial t = tl_try_round_relative(y, d, 0x1p-36f);
    t.settled = tl_v_and(t.settled, tl_v_and(tl_v_less(tl_v_all(0x1p-60f), x),
                                             tl_v_less(x, tl_v_all(0x1p80f))));
    return t;
}

/* ---- sin, cos, erf: in double, on half a vector at a time ---- */

/* Errors below c, relative. Products and sums in double err by 2^-53 each, so that c is what the
 * polynomial errs by, and a little more. */
static inline tl_trial tl_try_round_wide(tl_w low, tl_w high, double c)
{
    tl_w e = tl_w_all(c);
    tl_v up = tl_w_narrow(tl_w_fma(low, e, low), tl_w_fma(high, e, high));
    tl_v down = tl_w_narrow(tl_w_fnma(low, e, low), tl_w_fnma(high, e, high));
    tl_trial t = {up, tl_v_equal(up, down)};
    return t;
}

/* x = h pi + r, |r| <= pi/2, with pi in two parts; the product by the first comes off exactly, as h
 * and x have few bits. -> (-1)^parity sin r; the polynomial errs by 2^-43.7 relative. */
static inline tl_w tl_try_sin_rest(tl_w x, tl_w h, tl_wi parity)
{
    tl_w r = tl_w_fnma(h, tl_w_all(0x1.921fb54442d18p+1), x);
    r = tl_w_fnma(h, tl_w_all(0x1.1a62633145c07p-53), r);
    tl_w z = r * r;
    tl_w q = tl_w_fma(z, tl_w_all(0x1.52dbc09f3e606p-33), tl_w_all(-0x1.ae03f65bbcab3p-26));
    q = tl_w_fma(z, q, tl_w_all(0x1.71dcf844a695ep-19));
    q = tl_w_fma(z, q, tl_w_all(-0x1.a019fd593ae2dp-13));
    q = tl_w_fma(z, q, tl_w_all(0x1.1111110a557a2p-7));
    q = tl_w_fma(z, q, tl_w_all(-0x1.555555554713ep-3));
    q = tl_w_fma(z, q, tl_w_all(1.0));
    return (tl_w)((tl_wi)(r * q) ^ (parity << 63));
}

static inline tl_w tl_try_sin_half(tl_w x)
{
    tl_w magic = tl_w_all(TL_ROUND_MAGIC);
    tl_w k = tl_w_fma(x, tl_w_all(0x1.45f306dc9c883p-2), magic);
    return tl_try_sin_rest(x, k - magic, (tl_wi)k);
}

/* cos x = sin(x + pi/2) */
static inline tl_w tl_try_cos_half(tl_w x)
{
    tl_w magic = tl_w_all(TL_ROUND_MAGIC), half = tl_w_all(0.5);
    tl_w k = tl_w_fma(x, tl_w_all(0x1.45f306dc9c883p-2), half) + magic;
    return tl_try_sin_rest(x, (k - magic) - half, (tl_wi)k);
}

/* Beyond, h has too many bits; infinity and NaN become NaN, which settles nothing. */
static inline tl_trial tl_try_trig_round(tl_v x, tl_w low, tl_w high)
{
    tl_trial t = tl_try_round_wide(low, high, 0x1p-42);
    t.settled = tl_v_and(t.settled, tl_v_less(tl_v_abs(x), tl_v_all(0x1p22f)));
    return t;
}

static inline tl_trial tl_try_sin(tl_v x)
{
    return tl_try_trig_round(x, tl_try_sin_half(tl_w_low(x)), tl_try_sin_half(tl_w_high(x)));
}

static inline tl_trial tl_try_cos(tl_v x)
{
    return tl_try_trig_round(x, tl_try_cos_half(tl_w_low(x)), tl_try_cos_half(tl_w_high(x)));
}

/* erf x = 1 - (1 - u)^8 with u = 1 - erfc(x)^(1/8), which is smooth and rises from 0: x times a
 * polynomial, whose fit weighs an error of u as erf shows it (2^-37.4 relative to erf). With p = 1
 * - u, 1 - p^8 = u (1 + p) (1 + p^2) (1 + p^4) has nothing to cancel. */
static inline tl_w tl_try_erf_half(tl_w x)
{
    static const double c[13] = {0x1.48d704f194004p-26,  -0x1.aaebdaa70ae49p-23,
                                 0x1.3f278273092dcp-20,  -0x1.2d70e70bab3d9p-18,
                                 0x1.79a076ffce36cp-17,  -0x1.e9f5ed1a65df6p-17,
                                 -0x1.111adbd9660afp-14, 0x1.01e6373861ab3p-11,
                                 -0x1.6c35dba064df9p-13, -0x1.b0288c78d39abp-8,
                                 0x1.11f2852ddba24p-9,   0x1.1d34a608bf56fp-4,
                                 0x1.20dd75042324fp-3};
    tl_w u = tl_w_all(-0x1.c050eadd1dd7dp-31);
    for (int i = 0; i < 13; i++)
        u = tl_w_fma(x, u, tl_w_all(c[i]));
    u *= x;
    tl_w p = tl_w_all(1.0) - u, p2 = p * p, p4 = p2 * p2;
    u = tl_w_fma(u, p, u);
    u = tl_w_fma(u, p2, u);
    return tl_w_fma(u, p4, u);
}

static inline tl_trial tl_try_erf(tl_v x)
{
    tl_v a = tl_v_min(tl_v_all(3.93f), tl_v_abs(x)); /* a NaN stays; erf 3.93 rounds to 1 */
    tl_trial t = tl_try_round_wide(tl_try_erf_half(tl_w_low(a)), tl_try_erf_half(tl_w_high(a)),
                                   0x1p-37);
    t.y = tl_v_sign(t.y, x);
    return t;
}

#endif
#endif
