/* cumsum over a dim: y_i = x_0 + ... + x_i; reversed: y_i = x_i + ... + x_last, from the end
 * Shape:  as x
 * Dtype:  f16 bf16 f32 f64
 * Bits:   a left fold in f64 from +0 (reversed: from the last), each partial rounded once (NUMERICS
 *         4.6)
 * VJP:    the same of dy, the other way round
 * Errors: TL_ESHAPE TL_EDTYPE
 * The op runs over the last dim; another dim is brought there by a view.
 */
#include "ops/build.h"

typedef struct {
    bool reverse;
} cumsum_attrs;

static const tl_attr cumsum_schema[] = {{"reverse", TL_ATTR_BOOL, offsetof(cumsum_attrs, reverse)},
                                        {0}};

static tl_status cumsum_shape(tl_call *c)
{
    if (!tl_dtype_is_float(c->in[0]->dtype))
        return tl_call_fail(c, TL_EDTYPE, "x is %s; floats are needed (cast it)",
                            tl_dtype_name(c->in[0]->dtype));
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

enum { BLOCK = 256 };

/* m partials from `at` of a row on, acc continued. */
static double block(const job *j, int64_t row, int64_t at, int64_t m, double acc)
{
    double part[BLOCK];
    int64_t first = row * j->n + at;
    for (int64_t k = 0; k < m; k++) {
        int64_t i = j->reverse ? m - 1 - k : k;
        acc += j->x.dtype == TL_F64 ? ((const double *)j->x.data)[first + i]
                                    : (double)((const float *)j->x.data)[first + i];
        part[i] = acc + 0;
    }
    tl_isa_now()->convert->cast(m, TL_F64, part, j->y->dtype,
                                (char *)j->y->data + first * (int64_t)tl_dtype_size(j->y->dtype));
    return acc;
}

static void cumsum_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    int64_t blocks = (j->n + BLOCK - 1) / BLOCK;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        double acc = 0;
        for (int64_t b = 0; b < blocks; b++) {
            int64_t at = (j->reverse ? blocks - 1 - b : b) * BLOCK,
                    m = j->n - at < BLOCK ? j->n - at : BLOCK;
            acc = block(j, r, at, m, acc);
        }
    }
}

static tl_status cumsum_forward(tl_call *c)
{
    job j = {.y = &c->out[0],
             .n = c->in[0]->dim[c->in[0]->ndim - 1],
             .reverse = ((const cumsum_attrs *)c->attrs)->reverse};
    TL_TRY(tl_as_compute(c, c->in[0], &j.x));
    if (tl_array_count(&j.x) > 0)
        tl_parallel_for(tl_array_count(&j.x) / j.n, 1 + 8192 / j.n, cumsum_rows, &j);
    return TL_OK;
}

static void cumsum_vjp(tl_vjp *g)
{
    cumsum_attrs a = {!((const cumsum_attrs *)g->attrs)->reverse};
    g->dx[0] = tl_apply1(TL_AT(g->t), &tl_op_cumsum, &a, g->dy, 1);
}

const tl_op tl_op_cumsum = {.name = "cumsum",
                            .n_in = 1,
                            .n_out = 1,
                            .traits = TL_REDUCTION,
                            .shape = cumsum_shape,
                            .forward = cumsum_forward,
                            .attr = cumsum_schema,
                            .attr_size = sizeof(cumsum_attrs),
                            .vjp = cumsum_vjp,
                            .batch = tl_batch_rows};

tl_tensor tl_cumsum_at(tl_at at, tl_tensor x, int dim, bool reverse)
{
    cumsum_attrs a = {reverse};
    int nd = tl_shape_of(at.tape, x).ndim;
    if (nd == 0 || dim == -1 || dim == nd - 1)
        return tl_apply1(at, &tl_op_cumsum, &a, &x, 1);
    tl_tensor last = tl_transpose_at(at, x, dim, -1);
    return tl_transpose_at(at, tl_apply1(at, &tl_op_cumsum, &a, &last, 1), dim, -1);
}
