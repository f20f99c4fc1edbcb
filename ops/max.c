/* max and min over dims; argmax over one
 * Shape:  the reduced dims go, or stay as 1; none of them may be empty
 * Dtype:  f16 bf16 f32 f64; argmax gives i64
 * Bits:   NaN wins, +0 > -0; argmax: the first index (NUMERICS 4.2, 4.4)
 * VJP:    max, min: dy shared equally among the elements equal to the extreme; argmax: none
 * Errors: TL_ESHAPE (empty) TL_EDTYPE
 */
#include "ops/build.h"

static tl_status max_shape(tl_call *c)
{
    const tl_array *x = c->in[0];
    TL_TRY(tl_reduce_shape(c));
    for (int i = 0; i < x->ndim; i++)
        if (((const tl_reduce_attrs *)c->attrs)->dims >> i & 1 && x->dim[i] == 0)
            return tl_call_fail(c, TL_ESHAPE, "dim %d of %s is empty and has no %s", i, TL_TEXT(x),
                                c->op == &tl_op_min ? "minimum" : "maximum");
    return TL_OK;
}

/* Rows of n elements, contiguous and in the compute type, and the array y of their results. */
typedef struct {
    tl_array rows, y;
    int64_t n;
    bool min;
} job;

/* Runs `body` over the rows of x, which has its reduced dims brought to the end. */
static tl_status over_rows(tl_call *c, tl_range_fn *body, bool min)
{
    const int64_t dims = ((const tl_reduce_attrs *)c->attrs)->dims;
    const tl_array *x = c->in[0];
    job j = {.y = c->out[0], .n = 1, .min = min};
    tl_array turned = *x;
    int w = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < x->ndim; i++)
            if ((dims >> i & 1) == pass) {
                turned.dim[w] = x->dim[i];
                turned.stride[w++] = x->stride[i];
                j.n *= pass ? x->dim[i] : 1;
            }
    TL_TRY(tl_as_compute(c, &turned, &j.rows));
    tl_parallel_for(tl_array_count(&j.y), 1 + 8192 / (j.n + 1), body, &j);
    return TL_OK;
}

static void extremes(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    for (int64_t r = begin; r < end; r++) {
        const void *x = tl_flat_at(&j->rows, r * j->n);
        if (j->rows.dtype == TL_F64) {
            ((double *)j->y.data)[r] = (j->min ? k->min64 : k->max64)(j->n, x);
        } else {
            float m = (j->min ? k->min32 : k->max32)(j->n, x);
            tl_isa_now()->convert->narrow(1, j->y.dtype, &m, tl_flat_at(&j->y, r), 1);
        }
    }
}

static tl_status max_forward(tl_call *c) { return over_rows(c, extremes, false); }
static tl_status min_forward(tl_call *c) { return over_rows(c, extremes, true); }

/* mask = (x == extreme), dx = dy / count(mask) where mask. In a row whose extreme is NaN nothing
 * equals it, and dx is +0. */
static void max_vjp(tl_vjp *g)
{
    const int64_t dims = ((const tl_reduce_attrs *)g->attrs)->dims;
    tl_tape *t = g->t;
    tl_tensor x = g->in[0];
    tl_shape kept = tl_reduce_kept(t, x, dims);
    tl_dtype c = tl_dtype_compute(tl_dtype_of(t, x));
    tl_tensor y = tl_shaped_back(g, g->out[0], kept), dy = tl_shaped_back(g, g->dy[0], kept);
    tl_tensor one = tl_scalar(t, c, 1), zero = tl_scalar(t, c, 0), mask = tl_eq(t, x, y);
    tl_tensor tied = tl_where(t, mask, one, zero);
    tl_tensor ties = tl_apply1(TL_AT(t), &tl_op_sum, &(tl_reduce_attrs){dims, true}, &tied, 1);
    g->dx[0] = tl_where(t, mask, tl_div(t, dy, ties), zero);
}

/* max is not linear: it cannot take a total. */
static void max_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_batch x = in[0] == TL_TOTAL ? TL_MIXED : in[0];
    tl_reduce_batch(c, &x, out);
}

/* clang-format off */
#define EXTREME(id)                                                                              \
    TL_NAMED(id, 1, 1), .traits = TL_REDUCTION, .shape = max_shape, .forward = id##_forward,     \
    TL_ATTRS(tl_reduce), .vjp = max_vjp, .saves_in = 1, .saves_out = 1, .batch = max_batch
/* clang-format on */
const tl_op tl_op_max = {EXTREME(max)};
const tl_op tl_op_min = {EXTREME(min)};

tl_tensor tl_max_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims)
{
    return tl_reduce_at(at, &tl_op_max, x, dims, keepdims);
}
tl_tensor tl_min_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims)
{
    return tl_reduce_at(at, &tl_op_min, x, dims, keepdims);
}

/* ---- argmax ---- */

static tl_status argmax_shape(tl_call *c)
{
    TL_TRY(max_shape(c));
    c->out[0].dtype = TL_I64;
    return TL_OK;
}

static int64_t first_max(const tl_array *rows, int64_t r, int64_t n)
{
    int64_t best = 0;
    double most = tl_number_at(rows, r * n);
    for (int64_t i = 1; i < n && !isnan(most); i++) {
        const double x = tl_number_at(rows, r * n + i);
        if (isnan(x) || x > most || (x == most && x == 0 && !signbit(x) && signbit(most))) {
            best = i;
            most = x;
        }
    }
    return best;
}

static void first_places(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const job *j = ctx;
    for (int64_t r = begin; r < end; r++)
        ((int64_t *)j->y.data)[r] = first_max(&j->rows, r, j->n);
}

static tl_status argmax_forward(tl_call *c) { return over_rows(c, first_places, false); }

const tl_op tl_op_argmax = {TL_NAMED(argmax, 1, 1), .traits = TL_REDUCTION | TL_NONDIFF,
                            .shape = argmax_shape,  .forward = argmax_forward,
                            TL_ATTRS(tl_reduce),    .batch = max_batch};

tl_tensor tl_argmax_at(tl_at at, tl_tensor x, int dim, bool keepdims)
{
    return tl_reduce_at(at, &tl_op_argmax, x, TL_DIMS(dim), keepdims);
}
