/* unary.c: cases of pointwise ops with one operand, and of constants: NUMERICS 1 and 2. */
#include <math.h>

#include "tests/cases/cases.h"

/* clang-format off */
#define UNARY(X)                                                                                 \
    X(neg) X(abs) X(square) X(reciprocal) X(sqrt) X(rsqrt) X(exp) X(log) X(sin) X(cos) X(tanh)   \
    X(sigmoid) X(relu) X(silu)
/* clang-format on */
#define CONSTANT(X) X(pow) X(scale) X(shift)

#define X(f)                                                                            \
    static int b_##f(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out) \
    {                                                                                   \
        (void)c;                                                                        \
        out[0] = tl_##f(t, in[0]);                                                      \
        return 1;                                                                       \
    }
UNARY(X)
#undef X

#define X(f)                                                                            \
    static int b_##f(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out) \
    {                                                                                   \
        out[0] = tl_##f(t, in[0], c->p[0]);                                             \
        return 1;                                                                       \
    }                                                                                   \
    static void r_##f(const tl_case *c, const ref_tensor *in, ref_tensor *out)          \
    {                                                                                   \
        out[0] = ref_##f(&in[0], c->p[0]);                                              \
    }
CONSTANT(X)
#undef X

/* 1/x: one division. */
static ref_tensor ref_reciprocal(const ref_tensor *x)
{
    ref_tensor y = ref_like(x, x->dtype);
    for (int64_t i = 0; i < ref_numel(x); i++)
        ref_set(&y, i, ref_round(ref_compute(x->dtype), 1 / ref_get(x, i)));
    return y;
}

#define X(f)                                                                   \
    static void r_##f(const tl_case *c, const ref_tensor *in, ref_tensor *out) \
    {                                                                          \
        (void)c;                                                               \
        out[0] = ref_##f(&in[0]);                                              \
    }
UNARY(X)
#undef X

static void g_scale(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                    const ref_tensor *dy, ref_tensor *acc)
{
    (void)in, (void)out;
    tl_case_continue(&acc[0], ref_scale(dy, c->p[0]));
}

static void g_same(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                   const ref_tensor *dy, ref_tensor *acc)
{
    (void)c, (void)in, (void)out;
    tl_case_continue(&acc[0], ref_copy(dy));
}

/* Of every function: the formula of NUMERICS 2.14. */
static void g_slope(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                    const ref_tensor *dy, ref_tensor *acc)
{
    tl_case_continue(&acc[0], ref_slope(c->op, dy, &in[0], &out[0], c->p[0]));
}

