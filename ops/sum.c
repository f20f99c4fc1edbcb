/* sum, mean over dims; sum_to: x folded down to a shape
 * Shape:  sum, mean: the reduced dims go, or stay as 1. sum_to: a shape that broadcasts to x's
 * Dtype:  f16 bf16 f32 f64; sum_to's accumulator f64 (any fold) or the compute type (same shape)
 * Bits:   rows by lanes, folds in f64, one rounding; mean divides once in f64 (NUMERICS 3, 4)
 * VJP:    dy expanded to x; mean: dy/n
 * Errors: TL_ESHAPE TL_EDTYPE
 */
#include "ops/build.h"

/* ---- sums within rows, by lanes (NUMERICS 3.1), in parallel over the rows ---- */

typedef struct {
    const tl_array *x, *out;
    tl_operand operand; /* x in its compute type */
    int64_t n;          /* elements of a row */
    bool direct;        /* rows can be read where they lie */
    char *buf;          /* a row for each thread, if they cannot */
} row_job;

static void sum_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const row_job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    char *buf = j->direct ? NULL : j->buf + thread * j->n * (int64_t)tl_dtype_size(j->out->dtype);
    for (int64_t r = begin; r < end; r++) {
        const void *x = j->direct ? tl_array_at(j->x, r * j->n) : buf;
        if (!j->direct)
            tl_operand_move(&j->operand, r * j->n, j->n, buf, false);
        if (j->out->dtype == TL_F64)
            ((double *)j->out->data)[r] = k->lanes64(j->n, x);
        else
            ((float *)j->out->data)[r] = k->lanes32(j->n, x);
    }
}

/* Sums the last n_row dims of x into out, which has x's other dims and compute type. */
static tl_status sum_rows(tl_call *c, const tl_array *x, int n_row, const tl_array *out)
{
    row_job j = {.x = x, .out = out, .operand = tl_operand_of(x, out->dtype), .n = 1};
    const int64_t rows = tl_array_count(out);
    j.direct = x->dtype == out->dtype;
    for (int i = x->ndim - 1; i >= x->ndim - n_row; j.n *= x->dim[i--])
        j.direct &= x->dim[i] == 1 || x->stride[i] == j.n;
    const int64_t grain = 1 + 16384 / (j.n + 1);
    const size_t threads = j.direct ? 0 : (size_t)tl_parallel_width(rows, grain);
    j.buf = tl_scratch(c, threads * (size_t)j.n * tl_dtype_size(out->dtype), false);
    if (j.buf == NULL)
        return TL_ENOMEM;
    tl_parallel_for(rows, grain, sum_range, &j);
    return TL_OK;
}

/* ---- sums across rows: a left fold in f64, in row-major order (NUMERICS 3.2), in parallel over
 * the elements that remain ---- */

typedef struct {
    tl_array v[2]; /* x, and the accumulators with stride 0 along the dims that are folded */
    int split;     /* a dim that is not folded, divided among the threads */
} fold_job;

enum { GATHER = 256, DEEP = 8 };

/* Folds rows of n elements of x, `stride` elements apart, into one row of accumulators. Rows that
 * the kernel cannot read where they lie are widened block by block first. */
static void fold_rows(const tl_array *x, const char *from, int64_t rows, int64_t stride, int64_t n,
                      double *to)
{
    const int64_t step = x->ndim > 0 ? x->stride[x->ndim - 1] : 1,
                  size = (int64_t)tl_dtype_size(x->dtype);
    const tl_isa *isa = tl_isa_now();
    const bool wide = x->dtype == TL_F64;
    tl_range_fn *fold = wide ? isa->row->fold64 : isa->row->fold32;
    if (step == 1 && (wide || x->dtype == TL_F32)) {
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
                isa->convert->widen(m, x->dtype, from + ((r + k) * stride + at * step) * size, step,
                                    wide ? (void *)t.d[k] : t.f[k]);
            fold(&(tl_norm_rows){.n = GATHER, .rows = deep, .x = &t, .fold = to + at}, 0, m, 0);
        }
}

