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

static void where_bool(int64_t n, const unsigned char *c, const unsigned char *a,
                       const unsigned char *b, unsigned char *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = c[i] ? a[i] : b[i];
}

/* Each wrapper only calls the loop of its type, t->dtype. */
#define UNARY(name) UNARY_AS(name, name##_f32, name##_f64)
#define MATH(name) MATH_AS(name, name)
#define MATH_AS(name, stem) \
    UNARY_AS(name, TL_K(tl_math_table).stem##32, TL_K(tl_math_table).stem##64)
#define UNARY_AS(name, f32, f64)                                                        \
    static void tile_##name(const tl_tile *t)                                           \
    {                                                                                   \
        t->dtype == TL_F64 ? f64(t->n, t->in[0], t->out) : f32(t->n, t->in[0], t->out); \
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
