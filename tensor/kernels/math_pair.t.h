/* math_pair.t.h: the f32 and f64 array functions of one elementary function.
 *
 * Parameters, undefined at the end:
 *   TL_PAIR      the stem: exp gives tl_vexp32 from tl_exp32 and tl_vexp64 from tl_exp64
 *   TL_PAIR_FAR  optional: loops run tl_STEM_near32, and tl_STEM_far32 again where
 *                tl_trig_is_far32 says so (likewise 64)
 *   TL_PAIR_TRY  optional: the trial of the f32 function, at levels that have trials
 */
#ifndef TL_PAIR_JOIN
#define TL_PAIR_JOIN_(a, b, c) a##b##c
#define TL_PAIR_JOIN(a, b, c) TL_PAIR_JOIN_(a, b, c)
#endif

#if defined(TL_PAIR_TRY) && defined(TL_VEC)
#define TL_TRY_NAME TL_K(TL_PAIR_JOIN(tl_v, TL_PAIR, 32))
#define TL_TRY TL_PAIR_TRY
#define TL_TRY_REDO TL_PAIR_JOIN(tl_, TL_PAIR, 32)
#include "tensor/kernels/math_try.t.h"
#else
#define TL_LOOP_T float
#define TL_LOOP_NAME TL_K(TL_PAIR_JOIN(tl_v, TL_PAIR, 32))
#ifdef TL_PAIR_FAR
#define TL_LOOP_F TL_PAIR_JOIN(tl_, TL_PAIR, _near32)
#define TL_LOOP_FAR tl_trig_is_far32
#define TL_LOOP_REDO TL_PAIR_JOIN(tl_, TL_PAIR, _far32)
#else
#define TL_LOOP_F TL_PAIR_JOIN(tl_, TL_PAIR, 32)
#endif
#include "tensor/kernels/math_loop.t.h"
#endif

#define TL_LOOP_T double
#define TL_LOOP_NAME TL_K(TL_PAIR_JOIN(tl_v, TL_PAIR, 64))
#ifdef TL_PAIR_FAR
#define TL_LOOP_F TL_PAIR_JOIN(tl_, TL_PAIR, _near64)
#define TL_LOOP_FAR tl_trig_is_far64
#define TL_LOOP_REDO TL_PAIR_JOIN(tl_, TL_PAIR, _far64)
#else
#define TL_LOOP_F TL_PAIR_JOIN(tl_, TL_PAIR, 64)
#endif
#include "tensor/kernels/math_loop.t.h"

#undef TL_PAIR
#undef TL_PAIR_FAR
#undef TL_PAIR_TRY
