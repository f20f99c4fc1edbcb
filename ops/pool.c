/* pool_places: where the largest element of each window is; max_pool: gather by it; avg_pool: a
 * conv with ones; pad
 * Shape:  x (n, c, h, w) -> (n, c, oh, ow), or without the last dim; pool_places: i64, places in
 *         (h, w), row-major
 * Dtype:  f16 bf16 f32 f64
 * Bits:   NaN wins, +0 > -0, the first of equals; padding is no element. avg_pool: the chain over
 *         the window, zeros around x, divided by the window's size (NUMERICS 4.8)
 * VJP:    those of gather, conv and concat, dx rounded to x's dtype; pool_places has none
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (a window without an element)
 */
#include "ops/build.h"

typedef struct {
    tl_shape kernel, stride, pad, dilation; /* of the last two dims */
} pool_attrs;

static const tl_attr pool_schema[] = {{"kernel", TL_ATTR_SHAPE, offsetof(pool_attrs, kernel)},
                                      {"stride", TL_ATTR_SHAPE, offsetof(pool_attrs, stride)},
                                      {"pad", TL_ATTR_SHAPE, offsetof(pool_attrs, pad)},
                                      {"dilation", TL_ATTR_SHAPE, offsetof(pool_attrs, dilation)},
                                      {0}};

/* The first place from `from` on, by `step`, that is not before 0. */
static int64_t first_in(int64_t from, int64_t step)
{
    return from >= 0 ? from : from + (-from + step - 1) / step * step;
}

static tl_status pool_shape(tl_call *c)
{
    const pool_attrs *a = c->attrs;
    const tl_array *x = c->in[0];
    if (!tl_dtype_is_float(x->dtype))
        return tl_call_fail(c, TL_EDTYPE, "x is %s; floats are needed", tl_dtype_name(x->dtype));
    if (x->ndim < 2)
        return tl_call_fail(c, TL_ESHAPE, "x has %d dims; windows lie in two", x->ndim);
    c->out[0] = *x;
    c->out[0].dtype = TL_I64;
    for (int i = 0; i < 2; i++) {
        int64_t n = x->dim[x->ndim - 2 + i], k = a->kernel.dim[i], s = a->stride.dim[i],
                d = a->dilation.dim[i], pad = a->pad.dim[i], most = INT32_MAX;
        bool sane = k > 0 && s > 0 && d > 0 && pad >= 0 && n < most && k < most && s < most &&
                    d < most && pad < most;
        int64_t out = sane ? (n + 2 * pad - d * (k - 1) - 1) / s + 1 : 0;
        for (int64_t p = 0; sane && p < out; p++) { /* the window reaches into x */
            int64_t at = first_in(s * p - pad, d);
            sane &= at < n && at <= s * p - pad + d * (k - 1);
        }
        if (!sane || n + 2 * pad < d * (k - 1) + 1)
            return tl_call_fail(c, TL_EDOMAIN,
                                "windows of %lld with stride %lld, dilation %lld and padding %lld "
                                "find no element in %lld",
                                (long long)k, (long long)s, (long long)d, (long long)pad,
                                (long long)n);
        c->out[0].dim[x->ndim - 2 + i] = out;
    }
    return TL_OK;
}

typedef struct {
    const tl_array *x, *y;
    const pool_attrs *a;
} job;

/* x[i], f64 or f32, as a number in the order in which they win: -inf .. -0, +0 .. inf, NaN. */
static inline int64_t rank(const void *x, int64_t i, bool wide)
{
    if (wide) {
        const double v = ((const double *)x)[i];
        int64_t bits;
        memcpy(&bits, &v, sizeof bits);
        return v != v ? INT64_MAX : bits ^ (bits >> 63 & INT64_MAX);
    }
    const float v = ((const float *)x)[i];
    int32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return v != v ? INT32_MAX : bits ^ (bits >> 31 & INT32_MAX);
}

/* The first of the largest among places h0, h0 + dh, .. h1 and w0, w0 + dw, .. w1 of a plane. */
static inline int64_t best_of(const void *x, bool wide, const int64_t h[3], int64_t w,
                              const int64_t cols[3])
{
    int64_t best = h[0] * w + cols[0], most = rank(x, best, wide);
    for (int64_t i = h[0]; i <= h[1]; i += h[2])
        for (int64_t k = cols[0]; k <= cols[1]; k += cols[2]) {
            const int64_t r = rank(x, i * w + k, wide);
            best = r > most ? i * w + k : best;
            most = r > most ? r : most;
        }
    return best;
}

