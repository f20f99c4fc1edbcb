/* var: the variance over dims; mse: the mean of squared differences
 * Shape:  var: the reduced dims go, or stay as 1; mse: operands broadcast, 0-d result
 * Dtype:  f16 bf16 f32 f64; computed in the compute type, rounded once to x's (mse stays in the
 *         compute type)
 * Bits:   compositions of listed ops: m = mean(x), d = x - m, s = sum(d*d), y = s /
 *         max(n - correction, 0) (NUMERICS 4.5); d = a - b, y = mean(d*d) (6.11)
 * VJP:    those of the ops they are made of
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (correction other than 0 or 1)
 */
#include "ops/build.h"

static tl_tensor widened(tl_at at, tl_tensor x)
{
    return tl_in_dtype(at, x, tl_dtype_compute(tl_dtype_of(at.tape, x)));
}

static bool not_floats(tl_at at, const char *name, tl_tensor x)
{
    tl_dtype d = tl_dtype_of(at.tape, x);
    if (!tl_dtype_is_float(d))
        tl_tape_fail(at, TL_EDTYPE, "%s: x is %s; floats are needed (cast it)", name,
                     tl_dtype_name(d));
    return !tl_dtype_is_float(d);
}

tl_tensor tl_var_at(tl_at at, tl_tensor x, tl_shape dims, int correction, bool keepdims)
{
    tl_dtype dtype = tl_dtype_of(at.tape, x);
    tl_shape s = tl_shape_of(at.tape, x);
    int64_t mask = tl_dims_of(at, "var", x, dims);
    double n = 1;
    if (mask < 0 || not_floats(at, "var", x))
        return TL_NONE;
    if (correction != 0 && correction != 1)
        return tl_reject(at, TL_EDOMAIN, "var: correction is %d; 0 and 1 are possible", correction);
    for (int i = 0; i < s.ndim; i++)
        n *= mask >> i & 1 ? (double)s.dim[i] : 1;
    tl_tensor wide = widened(at, x), mean = tl_mean_at(at, wide, dims, true);
    tl_tensor sum = tl_sum_at(at, tl_square_at(at, tl_sub_at(at, wide, mean)), dims, keepdims);
    const double of = n > correction ? n - correction : 0; /* too few terms: 0/0 */
    tl_tensor y = tl_div_at(at, sum, tl_scalar_at(at, tl_dtype_compute(dtype), of));
    return tl_in_dtype(at, y, dtype);
}

tl_tensor tl_mse_at(tl_at at, tl_tensor a, tl_tensor b)
{
    tl_array x, y;
    tl_shape both;
    tl_err e = {.status = TL_OK};
    if (not_floats(at, "mse", a) || not_floats(at, "mse", b))
        return TL_NONE;
    if (tl_array_of(at.tape, a, &x) && tl_array_of(at.tape, b, &y)) {
        /* One operand must have the shape of both: (n, 1) against (n) is hardly ever meant. */
        if (tl_shape_broadcast(&both, &x, &y, &e) == TL_OK &&
            tl_shape_count(&both) > tl_array_count(&x) &&
            tl_shape_count(&both) > tl_array_count(&y))
            tl_fail(&e, TL_ESHAPE, "neither %s nor %s has the shape of both, %s", TL_TEXT(&x),
                    TL_TEXT(&y), TL_TEXT_OF(&both));
        if (e.status != TL_OK)
            return tl_reject(at, e.status, "mse: %.300s", e.message);
    }
    return tl_mean_at(at, tl_square_at(at, tl_sub_at(at, widened(at, a), widened(at, b))), TL_ALL,
                      false);
}