/* Folds n elements of the innermost dim of x into one accumulator. */
static void fold_inner(const tl_array *x, const char *from, int64_t n, double *to)
{
    const int64_t step = x->stride[x->ndim - 1], size = (int64_t)tl_dtype_size(x->dtype);
    const bool wide = x->dtype == TL_F64;
    union {
        float f[GATHER];
        double d[GATHER];
    } t;
    double sum = *to + 0; /* +0 is added once: a sum that begins with +0 never becomes -0 */
    for (int64_t at = 0; at < n; at += GATHER) {
        const int64_t m = n - at < GATHER ? n - at : GATHER;
        tl_isa_now()->convert->widen(m, x->dtype, from + at * step * size, step, &t);
        for (int64_t i = 0; i < m; i++)
            sum += wide ? t.d[i] : (double)t.f[i];
    }
    *to = sum;
}

static void fold_range(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const fold_job *j = ctx;
    tl_array x = j->v[0], acc = j->v[1];
    if (x.ndim > 0) {
        x = tl_part_of(&j->v[0], j->split, begin, 1, end - begin);
        acc = tl_part_of(&j->v[1], j->split, begin, 1, end - begin);
    }
    /* Each step folds the innermost dim. Where its accumulators lie side by side and the dim before
     * it is folded, a step takes both dims: rows into one row. */
    const int last = x.ndim - 1;
    const bool in_order = last < 0 || acc.stride[last] == 1,
               deep = last > 0 && in_order && acc.stride[last - 1] == 0;
    const int outer_dims = last - (int)deep;
    const int64_t n = last < 0 ? 1 : x.dim[last], rows = deep ? x.dim[last - 1] : 1,
                  stride = deep ? x.stride[last - 1] : 0;
    int64_t steps = 1;
    for (int i = 0; i < outer_dims; i++)
        steps *= x.dim[i];
    tl_cursor from = tl_cursor_at(&x, outer_dims, 0), to = tl_cursor_at(&acc, outer_dims, 0);
    for (int64_t i = 0; i < steps; i++, tl_cursor_next(&from), tl_cursor_next(&to))
        if (in_order)
            fold_rows(&x, tl_cursor_data(&from), rows, stride, n, tl_cursor_data(&to));
        else
            fold_inner(&x, tl_cursor_data(&from), n, tl_cursor_data(&to));
}

/* Folds x into acc: f64, row-major, with x's ndim and 1 for the dims that are folded. */
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
    /* Threads divide the widest dim that is not folded, so that no two share an accumulator. */
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

/* Rounds the fold of one term for each element of x to out; both are contiguous, of one length. */
static void fold_one(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const tl_array *x = ((const fold_job *)ctx)->v, *out = x + 1, flat = {.dtype = x->dtype};
    for (int64_t at = begin; at < end; at += GATHER) {
        double part[GATHER] = {0};
        const int64_t m = end - at < GATHER ? end - at : GATHER;
        fold_rows(&flat, tl_flat_at(x, at), 1, 0, m, part);
        tl_isa_now()->convert->cast(m, TL_F64, part, out->dtype, tl_flat_at(out, at));
    }
}

/* ---- sum, mean ---- */

const tl_attr tl_reduce_schema[] = {TL_FIELD(tl_reduce, dims, I64),
                                    TL_FIELD(tl_reduce, keepdims, BOOL),
                                    {0}};

