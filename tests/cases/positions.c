/* positions.c: cases of rotary's relatives: turned, in place, tables by position, half-width
 * tables: NUMERICS 8.4, 8.5. */
#include "tests/cases/cases.h"

enum { HALF = TL_ROTARY_HALF, PAIRS = TL_ROTARY_INTERLEAVED };

static ref_pairing pairing(const tl_case *c)
{
    return c->p[0] == HALF ? REF_HALF : REF_INTERLEAVED;
}
static int64_t rotated(const ref_tensor *r) { return r->dim[r->ndim - 1]; }

/* p: pairing */
static int b_turned(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_rotary_turned(t, in[0], in[1], in[2], (tl_rotary_pairing)c->p[0]);
    return 1;
}

static void r_turned(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_rotary_grad(&in[0], &in[0], &in[1], &in[2], pairing(c), rotated(&in[1]), &out[0], NULL,
                    NULL, NULL, NULL);
}

/* In place, on x times 1, since a leaf is not changed; p: pairing, where the view lies: 0 all, 1 a
 * slice of the last dim of (x, x), 2 with dims 1 and 2 swapped in memory. */
static int b_inplace(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    tl_tensor x = tl_scale(t, in[0], 1);
    tl_tensor twice[2] = {x, x};
    int64_t d = tl_shape_of(t, x).ndim ? tl_shape_of(t, x).dim[tl_shape_of(t, x).ndim - 1] : 0;
    if (c->p[1] == 1)
        x = tl_slice(t, tl_concat(t, twice, 2, -1), -1, d, 2 * d, 1);
    if (c->p[1] == 2)
        x = tl_transpose(t, tl_contiguous(t, tl_transpose(t, x, 1, 2)), 1, 2);
    out[0] = tl_rotary_(t, x, in[1], in[2], (tl_rotary_pairing)c->p[0]);
    return 1;
}

static void r_inplace(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_rotary(&in[0], &in[1], &in[2], pairing(c), rotated(&in[1]));
}

static void g_inplace(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                      const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor dx;
    (void)out;
    ref_rotary_grad(dy, &in[0], &in[1], &in[2], pairing(c), rotated(&in[1]), &dx, NULL, NULL, NULL,
                    NULL);
    tl_case_continue(&acc[0], dx);
}

/* in: x, r1, r2, ids or offsets; p: pairing, seq, offsets */
static int b_ids(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    tl_rotary_pairing p = (tl_rotary_pairing)c->p[0];
    int seq = (int)c->p[1];
    out[0] = c->p[2] == 0 ? tl_rotary_ids(t, in[0], in[1], in[2], in[3], seq, p)
                          : tl_rotary_offsets(t, in[0], in[1], in[2], in[3], seq, p);
    return 1;
}

/* The tables' rows, spread over x. */
static void rows_of(const tl_case *c, const ref_tensor *in, ref_tensor rows[2])
{
    int seq = (int)c->p[1];
    ref_tensor ids = c->p[2] == 0 ? ref_copy(&in[3]) : ref_positions(&in[3], NULL, in[0].dim[seq]);
    for (int i = 0; i < 2; i++)
        rows[i] = ref_rotary_rows(&in[1 + i], &in[0], &ids, seq);
    ref_free(&ids);
}

static void r_ids(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_tensor rows[2];
    rows_of(c, in, rows);
    out[0] = ref_rotary(&in[0], &rows[0], &rows[1], pairing(c), rotated(&rows[0]));
    tl_case_free(2, rows);
}

static void g_ids(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                  const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor rows[2], dx;
    (void)out;
    rows_of(c, in, rows);
    ref_rotary_grad(dy, &in[0], &rows[0], &rows[1], pairing(c), rotated(&rows[0]), &dx, NULL, NULL,
                    NULL, NULL);
    tl_case_free(2, rows);
    tl_case_continue(&acc[0], dx);
}

/* p: pairing */
static int b_widen(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_rotary_widen(t, in[0], (tl_rotary_pairing)c->p[0]);
    return 1;
}

static void r_widen(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_rotary_widen(&in[0], pairing(c));
}

