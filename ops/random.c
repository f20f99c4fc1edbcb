/* random: dropout; uniform, normal; bernoulli, permutation. A draw is keyed by the model's seed and
 * the stream's name. Its counter is the sample's number and the place in that sample.
 *
 * dropout: y = x / (1 - p) where a draw is kept, 0 where it is dropped
 * Shape:  x (b, ...) -> the same; sample i64: 0-d, the number of row 0, or (b), the number of each
 *         row; start i64 (b) or none
 * Dtype:  f16 bf16 f32 f64
 * Bits:   element e of row i is kept if uniform32(key, sample number of i, e) >= p; y = x * s, s =
 *         1/(1-p) in f64, rounded to the compute type; dropped: +0 (NUMERICS 11.3). With start, e
 *         counts from index start[i] of axis 1. The key is made of the model's seed and the
 *         stream's name.
 * VJP:    dx = dropout(dy) with the same draws: only the sample numbers and starts are kept
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (p outside [0, 1]) TL_EINDEX (a start) TL_EUSAGE (no
 *         stream, no model)
 * Source: Srivastava et al. 2014
 */
#include "ops/build.h"
#include "autograd/model.h"
#include "tensor/rng.h"

typedef struct {
    double p;
    int64_t key; /* both words: low half first */
} dropout_attrs;

static const tl_attr dropout_schema[] = {TL_FIELD(dropout, p, F64),
                                         TL_FIELD(dropout, key, I64),
                                         {0}};

/* Checks x, whose rows are drawn one by one, and the inputs that go with it: input `at` is a sample
 * number, or one for each row; the next, if it is there, has a start for each row of (b, s, ...).
 */
static tl_status check_rows(tl_call *c, const char *name, const tl_array *x, int at)
{
    const tl_array *sample = c->in[at], *start = c->in[at + 1];
    TL_TRY(tl_need_indexed(c, name, x, "sample", sample));
    if (x->ndim == 0)
        return tl_call_fail(c, TL_ESHAPE,
                            "shape [] has no rows, which are drawn one by one; (b, ...) is needed");
    if (sample->ndim > 1 || (sample->ndim == 1 && sample->dim[0] != x->dim[0]))
        return tl_call_fail(
            c, TL_ESHAPE,
            "%s has shape %s, sample %s; one number, or one for each row of %s, is needed", name,
            TL_TEXT(x), TL_TEXT(sample), name);
    if (start != NULL &&
        (start->dtype != TL_I64 || start->ndim != 1 || x->ndim < 2 || start->dim[0] != x->dim[0]))
        return tl_call_fail(
            c, TL_ESHAPE,
            "%s has shape %s, start %s, %s; I64 for each row of %s (b, s, ...) are needed", name,
            TL_TEXT(x), TL_TEXT(start), tl_dtype_name(start->dtype), name);
    return TL_OK;
}

static tl_status dropout_shape(tl_call *c)
{
    const dropout_attrs *a = c->attrs;
    if (!(a->p >= 0 && a->p <= 1))
        return tl_call_fail(c, TL_EDOMAIN, "p is %g; a probability in [0, 1] is needed", a->p);
    TL_TRY(check_rows(c, "x", c->in[0], 1));
    c->out[0] = *c->in[0];
    return TL_OK;
}

enum { BLOCK = 256 };

/* A call while it draws. `block` makes m elements of a row of y, from element e on; none of them is
 * padding. */
typedef struct places places;
typedef void draw_block(const places *p, int64_t row, int64_t e, int64_t m);
struct places {
    const tl_call *c;
    const tl_array *y, *sample, *start; /* start: NULL: no padding */
    tl_rng_key key;
    draw_block *block;
    int64_t n, inner; /* elements of one index of axis 0, of one index of axes 0 and 1 */
};

static uint64_t sample_of(const places *p, int64_t row)
{
    if (p->sample->ndim == 0)
        return (uint64_t)tl_i64_at(p->sample, 0) + (uint64_t)row;
    return (uint64_t)tl_i64_at(p->sample, row);
}

/* Elements of a row that are padding. */
static int64_t skipped(const places *p, int64_t row)
{
    return p->start == NULL ? 0 : tl_i64_at(p->start, row) * p->inner;
}

