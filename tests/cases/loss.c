/* loss.c: cases of cross_entropy and its gradient as an op: NUMERICS 6.5. */
#include "tests/cases/cases.h"

/* p: reduction, ignore_index (with ignore where < 100), count (0: none) */
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

/* in: z, targets, count?, total?; out: loss, total */
static int b_loss(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    const tl_op *op = tl_op_find("cross_entropy");
    case_attrs a = {.bytes = {0}};
    tl_tensor made[2];
    attrs(c, op, &a);
    tl_apply(TL_AT(t), op, &a, in, 4, made);
    out[0] = made[1];
    out[1] = made[0];
    return 2;
}

static void r_loss(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[1] = in[3].data ? ref_copy(&in[3]) : ref_new(REF_F64, 0, NULL);
    out[0] = ref_cross_entropy(&in[0], &in[1], options(c, &in[2]), ref_compute(in[0].dtype),
                               &out[1]);
}

static void g_loss(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                   const ref_tensor *dy, ref_tensor *acc)
{
    (void)out;
    tl_case_continue(&acc[0], ref_cross_entropy_grad(dy, &in[0], &in[1], options(c, &in[2])));
}

/* in: dy, z, targets, count? */
static int b_grad(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    const tl_op *op = tl_op_find("cross_entropy_grad");
    case_attrs a = {.bytes = {0}};
    attrs(c, op, &a);
    out[0] = tl_apply1(TL_AT(t), op, &a, in, 4);
    return 1;
}

static void r_grad(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_cross_entropy_grad(&in[0], &in[1], &in[2], options(c, &in[3]));
}

