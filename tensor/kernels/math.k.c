/* math.k.c: elementary functions over arrays, compiled once per vector level.
 *
 * The arithmetic is in math32.h and math64.h; this file makes loops of it and
 * gathers them in the level's table (math.h). tl_vpow32 and tl_vpow64 send the
 * exponents that have functions of their own to these. The loops vectorise at -O3 with
 * -fno-trapping-math (gcc needs it) and -fno-math-errno (square roots need it).
 */
#include "tensor/kernels/level.h"
#include "tensor/kernels/math.h"
#include "tensor/kernels/math32.h"
#include "tensor/kernels/math32_try.h"
#include "tensor/kernels/math64.h"

#include <stddef.h>

#define TL_PAIR exp
#define TL_PAIR_TRY tl_try_exp
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR exp2_
#define TL_PAIR_TRY tl_try_exp2
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR expm1_
#define TL_PAIR_TRY tl_try_expm1
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR log
#define TL_PAIR_TRY tl_try_log
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR log2_
#define TL_PAIR_TRY tl_try_log2
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR log1p
#define TL_PAIR_TRY tl_try_log1p
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR sin
#define TL_PAIR_TRY tl_try_sin
#define TL_PAIR_FAR
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR cos
#define TL_PAIR_TRY tl_try_cos
#define TL_PAIR_FAR
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR tanh
#define TL_PAIR_TRY tl_try_tanh
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR sigmoid
#define TL_PAIR_TRY tl_try_sigmoid
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR rsqrt
#define TL_PAIR_TRY tl_try_rsqrt
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR sqrt
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR erf
#define TL_PAIR_TRY tl_try_erf
#include "tensor/kernels/math_pair.t.h"

/* Constant exponents: m is minus, h is halves. */
#define TL_PAIR powm2_
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR powm1_
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR powm1h_
#define TL_PAIR_TRY tl_try_rsqrt
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR pow1h_
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR pow3h_
#define TL_PAIR_TRY tl_try_pow3h
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR pow2_
#include "tensor/kernels/math_pair.t.h"
#define TL_PAIR pow3_
#include "tensor/kernels/math_pair.t.h"

#define TL_LOOP_T float
#define TL_LOOP_NAME TL_K(tl_vpow_any32)
#define TL_LOOP_F tl_pow_by32
#define TL_LOOP_POW
#include "tensor/kernels/math_loop.t.h"
#define TL_LOOP_T double
#define TL_LOOP_NAME TL_K(tl_vpow_any64)
#define TL_LOOP_F tl_pow_by64
#define TL_LOOP_POW
#include "tensor/kernels/math_loop.t.h"

typedef struct {
    double e;
    tl_math32_fn *f32;
    tl_math64_fn *f64;
} tl_pow_case;

static const tl_pow_case pow_cases[] = {
    {-2.0, TL_K(tl_vpowm2_32), TL_K(tl_vpowm2_64)},
    {-1.0, TL_K(tl_vpowm1_32), TL_K(tl_vpowm1_64)},
    {-0.5, TL_K(tl_vpowm1h_32), TL_K(tl_vpowm1h_64)},
    {0.5, TL_K(tl_vpow1h_32), TL_K(tl_vpow1h_64)},
    {1.5, TL_K(tl_vpow3h_32), TL_K(tl_vpow3h_64)},
    {2.0, TL_K(tl_vpow2_32), TL_K(tl_vpow2_64)},
    {3.0, TL_K(tl_vpow3_32), TL_K(tl_vpow3_64)},
};

enum { POW_CASES = sizeof pow_cases / sizeof pow_cases[0] };

void TL_K(tl_vpow32)(int64_t n, const float *x, double e, float *y);
void TL_K(tl_vpow32)(int64_t n, const float *x, double e, float *y)
{
    for (int i = 0; i < POW_CASES; i++)
        if (pow_cases[i].e == e) {
            pow_cases[i].f32(n, x, y);
            return;
        }
    TL_K(tl_vpow_any32)(n, x, e, y);
}

void TL_K(tl_vpow64)(int64_t n, const double *x, double e, double *y);
void TL_K(tl_vpow64)(int64_t n, const double *x, double e, double *y)
{
    for (int i = 0; i < POW_CASES; i++)
        if (pow_cases[i].e == e) {
            pow_cases[i].f64(n, x, y);
            return;
        }
    TL_K(tl_vpow_any64)(n, x, e, y);
}

#define TL_MATH_ENTRY(f) .f##32 = TL_K(tl_v##f##32), .f##64 = TL_K(tl_v##f##64),
const tl_math_table TL_K(tl_math_table) = {TL_MATH_LIST(TL_MATH_ENTRY).pow32 = TL_K(tl_vpow32),
                                           .pow64 = TL_K(tl_vpow64)};
