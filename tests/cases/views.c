/* views.c: cases of reshape, permute, slice, select, expand: the same elements, seen differently.
 */
#include "tests/cases/cases.h"

#define BUILD(name, call)                                                                  \
    static int b_##name(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out) \
    {                                                                                      \
        out[0] = call;                                                                     \
        return 1;                                                                          \
    }
#define REFERENCE(name) \
    static void r_##name(const tl_case *c, const ref_tensor *in, ref_tensor *out)
#define GRADIENT(name)                                                                  \
    static void g_##name(const tl_case *c, const ref_tensor *in, const ref_tensor *out, \
                         const ref_tensor *dy, ref_tensor *acc)

/* p: shape (one size may be -1) */
BUILD(reshape, tl_reshape(t, in[0], tl_case_shape(c->p)))
REFERENCE(reshape)
{
    tl_shape s = tl_case_shape(c->p);
    int64_t known = 1;
    for (int i = 0; i < s.ndim; i++)
        known *= s.dim[i] < 0 ? 1 : s.dim[i];
    for (int i = 0; i < s.ndim; i++)
        s.dim[i] = s.dim[i] < 0 ? ref_numel(&in[0]) / known : s.dim[i];
    ref_tensor seen = tl_case_shaped(&in[0], s.ndim, s.dim);
    out[0] = ref_copy(&seen);
}
GRADIENT(reshape)
{
    (void)c, (void)out;
    ref_tensor back = tl_case_shaped(dy, in[0].ndim, in[0].dim);
    tl_case_continue(&acc[0], ref_copy(&back));
}

/* p: order */
BUILD(permute, tl_permute(t, in[0], tl_case_shape(c->p)))
REFERENCE(permute)
{
    tl_shape s = tl_case_shape(c->p);
    int order[8];
    for (int i = 0; i < s.ndim; i++)
        order[i] = (int)(s.dim[i] < 0 ? s.dim[i] + s.ndim : s.dim[i]);
    out[0] = ref_permute(&in[0], order);
}
GRADIENT(permute)
{
    tl_shape s = tl_case_shape(c->p);
    int order[8];
    (void)in, (void)out;
    for (int i = 0; i < s.ndim; i++)
        order[s.dim[i] < 0 ? s.dim[i] + s.ndim : s.dim[i]] = i;
    tl_case_continue(&acc[0], ref_permute(dy, order));
}

/* p: dim, start, stop, step */
static int dim_of(const tl_case *c, const ref_tensor *x)
{
    return (int)(c->p[0] < 0 ? c->p[0] + x->ndim : c->p[0]);
}
BUILD(slice, tl_slice(t, in[0], (int)c->p[0], (int64_t)c->p[1], (int64_t)c->p[2], (int64_t)c->p[3]))
REFERENCE(slice)
{
    out[0] = ref_slice(&in[0], dim_of(c, in), (int64_t)c->p[1], (int64_t)c->p[2], (int64_t)c->p[3]);
}
GRADIENT(slice)
{
    int d = dim_of(c, in);
    (void)out;
    tl_case_continue(&acc[0],
                     ref_slice_grad(dy, d, in[0].dim[d], (int64_t)c->p[1], (int64_t)c->p[3]));
}

/* p: dim, index */
BUILD(select, tl_select(t, in[0], (int)c->p[0], (int64_t)c->p[1]))
REFERENCE(select)
{
    int d = dim_of(c, in);
    int64_t i = (int64_t)c->p[1] < 0 ? (int64_t)c->p[1] + in[0].dim[d] : (int64_t)c->p[1];
    out[0] = ref_slice(&in[0], d, i, i + 1, 1);
    for (int k = d; k + 1 < out[0].ndim; k++)
        out[0].dim[k] = out[0].dim[k + 1];
    out[0].ndim--;
}

/* p: shape */
BUILD(expand, tl_expand(t, in[0], tl_case_shape(c->p)))
REFERENCE(expand)
{
    tl_shape s = tl_case_shape(c->p);
    ref_tensor yes = ref_new(REF_BOOL, s.ndim, s.dim);
    out[0] = ref_where(&yes, &in[0], &in[0]);
    ref_free(&yes);
}
GRADIENT(expand)
{
    (void)c, (void)in, (void)out;
    tl_case_continue(&acc[0], ref_copy(dy));
}

