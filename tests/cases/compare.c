/* compare.c: cases of comparisons, where, cast and fill. */
#include <math.h>

#include "tests/cases/cases.h"

#define COMPARE(X) X(eq) X(ne) X(lt) X(le) X(gt) X(ge)

#define X(f)                                                                            \
    static int b_##f(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out) \
    {                                                                                   \
        (void)c;                                                                        \
        out[0] = tl_##f(t, in[0], in[1]);                                               \
        return 1;                                                                       \
    }                                                                                   \
    static void r_##f(const tl_case *c, const ref_tensor *in, ref_tensor *out)          \
    {                                                                                   \
        ref_tensor both[2];                                                             \
        (void)c;                                                                        \
        tl_case_meet(&in[0], &in[1], both);                                             \
        out[0] = ref_##f(&both[0], &both[1]);                                           \
        tl_case_free(2, both);                                                          \
    }
COMPARE(X)
#undef X

static int b_where(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    (void)c;
    out[0] = tl_where(t, in[0], in[1], in[2]);
    return 1;
}

static void r_where(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_tensor both[2];
    (void)c;
    tl_case_meet(&in[1], &in[2], both);
    out[0] = ref_where(&in[0], &both[0], &both[1]);
    tl_case_free(2, both);
}

/* dy to the chosen side, zeros to the other. */
static void g_where(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                    const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor zero = ref_new(dy->dtype, 0, NULL);
    (void)c, (void)out;
    tl_case_continue(&acc[1], ref_where(&in[0], dy, &zero));
    tl_case_continue(&acc[2], ref_where(&in[0], &zero, dy));
    ref_free(&zero);
}

/* p: the dtype */
static int b_cast(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_cast(t, in[0], (tl_dtype)c->p[0]);
    return 1;
}

static void r_cast(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_cast(&in[0], tl_case_ref_dtype((tl_dtype)c->p[0]));
}

static void g_cast(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                   const ref_tensor *dy, ref_tensor *acc)
{
    (void)c, (void)out;
    tl_case_continue(&acc[0], ref_cast(dy, in[0].dtype));
}

/* p: dtype, value, shape */
static int b_fill(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    (void)in;
    out[0] = tl_fill(t, (tl_dtype)c->p[0], tl_case_shape(c->p + 2), c->p[1]);
    return 1;
}

static void r_fill(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    tl_shape s = tl_case_shape(c->p + 2);
    (void)in;
    ref_tensor value = ref_from(REF_F64, 0, NULL, &c->p[1]),
               one = ref_cast(&value, tl_case_ref_dtype((tl_dtype)c->p[0]));
    ref_tensor yes = ref_new(REF_BOOL, s.ndim, s.dim);
    out[0] = ref_where(&yes, &one, &one);
    ref_free(&value);
    ref_free(&one);
    ref_free(&yes);
}