tl_status tl_reduce_shape(tl_call *c)
{
    const tl_reduce_attrs *a = c->attrs;
    const tl_array *x = c->in[0];
    TL_TRY(tl_need_float(c, x, "x"));
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

/* Rows by lanes into scratch, then a fold of their sums. Without rows the fold takes x itself;
 * without a fold each accumulator takes one row's sum, which is exact. */
static tl_status reduce(tl_call *c, bool mean)
{
    const int64_t dims = ((const tl_reduce_attrs *)c->attrs)->dims;
    const tl_array *x = c->in[0];
    int n_row = 0; /* the reduced dims at the end form the row, but never axis 0 */
    while (n_row < x->ndim - 1 && dims >> (x->ndim - 1 - n_row) & 1)
        n_row++;
    const bool any = tl_array_count(x) > 0; /* an empty x may still have results: +0 */
    double count = 1;
    tl_array rows = *x, acc;
    rows.ndim -= n_row;
    acc = rows;
    acc.dtype = TL_F64;
    for (int i = 0; i < x->ndim; i++)
        if (dims >> i & 1) {
            count *= (double)x->dim[i];
            acc.dim[i] = 1;
        }
    TL_TRY(tl_scratch_array(c, &acc, true));
    if (n_row > 0 && any) {
        rows.dtype = tl_dtype_compute(x->dtype);
        TL_TRY(tl_scratch_array(c, &rows, false));
        TL_TRY(sum_rows(c, x, n_row, &rows));
    }
    if (any)
        fold_into(&rows, &acc);
    const int64_t n = tl_array_count(&acc);
    double *sum = acc.data;
    for (int64_t i = 0; mean && i < n; i++)
        sum[i] = sum[i] / count + 0;
    tl_cast_all(n, TL_F64, sum, c->out[0].dtype, c->out[0].data); /* rounds once */
    return TL_OK;
}

static tl_status sum_forward(tl_call *c) { return reduce(c, false); }
static tl_status mean_forward(tl_call *c) { return reduce(c, true); }

tl_shape tl_reduce_kept(tl_tape *t, tl_tensor x, int64_t dims)
{
    tl_shape s = tl_shape_of(t, x);
    for (int i = 0; i < s.ndim; i++)
        if (dims >> i & 1)
            s.dim[i] = 1;
    return s;
}

/* dy expanded to x's shape. */
static tl_tensor spread(tl_vjp *g)
{
    tl_shape kept = tl_reduce_kept(g->t, g->in[0], ((const tl_reduce_attrs *)g->attrs)->dims);
    return tl_expand(g->t, tl_shaped_back(g, g->dy[0], kept), tl_shape_of(g->t, g->in[0]));
}

static void sum_vjp(tl_vjp *g) { g->dx[0] = spread(g); }

static void mean_vjp(tl_vjp *g)
{
    tl_shape in = tl_shape_of(g->t, g->in[0]), out = tl_shape_of(g->t, g->out[0]);
    int64_t kept = tl_shape_count(&out), n = kept == 0 ? 1 : tl_shape_count(&in) / kept;
    g->dx[0] = tl_div(g->t, spread(g),
                      tl_scalar(g->t, tl_dtype_compute(tl_dtype_of(g->t, g->dy[0])), (double)n));
}

void tl_reduce_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_reduce_attrs *a = c->attrs;
    out[0] = tl_batch_reduced(in[0], a->dims, a->keepdims);
}

/* A sum over samples is a total. A mean is not: it divides by the number of samples at hand. */
static void sum_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    tl_reduce_batch(c, in, out);
    out[0] = out[0] == TL_MIXED ? TL_TOTAL : out[0];
}

const tl_op tl_op_sum = {TL_NAMED(sum, 1, 1),    .traits = TL_REDUCTION, .shape = tl_reduce_shape,
                         .forward = sum_forward, TL_ATTRS(tl_reduce),    .vjp = sum_vjp,
                         .batch = sum_batch};
const tl_op tl_op_mean = {TL_NAMED(mean, 1, 1),    .traits = TL_REDUCTION, .shape = tl_reduce_shape,
                          .forward = mean_forward, TL_ATTRS(tl_reduce),    .vjp = mean_vjp,
                          .batch = tl_reduce_batch};

