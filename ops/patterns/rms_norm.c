/* rms_norm, written out -> rms_norm(x, gamma, eps), or rms_norm_plus_one
 *         h = x * rstd, rstd = 1/sqrt(mean(x^2) + eps), and y = h, h * gamma or h * (1 + gamma)
 * Forms:  x^2 as square(x), x * x or pow(x, 2); rstd as rsqrt(v), pow(v, -1/2),
 *         reciprocal(sqrt(v)) or 1 / sqrt(v), or h as x / sqrt(v). Computed in x's dtype
 *         (rms_norm, _bare, _plus_one), or cast to f32 and back: at the end (_cast, _bare_cast,
 *         _plus_one_cast, where gamma is cast too, or _plus_one_gamma, where it is not), or before
 *         gamma (_cast_gamma).
 * Exact:  the values alone, of the forms with rsqrt and pow - f32 and f64 without casts; f32, f16
 *         and bf16 with casts at the end (f32 alone where 1 + gamma is in gamma's dtype, or with
 *         the cast before gamma: in f16 those round twice, rms_norm once). rsqrt rounds once, a
 *         root and a quotient twice: those forms claim nothing. The gradient goes through mean and
 *         rsqrt one by one and rounds elsewhere, so by default a form is replaced only where no
 *         gradient passes.
 */
#include "ops/patterns/patterns.h"

enum { SQUARE, TIMES, POWER, SQUARES };
enum { RSQRT, MINUS_HALF, RECIPROCAL, ONE_OVER, DIVIDED, ROOTS };
typedef enum { NO_CAST, CAST_LAST, CAST_BEFORE_GAMMA } cast_kind;
typedef enum { BARE, GAMMA, PLUS_ONE, PLUS_ONE_CAST } weight_kind;
typedef struct {
    cast_kind cast;
    weight_kind weight;
} style;

static tl_tensor square_of(tl_tape *t, tl_tensor x, int kind)
{
    return kind == SQUARE ? tl_square(t, x) : kind == TIMES ? tl_mul(t, x, x) : tl_pow(t, x, 2);
}

static tl_tensor over_root(tl_tape *t, tl_tensor x, tl_tensor v, int kind)
{
    switch (kind) {
    case RSQRT: return tl_mul(t, x, tl_rsqrt(t, v));
    case MINUS_HALF: return tl_mul(t, x, tl_pow(t, v, -0.5));
    case RECIPROCAL: return tl_mul(t, x, tl_reciprocal(t, tl_sqrt(t, v)));
    case ONE_OVER:
        return tl_mul(t, x, tl_div(t, tl_scalar(t, tl_dtype_of(t, v), 1), tl_sqrt(t, v)));
    default: return tl_div(t, x, tl_sqrt(t, v));
    }
}

TL_PATTERN(search)
{
    const tl_pattern_values *v = ctx;
    const style *f = v->ctx;
    tl_dtype d = tl_dtype_of(t, in[0]);
    tl_tensor x = f->cast == NO_CAST ? in[0] : tl_cast(t, in[0], TL_F32);
    tl_tensor mean = tl_mean(t, square_of(t, x, v->form % SQUARES), TL_DIMS(-1), true);
    tl_tensor y = over_root(t, x, tl_shift(t, mean, v->scalar[0]), v->form / SQUARES);
    if (f->cast == CAST_BEFORE_GAMMA)
        y = tl_cast(t, y, d);
    if (f->weight != BARE) {
        tl_tensor w = f->weight == PLUS_ONE_CAST ? tl_cast(t, in[1], TL_F32) : in[1];
        y = tl_mul(t, y, f->weight == GAMMA ? w : tl_shift(t, w, 1));
    }
    out[0] = f->cast == CAST_LAST ? tl_cast(t, y, d) : y;
}

TL_PATTERN(replace)
{
    const tl_pattern_values *v = ctx;
    const style *f = v->ctx;
    out[0] = f->weight == BARE    ? tl_rms_norm(t, in[0], TL_NONE, v->scalar[0])
             : f->weight == GAMMA ? tl_rms_norm(t, in[0], in[1], v->scalar[0])
                                  : tl_rms_norm_plus_one(t, in[0], in[1], v->scalar[0]);
}

