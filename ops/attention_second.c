/* attention_second.c: the derivative of attention_grad, in primitives.
 *
 * With S = scale*Q K^T masked, P = softmax(S), O = P V, the gradient is
 *   dP = dO V^T,  D = rowsum(P*dP),  dS = P*(dP - D),
 *   dQ = scale*dS K,  dK = scale*dS^T Q,  dV = P^T dO,
 * and for cotangents A, B, C of dQ, dK, dV, going back through it line by line:
 *   c_dS = scale*(A K^T + Q B^T),  E = rowsum(P*c_dS),  c_dP = P*(c_dS - E)
 *   c_P  = dO C^T + c_dS*(dP - D) - dP*E,  c_S = P*(c_P - rowsum(P*c_P))
 *   d_dO = P C + c_dP V,  d_V = c_dP^T dO
 *   d_Q  = scale*c_S K + scale*dS B,  d_K = scale*c_S^T Q + scale*dS^T A
 * Everything in the compute type, of shape (b, hkv, g, s, d): the g query heads that
 * share a key head are a batch dim of their own, which the matmuls fold for d_K, d_V. */
#include "ops/attention.h"

/* ---- causal_mask(key_start, key_end): true where query i may see key j ---- */

typedef struct {
    int64_t queries, keys;
    bool full;
} mask_attrs;

static const tl_attr mask_schema[] = {{"queries", TL_ATTR_I64, offsetof(mask_attrs, queries)},
                                      {"keys", TL_ATTR_I64, offsetof(mask_attrs, keys)},
                                      {"full", TL_ATTR_BOOL, offsetof(mask_attrs, full)},
                                      {0}};

static tl_status mask_shape(tl_call *c)
{
    const mask_attrs *a = c->attrs;
    tl_shape s = TL_DIMS(a->queries, a->keys);
    if (a->queries < 0 || a->keys < 0)
        return tl_call_fail(c, TL_ESHAPE, "%lld queries, %lld keys", (long long)a->queries,
                            (long long)a->keys);
    for (int i = 0; i < 2; i++) {
        const tl_array *x = c->in[i], *first = c->in[0] != NULL ? c->in[0] : x;
        if (x == NULL)
            continue;
        if (x->dtype != TL_I64 || x->ndim != 1 || x->dim[0] != first->dim[0])
            return tl_call_fail(c, x->dtype != TL_I64 ? TL_EDTYPE : TL_ESHAPE,
                                "ranges of keys: one I64 for each sample is needed");
        s = TL_DIMS(x->dim[0], a->queries, a->keys);
    }
    c->out[0] = tl_array_make(TL_BOOL, &s, NULL);
    return TL_OK;
}

static tl_status mask_forward(tl_call *c)
{
    const mask_attrs *a = c->attrs;
    unsigned char *y = c->out[0].data;
    int64_t samples = c->out[0].ndim == 3 ? c->out[0].dim[0] : 1;
    for (int64_t b = 0; b < samples; b++) {
        int64_t start = c->in[0] != NULL ? *(const int64_t *)tl_array_at(c->in[0], b) : 0;
        int64_t end = c->in[1] != NULL ? *(const int64_t *)tl_array_at(c->in[1], b) : a->keys;
        for (int64_t i = 0; i < a->queries; i++)
            for (int64_t j = 0; j < a->keys; j++)
                *y++ = j >= start && j < end && (a->full || j <= i + (a->keys - a->queries));
    }
    return TL_OK;
}

const tl_op tl_op_causal_mask = {.name = "causal_mask",
                                 .n_in = 2,
                                 .n_out = 1,
                                 .optional = 3,
                                 .traits = TL_NONDIFF,
                                 .shape = mask_shape,
                                 .forward = mask_forward,
                                 .attr = mask_schema,
                                 .attr_size = sizeof(mask_attrs)};

tl_tensor tl_causal_mask_at(tl_at at, int64_t queries, int64_t keys, tl_attention_options o)
{
    mask_attrs a = {queries, keys, o.full};
    return tl_apply1(at, &tl_op_causal_mask, &a, (tl_tensor[]){o.key_start, o.key_end}, 2);
}

/* ---- the derivative ---- */

typedef struct {
    tl_tape *t;
    int64_t b, hkv, g, sq, sk, d;
    double scale;
} frame;

/* Values from the queries' side (or zeros for an absent one) by key head and group. */
static tl_tensor queries(const frame *f, tl_tensor x, tl_tensor like)
{
    tl_tape *t = f->t;
    tl_dtype c = tl_dtype_compute(tl_dtype_of(t, like));
    tl_shape s = TL_DIMS(f->b, f->hkv, f->g, f->sq, f->d);
    return tl_is_none(x) ? tl_fill(t, c, s, 0) : tl_reshape(t, tl_cast(t, x, c), s);
}

