/* gather(x, ids, dim): y[..., i, ...] = x[..., ids[..., i, ...], ...]; scatter_add_dim: its
 * gradient; one_hot
 * Shape:  ids of x's rank, its other sizes at most x's -> y of ids' shape; scatter_add_dim(dy, ids)
 *         -> a given shape; one_hot: ids (...) -> (..., classes)
 * Dtype:  x any; ids i64; scatter_add_dim takes floats, adds in, and gives, the compute type;
 *         one_hot any
 * Bits:   elements copied; y[id] = y[id] + dy from +0, in ascending row-major order of ids
 *         (NUMERICS 9.2, 9.3)
 * VJP:    gather and scatter_add_dim are each other's; one_hot has none
 * Errors: TL_ESHAPE TL_EDTYPE TL_EINDEX (an id outside the dim)
 */
#include "ops/build.h"

typedef struct {
    tl_shape shape; /* of x; for gather not used */
    int64_t dim;
} gather_attrs;

static const tl_attr gather_schema[] = {{"dim", TL_ATTR_I64, offsetof(gather_attrs, dim)}, {0}};
static const tl_attr scatter_schema[] = {{"shape", TL_ATTR_SHAPE, offsetof(gather_attrs, shape)},
                                         {"dim", TL_ATTR_I64, offsetof(gather_attrs, dim)},
                                         {0}};

static tl_status check(tl_call *c, const tl_shape *x, tl_dtype dtype, const tl_array *ids, int *dim)
{
    char sx[TL_SHAPE_TEXT], si[TL_SHAPE_TEXT];
    if ((c->op != &tl_op_gather && !tl_dtype_is_float(dtype)) || ids->dtype != TL_I64)
        return tl_call_fail(c, TL_EDTYPE, "values %s, ids %s; a float and I64 are needed",
                            tl_dtype_name(dtype), tl_dtype_name(ids->dtype));
    *dim = tl_find_dim(c, x->ndim, ((const gather_attrs *)c->attrs)->dim);
    if (*dim < 0)
        return TL_ESHAPE;
    bool fits = ids->ndim == x->ndim;
    for (int i = 0; fits && i < x->ndim; i++)
        fits = i == *dim || ids->dim[i] <= x->dim[i];
    if (!fits)
        return tl_call_fail(
            c, TL_ESHAPE,
            "ids have shape %s for values of %s along dim %d: the other sizes can be at most these",
            tl_array_shape_text(si, ids), tl_shape_text(sx, x), *dim);
    return TL_OK;
}

/* Runs over ids, n of them at a time, from the i-th on: offsets in x of the elements they name, in
 * elements. */
typedef void each(void *ctx, int64_t i, int64_t n, const int64_t *offset);
enum { AT_ONCE = 128 };

/* Where the cursor's k-th id stands among those that are there: along dims that repeat them (stride
 * 0, as of index_select) it is the same. */
static long long place_of(const tl_array *ids, const tl_cursor *at, int64_t k)
{
    int64_t place = 0;
    for (int d = 0; d < ids->ndim; d++)
        if (ids->stride[d] != 0)
            place = place * ids->dim[d] + (d == ids->ndim - 1 ? k : at->at[d]);
    return place;
}

static tl_status locate(tl_call *c, const tl_array *ids, const tl_array *x, int dim, each *run,
                        void *ctx)
{
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
            run(ctx, i, m, offset);
        }
    }
    return TL_OK;
}

static tl_status gather_shape(tl_call *c)
{
    tl_shape s = tl_array_shape(c->in[0]);
    int dim;
    TL_TRY(check(c, &s, c->in[0]->dtype, c->in[1], &dim));
    c->out[0] = *c->in[1];
    c->out[0].dtype = c->in[0]->dtype;
    return TL_OK;
}

typedef struct {
    const char *x;
    char *y;
    size_t size;
} copier;