tl_tensor tl_reduce_at(tl_at at, const tl_op *op, tl_tensor x, tl_shape dims, bool keepdims)
{
    tl_reduce_attrs a = {tl_dims_of(at, op->name, x, dims), keepdims};
    return a.dims < 0 ? TL_NONE : tl_apply1(at, op, &a, &x, 1);
}

tl_tensor tl_sum_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims)
{
    return tl_reduce_at(at, &tl_op_sum, x, dims, keepdims);
}
tl_tensor tl_mean_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims)
{
    return tl_reduce_at(at, &tl_op_mean, x, dims, keepdims);
}

tl_tensor tl_sum_rows_last(tl_tape *t, tl_tensor x)
{
    tl_shape s = tl_shape_of(t, x);
    if (s.ndim != 1)
        return tl_sum(t, x, TL_DIMS(-1), true);
    tl_tensor row = tl_reshape(t, x, TL_DIMS(1, s.dim[0]));
    return tl_reshape(t, tl_sum(t, row, TL_DIMS(1), true), TL_DIMS(1));
}

/* ---- sum_to ---- */

static tl_status sum_to_shape(tl_call *c)
{
    const tl_sum_to_attrs *a = c->attrs;
    const tl_array *x = c->in[0], *acc = c->in[1];
    if (!tl_dtype_is_float(x->dtype) || !tl_dtype_is_float(a->dtype))
        return tl_call_fail(c, TL_EDTYPE, "%s to %s; floats are needed", tl_dtype_name(x->dtype),
                            tl_dtype_name(a->dtype));
    if (!tl_dims_expand(a->shape.ndim, a->shape.dim, x->ndim, x->dim))
        return tl_call_fail(c, TL_ESHAPE, "%s does not fold down to %s", TL_TEXT(x),
                            TL_TEXT_OF(&a->shape));
    c->out[0] = tl_array_make(a->dtype, &a->shape, NULL);
    if (c->mode & TL_SHADOW && x->dtype == TL_F64)
        c->out[0].dtype = TL_F64;
    if (acc == NULL)
        return TL_OK;
    const bool same = tl_array_same_shape(acc, x);
    if (acc->dtype != TL_F64 && acc->dtype != TL_F32)
        return tl_call_fail(c, TL_EDTYPE, "the accumulator is %s; F64 is needed",
                            tl_dtype_name(acc->dtype));
    if (!tl_array_same_shape(acc, &c->out[0]) || (acc->dtype == TL_F32 && !same))
        return tl_call_fail(c, TL_ESHAPE, "accumulator %s %s for a fold of %s to %s", TL_TEXT(acc),
                            tl_dtype_name(acc->dtype), tl_dtype_name(x->dtype),
                            TL_TEXT_OF(&a->shape));
    c->out[0] = *acc;
    return TL_OK;
}

/* acc = acc + x, with acc f32 and of x's shape; x is rounded to f32 first if it is wider. */
static tl_status accumulate(tl_call *c)
{
    tl_array sum, wide, term = c->out[0];
    const int64_t n = tl_array_count(&term);
    TL_TRY(tl_as_compute(c, &c->out[0], &sum));
    TL_TRY(tl_as_compute(c, c->in[0], &wide));
    TL_TRY(tl_scratch_array(c, &term, false));
    tl_isa_now()->convert->cast(n, wide.dtype, wide.data, TL_F32, term.data);
    tl_isa_now()->row->accumulate32(n, term.data, sum.data);
    tl_store_compute(c, 0, &sum);
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
        tl_parallel_for(tl_array_count(x), 16384, fold_one, &(fold_job){.v = {*x, acc}});
        return TL_OK;
    }
    if (c->in[1] == NULL) {
        acc.dtype = TL_F64;
        TL_TRY(tl_scratch_array(c, &acc, true));
    } else
        TL_TRY(tl_as_compute(c, &c->out[0], &acc));
    for (int i = 0; i < x->ndim; i++) {
        lined.dim[i] = i < lead ? 1 : acc.dim[i - lead];
        lined.stride[i] = i < lead ? 0 : acc.stride[i - lead];
    }
    lined.data = acc.data;
    fold_into(x, &lined);
    if (c->in[1] == NULL)
        tl_cast_all(tl_array_count(&acc), TL_F64, acc.data, c->out[0].dtype, c->out[0].data);
    else
        tl_store_compute(c, 0, &acc);
    return TL_OK;
}

