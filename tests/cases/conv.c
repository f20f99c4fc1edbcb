/* conv.c: cases of conv1d, conv2d, pooling and pad: NUMERICS 5.8, 4.8, 9.6. */
#include "tests/cases/cases.h"

/* p: stride, padding and dilation of two dims, groups. A 3-d x has one row. */
static ref_window window(const tl_case *c)
{
    const double *p = c->p;
    return (ref_window){.stride = {(int64_t)p[0], (int64_t)p[1]},
                        .pad = {(int64_t)p[2], (int64_t)p[3]},
                        .dilation = {(int64_t)p[4], (int64_t)p[5]},
                        .groups = (int64_t)p[6]};
}

/* (n, c, l) as (n, c, 1, l). */
static ref_tensor lifted(const ref_tensor *x)
{
    int64_t dim[4] = {x->dim[0], x->dim[1], 1, x->dim[2]};
    return x->ndim == 4 ? tl_case_shaped(x, 4, x->dim) : tl_case_shaped(x, 4, dim);
}

static ref_tensor lowered(ref_tensor y, int ndim)
{
    if (ndim == 3) {
        y.ndim = 3;
        y.dim[2] = y.dim[3];
    }
    return y;
}

static int b_conv(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    ref_window s = window(c);
    tl_conv_options o = {.groups = s.groups, .bias = in[2]};
    bool one = tl_shape_of(t, in[0]).ndim == 3;
    for (int i = 0; i < (one ? 1 : 2); i++) {
        o.stride[i] = s.stride[i + one];
        o.padding[i] = s.pad[i + one];
        o.dilation[i] = s.dilation[i + one];
    }
    out[0] = one ? tl_conv1d_at(TL_AT(t), in[0], in[1], o)
                 : tl_conv2d_at(TL_AT(t), in[0], in[1], o);
    return 1;
}

static void r_conv(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_window s = window(c);
    ref_tensor x = lifted(&in[0]), w = lifted(&in[1]),
               y = lowered(ref_conv(&x, &w, &s), in[0].ndim);
    out[0] = y;
    if (in[2].data == NULL)
        return;
    int64_t dim[3] = {in[2].dim[0], 1, 1};
    ref_tensor bias = tl_case_shaped(&in[2], in[0].ndim - 1, dim), both[2];
    tl_case_meet(&y, &bias, both);
    out[0] = ref_add(&both[0], &both[1]);
    tl_case_free(2, both);
    ref_free(&y);
}

static void g_conv(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                   const ref_tensor *dy, ref_tensor *acc)
{
    ref_window s = window(c);
    ref_tensor x = lifted(&in[0]), w = lifted(&in[1]), d = lifted(dy);
    (void)out;
    if (acc[0].data != NULL) {
        ref_tensor dx = ref_conv_dx(&d, &w, x.dim, &s);
        tl_case_continue(&acc[0], lowered(dx, in[0].ndim));
    }
    if (acc[1].data != NULL) {
        ref_tensor dw = lifted(&acc[1]);
        ref_conv_dw(&d, &x, &s, &dw);
    }
    if (acc[2].data != NULL) {
        int64_t dim[3] = {in[2].dim[0], 1, 1};
        ref_tensor b = tl_case_shaped(&acc[2], in[0].ndim - 1, dim);
        tl_case_continue(&b, ref_copy(dy));
    }
}

/* p: kernel, stride, padding, dilation of two dims */
static ref_window pooled(const tl_case *c)
{
    const double *p = c->p;
    return (ref_window){.kernel = {(int64_t)p[0], (int64_t)p[1]},
                        .stride = {(int64_t)p[2], (int64_t)p[3]},
                        .pad = {(int64_t)p[4], (int64_t)p[5]},
                        .dilation = {(int64_t)p[6], (int64_t)p[7]}};
}

