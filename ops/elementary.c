/* elementary: sqrt, rsqrt, exp, log, sin, cos, tanh, sigmoid, erf, log1p, expm1, exp2, log2, pow by
 * a constant
 * Shape:  as x
 * Dtype:  f16 bf16 f32 f64
 * Bits:   correctly rounded in f32, a fixed sequence in f64 (NUMERICS 2)
 * VJP:    the formulas at each op, from the output where that is cheaper
 * Errors: TL_EDTYPE TL_EDOMAIN (an exponent that is NaN); outside its domain a function gives NaN
 */
#include "ops/build.h"

/* dx = dy * slope, and dx = dy / x */
static void times(tl_vjp *g, tl_tensor slope) { g->dx[0] = tl_mul(g->t, g->dy[0], slope); }
static void over(tl_vjp *g, tl_tensor x) { g->dx[0] = tl_div(g->t, g->dy[0], x); }

/* y = sqrt(x): dx = dy / (2y) */
static void sqrt_vjp(tl_vjp *g) { over(g, tl_scale(g->t, g->out[0], 2)); }

/* y = x^-1/2: dx = dy * (-1/2 y^3) */
static void rsqrt_vjp(tl_vjp *g) { times(g, tl_scale(g->t, tl_pow(g->t, g->out[0], 3), -0.5)); }

static void exp_vjp(tl_vjp *g) { times(g, g->out[0]); }
static void log_vjp(tl_vjp *g) { over(g, g->in[0]); }
static void sin_vjp(tl_vjp *g) { times(g, tl_cos(g->t, g->in[0])); }
static void cos_vjp(tl_vjp *g)
{
    g->dx[0] = tl_neg(g->t, tl_mul(g->t, g->dy[0], tl_sin(g->t, g->in[0])));
}

/* y = tanh x: dx = dy * (1 - y^2) */
static void tanh_vjp(tl_vjp *g)
{
    times(g, tl_shift(g->t, tl_neg(g->t, tl_square(g->t, g->out[0])), 1));
}

/* y = sigmoid x: dx = dy * (y * (1 - y)) */
static void sigmoid_vjp(tl_vjp *g)
{
    times(g, tl_mul(g->t, g->out[0], tl_shift(g->t, tl_neg(g->t, g->out[0]), 1)));
}

/* y = erf x: dx = dy * (2/sqrt(pi) * exp(-x^2)) */
static void erf_vjp(tl_vjp *g)
{
    tl_tensor bell = tl_exp(g->t, tl_neg(g->t, tl_square(g->t, g->in[0])));
    times(g, tl_scale(g->t, bell, 0x1.20dd750429b6dp+0));
}

/* y = log(1 + x): dx = dy / (1 + x) */
static void log1p_vjp(tl_vjp *g) { over(g, tl_shift(g->t, g->in[0], 1)); }

/* y = e^x - 1: dx = dy * (y + 1) */
static void expm1_vjp(tl_vjp *g) { times(g, tl_shift(g->t, g->out[0], 1)); }

/* ln 2, rounded to the compute type by scale */
static const double ln2 = 0x1.62e42fefa39efp-1;

/* y = 2^x: dx = dy * (ln2 * y) */
static void exp2_vjp(tl_vjp *g) { times(g, tl_scale(g->t, g->out[0], ln2)); }
/* y = log2(x): dx = dy / (ln2 * x) */
static void log2_vjp(tl_vjp *g) { over(g, tl_scale(g->t, g->in[0], ln2)); }

/* y = x^c: dx = dy * (c * x^(c-1)); 0 for c = 0, also where x^(c-1) is infinite */
static void pow_vjp(tl_vjp *g)
{
    double c = ((const tl_const_attrs *)g->attrs)->c;
    if (c == 0)
        g->dx[0] = tl_scale(g->t, g->dy[0], 0);
    else
        times(g, tl_scale(g->t, tl_pow(g->t, g->in[0], c - 1), c));
}

const tl_op tl_op_sqrt = {TL_UNARY(sqrt, 0), .saves_out = 1};
const tl_op tl_op_rsqrt = {TL_UNARY(rsqrt, TL_HEAVY), .saves_out = 1};
const tl_op tl_op_exp = {TL_UNARY(exp, TL_HEAVY), .saves_out = 1};
const tl_op tl_op_log = {TL_UNARY(log, TL_HEAVY), .saves_in = 1};
const tl_op tl_op_sin = {TL_UNARY(sin, TL_HEAVY), .saves_in = 1};
const tl_op tl_op_cos = {TL_UNARY(cos, TL_HEAVY), .saves_in = 1};
const tl_op tl_op_tanh = {TL_UNARY(tanh, TL_HEAVY), .saves_out = 1};
const tl_op tl_op_sigmoid = {TL_UNARY(sigmoid, TL_HEAVY), .saves_out = 1};
const tl_op tl_op_erf = {TL_UNARY(erf, TL_HEAVY), .saves_in = 1};
const tl_op tl_op_log1p = {TL_UNARY(log1p, TL_HEAVY), .saves_in = 1};
const tl_op tl_op_expm1 = {TL_UNARY(expm1, TL_HEAVY), .saves_out = 1};
const tl_op tl_op_exp2 = {TL_UNARY(exp2, TL_HEAVY), .saves_out = 1};
const tl_op tl_op_log2 = {TL_UNARY(log2, TL_HEAVY), .saves_in = 1};
const tl_op tl_op_pow = {TL_UNARY(pow, TL_HEAVY), TL_ATTRS(tl_const), .saves_in = 1};

tl_tensor tl_pow_at(tl_at at, tl_tensor x, double c)
{
    if (isnan(c))
        return tl_reject(at, TL_EDOMAIN, "pow: the exponent is NaN");
    return tl_apply1(at, &tl_op_pow, &(tl_const_attrs){c}, &x, 1);
}
