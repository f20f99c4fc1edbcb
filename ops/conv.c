/* conv: y[g, n, o, p] = chain over (channel c, place k in the kernel) of w[g, o, c, k] times
 * element u of x, where b*u = s*p + d*k - pad in each of two dims, or times 0 if there is no such
 * u. conv1d and conv2d are calls of it. So are its two gradients, which solve that equation for
 * another of u, p and k
 * Shape:  x (g, n, c, h, w), w (g, o, c, kh, kw), acc? -> (g, n, o, oh, ow);
 *         swapped: (g, o, n, ...)
 * Dtype:  f16 bf16 f32 f64; f16, bf16 and f32 meet in f32. Accumulator: the compute type
 * Bits:   acc = fma(w, x, acc) from +0 or the accumulator, c outermost, k row-major; what lies
 *         outside of x or between its elements is a factor +0 (NUMERICS 5.8)
 * VJP:    dx: chain over (o, k), dw: chain over (n, p), continuing w's accumulator
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (kernel, stride, dilation, padding) TL_EUSAGE (a second
 *         number of an option in one dim)
 */
#include "ops/build.h"

/* One dim: the result's places, and s, d, b and pad of the card. s and d may be negative. */
typedef struct {
    int64_t out, s, d, b, pad;
} steps;

typedef struct {
    tl_shape dim[2]; /* steps, as the sizes of a shape, which a schema can print and compare */
    bool swapped;
} conv_attrs;

static const tl_attr conv_schema[] = {{"rows", TL_ATTR_SHAPE, offsetof(conv_attrs, dim[0])},
                                      {"cols", TL_ATTR_SHAPE, offsetof(conv_attrs, dim[1])},
                                      TL_FIELD(conv, swapped, BOOL),
                                      {0}};

static tl_shape packed(int64_t out, int64_t s, int64_t d, int64_t b, int64_t pad)
{
    const int64_t sign = b < 0 ? -1 : 1;
    return (tl_shape){5, {out, sign * s, sign * d, sign * b, sign * pad}};
}
static steps unpacked(const tl_shape *s)
{
    return (steps){s->dim[0], s->dim[1], s->dim[2], s->dim[3], s->dim[4]};
}

static tl_status conv_shape(tl_call *c)
{
    const conv_attrs *a = c->attrs;
    const tl_array *x = c->in[0], *w = c->in[1];
    if (!tl_dtype_is_float(x->dtype) || !tl_dtype_is_float(w->dtype) ||
        (x->dtype == TL_F64) != (w->dtype == TL_F64))
        return tl_call_fail(c, TL_EDTYPE, "x is %s, w %s; two floats are needed, f64 only with f64",
                            tl_dtype_name(x->dtype), tl_dtype_name(w->dtype));
    if (x->ndim != 5 || w->ndim != 5 || x->dim[0] != w->dim[0] || x->dim[2] != w->dim[2])
        return tl_call_fail(c, TL_ESHAPE, "x %s and w %s: groups or channels differ", TL_TEXT(x),
                            TL_TEXT(w));
    int64_t n = x->dim[1], o = w->dim[1];
    tl_shape s = TL_DIMS(x->dim[0], a->swapped ? o : n, a->swapped ? n : o, a->dim[0].dim[0],
                         a->dim[1].dim[0]);
    tl_array out = tl_array_make(x->dtype == w->dtype ? x->dtype : TL_F32, &s, NULL);
    return tl_continue(c, &out, tl_dtype_compute(out.dtype));
}

/* The positions that the places and the kernel reach in one dim of x, with b - 1 zeros between
 * neighbouring elements and zeros around all of them. */
typedef struct {
    int64_t first, n; /* the first position reached, and the number of them */
} reach;

static reach reached(steps t, int64_t kernel)
{
    int64_t p = t.s * (t.out - 1), k = t.d * (kernel - 1);
    int64_t low = (p < 0 ? p : 0) + (k < 0 ? k : 0), high = (p > 0 ? p : 0) + (k > 0 ? k : 0);
    return (reach){low - t.pad, high - low + 1};
}

