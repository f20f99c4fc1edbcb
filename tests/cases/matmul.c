/* matmul.c: cases of matmul: NUMERICS 3.3 and 5. */
#include <string.h>

#include "ops/build.h"
#include "tests/cases/cases.h"

static int b_matmul(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    (void)c;
    out[0] = tl_matmul(t, in[0], in[1]);
    return 1;
}

static ref_dtype met(const ref_tensor *a, const ref_tensor *b)
{
    return a->dtype == b->dtype ? a->dtype : REF_F32;
}

/* 1-d operands as in numpy: a row first, a column second, their dim dropped from the result. */
static void r_matmul(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_tensor a = in[0], b = in[1];
    bool row = a.ndim == 1, col = b.ndim == 1;
    (void)c;
    if (row)
        a = tl_case_shaped(&a, CASE_REF_DIMS(1, in[0].dim[0]));
    if (col)
        b = tl_case_shaped(&b, CASE_REF_DIMS(in[1].dim[0], 1));
    out[0] = ref_matmul(&a, &b, met(&a, &b), 0, 0, NULL, NULL);
    if (col)
        out[0].ndim--;
    if (row) {
        int n = out[0].ndim;
        if (!col)
            out[0].dim[n - 2] = out[0].dim[n - 1];
        out[0].ndim--;
    }
}

static ref_tensor turned(const ref_tensor *x)
{
    int order[8];
    for (int i = 0; i < x->ndim; i++)
        order[i] = i;
    order[x->ndim - 1] = x->ndim - 2;
    order[x->ndim - 2] = x->ndim - 1;
    return ref_permute(x, order);
}

/* dA = dC @ B^T, dB = A^T @ dC: chains in the accumulator's type, folded to the operand's batch
 * (5.1). */
static void g_matmul(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                     const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor at = turned(&in[0]), bt = turned(&in[1]), da, db;
    (void)c, (void)out;
    da = ref_matmul(dy, &bt, acc[0].dtype, acc[0].dtype == REF_F64, acc[0].ndim, acc[0].dim,
                    &acc[0]);
    db = ref_matmul(&at, dy, acc[1].dtype, acc[1].dtype == REF_F64, acc[1].ndim, acc[1].dim,
                    &acc[1]);
    ref_free(&da);
    ref_free(&db);
    ref_free(&at);
    ref_free(&bt);
}

/* p: chain in f64, batch of the output */
static int b_into(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    tl_matmul_attrs a = {.batch = tl_case_shape(c->p + 1), .acc_f64 = c->p[0] != 0};
    out[0] = tl_matmul_into_at(TL_AT(t), in[0], in[1], in[2], a);
    return 1;
}

static void r_into(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    tl_shape s = tl_case_shape(c->p + 1);
    bool acc = in[2].data != NULL;
    ref_tensor own = acc ? ref_copy(&in[2]) : (ref_tensor){0};
    s.dim[s.ndim++] = in[0].dim[in[0].ndim - 2];
    s.dim[s.ndim++] = in[1].dim[in[1].ndim - 1];
    out[0] = ref_matmul(&in[0], &in[1], acc ? own.dtype : met(&in[0], &in[1]), c->p[0] != 0, s.ndim,
                        s.dim, acc ? &own : NULL);
    ref_free(&own);
}

