/* add_rms_norm: s = x1 + x2, y = rms_norm(s, gamma) -> add_rms_norm, with gamma or (_bare) without.
 * Outputs y, s. Exact:  every dtype: the fused op rounds the sum as the add does. Its gradient adds
 * what comes through the norm to what comes to s from elsewhere, so s may have one more user, or
 * the norm must be the last of several.
 */
#include "ops/patterns/patterns.h"

static void search(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const tl_pattern_values *v = ctx;
    (void)n_out;
    out[1] = tl_add(t, in[0], in[1]);
    out[0] = tl_rms_norm(t, out[1], n == 3 ? in[2] : TL_NONE, v->scalar[0]);
}

static void replace(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const tl_pattern_values *v = ctx;
    (void)n_out;
    out[0] = tl_add_rms_norm(t, in[0], in[1], n == 3 ? in[2] : TL_NONE, v->scalar[0], NULL,
                             &out[1]);
}

static const tl_pattern_arg args[] = {TL_ARG("x1", TL_F32, TL_DIMS(3, 37)),
                                      TL_ARG("x2", TL_F32, TL_DIMS(3, 37)),
                                      TL_ARG("gamma", TL_F32, TL_DIMS(37), .or_f32 = true)};
static const tl_pattern_scalar scalars[] = {{"eps", 0x1.5p-13}};

#define RULE(id, n_in_)                                             \
    const tl_replacement tl_replace_##id = {.name = #id,            \
                                            .search = search,       \
                                            .replace = replace,     \
                                            .example_inputs = args, \
                                            .n_in = n_in_,          \
                                            .n_out = 2,             \
                                            .scalars = scalars,     \
                                            .n_scalars = 1,         \
                                            .exact = TL_ALL_FLOATS};
RULE(add_rms_norm, 3)
RULE(add_rms_norm_bare, 2)
