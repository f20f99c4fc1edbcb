/* layers.c: linear layers, embeddings, convolutions and the two MLPs. A layer looks up its
 * parameters by name, which makes them at the first call, and then calls ops. */
#include "nn/layers.h"

#include <math.h>

#include "tensor/threads.h"

/* ---- what layers share ---- */

const char *tl_join(tl_tape *t, char buf[TL_NAME_MAX], const char *a, const char *b)
{
    int n = snprintf(buf, TL_NAME_MAX, "%s.%s", tl_title(a), b);
    if (a == NULL || *a == '\0')
        tl_tape_fail(TL_AT(t), TL_ENAME, "a layer needs a name; it is %s",
                     a == NULL ? "NULL" : "empty");
    if (n >= TL_NAME_MAX) /* two names that were cut could be equal */
        tl_tape_fail(TL_AT(t), TL_ENAME,
                     "the name '%.60s...' has %d bytes; at most %d are possible", buf, n,
                     TL_NAME_MAX - 1);
    return buf;
}

/* Fails with "tl_linear: 'first': 0 outputs; 1 is the least" if n < 1. */
static void one_or_more(tl_at at, const char *who, const char *name, int64_t n, const char *what)
{
    if (n < 1)
        tl_tape_fail(at, TL_ESHAPE, "%s: '%.100s': %lld %s; 1 is the least", who, tl_title(name),
                     (long long)n, what);
}

static __attribute__((noinline)) double inv_sqrt(double scale, int64_t n)
{
    return scale * (1 / sqrt((double)(n > 0 ? n : 1))); /* IEEE operations */
}

double tl_inv_sqrt(double scale, int64_t n)
{
    tl_fpenv saved = tl_fpenv_enter();
    double x = inv_sqrt(scale, n);
    tl_fpenv_leave(saved);
    return x;
}

int64_t tl_last_dim(tl_tape *t, tl_tensor x)
{
    tl_shape s = tl_shape_of(t, x);
    if (tl_usable(TL_AT(t), x, "the layer's x") && s.ndim == 0)
        tl_tape_fail(TL_AT(t), TL_ESHAPE, "a layer needs an x of 1 dim or more; x is 0-d");
    return s.ndim > 0 ? s.dim[s.ndim - 1] : 0;
}

tl_tensor tl_weight(tl_tape *t, tl_model *m, const char *name, const char *what, tl_dtype dtype,
                    tl_shape shape, tl_init init)
{
    char buf[TL_NAME_MAX];
    return tl_param_at(TL_AT(t), m, tl_join(t, buf, name, what), dtype, shape, init);
}

tl_tensor tl_affine(tl_tape *t, tl_tensor x, tl_tensor w, tl_tensor b)
{
    tl_tensor product = tl_matmul(t, x, tl_transpose(t, w, 0, 1));
    if (tl_is_none(b))
        return product;
    tl_tensor y = tl_add(t, product, b);
    tl_let_go(t, product);
    return y;
}

tl_tensor tl_project(tl_tape *t, tl_model *m, const char *prefix, const char *name, tl_tensor x,
                     int64_t outputs, double deviation, bool bias, const tl_hook *hook)
{
    char layer[TL_NAME_MAX];
    int place = tl_place_push(TL_AT(t));
    tl_dtype d = tl_dtype_of(t, x);
    tl_join(t, layer, prefix, name);
    tl_tensor w = tl_weight(t, m, layer, "weight", d, TL_DIMS(outputs, tl_last_dim(t, x)),
                            (tl_init){TL_INIT_NORMAL, deviation});
    tl_tensor b = bias ? tl_weight(t, m, layer, "bias", d, TL_DIMS(outputs),
                                   (tl_init){TL_INIT_ZEROS, 0})
                       : TL_NONE;
    tl_tensor y = tl_affine(t, x, w, b);
    tl_place_pop(t, place);
    return hook->call == NULL ? y : hook->call(t, layer, x, y, hook->ctx);
}

/* ---- linear layers and embeddings ---- */

tl_tensor tl_linear_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t outputs,
                       tl_linear_options o)
{
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o.shared);
    one_or_more(at, "tl_linear", name, outputs, "outputs");
    int64_t inputs = tl_last_dim(t, x);
    tl_dtype dtype = tl_dtype_or(o.dtype, tl_dtype_of(t, x));
    tl_init uniform = {TL_INIT_UNIFORM, tl_inv_sqrt(1, inputs)};
    tl_tensor w = tl_weight(t, m, name, "weight", dtype, TL_DIMS(outputs, inputs),
                            o.init.kind != TL_INIT_DEFAULT ? o.init : uniform);
    tl_tensor b = o.no_bias ? TL_NONE
                            : tl_weight(t, m, name, "bias", dtype, TL_DIMS(outputs), uniform);
    return tl_leave(t, place, tl_affine(t, x, w, b));
}

tl_tensor tl_embed_at(tl_at at, tl_model *m, const char *name, tl_tensor ids, int64_t rows,
                      int64_t width, double scale, tl_dtype dtype, tl_layer_options o)
{
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o.shared);
    one_or_more(at, "tl_embed", name, rows, "rows");
    one_or_more(at, "tl_embed", name, width, "columns");
    tl_tensor w = tl_weight(t, m, name, "weight", dtype, TL_DIMS(rows, width),
                            (tl_init){TL_INIT_NORMAL, scale});
    return tl_leave(t, place, tl_embedding(t, w, ids));
}

/* ---- MLPs ---- */

