/* matmul: C[..., i, j] = chain over k of A[..., i, k] * B[..., k, j]
 * Shape:  (..., m, k) @ (..., k, n) -> (..., m, n); batch dims broadcast. 1-d operands as in numpy.
 *         Batch dims that the output has as 1, or lacks, are the outer part of the chain.
 * Dtype:  f16 bf16 f32 f64; f16, bf16 and f32 meet in f32, where they stay if wide. Accumulator:
 *         the compute type, or f64.
 * Bits:   acc = fma(a, b, acc), k ascending, from +0 or the accumulator (NUMERICS 5). TL_FAST:
 *         BLIS's. Other kernels: matmul_kernel.h
 * VJP:    dA = dC @ B^T, dB = A^T @ dC, each folded to its operand's batch and continuing
 *         its accumulator. Saves A, B.
 * Errors: TL_ESHAPE TL_EDTYPE
 */
#include "ops/matmul.h"

static const tl_attr matmul_schema[] = {{"batch", TL_ATTR_SHAPE, offsetof(tl_matmul_attrs, batch)},
                                        {"acc_f64", TL_ATTR_BOOL,
                                         offsetof(tl_matmul_attrs, acc_f64)},
                                        {"wide", TL_ATTR_BOOL, offsetof(tl_matmul_attrs, wide)},
                                        {0}};

/* Batch dims of a (all but the last two) broadcast into s. */
static bool widen_batch(tl_shape *s, const tl_array *a)
{
    int nd = a->ndim - 2 > s->ndim ? a->ndim - 2 : s->ndim;
    tl_shape out = {.ndim = nd};
    for (int i = 0; i < nd; i++) {
        int is = i - (nd - s->ndim), ia = i - (nd - (a->ndim - 2));
        int64_t ds = is < 0 ? 1 : s->dim[is], da = ia < 0 ? 1 : a->dim[ia];
        if (ds != da && ds != 1 && da != 1)
            return false;
        out.dim[i] = ds == 1 ? da : ds;
    }
    *s = out;
    return true;
}

static tl_status matmul_shape(tl_call *c)
{
    const tl_matmul_attrs *at = c->attrs;
    const tl_array *a = c->in[0], *b = c->in[1], *acc = c->in[2];
    char sa[TL_SHAPE_TEXT], sb[TL_SHAPE_TEXT];
    tl_shape full = at->batch;
    if (!tl_dtype_is_float(a->dtype) || !tl_dtype_is_float(b->dtype) ||
        (a->dtype == TL_F64) != (b->dtype == TL_F64))
        return tl_call_fail(c, TL_EDTYPE, "%s @ %s; two floats are needed, f64 only with f64",
                            tl_dtype_name(a->dtype), tl_dtype_name(b->dtype));
    if (a->ndim < 2 || b->ndim < 2 || a->dim[a->ndim - 1] != b->dim[b->ndim - 2])
        return tl_call_fail(c, TL_ESHAPE, "%s @ %s: the inner sizes must agree",
                            tl_array_shape_text(sa, a), tl_array_shape_text(sb, b));
    if (!widen_batch(&full, a) || !widen_batch(&full, b) || at->batch.ndim + 2 > TL_MAX_DIMS)
        return tl_call_fail(c, TL_ESHAPE, "%s @ %s: the batch dims do not broadcast",
                            tl_array_shape_text(sa, a), tl_array_shape_text(sb, b));
    tl_array *o = &c->out[0];
    tl_array out = {.dtype = a->dtype == b->dtype ? a->dtype : TL_F32, .ndim = at->batch.ndim + 2};
    if (at->wide)
        out.dtype = tl_dtype_compute(out.dtype);
    memcpy(out.dim, at->batch.dim, sizeof out.dim);
    out.dim[out.ndim - 2] = a->dim[a->ndim - 2];
    out.dim[out.ndim - 1] = b->dim[b->ndim - 1];
    if (acc != NULL) {
        tl_dtype want = at->acc_f64 ? TL_F64 : tl_dtype_compute(out.dtype);
        if (!tl_array_same_shape(acc, &out) || acc->dtype != want)
            return tl_call_fail(c, TL_ESHAPE, "accumulator %s %s for a result of %s",
                                tl_array_shape_text(sa, acc), tl_dtype_name(acc->dtype),
                                tl_array_shape_text(sb, &out));
        out = *acc;
    }
    *o = out;
    return TL_OK;
}

static tl_status matmul_forward(tl_call *c) { return tl_matmul_run(c); }