/* Every function: a row, matrices of each layout, no elements, 0-d, more than a tile. */
#define FORMS(f, domain)                                                              \
    {.op = #f,                                                                        \
     "gradient",                                                                      \
     "*[57]" domain,                                                                  \
     b_##f,                                                                           \
     r_##f,                                                                           \
     .rows = "b",                                                                     \
     .gradient = g_slope,                                                             \
     .acc = "c"},                                                                     \
        {.op = #f, "row 33", "*[33]" domain, b_##f, r_##f, .rows = "b"},              \
        {.op = #f, "turned", "*[3,5]" domain ":turned", b_##f, r_##f, .rows = "b"},   \
        {.op = #f, "padded", "*[2,2,9]" domain ":padded", b_##f, r_##f, .rows = "b"}, \
        {.op = #f, "strided", "*[4,7]" domain ":strided", b_##f, r_##f, .rows = "b"}, \
        {.op = #f, "expanded", "*[3,4]" domain ":expanded", b_##f, r_##f},            \
        {.op = #f, "no elements", "*[0,3]" domain, b_##f, r_##f},                     \
        {.op = #f, "0-d", "*[]:pos", b_##f, r_##f},                                   \
        {.op = #f, "many", "*[9001]" domain, b_##f, r_##f, .flags = CASE_BIG},        \
    {                                                                                 \
        .op = #f, "tiles of a view", "*[1,1037]" domain ":strided", b_##f, r_##f,     \
        .flags = CASE_F32 | CASE_NO_CHECK                                             \
    } /* long */

#define POW(name, domain, e)                                                                   \
    {.op = "pow",                                                                              \
     name,                                                                                     \
     "*[3,11]" domain,                                                                         \
     b_pow,                                                                                    \
     r_pow,                                                                                    \
     {e},                                                                                      \
     .rows = "b",                                                                              \
     .gradient = g_slope,                                                                      \
     .acc = "c"},                                                                              \
    {                                                                                          \
        .op = "pow", name " turned", "*[5,2]" domain ":turned", b_pow, r_pow, {e}, .rows = "b" \
    }

const tl_case tl_cases_unary[] = {
    FORMS(neg, ""),
    FORMS(abs, ":away"),
    FORMS(square, ""),
    FORMS(reciprocal, ":away"),
    FORMS(sqrt, ":pos"),
    FORMS(rsqrt, ":pos"),
    FORMS(exp, ""),
    FORMS(log, ":pos"),
    FORMS(sin, ""),
    FORMS(cos, ""),
    FORMS(tanh, ""),
    FORMS(sigmoid, ""),
    FORMS(relu, ":away"),
    FORMS(silu, ""),
    POW("-2", ":pos", -2),
    POW("-1", ":pos", -1),
    POW("-1/2", ":pos", -0.5),
    POW("1/2", ":pos", 0.5),
    POW("1", ":away", 1),
    POW("3/2", ":pos", 1.5),
    POW("2", ":away", 2),
    POW("3", ":away", 3),
    POW("2.7", ":pos", 2.7),
    POW("-1.3", ":pos", -1.3),
    {.op = "pow",
     "0: gradient zero everywhere",
     "*[3,4]:away",
     b_pow,
     r_pow,
     {0},
     .rows = "b",
     .flags = CASE_NO_CHECK},
    {.op = "pow", "0-d", "*[]:pos", b_pow, r_pow, {1.5}},
    {.op = "pow", "no elements", "*[2,0]:pos", b_pow, r_pow, {1.5}},
    {.op = "pow", "many", "*[9001]:pos", b_pow, r_pow, {2.7}, .flags = CASE_BIG},
    {.op = "scale",
     "by 3/4",
     "*[5,3]:turned",
     b_scale,
     r_scale,
     {0.75},
     .rows = "b",
     .gradient = g_scale,
     .acc = "c"},
    {.op = "scale",
     "by a rounded constant",
     "*[33]",
     b_scale,
     r_scale,
     {0.1},
     .rows = "b",
     .gradient = g_scale,
     .acc = "c"},
    {.op = "scale",
     "by 1e-300",
     "*[7]",
     b_scale,
     r_scale,
     {1e-300},
     .flags = CASE_NO_CHECK}, /* 0 in f32, with its gradient */
    {.op = "scale", "0-d", "*[]", b_scale, r_scale, {-2}},
    {.op = "scale", "no elements", "*[0]", b_scale, r_scale, {3}},
    {.op = "scale", "many", "*[40001]", b_scale, r_scale, {3.3}, .flags = CASE_BIG},
    {.op = "shift",
     "by a rounded constant",
     "*[3,11]:padded",
     b_shift,
     r_shift,
     {0.1},
     .rows = "b",
     .gradient = g_same,
     .acc = "c"},
    {.op = "shift",
     "by -1",
     "*[32]",
     b_shift,
     r_shift,
     {-1},
     .rows = "b",
     .gradient = g_same,
     .acc = "c"},
    {.op = "shift", "0-d", "*[]", b_shift, r_shift, {1e3}},
    {.op = "shift", "by 1e10", "*[7]", b_shift, r_shift, {1e10}, .flags = CASE_NO_CHECK}, /* drowns
                                                                                             x */
    {.op = "shift", "no elements", "*[0]", b_shift, r_shift, {3}},
};
const int tl_cases_unary_count = sizeof tl_cases_unary / sizeof tl_cases_unary[0];
