/* matmul: C[..., i, j] = chain over k of A[..., i, k] * B[..., k, j]
 * Shape:  (..., m, k) @ (..., k, n) -> (..., m, n); batch dims broadcast. 1-d operands as in numpy.
 *         Batch dims that the output has as 1, or lacks, are the outer part of the chain.
 * Dtype:  f16 bf16 f32 f64; f16, bf16 and f32 meet in f32; if wide, the result is in the compute
 *         type. Accumulator: the compute type, or f64.
 * Bits:   acc = fma(a, b, acc), k ascending, from +0 or the accumulator (NUMERICS 5). TL_FAST:
 *         BLIS's. Other kernels: matmul_kernel.h
 * VJP:    dA = dC @ B^T, dB = A^T @ dC, each folded to its operand's batch and continuing
 *         its accumulator. Saves A, B.
 * Errors: TL_ESHAPE TL_EDTYPE
 */
#include "ops/build.h"

static const tl_attr tl_matmul_schema[] = {TL_FIELD(tl_matmul, batch, SHAPE),
                                           TL_FIELD(tl_matmul, acc_f64, BOOL),
                                           TL_FIELD(tl_matmul, wide, BOOL),
                                           {0}};

/* Broadcasts the batch dims of a (all but the last two) and s into s; false if they do not fit. */
static bool widen_batch(tl_shape *s, const tl_array *a)
{
    if (a->ndim <= 2)
        return true;
    const tl_array was = tl_array_make(a->dtype, s, NULL);
    tl_array lead = *a;
    tl_shape out;
    lead.ndim -= 2;
    if (tl_shape_broadcast(&out, &was, &lead, NULL) != TL_OK)
        return false;
    *s = out;
    return true;
}

static tl_status matmul_shape(tl_call *c)
{
    const tl_matmul_attrs *at = c->attrs;
    const tl_array *a = c->in[0], *b = c->in[1];
    tl_shape full = at->batch;
    if (!tl_dtype_is_float(a->dtype) || !tl_dtype_is_float(b->dtype) ||
        (a->dtype == TL_F64) != (b->dtype == TL_F64))
        return tl_call_fail(c, TL_EDTYPE, "%s @ %s; two floats are needed, f64 only with f64",
                            tl_dtype_name(a->dtype), tl_dtype_name(b->dtype));
    if (a->ndim < 2 || b->ndim < 2 || a->dim[a->ndim - 1] != b->dim[b->ndim - 2])
        return tl_call_fail(c, TL_ESHAPE, "%s @ %s: the inner sizes must agree", TL_TEXT(a),
                            TL_TEXT(b));
    if (!widen_batch(&full, a) || !widen_batch(&full, b) || at->batch.ndim + 2 > TL_MAX_DIMS)
        return tl_call_fail(c, TL_ESHAPE, "%s @ %s: the batch dims do not broadcast", TL_TEXT(a),
                            TL_TEXT(b));
    tl_array out = {.dtype = a->dtype == b->dtype ? a->dtype : TL_F32, .ndim = at->batch.ndim + 2};
    if (at->wide)
        out.dtype = tl_dtype_compute(out.dtype);
    memcpy(out.dim, at->batch.dim, sizeof out.dim);
    out.dim[out.ndim - 2] = a->dim[a->ndim - 2];
    out.dim[out.ndim - 1] = b->dim[b->ndim - 1];
    return tl_continue(c, &out, at->acc_f64 ? TL_F64 : tl_dtype_compute(out.dtype));
}

static tl_status matmul_forward(tl_call *c) { return tl_matmul_with(c, NULL); }

static bool chain_in_f64(const void *attrs) { return ((const tl_matmul_attrs *)attrs)->acc_f64; }

/* a @ b as the gradient of input i: folded to its batch dims, continuing its accumulator. */
static tl_tensor gradient(tl_vjp *g, int i, tl_tensor a, tl_tensor b)
{
    tl_matmul_attrs at = {.batch = tl_shape_of(g->t, g->in[i]), .acc_f64 = chain_in_f64(g->attrs)};
    at.batch.ndim -= 2;
    return tl_matmul_into_at(TL_AT(g->t), a, b, g->acc[i], at);
}

