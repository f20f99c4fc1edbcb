/* pool_places: where the largest element of each window is; max_pool: gather by these places;
 * avg_pool: a conv with ones; pad: concat with constants
 * Shape:  x (n, c, h, w) -> (n, c, oh, ow); in 1d, without the last dim; pool_places: i64, places
 *         in (h, w), row-major
 * Dtype:  f16 bf16 f32 f64
 * Bits:   NaN wins, +0 > -0, the first of equals; padding is no element. avg_pool: the chain over
 *         the window, zeros around x, divided by the window's size (NUMERICS 4.8)
 * VJP:    those of gather, conv and concat, dx rounded to x's dtype; pool_places has none
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (a window without an element) TL_EUSAGE (a second number
 *         of an option in one dim)
 */
#include "ops/build.h"

typedef struct {
    tl_shape kernel, stride, pad, dilation; /* of the last two dims */
} pool_attrs;

static const tl_attr pool_schema[] = {TL_FIELD(pool, kernel, SHAPE),
                                      TL_FIELD(pool, stride, SHAPE),
                                      TL_FIELD(pool, pad, SHAPE),
                                      TL_FIELD(pool, dilation, SHAPE),
                                      {0}};

/* The first of from, from + step, ... that is not below 0. */
static int64_t first_in(int64_t from, int64_t step)
{
    return from >= 0 ? from : from + (-from + step - 1) / step * step;
}

