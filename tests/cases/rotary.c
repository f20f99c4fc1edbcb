/* rotary.c: cases of rotary, turned and not, and of rotary_turn: NUMERICS 8. */
#include "tests/cases/cases.h"

enum { HALF = TL_ROTARY_HALF, PAIRS = TL_ROTARY_INTERLEAVED };

/* p: pairing, turned */
static int b_rotary(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    const tl_op *op = tl_op_find("rotary");
    case_attrs a = {.bytes = {0}};
    if (c->p[1] == 0) {
        out[0] = tl_rotary(t, in[0], in[1], in[2], (tl_rotary_pairing)c->p[0]);
        return 1;
    }
    tl_case_attr(op, &a, "pairing", c->p[0]);
    tl_case_attr(op, &a, "turned", 1);
    out[0] = tl_apply1(TL_AT(t), op, &a, in, 3);
    return 1;
}

static ref_pairing pairing(const tl_case *c)
{
    return c->p[0] == HALF ? REF_HALF : REF_INTERLEAVED;
}

/* Turned is the gradient of x: r1*g - R(r2*g). */
static void r_rotary(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    int64_t n = in[1].dim[in[1].ndim - 1];
    if (c->p[1] == 0)
        out[0] = ref_rotary(&in[0], &in[1], &in[2], pairing(c), n);
    else
        ref_rotary_grad(&in[0], &in[0], &in[1], &in[2], pairing(c), n, &out[0], NULL, NULL, NULL,
                        NULL);
}

static void g_rotary(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                     const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor dx, d1, d2, *a1 = acc[1].dtype == REF_F64 ? &acc[1] : NULL,
                           *a2 = acc[2].dtype == REF_F64 ? &acc[2] : NULL;
    (void)out;
    ref_rotary_grad(dy, &in[0], &in[1], &in[2], pairing(c), in[1].dim[in[1].ndim - 1], &dx, &d1,
                    &d2, a1, a2);
    tl_case_continue(&acc[0], dx);
    ref_free(&d1);
    ref_free(&d2);
}

static int b_turn(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    const tl_op *op = tl_op_find("rotary_turn");
    case_attrs a = {.bytes = {0}};
    tl_case_attr(op, &a, "pairing", c->p[0]);
    out[0] = tl_apply1(TL_AT(t), op, &a, in, 1);
    return 1;
}

/* R(x) with its sign alone: no table takes part. */
static void r_turn(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    int64_t d = in[0].dim[in[0].ndim - 1];
    out[0] = ref_like(&in[0], in[0].dtype);
    for (int64_t i = 0; i < ref_numel(&in[0]); i++) {
        int64_t k = i % d, from = c->p[0] == HALF ? (k < d / 2 ? i + d / 2 : i - d / 2)
                                                  : (k % 2 == 0 ? i + 1 : i - 1);
        bool first = c->p[0] == HALF ? k < d / 2 : k % 2 == 0;
        ref_set(&out[0], i, first ? -ref_get(&in[0], from) : ref_get(&in[0], from));
    }
}

#define FORM(name, in, how, ...)                                                                 \
    {.op = "rotary", name " half", in, b_rotary, r_rotary, {HALF, 0}, .rows = how, __VA_ARGS__}, \
        {.op = "rotary",                                                                         \
         name " pairs",                                                                          \
         in,                                                                                     \
         b_rotary,                                                                               \
         r_rotary,                                                                               \
         {PAIRS, 0},                                                                             \
         .rows = how,                                                                            \
         __VA_ARGS__},                                                                           \
        {.op = "rotary", name " half turned", in, b_rotary, r_rotary, {HALF, 1}, .rows = how},   \
    {                                                                                            \
        .op = "rotary", name " pairs turned", in, b_rotary, r_rotary, {PAIRS, 1}, .rows = how    \
    }
#define GRAD(a) .gradient = g_rotary, .acc = a

const tl_case tl_cases_rotary[] = {
    FORM("one table for all", "*[2,3,4] *[4] *[4]", "bpp", GRAD("cdd")),
    FORM("table by position", "*[2,2,3,6] *[3,6] *[3,6]", "bpp", GRAD("cdd")),
    FORM("position before heads", "*[2,3,2,6] *[3,1,6] *[3,1,6]", "bpp", GRAD("cdd")),
    FORM("a table for each sample", "*[3,2,2,6] *[3,1,2,6] *[3,1,2,6]", "bbb", GRAD("cdd")),
    FORM("tables of two shapes", "*[2,3,4] *[3,4] *[1,4]", "bpp", GRAD("cdd")),
    FORM("partial", "*[3,2,7] *[2,4] *[2,4]", "bpp", GRAD("cdd")),
    FORM("partial by 2", "*[2,5] *[2] *[2]", "bpp", GRAD("cdd")),
    FORM("turned in memory", "*[2,3,4]:turned *[3,4]:turned *[3,4]:strided", "bpp", GRAD("cdd")),
    FORM("by position in memory", "*[2,2,3,8]:heads *[3,8]:padded *[3,8]", "bpp", GRAD("cdd")),
    FORM("f16, tables f32", "f16[2,3,4] f32[3,4] f32[3,4]", "bpp", GRAD("cdd")),
    FORM("bf16, tables f32", "bf16[2,3,6] f32[3,4] f32[3,4]", "bpp", GRAD("cdd")),
    FORM("66 dims", "*[2,66] *[66] *[66]", "bpp", .flags = CASE_F32),
    FORM("a row", "*[4] *[4] *[4]", NULL, .flags = 0),
    FORM("no rows", "*[0,4] *[4] *[4]", NULL, .flags = 0),
    FORM("many", "*[300,8,32] *[8,32] *[8,32]", NULL, .flags = CASE_BIG),
    {.op = "rotary_turn", "half", "*[3,6]", b_turn, r_turn, {HALF}, .rows = "b"},
    {.op = "rotary_turn", "pairs", "*[3,6]", b_turn, r_turn, {PAIRS}, .rows = "b"},
    {.op = "rotary_turn",
     "half turned in memory",
     "*[2,3,34]:turned",
     b_turn,
     r_turn,
     {HALF},
     .rows = "b"},
    {.op = "rotary_turn", "pairs strided", "*[2,34]:strided", b_turn, r_turn, {PAIRS}, .rows = "b"},
    {.op = "rotary_turn", "no rows", "*[0,4]", b_turn, r_turn, {HALF}},
    {.op = "rotary_turn",
     "no dims",
     "*[3,0]",
     b_turn,
     r_turn,
     {PAIRS},
     .flags = CASE_NO_CHECK}, /* no elements */
};
const int tl_cases_rotary_count = sizeof tl_cases_rotary / sizeof tl_cases_rotary[0];
