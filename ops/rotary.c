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
#include "ops/build.h"

typedef struct {
    int64_t pairing;
    bool turned; /* y = r1*x - R(r2*x) */
} rotary_attrs;

static const tl_attr rotary_schema[] = {TL_FIELD(rotary, pairing, I64),
                                        TL_FIELD(rotary, turned, BOOL),
                                        {0}};

/* Checks that table r ends in a dim of n, broadcasts to x, and has a dtype that goes with x's. */
static tl_status check_table(tl_call *c, const tl_array *x, const tl_array *r, int64_t n)
{
    if (r->ndim == 0 || r->dim[r->ndim - 1] != n ||
        !tl_dims_expand(r->ndim - 1, r->dim, x->ndim - 1, x->dim))
        return tl_call_fail(c, TL_ESHAPE, "table %s does not broadcast to x %s", TL_TEXT(r),
                            TL_TEXT(x));
    if (r->dtype != x->dtype && !(r->dtype == TL_F32 && tl_dtype_compute(x->dtype) == TL_F32))
        return tl_call_fail(c, TL_EDTYPE,
                            "table is %s, x %s; tables have x's dtype, or f32 beside f16",
                            tl_dtype_name(r->dtype), tl_dtype_name(x->dtype));
    return TL_OK;
}

static tl_status rotary_shape(tl_call *c)
{
    const rotary_attrs *a = c->attrs;
    const tl_array *x = c->in[0], *r1 = c->in[1];
    if (a->pairing != TL_ROTARY_HALF && a->pairing != TL_ROTARY_INTERLEAVED)
        return tl_call_fail(c, TL_EDOMAIN,
                            "pairing %lld; say TL_ROTARY_HALF or TL_ROTARY_INTERLEAVED",
                            (long long)a->pairing);
    TL_TRY(tl_need_float(c, x, "x"));
    if (x->ndim == 0 || r1->ndim == 0)
        return tl_call_fail(c, TL_ESHAPE, "x and its tables need at least one dim");
    int64_t n = r1->dim[r1->ndim - 1], d = x->dim[x->ndim - 1];
    if (n % 2 != 0 || n > d)
        return tl_call_fail(c, TL_ESHAPE,
                            "%lld rotated dims; an even number up to x's %lld is needed",
                            (long long)n, (long long)d);
    TL_TRY(check_table(c, x, r1, n));
    TL_TRY(check_table(c, x, c->in[2], n));
    c->out[0] = *x;
    return TL_OK;
}

/* A call of one of the three ops that rotate. Its arrays are expanded to the same leading dims, so
 * that row r of one belongs to row r of the others. */
enum { MOST = 6 };
typedef struct {
    tl_array a[MOST]; /* inputs (x, r1, r2) or (x1, x2, c, s), then outputs */
    int n_in, n_out, lead;
    int64_t n; /* elements of a table's row */
    tl_dtype compute;
    bool interleaved, turned;
    double *scratch; /* four rows for each thread */
} job;

static job job_of(const tl_call *c, bool interleaved, bool turned)
{
    job j = {.n_in = c->n_in,
             .n_out = c->n_out,
             .lead = c->in[0]->ndim - 1,
             .compute = tl_dtype_compute(c->in[0]->dtype),
             .interleaved = interleaved,
             .turned = turned};
    tl_shape s = tl_array_shape(c->in[0]);
    for (int i = 0; i < j.n_in; i++) {
        s.dim[j.lead] = j.n = c->in[i]->dim[c->in[i]->ndim - 1];
        j.a[i] = tl_array_expand(c->in[i], &s);
    }
    for (int i = 0; i < j.n_out; i++)
        j.a[j.n_in + i] = c->out[i];
    return j;
}

static void begin_at(const job *j, int64_t row, tl_cursor at[MOST])
{
    for (int i = 0; i < j->n_in + j->n_out; i++)
        at[i] = tl_cursor_at(&j->a[i], j->lead, row);
}
static void next_row(const job *j, tl_cursor at[MOST])
{
    for (int i = 0; i < j->n_in + j->n_out; i++)
        tl_cursor_next(&at[i]);
}

/* y = r1*x + r2*R(x) or, turned, r1*x - R(r2*x), of one row of n elements in the compute type. */
static void rotate_row(const job *j, int64_t n, const void *x, const void *r1, const void *r2,
                       void *y)
{
    TL_ROW(tl_isa_now()->row, j->compute == TL_F64, rotary, n, x, r1, r2, j->interleaved, j->turned,
           y);
}

/* Where x does not fit the second cache we prefetch this many bytes ahead: rows of x, of the result
 * and of two tables are more streams than a processor follows by itself. */
enum { AHEAD = 4096, FAR = 1 << 20 };

