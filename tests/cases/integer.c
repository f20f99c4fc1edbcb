/* integer.c: cases of i64 arithmetic, logic, arange, triangles and diagonals: NUMERICS 2.13, 9.4.
 */
#include "tests/cases/cases.h"

/* 2b + 1: what can divide */
static tl_tensor odd(tl_tape *t, tl_tensor b)
{
    return tl_add(t, tl_mul(t, b, tl_scalar(t, TL_I64, 2)), tl_scalar(t, TL_I64, 1));
}

static ref_tensor ref_odd(const ref_tensor *b)
{
    ref_tensor one = ref_from_i64(0, NULL, (int64_t[]){1}), two = ref_integer('+', &one, &one),
               twice = ref_integer('*', b, &two), y = ref_integer('+', &twice, &one);
    tl_case_free(3, (ref_tensor[]){one, two, twice});
    return y;
}

#define SUMS(X) X(add, '+') X(sub, '-') X(mul, '*')
#define X(f, sign)                                                                      \
    static int b_##f(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out) \
    {                                                                                   \
        return (void)c, out[0] = tl_##f(t, in[0], in[1]), 1;                            \
    }                                                                                   \
    static void r_##f(const tl_case *c, const ref_tensor *in, ref_tensor *out)          \
    {                                                                                   \
        (void)c, out[0] = ref_integer(sign, &in[0], &in[1]);                            \
    }
SUMS(X)
#undef X

#define X(f, sign)                                                                      \
    static int b_##f(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out) \
    {                                                                                   \
        return (void)c, out[0] = tl_##f(t, in[0], odd(t, in[1])), 1;                    \
    }                                                                                   \
    static void r_##f(const tl_case *c, const ref_tensor *in, ref_tensor *out)          \
    {                                                                                   \
        ref_tensor b = ref_odd(&in[1]);                                                 \
        (void)c, out[0] = ref_integer(sign, &in[0], &b);                                \
        ref_free(&b);                                                                   \
    }
X(floor_divide, '/')
X(remainder, '%')
#undef X

/* p: 0 and, 1 or, 2 not of the first */
static int b_logic(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = c->p[0] == 0   ? tl_logical_and(t, in[0], in[1])
             : c->p[0] == 1 ? tl_logical_or(t, in[0], in[1])
                            : tl_logical_not(t, in[0]);
    return 1;
}

static void r_logic(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    const ref_tensor *b = c->p[0] == 2 ? &in[0] : &in[1];
    out[0] = ref_broadcast_shape(&in[0], b, REF_BOOL);
    for (int64_t i = 0; i < ref_numel(&out[0]); i++) {
        int64_t ix[8];
        ref_unflatten(out[0].ndim, out[0].dim, i, ix);
        int p = ref_get(&in[0], ref_broadcast_at(&in[0], out[0].ndim, ix)) != 0,
            q = ref_get(b, ref_broadcast_at(b, out[0].ndim, ix)) != 0;
        ref_set(&out[0], i, c->p[0] == 0 ? p && q : c->p[0] == 1 ? p || q : !p);
    }
}

/* p: dtype, start, stop, step */
static int b_arange(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    (void)in;
    out[0] = tl_arange(t, (tl_dtype)c->p[0], c->p[1], c->p[2], c->p[3]);
    return 1;
}

static void r_arange(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    (void)in;
    out[0] = ref_arange(tl_case_ref_dtype((tl_dtype)c->p[0]), c->p[1], c->p[2], c->p[3]);
}

/* p: k, upper */
static int b_triangle(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    int64_t k = (int64_t)c->p[0];
    out[0] = c->p[1] != 0 ? tl_triu(t, in[0], k) : tl_tril(t, in[0], k);
    return 1;
}

static void r_triangle(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_triangle(&in[0], (int64_t)c->p[0], c->p[1] != 0);
}

static void g_triangle(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                       const ref_tensor *dy, ref_tensor *acc)
{
    (void)in, (void)out;
    tl_case_continue(&acc[0], ref_triangle(dy, (int64_t)c->p[0], c->p[1] != 0));
}

/* p: offset, dims */
static int b_diagonal(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_diagonal(t, in[0], (int64_t)c->p[0], (int)c->p[1], (int)c->p[2]);
    return 1;
}

static int nth(double d, const ref_tensor *x) { return (int)(d < 0 ? d + x->ndim : d); }

static void r_diagonal(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_diagonal(&in[0], (int64_t)c->p[0], nth(c->p[1], in), nth(c->p[2], in));
}

static void g_diagonal(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                       const ref_tensor *dy, ref_tensor *acc)
{
    (void)out;
    tl_case_continue(&acc[0], ref_diagonal_grad(dy, in, (int64_t)c->p[0], nth(c->p[1], in),
                                                nth(c->p[2], in)));
}

