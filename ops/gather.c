/* gather(x, ids, dim): y[..., i, ...] = x[..., ids[..., i, ...], ...]; scatter_add_dim: its
 * gradient; one_hot
 * Shape:  ids of x's rank, its other sizes at most x's -> y of ids' shape; scatter_add_dim(dy, ids)
 *         -> a given shape; one_hot: ids (...) -> (..., classes)
 * Dtype:  x any; ids i64; scatter_add_dim takes floats and adds in the compute type, which its
 *         result has; one_hot any
 * Bits:   elements copied; y[id] = y[id] + dy from +0, in ascending row-major order of ids
 *         (NUMERICS 9.2, 9.3)
 * VJP:    gather and scatter_add_dim are each other's; one_hot has none
 * Errors: TL_ESHAPE TL_EDTYPE TL_EINDEX (an id outside the dim)
 */
#include "ops/build.h"

typedef struct {
    tl_shape shape; /* of scatter_add_dim's result */
    int64_t dim;
} gather_attrs;

static const tl_attr gather_schema[] = {TL_FIELD(gather, dim, DIM), {0}};
static const tl_attr scatter_schema[] = {TL_FIELD(gather, shape, SHAPE),
                                         TL_FIELD(gather, dim, DIM),
                                         {0}};

/* Checks the ids for values of shape x along the attribute dim. Input 0 has the values' dtype. */
static tl_status check(tl_call *c, const tl_shape *x)
{
    const tl_array *ids = c->in[1];
    if (c->op != &tl_op_gather || ids->dtype != TL_I64)
        TL_TRY(tl_need_indexed(c, "values", c->in[0], "ids", ids));
    const int dim = tl_find_dim(c, x->ndim, ((const gather_attrs *)c->attrs)->dim);
    if (dim < 0)
        return TL_ESHAPE;
    bool fits = ids->ndim == x->ndim;
    for (int i = 0; fits && i < x->ndim; i++)
        fits = i == dim || ids->dim[i] <= x->dim[i];
    if (!fits)
        return tl_call_fail(
            c, TL_ESHAPE,
            "ids have shape %s for values of %s along dim %d: the other sizes can be at most these",
            TL_TEXT(ids), TL_TEXT_OF(x), dim);
    return TL_OK;
}

/* Called for n ids, from the i-th on, with the offsets in x, in elements, that they name. */
typedef void each(tl_call *c, int64_t i, int64_t n, const int64_t *offset);
enum { AT_ONCE = 128 };

/* The position, for a message, of the cursor's k-th id among those that were given: dims that
 * repeat them (stride 0, as in index_select) do not count. */
static long long place_of(const tl_array *ids, const tl_cursor *at, int64_t k)
{
    int64_t place = 0;
    for (int d = 0; d < ids->ndim; d++)
        if (ids->stride[d] != 0)
            place = place * ids->dim[d] + (d == ids->ndim - 1 ? k : at->at[d]);
    return place;
}

/* Calls `run` for all ids, in row-major order. */
static tl_status locate(tl_call *c, const tl_array *x, each *run)
{
    const tl_array *ids = c->in[1];
    const int dim = tl_dim_from_front(((const gather_attrs *)c->attrs)->dim, x->ndim);
    int64_t offset[AT_ONCE];
    const int last = ids->ndim - 1;
    const int64_t n = tl_array_count(ids), by = dim == last ? 0 : x->stride[last];
    tl_cursor at = tl_cursor_at(ids, last, 0);
    for (int64_t i = 0; i < n; tl_cursor_next(&at)) {
        const int64_t *row = tl_cursor_data(&at);
        int64_t start = 0;
        for (int d = 0; d < last; d++)
            start += d == dim ? 0 : at.at[d] * x->stride[d];
        for (int64_t k = 0, m = 0; k < ids->dim[last]; i += m, k += m) {
            for (m = 0; m < AT_ONCE && k + m < ids->dim[last]; m++) {
                const int64_t id = row[(k + m) * ids->stride[last]];
                if (id < 0 || id >= x->dim[dim])
                    return tl_call_fail(c, TL_EINDEX,
                                        "id %lld at position %lld; dim %d has size %lld",
                                        (long long)id, place_of(ids, &at, k + m), dim,
                                        (long long)x->dim[dim]);
                offset[m] = start + id * x->stride[dim] + (k + m) * by;
            }
            run(c, i, m, offset);
        }
    }
    return TL_OK;
}