/* A call while it runs; arrays of two are of the two dims. */
typedef struct {
    tl_call *c;
    steps t[2];
    reach r[2];
    tl_array x, w; /* in the compute type; x with its zeros */
} job;

/* Writes planes [begin, end) of (g, n, c): the elements of x that are reached, and zeros. */
static void spread_planes(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const job *j = ctx;
    const tl_array *x = j->c->in[0], *y = &j->x;
    const int64_t size = (int64_t)tl_dtype_size(y->dtype), rows = j->r[0].n, cols = j->r[1].n,
                  lo = j->r[1].first, b = j->t[1].b;
    /* the columns of x that are reached */
    const int64_t first = lo <= 0 ? 0 : (lo + b - 1) / b, last = (lo + cols - 1) / b,
                  count = (last < x->dim[4] - 1 ? last : x->dim[4] - 1) - first + 1;
    for (int64_t i = begin; i < end; i++) {
        char *to = (char *)y->data + i * rows * cols * size;
        int64_t c = i % x->dim[2], n = i / x->dim[2] % x->dim[1], g = i / x->dim[2] / x->dim[1],
                from = g * x->stride[0] + n * x->stride[1] + c * x->stride[2];
        memset(to, 0, (size_t)(rows * cols * size));
        for (int64_t h = 0; h < x->dim[3]; h++) {
            int64_t v = h * j->t[0].b - j->r[0].first;
            if (v < 0 || v >= rows || lo + cols <= 0)
                continue;
            const char *row = (const char *)x->data +
                              (from + h * x->stride[3] + first * x->stride[4]) *
                                  (int64_t)tl_dtype_size(x->dtype);
            char *dst = to + (v * cols + first * b - lo) * size;
            for (int64_t u = 0, m = b == 1 ? count : 1; u < count; u += m)
                tl_isa_now()->convert->widen(m, x->dtype,
                                             row + u * x->stride[4] *
                                                       (int64_t)tl_dtype_size(x->dtype),
                                             x->stride[4], dst + u * b * size);
        }
    }
}

/* Sets j->x to the part of x that is reached, in the compute type and with its zeros; to x itself
 * if it has that type and needs no zeros. */
static tl_status spread(job *j)
{
    const tl_array *x = j->c->in[0], *w = j->c->in[1];
    const tl_dtype compute = tl_dtype_compute(x->dtype);
    bool whole = x->dtype == compute;
    for (int i = 0; i < 2; i++) {
        j->r[i] = reached(j->t[i], w->dim[3 + i]);
        whole &= j->t[i].b == 1 && j->r[i].first >= 0 && j->r[i].first + j->r[i].n <= x->dim[3 + i];
    }
    if (whole) {
        j->x = *x;
        j->r[0].first = j->r[1].first = 0;
        return TL_OK;
    }
    const int64_t planes = x->dim[0] * x->dim[1] * x->dim[2], plane = j->r[0].n * j->r[1].n;
    tl_shape s = TL_DIMS(x->dim[0], x->dim[1], x->dim[2], j->r[0].n, j->r[1].n);
    tl_err wide = {.status = TL_OK};
    if (tl_shape_check(&s, compute, &wide) != TL_OK)
        return tl_call_fail(j->c, TL_ESHAPE, "x in zeros: %.200s", wide.message);
    j->x = tl_array_make(compute, &s, NULL);
    TL_TRY(tl_scratch_array(j->c, &j->x, false));
    tl_parallel_for(planes, 1 + 16384 / plane, spread_planes, j);
    return TL_OK;
}

/* Offsets of the rows (c, kh, kw) and columns (n, oh, ow) of the product's factor: element (row,
 * column) lies at their sum. A row of places takes `pitch` columns. */