static void sum_to_vjp(tl_vjp *g)
{
    if (g->wants[0])
        g->dx[0] = tl_expand(g->t, g->dy[0], tl_shape_of(g->t, g->in[0]));
    if (g->n_in > 1 && g->wants[1])
        g->dx[1] = g->dy[0];
}

static const tl_attr tl_sum_to_schema[] = {TL_FIELD(tl_sum_to, shape, SHAPE),
                                           TL_FIELD(tl_sum_to, dtype, DTYPE),
                                           {0}};

/* Folding the batch axis away gives a total. */
static void sum_to_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_array *x = c->in[0], *y = &c->out[0];
    const int at = in[0] - (x->ndim - y->ndim);
    out[0] = in[0] < 0 ? in[0] : at >= 0 && y->dim[at] == x->dim[in[0]] ? (tl_batch)at : TL_TOTAL;
    out[0] = tl_batch_continuing(out[0], c, in, 1);
}

const tl_op tl_op_sum_to = {
    TL_NAMED(sum_to, 2, 1), .optional = TL_BIT(1), .traits = TL_REDUCTION | TL_MUTATES,
    .mutates = 1,           .shape = sum_to_shape, .forward = sum_to_forward,
    TL_ATTRS(tl_sum_to),    .vjp = sum_to_vjp,     .batch = sum_to_batch};

tl_tensor tl_sum_to_at(tl_at at, tl_tensor x, tl_shape shape, tl_tensor acc)
{
    tl_sum_to_attrs a = {shape, tl_dtype_of(at.tape, tl_is_none(acc) ? x : acc)};
    return tl_apply1(at, &tl_op_sum_to, &a, (tl_tensor[]){x, acc}, 2);
}

/* var: the variance over dims
 * Shape:  the reduced dims go, or stay as 1
 * Dtype:  f16 bf16 f32 f64; computed in the compute type, rounded once to x's
 * Bits:   a composition: m = mean(x), d = x - m, s = sum(d*d), y = s / max(n - correction, 0)
 *         (NUMERICS 4.5)
 * VJP:    those of its parts
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (correction other than 0 or 1)
 */

tl_tensor tl_var_at(tl_at at, tl_tensor x, tl_shape dims, int correction, bool keepdims)
{
    tl_dtype dtype = tl_dtype_of(at.tape, x);
    tl_shape s = tl_shape_of(at.tape, x);
    int64_t mask = tl_dims_of(at, "var", x, dims);
    double n = 1;
    if (mask < 0)
        return TL_NONE;
    if (correction != 0 && correction != 1)
        return tl_reject(at, TL_EDOMAIN, "var: correction is %d; 0 and 1 are possible", correction);
    for (int i = 0; i < s.ndim; i++)
        n *= mask >> i & 1 ? (double)s.dim[i] : 1;
    tl_tensor wide = tl_in_compute(at, x), mean = tl_mean_at(at, wide, dims, true);
    tl_tensor sum = tl_sum_at(at, tl_square_at(at, tl_sub_at(at, wide, mean)), dims, keepdims);
    const double of = n > correction ? n - correction : 0; /* too few terms: 0/0 */
    tl_tensor y = tl_div_at(at, sum, tl_scalar_at(at, tl_dtype_compute(dtype), of));
    return tl_in_dtype(at, y, dtype);
}
