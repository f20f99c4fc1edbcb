/* pointwise.k.c: the built-in tile kernels of one vector level. */
#include "tensor/kernels/level.h"

#include "tensor/kernels/convert.h"
#include "tensor/kernels/math.h"
#include "tensor/kernels/pointwise.h"

#define T float
#define F(name) name##_f32
#define M(stem) TL_K(tl_math_table).stem##32
#include "tensor/kernels/pointwise.t.h"

#define T double
#define F(name) name##_f64
#define M(stem) TL_K(tl_math_table).stem##64
#include "tensor/kernels/pointwise.t.h"

#define T int64_t
#define F(name) name##_i64
#include "tensor/kernels/pointwise.t.h"

/* Arithmetic of i64 wraps around. */
static void add_i64(int64_t n, const int64_t *a, const int64_t *b, int64_t *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (int64_t)((uint64_t)a[i] + (uint64_t)b[i]);
}
static void sub_i64(int64_t n, const int64_t *a, const int64_t *b, int64_t *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (int64_t)((uint64_t)a[i] - (uint64_t)b[i]);
}
static void mul_i64(int64_t n, const int64_t *a, const int64_t *b, int64_t *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (int64_t)((uint64_t)a[i] * (uint64_t)b[i]);
}

/* b is not 0. Division by -1, which would overflow for the least number, is a subtraction. */
static void floor_divide_i64(int64_t n, const int64_t *a, const int64_t *b, int64_t *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = b[i] == -1 ? (int64_t)(0 - (uint64_t)a[i])
                          : a[i] / b[i] - (a[i] % b[i] != 0 && (a[i] < 0) != (b[i] < 0));
}
static void remainder_i64(int64_t n, const int64_t *a, const int64_t *b, int64_t *y)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t r = b[i] == -1 ? 0 : a[i] % b[i];
        y[i] = r != 0 && (r < 0) != (b[i] < 0) ? r + b[i] : r;
    }
}

static void where_bool(int64_t n, const unsigned char *c, const unsigned char *a,
                       const unsigned char *b, unsigned char *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = c[i] ? a[i] : b[i];
}

/* Each wrapper only calls the loop of its type, t->dtype. */
#define UNARY(name)                                              \
    static void tile_##name(const tl_tile *t)                    \
    {                                                            \
        t->dtype == TL_F64 ? name##_f64(t->n, t->in[0], t->out)  \
                           : name##_f32(t->n, t->in[0], t->out); \
    }
#define MATH(name) MATH_AS(name, name)
#define MATH_AS(name, stem)                                                        \
    static void tile_##name(const tl_tile *t)                                      \
    {                                                                              \
        t->dtype == TL_F64 ? TL_K(tl_math_table).stem##64(t->n, t->in[0], t->out)  \
                           : TL_K(tl_math_table).stem##32(t->n, t->in[0], t->out); \
    }
#define BINARY(name)                                                       \
    static void tile_##name(const tl_tile *t)                              \
    {                                                                      \
        t->dtype == TL_F64 ? name##_f64(t->n, t->in[0], t->in[1], t->out)  \
                           : name##_f32(t->n, t->in[0], t->in[1], t->out); \
    }
#define CONSTANT(name)                                                     \
    static void tile_##name(const tl_tile *t)                              \
    {                                                                      \
        double c = ((const tl_const_attrs *)t->attrs)->c;                  \
        t->dtype == TL_F64 ? name##_f64(t->n, t->in[0], c, t->out)         \
                           : name##_f32(t->n, t->in[0], (float)c, t->out); \
    }
#define NUMBER(name)                                                           \
    static void tile_##name(const tl_tile *t)                                  \
    {                                                                          \
        if (t->dtype == TL_I64)                                                \
            name##_i64(t->n, t->in[0], t->in[1], t->out);                      \
        else                                                                   \
            t->dtype == TL_F64 ? name##_f64(t->n, t->in[0], t->in[1], t->out)  \
                               : name##_f32(t->n, t->in[0], t->in[1], t->out); \
    }
#define INTEGER(name) \
    static void tile_##name(const tl_tile *t) { name##_i64(t->n, t->in[0], t->in[1], t->out); }
TL_TILE_UNARY(UNARY)
TL_TILE_NUMBER(NUMBER)
TL_TILE_BINARY(BINARY)
TL_TILE_INTEGER(INTEGER)
TL_TILE_COMPARE(NUMBER)
TL_TILE_MATH(MATH)
MATH_AS(expm1, expm1_)
MATH_AS(exp2, exp2_)
MATH_AS(log2, log2_)
CONSTANT(scale)
CONSTANT(shift)

static void tile_pow(const tl_tile *t)
{
    double e = ((const tl_const_attrs *)t->attrs)->c;
    if (t->dtype == TL_F64)
        TL_K(tl_math_table).pow64(t->n, t->in[0], e, t->out);
    else
        TL_K(tl_math_table).pow32(t->n, t->in[0], e, t->out);
}

static void tile_where(const tl_tile *t)
{
    switch (t->dtype) {
    case TL_F64: where_f64(t->n, t->in[0], t->in[1], t->in[2], t->out); break;
    case TL_I64: where_i64(t->n, t->in[0], t->in[1], t->in[2], t->out); break;
    case TL_BOOL: where_bool(t->n, t->in[0], t->in[1], t->in[2], t->out); break;
    default: where_f32(t->n, t->in[0], t->in[1], t->in[2], t->out);
    }
}

static void tile_clamp(const tl_tile *t)
{
    const tl_clamp_attrs *a = t->attrs;
    if (t->dtype == TL_F64)
        clamp_f64(t->n, t->in[0], a->lo, a->hi, t->out);
    else
        clamp_f32(t->n, t->in[0], (float)a->lo, (float)a->hi, t->out);
}

static void tile_cast(const tl_tile *t)
{
    TL_K(tl_convert_table)
        .cast(t->n, t->dtype, t->in[0], ((const tl_cast_attrs *)t->attrs)->dtype, t->out);
}

tl_tile_fn *const TL_K(tl_tile_table)[] = {[TL_TILE_none] = 0,
#define X(name) [TL_TILE_##name] = tile_##name,
                                           TL_TILE_LIST(X)
#undef X
};
