/* layers.c: linear, convolutions, embedding, RMSNorm, SwiGLU, attention - parameters by name, then
 * ops. */
#include "nn/layers.h"

#include <math.h>
#include <stdio.h>

#include "tensor/threads.h"

const char *tl_join(tl_tape *t, char buf[TL_NAME_MAX], const char *a, const char *b)
{
    int n = snprintf(buf, TL_NAME_MAX, "%s.%s", a == NULL ? "" : a, b);
    if (a == NULL || *a == '\0')
        tl_tape_fail(TL_AT(t), TL_ENAME, "a layer needs a name; it is %s",
                     a == NULL ? "NULL" : "empty");
    if (n >= TL_NAME_MAX) /* two cut names could be one */
        tl_tape_fail(TL_AT(t), TL_ENAME,
                     "the name '%.60s...' has %d bytes; at most %d are possible", buf, n,
                     TL_NAME_MAX - 1);
    return buf;
}

bool tl_one_or_more(tl_at at, const char *who, const char *name, int64_t n, const char *what)
{
    if (n < 1)
        tl_tape_fail(at, TL_ESHAPE, "%s: '%.100s': %lld %s; 1 is the least", who,
                     name == NULL ? "" : name, (long long)n, what);
    return n >= 1;
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
    tl_one_or_more(at, "tl_linear", name, outputs, "outputs");
    int64_t inputs = tl_last_dim(t, x);
    tl_dtype dtype = tl_dtype_or(o.dtype, tl_dtype_of(t, x));
    tl_init init = o.init.kind != TL_INIT_DEFAULT
                       ? o.init
                       : (tl_init){TL_INIT_UNIFORM, tl_inv_sqrt(1, inputs)};
    tl_tensor w = tl_param_at(TL_AT(t), m, tl_join(t, buf, name, "weight"), dtype,
                              TL_DIMS(outputs, inputs), init);
    tl_tensor product = tl_matmul(t, x, tl_transpose(t, w, 0, 1)), y = product;
    if (!o.no_bias) {
        tl_init bias = {TL_INIT_UNIFORM, tl_inv_sqrt(1, inputs)};
        y = tl_add(t, product,
                   tl_param_at(TL_AT(t), m, tl_join(t, buf, name, "bias"), dtype, TL_DIMS(outputs),
                               bias));
        tl_let_go(t, product);
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
    tl_one_or_more(at, "tl_embed", name, rows, "rows");
    tl_one_or_more(at, "tl_embed", name, width, "columns");
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
                     int64_t outputs, double scale, const tl_hook *hook)
{
    char buf[TL_NAME_MAX];
    tl_tensor y = tl_linear(t, m, tl_join(t, buf, prefix, name), x, outputs, .no_bias = true,
                            .init = {TL_INIT_NORMAL, tl_inv_sqrt(scale, tl_last_dim(t, x))});
    return tl_hooked(t, hook, buf, x, y);
}

tl_tensor tl_mlp_swiglu_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                           tl_mlp_swiglu_options o)
{
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o.shared);
    tl_one_or_more(at, "tl_mlp_swiglu", name, hidden, "hidden");
    tl_tensor gate = tl_project(t, m, name, "gate", x, hidden, 1, &o.project);
    tl_tensor up = tl_project(t, m, name, "up", x, hidden, 1, &o.project);
    tl_tensor y = tl_project(t, m, name, "down", tl_swiglu(t, gate, up), tl_last_dim(t, x),
                             o.out_scale != 0 ? o.out_scale : 1, &o.project);
    tl_place_pop(t, place);
    return y;
}

/* ---- causal self-attention with rotary positions and grouped heads ---- */

typedef struct {
    int64_t n, dim;
    double base;
    tl_rotary_pairing pairing;
    tl_rotary_scaling scaling; /* factor 0: none */
    tl_dtype dtype;            /* f32 or f64 */
    bool sin;
} table_spec;

/* The table's cos or sin; both are computed, one is kept: it happens once a model. */
static tl_status fill_table(void *ctx, void *data)
{
    const table_spec *s = ctx;
    void *other = tl_calloc((size_t)(s->n * s->dim) + 1, tl_dtype_size(s->dtype)),
         *cos = s->sin ? other : data, *sin = s->sin ? data : other;
    if (other == NULL)
        return TL_ENOMEM;
    const tl_rotary_scaling *by = s->scaling.factor != 0 ? &s->scaling : NULL;
    tl_status st = s->dtype == TL_F64
                       ? tl_rotary_table64(0, s->n, s->dim, s->base, s->pairing, by, cos, sin)
                       : tl_rotary_table_scaled(0, s->n, s->dim, s->base, s->pairing, by, cos, sin);
    tl_free_raw(other);
    return st;
}