static int64_t blocks_of(const places *p) { return (p->n + BLOCK - 1) / BLOCK; }

static void draw_range(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const places *p = ctx;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / blocks_of(p), e = i % blocks_of(p) * BLOCK,
                m = p->n - e < BLOCK ? p->n - e : BLOCK;
        int64_t pad = skipped(p, row) - e, zeros = pad < 0 ? 0 : pad < m ? pad : m;
        memset(tl_flat_at(p->y, row * p->n + e), 0, (size_t)zeros * tl_dtype_size(p->y->dtype));
        p->block(p, row, e + zeros, m - zeros);
    }
}

/* Makes the call's result in blocks of at most BLOCK elements of a row; padding is +0. Input
 * `sample` holds the sample numbers, the input after it the starts. */
static tl_status draw(tl_call *c, int sample, int64_t key, draw_block *block)
{
    const tl_array *y = &c->out[0], *start = c->in[sample + 1];
    const uint64_t k = (uint64_t)key;
    for (int64_t i = 0; start != NULL && i < y->dim[0]; i++) {
        int64_t at = tl_i64_at(start, i);
        if (at < 0 || at > y->dim[1])
            return tl_call_fail(c, TL_EINDEX, "row %lld starts at index %lld of %lld", (long long)i,
                                (long long)at, (long long)y->dim[1]);
    }
    places p = {.c = c,
                .y = y,
                .sample = c->in[sample],
                .start = start,
                .key = {{(uint32_t)k, (uint32_t)(k >> 32)}, TL_OK},
                .block = block,
                .n = tl_array_count(y) / y->dim[0]};
    p.inner = y->ndim > 1 ? p.n / y->dim[1] : 1;
    tl_parallel_for(y->dim[0] * blocks_of(&p), 16, draw_range, &p);
    return TL_OK;
}

/* ---- dropout ---- */

static void dropout_block(const places *p, int64_t row, int64_t e, int64_t m)
{
    const tl_call *c = p->c;
    const double drop = ((const dropout_attrs *)c->attrs)->p, scale = 1 / (1 - drop);
    const int64_t at = row * p->n + e;
    float u[BLOCK];
    tl_rng_fill_uniform32(u, (size_t)m, p->key, sample_of(p, row), (uint64_t)(e - skipped(p, row)));
    if (p->y->dtype == TL_F64) {
        const double *x = (const double *)c->in[0]->data + at;
        double *y = (double *)p->y->data + at;
        for (int64_t i = 0; i < m; i++)
            y[i] = (double)u[i] >= drop ? x[i] * scale : 0;
    } else {
        const float *x = (const float *)c->in[0]->data + at;
        float *y = (float *)p->y->data + at;
        for (int64_t i = 0; i < m; i++)
            y[i] = (double)u[i] >= drop ? x[i] * (float)scale : 0;
    }
}

static tl_status dropout_forward(tl_call *c)
{
    return draw(c, 1, ((const dropout_attrs *)c->attrs)->key, dropout_block);
}

static void dropout_vjp(tl_vjp *g)
{
    g->dx[0] = tl_apply1(TL_AT(g->t), &tl_op_dropout, g->attrs,
                         (tl_tensor[]){g->dy[0], g->in[1], g->in[2]}, 3);
}

/* Each row's draws are those of its sample. (A TL_RANDOM op is asked even if no input depends on
 * the batch.) */
static void dropout_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const bool meet = tl_batch_meet(c, in, TL_ALL_INPUTS, TL_FROM_FRONT) == 0;
    out[0] = meet && in[0] == 0 ? 0 : TL_MIXED;
}

const tl_op tl_op_dropout = {TL_NAMED(dropout, 3, 1),
                             .optional = TL_BIT(2),
                             .traits = TL_RANDOM | TL_WIDENED,
                             .shape = dropout_shape,
                             .forward = dropout_forward,
                             TL_ATTRS(dropout),
                             .vjp = dropout_vjp,
                             .saves_in = 6,
                             .batch = dropout_batch};

