/* silu, written out: x * sigmoid(x) -> silu(x); and (silu_exp) as x / (1 + exp(-x)), x *
 * reciprocal(1 + exp(-x)) or x * (1 / (1 + exp(-x))). silu(a) * b is below.
 * Exact:  silu: the values alone, f32 and f64. In f16 and bf16 the sigmoid is rounded, and its
 *         gradient is added to x's. silu_exp: nothing; a sigmoid is rounded once, these three or
 *         four times.
 */
#include "ops/patterns/patterns.h"

TL_PATTERN(search) { out[0] = tl_mul(t, in[0], tl_sigmoid(t, in[0])); }

TL_PATTERN(search_exp)
{
    const tl_pattern_values *v = ctx;
    tl_tensor below = tl_shift(t, tl_exp(t, tl_neg(t, in[0])), 1);
    if (v->form == 0) {
        out[0] = tl_div(t, in[0], below);
        return;
    }
    tl_tensor one = tl_scalar(t, tl_dtype_of(t, in[0]), 1);
    out[0] = tl_mul(t, in[0], v->form == 1 ? tl_reciprocal(t, below) : tl_div(t, one, below));
}

TL_PATTERN(replace) { out[0] = tl_silu(t, in[0]); }

static const tl_pattern_arg args[] = {TL_ARG("x", TL_F32, TL_DIMS(5, 33))};

TL_REPLACE(silu, search, replace, args, 1, 1, .exact_forward = TL_WIDE)
TL_REPLACE(silu_exp, search_exp, replace, args, 1, 1, .forms = 3)

/* ---- swiglu: silu(a) * b -> swiglu(a, b), a and b alike.
 * Exact:  f32, f64. In f16 and bf16 silu(a) is rounded by itself, in swiglu it is not.
 */

TL_PATTERN(swiglu_search) { out[0] = tl_mul(t, tl_silu(t, in[0]), in[1]); }

TL_PATTERN(swiglu_replace) { out[0] = tl_swiglu(t, in[0], in[1]); }

/* If one is broadcast to the other, the written form adds up the gradient before silu's gradient,
 * swiglu after it. */
static bool alike(const tl_match *m, TL_UNUSED void *ctx)
{
    return tl_array_same_shape(tl_match_input(m, "a"), tl_match_input(m, "b"));
}

static const tl_pattern_arg swiglu_args[] = {TL_ARG("a", TL_F32, TL_DIMS(5, 33)),
                                             TL_ARG("b", TL_F32, TL_DIMS(5, 33))};

TL_REPLACE(swiglu, swiglu_search, swiglu_replace, swiglu_args, 2, 1, .extra_check = alike,
           .exact = TL_WIDE)
