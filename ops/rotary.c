/* rotary: y = r1*x + r2*R(x); half R(x) = (-x2, x1), interleaved R(x)[2k] = -x[2k+1], R(x)[2k+1] =
 * x[2k]
 * Shape:  x (..., d); r1, r2 (..., n) with n <= d even, broadcasting to x's leading dims; dims
 *         beyond n are copied
 * Dtype:  f16 bf16 f32 f64; tables of x's dtype, or f32 with f16 and bf16
 * Bits:   each product rounded, then the sum (NUMERICS 8)
 * VJP:    dx = r1*g - R(r2*g)  (this op, turned);  dr1 = g*x, dr2 = g*R(x), folded by the engine
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (pairing)
 * Source: Su et al. 2021, eq. 34
 */
#include "ops/rotary.h"

static const tl_attr rotary_schema[] = {{"pairing", TL_ATTR_I64,
                                         offsetof(tl_rotary_attrs, pairing)},
                                        {"turned", TL_ATTR_BOOL, offsetof(tl_rotary_attrs, turned)},
                                        {0}};

tl_status tl_rotary_check_table(tl_call *c, const tl_array *x, const tl_array *r, int64_t n)
{
    char sx[TL_SHAPE_TEXT], sr[TL_SHAPE_TEXT];
    int lead = x->ndim - r->ndim;
    bool fits = lead >= 0 && r->ndim > 0 && r->dim[r->ndim - 1] == n;
    for (int i = 0; fits && i < r->ndim - 1; i++)
        fits = r->dim[i] == 1 || r->dim[i] == x->dim[i + lead];
    if (!fits)
        return tl_call_fail(c, TL_ESHAPE, "table %s does not broadcast to x %s",
                            tl_array_shape_text(sr, r), tl_array_shape_text(sx, x));
    if (r->dtype != x->dtype && !(r->dtype == TL_F32 && tl_dtype_compute(x->dtype) == TL_F32))
        return tl_call_fail(c, TL_EDTYPE, "table is %s, x %s; tables have x's dtype or f32",
                            tl_dtype_name(r->dtype), tl_dtype_name(x->dtype));
    return TL_OK;
}

/* x, r1, r2 and the pairing fit together; out[0] is like x. */
static tl_status rotary_shape(tl_call *c)
{
    const tl_rotary_attrs *a = c->attrs;
    const tl_array *x = c->in[0], *r1 = c->in[1];
    if (a->pairing != TL_ROTARY_HALF && a->pairing != TL_ROTARY_INTERLEAVED)
        return tl_call_fail(c, TL_EDOMAIN,
                            "pairing %lld; say TL_ROTARY_HALF or TL_ROTARY_INTERLEAVED",
                            (long long)a->pairing);
    if (!tl_dtype_is_float(x->dtype))
        return tl_call_fail(c, TL_EDTYPE, "x is %s; floats are needed", tl_dtype_name(x->dtype));
    if (x->ndim == 0 || r1->ndim == 0)
        return tl_call_fail(c, TL_ESHAPE, "x and its tables need at least one dim");
    int64_t n = r1->dim[r1->ndim - 1], d = x->dim[x->ndim - 1];
    if (n % 2 != 0 || n > d)
        return tl_call_fail(c, TL_ESHAPE,
                            "%lld rotated dims; an even number up to x's %lld is needed",
                            (long long)n, (long long)d);
    TL_TRY(tl_rotary_check_table(c, x, r1, n));
    TL_TRY(tl_rotary_check_table(c, x, c->in[2], n));
    c->out[0] = *x;
    return TL_OK;
}

typedef struct {
    const tl_rotary_attrs *a;
    tl_array x, r[2]; /* the same leading dims */
    const tl_array *y;
} job;

tl_status tl_rotary_run(tl_call *c, int64_t rows, int64_t n, tl_range_fn *body, void *ctx,
                        void **scratch)
{
    const int64_t grain = 1 + 8192 / n;
    *scratch = tl_scratch(c, (size_t)tl_parallel_width(rows, grain) * 4 * (size_t)n * 8, false);
    if (*scratch == NULL)
        return TL_ENOMEM;
    tl_parallel_for(rows, grain, body, ctx);
    return TL_OK;
}

/* Bytes that are asked for ahead where x does not fit the second cache: rows of it, of the result
 * and of two tables are more streams than a processor foresees. */
enum { AHEAD = 4096, FAR = 1 << 20 };