static tl_status pool_shape(tl_call *c)
{
    const pool_attrs *a = c->attrs;
    const tl_array *x = c->in[0];
    TL_TRY(tl_need_float(c, x, "x"));
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
        for (int64_t p = 0; sane && p < out; p++) { /* each window reaches into x */
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

/* x[i], f64 or f32, as an integer that is larger where x[i] wins: -inf .. -0, +0 .. inf, NaN. */
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

/* The first of the largest elements of a window in a plane of w columns. h is the window's first
 * row, last row and step, and cols the same for its columns. */
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

/* The first and last positions of window p in a dim of n, and the step between positions. */
static inline void window(const pool_attrs *a, int dim, int64_t p, int64_t n, int64_t at[3])
{
    int64_t from = p * a->stride.dim[dim] - a->pad.dim[dim], by = a->dilation.dim[dim],
            to = from + by * (a->kernel.dim[dim] - 1);
    at[0] = first_in(from, by);
    at[1] = to < n ? to : n - 1;
    at[2] = by;
}

static void pool_planes(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const job *j = ctx;
    const int64_t *in = j->x->dim + j->x->ndim - 2, *out = j->y->dim + j->y->ndim - 2;
    for (int64_t i = begin; i < end; i++) {
        int64_t *y = (int64_t *)j->y->data + i * out[0] * out[1], h[3], w[3],
                from = i * in[0] * in[1];
        for (int64_t p = 0; p < out[0]; p++) {
            window(j->a, 0, p, in[0], h);
            for (int64_t q = 0; q < out[1]; q++) {
                window(j->a, 1, q, in[1], w);
                *y++ = j->x->dtype == TL_F64 /* a separate loop for each dtype */
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
    for (int i = 0; i < 2 && work <= 8192; i++) /* count only the part that can meet x */
        work *= kernel[i] < in[i] ? kernel[i] : in[i];
    tl_parallel_for(tl_array_count(j.y) / plane, 1 + 8192 / (work > 0 ? work : 1), pool_planes, &j);
    return TL_OK;
}

static void pool_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    out[0] = tl_batch_outside(in[0], c->out[0].ndim, 2);
}

const tl_op tl_op_pool_places = {TL_NAMED(pool_places, 1, 1),
                                 .traits = TL_NONDIFF | TL_WIDENED,
                                 .shape = pool_shape,
                                 .forward = pool_forward,
                                 TL_ATTRS(pool),
                                 .batch = pool_batch};

/* ---- max_pool, avg_pool ---- */

/* A pool in two dims: of x (n, c, h, w), whose shape is s, in the compute type. */
typedef tl_tensor pool_2d(tl_at at, const pool_attrs *a, tl_tensor x, tl_shape s);

static tl_tensor max_pool(tl_at at, const pool_attrs *a, tl_tensor x, tl_shape s)
{
    tl_tensor places = tl_apply1(at, &tl_op_pool_places, a, &x, 1);
    tl_shape out = tl_shape_of(at.tape, places);
    x = tl_reshape_at(at, x, TL_DIMS(s.dim[0], s.dim[1], s.dim[2] * s.dim[3]));
    places = tl_reshape_at(at, places, TL_DIMS(s.dim[0], s.dim[1], out.dim[2] * out.dim[3]));
    return tl_reshape_at(at, tl_gather_at(at, x, places, 2), out);
}

static tl_tensor avg_pool(tl_at at, const pool_attrs *a, tl_tensor x, tl_shape s)
{
    const int64_t kh = a->kernel.dim[0], kw = a->kernel.dim[1];
    const tl_dtype c = tl_dtype_of(at.tape, x);
    const tl_conv_options o = {.stride = {a->stride.dim[0], a->stride.dim[1]},
                               .padding = {a->pad.dim[0], a->pad.dim[1]},
                               .dilation = {a->dilation.dim[0], a->dilation.dim[1]}};
    x = tl_reshape_at(at, x, TL_DIMS(s.dim[0] * s.dim[1], 1, s.dim[2], s.dim[3]));
    const tl_tensor ones = tl_fill_at(at, c, TL_DIMS(1, 1, kh, kw), 1);
    if (tl_batch_of(at.tape, x) == TL_FREE)
        tl_batch_samples_of(at.tape, ones, x, TL_FREE);
    tl_tensor y = tl_conv2d_at(at, x, ones, o);
    y = tl_div_at(at, y, tl_scalar_at(at, c, (double)kh * (double)kw));
    tl_shape out = tl_shape_of(at.tape, y);
    return tl_reshape_at(at, y, TL_DIMS(s.dim[0], s.dim[1], out.dim[2], out.dim[3]));
}

/* A pool in one or two dims. `run` works in the compute type, so that y and dx are rounded once,
 * whether a reshape copies or not. */
static tl_tensor pool(tl_at at, const char *name, int dims, tl_tensor x, tl_pool_options o,
                      pool_2d *run)
{
    const tl_dtype own = tl_dtype_of(at.tape, x);
    pool_attrs a = {TL_DIMS(1, 1), TL_DIMS(1, 1), TL_DIMS(0, 0), TL_DIMS(1, 1)};
    tl_shape s = tl_shape_of(at.tape, x);
    if (s.ndim != dims + 2)
        return tl_reject(at, TL_ESHAPE, "%s: x has %d dims; it needs %d", name, s.ndim, dims + 2);
    if (o.kernel[0] == 0 || o.kernel[dims - 1] == 0)
        return tl_reject(at, TL_EDOMAIN, "%s: .kernel must be given%s", name,
                         o.kernel[0] != 0 ? " for both dims" : "");
    if (dims == 1 && (tl_second(o.kernel) || tl_second(o.stride) || tl_second(o.padding) ||
                      tl_second(o.dilation)))
        return tl_reject(at, TL_EUSAGE,
                         "%s: one dim, and a second .kernel (%lld), .stride (%lld), .padding "
                         "(%lld) or .dilation (%lld)",
                         name, (long long)o.kernel[1], (long long)o.stride[1],
                         (long long)o.padding[1], (long long)o.dilation[1]);
    for (int i = 0; i < dims; i++) {
        const int d = 2 - dims + i;
        a.kernel.dim[d] = o.kernel[i];
        a.stride.dim[d] = o.stride[i] == 0 ? o.kernel[i] : o.stride[i];
        a.pad.dim[d] = o.padding[i];
        a.dilation.dim[d] = o.dilation[i] + (o.dilation[i] == 0);
        if (o.kernel[i] < 0 || o.stride[i] < 0 || o.padding[i] < 0 || o.dilation[i] < 0)
            return tl_reject(at, TL_EDOMAIN,
                             "%s: .kernel %lld, .stride %lld, .padding %lld, .dilation %lld; none "
                             "can be below 0",
                             name, (long long)o.kernel[i], (long long)o.stride[i],
                             (long long)o.padding[i], (long long)o.dilation[i]);
    }
    x = tl_in_dtype(at, x, tl_dtype_compute(own));
    if (dims == 2)
        return tl_in_dtype(at, run(at, &a, x, s), own);
    s = TL_DIMS(s.dim[0], s.dim[1], 1, s.dim[2]);
    tl_tensor y = tl_in_dtype(at, run(at, &a, tl_reshape_at(at, x, s), s), own);
    s = tl_shape_of(at.tape, y);
    return tl_reshape_at(at, y, TL_DIMS(s.dim[0], s.dim[1], s.dim[3]));
}

tl_tensor tl_max_pool1d_at(tl_at at, tl_tensor x, tl_pool_options o)
{
    return pool(at, "max_pool1d", 1, x, o, max_pool);
}
tl_tensor tl_max_pool2d_at(tl_at at, tl_tensor x, tl_pool_options o)
{
    return pool(at, "max_pool2d", 2, x, o, max_pool);
}
tl_tensor tl_avg_pool1d_at(tl_at at, tl_tensor x, tl_pool_options o)
{
    return pool(at, "avg_pool1d", 1, x, o, avg_pool);
}
tl_tensor tl_avg_pool2d_at(tl_at at, tl_tensor x, tl_pool_options o)
{
    return pool(at, "avg_pool2d", 2, x, o, avg_pool);
}

/* The constants before or behind x. If x has samples along another axis, each has its part of
 * them. */
static tl_tensor filler(tl_at at, tl_tensor x, int d, tl_shape shape, double value)
{
    const tl_tensor y = tl_fill_at(at, tl_dtype_of(at.tape, x), shape, value);
    const int axis = tl_batch_of(at.tape, x);
    if (axis != d)
        tl_batch_samples_of(at.tape, y, x, axis);
    return y;
}

tl_tensor tl_pad_at(tl_at at, tl_tensor x, int dim, int64_t before, int64_t after, double value)
{
    tl_shape lead = tl_shape_of(at.tape, x), tail = lead;
    const int d = tl_dim_of(at, "pad", x, dim);
    if (d < 0)
        return TL_NONE;
    if (before < 0 || after < 0)
        return tl_reject(at, TL_EDOMAIN, "pad: %lld before and %lld after dim %d",
                         (long long)before, (long long)after, dim);
    lead.dim[d] = before;
    tail.dim[d] = after;
    return tl_concat_at(
        at, (tl_tensor[]){filler(at, x, d, lead, value), x, filler(at, x, d, tail, value)}, 3, dim);
}