/* A config may allow far more positions than are ever used: 4096 rows at first, and a table of
 * twice as many when more are needed. */
static int64_t table_rows(int64_t allowed, int64_t needed)
{
    int64_t n = 4096;
    while (n < needed)
        n *= 2;
    return allowed == 0 ? needed : allowed < n ? allowed : n;
}

/* x (b, s, heads*d) seen as (b, s, heads, d). */
static tl_tensor by_head(tl_tape *t, tl_tensor x, int64_t heads)
{
    tl_shape s = tl_shape_of(t, x);
    return tl_reshape(t, x, TL_DIMS(s.dim[0], s.dim[1], heads, heads > 0 ? s.dim[2] / heads : 0));
}

static tl_tensor heads_first(tl_tape *t, tl_tensor x)
{
    return tl_permute(t, x, TL_DIMS(0, 2, 1, 3));
}

void tl_rotary_rows(tl_at at, tl_model *m, tl_tensor x, const tl_columns *c,
                    const tl_rotary_kind *k, tl_tensor r[2])
{
    tl_tape *t = at.tape;
    const tl_shape s = tl_shape_of(t, x), held = c->cache != NULL
                                                     ? tl_shape_of(t, c->cache->k)
                                                     : s; /* tables cover what can be seen */
    const int64_t positions = table_rows(k->max_positions, held.dim[held.ndim == 5 ? 3 : 1]),
                  d = k->dim;
    if (k->pairing != TL_ROTARY_HALF && k->pairing != TL_ROTARY_INTERLEAVED)
        tl_tape_fail(at, TL_EDOMAIN,
                     "rotary positions: pairing %d; say TL_ROTARY_HALF or TL_ROTARY_INTERLEAVED",
                     (int)k->pairing);
    table_spec spec = {positions,  d,          k->base != 0 ? k->base : 10000,
                       k->pairing, k->scaling, tl_dtype_compute(tl_dtype_of(t, x)),
                       false};
    char table[TL_NAME_MAX], name_of[TL_NAME_MAX]; /* one table for each kind that the model uses */
    tl_textenv saved = tl_textenv_enter();
    int n = snprintf(table, sizeof table, "rope.%lldx%lld.%.17g.%s%s", (long long)positions,
                     (long long)d, spec.base, k->pairing == TL_ROTARY_HALF ? "half" : "interleaved",
                     spec.dtype == TL_F64 ? ".f64" : "");
    if (k->scaling.factor != 0)
        snprintf(table + n, sizeof table - (size_t)n, ".%.17g.%.17g.%.17g.%.17g", k->scaling.factor,
                 k->scaling.low_freq_factor, k->scaling.high_freq_factor, k->scaling.original);
    tl_textenv_leave(saved);
    r[0] = tl_buffer_filled_at(TL_AT(t), m, tl_join(t, name_of, table, "cos"), spec.dtype,
                               TL_DIMS(positions, d), fill_table, &spec);
    spec.sin = true;
    r[1] = tl_buffer_filled_at(TL_AT(t), m, tl_join(t, name_of, table, "sin"), spec.dtype,
                               TL_DIMS(positions, d), fill_table, &spec);
    tl_tensor ids;
    int64_t first = tl_columns_positions(t, c, s.dim[0], s.dim[1], &ids);
    for (int i = 0; i < 2; i++)
        r[i] = tl_is_none(ids)
                   ? tl_reshape(t, tl_slice(t, r[i], 0, first, first + s.dim[1], 1),
                                TL_DIMS(s.dim[1], 1, d))
                   : tl_reshape(t, tl_embedding(t, r[i], ids), TL_DIMS(s.dim[0], s.dim[1], 1, d));
}