/* What window p of a dim of n reaches: from, to, by. */
static inline void window(const pool_attrs *a, int dim, int64_t p, int64_t n, int64_t at[3])
{
    int64_t from = p * a->stride.dim[dim] - a->pad.dim[dim], by = a->dilation.dim[dim],
            to = from + by * (a->kernel.dim[dim] - 1);
    at[0] = first_in(from, by);
    at[1] = to < n ? to : n - 1;
    at[2] = by;
}

static void pool_planes(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    const int64_t *in = j->x->dim + j->x->ndim - 2, *out = j->y->dim + j->y->ndim - 2;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t *y = (int64_t *)j->y->data + i * out[0] * out[1], h[3], w[3],
                from = i * in[0] * in[1];
        for (int64_t p = 0; p < out[0]; p++) {
            window(j->a, 0, p, in[0], h);
            for (int64_t q = 0; q < out[1]; q++) {
                window(j->a, 1, q, in[1], w);
                *y++ = j->x->dtype == TL_F64 /* each a loop of its own */
                           ? best_of((const double *)j->x->data + from, true, h, in[1], w)
                           : best_of((const float *)j->x->data + from, false, h, in[1], w);
            }
        }
    }
}

static tl_status pool_forward(tl_call *c)
{
    job j = {c->in[0], &c->out[0], c->attrs};
    int nd = c->in[0]->ndim;
    const int64_t *kernel = j.a->kernel.dim, *in = c->in[0]->dim + nd - 2;
    int64_t plane = j.y->dim[nd - 2] * j.y->dim[nd - 1], work = plane;
    for (int i = 0; i < 2 && work <= 8192; i++) /* of a kernel only what meets x */
        work *= kernel[i] < in[i] ? kernel[i] : in[i];
    tl_parallel_for(tl_array_count(j.y) / plane, 1 + 8192 / (work > 0 ? work : 1), pool_planes, &j);
    return TL_OK;
}

static void pool_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    out[0] = tl_batch_outside(in[0] == TL_TOTAL ? TL_MIXED : in[0], c->out[0].ndim, 2);
}

const tl_op tl_op_pool_places = {.name = "pool_places",
                                 .n_in = 1,
                                 .n_out = 1,
                                 .traits = TL_NONDIFF | TL_WIDENED,
                                 .shape = pool_shape,
                                 .forward = pool_forward,
                                 .attr = pool_schema,
                                 .attr_size = sizeof(pool_attrs),
                                 .batch = pool_batch};

/* x (n, c, h, w) of a (n, c, w), in the compute type, so that dx is rounded once, whether a reshape
 * copies or not; TL_NONE with an error. */
static tl_tensor as_2d(tl_at at, const char *name, int dims, tl_tensor x)
{
    tl_shape s = tl_shape_of(at.tape, x);
    if (s.ndim != dims + 2 && !tl_failed(at.tape))
        tl_tape_fail(at, TL_ESHAPE, "%s: x has %d dims; it needs %d", name, s.ndim, dims + 2);
    if (tl_failed(at.tape))
        return TL_NONE;
    x = tl_in_dtype(at, x, tl_dtype_compute(tl_dtype_of(at.tape, x)));
    return dims == 2 ? x : tl_reshape_at(at, x, TL_DIMS(s.dim[0], s.dim[1], 1, s.dim[2]));
}

/* A window has no size of its own. */
static bool has_kernel(tl_at at, const char *name, int dims, const tl_pool_options *o)
{
    if (o->kernel[0] != 0 && o->kernel[dims - 1] != 0)
        return true;
    tl_tape_fail(at, TL_EDOMAIN, "%s: .kernel must be given%s", name,
                 o->kernel[0] != 0 ? " for both dims" : "");
    return false;
}

/* The options as sizes of a window in two dims. */
static pool_attrs windows(int dims, tl_pool_options o)
{
    pool_attrs a = {TL_DIMS(1, 1), TL_DIMS(1, 1), TL_DIMS(0, 0), TL_DIMS(1, 1)};
    for (int i = 0; i < dims; i++) {
        int d = 2 - dims + i;
        a.kernel.dim[d] = o.kernel[i];
        a.stride.dim[d] = o.stride[i] == 0 ? o.kernel[i] : o.stride[i];
        a.pad.dim[d] = o.padding[i];
        a.dilation.dim[d] = o.dilation[i] + (o.dilation[i] == 0);
    }
    return a;
}