static void rotary_rows(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const job *j = ctx;
    const size_t unit = tl_dtype_size(j->compute), all = (size_t)j->a[0].dim[j->lead] * unit,
                 rotated = (size_t)j->n * unit;
    const bool far = tl_array_contiguous(&j->a[0]) &&
                     tl_array_count(&j->a[0]) * (int64_t)unit > FAR;
    tl_cursor at[MOST];
    begin_at(j, begin, at);
    for (int64_t r = begin; r < end; r++, next_row(j, at)) {
        const char *x = tl_cursor_data(&at[0]);
        char *y = tl_cursor_data(&at[3]);
        for (size_t i = AHEAD; far && i < AHEAD + all; i += 64) {
            __builtin_prefetch(x + i);
            __builtin_prefetch(y + i, 1);
        }
        rotate_row(j, j->n, x, tl_cursor_data(&at[1]), tl_cursor_data(&at[2]), y);
        memcpy(y + rotated, x + rotated, all - rotated);
    }
}

static tl_status rotary_forward(tl_call *c)
{
    const rotary_attrs *a = c->attrs;
    job j = job_of(c, a->pairing == TL_ROTARY_INTERLEAVED, a->turned);
    const int64_t d = j.a[0].dim[j.lead];
    tl_parallel_for(tl_array_count(c->in[0]) / d, 1 + 8192 / d, rotary_rows, &j);
    return TL_OK;
}

static tl_tensor rotate(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2, int64_t pairing,
                        bool turned)
{
    return tl_apply1(at, &tl_op_rotary, &(rotary_attrs){pairing, turned}, (tl_tensor[]){x, r1, r2},
                     3);
}

static tl_tensor turn(tl_tape *t, tl_tensor x, int64_t pairing)
{
    return tl_apply1(TL_AT(t), &tl_op_rotary_turn, &(rotary_attrs){pairing, false}, &x, 1);
}

/* The dims of x that are rotated, in the compute type, so that no product is rounded to f16 before
 * the fold. */
static tl_tensor rotated_part(tl_tape *t, tl_tensor x, tl_tensor r)
{
    tl_shape sx = tl_shape_of(t, x), sr = tl_shape_of(t, r);
    if (tl_failed(t))
        return TL_NONE;
    int64_t n = sr.dim[sr.ndim - 1];
    tl_tensor part = n == sx.dim[sx.ndim - 1] ? x : tl_slice(t, x, -1, 0, n, 1);
    return tl_cast(t, part, tl_dtype_compute(tl_dtype_of(t, x)));
}

/* Turned, y = r1*x - R(r2*x); therefore dr2 = R(g)*x. */
static void rotary_vjp(tl_vjp *g)
{
    const rotary_attrs *a = g->attrs;
    tl_tape *t = g->t;
    if (g->wants[0])
        g->dx[0] = rotate(TL_AT(t), g->dy[0], g->in[1], g->in[2], a->pairing, !a->turned);
    if (!g->wants[1] && !g->wants[2])
        return;
    tl_tensor x = rotated_part(t, g->in[0], g->in[1]), dy = rotated_part(t, g->dy[0], g->in[1]);
    if (g->wants[1])
        g->dx[1] = tl_mul(t, dy, x);
    if (g->wants[2])
        g->dx[2] = a->turned ? tl_mul(t, turn(t, dy, a->pairing), x)
                             : tl_mul(t, dy, turn(t, x, a->pairing));
}

/* Only the tables' gradients read x. */
static unsigned saves(unsigned wanted) { return (wanted & 6 ? 1u : 0) | 6u; }

/* clang-format off */
#define ROTARY(id)                                                                               \
    TL_NAMED(id, 3, 1), TL_ATTRS(rotary), .vjp = rotary_vjp, .saves_in = 7, .saves_for = saves,  \
    .batch = tl_batch_rows
/* clang-format on */
const tl_op tl_op_rotary = {ROTARY(rotary), .traits = TL_ROWS, .shape = rotary_shape,
                            .forward = rotary_forward};

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
    TL_TRY(tl_need_float(c, x, "x"));
    if (x->ndim == 0 || x->dim[x->ndim - 1] % 2 != 0)
        return tl_call_fail(c, TL_ESHAPE, "the last dim must be even");
    c->out[0] = *x;
    return TL_OK;
}

static tl_status turn_forward(tl_call *c)
{
    const tl_array *x = c->in[0], *y = &c->out[0];
    const bool half = ((const rotary_attrs *)c->attrs)->pairing == TL_ROTARY_HALF;
    const int64_t d = x->dim[x->ndim - 1], rows = tl_array_count(x) / d;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < d / 2; k++) {
            const int64_t first = r * d + (half ? k : 2 * k), second = first + (half ? d / 2 : 1);
            if (x->dtype == TL_F64) {
                ((double *)y->data)[first] = -((const double *)x->data)[second];
                ((double *)y->data)[second] = ((const double *)x->data)[first];
            } else {
                ((float *)y->data)[first] = -((const float *)x->data)[second];
                ((float *)y->data)[second] = ((const float *)x->data)[first];
            }
        }
    return TL_OK;
}

