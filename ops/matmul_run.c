/* matmul_run.c: runs a batched matmul in as few gemm calls as its strides allow.
 *
 * Folded batch dims join k, and batch dims that B lacks join m, where strides merge: the usual
 * layers become one call. The rest is a loop over batches, several at a time when they are
 * small. */
#include "ops/build.h"

static tl_gemm_type gemm_type(tl_dtype d)
{
    return d == TL_F64   ? TL_GEMM_F64
           : d == TL_F32 ? TL_GEMM_F32
           : d == TL_F16 ? TL_GEMM_F16
                         : TL_GEMM_BF16;
}

/* The stride of x along batch dim i of nd, aligned at the last one; 0 where x is broadcast. */
static int64_t batch_stride(const tl_array *x, int i, int nd, int64_t *size)
{
    int k = i - (nd - (x->ndim - 2));
    *size = k < 0 ? 1 : x->dim[k];
    return k < 0 || x->dim[k] == 1 ? 0 : x->stride[k];
}

static tl_gemm_batches plan_of(const tl_array *a, const tl_array *b, const tl_array *c, bool f64,
                               bool accumulate)
{
    tl_gemm_batches p = {.nd = 0};
    int la = a->ndim - 2, lb = b->ndim - 2, lc = c->ndim - 2, nd = la > lb ? la : lb;
    nd = lc > nd ? lc : nd;
    for (int i = 0; i < nd; i++) {
        int64_t na, nb, nc, sa = batch_stride(a, i, nd, &na), sb = batch_stride(b, i, nd, &nb),
                            sc = batch_stride(c, i, nd, &nc);
        int64_t n = na == 1 ? nb : na;
        n = n == 1 ? nc : n;
        if (n == 1)
            continue;
        p.dim[p.nd] = n;
        p.sa[p.nd] = sa;
        p.sb[p.nd] = sb;
        p.sc[p.nd] = sc;
        p.fold[p.nd++] = nc == 1;
    }
    p.g = (tl_gemm_args){.m = c->dim[lc],
                         .n = c->dim[lc + 1],
                         .k = a->dim[la + 1],
                         .f64 = f64,
                         .accumulate = accumulate,
                         .a = {a->data, gemm_type(a->dtype), a->stride[la], a->stride[la + 1]},
                         .b = {b->data, gemm_type(b->dtype), b->stride[lb], b->stride[lb + 1]},
                         .c = c->data,
                         .rsc = c->stride[lc],
                         .csc = c->stride[lc + 1]};
    return p;
}

/* Makes the innermost batch dim part of k, if it is folded, or of m, if B lacks it, where strides
 * allow that. */
static bool merge_last(tl_gemm_batches *p)
{
    int i = p->nd - 1;
    if (i < 0)
        return false;
    if (p->fold[i] && p->sa[i] == p->g.k * p->g.a.cs && p->sb[i] == p->g.k * p->g.b.rs) {
        p->g.k *= p->dim[i];
    } else if (!p->fold[i] && p->sb[i] == 0 && p->sa[i] == p->g.m * p->g.a.rs &&
               p->sc[i] == p->g.m * p->g.rsc) {
        p->g.m *= p->dim[i];
    } else {
        return false;
    }
    p->nd--;
    return true;
}

/* Product number `step` of those that fold into batch number `index` of the output. */
static tl_gemm_args batch_args(const tl_gemm_batches *p, int64_t index, int64_t step)
{
    tl_gemm_args g = p->g;
    int64_t oa = 0, ob = 0, oc = 0;
    g.accumulate |= step > 0;
    for (int i = p->nd - 1; i >= 0; i--) {
        int64_t *from = p->fold[i] ? &step : &index, at = *from % p->dim[i];
        *from /= p->dim[i];
        oa += at * p->sa[i];
        ob += at * p->sb[i];
        oc += at * p->sc[i];
    }
    g.a.data = (const char *)g.a.data + oa * tl_gemm_size(g.a.type);
    g.b.data = (const char *)g.b.data + ob * tl_gemm_size(g.b.type);
    g.c = (char *)g.c + oc * tl_gemm_size(g.f64 ? TL_GEMM_F64 : TL_GEMM_F32);
    return g;
}

typedef struct {
    const tl_gemm_batches *p;
    int64_t steps; /* products that fold into each batch */
    char *scratch;
    int64_t scratch_bytes;
    const tl_gemm_table *table;
    const tl_gemm_plan *gemm;
} job;

static void batch_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    for (int64_t i = begin; i < end; i++)
        for (int64_t s = 0; s < j->steps; s++) {
            const tl_gemm_args g = batch_args(j->p, i, s);
            tl_gemm_serial(j->table, &g, j->scratch + thread * j->scratch_bytes);
        }
}

