/* attention: softmax(q k^T * scale over the allowed keys) v, query head h reading key head h /
 * (hq/hkv)
 * Shape:  q (b, hq, sq, d), k and v (b, hkv, sk, d) -> (b, hq, sq, d), laid out in memory as q is;
 *         key_start, key_end (b) or none: of sample i, keys key_start[i] <= j < key_end[i] alone
 *         are allowed
 * Dtype:  f16 bf16 f32 f64, all three alike; ranges i64
 * Bits:   chains, then scale, max, exp, lanes, 1/l, chain over the allowed keys (NUMERICS 7)
 *         Options that the op has not are written out in primitives at the end of the file (7.3)
 * VJP:    attention_grad recomputes p from q and k: nothing of size sq*sk is kept.   Saves q, k, v.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EINDEX (a range that is not within the keys)
 * Source: Vaswani et al. 2017, eq. 1; grouped heads: Ainslie et al. 2023
 */
#include <math.h>
#include "ops/build.h"
#include "ops/matmul.h"
#include "tensor/kernels/attention.h"

typedef struct {
    double scale; /* 0: 1/sqrt(d) */
    bool full;
} attention_attrs;

static const tl_attr attention_schema[] = {{"scale", TL_ATTR_F64, offsetof(attention_attrs, scale)},
                                           {"full", TL_ATTR_BOOL, offsetof(attention_attrs, full)},
                                           {0}};

static tl_status check(tl_call *c, const tl_array *q, const tl_array *k, const tl_array *v)
{
    char sq[TL_SHAPE_TEXT], sk[TL_SHAPE_TEXT], sv[TL_SHAPE_TEXT];
    if (!tl_dtype_is_float(q->dtype) || k->dtype != q->dtype || v->dtype != q->dtype)
        return tl_call_fail(c, TL_EDTYPE, "q %s, k %s, v %s; one floating dtype is needed",
                            tl_dtype_name(q->dtype), tl_dtype_name(k->dtype),
                            tl_dtype_name(v->dtype));
    if (q->ndim != 4 || k->ndim != 4 || !tl_array_same_shape(k, v) || q->dim[0] != k->dim[0] ||
        q->dim[3] != k->dim[3] || k->dim[1] == 0 || q->dim[1] % k->dim[1] != 0)
        return tl_call_fail(c, TL_ESHAPE,
                            "q %s, k %s, v %s; (b, hq, sq, d) and twice (b, hkv, sk, d) with hkv "
                            "dividing hq are needed",
                            tl_array_shape_text(sq, q), tl_array_shape_text(sk, k),
                            tl_array_shape_text(sv, v));
    return TL_OK;
}

static tl_status check_range(tl_call *c, const tl_array *q, const tl_array *x, const char *name)
{
    char sx[TL_SHAPE_TEXT];
    if (x == NULL)
        return TL_OK;
    if (x->dtype != TL_I64)
        return tl_call_fail(c, TL_EDTYPE, "%s is %s; I64 is needed", name, tl_dtype_name(x->dtype));
    if (x->ndim != 1 || x->dim[0] != q->dim[0])
        return tl_call_fail(c, TL_ESHAPE,
                            "%s has shape %s; one number for each of the %lld samples is needed",
                            name, tl_array_shape_text(sx, x), (long long)q->dim[0]);
    return TL_OK;
}

/* q, k, v and the two ranges, from input `at` on. */
static tl_status check_inputs(tl_call *c, int at)
{
    TL_TRY(check(c, c->in[at], c->in[at + 1], c->in[at + 2]));
    TL_TRY(check_range(c, c->in[at], c->in[at + 3], "key_start"));
    return check_range(c, c->in[at], c->in[at + 4], "key_end");
}

/* A fresh array of x's shape, its dims in memory in the order in which x has them. */
static tl_array laid_out_as(const tl_array *x)
{
    tl_array o = *x;
    int order[4] = {0, 1, 2, 3};
    for (int i = 1; i < 4; i++) /* by falling stride; the last dim stays innermost */
        for (int j = i; j > 0 && j < 3 && x->stride[order[j]] > x->stride[order[j - 1]]; j--) {
            int swap = order[j];
            order[j] = order[j - 1];
            order[j - 1] = swap;
        }
    int64_t step = 1;
    for (int i = 3; i >= 0; i--) {
        o.stride[order[i]] = step;
        step *= x->dim[order[i]] > 1 ? x->dim[order[i]] : 1;
    }
    o.data = NULL;
    return o;
}

static tl_status attention_shape(tl_call *c)
{
    TL_TRY(check_inputs(c, 0));
    c->out[0] = laid_out_as(c->in[0]);
    c->strided = true;
    return TL_OK;
}

