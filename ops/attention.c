/* attention: softmax(q k^T * scale over the allowed keys) v, query head h reading key head h /
 * (hq/hkv)
 * Shape:  q (b, hq, sq, d), k and v (b, hkv, sk, d) -> (b, hq, sq, d), laid out in memory as q is;
 *         key_start, key_end (b) or none: sample i is allowed only keys key_start[i] <= j <
 *         key_end[i]
 * Dtype:  f16 bf16 f32 f64, all three alike; ranges i64
 * Bits:   chains, then scale, max, exp, lanes, 1/l, chain over the allowed keys (NUMERICS 7)
 *         Options that the op lacks are written out in primitives at the end of the file (7.3)
 * VJP:    attention_grad recomputes p from q and k: nothing of size sq*sk is kept.   Saves q, k, v,
 *         ranges.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EINDEX (a range that is not within the keys) TL_EDOMAIN (scale,
 *         softcap)
 * Source: Vaswani et al. 2017, eq. 1; grouped heads: Ainslie et al. 2023
 */
#include "ops/build.h"
#include "tensor/kernels/attention.h"

typedef struct {
    double scale; /* 0: 1/sqrt(d) */
    bool full;
} attention_attrs;

static const tl_attr attention_schema[] = {TL_FIELD(attention, scale, F64),
                                           TL_FIELD(attention, full, BOOL),
                                           {0}};

/* wide: v's last dim may differ from k's. */
static tl_status check(tl_call *c, const tl_array *q, const tl_array *k, const tl_array *v,
                       bool wide)
{
    if (!tl_dtype_is_float(q->dtype) || k->dtype != q->dtype || v->dtype != q->dtype)
        return tl_call_fail(c, TL_EDTYPE, "q %s, k %s, v %s; one floating dtype is needed",
                            tl_dtype_name(q->dtype), tl_dtype_name(k->dtype),
                            tl_dtype_name(v->dtype));
    tl_array like_k = *v;
    if (wide)
        like_k.dim[3] = k->dim[3];
    if (q->ndim != 4 || k->ndim != 4 || !tl_array_same_shape(k, &like_k) ||
        q->dim[0] != k->dim[0] || q->dim[3] != k->dim[3] || k->dim[1] == 0 ||
        q->dim[1] % k->dim[1] != 0)
        return tl_call_fail(
            c, TL_ESHAPE,
            wide ? "q %s, k %s, v %s; q must be (b, hq, sq, d), k (b, hkv, sk, d) and v (b, hkv, "
                   "sk, dv), with hq a multiple of hkv"
                 : "q %s, k %s, v %s; q must be (b, hq, sq, d), k and v (b, hkv, sk, d), with hq "
                   "a multiple of hkv",
            TL_TEXT(q), TL_TEXT(k), TL_TEXT(v));
    return TL_OK;
}

static tl_status check_range(tl_call *c, const tl_array *q, const tl_array *x, const char *name)
{
    if (x == NULL)
        return TL_OK;
    if (x->dtype != TL_I64)
        return tl_call_fail(c, TL_EDTYPE, "%s is %s; I64 is needed", name, tl_dtype_name(x->dtype));
    if (x->ndim != 1 || x->dim[0] != q->dim[0])
        return tl_call_fail(c, TL_ESHAPE,
                            "%s has shape %s; one number for each of the %lld samples is needed",
                            name, TL_TEXT(x), (long long)q->dim[0]);
    return TL_OK;
}

/* Checks q, k, v and the two ranges, which are the inputs from `at` on. */
static tl_status check_inputs(tl_call *c, int at)
{
    TL_TRY(check(c, c->in[at], c->in[at + 1], c->in[at + 2], false));
    TL_TRY(check_range(c, c->in[at], c->in[at + 3], "key_start"));
    return check_range(c, c->in[at], c->in[at + 4], "key_end");
}

