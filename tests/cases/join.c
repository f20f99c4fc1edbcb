/* join.c: cases of stack, split, chunk and split_sizes: elements moved, none computed. */
#include "tests/cases/cases.h"

/* p: inputs, dim */
static int b_stack(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_stack(t, in, (int)c->p[0], (int)c->p[1]);
    return 1;
}

static int stack_dim(const tl_case *c, const ref_tensor *x)
{
    return (int)(c->p[1] < 0 ? c->p[1] + x->ndim + 1 : c->p[1]);
}

static void r_stack(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    const ref_tensor *x[CASE_INPUTS];
    for (int i = 0; i < (int)c->p[0]; i++)
        x[i] = &in[i];
    out[0] = ref_stack((int)c->p[0], x, stack_dim(c, in));
}

static void g_stack(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                    const ref_tensor *dy, ref_tensor *acc)
{
    int d = stack_dim(c, in);
    (void)out;
    for (int64_t i = 0; i < (int64_t)c->p[0]; i++) {
        ref_tensor part = ref_slice(dy, d, i, i + 1, 1),
                   seen = tl_case_shaped(&part, in[i].ndim, in[i].dim);
        tl_case_continue(&acc[i], ref_copy(&seen));
        ref_free(&part);
    }
}

/* p: dim, pieces, size, and from p[3] on the sizes that come out */
static int b_split(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    tl_split(t, in[0], (int64_t)c->p[2], (int)c->p[0], out, (int)c->p[1]);
    return (int)c->p[1];
}

static int b_chunk(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    tl_chunk(t, in[0], (int)c->p[1], (int)c->p[0], out);
    return (int)c->p[1];
}

static int b_sizes(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    int64_t sizes[CASE_OUTPUTS];
    for (int i = 0; i < (int)c->p[1]; i++)
        sizes[i] = (int64_t)c->p[3 + i];
    tl_split_sizes(t, in[0], sizes, (int)c->p[1], (int)c->p[0], out);
    return (int)c->p[1];
}

static void r_pieces(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    int d = (int)(c->p[0] < 0 ? c->p[0] + in[0].ndim : c->p[0]);
    int64_t at = 0;
    for (int i = 0; i < (int)c->p[1]; i++) {
        out[i] = ref_slice(&in[0], d, at, at + (int64_t)c->p[3 + i], 1);
        at += (int64_t)c->p[3 + i];
    }
}

#define STACK(name, in, n, d, how, a)                                             \
    {                                                                             \
        .op = "concat", "stack " name, in, b_stack, r_stack, {n, d}, .rows = how, \
        .gradient = g_stack, .acc = a                                             \
    }
#define PIECES(f, name, in, how, d, n, ...)                                                \
    {                                                                                      \
        .op = "slice", #f " " name, in, b_##f, r_pieces, {d, n, __VA_ARGS__}, .rows = how, \
        .diff = n                                                                          \
    }

const tl_case tl_cases_join[] = {
    STACK("first", "*[2,3] *[2,3]", 2, 0, NULL, "cc"),
    STACK("middle", "*[2,3]:turned *[2,3]:padded *[2,3]:strided", 3, 1, "bbb", "ccc"),
    STACK("last", "*[2,3] *[2,3]", 2, -1, "bb", "cc"),
    STACK("0-d", "*[] *[] *[]", 3, 0, NULL, "ccc"),
    STACK("one", "*[3,4]:turned", 1, 1, "b", "c"),
    STACK("before the last", "*[2,2,33]:heads *[2,2,33]", 2, -2, "bb", "cc"),
    {.op = "concat", "stack nothing", "*[0,3] *[0,3]", b_stack, r_stack, {2, 1}},
    {.op = "concat",
     "stack ids",
     "i64[3]:below9 i64[3]:below9",
     b_stack,
     r_stack,
     {2, 0},
     .flags = CASE_NO_CHECK}, /* no float */
    {.op = "concat", "stack expanded", "*[3,4]:expanded *[3,4]", b_stack, r_stack, {2, 1}},
    PIECES(split, "even", "*[3,6]", "b", 1, 3, 2, 2, 2, 2),
    PIECES(split, "with a rest", "*[3,7]:turned", "b", -1, 4, 2, 2, 2, 2, 1),
    PIECES(split, "rows", "*[5,3]:strided", NULL, 0, 2, 3, 3, 2),
    PIECES(split, "more than there is", "*[2,3]", "b", 1, 1, 9, 3),
    PIECES(split, "middle", "*[2,5,3]:heads", "b", 1, 3, 2, 2, 2, 1),
    PIECES(chunk, "even", "*[3,6]:padded", "b", 1, 3, 0, 2, 2, 2),
    PIECES(chunk, "with a rest", "*[3,7]", "b", 1, 3, 0, 3, 3, 1),
    PIECES(chunk, "rows", "*[4,3]:turned", NULL, 0, 2, 0, 2, 2),
    PIECES(chunk, "one", "*[2,3]", "b", -1, 1, 0, 3),
    PIECES(sizes, "unequal", "*[2,9]", "b", 1, 3, 0, 1, 5, 3),
    PIECES(sizes, "rows of a view", "*[4,3]:padded", NULL, 0, 2, 0, 1, 3),
    PIECES(sizes, "packed", "*[2,3,12]:turned", "b", -1, 3, 0, 6, 3, 3),
    {.op = "slice",
     "sizes with an empty one",
     "*[2,3]",
     b_sizes,
     r_pieces,
     {1, 3, 0, 1, 0, 2},
     .flags = CASE_NO_CHECK,
     .diff = 3}, /* no elements */
};
const int tl_cases_join_count = sizeof tl_cases_join / sizeof tl_cases_join[0];
