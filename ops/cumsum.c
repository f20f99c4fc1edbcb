/* cumsum over a dim: y_i = x_0 + ... + x_i; reverse: y_i = x_last + ... + x_i, from the end
 * Shape:  as x
 * Dtype:  f16 bf16 f32 f64
 * Bits:   a left fold in f64 from +0, each partial sum rounded once (NUMERICS 4.6)
 * VJP:    cumsum of dy, in the other direction
 * Errors: TL_ESHAPE TL_EDTYPE
 * The op runs along the last dim; a view brings another dim there.
 */
#include "ops/build.h"

typedef struct {
    bool reverse;
} cumsum_attrs;

static const tl_attr cumsum_schema[] = {TL_FIELD(cumsum, reverse, BOOL), {0}};

static tl_status cumsum_shape(tl_call *c)
{
    TL_TRY(tl_need_float(c, c->in[0], "x"));
    if (c->in[0]->ndim == 0)
        return tl_call_fail(c, TL_ESHAPE, "a 0-d tensor has no dim to sum along");
    c->out[0] = *c->in[0];
    return TL_OK;
}

typedef struct {
    tl_array x; /* contiguous, the compute type */
    const tl_array *y;
    int64_t n;
    bool reverse;
} job;

static void cumsum_rows(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    enum { BLOCK = 256 };
    const job *j = ctx;
    const int64_t blocks = (j->n + BLOCK - 1) / BLOCK;
    double part[BLOCK];
    for (int64_t r = begin; r < end; r++) {
        double acc = 0;
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t at = (j->reverse ? blocks - 1 - b : b) * BLOCK, first = r * j->n + at,
                          m = j->n - at < BLOCK ? j->n - at : BLOCK;
            for (int64_t k = 0; k < m; k++) {
                const int64_t i = j->reverse ? m - 1 - k : k;
                acc += tl_number_at(&j->x, first + i);
                part[i] = acc;
            }
            tl_isa_now()->convert->cast(m, TL_F64, part, j->y->dtype, tl_flat_at(j->y, first));
        }
    }
}

static tl_status cumsum_forward(tl_call *c)
{
    job j = {.y = &c->out[0],
             .n = c->in[0]->dim[c->in[0]->ndim - 1],
             .reverse = ((const cumsum_attrs *)c->attrs)->reverse};
    TL_TRY(tl_as_compute(c, c->in[0], &j.x));
    tl_parallel_for(tl_array_count(&j.x) / j.n, 1 + 8192 / j.n, cumsum_rows, &j);
    return TL_OK;
}

static void cumsum_vjp(tl_vjp *g)
{
    cumsum_attrs a = {!((const cumsum_attrs *)g->attrs)->reverse};
    g->dx[0] = tl_apply1(TL_AT(g->t), &tl_op_cumsum, &a, g->dy, 1);
}

const tl_op tl_op_cumsum = {TL_NAMED(cumsum, 1, 1), .traits = TL_REDUCTION,
                            .shape = cumsum_shape,  .forward = cumsum_forward,
                            TL_ATTRS(cumsum),       .vjp = cumsum_vjp,
                            .batch = tl_batch_rows};

tl_tensor tl_cumsum_at(tl_at at, tl_tensor x, int dim, bool reverse)
{
    return tl_apply_along(at, &tl_op_cumsum, &(cumsum_attrs){reverse}, x, dim);
}