static void tables(const job *j, int64_t samples, int64_t pitch, int64_t *row, int64_t *col)
{
    const tl_array *x = &j->x, *w = &j->w;
    const steps *t = j->t;
    int64_t at = 0;
    for (int64_t c = 0; c < w->dim[2]; c++)
        for (int64_t i = 0; i < w->dim[3]; i++)
            for (int64_t k = 0; k < w->dim[4]; k++)
                row[at++] = c * x->stride[2] + t[0].d * i * x->stride[3] +
                            t[1].d * k * x->stride[4];
    at = 0;
    for (int64_t n = 0; n < samples; n++)
        for (int64_t i = 0; i < t[0].out; i++)
            for (int64_t k = 0; k < (i + 1 < t[0].out ? pitch : t[1].out); k++)
                col[at++] = n * x->stride[1] +
                            (t[0].s * i - t[0].pad - j->r[0].first) * x->stride[3] +
                            (t[1].s * k - t[1].pad - j->r[1].first) * x->stride[4];
}

static int64_t terms(const job *j) { return j->w.dim[2] * j->w.dim[3] * j->w.dim[4]; }

/* Where neighbouring places read neighbouring elements of x, the product can also compute the
 * columns between two rows of places. If they are few, that takes less time than reading the factor
 * row by row. *wide is then scratch for such a result, in out's shape; else it is out. */
static tl_status widened(const job *j, const tl_array *out, tl_array *wide)
{
    const tl_array *x = &j->x;
    const steps *t = j->t;
    const int64_t pitch = x->stride[3], columns = (t[0].out - 1) * pitch + t[1].out;
    *wide = *out;
    if (j->c->in[2] != NULL || t[0].s != 1 || t[1].s != 1 || x->stride[4] != 1 ||
        pitch <= t[1].out || columns > t[0].out * t[1].out / 2 * 3 || terms(j) < 8 * j->w.dim[1])
        return TL_OK;
    int64_t count = columns;
    wide->stride[4] = 1;
    wide->stride[3] = pitch;
    for (int i = 2; i >= 0; count *= wide->dim[i--])
        wide->stride[i] = count;
    wide->data = tl_scratch(j->c, (size_t)count * tl_dtype_size(x->dtype), false);
    return wide->data == NULL ? TL_ENOMEM : TL_OK;
}

/* y = the product, or y continues with it. A row of y's places takes `pitch` columns. */
static tl_status multiply(const job *j, const tl_array *y, int64_t pitch)
{
    const tl_array *x = &j->x, *w = &j->w;
    /* The columns of one product: the places of a sample, or of all samples where y has them side
     * by side. */
    const int sample = ((const conv_attrs *)j->c->attrs)->swapped ? 2 : 1, row = 3 - sample;
    const int64_t places = (j->t[0].out - 1) * pitch + j->t[1].out, k = terms(j);
    const bool joined = y->stride[sample] == places && y->stride[4] == 1 && y->stride[3] == pitch;
    const int64_t samples = joined ? x->dim[1] : 1;
    const tl_gemm_type type = x->dtype == TL_F64 ? TL_GEMM_F64 : TL_GEMM_F32;
    int64_t *at = tl_scratch(j->c, (size_t)(k + samples * places + 1) * 8, k == 0);
    if (at == NULL)
        return TL_ENOMEM;
    if (k > 0) /* without terms x is not read: all offsets stay 0 */
        tables(j, samples, pitch, at, at + k);
    tl_gemm_batches p = {.nd = 2,
                         .dim = {w->dim[0], x->dim[1] / samples},
                         .sa = {w->dim[1] * k, 0},
                         .sb = {x->stride[0], x->stride[1]},
                         .sc = {y->stride[0], y->stride[sample]},
                         .g = {.m = w->dim[1],
                               .n = samples * places,
                               .k = k,
                               .f64 = x->dtype == TL_F64,
                               .accumulate = j->c->in[2] != NULL,
                               .a = {w->data, type, k, 1},
                               .b = {x->data, type, 0, 0},
                               .b_row = at,
                               .b_col = at + k,
                               .c = y->data,
                               .rsc = y->stride[row],
                               .csc = y->stride[4]}};
    return tl_gemm_batches_run(j->c, &p, NULL);
}