/* The transpose of input i, to be multiplied with dy, which is f64 where an f64 accumulator was
 * continued. */
static tl_tensor turned(tl_vjp *g, int i)
{
    const bool widen = tl_dtype_of(g->t, g->dy[0]) == TL_F64;
    tl_tensor x = widen ? tl_in_dtype(TL_AT(g->t), g->in[i], TL_F64) : g->in[i];
    return tl_transpose(g->t, x, -1, -2);
}

static void matmul_vjp(tl_vjp *g)
{
    if (g->wants[0])
        g->dx[0] = gradient(g, 0, g->dy[0], turned(g, 1));
    if (g->wants[1])
        g->dx[1] = gradient(g, 1, turned(g, 0), g->dy[0]);
}

/* ---- the probe: calls that expose a kernel which adds in another order, rounds otherwise or
 * forgets an edge. They have sizes around vectors, tiles and cache blocks, operands of every
 * orientation, sums that end in -0, an accumulator, batches ---- */

typedef struct {
    int m, k, n;
    bool at, bt, acc; /* A or B transposed in memory; an accumulator continued */
} probe_size;

static const probe_size shapes[] = {
    {1, 1, 1, 0, 0, 0},     {33, 1, 17, 0, 0, 0},     {5, 2, 40, 0, 1, 0},
    {1, 64, 65, 0, 1, 0},   {64, 65, 1, 0, 0, 0},     {4, 31, 33, 0, 0, 0},
    {12, 32, 32, 1, 0, 0},  {13, 33, 31, 0, 1, 0},    {7, 255, 48, 0, 0, 0},
    {47, 256, 16, 0, 1, 0}, {64, 256, 96, 0, 0, 0},   {15, 257, 65, 1, 0, 0},
    {25, 384, 33, 0, 1, 0}, {3, 1000, 257, 0, 0, 0},  {97, 256, 129, 1, 1, 0},
    {9, 0, 5, 0, 0, 0},     {0, 7, 5, 0, 0, 0},       {11, 40, 19, 0, 0, 1},
    {30, 300, 70, 1, 0, 1}, {300, 200, 130, 0, 1, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, BATCHES = 3 };

static tl_tensor operand(tl_tape *t, tl_dtype dtype, int rows, int cols, bool turned, int k)
{
    tl_tensor x = tl_probe_numbers(t, dtype, turned ? TL_DIMS(cols, rows) : TL_DIMS(rows, cols), k,
                                   false);
    return turned ? tl_transpose(t, x, 0, 1) : x;
}

/* Case i of the batch dims: they stay, they broadcast, or they fold into the chain. */
static tl_tensor batched(tl_tape *t, tl_dtype dtype, int i)
{
    tl_tensor a = tl_probe_numbers(t, dtype, TL_DIMS(3, 14, 20), 0, false);
    tl_tensor b = tl_probe_numbers(t, dtype, i == 1 ? TL_DIMS(20, 33) : TL_DIMS(3, 20, 33), 1,
                                   false);
    return tl_matmul_into_at(TL_AT(t), a, b, TL_NONE,
                             (tl_matmul_attrs){.batch = i == 2 ? TL_SCALAR : TL_DIMS(3)});
}

tl_tensor tl_matmul_probe(tl_tape *t, tl_dtype dtype, int i)
{
    if (i >= SHAPES)
        return i < SHAPES + BATCHES ? batched(t, dtype, i - SHAPES) : TL_NONE;
    const probe_size *s = &shapes[i];
    tl_tensor a = operand(t, dtype, s->m, s->k, s->at, 0),
              b = operand(t, dtype, s->k, s->n, s->bt, 1);
    tl_tensor acc = s->acc ? tl_probe_numbers(t, tl_dtype_compute(dtype), TL_DIMS(s->m, s->n), 2,
                                              false)
                           : TL_NONE;
    return tl_matmul_into_at(TL_AT(t), a, b, acc, (tl_matmul_attrs){.batch = TL_SCALAR});
}

/* Samples along rows of a, columns of b or a batch dim stay samples. Along the chain, or along a
 * batch dim that becomes part of it, they add up. */
static void matmul_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_array *a = c->in[0], *b = c->in[1], *y = &c->out[0];
    const bool row = in[0] == a->ndim - 2, column = in[1] == b->ndim - 1;
    const bool inner[] = {in[0] == a->ndim - 1, in[1] == b->ndim - 2};
    if (row || column)
        out[0] = in[row] != TL_FREE ? TL_MIXED : (tl_batch)(y->ndim - (row ? 2 : 1));
    else if (inner[0] || inner[1])
        out[0] = inner[0] && inner[1] ? TL_TOTAL : TL_MIXED;
    else {
        const int full = a->ndim > b->ndim ? a->ndim : b->ndim;
        out[0] = tl_batch_meet(c, (tl_batch[]){in[0], in[1], TL_FREE}, 3, full);
        if (out[0] >= 0) {
            const int i = in[0] == TL_FREE, at = out[0] - (full - y->ndim);
            out[0] = at >= 0 && y->dim[at] == c->in[i]->dim[in[i]] ? (tl_batch)at : TL_TOTAL;
        } else if (in[0] == TL_TOTAL && in[1] == TL_TOTAL)
            out[0] = TL_MIXED;
    }
    out[0] = tl_batch_continuing(out[0], c, in, 2);
}