static void rotary_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    bool inter = j->a->pairing == TL_ROTARY_INTERLEAVED;
    int lead = j->x.ndim - 1;
    int64_t d = j->x.dim[lead], n = j->r[0].dim[lead];
    size_t unit = tl_dtype_size(j->x.dtype);
    tl_cursor cx = tl_cursor_at(&j->x, lead, begin), c1 = tl_cursor_at(&j->r[0], lead, begin),
              c2 = tl_cursor_at(&j->r[1], lead, begin);
    const bool ask = tl_array_contiguous(&j->x) && tl_array_count(&j->x) * (int64_t)unit > FAR;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const void *x = tl_cursor_data(&cx), *r1 = tl_cursor_data(&c1), *r2 = tl_cursor_data(&c2);
        char *y = (char *)j->y->data + (size_t)(r * d) * unit;
        for (size_t i = AHEAD; ask && i < AHEAD + (size_t)d * unit; i += 64) {
            __builtin_prefetch((const char *)x + i);
            __builtin_prefetch(y + i, 1);
        }
        if (j->x.dtype == TL_F64)
            tl_isa_now()->row->rotary64(n, x, r1, r2, inter, j->a->turned, (double *)(void *)y);
        else
            tl_isa_now()->row->rotary32(n, x, r1, r2, inter, j->a->turned, (float *)(void *)y);
        memcpy(y + (size_t)n * unit, (const char *)x + (size_t)n * unit, (size_t)(d - n) * unit);
        tl_cursor_next(&cx);
        tl_cursor_next(&c1);
        tl_cursor_next(&c2);
    }
}

static tl_status rotary_forward(tl_call *c)
{
    job j = {.a = c->attrs, .x = *c->in[0], .y = &c->out[0]};
    tl_shape s = tl_array_shape(&j.x);
    int64_t d = s.dim[s.ndim - 1];
    s.dim[s.ndim - 1] = c->in[1]->dim[c->in[1]->ndim - 1];
    j.r[0] = tl_array_expand(c->in[1], &s);
    j.r[1] = tl_array_expand(c->in[2], &s);
    tl_parallel_for(tl_array_count(&j.x) / d, 1 + 8192 / d, rotary_rows, &j);
    return TL_OK;
}

static tl_tensor rotate(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2, int64_t pairing,
                        bool turned)
{
    tl_rotary_attrs a = {pairing, turned};
    return tl_apply1(at, &tl_op_rotary, &a, (tl_tensor[]){x, r1, r2}, 3);
}

/* The rotated dims of x. */
static tl_tensor rotated_part(tl_tape *t, tl_tensor x, tl_tensor r)
{
    tl_shape sx = tl_shape_of(t, x), sr = tl_shape_of(t, r);
    int64_t n = sr.dim[sr.ndim - 1];
    return n == sx.dim[sx.ndim - 1] ? x : tl_slice(t, x, -1, 0, n, 1);
}

static tl_tensor turn(tl_tape *t, tl_tensor x, int64_t pairing)
{
    tl_rotary_attrs a = {pairing, false};
    return tl_apply1(TL_AT(t), &tl_op_rotary_turn, &a, &x, 1);
}

/* Forward y = r1*x + r2*R(x); turned y = r1*x - R(r2*x), so d r2 = R(g)*x there. */
static void rotary_vjp(tl_vjp *g)
{
    const tl_rotary_attrs *a = g->attrs;
    tl_tape *t = g->t;
    if (g->wants[0])
        g->dx[0] = rotate(TL_AT(t), g->dy[0], g->in[1], g->in[2], a->pairing, !a->turned);
    if (!g->wants[1] && !g->wants[2])
        return;
    tl_dtype c = tl_dtype_compute(tl_dtype_of(
        t, g->in[0])); /* products in the compute type: no rounding to f16 before the fold */
    tl_tensor x = tl_cast(t, rotated_part(t, g->in[0], g->in[1]), c),
              dy = tl_cast(t, rotated_part(t, g->dy[0], g->in[1]), c);
    if (g->wants[1])
        g->dx[1] = tl_mul(t, dy, x);
    if (g->wants[2])
        g->dx[2] = a->turned ? tl_mul(t, turn(t, dy, a->pairing), x)
                             : tl_mul(t, dy, turn(t, x, a->pairing));
}

/* x is read for the tables' gradients alone. */
static unsigned saves(unsigned wanted) { return (wanted & 6 ? 1u : 0) | 6u; }

/* clang-format off */
#define ROTARY(id)                                                                               \
    .name = #id, .n_in = 3, .n_out = 1, .attr = rotary_schema,                                   \
    .attr_size = sizeof(tl_rotary_attrs), .vjp = rotary_vjp, .saves_in = 7, .saves_for = saves,  \
    .batch = tl_batch_rows
