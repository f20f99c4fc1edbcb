/* swiglu: silu(a) * b -> swiglu(a, b), a and b alike.
 * Exact:  f32, f64. In f16 and bf16 silu(a) is rounded by itself, in swiglu it is not.
 */
#include "ops/patterns/patterns.h"

static void search(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    out[0] = tl_mul(t, tl_silu(t, in[0]), in[1]);
}

static void replace(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    out[0] = tl_swiglu(t, in[0], in[1]);
}

/* Where one is spread over the other, what belongs together is added before silu's gradient, in
 * swiglu after it. */
static bool alike(const tl_match *m, void *ctx)
{
    (void)ctx;
    return tl_array_same_shape(tl_match_input(m, "a"), tl_match_input(m, "b"));
}

static const tl_pattern_arg args[] = {TL_ARG("a", TL_F32, TL_DIMS(5, 33)),
                                      TL_ARG("b", TL_F32, TL_DIMS(5, 33))};

const tl_replacement tl_replace_swiglu = {.name = "swiglu",
                                          .search = search,
                                          .replace = replace,
                                          .example_inputs = args,
                                          .n_in = 2,
                                          .n_out = 1,
                                          .extra_check = alike,
                                          .exact = TL_BIT(TL_F32) | TL_BIT(TL_F64)};
