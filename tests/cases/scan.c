/* scan.c: cases of min, of the gradients of max and min, of cumsum, var and mse: NUMERICS 4.4
 * to 4.6, 6.11. */
#include "tests/cases/cases.h"

/* p: mask of dims, keepdims */
static tl_shape dims_of(const tl_case *c)
{
    tl_shape s = {.ndim = 0};
    for (int d = 0; d < 8; d++)
        if ((unsigned)c->p[0] >> d & 1)
            s.dim[s.ndim++] = d;
    return s;
}

#define X(f)                                                                            \
    static int b_##f(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out) \
    {                                                                                   \
        out[0] = tl_##f(t, in[0], dims_of(c), c->p[1] != 0);                            \
        return 1;                                                                       \
    }                                                                                   \
    static void r_##f(const tl_case *c, const ref_tensor *in, ref_tensor *out)          \
    {                                                                                   \
        out[0] = ref_##f(&in[0], (unsigned)c->p[0], c->p[1] != 0);                      \
    }
X(min)
X(max)
#undef X

static void g_extreme(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                      const ref_tensor *dy, ref_tensor *acc)
{
    tl_case_continue(&acc[0], ref_extreme_grad(dy, &in[0], &out[0], (unsigned)c->p[0]));
}

/* x is seen three times along a new axis 0, so that there are ties; p: mask of dims */
#define X(f)                                                                                 \
    static int b_ties_##f(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out) \
    {                                                                                        \
        tl_shape s = tl_shape_of(t, in[0]);                                                  \
        out[0] = tl_##f(t, tl_expand(t, in[0], TL_DIMS(3, s.dim[0], s.dim[1])), dims_of(c),  \
                        false);                                                              \
        return 1;                                                                            \
    }                                                                                        \
    static void r_ties_##f(const tl_case *c, const ref_tensor *in, ref_tensor *out)          \
    {                                                                                        \
        ref_tensor x = thrice(&in[0]);                                                       \
        out[0] = ref_##f(&x, (unsigned)c->p[0], 0);                                          \
        ref_free(&x);                                                                        \
    }

static ref_tensor thrice(const ref_tensor *x)
{
    const ref_tensor *all[] = {x, x, x};
    return ref_stack(3, all, 0);
}

X(min)
X(max)
#undef X

/* The three shares, rounded to the dtype of what is seen, fold. */
static void g_ties(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                   const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor x = thrice(&in[0]), share = ref_extreme_grad(dy, &x, &out[0], (unsigned)c->p[0]);
    tl_case_continue(&acc[0], ref_cast(&share, in[0].dtype));
    ref_free(&share);
    ref_free(&x);
}

/* p: mask of dims, keepdims, correction */
static int b_var(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_var(t, in[0], dims_of(c), (int)c->p[2], c->p[1] != 0);
    return 1;
}

static void r_var(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_var(&in[0], (unsigned)c->p[0], (int)c->p[2], c->p[1] != 0);
}

/* The same of a value that is no leaf, where the two cotangents of x meet (10.2). */
static int b_var_of_value(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    const tl_tensor x = tl_scale(t, in[0], 1);
    return b_var(t, &x, c, out);
}

static void g_var(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                  const ref_tensor *dy, ref_tensor *acc)
{
    (void)out;
    tl_case_continue(&acc[0], ref_var_grad(dy, &in[0], (unsigned)c->p[0], (int)c->p[2]));
}

static int b_mse(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    (void)c;
    out[0] = tl_mse(t, in[0], in[1]);
    return 1;
}

static void r_mse(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    (void)c, out[0] = ref_mse(&in[0], &in[1]);
}

/* p: dim, reverse */
static int b_cumsum(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_cumsum(t, in[0], (int)c->p[0], c->p[1] != 0);
    return 1;
}

static int dim_of(const tl_case *c, const ref_tensor *x)
{
    return (int)(c->p[0] < 0 ? c->p[0] + x->ndim : c->p[0]);
}

