/* rows.c: cases of softmax, log_softmax and their gradients as ops: NUMERICS 6.3, 6.4. */
#include <math.h>

#include "tests/cases/cases.h"

/* p: dim */
#define X(f)                                                                            \
    static int b_##f(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out) \
    {                                                                                   \
        out[0] = tl_##f(t, in[0], (int)c->p[0]);                                        \
        return 1;                                                                       \
    }                                                                                   \
    static int dim_of_##f(const tl_case *c, const ref_tensor *x)                        \
    {                                                                                   \
        return c->p[0] < 0 ? x->ndim + (int)c->p[0] : (int)c->p[0];                     \
    }                                                                                   \
    static void r_##f(const tl_case *c, const ref_tensor *in, ref_tensor *out)          \
    {                                                                                   \
        out[0] = ref_##f(&in[0], dim_of_##f(c, in));                                    \
    }                                                                                   \
    static void g_##f(const tl_case *c, const ref_tensor *in, const ref_tensor *out,    \
                      const ref_tensor *dy, ref_tensor *acc)                            \
    {                                                                                   \
        tl_case_continue(&acc[0], ref_##f##_grad(dy, &out[0], dim_of_##f(c, in)));      \
    }
X(softmax)
X(log_softmax)
#undef X

/* A row of nothing but -inf, in the shape of x. */
#define X(f)                                                                                       \
    static int b_none_##f(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)       \
    {                                                                                              \
        tl_tensor x = tl_fill(t, tl_dtype_of(t, in[0]), tl_shape_of(t, in[0]), -(double)INFINITY); \
        return b_##f(t, &x, c, out);                                                               \
    }                                                                                              \
    static void r_none_##f(const tl_case *c, const ref_tensor *in, ref_tensor *out)                \
    {                                                                                              \
        ref_tensor x = ref_like(&in[0], in[0].dtype);                                              \
        for (int64_t i = 0; i < ref_numel(&x); i++)                                                \
            ref_set(&x, i, -(double)INFINITY);                                                     \
        r_##f(c, &x, out);                                                                         \
        ref_free(&x);                                                                              \
    }
X(softmax)
X(log_softmax)
#undef X

/* in: dy, y; over the last dim */
#define X(f)                                                                            \
    static int b_##f(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out) \
    {                                                                                   \
        (void)c;                                                                        \
        out[0] = tl_apply1(TL_AT(t), &tl_op_##f, NULL, in, 2);                          \
        return 1;                                                                       \
    }                                                                                   \
    static void r_##f(const tl_case *c, const ref_tensor *in, ref_tensor *out)          \
    {                                                                                   \
        (void)c;                                                                        \
        out[0] = ref_##f(&in[0], &in[1], in[0].ndim - 1);                               \
    }
X(softmax_grad)
X(log_softmax_grad)
#undef X

#define FORMS(f)                                                                               \
    {.op = #f, "3", "*[4,3]", b_##f, r_##f, {-1}, .rows = "b", .gradient = g_##f, .acc = "c"}, \
        {.op = #f,                                                                             \
         "31",                                                                                 \
         "*[2,31]",                                                                            \
         b_##f,                                                                                \
         r_##f,                                                                                \
         {-1},                                                                                 \
         .rows = "b",                                                                          \
         .gradient = g_##f,                                                                    \
         .acc = "c"},                                                                          \
        {.op = #f,                                                                             \
         "32",                                                                                 \
         "*[2,32]:padded",                                                                     \
         b_##f,                                                                                \
         r_##f,                                                                                \
         {1},                                                                                  \
         .rows = "b",                                                                          \
         .gradient = g_##f,                                                                    \
         .acc = "c"},                                                                          \
        {.op = #f,                                                                             \
         "33",                                                                                 \
         "*[2,33]:strided",                                                                    \
         b_##f,                                                                                \
         r_##f,                                                                                \
         {-1},                                                                                 \
         .rows = "b",                                                                          \
         .gradient = g_##f,                                                                    \
         .acc = "c"},                                                                          \
        {.op = #f,                                                                             \
         "257",                                                                                \
         "*[2,257]",                                                                           \
         b_##f,                                                                                \
         r_##f,                                                                                \
         {-1},                                                                                 \
         .rows = "b",                                                                          \
         .gradient = g_##f,                                                                    \
         .acc = "c",                                                                           \
         .flags = CASE_NO_CHECK}, /* slow */                                                   \
        {.op = #f,                                                                             \
         "turned",                                                                             \
         "*[5,7]:turned",                                                                      \
         b_##f,                                                                                \
         r_##f,                                                                                \
         {-1},                                                                                 \
         .rows = "b",                                                                          \
         .gradient = g_##f,                                                                    \
         .acc = "c"},                                                                          \
        {.op = #f, "first dim", "*[5,3]", b_##f, r_##f, {0}, .gradient = g_##f, .acc = "c"},   \
        {.op = #f,                                                                             \
         "middle dim",                                                                         \
         "*[2,5,3]",                                                                           \
         b_##f,                                                                                \
         r_##f,                                                                                \
         {1},                                                                                  \
         .rows = "b",                                                                          \
         .gradient = g_##f,                                                                    \
         .acc = "c"},                                                                          \
        {.op = #f, "1-d", "*[9]", b_##f, r_##f, {0}, .gradient = g_##f, .acc = "c"},           \
        {.op = #f,                                                                             \
         "one class",                                                                          \
         "*[3,1]",                                                                             \
         b_##f,                                                                                \
         r_##f,                                                                                \
         {-1},                                                                                 \
         .rows = "b",                                                                          \
         .flags = CASE_NO_CHECK}, /* gradient zero everywhere */                               \
        {.op = #f, "all -inf", "*[3,33]:fixed", b_none_##f, r_none_##f, {-1}},                 \
        {.op = #f, "expanded", "*[3,4]:expanded", b_##f, r_##f, {-1}},                         \
        {.op = #f, "no rows", "*[0,3]", b_##f, r_##f, {-1}},                                   \
        {.op = #f,                                                                             \
         "empty rows",                                                                         \
         "*[3,0]",                                                                             \
         b_##f,                                                                                \
         r_##f,                                                                                \
         {-1},                                                                                 \
         .flags = CASE_NO_CHECK}, /* no elements */                                            \
    {                                                                                          \
        .op = #f, "many", "*[60,301]", b_##f, r_##f, {-1}, .flags = CASE_BIG                   \
    }

#define GRADS(f)                                                                             \
    {.op = #f, "3", "*[4,3] *[4,3]:unit", b_##f, r_##f, .rows = "bb"},                       \
        {.op = #f, "33", "*[2,33]:padded *[2,33]:strided:unit", b_##f, r_##f, .rows = "bb"}, \
        {.op = #f, "turned", "*[5,7] *[5,7]:turned:unit", b_##f, r_##f, .rows = "bb"},       \
        {.op = #f, "1-d", "*[9] *[9]:unit", b_##f, r_##f},                                   \
        {.op = #f, "no rows", "*[0,3] *[0,3]", b_##f, r_##f},                                \
        {.op = #f, "empty rows", "*[3,0] *[3,0]", b_##f, r_##f},                             \
    {                                                                                        \
        .op = #f, "many", "*[60,301] *[60,301]:unit", b_##f, r_##f, .flags = CASE_BIG        \
    }

const tl_case tl_cases_rows[] = {FORMS(softmax), FORMS(log_softmax), GRADS(softmax_grad),
                                 GRADS(log_softmax_grad)};
const int tl_cases_rows_count = sizeof tl_cases_rows / sizeof tl_cases_rows[0];
