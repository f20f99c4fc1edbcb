/* sum, mean over dims; sum_to: x folded down to a shape
 * Shape:  sum, mean: the reduced dims go, or stay as 1. sum_to: a shape that broadcasts to x's
 * Dtype:  f16 bf16 f32 f64; sum_to's accumulator f64 (any fold) or the compute type (same shape)
 * Bits:   rows by lanes, folds in f64, one rounding; mean divides once in f64 (NUMERICS 3, 4)
 * VJP:    dy expanded to x; mean: dy/n
 * Errors: TL_ESHAPE TL_EDTYPE
 */
#include "ops/build.h"

/* ---- the two ways a sum runs over an array (NUMERICS 3): lanes within rows, an f64 left fold
 * across them, in parallel over what is kept ---- */

typedef struct {
    const tl_array *x, *out;
    int64_t n; /* elements of a row */
    int n_row;
    char *buf; /* a row of compute type for each thread, where rows are not direct */
} row_job;

/* Row number `row` of x in its compute type: in place, or gathered into buf. */
static const void *row_of(const row_job *j, int64_t row, int thread)
{
    const tl_array *x = j->x;
    tl_dtype d = j->out->dtype;
    tl_array part = {.dtype = x->dtype, .ndim = j->n_row};
    int lead = x->ndim - j->n_row;
    memcpy(part.dim, x->dim + lead, (size_t)j->n_row * sizeof part.dim[0]);
    memcpy(part.stride, x->stride + lead, (size_t)j->n_row * sizeof part.stride[0]);
    part.data = tl_array_at(x, row * j->n);
    tl_array_collapse(&part, 1);
    if (x->dtype == d && tl_array_contiguous(&part))
        return part.data;
    char *to = j->buf + (size_t)thread * (size_t)j->n * tl_dtype_size(d);
    int64_t inner = part.ndim ? part.dim[part.ndim - 1] : 1,
            step = part.ndim ? part.stride[part.ndim - 1] : 1;
    for (int64_t at = 0; at < j->n; at += inner)
        tl_isa_now()->convert->widen(inner, x->dtype, tl_array_at(&part, at), step,
                                     to + at * (int64_t)tl_dtype_size(d));
    return to;
}

static void sum_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const row_job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    for (int64_t r = begin; r < end; r++) {
        const void *x = row_of(j, r, thread);
        if (j->out->dtype == TL_F64)
            ((double *)j->out->data)[r] = k->lanes64(j->n, x);
        else
            ((float *)j->out->data)[r] = k->lanes32(j->n, x);
    }
}

/* Sums the last n_row dims of x by lanes. out: contiguous, x's compute type, x's other dims. */
static tl_status sum_rows(tl_call *c, const tl_array *x, int n_row, const tl_array *out)
{
    row_job j = {.x = x, .out = out, .n = 1, .n_row = n_row};
    int64_t rows = tl_array_count(out);
    for (int i = x->ndim - n_row; i < x->ndim; i++)
        j.n *= x->dim[i];
    if (j.n == 0 || rows == 0) {
        if (rows > 0)
            memset(out->data, 0, (size_t)rows * tl_dtype_size(out->dtype));
        return TL_OK;
    }
    int64_t grain = 1 + 16384 / (j.n + 1);
    int width = tl_parallel_width(rows, grain);
    j.buf = tl_scratch(c, (size_t)width * (size_t)j.n * tl_dtype_size(out->dtype), false);
    if (j.buf == NULL)
        return TL_ENOMEM;
    tl_parallel_for(rows, grain, sum_range, &j);
    return TL_OK;
}

typedef struct {
    tl_array v[2]; /* x and acc, acc with zero strides where elements meet */
    int split;     /* a kept dim, cut between threads */
} fold_job;

enum { GATHER = 256, DEEP = 8 };

/* Rows of n elements of x, stride apart, into one row of acc. Narrower ones are widened piece by
 * piece first. */