const tl_op tl_op_matmul = {TL_NAMED(matmul, 3, 1),
                            .optional = TL_BIT(2),
                            .traits = TL_MUTATES | TL_BEGINS,
                            .mutates = 2,
                            .shape = matmul_shape,
                            .forward = matmul_forward,
                            TL_ATTRS(tl_matmul),
                            .vjp = matmul_vjp,
                            .saves_in = 3,
                            .saves_for = tl_saves_other,
                            .folds = 3,
                            .folds_wide = chain_in_f64,
                            .batch = matmul_batch};

tl_tensor tl_matmul_into_at(tl_at at, tl_tensor a, tl_tensor b, tl_tensor acc,
                            tl_matmul_attrs attrs)
{
    return tl_apply1(at, &tl_op_matmul, &attrs, (tl_tensor[]){a, b, acc}, 3);
}

/* a @ b as in numpy: a 1-d a is a row, a 1-d b a column, and the result lacks that dim. */
static tl_tensor multiply(tl_at at, tl_tensor a, tl_tensor b, tl_matmul_attrs attrs)
{
    tl_array x, y;
    if (!tl_array_of(at.tape, a, &x) || !tl_array_of(at.tape, b, &y) || x.ndim == 0 || y.ndim == 0)
        return tl_matmul_into_at(at, a, b, TL_NONE, attrs); /* it says what is wrong */
    const bool row = x.ndim == 1, col = y.ndim == 1;
    if (row)
        a = tl_reshape_at(at, a, TL_DIMS(1, x.dim[0]));
    if (col)
        b = tl_reshape_at(at, b, TL_DIMS(y.dim[0], 1));
    if (tl_array_of(at.tape, a, &x) && tl_array_of(at.tape, b, &y))
        (void)(widen_batch(&attrs.batch, &x) && widen_batch(&attrs.batch, &y));
    tl_tensor c = tl_matmul_into_at(at, a, b, TL_NONE, attrs);
    if ((!row && !col) || tl_failed(at.tape))
        return c;
    tl_shape s = tl_shape_of(at.tape, c);
    if (row) { /* dim -2 goes */
        s.dim[s.ndim - 2] = s.dim[s.ndim - 1];
        s.ndim--;
    }
    if (col)
        s.ndim--;
    const tl_batch axis = tl_batch_of(at.tape, c); /* the last dim moves left when -2 goes */
    return tl_reshape_told(at, c, s, axis - (row && !col && axis == s.ndim));
}

tl_tensor tl_matmul_at(tl_at at, tl_tensor a, tl_tensor b)
{
    return multiply(at, a, b, (tl_matmul_attrs){.batch = TL_SCALAR});
}
tl_tensor tl_matmul_acc64_at(tl_at at, tl_tensor a, tl_tensor b)
{
    return multiply(at, a, b, (tl_matmul_attrs){.batch = TL_SCALAR, .acc_f64 = true});
}
/* a @ b, with the result in the compute type of both. */
static tl_tensor matmul_wide(tl_at at, tl_tensor a, tl_tensor b)
{
    return multiply(at, a, b, (tl_matmul_attrs){.batch = TL_SCALAR, .wide = true});
}

