/* norms.c: cases of rms_norm's relatives: the weight 1 + gamma, add_rms_norm, layer_norm and its
 * gradient as an op, and of gradients through mean and rstd (NUMERICS 6). */
#include <math.h>
#include <string.h>

#include "tests/cases/cases.h"

/* eps = NaN stands for the compute type's epsilon. */
static double eps_of(const tl_case *c, const ref_tensor *x)
{
    return isnan(c->p[0]) ? (ref_compute(x->dtype) == REF_F64 ? 0x1p-52 : 0x1p-23) : c->p[0];
}

static int dims_of(const ref_tensor *gamma, const ref_tensor *beta)
{
    return gamma->data ? gamma->ndim : beta->data ? beta->ndim : 1;
}

/* 1 + gamma, rounded in the compute type. */
static ref_tensor plus_one(const ref_tensor *gamma, ref_dtype c)
{
    ref_tensor wide = ref_cast(gamma, c), w = ref_shift(&wide, 1);
    ref_free(&wide);
    return w;
}

/* p: eps */
static int b_plus_one(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_rms_norm_plus_one_at(TL_AT(t), in[0], in[1], c->p[0], &out[1]);
    return 2;
}

static void r_plus_one(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_tensor w = plus_one(&in[1], ref_compute(in[0].dtype));
    ref_rms_norm(&in[0], &w, w.ndim, eps_of(c, &in[0]), &out[0], &out[1]);
    ref_free(&w);
}

static void g_plus_one(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                       const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor w = plus_one(&in[1], ref_compute(in[0].dtype)), dx, dgamma;
    (void)c;
    ref_rms_norm_grad(dy, &in[0], &w, &out[1], w.ndim, &dx, &dgamma, &acc[1]);
    ref_free(&dgamma);
    ref_free(&w);
    tl_case_continue(&acc[0], dx);
}

/* in: x1, x2, gamma?; out: y, the sum, rstd */
static int b_add(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_add_rms_norm(t, in[0], in[1], in[2], c->p[0], &out[2], &out[1]);
    return 3;
}

/* The sum is rounded to its dtype first, as two ops would. */
static void r_add(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[1] = ref_add(&in[0], &in[1]);
    ref_rms_norm(&out[1], tl_case_opt(&in[2]), dims_of(&in[2], &in[2]), eps_of(c, &in[0]), &out[0],
                 &out[2]);
}

/* in: x, gamma?, beta?; out: y, mean, rstd */
static int b_layer(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_layer_norm_stats(t, in[0], in[1], in[2], c->p[0], &out[1], &out[2]);
    return 3;
}

/* lanes(x)/n */
static double row_mean(ref_dtype d, const double *x, int64_t n)
{
    ref_lanes l;
    ref_lanes_start(&l, d);
    for (int64_t i = 0; i < n; i++)
        ref_lanes_add(&l, i, x[i]);
    return ref_round(d, ref_lanes_sum(&l) / ref_round(d, (double)n));
}

static int64_t row_size(const ref_tensor *x, int k)
{
    int64_t n = 1;
    for (int d = x->ndim - k; d < x->ndim; d++)
        n *= x->dim[d];
    return n;
}

static ref_tensor new_stat(const ref_tensor *x, int k)
{
    ref_tensor s = *x;
    for (int d = x->ndim - k; d < x->ndim; d++)
        s.dim[d] = 1;
    return ref_like(&s, ref_compute(x->dtype));
}

enum { ROW = 512 };

/* A row of x: mean = lanes(x)/n, d = x - mean, rstd = rsqrt(lanes(d*d)/n + eps), h = d*rstd. */
static void standardized(const tl_case *c, const ref_tensor *x, int64_t r, int64_t n, double *h,
                         double *mean, double *rstd)
{
    ref_dtype d = ref_compute(x->dtype);
    double q[ROW] = {0};
    ref_check(n <= ROW, "layer_norm: a short row wanted");
    for (int64_t i = 0; i < n; i++)
        h[i] = ref_get(x, r * n + i);
    *mean = row_mean(d, h, n);
    for (int64_t i = 0; i < n; i++) {
        h[i] = ref_round(d, h[i] - *mean);
        q[i] = ref_round(d, h[i] * h[i]);
    }
    *rstd = ref_rsqrt1(d, ref_round(d, row_mean(d, q, n) + ref_round(d, eps_of(c, x))));
    for (int64_t i = 0; i < n; i++)
        h[i] = ref_round(d, h[i] * *rstd);
}