#define MEAN TL_MEAN, 100
#define SUM TL_SUM, 100
#define GRAD .gradient = g_loss, .acc = "c---"
const tl_case tl_cases_loss[] = {
    {.op = "cross_entropy", "mean", "*[4,3] i64[4]:below3 - -", b_loss, r_loss, {MEAN}, GRAD},
    {.op = "cross_entropy", "sum", "*[4,3] i64[4]:below3 - -", b_loss, r_loss, {SUM}, GRAD},
    {.op = "cross_entropy", "31", "*[3,31] i64[3]:below31 - -", b_loss, r_loss, {MEAN}, GRAD},
    {.op = "cross_entropy",
     "32 padded",
     "*[3,32]:padded i64[3]:below32:strided - -",
     b_loss,
     r_loss,
     {SUM},
     GRAD},
    {.op = "cross_entropy",
     "33 turned",
     "*[3,33]:turned i64[3]:below33 - -",
     b_loss,
     r_loss,
     {MEAN},
     GRAD},
    {.op = "cross_entropy",
     "300",
     "*[3,300] i64[3]:below300 - -",
     b_loss,
     r_loss,
     {MEAN},
     GRAD,
     .flags = CASE_NO_CHECK}, /* slow */
    {.op = "cross_entropy",
     "batch of rows",
     "*[2,3,5] i64[2,3]:below5 - -",
     b_loss,
     r_loss,
     {MEAN},
     GRAD},
    {.op = "cross_entropy",
     "batch of rows turned",
     "*[2,3,5]:heads i64[2,3]:below5:turned - -",
     b_loss,
     r_loss,
     {SUM},
     GRAD},
    {.op = "cross_entropy", "a row", "*[5] i64[]:below5 - -", b_loss, r_loss, {MEAN}, GRAD},
    {.op = "cross_entropy",
     "mean, some ignored",
     "*[9,3] i64[9]:below3 - -",
     b_loss,
     r_loss,
     {TL_MEAN, 1},
     GRAD},
    {.op = "cross_entropy",
     "sum, some ignored",
     "*[9,3] i64[9]:below3 - -",
     b_loss,
     r_loss,
     {TL_SUM, 0},
     GRAD},
    {.op = "cross_entropy",
     "ignore_index met by none",
     "*[4,3] i64[4]:below3 - -",
     b_loss,
     r_loss,
     {TL_MEAN, -1},
     GRAD},
    {.op = "cross_entropy",
     "all ignored",
     "*[4,3] i64[4]:below1 - -",
     b_loss,
     r_loss,
     {TL_SUM, 0},
     GRAD,
     .flags = CASE_NO_CHECK}, /* 0 */
    {.op = "cross_entropy",
     "mean of none",
     "*[4,3] i64[4]:below1 - -",
     b_loss,
     r_loss,
     {TL_MEAN, 0},
     .flags = CASE_NO_CHECK}, /* NaN */
    {.op = "cross_entropy",
     "mean by a count",
     "*[4,3] i64[4]:below3 f64[]:count7 -",
     b_loss,
     r_loss,
     {MEAN},
     GRAD},
    {.op = "cross_entropy",
     "count, some ignored",
     "*[9,3] i64[9]:below3 f64[]:count5 -",
     b_loss,
     r_loss,
     {TL_MEAN, 2},
     GRAD},
    {.op = "cross_entropy",
     "mean by a count that f32 lacks",
     "*[4,3] i64[4]:below3 f64[]:count16777219 -",
     b_loss,
     r_loss,
     {MEAN},
     GRAD},
    {.op = "cross_entropy",
     "sum with a count",
     "*[4,3] i64[4]:below3 f64[]:count7 -",
     b_loss,
     r_loss,
     {SUM},
     GRAD},
    {.op = "cross_entropy",
     "total continued",
     "*[4,3] i64[4]:below3 - f64[]:rate",
     b_loss,
     r_loss,
     {SUM},
     GRAD},
    {.op = "cross_entropy",
     "total and count",
     "*[4,3] i64[4]:below3 f64[]:count7 f64[]:rate",
     b_loss,
     r_loss,
     {MEAN},
     GRAD},
    {.op = "cross_entropy",
     "expanded",
     "*[3,4]:expanded i64[3]:below4 - -",
     b_loss,
     r_loss,
     {MEAN}},
    {.op = "cross_entropy",
     "no rows",
     "*[0,3] i64[0]:below3 - -",
     b_loss,
     r_loss,
     {SUM},
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "cross_entropy",
     "many",
     "*[90,200] i64[90]:below200 - -",
     b_loss,
     r_loss,
     {MEAN},
     .flags = CASE_BIG,
     GRAD},
    {.op = "cross_entropy_grad", "mean", "c[] *[4,3] i64[4]:below3 -", b_grad, r_grad, {MEAN}},
    {.op = "cross_entropy_grad",
     "sum",
     "c[] *[4,3] i64[4]:below3 -",
     b_grad,
     r_grad,
     {SUM},
     .rows = "-bb-"},
    {.op = "cross_entropy_grad",
     "33",
     "c[] *[3,33]:turned i64[3]:below33 -",
     b_grad,
     r_grad,
     {SUM},
     .rows = "-bb-"},
    {.op = "cross_entropy_grad",
     "some ignored",
     "c[] *[9,3] i64[9]:below3 -",
     b_grad,
     r_grad,
     {TL_MEAN, 1}},
    {.op = "cross_entropy_grad",
     "count",
     "c[] *[4,3]:strided i64[4]:below3 f64[]:count7",
     b_grad,
     r_grad,
     {MEAN},
     .rows = "-bb-"},
    {.op = "cross_entropy_grad",
     "batch of rows",
     "c[] *[2,3,5] i64[2,3]:below5 -",
     b_grad,
     r_grad,
     {TL_SUM, 2},
     .rows = "-bb-"},
    {.op = "cross_entropy_grad", "a row", "c[] *[5] i64[]:below5 -", b_grad, r_grad, {MEAN}},
    {.op = "cross_entropy_grad", "no rows", "c[] *[0,3] i64[0]:below3 -", b_grad, r_grad, {SUM}},
    {.op = "cross_entropy_grad",
     "many",
     "c[] *[90,200] i64[90]:below200 -",
     b_grad,
     r_grad,
     {MEAN},
     .flags = CASE_BIG},
};
const int tl_cases_loss_count = sizeof tl_cases_loss / sizeof tl_cases_loss[0];