static void fold_rows(const tl_array *x, const char *from, int64_t rows, int64_t stride, int64_t n,
                      double *to)
{
    const int64_t xs = x->ndim > 0 ? x->stride[x->ndim - 1] : 1,
                  size = (int64_t)tl_dtype_size(x->dtype);
    const tl_isa *isa = tl_isa_now();
    const bool wide = x->dtype == TL_F64;
    tl_range_fn *fold = wide ? isa->row->fold64 : isa->row->fold32;
    if (xs == 1 && (wide || x->dtype == TL_F32)) {
        fold(&(tl_norm_rows){.n = stride, .rows = rows, .x = from, .fold = to}, 0, n, 0);
        return;
    }
    union {
        float f[DEEP][GATHER];
        double d[DEEP][GATHER];
    } t;
    for (int64_t r = 0; r < rows; r += DEEP)
        for (int64_t at = 0; at < n; at += GATHER) {
            const int64_t deep = rows - r < DEEP ? rows - r : DEEP,
                          m = n - at < GATHER ? n - at : GATHER;
            for (int64_t k = 0; k < deep; k++)
                isa->convert->widen(m, x->dtype, from + ((r + k) * stride + at * xs) * size, xs,
                                    wide ? (void *)t.d[k] : t.f[k]);
            fold(&(tl_norm_rows){.n = GATHER, .rows = deep, .x = &t, .fold = to + at}, 0, m, 0);
        }
}

/* n elements of the innermost dim of x into acc, whose elements they share or meet out of order. */
static void fold_inner(const tl_array *x, const char *from, int64_t n, double *to, int64_t as)
{
    const int64_t xs = x->stride[x->ndim - 1], size = (int64_t)tl_dtype_size(x->dtype);
    const bool wide = x->dtype == TL_F64;
    union {
        float f[GATHER];
        double d[GATHER];
    } t;
    for (int64_t at = 0; at < n; at += GATHER) {
        const int64_t m = n - at < GATHER ? n - at : GATHER;
        tl_isa_now()->convert->widen(m, x->dtype, from + at * xs * size, xs, &t);
        if (as == 0) { /* +0 once: no sum that begins with it is -0 */
            double sum = *to + 0;
            for (int64_t i = 0; i < m; i++)
                sum += wide ? t.d[i] : (double)t.f[i];
            *to = sum;
            continue;
        }
        for (int64_t i = 0; i < m; i++)
            to[(at + i) * as] = (to[(at + i) * as] + (wide ? t.d[i] : (double)t.f[i])) + 0;
    }
}

static void fold_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const fold_job *j = ctx;
    tl_array v[2] = {j->v[0], j->v[1]};
    (void)thread;
    if (v[0].ndim > 0) {
        for (int k = 0; k < 2; k++)
            v[k].data = (char *)v[k].data +
                        begin * v[k].stride[j->split] * (int64_t)tl_dtype_size(v[k].dtype);
        v[0].dim[j->split] = v[1].dim[j->split] = end - begin;
    }
    /* The innermost dim alone, or, where it is kept and lies in order in acc, as a row of the one
     * before it, which is folded. */
    const int last = v[0].ndim - 1;
    const bool in_order = last < 0 || v[1].stride[last] == 1,
               deep = last > 0 && in_order && v[1].stride[last - 1] == 0;
    const int loops = last - (int)deep;
    const int64_t inner = last < 0 ? 1 : v[0].dim[last], rows = deep ? v[0].dim[last - 1] : 1,
                  stride = deep ? v[0].stride[last - 1] : 0;
    int64_t outer = 1, at[TL_MAX_DIMS] = {0};
    for (int i = 0; i < loops; i++)
        outer *= v[0].dim[i];
    for (int64_t r = 0; r < outer; r++) {
        int64_t off[2] = {0, 0};
        for (int i = 0; i < loops; i++)
            for (int k = 0; k < 2; k++)
                off[k] += at[i] * v[k].stride[i];
        const char *from = (const char *)v[0].data + off[0] * (int64_t)tl_dtype_size(v[0].dtype);
        double *to = (double *)v[1].data + off[1];
        if (in_order)
            fold_rows(&v[0], from, rows, stride, inner, to);
        else
            fold_inner(&v[0], from, inner, to, v[1].stride[last]);
        for (int i = loops - 1; i >= 0 && ++at[i] == v[0].dim[i]; i--)
            at[i] = 0;
    }
}

/* acc (f64, any strides, x's ndim with sizes 1 where elements meet) continues with x's elements
 * in row-major order. */
static void fold_into(const tl_array *x, const tl_array *acc)
{
    fold_job j = {.v = {*x, *acc}};
    if (tl_array_count(x) == 0)
        return;
    for (int i = 0; i < x->ndim; i++) {
        if (acc->dim[i] == 1)
            j.v[1].stride[i] = 0;
        j.v[1].dim[i] = x->dim[i];
    }
    tl_array_collapse(j.v, 2);
    /* The widest kept dim is what threads may divide: no element of acc is shared then. */
    int64_t widest = 0;
    for (int i = 0; i < j.v[0].ndim; i++)
        if (j.v[1].stride[i] != 0 && j.v[0].dim[i] > widest) {
            widest = j.v[0].dim[i];
            j.split = i;
        }
    if (widest == 0)
        fold_range(&j, 0, j.v[0].ndim ? j.v[0].dim[0] : 1, 0);
    else
        tl_parallel_for(widest, 1 + 32768 * widest / (tl_array_count(x) + 1), fold_range, &j);
}

