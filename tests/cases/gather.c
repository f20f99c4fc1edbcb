/* gather.c: cases of gather, scatter_add_dim, one_hot, positions and the causal mask:
 * NUMERICS 9.2, 9.3, 8.5, 7.1. */
#include "tests/cases/cases.h"

/* in: x, ids; p: dim */
static int b_gather(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_gather(t, in[0], in[1], (int)c->p[0]);
    return 1;
}

static int dim_of(const tl_case *c, const ref_tensor *x)
{
    return (int)(c->p[0] < 0 ? c->p[0] + x->ndim : c->p[0]);
}

static void r_gather(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_gather(&in[0], &in[1], dim_of(c, in));
}

static void g_gather(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                     const ref_tensor *dy, ref_tensor *acc)
{
    (void)out;
    tl_case_continue(&acc[0],
                     ref_scatter_add_dim(dy, &in[1], dim_of(c, in), in[0].ndim, in[0].dim));
}

/* in: dy, ids; p: dim, shape */
static int b_scatter(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_scatter_add_dim(t, in[0], in[1], (int)c->p[0], tl_case_shape(c->p + 1));
    return 1;
}

static void r_scatter(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    tl_shape s = tl_case_shape(c->p + 1);
    out[0] = ref_scatter_add_dim(&in[0], &in[1], dim_of(c, in), s.ndim, s.dim);
}

static void g_scatter(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                      const ref_tensor *dy, ref_tensor *acc)
{
    (void)out;
    tl_case_continue(&acc[0], ref_gather(dy, &in[1], dim_of(c, in)));
}

/* p: classes, dtype */
static int b_one_hot(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_one_hot(t, in[0], (int64_t)c->p[0], (tl_dtype)c->p[1]);
    return 1;
}

static void r_one_hot(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_one_hot(&in[0], (int64_t)c->p[0], tl_case_ref_dtype((tl_dtype)c->p[1]));
}

/* p: n */
static int b_positions(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_positions_at(TL_AT(t), in[0], in[1], (int64_t)c->p[0]);
    return 1;
}

static void r_positions(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_positions(&in[0], tl_case_opt(&in[1]), (int64_t)c->p[0]);
}

/* in: key_start, key_end; p: queries, keys, full */
static int b_mask(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_causal_mask(t, (int64_t)c->p[0], (int64_t)c->p[1], .full = c->p[2] != 0,
                            .key_start = in[0], .key_end = in[1]);
    return 1;
}

static void r_mask(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_causal_mask((int64_t)c->p[0], (int64_t)c->p[1],
                             (ref_keys){c->p[2] == 0, tl_case_opt(&in[0]), tl_case_opt(&in[1])});
}

#define PICK(name, in, how, dim)                                                                \
    {                                                                                           \
        .op = "gather", name, in, b_gather, r_gather, {dim}, .rows = how, .gradient = g_gather, \
        .acc = "c-"                                                                             \
    }
#define PUT(name, in, how, ...)                                                              \
    {                                                                                        \
        .op = "scatter_add_dim", name, in, b_scatter, r_scatter, {__VA_ARGS__}, .rows = how, \
        .gradient = g_scatter, .acc = "c-"                                                   \
    }