/* gamma is one row, and rows of x are summed by lanes, so they are not along the batch (NUMERICS
 * 4.1). A NaN as eps means something else to rms_norm. */
static bool rows(const tl_match *m, TL_UNUSED void *ctx)
{
    const tl_array *x = tl_match_input(m, "x"), *gamma = tl_match_input(m, "gamma");
    if (x->ndim < 2 || x->dim[x->ndim - 1] >= 1 << 24 || !(tl_match_scalar(m, "eps") >= 0))
        return false;
    return gamma == NULL || (gamma->ndim == 1 && gamma->dim[0] == x->dim[x->ndim - 1]);
}

static const tl_pattern_arg args[] = {TL_ARG("x", TL_F32, TL_DIMS(3, 37)),
                                      TL_ARG("gamma", TL_F32, TL_DIMS(37), .or_f32 = true)};
static const tl_pattern_scalar scalars[] = {{"eps", 0x1.5p-13}};

enum { UP_TO_F32 = TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16), F32 = TL_BIT(TL_F32) };
enum { ROUNDING = (1 << SQUARES * ROOTS) - (1 << SQUARES * RECIPROCAL) };

#define RULE(id, cast, weight, dtypes)                                                   \
    static style style_##id = {cast, weight};                                            \
    TL_REPLACE(id, search, replace, args, weight == BARE ? 1 : 2, 1, .scalars = scalars, \
               .n_scalars = 1, .forms = SQUARES * ROOTS, .rounding_forms = ROUNDING,     \
               .extra_check = rows, .ctx = &style_##id, .exact_forward = dtypes)

RULE(rms_norm, NO_CAST, GAMMA, TL_WIDE)
RULE(rms_norm_cast, CAST_LAST, GAMMA, UP_TO_F32)
RULE(rms_norm_cast_gamma, CAST_BEFORE_GAMMA, GAMMA, F32)
RULE(rms_norm_bare, NO_CAST, BARE, TL_WIDE)
RULE(rms_norm_bare_cast, CAST_LAST, BARE, UP_TO_F32)
RULE(rms_norm_plus_one, NO_CAST, PLUS_ONE, TL_WIDE)
RULE(rms_norm_plus_one_cast, CAST_LAST, PLUS_ONE_CAST, UP_TO_F32)
RULE(rms_norm_plus_one_gamma, CAST_LAST, PLUS_ONE, F32)

/* ---- add_rms_norm: s = x1 + x2, y = rms_norm(s, gamma) -> add_rms_norm, with gamma or (_bare)
 * without. Outputs y, s.
 * Exact:  every dtype: the fused op rounds the sum as the add does. Its gradient adds the norm's
 *         part to the cotangent that s has from elsewhere, so s may have one more user, or the norm
 *         must be the last of several.
 */

TL_PATTERN(add_search)
{
    const tl_pattern_values *v = ctx;
    out[1] = tl_add(t, in[0], in[1]);
    out[0] = tl_rms_norm(t, out[1], n == 3 ? in[2] : TL_NONE, v->scalar[0]);
}

TL_PATTERN(add_replace)
{
    const tl_pattern_values *v = ctx;
    out[0] = tl_add_rms_norm(t, in[0], in[1], n == 3 ? in[2] : TL_NONE, v->scalar[0], NULL,
                             &out[1]);
}

static const tl_pattern_arg add_args[] = {TL_ARG("x1", TL_F32, TL_DIMS(3, 37)),
                                          TL_ARG("x2", TL_F32, TL_DIMS(3, 37)),
                                          TL_ARG("gamma", TL_F32, TL_DIMS(37), .or_f32 = true)};

TL_REPLACE(add_rms_norm, add_search, add_replace, add_args, 3, 2, .scalars = scalars,
           .n_scalars = 1, .exact = TL_ALL_FLOATS)
TL_REPLACE(add_rms_norm_bare, add_search, add_replace, add_args, 2, 2, .scalars = scalars,
           .n_scalars = 1, .exact = TL_ALL_FLOATS)
