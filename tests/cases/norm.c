/* norm.c: cases of rms_norm and its gradient as an op: NUMERICS 6.1, 6.2. */
#include <math.h>

#include "tests/cases/cases.h"

/* p: eps, k where gamma is absent (1) */
static int b_rms_norm(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_rms_norm_rstd(t, in[0], in[1], c->p[0], &out[1]);
    return 2;
}

/* eps = NaN stands for the compute type's epsilon. */
static double eps_of(const tl_case *c, const ref_tensor *x)
{
    return isnan(c->p[0]) ? (ref_compute(x->dtype) == REF_F64 ? 0x1p-52 : 0x1p-23) : c->p[0];
}

static void r_rms_norm(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    const ref_tensor *gamma = tl_case_opt(&in[1]);
    ref_rms_norm(&in[0], gamma, gamma ? gamma->ndim : 1, eps_of(c, &in[0]), &out[0], &out[1]);
}

static void g_rms_norm(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                       const ref_tensor *dy, ref_tensor *acc)
{
    const ref_tensor *gamma = tl_case_opt(&in[1]);
    ref_tensor dx, dgamma = {0};
    (void)c;
    ref_rms_norm_grad(dy, &in[0], gamma, &out[1], gamma ? gamma->ndim : 1, &dx,
                      gamma ? &dgamma : NULL, gamma ? &acc[1] : NULL);
    ref_free(&dgamma);
    tl_case_continue(&acc[0], dx);
}

/* in: dy, x, gamma?, acc?; rstd is made from x, as it is in a program. p: eps, k, outputs wanted: 1
 * dgamma, 2 dx, 3 both */
static int b_grad(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    const tl_op *op = tl_op_find("rms_norm_grad"), *norm = tl_op_find("rms_norm");
    case_attrs a = {.bytes = {0}}, an = {.bytes = {0}};
    tl_tensor made[2], y[2];
    int wants = (int)c->p[2];
    tl_case_attr(norm, &an, "eps", c->p[0]);
    tl_case_attr(norm, &an, "k", c->p[1]);
    tl_apply(TL_AT(t), norm, &an, (tl_tensor[]){in[1], TL_NONE}, 2, y);
    tl_case_attr(op, &a, "k", c->p[1]);
    tl_case_attr(op, &a, "want_dgamma", wants & 1);
    tl_case_attr(op, &a, "want_dx", wants >> 1);
    tl_apply(TL_AT(t), op, &a, (tl_tensor[]){in[0], in[1], in[2], y[1], in[3]}, 5, made);
    out[0] = wants == 2 ? made[1] : made[0];
    out[1] = made[1];
    return wants == 3 ? 2 : 1;
}

static void r_grad(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    int k = (int)c->p[1], wants = (int)c->p[2];
    ref_tensor rstd, dx = {0}, acc = in[3].data ? ref_copy(&in[3]) : (ref_tensor){0};
    ref_rms_norm(&in[1], NULL, k, eps_of(c, &in[1]), NULL, &rstd);
    if (wants & 1)
        ref_rms_norm_grad(&in[0], &in[1], tl_case_opt(&in[2]), &rstd, k, NULL, &out[0],
                          tl_case_opt(&acc) ? &acc : NULL);
    if (wants & 2)
        ref_rms_norm_grad(&in[0], &in[1], tl_case_opt(&in[2]), &rstd, k, &dx, NULL, NULL);
    if (acc.data) { /* the continued accumulator is the output */
        ref_free(&out[0]);
        out[0] = acc;
    }
    ref_free(&rstd);
    if (wants & 2)
        out[wants == 3] = dx;
}