#define BOTH(f, o, name, in, how, ...)                                               \
    {.op = o, name ", half", in, b_##f, r_##f, {HALF, __VA_ARGS__}, .rows = how},    \
    {                                                                                \
        .op = o, name ", pairs", in, b_##f, r_##f, {PAIRS, __VA_ARGS__}, .rows = how \
    }
#define INPLACE(name, in, how, where)                                                           \
    {.op = "rotary_",                                                                           \
     name ", half",                                                                             \
     in,                                                                                        \
     b_inplace,                                                                                 \
     r_inplace,                                                                                 \
     {HALF, where},                                                                             \
     .rows = how,                                                                               \
     .gradient = g_inplace,                                                                     \
     .acc = "c--"},                                                                             \
    {                                                                                           \
        .op = "rotary_", name ", pairs", in, b_inplace, r_inplace, {PAIRS, where}, .rows = how, \
        .gradient = g_inplace, .acc = "c--"                                                     \
    }
#define BY(name, in, how, seq, offsets)                                                      \
    {.op = "rotary", name ", half", in, b_ids, r_ids, {HALF, seq, offsets}, .rows = how},    \
    {                                                                                        \
        .op = "rotary", name ", pairs", in, b_ids, r_ids, {PAIRS, seq, offsets}, .rows = how \
    }
#define BY_GRAD(name, in, how, seq, offsets)                                                  \
    {.op = "rotary",                                                                          \
     name ", half",                                                                           \
     in,                                                                                      \
     b_ids,                                                                                   \
     r_ids,                                                                                   \
     {HALF, seq, offsets},                                                                    \
     .rows = how,                                                                             \
     .gradient = g_ids,                                                                       \
     .acc = "c---"},                                                                          \
    {                                                                                         \
        .op = "rotary", name ", pairs", in, b_ids, r_ids, {PAIRS, seq, offsets}, .rows = how, \
        .gradient = g_ids, .acc = "c---"                                                      \
    }

const tl_case tl_cases_positions[] = {
    BOTH(turned, "rotary", "rotary_turned", "*[2,3,4] *[3,4] *[3,4]", "bpp", 0),
    BOTH(turned, "rotary", "rotary_turned partial", "*[3,2,7]:turned *[2,4] *[1,4]", "bpp", 0),
    INPLACE("row-major", "*[2,3,4] *[3,4]:fixed *[3,4]:fixed", "b--", 0),
    INPLACE("partial", "*[3,2,7] *[2,4]:fixed *[1,4]:fixed", "b--", 0),
    INPLACE("in a slice", "*[2,3,6] *[3,6]:fixed:strided *[3,6]:fixed", "b--", 1),
    INPLACE("partial in a slice", "*[2,3,7] *[3,4]:fixed *[3,4]:fixed:turned", "b--", 1),
    INPLACE("heads", "*[2,2,3,4] *[3,4]:fixed *[3,4]:fixed", "b--", 2),
    INPLACE("position before heads", "*[2,3,2,6] *[3,1,6]:fixed *[3,1,6]:fixed", "b--", 2),
    INPLACE("a row", "*[4] *[4]:fixed *[4]:fixed", NULL, 0),
    INPLACE("no rows", "*[0,4] *[4]:fixed *[4]:fixed", NULL, 0),
    INPLACE("66 dims", "*[2,66] *[66]:fixed *[66]:fixed", "b--", 0),
    INPLACE("f16, tables f32", "f16[2,3,4] f32[3,4]:fixed f32[3,4]:fixed", "b--", 1),
    BOTH(inplace, "rotary_", "many", "f32[300,8,32] f32[8,32]:fixed f32[8,32]:fixed", NULL, 1),
    BY("ids by sample", "*[2,3,6] *[7,6] *[7,6] i64[2,3]:below7", "b--b", 1, 0),
    BY("ids for all", "*[2,3,2,6] *[7,6] *[7,6] i64[3]:below7", "b---", 1, 0),
    BY("ids, heads before positions",
       "*[2,2,3,6]:heads *[7,6]:turned *[7,6]:strided i64[2,3]:below7:turned", "b--b", 2, 0),
    BY("ids, positions first", "*[3,2,2,6] *[7,6] *[7,6] i64[2,3]:below7", NULL, 0, 0),
    BY("ids, partial", "*[2,3,7] *[5,4] *[5,4] i64[2,3]:below5", "b--b", 1, 0),
    BY("ids, f16, tables f32", "f16[2,3,6] f32[7,6] f32[7,6] i64[2,3]:below7", "b--b", 1, 0),
    BY("offsets", "*[2,3,6] *[9,6] *[9,6] i64[2]:below6", "b--b", 1, 1),
    BY("offsets, heads before positions", "*[2,2,3,6] *[9,6] *[9,6] i64[2]:below6:strided", "b--b",
       2, 1),
    BY("offsets, positions first", "*[3,2,2,6]:turned *[9,6] *[9,6] i64[2]:below6", NULL, 0, 1),
    BY_GRAD("gradient, ids", "*[2,3,6] *[7,6]:fixed *[7,6]:fixed i64[2,3]:below7", "b--b", 1, 0),
    BY_GRAD("gradient, ids for all", "*[2,2,3,7]:heads *[7,4]:fixed *[7,4]:fixed i64[3]:below7",
            "b---", 2, 0),
    BY_GRAD("gradient, positions first", "*[3,2,2,6] *[7,6]:fixed *[7,6]:fixed i64[2,3]:below7",
            NULL, 0, 0),
    BY_GRAD("gradient, offsets", "*[2,3,2,6] *[9,6]:fixed *[9,6]:fixed i64[2]:below6", "b--b", 1,
            1),
    BOTH(widen, "concat", "rotary_widen", "*[3,4]", "b", 0),
    BOTH(widen, "concat", "rotary_widen of a view", "*[2,3,5]:turned", "b", 0),
    BOTH(widen, "concat", "rotary_widen of a row", "*[33]", NULL, 0),
};
const int tl_cases_positions_count = sizeof tl_cases_positions / sizeof tl_cases_positions[0];
