/* attention, written out: softmax(s, masked) v, s = q k^T * scale -> attention(q, k, v)
 *   attention_full       no mask
 *   attention_divided    no mask, s = q k^T / c, c a power of two (sqrt(d) for d = 16, 64, 256)
 *   attention_grouped, _grouped_divided   the same, keys and values repeated for the query heads
 *                        that share them: reshape, expand, reshape
 *   attention_scaled     no mask, the other ways to scale: / any c, q * scale first, q / c first;
 *                        each with heads grouped or not
 *   attention_added, _chosen, _constant, _excluded   causal, with a constant added that is 0 where
 *                        a key is allowed and -inf (or very negative) where not;
 *                        where(causal_mask, s, -inf); where(constant, s, -inf), bool;
 *                        where(constant, -inf, s), its opposite. Each with * scale or / c, heads
 *                        grouped or not, and for -inf any number that acts as such
 * Exact:  _full, _divided: f32 and f64, forward and backward. _grouped and _grouped_divided: the
 *         values alone, because the gradients of the heads that share a key are rounded before they
 *         are added. In f16 and bf16 the scores are rounded on the way. Other scalings round
 *         elsewhere. With a mask the written form multiplies masked values by 0, which makes NaN of
 *         an infinity or NaN there, and a row without a key is NaN. So these count as rounding,
 *         although for finite values the bits are the same.
 */
#include <math.h>

#include "ops/patterns/patterns.h"

typedef enum { UNMASKED, ADDED, CHOSEN, CONSTANT, EXCLUDED } mask_kind;
/* A form is scaling * 3 + heads. Heads: several query heads share a key head; all share one, where
 * no reshape copies; each has its own. The last would match the others, too, so it comes last. */
enum { BY_SCALE, BY_QUOTIENT, QUERY_BY_SCALE, QUERY_BY_QUOTIENT };
enum { GROUPED, SHARED, EACH };

typedef struct {
    mask_kind mask;
    int first_form; /* the rule has the forms from this one on */
} style;

static int form_of(const tl_pattern_values *v)
{
    return v->form + ((const style *)v->ctx)->first_form;
}
static bool grouped(int form) { return form % 3 != EACH; }
static int scaling(int form) { return form / 3; }

/* (b, hkv, s, d) -> (b, hq, s, d) */
static tl_tensor repeated(tl_tape *t, tl_tensor x, int64_t heads)
{
    tl_shape s = tl_shape_of(t, x);
    if (s.ndim != 4 || s.dim[1] == 0)
        return tl_reshape(t, x, TL_DIMS(0, 0, 0, 0, 0)); /* fails */
    tl_tensor apart = tl_reshape(t, x, TL_DIMS(s.dim[0], s.dim[1], 1, s.dim[2], s.dim[3]));
    tl_tensor all = tl_expand(t, apart,
                              TL_DIMS(s.dim[0], s.dim[1], heads / s.dim[1], s.dim[2], s.dim[3]));
    return tl_reshape(t, all, TL_DIMS(s.dim[0], heads, s.dim[2], s.dim[3]));
}

static tl_tensor over(tl_tape *t, tl_tensor x, double c)
{
    return tl_div(t, x, tl_scalar(t, tl_dtype_of(t, x), c));
}

static tl_tensor scores(tl_tape *t, tl_tensor q, tl_tensor k, double c, int kind)
{
    if (kind == QUERY_BY_SCALE || kind == QUERY_BY_QUOTIENT)
        q = kind == QUERY_BY_SCALE ? tl_scale(t, q, c) : over(t, q, c);
    tl_tensor s = tl_matmul(t, q, tl_transpose(t, k, -1, -2));
    return kind == BY_SCALE ? tl_scale(t, s, c) : kind == BY_QUOTIENT ? over(t, s, c) : s;
}

TL_PATTERN(search)
{
    const tl_pattern_values *v = ctx;
    mask_kind mask = ((const style *)v->ctx)->mask;
    tl_shape sq = tl_shape_of(t, in[0]), sk = tl_shape_of(t, in[1]);
    tl_tensor key = in[1], value = in[2];
    if (grouped(form_of(v))) {
        key = repeated(t, key, sq.dim[1]);
        value = repeated(t, value, sq.dim[1]);
    }
    tl_tensor s = scores(t, in[0], key, v->scalar[0], scaling(form_of(v)));
    if (mask == ADDED)
        s = tl_add(t, s, in[3]);
    else if (mask != UNMASKED && sq.ndim == 4 && sk.ndim == 4) {
        tl_tensor off = tl_scalar(t, tl_dtype_of(t, s), v->scalar[1]);
        tl_tensor on = mask == CHOSEN ? tl_causal_mask(t, sq.dim[2], sk.dim[2]) : in[3];
        s = mask == EXCLUDED ? tl_where(t, on, off, s) : tl_where(t, on, s, off);
    }
    out[0] = tl_matmul(t, tl_softmax(t, s, -1), value);
}

/* The result is contiguous, as a matmul's is: later calls may view it. */
TL_PATTERN(replace)
{
    const tl_pattern_values *v = ctx;
    const int kind = scaling(form_of(v));
    const double c = v->scalar[0],
                 scale = kind == BY_QUOTIENT || kind == QUERY_BY_QUOTIENT ? 1 / c : c;
    bool full = ((const style *)v->ctx)->mask == UNMASKED;
    tl_tensor y = tl_attention(t, in[0], in[1], in[2], .scale = scale, .full = full);
    out[0] = tl_contiguous(t, y);
}

/* ---- what fits ---- */

/* As good as -inf, added to a score or in its place: its exp is 0. */
static bool minus_much(double x, tl_dtype d) { return x <= (d == TL_F16 ? -3e4 : -1e9); }

