/* build.c: what op files share: the constructors of pointwise ops, which are all alike, checks and
 * shape rules. */
#include "ops/build.h"

const tl_attr tl_const_schema[] = {TL_FIELD(tl_const, c, F64), {0}};

TL_UNARY_OPS(TL_UNARY_CALL)
TL_BINARY_OPS(TL_BINARY_CALL)
TL_CONST_CALL(scale)
TL_CONST_CALL(shift)

tl_status tl_need_float(tl_call *c, const tl_array *x, const char *name)
{
    if (tl_dtype_is_float(x->dtype))
        return TL_OK;
    return tl_call_fail(c, TL_EDTYPE, "%s is %s; floats are needed (cast it)", name,
                        tl_dtype_name(x->dtype));
}

tl_status tl_float_shape(tl_call *c)
{
    for (int i = 0; i < c->n_in; i++)
        if (!tl_dtype_is_float(c->in[i]->dtype))
            return tl_call_fail(c, TL_EDTYPE, "input %d is %s; floats are needed (cast it)", i,
                                tl_dtype_name(c->in[i]->dtype));
    return tl_pointwise_shape(c);
}

int tl_find_dim(tl_call *c, int ndim, int64_t dim)
{
    int64_t d = dim < 0 ? dim + ndim : dim;
    if (d >= 0 && d < ndim)
        return (int)d;
    tl_call_fail(c, TL_ESHAPE, "dim %lld does not exist in %d dims", (long long)dim, ndim);
    return -1;
}

int64_t tl_dims_of(tl_at at, const char *op, tl_tensor x, tl_shape dims)
{
    tl_array a;
    int64_t mask = 0;
    if (!tl_array_of(at.tape, x, &a))
        return 0;
    if (dims.ndim == TL_ALL.ndim)
        return ((int64_t)1 << a.ndim) - 1;
    if (dims.ndim < 0 || dims.ndim > TL_MAX_DIMS) {
        tl_tape_fail(at, TL_ESHAPE, "%s: %d dims are listed; 0 to %d are possible", op, dims.ndim,
                     TL_MAX_DIMS);
        return -1;
    }
    for (int i = 0; i < dims.ndim; i++) {
        int64_t d = dims.dim[i] < 0 ? dims.dim[i] + a.ndim : dims.dim[i];
        if (d < 0 || d >= a.ndim) {
            tl_tape_fail(at, TL_ESHAPE, "%s: dim %lld does not exist in %s, which has %d", op,
                         (long long)dims.dim[i], TL_TEXT(&a), a.ndim);
            return -1;
        }
        if (mask >> d & 1) {
            tl_tape_fail(at, TL_ESHAPE, "%s: dim %lld of %s is listed twice", op, (long long)d,
                         TL_TEXT(&a));
            return -1;
        }
        mask |= (int64_t)1 << d;
    }
    return mask;
}

int tl_dim_of(tl_at at, const char *op, tl_tensor x, int dim)
{
    const int64_t mask = tl_dims_of(at, op, x, TL_DIMS(dim));
    return mask > 0 ? __builtin_ctzll((unsigned long long)mask) : (int)mask;
}

void tl_first_axis(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_batch a = tl_batch_meet(c, in, TL_ALL_INPUTS, TL_FROM_FRONT);
    memset(out, a == 0 ? 0 : TL_MIXED, (size_t)c->n_out);
}

tl_status tl_need_indexed(tl_call *c, const char *x_name, const tl_array *x, const char *ids_name,
                          const tl_array *ids)
{
    if (tl_dtype_is_float(x->dtype) && ids->dtype == TL_I64)
        return TL_OK;
    return tl_call_fail(c, TL_EDTYPE, "%s %s, %s %s; a float and I64 are needed", x_name,
                        tl_dtype_name(x->dtype), ids_name, tl_dtype_name(ids->dtype));
}

tl_status tl_need_shape(tl_call *c, const tl_shape *s, tl_dtype dtype)
{
    tl_err e = {.status = TL_OK};
    return tl_shape_check(s, dtype, &e) == TL_OK ? TL_OK
                                                 : tl_call_fail(c, e.status, "%s", e.message);
}

tl_status tl_continue(tl_call *c, const tl_array *out, tl_dtype dtype)
{
    const tl_array *a = c->in[c->op->mutates];
    if (a != NULL && (a->dtype != dtype || !tl_array_same_shape(a, out)))
        return tl_call_fail(c, TL_ESHAPE, "accumulator %s %s for a result of %s", TL_TEXT(a),
                            tl_dtype_name(a->dtype), TL_TEXT(out));
    c->out[0] = a != NULL ? *a : *out;
    return TL_OK;
}
