/* embedding(table, ids): rows of table; scatter_add(dy, ids): its gradient
 * Shape:  table (rows, n), ids (...) -> (..., n); scatter_add: dy (..., n), ids (...) -> (rows, n)
 * Dtype:  table any, dy any float; ids i64; scatter_add accumulates in the compute type, or
 *         (embedding_acc64) in f64
 * Bits:   rows copied; acc[id] = acc[id] + dy[row], rows ascending, from +0 or the accumulator
 *         (NUMERICS 9)
 * VJP:    each is the other's
 * Errors: TL_ESHAPE TL_EDTYPE TL_EINDEX (an id outside the table)
 */
#include "ops/build.h"

typedef struct {
    bool acc_f64; /* the gradient accumulates in f64 */
    int64_t rows; /* of scatter_add's result */
} embedding_attrs;

static const tl_attr embedding_schema[] = {TL_FIELD(embedding, acc_f64, BOOL), {0}};
static const tl_attr scatter_schema[] = {TL_FIELD(embedding, rows, I64),
                                         TL_FIELD(embedding, acc_f64, BOOL),
                                         {0}};

static tl_status check_ids(tl_call *c, const tl_array *ids, int64_t rows)
{
    const int64_t n = tl_array_count(ids);
    tl_cursor at = tl_cursor_at(ids, ids->ndim, 0);
    for (int64_t i = 0; i < n; i++, tl_cursor_next(&at)) {
        int64_t id = *(const int64_t *)tl_cursor_data(&at);
        if (id < 0 || id >= rows)
            return tl_call_fail(c, TL_EINDEX, "id %lld at position %lld; the table has %lld rows",
                                (long long)id, (long long)i, (long long)rows);
    }
    return TL_OK;
}

static tl_status embedding_shape(tl_call *c)
{
    const tl_array *w = c->in[0], *ids = c->in[1];
    if (ids->ndim + 1 > TL_MAX_DIMS)
        return tl_call_fail(
            c, TL_ESHAPE,
            "ids have shape %s: the result would have %d dims, at most %d are possible",
            TL_TEXT(ids), ids->ndim + 1, TL_MAX_DIMS);
    if (w->ndim != 2)
        return tl_call_fail(c, TL_ESHAPE, "the table has shape %s; (rows, n) is needed",
                            TL_TEXT(w));
    if (ids->dtype != TL_I64)
        return tl_call_fail(c, TL_EDTYPE, "ids are %s; I64 is needed", tl_dtype_name(ids->dtype));
    c->out[0] = *ids;
    c->out[0].dtype = w->dtype;
    c->out[0].dim[c->out[0].ndim++] = w->dim[1];
    return TL_OK;
}

static void copy_rows(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const tl_call *c = ctx;
    const tl_array *w = c->in[0], *ids = c->in[1];
    const int64_t n = w->dim[1], size = (int64_t)tl_dtype_size(w->dtype);
    const tl_shape row = TL_DIMS(n);
    tl_cursor at = tl_cursor_at(ids, ids->ndim, begin);
    for (int64_t i = begin; i < end; i++, tl_cursor_next(&at)) {
        const int64_t id = *(const int64_t *)tl_cursor_data(&at);
        tl_array src = tl_array_make(w->dtype, &row, (char *)w->data + id * w->stride[0] * size);
        tl_array dst = tl_array_make(w->dtype, &row, (char *)c->out[0].data + i * n * size);
        src.stride[0] = w->stride[1];
        if (src.stride[0] == 1)
            memcpy(dst.data, src.data, (size_t)(n * size));
        else
            tl_array_copy(&dst, &src);
    }
}

static tl_status embedding_forward(tl_call *c)
{
    const tl_array *w = c->in[0], *ids = c->in[1];
    TL_TRY(check_ids(c, ids, w->dim[0]));
    if (w->dim[1] > 0)
        tl_parallel_for(tl_array_count(ids), 1 + 16384 / (w->dim[1] + 1), copy_rows, c);
    return TL_OK;
}

static bool folds_in_f64(const void *attrs) { return ((const embedding_attrs *)attrs)->acc_f64; }

static void embedding_vjp(tl_vjp *g)
{
    embedding_attrs a = {folds_in_f64(g->attrs), tl_shape_of(g->t, g->in[0]).dim[0]};
    tl_tensor dx = tl_apply1(TL_AT(g->t), &tl_op_scatter_add, &a,
                             (tl_tensor[]){g->dy[0], g->in[1], g->acc[0]}, 3);
    bool last = a.acc_f64 && tl_is_none(g->acc[0]); /* nothing continues it: round it here */
    g->dx[0] = last ? tl_cast(g->t, dx, tl_dtype_compute(tl_dtype_of(g->t, g->dy[0]))) : dx;
}

/* Samples are ids, or columns of the table. */
static void embedding_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    if (in[0] == 1 && in[1] == TL_FREE)
        out[0] = (tl_batch)(c->out[0].ndim - 1);
    else
        out[0] = in[0] != TL_FREE || in[1] < 0 ? TL_MIXED : in[1];
}

