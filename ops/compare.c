/* compare: eq ne lt le gt ge -> bool; where(cond, a, b); maximum, minimum; logical_and, logical_or,
 * logical_not
 * Shape:  operands broadcast
 * Dtype:  comparisons: floats, or i64 with i64; where: floats, i64 or bool; maximum: floats;
 *         logical: any; nonzero is true
 * Bits:   with a NaN only ne is true; maximum: NaN wins, +0 > -0 (NUMERICS 4.2)
 * VJP:    comparisons are not differentiable; where sends dy to the chosen side; maximum to the
 *         larger one, half to each at a tie
 * Errors: TL_ESHAPE TL_EDTYPE
 */
#include "ops/build.h"

static tl_status compare_shape(tl_call *c)
{
    if (c->in[0]->dtype == TL_BOOL)
        return tl_call_fail(c, TL_EDTYPE, "bool operands; compare floats or i64");
    TL_TRY(tl_pointwise_shape(c));
    c->out[0].dtype = TL_BOOL;
    return TL_OK;
}

static tl_status where_shape(tl_call *c)
{
    if (c->in[0]->dtype != TL_BOOL)
        return tl_call_fail(c, TL_EDTYPE, "the condition is %s; bool is needed",
                            tl_dtype_name(c->in[0]->dtype));
    tl_call v = *c; /* a call on the two values alone */
    v.in = c->in + 1;
    v.n_in = 2;
    TL_TRY(tl_pointwise_shape(&v));
    tl_shape s;
    tl_err e = {.status = TL_OK};
    if (tl_shape_broadcast(&s, c->in[0], &c->out[0], &e) != TL_OK)
        return tl_call_fail(c, e.status, "%s", e.message);
    c->out[0] = tl_array_make(c->out[0].dtype, &s, NULL);
    return TL_OK;
}

static void where_vjp(tl_vjp *g)
{
    tl_tensor zero = tl_scalar(g->t, tl_dtype_of(g->t, g->dy[0]), 0);
    if (g->wants[1])
        g->dx[1] = tl_where(g->t, g->in[0], g->dy[0], zero);
    if (g->wants[2])
        g->dx[2] = tl_where(g->t, g->in[0], zero, g->dy[0]);
}

/* The larger (or smaller) operand takes dy; equal ones take half each. */
static void choose_vjp(tl_vjp *g, tl_tensor first, tl_tensor second)
{
    tl_tape *t = g->t;
    tl_tensor zero = tl_scalar(t, tl_dtype_of(t, g->dy[0]), 0), half = tl_scale(t, g->dy[0], 0.5);
    tl_tensor tie = tl_where(t, tl_eq(t, g->in[0], g->in[1]), half, zero);
    if (g->wants[0])
        g->dx[0] = tl_where(t, first, g->dy[0], tie);
    if (g->wants[1])
        g->dx[1] = tl_where(t, second, g->dy[0], tie);
}

static void maximum_vjp(tl_vjp *g)
{
    choose_vjp(g, tl_gt(g->t, g->in[0], g->in[1]), tl_lt(g->t, g->in[0], g->in[1]));
}
static void minimum_vjp(tl_vjp *g)
{
    choose_vjp(g, tl_lt(g->t, g->in[0], g->in[1]), tl_gt(g->t, g->in[0], g->in[1]));
}

/* Where the condition is one number, the result is one of the sides. */
static int where_same(const void *attrs, const double *const *constant)
{
    return (void)attrs, constant[0] == NULL ? -1 : *constant[0] != 0 ? 1 : 2;
}

static void where_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    (in[0] == TL_FREE ? tl_batch_linear : tl_batch_aligned)(c, in, out);
}

#define COMPARE(id, more)                                                                       \
    const tl_op tl_op_##id = {TL_NAMED(id, 2, 1), .slot = TL_TILE_##id, .shape = compare_shape, \
                              .traits = TL_POINTWISE | TL_NONDIFF | (more)};

COMPARE(eq, TL_COMMUTATIVE)
COMPARE(ne, TL_COMMUTATIVE)
COMPARE(lt, 0)
COMPARE(le, 0)
COMPARE(gt, 0)
COMPARE(ge, 0)
const tl_op tl_op_where = {TL_NAMED(where, 3, 1),  .shape = where_shape, .slot = TL_TILE_where,
                           .traits = TL_POINTWISE, .vjp = where_vjp,     .saves_in = 1,
                           .same_as = where_same,  .batch = where_batch};
const tl_op tl_op_maximum = {TL_BINARY(maximum, TL_COMMUTATIVE), .saves_in = 3};
const tl_op tl_op_minimum = {TL_BINARY(minimum, TL_COMMUTATIVE), .saves_in = 3};

tl_tensor tl_where_at(tl_at at, tl_tensor cond, tl_tensor a, tl_tensor b)
{
    return tl_apply1(at, &tl_op_where, NULL, (tl_tensor[]){cond, a, b}, 3);
}

static tl_tensor truth(tl_at at, tl_tensor x) { return tl_in_dtype(at, x, TL_BOOL); }

tl_tensor tl_logical_and_at(tl_at at, tl_tensor a, tl_tensor b)
{
    return tl_where_at(at, truth(at, a), truth(at, b), tl_scalar_at(at, TL_BOOL, 0));
}

tl_tensor tl_logical_or_at(tl_at at, tl_tensor a, tl_tensor b)
{
    return tl_where_at(at, truth(at, a), tl_scalar_at(at, TL_BOOL, 1), truth(at, b));
}

tl_tensor tl_logical_not_at(tl_at at, tl_tensor x)
{
    return tl_where_at(at, truth(at, x), tl_scalar_at(at, TL_BOOL, 0),
                       tl_scalar_at(at, TL_BOOL, 1));
}

/* ---- clamp(x, lo, hi): lo below lo, hi above hi; masked_fill(x, mask, value) = where(mask, value,
 * x)
 * Shape:  clamp: as x; masked_fill: what x and the mask broadcast to
 * Dtype:  f16 bf16 f32 f64; the bounds are rounded to the compute type, the result to x's dtype
 * Bits:   v = lo if x < lo, else x; y = hi if v > hi, else v: NaN stays (NUMERICS 2.11)
 * VJP:    dy where lo <= x <= hi, else 0
 * Errors: TL_EDTYPE TL_EDOMAIN (lo > hi, or a NaN)
 */

static const tl_attr tl_clamp_schema[] = {TL_FIELD(tl_clamp, lo, F64),
                                          TL_FIELD(tl_clamp, hi, F64),
                                          {0}};

static tl_status clamp_shape(tl_call *c)
{
    const tl_clamp_attrs *a = c->attrs;
    if (!(a->lo <= a->hi))
        return tl_call_fail(c, TL_EDOMAIN, "from %g to %g%s", a->lo, a->hi,
                            a->lo > a->hi ? "; the lower bound comes first"
                                          : "; bounds are numbers");
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

const tl_op tl_op_clamp = {TL_NAMED(clamp, 1, 1), .traits = TL_POINTWISE, .shape = clamp_shape,
                           .slot = TL_TILE_clamp, TL_ATTRS(tl_clamp),     .vjp = clamp_vjp,
                           .saves_in = 1};

tl_tensor tl_clamp_at(tl_at at, tl_tensor x, double lo, double hi)
{
    return tl_apply1(at, &tl_op_clamp, &(tl_clamp_attrs){lo, hi}, &x, 1);
}

tl_tensor tl_masked_fill_at(tl_at at, tl_tensor x, tl_tensor mask, double value)
{
    return tl_where_at(at, mask, tl_scalar_at(at, tl_dtype_of(at.tape, x), value), x);
}
