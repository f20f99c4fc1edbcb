/* activation.c: cases of erf, log1p, expm1, exp2, log2, softplus, the gelus and their gradients,
 * clamp, masked_fill: NUMERICS 2.8 to 2.11. */
#include <math.h>

#include "tensor/isa.h"
#include "tests/cases/cases.h"

#define UNARY(X) X(erf) X(log1p) X(expm1) X(exp2) X(log2) X(softplus) X(gelu) X(gelu_tanh)
#define BINARY(X) X(gelu_grad) X(gelu_tanh_grad)

/* NUMERICS 2.3 pins the bits of f64 functions elsewhere; here they come from the library's scalar
 * table. */
#define X(f)                                  \
    static double f##_f64(double x)           \
    {                                         \
        double y;                             \
        tl_isa_at(0)->math->f##64(1, &x, &y); \
        return y;                             \
    }
X(erf)
X(log1p)
#undef X

/* A stem that ends in a digit has an underscore of its own. */
#define X(f)                                   \
    static double f##_f64(double x)            \
    {                                          \
        double y;                              \
        tl_isa_at(0)->math->f##_64(1, &x, &y); \
        return y;                              \
    }
X(expm1)
X(exp2)
X(log2)
#undef X

static const ref_f64_more of_library = {erf_f64, log1p_f64, expm1_f64, exp2_f64, log2_f64};

#define X(f)                                                                            \
    static int b_##f(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out) \
    {                                                                                   \
        (void)c;                                                                        \
        out[0] = tl_##f(t, in[0]);                                                      \
        return 1;                                                                       \
    }                                                                                   \
    static void r_##f(const tl_case *c, const ref_tensor *in, ref_tensor *out)          \
    {                                                                                   \
        const ref_f64_more *before = ref_set_f64_more(&of_library);                     \
        (void)c;                                                                        \
        out[0] = ref_##f(&in[0]);                                                       \
        ref_set_f64_more(before);                                                       \
    }
UNARY(X)
#undef X

#define X(f)                                                                            \
    static int b_##f(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out) \
    {                                                                                   \
        (void)c;                                                                        \
        out[0] = tl_##f(t, in[0], in[1]);                                               \
        return 1;                                                                       \
    }                                                                                   \
    static void r_##f(const tl_case *c, const ref_tensor *in, ref_tensor *out)          \
    {                                                                                   \
        const ref_f64_more *before = ref_set_f64_more(&of_library);                     \
        ref_tensor both[2];                                                             \
        (void)c;                                                                        \
        tl_case_meet(&in[0], &in[1], both);                                             \
        out[0] = ref_##f(&both[0], &both[1]);                                           \
        tl_case_free(2, both);                                                          \
        ref_set_f64_more(before);                                                       \
    }
BINARY(X)
#undef X