#define FORMS(f)                                                                           \
    {.op = #f, "alike", "*[4,9] *[4,9]", b_##f, r_##f, .rows = "bb"},                      \
        {.op = #f, "near ties", "*[33]:apart *[33]:apart", b_##f, r_##f, .rows = "bb"},    \
        {.op = #f, "broadcast", "*[4,1]:turned *[5]:strided", b_##f, r_##f, .rows = "b-"}, \
        {.op = #f, "0-d", "*[] *[]", b_##f, r_##f},                                        \
        {.op = #f, "no elements", "*[0,3] *[3]", b_##f, r_##f},                            \
        {.op = #f, "f16 and bf16", "f16[31] bf16[31]", b_##f, r_##f, .rows = "bb"},        \
        {.op = #f, "i64", "i64[3,11]:fixed i64[11]:fixed", b_##f, r_##f, .rows = "b-"},    \
    {                                                                                      \
        .op = #f, "ids", "i64[64]:below3 i64[]:below3", b_##f, r_##f, .rows = "b-"         \
    }

#define CASTS(to)                                                                                  \
    {.op = "cast",                                                                                 \
     "to " #to,                                                                                    \
     "*[3,11]",                                                                                    \
     b_cast,                                                                                       \
     r_cast,                                                                                       \
     {TL_##to},                                                                                    \
     .rows = "b",                                                                                  \
     .gradient = g_cast,                                                                           \
     .acc = "c"},                                                                                  \
        {.op = "cast", "turned to " #to, "*[5,3]:turned", b_cast, r_cast, {TL_##to}, .rows = "b"}, \
        {.op = "cast",                                                                             \
         "strided to " #to,                                                                        \
         "*[2,33]:strided",                                                                        \
         b_cast,                                                                                   \
         r_cast,                                                                                   \
         {TL_##to},                                                                                \
         .rows = "b"},                                                                             \
        {.op = "cast", "0-d to " #to, "*[]", b_cast, r_cast, {TL_##to}},                           \
        {.op = "cast",                                                                             \
         "ids to " #to,                                                                            \
         "i64[40]:fixed",                                                                          \
         b_cast,                                                                                   \
         r_cast,                                                                                   \
         {TL_##to},                                                                                \
         .rows = "b",                                                                              \
         .flags = CASE_NO_CHECK}, /* no float */                                                   \
    {                                                                                              \
        .op = "cast", "mask to " #to, "bool[9]:mask", b_cast, r_cast, {TL_##to}, .rows = "b",      \
        .flags = CASE_NO_CHECK                                                                     \
    }

const tl_case tl_cases_compare[] = {
    FORMS(eq),
    FORMS(ne),
    FORMS(lt),
    FORMS(le),
    FORMS(gt),
    FORMS(ge),
    {.op = "where",
     "alike",
     "bool[4,9]:mask *[4,9] *[4,9]",
     b_where,
     r_where,
     .rows = "bbb",
     .gradient = g_where,
     .acc = "-cc"},
    {.op = "where",
     "a row of values",
     "bool[33,5]:mask *[5]:padded *[33,5]",
     b_where,
     r_where,
     .rows = "bpb",
     .gradient = g_where,
     .acc = "-dc"},
    {.op = "where",
     "a row of conditions",
     "bool[4]:mask *[3,4]:turned *[3,1]",
     b_where,
     r_where,
     .rows = "-bb",
     .gradient = g_where,
     .acc = "-cd"},
    {.op = "where",
     "0-d values",
     "bool[3,2]:mask:turned *[] *[]",
     b_where,
     r_where,
     .rows = "bpp",
     .gradient = g_where,
     .acc = "-dd"},
    {.op = "where",
     "0-d",
     "bool[]:mask *[] *[]",
     b_where,
     r_where,
     .flags = CASE_NO_CHECK}, /* one of the two is not read */
    {.op = "where", "no elements", "bool[0,3]:mask *[3] *[1,3]", b_where, r_where},
    {.op = "where",
     "f16 and f32",
     "bool[6]:mask f16[6] f32[6]:strided",
     b_where,
     r_where,
     .rows = "bbb"},
    {.op = "where",
     "i64",
     "bool[6]:mask i64[3,6]:fixed i64[]:fixed",
     b_where,
     r_where,
     .rows = "-b-",
     .flags = CASE_NO_CHECK}, /* no float */
    {.op = "where",
     "bool",
     "bool[6,5]:mask bool[6,5]:mask:strided bool[5]:mask",
     b_where,
     r_where,
     .rows = "bb-",
     .flags = CASE_NO_CHECK},
    {.op = "where",
     "many",
     "bool[300]:mask *[130,300] *[130,1]",
     b_where,
     r_where,
     .flags = CASE_BIG},
    CASTS(F64),
    CASTS(F32),
    CASTS(F16),
    CASTS(BF16),
    {.op = "cast",
     "to i64",
     "*[33]",
     b_cast,
     r_cast,
     {TL_I64},
     .rows = "b",
     .flags = CASE_NO_CHECK}, /* no derivative */
    {.op = "cast",
     "to bool",
     "*[3,11]:turned",
     b_cast,
     r_cast,
     {TL_BOOL},
     .rows = "b",
     .flags = CASE_NO_CHECK},
    {.op = "cast", "no elements", "*[0,2]", b_cast, r_cast, {TL_F32}},
    {.op = "fill", "f64", "", b_fill, r_fill, {TL_F64, 0.1, 2, 3, 4}},
    {.op = "fill", "f32", "", b_fill, r_fill, {TL_F32, 0.1, 1, 33}},
    {.op = "fill", "f16 rounded once", "", b_fill, r_fill, {TL_F16, 1.00048828125000001, 1, 5}},
    {.op = "fill", "bf16", "", b_fill, r_fill, {TL_BF16, -3.3e38, 1, 5}},
    {.op = "fill", "i64", "", b_fill, r_fill, {TL_I64, -7, 1, 2}},
    {.op = "fill", "bool", "", b_fill, r_fill, {TL_BOOL, 1, 1, 2}},
    {.op = "fill", "0-d NaN", "", b_fill, r_fill, {TL_F32, (double)NAN, 0}},
    {.op = "fill", "-0", "", b_fill, r_fill, {TL_F16, -0.0, 1, 3}},
    {.op = "fill", "no elements", "", b_fill, r_fill, {TL_F32, 1, 2, 0, 3}},
};
const int tl_cases_compare_count = sizeof tl_cases_compare / sizeof tl_cases_compare[0];