#define ROW(f, name, in, ...)                                                          \
    {                                                                                  \
        .op = #f, name, in, b_##f, r_##f, {__VA_ARGS__}, .gradient = g_##f, .acc = "c" \
    }
#define FOLD(f, name, in, ...)                                                         \
    {                                                                                  \
        .op = #f, name, in, b_##f, r_##f, {__VA_ARGS__}, .gradient = g_##f, .acc = "d" \
    }
#define INTS(f, name, in, ...)                                                  \
    {                                                                           \
        .op = #f, name, in, b_##f, r_##f, {__VA_ARGS__}, .flags = CASE_NO_CHECK \
    } /* no float */

const tl_case tl_cases_views[] = {
    ROW(reshape, "flat", "*[3,4]", 1, 12),
    ROW(reshape, "open size", "*[3,4]", 3, 2, -1, 3),
    ROW(reshape, "a size of 1", "*[3,4]", 3, 3, 1, 4),
    ROW(reshape, "turned: by a copy", "*[3,4]:turned", 2, 2, 6),
    ROW(reshape, "padded: a view", "*[4,6]:padded", 3, 2, 2, 6),
    ROW(reshape, "strided", "*[2,6]:strided", 3, 2, 3, 2),
    ROW(reshape, "to 0-d", "*[1,1]", 0),
    ROW(reshape, "from 0-d", "*[]", 2, 1, 1),
    {.op = "reshape", "nothing", "*[0,3]", b_reshape, r_reshape, {2, 3, 0}},
    {.op = "reshape", "expanded", "*[3,4]:expanded", b_reshape, r_reshape, {1, 12}},
    INTS(reshape, "ids", "i64[3,4]:below5", 1, -1),
    ROW(permute, "turn", "*[3,4]", 2, 1, 0),
    ROW(permute, "cycle", "*[2,3,4]", 3, 2, 0, 1),
    ROW(permute, "negative", "*[2,3,4]:padded", 3, 0, -1, 1),
    ROW(permute, "itself", "*[3,4]:strided", 2, 0, 1),
    ROW(permute, "0-d", "*[]", 0),
    ROW(permute, "four dims", "*[2,3,1,4]:heads", 4, 3, 1, 0, 2),
    {.op = "permute", "nothing", "*[0,3]", b_permute, r_permute, {2, 1, 0}},
    INTS(permute, "mask", "bool[3,4]:mask", 2, 1, 0),
    ROW(slice, "part", "*[5,3]", 0, 1, 4, 1),
    ROW(slice, "steps", "*[2,33]:padded", -1, 1, 33, 5),
    ROW(slice, "all", "*[3,4]:turned", 1, 0, 4, 1),
    ROW(slice, "last", "*[3,4]", 0, 2, 3, 1),
    ROW(slice, "a step beyond", "*[7]", 0, 2, 7, 10),
    ROW(slice, "middle", "*[2,5,3]:heads", 1, 0, 5, 2),
    {.op = "slice",
     "none of it",
     "*[3,4]",
     b_slice,
     r_slice,
     {1, 2, 2, 1},
     .flags = CASE_NO_CHECK}, /* no elements */
    INTS(slice, "ids", "i64[9]:below5:strided", 0, 1, 9, 3),
    {.op = "select", "first dim", "*[5,3]", b_select, r_select, {0, 2}},
    {.op = "select", "last dim", "*[2,5]:turned", b_select, r_select, {-1, 4}, .rows = "b"},
    {.op = "select", "from the end", "*[2,5,3]:padded", b_select, r_select, {1, -2}, .rows = "b"},
    {.op = "select", "to 0-d", "*[4]:strided", b_select, r_select, {0, 3}},
    FOLD(expand, "rows", "*[4]", 2, 3, 4),
    FOLD(expand, "columns", "*[3,1]:turned", 2, 3, 4),
    FOLD(expand, "both", "*[1,3,1]", 3, 2, 3, 4),
    FOLD(expand, "0-d", "*[]", 2, 2, 3),
    ROW(expand, "itself", "*[3,4]:strided", 2, 3, 4),
    {.op = "expand",
     "to nothing",
     "*[1,3]",
     b_expand,
     r_expand,
     {2, 0, 3},
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "expand", "expanded", "*[3,4]:expanded", b_expand, r_expand, {3, 2, 3, 4}},
};
const int tl_cases_views_count = sizeof tl_cases_views / sizeof tl_cases_views[0];