static void r_cumsum(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_cumsum(&in[0], dim_of(c, in), c->p[1] != 0);
}

static void g_cumsum(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                     const ref_tensor *dy, ref_tensor *acc)
{
    (void)out;
    tl_case_continue(&acc[0], ref_cumsum(dy, dim_of(c, in), c->p[1] == 0));
}

#define GRAD(f, a) .gradient = g_##f, .acc = a
#define EXTREME(f, name, in, how, dims, keep)                                           \
    {                                                                                   \
        .op = #f, name, in, b_##f, r_##f, {dims, keep}, .rows = how, GRAD(extreme, "c") \
    }
#define FORMS(f, say)                                                                          \
    EXTREME(f, say "31", "*[2,31]:apart", "b", 2, 0),                                          \
        EXTREME(f, say "32", "*[2,32]:apart:padded", "b", 2, 0),                               \
        EXTREME(f, say "33 kept", "*[3,33]:apart:strided", "b", 2, 1),                         \
        EXTREME(f, say "65 turned", "*[3,65]:apart:turned", "b", 2, 0),                        \
        EXTREME(f, say "two trailing dims", "*[2,3,7]:apart", "b", 6, 0),                      \
        EXTREME(f, say "a middle dim", "*[3,4,5]:apart", "b", 2, 0),                           \
        EXTREME(f, say "axis 0", "*[33,3]:apart", NULL, 1, 0),                                 \
        EXTREME(f, say "all", "*[3,4,5]:apart:padded", NULL, 7, 0),                            \
        EXTREME(f, say "first and last", "*[3,4,5]:apart:heads", NULL, 5, 1),                  \
        EXTREME(f, say "0-d", "*[]", NULL, 0, 0),                                              \
        EXTREME(f, say "no dims", "*[3,4]:apart", "b", 0, 0),                                  \
        EXTREME(f, say "no rows", "*[0,3]", NULL, 2, 0),                                       \
        {.op = #f, say "ties", "*[4,5]:apart", b_ties_##f, r_ties_##f, {5}, GRAD(ties, "d")},  \
        {.op = #f, say "expanded", "*[3,4]:apart:expanded", b_##f, r_##f, {2, 0}},             \
        {.op = #f,                                                                             \
         say "shared",                                                                         \
         "*[3,40]:expanded",                                                                   \
         b_##f,                                                                                \
         r_##f,                                                                                \
         {1, 0},                                                                               \
         .flags = CASE_NO_CHECK}, /* ties */                                                   \
    {                                                                                          \
        .op = #f, say "many rows", "*[70,301]:apart", b_##f, r_##f, {2, 0}, .flags = CASE_BIG, \
        GRAD(extreme, "c")                                                                     \
    }

#define VAR(name, in, how, ...)                                          \
    {                                                                    \
        .op = "mean", name, in, b_var, r_var, {__VA_ARGS__}, .rows = how \
    }
#define VAR_GRAD(name, in, how, ...)                                                              \
    {                                                                                             \
        .op = "mean", name, in, b_var_of_value, r_var, {__VA_ARGS__}, .rows = how, GRAD(var, "c") \
    }
#define SUMS(name, in, how, ...)                                                  \
    {                                                                             \
        .op = "cumsum", name, in, b_cumsum, r_cumsum, {__VA_ARGS__}, .rows = how, \
        GRAD(cumsum, "c")                                                         \
    }

const tl_case tl_cases_scan[] = {
    FORMS(min, ""),
    FORMS(max, "gradient, "),
    VAR("var 7", "*[3,7]", "b", 2, 0, 0),
    VAR("var 7 corrected", "*[3,7]", "b", 2, 0, 1),
    VAR("var 31 turned", "*[2,31]:turned", "b", 2, 1, 1),
    VAR("var 33 strided", "*[2,33]:strided", "b", 2, 0, 0),
    VAR("var of two dims", "*[2,3,5]:padded", "b", 6, 0, 1),
    VAR("var of a middle dim", "*[2,5,3]", "b", 2, 0, 1),
    VAR("var of axis 0", "*[5,3]", NULL, 1, 0, 1),
    VAR("var of all", "*[3,4,5]:heads", NULL, 7, 0, 0),
    VAR("var of first and last", "*[3,2,5]", NULL, 5, 1, 1),
    VAR_GRAD("var, gradient of 7", "*[3,7]", "b", 2, 0, 0),
    VAR_GRAD("var, gradient of 33 corrected", "*[3,33]:turned", "b", 2, 1, 1),
    VAR_GRAD("var, gradient of a middle dim", "*[2,5,3]", "b", 2, 0, 1),
    VAR_GRAD("var, gradient of all", "*[3,4,5]:heads", NULL, 7, 0, 0),
    {.op = "mean", "var of no rows", "*[0,3]", b_var, r_var, {2, 0, 1}},
    {.op = "mean",
     "var of one",
     "*[3,1]",
     b_var,
     r_var,
     {2, 0, 0},
     .rows = "b",
     .flags = CASE_NO_CHECK}, /* gradient zero */
    {.op = "mean",
     "var of one corrected",
     "*[3,1]",
     b_var,
     r_var,
     {2, 0, 1},
     .rows = "b",
     .flags = CASE_NO_CHECK}, /* NaN */
    {.op = "mean",
     "var of nothing",
     "*[3,0]",
     b_var,
     r_var,
     {2, 0, 0},
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "mean", "var of many", "*[70,301]", b_var, r_var, {2, 0, 1}, .flags = CASE_BIG},
    {.op = "mean", "mse", "*[3,5] *[3,5]", b_mse, r_mse},
    {.op = "mean", "mse of rows", "*[33] *[33]:strided", b_mse, r_mse},
    {.op = "mean", "mse of views", "*[2,3,5]:heads *[2,3,5]:turned", b_mse, r_mse},
    {.op = "mean", "mse to a row", "*[4,5] *[5]", b_mse, r_mse},
    {.op = "mean", "mse 0-d", "*[] *[]", b_mse, r_mse},
    {.op = "mean", "mse of f16 and f32", "f16[3,4] f32[3,4]", b_mse, r_mse},
    {.op = "mean", "mse of bf16 and f16", "bf16[7] f16[7]", b_mse, r_mse},
    {.op = "mean",
     "mse of nothing",
     "*[0,3] *[3]",
     b_mse,
     r_mse,
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "mean", "mse of many", "*[70,301] *[70,301]", b_mse, r_mse, .flags = CASE_BIG},
    SUMS("7", "*[3,7]", "b", 1, 0),
    SUMS("7 reversed", "*[3,7]", "b", -1, 1),
    SUMS("33", "*[2,33]:padded", "b", -1, 0),
    SUMS("33 reversed", "*[2,33]:strided", "b", 1, 1),
    SUMS("turned", "*[5,4]:turned", "b", 1, 0),
    SUMS("turned reversed", "*[5,4]:turned", "b", 1, 1),
    SUMS("middle", "*[2,5,3]", "b", 1, 0),
    SUMS("middle reversed", "*[2,5,3]:heads", "b", -2, 1),
    SUMS("axis 0", "*[9,3]", NULL, 0, 0),
    SUMS("axis 0 reversed", "*[9,3]:padded", NULL, 0, 1),
    SUMS("a row", "*[33]", NULL, 0, 0),
    SUMS("one", "*[3,1]", "b", 1, 1),
    SUMS("no rows", "*[0,3]", NULL, 1, 0),
    SUMS("nothing", "*[3,0]", NULL, 1, 0),
    {.op = "cumsum", "expanded", "*[3,4]:expanded", b_cumsum, r_cumsum, {1, 0}},
    {.op = "cumsum",
     "many",
     "*[130,300]",
     b_cumsum,
     r_cumsum,
     {1, 0},
     .flags = CASE_BIG,
     GRAD(cumsum, "c")},
};
const int tl_cases_scan_count = sizeof tl_cases_scan / sizeof tl_cases_scan[0];