static tl_status conv_forward(tl_call *c)
{
    const conv_attrs *a = c->attrs;
    job j = {.c = c, .t = {unpacked(&a->dim[0]), unpacked(&a->dim[1])}};
    tl_array out, y;
    TL_TRY(c->in[2] == NULL ? tl_out_compute(c, 0, &out) : tl_as_compute(c, c->in[2], &out));
    TL_TRY(spread(&j));
    TL_TRY(tl_as_compute(c, c->in[1], &j.w));
    TL_TRY(widened(&j, &out, &y));
    const bool wide = y.data != out.data;
    TL_TRY(multiply(&j, &y, wide ? y.stride[3] : j.t[1].out));
    if (wide)
        tl_array_copy(&out, &y);
    tl_store_compute(c, 0, &out);
    return TL_OK;
}

static tl_tensor exchanged(tl_tape *t, tl_tensor x)
{
    return tl_permute(t, x, TL_DIMS(0, 2, 1, 3, 4));
}

/* b*u = s*p + d*k - pad is read as s*p = b*u - d*k + pad for dx. For dw it stays as it is: p and k
 * exchange their roles. */
static void conv_vjp(tl_vjp *g)
{
    const conv_attrs *a = g->attrs;
    tl_tape *t = g->t;
    tl_shape x = tl_shape_of(t, g->in[0]), w = tl_shape_of(t, g->in[1]);
    tl_tensor dy = a->swapped ? exchanged(t, g->dy[0]) : g->dy[0];
    conv_attrs dx = {.swapped = false}, dw = {.swapped = true};
    for (int i = 0; i < 2; i++) {
        const steps v = unpacked(&a->dim[i]);
        dx.dim[i] = packed(x.dim[3 + i], v.b, -v.d, v.s, -v.pad);
        dw.dim[i] = packed(w.dim[3 + i], v.d, v.s, v.b, v.pad);
    }
    if (g->wants[0])
        g->dx[0] = tl_apply1(TL_AT(t), &tl_op_conv, &dx,
                             (tl_tensor[]){dy, exchanged(t, g->in[1]), TL_NONE}, 3);
    if (g->wants[1])
        g->dx[1] = tl_apply1(TL_AT(t), &tl_op_conv, &dw,
                             (tl_tensor[]){exchanged(t, g->in[0]), exchanged(t, dy), g->acc[1]}, 3);
}

/* Samples along n or o stay samples; along c, which is part of the chain, they add up. */
static void conv_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const bool swapped = ((const conv_attrs *)c->attrs)->swapped;
    out[0] = in[0] == 1 && in[1] == TL_FREE         ? (swapped ? 2 : 1)
             : in[0] == TL_FREE && in[1] == 1       ? (swapped ? 1 : 2)
             : in[0] == 2 && in[1] == 2             ? TL_TOTAL
             : in[0] == TL_FREE && in[1] == TL_FREE ? in[2]
                                                    : TL_MIXED;
    if (in[2] != TL_FREE && in[2] != out[0])
        out[0] = TL_MIXED;
}

const tl_op tl_op_conv = {TL_NAMED(conv, 3, 1), .optional = TL_BIT(2),
                          .traits = TL_MUTATES, .mutates = 2,
                          .shape = conv_shape,  .forward = conv_forward,
                          TL_ATTRS(conv),       .vjp = conv_vjp,
                          .saves_in = 3,        .saves_for = tl_saves_other,
                          .folds = 2,           .batch = conv_batch};

/* ---- conv1d, conv2d ---- */

/* Sets *out to the steps in one dim of `size` elements under a kernel of k. */
static tl_status dim_steps(tl_at at, const char *name, int64_t size, int64_t k, int64_t stride,
                           int64_t dilation, int64_t pad, tl_shape *out)
{
    enum { MOST = 1 << 30 }; /* so that nothing overflows */
    stride += stride == 0;
    dilation += dilation == 0;
    const bool large = size >= MOST || k >= MOST || stride >= MOST || dilation >= MOST ||
                       pad >= MOST;
    if (k > 0 && stride > 0 && dilation > 0 && pad >= 0 && !large) {
        int64_t room = size + 2 * pad - dilation * (k - 1) - 1;
        *out = packed(room / stride + 1, stride, dilation, 1, pad);
        if (room >= 0)
            return TL_OK;
    }
    return tl_tape_fail(at, TL_EDOMAIN,
                        "%s: a kernel of %lld with stride %lld, dilation %lld and padding %lld "
                        "%s %lld%s",
                        name, (long long)k, (long long)stride, (long long)dilation, (long long)pad,
                        large ? "over" : "finds no place in", (long long)size,
                        large                                   ? ": all must be below 2^30"
                        : stride < 0 || dilation < 0 || pad < 0 ? ": none can be below 0"
                                                                : "");
}