static void copy(void *ctx, int64_t i, int64_t n, const int64_t *offset)
{
    const copier *k = ctx;
    char *y = k->y + (size_t)i * k->size;
    for (int64_t j = 0; j < n && k->size == 4; j++) /* a size that is known is one instruction */
        memcpy(y + j * 4, k->x + offset[j] * 4, 4);
    for (int64_t j = 0; j < n && k->size != 4; j++)
        memcpy(y + (size_t)j * k->size, k->x + offset[j] * (int64_t)k->size, k->size);
}

static tl_status gather_forward(tl_call *c)
{
    copier k = {c->in[0]->data, c->out[0].data, tl_dtype_size(c->in[0]->dtype)};
    return locate(c, c->in[1], c->in[0],
                  tl_find_dim(c, c->in[0]->ndim, ((const gather_attrs *)c->attrs)->dim), copy, &k);
}

static void gather_vjp(tl_vjp *g)
{
    g->dx[0] = tl_scatter_add_dim(g->t, g->dy[0], g->in[1],
                                  (int)((const gather_attrs *)g->attrs)->dim,
                                  tl_shape_of(g->t, g->in[0]));
}

/* Not along dim, and the samples of both, all of them. */
static void gather_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const int nd = c->out[0].ndim;
    const tl_batch a = tl_batch_beside(tl_batch_meet(c, in, TL_ALL_INPUTS, nd), nd,
                                       ((const gather_attrs *)c->attrs)->dim);
    const tl_array *x = c->in[in[0] == TL_FREE];
    out[0] = a < 0 || c->out[0].dim[a] != x->dim[a] ? TL_MIXED : a;
}

const tl_op tl_op_gather = {.name = "gather",
                            .n_in = 2,
                            .n_out = 1,
                            .shape = gather_shape,
                            .forward = gather_forward,
                            .attr = gather_schema,
                            .attr_size = sizeof(gather_attrs),
                            .vjp = gather_vjp,
                            .saves_in = 2,
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
    int dim;
    tl_err e = {.status = TL_OK};
    char sd[TL_SHAPE_TEXT], si[TL_SHAPE_TEXT];
    if (tl_shape_check(&a->shape, tl_dtype_compute(c->in[0]->dtype), &e) != TL_OK)
        return tl_call_fail(c, e.status, "%s", e.message);
    TL_TRY(check(c, &a->shape, c->in[0]->dtype, c->in[1], &dim));
    if (!tl_array_same_shape(c->in[0], c->in[1]))
        return tl_call_fail(c, TL_ESHAPE, "dy has shape %s, ids %s",
                            tl_array_shape_text(sd, c->in[0]), tl_array_shape_text(si, c->in[1]));
    c->out[0] = tl_array_make(tl_dtype_compute(c->in[0]->dtype), &a->shape, NULL);
    return TL_OK;
}

typedef struct {
    const tl_array *dy;
    void *y;
} adder;

static void add(void *ctx, int64_t i, int64_t n, const int64_t *offset)
{
    const adder *k = ctx;
    const bool wide = k->dy->dtype == TL_F64;
    const double *dy64 = k->dy->data;
    const float *dy32 = k->dy->data;
    double *y64 = k->y;
    float *y32 = k->y;
    for (int64_t j = 0; j < n && wide; j++)
        y64[offset[j]] = (y64[offset[j]] + dy64[i + j]) + 0;
    for (int64_t j = 0; j < n && !wide; j++)
        y32[offset[j]] = (y32[offset[j]] + dy32[i + j]) + 0;
}

static tl_status scatter_forward(tl_call *c)
{
    adder k = {c->in[0], c->out[0].data};
    memset(k.y, 0, (size_t)tl_array_count(&c->out[0]) * tl_dtype_size(c->out[0].dtype));
    return locate(c, c->in[1], &c->out[0],
                  tl_find_dim(c, c->out[0].ndim, ((const gather_attrs *)c->attrs)->dim), add, &k);
}

static void scatter_vjp(tl_vjp *g)
{
    g->dx[0] = tl_gather(g->t, g->dy[0], g->in[1], (int)((const gather_attrs *)g->attrs)->dim);
}