/* The mask is (queries, keys), perhaps with leading 1s, and allows what causality allows. */
static bool causal(const tl_array *mask, mask_kind kind, tl_dtype d, int64_t queries, int64_t keys)
{
    if (mask == NULL || mask->ndim < 2 || tl_array_count(mask) != queries * keys ||
        mask->dim[mask->ndim - 1] != keys || mask->dim[mask->ndim - 2] != queries)
        return false;
    for (int64_t i = 0; i < queries; i++)
        for (int64_t j = 0; j < keys; j++) {
            bool allowed = j <= i + (keys - queries);
            double x = tl_array_get(mask, i * keys + j);
            if (kind == ADDED ? !(allowed       ? x == 0
                                  : d == TL_F16 ? isinf(x) && x < 0
                                                : minus_much(x, d))
                              : x != (allowed == (kind == CONSTANT)))
                return false;
        }
    return true;
}

/* A scale of 0 means something else to attention. */
static bool fits(const tl_match *m, void *ctx)
{
    const tl_array *q = tl_match_input(m, "q"), *k = tl_match_input(m, "k");
    mask_kind mask = ((const style *)ctx)->mask;
    double c = tl_match_scalar(m, "scale");
    if (q->ndim != 4 || k->ndim != 4 || c == 0 || !isfinite(c) || !isfinite(1 / c))
        return false;
    if (mask != UNMASKED && mask != ADDED && !minus_much(tl_match_scalar(m, "masked"), q->dtype))
        return false;
    return mask == UNMASKED || mask == CHOSEN ||
           causal(tl_match_constant(m, "mask"), mask, q->dtype, q->dim[2], k->dim[2]);
}

/* x / 2^n and x * 2^-n are the same number, rounded once. */
static bool power_of_two(const tl_match *m, void *ctx)
{
    int e;
    double c = tl_match_scalar(m, "scale");
    return fits(m, ctx) && frexp(c, &e) == 0.5 && e > -100 && e < 100;
}

/* ---- rules ---- */

static const tl_pattern_arg args[] = {TL_ARG("q", TL_F32, TL_DIMS(2, 3, 5, 8)),
                                      TL_ARG("k", TL_F32, TL_DIMS(2, 3, 35, 8)),
                                      TL_ARG("v", TL_F32, TL_DIMS(2, 3, 35, 8)),
                                      TL_ARG("mask", TL_F32, TL_DIMS(5, 35), .no_grad = true,
                                             .or_f32 = true)};
static const tl_pattern_arg bool_args[] = {TL_ARG("q", TL_F32, TL_DIMS(2, 3, 5, 8)),
                                           TL_ARG("k", TL_F32, TL_DIMS(2, 3, 35, 8)),
                                           TL_ARG("v", TL_F32, TL_DIMS(2, 3, 35, 8)),
                                           TL_ARG("mask", TL_BOOL, TL_DIMS(5, 35), .fixed = true,
                                                  .no_grad = true)};
#define QUERIES TL_DIMS(2, 6, 5, 8)
#define KEYS(heads) TL_DIMS(2, heads, 35, 8), TL_DIMS(2, heads, 35, 8)
#define MASK TL_DIMS(5, 35)
/* By form: GROUPED, SHARED and EACH of every scaling. */
/* clang-format off */
#define FULL_HEADS {QUERIES, KEYS(3)}, {QUERIES, KEYS(1)}, {QUERIES, KEYS(6)}
#define MASKED_HEADS {QUERIES, KEYS(3), MASK}, {QUERIES, KEYS(1), MASK}, {QUERIES, KEYS(6), MASK}
/* clang-format on */
static const tl_shape shapes[][3] = {FULL_HEADS, FULL_HEADS, FULL_HEADS, FULL_HEADS};
static const tl_shape masked[][4] = {MASKED_HEADS, MASKED_HEADS};
static const tl_pattern_scalar scalars[] = {{"scale", 0x1.6p-2}, {"masked", -0x1.8p40}};
static const tl_pattern_scalar power[] = {{"scale", 0x1p-2}};

#define RULE(id, kind, args, inputs, shapes_, values, n, check, first, forms_, ...)     \
    static style style_##id = {kind, first};                                            \
    TL_REPLACE(id, search, replace, args, inputs, 1, .scalars = values, .n_scalars = n, \
               .forms = forms_, .form_shapes = shapes_[first], .extra_check = check,    \
               .ctx = &style_##id, __VA_ARGS__)
RULE(attention_grouped, UNMASKED, args, 3, shapes, scalars, 1, fits, 0, 2, .exact_forward = TL_WIDE)
RULE(attention_full, UNMASKED, args, 3, shapes, scalars, 1, fits, 2, 1, .exact = TL_WIDE)
RULE(attention_grouped_divided, UNMASKED, args, 3, shapes, power, 1, power_of_two, 3, 2,
     .exact_forward = TL_WIDE)
RULE(attention_divided, UNMASKED, args, 3, shapes, power, 1, power_of_two, 5, 1, .exact = TL_WIDE)
RULE(attention_scaled, UNMASKED, args, 3, shapes, scalars, 1, fits, 3, 9, .exact = 0)
RULE(attention_added, ADDED, args, 4, masked, scalars, 1, fits, 0, 6, .exact = 0)
RULE(attention_chosen, CHOSEN, args, 3, shapes, scalars, 2, fits, 0, 6, .exact = 0)
RULE(attention_constant, CONSTANT, bool_args, 4, masked, scalars, 2, fits, 0, 6, .exact = 0)
RULE(attention_excluded, EXCLUDED, bool_args, 4, masked, scalars, 2, fits, 0, 6, .exact = 0)