/* Rounds contiguous f64 values, each divided by *n first if n is given, once to out (contiguous).
 */
static void round_from_f64(const double *x, const double *n, const tl_array *out)
{
    const int64_t count = tl_array_count(out), size = (int64_t)tl_dtype_size(out->dtype);
    double part[GATHER];
    for (int64_t at = 0; at < count; at += GATHER) {
        const int64_t m = count - at < GATHER ? count - at : GATHER;
        for (int64_t i = 0; n != NULL && i < m; i++)
            part[i] = x[at + i] / *n + 0;
        tl_isa_now()->convert->cast(m, TL_F64, n != NULL ? part : x + at, out->dtype,
                                    (char *)out->data + at * size);
    }
}

/* A fold of one term an element, rounded to out: x and out are contiguous and of one shape. */
static void fold_one(const tl_array *x, const tl_array *out)
{
    const int64_t count = tl_array_count(out), size = (int64_t)tl_dtype_size(out->dtype),
                  from = (int64_t)tl_dtype_size(x->dtype);
    const tl_array flat = {.dtype = x->dtype};
    for (int64_t at = 0; at < count; at += GATHER) {
        double part[GATHER] = {0};
        const int64_t m = count - at < GATHER ? count - at : GATHER;
        fold_rows(&flat, (const char *)x->data + at * from, 1, 0, m, part);
        tl_isa_now()->convert->cast(m, TL_F64, part, out->dtype, (char *)out->data + at * size);
    }
}

/* ---- sum, mean ---- */

typedef struct {
    int64_t dims; /* bit i: dim i is reduced */
    bool keepdims;
} sum_attrs;

static const tl_attr sum_schema[] = {{"dims", TL_ATTR_I64, offsetof(sum_attrs, dims)},
                                     {"keepdims", TL_ATTR_BOOL, offsetof(sum_attrs, keepdims)},
                                     {0}};

static tl_status sum_shape(tl_call *c)
{
    const sum_attrs *a = c->attrs;
    const tl_array *x = c->in[0];
    if (!tl_dtype_is_float(x->dtype))
        return tl_call_fail(c, TL_EDTYPE, "x is %s; floats are needed (cast it)",
                            tl_dtype_name(x->dtype));
    if (a->dims < 0 || a->dims >> x->ndim)
        return tl_call_fail(c, TL_ESHAPE,
                            "a dim beyond the %d of x is listed, or one is listed twice", x->ndim);
    tl_array *o = &c->out[0];
    *o = *x;
    o->ndim = 0;
    for (int i = 0; i < x->ndim; i++)
        if (!(a->dims >> i & 1))
            o->dim[o->ndim++] = x->dim[i];
        else if (a->keepdims)
            o->dim[o->ndim++] = 1;
    return TL_OK;
}

/* Trailing reduced dims, axis 0 excepted: the row. */
static int row_dims(const tl_array *x, int64_t dims)
{
    int n = 0;
    while (n < x->ndim - 1 && dims >> (x->ndim - 1 - n) & 1)
        n++;
    return n;
}

static tl_status reduce(tl_call *c, bool mean)
{
    int64_t dims = ((const sum_attrs *)c->attrs)->dims;
    const tl_array *x = c->in[0];
    int n_row = row_dims(x, dims);
    double count = 1;
    tl_array rows = *x, acc = *x;
    rows.ndim -= n_row;
    acc.ndim = rows.ndim;
    acc.dtype = TL_F64;
    for (int i = 0; i < x->ndim; i++)
        if (dims >> i & 1) {
            count *= (double)x->dim[i];
            if (i < acc.ndim)
                acc.dim[i] = 1;
        }
    tl_array_set_contiguous(&acc);
    acc.data = tl_scratch(c, (size_t)tl_array_count(&acc) * 8, true);
    if (acc.data == NULL)
        return TL_ENOMEM;
    bool any = tl_array_count(x) > 0; /* without elements there are no rows, however many it has */
    if (n_row > 0 && any) {
        rows.dtype = tl_dtype_compute(x->dtype);
        tl_array_set_contiguous(&rows);
        rows.data = tl_scratch(c, (size_t)tl_array_count(&rows) * tl_dtype_size(rows.dtype), false);
        if (rows.data == NULL)
            return TL_ENOMEM;
        TL_TRY(sum_rows(c, x, n_row, &rows));
    }
    if (any) /* where nothing folds an accumulator takes one row, exactly, and rounds back to it */
        fold_into(&rows, &acc);
    round_from_f64(acc.data, mean ? &count : NULL, &c->out[0]);
    return TL_OK;
}

