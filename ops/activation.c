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

const tl_op tl_op_relu = {TL_UNARY(relu), .traits = TL_POINTWISE, .vjp = relu_vjp, .saves_in = 1};
const tl_op tl_op_silu = {TL_UNARY(silu), .traits = TL_POINTWISE | TL_HEAVY, .vjp = silu_vjp,
                          .saves_in = 1};
const tl_op tl_op_silu_grad = {TL_BINARY(silu_grad), .traits = TL_POINTWISE | TL_HEAVY,
                               .vjp = silu_grad_vjp, .saves_in = 3};
const tl_op tl_op_softplus = {TL_UNARY(softplus), .traits = TL_POINTWISE | TL_HEAVY,
                              .vjp = softplus_vjp, .saves_in = 1};

TL_UNARY_CALL(relu)
TL_UNARY_CALL(silu)
TL_UNARY_CALL(softplus)
TL_BINARY_CALL(silu_grad)
