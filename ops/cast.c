/* cast(x, dtype): every element rounded once to nearest even; fill(dtype, shape, value): one value
 * Shape:  as x; fill: the shape given
 * Dtype:  any -> any
 * Bits:   one rounding; floats to i64 truncate toward zero (NaN gives 0); to bool: not equal to 0
 *         (NUMERICS 1.8)
 * VJP:    between floats dy is cast back; fill has no inputs
 * Errors: TL_EDTYPE TL_ESHAPE; fill: TL_EDOMAIN (an i64 of 0.5, NaN or 2^63)
 * In an f64 shadow run a cast to a float gives f64, so that the check tests the mathematics and not
 * the rounding.
 */
#include "ops/build.h"

static tl_status cast_shape(tl_call *c)
{
    const tl_cast_attrs *a = c->attrs;
    if (tl_dtype_size(a->dtype) == 0)
        return tl_call_fail(c, TL_EDTYPE, "%d is not a dtype", (int)a->dtype);
    c->out[0] = *c->in[0];
    c->out[0].dtype = a->dtype;
    bool of_number = c->in[0]->dtype == TL_F64 || !tl_dtype_is_float(c->in[0]->dtype);
    if (c->mode & TL_SHADOW && tl_dtype_is_float(a->dtype) && of_number)
        c->out[0].dtype = TL_F64;
    return TL_OK;
}

/* Widening x to its compute type needs no tile: the result is what would fill the tile. Otherwise
 * the tile's loop writes the storage dtype itself, so that even f64 to f16 rounds once. */
static tl_status cast_forward(tl_call *c)
{
    const tl_array *x = c->in[0], *y = &c->out[0];
    if (tl_dtype_is_float(x->dtype) && y->dtype == tl_dtype_compute(x->dtype)) {
        tl_operand_copy(x, y->dtype, y->data, false);
        return TL_OK;
    }
    tl_cast_attrs a = {y->dtype}; /* in a shadow run, not the dtype asked for */
    tl_call k = *c;
    k.attrs = &a;
    return tl_pointwise_run(&k);
}

typedef struct {
    const char *x;
    char *y;
    tl_dtype from, to;
} span;

static void cast_range(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const span *s = ctx;
    tl_isa_now()->convert->cast(end - begin, s->from,
                                s->x + begin * (int64_t)tl_dtype_size(s->from), s->to,
                                s->y + begin * (int64_t)tl_dtype_size(s->to));
}

void tl_cast_all(int64_t n, tl_dtype from, const void *x, tl_dtype to, void *y)
{
    tl_parallel_for(n, 16384, cast_range, &(span){x, y, from, to});
}

static void cast_vjp(tl_vjp *g) { g->dx[0] = tl_cast(g->t, g->dy[0], tl_dtype_of(g->t, g->in[0])); }

static void cast_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const bool floats = tl_dtype_is_float(c->out[0].dtype) && tl_dtype_is_float(c->in[0]->dtype);
    (floats ? tl_batch_linear : tl_batch_aligned)(c, in, out);
}

/* The engine asks only where the dtypes agree: then nothing is rounded. */
static int cast_same(const void *attrs, const double *const *constant)
{
    return (void)attrs, (void)constant, 0;
}

static const tl_attr tl_cast_schema[] = {TL_FIELD(tl_cast, dtype, DTYPE), {0}};

const tl_op tl_op_cast = {TL_NAMED(cast, 1, 1),    .traits = TL_STORES,  .shape = cast_shape,
                          .forward = cast_forward, .slot = TL_TILE_cast, TL_ATTRS(tl_cast),
                          .vjp = cast_vjp,         .same_as = cast_same, .batch = cast_batch};

tl_tensor tl_cast_at(tl_at at, tl_tensor x, tl_dtype dtype)
{
    return tl_apply1(at, &tl_op_cast, &(tl_cast_attrs){dtype}, &x, 1);
}

static tl_status fill_shape(tl_call *c)
{
    const tl_fill_attrs *a = c->attrs;
    tl_array *y = &c->out[0];
    if (a->dtype == TL_I64 &&
        !(a->value >= -0x1p63 && a->value < 0x1p63 && trunc(a->value) == a->value))
        return tl_call_fail(c, TL_EDOMAIN, "%.17g is not an i64", a->value);
    y->dtype = c->mode & TL_SHADOW && tl_dtype_is_float(a->dtype) ? TL_F64 : a->dtype;
    y->ndim = a->shape.ndim;
    memcpy(y->dim, a->shape.dim, sizeof y->dim);
    return TL_OK;
}

static tl_status fill_forward(tl_call *c)
{
    const tl_fill_attrs *a = c->attrs;
    char *y = c->out[0].data;
    const size_t size = tl_dtype_size(c->out[0].dtype),
                 all = (size_t)tl_array_count(&c->out[0]) * size;
    tl_isa_now()->convert->cast(1, TL_F64, &a->value, c->out[0].dtype, y);
    for (size_t have = size; have < all; have *= 2) /* doubles the filled part until y is full */
        memcpy(y + have, y, have < all - have ? have : all - have);
    return TL_OK;
}

static const tl_attr tl_fill_schema[] = {TL_FIELD(tl_fill, shape, SHAPE),
                                         TL_FIELD(tl_fill, dtype, DTYPE),
                                         TL_FIELD(tl_fill, value, F64),
                                         {0}};

const tl_op tl_op_fill = {TL_NAMED(fill, 0, 1), .traits = TL_NONDIFF, .shape = fill_shape,
                          .forward = fill_forward, TL_ATTRS(tl_fill)};

tl_tensor tl_fill_at(tl_at at, tl_dtype dtype, tl_shape shape, double value)
{
    return tl_apply1(at, &tl_op_fill, &(tl_fill_attrs){shape, dtype, value}, NULL, 0);
}

tl_tensor tl_integer(tl_at at, int64_t v)
{
    /* A double holds v up to 2^53; beyond, v is the sum of two numbers that doubles hold. */
    const int64_t low = v >= -(INT64_C(1) << 53) && v <= INT64_C(1) << 53 ? 0 : v & 0xffffffff;
    tl_tensor x = tl_scalar_at(at, TL_I64, (double)(v - low));
    return low == 0 ? x : tl_add_at(at, x, tl_scalar_at(at, TL_I64, (double)low));
}