#define HOT(to)                                                                                  \
    {.op = "one_hot", #to, "i64[3,2]:below5", b_one_hot, r_one_hot, {5, TL_##to}, .rows = "b"},  \
        {.op = "one_hot",                                                                        \
         #to " 33",                                                                              \
         "i64[4]:below33:strided",                                                               \
         b_one_hot,                                                                              \
         r_one_hot,                                                                              \
         {33, TL_##to},                                                                          \
         .rows = "b"},                                                                           \
        {.op = "one_hot",                                                                        \
         #to " turned",                                                                          \
         "i64[3,4]:below2:turned",                                                               \
         b_one_hot,                                                                              \
         r_one_hot,                                                                              \
         {2, TL_##to},                                                                           \
         .rows = "b"},                                                                           \
        {.op = "one_hot", #to " one id", "i64[]:below3", b_one_hot, r_one_hot, {3, TL_##to}},    \
        {.op = "one_hot", #to " no ids", "i64[0,2]:below3", b_one_hot, r_one_hot, {3, TL_##to}}, \
    {                                                                                            \
        .op = "one_hot", #to " one class", "i64[3]:below1", b_one_hot, r_one_hot, {1, TL_##to},  \
        .rows = "b"                                                                              \
    }
#define MASK(q, k)                                                      \
    {                                                                   \
        .op = "causal_mask", #q " by " #k, "", b_mask, r_mask, { q, k } \
    }

const tl_case tl_cases_gather[] = {
    PICK("last dim", "*[3,5] i64[3,4]:below5", "bb", 1),
    PICK("repeated ids", "*[3,5] i64[3,9]:below2", "bb", -1),
    PICK("33", "*[2,33]:padded i64[2,33]:below33:strided", "bb", 1),
    PICK("turned", "*[4,5]:turned i64[4,3]:below5:turned", "bb", 1),
    PICK("strided", "*[3,7]:strided i64[3,4]:below7:padded", "bb", 1),
    PICK("first dim", "*[5,3] i64[9,3]:below5", "-b", 0),
    PICK("middle dim", "*[2,5,3] i64[2,4,3]:below5", "bb", 1),
    PICK("middle dim of views", "*[2,5,3]:heads i64[2,4,3]:below5:turned", "bb", -2),
    PICK("fewer rows", "*[4,5] i64[2,7]:below5", NULL, 1),
    PICK("fewer columns", "*[5,4] i64[3,2]:below5", NULL, 0),
    PICK("fewer of both", "*[3,5,4] i64[2,6,3]:below5", NULL, 1),
    PICK("1-d", "*[9] i64[33]:below9", NULL, 0),
    PICK("one", "*[1] i64[3]:below1", NULL, 0),
    {.op = "gather",
     "no ids",
     "*[3,5] i64[3,0]:below5",
     b_gather,
     r_gather,
     {1},
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "gather", "a row of ids", "*[3,4] i64[1,2]:below4", b_gather, r_gather, {1}},
    {.op = "gather", "no rows", "*[0,5] i64[0,2]:below5", b_gather, r_gather, {1}},
    {.op = "gather", "expanded", "*[3,4]:expanded i64[3,5]:below4", b_gather, r_gather, {1}},
    {.op = "gather",
     "many",
     "*[200,100] i64[200,90]:below100",
     b_gather,
     r_gather,
     {1},
     .flags = CASE_BIG,
     .gradient = g_gather,
     .acc = "c-"},
    {.op = "gather",
     "many from the first dim",
     "*[100,200] i64[90,200]:below100",
     b_gather,
     r_gather,
     {0},
     .flags = CASE_BIG,
     .gradient = g_gather,
     .acc = "c-"},
    PUT("last dim", "*[3,4] i64[3,4]:below5", NULL, 1, 2, 3, 5),
    PUT("repeated ids", "*[3,9] i64[3,9]:below2", NULL, -1, 2, 3, 4),
    PUT("33", "*[2,33]:strided i64[2,33]:below7:padded", NULL, 1, 2, 2, 33),
    PUT("turned", "*[4,5]:turned i64[4,5]:below6:turned", NULL, 1, 2, 4, 6),
    PUT("first dim", "*[9,3] i64[9,3]:below4", NULL, 0, 2, 4, 3),
    PUT("middle dim", "*[2,4,3]:heads i64[2,4,3]:below5", NULL, 1, 3, 2, 5, 3),
    PUT("into more", "*[2,6,3] i64[2,6,3]:below5", NULL, 1, 3, 3, 5, 4),
    PUT("1-d", "*[33] i64[33]:below5", NULL, 0, 1, 7),
    {.op = "scatter_add_dim",
     "nothing",
     "*[3,0] i64[3,0]:below5",
     b_scatter,
     r_scatter,
     {1, 2, 3, 5},
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "scatter_add_dim",
     "many",
     "*[90,200] i64[90,200]:below70",
     b_scatter,
     r_scatter,
     {0, 2, 70, 200},
     .flags = CASE_BIG},
    HOT(F64),
    HOT(F32),
    HOT(F16),
    HOT(BF16),
    HOT(I64),
    HOT(BOOL),
    {.op = "positions",
     "of samples",
     "i64[5]:below100",
     b_positions,
     r_positions,
     {7},
     .rows = "b"},
    {.op = "positions",
     "strided",
     "i64[3]:below100:strided",
     b_positions,
     r_positions,
     {33},
     .rows = "b"},
    {.op = "positions", "one each", "i64[4]:below9", b_positions, r_positions, {1}, .rows = "b"},
    {.op = "positions", "none each", "i64[4]:below9", b_positions, r_positions, {0}, .rows = "b"},
    {.op = "positions",
     "after starts",
     "i64[5]:below9 i64[5]:below20",
     b_positions,
     r_positions,
     {7},
     .rows = "bb"},
    {.op = "positions",
     "after starts of views",
     "i64[3]:below9:strided i64[3]:below20:strided",
     b_positions,
     r_positions,
     {33},
     .rows = "bb"},
    {.op = "positions", "of no samples", "i64[0]:below9", b_positions, r_positions, {3}},
    MASK(3, 3),
    MASK(1, 1),
    MASK(2, 5),
    MASK(5, 2),
    MASK(1, 33),
    MASK(33, 33),
    MASK(0, 3),
    MASK(3, 0),
    {.op = "causal_mask", "starts", "i64[3]:below4 -", b_mask, r_mask, {4, 5, 0}, .rows = "b-"},
    {.op = "causal_mask",
     "ends",
     "- i64[3]:below6:strided",
     b_mask,
     r_mask,
     {4, 5, 1},
     .rows = "-b"},
    {.op = "causal_mask",
     "both",
     "i64[4]:below3 i64[4]:from3",
     b_mask,
     r_mask,
     {5, 7, 0},
     .rows = "bb"},
};
const int tl_cases_gather_count = sizeof tl_cases_gather / sizeof tl_cases_gather[0];
