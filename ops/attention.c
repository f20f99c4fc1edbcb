/* attention: softmax(q k^T * scale over the allowed keys) v, query head h reading key head h /
 * (hq/hkv)
 * Shape:  q (b, hq, sq, d), k and v (b, hkv, sk, d) -> (b, hq, sq, d), laid out in memory as q is;
 *         key_start, key_end (b) or none: of sample i, keys key_start[i] <= j < key_end[i] alone
 *         are allowed
 * Dtype:  f16 bf16 f32 f64, all three alike; ranges i64
 * Bits:   chains, then scale, max, exp, lanes, 1/l, chain over the allowed keys (NUMERICS 7)
 * VJP:    attention_grad recomputes p from q and k: nothing of size sq*sk is kept.   Saves q, k, v.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EINDEX (a range that is not within the keys)
 * Source: Vaswani et al. 2017, eq. 1; grouped heads: Ainslie et al. 2023
 */
#include "ops/attention.h"
#include "tensor/kernels/attention.h"

static const tl_attr attention_schema[] = {{"scale", TL_ATTR_F64,
                                            offsetof(tl_attention_attrs, scale)},
                                           {"full", TL_ATTR_BOOL,
                                            offsetof(tl_attention_attrs, full)},
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
    const tl_attention_attrs *a = c->attrs;
    double d = (double)q->dim[3];
    return (tl_attention_args){.batch = q->dim[0],
                               .q_heads = q->dim[1],
                               .kv_heads = k->dim[1],
                               .q_len = q->dim[2],
                               .kv_len = k->dim[2],
                               .dim = q->dim[3],
                               .causal = !a->full,
                               .f64 = q->dtype == TL_F64,
                               .scale = a->scale != 0 ? a->scale : 1 / sqrt(d)};
}

/* The samples' ranges as the kernels take them, from inputs `at` and `at` + 1; *held: their memory,
 * the caller's to release. */
static tl_status ranges(tl_call *c, int at, tl_attention_args *a, tl_storage **held)
{
    *held = NULL;
    if (c->in[at] == NULL && c->in[at + 1] == NULL)
        return TL_OK;
    int64_t n = a->batch;
    *held = tl_scratch(c, (size_t)(2 * n + 1) * sizeof(int64_t), false);
    if (*held == NULL)
        return TL_ENOMEM;
    int64_t *start = (*held)->data, *end = start + n;
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

/* x as the kernels take it: the compute type, unit stride in the last dim. */
static tl_status prepared(tl_call *c, const tl_array *x, tl_array *out, tl_storage **held)
{
    *held = NULL;
    *out = *x;
    if (x->dtype == tl_dtype_compute(x->dtype) && (x->stride[3] == 1 || x->dim[3] == 1))
        return TL_OK;
    return tl_as_compute(c, x, out, held);
}

/* An output the kernels can write: itself, or contiguous scratch of the compute type. */
static tl_status writable(tl_call *c, int i, tl_array *out, tl_storage **held)
{
    *held = NULL;
    *out = c->out[i];
    return out->dtype == tl_dtype_compute(out->dtype) ? TL_OK : tl_out_compute(c, i, out, held);
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

static tl_status run(tl_call *c, const tl_attention_args *a, bool backward)
{
    job j = {.a = a, .backward = backward};
    int64_t n = backward ? tl_attention_backward_tasks(a) : tl_attention_forward_tasks(a);
    double work = (double)a->q_heads * (double)a->q_len * (double)a->kv_len * (double)a->dim *
                  (double)a->batch;
    int64_t grain = work < 50000 ? n : 1;
    int width = tl_parallel_width(n, grain);
    j.scratch_bytes = (int64_t)((tl_isa_now()->attention->scratch_bytes(a, backward) + 63) / 64 *
                                64);
    tl_storage *st = tl_scratch(c, (size_t)(width * j.scratch_bytes), false);
    if (st == NULL)
        return TL_ENOMEM;
    j.scratch = st->data;
    tl_parallel_for(n, grain, tasks, &j);
    tl_storage_release(st);
    return TL_OK;
}

static tl_status attention_forward(tl_call *c)
{
    tl_array x[3], o;
    tl_storage *held[4] = {NULL}, *range = NULL;
    tl_status s = TL_OK;
    for (int i = 0; i < 3 && s == TL_OK; i++)
        s = prepared(c, c->in[i], &x[i], &held[i]);
    if (s == TL_OK)
        s = writable(c, 0, &o, &held[3]);
    if (s == TL_OK) {
        tl_attention_args a = arguments(c, &x[0], &x[1]);
        a.q = in_of(&x[0]);
        a.k = in_of(&x[1]);
        a.v = in_of(&x[2]);
        a.o = out_of(&o);
        s = ranges(c, 3, &a, &range);
        if (s == TL_OK)
            s = run(c, &a, false);
        if (s == TL_OK)
            tl_store_compute(c, 0, &o, held[3]);
        else
            tl_storage_release(held[3]);
    }
    for (int i = 0; i < 3; i++)
        tl_storage_release(held[i]);
    tl_storage_release(range);
    return s;
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
                               .traits = TL_HEAVY,
                               .shape = attention_shape,
                               .forward = attention_forward,
                               .attr = attention_schema,
                               .attr_size = sizeof(tl_attention_attrs),
                               .vjp = attention_vjp,
                               .saves_in = 31};

tl_tensor tl_attention_at(tl_at at, tl_tensor q, tl_tensor k, tl_tensor v, tl_attention_options o)
{
    tl_attention_attrs a = {o.scale, o.full};
    return tl_apply1(at, &tl_op_attention, &a, (tl_tensor[]){q, k, v, o.key_start, o.key_end}, 5);
}

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
    tl_array x[4], d[3];
    tl_storage *held[4] = {NULL}, *out[3] = {NULL}, *range = NULL;
    tl_status s = TL_OK;
    for (int i = 0; i < 4 && s == TL_OK; i++)
        s = prepared(c, c->in[i], &x[i], &held[i]);
    for (int i = 0; i < 3 && s == TL_OK; i++)
        s = writable(c, i, &d[i], &out[i]);
    if (s == TL_OK) {
        tl_attention_args a = arguments(c, &x[1], &x[2]);
        a.dout = in_of(&x[0]);
        a.q = in_of(&x[1]);
        a.k = in_of(&x[2]);
        a.v = in_of(&x[3]);
        a.dq = out_of(&d[0]);
        a.dk = out_of(&d[1]);
        a.dv = out_of(&d[2]);
        s = ranges(c, 4, &a, &range);
        if (s == TL_OK)
            s = run(c, &a, true);
    }
    for (int i = 0; i < 3; i++)
        if (s == TL_OK)
            tl_store_compute(c, i, &d[i], out[i]);
        else
            tl_storage_release(out[i]);
    for (int i = 0; i < 4; i++)
        tl_storage_release(held[i]);
    tl_storage_release(range);
    return s;
}

const tl_op tl_op_attention_grad = {.name = "attention_grad",
                                    .n_in = 6,
                                    .n_out = 3,
                                    .optional = TL_BIT(4) | TL_BIT(5),
                                    .traits = TL_HEAVY,
                                    .shape = grad_shape,
                                    .forward = grad_forward,
                                    .attr = attention_schema,
                                    .attr_size = sizeof(tl_attention_attrs),
                                    .vjp = tl_attention_grad_vjp,
                                    .saves_in = 63};