/* y = h*gamma + beta */
static void r_layer(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_dtype d = ref_compute(in[0].dtype);
    int k = dims_of(&in[1], &in[2]);
    int64_t n = row_size(&in[0], k);
    double y[ROW], mean, rstd;
    out[0] = ref_like(&in[0], in[0].dtype);
    out[1] = new_stat(&in[0], k);
    out[2] = new_stat(&in[0], k);
    for (int64_t r = 0; r < ref_numel(&out[1]); r++) {
        standardized(c, &in[0], r, n, y, &mean, &rstd);
        ref_set(&out[1], r, mean);
        ref_set(&out[2], r, rstd);
        for (int64_t i = 0; i < n; i++) {
            y[i] = in[1].data ? ref_round(d, y[i] * ref_get(&in[1], i)) : y[i];
            ref_set(&out[0], r * n + i,
                    in[2].data ? ref_round(d, y[i] + ref_get(&in[2], i)) : y[i]);
        }
    }
}

/* g = dy*gamma; dx = rstd*((g - mean(g)) - h*mean(g*h)); acc: fold over rows of dy*h in f64. */
static void layer_grad(const tl_case *c, const ref_tensor *dy, const ref_tensor *x,
                       const ref_tensor *gamma, int k, ref_tensor *dx, ref_tensor *acc)
{
    ref_dtype d = ref_compute(x->dtype);
    int64_t n = row_size(x, k), rows = n > 0 ? ref_numel(x) / n : 0;
    double h[ROW], g[ROW], gh[ROW], mean, rstd;
    for (int64_t r = 0; r < rows; r++) {
        standardized(c, x, r, n, h, &mean, &rstd);
        for (int64_t i = 0; i < n; i++) {
            double v = ref_get(dy, r * n + i);
            g[i] = gamma ? ref_round(d, v * ref_get(gamma, i)) : v;
            gh[i] = ref_round(d, g[i] * h[i]);
            if (acc)
                ref_set(acc, i, ref_get(acc, i) + ref_round(d, v * h[i]) + 0.0);
        }
        double mg = row_mean(d, g, n), mh = row_mean(d, gh, n);
        for (int64_t i = 0; dx && i < n; i++)
            ref_set(dx, r * n + i,
                    ref_round(d, rstd * ref_round(d, ref_round(d, g[i] - mg) -
                                                         ref_round(d, h[i] * mh))));
    }
}

static void g_layer(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                    const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor dx = ref_like(&in[0], in[0].dtype);
    (void)out;
    layer_grad(c, dy, &in[0], tl_case_opt(&in[1]), dims_of(&in[1], &in[2]), &dx,
               in[1].data ? &acc[1] : NULL);
    tl_case_continue(&acc[0], dx);
    if (in[2].data)
        tl_case_continue(&acc[2], ref_copy(dy));
}

/* in: dy, x, gamma?, acc?; mean and rstd are made from x. p: eps, k, outputs wanted: 1 dgamma, 2
 * dx, 3 both */
