/* swiglu(a, b) = silu(a)*b, and swiglu_grad(dy, a, b) -> da, db, which computes sigmoid(a) once
 * Shape:  swiglu's operands broadcast; swiglu_grad's are alike
 * Dtype:  f16 bf16 f32 f64; swiglu_grad's operands are alike
 * Bits:   swiglu (a*sigmoid(a))*b; the gradient as silu_grad(dy*b, a) and dy*silu(a) in f32 and f64
 *         (NUMERICS 2.7)
 * VJP:    swiglu_grad where the operands are alike and of a compute type, else the two products by
 *         themselves; swiglu_grad's is in primitives
 * Errors: TL_ESHAPE TL_EDTYPE
 * Source: Shazeer 2020
 */
#include "ops/build.h"

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

static tl_status grad_shape(tl_call *c)
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
static void grad_range(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const tl_call *c = ctx;
    const void *dy = tl_flat_at(c->in[0], begin), *a = tl_flat_at(c->in[1], begin),
               *b = tl_flat_at(c->in[2], begin);
    void *da = tl_flat_at(&c->out[0], begin), *db = tl_flat_at(&c->out[1], begin),
         *y = c->n_out > 2 ? tl_flat_at(&c->out[2], begin) : NULL;
    TL_ROW(tl_isa_now()->row, c->in[0]->dtype == TL_F64, swiglu_grad, end - begin, dy, a, b, da, db,
           y);
}

static tl_status grad_forward(tl_call *c)
{
    tl_parallel_for(tl_array_count(c->in[0]), 4096, grad_range, c);
    return TL_OK;
}

/* With s = sigmoid(a), h = s*(1 + a*(1-s)), h' = s*(1-s)*(2 + a*(1-2s)); da = dy*b*h, db = dy*a*s.
 * Cotangents u of da, w of db:
 *   d_dy = u*b*h + w*a*s,   d_a = u*dy*b*h' + w*dy*h,   d_b = u*dy*h */
static void grad_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    tl_tensor dy = g->in[0], a = g->in[1], b = g->in[2], u = g->dy[0], w = g->dy[1],
              s = tl_sigmoid(t, a);
    tl_tensor rest = tl_shift(t, tl_neg(t, s), 1),
              h = tl_mul(t, s, tl_shift(t, tl_mul(t, a, rest), 1));
    tl_tensor udy = tl_is_none(u) ? u : tl_mul(t, u, dy),
              wdy = tl_is_none(w) ? w : tl_mul(t, w, dy);
    if (g->wants[0])
        g->dx[0] = tl_plus(t, tl_is_none(u) ? u : tl_mul(t, tl_mul(t, u, b), h),
                           tl_is_none(w) ? w : tl_mul(t, w, tl_mul(t, a, s)));
    if (g->wants[1]) {
        tl_tensor from_da = TL_NONE;
        if (!tl_is_none(u)) {
            tl_tensor bend = tl_shift(t, tl_mul(t, a, tl_shift(t, tl_scale(t, s, -2), 1)), 2);
            from_da = tl_mul(t, tl_mul(t, udy, b), tl_mul(t, tl_mul(t, s, rest), bend));
        }
        g->dx[1] = tl_plus(t, from_da, tl_is_none(w) ? w : tl_mul(t, wdy, h));
    }
    if (g->wants[2])
        g->dx[2] = tl_is_none(u) ? tl_filled_like(t, b, 0) : tl_mul(t, udy, h);
}

const tl_op tl_op_swiglu_grad = {TL_NAMED(swiglu_grad, 3, 2),
                                 .traits = TL_HEAVY | TL_ELEMENTWISE | TL_WIDENED,
                                 .shape = grad_shape,
                                 .forward = grad_forward,
                                 .vjp = grad_vjp,
                                 .saves_in = 7,
                                 .result_of = &tl_op_swiglu,
                                 .batch = tl_batch_aligned};