const tl_op tl_op_scatter_add_dim = {.name = "scatter_add_dim",
                                     .n_in = 2,
                                     .n_out = 1,
                                     .traits = TL_REDUCTION | TL_WIDENED,
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

static const tl_attr hot_schema[] = {{"classes", TL_ATTR_I64, offsetof(hot_attrs, classes)},
                                     {"dtype", TL_ATTR_DTYPE, offsetof(hot_attrs, dtype)},
                                     {0}};

static tl_status hot_shape(tl_call *c)
{
    const hot_attrs *a = c->attrs;
    const tl_array *ids = c->in[0];
    if (ids->dtype != TL_I64 || tl_dtype_size(a->dtype) == 0)
        return tl_call_fail(c, TL_EDTYPE, "ids are %s; I64 is needed, and a dtype for the result",
                            tl_dtype_name(ids->dtype));
    if (a->classes < 0 || ids->ndim >= TL_MAX_DIMS)
        return tl_call_fail(c, TL_ESHAPE, "%lld classes for ids of %d dims", (long long)a->classes,
                            ids->ndim);
    c->out[0] = *ids;
    c->out[0].dtype = c->mode & TL_SHADOW && tl_dtype_is_float(a->dtype) ? TL_F64 : a->dtype;
    c->out[0].dim[c->out[0].ndim++] = a->classes;
    return TL_OK;
}

static tl_status hot_forward(tl_call *c)
{
    int64_t classes = ((const hot_attrs *)c->attrs)->classes, n = tl_array_count(c->in[0]);
    tl_array *y = &c->out[0];
    size_t size = tl_dtype_size(y->dtype);
    const double one = 1;
    tl_cursor at = tl_cursor_at(c->in[0], c->in[0]->ndim, 0);
    if (n * classes > 0)
        memset(y->data, 0, (size_t)(n * classes) * size);
    for (int64_t i = 0; i < n; i++, tl_cursor_next(&at)) {
        int64_t id = *(const int64_t *)tl_cursor_data(&at);
        if (id < 0 || id >= classes)
            return tl_call_fail(c, TL_EINDEX, "id %lld at position %lld; there are %lld classes",
                                (long long)id, (long long)i, (long long)classes);
        tl_isa_now()->convert->cast(1, TL_F64, &one, y->dtype,
                                    (char *)y->data + (size_t)(i * classes + id) * size);
    }
    return TL_OK;
}

static void hot_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    (void)c, out[0] = in[0] < 0 ? TL_MIXED : in[0];
}

const tl_op tl_op_one_hot = {.name = "one_hot",
                             .n_in = 1,
                             .n_out = 1,
                             .traits = TL_NONDIFF,
                             .shape = hot_shape,
                             .forward = hot_forward,
                             .attr = hot_schema,
                             .attr_size = sizeof(hot_attrs),
                             .batch = hot_batch};

tl_tensor tl_one_hot_at(tl_at at, tl_tensor ids, int64_t classes, tl_dtype dtype)
{
    hot_attrs a = {classes, dtype};
    return tl_apply1(at, &tl_op_one_hot, &a, &ids, 1);
}

/* ---- index_select: gather with ids that are the same for all other dims ---- */
tl_tensor tl_index_select_at(tl_at at, tl_tensor x, int dim, tl_tensor ids)
{
    tl_shape s = tl_shape_of(at.tape, x), n = tl_shape_of(at.tape, ids), one = s;
    if (tl_dims_of(at, "index_select", x, TL_DIMS(dim)) < 0)
        return TL_NONE;
    if (s.ndim == 0 || n.ndim != 1) {
        tl_tape_fail(at, TL_ESHAPE, "index_select: x has %d dims, ids %d; ids have one", s.ndim,
                     n.ndim);
        return TL_NONE;
    }
    for (int i = 0; i < s.ndim; i++)
        one.dim[i] = 1;
    int d = dim < 0 ? dim + s.ndim : dim;
    s.dim[d] = one.dim[d] = n.dim[0];
    return tl_gather_at(at, x, tl_expand_at(at, tl_reshape_at(at, ids, one), s), d);
}
