/* rotary_halves: rotary on two halves that lie apart: y1 = c*x1 - s*x2, y2 = c*x2 + s*x1; conjugate
 * (turned back by the same angle): y1 = c*x1 + s*x2, y2 = c*x2 - s*x1
 * Shape:  x1, x2 (..., h) of one shape, of any strides (the chunks of one tensor, say); c, s (...,
 *         h) broadcasting to x1 -> y1, y2 like x1
 * Dtype:  f16 bf16 f32 f64; tables of x1's dtype, or f32 with f16 and bf16
 * Bits:   each product rounded, then the sum: those of rotary by halves, of (x1, x2) with the
 *         tables (c, c), (s, s) (NUMERICS 8.7)
 * VJP:    dx1, dx2 = this op of dy1, dy2, conjugate the other way;  dc = dy1*x1 + dy2*x2,  ds =
 *         dy2*x1 - dy1*x2 (conjugate: the negative), folded by the engine.   Saves c, s; x1, x2 for
 *         the tables' gradients alone.
 * Errors: TL_ESHAPE TL_EDTYPE
 * Source: Su et al. 2021, eq. 34
 */
#include "ops/rotary.h"

typedef struct {
    bool conjugate;
} halves_attrs;

static const tl_attr halves_schema[] = {{"conjugate", TL_ATTR_BOOL,
                                         offsetof(halves_attrs, conjugate)},
                                        {0}};

static tl_status halves_shape(tl_call *c)
{
    const tl_array *x1 = c->in[0], *x2 = c->in[1];
    char a[TL_SHAPE_TEXT], b[TL_SHAPE_TEXT];
    if (!tl_dtype_is_float(x1->dtype) || x1->dtype != x2->dtype)
        return tl_call_fail(c, TL_EDTYPE, "the halves are %s and %s; one floating type is needed",
                            tl_dtype_name(x1->dtype), tl_dtype_name(x2->dtype));
    if (x1->ndim == 0 || !tl_array_same_shape(x1, x2))
        return tl_call_fail(
            c, TL_ESHAPE,
            "the halves have shapes %s and %s; one shape of at least one dim is needed",
            tl_array_shape_text(a, x1), tl_array_shape_text(b, x2));
    int64_t h = x1->dim[x1->ndim - 1];
    TL_TRY(tl_rotary_check_table(c, x1, c->in[2], h));
    TL_TRY(tl_rotary_check_table(c, x1, c->in[3], h));
    c->out[0] = c->out[1] = *x1;
    return TL_OK;
}

typedef struct {
    tl_array in[4]; /* x1, x2, c, s of the same dims */
    const tl_array *y;
    int64_t h;
    size_t unit;
    bool conjugate;
    void *scratch;
} job;

/* Rows of two arrays one after the other in buf; moves both on. */
static void row_pair(tl_cursor *a, tl_cursor *b, int64_t h, size_t unit, char *buf)
{
    tl_cursor *half[2] = {a, b};
    for (int i = 0; i < 2; i++)
        memcpy(buf + (size_t)(i * h) * unit, tl_cursor_data(half[i]), (size_t)h * unit);
    tl_cursor_next(a);
    if (b != a)
        tl_cursor_next(b);
}

static void halves_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    int lead = j->in[0].ndim - 1;
    void *buf[4];
    tl_cursor at[4];
    for (int i = 0; i < 4; i++) {
        at[i] = tl_cursor_at(&j->in[i], lead, begin);
        buf[i] = tl_rotary_row(j->scratch, thread, 2 * j->h, i);
    }
    for (int64_t r = begin; r < end; r++) {
        row_pair(&at[0], &at[1], j->h, j->unit, buf[0]);
        row_pair(&at[2], &at[2], j->h, j->unit, buf[1]);
        row_pair(&at[3], &at[3], j->h, j->unit, buf[2]);
        if (j->unit == sizeof(double))
            tl_isa_now()->row->rotary64(2 * j->h, buf[0], buf[1], buf[2], false, j->conjugate,
                                        buf[3]);
        else
            tl_isa_now()->row->rotary32(2 * j->h, buf[0], buf[1], buf[2], false, j->conjugate,
                                        buf[3]);
        for (int i = 0; i < 2; i++)
            memcpy((char *)j->y[i].data + (size_t)(r * j->h) * j->unit,
                   (char *)buf[3] + (size_t)(i * j->h) * j->unit, (size_t)j->h * j->unit);
    }
}

static tl_status halves_forward(tl_call *c)
{
    job j = {.y = c->out,
             .h = c->in[0]->dim[c->in[0]->ndim - 1],
             .unit = tl_dtype_size(c->out[0].dtype),
             .conjugate = ((const halves_attrs *)c->attrs)->conjugate};
    tl_shape s = tl_array_shape(c->in[0]);
    for (int i = 0; i < 4; i++)
        j.in[i] = tl_array_expand(c->in[i], &s);
    return tl_rotary_run(c, tl_array_count(c->in[0]) / j.h, 2 * j.h, halves_rows, &j, &j.scratch);
}

/* The cotangent of output j: +0 where nothing depends on it. */
static tl_tensor cotangent(tl_vjp *g, int j)
{
    return tl_is_none(g->dy[j])
               ? tl_fill(g->t, tl_dtype_of(g->t, g->out[j]), tl_shape_of(g->t, g->out[j]), 0)
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
    tl_dtype c = tl_dtype_compute(tl_dtype_of(
        t, g->in[0])); /* products in the compute type: no rounding to f16 before the fold */
    for (int i = 0; i < 2; i++) {
        x[i] = tl_cast(t, g->in[i], c);
        dy[i] = tl_cast(t, dy[i], c);
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

const tl_op tl_op_rotary_halves = {.name = "rotary_halves",
                                   .n_in = 4,
                                   .n_out = 2,
                                   .traits = TL_ROWS,
                                   .shape = halves_shape,
                                   .forward = halves_forward,
                                   .attr = halves_schema,
                                   .attr_size = sizeof(halves_attrs),
                                   .vjp = halves_vjp,
                                   .saves_in = 15,
                                   .saves_for = halves_saves,
                                   .batch = tl_batch_rows};

tl_tensor tl_rotary_halves_at(tl_at at, tl_tensor x1, tl_tensor x2, tl_tensor c, tl_tensor s,
                              bool conjugate, tl_tensor *y2)
{
    halves_attrs a = {conjugate};
    tl_tensor out[2];
    if (TL_NEED_AT(at, y2) != TL_OK)
        return TL_NONE;
    tl_apply(at, &tl_op_rotary_halves, &a, (tl_tensor[]){x1, x2, c, s}, 4, out);
    *y2 = out[1];
    return out[0];
}