/* ---- mm, bmm, addmm, matmul_to: matmul under the names and with the rounding that users of
 * batch-invariant sets ask for
 * Shape:  mm (m, k) @ (k, n); bmm (b, m, k) @ (b, k, n); addmm (m, n) with c broadcasting to it;
 *         matmul_to as matmul
 * Dtype:  as matmul; matmul_to any float; addmm computes in the compute type and rounds once to
 *         matmul's dtype
 * Bits:   compositions of listed ops (NUMERICS 5.4 to 5.6)
 * VJP:    those of the ops they are made of
 * Errors: TL_ESHAPE TL_EDTYPE
 */

tl_tensor tl_matmul_to_at(tl_at at, tl_tensor a, tl_tensor b, tl_dtype dtype)
{
    if (!tl_dtype_is_float(dtype))
        return tl_reject(at, TL_EDTYPE, "matmul_to: dtype %d, %s; a float is needed", (int)dtype,
                         tl_dtype_name(dtype));
    return tl_in_dtype(at, matmul_wide(at, a, b), dtype);
}

/* Checks that a and b have ndim dims and, if these are 3, the same first one. */
static tl_status check_dims(tl_at at, const char *name, tl_tensor a, tl_tensor b, int ndim)
{
    tl_shape sa = tl_shape_of(at.tape, a), sb = tl_shape_of(at.tape, b);
    if (sa.ndim == ndim && sb.ndim == ndim && (ndim == 2 || sa.dim[0] == sb.dim[0]))
        return TL_OK;
    return tl_tape_fail(at, TL_ESHAPE, "%s: %s @ %s; two tensors of %d dims%s are needed", name,
                        TL_TEXT_OF(&sa), TL_TEXT_OF(&sb), ndim,
                        ndim == 3 ? " and one batch size" : "");
}

tl_tensor tl_mm_at(tl_at at, tl_tensor a, tl_tensor b)
{
    return check_dims(at, "mm", a, b, 2) == TL_OK ? tl_matmul_at(at, a, b) : TL_NONE;
}
tl_tensor tl_bmm_at(tl_at at, tl_tensor a, tl_tensor b)
{
    return check_dims(at, "bmm", a, b, 3) == TL_OK ? tl_matmul_at(at, a, b) : TL_NONE;
}

/* c * beta in the compute type, in y's shape. The multiplication broadcasts c, so that c's gradient
 * is a fold. */
static tl_tensor times(tl_at at, tl_tensor c, double beta, tl_tensor y)
{
    tl_tensor one = tl_scalar_at(at, tl_dtype_compute(tl_dtype_of(at.tape, c)), beta);
    one = tl_expand_at(at, one, tl_shape_of(at.tape, y));
    tl_batch_samples_of(at.tape, one, y, tl_batch_of(at.tape, y)); /* as long as the batch */
    return tl_mul_at(at, c, one);
}

tl_tensor tl_addmm_at(tl_at at, tl_tensor c, tl_tensor a, tl_tensor b, double beta, double alpha)
{
    if (check_dims(at, "addmm", a, b, 2) != TL_OK)
        return TL_NONE;
    tl_dtype da = tl_dtype_of(at.tape, a), db = tl_dtype_of(at.tape, b),
             dtype = da == db ? da : TL_F32;
    tl_tensor y = matmul_wide(at, a, b);
    const tl_shape s = tl_shape_of(at.tape, c), p = tl_shape_of(at.tape, y);
    if (!tl_dims_expand(s.ndim, s.dim, p.ndim, p.dim)) /* c would make the product larger */
        return tl_reject(at, TL_ESHAPE, "addmm: c has shape %s, the product %s", TL_TEXT_OF(&s),
                         TL_TEXT_OF(&p));
    if (alpha != 1)
        y = tl_scale_at(at, y, alpha);
    if (beta != 0)
        y = tl_add_at(at, beta == 1 ? c : times(at, c, beta, y), y);
    return tl_in_dtype(at, y, dtype);
}