static tl_status gather_shape(tl_call *c)
{
    tl_shape s = tl_array_shape(c->in[0]);
    TL_TRY(check(c, &s));
    c->out[0] = *c->in[1];
    c->out[0].dtype = c->in[0]->dtype;
    return TL_OK;
}

static void copy(tl_call *c, int64_t i, int64_t n, const int64_t *offset)
{
    const size_t size = tl_dtype_size(c->in[0]->dtype);
    const char *x = c->in[0]->data;
    char *y = (char *)c->out[0].data + (size_t)i * size;
    for (int64_t j = 0; j < n && size == 4; j++) /* a copy of known size is one instruction */
        memcpy(y + j * 4, x + offset[j] * 4, 4);
    for (int64_t j = 0; j < n && size != 4; j++)
        memcpy(y + (size_t)j * size, x + offset[j] * (int64_t)size, size);
}

static tl_status gather_forward(tl_call *c) { return locate(c, c->in[0], copy); }

static void gather_vjp(tl_vjp *g)
{
    g->dx[0] = tl_scatter_add_dim(g->t, g->dy[0], g->in[1],
                                  (int)((const gather_attrs *)g->attrs)->dim,
                                  tl_shape_of(g->t, g->in[0]));
}

/* Samples lie along an axis other than dim, and ids have all samples of x. */
static void gather_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const int nd = c->out[0].ndim;
    const tl_batch a = tl_batch_beside(tl_batch_meet(c, in, TL_ALL_INPUTS, nd), nd,
                                       ((const gather_attrs *)c->attrs)->dim);
    const tl_array *x = c->in[in[0] == TL_FREE];
    out[0] = a < 0 || c->out[0].dim[a] != x->dim[a] ? TL_MIXED : a;
}

const tl_op tl_op_gather = {TL_NAMED(gather, 2, 1),    .shape = gather_shape,
                            .forward = gather_forward, TL_ATTRS(gather),
                            .vjp = gather_vjp,         .saves_in = 2,
                            .batch = gather_batch};

tl_tensor tl_gather_at(tl_at at, tl_tensor x, tl_tensor ids, int dim)
{
    gather_attrs a = {.dim = dim};
    return tl_apply1(at, &tl_op_gather, &a, (tl_tensor[]){x, ids}, 2);
}

/* ---- scatter_add_dim ---- */

static tl_status scatter_shape(tl_call *c)
{
    const gather_attrs *a = c->attrs;
    TL_TRY(tl_need_shape(c, &a->shape, tl_dtype_compute(c->in[0]->dtype)));
    TL_TRY(check(c, &a->shape));
    if (!tl_array_same_shape(c->in[0], c->in[1]))
        return tl_call_fail(c, TL_ESHAPE, "dy has shape %s, ids %s", TL_TEXT(c->in[0]),
                            TL_TEXT(c->in[1]));
    c->out[0] = tl_array_make(tl_dtype_compute(c->in[0]->dtype), &a->shape, NULL);
    return TL_OK;
}

static void add(tl_call *c, int64_t i, int64_t n, const int64_t *offset)
{
    const bool wide = c->in[0]->dtype == TL_F64;
    const double *dy64 = c->in[0]->data;
    const float *dy32 = c->in[0]->data;
    double *y64 = c->out[0].data;
    float *y32 = c->out[0].data;
    for (int64_t j = 0; j < n && wide; j++)
        y64[offset[j]] = (y64[offset[j]] + dy64[i + j]) + 0;
    for (int64_t j = 0; j < n && !wide; j++)
        y32[offset[j]] = (y32[offset[j]] + dy32[i + j]) + 0;
}

static tl_status scatter_forward(tl_call *c)
{
    tl_clear(&c->out[0]);
    return locate(c, &c->out[0], add);
}

static void scatter_vjp(tl_vjp *g)
{
    g->dx[0] = tl_gather(g->t, g->dy[0], g->in[1], (int)((const gather_attrs *)g->attrs)->dim);
}

const tl_op tl_op_scatter_add_dim = {TL_NAMED(scatter_add_dim, 2, 1),
                                     .traits = TL_REDUCTION | TL_WIDENED | TL_LOOKUP,
                                     .shape = scatter_shape,
                                     .forward = scatter_forward,
                                     .attr = scatter_schema,
                                     .attr_size = sizeof(gather_attrs),
                                     .vjp = scatter_vjp,
                                     .saves_in = 2,
                                     .batch = gather_batch};