/* The key of a model's stream. */
static tl_status key_of(tl_at at, const char *op, const char *stream, int64_t *key)
{
    tl_model *m = tl_tape_model(at.tape);
    if (stream == NULL || m == NULL)
        return tl_tape_fail(at, TL_EUSAGE,
                            "%s: %s; draws are keyed by a model's seed and a stream's name", op,
                            m == NULL ? "the tape has no model" : "no .stream is named");
    tl_rng_key k = tl_rng_stream(tl_model_seed(m), stream);
    if (k.status != TL_OK)
        return tl_tape_fail(at, k.status, "%s: no memory for the key of '%.80s'", op, stream);
    *key = (int64_t)((uint64_t)k.k[1] << 32 | k.k[0]);
    return TL_OK;
}

/* `sample`, or 0 if none is given. The 0 is mixed: row 0 is another sample in each micro-batch. */
static tl_tensor sample_or_0(tl_at at, tl_tensor sample)
{
    if (!tl_is_none(sample))
        return sample;
    sample = tl_scalar_at(at, TL_I64, 0);
    tl_batch_axis_tape_at(at.tape, sample, TL_MIXED, at.file, at.line);
    return sample;
}

tl_tensor tl_dropout_at(tl_at at, tl_tensor x, tl_dropout_options o)
{
    dropout_attrs a = {.p = o.p};
    if (tl_mode(at.tape) & TL_EVAL)
        return x;
    if (key_of(at, "dropout", o.stream, &a.key) != TL_OK)
        return TL_NONE;
    return tl_apply1(at, &tl_op_dropout, &a, (tl_tensor[]){x, sample_or_0(at, o.sample), o.start},
                     3);
}

/* ---- draw: uniform in [0, 1), normal with mean 0 and variance 1
 * Shape:  given (b, ...); sample i64: 0-d, the number of row 0, or (b); start i64 (b) or none
 * Dtype:  f64 f32 f16 bf16
 * Bits:   element e of row i is uniform64 for an f64 result, uniform32 for others, or normal64, at
 *         (sample number of i, e), rounded once; +0 before the start (NUMERICS 11.4)
 * VJP:    none. A shadow run in f64 has the draws of the dtype asked for
 * Errors: TL_ESHAPE TL_EDTYPE TL_EINDEX (a start) TL_EUSAGE (no stream, no model)
 */

typedef struct {
    tl_shape shape;
    tl_dtype dtype;
    bool normal;
    int64_t key;
} draw_attrs;

static const tl_attr draw_schema[] = {TL_FIELD(draw, shape, SHAPE),
                                      TL_FIELD(draw, dtype, DTYPE),
                                      TL_FIELD(draw, normal, BOOL),
                                      TL_FIELD(draw, key, I64),
                                      {0}};

static tl_status draw_shape(tl_call *c)
{
    const draw_attrs *a = c->attrs;
    tl_array *y = &c->out[0];
    TL_TRY(tl_need_shape(c, &a->shape, a->dtype));
    *y = tl_array_make(a->dtype, &a->shape, NULL);
    TL_TRY(check_rows(c, "the result", y, 0));
    y->dtype = c->mode & TL_SHADOW ? TL_F64 : a->dtype;
    return TL_OK;
}

static void fill_block(const places *p, int64_t row, int64_t e, int64_t m)
{
    const draw_attrs *a = p->c->attrs;
    union {
        double f64[BLOCK];
        float f32[BLOCK];
    } u;
    const bool narrow = !a->normal && a->dtype != TL_F64;
    const uint64_t sample = sample_of(p, row), place = (uint64_t)(e - skipped(p, row));
    if (narrow)
        tl_rng_fill_uniform32(u.f32, (size_t)m, p->key, sample, place);
    else if (a->normal)
        tl_rng_fill_normal64(u.f64, (size_t)m, p->key, sample, place);
    else
        tl_rng_fill_uniform64(u.f64, (size_t)m, p->key, sample, place);
    tl_isa_now()->convert->cast(m, narrow ? TL_F32 : TL_F64, &u, p->y->dtype,
                                tl_flat_at(p->y, row * p->n + e));
}

static tl_status draw_forward(tl_call *c)
{
    return draw(c, 0, ((const draw_attrs *)c->attrs)->key, fill_block);
}