static tl_tensor keys(const frame *f, tl_tensor x, tl_tensor like)
{
    tl_tape *t = f->t;
    tl_dtype c = tl_dtype_compute(tl_dtype_of(t, like));
    tl_shape s = TL_DIMS(f->b, f->hkv, 1, f->sk, f->d);
    return tl_is_none(x) ? tl_fill(t, c, s, 0) : tl_reshape(t, tl_cast(t, x, c), s);
}

static tl_tensor turned(const frame *f, tl_tensor x) { return tl_transpose(f->t, x, -1, -2); }

/* x^T @ y with the group's heads folded into the chain. */
static tl_tensor folded(const frame *f, tl_tensor x, tl_tensor y)
{
    tl_matmul_attrs a = {.batch = TL_DIMS(f->b, f->hkv, 1)};
    return tl_matmul_into_at(TL_AT(f->t), turned(f, x), y, TL_NONE, a);
}

/* P * (x - rowsum(P*x)): the softmax's derivative, its own transpose. */
static tl_tensor centred(tl_tape *t, tl_tensor p, tl_tensor x, tl_tensor *sum)
{
    *sum = tl_sum_rows_last(t, tl_mul(t, p, x));
    return tl_mul(t, p, tl_sub(t, x, *sum));
}

/* A row without an allowed key has P = 0: it is set so after the softmax, which takes finite scores
 * there. */
static tl_tensor weights(const frame *f, tl_tensor q, tl_tensor k, tl_attention_options o)
{
    tl_tape *t = f->t;
    tl_tensor s = tl_scale(t, tl_matmul(t, q, turned(f, k)), f->scale);
    bool ranged = !tl_is_none(o.key_start) || !tl_is_none(o.key_end);
    if (o.full && !ranged)
        return tl_softmax(t, s, -1);
    tl_tensor mask = tl_causal_mask_at(TL_AT(t), f->sq, f->sk, o),
              low = tl_scalar(t, tl_dtype_of(t, s), -0x1p100),
              zero = tl_scalar(t, tl_dtype_of(t, s), 0);
    if (ranged)
        mask = tl_reshape(t, mask, TL_DIMS(f->b, 1, 1, f->sq, f->sk));
    return tl_where(t, mask, tl_softmax(t, tl_where(t, mask, s, low), -1), zero);
}

void tl_attention_grad_vjp(tl_vjp *v)
{
    const tl_attention_attrs *at = v->attrs;
    tl_tape *t = v->t;
    tl_shape sq = tl_shape_of(t, v->in[1]), sk = tl_shape_of(t, v->in[2]);
    frame f = {t,         sq.dim[0], sk.dim[1], sq.dim[1] / sk.dim[1],
               sq.dim[2], sk.dim[2], sq.dim[3], at->scale};
    if (f.scale == 0)
        f.scale = 1 / sqrt((double)f.d);
    tl_tensor like = v->in[1], dout = queries(&f, v->in[0], like), q = queries(&f, v->in[1], like);
    tl_tensor k = keys(&f, v->in[2], like), val = keys(&f, v->in[3], like);
    tl_tensor a = queries(&f, v->dy[0], like), b = keys(&f, v->dy[1], like),
              c = keys(&f, v->dy[2], like);
    tl_tensor p = weights(&f, q, k,
                          (tl_attention_options){.full = at->full,
                                                 .key_start = v->in[4],
                                                 .key_end = v->in[5]}),
              dsum, e, sum;
    tl_tensor dp = tl_matmul(t, dout, turned(&f, val)), ds = centred(t, p, dp, &dsum);
    tl_tensor cds = tl_scale(
        t, tl_add(t, tl_matmul(t, a, turned(&f, k)), tl_matmul(t, q, turned(&f, b))), f.scale);
    tl_tensor cdp = centred(t, p, cds, &e);
    if (v->wants[0])
        v->dx[0] = tl_reshape(t, tl_add(t, tl_matmul(t, p, c), tl_matmul(t, cdp, val)), sq);
    if (v->wants[3])
        v->dx[3] = tl_reshape(t, folded(&f, cdp, dout), sk);
    if (!v->wants[1] && !v->wants[2])
        return;
    tl_tensor through = tl_sub(t, tl_mul(t, cds, tl_sub(t, dp, dsum)), tl_mul(t, dp, e));
    tl_tensor cs = centred(t, p, tl_add(t, tl_matmul(t, dout, turned(&f, c)), through), &sum);
    if (v->wants[1])
        v->dx[1] = tl_reshape(
            t, tl_scale(t, tl_add(t, tl_matmul(t, cs, k), tl_matmul(t, ds, b)), f.scale), sq);
    if (v->wants[2])
        v->dx[2] = tl_reshape(t,
                              tl_scale(t, tl_add(t, folded(&f, cs, q), folded(&f, ds, a)), f.scale),
                              sk);
}
