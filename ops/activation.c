/* activation: relu, silu(x) = x*sigmoid(x), softplus(x) = log(1 + e^x)
 * Shape:  as x
 * Dtype:  f16 bf16 f32 f64
 * Bits:   compositions of correctly rounded sigmoid and IEEE operations (NUMERICS 2.6)
 * VJP:    relu dy where x > 0; silu by silu_grad, whose own vjp is in primitives; softplus
 *         dy*sigmoid(x)
 * Errors: TL_ESHAPE TL_EDTYPE
 * Source: silu: Elfwing et al. 2018
 */
#include "ops/build.h"

static void relu_vjp(tl_vjp *g)
{
    tl_tensor zero = tl_scalar(g->t, tl_dtype_of(g->t, g->in[0]), 0);
    g->dx[0] = tl_where(g->t, tl_gt(g->t, g->in[0], zero), g->dy[0], zero);
}

static void silu_vjp(tl_vjp *g) { g->dx[0] = tl_silu_grad(g->t, g->dy[0], g->in[0]); }

/* f(dy, x) = dy*h, h = s*(1 + x*(1-s)): d/ddy = h; d/dx = dy * s*(1-s)*(2 + x*(1-2s)) */
static void silu_grad_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    tl_tensor dy = g->in[0], x = g->in[1], s = tl_sigmoid(t, x),
              rest = tl_shift(t, tl_neg(t, s), 1);
    if (g->wants[0])
        g->dx[0] = tl_mul(t, g->dy[0], tl_mul(t, s, tl_shift(t, tl_mul(t, x, rest), 1)));
    if (g->wants[1]) {
        tl_tensor bend = tl_shift(t, tl_mul(t, x, tl_shift(t, tl_scale(t, s, -2), 1)), 2);
        g->dx[1] = tl_mul(t, tl_mul(t, g->dy[0], dy), tl_mul(t, tl_mul(t, s, rest), bend));
    }
}

static void softplus_vjp(tl_vjp *g)
{
    g->dx[0] = tl_mul(g->t, g->dy[0], tl_sigmoid(g->t, g->in[0]));
}

const tl_op tl_op_relu = {TL_UNARY(relu, 0), .saves_in = 1};
const tl_op tl_op_silu = {TL_UNARY(silu, TL_HEAVY), .saves_in = 1};
const tl_op tl_op_silu_grad = {TL_BINARY(silu_grad, TL_HEAVY), .saves_in = 3};
const tl_op tl_op_softplus = {TL_UNARY(softplus, TL_HEAVY), .saves_in = 1};

/* ---- gelu: x * Phi(x) by erf; gelu_tanh: its approximation by tanh; and their gradients
 * Shape:  as x; the gradients' operands broadcast
 * Dtype:  f16 bf16 f32 f64
 * Bits:   compositions of correctly rounded erf, exp, tanh and IEEE operations (NUMERICS 2.9, 2.10)
 * VJP:    gelu by gelu_grad(dy, x) = dy*h(x), whose own vjp is the same op for dy, dy*h'(x) in
 *         primitives for x
 * Errors: TL_ESHAPE TL_EDTYPE
 * Source: Hendrycks & Gimpel 2016
 */

static void gelu_vjp(tl_vjp *g) { g->dx[0] = tl_gelu_grad(g->t, g->dy[0], g->in[0]); }
static void gelu_tanh_vjp(tl_vjp *g) { g->dx[0] = tl_gelu_tanh_grad(g->t, g->dy[0], g->in[0]); }

/* h = Phi + x*b, b the normal density: h' = b*(2 - x^2). b is 0 beyond 39; there, x is held so that
 * its square stays finite. */
static void gelu_grad_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    tl_tensor u = g->dy[0], dy = g->in[0], x = g->in[1];
    if (g->wants[0])
        g->dx[0] = tl_gelu_grad(t, u, x);
    if (g->wants[1]) {
        tl_tensor xx = tl_square(t, tl_clamp(t, x, -40, 40)),
                  b = tl_scale(t, tl_exp(t, tl_scale(t, xx, -0.5)), 0x1.9884533d43651p-2);
        g->dx[1] = tl_mul(t, tl_mul(t, u, dy), tl_mul(t, b, tl_shift(t, tl_neg(t, xx), 2)));
    }
}

/* With t = tanh(v), v' = k*(1 + 3c x^2), v'' = 6kc x, k = sqrt(2/pi), c = 0.044715:
 * h = (1 + t)/2 + x/2*(1 - t^2)*v',  h' = (1 - t^2)*(v' + x/2*(v'' - 2t*v'^2)). Beyond 10, t is 1,
 * and x is held so that v'^2 stays finite. */
static void gelu_tanh_grad_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    tl_tensor u = g->dy[0], dy = g->in[0], x = g->in[1];
    const double k = 0x1.9884533d43651p-1, c = 0.044715;
    if (g->wants[0])
        g->dx[0] = tl_gelu_tanh_grad(t, u, x);
    if (g->wants[1]) {
        x = tl_clamp(t, x, -10, 10);
        tl_tensor xx = tl_square(t, x),
                  y = tl_tanh(t, tl_scale(t, tl_mul(t, x, tl_shift(t, tl_scale(t, xx, c), 1)), k));
        tl_tensor slope = tl_shift(t, tl_neg(t, tl_square(t, y)), 1),
                  v1 = tl_scale(t, tl_shift(t, tl_scale(t, xx, 3 * c), 1), k);
        tl_tensor bend = tl_sub(t, tl_scale(t, x, 6 * k * c),
                                tl_mul(t, tl_scale(t, y, 2), tl_square(t, v1)));
        tl_tensor h = tl_mul(t, slope, tl_add(t, v1, tl_mul(t, tl_scale(t, x, 0.5), bend)));
        g->dx[1] = tl_mul(t, tl_mul(t, u, dy), h);
    }
}

const tl_op tl_op_gelu = {TL_UNARY(gelu, TL_HEAVY), .saves_in = 1};
const tl_op tl_op_gelu_tanh = {TL_UNARY(gelu_tanh, TL_HEAVY), .saves_in = 1};
const tl_op tl_op_gelu_grad = {TL_BINARY(gelu_grad, TL_HEAVY), .saves_in = 3};
const tl_op tl_op_gelu_tanh_grad = {TL_BINARY(gelu_tanh_grad, TL_HEAVY), .saves_in = 3};