static int b_layer_grad(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    case_attrs a = {.bytes = {0}}, an = {.bytes = {0}};
    tl_tensor made[2], y[3];
    int wants = (int)c->p[2];
    tl_case_attr(&tl_op_layer_norm, &an, "eps", c->p[0]);
    tl_case_attr(&tl_op_layer_norm, &an, "k", c->p[1]);
    tl_apply(TL_AT(t), &tl_op_layer_norm, &an, (tl_tensor[]){in[1], TL_NONE, TL_NONE}, 3, y);
    tl_case_attr(&tl_op_layer_norm_grad, &a, "k", c->p[1]);
    tl_case_attr(&tl_op_layer_norm_grad, &a, "want_dgamma", wants & 1);
    tl_case_attr(&tl_op_layer_norm_grad, &a, "want_dx", wants >> 1);
    tl_apply(TL_AT(t), &tl_op_layer_norm_grad, &a,
             (tl_tensor[]){in[0], in[1], in[2], y[1], y[2], in[3]}, 6, made);
    out[0] = wants == 2 ? made[1] : made[0];
    out[1] = made[1];
    return wants == 3 ? 2 : 1;
}

static void r_layer_grad(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    int k = (int)c->p[1], wants = (int)c->p[2];
    const ref_tensor *gamma = tl_case_opt(&in[2]);
    ref_tensor dx = ref_like(&in[1], in[1].dtype), fold = {0};
    if (wants & 1)
        fold = in[3].data ? ref_copy(&in[3]) : ref_like(gamma, REF_F64);
    layer_grad(c, &in[0], &in[1], gamma, k, &dx, tl_case_opt(&fold) ? &fold : NULL);
    if (wants & 1)
        out[0] = in[3].data ? ref_copy(&fold) : ref_cast(&fold, ref_compute(in[1].dtype));
    ref_free(&fold);
    if (wants & 2)
        out[wants == 3] = dx;
    else
        ref_free(&dx);
}

/* ---- outputs that a program adds up: mean and rstd beside y ---- */

enum { Y, MEAN, RSTD, SUM, PARTS };

static bool taken(const tl_case *c, int part) { return (int)c->p[1] >> part & 1; }

/* in: as above (rms_norm: x, gamma?); out: the sum of those parts that p[1] has a bit for. p: eps,
 * parts */
static int b_parts(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    tl_tensor y[PARTS] = {TL_NONE};
    if (strcmp(c->op, "layer_norm") == 0)
        y[Y] = tl_layer_norm_stats(t, in[0], in[1], in[2], c->p[0], &y[MEAN], &y[RSTD]);
    else if (strcmp(c->op, "add_rms_norm") == 0)
        y[Y] = tl_add_rms_norm(t, in[0], in[1], in[2], c->p[0], &y[RSTD], &y[SUM]);
    else
        y[Y] = tl_rms_norm_rstd(t, in[0], in[1], c->p[0], &y[RSTD]);
    out[0] = TL_NONE;
    for (int i = 0; i < PARTS; i++)
        if (taken(c, i))
            out[0] = tl_is_none(out[0]) ? y[i] : tl_add(t, out[0], y[i]);
    return 1;
}

/* x is what is normalized: x, or x1 + x2 */
static void parts_of(const tl_case *c, const ref_tensor *in, ref_tensor *x, ref_tensor y[PARTS])
{
    ref_tensor o[3];
    memset(y, 0, PARTS * sizeof *y);
    if (strcmp(c->op, "layer_norm") == 0) {
        r_layer(c, in, o);
        y[Y] = o[0], y[MEAN] = o[1], y[RSTD] = o[2];
    } else if (strcmp(c->op, "add_rms_norm") == 0) {
        r_add(c, in, o);
        y[Y] = o[0], y[SUM] = o[1], y[RSTD] = o[2];
    } else {
        ref_rms_norm(&in[0], tl_case_opt(&in[1]), dims_of(&in[1], &in[1]), eps_of(c, &in[0]), &y[Y],
                     &y[RSTD]);
    }
    *x = ref_copy(y[SUM].data ? &y[SUM] : &in[0]);
}

static void add_to(ref_tensor *sum, const ref_tensor *x)
{
    ref_tensor both[2], old = *sum;
    if (old.data == NULL) {
        *sum = ref_copy(x);
        return;
    }
    tl_case_meet(&old, x, both);
    *sum = ref_add(&both[0], &both[1]);
    tl_case_free(2, both);
    ref_free(&old);
}