#define X(f)                                                                         \
    static void g_##f(const tl_case *c, const ref_tensor *in, const ref_tensor *out, \
                      const ref_tensor *dy, ref_tensor *acc)                         \
    {                                                                                \
        const ref_f64_more *before = ref_set_f64_more(&of_library);                  \
        (void)c, (void)out;                                                          \
        tl_case_continue(&acc[0], ref_##f##_grad(dy, &in[0]));                       \
        ref_set_f64_more(before);                                                    \
    }
X(gelu)
X(gelu_tanh)
#undef X

/* p: lo, hi */
static int b_clamp(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_clamp(t, in[0], c->p[0], c->p[1]);
    return 1;
}

static void r_clamp(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_clamp(&in[0], c->p[0], c->p[1]);
}

static void g_clamp(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                    const ref_tensor *dy, ref_tensor *acc)
{
    (void)out;
    tl_case_continue(&acc[0], ref_clamp_grad(dy, &in[0], c->p[0], c->p[1]));
}

/* in: x, mask; p: value */
static int b_masked(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_masked_fill(t, in[0], in[1], c->p[0]);
    return 1;
}

static void r_masked(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_masked_fill(&in[0], &in[1], c->p[0]);
}

/* dy where the mask is false, +0 elsewhere. */
static void g_masked(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                     const ref_tensor *dy, ref_tensor *acc)
{
    (void)c, (void)out;
    tl_case_continue(&acc[0], ref_masked_fill(dy, &in[1], 0));
}

static void g_slope(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                    const ref_tensor *dy, ref_tensor *acc)
{
    const ref_f64_more *before = ref_set_f64_more(&of_library);
    tl_case_continue(&acc[0], ref_slope(c->op, dy, &in[0], &out[0], 0));
    ref_set_f64_more(before);
}

#define GRAD(f, a) .gradient = g_##f, .acc = a
#define NONE .flags = 0
/* A row, matrices of each layout, no elements, 0-d, more than a tile. */
#define FORMS(f, domain, ...)                                                                      \
    {.op = #f, "row 33", "*[33]" domain, b_##f, r_##f, .rows = "b", __VA_ARGS__},                  \
        {.op = #f, "turned", "*[3,5]" domain ":turned", b_##f, r_##f, .rows = "b", __VA_ARGS__},   \
        {.op = #f, "padded", "*[2,2,9]" domain ":padded", b_##f, r_##f, .rows = "b", __VA_ARGS__}, \
        {.op = #f, "strided", "*[4,7]" domain ":strided", b_##f, r_##f, .rows = "b", __VA_ARGS__}, \
        {.op = #f, "expanded", "*[3,4]" domain ":expanded", b_##f, r_##f},                         \
        {.op = #f, "no elements", "*[0,3]" domain, b_##f, r_##f},                                  \
        {.op = #f, "0-d", "*[]" domain, b_##f, r_##f},                                             \
        {.op = #f, "many", "*[9001]" domain, b_##f, r_##f, .flags = CASE_BIG},                     \
    {                                                                                              \
        .op = #f, "tiles of a view", "*[1,1037]" domain ":strided", b_##f, r_##f,                  \
        .flags = CASE_F32 | CASE_NO_CHECK                                                          \
    } /* long */

/* Shapes alike, broadcast from either side and from both, mixed dtypes. */
#define PAIRS(f)                                                                         \
    {.op = #f, "alike", "*[4,9] *[4,9]", b_##f, r_##f, .rows = "bb"},                    \
        {.op = #f, "views", "*[3,5]:turned *[3,5]:strided", b_##f, r_##f, .rows = "bb"}, \
        {.op = #f, "row to rows", "*[6,5]:padded *[5]", b_##f, r_##f, .rows = "bp"},     \
        {.op = #f, "rows to row", "*[7] *[3,7]:strided", b_##f, r_##f, .rows = "pb"},    \
        {.op = #f, "both ways", "*[4,1,3] *[5,1]", b_##f, r_##f, .rows = "bp"},          \
        {.op = #f, "0-d first", "*[] *[3,2]:turned", b_##f, r_##f, .rows = "pb"},        \
        {.op = #f, "0-d both", "*[] *[]", b_##f, r_##f},                                 \
        {.op = #f, "expanded", "*[3,4]:expanded *[3,4]", b_##f, r_##f},                  \
        {.op = #f, "no elements", "*[0,3] *[3]", b_##f, r_##f},                          \
        {.op = #f, "f16 and f32", "f16[3,4] f32[4]", b_##f, r_##f, .rows = "bp"},        \
        {.op = #f, "bf16 and f16", "bf16[4] f16[3,4]", b_##f, r_##f, .rows = "pb"},      \
    {                                                                                    \
        .op = #f, "many", "*[130,100] *[100]", b_##f, r_##f, .flags = CASE_BIG           \
    }

#define CLAMP(name, in, lo, hi, ...)                                                       \
    {                                                                                      \
        .op = "clamp", name, in, b_clamp, r_clamp, {lo, hi}, GRAD(clamp, "c"), __VA_ARGS__ \
    }
#define MASKED(name, in, value, how, a, ...)                                                \
    {                                                                                       \
        .op = "where", name, in, b_masked, r_masked, {value}, .rows = how, GRAD(masked, a), \
        __VA_ARGS__                                                                         \
    }

const tl_case tl_cases_activation[] = {
    FORMS(erf, "", GRAD(slope, "c")),
    FORMS(log1p, ":pos", GRAD(slope, "c")),
    FORMS(expm1, "", GRAD(slope, "c")),
    FORMS(exp2, "", GRAD(slope, "c")),
    FORMS(log2, ":pos", GRAD(slope, "c")),
    FORMS(softplus, "", GRAD(slope, "c")),
    FORMS(gelu, "", GRAD(gelu, "c")),
    FORMS(gelu_tanh, "", GRAD(gelu_tanh, "c")),
    PAIRS(gelu_grad),
    PAIRS(gelu_tanh_grad),
    CLAMP("row 33", "*[33]", -0.7, 0.9, .rows = "b"),
    CLAMP("many samples", "*[600]", -0.7, 0.9, .rows = "b"),
    CLAMP("turned", "*[3,5]:turned", -0.7, 0.9, .rows = "b"),
    CLAMP("padded", "*[2,2,9]:padded", -0.6, 1.6, .rows = "b"),
    CLAMP("strided", "*[4,7]:strided", 0, 1, .rows = "b"),
    CLAMP("from below", "*[4,7]", 0.1, (double)INFINITY, .rows = "b"),
    CLAMP("from above", "*[4,7]", -(double)INFINITY, 0.1, .rows = "b"),
    CLAMP("without bounds", "*[33]", -(double)INFINITY, (double)INFINITY, .rows = "b"),
    CLAMP("bounds that round", "*[33]:away", 0.1, 1.1, .rows = "b"),
    CLAMP("to a point", "*[9]", 0.25, 0.25, .rows = "b",
          .flags = CASE_NO_CHECK), /* gradient zero everywhere */
    CLAMP("between zeros", "*[33]", -0.0, 0.0, .rows = "b", .flags = CASE_NO_CHECK),
    CLAMP("between zeros the other way", "*[33]", 0.0, -0.0, .rows = "b", .flags = CASE_NO_CHECK),
    CLAMP("0-d", "*[]:unit", -2, 2, .rows = NULL),
    CLAMP("no elements", "*[0,3]", -1, 1, .rows = NULL),
    {.op = "clamp", "expanded", "*[3,4]:expanded", b_clamp, r_clamp, {-1, 1}},
    {.op = "clamp", "many", "*[9001]", b_clamp, r_clamp, {-0.5, 0.5}, .flags = CASE_BIG},
    MASKED("masked_fill", "*[4,9] bool[4,9]:mask", 0.1, "bb", "c-", NONE),
    MASKED("masked_fill of views", "*[3,5]:turned bool[3,5]:mask:strided", -30, "bb", "c-", NONE),
    MASKED("masked_fill with -1e30", "*[4,9] bool[4,9]:mask:turned", -1e30, "bb", "c-",
           .flags = CASE_NO_CHECK), /* drowns the rest */
    MASKED("masked_fill with -inf", "*[2,3,4]:heads bool[3,4]:mask", -(double)INFINITY, "b-", "c-",
           .flags = CASE_NO_CHECK), /* infinite */
    MASKED("masked_fill by a row", "*[3,5] bool[5]:mask", 2, "b-", "c-", NONE),
    MASKED("masked_fill of a row", "*[5] bool[3,5]:mask", 2, "pb", "d-", NONE),
    MASKED("masked_fill 0-d", "*[] bool[]:mask", 2, NULL, "c-",
           .flags = CASE_NO_CHECK), /* x may not be read */
    MASKED("masked_fill of nothing", "*[0,3] bool[3]:mask", 2, NULL, "c-", NONE),
};
const int tl_cases_activation_count = sizeof tl_cases_activation / sizeof tl_cases_activation[0];