static tl_attention_args arguments(tl_call *c, const tl_array *q, const tl_array *k)
{
    const attention_attrs *a = c->attrs;
    double d = (double)q->dim[3];
    return (tl_attention_args){.batch = q->dim[0],
                               /* heads without queries are none, however many */
                               .q_heads = q->dim[2] == 0 ? k->dim[1] : q->dim[1],
                               .kv_heads = k->dim[1],
                               .q_len = q->dim[2],
                               .kv_len = k->dim[2],
                               .dim = q->dim[3],
                               .causal = !a->full,
                               .f64 = q->dtype == TL_F64,
                               .scale = a->scale != 0 ? a->scale : 1 / sqrt(d)};
}

/* The samples' ranges as the kernels take them, from inputs `at` and `at` + 1. */
static tl_status ranges(tl_call *c, int at, tl_attention_args *a)
{
    if (c->in[at] == NULL && c->in[at + 1] == NULL)
        return TL_OK;
    int64_t n = a->batch;
    int64_t *start = tl_scratch(c, (size_t)(2 * n + 1) * sizeof(int64_t), false), *end = start + n;
    if (start == NULL)
        return TL_ENOMEM;
    for (int64_t i = 0; i < n; i++) {
        start[i] = c->in[at] != NULL ? *(const int64_t *)tl_array_at(c->in[at], i) : 0;
        end[i] = c->in[at + 1] != NULL ? *(const int64_t *)tl_array_at(c->in[at + 1], i)
                                       : a->kv_len;
        if (start[i] < 0 || end[i] > a->kv_len || start[i] > end[i])
            return tl_call_fail(
                c, TL_EINDEX,
                "sample %lld may see the keys from %lld up to %lld, of %lld that there are",
                (long long)i, (long long)start[i], (long long)end[i], (long long)a->kv_len);
    }
    a->key_start = start;
    a->key_end = end;
    return TL_OK;
}

static tl_attention_in in_of(const tl_array *x)
{
    return (tl_attention_in){x->data, x->stride[0], x->stride[1], x->stride[2]};
}
static tl_attention_out out_of(const tl_array *x)
{
    return (tl_attention_out){x->data, x->stride[0], x->stride[1], x->stride[2]};
}

typedef struct {
    const tl_attention_args *a;
    char *scratch;
    int64_t scratch_bytes;
    bool backward;
} job;

static void tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    const tl_attention_table *t = tl_isa_now()->attention;
    for (int64_t i = begin; i < end; i++)
        (j->backward ? t->backward : t->forward)(j->a, i, j->scratch + thread * j->scratch_bytes);
}

/* With the ranges of keys in inputs `at` and after. */
static tl_status run(tl_call *c, tl_attention_args *a, int at, bool backward)
{
    job j = {.a = a, .backward = backward};
    TL_TRY(ranges(c, at, a));
    int64_t n = backward ? tl_attention_backward_tasks(a) : tl_attention_forward_tasks(a);
    double work = (double)a->q_heads * (double)a->q_len * (double)a->kv_len * (double)a->dim *
                  (double)a->batch;
    int64_t grain = work < 50000 ? n : 1;
    int width = tl_parallel_width(n, grain);
    j.scratch_bytes = (int64_t)((tl_isa_now()->attention->scratch_bytes(a, backward) + 63) / 64 *
                                64);
    j.scratch = tl_scratch(c, (size_t)(width * j.scratch_bytes), false);
    if (j.scratch == NULL)
        return TL_ENOMEM;
    tl_parallel_for(n, grain, tasks, &j);
    return TL_OK;
}

static tl_status attention_forward(tl_call *c)
{
    tl_attention_args a = arguments(c, c->in[0], c->in[1]);
    a.q = in_of(c->in[0]);
    a.k = in_of(c->in[1]);
    a.v = in_of(c->in[2]);
    a.o = out_of(&c->out[0]);
    return run(c, &a, 3, false);
}

static void attention_vjp(tl_vjp *g)
{
    tl_tensor in[6] = {g->dy[0], g->in[0], g->in[1], g->in[2], g->in[3], g->in[4]}, out[3];
    tl_apply(TL_AT(g->t), &tl_op_attention_grad, g->attrs, in, 6, out);
    for (int i = 0; i < 3; i++)
        g->dx[i] = out[i];
}

const tl_op tl_op_attention = {.name = "attention",
                               .n_in = 5,
                               .n_out = 1,
                               .optional = TL_BIT(3) | TL_BIT(4),
                               .traits = TL_HEAVY | TL_ROWS,
                               .shape = attention_shape,
                               .forward = attention_forward,
                               .attr = attention_schema,
                               .attr_size = sizeof(attention_attrs),
                               .vjp = attention_vjp,
                               .saves_in = 31,
                               .batch = tl_first_axis};