static void r_parts(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_tensor x, y[PARTS];
    parts_of(c, in, &x, y);
    out[0] = (ref_tensor){0};
    for (int i = 0; i < PARTS; i++)
        if (taken(c, i))
            add_to(&out[0], &y[i]);
    tl_case_free(PARTS, y);
    ref_free(&x);
}

/* What each part is owed: folded down to it, in its dtype. */
static void g_parts(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                    const ref_tensor *dy, ref_tensor *acc)
{
    bool layer = strcmp(c->op, "layer_norm") == 0, add = strcmp(c->op, "add_rms_norm") == 0;
    const ref_tensor *gamma = tl_case_opt(&in[add ? 2 : 1]);
    ref_tensor *ag = gamma ? &acc[add ? 2 : 1] : NULL, x, y[PARTS], d[PARTS] = {{0}}, dx = {0};
    int k = dims_of(&in[add ? 2 : 1], &in[layer ? 2 : add ? 2 : 1]);
    (void)out;
    parts_of(c, in, &x, y);
    for (int i = 0; i < PARTS; i++)
        if (taken(c, i)) {
            ref_tensor folded = ref_sum_to(dy, y[i].ndim, y[i].dim, NULL);
            d[i] = ref_cast(&folded, y[i].dtype);
            ref_free(&folded);
        }
    if (taken(c, Y) && layer) {
        dx = ref_like(&x, x.dtype);
        layer_grad(c, &d[Y], &x, gamma, k, &dx, ag);
        if (in[2].data)
            tl_case_continue(&acc[2], ref_copy(&d[Y]));
    } else if (taken(c, Y)) {
        ref_tensor dgamma = {0};
        ref_rms_norm_grad(&d[Y], &x, gamma, &y[RSTD], k, &dx, gamma ? &dgamma : NULL, ag);
        ref_free(&dgamma);
    }
    if (taken(c, MEAN) || taken(c, RSTD)) {
        ref_tensor e = ref_norm_stats_grad(&x, tl_case_opt(&y[MEAN]), &y[RSTD],
                                           tl_case_opt(&d[MEAN]), tl_case_opt(&d[RSTD]), k);
        add_to(&dx, &e);
        ref_free(&e);
    }
    if (taken(c, SUM)) {
        add_to(&d[SUM], &dx);
        ref_free(&dx);
        dx = ref_copy(&d[SUM]);
    }
    if (add)
        tl_case_continue(&acc[1], ref_copy(&dx));
    tl_case_continue(&acc[0], dx);
    tl_case_free(PARTS, y);
    tl_case_free(PARTS, d);
    ref_free(&x);
}