static tl_pool_options options(tl_tape *t, const tl_case *c, tl_tensor x, bool *one)
{
    ref_window s = pooled(c);
    tl_pool_options o = {.padding = {0}};
    *one = tl_shape_of(t, x).ndim == 3;
    for (int i = 0; i < (*one ? 1 : 2); i++) {
        o.kernel[i] = s.kernel[i + *one];
        o.stride[i] = s.stride[i + *one];
        o.padding[i] = s.pad[i + *one];
        o.dilation[i] = s.dilation[i + *one];
    }
    return o;
}

static int b_max(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    bool one;
    tl_pool_options o = options(t, c, in[0], &one);
    out[0] = one ? tl_max_pool1d_at(TL_AT(t), in[0], o) : tl_max_pool2d_at(TL_AT(t), in[0], o);
    return 1;
}

static int b_avg(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    bool one;
    tl_pool_options o = options(t, c, in[0], &one);
    out[0] = one ? tl_avg_pool1d_at(TL_AT(t), in[0], o) : tl_avg_pool2d_at(TL_AT(t), in[0], o);
    return 1;
}

static ref_tensor flat(const ref_tensor *x)
{
    return tl_case_shaped(x, 3, (int64_t[]){x->dim[0], x->dim[1], x->dim[2] * x->dim[3]});
}

static void r_max(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_window s = pooled(c);
    ref_tensor x = lifted(&in[0]), ids = ref_pool_places(&x, &s), fx = flat(&x), fi = flat(&ids),
               y = ref_gather(&fx, &fi, 2);
    ref_tensor shaped = tl_case_shaped(&y, 4, ids.dim);
    out[0] = lowered(shaped, in[0].ndim);
    ref_free(&ids);
}

static void g_max(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                  const ref_tensor *dy, ref_tensor *acc)
{
    ref_window s = pooled(c);
    ref_tensor x = lifted(&in[0]), ids = ref_pool_places(&x, &s), fx = flat(&x), fi = flat(&ids),
               d = lifted(dy), fd = flat(&d), fa = ref_scatter_add_dim(&fd, &fi, 2, 3, fx.dim);
    ref_tensor shaped = tl_case_shaped(&fa, in[0].ndim, in[0].dim);
    (void)out;
    tl_case_continue(&acc[0], ref_cast(&shaped, in[0].dtype));
    ref_free(&fa);
    ref_free(&ids);
}

static void r_avg(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_window s = pooled(c);
    ref_tensor x = lifted(&in[0]);
    out[0] = lowered(ref_avg_pool(&x, &s), in[0].ndim);
}

/* 4.8: 5.8's dx for dy divided by the window's size; each channel is a sample of one. */
static void g_avg(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                  const ref_tensor *dy, ref_tensor *acc)
{
    const ref_dtype d = ref_compute(in[0].dtype);
    ref_window s = pooled(c);
    const int64_t size = s.kernel[0] * s.kernel[1], kernel[4] = {1, 1, s.kernel[0], s.kernel[1]};
    ref_tensor x = lifted(&in[0]), g = lifted(dy), share = ref_like(&g, d),
               ones = ref_new(d, 4, kernel);
    const int64_t dim[4] = {x.dim[0] * x.dim[1], 1, x.dim[2], x.dim[3]};
    (void)out;
    s.groups = 1;
    for (int64_t i = 0; i < ref_numel(&g); i++)
        ref_set(&share, i, ref_round(d, ref_get(&g, i) / (double)size));
    for (int64_t i = 0; i < size; i++)
        ref_set(&ones, i, 1);
    share.dim[0] *= share.dim[1];
    share.dim[1] = 1;
    ref_tensor dx = ref_conv_dx(&share, &ones, dim, &s),
               shaped = tl_case_shaped(&dx, in[0].ndim, in[0].dim);
    tl_case_continue(&acc[0], ref_cast(&shaped, in[0].dtype));
    tl_case_free(3, (ref_tensor[]){share, ones, dx});
}

/* p: dim, before, after, value */
static int b_pad(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_pad(t, in[0], (int)c->p[0], (int64_t)c->p[1], (int64_t)c->p[2], c->p[3]);
    return 1;
}

