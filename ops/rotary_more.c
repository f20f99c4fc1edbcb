/* rotary_: rotary in place, on any strided view; tables by position; half-width tables
 * rotary_(x, r1, r2): x consumed and changed where it lies (a slice of a packed qkv, say). Shapes,
 *         dtypes, bits, VJP: as rotary (NUMERICS 8.4); tables that need a gradient are refused by
 *         the engine when the call is recorded, since that gradient reads x.
 * positions(offset (b), start (b) or none, n): i64 (b, n), offset[i] + j, or max(0, offset[i] + j -
 *         start[i]). Not differentiable.
 * rotary_ids, rotary_offsets: rows of full tables (positions, d) by position ids - compositions of
 *         embedding and rotary; a position outside the table is embedding's error, with its numbers
 *         (NUMERICS 8.5).
 * rotary_widen(half (..., d/2)): a full table (..., d), each value where its pair's two elements
 *         are.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN TL_EINDEX TL_EINPLACE (a leaf or a table that needs a
 *         gradient)
 */
#include "ops/cursor.h"
#include "ops/rotary.h"

typedef struct {
    const tl_rotary_attrs *a;
    tl_array x, r[2]; /* the same leading dims */
    tl_dtype compute;
    tl_storage *scratch;
} job;

static void widen_row(tl_cursor *c, void *buf)
{
    const tl_array *r = c->a;
    tl_isa_now()->convert->widen(r->dim[r->ndim - 1], r->dtype, tl_cursor_data(c),
                                 r->stride[r->ndim - 1], buf);
    tl_cursor_next(c);
}

static void rotate_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    int lead = j->x.ndim - 1;
    int64_t n = j->r[0].dim[lead], step = j->x.stride[lead];
    bool inter = j->a->pairing == TL_ROTARY_INTERLEAVED;
    void *buf[4];
    tl_cursor cx = tl_cursor_at(&j->x, lead, begin), c1 = tl_cursor_at(&j->r[0], lead, begin),
              c2 = tl_cursor_at(&j->r[1], lead, begin);
    const tl_isa *isa = tl_isa_now();
    for (int i = 0; i < 4; i++)
        buf[i] = tl_rotary_row(j->scratch, thread, n, i);
    for (int64_t r = begin; r < end; r++, tl_cursor_next(&cx)) {
        void *x = tl_cursor_data(&cx);
        widen_row(&c1, buf[1]);
        widen_row(&c2, buf[2]);
        isa->convert->widen(n, j->x.dtype, x, step, buf[0]);
        if (j->compute == TL_F64)
            isa->row->rotary64(n, buf[0], buf[1], buf[2], inter, j->a->turned, buf[3]);
        else
            isa->row->rotary32(n, buf[0], buf[1], buf[2], inter, j->a->turned, buf[3]);
        isa->convert->narrow(n, j->x.dtype, buf[3], x, step);
    }
}

static tl_status inplace_shape(tl_call *c)
{
    const tl_array *x = c->in[0];
    TL_TRY(tl_rotary_shape(c));
    for (int i = 0; i < x->ndim; i++)
        if (x->dim[i] > 1 && x->stride[i] == 0)
            return tl_call_fail(
                c, TL_EINPLACE,
                "dim %d of x shows one element %lld times; it cannot be changed in place", i,
                (long long)x->dim[i]);
    return TL_OK;
}

static tl_status inplace_forward(tl_call *c)
{
    job j = {.a = c->attrs, .x = c->out[0], .compute = tl_dtype_compute(c->out[0].dtype)};
    tl_shape s = tl_array_shape(&j.x);
    int64_t d = s.dim[s.ndim - 1];
    s.dim[s.ndim - 1] = c->in[1]->dim[c->in[1]->ndim - 1];
    j.r[0] = tl_array_expand(c->in[1], &s);
    j.r[1] = tl_array_expand(c->in[2], &s);
    return tl_array_count(&j.x) == 0
               ? TL_OK
               : tl_rotary_run(c, tl_array_count(&j.x) / d, d, rotate_rows, &j, &j.scratch);
}

const tl_op tl_op_rotary_ = {.name = "rotary_",
                             .n_in = 3,
                             .n_out = 1,
                             .traits = TL_MUTATES,
                             .mutates = 0,
                             .shape = inplace_shape,
                             .forward = inplace_forward,
                             .attr = tl_rotary_schema,
                             .attr_size = sizeof(tl_rotary_attrs),
                             .vjp = tl_rotary_vjp,
                             .saves_in = 7,
                             .saves_for = tl_rotary_saves};

tl_tensor tl_rotary_inplace_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2,
                               tl_rotary_pairing pairing)
{
    tl_rotary_attrs a = {pairing, false};
    return tl_apply1(at, &tl_op_rotary_, &a, (tl_tensor[]){x, r1, r2}, 3);
}

/* ---- positions ---- */

typedef struct {
    int64_t n;
} positions_attrs;

static const tl_attr positions_schema[] = {{"n", TL_ATTR_I64, offsetof(positions_attrs, n)}, {0}};

