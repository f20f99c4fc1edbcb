/* move.c: cases of contiguous, concat and slice_grad: elements moved, none computed. */
#include "tests/cases/cases.h"

/* Applied itself: tl_contiguous leaves out the op where nothing is to be done. */
static int b_contiguous(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    (void)c;
    out[0] = tl_apply1(TL_AT(t), tl_op_find("contiguous"), NULL, in, 1);
    return 1;
}

static void r_contiguous(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    (void)c, out[0] = ref_copy(&in[0]);
}

static void g_contiguous(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                         const ref_tensor *dy, ref_tensor *acc)
{
    (void)c, (void)in, (void)out;
    tl_case_continue(&acc[0], ref_copy(dy));
}

/* p: inputs, dim */
static int b_concat(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_concat(t, in, (int)c->p[0], (int)c->p[1]);
    return 1;
}

static int dim_of(const tl_case *c, const ref_tensor *x)
{
    return (int)(c->p[1] < 0 ? c->p[1] + x->ndim : c->p[1]);
}

static void r_concat(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    const ref_tensor *x[CASE_INPUTS];
    for (int i = 0; i < (int)c->p[0]; i++)
        x[i] = &in[i];
    out[0] = ref_concat((int)c->p[0], x, dim_of(c, in));
}

static void g_concat(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                     const ref_tensor *dy, ref_tensor *acc)
{
    int d = dim_of(c, in);
    (void)out;
    for (int64_t i = 0, at = 0; i < (int64_t)c->p[0]; at += in[i].dim[d], i++)
        tl_case_continue(&acc[i], ref_slice(dy, d, at, at + in[i].dim[d], 1));
}

/* p: inputs, axis, axis of the result, first sample, samples, elements of each */
static int b_samples(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    tl_stack_samples_attrs a = {(int64_t)c->p[1], (int64_t)c->p[2], (int64_t)c->p[3],
                                (int64_t)c->p[4], (int64_t)c->p[5]};
    out[0] = tl_apply1(TL_AT(t), &tl_op_stack_samples, &a, in, (int)c->p[0]);
    return 1;
}

static void r_samples(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    const ref_tensor *x[CASE_INPUTS];
    for (int i = 0; i < (int)c->p[0]; i++)
        x[i] = &in[i];
    out[0] = ref_stack_samples((int)c->p[0], x, (int)c->p[1], (int)c->p[2], (int64_t)c->p[3],
                               (int64_t)c->p[4], (int64_t)c->p[5]);
}

/* p: size, dim, start, step */
static int b_slice_grad(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_slice_grad(t, in[0], (int64_t)c->p[0], (int)c->p[1], (int64_t)c->p[2],
                           (int64_t)c->p[3]);
    return 1;
}

static void r_slice_grad(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_slice_grad(&in[0], dim_of(c, in), (int64_t)c->p[0], (int64_t)c->p[2],
                            (int64_t)c->p[3]);
}

static void g_slice_grad(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                         const ref_tensor *dy, ref_tensor *acc)
{
    int d = dim_of(c, in);
    int64_t start = (int64_t)c->p[2], step = (int64_t)c->p[3];
    (void)out;
    tl_case_continue(&acc[0], ref_slice(dy, d, start, start + (in[0].dim[d] - 1) * step + 1, step));
}

#define COPY(name, in)                                                                      \
    {                                                                                       \
        .op = "contiguous", name, in, b_contiguous, r_contiguous, .gradient = g_contiguous, \
        .acc = "c"                                                                          \
    }
#define JOIN(name, in, n, d, a)                                                              \
    {                                                                                        \
        .op = "concat", name, in, b_concat, r_concat, {n, d}, .gradient = g_concat, .acc = a \
    }
#define SAMPLES(name, in, ...)                                                 \
    {                                                                          \
        .op = "stack_samples", name, in, b_samples, r_samples, { __VA_ARGS__ } \
    }
#define PLACE(name, in, ...)                                                     \
    {                                                                            \
        .op = "slice_grad", name, in, b_slice_grad, r_slice_grad, {__VA_ARGS__}, \
        .gradient = g_slice_grad, .acc = "c"                                     \
    }