#define GRAD(f, a) .gradient = g_##f, .acc = a
const tl_case tl_cases_norms[] = {
    {.op = "rms_norm",
     "1 + gamma, 7",
     "*[3,7] *[7]",
     b_plus_one,
     r_plus_one,
     {1e-5},
     .rows = "bp",
     GRAD(plus_one, "cd")},
    {.op = "rms_norm",
     "1 + gamma, 33",
     "*[3,33]:strided *[33]:padded",
     b_plus_one,
     r_plus_one,
     {(double)NAN},
     .rows = "bp",
     GRAD(plus_one, "cd")},
    {.op = "rms_norm",
     "1 + gamma, k = 2",
     "*[2,3,5]:turned *[3,5]",
     b_plus_one,
     r_plus_one,
     {1e-5},
     .rows = "bp",
     GRAD(plus_one, "cd")},
    {.op = "rms_norm",
     "1 + f32 gamma",
     "bf16[3,7] f32[7]",
     b_plus_one,
     r_plus_one,
     {1e-5},
     .rows = "bp",
     GRAD(plus_one, "cd")},
    {.op = "add_rms_norm",
     "7",
     "*[3,7] *[3,7] *[7]",
     b_add,
     r_add,
     {1e-5},
     .rows = "bbp",
     .diff = 3},
    {.op = "add_rms_norm",
     "33",
     "*[2,33]:turned *[2,33]:padded *[33]:strided",
     b_add,
     r_add,
     {(double)NAN},
     .rows = "bbp",
     .diff = 2},
    {.op = "add_rms_norm", "y alone", "*[3,7] *[3,7] *[7]", b_add, r_add, {1e-5}, .rows = "bbp"},
    {.op = "add_rms_norm",
     "no gamma",
     "*[3,9] *[3,9] -",
     b_add,
     r_add,
     {1e-5},
     .rows = "bb-",
     .diff = 2},
    {.op = "add_rms_norm",
     "k = 2",
     "*[2,3,5] *[2,3,5] *[3,5]",
     b_add,
     r_add,
     {1e-5},
     .rows = "bbp",
     .diff = 3},
    {.op = "add_rms_norm",
     "f16, gamma f32",
     "f16[3,7] f16[3,7] f32[7]",
     b_add,
     r_add,
     {1e-5},
     .rows = "bbp",
     .diff = 3},
    {.op = "add_rms_norm", "no rows", "*[0,7] *[0,7] *[7]", b_add, r_add, {1e-5}, .diff = 2},
    {.op = "add_rms_norm",
     "many",
     "*[70,301] *[70,301] *[301]",
     b_add,
     r_add,
     {1e-5},
     .flags = CASE_BIG},
    {.op = "layer_norm",
     "7",
     "*[3,7] *[7] *[7]",
     b_layer,
     r_layer,
     {1e-5},
     .rows = "bpp",
     GRAD(layer, "cdd")},
    {.op = "layer_norm",
     "blocks of rows",
     "*[600,60] *[60] *[60]",
     b_layer,
     r_layer,
     {1e-5},
     GRAD(layer, "cdd"),
     .flags = CASE_NO_CHECK}, /* slow */
    {.op = "layer_norm",
     "31",
     "*[2,31]:padded *[31]:strided *[31]",
     b_layer,
     r_layer,
     {1e-5},
     .rows = "bpp",
     GRAD(layer, "cdd")},
    {.op = "layer_norm",
     "32",
     "*[2,32]:strided *[32] *[32]:padded",
     b_layer,
     r_layer,
     {(double)NAN},
     .rows = "bpp",
     GRAD(layer, "cdd")},
    {.op = "layer_norm",
     "33",
     "*[2,33]:turned *[33] *[33]",
     b_layer,
     r_layer,
     {1e-5},
     .rows = "bpp",
     GRAD(layer, "cdd")},
    {.op = "layer_norm",
     "no weights",
     "*[3,9] - -",
     b_layer,
     r_layer,
     {1e-5},
     .rows = "b--",
     GRAD(layer, "c--")},
    {.op = "layer_norm",
     "no beta",
     "*[3,9] *[9] -",
     b_layer,
     r_layer,
     {1e-5},
     .rows = "bp-",
     GRAD(layer, "cd-")},
    {.op = "layer_norm",
     "no gamma",
     "*[3,9] - *[9]",
     b_layer,
     r_layer,
     {1e-5},
     .rows = "b-p",
     GRAD(layer, "c-d")},
    {.op = "layer_norm",
     "k = 2",
     "*[2,3,5]:heads *[3,5]:turned *[3,5]",
     b_layer,
     r_layer,
     {1e-5},
     .rows = "bpp",
     GRAD(layer, "cdd")},
    {.op = "layer_norm",
     "an eps between two f32",
     "*[9,7] *[7] *[7]",
     b_layer,
     r_layer,
     {0x1.4000008p+2},
     .rows = "bpp",
     GRAD(layer, "cdd")},
    {.op = "layer_norm", "a row", "*[9] *[9] *[9]", b_layer, r_layer, {1e-5}},
    {.op = "layer_norm",
     "f16, weights f32",
     "f16[3,7] f32[7] f32[7]",
     b_layer,
     r_layer,
     {1e-5},
     .rows = "bpp",
     GRAD(layer, "cdd")},
    {.op = "layer_norm", "no rows", "*[0,7] *[7] *[7]", b_layer, r_layer, {1e-5}},
    {.op = "layer_norm",
     "many",
     "*[70,301] *[301] *[301]",
     b_layer,
     r_layer,
     {1e-5},
     .flags = CASE_BIG,
     GRAD(layer, "cdd")},
    {.op = "rms_norm",
     "rstd",
     "*[3,7] *[7]",
     b_parts,
     r_parts,
     {1e-5, (1 << RSTD)},
     .rows = "bp",
     GRAD(parts, "cd"),
     .flags = CASE_NO_CHECK}, /* the weights bring nothing */
    {.op = "rms_norm",
     "rstd, no gamma",
     "*[3,2,9] -",
     b_parts,
     r_parts,
     {1e-5, (1 << RSTD)},
     .rows = "b-",
     GRAD(parts, "c-")},
    {.op = "rms_norm",
     "y + rstd",
     "*[3,33]:turned *[33]:strided",
     b_parts,
     r_parts,
     {1e-5, (1 << Y) + (1 << RSTD)},
     .rows = "bp",
     GRAD(parts, "cd")},
    {.op = "rms_norm",
     "y + rstd, k = 2",
     "*[2,3,5]:turned *[3,5]",
     b_parts,
     r_parts,
     {(double)NAN, (1 << Y) + (1 << RSTD)},
     .rows = "bp",
     GRAD(parts, "cd")},
    {.op = "rms_norm",
     "y + rstd, f16, gamma f32",
     "f16[3,7] f32[7]",
     b_parts,
     r_parts,
     {1e-5, (1 << Y) + (1 << RSTD)},
     .rows = "bp",
     GRAD(parts, "cd")},
    {.op = "add_rms_norm",
     "rstd",
     "*[3,7] *[3,7] *[7]",
     b_parts,
     r_parts,
     {1e-5, (1 << RSTD)},
     .rows = "bbp",
     GRAD(parts, "ccd"),
     .flags = CASE_NO_CHECK}, /* the weights bring nothing */
    {.op = "add_rms_norm",
     "y + rstd",
     "*[2,33]:padded *[2,33] *[33]",
     b_parts,
     r_parts,
     {1e-5, (1 << Y) + (1 << RSTD)},
     .rows = "bbp",
     GRAD(parts, "ccd")},
    {.op = "add_rms_norm",
     "y + sum",
     "*[3,7] *[3,7] *[7]",
     b_parts,
     r_parts,
     {1e-5, (1 << Y) + (1 << SUM)},
     .rows = "bbp",
     GRAD(parts, "ccd")},
    {.op = "add_rms_norm",
     "rstd + sum",
     "*[3,9] *[3,9] -",
     b_parts,
     r_parts,
     {1e-5, (1 << RSTD) + (1 << SUM)},
     .rows = "bb-",
     GRAD(parts, "cc-")},
    {.op = "add_rms_norm",
     "y + rstd + sum",
     "*[2,3,5] *[2,3,5] *[3,5]",
     b_parts,
     r_parts,
     {1e-5, (1 << Y) + (1 << RSTD) + (1 << SUM)},
     .rows = "bbp",
     GRAD(parts, "ccd")},
    {.op = "layer_norm",
     "mean",
     "*[3,7] *[7] *[7]",
     b_parts,
     r_parts,
     {1e-5, (1 << MEAN)},
     .rows = "bpp",
     GRAD(parts, "cdd"),
     .flags = CASE_NO_CHECK}, /* the weights bring nothing */
    {.op = "layer_norm",
     "rstd",
     "*[3,7]:turned *[7] *[7]",
     b_parts,
     r_parts,
     {1e-5, (1 << RSTD)},
     .rows = "bpp",
     GRAD(parts, "cdd"),
     .flags = CASE_NO_CHECK}, /* the weights bring nothing */
    {.op = "layer_norm",
     "mean + rstd",
     "*[3,9] - -",
     b_parts,
     r_parts,
     {1e-5, (1 << MEAN) + (1 << RSTD)},
     .rows = "b--",
     GRAD(parts, "c--")},
    {.op = "layer_norm",
     "y + mean",
     "*[2,31]:padded *[31]:strided *[31]",
     b_parts,
     r_parts,
     {1e-5, (1 << Y) + (1 << MEAN)},
     .rows = "bpp",
     GRAD(parts, "cdd")},
    {.op = "layer_norm",
     "y + mean + rstd",
     "*[2,33] *[33] *[33]",
     b_parts,
     r_parts,
     {1e-5, (1 << Y) + (1 << MEAN) + (1 << RSTD)},
     .rows = "bpp",
     GRAD(parts, "cdd")},
    {.op = "layer_norm",
     "y + mean + rstd, k = 2",
     "*[2,3,5]:heads *[3,5]:turned *[3,5]",
     b_parts,
     r_parts,
     {1e-5, (1 << Y) + (1 << MEAN) + (1 << RSTD)},
     .rows = "bpp",
     GRAD(parts, "cdd")},
    {.op = "layer_norm",
     "y + rstd, bf16, weights f32",
     "bf16[3,7] f32[7] f32[7]",
     b_parts,
     r_parts,
     {1e-5, (1 << Y) + (1 << RSTD)},
     .rows = "bpp",
     GRAD(parts, "cdd")},
    {.op = "layer_norm",
     "all outputs",
     "*[3,7] *[7] *[7]",
     b_layer,
     r_layer,
     {1e-5},
     .rows = "bpp",
     .diff = 3},
    {.op = "layer_norm",
     "all outputs, no weights",
     "*[2,33] - -",
     b_layer,
     r_layer,
     {1e-5},
     .rows = "b--",
     .diff = 3},
    {.op = "rms_norm",
     "1 + gamma, and rstd",
     "*[3,7] *[7]",
     b_plus_one,
     r_plus_one,
     {1e-5},
     .rows = "bp",
     .diff = 2},
    {.op = "layer_norm_grad",
     "strips of columns",
     "*[37,203] *[37,203] *[203] -",
     b_layer_grad,
     r_layer_grad,
     {1e-5, 1, 3},
     .flags = CASE_BIG},
    {.op = "layer_norm_grad",
     "both",
     "*[3,7] *[3,7] *[7] -",
     b_layer_grad,
     r_layer_grad,
     {1e-5, 1, 3},
     .diff = 2},
    {.op = "layer_norm_grad",
     "both 33",
     "*[2,33]:turned *[2,33]:strided *[33] -",
     b_layer_grad,
     r_layer_grad,
     {1e-5, 1, 3},
     .diff = 2},
    {.op = "layer_norm_grad",
     "dx",
     "*[3,7] *[3,7] *[7] -",
     b_layer_grad,
     r_layer_grad,
     {1e-5, 1, 2},
     .rows = "bb--"},
    {.op = "layer_norm_grad",
     "no gamma",
     "*[3,9] *[3,9]:padded - -",
     b_layer_grad,
     r_layer_grad,
     {1e-5, 1, 2},
     .rows = "bb--"},
    {.op = "layer_norm_grad",
     "k = 2",
     "*[3,2,5] *[3,2,5] *[2,5] -",
     b_layer_grad,
     r_layer_grad,
     {1e-5, 2, 3},
     .diff = 2},
    {.op = "layer_norm_grad",
     "continued",
     "*[5,7] *[5,7] *[7] f64[7]:fixed",
     b_layer_grad,
     r_layer_grad,
     {1e-5, 1, 3},
     .diff = 2},
    {.op = "layer_norm_grad",
     "no rows",
     "*[0,7] *[0,7] *[7] -",
     b_layer_grad,
     r_layer_grad,
     {1e-5, 1, 3},
     .diff = 2},
    {.op = "layer_norm_grad",
     "many",
     "*[70,301] *[70,301] *[301] -",
     b_layer_grad,
     r_layer_grad,
     {1e-5, 1, 3},
     .diff = 2,
     .flags = CASE_BIG},
};
const int tl_cases_norms_count = sizeof tl_cases_norms / sizeof tl_cases_norms[0];