/* An array of x's shape, without data, whose dims lie in memory in the order of x's. */
static tl_array laid_out_as(const tl_array *x)
{
    tl_array o = *x;
    int order[4] = {0, 1, 2, 3};
    for (int i = 1; i < 4; i++) /* by decreasing stride; the last dim stays innermost */
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

/* The factor of scores, and 1 / softcap. A call of its own, which stores its results, so that the
 * compiler cannot move the divisions out of the floating-point environment. */
static __attribute__((noinline)) void factors(double given, int64_t d, double softcap,
                                              double *scale, double *uncap)
{
    *scale = given != 0 ? given : 1 / sqrt((double)(d > 0 ? d : 1));
    *uncap = 1 / softcap;
}

static tl_attention_args arguments(tl_call *c, const tl_array *q, const tl_array *k)
{
    const attention_attrs *a = c->attrs;
    double scale, unused;
    factors(a->scale, q->dim[3], 1, &scale, &unused);
    return (tl_attention_args){.batch = q->dim[0],
                               /* without queries no head is computed, whatever their number */
                               .q_heads = q->dim[2] == 0 ? k->dim[1] : q->dim[1],
                               .kv_heads = k->dim[1],
                               .q_len = q->dim[2],
                               .kv_len = k->dim[2],
                               .dim = q->dim[3],
                               .causal = !a->full,
                               .f64 = q->dtype == TL_F64,
                               .scale = scale};
}

/* Sets the samples' ranges of keys, from inputs `at` and `at` + 1, as the kernels take them. */
static tl_status ranges(tl_call *c, int at, tl_attention_args *a)
{
    if (c->in[at] == NULL && c->in[at + 1] == NULL)
        return TL_OK;
    int64_t n = a->batch;
    int64_t *start = tl_scratch(c, (size_t)(2 * n + 1) * sizeof(int64_t), false);
    if (start == NULL)
        return TL_ENOMEM;
    int64_t *end = start + n;
    for (int64_t i = 0; i < n; i++)
        TL_TRY(tl_key_range(c, at, i, a->kv_len, &start[i], &end[i]));
    a->key_start = start;
    a->key_end = end;
    return TL_OK;
}

static tl_attention_array of(const tl_array *x)
{
    return (tl_attention_array){x->data, x->stride[0], x->stride[1], x->stride[2]};
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
    const tl_attention_table *t = &tl_isa_now()->attention[j->a->f64];
    for (int64_t i = begin; i < end; i++)
        (j->backward ? t->backward : t->forward)(j->a, i, j->scratch + thread * j->scratch_bytes);
}

/* Runs all tasks. The ranges of keys are inputs `at` and `at` + 1. */
static tl_status run(tl_call *c, tl_attention_args *a, int at, bool backward)
{
    job j = {.a = a, .backward = backward};
    TL_TRY(ranges(c, at, a));
    int64_t n = backward ? tl_attention_backward_tasks(a) : tl_attention_forward_tasks(a);
    double work = (double)a->q_heads * (double)a->q_len * (double)a->kv_len * (double)a->dim *
                  (double)a->batch;
    int64_t grain = work < 50000 ? n : 1;
    int width = tl_parallel_width(n, grain);
    j.scratch_bytes = (int64_t)tl_isa_now()->attention[a->f64].scratch_bytes(a, backward);
    j.scratch = tl_scratch(c, (size_t)(width * j.scratch_bytes), false);
    if (j.scratch == NULL)
        return TL_ENOMEM;
    tl_parallel_for(n, grain, tasks, &j);
    return TL_OK;
}

static tl_status attention_forward(tl_call *c)
{
    tl_attention_args a = arguments(c, c->in[0], c->in[1]);
    a.q = of(c->in[0]);
    a.k = of(c->in[1]);
    a.v = of(c->in[2]);
    a.o = of(&c->out[0]);
    return run(c, &a, 3, false);
}

static void attention_vjp(tl_vjp *g)
{
    tl_tensor in[6] = {g->dy[0], g->in[0], g->in[1], g->in[2], g->in[3], g->in[4]};
    tl_apply(TL_AT(g->t), &tl_op_attention_grad, g->attrs, in, 6, g->dx);
}

const tl_op tl_op_attention = {TL_NAMED(attention, 5, 1),    .optional = TL_BIT(3) | TL_BIT(4),
                               .traits = TL_HEAVY | TL_ROWS, .shape = attention_shape,
                               .forward = attention_forward, TL_ATTRS(attention),
                               .vjp = attention_vjp,         .saves_in = 31,
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
    a.dout = of(c->in[0]);
    a.q = of(c->in[1]);
    a.k = of(c->in[2]);
    a.v = of(c->in[3]);
    a.dq = of(&c->out[0]);
    a.dk = of(&c->out[1]);
    a.dv = of(&c->out[2]);
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
 * Everything is in the compute type and of shape (b, hkv, g, s, d): the g query heads that share a
 * key head are a batch dim of their own, which the matmuls fold for d_K and d_V. */

typedef struct {
    tl_at at;
    int64_t b, hkv, g, sq, sk, d;
    tl_dtype c;          /* the compute type */
    double scale, uncap; /* the scores' factor; 1 / softcap */
    tl_tensor like;      /* of the batch's samples */
} frame;

static frame frame_of(tl_at at, tl_tensor q, tl_tensor k, double scale, double softcap)
{
    const tl_shape sq = tl_shape_of(at.tape, q), sk = tl_shape_of(at.tape, k);
    frame f = {.at = at,
               .b = sq.dim[0],
               .hkv = sk.dim[1],
               .g = sk.dim[1] > 0 ? sq.dim[1] / sk.dim[1] : 0,
               .sq = sq.dim[2],
               .sk = sk.dim[2],
               .d = sq.dim[3],
               .c = tl_dtype_compute(tl_dtype_of(at.tape, q)),
               .like = tl_batch_of(at.tape, q) >= 0 ? q : k};
    tl_fpenv saved = tl_fpenv_enter(); /* in a constructor the caller's rounding mode is on */
    factors(scale, f.d, softcap, &f.scale, &f.uncap);
    tl_fpenv_leave(saved);
    return f;
}

/* x, zeros if absent, as (b, hkv, group, s, d) in the compute type. */
static tl_tensor by_head(const frame *f, tl_tensor x, int64_t group, int64_t s, int64_t d)
{
    tl_shape shape = TL_DIMS(f->b, f->hkv, group, s, d);
    return tl_is_none(x) ? tl_zeros_of(f->at, f->c, shape, f->like, 0)
                         : tl_reshape_at(f->at, tl_cast_at(f->at, x, f->c), shape);
}
static tl_tensor queries(const frame *f, tl_tensor x) { return by_head(f, x, f->g, f->sq, f->d); }
static tl_tensor keys(const frame *f, tl_tensor x) { return by_head(f, x, 1, f->sk, f->d); }

static tl_tensor turned(const frame *f, tl_tensor x) { return tl_transpose_at(f->at, x, -1, -2); }

/* x^T @ y with the group's heads folded into the chain. */
static tl_tensor folded(const frame *f, tl_tensor x, tl_tensor y)
{
    tl_matmul_attrs a = {.batch = TL_DIMS(f->b, f->hkv, 1)};
    return tl_matmul_into_at(f->at, turned(f, x), y, TL_NONE, a);
}

/* P * (x - rowsum(P*x)): the softmax's derivative, its own transpose. */
static tl_tensor centred(tl_tape *t, tl_tensor p, tl_tensor x, tl_tensor *sum)
{
    *sum = tl_sum_rows_last(t, tl_mul(t, p, x));
    return tl_mul(t, p, tl_sub(t, x, *sum));
}

/* x, which broadcasts to (b, hq, sq, sk), with its heads by key head and group. It is not expanded:
 * the gradient of a parameter that is broadcast where it is used continues over samples. */
static tl_tensor by_group(const frame *f, tl_tensor x)
{
    const tl_shape s = tl_shape_of(f->at.tape, x);
    int64_t dim[4] = {1, 1, 1, 1};
    for (int i = 0; i < s.ndim; i++)
        dim[4 - s.ndim + i] = s.dim[i];
    const bool heads = dim[1] != 1;
    return tl_reshape_at(f->at, x,
                         TL_DIMS(dim[0], heads ? f->hkv : 1, heads ? f->g : 1, dim[2], dim[3]));
}

/* True where a key is allowed; TL_NONE if all are. */
static tl_tensor allowed(const frame *f, tl_attention_options o)
{
    tl_tensor mask = TL_NONE;
    bool of_samples = !tl_is_none(o.key_start) || !tl_is_none(o.key_end) ||
                      (!o.full && !tl_is_none(o.offset));
    if (!o.full || of_samples) {
        const tl_attention_options keys = {.full = o.full,
                                           .key_start = o.key_start,
                                           .key_end = o.key_end,
                                           .offset = o.offset};
        mask = tl_causal_mask_at(f->at, f->sq, f->sk, keys);
        if (of_samples)
            mask = tl_reshape_at(f->at, mask, TL_DIMS(f->b, 1, 1, f->sq, f->sk));
    }
    if (tl_is_none(o.mask))
        return mask;
    tl_tensor own = by_group(f, o.mask);
    return tl_is_none(mask) ? own : tl_logical_and_at(f->at, mask, own);
}

/* Returns the probabilities P and sets *scores to S. A row without an allowed key gives the softmax
 * finite scores, and its P is set to 0 afterwards. */
static tl_tensor probabilities(const frame *f, tl_tensor q, tl_tensor k, tl_attention_options o,
                               tl_tensor *scores)
{
    tl_at at = f->at;
    tl_tensor s = tl_matmul_at(at, q, turned(f, k));
    s = tl_scale_at(at, s, f->scale);
    if (o.softcap != 0)
        s = tl_scale_at(at, tl_tanh_at(at, tl_scale_at(at, s, f->uncap)), o.softcap);
    if (!tl_is_none(o.bias)) /* the cast of a view of a parameter is a value of its own */
        s = tl_add_at(at, s, by_group(f, tl_in_dtype(at, o.bias, f->c)));
    tl_tensor mask = allowed(f, o);
    if (!tl_is_none(mask))
        s = tl_where_at(at, mask, s, tl_scalar_at(at, f->c, -0x1p100));
    *scores = s;
    tl_tensor p = tl_softmax_at(at, s, -1);
    return tl_is_none(mask) ? p : tl_where_at(at, mask, p, tl_scalar_at(at, f->c, 0));
}

static void attention_grad_vjp(tl_vjp *v)
{
    const attention_attrs *at = v->attrs;
    tl_tape *t = v->t;
    tl_shape sq = tl_shape_of(t, v->in[1]), sk = tl_shape_of(t, v->in[2]);
    frame f = frame_of(TL_AT(t), v->in[1], v->in[2], at->scale, 0);
    tl_tensor dout = queries(&f, v->in[0]), q = queries(&f, v->in[1]), k = keys(&f, v->in[2]),
              val = keys(&f, v->in[3]);
    tl_tensor a = queries(&f, v->dy[0]), b = keys(&f, v->dy[1]), c = keys(&f, v->dy[2]);
    tl_attention_options o = {.full = at->full, .key_start = v->in[4], .key_end = v->in[5]};
    tl_tensor scores, dsum, e, sum, p = probabilities(&f, q, k, o, &scores);
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

const tl_op tl_op_attention_grad = {
    TL_NAMED(attention_grad, 6, 3), .optional = TL_BIT(4) | TL_BIT(5),
    .traits = TL_HEAVY | TL_ROWS,   .shape = grad_shape,
    .forward = grad_forward,        TL_ATTRS(attention),
    .vjp = attention_grad_vjp,      .saves_in = 63,
    .batch = tl_first_axis};

/* ---- what the op lacks, written out in primitives (NUMERICS 7.3): a mask, a bias, values of
 * another width, softcap, the log-sum-exp, offsets. The scores of all queries and keys are in
 * memory. */

static tl_tensor written(tl_at at, tl_tensor q, tl_tensor k, tl_tensor v, tl_attention_options o)
{
    tl_shape sq = tl_shape_of(at.tape, q), sv = tl_shape_of(at.tape, v);
    frame f = frame_of(at, q, k, o.scale, o.softcap);
    tl_tensor s, p = probabilities(&f, queries(&f, q), keys(&f, k), o, &s);
    tl_tensor y = tl_matmul_at(at, p, by_head(&f, v, 1, f.sk, sv.dim[3]));
    if (o.lse != NULL) {
        tl_tensor l = f.sk > 0 ? tl_logsumexp_at(at, s, TL_DIMS(-1), false) /* it needs a maximum */
                               : tl_shift_at(at, tl_sum_at(at, s, TL_DIMS(-1), false),
                                             -(double)INFINITY);
        tl_tensor none = tl_lt_at(at, l, tl_scalar_at(at, f.c, -0x1p99));
        l = tl_masked_fill_at(at, l, none, -(double)INFINITY);
        *o.lse = tl_reshape_at(at, l, TL_DIMS(sq.dim[0], sq.dim[1], sq.dim[2]));
    }
    y = tl_reshape_at(at, y, TL_DIMS(sq.dim[0], sq.dim[1], sq.dim[2], sv.dim[3]));
    return tl_in_dtype(at, y, tl_dtype_of(at.tape, q));
}

/* Checks what the op does not take; errors are c's, a call of the op that is not made. */
static tl_status can_write(tl_call *c, tl_tape *t, const tl_array a[3], tl_attention_options o)
{
    static const char *const range_name[] = {"key_start", "key_end", "offset"};
    const tl_tensor range[] = {o.key_start, o.key_end, o.full ? TL_NONE : o.offset},
                    of_scores[] = {o.mask, o.bias};
    tl_array x;
    TL_TRY(check(c, &a[0], &a[1], &a[2], true));
    if (tl_array_of(t, o.mask, &x) && x.dtype != TL_BOOL)
        return tl_call_fail(c, TL_EDTYPE, "the mask is %s; BOOL is needed", tl_dtype_name(x.dtype));
    if (!(o.softcap >= 0 && isfinite(o.softcap)))
        return tl_call_fail(c, TL_EDOMAIN, "softcap is %g; a number from 0 on is needed",
                            o.softcap);
    for (int i = 0; i < 3; i++)
        if (tl_array_of(t, range[i], &x))
            TL_TRY(check_range(c, &a[0], &x, range_name[i]));
    const tl_shape scores = TL_DIMS(a[0].dim[0], a[0].dim[1], a[0].dim[2], a[1].dim[2]);
    for (int i = 0; i < 2; i++)
        if (tl_array_of(t, of_scores[i], &x) &&
            !tl_dims_expand(x.ndim, x.dim, scores.ndim, scores.dim))
            return tl_call_fail(c, TL_ESHAPE,
                                "the %s is %s, which does not broadcast to %s (b, heads, queries, "
                                "keys)",
                                i == 0 ? "mask" : "bias", TL_TEXT(&x), TL_TEXT_OF(&scores));
    return TL_OK;
}

tl_tensor tl_attention_at(tl_at at, tl_tensor q, tl_tensor k, tl_tensor v, tl_attention_options o)
{
    attention_attrs attrs = {o.scale, o.full};
    tl_array a[3];
    bool there = tl_array_of(at.tape, q, &a[0]) && tl_array_of(at.tape, k, &a[1]) &&
                 tl_array_of(at.tape, v, &a[2]); /* else the op says what is wrong */
    bool plain = tl_is_none(o.mask) && tl_is_none(o.bias) && (o.full || tl_is_none(o.offset)) &&
                 o.softcap == 0 && o.lse == NULL;
    tl_give(o.lse, TL_NONE);
    if (isnan(o.scale))
        return tl_reject(at, TL_EDOMAIN, "attention: the scale is NaN");
    if (!there || (plain && (a[1].ndim != 4 || a[2].ndim != 4 || a[1].dim[3] == a[2].dim[3])))
        return tl_apply1(at, &tl_op_attention, &attrs,
                         (tl_tensor[]){q, k, v, o.key_start, o.key_end}, 5);
    tl_err e = {.status = TL_OK};
    tl_call c = {.op = &tl_op_attention, .err = &e};
    if (can_write(&c, at.tape, a, o) != TL_OK)
        return tl_reject(at, e.status, "%s", e.message);
    return written(at, q, k, v, o);
}
