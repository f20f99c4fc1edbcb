/* layers.c: linear, embedding, RMSNorm, SwiGLU - parameters by name, then ops. */
#include "nn/layers.h"

#include <math.h>
#include <stdio.h>

#include "tensor/threads.h"

const char *tl_join(tl_tape *t, char buf[TL_NAME_MAX], const char *a, const char *b)
{
    int n = snprintf(buf, TL_NAME_MAX, "%s.%s", a == NULL ? "" : a, b);
    if (a == NULL)
        tl_tape_fail(TL_AT(t), TL_ENAME, "a layer needs a name; it is NULL");
    if (n >= TL_NAME_MAX) /* two cut names could be one */
        tl_tape_fail(TL_AT(t), TL_ENAME,
                     "the name '%.60s...' has %d bytes; at most %d are possible", buf, n,
                     TL_NAME_MAX - 1);
    return buf;
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

tl_tensor tl_linear_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t outputs,
                       tl_linear_options o)
{
    tl_tape *t = at.tape;
    char buf[TL_NAME_MAX];
    int place = tl_share_push(at, o.shared);
    int64_t inputs = tl_last_dim(t, x);
    tl_dtype dtype = tl_dtype_or(o.dtype, tl_dtype_of(t, x));
    tl_init init = o.init.kind != TL_INIT_DEFAULT
                       ? o.init
                       : (tl_init){TL_INIT_UNIFORM, tl_inv_sqrt(1, inputs)};
    tl_tensor w = tl_param_at(TL_AT(t), m, tl_join(t, buf, name, "weight"), dtype,
                              TL_DIMS(outputs, inputs), init);
    tl_tensor y = tl_matmul(t, x, tl_transpose(t, w, 0, 1));
    if (!o.no_bias) {
        tl_init bias = {TL_INIT_UNIFORM, tl_inv_sqrt(1, inputs)};
        y = tl_add(t, y,
                   tl_param_at(TL_AT(t), m, tl_join(t, buf, name, "bias"), dtype, TL_DIMS(outputs),
                               bias));
    }
    tl_place_pop(t, place);
    return y;
}

tl_tensor tl_embed_at(tl_at at, tl_model *m, const char *name, tl_tensor ids, int64_t rows,
                      int64_t width, double scale, tl_dtype dtype, tl_layer_options o)
{
    tl_tape *t = at.tape;
    char buf[TL_NAME_MAX];
    int place = tl_share_push(at, o.shared);
    tl_tensor w = tl_param(t, m, tl_join(t, buf, name, "weight"), dtype, TL_DIMS(rows, width),
                           TL_INIT_NORMAL, scale);
    tl_tensor y = tl_embedding(t, w, ids);
    tl_place_pop(t, place);
    return y;
}

tl_tensor tl_norm_at(tl_at at, tl_model *m, const char *name, tl_tensor x, double eps,
                     tl_layer_options o)
{
    tl_tape *t = at.tape;
    char buf[TL_NAME_MAX];
    int place = tl_share_push(at, o.shared);
    tl_tensor w = tl_param(t, m, tl_join(t, buf, name, "weight"), tl_dtype_of(t, x),
                           TL_DIMS(tl_last_dim(t, x)), TL_INIT_ONES, 1);
    tl_tensor y = tl_rms_norm(t, x, w, eps);
    tl_place_pop(t, place);
    return y;
}

tl_tensor tl_project(tl_tape *t, tl_model *m, const char *prefix, const char *name, tl_tensor x,
                     int64_t outputs, double scale)
{
    char buf[TL_NAME_MAX];
    return tl_linear(t, m, tl_join(t, buf, prefix, name), x, outputs, .no_bias = true,
                     .init = {TL_INIT_NORMAL, tl_inv_sqrt(scale, tl_last_dim(t, x))});
}

tl_tensor tl_mlp_swiglu_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                           double out_scale, tl_layer_options o)
{
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o.shared);
    tl_tensor gate = tl_project(t, m, name, "gate", x, hidden, 1);
    tl_tensor up = tl_project(t, m, name, "up", x, hidden, 1);
    tl_tensor y = tl_project(t, m, name, "down", tl_swiglu(t, gate, up), tl_last_dim(t, x),
                             out_scale);
    tl_place_pop(t, place);
    return y;
}
