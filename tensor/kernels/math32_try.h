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
 * rest of r that r has no bits for: T and U, 2^(i mod 16 / 16) in two parts, times the scale
 * 2^(i div 16 - 127); p = e^(r + c) - 1 - r. */
typedef struct {
    tl_v t, u, r, p, scale;
} tl_try_power;

static inline tl_try_power tl_try_power_of(tl_vi i, tl_v r, tl_v c)
{
    static const float high[16] = {0x1.000000p+0f, 0x1.0b5586p+0f, 0x1.172b84p+0f, 0x1.2387a6p+0f,
                                   0x1.306fe0p+0f, 0x1.3dea64p+0f, 0x1.4bfdaep+0f, 0x1.5ab07ep+0f,
                                   0x1.6a09e6p+0f, 0x1.7a1148p+0f, 0x1.8ace54p+0f, 0x1.9c4918p+0f,
                                   0x1.ae89fap+0f, 0x1.c199bep+0f, 0x1.d5818ep+0f, 0x1.ea4afap+0f};
    static const float low[16] = {0.0f,
                                  0x1.9f3122p-25f,
                                  -0x1.c15742p-27f,
                                  0x1.ceac48p-25f,
                                  0x1.4636e2p-25f,
                                  0x1.824684p-25f,
                                  -0x1.593abcp-25f,
                                  -0x1.5bd5ecp-27f,
                                  0x1.9fcef4p-26f,
                                  -0x1.829fd0p-25f,
                                  0x1.15506ep-27f,
                                  0x1.51f848p-27f,
                                  -0x1.a94b14p-26f,
                                  -0x1.3d56b2p-27f,
                                  -0x1.822dbcp-27f,
                                  0x1.52486cp-27f};
    tl_v q = tl_v_fma(r, tl_v_all(0x1.1111aap-7f), tl_v_all(0x1.555662p-5f));
    q = tl_v_fma(r, q, tl_v_all(0x1.555556p-3f));
    q = tl_v_fma(r, q, tl_v_all(0.5f));
    tl_try_power e = {tl_v_pick(high, i), tl_v_pick(low, i), r, tl_v_fma(r * r, q, c),
                      tl_v_of((i >> 4) << 23)};
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

/* The trial of a power below `zero` is 0, and from there to -limit it covers nothing. */
static inline tl_trial tl_try_power_round(tl_v x, tl_try_power e, float limit, float zero)
{
    tl_try_sum s = tl_try_power_sum(e, e.t);
    tl_trial t = tl_try_round_relative(s.y, s.d, 0x1p-33f);
    tl_v_mask vanishes = tl_v_less(x, tl_v_all(zero));
    t.y = tl_v_if(vanishes, tl_v_all(0.0f), t.y * e.scale);
    t.settled = tl_v_and(t.settled, tl_v_less(tl_v_abs(x), tl_v_all(limit)));
    t.settled = tl_v_or(t.settled, vanishes);
    return t;
}

static inline tl_trial tl_try_exp(tl_v x)
{
    return tl_try_power_round(x, tl_try_exp_power(x), 87.0f, -104.0f);
}

static inline tl_trial tl_try_exp2(tl_v x)
{
    tl_v i = tl_v_fma(x, tl_v_all(16.0f), tl_v_all(TL_TRY_MAGIC));
    tl_v k = i - tl_v_all(TL_TRY_MAGIC);
    tl_v a = tl_v_fnma(k, tl_v_all(0x1p-4f), x); /* exact */
    tl_v r = a * tl_v_all(0x1.62e430p-1f);
    tl_v c = tl_v_fms(a, tl_v_all(0x1.62e430p-1f), r);
    c = tl_v_fma(a, tl_v_all(-0x1.05c610p-29f), c);
    return tl_try_power_round(x, tl_try_power_of(tl_v_bits(i), r, c), 126.0f, -151.0f);
}

static inline tl_trial tl_try_expm1(tl_v x)
{
    tl_v one = tl_v_all(1.0f);
    tl_try_power e = tl_try_exp_power(x);
    e.t *= e.scale;
    e.u *= e.scale;
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
    tl_v z = s.y * e.scale, w = s.d * e.scale, y = one + z, d = (z - (y - one)) + w;
    tl_v_mask below = tl_v_less(x, zero);
    tl_try_sum q = tl_try_quotient(tl_v_if(below, z, one), tl_v_if(below, w, zero), y, d);
    tl_trial t = tl_try_round_relative(q.y, q.d, 0x1.8p-34f);
    t.settled = tl_v_and(t.settled, tl_v_less(tl_v_all(-72.0f), x));
    return t;
}

/* (1 - z)/(1 + z) with z = e^-2|x|, and a polynomial for |x| < 1/16. */
static inline tl_trial tl_try_tanh(tl_v x)
{
    tl_v one = tl_v_all(1.0f), a = tl_v_abs(x);
    tl_try_power e = tl_try_exp_power(tl_v_min(a, tl_v_all(10.0f)) * tl_v_all(-2.0f));
    tl_try_sum s = tl_try_power_sum(e, e.t);
    tl_v z = s.y * e.scale, w = s.d * e.scale, y = one + z, n = one - z;
    tl_v d = (z - (y - one)) + w, m = ((one - n) - z) - w;
    tl_try_sum q = tl_try_quotient(n, m, y, d);
    tl_v g = a * a;
    tl_v p = tl_v_fma(g, tl_v_all(-0x1.b909fep-5f), tl_v_all(0x1.1110f6p-3f));
    p = (a * g) * tl_v_fma(g, p, tl_v_all(-0x1.555556p-2f));
    tl_v_mask near = tl_v_less(a, tl_v_all(0x1p-4f));
    tl_trial t = tl_try_round(tl_v_if(near, a, q.y), tl_v_if(near, p, q.d),
                              tl_v_if(near, a * tl_v_all(0x1p-32f), tl_v_all(0x1.8p-35f)));
    t.y = tl_v_sign(t.y, x);
    t.settled = tl_v_and(t.settled, tl_v_less(a, tl_v_all(__builtin_inff())));
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