static tl_tensor turned(tl_tape *t, tl_tensor x) { return tl_transpose(t, x, -1, -2); }

static tl_matmul_attrs batch_like(tl_tape *t, tl_tensor x, const tl_matmul_attrs *a)
{
    tl_matmul_attrs out = {.batch = tl_shape_of(t, x), .acc_f64 = a->acc_f64};
    out.batch.ndim -= 2;
    return out;
}

static bool chain_in_f64(const void *attrs) { return ((const tl_matmul_attrs *)attrs)->acc_f64; }

/* An operand beside dy: a f64 result (an f64 accumulator was continued) has a f64 cotangent. */
static tl_tensor beside(tl_tape *t, tl_tensor x, tl_tensor dy)
{
    bool widen = tl_dtype_of(t, dy) == TL_F64 && tl_dtype_of(t, x) != TL_F64;
    return widen ? tl_cast(t, x, TL_F64) : x;
}

static void matmul_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    tl_tensor dy = g->dy[0];
    if (g->wants[0])
        g->dx[0] = tl_matmul_into_at(TL_AT(t), dy, turned(t, beside(t, g->in[1], dy)), g->acc[0],
                                     batch_like(t, g->in[0], g->attrs));
    if (g->wants[1])
        g->dx[1] = tl_matmul_into_at(TL_AT(t), turned(t, beside(t, g->in[0], dy)), dy, g->acc[1],
                                     batch_like(t, g->in[1], g->attrs));
}

const tl_op tl_op_matmul = {.name = "matmul",
                            .n_in = 3,
                            .n_out = 1,
                            .optional = TL_BIT(2),
                            .traits = TL_MUTATES,
                            .mutates = 2,
                            .shape = matmul_shape,
                            .forward = matmul_forward,
                            .attr = matmul_schema,
                            .attr_size = sizeof(tl_matmul_attrs),
                            .vjp = matmul_vjp,
                            .saves_in = 3,
                            .saves_for = tl_saves_other,
                            .folds = 3,
                            .folds_wide = chain_in_f64,
                            .probe = tl_matmul_probe};

tl_tensor tl_matmul_into_at(tl_at at, tl_tensor a, tl_tensor b, tl_tensor acc,
                            tl_matmul_attrs attrs)
{
    return tl_apply1(at, &tl_op_matmul, &attrs, (tl_tensor[]){a, b, acc}, 3);
}

/* x with a dim of size 1 put in at d. */
static tl_tensor lifted(tl_at at, tl_tensor x, int d)
{
    tl_shape s = tl_shape_of(at.tape, x);
    s.ndim = 2;
    s.dim[1 - d] = s.dim[0];
    s.dim[d] = 1;
    return tl_reshape_at(at, x, s);
}

static tl_tensor multiply(tl_at at, tl_tensor a, tl_tensor b, tl_matmul_attrs attrs)
{
    tl_array x, y;
    if (!tl_array_of(at.tape, a, &x) || !tl_array_of(at.tape, b, &y) || x.ndim == 0 || y.ndim == 0)
        return tl_matmul_into_at(at, a, b, TL_NONE, attrs);
    bool row = x.ndim == 1, col = y.ndim == 1;
    if (row)
        a = lifted(at, a, 0);
    if (col)
        b = lifted(at, b, 1);
    if (tl_array_of(at.tape, a, &x) && tl_array_of(at.tape, b, &y))
        (void)(widen_batch(&attrs.batch, &x) && widen_batch(&attrs.batch, &y));
    tl_tensor c = tl_matmul_into_at(at, a, b, TL_NONE, attrs);
    if ((!row && !col) || tl_is_none(c))
        return c;
    tl_shape s = tl_shape_of(at.tape, c);
    if (col)
        s.ndim--;
    if (row) {
        s.dim[s.ndim - (col ? 1 : 2)] = s.dim[s.ndim - 1];
        s.ndim--;
    }
    return tl_reshape_at(at, c, s);
}

tl_tensor tl_matmul_at(tl_at at, tl_tensor a, tl_tensor b)
{
    return multiply(at, a, b, (tl_matmul_attrs){.batch = TL_SCALAR});
}
tl_tensor tl_matmul_acc64_at(tl_at at, tl_tensor a, tl_tensor b)
{
    return multiply(at, a, b, (tl_matmul_attrs){.batch = TL_SCALAR, .acc_f64 = true});
}
tl_tensor tl_matmul_wide_at(tl_at at, tl_tensor a, tl_tensor b)
{
    return multiply(at, a, b, (tl_matmul_attrs){.batch = TL_SCALAR, .wide = true});
}
