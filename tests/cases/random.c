/* random.c: cases of ops that draw: dropout, uniform, normal, bernoulli, permutation (NUMERICS
 * 11). */
#include "tensor/rng.h"
#include "tests/cases/cases.h"

enum { KEY = 20260401 };

/* in: x, sample, start?; p: p */
static int b_dropout(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    case_attrs a = {.bytes = {0}};
    tl_case_attr(&tl_op_dropout, &a, "p", c->p[0]);
    tl_case_attr(&tl_op_dropout, &a, "key", KEY);
    out[0] = tl_apply1(TL_AT(t), &tl_op_dropout, &a, in, 3);
    return 1;
}

/* 11.3: element e of row i is kept if uniform32(key, sample number of i, e) >= p, and then times
 * 1/(1-p), which is f64 rounded to c. */
static ref_tensor dropped(const tl_case *c, const ref_tensor *x, const ref_tensor *sample,
                          const ref_tensor *start)
{
    ref_dtype d = ref_compute(x->dtype);
    tl_rng_key key = {{KEY, 0}, TL_OK};
    ref_tensor y = ref_like(x, x->dtype);
    double s = ref_round(d, 1 / (1 - c->p[0]));
    int64_t n = x->dim[0] > 0 ? ref_numel(x) / x->dim[0] : 0;
    for (int64_t i = 0; i < ref_numel(x); i++) {
        int64_t row = i / n, number = sample->ndim == 0 ? ref_get_i64(sample, 0) + row
                                                        : ref_get_i64(sample, row);
        int64_t e = i % n - (start->data != NULL ? ref_get_i64(start, row) * (n / x->dim[1]) : 0);
        bool kept = e >= 0 &&
                    (double)tl_rng_uniform32(key, (uint64_t)number, (uint64_t)e) >= c->p[0];
        ref_set(&y, i, kept ? ref_round(d, ref_get(x, i) * s) : 0.0);
    }
    return y;
}

static void r_dropout(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = dropped(c, &in[0], &in[1], &in[2]);
}

static void g_dropout(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                      const ref_tensor *dy, ref_tensor *acc)
{
    (void)out;
    tl_case_continue(&acc[0], dropped(c, dy, &in[1], &in[2]));
}

/* in: sample, start?; p: dtype, normal, shape */
static int b_draw(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    struct {
        tl_shape shape;
        tl_dtype dtype;
        bool normal;
        int64_t key;
    } a = {tl_case_shape(c->p + 2), (tl_dtype)c->p[0], c->p[1] != 0, KEY};
    out[0] = tl_apply1(TL_AT(t), &tl_op_draw, &a, in, 2);
    return 1;
}

/* 11.4: element e of row i at (sample number of i, e - start_i * n). */
static ref_tensor drawn(ref_dtype d, bool normal, const tl_shape *s, const ref_tensor *sample,
                        const ref_tensor *start)
{
    tl_rng_key key = {{KEY, 0}, TL_OK};
    ref_tensor y = ref_new(d, s->ndim, s->dim);
    for (int64_t i = 0, n = s->dim[0] > 0 ? ref_numel(&y) / s->dim[0] : 0; i < ref_numel(&y); i++) {
        uint64_t number = (uint64_t)(sample->ndim == 0 ? ref_get_i64(sample, 0) + i / n
                                                       : ref_get_i64(sample, i / n));
        int64_t e = i % n - (start->data != NULL ? ref_get_i64(start, i / n) * (n / s->dim[1]) : 0);
        ref_set(&y, i,
                e < 0          ? 0
                : normal       ? tl_rng_normal64(key, number, (uint64_t)e)
                : d == REF_F64 ? tl_rng_uniform64(key, number, (uint64_t)e)
                               : (double)tl_rng_uniform32(key, number, (uint64_t)e));
    }
    return y;
}

static void r_draw(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    tl_shape s = tl_case_shape(c->p + 2);
    out[0] = drawn(tl_case_ref_dtype((tl_dtype)c->p[0]), c->p[1] != 0, &s, &in[0], &in[1]);
}

