/* clamp(x, lo, hi): lo below lo, hi above hi; masked_fill(x, mask, value) = where(mask, value, x)
 * Shape:  as x; the mask broadcasts
 * Dtype:  f16 bf16 f32 f64; the bounds are rounded to the compute type, the result to x's dtype
 * Bits:   v = lo if x < lo, else x; y = hi if v > hi, else v: NaN stays (NUMERICS 2.11)
 * VJP:    dy where lo <= x <= hi, else 0
 * Errors: TL_EDTYPE TL_EDOMAIN (lo > hi, or a NaN)
 */
#include "ops/build.h"

static const tl_attr clamp_schema[] = {{"lo", TL_ATTR_F64, offsetof(tl_clamp_attrs, lo)},
                                       {"hi", TL_ATTR_F64, offsetof(tl_clamp_attrs, hi)},
                                       {0}};

static tl_status clamp_shape(tl_call *c)
{
    const tl_clamp_attrs *a = c->attrs;
    if (!(a->lo <= a->hi))
        return tl_call_fail(c, TL_EDOMAIN, "from %g to %g; the lower bound comes first", a->lo,
                            a->hi);
    return tl_float_shape(c);
}

static void clamp_vjp(tl_vjp *g)
{
    const tl_clamp_attrs *a = g->attrs;
    tl_tape *t = g->t;
    tl_dtype c = tl_dtype_compute(tl_dtype_of(t, g->in[0]));
    tl_tensor zero = tl_scalar(t, tl_dtype_of(t, g->dy[0]), 0), x = g->in[0];
    tl_tensor below = tl_where(t, tl_le(t, x, tl_scalar(t, c, a->hi)), g->dy[0], zero);
    g->dx[0] = tl_where(t, tl_ge(t, x, tl_scalar(t, c, a->lo)), below, zero);
}

const tl_op tl_op_clamp = {.name = "clamp",
                           .n_in = 1,
                           .n_out = 1,
                           .shape = clamp_shape,
                           .slot = TL_TILE_clamp,
                           .traits = TL_POINTWISE,
                           .attr = clamp_schema,
                           .attr_size = sizeof(tl_clamp_attrs),
                           .vjp = clamp_vjp,
                           .saves_in = 1};

tl_tensor tl_clamp_at(tl_at at, tl_tensor x, double lo, double hi)
{
    tl_clamp_attrs a = {lo, hi};
    return tl_apply1(at, &tl_op_clamp, &a, &x, 1);
}

tl_tensor tl_masked_fill_at(tl_at at, tl_tensor x, tl_tensor mask, double value)
{
    return tl_where_at(at, mask, tl_fill_at(at, tl_dtype_of(at.tape, x), TL_SCALAR, value), x);
}