const tl_op tl_op_embedding = {TL_NAMED(embedding, 2, 1),
                               .traits = TL_LOOKUP,
                               .shape = embedding_shape,
                               .forward = embedding_forward,
                               TL_ATTRS(embedding),
                               .vjp = embedding_vjp,
                               .saves_in = 2,
                               .folds = 1,
                               .folds_wide = folds_in_f64,
                               .batch = embedding_batch};

tl_tensor tl_embedding_at(tl_at at, tl_tensor table, tl_tensor ids)
{
    return tl_apply1(at, &tl_op_embedding, &(embedding_attrs){0}, (tl_tensor[]){table, ids}, 2);
}

tl_tensor tl_embedding_acc64_at(tl_at at, tl_tensor table, tl_tensor ids)
{
    embedding_attrs a = {.acc_f64 = true};
    return tl_apply1(at, &tl_op_embedding, &a, (tl_tensor[]){table, ids}, 2);
}

/* The padding row is read like any other, but takes no gradient (NUMERICS 9.5). */
tl_tensor tl_embedding_padded_at(tl_at at, tl_tensor table, tl_tensor ids, int64_t padding)
{
    tl_tensor y = tl_embedding_at(at, table, ids);
    tl_shape s = tl_shape_of(at.tape, ids);
    if (tl_failed(at.tape))
        return TL_NONE;
    const int64_t rows = tl_shape_of(at.tape, table).dim[0];
    if (padding < -rows || padding >= rows)
        return tl_reject(at, TL_EINDEX,
                         "embedding_padded: padding is row %lld; the table has %lld rows",
                         (long long)padding, (long long)rows);
    s.dim[s.ndim++] = 1;
    tl_tensor pads = tl_eq_at(at, ids, tl_integer(at, padding < 0 ? padding + rows : padding));
    return tl_where_at(at, tl_reshape_at(at, pads, s), tl_detach_at(at, y), y);
}

/* ---- scatter_add ---- */

static tl_status scatter_shape(tl_call *c)
{
    const embedding_attrs *at = c->attrs;
    const tl_array *dy = c->in[0], *ids = c->in[1];
    tl_array lead = *dy;
    lead.ndim--;
    if (dy->ndim != ids->ndim + 1 || !tl_array_same_shape(&lead, ids))
        return tl_call_fail(c, TL_ESHAPE, "dy %s for ids %s", TL_TEXT(dy), TL_TEXT(ids));
    TL_TRY(tl_need_indexed(c, "dy", dy, "ids", ids));
    tl_array out = tl_array_make(at->acc_f64 ? TL_F64 : tl_dtype_compute(dy->dtype),
                                 &TL_DIMS(at->rows, dy->dim[dy->ndim - 1]), NULL);
    return tl_continue(c, &out, out.dtype);
}

/* Columns [begin, end) of every row, in order. */
static void scatter_columns(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const tl_call *c = ctx;
    const tl_array *dy = c->in[0], *out = &c->out[0];
    const tl_row_table *k = tl_isa_now()->row;
    const int64_t count = tl_array_count(c->in[1]), n = out->dim[1], *ids = c->in[1]->data;
    tl_range_fn *fold = dy->dtype == TL_F64 ? k->fold64 : k->fold32;
    for (int64_t i = 0; i < count; i++) {
        const void *x = tl_flat_at(dy, i * n);
        if (out->dtype == TL_F64)
            fold(&(tl_norm_rows){.n = n, .rows = 1, .x = x, .fold = tl_flat_at(out, ids[i] * n)},
                 begin, end, 0);
        else
            k->accumulate32(end - begin, (const float *)x + begin,
                            (float *)out->data + ids[i] * n + begin);
    }
}

static tl_status scatter_forward(tl_call *c)
{
    TL_TRY(check_ids(c, c->in[1], c->out[0].dim[0]));
    if (c->in[2] == NULL)
        tl_clear(&c->out[0]);
    tl_parallel_for(c->out[0].dim[1], 1 + 65536 / (tl_array_count(c->in[1]) + 1), scatter_columns,
                    c);
    return TL_OK;
}

static void scatter_vjp(tl_vjp *g) { g->dx[0] = tl_embedding(g->t, g->dy[0], g->in[1]); }

/* If samples have ids of their own, their rows of dy add up in the table. If all share the ids,
 * samples can only be columns of dy, and so of the table. */
static void scatter_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const bool lead = in[0] >= 0 && in[0] < c->in[0]->ndim - 1;
    tl_batch a = in[0] == in[1] && lead ? TL_TOTAL : TL_MIXED;
    if (in[1] == TL_FREE)
        a = in[0] < 0 ? in[0] : lead ? TL_MIXED : 1;
    out[0] = tl_batch_continuing(a, c, in, 2);
}

const tl_op tl_op_scatter_add = {TL_NAMED(scatter_add, 3, 1),
                                 .optional = TL_BIT(2),
                                 .traits = TL_MUTATES | TL_REDUCTION | TL_WIDENED,
                                 .mutates = 2,
                                 .shape = scatter_shape,
                                 .forward = scatter_forward,
                                 .attr = scatter_schema,
                                 .attr_size = sizeof(embedding_attrs),
                                 .vjp = scatter_vjp,
                                 .saves_in = 2,
                                 .batch = scatter_batch};