#define GRAD .gradient = g_dropout, .acc = "c-"
#define DRAW(name, in, how, ...)                                           \
    {                                                                      \
        .op = "draw", name, in, b_draw, r_draw, {__VA_ARGS__}, .rows = how \
    }
const tl_case tl_cases_random[] = {
    DRAW("uniform f64", "i64[5]:below1000 -", NULL, TL_F64, 0, 2, 5, 33),
    DRAW("uniform f32", "i64[3]:below1000:strided -", NULL, TL_F32, 0, 3, 3, 20, 30),
    DRAW("uniform f16", "i64[]:below1000 -", NULL, TL_F16, 0, 1, 65),
    DRAW("uniform bf16", "i64[]:below1000 -", NULL, TL_BF16, 0, 2, 3, 300),
    DRAW("normal f64", "i64[]:below1000 -", NULL, TL_F64, 1, 2, 3, 7),
    DRAW("normal f32", "i64[5]:below1000 -", NULL, TL_F32, 1, 2, 5, 300),
    DRAW("normal f16", "i64[5]:below1000 -", NULL, TL_F16, 1, 3, 5, 3, 2),
    DRAW("normal bf16", "i64[5]:below1000 -", NULL, TL_BF16, 1, 2, 5, 9),
    DRAW("after padding", "i64[4]:below99 i64[4]:below6", NULL, TL_F32, 1, 3, 4, 5, 3),
    DRAW("of nothing", "i64[0]:below9 -", NULL, TL_F32, 0, 2, 0, 3),
    {.op = "dropout",
     "numbers by row",
     "*[5,7] i64[5]:below1000",
     b_dropout,
     r_dropout,
     {0.3},
     .rows = "bb",
     GRAD},
    {.op = "dropout",
     "numbers of a view",
     "*[5,2,9]:turned i64[5]:below1000:strided",
     b_dropout,
     r_dropout,
     {0.5},
     .rows = "bb",
     GRAD},
    {.op = "dropout",
     "a first number",
     "*[4,33]:strided i64[]:below1000",
     b_dropout,
     r_dropout,
     {0.1},
     GRAD},
    {.op = "dropout", "1-d", "*[33] i64[]:below9", b_dropout, r_dropout, {0.5}, GRAD},
    {.op = "dropout",
     "p = 0",
     "*[3,5] i64[3]:below9",
     b_dropout,
     r_dropout,
     {0},
     .rows = "bb",
     GRAD},
    {.op = "dropout",
     "p = 1",
     "*[3,5] i64[3]:below9",
     b_dropout,
     r_dropout,
     {1},
     .rows = "bb",
     GRAD,
     .flags = CASE_NO_CHECK}, /* all zero */
    {.op = "dropout", "expanded", "*[3,5]:expanded i64[3]:below9", b_dropout, r_dropout, {0.5}},
    {.op = "dropout", "no rows", "*[0,5] i64[]:below9", b_dropout, r_dropout, {0.5}},
    {.op = "dropout",
     "after padding",
     "*[4,5,3] i64[4]:below99 i64[4]:below6",
     b_dropout,
     r_dropout,
     {0.4},
     .rows = "bbb",
     .gradient = g_dropout,
     .acc = "c--"},
    {.op = "dropout",
     "after padding, two blocks",
     "*[3,40,9]:strided i64[3]:below99 i64[3]:below41:strided",
     b_dropout,
     r_dropout,
     {0.4},
     .rows = "bbb",
     .gradient = g_dropout,
     .acc = "c--",
     .flags = CASE_NO_CHECK}, /* slow */
    {.op = "dropout",
     "many",
     "*[40,1000] i64[40]:below99",
     b_dropout,
     r_dropout,
     {0.2},
     .flags = CASE_BIG,
     GRAD},
};
const int tl_cases_random_count = sizeof tl_cases_random / sizeof tl_cases_random[0];
