/* rows.k.c: row kernels and optimizer updates of one vector level. */
#include "tensor/kernels/level.h"

#include <math.h>
#include <string.h>

#include "tensor/kernels/math.h"
#include "tensor/kernels/math32_log.h"
#include "tensor/kernels/math32_pow.h"
#include "tensor/kernels/math64_log.h"
#include "tensor/kernels/rows.h"
#include "tensor/memory.h"

#include "tensor/kernels/vec.t.h"

typedef float vec32 __attribute__((vector_size(VEC_BYTES)));
typedef double vec64 __attribute__((vector_size(VEC_BYTES)));
typedef float half32 __attribute__((vector_size(VEC_BYTES / 2)));

/* Widen the elements to f64. Left alone, gcc converts a vector of floats in halves and joins them.
 */
static inline vec64 widen64(vec64 v) { return v; }
static inline vec64 widen32(half32 v)
{
#if VEC_BYTES == 64
    return (vec64)_mm512_cvtps_pd((__m256)v);
#elif VEC_BYTES == 32
    return (vec64)_mm256_cvtps_pd((__m128)v);
#else
    return __builtin_convertvector(v, vec64);
#endif
}

/* The templates' parameters: T the type, I the signed integer of its size, V its vector of the
 * level's width, H its vector of as many elements as vec64 has, F(name) the suffixed name, M(stem)
 * the type's array function in the math table, SQRT, RSQRT and LOG its functions of one element.
 * f64 comes first, because f32 uses its lanes. */
#define T double
#define I int64_t
#define V vec64
#define H vec64
#define F(name) name##64
#define M(stem) TL_K(tl_math_table).stem##64
#define SQRT(x) sqrt(x)
#define RSQRT(x) tl_rsqrt64(x)
#define LOG(x) tl_log64(x)
#include "tensor/kernels/rows.t.h"

#define T float
#define I int32_t
#define V vec32
#define H half32
#define F(name) name##32
#define M(stem) TL_K(tl_math_table).stem##32
#define SQRT(x) sqrtf(x)
#define RSQRT(x) tl_rsqrt32(x)
#define LOG(x) tl_log32(x)
#include "tensor/kernels/rows.t.h"

const tl_row_table TL_K(tl_row_table) = {
#define X(result, name, operands) .name = name,
    TL_ROW_FUNCTIONS(X, float, 32) TL_ROW_FUNCTIONS(X, double, 64)
#undef X
#define X(name) [TL_ROW_##name] = name##32,
        .rows32 = {TL_ROW_LIST(X)},
#undef X
#define X(name) [TL_ROW_##name] = name##64,
    .rows64 = {TL_ROW_LIST(X)}
#undef X
};