static void task_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    for (int64_t i = begin; i < end; i++)
        tl_gemm_task(j->gemm, i, j->scratch + thread * j->scratch_bytes);
}

/* One gemm by fn, or its tasks divided between up to `most` threads. Products of one call are alike
 * and share *scratch, which the first one takes. */
static tl_status run_one(tl_call *c, const tl_gemm_args *g, tl_gemm_fn *fn, int most,
                         void **scratch)
{
    if (fn != NULL && fn(g))
        return TL_OK;
    tl_gemm_plan gp;
    double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k;
    const int width = flops < 200000 ? 1 : most;
    job j = {.table = tl_isa_now()->gemm, .gemm = &gp};
    int64_t tasks = tl_gemm_plan_make(j.table, g, width, &gp);
    j.scratch_bytes = gp.scratch_bytes;
    if (*scratch == NULL)
        *scratch = tl_scratch(c, (size_t)(width * j.scratch_bytes), false);
    if (*scratch == NULL)
        return TL_ENOMEM;
    j.scratch = *scratch;
    tl_parallel_for(tasks, width == 1 ? tasks : 1, task_range, &j);
    return TL_OK;
}

tl_status tl_gemm_batches_run(tl_call *c, const tl_gemm_batches *p, tl_gemm_fn *fn)
{
    int64_t batches = 1, steps = 1;
    for (int i = 0; i < p->nd; i++)
        *(p->fold[i] ? &steps : &batches) *= p->dim[i];
    double flops = 2.0 * (double)p->g.m * (double)p->g.n * (double)p->g.k * (double)steps;
    if (batches >= 2 && flops < 2e7 && fn == NULL) { /* several small ones at a time */
        job j = {.p = p, .steps = steps, .table = tl_isa_now()->gemm};
        int64_t grain = 1 + (int64_t)(100000 / (flops + 1));
        int width = tl_parallel_width(batches, grain);
        j.scratch_bytes = tl_gemm_scratch_bytes(j.table, &p->g);
        j.scratch = tl_scratch(c, (size_t)(width * j.scratch_bytes), false);
        if (j.scratch == NULL)
            return TL_ENOMEM;
        tl_parallel_for(batches, grain, batch_range, &j);
        return TL_OK;
    }
    const int most = tl_parallel_width(1 << 20, 1);
    void *scratch = NULL;
    for (int64_t i = 0; i < batches; i++)
        for (int64_t s = 0; s < steps; s++) {
            const tl_gemm_args g = batch_args(p, i, s);
            TL_TRY(run_one(c, &g, fn, most, &scratch));
        }
    return TL_OK;
}

/* Where k or a folded dim is 0 there are no terms: a product with k = 0 keeps C or makes it +0. */
static void drop_empty_folds(tl_gemm_batches *p)
{
    for (int i = 0; i < p->nd; i++)
        if (p->fold[i] && p->dim[i] == 0)
            p->g.k = 0;
    for (int i = 0; p->g.k == 0 && i < p->nd; i++)
        if (p->fold[i])
            p->dim[i] = 1;
}

bool tl_matmul_is_short(const tl_call *c, int64_t k)
{
    const tl_array *a = c->in[0];
    if (c->in[2] != NULL || a->dim[a->ndim - 1] > k)
        return false;
    const tl_gemm_batches p = plan_of(a, c->in[1], &c->out[0], false, false);
    for (int i = 0; i < p.nd; i++)
        if (p.fold[i])
            return false;
    return true;
}

tl_status tl_matmul_with(tl_call *c, tl_gemm_fn *fn)
{
    if (c->op != &tl_op_matmul) /* a kernel of another op, which has other attributes */
        return tl_call_fail(c, TL_EUSAGE, "tl_matmul_with: only matmul is computed so");
    const tl_matmul_attrs *at = c->attrs;
    tl_array out = c->out[0];
    bool acc = c->in[2] != NULL && !c->begins, f64 = at->acc_f64 || out.dtype == TL_F64;
    tl_dtype compute = f64 ? TL_F64 : TL_F32;
    const bool rounds = out.dtype != compute; /* once: the chain runs in the compute type */
    if (rounds) {
        out.dtype = compute;
        TL_TRY(tl_scratch_array(c, &out, false));
    }
    tl_gemm_batches p = plan_of(c->in[0], c->in[1], &out, f64, acc);
    drop_empty_folds(&p);
    while (merge_last(&p))
        ;
    TL_TRY(tl_gemm_batches_run(c, &p, fn));
    if (rounds)
        tl_cast_all(tl_array_count(&out), compute, out.data, c->out[0].dtype, c->out[0].data);
    return TL_OK;
}
