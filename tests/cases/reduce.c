/* reduce.c: cases of sum, mean, max, argmax, sum_to, square_sum: NUMERICS 3, 4 and 12.2. */
#include <math.h>

#include "ops/optimize.h"
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
    }
X(sum)
X(mean)
X(max)
#undef X

static void r_sum(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_sum(&in[0], (unsigned)c->p[0], c->p[1] != 0, NULL);
}
static void r_mean(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_mean(&in[0], (unsigned)c->p[0], c->p[1] != 0);
}
static void r_max(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_max(&in[0], (unsigned)c->p[0], c->p[1] != 0);
}

/* p: dim, keepdims */
static int b_argmax(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_argmax(t, in[0], (int)c->p[0], c->p[1] != 0);
    return 1;
}

static void r_argmax(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    int dim = (int)c->p[0];
    out[0] = ref_argmax(&in[0], dim < 0 ? dim + in[0].ndim : dim, c->p[1] != 0);
}

/* dy seen in x's shape. */
static ref_tensor spread(const tl_case *c, const ref_tensor *x, const ref_tensor *dy)
{
    ref_tensor kept = *dy, yes = ref_like(x, REF_BOOL);
    kept.ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++)
        kept.dim[d] = (unsigned)c->p[0] >> d & 1 ? 1 : x->dim[d];
    ref_tensor y = ref_where(&yes, &kept, &kept);
    ref_free(&yes);
    return y;
}

static void g_sum(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                  const ref_tensor *dy, ref_tensor *acc)
{
    (void)out;
    tl_case_continue(&acc[0], spread(c, &in[0], dy));
}

/* 4.1: dy / n in the compute type, n the number of terms rounded to it. */
static void g_mean(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                   const ref_tensor *dy, ref_tensor *acc)
{
    const ref_dtype d = ref_compute(in[0].dtype);
    ref_tensor all = spread(c, &in[0], dy), dx = ref_like(&all, d);
    double n = 1;
    (void)out;
    for (int i = 0; i < in[0].ndim; i++)
        n *= (unsigned)c->p[0] >> i & 1 ? (double)in[0].dim[i] : 1;
    for (int64_t i = 0; i < ref_numel(&all); i++)
        ref_set(&dx, i, ref_round(d, ref_get(&all, i) / ref_round(d, n)));
    ref_free(&all);
    tl_case_continue(&acc[0], dx);
}

/* p: shape */
static int b_sum_to(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_sum_to(t, in[0], tl_case_shape(c->p), in[1]);
    return 1;
}

/* An accumulator of x's own shape and f32 takes x element by element (10.3); any other fold is f64
 * (3.2). */
static void r_sum_to(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    tl_shape s = tl_case_shape(c->p);
    if (in[1].data == NULL) {
        out[0] = ref_sum_to(&in[0], s.ndim, s.dim, NULL);
    } else {
        out[0] = ref_copy(&in[1]);
        tl_case_continue(&out[0], ref_copy(&in[0]));
    }
}

static int b_square_sum(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    (void)c;
    out[0] = tl_square_sum_at(TL_AT(t), in[0]);
    return 1;
}

/* 12.2: the squares of the widened values, by lanes, in f64. */
static void r_square_sum(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_lanes l;
    (void)c;
    ref_lanes_start(&l, REF_F64);
    for (int64_t i = 0; i < ref_numel(&in[0]); i++)
        ref_lanes_add(&l, i, ref_get(&in[0], i) * ref_get(&in[0], i));
    double s = ref_lanes_sum(&l);
    out[0] = ref_from(REF_F64, 0, NULL, &s);
}