static ref_tensor constant(const ref_tensor *x, int d, int64_t n, double value)
{
    ref_tensor y = {.ndim = x->ndim};
    for (int i = 0; i < x->ndim; i++)
        y.dim[i] = i == d ? n : x->dim[i];
    y = ref_new(x->dtype, y.ndim, y.dim);
    for (int64_t i = 0; i < ref_numel(&y); i++)
        x->dtype == REF_I64 ? ref_set_i64(&y, i, (int64_t)value) : ref_set(&y, i, value);
    return y;
}

static void r_pad(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    int d = (int)(c->p[0] < 0 ? c->p[0] + in[0].ndim : c->p[0]);
    ref_tensor before = constant(&in[0], d, (int64_t)c->p[1], c->p[3]),
               after = constant(&in[0], d, (int64_t)c->p[2], c->p[3]);
    out[0] = ref_concat(3, (const ref_tensor *[]){&before, &in[0], &after}, d);
    ref_free(&before);
    ref_free(&after);
}

#define PLAIN 1, 1, 0, 0, 1, 1, 1
#define CONV(name, in, how, ...)                                                                \
    {                                                                                           \
        .op = "conv", name, in, b_conv, r_conv, {__VA_ARGS__}, .rows = how, .gradient = g_conv, \
        .acc = "ccd"                                                                            \
    }
#define POOL(f, op_, name, in, how, ...)                                          \
    {                                                                             \
        .op = op_, #f " pool " name, in, b_##f, r_##f, {__VA_ARGS__}, .rows = how \
    }
#define AVERAGE(name, in, ...)                                                        \
    {                                                                                 \
        .op = "conv", "avg pool " name, in, b_avg, r_avg, {__VA_ARGS__}, .rows = "b", \
        .gradient = g_avg, .acc = "c"                                                 \
    }
#define PAD(name, in, how, ...)                                                   \
    {                                                                             \
        .op = "concat", "pad " name, in, b_pad, r_pad, {__VA_ARGS__}, .rows = how \
    }

