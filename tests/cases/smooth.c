/* smooth.c: cases of cross_entropy with label smoothing, of nll, and of their gradients as ops:
 * NUMERICS 6.9, 6.10. */
#include "tests/cases/cases.h"

/* p: reduction, ignore_index (with ignore where < 100), smoothing; of nll_grad: classes instead */
static void attrs(const tl_case *c, const tl_op *op, case_attrs *a)
{
    tl_case_attr(op, a, "reduction", c->p[0]);
    tl_case_attr(op, a, "ignore", c->p[1] < 100);
    tl_case_attr(op, a, "ignore_index", c->p[1] < 100 ? c->p[1] : 0);
}

static ref_loss_options options(const tl_case *c, const ref_tensor *count)
{
    int64_t n = count->data ? (int64_t)ref_get(count, 0) : -1;
    return (ref_loss_options){c->p[0] == TL_MEAN, c->p[1] < 100 ? (int64_t)c->p[1] : INT64_MIN, n};
}

/* in: values, targets, count?, total?; out: loss, total */
static int loss_of(tl_tape *t, const tl_tensor *in, const tl_op *op, case_attrs *a, tl_tensor *out)
{
    tl_tensor made[2];
    tl_apply(TL_AT(t), op, a, in, 4, made);
    out[0] = made[1];
    out[1] = made[0];
    return 2;
}

static int b_smooth(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    case_attrs a = {.bytes = {0}};
    attrs(c, &tl_op_cross_entropy, &a);
    tl_case_attr(&tl_op_cross_entropy, &a, "smoothing", c->p[2]);
    return loss_of(t, in, &tl_op_cross_entropy, &a, out);
}

static void r_smooth(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[1] = in[3].data ? ref_copy(&in[3]) : ref_new(REF_F64, 0, NULL);
    out[0] = ref_cross_entropy_smooth(&in[0], &in[1], options(c, &in[2]), c->p[2],
                                      ref_compute(in[0].dtype), &out[1]);
}

static void g_smooth(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                     const ref_tensor *dy, ref_tensor *acc)
{
    (void)out;
    tl_case_continue(&acc[0], ref_cross_entropy_smooth_grad(dy, &in[0], &in[1], options(c, &in[2]),
                                                            c->p[2]));
}

/* in: dy, z, targets, count? */
static int b_smooth_grad(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    case_attrs a = {.bytes = {0}};
    attrs(c, &tl_op_cross_entropy_grad, &a);
    tl_case_attr(&tl_op_cross_entropy_grad, &a, "smoothing", c->p[2]);
    out[0] = tl_apply1(TL_AT(t), &tl_op_cross_entropy_grad, &a, in, 4);
    return 1;
}

static void r_smooth_grad(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_cross_entropy_smooth_grad(&in[0], &in[1], &in[2], options(c, &in[3]), c->p[2]);
}

static int b_nll(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    case_attrs a = {.bytes = {0}};
    attrs(c, &tl_op_nll, &a);
    return loss_of(t, in, &tl_op_nll, &a, out);
}

static void r_nll(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[1] = in[3].data ? ref_copy(&in[3]) : ref_new(REF_F64, 0, NULL);
    out[0] = ref_nll(&in[0], &in[1], options(c, &in[2]), ref_compute(in[0].dtype), &out[1]);
}

static void g_nll(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                  const ref_tensor *dy, ref_tensor *acc)
{
    (void)out;
    tl_case_continue(&acc[0], ref_nll_grad(dy, &in[1], in[0].dim[in[0].ndim - 1],
                                           options(c, &in[2]), ref_compute(in[0].dtype)));
}

/* in: dy, targets, count? */
static int b_nll_grad(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    case_attrs a = {.bytes = {0}};
    attrs(c, &tl_op_nll_grad, &a);
    tl_case_attr(&tl_op_nll_grad, &a, "classes", c->p[2]);
    out[0] = tl_apply1(TL_AT(t), &tl_op_nll_grad, &a, in, 3);
    return 1;
}