#define ALSO(f, g, domain)                                                                        \
    {.op = #f, "31", "*[2,31]" domain, b_##f, r_##f, {2, 0}, .rows = "b" g},                      \
        {.op = #f, "32", "*[2,32]" domain ":padded", b_##f, r_##f, {2, 0}, .rows = "b" g},        \
        {.op = #f, "33 kept", "*[3,33]" domain ":strided", b_##f, r_##f, {2, 1}, .rows = "b" g},  \
        {.op = #f, "65 turned", "*[3,65]" domain ":turned", b_##f, r_##f, {2, 0}, .rows = "b" g}, \
        {.op = #f, "two trailing dims", "*[2,3,7]" domain, b_##f, r_##f, {6, 0}, .rows = "b" g},  \
        {.op = #f,                                                                                \
         "two trailing dims of a view",                                                           \
         "*[2,5,7]" domain ":turned",                                                             \
         b_##f,                                                                                   \
         r_##f,                                                                                   \
         {6, 1},                                                                                  \
         .rows = "b" g},                                                                          \
        {.op = #f, "a middle dim", "*[3,4,5]" domain, b_##f, r_##f, {2, 0}, .rows = "b" g},       \
        {.op = #f, "middle and last", "*[2,3,4,5]" domain, b_##f, r_##f, {10, 0}, .rows = "b" g}, \
        {.op = #f, "axis 0", "*[33,3]" domain, b_##f, r_##f, {1, 0} g},                           \
        {.op = #f, "axis 0 of a row", "*[33]" domain, b_##f, r_##f, {1, 1} g},                    \
        {.op = #f, "all", "*[3,4,5]" domain ":padded", b_##f, r_##f, {7, 0} g},                   \
        {.op = #f, "first and last", "*[3,4,5]" domain ":heads", b_##f, r_##f, {5, 0} g},         \
        {.op = #f, "no dims", "*[3,4]" domain, b_##f, r_##f, {0, 0}, .rows = "b" g},              \
        {.op = #f, "0-d", "*[]" domain, b_##f, r_##f, {0, 0} g},                                  \
        {.op = #f, "no rows", "*[0,3]" domain, b_##f, r_##f, {2, 0}},                             \
    {                                                                                             \
        .op = #f, "many rows", "*[70,301]" domain, b_##f, r_##f, {2, 0}, .flags = CASE_BIG        \
    }
#define PLAIN
#define WITH_GRAD , .gradient = g_sum, .acc = "c"
#define WITH_MEAN , .gradient = g_mean, .acc = "c"

const tl_case tl_cases_reduce[] = {
    ALSO(sum, WITH_GRAD, ""),
    ALSO(mean, WITH_MEAN, ""),
    ALSO(max, PLAIN, ":apart"),
    {.op = "sum", "size 1 in the row", "*[2,3,1]", b_sum, r_sum, {4, 0}, .rows = "b"},
    {.op = "sum",
     "of nothing",
     "*[3,0]",
     b_sum,
     r_sum,
     {2, 0},
     .flags = CASE_NO_CHECK}, /* no elements to check */
    {.op = "sum", "of no rows", "*[0,3]", b_sum, r_sum, {1, 0}, .flags = CASE_NO_CHECK},
    {.op = "mean", "of nothing", "*[3,0]", b_mean, r_mean, {2, 1}, .flags = CASE_NO_CHECK},
    {.op = "sum", "a long fold", "*[700,50]", b_sum, r_sum, {1, 0}, .flags = CASE_BIG},
    {.op = "sum", "strips of columns", "*[37,203]", b_sum, r_sum, {1, 0}, .flags = CASE_BIG},
    {.op = "sum", "strips, turned", "*[37,203]:turned", b_sum, r_sum, {1, 0}, .flags = CASE_BIG},
    {.op = "argmax", "last", "*[4,33]:turned", b_argmax, r_argmax, {-1, 0}, .rows = "b"},
    {.op = "argmax", "first", "*[7,3]:strided", b_argmax, r_argmax, {0, 1}},
    {.op = "argmax", "middle", "*[3,5,4]", b_argmax, r_argmax, {1, 0}, .rows = "b"},
    {.op = "argmax", "one", "*[3,1]", b_argmax, r_argmax, {1, 1}, .rows = "b"},
    {.op = "sum_to", "a row", "*[33,5] -", b_sum_to, r_sum_to, {1, 5}},
    {.op = "sum_to", "a column", "*[4,33]:padded -", b_sum_to, r_sum_to, {2, 4, 1}, .rows = NULL},
    {.op = "sum_to", "the middle", "*[3,4,5]:turned -", b_sum_to, r_sum_to, {3, 1, 4, 1}},
    {.op = "sum_to", "one element", "*[3,4,5]:heads -", b_sum_to, r_sum_to, {0}},
    {.op = "sum_to", "itself", "*[3,4]:strided -", b_sum_to, r_sum_to, {2, 3, 4}},
    {.op = "sum_to", "in order", "*[7,67] -", b_sum_to, r_sum_to, {2, 7, 67}, .flags = CASE_BIG},
    {.op = "sum_to", "no lead", "*[1,7,67] -", b_sum_to, r_sum_to, {2, 7, 67}, .flags = CASE_BIG},
    {.op = "sum_to", "0-d itself", "*[] -", b_sum_to, r_sum_to, {0}},
    {.op = "sum_to",
     "of no rows",
     "*[0,3] -",
     b_sum_to,
     r_sum_to,
     {1, 3},
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "sum_to", "continued in f64", "*[6,5] f64[5]:fixed", b_sum_to, r_sum_to, {1, 5}},
    {.op = "sum_to",
     "continued in f64 by columns",
     "*[6,5]:turned f64[6,1]:fixed",
     b_sum_to,
     r_sum_to,
     {2, 6, 1}},
    {.op = "sum_to",
     "continued alike in f64",
     "*[6,5] f64[6,5]:fixed",
     b_sum_to,
     r_sum_to,
     {2, 6, 5}},
    {.op = "sum_to",
     "continued alike",
     "*[3,11]:turned c[3,11]:fixed",
     b_sum_to,
     r_sum_to,
     {2, 3, 11}},
    {.op = "sum_to",
     "continued in a view",
     "*[3,7] f64[7]:strided:fixed",
     b_sum_to,
     r_sum_to,
     {1, 7}},
    {.op = "sum_to",
     "continued alike in a view",
     "*[3,7] c[3,7]:turned:fixed",
     b_sum_to,
     r_sum_to,
     {2, 3, 7}},
    {.op = "sum_to", "many", "*[300,130] -", b_sum_to, r_sum_to, {1, 130}, .flags = CASE_BIG},
    {.op = "square_sum", "33", "*[33]", b_square_sum, r_square_sum},
    {.op = "square_sum", "turned", "*[5,9]:turned", b_square_sum, r_square_sum},
    {.op = "square_sum", "0-d", "*[]", b_square_sum, r_square_sum},
    {.op = "square_sum",
     "nothing",
     "*[0]",
     b_square_sum,
     r_square_sum,
     .flags = CASE_NO_CHECK}, /* no elements */
};
const int tl_cases_reduce_count = sizeof tl_cases_reduce / sizeof tl_cases_reduce[0];