static tl_status sum_forward(tl_call *c) { return reduce(c, false); }
static tl_status mean_forward(tl_call *c) { return reduce(c, true); }

/* dy with the reduced dims back, seen in x's shape. */
static tl_tensor spread(tl_vjp *g)
{
    int64_t dims = ((const sum_attrs *)g->attrs)->dims;
    tl_shape full = tl_shape_of(g->t, g->in[0]), kept = full;
    for (int i = 0; i < kept.ndim; i++)
        if (dims >> i & 1)
            kept.dim[i] = 1;
    return tl_expand(g->t, tl_reshape(g->t, g->dy[0], kept), full);
}

static void sum_vjp(tl_vjp *g) { g->dx[0] = spread(g); }

static void mean_vjp(tl_vjp *g)
{
    tl_shape in = tl_shape_of(g->t, g->in[0]), out = tl_shape_of(g->t, g->out[0]);
    int64_t kept = tl_shape_count(&out), n = kept == 0 ? 1 : tl_shape_count(&in) / kept;
    g->dx[0] = tl_div(g->t, spread(g),
                      tl_scalar(g->t, tl_dtype_compute(tl_dtype_of(g->t, g->dy[0])), (double)n));
}

/* A mean over samples divides by the number of those at hand. */
static void mean_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const sum_attrs *a = c->attrs;
    out[0] = tl_batch_reduced(in[0], a->dims, a->keepdims);
}
static void sum_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    mean_batch(c, in, out);
    out[0] = out[0] == TL_MIXED ? TL_TOTAL : out[0];
}

#define SUM(id)                                                                                   \
    .name = #id, .n_in = 1, .n_out = 1, .traits = TL_REDUCTION, .shape = sum_shape,               \
    .forward = id##_forward, .attr = sum_schema, .attr_size = sizeof(sum_attrs), .vjp = id##_vjp, \
    .batch = id##_batch
const tl_op tl_op_sum = {SUM(sum)};
const tl_op tl_op_mean = {SUM(mean)};

static tl_tensor reduced(tl_at at, const tl_op *op, tl_tensor x, tl_shape dims, bool keepdims)
{
    sum_attrs a = {tl_dims_of(at, op->name, x, dims), keepdims};
    return a.dims < 0 ? TL_NONE : tl_apply1(at, op, &a, &x, 1);
}

tl_tensor tl_sum_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims)
{
    return reduced(at, &tl_op_sum, x, dims, keepdims);
}
tl_tensor tl_mean_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims)
{
    return reduced(at, &tl_op_mean, x, dims, keepdims);
}

tl_tensor tl_sum_rows_last(tl_tape *t, tl_tensor x)
{
    tl_shape s = tl_shape_of(t, x), one = s;
    if (s.ndim != 1)
        return tl_sum(t, x, TL_DIMS(-1), true);
    one = (tl_shape){2, {1, s.dim[0]}};
    return tl_reshape(t, tl_sum(t, tl_reshape(t, x, one), TL_DIMS(1), true), TL_DIMS(1));
}

/* ---- sum_to ---- */

static tl_status sum_to_shape(tl_call *c)
{
    const tl_sum_to_attrs *a = c->attrs;
    const tl_array *x = c->in[0], *acc = c->in[1];
    char sx[TL_SHAPE_TEXT], sy[TL_SHAPE_TEXT];
    if (!tl_dtype_is_float(x->dtype) || !tl_dtype_is_float(a->dtype))
        return tl_call_fail(c, TL_EDTYPE, "%s to %s; floats are needed", tl_dtype_name(x->dtype),
                            tl_dtype_name(a->dtype));
    int lead = x->ndim - a->shape.ndim;
    for (int i = 0; i < a->shape.ndim; i++)
        if (lead < 0 || (a->shape.dim[i] != 1 && a->shape.dim[i] != x->dim[i + lead]))
            return tl_call_fail(c, TL_ESHAPE, "%s does not fold down to %s",
                                tl_array_shape_text(sx, x), tl_shape_text(sy, &a->shape));
    c->out[0] = tl_array_make(a->dtype, &a->shape, NULL);
    if (c->mode & TL_SHADOW && x->dtype == TL_F64)
        c->out[0].dtype = TL_F64;
    if (acc == NULL)
        return TL_OK;
    bool same = tl_array_same_shape(acc, x);
    if (!tl_array_same_shape(acc, &c->out[0]) || (acc->dtype != TL_F64 && !same))
        return tl_call_fail(c, TL_ESHAPE, "accumulator %s %s for a fold of %s to %s",
                            tl_array_shape_text(sx, acc), tl_dtype_name(acc->dtype),
                            tl_dtype_name(x->dtype), tl_shape_text(sy, &a->shape));
    c->out[0] = *acc;
    return TL_OK;
}