static void r_nll_grad(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_nll_grad(&in[0], &in[1], (int64_t)c->p[2], options(c, &in[2]), in[0].dtype);
}

#define MEAN TL_MEAN, 100
#define SUM TL_SUM, 100
#define SMOOTH(name, in, flag, ...)                                                      \
    {                                                                                    \
        .op = "cross_entropy", "smoothed, " name, in, b_smooth, r_smooth, {__VA_ARGS__}, \
        .gradient = g_smooth, .acc = "c---", .flags = flag                               \
    }
#define SMOOTH_GRAD(name, in, how, ...)                                                  \
    {                                                                                    \
        .op = "cross_entropy_grad", "smoothed, " name, in, b_smooth_grad, r_smooth_grad, \
        {__VA_ARGS__}, .rows = how                                                       \
    }
#define NLL(name, in, flag, ...)                                                              \
    {                                                                                         \
        .op = "nll", name, in, b_nll, r_nll, {__VA_ARGS__}, .gradient = g_nll, .acc = "c---", \
        .flags = flag                                                                         \
    }
#define NLL_GRAD(name, in, how, ...)                                                   \
    {                                                                                  \
        .op = "nll_grad", name, in, b_nll_grad, r_nll_grad, {__VA_ARGS__}, .rows = how \
    }