static void turn_vjp(tl_vjp *g)
{
    g->dx[0] = tl_neg(g->t, turn(g->t, g->dy[0], ((const rotary_attrs *)g->attrs)->pairing));
}

const tl_op tl_op_rotary_turn = {TL_NAMED(rotary_turn, 1, 1), TL_ATTRS(rotary),
                                 .traits = TL_WIDENED,        .shape = turn_shape,
                                 .forward = turn_forward,     .vjp = turn_vjp,
                                 .batch = tl_batch_rows};

/* ---- rows that the kernel cannot read or write where they lie go through scratch ---- */

/* Operand k of the kernel is gathered from n_out pieces: x, r1 and r2 of rotary_, or the pairs (x1,
 * x2), (c, c) and (s, s) of rotary_halves. The result goes back in as many. */
static void gathered_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    const tl_convert_table *convert = tl_isa_now()->convert;
    const int64_t n = j->n * j->n_out, room = j->a[0].dim[j->lead] * j->n_out;
    const size_t piece = (size_t)j->n * tl_dtype_size(j->compute);
    char *row[4]; /* x, r1, r2 and the result */
    tl_cursor at[MOST];
    for (int k = 0; k < 4; k++)
        row[k] = (char *)(j->scratch + (4 * thread + k) * room);
    begin_at(j, begin, at);
    for (int64_t r = begin; r < end; r++, next_row(j, at)) {
        for (int k = 0; k < 3; k++)
            for (int i = 0; i < j->n_out; i++) {
                const tl_cursor *from = &at[k == 0 ? i : k + j->n_out - 1];
                convert->widen(j->n, from->a->dtype, tl_cursor_data(from), from->a->stride[j->lead],
                               row[k] + (size_t)i * piece);
            }
        rotate_row(j, n, row[0], row[1], row[2], row[3]);
        for (int i = 0; i < j->n_out; i++) {
            const tl_cursor *to = &at[j->n_in + i];
            convert->narrow(j->n, to->a->dtype, row[3] + (size_t)i * piece, tl_cursor_data(to),
                            to->a->stride[j->lead]);
        }
    }
}

static tl_status gathered_run(tl_call *c, job *j)
{
    const int64_t d = j->a[0].dim[j->lead], room = d * j->n_out, grain = 1 + 8192 / room,
                  rows = tl_array_count(c->in[0]) / d;
    const size_t threads = (size_t)tl_parallel_width(rows, grain);
    j->scratch = tl_scratch(c, threads * 4 * (size_t)room * sizeof(double), false);
    if (j->scratch == NULL)
        return TL_ENOMEM;
    tl_parallel_for(rows, grain, gathered_rows, j);
    return TL_OK;
}

/* ---- rotary_(x, r1, r2): rotary in place, on any strided view, such as a slice of a packed qkv:
 * x is consumed and changed where it lies. Shapes, dtypes, bits, VJP: as rotary (NUMERICS 8.4). The
 * gradients of tables would read x, so the engine refuses tables that need one.
 * Errors: also TL_EINPLACE (a leaf, a table that needs a gradient, x with repeated elements) */

static tl_status inplace_forward(tl_call *c)
{
    const rotary_attrs *a = c->attrs;
    job j = job_of(c, a->pairing == TL_ROTARY_INTERLEAVED, a->turned);
    return gathered_run(c, &j);
}

const tl_op tl_op_rotary_ = {ROTARY(rotary_), .traits = TL_MUTATES, .mutates = 0,
                             .shape = rotary_shape, .forward = inplace_forward};

tl_tensor tl_rotary_inplace_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2,
                               tl_rotary_pairing pairing)
{
    return tl_apply1(at, &tl_op_rotary_, &(rotary_attrs){pairing, false}, (tl_tensor[]){x, r1, r2},
                     3);
}

/* ---- rotary_halves: rotary on two halves that lie apart: y1 = c*x1 - s*x2, y2 = c*x2 + s*x1;
 * conjugate (turned back by the same angle): y1 = c*x1 + s*x2, y2 = c*x2 - s*x1
 * Shape:  x1, x2 (..., h) of one shape, of any strides (the chunks of one tensor, say); c, s (...,
 *         h) broadcasting to x1 -> y1, y2 like x1
 * Dtype:  f16 bf16 f32 f64; tables of x1's dtype, or f32 with f16 and bf16
 * Bits:   each product rounded, then the sum: those of rotary by halves, of (x1, x2) with the
 *         tables (c, c), (s, s) (NUMERICS 8.7)
 * VJP:    dx1, dx2 = this op of dy1, dy2, with the opposite conjugate;  dc = dy1*x1 + dy2*x2,  ds =
 *         dy2*x1 - dy1*x2 (conjugate: the negative), folded by the engine.   Saves c, s; x1, x2 for
 *         the tables' gradients alone.
 * Errors: TL_ESHAPE TL_EDTYPE
 * Source: Su et al. 2021, eq. 34
 */