tl_tensor tl_mlp_swiglu_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                           tl_mlp_swiglu_options o)
{
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o.shared);
    one_or_more(at, "tl_mlp_swiglu", name, hidden, "hidden");
    int64_t width = tl_last_dim(t, x);
    double in = tl_inv_sqrt(1, width),
           out = tl_inv_sqrt(o.out_scale != 0 ? o.out_scale : 1, hidden);
    tl_tensor gate = tl_project(t, m, name, "gate", x, hidden, in, false, &o.project);
    tl_tensor up = tl_project(t, m, name, "up", x, hidden, in, false, &o.project);
    tl_tensor h = tl_swiglu(t, gate, up);
    return tl_leave(t, place, tl_project(t, m, name, "down", h, width, out, false, &o.project));
}

tl_tensor tl_mlp_gelu_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                         tl_mlp_gelu_options o)
{
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o.shared);
    one_or_more(at, "tl_mlp_gelu", name, hidden, "hidden");
    double in = o.deviation != 0 ? o.deviation : 0.02,
           out = o.out_scale != 0 ? in * o.out_scale : in;
    tl_tensor h = tl_project(t, m, name, "up", x, hidden, in, true, &o.project);
    h = o.by_tanh ? tl_gelu_tanh(t, h) : tl_gelu(t, h);
    return tl_leave(t, place,
                    tl_project(t, m, name, "down", h, tl_last_dim(t, x), out, true, &o.project));
}

/* ---- convolutions ---- */

/* Whether an option of one dim has a second number other than 0 or the first. */
static bool is_second(const int64_t v[2]) { return v[1] != 0 && v[1] != v[0]; }

static tl_tensor convolve(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t outputs,
                          int dims, const tl_convolve_options *o)
{
    tl_tape *t = at.tape;
    tl_shape s = tl_shape_of(t, x), w = {.ndim = dims + 2, .dim = {outputs}};
    const char *who = dims == 1 ? "tl_convolve1d" : "tl_convolve2d", *title = tl_title(name);
    char kernel[48];
    int place = tl_share_push(at, o->shared);
    int64_t groups = o->groups != 0 ? o->groups : 1, inputs = 1;
    if (!tl_usable(TL_AT(t), x, who))
        return tl_leave(t, place, TL_NONE);
    for (int i = 0, end = 0; i < dims; i++)
        end += snprintf(kernel + end, sizeof kernel - (size_t)end, i ? " %lld" : "%lld",
                        (long long)o->kernel[i]);
    one_or_more(at, who, name, outputs, "outputs");
    if (o->kernel[0] < 1 || o->kernel[dims - 1] < 1)
        tl_tape_fail(at, TL_ESHAPE, "%s: '%.100s': .kernel must be given (it is %s)", who, title,
                     kernel);
    else if (dims == 1 && (is_second(o->kernel) || is_second(o->stride) || is_second(o->padding) ||
                           is_second(o->dilation)))
        tl_tape_fail(at, TL_EUSAGE,
                     "%s: '%.100s': one dim, and a second .kernel (%lld), .stride (%lld), .padding "
                     "(%lld) or .dilation (%lld)",
                     who, title, (long long)o->kernel[1], (long long)o->stride[1],
                     (long long)o->padding[1], (long long)o->dilation[1]);
    else if (s.ndim != dims + 2)
        tl_tape_fail(at, TL_ESHAPE, "%s: '%.100s': x has shape %s; %s is needed", who, title,
                     TL_TEXT_OF(&s), dims == 1 ? "(n, c, w)" : "(n, c, h, w)");
    else if (groups < 1 || s.dim[1] % groups != 0 || outputs % groups != 0)
        tl_tape_fail(
            at, TL_ESHAPE,
            "%s: '%.100s': %lld channels to %lld by .groups = %lld, which must divide both", who,
            title, (long long)s.dim[1], (long long)outputs, (long long)groups);
    if (tl_failed(t))
        return tl_leave(t, place, TL_NONE);
    tl_conv_options c = {.groups = groups};
    w.dim[1] = s.dim[1] / groups;
    for (int i = 0; i < dims; i++) {
        w.dim[2 + i] = o->kernel[i];
        c.stride[i] = o->stride[i];
        c.padding[i] = o->padding[i];
        c.dilation[i] = o->dilation[i];
    }
    for (int i = 1; i < w.ndim; i++)
        if (__builtin_mul_overflow(inputs, w.dim[i], &inputs)) /* tl_weight refuses it */
            inputs = INT64_MAX;
    tl_dtype dtype = tl_dtype_or(o->dtype, tl_dtype_of(t, x));
    tl_init uniform = {TL_INIT_UNIFORM, tl_inv_sqrt(1, inputs)};
    tl_tensor weight = tl_weight(t, m, name, "weight", dtype, w,
                                 o->init.kind != TL_INIT_DEFAULT ? o->init : uniform);
    if (!o->no_bias)
        c.bias = tl_weight(t, m, name, "bias", dtype, TL_DIMS(outputs), uniform);
    return tl_leave(t, place,
                    dims == 1 ? tl_conv1d_at(TL_AT(t), x, weight, c)
                              : tl_conv2d_at(TL_AT(t), x, weight, c));
}

tl_tensor tl_convolve1d_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t outputs,
                           tl_convolve_options o)
{
    return convolve(at, m, name, x, outputs, 1, &o);
}

tl_tensor tl_convolve2d_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t outputs,
                           tl_convolve_options o)
{
    return convolve(at, m, name, x, outputs, 2, &o);
}
