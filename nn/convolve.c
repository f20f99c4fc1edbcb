/* convolve.c: convolutions as layers - NAME.weight (outputs, channels/groups, kernel...),
 * NAME.bias.
 */
#include "nn/layers.h"

static tl_tensor convolve(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t outputs,
                          int dims, const tl_convolve_options *o)
{
    tl_tape *t = at.tape;
    tl_shape s = tl_shape_of(t, x), w = {.ndim = dims + 2, .dim = {outputs}};
    char buf[TL_NAME_MAX], text[TL_SHAPE_TEXT];
    int64_t groups = o->groups + (o->groups == 0), inputs = 1;
    if (tl_failed(t) || !tl_usable(TL_AT(t), x, dims == 1 ? "tl_convolve1d" : "tl_convolve2d"))
        return TL_NONE;
    if (s.ndim != dims + 2 || groups < 1 || s.dim[1] % groups != 0 || outputs % groups != 0 ||
        o->kernel[0] < 1 || o->kernel[dims - 1] < 1) {
        tl_tape_fail(TL_AT(t), TL_ESHAPE,
                     "tl_convolve%dd: '%.100s': x %s to %lld channels in %lld groups, kernel %lld "
                     "%lld; (n, c, ...), groups that divide, and .kernel are needed",
                     dims, name == NULL ? "" : name, tl_shape_text(text, &s), (long long)outputs,
                     (long long)groups, (long long)o->kernel[0], (long long)o->kernel[1]);
        return TL_NONE;
    }
    w.dim[1] = s.dim[1] / groups;
    for (int i = 0; i < dims; i++)
        w.dim[2 + i] = o->kernel[i];
    for (int i = 1; i < w.ndim; i++)
        inputs *= w.dim[i];
    tl_dtype dtype = tl_dtype_or(o->dtype, tl_dtype_of(t, x));
    tl_init uniform = {TL_INIT_UNIFORM, tl_inv_sqrt(1, inputs)};
    tl_conv_options c = {.groups = groups};
    for (int i = 0; i < dims; i++) {
        c.stride[i] = o->stride[i];
        c.padding[i] = o->padding[i];
        c.dilation[i] = o->dilation[i];
    }
    tl_tensor weight = tl_param_at(TL_AT(t), m, tl_join(t, buf, name, "weight"), dtype, w,
                                   o->init.kind != TL_INIT_DEFAULT ? o->init : uniform);
    if (!o->no_bias)
        c.bias = tl_param_at(TL_AT(t), m, tl_join(t, buf, name, "bias"), dtype, TL_DIMS(outputs),
                             uniform);
    return dims == 1 ? tl_conv1d_at(TL_AT(t), x, weight, c) : tl_conv2d_at(TL_AT(t), x, weight, c);
}

tl_tensor tl_convolve1d_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t outputs,
                           tl_convolve_options o)
{
    int place = tl_share_push(at, o.shared);
    tl_tensor y = convolve(at, m, name, x, outputs, 1, &o);
    tl_place_pop(at.tape, place);
    return y;
}

tl_tensor tl_convolve2d_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t outputs,
                           tl_convolve_options o)
{
    int place = tl_share_push(at, o.shared);
    tl_tensor y = convolve(at, m, name, x, outputs, 2, &o);
    tl_place_pop(at.tape, place);
    return y;
}