/* ---- attention_grad(dy, q, k, v, key_start, key_end) -> dq, dk, dv ---- */

static tl_status grad_shape(tl_call *c)
{
    TL_TRY(check_inputs(c, 1));
    if (!tl_array_same_shape(c->in[0], c->in[1]) || c->in[0]->dtype != c->in[1]->dtype)
        return tl_call_fail(c, TL_ESHAPE, "dy and q differ in shape or dtype");
    for (int i = 0; i < 3; i++)
        c->out[i] = laid_out_as(c->in[i + 1]);
    c->strided = true;
    return TL_OK;
}

static tl_status grad_forward(tl_call *c)
{
    tl_attention_args a = arguments(c, c->in[1], c->in[2]);
    a.dout = in_of(c->in[0]);
    a.q = in_of(c->in[1]);
    a.k = in_of(c->in[2]);
    a.v = in_of(c->in[3]);
    a.dq = out_of(&c->out[0]);
    a.dk = out_of(&c->out[1]);
    a.dv = out_of(&c->out[2]);
    return run(c, &a, 4, true);
}

/* ---- the derivative of attention_grad, in primitives.
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

static void attention_grad_vjp(tl_vjp *v)
{
    const attention_attrs *at = v->attrs;
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

const tl_op tl_op_attention_grad = {.name = "attention_grad",
                                    .n_in = 6,
                                    .n_out = 3,
                                    .optional = TL_BIT(4) | TL_BIT(5),
                                    .traits = TL_HEAVY | TL_ROWS,
                                    .shape = grad_shape,
                                    .forward = grad_forward,
                                    .attr = attention_schema,
                                    .attr_size = sizeof(attention_attrs),
                                    .vjp = attention_grad_vjp,
                                    .saves_in = 63,
                                    .batch = tl_first_axis};

/* ---- what the op has not, written out in primitives (NUMERICS 7.3): a mask, a bias, values of
 * another width, softcap, the log-sum-exp, offsets. Scores of all queries and keys are in memory.
 */

/* x, broadcasting to (b, hq, sq, sk), by key head and group. */
static tl_tensor spread(tl_at at, const frame *f, tl_tensor x)
{
    x = tl_expand_at(at, x, TL_DIMS(f->b, f->hkv * f->g, f->sq, f->sk));
    return tl_reshape_at(at, x, TL_DIMS(f->b, f->hkv, f->g, f->sq, f->sk));
}

/* The keys allowed; TL_NONE: all. */
static tl_tensor allowed(tl_at at, const frame *f, tl_attention_options o)
{
    tl_tensor mask = TL_NONE;
    bool of_samples = !tl_is_none(o.key_start) || !tl_is_none(o.key_end) ||
                      (!o.full && !tl_is_none(o.offset));
    if (!o.full || of_samples) {
        mask = tl_causal_mask_at(at, f->sq, f->sk, o);
        if (of_samples)
            mask = tl_reshape_at(at, mask, TL_DIMS(f->b, 1, 1, f->sq, f->sk));
    }
    if (tl_is_none(o.mask))
        return mask;
    tl_tensor own = spread(at, f, o.mask);
    return tl_is_none(mask) ? own : tl_logical_and_at(at, mask, own);
}

/* A call of its own, so that no division leaves the environment it is made in. */
static __attribute__((noinline)) void factors(const tl_attention_options *o, int64_t d,
                                              double *scale, double *uncap)
{
    *scale = o->scale != 0 ? o->scale : 1 / sqrt((double)d);
    *uncap = 1 / o->softcap;
}