const tl_case tl_cases_smooth[] = {
    SMOOTH("mean", "*[4,3] i64[4]:below3 - -", 0, MEAN, 0.1),
    SMOOTH("sum", "*[4,3] i64[4]:below3 - -", 0, SUM, 0.1),
    SMOOTH("31", "*[3,31] i64[3]:below31 - -", 0, MEAN, 0.2),
    SMOOTH("32 padded", "*[3,32]:padded i64[3]:below32:strided - -", 0, SUM, 0.3),
    SMOOTH("33 turned", "*[3,33]:turned i64[3]:below33 - -", 0, MEAN, 0.7),
    SMOOTH("nearly", "*[4,3] i64[4]:below3 - -", 0, MEAN, 0.9), /* 1 - e, but not 1 - r */
    SMOOTH("wholly", "*[4,3] i64[4]:below3 - -", 0, SUM, 1),
    SMOOTH("300", "*[3,300] i64[3]:below300 - -", CASE_NO_CHECK, MEAN, 0.1), /* slow */
    SMOOTH("batch of rows", "*[2,3,5] i64[2,3]:below5 - -", 0, MEAN, 0.1),
    SMOOTH("batch of rows turned", "*[2,3,5]:heads i64[2,3]:below5:turned - -", 0, SUM, 0.1),
    SMOOTH("a row", "*[5] i64[]:below5 - -", 0, MEAN, 0.1),
    SMOOTH("some ignored", "*[9,3] i64[9]:below3 - -", 0, TL_MEAN, 1, 0.1),
    SMOOTH("all ignored", "*[4,3] i64[4]:below1 - -", CASE_NO_CHECK, TL_SUM, 0, 0.1), /* 0 */
    SMOOTH("count, some ignored", "*[9,3] i64[9]:below3 f64[]:count5 -", 0, TL_MEAN, 2, 0.1),
    SMOOTH("total continued", "*[4,3] i64[4]:below3 - f64[]:rate", 0, SUM, 0.1),
    SMOOTH("one class", "*[3,1] i64[3]:below1 - -", CASE_NO_CHECK, SUM, 0.1),
    SMOOTH("no rows", "*[0,3] i64[0]:below3 - -", CASE_NO_CHECK, SUM, 0.1), /* no elements */
    SMOOTH("many", "*[90,200] i64[90]:below200 - -", CASE_BIG, MEAN, 0.1),
    SMOOTH_GRAD("mean", "c[] *[4,3] i64[4]:below3 -", NULL, MEAN, 0.1),
    SMOOTH_GRAD("sum", "c[] *[4,3] i64[4]:below3 -", "-bb-", SUM, 0.1),
    SMOOTH_GRAD("33", "c[] *[3,33]:turned i64[3]:below33 -", "-bb-", SUM, 0.3),
    SMOOTH_GRAD("some ignored", "c[] *[9,3] i64[9]:below3 -", NULL, TL_MEAN, 1, 0.1),
    SMOOTH_GRAD("count", "c[] *[2,3,5]:strided i64[2,3]:below5 f64[]:count7", "-bb-", MEAN, 0.1),
    NLL("mean", "*[4,3] i64[4]:below3 - -", 0, MEAN),
    NLL("sum", "*[4,3] i64[4]:below3 - -", 0, SUM),
    NLL("33 turned", "*[3,33]:turned i64[3]:below33 - -", 0, MEAN),
    NLL("32 padded", "*[3,32]:padded i64[3]:below32:strided - -", 0, SUM),
    NLL("batch of rows", "*[2,3,5]:heads i64[2,3]:below5:turned - -", 0, MEAN),
    NLL("a row", "*[5] i64[]:below5 - -", 0, MEAN),
    NLL("mean, some ignored", "*[9,3] i64[9]:below3 - -", 0, TL_MEAN, 1),
    NLL("sum, some ignored", "*[9,3] i64[9]:below3 - -", 0, TL_SUM, 0),
    NLL("all ignored", "*[4,3] i64[4]:below1 - -", CASE_NO_CHECK, TL_SUM, 0), /* 0 */
    {.op = "nll",
     "mean of none",
     "*[4,3] i64[4]:below1 - -",
     b_nll,
     r_nll,
     {TL_MEAN, 0},
     .flags = CASE_NO_CHECK}, /* NaN */
    NLL("mean by a count", "*[4,3] i64[4]:below3 f64[]:count7 -", 0, MEAN),
    NLL("mean by a count that f32 lacks", "*[4,3] i64[4]:below3 f64[]:count16777219 -", 0, MEAN),
    NLL("sum with a count", "*[4,3] i64[4]:below3 f64[]:count7 -", 0, SUM),
    NLL("total continued", "*[4,3] i64[4]:below3 - f64[]:rate", 0, SUM),
    NLL("total and count", "*[4,3] i64[4]:below3 f64[]:count7 f64[]:rate", 0, MEAN),
    {.op = "nll", "expanded", "*[3,4]:expanded i64[3]:below4 - -", b_nll, r_nll, {MEAN}},
    NLL("no rows", "*[0,3] i64[0]:below3 - -", CASE_NO_CHECK, SUM),
    NLL("many", "*[900,20] i64[900]:below20 - -", CASE_BIG, MEAN),
    NLL_GRAD("mean", "c[] i64[4]:below3 -", NULL, MEAN, 3),
    NLL_GRAD("sum", "c[] i64[4]:below3 -", "-b-", SUM, 3),
    NLL_GRAD("batch of rows", "c[] i64[2,3]:below5:turned -", "-b-", SUM, 5),
    NLL_GRAD("33, some ignored", "c[] i64[9]:below33:strided -", NULL, TL_MEAN, 1, 33),
    NLL_GRAD("count", "c[] i64[4]:below3 f64[]:count7", "-b-", MEAN, 3),
    NLL_GRAD("a row", "c[] i64[]:below5 -", NULL, MEAN, 5),
    {.op = "nll_grad",
     "no rows",
     "c[] i64[0]:below3 -",
     b_nll_grad,
     r_nll_grad,
     {SUM, 3},
     .flags = CASE_NO_CHECK}, /* no elements */
    NLL_GRAD("many", "f32[] i64[900]:below20 -", NULL, SUM, 20),
};
const int tl_cases_smooth_count = sizeof tl_cases_smooth / sizeof tl_cases_smooth[0];
