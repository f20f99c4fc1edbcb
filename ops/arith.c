/* arith: add, sub, mul, div, neg, abs, square, reciprocal, scale by and shift by a constant;
 * floor_divide, remainder
 * Shape:  operands broadcast
 * Dtype:  f16 bf16 f32 f64; f32, f16 and bf16 meet in f32; add, sub and mul i64 too; the last two
 *         only i64
 * Bits:   one IEEE operation each (NUMERICS 1); i64 modulo 2^64 (2.13)
 * VJP:    the formulas at each op; the engine un-broadcasts
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (i64 divided by 0)
 */
#include "ops/build.h"

static tl_status number_shape(tl_call *c)
{
    if (c->in[0]->dtype == TL_BOOL)
        return tl_call_fail(c, TL_EDTYPE, "bool operands; floats or i64 are needed (cast them)");
    return tl_pointwise_shape(c);
}

static tl_status integer_shape(tl_call *c)
{
    if (c->in[0]->dtype != TL_I64)
        return tl_call_fail(c, TL_EDTYPE, "input 0 is %s; i64 is needed",
                            tl_dtype_name(c->in[0]->dtype));
    return tl_pointwise_shape(c);
}

static tl_status divide_forward(tl_call *c)
{
    const tl_array *b = c->in[1];
    int64_t n = tl_array_count(b);
    for (int64_t i = 0; i < n; i++)
        if (tl_i64_at(b, i) == 0)
            return tl_call_fail(c, TL_EDOMAIN, "element %lld of the divisor is 0", (long long)i);
    return tl_pointwise_run(c);
}

static void add_vjp(tl_vjp *g)
{
    g->dx[0] = g->dy[0];
    g->dx[1] = g->dy[0];
}

static void sub_vjp(tl_vjp *g)
{
    g->dx[0] = g->dy[0];
    if (g->wants[1])
        g->dx[1] = tl_neg(g->t, g->dy[0]);
}

static void mul_vjp(tl_vjp *g)
{
    if (g->wants[0])
        g->dx[0] = tl_mul(g->t, g->dy[0], g->in[1]);
    if (g->wants[1])
        g->dx[1] = tl_mul(g->t, g->dy[0], g->in[0]);
}

/* y = a/b: da = dy/b, db = -(dy*y)/b */
static void div_vjp(tl_vjp *g)
{
    if (g->wants[0])
        g->dx[0] = tl_div(g->t, g->dy[0], g->in[1]);
    if (g->wants[1])
        g->dx[1] = tl_neg(g->t, tl_div(g->t, tl_mul(g->t, g->dy[0], g->out[0]), g->in[1]));
}

static void neg_vjp(tl_vjp *g) { g->dx[0] = tl_neg(g->t, g->dy[0]); }

/* d|x| = dy where x > 0, -dy where x < 0, 0 at 0 */
static void abs_vjp(tl_vjp *g)
{
    tl_tensor zero = tl_scalar(g->t, tl_dtype_of(g->t, g->in[0]), 0);
    tl_tensor left = tl_where(g->t, tl_lt(g->t, g->in[0], zero), tl_neg(g->t, g->dy[0]), zero);
    g->dx[0] = tl_where(g->t, tl_gt(g->t, g->in[0], zero), g->dy[0], left);
}

static void square_vjp(tl_vjp *g)
{
    g->dx[0] = tl_mul(g->t, tl_scale(g->t, g->in[0], 2), g->dy[0]);
}

/* y = 1/x: dx = -dy * y^2 */
static void reciprocal_vjp(tl_vjp *g)
{
    g->dx[0] = tl_neg(g->t, tl_mul(g->t, g->dy[0], tl_square(g->t, g->out[0])));
}

static void scale_vjp(tl_vjp *g)
{
    g->dx[0] = tl_scale(g->t, g->dy[0], ((const tl_const_attrs *)g->attrs)->c);
}

static void shift_vjp(tl_vjp *g) { g->dx[0] = g->dy[0]; }

/* The rules for same_as. x + -0, x - +0, x*1 and x/1 are x; x + +0 and x - -0 are not, since they
 * turn -0 into +0. */
static bool is(const double *c, double want)
{
    return c != NULL && *c == want && !signbit(*c) == !signbit(want);
}
static int add_same(const void *a, const double *const *c)
{
    return (void)a, is(c[1], -0.0) ? 0 : is(c[0], -0.0) ? 1 : -1;
}
static int sub_same(const void *a, const double *const *c)
{
    return (void)a, is(c[1], 0.0) ? 0 : -1;
}
static int mul_same(const void *a, const double *const *c)
{
    return (void)a, is(c[1], 1) ? 0 : is(c[0], 1) ? 1 : -1;
}
static int div_same(const void *a, const double *const *c) { return (void)a, is(c[1], 1) ? 0 : -1; }
static int scale_same(const void *a, const double *const *c)
{
    return (void)c, is(&((const tl_const_attrs *)a)->c, 1) ? 0 : -1;
}
static int shift_same(const void *a, const double *const *c)
{
    return (void)c, is(&((const tl_const_attrs *)a)->c, -0.0) ? 0 : -1;
}

/* a/b is linear in a alone. */
static void div_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    (in[1] == TL_FREE ? tl_batch_linear : tl_batch_aligned)(c, in, out);
}

#define BINARY_OF(id, rule) TL_NAMED(id, 2, 1), .shape = rule, .slot = TL_TILE_##id
#define INTEGER(id)                                                               \
    const tl_op tl_op_##id = {BINARY_OF(id, integer_shape), .traits = TL_NONDIFF, \
                              .forward = divide_forward, .batch = tl_batch_aligned};

const tl_op tl_op_add = {BINARY_OF(add, number_shape), .traits = TL_POINTWISE | TL_COMMUTATIVE,
                         .vjp = add_vjp, .batch = tl_batch_linear, .same_as = add_same};
const tl_op tl_op_sub = {BINARY_OF(sub, number_shape), .traits = TL_POINTWISE, .vjp = sub_vjp,
                         .batch = tl_batch_linear, .same_as = sub_same};
const tl_op tl_op_mul = {BINARY_OF(mul, number_shape),
                         .traits = TL_POINTWISE | TL_COMMUTATIVE,
                         .vjp = mul_vjp,
                         .saves_in = 3,
                         .saves_for = tl_saves_other,
                         .same_as = mul_same,
                         .batch = tl_batch_bilinear};
INTEGER(floor_divide)
INTEGER(remainder)
const tl_op tl_op_div = {TL_BINARY(div, 0), .saves_in = 2, .saves_out = 1, .same_as = div_same,
                         .batch = div_batch};
const tl_op tl_op_neg = {TL_UNARY(neg, 0), .batch = tl_batch_linear, .undoes = &tl_op_neg};
const tl_op tl_op_abs = {TL_UNARY(abs, 0), .saves_in = 1};
const tl_op tl_op_square = {TL_UNARY(square, 0), .saves_in = 1};
const tl_op tl_op_reciprocal = {TL_UNARY(reciprocal, 0), .saves_out = 1};
const tl_op tl_op_scale = {TL_UNARY(scale, 0), TL_ATTRS(tl_const), .same_as = scale_same,
                           .batch = tl_batch_linear};
const tl_op tl_op_shift = {TL_UNARY(shift, 0), TL_ATTRS(tl_const), .same_as = shift_same,
                           .batch = tl_batch_linear};

TL_BINARY_CALL(floor_divide)
TL_BINARY_CALL(remainder)
