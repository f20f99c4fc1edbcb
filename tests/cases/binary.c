/* binary.c: cases of pointwise ops with two operands: broadcasting both ways, mixed dtypes, gated
 * units. */
#include <math.h>
#include <string.h>

#include "tests/cases/cases.h"

#define BINARY(X) X(add) X(sub) X(mul) X(div) X(maximum) X(minimum)
#define GATED(X) X(swiglu) X(silu_grad)

#define X(f)                                                                            \
    static int b_##f(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out) \
    {                                                                                   \
        (void)c;                                                                        \
        out[0] = tl_##f(t, in[0], in[1]);                                               \
        return 1;                                                                       \
    }
BINARY(X)
GATED(X)
#undef X

#define X(f)                                                                   \
    static void r_##f(const tl_case *c, const ref_tensor *in, ref_tensor *out) \
    {                                                                          \
        ref_tensor both[2];                                                    \
        (void)c;                                                               \
        tl_case_meet(&in[0], &in[1], both);                                    \
        out[0] = ref_##f(&both[0], &both[1]);                                  \
        tl_case_free(2, both);                                                 \
    }
BINARY(X)
#undef X

/* NUMERICS 2.6: silu(a) * b in the compute type, one rounding into storage. */
static double swiglu1(ref_dtype d, double a, double b)
{
    double s = ref_round(d, a * ref_sigmoid1(d, a));
    return ref_round(d, s * b);
}

/* The op's card: dy * (s * (1 + x*(1-s))), s = sigmoid(x). */
static double silu_grad1(ref_dtype d, double dy, double x)
{
    double s = ref_sigmoid1(d, x), rest = ref_round(d, 1 - s),
           one = ref_round(d, 1 + ref_round(d, x * rest));
    return ref_round(d, dy * ref_round(d, s * one));
}

static void gated(const ref_tensor *in, double (*f)(ref_dtype, double, double), ref_tensor *out)
{
    ref_tensor both[2];
    tl_case_meet(&in[0], &in[1], both);
    out[0] = ref_broadcast_shape(&both[0], &both[1], both[0].dtype);
    for (int64_t i = 0; i < ref_numel(&out[0]); i++) {
        int64_t ix[8] = {0};
        ref_unflatten(out[0].ndim, out[0].dim, i, ix);
        double a = ref_get(&both[0], ref_broadcast_at(&both[0], out[0].ndim, ix));
        double b = ref_get(&both[1], ref_broadcast_at(&both[1], out[0].ndim, ix));
        ref_set(&out[0], i, f(ref_compute(both[0].dtype), a, b));
    }
    tl_case_free(2, both);
}

static void r_swiglu(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    (void)c, gated(in, swiglu1, out);
}
static void r_silu_grad(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    (void)c, gated(in, silu_grad1, out);
}

/* in: dy, a, b, alike; out: da, db. The card: silu_grad(dy*b, a) and dy*silu(a), all in the compute
 * type. */
static int b_swiglu_grad(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    (void)c;
    tl_apply(TL_AT(t), &tl_op_swiglu_grad, NULL, in, 3, out);
    return 2;
}

static void r_swiglu_grad(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_dtype d = ref_compute(in[0].dtype);
    (void)c;
    out[0] = ref_like(&in[0], in[0].dtype);
    out[1] = ref_like(&in[0], in[0].dtype);
    for (int64_t i = 0; i < ref_numel(&in[0]); i++) {
        double dy = ref_get(&in[0], i), a = ref_get(&in[1], i), b = ref_get(&in[2], i);
        ref_set(&out[0], i, silu_grad1(d, ref_round(d, dy * b), a));
        ref_set(&out[1], i, ref_round(d, dy * ref_round(d, a * ref_sigmoid1(d, a))));
    }
}

