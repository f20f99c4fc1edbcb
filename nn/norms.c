/* norms.c: RMSNorm and LayerNorm over the last dim; BatchNorm and GroupNorm of x (n, c, ...), whose
 * bits NUMERICS 6.16 and 6.17 state. */
#include "nn/layers.h"

static const tl_init zeros = {TL_INIT_ZEROS, 0}, ones = {TL_INIT_ONES, 1};

/* ---- over the last dim ---- */

tl_tensor tl_norm_at(tl_at at, tl_model *m, const char *name, tl_tensor x, double eps,
                     tl_layer_options o)
{
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o.shared);
    const tl_shape row = TL_DIMS(tl_last_dim(t, x));
    tl_tensor w = tl_weight(t, m, name, "weight", tl_dtype_of(t, x), row, ones);
    return tl_leave(t, place, tl_rms_norm(t, x, w, eps));
}

tl_tensor tl_norm_layer_at(tl_at at, tl_model *m, const char *name, tl_tensor x, double eps,
                           tl_layer_options o)
{
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o.shared);
    const tl_shape row = TL_DIMS(tl_last_dim(t, x));
    tl_tensor w = tl_weight(t, m, name, "weight", tl_dtype_of(t, x), row, ones);
    tl_tensor b = tl_weight(t, m, name, "bias", tl_dtype_of(t, x), row, zeros);
    return tl_leave(t, place, tl_layer_norm(t, x, w, b, eps));
}

/* ---- by channel ---- */

/* A tensor of one number per channel, (c), seen as (c, 1, ...) so that it broadcasts to x. */
static tl_tensor per_channel(tl_tape *t, tl_tensor v, const tl_shape *x)
{
    tl_shape s = {.ndim = x->ndim - 1, .dim = {x->dim[1]}};
    for (int i = 1; i < s.ndim; i++)
        s.dim[i] = 1;
    return tl_reshape(t, v, s);
}

/* y * NAME.weight + NAME.bias */
static tl_tensor scaled(tl_tape *t, tl_model *m, const char *name, tl_tensor y, const tl_shape *x,
                        tl_dtype dtype)
{
    tl_tensor w = tl_weight(t, m, name, "weight", dtype, TL_DIMS(x->dim[1]), ones);
    tl_tensor b = tl_weight(t, m, name, "bias", dtype, TL_DIMS(x->dim[1]), zeros);
    return tl_add(t, tl_mul(t, y, per_channel(t, w, x)), per_channel(t, b, x));
}

static bool has_channels(tl_tape *t, const char *who, tl_tensor x, tl_shape *s)
{
    *s = tl_shape_of(t, x);
    if (!tl_usable(TL_AT(t), x, who))
        return false;
    if (s->ndim >= 2 && tl_dtype_is_float(tl_dtype_of(t, x)))
        return true;
    tl_tape_fail(TL_AT(t), s->ndim < 2 ? TL_ESHAPE : TL_EDTYPE,
                 "%s: x is %s %s; floats of shape (n, c, ...) are needed", who,
                 tl_dtype_name(tl_dtype_of(t, x)), TL_TEXT_OF(s));
    return false;
}

/* ---- BatchNorm ---- */

/* A tl_filler: an array like `like`, all ones. */
static tl_status fill_ones(void *like, void *data)
{
    tl_array a = *(const tl_array *)like;
    a.data = data;
    for (int64_t i = 0; i < tl_array_count(&a); i++)
        tl_array_put(&a, i, 1);
    return TL_OK;
}

/* old = old + momentum*(seen - old) */
static void follow(tl_tape *t, tl_tensor old, tl_tensor seen, double momentum)
{
    seen = tl_reshape(t, tl_detach(t, seen), tl_shape_of(t, old));
    tl_assign(t, old, tl_add(t, old, tl_scale(t, tl_sub(t, seen, old), momentum)));
}