tl_tensor tl_scatter_add_dim_at(tl_at at, tl_tensor dy, tl_tensor ids, int dim, tl_shape shape)
{
    gather_attrs a = {shape, dim};
    return tl_apply1(at, &tl_op_scatter_add_dim, &a, (tl_tensor[]){dy, ids}, 2);
}

/* ---- one_hot ---- */

typedef struct {
    int64_t classes;
    tl_dtype dtype;
} hot_attrs;

static const tl_attr hot_schema[] = {TL_FIELD(hot, classes, I64), TL_FIELD(hot, dtype, DTYPE), {0}};

static tl_status hot_shape(tl_call *c)
{
    const hot_attrs *a = c->attrs;
    const tl_array *ids = c->in[0];
    if (ids->dtype != TL_I64 || tl_dtype_size(a->dtype) == 0)
        return tl_call_fail(c, TL_EDTYPE, "ids are %s; I64 is needed, and a dtype for the result",
                            tl_dtype_name(ids->dtype));
    if (a->classes < 0 || ids->ndim >= TL_MAX_DIMS)
        return tl_call_fail(c, TL_ESHAPE,
                            "%lld classes for ids of %d dims; a tensor has up to %d dims",
                            (long long)a->classes, ids->ndim, TL_MAX_DIMS);
    c->out[0] = *ids;
    c->out[0].dtype = c->mode & TL_SHADOW && tl_dtype_is_float(a->dtype) ? TL_F64 : a->dtype;
    c->out[0].dim[c->out[0].ndim++] = a->classes;
    return TL_OK;
}

static tl_status hot_forward(tl_call *c)
{
    int64_t classes = ((const hot_attrs *)c->attrs)->classes, n = tl_array_count(c->in[0]);
    tl_array *y = &c->out[0];
    const size_t size = tl_dtype_size(y->dtype);
    tl_cursor at = tl_cursor_at(c->in[0], c->in[0]->ndim, 0);
    tl_clear(y);
    for (int64_t i = 0; i < n; i++, tl_cursor_next(&at)) {
        int64_t id = *(const int64_t *)tl_cursor_data(&at);
        if (id < 0 || id >= classes)
            return tl_call_fail(c, TL_EINDEX, "id %lld at position %lld; there are %lld classes",
                                (long long)id, (long long)i, (long long)classes);
        tl_element_put(y->dtype, (char *)y->data + (size_t)(i * classes + id) * size, 1);
    }
    return TL_OK;
}

static void hot_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    (void)c, out[0] = in[0] < 0 ? TL_MIXED : in[0];
}

const tl_op tl_op_one_hot = {TL_NAMED(one_hot, 1, 1), .traits = TL_NONDIFF | TL_LOOKUP,
                             .shape = hot_shape,      .forward = hot_forward,
                             TL_ATTRS(hot),           .batch = hot_batch};

tl_tensor tl_one_hot_at(tl_at at, tl_tensor ids, int64_t classes, tl_dtype dtype)
{
    hot_attrs a = {classes, dtype};
    return tl_apply1(at, &tl_op_one_hot, &a, &ids, 1);
}

/* ---- index_select: gather with ids that are the same for all other dims ---- */
tl_tensor tl_index_select_at(tl_at at, tl_tensor x, int dim, tl_tensor ids)
{
    tl_shape s = tl_shape_of(at.tape, x), n = tl_shape_of(at.tape, ids), one = s;
    const int d = tl_dim_of(at, "index_select", x, dim);
    if (d < 0)
        return TL_NONE;
    if (s.ndim == 0 || n.ndim != 1)
        return tl_reject(at, TL_ESHAPE, "index_select: x has %d dims, ids %d; ids have one", s.ndim,
                         n.ndim);
    for (int i = 0; i < s.ndim; i++)
        one.dim[i] = 1;
    tl_shape all = one; /* one element for each possible id */
    all.dim[d] = s.dim[d];
    s.dim[d] = one.dim[d] = n.dim[0];
    ids = tl_reshape_at(at, ids, one);
    if (tl_shape_count(&s) == 0) { /* ids are still checked: add zeros that they look up */
        const tl_tensor zero = tl_expand_at(at, tl_scalar_at(at, TL_BOOL, 0), all);
        ids = tl_add_at(at, ids, tl_cast_at(at, tl_gather_at(at, zero, ids, d), TL_I64));
    }
    ids = tl_expand_at(at, ids, s);
    if (tl_batch_of(at.tape, x) == TL_FREE)
        tl_batch_samples_of(at.tape, ids, x, TL_FREE);
    return tl_gather_at(at, x, ids, d);
}
