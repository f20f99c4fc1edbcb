/* index.c: cases of embedding and scatter_add: NUMERICS 9. */
#include "tests/cases/cases.h"

/* p: the gradient folds in f64 */
static int b_embedding(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = c->p[0] != 0 ? tl_embedding_acc64(t, in[0], in[1]) : tl_embedding(t, in[0], in[1]);
    return 1;
}

static void r_embedding(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    (void)c;
    out[0] = ref_embedding(&in[0], &in[1]);
}

static void g_embedding(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                        const ref_tensor *dy, ref_tensor *acc)
{
    (void)c, (void)out;
    ref_tensor dw = ref_embedding_grad(dy, &in[1], in[0].dim[0], &acc[0]);
    ref_free(&dw);
}

/* in: dy, ids, acc?; p: rows, folds in f64 */
static int b_scatter(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    const tl_op *op = tl_op_find("scatter_add");
    case_attrs a = {.bytes = {0}};
    tl_case_attr(op, &a, "rows", c->p[0]);
    tl_case_attr(op, &a, "acc_f64", c->p[1]);
    out[0] = tl_apply1(TL_AT(t), op, &a, in, 3);
    return 1;
}

static bool met(const ref_tensor *ids, int64_t row)
{
    for (int64_t i = 0; i < ref_numel(ids); i++)
        if (ref_get_i64(ids, i) == row)
            return true;
    return false;
}

/* The result is of the compute type, or f64; an accumulator's element that no row meets stays as it
 * is (9.1). */
static void r_scatter(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    int64_t dim[2] = {(int64_t)c->p[0], in[0].dim[in[0].ndim - 1]};
    out[0] = in[2].data ? ref_copy(&in[2])
                        : ref_new(c->p[1] != 0 ? REF_F64 : ref_compute(in[0].dtype), 2, dim);
    ref_tensor rounded = ref_embedding_grad(&in[0], &in[1], dim[0], &out[0]);
    for (int64_t i = 0; in[2].data && i < ref_numel(&in[2]); i++)
        if (!met(&in[1], i / dim[1]))
            ref_set(&out[0], i, ref_get(&in[2], i));
    ref_free(&rounded);
}

#define GRAD .gradient = g_embedding, .acc = "c-"
const tl_case tl_cases_index[] = {
    {.op = "embedding",
     "repeated ids",
     "*[5,3] i64[9]:below5",
     b_embedding,
     r_embedding,
     .rows = "pb",
     GRAD},
    {.op = "embedding",
     "33 wide",
     "*[4,33] i64[6]:below3",
     b_embedding,
     r_embedding,
     .rows = "pb",
     GRAD},
    {.op = "embedding",
     "matrix of ids",
     "*[7,2]:turned i64[3,4]:below7:turned",
     b_embedding,
     r_embedding,
     .rows = "pb",
     GRAD},
    {.op = "embedding",
     "views",
     "*[7,5]:strided i64[6]:below7:strided",
     b_embedding,
     r_embedding,
     .rows = "pb",
     GRAD},
    {.op = "embedding",
     "padded",
     "*[7,5]:padded i64[6]:below7:padded",
     b_embedding,
     r_embedding,
     .rows = "pb",
     GRAD},
    {.op = "embedding", "one id", "*[3,4] i64[]:below3", b_embedding, r_embedding, GRAD},
    {.op = "embedding",
     "one row",
     "*[1,4] i64[5]:below1",
     b_embedding,
     r_embedding,
     .rows = "pb",
     GRAD},
    {.op = "embedding",
     "no ids",
     "*[3,4] i64[0]:below3",
     b_embedding,
     r_embedding,
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "embedding",
     "empty rows",
     "*[3,0] i64[4]:below3",
     b_embedding,
     r_embedding,
     .flags = CASE_NO_CHECK},
    {.op = "embedding", "expanded", "*[3,4]:expanded i64[5]:below3", b_embedding, r_embedding},
    {.op = "embedding",
     "many",
     "*[100,200] i64[500]:below100",
     b_embedding,
     r_embedding,
     .flags = CASE_BIG,
     GRAD},
    {.op = "embedding",
     "f64 fold",
     "*[5,3] i64[9]:below5",
     b_embedding,
     r_embedding,
     {1},
     .rows = "pb",
     .gradient = g_embedding,
     .acc = "d-"},
    {.op = "embedding",
     "f64 fold of views",
     "*[4,33]:strided i64[6,2]:below3:turned",
     b_embedding,
     r_embedding,
     {1},
     .rows = "pb",
     .gradient = g_embedding,
     .acc = "d-"},
    {.op = "scatter_add", "f64 fold", "*[9,3] i64[9]:below4 -", b_scatter, r_scatter, {5, 1}},
    {.op = "scatter_add",
     "f64 fold continued",
     "*[9,3]:strided i64[9]:below5 f64[5,3]:turned:fixed",
     b_scatter,
     r_scatter,
     {5, 1}},
    {.op = "scatter_add", "repeated ids", "*[9,3] i64[9]:below4 -", b_scatter, r_scatter, {5}},
    {.op = "scatter_add", "33 wide", "*[6,33]:padded i64[6]:below3 -", b_scatter, r_scatter, {4}},
    {.op = "scatter_add",
     "matrix of ids",
     "*[3,4,2]:turned i64[3,4]:below7 -",
     b_scatter,
     r_scatter,
     {7}},
    {.op = "scatter_add", "one id", "*[4] i64[]:below3 -", b_scatter, r_scatter, {3}},
    {.op = "scatter_add",
     "continued",
     "*[9,3] i64[9]:below5 c[5,3]:fixed",
     b_scatter,
     r_scatter,
     {5}},
    {.op = "scatter_add",
     "continued in a view",
     "*[9,3] i64[9]:below5 c[5,3]:turned:fixed",
     b_scatter,
     r_scatter,
     {5}},
    {.op = "scatter_add",
     "no ids",
     "*[0,3] i64[0]:below5 -",
     b_scatter,
     r_scatter,
     {5},
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "scatter_add",
     "many",
     "*[700,130] i64[700]:below40 -",
     b_scatter,
     r_scatter,
     {40},
     .flags = CASE_BIG},
    {.op = "scatter_add",
     "as many columns as ids",
     "*[3,3] i64[3]:below2 -",
     b_scatter,
     r_scatter,
     {2}},
    {.op = "scatter_add", /* threads divide the columns */
     "many columns",
     "*[300,700] i64[300]:below4 -",
     b_scatter,
     r_scatter,
     {4},
     .flags = CASE_BIG},
    {.op = "scatter_add",
     "many columns, f64 fold",
     "*[300,700] i64[300]:below4 -",
     b_scatter,
     r_scatter,
     {4, 1},
     .flags = CASE_BIG},
};
const int tl_cases_index_count = sizeof tl_cases_index / sizeof tl_cases_index[0];