static tl_tensor written(tl_at at, tl_tensor q, tl_tensor k, tl_tensor v, tl_attention_options o)
{
    tl_tape *t = at.tape;
    tl_shape sq = tl_shape_of(t, q), sk = tl_shape_of(t, k), sv = tl_shape_of(t, v);
    tl_dtype own = tl_dtype_of(t, q), c = tl_dtype_compute(own);
    double scale, uncap;
    tl_fpenv saved = tl_fpenv_enter(); /* no op yet: the caller's rounding is on */
    factors(&o, sq.dim[3], &scale, &uncap);
    tl_fpenv_leave(saved);
    frame f = {t,         sq.dim[0], sk.dim[1], sk.dim[1] > 0 ? sq.dim[1] / sk.dim[1] : 0,
               sq.dim[2], sk.dim[2], sq.dim[3], scale},
          fv = f;
    fv.d = sv.dim[3];
    tl_tensor s = tl_matmul_at(at, queries(&f, q, q), turned(&f, keys(&f, k, q)));
    s = tl_scale_at(at, s, scale);
    if (o.softcap != 0)
        s = tl_scale_at(at, tl_tanh_at(at, tl_scale_at(at, s, uncap)), o.softcap);
    if (!tl_is_none(o.bias))
        s = tl_add_at(at, s, spread(at, &f, tl_cast_at(at, o.bias, c)));
    tl_tensor mask = allowed(at, &f, o);
    if (!tl_is_none(mask))
        s = tl_where_at(at, mask, s, tl_fill_at(at, c, TL_SCALAR, -0x1p100));
    tl_tensor p = tl_softmax_at(at, s, -1);
    if (!tl_is_none(mask))
        p = tl_where_at(at, mask, p, tl_fill_at(at, c, TL_SCALAR, 0));
    tl_tensor y = tl_matmul_at(at, p, keys(&fv, v, q));
    if (o.lse != NULL) {
        tl_tensor l = tl_logsumexp_at(at, s, TL_DIMS(-1), false);
        tl_tensor none = tl_lt_at(at, l, tl_fill_at(at, c, TL_SCALAR, -0x1p99));
        l = tl_masked_fill_at(at, l, none, -(double)INFINITY);
        *o.lse = tl_reshape_at(at, l, TL_DIMS(sq.dim[0], sq.dim[1], sq.dim[2]));
    }
    y = tl_reshape_at(at, y, TL_DIMS(sq.dim[0], sq.dim[1], sq.dim[2], sv.dim[3]));
    return own == c ? y : tl_cast_at(at, y, own);
}

/* As the op's check of q, k, v; v's last dim may differ from k's. */
static bool can_write(tl_at at, const tl_array a[3], tl_attention_options o)
{
    char text[3][TL_SHAPE_TEXT];
    if (tl_failed(at.tape))
        return false;
    bool fits = a[0].ndim == 4 && a[1].ndim == 4 && a[2].ndim == 4 && a[0].dim[0] == a[1].dim[0] &&
                a[0].dim[3] == a[1].dim[3] && a[1].dim[1] > 0 && a[0].dim[1] % a[1].dim[1] == 0;
    for (int i = 0; fits && i < 3; i++)
        fits = a[1].dim[i] == a[2].dim[i];
    if (!fits)
        tl_tape_fail(
            at, TL_ESHAPE,
            "attention: q %s, k %s, v %s; (b, hq, sq, d), (b, hkv, sk, d) and (b, hkv, sk, "
            "dv) with hkv dividing hq are needed",
            tl_array_shape_text(text[0], &a[0]), tl_array_shape_text(text[1], &a[1]),
            tl_array_shape_text(text[2], &a[2]));
    else if (!tl_dtype_is_float(a[0].dtype) || a[1].dtype != a[0].dtype || a[2].dtype != a[0].dtype)
        tl_tape_fail(at, TL_EDTYPE, "attention: q %s, k %s, v %s; one floating dtype is needed",
                     tl_dtype_name(a[0].dtype), tl_dtype_name(a[1].dtype),
                     tl_dtype_name(a[2].dtype));
    else if (!tl_is_none(o.mask) && tl_dtype_of(at.tape, o.mask) != TL_BOOL)
        tl_tape_fail(at, TL_EDTYPE, "attention: the mask is %s; BOOL is needed",
                     tl_dtype_name(tl_dtype_of(at.tape, o.mask)));
    else if (!(o.softcap >= 0 && isfinite(o.softcap)))
        tl_tape_fail(at, TL_EDOMAIN, "attention: softcap is %g; a number from 0 on is needed",
                     o.softcap);
    else
        return true;
    return false;
}

tl_tensor tl_attention_at(tl_at at, tl_tensor q, tl_tensor k, tl_tensor v, tl_attention_options o)
{
    attention_attrs attrs = {o.scale, o.full};
    tl_array a[3];
    bool there = tl_array_of(at.tape, q, &a[0]) && tl_array_of(at.tape, k, &a[1]) &&
                 tl_array_of(at.tape, v, &a[2]); /* else the op says what is wrong */
    bool plain = tl_is_none(o.mask) && tl_is_none(o.bias) && (o.full || tl_is_none(o.offset)) &&
                 o.softcap == 0 && o.lse == NULL;
    if (o.lse != NULL)
        *o.lse = TL_NONE;
    if (!there || (plain && (a[1].ndim != 4 || a[2].ndim != 4 || a[1].dim[3] == a[2].dim[3])))
        return tl_apply1(at, &tl_op_attention, &attrs,
                         (tl_tensor[]){q, k, v, o.key_start, o.key_end}, 5);
    return can_write(at, a, o) ? written(at, q, k, v, o) : TL_NONE;
}
