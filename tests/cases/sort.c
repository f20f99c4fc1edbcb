/* sort.c: cases of argsort, sort, topk and index_select: NUMERICS 4.7, 9.2. */
#include "tests/cases/cases.h"

static int dim_of(const tl_case *c, const ref_tensor *x)
{
    return (int)(c->p[0] < 0 ? c->p[0] + x->ndim : c->p[0]);
}

/* p: dim, descending */
static int b_argsort(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    return out[0] = tl_argsort(t, in[0], (int)c->p[0], c->p[1] != 0), 1;
}

static void r_argsort(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_argsort(&in[0], dim_of(c, in), c->p[1] != 0);
}

static int b_sort(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    return out[0] = tl_sort(t, in[0], (int)c->p[0], c->p[1] != 0, &out[1]), 2;
}

static void r_sort(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[1] = ref_argsort(&in[0], dim_of(c, in), c->p[1] != 0);
    out[0] = ref_gather(&in[0], &out[1], dim_of(c, in));
}

static void g_sort(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                   const ref_tensor *dy, ref_tensor *acc)
{
    tl_case_continue(&acc[0],
                     ref_scatter_add_dim(dy, &out[1], dim_of(c, in), in[0].ndim, in[0].dim));
}

/* p: dim, smallest, k */
static int b_topk(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    return out[0] = tl_topk(t, in[0], (int64_t)c->p[2], (int)c->p[0], c->p[1] != 0, &out[1]), 2;
}

static void r_topk(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    int d = dim_of(c, in);
    ref_tensor all = ref_argsort(&in[0], d, c->p[1] == 0);
    out[1] = ref_slice(&all, d, 0, (int64_t)c->p[2], 1);
    out[0] = ref_gather(&in[0], &out[1], d);
    ref_free(&all);
}

/* in: x, ids; p: dim */
static int b_select(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    return out[0] = tl_index_select(t, in[0], (int)c->p[0], in[1]), 1;
}

static void r_select(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    int d = dim_of(c, in);
    ref_tensor part[CASE_PARAMS];
    const ref_tensor *at[CASE_PARAMS];
    for (int i = 0; i < (int)in[1].dim[0]; i++) {
        int64_t id = ref_get_i64(&in[1], i);
        part[i] = ref_slice(&in[0], d, id, id + 1, 1);
        at[i] = &part[i];
    }
    out[0] = ref_concat((int)in[1].dim[0], at, d);
    tl_case_free((int)in[1].dim[0], part);
}

#define ORDER(f, name, in, how, ...)                                        \
    {                                                                       \
        .op = "argsort", name, in, b_##f, r_##f, {__VA_ARGS__}, .rows = how \
    }
#define SORT(name, in, how, ...)                                                                  \
    {                                                                                             \
        .op = "gather", name, in, b_sort, r_sort, {__VA_ARGS__}, .rows = how, .gradient = g_sort, \
        .acc = "c"                                                                                \
    }
#define TOP(name, in, how, ...)                                                                   \
    {                                                                                             \
        .op = "gather", name, in, b_topk, r_topk, {__VA_ARGS__}, .rows = how, .gradient = g_sort, \
        .acc = "c"                                                                                \
    }
#define SELECT(name, in, how, d)                                                  \
    {                                                                             \
        .op = "gather", "slices, " name, in, b_select, r_select, {d}, .rows = how \
    }

const tl_case tl_cases_sort[] = {
    ORDER(argsort, "33", "*[3,33]:strided", "b", 1, 0),
    ORDER(argsort, "33 descending", "*[3,33]:turned", "b", -1, 1),
    ORDER(argsort, "middle", "*[2,9,3]", "b", 1, 0),
    ORDER(argsort, "axis 0", "*[7,3]:padded", NULL, 0, 1),
    ORDER(argsort, "ids with equals", "i64[2,40]:below5", "b", 1, 0),
    ORDER(argsort, "ids with equals descending", "i64[2,40]:below5", "b", 1, 1),
    ORDER(argsort, "i64", "i64[50]:fixed", NULL, 0, 0),
    ORDER(argsort, "many equals", "i64[2,400]:below5", "b", 1, 1),
    ORDER(argsort, "many i64", "i64[700]:fixed", NULL, 0, 1),
    ORDER(argsort, "300", "*[2,300]", "b", 1, 0),
    ORDER(argsort, "300 descending", "*[2,300]", "b", 1, 1),
    ORDER(argsort, "one", "*[3,1]", "b", 1, 1),
    ORDER(argsort, "nothing", "*[3,0]", NULL, 1, 0),
    {.op = "argsort", "many", "*[130,300]", b_argsort, r_argsort, {1, 0}, .flags = CASE_BIG},
    SORT("sort 7", "*[3,7]:apart", "b", 1, 0),
    SORT("sort a middle dim, descending", "*[2,5,3]:apart:heads", "b", 1, 1),
    SORT("sort axis 0", "*[9,2]:apart:strided", NULL, 0, 0),
    {.op = "gather",
     "sort i64",
     "i64[3,9]:fixed",
     b_sort,
     r_sort,
     {1, 0},
     .rows = "b",
     .flags = CASE_NO_CHECK}, /* no float */
    TOP("topk", "*[3,33]:apart", "b", 1, 0, 4),
    TOP("topk of the smallest", "*[2,5,3]:apart:turned", "b", -2, 1, 2),
    TOP("topk of all", "*[3,4]:apart", "b", 1, 0, 4),
    {.op = "gather",
     "topk of none",
     "*[3,4]",
     b_topk,
     r_topk,
     {1, 0, 0},
     .flags = CASE_NO_CHECK}, /* no elements */
    SELECT("rows", "*[5,3] i64[7]:below5", "-b", 0),
    SELECT("middle", "*[2,5,3]:turned i64[4]:below5", NULL, 1),
    SELECT("last of a view", "*[3,6]:strided i64[4]:below6", NULL, -1),
};
const int tl_cases_sort_count = sizeof tl_cases_sort / sizeof tl_cases_sort[0];