#define GRAD .gradient = g_matmul, .acc = "cc"
const tl_case tl_cases_matmul[] = {
    {.op = "matmul", "small", "*[2,3] *[3,4]", b_matmul, r_matmul, .rows = "bp", GRAD},
    {.op = "matmul", "odd", "*[5,7] *[7,3]", b_matmul, r_matmul, .rows = "bp", GRAD},
    {.op = "matmul", "a turned", "*[9,5]:turned *[5,6]", b_matmul, r_matmul, .rows = "bp", GRAD},
    {.op = "matmul", "b turned", "*[4,6] *[6,33]:turned", b_matmul, r_matmul, .rows = "bp", GRAD},
    {.op = "matmul",
     "padded and strided",
     "*[6,10]:padded *[10,5]:strided",
     b_matmul,
     r_matmul,
     .rows = "bp",
     GRAD},
    {.op = "matmul", "across a tile", "*[17,33] *[33,31]", b_matmul, r_matmul, .rows = "bp", GRAD},
    {.op = "matmul",
     "long chain",
     "*[2,300] *[300,2]",
     b_matmul,
     r_matmul,
     .rows = "bp",
     GRAD,
     .flags = CASE_NO_CHECK}, /* slow */
    {.op = "matmul", "one", "*[1,1] *[1,1]", b_matmul, r_matmul, GRAD},
    {.op = "matmul", "k = 1", "*[3,1] *[1,4]", b_matmul, r_matmul, .rows = "bp", GRAD},
    {.op = "matmul", "batched", "*[3,2,5] *[3,5,4]", b_matmul, r_matmul, .rows = "bb", GRAD},
    {.op = "matmul",
     "batched turned",
     "*[3,4,5]:turned *[3,5,2]:turned",
     b_matmul,
     r_matmul,
     .rows = "bb",
     GRAD},
    {.op = "matmul",
     "weights for a batch",
     "*[3,4,5] *[5,2]",
     b_matmul,
     r_matmul,
     .rows = "bp",
     GRAD},
    {.op = "matmul",
     "weights for a turned batch",
     "*[3,4,5]:heads *[5,2]:turned",
     b_matmul,
     r_matmul,
     .rows = "bp",
     GRAD},
    {.op = "matmul", "a shared", "*[2,5] *[3,5,4]", b_matmul, r_matmul, .rows = "pb", GRAD},
    {.op = "matmul",
     "batch of 1 and 3",
     "*[1,2,3] *[4,3,5]",
     b_matmul,
     r_matmul,
     .rows = "pb",
     GRAD},
    {.op = "matmul",
     "batches both ways",
     "*[2,1,3,4] *[3,4,2]",
     b_matmul,
     r_matmul,
     .rows = "bp",
     GRAD},
    {.op = "matmul", "expanded", "*[3,2,4]:expanded *[3,4,2]", b_matmul, r_matmul},
    {.op = "matmul", "row by column", "*[9] *[9]", b_matmul, r_matmul},
    {.op = "matmul", "row by matrix", "*[5] *[5,4]:turned", b_matmul, r_matmul},
    {.op = "matmul", "matrix by column", "*[4,5] *[5]", b_matmul, r_matmul, .rows = "bp"},
    {.op = "matmul", "batch by column", "*[2,4,5] *[5]", b_matmul, r_matmul, .rows = "bp"},
    {.op = "matmul", "no rows", "*[0,3] *[3,4]", b_matmul, r_matmul},
    {.op = "matmul",
     "k = 0",
     "*[2,0] *[0,4]",
     b_matmul,
     r_matmul,
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "matmul", "no columns", "*[2,3] *[3,0]", b_matmul, r_matmul, .flags = CASE_NO_CHECK},
    {.op = "matmul", "f16 and f32", "f16[5,7] f32[7,4]", b_matmul, r_matmul, .rows = "bp", GRAD},
    {.op = "matmul",
     "bf16 and f16",
     "bf16[5,7] f16[7,4]:turned",
     b_matmul,
     r_matmul,
     .rows = "bp",
     GRAD},
    {.op = "matmul",
     "f32 and bf16",
     "f32[2,5,7] bf16[7,4]",
     b_matmul,
     r_matmul,
     .rows = "bp",
     GRAD},
    {.op = "matmul", "many", "*[130,70] *[70,90]", b_matmul, r_matmul, .flags = CASE_BIG},
    {.op = "matmul",
     "many small ones",
     "*[40,9,17] *[40,17,9]",
     b_matmul,
     r_matmul,
     .flags = CASE_BIG},
    {.op = "matmul",
     "many shared",
     "*[12,30,20] *[20,33]:turned",
     b_matmul,
     r_matmul,
     .flags = CASE_BIG},
    {.op = "matmul", "folded", "*[3,2,5] *[3,5,4] -", b_into, r_into, {0, 0}},
    {.op = "matmul", "folded to 1", "*[3,2,5] *[3,5,4]:turned -", b_into, r_into, {0, 1, 1}},
    {.op = "matmul", "folded outside", "*[2,3,2,5] *[2,3,5,4] -", b_into, r_into, {0, 1, 3}},
    {.op = "matmul",
     "folded inside",
     "*[2,3,2,5]:heads *[2,3,5,4] -",
     b_into,
     r_into,
     {0, 2, 2, 1}},
    {.op = "matmul", "folded, b shared", "*[3,2,5] *[5,4] -", b_into, r_into, {0, 0}},
    {.op = "matmul",
     "folded over nothing",
     "*[0,2,5] *[0,5,4] -",
     b_into,
     r_into,
     {0, 0},
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "matmul",
     "f64 chain",
     "*[4,9] *[9,5] -",
     b_into,
     r_into,
     {1, 0},
     .gradient = g_matmul,
     .acc = "dd-"},
    {.op = "matmul", "continued", "*[4,9] *[9,5] c[4,5]:fixed", b_into, r_into, {0, 0}},
    {.op = "matmul", "continued in f64", "*[4,9] *[9,5] f64[4,5]:fixed", b_into, r_into, {1, 0}},
    {.op = "matmul",
     "continued in a view",
     "*[4,9] *[9,5] c[4,5]:turned:fixed",
     b_into,
     r_into,
     {0, 0}},
    {.op = "matmul",
     "continued and folded",
     "*[3,5,9]:turned *[3,9,5] c[5,5]:fixed",
     b_into,
     r_into,
     {0, 0}},
    {.op = "matmul",
     "continued by nothing",
     "*[4,0] *[0,5] c[4,5]:fixed",
     b_into,
     r_into,
     {0, 0},
     .flags = CASE_NO_CHECK},
};
const int tl_cases_matmul_count = sizeof tl_cases_matmul / sizeof tl_cases_matmul[0];