const tl_case tl_cases_move[] = {
    COPY("turned", "*[3,5]:turned"),
    COPY("strided", "*[2,33]:strided"),
    COPY("padded", "*[2,3,4]:padded"),
    COPY("heads", "*[2,3,4]:heads"),
    COPY("as it is", "*[3,4]"),
    COPY("0-d", "*[]"),
    {.op = "contiguous", "expanded", "*[3,4]:expanded", b_contiguous, r_contiguous},
    {.op = "contiguous", "nothing", "*[0,3]", b_contiguous, r_contiguous},
    {.op = "contiguous",
     "ids",
     "i64[4,3]:below9:turned",
     b_contiguous,
     r_contiguous,
     .flags = CASE_NO_CHECK}, /* no float */
    {.op = "contiguous",
     "mask",
     "bool[4,3]:mask:turned",
     b_contiguous,
     r_contiguous,
     .flags = CASE_NO_CHECK},
    JOIN("rows", "*[2,3] *[3,3]", 2, 0, "cc"),
    JOIN("columns", "*[2,3]:turned *[2,1] *[2,5]:strided", 3, -1, "ccc"),
    JOIN("middle", "*[2,1,3] *[2,4,3]:heads", 2, 1, "cc"),
    JOIN("alike", "*[2,3] *[2,3]", 2, 1, "cc"),
    JOIN("one", "*[3,4]:padded", 1, 0, "c"),
    JOIN("1-d", "*[3] *[33] *[2] *[1]", 4, 0, "cccc"),
    {.op = "concat",
     "with nothing",
     "*[0,3] *[2,3]",
     b_concat,
     r_concat,
     {2, 0},
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "concat", "expanded", "*[3,4]:expanded *[1,4]", b_concat, r_concat, {2, 0}},
    {.op = "concat",
     "ids",
     "i64[3]:below9 i64[2]:below9",
     b_concat,
     r_concat,
     {2, 0},
     .flags = CASE_NO_CHECK}, /* no float */
    SAMPLES("of two", "*[3,2] *[3,2]", 2, 0, 0, 1, 2, 1),
    SAMPLES("of one", "*[3,2,4]:heads", 1, 0, 0, 0, 3, 1),
    SAMPLES("time first", "*[2,3,4] *[2,3,4] *[2,3,4]", 3, 1, 0, 0, 3, 1),
    SAMPLES("last", "*[2,33]:turned *[2,33]", 2, 1, 0, 32, 1, 1),
    SAMPLES("1-d", "*[5] *[5]", 2, 0, 0, 0, 5, 1),
    SAMPLES("in place", "*[2,3,4] *[2,3,4]", 2, 1, 1, 1, 2, 1),
    SAMPLES("several each", "*[2,6,3] *[2,6,3]", 2, 1, 0, 0, 3, 2),
    SAMPLES("several each, in place", "*[2,12]:turned *[2,12]", 2, 1, 1, 1, 1, 5),
    SAMPLES("none", "*[5,2] *[5,2]", 2, 1, 0, 1, 0, 1),
    PLACE("first", "*[2,3]", 5, 0, 0, 1),
    PLACE("last", "*[2,3]:turned", 5, 0, 3, 1),
    PLACE("steps", "*[2,7]:strided", 33, -1, 1, 5),
    PLACE("all", "*[3,4]:padded", 4, 1, 0, 1),
    PLACE("middle", "*[2,3,2]:heads", 7, 1, 1, 2),
    {.op = "slice_grad",
     "nothing",
     "*[3,0]",
     b_slice_grad,
     r_slice_grad,
     {4, 1, 2, 1},
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "slice_grad",
     "nothing in nothing",
     "*[3,0]",
     b_slice_grad,
     r_slice_grad,
     {0, 1, 0, 1},
     .flags = CASE_NO_CHECK},
};
const int tl_cases_move_count = sizeof tl_cases_move / sizeof tl_cases_move[0];