const tl_case tl_cases_conv[] = {
    CONV("3 by 3", "*[2,2,4,5] *[3,2,3,3] -", "bp-", PLAIN),
    CONV("with a bias", "*[3,1,4,4] *[2,1,2,3] *[2]", "bpp", PLAIN),
    CONV("padded", "*[2,2,3,4] *[2,2,3,2] -", "bp-", 1, 1, 1, 2, 1, 1, 1),
    CONV("stride", "*[2,1,6,5] *[2,1,3,2] -", "bp-", 2, 3, 0, 1, 1, 1, 1),
    CONV("dilated", "*[2,1,5,6] *[2,1,2,3] -", "bp-", 1, 1, 1, 0, 2, 2, 1),
    CONV("everything", "*[2,4,6,5] *[4,2,3,2] *[4]", "bpp", 2, 2, 2, 1, 2, 3, 2),
    CONV("each channel alone", "*[2,3,4,4] *[3,1,2,2] -", "bp-", 1, 1, 1, 1, 1, 1, 3),
    CONV("1 by 1", "*[2,3,3,2] *[4,3,1,1] -", "bp-", PLAIN),
    /* the first places lie in zeros: their gradient begins between elements of dy */
    CONV("1 by 1, padded, stride", "*[2,1,4,5] *[2,1,1,1] -", "bp-", 2, 3, 1, 2, 1, 1, 1),
    CONV("larger than x", "*[2,1,2,2] *[2,1,4,3] -", "bp-", 1, 1, 1, 1, 1, 1, 1),
    CONV("views", "*[2,2,4,5]:heads *[3,2,3,3]:turned -", "bp-", 1, 1, 1, 1, 1, 1, 1),
    CONV("strided x", "*[2,2,3,6]:strided *[3,2,2,3]:padded -", "bp-", PLAIN),
    CONV("1d", "*[2,3,9] *[4,3,3] *[4]", "bpp", 1, 2, 0, 1, 1, 1, 1),
    CONV("1d dilated in groups", "*[3,4,9]:turned *[6,2,3] -", "bp-", 1, 1, 0, 2, 1, 2, 2),
    CONV("f16 and f32", "f16[2,2,3,3] f32[2,2,2,2] -", "bp-", PLAIN),
    CONV("f32 and bf16", "f32[2,2,3,3] bf16[2,2,2,2] -", "bp-", PLAIN),
    CONV("bf16 and f16", "bf16[2,2,3,3] f16[2,2,2,2] bf16[2]", "bpp", PLAIN),
    {.op = "conv",
     "no samples",
     "*[0,2,4,4] *[3,2,3,3] -",
     b_conv,
     r_conv,
     {PLAIN},
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "conv",
     "wide",
     "*[2,3,7,40] *[5,3,3,3] -",
     b_conv,
     r_conv,
     {1, 1, 1, 1, 1, 1, 1},
     .rows = "bp-",
     .gradient = g_conv,
     .acc = "ccd",
     .flags = CASE_NO_CHECK}, /* slow */
    {.op = "conv",
     "many",
     "*[9,8,28,30] *[20,8,3,3] -",
     b_conv,
     r_conv,
     {1, 1, 1, 1, 1, 1, 1},
     .gradient = g_conv,
     .acc = "ccd",
     .flags = CASE_BIG},
    {.op = "conv",
     "one large sample",
     "*[1,16,40,40] *[24,16,5,5] -",
     b_conv,
     r_conv,
     {2, 2, 2, 2, 1, 1, 1},
     .gradient = g_conv,
     .acc = "ccd",
     .flags = CASE_BIG},
    {.op = "gather",
     "max pool 2 by 2",
     "*[2,3,4,6]:apart",
     b_max,
     r_max,
     {2, 2, 2, 2, 0, 0, 1, 1},
     .rows = "b",
     .gradient = g_max,
     .acc = "c"},
    {.op = "gather",
     "max pool overlapping",
     "*[2,2,5,6]:apart:turned",
     b_max,
     r_max,
     {3, 2, 1, 2, 1, 1, 1, 2},
     .rows = "b",
     .gradient = g_max,
     .acc = "c"},
    {.op = "gather",
     "max pool 1d",
     "*[2,3,9]:apart",
     b_max,
     r_max,
     {1, 3, 1, 2, 0, 1, 1, 1},
     .rows = "b",
     .gradient = g_max,
     .acc = "c"},
    POOL(max, "pool_places", "places", "*[2,2,5,5]:apart", "b", 2, 3, 1, 2, 1, 0, 1, 1),
    POOL(max, "pool_places", "of all", "*[2,2,3,4]:apart", "b", 3, 4, 1, 1, 0, 0, 1, 1),
    {.op = "pool_places",
     "many",
     "*[9,8,28,30]",
     b_max,
     r_max,
     {2, 2, 2, 2, 0, 0, 1, 1},
     .flags = CASE_BIG},
    AVERAGE("2 by 2", "*[2,3,4,6]", 2, 2, 2, 2, 0, 0, 1, 1),
    AVERAGE("overlapping", "*[2,2,5,6]:turned", 3, 2, 1, 2, 1, 1, 1, 2),
    AVERAGE("1d", "*[2,3,9]", 1, 3, 1, 2, 0, 1, 1, 1),
    PAD("columns", "*[2,3,4]", "b", -1, 2, 1, 0.5),
    PAD("rows", "*[3,4]:turned", NULL, 0, 1, 0, -2),
    {.op = "concat",
     "pad middle of ids",
     "i64[2,3,2]:fixed",
     b_pad,
     r_pad,
     {1, 0, 2, 7},
     .rows = "b",
     .flags = CASE_NO_CHECK}, /* no float */
};
const int tl_cases_conv_count = sizeof tl_cases_conv / sizeof tl_cases_conv[0];
