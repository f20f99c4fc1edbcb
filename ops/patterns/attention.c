/* attention, written out: softmax(q k^T * scale, masked) v -> attention(q, k, v)
 * without a mask; with a constant added that is 0 where a key is allowed and -inf where not, causally; with where(causal_mask, s, -inf).
 * Exact:  without a mask, f32 and f64, forward and backward. In f16 and bf16 the scores are rounded on the way. With a mask the
 *         written form multiplies what it has masked by 0, which an infinity or NaN there survives, and a row
 *         without a key is NaN: so this rounds, though for finite values the bits are the same.
 */
#include <math.h>

#include "ops/patterns/patterns.h"

typedef enum { UNMASKED, ADDED, CHOSEN } mask_kind;

static void search(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const tl_pattern_values *v = ctx;
    mask_kind kind = *(const mask_kind *)v->ctx;
    (void)n, (void)n_out;
    tl_tensor s = tl_scale(t, tl_matmul(t, in[0], tl_transpose(t, in[1], -1, -2)), v->scalar[0]);
    tl_shape sh = tl_shape_of(t, s);
    if (kind == ADDED)
        s = tl_add(t, s, in[3]);
    if (kind == CHOSEN && sh.ndim >= 2)
        s = tl_where(t, tl_causal_mask(t, sh.dim[sh.ndim - 2], sh.dim[sh.ndim - 1]), s, tl_scalar(t, tl_dtype_of(t, s), -(double)INFINITY));
    out[0] = tl_matmul(t, tl_softmax(t, s, -1), in[2]);
}

/* As contiguous as a matmul's result: what follows may view it. */
static void replace(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const tl_pattern_values *v = ctx;
    (void)n, (void)n_out;
    out[0] = tl_contiguous(t, tl_attention(t, in[0], in[1], in[2], .scale = v->scalar[0], .full = *(const mask_kind *)v->ctx == UNMASKED));
}

static double element(const tl_array *a, int64_t i)
{
    const void *p = tl_array_at(a, i);
    return a->dtype == TL_F64 ? *(const double *)p : a->dtype == TL_F32 ? (double)*(const float *)p : (double)NAN;
}

/* (queries, keys), perhaps with leading 1s; 0 and -inf as causality has it. */
static bool causal(const tl_array *mask, int64_t queries, int64_t keys)
{
    if (mask == NULL || mask->ndim < 2 || tl_array_count(mask) != queries * keys || mask->dim[mask->ndim - 1] != keys)
        return false;
    for (int64_t i = 0; i < queries; i++)
        for (int64_t j = 0; j < keys; j++)
            if (element(mask, i * keys + j) != (j <= i + (keys - queries) ? 0 : (double)-INFINITY))
                return false;
    return true;
}

/* scale = 0 means something else to attention. */
static bool fits(const tl_match *m, void *ctx)
{
    const tl_array *q = tl_match_input(m, "q"), *k = tl_match_input(m, "k");
    double scale = tl_match_scalar(m, "scale");
    if (q->ndim != 4 || k->ndim != 4 || scale == 0 || isnan(scale))
        return false;
    return *(const mask_kind *)ctx != ADDED || causal(tl_match_constant(m, "mask"), q->dim[2], k->dim[2]);
}

static const tl_pattern_arg args[] = {TL_ARG("q", TL_F32, TL_DIMS(2, 3, 5, 8)), TL_ARG("k", TL_F32, TL_DIMS(2, 3, 35, 8)), TL_ARG("v", TL_F32, TL_DIMS(2, 3, 35, 8)),
                                      TL_ARG("mask", TL_F32, TL_DIMS(5, 35), .no_grad = true, .or_f32 = true)};
static const tl_pattern_scalar scalars[] = {{"scale", 0x1.6p-2}};
static mask_kind unmasked = UNMASKED, added = ADDED, chosen = CHOSEN;

#define FORM(id, n_in_, kind, ...)                                                                                                \
    const tl_replacement tl_replace_##id = {.name = #id, .search = search, .replace = replace, .example_inputs = args,            \
        .n_in = n_in_, .n_out = 1, .scalars = scalars, .n_scalars = 1, .extra_check = fits, .ctx = &kind, __VA_ARGS__};
FORM(attention_full, 3, unmasked, .exact = TL_BIT(TL_F32) | TL_BIT(TL_F64))
FORM(attention_added_mask, 4, added, .exact = 0)
FORM(attention_causal_mask, 3, chosen, .exact = 0)
