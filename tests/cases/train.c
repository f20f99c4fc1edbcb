/* train.c: cases of the optimizers' updates and of storing what they made:
 * NUMERICS 12.3, 12.4, 1.1. */
#include <math.h>

#include "ops/optimize.h"
#include "tests/cases/cases.h"

/* in: p, g, b?, lr, clip; p: momentum, weight decay, nesterov, decoupled. out: p and b, both
 * changed in place */
static int b_sgd(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    case_state b = tl_case_state(t, "b", in[2]);
    out[0] = tl_sgd_update_at(TL_AT(t), in[0], in[1], b.x, in[3], in[4],
                              (tl_sgd_attrs){.momentum = c->p[0],
                                             .weight_decay = c->p[1],
                                             .nesterov = c->p[2] != 0,
                                             .decoupled = c->p[3] != 0});
    if (tl_is_none(in[2]))
        return 1;
    out[1] = tl_case_changed(t, &b);
    return 2;
}

static void r_sgd(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    bool b = in[2].data != NULL;
    out[0] = ref_copy(&in[0]);
    if (b)
        out[1] = ref_copy(&in[2]);
    ref_sgd(&out[0], &in[1], b ? &out[1] : NULL, ref_get(&in[4], 0), ref_get(&in[3], 0),
            (ref_sgd_options){c->p[0], c->p[1], c->p[2] != 0, c->p[3] != 0});
}

static double power(double b, int t) /* t successive multiplications */
{
    double p = 1;
    for (int i = 0; i < t; i++)
        p = p * b;
    return p;
}

/* in: p, g, m, v, lr, clip; p: beta1, beta2, eps, weight decay, step number. out: p, m, v, changed
 * in place */
static int b_adamw(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    int step = (int)c->p[4];
    tl_tensor c1 = tl_scalar(t, TL_F64, 1 / (1 - power(c->p[0], step))),
              c2 = tl_scalar(t, TL_F64, 1 / (1 - power(c->p[1], step)));
    case_state m = tl_case_state(t, "m", in[2]), v = tl_case_state(t, "v", in[3]);
    tl_tensor all[8] = {in[0], in[1], m.x, v.x, in[4], in[5], c1, c2};
    out[0] = tl_adamw_update_at(TL_AT(t), all,
                                (tl_adamw_attrs){.beta1 = c->p[0],
                                                 .beta2 = c->p[1],
                                                 .eps = c->p[2],
                                                 .weight_decay = c->p[3]});
    out[1] = tl_case_changed(t, &m);
    out[2] = tl_case_changed(t, &v);
    return 3;
}

static void r_adamw(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_adamw_options o = {ref_get(&in[4], 0), c->p[0], c->p[1], c->p[2], c->p[3]};
    for (int i = 0; i < 3; i++)
        out[i] = ref_copy(&in[i == 0 ? 0 : i + 1]);
    ref_adamw(&out[0], &in[1], &out[1], &out[2], ref_get(&in[5], 0), o, (int64_t)c->p[4]);
}

/* in: p, x; out: p, now x rounded to p's dtype (1.1) */
static int b_store(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    (void)c;
    out[0] = tl_store_at(TL_AT(t), in[0], in[1]);
    return 1;
}

static void r_store(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    (void)c, out[0] = ref_cast(&in[1], in[0].dtype);
}

static int b_assign(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    (void)c;
    out[0] = tl_apply1(TL_AT(t), &tl_op_assign, NULL, in, 2);
    return 1;
}

static void r_assign(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    (void)c, out[0] = ref_cast(&in[1], in[0].dtype);
}

/* in: w, p; with p[0], the parameter is w rounded. out: w */
static int b_master(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_master_at(TL_AT(t), in[0],
                          c->p[0] != 0 ? tl_cast(t, in[0], tl_dtype_of(t, in[1])) : in[1]);
    return 1;
}

static void r_master(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = c->p[0] != 0 ? ref_copy(&in[0]) : ref_cast(&in[1], in[0].dtype);
}