typedef struct {
    bool conjugate;
} halves_attrs;

static const tl_attr halves_schema[] = {TL_FIELD(halves, conjugate, BOOL), {0}};

static tl_status halves_shape(tl_call *c)
{
    const tl_array *x1 = c->in[0], *x2 = c->in[1];
    if (!tl_dtype_is_float(x1->dtype) || x1->dtype != x2->dtype)
        return tl_call_fail(c, TL_EDTYPE, "the halves are %s and %s; one floating type is needed",
                            tl_dtype_name(x1->dtype), tl_dtype_name(x2->dtype));
    if (x1->ndim == 0 || !tl_array_same_shape(x1, x2))
        return tl_call_fail(
            c, TL_ESHAPE,
            "the halves have shapes %s and %s; one shape of at least one dim is needed",
            TL_TEXT(x1), TL_TEXT(x2));
    int64_t h = x1->dim[x1->ndim - 1];
    TL_TRY(check_table(c, x1, c->in[2], h));
    TL_TRY(check_table(c, x1, c->in[3], h));
    c->out[0] = c->out[1] = *x1;
    return TL_OK;
}

static tl_status halves_forward(tl_call *c)
{
    job j = job_of(c, false, ((const halves_attrs *)c->attrs)->conjugate);
    return gathered_run(c, &j);
}

/* The cotangent of output j, +0 where nothing depends on it. */
static tl_tensor cotangent(tl_vjp *g, int j)
{
    const tl_tensor y = g->out[j];
    return tl_is_none(g->dy[j]) ? tl_zeros_of(TL_AT(g->t), tl_dtype_of(g->t, y),
                                              tl_shape_of(g->t, y), y, tl_batch_of(g->t, y))
                                : g->dy[j];
}

/* a*b + c*d, or a*b - c*d. */
static tl_tensor two_products(tl_tape *t, tl_tensor a, tl_tensor b, tl_tensor c, tl_tensor d,
                              bool minus)
{
    tl_tensor p = tl_mul(t, a, b), q = tl_mul(t, c, d);
    return minus ? tl_sub(t, p, q) : tl_add(t, p, q);
}

static void halves_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    const halves_attrs *a = g->attrs;
    tl_tensor dy[2] = {cotangent(g, 0), cotangent(g, 1)}, x[2];
    if (g->wants[0] || g->wants[1])
        g->dx[0] = tl_rotary_halves_at(TL_AT(t), dy[0], dy[1], g->in[2], g->in[3], !a->conjugate,
                                       &g->dx[1]);
    if (!g->wants[2] && !g->wants[3])
        return;
    /* As for rotary, no product is rounded to f16 before the fold. */
    tl_dtype c = tl_dtype_compute(tl_dtype_of(t, g->in[0]));
    for (int i = 0; i < 2; i++) {
        x[i] = tl_in_dtype(TL_AT(t), g->in[i], c);
        dy[i] = tl_in_dtype(TL_AT(t), dy[i], c);
    }
    if (g->wants[2])
        g->dx[2] = two_products(t, dy[0], x[0], dy[1], x[1], false);
    if (g->wants[3])
        g->dx[3] = a->conjugate ? two_products(t, dy[0], x[1], dy[1], x[0], true)
                                : two_products(t, dy[1], x[0], dy[0], x[1], true);
}

static unsigned halves_saves(unsigned wanted)
{
    return (wanted & 12 ? 3u : 0) | (wanted & 3 ? 12u : 0);
}

const tl_op tl_op_rotary_halves = {TL_NAMED(rotary_halves, 4, 2),
                                   .shape = halves_shape,
                                   .forward = halves_forward,
                                   TL_ATTRS(halves),
                                   .vjp = halves_vjp,
                                   .saves_in = 15,
                                   .saves_for = halves_saves,
                                   .batch = tl_batch_rows};

tl_tensor tl_rotary_halves_at(tl_at at, tl_tensor x1, tl_tensor x2, tl_tensor c, tl_tensor s,
                              bool conjugate, tl_tensor *y2)
{
    tl_tensor out[2];
    if (TL_NEED_AT(at, y2) != TL_OK)
        return TL_NONE;
    tl_apply(at, &tl_op_rotary_halves, &(halves_attrs){conjugate}, (tl_tensor[]){x1, x2, c, s}, 4,
             out);
    *y2 = out[1];
    return out[0];
}