static void g_add(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                  const ref_tensor *dy, ref_tensor *acc)
{
    (void)c, (void)in, (void)out;
    tl_case_continue(&acc[0], ref_copy(dy));
    tl_case_continue(&acc[1], ref_copy(dy));
}

static void g_sub(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                  const ref_tensor *dy, ref_tensor *acc)
{
    (void)c, (void)in, (void)out;
    tl_case_continue(&acc[0], ref_copy(dy));
    tl_case_continue(&acc[1], ref_neg(dy));
}

/* Each a pointwise product, rounded into dy's dtype, then folded. */
static void g_mul(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                  const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor other[2] = {ref_cast(&in[1], dy->dtype), ref_cast(&in[0], dy->dtype)};
    (void)c, (void)out;
    for (int i = 0; i < 2; i++)
        tl_case_continue(&acc[i], ref_mul(dy, &other[i]));
    tl_case_free(2, other);
}

/* dy / b, and NUMERICS 2.14. */
static void g_div(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                  const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor b = ref_cast(&in[1], dy->dtype);
    (void)c;
    tl_case_continue(&acc[0], ref_div(dy, &b));
    tl_case_continue(&acc[1], ref_div_slope(dy, &b, &out[0]));
    tl_case_free(1, &b);
}

/* dy where that operand wins, half of it where both are equal, else +0. */
static void choose(const ref_tensor *in, const ref_tensor *dy, ref_tensor *acc, bool greater)
{
    ref_tensor both[2];
    tl_case_meet(&in[0], &in[1], both);
    for (int k = 0; k < 2; k++) {
        ref_tensor dx = ref_like(dy, dy->dtype);
        for (int64_t i = 0; i < ref_numel(dy); i++) {
            int64_t ix[8] = {0};
            ref_unflatten(dy->ndim, dy->dim, i, ix);
            const double a = ref_get(&both[k], ref_broadcast_at(&both[k], dy->ndim, ix)),
                         b = ref_get(&both[1 - k], ref_broadcast_at(&both[1 - k], dy->ndim, ix)),
                         g = ref_get(dy, i);
            ref_set(&dx, i,
                    (greater ? a > b : a < b) ? g
                    : a == b                  ? ref_round(dy->dtype, g / 2)
                                              : 0);
        }
        tl_case_continue(&acc[k], dx);
    }
    tl_case_free(2, both);
}

static void g_maximum(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                      const ref_tensor *dy, ref_tensor *acc)
{
    (void)c, (void)out;
    choose(in, dy, acc, true);
}

static void g_minimum(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                      const ref_tensor *dy, ref_tensor *acc)
{
    (void)c, (void)out;
    choose(in, dy, acc, false);
}

#define GRADIENT(f, name, in, how, a)                                              \
    {                                                                              \
        .op = #f, name, in, b_##f, r_##f, .rows = how, .gradient = g_##f, .acc = a \
    }
/* Shapes alike, broadcast from either side and from both, 0-d with a matrix, no elements, all
 * layouts. both: flags of two 0-d operands, for of a maximum only one gets a gradient. */
