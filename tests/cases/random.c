/* random.c: cases of ops that draw: dropout (NUMERICS 11). */
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

#define GRAD .gradient = g_dropout, .acc = "c-"
const tl_case tl_cases_random[] = {
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