static tl_tensor conv(tl_at at, const char *name, int dims, tl_tensor x, tl_tensor w,
                      tl_conv_options o)
{
    tl_shape sx = tl_shape_of(at.tape, x), sw = tl_shape_of(at.tape, w);
    conv_attrs a = {.dim = {packed(1, 1, 1, 1, 0)}}; /* conv1d's x has one row */
    int64_t g = o.groups + (o.groups == 0), outs = sw.dim[0];
    if (sx.ndim != dims + 2 || sw.ndim != dims + 2 || g <= 0 || sx.dim[1] % g != 0 ||
        outs % g != 0 || sx.dim[1] / g != sw.dim[1])
        return tl_reject(at, TL_ESHAPE,
                         "%s: x %s and w %s with .groups = %lld; (n, c, ...) and (o, c/groups, "
                         "...) are needed",
                         name, TL_TEXT_OF(&sx), TL_TEXT_OF(&sw), (long long)g);
    if (dims == 1 && (tl_second(o.stride) || tl_second(o.padding) || tl_second(o.dilation)))
        return tl_reject(at, TL_EUSAGE,
                         "%s: one dim, and a second .stride (%lld), .padding (%lld) or .dilation "
                         "(%lld)",
                         name, (long long)o.stride[1], (long long)o.padding[1],
                         (long long)o.dilation[1]);
    for (int i = 0; i < dims; i++)
        if (dim_steps(at, name, sx.dim[2 + i], sw.dim[2 + i], o.stride[i], o.dilation[i],
                      o.padding[i], &a.dim[2 - dims + i]) != TL_OK)
            return TL_NONE;
    const int64_t n = sx.dim[0], c = sw.dim[1];
    const tl_shape flip = TL_DIMS(1, 0, 2, 3, 4); /* swaps groups and samples */
    x = tl_reshape_at(at, x, TL_DIMS(n, g, c, dims == 2 ? sx.dim[2] : 1, sx.dim[dims + 1]));
    w = tl_reshape_at(at, w, TL_DIMS(g, outs / g, c, dims == 2 ? sw.dim[2] : 1, sw.dim[dims + 1]));
    tl_tensor y = tl_apply1(at, &tl_op_conv, &a,
                            (tl_tensor[]){tl_permute_at(at, x, flip), w, TL_NONE}, 3),
              by_sample = tl_permute_at(at, y, flip);
    const int64_t rows = a.dim[0].dim[0], cols = a.dim[1].dim[0];
    tl_shape sy = dims == 1 ? TL_DIMS(n, outs, cols) : TL_DIMS(n, outs, rows, cols);
    tl_tensor product[] = {y, by_sample, tl_reshape_at(at, by_sample, sy)};
    if (tl_is_none(o.bias))
        return product[2];
    tl_shape sb = tl_shape_of(at.tape, o.bias), one = {dims + 1, {outs, 1, 1}};
    if (sb.ndim != 1 || sb.dim[0] != outs)
        return tl_reject(at, TL_ESHAPE, "%s: the bias has shape %s; (%lld) is needed", name,
                         TL_TEXT_OF(&sb), (long long)outs);
    y = tl_add_at(at, product[2], tl_reshape_at(at, o.bias, one));
    for (int i = 0; i < 3; i++)
        tl_let_go_at(at, product[i]);
    return y;
}

tl_tensor tl_conv1d_at(tl_at at, tl_tensor x, tl_tensor w, tl_conv_options o)
{
    return conv(at, "conv1d", 1, x, w, o);
}
tl_tensor tl_conv2d_at(tl_at at, tl_tensor x, tl_tensor w, tl_conv_options o)
{
    return conv(at, "conv2d", 2, x, w, o);
}