#define GRAD .gradient = g_rms_norm, .acc = "cd"
const tl_case tl_cases_norm[] = {
    {.op = "rms_norm", "7", "*[3,7] *[7]", b_rms_norm, r_rms_norm, {1e-5}, .rows = "bp", GRAD},
    {.op = "rms_norm",
     "31",
     "*[4,31] *[31]:strided",
     b_rms_norm,
     r_rms_norm,
     {1e-6},
     .rows = "bp",
     GRAD},
    {.op = "rms_norm",
     "32",
     "*[2,32]:padded *[32]",
     b_rms_norm,
     r_rms_norm,
     {1e-6},
     .rows = "bp",
     GRAD},
    {.op = "rms_norm",
     "33",
     "*[33,33] *[33]",
     b_rms_norm,
     r_rms_norm,
     {1e-6},
     .rows = "bp",
     GRAD,
     .flags = CASE_NO_CHECK}, /* slow */
    {.op = "rms_norm",
     "blocks of rows",
     "*[20,2100] *[2100]",
     b_rms_norm,
     r_rms_norm,
     {1e-6},
     GRAD,
     .flags = CASE_NO_CHECK}, /* slow */
    {.op = "rms_norm", "one", "*[3,1] *[1]", b_rms_norm, r_rms_norm, {0.1}, .rows = "bp", GRAD},
    {.op = "rms_norm", "a row", "*[9] *[9]", b_rms_norm, r_rms_norm, {1e-6}, GRAD},
    {.op = "rms_norm",
     "no gamma",
     "*[3,2,9] -",
     b_rms_norm,
     r_rms_norm,
     {1e-6},
     .rows = "b-",
     GRAD},
    {.op = "rms_norm",
     "no gamma turned",
     "*[3,9]:turned -",
     b_rms_norm,
     r_rms_norm,
     {1e-6},
     .rows = "b-",
     GRAD},
    {.op = "rms_norm",
     "k = 2",
     "*[2,3,4,8] *[4,8]",
     b_rms_norm,
     r_rms_norm,
     {1e-6},
     .rows = "bp",
     GRAD},
    {.op = "rms_norm",
     "k = 2 turned",
     "*[3,4,8]:turned *[4,8]:turned",
     b_rms_norm,
     r_rms_norm,
     {1e-6},
     .rows = "bp",
     GRAD},
    {.op = "rms_norm", "k = 3 of 3", "*[2,3,5] *[2,3,5]", b_rms_norm, r_rms_norm, {1e-6}, GRAD},
    {.op = "rms_norm",
     "k = 1 of 4",
     "*[2,3,2,5]:heads *[5]",
     b_rms_norm,
     r_rms_norm,
     {1e-6},
     .rows = "bp",
     GRAD},
    {.op = "rms_norm",
     "eps = 0",
     "*[3,7]:away *[7]",
     b_rms_norm,
     r_rms_norm,
     {0},
     .rows = "bp",
     GRAD},
    {.op = "rms_norm",
     "eps by default",
     "*[3,7] *[7]",
     b_rms_norm,
     r_rms_norm,
     {(double)NAN},
     .rows = "bp",
     GRAD},
    {.op = "rms_norm",
     "f16, gamma f32",
     "f16[3,7] f32[7]",
     b_rms_norm,
     r_rms_norm,
     {1e-6},
     .rows = "bp",
     GRAD},
    {.op = "rms_norm",
     "bf16, gamma f32",
     "bf16[3,2,33] f32[2,33]",
     b_rms_norm,
     r_rms_norm,
     {1e-6},
     .rows = "bp",
     GRAD},
    {.op = "rms_norm", "expanded", "*[3,4]:expanded *[4]", b_rms_norm, r_rms_norm, {1e-6}},
    {.op = "rms_norm", "no rows", "*[0,4] *[4]", b_rms_norm, r_rms_norm, {1e-6}, GRAD},
    {.op = "rms_norm",
     "many",
     "*[70,301] *[301]",
     b_rms_norm,
     r_rms_norm,
     {1e-6},
     .flags = CASE_BIG,
     GRAD},
    {.op = "rms_norm", "and rstd", "*[3,7] *[7]", b_rms_norm, r_rms_norm, {1e-5}, .diff = 2},
    {.op = "rms_norm", "and rstd, 33", "*[2,33] -", b_rms_norm, r_rms_norm, {1e-5}, .diff = 2},
    {.op = "rms_norm_grad",
     "strips of columns",
     "*[37,203] *[37,203] *[203] -",
     b_grad,
     r_grad,
     {1e-5, 1, 3},
     .flags = CASE_BIG},
    {.op = "rms_norm_grad",
     "both",
     "*[3,7] *[3,7] *[7] -",
     b_grad,
     r_grad,
     {1e-5, 1, 3},
     .diff = 2},
    {.op = "rms_norm_grad",
     "both 33",
     "*[2,33]:turned *[2,33]:strided *[33] -",
     b_grad,
     r_grad,
     {1e-5, 1, 3},
     .diff = 2},
    {.op = "rms_norm_grad",
     "dx",
     "*[3,7] *[3,7] *[7] -",
     b_grad,
     r_grad,
     {1e-5, 1, 2},
     .rows = "bb--"},
    {.op = "rms_norm_grad",
     "dgamma",
     "*[3,7] *[3,7] *[7] -",
     b_grad,
     r_grad,
     {1e-5, 1, 1},
     .flags = CASE_NO_CHECK}, /* gamma is not read */
    {.op = "rms_norm_grad",
     "no gamma",
     "*[3,9] *[3,9]:padded - -",
     b_grad,
     r_grad,
     {1e-5, 1, 2},
     .rows = "bb--"},
    {.op = "rms_norm_grad",
     "k = 2",
     "*[3,2,5] *[3,2,5] *[2,5] -",
     b_grad,
     r_grad,
     {1e-5, 2, 3},
     .diff = 2},
    {.op = "rms_norm_grad",
     "continued",
     "*[5,7] *[5,7] *[7] f64[7]:fixed",
     b_grad,
     r_grad,
     {1e-5, 1, 3},
     .diff = 2},
    {.op = "rms_norm_grad",
     "f16, gamma f32",
     "f16[3,7] f16[3,7] f32[7] -",
     b_grad,
     r_grad,
     {1e-5, 1, 3},
     .diff = 2},
    {.op = "rms_norm_grad",
     "no rows",
     "*[0,7] *[0,7] *[7] -",
     b_grad,
     r_grad,
     {1e-5, 1, 3},
     .diff = 2},
    {.op = "rms_norm_grad",
     "many",
     "*[70,301] *[70,301] *[301] -",
     b_grad,
     r_grad,
     {1e-5, 1, 3},
     .diff = 2,
     .flags = CASE_BIG},
};
const int tl_cases_norm_count = sizeof tl_cases_norm / sizeof tl_cases_norm[0];
