/* mm, bmm, addmm, matmul_to: matmul under the names and with the rounding that users of
 * batch-invariant sets ask for
 * Shape:  mm (m, k) @ (k, n); bmm (b, m, k) @ (b, k, n); addmm (m, n) with c broadcasting to it;
 *         matmul_to as matmul
 * Dtype:  as matmul; matmul_to any float; addmm computes in the compute type and rounds once to
 *         matmul's dtype
 * Bits:   compositions of listed ops (NUMERICS 5.4 to 5.6)
 * VJP:    those of the ops they are made of
 * Errors: TL_ESHAPE TL_EDTYPE
 */
#include "ops/matmul.h"

static tl_tensor rounded(tl_at at, tl_tensor x, tl_dtype dtype)
{
    return tl_is_none(x) || tl_dtype_of(at.tape, x) == dtype ? x : tl_cast_at(at, x, dtype);
}

tl_tensor tl_matmul_to_at(tl_at at, tl_tensor a, tl_tensor b, tl_dtype dtype)
{
    if (!tl_dtype_is_float(dtype)) {
        tl_tape_fail(at, TL_EDTYPE, "matmul_to: dtype %d; a float is needed", (int)dtype);
        return TL_NONE;
    }
    return rounded(at, tl_matmul_wide_at(at, a, b), dtype);
}

static bool have_dims(tl_at at, const char *name, tl_tensor a, tl_tensor b, int ndim)
{
    tl_shape sa = tl_shape_of(at.tape, a), sb = tl_shape_of(at.tape, b);
    char ta[TL_SHAPE_TEXT], tb[TL_SHAPE_TEXT];
    if (tl_failed(at.tape))
        return false;
    if (sa.ndim == ndim && sb.ndim == ndim && (ndim == 2 || sa.dim[0] == sb.dim[0]))
        return true;
    tl_tape_fail(at, TL_ESHAPE, "%s: %s @ %s; two tensors of %d dims%s are needed", name,
                 tl_shape_text(ta, &sa), tl_shape_text(tb, &sb), ndim,
                 ndim == 3 ? " and one batch size" : "");
    return false;
}

tl_tensor tl_mm_at(tl_at at, tl_tensor a, tl_tensor b)
{
    return have_dims(at, "mm", a, b, 2) ? tl_matmul_at(at, a, b) : TL_NONE;
}
tl_tensor tl_bmm_at(tl_at at, tl_tensor a, tl_tensor b)
{
    return have_dims(at, "bmm", a, b, 3) ? tl_matmul_at(at, a, b) : TL_NONE;
}

/* c broadcasts to (m, n) without making it larger. */
static bool fits(tl_at at, tl_tensor c, tl_tensor product)
{
    tl_shape s = tl_shape_of(at.tape, c), p = tl_shape_of(at.tape, product);
    char ts[TL_SHAPE_TEXT], tp[TL_SHAPE_TEXT];
    bool ok = s.ndim <= 2;
    for (int i = 0; ok && i < s.ndim; i++)
        ok = s.dim[i] == 1 || s.dim[i] == p.dim[i + 2 - s.ndim];
    if (!ok && !tl_failed(at.tape))
        tl_tape_fail(at, TL_ESHAPE, "addmm: c has shape %s, the product %s", tl_shape_text(ts, &s),
                     tl_shape_text(tp, &p));
    return ok && !tl_failed(at.tape);
}

/* c * beta in the compute type, in y's shape: c is broadcast by the op that multiplies, so that its
 * gradient folds. */
static tl_tensor times(tl_at at, tl_tensor c, double beta, tl_tensor y)
{
    tl_fill_attrs one = {TL_SCALAR, tl_dtype_compute(tl_dtype_of(at.tape, c)), beta};
    return tl_mul_at(at, c,
                     tl_expand_at(at, tl_apply1(at, &tl_op_fill, &one, NULL, 0),
                                  tl_shape_of(at.tape, y)));
}

tl_tensor tl_addmm_at(tl_at at, tl_tensor c, tl_tensor a, tl_tensor b, double beta, double alpha)
{
    if (!have_dims(at, "addmm", a, b, 2))
        return TL_NONE;
    tl_dtype da = tl_dtype_of(at.tape, a), db = tl_dtype_of(at.tape, b),
             dtype = da == db ? da : TL_F32;
    tl_tensor y = tl_matmul_wide_at(at, a, b);
    if (tl_is_none(y) || !fits(at, c, y))
        return TL_NONE;
    if (alpha != 1)
        y = tl_scale_at(at, y, alpha);
    if (beta != 0)
        y = tl_add_at(at, beta == 1 ? c : times(at, c, beta, y), y);
    return rounded(at, y, dtype);
}
