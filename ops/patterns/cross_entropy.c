/* cross_entropy, written out: nll(log_softmax(z), targets) -> cross_entropy(z, targets), with and without a count.
 * Exact:  the values alone, f32 and f64: log(l) - (z_t - m) is minus ((z_t - m) - log(l)), and zeros of either sign fold
 *         alike; in f16 and bf16 log_softmax is rounded. The gradient of the written form multiplies and adds in another order.
 */
#include "ops/patterns/patterns.h"

static tl_cross_entropy_options options(const tl_pattern_values *v, const tl_tensor *in, int n)
{
    return (tl_cross_entropy_options){.reduction = (tl_reduction)v->scalar[0], .ignore_index = (int64_t)v->scalar[1], .ignore = v->scalar[2] != 0,
                                      .count = n > 2 ? in[2] : TL_NONE};
}

static void search(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n_out;
    out[0] = tl_nll_at(TL_AT(t), tl_log_softmax(t, in[0], -1), in[1], options(ctx, in, n));
}

static void replace(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n_out;
    out[0] = tl_cross_entropy_at(TL_AT(t), in[0], in[1], options(ctx, in, n));
}

static const tl_pattern_arg args[] = {TL_ARG("logits", TL_F32, TL_DIMS(6, 35)), TL_ARG("targets", TL_I64, TL_DIMS(6), .fixed = true, .below = 35),
                                      TL_ARG("count", TL_F64, TL_SCALAR, .fixed = true, .no_grad = true)};
static const tl_pattern_scalar scalars[] = {{"reduction", TL_SUM}, {"ignore_index", -77}, {"ignore", true}};

#define FORM(id, n_in_)                                                                                                          \
    const tl_replacement tl_replace_##id = {.name = #id, .search = search, .replace = replace, .example_inputs = args,           \
        .n_in = n_in_, .n_out = 1, .scalars = scalars, .n_scalars = 3, .exact_forward = TL_BIT(TL_F32) | TL_BIT(TL_F64)};
FORM(cross_entropy, 2)
FORM(cross_entropy_count, 3)
