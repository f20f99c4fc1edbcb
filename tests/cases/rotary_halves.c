/* rotary_halves.c: cases of rotary on two halves that lie apart: NUMERICS 8.7. */
#include "tests/cases/cases.h"

/* p: conjugate, which output comes first, whether the halves are the chunks of one tensor in memory
 */
static int b_halves(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    tl_tensor x[2] = {in[0], in[1]};
    if (c->p[2] != 0)
        tl_chunk(t, tl_concat(t, x, 2, -1), 2, -1, x);
    int first = (int)c->p[1];
    tl_tensor y2 = TL_NONE, y1 = tl_rotary_halves(t, x[0], x[1], in[2], in[3], c->p[0] != 0, &y2);
    out[first] = y1;
    out[1 - first] = y2;
    return 2;
}

static void r_halves(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    int first = (int)c->p[1];
    ref_rotary_halves(&in[0], &in[1], &in[2], &in[3], c->p[0] != 0, &out[first], &out[1 - first]);
}

/* The cotangent is of the first output alone. */
static void g_halves(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                     const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor zero = ref_like(dy, dy->dtype), dx1, dx2,
               *a1 = acc[2].dtype == REF_F64 ? &acc[2] : NULL,
               *a2 = acc[3].dtype == REF_F64 ? &acc[3] : NULL;
    const ref_tensor *g1 = c->p[1] == 0 ? dy : &zero, *g2 = c->p[1] == 0 ? &zero : dy;
    (void)out;
    ref_rotary_halves_grad(g1, g2, &in[0], &in[1], &in[2], &in[3], c->p[0] != 0, &dx1, &dx2, a1,
                           a2);
    tl_case_continue(&acc[0], dx1);
    tl_case_continue(&acc[1], dx2);
    ref_free(&zero);
}

#define FORM(name, in, how, chunks)                                                             \
    {.op = "rotary_halves",                                                                     \
     name,                                                                                      \
     in,                                                                                        \
     b_halves,                                                                                  \
     r_halves,                                                                                  \
     {0, 0, chunks},                                                                            \
     .rows = how,                                                                               \
     .gradient = g_halves,                                                                      \
     .acc = "ccdd"},                                                                            \
        {.op = "rotary_halves",                                                                 \
         name " conjugate",                                                                     \
         in,                                                                                    \
         b_halves,                                                                              \
         r_halves,                                                                              \
         {1, 0, chunks},                                                                        \
         .rows = how,                                                                           \
         .gradient = g_halves,                                                                  \
         .acc = "ccdd"},                                                                        \
        {.op = "rotary_halves",                                                                 \
         name ", second",                                                                       \
         in,                                                                                    \
         b_halves,                                                                              \
         r_halves,                                                                              \
         {0, 1, chunks},                                                                        \
         .rows = how,                                                                           \
         .gradient = g_halves,                                                                  \
         .acc = "ccdd"},                                                                        \
        {.op = "rotary_halves",                                                                 \
         name " conjugate, second",                                                             \
         in,                                                                                    \
         b_halves,                                                                              \
         r_halves,                                                                              \
         {1, 1, chunks},                                                                        \
         .rows = how,                                                                           \
         .gradient = g_halves,                                                                  \
         .acc = "ccdd"},                                                                        \
        {.op = "rotary_halves",                                                                 \
         name ", both",                                                                         \
         in,                                                                                    \
         b_halves,                                                                              \
         r_halves,                                                                              \
         {0, 0, chunks},                                                                        \
         .rows = how,                                                                           \
         .diff = 2},                                                                            \
    {                                                                                           \
        .op = "rotary_halves", name " conjugate, both", in, b_halves, r_halves, {1, 0, chunks}, \
        .rows = how, .diff = 2                                                                  \
    }
#define PLAIN(name, in, how, ...)                                                                 \
    {.op = "rotary_halves",                                                                       \
     name,                                                                                        \
     in,                                                                                          \
     b_halves,                                                                                    \
     r_halves,                                                                                    \
     {0, 0, 0},                                                                                   \
     .rows = how,                                                                                 \
     .diff = 2,                                                                                   \
     __VA_ARGS__},                                                                                \
    {                                                                                             \
        .op = "rotary_halves", name " conjugate", in, b_halves, r_halves, {1, 0, 0}, .rows = how, \
        .diff = 2, __VA_ARGS__                                                                    \
    }

const tl_case tl_cases_rotary_halves[] = {
    FORM("one table for all", "*[2,3,3] *[2,3,3] *[3] *[3]", "bbpp", 0),
    FORM("chunks of one tensor", "*[2,2,3,4] *[2,2,3,4] *[3,4] *[3,4]", "bbpp", 1),
    FORM("tables of two shapes", "*[3,2,3] *[3,2,3] *[2,3] *[1,3]", "bbpp", 1),
    FORM("a table for each sample",
         "*[3,2,3]:turned *[3,2,3]:strided *[3,1,3]:strided *[3,1,3]:turned", "bbbb", 0),
    FORM("position before heads", "*[2,3,2,3]:heads *[2,3,2,3]:padded *[3,1,3] *[3,1,3]:strided",
         "bbpp", 0),
    FORM("f16, tables f32", "f16[2,3,4] f16[2,3,4] f32[3,4] f32[3,4]", "bbpp", 1),
    FORM("bf16, tables f32", "bf16[2,3,4] bf16[2,3,4] f32[3,4] f32[3,4]", "bbpp", 1),
    PLAIN("1", "*[3,1] *[3,1] *[1] *[1]", "bbpp", .flags = 0),
    PLAIN("33", "*[2,33] *[2,33] *[33] *[33]", "bbpp", .flags = CASE_F32),
    PLAIN("a row", "*[4] *[4] *[4] *[4]", NULL, .flags = 0),
    PLAIN("no rows", "*[0,4] *[0,4] *[4] *[4]", NULL, .flags = 0),
    PLAIN("no dims", "*[3,0] *[3,0] *[0] *[0]", NULL, .flags = CASE_NO_CHECK), /* no elements */
    PLAIN("many", "*[300,8,16] *[300,8,16] *[8,16] *[8,16]", NULL, .flags = CASE_BIG),
};
const int tl_cases_rotary_halves_count = sizeof tl_cases_rotary_halves /
                                         sizeof tl_cases_rotary_halves[0];