/* With one sample number the draws are free of the batch, unless the program says that they have an
 * axis of samples. */
static void draw_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const bool alike = c->in[0]->ndim == 0 && (c->in[1] == NULL || in[1] == TL_FREE);
    out[0] = alike ? TL_FREE : in[0] == 0 && (c->in[1] == NULL || in[1] == 0) ? 0 : TL_MIXED;
}

const tl_op tl_op_draw = {
    TL_NAMED(draw, 2, 1), .optional = TL_BIT(1),   .traits = TL_RANDOM | TL_NONDIFF,
    .shape = draw_shape,  .forward = draw_forward, TL_ATTRS(draw),
    .batch = draw_batch};

static tl_tensor drawn(tl_at at, const char *name, bool normal, tl_dtype dtype, tl_shape shape,
                       tl_draw_options o)
{
    draw_attrs a = {shape, dtype, normal, 0};
    if (key_of(at, name, o.stream, &a.key) != TL_OK)
        return TL_NONE;
    tl_tensor sample = sample_or_0(at, o.sample),
              y = tl_apply1(at, &tl_op_draw, &a, (tl_tensor[]){sample, o.start}, 2);
    if (!tl_is_none(o.sample) && tl_shape_of(at.tape, sample).ndim == 0)
        tl_batch_axis_tape_at(at.tape, y, 0, at.file, at.line); /* samples from that number on */
    return y;
}

tl_tensor tl_uniform_at(tl_at at, tl_dtype dtype, tl_shape shape, tl_draw_options o)
{
    return drawn(at, "uniform", false, dtype, shape, o);
}

tl_tensor tl_normal_at(tl_at at, tl_dtype dtype, tl_shape shape, tl_draw_options o)
{
    return drawn(at, "normal", true, dtype, shape, o);
}

/* Checks that p is usable and that its readable elements (none in a trace) are in [0, 1]. */
static tl_status check_probabilities(tl_at at, tl_tensor p)
{
    tl_array a;
    if (!tl_usable(at, p, "bernoulli") || !tl_array_of(at.tape, p, &a))
        return TL_EUSAGE;
    if (a.data == NULL || !tl_dtype_is_float(a.dtype))
        return TL_OK; /* the comparison reports other errors */
    const int64_t n = tl_array_count(&a);
    tl_cursor at_row = tl_cursor_at(&a, a.ndim, 0);
    for (int64_t i = 0; i < n; i++, tl_cursor_next(&at_row)) {
        const double x = tl_element_get(a.dtype, tl_cursor_data(&at_row));
        if (!(x >= 0 && x <= 1))
            return tl_tape_fail(at, TL_EDOMAIN,
                                "bernoulli: p is %.9g at position %lld; 0 to 1 is needed", x,
                                (long long)i);
    }
    return TL_OK;
}

/* 1 where a uniform draw of the compute type is below p (NUMERICS 11.4). */
tl_tensor tl_bernoulli_at(tl_at at, tl_tensor p, tl_draw_options o)
{
    tl_dtype own = tl_dtype_of(at.tape, p);
    if (check_probabilities(at, p) != TL_OK)
        return TL_NONE;
    tl_tensor u = tl_uniform_at(at, tl_dtype_compute(own), tl_shape_of(at.tape, p), o);
    return tl_cast_at(at, tl_lt_at(at, u, p), own);
}

/* The argsort of n uniform f64 draws. */
tl_tensor tl_permutation_at(tl_at at, int64_t n, tl_draw_options o)
{
    tl_shape s = tl_is_none(o.sample) ? TL_SCALAR : tl_shape_of(at.tape, o.sample);
    bool rows = s.ndim == 1;
    tl_tensor u = tl_uniform_at(at, TL_F64, TL_DIMS(rows ? s.dim[0] : 1, n), o);
    if (!rows) /* one for all samples */
        tl_batch_axis_tape_at(at.tape, u, TL_FREE, at.file, at.line);
    tl_tensor y = tl_argsort_at(at, u, 1, false);
    return rows ? y : tl_reshape_at(at, y, TL_DIMS(n));
}