#define FORMS(f, da, db, both)                                                                    \
    {.op = #f, "alike", "*[4,9]" da " *[4,9]" db, b_##f, r_##f, .rows = "bb"},                    \
        {.op = #f, "row to rows", "*[33,5]" da ":padded *[5]" db, b_##f, r_##f, .rows = "bp"},    \
        {.op = #f, "rows to row", "*[7]" da " *[3,7]" db ":strided", b_##f, r_##f, .rows = "pb"}, \
        {.op = #f, "both ways", "*[4,1,3]" da " *[5,1]" db, b_##f, r_##f, .rows = "bp"},          \
        {.op = #f,                                                                                \
         "0-d first",                                                                             \
         "*[] "                                                                                   \
         "*[3,2]" db ":turned",                                                                   \
         b_##f,                                                                                   \
         r_##f,                                                                                   \
         .rows = "pb"},                                                                           \
        {.op = #f, "0-d second", "*[2,3]" da ":turned *[]" db, b_##f, r_##f, .rows = "bp"},       \
        {.op = #f, "0-d both", "*[]" da " *[]" db, b_##f, r_##f, .flags = both},                  \
        {.op = #f, "expanded", "*[3,4]" da ":expanded *[3,4]" db, b_##f, r_##f},                  \
        {.op = #f, "no elements", "*[0,3]" da " *[3]" db, b_##f, r_##f},                          \
        {.op = #f, "f16 and f32", "f16[3,4]" da " f32[4]" db, b_##f, r_##f, .rows = "bp"},        \
        {.op = #f, "bf16 and f16", "bf16[4]" da " f16[3,4]" db, b_##f, r_##f, .rows = "pb"},      \
        {.op = #f, "bf16 and f32", "f32[31]" da " bf16[31]" db, b_##f, r_##f, .rows = "bb"},      \
    {                                                                                             \
        .op = #f, "many", "*[130,300]" da " *[300]" db, b_##f, r_##f, .flags = CASE_BIG           \
    }

const tl_case tl_cases_binary[] = {
    GRADIENT(add, "gradient alike", "*[4,9] *[4,9]:turned", "bb", "cc"),
    GRADIENT(add, "gradient of a row", "*[33,5] *[5]", "bp", "cd"),
    GRADIENT(add, "gradient both ways", "*[4,1,3] *[5,1]", "bp", "dd"),
    GRADIENT(sub, "gradient of a row", "*[5] *[6,5]", "pb", "dc"),
    GRADIENT(mul, "gradient alike", "*[4,9]:strided *[4,9]", "bb", "cc"),
    GRADIENT(mul, "gradient of a row", "*[33,5] *[5]:padded", "bp", "cd"),
    GRADIENT(mul, "gradient of f32 weights", "f16[6,4] f32[4]", "bp", "cd"),
    GRADIENT(div, "gradient alike", "*[4,9]:strided *[4,9]:away", "bb", "cc"),
    GRADIENT(div, "gradient of a row", "*[33,5] *[5]:away", "bp", "cd"),
    GRADIENT(maximum, "gradient alike", "*[4,9]:apart *[4,9]:between", "bb", "cc"),
    GRADIENT(minimum, "gradient alike", "*[4,9]:apart *[4,9]:between", "bb", "cc"),
    FORMS(add, "", "", 0),
    FORMS(sub, "", "", 0),
    FORMS(mul, "", "", 0),
    FORMS(div, "", ":away", 0),
    FORMS(maximum, ":apart", ":between", CASE_NO_CHECK),
    FORMS(minimum, ":apart", ":between", CASE_NO_CHECK),
    FORMS(swiglu, "", "", 0),
    FORMS(silu_grad, "", "", 0),
    {.op = "swiglu_grad",
     "33",
     "*[33] *[33] *[33]",
     b_swiglu_grad,
     r_swiglu_grad,
     .rows = "bbb",
     .diff = 2},
    {.op = "swiglu_grad",
     "views",
     "*[3,5]:turned *[3,5]:strided *[3,5]:padded",
     b_swiglu_grad,
     r_swiglu_grad,
     .rows = "bbb",
     .diff = 2},
    {.op = "swiglu_grad", "0-d", "*[] *[] *[]", b_swiglu_grad, r_swiglu_grad, .diff = 2},
    {.op = "swiglu_grad",
     "no elements",
     "*[0,3] *[0,3] *[0,3]",
     b_swiglu_grad,
     r_swiglu_grad,
     .diff = 2},
    {.op = "swiglu_grad",
     "many",
     "*[9001] *[9001] *[9001]",
     b_swiglu_grad,
     r_swiglu_grad,
     .flags = CASE_BIG,
     .diff = 2},
};
const int tl_cases_binary_count = sizeof tl_cases_binary / sizeof tl_cases_binary[0];