/* (n, c, 1, w) as (n, c, w), and in x's own dtype. */
static tl_tensor as_given(tl_at at, int dims, tl_tensor y, tl_dtype own)
{
    tl_shape s = tl_shape_of(at.tape, y);
    y = tl_in_dtype(at, y, own);
    return dims == 2 ? y : tl_reshape_at(at, y, TL_DIMS(s.dim[0], s.dim[1], s.dim[3]));
}

static tl_tensor max_pool(tl_at at, const char *name, int dims, tl_tensor x, tl_pool_options o)
{
    pool_attrs a = windows(dims, o);
    tl_dtype own = tl_dtype_of(at.tape, x);
    x = as_2d(at, name, dims, x);
    if (!has_kernel(at, name, dims, &o))
        return TL_NONE;
    tl_tensor places = tl_apply1(at, &tl_op_pool_places, &a, &x, 1);
    tl_shape s = tl_shape_of(at.tape, x), out = tl_shape_of(at.tape, places);
    if (tl_failed(at.tape))
        return TL_NONE;
    x = tl_reshape_at(at, x, TL_DIMS(s.dim[0], s.dim[1], s.dim[2] * s.dim[3]));
    places = tl_reshape_at(at, places, TL_DIMS(s.dim[0], s.dim[1], out.dim[2] * out.dim[3]));
    tl_tensor y = tl_reshape_at(at, tl_gather_at(at, x, places, 2), out);
    return as_given(at, dims, y, own);
}

/* The sum in the compute type, divided there, and rounded once. */
static tl_tensor avg_pool(tl_at at, const char *name, int dims, tl_tensor x, tl_pool_options o)
{
    pool_attrs a = windows(dims, o);
    tl_dtype own = tl_dtype_of(at.tape, x), c = tl_dtype_compute(own);
    x = as_2d(at, name, dims, x);
    if (!has_kernel(at, name, dims, &o) || tl_failed(at.tape))
        return TL_NONE;
    tl_shape s = tl_shape_of(at.tape, x);
    int64_t kh = a.kernel.dim[0], kw = a.kernel.dim[1];
    x = tl_reshape_at(at, x, TL_DIMS(s.dim[0] * s.dim[1], 1, s.dim[2], s.dim[3]));
    tl_tensor ones = tl_fill_at(at, c, TL_DIMS(1, 1, kh, kw), 1);
    tl_tensor y = tl_conv2d_at(at, x, ones,
                               (tl_conv_options){.stride = {a.stride.dim[0], a.stride.dim[1]},
                                                 .padding = {a.pad.dim[0], a.pad.dim[1]},
                                                 .dilation = {a.dilation.dim[0],
                                                              a.dilation.dim[1]}});
    y = tl_div_at(at, y, tl_fill_at(at, c, TL_SCALAR, (double)kh * (double)kw));
    tl_shape out = tl_shape_of(at.tape, y);
    y = tl_reshape_at(at, y, TL_DIMS(s.dim[0], s.dim[1], out.dim[2], out.dim[3]));
    return as_given(at, dims, y, own);
}

tl_tensor tl_max_pool1d_at(tl_at at, tl_tensor x, tl_pool_options o)
{
    return max_pool(at, "max_pool1d", 1, x, o);
}
tl_tensor tl_max_pool2d_at(tl_at at, tl_tensor x, tl_pool_options o)
{
    return max_pool(at, "max_pool2d", 2, x, o);
}
tl_tensor tl_avg_pool1d_at(tl_at at, tl_tensor x, tl_pool_options o)
{
    return avg_pool(at, "avg_pool1d", 1, x, o);
}
tl_tensor tl_avg_pool2d_at(tl_at at, tl_tensor x, tl_pool_options o)
{
    return avg_pool(at, "avg_pool2d", 2, x, o);
}

tl_tensor tl_pad_at(tl_at at, tl_tensor x, int dim, int64_t before, int64_t after, double value)
{
    tl_shape lead = tl_shape_of(at.tape, x), tail = lead;
    if (tl_dims_of(at, "pad", x, TL_DIMS(dim)) < 0)
        return TL_NONE;
    int d = dim < 0 ? dim + lead.ndim : dim;
    if (before < 0 || after < 0) {
        tl_tape_fail(at, TL_EDOMAIN, "pad: %lld before and %lld after dim %d", (long long)before,
                     (long long)after, dim);
        return TL_NONE;
    }
    if (lead.ndim > 0) { /* else concat says what is wrong */
        lead.dim[d] = before;
        tail.dim[d] = after;
    }
    tl_dtype own = tl_dtype_of(at.tape, x);
    return tl_concat_at(at,
                        (tl_tensor[]){tl_fill_at(at, own, lead, value), x,
                                      tl_fill_at(at, own, tail, value)},
                        3, dim);
}