const tl_case tl_cases_train[] = {
    {.op = "master", "kept", "c[33]:fixed *[33]:fixed", b_master, r_master, {1}},
    {.op = "master", "taken anew", "c[3,11]:fixed *[3,11]:fixed", b_master, r_master, {0}},
    {.op = "master",
     "many",
     "c[5000]:fixed *[5000]:fixed",
     b_master,
     r_master,
     {0},
     .flags = CASE_BIG},
    {.op = "master", "nothing", "c[0]:fixed *[0]:fixed", b_master, r_master, {0}},
    {.op = "store", "33", "*[33]:fixed c[33]:fixed", b_store, r_store},
    {.op = "store", "matrix", "*[3,11]:fixed c[3,11]:fixed", b_store, r_store},
    {.op = "store", "0-d", "*[]:fixed c[]:fixed", b_store, r_store},
    {.op = "store", "nothing", "*[0]:fixed c[0]:fixed", b_store, r_store},
    {.op = "assign", "33", "*[33]:fixed *[33]:fixed", b_assign, r_assign},
    {.op = "assign", "matrix", "*[3,11]:fixed *[3,11]:fixed", b_assign, r_assign},
    {.op = "assign", "0-d", "*[]:fixed *[]:fixed", b_assign, r_assign},
    {.op = "assign", "nothing", "*[0]:fixed *[0]:fixed", b_assign, r_assign},
    {.op = "sgd",
     "plain",
     "c[33]:fixed c[33]:fixed - f64[]:rate f64[]:count1",
     b_sgd,
     r_sgd,
     {0, 0}},
    {.op = "sgd",
     "decoupled without decay",
     "c[33]:fixed c[33]:fixed - f64[]:rate f64[]:count1",
     b_sgd,
     r_sgd,
     {0, 0, 0, 1}},
    {.op = "sgd",
     "decay and clip",
     "c[3,11]:fixed c[3,11]:fixed - f64[]:rate f64[]:rate",
     b_sgd,
     r_sgd,
     {0, 0.1}},
    {.op = "sgd",
     "momentum",
     "c[33]:fixed c[33]:fixed c[33]:fixed f64[]:rate f64[]:rate",
     b_sgd,
     r_sgd,
     {0.9, 0.01}},
    {.op = "sgd",
     "momentum, decoupled",
     "c[33]:fixed c[33]:fixed c[33]:fixed f64[]:rate f64[]:rate",
     b_sgd,
     r_sgd,
     {0.9, 0.01, 0, 1}},
    {.op = "sgd",
     "Nesterov",
     "c[33]:fixed c[33]:fixed c[33]:fixed f64[]:rate f64[]:rate",
     b_sgd,
     r_sgd,
     {0.9, 0.01, 1, 0}},
    {.op = "sgd",
     "Nesterov, decoupled",
     "c[3,11]:fixed c[3,11]:fixed c[3,11]:fixed f64[]:rate f64[]:rate",
     b_sgd,
     r_sgd,
     {0.9, 0.01, 1, 1}},
    {.op = "sgd",
     "0-d",
     "c[]:fixed c[]:fixed c[]:fixed f64[]:rate f64[]:rate",
     b_sgd,
     r_sgd,
     {0.9, 0.01}},
    {.op = "sgd",
     "nothing",
     "c[0]:fixed c[0]:fixed - f64[]:rate f64[]:rate",
     b_sgd,
     r_sgd,
     {0.9, 0.01}},
    {.op = "sgd",
     "many",
     "f32[40001]:fixed f32[40001]:fixed f32[40001]:fixed f64[]:rate f64[]:rate",
     b_sgd,
     r_sgd,
     {0.9, 0.01},
     .flags = CASE_BIG},
    {.op = "adamw",
     "first step",
     "c[33]:fixed c[33]:fixed c[33]:fixed c[33]:pos:fixed f64[]:rate f64[]:count1",
     b_adamw,
     r_adamw,
     {0.9, 0.999, 1e-8, 0, 1}},
    {.op = "adamw",
     "tenth step",
     "c[3,11]:fixed c[3,11]:fixed c[3,11]:fixed c[3,11]:pos:fixed f64[]:rate f64[]:rate",
     b_adamw,
     r_adamw,
     {0.9, 0.95, 1e-8, 0.1, 10}},
    {.op = "adamw",
     "no eps",
     "c[31]:fixed c[31]:fixed c[31]:fixed c[31]:pos:fixed f64[]:rate f64[]:rate",
     b_adamw,
     r_adamw,
     {0.8, 0.99, 0, 0.01, 3}},
    {.op = "adamw",
     "0-d",
     "c[]:fixed c[]:fixed c[]:fixed c[]:pos:fixed f64[]:rate f64[]:rate",
     b_adamw,
     r_adamw,
     {0.9, 0.999, 1e-8, 0.01, 2}},
    {.op = "adamw",
     "nothing",
     "c[0]:fixed c[0]:fixed c[0]:fixed c[0]:pos:fixed f64[]:rate f64[]:rate",
     b_adamw,
     r_adamw,
     {0.9, 0.999, 1e-8, 0.01, 2}},
    {.op = "adamw",
     "many",
     "f32[40001]:fixed f32[40001]:fixed f32[40001]:fixed f32[40001]:pos:fixed f64[]:rate "
     "f64[]:rate",
     b_adamw,
     r_adamw,
     {0.9, 0.999, 1e-8, 0.01, 2},
     .flags = CASE_BIG},
};
const int tl_cases_train_count = sizeof tl_cases_train / sizeof tl_cases_train[0];