static tl_status positions_shape(tl_call *c)
{
    const tl_array *offset = c->in[0];
    int64_t n = ((const positions_attrs *)c->attrs)->n;
    char text[TL_SHAPE_TEXT];
    if (offset->dtype != TL_I64)
        return tl_call_fail(c, TL_EDTYPE, "the offsets are %s; I64 is needed",
                            tl_dtype_name(offset->dtype));
    if (c->in[1] != NULL && (c->in[1]->dtype != TL_I64 || !tl_array_same_shape(c->in[1], offset)))
        return tl_call_fail(c, TL_ESHAPE,
                            "starts of shape %s, %s, for %lld offsets; as many I64 are needed",
                            tl_array_shape_text(text, c->in[1]), tl_dtype_name(c->in[1]->dtype),
                            (long long)tl_array_count(offset));
    if (offset->ndim != 1 || n < 0)
        return tl_call_fail(c, TL_ESHAPE, "offsets of shape %s for %lld positions; (b) is needed",
                            tl_array_shape_text(text, offset), (long long)n);
    c->out[0] = *offset;
    c->out[0].dim[c->out[0].ndim++] = n;
    return TL_OK;
}

static tl_status positions_forward(tl_call *c)
{
    int64_t b = c->in[0]->dim[0], n = ((const positions_attrs *)c->attrs)->n, *y = c->out[0].data;
    for (int64_t i = 0; i < b; i++) {
        int64_t first = *(const int64_t *)tl_array_at(c->in[0], i) -
                        (c->in[1] != NULL ? *(const int64_t *)tl_array_at(c->in[1], i) : 0);
        for (int64_t k = 0; k < n; k++)
            y[i * n + k] = first + k < 0 && c->in[1] != NULL ? 0 : first + k;
    }
    return TL_OK;
}

const tl_op tl_op_positions = {.name = "positions",
                               .n_in = 2,
                               .n_out = 1,
                               .optional = TL_BIT(1),
                               .traits = TL_NONDIFF,
                               .shape = positions_shape,
                               .forward = positions_forward,
                               .attr = positions_schema,
                               .attr_size = sizeof(positions_attrs)};

tl_tensor tl_positions_at(tl_at at, tl_tensor offset, tl_tensor start, int64_t n)
{
    positions_attrs a = {n};
    return tl_apply1(at, &tl_op_positions, &a, (tl_tensor[]){offset, start}, 2);
}

/* ---- tables by position ---- */

/* ids (b, s), or (s) for all, as x's leading dims with size 1 where they do not count. The batch is
 * axis 0, or 1 where axis 0 is s. */
static tl_tensor placed(tl_at at, tl_tensor x, tl_tensor ids, int seq)
{
    tl_shape sx = tl_shape_of(at.tape, x), si = tl_shape_of(at.tape, ids),
             to = {.ndim = sx.ndim - 1};
    char tx[TL_SHAPE_TEXT], ti[TL_SHAPE_TEXT];
    int batch = seq == 0 ? 1 : 0;
    bool ok = seq >= 0 && seq < sx.ndim - 1 &&
              (si.ndim == 1 || (si.ndim == 2 && batch < sx.ndim - 1 && si.dim[0] == sx.dim[batch]));
    if (tl_failed(at.tape))
        return TL_NONE;
    if (!ok || si.dim[si.ndim - 1] != sx.dim[seq]) {
        tl_tape_fail(at, TL_ESHAPE,
                     "rotary_ids: position ids %s for x %s with its sequence in dim %d",
                     tl_shape_text(ti, &si), tl_shape_text(tx, &sx), seq);
        return TL_NONE;
    }
    for (int i = 0; i < to.ndim; i++)
        to.dim[i] = i == seq ? sx.dim[seq] : i == batch && si.ndim == 2 ? si.dim[0] : 1;
    return tl_reshape_at(at, seq == 0 && si.ndim == 2 ? tl_transpose_at(at, ids, 0, 1) : ids, to);
}

tl_tensor tl_rotary_ids_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2, tl_tensor ids,
                           int seq, tl_rotary_pairing pairing)
{
    tl_tensor where = placed(at, x, ids, seq);
    return tl_rotary_at(at, x, tl_embedding_at(at, r1, where), tl_embedding_at(at, r2, where),
                        pairing);
}

tl_tensor tl_rotary_offsets_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2, tl_tensor offset,
                               int seq, tl_rotary_pairing pairing)
{
    tl_shape s = tl_shape_of(at.tape, x);
    return tl_rotary_ids_at(at, x, r1, r2,
                            tl_positions_at(at, offset, TL_NONE,
                                            seq >= 0 && seq < s.ndim ? s.dim[seq] : 0),
                            seq, pairing);
}

tl_tensor tl_rotary_widen_at(tl_at at, tl_tensor half, tl_rotary_pairing pairing)
{
    tl_shape s = tl_shape_of(at.tape, half);
    if (pairing == TL_ROTARY_HALF)
        return tl_concat_at(at, (tl_tensor[]){half, half}, 2, -1);
    if (pairing != TL_ROTARY_INTERLEAVED || s.ndim == 0) {
        tl_tape_fail(at, TL_EDOMAIN, "rotary_widen: pairing %d for a table of %d dims",
                     (int)pairing, s.ndim);
        return TL_NONE;
    }
    s.dim[s.ndim - 1] *= 2;
    return tl_reshape_at(at, tl_stack_at(at, (tl_tensor[]){half, half}, 2, -1), s);
}
