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

/* With s = sigmoid(x) and r = 1 - s: the slope of silu, h = s*(1 + x*r), and its derivative, h' =
 * s*r*(2 + x*(1-2s)). */
static tl_tensor slope(tl_tape *t, tl_tensor x, tl_tensor s, tl_tensor r)
{
    return tl_mul(t, s, tl_shift(t, tl_mul(t, x, r), 1));
}
static tl_tensor bend(tl_tape *t, tl_tensor x, tl_tensor s, tl_tensor r)
{
    tl_tensor inner = tl_mul(t, x, tl_shift(t, tl_scale(t, s, -2), 1));
    return tl_mul(t, tl_mul(t, s, r), tl_shift(t, inner, 2));
}
static tl_tensor one_less(tl_tape *t, tl_tensor s) { return tl_shift(t, tl_neg(t, s), 1); }

/* f(dy, x) = dy*h: d/ddy = h; d/dx = dy*h' */
static void silu_grad_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    tl_tensor dy = g->in[0], x = g->in[1], s = tl_sigmoid(t, x), r = one_less(t, s);
    if (g->wants[0])
        g->dx[0] = tl_mul(t, g->dy[0], slope(t, x, s, r));
    if (g->wants[1])
        g->dx[1] = tl_mul(t, tl_mul(t, g->dy[0], dy), bend(t, x, s, r));
}

static void softplus_vjp(tl_vjp *g)
{
    g->dx[0] = tl_mul(g->t, g->dy[0], tl_sigmoid(g->t, g->in[0]));
}

const tl_op tl_op_relu = {TL_UNARY(relu, 0), .saves_in = 1};
const tl_op tl_op_silu = {TL_UNARY(silu, TL_HEAVY), .saves_in = 1};
const tl_op tl_op_silu_grad = {TL_BINARY(silu_grad, TL_HEAVY), .saves_in = 3};
const tl_op tl_op_softplus = {TL_UNARY(softplus, TL_HEAVY), .saves_in = 1};

/* ---- swiglu(a, b) = silu(a)*b; swiglu_grad(dy, a, b) -> da, db computes sigmoid(a) once
 * Shape:  swiglu's operands broadcast; swiglu_grad's are alike
 * Dtype:  f16 bf16 f32 f64; swiglu_grad's operands are alike
 * Bits:   swiglu (a*sigmoid(a))*b; the gradient as silu_grad(dy*b, a) and dy*silu(a) in f32 and f64
 *         (NUMERICS 2.7)
 * VJP:    swiglu_grad where the operands are alike and of a compute type, else the two products by
 *         themselves; swiglu_grad's is in primitives
 * Errors: TL_ESHAPE TL_EDTYPE
 * Source: Shazeer 2020
 */

/* Whether both gradients are wanted and swiglu_grad gives the bits of the two products. In f16 and
 * bf16 it does not, since the first product is rounded on the way. */
static bool alike(tl_vjp *g)
{
    tl_dtype d = tl_dtype_of(g->t, g->dy[0]);
    tl_shape s = tl_shape_of(g->t, g->dy[0]);
    for (int i = 0; i < 2; i++) {
        tl_shape si = tl_shape_of(g->t, g->in[i]);
        if (!g->wants[i] || tl_dtype_of(g->t, g->in[i]) != d || !tl_shape_equal(&s, &si))
            return false;
    }
    return d == tl_dtype_compute(d);
}

static void swiglu_vjp(tl_vjp *g)
{
    if (alike(g)) {
        tl_apply(TL_AT(g->t), &tl_op_swiglu_grad, NULL, (tl_tensor[]){g->dy[0], g->in[0], g->in[1]},
                 3, g->dx);
        return;
    }
    if (g->wants[0])
        g->dx[0] = tl_silu_grad(g->t, tl_mul(g->t, g->dy[0], g->in[1]), g->in[0]);
    if (g->wants[1])
        g->dx[1] = tl_mul(g->t, g->dy[0], tl_silu(g->t, g->in[0]));
}

const tl_op tl_op_swiglu = {TL_BINARY(swiglu, TL_HEAVY), .saves_in = 3};

static tl_status swiglu_grad_shape(tl_call *c)
{
    for (int i = 0; i < 3; i++) {
        if (!tl_dtype_is_float(c->in[i]->dtype) || c->in[i]->dtype != c->in[0]->dtype)
            return tl_call_fail(c, TL_EDTYPE, "input %d is %s, dy %s; one floating dtype is needed",
                                i, tl_dtype_name(c->in[i]->dtype), tl_dtype_name(c->in[0]->dtype));
        if (!tl_array_same_shape(c->in[i], c->in[0]))
            return tl_call_fail(c, TL_ESHAPE, "input %d has shape %s, dy %s", i, TL_TEXT(c->in[i]),
                                TL_TEXT(c->in[0]));
    }
    c->out[0] = c->out[1] = *c->in[0];
    return TL_OK;
}

/* A graph may ask for a third output, the result of swiglu (.result_of). */
static void swiglu_grad_range(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const tl_call *c = ctx;
    const void *dy = tl_flat_at(c->in[0], begin), *a = tl_flat_at(c->in[1], begin),
               *b = tl_flat_at(c->in[2], begin);
    void *da = tl_flat_at(&c->out[0], begin), *db = tl_flat_at(&c->out[1], begin),
         *y = c->n_out > 2 ? tl_flat_at(&c->out[2], begin) : NULL;
    TL_ROW(tl_isa_now()->row, c->in[0]->dtype == TL_F64, swiglu_grad, end - begin, dy, a, b, da, db,
           y);
}

static tl_status swiglu_grad_forward(tl_call *c)
{
    tl_parallel_for(tl_array_count(c->in[0]), 4096, swiglu_grad_range, c);
    return TL_OK;
}

/* With h and h' as above, da = dy*b*h and db = dy*a*s. Cotangents u of da, w of db:
 *   d_dy = u*b*h + w*a*s,   d_a = u*dy*b*h' + w*dy*h,   d_b = u*dy*h */
static void swiglu_grad_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    tl_tensor dy = g->in[0], a = g->in[1], b = g->in[2], u = g->dy[0], w = g->dy[1],
              s = tl_sigmoid(t, a), r = one_less(t, s), h = slope(t, a, s, r), none = TL_NONE;
    const bool of_da = !tl_is_none(u), of_db = !tl_is_none(w);
    tl_tensor udy = of_da ? tl_mul(t, u, dy) : none, wdy = of_db ? tl_mul(t, w, dy) : none;
    if (g->wants[0])
        g->dx[0] = tl_plus(t, of_da ? tl_mul(t, tl_mul(t, u, b), h) : none,
                           of_db ? tl_mul(t, w, tl_mul(t, a, s)) : none);
    if (g->wants[1])
        g->dx[1] = tl_plus(t, of_da ? tl_mul(t, tl_mul(t, udy, b), bend(t, a, s, r)) : none,
                           of_db ? tl_mul(t, wdy, h) : none);
    if (g->wants[2])
        g->dx[2] = of_da ? tl_mul(t, udy, h) : tl_filled_like(t, b, 0);
}

const tl_op tl_op_swiglu_grad = {
    TL_NAMED(swiglu_grad, 3, 2), .traits = TL_HEAVY | TL_ELEMENTWISE | TL_WIDENED,
    .shape = swiglu_grad_shape,  .forward = swiglu_grad_forward,
    .vjp = swiglu_grad_vjp,      .saves_in = 7,
    .result_of = &tl_op_swiglu,  .batch = tl_batch_aligned};

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
        tl_tensor slope = one_less(t, tl_square(t, y)),
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