/* A f32 accumulator of x's own shape: acc = acc + x, x rounded to f32 if it is wider. */
static tl_status accumulate(tl_call *c)
{
    const tl_array *x = c->in[0];
    tl_array *acc = &c->out[0], sum = *acc, wide;
    int64_t n = tl_array_count(acc);
    sum.data = tl_scratch(c, 2 * (size_t)n * sizeof(float), false);
    if (sum.data == NULL)
        return TL_ENOMEM;
    float *term = (float *)sum.data + n;
    tl_array_set_contiguous(&sum);
    TL_TRY(tl_as_compute(c, x, &wide));
    tl_array_copy(&sum, acc);
    tl_isa_now()->convert->cast(n, wide.dtype, wide.data, TL_F32, term);
    tl_isa_now()->row->accumulate32(n, term, sum.data);
    tl_array_copy(acc, &sum);
    return TL_OK;
}

static tl_status sum_to_forward(tl_call *c)
{
    const tl_array *x = c->in[0];
    tl_array acc = c->out[0], lined = {.dtype = TL_F64, .ndim = x->ndim};
    int lead = x->ndim - acc.ndim;
    if (c->in[1] != NULL && acc.dtype != TL_F64)
        return accumulate(c);
    if (c->in[1] == NULL && tl_array_contiguous(x) && tl_array_count(x) == tl_array_count(&acc)) {
        fold_one(x, &acc);
        return TL_OK;
    }
    if (c->in[1] == NULL) {
        acc.dtype = TL_F64;
        acc.data = tl_scratch(c, (size_t)tl_array_count(&acc) * 8, true);
        if (acc.data == NULL)
            return TL_ENOMEM;
    }
    for (int i = 0; i < x->ndim; i++) {
        lined.dim[i] = i < lead ? 1 : acc.dim[i - lead];
        lined.stride[i] = i < lead ? 0 : acc.stride[i - lead];
    }
    lined.data = acc.data;
    fold_into(x, &lined);
    if (c->in[1] == NULL)
        round_from_f64(acc.data, NULL, &c->out[0]);
    return TL_OK;
}

static void sum_to_vjp(tl_vjp *g)
{
    g->dx[0] = tl_expand(g->t, g->dy[0], tl_shape_of(g->t, g->in[0]));
}

static const tl_attr sum_to_schema[] = {{"shape", TL_ATTR_SHAPE, offsetof(tl_sum_to_attrs, shape)},
                                        {"dtype", TL_ATTR_DTYPE, offsetof(tl_sum_to_attrs, dtype)},
                                        {0}};

/* A sample axis that is folded away adds up. */
static void sum_to_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_array *x = c->in[0], *y = &c->out[0];
    const int at = in[0] - (x->ndim - y->ndim);
    out[0] = in[0] < 0 ? in[0] : at >= 0 && y->dim[at] == x->dim[in[0]] ? (tl_batch)at : TL_TOTAL;
    out[0] = tl_batch_continuing(out[0], c, in, 1);
}

const tl_op tl_op_sum_to = {.name = "sum_to",
                            .n_in = 2,
                            .n_out = 1,
                            .optional = TL_BIT(1),
                            .traits = TL_REDUCTION | TL_MUTATES,
                            .mutates = 1,
                            .shape = sum_to_shape,
                            .forward = sum_to_forward,
                            .attr = sum_to_schema,
                            .attr_size = sizeof(tl_sum_to_attrs),
                            .vjp = sum_to_vjp,
                            .batch = sum_to_batch};

tl_tensor tl_sum_to_at(tl_at at, tl_tensor x, tl_shape shape, tl_tensor acc)
{
    tl_sum_to_attrs a = {shape,
                         tl_is_none(acc) ? tl_dtype_of(at.tape, x) : tl_dtype_of(at.tape, acc)};
    return tl_apply1(at, &tl_op_sum_to, &a, (tl_tensor[]){x, acc}, 2);
}