const tl_op tl_op_rotary = {ROTARY(rotary), .traits = TL_ROWS, .shape = rotary_shape,
                            .forward = rotary_forward};
/* clang-format on */

tl_tensor tl_rotary_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2, tl_rotary_pairing pairing)
{
    return rotate(at, x, r1, r2, pairing, false);
}

tl_tensor tl_rotary_turned_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2,
                              tl_rotary_pairing pairing)
{
    return rotate(at, x, r1, r2, pairing, true);
}

/* ---- rotary_turn: R(x) by itself ---- */

static tl_status turn_shape(tl_call *c)
{
    const tl_array *x = c->in[0];
    if (x->ndim == 0 || x->dim[x->ndim - 1] % 2 != 0)
        return tl_call_fail(c, TL_ESHAPE, "the last dim must be even");
    c->out[0] = *x;
    return TL_OK;
}

static tl_status turn_forward(tl_call *c)
{
    const tl_rotary_attrs *a = c->attrs;
    const tl_array *x = c->in[0], *y = &c->out[0];
    int64_t d = x->dim[x->ndim - 1], rows = tl_array_count(x) / d, h = d / 2;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < d; i++) {
            bool first = a->pairing == TL_ROTARY_HALF ? i < h : i % 2 == 0;
            int64_t from = r * d + (a->pairing == TL_ROTARY_HALF ? (first ? i + h : i - h)
                                                                 : (first ? i + 1 : i - 1)),
                    to = r * d + i;
            if (x->dtype == TL_F64)
                ((double *)y->data)[to] = first ? -((double *)x->data)[from]
                                                : ((double *)x->data)[from];
            else
                ((float *)y->data)[to] = first ? -((float *)x->data)[from]
                                               : ((float *)x->data)[from];
        }
    return TL_OK;
}

static void turn_vjp(tl_vjp *g)
{
    g->dx[0] = tl_neg(g->t, turn(g->t, g->dy[0], ((const tl_rotary_attrs *)g->attrs)->pairing));
}

const tl_op tl_op_rotary_turn = {.name = "rotary_turn",
                                 .n_in = 1,
                                 .n_out = 1,
                                 .traits = TL_WIDENED,
                                 .shape = turn_shape,
                                 .forward = turn_forward,
                                 .attr = rotary_schema,
                                 .attr_size = sizeof(tl_rotary_attrs),
                                 .vjp = turn_vjp,
                                 .batch = tl_batch_rows};

/* ---- rotary_(x, r1, r2): rotary in place, on any strided view: x is consumed and changed where it
 * lies (a slice of a packed qkv, say). Shapes, dtypes, bits, VJP: as rotary (NUMERICS 8.4); tables
 * that need a gradient are refused by the engine when the call is recorded, since that gradient
 * reads x.   Errors: besides, TL_EINPLACE (a leaf or a table that needs a gradient) */

typedef struct {
    const tl_rotary_attrs *a;
    tl_array x, r[2]; /* the same leading dims */
    tl_dtype compute;
    void *scratch;
} inplace_job;

static void widen_row(tl_cursor *c, void *buf)
{
    const tl_array *r = c->a;
    tl_isa_now()->convert->widen(r->dim[r->ndim - 1], r->dtype, tl_cursor_data(c),
                                 r->stride[r->ndim - 1], buf);
    tl_cursor_next(c);
}

static void turn_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const inplace_job *j = ctx;
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
    TL_TRY(rotary_shape(c));
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
    inplace_job j = {.a = c->attrs, .x = c->out[0], .compute = tl_dtype_compute(c->out[0].dtype)};
    tl_shape s = tl_array_shape(&j.x);
    int64_t d = s.dim[s.ndim - 1];
    s.dim[s.ndim - 1] = c->in[1]->dim[c->in[1]->ndim - 1];
    j.r[0] = tl_array_expand(c->in[1], &s);
    j.r[1] = tl_array_expand(c->in[2], &s);
    return tl_array_count(&j.x) == 0
               ? TL_OK
               : tl_rotary_run(c, tl_array_count(&j.x) / d, d, turn_rows, &j, &j.scratch);
}

/* clang-format off */
const tl_op tl_op_rotary_ = {ROTARY(rotary_), .traits = TL_MUTATES, .mutates = 0,
                             .shape = inplace_shape, .forward = inplace_forward};
/* clang-format on */

tl_tensor tl_rotary_inplace_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2,
                               tl_rotary_pairing pairing)
{
    tl_rotary_attrs a = {pairing, false};
    return tl_apply1(at, &tl_op_rotary_, &a, (tl_tensor[]){x, r1, r2}, 3);
}
