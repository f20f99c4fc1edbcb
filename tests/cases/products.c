/* products.c: cases of matmul under its other names: mm, bmm, addmm, matmul_acc64, matmul_to:
 * NUMERICS 5.4 to 5.6. */
#include <math.h>

#include "tests/cases/cases.h"

static ref_dtype met(const ref_tensor *a, const ref_tensor *b)
{
    return a->dtype == b->dtype ? a->dtype : REF_F32;
}

#define X(f)                                                                            \
    static int b_##f(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out) \
    {                                                                                   \
        (void)c;                                                                        \
        out[0] = tl_##f(t, in[0], in[1]);                                               \
        return 1;                                                                       \
    }
X(mm)
X(bmm)
X(matmul_acc64)
#undef X

static void r_plain(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    (void)c;
    out[0] = ref_matmul(&in[0], &in[1], met(&in[0], &in[1]), 0, 0, NULL, NULL);
}

/* The chain in f64, rounded once. */
static void r_acc64(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    (void)c;
    out[0] = ref_matmul(&in[0], &in[1], met(&in[0], &in[1]), 1, 0, NULL, NULL);
}

/* p: dtype */
static int b_to(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_matmul_to(t, in[0], in[1], (tl_dtype)c->p[0]);
    return 1;
}

static void r_to(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_matmul(&in[0], &in[1], tl_case_ref_dtype((tl_dtype)c->p[0]), 0, 0, NULL, NULL);
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

/* dA = dC @ B^T, dB = A^T @ dC: chains in the accumulator's type, dC in it or exact in it. */
static void g_matmul(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                     const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor at = turned(&in[0]), bt = turned(&in[1]), g = ref_cast(dy, acc[0].dtype), da, db;
    (void)c, (void)out;
    da = ref_matmul(&g, &bt, acc[0].dtype, acc[0].dtype == REF_F64, acc[0].ndim, acc[0].dim,
                    &acc[0]);
    db = ref_matmul(&at, &g, acc[1].dtype, acc[1].dtype == REF_F64, acc[1].ndim, acc[1].dim,
                    &acc[1]);
    ref_tensor *made[] = {&at, &bt, &g, &da, &db};
    for (int i = 0; i < 5; i++)
        ref_free(made[i]);
}

/* in: x, a, b; p: beta, alpha */
static int b_addmm(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_addmm(t, in[0], in[1], in[2], c->p[0], c->p[1]);
    return 1;
}

/* x holds NaN alone: with beta = 0 it is not read. */
static int b_addmm_nan(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    tl_tensor nan = tl_fill(t, tl_dtype_of(t, in[0]), tl_shape_of(t, in[0]), (double)NAN);
    out[0] = tl_addmm(t, nan, in[1], in[2], c->p[0], c->p[1]);
    return 1;
}

static void r_addmm(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_addmm(&in[0], &in[1], &in[2], c->p[0], c->p[1]);
}

/* x holds infinity alone. */
static int b_addmm_inf(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    tl_tensor x = tl_fill(t, tl_dtype_of(t, in[0]), tl_shape_of(t, in[0]), (double)INFINITY);
    out[0] = tl_addmm(t, x, in[1], in[2], c->p[0], c->p[1]);
    return 1;
}

static void r_addmm_inf(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_tensor x = ref_like(&in[0], in[0].dtype);
    for (int64_t i = 0; i < ref_numel(&x); i++)
        ref_set(&x, i, (double)INFINITY);
    out[0] = ref_addmm(&x, &in[1], &in[2], c->p[0], c->p[1]);
    ref_free(&x);
}

/* With g = dy in the compute type: the chains of matmul with g * alpha in the place of dy, and the
 * fold of g * beta. */
static void g_addmm(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                    const ref_tensor *dy, ref_tensor *acc)
{
    ref_dtype t = ref_compute(dy->dtype);
    ref_tensor g = ref_cast(dy, t), q = ref_copy(&g), r = ref_copy(&g);
    for (int64_t i = 0; i < ref_numel(&g); i++) {
        ref_set(&q, i, c->p[1] == 1 ? ref_get(&g, i) : ref_get(&g, i) * ref_round(t, c->p[1]));
        ref_set(&r, i, c->p[0] == 1 ? ref_get(&g, i) : ref_get(&g, i) * ref_round(t, c->p[0]));
    }
    if (acc[1].data != NULL)
        g_matmul(c, in + 1, out, &q, acc + 1);
    if (acc[0].data != NULL) {
        ref_tensor dx = ref_sum_to(&r, in[0].ndim, in[0].dim, &acc[0]);
        ref_free(&dx);
    }
    tl_case_free(3, (ref_tensor[]){g, q, r});
}

#define GRAD(a) .gradient = g_matmul, .acc = a
#define PLAIN(f, name, in, how)                                                  \
    {                                                                            \
        .op = "matmul", #f " " name, in, b_##f, r_plain, .rows = how, GRAD("cc") \
    }
#define WIDE(name, in, how)                                                                 \
    {                                                                                       \
        .op = "matmul", "acc64 " name, in, b_matmul_acc64, r_acc64, .rows = how, GRAD("dd") \
    }
#define TO(to)                                                                                   \
    {.op = "matmul",                                                                             \
     "to " #to,                                                                                  \
     "*[5,7] *[7,3]",                                                                            \
     b_to,                                                                                       \
     r_to,                                                                                       \
     {TL_##to},                                                                                  \
     .rows = "bp",                                                                               \
     .gradient = g_matmul,                                                                       \
     .acc = "cc"},                                                                               \
        {.op = "matmul",                                                                         \
         "to " #to " of views",                                                                  \
         "*[4,33]:turned *[33,5]:strided",                                                       \
         b_to,                                                                                   \
         r_to,                                                                                   \
         {TL_##to},                                                                              \
         .rows = "bp",                                                                           \
         .gradient = g_matmul,                                                                   \
         .acc = "cc"},                                                                           \
        {.op = "matmul",                                                                         \
         "to " #to " a weight before a batch",                                                   \
         "*[2,5] *[3,5,4]:turned",                                                               \
         b_to,                                                                                   \
         r_to,                                                                                   \
         {TL_##to},                                                                              \
         .rows = "pb",                                                                           \
         .gradient = g_matmul,                                                                   \
         .acc = "cc"},                                                                           \
    {                                                                                            \
        .op = "matmul", "to " #to " batched", "*[3,2,5] *[3,5,4]:turned", b_to, r_to, {TL_##to}, \
        .rows = "bb", .gradient = g_matmul, .acc = "cc"                                          \
    }
#define ADDMM(name, in, how, beta, alpha, ...)                                           \
    {                                                                                    \
        .op = "matmul", "addmm " name, in, b_addmm, r_addmm, {beta, alpha}, .rows = how, \
        .gradient = g_addmm, .acc = "dcc", __VA_ARGS__                                   \
    }
#define NONE .flags = 0

const tl_case tl_cases_products[] = {
    PLAIN(mm, "odd", "*[5,7] *[7,3]", "bp"),
    PLAIN(mm, "views", "*[9,5]:turned *[5,33]:strided", "bp"),
    PLAIN(mm, "f16 and f32", "f16[5,7] f32[7,4]", "bp"),
    {.op = "matmul", "mm no rows", "*[0,3] *[3,4]", b_mm, r_plain},
    {.op = "matmul",
     "mm k = 0",
     "*[2,0] *[0,4]",
     b_mm,
     r_plain,
     .flags = CASE_NO_CHECK}, /* no elements */
    PLAIN(bmm, "odd", "*[3,2,5] *[3,5,4]", "bb"),
    PLAIN(bmm, "views", "*[3,4,5]:turned *[3,5,2]:padded", "bb"),
    {.op = "matmul", "bmm no batch", "*[0,2,3] *[0,3,4]", b_bmm, r_plain},
    WIDE("odd", "*[5,7] *[7,3]", "bp"),
    WIDE("views", "*[4,33]:turned *[33,5]:strided", "bp"),
    WIDE("batched", "*[3,2,5] *[3,5,4]", "bb"),
    WIDE("weights for a batch", "*[3,4,5] *[5,2]", "bp"),
    WIDE("f16 and f32", "f16[5,7] f32[7,4]", "bp"),
    WIDE("bf16 and f16", "bf16[5,7] f16[7,4]", "bp"),
    {.op = "matmul",
     "acc64 long chain",
     "*[2,300] *[300,2]",
     b_matmul_acc64,
     r_acc64,
     .rows = "bp",
     GRAD("dd"),
     .flags = CASE_NO_CHECK}, /* slow */
    {.op = "matmul",
     "acc64 many",
     "*[130,70] *[70,90]",
     b_matmul_acc64,
     r_acc64,
     .flags = CASE_BIG},
    TO(F64),
    TO(F32),
    TO(F16),
    TO(BF16),
    {.op = "matmul",
     "bf16 to f32 never was bf16",
     "bf16[2,2] bf16[2,3]",
     b_to,
     r_to,
     {TL_F32},
     .rows = "bp",
     .gradient = g_matmul,
     .acc = "cc"},
    ADDMM("plain", "*[5,3] *[5,7] *[7,3]", "bbp", 1, 1, NONE),
    ADDMM("alpha", "*[5,3] *[5,7] *[7,3]", "bbp", 1, 0.1, NONE),
    ADDMM("beta", "*[5,3]:turned *[5,7] *[7,3]", "bbp", 0.1, 1, NONE),
    ADDMM("both", "*[5,3]:strided *[5,7]:turned *[7,3]:padded", "bbp", -1.3, 0.7, NONE),
    ADDMM("a row", "*[3] *[5,7] *[7,3]", "-bp", 0.3, 0.7, NONE),
    ADDMM("a column", "*[5,1] *[5,7] *[7,3]", "bbp", 0.3, 0.7, NONE),
    ADDMM("0-d", "*[] *[5,7] *[7,3]", "-bp", 2, 3, NONE),
    ADDMM("a bias", "*[3] *[5,7] *[7,3]", "pbp", 1, 1, NONE),
    ADDMM("a bias times beta", "*[3] *[5,7] *[7,3]", "pbp", 0.3, 0.7, NONE),
    ADDMM("beta 0", "*[5,3]:fixed *[5,7] *[7,3]", "bbp", 0, 0.7, NONE),
    ADDMM("a wider x", "f32[5,3] f16[5,7] f16[7,3]", "bbp", 0.3, 0.7, NONE),
    ADDMM("a narrower x", "bf16[3] f32[5,7] f32[7,3]", "pbp", 0.3, 0.7, NONE),
    ADDMM("alpha 0", "*[5,3] *[5,7]:fixed *[7,3]:fixed", "bb-", 0.7, 0, NONE),
    {.op = "matmul",
     "addmm beta 0 of NaN",
     "*[5,3]:fixed *[5,7] *[7,3]",
     b_addmm_nan,
     r_addmm,
     {0, 1.1}},
    {.op = "matmul",
     "addmm a beta that rounds to 0, of infinity", /* 0 * inf is NaN; in f64 it is inf */
     "*[5,3]:fixed *[5,7] *[7,3]",
     b_addmm_inf,
     r_addmm_inf,
     {1e-60, 0.7},
     .flags = CASE_NO_CHECK}, /* infinite */
    {.op = "matmul",
     "addmm beta -0 of NaN",
     "*[3]:fixed *[5,7] *[7,3]",
     b_addmm_nan,
     r_addmm,
     {-0.0, 1}},
    ADDMM("no rows", "*[3] *[0,7] *[7,3]", NULL, 1, 1, .flags = CASE_NO_CHECK),
    ADDMM("k = 0", "*[2,3] *[2,0] *[0,3]", NULL, 0.5, 2, .flags = CASE_NO_CHECK),
    ADDMM("many", "*[90] *[130,70] *[70,90]", NULL, 0.5, 2, .flags = CASE_BIG),
};
const int tl_cases_products_count = sizeof tl_cases_products / sizeof tl_cases_products[0];
