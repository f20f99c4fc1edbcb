/* cross_entropy, written out: nll(log_softmax(z), targets) -> cross_entropy(z, targets), with a
 * count (cross_entropy_count) or not; picked by gather (_gather): the mean or the sum of
 * -gather(log_softmax(z), targets, -1), targets as (..., 1).
 * Forms:  of _gather: mean or sum, negated before it or after.
 * Exact:  the values alone, f32 and f64: log(l) - (z_t - m) is minus ((z_t - m) - log(l)), and
 *         zeros of either sign fold alike; in f16 and bf16 log_softmax is rounded. The gradient of
 *         the written form multiplies and adds in another order. _gather only for rows (n,
 *         classes): more dims would be summed by lanes first.
 */
#include "ops/patterns/patterns.h"

static tl_cross_entropy_options options(const tl_pattern_values *v, const tl_tensor *in, int n)
{
    return (tl_cross_entropy_options){.ignore_index = (int64_t)v->scalar[0],
                                      .ignore = v->scalar[1] != 0,
                                      .reduction = (tl_reduction)v->scalar[2],
                                      .count = n > 2 ? in[2] : TL_NONE};
}

TL_PATTERN(search)
{
    out[0] = tl_nll_at(TL_AT(t), tl_log_softmax(t, in[0], -1), in[1], options(ctx, in, n));
}

TL_PATTERN(replace) { out[0] = tl_cross_entropy_at(TL_AT(t), in[0], in[1], options(ctx, in, n)); }

/* ---- by gather: forms 0 and 1 are the mean, 2 and 3 the sum; odd ones negate last ---- */

static tl_tensor reduced(tl_tape *t, tl_tensor x, int form)
{
    return form < 2 ? tl_mean(t, x, TL_ALL, false) : tl_sum(t, x, TL_ALL, false);
}

TL_PATTERN(search_gather)
{
    int form = ((const tl_pattern_values *)ctx)->form;
    tl_tensor p = tl_gather(t, tl_log_softmax(t, in[0], -1), in[1], -1);
    out[0] = form % 2 ? tl_neg(t, reduced(t, p, form)) : reduced(t, tl_neg(t, p), form);
}

TL_PATTERN(replace_gather)
{
    int form = ((const tl_pattern_values *)ctx)->form;
    tl_shape s = tl_shape_of(t, in[1]);
    s.ndim -= s.ndim > 0;
    out[0] = tl_cross_entropy(t, in[0], tl_reshape(t, in[1], s), form < 2 ? TL_MEAN : TL_SUM);
}

/* Rows have one target each. */
static bool rows(const tl_match *m, TL_UNUSED void *ctx)
{
    const tl_array *z = tl_match_input(m, "logits"), *ids = tl_match_input(m, "targets");
    return z->ndim == 2 && ids->ndim == 2 && ids->dim[0] == z->dim[0] && ids->dim[1] == 1;
}

static const tl_pattern_arg args[] = {TL_ARG("logits", TL_F32, TL_DIMS(6, 35)),
                                      TL_ARG("targets", TL_I64, TL_DIMS(6), .fixed = true,
                                             .below = 35),
                                      TL_ARG("count", TL_F64, TL_SCALAR, .fixed = true,
                                             .no_grad = true)};
static const tl_pattern_arg gather_args[] = {TL_ARG("logits", TL_F32, TL_DIMS(6, 35)),
                                             TL_ARG("targets", TL_I64, TL_DIMS(6, 1), .fixed = true,
                                                    .below = 35)};
static const tl_pattern_scalar scalars[] = {{"ignore_index", -77},
                                            {"ignore", true},
                                            {"reduction", TL_SUM}},
                               counted[] = {{"ignore_index", -77},
                                            {"ignore", true},
                                            {"reduction", TL_MEAN}};

TL_REPLACE(cross_entropy, search, replace, args, 2, 1, .scalars = scalars, .n_scalars = 3,
           .exact_forward = TL_WIDE)
TL_REPLACE(cross_entropy_count, search, replace, args, 3, 1, .scalars = counted, .n_scalars = 3,
           .exact_forward = TL_WIDE)
TL_REPLACE(cross_entropy_gather, search_gather, replace_gather, gather_args, 2, 1, .forms = 4,
           .extra_check = rows, .exact_forward = TL_WIDE)