tl_tensor tl_batch_norm_at(tl_at at, tl_model *m, const char *name, tl_tensor x,
                           tl_channel_norm_options o)
{
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o.shared);
    double eps = o.eps != 0 ? o.eps : 1e-5, momentum = o.momentum != 0 ? o.momentum : 0.1;
    tl_shape s, dims = {.ndim = 0}; /* dims: all but the channels */
    double n = 1;                   /* values of each channel */
    if (!(eps > 0 && momentum > 0 && momentum <= 1))
        tl_tape_fail(TL_AT(t), TL_EDOMAIN,
                     "tl_batch_norm: '%.100s': eps %g and momentum %g; a number above 0, and one "
                     "above 0 and up to 1, are needed",
                     tl_title(name), eps, momentum);
    if (!has_channels(t, "tl_batch_norm", x, &s))
        return tl_leave(t, place, TL_NONE);
    for (int i = 0; i < s.ndim; i++)
        if (i != 1) {
            dims.dim[dims.ndim++] = i;
            n *= (double)s.dim[i];
        }
    const tl_dtype dtype = tl_dtype_of(t, x), c = tl_dtype_compute(dtype);
    const tl_shape channels = TL_DIMS(s.dim[1]);
    tl_array ones_of = tl_array_make(c, &channels, NULL);
    char own[TL_NAME_MAX];
    tl_tensor mean = tl_buffer(t, m, tl_join(t, own, name, "running_mean"), c, channels),
              var = tl_buffer_filled_at(TL_AT(t), m, tl_join(t, own, name, "running_var"), c,
                                        channels, fill_ones, &ones_of),
              wide = dtype == c ? x : tl_cast(t, x, c), d, v;
    if (tl_mode(t) & TL_EVAL) {
        d = tl_sub(t, wide, per_channel(t, mean, &s));
        v = per_channel(t, var, &s);
    } else if (tl_mode(t) & TL_STRICT && tl_batch_of(t, x) != TL_FREE) {
        tl_tape_fail(TL_AT(t), TL_EUSAGE,
                     "tl_batch_norm: TL_STRICT: the statistics of '%.100s' tie the samples of a "
                     "batch together; tl_group_norm does not, nor do running ones (TL_EVAL)",
                     tl_title(name));
        return tl_leave(t, place, TL_NONE);
    } else if (n >= 2) {
        tl_tensor mu = tl_mean(t, wide, dims, true);
        d = tl_sub(t, wide, mu);
        v = tl_mean(t, tl_square(t, d), dims, true);
        follow(t, mean, mu, momentum);
        follow(t, var, tl_div(t, tl_scale(t, v, n), tl_scalar(t, c, n - 1)), momentum);
    } else {
        tl_tape_fail(TL_AT(t), TL_ESHAPE,
                     "tl_batch_norm: '%.100s' has %s a channel; at least 2 are needed (TL_EVAL "
                     "takes the running statistics)",
                     tl_title(name), n == 1 ? "one value" : "no value");
        return tl_leave(t, place, TL_NONE);
    }
    tl_tensor y = tl_mul(t, d, tl_rsqrt(t, tl_shift(t, v, eps)));
    y = scaled(t, m, name, y, &s, c);
    return tl_leave(t, place, dtype == c ? y : tl_cast(t, y, dtype));
}

/* ---- GroupNorm ---- */

tl_tensor tl_group_norm_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t groups,
                           tl_channel_norm_options o)
{
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o.shared);
    tl_shape s;
    if (!has_channels(t, "tl_group_norm", x, &s))
        return tl_leave(t, place, TL_NONE);
    if (groups < 1 || s.dim[1] % groups != 0)
        tl_tape_fail(TL_AT(t), TL_ESHAPE,
                     "tl_group_norm: '%.100s': %lld channels cannot be in %lld groups",
                     tl_title(name), (long long)s.dim[1], (long long)groups);
    else if (o.momentum != 0)
        tl_tape_fail(TL_AT(t), TL_EUSAGE,
                     "tl_group_norm: '%.100s': momentum %g, but it keeps no statistics",
                     tl_title(name), o.momentum);
    if (tl_failed(t))
        return tl_leave(t, place, TL_NONE);
    int64_t row = s.dim[1] / groups;
    for (int i = 2; i < s.ndim; i++)
        row *= s.dim[i];
    tl_tensor y = tl_reshape(t, x, TL_DIMS(s.dim[0], groups, row));
    y = tl_layer_norm(t, y, TL_NONE, TL_NONE, o.eps != 0 ? o.eps : 1e-5);
    y = scaled(t, m, name, tl_reshape(t, y, s), &s, tl_dtype_of(t, x));
    return tl_leave(t, place, y);
}