#define FORMS(f)                                                                                   \
    {.op = #f, "i64", "i64[33]:fixed i64[33]:fixed", b_##f, r_##f, .rows = "bb"},                  \
        {.op = #f,                                                                                 \
         "i64 views",                                                                              \
         "i64[3,5]:fixed:turned i64[5]:fixed:strided",                                             \
         b_##f,                                                                                    \
         r_##f,                                                                                    \
         .rows = "b-"},                                                                            \
        {.op = #f, "i64 0-d", "i64[]:fixed i64[]:fixed", b_##f, r_##f},                            \
        {.op = #f, "i64 none", "i64[0,3]:fixed i64[3]:fixed", b_##f, r_##f},                       \
    {                                                                                              \
        .op = #f, "i64 many", "i64[130,300]:fixed i64[300]:fixed", b_##f, r_##f, .flags = CASE_BIG \
    }
/* No float comes out. */
#define LOGIC(name, in, how, p)                                                             \
    {                                                                                       \
        .op = "where", name, in, b_logic, r_logic, {p}, .rows = how, .flags = CASE_NO_CHECK \
    }
#define COUNT(name, ...)                                                           \
    {                                                                              \
        .op = "positions", "arange " name, "", b_arange, r_arange, { __VA_ARGS__ } \
    }
#define TRIANGLE(name, in, how, ...)                                                 \
    {                                                                                \
        .op = "where", name, in, b_triangle, r_triangle, {__VA_ARGS__}, .rows = how, \
        .gradient = g_triangle, .acc = "c"                                           \
    }
#define DIAGONAL(name, in, how, ...)                                                             \
    {                                                                                            \
        .op = "slice", "diagonal " name, in, b_diagonal, r_diagonal, {__VA_ARGS__}, .rows = how, \
        .gradient = g_diagonal, .acc = "c"                                                       \
    }

const tl_case tl_cases_integer[] = {
    FORMS(add),
    FORMS(sub),
    FORMS(mul),
    FORMS(floor_divide),
    FORMS(remainder),
    LOGIC("and", "bool[4,9]:mask bool[4,9]:mask", "bb", 0),
    LOGIC("or", "bool[4,9]:mask bool[9]:mask", "b-", 1),
    LOGIC("not", "bool[4,9]:mask:turned", "b", 2),
    LOGIC("and of numbers", "i64[40]:below2 f32[40]:fixed", "bb", 0),
    LOGIC("or of halves", "f16[3,4]:fixed bf16[4]:fixed", "b-", 1),
    LOGIC("not of f64", "f64[5]:fixed", "b", 2),
    COUNT("f64", TL_F64, 0.1, 2.05, 0.1),
    COUNT("f32", TL_F32, 5, -1.7, -0.3),
    COUNT("f16", TL_F16, 0, 3000, 7),
    COUNT("bf16", TL_BF16, -1, 1, 0.125),
    COUNT("i64", TL_I64, -5, 40, 3),
    COUNT("of nothing", TL_F32, 1, 0, 1),
    TRIANGLE("tril", "*[2,5,4]", "b", 0, 0),
    TRIANGLE("tril above", "*[2,3,5]:turned", "b", 2, 0),
    TRIANGLE("tril of a view", "*[2,3,5]:strided", "b", -1, 0),
    TRIANGLE("tril of a matrix", "*[7,33]", NULL, 5, 0),
    TRIANGLE("triu", "*[2,4,5]:heads", "b", 0, 1),
    TRIANGLE("triu below", "*[6,4]:padded", NULL, -2, 1),
    TRIANGLE("triu above", "*[2,4,4]", "b", 1, 1),
    {.op = "where",
     "tril of ids",
     "i64[3,3]:fixed",
     b_triangle,
     r_triangle,
     {0, 0},
     .flags = CASE_NO_CHECK}, /* no float */
    {.op = "where", "tril of nothing", "*[0,3]", b_triangle, r_triangle, {0, 0}},
    DIAGONAL("of a matrix", "*[5,4]", NULL, 0, 0, 1),
    DIAGONAL("above", "*[2,3,5]", "b", 1, 1, 2),
    DIAGONAL("below", "*[2,5,3]:turned", "b", -1, -2, -1),
    DIAGONAL("turned", "*[2,3,4]:strided", "b", 1, 2, 1),
    DIAGONAL("with the batch", "*[3,2,4]", NULL, 1, 0, 2),
    {.op = "slice",
     "diagonal outside",
     "*[2,3,4]",
     b_diagonal,
     r_diagonal,
     {9, 1, 2},
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "slice",
     "diagonal of nothing",
     "*[2,0,4]",
     b_diagonal,
     r_diagonal,
     {0, 1, 2},
     .flags = CASE_NO_CHECK}, /* no elements */
};
const int tl_cases_integer_count = sizeof tl_cases_integer / sizeof tl_cases_integer[0];
