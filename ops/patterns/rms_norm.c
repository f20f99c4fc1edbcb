/* rms_norm, written out: y = x * rsqrt(mean(x^2) + eps) * gamma -> rms_norm(x, gamma, eps)
 * x^2 as square(x), x * x or pow(x, 2); computed in x's dtype, or in f32 and rounded back after gamma or before it.
 * Without gamma (_bare): x * rsqrt(mean(x^2) + eps) -> rms_norm(x, none, eps), what is left where gamma is none of a row.
 * Exact:  the values alone - f32 and f64 without casts, f32, f16 and bf16 with casts after gamma or without it, f32 with casts before it
 *         (in f16 that rounds twice, rms_norm once). The gradient of the written form goes through mean and rsqrt one by one
 *         and rounds elsewhere: so by default only where no gradient passes.
 */
#include "ops/patterns/patterns.h"

typedef enum { SQUARE, TIMES, POWER } square_kind;
typedef enum { NO_CAST, CAST_LAST, CAST_BEFORE_GAMMA } cast_kind;
typedef struct {
    square_kind square;
    cast_kind cast;
    bool bare;
} form;

static void search(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const tl_pattern_values *v = ctx;
    const form *f = v->ctx;
    tl_dtype d = tl_dtype_of(t, in[0]);
    (void)n, (void)n_out;
    tl_tensor x = f->cast == NO_CAST ? in[0] : tl_cast(t, in[0], TL_F32);
    tl_tensor q = f->square == SQUARE ? tl_square(t, x) : f->square == TIMES ? tl_mul(t, x, x) : tl_pow(t, x, 2);
    tl_tensor h = tl_mul(t, x, tl_rsqrt(t, tl_shift(t, tl_mean(t, q, TL_DIMS(-1), true), v->scalar[0])));
    if (f->cast == CAST_BEFORE_GAMMA)
        h = tl_cast(t, h, d);
    out[0] = f->bare ? h : tl_mul(t, h, in[1]);
    if (f->cast == CAST_LAST)
        out[0] = tl_cast(t, out[0], d);
}

static void replace(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const tl_pattern_values *v = ctx;
    (void)n, (void)n_out;
    out[0] = tl_rms_norm(t, in[0], ((const form *)v->ctx)->bare ? TL_NONE : in[1], v->scalar[0]);
}

/* A row of gamma for each row of x, and rows that are summed by lanes: not along the batch (NUMERICS 4.1). A NaN as eps means something else to rms_norm. */
static bool rows(const tl_match *m, void *ctx)
{
    const tl_array *x = tl_match_input(m, "x");
    if (x->ndim < 2 || x->dim[x->ndim - 1] >= 1 << 24 || !(tl_match_scalar(m, "eps") >= 0))
        return false;
    const tl_array *gamma = ((const form *)ctx)->bare ? NULL : tl_match_input(m, "gamma");
    return gamma == NULL || (gamma->ndim == 1 && gamma->dim[0] == x->dim[x->ndim - 1]);
}

static const tl_pattern_arg args[] = {TL_ARG("x", TL_F32, TL_DIMS(3, 37)), TL_ARG("gamma", TL_F32, TL_DIMS(37), .or_f32 = true)};
static const tl_pattern_scalar scalars[] = {{"eps", 0x1.5p-13}};

#define FORM(id, square_, cast_, dtypes) FORM_OF(id, square_, cast_, false, dtypes)
#define BARE(id, square_, cast_, dtypes) FORM_OF(id, square_, cast_, true, dtypes)
#define FORM_OF(id, square_, cast_, bare_, dtypes)                                                                                  \
    static form form_##id = {square_, cast_, bare_};                                                                                \
    const tl_replacement tl_replace_rms_norm_##id = {.name = "rms_norm_" #id, .search = search, .replace = replace,                 \
        .example_inputs = args, .n_in = bare_ ? 1 : 2, .n_out = 1, .scalars = scalars, .n_scalars = 1, .extra_check = rows, .ctx = &form_##id,  \
        .exact_forward = dtypes};

enum { WIDE = TL_BIT(TL_F32) | TL_BIT(TL_F64), UP_TO_F32 = TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16), F32 = TL_BIT(TL_F32) };

FORM(square, SQUARE, NO_CAST, WIDE)
FORM(times, TIMES, NO_CAST, WIDE)
FORM(power, POWER, NO_CAST, WIDE)
FORM(square_cast, SQUARE, CAST_LAST, UP_TO_F32)
FORM(times_cast, TIMES, CAST_LAST, UP_TO_F32)
FORM(power_cast, POWER, CAST_LAST, UP_TO_F32)
FORM(square_cast_gamma, SQUARE, CAST_BEFORE_GAMMA, F32)
FORM(times_cast_gamma, TIMES, CAST_BEFORE_GAMMA, F32)
FORM(power_cast_gamma, POWER, CAST_BEFORE_GAMMA, F32)
BARE(bare_square, SQUARE, NO_CAST, WIDE)
BARE(bare_times, TIMES, NO_CAST, WIDE)
BARE(bare_power, POWER, NO_CAST, WIDE)
BARE(bare_square_cast, SQUARE, CAST_LAST, UP_TO_F32)
BARE(bare_times_cast, TIMES, CAST_LAST, UP_TO_F32)
BARE(bare_power_cast, POWER, CAST_LAST, UP_TO_F32)