tl_tensor tl_self_attention_at(tl_at at, tl_model *m, const char *name, tl_tensor x,
                               tl_self_attention_options o)
{
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o.shared);
    tl_shape s = tl_shape_of(t, x);
    if (o.heads < 1 && !tl_failed(t))
        tl_tape_fail(at, TL_ESHAPE, "tl_self_attention: '%.100s' has .heads = %lld; 1 is the least",
                     name == NULL ? "" : name, (long long)o.heads);
    int64_t width = s.dim[2], kv = o.kv_heads ? o.kv_heads : o.heads,
            d = o.heads > 0 ? width / o.heads : 0;
    if (!tl_failed(t) && (!tl_usable(TL_AT(t), x, "self_attention") || s.ndim != 3 || o.heads < 1 ||
                          kv < 1 || width % o.heads != 0 || o.heads % kv != 0))
        tl_tape_fail(TL_AT(t), TL_ESHAPE,
                     "self_attention: x of %d dims and width %lld in %lld heads, %lld of keys; 3 "
                     "dims, and widths and heads that divide, are needed",
                     s.ndim, (long long)width, (long long)o.heads, (long long)kv);
    if (d % 2 != 0)
        tl_tape_fail(at, TL_ESHAPE,
                     "tl_self_attention: '%.100s': width %lld in %lld heads gives heads of %lld; "
                     "rotary positions need an even number",
                     name == NULL ? "" : name, (long long)width, (long long)o.heads, (long long)d);
    if (tl_failed(t)) {
        tl_place_pop(t, place);
        return TL_NONE;
    }
    const tl_rotary_kind kind = {d, o.max_positions, o.rope_base, o.scaling,
                                 o.pairing ? o.pairing : TL_ROTARY_INTERLEAVED};
    tl_tensor r[2];
    tl_rotary_rows(at, m, x, &o.columns, &kind, r);
    tl_tensor q = by_head(t, tl_project(t, m, name, "q", x, width, 1, &o.project), o.heads);
    tl_tensor k = by_head(t, tl_project(t, m, name, "k", x, kv * d, 1, &o.project), kv);
    tl_tensor v = by_head(t, tl_project(t, m, name, "v", x, kv * d, 1, &o.project), kv);
    q = heads_first(t, tl_rotary(t, q, r[0], r[1], kind.pairing));
    k = heads_first(t, tl_rotary(t, k, r[0], r[1], kind.pairing));
    v = heads_first(t, v);
    tl_attention_options keys = {.full = false};
    tl_columns_keys(t, &o.columns, o.layer, &k, &v, &keys);
    tl_tensor y = heads_first(t, tl_attention_at(TL_AT(t), q, k, v, keys));
    y = tl_project(t, m, name, "o", tl_reshape(t, y, s), width, o.out_scale != 0 ? o.out_scale : 1,
                   &o.project);
    tl_place_pop(t, place);
    return y;
}

/* ---- convolutions: NAME.weight (outputs, channels/groups, kernel...), NAME.bias ---- */

static tl_tensor convolve(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t outputs,
                          int dims, const tl_convolve_options *o)
{
    tl_tape *t = at.tape;
    tl_shape s = tl_shape_of(t, x), w = {.ndim = dims + 2, .dim = {outputs}};
    const char *who = dims == 1 ? "tl_convolve1d" : "tl_convolve2d",
               *title = name == NULL ? "" : name;
    char buf[TL_NAME_MAX], text[TL_SHAPE_TEXT], kernel[48];
    int64_t groups = o->groups + (o->groups == 0), inputs = 1;
    if (tl_failed(t) || !tl_usable(TL_AT(t), x, who))
        return TL_NONE;
    for (int i = 0, at_end = 0; i < dims; i++)
        at_end += snprintf(kernel + at_end, sizeof kernel - (size_t)at_end, i ? " %lld" : "%lld",
                           (long long)o->kernel[i]);
    tl_one_or_more(at, who, name, outputs, "outputs");
    if (o->kernel[0] < 1 || o->kernel[dims - 1] < 1)
        tl_tape_fail(at, TL_ESHAPE, "%s: '%.100s': .kernel must be given (it is %s)", who, title,
                     kernel);
    else if (s.ndim != dims + 2)
        tl_tape_fail(at, TL_ESHAPE, "%s: '%.100s': x has shape %s; %s is needed", who, title,
                     tl_shape_text(text, &s), dims == 1 ? "(n, c, w)" : "(n, c, h, w)");
    else if (groups < 1 || s.dim[1] % groups != 0 || outputs % groups != 0)
        tl_tape_fail(
            at, TL_ESHAPE,
            "%s: '%.100s': %lld channels to %lld by .groups = %lld, which must divide both", who,
            title, (long long)s.dim[1], (long long)outputs, (long long)groups);
    if (tl_failed(t))
        return TL_NONE;
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
